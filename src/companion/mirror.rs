//! The condition `Paused` on kinds whose controllers write none (`mirror: true` in their rule).
//!
//! It follows the inputs as the watches show them, those of the object and those that it inherits, and is written rarely:
//! at a flip, and some time after a spec edit has left its `observedGeneration` behind. Where the condition is not one that
//! we have written it is somebody else's and stays as it is.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    World,
    cache::{Concern, Key},
    kinds::Kind,
    lock, reconcile,
    write::{self, Projected, WriteError},
};
use crate::protocol::{
    condition::Projection,
    mirror::{self, is_ours, stored, want},
    scope::Ruled,
};

/// So many writes that say the same are made without slowing down: somebody takes them away.
const FREE_WRITES: u32 = 3;
/// When to try again a write that found the object changed.
const AGAIN: Duration = Duration::from_millis(500);

/// What the watches have shown.
#[derive(Debug, Clone)]
pub(super) struct Changes(Option<mpsc::UnboundedSender<Change>>);

/// An object has changed; `relations`: also what it belongs to.
#[derive(Debug)]
pub(super) struct Change {
    key: Key,
    relations: bool,
}

impl Changes {
    /// With `wanted: false` nothing is noted: no rule asks for a mirror.
    pub(super) fn new(wanted: bool) -> (Self, mpsc::UnboundedReceiver<Change>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(wanted.then_some(sender)), receiver)
    }

    pub(super) fn note(&self, key: &Key, concern: &Concern) {
        if let Some(sender) = self.0.as_ref().filter(|_| concern.own) {
            // Without a receiver everything is stopping.
            drop(sender.send(Change {
                key: key.clone(),
                relations: concern.relations,
            }));
        }
    }
}

/// What is remembered of an object. It is lost with the process, which costs a write at most.
#[derive(Debug, Default)]
struct State {
    failures: u32,
    /// What was last written, how often in a row, and when.
    written: Option<(Projection, u32, Instant)>,
    /// `metadata.generation` of a spec that the condition lags behind, and since when.
    behind: Option<(i64, Instant)>,
    /// The condition was found to be somebody else's.
    is_foreign: bool,
}

/// Follows the changes while this process leads, until `shutdown`.
pub(super) async fn run(world: Arc<World>, mut changes: mpsc::UnboundedReceiver<Change>, shutdown: CancellationToken) {
    let mut leadership = world.leadership.clone();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = leadership.gained() => {}
            () = async { while changes.recv().await.is_some() {} } => return,
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = leadership.lost() => {}
            () = follow(&world, &mut changes) => return,
        }
    }
}

async fn follow(world: &Arc<World>, changes: &mut mpsc::UnboundedReceiver<Change>) {
    // What changed before is there in the cache.
    let mut due: BTreeMap<Key, Instant> = mirrored(world).into_iter().map(|key| (key, Instant::now())).collect();
    let mut states: HashMap<Key, State> = HashMap::new();
    loop {
        let next = due.values().min().copied();
        tokio::select! {
            change = changes.recv() => match change {
                Some(change) => {
                    let at = Instant::now() + world.settings.debounce;
                    for key in concerned(world, change) {
                        let known = due.entry(key).or_insert(at);
                        *known = at.min(*known);
                    }
                    continue;
                }
                // Nothing is ever mirrored.
                None => return,
            },
            () = async { match next { Some(at) => sleep_until(at).await, None => std::future::pending().await } } => {}
        }
        let now = Instant::now();
        let ready: Vec<Key> = due.extract_if(.., |_, at| *at <= now).map(|(key, _)| key).collect();
        let work = ready.into_iter().map(|key| {
            let state = states.remove(&key).unwrap_or_default();
            (key, state)
        });
        let work: Vec<(Key, State)> = work.collect();
        let done = stream::iter(work)
            .map(|(key, mut state)| async move {
                let again = see_to(world, &key, &mut state).await;
                (key, state, again)
            })
            .buffer_unordered(world.settings.concurrency.max(1));
        for (key, state, again) in done.collect::<Vec<_>>().await {
            let Seen::Keep(again) = again else { continue };
            if let Some(delay) = again {
                let at = Instant::now() + delay;
                due.entry(key.clone())
                    .and_modify(|known| *known = at.min(*known))
                    .or_insert(at);
            }
            states.insert(key, state);
        }
    }
}

/// All mirrored objects.
fn mirrored(world: &World) -> Vec<Key> {
    let kinds = lock(&world.kinds);
    let cache = lock(&world.cache);
    let kinds = kinds.values().filter(|kind| kind.mirror);
    kinds
        .flat_map(|kind| cache.of_kind(&kind.rule.group_kind, ""))
        .collect()
}

/// The mirrored objects that a change concerns.
fn concerned(world: &World, change: Change) -> Vec<Key> {
    let Change { key, relations } = change;
    let kinds = lock(&world.kinds);
    let kind = kinds.get(&key.kind);
    let hands_down = kind.is_some_and(|kind| kind.rule.has_heirs());
    let inherits = kind.is_some_and(|kind| kind.rule.inherits);
    let mut found = Vec::new();
    if hands_down || (relations && inherits) {
        let cache = lock(&world.cache);
        for kind in kinds.values().filter(|kind| kind.mirror && kind.rule.inherits) {
            found.extend(cache.of_kind(&kind.rule.group_kind, &key.namespace));
        }
    }
    if kind.is_some_and(|kind| kind.mirror) {
        found.push(key);
    }
    found
}

/// Whether to remember an object, and when to come again.
enum Seen {
    Gone,
    Keep(Option<Duration>),
}

async fn see_to(world: &World, key: &Key, state: &mut State) -> Seen {
    let kind = world.kind(&key.kind).filter(|kind| kind.mirror && kind.takes_condition);
    let (Some(kind), Some((object, heads))) = (kind, with_heads(world, key)) else {
        return Seen::Gone;
    };
    let want = want(&object, &heads);
    let found = stored(&object.object);
    let is_foreign = found.is_some_and(|found| !is_ours(found));
    if is_foreign {
        if !std::mem::replace(&mut state.is_foreign, true) {
            tracing::warn!(
                object = %key,
                "the condition Paused is not one that was written here: somebody else's, and left alone. Remove `mirror` \
                 from the rule if a controller writes it now"
            );
        }
        return Seen::Keep(None);
    }
    state.is_foreign = false;
    let Some(found) = found else {
        return Seen::Keep(Box::pin(write(world, key, &kind, state, want)).await);
    };
    if want.is_in(found) {
        state.behind = None;
        return Seen::Keep(None);
    }
    if found.status == want.status && found.message == want.message {
        // A spec edit alone. The spec has to rest first.
        let present = want.observed_generation;
        let since = match state.behind {
            Some((generation, since)) if generation == present => since,
            _ => Instant::now(),
        };
        state.behind = Some((present, since));
        let rest = world.settings.raise_after.saturating_sub(since.elapsed());
        if !rest.is_zero() {
            return Seen::Keep(Some(rest));
        }
    }
    Seen::Keep(Box::pin(write(world, key, &kind, state, want)).await)
}

/// An object as the cache has it, and the objects that it inherits from.
fn with_heads(world: &World, key: &Key) -> Option<(Ruled, Vec<Ruled>)> {
    let cache = lock(&world.cache);
    let object = cache.get(key)?.ruled.clone();
    let heads = if object.rule.inherits {
        cache.heads(&object.object)
    } else {
        Vec::new()
    };
    Some((object, heads))
}

async fn write(world: &World, key: &Key, kind: &Kind, state: &mut State, wanted: Projection) -> Option<Duration> {
    let last = state.written.as_ref().filter(|(last, ..)| *last == wanted);
    let times = last.map_or(0, |(_, times, _)| *times);
    if times >= FREE_WRITES
        && let Some((_, _, at)) = last
    {
        let rest = reconcile::backoff(times).saturating_sub(at.elapsed());
        if !rest.is_zero() {
            tracing::warn!(object = %key, times, "the condition Paused is taken away again and again: who else writes it?");
            return Some(rest);
        }
    }
    let done = write::condition_of(world, key, kind, mirror::TYPE, |object| {
        let ours = stored(object).is_none_or(is_ours);
        let fresh = Ruled {
            object: Arc::new(object.clone()),
            rule: Arc::clone(&kind.rule),
        };
        let (_, heads) = with_heads(world, key)?;
        ours.then(|| want(&fresh, &heads))
    });
    match done.await {
        Ok(Projected::Unchanged(_)) => {
            state.failures = 0;
            None
        }
        Ok(Projected::Written(object)) => {
            state.failures = 0;
            if let Some(condition) = stored(&object) {
                tracing::info!(
                    object = %key,
                    status = condition.status,
                    observed_generation = condition.observed_generation,
                    "Paused written"
                );
            }
            state.written = Some((wanted, times.saturating_add(1), Instant::now()));
            None
        }
        Err(WriteError::Stale | WriteError::NotLeading(_)) => Some(AGAIN),
        Err(error) => {
            world.metrics.errors.inc();
            state.failures = state.failures.saturating_add(1);
            let delay = reconcile::backoff(state.failures);
            tracing::warn!(object = %key, error = %crate::chain(&error), retry_in = ?delay, "Paused cannot be written");
            Some(delay)
        }
    }
}
