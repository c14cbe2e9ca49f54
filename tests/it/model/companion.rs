//! The companion: its watch, and its steps around the real `Tracker`.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use pausegen::protocol::{
    Moment, condition,
    evidence::{Ground, Guard, Lag, Surroundings, Tracker, Verdict},
    intent::{Intent, State},
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, Evidence, GENERATION, OBSERVED_GENERATION, STAMP, Standing,
    },
    lease::{LeaseView, Leases},
    object::{Condition, ObjectView},
    scope::{self, Ruled},
};

use super::{
    config::{Config, Flaw, Reached},
    memo::memo,
    object::{CLUSTER, Parts, Shared, lease},
    world::{Companion, Job, World},
};

pub(crate) fn moment(tick: u8) -> Moment {
    Moment(Duration::from_secs(tick.into()))
}

fn guard(version: u8, since: u8) -> Guard {
    Guard {
        fingerprint: version.to_string(),
        since: moment(since),
    }
}

/// A process that starts now, with what a consistent list shows.
pub(crate) fn start(world: &World, config: &Config) -> Companion {
    let bounds = (0..config.slots).map(|slot| (lease(slot).name, Duration::from_secs(config.bound.into())));
    let mut leases = Leases::new(bounds.collect());
    if config.leases {
        for slot in 0..config.slots {
            renew(&mut leases, world, slot);
        }
    }
    leases.synced();
    let mut companion = Companion {
        start: world.now,
        cache: world.slots.iter().map(|slot| slot.stored.clone()).collect(),
        trackers: vec![Shared::new(Tracker::new("")); config.slots],
        leases: Shared::new(leases),
        hook: world.hook.flip.then_some((world.hook.version, world.now)),
        checked: None,
        job: Job::Idle,
    };
    for slot in 0..config.slots {
        notice(&mut companion, config, world.now, slot);
    }
    companion
}

fn renew(leases: &mut Leases, world: &World, slot: usize) {
    let view = LeaseView {
        holder: format!("process-{}", world.controllers[slot].term),
        transitions: world.controllers[slot].term.into(),
        renew_time: world.now.to_string(),
        duration: Duration::from_secs(1),
    };
    leases.observe(moment(world.now), "ns", &lease(slot).name, view);
}

/// Every controller that runs renews its Lease, and the companion sees it.
pub(crate) fn renewals(world: &mut World, config: &Config) {
    for who in 0..world.companions.len() {
        let mut leases = (*world.companions[who].leases).clone();
        for slot in 0..config.slots {
            if world.controllers[slot].frozen.is_none() {
                renew(&mut leases, world, slot);
            }
        }
        world.companions[who].leases = Shared::new(leases);
    }
}

/// The watch shows the newest version of an object.
pub(crate) fn deliver(world: &mut World, config: &Config, who: usize, slot: usize) {
    let now = world.now;
    let stored = world.slots[slot].stored.clone();
    // Before the world is set up there is nobody yet.
    if let Some(companion) = world.companions.get_mut(who) {
        companion.cache[slot] = stored;
        notice(companion, config, now, slot);
    }
}

pub(crate) fn see_hook(world: &mut World, who: usize) {
    let (hook, now) = (world.hook, world.now);
    let companion = &mut world.companions[who];
    companion.hook = match companion.hook {
        _ if !hook.flip => None,
        Some((version, since)) if version == hook.version => Some((version, since)),
        _ => Some((hook.version, now)),
    };
}

fn members(companion: &Companion, config: &Config) -> Vec<Ruled> {
    (1..config.slots)
        .filter_map(|slot| Some(config.rules.ruled(slot, companion.cache[slot].as_ref()?)))
        .collect()
}

fn notice(companion: &mut Companion, config: &Config, now: u8, slot: usize) {
    companion.trackers[slot] = observed(
        &companion.trackers[slot],
        config,
        now,
        slot,
        companion.cache[slot].as_ref(),
    );
    if let Some(cluster) = &companion.cache[CLUSTER] {
        let key = (
            "members",
            config.bound,
            now,
            &companion.trackers[CLUSTER],
            &companion.cache,
        );
        companion.trackers[CLUSTER] = memo(key, || {
            let all = members(companion, config);
            let found = scope::members(cluster, &config.rules.0[CLUSTER], &all, &|_| true).members;
            let uids: BTreeSet<String> = found.iter().map(|ruled| ruled.object.metadata.uid.clone()).collect();
            let mut tracker = (*companion.trackers[CLUSTER]).clone();
            tracker.observe_members(moment(now), &uids);
            Shared::new(tracker)
        });
    }
}

fn observed(
    tracker: &Shared<Tracker>,
    config: &Config,
    now: u8,
    slot: usize,
    object: Option<&Shared<ObjectView>>,
) -> Shared<Tracker> {
    let Some(object) = object else {
        return Shared::new(Tracker::new(""));
    };
    memo(("observe", now, slot, tracker, object), || {
        let mut tracker = (**tracker).clone();
        tracker.observe(moment(now), &config.rules.0[slot], object);
        Shared::new(tracker)
    })
}

impl World {
    fn ground<'a>(&self, companion: &'a Companion, guard: Option<&'a Guard>) -> Ground<'a> {
        Ground {
            now: moment(self.now),
            start: moment(companion.start),
            guard,
            leases: &companion.leases,
        }
    }

    /// The webhook configuration, read consistently.
    fn guard(&self, companion: &Companion) -> Option<Guard> {
        let since = match companion.hook {
            Some((version, since)) if version == self.hook.version => since,
            _ => self.now,
        };
        self.hook.flip.then(|| guard(self.hook.version, since))
    }

    pub(crate) fn take_baselines(&mut self, config: &Config, who: usize, slot: usize) {
        let companion = &self.companions[who];
        let view = if config.lag { companion.checked } else { Some(self.now) };
        let (Some(flipped), Some(view)) = (&companion.cache[slot], view) else {
            return;
        };
        let tracker = &companion.trackers[slot];
        let times = (self.now, view, companion.start, companion.hook, config.bound);
        let key = ("baselines", slot, times, tracker, &companion.leases, &companion.cache);
        let tracker = memo(key, || {
            let seen = companion.hook.map(|(version, since)| guard(version, since));
            let flipped = config.rules.ruled(slot, flipped);
            let all = if slot == CLUSTER {
                members(companion, config)
            } else {
                Vec::new()
            };
            let found = scope::members(&flipped.object, &flipped.rule, &all, &|_| true).members;
            let mut tracker = (**tracker).clone();
            tracker.take_baselines(&self.ground(companion, seen.as_ref()), moment(view), &flipped, &found);
            Shared::new(tracker)
        });
        self.companions[who].trackers[slot] = tracker;
    }

    /// Whether the watch says that a look is worth it.
    pub(crate) fn is_worth_a_look(&self, config: &Config, who: usize, slot: usize) -> bool {
        let Some(object) = &self.companions[who].cache[slot] else {
            return false;
        };
        memo(("worth", slot, object), || {
            match Standing::of(&config.rules.0[slot].group_kind, object) {
                Standing::Bare => false,
                Standing::Own(record) => {
                    !record.is_acknowledged(&config.rules.0[slot])
                        || record.stamp.after != Intent::of(&config.rules.0[slot], object)
                }
                _ => true,
            }
        })
    }

    fn read(&self, config: &Config, who: usize, slot: usize) -> Option<Shared<ObjectView>> {
        if config.flaw == Some(Flaw::CacheLook) {
            self.companions[who].cache[slot].clone()
        } else {
            self.slots[slot].stored.clone()
        }
    }

    /// A look begins: the flipped object is listed.
    pub(crate) fn look(&mut self, config: &Config, who: usize, slot: usize) {
        let Some(flipped) = self.read(config, who, slot) else {
            return;
        };
        self.companions[who].job = Job::List {
            slot,
            flipped,
            listed: vec![None; config.slots],
            next: 0,
        };
        if slot != CLUSTER {
            self.decide(config, who);
        } else if !config.split {
            for _ in 1..config.slots {
                self.list(config, who);
            }
        }
    }

    /// The next kind is listed; after the last one it is decided.
    pub(crate) fn list(&mut self, config: &Config, who: usize) {
        let Job::List { next, .. } = self.companions[who].job else {
            return;
        };
        let slot = if config.flaw == Some(Flaw::ChildrenFirst) {
            config.slots - 1 - next
        } else {
            next + 1
        };
        let object = self.read(config, who, slot);
        if let Job::List { listed, next, .. } = &mut self.companions[who].job {
            listed[slot] = object;
            *next += 1;
            if *next + 1 == config.slots {
                self.decide(config, who);
            }
        }
    }

    fn decide(&mut self, config: &Config, who: usize) {
        let Job::List {
            slot, flipped, listed, ..
        } = std::mem::replace(&mut self.companions[who].job, Job::Idle)
        else {
            return;
        };
        let companion = &self.companions[who];
        let guard = self.guard(companion);
        let times = (self.now, companion.start, &guard, config.bound);
        let key = (
            "look",
            slot,
            times,
            &companion.trackers[slot],
            &companion.leases,
            &flipped,
            &listed,
        );
        let (tracker, verdict) = memo(key, || {
            let all: Vec<Ruled> = (1..config.slots)
                .filter_map(|slot| Some(config.rules.ruled(slot, listed[slot].as_ref()?)))
                .collect();
            let mut tracker = (*companion.trackers[slot]).clone();
            let flipped = config.rules.ruled(slot, &flipped);
            let around = Surroundings {
                has_rule: &|_| true,
                unchanged_since: &|_| Some(Moment::default()),
            };
            let verdict = tracker.look(&self.ground(companion, guard.as_ref()), &flipped, &all, &around);
            (Shared::new(tracker), Rc::new(verdict))
        });
        let uid = incarnation(&flipped);
        self.companions[who].trackers[slot] = tracker;
        match &*verdict {
            Verdict::Quiet => {}
            Verdict::Irregular => {
                config.reached(Reached::Irregular);
                if flipped.key(ACKNOWLEDGED) != Some("pending") || self.hook.keys {
                    self.companions[who].job = Job::Mark { slot, uid };
                }
            }
            Verdict::Wait(waiting) => {
                for laggard in &waiting.laggards {
                    config.reached(match laggard.lag {
                        Lag::Missing => Reached::Missing,
                        Lag::Disagrees => Reached::Disagrees,
                        Lag::Settling | Lag::Leaving => Reached::WithoutBaseline,
                    });
                }
                // Under the optimistic lock.
                if self.slots[slot].stored.as_ref() == Some(&flipped)
                    && let Standing::Own(record) = Standing::of(&config.rules.0[slot].group_kind, &flipped)
                {
                    let pending = condition::pending(&flipped, record.stamp.generation, waiting);
                    self.project_as(config, slot, &pending);
                }
            }
            Verdict::Echo(echo) => {
                config.reached(match echo.evidence {
                    Evidence::Attested => Reached::Attested,
                    Evidence::Settled => Reached::Settled,
                });
                config.reached(match echo.state {
                    State::Paused => Reached::Paused,
                    State::PausedSelf => Reached::PausedSelf,
                    State::Running => Reached::Running,
                });
                if echo.lease_absent {
                    config.reached(Reached::LeaseAbsent);
                }
                // A clean flip asks whom its own inputs concern; for the others the last echo stands.
                let field = super::object::input(0);
                let clean = flipped.key(OBSERVED_GENERATION) == Some((echo.stamp.generation - 1).to_string().as_str());
                let asks_field = !clean || echo.stamp.before.has(&field) != echo.stamp.after.has(&field);
                let scope = if asks_field || slot != CLUSTER {
                    self.promised(config, slot, &listed, flipped.on(0))
                } else {
                    self.slots[slot].scope
                };
                self.companions[who].job = Job::Echo {
                    slot,
                    echo: Shared::new((**echo).clone()),
                    uid,
                    scope,
                };
            }
        }
    }

    /// Whom an echo that is decided now speaks for.
    fn promised(&self, config: &Config, slot: usize, listed: &[Option<Shared<ObjectView>>], paused: bool) -> u8 {
        let mut scope = 1 << slot;
        if slot != CLUSTER {
            return scope;
        }
        for (child, object) in listed.iter().enumerate().take(config.slots).skip(1) {
            let is_there = match object {
                Some(object) => object.is_member() && (paused || self.slots[CLUSTER].at_stamp & (1 << child) != 0),
                // What a controller has made between two lists must not be there.
                None => paused && config.creator && self.brief(child).is_some_and(|b| b.member),
            };
            if is_there {
                scope |= 1 << child;
            }
        }
        // By the cache there may be objects that were not listed.
        if config.flaw == Some(Flaw::CacheLook) && paused {
            for child in 1..config.slots {
                scope |= u8::from(self.brief(child).is_some_and(|b| b.member)) << child;
            }
        }
        scope
    }

    /// The echo: a JSON Patch that `test`s uid, generation and stamp.
    pub(crate) fn echo(&mut self, config: &Config, who: usize) {
        let Job::Echo { slot, echo, uid, scope } = std::mem::replace(&mut self.companions[who].job, Job::Idle) else {
            return;
        };
        let Some(stored) = self.slots[slot].stored.clone() else {
            return;
        };
        let same_uid = incarnation(&stored) == uid;
        let same_stamp = stored.key(GENERATION) == Some(echo.stamp.generation.to_string().as_str())
            && stored.key(STAMP) == serde_json::to_string(&echo.stamp).ok().as_deref();
        let passes = match config.flaw {
            Some(Flaw::EchoNoTest) => true,
            Some(Flaw::EchoNoUid) => same_stamp,
            _ => same_uid && same_stamp,
        };
        if !passes {
            config.reached(Reached::LostRace);
            return;
        }
        let acknowledgement = Acknowledgement {
            generation: echo.stamp.generation,
            uid: super::world::uid(slot, uid),
            evidence: echo.evidence,
            objects: echo.objects,
            bound_seconds: echo.bound.map(|bound| bound.as_secs()),
            lease: String::new(),
            excluded: echo.excluded.clone(),
            object_generation: echo.object_generation,
            at: String::new(),
        };
        let generation = echo.stamp.generation.to_string();
        let record = serde_json::to_string(&acknowledgement).unwrap();
        // Without the tests the webhook must not make up for them: it is called for keys under `Ignore`.
        let keys = self.hook.keys;
        self.hook.keys &= !matches!(config.flaw, Some(Flaw::EchoNoTest | Flaw::EchoNoUid));
        self.slots[slot].scope = scope;
        self.write(config, slot, true, |object| {
            object.set_key(OBSERVED_GENERATION, Some(&generation));
            object.set_key(ACKNOWLEDGED, Some(echo.state.as_str()));
            object.set_key(ACKNOWLEDGEMENT, Some(&record));
        });
        self.hook.keys = keys;
        // The answer shows what was stored.
        let stored = self.slots[slot].stored.as_ref();
        if stored.is_some_and(|stored| stored.key(ACKNOWLEDGEMENT) == Some(record.as_str())) {
            let mut tracker = (*self.companions[who].trackers[slot]).clone();
            tracker.echoed(moment(self.now), &echo);
            self.companions[who].trackers[slot] = Shared::new(tracker);
        }
    }

    pub(crate) fn mark(&mut self, config: &Config, who: usize) {
        let Job::Mark { slot, uid } = std::mem::replace(&mut self.companions[who].job, Job::Idle) else {
            return;
        };
        let stored = self.slots[slot].stored.as_ref();
        if stored.is_some_and(|stored| incarnation(stored) == uid) && !self.is_regular(config, slot) {
            self.write(config, slot, true, |object| {
                object.set_key(ACKNOWLEDGED, Some("pending"));
            });
            // An irregular object that reads `pending` already is touched, so that the webhook stamps it.
            if self.hook.keys && !self.is_regular(config, slot) {
                self.write(config, slot, true, |object| {
                    object.set_key("pausegen.io/touch", Some(""));
                });
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
            self.project_as(config, slot, &projection);
            // Where the watch does not lag it has shown the write by now.
            tracker = self.companions[who].trackers[slot].clone();
        }
        config.reached(if projection.status == "True" {
            Reached::ConditionTrue
        } else {
            Reached::ConditionFalse
        });
        if projection.observed_generation == i64::from(object.generation()) {
            tracker = memo(("anchored", &tracker, &guard), || {
                let mut tracker = (*tracker).clone();
                tracker.anchored(guard.as_ref());
                Shared::new(tracker)
            });
        }
        self.companions[who].trackers[slot] = tracker;
    }

    fn project_as(&mut self, config: &Config, slot: usize, projection: &condition::Projection) {
        let Some(object) = &self.slots[slot].stored else { return };
        if condition::stored(object).is_some_and(|stored| projection.is_in(stored)) {
            return;
        }
        self.write_condition(
            config,
            slot,
            Condition {
                type_: condition::TYPE.to_owned(),
                status: projection.status.to_owned(),
                reason: projection.reason.to_owned(),
                message: projection.message.clone(),
                observed_generation: Some(projection.observed_generation),
                last_transition_time: None,
            },
        );
    }
}

fn incarnation(object: &ObjectView) -> u8 {
    let (_, incarnation) = object.metadata.uid.split_once('-').unwrap();
    incarnation.parse().unwrap()
}
