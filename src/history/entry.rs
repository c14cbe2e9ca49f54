//! What a line of the history says, and how it is chained.
//!
//! A line is a JSON object that ends with its own `hash`: the SHA-256 of the object without that member. `prev` is the hash
//! of the line before, sixty-four zeros in the first one; `seq` counts from 0.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::protocol::{
    intent::State,
    keys::{Acknowledgement, Stamp},
};

/// `prev` of the first line.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// How many hexadecimal digits a hash has.
const DIGITS: usize = 64;
/// What comes before the hash in a line.
const HASH: &str = ",\"hash\":\"";

/// One line, without its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Counts the lines from 0, over all files.
    pub seq: u64,
    /// The hash of the line before.
    pub prev: String,
    /// When the line was written (RFC 3339), on the clock of whoever wrote it.
    pub at: String,
    /// What happened.
    #[serde(flatten)]
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "camelCase")]
#[non_exhaustive]
pub enum Event {
    /// An object was flipped: the stamp, as it stands on the object.
    Flip {
        /// The object.
        object: Object,
        /// Whether the flip came before the last one was acknowledged.
        hasty: bool,
        /// The record of the flip.
        stamp: Box<Stamp>,
    },
    /// A flip was acknowledged: the record, as it stands on the object.
    Acknowledged {
        /// The object.
        object: Object,
        /// As what.
        state: State,
        /// The record of the echo.
        acknowledgement: Box<Acknowledgement>,
    },
    /// An acknowledgement was taken back: what pauses the object is not what was acknowledged.
    Withdrawn {
        /// The object.
        object: Object,
        /// The pause generation.
        generation: u64,
    },
    /// A flip, from the API server's audit log.
    LoggedFlip {
        /// The object.
        object: Object,
        /// The pause generation.
        generation: u64,
        /// Whether it came before the last one was acknowledged.
        hasty: bool,
        /// The inputs that were on before, in words.
        before: String,
        /// The inputs that are on since, in words.
        after: String,
        /// When the request was received.
        flipped_at: String,
        /// By whom.
        by: String,
        /// The id of the request in the audit log.
        audit_id: String,
    },
    /// An acknowledgement, from the API server's audit log.
    LoggedAcknowledgement {
        /// The object.
        object: Object,
        /// The pause generation: that of the flip before.
        generation: u64,
        /// As what, where the log has the body of the request; else it is taken for one by who wrote it.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        state: Option<State>,
        /// When it was stored.
        acknowledged_at: String,
        /// The id of the request in the audit log.
        audit_id: String,
    },
    /// A controller wrote to a paused object after its acknowledgement.
    LoggedWrite {
        /// The object.
        object: Object,
        /// The pause generation that was acknowledged.
        generation: u64,
        /// The object whose pause it inherits, if it does.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        inherited_from: Option<Object>,
        /// `create`, `update`, `patch`, `delete`, `deletecollection`.
        verb: String,
        /// `status`, `scale`, or nothing.
        #[serde(skip_serializing_if = "String::is_empty", default)]
        subresource: String,
        /// Who wrote.
        by: String,
        /// With what program.
        user_agent: String,
        /// When the request was received.
        written_at: String,
        /// The id of the request in the audit log.
        audit_id: String,
    },
    /// A process began to write.
    Started {
        /// Its version.
        version: String,
    },
    /// The file goes on from this one.
    Continued {
        /// The name of the file before.
        file: String,
    },
    /// What stands before was not written to its end: a crash, or a disk that was full.
    Recovered {
        /// How many bytes of a line.
        bytes: u64,
        /// Their SHA-256.
        sha256: String,
    },
    /// So many events could not be written: there was no room for long.
    Lost {
        /// How many.
        events: u64,
    },
}

/// An object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// `Kind.group`.
    pub kind: String,
    /// Namespace; absent for a cluster-scoped one.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; absent where it is not known.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub uid: String,
}

/// Where a chain stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The number of the next line.
    pub next: u64,
    /// The hash of the last one.
    pub hash: String,
}

impl Default for Head {
    fn default() -> Self {
        Self {
            next: 0,
            hash: GENESIS.to_owned(),
        }
    }
}

impl Head {
    /// The next line, without its line break; the chain then stands at it.
    ///
    /// # Errors
    /// None that is known: an entry can be written as JSON.
    pub fn link(&mut self, at: String, event: Event) -> Result<String, serde_json::Error> {
        let entry = Entry {
            seq: self.next,
            prev: self.hash.clone(),
            at,
            event,
        };
        let body = serde_json::to_string(&entry)?;
        let hash = digest(body.as_bytes());
        let open = body.strip_suffix('}').unwrap_or(&body);
        let line = format!("{open}{HASH}{hash}\"}}");
        self.next += 1;
        self.hash = hash;
        Ok(line)
    }
}

/// A SHA-256 in hexadecimal digits.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Why a line is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LineError {
    /// It is no line of a history.
    #[error("is no line of a history: {0}")]
    Shape(String),
    /// It is not as it was written.
    #[error("has been edited: its content is not that of its hash")]
    Edited {
        /// The entry as it reads now.
        entry: Box<Entry>,
        /// The hash that it claims.
        hash: String,
    },
}

/// Reads a line and checks it against its own hash.
///
/// # Errors
/// It is no line of a history, or not as it was written.
pub fn read(line: &str) -> Result<(Entry, String), LineError> {
    let shape = |message: &str| LineError::Shape(message.to_owned());
    let at = line.rfind(HASH).ok_or_else(|| shape("it has no hash at its end"))?;
    let (open, tail) = line.split_at(at);
    let hash = tail
        .strip_prefix(HASH)
        .and_then(|tail| tail.strip_suffix("\"}"))
        .filter(|hash| hash.len() == DIGITS && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')))
        .ok_or_else(|| shape("it has no hash at its end"))?;
    let body = format!("{open}}}");
    let entry: Entry = serde_json::from_str(&body).map_err(|error| LineError::Shape(error.to_string()))?;
    if digest(body.as_bytes()) == hash {
        Ok((entry, hash.to_owned()))
    } else {
        Err(LineError::Edited {
            entry: Box::new(entry),
            hash: hash.to_owned(),
        })
    }
}
