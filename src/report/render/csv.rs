//! A table for spreadsheets, as RFC 4180 has it. No cell is a formula: one that begins like it gets an apostrophe in front.

use super::{evidence, number, paused_by};
use crate::report::{
    model::{Report, Row},
    text,
};

const TITLES: [&str; 22] = [
    "kind",
    "group",
    "namespace",
    "name",
    "uid",
    "status",
    "paused",
    "paused by",
    "inherited from",
    "generation",
    "observed generation",
    "evidence",
    "objects",
    "since",
    "by",
    "reason",
    "acknowledged at",
    "took seconds",
    "waits for",
    "to be proven",
    "not asked",
    "findings",
];

pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    line(&mut out, &TITLES.map(str::to_owned));
    for row in &report.rows {
        line(&mut out, &cells(row));
    }
    out
}

fn cells(row: &Row) -> [String; 22] {
    let join = |parts: Vec<String>| parts.join("; ");
    [
        row.kind.clone(),
        row.group.clone(),
        row.namespace.clone(),
        row.name.clone(),
        row.uid.clone(),
        row.status.as_str().to_owned(),
        row.paused.to_string(),
        paused_by(row),
        join(
            row.inherited_from
                .iter()
                .map(|inherited| inherited.from.clone())
                .collect(),
        ),
        number(row.generation),
        number(row.observed_generation),
        evidence(row),
        row.objects.map(|n| n.to_string()).unwrap_or_default(),
        row.since.clone().unwrap_or_default(),
        row.by.clone(),
        row.reason.clone(),
        row.acknowledged_at.clone().unwrap_or_default(),
        row.took_seconds.map(|s| format!("{s:.3}")).unwrap_or_default(),
        join(
            row.waits_for
                .iter()
                .map(|l| format!("{} ({} {})", l.display(), l.attestor, l.lag.as_str()))
                .collect(),
        ),
        row.to_be_proven.to_string(),
        join(row.excluded.clone()),
        join(
            row.findings
                .iter()
                .map(|f| format!("{}: {}", f.code.as_str(), f.message))
                .collect(),
        ),
    ]
}

fn line(out: &mut String, cells: &[String; 22]) {
    for (i, cell) in cells.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        out.push_str(&quoted(cell));
    }
    out.push_str("\r\n");
}

/// What spreadsheets take for the beginning of a formula, also in full width.
const SIGNS: [char; 10] = ['=', '+', '-', '@', '|', '%', '＝', '＋', '－', '＠'];

/// Text with an apostrophe before whatever would begin a formula: at the beginning of the cell, and behind a semicolon, where
/// a spreadsheet of another country begins the next cell, quotes or not.
fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    let mut pending = String::new();
    let mut is_start = true;
    if text.starts_with(['\t', '\r', '\n']) {
        out.push('\'');
    }
    for c in text.chars() {
        if is_start && (c.is_whitespace() || c == '"') {
            pending.push(c);
            continue;
        }
        if is_start && SIGNS.contains(&c) && !out.ends_with('\'') {
            out.push('\'');
        }
        out.push_str(&pending);
        pending.clear();
        out.push(c);
        is_start = c == ';';
    }
    out.push_str(&pending);
    out
}

fn quoted(cell: &str) -> String {
    let cell = text::clean(&harmless(cell)).into_owned();
    if cell.contains([',', '"', ';', ' ', '\'']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell
    }
}
