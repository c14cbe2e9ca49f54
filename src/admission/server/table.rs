//! The open connections: what each of them waits for, and since when.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Metrics, Options, limits};

/// What a connection is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// TLS is negotiated.
    Handshake,
    /// Nothing has come of the next request.
    Idle,
    /// The head of a request comes.
    Head,
    /// Its body comes.
    Body,
    /// The answer is made.
    Working,
}

impl Phase {
    const fn is_request(self) -> bool {
        matches!(self, Self::Body | Self::Working)
    }
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    since: Instant,
    /// Whether a request was answered on it.
    served: bool,
    /// Bytes of a body that it holds.
    bytes: usize,
    closed: CancellationToken,
}

#[derive(Debug, Default)]
struct Open {
    next: u64,
    entries: HashMap<u64, Entry>,
    requests: usize,
    bytes: usize,
}

/// All connections of a server.
#[derive(Debug)]
pub(super) struct Table {
    limits: limits::Limits,
    metrics: Metrics,
    open: Mutex<Open>,
}

impl Table {
    pub(super) fn new(options: Options) -> Self {
        let Options { limits, metrics } = options;
        Self {
            limits,
            metrics,
            open: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a new connection. `None`: there are too many, and all of them are at work.
    pub(super) fn open(self: &Arc<Self>) -> Option<Slot> {
        let mut open = self.lock();
        if open.entries.len() >= self.limits.connections {
            let waits = |entry: &Entry| entry.phase != Phase::Working;
            if !self.close_one(&mut open, "connections", waits) {
                self.metrics.shed("connections");
                return None;
            }
        }
        open.next += 1;
        let id = open.next;
        let closed = CancellationToken::new();
        open.entries.insert(
            id,
            Entry {
                phase: Phase::Handshake,
                since: Instant::now(),
                served: false,
                bytes: 0,
                closed: closed.clone(),
            },
        );
        self.count(&open);
        Some(Slot(Arc::new(Inner {
            table: Arc::clone(self),
            id,
            closed,
        })))
    }

    /// Closes the connection that has kept us waiting for longest, those first that have never asked anything.
    fn close_one(&self, open: &mut Open, reason: &'static str, which: impl Fn(&Entry) -> bool) -> bool {
        let candidates = open.entries.iter().filter(|(_, entry)| which(entry));
        let longest = candidates.min_by_key(|(id, entry)| (entry.served, entry.since, **id));
        let Some(id) = longest.map(|(id, _)| *id) else {
            return false;
        };
        self.metrics.cut_off(reason);
        self.close(open, id);
        true
    }

    /// Its room is free from now on; the rest of it follows within moments.
    fn close(&self, open: &mut Open, id: u64) {
        if let Some(entry) = open.entries.remove(&id) {
            entry.closed.cancel();
            open.requests -= usize::from(entry.phase.is_request());
            open.bytes -= entry.bytes;
            self.count(open);
        }
    }

    fn count(&self, open: &Open) {
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.metrics.connections.set(number(open.entries.len()));
        self.metrics.bytes.set(number(open.bytes));
    }

    /// Closes the connections that have kept us waiting for too long.
    pub(super) fn sweep(&self) {
        let now = Instant::now();
        let mut open = self.lock();
        let overdue = |entry: &Entry| {
            limits::patience(entry.phase).is_some_and(|patience| now.duration_since(entry.since) > patience)
        };
        let late: Vec<(u64, Phase)> = open
            .entries
            .iter()
            .filter(|(_, entry)| overdue(entry))
            .map(|(id, entry)| (*id, entry.phase))
            .collect();
        for (id, phase) in late {
            self.metrics.cut_off(match phase {
                Phase::Handshake => "handshake-timeout",
                Phase::Idle => "idle-timeout",
                _ => "request-timeout",
            });
            self.close(&mut open, id);
        }
    }
}

#[derive(Debug)]
struct Inner {
    table: Arc<Table>,
    id: u64,
    closed: CancellationToken,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let mut open = self.table.lock();
        self.table.close(&mut open, self.id);
    }
}

/// A limit is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// One connection's place in the table. It is given back with the last clone.
#[derive(Debug, Clone)]
pub struct Slot(Arc<Inner>);

impl Slot {
    /// Waits until the connection has to end.
    pub(super) async fn closed(&self) {
        self.0.closed.cancelled().await;
    }

    fn change<T>(&self, change: impl FnOnce(&mut Open, &mut Entry) -> T) -> Option<T> {
        let mut open = self.0.table.lock();
        // It is on its way out where it has no place any more.
        let mut entry = open.entries.remove(&self.0.id)?;
        let before = entry.phase;
        let changed = change(&mut open, &mut entry);
        open.requests += usize::from(entry.phase.is_request());
        open.requests -= usize::from(before.is_request());
        if entry.phase != before {
            entry.since = Instant::now();
        }
        open.entries.insert(self.0.id, entry);
        self.0.table.count(&open);
        Some(changed)
    }

    /// Nothing of the next request is there.
    pub(super) fn idle(&self, served: bool) {
        self.change(|open, entry| {
            open.bytes -= std::mem::take(&mut entry.bytes);
            entry.phase = Phase::Idle;
            entry.served |= served;
        });
    }

    /// Something has come.
    pub(super) fn received(&self) {
        self.change(|_, entry| {
            if entry.phase == Phase::Idle {
                entry.phase = Phase::Head;
            }
        });
    }

    /// The head of a request is there, and it is worked on.
    pub(super) fn begin(&self) {
        self.change(|_, entry| entry.phase = Phase::Working);
    }

    /// The body of the request is read from now on.
    ///
    /// # Errors
    /// There are too many requests.
    pub fn reads(&self) -> Result<(), Full> {
        let (table, now) = (&self.0.table, Instant::now());
        let reading = self.change(|open, entry| {
            let others = open.requests - usize::from(entry.phase.is_request());
            let stalls =
                |other: &Entry| other.phase == Phase::Body && now.duration_since(other.since) > limits::PATIENCE;
            if others >= table.limits.requests && !table.close_one(open, "requests", stalls) {
                table.metrics.shed("requests");
                return Err(Full);
            }
            entry.phase = Phase::Body;
            Ok(())
        });
        reading.unwrap_or(Err(Full))
    }

    /// So many bytes of the body have come.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn takes(&self, bytes: usize) -> Result<(), Full> {
        let table = &self.0.table;
        let taken = self.change(|open, entry| {
            while open.bytes + bytes > table.limits.bytes {
                let reads = |other: &Entry| other.phase == Phase::Body && other.bytes > 0;
                if !table.close_one(open, "bytes", reads) {
                    table.metrics.shed("bytes");
                    return Err(Full);
                }
            }
            open.bytes += bytes;
            entry.bytes += bytes;
            Ok(())
        });
        taken.unwrap_or(Err(Full))
    }

    /// The body is there.
    pub fn has_read(&self) {
        self.change(|_, entry| entry.phase = Phase::Working);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn table(connections: usize, requests: usize, bytes: usize) -> Arc<Table> {
        Arc::new(Table::new(Options {
            limits: limits::Limits {
                connections,
                requests,
                bytes,
            },
            metrics: Metrics::default(),
        }))
    }

    fn is_closed(slot: &Slot) -> bool {
        slot.0.closed.is_cancelled()
    }

    #[test]
    fn who_never_asked_makes_room_first_and_who_works_never() {
        let table = table(3, 3, 100);
        let (api_server, stranger, busy) = (table.open().unwrap(), table.open().unwrap(), table.open().unwrap());
        api_server.begin();
        api_server.idle(true);
        stranger.idle(false);
        busy.begin();
        let fourth = table.open().unwrap();
        assert!(is_closed(&stranger) && !is_closed(&api_server) && !is_closed(&busy));
        fourth.begin();
        let fifth = table.open().unwrap();
        assert!(is_closed(&api_server));
        fifth.begin();
        assert!(table.open().is_none(), "all are at work");
        drop(fifth);
        assert!(table.open().is_some());
    }

    #[test]
    fn bytes_are_given_back_and_a_body_that_stalls_makes_room() {
        let table = table(10, 10, 100);
        let (slow, quick) = (table.open().unwrap(), table.open().unwrap());
        slow.reads().unwrap();
        slow.takes(60).unwrap();
        quick.reads().unwrap();
        quick.takes(60).unwrap();
        assert!(is_closed(&slow) && !is_closed(&quick));
        quick.has_read();
        let third = table.open().unwrap();
        third.reads().unwrap();
        assert_eq!(third.takes(60), Err(Full), "nobody is cut off while its answer is made");
        quick.idle(true);
        assert_eq!(third.takes(60), Ok(()));
        drop((slow, quick, third));
        let open = table.lock();
        assert_eq!((open.entries.len(), open.requests, open.bytes), (0, 0, 0));
    }

    /// As if everything had been so for that much longer.
    fn pass(table: &Table, time: Duration) {
        for entry in table.lock().entries.values_mut() {
            entry.since = entry.since.checked_sub(time).unwrap();
        }
    }

    #[test]
    fn requests_are_refused_unless_one_of_them_stalls() {
        let table = table(10, 2, 100);
        let slots: Vec<Slot> = (0..3).map(|_| table.open().unwrap()).collect();
        slots[0].reads().unwrap();
        slots[1].begin();
        slots[2].begin();
        assert_eq!(slots[2].reads(), Err(Full));
        pass(&table, limits::PATIENCE * 2);
        assert_eq!(slots[2].reads(), Ok(()));
        assert!(is_closed(&slots[0]));
    }

    #[test]
    fn whoever_keeps_us_waiting_is_cut_off() {
        let table = table(10, 10, 100);
        let slots: Vec<Slot> = (0..3).map(|_| table.open().unwrap()).collect();
        slots[1].idle(false);
        slots[2].idle(false);
        slots[2].received();
        pass(&table, Duration::from_secs(9));
        slots[2].received();
        table.sweep();
        assert!(!slots.iter().any(is_closed));
        pass(&table, Duration::from_secs(2));
        table.sweep();
        assert!(is_closed(&slots[0]) && !is_closed(&slots[1]) && is_closed(&slots[2]));
        // Longer than the API server keeps an idle connection.
        pass(&table, Duration::from_secs(90));
        table.sweep();
        assert!(!is_closed(&slots[1]));
    }
}
