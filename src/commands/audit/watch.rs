//! `pausegen audit --watch`: the rows that change, as they change.

use std::{
    collections::{BTreeMap, BTreeSet},
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
use tokio::sync::mpsc;

use super::{
    super::cluster::{self, Served},
    style, write,
};
use crate::{
    companion::item::Item,
    protocol::object::ObjectView,
    report::{
        audit::{self, Objects},
        model::{Report, Row},
        render::{Format, render},
        select::Query,
    },
    rules::Rules,
};

/// How long changes are gathered before rows are made of them.
const GATHER: Duration = Duration::from_millis(300);

type Store = BTreeMap<(usize, String, String), ObjectView>;

/// Prints all rows, then those that change, until it is interrupted.
pub(super) async fn run(
    client: Client,
    rules: Rules,
    kinds: Vec<Served>,
    query: Query,
    format: Format,
) -> crate::commands::Result {
    let (sender, mut events) = mpsc::unbounded_channel();
    let watched: Vec<Served> = cluster::in_namespace(&kinds, query.namespace.as_deref())
        .cloned()
        .collect();
    for (index, kind) in watched.iter().enumerate() {
        let api = kind.api(&client, query.namespace.as_deref().unwrap_or_default());
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
    let mut store = Store::new();
    let mut fresh: BTreeMap<usize, BTreeSet<(String, String)>> = BTreeMap::new();
    let mut synced = BTreeSet::new();
    let mut shown: BTreeMap<String, Row> = BTreeMap::new();
    let mut is_first = true;
    loop {
        let Some((index, event)) = events.recv().await else {
            return Ok(std::process::ExitCode::SUCCESS);
        };
        apply(&mut store, &mut fresh, &mut synced, index, event);
        let until = tokio::time::Instant::now() + GATHER;
        while let Ok(Some((index, event))) = tokio::time::timeout_at(until, events.recv()).await {
            apply(&mut store, &mut fresh, &mut synced, index, event);
        }
        if synced.len() < watched.len() {
            continue;
        }
        let all = store
            .iter()
            .filter_map(|((index, ..), object)| Some(watched.get(*index)?.ruled(object.clone())));
        let objects = Objects {
            all: all.collect(),
            listed: watched.iter().map(|kind| kind.rule.group_kind.clone()).collect(),
            source: "a watch".to_owned(),
            ..Objects::default()
        };
        let now = Timestamp::now();
        let report = audit::audit(&rules, &objects, &query, now)?;
        let changed = changed(&mut shown, &report);
        if changed.is_empty() && !is_first {
            continue;
        }
        let report = Report {
            rows: changed,
            ..report
        };
        let mut text = render(&report, format, style(&query), now)?;
        if !is_first && matches!(format, Format::Table | Format::Wide) {
            text = text
                .lines()
                .skip(1)
                .take_while(|line| !line.is_empty())
                .map(|line| format!("{line}\n"))
                .collect();
        }
        is_first = false;
        write(&text)?;
    }
}

/// The rows that are new or not as they were; one that is gone is shown as it was, running.
fn changed(shown: &mut BTreeMap<String, Row>, report: &Report) -> Vec<Row> {
    let now: BTreeMap<String, Row> = report.rows.iter().map(|row| (row.display(), row.clone())).collect();
    let mut changed: Vec<Row> = now
        .values()
        .filter(|row| shown.get(&row.display()) != Some(row))
        .cloned()
        .collect();
    for (name, row) in shown.iter() {
        if !now.contains_key(name) {
            changed.push(Row {
                status: crate::report::model::Status::Running,
                paused: false,
                paused_by: Vec::new(),
                inherited_from: Vec::new(),
                waits_for: Vec::new(),
                findings: Vec::new(),
                ..row.clone()
            });
        }
    }
    *shown = now;
    changed
}

fn apply(
    store: &mut Store,
    fresh: &mut BTreeMap<usize, BTreeSet<(String, String)>>,
    synced: &mut BTreeSet<usize>,
    index: usize,
    event: Result<Event<Item>, watcher::Error>,
) {
    let name = |object: &ObjectView| (object.metadata.namespace.clone(), object.metadata.name.clone());
    match event {
        Err(error) => tracing::warn!(%error, "a watch has failed, and is begun again"),
        Ok(Event::Init) => {
            fresh.insert(index, BTreeSet::new());
        }
        Ok(Event::Apply(item) | Event::InitApply(item)) => {
            let (namespace, object_name) = name(&item.view);
            if let Some(fresh) = fresh.get_mut(&index) {
                fresh.insert((namespace.clone(), object_name.clone()));
            }
            store.insert((index, namespace, object_name), item.view);
        }
        Ok(Event::Delete(item)) => {
            let (namespace, name) = name(&item.view);
            store.remove(&(index, namespace, name));
        }
        Ok(Event::InitDone) => {
            if let Some(fresh) = fresh.remove(&index) {
                store.retain(|(of, namespace, name), _| {
                    *of != index || fresh.contains(&(namespace.clone(), name.clone()))
                });
            }
            synced.insert(index);
        }
    }
}
