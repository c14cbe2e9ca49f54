//! What must hold, and the steps that there are.

use pausegen::protocol::{condition, intent::State, keys::ACKNOWLEDGED, mutant};
use stateright::{Model, Property};

use super::{
    act::{Act, Person},
    companion,
    config::{Config, Flaw},
    memo::memo,
    object::{CLUSTER, Parts, Paused, blank},
    world::{Cache, Controller, Flips, Hook, Job, Left, Slot, World},
};

impl World {
    fn new(config: &Config) -> Self {
        let slot = Slot {
            stored: None,
            uid: 0,
            flips: [0; 2],
            stamped: [0; 2],
            at_stamp: 0,
            scope: 0,
            grave: None,
        };
        let controller = Controller {
            own: Cache::default(),
            parent: Cache::default(),
            flight: None,
            frozen: None,
            thawed: 0,
            term: 0,
        };
        let mut world = Self {
            now: 0,
            slots: vec![slot; config.slots],
            controllers: vec![controller; config.slots],
            companions: Vec::new(),
            hook: Hook {
                flip: true,
                keys: true,
                version: 0,
            },
            left: Left {
                script: config.script.len(),
                ..config.left
            },
            bad: None,
        };
        for slot in 0..config.slots {
            if config.creator && slot == 2 {
                continue;
            }
            let outside = config.outsider == Some(slot);
            let mut object = blank(slot, !outside);
            object.set_paused(Paused {
                field: outside,
                annotation: false,
                observed: 1,
            });
            world.create(config, slot, object);
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
            for _ in 0..config.bound + u8::from(config.leases) {
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

    fn tick(&mut self, config: &Config) {
        self.now += 1;
        if config.leases {
            companion::renewals(self, config);
        }
    }

    /// The staleness bound: by the next tick a live controller must have let go of what is older.
    fn may_tick(&self, config: &Config) -> bool {
        let first = if config.warm {
            config.bound + u8::from(config.leases)
        } else {
            0
        };
        self.now < first + config.ticks
            && (0..config.slots).all(|who| {
                let controller = &self.controllers[who];
                controller.frozen.is_some()
                    || self
                        .stale_since(who)
                        .is_none_or(|since| since.max(controller.thawed) + config.bound > self.now + 1)
            })
    }

    /// What the controller of `who` holds and works on of the object in `slot`.
    fn views(&self, who: usize, slot: usize) -> impl Iterator<Item = Flips> {
        let controller = &self.controllers[who];
        let (cache, flight) = if who == slot {
            (&controller.own, controller.flight.map(|flight| flight.own))
        } else {
            (&controller.parent, controller.flight.and_then(|flight| flight.parent))
        };
        cache.shown.into_iter().chain(flight).map(|brief| brief.flips)
    }

    /// Whether everybody whom the acknowledgement of `slot` speaks for has seen the flips `least`.
    fn have_seen(&self, config: &Config, slot: usize, least: Flips) -> bool {
        (0..config.slots)
            .filter(|who| self.slots[slot].scope & (1 << who) != 0 || *who == slot)
            .all(|who| {
                self.views(who, slot)
                    .all(|seen| seen[0] >= least[0] && (who != slot || seen[1] >= least[1]))
            })
    }

    /// No reader of `acknowledged` is told that a flip was seen before it was.
    pub(crate) fn no_false_word(&self, config: &Config) -> bool {
        (0..config.slots).all(|slot| {
            let Some(object) = &self.slots[slot].stored else {
                return true;
            };
            let Some(state) = object.key(ACKNOWLEDGED).and_then(State::parse) else {
                return true;
            };
            if !self.is_regular(config, slot) {
                // Only a flip, or a copy, that no webhook saw can leave a stale word behind.
                return self.hook.version > 0 || !self.hook.flip || config.keys_away;
            }
            let right = match state {
                State::Running => !object.on(0) && !object.on(1),
                State::PausedSelf => slot == CLUSTER && !object.on(0) && object.on(1),
                State::Paused => object.on(0) || (slot != CLUSTER && object.on(1)),
            };
            right && self.have_seen(config, slot, self.slots[slot].stamped)
        })
    }

    /// Nor does `kubectl wait --for=condition=PauseAcknowledged` return before a flip of the field was seen.
    pub(crate) fn no_false_condition(&self, config: &Config) -> bool {
        let Some(object) = &self.slots[CLUSTER].stored else {
            return true;
        };
        let least = [self.slots[CLUSTER].flips[0], 0];
        ["True", "False"].into_iter().all(|status| {
            !memo(("wait", status, object), || {
                condition::kubectl_wait_is_met(object, condition::TYPE, status)
            }) || (object.on(0) == (status == "True") && self.have_seen(config, CLUSTER, least))
        })
    }

    fn controllers_acts(&self, config: &Config, acts: &mut Vec<Act>) {
        for (who, controller) in self.controllers.iter().enumerate() {
            if controller.frozen.is_some() {
                acts.push(Act::Thaw(who));
                if self.left.takeovers > 0 {
                    acts.push(Act::Takeover(who));
                }
                continue;
            }
            if !controller.own.coming.is_empty() {
                acts.push(Act::Own(who));
            }
            if !controller.parent.coming.is_empty() {
                acts.push(Act::Parent(who));
            }
            match controller.flight {
                None if self.reconcile(config, who).is_some() => acts.push(Act::Reconcile(who)),
                None => {}
                Some(flight) => {
                    let land = |fail, create| Act::Land { who, fail, create };
                    acts.push(land(false, false));
                    if flight.work && flight.write.is_some() {
                        acts.push(land(true, false));
                    }
                    if flight.work && config.creator && who == 1 && self.slots[2].stored.is_none() {
                        acts.push(land(false, true));
                    }
                }
            }
            if self.left.restarts > 0 && (controller.flight.is_some() || config.flaw == Some(Flaw::OldRestart)) {
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
                if companion.cache[slot] != self.slots[slot].stored {
                    acts.push(Act::Deliver { who, slot });
                }
                if config.tracks(slot) {
                    acts.push(Act::Baselines { who, slot });
                    if companion.job == Job::Idle {
                        if self.is_worth_a_look(config, who, slot) {
                            acts.push(Act::Look { who, slot });
                        }
                        acts.push(Act::Project { who, slot });
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
                person(config.script[config.script.len() - self.left.script]);
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
            for slot in (1..config.slots).filter(|slot| is_there(*slot)) {
                let member = self.brief(slot).is_some_and(|b| b.member);
                person(Person::Member { slot, member: !member });
            }
        }
        for &slot in &config.deletable {
            if is_there(slot) {
                if self.left.deletes > 0 {
                    person(Person::Delete { slot });
                }
            } else if self.slots[slot].grave.is_some() {
                person(Person::Create {
                    slot,
                    restore: false,
                    paused: false,
                });
                person(Person::Create {
                    slot,
                    restore: true,
                    paused: false,
                });
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
            Act::Own(who) => self.controllers[who].own.advance(config.flaw == Some(Flaw::OldRestart)),
            Act::Parent(who) => self.controllers[who]
                .parent
                .advance(config.flaw == Some(Flaw::OldRestart)),
            Act::Reconcile(who) => self.controllers[who].flight = self.reconcile(config, who),
            Act::Land { who, fail, create } => self.land(config, who, fail, create),
            Act::Restart(who) => {
                self.left.restarts -= 1;
                self.restart(config, who);
            }
            Act::Freeze(who) => {
                self.left.freezes -= 1;
                self.controllers[who].frozen = Some(self.now);
            }
            Act::Thaw(who) => {
                let since = self.controllers[who].frozen.take();
                // A stall between two renewals goes unnoticed; the bound has to allow for it.
                if since < Some(self.now) {
                    self.controllers[who].thawed = self.now;
                }
            }
            Act::Takeover(who) => {
                self.left.takeovers -= 1;
                let now = self.now;
                let controller = &mut self.controllers[who];
                (controller.frozen, controller.thawed, controller.flight) = (None, now, None);
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
        if config.prompt {
            while self.catches_up(config) {}
        }
    }

    /// One step of the Cluster's controller, if there is one to make.
    fn catches_up(&mut self, config: &Config) -> bool {
        if !self.controllers[CLUSTER].own.coming.is_empty() {
            self.controllers[CLUSTER].own.advance(false);
        } else if let Some(flight) = self.reconcile(config, CLUSTER) {
            self.controllers[CLUSTER].flight = Some(flight);
            self.land(config, CLUSTER, false, false);
        } else {
            return false;
        }
        true
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
        ]
    }
}
