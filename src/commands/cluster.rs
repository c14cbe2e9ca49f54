//! A cluster as a person with rights to read sees it: which ruled kinds are served, and their objects.

use std::{collections::BTreeSet, sync::Arc};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api, Client,
    api::{ApiResource, ListParams},
    core::Version,
};

use crate::{
    companion::item::Item,
    protocol::{GroupKind, object::ObjectView, rule::KindRule, scope::Ruled},
    report::audit::Objects,
    rules::{
        Rules,
        manifests::{self, FLIP},
    },
};

/// Objects that a list returns in one page.
const PAGE: u32 = 500;
/// How often a list is begun anew because it could not be continued.
const ATTEMPTS: usize = 3;

/// The cluster cannot be asked.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} from the cluster")]
pub(super) struct ClusterError {
    pub(super) what: String,
    pub(super) source: Box<kube::Error>,
}

impl ClusterError {
    pub(super) fn of(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Self {
        |source| Self {
            what: what.into(),
            source: Box::new(source),
        }
    }
}

/// A ruled kind that is served.
#[derive(Debug, Clone)]
pub(super) struct Served {
    pub(super) resource: ApiResource,
    pub(super) namespaced: bool,
    pub(super) rule: Arc<KindRule>,
    singular: String,
    short_names: Vec<String>,
}

impl Served {
    /// Its objects in a namespace; an empty one is all of them.
    pub(super) fn api(&self, client: &Client, namespace: &str) -> Api<Item> {
        if self.namespaced && !namespace.is_empty() {
            Api::namespaced_with(client.clone(), namespace, &self.resource)
        } else {
            Api::all_with(client.clone(), &self.resource)
        }
    }

    /// An object of it, with the kind and version that items of some lists leave out.
    pub(super) fn typed(&self, mut object: ObjectView) -> ObjectView {
        if object.kind.is_empty() {
            object.kind.clone_from(&self.resource.kind);
        }
        if object.api_version.is_empty() {
            object.api_version.clone_from(&self.resource.api_version);
        }
        object
    }

    /// An object of it, with its rule.
    pub(super) fn ruled(&self, object: ObjectView) -> Ruled {
        Ruled {
            object: Arc::new(self.typed(object)),
            rule: Arc::clone(&self.rule),
        }
    }

    /// Whether people mean it by this name: kind, plural, singular or a short name, with or without its group.
    pub(super) fn is_called(&self, name: &str) -> bool {
        let lower = name.to_ascii_lowercase();
        let (word, group) = match lower.split_once('.') {
            Some((word, group)) => (word, Some(group)),
            None => (lower.as_str(), None),
        };
        let versioned = format!("{}.{}", self.resource.version, self.resource.group);
        group.is_none_or(|group| group == self.resource.group || group == versioned)
            && (word == self.resource.plural
                || word == self.resource.kind.to_ascii_lowercase()
                || word == self.singular
                || self.short_names.iter().any(|short| short == word))
    }

    /// `kind.group/name`, as kubectl calls an object.
    pub(super) fn display(&self, name: &str) -> String {
        let kind = self.resource.kind.to_ascii_lowercase();
        if self.resource.group.is_empty() {
            format!("{kind}/{name}")
        } else {
            format!("{kind}.{}/{name}", self.resource.group)
        }
    }
}

/// The ruled kinds that are served, owners before what they own, each in the version that Kubernetes takes for the most
/// mature. Everybody who is authenticated may ask this.
pub(super) async fn served(client: &Client, rules: &Rules) -> Result<Vec<Served>, ClusterError> {
    let groups: BTreeSet<&str> = rules.inputs().map(|(selector, _)| selector.group.as_str()).collect();
    let known = client
        .list_api_groups()
        .await
        .map_err(ClusterError::of("the API groups"))?;
    let mut found: Vec<Served> = Vec::new();
    for group in groups {
        let mut versions: Vec<String> = if group.is_empty() {
            vec!["v1".to_owned()]
        } else {
            let group = known.groups.iter().find(|known| known.name == group);
            group.map_or_else(Vec::new, |group| {
                group.versions.iter().map(|version| version.version.clone()).collect()
            })
        };
        versions.sort_by_key(|version| std::cmp::Reverse(Version::parse(version).priority()));
        for version in versions {
            let list = if group.is_empty() {
                client.list_core_api_resources(&version).await
            } else {
                client.list_api_group_resources(&format!("{group}/{version}")).await
            };
            let list = list.map_err(ClusterError::of(format!("what {group}/{version} serves")))?;
            for resource in list.resources {
                let group_kind = GroupKind::new(group, resource.kind.clone());
                let is_listed = !resource.name.contains('/') && resource.verbs.iter().any(|verb| verb == "list");
                if !is_listed || found.iter().any(|served| served.rule.group_kind == group_kind) {
                    continue;
                }
                let Some(rule) = rules.rule_for(&group_kind) else {
                    continue;
                };
                let api_version = if group.is_empty() {
                    version.clone()
                } else {
                    format!("{group}/{version}")
                };
                found.push(Served {
                    resource: ApiResource {
                        group: group.to_owned(),
                        version: version.clone(),
                        api_version,
                        kind: resource.kind,
                        plural: resource.name,
                    },
                    namespaced: resource.namespaced,
                    rule,
                    singular: resource.singular_name,
                    short_names: resource.short_names.unwrap_or_default(),
                });
            }
        }
    }
    found.sort_by_cached_key(|served| (rules.order(&served.rule.group_kind), served.rule.group_kind.clone()));
    Ok(found)
}

/// The kinds whose objects matter in a namespace (`None`: in all): the namespaced ones, and those that these may inherit from.
pub(super) fn in_namespace<'a>(kinds: &'a [Served], namespace: Option<&str>) -> impl Iterator<Item = &'a Served> {
    let all = namespace.is_none();
    kinds
        .iter()
        .filter(move |kind| all || kind.namespaced || kind.rule.has_heirs())
}

/// All objects of the ruled kinds in a namespace, or in all of them. What may not be read is said.
pub(super) async fn read(
    client: &Client,
    kinds: &[Served],
    namespace: Option<&str>,
    source: String,
) -> Result<Objects, ClusterError> {
    let mut objects = Objects {
        source,
        ..Objects::default()
    };
    if kinds.is_empty() {
        objects.incomplete = true;
        let note = "the cluster serves none of the kinds that these rules name: is it the right one?";
        objects.unknown.push(note.to_owned());
    }
    for kind in in_namespace(kinds, namespace) {
        let what = format!("{}.{}", kind.resource.plural, kind.resource.group);
        match list(client, kind, namespace.unwrap_or_default()).await {
            Ok(found) => {
                objects.listed.insert(kind.rule.group_kind.clone());
                objects.all.extend(found.into_iter().map(|object| kind.ruled(object)));
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                objects.incomplete = true;
                let place = namespace.map(|n| format!(" in namespace {n}")).unwrap_or_default();
                objects
                    .unknown
                    .push(format!("{what} may not be listed{place}: {}", status.message));
            }
            // Its CRD has just gone.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(ClusterError::of(what)(error)),
        }
    }
    objects.unknown.extend(webhook(client).await?);
    Ok(objects)
}

/// All objects of a kind, consistently and in pages.
pub(super) async fn list(client: &Client, kind: &Served, namespace: &str) -> Result<Vec<ObjectView>, kube::Error> {
    let mut attempts = 1;
    loop {
        match pages(client, kind, namespace).await {
            Err(kube::Error::Api(status)) if status.code == 410 && attempts < ATTEMPTS => attempts += 1,
            other => return other,
        }
    }
}

async fn pages(client: &Client, kind: &Served, namespace: &str) -> Result<Vec<ObjectView>, kube::Error> {
    let api = kind.api(client, namespace);
    let mut params = ListParams::default().limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        objects.extend(page.items.into_iter().map(|item| item.view));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// What the standing of our webhook configuration leaves unknown.
async fn webhook(client: &Client) -> Result<Option<String>, ClusterError> {
    let name = manifests::CONFIGURATION;
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match api.get_opt(name).await {
        Ok(None) => Ok(Some(format!(
            "the webhook configuration {name} is not there: flips are not stamped, and who paused what, when and why is only \
             known of what was stamped before"
        ))),
        Ok(Some(found)) => {
            let webhooks = found.webhooks.unwrap_or_default();
            let flip = webhooks.iter().find(|webhook| webhook.name == FLIP);
            let fails = flip.is_some_and(|webhook| webhook.failure_policy.as_deref().unwrap_or("Fail") == "Fail");
            Ok((!fails).then(|| {
                format!(
                    "the webhook {FLIP} does not stand under failurePolicy Fail: flips may have passed without a stamp"
                )
            }))
        }
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Some(format!(
            "the webhook configuration {name} may not be read: whether every flip is stamped at present is not known"
        ))),
        Err(error) => Err(ClusterError::of(format!("the webhook configuration {name}"))(error)),
    }
}
