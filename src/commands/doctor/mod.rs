//! `pausegen doctor`: what is wrong with an installation, and what to do about it.
//!
//! Each file looks at one thing and adds `Finding`s. Nothing is changed: the one write is a dry run.

mod access;
mod certificates;
mod objects;
mod reach;
mod webhooks;

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::ValueEnum;
use kube::Client;
use serde::Serialize;

use super::{client::ClientArgs, kinds, rules::load};
use crate::{
    protocol::GroupKind,
    rules::{
        Rules,
        manifests::{CONFIGURATION, LEASE, NAMESPACE, TLS_SECRET},
        server::{Cluster, Comparison, ConditionHome, compare},
    },
};

/// How many objects are named by one check.
const NAMED: usize = 20;

/// Look for what is wrong with an installation.
///
/// Exit codes: 0 nothing, 1 something is worth a look, 2 something is wrong, or the cluster cannot be asked.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen doctor\n  pausegen doctor --context prod --rules rules.yaml")]
pub struct Args {
    /// The rules file that `serve` has; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The user that `serve` runs as
    #[arg(
        long,
        value_name = "NAME",
        default_value = "system:serviceaccount:pausegen-system:pausegen"
    )]
    serve_user: String,
    /// The namespace of its Lease
    #[arg(long, value_name = "NAME", default_value = NAMESPACE)]
    lease_namespace: String,
    /// Its Lease
    #[arg(long, value_name = "NAME", default_value = LEASE)]
    lease: String,
    /// The webhook configurations
    #[arg(long, value_name = "NAME", default_value = CONFIGURATION)]
    webhook_configuration: String,
    /// The Secret of its serving certificate, in the namespace of the Lease
    #[arg(long, value_name = "NAME", default_value = TLS_SECRET)]
    tls_secret: String,
    /// End with 0 where something is worth a look and nothing is wrong
    #[arg(long)]
    tolerate_warnings: bool,
    /// What to print
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for people
    Text,
    /// One JSON object
    Json,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Status {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It could not be looked at.
    Skipped,
    /// Worth a look.
    Warning,
    /// Wrong.
    Problem,
}

impl Status {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Skipped => "skipped",
            Self::Warning => "WARNING",
            Self::Problem => "PROBLEM",
        }
    }
}

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    /// What was looked at: `permissions`, `kinds`, `leases`, `conditions`, `attestation`, `stamps`, `webhooks`, `order`,
    /// `certificates`, `reachability`, `leader`.
    check: &'static str,
    status: Status,
    message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

/// All that was found.
#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, check: &'static str, status: Status, message: impl Into<String>) {
        self.0.push(Finding {
            check,
            status,
            message: message.into(),
            remedy: None,
        });
    }

    fn advise(&mut self, check: &'static str, status: Status, message: impl Into<String>, remedy: impl Into<String>) {
        self.0.push(Finding {
            check,
            status,
            message: message.into(),
            remedy: Some(remedy.into()),
        });
    }

    /// The API server did not answer a question: not allowed, or worse.
    fn unanswered(&mut self, check: &'static str, what: &str, error: &kube::Error) {
        match error {
            kube::Error::Api(status) if status.code == 403 => {
                self.add(
                    check,
                    Status::Skipped,
                    format!("{what}: you may not: {}", status.message),
                );
            }
            error => self.add(check, Status::Problem, format!("{what}: {error}")),
        }
    }

    fn worst(&self) -> Status {
        self.0.iter().map(|finding| finding.status).max().unwrap_or(Status::Ok)
    }
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    api_version: &'static str,
    kind: &'static str,
    status: Status,
    findings: &'a [Finding],
}

/// Runs the subcommand.
///
/// # Errors
///
/// The output cannot be written. That the cluster cannot be asked is printed, and makes the exit code 2.
pub async fn run(args: Args) -> super::Result {
    let Args {
        rules,
        serve_user,
        lease_namespace,
        lease,
        webhook_configuration,
        tls_secret,
        tolerate_warnings,
        output,
        client,
    } = args;
    let settings = Settings {
        serve_user,
        lease_namespace,
        lease,
        webhook_configuration,
        tls_secret,
    };
    let found = async {
        let own = rules.is_some();
        let rules = load(rules.as_ref())?;
        let client = client.client().await?;
        look(&client, &rules, own, &settings).await
    };
    let findings = match found.await {
        Ok(findings) => findings,
        Err(error) => {
            super::print_error(error.as_ref());
            return Ok(ExitCode::from(2));
        }
    };
    let worst = findings.worst();
    match output {
        Output::Text => write_text(&findings)?,
        Output::Json => {
            let report = Report {
                api_version: "pausegen.io/v1alpha1",
                kind: "DoctorReport",
                status: worst,
                findings: &findings.0,
            };
            writeln!(io::stdout(), "{}", serde_json::to_string_pretty(&report)?)?;
        }
    }
    Ok(match worst {
        Status::Problem => ExitCode::from(2),
        Status::Warning if !tolerate_warnings => ExitCode::from(1),
        _ => ExitCode::SUCCESS,
    })
}

/// Which installation.
#[derive(Debug)]
struct Settings {
    serve_user: String,
    lease_namespace: String,
    lease: String,
    webhook_configuration: String,
    tls_secret: String,
}

type LookResult = Result<Findings, Box<dyn std::error::Error + Send + Sync>>;

async fn look(client: &Client, rules: &Rules, own: bool, settings: &Settings) -> LookResult {
    let mut findings = Findings::default();
    let cluster = Cluster::read(client, rules).await?;
    let comparison = compare(rules, &cluster);
    let served = kinds::ruled(client, rules).await?;
    kinds_and_leases(rules, own, &comparison, &mut findings)?;
    access::check(client, rules, &comparison, settings, &mut findings).await;
    webhooks::check(client, rules, &cluster, settings, &mut findings).await;
    certificates::check(client, settings, &mut findings).await;
    let sample = objects::check(client, rules, &served, &mut findings).await;
    reach::check(client, rules, sample, &mut findings).await;
    access::leader(client, settings, &mut findings).await;
    Ok(findings)
}

/// What the comparison of rules and cluster says.
fn kinds_and_leases(
    rules: &Rules,
    own: bool,
    comparison: &Comparison,
    findings: &mut Findings,
) -> Result<(), crate::rules::error::RulesError> {
    let Comparison {
        installed,
        missing,
        problems,
        warnings,
    } = comparison;
    let list = |kinds: &[&GroupKind]| kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let names: Vec<&GroupKind> = installed.iter().map(|kind| &kind.served.kind).collect();
    if names.is_empty() {
        findings.advise(
            "kinds",
            Status::Problem,
            "no kind that the rules are for is installed",
            "install the CRDs, or give doctor the rules file that serve has",
        );
    } else {
        findings.add(
            "kinds",
            Status::Ok,
            format!("{} ruled kinds are installed: {}", names.len(), list(&names)),
        );
    }
    // The built-in rules name kinds of providers that nobody has all of.
    let built_in = Rules::capi()?.kinds();
    let (expected, odd): (Vec<&GroupKind>, Vec<&GroupKind>) = missing.iter().partition(|kind| built_in.contains(kind));
    if !odd.is_empty() {
        findings.advise(
            "kinds",
            Status::Warning,
            format!("rules name kinds that are not installed: {}", list(&odd)),
            "correct the names, or remove the rules",
        );
    }
    if !expected.is_empty() {
        let which = if own { "rules of the preset" } else { "built-in rules" };
        findings.add(
            "kinds",
            Status::Note,
            format!("not installed, named by {which}: {}", list(&expected)),
        );
    }
    for selector in rules.patterns().filter(|_| own) {
        if !names.iter().any(|kind| selector.matches(kind)) {
            let pattern = selector
                .kinds
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ");
            findings.add(
                "kinds",
                Status::Note,
                format!(
                    "the pattern {pattern} of {} matches no kind that is installed",
                    selector.group
                ),
            );
        }
    }
    for problem in problems {
        findings.add("kinds", Status::Problem, problem);
    }
    for warning in warnings {
        let check = if warning.starts_with("there is no Lease") {
            "leases"
        } else {
            "kinds"
        };
        findings.add(check, Status::Warning, warning);
    }
    for kind in installed {
        match kind.home {
            None | Some(ConditionHome::Condition) => {}
            Some(home) => findings.advise(
                "conditions",
                if home == ConditionHome::NotCustom { Status::Problem } else { Status::Warning },
                format!("{}: acknowledgements are written in {home}", kind.served.kind),
                "wait with the jsonpath of the annotation: `kubectl wait --for=condition=PauseAcknowledged` is never met there",
            ),
        }
    }
    Ok(())
}

fn write_text(findings: &Findings) -> io::Result<()> {
    let mut out = io::stdout().lock();
    let width = findings
        .0
        .iter()
        .map(|finding| finding.check.len())
        .max()
        .unwrap_or_default();
    for Finding {
        check,
        status,
        message,
        remedy,
    } in &findings.0
    {
        writeln!(out, "{:8} {check:width$}  {message}", status.as_str())?;
        if let Some(remedy) = remedy {
            writeln!(out, "{:8} {:width$}  -> {remedy}", "", "")?;
        }
    }
    let count = |status| findings.0.iter().filter(|finding| finding.status == status).count();
    writeln!(
        out,
        "\n{} wrong, {} worth a look, {} could not be looked at.",
        count(Status::Problem),
        count(Status::Warning),
        count(Status::Skipped)
    )
}

/// The first few of a list, and how many more there are.
fn some(names: &[String]) -> String {
    let mut text = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    text
}
