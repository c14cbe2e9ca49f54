//! The webhook configurations that exactly these rules need.
//!
//! Fields that the API server would default are written out, so that what it stores is what was applied.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
        ValidatingWebhook, ValidatingWebhookConfiguration, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use serde::Serialize;

use super::{
    Rules, cel,
    rbac::{self, Reach},
};

pub use super::rbac::{
    Access, CLUSTER_ROLE, Own, cluster_role, cluster_role_binding, role, role_binding, service_account, user,
};

/// The name of both webhook configurations. Webhooks are called in the order of these names: ours has to come late,
/// because another one that changes an input after ours leaves a wrong stamp.
pub const CONFIGURATION: &str = "zz-pausegen";
/// The webhook that stamps a flip.
pub const FLIP: &str = "flip.pausegen.io";
/// The webhook that guards our keys.
pub const KEYS: &str = "keys.pausegen.io";
/// The webhook that checks the final object of a flip.
pub const VALIDATE: &str = "validate.pausegen.io";
/// The namespace of the product, unless it is told another one.
pub const NAMESPACE: &str = "pausegen-system";
/// The Lease that says which process acts.
pub const LEASE: &str = "pausegen";
/// The Secret of its own CA and serving certificate.
pub const TLS_SECRET: &str = "pausegen-tls";
/// Where the mutating webhooks are served.
pub const MUTATE_PATH: &str = "/mutate";
/// Where the validating webhook is served.
pub const VALIDATE_PATH: &str = "/validate";
/// How long the API server waits for an answer, in seconds.
const TIMEOUT_SECONDS: i32 = 10;

/// What happens to a write when a webhook cannot be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// It is denied.
    #[default]
    Fail,
    /// It goes through without us.
    Ignore,
}

impl FailurePolicy {
    /// As the API writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        }
    }
}

/// Where the API server finds the webhooks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A Service.
    Service {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port.
        port: u16,
    },
    /// An address without a path, such as `https://127.0.0.1:9443`.
    Url(String),
}

/// How the webhooks are reached, and what they are called for.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where they are.
    pub endpoint: Endpoint,
    /// The CA of their certificate, as PEM; `None` leaves it to whoever puts it in.
    pub ca_bundle: Option<Vec<u8>>,
    /// The `failurePolicy` of the webhooks that are called for a flip. That of the keys webhook is always `Ignore`.
    pub failure_policy: FailurePolicy,
    /// The namespaces whose objects they are called for; `None`: all.
    pub namespace_selector: Option<LabelSelector>,
}

impl Target {
    /// Webhooks at an endpoint, under `Fail`, for all namespaces, without a CA.
    #[must_use]
    pub const fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            ca_bundle: None,
            failure_policy: FailurePolicy::Fail,
            namespace_selector: None,
        }
    }

    fn client_config(&self, path: &str) -> WebhookClientConfig {
        let (service, url) = match &self.endpoint {
            Endpoint::Service { namespace, name, port } => (
                Some(ServiceReference {
                    namespace: namespace.clone(),
                    name: name.clone(),
                    path: Some(path.to_owned()),
                    port: Some(i32::from(*port)),
                }),
                None,
            ),
            Endpoint::Url(base) => (None, Some(format!("{}{path}", base.trim_end_matches('/')))),
        };
        WebhookClientConfig {
            ca_bundle: self.ca_bundle.clone().map(ByteString),
            service,
            url,
        }
    }

    fn mutating(
        &self,
        name: &str,
        policy: FailurePolicy,
        rules: &Rules,
        conditions: Vec<MatchCondition>,
    ) -> MutatingWebhook {
        MutatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config: self.client_config(MUTATE_PATH),
            failure_policy: Some(policy.as_str().to_owned()),
            match_conditions: Some(conditions),
            match_policy: Some("Equivalent".to_owned()),
            name: name.to_owned(),
            namespace_selector: Some(self.namespace_selector.clone().unwrap_or_default()),
            object_selector: Some(LabelSelector::default()),
            reinvocation_policy: Some("IfNeeded".to_owned()),
            rules: Some(operations(rules)),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }
    }
}

/// The two webhook configurations.
#[must_use]
pub fn webhooks(rules: &Rules, target: &Target) -> (MutatingWebhookConfiguration, ValidatingWebhookConfiguration) {
    let flip = || flip_conditions(rules);
    let keys = keys_conditions(rules);
    let metadata = || ObjectMeta {
        name: Some(CONFIGURATION.to_owned()),
        labels: Some([("app.kubernetes.io/name".to_owned(), "pausegen".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let mutating = MutatingWebhookConfiguration {
        metadata: metadata(),
        webhooks: Some(vec![
            target.mutating(FLIP, target.failure_policy, rules, flip()),
            target.mutating(KEYS, FailurePolicy::Ignore, rules, keys),
        ]),
    };
    let validating = ValidatingWebhookConfiguration {
        metadata: metadata(),
        webhooks: Some(vec![ValidatingWebhook {
            admission_review_versions: vec!["v1".to_owned()],
            client_config: target.client_config(VALIDATE_PATH),
            failure_policy: Some(target.failure_policy.as_str().to_owned()),
            match_conditions: Some(flip()),
            match_policy: Some("Equivalent".to_owned()),
            name: VALIDATE.to_owned(),
            namespace_selector: Some(target.namespace_selector.clone().unwrap_or_default()),
            object_selector: Some(LabelSelector::default()),
            rules: Some(operations(rules)),
            side_effects: "None".to_owned(),
            timeout_seconds: Some(TIMEOUT_SECONDS),
        }]),
    };
    (mutating, validating)
}

/// When the webhooks for flips are called. One that has others is not called for every flip.
pub(crate) fn flip_conditions(rules: &Rules) -> Vec<MatchCondition> {
    conditions(rules, &[("flips", cel::flips(rules))])
}

/// When the keys webhook is called.
pub(super) fn keys_conditions(rules: &Rules) -> Vec<MatchCondition> {
    let no_flip = format!("!({})", cel::flips(rules));
    conditions(rules, &[("keys", cel::keys()), ("no-flip", no_flip)])
}

fn conditions(rules: &Rules, own: &[(&str, String)]) -> Vec<MatchCondition> {
    let ruled = cel::ruled(rules).map(|expression| ("ruled", expression));
    ruled
        .into_iter()
        .chain(own.iter().cloned())
        .map(|(name, expression)| MatchCondition {
            name: name.to_owned(),
            expression,
        })
        .collect()
}

/// What the webhooks are called for: kinds with an input of their own. A group with a pattern is taken as a whole.
pub(super) fn operations(rules: &Rules) -> Vec<RuleWithOperations> {
    let rule = |groups: Vec<String>, resources: Vec<String>| RuleWithOperations {
        api_groups: Some(groups),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(vec!["CREATE".to_owned(), "UPDATE".to_owned()]),
        resources: Some(resources),
        scope: Some("*".to_owned()),
    };
    let (whole, named): (Vec<_>, Vec<_>) = rbac::groups(rules)
        .into_iter()
        .partition(|group| group.pattern == Some(Reach::Write));
    let mut operations: Vec<RuleWithOperations> = named
        .into_iter()
        .filter(|group| !group.write.is_empty())
        .map(|group| rule(vec![group.group], group.write))
        .collect();
    if !whole.is_empty() {
        let groups = whole.into_iter().map(|group| group.group).collect();
        operations.push(rule(groups, vec!["*".to_owned()]));
    }
    operations
}

/// An object as YAML. Texts of several lines stay as they are, long ones are not folded.
///
/// # Errors
///
/// None that is known for the types of this module.
pub fn to_yaml<T: Serialize>(object: &T) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string_with_options(
        object,
        serde_saphyr::ser_options! { prefer_block_scalars: true, min_fold_chars: usize::MAX, folded_wrap_chars: usize::MAX },
    )
}
