//! The webhook in this process, with a record of every call, and kinds of its own to be called for.

use std::{
    net::TcpListener,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    extract::{Request, State},
    http::header::CONTENT_TYPE,
    middleware::{self, Next},
    response::Response,
    routing::post,
};
use k8s_openapi::{
    api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DynamicObject, GetParams, Patch, PatchParams, PostParams},
    discovery::ApiResource,
};
use pausegen::{
    admission::{
        self, Settings,
        metrics::Metrics,
        ops::Ops,
        router,
        server::{Drain, serve_tls},
    },
    protocol::keys::TOUCH,
    rules::{
        Rules,
        live::Live,
        manifests::{Endpoint, Target, webhooks},
    },
    tls::{self, Certificate},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::support;

/// The only time that the webhook's clock shows.
pub(super) const NOW: &str = "2026-01-01T12:00:00Z";

/// A running webhook. It ends when this is dropped.
pub(crate) struct Hook {
    calls: Arc<Mutex<Vec<String>>>,
    target: Target,
    _stop: DropGuard,
}

impl Hook {
    /// Starts the webhook.
    pub(super) fn start(rules: &Arc<Rules>, settings: Settings) -> Self {
        Self::with_clock(rules, settings, Arc::new(|| NOW.parse().unwrap()))
    }

    /// Starts the webhook with the real clock.
    pub(crate) fn start_now(rules: &Arc<Rules>, settings: Settings) -> Self {
        Self::with_clock(rules, settings, Arc::new(jiff::Timestamp::now))
    }

    fn with_clock(rules: &Arc<Rules>, settings: Settings, clock: admission::Clock) -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        Self::serve(router(admission::State {
            rules: Live::fixed(Arc::clone(rules)),
            settings: Arc::new(settings),
            clock,
            metrics,
            ops: Ops::new(registry),
        }))
    }

    /// Starts somebody else's webhook, which patches every object alike.
    pub(crate) fn patching(patch: Value) -> Self {
        let answer = move |body: Bytes| {
            let patch = k8s_openapi::ByteString(patch.to_string().into_bytes());
            async move {
                let review: Value = serde_json::from_slice(&body).unwrap();
                let response = json!({
                    "uid": review["request"]["uid"], "allowed": true, "patchType": "JSONPatch", "patch": patch,
                });
                let review =
                    json!({ "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response });
                ([(CONTENT_TYPE, "application/json")], review.to_string())
            }
        };
        Self::serve(Router::new().route("/mutate", post(answer)))
    }

    fn serve(router: Router) -> Self {
        // Without it rustls does not know whose cryptography to use; an error means that another test was faster.
        drop(rustls::crypto::ring::default_provider().install_default());
        let calls = Arc::default();
        let router = router.layer(middleware::from_fn_with_state(Arc::clone(&calls), record));
        let made = tls::generate(&["127.0.0.1"]).unwrap();
        let certificate = Certificate::from_pem(made.cert_pem.as_bytes(), made.key_pem.as_bytes()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut target = Target::new(Endpoint::Url(format!("https://{}", listener.local_addr().unwrap())));
        target.ca_bundle = Some(made.ca_pem.into_bytes());
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        tokio::spawn(async move {
            let drain = Drain { limit: Duration::ZERO };
            serve_tls(listener, &certificate, router, drain, stopped).await.unwrap();
        });
        Self {
            calls,
            target,
            _stop: stop.drop_guard(),
        }
    }

    /// The paths of the calls since the last time this was asked.
    pub(crate) fn paths(&self) -> Vec<String> {
        std::mem::take(&mut *self.calls.lock().unwrap())
    }

    /// Where it is.
    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    /// Registers it for the kinds of the rules and waits until the API server calls it for `canary`.
    pub(super) async fn install(&self, client: &Client, name: &str, rules: &Rules, canary: &Kind, object: &str) {
        let (mut mutating, mut validating) = webhooks(rules, &self.target);
        mutating.metadata.name = Some(name.to_owned());
        validating.metadata.name = Some(name.to_owned());
        self.register(client, &mutating, Some(&validating)).await;
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let touch = json!({ "metadata": { "annotations": { TOUCH: "" } } });
        support::eventually("the webhook is called", async || {
            canary.api.patch(object, &dry_run, &Patch::Merge(&touch)).await.unwrap();
            (!self.paths().is_empty()).then_some(())
        })
        .await;
    }

    /// Registers it as a mutating webhook that is called for everything of these kinds, and waits for its first call.
    pub(super) async fn install_for_all(
        &self,
        client: &Client,
        name: &str,
        rules: &Rules,
        canary: &Kind,
        object: &str,
    ) {
        let (mut mutating, _) = webhooks(rules, &self.target);
        mutating.metadata.name = Some(name.to_owned());
        let mut webhook = mutating.webhooks.take().unwrap().remove(0);
        webhook.name = "other.example.com".to_owned();
        webhook.match_conditions = None;
        webhook.reinvocation_policy = Some("Never".to_owned());
        mutating.webhooks = Some(vec![webhook]);
        self.register(client, &mutating, None).await;
        let dry_run = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let label = json!({ "metadata": { "labels": { "canary": name } } });
        support::eventually("the other webhook is called", async || {
            drop(canary.api.patch(object, &dry_run, &Patch::Merge(&label)).await);
            (!self.paths().is_empty()).then_some(())
        })
        .await;
    }

    async fn register(
        &self,
        client: &Client,
        mutating: &MutatingWebhookConfiguration,
        validating: Option<&ValidatingWebhookConfiguration>,
    ) {
        if let Some(validating) = validating {
            Api::all(client.clone())
                .create(&PostParams::default(), validating)
                .await
                .unwrap();
        }
        Api::all(client.clone())
            .create(&PostParams::default(), mutating)
            .await
            .unwrap();
    }
}

async fn record(State(calls): State<Arc<Mutex<Vec<String>>>>, request: Request, next: Next) -> Response {
    calls.lock().unwrap().push(request.uri().path().to_owned());
    next.run(request).await
}

/// A kind whose schema lets everything pass.
pub(super) struct Kind {
    pub(super) api: Api<DynamicObject>,
    pub(super) name: String,
    pub(super) api_version: String,
}

impl Kind {
    /// Makes the kind, with a status subresource.
    pub(super) async fn define(client: &Client, group: &str, name: &str) -> Self {
        let plural = format!("{}s", name.to_ascii_lowercase());
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition: CustomResourceDefinition = serde_json::from_value(json!({
            "metadata": { "name": format!("{plural}.{group}") },
            "spec": {
                "group": group, "scope": "Namespaced",
                "names": { "kind": name, "plural": plural, "singular": name.to_ascii_lowercase() },
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": schema },
                }],
            },
        }))
        .unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
        let resource = ApiResource {
            group: group.to_owned(),
            version: "v1".to_owned(),
            api_version: format!("{group}/v1"),
            kind: name.to_owned(),
            plural,
        };
        let kind = Self {
            api: Api::namespaced_with(client.clone(), "default", &resource),
            name: name.to_owned(),
            api_version: resource.api_version,
        };
        let probe = kind.object("probe", json!({}));
        support::eventually("the kind is served", async || {
            kind.api.create(&PostParams::default(), &probe).await.ok()
        })
        .await;
        kind
    }

    /// An object of the kind.
    pub(super) fn object(&self, name: &str, mut fields: Value) -> DynamicObject {
        fields["apiVersion"] = json!(self.api_version);
        fields["kind"] = json!(self.name);
        if fields["metadata"].is_null() {
            fields["metadata"] = json!({});
        }
        fields["metadata"]["name"] = json!(name);
        serde_json::from_value(fields).unwrap()
    }

    pub(super) async fn create(&self, name: &str, fields: Value) -> DynamicObject {
        let created = self
            .api
            .create(&PostParams::default(), &self.object(name, fields))
            .await
            .unwrap();
        self.cached(&created).await;
        created
    }

    /// A merge patch.
    pub(super) async fn patch(&self, name: &str, patch: Value) -> kube::Result<DynamicObject> {
        let patched = self
            .api
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        self.cached(&patched).await;
        Ok(patched)
    }

    /// Waits until the API server's cache has a write. The next write would else be tried on the object as it was before,
    /// in vain, and each try calls the webhooks.
    async fn cached(&self, written: &DynamicObject) {
        let as_new = GetParams::at(&written.resource_version().unwrap());
        match self.api.get_with(&written.name_any(), &as_new).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.is_not_found() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The value of one of an object's annotations.
pub(super) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.annotations().get(key).map(String::as_str)
}
