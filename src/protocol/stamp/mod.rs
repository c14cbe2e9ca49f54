//! What the webhook answers to a write: a stamp, or everything put back as it stood. Pure: rule, old, new, user, time.
//!
//! [`concern`] says whether a write is any business of ours; the CEL `matchConditions` of the two webhooks say the same.
//! [`mutate`] answers it, [`validate`] checks the final object of a flip after all other webhooks have had their turn.

mod policies;
#[cfg(test)]
mod tests;
mod wanted;

use jiff::Timestamp;

use super::{
    intent::Intent,
    keys::{
        self, ACKNOWLEDGED, ACKNOWLEDGEMENT, GUARDED, OBSERVED_GENERATION, PENDING, Stamp, Standing, TOUCH, guarded,
    },
    mutant::{self, Mutant},
    object::ObjectView,
    rule::KindRule,
};
use wanted::{Stage, is_same, wanted};

pub use wanted::timestamp;

/// A write that asks for admission.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The rule of the object's kind.
    pub rule: &'a KindRule,
    /// The stored object; `None` on CREATE.
    pub old: Option<&'a ObjectView>,
    /// The object as it is to be stored.
    pub new: &'a ObjectView,
    /// Who writes.
    pub writer: Writer<'a>,
    /// When, on the webhook's wall clock.
    pub at: Timestamp,
    /// What is denied or warned of.
    pub policies: Policies,
}

/// Who writes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Writer<'a> {
    /// As it goes into the stamp: the user name, a hash of it, or nothing.
    pub recorded: &'a str,
    /// The companion's own identity.
    pub is_companion: bool,
    /// Policies do not apply to them.
    pub is_exempt: bool,
}

/// What to do about something that is allowed but unwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// Nothing.
    #[default]
    Off,
    /// Let it pass with a warning.
    Warn,
    /// Refuse it.
    Deny,
}

/// The policies for pauses. None of them ever applies to a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policies {
    /// A pause before the last flip is acknowledged.
    pub hasty: Policy,
    /// A pause without a reason of its own.
    pub require_reason: Policy,
}

/// Why a write concerns us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concern {
    /// It changes nothing of ours.
    None,
    /// It flips the intent (on CREATE: an input is on).
    Flip,
    /// It flips nothing and changes a guarded key, or carries the touch key.
    Keys,
}

/// Whether a write concerns us. The webhooks' `matchConditions` are true exactly when this is not [`Concern::None`].
#[must_use]
pub fn concern(rule: &KindRule, old: Option<&ObjectView>, new: &ObjectView) -> Concern {
    let before = old.map(|old| Intent::of(rule, old)).unwrap_or_default();
    if before != Intent::of(rule, new) {
        return Concern::Flip;
    }
    let keys_before = old.map(guarded).unwrap_or_default();
    if keys_before != guarded(new) || new.metadata.annotation(TOUCH).is_some() {
        Concern::Keys
    } else {
        Concern::None
    }
}

/// What was decided about a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It stays as it is.
    Unchanged,
    /// It is stamped.
    Stamped {
        /// The stamp.
        stamp: Box<Stamp>,
        /// Whether the flip came before its predecessor was acknowledged.
        hasty: bool,
    },
    /// Our keys are put back as they stood.
    PutBack,
    /// Keys that belong to another object are dropped from a new one.
    CopyDropped,
    /// A policy refuses it. Nothing is changed.
    Denied(String),
}

/// The answer to a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What was decided.
    pub decision: Decision,
    /// The changes to the annotations: the key and its value, `None` to remove it. Empty where the request is right
    /// as it stands.
    pub edits: Vec<(&'static str, Option<String>)>,
    /// Warnings for the person, each under 256 characters.
    pub warnings: Vec<String>,
}

/// How a warning about our keys begins.
const ALONE: &str = "pausegen.io annotations are written by pausegen alone";

/// Answers a write.
#[must_use]
pub fn mutate(write: &Write<'_>) -> Answer {
    let concern = concern(write.rule, write.old, write.new);
    if concern == Concern::None {
        return Answer {
            decision: Decision::Unchanged,
            edits: Vec::new(),
            warnings: Vec::new(),
        };
    }
    let wanted = wanted(write, concern, Stage::Mutating);
    let mut warnings = Vec::new();
    if let Decision::Stamped { stamp, hasty } = &wanted.decision {
        match policies::apply_all(write, stamp, *hasty, &mut warnings) {
            Ok(()) => {}
            Err(message) => {
                return Answer {
                    decision: Decision::Denied(message),
                    edits: Vec::new(),
                    warnings,
                };
            }
        }
    }
    let present = guarded(write.new);
    let mut edits: Vec<(&'static str, Option<String>)> = Vec::new();
    if !is_same(&wanted, write) {
        for key in GUARDED {
            let value = wanted.keys.get(key);
            if present.get(key).copied() != value.map(String::as_str) {
                edits.push((key, value.cloned()));
            }
        }
    }
    if write.new.metadata.annotation(TOUCH).is_some() {
        edits.push((TOUCH, None));
    }
    let forged = wanted.decision == Decision::PutBack && !edits.is_empty();
    let decision = if edits.is_empty() {
        Decision::Unchanged
    } else {
        wanted.decision
    };
    if !write.writer.is_companion {
        let list = |keys: Vec<&str>| keys.join(", ").replace(keys::PREFIX, "");
        if forged {
            let keys = edits.iter().map(|(key, _)| *key).collect();
            warnings.push(format!("{ALONE}; put back as they stood: {}", list(keys)));
        } else if let (Decision::Stamped { .. }, Some(old)) = (&decision, write.old) {
            // What stood there may well come along, as in a `replace`. Anything else was meant to be believed.
            let standing = guarded(old);
            let invented = |key: &&str| present.contains_key(key) && present.get(key) != standing.get(key);
            let keys: Vec<&str> = edits.iter().map(|(key, _)| *key).filter(invented).collect();
            if !keys.is_empty() {
                warnings.push(format!("{ALONE}; not believed: {}", list(keys)));
            }
        }
    }
    Answer {
        decision,
        edits,
        warnings,
    }
}

/// Whether the final object of a flip carries what its inputs call for. Another webhook may have changed it after ours.
///
/// # Errors
/// What is wrong and what to do about it, for the person whose write is denied.
pub fn validate(write: &Write<'_>) -> Result<(), String> {
    if concern(write.rule, write.old, write.new) != Concern::Flip {
        return Ok(());
    }
    let wanted = wanted(write, Concern::Flip, Stage::Final);
    let right = match &wanted.decision {
        Decision::Stamped { stamp, .. } => {
            let found = Standing::of(&write.rule.group_kind, write.new);
            let same = found.record().is_some_and(|record| {
                let neutral = |s: &Stamp| Stamp {
                    at: String::new(),
                    by: String::new(),
                    reason: String::new(),
                    ..s.clone()
                };
                neutral(&record.stamp) == neutral(stamp)
            });
            let get = |key| write.new.metadata.annotation(key);
            same && (get(ACKNOWLEDGED) == Some(PENDING) || mutant::on(Mutant::NoPending))
                && [OBSERVED_GENERATION, ACKNOWLEDGEMENT]
                    .iter()
                    .all(|key| get(key) == wanted.keys.get(key).map(String::as_str))
        }
        _ => true,
    };
    if right {
        return Ok(());
    }
    let before = write.old.map(|old| Intent::of(write.rule, old)).unwrap_or_default();
    Err(format!(
        "this write changes what pauses the {} from {before} to {}, but does not carry the pause generation stamped for \
         that: another mutating webhook changed the pause or pausegen.io annotations after pausegen was called. Give that \
         webhook's configuration a name that sorts before pausegen's, or reinvocationPolicy: IfNeeded",
        write.rule.group_kind.kind,
        Intent::of(write.rule, write.new),
    ))
}
