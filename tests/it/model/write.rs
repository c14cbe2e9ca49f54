//! The API server: what a write makes of an object, with the webhooks called (twice) in between.

use pausegen::protocol::{
    condition,
    evidence::Echo,
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, GENERATION, OBSERVED_GENERATION, PENDING, STAMP, Stamp, TOUCH,
        Why,
    },
    mutant::{self, Mutant},
    object::{Condition, ObjectView},
    stamp::{self, Concern, Decision, Policies, Write, Writer},
};

use super::{
    config::{Config, Reached},
    memo::memo,
    object::{CLUSTER, Parts, Paused, Shared, Way, input},
    world::{World, incarnation},
};

/// What a write changes.
#[derive(Debug, Clone, Hash)]
pub(crate) enum Change {
    Flip {
        field: bool,
        annotation: bool,
    },
    Way(Way, bool),
    /// A person writes our word.
    Forge(&'static str),
    /// All annotations of another object, with force.
    Annotations(Shared<ObjectView>),
    Echo(Shared<Echo>, u8),
    Pending,
    Touch,
}

/// What was stamped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamped {
    clean: bool,
    why: Why,
    changed: [bool; 2],
}

/// What became of a write.
#[derive(Debug, Clone)]
struct Outcome {
    object: Shared<ObjectView>,
    stamped: Option<Stamped>,
    put_back: bool,
}

/// What the webhooks are asked with.
#[derive(Debug, Clone, Copy, Hash)]
struct Admission {
    slot: usize,
    flip: bool,
    keys: bool,
    by_companion: bool,
}

fn change(object: &mut ObjectView, slot: usize, what: &Change) {
    match what {
        Change::Flip { field, annotation } => {
            for (input, flip) in [*field, *annotation].into_iter().enumerate() {
                if flip {
                    object.set(input, !object.on(input));
                }
            }
        }
        Change::Way(way, there) => object.set_way(*way, *there),
        Change::Forge(word) => object.set_key(ACKNOWLEDGED, Some(word)),
        Change::Annotations(source) => object.metadata.annotations = source.metadata.annotations.clone(),
        Change::Echo(echo, uid) => {
            let acknowledgement = Acknowledgement {
                generation: echo.stamp.generation,
                uid: super::world::uid(slot, *uid),
                evidence: echo.evidence,
                objects: echo.objects,
                bound_seconds: echo.bound.map(|bound| bound.as_secs()),
                lease: if echo.lease_absent { "absent" } else { "" }.to_owned(),
                excluded: echo.excluded.clone(),
                object_generation: echo.object_generation,
                at: String::new(),
            };
            object.set_key(OBSERVED_GENERATION, Some(&echo.stamp.generation.to_string()));
            object.set_key(ACKNOWLEDGED, Some(echo.state.as_str()));
            object.set_key(ACKNOWLEDGEMENT, Some(&serde_json::to_string(&acknowledgement).unwrap()));
        }
        Change::Pending => object.set_key(ACKNOWLEDGED, Some(PENDING)),
        Change::Touch => object.set_key(TOUCH, Some("")),
    }
}

fn number(object: &ObjectView, key: &str) -> Option<u64> {
    object.key(key).and_then(|text| text.parse().ok())
}

/// A write through the webhooks. An `Err` is what must never be.
fn admit(
    config: &Config,
    ask: Admission,
    old: Option<&ObjectView>,
    mut new: ObjectView,
) -> Result<Outcome, &'static str> {
    let rule = &config.rules.0[ask.slot];
    let concern = stamp::concern(rule, old, &new);
    let called = match concern {
        Concern::None => false,
        Concern::Flip => ask.flip,
        Concern::Keys => ask.keys,
    };
    let mut stamped = None;
    let mut put_back = false;
    if called {
        let answer_to = |new: &ObjectView| {
            let write = Write {
                rule,
                old,
                new,
                writer: Writer {
                    recorded: "",
                    is_companion: ask.by_companion,
                    is_exempt: false,
                },
                at: jiff::Timestamp::UNIX_EPOCH,
                policies: Policies::default(),
            };
            (stamp::mutate(&write), stamp::validate(&write))
        };
        let answer = answer_to(&new).0;
        for (key, value) in &answer.edits {
            new.set_key(key, value.as_deref());
        }
        let (again, valid) = answer_to(&new);
        if !again.edits.is_empty() {
            return Err("called twice, the webhook answers differently");
        }
        if valid.is_err() {
            return Err("the validating webhook denies what the mutating one made");
        }
        put_back = matches!(answer.decision, Decision::PutBack) && !ask.by_companion;
        if let Decision::Stamped { stamp, .. } = &answer.decision {
            stamped = Some(numbered(old, &new, stamp)?);
        }
        if !mutant::on(Mutant::NoPutBack) {
            one_stamp_a_flip(concern, ask, old, &new, stamped.is_some())?;
        }
    }
    if let Some(old) = old
        && new.on(0) != old.on(0)
    {
        new.set_generation(old.generation() + 1);
    }
    Ok(Outcome {
        object: Shared::new(new),
        stamped,
        put_back,
    })
}

/// Pause generations only rise, by one for a flip after what was believed, and an observed one is never ahead.
fn numbered(old: Option<&ObjectView>, new: &ObjectView, stamp: &Stamp) -> Result<Stamped, &'static str> {
    let before = old.and_then(|old| number(old, GENERATION));
    if before >= Some(stamp.generation) {
        return Err("a pause generation that does not grow");
    }
    if number(new, GENERATION) != Some(stamp.generation) {
        return Err("a stamp that is not the pause generation");
    }
    let observed = number(new, OBSERVED_GENERATION);
    if observed >= Some(stamp.generation) {
        return Err("a flip that is born acknowledged");
    }
    let clean = observed.map(|k| k + 1) == Some(stamp.generation);
    Ok(Stamped {
        clean,
        why: stamp.why,
        changed: [0, 1].map(|id| stamp.before.has(&input(id)) != stamp.after.has(&input(id))),
    })
}

/// None lost, none forged: a flip is stamped, and nothing else changes what the webhook and the companion have written.
fn one_stamp_a_flip(
    concern: Concern,
    ask: Admission,
    old: Option<&ObjectView>,
    new: &ObjectView,
    stamped: bool,
) -> Result<(), &'static str> {
    let Some(old) = old else {
        let unasked = concern == Concern::Keys && !stamped;
        // What was restored, deleted and restored again within the time of a call cannot be told from our own answer to
        // this very write. It is pending, and says nothing of anybody's echo.
        let claims_nothing = new.key(ACKNOWLEDGED) == Some(PENDING)
            && new.key(OBSERVED_GENERATION).is_none()
            && new.key(ACKNOWLEDGEMENT).is_none();
        return if unasked && new.key(STAMP).is_some() && !claims_nothing {
            Err("a new object with the keys of another")
        } else {
            Ok(())
        };
    };
    if stamped {
        return Ok(());
    }
    if concern == Concern::Flip {
        return Err("a flip without a stamp");
    }
    let same = |key| old.key(key) == new.key(key);
    if !same(GENERATION) || !same(STAMP) {
        return Err("a stamp without a flip");
    }
    let of_the_echo = [OBSERVED_GENERATION, ACKNOWLEDGED, ACKNOWLEDGEMENT];
    if !ask.by_companion && !of_the_echo.iter().all(|key| same(key)) {
        return Err("an echo that the companion has not written");
    }
    if number(new, OBSERVED_GENERATION) < number(old, OBSERVED_GENERATION) {
        return Err("an observed generation that falls");
    }
    Ok(())
}

impl World {
    fn admission(&self, slot: usize, by_companion: bool) -> Admission {
        Admission {
            slot,
            flip: self.hook.enforced,
            keys: self.hook.keys,
            by_companion,
        }
    }

    /// A write of a person, or of the companion: through the webhooks, to the main resource.
    pub(crate) fn write(&mut self, config: &Config, slot: usize, by_companion: bool, what: &Change) {
        let Some(old) = self.slots[slot].stored.clone() else {
            return;
        };
        let ask = self.admission(slot, by_companion);
        let outcome = memo(("write", ask, &old, what), || {
            let mut new = (*old).clone();
            change(&mut new, slot, what);
            let ways = [Way::Label, Way::Owner, Way::Here, Way::Attestor];
            if ways.iter().any(|way| new.has(*way) != old.has(*way)) {
                new.metadata.resource_version = (old.turns() + 1).to_string();
            }
            admit(config, ask, Some(&old), new)
        });
        self.stored(config, slot, Some(&old), outcome);
    }

    /// Creates an object.
    pub(crate) fn create(&mut self, config: &Config, slot: usize, object: &Shared<ObjectView>) {
        self.slots[slot].scope = 0;
        let ask = self.admission(slot, false);
        let incarnation = self.slots[slot].uid + 1;
        let outcome = memo(("create", ask, incarnation, object), || {
            let mut outcome = admit(config, ask, None, (**object).clone())?;
            let mut object = (*outcome.object).clone();
            object.metadata.uid = super::world::uid(slot, incarnation);
            object.set_generation(1);
            outcome.object = Shared::new(object);
            Ok(outcome)
        });
        self.slots[slot].uid = incarnation;
        self.stored(config, slot, None, outcome);
    }

    fn stored(
        &mut self,
        config: &Config,
        slot: usize,
        old: Option<&Shared<ObjectView>>,
        outcome: Result<Outcome, &'static str>,
    ) {
        let outcome = match outcome {
            Ok(outcome) => outcome,
            Err(what) => {
                self.bad.get_or_insert(what);
                return;
            }
        };
        for input in 0..2 {
            let before = old.map(|old| old.on(input));
            // A new object is as good as a flip: views of its predecessor are from before.
            if before != Some(outcome.object.on(input)) {
                self.slots[slot].flips[input] += 1;
            }
        }
        if outcome.put_back {
            config.reached(Reached::PutBack);
        }
        if let Some(stamped) = outcome.stamped {
            for input in 0..2 {
                if !stamped.clean || stamped.changed[input] {
                    self.slots[slot].stamped[input] = self.slots[slot].flips[input];
                }
            }
            self.slots[slot].at_stamp = self.are_there(config);
            config.reached(if stamped.clean { Reached::Clean } else { Reached::Hasty });
            match stamped.why {
                Why::Missed => config.reached(Reached::Repaired),
                Why::Restored => config.reached(Reached::Restored),
                Why::Created => config.reached(Reached::Created),
                Why::Touched => config.reached(Reached::Touched),
                Why::Flip => {}
            }
        }
        if old != Some(&outcome.object) {
            self.store(config, slot, Some(outcome.object));
        }
    }

    /// A controller writes its condition, to the status subresource.
    pub(crate) fn write_paused(&mut self, config: &Config, slot: usize, paused: Paused) {
        let Some(old) = self.slots[slot].stored.clone() else {
            return;
        };
        let new = memo(("paused", &old, paused), || {
            let mut new = (*old).clone();
            new.set_paused(paused);
            Shared::new(new)
        });
        if new != old {
            self.store(config, slot, Some(new));
        }
    }

    /// The companion writes its condition.
    pub(crate) fn write_condition(&mut self, config: &Config, slot: usize, projection: &condition::Projection) {
        let Some(old) = self.slots[slot].stored.clone() else {
            return;
        };
        if condition::stored(&old).is_some_and(|stored| projection.is_in(stored)) {
            return;
        }
        let mut new = (*old).clone();
        let is_pending = projection.status == "Unknown";
        new.set_condition(Condition {
            type_: condition::TYPE.to_owned(),
            status: projection.status.to_owned(),
            reason: projection.reason.to_owned(),
            // Nothing goes by the text of a pending one, and it differs with whoever was late at the first look.
            message: if is_pending {
                String::new()
            } else {
                projection.message.clone()
            },
            observed_generation: Some(projection.observed_generation),
            last_transition_time: None,
        });
        let new = Shared::new(new);
        if new != old {
            self.store(config, slot, Some(new));
        }
    }

    /// A spec edit that is no flip.
    pub(crate) fn edit(&mut self, config: &Config, slot: usize) {
        if let Some(old) = self.slots[slot].stored.clone() {
            let mut new = (*old).clone();
            new.set_generation(old.generation() + 1);
            self.store(config, slot, Some(Shared::new(new)));
        }
    }

    /// Whether the `test`s of an echo pass: uid, generation and stamp.
    pub(crate) fn passes(&self, slot: usize, echo: &Shared<Echo>, uid: u8) -> (bool, bool) {
        let Some(stored) = &self.slots[slot].stored else {
            return (false, false);
        };
        memo(("passes", stored, echo, uid), || {
            let same_stamp = number(stored, GENERATION) == Some(echo.stamp.generation)
                && stored.key(STAMP) == serde_json::to_string(&echo.stamp).ok().as_deref();
            (incarnation(stored) == uid, same_stamp)
        })
    }

    /// What people do.
    pub(crate) fn person(&mut self, config: &Config, act: &super::act::Person) {
        use super::act::Person;
        match *act {
            Person::Flip {
                slot,
                field,
                annotation,
            } => {
                self.left.flips = self.left.flips.saturating_sub(1);
                self.write(config, slot, false, &Change::Flip { field, annotation });
            }
            Person::Edit { slot } => {
                self.left.edits = self.left.edits.saturating_sub(1);
                self.edit(config, slot);
            }
            Person::Way { slot, way, there } => {
                self.left.joins = self.left.joins.saturating_sub(1);
                self.write(config, slot, false, &Change::Way(way, there));
            }
            Person::Delete { slot } => {
                self.left.deletes = self.left.deletes.saturating_sub(1);
                self.slots[slot].grave = self.slots[slot].stored.clone();
                self.slots[slot].flips = self.slots[slot].flips.map(|n| n + 1);
                // A resume does not speak for it any more. A pause does, as long as its controller may work on it.
                self.slots[CLUSTER].at_stamp &= !(1 << slot);
                self.store(config, slot, None);
            }
            Person::Create { slot, restore, paused } => {
                let mut new = super::object::blank(slot, config.second);
                if paused {
                    new.set(if slot == CLUSTER { 0 } else { 1 }, true);
                }
                if restore && let Some(old) = &self.slots[slot].grave {
                    new.metadata.annotations = old.metadata.annotations.clone();
                    new.fields = old.fields.clone();
                }
                self.slots[slot].grave = None;
                self.create(config, slot, &Shared::new(new));
            }
            Person::Forge { slot } => {
                self.left.forges = self.left.forges.saturating_sub(1);
                let is_paused = slot != CLUSTER || self.slots[slot].stored.as_ref().is_some_and(|object| object.on(0));
                let word = if is_paused { "paused" } else { "running" };
                self.write(config, slot, false, &Change::Forge(word));
            }
            Person::Touch { slot } => self.write(config, slot, false, &Change::Touch),
            Person::Copy { from, to } => {
                self.left.copies = self.left.copies.saturating_sub(1);
                if let Some(source) = self.slots[from].stored.clone() {
                    self.write(config, to, false, &Change::Annotations(source));
                }
            }
            Person::Hook { flip, keys } => {
                self.left.hooks = self.left.hooks.saturating_sub(1);
                let came_back = flip && !self.hook.flip;
                self.hook.flip = flip;
                self.hook.keys = keys;
                self.hook.version += u8::from(came_back);
                self.hook.at = self.now;
                if !config.late {
                    self.hook.enforced = flip;
                }
                if !config.lag {
                    for who in 0..self.companions.len() {
                        super::companion::see_hook(self, who);
                    }
                }
            }
        }
    }
}
