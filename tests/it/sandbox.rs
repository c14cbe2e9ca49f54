//! The local control plane: it works, several run side by side, and nothing of it is left behind.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use k8s_openapi::api::authorization::v1::{SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use pausegen::sandbox::{ClusterShape, ManagerKind};
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
