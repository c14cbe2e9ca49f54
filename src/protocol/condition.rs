//! The condition `PauseAcknowledged`: a projection of the annotations, which are the truth.

use super::{
    evidence::{Lag, Waiting},
    intent::{Intent, State},
    keys::{Evidence, Record, Standing},
    mutant::{self, Mutant},
    object::{Condition, ObjectView},
    rule::KindRule,
};

/// The type of the condition.
pub const TYPE: &str = "PauseAcknowledged";
/// Paused, and every attestor gave evidence of its own.
pub const ATTESTED: &str = "Attested";
/// Paused, and some attestor only by the staleness bound.
pub const SETTLED: &str = "Settled";
/// Running.
pub const RUNNING: &str = "Running";
/// Only the object itself is paused.
pub const PAUSED_SELF: &str = "PausedSelf";
/// Pending.
pub const AWAITING_CONTROLLERS: &str = "AwaitingControllers";
/// Pending, and something that has to answer says nothing.
pub const NOT_REPORTING: &str = "NotReporting";

/// How many names of a kind a message lists.
const NAMES: usize = 3;
/// How many excluded entries a message lists.
const EXCLUDED: usize = 8;

/// What the condition has to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Projection {
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Reason.
    pub reason: &'static str,
    /// Message.
    pub message: String,
    /// `metadata.generation` of the acknowledged revision. Never more: `kubectl wait` takes a condition as met unless
    /// it is below `metadata.generation`.
    pub observed_generation: i64,
}

impl Projection {
    /// Whether a stored condition says this already.
    #[must_use]
    pub fn is_in(&self, condition: &Condition) -> bool {
        condition.status == self.status
            && condition.reason == self.reason
            && condition.message == self.message
            // Nobody waits for an `Unknown`: a spec edit need not write it again.
            && (self.status == "Unknown" || condition.observed_generation == Some(self.observed_generation))
    }
}

/// The stored condition.
#[must_use]
pub fn stored(object: &ObjectView) -> Option<&Condition> {
    object
        .status
        .conditions
        .iter()
        .find(|condition| condition.type_ == TYPE)
}

/// The condition that an acknowledged object is to have; `None` where nothing is acknowledged. With `may_raise` a `True` goes
/// up to the object's present `metadata.generation`; a `False` always stays behind.
#[must_use]
pub fn acknowledged(rule: &KindRule, object: &ObjectView, may_raise: bool) -> Option<Projection> {
    let Standing::Own(record) = Standing::of(&rule.group_kind, object) else {
        return None;
    };
    if !record.is_acknowledged(rule) || record.stamp.after != Intent::of(rule, object) {
        return None;
    }
    let Record {
        acknowledgement: Some(echo),
        acknowledged: Some(state),
        ..
    } = *record
    else {
        return None;
    };
    let (status, reason) = match (state, echo.evidence) {
        (State::Paused, Evidence::Attested) => ("True", ATTESTED),
        (State::Paused, Evidence::Settled) => ("True", SETTLED),
        (State::PausedSelf, _) => ("False", PAUSED_SELF),
        (State::Running, _) => ("False", RUNNING),
    };
    let mut message = format!(
        "pause generation {} acknowledged by {} object(s)",
        echo.generation, echo.objects
    );
    if let Some(bound) = echo.bound_seconds {
        message.push_str(&format!("; rests on the staleness bound of {bound} s"));
        if !echo.lease.is_empty() {
            message.push_str(&format!(", lease: {}", echo.lease));
        }
    }
    message.push_str(&excluded(&echo.excluded));
    let reached = stored(object)
        .filter(|condition| condition.status == status && condition.reason == reason)
        .and_then(|condition| condition.observed_generation);
    let present = object.metadata.generation.unwrap_or(echo.object_generation);
    let observed_generation = if mutant::on(Mutant::ObservedAhead) {
        present.saturating_add(1)
    } else if may_raise && status == "True" {
        present
    } else {
        // What was raised before stays where it is.
        echo.object_generation.max(reached.unwrap_or_default()).min(present)
    };
    Some(Projection {
        status,
        reason,
        message,
        observed_generation,
    })
}

/// The condition of an object that waits for an acknowledgement.
#[must_use]
pub fn pending(object: &ObjectView, generation: u64, waiting: &Waiting) -> Projection {
    let mut parts = Vec::new();
    for (lag, what) in [
        (Lag::Disagrees, "has not answered"),
        (Lag::Missing, "says nothing"),
        (
            Lag::Leaving,
            "need not answer, which counts once its manager has been alive for the staleness bound",
        ),
        (
            Lag::Gone,
            "what may have been deleted counts once its manager has been alive for the staleness bound",
        ),
        (
            Lag::Settling,
            "agrees, which counts once its manager has been alive for the staleness bound",
        ),
    ] {
        let mut by_kind: Vec<(String, Vec<String>)> = Vec::new();
        for laggard in waiting.laggards.iter().filter(|laggard| laggard.lag == lag) {
            let who = format!("{} {}", laggard.kind, laggard.attestor);
            let name = if laggard.namespace.is_empty() {
                laggard.name.clone()
            } else {
                format!("{}/{}", laggard.namespace, laggard.name)
            };
            match by_kind.iter_mut().find(|(known, _)| *known == who) {
                Some((_, names)) => names.push(name),
                None => by_kind.push((who, vec![name])),
            }
        }
        let kinds: Vec<String> = by_kind
            .into_iter()
            .map(|(who, names)| match lag {
                Lag::Gone => who,
                _ => format!("{who} {}", first(&names, NAMES)),
            })
            .collect();
        if !kinds.is_empty() {
            parts.push(format!("{} ({what})", kinds.join("; ")));
        }
    }
    if !waiting.unruled.is_empty() {
        parts.push(format!("kinds without a rule: {}", first(&waiting.unruled, NAMES)));
    }
    let mut message = format!("pause generation {generation} waits for {}", parts.join(". "));
    if waiting.not_reporting {
        message.push_str(
            ". What says nothing may have no controller that attests a pause: give its kind a rule, or attestedBy: none \
             to leave it out",
        );
    }
    message.push_str(&excluded(&waiting.excluded));
    Projection {
        status: "Unknown",
        reason: if waiting.not_reporting {
            NOT_REPORTING
        } else {
            AWAITING_CONTROLLERS
        },
        message,
        observed_generation: object.metadata.generation.unwrap_or_default(),
    }
}

fn first(names: &[String], most: usize) -> String {
    let shown: Vec<&str> = names.iter().take(most).map(String::as_str).collect();
    match names.len().saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

fn excluded(what: &[String]) -> String {
    if what.is_empty() {
        String::new()
    } else {
        format!(". Not asked: {}", first(what, EXCLUDED))
    }
}

/// `kubectl wait --for=condition=TYPE=STATUS`, as kubectl decides it: met unless the condition's `observedGeneration` (else
/// `status.observedGeneration`) is below `metadata.generation`.
#[must_use]
pub fn kubectl_wait_is_met(object: &ObjectView, type_: &str, status: &str) -> bool {
    let present = object.metadata.generation.unwrap_or_default();
    object.status.conditions.iter().any(|condition| {
        let observed = condition.observed_generation.or(object.status.observed_generation);
        condition.type_.eq_ignore_ascii_case(type_)
            && condition.status.eq_ignore_ascii_case(status)
            && observed.is_none_or(|observed| observed >= present)
    })
}
