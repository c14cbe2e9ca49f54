//! Columns for people.

use jiff::Timestamp;

use super::{Style, age, evidence, number, paused_by, waits_for};
use crate::report::{
    model::{Report, Row, Status},
    text,
};

/// Between two columns.
const GAP: usize = 3;
/// What a terminal that is too small may make of the gap and of the widest columns, one after the other.
const SMALLER: [(usize, usize); 3] = [(GAP, 8), (2, 8), (1, 4)];

struct Column {
    title: &'static str,
    cell: fn(&Row, Timestamp) -> String,
}

const fn column(title: &'static str, cell: fn(&Row, Timestamp) -> String) -> Column {
    Column { title, cell }
}

pub(super) fn render(report: &Report, wide: bool, style: Style, now: Timestamp) -> String {
    if report.rows.is_empty() {
        return format!(
            "Nothing is paused or stamped ({} looked at).\n",
            text::count(report.totals.objects, "object")
        );
    }
    let mut columns = columns(wide, style.namespaces);
    if style.columns.is_some() {
        // Room is dear on a terminal.
        let says = |column: &Column| report.rows.iter().any(|row| !(column.cell)(row, now).is_empty());
        columns.retain(says);
    }
    let cells: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            let cells = columns
                .iter()
                .map(|column| text::clean(&(column.cell)(row, now)).into_owned());
            cells.collect()
        })
        .collect();
    let mut widths: Vec<usize> = columns.iter().map(|column| column.title.len()).collect();
    for row in &cells {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(text::width(cell));
        }
    }
    let gap = fit(&mut widths, style.columns);
    let mut out = String::new();
    let titles: Vec<&str> = columns.iter().map(|column| column.title).collect();
    line(&mut out, titles.iter().copied(), &widths, gap, None);
    for (row, cells) in report.rows.iter().zip(&cells) {
        let color = style.color.then(|| color(row)).flatten();
        line(&mut out, cells.iter().map(String::as_str), &widths, gap, color);
    }
    findings(&mut out, report, style);
    out
}

fn columns(wide: bool, namespaces: bool) -> Vec<Column> {
    let mut columns = Vec::new();
    if namespaces {
        columns.push(column("NAMESPACE", |row, _| row.namespace.clone()));
    }
    columns.push(column("KIND", |row, _| row.kind.clone()));
    columns.push(column("NAME", |row, _| row.name.clone()));
    columns.push(column("STATUS", |row, _| row.status.as_str().to_owned()));
    columns.push(column("PAUSED BY", |row, _| paused_by(row)));
    columns.push(column("GENERATION", |row, _| number(row.generation)));
    columns.push(column("OBSERVED", |row, _| number(row.observed_generation)));
    columns.push(column("EVIDENCE", |row, _| evidence(row)));
    columns.push(column("TOOK", |row, _| {
        row.took_seconds.map(text::seconds).unwrap_or_default()
    }));
    columns.push(column("AGE", |row, now| age(row.since.as_deref(), now)));
    columns.push(column("BY", |row, _| row.by.clone()));
    columns.push(column("REASON", |row, _| row.reason.clone()));
    columns.push(column("WAITS FOR", |row, _| waits_for(row, 2)));
    if wide {
        columns.push(column("SINCE", |row, _| row.since.clone().unwrap_or_default()));
        columns.push(column("ACKNOWLEDGED AT", |row, _| {
            row.acknowledged_at.clone().unwrap_or_default()
        }));
        columns.push(column("OBJECTS", |row, _| {
            row.objects.map(|n| n.to_string()).unwrap_or_default()
        }));
        columns.push(column("NOT ASKED", |row, _| row.excluded.join("; ")));
        columns.push(column("UID", |row, _| row.uid.clone()));
        columns.push(column("API VERSION", |row, _| row.api_version.clone()));
    }
    columns
}

/// Makes the widest columns narrower until the line fits, and says how much is between two columns then.
fn fit(widths: &mut [usize], columns: Option<usize>) -> usize {
    let Some(columns) = columns else { return GAP };
    for (gap, least) in SMALLER {
        let gaps = gap * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > columns {
            match widths.iter_mut().max() {
                Some(widest) if *widest > least => *widest -= 1,
                _ => break,
            }
        }
        if widths.iter().sum::<usize>() + gaps <= columns {
            return gap;
        }
    }
    1
}

fn line<'a>(out: &mut String, cells: impl Iterator<Item = &'a str>, widths: &[usize], gap: usize, color: Option<&str>) {
    let mut line = String::new();
    for (cell, width) in cells.zip(widths) {
        let cell = text::cut(cell, *width);
        let space = width.saturating_sub(text::width(&cell)) + gap;
        line.push_str(&cell);
        line.extend(std::iter::repeat_n(' ', space));
    }
    let line = line.trim_end();
    match color {
        Some(color) => out.push_str(&format!("\u{1b}[{color}m{line}\u{1b}[0m\n")),
        None => out.push_str(&format!("{line}\n")),
    }
}

fn color(row: &Row) -> Option<&'static str> {
    match row.status {
        Status::Irregular | Status::Unstamped => Some("31"),
        Status::Pending => Some("33"),
        _ if !row.findings.is_empty() => Some("33"),
        Status::Acknowledged if row.paused => Some("32"),
        _ => None,
    }
}

fn findings(out: &mut String, report: &Report, style: Style) {
    let rows = report.rows.iter().filter(|row| !row.findings.is_empty());
    let lines: Vec<String> = rows
        .flat_map(|row| {
            row.findings
                .iter()
                .map(|finding| text::clean(&format!("{}: {}", row.display(), finding.message)).into_owned())
        })
        .collect();
    if lines.is_empty() {
        return;
    }
    out.push_str(&format!("\n{}:\n", text::count(lines.len(), "finding")));
    for line in lines {
        match style.columns {
            Some(columns) => {
                for (i, part) in wrap(&line, columns.saturating_sub(4).max(20)).iter().enumerate() {
                    out.push_str(if i == 0 { "  " } else { "    " });
                    out.push_str(part);
                    out.push('\n');
                }
            }
            None => out.push_str(&format!("  {line}\n")),
        }
    }
}

fn wrap(text: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        if let Some(line) = lines.last_mut()
            && (line.is_empty() || text::width(line) + 1 + text::width(word) <= columns)
        {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
            continue;
        }
        lines.push(word.to_owned());
    }
    lines
}
