//! What stands on the stage, and how it is asked.

use std::fmt::Write as _;
use std::process::Output;
use std::time::{Duration, Instant};

use kube::Client;
use kube::api::DynamicObject;

use super::narration::Narration;
use crate::protocol::keys;
use crate::sandbox::answers::Answers;
use crate::sandbox::product::Product;
use crate::sandbox::{Capi, Error, ManagerKind, Sandbox};

/// The namespace of the Cluster.
pub(super) const NAMESPACE: &str = "default";
/// The Cluster, as kubectl names it.
pub(super) const CLUSTER: &str = "cluster/demo";
/// The name of the Cluster.
pub(super) const NAME: &str = "demo";

/// What is running.
pub(super) struct Stage {
    // The order of the fields is the order in which they end.
    pub(super) product: Product,
    pub(super) client: Client,
    pub(super) sandbox: Sandbox,
    /// The staleness bound.
    pub(super) bound: Duration,
}

/// One `kubectl wait`, and when it was met.
#[derive(Debug)]
pub(super) struct Met {
    /// The object with which it was content; `None`: the time was up.
    pub(super) object: Option<DynamicObject>,
    /// How long it took.
    pub(super) after: Duration,
}

impl Met {
    /// What all controllers said at the very revision with which the wait was content.
    pub(super) async fn answers(&self, stage: &Stage) -> Result<Option<Answers>, Error> {
        let version = self
            .object
            .as_ref()
            .and_then(|object| object.metadata.resource_version.as_deref());
        match version {
            Some(version) => Answers::at(&stage.client, NAMESPACE, version).await.map(Some),
            None => Ok(None),
        }
    }
}

impl Stage {
    /// Cluster API's managers.
    pub(super) fn capi(&self) -> Result<&Capi, Error> {
        self.sandbox.capi().ok_or(Error::NoCapi)
    }

    /// Lets a frozen manager go on.
    pub(super) async fn thaw(&self, kind: ManagerKind) -> Result<(), Error> {
        self.capi()?.thaw(kind).await
    }

    /// Shows a kubectl command and runs it. Its warnings are shown.
    pub(super) async fn kubectl(&self, narration: &Narration, args: &[&str]) -> Result<Output, Error> {
        narration.command(args);
        let output = self.sandbox.kubectl(args).await?;
        narration.show(String::from_utf8_lossy(&output.stderr).trim());
        Ok(output)
    }

    /// Shows a kubectl command that writes, runs it, and returns the API server's answer to that very write.
    pub(super) async fn write(&self, narration: &Narration, args: &[&str]) -> Result<DynamicObject, Error> {
        let args: Vec<&str> = args.iter().copied().chain(["-o", "json"]).collect();
        let output = self.kubectl(narration, &args).await?;
        if !output.status.success() {
            return Err(Error::Kubectl {
                command: args.join(" "),
                says: "it failed, see above".to_owned(),
            });
        }
        serde_json::from_slice(&output.stdout).map_err(|error| Error::Kubectl {
            command: args.join(" "),
            says: format!("its output is no object: {error}"),
        })
    }

    /// The Cluster as it stands.
    pub(super) async fn cluster(&self) -> Result<DynamicObject, Error> {
        self.sandbox.kubectl_object(&["get", CLUSTER, "-n", NAMESPACE]).await
    }

    /// `kubectl wait` for the Cluster, in the background of whatever else is done.
    pub(super) async fn wait(&self, condition: &str, timeout: Duration) -> Result<Met, Error> {
        let start = Instant::now();
        let object = self
            .sandbox
            .kubectl_wait(NAMESPACE, CLUSTER, condition, timeout)
            .await?;
        Ok(Met {
            object,
            after: start.elapsed(),
        })
    }
}

/// One of our annotations.
pub(super) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

/// The pause generation that was given to the last flip.
pub(super) fn generation(object: &DynamicObject) -> Option<u64> {
    annotation(object, keys::GENERATION).and_then(keys::parse_generation)
}

/// The record of the flip.
pub(super) fn stamp(object: &DynamicObject) -> Option<keys::Stamp> {
    annotation(object, keys::STAMP).and_then(|text| serde_json::from_str(text).ok())
}

/// The record of the echo.
pub(super) fn acknowledgement(object: &DynamicObject) -> Option<keys::Acknowledgement> {
    annotation(object, keys::ACKNOWLEDGEMENT).and_then(|text| serde_json::from_str(text).ok())
}

/// A field of a condition of the object.
pub(super) fn condition<'a>(object: &'a DynamicObject, r#type: &str, field: &str) -> Option<&'a str> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition.get("type").is_some_and(|t| t == r#type))?;
    found.get(field)?.as_str()
}

/// Our annotations, for people.
pub(super) fn ours(object: &DynamicObject) -> String {
    let mut text = String::new();
    for (key, value) in object.metadata.annotations.iter().flatten() {
        if key.starts_with(keys::PREFIX) && key != keys::REASON {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{key}: {value}");
        }
    }
    text
}

/// How many controllers say that the Cluster is paused, by kind.
pub(super) fn table(answers: &Answers) -> String {
    let parts = answers
        .paused_by_cluster()
        .into_iter()
        .map(|(who, (paused, all))| format!("{who} {paused}/{all}"));
    parts.collect::<Vec<_>>().join(", ")
}

/// The first few of those who have not answered.
pub(super) fn names<'a>(answers: impl Iterator<Item = &'a crate::sandbox::answers::Answer>) -> String {
    let all: Vec<String> = answers.map(ToString::to_string).collect();
    let shown = all.iter().take(4).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(4) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
