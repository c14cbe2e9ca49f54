//! What our keys on the stored object are to be.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{Concern, Decision, Write};
use crate::protocol::{
    intent::Intent,
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, GENERATION, MAX_GENERATION, MAX_RESTORED, OBSERVED_GENERATION,
        PENDING, REASON, REASON_LIMIT, Record, STAMP, Stamp, Standing, TOUCH, Why, guarded, largest, parse_generation,
    },
    mutant::{self, Mutant},
    object::{ObjectView, truncate},
    rule::{InputSource, KindRule},
};

/// A stamp that a request already carries counts as our own only this long: the longest timeout of a webhook call
/// (30 s, `timeoutSeconds` in the admissionregistration API).
const REINVOCATION_WINDOW: SignedDuration = SignedDuration::from_secs(30);

/// What the guarded keys of the stored object are to be.
pub(super) struct Wanted {
    pub(super) keys: BTreeMap<&'static str, String>,
    pub(super) decision: Decision,
}

/// At which point of a write it is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The object may still change, and may carry what we answered a moment ago.
    Mutating,
    /// The object is final.
    Final,
}

pub(super) fn wanted(write: &Write<'_>, concern: Concern, stage: Stage) -> Wanted {
    match write.old {
        None => on_create(write, stage),
        Some(old) => on_update(write, old, concern),
    }
}

fn on_update(write: &Write<'_>, old: &ObjectView, concern: Concern) -> Wanted {
    let rule = write.rule;
    let before = Intent::of(rule, old);
    let standing = Standing::of(&rule.group_kind, old);
    let missed = match &standing {
        Standing::Bare => false,
        Standing::Own(record) => record.stamp.after != before,
        Standing::Foreign | Standing::Broken => true,
    };
    // Where several are true, the one that still is when we are called again with our own output comes first: the touch
    // key is gone by then.
    if concern == Concern::Flip {
        return stamped(write, old, &standing, Why::Flip, missed);
    }
    if missed {
        return stamped(write, old, &standing, Why::Missed, missed);
    }
    let touched = stamped(write, old, &standing, Why::Touched, missed);
    if write.new.metadata.annotation(TOUCH).is_some() || is_same(&touched, write) {
        return touched;
    }
    let source = match &standing {
        Standing::Own(record)
            if mutant::on(Mutant::NoPutBack)
                || (write.writer.is_companion && is_companions_write(rule, record, old, write.new)) =>
        {
            write.new
        }
        _ => old,
    };
    Wanted {
        keys: owned(&guarded(source)),
        decision: Decision::PutBack,
    }
}

fn stamped(write: &Write<'_>, old: &ObjectView, standing: &Standing, why: Why, missed: bool) -> Wanted {
    let rule = write.rule;
    // Every irregularity becomes a gap in the numbers, so that `g = k + 1` is the only test of a clean flip.
    let step = if missed || why == Why::Touched { 2 } else { 1 };
    let largest = largest(old);
    let last = largest.filter(|n| *n <= MAX_GENERATION - 2);
    let exhausted = largest.is_some() && last.is_none();
    let generation = match (standing, last) {
        (Standing::Bare, _) | (_, None) => 1,
        (_, Some(last)) => last + step,
    };
    let before = Intent::of(rule, old);
    let after = Intent::of(rule, write.new);
    let raises_generation = before.changed(&after).iter().any(|id| {
        rule.input(id)
            .is_some_and(|input| matches!(&input.source, InputSource::Field { .. }))
    });
    let stamp = Stamp {
        generation,
        kind: rule.group_kind.to_string(),
        namespace: old.metadata.namespace.clone(),
        name: old.metadata.name.clone(),
        uid: old.metadata.uid.clone(),
        before,
        after,
        why,
        object_generation: old
            .metadata
            .generation
            .filter(|_| raises_generation)
            .and_then(|m| m.checked_add(1)),
        found_generation: old.metadata.generation.filter(|_| !raises_generation),
        at: timestamp(write.at),
        by: write.writer.recorded.to_owned(),
        reason: reason(write.new),
    };
    let mut keys = pending(&stamp);
    if mutant::on(Mutant::NoPending)
        && let Some(word) = old.metadata.annotation(ACKNOWLEDGED)
    {
        keys.insert(ACKNOWLEDGED, word.to_owned());
    }
    // A touch asks for a stamp without a history; what is not believed is no history.
    let history = match standing {
        Standing::Bare if why == Why::Flip => {
            keys.insert(OBSERVED_GENERATION, "0".to_owned());
            Some(0)
        }
        Standing::Own(record) if why != Why::Touched && !exhausted => {
            let believed = [
                (OBSERVED_GENERATION, record.observed.is_some()),
                (ACKNOWLEDGEMENT, record.acknowledgement.is_some()),
            ];
            for (key, _) in believed.into_iter().filter(|(_, believed)| *believed) {
                if let Some(value) = old.metadata.annotation(key) {
                    keys.insert(key, value.to_owned());
                }
            }
            record.observed
        }
        _ => None,
    };
    let hasty = history.and_then(|k| k.checked_add(1)) != Some(generation);
    Wanted {
        keys,
        decision: Decision::Stamped {
            stamp: Box::new(stamp),
            hasty,
        },
    }
}

fn on_create(write: &Write<'_>, stage: Stage) -> Wanted {
    let rule = write.rule;
    let new = write.new;
    let after = Intent::of(rule, new);
    let found = new
        .metadata
        .annotation(STAMP)
        .and_then(|text| serde_json::from_str::<Stamp>(text).ok());
    let name = new.metadata.name.clone();
    let (generation, why, name) = match found {
        // With generateName the name is set between our call and the final object.
        Some(stamp) if is_own_creation(write, &stamp, &after, stage) => (stamp.generation, stamp.why, stamp.name),
        Some(stamp) if stamp.names(&rule.group_kind, new) => {
            let next = largest(new).filter(|n| *n <= MAX_RESTORED).map_or(1, |n| n + 1);
            (next, Why::Restored, name)
        }
        _ if after.is_empty() => {
            return Wanted {
                keys: BTreeMap::new(),
                decision: Decision::CopyDropped,
            };
        }
        _ => (1, Why::Created, name),
    };
    let stamp = Stamp {
        generation,
        kind: rule.group_kind.to_string(),
        namespace: new.metadata.namespace.clone(),
        name,
        uid: String::new(),
        before: Intent::default(),
        after,
        why,
        object_generation: None,
        found_generation: None,
        at: timestamp(write.at),
        by: write.writer.recorded.to_owned(),
        reason: reason(new),
    };
    Wanted {
        keys: pending(&stamp),
        decision: Decision::Stamped {
            stamp: Box::new(stamp),
            hasty: true,
        },
    }
}

/// Whether a new object carries what we answered a moment ago (a webhook may be called twice). What a person could forge
/// this way is a pending stamp without an observed generation: the safe direction.
fn is_own_creation(write: &Write<'_>, stamp: &Stamp, after: &Intent, stage: Stage) -> bool {
    let get = |key| write.new.metadata.annotation(key);
    let is_number_ours = match stamp.why {
        Why::Created => stamp.generation == 1,
        Why::Restored => (1..=MAX_RESTORED + 1).contains(&stamp.generation),
        Why::Flip | Why::Touched | Why::Missed => false,
    };
    let is_of_this_write = stage == Stage::Final || (is_recent(write, stamp) && stamp.by == write.writer.recorded);
    is_number_ours
        && is_of_this_write
        && stamp.kind == write.rule.group_kind.to_string()
        && stamp.namespace == write.new.metadata.namespace
        && (stamp.name == write.new.metadata.name || (stamp.name.is_empty() && stamp.why == Why::Created))
        && stamp.uid.is_empty()
        && stamp.before.is_empty()
        && stamp.after == *after
        && stamp.object_generation.is_none()
        && stamp.found_generation.is_none()
        && get(GENERATION).and_then(parse_generation) == Some(stamp.generation)
        && get(ACKNOWLEDGED) == Some(PENDING)
        && get(OBSERVED_GENERATION).is_none()
        && get(ACKNOWLEDGEMENT).is_none()
}

/// Whether the request already carries what is wanted, but for the time of the stamp.
pub(super) fn is_same(wanted: &Wanted, write: &Write<'_>) -> bool {
    let present = guarded(write.new);
    let Decision::Stamped { stamp, .. } = &wanted.decision else {
        return false;
    };
    present.len() == wanted.keys.len()
        && wanted
            .keys
            .iter()
            .filter(|(key, _)| **key != STAMP)
            .all(|(key, value)| present.get(key) == Some(&value.as_str()))
        && present
            .get(STAMP)
            .and_then(|text| Some((*text, serde_json::from_str::<Stamp>(text).ok()?)))
            .is_some_and(|(text, found)| {
                is_recent(write, &found)
                    && found.to_annotation().is_ok_and(|canonical| canonical == text)
                    && Stamp {
                        at: stamp.at.clone(),
                        ..found
                    } == **stamp
            })
}

fn is_recent(write: &Write<'_>, stamp: &Stamp) -> bool {
    stamp
        .at
        .parse::<Timestamp>()
        .is_ok_and(|at| write.at.duration_since(at).abs() <= REINVOCATION_WINDOW)
}

/// The companion may write `pending`, or the acknowledgement of exactly the generation that stands. The inputs are those
/// of the stamp: otherwise the write would be stamped.
fn is_companions_write(rule: &KindRule, record: &Record, old: &ObjectView, new: &ObjectView) -> bool {
    let same = |key| old.metadata.annotation(key) == new.metadata.annotation(key);
    let get = |key| new.metadata.annotation(key);
    if !same(GENERATION) || !same(STAMP) {
        return false;
    }
    if get(ACKNOWLEDGED) == Some(PENDING) {
        return same(OBSERVED_GENERATION) && same(ACKNOWLEDGEMENT);
    }
    let generation = record.stamp.generation;
    get(ACKNOWLEDGED) == Some(record.stamp.after.state(rule).as_str())
        && get(OBSERVED_GENERATION).and_then(parse_generation) == Some(generation)
        && get(ACKNOWLEDGEMENT)
            .and_then(|text| serde_json::from_str::<Acknowledgement>(text).ok())
            .is_some_and(|a| a.generation == generation && a.uid == old.metadata.uid)
}

fn pending(stamp: &Stamp) -> BTreeMap<&'static str, String> {
    let mut keys = BTreeMap::from([
        (GENERATION, stamp.generation.to_string()),
        (ACKNOWLEDGED, PENDING.to_owned()),
    ]);
    // A stamp is strings and numbers: it always serialises.
    if let Ok(text) = stamp.to_annotation() {
        keys.insert(STAMP, text);
    }
    keys
}

fn owned(keys: &BTreeMap<&'static str, &str>) -> BTreeMap<&'static str, String> {
    keys.iter().map(|(key, value)| (*key, (*value).to_owned())).collect()
}

fn reason(object: &ObjectView) -> String {
    let mut reason = object.metadata.annotation(REASON).unwrap_or_default().to_owned();
    truncate(&mut reason, REASON_LIMIT);
    reason
}

/// RFC 3339 in UTC with milliseconds.
#[must_use]
pub fn timestamp(at: Timestamp) -> String {
    format!("{at:.3}")
}
