//! The watches: CRDs, the ruled kinds among them, the managers' Leases, our own webhook configuration.
//!
//! Each recovers by itself: after an error with backoff, after a compaction with a new list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures::StreamExt;
use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, coordination::v1::Lease};
use kube::{
    Api, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    World,
    cache::{Key, Source},
    item::Item,
    kinds::{self, Crd, Kind},
    lock, look,
};
use crate::protocol::{GroupKind, lease::LeaseView};

const CONFIGURATIONS: &str = "mutatingwebhookconfigurations";
const DEFINITIONS: &str = "customresourcedefinitions";

fn of_lease(name: &str) -> String {
    format!("leases {name}")
}

fn of_kind(kind: &Kind) -> String {
    format!("{}.{}", kind.resource.plural, kind.resource.group)
}

/// The watches that every companion begins with.
pub(super) fn first(leases: &BTreeSet<String>) -> BTreeSet<String> {
    let leases = leases.iter().map(|name| of_lease(name));
    leases
        .chain([CONFIGURATIONS.to_owned(), DEFINITIONS.to_owned()])
        .collect()
}

/// Hands every event of a watch over until `shutdown`.
async fn follow<K>(
    world: &World,
    what: String,
    api: Api<K>,
    config: watcher::Config,
    shutdown: CancellationToken,
    mut each: impl FnMut(Event<K>),
) where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut stream = watcher::watcher(api, config).default_backoff().boxed();
    loop {
        let next = tokio::select! {
            () = shutdown.cancelled() => return,
            next = stream.next() => next,
        };
        match next {
            Some(Ok(event)) => {
                if !matches!(event, Event::Init) {
                    world.metrics.watch(&what, true);
                }
                let is_listed = matches!(event, Event::InitDone);
                each(event);
                if is_listed {
                    world.synced(&what);
                }
            }
            Some(Err(error)) => {
                world.metrics.watch(&what, false);
                tracing::warn!(what, %error, "the watch has failed, and is begun again");
            }
            None => return,
        }
    }
}

/// Watches our own webhook configuration.
pub(super) async fn configuration(world: Arc<World>, shutdown: CancellationToken) {
    let name = world.settings.webhook_configuration.clone();
    let api: Api<MutatingWebhookConfiguration> = Api::all(world.client.clone());
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut seen = false;
    let each = |event: Event<MutatingWebhookConfiguration>| {
        let changed = match event {
            Event::Init => {
                seen = false;
                false
            }
            Event::InitApply(found) | Event::Apply(found) => {
                seen = true;
                lock(&world.guards).note(world.clock.now(), Some(found))
            }
            Event::InitDone if seen => false,
            Event::Delete(_) | Event::InitDone => {
                tracing::warn!(
                    name,
                    "the webhook configuration is not there: flips pass without a stamp"
                );
                lock(&world.guards).note(world.clock.now(), None)
            }
        };
        if changed {
            tracing::info!(name, "the webhook configuration has changed");
            if lock(&world.guards).is_of_other_rules() {
                tracing::warn!(
                    name,
                    "the webhook configuration is not the one that these rules call for: flips may pass without a stamp, and \
                     acknowledgements have to wait for the staleness bound. Apply what `pausegen manifests` prints"
                );
            }
            world.dispatch_all();
        }
    };
    follow(&world, CONFIGURATIONS.to_owned(), api, config, shutdown, each).await;
}

/// Watches the Leases of these names in all namespaces.
pub(super) async fn leases(world: Arc<World>, names: BTreeSet<String>, shutdown: CancellationToken) {
    let unread: Arc<std::sync::Mutex<BTreeSet<String>>> = Arc::new(std::sync::Mutex::new(names.clone()));
    if names.is_empty() {
        lock(&world.leases).synced();
    }
    let mut tasks = JoinSet::new();
    for name in names {
        tasks.spawn(lease(Arc::clone(&world), name, Arc::clone(&unread), shutdown.clone()));
    }
    while tasks.join_next().await.is_some() {}
}

async fn lease(
    world: Arc<World>,
    name: String,
    unread: Arc<std::sync::Mutex<BTreeSet<String>>>,
    shutdown: CancellationToken,
) {
    let api: Api<Lease> = Api::all(world.client.clone());
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut known: BTreeSet<String> = BTreeSet::new();
    let mut listed: BTreeSet<String> = BTreeSet::new();
    let mut holders: BTreeMap<String, (String, i32)> = BTreeMap::new();
    let each = |event: Event<Lease>| {
        let now = world.clock.now();
        let gone: Vec<String> = match event {
            Event::Init => {
                listed.clear();
                return;
            }
            Event::Apply(found) | Event::InitApply(found) => {
                let namespace = found.metadata.namespace.clone().unwrap_or_default();
                let view = view(&found);
                let holder = (view.holder.clone(), view.transitions);
                lock(&world.leases).observe(now, &namespace, &name, view);
                if holders
                    .insert(namespace.clone(), holder.clone())
                    .is_some_and(|known| known != holder)
                {
                    tracing::info!(lease = %format_args!("{namespace}/{name}"), holder = holder.0, "another manager leads");
                    world.dispatch_all();
                }
                listed.insert(namespace.clone());
                known.insert(namespace);
                Vec::new()
            }
            Event::Delete(found) => vec![found.metadata.namespace.unwrap_or_default()],
            Event::InitDone => {
                let mut unread = lock(&unread);
                unread.remove(&name);
                if unread.is_empty() {
                    lock(&world.leases).synced();
                }
                known.difference(&listed).cloned().collect()
            }
        };
        for namespace in gone {
            lock(&world.leases).remove(&namespace, &name);
            known.remove(&namespace);
            holders.remove(&namespace);
        }
        for key in lock(&world.on_time).iter() {
            world.queue.soon(key.clone());
        }
    };
    follow(&world, of_lease(&name), api, config, shutdown, each).await;
}

fn view(lease: &Lease) -> LeaseView {
    let Some(spec) = &lease.spec else {
        return LeaseView::default();
    };
    let seconds = spec.lease_duration_seconds.unwrap_or_default();
    LeaseView {
        holder: spec.holder_identity.clone().unwrap_or_default(),
        transitions: spec.lease_transitions.unwrap_or_default(),
        renew_time: spec
            .renew_time
            .as_ref()
            .map(|time| time.0.to_string())
            .unwrap_or_default(),
        duration: Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
    }
}

/// Watches CRDs, and every ruled kind that they define.
pub(super) async fn definitions(world: Arc<World>, shutdown: CancellationToken) {
    let api: Api<Item<Crd>> = Api::all_with(world.client.clone(), &kinds::crds());
    let mut watches = Watches {
        world: Arc::clone(&world),
        running: BTreeMap::new(),
        tasks: JoinSet::new(),
        shutdown: shutdown.clone(),
    };
    let mut listed: BTreeSet<String> = BTreeSet::new();
    let each = |event: Event<Item<Crd>>| match event {
        Event::Init => listed.clear(),
        Event::Apply(item) => watches.set(&item.view),
        Event::InitApply(item) => {
            listed.insert(item.view.metadata.name.clone());
            watches.set(&item.view);
        }
        Event::Delete(item) => watches.stop(&item.view.metadata.name),
        Event::InitDone => {
            let gone: Vec<String> = watches
                .running
                .keys()
                .filter(|name| !listed.contains(*name))
                .cloned()
                .collect();
            for name in gone {
                watches.stop(&name);
            }
            world.kinds_read.store(true, Ordering::Release);
        }
    };
    follow(
        &world,
        DEFINITIONS.to_owned(),
        api,
        watcher::Config::default(),
        shutdown,
        each,
    )
    .await;
}

/// The watches of ruled kinds, by the name of their CRD.
struct Watches {
    world: Arc<World>,
    running: BTreeMap<String, (Arc<Kind>, CancellationToken)>,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

impl Watches {
    fn set(&mut self, crd: &Crd) {
        let name = &crd.metadata.name;
        let Some(kind) = Kind::of(&self.world.rules, &self.world.memberships, crd) else {
            self.stop(name);
            return;
        };
        if self.running.get(name).is_some_and(|(known, _)| known.is_as(&kind)) {
            return;
        }
        // In place of the one before, without a moment in which a look would find the kind missing and pass over it.
        let before = self.running.remove(name);
        if let Some((_, token)) = &before {
            token.cancel();
        }
        let kind = Arc::new(kind);
        tracing::info!(
            kind = %kind.rule.group_kind,
            version = kind.resource.version,
            condition = kind.takes_condition,
            "watching a ruled kind"
        );
        if kind.mirror && !kind.takes_condition {
            tracing::warn!(
                kind = %kind.rule.group_kind,
                "no Paused can be mirrored: status.conditions is missing, or does not keep observedGeneration"
            );
        }
        let group_kind = kind.rule.group_kind.clone();
        lock(&self.world.cache).set_head(&group_kind, Some(&kind.rule));
        lock(&self.world.kinds).insert(group_kind, Arc::clone(&kind));
        if let Some((before, _)) = before {
            forget(&self.world, &before, &BTreeSet::new());
        }
        self.world.awaits(of_kind(&kind));
        let token = self.shutdown.child_token();
        self.running.insert(name.clone(), (Arc::clone(&kind), token.clone()));
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(objects(Arc::clone(&self.world), kind, token));
    }

    fn stop(&mut self, name: &str) {
        let Some((kind, token)) = self.running.remove(name) else {
            return;
        };
        token.cancel();
        self.world.synced(&of_kind(&kind));
        let group_kind = &kind.rule.group_kind;
        tracing::info!(kind = %group_kind, "no longer watching a kind");
        lock(&self.world.kinds).remove(group_kind);
        lock(&self.world.cache).set_head(group_kind, None);
        forget(&self.world, &kind, &BTreeSet::new());
    }
}

/// Watches the objects of one kind.
async fn objects(world: Arc<World>, kind: Arc<Kind>, shutdown: CancellationToken) {
    let api = look::api(&world, &kind, "");
    let what = of_kind(&kind);
    let mut listed: BTreeSet<(String, String)> = BTreeSet::new();
    let stopped = shutdown.clone();
    let each = |event: Event<Item>| {
        if stopped.is_cancelled() {
            return;
        }
        match event {
            Event::Init => listed.clear(),
            Event::Apply(item) => put(&world, &kind, item, Source::Event),
            Event::InitApply(item) => {
                let meta = &item.view.metadata;
                listed.insert((meta.namespace.clone(), meta.name.clone()));
                put(&world, &kind, item, Source::List);
            }
            Event::Delete(item) => {
                let key = Key::of(&kind.rule.group_kind, &item.view);
                remove(&world, &kind, &key, Some(&item.view.metadata.uid));
            }
            Event::InitDone => {
                forget(&world, &kind, &listed);
                listed = BTreeSet::new();
                lock(&world.cache).begin(world.clock.now(), &kind.rule.group_kind);
            }
        }
    };
    follow(&world, what.clone(), api, watcher::Config::default(), shutdown, each).await;
    world.metrics.unwatched(&what);
}

fn put(world: &World, kind: &Kind, item: Item, source: Source) {
    let object = kind.needs.slim(look::typed(kind, item.view));
    let key = Key::of(&kind.rule.group_kind, &object);
    let concern = lock(&world.cache).put(world.clock.now(), &kind.needs, object, &kind.rule, source);
    if let Some(concern) = concern {
        world.dispatch(&key, !kind.rule.inputs.is_empty(), concern);
    }
}

fn remove(world: &World, kind: &Kind, key: &Key, uid: Option<&str>) {
    let concern = lock(&world.cache).remove(world.clock.now(), key, uid);
    if let Some(concern) = concern {
        world.dispatch(key, !kind.rule.inputs.is_empty(), concern);
    }
}

/// Removes what is in the cache and not in a list.
fn forget(world: &World, kind: &Kind, listed: &BTreeSet<(String, String)>) {
    let group_kind: &GroupKind = &kind.rule.group_kind;
    let gone = lock(&world.cache).others(group_kind, listed);
    for key in gone {
        remove(world, kind, &key, None);
    }
}
