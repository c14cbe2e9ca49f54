//! Switches that break one rule of the protocol at a time, so that the model checker can show what each rule is for.
//! They exist only under the feature `mutants`, which tests turn on; otherwise [`on`] is `false` at compile time.

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutant {
    /// An answer that agrees is taken at face value.
    FaceValue,
    /// A clear answer counts as changed without a baseline.
    NoBaseline,
    /// A baseline is taken without waiting for the staleness bound.
    NoWait,
    /// An echo leaves a baseline for every member and input, asked or not.
    UnaskedBaseline,
    /// Hasty flips may rest on baselines, and leave them standing.
    HastyBaseline,
    /// A hasty flip asks only those whom its own inputs concern.
    HastyNarrow,
    /// A revision that an attestor says it has read counts as one of this object, even if it may be of one that was deleted.
    FormerObject,
    /// A webhook configuration that came back counts as the one that was there before.
    GuardReturned,
    /// A webhook configuration counts as enforced from the moment at which it stands.
    GuardYoung,
    /// A Lease that changed hands counts as if it had not.
    LeaseHands,
    /// A pause asks only the objects of the first list after the flip.
    FirstListPause,
    /// The flip leaves `acknowledged` as it stood.
    NoPending,
    /// `observedGeneration` runs ahead of `metadata.generation`.
    ObservedAhead,
    /// Whoever need not answer any more is left out at once.
    LeftAtOnce,
    /// Nobody waits for the controllers of what is deleted.
    GoneAtOnce,
    /// Only whom this process has seen as a member can have left.
    KnownLeavers,
    /// A look that lists nobody takes everybody who has left for gone.
    ForgetLeavers,
    /// Whoever was asked because it had left, and comes back, counts as new.
    ReturnUnasked,
    /// An echo acknowledges the revision that was looked at, whatever happened to the webhook configuration.
    LookedGeneration,
    /// A condition may be raised whatever happened to the webhook configuration.
    RaiseAnyway,
    /// Guarded keys that a request changes are not put back.
    NoPutBack,
    /// Stamps of other objects are believed.
    AnyStamp,
}

#[cfg(feature = "mutants")]
mod switch {
    use std::cell::Cell;

    use super::Mutant;

    // Of one thread, so that tests can run side by side.
    thread_local! {
        static ON: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Whether this rule is left out, in this thread.
    #[must_use]
    pub fn on(mutant: Mutant) -> bool {
        ON.get() == Some(mutant)
    }

    /// Which rule is left out, in this thread.
    #[must_use]
    pub fn current() -> Option<Mutant> {
        ON.get()
    }

    /// Runs `f` with a rule left out, in this thread.
    pub fn with<T>(mutant: Option<Mutant>, f: impl FnOnce() -> T) -> T {
        let before = ON.replace(mutant);
        let result = f();
        ON.set(before);
        result
    }
}
#[cfg(feature = "mutants")]
pub use switch::{current, on, with};

/// No rule is left out.
#[cfg(not(feature = "mutants"))]
#[must_use]
pub const fn on(_: Mutant) -> bool {
    false
}
