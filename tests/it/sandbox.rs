//! The local control plane: it works, several run side by side, and nothing of it is left behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use pausegen::sandbox::{ClusterShape, ManagerKind, Sandbox};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::support;

#[tokio::test]
async fn it_answers() {
    let sandbox = support::plain().await;
    let client = sandbox.client().await.unwrap();
    let version = client.apiserver_version().await.unwrap();
    assert_eq!((version.major.as_str(), version.minor.as_str()), ("1", "36"));
    let output = sandbox.kubectl(["get", "namespaces", "-o", "name"]).await.unwrap();
    assert!(String::from_utf8(output.stdout).unwrap().contains("namespace/default"));
}

#[tokio::test]
async fn users_have_the_rights_of_their_groups() {
    let sandbox = support::plain().await;
    let may = async |user: &str, groups: &[&str]| {
        let client = sandbox.client_for(user, groups).await.unwrap();
        let attributes = serde_json::json!({ "resourceAttributes": { "verb": "delete", "resource": "nodes" } });
        let spec: SelfSubjectAccessReviewSpec = serde_json::from_value(attributes).unwrap();
        let review = SelfSubjectAccessReview {
            spec,
            ..SelfSubjectAccessReview::default()
        };
        let review = Api::all(client).create(&PostParams::default(), &review).await.unwrap();
        review.status.unwrap().allowed
    };
    assert!(may("jane", &["dev", "system:masters"]).await);
    assert!(!may("joe", &["dev", "ops"]).await);
    assert!(sandbox.kubeconfig_for("jim", &["a", "b", "c"]).is_err());
}

#[tokio::test]
async fn every_request_is_in_the_audit_log() {
    let sandbox = support::plain().await;
    let client = sandbox.client_for("auditee", &["system:masters"]).await.unwrap();
    Api::<Namespace>::all(client)
        .list(&ListParams::default())
        .await
        .unwrap();
    // No wait: it is on disk before the answer comes.
    let log = std::fs::read_to_string(sandbox.audit_log().unwrap()).unwrap();
    assert!(
        log.lines()
            .any(|line| line.contains(r#""username":"auditee""#) && line.contains(r#""verb":"list""#))
    );
}

#[tokio::test]
async fn two_run_side_by_side_and_one_restarts() {
    let (one, two) = tokio::join!(Box::pin(support::private_plain()), Box::pin(support::private_plain()));
    assert_ne!(one.url(), two.url());
    let map: ConfigMap = serde_json::from_value(serde_json::json!({ "metadata": { "name": "here" } })).unwrap();
    let maps = |client| Api::<ConfigMap>::namespaced(client, "default");
    maps(one.client().await.unwrap())
        .create(&PostParams::default(), &map)
        .await
        .unwrap();
    let names = async |client| {
        let list = maps(client).list(&ListParams::default()).await.unwrap();
        list.iter().map(|map| map.name_any()).collect::<BTreeSet<_>>()
    };
    one.restart_api_server().await.unwrap();
    assert!(names(one.client().await.unwrap()).await.contains("here"));
    assert!(!names(two.client().await.unwrap()).await.contains("here"));

    let folders = [one.folder().to_owned(), two.folder().to_owned()];
    tokio::task::spawn_blocking(move || (one.stop(), two.stop()))
        .await
        .unwrap();
    for folder in folders {
        assert!(!folder.exists());
        assert_eq!(processes_in(&folder), BTreeSet::new());
    }
}

#[tokio::test]
async fn nothing_is_left_after_ctrl_c() {
    let (mut owner, folder) = up(&[]).await;
    assert!(
        !processes_in(&folder).is_empty(),
        "the test must be able to see the processes"
    );
    send(&owner, rustix::process::Signal::INT);
    assert!(owner.wait().await.unwrap().success());
    assert_eq!(processes_in(&folder), BTreeSet::new());
    assert!(!folder.exists());
}

#[tokio::test]
async fn nothing_is_left_after_sigkill() {
    let (mut owner, folder) = up(&["--capi"]).await;
    let processes = processes_in(&folder);
    let managers: Vec<_> = processes
        .iter()
        .filter(|process| process.contains("/capi-dev "))
        .collect();
    assert_eq!(managers.len(), 2, "one that acts and its standby, in {processes:?}");
    for manager in managers {
        // SIGKILL is the one signal that ends a stopped process.
        let id = manager.split_once(' ').unwrap().0.parse().unwrap();
        let id = rustix::process::Pid::from_raw(id).unwrap();
        rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    }
    owner.kill().await.unwrap();
    support::eventually("no process and no folder", async || {
        (processes_in(&folder).is_empty() && !folder.exists()).then_some(())
    })
    .await;
}

#[tokio::test]
async fn cluster_api_makes_machines() {
    let sandbox = support::capi().await;
    let capi = sandbox.capi().unwrap();
    let shape = ClusterShape {
        control_planes: 1,
        workers: 2,
    };
    capi.create_cluster("machines", "first", shape).await.unwrap();
    if let Err(error) = capi.wait_running("machines", "first", Duration::from_secs(180)).await {
        panic!(
            "{error}; the end of the core manager's log:\n{}",
            capi.manager(ManagerKind::Core).log_tail()
        );
    }
    let output = sandbox
        .kubectl(["get", "machinehealthchecks", "-n", "machines", "-o", "name"])
        .await
        .unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().lines().count(),
        2,
        "control plane and workers"
    );
}

/// One after the other on one sandbox.
#[tokio::test]
async fn managers_freeze_and_take_over() {
    let sandbox = support::private_capi().await;
    frozen_managers_do_nothing_and_their_webhooks_still_answer(&sandbox).await;
    a_second_manager_takes_over_the_lease(&sandbox).await;
}

async fn frozen_managers_do_nothing_and_their_webhooks_still_answer(sandbox: &Sandbox) {
    let capi = sandbox.capi().unwrap();
    let shape = ClusterShape {
        control_planes: 1,
        workers: 3,
    };
    capi.create_cluster("frozen", "one", shape).await.unwrap();
    capi.wait_running("frozen", "one", Duration::from_secs(180))
        .await
        .unwrap();
    let client = sandbox.client().await.unwrap();
    for kind in ManagerKind::ALL {
        capi.manager(kind).freeze().unwrap();
    }
    // Each kind is one that a webhook of its manager looks at, under `Fail`.
    for kind in ["Cluster", "MachineDeployment", "Machine", "MachineHealthCheck"] {
        annotate(&client, "cluster.x-k8s.io", kind).await;
    }
    annotate(&client, "bootstrap.cluster.x-k8s.io", "KubeadmConfig").await;
    annotate(&client, "controlplane.cluster.x-k8s.io", "KubeadmControlPlane").await;
    for kind in ["DevCluster", "DevMachine"] {
        annotate(&client, "infrastructure.cluster.x-k8s.io", kind).await;
    }
    // Paused as they are now, none of them says so.
    let paused = async || {
        let mut says = BTreeSet::new();
        for (group, kind) in [
            ("cluster.x-k8s.io", "Machine"),
            ("bootstrap.cluster.x-k8s.io", "KubeadmConfig"),
            ("controlplane.cluster.x-k8s.io", "KubeadmControlPlane"),
            ("infrastructure.cluster.x-k8s.io", "DevCluster"),
        ] {
            let list = dynamic(&client, group, kind)
                .list(&ListParams::default())
                .await
                .unwrap();
            let conditions = list
                .iter()
                .flat_map(|object| object.data["status"]["conditions"].as_array().unwrap());
            if conditions
                .into_iter()
                .any(|c| c["type"] == "Paused" && c["status"] == "True")
            {
                says.insert(kind);
            }
        }
        says
    };
    assert_eq!(paused().await, BTreeSet::new());
    for kind in ManagerKind::ALL {
        capi.thaw(kind).await.unwrap();
    }
    support::eventually("all managers say paused", async || {
        (paused().await.len() == 4).then_some(())
    })
    .await;
}

async fn a_second_manager_takes_over_the_lease(sandbox: &Sandbox) {
    let capi = sandbox.capi().unwrap();
    let client = sandbox.client().await.unwrap();
    let kind = ManagerKind::Bootstrap;
    let all: Api<Lease> = Api::all(client);
    let by_name = ListParams::default().fields(&format!("metadata.name={}", kind.lease()));
    let lease = async || {
        let mut leases = all.list(&by_name).await.unwrap().items;
        assert_eq!(leases.len(), 1, "the standby must not make one of its own");
        let lease = leases.remove(0);
        assert_eq!(lease.namespace().as_deref(), Some(kind.namespace()));
        lease.spec.unwrap().holder_identity.unwrap()
    };
    let first = lease().await;
    let second = capi.start_second(kind).await.unwrap();
    assert_eq!(lease().await, first);
    capi.manager(kind).freeze().unwrap();
    support::eventually("another holder", async || (lease().await != first).then_some(())).await;
    assert!(capi.manager(kind).is_running());
    second.kill();
    capi.restart(kind).await.unwrap();
    assert_ne!(lease().await, first);
}

fn dynamic(client: &Client, group: &str, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    Api::all_with(client.clone(), &resource)
}

/// Sets the pause annotation on every object of a kind in the test's namespace.
async fn annotate(client: &Client, group: &str, kind: &str) {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1beta2", kind));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), "frozen", &resource);
    let list = api.list(&ListParams::default()).await.unwrap();
    assert!(!list.items.is_empty(), "there is a {kind}");
    let patch = serde_json::json!({ "metadata": { "annotations": { "cluster.x-k8s.io/paused": "" } } });
    for object in list {
        api.patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }
}

/// Runs `pausegen sandbox up`, and returns it with the folder of its sandbox.
async fn up(args: &[&str]) -> (Child, PathBuf) {
    let mut command = Command::new(support::EXE);
    command
        .args(["sandbox", "up"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    let mut owner = command.spawn().unwrap();
    let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
    let line = lines
        .next_line()
        .await
        .unwrap()
        .expect("it says where its kubeconfig is");
    let kubeconfig = PathBuf::from(line.strip_prefix("export KUBECONFIG=").expect("a line for the shell"));
    (owner, kubeconfig.parent().unwrap().to_owned())
}

fn send(process: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(process.id().unwrap()).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// The processes that run in a folder or have it among their arguments, whoever their parent is.
fn processes_in(folder: &Path) -> BTreeSet<String> {
    let name = folder.file_name().unwrap().to_str().unwrap();
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| {
            let arguments =
                String::from_utf8_lossy(&std::fs::read(entry.path().join("cmdline")).ok()?).replace('\0', " ");
            let place = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
            let id = entry.file_name().into_string().unwrap();
            (arguments.contains(name) || place.to_string_lossy().contains(name)).then(|| format!("{id} {arguments}"))
        })
        .collect()
}
