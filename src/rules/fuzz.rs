//! Whatever is in a rules file, it is taken or refused with its mistakes; what is taken can be used.

use proptest::prelude::*;

use super::{
    CAPI, Rules,
    error::RulesError,
    manifests::{Endpoint, Target, webhooks},
};
use crate::testing::{any_json, cases, damaged};

fn check(text: &str) -> Result<(), TestCaseError> {
    match Rules::parse(text, "rules.yaml") {
        Ok(rules) => {
            let target = Target::new(Endpoint::Url("https://127.0.0.1".to_owned()));
            let rendered = webhooks(&rules, &target);
            for kind in rules.kinds() {
                prop_assert!(rules.rule_for(&kind).is_some(), "{kind}");
            }
            // What it prints of itself says the same.
            let printed = rules
                .to_yaml()
                .map_err(|error| TestCaseError::fail(error.to_string()))?;
            let again = Rules::parse(&printed, "printed").map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(webhooks(&again, &target), rendered);
            prop_assert_eq!(again.kinds(), rules.kinds());
        }
        Err(error) => {
            let is_read = matches!(error, RulesError::Read { .. });
            prop_assert!(!is_read);
            prop_assert!(!error.mistakes().is_empty());
            prop_assert!(error.to_string().len() < 50_000, "{} bytes", error.to_string().len());
        }
    }
    Ok(())
}

const SMALL: &str = "\
apiVersion: pausegen.io/v1alpha1
kind: Rules
extends: capi
stalenessBound: 60s
rules:
- group: sea.example.org
  kinds: [Fleet, Ship]
  inputs:
  - field: spec.mode
    match: {oneOf: [Hold, \"it's\"]}
    inherited: true
  - annotation: sea.example.org/paused
    match: boolean
  members: {label: sea.example.org/fleet, nameFields: [spec.fleet]}
  attestedBy:
  - name: fleet
    appliesIf: {field: spec.x}
    condition: {type: Paused, messages: [{own: spec.mode, endsWith: held}]}
    lease: {name: fleet-leader, namespace: sea}
  plurals: {Fleet: fleet}
";

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn arbitrary_text_is_answered(text in "\\PC{0,200}|[-:{}\\[\\],&*!|>\"'#% \na-z0-9]{0,200}") {
        check(&text)?;
    }

    #[test]
    fn arbitrary_documents_are_answered(document in any_json(), rules in any_json(), rule in any_json()) {
        check(&document.to_string())?;
        let file = |rules: String| format!("apiVersion: pausegen.io/v1alpha1\nkind: Rules\nrules: {rules}\n");
        check(&file(rules.to_string()))?;
        check(&file(format!("[{rule}]")))?;
    }

    #[test]
    fn damaged_files_are_answered(small in damaged(SMALL)) {
        check(&small)?;
    }
}

proptest! {
    // The whole built-in file takes a while each time.
    #![proptest_config(cases(40))]

    #[test]
    fn damaged_built_in_files_are_answered(text in damaged(CAPI)) {
        check(&text)?;
    }
}

/// Files that are small and would be large, or deep, once they are read.
#[test]
fn files_that_blow_up_are_refused() {
    let mut aliases = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for i in 1..20 {
        let before = i - 1;
        let list = vec![format!("*a{before}"); 9].join(", ");
        aliases.push_str(&format!("a{i}: &a{i} [{list}]\n"));
    }
    let cases = [
        aliases,
        "[".repeat(100_000),
        "{a: ".repeat(50_000),
        "- ".repeat(50_000),
        format!("kind: {}", "x".repeat(4 << 20)),
        format!("rules:\n{}", "- group: a\n".repeat(50_000)),
        "&a [*a]".to_owned(),
        "? ".repeat(10_000),
        "!!binary ".repeat(10_000),
    ];
    for text in cases {
        let error = Rules::parse(&text, "rules.yaml").unwrap_err().to_string();
        assert!(error.len() < 10_000, "{} bytes about {:.40}", error.len(), text);
    }
}
