//! Cluster API's controllers: `EnsurePausedCondition` of its `util/paused`, and what comes after it.
//!
//! A controller of the model does nothing before it must: its caches take in new versions, and a reconcile begins, only in
//! the step in which that reconcile writes, and then only as many versions as this write takes. That loses no false
//! acknowledgement. Of any run with caches that advance by themselves and reconciles that take their time, put off each
//! advance and each beginning until just before the next write of the same controller: what a reconcile does depends on
//! nothing but its controller's views, so it writes the same; nobody else sees the difference; and until then the
//! controller's views are older than they were, so whatever was false still is. The result is a run of the model, and each run
//! of the model is one that can happen. For the same reason a write needs not be tried from views that are newer than
//! those which call for it already, a reconcile that would write nothing is no step, and neither is one that fails, or a
//! restart that loses work in flight (assumption 3: what is read afterwards is no older).

use super::{
    config::{Config, Flaw},
    object::{CLUSTER, Parts, Paused, Shared, blank},
    world::{Brief, World},
};

/// What a reconcile does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Deed {
    /// It writes its condition.
    Write(Paused),
    /// It works, and creates the child that its object owns.
    Create,
}

/// A reconcile with what its caches show after `own` and `parent` more versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Reconcile {
    pub(crate) who: usize,
    pub(crate) own: usize,
    pub(crate) parent: usize,
    pub(crate) deed: Deed,
}

/// What a reconcile on these views would write, and whether it would work.
fn reconcile(who: usize, own: Option<Brief>, parent: Option<Brief>) -> Option<(Option<Paused>, bool)> {
    let own = own?;
    // A child is reconciled with its Cluster at hand, or not at all.
    let cluster = if who == CLUSTER { own } else { parent? };
    if !own.member {
        return None;
    }
    let wanted = Paused {
        field: cluster.on[0],
        annotation: own.on[1],
        observed: own.generation,
    };
    let same = own.paused == Some(wanted);
    // While running, a change of `observedGeneration` alone is written at the end of the reconcile, after the work.
    let only_observed = own
        .paused
        .is_some_and(|p| (p.field, p.annotation) == (wanted.field, wanted.annotation));
    Some(((!same).then_some(wanted), !wanted.is_true() && only_observed))
}

impl World {
    /// The reconciles that make a difference.
    pub(crate) fn reconciles(&self, config: &Config, who: usize) -> Vec<Reconcile> {
        let mut found: Vec<Reconcile> = Vec::new();
        let answers = who != 2 || config.second.answers();
        let Some(stored) = self.slots[who].stored.as_ref().filter(|_| answers) else {
            return found;
        };
        let said = stored.paused();
        let controller = &self.controllers[who];
        for own in 0..=controller.own.coming.len() {
            for parent in 0..=controller.parent.coming.len() {
                let views = (controller.own.after(own), controller.parent.after(parent));
                let Some((write, works)) = reconcile(who, views.0, views.1) else {
                    continue;
                };
                let write = write.filter(|paused| Some(*paused) != said).map(Deed::Write);
                let creates = works && config.creator && who == 1 && self.slots[2].stored.is_none();
                for deed in write.into_iter().chain(creates.then_some(Deed::Create)) {
                    let is_known = found
                        .iter()
                        .any(|r| r.deed == deed && r.own <= own && r.parent <= parent);
                    if !is_known {
                        found.push(Reconcile { who, own, parent, deed });
                    }
                }
            }
        }
        found
    }

    pub(crate) fn do_reconcile(&mut self, config: &Config, what: Reconcile) {
        let keep = config.flaw == Some(Flaw::OldRestart);
        let controller = &mut self.controllers[what.who];
        controller.own.advance(what.own, keep);
        controller.parent.advance(what.parent, keep);
        match what.deed {
            // The decision is applied to whatever is there by now: the patch helper reads again on a conflict.
            Deed::Write(paused) => self.write_paused(config, what.who, paused),
            Deed::Create => self.create(config, what.who + 1, &Shared::new(blank(what.who + 1, config.second))),
        }
    }

    /// A step of a controller that sees everything there is, if there is one to make.
    pub(crate) fn catches_up(&mut self, config: &Config, who: usize) -> bool {
        let controller = &mut self.controllers[who];
        if controller.own.coming.is_empty() && controller.parent.coming.is_empty() {
            let doing = reconcile(who, controller.own.shown, controller.parent.shown);
            let answers = who != 2 || config.second.answers();
            if let Some((Some(paused), _)) = doing.filter(|_| answers) {
                self.write_paused(config, who, paused);
                return true;
            }
            return false;
        }
        let keep = config.flaw == Some(Flaw::OldRestart);
        for cache in [&mut controller.own, &mut controller.parent] {
            cache.advance(cache.coming.len(), keep);
        }
        true
    }

    /// A restart that reads what is older than what the process before it had read.
    pub(crate) fn restart(&mut self, who: usize) {
        let now = self.now;
        let controller = &mut self.controllers[who];
        for cache in [&mut controller.own, &mut controller.parent] {
            let mut all: Vec<_> = cache.past.drain(..).collect();
            if all.is_empty() {
                continue;
            }
            all.push(cache.shown);
            cache.shown = all.remove(0);
            let rest = all.into_iter().map(|brief| (now, brief));
            cache.coming = rest.chain(cache.coming.drain(..)).collect();
        }
    }

    /// The staleness bound: by the next tick a live controller has let go of what is older.
    pub(crate) fn let_go(&mut self, config: &Config, next: u8) {
        if config.flaw == Some(Flaw::OlderThanBound) {
            return;
        }
        let keep = config.flaw == Some(Flaw::OldRestart);
        for controller in self.controllers[..config.slots].iter_mut().filter(|c| !c.is_frozen) {
            for cache in [&mut controller.own, &mut controller.parent] {
                while cache
                    .stale_since()
                    .is_some_and(|since| since.max(controller.thawed) + config.bound <= next)
                {
                    cache.advance(1, keep);
                }
            }
        }
    }
}
