//! Keys that are not believed, or do not say what is so: taken back at once, and stamped anew when a webhook answers.

use std::{sync::Arc, time::Duration};

use super::{State, Subject, Trouble, backoff};
use crate::{
    companion::{
        failpoint, guard, lock,
        write::{self, WriteError},
    },
    protocol::{
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

impl Subject<'_> {
    /// The keys are irregular. First no wait may succeed on them, then they are repaired: a webhook stamps at the next
    /// write of our keys, and a dry run tells whether one would. Nothing is guessed, and nothing is left behind.
    pub(super) async fn irregular(&self, state: &mut State, what: &str) -> Result<Option<Duration>, Trouble> {
        let object = Arc::clone(&self.flipped.object);
        self.log_irregular(state, what);
        self.calm(state);
        if object
            .metadata
            .annotation(ACKNOWLEDGED)
            .is_some_and(|word| word != PENDING)
        {
            let stored = write::pending(self.world, self.key, &self.kind, &object).await?;
            tracing::info!(object = %self.key, "the acknowledgement is taken back");
            return Ok(Some(self.repaired(state, stored)));
        }
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
        let is_regular = |stored: &ObjectView| irregularity(&self.kind.rule, stored).is_none();
        if !is_regular(&write::touch(self.world, self.key, &self.kind, &object, true).await?) {
            state.repairs = state.repairs.saturating_add(1);
            return Ok(Some(backoff(state.repairs)));
        }
        failpoint::reach("companion.before-touch");
        let stored = write::touch(self.world, self.key, &self.kind, &object, false).await?;
        failpoint::reach("companion.after-touch");
        if is_regular(&stored) {
            tracing::info!(object = %self.key, "the keys are repaired");
            self.world.metrics.repairs.inc();
        }
        Ok(Some(self.repaired(state, stored)))
    }

    /// Something was written: it is looked at anew, later and later if there is no end to it.
    fn repaired(&self, state: &mut State, stored: ObjectView) -> Duration {
        state.latest = Some(Arc::new(stored));
        state.repairs = state.repairs.saturating_add(1);
        if state.repairs <= FREE_REPAIRS {
            return Duration::ZERO;
        }
        let delay = backoff(state.repairs - FREE_REPAIRS);
        state.not_before = self.world.clock.now().plus(delay);
        delay
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
