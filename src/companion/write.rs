//! The guarded writes: each `test`s that the object is still the one that was decided about.

use std::time::Duration;

use json_patch::Patch as JsonPatch;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{World, cache::Key, failpoint, item::Item, kinds::Kind, leader::NotLeading, look};
use crate::{
    protocol::{
        condition::{self, Projection},
        intent::State,
        keys::{
            ACKNOWLEDGED, ACKNOWLEDGEMENT, Acknowledgement, GENERATION, OBSERVED_GENERATION, PENDING, STAMP, Standing,
            TOUCH, is_testable,
        },
        object::ObjectView,
    },
    wall_clock,
};

/// Why a write did not come to pass. None of them is answered by the same write once more: the object is read again.
#[derive(Debug, thiserror::Error)]
pub(super) enum WriteError {
    /// The object is not the one any more that was decided about.
    #[error("the object has changed meanwhile")]
    Stale,
    /// The API server refused the write.
    #[error("the API server refused the write")]
    Refused(#[source] Box<kube::Error>),
    /// It was stored, but not as it was written.
    #[error(
        "another webhook put our keys back as they stood: is this companion's user among those that the webhook knows \
         (serve --companion-user)?"
    )]
    PutBack,
    /// The condition was stored, but not as it was written.
    #[error("the condition was not stored as it was written: another webhook or the kind's schema changed it")]
    Pruned,
    /// Another process may lead by now.
    #[error(transparent)]
    NotLeading(#[from] NotLeading),
    /// Our own value cannot be written.
    #[error("a patch cannot be built")]
    Build(#[from] serde_json::Error),
}

impl WriteError {
    fn of(error: kube::Error) -> Self {
        match &error {
            kube::Error::Api(status) if is_outdated(status.code, &status.message) => Self::Stale,
            _ => Self::Refused(Box::new(error)),
        }
    }
}

/// How the API server says that a patch does not apply: a `test` failed, or a path is not there.
const NOT_APPLIED: &str = "the server rejected our request due to an error in our request";

/// Gone, a conflict, or a patch that does not apply. Another 422 is a refusal, by a webhook, a policy or the schema.
fn is_outdated(code: u16, message: &str) -> bool {
    matches!(code, 404 | 409) || (code == 422 && message.starts_with(NOT_APPLIED))
}

/// The tests that every write makes: this object, this flip.
fn tests(object: &ObjectView) -> Vec<Value> {
    let mut tests = vec![json!({"op": "test", "path": "/metadata/uid", "value": object.metadata.uid})];
    for key in [GENERATION, STAMP] {
        if let Some(value) = object.metadata.annotation(key) {
            tests.push(is_still(object, key, value));
        }
    }
    tests
}

/// The test that an annotation stands as it was read; where its value cannot be tested, that nothing at all has changed.
fn is_still(object: &ObjectView, key: &str, value: &str) -> Value {
    if is_testable(value) {
        json!({"op": "test", "path": annotation(key), "value": value})
    } else {
        json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.metadata.resource_version})
    }
}

fn annotation(key: &str) -> String {
    format!("/metadata/annotations/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn build(operations: Vec<Value>) -> Result<Patch<()>, WriteError> {
    let patch: JsonPatch = serde_json::from_value(Value::Array(operations))?;
    Ok(Patch::Json(patch))
}

/// Writes an acknowledgement, and returns the stored object.
pub(super) async fn echo(
    world: &World,
    key: &Key,
    kind: &Kind,
    object: &ObjectView,
    state: State,
    acknowledgement: &Acknowledgement,
) -> Result<ObjectView, WriteError> {
    let text = serde_json::to_string(acknowledgement)?;
    let mut operations = tests(object);
    // Somebody else may have echoed it meanwhile; once is enough.
    if let Some(word) = object.metadata.annotation(ACKNOWLEDGED) {
        operations.push(is_still(object, ACKNOWLEDGED, word));
    }
    for (key, value) in [
        (ACKNOWLEDGED, state.as_str()),
        (OBSERVED_GENERATION, &acknowledgement.generation.to_string()),
        (ACKNOWLEDGEMENT, &text),
    ] {
        operations.push(json!({"op": "add", "path": annotation(key), "value": value}));
    }
    failpoint::reach("companion.before-echo");
    let stored = patch(world, key, kind, operations, false).await?;
    failpoint::reach("companion.after-echo");
    let standing = Standing::of(&kind.rule.group_kind, &stored);
    let is_there = stored.metadata.annotation(ACKNOWLEDGEMENT) == Some(&text)
        && stored.metadata.annotation(ACKNOWLEDGED) == Some(state.as_str());
    match standing {
        Standing::Own(record) if is_there && record.is_acknowledged(&kind.rule) => {
            let took = record
                .stamp
                .at
                .parse()
                .ok()
                .map(|at| wall_clock::now().duration_since(at));
            let took = took.and_then(|took| Duration::try_from(took).ok());
            world
                .metrics
                .echoed(&kind.rule.group_kind, acknowledgement.evidence, took);
        }
        _ => return Err(WriteError::PutBack),
    }
    Ok(stored)
}

/// Takes back a word that is not true any more.
pub(super) async fn pending(
    world: &World,
    key: &Key,
    kind: &Kind,
    object: &ObjectView,
) -> Result<ObjectView, WriteError> {
    let mut operations = tests(object);
    let word = object.metadata.annotation(ACKNOWLEDGED).unwrap_or_default();
    operations.push(is_still(object, ACKNOWLEDGED, word));
    operations.push(json!({"op": "add", "path": annotation(ACKNOWLEDGED), "value": PENDING}));
    failpoint::reach("companion.before-pending");
    let stored = patch(world, key, kind, operations, false).await?;
    failpoint::reach("companion.after-pending");
    if stored.metadata.annotation(ACKNOWLEDGED) != Some(PENDING) {
        return Err(WriteError::PutBack);
    }
    world.metrics.pendings.inc();
    Ok(stored)
}

/// Asks the webhook to stamp again, and returns what is stored, or in a dry run would be.
pub(super) async fn touch(
    world: &World,
    key: &Key,
    kind: &Kind,
    object: &ObjectView,
    dry_run: bool,
) -> Result<ObjectView, WriteError> {
    let mut operations = tests(object);
    if object.metadata.annotations.is_some() {
        operations.push(json!({"op": "add", "path": annotation(TOUCH), "value": ""}));
    } else {
        // The map has to be made, and must not take the place of one that somebody else has made meanwhile.
        let version = &object.metadata.resource_version;
        operations.push(json!({"op": "test", "path": "/metadata/resourceVersion", "value": version}));
        operations.push(json!({"op": "add", "path": "/metadata/annotations", "value": {TOUCH: ""}}));
    }
    patch(world, key, kind, operations, dry_run).await
}

async fn patch(
    world: &World,
    key: &Key,
    kind: &Kind,
    operations: Vec<Value>,
    dry_run: bool,
) -> Result<ObjectView, WriteError> {
    let api = look::api(world, kind, &key.namespace);
    let parameters = PatchParams {
        dry_run,
        ..parameters()
    };
    let patch = build(operations)?;
    let stored = world
        .leadership
        .write(api.patch(&key.name, &parameters, &patch))
        .await?;
    Ok(look::typed(kind, stored.map_err(WriteError::of)?.view))
}

fn parameters() -> PatchParams {
    PatchParams {
        field_manager: Some("pausegen".to_owned()),
        ..PatchParams::default()
    }
}

/// Takes `PauseAcknowledged` away where it cannot be kept up to date any more, and returns the stored object.
pub(super) async fn withdraw(
    world: &World,
    key: &Key,
    kind: &Kind,
    object: &ObjectView,
) -> Result<ObjectView, WriteError> {
    let api = look::api(world, kind, &key.namespace);
    let all = object.status.conditions.iter().enumerate().rev();
    let ours = all.filter(|(_, found)| found.type_ == condition::TYPE);
    let operations = ours
        .map(|(index, _)| json!({"op": "remove", "path": format!("/status/conditions/{index}")}))
        .collect();
    if kind.has_status {
        let stored = patch_status(world, &api, key, object, operations).await?;
        return Ok(look::typed(kind, stored));
    }
    patch(world, key, kind, guarded(object, operations), false).await
}

/// What became of a condition.
#[derive(Debug)]
pub(super) enum Projected {
    /// There is nothing to write, or it is there already: the object as it was read.
    Unchanged(ObjectView),
    /// Written: the object as it is stored.
    Written(ObjectView),
}

/// Brings `PauseAcknowledged` up to date, from a fresh read of the object: `want` says what it has to be there.
pub(super) async fn condition(
    world: &World,
    key: &Key,
    kind: &Kind,
    want: impl Fn(&ObjectView) -> Option<Projection>,
) -> Result<Projected, WriteError> {
    condition_of(world, key, kind, condition::TYPE, want).await
}

/// As [`condition()`], for a condition of this type.
pub(super) async fn condition_of(
    world: &World,
    key: &Key,
    kind: &Kind,
    type_: &'static str,
    want: impl Fn(&ObjectView) -> Option<Projection>,
) -> Result<Projected, WriteError> {
    let find = |object: &ObjectView| {
        let mut conditions = object.status.conditions.iter();
        conditions.find(|condition| condition.type_ == type_).cloned()
    };
    let api = look::api(world, kind, &key.namespace);
    let fresh = api
        .get_opt(&key.name)
        .await
        .map_err(|error| WriteError::Refused(Box::new(error)))?
        .ok_or(WriteError::Stale)?;
    let object = look::typed(kind, fresh.view);
    let Some(projection) = want(&object) else {
        return Ok(Projected::Unchanged(object));
    };
    let found = find(&object);
    if found.as_ref().is_some_and(|found| projection.is_in(found)) {
        return Ok(Projected::Unchanged(object));
    }
    let unchanged_since = found
        .filter(|found| found.status == projection.status)
        .and_then(|found| found.last_transition_time.clone());
    let now = format!("{:.0}", wall_clock::now());
    let value = json!({
        "type": type_,
        "status": projection.status,
        "reason": projection.reason,
        "message": projection.message,
        "observedGeneration": projection.observed_generation,
        "lastTransitionTime": unchanged_since.unwrap_or(now),
    });
    let conditions = &object.status.conditions;
    let operation = match conditions.iter().position(|condition| condition.type_ == type_) {
        Some(index) => json!({"op": "replace", "path": format!("/status/conditions/{index}"), "value": value}),
        None if conditions.is_empty() => json!({"op": "add", "path": "/status/conditions", "value": [value]}),
        None => json!({"op": "add", "path": "/status/conditions/-", "value": value}),
    };
    let points = match (type_, projection.status) {
        (condition::TYPE, "Unknown") => Some(("companion.before-unknown", "companion.after-unknown")),
        (condition::TYPE, _) => Some(("companion.before-condition", "companion.after-condition")),
        _ => None,
    };
    if let Some((before, _)) = points {
        failpoint::reach(before);
    }
    let mut written = patch_status(world, &api, key, &object, vec![operation]).await;
    if conditions.is_empty() && matches!(written, Err(WriteError::Stale)) {
        // There may be no status at all yet. The tests are the same: an object that has changed fails again.
        let operation = json!({"op": "add", "path": "/status", "value": {"conditions": [value]}});
        written = patch_status(world, &api, key, &object, vec![operation]).await;
    }
    let stored = look::typed(kind, written?);
    if let Some((_, after)) = points {
        failpoint::reach(after);
    }
    let is_there = find(&stored).is_some_and(|found| {
        projection.is_in(&found) && found.observed_generation == Some(projection.observed_generation)
    });
    if !is_there {
        return Err(WriteError::Pruned);
    }
    let count = if type_ == condition::TYPE {
        &world.metrics.conditions
    } else {
        &world.metrics.mirrors
    };
    count.inc();
    Ok(Projected::Written(stored))
}

async fn patch_status(
    world: &World,
    api: &Api<Item>,
    key: &Key,
    object: &ObjectView,
    operations: Vec<Value>,
) -> Result<ObjectView, WriteError> {
    let patch = build(guarded(object, operations))?;
    let parameters = parameters();
    let write = api.patch_status(&key.name, &parameters, &patch);
    let stored = world.leadership.write(write).await?;
    Ok(stored.map_err(WriteError::of)?.view)
}

/// Operations on a list, which is patched by index, and whose order changes with other writes.
fn guarded(object: &ObjectView, operations: Vec<Value>) -> Vec<Value> {
    let mut all = tests(object);
    all.push(json!({"op": "test", "path": "/metadata/resourceVersion", "value": object.metadata.resource_version}));
    all.extend(operations);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_tested_by_value_is_tested_by_revision() {
        for (stamp, path) in [
            ("{}", "/metadata/annotations/pausegen.io~1stamp"),
            ("{\"reason\":\"R&D\"}", "/metadata/resourceVersion"),
            ("<\u{2028}", "/metadata/resourceVersion"),
        ] {
            let object =
                json!({"metadata": {"name": "c", "uid": "u", "resourceVersion": "7", "annotations": {STAMP: stamp}}});
            let all = tests(&serde_json::from_value(object).unwrap());
            assert_eq!(all.last().unwrap()["path"], path, "{stamp}");
        }
    }

    #[test]
    fn a_refusal_is_told_from_a_change() {
        assert!(is_outdated(
            422,
            "the server rejected our request due to an error in our request"
        ));
        assert!(is_outdated(409, "Operation cannot be fulfilled") && is_outdated(404, "not found"));
        for refusal in [
            r#"admission webhook "validation.cluster.cluster.x-k8s.io" denied the request: spec.x: Forbidden"#,
            r#"clusters.cluster.x-k8s.io "c" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'p' denied request: no"#,
            r#"Cluster.cluster.x-k8s.io "c" is invalid: spec.x: Required value"#,
        ] {
            assert!(!is_outdated(422, refusal), "{refusal}");
        }
        assert!(!is_outdated(500, "failed calling webhook"));
    }
}
