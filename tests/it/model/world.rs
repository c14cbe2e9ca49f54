//! The state of the world: what the API server stores, and what controllers and companions hold.

use pausegen::protocol::{
    evidence::{Echo, Tracker},
    intent::Intent,
    keys::Standing,
    lease::Leases,
    object::ObjectView,
};

use super::{
    config::Config,
    memo::memo,
    object::{CLUSTER, Parts, Paused, Role, Shared, Way},
};

/// How many objects there are at most.
pub(crate) const MOST: usize = 3;

/// How often the inputs of an object have been flipped so far: the ghost that tells how old a view is.
pub(crate) type Flips = [u8; 2];

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Where times are kept as ages this never moves: see [`World::tick`].
    pub(crate) now: u8,
    pub(crate) slots: [Slot; MOST],
    pub(crate) controllers: [Controller; MOST],
    pub(crate) companions: Vec<Companion>,
    pub(crate) hook: Hook,
    pub(crate) left: Left,
    /// What a single step did that must never be done.
    pub(crate) bad: Option<&'static str>,
}

/// One named object of the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) stored: Option<Shared<ObjectView>>,
    /// The incarnation, that is the uid, of the last object of this name.
    pub(crate) uid: u8,
    pub(crate) flips: Flips,
    /// `flips` as of the last stamp, for the inputs that it asks about.
    pub(crate) stamped: Flips,
    /// Of the Cluster: the children that may have been reconciled as members at the last stamp (a bit each).
    pub(crate) at_stamp: u8,
    /// Those whom the acknowledgement speaks for.
    pub(crate) scope: u8,
    /// The object as it was when it was deleted, for a restore.
    pub(crate) grave: Option<Shared<ObjectView>>,
}

/// What a controller reads of an object. What it does not read is left at its default, so that versions which it cannot
/// tell apart are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Brief {
    pub(crate) uid: u8,
    pub(crate) on: [bool; 2],
    /// Whether its controller reconciles it; of a child: as a member of the Cluster.
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
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) struct Controller {
    pub(crate) own: Cache,
    /// The Cluster; of the Cluster's own controller it stays empty.
    pub(crate) parent: Cache,
    pub(crate) is_frozen: bool,
    /// When it was last thawed: its views may be stale for the bound from then on.
    pub(crate) thawed: u8,
    /// When it was frozen.
    pub(crate) frozen: u8,
    /// Who holds the Lease.
    pub(crate) term: u8,
}

/// A process of the companion.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Companion {
    pub(crate) start: u8,
    pub(crate) cache: [Option<Shared<ObjectView>>; MOST],
    /// Since when the watch has shown no change of what says who has to answer for an object; 0: from its creation on.
    pub(crate) unchanged: [u8; MOST],
    /// When the watch last showed that an object is gone, or may have passed that over.
    pub(crate) gone: [u8; MOST],
    pub(crate) trackers: [Shared<Tracker>; MOST],
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
        /// When it began.
        at: u8,
        leases: Shared<Leases>,
        flipped: Shared<ObjectView>,
        listed: [Option<Shared<ObjectView>>; MOST],
        /// The children that might have been reconciled as members when they were listed (a bit each).
        mask: u8,
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
    /// Whether the configuration of the flip webhook stands, as it is stored.
    pub(crate) flip: bool,
    /// Whether the API server calls it: its own view of the configuration lags.
    pub(crate) enforced: bool,
    pub(crate) keys: bool,
    /// Its uid or `metadata.generation`: another whenever it comes back.
    pub(crate) version: u8,
    /// When it was last changed.
    pub(crate) at: u8,
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
    pub(crate) script: u8,
}

impl World {
    /// Whether an object is a member of the Cluster.
    pub(crate) fn is_member(&self, config: &Config, slot: usize) -> bool {
        let has = |slot: usize, way| self.slots[slot].stored.as_ref().is_some_and(|object| object.has(way));
        match config.second {
            Role::Owned if slot == 2 => has(2, Way::Owner) && has(1, Way::Label),
            Role::Referenced if slot == 2 => self.slots[2].stored.is_some() && has(1, Way::Label),
            _ => slot != CLUSTER && has(slot, Way::Label),
        }
    }

    /// Whether its controller reconciles it; of a child: as a member of the Cluster.
    fn is_reconciled(&self, config: &Config, slot: usize) -> bool {
        let Some(object) = self.slots[slot].stored.as_ref() else {
            return false;
        };
        let waits = slot == 2 && config.second == Role::Ownerless && !object.has(Way::Owner);
        (slot == CLUSTER || self.is_member(config, slot))
            && object.has(Way::Here)
            && object.has(Way::Attestor)
            && !waits
    }

    /// The children that have somebody to answer for them, and whose controllers see them, or may come to see them, as members
    /// to reconcile: because they are, or because it is not known everywhere that they are not any more, or are gone (a bit
    /// each).
    pub(crate) fn may_be_reconciled(&self, config: &Config) -> u8 {
        (1..config.slots)
            .filter(|slot| {
                let mut views = self.controllers[*slot].own.views();
                let is_asked = !(*slot == 2 && config.second == Role::NotAsked);
                is_asked && views.any(|brief| brief.member)
            })
            .fold(0, |mask, slot| mask | 1 << slot)
    }

    /// Those of them that are there.
    pub(crate) fn are_there(&self, config: &Config) -> u8 {
        (1..config.slots)
            .filter(|slot| {
                let Slot { stored, uid, .. } = &self.slots[*slot];
                let mut views = self.controllers[*slot].own.views();
                stored.is_some() && views.any(|brief| brief.member && brief.uid == *uid)
            })
            .fold(0, |mask, slot| mask | 1 << slot)
            & self.may_be_reconciled(config)
    }

    /// What the controller of `who` reads of the object in `slot`.
    pub(crate) fn brief(&self, config: &Config, who: usize, slot: usize) -> Option<Brief> {
        let object = self.slots[slot].stored.as_ref()?;
        let Slot { uid, flips, .. } = self.slots[slot];
        if who != slot {
            return Some(Brief {
                uid,
                on: [object.on(0), false],
                member: false,
                generation: 0,
                paused: None,
                flips: [flips[0], 0],
            });
        }
        Some(Brief {
            uid,
            on: [object.on(0), object.on(1)],
            member: self.is_reconciled(config, slot),
            generation: object.generation(),
            paused: object.paused(),
            flips,
        })
    }

    /// Stores an object (or its absence) and sends it to everybody who watches it.
    pub(crate) fn store(&mut self, config: &Config, slot: usize, object: Option<Shared<ObjectView>>) {
        self.slots[slot].stored = object;
        let now = self.now;
        for who in (0..config.slots).filter(|who| *who == slot || slot == CLUSTER) {
            let brief = self.brief(config, who, slot);
            let controller = &mut self.controllers[who];
            let cache = if who == slot {
                &mut controller.own
            } else {
                &mut controller.parent
            };
            if cache.last() != brief {
                cache.coming.push((now, brief));
            }
        }
        // Child 2 is a member through child 1, and its controller reads both.
        if slot == 1 && matches!(config.second, Role::Owned | Role::Referenced) && self.slots[2].stored.is_some() {
            let brief = self.brief(config, 2, 2);
            let own = &mut self.controllers[2].own;
            if own.last() != brief {
                own.coming.push((now, brief));
            }
        }
        if !config.lag {
            for who in 0..self.companions.len() {
                super::companion::deliver(self, config, who, slot);
            }
        }
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
}

impl Cache {
    pub(crate) fn new(shown: Option<Brief>) -> Self {
        Self {
            shown,
            ..Self::default()
        }
    }

    /// What it shows, and what it may come to show.
    pub(crate) fn views(&self) -> impl Iterator<Item = &Brief> {
        let coming = self.coming.iter().map(|(_, brief)| brief);
        [&self.shown].into_iter().chain(coming).flatten()
    }

    pub(crate) fn last(&self) -> Option<Brief> {
        self.coming.last().map_or(self.shown, |(_, brief)| *brief)
    }

    /// What it shows after `n` more versions.
    pub(crate) fn after(&self, n: usize) -> Option<Brief> {
        match n {
            0 => self.shown,
            n => self.coming[n - 1].1,
        }
    }

    pub(crate) fn stale_since(&self) -> Option<u8> {
        self.coming.first().map(|(born, _)| *born)
    }

    /// The next `n` versions arrive.
    pub(crate) fn advance(&mut self, n: usize, keep: bool) {
        for (_, brief) in self.coming.drain(..n) {
            let before = std::mem::replace(&mut self.shown, brief);
            if keep {
                self.past.push(before);
            }
        }
    }
}

pub(crate) fn uid(slot: usize, incarnation: u8) -> String {
    format!("{slot}-{incarnation}")
}

pub(crate) fn incarnation(object: &ObjectView) -> u8 {
    let (_, incarnation) = object.metadata.uid.split_once('-').unwrap();
    incarnation.parse().unwrap()
}
