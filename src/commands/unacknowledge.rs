//! `pausegen unacknowledge`: asks for a new stamp, so that what was acknowledged has to be acknowledged again.
//!
//! It sets the touch key, which anybody may who may write the object. The webhook takes it away in the same write and
//! stamps instead; the answer to the write shows whether it did.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{StreamExt as _, stream};
use json_patch::Patch as JsonPatch;
use kube::api::{DynamicObject, ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::client::ClientArgs;
use super::consent::{Consent, Decision};
use super::counter::Counter;
use super::kinds::{self, KindsError, Served};
use super::names::{self, NameError};
use super::rules::load;
use crate::protocol::keys::{
    ACKNOWLEDGED, GENERATION, GUARDED, OBSERVED_GENERATION, PENDING, STAMP, TOUCH, parse_generation,
};

/// How many objects are written at a time.
const AT_ONCE: usize = 8;
/// How many objects the plan names.
const NAMED: usize = 30;

/// Asks for a new stamp: a new pause generation, pending until everybody has answered again.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  pausegen unacknowledge cluster/shop -n prod --dry-run\n  pausegen unacknowledge --all --yes",
    group = clap::ArgGroup::new("which").args(["objects", "all"]).required(true)
)]
pub struct Args {
    /// The objects: KIND/NAME, such as cluster/demo or machine.cluster.x-k8s.io/demo-1
    #[arg(value_name = "KIND/NAME")]
    objects: Vec<String>,
    /// Every object of a ruled kind that carries our keys, in all namespaces unless one is named
    #[arg(long)]
    all: bool,
    /// The namespace of the objects; else that of the context
    #[arg(short, long, value_name = "NAME", value_parser = names::namespace)]
    namespace: Option<String>,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    consent: Consent,
    #[command(flatten)]
    client: ClientArgs,
}

/// Why it cannot be begun.
#[derive(Debug, thiserror::Error)]
enum UnacknowledgeError {
    #[error("`{0}` is no object: write KIND/NAME, such as cluster/demo")]
    NoObject(String),
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("there is no {what}")]
    NotFound { what: String },
    #[error("cannot read {what}")]
    Read { what: String, source: kube::Error },
}

/// An object that carries our keys.
#[derive(Debug, Clone)]
struct Target {
    kind: Served,
    namespace: String,
    name: String,
    uid: String,
    generation: String,
    word: String,
}

impl Target {
    /// `None` for an object without our keys: there is nothing to take back.
    fn of(kind: &Served, metadata: ObjectMeta) -> Option<Self> {
        let annotations = metadata.annotations.unwrap_or_default();
        let get = |key: &str| annotations.get(key).cloned();
        GUARDED.iter().find(|key| annotations.contains_key(**key))?;
        Some(Self {
            kind: kind.clone(),
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            generation: get(GENERATION).unwrap_or_else(|| "none".to_owned()),
            word: get(ACKNOWLEDGED).unwrap_or_else(|| "nothing".to_owned()),
        })
    }

    fn display(&self) -> String {
        display(&self.kind, &self.namespace, &self.name)
    }
}

fn display(kind: &Served, namespace: &str, name: &str) -> String {
    let kind = kind.group_kind();
    if namespace.is_empty() {
        format!("{kind} {name}")
    } else {
        format!("{kind} {namespace}/{name}")
    }
}

/// Runs the subcommand.
///
/// # Errors
///
/// Nobody can be asked, a cluster that cannot be read, an object that is not there. What goes wrong with single objects
/// is printed, and makes the exit code 1.
pub async fn run(args: Args) -> super::Result {
    let Args {
        objects,
        all,
        namespace,
        rules,
        consent,
        client,
    } = args;
    let objects = objects
        .iter()
        .map(|object| split(object))
        .collect::<Result<Vec<_>, _>>()?;
    consent.check()?;
    let rules = load(rules.as_ref())?;
    let client = client.client().await?;
    let kinds = kinds::ruled(&client, &rules).await?;
    let targets = if all {
        everything(&client, &kinds, namespace.as_deref().unwrap_or_default()).await?
    } else {
        let namespace = namespace.unwrap_or_else(|| client.default_namespace().to_owned());
        named(&client, &kinds, &namespace, &objects).await?
    };
    if targets.is_empty() {
        writeln!(io::stdout(), "Nothing to do: no object carries a pause generation.")?;
        return Ok(ExitCode::SUCCESS);
    }
    io::stdout().write_all(plan(&targets).as_bytes())?;
    let question = format!("Make {} object(s) pending?", targets.len());
    let decision = tokio::task::spawn_blocking(move || consent.ask(&question)).await??;
    if decision == Decision::Leave && !consent.dry_run {
        writeln!(io::stdout(), "Nothing was changed.")?;
        return Ok(ExitCode::FAILURE);
    }
    touch_all(&client, targets, consent.dry_run).await
}

/// The kind and the name of an object, as it is written.
fn split(object: &str) -> Result<(&str, &str), UnacknowledgeError> {
    let (word, name) = object
        .split_once('/')
        .filter(|(word, _)| !word.is_empty())
        .ok_or_else(|| UnacknowledgeError::NoObject(object.to_owned()))?;
    names::object(name)?;
    Ok((word, name))
}

async fn everything(client: &Client, kinds: &[Served], namespace: &str) -> Result<Vec<Target>, KindsError> {
    let mut counter = Counter::new();
    let mut targets = Vec::new();
    for kind in kinds.iter().filter(|kind| kind.namespaced || namespace.is_empty()) {
        let api: Api<DynamicObject> = kind.api(client, namespace);
        let found = targets.len();
        let page = |read| counter.show(&format!("looking at {}: {read} ({found} found so far)", kind.name()));
        targets.extend(kinds::list_metadata(kind, &api, |object| Target::of(kind, object.metadata), page).await?);
    }
    Ok(targets)
}

async fn named(
    client: &Client,
    kinds: &[Served],
    namespace: &str,
    objects: &[(&str, &str)],
) -> Result<Vec<Target>, Box<dyn std::error::Error + Send + Sync>> {
    let mut targets: Vec<Target> = Vec::new();
    for (word, name) in objects {
        let kind = kinds::find(kinds, word)?;
        let api: Api<DynamicObject> = kind.api(client, namespace);
        let what = display(kind, if kind.namespaced { namespace } else { "" }, name);
        let found = api.get_metadata_opt(name).await;
        let found = found.map_err(|source| UnacknowledgeError::Read {
            what: what.clone(),
            source,
        })?;
        let found = found.ok_or_else(|| UnacknowledgeError::NotFound { what: what.clone() })?;
        match Target::of(kind, found.metadata) {
            Some(target) if targets.iter().all(|known| known.uid != target.uid) => targets.push(target),
            Some(_) => {}
            None => writeln!(io::stderr(), "{what} carries no pause generation: it was never flipped")?,
        }
    }
    Ok(targets)
}

fn plan(targets: &[Target]) -> String {
    let mut text = format!(
        "{} object(s) get a new pause generation each, and are pending until everybody has answered again:\n",
        targets.len()
    );
    for target in targets.iter().take(NAMED) {
        text.push_str(&format!(
            "  {}: generation {}, acknowledged: {}\n",
            target.display(),
            target.generation,
            target.word
        ));
    }
    if targets.len() > NAMED {
        text.push_str(&format!("  and {} more\n", targets.len() - NAMED));
    }
    text
}

/// What became of an object.
#[derive(Debug)]
enum Outcome {
    /// It has this generation now, and is pending.
    Pending(u64),
    /// Nobody took the touch key away.
    NoWebhook,
    /// Nobody did for another object of its kind, so it was left alone.
    NotTried,
    /// Somebody did, but it was not stamped.
    NotStamped(String),
    /// The API server refused the write.
    Refused(kube::Error),
}

async fn touch_all(client: &Client, targets: Vec<Target>, dry_run: bool) -> super::Result {
    let total = targets.len();
    let mut counter = Counter::new();
    let (mut pending, mut done) = (0, 0);
    let mut by_kind: Vec<Vec<Target>> = Vec::new();
    for target in targets {
        match by_kind.last_mut() {
            Some(group) if group.first().is_some_and(|first| first.kind == target.kind) => group.push(target),
            _ => by_kind.push(vec![target]),
        }
    }
    for group in by_kind {
        // What has begun is brought to its end: a touch key that nobody takes has to be taken away again.
        let is_deaf = AtomicBool::new(false);
        let mut outcomes = stream::iter(group)
            .map(|target| async {
                if is_deaf.load(Ordering::Relaxed) {
                    return (target, Outcome::NotTried);
                }
                let outcome = touch(client, &target, dry_run).await;
                is_deaf.fetch_or(matches!(outcome, Outcome::NoWebhook), Ordering::Relaxed);
                (target, outcome)
            })
            .buffer_unordered(AT_ONCE);
        let mut not_tried: usize = 0;
        while let Some((target, outcome)) = outcomes.next().await {
            done += 1;
            counter.clear();
            match outcome {
                Outcome::Pending(generation) => {
                    pending += 1;
                    let would = if dry_run { " (dry run)" } else { "" };
                    writeln!(
                        io::stdout(),
                        "{}: generation {} -> {generation}, pending{would}",
                        target.display(),
                        target.generation
                    )?;
                }
                Outcome::NoWebhook => {
                    writeln!(
                        io::stderr(),
                        "{}: no webhook answered, and nothing was changed. Is the webhook configuration there, does it \
                         cover this kind and namespace, and does `pausegen serve` run?",
                        target.display()
                    )?;
                }
                Outcome::NotTried => not_tried += 1,
                Outcome::NotStamped(why) => writeln!(io::stderr(), "{}: {why}", target.display())?,
                Outcome::Refused(error) => writeln!(io::stderr(), "{}: refused: {error}", target.display())?,
            }
            counter.show(&format!("{done} of {total}"));
        }
        counter.clear();
        if not_tried > 0 {
            writeln!(
                io::stderr(),
                "{not_tried} other object(s) of the kind were not tried: they would go without an answer as well"
            )?;
        }
    }
    let are = if dry_run { "would be" } else { "are" };
    writeln!(io::stdout(), "{pending} of {total} {are} pending.")?;
    Ok(if pending == total {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn touch(client: &Client, target: &Target, dry_run: bool) -> Outcome {
    let api: Api<DynamicObject> = target.kind.api(client, &target.namespace);
    let path = format!("/metadata/annotations/{}", TOUCH.replace('/', "~1"));
    let is_it = json!({ "op": "test", "path": "/metadata/uid", "value": target.uid });
    let params = PatchParams {
        dry_run,
        ..PatchParams::default()
    };
    let write = async |operation: Value| {
        let patch: JsonPatch = serde_json::from_value(json!([is_it, operation])).map_err(kube::Error::SerdeError)?;
        api.patch_metadata(&target.name, &params, &Patch::Json::<()>(patch))
            .await
    };
    let answer = match write(json!({ "op": "add", "path": path, "value": "" })).await {
        Ok(answer) => answer.metadata.annotations.unwrap_or_default(),
        Err(error) => return Outcome::Refused(error),
    };
    let get = |key: &str| answer.get(key).map(String::as_str);
    if get(TOUCH).is_some() {
        if !dry_run && let Err(error) = write(json!({ "op": "remove", "path": path })).await {
            return Outcome::NotStamped(format!(
                "no webhook answered, and the annotation {TOUCH} could not be taken away again: {error}"
            ));
        }
        return Outcome::NoWebhook;
    }
    let before = parse_generation(&target.generation).unwrap_or_default();
    let generation = get(GENERATION).and_then(parse_generation);
    let observed = get(OBSERVED_GENERATION).and_then(parse_generation);
    match generation {
        Some(generation)
            if generation != before
                && get(ACKNOWLEDGED) == Some(PENDING)
                && observed.is_none_or(|k| k + 1 < generation) =>
        {
            Outcome::Pending(generation)
        }
        _ => Outcome::NotStamped(format!(
            "the touch key is gone, but the object is not pending on a new generation ({GENERATION}: {}, {ACKNOWLEDGED}: \
             {}, {STAMP}: {}): is another webhook taking our keys away?",
            get(GENERATION).unwrap_or("none"),
            get(ACKNOWLEDGED).unwrap_or("none"),
            get(STAMP).unwrap_or("none"),
        )),
    }
}
