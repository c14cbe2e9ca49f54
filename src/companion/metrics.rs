//! What the companion counts.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric},
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        gauge::{ConstGauge, Gauge},
        histogram::Histogram,
    },
    registry::Registry,
};

use super::lock;
use crate::{
    protocol::{GroupKind, keys::Evidence},
    wall_clock,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EchoLabels {
    kind: String,
    evidence: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    resource: String,
}

#[derive(Debug, Clone, Copy)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        // From what the fastest controller needs over the staleness bound to a manager that has to be repaired first.
        Histogram::new([
            0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 40.0, 60.0, 75.0, 120.0, 300.0, 900.0, 3600.0,
        ])
    }
}

/// The stamps that wait for their acknowledgement, by kind: how many, and when the oldest was given.
pub(super) type Pending = BTreeMap<GroupKind, (i64, Option<Timestamp>)>;

/// Asks a companion what is pending.
type Ask = Box<dyn Fn() -> Pending + Send + Sync>;

/// What is pending, counted when somebody asks.
#[derive(Clone, Default)]
struct PendingNow(Arc<Mutex<Option<Ask>>>);

impl fmt::Debug for PendingNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingNow")
    }
}

impl Collector for PendingNow {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let pending = lock(&self.0).as_ref().map(|ask| ask()).unwrap_or_default();
        let now = wall_clock::now();
        let labels = |kind: &GroupKind| KindLabels { kind: kind.to_string() };
        let gauge = ConstGauge::new(0_i64).metric_type();
        let mut family = encoder.encode_descriptor(
            "pausegen_companion_pending",
            "Flips that are not acknowledged, as this process sees them",
            None,
            gauge,
        )?;
        for (kind, (count, _)) in &pending {
            ConstGauge::new(*count).encode(family.encode_family(&labels(kind))?)?;
        }
        let mut family = encoder.encode_descriptor(
            "pausegen_companion_pending_oldest_age_seconds",
            "Seconds since the stamp of the oldest flip that is not acknowledged",
            None,
            gauge,
        )?;
        for (kind, (_, oldest)) in &pending {
            let Some(oldest) = oldest else { continue };
            let age = now.duration_since(*oldest).as_secs_f64().max(0.0);
            ConstGauge::new(age).encode(family.encode_family(&labels(kind))?)?;
        }
        Ok(())
    }
}

/// Counters of one companion. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Flips that were seen pending.
    pub(super) flips: Counter,
    /// Consistent looks at a scope.
    pub(super) looks: Counter,
    /// Acknowledgements written: seconds from stamp to echo.
    echoes: Family<EchoLabels, Histogram, Buckets>,
    /// Conditions written.
    pub(super) conditions: Counter,
    /// `Paused` conditions written for want of a controller that does.
    pub(super) mirrors: Counter,
    /// Stale words taken back.
    pub(super) pendings: Counter,
    /// Stamps asked for where the keys made no record that is believed.
    pub(super) repairs: Counter,
    /// Writes and reads that the API server refused.
    pub(super) errors: Counter,
    /// Whether this process leads.
    pub(super) leader: Gauge,
    /// Whether the caches are filled.
    pub(super) synced: Gauge,
    watches: Family<WatchLabels, Gauge>,
    watch_errors: Family<WatchLabels, Counter>,
    pending: PendingNow,
}

impl Metrics {
    /// Counters in a registry.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            flips: Counter::default(),
            looks: Counter::default(),
            echoes: Family::new_with_constructor(Buckets),
            conditions: Counter::default(),
            mirrors: Counter::default(),
            pendings: Counter::default(),
            repairs: Counter::default(),
            errors: Counter::default(),
            leader: Gauge::default(),
            synced: Gauge::default(),
            watches: Family::default(),
            watch_errors: Family::default(),
            pending: PendingNow::default(),
        };
        let Self {
            flips,
            looks,
            echoes,
            conditions,
            mirrors,
            pendings,
            repairs,
            errors,
            leader,
            synced,
            watches,
            watch_errors,
            pending,
        } = metrics.clone();
        registry.register_collector(Box::new(pending));
        let registry = registry.sub_registry_with_prefix("pausegen_companion");
        registry.register("flips_seen", "Flips that were seen pending", flips);
        registry.register("looks", "Consistent looks at a scope", looks);
        registry.register(
            "acknowledgement_seconds",
            "Seconds from the stamp of a flip to its acknowledgement",
            echoes,
        );
        registry.register("conditions", "Conditions written", conditions);
        registry.register(
            "mirrors",
            "Paused conditions written for want of a controller that does",
            mirrors,
        );
        registry.register("pendings", "Stale words taken back", pendings);
        registry.register("repairs", "Irregular keys that were stamped anew", repairs);
        registry.register("errors", "Requests of the companion that failed", errors);
        registry.register("leader", "Whether this companion holds the Lease and acts", leader);
        registry.register("synced", "Whether the caches of this companion are filled", synced);
        registry.register("watch_up", "Whether a watch is told of changes", watches);
        registry.register(
            "watch_errors",
            "Failures of a watch; it is begun again each time",
            watch_errors,
        );
        metrics
    }

    /// Whether everything that is watched has been listed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced.get() == 1
    }

    /// An acknowledgement was written, this long after the stamp.
    pub(super) fn echoed(&self, kind: &GroupKind, evidence: Evidence, took: Option<Duration>) {
        let labels = EchoLabels {
            kind: kind.to_string(),
            evidence: match evidence {
                Evidence::Settled => "settled",
                Evidence::Attested => "attested",
            },
        };
        // A stamp without a date that can be read is none of the webhook's.
        self.echoes
            .get_or_create(&labels)
            .observe(took.unwrap_or_default().as_secs_f64());
    }

    /// A watch works, or not.
    pub(super) fn watch(&self, resource: &str, up: bool) {
        let labels = || WatchLabels {
            resource: resource.to_owned(),
        };
        self.watches.get_or_create(&labels()).set(i64::from(up));
        self.watch_errors.get_or_create(&labels()).inc_by(u64::from(!up));
    }

    /// A watch is no more.
    pub(super) fn unwatched(&self, resource: &str) {
        let labels = WatchLabels {
            resource: resource.to_owned(),
        };
        self.watches.remove(&labels);
    }

    /// Who to ask what is pending; `None`: nobody any more.
    pub(super) fn ask_for_pending(&self, ask: Option<Ask>) {
        *lock(&self.pending.0) = ask;
    }
}
