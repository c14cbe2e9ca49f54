//! What the chart renders, without a cluster.

use pausegen::rules::{
    Rules, deploy,
    manifests::{
        Access, Endpoint, FailurePolicy, Own, Target, cluster_role, cluster_role_binding, role, role_binding,
        service_account, to_yaml, webhooks,
    },
};
use serde_json::{Value, json};

use super::{folder, helm, one, pausegen, run, template, values};

/// Rules with everything that the chart has to put together: named kinds that are written, read and mirrored, and patterns
/// of both sorts.
const OWN: &str = r#"
apiVersion: pausegen.io/v1alpha1
kind: Rules
rules:
- group: write.example.com
  kinds: [Fleet]
  inputs: [{field: spec.paused, match: true, inherited: true}]
  members: {ownerChain: true}
  attestedBy: bound
- group: write.example.com
  kinds: ["*"]
  inputs: [{annotation: write.example.com/paused, match: {equals: "it's"}}]
  inherits: true
  attestedBy: bound
- group: read.example.com
  kinds: [Ship]
  inputs: [{annotation: read.example.com/paused, match: present}]
  inherits: true
  attestedBy: bound
- group: read.example.com
  kinds: [Boat, Sheep]
  plurals: {Sheep: sheep}
  inherits: true
  attestedBy: bound
- group: read.example.com
  kinds: ["*"]
  inherits: true
  attestedBy: none
"#;

/// A generated file is in step. `PAUSEGEN_UPDATE=1` writes it anew.
fn in_step(path: &str, generated: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("PAUSEGEN_UPDATE").is_some() {
        std::fs::write(&path, generated).unwrap();
    }
    assert!(
        std::fs::read_to_string(&path).unwrap() == generated,
        "{} is not what is generated: run this test with PAUSEGEN_UPDATE=1",
        path.display()
    );
}

#[test]
fn the_built_in_rules_are_those_of_the_program() {
    let generated = pausegen(&["manifests", "-o", "helm-values"]).unwrap();
    in_step("charts/pausegen/files/built-in-rules.yaml", &generated);
}

#[test]
fn what_runs_without_helm_is_what_the_chart_runs() {
    let rules = values(OWN, &[]);
    let image = format!("image.tag={}", deploy::IMAGE.rsplit_once(':').unwrap().1);
    let own = format!("rules.file={}", deploy::RULES_FILE);
    let mut objects = template(&[
        "-f",
        rules.path().to_str().unwrap(),
        "--set-string",
        &image,
        "--set",
        &own,
    ])
    .unwrap();
    objects.retain(|object| deploy::KINDS.contains(&object["kind"].as_str().unwrap()));
    // Helm's own labels.
    fn strip(value: &mut Value) {
        if let Value::Object(fields) = value {
            fields.remove("helm.sh/chart");
            fields.remove("app.kubernetes.io/managed-by");
            fields.values_mut().for_each(strip);
        }
    }
    let mut text = "# What the chart renders with its defaults: not to be edited.\n".to_owned();
    for object in &mut objects {
        strip(object);
        text.push_str(&format!("---\n{}", to_yaml(object).unwrap()));
    }
    in_step("src/rules/deploy.yaml", &text);
}

#[test]
fn it_has_no_lint() {
    run(helm().args(["lint", "--strict"]).arg(folder())).unwrap();
}

fn without_metadata(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("metadata");
    object
}

#[test]
fn rights_and_webhooks_are_those_that_the_program_generates() {
    let kind = |text: &str| {
        let (resource, group) = text.split_once('.').unwrap();
        (group.to_owned(), resource.to_owned())
    };
    let capi = include_str!("../../../src/rules/capi.yaml");
    let foo = "foomachines.infrastructure.cluster.x-k8s.io";
    let cases: [(&str, &[&str]); 6] = [
        (capi, &[]),
        (capi, &[foo, "awscontrolplanes.controlplane.cluster.x-k8s.io"]),
        (capi, &["*"]),
        (OWN, &[]),
        (
            OWN,
            &[
                "foos.write.example.com",
                "bars.read.example.com",
                "ships.read.example.com",
            ],
        ),
        (OWN, &["*"]),
    ];
    for (rules, installed) in cases {
        let parsed = Rules::parse(rules, "rules").unwrap();
        let discover = installed == ["*"];
        let args: Vec<&str> = if discover {
            vec!["--discover-providers"]
        } else {
            installed.iter().flat_map(|kind| ["--installed-kind", kind]).collect()
        };
        let values = values(rules, &args);
        let objects = template(&["-f", values.path().to_str().unwrap()]).unwrap();
        let access = Access {
            discover_providers: discover,
            installed: installed.iter().filter(|_| !discover).map(|text| kind(text)).collect(),
            own_ca: true,
        };
        let role = serde_json::to_value(cluster_role(&parsed, &access)).unwrap();
        assert_eq!(one(&objects, "ClusterRole")["rules"], role["rules"], "{installed:?}");

        let service = |port| Endpoint::Service {
            namespace: super::NAMESPACE.to_owned(),
            name: "pausegen".to_owned(),
            port,
        };
        let (mutating, validating) = webhooks(&parsed, &Target::new(service(443)));
        for (name, generated) in [
            ("MutatingWebhookConfiguration", serde_json::to_value(mutating).unwrap()),
            (
                "ValidatingWebhookConfiguration",
                serde_json::to_value(validating).unwrap(),
            ),
        ] {
            let rendered = one(&objects, name);
            assert_eq!(without_metadata(rendered), without_metadata(&generated), "{name}");
            assert_eq!(rendered["metadata"]["name"], generated["metadata"]["name"]);
        }
        let file = one(&objects, "ConfigMap")["data"]["rules.yaml"].as_str().unwrap();
        assert_eq!(file.trim_end(), parsed.to_yaml().unwrap().trim_end());
    }
    // What is set here reaches the webhooks that it should.
    let objects = template(&[
        "--set",
        "webhook.failurePolicy=Ignore,webhook.flipsMayPassUnstamped=true,service.port=8443",
        "--set",
        "webhook.namespaceSelector.matchLabels.watched=yes",
    ])
    .unwrap();
    let mut target = Target::new(Endpoint::Service {
        namespace: super::NAMESPACE.to_owned(),
        name: "pausegen".to_owned(),
        port: 8443,
    });
    target.failure_policy = FailurePolicy::Ignore;
    target.namespace_selector = serde_json::from_value(json!({ "matchLabels": { "watched": "yes" } })).unwrap();
    let (mutating, _) = webhooks(&Rules::capi().unwrap(), &target);
    assert_eq!(
        one(&objects, "MutatingWebhookConfiguration")["webhooks"],
        serde_json::to_value(mutating).unwrap()["webhooks"]
    );
    let arguments = one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    assert!(arguments.contains("--flip-failure-policy=Ignore"), "{arguments}");
    // The built-in rules are in the program.
    assert!(!objects.iter().any(|object| object["kind"] == "ConfigMap"));
    assert!(!arguments.contains("--rules"), "{arguments}");
}

#[test]
fn its_own_rights_are_those_that_the_program_generates() {
    for (source, secret) in [("self", Some("pausegen-tls")), ("cert-manager", None)] {
        let objects = template(&["--set", &format!("certificates.source={source}")]).unwrap();
        let own = Own {
            tls_secret: secret.map(str::to_owned),
            ..Own::default()
        };
        let generated = serde_json::to_value(role(&own)).unwrap();
        assert_eq!(one(&objects, "Role")["rules"], generated["rules"], "{source}");
        let subject = service_account(super::NAMESPACE, "pausegen");
        for (kind, generated) in [
            (
                "RoleBinding",
                serde_json::to_value(role_binding(&own, subject.clone())).unwrap(),
            ),
            (
                "ClusterRoleBinding",
                serde_json::to_value(cluster_role_binding(subject)).unwrap(),
            ),
        ] {
            assert_eq!(
                without_metadata(one(&objects, kind)),
                without_metadata(&generated),
                "{source}"
            );
        }
        let arguments = &one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
        let arguments = arguments.as_array().unwrap();
        assert!(arguments.contains(&json!("--lease=pausegen")), "{arguments:?}");
        assert_eq!(
            arguments.contains(&json!("--tls-secret=pausegen-tls")),
            secret.is_some()
        );
    }
}

#[test]
fn cert_manager_cares_for_what_is_mounted_and_what_is_called() {
    let objects = template(&["--set", "certificates.source=cert-manager,fullnameOverride=stamps"]).unwrap();
    let certificates = objects.iter().filter(|object| object["kind"] == "Certificate");
    let (ca, serving): (Vec<&Value>, Vec<&Value>) = certificates.partition(|object| object["spec"]["isCA"] == true);
    let ([ca], [serving]) = (&ca[..], &serving[..]) else {
        panic!("{ca:?} {serving:?}")
    };
    let inject = format!("{}/{}", super::NAMESPACE, serving["metadata"]["name"].as_str().unwrap());
    for kind in ["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"] {
        let configuration = one(&objects, kind);
        assert_eq!(
            configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"],
            json!(inject)
        );
        for webhook in configuration["webhooks"].as_array().unwrap() {
            let service = &webhook["clientConfig"]["service"];
            let host = format!(
                "{}.{}.svc",
                service["name"].as_str().unwrap(),
                service["namespace"].as_str().unwrap()
            );
            assert_eq!(serving["spec"]["dnsNames"], json!([host]));
            assert!(webhook["clientConfig"].get("caBundle").is_none(), "{webhook}");
        }
    }
    let pod = &one(&objects, "Deployment")["spec"]["template"]["spec"];
    assert_eq!(
        pod["volumes"],
        json!([{ "name": "tls", "secret": { "secretName": serving["spec"]["secretName"] } }])
    );
    let args = pod["containers"][0]["args"].as_array().unwrap();
    for arg in ["--tls-source=cert-manager", "--tls-cert=/etc/pausegen/tls/tls.crt"] {
        assert!(args.contains(&json!(arg)), "{args:?}");
    }
    let named = &serving["spec"]["issuerRef"]["name"];
    let mut issuers = objects.iter().filter(|object| object["kind"] == "Issuer");
    let issuer = issuers.find(|issuer| issuer["metadata"]["name"] == *named).unwrap();
    assert_eq!(issuer["spec"]["ca"]["secretName"], ca["spec"]["secretName"]);

    let given = "certificates.issuerRef.name=ours,certificates.issuerRef.kind=ClusterIssuer";
    let objects = template(&["--set", "certificates.source=cert-manager", "--set", given]).unwrap();
    assert_eq!(
        one(&objects, "Certificate")["spec"]["issuerRef"],
        json!({ "name": "ours", "kind": "ClusterIssuer" })
    );
    for source in ["source=self", "source=files,certificates.secretName=mine"] {
        let objects = template(&["--set", &format!("certificates.{source}")]).unwrap();
        let mut rest = objects.iter();
        assert!(
            !rest.any(|object| object.to_string().contains("cert-manager")),
            "{source}"
        );
    }
}

#[test]
fn manifests_for_another_place_fit_together() {
    let deploy = ["manifests", "deploy", "rbac", "webhooks"];
    let image = ["--image", "registry.example.com/pausegen:1"];
    let place = ["--service", "ops/pausegen", "--service-account", "ops/pausegen"];
    let run = |args: &[&[&str]]| pausegen(&[&deploy[..], &args.concat()].concat());
    let text = run(&[
        &image,
        &place,
        &["--service-port", "8443", "--failure-policy", "Ignore"],
    ])
    .unwrap();
    assert!(!text.contains(super::NAMESPACE), "{text}");
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let called = &one(&objects, "MutatingWebhookConfiguration")["webhooks"][0]["clientConfig"]["service"];
    let service = one(&objects, "Service");
    assert_eq!(service["spec"]["ports"][0]["port"], 8443);
    assert_eq!(
        json!([called["port"], called["name"], called["namespace"]]),
        json!([8443, service["metadata"]["name"], service["metadata"]["namespace"]])
    );
    let container = &one(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "registry.example.com/pausegen:1");
    let args = container["args"].as_array().unwrap();
    for arg in [
        "--flip-failure-policy=Ignore",
        "--tls-name=pausegen.ops.svc",
        "--companion-user=system:serviceaccount:ops:pausegen",
    ] {
        assert!(args.contains(&json!(arg)), "{args:?}");
    }
    let cases: [(&[&str], &str); 4] = [
        (&[], "--image is missing"),
        (&["--namespace", "ops"], "--namespace ops is not that of --service"),
        (&["--service", "ops/other"], "use the Helm chart for other names"),
        (
            &["--installed-kind", "clusters.cluster.x-k8s.io"],
            "no rule has a pattern for that group",
        ),
    ];
    for (args, expected) in cases {
        let image = if args.is_empty() { &[][..] } else { &image };
        let said = run(&[image, args]).unwrap_err();
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}

#[test]
fn wrong_values_are_refused_and_named() {
    let cases: [(&str, &str); 15] = [
        ("replica=3", "additional properties 'replica' not allowed"),
        ("replicas=0", "at '/replicas': minimum: got 0, want 1"),
        (
            "webhook.failurePolicy=Maybe",
            "at '/webhook/failurePolicy': value must be one of 'Fail', 'Ignore'",
        ),
        (
            "webhook.failurePolicy=Ignore",
            "If that is a risk that you take, set webhook.flipsMayPassUnstamped=true",
        ),
        ("certificates.source=letsencrypt", "at '/certificates/source'"),
        ("certificates.source=files", "name the Secret with tls.crt and tls.key"),
        (
            "certificates.clientCA.names={kube-apiserver}",
            "certificates.clientCA.configMapName is empty",
        ),
        (
            "topologySpreadConstraints[0].labelSelector.a=b",
            "additional properties 'labelSelector' not allowed",
        ),
        (
            "policies.hasty=sometimes",
            "at '/policies/hasty': value must be one of 'off', 'warn', 'deny'",
        ),
        (
            "installedKinds={foomachines}",
            "at '/installedKinds/0': 'foomachines' does not match pattern",
        ),
        (
            "installedKinds={clusters.cluster.x-k8s.io}",
            "no rule has a pattern for the group of clusters.cluster.x-k8s.io",
        ),
        ("shutdownDelay=45s", "at '/shutdownDelay'"),
        ("rules.file=x", "at '/rules': missing properties"),
        (
            "limits.maxMibInFlight=4",
            "at '/limits/maxMibInFlight': minimum: got 4, want 8",
        ),
        ("image.repository=", "image.repository is empty: build the image"),
    ];
    for (setting, expected) in cases {
        let said = template(&["--set", setting]).expect_err(setting);
        assert!(said.contains(expected), "{setting}: {said}");
    }
    // What an older program generated.
    let old = values(OWN, &[]);
    let said = template(&[
        "-f",
        old.path().to_str().unwrap(),
        "--set-string",
        "rules.version=0.0.1",
    ])
    .unwrap_err();
    assert!(
        said.contains("they were generated by pausegen 0.0.1") && said.contains("generate them anew"),
        "{said}"
    );
}

#[test]
fn replicas_decide_whether_there_is_a_budget() {
    let has = |replicas: &str| {
        let objects = template(&["--set", replicas]).unwrap();
        objects.iter().any(|object| object["kind"] == "PodDisruptionBudget")
    };
    assert!(has("replicas=2"));
    assert!(
        !has("replicas=1"),
        "it would keep the only replica's node from being drained"
    );
}
