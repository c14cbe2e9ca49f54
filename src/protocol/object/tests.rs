use kube::core::WatchEvent;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{FieldPath, ObjectView, Shallow, truncate};
use crate::protocol::GroupKind;

fn view(value: &Value) -> ObjectView {
    serde_json::from_str(&value.to_string()).unwrap()
}

#[test]
fn an_object_of_cluster_api() {
    let cluster: ObjectView = serde_json::from_str(include_str!("../../../tests/data/cluster.json")).unwrap();
    assert_eq!(cluster.group_kind(), GroupKind::new("cluster.x-k8s.io", "Cluster"));
    assert_eq!(cluster.metadata.name, "production-1");
    assert!(cluster.metadata.annotations.is_none());
    assert!(
        cluster
            .status
            .conditions
            .iter()
            .any(|condition| condition.type_ == "Paused")
    );
    let kind = cluster
        .field(&FieldPath::parse("spec.controlPlaneRef.kind"))
        .and_then(Shallow::scalar);
    assert_eq!(kind, Some("KubeadmControlPlane"));
}

#[test]
fn our_annotations_are_kept_whole_and_others_cut() {
    let long = "\u{20ac}".repeat(200);
    let object = view(&json!({ "metadata": { "annotations": {
        "pausegen.io/reason": long, "example.com/a": long, "example.com/null": null,
    } } }));
    assert_eq!(object.metadata.annotation("pausegen.io/reason"), Some(&*long));
    assert_eq!(
        object.metadata.annotation("example.com/a"),
        Some(&*"\u{20ac}".repeat(85))
    );
    assert_eq!(object.metadata.annotation("example.com/null"), Some(""));
}

#[test]
fn fields_are_kept_without_lists_and_depths() {
    let long = "x".repeat(300);
    let object = view(&json!({ "spec": {
        "paused": true, "replicas": 3, "list": [1, 2], "null": null, "text": long,
        "a": { "b": { "c": "found", "d": { "e": { "f": { "g": "too deep" } } } } },
    }, "data": { "k": "v" } }));
    let field = |path| object.field(&FieldPath::parse(path));
    assert_eq!(field("spec.paused"), Some(&Shallow::Bool(true)));
    assert_eq!(field("spec.replicas").and_then(Shallow::scalar), Some("3"));
    assert_eq!(field("spec.list"), Some(&Shallow::Opaque));
    assert_eq!(field("spec.null"), Some(&Shallow::Opaque));
    assert_eq!(field("spec.text").and_then(Shallow::scalar), Some(&*"x".repeat(256)));
    assert_eq!(field("spec.a.b.c").and_then(Shallow::scalar), Some("found"));
    assert_eq!(
        field("spec.a.b.d.e.f"),
        Some(&Shallow::Map([("g".to_owned(), Shallow::Opaque)].into()))
    );
    assert_eq!(field("spec.a.x"), None);
    assert_eq!(field("spec.paused.x"), None);
    assert_eq!(field("data.k").and_then(Shallow::scalar), Some("v"));
}

#[test]
fn an_odd_status_is_passed_over() {
    let object = view(
        &json!({ "status": { "observedGeneration": 4, "v1beta2": 7, "conditions": [
        7, { "type": "Paused", "status": true, "reason": "Paused", "message": ["x"], "observedGeneration": "4" },
    ] } }),
    );
    assert_eq!(object.status.observed_generation, Some(4));
    assert_eq!(object.status.v1beta2, None);
    let paused = &object.status.conditions[1];
    assert_eq!(
        (&*paused.type_, &*paused.status, &*paused.reason, &*paused.message),
        ("Paused", "", "Paused", "")
    );
    assert_eq!(paused.observed_generation, None);
}

#[test]
fn texts_are_cut_between_characters() {
    for (text, limit, cut) in [
        ("abc", 5, "abc"),
        ("abc", 2, "ab"),
        ("a\u{20ac}b", 3, "a"),
        ("\u{20ac}", 0, ""),
    ] {
        let mut text = text.to_owned();
        truncate(&mut text, limit);
        assert_eq!(text, cut);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 40, 5, |inner| {
        let keys = prop_oneof![
            Just("conditions".to_owned()),
            Just("observedGeneration".to_owned()),
            Just("v1beta2".to_owned()),
            Just("type".to_owned()),
            Just("status".to_owned()),
            "[a-z]{1,4}",
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map(keys, inner, 0..5).prop_map(Value::from_iter),
        ]
    })
}

proptest! {
    #![proptest_config(crate::testing::cases(300))]

    /// Whatever is outside of the metadata can be read, and reads the same from text, from a document, and from a
    /// watch event, whichever way round.
    #[test]
    fn any_spec_and_status_can_be_read(spec in any_json(), status in any_json()) {
        let object = json!({ "metadata": { "name": "a" }, "spec": spec, "status": status });
        let read = view(&object);
        prop_assert_eq!(&read, &serde_json::from_value::<ObjectView>(object.clone()).unwrap());
        let text = object.to_string();
        for event in [format!("{{\"type\":\"ADDED\",\"object\":{text}}}"), format!("{{\"object\":{text},\"type\":\"ADDED\"}}")] {
            match serde_json::from_str::<WatchEvent<ObjectView>>(&event) {
                Ok(WatchEvent::Added(found)) => prop_assert_eq!(&found, &read),
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }
}

#[test]
fn the_object_of_a_write_is_read_no_further_than_an_object_can_be_large() {
    let read = |text: &str| super::written(&mut serde_json::Deserializer::from_str(text));
    let own = "\"pausegen.io/generation\":\"7\"";
    let many = |count: usize| {
        (0..count)
            .map(|i| format!("\"a{i:06}\":\"x\""))
            .collect::<Vec<_>>()
            .join(",")
    };
    let text = format!(
        r#"{{"kind":"K","metadata":{{"name":"n","labels":{{"a":"b"}},"ownerReferences":[{{}}],"annotations":{{{},{own}}}}},
            "status":{{"conditions":[{{}}]}},"spec":{{"paused":true}}}}"#,
        many(100_000)
    );
    let object = read(&text).unwrap().unwrap();
    assert_eq!((&*object.kind, &*object.metadata.name), ("K", "n"));
    assert_eq!(object.metadata.annotation("pausegen.io/generation"), Some("7"));
    let kept = object.metadata.annotations.unwrap().0.len();
    assert!((28_000..40_000).contains(&kept), "{kept}");
    assert_eq!(object.metadata.labels.len() + object.metadata.owner_references.len(), 0);
    assert_eq!(object.status, super::Status::default());
    assert_eq!(
        object.fields["spec"],
        Shallow::Map([("paused".to_owned(), Shallow::Bool(true))].into())
    );
    let fields = |count| format!(r#"{{"spec":{{{}}}}}"#, many(count));
    assert!(read(&fields(100_000)).is_ok());
    let error = read(&fields(100_001)).unwrap_err().to_string();
    assert!(error.contains("more than 100000 fields"), "{error}");
    assert_eq!(read("null").unwrap(), None);
}
