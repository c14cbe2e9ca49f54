//! Our annotations, the numbers in them, and when they are believed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{
    GroupKind,
    intent::{Intent, State},
    mutant::{self, Mutant},
    object::ObjectView,
    rule::KindRule,
};

/// All our keys start with this.
pub const PREFIX: &str = "pausegen.io/";
/// The pause generation. Written by the webhook, at the flip.
pub const GENERATION: &str = "pausegen.io/generation";
/// The last pause generation that was acknowledged. Written by the companion, at the echo.
pub const OBSERVED_GENERATION: &str = "pausegen.io/observed-generation";
/// `pending` at the flip; at the echo `paused`, `paused-self` or `running`.
pub const ACKNOWLEDGED: &str = "pausegen.io/acknowledged";
/// The record of the flip, as compact JSON.
pub const STAMP: &str = "pausegen.io/stamp";
/// The record of the echo, as compact JSON.
pub const ACKNOWLEDGEMENT: &str = "pausegen.io/acknowledgement";
/// Free text that a person sets with the pause.
pub const REASON: &str = "pausegen.io/reason";
/// A request to stamp again; always removed.
pub const TOUCH: &str = "pausegen.io/touch";
/// The value of [`ACKNOWLEDGED`] from a flip until its echo.
pub const PENDING: &str = "pending";

/// The keys that only the webhook and the companion may write.
pub const GUARDED: [&str; 5] = [GENERATION, OBSERVED_GENERATION, ACKNOWLEDGED, STAMP, ACKNOWLEDGEMENT];

/// Numbers past this are not believed: beyond it a JSON number is not exact.
pub const MAX_GENERATION: u64 = 1 << 53;
/// A restored number past this is not continued.
pub const MAX_RESTORED: u64 = 1 << 52;
/// How much of a reason the stamp copies, in bytes.
pub const REASON_LIMIT: usize = 256;

/// Why there is a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// A write flipped the intent.
    Flip,
    /// The object was created with an input on.
    Created,
    /// The object was created with its own former stamp: a restore, or a `clusterctl move`.
    Restored,
    /// Somebody asked for a new stamp with the touch key.
    Touched,
    /// The inputs or the keys had changed while no webhook was called.
    Missed,
}

/// The record of the last flip.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stamp {
    /// The pause generation that it gave.
    pub generation: u64,
    /// `Kind.group` of the object.
    pub kind: String,
    /// Namespace of the object; absent for a cluster-scoped one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// UID of the object; absent where the stamp comes from its creation.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// The inputs that were on before.
    pub before: Intent,
    /// The inputs that are on since.
    pub after: Intent,
    /// Why there is a stamp.
    pub why: Why,
    /// The `metadata.generation` that this very write made, where it changed a field of the spec in an UPDATE.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_generation: Option<i64>,
    /// The `metadata.generation` that this write found, where it is an UPDATE that changed no such field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found_generation: Option<i64>,
    /// When, as RFC 3339 in UTC, on the webhook's wall clock: for people, never evidence.
    pub at: String,
    /// By whom; absent where users are not recorded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// The reason that was given, cut to 256 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// Characters that an API server's JSON writes as escapes. It decides a `test` of a JSON Patch by comparing the bytes of its
/// own JSON with those of the patch, so that a value with one of them never passes.
const ESCAPED: [char; 5] = ['<', '>', '&', '\u{2028}', '\u{2029}'];

/// Whether a JSON Patch can `test` that an annotation has this value.
#[must_use]
pub fn is_testable(value: &str) -> bool {
    !value.contains(ESCAPED) && !value.contains(char::is_control)
}

impl Stamp {
    /// The stamp as the value of its annotation: JSON that a JSON Patch can `test`, whatever the reason or the user's name
    /// holds.
    ///
    /// # Errors
    /// None that is known: a stamp is strings and numbers.
    pub fn to_annotation(&self) -> serde_json::Result<String> {
        let json = serde_json::to_string(self)?;
        if is_testable(&json) {
            return Ok(json);
        }
        let mut plain = String::with_capacity(json.len() + 16);
        for c in json.chars() {
            // They stand in strings only, where the escape means the same.
            if ESCAPED.contains(&c) || c.is_control() {
                plain.push_str(&format!("\\u{:04x}", u32::from(c)));
            } else {
                plain.push(c);
            }
        }
        Ok(plain)
    }
}

/// How certain an acknowledgement is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Evidence {
    /// The staleness bound has passed while the managers were seen to be alive.
    Settled,
    /// Every attestor gave an answer that it can only give from a view which has the flip.
    Attested,
}

/// The record of the echo.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Acknowledgement {
    /// The pause generation that it acknowledges.
    pub generation: u64,
    /// UID of the object.
    pub uid: String,
    /// The weakest evidence among the attestors.
    pub evidence: Evidence,
    /// How many objects were asked.
    pub objects: usize,
    /// The largest staleness bound that evidence rests on, in seconds; absent where none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound_seconds: Option<u64>,
    /// `absent` where the bound was counted without the manager's Lease.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lease: String,
    /// What was not asked, and why: at most 20 entries, then a count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
    /// The `metadata.generation` of the acknowledged revision.
    pub object_generation: i64,
    /// When, as RFC 3339 in UTC, on the companion's wall clock: for people, never evidence.
    pub at: String,
}

/// What the webhook notes of a stamp for the API server's audit log, under a key of its own for each generation.
///
/// The API server asks again when another write came first, and of two values for one key it keeps the first
/// (`addAuditAnnotationLocked` in its package `audit`), which is that of a try in vain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StampNote {
    /// Whether the flip before it was not acknowledged yet.
    pub hasty: bool,
    /// What was paused before, in words.
    pub before: String,
    /// What is paused now, in words.
    pub after: String,
}

impl StampNote {
    const KEY: &'static str = "stamp-";

    /// The key for a generation, as the webhook answers it: the log has the webhook's name before it.
    #[must_use]
    pub fn key(generation: u64) -> String {
        format!("{}{generation}", Self::KEY)
    }

    /// The generation that a key is for; `None` for any other key.
    #[must_use]
    pub fn generation(key: &str) -> Option<u64> {
        parse_generation(key.strip_prefix(Self::KEY)?)
    }
}

/// A pause generation in canonical decimal, between 0 and 2^53; `None` for anything else.
#[must_use]
pub fn parse_generation(text: &str) -> Option<u64> {
    let canonical = !text.is_empty()
        && text.len() <= 16
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text == "0" || !text.starts_with('0'));
    canonical
        .then(|| text.parse().ok())
        .flatten()
        .filter(|n| *n <= MAX_GENERATION)
}

/// What our keys on an object amount to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// None of our guarded keys is there.
    Bare,
    /// A record of this very object.
    Own(Box<Record>),
    /// The stamp or the acknowledgement names another object or uid: a copy, or a restore that the webhook did not
    /// see. Not believed.
    Foreign,
    /// Keys that do not make a record: missing, not canonical, contradicting. Not believed.
    Broken,
}

/// Our keys, believed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The stamp; its generation is that of the generation key.
    pub stamp: Stamp,
    /// The observed generation; `None` where it is absent, unreadable, or not that of the record of the echo.
    pub observed: Option<u64>,
    /// The acknowledged state; `None`: pending, or a word that is none of ours.
    pub acknowledged: Option<State>,
    /// The record of the last echo.
    pub acknowledgement: Option<Acknowledgement>,
}

impl Record {
    /// Whether the flip came when its predecessor was acknowledged: `g = k + 1`. Only asked while pending.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.observed
            .is_some_and(|k| k.checked_add(1) == Some(self.stamp.generation))
    }

    /// Whether the standing generation is acknowledged: `k = g`, with the word that the stamp's inputs call for and a
    /// record of the same generation and uid. Another word is none that an echo of this flip has written.
    #[must_use]
    pub fn is_acknowledged(&self, rule: &KindRule) -> bool {
        self.observed == Some(self.stamp.generation)
            && self.acknowledged == Some(self.stamp.after.state(rule))
            && self
                .acknowledgement
                .as_ref()
                .is_some_and(|a| a.generation == self.stamp.generation)
    }
}

impl Standing {
    /// Reads our keys on a stored object. A record of another object or uid is not believed, and neither are the keys
    /// beside it.
    #[must_use]
    pub fn of(group_kind: &GroupKind, object: &ObjectView) -> Self {
        let get = |key| object.metadata.annotation(key);
        if GUARDED.iter().all(|key| get(key).is_none()) {
            return Self::Bare;
        }
        let Some(stamp) = get(STAMP).and_then(|text| serde_json::from_str::<Stamp>(text).ok()) else {
            return Self::Broken;
        };
        let acknowledgement = get(ACKNOWLEDGEMENT).and_then(|text| serde_json::from_str::<Acknowledgement>(text).ok());
        let is_another = |uid: &str| uid != object.metadata.uid;
        let of_another = !stamp.names(group_kind, object) && !stamp.is_unnamed_creation(group_kind, object)
            || (!stamp.uid.is_empty() && is_another(&stamp.uid))
            || acknowledgement.as_ref().is_some_and(|a| is_another(&a.uid));
        if of_another && !mutant::on(Mutant::AnyStamp) {
            return Self::Foreign;
        }
        if get(GENERATION).and_then(parse_generation) != Some(stamp.generation) {
            return Self::Broken;
        }
        Self::Own(Box::new(Record {
            // An echo writes the two together. 0 comes with a first flip, and nobody has acknowledged it.
            observed: get(OBSERVED_GENERATION)
                .and_then(parse_generation)
                .filter(|k| *k <= stamp.generation)
                .filter(|k| *k == 0 || acknowledgement.as_ref().is_some_and(|a| a.generation == *k)),
            acknowledged: get(ACKNOWLEDGED).and_then(State::parse),
            acknowledgement,
            stamp,
        }))
    }

    /// The record, if the keys are believed.
    #[must_use]
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Own(record) => Some(record),
            _ => None,
        }
    }
}

impl Stamp {
    /// The least `metadata.generation` that the object can have since this write; a new object begins with 1.
    #[must_use]
    pub fn least_generation(&self) -> i64 {
        self.object_generation.or(self.found_generation).unwrap_or(1)
    }

    /// Whether the stamp is of an object of this kind, namespace and name.
    #[must_use]
    pub fn names(&self, group_kind: &GroupKind, object: &ObjectView) -> bool {
        !self.name.is_empty()
            && self.kind == group_kind.to_string()
            && self.name == object.metadata.name
            && self.namespace == object.metadata.namespace
    }

    /// Whether the stamp was given to an object of this kind at its creation, before `generateName` had named it.
    /// Such a stamp cannot tell its object from a copy; the acknowledgement's uid does.
    fn is_unnamed_creation(&self, group_kind: &GroupKind, object: &ObjectView) -> bool {
        self.name.is_empty()
            && self.uid.is_empty()
            && self.why == Why::Created
            && self.kind == group_kind.to_string()
            && self.namespace == object.metadata.namespace
    }
}

/// The guarded keys that stand on an object, with their values.
#[must_use]
pub fn guarded(object: &ObjectView) -> BTreeMap<&'static str, &str> {
    GUARDED
        .into_iter()
        .filter_map(|key| Some((key, object.metadata.annotation(key)?)))
        .collect()
}

/// The largest number that our keys on an object hold, as far as it is believed.
#[must_use]
pub fn largest(object: &ObjectView) -> Option<u64> {
    #[derive(Deserialize)]
    struct Numbered {
        generation: u64,
    }
    let plain = |key| object.metadata.annotation(key).and_then(parse_generation);
    let inside = |key| {
        let numbered: Numbered = serde_json::from_str(object.metadata.annotation(key)?).ok()?;
        Some(numbered.generation).filter(|n| *n <= MAX_GENERATION)
    };
    [
        plain(GENERATION),
        plain(OBSERVED_GENERATION),
        inside(STAMP),
        inside(ACKNOWLEDGEMENT),
    ]
    .into_iter()
    .flatten()
    .max()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{MAX_GENERATION, Stamp, Why, is_testable, parse_generation};
    use crate::protocol::intent::Intent;

    proptest! {
        #![proptest_config(crate::testing::cases(500))]

        #[test]
        fn a_generation_reads_back_as_it_is_written(n in 0..=MAX_GENERATION) {
            prop_assert_eq!(parse_generation(&n.to_string()), Some(n));
        }

        #[test]
        fn a_stamp_can_be_tested_by_value_whatever_it_holds(
            reason in "\\PC{0,8}[<>&\u{2028}\u{2029}\u{0}-\u{20}\u{7f}-\u{9f}]{0,4}\\PC{0,8}"
        ) {
            let stamp = Stamp {
                generation: 1, kind: "K".to_owned(), namespace: String::new(), name: "n".to_owned(), uid: String::new(),
                before: Intent::default(), after: Intent::default(), why: Why::Flip, object_generation: None,
                found_generation: None, at: String::new(), by: "R&D".to_owned(), reason,
            };
            let text = stamp.to_annotation().unwrap();
            prop_assert!(is_testable(&text), "{text:?}");
            prop_assert_eq!(serde_json::from_str::<Stamp>(&text).unwrap(), stamp);
        }

        #[test]
        fn only_canonical_numbers_are_read(text in "[0-9+ .eE-]{0,18}|\\PC{0,4}") {
            if let Some(n) = parse_generation(&text) {
                prop_assert_eq!(n.to_string(), text);
                prop_assert!(n <= MAX_GENERATION);
            }
        }
    }
}
