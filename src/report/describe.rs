//! One object at length: intent, stamp, who attests what, the evidence and what it rests on, and what would change it.

use std::fmt::Write as _;

use jiff::Timestamp;

use super::{
    audit::age,
    model::{Finding, Row},
    survey::Survey,
    text,
};
use crate::protocol::{
    attestation::{self, Attestation},
    condition, evidence,
    intent::Intent,
    keys::{Evidence, Record, Standing},
    rule::AttestedBy,
    scope::{self, Ruled},
};

/// What is known of an object.
#[derive(Debug, Clone)]
pub struct Subject<'a> {
    /// The object.
    pub flipped: &'a Ruled,
    /// Its row in an audit.
    pub row: &'a Row,
    /// Everything around it that may have to answer.
    pub around: &'a [Ruled],
    /// What the lists say of everybody.
    pub survey: &'a Survey,
    /// What cannot be known, and why.
    pub unknown: &'a [String],
}

/// The readable account.
#[must_use]
pub fn describe(subject: &Subject<'_>, now: Timestamp) -> String {
    let Subject {
        flipped,
        row,
        around,
        survey,
        unknown,
    } = subject;
    let mut out = Account::default();
    let (rule, object) = (&flipped.rule, &flipped.object);
    let standing = Standing::of(&rule.group_kind, object);
    out.line(&format!("Object:      {}", row.display()));
    if !row.uid.is_empty() {
        out.line(&format!("UID:         {}", row.uid));
    }
    out.line(&format!("Status:      {}", row.status.as_str()));
    out.section("Intent");
    let intent = Intent::of(rule, object);
    for input in &rule.inputs {
        let on = if intent.has(&input.id) { "on" } else { "off" };
        let reach = match (input.inherited, rule.has_heirs()) {
            (true, _) => ", inherited by its members",
            (false, true) => ", pauses this object alone",
            (false, false) => "",
        };
        out.line(&format!("  {:40} {on}{reach}", input.id.to_string()));
    }
    for inherited in &row.inherited_from {
        out.line(&format!(
            "  {:40} on, inherited from {}",
            inherited.inputs.join(" and "),
            inherited.from
        ));
    }
    out.section("Stamp");
    match standing.record() {
        Some(record) => stamp(&mut out, record, now),
        None => out.line(match standing {
            Standing::Bare => "  none: it has not been flipped since pausegen is here, or no webhook saw it",
            _ => "  not believed (see the findings)",
        }),
    }
    out.section("Attestors");
    attestors(&mut out, flipped, around, standing.record());
    out.section("Evidence");
    evidence(&mut out, standing.record(), row, survey);
    if let Some(found) = condition::stored(object) {
        out.section("Condition");
        out.line(&format!(
            "  {} is {} ({}), observedGeneration {} of {}",
            condition::TYPE,
            found.status,
            found.reason,
            found.observed_generation.unwrap_or_default(),
            object.metadata.generation.unwrap_or_default()
        ));
        out.line(&format!("  {}", found.message));
    }
    if !row.findings.is_empty() {
        out.section("Findings");
        for Finding { code, message } in &row.findings {
            out.line(&format!("  {}: {message}", code.as_str()));
        }
    }
    if !unknown.is_empty() {
        out.section("Not known");
        for note in *unknown {
            out.line(&format!("  {note}"));
        }
    }
    out.section("What would change it");
    for line in changes(row, rule.has_heirs()) {
        out.line(&format!("  {line}"));
    }
    out.0
}

/// Lines without active characters.
#[derive(Default)]
struct Account(String);

impl Account {
    fn line(&mut self, line: &str) {
        self.0.push_str(&text::clean(line));
        self.0.push('\n');
    }

    fn section(&mut self, title: &str) {
        // A String takes everything.
        let _ = write!(self.0, "\n{title}\n");
    }
}

fn stamp(out: &mut Account, record: &Record, now: Timestamp) {
    let stamp = &record.stamp;
    let ago = age(&stamp.at, now)
        .map(|age| format!(" ({} ago)", text::age(age)))
        .unwrap_or_default();
    out.line(&format!(
        "  pause generation {}, observed {}",
        stamp.generation,
        match record.observed {
            Some(observed) => observed.to_string(),
            None => "none".to_owned(),
        }
    ));
    out.line(&format!(
        "  from {} to {}, at {}{ago}",
        stamp.before, stamp.after, stamp.at
    ));
    if !stamp.by.is_empty() {
        out.line(&format!("  by {}", stamp.by));
    }
    out.line(&format!(
        "  reason: {}",
        if stamp.reason.is_empty() {
            "none was given"
        } else {
            &stamp.reason
        }
    ));
}

/// Whoever has to answer, owners before what they own, with what it said and when.
fn attestors(out: &mut Account, flipped: &Ruled, around: &[Ruled], record: Option<&Record>) {
    let members = scope::members(&flipped.object, &flipped.rule, around, &|_| true).members;
    let intent = Intent::of(&flipped.rule, &flipped.object);
    let changed = record.map(|record| record.stamp.before.changed(&record.stamp.after));
    let mut any = false;
    for ruled in std::iter::once(flipped).chain(members) {
        let own = ruled.object.metadata.uid == flipped.object.metadata.uid;
        let inputs = evidence::asked_of(flipped, own, None);
        for attestor in ruled
            .rule
            .attestors
            .iter()
            .filter(|attestor| attestor.applies(&ruled.object))
        {
            for input in inputs
                .iter()
                .filter(|input| attestor.answers_for(&evidence::reference(own, input)))
            {
                any = true;
                let answer = evidence::answer(attestor, ruled, own, input, &intent, &flipped.rule);
                let what = said(answer, intent.has(input), &attestor.by);
                let mut line = format!(
                    "  {:60} {:24} {input}: {what}",
                    scope::display(&ruled.rule.group_kind, &ruled.object),
                    attestor.name
                );
                if let AttestedBy::Condition(rule) = &attestor.by
                    && let Some(condition) = attestation::find(rule, &ruled.object)
                {
                    let since = condition.last_transition_time.as_deref().unwrap_or("?");
                    line.push_str(&format!(" ({} {} since {since})", condition.type_, condition.status));
                }
                if changed.as_ref().is_some_and(|changed| !changed.contains(input)) {
                    line.push_str(", not part of the last flip");
                }
                out.line(&line);
            }
        }
    }
    if !any {
        out.line("  none: nobody answers for this kind");
    }
}

fn said(answer: Attestation, intended: bool, by: &AttestedBy) -> String {
    let word = |on: bool| if on { "paused" } else { "not paused" };
    match (answer, by) {
        (_, AttestedBy::None) => "not asked (attestedBy: none)".to_owned(),
        (_, AttestedBy::Bound) => "leaves no trace: the staleness bound answers for it".to_owned(),
        (Attestation::Missing, _) => "SAYS NOTHING".to_owned(),
        (Attestation::Unclear { agrees: true }, _) => "agrees, without saying about which input".to_owned(),
        (Attestation::Unclear { agrees: false }, _) => "DOES NOT AGREE".to_owned(),
        (answer, _) if answer.agrees(intended) => format!("says {}", word(intended)),
        _ => format!("STILL SAYS {}", word(!intended)),
    }
}

fn evidence(out: &mut Account, record: Option<&Record>, row: &Row, survey: &Survey) {
    let echo = record.and_then(|record| record.acknowledgement.as_ref());
    let echo = echo.filter(|echo| row.acknowledged_at.is_some() && Some(echo.generation) == row.generation);
    let Some(echo) = echo else {
        out.line(&format!(
            "  none yet for what stands: {} asked, {} missing, {} given that have to be proven",
            text::count(survey.objects, "object"),
            text::count(survey.laggards.len(), "answer"),
            text::count(survey.to_be_proven, "answer")
        ));
        return;
    };
    let took = row.took_seconds.map(text::seconds).unwrap_or_default();
    out.line(&format!(
        "  {:?}: generation {} acknowledged at {}, {took} after the flip, {} asked",
        echo.evidence,
        echo.generation,
        echo.at,
        text::count(echo.objects, "object")
    ));
    out.line(match echo.evidence {
        Evidence::Attested => "  every controller gave an answer that it can only give from a view which has this flip",
        Evidence::Settled => {
            "  at least one controller by the staleness bound: it agreed, and the bound had passed since the flip was seen"
        }
    });
    out.line("  It rests on these assumptions:");
    if let Some(bound) = echo.bound_seconds {
        let lease = if echo.lease.is_empty() {
            String::new()
        } else {
            format!(
                " (the manager's Lease: {}, so that a frozen one would not have been noticed)",
                echo.lease
            )
        };
        out.line(&format!(
            "   - no controller acts on a view older than {bound} s{lease}"
        ));
    }
    out.line("   - one process at a time acts for a controller, and only it writes its condition");
    out.line("   - a process that starts or takes over has read nothing older than its predecessor had");
    out.line("   - a controller that says it is paused is");
    for excluded in &echo.excluded {
        out.line(&format!("  Not asked: {excluded}"));
    }
    if !survey.laggards.is_empty() {
        out.line(&format!("  At present not so: {}", text::laggards(&survey.laggards, 5)));
    }
}

fn changes(row: &Row, has_heirs: bool) -> Vec<String> {
    use super::model::Status::{Acknowledged, Deleted, Inherited, Irregular, Pending, Running, Unstamped};
    match row.status {
        Acknowledged => {
            let mut lines = vec![
                "a flip of an input, or the annotation pausegen.io/touch: the next generation, pending".to_owned(),
            ];
            if has_heirs {
                lines.push("objects that join later are not part of this acknowledgement".to_owned());
            }
            lines
        }
        Pending if row.waits_for.is_empty() => {
            vec!["the companion, once the answers are proven: `pausegen wait` waits for that".to_owned()]
        }
        Pending => {
            let mut lines: Vec<String> = row
                .waits_for
                .iter()
                .take(10)
                .map(|l| format!("an answer of {} for {} ({})", l.attestor, l.display(), l.lag.as_str()))
                .collect();
            let more = row.waits_for.len().saturating_sub(lines.len());
            if more > 0 {
                lines.push(format!("and of {more} more"));
            }
            lines.push("if one never answers: is its manager running and leading? A kind without a controller that attests needs a rule of its own".to_owned());
            lines
        }
        Irregular => vec![
            "a write to the object while the webhook stands, or the annotation pausegen.io/touch: it is stamped anew"
                .to_owned(),
        ],
        Unstamped => vec!["the annotation pausegen.io/touch while the webhook stands: it is stamped".to_owned()],
        Inherited => vec!["a flip of what it inherits from".to_owned()],
        Running => vec!["a flip of an input".to_owned()],
        Deleted => Vec::new(),
    }
}
