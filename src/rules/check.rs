//! What a rules file must not say, beyond its shape.

use std::collections::BTreeSet;

use serde_saphyr::{Location, Spanned};

use super::{
    compile,
    error::Mistake,
    file::{
        API_VERSION, AttestedByFile, AttestorFile, ConditionsAtFile, InputFile, InputRefFile, KIND, MatchFile,
        MembersFile, Period, RuleFile, RulesFile,
    },
    inherited_inputs,
    select::{KindName, Selector},
};
use crate::protocol::{
    keys, mirror,
    object::DEPTH_LIMIT,
    rule::{InputId, InputRef},
};

/// The longest literal that a value is compared with, in bytes: longer values are not kept.
const LITERAL_LIMIT: usize = 200;
/// The longest key of an annotation or label: a prefix of 253 bytes, a slash and a name of 63.
const KEY_LIMIT: usize = 317;
const SHORTEST: Period = Period(std::time::Duration::from_secs(1));

/// All mistakes, in the order of the file.
pub(super) fn check(text: &str, file: &RulesFile, base: Option<&RulesFile>) -> Vec<Mistake> {
    let mut check = Check {
        text,
        inheritable: inherited_inputs(file)
            .into_iter()
            .chain(base.map(inherited_inputs).unwrap_or_default())
            .collect(),
        found: Vec::new(),
    };
    check.head(file);
    let mut earlier = Vec::new();
    for rule in &file.rules {
        check.kinds(&rule.value, rule.referenced, &earlier);
        check.rule(&rule.value, rule.referenced);
        if let Some(base) = base {
            check.heirs(&rule.value, base);
        }
        earlier.push((compile::selector(&rule.value), rule.referenced.line()));
    }
    let mut found = check.found;
    found.sort_by_key(|mistake| (mistake.line, mistake.column));
    found
}

struct Check<'a> {
    text: &'a str,
    inheritable: BTreeSet<InputId>,
    found: Vec<Mistake>,
}

impl Check<'_> {
    fn add(&mut self, at: Location, message: impl Into<String>, help: impl Into<String>) {
        self.found.push(Mistake::at(self.text, at, message, help));
    }

    fn head(&mut self, file: &RulesFile) {
        if file.api_version.value != API_VERSION {
            self.add(
                file.api_version.referenced,
                format!("`{}` is no version that this program reads", file.api_version.value),
                format!("write apiVersion: {API_VERSION}"),
            );
        }
        if file.kind.value != KIND {
            self.add(
                file.kind.referenced,
                format!("`{}` is no kind that this program reads", file.kind.value),
                format!("write kind: {KIND}"),
            );
        }
        if file.rules.is_empty() && file.extends.is_none() {
            self.add(
                file.kind.referenced,
                "the file has no rules",
                "add some under `rules`, or start from the built-in ones with `extends: capi`",
            );
        }
        self.times(file.staleness_bound.as_ref(), file.grace.as_ref());
    }

    fn times(&mut self, bound: Option<&Spanned<Period>>, grace: Option<&Spanned<Period>>) {
        for (period, what) in [(bound, "staleness bound"), (grace, "grace")] {
            if let Some(period) = period.filter(|period| period.value < SHORTEST) {
                self.add(
                    period.referenced,
                    format!("a {what} of {} promises more than watches can keep", period.value),
                    "write 1s or more; 60s is the default",
                );
            }
        }
    }

    fn kinds(&mut self, rule: &RuleFile, at: Location, earlier: &[(Selector, u64)]) {
        if rule.kinds.is_empty() {
            self.add(at, "the rule is for no kind", "name some under `kinds`");
        }
        for kind in rule.kinds.iter().chain(&rule.except) {
            if KindName::parse(&kind.value).is_none() {
                self.add(
                    kind.referenced,
                    format!("`{}` is no name of a kind", kind.value),
                    "write a kind such as Machine, or a pattern with one * in front or at the end",
                );
            }
        }
        let selector = compile::selector(rule);
        if selector.is_pattern() {
            if rule.kinds.len() > 1 {
                self.add(
                    at,
                    "a pattern stands beside other kinds",
                    "give the pattern a rule of its own, after the rules that name kinds",
                );
            }
            if rule.group.value.is_empty() {
                self.add(
                    rule.group.referenced,
                    "a pattern needs a group",
                    "name the group; kinds of the core group have to be named one by one",
                );
            }
        } else if let Some(except) = rule.except.first() {
            self.add(
                except.referenced,
                "`except` goes with a pattern only",
                "remove it: the kinds of this rule are named one by one",
            );
        }
        if rule.group.value.contains(['/', '*', ' ']) || rule.group.value != rule.group.value.to_ascii_lowercase() {
            self.add(
                rule.group.referenced,
                format!("`{}` is no API group", rule.group.value),
                "write the group alone, without a version, such as cluster.x-k8s.io",
            );
        }
        let mut here = BTreeSet::new();
        for (kind, written) in selector.names().zip(&rule.kinds) {
            if !here.insert(kind.clone()) {
                self.add(
                    written.referenced,
                    format!("{kind} is there twice"),
                    "remove one of the two",
                );
            }
            if let Some((_, line)) = earlier.iter().find(|(selector, _)| selector.matches(&kind)) {
                self.add(
                    written.referenced,
                    format!("{kind} is never reached: the rule at line {line} is for it"),
                    "the first rule counts: move this one up, or remove the kind from one of the two",
                );
            }
        }
        for (kind, plural) in &rule.plurals {
            if !selector.kinds.iter().any(|name| name.matches(kind)) {
                self.add(
                    plural.referenced,
                    format!("`{kind}` is none of this rule's kinds"),
                    "name a kind of the same rule",
                );
            }
            if plural.value.is_empty()
                || !plural
                    .value
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            {
                self.add(
                    plural.referenced,
                    format!("`{}` is no resource name", plural.value),
                    "write it as kubectl api-resources does, without the group",
                );
            }
        }
    }

    /// A rule that takes the place of one in the preset and forgets what others inherit would leave a pause unnoticed.
    fn heirs(&mut self, rule: &RuleFile, base: &RulesFile) {
        let inherited = |rule: &RuleFile| -> BTreeSet<InputId> {
            let inputs = rule.inputs.iter().filter_map(|input| compile::input(&input.value));
            inputs.filter(|input| input.inherited).map(|input| input.id).collect()
        };
        let own = inherited(rule);
        for (kind, written) in compile::selector(rule).names().zip(&rule.kinds) {
            let replaced = base
                .rules
                .iter()
                .find(|known| compile::selector(&known.value).matches(&kind));
            for lost in replaced
                .map(|known| inherited(&known.value))
                .unwrap_or_default()
                .difference(&own)
            {
                self.add(
                    written.referenced,
                    format!("{kind} loses the input {lost}, which other kinds inherit"),
                    "this rule takes the place of the built-in one: name the input here, with `inherited: true`",
                );
            }
        }
    }

    fn rule(&mut self, rule: &RuleFile, at: Location) {
        let mut ids = BTreeSet::new();
        for input in &rule.inputs {
            self.input(&input.value, input.referenced);
            if let Some(known) = compile::input(&input.value)
                && !ids.insert(known.id.clone())
            {
                self.add(
                    input.referenced,
                    format!("the input {} is there twice", known.id),
                    "remove one of the two",
                );
            }
        }
        let inherited = rule.inputs.iter().find(|input| input.value.inherited);
        match (&rule.members, inherited) {
            (Some(members), Some(_)) => self.members(&members.value, members.referenced),
            (Some(members), None) => self.add(
                members.referenced,
                "no input of this rule is inherited, so nobody is looked for",
                "say `inherited: true` at an input, or remove `members`",
            ),
            (None, Some(input)) => self.add(
                input.referenced,
                "it does not say who inherits this input",
                "say under `members` how the objects are found",
            ),
            (None, None) => {}
        }
        if rule.inputs.is_empty() && !rule.inherits {
            self.add(
                at,
                "nothing can pause these kinds",
                "name an input under `inputs`, or say `inherits: true`",
            );
        }
        if rule.inherits && self.inheritable.is_empty() {
            self.add(
                at,
                "`inherits: true`, but no rule has an input that is inherited",
                "say `inherited: true` at the input of the kind that it inherits from",
            );
        }
        for path in &rule.references {
            self.path(path, DEPTH_LIMIT - 1);
        }
        self.attested_by(rule, &ids);
        for kind in rule.requires_owner.iter().flat_map(|owner| &owner.other_than) {
            let name = compile::group_kind(&kind.value).kind;
            if !matches!(KindName::parse(&name), Some(KindName::Any | KindName::Exactly(_))) {
                self.add(
                    kind.referenced,
                    format!("`{}` is no kind", kind.value),
                    "write Kind.group, or *.group for all kinds of a group",
                );
            }
        }
        if let Some(key) = &rule.managed_elsewhere {
            self.key(key, "annotation");
        }
        self.times(rule.staleness_bound.as_ref(), rule.grace.as_ref());
    }

    fn input(&mut self, input: &InputFile, at: Location) {
        let on = &input.on;
        match (&input.field, &input.annotation) {
            (Some(path), None) => {
                self.path(path, DEPTH_LIMIT);
                if matches!(on.value, MatchFile::Word(_) | MatchFile::Equals(_)) {
                    self.add(
                        on.referenced,
                        "this match is for annotations",
                        "a field matches true, false or {oneOf: [VALUE, ...]}",
                    );
                }
            }
            (None, Some(key)) => {
                self.key(key, "annotation");
                if key.value.starts_with(keys::PREFIX) {
                    self.add(
                        key.referenced,
                        format!("`{}` is one of pausegen's own annotations", key.value),
                        "name the annotation that the controllers look at",
                    );
                }
                if matches!(on.value, MatchFile::Boolean(_) | MatchFile::OneOf(_)) {
                    self.add(
                        on.referenced,
                        "this match is for fields",
                        "an annotation matches present, boolean or {equals: VALUE} (in quotes: \"true\")",
                    );
                }
            }
            _ => self.add(
                at,
                "an input is either a field or an annotation",
                "write one of `field: PATH` and `annotation: KEY`",
            ),
        }
        let literals: &[String] = match &on.value {
            MatchFile::OneOf(values) => &values.one_of,
            MatchFile::Equals(value) => std::slice::from_ref(&value.equals),
            MatchFile::Boolean(_) | MatchFile::Word(_) => &[],
        };
        if literals.iter().any(|literal| literal.len() > LITERAL_LIMIT) {
            self.add(
                on.referenced,
                format!("a value has more than {LITERAL_LIMIT} bytes"),
                "longer values are not kept, so they cannot be compared",
            );
        }
        if let MatchFile::OneOf(values) = &on.value
            && (values.one_of.is_empty() || values.one_of.iter().any(String::is_empty))
        {
            self.add(
                on.referenced,
                "an empty value cannot be told from a missing field",
                "name the values that pause",
            );
        }
    }

    fn members(&mut self, members: &MembersFile, at: Location) {
        if members.label.is_none() && !members.owner_chain && members.name_fields.is_empty() {
            self.add(
                at,
                "no member can be found",
                "give one or more of `label`, `ownerChain: true` and `nameFields`",
            );
        }
        if let Some(label) = &members.label {
            self.key(label, "label");
        }
        for path in &members.name_fields {
            self.path(path, DEPTH_LIMIT);
        }
    }

    fn attested_by(&mut self, rule: &RuleFile, own: &BTreeSet<InputId>) {
        let AttestedByFile::Attestors(attestors) = &rule.attested_by.value else {
            return;
        };
        if attestors.is_empty() {
            self.add(
                rule.attested_by.referenced,
                "nobody answers for these kinds",
                "name a controller, or write `attestedBy: none` to leave them out",
            );
        }
        let mut names = BTreeSet::new();
        for attestor in attestors {
            let name = &attestor.value.name;
            if name.value.is_empty() || !names.insert(name.value.clone()) {
                self.add(
                    name.referenced,
                    format!("the name `{}` is empty or there twice", name.value),
                    "give each controller of a rule a name of its own",
                );
            }
            self.attestor(&attestor.value, attestor.referenced, rule, own);
        }
    }

    fn attestor(&mut self, attestor: &AttestorFile, at: Location, rule: &RuleFile, own: &BTreeSet<InputId>) {
        if attestor.condition.is_some() == attestor.by.is_some() {
            self.add(
                at,
                "a controller answers either in a condition or without one",
                "write one of `condition: {type: ...}` and `by: bound` (or observedGeneration, or none)",
            );
        }
        if let Some(applies) = &attestor.applies_if {
            match (&applies.value.field, &applies.value.label) {
                (Some(path), None) => self.path(&spanned(path, applies.referenced), DEPTH_LIMIT),
                (None, Some(key)) => self.key(&spanned(key, applies.referenced), "label"),
                _ => self.add(
                    applies.referenced,
                    "this does not say for which objects",
                    "write one of `field: PATH` and `label: KEY`",
                ),
            }
        }
        if let Some(inputs) = &attestor.answers_for {
            for input in inputs {
                self.input_ref(&input.value, input.referenced, rule, own);
            }
        }
        if attestor.lease.as_ref().is_some_and(|lease| lease.name.is_empty()) {
            self.add(at, "the Lease has no name", "name it, or remove `lease`");
        }
        let Some(condition) = &attestor.condition else {
            return;
        };
        if rule.mirror && condition.type_.value == mirror::TYPE && condition.at == ConditionsAtFile::Status {
            self.add(
                condition.type_.referenced,
                "with `mirror: true` the companion writes this condition, so it is nobody's answer",
                "remove `mirror` where a controller writes it; else say how the controller answers, such as `by: bound`",
            );
        }
        if condition.type_.value.is_empty() {
            self.add(condition.type_.referenced, "the condition has no type", "name it");
        }
        let mut texts = BTreeSet::new();
        for message in &condition.messages {
            let text = &message.value.ends_with;
            let input = InputRefFile {
                own: message.value.own.clone(),
                inherited: message.value.inherited.clone(),
            };
            self.input_ref(&input, message.referenced, rule, own);
            if text.is_empty() || text.contains(", ") {
                self.add(
                    message.referenced,
                    "no part of a message ends with this text",
                    "messages are split at `, `: name the end of one part",
                );
            }
            if texts
                .iter()
                .any(|other: &String| other.ends_with(text) || text.ends_with(other.as_str()))
            {
                self.add(
                    message.referenced,
                    "this text does not tell two inputs apart",
                    "make each text the end of no other",
                );
            }
            texts.insert(text.clone());
        }
    }

    fn input_ref(&mut self, input: &InputRefFile, at: Location, rule: &RuleFile, own: &BTreeSet<InputId>) {
        let list = |ids: &BTreeSet<InputId>| match ids.is_empty() {
            true => "there is none".to_owned(),
            false => format!(
                "known: {}",
                ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
            ),
        };
        match compile::input_ref(input) {
            None => self.add(
                at,
                "this does not say which input",
                "write one of `own: INPUT` and `inherited: INPUT`",
            ),
            Some(InputRef::Own(id)) if !own.contains(&id) => {
                self.add(at, format!("`{id}` is no input of this rule"), list(own));
            }
            Some(InputRef::Inherited(id)) if !self.inheritable.contains(&id) => {
                let help = list(&self.inheritable);
                self.add(
                    at,
                    format!("`{id}` is no input that any rule lets members inherit"),
                    help,
                );
            }
            Some(InputRef::Inherited(_)) if !rule.inherits => self.add(
                at,
                "this rule's kinds inherit nothing",
                "say `inherits: true` in the rule, or `own` here",
            ),
            Some(_) => {}
        }
    }

    fn path(&mut self, path: &Spanned<String>, limit: usize) {
        let at = path.referenced;
        let segments: Vec<&str> = path.value.split('.').collect();
        if segments
            .iter()
            .any(|s| s.is_empty() || s.contains(['[', ']', '/', '*', ' ', '\'', '\\', '"']))
        {
            self.add(
                at,
                format!("`{}` is no path", path.value),
                "write the names of the fields with dots between them; lists cannot be entered",
            );
        } else if let Some(top @ ("metadata" | "status" | "apiVersion" | "kind")) = segments.first().copied() {
            self.add(
                at,
                format!("`{}` is below `{top}`", path.value),
                "name a field that its users set, such as one of the spec",
            );
        } else if segments.len() > limit {
            self.add(
                at,
                format!("`{}` is too deep", path.value),
                format!("at most {limit} names: deeper fields are not read"),
            );
        }
    }

    fn key(&mut self, key: &Spanned<String>, what: &str) {
        let sound = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'/');
        if key.value.is_empty() || key.value.len() > KEY_LIMIT || !key.value.bytes().all(sound) {
            self.add(
                key.referenced,
                format!("`{}` is no {what} key", key.value),
                "write PREFIX/NAME in letters, digits, dots, dashes and underscores",
            );
        }
    }
}

fn spanned(text: &str, at: Location) -> Spanned<String> {
    Spanned::new(text.to_owned(), at, at)
}
