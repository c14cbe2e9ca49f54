//! Each answer of an audit is checked against what the API server holds.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use pausegen::sandbox::Sandbox;
use serde_json::{Value, json};
use tokio::{
    io::{BufReader, Lines},
    process::ChildStdout,
};

use super::tool::{Tool, err, out};
use crate::companion::{Sea, acknowledgement, annotation, says};
use crate::support::eventually;

/// The row of an object.
pub(super) fn row<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["rows"].as_array().unwrap();
    rows.iter()
        .find(|row| row["name"] == name)
        .unwrap_or_else(|| panic!("no row of {name}: {report:#}"))
}

/// Who is waited for, sorted.
fn laggards(row: &Value) -> Vec<String> {
    let all = row["waitsFor"].as_array().unwrap();
    let mut names: Vec<String> = all
        .iter()
        .map(|laggard| laggard["name"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    names
}

fn codes(row: &Value) -> Vec<&str> {
    row["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|finding| finding["code"].as_str().unwrap())
        .collect()
}

pub(super) async fn without_a_webhook(tool: &Tool, sea: &Sea) {
    let (code, report) = tool.audit(&["-A"]).await;
    assert_eq!((code, report["rows"].as_array().unwrap().len()), (0, 0), "{report:#}");
    sea.pause(true).await;
    says(&sea.fleets, "armada", true).await;
    says(&sea.ships, "nina", true).await;
    let (code, report) = tool.audit(&["-A"]).await;
    let armada = row(&report, "armada");
    assert_eq!((code, armada["status"].as_str()), (1, Some("Unstamped")), "{report:#}");
    assert_eq!(armada["pausedBy"], json!(["spec.paused"]));
    assert_eq!(laggards(armada), ["pinta"]);
    assert_eq!(
        row(&report, "pinta")["inheritedFrom"][0]["from"],
        "Fleet.sea.example.org default/armada"
    );
    let unknown = report["unknown"].to_string();
    assert!(unknown.contains("is not there: flips are not stamped"), "{unknown}");
    // Who waits for it is told at once.
    let output = tool.run(&["wait", "fleet/armada", "--for=paused"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("has no pause generation"), "{}", err(&output));
    sea.pause(false).await;
    sea.answer("armada", "nina", "pinta", false).await;
}

pub(super) async fn agree_with_the_server(tool: &Tool, sea: &Sea) {
    let patch = Patch::Merge(json!({
        "spec": {"paused": true}, "metadata": {"annotations": {"pausegen.io/reason": "CHG-1 <R&D> \u{1b}[2J=x"}}
    }));
    sea.fleets
        .patch("armada", &PatchParams::default(), &patch)
        .await
        .unwrap();
    says(&sea.fleets, "armada", true).await;
    says(&sea.ships, "pinta", true).await;
    let (code, report) = tool.audit(&["-A"]).await;
    let fleet = sea.fleet().await;
    let armada = row(&report, "armada");
    let stamp: Value = serde_json::from_str(&annotation(&fleet, "stamp")).unwrap();
    assert_eq!((code, armada["status"].as_str()), (1, Some("Pending")), "{report:#}");
    assert_eq!(armada["generation"].to_string(), annotation(&fleet, "generation"));
    assert_eq!(
        armada["observedGeneration"].to_string(),
        annotation(&fleet, "observed-generation")
    );
    for (key, in_stamp) in [("since", "at"), ("by", "by"), ("reason", "reason")] {
        assert_eq!(armada[key], stamp[in_stamp], "{key}");
    }
    assert_eq!(armada["uid"], json!(fleet.uid()));
    assert_eq!(laggards(armada), ["nina"], "exactly who has not answered: {armada:#}");
    assert_eq!(laggards(row(&report, "nina")), ["nina"]);
    assert_eq!(laggards(row(&report, "pinta")), Vec::<String>::new());
    assert_eq!(row(&report, "pinta")["since"], stamp["at"]);
    assert_eq!(codes(armada), ["Pending"]);

    // Nothing of the reason reaches a terminal as it is.
    for format in [
        "table",
        "wide",
        "yaml",
        "csv",
        "markdown",
        "html",
        "openreports",
        "name",
    ] {
        let (code, text) = tool.says(&["audit", "-A", "-o", format]).await;
        assert_eq!(code, 1, "{format}");
        assert!(!text.contains('\u{1b}'), "{format}: {text:?}");
        assert!(text.contains("armada"), "{format}: {text}");
    }
    let (code, text) = tool.says(&["audit", "-A", "--unacknowledged", "-o", "name"]).await;
    assert_eq!(
        (code, text.as_str()),
        (1, "fleet.sea.example.org/armada\nship.sea.example.org/nina\n")
    );

    let (code, text) = tool.says(&["describe", "fleet/armada"]).await;
    assert_eq!(code, 0);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    let line = |of: &str| {
        text.lines()
            .find(|line| line.contains(of) && line.contains("ship "))
            .unwrap_or_default()
    };
    assert!(line("default/nina").contains("STILL SAYS not paused"), "{text}");
    assert!(
        line("default/pinta").contains("says paused (Paused True since 2024-01-01T00:00:00Z)"),
        "{text}"
    );
    assert!(text.contains("reason: CHG-1 <R&D> \\u{1b}[2J=x"), "{text}");

    says(&sea.ships, "nina", true).await;
    let fleet = sea.acknowledged("paused").await;
    let echo = acknowledgement(&fleet);
    let (code, report) = tool.audit(&["-A"]).await;
    let armada = row(&report, "armada");
    assert_eq!(
        (code, armada["status"].as_str()),
        (0, Some("Acknowledged")),
        "{report:#}"
    );
    assert_eq!(armada["evidence"], json!(echo.evidence));
    assert_eq!(
        (armada["objects"].as_u64(), armada["acknowledgedAt"].as_str()),
        (Some(3), Some(echo.at.as_str()))
    );
    assert_eq!(armada["boundSeconds"], json!(echo.bound_seconds));
    let (_, text) = tool.says(&["describe", "fleet", "armada"]).await;
    assert!(
        text.contains(&format!(
            "{:?}: generation {} acknowledged",
            echo.evidence, echo.generation
        )),
        "{text}"
    );
    assert!(text.contains("It rests on these assumptions"), "{text}");
    let (code, text) = tool.says(&["audit", "-A", "--older-than", "7d"]).await;
    assert_eq!(code, 0, "{text}");
    let (code, report) = tool.audit(&["-A", "--older-than", "0"]).await;
    assert_eq!(
        (code, report["totals"]["findings"].as_u64()),
        (1, Some(3)),
        "{report:#}"
    );
    let (code, report) = tool.audit(&["--cluster", "armada", "--kind", "ships"]).await;
    assert_eq!((code, report["rows"].as_array().unwrap().len()), (0, 2), "{report:#}");

    // Somebody takes back what was acknowledged: the audit says so, with the very same generation.
    says(&sea.ships, "nina", false).await;
    let (code, report) = tool.audit(&["-A"]).await;
    assert_eq!(
        (code, codes(row(&report, "armada"))),
        (1, vec!["Contradicted"]),
        "{report:#}"
    );
    says(&sea.ships, "nina", true).await;

    // The same from a file of what the server holds.
    let objects = json!({"kind": "List", "apiVersion": "v1", "items": [
        serde_json::to_value(sea.fleet().await).unwrap(),
        serde_json::to_value(sea.ships.get("nina").await.unwrap()).unwrap(),
        serde_json::to_value(sea.ships.get("pinta").await.unwrap()).unwrap(),
    ]});
    let file = tool.folder.path().join("backup.json");
    std::fs::write(&file, objects.to_string()).unwrap();
    let (_, online) = tool.audit(&["-A"]).await;
    let (code, offline) = tool.audit(&["-f", file.to_str().unwrap()]).await;
    assert_eq!((code, &offline["rows"]), (0, &online["rows"]));

    let (code, _) = tool.says(&["audit", "-A", "--kubeconfig", "/nowhere"]).await;
    assert_eq!(code, 2);
    let (code, _) = tool.says(&["audit", "-f", "/nowhere"]).await;
    assert_eq!(code, 2);
    let (code, _) = tool.says(&["audit", "--cluster", "gone"]).await;
    assert_eq!(code, 2);
    // A kind that is misspelled is no clean answer, and neither are rules that are not for this cluster.
    let output = tool.run(&["audit", "-A", "--kind", "shipp"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("names a kind `shipp`"), "{}", err(&output));
    let capi = tool.folder.path().join("capi.yaml");
    std::fs::write(&capi, "apiVersion: pausegen.io/v1alpha1\nkind: Rules\nextends: capi\n").unwrap();
    let output = tool.run(&["audit", "-A", "--rules", capi.to_str().unwrap()]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("serves none of the kinds"), "{}", err(&output));
    sea.pause(false).await;
    sea.answer("armada", "nina", "pinta", false).await;
    sea.acknowledged("running").await;
}

/// A user who may only read needs nothing else; one who may not read everything is told what is missing.
pub(super) async fn with_rights_to_read(tool: &Tool, sandbox: &Sandbox, client: &Client) {
    let roles: Api<ClusterRole> = Api::all(client.clone());
    let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
    for (user, resources, verbs) in [
        ("reader", json!(["fleets", "ships"]), json!(["get", "list"])),
        ("half", json!(["fleets"]), json!(["get", "list", "watch"])),
    ] {
        let role: ClusterRole = serde_json::from_value(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": user},
            "rules": [{"apiGroups": ["sea.example.org"], "resources": resources, "verbs": verbs}]
        }))
        .unwrap();
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]
        }))
        .unwrap();
        roles.create(&PostParams::default(), &role).await.unwrap();
        bindings.create(&PostParams::default(), &binding).await.unwrap();
    }
    let reader = sandbox.kubeconfig_for("reader", &[]).unwrap();
    let reader = reader.to_str().unwrap();
    eventually("the rights are there", async || {
        let output = tool.run(&["audit", "-A", "--kubeconfig", reader]).await;
        (output.status.code() == Some(0)).then_some(())
    })
    .await;
    let (code, report) = tool.audit(&["-A", "--kubeconfig", reader]).await;
    assert_eq!((code, report["complete"].as_bool()), (0, Some(true)), "{report:#}");
    assert!(report["unknown"].to_string().contains("may not be read"), "{report:#}");
    // Who has no right to watch can still wait.
    let output = tool
        .run(&["wait", "fleet/armada", "--for=resumed", "--kubeconfig", reader])
        .await;
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(
        out(&output).contains("fleet.sea.example.org/armada running: generation"),
        "{}",
        out(&output)
    );

    // The same user, by impersonation.
    let half = ["audit", "-A", "--as", "half", "--request-timeout", "20s", "-o", "json"];
    let report = eventually("half of the rights are there", async || {
        let report: Value = serde_json::from_slice(&tool.run(&half).await.stdout).unwrap();
        (report["unknown"].as_array().unwrap().len() == 2).then_some(report)
    })
    .await;
    assert_eq!(report["complete"], false);
    assert!(
        report["unknown"]
            .to_string()
            .contains("ships.sea.example.org may not be listed"),
        "{report:#}"
    );
    assert_eq!(tool.run(&half).await.status.code(), Some(2));
}

/// The next line of a watch that has both of these.
async fn next(lines: &mut Lines<BufReader<ChildStdout>>, name: &str, status: &str) -> String {
    let wait = async {
        loop {
            let line = lines.next_line().await.unwrap().expect("the watch goes on");
            if line.contains(name) && line.contains(status) {
                return line;
            }
        }
    };
    let line = tokio::time::timeout(std::time::Duration::from_secs(60), wait).await;
    line.unwrap_or_else(|_| panic!("no row of {name} that is {status}"))
}

/// Every row that changes is printed, as it changes. One that is not asked for any more is shown as it stands.
pub(super) async fn watched(tool: &Tool, sea: &Sea, sandbox: &Sandbox) {
    let mut watch = tool.start(&["audit", "--watch", "--kind", "fleet"]);
    let mut lines = watch.lines();
    let mut unacknowledged = tool.start(&["audit", "--watch", "--unacknowledged", "-o", "csv"]);
    let mut open = unacknowledged.lines();
    // Whoever may not list everything sees the rest of it.
    let half = [
        "audit",
        "-A",
        "--watch",
        "--as",
        "half",
        "-o",
        "name",
        "--cluster",
        "armada",
    ];
    let mut half = tool.start(&half);
    let mut half_lines = half.lines();
    next(&mut lines, "armada", "Acknowledged").await;
    next(&mut half_lines, "fleet.sea.example.org/armada", "").await;
    sea.pause(true).await;
    let line = next(&mut lines, "armada", "Pending").await;
    assert!(line.contains("spec.paused"), "{line}");
    next(&mut open, "armada", "Pending").await;
    sea.answer("armada", "nina", "pinta", true).await;
    next(&mut lines, "armada", "Acknowledged").await;
    let line = next(&mut open, "armada", "Acknowledged").await;
    assert!(line.contains("Acknowledged,true,spec.paused"), "{line}");
    sea.pause(false).await;
    sea.answer("armada", "nina", "pinta", false).await;
    sea.acknowledged("running").await;

    let reader = sandbox.kubeconfig_for("reader", &[]).unwrap();
    let without = tool.start(&["audit", "-A", "--watch", "--kubeconfig", reader.to_str().unwrap()]);
    let (code, _, errors) = without.ends().await;
    assert!(code == 2 && errors.contains("may not be watched"), "{code} {errors}");
}
