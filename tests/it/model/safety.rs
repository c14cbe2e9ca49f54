//! What must never be.

use pausegen::protocol::{condition, intent::State, keys::ACKNOWLEDGED};

use super::{
    config::Config,
    memo::memo,
    object::{CLUSTER, Parts},
    world::{Brief, Flips, World},
};

impl World {
    /// What the controller of `who` holds, and works on, of the object in `slot`.
    pub(crate) fn view(&self, who: usize, slot: usize) -> Option<Flips> {
        let controller = &self.controllers[who];
        let cache = if who == slot {
            &controller.own
        } else {
            &controller.parent
        };
        cache.shown.map(|brief| brief.flips)
    }

    /// Who, of those whom the acknowledgement of `slot` speaks for, has not seen the flips `least`, and may yet work.
    ///
    /// The Cluster's speaks for every child that its controller may have taken for a member to be reconciled when it was
    /// listed (of a resume: already at the stamp), whatever it had become by then, and of a pause also where it was deleted
    /// by then. Who joined later is outside of it.
    pub(crate) fn has_not_seen(&self, config: &Config, slot: usize, least: Flips) -> Option<usize> {
        let scope = self.slots[slot].scope & self.may_be_reconciled(config);
        (0..config.slots).find(|who| {
            if *who != slot {
                return scope & (1 << who) != 0 && self.view(*who, slot).is_some_and(|seen| seen[0] < least[0]);
            }
            let is_old = |brief: &&Brief| brief.flips[0] < least[0] || brief.flips[1] < least[1];
            let is_reconciled = |brief: &&Brief| slot != CLUSTER || brief.member;
            self.controllers[slot]
                .own
                .views()
                .filter(is_reconciled)
                .any(|brief| is_old(&brief))
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
            right && self.has_not_seen(config, slot, self.slots[slot].stamped).is_none()
        })
    }

    /// Nor does `kubectl wait --for=condition=PauseAcknowledged` return before a flip of the field was seen.
    pub(crate) fn no_false_condition(&self, config: &Config) -> bool {
        let Some(object) = self.slots[CLUSTER].stored.as_ref().filter(|_| config.conditions) else {
            return true;
        };
        let least = [self.slots[CLUSTER].flips[0], 0];
        ["True", "False"].into_iter().all(|status| {
            !memo(("wait", status, object), || {
                condition::kubectl_wait_is_met(object, condition::TYPE, status)
            }) || (object.on(0) == (status == "True") && self.has_not_seen(config, CLUSTER, least).is_none())
        })
    }
}
