//! What is counted of a server.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    reason: &'static str,
}

/// What is counted of a server. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    pub(super) connections: Gauge,
    pub(super) bytes: Gauge,
    closed: Family<Labels, Counter>,
    shed: Family<Labels, Counter>,
}

impl Metrics {
    /// Registers them, all named `pausegen_server_...`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        // An alert looks for it: a series that begins with its first event shows no increase.
        for reason in ["connections", "requests", "bytes"] {
            drop(metrics.shed.get_or_create(&Labels { reason }));
        }
        let registry = registry.sub_registry_with_prefix("pausegen_server");
        registry.register("connections", "Connections that are open", metrics.connections.clone());
        registry.register("body_bytes", "Bytes of bodies in memory", metrics.bytes.clone());
        registry.register(
            "connections_closed",
            "Connections that were cut off: their client kept us waiting, or another one needed the room",
            metrics.closed.clone(),
        );
        registry.register(
            "shed",
            "What was refused because a limit was reached",
            metrics.shed.clone(),
        );
        metrics
    }

    pub(super) fn cut_off(&self, reason: &'static str) {
        self.closed.get_or_create(&Labels { reason }).inc();
    }

    pub(super) fn shed(&self, reason: &'static str) {
        self.shed.get_or_create(&Labels { reason }).inc();
    }
}
