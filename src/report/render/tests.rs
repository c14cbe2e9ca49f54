use jiff::Timestamp;

use super::{Format, Style, render};
use crate::{
    protocol::keys::Evidence,
    report::{
        model::{Code, Finding, Lag, Laggard, Past, Report, Row, SinceFrom, Status, Totals},
        text::is_active,
    },
};

const ALL: [Format; 9] = [
    Format::Table,
    Format::Wide,
    Format::Json,
    Format::Yaml,
    Format::Csv,
    Format::Name,
    Format::Markdown,
    Format::Html,
    Format::OpenReports,
];

/// Everything that somebody may write, hostile.
fn hostile(text: &str) -> Report {
    let text = text.to_owned();
    let past = text.clone();
    let row = Row {
        api_version: "cluster.x-k8s.io/v1beta2".to_owned(),
        kind: text.clone(),
        group: "cluster.x-k8s.io".to_owned(),
        namespace: text.clone(),
        name: text.clone(),
        uid: text.clone(),
        status: Status::Pending,
        acknowledged: Some(text.clone()),
        paused: true,
        paused_by: vec![text.clone()],
        inherited_from: Vec::new(),
        member_of: Vec::new(),
        owned_by: Some(text.clone()),
        generation: Some(3),
        observed_generation: Some(2),
        hasty: false,
        evidence: Some(Evidence::Settled),
        bound_seconds: Some(60),
        lease: text.clone(),
        objects: Some(1),
        excluded: vec![text.clone()],
        since: Some("2026-01-02T03:04:05Z".to_owned()),
        since_from: Some(SinceFrom::Stamp),
        by: text.clone(),
        reason: text.clone(),
        acknowledged_at: Some(text.clone()),
        took_seconds: Some(1.5),
        waits_for: vec![Laggard {
            kind: text.clone(),
            namespace: text.clone(),
            name: text.clone(),
            attestor: text.clone(),
            lag: Lag::NotAnswered,
        }],
        to_be_proven: 0,
        findings: vec![Finding {
            code: Code::Pending,
            message: text.clone(),
        }],
    };
    Report {
        api_version: "pausegen.io/v1alpha1",
        kind: "PauseAudit",
        at: "2026-01-02T03:05:00Z".to_owned(),
        source: text.clone(),
        complete: true,
        unknown: vec![text],
        totals: Totals {
            objects: 1,
            rows: 1,
            paused: 1,
            unacknowledged: 1,
            findings: 1,
        },
        rows: vec![row],
        history: vec![Past {
            object: past.clone(),
            generation: 1,
            at: "2026-01-01T00:00:00Z".to_owned(),
            paused: true,
            by: past.clone(),
            reason: past,
            acknowledged_at: None,
            evidence: None,
            withdrawn: true,
        }],
    }
}

fn now() -> Timestamp {
    "2026-01-09T03:05:00Z".parse().unwrap()
}

fn rendered(text: &str, format: Format) -> String {
    render(&hostile(text), format, Style::default(), now()).unwrap()
}

#[test]
fn no_format_lets_active_characters_through() {
    for format in ALL {
        let out = rendered("a\u{1b}]0;x\u{7}\u{9b}2J\r\nb\u{202e}c\u{200b}", format);
        let active: Vec<char> = out.chars().filter(|c| is_active(*c) && *c != '\n').collect();
        // RFC 4180 ends lines so.
        let active: Vec<char> = active
            .into_iter()
            .filter(|c| !(format == Format::Csv && *c == '\r'))
            .collect();
        assert_eq!(active, Vec::<char>::new(), "{format:?}: {out:?}");
    }
    let csv = rendered("a\r\nb", Format::Csv);
    assert_eq!(csv.matches("\r\n").count(), 2, "one line a row: {csv:?}");
}

#[test]
fn json_and_yaml_read_back_as_they_were() {
    for text in ["a\u{1b}[2J\"\\ \u{202e}", "plain", "yes", "- a: b #c", "multi\nline"] {
        let json: serde_json::Value = serde_json::from_str(&rendered(text, Format::Json)).unwrap();
        assert_eq!(json["rows"][0]["reason"], text);
        let yaml: serde_json::Value = serde_saphyr::from_str(&rendered(text, Format::Yaml)).unwrap();
        assert_eq!(yaml["rows"][0]["reason"], text);
        let report: serde_json::Value = serde_saphyr::from_str(&rendered(text, Format::OpenReports)).unwrap();
        assert_eq!(report["kind"], "ClusterReport");
        assert_eq!(report["summary"]["fail"], 1);
        assert_eq!(report["results"][0]["resources"][0]["name"], text);
    }
}

#[test]
fn no_cell_is_a_formula() {
    for formula in [
        "=1+1",
        "+1",
        "-1",
        "@SUM(A1)",
        "\t=1",
        " =1",
        "\"=1",
        "|cmd",
        "＝1",
        "%x",
        "\r=1",
        "a;=1",
        "a; \"-1;+1",
    ] {
        let csv = rendered(formula, Format::Csv);
        let line = csv.lines().nth(1).unwrap();
        for cell in cells(line) {
            let first = cell.chars().find(|c| !c.is_whitespace() && *c != '"').unwrap_or('x');
            assert!(!"=+-@|%＝\t".contains(first), "{formula:?}: {cell:?}");
        }
        // Where the comma is for decimals a semicolon begins the next cell, and quotes within one mean nothing.
        for cell in line.split(';') {
            let first = cell.chars().find(|c| !c.is_whitespace() && *c != '"').unwrap_or('x');
            assert!(!"=+-@|%＝".contains(first), "{formula:?}: {cell:?}");
        }
    }
    assert!(
        rendered("plain", Format::Csv)
            .lines()
            .nth(1)
            .unwrap()
            .starts_with("plain,")
    );
}

/// The cells of a line, as a spreadsheet reads them.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut cell, mut quoted) = (Vec::new(), String::new(), false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => {
                chars.next();
                cell.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(std::mem::take(&mut cell)),
            c => cell.push(c),
        }
    }
    cells.push(cell);
    cells
}

#[test]
fn no_text_becomes_markup() {
    let attack = "</style></script><script>alert(1)</script><img src=x onerror='alert(1)'>\"&amp;";
    let html = rendered(attack, Format::Html);
    assert_eq!(html.matches("<script").count(), 1, "the page's own filters");
    assert_eq!(html.matches("<img").count(), 0);
    assert_eq!(html.matches("onerror='").count(), 0);
    assert!(html.contains("&lt;img src=x onerror=&#39;alert(1)&#39;&gt;&quot;&amp;amp;"));
    assert!(
        !html.contains("http://") && !html.contains("https://"),
        "nothing comes from elsewhere"
    );

    let markdown = rendered("a|b\n[c](https://x) <b> ![d](e) @user `f`", Format::Markdown);
    for sign in ["[c]", "<b>", "![d]", "@user", "`f`", "https://"] {
        assert!(!markdown.contains(sign), "{sign} in {markdown}");
    }
    let row = markdown.lines().find(|line| line.starts_with("| a")).unwrap();
    let bars = row.replace("\\|", "").matches('|').count();
    assert_eq!(bars, 12, "{row}");
}

#[test]
fn a_table_fits_its_terminal() {
    let style = Style {
        color: true,
        columns: Some(100),
        namespaces: true,
    };
    let out = render(
        &hostile("日本語の長い理由 with words in it"),
        Format::Table,
        style,
        now(),
    )
    .unwrap();
    let table: Vec<&str> = out.lines().take_while(|line| !line.is_empty()).collect();
    assert_eq!(table.len(), 2);
    assert!(table[1].starts_with("\u{1b}[33m") && table[1].ends_with("\u{1b}[0m"));
    for line in out.lines() {
        let plain = line.replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
        assert!(crate::report::text::width(&plain) <= 100, "{plain}");
    }
    let small = Style {
        columns: Some(72),
        ..style
    };
    let out = render(&hostile("a long word"), Format::Table, small, now()).unwrap();
    for line in out.lines().take(2) {
        let plain = line.replace("\u{1b}[33m", "").replace("\u{1b}[0m", "");
        assert!(crate::report::text::width(&plain) <= 72, "{plain}");
    }
    let plain = render(&hostile("x"), Format::Table, Style::default(), now()).unwrap();
    assert!(!plain.contains('\u{1b}'));
    assert!(plain.contains("7d"), "{plain}");
}

/// The contrast of two colours, as WCAG 2 has it.
fn contrast(one: &str, other: &str) -> f64 {
    let luminance = |color: &str| {
        let digits = color.trim_start_matches('#');
        let digits = if digits.len() == 3 {
            digits.chars().flat_map(|c| [c, c]).collect()
        } else {
            digits.to_owned()
        };
        let channel = |at: usize| {
            let value = f64::from(u8::from_str_radix(&digits[at..at + 2], 16).unwrap()) / 255.0;
            if value <= 0.03928 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4)
    };
    let (a, b) = (luminance(one), luminance(other));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn the_page_can_be_read_by_everybody() {
    let css = include_str!("page.css");
    // Text in the colour and on the ground of each rule that sets both.
    let mut pairs = 0;
    for rule in css.split('}') {
        let value = |name: &str| {
            let (_, rest) = rule.split_once(&format!(" {name}: #"))?;
            Some(format!("#{}", rest.split(';').next().unwrap().trim()))
        };
        if let (Some(color), Some(ground)) = (value("color"), value("background")) {
            assert!(contrast(&color, &ground) >= 4.5, "{rule}");
            pairs += 1;
        }
    }
    assert!(pairs >= 4, "{pairs}");
    for soft in ["#57606a", "#1b1f24"] {
        assert!(css.contains(soft));
        for ground in ["#fff", "#f6f8fa"] {
            assert!(contrast(soft, ground) >= 4.5, "{soft} on {ground}");
        }
    }
    let html = rendered("x", Format::Html);
    for needed in [
        "<html lang=\"en\">",
        "<title>",
        "<main>",
        "scope=\"col\"",
        "scope=\"row\"",
        "<caption>",
        "role=\"status\"",
        "@media print",
        ":focus-visible",
    ] {
        assert!(html.contains(needed), "{needed}");
    }
    // Every control has a name.
    for control in ["<input", "<select"] {
        for (at, _) in html.match_indices(control) {
            let label = html[..at].rfind("<label").unwrap();
            assert!(!html[label..at].contains("</label>"), "{}", &html[at..at + 60]);
        }
    }
}

#[test]
fn the_page_is_well_formed() {
    const VOID: [&str; 5] = ["meta", "input", "!doctype", "br", "rect/"];
    let html = rendered("<b>\"'&", Format::Html);
    let mut open: Vec<String> = Vec::new();
    let mut rest = html.as_str();
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').unwrap();
        let tag = rest[..end].split([' ', '\n']).next().unwrap().to_lowercase();
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "at {}", &rest[..rest.len().min(80)]);
        } else if !VOID.contains(&tag.as_str()) {
            if tag == "script" || tag == "style" {
                rest = &rest[rest.find(&format!("</{tag}")).unwrap()..];
            }
            open.push(tag);
        }
    }
    assert_eq!(open, Vec::<String>::new());
}
