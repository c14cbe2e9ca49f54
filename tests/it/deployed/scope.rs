//! A scope that changes while a flip is pending: objects come, go and change sides, and so do kinds.

use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use pausegen::protocol::keys;
use serde_json::{Value, json};

use super::{Object, Stage, Toy, annotation, condition, generation, paused};
use crate::support::eventually;

const FLEET: Toy = Toy::new(
    "scope.example.org",
    "Fleet",
    || json!({ "paused": { "type": "boolean" } }),
);
const SHIP: Toy = Toy::new("scope.example.org", "Ship", || json!({}));
/// Its CRD comes and goes.
const BOAT: Toy = Toy::new("scope.example.org", "Boat", || json!({}));

const RULES: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
stalenessBound: 2s
grace: 2s
rules:
- group: scope.example.org
  kinds: [Fleet]
  inputs:
  - {field: spec.paused, match: true, inherited: true}
  members: {label: scope.example.org/fleet, ownerChain: true}
  attestedBy:
  - {name: fleet, condition: {type: Paused}}
- group: scope.example.org
  kinds: [Ship, Boat]
  inherits: true
  managedElsewhere: scope.example.org/managed-by
  attestedBy:
  - {name: ship, condition: {type: Paused}}
";

/// Longer than bound and grace: what is not there by then is not coming.
const LONG: Duration = Duration::from_secs(4);

#[tokio::test]
async fn whoever_is_concerned_when_it_is_acknowledged_has_answered() {
    let stage = Stage::start(RULES, &[FLEET, SHIP]).await;
    // Each on a Fleet of its own, side by side: they only wait.
    tokio::join!(
        Box::pin(members_come_and_go(&stage)),
        Box::pin(a_resume_waits_for_those_who_were_there(&stage)),
        Box::pin(stuck_in_deletion(&stage)),
        Box::pin(left_out_and_silent(&stage)),
        Box::pin(a_kind_comes_and_goes(&stage)),
    );
    // It changes the kind of all Fleets.
    Box::pin(a_kind_loses_its_condition(&stage)).await;
}

/// A Fleet and its first Ships.
struct Armada<'a> {
    stage: &'a Stage,
    fleet: Object,
}

impl<'a> Armada<'a> {
    async fn new(stage: &'a Stage, name: &str) -> Self {
        let fleet = stage.create(&FLEET, name, json!({ "spec": {} })).await;
        answers(&fleet, false).await;
        Self { stage, fleet }
    }

    fn label(&self) -> Value {
        json!({ "metadata": { "labels": { "scope.example.org/fleet": self.fleet.name } } })
    }

    async fn member(&self, toy: &Toy, name: &str) -> Object {
        self.stage
            .create(toy, &format!("{}-{name}", self.fleet.name), self.label())
            .await
    }

    async fn ship(&self, name: &str) -> Object {
        self.member(&SHIP, name).await
    }

    /// Pauses or resumes, with the Fleet's own controller quick to answer, and waits until the companion says that it
    /// waits: it has looked by then.
    async fn flip(&self, on: bool, waits_for: &Object) {
        self.fleet.flip(paused(on)).await;
        answers(&self.fleet, on).await;
        self.waits_for(waits_for).await;
    }

    /// The companion has looked at the flip that stands, not at one before it, and waits for this one.
    async fn waits_for(&self, object: &Object) {
        let begins = format!("pause generation {} waits for ", generation(&self.fleet.get().await));
        let is_right = |c: &Value| {
            let message = c["message"].as_str().unwrap();
            c["status"] == "Unknown" && message.starts_with(&begins) && message.contains(&object.name)
        };
        self.fleet.condition("PauseAcknowledged", is_right).await;
    }

    async fn still_pending(&self) {
        tokio::time::sleep(LONG).await;
        let fleet = self.fleet.get().await;
        assert_eq!(
            annotation(&fleet, keys::ACKNOWLEDGED),
            Some(keys::PENDING),
            "{}",
            self.fleet.name
        );
    }
}

/// A controller answers what is asked.
async fn answers(object: &Object, on: bool) {
    let (status, reason) = if on { ("True", "Paused") } else { ("False", "NotPaused") };
    object.says("Paused", status, reason, "").await;
}

async fn delete(object: &Object) {
    object.api.delete(&object.name, &DeleteParams::default()).await.unwrap();
}

/// During a pending pause one is created, one deleted, one adopted, one relabelled away.
async fn members_come_and_go(stage: &Stage) {
    let armada = Armada::new(stage, "traffic").await;
    let (stays, goes, leaves) = tokio::join!(armada.ship("stays"), armada.ship("goes"), armada.ship("leaves"));
    let adopted = stage.create(&SHIP, "traffic-adopted", json!({})).await;
    armada.flip(true, &goes).await;
    let created = armada.ship("created").await;
    answers(&created, false).await;
    delete(&goes).await;
    leaves.patch(json!({ "metadata": { "labels": null } })).await;
    let fleet = armada.fleet.get().await;
    adopted
        .patch(json!({ "metadata": { "ownerReferences": [{
            "apiVersion": "scope.example.org/v1", "kind": "Fleet", "name": fleet.metadata.name, "uid": fleet.metadata.uid,
        }] } }))
        .await;
    answers(&stays, true).await;
    armada.still_pending().await;
    answers(&created, true).await;
    armada.still_pending().await;
    answers(&adopted, true).await;
    let echo = armada.fleet.acknowledged("paused").await;
    assert_eq!(
        echo.objects, 4,
        "the Fleet, and who stayed, was created and adopted: {echo:?}"
    );
}

/// A resume lets controllers create objects; these do not delay its own acknowledgement.
async fn a_resume_waits_for_those_who_were_there(stage: &Stage) {
    let armada = Armada::new(stage, "resume").await;
    let (one, other) = tokio::join!(armada.ship("one"), armada.ship("other"));
    armada.flip(true, &one).await;
    answers(&one, true).await;
    answers(&other, true).await;
    armada.fleet.acknowledged("paused").await;
    armada.flip(false, &one).await;
    let late = armada.ship("late").await;
    answers(&one, false).await;
    armada.still_pending().await;
    delete(&other).await;
    let echo = armada.fleet.acknowledged("running").await;
    assert_eq!(echo.objects, 2, "{echo:?}");
    assert_eq!(condition(&late.get().await, "Paused"), None);
}

/// An object that waits for a finalizer has a controller that may act on it.
async fn stuck_in_deletion(stage: &Stage) {
    let armada = Armada::new(stage, "stuck").await;
    let fields = json!({ "metadata": {
        "labels": { "scope.example.org/fleet": "stuck" }, "finalizers": ["example.org/wait"],
    } });
    let (waits, ends) = tokio::join!(
        stage.create(&SHIP, "stuck-waits", fields.clone()),
        stage.create(&SHIP, "stuck-ends", fields)
    );
    delete(&waits).await;
    delete(&ends).await;
    armada.flip(true, &waits).await;
    answers(&waits, true).await;
    armada.still_pending().await;
    ends.patch(json!({ "metadata": { "finalizers": null } })).await;
    let echo = armada.fleet.acknowledged("paused").await;
    assert_eq!(echo.objects, 2, "{echo:?}");
    waits.patch(json!({ "metadata": { "finalizers": null } })).await;
}

/// Managed elsewhere: left out, by name. Silent: named, with the remedy, and waited for.
async fn left_out_and_silent(stage: &Stage) {
    let armada = Armada::new(stage, "left-out").await;
    let elsewhere = armada.ship("elsewhere").await;
    let managed = json!({ "metadata": { "annotations": { "scope.example.org/managed-by": "terraform" } } });
    elsewhere.patch(managed).await;
    // Its controller has to know that first.
    tokio::time::sleep(LONG).await;
    let silent = armada.ship("silent").await;
    armada.flip(true, &silent).await;
    let is_right = |c: &Value| c["reason"] == "NotReporting";
    let waiting = armada.fleet.condition("PauseAcknowledged", is_right).await;
    let message = waiting["message"].as_str().unwrap();
    assert!(
        message.contains("left-out-silent") && message.contains("attestedBy: none"),
        "{message}"
    );
    assert!(
        message.contains("Not asked: ") && message.contains("left-out-elsewhere"),
        "{message}"
    );
    armada.still_pending().await;
    answers(&silent, true).await;
    let echo = armada.fleet.acknowledged("paused").await;
    assert!(
        echo.excluded.iter().any(|what| what.contains("left-out-elsewhere")),
        "{echo:?}"
    );
}

/// A CRD is installed during a pending flip, and removed during the next one.
async fn a_kind_comes_and_goes(stage: &Stage) {
    let armada = Armada::new(stage, "kinds").await;
    let ship = armada.ship("ship").await;
    armada.flip(true, &ship).await;
    BOAT.define(&stage.client).await;
    let boat = armada.member(&BOAT, "boat").await;
    answers(&ship, true).await;
    armada.still_pending().await;
    answers(&boat, true).await;
    assert_eq!(armada.fleet.acknowledged("paused").await.objects, 3);

    armada.flip(false, &boat).await;
    answers(&ship, false).await;
    armada.still_pending().await;
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let name = BOAT.definition().metadata.name.unwrap();
    definitions.delete(&name, &DeleteParams::default()).await.unwrap();
    assert_eq!(armada.fleet.acknowledged("running").await.objects, 2);
}

/// The CRD changes: its conditions do not keep `observedGeneration` any more. A condition that nobody can keep up to date
/// would satisfy waits for ever, so it goes; the annotations go on. With the field it comes back.
async fn a_kind_loses_its_condition(stage: &Stage) {
    let armada = Armada::new(stage, "schema").await;
    armada.fleet.flip(paused(true)).await;
    answers(&armada.fleet, true).await;
    armada.fleet.acknowledged("paused").await;
    armada
        .fleet
        .condition("PauseAcknowledged", |c| c["status"] == "True")
        .await;

    let poorer = Toy {
        observes: false,
        ..FLEET
    };
    change(stage, &poorer).await;
    eventually("our condition is gone", async || {
        condition(&armada.fleet.get().await, "PauseAcknowledged")
            .is_none()
            .then_some(())
    })
    .await;
    armada.fleet.flip(paused(false)).await;
    answers(&armada.fleet, false).await;
    armada.fleet.acknowledged("running").await;
    assert_eq!(condition(&armada.fleet.get().await, "PauseAcknowledged"), None);

    change(stage, &FLEET).await;
    armada
        .fleet
        .condition("PauseAcknowledged", |c| c["status"] == "False")
        .await;
}

async fn change(stage: &Stage, toy: &Toy) {
    let definitions: Api<CustomResourceDefinition> = Api::all(stage.client.clone());
    let wanted = toy.definition();
    let versions = json!({ "spec": { "versions": wanted.spec.versions } });
    let name = wanted.metadata.name.unwrap();
    definitions
        .patch(&name, &PatchParams::default(), &Patch::Merge(versions))
        .await
        .unwrap();
}
