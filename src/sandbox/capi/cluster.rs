//! Clusters on the in-memory infrastructure, from Cluster API's own templates.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use super::install;
use crate::sandbox::tools::KUBERNETES;
use crate::sandbox::{Error, ports, wait};

/// How long a part of an in-memory machine takes to start. The templates say ten seconds, to be like a real one.
const STARTUP: &str = "1s";

/// The size of a Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterShape {
    /// Control plane machines: an odd number.
    pub control_planes: u32,
    /// Machines of the one MachineDeployment.
    pub workers: u32,
}

pub(super) async fn create(
    client: &Client,
    manifests: &Path,
    namespace: &str,
    name: &str,
    shape: ClusterShape,
    address: Ipv4Addr,
) -> Result<(), Error> {
    install::namespace(client, namespace).await?;
    // Left to itself every development provider of this machine gives its first Cluster the same port, of all addresses.
    let endpoint = json!({ "host": address.to_string(), "port": ports::free()? });
    let variable = |variable: &str| match variable {
        "NAMESPACE" => Some(namespace.to_owned()),
        "CLUSTER_NAME" => Some(name.to_owned()),
        "KUBERNETES_VERSION" => KUBERNETES.version_of("k8s.io/kubernetes").map(str::to_owned),
        "CONTROL_PLANE_MACHINE_COUNT" => Some(shape.control_planes.to_string()),
        "WORKER_MACHINE_COUNT" => Some(shape.workers.to_string()),
        _ => None,
    };
    for file in ["template/clusterclass.yaml", "template/cluster.yaml"] {
        let path = manifests.join(file);
        let text = std::fs::read_to_string(&path).map_err(Error::file("read", &path))?;
        for mut object in install::parse(&path, &substitute(&text, variable))? {
            hurry(&mut object);
            if object.get("kind").is_some_and(|kind| kind == "DevClusterTemplate")
                && let Some(spec) = object.pointer_mut("/spec/template/spec").and_then(Value::as_object_mut)
            {
                spec.insert("controlPlaneEndpoint".to_owned(), endpoint.clone());
            }
            apply(client, namespace, object).await?;
        }
    }
    Ok(())
}

async fn apply(client: &Client, namespace: &str, object: Value) -> Result<(), Error> {
    let (object, resource) = install::dynamic(object)?;
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
    let name = object.name_any();
    let what = format!("apply the {} {namespace}/{name}", resource.kind);
    let params = PatchParams::apply("sandbox").force();
    api.patch(&name, &params, &Patch::Apply(&object))
        .await
        .map_err(Error::api(what))?;
    Ok(())
}

/// Puts values in place of `${NAME}` and `${NAME:=default}`.
fn substitute(text: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let mut result = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        result.push_str(before);
        let Some((expression, after)) = after.split_once('}') else {
            rest = after;
            continue;
        };
        let (name, default) = expression.split_once(":=").unwrap_or((expression, ""));
        result.push_str(&value(name).unwrap_or_else(|| default.to_owned()));
        rest = after;
    }
    result.push_str(rest);
    result
}

/// Lets everything that takes its time start at once.
fn hurry(object: &mut Value) {
    match object {
        Value::Object(map) => {
            for (key, value) in map {
                if key == "startupDuration" {
                    *value = json!(STARTUP);
                } else {
                    hurry(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(hurry),
        _ => {}
    }
}

pub(super) async fn wait_running(client: &Client, namespace: &str, name: &str, timeout: Duration) -> Result<(), Error> {
    let api = |kind: &str| {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("cluster.x-k8s.io", "v1beta2", kind));
        Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource)
    };
    let (clusters, machines) = (api("Cluster"), api("Machine"));
    let members = ListParams::default().labels(&format!("cluster.x-k8s.io/cluster-name={name}"));
    let answer = wait::until(timeout, async || {
        let cluster = clusters
            .get(name)
            .await
            .map_err(Error::api(format!("read the Cluster {namespace}/{name}")))?;
        let machines = machines.list(&members).await.map_err(Error::api("list the Machines"))?;
        let running = machines.iter().filter(|machine| phase(machine) == "Running").count();
        let (phase, wanted) = (phase(&cluster), wanted(&cluster));
        let done = phase == "Provisioned" && running == wanted && machines.items.len() == wanted;
        Ok::<_, Error>(if done {
            Ok(())
        } else {
            Err(format!(
                "the Cluster is {phase}, {running} of {wanted} Machines are Running"
            ))
        })
    });
    answer.await?.map_err(|state| Error::Timeout {
        what: format!("the Cluster {namespace}/{name} with all its Machines"),
        seconds: timeout.as_secs(),
        state,
    })
}

fn phase(object: &DynamicObject) -> &str {
    object
        .data
        .pointer("/status/phase")
        .and_then(Value::as_str)
        .unwrap_or("new")
}

/// How many Machines the topology of a Cluster asks for.
fn wanted(cluster: &DynamicObject) -> usize {
    let count = |value: &Value| value.get("replicas").and_then(Value::as_u64).unwrap_or_default();
    let topology = cluster.data.pointer("/spec/topology");
    let control_planes = topology
        .and_then(|topology| topology.get("controlPlane"))
        .map_or(0, count);
    let deployments = topology.and_then(|topology| topology.pointer("/workers/machineDeployments"));
    let workers: u64 = deployments
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(count)
        .sum();
    usize::try_from(control_planes + workers).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_replaced_and_defaults_taken() {
        let text = r#"a: ${NAME}, b: ${CIDR:=["10.0.0.0/12"]}, c: ${NAME:=x}, d: plain"#;
        let result = substitute(text, |name| (name == "NAME").then(|| "mine".to_owned()));
        assert_eq!(result, r#"a: mine, b: ["10.0.0.0/12"], c: mine, d: plain"#);
    }

    #[test]
    fn every_startup_is_hurried() {
        let mut object = json!({ "a": [{ "startupDuration": "10s" }], "startupJitter": "0.2" });
        hurry(&mut object);
        assert_eq!(
            object,
            json!({ "a": [{ "startupDuration": STARTUP }], "startupJitter": "0.2" })
        );
    }
}
