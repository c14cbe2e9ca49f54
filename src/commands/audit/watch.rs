//! `pausegen audit --watch`: the rows that change, as they change.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::ExitCode,
    time::Duration,
};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{
    Client,
    runtime::{
        WatchStreamExt as _,
        watcher::{self, Event},
    },
};
use tokio::{sync::mpsc, time};

use super::{
    super::cluster::{self, Served},
    notes, style, write,
};
use crate::{
    companion::item::Item,
    protocol::object::ObjectView,
    report::{
        audit::{self, Objects},
        model::{Report, Row, Status},
        render::{Format, RenderError, Style, render},
        select::Query,
    },
    rules::Rules,
};

/// How long changes are gathered before rows are made of them.
const GATHER: Duration = Duration::from_millis(300);

/// How often rows are made where time alone may change them.
const TICK: Duration = Duration::from_secs(20);

/// Prints all rows, then those that change, until it is interrupted.
pub(super) async fn run(
    client: Client,
    rules: Rules,
    kinds: Vec<Served>,
    query: Query,
    format: Format,
    source: String,
) -> crate::commands::Result {
    let namespace = query.namespace.as_deref();
    // What may not be listed would keep the others waiting for ever.
    let read = cluster::read(&client, &kinds, namespace, source).await?;
    notes(&read.unknown)?;
    let (sender, mut events) = mpsc::unbounded_channel();
    let watched: Vec<Served> = cluster::in_namespace(&kinds, namespace)
        .filter(|kind| read.listed.contains(&kind.rule.group_kind))
        .cloned()
        .collect();
    for (index, kind) in watched.iter().enumerate() {
        let api = kind.api(&client, namespace.unwrap_or_default());
        let sender = sender.clone();
        tokio::spawn(async move {
            let mut stream = watcher::watcher(api, watcher::Config::default())
                .default_backoff()
                .boxed();
            while let Some(event) = stream.next().await {
                if sender.send((index, event)).is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    let mut known = Known::default();
    let mut rows = Rows::default();
    loop {
        let changed = match time::timeout(TICK, events.recv()).await {
            Ok(Some((index, event))) => {
                known.apply(&watched, index, event)?;
                let until = time::Instant::now() + GATHER;
                while let Ok(Some((index, event))) = time::timeout_at(until, events.recv()).await {
                    known.apply(&watched, index, event)?;
                }
                true
            }
            Ok(None) => return Ok(ExitCode::SUCCESS),
            Err(_) => query.older_than.is_some(),
        };
        if !changed || known.synced.len() < watched.len() {
            continue;
        }
        let all = known
            .objects
            .iter()
            .filter_map(|((index, ..), object)| Some(watched.get(*index)?.ruled(object.clone())));
        let objects = Objects {
            all: all.collect(),
            ..read.clone()
        };
        let now = Timestamp::now();
        let report = audit::audit(&rules, &objects, &query, now)?;
        let everything = Query {
            unacknowledged: false,
            older_than: None,
            all: true,
            ..query.clone()
        };
        let everything = audit::audit(&rules, &objects, &everything, now)?.rows;
        if let Some(changed) = rows.changed(&report.rows, &everything) {
            let report = Report {
                rows: changed,
                ..report
            };
            write(&rows.text(&report, format, style(&query), now)?)?;
        }
    }
}

/// What has been shown.
#[derive(Default)]
struct Rows {
    shown: BTreeMap<String, Row>,
    has_begun: bool,
    has_titles: bool,
}

impl Rows {
    /// The rows that are new or not as they were. One that is not asked for any more is shown once more, as it stands now.
    fn changed(&mut self, rows: &[Row], everything: &[Row]) -> Option<Vec<Row>> {
        let now: BTreeMap<String, Row> = rows.iter().map(|row| (row.display(), row.clone())).collect();
        let is_new = |row: &&Row| self.shown.get(&row.display()) != Some(row);
        let mut changed: Vec<Row> = rows.iter().filter(is_new).cloned().collect();
        for (name, row) in self.shown.iter().filter(|(name, _)| !now.contains_key(*name)) {
            let stands = everything.iter().find(|row| row.display() == *name);
            changed.push(stands.cloned().unwrap_or_else(|| Row {
                status: Status::Deleted,
                paused: false,
                paused_by: Vec::new(),
                inherited_from: Vec::new(),
                waits_for: Vec::new(),
                to_be_proven: 0,
                findings: Vec::new(),
                ..row.clone()
            }));
        }
        self.shown = now;
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        (is_first || !changed.is_empty()).then_some(changed)
    }

    /// One answer after the other: titles once, and documents apart.
    fn text(&mut self, report: &Report, format: Format, style: Style, now: Timestamp) -> Result<String, RenderError> {
        let text = render(report, format, style, now)?;
        Ok(match format {
            Format::Yaml => format!("---\n{text}"),
            Format::Table | Format::Wide | Format::Csv if !report.rows.is_empty() => {
                // Findings come below the table, and would come again and again.
                let lines = text.split_inclusive('\n').take_while(|line| *line != "\n");
                lines
                    .skip(usize::from(std::mem::replace(&mut self.has_titles, true)))
                    .collect()
            }
            _ => text,
        })
    }
}

/// The objects as the watches tell them.
#[derive(Default)]
struct Known {
    objects: BTreeMap<Key, ObjectView>,
    /// What a list that has begun anew has told so far.
    fresh: BTreeMap<usize, BTreeSet<Key>>,
    synced: BTreeSet<usize>,
}

/// Which kind, namespace and name.
type Key = (usize, String, String);

/// A kind may be listed, and not watched.
#[derive(Debug, thiserror::Error)]
#[error("{0} may not be watched: without --watch the right to list will do")]
struct MayNotWatch(String, #[source] watcher::Error);

impl Known {
    fn apply(
        &mut self,
        watched: &[Served],
        index: usize,
        event: Result<Event<Item>, watcher::Error>,
    ) -> Result<(), MayNotWatch> {
        let key = |object: &ObjectView| (index, object.metadata.namespace.clone(), object.metadata.name.clone());
        match event {
            Err(error) if is_forbidden(&error) => {
                let what = watched.get(index).map(|kind| &kind.resource);
                let what = what.map_or_else(String::new, |resource| {
                    format!("{}.{}", resource.plural, resource.group)
                });
                return Err(MayNotWatch(what, error));
            }
            Err(error) => tracing::warn!(%error, "a watch has failed, and is begun again"),
            Ok(Event::Init) => {
                self.fresh.insert(index, BTreeSet::new());
            }
            Ok(Event::Apply(item) | Event::InitApply(item)) => {
                let key = key(&item.view);
                if let Some(fresh) = self.fresh.get_mut(&index) {
                    fresh.insert(key.clone());
                }
                self.objects.insert(key, item.view);
            }
            Ok(Event::Delete(item)) => {
                self.objects.remove(&key(&item.view));
            }
            Ok(Event::InitDone) => {
                if let Some(fresh) = self.fresh.remove(&index) {
                    self.objects.retain(|key, _| key.0 != index || fresh.contains(key));
                }
                self.synced.insert(index);
            }
        }
        Ok(())
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    matches!(
        error,
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status)) if status.code == 403
    )
}
