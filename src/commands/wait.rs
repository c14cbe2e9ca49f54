//! `pausegen wait`: until a pause or a resume is acknowledged, and never before.
//!
//! Only consistent reads decide. A watch tells when it is worth reading again, and whoever may not watch polls.

use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::ValueEnum;
use futures::{StreamExt as _, future::join_all};
use kube::{
    Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::time::{self, Instant};

use super::{
    client::KubectlArgs,
    cluster::{self, Served},
    rules,
    targets::{Target, TargetArgs},
    times,
};
use crate::{
    protocol::{condition, intent::State, keys::Record, scope::Ruled},
    report::{
        survey, text,
        waiting::{Began, Goal, Judgement, begin, judge},
    },
    rules::Rules,
};

/// An object is read again after this time, whatever the watch says.
const POLL: Duration = Duration::from_secs(3);
/// The first and the longest time between two reads that fail.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));
/// How often everybody is asked who is missing, for people who look on.
const ASK: Duration = Duration::from_secs(3);

const AFTER_HELP: &str = "\
Examples:
  pausegen wait cluster/shop --for=paused
  pausegen wait cluster/shop --for=paused --generation 7 --evidence attested --timeout 10m
  pausegen wait machine/a machine/b --for=resumed
  pausegen wait clusters -l tier=test --for=paused

It reads the stamp first, then waits for exactly that generation, or a later one in the same direction. A flip in the other
direction, a deletion, and evidence that will not come end it at once with an error.

Exit codes: 0 met, 1 not met (timed out, or it cannot be met any more).";

/// Waits until a pause or a resume is acknowledged.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    targets: TargetArgs,
    /// What has to be acknowledged
    #[arg(long = "for", value_name = "STATE", value_enum)]
    goal: GoalArg,
    /// The pause generation, as the answer to the pausing write has it; else the one that stands
    #[arg(long, value_name = "N")]
    generation: Option<u64>,
    /// How certain it has to be
    #[arg(long, value_name = "EVIDENCE", value_enum, default_value_t = EvidenceArg::Any)]
    evidence: EvidenceArg,
    /// How long to wait; 0 looks once
    #[arg(long, value_name = "DURATION", value_parser = times::duration, default_value = "5m")]
    timeout: Duration,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    cluster: KubectlArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum GoalArg {
    /// It and all that inherits from it
    Paused,
    /// It alone: a Cluster's annotation
    PausedSelf,
    /// It runs again; `running`, the word of the annotation, means the same
    #[value(alias = "running")]
    Resumed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum EvidenceArg {
    /// Every controller gave an answer of its own
    Attested,
    /// That, or the staleness bound has passed
    Any,
}

/// Why a wait is not met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum WaitError {
    /// It is not there.
    #[error("it is not there")]
    NotFound,
    /// It went.
    #[error("it was deleted during the wait")]
    Deleted,
    /// It cannot be met any more.
    #[error("{0}")]
    Never(String),
    /// The time is up.
    #[error("timed out: {0}")]
    TimedOut(String),
    /// The API server refuses.
    #[error("it cannot be read")]
    Read(#[source] Box<kube::Error>),
}

/// Runs the subcommand.
///
/// # Errors
/// Objects that cannot be told, and a cluster that cannot be reached. A wait that is not met is printed.
pub async fn run(args: Args) -> super::Result {
    let Args {
        targets,
        goal,
        generation,
        evidence,
        timeout,
        rules: rules_file,
        cluster: cluster_args,
    } = args;
    targets.check()?;
    let rules = Arc::new(rules::load(rules_file.as_ref())?);
    let (client, namespace) = cluster_args.client().await?;
    let kinds = Arc::new(cluster::served(&client, &rules).await?);
    let targets = targets.resolve(&client, &kinds, &namespace).await?;
    let goal = Goal {
        state: match goal {
            GoalArg::Paused => State::Paused,
            GoalArg::PausedSelf => State::PausedSelf,
            GoalArg::Resumed => State::Running,
        },
        generation,
        attested: evidence == EvidenceArg::Attested,
    };
    let asked = targets.into_iter().map(|target| (target, goal, None)).collect();
    Waits { client, rules, kinds }.all(asked, timeout).await
}

/// What waits share.
pub(super) struct Waits {
    pub(super) client: Client,
    pub(super) rules: Arc<Rules>,
    pub(super) kinds: Arc<Vec<Served>>,
}

impl Waits {
    /// Waits for all of them, and prints how each ended. `Began` is what an own write has shown already.
    pub(super) async fn all(&self, asked: Vec<(Target, Goal, Option<Began>)>, timeout: Duration) -> super::Result {
        let deadline = Instant::now() + timeout;
        let progress = Progress::new(asked.len());
        let waits = asked.iter().enumerate().map(|(i, (target, goal, began))| {
            let progress = &progress;
            async move {
                let ended = self
                    .one(target, goal, began.clone(), deadline, &|what| {
                        progress.note(i, target, &what);
                    })
                    .await;
                progress.done(i);
                (target, ended)
            }
        });
        let mut is_met = true;
        let ended = tokio::select! {
            ended = join_all(waits) => ended,
            () = progress.show() => Vec::new(),
        };
        progress.clear();
        for (target, ended) in ended {
            match ended {
                Ok(record) => writeln!(io::stdout(), "{} {}", text::clean(&target.display()), met(&record))?,
                Err(error) => {
                    is_met = false;
                    let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}"));
                    let line = format!("{}: {error}{}", target.display(), cause.unwrap_or_default());
                    writeln!(io::stderr(), "error: {}", text::clean(&line))?;
                }
            }
        }
        Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    async fn one(
        &self,
        target: &Target,
        goal: &Goal,
        mut began: Option<Began>,
        deadline: Instant,
        note: &(dyn Fn(String) + Sync),
    ) -> Result<Record, WaitError> {
        let api = target.kind.api(&self.client, &target.namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", target.name));
        let mut events = watcher::watcher(api.clone(), config).default_backoff().boxed();
        let mut retry = RETRY.0;
        let mut asked: Option<Instant> = None;
        loop {
            // The time is up in the middle of a read, too: an API server that is away may not answer at all.
            let limit = deadline.max(Instant::now() + Duration::from_millis(500));
            let (ruled, why) = match time::timeout_at(limit, api.get_opt(&target.name)).await {
                Ok(Ok(Some(item))) => {
                    retry = RETRY.0;
                    let ruled = target.kind.ruled(item.view);
                    let began = began.get_or_insert_with(|| begin(goal, &ruled.rule, &ruled.object));
                    let why = match judge(goal, began, &ruled.rule, &ruled.object) {
                        Judgement::Met(record) => return Ok(*record),
                        Judgement::Never(why) => return Err(WaitError::Never(why)),
                        Judgement::NotYet(why) => why,
                    };
                    note(why.clone());
                    if is_watched() && asked.is_none_or(|at| at.elapsed() > ASK) && Instant::now() < deadline {
                        note(self.missing(&ruled, &why).await);
                        asked = Some(Instant::now());
                    }
                    (ruled, why)
                }
                Ok(Ok(None)) if began.is_some() => return Err(WaitError::Deleted),
                Ok(Ok(None)) => return Err(WaitError::NotFound),
                Ok(Err(error)) if is_transient(&error) => {
                    note("the API server does not answer".to_owned());
                    if Instant::now() >= deadline {
                        return Err(WaitError::TimedOut(format!("the API server does not answer: {error}")));
                    }
                    let wait = retry;
                    retry = (retry * 2).min(RETRY.1);
                    time::sleep(wait).await;
                    continue;
                }
                Ok(Err(error)) => return Err(WaitError::Read(Box::new(error))),
                Err(_) => return Err(WaitError::TimedOut("the API server does not answer".to_owned())),
            };
            let now = Instant::now();
            if now >= deadline {
                let why = self.missing(&ruled, &why).await;
                return Err(WaitError::TimedOut(why));
            }
            // The watch only says when to look. Where it may not be watched, or it fails, the time says so.
            let until = deadline.min(now + POLL);
            tokio::select! {
                event = events.next() => {
                    if !matches!(event, Some(Ok(_))) {
                        time::sleep_until(until.min(now + RETRY.0)).await;
                    }
                }
                () = time::sleep_until(until) => {}
            }
        }
    }

    /// Who is missing, as far as it may be read; else what the condition says.
    async fn missing(&self, ruled: &Ruled, why: &str) -> String {
        let said = condition::stored(&ruled.object).filter(|condition| condition.status == "Unknown");
        let said = said.map(|condition| condition.message.clone());
        let namespace = Some(ruled.object.metadata.namespace.as_str()).filter(|n| !n.is_empty());
        let objects = if ruled.rule.has_heirs() {
            let read = cluster::read(&self.client, &self.kinds, namespace, String::new());
            match time::timeout(POLL, read).await {
                Ok(Ok(objects)) if !objects.incomplete => objects,
                _ => return said.unwrap_or_else(|| why.to_owned()),
            }
        } else {
            crate::report::audit::Objects::default()
        };
        let has_rule = |kind: &crate::protocol::GroupKind| {
            objects.listed.contains(kind) || self.rules.rule_for(kind).is_some_and(|rule| !rule.inherits)
        };
        let survey = survey::of_flip(ruled, &objects.all, &has_rule);
        let mut parts = Vec::new();
        if !survey.laggards.is_empty() {
            parts.push(format!("waits for {}", text::laggards(&survey.laggards, 3)));
        }
        if survey.to_be_proven > 0 {
            parts.push(format!(
                "{} given, to be proven",
                text::count(survey.to_be_proven, "answer")
            ));
        }
        if parts.is_empty() {
            said.unwrap_or_else(|| why.to_owned())
        } else {
            format!("{why}: {}", parts.join("; "))
        }
    }
}

fn met(record: &Record) -> String {
    let evidence = record.acknowledgement.as_ref().map(|echo| {
        let bound = echo
            .bound_seconds
            .map(|bound| format!(" ({bound}s)"))
            .unwrap_or_default();
        format!(
            ", {:?}{bound} by {}",
            echo.evidence,
            text::count(echo.objects, "object")
        )
    });
    let state = record.acknowledged.map_or("acknowledged", State::as_str);
    format!(
        "{state}: generation {}{}",
        record.stamp.generation,
        evidence.unwrap_or_default()
    )
}

/// An API server that restarts refuses connections, or answers that it is not ready.
fn is_transient(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}

/// Whether somebody looks on.
fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// One line on a terminal that says who is missing.
struct Progress {
    lines: Mutex<Vec<Option<String>>>,
}

impl Progress {
    fn new(count: usize) -> Self {
        Self {
            lines: Mutex::new(vec![None; count]),
        }
    }

    fn note(&self, index: usize, target: &Target, what: &str) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(index) {
            *line = Some(format!("{}: {what}", target.display()));
        }
    }

    fn done(&self, index: usize) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(index) {
            *line = None;
        }
    }

    /// Shows it, for ever.
    async fn show(&self) {
        if !is_watched() {
            return std::future::pending().await;
        }
        loop {
            time::sleep(Duration::from_millis(300)).await;
            let (first, more) = {
                let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
                let open: Vec<&String> = lines.iter().flatten().collect();
                (open.first().map(|line| (*line).clone()), open.len().saturating_sub(1))
            };
            let Some(mut line) = first else { continue };
            if more > 0 {
                line.push_str(&format!(" (and {more} more)"));
            }
            let columns = rustix::termios::tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col));
            let line = text::cut(&text::clean(&line), columns.saturating_sub(1));
            drop(write!(io::stderr(), "\r\u{1b}[K{line}"));
        }
    }

    fn clear(&self) {
        if is_watched() {
            drop(write!(io::stderr(), "\r\u{1b}[K"));
        }
    }
}
