//! The HTTPS webhook that stamps: decode a review, ask [`crate::protocol::stamp`], answer.
//!
//! - [`router`] is the whole of it as an axum router, so that tests call it in-process.
//! - [`Settings`] is what an operator can set.
//! - [`server`] serves a router over TLS the way the API server's webhook client needs it, and stops without losing a
//!   call.
//! - [`ops`] is what a cluster asks of any process: health, readiness, metrics.
//!
//! A call that cannot be answered gets a status other than 200, so that the webhook's `failurePolicy` decides about the
//! write. An answer is always an answer to the very UID that was asked.

mod answer;
mod http;
pub mod metrics;
pub mod ops;
mod patch;
mod review;
pub mod server;
mod settings;
mod timeout;
mod warnings;

use std::{fmt, sync::Arc};

use jiff::Timestamp;

use crate::rules::live::Live;

pub use http::{BODY_LIMIT, router};
pub use settings::{RecordUser, Settings};

/// The wall clock that stamps are dated by.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// What the handlers share.
#[derive(Clone)]
pub struct State {
    /// Which kinds can be paused, and by what.
    pub rules: Live,
    /// What an operator has set.
    pub settings: Arc<Settings>,
    /// The wall clock.
    pub clock: Clock,
    /// What is counted.
    pub metrics: metrics::Metrics,
    /// Readiness and everything that is counted in this process.
    pub ops: ops::Ops,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
