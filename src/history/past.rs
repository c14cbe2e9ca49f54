//! What a history says of flips, for those who look at a report.

use std::{
    collections::{HashMap, VecDeque},
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::PathBuf,
};

use super::{
    entry::{self, Event, LineError, Object},
    verify::LONGEST,
};
use crate::{
    protocol::keys::{Acknowledgement, Evidence, Stamp},
    report::model::Past,
};

/// So many flips are kept; older ones are left out.
const KEPT: usize = 10_000;

/// The flips of a history, the oldest first. What is no line is passed over: `history verify` says so.
///
/// # Errors
/// A file cannot be read.
pub fn past(files: &[PathBuf]) -> io::Result<Vec<Past>> {
    let mut flips = Flips::default();
    for path in files {
        let mut reader = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        loop {
            line.clear();
            if reader.by_ref().take(LONGEST as u64).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let text = String::from_utf8_lossy(&line);
            match entry::read(text.trim_end_matches('\n')) {
                Ok((entry, _)) => flips.note(entry.event),
                Err(LineError::Edited { .. } | LineError::Shape(_)) => {}
            }
        }
    }
    Ok(flips.all.into())
}

#[derive(Default)]
struct Flips {
    all: VecDeque<Past>,
    dropped: usize,
    /// Where the last flip of an object stands, counted from the first of all.
    last: HashMap<String, usize>,
}

impl Flips {
    fn note(&mut self, event: Event) {
        match event {
            Event::Flip { object, stamp, .. } => {
                let Stamp {
                    generation,
                    at,
                    by,
                    reason,
                    after,
                    ..
                } = *stamp;
                self.push(Past {
                    object: name(&object),
                    generation,
                    at,
                    paused: !after.is_empty(),
                    by,
                    reason,
                    acknowledged_at: None,
                    evidence: None,
                    withdrawn: false,
                });
            }
            Event::LoggedFlip {
                object,
                generation,
                after,
                flipped_at,
                by,
                ..
            } => self.push(Past {
                object: name(&object),
                generation,
                at: flipped_at,
                paused: after != "nothing",
                by,
                reason: String::new(),
                acknowledged_at: None,
                evidence: None,
                withdrawn: false,
            }),
            Event::Acknowledged {
                object,
                acknowledgement,
                ..
            } => {
                let Acknowledgement { at, evidence, .. } = *acknowledgement;
                self.acknowledge(&object, at, Some(evidence));
            }
            Event::LoggedAcknowledgement {
                object,
                acknowledged_at,
                ..
            } => self.acknowledge(&object, acknowledged_at, None),
            Event::Withdrawn { object, .. } => {
                if let Some(past) = self.of(&object) {
                    past.withdrawn = true;
                }
            }
            _ => {}
        }
    }

    fn push(&mut self, past: Past) {
        self.last.insert(past.object.clone(), self.dropped + self.all.len());
        self.all.push_back(past);
        if self.all.len() > KEPT {
            self.all.pop_front();
            self.dropped += 1;
        }
    }

    fn of(&mut self, object: &Object) -> Option<&mut Past> {
        let index = self.last.get(&name(object))?.checked_sub(self.dropped)?;
        self.all.get_mut(index)
    }

    fn acknowledge(&mut self, object: &Object, at: String, evidence: Option<Evidence>) {
        if let Some(past) = self.of(object) {
            past.acknowledged_at = Some(at);
            past.evidence = evidence;
        }
    }
}

/// As a row of an audit is called.
fn name(object: &Object) -> String {
    let Object {
        kind, namespace, name, ..
    } = object;
    if namespace.is_empty() {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}
