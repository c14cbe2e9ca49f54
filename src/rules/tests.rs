use k8s_openapi::api::rbac::v1::PolicyRule;
use serde_json::json;

use super::{
    manifests::{Access, Endpoint, Target, cluster_role, webhooks},
    *,
};
use crate::protocol::{
    object::FieldPath,
    rule::{AttestedBy, ConditionsAt, FieldMatch, InputSource},
};

fn parse(text: &str) -> Rules {
    Rules::parse(text, "test.yaml").unwrap_or_else(|error| panic!("{error}"))
}

fn capi() -> Rules {
    Rules::capi().unwrap_or_else(|error| panic!("{error}"))
}

fn mistakes(text: &str) -> String {
    Rules::parse(text, "rules.yaml").unwrap_err().to_string()
}

fn kind(text: &str) -> GroupKind {
    compile::group_kind(text)
}

/// A file whose rules are these lines.
fn file(rules: &str) -> String {
    format!("apiVersion: pausegen.io/v1alpha1\nkind: Rules\nrules:\n{rules}")
}

/// A sound rule for these kinds.
fn rule(group: &str, kinds: &str) -> String {
    format!(
        "- group: {group}\n  kinds: [{kinds}]\n  inputs: [{{annotation: a/b, match: present}}]\n  attestedBy: bound\n"
    )
}

#[test]
fn the_preset_names_owners_before_what_they_own() {
    let rules = capi();
    let kinds: Vec<String> = rules.kinds().iter().map(|kind| kind.kind.clone()).collect();
    assert_eq!(
        kinds,
        [
            "ClusterClass",
            "Cluster",
            "KubeadmControlPlane",
            "MachineDeployment",
            "MachinePool",
            "MachineSet",
            "MachineHealthCheck",
            "Machine",
            "KubeadmConfig",
            "DevMachinePool",
            "DockerMachinePool",
            "DevCluster",
            "DockerCluster",
            "DevMachine",
            "DockerMachine",
            "ClusterResourceSet",
            "ClusterResourceSetBinding",
            "ExtensionConfig",
        ]
    );
    let mut found = [
        kind("AcmeMachine.infrastructure.cluster.x-k8s.io"),
        kind("Machine.cluster.x-k8s.io"),
        kind("Unruled.example.com"),
        kind("AcmeControlPlane.controlplane.cluster.x-k8s.io"),
        kind("AcmeCluster.infrastructure.cluster.x-k8s.io"),
        kind("Cluster.cluster.x-k8s.io"),
    ];
    rules.sort_owners_first(&mut found);
    assert_eq!(
        found.map(|kind| kind.kind),
        [
            "Cluster",
            "AcmeControlPlane",
            "Machine",
            "AcmeCluster",
            "AcmeMachine",
            "Unruled"
        ]
    );
}

#[test]
fn the_preset_knows_the_cluster() {
    let rule = capi().rule_for(&kind("Cluster.cluster.x-k8s.io")).unwrap();
    let paused = rule.input(&InputId("spec.paused".to_owned())).unwrap();
    assert!(paused.inherited);
    assert_eq!(
        paused.source,
        InputSource::Field {
            path: FieldPath::parse("spec.paused"),
            on: FieldMatch::True
        }
    );
    assert!(
        !rule
            .input(&InputId("cluster.x-k8s.io/paused".to_owned()))
            .unwrap()
            .inherited
    );
    let topology = &rule.attestors[1];
    let AttestedBy::Condition(condition) = &topology.by else {
        panic!("{topology:?}")
    };
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str(), condition.at),
        ("TopologyReconciled", "False", ConditionsAt::Status)
    );
    assert!(topology.applies_if.is_some());
    assert!(rule.has_heirs() && !rule.inherits);
}

#[test]
fn every_rule_of_the_preset_has_what_its_controllers_need() {
    let rules = capi();
    let found = [
        "AcmeMachine.infrastructure.cluster.x-k8s.io",
        "AcmeConfig.bootstrap.cluster.x-k8s.io",
    ];
    for kind in rules.kinds().into_iter().chain(found.map(kind)) {
        let rule = rules.rule_for(&kind).unwrap();
        assert!(!rule.inputs.is_empty() && !rule.attestors.is_empty(), "{kind}");
        let named = rules.kinds().contains(&kind);
        for attestor in rule.attestors.iter().filter(|attestor| attestor.by != AttestedBy::None) {
            assert_eq!(attestor.lease.is_some(), named, "the Lease of {kind}");
        }
        // What a Cluster's pause does not reach must not be asked for it.
        let alone = [
            "ClusterClass",
            "Cluster",
            "ClusterResourceSet",
            "ClusterResourceSetBinding",
            "ExtensionConfig",
        ];
        assert_eq!(rule.inherits, !alone.contains(&kind.kind.as_str()), "{kind}");
    }
}

#[test]
fn templates_and_foreign_kinds_have_no_rule() {
    let rules = capi();
    for none in [
        "AcmeMachineTemplate.infrastructure.cluster.x-k8s.io",
        "KubeadmConfigTemplate.bootstrap.cluster.x-k8s.io",
        "MachineDrainRule.cluster.x-k8s.io",
        "IPAddressClaim.ipam.cluster.x-k8s.io",
        "Cluster.example.com",
        "Cluster",
    ] {
        assert_eq!(rules.rule_for(&kind(none)), None, "{none}");
    }
}

#[test]
fn only_infrastructure_clusters_can_be_managed_elsewhere() {
    let rules = capi();
    let elsewhere = |name: &str| {
        let kind = GroupKind::new("infrastructure.cluster.x-k8s.io", name);
        rules.rule_for(&kind).unwrap().managed_elsewhere.is_some()
    };
    assert!(elsewhere("DevCluster") && elsewhere("AcmeManagedCluster"));
    assert!(!elsewhere("DevMachine") && !elsewhere("AcmeMachine"));
}

#[test]
fn the_effective_file_reads_back_as_it_is() {
    let extended = parse(&format!(
        "apiVersion: pausegen.io/v1alpha1\nkind: Rules\nextends: capi\nstalenessBound: 1500ms\nrules:\n{}{}{}",
        rule("infrastructure.cluster.x-k8s.io", "AcmeMachine"),
        rule("cluster.x-k8s.io", "Machine, ClusterClass"),
        rule("example.com", "\"*\"")
    ));
    for rules in [capi(), extended] {
        let again = parse(&rules.to_yaml().unwrap());
        assert_eq!(again.kinds(), rules.kinds());
        assert_eq!(again.to_yaml().unwrap(), rules.to_yaml().unwrap());
        let more = ["X.infrastructure.cluster.x-k8s.io", "Y.example.com"].map(kind);
        for kind in rules.kinds().into_iter().chain(more) {
            assert_eq!(again.rule_for(&kind), rules.rule_for(&kind));
            assert_eq!(again.order(&kind), rules.order(&kind));
        }
    }
}

#[test]
fn a_rule_of_ones_own_comes_first_and_in_the_presets_place() {
    let rules = parse(&format!(
        "apiVersion: pausegen.io/v1alpha1\nkind: Rules\nextends: capi\ngrace: 5s\nrules:\n{}{}{}",
        rule("infrastructure.cluster.x-k8s.io", "AcmeMachine, DevMachine"),
        rule("cluster.x-k8s.io", "Machine"),
        rule("example.com", "Thing")
    ));
    for own in [
        "AcmeMachine.infrastructure.cluster.x-k8s.io",
        "Machine.cluster.x-k8s.io",
    ] {
        assert_eq!(
            rules.rule_for(&kind(own)).unwrap().attestors[0].by,
            AttestedBy::Bound,
            "{own}"
        );
    }
    let preset = rules
        .rule_for(&kind("DockerMachine.infrastructure.cluster.x-k8s.io"))
        .unwrap();
    assert!(matches!(preset.attestors[0].by, AttestedBy::Condition(_)));
    assert_eq!(preset.grace, Duration::from_secs(5));
    assert_eq!(preset.staleness_bound, DEFAULT_STALENESS_BOUND);
    let kinds = rules.kinds();
    let place = |name: &str| kinds.iter().position(|kind| kind.kind == name).unwrap();
    assert!(place("MachineHealthCheck") < place("Machine") && place("Machine") < place("KubeadmConfig"));
    assert!(place("ExtensionConfig") < place("Thing"));
    assert_eq!(kinds.iter().filter(|kind| kind.kind == "Machine").count(), 1);
}

#[test]
fn a_pattern_takes_what_no_earlier_rule_names() {
    let rules = parse(&file(&format!(
        "{}{}  except: [\"*Template\", Odd]\n",
        rule("example.com", "Foo").replace("bound", "none"),
        rule("example.com", "\"*\"")
    )));
    let by = |name: &str| {
        let rule = rules.rule_for(&GroupKind::new("example.com", name))?;
        Some(rule.attestors[0].by.clone())
    };
    assert_eq!(by("Foo"), Some(AttestedBy::None));
    assert_eq!(by("Bar"), Some(AttestedBy::Bound));
    assert_eq!((by("BarTemplate"), by("Odd")), (None, None));
}

#[test]
fn shape_mistakes_are_told_with_their_place() {
    let unknown = file(&rule("example.com", "Foo").replace("inputs", "input"));
    assert_eq!(
        mistakes(&unknown),
        "rules.yaml:6:3: unknown field `input`
  6 |   input: [{annotation: a/b, match: present}]
    |   ^
  help: known here: group, kinds, except, plurals, inputs, members, inherits, references, attestedBy, mirror, requiresOwner, \
         managedElsewhere, stalenessBound, grace"
    );
    let missing = file("- group: example.com\n  kinds: [Foo]\n");
    assert_eq!(
        mistakes(&missing).lines().next(),
        Some("rules.yaml:5:3: the field `attestedBy` is missing")
    );
    let no_match = file(&rule("example.com", "Foo").replace("present", "sometimes"));
    let text = mistakes(&no_match);
    assert!(
        text.starts_with("rules.yaml:6:") && text.contains("\"sometimes\" does not fit here"),
        "{text}"
    );
    assert!(text.ends_with("help: write true, false, present, boolean, {equals: VALUE} or {oneOf: [VALUE, ...]}"));
    let twice = file("").replace("kind: Rules", "kind: Rules\nkind: Rules");
    assert!(mistakes(&twice).starts_with("rules.yaml:3:1: the key `kind` is there twice\n"));
    assert!(mistakes(&file("").replace("rules:", "rules: [")).contains("this is not YAML"));
    assert!(mistakes("").contains("the file is empty"));
}

#[test]
fn contradictions_are_told_with_their_place() {
    let text = mistakes(
        "apiVersion: pausegen.io/v2
kind: Rules
stalenessBound: 500ms
rules:
- group: example.com
  kinds: [Foo, Foo]
  inputs:
  - {field: status.paused, match: true}
  - {annotation: a/b, match: present, inherited: true}
  - {annotation: a/b, match: true}
  attestedBy:
  - name: foo
    condition:
      type: Paused
      messages:
      - {own: a/c, endsWith: paused}
- group: example.com
  kinds: [Foo]
  inherits: true
  references: [metadata.name]
  attestedBy: []
- group: \"\"
  kinds: [\"*\"]
  attestedBy: none
",
    );
    let told: Vec<&str> = text.lines().filter(|line| line.starts_with("rules.yaml:")).collect();
    assert_eq!(
        told,
        [
            "rules.yaml:1:13: `pausegen.io/v2` is no version that this program reads",
            "rules.yaml:3:17: a staleness bound of 500ms promises more than watches can keep",
            "rules.yaml:6:16: Foo.example.com is there twice",
            "rules.yaml:8:13: `status.paused` is below `status`",
            "rules.yaml:9:5: it does not say who inherits this input",
            "rules.yaml:10:30: this match is for fields",
            "rules.yaml:16:9: `a/c` is no input of this rule",
            "rules.yaml:18:11: Foo.example.com is never reached: the rule at line 5 is for it",
            "rules.yaml:20:16: `metadata.name` is below `metadata`",
            "rules.yaml:21:15: nobody answers for these kinds",
            "rules.yaml:22:3: nothing can pause these kinds",
            "rules.yaml:22:10: a pattern needs a group",
        ]
    );
    assert!(text.contains(
        "
rules.yaml:16:9: `a/c` is no input of this rule
  16 |       - {own: a/c, endsWith: paused}
     |         ^
  help: known: a/b, status.paused
"
    ));
}

#[test]
fn what_cannot_be_compared_is_refused() {
    let with = |input: &str| file(&rule("example.com", "Foo").replace("{annotation: a/b, match: present}", input));
    for (input, told) in [
        (
            "{annotation: pausegen.io/x, match: present}",
            "pausegen's own annotations",
        ),
        ("{annotation: \"a b\", match: present}", "is no annotation key"),
        ("{field: spec.a.b.c.d.e.f, match: true}", "is too deep"),
        ("{field: \"spec.list[0]\", match: true}", "is no path"),
        ("{field: spec.mode, match: {oneOf: [\"\"]}}", "an empty value"),
        (
            "{field: spec.mode, annotation: a/b, match: true}",
            "either a field or an annotation",
        ),
        (
            &format!("{{annotation: a/b, match: {{equals: {}}}}}", "x".repeat(201)),
            "more than 200 bytes",
        ),
    ] {
        let text = mistakes(&with(input));
        assert!(text.starts_with("rules.yaml:6:") && text.contains(told), "{text}");
    }
}

#[test]
fn what_a_controller_answers_for_has_to_be_known() {
    let with = |attestor: &str| {
        let rule = rule("cluster.x-k8s.io", "Foo").replace("bound", &format!("\n  - {{name: foo, {attestor}}}"));
        file(&rule).replace("rules:", "extends: capi\nrules:")
    };
    for (attestor, told) in [
        ("by: bound, answersFor: [{own: a/c}]", "`a/c` is no input of this rule"),
        (
            "by: bound, answersFor: [{inherited: spec.pause}]",
            "lets members inherit",
        ),
        (
            "by: bound, answersFor: [{inherited: spec.paused}]",
            "this rule's kinds inherit nothing",
        ),
        ("by: bound, answersFor: [{}]", "this does not say which input"),
        (
            "by: bound, condition: {type: Paused}",
            "either in a condition or without one",
        ),
        ("appliesIf: {field: spec.x}", "either in a condition or without one"),
        ("by: bound, appliesIf: {}", "this does not say for which objects"),
        (
            "condition: {type: Paused, messages: [{own: a/b, endsWith: \"a, b\"}]}",
            "no part of a message ends with this text",
        ),
    ] {
        let text = mistakes(&with(attestor));
        assert!(text.contains(told), "{text}");
    }
}

#[test]
fn what_others_inherit_is_not_lost_by_accident() {
    let own = file(&rule("cluster.x-k8s.io", "Cluster")).replace("rules:", "extends: capi\nrules:");
    assert_eq!(
        mistakes(&own).lines().next(),
        Some("rules.yaml:6:11: Cluster.cluster.x-k8s.io loses the input spec.paused, which other kinds inherit")
    );
}

#[test]
fn resources_are_named_as_kubernetes_does() {
    let named = rule("example.com", "Proxy, Class, Foo, Sheep") + "  plurals: {Sheep: sheep}\n";
    let rules = parse(&file(&named));
    let plurals: Vec<String> = rules.kinds().iter().map(|kind| rules.plural(kind)).collect();
    assert_eq!(plurals, ["proxies", "classes", "foos", "sheep"]);
}

#[test]
fn the_webhooks_leave_nothing_to_defaults() {
    let mut target = Target::new(Endpoint::Service {
        namespace: "ops".to_owned(),
        name: "pausegen".to_owned(),
        port: 443,
    });
    target.failure_policy = manifests::FailurePolicy::Ignore;
    let (mutating, validating) = webhooks(&capi(), &target);
    let mutating = serde_json::to_value(mutating).unwrap();
    let validating = serde_json::to_value(validating).unwrap();
    let all = mutating["webhooks"]
        .as_array()
        .unwrap()
        .iter()
        .chain(validating["webhooks"].as_array().unwrap());
    for webhook in all {
        for field in [
            "failurePolicy",
            "matchPolicy",
            "namespaceSelector",
            "objectSelector",
            "timeoutSeconds",
        ] {
            assert!(!webhook[field].is_null(), "{field} of {}", webhook["name"]);
        }
        assert_eq!(webhook["sideEffects"], json!("None"));
        assert_eq!(webhook["failurePolicy"], json!("Ignore"));
        assert_eq!(webhook["clientConfig"]["service"]["port"], json!(443));
        assert_eq!(webhook["rules"][0]["scope"], json!("*"));
    }
    assert_eq!(mutating["webhooks"][1]["name"], json!("keys.pausegen.io"));
    target.failure_policy = manifests::FailurePolicy::Fail;
    let (mutating, _) = webhooks(&capi(), &target);
    let policies: Vec<_> = mutating
        .webhooks
        .unwrap()
        .into_iter()
        .map(|w| w.failure_policy.unwrap())
        .collect();
    assert_eq!(policies, ["Fail", "Ignore"]);
}

#[test]
fn the_conditions_are_short_for_the_preset() {
    let rules = capi();
    assert_eq!(
        cel::ruled(&rules).unwrap(),
        "!(request.kind.group in ['controlplane.cluster.x-k8s.io', 'bootstrap.cluster.x-k8s.io', \
         'infrastructure.cluster.x-k8s.io']) ||\n  !request.kind.kind.endsWith('Template')"
    );
    assert_eq!(
        cel::flips(&rules),
        "(object.?metadata.?annotations[?'cluster.x-k8s.io/paused'].hasValue() !=
   oldObject.?metadata.?annotations[?'cluster.x-k8s.io/paused'].hasValue()) ||
(request.kind.group == 'cluster.x-k8s.io' && request.kind.kind == 'Cluster' &&
  ((type(object.?spec.orValue(null)) == map && object.spec.?paused.orValue(false) == true) !=
   (type(oldObject.?spec.orValue(null)) == map && oldObject.spec.?paused.orValue(false) == true)))"
    );
}

#[test]
fn the_role_grants_what_the_rules_need_and_no_more() {
    let rules = parse(&file(&format!(
        "{}- group: example.com\n  kinds: [Only]\n  attestedBy: none\n  inherits: true\n{}",
        "- group: example.com\n  kinds: [Foo]\n  members: {ownerChain: true}\n  attestedBy: bound\n  \
         inputs: [{field: spec.paused, match: true, inherited: true}]\n",
        rule("other.example.com", "\"*\"")
    )));
    let may = |access: &Access, group: &str, resource: &str, verb: &str| {
        let has = |list: &Option<Vec<String>>, wanted: &str| list.iter().flatten().any(|have| have == wanted);
        let allows = |rule: &PolicyRule| {
            has(&rule.api_groups, group) && has(&rule.resources, resource) && rule.verbs.iter().any(|v| v == verb)
        };
        cluster_role(&rules, access).rules.unwrap().iter().any(allows)
    };
    let none = Access::default();
    assert!(may(&none, "example.com", "foos", "patch") && may(&none, "example.com", "foos/status", "patch"));
    assert!(may(&none, "example.com", "onlies", "watch"));
    assert!(!may(&none, "example.com", "onlies", "patch") && !may(&none, "example.com", "onlies/status", "patch"));
    assert!(!may(&none, "example.com", "foos", "update") && !may(&none, "example.com", "foos", "delete"));
    assert!(!may(&none, "other.example.com", "bars", "list") && !may(&none, "other.example.com", "*", "list"));
    let installed = Access {
        installed: vec![("other.example.com".to_owned(), "bars".to_owned())],
        ..Access::default()
    };
    assert!(may(&installed, "other.example.com", "bars", "patch"));
    assert!(!may(&installed, "example.com", "bars", "list"));
    let discover = Access {
        discover_providers: true,
        ..Access::default()
    };
    assert!(may(&discover, "other.example.com", "*", "list") && !may(&discover, "example.com", "*", "list"));
}

#[test]
fn a_mirror_may_be_written_and_is_nobodys_answer() {
    let fleet = "- group: g\n  kinds: [Fleet]\n  inputs: [{field: spec.paused, match: true, inherited: true}]\n  \
                 members: {ownerChain: true}\n  attestedBy: bound\n";
    let ship = "- group: g\n  kinds: [Ship]\n  inherits: true\n  mirror: true\n  attestedBy: bound\n";
    let boat = "- group: g\n  kinds: [Boat]\n  inherits: true\n  attestedBy: bound\n";
    let rules = parse(&file(&format!("{fleet}{ship}{boat}")));
    assert!(rules.is_mirrored(&kind("Ship.g")) && !rules.is_mirrored(&kind("Boat.g")));
    let role = cluster_role(&rules, &Access::default()).rules.unwrap();
    let may_patch = |resource: &str| {
        role.iter().any(|rule| {
            rule.verbs.iter().any(|verb| verb == "patch") && rule.resources.iter().flatten().any(|of| of == resource)
        })
    };
    for (resource, granted) in [
        ("fleets", true),
        ("fleets/status", true),
        ("ships", false),
        ("ships/status", true),
        ("boats/status", false),
    ] {
        assert_eq!(may_patch(resource), granted, "{resource}");
    }
    assert!(
        parse(&rules.to_yaml().unwrap()).is_mirrored(&kind("Ship.g")),
        "it is lost in the effective file"
    );

    let answered = ship.replace(
        "attestedBy: bound",
        "attestedBy: [{name: ship, condition: {type: Paused}}]",
    );
    let said = mistakes(&file(&format!("{fleet}{answered}")));
    assert!(
        said.contains("nobody's answer") && said.contains("rules.yaml:13"),
        "{said}"
    );
    let other = ship.replace(
        "attestedBy: bound",
        "attestedBy: [{name: ship, condition: {type: Held}}]",
    );
    parse(&file(&format!("{fleet}{other}")));
}

#[test]
fn the_schema_describes_every_key() {
    let schema = serde_json::to_value(schemars::schema_for!(RulesFile)).unwrap();
    let rule = &schema["$defs"]["RuleFile"]["properties"];
    for key in [
        "group",
        "kinds",
        "inputs",
        "members",
        "attestedBy",
        "requiresOwner",
        "managedElsewhere",
    ] {
        assert!(
            rule[key]["description"].is_string() || rule[key]["anyOf"].is_array(),
            "{key}: {rule}"
        );
    }
    assert_eq!(schema["$defs"]["RuleFile"]["additionalProperties"], json!(false));
}
