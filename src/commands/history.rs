//! `pausegen history`: checks a history, and rebuilds one from the API server's audit log.

use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal as _, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;
use jiff::Timestamp;

use super::rules;
use crate::{
    history::{
        audit_log::{ReadError, Rebuild, Source, Who},
        entry::Head,
        verify::{self, Verified},
    },
    protocol::stamp::timestamp,
    report::{audit::Objects, files::Files, text},
};

/// The exit code where nothing could be checked.
const FAILED: u8 = 2;
/// The companion's user name, as the manifests bind it.
const COMPANION: &str = "system:serviceaccount:pausegen-system:pausegen";
/// Progress is shown each time that so many bytes have been read.
const STEP: u64 = 16 << 20;

const VERIFY_HELP: &str = "\
Examples:
  pausegen history verify /var/lib/pausegen/history.jsonl          with what was rotated (history.jsonl.000001, ...)
  pausegen history verify history.jsonl --expect-head 3b1f...      and nothing is cut off behind that line

Exit codes: 0 whole, 1 something is wrong, 2 it cannot be read.";

const AUDIT_LOG_HELP: &str = "\
Examples:
  pausegen history from-audit-log audit-*.log.gz audit.log > history.jsonl
  kubectl get clusters,machinesets,machines -A -o json > objects.json
  pausegen history from-audit-log audit.log --objects objects.json > history.jsonl

Exit codes: 0 no controller wrote to a paused object after its acknowledgement, 1 one did, 2 an error.";

/// The history of flips and acknowledgements.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find any edit, loss, reorder or cut-off end of a history that `serve --history` has written
    Verify(VerifyArgs),
    /// Rebuild the history from the API server's audit log, with every write that a controller made to a paused object after
    /// its acknowledgement
    FromAuditLog(AuditLogArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = VERIFY_HELP)]
struct VerifyArgs {
    /// The history; several files are checked in this order, one with all that was rotated from it
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The hash of a line that has to be there, noted elsewhere before: what was cut off behind it is found
    #[arg(long, value_name = "HASH")]
    expect_head: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = AUDIT_LOG_HELP)]
struct AuditLogArgs {
    /// The audit logs of all API servers, in any order: JSON lines, plain or gzip; - for standard input
    #[arg(value_name = "FILES", required = true)]
    files: Vec<PathBuf>,
    /// Objects as `kubectl get -o json` writes them: with them, what inherits a pause is looked at, too
    #[arg(long, value_name = "FILE")]
    objects: Option<PathBuf>,
    /// The companion's user name (repeatable)
    #[arg(long = "companion-user", value_name = "NAME", default_value = COMPANION)]
    companion_users: Vec<String>,
    /// A user that is a controller, besides every service account (repeatable)
    #[arg(long = "controller", value_name = "NAME")]
    controllers: Vec<String>,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
/// None: they are printed, and make the exit code 2, since 1 is for what was found.
pub async fn run(args: Args) -> super::Result {
    let done = tokio::task::spawn_blocking(move || match args.command {
        Command::Verify(args) => run_verify(args),
        Command::FromAuditLog(args) => run_audit_log(args),
    });
    match done.await? {
        Ok(code) => Ok(code),
        Err(error) => {
            super::print_error(error.as_ref());
            Ok(ExitCode::from(FAILED))
        }
    }
}

fn run_verify(args: VerifyArgs) -> super::Result {
    let VerifyArgs { files, expect_head } = args;
    let (files, verified) = match files.as_slice() {
        [one] => verify::verify_all(one, expect_head.as_deref())?,
        several => (several.to_vec(), verify::verify(several, expect_head.as_deref())?),
    };
    let Verified {
        lines,
        span,
        head,
        recovered,
        problems,
        more,
    } = verified;
    let mut out = io::stdout().lock();
    for problem in &problems {
        writeln!(out, "{}", text::clean(&problem.to_string()))?;
    }
    if more > 0 {
        writeln!(out, "and {more} more")?;
    }
    let span = span
        .map(|(first, last)| format!(", {first} to {last}"))
        .unwrap_or_default();
    writeln!(
        out,
        "{} in {}{}",
        text::count(usize::try_from(lines).unwrap_or(usize::MAX), "line"),
        text::count(files.len(), "file"),
        text::clean(&span)
    )?;
    if recovered > 0 {
        writeln!(
            out,
            "{recovered} torn by a crash or a full disk, and named by the line after"
        )?;
    }
    writeln!(out, "head {}", head.hash)?;
    Ok(if problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn run_audit_log(args: AuditLogArgs) -> super::Result {
    let AuditLogArgs {
        files,
        objects,
        companion_users,
        controllers,
        rules: rules_file,
    } = args;
    let rules = rules::load(rules_file.as_ref())?;
    let objects = match objects {
        None => Objects::default(),
        Some(path) => {
            let name = path.display().to_string();
            let file = File::open(&path).map_err(|error| format!("{name} cannot be read: {error}"))?;
            let mut files = Files::default();
            files.add(&rules, &name, file)?;
            files.objects(&rules)
        }
    };
    let who = Who {
        companions: companion_users.into_iter().collect(),
        controllers: controllers.into_iter().collect(),
    };
    let mut rebuild = Rebuild::new(&rules, who, &objects);
    let mut head = Head::default();
    let mut out = BufWriter::new(io::stdout().lock());
    let mut progress = Progress::new(&files);
    let mut sources = Vec::with_capacity(files.len());
    for path in &files {
        let name = path.display().to_string();
        sources.push(if name == "-" {
            Source::new("standard input", io::stdin().lock())?
        } else {
            let file = File::open(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
            Source::new(name, file)?
        });
    }
    let mut sink = |event| {
        let line = head.link(timestamp(Timestamp::now()), event)?;
        writeln!(out, "{line}")
    };
    match rebuild.read(sources, &mut sink, &mut |bytes| progress.add(bytes)) {
        Err(ReadError::Sink(error)) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::from(FAILED)),
        other => other?,
    }
    out.flush()?;
    progress.end();
    let counts = rebuild.counts();
    let mut err = io::stderr().lock();
    for (file, line, why) in &counts.told {
        writeln!(err, "{}", text::clean(&format!("{file}:{line}: passed over: {why}")))?;
    }
    writeln!(
        err,
        "{} lines: {} flips, {} acknowledgements, {} writes of controllers to paused objects after their acknowledgement, {} \
         lines passed over",
        counts.lines, counts.flips, counts.acknowledgements, counts.writes, counts.unreadable
    )?;
    if counts.unchanged > 0 {
        writeln!(err, "{} more were left out: they changed nothing", counts.unchanged)?;
    }
    if counts.untold > 0 {
        writeln!(
            err,
            "whether {} of these writes changed anything cannot be told: the log does not hold what they were answered with \
             (audit level RequestResponse does)",
            counts.untold
        )?;
    }
    Ok(if counts.writes > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// How far it is, on a terminal.
struct Progress {
    read: u64,
    shown: u64,
    total: Option<u64>,
    is_shown: bool,
}

impl Progress {
    fn new(files: &[PathBuf]) -> Self {
        let is_plain = |path: &PathBuf| path.extension().is_none_or(|end| end != "gz");
        let sizes = files.iter().map(|path| {
            std::fs::metadata(path)
                .ok()
                .filter(|_| is_plain(path))
                .map(|meta| meta.len())
        });
        Self {
            read: 0,
            shown: 0,
            total: sizes.sum(),
            is_shown: io::stderr().is_terminal(),
        }
    }

    fn add(&mut self, bytes: u64) {
        self.read += bytes;
        if self.is_shown && self.read - self.shown >= STEP {
            self.shown = self.read;
            let of = self
                .total
                .map(|total| format!(" of {}", total >> 20))
                .unwrap_or_default();
            drop(write!(io::stderr(), "\r\u{1b}[K{}{of} MiB", self.read >> 20));
        }
    }

    fn end(&self) {
        if self.is_shown && self.shown > 0 {
            drop(write!(io::stderr(), "\r\u{1b}[K"));
        }
    }
}
