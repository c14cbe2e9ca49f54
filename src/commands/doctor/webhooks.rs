//! The webhook configurations: there, as the rules need them, with a CA, and called late enough.

use std::collections::BTreeMap;

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::{Findings, Settings, Status};
use crate::rules::{
    Rules,
    manifests::{self, Endpoint, FLIP, KEYS, Target},
    server::Cluster,
};

/// What matters of a webhook.
#[derive(Debug, PartialEq)]
struct Webhook {
    conditions: Vec<MatchCondition>,
    rules: Vec<RuleWithOperations>,
    failure_policy: String,
    side_effects: String,
    has_object_selector: bool,
    client: WebhookClientConfig,
}

/// The webhooks of a configuration by name.
macro_rules! by_name {
    ($configuration:expr) => {{
        let webhooks = $configuration.webhooks.unwrap_or_default().into_iter();
        let webhooks = webhooks.map(|webhook| {
            let selector = webhook.object_selector.unwrap_or_default();
            let seen = Webhook {
                conditions: webhook.match_conditions.unwrap_or_default(),
                rules: webhook.rules.unwrap_or_default(),
                failure_policy: webhook.failure_policy.unwrap_or_default(),
                side_effects: webhook.side_effects,
                has_object_selector: selector.match_labels.is_some_and(|labels| !labels.is_empty())
                    || selector.match_expressions.is_some_and(|list| !list.is_empty()),
                client: webhook.client_config,
            };
            (webhook.name, seen)
        });
        webhooks.collect::<BTreeMap<String, Webhook>>()
    }};
}

/// Looks at both configurations, and at who comes after them.
pub(super) async fn check(
    client: &Client,
    rules: &Rules,
    cluster: &Cluster,
    settings: &Settings,
    findings: &mut Findings,
) {
    let name = &settings.webhook_configuration;
    // Only what the rules decide is compared: the address is the installation's.
    let (mutating, validating) = manifests::webhooks(rules, &Target::new(Endpoint::Url("https://any".to_owned())));
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    match api.get_opt(name).await {
        Ok(found) => {
            let found = found.map(|found| by_name!(found));
            compare("mutating", name, found, &by_name!(mutating), findings);
        }
        Err(error) => findings.unanswered("webhooks", &format!("mutatingwebhookconfiguration {name}"), &error),
    }
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    match api.get_opt(name).await {
        Ok(found) => {
            let found = found.map(|found| by_name!(found));
            compare("validating", name, found, &by_name!(validating), findings);
        }
        Err(error) => findings.unanswered("webhooks", &format!("validatingwebhookconfiguration {name}"), &error),
    }
    order(client, rules, cluster, name, findings).await;
}

fn compare(
    which: &str,
    name: &str,
    found: Option<BTreeMap<String, Webhook>>,
    wanted: &BTreeMap<String, Webhook>,
    findings: &mut Findings,
) {
    let remedy = "apply the chart, or what `pausegen manifests` prints, with the rules that serve has";
    let Some(found) = found else {
        let message = format!("there is no {which}webhookconfiguration {name}: flips are not stamped");
        return findings.advise("webhooks", Status::Problem, message, remedy);
    };
    let mut all_well = true;
    let mut wrong = |status, message: String, remedy: &str| {
        all_well = false;
        findings.advise("webhooks", status, message, remedy);
    };
    for (webhook, wanted) in wanted {
        let Some(found) = found.get(webhook) else {
            wrong(
                Status::Problem,
                format!("{which}webhookconfiguration {name} has no webhook {webhook}"),
                remedy,
            );
            continue;
        };
        let mut differs = Vec::new();
        if found.conditions != wanted.conditions {
            differs.push("matchConditions");
        }
        if found.rules != wanted.rules {
            differs.push("rules");
        }
        if found.side_effects != wanted.side_effects {
            differs.push("sideEffects");
        }
        if found.has_object_selector {
            differs.push("objectSelector");
        }
        if !differs.is_empty() {
            let message = format!(
                "{webhook} ({which}): {} are not what the rules need",
                differs.join(", ")
            );
            wrong(Status::Problem, message, remedy);
        }
        if webhook != KEYS && found.failure_policy != "Fail" {
            let message = format!(
                "{webhook} ({which}) has failurePolicy {}: while no replica answers, flips pass without a stamp, and every \
                 acknowledgement rests on time",
                found.failure_policy
            );
            wrong(Status::Warning, message, "set webhook.failurePolicy=Fail");
        }
        if webhook == KEYS && found.failure_policy != "Ignore" {
            let message = format!(
                "{webhook} has failurePolicy {}: an outage stops rollouts",
                found.failure_policy
            );
            wrong(Status::Warning, message, remedy);
        }
        if let Err(what) = ca(&found.client) {
            let message = format!("{webhook} ({which}): {what}: the API server cannot trust the webhook");
            wrong(
                Status::Problem,
                message,
                "see whether the source of the certificates publishes its CA (certificates.source)",
            );
        }
    }
    if all_well {
        findings.add(
            "webhooks",
            Status::Ok,
            format!("{which}webhookconfiguration {name} is what the rules need"),
        );
    }
}

/// The certificates of a `caBundle`.
fn ca(client: &WebhookClientConfig) -> Result<Vec<CertificateDer<'static>>, String> {
    let Some(bundle) = client.ca_bundle.as_ref().filter(|bundle| !bundle.0.is_empty()) else {
        return Err("there is no caBundle".to_owned());
    };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bundle.0).collect();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        Ok(_) => Err("there is no certificate in caBundle".to_owned()),
        Err(error) => Err(format!("caBundle is no PEM: {error}")),
    }
}

/// A webhook that comes after ours and changes an input leaves a wrong stamp, which validation then refuses.
async fn order(client: &Client, rules: &Rules, cluster: &Cluster, name: &str, findings: &mut Findings) {
    let api: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let all = match api.list(&ListParams::default()).await {
        Ok(all) => all,
        Err(error) => return findings.unanswered("order", "which other mutating webhooks there are", &error),
    };
    let ruled = cluster
        .kinds
        .iter()
        .filter(|served| rules.rule_for(&served.kind).is_some());
    let ruled: Vec<(&str, &str)> = ruled
        .map(|served| (served.kind.group.as_str(), served.plural.as_str()))
        .collect();
    let later: Vec<String> = all
        .into_iter()
        .filter(|configuration| configuration.name_any().as_str() > name)
        .filter(|configuration| {
            let mut webhooks = configuration.webhooks.iter().flatten();
            webhooks.any(|webhook| webhook.rules.iter().flatten().any(|rule| is_for(rule, &ruled)))
        })
        .map(|configuration| configuration.name_any())
        .collect();
    if later.is_empty() {
        findings.add(
            "order",
            Status::Ok,
            format!("no other mutating webhook for ruled kinds is called after {FLIP}"),
        );
    } else {
        findings.advise(
            "order",
            Status::Warning,
            format!("called after ours, for ruled kinds: {}", later.join(", ")),
            "if one of them sets what pauses an object, such writes are refused: give it a name that sorts before ours",
        );
    }
}

fn is_for(rule: &RuleWithOperations, resources: &[(&str, &str)]) -> bool {
    let has = |list: &Option<Vec<String>>, value: &str| {
        list.iter()
            .flatten()
            .any(|entry| entry == value || entry == "*" || entry == "*/*")
    };
    let operations = ["CREATE", "UPDATE"]
        .iter()
        .any(|operation| has(&rule.operations, operation));
    let mut resources = resources.iter();
    operations && resources.any(|(group, plural)| has(&rule.api_groups, group) && has(&rule.resources, plural))
}
