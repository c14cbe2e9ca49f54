//! What the Dockerfile makes is what the chart runs.

use serde_json::{Value, json};

use super::{one, template};

/// The instructions of the last stage, lines put together.
fn last_stage() -> Vec<(String, String)> {
    let text = include_str!("../../../Dockerfile").replace("\\\n", " ");
    let lines = text
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut instructions: Vec<(String, String)> = lines
        .map(|line| line.split_once(' ').unwrap())
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .collect();
    let from = instructions.iter().rposition(|(name, _)| name == "FROM").unwrap();
    instructions.split_off(from)
}

#[test]
fn the_image_has_the_binary_and_the_user_that_the_chart_runs() {
    let stage = last_stage();
    let get = |name: &str| {
        let found = stage.iter().rfind(|(instruction, _)| instruction == name);
        found.map(|(_, value)| value.clone()).unwrap_or_default()
    };
    let entrypoint: Value = serde_json::from_str(&get("ENTRYPOINT")).unwrap();
    let binary = entrypoint[0].as_str().unwrap().to_owned();
    assert!(get("COPY").ends_with(&binary), "{stage:?}");

    let objects = template(&["--set", "cleanup.onUninstall=true"]).unwrap();
    let pods = [
        ("serve", &one(&objects, "Deployment")["spec"]["template"]["spec"]),
        ("cleanup", &one(&objects, "Job")["spec"]["template"]["spec"]),
        ("doctor", &one(&objects, "Pod")["spec"]),
    ];
    for (subcommand, pod) in pods {
        let context = &pod["securityContext"];
        assert_eq!(
            get("USER"),
            format!("{}:{}", context["runAsUser"], context["runAsGroup"])
        );
        assert_eq!(context["runAsNonRoot"], true);
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0];
        assert_eq!(container["command"], entrypoint);
        assert_eq!(container["args"][0], subcommand);
        assert_eq!(
            container["securityContext"],
            json!({
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            })
        );
        // The program takes these arguments: it stops at what they say, not at how they are written.
        let args = container["args"]
            .as_array()
            .unwrap()
            .iter()
            .map(|arg| arg.as_str().unwrap());
        let parsed = <pausegen::commands::Cli as clap::Parser>::try_parse_from([&binary[..]].into_iter().chain(args));
        if let Err(error) = parsed {
            panic!("{subcommand}: {error}");
        }
    }
    let ports = &one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["ports"];
    let ports: Vec<String> = ports
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["containerPort"].to_string())
        .collect();
    assert_eq!(get("EXPOSE"), ports.join(" "));
}
