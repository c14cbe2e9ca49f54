//! Whether a manager is seen to be alive, from its leader Lease and our own monotonic clock.
//!
//! The staleness bound speaks of a manager that runs. A frozen one renews nothing, so time counts only between renewals
//! that were seen, by one holder, close enough to each other.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Moment,
    mutant::{self, Mutant},
    rule::LeaseName,
};

/// A Lease, as far as it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct LeaseView {
    /// `spec.holderIdentity`; empty where it is released.
    pub holder: String,
    /// `spec.leaseTransitions`.
    pub transitions: i32,
    /// `spec.renewTime`, as it is written; only compared for equality.
    pub renew_time: String,
    /// `spec.leaseDurationSeconds`.
    pub duration: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Seen {
    view: LeaseView,
    /// Since when renewals are seen without a gap; `None` before the first that was seen.
    alive: Option<Alive>,
}

/// A stretch of time in which one holder was seen to renew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Alive {
    /// The first renewal that was seen.
    pub since: Moment,
    /// The last renewal that was seen.
    pub until: Moment,
}

/// The Leases that the rules name, as this process has seen them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Leases {
    /// Per Lease name, the smallest staleness bound that rests on it. A stall that goes unnoticed must stay below it.
    bounds: BTreeMap<String, Duration>,
    seen: BTreeMap<(String, String), Seen>,
    synced: bool,
}

/// What is known of a manager from its Lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The Leases have not been read yet.
    Unknown,
    /// There is no Lease of that name.
    Absent,
    /// There is one, and no renewal by its holder has been seen.
    Silent,
    /// Renewals have been seen.
    Alive(Alive),
}

impl Leases {
    /// No Lease seen yet. `bounds`: per Lease name, the smallest staleness bound of the rules that name it.
    #[must_use]
    pub fn new(bounds: BTreeMap<String, Duration>) -> Self {
        Self {
            bounds,
            ..Self::default()
        }
    }

    /// All Leases that there are have been observed: what is not known now is absent.
    pub fn synced(&mut self) {
        self.synced = true;
    }

    /// A Lease, as it was seen at `now`.
    pub fn observe(&mut self, now: Moment, namespace: &str, name: &str, view: LeaseView) {
        let limit = self
            .bounds
            .get(name)
            .map_or(view.duration, |bound| view.duration.min(*bound));
        let fresh = Some(Alive { since: now, until: now });
        let key = (namespace.to_owned(), name.to_owned());
        let alive = match self.seen.get(&key) {
            _ if view.holder.is_empty() => None,
            // The first sight is no renewal: it may be a frozen holder's last one.
            None => None,
            Some(seen)
                if (seen.view.holder != view.holder || seen.view.transitions != view.transitions)
                    && !mutant::on(Mutant::LeaseHands) =>
            {
                fresh
            }
            Some(seen) if seen.view.renew_time == view.renew_time => seen.alive,
            Some(seen) => match seen.alive {
                Some(alive) if now.since(alive.until) <= limit => Some(Alive {
                    since: alive.since,
                    until: now,
                }),
                _ => fresh,
            },
        };
        self.seen.insert(key, Seen { view, alive });
    }

    /// A Lease was deleted.
    pub fn remove(&mut self, namespace: &str, name: &str) {
        self.seen.remove(&(namespace.to_owned(), name.to_owned()));
    }

    fn matching(&self, lease: &LeaseName) -> impl Iterator<Item = (&(String, String), &Seen)> {
        self.seen.iter().filter(|((namespace, name), _)| {
            *name == lease.name && lease.namespace.as_ref().is_none_or(|n| n == namespace)
        })
    }

    /// What is known. Where several namespaces have a Lease of the name, all of them have to be alive.
    #[must_use]
    pub fn proof(&self, lease: &LeaseName) -> Proof {
        if !self.synced {
            return Proof::Unknown;
        }
        let mut all: Option<Alive> = None;
        for (_, seen) in self.matching(lease) {
            let Some(alive) = seen.alive else { return Proof::Silent };
            all = Some(all.map_or(alive, |a| Alive {
                since: a.since.max(alive.since),
                until: a.until.min(alive.until),
            }));
        }
        all.map_or(Proof::Absent, Proof::Alive)
    }

    /// Who holds the Lease and for the how-manieth time: another text means that another process acts.
    #[must_use]
    pub fn term(&self, lease: &LeaseName) -> String {
        let terms: Vec<_> = self
            .matching(lease)
            .map(|((namespace, _), seen)| format!("{namespace}/{}#{}", seen.view.holder, seen.view.transitions))
            .collect();
        terms.join(",")
    }
}
