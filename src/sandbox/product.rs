//! pausegen on a sandbox, as it runs in production: its webhook configurations, its own identity with exactly the
//! rights that `pausegen manifests` renders, and `pausegen serve` as a process of its own.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::control_plane::ControlPlane;
use super::process::Process;
use super::{Error, Sandbox, ports, wait};
use crate::rules::Rules;
use crate::rules::manifests::{self, Access, Endpoint, Own};
use crate::tls;

/// The namespace of the product's service account.
pub const NAMESPACE: &str = "pausegen-system";
/// The product's user name, on the API server and in the audit log.
pub const USER: &str = "system:serviceaccount:pausegen-system:pausegen";
/// Its groups.
const GROUPS: [&str; 2] = ["system:serviceaccounts", "system:serviceaccounts:pausegen-system"];
/// The name of its rules file.
const RULES: &str = "rules.yaml";
/// Who applies the product's manifests.
const MANAGER: &str = "pausegen-sandbox";

/// How to run the product.
#[derive(Clone, Debug)]
pub struct ProductOptions {
    /// The text of a rules file; `None`: the built-in rules.
    pub rules: Option<String>,
    /// Whether the webhook and the companion are processes of their own, so that one can be killed without the other.
    pub split: bool,
    /// Whether there is a companion from the start.
    pub companion: bool,
    /// Environment variables for `serve`.
    pub env: Vec<(&'static str, String)>,
}

impl Default for ProductOptions {
    fn default() -> Self {
        Self {
            rules: None,
            split: false,
            companion: true,
            env: Vec::new(),
        }
    }
}

/// The built-in rules with a staleness bound and a grace of one's own. Nobody waits a minute in a test.
#[must_use]
pub fn short_rules(bound: Duration, grace: Duration) -> String {
    format!(
        "apiVersion: pausegen.io/v1alpha1\nkind: Rules\nextends: capi\nstalenessBound: {}s\ngrace: {}s\n",
        bound.as_secs(),
        grace.as_secs()
    )
}

/// The running product. Its processes end when this is dropped.
#[derive(Debug)]
pub struct Product {
    // The order of the fields is the order in which they end.
    companion: Option<Served>,
    admission: Served,
    files: Files,
    options: ProductOptions,
    control_plane: Arc<ControlPlane>,
}

/// How to run one more companion.
#[derive(Clone, Debug, Default)]
pub struct CompanionOptions {
    /// What its log is called; empty: as the usual one's.
    pub name: String,
    /// Environment variables.
    pub env: Vec<(&'static str, String)>,
    /// It leads by a Lease of its own, so that it acts whoever else does.
    pub lease: Option<String>,
    /// Instead of the product's own.
    pub kubeconfig: Option<PathBuf>,
}

/// One `pausegen serve`.
#[derive(Debug)]
pub struct Served {
    process: Process,
    metrics: u16,
}

#[derive(Debug)]
struct Files {
    exe: PathBuf,
    kubeconfig: PathBuf,
    certificate: PathBuf,
    key: PathBuf,
    rules: Option<PathBuf>,
    ca: String,
    port: u16,
}

impl Product {
    /// Installs the product and starts it. Returns when it says that it is ready.
    ///
    /// # Errors
    ///
    /// The rules make no manifests, the API server refuses them, or `serve` does not become ready.
    pub async fn start(sandbox: &Sandbox, options: ProductOptions) -> Result<Self, Error> {
        let control_plane = sandbox.control_plane();
        let rules = match &options.rules {
            Some(text) => Rules::parse(text, RULES),
            None => Rules::capi(),
        }
        .map_err(|error| Error::Product {
            what: "read its rules",
            source: Box::new(error),
        })?;
        let pair = tls::generate(&["127.0.0.1"]).map_err(|error| Error::Product {
            what: "make its certificate",
            source: Box::new(error),
        })?;
        let data = &control_plane.data;
        let files = Files {
            exe: sandbox.exe().to_owned(),
            kubeconfig: control_plane.kubeconfig_for(USER, &GROUPS)?,
            certificate: data.write("pausegen.crt", &pair.cert_pem)?,
            key: data.write("pausegen.key", &pair.key_pem)?,
            rules: options.rules.as_ref().map(|text| data.write(RULES, text)).transpose()?,
            ca: pair.ca_pem,
            port: ports::free()?,
        };
        let client = sandbox.client().await?;
        install(&client, &rules, &files.ca, files.port).await?;
        free_lease(&control_plane).await?;
        let split = options.split;
        let admission = files.serve(&control_plane, &options, true, options.companion && !split)?;
        let mut product = Self {
            companion: None,
            admission,
            files,
            options,
            control_plane,
        };
        product.admission.ready(product.control_plane.timeout).await?;
        if split && product.options.companion {
            product.start_companion().await?;
        }
        Ok(product)
    }

    /// Starts the companion as a process of its own, with the environment that was given at the start.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn start_companion(&mut self) -> Result<(), Error> {
        let env = self.options.env.clone();
        self.start_companion_with(env).await
    }

    /// Starts the companion as a process of its own, with this environment.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn start_companion_with(&mut self, env: Vec<(&'static str, String)>) -> Result<(), Error> {
        self.kill_companion();
        free_lease(&self.control_plane).await?;
        let options = CompanionOptions {
            env,
            ..CompanionOptions::default()
        };
        self.companion = Some(self.another_companion(options).await?);
        Ok(())
    }

    /// Starts one more companion, which belongs to the caller.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn another_companion(&self, options: CompanionOptions) -> Result<Served, Error> {
        if let Some(lease) = &options.lease {
            allow_lease(&self.control_plane, lease).await?;
        }
        let companion = self.files.companion(&self.control_plane, options)?;
        companion.ready(self.control_plane.timeout).await?;
        Ok(companion)
    }

    /// Kills the companion (SIGKILL), if it is a process of its own.
    pub fn kill_companion(&mut self) {
        if let Some(companion) = self.companion.take() {
            companion.process.kill();
        }
    }

    /// Kills the process of the webhook (SIGKILL), and the companion with it where it has no process of its own. What is
    /// installed on the API server stays.
    pub fn kill_admission(&self) {
        self.admission.process.kill();
    }

    /// Starts the process of the webhook again, at the same address.
    ///
    /// # Errors
    ///
    /// It does not become ready.
    pub async fn start_admission(&mut self) -> Result<(), Error> {
        self.kill_admission();
        let companion = self.options.companion && !self.options.split;
        if companion {
            free_lease(&self.control_plane).await?;
        }
        self.admission = self.files.serve(&self.control_plane, &self.options, true, companion)?;
        self.admission.ready(self.control_plane.timeout).await
    }

    /// Overwrites the rules file. What runs notices by itself; what is installed on the API server stays.
    ///
    /// # Errors
    ///
    /// There is no rules file, or it cannot be written.
    pub fn write_rules(&self, text: &str) -> Result<(), Error> {
        self.control_plane.data.write(RULES, text).map(drop)
    }

    /// Installs the product's manifests anew, for these rules: what an administrator does after a change of them.
    ///
    /// # Errors
    ///
    /// The API server refuses them.
    pub async fn install(&self, client: &Client, rules: &Rules) -> Result<(), Error> {
        install(client, rules, &self.files.ca, self.files.port).await
    }

    /// Kills the webhook and the companion. What is installed on the API server stays.
    pub fn stop(&mut self) {
        self.kill_companion();
        self.admission.process.kill();
    }

    /// The process of the companion, if it has one of its own.
    #[must_use]
    pub fn companion(&self) -> Option<&Process> {
        self.companion.as_ref().map(|companion| &companion.process)
    }

    /// The process of the webhook.
    #[must_use]
    pub fn admission(&self) -> &Process {
        &self.admission.process
    }

    /// What `/metrics` of the webhook's process says.
    ///
    /// # Errors
    ///
    /// It does not answer.
    pub async fn metrics(&self) -> Result<String, Error> {
        self.admission.get("/metrics").await
    }
}

impl Files {
    fn serve(
        &self,
        control_plane: &ControlPlane,
        options: &ProductOptions,
        admission: bool,
        companion: bool,
    ) -> Result<Served, Error> {
        let name = if companion { "pausegen" } else { "pausegen-admission" };
        let mut args = if admission {
            self.admission()
        } else {
            vec!["--no-admission".into()]
        };
        if !companion {
            args.push("--no-companion".into());
        }
        self.spawn(control_plane, name, &self.kubeconfig, args, &options.env)
    }

    fn companion(&self, control_plane: &ControlPlane, options: CompanionOptions) -> Result<Served, Error> {
        let CompanionOptions {
            name,
            env,
            lease,
            kubeconfig,
        } = options;
        let name = if name.is_empty() { "pausegen-companion" } else { &name };
        let kubeconfig = kubeconfig.as_ref().unwrap_or(&self.kubeconfig);
        let mut args: Vec<OsString> = vec!["--no-admission".into()];
        if let Some(lease) = lease {
            args.extend(["--lease".into(), lease.into()]);
        }
        self.spawn(control_plane, name, kubeconfig, args, &env)
    }

    /// The arguments of the webhook.
    fn admission(&self) -> Vec<OsString> {
        vec![
            "--bind".into(),
            format!("127.0.0.1:{}", self.port).into(),
            "--tls-cert".into(),
            self.certificate.clone().into(),
            "--tls-key".into(),
            self.key.clone().into(),
            "--companion-user".into(),
            USER.into(),
        ]
    }

    fn spawn(
        &self,
        control_plane: &ControlPlane,
        name: &str,
        kubeconfig: &Path,
        args: Vec<OsString>,
        env: &[(&'static str, String)],
    ) -> Result<Served, Error> {
        let metrics = ports::free()?;
        let mut program = control_plane.program(name, self.exe.clone());
        let metrics_bind = format!("127.0.0.1:{metrics}");
        program = program.arg("serve").arg("--metrics-bind").arg(metrics_bind);
        program = program.arg("--kubeconfig").arg(kubeconfig);
        if let Some(rules) = &self.rules {
            program = program.arg("--rules").arg(rules);
        }
        for arg in args {
            program = program.arg(arg);
        }
        for (name, value) in env {
            program = program.env(name, value);
        }
        Ok(Served {
            process: control_plane.spawner.spawn(program)?,
            metrics,
        })
    }
}

impl Served {
    /// The process.
    #[must_use]
    pub fn process(&self) -> &Process {
        &self.process
    }

    async fn ready(&self, timeout: Duration) -> Result<(), Error> {
        let answer = wait::until(timeout, async || {
            self.process.check()?;
            Ok::<_, Error>(
                self.get("/readyz")
                    .with_subscriber(NoSubscriber::default())
                    .await
                    .map_err(drop),
            )
        });
        answer.await?.map(drop).map_err(|()| Error::NotReady {
            name: self.process.name().to_owned(),
            seconds: timeout.as_secs(),
            log: self.process.log_tail(),
        })
    }

    async fn get(&self, path: &str) -> Result<String, Error> {
        let failed = || Error::api(format!("get {path} of {}", self.process.name()));
        let uri = http::Uri::builder()
            .scheme("http")
            .authority(format!("127.0.0.1:{}", self.metrics))
            .path_and_query("/")
            .build();
        let uri = uri.map_err(kube::Error::HttpError).map_err(failed())?;
        let client = Client::try_from(Config::new(uri)).map_err(failed())?;
        let request = http::Request::get(path)
            .body(Vec::new())
            .map_err(kube::Error::HttpError)
            .map_err(failed())?;
        client.request_text(request).await.map_err(failed())
    }
}

/// What an administrator applies: the webhook configurations and the rights.
async fn install(client: &Client, rules: &Rules, ca: &str, port: u16) -> Result<(), Error> {
    let mut target = manifests::Target::new(Endpoint::Url(format!("https://127.0.0.1:{port}")));
    target.ca_bundle = Some(ca.as_bytes().to_vec());
    let (mutating, validating) = manifests::webhooks(rules, &target);
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.to_owned());
    let account = || manifests::service_account(NAMESPACE, "pausegen");
    let role = manifests::cluster_role(rules, &access());
    let binding = manifests::cluster_role_binding(account());
    let own = own();
    let (own_role, own_binding) = (manifests::role(&own), manifests::role_binding(&own, account()));
    apply(Api::all(client.clone()), "the Namespace", &namespace).await?;
    apply(Api::all(client.clone()), "the ClusterRole", &role).await?;
    apply(Api::all(client.clone()), "the ClusterRoleBinding", &binding).await?;
    apply(Api::namespaced(client.clone(), NAMESPACE), "the Role", &own_role).await?;
    apply(
        Api::namespaced(client.clone(), NAMESPACE),
        "the RoleBinding",
        &own_binding,
    )
    .await?;
    apply(Api::all(client.clone()), "the MutatingWebhookConfiguration", &mutating).await?;
    apply(
        Api::all(client.clone()),
        "the ValidatingWebhookConfiguration",
        &validating,
    )
    .await
}

/// What the product has of its own here.
#[must_use]
pub fn own() -> Own {
    Own::default()
}

/// What the product may reach: also providers' kinds, which the rules find by discovery.
#[must_use]
pub fn access() -> Access {
    Access {
        discover_providers: true,
        ..Access::default()
    }
}

async fn apply<K>(api: Api<K>, what: &str, object: &K) -> Result<(), Error>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let params = PatchParams::apply(MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(object))
        .await
        .map_err(Error::api(format!("apply {what} {name}")))?;
    Ok(())
}

/// Deletes the Lease of a companion that is dead, so that the next one need not wait until it runs out.
async fn free_lease(control_plane: &ControlPlane) -> Result<(), Error> {
    let api: Api<Lease> = Api::namespaced(control_plane.client().await?, NAMESPACE);
    match api.delete(manifests::LEASE, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other
            .map(drop)
            .map_err(Error::api(format!("delete the Lease {}", manifests::LEASE))),
    }
}

/// Lets the product hold another Lease too.
async fn allow_lease(control_plane: &ControlPlane, lease: &str) -> Result<(), Error> {
    let client = control_plane.client().await?;
    let own = Own {
        lease: lease.to_owned(),
        ..own()
    };
    let account = manifests::service_account(NAMESPACE, "pausegen");
    let mut role = manifests::role(&own);
    let mut binding = manifests::role_binding(&own, account);
    role.metadata.name = Some(lease.to_owned());
    binding.metadata.name = Some(lease.to_owned());
    binding.role_ref.name = lease.to_owned();
    apply(Api::namespaced(client.clone(), NAMESPACE), "the Role", &role).await?;
    apply(Api::namespaced(client, NAMESPACE), "the RoleBinding", &binding).await
}
