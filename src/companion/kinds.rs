//! The ruled kinds that this cluster serves, read from its CustomResourceDefinitions.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{api::ApiResource, core::Version};
use serde::{Deserialize, Deserializer, de::IgnoredAny};

use super::{item::View, slim::Needs};
use crate::{
    protocol::{
        GroupKind, mirror,
        rule::{KindRule, Membership},
    },
    rules::{
        Rules,
        select::{KindName, Selector},
    },
};

/// A ruled kind that is served.
#[derive(Debug)]
pub(super) struct Kind {
    /// Where it is served.
    pub(super) resource: ApiResource,
    /// Whether its objects are in namespaces.
    pub(super) namespaced: bool,
    /// Its rule.
    pub(super) rule: Arc<KindRule>,
    /// What the cache keeps of its objects.
    pub(super) needs: Needs,
    /// Whether the rule asks for the condition `Paused` to be written.
    pub(super) mirror: bool,
    /// Whether `status` is a subresource.
    pub(super) has_status: bool,
    /// Whether our condition can be written: `status` is a subresource and its condition list keeps
    /// `observedGeneration`.
    pub(super) takes_condition: bool,
}

impl Kind {
    /// The kind that a CRD defines, if it is ruled and served.
    pub(super) fn of(rules: &Rules, memberships: &[Membership], crd: &Crd) -> Option<Self> {
        let group_kind = GroupKind::new(crd.spec.group.clone(), crd.spec.names.kind.clone());
        let rule = rules.rule_for(&group_kind)?;
        if !crd.is_established() {
            return None;
        }
        let version = crd
            .spec
            .versions
            .iter()
            .filter(|version| version.served)
            .max_by_key(|version| Version::parse(&version.name).priority())?;
        let mirror = rules.is_mirrored(&group_kind);
        let mut needs = Needs::of(&rule, memberships);
        if mirror {
            needs.keep_condition(mirror::TYPE);
        }
        Some(Self {
            mirror,
            resource: ApiResource {
                group: group_kind.group.clone(),
                version: version.name.clone(),
                api_version: format!("{}/{}", group_kind.group, version.name),
                kind: group_kind.kind,
                plural: crd.spec.names.plural.clone(),
            },
            namespaced: crd.spec.scope == "Namespaced",
            needs,
            has_status: version.has_status(),
            takes_condition: version.takes_condition(),
            rule,
        })
    }

    /// Whether both are watched and written in the same way.
    pub(super) fn is_as(&self, other: &Self) -> bool {
        self.resource == other.resource
            && self.namespaced == other.namespaced
            && self.has_status == other.has_status
            && self.takes_condition == other.takes_condition
    }
}

/// The memberships of all kinds that have heirs.
pub(super) fn memberships(rules: &Rules) -> Vec<Membership> {
    samples(rules)
        .into_iter()
        .filter_map(|rule| rule.membership.clone())
        .collect()
}

/// A rule for every kind that is named, and one for every pattern.
pub(super) fn samples(rules: &Rules) -> Vec<Arc<KindRule>> {
    let named = rules.kinds().into_iter();
    named
        .chain(rules.patterns().filter_map(sample))
        .filter_map(|kind| rules.rule_for(&kind))
        .collect()
}

fn sample(pattern: &Selector) -> Option<GroupKind> {
    let name = match pattern.kinds.first()? {
        KindName::Any => "X".to_owned(),
        KindName::EndsWith(end) => format!("X{end}"),
        KindName::StartsWith(start) => format!("{start}X"),
        KindName::Exactly(name) => name.clone(),
    };
    Some(GroupKind::new(pattern.group.clone(), name))
}

/// A CustomResourceDefinition, as far as it is read. Their schemas are large: what is not needed never becomes a value.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Crd {
    pub(super) metadata: Named,
    pub(super) spec: Spec,
    pub(super) status: Status,
}

impl View for Crd {
    fn meta(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.metadata.name.clone()),
            resource_version: Some(self.metadata.resource_version.clone()),
            ..ObjectMeta::default()
        }
    }
}

/// Where CustomResourceDefinitions are served.
pub(super) fn crds() -> ApiResource {
    ApiResource {
        group: "apiextensions.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "apiextensions.k8s.io/v1".to_owned(),
        kind: "CustomResourceDefinition".to_owned(),
        plural: "customresourcedefinitions".to_owned(),
    }
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Named {
    pub(super) name: String,
    resource_version: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Spec {
    pub(super) group: String,
    pub(super) names: Names,
    pub(super) scope: String,
    pub(super) versions: Vec<CrdVersion>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Names {
    pub(super) kind: String,
    pub(super) plural: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    #[serde(deserialize_with = "nullable")]
    conditions: Vec<CrdCondition>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct CrdCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

impl Crd {
    fn is_established(&self) -> bool {
        let conditions = &self.status.conditions;
        conditions
            .iter()
            .any(|c| c.type_ == "Established" && c.status == "True")
    }
}

/// One version of a CRD.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct CrdVersion {
    name: String,
    served: bool,
    schema: Option<SchemaHolder>,
    subresources: Option<Subresources>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Subresources {
    status: Option<IgnoredAny>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct SchemaHolder {
    #[serde(rename = "openAPIV3Schema")]
    open_api: Option<Root>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Root {
    properties: RootProperties,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct RootProperties {
    status: Option<StatusSchema>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct StatusSchema {
    properties: StatusProperties,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    keeps_all: bool,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct StatusProperties {
    conditions: Option<ListSchema>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ListSchema {
    items: Option<ItemSchema>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ItemSchema {
    properties: BTreeMap<String, IgnoredAny>,
    #[serde(rename = "x-kubernetes-preserve-unknown-fields")]
    keeps_all: bool,
}

impl CrdVersion {
    fn has_status(&self) -> bool {
        self.subresources.as_ref().is_some_and(|s| s.status.is_some())
    }

    fn takes_condition(&self) -> bool {
        let root = self.schema.as_ref().and_then(|schema| schema.open_api.as_ref());
        let Some(status) = root.and_then(|root| root.properties.status.as_ref()) else {
            return false;
        };
        let kept = match &status.properties.conditions {
            Some(list) => list
                .items
                .as_ref()
                .is_some_and(|item| item.keeps_all || item.properties.contains_key("observedGeneration")),
            None => status.keeps_all,
        };
        self.has_status() && kept
    }
}

fn nullable<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}
