//! `pausegen rules`: the rules file explained, printed and checked.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use clap::Subcommand;

use super::client::ClientArgs;
use crate::rules::{
    Rules,
    error::RulesError,
    file::RulesFile,
    server::{Cluster, Comparison, compare},
};

/// The rules file: which kinds can be paused, by what, and who answers for it.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Say what is wrong with a rules file, with line and column; exit code 1 if anything is
    Check(Check),
    /// Print the effective file: what it extends is in it, and rules that are never reached are not
    Print(Print),
    /// Print the JSON Schema of the file, for editors
    #[command(after_help = "Examples:\n  pausegen rules schema > rules.schema.json")]
    Schema,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen rules check rules.yaml\n  pausegen rules check rules.yaml --server")]
struct Check {
    /// The rules file; else the built-in rules for Cluster API
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Compare with a cluster: what is installed, where acknowledgements can be written, what has no rule
    #[arg(long)]
    server: bool,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  pausegen rules print\n  pausegen rules print rules.yaml")]
struct Print {
    /// The rules file; else the built-in rules for Cluster API
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Runs the subcommand.
///
/// # Errors
///
/// A file or a cluster that cannot be read. Mistakes in a file are printed, and make the exit code 1.
pub async fn run(args: Args) -> super::Result {
    let Args { command } = args;
    match command {
        Command::Check(check) => run_check(check).await,
        Command::Print(Print { file }) => {
            let yaml = load(file.as_ref())?.to_yaml()?;
            io::stdout().write_all(yaml.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Schema => {
            let schema = serde_json::to_string_pretty(&schemars::schema_for!(RulesFile))?;
            writeln!(io::stdout(), "{schema}")?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The rules of a file, or the built-in ones.
///
/// # Errors
///
/// A file that cannot be read or has mistakes.
pub(super) fn load(file: Option<&PathBuf>) -> Result<Rules, RulesError> {
    match file {
        Some(path) => Rules::load(path),
        None => Rules::capi(),
    }
}

async fn run_check(args: Check) -> super::Result {
    let Check { file, server, client } = args;
    let rules = match load(file.as_ref()) {
        Ok(rules) => rules,
        Err(error @ RulesError::Read { .. }) => return Err(error.into()),
        Err(error) => {
            writeln!(io::stderr(), "{error}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let name = file.map_or_else(|| "preset capi".to_owned(), |path| path.display().to_string());
    let mut out = io::stdout().lock();
    writeln!(
        out,
        "{name}: sound; {} kinds by name, {} patterns",
        rules.kinds().len(),
        rules.patterns().count()
    )?;
    if !server {
        return Ok(ExitCode::SUCCESS);
    }
    let comparison = compare(&rules, &Cluster::read(&client.client().await?, &rules).await?);
    write_comparison(&mut out, &comparison)?;
    Ok(if comparison.problems.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn write_comparison(out: &mut impl io::Write, comparison: &Comparison) -> io::Result<()> {
    let Comparison {
        installed,
        missing,
        problems,
        warnings,
    } = comparison;
    let rows: Vec<[String; 4]> = installed
        .iter()
        .map(|kind| {
            [
                kind.served.kind.to_string(),
                kind.served.version.clone(),
                if kind.by_pattern { "pattern" } else { "name" }.to_owned(),
                kind.home.map_or_else(
                    || "nowhere: it has no input of its own".to_owned(),
                    |home| home.to_string(),
                ),
            ]
        })
        .collect();
    writeln!(out, "\nInstalled, owners before what they own:")?;
    table(
        out,
        &["KIND", "VERSION", "RULED BY", "ACKNOWLEDGED IN"].map(str::to_owned),
        &rows,
    )?;
    if !missing.is_empty() {
        writeln!(out, "\nNamed by a rule, not installed:")?;
        for kind in missing {
            writeln!(out, "  {kind}")?;
        }
    }
    for (title, lines) in [("Worth a look", warnings), ("Wrong", problems)] {
        if !lines.is_empty() {
            writeln!(out, "\n{title}:")?;
            for line in lines {
                writeln!(out, "  {line}")?;
            }
        }
    }
    Ok(())
}

fn table<const N: usize>(out: &mut impl io::Write, head: &[String; N], rows: &[[String; N]]) -> io::Result<()> {
    let mut widths = [0; N];
    for row in std::iter::once(head).chain(rows) {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.len().max(*width);
        }
    }
    for row in std::iter::once(head).chain(rows) {
        let mut line = String::from(" ");
        for (width, cell) in widths.iter().zip(row) {
            line.push_str(&format!(" {cell:width$} "));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}
