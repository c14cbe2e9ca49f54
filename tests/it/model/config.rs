//! What a world consists of, and how far it goes.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pausegen::protocol::mutant::Mutant;

use super::{act::Person, object::Rules, world::Left};

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
    /// A controller that restarts may read what is older than what it attested.
    OldRestart,
}

/// What is to be reached at least once, or the check has not seen it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Reached {
    Attested,
    Settled,
    Paused,
    PausedSelf,
    Running,
    Clean,
    Hasty,
    WithoutBaseline,
    Missing,
    Disagrees,
    Irregular,
    Repaired,
    Restored,
    PutBack,
    Raised,
    LostRace,
    LeaseAbsent,
    ConditionTrue,
    ConditionFalse,
}

/// A world.
#[derive(Clone)]
pub(crate) struct Config {
    pub(crate) rules: Arc<Rules>,
    /// The Cluster and its children.
    pub(crate) slots: usize,
    /// Child 2 does not exist at first; child 1's controller creates it.
    pub(crate) creator: bool,
    /// A child that is no member at first, with the condition of an earlier life.
    pub(crate) outsider: Option<usize>,
    /// The flips that people make: slot, field, annotation.
    pub(crate) flips: Vec<(usize, bool, bool)>,
    /// What people delete.
    pub(crate) deletable: Vec<usize>,
    /// What people do, in this order; where it is empty they do whatever `left` allows.
    pub(crate) script: Vec<Person>,
    pub(crate) left: Left,
    /// How far time goes from the start of the world.
    pub(crate) ticks: u8,
    /// The staleness bound, in ticks.
    pub(crate) bound: u8,
    pub(crate) companions: usize,
    /// Whether the companion's watch lags.
    pub(crate) lag: bool,
    /// Whether kinds are listed one at a time.
    pub(crate) split: bool,
    /// Whether work that writes nothing is in flight too.
    pub(crate) work: bool,
    pub(crate) leases: bool,
    /// The Cluster's own controller sees and answers at once: a world that is about its child stays small.
    pub(crate) prompt: bool,
    /// Whether the keys webhook can be away alone.
    pub(crate) keys_away: bool,
    /// The world begins with baselines: the bound has passed.
    pub(crate) warm: bool,
    pub(crate) mutant: Option<Mutant>,
    pub(crate) flaw: Option<Flaw>,
    seen: Arc<AtomicU64>,
}

impl Config {
    /// The smallest world: a Cluster and `children`, whose field is flipped `flips` times.
    pub(crate) fn new(children: usize, flips: u8) -> Self {
        let bound = 2;
        Self {
            rules: Arc::new(Rules::new(children + 1, bound, false)),
            slots: children + 1,
            creator: false,
            outsider: None,
            flips: vec![(0, true, false)],
            deletable: Vec::new(),
            script: Vec::new(),
            left: Left {
                flips,
                ..Left::default()
            },
            ticks: 0,
            bound,
            companions: 1,
            lag: false,
            split: false,
            work: false,
            leases: false,
            prompt: false,
            keys_away: false,
            warm: true,
            mutant: None,
            flaw: None,
            seen: Arc::default(),
        }
    }

    /// Changes it.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self.rules = Arc::new(Rules::new(self.slots, self.bound, self.leases));
        self.seen = Arc::default();
        self
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
        use Reached::*;
        let all = [
            Attested,
            Settled,
            Paused,
            PausedSelf,
            Running,
            Clean,
            Hasty,
            WithoutBaseline,
            Missing,
            Disagrees,
            Irregular,
            Repaired,
            Restored,
            PutBack,
            Raised,
            LostRace,
            LeaseAbsent,
            ConditionTrue,
            ConditionFalse,
        ];
        all.into_iter().filter(|what| self.has_reached(*what)).collect()
    }

    pub(crate) fn has_reached(&self, what: Reached) -> bool {
        self.seen.load(Ordering::Relaxed) & (1 << what as u64) != 0
    }
}
