//! The controller that echoes: watch -> scope -> look -> echo.
//!
//! - `watch`: what the API server shows of ruled kinds, Leases, and our own webhook configuration; kept in `cache`,
//!   `guard` and the protocol's [`Leases`].
//! - `leader`: which of several companions acts. The others watch, so that the next leader knows the cluster already.
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
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::{Duration, Instant},
};

use kube::{
    Api, Client,
    runtime::events::{Recorder, Reporter},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    history::write::History,
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
mod leader;
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
pub(crate) use reconcile::irregularity;

use cache::{Cache, Concern, Key};
use guard::Guards;
use kinds::Kind;
use queue::Queue;

/// How the companion behaves. The staleness bounds are the rules'.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of our MutatingWebhookConfiguration.
    pub webhook_configuration: String,
    /// The name of this process in Events and, with something random behind it, in the Lease.
    pub instance: String,
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease that says which companion acts.
    pub lease: String,
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
    /// Where flips and acknowledgements are written down, if anywhere.
    pub history: Option<History>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            webhook_configuration: manifests::CONFIGURATION.to_owned(),
            instance: "pausegen".to_owned(),
            namespace: manifests::NAMESPACE.to_owned(),
            lease: manifests::LEASE.to_owned(),
            debounce: Duration::from_millis(150),
            look_interval: Duration::from_secs(1),
            unknown_after: Duration::from_secs(3),
            raise_after: Duration::from_secs(5),
            concurrency: 8,
            history: None,
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
    /// When this process began to lead. What it saw before is no evidence.
    start: Mutex<Moment>,
    leadership: leader::Leadership,
    memberships: Vec<Membership>,
    kinds: Mutex<BTreeMap<GroupKind, Arc<Kind>>>,
    /// Whether `kinds` has all of them: before that a look would pass over some.
    kinds_read: AtomicBool,
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
    /// The watches of which the first list has not come yet; `None` once all had.
    unlisted: Mutex<Option<BTreeSet<String>>>,
}

/// A lock that a panic elsewhere does not take away.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    /// When this process began to lead.
    fn start(&self) -> Moment {
        *lock(&self.start)
    }

    /// This process leads from now on: all evidence begins anew.
    fn begin_term(&self) {
        lock(&self.states).clear();
        lock(&self.interested).clear();
        lock(&self.on_time).clear();
        *lock(&self.start) = self.clock.now();
        self.dispatch_all();
    }

    /// One more watch whose first list the caches are not filled without.
    fn awaits(&self, watch: String) {
        if let Some(unlisted) = &mut *lock(&self.unlisted) {
            unlisted.insert(watch);
        }
    }

    /// The first list of a watch has come, or none will.
    fn synced(&self, watch: &str) {
        let mut unlisted = lock(&self.unlisted);
        let Some(waiting) = &mut *unlisted else { return };
        waiting.remove(watch);
        if waiting.is_empty() {
            tracing::info!("the caches are filled");
            self.metrics.synced.set(1);
            *unlisted = None;
        }
    }

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
    let leases = Api::namespaced(client.clone(), &settings.namespace);
    let identity = leader::identity(&settings.instance);
    let (elector, leadership) = leader::Elector::new(leases, &settings.lease, identity, metrics.leader.clone());
    let guards = Guards::new(&rules);
    let world = Arc::new(World {
        memberships: kinds::memberships(&rules),
        client,
        rules,
        settings,
        metrics,
        recorder,
        clock,
        start: Mutex::new(clock.now()),
        leadership,
        kinds: Mutex::default(),
        kinds_read: AtomicBool::new(false),
        cache: Mutex::default(),
        leases: Mutex::new(Leases::new(bounds)),
        guards: Mutex::new(guards),
        interested: Mutex::default(),
        on_time: Mutex::default(),
        states: Mutex::default(),
        queue,
        views,
        mirror,
        unlisted: Mutex::new(Some(watch::first(&names))),
    });
    let (asked, told) = (Arc::downgrade(&world), world.metrics.clone());
    let pending = move || {
        asked
            .upgrade()
            .map(|world| lock(&world.cache).pending())
            .unwrap_or_default()
    };
    world.metrics.ask_for_pending(Some(Box::new(pending)));
    if liar::acknowledges_at_once() {
        tracing::error!("PAUSEGEN_TEST_ACKNOWLEDGE_AT_ONCE is set: this companion acknowledges without asking anybody");
    }
    tracing::info!(
        webhook_configuration = %world.settings.webhook_configuration,
        leases = ?names,
        "the companion watches"
    );
    let handed_over = CancellationToken::new();
    let elector = tokio::spawn(elector.run(handed_over.clone()));
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
    // Nothing of this process is under way any more: another one may begin.
    told.ask_for_pending(None);
    handed_over.cancel();
    if let Err(error) = elector.await {
        tracing::error!(%error, "the election has failed");
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
