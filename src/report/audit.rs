//! Objects and rules in, rows out. Pure: what is believed of an object's keys, and who still has to answer, is decided by
//! the protocol's own functions.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::{SignedDuration, Timestamp};

use super::{
    model::{API_VERSION, Code, Finding, Inherited, KIND, Lag, Laggard, Report, Row, SinceFrom, Status, Totals},
    select::Query,
    survey::{self, Survey},
    text,
};
use crate::{
    protocol::{
        GroupKind, attestation,
        intent::Intent,
        keys::{ACKNOWLEDGED, REASON, Record, Standing},
        object::ObjectView,
        rule::AttestedBy,
        scope::{self, Ruled},
    },
    rules::Rules,
};

/// What was read.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    /// Objects of ruled kinds.
    pub all: Vec<Ruled>,
    /// The kinds that were read.
    pub listed: BTreeSet<GroupKind>,
    /// What cannot be known, and why.
    pub unknown: Vec<String>,
    /// Whether that means that the answer is not complete.
    pub incomplete: bool,
    /// The cluster, or the files.
    pub source: String,
}

/// What is asked for cannot be audited.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuditError {
    /// There is no object of that name which others inherit from.
    #[error("there is no {0} that others inherit a pause from{1}")]
    NoSuchHead(String, String),
    /// Nobody knows a kind of that name, so that nothing would ever be found.
    #[error("no rule names a kind `{0}`, and none of that name was read: is it spelled right?")]
    NoSuchKind(String),
}

/// Audits what was read.
///
/// # Errors
/// The query asks for the tree of an object that is not there, or for a kind that nobody knows.
pub fn audit(rules: &Rules, objects: &Objects, query: &Query, now: Timestamp) -> Result<Report, AuditError> {
    let mut kinds = rules.kinds();
    kinds.extend(objects.listed.iter().cloned());
    if let Some(unknown) = query
        .kinds
        .iter()
        .find(|filter| !kinds.iter().any(|kind| filter.matches(kind)))
    {
        return Err(AuditError::NoSuchKind(unknown.to_string()));
    }
    let ground = Ground::new(rules, objects, query)?;
    let mut rows: Vec<Row> = Vec::new();
    let mut heads: BTreeMap<&str, Head> = BTreeMap::new();
    for ruled in ground.sorted.iter().filter(|ruled| ruled.rule.has_heirs()) {
        heads.insert(&ruled.object.metadata.uid, ground.head(ruled));
    }
    let members = ground.memberships(&heads);
    for ruled in &ground.sorted {
        let around = members.get(ruled.object.metadata.uid.as_str());
        if query.selects(ruled)
            && ground.is_in_tree(ruled, around)
            && let Some(row) = ground.row(ruled, &heads, around.map_or(&[], Vec::as_slice), now)
        {
            rows.push(row);
        }
    }
    rows.sort_by_cached_key(|row| {
        let kind = GroupKind::new(row.group.clone(), row.kind.clone());
        (row.namespace.clone(), rules.order(&kind), kind, row.name.clone())
    });
    let totals = Totals {
        objects: objects.all.len(),
        rows: rows.len(),
        paused: rows.iter().filter(|row| row.paused).count(),
        unacknowledged: rows.iter().filter(|row| row.is_unacknowledged()).count(),
        findings: rows.iter().map(|row| row.findings.len()).sum(),
    };
    Ok(Report {
        api_version: API_VERSION,
        kind: KIND,
        at: format!("{now:.0}"),
        source: objects.source.clone(),
        complete: !objects.incomplete,
        unknown: objects.unknown.clone(),
        totals,
        rows,
        history: Vec::new(),
    })
}

/// What is known of an object that others inherit from.
struct Head {
    survey: Survey,
    standing: Standing,
    inherited: Inherited,
}

struct Ground<'a> {
    rules: &'a Rules,
    query: &'a Query,
    listed: &'a BTreeSet<GroupKind>,
    /// Owners before what they own.
    sorted: Vec<Ruled>,
    namespaces: BTreeMap<String, Vec<Ruled>>,
    /// The uids of the heads whose trees are asked for: in several namespaces there may be one of that name in each.
    tree: Option<BTreeSet<String>>,
    /// What each uid is called, where trees are asked for.
    names: BTreeMap<String, String>,
}

impl<'a> Ground<'a> {
    fn new(rules: &'a Rules, objects: &'a Objects, query: &'a Query) -> Result<Self, AuditError> {
        let mut sorted = objects.all.clone();
        sorted.sort_by_cached_key(|ruled| {
            let meta = &ruled.object.metadata;
            (
                rules.order(&ruled.rule.group_kind),
                ruled.rule.group_kind.clone(),
                meta.namespace.clone(),
                meta.name.clone(),
            )
        });
        let mut namespaces: BTreeMap<String, Vec<Ruled>> = BTreeMap::new();
        for ruled in &sorted {
            let namespace = ruled.object.metadata.namespace.clone();
            namespaces.entry(namespace).or_default().push(ruled.clone());
        }
        let tree = match &query.cluster {
            None => None,
            Some(name) => {
                let heads = sorted.iter().filter(|ruled| {
                    let meta = &ruled.object.metadata;
                    ruled.rule.has_heirs()
                        && meta.name == *name
                        && query.namespace.as_ref().is_none_or(|n| *n == meta.namespace)
                });
                let heads: BTreeSet<String> = heads.map(|ruled| ruled.object.metadata.uid.clone()).collect();
                if heads.is_empty() {
                    let within = query.namespace.as_ref().map(|n| format!(" in namespace {n}"));
                    return Err(AuditError::NoSuchHead(name.clone(), within.unwrap_or_default()));
                }
                Some(heads)
            }
        };
        let named = sorted.iter().filter(|_| query.tree || tree.is_some());
        let names = named.map(|ruled| {
            let object = &ruled.object;
            (
                object.metadata.uid.clone(),
                scope::display(&ruled.rule.group_kind, object),
            )
        });
        let names = names.collect();
        Ok(Self {
            rules,
            query,
            names,
            listed: &objects.listed,
            sorted,
            namespaces,
            tree,
        })
    }

    /// Everybody who may have to answer for an object.
    fn around(&self, object: &ObjectView) -> &[Ruled] {
        let namespace = &object.metadata.namespace;
        if namespace.is_empty() {
            &self.sorted
        } else {
            self.namespaces.get(namespace).map_or(&[], Vec::as_slice)
        }
    }

    /// As the companion has it: a kind whose objects were read, or one that inherits from nobody.
    fn has_rule(&self, kind: &GroupKind) -> bool {
        self.listed.contains(kind) || self.rules.rule_for(kind).is_some_and(|rule| !rule.inherits)
    }

    fn survey(&self, ruled: &Ruled, standing: &Standing) -> Survey {
        let around = self.around(&ruled.object);
        let has_rule = |kind: &GroupKind| self.has_rule(kind);
        let intent = Intent::of(&ruled.rule, &ruled.object);
        match standing {
            Standing::Bare if intent.is_empty() => Survey::default(),
            Standing::Own(record) if is_pending(record, ruled, &intent) => survey::of_flip(ruled, around, &has_rule),
            _ => {
                let mut survey = survey::of_intent(ruled, around, &has_rule);
                if intent.is_empty() {
                    // What a resume lets controllers create says nothing for a while.
                    survey.laggards.retain(|laggard| laggard.lag == Lag::NotAnswered);
                }
                survey
            }
        }
    }

    fn head(&self, ruled: &Ruled) -> Head {
        let standing = Standing::of(&ruled.rule.group_kind, &ruled.object);
        let intent = Intent::of(&ruled.rule, &ruled.object);
        let on = ruled
            .rule
            .inputs
            .iter()
            .filter(|input| input.inherited && intent.has(&input.id));
        Head {
            survey: self.survey(ruled, &standing),
            standing,
            inherited: Inherited {
                from: scope::display(&ruled.rule.group_kind, &ruled.object),
                inputs: on.map(|input| input.id.to_string()).collect(),
            },
        }
    }

    /// Of each object the uids of what it is a member of, as far as a row needs it.
    fn memberships(&self, heads: &BTreeMap<&str, Head>) -> BTreeMap<String, Vec<String>> {
        let mut of: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for ruled in self.sorted.iter().filter(|ruled| ruled.rule.has_heirs()) {
            let uid = &ruled.object.metadata.uid;
            let is_paused = heads
                .get(uid.as_str())
                .is_some_and(|head| !head.inherited.inputs.is_empty());
            if !is_paused && !self.query.tree && !self.tree.as_ref().is_some_and(|tree| tree.contains(uid)) {
                continue;
            }
            let found = scope::members(&ruled.object, &ruled.rule, self.around(&ruled.object), &|_| true);
            for member in found.members {
                of.entry(member.object.metadata.uid.clone())
                    .or_default()
                    .push(uid.clone());
            }
        }
        of
    }

    fn is_in_tree(&self, ruled: &Ruled, member_of: Option<&Vec<String>>) -> bool {
        self.tree.as_ref().is_none_or(|heads| {
            heads.contains(&ruled.object.metadata.uid)
                || member_of.is_some_and(|of| of.iter().any(|head| heads.contains(head)))
        })
    }

    fn row(&self, ruled: &Ruled, heads: &BTreeMap<&str, Head>, of: &[String], now: Timestamp) -> Option<Row> {
        let (rule, object) = (&ruled.rule, &ruled.object);
        let meta = &object.metadata;
        let above: Vec<&Head> = of.iter().filter_map(|uid| heads.get(uid.as_str())).collect();
        let pausing: Vec<&Head> = above
            .iter()
            .copied()
            .filter(|h| !h.inherited.inputs.is_empty())
            .collect();
        let intent = Intent::of(rule, object);
        let standing = Standing::of(&rule.group_kind, object);
        let survey = match heads.get(meta.uid.as_str()) {
            Some(head) => head.survey.clone(),
            None => self.survey(ruled, &standing),
        };
        let mut row = blank(ruled, &intent);
        row.inherited_from = pausing.iter().map(|head| head.inherited.clone()).collect();
        row.paused |= !pausing.is_empty();
        if self.query.tree || self.tree.is_some() {
            row.member_of = above.iter().map(|head| head.inherited.from.clone()).collect();
            row.owned_by = meta
                .owner_references
                .iter()
                .find_map(|owner| self.names.get(&owner.uid).cloned());
        }
        judge(&mut row, ruled, &intent, &standing, &survey);
        if intent.is_empty() && matches!(row.status, Status::Acknowledged | Status::Running) && !pausing.is_empty() {
            row.status = Status::Inherited;
            inherit(&mut row, &pausing);
        }
        if row.status == Status::Running && self.tree.is_none() && !self.query.all {
            return None;
        }
        if row.paused && row.since.is_none() {
            row.since = paused_condition(ruled);
            row.since_from = row.since.is_some().then_some(SinceFrom::Condition);
        }
        self.keep(row, now)
    }

    /// What only some rows are asked for.
    fn keep(&self, mut row: Row, now: Timestamp) -> Option<Row> {
        if self.query.unacknowledged && !row.is_unacknowledged() && row.waits_for.is_empty() {
            return None;
        }
        if let Some(limit) = self.query.older_than {
            let age = row.since.as_deref().and_then(|since| age(since, now));
            if !row.paused || age.is_some_and(|age| age <= limit) {
                return None;
            }
            let message = match age {
                Some(age) => format!("paused for {}, longer than {}", text::age(age), text::age(limit)),
                None => "paused, and nothing says since when".to_owned(),
            };
            row.findings.push(Finding {
                code: Code::Old,
                message,
            });
        }
        Some(row)
    }
}

fn is_pending(record: &Record, ruled: &Ruled, intent: &Intent) -> bool {
    record.stamp.after == *intent && !record.is_acknowledged(&ruled.rule) && record.acknowledged.is_none()
}

fn blank(ruled: &Ruled, intent: &Intent) -> Row {
    let meta = &ruled.object.metadata;
    Row {
        api_version: ruled.object.api_version.clone(),
        kind: ruled.rule.group_kind.kind.clone(),
        group: ruled.rule.group_kind.group.clone(),
        namespace: meta.namespace.clone(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        status: Status::Running,
        acknowledged: None,
        paused: !intent.is_empty(),
        paused_by: intent.0.iter().map(ToString::to_string).collect(),
        inherited_from: Vec::new(),
        member_of: Vec::new(),
        owned_by: None,
        generation: None,
        observed_generation: None,
        hasty: false,
        evidence: None,
        bound_seconds: None,
        lease: String::new(),
        objects: None,
        excluded: Vec::new(),
        since: None,
        since_from: None,
        by: String::new(),
        reason: String::new(),
        acknowledged_at: None,
        took_seconds: None,
        waits_for: Vec::new(),
        to_be_proven: 0,
        findings: Vec::new(),
    }
}

/// What the object's own keys say, and what is wrong with them.
fn judge(row: &mut Row, ruled: &Ruled, intent: &Intent, standing: &Standing, survey: &Survey) {
    let find = |code, message: String| Finding { code, message };
    row.waits_for.clone_from(&survey.laggards);
    row.to_be_proven = survey.to_be_proven;
    if let Standing::Own(record) = standing {
        standing_record(row, record);
    } else {
        row.acknowledged = ruled.object.metadata.annotation(ACKNOWLEDGED).map(str::to_owned);
        row.reason = ruled.object.metadata.annotation(REASON).unwrap_or_default().to_owned();
    }
    match standing {
        Standing::Bare if intent.is_empty() => row.status = Status::Running,
        Standing::Bare => {
            row.status = Status::Unstamped;
            let message = "paused without a pause generation: no webhook was called, so nothing can be acknowledged. Set \
                           the annotation pausegen.io/touch to have it stamped";
            row.findings.push(find(Code::Unstamped, message.to_owned()));
        }
        Standing::Foreign => {
            row.status = Status::Irregular;
            let message = if ruled.object.metadata.uid.starts_with(super::files::NO_UID) {
                "the file leaves out the uid, so that nothing tells whether the records are this object's"
            } else {
                "the stamp or the acknowledgement names another object or uid (a copy, or a restore that no webhook saw): \
                 not believed"
            };
            row.findings.push(find(Code::OfAnother, message.to_owned()));
        }
        Standing::Broken => {
            row.status = Status::Irregular;
            let message =
                "the pausegen.io annotations make no record (missing, or contradicting each other): not believed";
            row.findings.push(find(Code::Broken, message.to_owned()));
        }
        Standing::Own(record) if record.stamp.after != *intent => {
            row.status = Status::Irregular;
            let message = format!(
                "paused by {intent}, and the stamp of generation {} says {}: a flip passed unseen, and its \
                 acknowledgement is not about this",
                record.stamp.generation, record.stamp.after
            );
            row.findings.push(find(Code::InputsDiffer, message));
        }
        Standing::Own(record) if record.is_acknowledged(&ruled.rule) => {
            row.status = Status::Acknowledged;
            acknowledged(row, record);
            if !row.waits_for.is_empty() {
                let message = format!(
                    "generation {} is acknowledged, and {} do not attest it at present: {}",
                    record.stamp.generation,
                    text::count(row.waits_for.len(), "controller answer"),
                    text::laggards(&row.waits_for, 3)
                );
                row.findings.push(find(Code::Contradicted, message));
            }
        }
        Standing::Own(record) if record.acknowledged.is_some() => {
            row.status = Status::Irregular;
            let message = format!(
                "it says `{}`, and no echo of generation {} has said so: not believed",
                row.acknowledged.clone().unwrap_or_default(),
                record.stamp.generation
            );
            row.findings.push(find(Code::NotAnEcho, message));
        }
        Standing::Own(record) => {
            row.status = Status::Pending;
            row.hasty = !record.is_clean();
            row.objects = Some(survey.objects);
            row.excluded.clone_from(&survey.excluded);
            row.findings.push(find(Code::Pending, pending(record, survey)));
        }
    }
}

fn standing_record(row: &mut Row, record: &Record) {
    row.generation = Some(record.stamp.generation);
    row.observed_generation = record.observed;
    row.acknowledged = Some(record.acknowledged.map_or("pending", |state| state.as_str()).to_owned());
    row.since = Some(record.stamp.at.clone());
    row.since_from = Some(SinceFrom::Stamp);
    row.by.clone_from(&record.stamp.by);
    row.reason.clone_from(&record.stamp.reason);
}

fn acknowledged(row: &mut Row, record: &Record) {
    let Some(echo) = &record.acknowledgement else { return };
    row.evidence = Some(echo.evidence);
    row.bound_seconds = echo.bound_seconds;
    row.lease.clone_from(&echo.lease);
    row.objects = Some(echo.objects);
    row.excluded.clone_from(&echo.excluded);
    row.acknowledged_at = Some(echo.at.clone());
    row.took_seconds = seconds_between(&record.stamp.at, &echo.at);
}

fn pending(record: &Record, survey: &Survey) -> String {
    let mut message = format!("generation {} is not acknowledged", record.stamp.generation);
    if !survey.laggards.is_empty() {
        message.push_str(&format!(": waits for {}", text::laggards(&survey.laggards, 3)));
    }
    if survey.to_be_proven > 0 {
        let why = if record.is_clean() {
            "only the companion can tell whether from a view that has this flip"
        } else {
            "the flip came before the last one was acknowledged, so only time can tell whether they answer this one"
        };
        message.push_str(&format!(
            "; {} given as called for, and {why}",
            text::count(survey.to_be_proven, "answer")
        ));
    }
    message
}

/// What the object that it inherits from says of the pause.
fn inherit(row: &mut Row, pausing: &[&Head]) {
    let me = (
        row.group.clone(),
        row.kind.clone(),
        row.namespace.clone(),
        row.name.clone(),
    );
    let kind = GroupKind::new(me.0, me.1).to_string();
    let mine = |laggard: &&Laggard| laggard.kind == kind && laggard.namespace == me.2 && laggard.name == me.3;
    let own = pausing.iter().flat_map(|head| head.survey.laggards.iter().filter(mine));
    let own: BTreeSet<Laggard> = own.cloned().chain(row.waits_for.drain(..)).collect();
    row.waits_for = own.into_iter().collect();
    let stamp = pausing
        .iter()
        .find_map(|head| head.standing.record())
        .map(|record| &record.stamp);
    row.since = stamp.map(|stamp| stamp.at.clone());
    row.since_from = stamp.map(|_| SinceFrom::InheritedStamp);
    row.by = stamp.map(|stamp| stamp.by.clone()).unwrap_or_default();
    row.reason = stamp.map(|stamp| stamp.reason.clone()).unwrap_or_default();
    row.evidence = None;
    row.bound_seconds = None;
    row.lease = String::new();
    row.acknowledged_at = None;
    row.took_seconds = None;
    row.objects = None;
    row.excluded.clear();
}

/// Since when a controller says that the object is paused.
fn paused_condition(ruled: &Ruled) -> Option<String> {
    let conditions = ruled.rule.attestors.iter().filter_map(|attestor| match &attestor.by {
        AttestedBy::Condition(rule) => attestation::find(rule, &ruled.object)
            .filter(|condition| condition.status == rule.status)
            .and_then(|condition| condition.last_transition_time.clone()),
        _ => None,
    });
    conditions.min()
}

/// From one RFC 3339 time to another, in seconds.
fn seconds_between(from: &str, to: &str) -> Option<f64> {
    let (from, to): (Timestamp, Timestamp) = (from.parse().ok()?, to.parse().ok()?);
    Some(to.duration_since(from).as_millis() as f64 / 1000.0)
}

/// How long ago an RFC 3339 time is.
#[must_use]
pub fn age(since: &str, now: Timestamp) -> Option<SignedDuration> {
    Some(now.duration_since(since.parse::<Timestamp>().ok()?))
}

/// An object of a ruled kind, as it is audited.
#[must_use]
pub fn ruled(rules: &Rules, object: ObjectView) -> Option<Ruled> {
    let rule = rules.rule_for(&object.group_kind())?;
    Some(Ruled {
        object: Arc::new(object),
        rule,
    })
}
