//! Baselines: what an attestor said at a time when every view was known to have it.

use std::time::Duration;

use super::{State, Subject};
use crate::{
    companion::{
        cache::{Entry, Key},
        guard, lock, views,
    },
    protocol::{
        evidence::Ground,
        scope::{self, Ruled},
    },
};

impl Subject<'_> {
    /// Takes baselines where they are missing, or asks for the reads that they need.
    pub(super) async fn baselines(&self, state: &mut State, around: &[Entry]) -> Option<Duration> {
        let misses = lock(&self.world.guards).misses_namespace(&self.kind, &self.key.namespace);
        if misses && let Err(error) = guard::read(self.world, &self.kind, &self.key.namespace).await {
            tracing::warn!(namespace = self.key.namespace, %error, "cannot be read");
            return Some(views::RETRY);
        }
        let guard = lock(&self.world.guards).standing(&self.kind, &self.key.namespace);
        let leases = lock(&self.world.leases).clone();
        let now = self.world.clock.now();
        let ground = Ground {
            now,
            start: self.world.start(),
            guard: guard.as_ref(),
            leases: &leases,
        };
        let all: Vec<Ruled> = around.iter().map(|entry| entry.ruled.clone()).collect();
        let members = if self.flipped.rule.has_heirs() {
            scope::members(&self.flipped.object, &self.flipped.rule, &all, &|_| true).members
        } else {
            Vec::new()
        };
        let lacking = state.tracker.lacking(&ground, &self.flipped, &members);
        let soonest = Duration::from_secs(1);
        let mut next = lacking.next.map(|at| at.since(now).max(soonest));
        let mut to_read = Vec::new();
        if !lacking.ready.is_empty() {
            let own = lock(&self.world.cache).get(self.key).cloned();
            for entry in own.iter().chain(around) {
                let Some(due) = lacking.ready.get(&entry.ruled.object.metadata.uid) else {
                    continue;
                };
                match entry.view {
                    Some(view) if view >= *due => {
                        state.tracker.take_baseline(&ground, view, &self.flipped, &entry.ruled);
                    }
                    _ => to_read.push(Key::of(&entry.ruled.rule.group_kind, &entry.ruled.object)),
                }
            }
        }
        if !to_read.is_empty() {
            let may_ask = state
                .views_asked
                .map(|asked| asked.plus(views::RETRY))
                .filter(|due| now < *due);
            match may_ask {
                Some(due) => next = next.into_iter().chain([due.since(now)]).min(),
                None => {
                    state.views_asked = Some(now);
                    tracing::debug!(object = %self.key, objects = to_read.len(), "reading for baselines");
                    for key in to_read {
                        self.world.views.ask(key, self.key);
                    }
                    next = next.into_iter().chain([views::RETRY]).min();
                }
            }
        }
        // As long as some are missing, changes of members matter.
        if next.is_some() {
            lock(&self.world.interested).insert(self.key.clone());
        } else {
            lock(&self.world.interested).remove(self.key);
        }
        tracing::trace!(object = %self.key, baselines = state.tracker.baselines(), ?next, "baselines");
        next
    }
}
