//! The history once more, from the API server's own audit log: JSON lines, plain or gzip, streamed, several files at once,
//! since each API server of a cluster writes its own.
//!
//! Flips come from the webhook's audit annotations, acknowledgements from the companion's writes, and every write of a
//! controller to a paused object after its acknowledgement is told. At level Metadata the log has no bodies: then a write of
//! the companion to an object that waits is taken for its acknowledgement. At level RequestResponse it has the answers too,
//! and a write that changed nothing is none.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, BufRead, BufReader, Read},
};

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde_json::Value;

use super::entry::{Event, Object};
use crate::{
    protocol::{
        GroupKind,
        intent::State,
        keys::{ACKNOWLEDGED, StampNote},
        scope::{self, Ruled},
    },
    report::audit::Objects,
    rules::Rules,
};

mod logged;

use logged::{Logged, Reference};

/// An event that is longer is passed over, and counted: the API server cuts them long before.
const LONGEST: u64 = 16 << 20;
/// How many lines that cannot be read are told one by one.
const TOLD: usize = 20;
/// How much of a file is read at once.
const BUFFER: usize = 1 << 16;
/// Collects garbage and empties namespaces, where it has no service accounts of its own.
const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";

/// Who is who in the log.
#[derive(Debug, Clone)]
pub struct Who {
    /// The companion's user names.
    pub companions: BTreeSet<String>,
    /// Users that are controllers, besides all service accounts.
    pub controllers: BTreeSet<String>,
}

impl Who {
    fn is_controller(&self, user: &str) -> bool {
        self.controllers.contains(user) || user == CONTROLLER_MANAGER || user.starts_with("system:serviceaccount:")
    }
}

/// A file of an audit log.
pub struct Source<'a> {
    name: String,
    reader: Box<dyn BufRead + 'a>,
    line: u64,
}

impl<'a> Source<'a> {
    /// A file, plain or gzip; `name` is what it is called in messages.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn new(name: impl Into<String>, reader: impl Read + 'a) -> Result<Self, ReadError> {
        let name = name.into();
        let mut reader = BufReader::with_capacity(BUFFER, reader);
        let is_packed = match reader.fill_buf() {
            Ok(begin) => begin.starts_with(&[0x1f, 0x8b]),
            Err(source) => return Err(ReadError::File { file: name, source }),
        };
        Ok(Self {
            name,
            reader: if is_packed {
                Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(reader)))
            } else {
                Box::new(reader)
            },
            line: 0,
        })
    }
}

/// A log cannot be read, or nobody takes what it says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A file cannot be read to its end.
    #[error("{file} cannot be read")]
    File {
        /// The file.
        file: String,
        /// Why not.
        source: io::Error,
    },
    /// The history cannot be written.
    #[error("the history cannot be written")]
    Sink(#[source] io::Error),
}

/// Rebuilds a history.
#[derive(Debug)]
pub struct Rebuild<'a> {
    rules: &'a Rules,
    who: Who,
    kinds: HashMap<(String, String), GroupKind>,
    /// Which object inherits from which, as far as objects were given.
    above: HashMap<Object, Vec<Object>>,
    standing: HashMap<Object, Standing>,
    versions: HashMap<Object, Version>,
    counts: Counts,
}

/// The revision that a write was last answered with, and when that was.
#[derive(Debug)]
struct Version {
    resource_version: String,
    at: Timestamp,
}

/// What was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines.
    pub lines: u64,
    /// Flips.
    pub flips: u64,
    /// Acknowledgements.
    pub acknowledgements: u64,
    /// Writes of controllers to paused objects after their acknowledgement.
    pub writes: u64,
    /// How many of them may have changed nothing: the log does not hold what they were answered with.
    pub untold: u64,
    /// Writes of controllers that were left out, since they have changed nothing.
    pub unchanged: u64,
    /// Lines that are no audit events, or too long.
    pub unreadable: u64,
    /// The first of them: file, line, what is wrong.
    pub told: Vec<(String, u64, String)>,
}

/// What is known of an object so far.
#[derive(Debug, Clone, Default)]
struct Standing {
    generation: u64,
    is_paused: bool,
    /// Whether its members are paused with it.
    hands_down: bool,
    /// Since when it is acknowledged.
    acknowledged: Option<Timestamp>,
}

impl<'a> Rebuild<'a> {
    /// Nothing read yet. `objects` say who inherits from whom; without them only an object's own pause counts.
    #[must_use]
    pub fn new(rules: &'a Rules, who: Who, objects: &Objects) -> Self {
        let kinds = rules.kinds().into_iter().chain(objects.listed.iter().cloned());
        let kinds = kinds.map(|kind| ((kind.group.clone(), rules.plural(&kind)), kind));
        Self {
            rules,
            who,
            kinds: kinds.collect(),
            above: above(objects),
            standing: HashMap::new(),
            versions: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// What was read so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Reads files, in the order of the times at which their requests were complete. `sink` takes each event of the
    /// history, `progress` the bytes that were read.
    ///
    /// # Errors
    /// A file cannot be read, or the sink fails.
    pub fn read(
        &mut self,
        sources: Vec<Source<'_>>,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ReadError> {
        let mut open = Vec::with_capacity(sources.len());
        for mut source in sources {
            if let Some(next) = self.next(&mut source, progress)? {
                open.push((next, source));
            }
        }
        // Of equal times the file that was named first.
        while let Some(first) = (0..open.len()).min_by_key(|i| open.get(*i).map(|((at, ..), _)| *at)) {
            let Some(((_, object, logged), source)) = open.get_mut(first) else {
                return Ok(());
            };
            let logged = std::mem::take(logged);
            let object = object.clone();
            match self.next(source, progress)? {
                Some(next) => {
                    if let Some((before, _)) = open.get_mut(first) {
                        *before = next;
                    }
                }
                None => drop(open.remove(first)),
            }
            self.event(object, logged, sink).map_err(ReadError::Sink)?;
        }
        Ok(())
    }

    /// The next write to an object of a ruled kind.
    fn next(
        &mut self,
        source: &mut Source<'_>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Option<(Timestamp, Object, Logged)>, ReadError> {
        let name = source.name.clone();
        let failed = |source| ReadError::File {
            file: name.clone(),
            source,
        };
        let mut line = Vec::new();
        loop {
            line.clear();
            let reader = &mut source.reader;
            let read = reader
                .by_ref()
                .take(LONGEST)
                .read_until(b'\n', &mut line)
                .map_err(failed)?;
            if read == 0 {
                return Ok(None);
            }
            source.line += 1;
            self.counts.lines += 1;
            progress(read as u64);
            if read as u64 == LONGEST && line.last() != Some(&b'\n') {
                self.unreadable(source, "longer than any event of an API server".to_owned());
                skip_line(&mut source.reader, progress).map_err(failed)?;
                continue;
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let logged = match serde_json::from_slice::<Logged>(&line) {
                Ok(logged) if logged.kind == "Event" => logged,
                Ok(_) => {
                    self.unreadable(source, "no audit event".to_owned());
                    continue;
                }
                Err(error) => {
                    self.unreadable(source, error.to_string());
                    continue;
                }
            };
            if !logged.is_write() {
                continue;
            }
            let Some(object) = logged.object_ref.as_ref().and_then(|reference| self.object(reference)) else {
                continue;
            };
            let at = logged.stage_timestamp.as_deref().unwrap_or_default();
            match at.parse() {
                Ok(at) => return Ok(Some((at, object, logged))),
                Err(_) => self.unreadable(source, format!("its stageTimestamp `{at}` is no time")),
            }
        }
    }

    fn unreadable(&mut self, source: &Source<'_>, why: String) {
        self.counts.unreadable += 1;
        if self.counts.told.len() < TOLD {
            self.counts.told.push((source.name.clone(), source.line, why));
        }
    }

    fn event(
        &mut self,
        object: Object,
        logged: Logged,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_unchanged = self.is_unchanged(&object, &logged);
        let is_main = logged
            .object_ref
            .as_ref()
            .is_some_and(|reference| reference.subresource.is_empty());
        if let Some((generation, note)) = logged.stamped().filter(|_| is_main) {
            return self.flip(object, generation, note, logged, sink);
        }
        if self.who.companions.contains(logged.by()) {
            return if is_main {
                self.companion(object, logged, sink)
            } else {
                Ok(())
            };
        }
        if logged.verb == "deletecollection" {
            // Which of them the log does not say.
            let is_one = |one: &&Object| {
                one.kind == object.kind && (object.namespace.is_empty() || one.namespace == object.namespace)
            };
            let known = self.standing.keys().chain(self.above.keys()).filter(is_one);
            let all: BTreeSet<Object> = known.cloned().collect();
            return all
                .into_iter()
                .try_for_each(|one| self.write(one, &logged, false, sink));
        }
        if logged.verb == "create" && is_main {
            // Another one of that name: what was known is of the one before.
            self.standing.remove(&object);
        }
        self.write(object, &logged, is_unchanged, sink)
    }

    /// Whether a write has changed nothing: it was answered with the revision that it was made on, or with one that was
    /// there before it was asked for.
    fn is_unchanged(&mut self, object: &Object, logged: &Logged) -> bool {
        let Some(version) = logged.resource_version() else {
            return false;
        };
        let time = |at: &Option<String>| at.as_deref().and_then(|at| at.parse::<Timestamp>().ok());
        match self.versions.get(object) {
            Some(known) if known.resource_version == version => {
                let was_there = time(&logged.request_received_timestamp).is_some_and(|asked| known.at <= asked);
                logged.is_update() && (was_there || logged.base_version() == Some(version))
            }
            _ => {
                if let Some(at) = time(&logged.stage_timestamp) {
                    let resource_version = version.to_owned();
                    self.versions.insert(object.clone(), Version { resource_version, at });
                }
                logged.is_update() && logged.base_version() == Some(version)
            }
        }
    }

    fn flip(
        &mut self,
        object: Object,
        generation: u64,
        note: StampNote,
        logged: Logged,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let StampNote { hasty, before, after } = note;
        let rule = self
            .kinds
            .values()
            .find(|kind| kind.to_string() == object.kind)
            .and_then(|kind| self.rules.rule_for(kind));
        let inherited = rule
            .iter()
            .flat_map(|rule| &rule.inputs)
            .filter(|input| input.inherited);
        let standing = Standing {
            generation,
            is_paused: after != "nothing",
            hands_down: inherited
                .into_iter()
                .any(|input| after.split(" and ").any(|on| on == input.id.0)),
            acknowledged: None,
        };
        self.standing.insert(object.clone(), standing);
        self.counts.flips += 1;
        sink(Event::LoggedFlip {
            object,
            generation,
            hasty,
            before,
            after,
            by: logged.by().to_owned(),
            flipped_at: logged.request_received_timestamp.unwrap_or_default(),
            audit_id: logged.audit_id,
        })
    }

    /// A write of the companion to the object itself: an acknowledgement, or one that is taken back.
    fn companion(
        &mut self,
        object: Object,
        logged: Logged,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(standing) = self.standing.get_mut(&object) else {
            return Ok(());
        };
        let word = logged.request_object.as_ref().and_then(word);
        if word.as_deref().is_some_and(|word| State::parse(word).is_none()) {
            standing.acknowledged = None;
            return Ok(());
        }
        if standing.acknowledged.is_some() {
            return Ok(());
        }
        let at = logged.stage_timestamp.unwrap_or_default();
        standing.acknowledged = at.parse().ok();
        self.counts.acknowledgements += 1;
        sink(Event::LoggedAcknowledgement {
            object,
            generation: standing.generation,
            state: word.as_deref().and_then(State::parse),
            acknowledged_at: at,
            audit_id: logged.audit_id,
        })
    }

    /// A write that may be a controller's. One that was under way when the acknowledgement was stored, and complete only
    /// then, is told as well: nobody can say that it came before.
    fn write(
        &mut self,
        object: Object,
        logged: &Logged,
        is_unchanged: bool,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_controller = self.who.is_controller(&logged.user.username) || self.who.is_controller(logged.by());
        let complete = logged
            .stage_timestamp
            .as_deref()
            .and_then(|at| at.parse::<Timestamp>().ok());
        let (true, Some(complete)) = (is_controller, complete) else {
            return Ok(());
        };
        let stands = |of: &Object| {
            let standing = self.standing.get(of)?;
            let after = standing.is_paused
                && standing
                    .acknowledged
                    .is_some_and(|acknowledged| complete > acknowledged);
            after.then_some(standing)
        };
        let own = stands(&object).map(|standing| (standing.generation, None));
        let found = own.or_else(|| {
            self.above.get(&object)?.iter().find_map(|above| {
                let standing = stands(above).filter(|standing| standing.hands_down)?;
                Some((standing.generation, Some(above.clone())))
            })
        });
        let Some((generation, inherited_from)) = found else {
            return Ok(());
        };
        if is_unchanged {
            self.counts.unchanged += 1;
            return Ok(());
        }
        self.counts.writes += 1;
        if logged.is_update() && logged.resource_version().is_none() {
            self.counts.untold += 1;
        }
        let by = match &logged.impersonated_user {
            Some(user) => format!("{} as {}", logged.user.username, user.username),
            None => logged.user.username.clone(),
        };
        let reference = logged.object_ref.as_ref();
        sink(Event::LoggedWrite {
            object,
            generation,
            inherited_from,
            verb: logged.verb.clone(),
            subresource: reference
                .map(|reference| reference.subresource.clone())
                .unwrap_or_default(),
            by,
            user_agent: logged.user_agent.clone(),
            written_at: logged.request_received_timestamp.clone().unwrap_or_default(),
            audit_id: logged.audit_id.clone(),
        })
    }

    /// The object of a ruled kind that a request is about.
    fn object(&mut self, reference: &Reference) -> Option<Object> {
        let key = (reference.api_group.clone(), reference.resource.clone());
        let kind = match self.kinds.get(&key) {
            Some(kind) => kind.clone(),
            None => self.by_pattern(&key)?,
        };
        Some(Object {
            kind: kind.to_string(),
            namespace: reference.namespace.clone(),
            name: reference.name.clone(),
            uid: String::new(),
        })
    }

    /// A kind that a pattern is for is known by its resource name only: the log does not say how it is spelled.
    fn by_pattern(&mut self, key: &(String, String)) -> Option<GroupKind> {
        let (group, resource) = key;
        let is_ruled = self.rules.patterns().any(|pattern| pattern.group == *group);
        let kind = is_ruled.then(|| GroupKind::new(group.clone(), resource.clone()))?;
        self.kinds.insert(key.clone(), kind.clone());
        Some(kind)
    }
}

/// Which object inherits from which.
fn above(objects: &Objects) -> HashMap<Object, Vec<Object>> {
    let named = |ruled: &Ruled| Object {
        kind: ruled.rule.group_kind.to_string(),
        namespace: ruled.object.metadata.namespace.clone(),
        name: ruled.object.metadata.name.clone(),
        uid: String::new(),
    };
    let mut above: HashMap<Object, Vec<Object>> = HashMap::new();
    for head in objects.all.iter().filter(|ruled| ruled.rule.has_heirs()) {
        for member in scope::members(&head.object, &head.rule, &objects.all, &|_| true).members {
            above.entry(named(member)).or_default().push(named(head));
        }
    }
    above
}

/// The word that a JSON Patch or a merge patch writes.
fn word(body: &Value) -> Option<String> {
    let path = format!("/metadata/annotations/{}", ACKNOWLEDGED.replace('/', "~1"));
    let found = match body {
        Value::Array(operations) => operations
            .iter()
            .find(|operation| {
                operation.get("path").and_then(Value::as_str) == Some(&path)
                    && operation.get("op").and_then(Value::as_str) != Some("test")
            })
            .and_then(|operation| operation.get("value")),
        body => body.pointer(&path),
    };
    found.and_then(Value::as_str).map(str::to_owned)
}

fn skip_line(reader: &mut impl BufRead, progress: &mut dyn FnMut(u64)) -> io::Result<()> {
    loop {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Ok(());
        }
        let end = buffer.iter().position(|b| *b == b'\n');
        let used = end.map_or(buffer.len(), |at| at + 1);
        reader.consume(used);
        progress(used as u64);
        if end.is_some() {
            return Ok(());
        }
    }
}
