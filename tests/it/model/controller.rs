//! Cluster API's controllers: `EnsurePausedCondition` of its `util/paused`, and what comes after it.

use super::{
    config::{Config, Flaw},
    object::{CLUSTER, Parts, Paused, blank},
    world::{Flight, World},
};

impl World {
    /// What a reconcile that begins now would do; `None` where it would do nothing.
    pub(crate) fn reconcile(&self, config: &Config, who: usize) -> Option<Flight> {
        let controller = &self.controllers[who];
        let own = controller.own.shown?;
        // A child is reconciled with its Cluster at hand, or not at all.
        let parent = if who == CLUSTER {
            None
        } else {
            Some(controller.parent.shown.filter(|_| own.member)?)
        };
        let wanted = Paused {
            field: parent.unwrap_or(own).on[0],
            annotation: own.on[1],
            observed: own.generation,
        };
        let same = own.paused == Some(wanted);
        let only_observed = own
            .paused
            .is_some_and(|p| (p.field, p.annotation) == (wanted.field, wanted.annotation))
            && !same;
        let work = !wanted.is_true() && (same || only_observed);
        if wanted.is_true() && same || (work && same && !config.work) {
            return None;
        }
        Some(Flight {
            own,
            parent,
            write: (!same).then_some(wanted),
            work,
            stale: match (controller.own.stale_since(), controller.parent.stale_since()) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        })
    }

    /// A reconcile ends. The decision it made at its beginning is applied to whatever object is there by now: the patch
    /// helper reads again on a conflict.
    pub(crate) fn land(&mut self, config: &Config, who: usize, fail: bool, create: bool) {
        let Some(flight) = self.controllers[who].flight.take() else {
            return;
        };
        if create {
            self.create(config, who + 1, blank(who + 1, true));
        }
        if let Some(paused) = flight.write.filter(|_| !fail) {
            self.write_status(config, who, |object| object.set_paused(paused));
        }
    }

    pub(crate) fn restart(&mut self, config: &Config, who: usize) {
        let controller = &mut self.controllers[who];
        controller.flight = None;
        if config.flaw == Some(Flaw::OldRestart) {
            for cache in [&mut controller.own, &mut controller.parent] {
                let mut all: Vec<_> = cache.past.drain(..).collect();
                if all.is_empty() {
                    continue;
                }
                all.push(cache.shown);
                cache.shown = all.remove(0);
                let rest = all.into_iter().map(|brief| (self.now, brief));
                cache.coming = rest.chain(cache.coming.drain(..)).collect();
            }
        }
    }

    /// Since when a controller has held or worked on a view that is overtaken.
    pub(crate) fn stale_since(&self, who: usize) -> Option<u8> {
        let controller = &self.controllers[who];
        [
            controller.own.stale_since(),
            controller.parent.stale_since(),
            controller.flight.and_then(|flight| flight.stale),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
