//! The rights that exactly these rules need.

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use serde::Serialize;

use super::{
    Rules,
    manifests::{CONFIGURATION, LEASE, NAMESPACE},
};

/// The name of the ClusterRole.
pub const CLUSTER_ROLE: &str = "pausegen";
/// What is done with a kind that has an input of its own.
const WRITE: [&str; 4] = ["get", "list", "patch", "watch"];
/// What is done with a kind that only inherits.
const READ: [&str; 3] = ["get", "list", "watch"];

/// The resources of an API group that the rules are for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// The API group.
    pub group: String,
    /// Resources with an input of their own: the acknowledgement is written on them.
    pub write: Vec<String>,
    /// Resources that only inherit, or are only asked.
    pub read: Vec<String>,
    /// Those of `read` that get a condition `Paused`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirror: Vec<String>,
    /// What is done with the other resources of the group, if a rule has a pattern for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<Reach>,
}

/// What is done with the resources that a pattern stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Reach {
    /// They are read.
    Read,
    /// They are read, and acknowledgements are written on them.
    Write,
}

/// The resources of the rules by group, in the order of the rules.
#[must_use]
pub fn groups(rules: &Rules) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (selector, inputs) in rules.inputs() {
        let known = groups.iter().position(|group| group.group == selector.group);
        let at = known.unwrap_or_else(|| {
            groups.push(Group {
                group: selector.group.clone(),
                write: Vec::new(),
                read: Vec::new(),
                mirror: Vec::new(),
                pattern: None,
            });
            groups.len() - 1
        });
        let Some(group) = groups.get_mut(at) else { continue };
        let (reach, list) = if inputs.is_empty() {
            (Reach::Read, &mut group.read)
        } else {
            (Reach::Write, &mut group.write)
        };
        for kind in selector.names() {
            let resource = rules.plural(&kind);
            if !list.contains(&resource) {
                list.push(resource.clone());
            }
            if reach == Reach::Read && rules.is_mirrored(&kind) && !group.mirror.contains(&resource) {
                group.mirror.push(resource);
            }
        }
        if selector.is_pattern() {
            let mirrored = rules.mirrored().any(|other| other == selector);
            // A pattern stands for kinds that are not known here: writing a condition is writing.
            let reach = if mirrored { Reach::Write } else { reach };
            group.pattern = group.pattern.max(Some(reach));
        }
    }
    groups
}

/// Which of the kinds that a pattern stands for a ClusterRole lets in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Every resource of a group that has a pattern, also those of providers that are installed later.
    pub discover_providers: bool,
    /// Resources that are installed, as group and resource name, where not everything is let in.
    pub installed: Vec<(String, String)>,
    /// The serving certificate is of a CA of its own, which is written into `caBundle`.
    pub own_ca: bool,
}

impl Access {
    /// Installed resources that no pattern stands for: naming them gives no right.
    pub fn without_pattern<'a>(&'a self, rules: &Rules) -> impl Iterator<Item = &'a (String, String)> {
        let groups = groups(rules);
        self.installed
            .iter()
            .filter(move |(of, _)| !groups.iter().any(|group| group.group == *of && group.pattern.is_some()))
    }

    fn add(&self, group: &Group, reach: Reach, named: &[String]) -> Vec<String> {
        let mut resources = named.to_vec();
        if group.pattern != Some(reach) {
            return resources;
        }
        if self.discover_providers {
            return vec!["*".to_owned()];
        }
        for (_, resource) in self.installed.iter().filter(|(of, _)| *of == group.group) {
            if !resources.contains(resource) {
                resources.push(resource.clone());
            }
        }
        resources
    }
}

/// The rights on the ruled kinds.
fn on_kinds(rules: &Rules, access: &Access) -> Vec<PolicyRule> {
    let mut policy = Vec::new();
    for group in groups(rules) {
        let write = access.add(&group, Reach::Write, &group.write);
        let mut read = access.add(&group, Reach::Read, &group.read);
        read.retain(|resource| !write.contains(resource));
        if write.iter().any(|resource| resource == "*") {
            read.clear();
        }
        let mut status: Vec<String> = write.iter().map(|name| format!("{name}/status")).collect();
        if !write.iter().any(|resource| resource == "*") {
            status.extend(group.mirror.iter().map(|name| format!("{name}/status")));
        }
        policy.extend(allow(&group.group, write, &WRITE));
        policy.extend(allow(&group.group, status, &["patch"]));
        policy.extend(allow(&group.group, read, &READ));
    }
    policy
}

/// The rights that do not depend on the rules.
#[must_use]
pub fn always() -> Vec<PolicyRule> {
    let one = |name: &str| vec![name.to_owned()];
    let mut policy = Vec::new();
    policy.extend(allow("coordination.k8s.io", one("leases"), &["get", "list", "watch"]));
    policy.extend(allow("events.k8s.io", one("events"), &["create", "patch"]));
    let configurations = allow(
        "admissionregistration.k8s.io",
        one("mutatingwebhookconfigurations"),
        &["get", "list", "watch"],
    );
    policy.extend(configurations.map(of_ours));
    // Ready is who serves a certificate that both trust.
    let validating = allow(
        "admissionregistration.k8s.io",
        one("validatingwebhookconfigurations"),
        &["get"],
    );
    policy.extend(validating.map(of_ours));
    policy.extend(allow(
        "apiextensions.k8s.io",
        one("customresourcedefinitions"),
        &["list", "watch"],
    ));
    // Whether the webhooks are called for a namespace is told by its labels.
    policy.extend(allow("", one("namespaces"), &["get"]));
    policy
}

/// The right that a CA of its own needs besides, to be told to the API server.
#[must_use]
pub fn own_ca() -> Vec<PolicyRule> {
    let both = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    let rule = allow(
        "admissionregistration.k8s.io",
        both.map(str::to_owned).to_vec(),
        &["patch"],
    );
    rule.map(of_ours).into_iter().collect()
}

fn of_ours(rule: PolicyRule) -> PolicyRule {
    PolicyRule {
        resource_names: Some(vec![CONFIGURATION.to_owned()]),
        ..rule
    }
}

/// The ClusterRole that `serve` needs for these rules.
#[must_use]
pub fn cluster_role(rules: &Rules, access: &Access) -> ClusterRole {
    let mut policy = on_kinds(rules, access);
    policy.extend(always());
    if access.own_ca {
        policy.extend(own_ca());
    }
    ClusterRole {
        aggregation_rule: None,
        metadata: named(CLUSTER_ROLE),
        rules: Some(policy),
    }
}

/// Binds the ClusterRole to whoever `serve` runs as.
#[must_use]
pub fn cluster_role_binding(subject: Subject) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: named(CLUSTER_ROLE),
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "ClusterRole".to_owned(),
            name: CLUSTER_ROLE.to_owned(),
        },
        subjects: Some(vec![subject]),
    }
}

/// What an installation has of its own, in its namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Own {
    /// The namespace.
    pub namespace: String,
    /// The Lease that says which process acts.
    pub lease: String,
    /// The Secret of its CA and serving certificate, if it makes them itself.
    pub tls_secret: Option<String>,
}

impl Default for Own {
    fn default() -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            lease: LEASE.to_owned(),
            tls_secret: None,
        }
    }
}

/// The Role for what an installation has of its own. Who reads Leases may do so everywhere, see [`always`].
#[must_use]
pub fn role(own: &Own) -> Role {
    let one = |name: &str| vec![name.to_owned()];
    let mut policy = Vec::new();
    let mut add = |group: &str, resource: &str, verbs: &[&str], names: Option<Vec<String>>| {
        policy.extend(allow(group, one(resource), verbs).map(|rule| PolicyRule {
            resource_names: names,
            ..rule
        }));
    };
    // What does not exist has no name to be granted by.
    add("coordination.k8s.io", "leases", &["create"], None);
    add("coordination.k8s.io", "leases", &["update"], Some(one(&own.lease)));
    if let Some(secret) = &own.tls_secret {
        add("", "secrets", &["create"], None);
        add("", "secrets", &["get", "update"], Some(one(secret)));
    }
    Role {
        metadata: ObjectMeta {
            namespace: Some(own.namespace.clone()),
            ..named(CLUSTER_ROLE)
        },
        rules: Some(policy),
    }
}

/// Binds the Role to whoever `serve` runs as.
#[must_use]
pub fn role_binding(own: &Own, subject: Subject) -> RoleBinding {
    RoleBinding {
        metadata: ObjectMeta {
            namespace: Some(own.namespace.clone()),
            ..named(CLUSTER_ROLE)
        },
        role_ref: RoleRef {
            api_group: "rbac.authorization.k8s.io".to_owned(),
            kind: "Role".to_owned(),
            name: CLUSTER_ROLE.to_owned(),
        },
        subjects: Some(vec![subject]),
    }
}

/// A ServiceAccount, as the subject of a binding.
#[must_use]
pub fn service_account(namespace: &str, name: &str) -> Subject {
    Subject {
        api_group: None,
        kind: "ServiceAccount".to_owned(),
        name: name.to_owned(),
        namespace: Some(namespace.to_owned()),
    }
}

/// A user, as the subject of a binding.
#[must_use]
pub fn user(name: &str) -> Subject {
    Subject {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: "User".to_owned(),
        name: name.to_owned(),
        namespace: None,
    }
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.to_owned()),
        labels: Some([("app.kubernetes.io/name".to_owned(), "pausegen".to_owned())].into()),
        ..ObjectMeta::default()
    }
}

/// `None` where there are no resources.
fn allow(group: &str, resources: Vec<String>, verbs: &[&str]) -> Option<PolicyRule> {
    (!resources.is_empty()).then(|| PolicyRule {
        api_groups: Some(vec![group.to_owned()]),
        non_resource_urls: None,
        resource_names: None,
        resources: Some(resources),
        verbs: verbs.iter().map(|&verb| verb.to_owned()).collect(),
    })
}
