//! What the companion counts.

use prometheus_client::{metrics::counter::Counter, registry::Registry};

/// Counters of one companion. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Flips that were seen pending.
    pub(super) flips: Counter,
    /// Consistent looks at a scope.
    pub(super) looks: Counter,
    /// Acknowledgements written.
    pub(super) echoes: Counter,
    /// Conditions written.
    pub(super) conditions: Counter,
    /// `Paused` conditions written for want of a controller that does.
    pub(super) mirrors: Counter,
    /// Stale words taken back.
    pub(super) pendings: Counter,
    /// Irregular keys that were stamped anew.
    pub(super) repairs: Counter,
    /// Writes and reads that the API server refused.
    pub(super) errors: Counter,
}

impl Metrics {
    /// Counters in a registry.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let Self {
            flips,
            looks,
            echoes,
            conditions,
            mirrors,
            pendings,
            repairs,
            errors,
        } = metrics.clone();
        registry.register("pausegen_companion_flips_seen", "Flips that were seen pending", flips);
        registry.register("pausegen_companion_looks", "Consistent looks at a scope", looks);
        registry.register("pausegen_companion_echoes", "Acknowledgements written", echoes);
        registry.register("pausegen_companion_conditions", "Conditions written", conditions);
        registry.register(
            "pausegen_companion_mirrors",
            "Paused conditions written for want of a controller that does",
            mirrors,
        );
        registry.register("pausegen_companion_pendings", "Stale words taken back", pendings);
        registry.register(
            "pausegen_companion_repairs",
            "Irregular keys that were stamped anew",
            repairs,
        );
        registry.register(
            "pausegen_companion_errors",
            "Requests of the companion that failed",
            errors,
        );
        metrics
    }
}
