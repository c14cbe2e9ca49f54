//! Whether the API server reaches the webhooks: a flip as a dry run, which is called for and stores nothing.

use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use super::{Findings, Status, objects::Sample};
use crate::{
    companion::item::Item,
    protocol::{
        intent::is_on,
        keys::{ACKNOWLEDGED, PENDING, Standing, largest},
        object::ObjectView,
        rule::{AnnotationMatch, FieldMatch, Input, InputSource},
        scope::display,
    },
    rules::{
        Rules,
        manifests::{FLIP, KEYS, VALIDATE},
    },
};

const CHECK: &str = "reachability";

/// Flips an object in a dry run.
pub(super) async fn check(client: &Client, rules: &Rules, sample: Option<Sample>, findings: &mut Findings) {
    let Some(Sample { kind, object }) = sample else {
        return findings.add(
            CHECK,
            Status::Skipped,
            "there is no object on which a flip could be tried",
        );
    };
    let Some(rule) = rules.rule_for(&kind.group_kind()) else {
        return;
    };
    let Some(patch) = rule.inputs.iter().find_map(|input| flip(input, &object)) else {
        return;
    };
    let what = format!("a dry run of a flip of {}", display(&rule.group_kind, &object));
    let api: Api<Item> = kind.api(client, &object.metadata.namespace);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    match api.patch(&object.metadata.name, &params, &Patch::Merge(patch)).await {
        Ok(Item { view, .. }) => {
            let stamped = largest(&view) > largest(&object)
                && view.metadata.annotation(ACKNOWLEDGED) == Some(PENDING)
                && matches!(Standing::of(&rule.group_kind, &view), Standing::Own(_));
            if stamped {
                findings.add(
                    CHECK,
                    Status::Ok,
                    format!("{what} was stamped: the API server reaches the webhooks"),
                );
            } else {
                findings.advise(
                    CHECK,
                    Status::Problem,
                    format!(
                        "{what} was not stamped: the API server did not call the webhook, or could not, under Ignore"
                    ),
                    "see the findings about the webhook configurations, and whether a replica is ready",
                );
            }
        }
        Err(kube::Error::Api(status)) => {
            let message = &status.message;
            let ours = [FLIP, KEYS, VALIDATE]
                .into_iter()
                .find(|name| message.contains(&format!("\"{name}\"")));
            match ours {
                Some(name) if message.contains("failed calling webhook") => findings.advise(
                    CHECK,
                    Status::Problem,
                    format!("{what}: the API server cannot call {name}: {message}"),
                    "is a replica ready, does the Service have endpoints, is the CA in caBundle that of its certificate? \
                     Until then flips are refused",
                ),
                Some(name) => {
                    findings.add(CHECK, Status::Ok, format!("{what} was answered by {name}: {message}"));
                }
                None if status.code == 403 => findings.add(CHECK, Status::Skipped, format!("{what}: {message}")),
                None => findings.add(
                    CHECK,
                    Status::Warning,
                    format!("{what} was refused by somebody else, so nothing can be said: {message}"),
                ),
            }
        }
        Err(error) => findings.unanswered(CHECK, &what, &error),
    }
}

/// A merge patch that turns an input the other way; `None` where only a person knows what to write.
fn flip(input: &Input, object: &ObjectView) -> Option<Value> {
    let on = is_on(input, object);
    match &input.source {
        InputSource::Annotation { key, on: value } => {
            let value = match (on, value) {
                (true, _) => Value::Null,
                (false, AnnotationMatch::Equals(value)) => json!(value),
                (false, AnnotationMatch::Present | AnnotationMatch::Boolean) => json!("true"),
            };
            Some(json!({ "metadata": { "annotations": { key: value } } }))
        }
        InputSource::Field { path, on: value } => {
            let value = match value {
                FieldMatch::True => json!(!on),
                FieldMatch::False => json!(on),
                FieldMatch::OneOf(values) if !on => json!(values.first()?),
                FieldMatch::OneOf(_) => return None,
            };
            let nest = |value, name: &String| Value::Object(Map::from_iter([(name.clone(), value)]));
            Some(path.0.iter().rev().fold(value, nest))
        }
    }
}
