//! The conditions in the webhook configurations are true exactly when the protocol has something to say.

use std::{collections::BTreeMap, sync::Arc};

use kube::api::{DynamicObject, PostParams};
use pausegen::{
    admission::{RecordUser, Settings},
    protocol::{
        GroupKind,
        keys::{ACKNOWLEDGED, ACKNOWLEDGEMENT, GENERATION, GUARDED, OBSERVED_GENERATION, STAMP, TOUCH},
        object::ObjectView,
        rule::KindRule,
        stamp::{Concern, Decision, Policies, Write, Writer, concern, mutate},
    },
    rules::Rules,
};
use serde_json::{Value, json};

use super::hook::{Hook, Kind, NOW};
use crate::support;

const GROUP: &str = "cel.example.com";
const RULES: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
rules:
- group: cel.example.com
  kinds: [Gate]
  inputs:
  - {field: spec.paused, match: true}
  - {annotation: cel.example.com/paused, match: present}
  attestedBy: none
- group: cel.example.com
  kinds: [Valve]
  inputs:
  - {field: spec.control.mode, match: {oneOf: [Hold, \"it's\"]}}
  - {annotation: cel.example.com/pause, match: boolean}
  attestedBy: none
- group: cel.example.com
  kinds: [Lock]
  inputs:
  - {field: spec.active, match: false}
  - {annotation: cel.example.com/reconcile, match: {equals: disabled}}
  attestedBy: none
";

/// A kind, what can be set on it, and whether it has a rule at all.
struct Ground {
    kind: Kind,
    rule: Option<Arc<KindRule>>,
    specs: Vec<Value>,
    annotation: &'static str,
    values: &'static [&'static str],
}

/// Picks deterministically: a linear congruential generator (Knuth's MMIX).
struct Picker(u64);

impl Picker {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }

    fn chance(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// Sets some things of an object anew.
fn change(ground: &Ground, picker: &mut Picker, object: &mut Value) {
    if picker.chance(60) {
        let spec = picker.of(&ground.specs).clone();
        let top = object.as_object_mut().unwrap();
        if spec == json!("absent") {
            top.remove("spec");
        } else {
            top.insert("spec".to_owned(), spec);
        }
    }
    if picker.chance(10) {
        object["metadata"].as_object_mut().unwrap().remove("annotations");
        return;
    }
    let mut annotations = object["metadata"]["annotations"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let mut set = |key: &str, value: Option<&str>| match value {
        Some(value) => drop(annotations.insert(key.to_owned(), json!(value))),
        None => drop(annotations.remove(key)),
    };
    if picker.chance(60) {
        let value = picker.chance(70).then(|| *picker.of(ground.values));
        set(ground.annotation, value);
    }
    if picker.chance(20) {
        set("example.com/other", Some(*picker.of(&["a", "b"])));
    }
    if picker.chance(30) {
        let key = picker.of(&GUARDED);
        let value = picker
            .chance(60)
            .then(|| *picker.of(&["", "0", "1", "2", "pending", "paused", "{}"]));
        set(key, value);
    }
    if picker.chance(10) {
        set(TOUCH, Some(""));
    }
    object["metadata"]["annotations"] = Value::Object(annotations);
}

fn view(object: &Value) -> ObjectView {
    serde_json::from_value(object.clone()).unwrap()
}

fn write<'a>(rule: &'a KindRule, old: Option<&'a ObjectView>, new: &'a ObjectView) -> Write<'a> {
    Write {
        rule,
        old,
        new,
        writer: Writer::default(),
        at: NOW.parse().unwrap(),
        policies: Policies::default(),
    }
}

fn annotations(view: &ObjectView) -> BTreeMap<String, String> {
    view.metadata.annotations.clone().unwrap_or_default().0
}

/// Counts what was tried, so that the test notices when it no longer tries what it should.
#[derive(Debug, Default)]
struct Tally(BTreeMap<&'static str, usize>);

/// Checks the answer to a dry run of a write.
fn check(
    ground: &Ground,
    hook: &Hook,
    tally: &mut Tally,
    old: Option<&Value>,
    new: &Value,
    got: kube::Result<DynamicObject>,
) {
    let paths = hook.paths();
    let context = || format!("{}\nold: {old:?}\nnew: {new}", ground.kind.name);
    let got = got.unwrap_or_else(|error| panic!("{error}\n{}", context()));
    let got = view(&serde_json::to_value(&got).unwrap());
    let (old, new) = (old.map(view), view(new));
    let Some(rule) = &ground.rule else {
        assert_eq!(paths, [""; 0], "{}", context());
        return;
    };
    let concern = concern(rule, old.as_ref(), &new);
    let (called, what): (&[&str], _) = match concern {
        Concern::None => (&[], "none"),
        Concern::Flip => (&["/mutate", "/validate"], "flip"),
        Concern::Keys => (&["/mutate"], "keys"),
    };
    assert_eq!(paths, called, "{concern:?}: {}", context());
    let answer = mutate(&write(rule, old.as_ref(), &new));
    let mut expected = annotations(&new);
    for (key, value) in answer.edits {
        match value {
            Some(value) => drop(expected.insert(key.to_owned(), value)),
            None => drop(expected.remove(key)),
        }
    }
    assert_eq!(annotations(&got), expected, "{concern:?}: {}", context());
    *tally.0.entry(what).or_default() += 1;
    let what = match answer.decision {
        Decision::Unchanged => "unchanged",
        Decision::Stamped { .. } => "stamped",
        Decision::PutBack => "put back",
        Decision::CopyDropped => "copy dropped",
        Decision::Denied(_) => "denied",
    };
    *tally.0.entry(what).or_default() += 1;
}

async fn grounds(client: &kube::Client, rules: &Rules) -> Vec<Ground> {
    let ground = async |name: &str, specs: Value, annotation, values| Ground {
        kind: Kind::define(client, GROUP, name).await,
        rule: rules.rule_for(&GroupKind::new(GROUP, name)),
        specs: specs.as_array().unwrap().clone(),
        annotation,
        values,
    };
    let paused = json!([
        "absent", {}, null, [], "text", { "paused": true }, { "paused": true, "x": [1] }, { "paused": false },
        { "paused": null }, { "paused": "true" }, { "paused": 1 }, { "paused": [] }, { "paused": { "paused": true } },
    ]);
    vec![
        ground("Gate", paused.clone(), "cel.example.com/paused", &["", "true", "false"]).await,
        ground(
            "Valve",
            json!([
                "absent", {}, { "control": null }, { "control": [] }, { "control": "Hold" }, { "control": {} }, [1], 7,
                { "control": { "mode": "Hold" } }, { "control": { "mode": "it's" } }, { "control": { "mode": "hold" } },
                { "control": { "mode": true } }, { "control": { "mode": ["Hold"] } }, { "control": { "mode": 1.5 } },
            ]),
            "cel.example.com/pause",
            &["1", "t", "T", "TRUE", "true", "True", "tRUE", "yes", "0", "", " true"],
        )
        .await,
        ground(
            "Lock",
            json!([
                "absent", {}, { "active": false }, { "active": true }, { "active": null }, { "active": "false" },
                { "active": 0 }, [false], { "active": [false] },
            ]),
            "cel.example.com/reconcile",
            &["disabled", "Disabled", "", "disabled "],
        )
        .await,
        // A kind of the group without a rule.
        ground("Door", paused, "cel.example.com/paused", &["", "true", "false"]).await,
    ]
}

/// Some objects to start from: with and without keys that are believed, and with whatever else.
async fn olds(ground: &Ground, picker: &mut Picker) -> Vec<Value> {
    let mut olds = Vec::new();
    for i in 0..16 {
        let mut object = json!({ "metadata": {} });
        change(ground, picker, &mut object);
        if i % 4 != 0 {
            for key in [
                GENERATION,
                OBSERVED_GENERATION,
                ACKNOWLEDGED,
                ACKNOWLEDGEMENT,
                STAMP,
                TOUCH,
            ] {
                if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
                    annotations.remove(key);
                }
            }
        }
        let stored = ground.kind.create(&format!("o{i}"), object).await;
        let mut stored = serde_json::to_value(stored).unwrap();
        // Some as a flip from nothing would have left them.
        if let (true, Some(rule)) = (i % 2 == 1, &ground.rule) {
            let new = view(&stored);
            let mut bare = new.clone();
            (bare.fields, bare.metadata.annotations) = Default::default();
            for (key, value) in mutate(&write(rule, Some(&bare), &new)).edits {
                stored["metadata"]["annotations"][key] = json!(value);
            }
            let object: DynamicObject = serde_json::from_value(stored).unwrap();
            let name = format!("o{i}");
            let stamped = ground
                .kind
                .api
                .replace(&name, &PostParams::default(), &object)
                .await
                .unwrap();
            stored = serde_json::to_value(stamped).unwrap();
        }
        olds.push(stored);
    }
    olds
}

#[tokio::test]
async fn the_webhooks_are_called_exactly_when_the_protocol_has_something_to_say() {
    let client = support::plain().await.client().await.unwrap();
    let rules = Arc::new(Rules::parse(RULES, "test").unwrap());
    let grounds = grounds(&client, &rules).await;
    let mut picker = Picker(1);
    let mut stored = Vec::new();
    for ground in &grounds {
        stored.push(olds(ground, &mut picker).await);
    }
    let settings = Settings {
        record_user: RecordUser::Off,
        ..Settings::default()
    };
    let hook = Hook::start(&rules, settings);
    hook.install(&client, "zz-pausegen-cel", &rules, &grounds[0].kind, "probe")
        .await;
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let mut tally = Tally::default();
    for (ground, olds) in grounds.iter().zip(&stored) {
        for old in olds {
            let name = old["metadata"]["name"].as_str().unwrap();
            for _ in 0..8 {
                let mut new = old.clone();
                change(ground, &mut picker, &mut new);
                let object: DynamicObject = serde_json::from_value(new.clone()).unwrap();
                let got = ground.kind.api.replace(name, &dry_run, &object).await;
                check(ground, &hook, &mut tally, Some(old), &new, got);
            }
        }
        for i in 0..40 {
            // Some carry the keys of an object of that name: a restore.
            let mut new = json!({ "metadata": {} });
            if i % 4 == 0 {
                let copied = &picker.of(olds)["metadata"]["annotations"];
                new["metadata"]["annotations"] = if copied.is_null() { json!({}) } else { copied.clone() };
            }
            change(ground, &mut picker, &mut new);
            let name = format!("n{i}");
            new["metadata"]["namespace"] = json!("default");
            let object = ground.kind.object(&name, new.clone());
            new["metadata"]["name"] = json!(name);
            let got = ground.kind.api.create(&dry_run, &object).await;
            check(ground, &hook, &mut tally, None, &new, got);
        }
        // Nothing of all this was stored.
        for old in olds {
            let now = ground
                .kind
                .api
                .get(old["metadata"]["name"].as_str().unwrap())
                .await
                .unwrap();
            assert_eq!(serde_json::to_value(now).unwrap(), *old);
        }
    }
    for (what, at_least) in [
        ("none", 60),
        ("flip", 100),
        ("keys", 60),
        ("stamped", 120),
        ("put back", 30),
    ] {
        assert!(tally.0.get(what) >= Some(&at_least), "{what}: {tally:?}");
    }
}
