//! The chart, installed by Helm on a real API server: what it renders is accepted as it is, and the program runs as the
//! rendered Deployment says, under the rendered ServiceAccount and its rights, called through the rendered Service.
//!
//! There is no kubelet: the test starts the container's process itself, as its Pod would.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authentication::v1::TokenRequest;
use k8s_openapi::api::core::v1::{ConfigMap, PodSpec, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use pausegen::protocol::keys;
use pausegen::sandbox::Sandbox;
use serde_json::{Value, json};

use super::{Object, Toy, annotation, generation, paused};
use crate::chart::{self, NAMESPACE, file};
use crate::support::{self, eventually};

const USER: &str = "system:serviceaccount:pausegen-system:pausegen";
const GROUP: &str = "sea.example.org";

/// One kind is named, one only inherits, one is found by a pattern.
const RULES: &str = r#"
apiVersion: pausegen.io/v1alpha1
kind: Rules
stalenessBound: 2s
grace: 2s
rules:
- group: sea.example.org
  kinds: [Fleet]
  inputs:
  - {field: spec.paused, match: true, inherited: true}
  members: {label: sea.example.org/fleet}
  attestedBy:
  - name: fleet
    condition: {type: Paused, messages: [{own: spec.paused, endsWith: fleet}]}
    lease: {name: admiral}
- group: sea.example.org
  kinds: [Crew]
  inherits: true
  attestedBy:
  - name: crew
    condition: {type: Paused, messages: [{inherited: spec.paused, endsWith: fleet}]}
- group: sea.example.org
  kinds: ["*"]
  inherits: true
  inputs:
  - {annotation: sea.example.org/paused, match: present}
  attestedBy:
  - name: ship
    condition:
      type: Paused
      messages:
      - {inherited: spec.paused, endsWith: fleet}
      - {own: sea.example.org/paused, endsWith: annotation}
"#;

fn spec() -> Value {
    json!({ "paused": { "type": "boolean" } })
}

const FLEET: Toy = Toy::new(GROUP, "Fleet", spec);
const CREW: Toy = Toy::new(GROUP, "Crew", spec);
const SHIP: Toy = Toy::new(GROUP, "Ship", spec);

/// Values under which everything that the chart can render is rendered.
const EVERYTHING: [&str; 4] = [
    "metrics.serviceMonitor.enabled=true,metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true",
    "certificates.source=cert-manager,certificates.clientCA.configMapName=client-ca,cleanup.onUninstall=true",
    "networkPolicy.egress.enabled=true,policies.exemptUsers={it's me:you}",
    "priorityClassName=system-cluster-critical,podLabels.a=b,podAnnotations.c=d,nodeSelector.e=f",
];

/// The API server takes every object, knows every field of it, and defaults nothing of the webhook configurations.
async fn takes(sandbox: &Sandbox, what: &str, objects: &[Value]) {
    let list = file(&json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string());
    let path = list.path().to_str().unwrap();
    let args = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "--force-conflicts",
        "-o",
        "json",
        "-f",
    ];
    let output = sandbox.kubectl(args.into_iter().chain([path])).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("Warning"), "{what}: {said}");
    let stored: Value = serde_json::from_slice(&output.stdout).unwrap();
    let stored = stored["items"].as_array().unwrap();
    assert_eq!(stored.len(), objects.len(), "{what}");
    for (stored, object) in stored.iter().zip(objects) {
        if object["kind"].as_str().unwrap().ends_with("WebhookConfiguration") {
            assert_eq!(stored["webhooks"], object["webhooks"], "{what}");
        }
    }
}

async fn dry_runs(sandbox: &Sandbox) {
    let crds = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/foreign-crds.yaml");
    for args in [
        vec!["create", "namespace", NAMESPACE],
        vec!["apply", "-f", crds],
        vec!["wait", "--for=condition=Established", "-f", crds, "--timeout=60s"],
    ] {
        let output = sandbox.kubectl(&args).await.unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    takes(sandbox, "defaults", &chart::template(&[]).unwrap()).await;
    let rules = chart::values(RULES, &[]);
    let mut args = vec!["-f", rules.path().to_str().unwrap()];
    args.extend(EVERYTHING.iter().flat_map(|setting| ["--set", setting]));
    takes(sandbox, "everything", &chart::template(&args).unwrap()).await;
    let raw = chart::pausegen(&[
        "manifests",
        "deploy",
        "rbac",
        "webhooks",
        "--image",
        "registry.example.com/pausegen:1",
    ]);
    let raw: Vec<Value> = serde_saphyr::from_multiple(&raw.unwrap()).unwrap();
    takes(sandbox, "manifests", &raw).await;
}

/// What a kubelet would start for a Pod: its container's process with its files, its account's token and its environment.
async fn command(sandbox: &Sandbox, client: &Client, folder: &Path, pod: &PodSpec) -> (Command, Vec<String>) {
    let container = pod.containers[0].clone();
    let mut args = container.args.unwrap();
    for mount in container.volume_mounts.unwrap_or_default() {
        let here = folder.join(&mount.name);
        std::fs::create_dir(&here).unwrap();
        let mut volumes = pod.volumes.iter().flatten();
        let volume = volumes.find(|volume| volume.name == mount.name).unwrap();
        let files: Vec<(String, Vec<u8>)> = if let Some(map) = &volume.config_map {
            let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
            let data = maps.get(&map.name).await.unwrap().data.unwrap();
            data.into_iter().map(|(name, text)| (name, text.into_bytes())).collect()
        } else {
            let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
            let name = volume.secret.as_ref().unwrap().secret_name.clone().unwrap();
            let data = secrets.get(&name).await.unwrap().data.unwrap();
            data.into_iter().map(|(name, data)| (name, data.0)).collect()
        };
        for (name, data) in files {
            std::fs::write(here.join(name), data).unwrap();
        }
        for arg in &mut args {
            *arg = arg.replace(&mount.mount_path, here.to_str().unwrap());
        }
    }
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), NAMESPACE);
    let name = pod.service_account_name.as_ref().unwrap();
    let token = accounts
        .create_token_request(name, &PostParams::default(), &TokenRequest::default())
        .await
        .unwrap();
    let kubeconfig = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "pod",
        "clusters": [{ "name": "here", "cluster": {
            "server": sandbox.url(), "certificate-authority": sandbox.folder().join("ca.crt"),
        } }],
        "users": [{ "name": "pod", "user": { "token": token.status.unwrap().token } }],
        "contexts": [{ "name": "pod", "context": { "cluster": "here", "user": "pod" } }],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, kubeconfig.to_string()).unwrap();
    assert_eq!(container.command.unwrap(), ["/pausegen"]);
    let mut command = Command::new(support::EXE);
    command.args(&args).env_clear().env("PAUSEGEN_KUBECONFIG", path);
    for variable in container.env.unwrap_or_default() {
        let value = match variable.value_from.unwrap().field_ref.unwrap().field_path.as_str() {
            "metadata.name" => "pausegen-0",
            "metadata.namespace" => NAMESPACE,
            other => panic!("{other}"),
        };
        command.env(variable.name, value);
    }
    (command, args)
}

/// The Pod of the Deployment.
struct Pod {
    process: Child,
    metrics: String,
    _folder: tempfile::TempDir,
}

impl Pod {
    async fn start(sandbox: &Sandbox, client: &Client) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
        let deployment = deployments.get("pausegen").await.unwrap();
        let pod = deployment.spec.unwrap().template.spec.unwrap();
        let (mut command, args) = command(sandbox, client, folder.path(), &pod).await;
        let metrics = args.iter().find_map(|arg| arg.strip_prefix("--metrics-bind="));
        let log = std::fs::File::create(sandbox.folder().join("pod.log")).unwrap();
        let process = command.stdin(Stdio::null()).stderr(log).spawn().unwrap();
        Self {
            process,
            metrics: metrics.unwrap().to_owned(),
            _folder: folder,
        }
    }

    /// What the probe of this path is told: the status.
    fn probe(&self, path: &str) -> Option<String> {
        self.get(path)?.split(' ').nth(1).map(str::to_owned)
    }

    fn get(&self, path: &str) -> Option<String> {
        use std::io::{Read as _, Write as _};
        let mut stream = std::net::TcpStream::connect(&self.metrics).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    async fn ready(&mut self, sandbox: &Sandbox) {
        eventually("the Pod is ready", async || {
            if let Some(status) = self.process.try_wait().unwrap() {
                let log = std::fs::read_to_string(sandbox.folder().join("pod.log")).unwrap();
                panic!("{status}: {log}");
            }
            self.probe("/readyz").filter(|status| status == "200")
        })
        .await;
        assert_eq!(self.probe("/healthz").unwrap(), "200");
    }

    async fn terminate(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = eventually("it ends", async || self.process.try_wait().unwrap()).await;
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Helm on this cluster.
async fn helm(sandbox: &Sandbox, args: &[&str]) -> Result<String, String> {
    let mut command = chart::helm();
    command.args(args).arg("--kubeconfig").arg(sandbox.kubeconfig());
    command.args(["--namespace", NAMESPACE]);
    tokio::task::spawn_blocking(move || chart::run(&mut command))
        .await
        .unwrap()
}

/// The CA that both configurations publish.
async fn ca_bundles(client: &Client) -> BTreeSet<Vec<u8>> {
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mutating = mutating.get("zz-pausegen").await.unwrap().webhooks.unwrap();
    let validating = validating.get("zz-pausegen").await.unwrap().webhooks.unwrap();
    let configs = mutating.into_iter().map(|webhook| webhook.client_config);
    let configs = configs.chain(validating.into_iter().map(|webhook| webhook.client_config));
    configs.map(|config| config.ca_bundle.unwrap_or_default().0).collect()
}

/// The Service's address is this machine's: there is no network of Pods. Helm takes the Service back at every upgrade.
async fn at_home(client: &Client) {
    let services: Api<Service> = Api::namespaced(client.clone(), NAMESPACE);
    let patch = Patch::Merge(json!({ "spec": { "type": "ExternalName", "externalName": "localhost" } }));
    services
        .patch("pausegen", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// What `helm test` starts.
async fn helm_test(sandbox: &Sandbox, client: &Client) {
    let hooks = helm(sandbox, &["get", "hooks", "pausegen"]).await.unwrap();
    let hooks: Vec<Value> = serde_saphyr::from_multiple(&hooks).unwrap();
    let pod: PodSpec = serde_json::from_value(chart::one(&hooks, "Pod")["spec"].clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (mut command, _) = command(sandbox, client, folder.path(), &pod).await;
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("was stamped: the API server reaches the webhooks"),
        "{said}"
    );
    assert!(said.contains("there is no Lease admiral"), "{said}");
}

/// Metrics that are there once it has happened: nobody was refused here.
const RARE: [&str; 1] = ["pausegen_admission_denials"];

/// Alerts and dashboard ask for metrics that are served.
fn alerts_know_the_metrics(served: &str) {
    // Of what has not happened yet the first time is an increase.
    for none in [
        "pausegen_admission_reviews_total{webhook=\"mutate\",outcome=\"timed-out\"} 0",
        "pausegen_server_shed_total{reason=\"bytes\"} 0",
        "pausegen_companion_watch_errors_total{resource=\"ships.sea.example.org\"} 0",
    ] {
        assert!(served.lines().any(|line| line == none), "{none} is not in {served}");
    }
    let served: BTreeSet<&str> = served
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .chain(RARE)
        .collect();
    let enabled = "metrics.prometheusRule.enabled=true,metrics.dashboard.enabled=true";
    let objects = chart::template(&["--set", enabled]).unwrap();
    let alerts = chart::one(&objects, "PrometheusRule").to_string();
    let dashboard = chart::one(&objects, "ConfigMap")["data"]["pausegen.json"]
        .as_str()
        .unwrap();
    serde_json::from_str::<Value>(dashboard).unwrap();
    let mut asked = BTreeSet::new();
    for text in [&alerts, dashboard] {
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if word.starts_with("pausegen_") && word != "pausegen_build_info" {
                asked.insert(word.trim_end_matches("_total").trim_end_matches("_bucket"));
            }
        }
    }
    // Each alert is explained, and nothing else is.
    let rendered = chart::one(&objects, "PrometheusRule")["spec"]["groups"][0]["rules"].clone();
    let rendered = rendered.as_array().unwrap().iter();
    let rendered: BTreeSet<&str> = rendered.map(|rule| rule["alert"].as_str().unwrap()).collect();
    let operations = include_str!("../../../docs/operations.md");
    let explained = operations
        .lines()
        .filter_map(|line| line.strip_prefix("| `Pausegen")?.split('`').next());
    let explained: BTreeSet<String> = explained.map(|name| format!("Pausegen{name}")).collect();
    assert_eq!(rendered, explained.iter().map(String::as_str).collect());
    assert!(asked.len() > 15, "{asked:?}");
    let unknown: Vec<&&str> = asked.difference(&served).collect();
    assert!(unknown.is_empty(), "{unknown:?} are not in {served:?}");
}

/// What the hook after an uninstallation starts, where it is asked for, with its own rights. Nothing else does that.
async fn clean_up(sandbox: &Sandbox, client: &Client, values: &[&str]) {
    let values = &values[2..];
    assert!(
        !chart::template(values)
            .unwrap()
            .iter()
            .any(|object| object["kind"] == "Job")
    );
    let mut hook = chart::template(&[values, &["--set", "cleanup.onUninstall=true"]].concat()).unwrap();
    hook.retain(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "post-delete");
    let job = hook.iter().position(|object| object["kind"] == "Job").unwrap();
    let job = hook.remove(job);
    let list = file(&json!({ "apiVersion": "v1", "kind": "List", "items": hook }).to_string());
    let applied = sandbox
        .kubectl(["apply", "-f", list.path().to_str().unwrap()])
        .await
        .unwrap();
    assert!(applied.status.success(), "{applied:?}");
    let pod: PodSpec = serde_json::from_value(job["spec"]["template"]["spec"].clone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (mut command, _) = command(sandbox, client, folder.path(), &pod).await;
    let output = tokio::task::spawn_blocking(move || command.output().unwrap())
        .await
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Everybody answers.
async fn answer(sea: &[&Object], on: bool) {
    for object in sea {
        let (status, message) = if on { ("True", "of the fleet") } else { ("False", "") };
        object.says("Paused", status, "Played", message).await;
    }
}

#[tokio::test]
async fn an_older_api_server_takes_what_it_renders() {
    let sandbox = support::private_oldest().await;
    let client = sandbox.client().await.unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "34");
    dry_runs(&sandbox).await;
}

#[tokio::test]
async fn it_works_as_helm_installs_it() {
    let sandbox = support::private_plain().await;
    let client = sandbox.client().await.unwrap();
    for toy in [&FLEET, &CREW, &SHIP] {
        toy.define(&client).await;
    }
    dry_runs(&sandbox).await;

    let rules = chart::values(RULES, &["--installed-kind", "ships.sea.example.org"]);
    let port = support::free_port();
    let ports = format!(
        "webhook.bindAddress=127.0.0.1,webhook.port={port},service.port={port},metrics.port={}",
        support::free_port()
    );
    let folder = chart::folder();
    let values = [
        &[
            "pausegen",
            folder.to_str().unwrap(),
            "-f",
            rules.path().to_str().unwrap(),
        ],
        &chart::IMAGE[..],
        &["--set", &ports],
        &["--set", "shutdownDelay=1s", "--set-json"],
        &[r#"webhook.namespaceSelector={"matchExpressions":[{"key":"unwatched","operator":"DoesNotExist"}]}"#],
    ]
    .concat();
    helm(&sandbox, &[&["install"], &values[..]].concat()).await.unwrap();
    assert_eq!(
        ca_bundles(&client).await,
        BTreeSet::from([Vec::new()]),
        "the chart has none"
    );
    at_home(&client).await;
    let mut pod = Pod::start(&sandbox, &client).await;
    pod.ready(&sandbox).await;

    let create = async |toy: &Toy, name: &str| {
        let api: Api<_> = Api::namespaced_with(client.clone(), "default", &toy.resource());
        let labels = json!({ "metadata": { "labels": { "sea.example.org/fleet": "armada" } } });
        api.create(&PostParams::default(), &toy.object(name, labels))
            .await
            .unwrap();
        Object {
            api,
            name: name.to_owned(),
        }
    };
    let fleet = create(&FLEET, "armada").await;
    let (crew, ship) = (create(&CREW, "crew").await, create(&SHIP, "nina").await);
    let sea = [&fleet, &crew, &ship];
    answer(&sea, false).await;

    // A flip: stamped, pending, acknowledged when everybody has answered.
    let flipped = fleet.flip(paused(true)).await;
    assert_eq!(generation(&flipped), 1);
    assert!(
        annotation(&flipped, keys::STAMP).unwrap().contains("admin"),
        "{flipped:?}"
    );
    fleet
        .condition("PauseAcknowledged", |condition| condition["status"] == "Unknown")
        .await;
    answer(&sea, true).await;
    assert_eq!(fleet.acknowledged("paused").await.objects, 3);
    fleet
        .condition("PauseAcknowledged", |condition| condition["status"] == "True")
        .await;
    // Keys that nobody may write are put back.
    let forged = fleet
        .patch(json!({ "metadata": { "annotations": { keys::GENERATION: "99", keys::ACKNOWLEDGED: "running" } } }))
        .await;
    assert_eq!(
        (generation(&forged), annotation(&forged, keys::ACKNOWLEDGED)),
        (1, Some("paused"))
    );
    // The kind that a pattern stands for has an input of its own.
    ship.flip(json!({ "metadata": { "annotations": { "sea.example.org/paused": "" } } }))
        .await;
    ship.says("Paused", "True", "Played", "of the fleet, of its annotation")
        .await;
    ship.acknowledged("paused").await;
    ship.condition("PauseAcknowledged", |condition| condition["status"] == "True")
        .await;

    // An upgrade and a rollback leave stamps and certificates alone, and everything goes on.
    let ca = ca_bundles(&client).await;
    assert!(
        ca.len() == 1 && !ca.contains(&Vec::new()),
        "all trust the same CA: {ca:?}"
    );
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let certificate = async || secrets.get("pausegen-tls").await.unwrap().data;
    let served = certificate().await;
    let before = fleet.get().await.metadata.annotations;
    let upgrade = [
        &["upgrade"],
        &values[..],
        &["--set", "policies.hasty=off,replicas=3", "--force-conflicts"],
    ]
    .concat();
    helm(&sandbox, &upgrade).await.unwrap();
    assert_eq!(
        (ca_bundles(&client).await, fleet.get().await.metadata.annotations),
        (ca.clone(), before.clone())
    );
    helm(&sandbox, &["rollback", "pausegen", "1", "--force-conflicts"])
        .await
        .unwrap();
    assert_eq!(
        (ca_bundles(&client).await, fleet.get().await.metadata.annotations),
        (ca, before)
    );
    at_home(&client).await;
    fleet.flip(paused(false)).await;
    answer(&[&fleet, &crew], false).await;
    ship.says("Paused", "True", "Played", "of its annotation").await;
    fleet.acknowledged("running").await;

    alerts_know_the_metrics(&pod.get("/metrics").unwrap());
    used_is_granted(&sandbox, &client).await;
    helm_test(&sandbox, &client).await;
    pod.terminate().await;

    // Nothing of it is called any more, and what it wrote stands.
    helm(&sandbox, &["uninstall", "pausegen"]).await.unwrap();
    let ours = async || {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let all = ListParams::default();
        let (mutating, validating) = (mutating.list(&all).await.unwrap(), validating.list(&all).await.unwrap());
        mutating.items.len() + validating.items.len()
    };
    assert_eq!(ours().await, 0, "no webhook is left behind");
    eventually("flips pass again", async || {
        fleet
            .api
            .patch("armada", &PatchParams::default(), &Patch::Merge(paused(true)))
            .await
            .ok()
    })
    .await;
    assert_eq!(generation(&fleet.get().await), 2);
    clean_up(&sandbox, &client, &values).await;
    for object in sea {
        let object = object.get().await;
        let left = object.annotations().keys().find(|key| key.starts_with(keys::PREFIX));
        assert!(
            left.is_none() && super::condition(&object, "PauseAcknowledged").is_none(),
            "{object:?}"
        );
    }
    assert_eq!(certificate().await, served);

    let frigate = create(&FLEET, "frigate").await;
    Box::pin(own_certificate(&sandbox, &client, &values, &frigate)).await;
}

/// One of the scripts of `certs/`, as somebody calls it whose kubectl is for this cluster. What it says.
async fn script(sandbox: &Sandbox, name: &str, args: &[&str]) -> String {
    let kubectl = sandbox.binaries().kubectl.parent().unwrap();
    let path = format!("{}:{}", kubectl.display(), std::env::var("PATH").unwrap());
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/certs");
    let mut command = tokio::process::Command::new(Path::new(folder).join(name));
    command.args(args).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.env("PATH", path).env("KUBECONFIG", sandbox.kubeconfig());
    let output = output.output().await.unwrap();
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A certificate of one's own, as `certs/README.md` says: nobody is ready before its CA is published, and flips are refused.
async fn own_certificate(sandbox: &Sandbox, client: &Client, values: &[&str], fleet: &Object) {
    let folder = tempfile::tempdir().unwrap();
    let made = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let has_openssl = Command::new("openssl").arg("version").output().is_ok();
    if has_openssl {
        script(sandbox, "make.sh", &[NAMESPACE, "pausegen", &made("")]).await;
    } else {
        eprintln!("certs/make.sh and certs/show.sh are passed over: there is no openssl here");
        let pair = pausegen::tls::generate(&["pausegen.pausegen-system.svc"]).unwrap();
        for (name, pem) in [
            ("tls.crt", pair.cert_pem),
            ("tls.key", pair.key_pem),
            ("ca.crt", pair.ca_pem),
        ] {
            std::fs::write(made(name), pem).unwrap();
        }
    }
    let (certificate, key) = (
        format!("--cert={}", made("tls.crt")),
        format!("--key={}", made("tls.key")),
    );
    let args = [
        "-n",
        NAMESPACE,
        "create",
        "secret",
        "tls",
        "pausegen-serving",
        &certificate,
        &key,
    ];
    sandbox.kubectl_ok(&args).await.unwrap();
    let source = "certificates.source=files,certificates.secretName=pausegen-serving";
    helm(sandbox, &[&["install"], values, &["--set", source]].concat())
        .await
        .unwrap();
    at_home(client).await;
    let mut pod = Pod::start(sandbox, client).await;
    eventually("it says why it is not ready", async || {
        let answer = pod.get("/readyz")?;
        let why = "does not trust our certificate for flip.pausegen.io: its caBundle is empty";
        (answer.starts_with("HTTP/1.1 503") && answer.contains(why)).then_some(())
    })
    .await;
    let flip = Patch::Merge(paused(true));
    let refused = fleet.api.patch("frigate", &PatchParams::default(), &flip).await;
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("failed calling webhook \"flip.pausegen.io\""),
        "{refused}"
    );

    script(sandbox, "publish.sh", &[&made("ca.crt")]).await;
    pod.ready(sandbox).await;
    let flipped = eventually("the API server has heard of the CA", async || {
        let flipped = fleet.api.patch("frigate", &PatchParams::default(), &flip).await;
        flipped.ok()
    })
    .await;
    assert_eq!(
        (generation(&flipped), annotation(&flipped, keys::ACKNOWLEDGED)),
        (1, Some(keys::PENDING))
    );

    // Another CA comes beside it, once.
    let other = pausegen::tls::generate(&["127.0.0.1"]).unwrap();
    std::fs::write(made("other.crt"), other.ca_pem).unwrap();
    for _ in 0..2 {
        script(sandbox, "publish.sh", &[&made("other.crt")]).await;
    }
    let bundles = ca_bundles(client).await;
    let bundle = String::from_utf8(bundles.first().unwrap().clone()).unwrap();
    assert_eq!(
        (bundles.len(), bundle.matches("BEGIN CERTIFICATE").count()),
        (1, 2),
        "{bundle}"
    );
    if has_openssl {
        let shown = script(sandbox, "show.sh", &[NAMESPACE, "pausegen-serving"]).await;
        assert_eq!(shown.matches("tls.crt: OK").count(), 3, "{shown}");
        assert!(shown.contains("DNS:pausegen.pausegen-system.svc"), "{shown}");
        assert!(shown.contains("== caBundle of validate.pausegen.io"), "{shown}");
    }
    pod.terminate().await;
}

/// What is granted and may not be used here, and why it is needed.
const UNUSED: [(&str, &str); 3] = [
    (
        "update secrets",
        "certificates are renewed at two thirds of their life; here they are younger",
    ),
    (
        "get crews.sea.example.org",
        "a member without a baseline is read once everything has been quiet for a while; here it may not be quiet that long",
    ),
    (
        "patch events.events.k8s.io",
        "an Event that comes again within some minutes is counted into the first one; here each flip has Events of its own",
    ),
];

type Right = (String, String, String);

fn rights(rules: &[PolicyRule]) -> BTreeSet<Right> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                rights.extend(
                    rule.verbs
                        .iter()
                        .map(|verb| (verb.clone(), group.clone(), resource.clone())),
                );
            }
        }
    }
    rights
}

/// The rights that were used are those that are granted, less a few that have a reason.
async fn used_is_granted(sandbox: &Sandbox, client: &Client) {
    let cluster: Api<ClusterRole> = Api::all(client.clone());
    let mut granted = rights(&cluster.get("pausegen").await.unwrap().rules.unwrap());
    let own: Api<Role> = Api::namespaced(client.clone(), NAMESPACE);
    if let Some(role) = own.get_opt("pausegen").await.unwrap() {
        assert_eq!(role.name_any(), "pausegen");
        granted.extend(rights(&role.rules.unwrap()));
    }
    let mut used = BTreeSet::new();
    let log = std::fs::read_to_string(sandbox.audit_log().unwrap()).unwrap();
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |path: &str| {
            event
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        if text("/user/username") != USER || event.get("objectRef").is_none() {
            continue;
        }
        assert_ne!(event["responseStatus"]["code"], 403, "{event}");
        let resource = [text("/objectRef/resource"), text("/objectRef/subresource")];
        let resource = resource.join("/").trim_end_matches('/').to_owned();
        used.insert((text("/verb"), text("/objectRef/apiGroup"), resource));
    }
    let name = |(verb, group, resource): &Right| format!("{verb} {resource}.{group}").trim_end_matches('.').to_owned();
    let beyond: Vec<String> = used.difference(&granted).map(name).collect();
    assert_eq!(beyond, Vec::<String>::new(), "used, and not granted");
    let explained = |right: &String| UNUSED.iter().any(|(explained, _)| explained == right);
    let idle: Vec<String> = granted
        .difference(&used)
        .map(name)
        .filter(|right| !explained(right))
        .collect();
    assert_eq!(idle, Vec::<String>::new(), "granted, and not used");
}
