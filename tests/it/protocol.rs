//! The companion's side of the protocol, as a whole: what `kubectl wait` can be told, and what is evidence.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pausegen::protocol::attestation::{Attestation, attest};
use pausegen::protocol::evidence::{Gone, Ground, Guard, Lag, Surroundings, Tracker, Verdict};
use pausegen::protocol::intent::{Intent, State};
use pausegen::protocol::keys::{self, Acknowledgement, Evidence, Standing};
use pausegen::protocol::lease::{LeaseView, Leases, Proof};
use pausegen::protocol::object::ObjectView;
use pausegen::protocol::rule::{InputId, InputRef, KindRule, LeaseName};
use pausegen::protocol::scope::{self, Ruled};
use pausegen::protocol::stamp::{Policies, Write, Writer, mutate};
use pausegen::protocol::{GroupKind, Moment, condition};
use pausegen::rules::Rules;
use proptest::prelude::*;
use serde_json::{Value, json};

const PAUSED: &str = "cluster.x-k8s.io/paused";

static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::capi().unwrap());

fn rule(kind: &str) -> Arc<KindRule> {
    let group = match kind {
        "DevMachine" | "DevCluster" => "infrastructure.cluster.x-k8s.io",
        _ => "cluster.x-k8s.io",
    };
    RULES.rule_for(&GroupKind::new(group, kind)).unwrap()
}

fn at(seconds: u64) -> Moment {
    Moment(Duration::from_secs(seconds))
}

fn view(object: &Value) -> ObjectView {
    serde_json::from_value(object.clone()).unwrap()
}

/// A stored Cluster that is flipped through the webhook's own answers.
#[derive(Clone, Debug)]
struct Cluster {
    stored: Value,
    version: u64,
}

impl Cluster {
    fn new() -> Self {
        Self {
            stored: json!({
                "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster",
                "metadata": {"name": "c", "namespace": "ns", "uid": "cluster", "generation": 1, "resourceVersion": "1",
                             "annotations": {}},
                "spec": {"paused": false}, "status": {"conditions": []}
            }),
            version: 1,
        }
    }

    fn view(&self) -> ObjectView {
        view(&self.stored)
    }

    fn ruled(&self) -> Ruled {
        Ruled {
            object: Arc::new(self.view()),
            rule: rule("Cluster"),
        }
    }

    /// A write to the main resource, as the API server and the webhook handle it.
    fn write(&mut self, change: impl FnOnce(&mut Value), is_companion: bool) {
        let old = self.view();
        let mut new = self.stored.clone();
        change(&mut new);
        let answer = mutate(&Write {
            rule: &rule("Cluster"),
            old: Some(&old),
            new: &view(&new),
            writer: Writer {
                is_companion,
                ..Writer::default()
            },
            at: "2024-01-01T00:00:00Z".parse().unwrap(),
            policies: Policies::default(),
        });
        for (key, value) in answer.edits {
            match value {
                Some(value) => new["metadata"]["annotations"][key] = json!(value),
                None => drop(new["metadata"]["annotations"].as_object_mut().unwrap().remove(key)),
            }
        }
        if new["spec"] != self.stored["spec"] {
            new["metadata"]["generation"] = json!(new["metadata"]["generation"].as_i64().unwrap() + 1);
        }
        self.store(new);
    }

    fn store(&mut self, mut new: Value) {
        self.version += 1;
        new["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.stored = new;
    }

    fn set_field(&mut self, on: bool) {
        self.write(|new| new["spec"]["paused"] = json!(on), false);
    }

    fn set_annotation(&mut self, on: bool) {
        self.write(
            |new| {
                let annotations = new["metadata"]["annotations"].as_object_mut().unwrap();
                if on {
                    annotations.insert(PAUSED.to_owned(), json!(""));
                } else {
                    annotations.remove(PAUSED);
                }
            },
            false,
        );
    }

    fn generation(&self) -> u64 {
        self.record().map_or(0, |record| record.stamp.generation)
    }

    fn record(&self) -> Option<Box<keys::Record>> {
        match Standing::of(&rule("Cluster").group_kind, &self.view()) {
            Standing::Own(record) => Some(record),
            _ => None,
        }
    }

    /// The controllers of the Cluster itself answer.
    fn answer(&mut self, message: &str) {
        let mut new = self.stored.clone();
        let paused = !message.is_empty();
        let mut conditions = new["status"]["conditions"].as_array().unwrap().clone();
        conditions.retain(|condition| condition["type"] != "Paused");
        conditions.push(paused_condition(message, new["metadata"]["generation"].as_i64()));
        new["status"]["conditions"] = json!(conditions);
        assert_eq!(paused, new["status"]["conditions"].to_string().contains("\"True\""));
        self.store(new);
    }

    /// The echo's JSON Patch: nothing is written where its tests fail. Returns what is acknowledged.
    fn echo(&mut self, looked_at: &Self, evidence: Evidence) -> Option<(u64, State)> {
        let decided = looked_at.record()?;
        if self.record()?.stamp != decided.stamp {
            return None;
        }
        let object = looked_at.view();
        let state = Intent::of(&rule("Cluster"), &object).state(&rule("Cluster"));
        let generation = decided.stamp.generation;
        let acknowledgement = Acknowledgement {
            generation,
            uid: "cluster".to_owned(),
            evidence,
            objects: 1,
            bound_seconds: None,
            lease: String::new(),
            excluded: Vec::new(),
            object_generation: object.metadata.generation.unwrap(),
            at: String::new(),
        };
        self.write(
            |new| {
                new["metadata"]["annotations"][keys::ACKNOWLEDGED] = json!(state.as_str());
                new["metadata"]["annotations"][keys::OBSERVED_GENERATION] = json!(generation.to_string());
                new["metadata"]["annotations"][keys::ACKNOWLEDGEMENT] =
                    json!(serde_json::to_string(&acknowledgement).unwrap());
            },
            true,
        );
        let stored = self.record()?;
        assert!(
            stored.is_acknowledged(&rule("Cluster")),
            "the webhook lets the companion's write through"
        );
        Some((generation, state))
    }

    /// The condition, written from a read that still stands (`resourceVersion` is tested).
    fn project(&mut self, tracker: &mut Tracker, guard: &Guard) {
        let object = self.view();
        tracker.observe(at(0), &rule("Cluster"), &object);
        let may_raise = tracker.may_raise(Some(guard));
        let Some(want) = condition::acknowledged(&rule("Cluster"), &object, may_raise) else {
            return;
        };
        let mut new = self.stored.clone();
        let mut conditions = new["status"]["conditions"].as_array().unwrap().clone();
        conditions.retain(|condition| condition["type"] != condition::TYPE);
        conditions.push(
            json!({"type": condition::TYPE, "status": want.status, "reason": want.reason,
            "message": want.message, "observedGeneration": want.observed_generation}),
        );
        new["status"]["conditions"] = json!(conditions);
        self.store(new);
        if Some(want.observed_generation) >= object.metadata.generation {
            tracker.anchored(at(1000), &rule("Cluster"), Some(guard));
        }
    }
}

fn paused_condition(message: &str, observed: Option<i64>) -> Value {
    let (status, reason) = if message.is_empty() {
        ("False", "NotPaused")
    } else {
        ("True", "Paused")
    };
    json!({"type": "Paused", "status": status, "reason": reason, "message": message, "observedGeneration": observed})
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Field(bool),
    Annotation(bool),
    Edit,
    Look,
    Echo,
    Project,
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => any::<bool>().prop_map(Step::Field),
        2 => any::<bool>().prop_map(Step::Annotation),
        1 => Just(Step::Edit),
        2 => Just(Step::Look),
        3 => Just(Step::Echo),
        3 => Just(Step::Project),
        1 => Just(Step::Restart),
    ]
}

/// A wait that began right after a flip.
#[derive(Debug)]
struct Wait {
    generation: u64,
    /// The condition's status, for a field flip.
    status: Option<&'static str>,
    /// The word of `acknowledged`.
    word: State,
}

fn status_of(state: State) -> &'static str {
    if state == State::Paused { "True" } else { "False" }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// After any interleaving, also of looks that are overtaken and of crashes between the two writes of an echo, a wait
    /// is met only by an acknowledgement of its flip or of a later one in the same direction.
    #[test]
    fn a_wait_is_met_only_by_an_acknowledgement(steps in prop::collection::vec(step(), 1..40)) {
        let guard = standing();
        let mut cluster = Cluster::new();
        let mut tracker = Tracker::new("cluster");
        let mut looked: Option<Cluster> = None;
        let mut waits: Vec<Wait> = Vec::new();
        let mut echoed: Vec<(u64, State)> = Vec::new();
        for step in steps {
            let before = cluster.generation();
            match step {
                Step::Field(on) => cluster.set_field(on),
                Step::Annotation(on) => cluster.set_annotation(on),
                Step::Edit => cluster.write(|new| {
                    new["spec"]["size"] = json!(new["spec"]["size"].as_i64().unwrap_or_default() + 1);
                }, false),
                Step::Look => looked = Some(cluster.clone()),
                Step::Echo => echoed.extend(looked.take().and_then(|looked| cluster.echo(&looked, Evidence::Attested))),
                Step::Project => cluster.project(&mut tracker, &guard),
                Step::Restart => {
                    tracker = Tracker::new("cluster");
                    looked = None;
                }
            }
            if cluster.generation() != before {
                let word = Intent::of(&rule("Cluster"), &cluster.view()).state(&rule("Cluster"));
                let status = matches!(step, Step::Field(_)).then(|| status_of(word));
                waits.push(Wait { generation: cluster.generation(), status, word });
            }
            let object = cluster.view();
            for wait in &waits {
                if let Some(status) = wait.status
                    && condition::kubectl_wait_is_met(&object, condition::TYPE, status)
                {
                    prop_assert!(
                        echoed.iter().any(|(g, state)| *g >= wait.generation && status_of(*state) == status),
                        "{wait:?} is met: {}", cluster.stored
                    );
                }
                if object.metadata.annotation(keys::ACKNOWLEDGED) == Some(wait.word.as_str()) {
                    prop_assert!(
                        echoed.iter().any(|(g, state)| *g >= wait.generation && *state == wait.word),
                        "{wait:?} is met: {}", cluster.stored
                    );
                }
            }
        }
    }
}

#[test]
fn an_echo_of_the_standing_flip_meets_both_waits() {
    let guard = standing();
    let mut cluster = Cluster::new();
    let mut tracker = Tracker::new("cluster");
    cluster.set_field(true);
    let looked = cluster.clone();
    assert_eq!(cluster.echo(&looked, Evidence::Attested), Some((1, State::Paused)));
    assert!(
        !condition::kubectl_wait_is_met(&cluster.view(), condition::TYPE, "True"),
        "a crash between the writes"
    );
    cluster.project(&mut tracker, &guard);
    assert!(condition::kubectl_wait_is_met(&cluster.view(), condition::TYPE, "True"));
    cluster.write(|new| new["spec"]["size"] = json!(2), false);
    assert!(
        !condition::kubectl_wait_is_met(&cluster.view(), condition::TYPE, "True"),
        "a spec edit"
    );
    let mut next_process = Tracker::new("cluster");
    cluster.clone().project(&mut next_process, &guard);
    let mut unknown = cluster.clone();
    unknown.project(&mut next_process, &guard);
    assert!(
        !condition::kubectl_wait_is_met(&unknown.view(), condition::TYPE, "True"),
        "a process that has not seen the two agree raises nothing"
    );
    cluster.project(&mut tracker, &guard);
    assert!(
        condition::kubectl_wait_is_met(&cluster.view(), condition::TYPE, "True"),
        "raised"
    );
}

const FIELD_TEXT: &str = "Cluster spec.paused is set to true";

fn machine(uid: &str, message: &str) -> Ruled {
    Ruled {
        object: Arc::new(view(&json!({
            "apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
            "metadata": {"name": uid, "namespace": "ns", "uid": uid, "generation": 1,
                         "labels": {"cluster.x-k8s.io/cluster-name": "c"}},
            "status": {"conditions": [paused_condition(message, Some(1))]}
        }))),
        rule: rule("Machine"),
    }
}

/// Leases of Cluster API's managers that have been renewed every 2 s until `until`.
fn leases(until: u64) -> Leases {
    let mut leases = Leases::new(BTreeMap::new());
    for second in (0..=until).step_by(2) {
        leases.observe(
            at(second),
            "capi-system",
            "controller-leader-election-capi",
            renewal("a", second),
        );
    }
    leases.synced();
    leases
}

fn renewal(holder: &str, second: u64) -> LeaseView {
    LeaseView {
        holder: holder.to_owned(),
        transitions: 0,
        renew_time: second.to_string(),
        duration: Duration::from_secs(15),
    }
}

/// A webhook configuration that has always stood.
fn standing() -> Guard {
    Guard {
        fingerprint: "standing".to_owned(),
        since: at(0),
    }
}

/// What surrounds a process that has watched from the beginning.
fn ground<'a>(now: Moment, guard: Option<&'a Guard>, leases: &'a Leases) -> Ground<'a> {
    Ground {
        now,
        start: at(0),
        guard,
        leases,
    }
}

fn look(tracker: &mut Tracker, now: u64, guard: Option<&Guard>, cluster: &Cluster, all: &[Ruled]) -> Verdict {
    let leases = leases(now);
    let ground = ground(at(now), guard, &leases);
    let flipped = cluster.ruled();
    tracker.observe(at(now), &flipped.rule, &flipped.object);
    tracker.look(&ground, &flipped, all, &around(&|_| Some(at(0))))
}

/// Every kind has a rule, and this is how long nothing has changed.
fn around(unchanged_since: &(dyn Fn(&Ruled) -> Option<Moment> + Sync)) -> Surroundings<'_> {
    Surroundings {
        has_rule: &|_| true,
        unchanged_since,
        belongs_elsewhere: &|_| false,
        gone: &[],
    }
}

/// A tracker that has taken baselines of a running Cluster with one Machine, at 130 s.
fn with_baselines(cluster: &Cluster, guard: &Guard) -> Tracker {
    let mut tracker = Tracker::new("cluster");
    tracker.observe(at(1), &rule("Cluster"), &cluster.view());
    tracker.observe_members(at(1), &BTreeSet::from(["m".to_owned()]));
    let leases = leases(130);
    let ground = ground(at(130), Some(guard), &leases);
    let (flipped, member) = (cluster.ruled(), machine("m", ""));
    let lacking = tracker.lacking(&ground, &flipped, &[&member]);
    assert_eq!(lacking.ready.keys().collect::<Vec<_>>(), ["cluster", "m"]);
    tracker.take_baselines(&ground, at(110), &flipped, &[&member]);
    assert_eq!(
        tracker.baselines(),
        0,
        "a view from within the bound after the webhook was enforced"
    );
    tracker.take_baselines(&ground, at(125), &flipped, &[&member]);
    assert!(tracker.lacking(&ground, &flipped, &[&member]).ready.is_empty());
    tracker
}

#[test]
fn an_answer_that_has_changed_is_evidence_and_one_that_stands_is_none() {
    let guard = standing();
    let mut cluster = Cluster::new();
    cluster.answer("");
    let mut tracker = with_baselines(&cluster, &guard);
    cluster.set_field(true);
    cluster.answer(FIELD_TEXT);

    let Verdict::Wait(waiting) = look(&mut tracker, 140, Some(&guard), &cluster, &[machine("m", "")]) else {
        panic!("the Machine has not answered")
    };
    assert_eq!(waiting.laggards.len(), 1);
    assert_eq!(
        (waiting.laggards[0].name.as_str(), waiting.laggards[0].lag),
        ("m", Lag::Disagrees)
    );

    let answered = [machine("m", FIELD_TEXT)];
    let Verdict::Echo(echo) = look(&mut tracker.clone(), 141, Some(&guard), &cluster, &answered) else {
        panic!("everybody has answered")
    };
    assert_eq!((echo.evidence, echo.objects, echo.bound), (Evidence::Attested, 2, None));

    let other = Guard {
        fingerprint: "changed".to_owned(),
        since: at(135),
    };
    for guard in [None, Some(&other)] {
        let Verdict::Wait(waiting) = look(&mut tracker.clone(), 141, guard, &cluster, &answered) else {
            panic!("flips may have passed unseen")
        };
        assert_eq!(
            waiting.laggards.iter().map(|l| l.lag).collect::<Vec<_>>(),
            [Lag::Settling]
        );
        let mut later = tracker.clone();
        look(&mut later, 141, guard, &cluster, &answered);
        let Verdict::Echo(echo) = look(&mut later, 202, guard, &cluster, &answered) else {
            panic!("the bound has passed")
        };
        assert_eq!(
            (echo.evidence, echo.bound),
            (Evidence::Settled, Some(Duration::from_secs(60)))
        );
    }

    let stranger = [machine("m", FIELD_TEXT), machine("new", FIELD_TEXT)];
    let Verdict::Wait(waiting) = look(&mut tracker, 141, Some(&guard), &cluster, &stranger) else {
        panic!("one has no baseline")
    };
    assert_eq!(waiting.laggards[0].name, "new");
}

/// A controller that still has an object of the same name in its hands that was deleted may write what it read of that one.
#[test]
fn a_revision_that_was_read_is_evidence_where_it_can_be_of_this_object_only() {
    let mut cluster = Cluster::new();
    cluster.answer("");
    let mut young = Tracker::new("cluster");
    young.observe(at(1), &rule("Cluster"), &cluster.view());
    let leases = leases(130);
    let ground = ground(at(130), None, &leases);
    let (mut early, mut known) = (young.clone(), young.clone());
    early.take_baselines(&ground, at(60), &cluster.ruled(), &[]);
    known.take_baselines(&ground, at(61), &cluster.ruled(), &[]);
    cluster.set_field(true);
    cluster.answer(FIELD_TEXT);
    for tracker in [&mut young, &mut early] {
        let verdict = look(tracker, 200, None, &cluster, &[]);
        assert!(matches!(verdict, Verdict::Wait(_)), "{verdict:?}");
    }
    let Verdict::Echo(echo) = look(&mut known, 200, None, &cluster, &[]) else {
        panic!("it has read the flip of this very object")
    };
    assert_eq!(echo.evidence, Evidence::Attested);
}

#[test]
fn a_hasty_flip_and_one_that_is_taken_back_need_the_bound() {
    let guard = standing();
    let mut cluster = Cluster::new();
    cluster.answer("");
    let mut tracker = with_baselines(&cluster, &guard);
    cluster.set_field(true);
    cluster.set_field(false);
    let all = [machine("m", "")];
    assert!(
        matches!(look(&mut tracker, 140, Some(&guard), &cluster, &all), Verdict::Wait(_)),
        "a late bit looks right"
    );
    assert_eq!(tracker.baselines(), 0);
    let Verdict::Echo(echo) = look(&mut tracker, 201, Some(&guard), &cluster, &all) else {
        panic!("the bound has passed")
    };
    let looked = cluster.clone();
    cluster.echo(&looked, echo.evidence).unwrap();
    tracker.echoed(at(201), &echo);
    tracker.observe(at(201), &rule("Cluster"), &cluster.view());
    assert!(tracker.baselines() > 0, "an echo leaves baselines");
    assert_eq!(look(&mut tracker, 202, Some(&guard), &cluster, &all), Verdict::Quiet);

    cluster.write(
        |new| new["metadata"]["annotations"][keys::ACKNOWLEDGED] = json!(keys::PENDING),
        true,
    );
    assert!(
        matches!(look(&mut tracker, 330, Some(&guard), &cluster, &all), Verdict::Wait(_)),
        "it counts from here"
    );
}

#[test]
fn what_a_look_shows_is_as_old_as_its_question() {
    let guard = standing();
    let mut cluster = Cluster::new();
    cluster.answer("");
    let mut tracker = with_baselines(&cluster, &guard);
    cluster.set_field(true);
    cluster.set_field(false);
    let leases = leases(200);
    let asked_at = |second| ground(at(second), Some(&guard), &leases);
    let (flipped, all) = (cluster.ruled(), [machine("m", "")]);
    let verdict = tracker.look(&asked_at(140), &flipped, &all, &around(&|_| Some(at(0))));
    assert_eq!(verdict, Verdict::Quiet, "a flip that nobody has told of is not decided");
    tracker.observe(at(141), &flipped.rule, &flipped.object);
    let verdict = tracker.look(&asked_at(200), &flipped, &all, &around(&|_| Some(at(0))));
    assert!(
        matches!(verdict, Verdict::Wait(_)),
        "asked for before the bound has passed"
    );
}

#[test]
fn an_echo_acknowledges_no_revision_that_unseen_flips_may_have_made() {
    let guard = standing();
    let mut cluster = Cluster::new();
    let mut unsure = Tracker::new("cluster");
    unsure.observe(at(1), &rule("Cluster"), &cluster.view());
    let mut sure = unsure.clone();
    sure.anchored(at(60), &rule("Cluster"), Some(&guard));
    cluster.set_field(true);
    let flipped = cluster.view().metadata.generation.unwrap();
    cluster.write(|new| new["spec"]["size"] = json!(2), false);
    cluster.answer(FIELD_TEXT);
    for (tracker, guard, acknowledged) in [
        (&mut unsure, Some(&guard), flipped),
        (&mut sure.clone(), None, flipped),
        (&mut sure, Some(&guard), flipped + 1),
    ] {
        look(tracker, 100, guard, &cluster, &[]);
        let Verdict::Echo(echo) = look(tracker, 170, guard, &cluster, &[]) else {
            panic!("the bound has passed")
        };
        assert_eq!(echo.object_generation, acknowledged);
    }
}

#[test]
fn a_settled_answer_under_a_young_webhook_configuration_is_no_baseline() {
    let young = Guard {
        fingerprint: "young".to_owned(),
        since: at(150),
    };
    let mut cluster = Cluster::new();
    cluster.answer("");
    let mut tracker = Tracker::new("cluster");
    cluster.set_field(true);
    cluster.answer(FIELD_TEXT);
    let all = [machine("m", FIELD_TEXT)];
    look(&mut tracker, 100, None, &cluster, &all);
    let Verdict::Echo(echo) = look(&mut tracker, 170, Some(&young), &cluster, &all) else {
        panic!("the bound has passed")
    };
    tracker.echoed(at(170), &echo);
    assert_eq!(
        tracker.baselines(),
        0,
        "another flip may have passed unseen before 150 s"
    );
}

#[test]
fn a_frozen_manager_never_settles() {
    let lease = LeaseName {
        name: "l".to_owned(),
        namespace: None,
    };
    let mut leases = Leases::new(BTreeMap::from([("l".to_owned(), Duration::from_secs(10))]));
    assert_eq!(leases.proof(&lease), Proof::Unknown);
    leases.synced();
    assert_eq!(leases.proof(&lease), Proof::Absent);
    let since_until = |leases: &Leases| match leases.proof(&lease) {
        Proof::Alive(alive) => Some((alive.since, alive.until)),
        _ => None,
    };
    leases.observe(at(1), "a", "l", renewal("x", 1));
    assert_eq!(leases.proof(&lease), Proof::Silent, "the first sight is no renewal");
    leases.observe(at(3), "a", "l", renewal("x", 3));
    leases.observe(at(5), "a", "l", renewal("x", 5));
    assert_eq!(since_until(&leases), Some((at(3), at(5))));
    leases.observe(at(60), "a", "l", renewal("x", 5));
    assert_eq!(since_until(&leases), Some((at(3), at(5))), "seen again is not renewed");
    leases.observe(at(16), "a", "l", renewal("x", 16));
    assert_eq!(
        since_until(&leases),
        Some((at(16), at(16))),
        "a gap of more than the bound, though not of the duration"
    );
    leases.observe(at(18), "a", "l", renewal("y", 18));
    assert_eq!(since_until(&leases), Some((at(18), at(18))), "another holder");
    let term = leases.term(&lease);
    leases.observe(at(20), "b", "l", renewal("z", 20));
    assert_ne!(leases.term(&lease), term);
    assert_eq!(leases.proof(&lease), Proof::Silent, "every Lease of the name counts");
    leases.remove("b", "l");
    leases.observe(
        at(21),
        "a",
        "l",
        LeaseView {
            holder: String::new(),
            ..renewal("y", 21)
        },
    );
    assert_eq!(leases.proof(&lease), Proof::Silent, "released");
}

#[test]
fn a_message_tells_the_inputs_apart() {
    let rule = rule("Machine");
    let attestor = &rule.attestors[0];
    let inherited = InputRef::Inherited(InputId("spec.paused".to_owned()));
    let own = InputRef::Own(InputId(PAUSED.to_owned()));
    let annotation = "Machine has the cluster.x-k8s.io/paused annotation";
    let both = format!("{FIELD_TEXT}, {annotation}");
    for (message, field, key) in [
        ("", Attestation::Off, Attestation::Off),
        (FIELD_TEXT, Attestation::On, Attestation::Off),
        (annotation, Attestation::Off, Attestation::On),
        (both.as_str(), Attestation::On, Attestation::On),
        (
            "paused for another reason",
            Attestation::Unclear { agrees: true },
            Attestation::Unclear { agrees: true },
        ),
    ] {
        let object = machine("m", message).object;
        assert_eq!(attest(attestor, &object, &inherited, true, 2), field, "{message}");
        assert_eq!(attest(attestor, &object, &own, true, 2), key, "{message}");
    }
    assert_eq!(
        attest(attestor, &ObjectView::default(), &own, true, 2),
        Attestation::Missing
    );
}

#[test]
fn members_are_found_by_label_field_owner_and_reference() {
    let object = |kind: &str, name: &str, more: Value| {
        let group = &rule(kind).group_kind.group;
        let mut object = json!({"apiVersion": format!("{group}/v1beta2"), "kind": kind,
            "metadata": {"name": name, "namespace": "ns", "uid": name}});
        for (key, value) in more.as_object().unwrap() {
            match key.as_str() {
                "spec" => object["spec"] = value.clone(),
                _ => object["metadata"][key] = value.clone(),
            }
        }
        Ruled {
            object: Arc::new(view(&object)),
            rule: rule(kind),
        }
    };
    let infra = |kind: &str, name: &str| {
        json!({"clusterName": "c", "infrastructureRef":
            {"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": kind, "name": name}})
    };
    let all = [
        object(
            "Machine",
            "by-label",
            json!({"labels": {"cluster.x-k8s.io/cluster-name": "c"}}),
        ),
        object(
            "Machine",
            "by-field",
            json!({"spec": infra("DevMachine", "by-reference")}),
        ),
        object("Machine", "unruled", json!({"spec": infra("Unheard", "of")})),
        object("DevMachine", "by-reference", json!({})),
        object(
            "MachineSet",
            "by-owner",
            json!({"ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine", "name": "x", "uid": "by-field"}]}),
        ),
        object(
            "Machine",
            "another",
            json!({"labels": {"cluster.x-k8s.io/cluster-name": "d"}}),
        ),
        object(
            "Machine",
            "elsewhere",
            json!({"namespace": "other", "labels": {"cluster.x-k8s.io/cluster-name": "c"}}),
        ),
    ];
    let cluster = Cluster::new().view();
    let found = scope::members(&cluster, &rule("Cluster"), &all, &|kind| kind.kind != "Unheard");
    let names: BTreeSet<&str> = found
        .members
        .iter()
        .map(|ruled| ruled.object.metadata.name.as_str())
        .collect();
    assert_eq!(
        names,
        BTreeSet::from(["by-label", "by-field", "unruled", "by-reference", "by-owner"])
    );
    assert_eq!(
        found.unruled,
        BTreeSet::from(["Unheard.infrastructure.cluster.x-k8s.io ns/of".to_owned()])
    );
}

/// Looks at a Cluster of which everybody has answered but this one, who need not answer any more. The Leases were renewed
/// until `renewed`.
fn look_at_a_leaver(
    tracker: &mut Tracker,
    (now, renewed): (u64, u64),
    cluster: &Cluster,
    leaver: &Ruled,
    since: Option<u64>,
) -> Verdict {
    let guard = standing();
    let leases = leases(renewed);
    let ground = ground(at(now), Some(&guard), &leases);
    let own = cluster.ruled().object.metadata.uid.clone();
    let unchanged_since = move |ruled: &Ruled| {
        if ruled.object.metadata.uid == own {
            Some(at(0))
        } else {
            since.map(at)
        }
    };
    let all = [leaver.clone()];
    let flipped = cluster.ruled();
    tracker.observe(at(now), &flipped.rule, &flipped.object);
    tracker.look(&ground, &flipped, &all, &around(&unchanged_since))
}

/// A controller that stands still may see an object as it was when it still had to answer for it.
#[test]
fn whoever_need_not_answer_any_more_has_to_know_that() {
    let guard = standing();
    let mut cluster = Cluster::new();
    cluster.answer("");
    let tracker = with_baselines(&cluster, &guard);
    cluster.set_field(true);
    cluster.answer(FIELD_TEXT);

    // Its label is gone: it is no member any more.
    let mut stranger = machine("m", "");
    Arc::make_mut(&mut stranger.object).metadata.labels.clear();
    // It is managed elsewhere.
    let elsewhere = Ruled {
        object: Arc::new(view(&json!({
            "apiVersion": "infrastructure.cluster.x-k8s.io/v1beta2", "kind": "DevCluster",
            "metadata": {"name": "m", "namespace": "ns", "uid": "m", "generation": 1,
                         "labels": {"cluster.x-k8s.io/cluster-name": "c"},
                         "annotations": {"cluster.x-k8s.io/managed-by": "somebody"},
                         "ownerReferences": [{"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Cluster", "name": "c", "uid": "cluster"}]},
            "status": {"conditions": [paused_condition("", Some(1))]}
        }))),
        rule: rule("DevCluster"),
    };
    for (leaver, excluded) in [(&stranger, 0), (&elsewhere, 1)] {
        let mut tracker = tracker.clone();
        let waits = |times, since, tracker: &mut Tracker| {
            let Verdict::Wait(waiting) = look_at_a_leaver(tracker, times, &cluster, leaver, since) else {
                panic!("its controller may not know at {times:?}, {since:?}")
            };
            let lags: Vec<_> = waiting.laggards.iter().map(|l| (l.name.as_str(), l.lag)).collect();
            assert_eq!(lags, [("m", Lag::Leaving)]);
        };
        waits((300, 300), None, &mut tracker.clone());
        if excluded == 0 {
            tracker.observe_members(at(135), &BTreeSet::new());
        }
        waits((140, 140), Some(135), &mut tracker);
        if excluded == 0 {
            // Its manager stands still. (The other one has no Lease, so that the bound counts alone.)
            waits((300, 140), Some(135), &mut tracker);
        }
        let Verdict::Echo(echo) = look_at_a_leaver(&mut tracker, (200, 200), &cluster, leaver, Some(135)) else {
            panic!("its manager has been alive for long enough")
        };
        assert_eq!((echo.objects, echo.excluded.len()), (1, excluded));
    }
}

/// Its owner may have been this Cluster until just before the process began, or between two of its glances.
#[test]
fn an_orphan_that_nobody_has_seen_leave_may_have_left() {
    let mut cluster = Cluster::new();
    cluster.answer("");
    let guard = standing();
    let tracker = with_baselines(&cluster, &guard);
    cluster.set_field(true);
    cluster.answer(FIELD_TEXT);
    let mut orphan = machine("orphan", "");
    Arc::make_mut(&mut orphan.object).metadata.labels.clear();
    let look = |now, since| look_at_a_leaver(&mut tracker.clone(), (now, now), &cluster, &orphan, since);
    for (now, since) in [(140, Some(135)), (300, None)] {
        let Verdict::Wait(waiting) = look(now, since) else {
            panic!("its controller may not know at {now}")
        };
        let lags: Vec<_> = waiting.laggards.iter().map(|l| (l.name.as_str(), l.lag)).collect();
        assert_eq!(lags, [("orphan", Lag::Leaving)]);
    }
    for (now, since) in [(200, Some(135)), (140, Some(0))] {
        assert!(
            matches!(look(now, since), Verdict::Echo(echo) if echo.objects == 1),
            "at {now}"
        );
    }
}

/// A controller that stands still goes on working on what it saw, also when that is not there any more.
#[test]
fn a_pause_waits_for_the_controllers_of_what_was_deleted() {
    let guard = standing();
    let mut cluster = Cluster::new();
    cluster.answer("");
    let tracker = with_baselines(&cluster, &guard);
    cluster.set_field(true);
    cluster.answer(FIELD_TEXT);
    let look = |now: u64, renewed: u64, since: u64| {
        let leases = leases(renewed);
        let ground = ground(at(now), Some(&guard), &leases);
        let gone = [Gone {
            rule: rule("Machine"),
            since: at(since),
        }];
        let flipped = cluster.ruled();
        let mut tracker = tracker.clone();
        tracker.observe_members(at(131), &BTreeSet::new());
        tracker.observe(at(135), &flipped.rule, &flipped.object);
        let around = Surroundings {
            gone: &gone,
            ..around(&|_| Some(at(0)))
        };
        // The first look finds out that the Machine is gone.
        let all = [flipped.clone()];
        let early = Ground { now: at(135), ..ground };
        tracker.look(&early, &flipped, &all, &around);
        tracker.look(&ground, &flipped, &all, &around)
    };
    // Just deleted; long ago, and its manager has not been alive since.
    for (now, renewed) in [(140, 140), (400, 140)] {
        let Verdict::Wait(waiting) = look(now, renewed, 135) else {
            panic!("its controller may not know at {now}")
        };
        assert!(waiting.laggards.iter().all(|l| l.lag == Lag::Gone), "{waiting:?}");
    }
    assert!(matches!(look(200, 200, 135), Verdict::Echo(_)));
}
