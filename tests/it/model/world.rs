//! The state of the world, the API server with its webhooks, and the people that write to it.

use pausegen::protocol::{
    evidence::{Echo, Tracker},
    intent::Intent,
    keys::{ACKNOWLEDGED, OBSERVED_GENERATION, Standing},
    lease::Leases,
    object::{Condition, ObjectView},
    stamp::{self, Concern, Decision, Policies, Write, Writer},
};

use super::{
    config::{Config, Reached},
    memo::memo,
    object::{CLUSTER, Parts, Paused, Shared, blank},
};

/// How often the inputs of an object have been flipped so far: the ghost that tells how old a view is.
pub(crate) type Flips = [u8; 2];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) now: u8,
    pub(crate) slots: Vec<Slot>,
    pub(crate) controllers: Vec<Controller>,
    pub(crate) companions: Vec<Companion>,
    pub(crate) hook: Hook,
    pub(crate) left: Left,
    /// What a single step did that must never be done.
    pub(crate) bad: Option<&'static str>,
}

/// One named object of the API server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) stored: Option<Shared<ObjectView>>,
    /// The incarnation, that is the uid, of the last object of this name.
    pub(crate) uid: u8,
    pub(crate) flips: Flips,
    /// `flips` as of the last stamp, for the inputs that it asks about.
    pub(crate) stamped: Flips,
    /// The children that were there at the last stamp (a bit each).
    pub(crate) at_stamp: u8,
    /// The slots that were asked in the last echo (a bit each): the scope of the acknowledgement.
    pub(crate) scope: u8,
    /// The object as it was when it was deleted, for a restore.
    pub(crate) grave: Option<Shared<ObjectView>>,
}

/// What a controller reads of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Brief {
    pub(crate) uid: u8,
    pub(crate) on: [bool; 2],
    pub(crate) member: bool,
    pub(crate) generation: u8,
    pub(crate) paused: Option<Paused>,
    pub(crate) flips: Flips,
}

/// A watch cache: what it shows, and the versions that are on their way to it, with the time of each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(crate) struct Cache {
    pub(crate) shown: Option<Brief>,
    pub(crate) coming: Vec<(u8, Option<Brief>)>,
    /// Everything that was shown before; kept only where a restart may read it again.
    pub(crate) past: Vec<Option<Brief>>,
}

/// The controller of a slot, in a process of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Controller {
    pub(crate) own: Cache,
    /// The Cluster; of the Cluster's own controller it stays empty.
    pub(crate) parent: Cache,
    pub(crate) flight: Option<Flight>,
    /// Since when it is frozen.
    pub(crate) frozen: Option<u8>,
    /// When it was last thawed: its views may be stale for the bound from then on.
    pub(crate) thawed: u8,
    /// Who holds the Lease.
    pub(crate) term: u8,
}

/// A reconcile in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) own: Brief,
    pub(crate) parent: Option<Brief>,
    /// The condition that it writes at its end.
    pub(crate) write: Option<Paused>,
    /// Whether it works, and may create the child that its object owns.
    pub(crate) work: bool,
    /// Since when its views are overtaken.
    pub(crate) stale: Option<u8>,
}

/// A process of the companion.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Companion {
    pub(crate) start: u8,
    pub(crate) cache: Vec<Option<Shared<ObjectView>>>,
    pub(crate) trackers: Vec<Shared<Tracker>>,
    pub(crate) leases: Shared<Leases>,
    /// The webhook configuration as its watch shows it, and since when.
    pub(crate) hook: Option<(u8, u8)>,
    /// When a consistent list last found the cache current.
    pub(crate) checked: Option<u8>,
    pub(crate) job: Job,
}

/// What a companion is in the middle of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Job {
    Idle,
    /// Listing: the flipped object, and the children so far.
    List {
        slot: usize,
        flipped: Shared<ObjectView>,
        listed: Vec<Option<Shared<ObjectView>>>,
        next: usize,
    },
    /// Decided; the echo is to be written.
    Echo {
        slot: usize,
        echo: Shared<Echo>,
        uid: u8,
        scope: u8,
    },
    /// The inputs are not the stamp's: `pending` is to be written.
    Mark {
        slot: usize,
        uid: u8,
    },
}

/// The webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Hook {
    pub(crate) flip: bool,
    pub(crate) keys: bool,
    /// Its uid or `metadata.generation`: another whenever it comes back.
    pub(crate) version: u8,
}

/// What people and failures may still do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Left {
    pub(crate) flips: u8,
    pub(crate) edits: u8,
    pub(crate) hooks: u8,
    pub(crate) joins: u8,
    pub(crate) deletes: u8,
    pub(crate) forges: u8,
    pub(crate) copies: u8,
    pub(crate) restarts: u8,
    pub(crate) crashes: u8,
    pub(crate) freezes: u8,
    pub(crate) takeovers: u8,
    /// How much of the script is left.
    pub(crate) script: usize,
}

impl World {
    /// What controllers read of a stored object.
    pub(crate) fn brief(&self, slot: usize) -> Option<Brief> {
        let object = self.slots[slot].stored.as_ref()?;
        Some(Brief {
            uid: self.slots[slot].uid,
            on: [object.on(0), object.on(1)],
            member: object.is_member(),
            generation: object.generation(),
            paused: object.paused(),
            flips: self.slots[slot].flips,
        })
    }

    /// Stores an object (or its absence) and sends it to everybody who watches it.
    pub(crate) fn store(&mut self, config: &Config, slot: usize, object: Option<ObjectView>) {
        self.slots[slot].stored = object.map(Shared::new);
        let brief = self.brief(slot);
        let now = self.now;
        for (who, controller) in self.controllers.iter_mut().enumerate() {
            let cache = if who == slot {
                &mut controller.own
            } else if slot == CLUSTER {
                &mut controller.parent
            } else {
                continue;
            };
            if cache.last() == brief {
                continue;
            }
            cache.coming.push((now, brief));
            if let Some(flight) = &mut controller.flight {
                flight.stale.get_or_insert(now);
            }
        }
        if !config.lag {
            for who in 0..self.companions.len() {
                super::companion::deliver(self, config, who, slot);
            }
        }
    }

    /// A write of a person, or of the companion: through the webhooks, to the main resource.
    pub(crate) fn write(
        &mut self,
        config: &Config,
        slot: usize,
        by_companion: bool,
        change: impl FnOnce(&mut ObjectView),
    ) {
        let old = self.slots[slot].stored.clone().unwrap();
        let mut new = (*old).clone();
        change(&mut new);
        if let Err(what) = self.admit(config, slot, Some(&old), &mut new, by_companion) {
            self.bad.get_or_insert(what);
            return;
        }
        if new.on(0) != old.on(0) {
            new.set_generation(old.generation() + 1);
        }
        if new != *old {
            self.store(config, slot, Some(new));
        }
    }

    /// Creates an object.
    pub(crate) fn create(&mut self, config: &Config, slot: usize, mut new: ObjectView) {
        self.slots[slot].scope = 0;
        if let Err(what) = self.admit(config, slot, None, &mut new, false) {
            self.bad.get_or_insert(what);
            return;
        }
        self.slots[slot].uid += 1;
        new.metadata.uid = uid(slot, self.slots[slot].uid);
        new.set_generation(1);
        self.store(config, slot, Some(new));
    }

    fn admit(
        &mut self,
        config: &Config,
        slot: usize,
        old: Option<&ObjectView>,
        new: &mut ObjectView,
        by_companion: bool,
    ) -> Result<(), &'static str> {
        let rule = &config.rules.0[slot];
        for input in 0..2 {
            let before = old.is_some_and(|old| old.on(input));
            // A new object is as good as a flip: views of its predecessor are from before.
            if before != new.on(input) || old.is_none() {
                self.slots[slot].flips[input] += 1;
            }
        }
        let concern = stamp::concern(rule, old, new);
        let called = match concern {
            Concern::None => false,
            Concern::Flip => self.hook.flip,
            Concern::Keys => self.hook.keys,
        };
        if !called {
            return Ok(());
        }
        let writer = Writer {
            recorded: "",
            is_companion: by_companion,
            is_exempt: false,
        };
        let ask = |new: &ObjectView| {
            let write = Write {
                rule,
                old,
                new,
                writer,
                at: jiff::Timestamp::UNIX_EPOCH,
                policies: Policies::default(),
            };
            (stamp::mutate(&write), stamp::validate(&write))
        };
        let answer = ask(new).0;
        for (key, value) in &answer.edits {
            new.set_key(key, value.as_deref());
        }
        let (again, valid) = ask(new);
        if !again.edits.is_empty() {
            return Err("called twice, the webhook answers differently");
        }
        if valid.is_err() {
            return Err("the validating webhook denies what the mutating one made");
        }
        if matches!(answer.decision, Decision::PutBack) && !by_companion {
            config.reached(Reached::PutBack);
        }
        if let Decision::Stamped { stamp, .. } = answer.decision {
            let number = |object: &ObjectView, key| object.key(key).and_then(|text| text.parse::<u64>().ok());
            if old.and_then(|old| number(old, "pausegen.io/generation")) >= Some(stamp.generation) {
                return Err("a pause generation that does not grow");
            }
            let clean = number(new, OBSERVED_GENERATION).map(|k| k + 1) == Some(stamp.generation);
            for input in 0..2 {
                if !clean
                    || stamp.before.has(&super::object::input(input)) != stamp.after.has(&super::object::input(input))
                {
                    self.slots[slot].stamped[input] = self.slots[slot].flips[input];
                }
            }
            self.slots[slot].at_stamp = (1..config.slots)
                .filter(|child| self.brief(*child).is_some_and(|b| b.member))
                .fold(0, |mask, child| mask | 1 << child);
            config.reached(if clean { Reached::Clean } else { Reached::Hasty });
            match stamp.why {
                pausegen::protocol::keys::Why::Missed => config.reached(Reached::Repaired),
                pausegen::protocol::keys::Why::Restored => config.reached(Reached::Restored),
                _ => {}
            }
        } else if concern == Concern::Flip && old.is_some() {
            return Err("a flip without a stamp");
        }
        Ok(())
    }

    /// A write to the status subresource.
    pub(crate) fn write_status(&mut self, config: &Config, slot: usize, change: impl FnOnce(&mut ObjectView)) {
        if let Some(old) = self.slots[slot].stored.clone() {
            let mut new = (*old).clone();
            change(&mut new);
            if new != *old {
                self.store(config, slot, Some(new));
            }
        }
    }

    pub(crate) fn write_condition(&mut self, config: &Config, slot: usize, condition: Condition) {
        self.write_status(config, slot, |object| object.set_condition(condition));
    }

    /// Whether our keys on the object are believed and its inputs are those of the stamp.
    pub(crate) fn is_regular(&self, config: &Config, slot: usize) -> bool {
        let Some(object) = &self.slots[slot].stored else {
            return false;
        };
        let rule = &config.rules.0[slot];
        memo(("regular", slot, object), || {
            match Standing::of(&rule.group_kind, object) {
                Standing::Own(record) => record.stamp.after == Intent::of(rule, object),
                _ => false,
            }
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
                self.write(config, slot, false, |object| {
                    for (input, flip) in [field, annotation].into_iter().enumerate() {
                        if flip {
                            object.set(input, !object.on(input));
                        }
                    }
                });
            }
            Person::Edit { slot } => {
                self.left.edits = self.left.edits.saturating_sub(1);
                self.write_status(config, slot, |object| object.set_generation(object.generation() + 1));
            }
            Person::Member { slot, member } => {
                self.left.joins = self.left.joins.saturating_sub(1);
                // A child that joins after the look is outside of the acknowledgement.
                self.slots[CLUSTER].scope &= !(1 << slot);
                self.write(config, slot, false, |object| object.set_member(member));
            }
            Person::Delete { slot } => {
                self.left.deletes = self.left.deletes.saturating_sub(1);
                self.slots[slot].grave = self.slots[slot].stored.clone();
                self.slots[slot].flips = self.slots[slot].flips.map(|n| n + 1);
                self.slots[CLUSTER].scope &= !(1 << slot);
                self.store(config, slot, None);
            }
            Person::Create { slot, restore, paused } => {
                let mut new = blank(slot, true);
                new.set(0, paused);
                if restore && let Some(old) = &self.slots[slot].grave {
                    new.metadata.annotations = old.metadata.annotations.clone();
                    new.fields = old.fields.clone();
                }
                self.slots[slot].grave = None;
                self.create(config, slot, new);
            }
            Person::Forge { slot } => {
                self.left.forges = self.left.forges.saturating_sub(1);
                let word = if slot != CLUSTER || self.brief(slot).is_some_and(|b| b.on[0]) {
                    "paused"
                } else {
                    "running"
                };
                self.write(config, slot, false, |object| object.set_key(ACKNOWLEDGED, Some(word)));
            }
            Person::Copy { from, to } => {
                self.left.copies = self.left.copies.saturating_sub(1);
                let source = self.slots[from].stored.clone().unwrap();
                self.write(config, to, false, |object| {
                    object.metadata.annotations = source.metadata.annotations.clone();
                });
            }
            Person::Hook { flip, keys } => {
                self.left.hooks = self.left.hooks.saturating_sub(1);
                let came_back = flip && !self.hook.flip;
                self.hook = Hook {
                    flip,
                    keys,
                    version: self.hook.version + u8::from(came_back),
                };
                if !config.lag {
                    for who in 0..self.companions.len() {
                        super::companion::see_hook(self, who);
                    }
                }
            }
        }
    }
}

impl Cache {
    pub(crate) fn new(shown: Option<Brief>) -> Self {
        Self {
            shown,
            ..Self::default()
        }
    }

    pub(crate) fn last(&self) -> Option<Brief> {
        self.coming.last().map_or(self.shown, |(_, brief)| *brief)
    }

    pub(crate) fn stale_since(&self) -> Option<u8> {
        self.coming.first().map(|(born, _)| *born)
    }

    /// The next version arrives.
    pub(crate) fn advance(&mut self, keep: bool) {
        let (_, brief) = self.coming.remove(0);
        let before = std::mem::replace(&mut self.shown, brief);
        if keep {
            self.past.push(before);
        }
    }
}

pub(crate) fn uid(slot: usize, incarnation: u8) -> String {
    format!("{slot}-{incarnation}")
}
