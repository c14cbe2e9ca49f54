//! Writes of a real API server: what they get back, what is stored, and who is called.

use std::sync::Arc;

use kube::{
    Client, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use pausegen::{
    admission::Settings,
    protocol::{
        keys::{ACKNOWLEDGED, GENERATION, OBSERVED_GENERATION, PENDING, REASON, STAMP, Stamp, TOUCH},
        stamp::{Policies, Policy},
    },
    rules::Rules,
};
use serde_json::json;

use super::hook::{Hook, Kind, annotation};
use crate::support;

/// A kind of its own for each test: webhooks are the whole cluster's.
struct Stage {
    client: Client,
    rules: Arc<Rules>,
    kind: Kind,
    hook: Hook,
    configuration: String,
}

impl Stage {
    async fn set(group: &str, settings: Settings) -> Self {
        let client = support::plain().await.client().await.unwrap();
        let rules = format!(
            "apiVersion: pausegen.io/v1alpha1\nkind: Rules\nrules:\n- group: {group}\n  kinds: [Gate]\n  inputs:\n  - \
             {{field: spec.paused, match: true}}\n  - {{annotation: example.com/paused, match: present}}\n  \
             attestedBy: none\n"
        );
        let rules = Arc::new(Rules::parse(&rules, "test").unwrap());
        let kind = Kind::define(&client, group, "Gate").await;
        let hook = Hook::start(&rules, settings);
        let configuration = format!("zz-pausegen-{group}");
        hook.install(&client, &configuration, &rules, &kind, "probe").await;
        Self {
            client,
            rules,
            kind,
            hook,
            configuration,
        }
    }

    /// A running object without our keys.
    async fn running(&self, name: &str) -> DynamicObject {
        let object = self.kind.create(name, json!({ "spec": { "size": 1 } })).await;
        assert_eq!(self.hook.paths(), [""; 0]);
        object
    }

    /// Puts somebody else's webhook before or after ours.
    async fn other(&self, prefix: &str, patch: serde_json::Value) -> Hook {
        let other = Hook::patching(patch);
        let name = format!("{prefix}-{}", self.configuration);
        other
            .install_for_all(&self.client, &name, &self.rules, &self.kind, "probe")
            .await;
        self.hook.paths();
        other
    }
}

fn stamp(object: &DynamicObject) -> Stamp {
    serde_json::from_str(annotation(object, STAMP).unwrap()).unwrap()
}

fn paused(on: bool) -> serde_json::Value {
    json!({ "spec": { "paused": on } })
}

#[tokio::test]
async fn the_stamp_is_in_the_very_answer_and_a_dry_run_leaves_nothing() {
    let stage = Stage::set("flips.example.com", Settings::default()).await;
    let before = stage.running("g").await;

    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let tried = stage
        .kind
        .api
        .patch("g", &dry_run, &Patch::Merge(&paused(true)))
        .await
        .unwrap();
    assert_eq!(stage.kind.api.get("g").await.unwrap(), before);
    let flipped = stage.kind.patch("g", paused(true)).await.unwrap();
    assert_eq!(tried.annotations(), flipped.annotations());
    assert_eq!(annotation(&flipped, ACKNOWLEDGED), Some(PENDING));
    assert_eq!(annotation(&flipped, OBSERVED_GENERATION), Some("0"));
    let first = stamp(&flipped);
    assert_eq!(
        (first.generation, first.object_generation),
        (1, flipped.metadata.generation)
    );
    assert_eq!(first.uid, before.uid().unwrap());
    assert_eq!(
        flipped.metadata.generation,
        Some(before.metadata.generation.unwrap() + 1)
    );

    let annotated = json!({ "metadata": { "annotations": { "example.com/paused": "" } } });
    let flipped = stage.kind.patch("g", annotated).await.unwrap();
    assert_eq!(
        (stamp(&flipped).generation, stamp(&flipped).object_generation),
        (2, None)
    );

    let created = stage.kind.create("created", paused(true)).await;
    assert_eq!(
        (stamp(&created).generation, annotation(&created, OBSERVED_GENERATION)),
        (1, None)
    );
    let mut unnamed = stage.kind.object("", paused(true));
    unnamed.metadata.name = None;
    unnamed.metadata.generate_name = Some("gen-".to_owned());
    let created = stage.kind.api.create(&PostParams::default(), &unnamed).await.unwrap();
    assert!(created.name_any().starts_with("gen-"));
    assert_eq!(stamp(&created).generation, 1);
}

#[tokio::test]
async fn other_writes_call_nobody() {
    let stage = Stage::set("quiet.example.com", Settings::default()).await;
    stage.running("g").await;
    stage.kind.patch("g", paused(true)).await.unwrap();
    assert_eq!(stage.hook.paths(), ["/mutate", "/validate"]);
    for patch in [
        json!({ "metadata": { "labels": { "a": "b" } } }),
        json!({ "metadata": { "annotations": { "example.com/other": "x", REASON: "CHG-1" } } }),
        json!({ "spec": { "size": 2 } }),
        json!({ "metadata": { "finalizers": ["example.com/f"] } }),
    ] {
        stage.kind.patch("g", patch).await.unwrap();
    }
    let status = json!({ "status": { "conditions": [] }, "metadata": { "annotations": { GENERATION: "9" } } });
    stage
        .kind
        .api
        .patch_status("g", &PatchParams::default(), &Patch::Merge(&status))
        .await
        .unwrap();
    stage.kind.api.delete("g", &Default::default()).await.unwrap();
    stage
        .kind
        .patch("g", json!({ "metadata": { "finalizers": null } }))
        .await
        .unwrap();
    assert_eq!(stage.hook.paths(), [""; 0]);
}

#[tokio::test]
async fn what_is_put_back_is_no_write() {
    let stage = Stage::set("guard.example.com", Settings::default()).await;
    let bare = stage.running("bare").await;
    stage.running("g").await;
    let stood = stage.kind.patch("g", paused(true)).await.unwrap();
    let forged = json!({ "metadata": { "annotations": { GENERATION: "7", ACKNOWLEDGED: "paused" } } });
    let removed = json!({ "metadata": { "annotations": { GENERATION: null, STAMP: null, ACKNOWLEDGED: "paused" } } });
    for (name, before, patch) in [
        ("bare", &bare, &forged),
        ("g", &stood, &forged),
        ("g", &stood, &removed),
    ] {
        // The first time the API server notes in the managed fields who wanted to write what; from then on there is
        // nothing to store.
        let mut versions = Vec::new();
        for _ in 0..3 {
            let after = stage.kind.patch(name, patch.clone()).await.unwrap();
            assert_eq!(after.metadata.annotations, before.metadata.annotations, "{name}");
            versions.push(after.resource_version());
        }
        assert_eq!(versions[1..], [versions[0].clone(), versions[0].clone()], "{name}");
    }
    // As CAPI copies a MachineDeployment's annotations onto its MachineSets, again and again.
    let copy = stage.kind.object("g", forged);
    let mut versions = Vec::new();
    for _ in 0..3 {
        let parameters = PatchParams::apply("capi").force();
        let after = stage
            .kind
            .api
            .patch("g", &parameters, &Patch::Apply(&copy))
            .await
            .unwrap();
        assert_eq!(after.annotations(), stood.annotations());
        versions.push(after.resource_version());
    }
    assert_eq!(versions[1..], [versions[0].clone(), versions[0].clone()]);
}

#[tokio::test]
async fn a_touch_stamps_again_and_is_gone() {
    let stage = Stage::set("touch.example.com", Settings::default()).await;
    stage.running("g").await;
    stage.kind.patch("g", paused(true)).await.unwrap();
    let touch = json!({ "metadata": { "annotations": { TOUCH: "" } } });
    let touched = stage.kind.patch("g", touch).await.unwrap();
    assert_eq!((stamp(&touched).generation, annotation(&touched, TOUCH)), (3, None));
    assert_eq!(annotation(&touched, OBSERVED_GENERATION), None);
}

#[tokio::test]
async fn a_restore_goes_on_and_a_copy_starts_over() {
    let stage = Stage::set("restore.example.com", Settings::default()).await;
    stage.running("g").await;
    stage.kind.patch("g", paused(true)).await.unwrap();
    let saved = stage.kind.patch("g", paused(false)).await.unwrap();
    let fields = || json!({ "metadata": { "annotations": saved.annotations() }, "spec": { "paused": true } });
    let copy = stage.kind.create("copy", fields()).await;
    assert_eq!((stamp(&copy).generation, &*stamp(&copy).name), (1, "copy"));
    stage.kind.api.delete("g", &Default::default()).await.unwrap();
    let restored = stage.kind.create("g", fields()).await;
    assert_eq!(stamp(&restored).generation, 3);
    assert_eq!(annotation(&restored, ACKNOWLEDGED), Some(PENDING));
    assert_eq!(annotation(&restored, OBSERVED_GENERATION), None);
}

#[tokio::test]
async fn a_denial_says_what_to_do() {
    let settings = Settings {
        policies: Policies {
            hasty: Policy::Off,
            require_reason: Policy::Deny,
        },
        ..Settings::default()
    };
    let stage = Stage::set("strict.example.com", settings).await;
    stage.running("g").await;
    let Err(kube::Error::Api(status)) = stage.kind.patch("g", paused(true)).await else {
        panic!("not denied");
    };
    assert_eq!((status.code, &*status.reason), (403, "Forbidden"));
    assert!(
        status.message.contains("flip.pausegen.io") && status.message.contains(REASON),
        "{}",
        status.message
    );
    let reasoned = json!({ "spec": { "paused": true }, "metadata": { "annotations": { REASON: "CHG-1" } } });
    assert_eq!(stamp(&stage.kind.patch("g", reasoned).await.unwrap()).reason, "CHG-1");
}

#[tokio::test]
async fn another_webhook_after_ours_makes_the_api_server_ask_twice_and_counts_once() {
    let stage = Stage::set("twice.example.com", Settings::default()).await;
    stage.running("g").await;
    let label = json!([{ "op": "add", "path": "/metadata/labels", "value": { "from": "other" } }]);
    let _other = stage.other("zzz", label).await;
    let flipped = stage.kind.patch("g", paused(true)).await.unwrap();
    assert_eq!(stage.hook.paths(), ["/mutate", "/mutate", "/validate"]);
    assert_eq!(stamp(&flipped).generation, 1);
    // A label of its own, so that the other webhook has something to change again.
    let touch = json!({ "metadata": { "annotations": { TOUCH: "" }, "labels": { "mine": "x" } } });
    let touched = stage.kind.patch("g", touch).await.unwrap();
    assert_eq!(stage.hook.paths(), ["/mutate", "/mutate"]);
    assert_eq!((stamp(&touched).generation, annotation(&touched, TOUCH)), (3, None));
    let created = stage.kind.create("created", paused(true)).await;
    assert_eq!(stage.hook.paths(), ["/mutate", "/mutate", "/validate"]);
    assert_eq!(stamp(&created).generation, 1);
}

#[tokio::test]
async fn another_webhook_before_ours_may_pause() {
    let stage = Stage::set("before.example.com", Settings::default()).await;
    stage.running("g").await;
    let pause = json!([{ "op": "add", "path": "/metadata/annotations", "value": { "example.com/paused": "" } }]);
    let _other = stage.other("aa", pause).await;
    let flipped = stage.kind.patch("g", json!({ "spec": { "size": 2 } })).await.unwrap();
    assert_eq!(stamp(&flipped).generation, 1);
    assert_eq!(stage.hook.paths(), ["/mutate", "/validate"]);
}

#[tokio::test]
async fn another_webhook_that_pauses_after_ours_was_skipped_is_noticed() {
    let stage = Stage::set("after.example.com", Settings::default()).await;
    stage.running("g").await;
    let pause = json!([{ "op": "add", "path": "/metadata/annotations", "value": { "example.com/paused": "" } }]);
    let _other = stage.other("zzz", pause).await;
    let Err(kube::Error::Api(status)) = stage.kind.patch("g", json!({ "spec": { "size": 2 } })).await else {
        panic!("not denied");
    };
    assert_eq!(stage.hook.paths(), ["/validate"]);
    assert_eq!(status.code, 403);
    assert!(
        status.message.contains("validate.pausegen.io") && status.message.contains("reinvocationPolicy"),
        "{}",
        status.message
    );
}
