//! What Cluster API's controllers say of a pause, read straight from their own conditions, with none of pausegen's
//! rules and none of its code: the demo and the tests hold an acknowledgement against it.

use std::collections::BTreeMap;
use std::fmt;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, VersionMatch};
use kube::{Api, Client};
use serde::Deserialize;

use super::Error;

/// The kinds of a Cluster on the in-memory backend: group, kind, plural. Each has a controller that writes `Paused`.
const KINDS: [(&str, &str, &str); 9] = [
    ("cluster.x-k8s.io", "Cluster", "clusters"),
    ("cluster.x-k8s.io", "MachineDeployment", "machinedeployments"),
    ("cluster.x-k8s.io", "MachineSet", "machinesets"),
    ("cluster.x-k8s.io", "Machine", "machines"),
    ("cluster.x-k8s.io", "MachineHealthCheck", "machinehealthchecks"),
    (
        "controlplane.cluster.x-k8s.io",
        "KubeadmControlPlane",
        "kubeadmcontrolplanes",
    ),
    ("bootstrap.cluster.x-k8s.io", "KubeadmConfig", "kubeadmconfigs"),
    ("infrastructure.cluster.x-k8s.io", "DevCluster", "devclusters"),
    ("infrastructure.cluster.x-k8s.io", "DevMachine", "devmachines"),
];

/// The API version of all of them.
const VERSION: &str = "v1beta2";
/// How a `Paused` condition names the Cluster's field.
const BY_CLUSTER: &str = "Cluster spec.paused is set to true";
/// How a `Paused` condition ends where it names the object's own annotation.
const BY_ANNOTATION: &str = "has the cluster.x-k8s.io/paused annotation";

/// How to reach a kind of Cluster API, by its name.
#[must_use]
pub fn resource(kind: &str) -> Option<ApiResource> {
    KINDS
        .iter()
        .find(|(_, known, _)| *known == kind)
        .map(|(group, kind, plural)| {
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, VERSION, kind), plural)
        })
}

/// The kinds that are read, owners before what they own.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    KINDS.iter().map(|(_, kind, _)| *kind)
}

/// What one controller says of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The kind of the object.
    pub kind: &'static str,
    /// The name of the object.
    pub name: String,
    /// Who says it.
    pub controller: &'static str,
    /// Whether it takes the Cluster's `spec.paused` to be true; `None` where it says nothing.
    pub by_cluster: Option<bool>,
    /// Whether it sees the object's own annotation; `None` where it says nothing.
    pub by_annotation: Option<bool>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.name)?;
        if self.controller != self.kind {
            write!(f, " ({})", self.controller)?;
        }
        Ok(())
    }
}

/// What all controllers say of the objects of one namespace.
#[derive(Clone, Debug, Default)]
pub struct Answers(pub Vec<Answer>);

impl Answers {
    /// Reads them as they stand now.
    ///
    /// # Errors
    ///
    /// A kind cannot be listed.
    pub async fn now(client: &Client, namespace: &str) -> Result<Self, Error> {
        Self::read(client, namespace, &ListParams::default()).await
    }

    /// Reads them as they stood when a write got this resource version: one store holds all kinds, so its revisions
    /// order the writes to all of them.
    ///
    /// # Errors
    ///
    /// A kind cannot be listed; the revision may be compacted after five minutes.
    pub async fn at(client: &Client, namespace: &str, resource_version: &str) -> Result<Self, Error> {
        let params = ListParams::default().at(resource_version).matching(VersionMatch::Exact);
        Self::read(client, namespace, &params).await
    }

    async fn read(client: &Client, namespace: &str, params: &ListParams) -> Result<Self, Error> {
        let mut answers = Vec::new();
        for (_, kind, plural) in KINDS {
            let Some(resource) = resource(kind) else { continue };
            let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
            let list = api.list(params).await.map_err(Error::api(format!("list {plural}")))?;
            for object in list.items {
                answers.extend(of(kind, &object));
            }
        }
        Ok(Self(answers))
    }

    /// Those who do not say of `spec.paused` what it is.
    pub fn against_cluster(&self, paused: bool) -> impl Iterator<Item = &Answer> {
        self.0.iter().filter(move |answer| answer.by_cluster != Some(paused))
    }

    /// Those who do not say of the annotation of this object what is so.
    pub fn against_annotation<'a>(
        &'a self,
        kind: &'a str,
        name: &'a str,
        paused: bool,
    ) -> impl Iterator<Item = &'a Answer> {
        let of_it = move |answer: &&Answer| answer.kind == kind && answer.name == name;
        self.0
            .iter()
            .filter(of_it)
            .filter(move |answer| answer.by_annotation != Some(paused))
    }

    /// By kind: how many say that the Cluster is paused, of how many.
    #[must_use]
    pub fn paused_by_cluster(&self) -> BTreeMap<&'static str, (usize, usize)> {
        let mut counts = BTreeMap::new();
        for answer in &self.0 {
            let (paused, all) = counts.entry(answer.controller).or_insert((0, 0));
            *all += 1;
            *paused += usize::from(answer.by_cluster == Some(true));
        }
        counts
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    conditions: Vec<Condition>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: String,
    status: String,
    reason: String,
    message: String,
}

fn of(kind: &'static str, object: &DynamicObject) -> Vec<Answer> {
    let field = |path: &str| object.data.pointer(path);
    let status: Status = field("/status")
        .and_then(|status| Status::deserialize(status).ok())
        .unwrap_or_default();
    let answer = |controller, condition: Option<&Condition>, paused: fn(&Condition) -> bool| {
        let says = |what: &str| {
            condition
                .map(|condition| paused(condition) && condition.message.split(", ").any(|part| part.ends_with(what)))
        };
        Answer {
            kind,
            name: object.metadata.name.clone().unwrap_or_default(),
            controller,
            by_cluster: says(BY_CLUSTER),
            by_annotation: says(BY_ANNOTATION),
        }
    };
    let find = |r#type: &str| status.conditions.iter().find(|condition| condition.r#type == r#type);
    let mut answers = vec![answer(kind, find("Paused"), |condition| condition.status == "True")];
    if field("/spec/topology").is_some() {
        answers.push(answer("topology", find("TopologyReconciled"), |condition| {
            condition.reason == "Paused"
        }));
    }
    answers
}
