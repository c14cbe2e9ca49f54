//! The rules file: which kinds can be paused, by what, and who answers for it.
//!
//! - [`mod@file`]: the file as it is written (YAML), and its JSON Schema.
//! - [`error`]: its mistakes, each with line, column and what to do.
//! - [`select`]: which kinds a rule is for.
//! - [`cel`]: the conditions under which the API server calls the webhooks.
//! - [`live`]: rules that change while the process runs.
//! - [`manifests`]: the webhook configurations that exactly these rules need.
//! - [`rbac`]: the rights that exactly these rules need.
//! - [`deploy`]: what runs, for those who do not use Helm.
//! - [`chart`]: what the Helm chart has to know of rules.
//! - [`server`]: how rules and a cluster fit together.
//! - [`Rules`]: the file as the rest of the program uses it: a [`KindRule`] for a kind.
//!
//! The built-in rules are in `capi.yaml`, which is also the best introduction to the format.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use serde_saphyr::{Location, Spanned};

use crate::protocol::{
    GroupKind,
    rule::{Input, InputId, KindRule},
};

pub mod cel;
pub mod chart;
mod check;
mod compile;
pub mod deploy;
pub mod error;
pub mod file;
pub mod live;
pub mod manifests;
pub mod rbac;
pub mod select;
pub mod server;

use compile::Times;
use error::{Mistake, Mistakes, RulesError};
use file::{API_VERSION, KIND, Preset, RuleFile, RulesFile};
use select::Selector;

/// The staleness bound where the file sets none.
pub const DEFAULT_STALENESS_BOUND: Duration = Duration::from_secs(60);
/// The grace where the file sets none.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(60);

const CAPI: &str = include_str!("capi.yaml");
/// More kinds than any cluster has: past it a rule is made anew at every call instead of kept.
const KEPT: usize = 4096;

/// Rules, ready for use.
#[derive(Debug)]
pub struct Rules {
    file: RulesFile,
    times: Times,
    entries: Vec<Entry>,
    kept: RwLock<HashMap<GroupKind, Arc<KindRule>>>,
}

/// A rule of the effective file.
#[derive(Debug)]
struct Entry {
    selector: Selector,
    inputs: Vec<Input>,
    rule: RuleFile,
}

impl Rules {
    /// Reads a rules file. `origin` is its name in messages.
    ///
    /// # Errors
    ///
    /// The file is not YAML, not a rules file, or contradicts itself: all mistakes that were found, with their places.
    pub fn parse(text: &str, origin: &str) -> Result<Self, RulesError> {
        let mistakes = |mistakes| Mistakes {
            origin: origin.to_owned(),
            mistakes,
        };
        let file = read(text).map_err(|mistake| RulesError::Shape(mistakes(vec![mistake])))?;
        let base = match file.extends.as_ref().map(|preset| preset.value) {
            Some(Preset::Capi) => Some(read(CAPI).map_err(|mistake| {
                RulesError::Shape(Mistakes {
                    origin: "preset capi".to_owned(),
                    mistakes: vec![mistake],
                })
            })?),
            None => None,
        };
        let found = check::check(text, &file, base.as_ref());
        if found.is_empty() {
            Ok(Self::merge(file, base))
        } else {
            Err(RulesError::Meaning(mistakes(found)))
        }
    }

    /// Reads a rules file from a path.
    ///
    /// # Errors
    ///
    /// It cannot be read; otherwise as [`Rules::parse`].
    pub fn load(path: &Path) -> Result<Self, RulesError> {
        let origin = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text, &origin),
            Err(source) => Err(RulesError::Read { origin, source }),
        }
    }

    /// The built-in rules for Cluster API.
    ///
    /// # Errors
    ///
    /// None: the built-in file is tested. The type leaves it to the caller what to do about a broken build.
    pub fn capi() -> Result<Self, RulesError> {
        Self::parse(CAPI, "preset capi")
    }

    /// The rule for a kind: of the first rule in the file that is for it. `None` where there is none.
    #[must_use]
    pub fn rule_for(&self, kind: &GroupKind) -> Option<Arc<KindRule>> {
        {
            let kept = self.kept.read().unwrap_or_else(PoisonError::into_inner);
            if let Some(rule) = kept.get(kind) {
                return Some(Arc::clone(rule));
            }
        }
        let entry = self.entries.iter().find(|entry| entry.selector.matches(kind))?;
        let rule = Arc::new(compile::kind_rule(&entry.rule, kind, self.times));
        let mut kept = self.kept.write().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.insert(kind.clone(), Arc::clone(&rule));
        }
        Some(rule)
    }

    /// The kinds that the rules name, owners before what they own.
    #[must_use]
    pub fn kinds(&self) -> Vec<GroupKind> {
        self.entries.iter().flat_map(|entry| entry.selector.names()).collect()
    }

    /// The patterns whose kinds are found by discovery, in order. Ask [`Rules::rule_for`] whether a kind that was
    /// found is ruled: an earlier rule may name it, or none may be for it.
    pub fn patterns(&self) -> impl Iterator<Item = &Selector> {
        self.entries
            .iter()
            .map(|entry| &entry.selector)
            .filter(|selector| selector.is_pattern())
    }

    /// Where a kind stands in the order in which kinds have to be listed: owners before what they own. Kinds of one
    /// pattern share a place; a kind without a rule comes last.
    #[must_use]
    pub fn order(&self, kind: &GroupKind) -> (usize, usize) {
        let entry = self.entries.iter().position(|entry| entry.selector.matches(kind));
        let place = entry
            .and_then(|index| self.entries.get(index))
            .and_then(|entry| entry.selector.names().position(|name| name == *kind));
        (entry.unwrap_or(usize::MAX), place.unwrap_or(0))
    }

    /// Sorts kinds into the order in which they have to be listed.
    pub fn sort_owners_first(&self, kinds: &mut [GroupKind]) {
        kinds.sort_by_cached_key(|kind| (self.order(kind), kind.clone()));
    }

    /// The resource name of a kind: as the file says, else formed as Kubernetes does.
    #[must_use]
    pub fn plural(&self, kind: &GroupKind) -> String {
        self.entries
            .iter()
            .find(|entry| entry.selector.matches(kind))
            .and_then(|entry| entry.rule.plurals.get(&kind.kind))
            .map_or_else(|| plural(&kind.kind), |name| name.value.clone())
    }

    /// The effective file: what it extends is in it, and rules that are never reached are not.
    #[must_use]
    pub const fn file(&self) -> &RulesFile {
        &self.file
    }

    /// The effective file as YAML.
    ///
    /// # Errors
    ///
    /// None that is known: the types of the file can be written.
    pub fn to_yaml(&self) -> Result<String, serde_saphyr::SerializeError> {
        serde_saphyr::to_string(&self.file)
    }

    /// Puts a file's rules and those it extends into one list, without what is never reached. A rule for a kind that
    /// the preset knows takes the preset's place, so that owners stay before what they own.
    fn merge(file: RulesFile, base: Option<RulesFile>) -> Self {
        let times = Times {
            staleness_bound: first(&file, base.as_ref(), |f| f.staleness_bound.as_ref())
                .unwrap_or(DEFAULT_STALENESS_BOUND),
            grace: first(&file, base.as_ref(), |f| f.grace.as_ref()).unwrap_or(DEFAULT_GRACE),
        };
        let base_rules = base.map(|base| base.rules).unwrap_or_default();
        let base_selectors: Vec<Selector> = base_rules.iter().map(|rule| compile::selector(&rule.value)).collect();
        let mut ranked = Vec::new();
        let mut reached: Vec<Selector> = Vec::new();
        let all = file.rules.into_iter().map(|rule| (None, rule.value)).chain(
            base_rules
                .into_iter()
                .enumerate()
                .map(|(i, rule)| (Some(i), rule.value)),
        );
        for (rank, rule) in all {
            let selector = compile::selector(&rule);
            if selector.is_pattern() {
                let same_group = || {
                    base_selectors
                        .iter()
                        .position(|s| s.is_pattern() && s.group == selector.group)
                };
                ranked.push((rank.or_else(same_group).unwrap_or(usize::MAX), rule));
            } else {
                // A rule's kinds may have places of their own: it is taken apart.
                let mut parts: Vec<(usize, Vec<Spanned<String>>)> = Vec::new();
                for (kind, written) in selector.names().zip(rule.kinds.clone()) {
                    if reached.iter().any(|earlier| earlier.matches(&kind)) {
                        continue;
                    }
                    let known = || base_selectors.iter().position(|s| s.matches(&kind));
                    let rank = rank.or_else(known).unwrap_or(usize::MAX);
                    match parts.iter_mut().find(|(of, _)| *of == rank) {
                        Some((_, kinds)) => kinds.push(written),
                        None => parts.push((rank, vec![written])),
                    }
                }
                for (rank, kinds) in parts {
                    let plurals = rule
                        .plurals
                        .iter()
                        .filter(|(name, _)| kinds.iter().any(|k| k.value == **name));
                    let plurals = plurals.map(|(name, plural)| (name.clone(), plural.clone())).collect();
                    ranked.push((
                        rank,
                        RuleFile {
                            kinds,
                            plurals,
                            ..rule.clone()
                        },
                    ));
                }
            }
            reached.push(selector);
        }
        ranked.sort_by_key(|(rank, _)| *rank);
        let entries: Vec<Entry> = ranked
            .into_iter()
            .map(|(_, rule)| Entry {
                selector: compile::selector(&rule),
                inputs: rule.inputs.iter().filter_map(|i| compile::input(&i.value)).collect(),
                rule,
            })
            .collect();
        Self {
            file: RulesFile {
                api_version: here(API_VERSION.to_owned()),
                kind: here(KIND.to_owned()),
                extends: None,
                staleness_bound: Some(here(file::Period(times.staleness_bound))),
                grace: Some(here(file::Period(times.grace))),
                rules: entries.iter().map(|entry| here(entry.rule.clone())).collect(),
            },
            times,
            entries,
            kept: RwLock::default(),
        }
    }

    /// For which kinds each rule is, and its inputs, in order: the first rule counts.
    pub fn inputs(&self) -> impl Iterator<Item = (&Selector, &[Input])> {
        self.entries
            .iter()
            .map(|entry| (&entry.selector, entry.inputs.as_slice()))
    }

    /// Whether the companion writes the condition `Paused` on objects of this kind, for want of a controller that does.
    #[must_use]
    pub fn is_mirrored(&self, kind: &GroupKind) -> bool {
        let entry = self.entries.iter().find(|entry| entry.selector.matches(kind));
        entry.is_some_and(|entry| entry.rule.mirror)
    }

    /// The rules whose kinds get a `Paused` from the companion.
    pub fn mirrored(&self) -> impl Iterator<Item = &Selector> {
        self.entries
            .iter()
            .filter(|entry| entry.rule.mirror)
            .map(|entry| &entry.selector)
    }

    /// The inherited inputs of all rules.
    #[must_use]
    pub fn inherited_inputs(&self) -> Vec<InputId> {
        inherited_inputs(&self.file)
    }
}

fn first<'a>(
    file: &'a RulesFile,
    base: Option<&'a RulesFile>,
    get: impl Fn(&'a RulesFile) -> Option<&'a Spanned<file::Period>>,
) -> Option<Duration> {
    get(file).or_else(|| base.and_then(&get)).map(|period| period.value.0)
}

fn inherited_inputs(file: &RulesFile) -> Vec<InputId> {
    file.rules
        .iter()
        .flat_map(|rule| &rule.value.inputs)
        .filter_map(|input| compile::input(&input.value))
        .filter(|input| input.inherited)
        .map(|input| input.id)
        .collect()
}

fn here<T>(value: T) -> Spanned<T> {
    Spanned::new(value, Location::UNKNOWN, Location::UNKNOWN)
}

fn read(text: &str) -> Result<RulesFile, Mistake> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| Mistake::of_yaml(text, &error))
}

/// The resource name that Kubernetes would guess (`meta.UnsafeGuessKindToResource`).
fn plural(kind: &str) -> String {
    let name = kind.to_ascii_lowercase();
    if let Some(stem) = name.strip_suffix('y') {
        format!("{stem}ies")
    } else if name.ends_with('s') {
        format!("{name}es")
    } else {
        format!("{name}s")
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
