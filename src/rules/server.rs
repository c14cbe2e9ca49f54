//! How rules and a cluster fit together: what is installed, and what the rules do not know of.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use k8s_openapi::{
    api::coordination::v1::Lease,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, CustomResourceDefinitionVersion, JSONSchemaProps, JSONSchemaPropsOrArray,
    },
};
use kube::{
    Api, Client,
    api::ListParams,
    core::{PartialObjectMeta, Version},
    discovery::{Discovery, Scope},
};

use super::Rules;
use crate::protocol::{
    GroupKind,
    object::FieldPath,
    rule::{InputSource, KindRule, LeaseName},
};

/// A cluster that cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} from the cluster")]
pub struct ServerError {
    what: &'static str,
    source: kube::Error,
}

/// What a cluster has, as far as rules are about it.
#[derive(Debug, Clone, Default)]
pub struct Cluster {
    /// The kinds of the groups that have a rule, in the version that the API server prefers.
    pub kinds: Vec<ServedKind>,
    /// All CRDs.
    pub crds: Vec<CustomResourceDefinition>,
    /// The namespaces of each Lease name.
    pub leases: BTreeMap<String, BTreeSet<String>>,
}

/// A kind that is served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedKind {
    /// Group and kind.
    pub kind: GroupKind,
    /// The version that the API server prefers.
    pub version: String,
    /// The resource name.
    pub plural: String,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

impl Cluster {
    /// Asks a cluster. It needs the rights of the ClusterRole that `pausegen manifests` prints.
    ///
    /// # Errors
    /// The cluster cannot be reached, or does not let us read.
    pub async fn read(client: &Client, rules: &Rules) -> Result<Self, ServerError> {
        let failed = |what| move |source| ServerError { what, source };
        let groups: BTreeSet<&str> = rules.inputs().map(|(selector, _)| selector.group.as_str()).collect();
        let groups: Vec<&str> = groups.into_iter().collect();
        let discovery = Discovery::new(client.clone())
            .filter(&groups)
            .run()
            .await
            .map_err(failed("which kinds are served"))?;
        let kinds = discovery
            .groups()
            .flat_map(kube::discovery::ApiGroup::recommended_resources)
            .map(|(resource, capabilities)| ServedKind {
                kind: GroupKind::new(resource.group, resource.kind),
                version: resource.version,
                plural: resource.plural,
                namespaced: capabilities.scope == Scope::Namespaced,
            })
            .collect();
        let all = ListParams::default();
        let crds = Api::<CustomResourceDefinition>::all(client.clone())
            .list(&all)
            .await
            .map_err(failed("the CustomResourceDefinitions"))?;
        let found = Api::<PartialObjectMeta<Lease>>::all(client.clone())
            .list_metadata(&all)
            .await
            .map_err(failed("the Leases"))?;
        let mut leases: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for lease in found.items {
            if let (Some(name), Some(namespace)) = (lease.metadata.name, lease.metadata.namespace) {
                leases.entry(name).or_default().insert(namespace);
            }
        }
        Ok(Self {
            kinds,
            crds: crds.items,
            leases,
        })
    }

    /// The version in which the companion watches a kind: the one that Kubernetes takes for the most mature.
    fn version(&self, kind: &GroupKind) -> Option<&CustomResourceDefinitionVersion> {
        let crd = self
            .crds
            .iter()
            .find(|crd| crd.spec.group == kind.group && crd.spec.names.kind == kind.kind)?;
        let served = crd.spec.versions.iter().filter(|version| version.served);
        served.max_by_key(|version| Version::parse(&version.name).priority())
    }
}

/// Where an acknowledgement is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConditionHome {
    /// In the annotations and in the condition.
    Condition,
    /// In the annotations alone: the kind has no status subresource.
    NoStatus,
    /// In the annotations alone: `status.conditions` is missing, or its items do not keep `observedGeneration`.
    NotKept,
    /// Nowhere: only custom resources are watched.
    NotCustom,
}

impl fmt::Display for ConditionHome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Condition => "annotations and condition",
            Self::NoStatus => "annotations alone (no status subresource)",
            Self::NotKept => "annotations alone (status.conditions does not keep observedGeneration)",
            Self::NotCustom => "nowhere (not a custom resource)",
        })
    }
}

/// Where an acknowledgement is written on objects of a version of a CRD.
#[must_use]
pub fn condition_home(version: &CustomResourceDefinitionVersion) -> ConditionHome {
    let has_status = version.subresources.as_ref().is_some_and(|s| s.status.is_some());
    if !has_status {
        return ConditionHome::NoStatus;
    }
    let root = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref());
    match at(root, &["status", "conditions"]) {
        Found::Anything => ConditionHome::Condition,
        Found::Schema(conditions) => match &conditions.items {
            Some(JSONSchemaPropsOrArray::Schema(item)) => match at(Some(item.as_ref()), &["observedGeneration"]) {
                Found::Nothing => ConditionHome::NotKept,
                Found::Anything | Found::Schema(_) => ConditionHome::Condition,
            },
            _ => ConditionHome::NotKept,
        },
        Found::Nothing => ConditionHome::NotKept,
    }
}

enum Found<'a> {
    Nothing,
    /// The schema keeps whatever is there.
    Anything,
    Schema(&'a JSONSchemaProps),
}

fn at<'a, S: AsRef<str>>(root: Option<&'a JSONSchemaProps>, path: &[S]) -> Found<'a> {
    let Some(mut schema) = root else { return Found::Nothing };
    for name in path {
        match schema.properties.as_ref().and_then(|p| p.get(name.as_ref())) {
            Some(next) => schema = next,
            None if schema.x_kubernetes_preserve_unknown_fields == Some(true) => return Found::Anything,
            None => return Found::Nothing,
        }
    }
    Found::Schema(schema)
}

/// A ruled kind that is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The kind.
    pub served: ServedKind,
    /// Whether a pattern found it, instead of a rule that names it.
    pub by_pattern: bool,
    /// Where an acknowledgement is written; `None` for a kind that has no input of its own.
    pub home: Option<ConditionHome>,
}

/// How rules and a cluster fit together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// The ruled kinds that are installed, owners before what they own.
    pub installed: Vec<Installed>,
    /// The kinds that a rule names and that are not installed.
    pub missing: Vec<GroupKind>,
    /// What makes the rules wrong for this cluster.
    pub problems: Vec<String>,
    /// What is worth a look.
    pub warnings: Vec<String>,
}

/// Compares rules with a cluster.
#[must_use]
pub fn compare(rules: &Rules, cluster: &Cluster) -> Comparison {
    let mut comparison = Comparison::default();
    let named = rules.kinds();
    let mut leases: BTreeMap<LeaseName, BTreeSet<GroupKind>> = BTreeMap::new();
    let mut served: Vec<&ServedKind> = cluster.kinds.iter().collect();
    served.sort_by_cached_key(|served| (rules.order(&served.kind), served.kind.clone()));
    for served in served {
        let Some(rule) = rules.rule_for(&served.kind) else {
            continue;
        };
        let plural = rules.plural(&served.kind);
        let by_pattern = !named.contains(&served.kind);
        if !by_pattern && plural != served.plural {
            comparison.problems.push(format!(
                "{}: its resource is {}, not {plural}, so the webhooks would not be called: write `plurals: {{{}: {}}}`",
                served.kind, served.plural, served.kind.kind, served.plural
            ));
        }
        let version = cluster.version(&served.kind);
        match version {
            Some(version) => fields(&rule, version, &mut comparison.problems),
            None if by_pattern => {}
            None => comparison.problems.push(format!(
                "{} is not a custom resource, and only those are watched: remove it from the rules",
                served.kind
            )),
        }
        for lease in rule.attestors.iter().filter_map(|attestor| attestor.lease.as_ref()) {
            leases.entry(lease.clone()).or_default().insert(served.kind.clone());
        }
        if rules.is_mirrored(&served.kind)
            && let Some(version) = version
            && condition_home(version) != ConditionHome::Condition
        {
            comparison.problems.push(format!(
                "{}: `mirror: true`, but no condition can be written: its version {} has no status subresource, or its \
                 status.conditions does not keep observedGeneration: remove `mirror`",
                served.kind, version.name
            ));
        }
        comparison.installed.push(Installed {
            served: ServedKind {
                version: version.map_or_else(|| served.version.clone(), |version| version.name.clone()),
                ..served.clone()
            },
            by_pattern,
            home: (!rule.inputs.is_empty()).then(|| version.map_or(ConditionHome::NotCustom, condition_home)),
        });
    }
    let is_installed = |kind: &GroupKind| cluster.kinds.iter().any(|served| served.kind == *kind);
    comparison.missing = named.into_iter().filter(|kind| !is_installed(kind)).collect();
    for (lease, kinds) in leases {
        let there = cluster.leases.get(&lease.name).is_some_and(|namespaces| {
            lease
                .namespace
                .as_ref()
                .is_none_or(|wanted| namespaces.contains(wanted))
        });
        if !there {
            comparison.warnings.push(format!(
                "there is no Lease {}{}: a frozen manager of {} is not noticed, and the staleness bound counts alone",
                lease
                    .namespace
                    .as_ref()
                    .map(|namespace| format!("{namespace}/"))
                    .unwrap_or_default(),
                lease.name,
                list(&kinds)
            ));
        }
    }
    comparison.warnings.extend(unruled(rules, cluster));
    comparison
}

/// Inputs whose field the schema would drop.
fn fields(rule: &KindRule, version: &CustomResourceDefinitionVersion, problems: &mut Vec<String>) {
    let root = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref());
    for input in &rule.inputs {
        if let InputSource::Field {
            path: FieldPath(path), ..
        } = &input.source
            && let Found::Nothing = at(root, path)
        {
            problems.push(format!(
                "{}: version {} has no field {}, so it can pause nothing: correct the path, or remove the input",
                rule.group_kind, version.name, input.id
            ));
        }
    }
}

/// Kinds that look as if they could be paused, and have no rule.
fn unruled<'a>(rules: &'a Rules, cluster: &'a Cluster) -> impl Iterator<Item = String> + 'a {
    cluster.crds.iter().filter_map(move |crd| {
        let kind = GroupKind::new(crd.spec.group.clone(), crd.spec.names.kind.clone());
        if rules.rule_for(&kind).is_some() {
            return None;
        }
        let version = crd
            .spec
            .versions
            .iter()
            .find(|version| version.served && version.storage)?;
        let sign = sign_of_pause(version)?;
        // Templates hold a spec that is copied elsewhere.
        (!kind.kind.ends_with("Template")).then(|| format!("{kind} has {sign}, and no rule"))
    })
}

fn sign_of_pause(version: &CustomResourceDefinitionVersion) -> Option<String> {
    let root = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.as_ref());
    let field = ["paused", "suspend", "suspended"].into_iter().find(|name| {
        matches!(at(root, &["spec", *name]), Found::Schema(schema) if schema.type_.as_deref() == Some("boolean"))
    });
    if let Some(field) = field {
        return Some(format!("a field spec.{field}"));
    }
    version
        .additional_printer_columns
        .iter()
        .flatten()
        .any(|column| column.json_path.contains(r#"=="Paused""#))
        .then(|| "a condition Paused".to_owned())
}

fn list(kinds: &BTreeSet<GroupKind>) -> String {
    kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
