//! The companion: its watch and its looks, around the real `Tracker`.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use pausegen::protocol::{
    Moment, condition,
    evidence::{Echo, Gone, Ground, Guard, Lag, Surroundings, Tracker, Verdict, Waiting, asks_members},
    intent::{Intent, State},
    keys::{ACKNOWLEDGED, Evidence, OBSERVED_GENERATION, PENDING, Standing},
    lease::{LeaseView, Leases},
    object::ObjectView,
    scope::{self, Ruled},
};

use super::{
    config::{Config, Flaw, LeaseOf, Reached},
    memo::memo,
    object::{CLUSTER, KINDS, Parts, Role, Rules, Shared, input, lease},
    world::{Companion, Job, MOST, World, incarnation},
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
    if config.leases == LeaseOf::Managers {
        for slot in 0..config.slots {
            renew(&mut leases, world, slot);
        }
    }
    leases.synced();
    let mut companion = Companion {
        start: world.now,
        cache: std::array::from_fn(|slot| world.slots[slot].stored.clone()),
        unchanged: [world.now; MOST],
        gone: [world.now; MOST],
        trackers: std::array::from_fn(|_| Shared::new(Tracker::new(""))),
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
            if !world.controllers[slot].is_frozen {
                renew(&mut leases, world, slot);
            }
        }
        world.companions[who].leases = Shared::new(leases);
    }
}

/// Where times are kept as ages: everything that is remembered is a tick older, down to an age that no comparison tells
/// from a greater one.
pub(crate) fn age(companion: &mut Companion) {
    companion.start = companion.start.saturating_sub(1);
    companion.hook = companion
        .hook
        .map(|(version, since)| (version, since.saturating_sub(1)));
    companion.unchanged = companion.unchanged.map(|since| since.saturating_sub(1));
    companion.gone = companion.gone.map(|since| since.saturating_sub(1));
    if let Job::List { at, .. } = &mut companion.job {
        *at = at.saturating_sub(1);
    }
    for tracker in &mut companion.trackers {
        *tracker = memo(("age", &*tracker), || {
            let mut older = (**tracker).clone();
            older.map_times(|at| Moment(at.0.saturating_sub(Duration::from_secs(1))));
            Shared::new(older)
        });
    }
}

/// The watch shows the newest version of an object.
pub(crate) fn deliver(world: &mut World, config: &Config, who: usize, slot: usize) {
    let now = world.now;
    let stored = world.slots[slot].stored.clone();
    // Before the world is set up there is nobody yet.
    if let Some(companion) = world.companions.get_mut(who) {
        let before = std::mem::replace(&mut companion.cache[slot], stored);
        let uid = companion.cache[slot].as_ref().map(|object| &object.metadata.uid);
        if before.as_ref().is_some_and(|before| Some(&before.metadata.uid) != uid) {
            companion.gone[slot] = now;
        }
        if let Some(object) = &companion.cache[slot] {
            // Events come one by one, so the first is its creation, and none is passed over.
            let known = before.filter(|before| before.metadata.uid == object.metadata.uid);
            let turns = known.as_ref().map_or(0, |known| known.turns());
            if turns != object.turns() {
                companion.unchanged[slot] = now;
                // Even if it is a member again: not without a break.
                observe_members(companion, config, now, Some(slot));
            } else if known.is_none() {
                companion.unchanged[slot] = 0;
            }
        }
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

fn ruled(config: &Config, objects: &[Option<Shared<ObjectView>>; MOST]) -> Vec<Ruled> {
    (1..config.slots)
        .filter_map(|slot| Some(config.rules.ruled(slot, objects[slot].as_ref()?)))
        .collect()
}

fn notice(companion: &mut Companion, config: &Config, now: u8, slot: usize) {
    let tracker = &companion.trackers[slot];
    companion.trackers[slot] = match &companion.cache[slot] {
        None => Shared::new(Tracker::new("")),
        Some(object) => memo(("observe", now, slot, tracker, object), || {
            let mut tracker = (**tracker).clone();
            tracker.observe(moment(now), &config.rules.0[slot], object);
            Shared::new(tracker)
        }),
    };
    observe_members(companion, config, now, None);
}

fn observe_members(companion: &mut Companion, config: &Config, now: u8, but: Option<usize>) {
    let mut cache = companion.cache.clone();
    if let Some(slot) = but {
        cache[slot] = None;
    }
    if let Some(cluster) = &cache[CLUSTER] {
        let tracker = &companion.trackers[CLUSTER];
        let key = ("members", config.second, now, tracker, &cache);
        companion.trackers[CLUSTER] = memo(key, || {
            let all = ruled(config, &cache);
            let found = scope::members(cluster, &config.rules.0[CLUSTER], &all, &Rules::has).members;
            let uids: BTreeSet<String> = found.iter().map(|ruled| ruled.object.metadata.uid.clone()).collect();
            let mut tracker = (**tracker).clone();
            tracker.observe_members(moment(now), &uids);
            Shared::new(tracker)
        });
    }
}

impl World {
    pub(crate) fn ground<'a>(&self, companion: &'a Companion, guard: Option<&'a Guard>) -> Ground<'a> {
        Ground {
            now: moment(self.now),
            start: moment(companion.start),
            guard,
            leases: &companion.leases,
        }
    }

    /// The webhook configuration, read consistently.
    pub(crate) fn guard(&self, companion: &Companion) -> Option<Guard> {
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
        let cache = (&companion.leases, &companion.cache);
        let key = ("baselines", slot, config.second, times, tracker, cache);
        let taken = memo(key, || {
            let seen = companion.hook.map(|(version, since)| guard(version, since));
            let flipped = config.rules.ruled(slot, flipped);
            let all = if slot == CLUSTER {
                ruled(config, &companion.cache)
            } else {
                Vec::new()
            };
            let found = scope::members(&flipped.object, &flipped.rule, &all, &Rules::has).members;
            let mut tracker = (**tracker).clone();
            tracker.take_baselines(&self.ground(companion, seen.as_ref()), moment(view), &flipped, &found);
            Shared::new(tracker)
        });
        if taken.baselines() > tracker.baselines() {
            config.reached(Reached::BaselineTaken);
        }
        self.companions[who].trackers[slot] = taken;
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
            at: self.now,
            leases: self.companions[who].leases.clone(),
            flipped,
            listed: [None, None, None],
            mask: 0,
            next: 0,
        };
        let asks = self.slots[slot].stored.as_ref().is_some_and(|object| {
            memo(("asks", slot, object), || {
                asks_members(&config.rules.ruled(slot, object))
            })
        });
        if slot != CLUSTER || config.slots == 1 || !asks {
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
        let asked = self.may_be_reconciled(config) & (1 << slot);
        if let Job::List { listed, next, mask, .. } = &mut self.companions[who].job {
            listed[slot] = object;
            *mask |= asked;
            *next += 1;
            if *next + 1 == config.slots {
                self.decide(config, who);
            }
        }
    }

    fn decide(&mut self, config: &Config, who: usize) {
        let Job::List {
            slot,
            at,
            leases,
            flipped,
            listed,
            mask,
            ..
        } = std::mem::replace(&mut self.companions[who].job, Job::Idle)
        else {
            return;
        };
        let companion = &self.companions[who];
        let guard = self.guard(companion);
        let (at, leases) = if config.flaw == Some(Flaw::LateMoment) {
            (self.now, companion.leases.clone())
        } else {
            (at, leases)
        };
        let times = (self.now, at, companion.start, &guard, config.bound, config.grace);
        let tracker = &companion.trackers[slot];
        // What the watch has not shown yet may have changed just now.
        let unchanged: [Option<u8>; MOST] = std::array::from_fn(|child| {
            let read = if child == slot {
                Some(&flipped)
            } else {
                listed[child].as_ref()
            };
            let (seen, read) = (companion.cache[child].as_ref()?, read?);
            let shows = seen.metadata.uid == read.metadata.uid && seen.turns() >= read.turns();
            shows.then_some(companion.unchanged[child])
        });
        let lists = (&leases, &flipped, &listed, unchanged, companion.gone);
        let key = ("look", slot, config.second, times, tracker, lists);
        let (tracker, verdict) = memo(key, || {
            let all = ruled(config, &listed);
            let mut tracker = (**tracker).clone();
            let flipped = config.rules.ruled(slot, &flipped);
            tracker.observe(moment(self.now), &flipped.rule, &flipped.object);
            let ground = Ground {
                now: moment(at),
                leases: &leases,
                ..self.ground(companion, guard.as_ref())
            };
            let kinds = config.rules.0.iter().zip(companion.gone).skip(1);
            let gone: Vec<Gone> = kinds
                .map(|(rule, since)| Gone {
                    rule: rule.clone(),
                    since: moment(since),
                })
                .collect();
            let around = Surroundings {
                has_rule: &Rules::has,
                unchanged_since: &|ruled| {
                    let slot = KINDS.iter().position(|kind| *kind == ruled.object.kind)?;
                    unchanged[slot].map(moment)
                },
                belongs_elsewhere: &|_| false,
                gone: &gone,
            };
            let verdict = tracker.look(&ground, &flipped, &all, &around);
            if config.grace.is_none() {
                tracker.forget_progress();
            }
            (Shared::new(tracker), Rc::new(verdict))
        });
        let uid = incarnation(&flipped);
        self.companions[who].trackers[slot] = tracker;
        match &*verdict {
            Verdict::Quiet => {}
            Verdict::Irregular => {
                config.reached(Reached::Irregular);
                if flipped.key(ACKNOWLEDGED) != Some(PENDING) || self.hook.keys {
                    self.companions[who].job = Job::Mark { slot, uid };
                }
            }
            Verdict::Wait(waiting) => self.wait(config, slot, &flipped, waiting),
            Verdict::Echo(echo) => {
                note(config, echo);
                // A clean flip asks whom its own inputs concern; for the others the last echo stands.
                let field = input(0);
                let clean = flipped.key(OBSERVED_GENERATION) == Some((echo.stamp.generation - 1).to_string().as_str());
                let asks_field = !clean || echo.stamp.before.has(&field) != echo.stamp.after.has(&field);
                let scope = if asks_field || slot != CLUSTER {
                    self.promised(config, slot, &listed, mask, flipped.on(0))
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

    fn wait(&mut self, config: &Config, slot: usize, flipped: &Shared<ObjectView>, waiting: &Waiting) {
        for laggard in &waiting.laggards {
            config.reached(match laggard.lag {
                Lag::Missing => Reached::SaysNothing,
                Lag::Disagrees => Reached::Disagrees,
                Lag::Settling => Reached::Settling,
                Lag::Leaving => Reached::Leaving,
                Lag::Gone => Reached::Gone,
            });
        }
        if waiting.not_reporting {
            config.reached(Reached::NotReporting);
        }
        if !waiting.unruled.is_empty() {
            config.reached(Reached::Unruled);
        }
        // Under the optimistic lock.
        if config.conditions
            && self.slots[slot].stored.as_ref() == Some(flipped)
            && let Standing::Own(record) = Standing::of(&config.rules.0[slot].group_kind, flipped)
        {
            config.reached(Reached::ConditionPending);
            let pending = condition::pending(flipped, record.stamp.generation, waiting);
            self.write_condition(config, slot, &pending);
        }
    }

    /// Whom an echo that is decided now speaks for.
    fn promised(
        &self,
        config: &Config,
        slot: usize,
        listed: &[Option<Shared<ObjectView>>; MOST],
        mask: u8,
        paused: bool,
    ) -> u8 {
        if slot != CLUSTER {
            return 0;
        }
        if !paused {
            return mask & self.slots[CLUSTER].at_stamp & self.are_there(config);
        }
        // What a controller has made between two lists must not be there.
        let made: u8 = (1..config.slots)
            .filter(|child| config.creator && listed[*child].is_none())
            .fold(0, |mask, child| mask | 1 << child);
        mask | self.may_be_reconciled(config) & made
    }
}

/// What an echo rests on.
fn note(config: &Config, echo: &Echo) {
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
    if !echo.excluded.is_empty() {
        config.reached(Reached::Excluded);
    }
    // Without any baseline the flipped object's own generation is all that there is.
    if echo.evidence == Evidence::Attested && echo.objects == 1 && !config.warm {
        config.reached(Reached::OwnGeneration);
    }
    if config.second == Role::Vague && echo.objects == 3 && echo.state == State::Paused {
        config.reached(Reached::Unclear);
    }
    if config.second == Role::Bound && echo.objects == 3 {
        config.reached(Reached::OnlyTime);
    }
}
