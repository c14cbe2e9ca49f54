//! An event of the API server's audit log, as far as it is read.

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::Value;

use crate::{
    protocol::lenient::{self, Lenient},
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
}

impl Logged {
    /// The revision in the answer to a write, where the log holds the answer.
    pub(super) fn resource_version(&self) -> Option<&str> {
        let version = &self.response_object.as_ref()?.0.metadata.0.resource_version;
        Some(version.as_str()).filter(|version| !version.is_empty())
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

    /// What the webhook noted when it stamped: at a flip, or when it was asked for another stamp.
    pub(super) fn note(&self, key: &str) -> &str {
        let of = |webhook: &str| self.annotations.get(&format!("{webhook}/{key}"));
        of(FLIP).or_else(|| of(KEYS)).map(String::as_str).unwrap_or_default()
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
