//! The file that `serve --history` writes.
//!
//! Every line is written at once and synced. What a crash or a full disk has left of a line is named by the next one, so
//! that nothing has to be taken away; what cannot be written waits in memory. A thread of its own does all of that: nobody
//! who tells it anything waits for a disk.

use std::{
    collections::{HashMap, VecDeque},
    fs::{self, File, OpenOptions},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use jiff::Timestamp;

use super::{
    entry::{self, Entry, Event, Head, LineError, Object},
    verify::{LONGEST, rotated},
};
use crate::protocol::{
    keys::{Record, Stamp},
    object::ObjectView,
    rule::KindRule,
};

/// Events that wait for room.
const BACKLOG: usize = if cfg!(test) { 100 } else { 10_000 };
/// How often it is tried again where there is no room.
const RETRY: Duration = Duration::from_secs(5);

/// Where to write, and when to begin another file.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The file; `None`: standard output, where each process begins a chain of its own.
    pub path: Option<PathBuf>,
    /// A file that is larger than this is rotated: it keeps its name with a number, and the chain goes on in a new one.
    pub rotate_at: u64,
}

/// The history cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("the history cannot be written to {file}")]
pub struct HistoryError {
    file: String,
    source: io::Error,
}

/// What the companion tells of an object that it has seen.
#[derive(Debug, Clone)]
struct Seen {
    object: Object,
    stamp: Stamp,
    hasty: bool,
    acknowledged: Option<Event>,
}

/// A history that is being written. Clones write to the same.
#[derive(Debug, Clone)]
pub struct History {
    sender: mpsc::Sender<Seen>,
    thread: Arc<Thread>,
}

#[derive(Debug)]
struct Thread(std::sync::Mutex<Option<JoinHandle<()>>>);

impl History {
    /// Opens the history and repairs what a crash has left.
    ///
    /// # Errors
    /// The file cannot be opened, read or written.
    pub fn open(settings: Settings) -> Result<Self, HistoryError> {
        let mut writer = Writer::open(settings)?;
        let (sender, receiver) = mpsc::channel::<Seen>();
        let thread = std::thread::spawn(move || {
            loop {
                let wait = if writer.backlog.is_empty() {
                    Duration::MAX
                } else {
                    RETRY
                };
                match receiver.recv_timeout(wait) {
                    Ok(seen) => writer.note(seen),
                    Err(mpsc::RecvTimeoutError::Timeout) => {}
                    Err(mpsc::RecvTimeoutError::Disconnected) => {
                        writer.flush();
                        return;
                    }
                }
                writer.flush();
            }
        });
        Ok(Self {
            sender,
            thread: Arc::new(Thread(std::sync::Mutex::new(Some(thread)))),
        })
    }

    /// An object whose keys are believed, as it was seen. What is known already is not written again.
    pub fn note(&self, rule: &KindRule, object: &ObjectView, record: &Record, is_regular: bool) {
        let named = Object {
            kind: rule.group_kind.to_string(),
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
            uid: object.metadata.uid.clone(),
        };
        let acknowledged = match (
            record.is_acknowledged(rule) && is_regular,
            record.acknowledged,
            &record.acknowledgement,
        ) {
            (true, Some(state), Some(acknowledgement)) => Some(Event::Acknowledged {
                object: named.clone(),
                state,
                acknowledgement: Box::new(acknowledgement.clone()),
            }),
            _ => None,
        };
        let seen = Seen {
            object: named,
            hasty: acknowledged.is_none() && !record.is_clean(),
            stamp: record.stamp.clone(),
            acknowledged,
        };
        // The thread ends with the last sender only.
        drop(self.sender.send(seen));
    }

    /// Writes what is left and ends. Only the last clone waits for that.
    pub fn close(self) {
        let Self { sender, thread } = self;
        drop(sender);
        if let Some(thread) = Arc::into_inner(thread).and_then(|thread| thread.0.into_inner().ok().flatten()) {
            // A thread that panicked has nothing left to say.
            drop(thread.join());
        }
    }
}

/// What was last written of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Known {
    generation: u64,
    at: String,
    is_acknowledged: bool,
}

/// Writes events as lines.
#[derive(Debug)]
pub(super) struct Writer {
    out: Out,
    head: Head,
    known: HashMap<Object, Known>,
    backlog: VecDeque<Event>,
    lost: u64,
    is_failing: bool,
}

/// What lines are written to.
pub(super) trait Medium: Send + std::fmt::Debug {
    /// Writes all of it at the end, and until it is safe.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Takes away what stands behind this many bytes.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

impl Medium for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)?;
        self.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

#[derive(Debug)]
enum Out {
    Stdout,
    File {
        file: Box<dyn Medium>,
        path: PathBuf,
        rotate_at: u64,
        /// The bytes that are whole lines.
        good: u64,
        /// Whether something may stand behind them.
        is_dirty: bool,
    },
}

impl Writer {
    pub(super) fn open(settings: Settings) -> Result<Self, HistoryError> {
        let Settings { path, rotate_at } = settings;
        let Some(path) = path else {
            let mut writer = Self::new(Out::Stdout);
            writer.push(started());
            return Ok(writer);
        };
        let failed = |source| HistoryError {
            file: path.display().to_string(),
            source,
        };
        let mut head = Head::default();
        let mut known = HashMap::new();
        let files = rotated(&path).map_err(failed)?;
        // The chain goes on from the newest; what is known of an object may stand in any of them.
        for file in files.values() {
            scan(file, &mut head, &mut known).map_err(failed)?;
        }
        let is_new = !path.exists();
        let scanned = if is_new {
            Scanned::default()
        } else {
            scan(&path, &mut head, &mut known).map_err(failed)?
        };
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .read(true)
            .open(&path)
            .map_err(failed)?;
        sync_folder(&path);
        let mut writer = Self::new(Out::File {
            file: Box::new(file),
            path: path.clone(),
            rotate_at: rotate_at.max(1),
            good: scanned.length,
            is_dirty: false,
        });
        writer.head = head;
        writer.known = known;
        if scanned.ends_in_line && scanned.is_whole {
            writer.raw(b"\n").map_err(failed)?;
        } else if scanned.ends_in_line {
            writer.raw(b"\n").map_err(failed)?;
            writer.push(Event::Recovered {
                bytes: scanned.torn.len() as u64,
                sha256: entry::digest(&scanned.torn),
            });
        }
        if let (true, Some(last)) = (is_new, files.values().next_back()) {
            writer.push(continued(last));
        }
        writer.push(started());
        writer.flush();
        if writer.is_failing {
            return Err(failed(io::Error::other(
                "the first line cannot be written: is there room?",
            )));
        }
        Ok(writer)
    }

    fn new(out: Out) -> Self {
        Self {
            out,
            head: Head::default(),
            known: HashMap::new(),
            backlog: VecDeque::new(),
            lost: 0,
            is_failing: false,
        }
    }

    fn note(&mut self, seen: Seen) {
        let Seen {
            object,
            stamp,
            hasty,
            acknowledged,
        } = seen;
        let known = self.known.get(&object).cloned().unwrap_or_default();
        let generation = stamp.generation;
        let is_new = known.generation != generation || known.at != stamp.at;
        let was_acknowledged = known.is_acknowledged && !is_new;
        let now = Known {
            generation,
            at: stamp.at.clone(),
            is_acknowledged: acknowledged.is_some(),
        };
        if is_new {
            self.push(Event::Flip {
                object: object.clone(),
                hasty,
                stamp: Box::new(stamp),
            });
        }
        match acknowledged {
            Some(event) if !was_acknowledged => self.push(event),
            None if was_acknowledged => self.push(Event::Withdrawn {
                object: object.clone(),
                generation,
            }),
            _ => {}
        }
        self.known.insert(object, now);
    }

    pub(super) fn push(&mut self, event: Event) {
        if self.backlog.len() >= BACKLOG {
            self.lost += 1;
            return;
        }
        self.backlog.push_back(event);
    }

    /// Writes to something else than the file that was opened.
    #[cfg(test)]
    pub(super) fn on(&mut self, wrap: impl FnOnce(Box<dyn Medium>) -> Box<dyn Medium>) {
        if let Out::File { file, .. } = &mut self.out {
            let open: Box<dyn Medium> = std::mem::replace(file, Box::new(tempfile::tempfile().unwrap()));
            *file = wrap(open);
        }
    }

    /// How many events wait for room.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.backlog.len()
    }

    /// Writes what waits, as far as there is room.
    pub(super) fn flush(&mut self) {
        while let Some(event) = self.backlog.front().cloned() {
            if let Err(error) = self.line(event) {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, waiting = self.backlog.len(), "the history cannot be written: what happens waits in memory");
                }
                return;
            }
            self.backlog.pop_front();
        }
        if self.lost > 0 {
            let events = self.lost;
            if self.line(Event::Lost { events }).is_ok() {
                self.lost = 0;
            }
        }
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("the history is written again");
        }
    }

    fn line(&mut self, event: Event) -> io::Result<()> {
        self.rotate()?;
        self.repair()?;
        let mut head = self.head.clone();
        let at = crate::protocol::stamp::timestamp(Timestamp::now());
        let line = head.link(at, event)? + "\n";
        self.raw(line.as_bytes())?;
        self.head = head;
        Ok(())
    }

    fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.out {
            Out::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Out::File {
                file, good, is_dirty, ..
            } => {
                *is_dirty = true;
                file.append(bytes)?;
                *good += bytes.len() as u64;
                *is_dirty = false;
                Ok(())
            }
        }
    }

    /// Takes away what a write that failed has left. Nobody else writes here, and it was never a line.
    fn repair(&mut self) -> io::Result<()> {
        if let Out::File {
            file,
            good,
            is_dirty: is_dirty @ true,
            ..
        } = &mut self.out
        {
            file.truncate(*good)?;
            *is_dirty = false;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let Out::File { rotate_at, good, .. } = &self.out else {
            return Ok(());
        };
        if good < rotate_at {
            return Ok(());
        }
        self.repair()?;
        let Out::File {
            file,
            path: current,
            good,
            ..
        } = &mut self.out
        else {
            return Ok(());
        };
        let files = rotated(current)?;
        // It has its number already where only the new file could not be made.
        let old = match files.iter().next_back() {
            Some((_, last)) if !current.exists() => last.clone(),
            last => {
                let mut name = current.clone().into_os_string();
                name.push(format!(".{:06}", last.map_or(1, |(number, _)| number + 1)));
                let old = PathBuf::from(name);
                fs::rename(&*current, &old)?;
                old
            }
        };
        *file = Box::new(
            OpenOptions::new()
                .create_new(true)
                .append(true)
                .read(true)
                .open(&*current)?,
        );
        *good = 0;
        sync_folder(current);
        self.line(continued(&old))
    }
}

fn started() -> Event {
    Event::Started {
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn continued(from: &Path) -> Event {
    Event::Continued {
        file: from.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

/// A rename or a new file that is not synced may be undone by a crash. Not every file system can.
fn sync_folder(path: &Path) {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    drop(File::open(folder).and_then(|folder| folder.sync_all()));
}

/// How a file ends.
#[derive(Debug, Default)]
struct Scanned {
    length: u64,
    /// Whether it ends without a line break.
    ends_in_line: bool,
    /// Whether what stands there is a line all the same.
    is_whole: bool,
    torn: Vec<u8>,
}

/// Reads where the chain stands at the end of a file, and what is known of objects.
fn scan(path: &Path, head: &mut Head, known: &mut HashMap<Object, Known>) -> io::Result<Scanned> {
    let mut reader = BufReader::new(File::open(path)?);
    let mut scanned = Scanned::default();
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        let read = reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut bytes)?;
        if read == 0 {
            return Ok(scanned);
        }
        scanned.length += read as u64;
        scanned.ends_in_line = bytes.last() != Some(&b'\n');
        if !scanned.ends_in_line {
            bytes.pop();
        }
        let (entry, hash) = match entry::read(&String::from_utf8_lossy(&bytes)) {
            Ok(read) => read,
            // It is as wrong as it was: `history verify` says so, and the chain goes on from what it claims.
            Err(LineError::Edited { entry, hash }) => (*entry, hash),
            Err(LineError::Shape(_)) => {
                scanned.is_whole = false;
                scanned.torn.clone_from(&bytes);
                continue;
            }
        };
        scanned.is_whole = true;
        scanned.torn.clear();
        remember(&entry, known);
        *head = Head {
            next: entry.seq.saturating_add(1),
            hash,
        };
    }
}

fn remember(entry: &Entry, known: &mut HashMap<Object, Known>) {
    match &entry.event {
        Event::Flip { object, stamp, .. } => {
            let now = Known {
                generation: stamp.generation,
                at: stamp.at.clone(),
                is_acknowledged: false,
            };
            known.insert(object.clone(), now);
        }
        Event::Acknowledged { object, .. } => {
            if let Some(known) = known.get_mut(object) {
                known.is_acknowledged = true;
            }
        }
        Event::Withdrawn { object, .. } => {
            if let Some(known) = known.get_mut(object) {
                known.is_acknowledged = false;
            }
        }
        _ => {}
    }
}
