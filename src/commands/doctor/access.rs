//! What `serve` may do, and whether somebody leads.

use std::collections::BTreeMap;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::api::{
    authentication::v1::SelfSubjectReview,
    authorization::v1::{
        ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
        SubjectAccessReviewSpec,
    },
    coordination::v1::Lease,
    rbac::v1::PolicyRule,
};
use kube::{Api, Client, api::PostParams};

use super::{Findings, Settings, Status, some};
use crate::rules::{
    Rules,
    manifests::{Access, Own, cluster_role, role},
    server::Comparison,
};

/// How many reviews are asked for at a time.
const AT_ONCE: usize = 16;

/// Whether `serve` has every right that it needs for what is installed.
pub(super) async fn check(
    client: &Client,
    rules: &Rules,
    comparison: &Comparison,
    settings: &Settings,
    findings: &mut Findings,
) {
    let reviews: Api<SelfSubjectReview> = Api::all(client.clone());
    let me = reviews
        .create(&PostParams::default(), &SelfSubjectReview::default())
        .await;
    let me = me.ok().and_then(|review| review.status?.user_info?.username);
    let of_self = me.as_ref() == Some(&settings.serve_user);
    let wanted = wanted(rules, comparison, settings);
    let total = wanted.len();
    let mut answers = stream::iter(wanted)
        .map(|attributes| async move {
            let answer = if of_self {
                ask_self(client, attributes.clone()).await
            } else {
                ask_other(client, &settings.serve_user, attributes.clone()).await
            };
            (attributes, answer)
        })
        .buffered(AT_ONCE);
    let mut refused: BTreeMap<String, Vec<String>> = BTreeMap::new();
    while let Some((attributes, answer)) = answers.next().await {
        match answer {
            Ok(true) => {}
            Ok(false) => {
                let [verb, resource] = display(&attributes);
                refused.entry(resource).or_default().push(verb);
            }
            Err(error) => {
                let what = format!("whether {} may do its work", settings.serve_user);
                findings.unanswered("permissions", &what, &error);
                return;
            }
        }
    }
    if refused.is_empty() {
        findings.add(
            "permissions",
            Status::Ok,
            format!(
                "{} has the {total} rights that it needs for what is installed",
                settings.serve_user
            ),
        );
        return;
    }
    let refused: Vec<String> = refused
        .into_iter()
        .map(|(resource, verbs)| format!("{} {resource}", verbs.join("/")))
        .collect();
    findings.advise(
        "permissions",
        Status::Problem,
        format!("{} may not: {}", settings.serve_user, some(&refused)),
        "name the kinds in installedKinds of the chart (--installed-kind of `pausegen manifests`) and apply it; \
         acknowledgements that have to ask them wait for ever",
    );
}

/// The rights on what is installed: a right on a kind that is not there does nothing.
fn wanted(rules: &Rules, comparison: &Comparison, settings: &Settings) -> Vec<ResourceAttributes> {
    let kinds = || comparison.installed.iter().map(|kind| &kind.served);
    let access = Access {
        // Whether it has a CA of its own is not known here.
        own_ca: false,
        discover_providers: false,
        installed: comparison
            .installed
            .iter()
            .filter(|kind| kind.by_pattern)
            .map(|kind| (kind.served.kind.group.clone(), kind.served.plural.clone()))
            .collect(),
    };
    let is_there = |group: &str, resource: &str| {
        let plural = resource.split('/').next().unwrap_or(resource);
        let ruled = rules.inputs().any(|(selector, _)| selector.group == group);
        !ruled || kinds().any(|kind| kind.kind.group == group && kind.plural == plural)
    };
    let own = Own {
        namespace: settings.lease_namespace.clone(),
        lease: settings.lease.clone(),
        ..Own::default()
    };
    let everywhere = cluster_role(rules, &access).rules.unwrap_or_default();
    let here = role(&own).rules.unwrap_or_default();
    let everywhere = everywhere.iter().flat_map(|rule| attributes(rule, None));
    let here = here
        .iter()
        .flat_map(|rule| attributes(rule, Some(&settings.lease_namespace)));
    everywhere
        .filter(|wanted| {
            let (group, resource) = (wanted.group.as_deref(), wanted.resource.as_deref());
            is_there(group.unwrap_or_default(), resource.unwrap_or_default())
        })
        .chain(here)
        .collect()
}

/// A rule, right by right.
fn attributes(rule: &PolicyRule, namespace: Option<&String>) -> Vec<ResourceAttributes> {
    let mut all = Vec::new();
    for group in rule.api_groups.iter().flatten() {
        for resource in rule.resources.iter().flatten() {
            let (plural, subresource) = match resource.split_once('/') {
                Some((plural, subresource)) => (plural, Some(subresource.to_owned())),
                None => (resource.as_str(), None),
            };
            for verb in &rule.verbs {
                all.push(ResourceAttributes {
                    group: Some(group.clone()),
                    resource: Some(plural.to_owned()),
                    subresource: subresource.clone(),
                    verb: Some(verb.clone()),
                    name: rule.resource_names.as_ref().and_then(|names| names.first().cloned()),
                    namespace: namespace.cloned(),
                    ..ResourceAttributes::default()
                });
            }
        }
    }
    all
}

fn display(attributes: &ResourceAttributes) -> [String; 2] {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let mut resource = text(&attributes.resource);
    if let Some(subresource) = &attributes.subresource {
        resource.push_str(&format!("/{subresource}"));
    }
    let group = text(&attributes.group);
    if !group.is_empty() {
        resource.push_str(&format!(".{group}"));
    }
    [text(&attributes.verb), resource]
}

async fn ask_self(client: &Client, attributes: ResourceAttributes) -> kube::Result<bool> {
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(attributes),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

async fn ask_other(client: &Client, user: &str, attributes: ResourceAttributes) -> kube::Result<bool> {
    // An account is bound by its name or by its groups.
    let groups = user.strip_prefix("system:serviceaccount:").and_then(|rest| {
        let (namespace, _) = rest.split_once(':')?;
        let all = ["system:authenticated", "system:serviceaccounts"]
            .map(str::to_owned)
            .into_iter();
        Some(all.chain([format!("system:serviceaccounts:{namespace}")]).collect())
    });
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.to_owned()),
            groups,
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

/// Whether somebody acts as the companion.
pub(super) async fn leader(client: &Client, settings: &Settings, findings: &mut Findings) {
    let Settings {
        lease_namespace, lease, ..
    } = settings;
    let api: Api<Lease> = Api::namespaced(client.clone(), lease_namespace);
    let remedy = "without a companion no flip is acknowledged: look at the log of the Deployment";
    let found = match api.get_opt(lease).await {
        Ok(found) => found.and_then(|lease| lease.spec),
        Err(error) => return findings.unanswered("leader", &format!("the Lease {lease_namespace}/{lease}"), &error),
    };
    let Some(spec) = found else {
        let message = format!("there is no Lease {lease_namespace}/{lease}: no companion has ever run there");
        return findings.advise("leader", Status::Problem, message, remedy);
    };
    let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
    let duration = i64::from(spec.lease_duration_seconds.unwrap_or_default());
    let age = spec
        .renew_time
        .map(|renewed| Timestamp::now().as_second() - renewed.0.as_second());
    match (holder, age) {
        // Clocks may be apart.
        (Some(holder), Some(age)) if age <= duration + 60 => {
            findings.add("leader", Status::Ok, format!("{holder} is the companion that acts"));
        }
        (Some(holder), Some(age)) => {
            let message = format!("{holder} has not renewed the Lease {lease_namespace}/{lease} for {age} s");
            findings.advise("leader", Status::Problem, message, remedy);
        }
        _ => {
            let message = format!("nobody holds the Lease {lease_namespace}/{lease}");
            findings.advise("leader", Status::Problem, message, remedy);
        }
    }
}
