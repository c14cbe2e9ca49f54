//! The webhook configurations and the RBAC that exactly these rules need.
//!
//! Fields that the API server would default are written out, so that what it stores is what was applied.

use std::collections::BTreeSet;

use k8s_openapi::{
    ByteString,
    api::{
        admissionregistration::v1::{
            MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
            ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
        },
        rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use serde::Serialize;

use super::{Rules, cel};

/// The name of both webhook configurations. Webhooks are called in the order of these names: ours has to come late,
/// because another one that changes an input after ours leaves a wrong stamp.
pub const CONFIGURATION: &str = "zz-pausegen";
/// The webhook that stamps a flip.
pub const FLIP: &str = "flip.pausegen.io";
/// The webhook that guards our keys.
pub const KEYS: &str = "keys.pausegen.io";
/// The webhook that checks the final object of a flip.
pub const VALIDATE: &str = "validate.pausegen.io";
/// The name of the ClusterRole.
pub const CLUSTER_ROLE: &str = "pausegen";
/// The namespace of the product, unless it is told another one.
pub const NAMESPACE: &str = "pausegen-system";
/// The Lease that says which process acts.
pub const LEASE: &str = "pausegen";
/// The Secret of its own CA and serving certificate.
pub const TLS_SECRET: &str = "pausegen-tls";
/// Where the mutating webhooks are served.
pub const MUTATE_PATH: &str = "/mutate";
/// Where the validating webhook is served.
pub const VALIDATE_PATH: &str = "/validate";
/// How long the API server waits for an answer, in seconds.
const TIMEOUT_SECONDS: i32 = 10;

/// What happens to a write when a webhook cannot be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// It is denied.
    #[default]
    Fail,
    /// It goes through without us.
    Ignore,
}

impl FailurePolicy {
    /// As the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// Where the API server finds the webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// An address without a path, such as `https://127.0.0.1:9443`.
    Url(String),
}

/// How the webhooks are reached, and what they are called for.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where they are.
    pub endpoint: Endpoint,
    /// The CA of their certificate, as PEM; `None` leaves it to whoever puts it in.
    pub ca_bundle: Option<Vec<u8>>,
    /// The `failurePolicy` of the webhooks that are called for a flip. That of the keys webhook is always `Ignore`.
    pub failure_policy: FailurePolicy,
    /// The namespaces whose objects they are called for; `None`: all.
    pub namespace_selector: Option<LabelSelector>,
}

impl Target {
    /// Webhooks at an endpoint, under `Fail`, for all namespaces, without a CA.
    #[must_use]
    pub const fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            ca_bundle: None,
            failure_policy: FailurePolicy::Fail,
            namespace_selector: None,
        }
    }

    fn client_config(&self, path: &str) -> WebhookClientConfig {
        let (service, url) = match &self.endpoint {
            Endpoint::Service { namespace, name, port } => (
                Some(ServiceReference {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    path: Some(path.to_owned()),
                    port: Some(i32::from(*port)),
                }),
                None,
            ),
            Endpoint::Url(base) => (None, Some(format!("{}{path}", base.trim_end_matches('/')))),
        };
        WebhookClientConfig {
            ca_bundle: self.ca_bundle.clone().map(ByteString),
            service,
            url,
        }
    }

    fn mutating(
        &self,
        name: &str,
        policy: FailurePolicy,
        rules: &Rules,
        conditions: Vec<MatchCondition>,
    ) -> MutatingWebhook {
        MutatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config: self.client_config(MUTATE_PATH),
            failure_policy: Some(policy.as_str().to_owned()),
            match_conditions: Some(conditions),
            match_policy: Some("Equivalent".to_owned()),
            name: name.to_owned(),
            namespace_selector: Some(self.namespace_selector.clone().unwrap_or_default()),
            object_selector: Some(LabelSelector::default()),
            reinvocation_policy: Some("IfNeeded".to_owned()),
            rules: Some(operations(rules)),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }
    }
}

/// The two webhook configurations.
#[must_use]
pub fn webhooks(rules: &Rules, target: &Target) -> (MutatingWebhookConfiguration, ValidatingWebhookConfiguration) {
    let flips = cel::flips(rules);
    let flip = || conditions(rules, &[("flips", flips.clone())]);
    let keys = conditions(rules, &[("keys", cel::keys()), ("no-flip", format!("!({flips})"))]);
    let metadata = || ObjectMeta {
        name: Some(CONFIGURATION.to_owned()),
        labels: Some([("app.kubernetes.io/name".to_owned(), "pausegen".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let mutating = MutatingWebhookConfiguration {
        metadata: metadata(),
        webhooks: Some(vec![
            target.mutating(FLIP, target.failure_policy, rules, flip()),
            target.mutating(KEYS, FailurePolicy::Ignore, rules, keys),
        ]),
    };
    let validating = ValidatingWebhookConfiguration {
        metadata: metadata(),
        webhooks: Some(vec![ValidatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config: target.client_config(VALIDATE_PATH),
            failure_policy: Some(target.failure_policy.as_str().to_owned()),
            match_conditions: Some(flip()),
            match_policy: Some("Equivalent".to_owned()),
            name: VALIDATE.to_owned(),
            namespace_selector: Some(target.namespace_selector.clone().unwrap_or_default()),
            object_selector: Some(LabelSelector::default()),
            rules: Some(operations(rules)),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }]),
    };
    (mutating, validating)
}

fn conditions(rules: &Rules, own: &[(&str, String)]) -> Vec<MatchCondition> {
    let ruled = cel::ruled(rules).map(|expression| ("ruled", expression));
    ruled
        .into_iter()
        .chain(own.iter().cloned())
        .map(|(name, expression)| MatchCondition {
            name: name.to_owned(),
            expression,
        })
        .collect()
}

/// Resources by group, in the order of the rules. A group with a pattern is taken as a whole.
fn by_group(rules: &Rules, with_inputs_only: bool) -> Vec<(String, Resources)> {
    let mut groups: Vec<(String, Resources)> = Vec::new();
    for (selector, inputs) in rules.inputs() {
        if with_inputs_only && inputs.is_empty() {
            continue;
        }
        let at = groups
            .iter()
            .position(|(group, _)| *group == selector.group)
            .unwrap_or_else(|| {
                groups.push((selector.group.clone(), Resources::default()));
                groups.len() - 1
            });
        let Some((_, resources)) = groups.get_mut(at) else {
            continue;
        };
        resources.all |= selector.is_pattern();
        resources.named.extend(selector.names().map(|kind| rules.plural(&kind)));
    }
    groups
}

#[derive(Debug, Default)]
struct Resources {
    named: Vec<String>,
    all: bool,
}

impl Resources {
    /// The resources that a role names, each once.
    fn list(&self, group: &str, access: &Access) -> Vec<String> {
        if self.all && access.discover_providers {
            return vec!["*".to_owned()];
        }
        let installed = access.installed.iter().filter(|(of, _)| self.all && of == group);
        let mut seen = BTreeSet::new();
        self.named
            .iter()
            .chain(installed.map(|(_, resource)| resource))
            .filter(|resource| seen.insert(resource.as_str()))
            .cloned()
            .collect()
    }
}

fn operations(rules: &Rules) -> Vec<RuleWithOperations> {
    let rule = |groups: Vec<String>, resources: Vec<String>| RuleWithOperations {
        api_groups: Some(groups),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(resources),
        scope: Some("*".to_owned()),
    };
    let (whole, named): (Vec<_>, Vec<_>) = by_group(rules, true)
        .into_iter()
        .partition(|(_, resources)| resources.all);
    let mut operations: Vec<RuleWithOperations> = named
        .into_iter()
        .map(|(group, resources)| rule(vec![group], resources.named))
        .collect();
    if !whole.is_empty() {
        let groups = whole.into_iter().map(|(group, _)| group).collect();
        operations.push(rule(groups, vec!["*".to_owned()]));
    }
    operations
}

/// Which of the kinds that a pattern stands for a ClusterRole lets in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Every resource of a group that has a pattern, also those of providers that are installed later.
    pub discover_providers: bool,
    /// Resources that are installed, as group and resource name, where not everything is let in.
    pub installed: Vec<(String, String)>,
}

/// The ClusterRole that `serve` needs for these rules.
#[must_use]
pub fn cluster_role(rules: &Rules, access: &Access) -> ClusterRole {
    let mut policy = Vec::new();
    let written = by_group(rules, true);
    for (group, resources) in by_group(rules, false) {
        let patched = written.iter().find(|(of, _)| *of == group);
        let patched = patched
            .map(|(_, resources)| resources.list(&group, access))
            .unwrap_or_default();
        let (both, read): (Vec<_>, Vec<_>) = resources
            .list(&group, access)
            .into_iter()
            .partition(|resource| patched.contains(resource));
        let status = both.iter().map(|name| format!("{name}/status")).collect();
        policy.extend(allow(&group, both, &["get", "list", "patch", "watch"]));
        policy.extend(allow(&group, status, &["patch"]));
        policy.extend(allow(&group, read, &["get", "list", "watch"]));
    }
    let one = |name: &str| vec![name.to_owned()];
    policy.extend(allow("coordination.k8s.io", one("leases"), &["get", "list", "watch"]));
    policy.extend(allow("events.k8s.io", one("events"), &["create", "patch"]));
    let configurations = allow(
        "admissionregistration.k8s.io",
        one("mutatingwebhookconfigurations"),
        &["get", "list", "watch"],
    );
    policy.extend(configurations.map(|rule| PolicyRule {
        resource_names: Some(one(CONFIGURATION)),
        ..rule
    }));
    policy.extend(allow(
        "apiextensions.k8s.io",
        one("customresourcedefinitions"),
        &["get", "list", "watch"],
    ));
    // Whether the webhooks are called for a namespace is told by its labels.
    policy.extend(allow("", one("namespaces"), &["get"]));
    ClusterRole {
        aggregation_rule: None,
        metadata: named(CLUSTER_ROLE),
        rules: Some(policy),
    }
}

/// An object as YAML. Texts of several lines stay as they are, long ones are not folded.
///
/// # Errors
///
/// None that is known for the types of this module.
pub fn to_yaml<T: Serialize>(object: &T) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string_with_options(
        object,
        serde_saphyr::ser_options! { prefer_block_scalars: true, min_fold_chars: usize::MAX, folded_wrap_chars: usize::MAX },
    )
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
