//! The history once more, from the API server's own audit log: JSON lines, plain or gzip, streamed.
//!
//! Flips come from the webhook's audit annotations, acknowledgements from the companion's writes, and every write of a
//! controller to a paused object after its acknowledgement is told. At level Metadata the log has no bodies: then a write of
//! the companion to an object that waits is taken for its acknowledgement.

use std::{
    collections::{BTreeSet, HashMap},
    io::{self, BufRead, BufReader, Read},
};

use flate2::read::MultiGzDecoder;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

use super::entry::{Event, Object};
use crate::{
    protocol::{
        GroupKind,
        intent::State,
        keys::{ACKNOWLEDGED, parse_generation},
        scope::{self, Ruled},
    },
    report::audit::Objects,
    rules::{Rules, manifests::FLIP},
};

/// An event that is longer is passed over, and counted: the API server cuts them long before.
const LONGEST: u64 = 16 << 20;
/// How many lines that cannot be read are told one by one.
const TOLD: usize = 20;

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
        self.controllers.contains(user) || user.starts_with("system:serviceaccount:")
    }
}

/// Rebuilds a history. Fed with files, in the order of time.
#[derive(Debug)]
pub struct Rebuild<'a> {
    rules: &'a Rules,
    who: Who,
    kinds: HashMap<(String, String), GroupKind>,
    /// Which object inherits from which, as far as objects were given.
    above: HashMap<Object, Vec<Object>>,
    standing: HashMap<Object, Standing>,
    counts: Counts,
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
    /// Since when it is acknowledged.
    acknowledged: Option<Timestamp>,
}

/// An event of the log, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Logged {
    kind: String,
    #[serde(rename = "auditID")]
    audit_id: String,
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    user_agent: String,
    object_ref: Option<Reference>,
    response_status: Status,
    request_received_timestamp: Option<String>,
    stage_timestamp: Option<String>,
    annotations: HashMap<String, String>,
    request_object: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Reference {
    resource: String,
    namespace: String,
    name: String,
    api_group: String,
    subresource: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    code: u16,
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
            counts: Counts::default(),
        }
    }

    /// What was read so far.
    #[must_use]
    pub const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Reads a file, plain or gzip. `sink` takes each event of the history, `progress` the bytes that were read.
    ///
    /// # Errors
    /// The file cannot be read, or the sink fails.
    pub fn file(
        &mut self,
        name: &str,
        reader: impl Read,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let mut reader = BufReader::with_capacity(1 << 16, reader);
        if reader.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
            self.lines(
                name,
                BufReader::with_capacity(1 << 16, MultiGzDecoder::new(reader)),
                sink,
                progress,
            )
        } else {
            self.lines(name, reader, sink, progress)
        }
    }

    fn lines(
        &mut self,
        name: &str,
        mut reader: impl BufRead,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
        progress: &mut dyn FnMut(u64),
    ) -> io::Result<()> {
        let mut line = Vec::new();
        let mut number = 0;
        loop {
            line.clear();
            let read = reader.by_ref().take(LONGEST).read_until(b'\n', &mut line)?;
            if read == 0 {
                return Ok(());
            }
            number += 1;
            self.counts.lines += 1;
            progress(read as u64);
            if read as u64 == LONGEST && line.last() != Some(&b'\n') {
                self.unreadable(name, number, "longer than any event of an API server".to_owned());
                skip_line(&mut reader, progress)?;
                continue;
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice::<Logged>(&line) {
                Ok(logged) if logged.kind == "Event" => self.event(logged, sink)?,
                Ok(_) => self.unreadable(name, number, "no audit event".to_owned()),
                Err(error) => self.unreadable(name, number, error.to_string()),
            }
        }
    }

    fn unreadable(&mut self, file: &str, line: u64, why: String) {
        self.counts.unreadable += 1;
        if self.counts.told.len() < TOLD {
            self.counts.told.push((file.to_owned(), line, why));
        }
    }

    fn event(&mut self, logged: Logged, sink: &mut dyn FnMut(Event) -> io::Result<()>) -> io::Result<()> {
        let is_write = matches!(
            logged.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        );
        let is_done = logged.stage == "ResponseComplete" && (200..300).contains(&logged.response_status.code);
        if !is_write || !is_done || logged.request_uri.contains("dryRun=") {
            return Ok(());
        }
        let Some(reference) = &logged.object_ref else {
            return Ok(());
        };
        let Some(object) = self.object(reference) else {
            return Ok(());
        };
        let note = |key: &str| {
            let suffix = format!("{FLIP}/{key}");
            logged.annotations.get(&suffix).map(String::as_str).unwrap_or_default()
        };
        if let Some(generation) = parse_generation(note("generation")).filter(|_| reference.subresource.is_empty()) {
            let standing = Standing {
                generation,
                is_paused: note("after") != "nothing",
                acknowledged: None,
            };
            self.standing.insert(object.clone(), standing);
            self.counts.flips += 1;
            return sink(Event::LoggedFlip {
                object,
                generation,
                hasty: note("hasty") == "true",
                before: note("before").to_owned(),
                after: note("after").to_owned(),
                flipped_at: logged.request_received_timestamp.unwrap_or_default(),
                by: logged.user.username,
                audit_id: logged.audit_id,
            });
        }
        if self.who.companions.contains(&logged.user.username) {
            return if reference.subresource.is_empty() {
                self.companion(object, logged, sink)
            } else {
                Ok(())
            };
        }
        if logged.verb == "delete" && reference.subresource.is_empty() {
            let told = self.write(&object, &logged, sink);
            self.standing.remove(&object);
            return told;
        }
        self.write(&object, &logged, sink)
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
        // Without a time that can be read nothing is after it.
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

    fn write(
        &mut self,
        object: &Object,
        logged: &Logged,
        sink: &mut dyn FnMut(Event) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.who.is_controller(&logged.user.username) {
            return Ok(());
        }
        let received = logged.request_received_timestamp.as_deref().unwrap_or_default();
        let Ok(at) = received.parse::<Timestamp>() else {
            return Ok(());
        };
        let stands = |of: &Object| {
            let standing = self.standing.get(of)?;
            let after = standing.is_paused && standing.acknowledged.is_some_and(|acknowledged| at > acknowledged);
            after.then_some(standing.generation)
        };
        let inherited = self.above.get(object).into_iter().flatten();
        let found = stands(object).map(|generation| (generation, None)).or_else(|| {
            inherited
                .clone()
                .find_map(|above| Some((stands(above)?, Some(above.clone()))))
        });
        let Some((generation, inherited_from)) = found else {
            return Ok(());
        };
        self.counts.writes += 1;
        let reference = logged.object_ref.as_ref();
        sink(Event::LoggedWrite {
            object: object.clone(),
            generation,
            inherited_from,
            verb: logged.verb.clone(),
            subresource: reference
                .map(|reference| reference.subresource.clone())
                .unwrap_or_default(),
            by: logged.user.username.clone(),
            user_agent: logged.user_agent.clone(),
            written_at: received.to_owned(),
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
