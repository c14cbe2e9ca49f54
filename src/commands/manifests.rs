//! `pausegen manifests`: the webhook configurations and the RBAC that exactly these rules need.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::rules::load;
use crate::rules::{
    chart,
    deploy::{self, Deploy},
    manifests::{
        Access, Endpoint, FailurePolicy, Own, TLS_SECRET, Target, cluster_role, cluster_role_binding, role,
        role_binding, service_account, to_yaml, user, webhooks,
    },
};

/// Print the webhook configurations and the RBAC that exactly these rules need, and what runs.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pausegen manifests | kubectl apply -f -\n  pausegen manifests deploy rbac webhooks --image registry/pausegen:0.1.0 > pausegen.yaml"
)]
pub struct Args {
    /// Which parts; else rbac and webhooks
    #[arg(value_name = "PART", value_enum)]
    parts: Vec<Part>,
    /// The image (part deploy)
    #[arg(long, value_name = "NAME:TAG")]
    image: Option<String>,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The Service of the webhook
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "pausegen-system/pausegen", value_parser = namespaced)]
    service: Namespaced,
    /// The port of that Service
    #[arg(long, value_name = "PORT", default_value_t = 443)]
    service_port: u16,
    /// The address of a webhook outside of the cluster, without a path, instead of the Service
    #[arg(long, value_name = "URL", conflicts_with_all = ["service", "service_port"])]
    url: Option<String>,
    /// The CA of the webhook's certificate, PEM; else `caBundle` is left out
    #[arg(long, value_name = "FILE")]
    ca_bundle: Option<PathBuf>,
    /// What happens to a flip while the webhook is away
    #[arg(long, value_name = "POLICY", value_enum, ignore_case = true, default_value_t = PolicyArg::Fail)]
    failure_policy: PolicyArg,
    /// Call the webhook for these namespaces only: KEY=VALUE, KEY!=VALUE, KEY or !KEY, separated by commas
    #[arg(long, value_name = "SELECTOR", value_parser = selector)]
    namespace_selector: Option<LabelSelector>,
    /// Let the ClusterRole into whole groups where a rule has a pattern, also for providers that are installed later
    #[arg(long)]
    discover_providers: bool,
    /// A kind that a pattern stands for and that is installed, for the ClusterRole (repeatable)
    #[arg(long = "installed-kind", value_name = "RESOURCE.GROUP", value_parser = resource)]
    installed: Vec<(String, String)>,
    /// The ServiceAccount that `serve` runs as
    #[arg(long, value_name = "NAMESPACE/NAME", default_value = "pausegen-system/pausegen", value_parser = namespaced)]
    service_account: Namespaced,
    /// The user that `serve` runs as, instead of the ServiceAccount
    #[arg(long, value_name = "NAME", conflicts_with = "service_account")]
    user: Option<String>,
    /// Where `serve` has its Lease and the Secret of its certificates; else the namespace of the ServiceAccount
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,
    /// What to print
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Yaml)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Namespace, Deployment, Service and what else the Helm chart has, with its defaults
    Deploy,
    /// What `serve` may do
    Rbac,
    /// The webhook configurations
    Webhooks,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The objects
    Yaml,
    /// Values for the Helm chart: what the rules decide, and the kinds that the ClusterRole lets in
    HelmValues,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PolicyArg {
    /// It is refused
    #[value(name = "Fail")]
    Fail,
    /// It passes, without a stamp
    #[value(name = "Ignore")]
    Ignore,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Namespaced {
    namespace: String,
    name: String,
}

/// Runs the subcommand.
///
/// # Errors
///
/// A file that cannot be read or has mistakes.
pub fn run(args: Args) -> super::Result {
    let Args {
        parts,
        image,
        rules,
        service,
        service_port,
        url,
        ca_bundle,
        failure_policy,
        namespace_selector,
        discover_providers,
        installed,
        service_account: account,
        user: name,
        namespace,
        output,
    } = args;
    let built_in = rules.is_none();
    let rules = load(rules.as_ref())?;
    let has = |part| parts.contains(&part) || (parts.is_empty() && part != Part::Deploy);
    let access = Access {
        discover_providers,
        installed,
        // What is deployed cares for its certificates itself.
        own_ca: has(Part::Deploy),
    };
    if let Some((group, resource)) = access.without_pattern(&rules).next() {
        return Err(format!(
            "--installed-kind {resource}.{group}: no rule has a pattern for that group, and kinds that a rule names need not \
             be given"
        )
        .into());
    }
    if output == Output::HelmValues {
        let values = chart::values(&rules, built_in, access)?;
        write!(
            io::stdout(),
            "# What pausegen manifests -o helm-values prints: not to be edited.\n{}",
            to_yaml(&values)?
        )?;
        return Ok(ExitCode::SUCCESS);
    }
    let failure_policy = match failure_policy {
        PolicyArg::Fail => FailurePolicy::Fail,
        PolicyArg::Ignore => FailurePolicy::Ignore,
    };
    let mut documents = Vec::new();
    if has(Part::Deploy) {
        if service.name != deploy::NAME || account != service || url.is_some() || name.is_some() {
            return Err(format!(
                "part deploy: --service and --service-account must both be NAMESPACE/{}, with neither --url nor --user: \
                 use the Helm chart for other names",
                deploy::NAME
            )
            .into());
        }
        if let Some(namespace) = namespace.as_ref().filter(|name| **name != service.namespace) {
            return Err(format!(
                "part deploy: --namespace {namespace} is not that of --service: what is deployed has its Lease and its Secret in \
                 its own namespace"
            )
            .into());
        }
        let objects = Deploy {
            namespace: &service.namespace,
            service_port,
            image: &image.ok_or(
                "part deploy: --image is missing: build the image with the Dockerfile, push it, and say where it is",
            )?,
            rules: &rules.to_yaml()?,
            failure_policy,
        }
        .objects()?;
        for object in objects {
            documents.push(to_yaml(&object)?);
        }
    }
    let target = Target {
        endpoint: match url {
            Some(url) => Endpoint::Url(url),
            None => Endpoint::Service {
                namespace: service.namespace,
                name: service.name,
                port: service_port,
            },
        },
        ca_bundle: match ca_bundle {
            Some(path) => Some(
                std::fs::read(&path).map_err(|error| format!("cannot read --ca-bundle {}: {error}", path.display()))?,
            ),
            None => None,
        },
        failure_policy,
        namespace_selector,
    };
    let subject = match name {
        Some(name) => user(&name),
        None => service_account(&account.namespace, &account.name),
    };
    if has(Part::Rbac) {
        let own = Own {
            namespace: namespace.unwrap_or(account.namespace),
            tls_secret: has(Part::Deploy).then(|| TLS_SECRET.to_owned()),
            ..Own::default()
        };
        documents.push(to_yaml(&cluster_role(&rules, &access))?);
        documents.push(to_yaml(&cluster_role_binding(subject.clone()))?);
        documents.push(to_yaml(&role(&own))?);
        documents.push(to_yaml(&role_binding(&own, subject))?);
    }
    if has(Part::Webhooks) {
        let (mutating, validating) = webhooks(&rules, &target);
        documents.push(to_yaml(&mutating)?);
        documents.push(to_yaml(&validating)?);
    }
    let mut out = io::stdout().lock();
    for document in documents {
        write!(out, "---\n{document}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn namespaced(text: &str) -> Result<Namespaced, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => Ok(Namespaced {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }),
        _ => Err("write NAMESPACE/NAME".to_owned()),
    }
}

fn resource(text: &str) -> Result<(String, String), String> {
    match text.split_once('.') {
        Some((resource, group)) if !resource.is_empty() && !group.is_empty() => {
            Ok((group.to_owned(), resource.to_owned()))
        }
        _ => Err("write RESOURCE.GROUP, such as foomachines.infrastructure.cluster.x-k8s.io".to_owned()),
    }
}

fn selector(text: &str) -> Result<LabelSelector, String> {
    let mut selector = LabelSelector::default();
    let mut require = |key: &str, operator: &str, value: Option<&str>| {
        selector
            .match_expressions
            .get_or_insert_default()
            .push(LabelSelectorRequirement {
                key: key.to_owned(),
                operator: operator.to_owned(),
                values: value.map(|value| vec![value.to_owned()]),
            });
    };
    for part in text.split(',').map(str::trim) {
        if let Some((key, value)) = part.split_once("!=") {
            require(key, "NotIn", Some(value));
        } else if let Some((key, value)) = part.split_once('=') {
            require(key, "In", Some(value));
        } else if let Some(key) = part.strip_prefix('!') {
            require(key, "DoesNotExist", None);
        } else if part.is_empty() {
            return Err("write KEY=VALUE, KEY!=VALUE, KEY or !KEY, separated by commas".to_owned());
        } else {
            require(part, "Exists", None);
        }
    }
    Ok(selector)
}
