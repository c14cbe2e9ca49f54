//! When certificates expire, and whether the one that is served is trusted.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::gauge::ConstGauge,
    registry::Registry,
};

use super::{Certificate, published::Trust};

#[derive(Debug, Default)]
struct Known {
    certificate: Option<Certificate>,
    ca_not_after: Option<Timestamp>,
    trust: Option<Trust>,
}

/// What is told of certificates. Clones tell the same.
#[derive(Debug, Clone, Default)]
pub struct Metrics(Arc<Mutex<Known>>);

impl Metrics {
    /// Registers them, all named `pausegen_certificate_...`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register_collector(Box::new(metrics.clone()));
        metrics
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This one is served.
    pub fn serves(&self, certificate: &Certificate) {
        self.lock().certificate = Some(certificate.clone());
    }

    /// Whether it is trusted is found out here.
    pub fn trusts(&self, trust: &Trust) {
        self.lock().trust = Some(trust.clone());
    }

    pub(super) fn ca_expires(&self, at: Option<Timestamp>) {
        self.lock().ca_not_after = at;
    }
}

impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let known = self.lock();
        let gauge = ConstGauge::new(0_i64).metric_type();
        let expires = [
            ("serving", known.certificate.as_ref().and_then(Certificate::not_after)),
            ("ca", known.ca_not_after),
        ];
        if expires.iter().any(|(_, at)| at.is_some()) {
            let mut family = encoder.encode_descriptor(
                "pausegen_certificate_expiration_timestamp_seconds",
                "When a certificate expires, in seconds since 1970",
                None,
                gauge,
            )?;
            for (which, at) in expires {
                let Some(at) = at else { continue };
                let labels = [("certificate", which)];
                ConstGauge::new(at.as_second()).encode(family.encode_family(&labels)?)?;
            }
        }
        if let Some(trust) = &known.trust {
            let family = encoder.encode_descriptor(
                "pausegen_certificate_trusted",
                "Whether the published caBundle trusts the certificate that is served",
                None,
                gauge,
            )?;
            ConstGauge::new(i64::from(trust.get().is_ok())).encode(family)?;
        }
        Ok(())
    }
}
