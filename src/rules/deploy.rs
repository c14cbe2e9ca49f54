//! Everything that runs, for those who do not use Helm: what the chart renders with its defaults.

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde_json::Value;

use super::manifests::{FailurePolicy, NAMESPACE};

/// What the chart renders with its defaults and rules of one's own. A test writes it anew.
pub const RENDERED: &str = include_str!("deploy.yaml");
/// Stands for the image there.
pub const IMAGE: &str = "registry.example.com/pausegen:0";
/// Stands for the rules file there.
pub const RULES_FILE: &str = "the rules file";
/// The name of everything there.
pub const NAME: &str = "pausegen";
/// Which objects of the chart belong to this part.
pub const KINDS: [&str; 6] = [
    "ConfigMap",
    "ServiceAccount",
    "Service",
    "Deployment",
    "PodDisruptionBudget",
    "NetworkPolicy",
];

/// What is not the same everywhere.
#[derive(Debug, Clone)]
pub struct Deploy<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The image.
    pub image: &'a str,
    /// The effective rules file.
    pub rules: &'a str,
    /// The port of the Service, which the webhook configurations call.
    pub service_port: u16,
    /// The failurePolicy that the webhook configuration has for flips.
    pub failure_policy: FailurePolicy,
}

impl Deploy<'_> {
    /// The objects, the Namespace first.
    ///
    /// # Errors
    ///
    /// None that is known: what the chart renders is tested.
    pub fn objects(&self) -> Result<Vec<Value>, Box<dyn std::error::Error + Send + Sync>> {
        let namespace = Namespace {
            metadata: ObjectMeta {
                name: Some(self.namespace.to_owned()),
                labels: Some([("pod-security.kubernetes.io/enforce".to_owned(), "restricted".to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        let mut objects = vec![serde_json::to_value(namespace)?];
        objects.extend(serde_saphyr::from_multiple::<Value>(RENDERED)?);
        for object in &mut objects {
            self.fill(object);
            if object.get("kind").is_some_and(|kind| kind == "Service")
                && let Some(port) = object.pointer_mut("/spec/ports/0/port")
            {
                *port = self.service_port.into();
            }
        }
        Ok(objects)
    }

    fn fill(&self, value: &mut Value) {
        match value {
            Value::String(text) if text == IMAGE => self.image.clone_into(text),
            Value::String(text) if text.trim_end() == RULES_FILE => self.rules.clone_into(text),
            Value::String(text) if text.starts_with("--flip-failure-policy=") => {
                *text = format!("--flip-failure-policy={}", self.failure_policy.as_str());
            }
            Value::String(text) => *text = text.replace(NAMESPACE, self.namespace),
            Value::Array(items) => items.iter_mut().for_each(|item| self.fill(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.fill(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}
