//! The flags that name a cluster, for every subcommand that talks to one.

use std::{path::PathBuf, time::Duration};

use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

/// Which cluster, and as whom.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct ClientArgs {
    /// The kubeconfig; else $KUBECONFIG, ~/.kube/config, or the service account of the pod
    #[arg(long, env = "PAUSEGEN_KUBECONFIG", value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; else its current one
    #[arg(long, env = "PAUSEGEN_CONTEXT", value_name = "NAME")]
    pub context: Option<String>,
}

/// Which cluster, as whom, and for how long: the flags that people know from kubectl.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster")]
pub struct KubectlArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// Act as this user
    #[arg(long = "as", value_name = "USER")]
    as_user: Option<String>,
    /// Act as a member of this group (repeatable)
    #[arg(long = "as-group", value_name = "GROUP", requires = "as_user")]
    as_groups: Vec<String>,
    /// How long to wait for an answer of the API server, such as 10s; 0 for no limit
    #[arg(long, value_name = "DURATION", value_parser = super::times::duration)]
    request_timeout: Option<Duration>,
}

/// There is no client.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The named kubeconfig cannot be used.
    #[error("--kubeconfig {path} (or PAUSEGEN_KUBECONFIG) cannot be used")]
    Named {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: kube::config::KubeconfigError,
    },
    /// No cluster is named anywhere.
    #[error("there is no kubeconfig and no service account: name a cluster with --kubeconfig")]
    Inferred(#[source] kube::config::InferConfigError),
    /// The context cannot be used.
    #[error("--context {context} (or PAUSEGEN_CONTEXT) cannot be used")]
    Context {
        /// The context.
        context: String,
        /// Why not.
        source: kube::config::KubeconfigError,
    },
    /// The configuration makes no client.
    #[error("cannot make a client")]
    Client(#[source] kube::Error),
}

impl ClientArgs {
    /// How to reach the cluster.
    ///
    /// # Errors
    /// A kubeconfig that cannot be used, or none at all.
    pub async fn config(&self) -> Result<Config, ClientError> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            ..KubeConfigOptions::default()
        };
        match (&self.kubeconfig, &self.context) {
            (Some(path), _) => {
                let named = |source| ClientError::Named {
                    path: path.clone(),
                    source,
                };
                let kubeconfig = Kubeconfig::read_from(path).map_err(named)?;
                Config::from_custom_kubeconfig(kubeconfig, &options)
                    .await
                    .map_err(named)
            }
            (None, Some(context)) => Config::from_kubeconfig(&options)
                .await
                .map_err(|source| ClientError::Context {
                    context: context.clone(),
                    source,
                }),
            (None, None) => Config::infer().await.map_err(ClientError::Inferred),
        }
    }

    /// A client.
    ///
    /// # Errors
    /// As [`ClientArgs::config`].
    pub async fn client(&self) -> Result<Client, ClientError> {
        Client::try_from(self.config().await?).map_err(ClientError::Client)
    }
}

/// A limit of time as people give it: none where it is zero.
pub(super) fn limit(timeout: Duration) -> Option<Duration> {
    Some(timeout).filter(|timeout| !timeout.is_zero())
}

impl KubectlArgs {
    /// A client, and the namespace that its context names.
    ///
    /// # Errors
    /// As [`ClientArgs::config`].
    pub async fn client(&self) -> Result<(Client, String), ClientError> {
        let Reached { client, namespace, .. } = self.reach().await?;
        Ok((client, namespace))
    }

    /// A client, and what it talks to.
    ///
    /// # Errors
    /// As [`ClientArgs::config`].
    pub async fn reach(&self) -> Result<Reached, ClientError> {
        let mut config = self.client.config().await?;
        if let Some(user) = &self.as_user {
            config.auth_info.impersonate = Some(user.clone());
            config.auth_info.impersonate_groups = (!self.as_groups.is_empty()).then(|| self.as_groups.clone());
        }
        if let Some(timeout) = self.request_timeout {
            let limit = limit(timeout);
            config.connect_timeout = limit;
            config.read_timeout = limit;
            config.write_timeout = limit;
        }
        let host = config
            .cluster_url
            .authority()
            .map_or("", |authority| authority.as_str());
        let server = format!("{host}{}", config.cluster_url.path().trim_end_matches('/'));
        Ok(Reached {
            namespace: config.default_namespace.clone(),
            server,
            client: Client::try_from(config).map_err(ClientError::Client)?,
        })
    }
}

/// A cluster that can be talked to.
pub struct Reached {
    /// Its client.
    pub client: Client,
    /// The namespace that the context names.
    pub namespace: String,
    /// Its API server, without a scheme.
    pub server: String,
}
