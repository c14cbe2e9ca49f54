//! Other mutating webhooks that pause, resume, or write our keys, before ours and after it: a flip is stamped or denied
//! with an explanation, and what is stamped without a flip is repaired.

use std::time::Duration;

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use kube::{
    Api,
    api::{DynamicObject, PatchParams, PostParams},
};
use pausegen::{
    protocol::keys::{ACKNOWLEDGED, GENERATION, GUARDED, PENDING, STAMP, Stamp},
    rules::{Rules, manifests::webhooks},
};
use serde_json::{Value, json};

use super::ground::{Ground, PAUSED, Place, annotation, keys, rules, stamp};
use crate::{admission::hook::Hook, support::eventually};

/// What the other webhook does to every Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Pauses,
    PausesByAnnotation,
    Resumes,
    /// Takes all annotations away.
    Strips,
    /// Says that everything is acknowledged.
    Forges,
}

const DEEDS: [Deed; 5] = [
    Deed::Pauses,
    Deed::PausesByAnnotation,
    Deed::Resumes,
    Deed::Strips,
    Deed::Forges,
];

impl Deed {
    fn patch(self) -> Value {
        let add = |path: &str, value: Value| json!({ "op": "add", "path": path, "value": value });
        match self {
            Self::Pauses => json!([add("/spec/paused", json!(true))]),
            Self::PausesByAnnotation => json!([add("/metadata/annotations/cluster.x-k8s.io~1paused", json!(""))]),
            Self::Resumes => json!([add("/spec/paused", json!(false))]),
            Self::Strips => json!([add("/metadata/annotations", json!({}))]),
            Self::Forges => json!([
                add("/metadata/annotations/pausegen.io~1generation", json!("9")),
                add("/metadata/annotations/pausegen.io~1acknowledged", json!("running")),
            ]),
        }
    }
}

/// What became of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// It flips, and is stamped.
    Stamped,
    /// Denied, with an explanation.
    Denied,
    /// It flips nothing, and our keys are as they stood.
    Kept,
    /// It flips nothing, and there is a stamp for it all the same: pending.
    WithoutFlip,
    /// It flips nothing, and our keys are gone.
    Stripped,
    /// It flips nothing, and our keys are what the other webhook wants them to be.
    Forged,
}

pub(super) async fn scenes(ground: &Ground) {
    let mut cases = Vec::new();
    for after in [false, true] {
        for policy in ["Never", "IfNeeded"] {
            for deed in DEEDS {
                cases.push(case(ground, after, policy, deed));
            }
        }
    }
    let outcomes = Box::pin(futures::future::join_all(cases)).await;
    // Both come about, else the cases show nothing.
    let all: Vec<Outcome> = outcomes.into_iter().flatten().collect();
    for (outcome, at_least) in [(Outcome::Stamped, 20), (Outcome::Denied, 6), (Outcome::Kept, 20)] {
        let count = all.iter().filter(|found| **found == outcome).count();
        assert!(count >= at_least, "{outcome:?}: {count} of {all:?}");
    }
    Box::pin(two_releases(ground)).await;
}

/// Registers a webhook for the Clusters of one namespace, and waits until it is called.
async fn register(place: &Place<'_>, hook: &Hook, name: &str, policy: &str) {
    let rules = Rules::parse(&rules(Duration::from_secs(2)), "test").unwrap();
    let (mut configuration, _) = webhooks(&rules, hook.target());
    configuration.metadata.name = Some(name.to_owned());
    let mut webhook = configuration.webhooks.take().unwrap().remove(0);
    webhook.name = "other.example.com".to_owned();
    webhook.match_conditions = None;
    webhook.reinvocation_policy = Some(policy.to_owned());
    webhook.namespace_selector = Some(
        serde_json::from_value(json!({ "matchLabels": { "kubernetes.io/metadata.name": place.namespace } })).unwrap(),
    );
    configuration.webhooks = Some(vec![webhook]);
    let api: Api<MutatingWebhookConfiguration> = Api::all(place.ground.client.clone());
    api.create(&PostParams::default(), &configuration).await.unwrap();
    called(place, hook).await;
}

async fn called(place: &Place<'_>, hook: &Hook) {
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let label = json!({ "metadata": { "labels": { "canary": "x" } } });
    let api = place.api("Cluster");
    eventually("the other webhook is called", async || {
        drop(api.patch("bare", &dry_run, &kube::api::Patch::Merge(&label)).await);
        (!hook.paths().is_empty()).then_some(())
    })
    .await;
}

/// One webhook, and writes of all kinds under it.
async fn case(ground: &Ground, after: bool, policy: &str, deed: Deed) -> Vec<Outcome> {
    let name = format!("{}-{policy}-{deed:?}", if after { "after" } else { "before" }).to_lowercase();
    let place = ground.place(&name).await;
    let keep = json!({ "metadata": { "annotations": { "example.com/keep": "mine" } }, "spec": { "paused": false } });
    place.create("Cluster", "bare", keep).await;
    place.paused(&["paused"]).await;
    let hook = Hook::patching(deed.patch());
    let configuration = format!("{}-{name}", if after { "zzz" } else { "aa" });
    register(&place, &hook, &configuration, policy).await;
    let mut outcomes = Vec::new();
    for (object, what, patch) in [
        ("bare", "a label", json!({ "metadata": { "labels": { "a": "b" } } })),
        (
            "bare",
            "a pause",
            json!({ "metadata": { "labels": { "a": "c" } }, "spec": { "paused": true } }),
        ),
        (
            "bare",
            "a resume",
            json!({ "metadata": { "labels": { "a": "d" } }, "spec": { "paused": false } }),
        ),
        ("paused", "a label", json!({ "metadata": { "labels": { "a": "b" } } })),
        (
            "paused",
            "a resume",
            json!({ "metadata": { "labels": { "a": "c" } }, "spec": { "paused": false } }),
        ),
        (
            "paused",
            "a pause",
            json!({ "metadata": { "labels": { "a": "d" } }, "spec": { "paused": true } }),
        ),
    ] {
        let context = format!("{name}, {object}: {what}");
        let before = place.get("Cluster", object).await;
        let outcome = match place.patch("Cluster", object, patch).await {
            Ok(written) => outcome(&context, &before, &written),
            Err(kube::Error::Api(status)) => {
                assert_eq!(status.code, 403, "{context}: {status}");
                assert!(
                    status.message.contains("pausegen.io") && status.message.contains("reinvocationPolicy"),
                    "{context}: {}",
                    status.message
                );
                Outcome::Denied
            }
            Err(error) => panic!("{context}: {error}"),
        };
        println!("{context}: {outcome:?}");
        // Whoever may have webhooks called last may write anything. It is not believed for long.
        if outcome == Outcome::Stripped {
            assert!(after && deed == Deed::Strips, "{context}");
        }
        if outcome == Outcome::Forged {
            assert!(after && deed == Deed::Forges, "{context}");
        }
        if outcome == Outcome::WithoutFlip {
            assert!(after, "{context}");
        }
        outcomes.push(outcome);
    }
    // With the other one gone, whatever it left is set right.
    let api: Api<MutatingWebhookConfiguration> = Api::all(ground.client.clone());
    api.delete(&configuration, &Default::default()).await.unwrap();
    for object in ["bare", "paused"] {
        let right = eventually(&format!("{name}: {object} is stamped for what it is"), async || {
            let found = place.get("Cluster", object).await;
            let is_bare = GUARDED.iter().all(|key| annotation(&found, key).is_none());
            let is_right = is_bare || stamped_for(&found) == Some(intent(&found));
            is_right.then_some(found)
        })
        .await;
        if annotation(&right, STAMP).is_some() {
            let inputs = intent(&right);
            let mut message = Vec::new();
            if inputs.iter().any(|input| input == "spec.paused") {
                message.push("Cluster spec.paused is set to true");
            }
            if inputs.iter().any(|input| input == PAUSED) {
                message.push("Cluster has the cluster.x-k8s.io/paused annotation");
            }
            let word = if inputs.iter().any(|input| input == "spec.paused") {
                "paused"
            } else if inputs.is_empty() {
                "running"
            } else {
                "paused-self"
            };
            place
                .says("Cluster", object, !inputs.is_empty(), &message.join(", "))
                .await;
            place.acknowledged(object, word).await;
        }
    }
    outcomes
}

/// The inputs that the stamp on an object says are on.
fn stamped_for(object: &DynamicObject) -> Option<Vec<String>> {
    let stamp: Stamp = serde_json::from_str(annotation(object, STAMP)?).ok()?;
    Some(stamp.after.0.iter().map(|id| id.0.clone()).collect())
}

fn intent(object: &DynamicObject) -> Vec<String> {
    let mut inputs = Vec::new();
    if annotation(object, PAUSED).is_some() {
        inputs.push(PAUSED.to_owned());
    }
    if object.data["spec"]["paused"] == true {
        inputs.push("spec.paused".to_owned());
    }
    inputs
}

/// What a write that went through has done. A flip without its stamp is nothing that may happen.
fn outcome(context: &str, before: &DynamicObject, after: &DynamicObject) -> Outcome {
    let standing = |object: &DynamicObject| {
        let text = annotation(object, STAMP)?;
        Some(serde_json::from_str::<Stamp>(text).unwrap())
    };
    let number = |object: &DynamicObject| standing(object).map_or(0, |stamp| stamp.generation);
    if intent(before) != intent(after) {
        let stamp = standing(after).unwrap_or_else(|| panic!("{context}: an unstamped flip: {after:?}"));
        let ids: Vec<String> = stamp.after.0.iter().map(|id| id.0.clone()).collect();
        assert_eq!(ids, intent(after), "{context}");
        assert!(stamp.generation > number(before), "{context}: {after:?}");
        assert_eq!(
            annotation(after, GENERATION),
            Some(&*stamp.generation.to_string()),
            "{context}"
        );
        assert_eq!(annotation(after, ACKNOWLEDGED), Some(PENDING), "{context}");
        return Outcome::Stamped;
    }
    if keys(before) == keys(after) {
        return Outcome::Kept;
    }
    if standing(after).is_none() && annotation(after, ACKNOWLEDGED).is_none() {
        return Outcome::Stripped;
    }
    if annotation(after, ACKNOWLEDGED) == Some(PENDING) {
        Outcome::WithoutFlip
    } else {
        Outcome::Forged
    }
}

/// Two releases of the product at once, each with its configurations: each flip counts once.
async fn two_releases(ground: &Ground) {
    let place = ground.place("two-releases").await;
    place
        .create("Cluster", "bare", json!({ "spec": { "paused": false } }))
        .await;
    place.paused(&["paused"]).await;
    let text = rules(Duration::from_secs(2));
    let rules = std::sync::Arc::new(Rules::parse(&text, "test").unwrap());
    let settings = pausegen::admission::Settings {
        companion_users: [pausegen::sandbox::product::USER.to_owned()].into(),
        ..Default::default()
    };
    let second = Hook::start_now(&rules, settings);
    let (mut mutating, mut validating) = webhooks(&rules, second.target());
    let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": place.namespace } });
    for webhook in mutating.webhooks.iter_mut().flatten() {
        webhook.namespace_selector = Some(serde_json::from_value(selector.clone()).unwrap());
    }
    for webhook in validating.webhooks.iter_mut().flatten() {
        webhook.namespace_selector = Some(serde_json::from_value(selector.clone()).unwrap());
    }
    mutating.metadata.name = Some("zz-pausegen-second".to_owned());
    validating.metadata.name = Some("zz-pausegen-second".to_owned());
    let client = || ground.client.clone();
    Api::all(client())
        .create(&PostParams::default(), &mutating)
        .await
        .unwrap();
    Api::all(client())
        .create(&PostParams::default(), &validating)
        .await
        .unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let pause = json!({ "spec": { "paused": true } });
    eventually("the second release is called", async || {
        let api = place.api("Cluster");
        api.patch("bare", &dry_run, &kube::api::Patch::Merge(&pause))
            .await
            .unwrap();
        (second.paths() == ["/mutate", "/validate"]).then_some(())
    })
    .await;
    for (generation, paused) in [(1, true), (2, false), (3, true)] {
        let patch = json!({ "spec": { "paused": paused } });
        let flipped = place.patch("Cluster", "bare", patch).await.unwrap();
        assert_eq!(stamp(&flipped).generation, generation);
        assert_eq!(annotation(&flipped, ACKNOWLEDGED), Some(PENDING));
    }
    // An echo passes both, and a forgery none.
    place.cluster_says("bare", true).await;
    let stood = place.acknowledged("bare", "paused").await;
    let forged = json!({ "metadata": { "annotations": { GENERATION: "9", ACKNOWLEDGED: "running" } } });
    let after = place.patch("Cluster", "bare", forged).await.unwrap();
    assert_eq!(keys(&after), keys(&stood));
    let touch = json!({ "metadata": { "annotations": { pausegen::protocol::keys::TOUCH: "" } } });
    let touched = place.patch("Cluster", "bare", touch).await.unwrap();
    assert_eq!(stamp(&touched).generation, 5);
    let created = place
        .create("Cluster", "created", json!({ "spec": { "paused": true } }))
        .await;
    assert_eq!(stamp(&created).generation, 1);
    second.paths();
    place.acknowledged("bare", "paused").await;
}
