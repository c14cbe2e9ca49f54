//! Whether the API server trusts the certificate that is served: what the webhook configurations have as `caBundle`.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::{Api, Client};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::time::{self, Duration};
use tokio_util::sync::CancellationToken;

use super::{Certificate, certificates, x509};

/// How often they are read once the certificate is trusted, and before.
const EVERY: [Duration; 2] = [Duration::from_secs(10), Duration::from_secs(1)];

/// How one webhook is reached.
#[derive(Debug, Clone)]
pub(crate) struct Webhook {
    pub(crate) name: String,
    host: Option<ServerName<'static>>,
    /// PEM; empty where there is none.
    pub(crate) bundle: Vec<u8>,
}

impl Webhook {
    pub(crate) fn of(name: String, config: WebhookClientConfig) -> Self {
        let host = match (config.service, config.url) {
            (Some(service), _) => Some(format!("{}.{}.svc", service.name, service.namespace)),
            (None, Some(url)) => url
                .parse::<http::Uri>()
                .ok()
                .and_then(|url| url.host().map(|host| host.trim_matches(['[', ']']).to_owned())),
            (None, None) => None,
        };
        Self {
            name,
            host: host.and_then(|host| ServerName::try_from(host).ok()),
            bundle: config.ca_bundle.map(|bundle| bundle.0).unwrap_or_default(),
        }
    }

    /// What its `caBundle` holds.
    pub(crate) fn cas(&self) -> Vec<CertificateDer<'static>> {
        certificates(&self.bundle).unwrap_or_default()
    }

    /// Whether it can be called while this chain is served.
    pub(crate) fn trusts(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), String> {
        let untrusted = |why: String| format!("the API server does not trust our certificate for {}: {why}", self.name);
        if self.bundle.is_empty() {
            return Err(untrusted("its caBundle is empty".to_owned()));
        }
        let host = self
            .host
            .as_ref()
            .ok_or_else(|| untrusted("it has no address".to_owned()))?;
        x509::verify(chain, self.cas(), host, now).map_err(|error| untrusted(error.to_string()))
    }
}

/// A webhook configuration, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Configuration {
    pub(crate) resource_version: Option<String>,
    pub(crate) webhooks: Vec<Webhook>,
}

/// What is published. One that does not exist calls nobody.
#[derive(Debug, Clone, Default)]
pub(crate) struct Published {
    pub(crate) mutating: Option<Configuration>,
    pub(crate) validating: Option<Configuration>,
}

impl Published {
    /// Reads both configurations of this name.
    pub(crate) async fn read(client: &Client, name: &str) -> Result<Self, kube::Error> {
        let mutating: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
        let validating: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
        let mutating = mutating.get_opt(name).await?.map(|found| Configuration {
            resource_version: found.metadata.resource_version,
            webhooks: found
                .webhooks
                .into_iter()
                .flatten()
                .map(|webhook| Webhook::of(webhook.name, webhook.client_config))
                .collect(),
        });
        let validating = validating.get_opt(name).await?.map(|found| Configuration {
            resource_version: found.metadata.resource_version,
            webhooks: found
                .webhooks
                .into_iter()
                .flatten()
                .map(|webhook| Webhook::of(webhook.name, webhook.client_config))
                .collect(),
        });
        Ok(Self { mutating, validating })
    }

    pub(crate) fn webhooks(&self) -> impl Iterator<Item = &Webhook> {
        let both = self.mutating.iter().chain(&self.validating);
        both.flat_map(|configuration| &configuration.webhooks)
    }

    /// Whether every webhook can be called while this chain is served.
    pub(crate) fn trusts(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), String> {
        self.webhooks().try_for_each(|webhook| webhook.trusts(chain, now))
    }
}

/// Whether the certificate that is served is trusted, as it was found last. Clones share it.
#[derive(Debug, Clone)]
pub struct Trust(Arc<Mutex<Result<(), String>>>);

impl Default for Trust {
    fn default() -> Self {
        let unknown = "the caBundle of the webhook configurations has not been read yet";
        Self(Arc::new(Mutex::new(Err(unknown.to_owned()))))
    }
}

impl Trust {
    /// As it was found last.
    ///
    /// # Errors
    /// It is not trusted, and why.
    pub fn get(&self) -> Result<(), String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set(&self, found: Result<(), String>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != found {
            match &found {
                Ok(()) => tracing::info!("the API server trusts the certificate that is served"),
                Err(why) => tracing::warn!("not ready: {why}"),
            }
            *known = found;
        }
    }
}

/// Compares what is served with what is published until `shutdown`. What cannot be read changes nothing.
pub async fn watch(
    client: Client,
    configuration: String,
    certificate: Certificate,
    trust: Trust,
    shutdown: CancellationToken,
) {
    loop {
        match Published::read(&client, &configuration).await {
            Ok(published) => trust.set(published.trusts(&certificate.chain(), Timestamp::now())),
            Err(error) => tracing::warn!(%error, "the webhook configurations cannot be read"),
        }
        let [trusted, untrusted] = EVERY;
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = time::sleep(if trust.get().is_ok() { trusted } else { untrusted }) => {}
        }
    }
}
