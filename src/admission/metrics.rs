//! What is counted of admission.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::{Family, MetricConstructor},
        histogram::Histogram,
    },
    registry::Registry,
};

/// Which webhook was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Webhook {
    /// `/mutate`
    Mutate,
    /// `/validate`
    Validate,
}

impl Webhook {
    /// As labels and logs show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Mutate => "mutate",
            Self::Validate => "validate",
        }
    }
}

/// How calls end that are not answered. Alerts look for them: a series that begins with its first event shows no increase.
const UNANSWERED: [Outcome; 5] = [
    Outcome::Malformed,
    Outcome::TooLarge,
    Outcome::WrongContentType,
    Outcome::TimedOut,
    Outcome::Shed,
];

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Let through as it was.
    Unchanged,
    /// Stamped.
    Stamped,
    /// Our keys were put back as they stood.
    PutBack,
    /// Another object's keys were dropped from a new one.
    CopyDropped,
    /// Denied.
    Denied,
    /// The body was no review.
    Malformed,
    /// The body was too large.
    TooLarge,
    /// The content type was not JSON.
    WrongContentType,
    /// The caller's timeout was about to run out.
    TimedOut,
    /// A limit was reached.
    Shed,
}

impl Outcome {
    /// As labels and the audit log show it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Stamped => "stamped",
            Self::PutBack => "put-back",
            Self::CopyDropped => "copy-dropped",
            Self::Denied => "denied",
            Self::Malformed => "malformed",
            Self::TooLarge => "too-large",
            Self::WrongContentType => "wrong-content-type",
            Self::TimedOut => "timed-out",
            Self::Shed => "shed",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReviewLabels {
    webhook: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WebhookLabels {
    webhook: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StampLabels {
    kind: String,
    hasty: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: String,
}

#[derive(Debug, Clone, Copy)]
struct Buckets;

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        // From what a review takes when nothing queues to what the API server waits for by default.
        Histogram::new([
            0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 10.0,
        ])
    }
}

/// What is counted of admission. Clones count together.
#[derive(Debug, Clone)]
pub struct Metrics {
    reviews: Family<ReviewLabels, Counter>,
    duration: Family<WebhookLabels, Histogram, Buckets>,
    stamps: Family<StampLabels, Counter>,
    put_backs: Family<KindLabels, Counter>,
    denials: Family<KindLabels, Counter>,
}

impl Metrics {
    /// Registers them, all named `pausegen_admission_...`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            reviews: Family::default(),
            duration: Family::new_with_constructor(Buckets),
            stamps: Family::default(),
            put_backs: Family::default(),
            denials: Family::default(),
        };
        for webhook in [Webhook::Mutate, Webhook::Validate].map(Webhook::as_str) {
            for outcome in UNANSWERED.map(Outcome::as_str) {
                drop(metrics.reviews.get_or_create(&ReviewLabels { webhook, outcome }));
            }
        }
        let registry = registry.sub_registry_with_prefix("pausegen_admission");
        registry.register(
            "reviews",
            "Calls of a webhook, by how they ended",
            metrics.reviews.clone(),
        );
        registry.register(
            "duration_seconds",
            "Seconds from the head of a call to its answer",
            metrics.duration.clone(),
        );
        registry.register("stamps", "Stamps given, dry runs excepted", metrics.stamps.clone());
        registry.register(
            "put_backs",
            "Writes whose pausegen.io keys were put back as they stood, dry runs excepted",
            metrics.put_backs.clone(),
        );
        registry.register("denials", "Writes denied, dry runs excepted", metrics.denials.clone());
        metrics
    }

    /// A call has ended.
    pub(super) fn ended(&self, webhook: Webhook, outcome: Outcome, took: Duration) {
        let (webhook, outcome) = (webhook.as_str(), outcome.as_str());
        self.reviews.get_or_create(&ReviewLabels { webhook, outcome }).inc();
        self.duration
            .get_or_create(&WebhookLabels { webhook })
            .observe(took.as_secs_f64());
    }

    /// A flip was stamped.
    pub(super) fn stamped(&self, kind: String, hasty: bool) {
        let hasty = if hasty { "true" } else { "false" };
        self.stamps.get_or_create(&StampLabels { kind, hasty }).inc();
    }

    /// Keys were put back.
    pub(super) fn put_back(&self, kind: String) {
        self.put_backs.get_or_create(&KindLabels { kind }).inc();
    }

    /// A write was denied.
    pub(super) fn denied(&self, kind: String) {
        self.denials.get_or_create(&KindLabels { kind }).inc();
    }
}
