//! Which objects to see to, and when. One object is seen to by one task at a time.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{World, cache::Key, lock, reconcile};

/// Asks for objects to be seen to.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    sender: mpsc::UnboundedSender<(Key, Instant)>,
    debounce: Duration,
}

/// The other end of a [`Queue`].
pub(super) type Inbox = mpsc::UnboundedReceiver<(Key, Instant)>;

impl Queue {
    pub(super) fn new(debounce: Duration) -> (Self, Inbox) {
        let (sender, inbox) = mpsc::unbounded_channel();
        (Self { sender, debounce }, inbox)
    }

    /// Sees to an object soon. What is asked for meanwhile is gathered.
    pub(super) fn soon(&self, key: Key) {
        self.after(key, self.debounce);
    }

    /// Sees to an object after a while.
    pub(super) fn after(&self, key: Key, delay: Duration) {
        // Without a receiver everything is stopping.
        drop(self.sender.send((key, Instant::now() + delay)));
    }
}

/// What is due when.
#[derive(Debug, Default)]
struct Schedule {
    order: BTreeSet<(Instant, Key)>,
    due: HashMap<Key, Instant>,
}

impl Schedule {
    /// The earlier of two times counts.
    fn add(&mut self, key: Key, at: Instant) {
        match self.due.get(&key) {
            Some(known) if *known <= at => return,
            Some(known) => {
                self.order.remove(&(*known, key.clone()));
            }
            None => {}
        }
        self.due.insert(key.clone(), at);
        self.order.insert((at, key));
    }

    fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    fn pop(&mut self, now: Instant) -> Option<Key> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.order.pop_first()?;
        self.due.remove(&key);
        Some(key)
    }
}

/// How long what is under way may take to end when this process is asked to stop.
const DRAIN: Duration = Duration::from_secs(5);

/// Sees to objects while this process leads, until `shutdown`.
pub(super) async fn run(world: Arc<World>, mut inbox: Inbox, shutdown: CancellationToken) {
    let mut leadership = world.leadership.clone();
    loop {
        // One that does not lead only watches: what it is asked for is seen to by the leader.
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = leadership.gained() => {}
            () = async { while inbox.recv().await.is_some() {} } => return,
        }
        world.begin_term();
        let mut running = JoinSet::new();
        tokio::select! {
            () = see_to_all(&world, &mut inbox, &mut running) => {}
            () = leadership.lost() => running.shutdown().await,
            () = shutdown.cancelled() => {
                let drained = timeout(DRAIN, async { while running.join_next().await.is_some() {} });
                if drained.await.is_err() {
                    running.shutdown().await;
                }
                return;
            }
        }
    }
}

/// Sees to objects without end.
async fn see_to_all(world: &Arc<World>, inbox: &mut Inbox, running: &mut JoinSet<(Key, Option<Duration>)>) {
    let mut schedule = Schedule::default();
    let mut busy: HashSet<Key> = HashSet::new();
    let mut again: HashMap<Key, Instant> = HashMap::new();
    loop {
        let now = Instant::now();
        while running.len() < world.settings.concurrency.max(1)
            && let Some(key) = schedule.pop(now)
        {
            if busy.contains(&key) {
                again.insert(key, now);
                continue;
            }
            busy.insert(key.clone());
            let world = Arc::clone(world);
            running.spawn(async move {
                let delay = Box::pin(see_to(&world, &key)).await;
                (key, delay)
            });
        }
        let next = if running.len() < world.settings.concurrency.max(1) {
            schedule.next()
        } else {
            None
        };
        tokio::select! {
            Some((key, at)) = inbox.recv() => schedule.add(key, at),
            Some(done) = running.join_next(), if !running.is_empty() => match done {
                Ok((key, delay)) => {
                    busy.remove(&key);
                    let now = Instant::now();
                    if again.remove(&key).is_some() {
                        schedule.add(key, now + world.settings.debounce);
                    } else if let Some(delay) = delay {
                        schedule.add(key, now + delay);
                    }
                }
                Err(error) => {
                    // A fault of ours. Which object it was is lost, so all are free again and seen to anew.
                    tracing::error!(%error, "seeing to an object has failed");
                    busy.clear();
                    world.dispatch_all();
                }
            },
            () = async { match next { Some(at) => sleep_until(at).await, None => std::future::pending().await } } => {}
        }
    }
}

async fn see_to(world: &Arc<World>, key: &Key) -> Option<Duration> {
    let state = lock(&world.states).remove(key);
    let mut state = state.unwrap_or_default();
    let (keep, delay) = reconcile::reconcile(world, key, &mut state).await;
    if keep {
        lock(&world.states).insert(key.clone(), state);
    }
    delay
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::GroupKind;

    #[test]
    fn the_earlier_time_counts() {
        let key = |name: &str| Key {
            kind: GroupKind::new("g", "K"),
            namespace: String::new(),
            name: name.to_owned(),
        };
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let mut schedule = Schedule::default();
        schedule.add(key("a"), at(10));
        schedule.add(key("b"), at(5));
        schedule.add(key("a"), at(2));
        schedule.add(key("a"), at(7));
        assert_eq!(schedule.pop(at(1)), None);
        assert_eq!(schedule.pop(at(6)), Some(key("a")));
        assert_eq!(schedule.pop(at(6)), Some(key("b")));
        assert_eq!(schedule.pop(at(60)), None);
    }
}
