//! `pausegen unacknowledge` and `pausegen cleanup`.

use std::process::Command;

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use pausegen::protocol::keys::{ACKNOWLEDGED, Evidence, OBSERVED_GENERATION, PENDING, PREFIX, REASON, TOUCH};
use pausegen::rules::manifests::CONFIGURATION;
use serde_json::json;

use super::{Object, Stage, Toy, annotation, condition, generation, paused};
use crate::support::{self, eventually};

const FLEET: Toy = Toy::new(
    "hands.example.org",
    "Fleet",
    || json!({ "paused": { "type": "boolean" } }),
);

const RULES: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
stalenessBound: 2s
grace: 2s
rules:
- group: hands.example.org
  kinds: [Fleet]
  inputs:
  - field: spec.paused
    match: true
  attestedBy:
  - name: fleet
    condition:
      type: Paused
";

#[tokio::test]
async fn what_was_acknowledged_can_be_taken_back_and_everything_be_removed() {
    let stage = Stage::start(RULES, &[FLEET]).await;
    let mut fleets = Vec::new();
    for name in ["one", "two"] {
        let fleet = stage.create(&FLEET, name, json!({ "spec": {} })).await;
        let reasoned = json!({ "spec": { "paused": true }, "metadata": { "annotations": { REASON: "CHG-1" } } });
        fleet.flip(reasoned).await;
        fleet.says("Paused", "True", "Paused", "").await;
        fleet.acknowledged("paused").await;
        fleet.condition("PauseAcknowledged", |c| c["status"] == "True").await;
        fleets.push(fleet);
    }
    let bare = stage.create(&FLEET, "bare", json!({ "spec": {} })).await;
    Box::pin(refusals(&stage, &fleets)).await;
    Box::pin(unacknowledge(&stage, &fleets, &bare)).await;
    Box::pin(unanswered(&stage, &fleets)).await;
    Box::pin(cleanup(&stage, &fleets)).await;
}

/// Nobody is asked, nothing is found: nothing is done, and it says why.
async fn refusals(stage: &Stage, fleets: &[Object]) {
    let before = fleets[0].get().await;
    for args in [
        &["unacknowledge", "fleet/one"][..],
        &["unacknowledge", "--all"],
        &["cleanup"],
    ] {
        let said = stage.pausegen(args).await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(
            said.err.contains("no terminal") && said.err.contains("--yes"),
            "{said:?}"
        );
    }
    for (object, expected) in [
        ("fleet/three", "there is no Fleet.hands.example.org default/three"),
        (
            "ship/one",
            "no kind that a rule is for is called `ship`; there is: fleets.hands.example.org",
        ),
        ("fleet", "write KIND/NAME"),
    ] {
        let said = stage
            .pausegen(&["unacknowledge", "--yes", object, "--rules", &rules(stage)])
            .await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(said.err.contains(expected), "{said:?}");
    }
    let said = stage.pausegen(&["cleanup", "--yes"]).await;
    assert_eq!(said.code, Some(1), "{said:?}");
    for remedy in ["mutatingwebhookconfiguration", "validatingwebhookconfiguration"] {
        assert!(
            said.err.contains(&format!("kubectl delete {remedy} {CONFIGURATION}")),
            "{said:?}"
        );
    }
    assert_eq!(fleets[0].get().await, before);
}

fn rules(stage: &Stage) -> String {
    stage.sandbox.folder().join("rules.yaml").display().to_string()
}

/// One object, by somebody who may write it and nothing else; then all.
async fn unacknowledge(stage: &Stage, fleets: &[Object], bare: &Object) {
    let nobody = writer_of_fleets(stage).await;
    let rules = rules(stage);
    let run = async |args: &[&str]| {
        let args: Vec<&str> = ["unacknowledge", "--rules", &rules]
            .iter()
            .chain(args)
            .copied()
            .collect();
        stage.pausegen_as(&nobody, &args).await
    };
    let before = fleets[0].get().await;
    let said = run(&["--dry-run", "fleet/one"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out
            .contains("Fleet.hands.example.org default/one: generation 1 -> 3, pending (dry run)"),
        "{said:?}"
    );
    assert_eq!(fleets[0].get().await, before);

    let said = run(&["--yes", "fleet/one", "Fleets.hands.example.org/one"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out.contains("generation 1, acknowledged: paused"),
        "the plan: {said:?}"
    );
    assert!(
        said.out.contains("generation 1 -> 3, pending\n1 of 1 are pending."),
        "{said:?}"
    );
    let object = fleets[0].get().await;
    assert_eq!((generation(&object), annotation(&object, TOUCH)), (3, None));
    // The companion may have been faster; until then it is pending, without a history.
    if annotation(&object, ACKNOWLEDGED) == Some(PENDING) {
        assert_eq!(annotation(&object, OBSERVED_GENERATION), None);
    }
    assert_eq!(fleets[0].acknowledged("paused").await.evidence, Evidence::Settled);

    let said = run(&["--yes", "fleet/bare"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.err.contains("was never flipped") && said.out.contains("Nothing to do"),
        "{said:?}"
    );
    assert_eq!(generation(&bare.get().await), 0);

    let said = run(&["--yes", "--all", "-n", "default"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("2 of 2 are pending."), "{said:?}");
    let said = run(&["--yes", "--all", "-n", "elsewhere"]).await;
    assert!(
        said.code != Some(0) && said.err.contains("cannot list fleets.hands.example.org"),
        "{said:?}"
    );
    for (fleet, expected) in fleets.iter().zip([5, 3]) {
        assert_eq!(generation(&fleet.get().await), expected);
        fleet.acknowledged("paused").await;
    }

    let (code, shown) = on_a_terminal(stage, &["unacknowledge", "--rules", &rules, "fleet/two"], "n\n");
    assert!(
        code == Some(1) && shown.contains("Make 1 object(s) pending? [y/N]"),
        "{shown}"
    );
    assert!(shown.contains("Nothing was changed."), "{shown}");
    assert_eq!(generation(&fleets[1].get().await), 3);
    let (code, shown) = on_a_terminal(stage, &["unacknowledge", "--rules", &rules, "fleet/two"], "y\n");
    assert_eq!(code, Some(0), "{shown}");
    assert_eq!(generation(&fleets[1].get().await), 5);
    fleets[1].acknowledged("paused").await;
}

/// A kubeconfig of somebody with the least rights that do.
async fn writer_of_fleets(stage: &Stage) -> std::path::PathBuf {
    let role: Role = serde_json::from_value(json!({
        "metadata": { "name": "fleets" },
        "rules": [{ "apiGroups": ["hands.example.org"], "resources": ["fleets"], "verbs": ["get", "list", "patch"] }],
    }))
    .unwrap();
    let binding: RoleBinding = serde_json::from_value(json!({
        "metadata": { "name": "fleets" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "fleets" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "nobody" }],
    }))
    .unwrap();
    let post = PostParams::default();
    Api::namespaced(stage.client.clone(), "default")
        .create(&post, &role)
        .await
        .unwrap();
    Api::namespaced(stage.client.clone(), "default")
        .create(&post, &binding)
        .await
        .unwrap();
    stage.sandbox.kubeconfig_for("nobody", &[]).unwrap()
}

/// Runs `pausegen` on a terminal of its own and types an answer.
fn on_a_terminal(stage: &Stage, args: &[&str], typed: &str) -> (Option<i32>, String) {
    let mut command = Command::new(support::EXE);
    command.args(args).arg("--kubeconfig").arg(stage.sandbox.kubeconfig());
    support::on_a_terminal(command, typed, 120)
}

/// The webhooks are gone: it says so, and leaves nothing behind.
async fn unanswered(stage: &Stage, fleets: &[Object]) {
    let delete = DeleteParams::default();
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(stage.client.clone());
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(stage.client.clone());
    validating.delete(CONFIGURATION, &delete).await.unwrap();
    mutating.delete(CONFIGURATION, &delete).await.unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let touch = json!({ "metadata": { "annotations": { TOUCH: "" } } });
    // The API server learns of it a moment later.
    eventually("no webhook is called", async || {
        let answer = fleets[0]
            .api
            .patch("one", &dry_run, &Patch::Merge(&touch))
            .await
            .unwrap();
        annotation(&answer, TOUCH).map(drop)
    })
    .await;
    let before = generation(&fleets[0].get().await);
    for flag in ["--dry-run", "--yes"] {
        let said = stage
            .pausegen(&["unacknowledge", flag, "--all", "--rules", &rules(stage)])
            .await;
        assert_eq!(said.code, Some(1), "{said:?}");
        assert!(
            said.err.contains("no webhook answered, and nothing was changed"),
            "{said:?}"
        );
        for fleet in fleets {
            let object = fleet.get().await;
            assert_eq!(
                (generation(&object), annotation(&object, TOUCH)),
                (generation(&object), None)
            );
        }
    }
    assert_eq!(generation(&fleets[0].get().await), before);
}

/// Everything of ours goes, nothing else does, and the companion that still runs does not put it back.
async fn cleanup(stage: &Stage, fleets: &[Object]) {
    fleets[0]
        .patch(json!({ "metadata": { "annotations": { "example.org/note": "stays" } } }))
        .await;
    let before = fleets[0].get().await;
    let said = stage.pausegen(&["cleanup", "--dry-run"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        said.out
            .contains("2 conditions of ours on 2 object(s) (2 fleets.hands.example.org)"),
        "{said:?}"
    );
    assert!(said.out.contains("Fleet.hands.example.org default/two"), "{said:?}");
    assert_eq!(fleets[0].get().await, before);

    let said = stage.pausegen(&["cleanup", "--yes"]).await;
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("Nothing of pausegen's is left."), "{said:?}");
    for fleet in fleets {
        let object = fleet.get().await;
        let annotations = object.metadata.annotations.clone().unwrap_or_default();
        assert!(
            annotations.keys().all(|key| !key.starts_with(PREFIX)),
            "{annotations:?}"
        );
        assert_eq!(condition(&object, "PauseAcknowledged"), None);
        assert_eq!(condition(&object, "Paused").unwrap()["status"], "True");
        assert_eq!(object.data["spec"], paused(true)["spec"]);
    }
    assert_eq!(annotation(&fleets[0].get().await, "example.org/note"), Some("stays"));
    let said = stage.pausegen(&["cleanup", "--yes"]).await;
    assert!(said.code == Some(0) && said.out.contains("Nothing to do"), "{said:?}");
    assert!(stage.product.admission().ended().is_none());
}
