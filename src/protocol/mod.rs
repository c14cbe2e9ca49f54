//! The whole protocol, as pure functions of their arguments: no I/O, no clock, no Kubernetes client.
//!
//! Read it in this order:
//!
//! 1. [`object`]: the little that the protocol reads of an object.
//! 2. [`rule`]: what a rules file says of a kind: its inputs, its attestors, who inherits.
//! 3. [`intent`]: which inputs of an object are on; a *flip* changes that.
//! 4. [`keys`]: our annotations, the numbers in them, and when they are believed.
//! 5. [`stamp`]: what the webhook answers to a write: the stamp, or everything put back as it stood.
//! 6. [`attestation`]: what a controller says of an input in its condition.
//! 7. [`lease`]: whether a manager is seen to be alive, from its leader Lease.
//! 8. [`scope`]: who has to answer for a flip.
//! 9. [`evidence`]: when is it true that everybody has seen the flip? The baselines and the decision to echo.
//! 10. [`condition`]: `PauseAcknowledged`, a projection of the annotations.
//! 11. [`mirror`]: `Paused` on kinds whose controllers write none, which is never evidence.

pub mod attestation;
pub mod condition;
pub mod evidence;
#[cfg(test)]
mod fuzz;
pub mod intent;
pub mod keys;
pub mod lease;
pub(crate) mod lenient;
pub mod mirror;
pub mod mutant;
pub mod object;
pub mod rule;
pub mod scope;
pub mod stamp;

use std::{fmt, time::Duration};

/// A moment on this process's own monotonic clock, as the time since an arbitrary start. Never a wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(pub Duration);

impl Moment {
    /// This moment plus `d`, saturating.
    #[must_use]
    pub fn plus(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d))
    }

    /// The time from `earlier` to this moment; zero where `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

/// Group and kind of an object, written `Kind.group` as kubectl does (`Kind` alone for the core group).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupKind {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
}

impl GroupKind {
    /// A group and a kind.
    #[must_use]
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            group: group.into(),
            kind: kind.into(),
        }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.kind)
        } else {
            write!(f, "{}.{}", self.kind, self.group)
        }
    }
}
