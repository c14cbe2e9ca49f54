//! `pausegen pause` and `pausegen resume`: the one-liner for people.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use kube::api::{Patch, PatchParams};

use super::{
    client::KubectlArgs,
    cluster, rules,
    targets::{Target, TargetArgs},
    times,
    wait::Waits,
};
use crate::{
    protocol::{
        intent::State,
        keys::{REASON, REASON_LIMIT, Standing, parse_generation},
        object::truncate,
        scope::Ruled,
    },
    report::{
        flip::{self, Flip, FlipError},
        text,
        waiting::{Began, Goal, begin},
    },
};

/// The name under which the API server knows who wrote a field.
const MANAGER: &str = "pausegen-cli";

const PAUSE_HELP: &str = "\
Examples:
  pausegen pause cluster/shop --reason CHG-1234 --wait
  pausegen pause machine/a machine/b --reason 'disk swap'
  pausegen pause clusters -l tier=test --reason maintenance --dry-run
  pausegen pause --all -n shop --reason CHG-1234        a whole namespace";

const RESUME_HELP: &str = "\
Examples:
  pausegen resume cluster/shop --wait
  pausegen resume --all -n shop
  pausegen resume cluster/shop --input cluster.x-k8s.io/paused";

/// Pauses objects, by field or annotation as the rules say.
#[derive(Debug, clap::Args)]
#[command(after_help = PAUSE_HELP)]
pub struct PauseArgs {
    /// Why, for whoever finds it paused: a ticket, a sentence
    #[arg(long, value_name = "TEXT")]
    reason: String,
    #[command(flatten)]
    common: FlipArgs,
}

/// Resumes objects: takes back every pause of their own.
#[derive(Debug, clap::Args)]
#[command(after_help = RESUME_HELP)]
pub struct ResumeArgs {
    /// Why, for whoever reads the stamp
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    common: FlipArgs,
}

#[derive(Debug, clap::Args)]
struct FlipArgs {
    #[command(flatten)]
    targets: TargetArgs,
    /// The input, such as spec.paused; else the first of the rule to pause, and all that are on to resume
    #[arg(long, value_name = "INPUT")]
    input: Option<String>,
    /// Ask the API server what it would do, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Wait until it is acknowledged
    #[arg(long, conflicts_with = "dry_run")]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", value_parser = times::duration, default_value = "5m")]
    timeout: Duration,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    cluster: KubectlArgs,
}

/// Why an object is not flipped.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("it is not there")]
    NotFound,
    #[error(transparent)]
    Flip(#[from] FlipError),
    #[error("it cannot be read")]
    Read(#[source] Box<kube::Error>),
    #[error("it cannot be written")]
    Write(#[source] Box<kube::Error>),
}

type Decide<'a> = &'a (dyn Fn(&Ruled) -> Result<Flip, FlipError> + Sync);

/// Pauses.
///
/// # Errors
/// Objects that cannot be told, and a cluster that cannot be reached. What is refused is printed.
pub async fn pause(args: PauseArgs) -> super::Result {
    let PauseArgs { reason, common } = args;
    let input = common.input.clone();
    run(common, "paused", Some(&reason), &|ruled| {
        flip::pause(&ruled.rule, &ruled.object, input.as_deref(), Some(&reason))
    })
    .await
}

/// Resumes.
///
/// # Errors
/// As [`pause`].
pub async fn resume(args: ResumeArgs) -> super::Result {
    let ResumeArgs { reason, common } = args;
    let input = common.input.clone();
    run(common, "resumed", reason.as_deref(), &|ruled| {
        flip::resume(&ruled.rule, &ruled.object, input.as_deref(), reason.as_deref())
    })
    .await
}

async fn run(args: FlipArgs, verb: &str, reason: Option<&str>, decide: Decide<'_>) -> super::Result {
    let FlipArgs {
        targets,
        input: _,
        dry_run,
        wait,
        timeout,
        rules: rules_file,
        cluster: cluster_args,
    } = args;
    targets.check()?;
    let rules = Arc::new(rules::load(rules_file.as_ref())?);
    let (client, namespace) = cluster_args.client().await?;
    let kinds = Arc::new(cluster::served(&client, &rules).await?);
    let targets = targets.resolve(&client, &kinds, &namespace).await?;
    let (mut asked, mut is_done) = (Vec::new(), true);
    for target in targets {
        match Box::pin(one(&client, &target, decide, dry_run)).await {
            Ok(done) => {
                let line = format!("{} {}", target.display(), done.says(verb, dry_run));
                writeln!(io::stdout(), "{}", text::clean(&line))?;
                if let Some(reason) = reason.filter(|reason| !done.has_reason(reason)) {
                    let line = not_recorded(&target, done.flip.state, reason);
                    writeln!(io::stderr(), "note: {}", text::clean(&line))?;
                }
                asked.push((target, done.goal, Some(done.began)));
            }
            Err(error) => {
                is_done = false;
                let cause = std::error::Error::source(&error)
                    .map(|cause| format!(": {cause}"))
                    .unwrap_or_default();
                let line = format!("{}: {error}{cause}", target.display());
                writeln!(io::stderr(), "error: {}", text::clean(&line))?;
            }
        }
    }
    if wait && !asked.is_empty() {
        let code = Waits { client, rules, kinds }.all(asked, timeout).await?;
        if is_done {
            return Ok(code);
        }
    }
    Ok(if is_done { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What has become of an object.
struct Done {
    flip: Flip,
    goal: Goal,
    /// What the answer to the write itself has shown: a wait from there has no race.
    began: Began,
    stamped: Option<(u64, bool)>,
    /// The reason that stands, in the stamp where there is one.
    reason: String,
}

impl Done {
    /// Whether this reason stands: one goes into the stamp with the write that flips, and with no other.
    fn has_reason(&self, reason: &str) -> bool {
        let mut reason = reason.to_owned();
        truncate(&mut reason, REASON_LIMIT);
        self.flip.patch.is_some() || self.reason == reason
    }

    fn says(&self, verb: &str, dry_run: bool) -> String {
        let dry = if dry_run { " (server dry run)" } else { "" };
        if self.flip.patch.is_none() {
            return format!("is {} already{dry}", self.flip.state);
        }
        let by = self.flip.inputs.join(" and ");
        let still = match self.goal.state {
            State::Running => String::new(),
            state if verb == "resumed" => format!(", still {state} by another input"),
            _ => String::new(),
        };
        match self.stamped {
            Some((generation, false)) => format!("{verb} by {by}{still}: generation {generation}, pending{dry}"),
            Some((generation, true)) => format!(
                "{verb} by {by}{still}: generation {generation}, pending, before the last flip was acknowledged, so that it \
                 takes the staleness bound{dry}"
            ),
            None => format!("{verb} by {by}{still}, without a pause generation: no webhook was called{dry}"),
        }
    }
}

/// A reason for what is so already.
fn not_recorded(target: &Target, state: State, reason: &str) -> String {
    let name = target.display();
    let mut line = format!("{name} is {state} already: the reason `{reason}` was not recorded");
    if state != State::Running {
        let namespace = Some(&target.namespace).filter(|namespace| !namespace.is_empty());
        let namespace = namespace
            .map(|namespace| format!(" -n {namespace}"))
            .unwrap_or_default();
        line.push_str(&format!(
            ". To give one, resume it and pause it with the reason; or, so that it stays paused, set it with `kubectl annotate \
             {name}{namespace} --overwrite pausegen.io/reason=TEXT` and have it stamped anew with `pausegen unacknowledge \
             {name}{namespace}`"
        ));
    }
    line
}

async fn one(client: &kube::Client, target: &Target, decide: Decide<'_>, dry_run: bool) -> Result<Done, Refused> {
    let api = target.kind.api(client, &target.namespace);
    let present = api
        .get_opt(&target.name)
        .await
        .map_err(|error| Refused::Read(Box::new(error)))?;
    let present = target.kind.ruled(present.ok_or(Refused::NotFound)?.view);
    let flip = decide(&present)?;
    let after = match &flip.patch {
        None => present,
        Some(patch) => {
            let params = PatchParams {
                dry_run,
                field_manager: Some(MANAGER.to_owned()),
                ..PatchParams::default()
            };
            let stored = api
                .patch(&target.name, &params, &Patch::Merge(patch))
                .await
                .map_err(|error| Refused::Write(Box::new(error)))?;
            target.kind.ruled(stored.view)
        }
    };
    let goal = Goal {
        state: flip.state,
        generation: None,
        attested: false,
    };
    let standing = Standing::of(&after.rule.group_kind, &after.object);
    let generation = after
        .object
        .metadata
        .annotation(crate::protocol::keys::GENERATION)
        .and_then(parse_generation);
    let reason = match standing.record() {
        Some(record) => record.stamp.reason.clone(),
        None => after.object.metadata.annotation(REASON).unwrap_or_default().to_owned(),
    };
    Ok(Done {
        reason,
        began: begin(&goal, &after.rule, &after.object),
        stamped: generation.map(|generation| (generation, standing.record().is_some_and(|record| !record.is_clean()))),
        flip,
        goal,
    })
}
