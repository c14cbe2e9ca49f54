//! Kubeconfigs: one file with everything in it, so that it can be copied.

use k8s_openapi::ByteString;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;

use super::Error;
use super::authority::Pair;

/// The text of a kubeconfig for one user of one server. It is JSON, and so also YAML.
pub(super) fn render(server: &str, ca: &str, user: &str, pair: &Pair) -> String {
    let data = |pem: &str| json!(ByteString(pem.as_bytes().to_vec()));
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "sandbox",
            "cluster": { "server": server, "certificate-authority-data": data(ca) },
        }],
        "users": [{
            "name": user,
            "user": {
                "client-certificate-data": data(&pair.certificate),
                "client-key-data": data(&pair.key),
            },
        }],
        "contexts": [{ "name": "sandbox", "context": { "cluster": "sandbox", "user": user } }],
        "current-context": "sandbox",
    });
    format!("{config:#}\n")
}

/// A client on the current runtime.
pub(super) async fn client(path: &std::path::Path) -> Result<Client, Error> {
    let kubeconfig = Kubeconfig::read_from(path).map_err(Error::Kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .map_err(Error::Kubeconfig)?;
    Client::try_from(config).map_err(Error::api("make a client"))
}
