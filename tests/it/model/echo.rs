//! The companion's writes: the echo, `pending`, and the condition that is derived from the annotations.

use pausegen::protocol::{condition, keys::ACKNOWLEDGEMENT};

use super::{
    companion::moment,
    config::{Config, Flaw, Reached},
    memo::memo,
    object::{Parts, Shared},
    world::{Job, World, incarnation},
    write::Change,
};

impl World {
    /// An echo whose tests can never pass again is as good as none: a generation never comes back. It is dropped at once,
    /// so that worlds which differ in nothing else are one.
    pub(crate) fn drop_lost_races(&mut self, config: &Config) {
        if matches!(config.flaw, Some(Flaw::EchoNoTest | Flaw::EchoNoUid)) {
            return;
        }
        for who in 0..self.companions.len() {
            if let Job::Echo { slot, echo, uid, .. } = &self.companions[who].job
                && self.passes(*slot, echo, *uid) != (true, true)
            {
                config.reached(Reached::LostRace);
                self.companions[who].job = Job::Idle;
            }
        }
    }

    /// The echo: a JSON Patch that `test`s uid, generation and stamp.
    pub(crate) fn echo(&mut self, config: &Config, who: usize) {
        let Job::Echo { slot, echo, uid, scope } = std::mem::replace(&mut self.companions[who].job, Job::Idle) else {
            return;
        };
        let (same_uid, same_stamp) = self.passes(slot, &echo, uid);
        let passes = match config.flaw {
            Some(Flaw::EchoNoTest) => self.slots[slot].stored.is_some(),
            Some(Flaw::EchoNoUid) => same_stamp,
            _ => same_uid && same_stamp,
        };
        if !passes {
            config.reached(Reached::LostRace);
            return;
        }
        // Without the tests the webhook must not make up for them: it is called for keys under `Ignore`.
        let keys = self.hook.keys;
        self.hook.keys &= !matches!(config.flaw, Some(Flaw::EchoNoTest | Flaw::EchoNoUid));
        self.slots[slot].scope = scope;
        self.write(config, slot, true, &Change::Echo(echo.clone(), uid));
        self.hook.keys = keys;
        // The answer shows what was stored.
        let stored = self.slots[slot].stored.as_ref();
        let generation = format!("{{\"generation\":{},", echo.stamp.generation);
        let is_stored = stored
            .and_then(|stored| stored.key(ACKNOWLEDGEMENT))
            .is_some_and(|text| text.starts_with(&generation));
        if is_stored {
            let tracker = &self.companions[who].trackers[slot];
            self.companions[who].trackers[slot] = memo(("echoed", self.now, tracker, &echo), || {
                let mut tracker = (**tracker).clone();
                tracker.echoed(moment(self.now), &echo);
                Shared::new(tracker)
            });
        }
    }

    pub(crate) fn mark(&mut self, config: &Config, who: usize) {
        let Job::Mark { slot, uid } = std::mem::replace(&mut self.companions[who].job, Job::Idle) else {
            return;
        };
        let stored = self.slots[slot].stored.as_ref();
        if stored.is_some_and(|stored| incarnation(stored) == uid) && !self.is_regular(config, slot) {
            config.reached(Reached::Marked);
            self.write(config, slot, true, &Change::Pending);
            // An irregular object that reads `pending` already is touched, so that the webhook stamps it.
            if self.hook.keys && !self.is_regular(config, slot) {
                self.write(config, slot, true, &Change::Touch);
            }
        }
    }

    /// The condition is derived from the annotations, anew where it is behind.
    pub(crate) fn project(&mut self, config: &Config, who: usize, slot: usize) {
        let stored = self.slots[slot].stored.clone();
        let companion = &self.companions[who];
        if stored != companion.cache[slot] {
            return;
        }
        let Some(object) = stored else { return };
        let guard = self.guard(companion);
        let tracker = &companion.trackers[slot];
        let known = memo(("acknowledged", slot, tracker, &object, &guard), || {
            let rule = &config.rules.0[slot];
            condition::acknowledged(rule, &object, tracker.may_raise(guard.as_ref())).map(|projection| {
                (
                    condition::stored(&object).is_some_and(|c| projection.is_in(c)),
                    projection,
                )
            })
        });
        let Some((is_there, projection)) = known else { return };
        let mut tracker = tracker.clone();
        if !is_there {
            if let Some(before) =
                condition::stored(&object).filter(|c| c.status == "True" && projection.status == "True")
                && before.observed_generation < Some(projection.observed_generation)
            {
                config.reached(Reached::Raised);
            }
            self.write_condition(config, slot, &projection);
            // Where the watch does not lag it has shown the write by now.
            tracker = self.companions[who].trackers[slot].clone();
        }
        config.reached(if projection.status == "True" {
            Reached::ConditionTrue
        } else {
            Reached::ConditionFalse
        });
        if projection.observed_generation == i64::from(object.generation()) {
            tracker = memo(("anchored", self.now, config.bound, &tracker, &guard), || {
                let mut tracker = (*tracker).clone();
                tracker.anchored(moment(self.now), &config.rules.0[slot], guard.as_ref());
                Shared::new(tracker)
            });
        } else {
            config.reached(Reached::LeftBehind);
        }
        self.companions[who].trackers[slot] = tracker;
    }
}
