//! Keys that are not believed, or do not say what is so: taken back at once, and stamped anew when a webhook answers.

use std::{sync::Arc, time::Duration};

use super::{State, Subject, Trouble, backoff};
use crate::{
    companion::{
        failpoint, guard, lock,
        write::{self, WriteError},
    },
    protocol::{
        Moment,
        condition::{self, Projection},
        intent::Intent,
        keys::{ACKNOWLEDGED, PENDING, Standing},
        object::ObjectView,
        rule::KindRule,
    },
};

/// So many writes to one object are made without slowing down: the word, and the stamp. More of them mean that somebody
/// writes the keys again and again (Cluster API copies a MachineDeployment's onto its MachineSets).
const FREE_REPAIRS: u32 = 2;
/// How soon after one attempt a word is taken back again: often enough that nobody can rely on it, and no race with whoever
/// writes it as fast as a machine can.
const TAKE_BACK_INTERVAL: Duration = Duration::from_secs(1);

/// When something may be written about irregular keys.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Writes in a row, until the object is acknowledged or without our keys.
    writes: u32,
    /// When a word may be taken back. That is the safe direction, which no failure and no repetition holds up.
    pub(super) word: Moment,
    /// When a stamp may be asked for: later and later.
    touch: Moment,
}

impl Pace {
    /// Something was written.
    fn written(&mut self, now: Moment) {
        self.writes = self.writes.saturating_add(1);
        if self.writes > FREE_REPAIRS {
            self.word = now.plus(TAKE_BACK_INTERVAL);
            self.touch = now.plus(backoff(self.writes - FREE_REPAIRS));
        }
    }

    /// No webhook would answer. Returns when to ask again.
    fn unanswered(&mut self, now: Moment) -> Duration {
        self.writes = self.writes.saturating_add(1);
        let delay = backoff(self.writes);
        self.touch = now.plus(delay);
        delay
    }
}

impl Subject<'_> {
    /// Whether a wait might be met by the word that stands.
    pub(super) fn says_too_much(&self) -> bool {
        let word = self.flipped.object.metadata.annotation(ACKNOWLEDGED);
        word.is_some_and(|word| word != PENDING)
    }

    /// The keys are irregular, and no wait may succeed on them. What is stored then is to be looked at anew at once.
    pub(super) async fn take_back(&self, state: &mut State, what: &str) -> Result<(), Trouble> {
        self.observe(state, false);
        self.log_irregular(state, what);
        self.calm(state);
        let stored = write::pending(self.world, self.key, &self.kind, &self.flipped.object).await?;
        tracing::info!(object = %self.key, "the acknowledgement is taken back");
        state.latest = Some(Arc::new(stored));
        state.pace.written(self.world.clock.now());
        Ok(())
    }

    /// A word that is not true still stands. Returns when to try again.
    pub(super) fn not_taken_back(&self, state: &mut State, trouble: &Trouble) -> Duration {
        if let Trouble::Write(WriteError::Stale | WriteError::NotLeading(_)) = trouble {
            tracing::debug!(object = %self.key, %trouble, "read again");
        } else {
            self.world.metrics.errors.inc();
            tracing::warn!(
                object = %self.key,
                error = %crate::chain(trouble),
                retry_in = ?TAKE_BACK_INTERVAL,
                "the acknowledgement cannot be taken back"
            );
        }
        state.latest = None;
        state.pace.word = self.world.clock.now().plus(TAKE_BACK_INTERVAL);
        TAKE_BACK_INTERVAL
    }

    /// The keys are irregular, and pending. They are repaired: a webhook stamps at the next write of our keys, and a dry run
    /// tells whether one would. Nothing is guessed, and nothing is left behind.
    pub(super) async fn irregular(&self, state: &mut State, what: &str) -> Result<Option<Duration>, Trouble> {
        let object = Arc::clone(&self.flipped.object);
        self.log_irregular(state, what);
        self.calm(state);
        if self.kind.takes_condition && condition::stored(&object).is_some_and(|found| found.status != "Unknown") {
            let rule = &self.kind.rule;
            let projected = write::condition(self.world, self.key, &self.kind, |object| {
                irregularity(rule, object).map(|what| Projection {
                    status: "Unknown",
                    reason: condition::AWAITING_CONTROLLERS,
                    message: format!("{what}. It is stamped anew as soon as the webhook answers"),
                    observed_generation: object.metadata.generation.unwrap_or_default(),
                })
            })
            .await?;
            self.note_projected(state, projected, 0);
            return Ok(Some(Duration::ZERO));
        }
        // Without a configuration nobody would be called; when there is one again everybody is seen to.
        let misses = lock(&self.world.guards).misses_namespace(&self.kind, &self.key.namespace);
        if misses {
            guard::read(self.world, &self.kind, &self.key.namespace)
                .await
                .map_err(|error| WriteError::Refused(Box::new(error)))?;
        }
        if !lock(&self.world.guards).calls_for_keys(&self.kind, &self.key.namespace) {
            return Ok(None);
        }
        let now = self.world.clock.now();
        if now < state.pace.touch {
            return Ok(Some(state.pace.touch.since(now)));
        }
        let is_regular = |stored: &ObjectView| irregularity(&self.kind.rule, stored).is_none();
        if !is_regular(&write::touch(self.world, self.key, &self.kind, &object, true).await?) {
            return Ok(Some(state.pace.unanswered(self.world.clock.now())));
        }
        failpoint::reach("companion.before-touch");
        let stored = write::touch(self.world, self.key, &self.kind, &object, false).await?;
        failpoint::reach("companion.after-touch");
        if is_regular(&stored) {
            tracing::info!(object = %self.key, "the keys are repaired");
            self.world.metrics.repairs.inc();
        }
        state.latest = Some(Arc::new(stored));
        state.pace.written(self.world.clock.now());
        Ok(Some(Duration::ZERO))
    }

    fn log_irregular(&self, state: &mut State, what: &str) {
        let found = format!("{}: {what}", self.flipped.object.metadata.uid);
        if state.irregular.as_ref() != Some(&found) {
            tracing::warn!(object = %self.key, what, "irregular");
            state.irregular = Some(found);
        }
    }
}

/// What is wrong with our keys on an object, for people; `None`: nothing.
pub(crate) fn irregularity(rule: &KindRule, object: &ObjectView) -> Option<String> {
    let intent = Intent::of(rule, object);
    match Standing::of(&rule.group_kind, object) {
        Standing::Bare if intent.is_empty() => None,
        Standing::Bare => Some(format!(
            "paused by {intent}, and no stamp says so: the flip passed unseen"
        )),
        Standing::Own(record) => {
            if record.stamp.after != intent {
                Some(format!(
                    "paused by {intent}, and the stamp of pause generation {} says {}: a flip passed unseen",
                    record.stamp.generation, record.stamp.after
                ))
            } else if record.acknowledged.is_some() && !record.is_acknowledged(rule) {
                // Forged, or copied, while a webhook was away.
                Some("it is said to be acknowledged, and no echo of this flip has said so".to_owned())
            } else {
                None
            }
        }
        Standing::Foreign => Some("the stamp is of another object: not believed".to_owned()),
        Standing::Broken => Some("the pausegen.io annotations make no record: not believed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Somebody writes a word again and again, and it is taken back each time: never later than the interval.
    #[test]
    fn a_word_is_taken_back_without_backoff_and_a_stamp_is_asked_for_later_and_later() {
        let (mut pace, mut now) = (Pace::default(), Moment::default());
        let mut touches = Vec::new();
        for forgery in 0..12 {
            let waits = pace.word.since(now);
            assert!(waits <= TAKE_BACK_INTERVAL, "forgery {forgery} stands for {waits:?}");
            assert_eq!(
                waits.is_zero(),
                forgery < FREE_REPAIRS + 1,
                "no race: forgery {forgery}"
            );
            now = now.plus(waits);
            pace.written(now);
            touches.push(pace.touch.since(now).as_secs());
        }
        assert_eq!(touches, [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        assert_eq!(pace.unanswered(now).as_secs(), 60);
        assert!(pace.word.since(now) <= TAKE_BACK_INTERVAL);
    }
}
