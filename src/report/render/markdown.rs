//! A table for tickets and reviews. Foreign text is plain text there: no link, no image, no mention, no HTML.

use jiff::Timestamp;

use super::{age, evidence, number, paused_by, waits_for};
use crate::report::{model::Report, text};

const TITLES: [&str; 11] = [
    "Object",
    "Status",
    "Paused by",
    "Generation",
    "Observed",
    "Evidence",
    "Took",
    "Since",
    "By",
    "Reason",
    "Waits for",
];

pub(super) fn render(report: &Report, now: Timestamp) -> String {
    let totals = report.totals;
    let mut out = format!(
        "# Pause audit\n\n{}, read {}: {}, {} paused, {} unacknowledged, {}.\n\n",
        plain(&report.source),
        report.at,
        text::count(totals.rows, "row"),
        totals.paused,
        totals.unacknowledged,
        text::count(totals.findings, "finding")
    );
    for note in &report.unknown {
        out.push_str(&format!("> {}\n>\n", plain(note)));
    }
    if !report.unknown.is_empty() {
        out.push('\n');
    }
    out.push_str(&format!(
        "| {} |\n|{}\n",
        TITLES.join(" | "),
        " --- |".repeat(TITLES.len())
    ));
    for row in &report.rows {
        let since = match &row.since {
            Some(since) => format!("{since} ({})", age(Some(since), now)),
            None => String::new(),
        };
        let cells = [
            row.display(),
            row.status.as_str().to_owned(),
            paused_by(row),
            number(row.generation),
            number(row.observed_generation),
            evidence(row),
            row.took_seconds.map(text::seconds).unwrap_or_default(),
            since,
            row.by.clone(),
            row.reason.clone(),
            waits_for(row, 5),
        ];
        let cells: Vec<String> = cells.iter().map(|cell| plain(cell)).collect();
        out.push_str(&format!("| {} |\n", cells.join(" | ")));
    }
    let rows = report.rows.iter().filter(|row| !row.findings.is_empty());
    for (i, row) in rows.enumerate() {
        if i == 0 {
            out.push_str("\n## Findings\n\n");
        }
        for finding in &row.findings {
            out.push_str(&format!(
                "- **{}** {}: {}\n",
                finding.code.as_str(),
                plain(&row.display()),
                plain(&finding.message)
            ));
        }
    }
    out
}

/// Foreign text with all of Markdown's signs escaped.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text::clean(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            // A mention, or an address, is made by the sign alone.
            '@' => out.push_str("&#64;"),
            '\\' | '`' | '*' | '_' | '{' | '}' | '[' | ']' | '#' | '|' | '~' | '!' | '$' => {
                out.push('\\');
                out.push(c);
            }
            ':' => out.push_str("&#58;"),
            _ => out.push(c),
        }
    }
    out
}
