//! The controller that echoes: watch -> scope -> look -> echo.
//!
//! - `watch`: what the API server shows of ruled kinds, Leases, and our own webhook configuration; kept in `cache`,
//!   `guard` and the protocol's [`Leases`].
//! - `queue`: which objects to see to, and when.
//! - `reconcile`: one object that can be flipped: is it pending, whom does it wait for, what has to be written?
//! - `look`: the consistent lists that an echo rests on; `views`: the consistent reads that baselines rest on.
//! - `write`: the guarded writes.
//! - `mirror`: the condition `Paused` on kinds whose controllers write none. Never read by any of the above.
//!
//! All decisions are [`crate::protocol`]'s; here is only what surrounds them. Everything that is remembered between two
//! reconciles lives in memory and can only make an echo later when it is lost.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use kube::{
    Client,
    runtime::events::{Recorder, Reporter},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    protocol::{
        GroupKind, Moment,
        lease::Leases,
        rule::{LeaseName, Membership},
    },
    rules::{Rules, manifests},
};

mod cache;
mod event;
pub mod failpoint;
mod guard;
pub(crate) mod item;
mod kinds;
mod liar;
mod look;
mod metrics;
mod mirror;
mod queue;
mod reconcile;
mod slim;
mod views;
mod watch;
mod write;

pub use metrics::Metrics;

use cache::{Cache, Concern, Key};
use guard::Guards;
use kinds::Kind;
use queue::Queue;

/// How the companion behaves. The staleness bounds are the rules'.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of our MutatingWebhookConfiguration.
    pub webhook_configuration: String,
    /// The name of this process in Events.
    pub instance: String,
    /// How long changes are gathered before an object is seen to.
    pub debounce: Duration,
    /// The time between two consistent looks at one object.
    pub look_interval: Duration,
    /// How long an acknowledgement may take before the condition says `Unknown`: quick ones skip it, and its message
    /// names true laggards.
    pub unknown_after: Duration,
    /// How long a spec has to rest before a `True` that an edit left behind is raised.
    pub raise_after: Duration,
    /// How many objects are seen to at a time.
    pub concurrency: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            webhook_configuration: manifests::CONFIGURATION.to_owned(),
            instance: "pausegen".to_owned(),
            debounce: Duration::from_millis(150),
            look_interval: Duration::from_secs(1),
            unknown_after: Duration::from_secs(3),
            raise_after: Duration::from_secs(5),
            concurrency: 8,
        }
    }
}

/// A monotonic clock of this process.
#[derive(Debug, Clone, Copy)]
struct Clock(Instant);

impl Clock {
    fn now(self) -> Moment {
        Moment(self.0.elapsed())
    }
}

/// What all tasks of a companion share.
struct World {
    client: Client,
    rules: Arc<Rules>,
    settings: Settings,
    metrics: Metrics,
    recorder: Recorder,
    clock: Clock,
    /// When this process began to watch.
    start: Moment,
    memberships: Vec<Membership>,
    kinds: Mutex<BTreeMap<GroupKind, Arc<Kind>>>,
    cache: Mutex<Cache>,
    leases: Mutex<Leases>,
    guards: Mutex<Guards>,
    /// Objects to which every change of a member matters.
    interested: Mutex<BTreeSet<Key>>,
    /// Objects that wait for time to pass, and so for Leases to be renewed.
    on_time: Mutex<BTreeSet<Key>>,
    states: Mutex<HashMap<Key, Box<reconcile::State>>>,
    queue: Queue,
    views: views::Requests,
    mirror: mirror::Changes,
}

/// A lock that a panic elsewhere does not take away.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn kind(&self, kind: &GroupKind) -> Option<Arc<Kind>> {
        lock(&self.kinds).get(kind).cloned()
    }

    /// The served kinds whose objects can inherit from one in this namespace, owners before what they own.
    fn inheriting(&self, namespace: &str) -> Vec<Arc<Kind>> {
        let kinds = lock(&self.kinds);
        let mut names: Vec<GroupKind> = kinds
            .iter()
            .filter(|(_, kind)| kind.rule.inherits && (kind.namespaced || namespace.is_empty()))
            .map(|(name, _)| name.clone())
            .collect();
        self.rules.sort_owners_first(&mut names);
        names.iter().filter_map(|name| kinds.get(name).cloned()).collect()
    }

    /// Tells everybody whom a change of the cache concerns.
    fn dispatch(&self, key: &Key, flippable: bool, concern: Concern) {
        self.mirror.note(key, &concern);
        let Concern {
            own,
            relations,
            heads,
            unlinked,
        } = concern;
        if own && flippable {
            self.queue.soon(key.clone());
        }
        let interested = lock(&self.interested);
        for head in heads {
            if relations || interested.contains(&head) {
                self.queue.soon(head);
            }
        }
        if unlinked {
            let near = interested
                .iter()
                .filter(|head| head.namespace.is_empty() || head.namespace == key.namespace);
            for head in near {
                self.queue.soon(head.clone());
            }
        }
    }

    /// Sees to every object that can be flipped: something has changed that may concern any of them.
    fn dispatch_all(&self) {
        for key in lock(&self.cache).flippable() {
            self.queue.soon(key);
        }
    }
}

/// Runs a companion until `shutdown` is cancelled. It never ends by itself: what the API server refuses is logged and
/// tried again.
pub async fn run(client: Client, rules: Arc<Rules>, settings: Settings, metrics: Metrics, shutdown: CancellationToken) {
    let clock = Clock(Instant::now());
    let (queue, inbox) = Queue::new(settings.debounce);
    let (views, view_requests) = views::Requests::new();
    let (mirror, changes) = mirror::Changes::new(rules.mirrored().next().is_some());
    let recorder = Recorder::new(
        client.clone(),
        Reporter {
            controller: "pausegen.io/companion".to_owned(),
            instance: Some(settings.instance.clone()),
        },
    );
    let bounds = lease_bounds(&rules);
    let names: BTreeSet<String> = bounds.keys().cloned().collect();
    let world = Arc::new(World {
        memberships: kinds::memberships(&rules),
        client,
        rules,
        settings,
        metrics,
        recorder,
        clock,
        start: clock.now(),
        kinds: Mutex::default(),
        cache: Mutex::default(),
        leases: Mutex::new(Leases::new(bounds)),
        guards: Mutex::default(),
        interested: Mutex::default(),
        on_time: Mutex::default(),
        states: Mutex::default(),
        queue,
        views,
        mirror,
    });
    if liar::acknowledges_at_once() {
        tracing::error!("PAUSEGEN_TEST_ACKNOWLEDGE_AT_ONCE is set: this companion acknowledges without asking anybody");
    }
    tracing::info!(
        webhook_configuration = %world.settings.webhook_configuration,
        leases = ?names,
        "the companion watches"
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(watch::leases(Arc::clone(&world), names, shutdown.clone()));
    tasks.spawn(watch::configuration(Arc::clone(&world), shutdown.clone()));
    tasks.spawn(watch::definitions(Arc::clone(&world), shutdown.clone()));
    tasks.spawn(views::run(Arc::clone(&world), view_requests, shutdown.clone()));
    tasks.spawn(mirror::run(Arc::clone(&world), changes, shutdown.clone()));
    tasks.spawn(queue::run(world, inbox, shutdown));
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a part of the companion has failed");
        }
    }
}

/// The Leases that the rules name, each with the smallest staleness bound that rests on it.
fn lease_bounds(rules: &Rules) -> BTreeMap<String, Duration> {
    let mut bounds: BTreeMap<String, Duration> = BTreeMap::new();
    for rule in kinds::samples(rules) {
        for LeaseName { name, .. } in rule.attestors.iter().filter_map(|attestor| attestor.lease.as_ref()) {
            bounds
                .entry(name.clone())
                .and_modify(|bound| *bound = rule.staleness_bound.min(*bound))
                .or_insert(rule.staleness_bound);
        }
    }
    bounds
}
