//! Whatever stands in an object or in our keys, it is read, and what is not believed changes nothing.

use std::time::Duration;

use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    GroupKind, condition,
    intent::Intent,
    keys::{
        ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, GUARDED, MAX_GENERATION, OBSERVED_GENERATION, PENDING, PREFIX,
        STAMP, Standing, TOUCH, largest, parse_generation,
    },
    object::ObjectView,
    rule::{AnnotationMatch, FieldMatch, Input, InputId, InputSource, KindRule, Membership},
    stamp::{Concern, Decision, Policies, Write, Writer, concern, mutate, validate},
};
use crate::{
    protocol::object::FieldPath,
    testing::{any_json, cases, damaged},
};

const KEY: &str = "cluster.x-k8s.io/paused";
const OWN_STAMP: &str = r#"{"generation":3,"kind":"Cluster.cluster.x-k8s.io","namespace":"ns","name":"c1","uid":"u-1","before":["spec.paused"],"after":[],"why":"flip","at":"2026-01-01T11:00:00.000Z","by":"ann"}"#;
const OWN_ECHO: &str = r#"{"generation":3,"uid":"u-1","evidence":"Attested","objects":1,"objectGeneration":2,"at":"2026-01-01T11:00:10.000Z"}"#;

fn rule() -> KindRule {
    let input = |id: &str, source, inherited| Input {
        id: InputId(id.to_owned()),
        source,
        inherited,
    };
    let field = InputSource::Field {
        path: FieldPath::parse("spec.paused"),
        on: FieldMatch::True,
    };
    let annotation = InputSource::Annotation {
        key: KEY.to_owned(),
        on: AnnotationMatch::Present,
    };
    KindRule {
        group_kind: GroupKind::new("cluster.x-k8s.io", "Cluster"),
        inputs: vec![input("spec.paused", field, true), input(KEY, annotation, false)],
        attestors: Vec::new(),
        membership: Some(Membership::default()),
        inherits: false,
        references: Vec::new(),
        requires_owner: None,
        managed_elsewhere: None,
        staleness_bound: Duration::from_secs(60),
        grace: Duration::from_secs(60),
    }
}

fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        (0..5_u64).prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        any::<i64>().prop_map(|n| n.to_string()),
        (MAX_GENERATION - 3..MAX_GENERATION + 3).prop_map(|n| n.to_string()),
        "\\PC{0,20}",
        "[0-9+. eE-]{0,20}",
    ]
}

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec!["pending", "paused", "running", "paused-self", ""]).prop_map(str::to_owned),
        "\\PC{0,20}",
    ]
}

/// Our keys, right and wrong and everything between.
fn keys() -> impl Strategy<Value = Value> {
    let record = |right: &'static str| {
        prop_oneof![
            2 => Just(right.to_owned()),
            2 => damaged(right),
            1 => number().prop_map(move |n| right.replace(":3,", &format!(":{n},"))),
            1 => any_json().prop_map(|value| value.to_string()),
            1 => "\\PC{0,60}",
        ]
    };
    let some = |text| prop::option::weighted(0.8, text);
    (
        some(number().boxed()),
        some(number().boxed()),
        some(word().boxed()),
        some(record(OWN_STAMP).boxed()),
        some(record(OWN_ECHO).boxed()),
        prop::option::weighted(0.1, "\\PC{0,5}"),
        prop::option::weighted(0.3, "\\PC{0,5}"),
    )
        .prop_map(|(generation, observed, word, stamp, echo, touch, paused)| {
            let mut keys = serde_json::Map::new();
            for (key, value) in [
                (GENERATION, generation),
                (OBSERVED_GENERATION, observed),
                (ACKNOWLEDGED, word),
                (STAMP, stamp),
                (ACKNOWLEDGEMENT, echo),
                (TOUCH, touch),
                (KEY, paused),
            ] {
                if let Some(value) = value {
                    keys.insert(key.to_owned(), json!(value));
                }
            }
            Value::Object(keys)
        })
}

fn object(keys: &Value, paused: Option<bool>, name: &str, uid: &str) -> ObjectView {
    let mut object = json!({
        "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
        "metadata": { "name": name, "namespace": "ns", "uid": uid, "generation": 2, "annotations": keys },
        "spec": {},
    });
    if let Some(paused) = paused {
        object["spec"]["paused"] = json!(paused);
    }
    serde_json::from_value(object).unwrap()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_767_268_800 + second).unwrap()
}

fn largest_of(object: &ObjectView) -> u64 {
    largest(object).unwrap_or(0)
}

proptest! {
    #![proptest_config(cases(1500))]

    /// What is believed hangs together; what is not is told apart from what is not there.
    #[test]
    fn keys_are_read_whatever_they_say(keys in keys(), paused in any::<Option<bool>>()) {
        let rule = rule();
        let object = object(&keys, paused, "c1", "u-1");
        let standing = Standing::of(&rule.group_kind, &object);
        let has_keys = GUARDED.iter().any(|key| object.metadata.annotation(key).is_some());
        prop_assert_eq!(standing == Standing::Bare, !has_keys);
        prop_assert!(largest_of(&object) <= MAX_GENERATION);
        let projected = condition::acknowledged(&rule, &object, true);
        if let Standing::Own(record) = &standing {
            prop_assert!(record.stamp.generation <= MAX_GENERATION);
            prop_assert!(record.stamp.uid.is_empty() || record.stamp.uid == "u-1");
            let is_acknowledged = record.is_acknowledged(&rule);
            prop_assert!(!is_acknowledged || record.observed == Some(record.stamp.generation));
            prop_assert!(!is_acknowledged || object.metadata.annotation(ACKNOWLEDGED) != Some(PENDING));
            prop_assert!(!record.is_clean() || record.observed < Some(record.stamp.generation));
        } else {
            prop_assert_eq!(projected, None);
        }
    }

    /// Whatever stood and whatever is asked for: our keys alone are edited, the final object passes, numbers rise and no
    /// word of an acknowledgement is made up.
    #[test]
    fn any_write_is_answered(
        old in keys(), new in keys(), paused in any::<[Option<bool>; 2]>(), create in prop::bool::weighted(0.2),
        companion in prop::bool::weighted(0.2),
    ) {
        let rule = rule();
        let (old, new) = (object(&old, paused[0], "c1", "u-1"), object(&new, paused[1], "c1", if create { "" } else { "u-1" }));
        let write = Write {
            rule: &rule,
            old: (!create).then_some(&old),
            new: &new,
            writer: Writer { recorded: "bob", is_companion: companion, is_exempt: false },
            at: at(0),
            policies: Policies::default(),
        };
        let answer = mutate(&write);
        prop_assert!(answer.warnings.iter().all(|warning| warning.len() < 256));
        let mut result = new.clone();
        for (key, value) in &answer.edits {
            prop_assert!(key.starts_with(PREFIX));
            let map = &mut result.metadata.annotations.get_or_insert_default().0;
            match value {
                Some(value) => drop(map.insert((*key).to_owned(), value.clone())),
                None => drop(map.remove(*key)),
            }
        }
        if create {
            result.metadata.uid = "u-2".to_owned();
        }
        let asked = concern(&rule, write.old, &new);
        let finally = Write { new: &result, at: at(2), ..write };
        prop_assert_eq!(validate(&finally), Ok(()), "{:?}", result);
        prop_assert_eq!(result.metadata.annotation(TOUCH), None);
        let word = result.metadata.annotation(ACKNOWLEDGED);
        match &answer.decision {
            Decision::Stamped { stamp, .. } => {
                prop_assert_eq!(word, Some(PENDING));
                prop_assert_eq!(&stamp.after, &Intent::of(&rule, &result));
                prop_assert!((1..=MAX_GENERATION).contains(&stamp.generation));
                if !create && largest_of(&old) <= MAX_GENERATION - 2 && Standing::of(&rule.group_kind, &old) != Standing::Bare {
                    prop_assert!(stamp.generation > largest_of(&old), "{:?}", old);
                }
            }
            Decision::PutBack => {
                let standing = Standing::of(&rule.group_kind, &old);
                prop_assert!(matches!(standing, Standing::Own(_) | Standing::Bare));
                for key in GUARDED {
                    prop_assert!(companion || result.metadata.annotation(key) == old.metadata.annotation(key));
                }
            }
            Decision::CopyDropped => {
                prop_assert!(create);
                prop_assert!(GUARDED.iter().all(|key| result.metadata.annotation(key).is_none()));
            }
            Decision::Unchanged => {
                prop_assert!(asked == Concern::None || answer.edits.is_empty());
                // A word of one's own is let through for nobody but the companion.
                let said = parse_generation(word.unwrap_or_default()).is_none() && word != Some(PENDING);
                if asked != Concern::None && said && word.is_some() {
                    prop_assert!(companion || create || word == old.metadata.annotation(ACKNOWLEDGED));
                }
            }
            Decision::Denied(message) => prop_assert!(false, "{message}"),
        }
    }

    /// Bytes that are no object are an error, and nothing else.
    #[test]
    fn objects_are_read_or_refused(text in damaged(include_str!("../../tests/data/cluster.json"))) {
        drop(serde_json::from_str::<ObjectView>(&text));
    }
}
