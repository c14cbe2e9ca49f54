//! `pausegen audit`: what is paused, and is it acknowledged?

use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use clap::ValueEnum;
use jiff::{SignedDuration, Timestamp};

use super::{
    client::{KubectlArgs, Reached},
    cluster, names, rules, times,
};
use crate::{
    history::{past, verify},
    report::{
        audit::{self, Objects},
        files::{FileError, Files},
        model::{Report, Row},
        render::{Format, Style, render},
        select::{FieldSelector, KindFilter, LabelSelector, Query},
    },
    rules::Rules,
};

mod watch;

/// The exit code where there is something to be looked at, as `kubectl diff` has it.
const FINDINGS: u8 = 1;
/// The exit code where the answer is not complete, or there is none.
const FAILED: u8 = 2;

const AFTER_HELP: &str = "\
Examples:
  pausegen audit -A                                  everything that is paused or stamped
  pausegen audit -n prod --cluster shop              a Cluster and its whole tree
  pausegen audit -A --unacknowledged                 what nobody may rely on yet
  pausegen audit -A --older-than 7d -o markdown      forgotten pauses, for a ticket
  pausegen audit -A -o html > audit.html             a page for people who would rather look
  kubectl get clusters,machines -A -o yaml | pausegen audit -A -f -
  pausegen audit -A -f backup.yaml                   offline, from a backup

Exit codes: 0 nothing to be looked at, 1 findings, 2 an error or an incomplete answer.";

/// What is paused, since when, by whom, why, and did every controller acknowledge it?
///
/// One row for every object that is paused or carries a pause generation. It needs rights to read only.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// All namespaces, and cluster-scoped objects
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// The namespace; else that of the context
    #[arg(short, long, value_name = "NAME", conflicts_with = "all_namespaces", value_parser = names::namespace)]
    namespace: Option<String>,
    /// Only objects with these labels (team=racks,tier!=test)
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<LabelSelector>,
    /// Only objects with these fields (metadata.name=a, spec.clusterName=b)
    #[arg(long, value_name = "SELECTOR")]
    field_selector: Option<FieldSelector>,
    /// Only objects of this kind, such as Machine or machines.cluster.x-k8s.io (repeatable)
    #[arg(long = "kind", value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<KindFilter>,
    /// This Cluster with its whole tree, paused or not
    #[arg(long, value_name = "NAME", value_parser = names::object)]
    cluster: Option<String>,
    /// Only what has been paused for longer than this, such as 7d; each is a finding
    #[arg(long, value_name = "DURATION", value_parser = times::duration)]
    older_than: Option<Duration>,
    /// Only what is not acknowledged
    #[arg(long)]
    unacknowledged: bool,
    /// Go on, and print every row that changes
    #[arg(short, long, conflicts_with_all = ["files", "history"])]
    watch: bool,
    /// The format
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = FormatArg::Table)]
    output: FormatArg,
    /// Read objects from this file instead of a cluster; - for standard input (repeatable)
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// A history that `serve --history` has written, for the timeline of -o html
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    cluster_args: KubectlArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FormatArg {
    /// Columns for people
    Table,
    /// More columns
    Wide,
    /// The whole answer
    Json,
    /// The whole answer
    Yaml,
    /// For spreadsheets
    Csv,
    /// kind.group/name
    Name,
    /// For tickets and reviews
    Markdown,
    /// One self-contained page
    Html,
    /// A ClusterReport of openreports.io
    Openreports,
}

impl From<FormatArg> for Format {
    fn from(format: FormatArg) -> Self {
        match format {
            FormatArg::Table => Self::Table,
            FormatArg::Wide => Self::Wide,
            FormatArg::Json => Self::Json,
            FormatArg::Yaml => Self::Yaml,
            FormatArg::Csv => Self::Csv,
            FormatArg::Name => Self::Name,
            FormatArg::Markdown => Self::Markdown,
            FormatArg::Html => Self::Html,
            FormatArg::Openreports => Self::OpenReports,
        }
    }
}

/// Runs the subcommand.
///
/// # Errors
/// None: they are printed, and make the exit code 2, since 1 is for findings.
pub async fn run(args: Args) -> super::Result {
    match Box::pin(try_run(args)).await {
        Ok(code) => Ok(code),
        Err(error) => {
            super::print_error(error.as_ref());
            Ok(ExitCode::from(FAILED))
        }
    }
}

async fn try_run(args: Args) -> super::Result {
    let Args {
        all_namespaces,
        namespace,
        selector,
        field_selector,
        kinds,
        cluster,
        older_than,
        unacknowledged,
        watch,
        output,
        files,
        history,
        rules: rules_file,
        cluster_args,
    } = args;
    let rules = rules::load(rules_file.as_ref())?;
    let mut query = Query {
        namespace,
        kinds,
        labels: selector.unwrap_or_default(),
        fields: field_selector.unwrap_or_default(),
        cluster,
        older_than: older_than.map(SignedDuration::try_from).transpose()?,
        unacknowledged,
        tree: output == FormatArg::Html,
        all: false,
    };
    let format = Format::from(output);
    if watch && matches!(format, Format::Markdown | Format::Html | Format::OpenReports) {
        return Err(
            "--watch goes with -o table, wide, name, csv, json and yaml: the other formats are whole documents".into(),
        );
    }
    let objects = if files.is_empty() {
        let Reached {
            client,
            namespace,
            server,
        } = cluster_args.reach().await?;
        if !all_namespaces {
            query.namespace.get_or_insert(namespace);
        }
        let kinds = cluster::served(&client, &rules).await?;
        let source = source(&server, query.namespace.as_deref());
        if watch {
            return watch::run(client, rules, kinds, query, format, source).await;
        }
        cluster::read(&client, &kinds, query.namespace.as_deref(), source).await?
    } else {
        let (read, from) = (files, std::sync::Arc::new(rules));
        let rules = std::sync::Arc::clone(&from);
        let objects = tokio::task::spawn_blocking(move || read_files(&from, &read)).await??;
        return answer(&rules, &objects, &query, format, history.as_deref());
    };
    answer(&rules, &objects, &query, format, history.as_deref())
}

fn source(server: &str, namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!("{server}, namespace {namespace}"),
        None => format!("{server}, all namespaces"),
    }
}

fn read_files(rules: &Rules, paths: &[PathBuf]) -> Result<Objects, FileError> {
    let mut files = Files::default();
    for path in paths {
        if path.as_os_str() == "-" {
            files.add(rules, "standard input", io::stdin().lock())?;
        } else {
            let name = path.display().to_string();
            let file = File::open(path).map_err(|source| FileError::Read {
                file: name.clone(),
                source,
            })?;
            files.add(rules, &name, file)?;
        }
    }
    Ok(files.objects(rules))
}

fn answer(
    rules: &Rules,
    objects: &Objects,
    query: &Query,
    format: Format,
    history: Option<&std::path::Path>,
) -> super::Result {
    let now = Timestamp::now();
    let mut report = audit::audit(rules, objects, query, now)?;
    if let Some(path) = history {
        let files = verify::files(path)?;
        report.history = past::past(&files).map_err(|error| format!("{} cannot be read: {error}", path.display()))?;
        let shown: std::collections::BTreeSet<String> = report.rows.iter().map(Row::display).collect();
        report.history.retain(|past| shown.contains(&past.object));
    }
    write(&render(&report, format, style(query), now)?)?;
    // The others say it themselves; of a ClusterReport it is no part while the answer is complete.
    if matches!(
        format,
        Format::Table | Format::Wide | Format::Name | Format::Csv | Format::OpenReports
    ) {
        notes(&report.unknown)?;
    }
    Ok(code(&report))
}

/// Says on stderr what cannot be known.
fn notes(unknown: &[String]) -> io::Result<()> {
    let mut err = io::stderr().lock();
    for note in unknown {
        writeln!(err, "not known: {}", crate::report::text::clean(note))?;
    }
    Ok(())
}

fn code(report: &Report) -> ExitCode {
    if !report.complete {
        ExitCode::from(FAILED)
    } else if report.totals.findings > 0 {
        ExitCode::from(FINDINGS)
    } else {
        ExitCode::SUCCESS
    }
}

/// Colours and a width on a terminal only.
fn style(query: &Query) -> Style {
    let stdout = io::stdout();
    let is_terminal = stdout.is_terminal();
    let is_unwanted = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        color: is_terminal && !is_unwanted,
        columns: is_terminal
            .then(|| rustix::termios::tcgetwinsize(stdout).ok())
            .flatten()
            .map(|size| usize::from(size.ws_col))
            .filter(|columns| *columns > 0),
        namespaces: query.namespace.is_none(),
    }
}

/// Writes the answer; where nobody reads it any more there is nothing left to do.
fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
