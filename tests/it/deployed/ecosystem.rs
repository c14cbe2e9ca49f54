//! Kinds of other ecosystems, as rules express them, and `Paused` where nobody else writes it.

use std::time::Duration;

use futures::future::join_all;
use kube::api::{DeleteParams, DynamicObject};
use pausegen::protocol::keys::{self, Evidence};
use pausegen::protocol::mirror::MARK;
use pausegen::rules::manifests::CONFIGURATION;
use serde_json::{Value, json};

use super::{Object, Said, Stage, Toy, annotation, condition, generation, paused};
use crate::support::eventually;

fn any() -> Value {
    json!({ "size": { "type": "integer" } })
}

const KAFKA: Toy = Toy::new("kafka.strimzi.io", "Kafka", any);
const BUCKET: Toy = Toy::new("s3.aws.crossplane.io", "Bucket", any);
const SCALED: Toy = Toy::new("keda.sh", "ScaledObject", any);
const POSTGRES: Toy = Toy::new("postgresql.cnpg.io", "Cluster", any);
const FLUX: Toy = Toy::new(
    "kustomize.toolkit.fluxcd.io",
    "Kustomization",
    || json!({ "suspend": { "type": "boolean" }, "size": { "type": "integer" } }),
);
const WORKLOAD: Toy = Toy::new(
    "kueue.x-k8s.io",
    "Workload",
    || json!({ "active": { "type": "boolean" } }),
);
const QUEUE: Toy = Toy::new(
    "kueue.x-k8s.io",
    "ClusterQueue",
    || json!({ "stopPolicy": { "type": "string" } }),
);
const FLEET: Toy = Toy::new(
    "sea.example.org",
    "Fleet",
    || json!({ "paused": { "type": "boolean" } }),
);
const SHIP: Toy = Toy::new("sea.example.org", "Ship", any);
/// Its conditions do not keep `observedGeneration`.
const RAFT: Toy = Toy {
    observes: false,
    ..Toy::new("sea.example.org", "Raft", any)
};

/// What docs/rules.md shows, with short times, and two kinds of our own.
fn rules() -> String {
    let documented = include_str!("../../../docs/rules.md");
    let (_, after) = documented.split_once("<!-- tested -->\n```yaml\n").unwrap();
    let (examples, _) = after.split_once("```").unwrap();
    format!("stalenessBound: 2s\ngrace: 2s\n{examples}{SEA}")
}

const SEA: &str = "
- group: sea.example.org
  kinds: [Fleet]
  inputs:
  - {field: spec.paused, match: true, inherited: true}
  members: {label: sea.example.org/fleet}
  attestedBy: bound
- group: sea.example.org
  kinds: [Ship, Raft]
  inherits: true
  mirror: true
  attestedBy: bound
";

/// A kind, what pauses and resumes it, what looks as if it paused it, and what its controller says then.
struct Case {
    toy: Toy,
    pause: Value,
    resume: Value,
    no_pause: Value,
    /// The condition of a paused and of a running object; `None`: the controller says nothing.
    says: Option<(&'static str, Says, Option<Says>)>,
    /// The evidence of a clean resume after a clean pause.
    evidence: Evidence,
}

/// Status and reason.
type Says = (&'static str, &'static str);

fn annotated(key: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

fn spec(field: &str, value: impl Into<Value>) -> Value {
    json!({ "spec": { field: value.into() } })
}

fn cases() -> Vec<Case> {
    vec![
        Case {
            toy: KAFKA,
            pause: annotated("strimzi.io/pause-reconciliation", Some("true")),
            resume: annotated("strimzi.io/pause-reconciliation", None),
            no_pause: annotated("strimzi.io/pause-reconciliation", Some("false")),
            says: Some(("ReconciliationPaused", ("True", ""), None)),
            evidence: Evidence::Settled,
        },
        Case {
            toy: BUCKET,
            pause: annotated("crossplane.io/paused", Some("true")),
            resume: annotated("crossplane.io/paused", Some("false")),
            no_pause: annotated("crossplane.io/paused", Some("1")),
            says: Some((
                "Synced",
                ("False", "ReconcilePaused"),
                Some(("False", "ReconcileError")),
            )),
            evidence: Evidence::Attested,
        },
        Case {
            toy: SCALED,
            pause: annotated("autoscaling.keda.sh/paused-replicas", Some("0")),
            resume: annotated("autoscaling.keda.sh/paused-replicas", None),
            no_pause: annotated("autoscaling.keda.sh/paused", Some("false")),
            says: Some((
                "Paused",
                ("True", "ScaledObjectPaused"),
                Some(("False", "ScaledObjectUnpaused")),
            )),
            // The status does not say which of the two annotations it is about.
            evidence: Evidence::Settled,
        },
        Case {
            toy: POSTGRES,
            pause: annotated("cnpg.io/reconciliationLoop", Some("disabled")),
            resume: annotated("cnpg.io/reconciliationLoop", None),
            no_pause: annotated("cnpg.io/reconciliationLoop", Some("enabled")),
            says: None,
            evidence: Evidence::Settled,
        },
        Case {
            toy: FLUX,
            pause: spec("suspend", true),
            resume: spec("suspend", false),
            no_pause: spec("size", 1),
            says: None,
            evidence: Evidence::Settled,
        },
        Case {
            toy: WORKLOAD,
            pause: spec("active", false),
            resume: spec("active", true),
            no_pause: spec("active", true),
            says: None,
            evidence: Evidence::Settled,
        },
        Case {
            toy: QUEUE,
            pause: spec("stopPolicy", "HoldAndDrain"),
            resume: spec("stopPolicy", "None"),
            no_pause: spec("stopPolicy", "None"),
            says: Some(("Active", ("False", "Stopped"), Some(("True", "Ready")))),
            evidence: Evidence::Attested,
        },
    ]
}

#[tokio::test]
async fn kinds_of_other_ecosystems_are_paused_as_their_rules_say() {
    let cases = cases();
    let mut toys: Vec<Toy> = cases.iter().map(|case| case.toy).collect();
    toys.extend([FLEET, SHIP, RAFT]);
    let mut stage = Stage::start(&rules(), &toys).await;
    let rules = stage.sandbox.folder().join("rules.yaml").display().to_string();
    let said = stage.pausegen(&["rules", "check", &rules, "--server"]).await;
    check(&said);
    join_all(cases.iter().map(|case| Box::pin(flip(&stage, case)))).await;
    tokio::join!(
        Box::pin(mirrored(&stage)),
        Box::pin(left_alone(&stage)),
        Box::pin(inherited(&stage))
    );
    Box::pin(cleaned(&mut stage)).await;
}

/// The one thing that is wrong with these rules on this server.
fn check(said: &Said) {
    assert_eq!(said.code, Some(1), "{said:?}");
    let (_, wrong) = said.out.split_once("Wrong:\n").unwrap();
    assert_eq!(wrong.lines().count(), 1, "{said:?}");
    assert!(
        wrong.contains("Raft.sea.example.org: `mirror: true`, but no condition can be written"),
        "{said:?}"
    );
}

/// Pause and resume: pending until the controller has answered, and what only looks like a pause is none.
async fn flip(stage: &Stage, case: &Case) {
    let object = stage.create(&case.toy, "toy", json!({ "spec": {} })).await;
    let same = object.patch(case.no_pause.clone()).await;
    assert_eq!(generation(&same), 0, "{:?} is no pause", case.no_pause);
    // Nobody has said anything yet that the first pause could rest on.
    for (patch, word) in [(&case.pause, "paused"), (&case.resume, "running")] {
        let is_pause = word == "paused";
        object.flip(patch.clone()).await;
        if let Some((type_, on, off)) = case.says {
            // Longer than the bound: it is the answer that is waited for. Where a resume leaves no condition behind there
            // is an answer that is not one.
            let name = format!("{}.{}", case.toy.kind, case.toy.group);
            object
                .condition("PauseAcknowledged", |c| {
                    c["status"] == "Unknown" && c["message"].as_str().unwrap().contains(&name)
                })
                .await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(
                annotation(&object.get().await, keys::ACKNOWLEDGED),
                Some(keys::PENDING),
                "{patch}"
            );
            match (is_pause, off) {
                (true, _) => object.says(type_, on.0, on.1, "").await,
                (false, Some(off)) => object.says(type_, off.0, off.1, "").await,
                (false, None) => object.status(json!({ "conditions": null })).await,
            }
        }
        let echo = object.acknowledged(word).await;
        if !is_pause {
            assert_eq!(echo.evidence, case.evidence, "{:?} {echo:?}", case.toy);
        }
    }
}

async fn mirror_of(object: &Object, status: &str) -> (DynamicObject, Value) {
    eventually(&format!("Paused of {} is {status}", object.name), async || {
        let object = object.get().await;
        let paused = condition(&object, "Paused")?;
        let is_it = paused["status"] == status && paused["observedGeneration"] == json!(object.metadata.generation);
        is_it.then_some((object, paused))
    })
    .await
}

/// The mirror follows the input, at the object's own generation, also when only the spec is edited.
async fn mirrored(stage: &Stage) {
    let object = stage.create(&FLUX, "mirrored", json!({ "spec": {} })).await;
    let (_, condition) = mirror_of(&object, "False").await;
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (&json!("NotPaused"), &json!(MARK))
    );
    object.says("Ready", "True", "Applied", "").await;
    object.flip(spec("suspend", true)).await;
    let wait = stage.sandbox.kubectl_wait(
        "default",
        "kustomization/mirrored",
        "condition=Paused",
        Duration::from_secs(60),
    );
    assert!(
        wait.await.unwrap().is_some(),
        "kubectl wait --for=condition=Paused is not met"
    );
    let (_, condition) = mirror_of(&object, "True").await;
    assert_eq!(
        (&condition["reason"], &condition["message"]),
        (
            &json!("Paused"),
            &json!(format!("{MARK}: Kustomization spec.suspend is set to true"))
        )
    );
    let since = condition["lastTransitionTime"].clone();
    object.patch(spec("size", 3)).await;
    let (whole, condition) = mirror_of(&object, "True").await;
    assert_eq!(condition["lastTransitionTime"], since);
    assert_eq!(super::condition(&whole, "Ready").unwrap()["status"], "True");
    object.flip(spec("suspend", false)).await;
    mirror_of(&object, "False").await;
}

/// A `Paused` that somebody else wrote, and one of ours that somebody has changed.
async fn left_alone(stage: &Stage) {
    let foreign = stage.create(&FLUX, "foreign", json!({ "spec": {} })).await;
    foreign.says("Paused", "False", "NotPaused", "").await;
    let changed = stage.create(&FLUX, "changed", json!({ "spec": {} })).await;
    mirror_of(&changed, "False").await;
    changed.says("Paused", "True", "Paused", MARK).await;
    // The first one may have been written by us before the other controller came; then it is the other one's all the same.
    for object in [&foreign, &changed] {
        let before = condition(&object.get().await, "Paused").unwrap();
        object.flip(spec("suspend", true)).await;
        object.acknowledged("paused").await;
        object.condition("PauseAcknowledged", |c| c["status"] == "True").await;
        assert_eq!(
            condition(&object.get().await, "Paused").unwrap(),
            before,
            "{}",
            object.name
        );
    }
}

/// What an object inherits is mirrored too, as long as it inherits it.
async fn inherited(stage: &Stage) {
    let fleet = stage.create(&FLEET, "armada", json!({ "spec": {} })).await;
    let labels = |fleet: &str| json!({ "metadata": { "labels": { "sea.example.org/fleet": fleet } }, "spec": {} });
    let ship = stage.create(&SHIP, "nina", labels("armada")).await;
    let raft = stage.create(&RAFT, "kontiki", labels("armada")).await;
    mirror_of(&ship, "False").await;
    fleet.flip(paused(true)).await;
    let (_, condition) = mirror_of(&ship, "True").await;
    assert_eq!(
        condition["message"],
        format!("{MARK}: Fleet spec.paused is set to true")
    );
    assert_eq!(fleet.acknowledged("paused").await.objects, 3);
    ship.patch(labels("another")).await;
    mirror_of(&ship, "False").await;
    ship.patch(labels("armada")).await;
    mirror_of(&ship, "True").await;
    assert_eq!(
        super::conditions(&raft.get().await),
        [Value::Null; 0],
        "its schema would drop a part"
    );
}

/// An uninstall takes the mirrors away, and nobody else's `Paused`.
async fn cleaned(stage: &mut Stage) {
    use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
    let delete = DeleteParams::default();
    let validating: kube::Api<ValidatingWebhookConfiguration> = kube::Api::all(stage.client.clone());
    let mutating: kube::Api<MutatingWebhookConfiguration> = kube::Api::all(stage.client.clone());
    validating.delete(CONFIGURATION, &delete).await.unwrap();
    mutating.delete(CONFIGURATION, &delete).await.unwrap();
    stage.product.stop();
    let said = stage.pausegen(&["cleanup", "--yes"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    let types = async |toy: &Toy, name: &str| -> Vec<String> {
        let object = stage.api(toy).get(name).await.unwrap();
        let types = super::conditions(&object);
        types.iter().map(|c| c["type"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(types(&FLUX, "mirrored").await, ["Ready"]);
    assert_eq!(types(&FLUX, "foreign").await, ["Paused"]);
    assert_eq!(types(&SHIP, "nina").await, [""; 0]);
    assert_eq!(types(&SCALED, "toy").await, ["Paused"]);
}
