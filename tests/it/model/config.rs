//! What a world consists of, and how far it goes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use pausegen::protocol::mutant::Mutant;

use super::{
    act::Person,
    object::{Role, Rules, Way},
    world::Left,
};

/// A rule of the companion's I/O, or an assumption, that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flaw {
    /// The echo does not test the uid.
    EchoNoUid,
    /// The echo tests nothing.
    EchoNoTest,
    /// What is owned is listed before its owner.
    ChildrenFirst,
    /// The look goes by the watch cache.
    CacheLook,
    /// Time is told when a look has shown everything, not before it began.
    LateMoment,
    /// A controller that restarts may read what is older than what it attested.
    OldRestart,
    /// A controller that runs may hold and work on a view that is older than the bound.
    OlderThanBound,
}

/// What is to be reached at least once, or the check has not seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reached {
    // Evidence, and what is acknowledged.
    Attested,
    Settled,
    OwnGeneration,
    Unclear,
    OnlyTime,
    LeaseAbsent,
    Excluded,
    Paused,
    PausedSelf,
    Running,
    // What is waited for.
    SaysNothing,
    Disagrees,
    Settling,
    Leaving,
    Gone,
    Unruled,
    NotReporting,
    // Flips.
    Clean,
    Hasty,
    Created,
    Restored,
    Touched,
    Repaired,
    PutBack,
    // The companion.
    Irregular,
    LostRace,
    Marked,
    BaselineTaken,
    ConditionTrue,
    ConditionFalse,
    ConditionPending,
    Raised,
    LeftBehind,
}

/// All of them.
pub(crate) const ALL: [Reached; 33] = {
    use Reached::*;
    [
        Attested,
        Settled,
        OwnGeneration,
        Unclear,
        OnlyTime,
        LeaseAbsent,
        Excluded,
        Paused,
        PausedSelf,
        Running,
        SaysNothing,
        Disagrees,
        Settling,
        Leaving,
        Gone,
        Unruled,
        NotReporting,
        Clean,
        Hasty,
        Created,
        Restored,
        Touched,
        Repaired,
        PutBack,
        Irregular,
        LostRace,
        Marked,
        BaselineTaken,
        ConditionTrue,
        ConditionFalse,
        ConditionPending,
        Raised,
        LeftBehind,
    ]
};

/// Whether the rules name Leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseOf {
    Nobody,
    /// They do, and the managers renew them.
    Managers,
    /// They do, and there are none.
    Absent,
}

/// A world.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) rules: Arc<Rules>,
    /// The Cluster and its children.
    pub(crate) slots: usize,
    /// What child 2 is.
    pub(crate) second: Role,
    /// Child 2 does not exist at first; child 1's controller creates it.
    pub(crate) creator: bool,
    /// A child that is no member at first, with the condition of an earlier life.
    pub(crate) outsider: Option<usize>,
    /// The flips that people make: slot, field, annotation.
    pub(crate) flips: Vec<(usize, bool, bool)>,
    /// What may come and go.
    pub(crate) ways: Vec<(usize, Way)>,
    /// What people delete.
    pub(crate) deletable: Vec<usize>,
    /// What people do, in this order; where it is empty they do whatever `left` allows.
    pub(crate) script: Vec<Person>,
    pub(crate) left: Left,
    /// How far time goes from the start of the world; `None`: as far as it likes, and times are kept as ages.
    pub(crate) ticks: Option<u8>,
    /// The staleness bound, in ticks.
    pub(crate) bound: u8,
    /// How long nothing may move before a silent one is called so, in ticks; `None`: that is not looked at.
    pub(crate) grace: Option<u8>,
    pub(crate) companions: usize,
    /// Whether the companion's watch lags.
    pub(crate) lag: bool,
    /// Whether the API server enforces a webhook configuration some time after it stands.
    pub(crate) late: bool,
    /// Whether kinds are listed one at a time.
    pub(crate) split: bool,
    pub(crate) leases: LeaseOf,
    /// Whether the companion writes its condition. No decision reads it, so worlds without it are about the annotations.
    pub(crate) conditions: bool,
    /// The Cluster's own controller sees and answers at once: a world that is about its child stays small.
    pub(crate) prompt: bool,
    /// Whether the keys webhook can be away alone.
    pub(crate) keys_away: bool,
    /// The world begins with baselines: the bound has passed.
    pub(crate) warm: bool,
    /// Of how many states one is tried for how it goes on when people stop; 0: none.
    pub(crate) lively: u64,
    /// When the check stops, exhausted or not.
    pub(crate) until: Option<Instant>,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) flaw: Option<Flaw>,
    seen: Arc<AtomicU64>,
}

impl Config {
    /// A Cluster and `children`, whose field is flipped `flips` times.
    pub(crate) fn new(children: usize, flips: u8) -> Self {
        Self {
            rules: Arc::new(Rules(Vec::new())),
            slots: children + 1,
            second: Role::Member,
            creator: false,
            outsider: None,
            flips: vec![(0, true, false)],
            ways: Vec::new(),
            deletable: Vec::new(),
            script: Vec::new(),
            left: Left {
                flips,
                ..Left::default()
            },
            ticks: Some(0),
            bound: 2,
            grace: None,
            companions: 1,
            lag: false,
            late: false,
            split: false,
            leases: LeaseOf::Nobody,
            conditions: false,
            prompt: false,
            keys_away: false,
            warm: true,
            lively: 0,
            until: None,
            mutant: None,
            flaw: None,
            seen: Arc::default(),
        }
        .with(|_| {})
    }

    /// Changes it.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        let leases = self.leases != LeaseOf::Nobody;
        let grace = self.grace.unwrap_or(100);
        self.rules = Arc::new(Rules::new(
            self.slots,
            self.bound,
            leases,
            self.second,
            grace,
            &self.ways,
        ));
        self.seen = Arc::default();
        self
    }

    /// Whether time has no end. Ages say everything as long as no two past times are compared with each other: a Lease, or a
    /// watch that lags, does that.
    pub(crate) fn is_timeless(&self) -> bool {
        self.ticks.is_none()
    }

    /// How long it takes for baselines to be taken: what stands is trusted after the bound, and views after another.
    pub(crate) fn warm_up(&self) -> u8 {
        2 * self.bound + u8::from(self.leases == LeaseOf::Managers)
    }

    /// The time at the start of the world.
    pub(crate) fn first(&self) -> u8 {
        // What is remembered and no look keeps at hand is never told from what is twice the bound old and a tick more.
        match self.is_timeless() {
            true => 2 * self.bound + 1 + self.longest_look(),
            false => 0,
        }
    }

    /// How long a look takes at most, in ticks, where times are kept as ages.
    pub(crate) fn longest_look(&self) -> u8 {
        if self.split { self.bound } else { 0 }
    }

    /// Whether the object in a slot is ever flipped.
    pub(crate) fn tracks(&self, slot: usize) -> bool {
        slot == 0
            || self.flips.iter().any(|(flipped, ..)| *flipped == slot)
            || self
                .script
                .iter()
                .any(|person| matches!(person, Person::Flip { slot: flipped, .. } if *flipped == slot))
    }

    pub(crate) fn reached(&self, what: Reached) {
        self.seen.fetch_or(1 << what as u64, Ordering::Relaxed);
    }

    pub(crate) fn all_reached(&self) -> Vec<Reached> {
        ALL.into_iter().filter(|what| self.has_reached(*what)).collect()
    }

    pub(crate) fn has_reached(&self, what: Reached) -> bool {
        self.seen.load(Ordering::Relaxed) & (1 << what as u64) != 0
    }
}
