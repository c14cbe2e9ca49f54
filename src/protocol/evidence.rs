//! When is it true that everybody has seen a flip? The decision to echo, and the memory that it rests on.
//!
//! One [`Tracker`] stands for one object that can be flipped. It is fed with what the watch cache shows
//! ([`Tracker::observe`], [`Tracker::take_baselines`]) and asked with consistent lists ([`Tracker::look`]). All of it is
//! memory of one process on a monotonic clock: losing it can only make an echo later.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{
    GroupKind, Moment,
    attestation::{Attestation, attest, claimed_generation, observed_generation},
    intent::{Intent, State},
    keys::{Evidence, Record, Stamp, Standing},
    lease::{Alive, Leases, Proof},
    mutant::{self, Mutant},
    object::ObjectView,
    rule::{AttestedBy, Attestor, InputId, InputRef, KindRule},
    scope::{self, Ruled},
};

/// What surrounds the objects that are looked at.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Whether there is a rule for a kind at all.
    pub has_rule: &'a (dyn Fn(&GroupKind) -> bool + Sync),
    /// Since when nothing has changed of an object that decides whether somebody answers for it: owners, labels,
    /// references, the key that says that it is managed elsewhere, what an attestor applies by. `None` where the watches
    /// have not shown this very state yet.
    pub unchanged_since: &'a (dyn Fn(&Ruled) -> Option<Moment> + Sync),
    /// Whether an object that is no member inherits from another object, and so (assumption 6 of `docs/protocol.md`) never
    /// was one.
    pub belongs_elsewhere: &'a (dyn Fn(&Ruled) -> bool + Sync),
    /// The kinds that objects of which may have been deleted as members.
    pub gone: &'a [Gone],
}

/// A kind whose objects can be members, and when one that may have been was last deleted.
#[derive(Debug, Clone)]
pub struct Gone {
    /// The rule of the kind.
    pub rule: Arc<KindRule>,
    /// When the watch has last shown that one is gone, or could have passed one over: when it began, or had a gap.
    pub since: Moment,
}

/// The webhook configuration as it stands: under `Fail`, and selecting the namespace in question. Where it does not stand
/// so there is none, since flips may pass unseen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Guard {
    /// Its uid, `metadata.generation` and whatever else tells one state of it from another.
    pub fingerprint: String,
    /// Since when this process has seen it stand as it does.
    pub since: Moment,
}

/// What does not depend on the object that is looked at.
#[derive(Debug, Clone, Copy)]
pub struct Ground<'a> {
    /// Now. Of a look: a moment before its first read was asked for, since what it shows may be as old as that.
    pub now: Moment,
    /// When this process began to watch.
    pub start: Moment,
    /// The webhook configuration, if it stands.
    pub guard: Option<&'a Guard>,
    /// The managers' Leases, as they were known at that moment.
    pub leases: &'a Leases,
}

/// What this process knows of an attestor's answer from a time when every view was known to have it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Baseline {
    answer: bool,
    guard: String,
    term: String,
}

/// (uid of the attesting object, attestor, input of the flipped object).
type BaselineKey = (String, String, InputId);

/// What this process remembers of one object that can be flipped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Tracker {
    uid: String,
    /// When this process first saw this very object.
    known_since: Option<Moment>,
    /// Which revision each attestor of the object had read, if any, at a time when no view of an earlier object of this name
    /// was left. One that has read more since has read it of this object.
    read: BTreeMap<String, Option<i64>>,
    /// The newest `resourceVersion` seen, where it is a number (KEP-5504 makes them comparable).
    version: Option<u64>,
    /// The standing stamp and when this process first saw it; `None` while there is none that is believed.
    stamp: Option<(Stamp, Moment)>,
    /// Since when the object is seen acknowledged, or without our keys.
    quiet_since: Option<Moment>,
    /// Members, and since when they are seen in this scope without a break.
    members: BTreeMap<String, Moment>,
    /// Objects that were members, and when they were first seen not to be.
    left: BTreeMap<String, Moment>,
    /// When a look last found that one who was known is not there any more.
    gone: Option<Moment>,
    baselines: BTreeMap<BaselineKey, Baseline>,
    /// The last generation that this process has echoed itself.
    echoed: Option<u64>,
    /// The members on the first list after the flip.
    first_list: Option<BTreeSet<String>>,
    /// What was missing at the last look, and since when it has not changed.
    stalled: Option<(BTreeSet<String>, Moment)>,
    /// The state of the webhook configuration under which this process has last seen condition and annotations agree.
    anchor: Option<String>,
}

/// One attestor that has to be waited for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Laggard {
    /// Group and kind of the object.
    pub kind: GroupKind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object; empty for [`Lag::Gone`].
    pub name: String,
    /// The attestor.
    pub attestor: String,
    /// What is the matter with it.
    pub lag: Lag,
}

/// Why an attestor has to be waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lag {
    /// It says nothing at all.
    Missing,
    /// It attests what was, not what is intended.
    Disagrees,
    /// It agrees, and only time can tell whether that is about this flip.
    Settling,
    /// It need not answer any more, and only time can tell whether its controller knows.
    Leaving,
    /// Objects of the kind may have been deleted, and only time can tell whether their controller knows.
    Gone,
}

/// What an acknowledgement has to wait for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Waiting {
    /// The attestors, owners before what they own.
    pub laggards: Vec<Laggard>,
    /// Referenced objects of a kind without a rule: `Kind.group namespace/name`.
    pub unruled: Vec<String>,
    /// What is not asked, and why.
    pub excluded: Vec<String>,
    /// How many objects are asked.
    pub objects: usize,
    /// Whether nothing has moved for the grace, and something says nothing at all.
    pub not_reporting: bool,
    /// When time alone may have changed the answer.
    pub retry_at: Option<Moment>,
}

/// What may be echoed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Echo {
    /// The stamp that is acknowledged. The write has to `test` it.
    pub stamp: Stamp,
    /// The state to acknowledge.
    pub state: State,
    /// The weakest evidence among the attestors.
    pub evidence: Evidence,
    /// How many objects were asked.
    pub objects: usize,
    /// The largest staleness bound that evidence rests on.
    pub bound: Option<Duration>,
    /// Whether a bound was counted without a Lease.
    pub lease_absent: bool,
    /// What was not asked, and why.
    pub excluded: Vec<String>,
    /// `metadata.generation` of the revision that is acknowledged: the one that was looked at, or the stamp's.
    pub object_generation: i64,
    baselines: Vec<(BaselineKey, Baseline)>,
}

/// Baselines that are missing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lacking {
    /// Objects of which a baseline can be taken, by uid, and how old the view of each may be.
    pub ready: BTreeMap<String, Moment>,
    /// When others may be ready.
    pub next: Option<Moment>,
}

impl Lacking {
    /// Whether `time` has passed for one of an object's answers.
    fn add(&mut self, uid: &str, time: Result<bool, Option<Moment>>, since: Moment, now: Moment, bound: Duration) {
        match time {
            Ok(_) => {
                let due = since.plus(bound);
                let view = self.ready.entry(uid.to_owned()).or_insert(due);
                *view = due.max(*view);
            }
            Err(at) => {
                let at = at.unwrap_or(now.plus(bound));
                self.next = self.next.into_iter().chain([at]).min();
            }
        }
    }
}

/// The outcome of a look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is nothing to acknowledge.
    Quiet,
    /// The keys are not believed, or the inputs are not those of the stamp: to be marked pending and stamped again.
    Irregular,
    /// Not yet.
    Wait(Waiting),
    /// Everybody has seen it.
    Echo(Box<Echo>),
}

impl Tracker {
    /// Nothing known yet of the object with this uid.
    #[must_use]
    pub fn new(uid: &str) -> Self {
        Self {
            uid: uid.to_owned(),
            ..Self::default()
        }
    }

    /// The object, as the cache (or a list) showed it at `now`.
    pub fn observe(&mut self, now: Moment, rule: &KindRule, object: &ObjectView) {
        if object.metadata.uid != self.uid {
            *self = Self::new(&object.metadata.uid);
        }
        // The cache may still show what a list has overtaken.
        let version = object.metadata.resource_version.parse::<u64>().ok();
        if version < self.version {
            return;
        }
        self.version = version;
        self.known_since.get_or_insert(now);
        let intent = Intent::of(rule, object);
        match Standing::of(&rule.group_kind, object) {
            Standing::Bare => {
                if self.stamp.take().is_some() {
                    self.forget();
                }
                self.quiet_since.get_or_insert(now);
            }
            Standing::Own(record) if record.stamp.after == intent => {
                let known = self.stamp.as_ref().map(|(stamp, _)| stamp);
                let known_already = known == Some(&record.stamp);
                if !known_already {
                    let follows =
                        known.map_or(0, |stamp| stamp.generation).checked_add(1) == Some(record.stamp.generation);
                    // A flip that was not seen while pending may have been a hasty one.
                    if (!follows || !record.is_clean()) && !mutant::on(Mutant::HastyBaseline) {
                        self.forget();
                    }
                    self.quiet_since = None;
                    self.first_list = None;
                    self.stalled = None;
                    self.stamp = Some((record.stamp.clone(), now));
                }
                if record.is_acknowledged(rule) {
                    if self.quiet_since.is_none() && self.echoed != Some(record.stamp.generation) {
                        // Another process has asked, and this one does not know whom.
                        self.forget_flipped(&record.stamp);
                    }
                    self.quiet_since.get_or_insert(now);
                } else if self.quiet_since.is_some() && known_already {
                    // Somebody took the acknowledgement back: everything counts from here.
                    self.forget();
                    self.stamp = Some((record.stamp.clone(), now));
                } else {
                    self.quiet_since = None;
                }
            }
            Standing::Own(_) | Standing::Foreign | Standing::Broken => {
                self.stamp = None;
                self.forget();
            }
        }
    }

    /// Drops what is known of the inputs that a flip has changed. Whoever was not asked about it may have missed it.
    fn forget_flipped(&mut self, stamp: &Stamp) {
        let changed = stamp.before.changed(&stamp.after);
        self.baselines.retain(|(_, _, input), _| !changed.contains(input));
    }

    fn forget(&mut self) {
        self.baselines.clear();
        self.quiet_since = None;
        self.first_list = None;
        self.stalled = None;
        self.anchor = None;
    }

    /// The members, as the cache showed them at `now`. One that is missing loses what is known of it.
    pub fn observe_members(&mut self, now: Moment, uids: &BTreeSet<String>) {
        let left = &mut self.left;
        self.members.retain(|uid, _| {
            let stays = uids.contains(uid);
            if !stays {
                left.insert(uid.clone(), now);
            }
            stays
        });
        for uid in uids {
            self.left.remove(uid);
            self.members.entry(uid.clone()).or_insert(now);
        }
        let (members, own) = (&self.members, &self.uid);
        self.baselines
            .retain(|(uid, _, _), _| uid == own || members.contains_key(uid));
    }

    /// The members on a list that was made after the flip was seen. Only the first one counts: what a resume lets
    /// controllers create does not delay its own acknowledgement.
    pub fn note_list(&mut self, uids: impl IntoIterator<Item = String>) {
        if self.first_list.is_none() {
            self.first_list = Some(uids.into_iter().collect());
        }
    }

    /// Whether the first list after the standing flip has been noted.
    #[must_use]
    pub fn has_first_list(&self) -> bool {
        self.first_list.is_some()
    }

    /// Takes baselines from a view that is known to be no older than `view`: at least the staleness bound after the
    /// process began, the object fell quiet, the member joined and the webhook configuration was enforced.
    pub fn take_baselines(&mut self, ground: &Ground<'_>, view: Moment, flipped: &Ruled, members: &[&Ruled]) {
        for ruled in std::iter::once(flipped).chain(members.iter().copied()) {
            self.take_baseline(ground, view, flipped, ruled);
        }
    }

    /// As [`Tracker::take_baselines`], for the one object that the view shows: `flipped` itself or a member.
    pub fn take_baseline(&mut self, ground: &Ground<'_>, view: Moment, flipped: &Ruled, ruled: &Ruled) {
        self.note_read(ground, view, ruled);
        let Some(guard) = ground.guard else { return };
        let Some(since) = self.settled_since(ground, guard, ruled) else {
            return;
        };
        let bound = ruled.rule.staleness_bound;
        for (attestor, input, answer) in self.answers(flipped, ruled) {
            let key = (ruled.object.metadata.uid.clone(), attestor.name.clone(), input);
            match answer {
                Some(answer) => {
                    if is_settled(attestor, ground, view, since, bound) || mutant::on(Mutant::NoWait) {
                        self.baselines
                            .insert(key, baseline(answer, guard, attestor, ground.leases));
                    }
                }
                None => {
                    self.baselines.remove(&key);
                }
            }
        }
    }

    /// Notes which revision the attestors of the object itself have read, unless that is known already.
    fn note_read(&mut self, ground: &Ground<'_>, view: Moment, ruled: &Ruled) {
        for (attestor, since) in self.unread(ground, ruled) {
            let bound = ruled.rule.staleness_bound;
            if is_settled(attestor, ground, view, since, bound) {
                let read = claimed_generation(attestor, &ruled.object);
                self.read.insert(attestor.name.clone(), read);
            }
        }
    }

    /// The attestors of the object itself of which it is not known what they had read, and since when this process knows it.
    fn unread<'a>(&self, ground: &Ground<'_>, ruled: &'a Ruled) -> Vec<(&'a Attestor, Moment)> {
        let Some(known) = self.known_since.filter(|_| ruled.object.metadata.uid == self.uid) else {
            return Vec::new();
        };
        let attestors = ruled.rule.attestors.iter();
        let missing =
            attestors.filter(|attestor| attestor.tells_generation() && !self.read.contains_key(&attestor.name));
        missing.map(|attestor| (attestor, known.max(ground.start))).collect()
    }

    /// Whose baselines are missing, as far as the cache tells; and when it is worth asking again for the rest.
    #[must_use]
    pub fn lacking(&self, ground: &Ground<'_>, flipped: &Ruled, members: &[&Ruled]) -> Lacking {
        let mut lacking = Lacking::default();
        let Some(guard) = ground.guard else { return lacking };
        for ruled in std::iter::once(flipped).chain(members.iter().copied()) {
            let Some(since) = self.settled_since(ground, guard, ruled) else {
                continue;
            };
            let bound = ruled.rule.staleness_bound;
            let uid = &ruled.object.metadata.uid;
            for (attestor, known) in self.unread(ground, ruled) {
                lacking.add(uid, time(attestor, ground, known, bound), known, ground.now, bound);
            }
            for (attestor, input, answer) in self.answers(flipped, ruled) {
                let Some(answer) = answer else { continue };
                let key = (uid.clone(), attestor.name.clone(), input);
                if self.baselines.get(&key) == Some(&baseline(answer, guard, attestor, ground.leases)) {
                    continue;
                }
                lacking.add(uid, time(attestor, ground, since, bound), since, ground.now, bound);
            }
        }
        lacking
    }

    /// Since when nothing has happened that an answer of this object could be mistaken about; `None`: it is not
    /// known yet.
    fn settled_since(&self, ground: &Ground<'_>, guard: &Guard, ruled: &Ruled) -> Option<Moment> {
        let enforced = enforced(guard, ruled.rule.staleness_bound);
        let base = ground.start.max(self.quiet_since?).max(enforced);
        let uid = &ruled.object.metadata.uid;
        if *uid == self.uid {
            Some(base)
        } else {
            self.members.get(uid).map(|joined| base.max(*joined))
        }
    }

    /// What every attestor of an object says of every input of the flipped one, where it says it clearly.
    fn answers<'a>(&self, flipped: &Ruled, ruled: &'a Ruled) -> Vec<(&'a Attestor, InputId, Option<bool>)> {
        let own = ruled.object.metadata.uid == self.uid;
        let intent = Intent::of(&flipped.rule, &flipped.object);
        let inputs = asked_of(flipped, own, None);
        let mut answers = Vec::new();
        for attestor in &ruled.rule.attestors {
            for input in &inputs {
                // One that does not answer at present may find something old when it does again.
                let asked = attestor.applies(&ruled.object) && attestor.answers_for(&reference(own, input));
                let answer = if asked {
                    answer(attestor, ruled, own, input, &intent, &flipped.rule).clear()
                } else {
                    None
                };
                answers.push((attestor, input.clone(), answer));
            }
        }
        answers
    }

    /// Decides, from lists that were made after the flip was seen: `flipped` first, then `all`, owners before what they
    /// own. What `flipped` shows has to be [observed](Self::observe) first, at a moment after it was read; a flip that was
    /// not is not decided.
    pub fn look(&mut self, ground: &Ground<'_>, flipped: &Ruled, all: &[Ruled], around: &Surroundings<'_>) -> Verdict {
        let intent = Intent::of(&flipped.rule, &flipped.object);
        let record = match Standing::of(&flipped.rule.group_kind, &flipped.object) {
            Standing::Bare => return Verdict::Quiet,
            Standing::Own(record) if record.stamp.after == intent => record,
            Standing::Own(_) | Standing::Foreign | Standing::Broken => return Verdict::Irregular,
        };
        if record.is_acknowledged(&flipped.rule) {
            return Verdict::Quiet;
        }
        // A view that has been overtaken decides nothing.
        let Some((_, first_seen)) = self.stamp.clone().filter(|(stamp, _)| *stamp == record.stamp) else {
            return Verdict::Quiet;
        };

        let clean = record.is_clean();
        let changed = record.stamp.before.changed(&record.stamp.after);
        let only = (clean || mutant::on(Mutant::HastyNarrow)).then_some(&changed);
        let inherited = asked_of(flipped, false, only);
        let scope::Members { mut members, unruled } = if inherited.is_empty() {
            scope::Members::default()
        } else {
            scope::members(&flipped.object, &flipped.rule, all, around.has_rule)
        };
        let mut leavers = Vec::new();
        // A list of nobody, because nobody was asked, is no list: it tells neither who is there nor who is gone.
        if !inherited.is_empty() || mutant::on(Mutant::ForgetLeavers) {
            let is_there = |uid: &String| all.iter().any(|ruled| ruled.object.metadata.uid == *uid);
            // What the watch has yet to show, and what belonged to nobody it could tell.
            if self.left.keys().chain(self.members.keys()).any(|uid| !is_there(uid)) {
                self.gone = Some(ground.now);
            }
            self.left.retain(|uid, _| is_there(uid));
        }
        if !inherited.is_empty() {
            if !mutant::on(Mutant::LeftAtOnce) {
                leavers = self.leavers(&members, all, around);
            }
            let asked = members
                .iter()
                .chain(leavers.iter().filter(|_| !mutant::on(Mutant::ReturnUnasked)));
            self.note_list(asked.map(|ruled| ruled.object.metadata.uid.clone()));
        }
        let pauses = inherited.iter().any(|input| intent.has(input));
        if (!pauses || mutant::on(Mutant::FirstListPause))
            && let Some(first) = &self.first_list
        {
            members.retain(|ruled| first.contains(&ruled.object.metadata.uid));
        }

        let mut tally = Tally::default();
        if let Some(guard) = ground.guard.filter(|_| mutant::on(Mutant::UnaskedBaseline)) {
            for ruled in all {
                for (attestor, input) in ruled.rule.attestors.iter().zip(asked_of(flipped, false, None)) {
                    let said = answer(attestor, ruled, false, &input, &record.stamp.after, &flipped.rule).clear();
                    let key = (ruled.object.metadata.uid.clone(), attestor.name.clone(), input);
                    let taken = said.map(|said| (key, baseline(said, guard, attestor, ground.leases)));
                    tally.baselines.extend(taken);
                }
            }
        }
        let question = Question {
            ground,
            flipped,
            record: &record,
            clean,
            first_seen,
        };
        let own_inputs = asked_of(flipped, true, only);
        self.ask(
            &question,
            flipped,
            &own_inputs,
            (around.unchanged_since)(flipped),
            false,
            &mut tally,
        );
        for ruled in members {
            self.ask(
                &question,
                ruled,
                &inherited,
                (around.unchanged_since)(ruled),
                false,
                &mut tally,
            );
        }
        for ruled in leavers {
            let uid = &ruled.object.metadata.uid;
            let left = self.left.get(uid).copied().unwrap_or_default();
            let since = (around.unchanged_since)(ruled)
                .filter(|_| !self.members.contains_key(uid))
                .map(|since| since.max(left));
            self.ask(&question, ruled, &inherited, since, true, &mut tally);
        }
        if pauses && !mutant::on(Mutant::GoneAtOnce) {
            self.ask_for_the_gone(&question, &inherited, around.gone, &mut tally);
        }
        if tally.evidence.is_none() && tally.laggards.is_empty() {
            // Nobody is left to ask: only time can answer.
            let bound = flipped.rule.staleness_bound;
            let due = first_seen.plus(bound);
            if ground.now < due {
                tally.laggards.push(laggard(flipped, "nobody", Lag::Leaving));
                tally.retry_at = Some(due);
            } else {
                tally.evidence = Some(Evidence::Settled);
                tally.bound = Some(bound);
            }
        }
        if tally.laggards.is_empty() && unruled.is_empty() {
            // The revision that was looked at may hold a pair of flips that no webhook saw, unless the configuration stands
            // as it did before this flip. Then the least that the stamp says is acknowledged, and nothing above it.
            let looked = flipped.object.metadata.generation.unwrap_or_default();
            let object_generation = if self.may_raise(ground.guard) || mutant::on(Mutant::LookedGeneration) {
                looked
            } else {
                looked.min(record.stamp.least_generation())
            };
            return Verdict::Echo(Box::new(Echo {
                state: intent.state(&flipped.rule),
                stamp: record.stamp,
                evidence: tally.evidence.unwrap_or(Evidence::Attested),
                objects: tally.objects,
                bound: tally.bound,
                lease_absent: tally.lease_absent,
                excluded: tally.excluded.into_iter().collect(),
                object_generation,
                baselines: tally.baselines,
            }));
        }
        let missing: BTreeSet<String> = tally
            .laggards
            .iter()
            .map(|l| format!("{:?} {} {}/{} {}", l.lag, l.kind, l.namespace, l.name, l.attestor))
            .chain(unruled.iter().cloned())
            .collect();
        let since = match self.stalled.take() {
            Some((known, since)) if known == missing => since,
            _ => ground.now,
        };
        self.stalled = Some((missing, since));
        let silent = !unruled.is_empty() || tally.laggards.iter().any(|l| l.lag == Lag::Missing);
        let due = since.plus(flipped.rule.grace);
        Verdict::Wait(Waiting {
            not_reporting: silent && ground.now >= due,
            retry_at: tally
                .retry_at
                .into_iter()
                .chain((silent && ground.now < due).then_some(due))
                .min(),
            laggards: tally.laggards,
            unruled: unruled.into_iter().collect(),
            excluded: tally.excluded.into_iter().collect(),
            objects: tally.objects,
        })
    }

    /// Those who are no members, and whose controllers may yet take them for such: they were members when this process last
    /// saw them, or have left before it began, or without its notice.
    fn leavers<'a>(&self, members: &[&Ruled], all: &'a [Ruled], around: &Surroundings<'_>) -> Vec<&'a Ruled> {
        let members: BTreeSet<&str> = members.iter().map(|ruled| ruled.object.metadata.uid.as_str()).collect();
        all.iter()
            .filter(|ruled| {
                let uid = &ruled.object.metadata.uid;
                let is_known = self.left.contains_key(uid) || self.members.contains_key(uid);
                let is_other = *uid != self.uid && ruled.rule.inherits && !members.contains(uid.as_str());
                is_other && (is_known || !mutant::on(Mutant::KnownLeavers) && !(around.belongs_elsewhere)(ruled))
            })
            .collect()
    }

    /// A controller that stands still works on what it saw last, whatever has become of it: so those of what may have been
    /// deleted have to know that, before a pause is acknowledged. A resume makes nobody work on what is not there.
    fn ask_for_the_gone(&self, question: &Question<'_>, asked: &[InputId], gone: &[Gone], tally: &mut Tally) {
        for Gone { rule, since } in gone {
            let since = self.gone.map_or(*since, |gone| gone.max(*since));
            for attestor in &rule.attestors {
                let answers = |input| attestor.answers_for(&reference(false, input));
                if attestor.by == AttestedBy::None || !asked.iter().any(answers) {
                    continue;
                }
                if let Err(at) = time(attestor, question.ground, since, rule.staleness_bound) {
                    tally.retry_at = tally.retry_at.into_iter().chain(at).min();
                    tally.laggards.push(Laggard {
                        kind: rule.group_kind.clone(),
                        namespace: String::new(),
                        name: String::new(),
                        attestor: attestor.name.clone(),
                        lag: Lag::Gone,
                    });
                }
            }
        }
    }

    /// Asks the attestors of one object. Since `since` nothing has changed that says who has to answer for it; `left`: it
    /// is no member any more.
    fn ask(
        &self,
        question: &Question<'_>,
        ruled: &Ruled,
        asked: &[InputId],
        since: Option<Moment>,
        left: bool,
        tally: &mut Tally,
    ) {
        let Question {
            ground,
            flipped,
            record,
            clean,
            first_seen,
        } = *question;
        let (object, rule) = (&ruled.object, &ruled.rule);
        let own = object.metadata.uid == self.uid;
        let exclusion = exclusion(ruled);
        let mut is_asked = exclusion.is_none() && !left;
        for attestor in &rule.attestors {
            let asked: Vec<&InputId> = asked
                .iter()
                .filter(|input| attestor.answers_for(&reference(own, input)))
                .collect();
            if asked.is_empty() {
                continue;
            }
            let applies = attestor.applies(object);
            if attestor.by == AttestedBy::None {
                if applies && exclusion.is_none() && !left {
                    tally.excluded.insert(format!(
                        "{} of every {} (attestedBy: none)",
                        attestor.name, rule.group_kind
                    ));
                }
                continue;
            }
            // Whoever need not answer has to know that: a controller that stands still may see it as it was before.
            let mut leaving = None;
            if exclusion.is_some() || left || !applies {
                let knows = match since {
                    Some(since) => time(attestor, ground, since, rule.staleness_bound),
                    None => Err(None),
                };
                match knows {
                    Err(at) if !mutant::on(Mutant::LeftAtOnce) => leaving = Some(at),
                    _ => continue,
                }
                is_asked = true;
            }
            let answers: Vec<(&InputId, Attestation)> = asked
                .into_iter()
                .map(|input| {
                    (
                        input,
                        answer(attestor, ruled, own, input, &record.stamp.after, &flipped.rule),
                    )
                })
                .collect();
            let mut lag = |lag| {
                let lag = leaving.map_or(lag, |at| {
                    tally.retry_at = tally.retry_at.into_iter().chain(at).min();
                    Lag::Leaving
                });
                tally.laggards.push(laggard(ruled, &attestor.name, lag));
            };
            if answers.iter().any(|(_, a)| *a == Attestation::Missing) {
                lag(Lag::Missing);
                continue;
            }
            if answers
                .iter()
                .any(|(input, a)| !a.agrees(record.stamp.after.has(input)))
            {
                lag(Lag::Disagrees);
                continue;
            }
            let alternated = (clean || mutant::on(Mutant::HastyBaseline))
                && answers
                    .iter()
                    .any(|(input, a)| self.alternated(ground, ruled, attestor, input, *a, record));
            let attested = alternated
                || (clean && own && self.has_read(attestor, object, &record.stamp))
                || mutant::on(Mutant::FaceValue);
            if attested {
                tally.evidence.get_or_insert(Evidence::Attested);
            } else {
                match time(attestor, ground, first_seen, rule.staleness_bound) {
                    Ok(lease_absent) => {
                        tally.evidence = Some(Evidence::Settled);
                        tally.bound = tally.bound.max(Some(rule.staleness_bound));
                        tally.lease_absent |= lease_absent;
                    }
                    Err(retry_at) => {
                        lag(Lag::Settling);
                        tally.retry_at = tally.retry_at.into_iter().chain(retry_at).min();
                        continue;
                    }
                }
            }
            // Where the configuration has stood only since after this flip, others may have passed unseen on top of it,
            // and the answer may be about one of those.
            if let Some(guard) = ground.guard
                && (alternated
                    || time(
                        attestor,
                        ground,
                        enforced(guard, rule.staleness_bound),
                        rule.staleness_bound,
                    )
                    .is_ok())
            {
                tally.baselines.extend(answers.iter().filter_map(|(input, a)| {
                    let key = (object.metadata.uid.clone(), attestor.name.clone(), (*input).clone());
                    Some((key, baseline(a.clear()?, guard, attestor, ground.leases)))
                }));
            }
        }
        if is_asked {
            tally.objects += 1;
        } else if let Some(why) = exclusion {
            tally
                .excluded
                .insert(format!("{} ({why})", scope::display(&rule.group_kind, object)));
        }
    }

    /// Whether the answer has changed since a time when every view was known to have the old one.
    fn alternated(
        &self,
        ground: &Ground<'_>,
        ruled: &Ruled,
        attestor: &Attestor,
        input: &InputId,
        attestation: Attestation,
        record: &Record,
    ) -> bool {
        let (before, after) = (record.stamp.before.has(input), record.stamp.after.has(input));
        let key = (ruled.object.metadata.uid.clone(), attestor.name.clone(), input.clone());
        let Some(guard) = ground.guard else { return false };
        before != after
            && attestation.clear() == Some(after)
            && (mutant::on(Mutant::NoBaseline)
                || self
                    .baselines
                    .get(&key)
                    .is_some_and(|baseline| *baseline == self::baseline(before, guard, attestor, ground.leases)))
    }

    /// Whether the attestor says that it has read the revision which the flip made, and cannot mean that of an earlier object
    /// of this name.
    fn has_read(&self, attestor: &Attestor, object: &ObjectView, stamp: &Stamp) -> bool {
        let Some(made) = stamp.object_generation else {
            return false;
        };
        let is_new = match self.read.get(&attestor.name) {
            Some(before) => before.is_none_or(|before| before < made),
            None => mutant::on(Mutant::FormerObject),
        };
        is_new && observed_generation(attestor, object).is_some_and(|observed| observed >= made)
    }

    /// The echo was stored. Every answer that was evidence in it is a baseline from now on.
    pub fn echoed(&mut self, now: Moment, echo: &Echo) {
        if self.stamp.as_ref().is_some_and(|(stamp, _)| *stamp == echo.stamp) {
            self.forget_flipped(&echo.stamp);
            self.baselines.extend(echo.baselines.iter().cloned());
            self.echoed = Some(echo.stamp.generation);
            self.quiet_since.get_or_insert(now);
            self.stalled = None;
        }
    }

    /// How many baselines are held.
    #[must_use]
    pub fn baselines(&self) -> usize {
        self.baselines.len()
    }

    /// Whether a condition that a spec edit left behind may be raised to the new `metadata.generation`: the webhook
    /// configuration stands as it did when condition and annotations were last seen to agree, so no flip, nor a pair of
    /// them, can have passed unseen.
    #[must_use]
    pub fn may_raise(&self, guard: Option<&Guard>) -> bool {
        mutant::on(Mutant::RaiseAnyway) || guard.is_some_and(|guard| self.anchor.as_ref() == Some(&guard.fingerprint))
    }

    /// Condition and annotations agree at the present `metadata.generation`, as a read has shown that was asked for after
    /// `now` and after the webhook configuration was read. While the API server may not enforce that yet, nothing follows.
    pub fn anchored(&mut self, now: Moment, rule: &KindRule, guard: Option<&Guard>) {
        self.anchor = guard
            .filter(|guard| now >= enforced(guard, rule.staleness_bound))
            .map(|guard| guard.fingerprint.clone());
    }
}

#[cfg(feature = "mutants")]
impl Tracker {
    /// For the model checker: moves every moment that is remembered.
    pub fn map_times(&mut self, f: impl Fn(Moment) -> Moment) {
        let stamp = self.stamp.iter_mut().map(|(_, at)| at);
        let stalled = self.stalled.iter_mut().map(|(_, at)| at);
        let all = stamp
            .chain(stalled)
            .chain(&mut self.known_since)
            .chain(&mut self.quiet_since)
            .chain(&mut self.gone)
            .chain(self.members.values_mut())
            .chain(self.left.values_mut());
        for at in all {
            *at = f(*at);
        }
    }

    /// For the model checker: forgets since when nothing has moved, which the wording of a condition alone depends on.
    pub fn forget_progress(&mut self) {
        self.stalled = None;
    }
}

/// Since when no flip passes unseen: the API server enforces a webhook configuration from its own cache of it, which is
/// assumed to be no older than the bound either.
fn enforced(guard: &Guard, bound: Duration) -> Moment {
    if mutant::on(Mutant::GuardYoung) {
        guard.since
    } else {
        guard.since.plus(bound)
    }
}

/// What a look asks about.
#[derive(Clone, Copy)]
struct Question<'a> {
    ground: &'a Ground<'a>,
    flipped: &'a Ruled,
    record: &'a Record,
    clean: bool,
    first_seen: Moment,
}

/// Why nobody has to answer for an object, if so. An echo leaves it out only when its controller is known to know.
#[must_use]
pub fn exclusion(ruled: &Ruled) -> Option<String> {
    let elsewhere = ruled.rule.managed_elsewhere.as_ref();
    if let Some(key) = elsewhere.filter(|key| ruled.object.metadata.annotation(key).is_some()) {
        return Some(key.clone());
    }
    ruled
        .rule
        .waits_for_owner(&ruled.object)
        .then(|| "has no owner yet".to_owned())
}

#[derive(Default)]
struct Tally {
    laggards: Vec<Laggard>,
    excluded: BTreeSet<String>,
    objects: usize,
    evidence: Option<Evidence>,
    bound: Option<Duration>,
    lease_absent: bool,
    retry_at: Option<Moment>,
    baselines: Vec<(BaselineKey, Baseline)>,
}

fn laggard(ruled: &Ruled, attestor: &str, lag: Lag) -> Laggard {
    Laggard {
        kind: ruled.rule.group_kind.clone(),
        namespace: ruled.object.metadata.namespace.clone(),
        name: ruled.object.metadata.name.clone(),
        attestor: attestor.to_owned(),
        lag,
    }
}

/// The inputs of the flipped object to ask for: of the object itself all, of a member the inherited ones; `only` those
/// that changed, if the flip was clean. A hasty one asks everybody, for every input.
#[must_use]
pub fn asked_of(flipped: &Ruled, own: bool, only: Option<&BTreeSet<InputId>>) -> Vec<InputId> {
    let concerned = flipped.rule.inputs.iter().filter(|input| own || input.inherited);
    concerned
        .filter(|input| only.is_none_or(|only| only.contains(&input.id)))
        .map(|input| input.id.clone())
        .collect()
}

/// Whether a look at this object has to list anybody else: it is pending, and an input that others inherit is asked for.
#[must_use]
pub fn asks_members(flipped: &Ruled) -> bool {
    match Standing::of(&flipped.rule.group_kind, &flipped.object) {
        Standing::Own(record) if !record.is_acknowledged(&flipped.rule) => {
            let changed = record.stamp.before.changed(&record.stamp.after);
            !asked_of(flipped, false, record.is_clean().then_some(&changed)).is_empty()
        }
        _ => false,
    }
}

/// An input of the flipped object, as an attestor of that object or of a member sees it.
#[must_use]
pub fn reference(own: bool, input: &InputId) -> InputRef {
    if own {
        InputRef::Own(input.clone())
    } else {
        InputRef::Inherited(input.clone())
    }
}

/// What an attestor of `ruled` says of an input of the flipped object, whose intent is `intent`.
#[must_use]
pub fn answer(
    attestor: &Attestor,
    ruled: &Ruled,
    own: bool,
    input: &InputId,
    intent: &Intent,
    flipped_rule: &KindRule,
) -> Attestation {
    let inherits = |id: &InputId| flipped_rule.input(id).is_some_and(|input| input.inherited);
    let (together, causes) = if own {
        // What the flipped object may itself inherit is not known here, so more than its own inputs can be the cause.
        (
            !intent.is_empty(),
            ruled.rule.inputs.len() + usize::from(ruled.rule.inherits),
        )
    } else {
        let inherited = flipped_rule.inputs.iter().filter(|input| input.inherited).count();
        let on = intent.0.iter().any(inherits) || !Intent::of(&ruled.rule, &ruled.object).is_empty();
        (on, ruled.rule.inputs.len() + inherited)
    };
    attest(attestor, &ruled.object, &reference(own, input), together, causes)
}

fn baseline(answer: bool, guard: &Guard, attestor: &Attestor, leases: &Leases) -> Baseline {
    Baseline {
        answer,
        guard: if mutant::on(Mutant::GuardReturned) {
            String::new()
        } else {
            guard.fingerprint.clone()
        },
        term: attestor
            .lease
            .as_ref()
            .filter(|_| !mutant::on(Mutant::LeaseHands))
            .map(|lease| leases.term(lease))
            .unwrap_or_default(),
    }
}

/// Whether the bound has passed since `since` for this attestor, and had in what the view shows.
fn is_settled(attestor: &Attestor, ground: &Ground<'_>, view: Moment, since: Moment, bound: Duration) -> bool {
    view >= since.plus(bound) && time(attestor, ground, since, bound).is_ok()
}

/// Whether the bound has passed since `since` for this attestor, and then whether it was counted without a Lease; else
/// when it may be worth asking again (`None`: not before the Lease moves).
fn time(attestor: &Attestor, ground: &Ground<'_>, since: Moment, bound: Duration) -> Result<bool, Option<Moment>> {
    let passed = |until: Moment, since: Moment| {
        let due = since.plus(bound);
        if until >= due { Ok(()) } else { Err(Some(due)) }
    };
    match attestor.lease.as_ref().map(|lease| ground.leases.proof(lease)) {
        None => passed(ground.now, since).map(|()| false),
        Some(Proof::Absent) => passed(ground.now, since).map(|()| true),
        // The last renewal counts, not now: a manager that froze after it has seen nothing since.
        Some(Proof::Alive(Alive { since: alive, until })) => passed(until, since.max(alive)).map(|()| false),
        Some(Proof::Unknown | Proof::Silent) => Err(None),
    }
}
