//! Events on the flipped object: one when it has to wait, one at the acknowledgement.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::{Event, EventType};

use super::{World, kinds::Kind};
use crate::protocol::object::{ObjectView, truncate};

/// A note has at most 1 kB (events.k8s.io/v1).
const NOTE_LIMIT: usize = 1000;

/// Publishes an Event on an object. One that is refused is logged and forgotten: it is for people only.
pub(super) async fn publish(world: &World, kind: &Kind, object: &ObjectView, reason: &str, mut note: String) {
    truncate(&mut note, NOTE_LIMIT);
    let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
    let regarding = ObjectReference {
        api_version: Some(kind.resource.api_version.clone()),
        kind: Some(kind.resource.kind.clone()),
        name: some(&object.metadata.name),
        namespace: some(&object.metadata.namespace),
        uid: some(&object.metadata.uid),
        // Tells the Events of two flips apart: else the second would be counted into the first, without its note.
        resource_version: some(&object.metadata.resource_version),
        field_path: None,
    };
    let event = Event {
        type_: EventType::Normal,
        reason: reason.to_owned(),
        note: Some(note),
        action: "Acknowledge".to_owned(),
        secondary: None,
    };
    // Where another process may lead by now, that one tells it.
    let published = world.leadership.write(world.recorder.publish(&event, &regarding)).await;
    if let Ok(Err(error)) = published {
        world.metrics.errors.inc();
        tracing::warn!(
            object = %format_args!("{} {}/{}", kind.resource.kind, object.metadata.namespace, object.metadata.name),
            %error,
            "an Event cannot be published"
        );
    }
}
