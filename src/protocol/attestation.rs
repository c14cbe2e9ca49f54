//! What a controller says of an input.

use super::{
    mirror,
    object::{Condition, ObjectView},
    rule::{AttestedBy, Attestor, ConditionRule, ConditionsAt, InputRef},
};

/// What an attestor says of one input of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Attestation {
    /// It treats the input as on.
    On,
    /// It treats the input as off.
    Off,
    /// It says something, but not of which input. It agrees when that is what all inputs together call for.
    Unclear {
        /// Whether it agrees.
        agrees: bool,
    },
    /// It says nothing. Never to be read as "not paused".
    Missing,
}

impl Attestation {
    /// Whether it is what is intended.
    #[must_use]
    pub fn agrees(self, intended: bool) -> bool {
        match self {
            Self::On => intended,
            Self::Off => !intended,
            Self::Unclear { agrees } => agrees,
            Self::Missing => false,
        }
    }

    /// The answer, if it is one about this very input.
    #[must_use]
    pub fn clear(self) -> Option<bool> {
        match self {
            Self::On => Some(true),
            Self::Off => Some(false),
            Self::Unclear { .. } | Self::Missing => None,
        }
    }
}

/// What an attestor says of an input of `object`. `together` is whether all inputs that can pause the object, its own and
/// the inherited ones, together call for a pause; `causes` is how many inputs there are that can.
#[must_use]
pub fn attest(
    attestor: &Attestor,
    object: &ObjectView,
    input: &InputRef,
    together: bool,
    causes: usize,
) -> Attestation {
    match &attestor.by {
        AttestedBy::Condition(rule) => match find(rule, object) {
            Some(condition) => read(rule, condition, input, together, causes),
            // It may be missing since a resume, or since nobody has answered yet.
            None if rule.absent_is_off => Attestation::Unclear { agrees: !together },
            None => Attestation::Missing,
        },
        AttestedBy::ObservedGeneration => match object.status.observed_generation {
            Some(observed) => Attestation::Unclear {
                agrees: Some(observed) == object.metadata.generation,
            },
            None => Attestation::Missing,
        },
        AttestedBy::Bound | AttestedBy::None => Attestation::Unclear { agrees: true },
    }
}

/// The revision that an attestor says it has read: never more than the object's own `metadata.generation`.
#[must_use]
pub fn observed_generation(attestor: &Attestor, object: &ObjectView) -> Option<i64> {
    claimed_generation(attestor, object).filter(|observed| {
        object
            .metadata
            .generation
            .is_some_and(|generation| *observed <= generation)
    })
}

/// The revision that an attestor says it has read, also where that can only be one of an earlier object of the name.
#[must_use]
pub fn claimed_generation(attestor: &Attestor, object: &ObjectView) -> Option<i64> {
    match &attestor.by {
        AttestedBy::Condition(rule) => find(rule, object)?.observed_generation,
        AttestedBy::ObservedGeneration => object.status.observed_generation,
        AttestedBy::Bound | AttestedBy::None => None,
    }
}

/// The condition that a rule speaks of, if the object has it.
#[must_use]
pub fn find<'a>(rule: &ConditionRule, object: &'a ObjectView) -> Option<&'a Condition> {
    let conditions = match rule.at {
        ConditionsAt::Status => &object.status.conditions,
        ConditionsAt::StatusV1Beta2 => &object.status.v1beta2.as_ref()?.conditions,
    };
    // A mirror that we wrote is no answer, also where the controller has begun to write the condition itself.
    conditions
        .iter()
        .find(|condition| condition.type_ == rule.type_ && !mirror::is_marked(condition))
}

fn read(rule: &ConditionRule, condition: &Condition, input: &InputRef, together: bool, causes: usize) -> Attestation {
    let paused =
        condition.status == rule.status && rule.reason.as_ref().is_none_or(|reason| *reason == condition.reason);
    if !paused {
        // Without a reason to tell them apart, Unknown is neither.
        let neither = rule.reason.is_none() && condition.status != "True" && condition.status != "False";
        return if neither {
            Attestation::Unclear { agrees: false }
        } else {
            Attestation::Off
        };
    }
    // The message counts only where every part of it is understood.
    let parts: Option<Vec<&InputRef>> = condition
        .message
        .split(", ")
        .map(|part| {
            rule.texts
                .iter()
                .find(|(_, text)| part.ends_with(text.as_str()))
                .map(|(input, _)| input)
        })
        .collect();
    match parts {
        Some(named) if named.contains(&input) => Attestation::On,
        Some(_) if rule.texts.iter().any(|(known, _)| known == input) => Attestation::Off,
        _ if causes == 1 => Attestation::On,
        _ => Attestation::Unclear { agrees: together },
    }
}
