//! One self-contained page: no network, no script but the page's own filters. It is complete without the script, too.

use std::collections::{BTreeMap, BTreeSet};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use super::{age, evidence, number, paused_by, waits_for};
use crate::report::{
    model::{Report, Row, SinceFrom, Status},
    text,
};

const CSS: &str = include_str!("page.css");
const JS: &str = include_str!("page.js");
/// Flips that the timeline shows.
const BARS: usize = 40;
/// Flips that the list below it shows.
const LISTED: usize = 500;
/// How deep a tree is indented.
const DEPTH: usize = 8;

pub(super) fn render(report: &Report, now: Timestamp) -> String {
    // The policy names the very script: text that got into the page as one would not run.
    let hash = STANDARD.encode(Sha256::digest(JS.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'"
    );
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Pause audit of {}</title>\n<style>\n{CSS}</style>\n</head>\n<body>\n",
        safe(&report.source)
    );
    head(&mut out, report);
    out.push_str("<main>\n");
    filters(&mut out, report);
    objects(&mut out, report, now);
    timeline(&mut out, report, now);
    out.push_str(&format!("</main>\n<script>{JS}</script>\n</body>\n</html>\n"));
    out
}

/// Foreign text, for content and for attributes in double quotes.
fn safe(foreign: &str) -> String {
    let mut out = String::with_capacity(foreign.len());
    for c in text::clean(foreign).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(c),
        }
    }
    out
}

fn head(out: &mut String, report: &Report) {
    let totals = report.totals;
    out.push_str(&format!(
        "<header>\n<h1>Pause audit</h1>\n<p class=\"soft\">{}, read <time datetime=\"{at}\">{at}</time></p>\n<ul class=\"totals\">\n",
        safe(&report.source),
        at = safe(&report.at)
    ));
    let many = |count: usize, one: &'static str, several: &'static str| (count, if count == 1 { one } else { several });
    for (count, what) in [
        many(totals.objects, "object read", "objects read"),
        many(totals.rows, "object on this page", "objects on this page"),
        (totals.paused, "paused"),
        (totals.unacknowledged, "not acknowledged"),
        many(totals.findings, "finding", "findings"),
    ] {
        out.push_str(&format!("<li><strong>{count}</strong>{what}</li>\n"));
    }
    out.push_str("</ul>\n");
    if !report.unknown.is_empty() {
        out.push_str("<h2>What cannot be known</h2>\n<ul>\n");
        for note in &report.unknown {
            out.push_str(&format!("<li>{}</li>\n", safe(note)));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</header>\n");
}

fn filters(out: &mut String, report: &Report) {
    let options = |values: BTreeSet<String>| -> String {
        let each = values.iter().map(|value| format!("<option>{}</option>", safe(value)));
        each.collect()
    };
    let statuses = options(report.rows.iter().map(|row| row.status.as_str().to_owned()).collect());
    let kinds = options(report.rows.iter().map(|row| row.kind.clone()).collect());
    out.push_str(&format!(
        "<h2 id=\"objects-title\">Objects</h2>\n<form id=\"filters\" role=\"search\" aria-label=\"Filter the objects\" hidden>\n\
         <label>Words<input type=\"search\" name=\"words\" autocomplete=\"off\"></label>\n\
         <label>Status<select name=\"status\"><option value=\"\">any</option>{statuses}</select></label>\n\
         <label>Kind<select name=\"kind\"><option value=\"\">any</option>{kinds}</select></label>\n\
         <label class=\"check\"><input type=\"checkbox\" name=\"found\">with findings</label>\n\
         <button type=\"reset\">Show all</button>\n<span id=\"shown\" role=\"status\" class=\"soft\"></span>\n</form>\n"
    ));
}

/// Rows in the order of the tree: what is owned below its owner.
fn tree(rows: &[Row]) -> Vec<(usize, &Row)> {
    let names: BTreeSet<String> = rows.iter().map(Row::display).collect();
    let mut below: BTreeMap<String, Vec<&Row>> = BTreeMap::new();
    let mut roots = Vec::new();
    for row in rows {
        let above = row.owned_by.iter().chain(&row.member_of);
        match above
            .into_iter()
            .find(|above| names.contains(*above) && **above != row.display())
        {
            Some(above) => below.entry(above.clone()).or_default().push(row),
            None => roots.push(row),
        }
    }
    let mut ordered = Vec::with_capacity(rows.len());
    let mut stack: Vec<(usize, &Row)> = roots.into_iter().rev().map(|row| (0, row)).collect();
    while let Some((depth, row)) = stack.pop() {
        ordered.push((depth, row));
        let children = below.remove(&row.display()).unwrap_or_default();
        stack.extend(children.into_iter().rev().map(|child| (depth + 1, child)));
    }
    // Owners may go round in a circle in what somebody wrote by hand.
    ordered.extend(below.into_values().flatten().map(|row| (0, row)));
    ordered
}

fn objects(out: &mut String, report: &Report, now: Timestamp) {
    if report.rows.is_empty() {
        out.push_str("<p>Nothing is paused or stamped.</p>\n");
    }
    out.push_str(
        "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"objects-title\">\n<table id=\"objects\">\n\
         <caption>What is owned stands below its owner. Names, users and reasons are as they were found.</caption>\n\
         <thead><tr><th scope=\"col\">Object</th><th scope=\"col\">Status</th><th scope=\"col\">Paused by</th>\
         <th scope=\"col\">Generation<small>observed</small></th><th scope=\"col\">Evidence</th><th scope=\"col\">Since</th>\
         <th scope=\"col\">By, why</th><th scope=\"col\">Waits for, findings</th></tr></thead>\n<tbody>\n",
    );
    for (depth, row) in tree(&report.rows) {
        object(out, row, depth, now);
    }
    out.push_str("</tbody>\n</table>\n</div>\n");
}

fn object(out: &mut String, row: &Row, depth: usize, now: Timestamp) {
    let status = row.status.as_str();
    let kin = if depth == 0 {
        String::new()
    } else {
        let above = row
            .owned_by
            .iter()
            .chain(&row.member_of)
            .next()
            .map_or("", String::as_str);
        format!(
            "<span class=\"quiet\">below {}: </span><span class=\"kin\" aria-hidden=\"true\">└</span>",
            safe(above)
        )
    };
    out.push_str(&format!(
        "<tr data-status=\"{status}\" data-kind=\"{kind}\" data-found=\"{found}\">\n\
         <th scope=\"row\" style=\"padding-left:{indent}rem\">{kin}{kind} {name}<small>{namespace}</small></th>\n\
         <td><span class=\"badge {status}\">{status}</span>{lags}</td>\n",
        kind = safe(&row.kind),
        name = safe(&row.name),
        namespace = safe(&row.namespace),
        lags = if row.status == Status::Inherited && !row.waits_for.is_empty() {
            " <span class=\"badge Pending\">not answered</span>"
        } else {
            ""
        },
        found = if row.findings.is_empty() { "no" } else { "yes" },
        indent = 0.75 + depth.min(DEPTH) as f32,
    ));
    let observed = row
        .observed_generation
        .map_or_else(|| "none".to_owned(), |k| k.to_string());
    let generation = match row.generation {
        Some(_) => format!("{}<small>{observed}</small>", number(row.generation)),
        None => String::new(),
    };
    let took = row
        .took_seconds
        .map(|s| format!("<small>after {}</small>", text::seconds(s)))
        .unwrap_or_default();
    let asked = row
        .objects
        .map(|n| format!("<small>{} asked</small>", text::count(n, "object")))
        .unwrap_or_default();
    let since = match &row.since {
        Some(since) => format!(
            "<time datetime=\"{}\">{}</time><small>{} ago</small>",
            safe(since),
            safe(&to_the_second(since)),
            age(Some(since), now)
        ),
        None => String::new(),
    };
    out.push_str(&format!(
        "<td>{}</td>\n<td class=\"n\">{generation}</td>\n<td>{}{took}{asked}</td>\n<td>{since}</td>\n<td>{}<small>{}</small></td>\n<td>{}",
        safe(&paused_by(row)),
        safe(&evidence(row)),
        safe(&row.by),
        safe(&row.reason),
        safe(&waits_for(row, 10)),
    ));
    if !row.findings.is_empty() {
        out.push_str("<ul class=\"findings\">");
        for finding in &row.findings {
            out.push_str(&format!(
                "<li><strong>{}</strong> {}</li>",
                finding.code.as_str(),
                safe(&finding.message)
            ));
        }
        out.push_str("</ul>");
    }
    if !row.excluded.is_empty() {
        out.push_str(&format!("<small>Not asked: {}</small>", safe(&row.excluded.join("; "))));
    }
    out.push_str("</td>\n</tr>\n");
}

/// A time without fractions; what is none stays as it was found.
fn to_the_second(time: &str) -> String {
    time.parse::<Timestamp>()
        .map_or_else(|_| time.to_owned(), |at| format!("{at:.0}"))
}

/// A flip with its acknowledgement.
struct Bar {
    at: Timestamp,
    acknowledged: Option<Timestamp>,
    object: String,
    generation: u64,
    is_pause: bool,
    by: String,
    reason: String,
    evidence: String,
    withdrawn: bool,
    /// Whether it is what stands now.
    stands: bool,
}

/// What stands, and what a history adds to it, the newest first.
fn flips(report: &Report) -> Vec<Bar> {
    let time = |text: &Option<String>| text.as_ref().and_then(|at| at.parse().ok());
    let standing = report
        .rows
        .iter()
        .filter(|row| row.since_from == Some(SinceFrom::Stamp))
        .filter_map(|row| {
            Some(Bar {
                at: time(&row.since)?,
                acknowledged: time(&row.acknowledged_at),
                object: row.display(),
                generation: row.generation?,
                is_pause: !row.paused_by.is_empty(),
                by: row.by.clone(),
                reason: row.reason.clone(),
                evidence: evidence(row),
                withdrawn: false,
                stands: true,
            })
        });
    let mut bars: Vec<Bar> = standing.collect();
    let known: BTreeSet<(String, u64)> = bars.iter().map(|bar| (bar.object.clone(), bar.generation)).collect();
    let past = report
        .history
        .iter()
        .filter(|past| !known.contains(&(past.object.clone(), past.generation)));
    bars.extend(past.filter_map(|past| {
        Some(Bar {
            at: past.at.parse().ok()?,
            acknowledged: time(&past.acknowledged_at),
            object: past.object.clone(),
            generation: past.generation,
            is_pause: past.paused,
            by: past.by.clone(),
            reason: past.reason.clone(),
            evidence: past
                .evidence
                .map(|evidence| format!("{evidence:?}"))
                .unwrap_or_default(),
            withdrawn: past.withdrawn,
            stands: false,
        })
    }));
    bars.sort_by_key(|bar| std::cmp::Reverse((bar.at, bar.generation)));
    bars
}

/// One bar a flip, from the stamp to its acknowledgement, and the same as a list.
fn timeline(out: &mut String, report: &Report, now: Timestamp) {
    let flips = flips(report);
    out.push_str("<h2 id=\"timeline\">Flips and their acknowledgements</h2>\n");
    if report.history.is_empty() {
        out.push_str("<p class=\"soft\">The last flip of each object; with a history (<code>--history</code>) those before, too.</p>\n");
    }
    if flips.is_empty() {
        out.push_str("<p>No object carries a pause generation.</p>\n");
        return;
    }
    draw(out, &flips, now);
    out.push_str("<ol aria-labelledby=\"timeline\">\n");
    for bar in flips.iter().take(LISTED) {
        let echo = match bar.acknowledged {
            Some(at) => {
                let evidence = Some(&bar.evidence).filter(|evidence| !evidence.is_empty());
                let evidence = evidence.map(|evidence| format!(" ({})", safe(evidence)));
                format!(
                    "acknowledged <time datetime=\"{at:.0}\">{at:.0}</time>{}",
                    evidence.unwrap_or_default()
                )
            }
            None if bar.stands => "<strong>not acknowledged</strong>".to_owned(),
            None => "not acknowledged before the next flip".to_owned(),
        };
        let reason = if bar.reason.is_empty() {
            String::new()
        } else {
            format!(" ({})", safe(&bar.reason))
        };
        let at = bar.at;
        out.push_str(&format!(
            "<li><time datetime=\"{at:.0}\">{at:.0}</time>: {} {} by {}{reason}, generation {}; {echo}{}</li>\n",
            safe(&bar.object),
            if bar.is_pause { "paused" } else { "resumed" },
            if bar.by.is_empty() {
                "somebody".to_owned()
            } else {
                safe(&bar.by)
            },
            bar.generation,
            if bar.withdrawn { ", taken back" } else { "" },
        ));
    }
    out.push_str("</ol>\n");
    if flips.len() > LISTED {
        out.push_str(&format!("<p>and {} older ones.</p>\n", flips.len() - LISTED));
    }
}

fn draw(out: &mut String, flips: &[Bar], now: Timestamp) {
    let shown = flips.get(..BARS.min(flips.len())).unwrap_or_default();
    let ends = |bar: &Bar| bar.acknowledged.unwrap_or(if bar.stands { now } else { bar.at });
    let start = shown
        .iter()
        .map(|bar| bar.at.as_millisecond())
        .min()
        .unwrap_or_default();
    let end = shown
        .iter()
        .map(|bar| ends(bar).as_millisecond())
        .chain([now.as_millisecond()])
        .max()
        .unwrap_or_default();
    let span = (end - start).max(1) as f64;
    let x = |at: Timestamp| 300.0 + (at.as_millisecond() - start) as f64 / span * 660.0;
    let height = 20 * shown.len() + 30;
    out.push_str(&format!(
        "<svg viewBox=\"0 0 1000 {height}\" role=\"img\" aria-label=\"The last {} flips as bars from flip to acknowledgement; the list below says the same\">\n",
        shown.len()
    ));
    for (i, bar) in shown.iter().enumerate() {
        let y = 20 * i;
        let (from, to) = (x(bar.at), x(ends(bar)));
        let look = match (bar.acknowledged, bar.stands) {
            (Some(_), _) => "fill=\"#116329\"",
            (None, true) => "fill=\"#fff8e1\" stroke=\"#7d4e00\" stroke-dasharray=\"3 2\"",
            (None, false) => "fill=\"#8c959f\"",
        };
        out.push_str(&format!(
            "<text x=\"0\" y=\"{}\">{}</text><rect x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"12\" {look}><title>{}</title></rect>\n",
            y + 14,
            safe(&text::cut(&bar.object, 44)),
            y + 4,
            (to - from).max(3.0),
            safe(&format!("{}: generation {}", bar.object, bar.generation)),
        ));
    }
    let at = |ms: i64| {
        Timestamp::from_millisecond(ms)
            .map(|at| format!("{at:.0}"))
            .unwrap_or_default()
    };
    out.push_str(&format!(
        "<text x=\"300\" y=\"{y}\" fill=\"#57606a\">{}</text><text x=\"960\" y=\"{y}\" text-anchor=\"end\" fill=\"#57606a\">{}</text>\n</svg>\n",
        at(start),
        at(end),
        y = height - 8
    ));
}
