//! One object that can be flipped: is it pending, whom does it wait for, what has to be written?

use std::{
    collections::BTreeSet,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

mod baselines;
mod projection;
mod repair;

use repair::Pace;
pub(crate) use repair::irregularity;

use super::{
    World,
    cache::{Entry, Key, is_older},
    event, failpoint,
    kinds::Kind,
    liar, lock,
    look::{self, LookError},
    write::{self, WriteError},
};
use crate::{
    protocol::{
        GroupKind, Moment, condition,
        evidence::{Echo, Gone, Ground, Lag, Surroundings, Tracker, Verdict, Waiting},
        intent::{Intent, State as Acknowledged},
        keys::{Acknowledgement, Evidence, Record, Standing},
        object::ObjectView,
        scope::{self, Ruled},
        stamp::timestamp,
    },
    wall_clock,
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
    /// What was last found irregular, and when it may be written about.
    irregular: Option<String>,
    pace: Pace,
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
    if !world.kinds_read.load(Ordering::Acquire) {
        return (true, Some(world.settings.debounce));
    }
    let now = world.clock.now();
    let subject = Subject {
        world,
        key,
        flipped: newest(&entry, state),
        kind,
    };
    let irregularity = repair::irregularity(&subject.flipped.rule, &subject.flipped.object);
    // A word that is not true is taken back whatever else has to wait.
    if let Some(what) = irregularity.as_deref().filter(|_| subject.says_too_much()) {
        if now < state.pace.word {
            return (true, Some(state.pace.word.since(now)));
        }
        let delay = match Box::pin(subject.take_back(state, what)).await {
            Ok(()) => Duration::ZERO,
            Err(trouble) => subject.not_taken_back(state, &trouble),
        };
        return (true, Some(delay));
    }
    if now < state.not_before {
        return (true, Some(state.not_before.since(now)));
    }
    let delay = match Box::pin(subject.see_to(state, irregularity)).await {
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
    /// What has been seen is remembered, whatever comes of it. Returns what is around the object.
    fn observe(&self, state: &mut State, is_regular: bool) -> Vec<Entry> {
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
        if let Some(history) = &self.world.settings.history
            && let Standing::Own(record) = Standing::of(&rule.group_kind, object)
        {
            history.note(rule, object, &record, is_regular);
        }
        around
    }

    async fn see_to(&self, state: &mut State, irregularity: Option<String>) -> Result<Option<Duration>, Trouble> {
        let (rule, object) = (&self.flipped.rule, &self.flipped.object);
        let around = self.observe(state, irregularity.is_none());
        self.withdraw(state).await?;
        if let Some(what) = irregularity {
            return self.irregular(state, &what).await;
        }
        state.irregular = None;
        match Standing::of(&rule.group_kind, object) {
            Standing::Own(record) if !record.is_acknowledged(rule) => self.pending(state, &record, around).await,
            standing => {
                state.pace = Pace::default();
                self.calm(state);
                let condition = match standing.record() {
                    Some(record) => self.project(state, record).await?,
                    None => None,
                };
                let baselines = self.baselines(state, &around).await;
                Ok(condition.into_iter().chain(baselines).min())
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

    fn unchanged_since(&self, ruled: &Ruled) -> Option<Moment> {
        lock(&self.world.cache).unchanged_since(&ruled.rule.group_kind, &ruled.object)
    }

    fn belongs_elsewhere(&self, ruled: &Ruled) -> bool {
        lock(&self.world.cache).belongs_elsewhere(&ruled.object, &self.flipped.object)
    }

    /// What may have been deleted as a member. A kind whose watch has not begun may have lost one just now.
    fn gone(&self) -> Vec<Gone> {
        let kinds: Vec<Arc<Kind>> = lock(&self.world.kinds).values().cloned().collect();
        let now = self.world.clock.now();
        let cache = lock(&self.world.cache);
        let inherits = kinds.iter().filter(|kind| kind.rule.inherits);
        inherits
            .map(|kind| Gone {
                rule: Arc::clone(&kind.rule),
                since: cache.gone_since(&kind.rule.group_kind, self.key).unwrap_or(now),
            })
            .collect()
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
                start: self.world.start(),
                guard: ground_guard.as_ref(),
                leases: &leases,
            };
            let all: Vec<Ruled> = around.into_iter().map(|entry| entry.ruled).collect();
            let served: BTreeSet<GroupKind> = lock(&self.world.kinds).keys().cloned().collect();
            let verdict = self.decide(&mut state.tracker, &ground, &self.flipped, &all, &served);
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

    /// What follows from these objects, of kinds that are all in `served`.
    fn decide(
        &self,
        tracker: &mut Tracker,
        ground: &Ground<'_>,
        flipped: &Ruled,
        all: &[Ruled],
        served: &BTreeSet<GroupKind>,
    ) -> Verdict {
        let around = Surroundings {
            has_rule: &|kind| self.has_rule(served, kind),
            unchanged_since: &|ruled| self.unchanged_since(ruled),
            belongs_elsewhere: &|ruled| self.belongs_elsewhere(ruled),
            gone: &self.gone(),
        };
        tracker.look(ground, flipped, all, &around)
    }

    /// The consistent look, and what follows from it.
    async fn look(&self, state: &mut State) -> Result<Option<Duration>, Trouble> {
        if let Some(pending) = &mut state.pending {
            pending.looked = Some(self.world.clock.now());
        }
        let looked = look::look(self.world, self.key, &self.kind).await?;
        state.latest = Some(Arc::clone(&looked.flipped.object));
        // A flip that the look itself has shown counts from now on, not from when the look began.
        state
            .tracker
            .observe(self.world.clock.now(), &self.flipped.rule, &looked.flipped.object);
        let ground = Ground {
            now: looked.at,
            start: self.world.start(),
            guard: looked.guard.as_ref(),
            leases: &looked.leases,
        };
        let verdict = self.decide(
            &mut state.tracker,
            &ground,
            &looked.flipped,
            &looked.all,
            &looked.listed,
        );
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
                if let Err(trouble) = self.echo(state, &looked.flipped.object, word, written).await {
                    return Err(self.refused(state, trouble).await);
                }
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
                Err(error) => {
                    tracing::warn!(object = %self.key, error = %crate::chain(&error), "the condition has to wait");
                }
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
        let mut laggards = waiting.laggards.iter();
        let settling = laggards.any(|laggard| matches!(laggard.lag, Lag::Settling | Lag::Leaving | Lag::Gone));
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

    /// Says what went wrong, and when to try again.
    fn back_off(&self, state: &mut State, trouble: &Trouble) -> Duration {
        let outdated = matches!(
            trouble,
            Trouble::Write(WriteError::Stale | WriteError::NotLeading(_)) | Trouble::Look(LookError::Gone)
        );
        let now = self.world.clock.now();
        let delay = if outdated {
            tracing::debug!(object = %self.key, %trouble, "read again");
            self.world.settings.look_interval
        } else {
            self.world.metrics.errors.inc();
            state.failures = state.failures.saturating_add(1);
            let delay = backoff(state.failures);
            tracing::warn!(object = %self.key, error = %crate::chain(trouble), retry_in = ?delay, "the object cannot be seen to");
            delay
        };
        // What a write has returned may be what misled it.
        state.latest = None;
        state.not_before = now.plus(delay);
        delay
    }
}

pub(super) fn backoff(failures: u32) -> Duration {
    let exponent = failures.saturating_sub(1).min(6);
    Duration::from_secs(1u64 << exponent).min(MAX_BACKOFF)
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
        at: timestamp(wall_clock::now()),
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
        at: timestamp(wall_clock::now()),
    }
}
