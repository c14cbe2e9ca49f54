//! The beginning of a world, and the steps that there are.

use std::time::Instant;

use pausegen::protocol::{evidence::Tracker, mutant};
use stateright::{Model, Property};

use super::{
    act::{Act, Person},
    companion,
    config::{Config, Flaw, LeaseOf},
    object::{CLUSTER, Parts, Paused, Role, Shared, Way, blank},
    world::{Cache, Controller, Hook, Job, Left, Slot, World},
};

impl World {
    fn new(config: &Config) -> Self {
        let mut world = Self {
            now: config.first(),
            slots: std::array::from_fn(|_| Slot::default()),
            controllers: std::array::from_fn(|_| Controller::default()),
            companions: Vec::new(),
            hook: Hook {
                flip: true,
                enforced: true,
                keys: true,
                version: 0,
                at: 0,
            },
            left: Left {
                script: u8::try_from(config.script.len()).unwrap(),
                ..config.left
            },
            bad: None,
        };
        for slot in 0..config.slots {
            if slot == 2 && (config.creator || config.second == Role::Unruled) {
                continue;
            }
            let outside = config.outsider == Some(slot);
            let mut object = blank(slot, config.second);
            if outside {
                object.set_way(Way::Label, false);
            }
            let was_reconciled = !matches!(config.second, Role::Managed | Role::Ownerless);
            if slot < 2 || config.second.answers() && was_reconciled {
                object.set_paused(Paused {
                    field: outside,
                    annotation: false,
                    observed: 1,
                });
            }
            world.create(config, slot, &Shared::new(object));
        }
        for who in 0..config.slots {
            let controller = &mut world.controllers[who];
            for cache in [&mut controller.own, &mut controller.parent] {
                *cache = Cache::new(cache.last());
            }
        }
        world.companions = (0..config.companions)
            .map(|_| companion::start(&world, config))
            .collect();
        if config.warm {
            for _ in 0..config.warm_up() {
                world.tick(config);
            }
            for who in 0..config.companions {
                world.companions[who].checked = Some(world.now);
                for slot in 0..config.slots {
                    world.take_baselines(config, who, slot);
                }
            }
        }
        world
    }

    /// Time passes. Where it has no end, `now` stays and everything that is remembered grows older instead.
    pub(crate) fn tick(&mut self, config: &Config) {
        self.let_go(config, self.now + 1);
        if self.hook.enforced != self.hook.flip && self.hook.at + config.bound <= self.now + 1 {
            self.hook.enforced = self.hook.flip;
        }
        if !config.is_timeless() {
            self.now += 1;
            if config.leases == LeaseOf::Managers {
                companion::renewals(self, config);
            }
            return;
        }
        self.hook.at = self.hook.at.saturating_sub(1);
        for controller in &mut self.controllers {
            for cache in [&mut controller.own, &mut controller.parent] {
                for (born, _) in &mut cache.coming {
                    *born = born.saturating_sub(1);
                }
            }
        }
        for companion in &mut self.companions {
            companion::age(companion);
        }
    }

    fn may_tick(&self, config: &Config) -> bool {
        let first = if config.warm { config.warm_up() } else { 0 };
        match config.ticks {
            Some(ticks) => self.now < first + ticks,
            None => self.companions.iter().all(|companion| match companion.job {
                Job::List { at, .. } => at + config.longest_look() > self.now,
                _ => true,
            }),
        }
    }

    fn controllers_acts(&self, config: &Config, acts: &mut Vec<Act>) {
        for who in 0..config.slots {
            let controller = &self.controllers[who];
            if controller.is_frozen {
                acts.push(Act::Thaw(who));
                if self.left.takeovers > 0 {
                    acts.push(Act::Takeover(who));
                }
                continue;
            }
            if !(config.prompt && who == CLUSTER) {
                acts.extend(self.reconciles(config, who).into_iter().map(Act::Reconcile));
            }
            if self.left.restarts > 0 && config.flaw == Some(Flaw::OldRestart) {
                acts.push(Act::Restart(who));
            }
            if self.left.freezes > 0 {
                acts.push(Act::Freeze(who));
            }
        }
    }

    fn companion_acts(&self, config: &Config, acts: &mut Vec<Act>) {
        for (who, companion) in self.companions.iter().enumerate() {
            for slot in 0..config.slots {
                if config.lag && companion.cache[slot] != self.slots[slot].stored {
                    acts.push(Act::Deliver { who, slot });
                }
                if config.tracks(slot) {
                    acts.push(Act::Baselines { who, slot });
                    if companion.job == Job::Idle {
                        if self.is_worth_a_look(config, who, slot) {
                            acts.push(Act::Look { who, slot });
                        } else if config.conditions {
                            acts.push(Act::Project { who, slot });
                        }
                    }
                }
            }
            if config.lag {
                acts.push(Act::SeeHook(who));
                if (0..config.slots).all(|slot| companion.cache[slot] == self.slots[slot].stored) {
                    acts.push(Act::Check(who));
                }
            }
            match companion.job {
                Job::Idle => {}
                Job::List { .. } => acts.push(Act::List(who)),
                Job::Echo { .. } => acts.push(Act::Echo(who)),
                Job::Mark { .. } => acts.push(Act::Mark(who)),
            }
            if self.left.crashes > 0 {
                acts.push(Act::Crash(who));
            }
        }
    }

    fn people_acts(&self, config: &Config, acts: &mut Vec<Act>) {
        let mut person = |person| acts.push(Act::Person(person));
        if !config.script.is_empty() {
            if self.left.script > 0 {
                person(config.script[config.script.len() - usize::from(self.left.script)]);
            }
            return;
        }
        let is_there = |slot: usize| self.slots[slot].stored.is_some();
        if self.left.flips > 0 {
            for &(slot, field, annotation) in config.flips.iter().filter(|(slot, ..)| is_there(*slot)) {
                person(Person::Flip {
                    slot,
                    field,
                    annotation,
                });
            }
        }
        if self.left.edits > 0 && is_there(CLUSTER) {
            person(Person::Edit { slot: CLUSTER });
        }
        if self.left.hooks > 0 {
            let (flip, keys) = (self.hook.flip, self.hook.keys);
            if config.keys_away {
                person(Person::Hook { flip, keys: !keys });
            } else {
                person(Person::Hook {
                    flip: !flip,
                    keys: !flip,
                });
            }
        }
        if self.left.joins > 0 {
            for &(slot, way) in &config.ways {
                if let Some(object) = &self.slots[slot].stored {
                    let there = !object.has(way);
                    person(Person::Way { slot, way, there });
                }
            }
        }
        for &slot in &config.deletable {
            if is_there(slot) {
                if self.left.deletes > 0 {
                    person(Person::Delete { slot });
                }
            } else if self.slots[slot].grave.is_some() {
                for (restore, paused) in [(false, false), (false, true), (true, false)] {
                    person(Person::Create { slot, restore, paused });
                }
            }
        }
        if self.left.forges > 0 && is_there(CLUSTER) {
            person(Person::Forge { slot: CLUSTER });
        }
        if self.left.copies > 0 && is_there(1) && is_there(2) {
            person(Person::Copy { from: 1, to: 2 });
        }
    }

    fn step(&mut self, config: &Config, act: Act) {
        match act {
            Act::Person(person) => {
                self.left.script = self.left.script.saturating_sub(1);
                self.person(config, &person);
            }
            Act::Enforce => self.hook.enforced = self.hook.flip,
            Act::Reconcile(what) => self.do_reconcile(config, what),
            Act::Restart(who) => {
                self.left.restarts -= 1;
                self.restart(who);
            }
            Act::Freeze(who) => {
                self.left.freezes -= 1;
                self.controllers[who].is_frozen = true;
                self.controllers[who].frozen = self.now;
            }
            Act::Thaw(who) => self.thaw(who),
            Act::Takeover(who) => {
                self.left.takeovers -= 1;
                let now = self.now;
                let controller = &mut self.controllers[who];
                (controller.is_frozen, controller.frozen, controller.thawed) = (false, 0, now);
                controller.term += 1;
            }
            Act::Deliver { who, slot } => companion::deliver(self, config, who, slot),
            Act::SeeHook(who) => companion::see_hook(self, who),
            Act::Check(who) => self.companions[who].checked = Some(self.now),
            Act::Baselines { who, slot } => self.take_baselines(config, who, slot),
            Act::Look { who, slot } => self.look(config, who, slot),
            Act::List(who) => self.list(config, who),
            Act::Echo(who) => self.echo(config, who),
            Act::Mark(who) => self.mark(config, who),
            Act::Project { who, slot } => self.project(config, who, slot),
            Act::Crash(who) => {
                self.left.crashes -= 1;
                self.companions[who] = companion::start(self, config);
            }
            Act::Tick => self.tick(config),
        }
        self.drop_lost_races(config);
        if config.prompt {
            while self.catches_up(config, CLUSTER) {}
        }
        // Of an object that nobody flips nothing is asked.
        for slot in (0..config.slots).filter(|slot| !config.tracks(*slot)) {
            for companion in &mut self.companions {
                companion.trackers[slot] = Shared::new(Tracker::new(""));
            }
        }
    }

    pub(crate) fn thaw(&mut self, who: usize) {
        let controller = &mut self.controllers[who];
        let since = std::mem::take(&mut controller.frozen);
        // A stall between two renewals goes unnoticed; the bound has to allow for it.
        if std::mem::take(&mut controller.is_frozen) && since < self.now {
            controller.thawed = self.now;
        }
    }
}

impl Model for Config {
    type State = World;
    type Action = Act;

    fn init_states(&self) -> Vec<World> {
        mutant::with(self.mutant, || vec![World::new(self)])
    }

    fn actions(&self, world: &World, acts: &mut Vec<Act>) {
        if world.bad.is_some() {
            return;
        }
        world.people_acts(self, acts);
        if world.hook.enforced != world.hook.flip {
            acts.push(Act::Enforce);
        }
        world.controllers_acts(self, acts);
        mutant::with(self.mutant, || world.companion_acts(self, acts));
        if world.may_tick(self) {
            acts.push(Act::Tick);
        }
    }

    fn next_state(&self, world: &World, act: Act) -> Option<World> {
        let mut next = world.clone();
        mutant::with(self.mutant, || next.step(self, act));
        (next != *world).then_some(next)
    }

    // A checker with one thread does not heed its own timeout.
    fn within_boundary(&self, _: &World) -> bool {
        self.until.is_none_or(|until| Instant::now() < until)
    }

    fn format_action(&self, act: &Act) -> String {
        act.to_string()
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no false word", |config: &Self, world: &World| {
                mutant::with(config.mutant, || world.no_false_word(config))
            }),
            Property::always("no false condition", |config: &Self, world: &World| {
                world.no_false_condition(config)
            }),
            Property::always("no forbidden step", |_, world: &World| world.bad.is_none()),
            Property::always("acknowledged when flips stop", |config: &Self, world: &World| {
                mutant::with(config.mutant, || world.comes_to_rest(config))
            }),
        ]
    }
}
