//! What a server takes on at a time, and for how long it waits for whom.

use std::time::Duration;

use super::table::Phase;

/// How often connections are looked at.
pub(super) const SWEEP: Duration = Duration::from_millis(500);
/// How long a request may wait for its body before it makes room for another one.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// The most that is buffered of the head of a request.
pub(super) const HEAD: usize = 16 * 1024;

/// What a server takes on at a time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections. Past it, one that waits for its client makes room for a new one.
    pub connections: usize,
    /// Requests from their head to their answer. Past it, they are refused.
    pub requests: usize,
    /// Bytes of bodies in memory. Past it, bodies are refused.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1000,
            requests: 100,
            bytes: 32 * 1024 * 1024,
        }
    }
}

/// How long a connection may be in a phase.
pub(super) const fn patience(phase: Phase) -> Option<Duration> {
    match phase {
        Phase::Handshake | Phase::Head => Some(Duration::from_secs(10)),
        // The API server keeps idle connections for 90 s, also ones that it has not used yet.
        Phase::Idle => Some(Duration::from_secs(120)),
        // Whoever reads the body knows how long its caller waits.
        Phase::Body | Phase::Working => None,
    }
}
