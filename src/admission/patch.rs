//! The JSON Patch (RFC 6902) that carries the edits of a write's annotations.

use json_patch::{AddOperation, Patch, PatchOperation, RemoveOperation, jsonptr::PointerBuf};
use serde_json::Value;

use super::review::Asked;

/// One edit of an annotation: its key and its value, `None` to remove it.
pub(super) type Edit = (&'static str, Option<String>);

/// The patch that makes these edits; `None` where there is nothing to do. It touches our own keys alone, removes only
/// what is there, and makes the map of annotations where there is none.
#[must_use]
pub(super) fn patch(asked: Asked<'_>, edits: Vec<Edit>) -> Option<Patch> {
    let present = asked
        .new
        .metadata
        .annotations
        .as_ref()
        .map(|annotations| &annotations.0);
    let edits: Vec<Edit> = edits
        .into_iter()
        .filter(|(key, value)| value.is_some() || present.is_some_and(|present| present.contains_key(*key)))
        .collect();
    if edits.is_empty() {
        return None;
    }
    let map = || PointerBuf::from_tokens(["metadata", "annotations"]);
    let is_removal = edits.iter().all(|(_, value)| value.is_none());
    // An empty map left behind would differ from the stored object, and so make an event out of a write that changes
    // nothing.
    if is_removal
        && present.is_some_and(|present| present.len() == edits.len())
        && asked.old.is_some_and(|old| old.metadata.annotations.is_none())
    {
        return Some(Patch(vec![PatchOperation::Remove(RemoveOperation { path: map() })]));
    }
    let mut operations = Vec::with_capacity(edits.len() + 1);
    if present.is_none() {
        operations.push(PatchOperation::Add(AddOperation {
            path: map(),
            value: Value::Object(serde_json::Map::new()),
        }));
    }
    for (key, value) in edits {
        let path = PointerBuf::from_tokens(["metadata", "annotations", key]);
        operations.push(match value {
            Some(value) => PatchOperation::Add(AddOperation {
                path,
                value: Value::String(value),
            }),
            None => PatchOperation::Remove(RemoveOperation { path }),
        });
    }
    Some(Patch(operations))
}
