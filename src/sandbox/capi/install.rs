//! The CRDs and webhook configurations of Cluster API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::try_join_all;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::manager::ManagerKind;
use crate::sandbox::{Error, wait};

/// How long the API server may take to serve a new kind.
const ESTABLISHED: Duration = Duration::from_secs(60);

/// Creates a namespace where it is not there.
pub(super) async fn namespace(client: &Client, name: &str) -> Result<(), Error> {
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    match Api::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
    {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        Err(error) => Err(Error::api(format!("create the namespace {name}"))(error)),
    }
}

/// Creates the CRDs and waits until the API server serves them.
pub(in crate::sandbox) async fn crds(client: &Client, manifests: &Path) -> Result<(), Error> {
    let folder = manifests.join("crd");
    let read = tokio::task::spawn_blocking(move || read_crds(&folder)).await;
    let crds = read.map_err(|_| Error::Cancelled {
        what: "reading the CRDs",
    })??;
    let count = crds.len();
    try_join_all(crds.into_iter().map(|crd| create(client, crd))).await?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let answer = wait::until(ESTABLISHED, async || {
        let list = api
            .list(&ListParams::default())
            .await
            .map_err(Error::api("list the CRDs"))?;
        let pending: Vec<String> = list
            .iter()
            .filter(|crd| !established(crd))
            .map(|crd| crd.name_any())
            .collect();
        Ok::<_, Error>(if pending.is_empty() && list.items.len() >= count {
            Ok(())
        } else {
            Err(pending)
        })
    });
    answer.await?.map_err(|pending| Error::Timeout {
        what: "serving Cluster API's kinds".to_owned(),
        seconds: ESTABLISHED.as_secs(),
        state: format!("not established: {}", pending.join(", ")),
    })
}

fn established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions
        .into_iter()
        .any(|condition| condition.type_ == "Established" && condition.status == "True")
}

fn read_crds(folder: &Path) -> Result<Vec<Value>, Error> {
    let mut crds = Vec::new();
    for entry in std::fs::read_dir(folder)
        .map_err(Error::file("read", folder))?
        .flatten()
    {
        for mut crd in read(&entry.path())? {
            // The labels tell Cluster API which of its contract's versions a kind has, and clusterctl what to move.
            if let Some(metadata) = crd.get_mut("metadata").and_then(Value::as_object_mut) {
                metadata.insert(
                    "labels".to_owned(),
                    json!({
                        "cluster.x-k8s.io/v1beta1": "v1beta1",
                        "cluster.x-k8s.io/v1beta2": "v1beta2",
                        "clusterctl.cluster.x-k8s.io": "",
                    }),
                );
            }
            crds.push(crd);
        }
    }
    Ok(crds)
}

/// Creates the webhook configurations of a manager, for the process that serves them on a port of this machine.
pub(super) async fn webhooks(
    client: &Client,
    manifests: &Path,
    kind: ManagerKind,
    port: u16,
    ca: &str,
) -> Result<(), Error> {
    let path = manifests.join(format!("webhook/{}.yaml", kind.name()));
    let ca = json!(ByteString(ca.as_bytes().to_vec()));
    // As in Cluster API's own installation: `capi-mutating-webhook-configuration`.
    let prefix = kind.namespace().trim_end_matches("system");
    for mut configuration in read(&path)? {
        if let Some(name) = configuration.pointer_mut("/metadata/name") {
            *name = json!(format!("{prefix}{}", name.as_str().unwrap_or_default()));
        }
        let webhooks = configuration.get_mut("webhooks").and_then(Value::as_array_mut);
        for webhook in webhooks.into_iter().flatten() {
            let service_path = webhook.pointer("/clientConfig/service/path").and_then(Value::as_str);
            let url = format!("https://127.0.0.1:{port}{}", service_path.unwrap_or_default());
            if let Some(client_config) = webhook.get_mut("clientConfig") {
                *client_config = json!({ "url": url, "caBundle": ca });
            }
        }
        create(client, configuration).await?;
    }
    Ok(())
}

/// The documents of a YAML file.
pub(super) fn read(path: &Path) -> Result<Vec<Value>, Error> {
    let text = std::fs::read_to_string(path).map_err(Error::file("read", path))?;
    parse(path, &text)
}

pub(super) fn parse(path: &Path, text: &str) -> Result<Vec<Value>, Error> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| Error::Manifest {
        path: PathBuf::from(path),
        source: error.into(),
    })?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

async fn create(client: &Client, object: Value) -> Result<(), Error> {
    let (object, resource) = dynamic(object)?;
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let what = format!("create the {} {}", resource.kind, object.name_any());
    api.create(&PostParams::default(), &object)
        .await
        .map_err(Error::api(what))?;
    Ok(())
}

/// An object of any kind, with what is needed to send it.
pub(super) fn dynamic(object: Value) -> Result<(DynamicObject, ApiResource), Error> {
    let word = |key| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let (group, version) = word("apiVersion").split_once('/').unwrap_or(("", word("apiVersion")));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, word("kind")));
    let object = serde_json::from_value(object)
        .map_err(|error| Error::api("read a manifest")(kube::Error::SerdeError(error)))?;
    Ok((object, resource))
}
