//! `pausegen cleanup`: removes every key and condition of ours from all objects, at an uninstall.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use json_patch::Patch as JsonPatch;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::client::ClientArgs;
use super::consent::{Consent, Decision};
use super::counter::Counter;
use super::kinds::{self, KindsError, Served};
use super::rules::load;
use crate::companion::item::Item;
use crate::protocol::keys::PREFIX;
use crate::protocol::object::ObjectView;
use crate::protocol::{condition, mirror};
use crate::rules::manifests::{FLIP, KEYS, VALIDATE};

/// How many objects are written at a time.
const AT_ONCE: usize = 8;
/// How many objects the plan names.
const NAMED: usize = 30;
/// How often one object is tried again because somebody else wrote it meanwhile.
const ATTEMPTS: usize = 5;
/// How often everything is looked through: controllers copy annotations from one object to the next, and the API server
/// goes on calling a webhook for a moment after its configuration is gone.
const ROUNDS: usize = 3;

/// Removes every key and condition of ours from all objects.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen cleanup --dry-run\n  pausegen cleanup --yes")]
pub struct Args {
    /// The rules file, where a rule is for kinds that are no custom resources
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Look at the kinds that a rule is for alone, not at every custom resource: takes fewer rights
    #[arg(long)]
    ruled_kinds: bool,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    client: ClientArgs,
}

/// Why it is not begun.
#[derive(Debug, thiserror::Error)]
enum CleanupError {
    #[error(
        "our webhook configurations stand, and would put back what is removed: take them off first, then stop \
         `pausegen serve`, then come again\n{}",
        .0.iter().map(|name| format!("    kubectl delete {name}")).collect::<Vec<_>>().join("\n")
    )]
    WebhooksStand(Vec<String>),
    #[error("cannot read the webhook configurations")]
    Webhooks(#[source] kube::Error),
}

/// An object that carries something of ours.
#[derive(Debug, Clone)]
struct Target {
    kind: Served,
    namespace: String,
    name: String,
    uid: String,
    keys: usize,
    conditions: usize,
}

impl Target {
    fn of(kind: &Served, object: &ObjectView) -> Option<Self> {
        let (keys, conditions) = (keys(object).len(), conditions(object).len());
        (keys + conditions > 0).then(|| Self {
            kind: kind.clone(),
            namespace: object.metadata.namespace.clone(),
            name: object.metadata.name.clone(),
            uid: object.metadata.uid.clone(),
            keys,
            conditions,
        })
    }

    fn display(&self) -> String {
        let kind = self.kind.group_kind();
        if self.namespace.is_empty() {
            format!("{kind} {}", self.name)
        } else {
            format!("{kind} {}/{}", self.namespace, self.name)
        }
    }
}

/// Our annotations on an object.
fn keys(object: &ObjectView) -> Vec<&str> {
    let annotations = object.metadata.annotations.iter().flat_map(|all| all.0.keys());
    annotations
        .map(String::as_str)
        .filter(|key| key.starts_with(PREFIX))
        .collect()
}

/// Where our conditions are in an object's list, last first.
fn conditions(object: &ObjectView) -> Vec<usize> {
    let all = object.status.conditions.iter().enumerate().rev();
    all.filter(|(_, found)| found.type_ == condition::TYPE || mirror::is_marked(found))
        .map(|(index, _)| index)
        .collect()
}

/// Runs the subcommand.
///
/// # Errors
///
/// Nobody can be asked, our webhooks stand, a cluster that cannot be read. What goes wrong with single objects is
/// printed, and makes the exit code 1.
pub async fn run(args: Args) -> super::Result {
    let Args {
        rules,
        ruled_kinds,
        consent,
        client,
    } = args;
    consent.check()?;
    let rules = load(rules.as_ref())?;
    let client = client.client().await?;
    let standing = standing(&client).await.map_err(CleanupError::Webhooks)?;
    if !standing.is_empty() {
        return Err(CleanupError::WebhooksStand(standing).into());
    }
    let kinds = if ruled_kinds {
        kinds::ruled(&client, &rules).await?
    } else {
        kinds::custom_and_ruled(&client, &rules).await?
    };
    let mut targets = find(&client, &kinds).await?;
    if targets.is_empty() {
        writeln!(io::stdout(), "Nothing to do: no object carries anything of pausegen's.")?;
        return Ok(ExitCode::SUCCESS);
    }
    io::stdout().write_all(plan(&targets).as_bytes())?;
    let question = format!("Remove them from {} object(s)?", targets.len());
    let decision = tokio::task::spawn_blocking(move || consent.ask(&question)).await??;
    if decision == Decision::Leave {
        writeln!(io::stdout(), "Nothing was changed.")?;
        return Ok(if consent.dry_run {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    for round in 1..=ROUNDS {
        let cleaned = clean_all(&client, targets).await?;
        writeln!(io::stdout(), "{cleaned} object(s) are clean.")?;
        targets = find(&client, &kinds).await?;
        if targets.is_empty() {
            writeln!(io::stdout(), "Nothing of pausegen's is left.")?;
            return Ok(ExitCode::SUCCESS);
        }
        if round < ROUNDS {
            writeln!(io::stdout(), "{} object(s) have something again:", targets.len())?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
    io::stderr().write_all(plan(&targets).as_bytes())?;
    writeln!(
        io::stderr(),
        "error: these are still there: does a `pausegen serve` still run, or does somebody apply them from a file?"
    )?;
    Ok(ExitCode::FAILURE)
}

/// The configurations that hold a webhook of ours, whatever they are called, as kubectl names them.
async fn standing(client: &Client) -> kube::Result<Vec<String>> {
    const OURS: [&str; 3] = [FLIP, KEYS, VALIDATE];
    let all = ListParams::default();
    let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    let mut found = Vec::new();
    for configuration in mutating.list(&all).await? {
        let webhooks = configuration.webhooks.unwrap_or_default();
        if webhooks.iter().any(|webhook| OURS.contains(&webhook.name.as_str())) {
            let name = configuration.metadata.name.unwrap_or_default();
            found.push(format!("mutatingwebhookconfiguration {name}"));
        }
    }
    for configuration in validating.list(&all).await? {
        let webhooks = configuration.webhooks.unwrap_or_default();
        if webhooks.iter().any(|webhook| OURS.contains(&webhook.name.as_str())) {
            let name = configuration.metadata.name.unwrap_or_default();
            found.push(format!("validatingwebhookconfiguration {name}"));
        }
    }
    Ok(found)
}

async fn find(client: &Client, kinds: &[Served]) -> Result<Vec<Target>, KindsError> {
    let mut counter = Counter::new();
    let mut targets = Vec::new();
    for kind in kinds {
        let api: Api<Item> = kind.api(client, "");
        let found = targets.len();
        let page = |read| counter.show(&format!("looking at {}: {read} ({found} found so far)", kind.name()));
        targets.extend(kinds::list(kind, &api, |item| Target::of(kind, &item.view), page).await?);
    }
    Ok(targets)
}

fn plan(targets: &[Target]) -> String {
    let (keys, conditions) = targets.iter().fold((0, 0), |(keys, conditions), target| {
        (keys + target.keys, conditions + target.conditions)
    });
    let mut by_kind: BTreeMap<String, usize> = BTreeMap::new();
    for target in targets {
        *by_kind.entry(target.kind.name()).or_default() += 1;
    }
    let by_kind: Vec<String> = by_kind
        .into_iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    let mut text = format!(
        "{keys} annotations under {PREFIX} and {conditions} conditions of ours on {} object(s) ({}):\n",
        targets.len(),
        by_kind.join(", ")
    );
    for target in targets.iter().take(NAMED) {
        text.push_str(&format!("  {}\n", target.display()));
    }
    if targets.len() > NAMED {
        text.push_str(&format!("  and {} more\n", targets.len() - NAMED));
    }
    text
}

/// Returns how many objects are clean now.
async fn clean_all(client: &Client, targets: Vec<Target>) -> io::Result<usize> {
    let total = targets.len();
    let (mut clean, mut done) = (0, 0);
    let mut counter = Counter::new();
    let outcomes = stream::iter(targets).map(|target| async move {
        let outcome = clean_one(client, &target).await;
        (target, outcome)
    });
    let mut outcomes = outcomes.buffered(AT_ONCE);
    while let Some((target, outcome)) = outcomes.next().await {
        done += 1;
        match outcome {
            Ok(()) => clean += 1,
            Err(error) => {
                counter.clear();
                writeln!(io::stderr(), "{}: {error}", target.display())?;
            }
        }
        counter.show(&format!("{done} of {total}"));
    }
    Ok(clean)
}

async fn clean_one(client: &Client, target: &Target) -> kube::Result<()> {
    let api: Api<Item> = target.kind.api(client, &target.namespace);
    let mut attempt = 0;
    loop {
        attempt += 1;
        let found = api.get_opt(&target.name).await?;
        let Some(object) = found
            .map(|item| item.view)
            .filter(|object| object.metadata.uid == target.uid)
        else {
            return Ok(());
        };
        match attempt_one(&api, &object).await {
            Err(kube::Error::Api(status)) if attempt < ATTEMPTS && matches!(status.code, 409 | 422) => {}
            other => return other,
        }
    }
}

/// Keys before the condition, which a companion that still runs would derive from them again.
async fn attempt_one(api: &Api<Item>, object: &ObjectView) -> kube::Result<()> {
    let uid = json!({ "op": "test", "path": "/metadata/uid", "value": object.metadata.uid });
    let remove = |path: String| json!({ "op": "remove", "path": path });
    let params = PatchParams::default();
    let name = &object.metadata.name;
    let mut object = Cow::Borrowed(object);
    let keys = keys(&object);
    if !keys.is_empty() {
        let removals = keys.iter().map(|key| {
            remove(format!(
                "/metadata/annotations/{}",
                key.replace('~', "~0").replace('/', "~1")
            ))
        });
        let patch = build(std::iter::once(uid.clone()).chain(removals))?;
        object = Cow::Owned(api.patch(name, &params, &patch).await?.view);
    }
    let conditions = conditions(&object);
    if !conditions.is_empty() {
        // By index, so nobody may have written in between.
        let version = &object.metadata.resource_version;
        let same = json!({ "op": "test", "path": "/metadata/resourceVersion", "value": version });
        let removals = conditions
            .iter()
            .map(|index| remove(format!("/status/conditions/{index}")));
        let patch = build([uid, same].into_iter().chain(removals))?;
        match api.patch_status(name, &params, &patch).await {
            // The kind has no such subresource.
            Err(kube::Error::Api(status)) if status.code == 404 => api.patch(name, &params, &patch).await?,
            other => other?,
        };
    }
    Ok(())
}

fn build(operations: impl Iterator<Item = Value>) -> kube::Result<Patch<()>> {
    let patch: JsonPatch =
        serde_json::from_value(Value::Array(operations.collect())).map_err(kube::Error::SerdeError)?;
    Ok(Patch::Json(patch))
}
