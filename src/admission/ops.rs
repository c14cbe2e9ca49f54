//! What a cluster asks of a process: `/healthz`, `/readyz`, `/metrics`.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::{encoding::text, metrics::info::Info, registry::Registry};

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What is asked whether a process may call itself ready; the error says why not.
type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

#[derive(Default)]
struct Checks(Mutex<Vec<Check>>);

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Checks")
    }
}

/// Whether this process wants to be called, and what it has counted. Clones share both.
#[derive(Debug, Clone)]
pub struct Ops {
    stopping: Arc<AtomicBool>,
    registry: Arc<Registry>,
    checks: Arc<Checks>,
}

impl Ops {
    /// Ready, with everything that has been registered. Adds `pausegen_build_info`.
    #[must_use]
    pub fn new(mut registry: Registry) -> Self {
        registry.register(
            "pausegen_build",
            "What runs here",
            Info::new([("version", env!("CARGO_PKG_VERSION"))]),
        );
        Self {
            stopping: Arc::default(),
            registry: Arc::new(registry),
            checks: Arc::default(),
        }
    }

    /// Not ready unless `check` says so too, each time that somebody asks. Its error is the answer.
    pub fn require(&self, check: impl Fn() -> Result<(), String> + Send + Sync + 'static) {
        let mut checks = self.checks.0.lock().unwrap_or_else(PoisonError::into_inner);
        checks.push(Box::new(check));
    }

    /// What this process is not ready for, one reason a line; empty where it is ready.
    fn reasons(&self) -> String {
        if self.is_stopping() {
            return "shutting down\n".to_owned();
        }
        let checks = self.checks.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reasons = checks.iter().filter_map(|check| check().err());
        reasons.map(|reason| reason + "\n").collect()
    }

    /// Not ready from now on: whoever sends requests here should look elsewhere.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether [`Ops::stop`] was called.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }
}

/// `/healthz`, `/readyz` and `/metrics` (OpenMetrics text).
pub fn router(ops: Ops) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(ops)
}

async fn ready(State(ops): State<Ops>) -> Response {
    let reasons = ops.reasons();
    if reasons.is_empty() {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, reasons).into_response()
    }
}

async fn metrics(State(ops): State<Ops>) -> Response {
    let mut text = String::new();
    match text::encode(&mut text, &ops.registry) {
        Ok(()) => ([(CONTENT_TYPE, OPENMETRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
