//! The CEL `matchConditions` of the webhooks: the API server's own copy of [`concern`](crate::protocol::stamp::concern).
//!
//! The texts never fail: a field of an unexpected type, or none, is off, as in
//! [`is_on`](crate::protocol::intent::is_on). An expression that failed would deny the write under `failurePolicy: Fail`.
//! On CREATE `oldObject` is null, and everything that is optionally selected from null is absent.
//! Costs are a few dozen units of the 2,500,000 that one object's conditions may take together.

use super::{
    Rules,
    select::{KindName, Selector},
};
use crate::protocol::{
    keys,
    object::FieldPath,
    rule::{AnnotationMatch, FieldMatch, InputSource},
};

/// What counts as true of an annotation that is parsed as a boolean.
const TRUE: &str = "['1', 't', 'T', 'TRUE', 'true', 'True']";
/// Words that CEL does not take after a dot.
const RESERVED: [&str; 21] = [
    "as",
    "break",
    "const",
    "continue",
    "else",
    "false",
    "for",
    "function",
    "if",
    "import",
    "in",
    "let",
    "loop",
    "namespace",
    "null",
    "package",
    "return",
    "true",
    "var",
    "void",
    "while",
];

/// Whether a kind is one that has an input; `None` where the rules of the webhook let no other kind through.
///
/// Only groups with a pattern need it: for the others the webhook names the resources.
#[must_use]
pub fn ruled(rules: &Rules) -> Option<String> {
    let mut by_gate: Vec<(String, Vec<&str>)> = Vec::new();
    for group in groups(rules).filter(|group| rules.patterns().any(|s| s.group == **group)) {
        if let Gate::If(text) = gate(rules, group, &|i| has_inputs(rules, i)) {
            push(&mut by_gate, text, group);
        }
    }
    let parts: Vec<String> = by_gate
        .into_iter()
        .map(|(text, groups)| format!("!({}) ||\n  {text}", in_groups(&groups)))
        .collect();
    match parts.as_slice() {
        [] => None,
        [one] => Some(one.clone()),
        _ => Some(format!("({})", parts.join(") &&\n("))),
    }
}

/// Whether the write flips: an input is on before and off after, or the other way round.
#[must_use]
pub fn flips(rules: &Rules) -> String {
    let mut sources: Vec<&InputSource> = Vec::new();
    let all: Vec<_> = rules.inputs().collect();
    for (_, inputs) in &all {
        for input in *inputs {
            if !sources.contains(&&input.source) {
                sources.push(&input.source);
            }
        }
    }
    let parts: Vec<String> = sources
        .into_iter()
        .map(|source| {
            let changed = changed(source);
            let has = |index: usize| {
                all.get(index)
                    .is_some_and(|(_, inputs)| inputs.iter().any(|input| input.source == *source))
            };
            match kinds_with(rules, &has) {
                None => format!("({changed})"),
                Some(gate) => format!("({gate} &&\n  ({changed}))"),
            }
        })
        .collect();
    if parts.is_empty() {
        "false".to_owned()
    } else {
        parts.join(" ||\n")
    }
}

/// Whether the write changes one of the keys that only pausegen may write, or carries the touch key.
#[must_use]
pub fn keys() -> String {
    let guarded: Vec<String> = keys::GUARDED.iter().map(|key| quote(key)).collect();
    format!(
        "[{}]\n.exists(k,\n  object.?metadata.?annotations[?k] != oldObject.?metadata.?annotations[?k]) ||\n\
         object.?metadata.?annotations[?{}].hasValue()",
        guarded.join(",\n "),
        quote(keys::TOUCH)
    )
}

fn changed(source: &InputSource) -> String {
    format!("{} !=\n   {}", on(source, "object"), on(source, "oldObject"))
}

/// Whether an input is on.
fn on(source: &InputSource, object: &str) -> String {
    match source {
        InputSource::Annotation { key, on } => {
            let value = format!("{object}.?metadata.?annotations[?{}]", quote(key));
            match on {
                AnnotationMatch::Present => format!("{value}.hasValue()"),
                AnnotationMatch::Equals(literal) => format!("({value} == optional.of({}))", quote(literal)),
                AnnotationMatch::Boolean => format!("({value}.orValue('') in {TRUE})"),
            }
        }
        InputSource::Field { path, on } => {
            let (guards, value) = select(path, object);
            let test = match on {
                FieldMatch::True => format!("{value}.orValue(false) == true"),
                FieldMatch::False => format!("{value}.orValue(true) == false"),
                FieldMatch::OneOf(literals) => {
                    let literals: Vec<String> = literals.iter().map(|literal| quote(literal)).collect();
                    format!("{value}.orValue('') in [{}]", literals.join(", "))
                }
            };
            format!("({guards}{test})")
        }
    }
}

/// The optional value at a path, and what has to hold before it may be selected: selecting from a list is an error.
fn select(path: &FieldPath, object: &str) -> (String, String) {
    let mut guards = String::new();
    let mut at = object.to_owned();
    let mut segments = path.0.iter().peekable();
    while let Some(segment) = segments.next() {
        let plain = is_identifier(segment);
        let optional = if plain {
            format!("{at}.?{segment}")
        } else {
            format!("{at}[?{}]", quote(segment))
        };
        if segments.peek().is_none() {
            return (guards, optional);
        }
        guards.push_str(&format!("type({optional}.orValue(null)) == map && "));
        at = if plain {
            format!("{at}.{segment}")
        } else {
            format!("{at}[{}]", quote(segment))
        };
    }
    (guards, at)
}

fn is_identifier(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !RESERVED.contains(&name)
}

/// A CEL string literal.
fn quote(text: &str) -> String {
    let mut quoted = String::from("'");
    for c in text.chars() {
        match c {
            '\\' | '\'' => {
                quoted.push('\\');
                quoted.push(c);
            }
            c if c.is_control() => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('\'');
    quoted
}

/// For which kinds of a group something holds.
#[derive(Debug, PartialEq, Eq)]
enum Gate {
    Never,
    Always,
    If(String),
}

/// The test for the kinds whose rule has a property, given by the rule's index; `None` where every ruled kind has it.
fn kinds_with(rules: &Rules, has: &dyn Fn(usize) -> bool) -> Option<String> {
    let ruled = |i: usize| has_inputs(rules, i);
    let mut by_gate: Vec<(String, Vec<&str>)> = Vec::new();
    let mut everywhere = true;
    for group in groups(rules) {
        let this = gate(rules, group, has);
        everywhere &= this == gate(rules, group, &ruled);
        match this {
            Gate::Never => {}
            Gate::Always => push(&mut by_gate, String::new(), group),
            Gate::If(text) => push(&mut by_gate, text, group),
        }
    }
    if everywhere {
        return None;
    }
    let parts: Vec<String> = by_gate
        .into_iter()
        .map(|(text, groups)| match text.is_empty() {
            true => in_groups(&groups),
            false => format!("{} && {text}", in_groups(&groups)),
        })
        .collect();
    match parts.as_slice() {
        [one] => Some(one.clone()),
        _ => Some(format!("({})", parts.join(" || "))),
    }
}

fn push<'a>(by_gate: &mut Vec<(String, Vec<&'a str>)>, text: String, group: &'a str) {
    match by_gate.iter_mut().find(|(known, _)| *known == text) {
        Some((_, groups)) => groups.push(group),
        None => by_gate.push((text, vec![group])),
    }
}

fn in_groups(groups: &[&str]) -> String {
    match groups {
        [one] => format!("request.kind.group == {}", quote(one)),
        _ => {
            let groups: Vec<String> = groups.iter().map(|group| quote(group)).collect();
            format!("request.kind.group in [{}]", groups.join(", "))
        }
    }
}

fn has_inputs(rules: &Rules, index: usize) -> bool {
    rules.inputs().nth(index).is_some_and(|(_, inputs)| !inputs.is_empty())
}

/// The groups that have a rule with inputs, in order.
fn groups(rules: &Rules) -> impl Iterator<Item = &str> {
    let mut groups: Vec<&str> = Vec::new();
    for (selector, inputs) in rules.inputs() {
        if !inputs.is_empty() && !groups.contains(&selector.group.as_str()) {
            groups.push(&selector.group);
        }
    }
    groups.into_iter()
}

/// A part of a gate: what it lets through, less what it does not.
struct Term<'a> {
    kinds: &'a [KindName],
    less: Vec<Less<'a>>,
}

/// What a gate does not let through, less its own exceptions.
struct Less<'a> {
    name: &'a KindName,
    but: &'a [KindName],
}

/// The test on `request.kind.kind` for the kinds of a group whose first matching rule has a property.
fn gate(rules: &Rules, group: &str, has: &dyn Fn(usize) -> bool) -> Gate {
    let entries: Vec<(usize, &Selector)> = rules
        .inputs()
        .enumerate()
        .filter(|(_, (selector, _))| selector.group == group)
        .map(|(i, (selector, _))| (i, selector))
        .collect();
    if entries.iter().all(|(i, selector)| has(*i) && !selector.is_pattern()) {
        return Gate::Always;
    }
    let mut terms: Vec<Term<'_>> = Vec::new();
    for (place, (index, selector)) in entries.iter().enumerate() {
        if !has(*index) {
            continue;
        }
        let mut less: Vec<Less<'_>> = selector.except.iter().map(|name| Less { name, but: &[] }).collect();
        if selector.is_pattern() {
            // A rule before this one takes its kinds away, where it has not got the property as well.
            for (_, earlier) in entries.iter().take(place).filter(|(earlier, _)| !has(*earlier)) {
                let taken = earlier
                    .kinds
                    .iter()
                    .filter(|taken| selector.kinds.iter().any(|kind| overlap(kind, taken)));
                less.extend(taken.map(|name| Less {
                    name,
                    but: &earlier.except,
                }));
            }
        }
        terms.push(Term {
            kinds: &selector.kinds,
            less,
        });
    }
    let covered = |term: &Term<'_>| {
        terms.iter().any(|all| {
            !std::ptr::eq(all, term)
                && all.kinds == [KindName::Any]
                && !term.kinds.contains(&KindName::Any)
                && term
                    .kinds
                    .iter()
                    .all(|kind| !all.less.iter().any(|less| overlap(kind, less.name)))
        })
    };
    let parts: Vec<String> = terms.iter().filter(|term| !covered(term)).map(test).collect();
    match parts.as_slice() {
        [] => Gate::Never,
        [one] if one.is_empty() => Gate::Always,
        [one] => Gate::If(one.clone()),
        _ if parts.iter().any(String::is_empty) => Gate::Always,
        _ => Gate::If(format!("({})", parts.join(" || "))),
    }
}

/// The test of one term; empty where it lets everything through.
fn test(term: &Term<'_>) -> String {
    const KIND: &str = "request.kind.kind";
    let pattern = |name: &KindName| match name {
        KindName::Any => "true".to_owned(),
        KindName::EndsWith(end) => format!("{KIND}.endsWith({})", quote(end)),
        KindName::StartsWith(start) => format!("{KIND}.startsWith({})", quote(start)),
        KindName::Exactly(kind) => format!("{KIND} == {}", quote(kind)),
    };
    let mut parts = Vec::new();
    match term.kinds {
        [one] => parts.push(pattern(one)),
        kinds => {
            let kinds: Vec<String> = kinds.iter().map(|kind| quote(&kind.to_string())).collect();
            parts.push(format!("{KIND} in [{}]", kinds.join(", ")));
        }
    }
    parts.extend(term.less.iter().map(|less| match (less.name, less.but) {
        (KindName::Exactly(kind), []) => format!("{KIND} != {}", quote(kind)),
        (name, []) => format!("!{}", pattern(name)),
        (name, but) => {
            let but: Vec<String> = but.iter().map(pattern).collect();
            format!("(!{} || {})", pattern(name), but.join(" || "))
        }
    }));
    parts.retain(|part| part != "true");
    match parts.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        _ => format!("({})", parts.join(" && ")),
    }
}

/// Whether a kind can be meant by both.
fn overlap(a: &KindName, b: &KindName) -> bool {
    match (a, b) {
        (KindName::Any, _) | (_, KindName::Any) => true,
        (KindName::Exactly(kind), other) | (other, KindName::Exactly(kind)) => other.matches(kind),
        (KindName::EndsWith(a), KindName::EndsWith(b)) => a.ends_with(b.as_str()) || b.ends_with(a.as_str()),
        (KindName::StartsWith(a), KindName::StartsWith(b)) => a.starts_with(b.as_str()) || b.starts_with(a.as_str()),
        _ => true,
    }
}
