//! Liveness: controllers go on and flips stop, so it is acknowledged.
//!
//! Not an `eventually` of the checker, which is sound only where no run comes back to where it was. Instead a state is led
//! on, by the same functions, in the one way that everybody takes their turn: nobody flips, crashes or freezes any more.

use std::hash::{DefaultHasher, Hash, Hasher};

use pausegen::protocol::keys::Standing;

use super::{
    companion,
    config::{Config, LeaseOf},
    memo::memo,
    world::{Job, Left, World},
};

/// Rounds, of a tick each, after which everything has to be acknowledged: one bound each for the webhooks to be
/// enforced, for the repair of what they missed, and for its acknowledgement, and what it takes to see a Lease renewed.
const ROUNDS: u8 = 12;

impl World {
    pub(crate) fn comes_to_rest(&self, config: &Config) -> bool {
        if config.lively == 0 {
            return true;
        }
        if config.lively > 1 {
            let mut hasher = DefaultHasher::new();
            self.hash(&mut hasher);
            if !hasher.finish().is_multiple_of(config.lively) {
                return true;
            }
        }
        let mut world = self.clone();
        world.left = Left::default();
        world.hook.version += u8::from(!world.hook.flip);
        (world.hook.flip, world.hook.enforced, world.hook.keys) = (true, true, true);
        for who in 0..config.slots {
            world.thaw(who);
            world.controllers[who].thawed = 0;
            while world.catches_up(config, who) {}
        }
        // By now most states are the same few.
        memo(("rest", world.clone()), || world.rests(config))
    }

    fn rests(&mut self, config: &Config) -> bool {
        for _ in 0..ROUNDS {
            for who in 0..self.companions.len() {
                self.goes_on(config, who);
                for controller in 0..config.slots {
                    while self.catches_up(config, controller) {}
                }
            }
            if (0..config.slots).all(|slot| self.is_at_rest(config, slot)) {
                return true;
            }
            self.tick(config);
            if !config.is_timeless() && config.leases == LeaseOf::Managers {
                companion::renewals(self, config);
            }
        }
        false
    }

    /// A companion finishes what it is in the middle of, sees everything, and looks where that is worth it.
    fn goes_on(&mut self, config: &Config, who: usize) {
        self.finish(config, who);
        companion::see_hook(self, who);
        for slot in 0..config.slots {
            companion::deliver(self, config, who, slot);
        }
        self.companions[who].checked = Some(self.now);
        for slot in (0..config.slots).filter(|slot| config.tracks(*slot)) {
            self.take_baselines(config, who, slot);
            // Repaired, looked at, and a word more where it had to be touched.
            for _ in 0..3 {
                companion::deliver(self, config, who, slot);
                if self.is_worth_a_look(config, who, slot) {
                    self.look(config, who, slot);
                    self.finish(config, who);
                }
            }
        }
    }

    fn finish(&mut self, config: &Config, who: usize) {
        loop {
            match self.companions[who].job {
                Job::Idle => return,
                Job::List { .. } => self.list(config, who),
                Job::Echo { .. } => self.echo(config, who),
                Job::Mark { .. } => self.mark(config, who),
            }
        }
    }

    /// Whether nothing is left to be acknowledged.
    fn is_at_rest(&self, config: &Config, slot: usize) -> bool {
        let Some(object) = self.slots[slot].stored.as_ref().filter(|_| config.tracks(slot)) else {
            return true;
        };
        let rule = &config.rules.0[slot];
        match Standing::of(&rule.group_kind, object) {
            Standing::Bare => true,
            Standing::Own(record) => record.is_acknowledged(rule) && self.is_regular(config, slot),
            Standing::Foreign | Standing::Broken => false,
        }
    }
}
