//! What the Helm chart has to know of rules.
//!
//! The chart's templates know nothing of the rules file: they put together what is generated here. `charts/pausegen`
//! carries what the built-in rules generate; for rules of one's own `pausegen manifests -o helm-values` prints it.

use k8s_openapi::api::{
    admissionregistration::v1::{MatchCondition, RuleWithOperations},
    rbac::v1::PolicyRule,
};
use serde::Serialize;

use super::{
    Rules, manifests,
    rbac::{self, Access},
};

/// The values that the chart takes.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Values {
    /// Everything that rules decide.
    pub rules: Generated,
    /// The kinds of patterns that are installed, `RESOURCE.GROUP`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub installed_kinds: Vec<String>,
    /// Whether whole groups are let in.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub discover_providers: bool,
}

/// What rules decide in the chart.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Generated {
    /// The version of the program that generated it: the chart takes its own only.
    pub version: String,
    /// The effective rules file; absent for the built-in rules, which the program has in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// When the webhooks are called.
    pub webhooks: Webhooks,
    /// The ruled resources by group, for the ClusterRole.
    pub groups: Vec<rbac::Group>,
    /// The rules of the ClusterRole that do not depend on the kinds.
    pub cluster_role: Vec<PolicyRule>,
}

/// When the webhooks are called.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Webhooks {
    /// Operations and resources.
    pub rules: Vec<RuleWithOperations>,
    /// The conditions of the webhooks for flips.
    pub flip_conditions: Vec<MatchCondition>,
    /// The conditions of the webhook for our keys.
    pub keys_conditions: Vec<MatchCondition>,
}

/// The values for rules. `built_in`: they are the program's own, so that no file has to be given to it.
///
/// # Errors
///
/// None that is known: see [`Rules::to_yaml`].
pub fn values(rules: &Rules, built_in: bool, access: Access) -> Result<Values, serde_saphyr::SerializeError> {
    let Access {
        discover_providers,
        installed,
        // The chart's own value decides that.
        own_ca: _,
    } = access;
    Ok(Values {
        installed_kinds: installed
            .into_iter()
            .map(|(group, resource)| format!("{resource}.{group}"))
            .collect(),
        discover_providers,
        rules: Generated {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            file: if built_in { None } else { Some(rules.to_yaml()?) },
            webhooks: Webhooks {
                rules: manifests::operations(rules),
                flip_conditions: manifests::flip_conditions(rules),
                keys_conditions: manifests::keys_conditions(rules),
            },
            groups: rbac::groups(rules),
            cluster_role: rbac::always(),
        },
    })
}
