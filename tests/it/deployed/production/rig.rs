//! Replicas of the program behind one address, as a Service would have them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, Patch, PatchParams};
use kube::{Client, Resource};
use pausegen::rules::Rules;
use pausegen::rules::manifests::{self, Access, Endpoint, Own, Target};
use pausegen::sandbox::Sandbox;
use pausegen::sandbox::product::{NAMESPACE, USER};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::io::copy_bidirectional;

use super::super::{Object, Toy, paused};
use crate::support::{self, eventually};

const GROUP: &str = "harbour.example.org";

pub(super) const RULES: &str = "
apiVersion: pausegen.io/v1alpha1
kind: Rules
stalenessBound: 2s
grace: 2s
rules:
- group: harbour.example.org
  kinds: [Boat]
  inputs: [{field: spec.paused, match: true}]
  attestedBy: [{name: boat, condition: {type: Paused}}]
";

pub(super) const BOAT: Toy = Toy::new(GROUP, "Boat", || json!({ "paused": { "type": "boolean" } }));

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// One process. It is killed when this is dropped.
pub(super) struct Replica {
    child: Child,
    pub(super) name: String,
    pub(super) webhook: SocketAddr,
    pub(super) metrics: SocketAddr,
    log: PathBuf,
}

impl Drop for Replica {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Replica {
    pub(super) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end.
    pub(super) async fn ended(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        eventually(&what, async || self.child.try_wait().unwrap()).await
    }

    pub(super) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// The value of a metric without labels.
    pub(super) fn metric(&self, name: &str) -> Option<f64> {
        let (_, text) = get(self.metrics, "/metrics")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.and_then(|value| value.trim().parse().ok())
    }

    pub(super) fn leads(&self) -> bool {
        self.metric("pausegen_companion_leader") == Some(1.0)
    }

    /// A number of kB from /proc/PID/status.
    pub(super) fn memory(&self, key: &str) -> u64 {
        support::memory(self.child.id(), key)
    }
}

/// The status and the body of an answer.
pub(super) fn get(address: SocketAddr, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let status = answer.split(' ').nth(1)?.parse().ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    Some((status, body.to_owned()))
}

/// A place where a replica listens: where, and where it says whether it is ready.
#[derive(Clone, Copy)]
struct Backend {
    webhook: SocketAddr,
    metrics: SocketAddr,
}

/// As a kubelet's probe: whoever does not answer so many times in a row is not ready.
const SILENT: u32 = 3;

/// What a Service is: connections go to those that are ready.
struct Balancer {
    address: SocketAddr,
    backends: Arc<Mutex<Vec<Backend>>>,
    ready: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Balancer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let backends: Arc<Mutex<Vec<Backend>>> = Arc::default();
        let ready: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let (all, found) = (Arc::clone(&backends), Arc::clone(&ready));
        let known = Arc::clone(&ready);
        std::thread::spawn(move || {
            let mut silent = BTreeMap::<SocketAddr, u32>::new();
            // As long as somebody else knows of it.
            while Arc::strong_count(&all) > 1 {
                let present = all.lock().unwrap().clone();
                let mut is_ready = |backend: &&Backend| {
                    let count = silent.entry(backend.webhook).or_insert(SILENT);
                    match get(backend.metrics, "/readyz") {
                        Some((200, _)) => *count = 0,
                        Some(_) => *count = SILENT,
                        None => *count += 1,
                    }
                    *count < SILENT
                };
                let webhooks = present
                    .iter()
                    .filter(|backend| is_ready(backend))
                    .map(|backend| backend.webhook)
                    .collect();
                *found.lock().unwrap() = webhooks;
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        tokio::spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let next = AtomicUsize::new(0);
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let backends = ready.lock().unwrap().clone();
                let first = next.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    for n in 0..backends.len() {
                        let backend = backends[(first + n) % backends.len()];
                        if let Ok(mut server) = tokio::net::TcpStream::connect(backend).await {
                            drop(copy_bidirectional(&mut client, &mut server).await);
                            return;
                        }
                    }
                });
            }
        });
        Self {
            address,
            backends,
            ready: known,
        }
    }
}

/// A control plane, and replicas behind one address.
pub(super) struct Rig {
    balancer: Balancer,
    pub(super) client: Client,
    kubeconfig: PathBuf,
    rules: PathBuf,
    pub(super) sandbox: Sandbox,
}

impl Rig {
    pub(super) async fn start() -> Self {
        let sandbox = support::private_plain().await;
        let client = sandbox.client().await.unwrap();
        BOAT.define(&client).await;
        let balancer = Balancer::start();
        let rules = sandbox.folder().join("rules.yaml");
        std::fs::write(&rules, RULES).unwrap();
        let kubeconfig = sandbox
            .kubeconfig_for(
                USER,
                &["system:serviceaccounts", "system:serviceaccounts:pausegen-system"],
            )
            .unwrap();
        let rig = Self {
            balancer,
            client,
            kubeconfig,
            rules,
            sandbox,
        };
        rig.install().await;
        rig
    }

    /// What `pausegen manifests` prints, without a `caBundle`.
    async fn install(&self) {
        let rules = Rules::parse(RULES, "rules").unwrap();
        let target = Target::new(Endpoint::Url(format!("https://{}", self.balancer.address)));
        let (mutating, validating) = manifests::webhooks(&rules, &target);
        let access = Access {
            own_ca: true,
            ..Access::default()
        };
        let own = Own {
            tls_secret: Some(manifests::TLS_SECRET.to_owned()),
            ..Own::default()
        };
        let account = || manifests::service_account(NAMESPACE, "pausegen");
        let namespace = serde_json::from_value(json!({ "metadata": { "name": NAMESPACE } })).unwrap();
        let client = || self.client.clone();
        apply::<k8s_openapi::api::core::v1::Namespace>(Api::all(client()), &namespace).await;
        apply(Api::all(client()), &manifests::cluster_role(&rules, &access)).await;
        apply(Api::all(client()), &manifests::cluster_role_binding(account())).await;
        let binding = manifests::role_binding(&own, account());
        apply(Api::namespaced(client(), NAMESPACE), &manifests::role(&own)).await;
        apply(Api::namespaced(client(), NAMESPACE), &binding).await;
        apply(Api::all(client()), &mutating).await;
        apply(Api::all(client()), &validating).await;
    }

    /// Starts a replica behind the address, and waits until it is ready.
    pub(super) async fn replica(&self, name: &str, args: &[&str]) -> Replica {
        self.replica_at(name, args, "0s").await
    }

    /// As [`Rig::replica`], with a wall clock that is off.
    pub(super) async fn replica_at(&self, name: &str, args: &[&str], clock: &str) -> Replica {
        let (webhook, metrics) = (free(), free());
        let log = self.sandbox.folder().join(format!("{name}.log"));
        let mut command = Command::new(support::EXE);
        command.arg("serve").env_clear().stdin(Stdio::null());
        command.args(["--companion-user", USER, "--namespace", NAMESPACE, "--instance", name]);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg("--rules").arg(&self.rules);
        command.args(["--bind", &webhook.to_string(), "--metrics-bind", &metrics.to_string()]);
        command.args([
            "--tls-source",
            "self",
            "--tls-name",
            "127.0.0.1",
            "--shutdown-delay",
            "4s",
        ]);
        command
            .env("PAUSEGEN_TLS_CA_LIFETIME", CA_LIFETIME)
            .env("PAUSEGEN_TLS_LIFETIME", LIFETIME)
            .env("PAUSEGEN_TEST_CLOCK_OFFSET", clock);
        command.args(args).stderr(std::fs::File::create(&log).unwrap());
        let mut replica = Replica {
            child: command.spawn().unwrap(),
            name: name.to_owned(),
            webhook,
            metrics,
            log,
        };
        self.balancer
            .backends
            .lock()
            .unwrap()
            .push(Backend { webhook, metrics });
        eventually(&format!("{name} is ready"), async || {
            if let Some(status) = replica.child.try_wait().unwrap() {
                panic!("{name}: {status}: {}", replica.log());
            }
            self.balancer.ready.lock().unwrap().contains(&webhook).then_some(())
        })
        .await;
        replica
    }

    /// Overwrites the rules file.
    pub(super) fn write_rules(&self, text: &str) {
        std::fs::write(&self.rules, text).unwrap();
    }

    pub(super) async fn secret(&self) -> Secret {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), NAMESPACE);
        secrets.get(manifests::TLS_SECRET).await.unwrap()
    }

    /// What the Secret holds under a key.
    pub(super) async fn held(&self, key: &str) -> String {
        let data = self.secret().await.data.unwrap();
        String::from_utf8(data.get(key).unwrap().0.clone()).unwrap()
    }

    pub(super) fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub(super) async fn holder(&self) -> String {
        let lease = self.leases().get(manifests::LEASE).await.unwrap();
        lease.spec.unwrap().holder_identity.unwrap_or_default()
    }

    pub(super) async fn boat(&self, name: &str) -> Object {
        let api = Api::namespaced_with(self.client.clone(), "default", &BOAT.resource());
        api.create(&Default::default(), &BOAT.object(name, paused(false)))
            .await
            .unwrap();
        Object {
            api,
            name: name.to_owned(),
        }
    }
}

/// Lives of certificates that a test can wait for.
const CA_LIFETIME: &str = "60s";
const LIFETIME: &str = "20s";

async fn apply<K>(api: Api<K>, object: &K)
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let name = object.meta().name.clone().unwrap();
    let params = PatchParams::apply("test").force();
    api.patch(&name, &params, &Patch::Apply(object)).await.unwrap();
}

/// Flips without a pause, and what became of them.
pub(super) struct Load {
    stop: tokio_util::sync::CancellationToken,
    tasks: tokio::task::JoinSet<(usize, Vec<String>)>,
}

impl Load {
    /// Each of these is flipped over and over.
    pub(super) fn start(boats: Vec<Object>) -> Self {
        let stop = tokio_util::sync::CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        for boat in boats {
            let stop = stop.clone();
            tasks.spawn(async move {
                let (mut flips, mut refused) = (0, Vec::new());
                while !stop.is_cancelled() {
                    let patch = Patch::Merge(paused(flips % 2 == 0));
                    match boat.api.patch(&boat.name, &PatchParams::default(), &patch).await {
                        Ok(_) => flips += 1,
                        Err(error) => refused.push(error.to_string()),
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                (flips, refused)
            });
        }
        Self { stop, tasks }
    }

    /// Ends it. Returns how many flips there were, and with what others were refused.
    pub(super) async fn end(self) -> (usize, Vec<String>) {
        self.stop.cancel();
        let mut all = (0, Vec::new());
        for (flips, refused) in self.tasks.join_all().await {
            all.0 += flips;
            all.1.extend(refused);
        }
        all
    }
}

/// Those who lead, by name.
pub(super) fn leaders<'a>(replicas: &[&'a Replica]) -> BTreeSet<&'a str> {
    let leading = replicas.iter().filter(|replica| replica.leads());
    leading.map(|replica| replica.name.as_str()).collect()
}

/// Who leads, and who stands by.
pub(super) fn roles(mut one: Replica, mut other: Replica) -> (Replica, Replica) {
    if other.leads() {
        std::mem::swap(&mut one, &mut other);
    }
    (one, other)
}
