//! `pausegen doctor`: each thing that it looks for, broken in turn.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use pausegen::tls;
use pausegen::tls::material::{Lifetimes, Material};
use serde_json::{Value, json};

use super::{Stage, Toy, paused};
use crate::chart::file;
use crate::support::eventually;

const RULES: &str = r#"
apiVersion: pausegen.io/v1alpha1
kind: Rules
stalenessBound: 2s
rules:
- group: sea.example.org
  kinds: [Ship]
  inputs: [{field: spec.paused, match: true}]
  attestedBy:
  - {name: ship, condition: {type: Paused}}
- group: sea.example.org
  kinds: ["B*"]
  inputs: [{field: spec.paused, match: true}]
  attestedBy: bound
"#;

/// The same, with a Lease that nobody has, a kind that nobody has, and another input.
const OTHER: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
rules:
- group: sea.example.org
  kinds: [Ship, Submarine]
  inputs: [{field: spec.paused, match: true}, {field: spec.anchored, match: true}]
  attestedBy:
  - {name: ship, condition: {type: Paused}, lease: {name: admiral}}
";

fn spec() -> Value {
    json!({ "paused": { "type": "boolean" } })
}

const SHIP: Toy = Toy::new("sea.example.org", "Ship", spec);
const BUOY: Toy = Toy {
    observes: false,
    ..Toy::new("sea.example.org", "Buoy", spec)
};

/// What doctor found.
struct Found {
    code: i32,
    status: String,
    findings: Vec<Value>,
}

impl Found {
    /// There is a finding of a check with this status, and this in its message.
    fn has(&self, check: &str, status: &str, message: &str) -> bool {
        self.findings.iter().any(|finding| {
            finding["check"] == check
                && finding["status"] == status
                && finding["message"].as_str().unwrap().contains(message)
        })
    }

    fn assert_has(&self, check: &str, status: &str, message: &str) {
        assert!(
            self.has(check, status, message),
            "{check} {status} `{message}` is not in {:#?}",
            self.findings
        );
    }
}

async fn doctor(stage: &Stage, rules: &str, args: &[&str]) -> Found {
    let rules = file(rules);
    let args = [
        &["doctor", "-o", "json", "--rules", rules.path().to_str().unwrap()],
        args,
    ]
    .concat();
    let said = stage.pausegen(&args).await;
    let report: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(
        (&report["apiVersion"], &report["kind"]),
        (&json!("pausegen.io/v1alpha1"), &json!("DoctorReport"))
    );
    Found {
        code: said.code.unwrap(),
        status: report["status"].as_str().unwrap().to_owned(),
        findings: report["findings"].as_array().unwrap().clone(),
    }
}

#[tokio::test]
async fn it_finds_what_is_wrong_and_nothing_else() {
    let mut stage = Box::pin(Stage::start(RULES, &[SHIP])).await;
    let client = stage.client.clone();
    let ship = stage.create(&SHIP, "nina", json!({ "spec": {} })).await;
    ship.says("Paused", "False", "NotPaused", "").await;
    // A leader has to be there, and to have looked at what is there.
    let well = eventually("all is well", async || {
        let found = doctor(&stage, RULES, &[]).await;
        (found.code == 0).then_some(found)
    })
    .await;
    assert_eq!(well.status, "note", "a pattern finds nothing yet");
    for (check, message) in [
        ("permissions", "has the "),
        (
            "webhooks",
            "mutatingwebhookconfiguration zz-pausegen is what the rules need",
        ),
        (
            "webhooks",
            "validatingwebhookconfiguration zz-pausegen is what the rules need",
        ),
        ("order", "no other mutating webhook"),
        ("certificates", "caBundle has a CA that is valid until"),
        (
            "reachability",
            "a dry run of a flip of Ship.sea.example.org default/nina was stamped",
        ),
        ("stamps", "1 object(s) are stamped as they are paused"),
        ("leader", "is the companion that acts"),
    ] {
        well.assert_has(check, "ok", message);
    }
    assert_eq!(super::generation(&ship.get().await), 0, "nothing is stored");

    certificates(&stage).await;

    // What the rules say of the cluster.
    let found = doctor(&stage, OTHER, &[]).await;
    assert_eq!(found.code, 2);
    found.assert_has("kinds", "warning", "not installed: Submarine.sea.example.org");
    found.assert_has("kinds", "problem", "has no field spec.anchored");
    found.assert_has("leases", "warning", "there is no Lease admiral");
    found.assert_has(
        "webhooks",
        "problem",
        "flip.pausegen.io (mutating): matchConditions, rules are not what the rules need",
    );

    // Conditions that lose observedGeneration, and controllers that do not answer.
    BUOY.define(&client).await;
    let silent = stage.create(&SHIP, "pinta", json!({ "spec": {} })).await;
    let found = doctor(&stage, RULES, &[]).await;
    assert_eq!(found.code, 1, "{:#?}", found.findings);
    found.assert_has("conditions", "warning", "does not keep observedGeneration");
    found.assert_has("attestation", "note", "1 of 2 object(s) have no condition Paused yet");
    ship.status(json!({ "conditions": [] })).await;
    let found = doctor(&stage, RULES, &["--tolerate-warnings"]).await;
    assert_eq!(found.code, 0);
    found.assert_has(
        "attestation",
        "warning",
        "none of 2 object(s) has the condition Paused of its controller ship",
    );
    drop(silent);

    // Rights of somebody who has none, and of somebody who may not even ask.
    let found = doctor(&stage, RULES, &["--serve-user", "system:serviceaccount:nowhere:nobody"]).await;
    assert_eq!(found.code, 2);
    found.assert_has("permissions", "problem", "may not: ");
    let nobody = stage.sandbox.kubeconfig_for("nobody", &[]).unwrap();
    let said = stage.pausegen_as(&nobody, &["doctor"]).await;
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.contains("cannot read the CustomResourceDefinitions"),
        "{said:?}"
    );

    // A webhook that comes after ours.
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let ours = mutating.get("zz-pausegen").await.unwrap();
    let mut later = ours.clone();
    later.metadata = serde_json::from_value(json!({ "name": "zzz-later" })).unwrap();
    later.webhooks.as_mut().unwrap().truncate(1);
    mutating.create(&PostParams::default(), &later).await.unwrap();
    doctor(&stage, RULES, &[])
        .await
        .assert_has("order", "warning", "zzz-later");
    mutating.delete("zzz-later", &DeleteParams::default()).await.unwrap();

    // A configuration under Ignore, without a CA, and none at all.
    let patch = async |patch: Value| {
        let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
        mutating
            .patch("zz-pausegen", &PatchParams::default(), &Patch::Json::<()>(patch))
            .await
            .unwrap();
    };
    patch(json!([
        { "op": "replace", "path": "/webhooks/0/failurePolicy", "value": "Ignore" },
        { "op": "remove", "path": "/webhooks/1/clientConfig/caBundle" },
    ]))
    .await;
    let found = doctor(&stage, RULES, &[]).await;
    assert_eq!(found.code, 2);
    found.assert_has(
        "webhooks",
        "warning",
        "flip.pausegen.io (mutating) has failurePolicy Ignore",
    );
    found.assert_has(
        "webhooks",
        "problem",
        "keys.pausegen.io (mutating): there is no caBundle",
    );
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let other = validating.get("zz-pausegen").await.unwrap();
    mutating.delete("zz-pausegen", &DeleteParams::default()).await.unwrap();
    validating
        .delete("zz-pausegen", &DeleteParams::default())
        .await
        .unwrap();
    eventually("flips pass unstamped", async || {
        ship.patch(paused(false)).await;
        (super::generation(&ship.patch(paused(true)).await) == 0).then_some(())
    })
    .await;
    let found = doctor(&stage, RULES, &[]).await;
    found.assert_has(
        "webhooks",
        "problem",
        "there is no mutatingwebhookconfiguration zz-pausegen",
    );
    found.assert_has(
        "webhooks",
        "problem",
        "there is no validatingwebhookconfiguration zz-pausegen",
    );
    found.assert_has(
        "stamps",
        "warning",
        "1 object(s) are paused without a stamp: Ship.sea.example.org default/nina",
    );
    found.assert_has("reachability", "problem", "was not stamped");

    // A webhook that cannot be called, and a companion that is not there.
    let bare = |mut configuration: Value| {
        configuration["metadata"] = json!({ "name": "zz-pausegen" });
        configuration
    };
    let ours = serde_json::from_value(bare(serde_json::to_value(ours).unwrap())).unwrap();
    mutating.create(&PostParams::default(), &ours).await.unwrap();
    let other = serde_json::from_value(bare(serde_json::to_value(other).unwrap())).unwrap();
    validating.create(&PostParams::default(), &other).await.unwrap();
    stage.product.stop();
    let leases: Api<Lease> = Api::namespaced(client.clone(), "pausegen-system");
    leases.delete("pausegen", &DeleteParams::default()).await.unwrap();
    let found = eventually("the API server calls the webhook", async || {
        let found = doctor(&stage, RULES, &[]).await;
        found
            .has("reachability", "problem", "the API server cannot call flip.pausegen.io")
            .then_some(found)
    })
    .await;
    found.assert_has("leader", "problem", "there is no Lease pausegen-system/pausegen");
    assert_eq!(found.code, 2);
}

/// A serving certificate that is trusted, one of another CA, one that nobody has renewed, one that has expired; then a CA.
async fn certificates(stage: &Stage) {
    let name = ["127.0.0.1".to_owned()];
    let found = doctor(stage, RULES, &[]).await;
    found.assert_has(
        "certificates",
        "note",
        "there is no Secret pausegen-system/pausegen-tls",
    );
    let secrets: Api<Secret> = Api::namespaced(stage.client.clone(), "pausegen-system");
    let holds = async |certificate: String, key: String| {
        let secret: Secret = serde_json::from_value(json!({
            "metadata": { "name": "serving" }, "type": "kubernetes.io/tls",
            "stringData": { "tls.crt": certificate, "tls.key": key },
        }))
        .unwrap();
        drop(secrets.delete("serving", &DeleteParams::default()).await);
        secrets.create(&PostParams::default(), &secret).await.unwrap();
        doctor(stage, RULES, &["--tls-secret", "serving"]).await
    };
    let file = |name: &str| std::fs::read_to_string(stage.sandbox.folder().join(name)).unwrap();
    let found = holds(file("pausegen.crt"), file("pausegen.key")).await;
    assert_eq!(found.code, 0, "{:#?}", found.findings);
    found.assert_has(
        "certificates",
        "ok",
        "the certificate in the Secret pausegen-system/serving is trusted, and valid until",
    );
    let other = tls::generate(&["127.0.0.1"]).unwrap();
    let found = holds(other.cert_pem, other.key_pem).await;
    assert_eq!(found.code, 2);
    found.assert_has(
        "certificates",
        "problem",
        "the API server does not trust our certificate for flip.pausegen.io",
    );

    // Made some days ago, for a life of ten, by a CA that is published.
    let day = Duration::from_secs(86_400);
    let lifetimes = Lifetimes {
        ca: 20 * day,
        serving: 10 * day,
    };
    let ago = |days: u32| Material::new(&name, &lifetimes, Timestamp::now() - days * day).unwrap();
    let published = async |material: &Material| {
        let before = stage.publish(material.ca.certificate.as_bytes()).await;
        let serving = material.serving.clone();
        let found = holds(serving.certificate, serving.key).await;
        stage.publish(&before).await;
        found
    };
    let found = published(&ago(9)).await;
    found.assert_has("certificates", "warning", "the last CA in caBundle expires at");
    found.assert_has("certificates", "warning", "should have been replaced by now");
    let found = published(&ago(11)).await;
    found.assert_has(
        "certificates",
        "problem",
        "the certificate in the Secret pausegen-system/serving has expired at",
    );
    let found = published(&ago(21)).await;
    found.assert_has(
        "certificates",
        "problem",
        "flip.pausegen.io: every CA in caBundle has expired",
    );
    assert_eq!(found.code, 2);
}

impl Stage {
    /// Publishes a CA. Returns what was published before.
    async fn publish(&self, pem: &[u8]) -> Vec<u8> {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(self.client.clone());
        let mut ours = mutating.get("zz-pausegen").await.unwrap();
        let mut others = validating.get("zz-pausegen").await.unwrap();
        let mut before = Vec::new();
        for webhook in ours.webhooks.iter_mut().flatten() {
            let bundle = webhook.client_config.ca_bundle.replace(ByteString(pem.to_vec()));
            before = bundle.unwrap().0;
        }
        for webhook in others.webhooks.iter_mut().flatten() {
            webhook.client_config.ca_bundle = Some(ByteString(pem.to_vec()));
        }
        let post = PostParams::default();
        mutating.replace("zz-pausegen", &post, &ours).await.unwrap();
        validating.replace("zz-pausegen", &post, &others).await.unwrap();
        before
    }
}
