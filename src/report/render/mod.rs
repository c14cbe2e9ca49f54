//! A report in the formats that `pausegen audit -o` offers. Each is safe to show where it belongs: a terminal, a spreadsheet,
//! a browser, a comment in a review.

mod csv;
mod html;
mod markdown;
mod openreports;
mod structured;
mod table;

use jiff::Timestamp;

use super::{
    model::{Report, Row},
    text,
};

pub use structured::yaml;

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// Columns for people.
    #[default]
    Table,
    /// More columns.
    Wide,
    /// [`Report`] as JSON.
    Json,
    /// [`Report`] as YAML.
    Yaml,
    /// A table for spreadsheets.
    Csv,
    /// `kind.group/name` of each object, as `kubectl get -o name` writes it.
    Name,
    /// A table for tickets and reviews.
    Markdown,
    /// One self-contained page.
    Html,
    /// A `ClusterReport` of openreports.io.
    OpenReports,
}

/// What the output goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Style {
    /// Whether colours are wanted.
    pub color: bool,
    /// The columns of the terminal; `None`: nothing is cut.
    pub columns: Option<usize>,
    /// Whether the namespace is a column.
    pub namespaces: bool,
}

/// A report cannot be written in a format.
#[derive(Debug, thiserror::Error)]
#[error("the report cannot be written as {format}")]
pub struct RenderError {
    format: &'static str,
    source: Box<dyn std::error::Error + Send + Sync>,
}

/// Writes a report.
///
/// # Errors
/// None that is known: the types of a report can be written in every format.
pub fn render(report: &Report, format: Format, style: Style, now: Timestamp) -> Result<String, RenderError> {
    match format {
        Format::Table => Ok(table::render(report, false, style, now)),
        Format::Wide => Ok(table::render(report, true, style, now)),
        Format::Json => structured::json(report),
        Format::Yaml => structured::yaml(report),
        Format::Csv => Ok(csv::render(report)),
        Format::Name => Ok(names(report)),
        Format::Markdown => Ok(markdown::render(report, now)),
        Format::Html => Ok(html::render(report, now)),
        Format::OpenReports => structured::yaml(&openreports::render(report, now)),
    }
}

fn names(report: &Report) -> String {
    let lines = report.rows.iter().map(|row| {
        let group = if row.group.is_empty() {
            String::new()
        } else {
            format!(".{}", row.group)
        };
        let name = format!("{}{group}/{}", row.kind.to_lowercase(), row.name);
        format!("{}\n", text::clean(&name))
    });
    lines.collect()
}

/// The inputs that pause an object, its own and inherited ones.
fn paused_by(row: &Row) -> String {
    let own = row.paused_by.iter().cloned();
    let inherited = row.inherited_from.iter().map(|inherited| {
        let kind = inherited.from.split(['.', ' ']).next().unwrap_or_default();
        let name = inherited.from.rsplit(['/', ' ']).next().unwrap_or_default();
        format!("{} of {kind} {name}", inherited.inputs.join("+"))
    });
    own.chain(inherited).collect::<Vec<_>>().join(", ")
}

/// The evidence, with what it rests on.
fn evidence(row: &Row) -> String {
    let Some(evidence) = row.evidence else {
        return String::new();
    };
    let mut text = format!("{evidence:?}");
    if let Some(bound) = row.bound_seconds {
        text.push_str(&format!(" ({bound}s"));
        if !row.lease.is_empty() {
            text.push_str(&format!(", lease {}", row.lease));
        }
        text.push(')');
    }
    text
}

fn number(number: Option<u64>) -> String {
    number.map(|n| n.to_string()).unwrap_or_default()
}

fn age(since: Option<&str>, now: Timestamp) -> String {
    since
        .and_then(|since| super::audit::age(since, now))
        .map(text::age)
        .unwrap_or_default()
}

fn waits_for(row: &Row, most: usize) -> String {
    let mut parts: Vec<String> = row.waits_for.iter().take(most).map(|l| l.display()).collect();
    let more = row.waits_for.len().saturating_sub(parts.len());
    if more > 0 {
        parts.push(format!("{more} more"));
    }
    if row.to_be_proven > 0 && row.is_unacknowledged() {
        parts.push(format!("{} to be proven", row.to_be_proven));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests;
