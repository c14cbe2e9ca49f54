//! Who has answered, by the very look that the companion takes at consistent lists. A process that has just begun knows
//! nobody from before: who gives the answer that is called for without having been known to give another one is counted,
//! and it is left to the companion (or to time) whether that is an answer to this flip.

use std::{collections::BTreeSet, sync::Arc};

use crate::protocol::{
    GroupKind, Moment,
    evidence::{self, Ground, Surroundings, Tracker, Verdict, Waiting},
    intent::Intent,
    keys::{ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, OBSERVED_GENERATION, PENDING, STAMP, Stamp, Why},
    lease::Leases,
    object::{Annotations, ObjectView},
    rule::KindRule,
    scope::{self, Ruled},
};

use super::model::{Lag, Laggard};

/// What the lists say of everybody who has to answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Survey {
    /// Who does not attest what is intended.
    pub laggards: Vec<Laggard>,
    /// How many attest it, and nobody here can tell whether as an answer to this flip.
    pub to_be_proven: usize,
    /// What is not asked, and why.
    pub excluded: Vec<String>,
    /// How many objects are asked.
    pub objects: usize,
}

/// Whom the standing flip of this object waits for: exactly those whom the companion asks about it.
#[must_use]
pub fn of_flip(flipped: &Ruled, all: &[Ruled], has_rule: &(dyn Fn(&GroupKind) -> bool + Sync)) -> Survey {
    look(flipped, all, has_rule)
}

/// Who does not attest at present what the inputs of this object call for, whatever its keys say. Everybody is asked for
/// every input, as after a hasty flip.
#[must_use]
pub fn of_intent(flipped: &Ruled, all: &[Ruled], has_rule: &(dyn Fn(&GroupKind) -> bool + Sync)) -> Survey {
    let asked = Ruled {
        object: Arc::new(as_if_flipped(&flipped.rule, &flipped.object)),
        rule: Arc::clone(&flipped.rule),
    };
    look(&asked, all, has_rule)
}

fn look(flipped: &Ruled, all: &[Ruled], has_rule: &(dyn Fn(&GroupKind) -> bool + Sync)) -> Survey {
    let leases = Leases::default();
    let ground = Ground {
        now: Moment::default(),
        start: Moment::default(),
        guard: None,
        leases: &leases,
    };
    let mut tracker = Tracker::new(&flipped.object.metadata.uid);
    tracker.observe(ground.now, &flipped.rule, &flipped.object);
    let around = Surroundings {
        has_rule,
        unchanged_since: &|_| None,
        belongs_elsewhere: &|_| true,
        gone: &[],
    };
    match tracker.look(&ground, flipped, all, &around) {
        Verdict::Wait(waiting) => survey(waiting, flipped, all),
        Verdict::Echo(echo) => Survey {
            objects: echo.objects,
            excluded: echo.excluded,
            ..Survey::default()
        },
        Verdict::Quiet | Verdict::Irregular => Survey::default(),
    }
}

fn survey(waiting: Waiting, flipped: &Ruled, all: &[Ruled]) -> Survey {
    let Waiting {
        laggards,
        unruled,
        excluded,
        objects,
        not_reporting: _,
        retry_at: _,
    } = waiting;
    let mut survey = Survey {
        objects,
        excluded,
        ..Survey::default()
    };
    let mut counted = BTreeSet::new();
    for evidence::Laggard {
        kind,
        namespace,
        name,
        attestor,
        lag,
    } in laggards
    {
        let lag = match lag {
            evidence::Lag::Missing => Lag::SaysNothing,
            evidence::Lag::Disagrees => Lag::NotAnswered,
            evidence::Lag::Settling => {
                survey.to_be_proven += 1;
                continue;
            }
            // Of what is not there nothing is to be told from a snapshot.
            evidence::Lag::Gone => continue,
            // Nor since when.
            evidence::Lag::Leaving => {
                let is_it = |ruled: &&Ruled| {
                    let meta = &ruled.object.metadata;
                    ruled.rule.group_kind == kind && meta.namespace == namespace && meta.name == name
                };
                let ruled = std::iter::once(flipped).chain(all).find(is_it);
                if let Some((ruled, why)) = ruled.and_then(|ruled| Some((ruled, evidence::exclusion(ruled)?))) {
                    let excluded = format!("{} ({why})", scope::display(&ruled.rule.group_kind, &ruled.object));
                    if !survey.excluded.contains(&excluded) {
                        survey.excluded.push(excluded);
                    }
                    counted.insert((kind, namespace, name));
                }
                continue;
            }
        };
        survey.laggards.push(Laggard {
            kind: kind.to_string(),
            namespace,
            name,
            attestor,
            lag,
        });
    }
    // The look counts them, since for an echo they have to be asked a while longer.
    survey.objects = survey.objects.saturating_sub(counted.len());
    survey.laggards.extend(unruled.iter().map(|object| {
        let (kind, full) = object.split_once(' ').unwrap_or(("", object));
        let (namespace, name) = full.split_once('/').unwrap_or(("", full));
        Laggard {
            kind: kind.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            attestor: "?".to_owned(),
            lag: Lag::NotKnown,
        }
    }));
    survey
}

/// The object as it would stand after a flip to its present inputs that asks everybody.
fn as_if_flipped(rule: &KindRule, object: &ObjectView) -> ObjectView {
    let intent = Intent::of(rule, object);
    let mut object = object.clone();
    let stamp = Stamp {
        generation: 2,
        kind: rule.group_kind.to_string(),
        namespace: object.metadata.namespace.clone(),
        name: object.metadata.name.clone(),
        uid: object.metadata.uid.clone(),
        before: intent.clone(),
        after: intent,
        why: Why::Touched,
        object_generation: None,
        found_generation: None,
        at: String::new(),
        by: String::new(),
        reason: String::new(),
    };
    let Annotations(annotations) = object.metadata.annotations.get_or_insert_default();
    annotations.remove(OBSERVED_GENERATION);
    annotations.remove(ACKNOWLEDGEMENT);
    annotations.insert(GENERATION.to_owned(), stamp.generation.to_string());
    annotations.insert(ACKNOWLEDGED.to_owned(), PENDING.to_owned());
    annotations.insert(STAMP.to_owned(), serde_json::to_string(&stamp).unwrap_or_default());
    object
}
