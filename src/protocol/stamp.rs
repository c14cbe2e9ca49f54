//! What the webhook answers to a write: a stamp, or everything put back as it stood. Pure: rule, old, new, user, time.
//!
//! [`concern`] says whether a write is any business of ours; the CEL `matchConditions` of the two webhooks say the same.
//! [`mutate`] answers it, [`validate`] checks the final object of a flip after all other webhooks have had their turn.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::{
    intent::{Intent, is_on},
    keys::{
        self, ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, GENERATION, GUARDED, MAX_GENERATION, MAX_RESTORED,
        OBSERVED_GENERATION, PENDING, REASON, REASON_LIMIT, Record, STAMP, Stamp, Standing, TOUCH, Why, guarded,
        largest, parse_generation,
    },
    object::{ObjectView, truncate},
    rule::{AnnotationMatch, InputSource, KindRule},
};

/// A stamp that a request already carries counts as our own only this long: the longest timeout of a webhook call
/// (30 s, `timeoutSeconds` in the admissionregistration API).
const REINVOCATION_WINDOW: SignedDuration = SignedDuration::from_secs(30);

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

/// What the guarded keys of the stored object are to be.
struct Wanted {
    keys: BTreeMap<&'static str, String>,
    decision: Decision,
}

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
    let wanted = wanted(write, concern);
    let mut warnings = Vec::new();
    if let Decision::Stamped { stamp, hasty } = &wanted.decision {
        match policies(write, stamp, *hasty, &mut warnings) {
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
    if forged && !write.writer.is_companion {
        let keys: Vec<_> = edits
            .iter()
            .map(|(key, _)| key.trim_start_matches(keys::PREFIX))
            .collect();
        warnings.push(format!(
            "pausegen.io annotations are written by pausegen alone; put back as they stood: {}",
            keys.join(", ")
        ));
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
    let wanted = wanted(write, Concern::Flip);
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
            same && get(ACKNOWLEDGED) == Some(PENDING)
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

fn wanted(write: &Write<'_>, concern: Concern) -> Wanted {
    match write.old {
        None => wanted_on_create(write),
        Some(old) => wanted_on_update(write, old, concern),
    }
}

fn wanted_on_update(write: &Write<'_>, old: &ObjectView, concern: Concern) -> Wanted {
    let rule = write.rule;
    let before = Intent::of(rule, old);
    let after = Intent::of(rule, write.new);
    let standing = Standing::of(&rule.group_kind, old);
    let touched = write.new.metadata.annotation(TOUCH).is_some();
    let missed = match &standing {
        Standing::Bare => false,
        Standing::Own(record) => record.stamp.after != before,
        Standing::Foreign | Standing::Broken => true,
    };
    let flipped = concern == Concern::Flip;
    if !flipped && !touched && !missed {
        let as_stood = guarded(old)
            .into_iter()
            .map(|(key, value)| (key, value.to_owned()))
            .collect();
        let keys = match (&standing, write.writer.is_companion) {
            (Standing::Own(record), true) if is_companions_write(rule, record, &after, old, write.new) => {
                guarded(write.new)
                    .into_iter()
                    .map(|(key, value)| (key, value.to_owned()))
                    .collect()
            }
            _ => as_stood,
        };
        return Wanted {
            keys,
            decision: Decision::PutBack,
        };
    }

    // Every irregularity becomes a gap in the numbers, so that `g = k + 1` is the only test of a clean flip.
    let step = if missed || (touched && !flipped) { 2 } else { 1 };
    let last = largest(old).filter(|n| *n <= MAX_GENERATION - 2);
    let exhausted = last.is_none() && largest(old).is_some();
    let generation = match (&standing, last) {
        (Standing::Bare, _) | (_, None) => 1,
        (_, Some(last)) => last + step,
    };
    let why = match (flipped, touched) {
        (true, _) => Why::Flip,
        (false, true) => Why::Touched,
        (false, false) => Why::Missed,
    };
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
        at: timestamp(write.at),
        by: write.writer.recorded.to_owned(),
        reason: reason(write.new),
    };
    let mut keys = pending(&stamp);
    // A touch asks for a stamp without a history; keys that are not believed have none.
    let history = match &standing {
        Standing::Bare if flipped => {
            keys.insert(OBSERVED_GENERATION, "0".to_owned());
            Some(0)
        }
        Standing::Own(record) if why != Why::Touched && !exhausted => {
            for key in [OBSERVED_GENERATION, ACKNOWLEDGEMENT] {
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

fn wanted_on_create(write: &Write<'_>) -> Wanted {
    let rule = write.rule;
    let new = write.new;
    let after = Intent::of(rule, new);
    let found = new
        .metadata
        .annotation(STAMP)
        .and_then(|text| serde_json::from_str::<Stamp>(text).ok());
    if let Some(stamp) = &found
        && is_own_creation(write, stamp, &after)
    {
        let keys = guarded(new)
            .into_iter()
            .map(|(key, value)| (key, value.to_owned()))
            .collect();
        return Wanted {
            keys,
            decision: Decision::Stamped {
                stamp: Box::new(stamp.clone()),
                hasty: true,
            },
        };
    }
    let restored = found.filter(|stamp| stamp.names(&rule.group_kind, new));
    let (generation, why) = match &restored {
        Some(_) => (
            largest(new).filter(|n| *n <= MAX_RESTORED).map_or(1, |n| n + 1),
            Why::Restored,
        ),
        None if after.is_empty() => {
            return Wanted {
                keys: BTreeMap::new(),
                decision: Decision::CopyDropped,
            };
        }
        None => (1, Why::Created),
    };
    let stamp = Stamp {
        generation,
        kind: rule.group_kind.to_string(),
        namespace: new.metadata.namespace.clone(),
        name: new.metadata.name.clone(),
        uid: String::new(),
        before: Intent::default(),
        after,
        why,
        object_generation: None,
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
fn is_own_creation(write: &Write<'_>, stamp: &Stamp, after: &Intent) -> bool {
    let get = |key| write.new.metadata.annotation(key);
    let number_is_ours = match stamp.why {
        Why::Created => stamp.generation == 1,
        Why::Restored => (1..=MAX_RESTORED + 1).contains(&stamp.generation),
        Why::Flip | Why::Touched | Why::Missed => false,
    };
    number_is_ours
        && stamp.kind == write.rule.group_kind.to_string()
        && stamp.namespace == write.new.metadata.namespace
        // With generateName the name may be set between two calls.
        && (stamp.name == write.new.metadata.name || (stamp.name.is_empty() && stamp.why == Why::Created))
        && stamp.uid.is_empty()
        && stamp.before.is_empty()
        && stamp.after == *after
        && stamp.object_generation.is_none()
        && is_recent(write, stamp)
        && stamp.by == write.writer.recorded
        && stamp.reason == reason(write.new)
        && get(GENERATION).and_then(parse_generation) == Some(stamp.generation)
        && get(ACKNOWLEDGED) == Some(PENDING)
        && get(OBSERVED_GENERATION).is_none()
        && get(ACKNOWLEDGEMENT).is_none()
        && serde_json::to_string(stamp).is_ok_and(|text| get(STAMP) == Some(text.as_str()))
}

/// Whether the request already carries what is wanted, but for the time of the stamp.
fn is_same(wanted: &Wanted, write: &Write<'_>) -> bool {
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
            .and_then(|text| serde_json::from_str::<Stamp>(text).ok().map(|s| (text, s)))
            .is_some_and(|(text, found)| {
                let canonical = serde_json::to_string(&found).is_ok_and(|again| again == **text);
                canonical
                    && is_recent(write, &found)
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

/// The companion may write `pending`, or the acknowledgement of exactly the generation that stands.
fn is_companions_write(rule: &KindRule, record: &Record, intent: &Intent, old: &ObjectView, new: &ObjectView) -> bool {
    let same = |key| old.metadata.annotation(key) == new.metadata.annotation(key);
    let get = |key| new.metadata.annotation(key);
    if !same(GENERATION) || !same(STAMP) {
        return false;
    }
    if get(ACKNOWLEDGED) == Some(PENDING) {
        return same(OBSERVED_GENERATION) && same(ACKNOWLEDGEMENT);
    }
    let generation = record.stamp.generation;
    get(ACKNOWLEDGED) == Some(intent.state(rule).as_str())
        && get(OBSERVED_GENERATION).and_then(parse_generation) == Some(generation)
        && get(ACKNOWLEDGEMENT)
            .and_then(|text| serde_json::from_str::<Acknowledgement>(text).ok())
            .is_some_and(|a| a.generation == generation && a.uid == old.metadata.uid)
}

fn policies(write: &Write<'_>, stamp: &Stamp, hasty: bool, warnings: &mut Vec<String>) -> Result<(), String> {
    let before = write.old.map(|old| Intent::of(write.rule, old)).unwrap_or_default();
    if !before.pauses(&stamp.after) {
        return Ok(());
    }
    for input in write
        .rule
        .inputs
        .iter()
        .filter(|input| !before.has(&input.id) && is_on(input, write.new))
    {
        if let InputSource::Annotation {
            key,
            on: AnnotationMatch::Present,
        } = &input.source
            && write
                .new
                .metadata
                .annotation(key)
                .is_some_and(|value| value.eq_ignore_ascii_case("false"))
        {
            warnings.push(format!(
                "{key}: \"false\" pauses: the annotation pauses by being there. Remove it to resume"
            ));
        }
    }
    if write.writer.is_exempt || write.writer.is_companion || stamp.why != Why::Flip {
        return Ok(());
    }
    if hasty {
        let message = format!(
            "the flip before pause generation {} is not acknowledged yet; this one cannot be acknowledged before {} s \
             have passed",
            stamp.generation,
            write.rule.staleness_bound.as_secs()
        );
        apply(
            write.policies.hasty,
            message,
            "wait for the acknowledgement first",
            warnings,
        )?;
    }
    let old_reason = write.old.and_then(|old| old.metadata.annotation(REASON));
    let new_reason = write
        .new
        .metadata
        .annotation(REASON)
        .filter(|reason| !reason.trim().is_empty());
    if new_reason.is_none() || new_reason == old_reason {
        let message = "this pause comes without a reason of its own".to_owned();
        apply(
            write.policies.require_reason,
            message,
            "set the annotation pausegen.io/reason in the same write",
            warnings,
        )?;
    }
    Ok(())
}

fn apply(policy: Policy, message: String, remedy: &str, warnings: &mut Vec<String>) -> Result<(), String> {
    match policy {
        Policy::Off => Ok(()),
        Policy::Warn => {
            warnings.push(message);
            Ok(())
        }
        Policy::Deny => Err(format!("{message}: {remedy}")),
    }
}

fn pending(stamp: &Stamp) -> BTreeMap<&'static str, String> {
    let mut keys = BTreeMap::from([
        (GENERATION, stamp.generation.to_string()),
        (ACKNOWLEDGED, PENDING.to_owned()),
    ]);
    // A stamp is strings and numbers: it always serialises.
    if let Ok(text) = serde_json::to_string(stamp) {
        keys.insert(STAMP, text);
    }
    keys
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
