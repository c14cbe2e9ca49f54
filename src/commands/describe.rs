//! `pausegen describe`: one object at length.

use std::{
    io::{self, Write as _},
    path::PathBuf,
    process::ExitCode,
};

use jiff::Timestamp;

use super::{
    client::KubectlArgs,
    cluster, rules,
    targets::{Target, TargetArgs},
};
use crate::{
    protocol::{GroupKind, intent::Intent, keys::Standing},
    report::{
        audit::{self, Objects},
        describe::{Subject, describe},
        select::Query,
        survey, text,
    },
    rules::Rules,
};

const AFTER_HELP: &str = "\
Examples:
  pausegen describe cluster/shop
  pausegen describe machine a b -n prod";

/// A readable account of one object: its pause, who attested what and when, and what would change it.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    #[command(flatten)]
    targets: TargetArgs,
    /// The rules file; else the built-in rules for Cluster API
    #[arg(long, env = "PAUSEGEN_RULES", value_name = "FILE")]
    rules: Option<PathBuf>,
    #[command(flatten)]
    cluster: KubectlArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// Objects that cannot be told, and a cluster that cannot be reached.
pub async fn run(args: Args) -> super::Result {
    let Args {
        targets,
        rules: rules_file,
        cluster: cluster_args,
    } = args;
    targets.check()?;
    let rules = rules::load(rules_file.as_ref())?;
    let (client, namespace) = cluster_args.client().await?;
    let kinds = cluster::served(&client, &rules).await?;
    let targets = targets.resolve(&client, &kinds, &namespace).await?;
    let mut is_there = true;
    let mut read: Option<(String, Objects)> = None;
    for (i, target) in targets.iter().enumerate() {
        if read
            .as_ref()
            .is_none_or(|(namespace, _)| *namespace != target.namespace)
        {
            let namespace = Some(target.namespace.as_str()).filter(|namespace| !namespace.is_empty());
            let objects = cluster::read(&client, &kinds, namespace, String::new()).await?;
            read = Some((target.namespace.clone(), objects));
        }
        let Some((_, objects)) = &read else { continue };
        match account(&rules, objects, target)? {
            Some(account) => {
                let between = if i > 0 { "\n\n" } else { "" };
                write!(io::stdout(), "{between}{account}")?;
            }
            None => {
                is_there = false;
                writeln!(
                    io::stderr(),
                    "error: {}: it is not there",
                    text::clean(&target.display())
                )?;
            }
        }
    }
    Ok(if is_there { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn account(rules: &Rules, objects: &Objects, target: &Target) -> Result<Option<String>, audit::AuditError> {
    let group_kind = &target.kind.rule.group_kind;
    let found = objects.all.iter().find(|ruled| {
        let meta = &ruled.object.metadata;
        ruled.rule.group_kind == *group_kind && meta.namespace == target.namespace && meta.name == target.name
    });
    let Some(flipped) = found else { return Ok(None) };
    let now = Timestamp::now();
    let query = Query {
        all: true,
        ..Query::default()
    };
    let report = audit::audit(rules, objects, &query, now)?;
    let Some(row) = report.rows.iter().find(|row| row.uid == flipped.object.metadata.uid) else {
        return Ok(None);
    };
    let has_rule =
        |kind: &GroupKind| objects.listed.contains(kind) || rules.rule_for(kind).is_some_and(|rule| !rule.inherits);
    let intent = Intent::of(&flipped.rule, &flipped.object);
    let survey = match Standing::of(group_kind, &flipped.object) {
        Standing::Own(record) if record.stamp.after == intent && !record.is_acknowledged(&flipped.rule) => {
            survey::of_flip(flipped, &objects.all, &has_rule)
        }
        _ => survey::of_intent(flipped, &objects.all, &has_rule),
    };
    let subject = Subject {
        flipped,
        row,
        around: &objects.all,
        survey: &survey,
        unknown: &report.unknown,
    };
    Ok(Some(describe(&subject, now)))
}
