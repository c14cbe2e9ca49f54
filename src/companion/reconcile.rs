//! One object that can be flipped: is it pending, whom does it wait for, what has to be written?

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use super::{
    World,
    cache::{Entry, Key, is_older},
    event, failpoint, guard,
    kinds::Kind,
    liar, lock,
    look::{self, LookError},
    views,
    write::{self, Projected, WriteError},
};
use crate::protocol::{
    GroupKind, Moment,
    condition::{self, Projection},
    evidence::{Echo, Ground, Tracker, Verdict, Waiting},
    intent::{Intent, State as Acknowledged},
    keys::{Acknowledgement, Evidence, Record, Standing},
    object::ObjectView,
    scope::{self, Ruled},
    stamp::timestamp,
};

/// How many entries of what is excluded a record lists.
const EXCLUDED: usize = 20;
/// The longest time between two attempts at something that the API server refuses.
const MAX_BACKOFF: Duration = Duration::from_secs(60);
/// How many writes of one condition for one flip are made without slowing down.
const FREE_WRITES: u32 = 4;

/// What is remembered of an object between two times that it is seen to.
#[derive(Debug, Default)]
pub(super) struct State {
    tracker: Tracker,
    /// The object as a write or a look returned it, until the cache has caught up.
    latest: Option<Arc<ObjectView>>,
    /// When the members were last observed.
    members_at: Moment,
    pending: Option<Pending>,
    /// Attempts in a row that failed, and when the next one may be made.
    failures: u32,
    not_before: Moment,
    /// The generation whose condition was last written, and how often.
    condition_writes: (u64, u32),
    /// `metadata.generation` of a spec that a `True` lags behind, and since when.
    raise: Option<(i64, Moment)>,
    /// When consistent reads for baselines were last asked for.
    views_asked: Option<Moment>,
    /// What was last found irregular.
    irregular: Option<String>,
}

/// A flip that is not acknowledged.
#[derive(Debug)]
struct Pending {
    generation: u64,
    since: Moment,
    looked: Option<Moment>,
    /// Whether the Event that it waits was published.
    told: bool,
    /// `NotReporting` stays: a reason that comes and goes would be written each time.
    not_reporting: bool,
}

/// What is seen to: the object with its kind, and where the time stands.
struct Subject<'a> {
    world: &'a Arc<World>,
    key: &'a Key,
    kind: Arc<Kind>,
    flipped: Ruled,
}

/// Sees to one object. Returns whether to remember anything of it, and when to come again if nothing happens.
pub(super) async fn reconcile(world: &Arc<World>, key: &Key, state: &mut State) -> (bool, Option<Duration>) {
    let entry = lock(&world.cache).get(key).cloned();
    let (Some(entry), Some(kind)) = (entry, world.kind(&key.kind)) else {
        lock(&world.interested).remove(key);
        lock(&world.on_time).remove(key);
        return (false, None);
    };
    let now = world.clock.now();
    if now < state.not_before {
        return (true, Some(state.not_before.since(now)));
    }
    let subject = Subject {
        world,
        key,
        flipped: newest(&entry, state),
        kind,
    };
    let delay = match Box::pin(subject.see_to(state)).await {
        Ok(delay) => {
            state.failures = 0;
            delay
        }
        Err(trouble) => Some(subject.back_off(state, &trouble)),
    };
    (true, delay)
}

/// The newer of what the cache has and what a write has returned.
fn newest(entry: &Entry, state: &mut State) -> Ruled {
    let mut flipped = entry.ruled.clone();
    match &state.latest {
        Some(latest) if latest.metadata.uid == flipped.object.metadata.uid && is_older(&flipped.object, latest) => {
            flipped.object = Arc::clone(latest);
        }
        _ => state.latest = None,
    }
    flipped
}

/// Why an object could not be seen to.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error(transparent)]
    Look(#[from] LookError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Subject<'_> {
    async fn see_to(&self, state: &mut State) -> Result<Option<Duration>, Trouble> {
        let (rule, object) = (&self.flipped.rule, &self.flipped.object);
        let now = self.world.clock.now();
        state.tracker.observe(now, rule, object);
        let around = if rule.has_heirs() {
            let around = lock(&self.world.cache).around(&self.key.namespace);
            self.observe_members(state, now, &around);
            around
        } else {
            Vec::new()
        };
        let intent = Intent::of(rule, object);
        match Standing::of(&rule.group_kind, object) {
            Standing::Bare => {
                self.calm(state);
                Ok(self.baselines(state, &around).await)
            }
            Standing::Own(record) if record.stamp.after != intent => self.irregular(state, &record, &intent).await,
            Standing::Own(record) if record.is_acknowledged(rule) => {
                self.calm(state);
                let condition = self.project(state, &record).await?;
                let baselines = self.baselines(state, &around).await;
                Ok(condition.into_iter().chain(baselines).min())
            }
            // A word that no echo of this flip has written: forged, or copied, while a webhook was away.
            Standing::Own(record) if record.acknowledged.is_some() => self.irregular(state, &record, &intent).await,
            Standing::Own(record) => self.pending(state, &record, around).await,
            standing @ (Standing::Foreign | Standing::Broken) => {
                self.calm(state);
                self.log_irregular(
                    state,
                    if standing == Standing::Foreign {
                        "the stamp is of another object: not believed, and left alone"
                    } else {
                        "the keys make no record: not believed, and left alone"
                    },
                );
                Ok(None)
            }
        }
    }

    /// Nothing is pending.
    fn calm(&self, state: &mut State) {
        state.pending = None;
        lock(&self.world.on_time).remove(self.key);
    }

    /// Tells the tracker who the members are. One whose links have changed since the last time has not been in this
    /// scope without a break, even if it is in it again; neither are those that it links.
    fn observe_members(&self, state: &mut State, now: Moment, around: &[Entry]) {
        let since = state.members_at;
        let own = lock(&self.world.cache).get(self.key).map(|entry| entry.related_since);
        let is_unbroken = |moment: Moment| moment <= since;
        let uids = |entries: &mut dyn Iterator<Item = &Entry>| -> BTreeSet<String> {
            let all: Vec<Ruled> = entries.map(|entry| entry.ruled.clone()).collect();
            let members = scope::members(&self.flipped.object, &self.flipped.rule, &all, &|_| true).members;
            members.iter().map(|ruled| ruled.object.metadata.uid.clone()).collect()
        };
        if !own.is_some_and(is_unbroken) {
            state.tracker.observe_members(now, &BTreeSet::new());
        } else if around.iter().any(|entry| !is_unbroken(entry.related_since)) {
            let unbroken = uids(&mut around.iter().filter(|entry| is_unbroken(entry.related_since)));
            state.tracker.observe_members(now, &unbroken);
        }
        let all = uids(&mut around.iter());
        state.tracker.observe_members(now, &all);
        // Not later than the cache was read: what changes from now on has a later moment.
        state.members_at = now;
    }

    fn has_rule(&self, served: &BTreeSet<GroupKind>, kind: &GroupKind) -> bool {
        served.contains(kind) || self.world.rules.rule_for(kind).is_some_and(|rule| !rule.inherits)
    }

    /// A flip that is not acknowledged: is it time to look, and what does the look say?
    async fn pending(
        &self,
        state: &mut State,
        record: &Record,
        around: Vec<Entry>,
    ) -> Result<Option<Duration>, Trouble> {
        let now = self.world.clock.now();
        let generation = record.stamp.generation;
        lock(&self.world.interested).insert(self.key.clone());
        if state
            .pending
            .as_ref()
            .is_none_or(|pending| pending.generation != generation)
        {
            self.world.metrics.flips.inc();
            tracing::info!(
                object = %self.key,
                generation,
                before = %record.stamp.before,
                after = %record.stamp.after,
                clean = record.is_clean(),
                "a flip is pending"
            );
            state.pending = Some(Pending {
                generation,
                since: now,
                looked: None,
                told: false,
                not_reporting: false,
            });
        }
        if liar::acknowledges_at_once() {
            let lie = acknowledgement(record, &self.flipped.object, Evidence::Attested, 1);
            let intent = Intent::of(&self.flipped.rule, &self.flipped.object);
            let object = Arc::clone(&self.flipped.object);
            self.echo(state, &object, intent.state(&self.flipped.rule), lie).await?;
            return Ok(Some(Duration::ZERO));
        }
        if state.tracker.has_first_list() || !crate::protocol::evidence::asks_members(&self.flipped) {
            // The cache says whether it is worth looking.
            let ground_guard = lock(&self.world.guards).standing(&self.kind, &self.key.namespace);
            let leases = lock(&self.world.leases).clone();
            let ground = Ground {
                now,
                start: self.world.start,
                guard: ground_guard.as_ref(),
                leases: &leases,
            };
            let all: Vec<Ruled> = around.into_iter().map(|entry| entry.ruled).collect();
            let served: BTreeSet<GroupKind> = lock(&self.world.kinds).keys().cloned().collect();
            let verdict = state
                .tracker
                .look(&ground, &self.flipped, &all, &|kind| self.has_rule(&served, kind));
            if let Verdict::Wait(waiting) = verdict {
                return self.wait(state, generation, &waiting).await;
            }
        }
        if let Some(looked) = state.pending.as_ref().and_then(|pending| pending.looked) {
            let due = looked.plus(self.world.settings.look_interval);
            if now < due {
                return Ok(Some(due.since(now)));
            }
        }
        self.look(state).await
    }

    /// The consistent look, and what follows from it.
    async fn look(&self, state: &mut State) -> Result<Option<Duration>, Trouble> {
        if let Some(pending) = &mut state.pending {
            pending.looked = Some(self.world.clock.now());
        }
        let looked = look::look(self.world, self.key, &self.kind).await?;
        state.latest = Some(Arc::clone(&looked.flipped.object));
        let ground = Ground {
            now: looked.at,
            start: self.world.start,
            guard: looked.guard.as_ref(),
            leases: &looked.leases,
        };
        let verdict = state.tracker.look(&ground, &looked.flipped, &looked.all, &|kind| {
            self.has_rule(&looked.listed, kind)
        });
        match verdict {
            // The object has changed since it was seen: begin anew with what is there now.
            Verdict::Quiet | Verdict::Irregular => Ok(Some(Duration::ZERO)),
            Verdict::Wait(waiting) => {
                let generation = state.pending.as_ref().map_or(0, |pending| pending.generation);
                self.wait(state, generation, &waiting).await
            }
            Verdict::Echo(echo) => {
                let written = record_of(&echo, &looked.flipped.object);
                let Echo { state: word, .. } = *echo;
                self.echo(state, &looked.flipped.object, word, written).await?;
                state.tracker.echoed(self.world.clock.now(), &echo);
                if let Some(latest) = &state.latest {
                    state
                        .tracker
                        .observe(self.world.clock.now(), &self.flipped.rule, latest);
                }
                // The condition follows at once.
                Ok(Some(Duration::ZERO))
            }
        }
    }

    async fn echo(
        &self,
        state: &mut State,
        object: &ObjectView,
        word: Acknowledged,
        acknowledgement: Acknowledgement,
    ) -> Result<(), Trouble> {
        let stored = write::echo(self.world, self.key, &self.kind, object, word, &acknowledgement).await?;
        tracing::info!(
            object = %self.key,
            generation = acknowledgement.generation,
            state = %word,
            evidence = ?acknowledgement.evidence,
            objects = acknowledgement.objects,
            bound_seconds = acknowledgement.bound_seconds,
            lease = acknowledgement.lease,
            excluded = acknowledgement.excluded.len(),
            "acknowledged"
        );
        let note = format!(
            "Pause generation {} is acknowledged: {word}, by {} object(s), {:?}",
            acknowledgement.generation, acknowledgement.objects, acknowledgement.evidence
        );
        state.latest = Some(Arc::new(stored));
        state.pending = None;
        lock(&self.world.on_time).remove(self.key);
        // The condition comes first: people wait for it.
        if let Some(Standing::Own(record)) = state
            .latest
            .as_ref()
            .map(|latest| Standing::of(&self.kind.rule.group_kind, latest))
            && self.kind.takes_condition
        {
            match self.write_condition(state, record.stamp.generation, None).await {
                Ok(_) | Err(Trouble::Write(WriteError::Stale)) => {}
                // The annotations are the truth, and stand. The condition is tried again.
                Err(error) => tracing::warn!(object = %self.key, error = %chain(&error), "the condition has to wait"),
            }
        }
        failpoint::reach("companion.before-echoed-event");
        event::publish(self.world, &self.kind, object, "PauseAcknowledged", note).await;
        failpoint::reach("companion.after-echoed-event");
        Ok(())
    }

    /// It cannot be acknowledged yet: say so when it takes long, and know when to ask again.
    async fn wait(&self, state: &mut State, generation: u64, waiting: &Waiting) -> Result<Option<Duration>, Trouble> {
        let now = self.world.clock.now();
        let settling = waiting
            .laggards
            .iter()
            .any(|laggard| laggard.lag == crate::protocol::evidence::Lag::Settling);
        if settling {
            lock(&self.world.on_time).insert(self.key.clone());
        } else {
            lock(&self.world.on_time).remove(self.key);
        }
        let soonest = Duration::from_secs(1);
        let mut next = waiting.retry_at.map(|at| at.since(now).max(soonest));
        let Some(pending) = &mut state.pending else {
            return Ok(next);
        };
        pending.not_reporting |= waiting.not_reporting;
        let not_reporting = pending.not_reporting;
        let due = pending.since.plus(self.world.settings.unknown_after);
        if now < due {
            next = next.into_iter().chain([due.since(now)]).min();
            return Ok(next);
        }
        let told = std::mem::replace(&mut pending.told, true);
        let waiting = Waiting {
            not_reporting,
            ..waiting.clone()
        };
        let projection = condition::pending(&self.flipped.object, generation, &waiting);
        if self.kind.takes_condition {
            self.write_unknown(state, generation, &waiting).await?;
        }
        if !told {
            tracing::info!(object = %self.key, generation, message = projection.message, "an acknowledgement has to wait");
            failpoint::reach("companion.before-waiting-event");
            event::publish(
                self.world,
                &self.kind,
                &self.flipped.object,
                projection.reason,
                projection.message,
            )
            .await;
            failpoint::reach("companion.after-waiting-event");
        }
        Ok(next)
    }

    async fn write_unknown(&self, state: &mut State, generation: u64, waiting: &Waiting) -> Result<(), Trouble> {
        let begins = format!("pause generation {generation} ");
        let is_there = |object: &ObjectView, want: &Projection| {
            condition::stored(object).is_some_and(|found| want.is_in(found) && found.message.starts_with(&begins))
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

    fn note_projected(&self, state: &mut State, projected: Projected, generation: u64) -> Arc<ObjectView> {
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
    async fn project(&self, state: &mut State, record: &Record) -> Result<Option<Duration>, Trouble> {
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
    async fn write_condition(&self, state: &mut State, generation: u64, raise: Option<i64>) -> Result<(), Trouble> {
        let guard = guard::read(self.world, &self.kind, &self.key.namespace)
            .await
            .map_err(|error| WriteError::Refused(Box::new(error)))?;
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
            state.tracker.anchored(guard.as_ref());
        }
        Ok(())
    }

    /// The inputs are not those of the stamp: a flip went by unseen. No wait may succeed on a word that is stale.
    async fn irregular(
        &self,
        state: &mut State,
        record: &Record,
        intent: &Intent,
    ) -> Result<Option<Duration>, Trouble> {
        let what = if record.stamp.after == *intent {
            "it is said to be acknowledged, and no echo of this flip has said so".to_owned()
        } else {
            format!(
                "paused by {intent}, and the stamp says {}: a flip passed unseen",
                record.stamp.after
            )
        };
        self.log_irregular(state, &what);
        lock(&self.world.on_time).remove(self.key);
        state.pending = None;
        let generation = record.stamp.generation;
        if record.acknowledged.is_some() {
            let stored = write::pending(self.world, self.key, &self.kind, &self.flipped.object).await?;
            tracing::info!(object = %self.key, generation, "the acknowledgement is taken back");
            state.latest = Some(Arc::new(stored));
            return Ok(Some(Duration::ZERO));
        }
        let stale = condition::stored(&self.flipped.object).is_some_and(|found| found.status != "Unknown");
        if stale && self.kind.takes_condition {
            let rule = &self.kind.rule;
            let projected = write::condition(self.world, self.key, &self.kind, |object| {
                let Standing::Own(record) = Standing::of(&rule.group_kind, object) else {
                    return None;
                };
                let is_so = record.stamp.generation == generation && record.stamp.after != Intent::of(rule, object);
                is_so.then(|| Projection {
                    status: "Unknown",
                    reason: condition::AWAITING_CONTROLLERS,
                    message: format!(
                        "what pauses the object is not what pause generation {generation} says: a flip passed while no \
                         webhook was called. It is stamped when the webhook is there again and the object is written"
                    ),
                    observed_generation: object.metadata.generation.unwrap_or_default(),
                })
            })
            .await?;
            self.note_projected(state, projected, generation);
        }
        Ok(None)
    }

    fn log_irregular(&self, state: &mut State, what: &str) {
        let found = format!("{}: {what}", self.flipped.object.metadata.uid);
        if state.irregular.as_ref() != Some(&found) {
            tracing::warn!(object = %self.key, what, "irregular");
            state.irregular = Some(found);
        }
    }

    /// Takes baselines where they are missing, or asks for the reads that they need.
    async fn baselines(&self, state: &mut State, around: &[Entry]) -> Option<Duration> {
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
            start: self.world.start,
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

    /// Says what went wrong, and when to try again.
    fn back_off(&self, state: &mut State, trouble: &Trouble) -> Duration {
        let outdated = matches!(
            trouble,
            Trouble::Write(WriteError::Stale) | Trouble::Look(LookError::Gone)
        );
        let now = self.world.clock.now();
        let delay = if outdated {
            tracing::debug!(object = %self.key, %trouble, "read again");
            self.world.settings.look_interval
        } else {
            self.world.metrics.errors.inc();
            state.failures = state.failures.saturating_add(1);
            let delay = backoff(state.failures);
            tracing::warn!(object = %self.key, error = %chain(trouble), retry_in = ?delay, "the object cannot be seen to");
            delay
        };
        // What a write has returned may be what misled it.
        state.latest = None;
        state.not_before = now.plus(delay);
        delay
    }
}

fn backoff(failures: u32) -> Duration {
    let exponent = failures.saturating_sub(1).min(6);
    Duration::from_secs(1u64 << exponent).min(MAX_BACKOFF)
}

/// An error with what caused it, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}

fn acknowledgement(record: &Record, object: &ObjectView, evidence: Evidence, objects: usize) -> Acknowledgement {
    Acknowledgement {
        generation: record.stamp.generation,
        uid: object.metadata.uid.clone(),
        evidence,
        objects,
        bound_seconds: None,
        lease: String::new(),
        excluded: Vec::new(),
        object_generation: object.metadata.generation.unwrap_or_default(),
        at: timestamp(jiff::Timestamp::now()),
    }
}

/// The record of an echo, as it is written.
fn record_of(echo: &Echo, object: &ObjectView) -> Acknowledgement {
    let mut excluded: Vec<String> = echo.excluded.iter().take(EXCLUDED).cloned().collect();
    let more = echo.excluded.len().saturating_sub(excluded.len());
    if more > 0 {
        excluded.push(format!("and {more} more"));
    }
    Acknowledgement {
        generation: echo.stamp.generation,
        uid: object.metadata.uid.clone(),
        evidence: echo.evidence,
        objects: echo.objects,
        bound_seconds: echo.bound.map(|bound| bound.as_secs()),
        lease: if echo.lease_absent {
            "absent".to_owned()
        } else {
            String::new()
        },
        excluded,
        object_generation: echo.object_generation,
        at: timestamp(jiff::Timestamp::now()),
    }
}
