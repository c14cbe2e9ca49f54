//! The condition: a projection of the annotations, which are the truth.

use std::{sync::Arc, time::Duration};

use super::{FREE_WRITES, State, Subject, Trouble, backoff};
use crate::{
    companion::{
        guard, lock,
        write::{self, Projected, WriteError},
    },
    protocol::{
        condition::{self, Projection},
        evidence::Waiting,
        keys::{Record, Standing},
        object::{ObjectView, truncate},
    },
};

/// How much of a refusal the condition tells, in bytes.
const REFUSAL_LIMIT: usize = 600;

impl Subject<'_> {
    /// Says that the flip is pending. It is written when the reason changes: progress is not followed.
    pub(super) async fn write_unknown(
        &self,
        state: &mut State,
        generation: u64,
        waiting: &Waiting,
    ) -> Result<(), Trouble> {
        let begins = format!("pause generation {generation} ");
        let is_there = |object: &ObjectView, want: &Projection| {
            condition::stored(object).is_some_and(|found| {
                found.status == want.status && found.reason == want.reason && found.message.starts_with(&begins)
            })
        };
        let want = condition::pending(&self.flipped.object, generation, waiting);
        if is_there(&self.flipped.object, &want) {
            return Ok(());
        }
        let rule = &self.kind.rule;
        let projected = write::condition(self.world, self.key, &self.kind, |object| {
            let Standing::Own(record) = Standing::of(&rule.group_kind, object) else {
                return None;
            };
            let stands = record.stamp.generation == generation && !record.is_acknowledged(rule);
            let want = condition::pending(object, generation, waiting);
            (stands && !is_there(object, &want)).then_some(want)
        })
        .await?;
        self.note_projected(state, projected, generation);
        Ok(())
    }

    /// A condition that cannot be kept up to date (the CRD has changed) must not stand: a wait would be met by it.
    pub(super) async fn withdraw(&self, state: &mut State) -> Result<(), Trouble> {
        let object = &self.flipped.object;
        if !self.kind.takes_condition && condition::stored(object).is_some() {
            let stored = write::withdraw(self.world, self.key, &self.kind, object).await?;
            tracing::warn!(object = %self.key, "the kind does not keep our condition any more: it is taken away");
            state.latest = Some(Arc::new(stored));
        }
        Ok(())
    }

    /// Everybody has answered, and the acknowledgement is refused (by a webhook of Cluster API, say): says so where people
    /// look. `/status` is another resource, which most webhooks are not called for.
    pub(super) async fn refused(&self, state: &mut State, trouble: Trouble) -> Trouble {
        let Trouble::Write(error @ (WriteError::Refused(_) | WriteError::PutBack)) = &trouble else {
            return trouble;
        };
        if !self.kind.takes_condition {
            return trouble;
        }
        let Standing::Own(record) = Standing::of(&self.kind.rule.group_kind, &self.flipped.object) else {
            return trouble;
        };
        let generation = record.stamp.generation;
        let begins = format!("pause generation {generation} is seen by everybody, but the acknowledgement");
        let mut message = format!(
            "{begins} cannot be written, and is tried again: {}",
            crate::chain(error)
        );
        truncate(&mut message, REFUSAL_LIMIT);
        let rule = &self.kind.rule;
        let written = write::condition(self.world, self.key, &self.kind, |object| {
            let Standing::Own(record) = Standing::of(&rule.group_kind, object) else {
                return None;
            };
            let stands = record.stamp.generation == generation && !record.is_acknowledged(rule);
            let is_there = condition::stored(object)
                .is_some_and(|found| found.status == "Unknown" && found.message.starts_with(&begins));
            (stands && !is_there).then(|| Projection {
                status: "Unknown",
                reason: condition::AWAITING_CONTROLLERS,
                message: message.clone(),
                observed_generation: object.metadata.generation.unwrap_or_default(),
            })
        });
        match written.await {
            Ok(projected) => {
                self.note_projected(state, projected, generation);
            }
            Err(error) => {
                tracing::debug!(object = %self.key, error = %crate::chain(&error), "the condition has to wait");
            }
        }
        trouble
    }

    pub(super) fn note_projected(&self, state: &mut State, projected: Projected, generation: u64) -> Arc<ObjectView> {
        let object = match projected {
            Projected::Unchanged(object) => Arc::new(object),
            Projected::Written(object) => {
                if let Some(condition) = condition::stored(&object) {
                    tracing::info!(
                        object = %self.key,
                        generation,
                        status = condition.status,
                        reason = condition.reason,
                        observed_generation = condition.observed_generation,
                        "condition written"
                    );
                }
                state.condition_writes = match state.condition_writes {
                    (of, times) if of == generation => (of, times.saturating_add(1)),
                    _ => (generation, 1),
                };
                Arc::new(object)
            }
        };
        state.latest = Some(Arc::clone(&object));
        object
    }

    /// Keeps the condition of an acknowledged object in step with its annotations.
    pub(super) async fn project(&self, state: &mut State, record: &Record) -> Result<Option<Duration>, Trouble> {
        if !self.kind.takes_condition {
            return Ok(None);
        }
        let (rule, object) = (&self.flipped.rule, &self.flipped.object);
        let Some(want) = condition::acknowledged(rule, object, false) else {
            return Ok(None);
        };
        let now = self.world.clock.now();
        let present = object.metadata.generation.unwrap_or_default();
        let is_there = condition::stored(object).is_some_and(|found| want.is_in(found));
        if is_there && want.observed_generation >= present {
            state.raise = None;
            // The watches say nothing of what came first: the object as it is shown may be older than the webhook
            // configuration as it is shown, and a pair of flips between the two. Reading in order tells.
            let guard = lock(&self.world.guards).standing(&self.kind, &self.key.namespace);
            if guard.is_some() && !state.tracker.may_raise(guard.as_ref()) {
                self.write_condition(state, record.stamp.generation, None).await?;
            }
            return Ok(None);
        }
        if is_there {
            // A spec edit has left it behind. A False stays there, and so does a True that may be about another flip.
            let guard = lock(&self.world.guards).standing(&self.kind, &self.key.namespace);
            if want.status != "True" || !state.tracker.may_raise(guard.as_ref()) {
                return Ok(None);
            }
            let since = match state.raise {
                Some((generation, since)) if generation == present => since,
                _ => now,
            };
            state.raise = Some((present, since));
            let due = since.plus(self.world.settings.raise_after);
            if now < due {
                return Ok(Some(due.since(now)));
            }
            self.write_condition(state, record.stamp.generation, Some(present))
                .await?;
            return Ok(None);
        }
        // Somebody else writes it too, or the API server gives it back changed: slow down.
        let (generation, times) = state.condition_writes;
        if generation == record.stamp.generation && times >= FREE_WRITES {
            tracing::warn!(object = %self.key, times, "the condition is written again and again: who else writes it?");
            state.condition_writes = (generation, times.saturating_add(1));
            state.not_before = now.plus(backoff(times));
        }
        self.write_condition(state, record.stamp.generation, None).await?;
        Ok(None)
    }

    /// Writes the condition of the acknowledged flip of this generation, from a fresh read. `raise` is the
    /// `metadata.generation` to which a `True` may be raised: one that was seen before the webhook configuration is read
    /// here, since a pair of flips between that read and the object's would go by unseen.
    pub(super) async fn write_condition(
        &self,
        state: &mut State,
        generation: u64,
        raise: Option<i64>,
    ) -> Result<(), Trouble> {
        let guard = guard::read(self.world, &self.kind, &self.key.namespace)
            .await
            .map_err(|error| WriteError::Refused(Box::new(error)))?;
        let asked = self.world.clock.now();
        let may_raise = state.tracker.may_raise(guard.as_ref());
        let rule = &self.kind.rule;
        let projected = write::condition(self.world, self.key, &self.kind, |object| {
            let Standing::Own(record) = Standing::of(&rule.group_kind, object) else {
                return None;
            };
            if record.stamp.generation != generation {
                return None;
            }
            let seen = raise.is_some() && raise == object.metadata.generation;
            condition::acknowledged(rule, object, may_raise && seen)
        })
        .await?;
        let object = self.note_projected(state, projected, generation);
        let agrees = condition::acknowledged(rule, &object, false).is_some_and(|want| {
            condition::stored(&object).is_some_and(|found| want.is_in(found))
                && Some(want.observed_generation) >= object.metadata.generation
        });
        if agrees {
            state.tracker.anchored(asked, rule, guard.as_ref());
        }
        Ok(())
    }
}
