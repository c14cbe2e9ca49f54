//! The consistent look: lists made after a flip was seen, owners before what they own.

use std::{collections::BTreeSet, sync::Arc};

use kube::{Api, api::ListParams};

use super::{
    World,
    cache::Key,
    failpoint, guard,
    item::Item,
    kinds::{self, Crd, Kind},
    lock,
};
use crate::protocol::{
    GroupKind, Moment,
    evidence::{Guard, asks_members},
    lease::Leases,
    object::ObjectView,
    scope::Ruled,
};

/// Objects that a list returns in one page.
const PAGE: u32 = 500;
/// How often a look begins anew because a list could not be continued.
const ATTEMPTS: usize = 3;

/// What a look has shown.
#[derive(Debug)]
pub(super) struct Looked {
    /// The flipped object.
    pub(super) flipped: Ruled,
    /// All objects that may be in its scope, and others.
    pub(super) all: Vec<Ruled>,
    /// The kinds that were listed.
    pub(super) listed: BTreeSet<GroupKind>,
    /// Before anything was asked for: an answer may be as old as its question.
    pub(super) at: Moment,
    /// The webhook configuration, read consistently after the lists.
    pub(super) guard: Option<Guard>,
    /// The Leases, as they were known at that moment.
    pub(super) leases: Leases,
}

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum LookError {
    /// The object is gone.
    #[error("the object is gone")]
    Gone,
    /// The API server refused a read.
    #[error("{what} cannot be read")]
    Read {
        /// What was to be read.
        what: String,
        /// Why it failed.
        source: Box<kube::Error>,
    },
    /// Lists expired again and again.
    #[error("lists expire before their last page: the API server is overloaded, or compacts its history too fast")]
    Expired,
}

/// Looks at an object and at everything that may be in its scope.
pub(super) async fn look(world: &World, key: &Key, kind: &Kind) -> Result<Looked, LookError> {
    failpoint::reach("companion.before-look");
    world.metrics.looks.inc();
    for _ in 0..ATTEMPTS {
        match attempt(world, key, kind).await {
            Err(LookError::Read { source, .. }) if is_expired(&source) => {}
            other => {
                failpoint::reach("companion.after-look");
                return other;
            }
        }
    }
    Err(LookError::Expired)
}

async fn attempt(world: &World, key: &Key, kind: &Kind) -> Result<Looked, LookError> {
    let at = world.clock.now();
    let leases = lock(&world.leases).clone();
    let api = api(world, kind, &key.namespace);
    let object = api
        .get_opt(&key.name)
        .await
        .map_err(|source| LookError::Read {
            what: key.to_string(),
            source: Box::new(source),
        })?
        .ok_or(LookError::Gone)?
        .view;
    let flipped = Ruled {
        object: Arc::new(typed(kind, object)),
        rule: Arc::clone(&kind.rule),
    };
    let (mut all, mut listed) = (Vec::new(), BTreeSet::new());
    if asks_members(&flipped) {
        for kind in world.inheriting(&key.namespace) {
            match list(world, &kind, &key.namespace).await {
                Ok(objects) => {
                    listed.insert(kind.rule.group_kind.clone());
                    all.extend(objects.into_iter().map(|object| Ruled {
                        object: Arc::new(object),
                        rule: Arc::clone(&kind.rule),
                    }));
                }
                // Its CRD has just gone: nobody is left to ask, and who refers to one is told so.
                Err(kube::Error::Api(status)) if status.code == 404 && is_gone(world, &kind).await? => {}
                Err(source) => {
                    return Err(LookError::Read {
                        what: format!("{}.{}", kind.resource.plural, kind.resource.group),
                        source: Box::new(source),
                    });
                }
            }
        }
    }
    // After the lists: it may go away and come back between them, and flips with it.
    let guard = guard::read(world, kind, &key.namespace)
        .await
        .map_err(|source| LookError::Read {
            what: format!("mutatingwebhookconfigurations {}", world.settings.webhook_configuration),
            source: Box::new(source),
        })?;
    Ok(Looked {
        flipped,
        all,
        listed,
        at,
        guard,
        leases,
    })
}

/// Whether a kind whose list is not found is not there any more. It may also be that its version is not served any more,
/// and the watch has not shown it yet: then its objects are still to be asked.
async fn is_gone(world: &World, kind: &Kind) -> Result<bool, LookError> {
    let name = format!("{}.{}", kind.resource.plural, kind.resource.group);
    let api: Api<Item<Crd>> = Api::all_with(world.client.clone(), &kinds::crds());
    let found = api.get_opt(&name).await.map_err(|source| LookError::Read {
        what: format!("customresourcedefinitions {name}"),
        source: Box::new(source),
    })?;
    Ok(found.is_none())
}

/// All objects of a kind, consistently, in one namespace (empty: in all). Pages of one list show one state of the store.
pub(super) async fn list(world: &World, kind: &Kind, namespace: &str) -> Result<Vec<ObjectView>, kube::Error> {
    let api = api(world, kind, namespace);
    let mut params = ListParams::default().limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&params).await?;
        objects.extend(
            page.items
                .into_iter()
                .map(|item| kind.needs.slim(typed(kind, item.view))),
        );
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(objects),
        }
    }
}

/// The API of a kind; an empty namespace is all of them.
pub(super) fn api(world: &World, kind: &Kind, namespace: &str) -> Api<Item> {
    if kind.namespaced && !namespace.is_empty() {
        Api::namespaced_with(world.client.clone(), namespace, &kind.resource)
    } else {
        Api::all_with(world.client.clone(), &kind.resource)
    }
}

/// Items of some lists say neither their kind nor their version.
pub(super) fn typed(kind: &Kind, mut object: ObjectView) -> ObjectView {
    if object.kind.is_empty() {
        object.kind.clone_from(&kind.resource.kind);
    }
    if object.api_version.is_empty() {
        object.api_version.clone_from(&kind.resource.api_version);
    }
    object
}

fn is_expired(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 410)
}
