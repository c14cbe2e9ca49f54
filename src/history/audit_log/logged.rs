//! An event of the API server's audit log, as far as it is read.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    protocol::{
        keys::{StampNote, parse_generation},
        lenient::{self, Lenient},
    },
    rules::manifests::{FLIP, KEYS},
};

/// An event of the log, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Logged {
    pub(super) kind: String,
    #[serde(rename = "auditID")]
    pub(super) audit_id: String,
    pub(super) stage: String,
    #[serde(rename = "requestURI")]
    pub(super) request_uri: String,
    pub(super) verb: String,
    pub(super) user: User,
    pub(super) impersonated_user: Option<User>,
    pub(super) user_agent: String,
    pub(super) object_ref: Option<Reference>,
    pub(super) response_status: Status,
    pub(super) request_received_timestamp: Option<String>,
    pub(super) stage_timestamp: Option<String>,
    pub(super) annotations: HashMap<String, String>,
    pub(super) request_object: Option<Value>,
    pub(super) response_object: Option<Lenient<Answered>>,
}

/// What a write was answered with.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Answered {
    pub(super) metadata: Lenient<AnsweredMeta>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AnsweredMeta {
    #[serde(deserialize_with = "lenient::text")]
    pub(super) resource_version: String,
    pub(super) annotations: Lenient<AnsweredAnnotations>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct AnsweredAnnotations {
    /// As [`crate::protocol::keys::GENERATION`] names it.
    #[serde(rename = "pausegen.io/generation", deserialize_with = "lenient::text")]
    pub(super) generation: String,
}

impl Logged {
    /// The revision in the answer to a write, where the log holds the answer.
    pub(super) fn resource_version(&self) -> Option<&str> {
        let version = &self.response_object.as_ref()?.0.metadata.0.resource_version;
        Some(version.as_str()).filter(|version| !version.is_empty())
    }

    /// The pause generation in the answer to a write, where the log holds the answer.
    fn answered_generation(&self) -> Option<u64> {
        parse_generation(&self.response_object.as_ref()?.0.metadata.0.annotations.0.generation)
    }

    /// The revision that a write was made on, where it says so: the API server refuses it on any other.
    pub(super) fn base_version(&self) -> Option<&str> {
        self.request_object
            .as_ref()?
            .pointer("/metadata/resourceVersion")?
            .as_str()
    }

    pub(super) fn is_update(&self) -> bool {
        matches!(self.verb.as_str(), "update" | "patch")
    }

    /// As whom it was done.
    pub(super) fn by(&self) -> &str {
        &self.impersonated_user.as_ref().unwrap_or(&self.user).username
    }

    /// The flip that was stored, with its generation: what the webhook noted when it stamped.
    ///
    /// The API server tries a write again when another one came first, and asks the webhook each time. The log has a note
    /// of every try. The last one counts, which was made on the newest revision, unless the answer says otherwise.
    pub(super) fn stamped(&self) -> Option<(u64, StampNote)> {
        let mut notes = self.annotations.iter().filter_map(|(key, value)| {
            let (FLIP | KEYS, key) = key.split_once('/')? else {
                return None;
            };
            Some((StampNote::generation(key)?, value))
        });
        let (generation, note) = match self.answered_generation() {
            Some(answered) => notes.find(|(generation, _)| *generation == answered),
            None => notes.max_by_key(|(generation, _)| *generation),
        }?;
        Some((generation, serde_json::from_str(note).unwrap_or_default()))
    }

    /// Whether something was written, and what is done is done.
    pub(super) fn is_write(&self) -> bool {
        let is_write = matches!(
            self.verb.as_str(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        );
        let is_done = self.stage == "ResponseComplete" && (200..300).contains(&self.response_status.code);
        // A deletion has its options in its body.
        let options = self.request_object.as_ref().and_then(|body| body.get("dryRun"));
        let is_dry = self.request_uri.contains("dryRun=")
            || options
                .and_then(Value::as_array)
                .is_some_and(|dry_run| !dry_run.is_empty());
        is_write && is_done && !is_dry
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    pub(super) username: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Reference {
    pub(super) resource: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) api_group: String,
    pub(super) subresource: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    pub(super) code: u16,
}
