//! A Cluster under pausegen, and flips of its objects that are held against what the controllers themselves say.

use std::time::{Duration, Instant};

use kube::api::{DynamicObject, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use pausegen::protocol::keys::{self, Acknowledgement, Evidence, Stamp};
use pausegen::sandbox::answers::{self, Answers};
use pausegen::sandbox::product::{Product, ProductOptions, short_rules};
use pausegen::sandbox::{Capi, ClusterShape, Manager, ManagerKind, Sandbox};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::support;

/// The staleness bound and the grace in these tests. The managers renew their Leases every two seconds, and a bound that is
/// not longer than that never passes.
pub(super) const BOUND: Duration = Duration::from_secs(8);
/// How long an acknowledgement may take on a busy computer. Nothing is right by being fast.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);
/// How long something is waited for that must not come, where a manager is frozen: a little longer than the bound.
pub(super) const IMPATIENCE: Duration = Duration::from_secs(10);
/// Cluster API's annotation.
pub(super) const ANNOTATION: &str = "cluster.x-k8s.io/paused";
/// The namespace of the Cluster.
pub(super) const NAMESPACE: &str = "default";
/// The name of the Cluster.
pub(super) const CLUSTER: &str = "calm";

/// A sandbox with a Cluster and the product.
pub(super) struct Rig {
    pub(super) product: Product,
    pub(super) client: Client,
    pub(super) sandbox: Sandbox,
}

/// An object that is flipped.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) namespace: &'static str,
    pub(super) kind: &'static str,
    pub(super) name: String,
}

/// A flip, as its own write was answered.
#[derive(Debug)]
pub(super) struct Flip {
    pub(super) target: Target,
    pub(super) generation: u64,
    pub(super) stamp: Stamp,
    /// What it is to be acknowledged as.
    word: &'static str,
    change: Change,
}

/// The product with a bound that a test can wait for.
pub(super) fn options() -> ProductOptions {
    ProductOptions {
        rules: Some(short_rules(BOUND, BOUND)),
        ..ProductOptions::default()
    }
}

/// What a flip does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// `spec.paused` of a Cluster.
    Field(bool),
    /// The annotation.
    Annotation(bool),
}

use Change::{Annotation, Field};

impl Change {
    pub(super) fn patch(self) -> Value {
        match self {
            Field(paused) => json!({ "spec": { "paused": paused } }),
            Annotation(true) => json!({ "metadata": { "annotations": { ANNOTATION: "" } } }),
            Annotation(false) => json!({ "metadata": { "annotations": { ANNOTATION: null } } }),
        }
    }
}

/// So many start at a time: each keeps a processor busy until its machines run.
static STARTING: Semaphore = Semaphore::const_new(2);

/// The object with which a wait was content, if it was.
pub(super) type Met = Option<DynamicObject>;

impl Rig {
    /// Starts everything, with a Cluster of one control plane machine and these workers.
    pub(super) async fn start(options: ProductOptions, workers: u32) -> Self {
        let _turn = STARTING.acquire().await.unwrap();
        let rig = Self::empty(options).await;
        let shape = ClusterShape {
            control_planes: 1,
            workers,
        };
        rig.capi().create_cluster(NAMESPACE, CLUSTER, shape).await.unwrap();
        rig.running().await;
        rig
    }

    /// Starts everything, without a Cluster.
    pub(super) async fn empty(options: ProductOptions) -> Self {
        let sandbox = support::private_capi().await;
        let client = sandbox.client().await.unwrap();
        let product = Box::pin(Product::start(&sandbox, options)).await.unwrap();
        Self {
            product,
            client,
            sandbox,
        }
    }

    /// Waits until all Machines of the Cluster run.
    pub(super) async fn running(&self) {
        let bound = Duration::from_secs(240);
        self.capi().wait_running(NAMESPACE, CLUSTER, bound).await.unwrap();
    }

    /// Stops the product and starts it with other options.
    pub(super) async fn replace_product(&mut self, options: ProductOptions) {
        self.product.stop();
        self.product = Box::pin(Product::start(&self.sandbox, options)).await.unwrap();
    }

    pub(super) fn capi(&self) -> &Capi {
        self.sandbox.capi().unwrap()
    }

    pub(super) fn manager(&self, kind: ManagerKind) -> &Manager {
        self.capi().manager(kind)
    }

    pub(super) fn api(&self, kind: &str) -> Api<DynamicObject> {
        self.api_in(NAMESPACE, kind)
    }

    /// The API of an object's kind in its namespace.
    pub(super) fn of(&self, target: &Target) -> Api<DynamicObject> {
        self.api_in(target.namespace, target.kind)
    }

    fn api_in(&self, namespace: &str, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &answers::resource(kind).unwrap())
    }

    /// The Cluster.
    pub(super) fn cluster(&self) -> Target {
        Target {
            namespace: NAMESPACE,
            kind: "Cluster",
            name: CLUSTER.to_owned(),
        }
    }

    /// The first object of a kind.
    pub(super) async fn first(&self, kind: &'static str) -> Target {
        let list = self.api(kind).list(&Default::default()).await.unwrap();
        Target {
            namespace: NAMESPACE,
            kind,
            name: list.items.first().unwrap().name_any(),
        }
    }

    /// The names of the objects of a kind.
    pub(super) async fn names(&self, kind: &'static str) -> Vec<String> {
        let list = self.api(kind).list(&Default::default()).await.unwrap();
        list.items.iter().map(|object| object.name_any()).collect()
    }

    /// How many objects the Cluster has, itself among them.
    pub(super) async fn members(&self) -> usize {
        let answers = Answers::now(&self.client, NAMESPACE).await.unwrap();
        let count = answers
            .0
            .iter()
            .filter(|answer| answer.controller == answer.kind)
            .count();
        assert!(
            count > 3 * 21,
            "a Machine, its infrastructure and its bootstrap for each of 21: {count}"
        );
        count
    }

    /// Whether the field of a Cluster is on.
    pub(super) async fn is_paused(&self, cluster: &Target) -> bool {
        inputs(&self.get(cluster).await).0
    }

    pub(super) async fn get(&self, target: &Target) -> DynamicObject {
        self.of(target).get(&target.name).await.unwrap()
    }

    /// Flips, and checks the answer to the very write: the next generation, pending.
    pub(super) async fn flip(&self, target: &Target, change: Change) -> Flip {
        let before = generation(&self.get(target).await);
        let flip = self.flip_unchecked(target, change).await;
        assert_eq!(flip.generation, before + 1, "{flip:?}");
        flip
    }

    /// Flips, whatever generation that makes.
    pub(super) async fn flip_unchecked(&self, target: &Target, change: Change) -> Flip {
        let written = self.unseen(target, change).await;
        assert_eq!(
            annotation(&written, keys::ACKNOWLEDGED),
            Some(keys::PENDING),
            "{target:?} {change:?}"
        );
        let flip = self.flip_of(target, change, &written);
        assert_eq!(flip.stamp.by, "admin");
        flip
    }

    /// The flip that an object's stamp is of.
    pub(super) fn flip_of(&self, target: &Target, change: Change, object: &DynamicObject) -> Flip {
        let stamp: Stamp = serde_json::from_str(annotation(object, keys::STAMP).expect("a stamp")).unwrap();
        assert_eq!(generation(object), stamp.generation, "{target:?} {change:?}");
        let (field, annotated) = inputs(object);
        let word = match (target.kind, field, annotated) {
            (_, false, false) => "running",
            ("Cluster", false, true) => "paused-self",
            _ => "paused",
        };
        let generation = stamp.generation;
        Flip {
            target: target.clone(),
            generation,
            stamp,
            word,
            change,
        }
    }

    /// Flips where no webhook looks.
    pub(super) async fn unseen(&self, target: &Target, change: Change) -> DynamicObject {
        self.patch(target, change.patch()).await
    }

    pub(super) async fn patch(&self, target: &Target, patch: Value) -> DynamicObject {
        self.of(target)
            .patch(&target.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap()
    }

    /// What a flip would be answered.
    pub(super) async fn dry_run(&self, target: &Target, change: Change) -> kube::Result<DynamicObject> {
        let params = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let patch = Patch::Merge(change.patch());
        self.of(target).patch(&target.name, &params, &patch).await
    }

    /// `kubectl wait` for the annotation.
    pub(super) async fn word_wait(&self, flip: &Flip, timeout: Duration) -> Met {
        let condition = format!(
            r"jsonpath={{.metadata.annotations.pausegen\.io/acknowledged}}={}",
            flip.word
        );
        self.wait(&flip.target, &condition, timeout).await
    }

    /// `kubectl wait` for the condition.
    pub(super) async fn condition_wait(&self, flip: &Flip, timeout: Duration) -> Met {
        let status = if flip.word == "paused" { "True" } else { "False" };
        self.wait(&flip.target, &format!("condition=PauseAcknowledged={status}"), timeout)
            .await
    }

    pub(super) async fn wait(&self, target: &Target, condition: &str, timeout: Duration) -> Met {
        let what = format!("{}/{}", target.kind, target.name);
        self.sandbox
            .kubectl_wait(target.namespace, &what, condition, timeout)
            .await
            .unwrap()
    }

    /// Both waits are met, and at the revision that each was content with everybody whom the flip concerns had
    /// answered. For an annotation only the first wait is promised.
    pub(super) async fn acknowledged(&self, flip: &Flip) -> Acknowledgement {
        let (word, condition) = tokio::join!(self.word_wait(flip, PATIENCE), async {
            match flip.change {
                Field(_) => self.condition_wait(flip, PATIENCE).await,
                Annotation(_) => None,
            }
        });
        let Some(word) = word else {
            panic!("never acknowledged: {flip:?}\n{}", self.describe(&flip.target).await)
        };
        if let Field(_) = flip.change {
            let condition = condition.unwrap_or_else(|| panic!("the condition is never met: {flip:?}"));
            self.holds(flip, &condition).await;
        }
        self.holds(flip, &word).await
    }

    /// Neither wait is met, nor does the object say so afterwards.
    pub(super) async fn not_acknowledged(&self, flip: &Flip, timeout: Duration) {
        let (word, condition) = tokio::join!(self.word_wait(flip, timeout), async {
            match flip.change {
                Field(_) => self.condition_wait(flip, timeout).await,
                Annotation(_) => None,
            }
        });
        assert_eq!(word, None, "acknowledged too early: {flip:?}");
        assert_eq!(condition, None, "the condition is met too early: {flip:?}");
        let object = self.get(&flip.target).await;
        assert_eq!(annotation(&object, keys::ACKNOWLEDGED), Some(keys::PENDING), "{flip:?}");
    }

    /// The object with which a wait was content acknowledges this flip, and everybody agreed at that revision.
    async fn holds(&self, flip: &Flip, met: &DynamicObject) -> Acknowledgement {
        let echo: Acknowledgement =
            serde_json::from_str(annotation(met, keys::ACKNOWLEDGEMENT).expect("a record of the echo")).unwrap();
        assert_eq!(generation(met), flip.generation, "{flip:?}");
        assert_eq!(
            annotation(met, keys::OBSERVED_GENERATION),
            Some(flip.generation.to_string().as_str())
        );
        assert_eq!(annotation(met, keys::ACKNOWLEDGED), Some(flip.word));
        assert_eq!(echo.generation, flip.generation);
        let answers = Answers::at(&self.client, flip.target.namespace, &met.resource_version().unwrap())
            .await
            .unwrap();
        let (field, annotated) = inputs(met);
        let Target { kind, name, .. } = &flip.target;
        let missing: Vec<_> = answers
            .against_annotation(kind, name, annotated)
            .map(ToString::to_string)
            .collect();
        assert_eq!(
            missing,
            Vec::<String>::new(),
            "acknowledged before these answered: {flip:?}"
        );
        if *kind == "Cluster" {
            // What a resume has let controllers create says nothing yet, and was there for no pause to be seen.
            let missing: Vec<_> = answers
                .against_cluster(field)
                .filter(|answer| field || answer.by_cluster.is_some())
                .map(ToString::to_string)
                .collect();
            assert_eq!(
                missing,
                Vec::<String>::new(),
                "acknowledged before these answered: {flip:?}"
            );
        }
        echo
    }

    /// Waits until the condition says Unknown for a reason with a message that is as it should be, and returns that.
    pub(super) async fn unknown(&self, target: &Target, reason: &str, is_right: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let start = Instant::now();
        loop {
            let object = self.get(target).await;
            if let Some(condition) = condition(&object) {
                let field = |name: &str| condition.get(name).and_then(Value::as_str).unwrap_or_default();
                if field("status") == "Unknown" && field("reason") == reason && is_right(field("message")) {
                    return field("message").to_owned();
                }
                last = condition.to_string();
            }
            assert!(
                start.elapsed() < PATIENCE,
                "{target:?} is not Unknown for {reason}, or names others: {last}"
            );
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether the condition says Unknown.
    pub(super) async fn is_unknown(&self, target: &Target) -> bool {
        let object = self.get(target).await;
        condition(&object).is_some_and(|condition| condition.get("status").is_some_and(|status| status == "Unknown"))
    }

    /// Brings an object to be running and acknowledged, from wherever it is.
    pub(super) async fn run(&self, target: &Target) {
        let (field, annotated) = inputs(&self.get(target).await);
        if annotated {
            self.flip(target, Annotation(false)).await;
        }
        if field {
            self.flip(target, Field(false)).await;
        }
        if generation(&self.get(target).await) > 0 {
            let running = r"jsonpath={.metadata.annotations.pausegen\.io/acknowledged}=running";
            assert!(
                self.wait(target, running, PATIENCE).await.is_some(),
                "{target:?} does not come to run"
            );
        }
    }

    /// The object, for messages.
    pub(super) async fn describe(&self, target: &Target) -> String {
        let mut object = self.get(target).await;
        object.metadata.managed_fields = None;
        serde_json::to_string_pretty(&object).unwrap()
    }
}

/// Evidence of time, not of answers, and not before the bound has passed between the stamp and the echo.
pub(super) fn settled(flip: &Flip, echo: &Acknowledgement) {
    assert_eq!(echo.evidence, Evidence::Settled, "{flip:?} {echo:?}");
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
    let passed = at(&echo.at).duration_since(at(&flip.stamp.at));
    assert!(
        passed >= jiff::SignedDuration::try_from(BOUND).unwrap(),
        "{flip:?} {echo:?}"
    );
}

pub(super) fn annotation<'a>(object: &'a DynamicObject, key: &str) -> Option<&'a str> {
    object.annotations().get(key).map(String::as_str)
}

/// The pause generation; 0 where there is none yet.
pub(super) fn generation(object: &DynamicObject) -> u64 {
    annotation(object, keys::GENERATION).map_or(0, |text| keys::parse_generation(text).unwrap())
}

/// Whether its field and its annotation are on.
fn inputs(object: &DynamicObject) -> (bool, bool) {
    let field = object.data.pointer("/spec/paused") == Some(&Value::Bool(true));
    (field, annotation(object, ANNOTATION).is_some())
}

fn condition(object: &DynamicObject) -> Option<&Value> {
    let conditions = object.data.pointer("/status/conditions")?.as_array()?;
    conditions
        .iter()
        .find(|condition| condition.get("type").is_some_and(|t| t == "PauseAcknowledged"))
}
