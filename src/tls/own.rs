//! The source `self`: a CA of its own in a Secret, which all replicas share.
//!
//! Every replica does the same round. Each write names the resourceVersion that it rests on, so that one of them makes a
//! change and the others find it made. What is published is only ever added to: a CA leaves `caBundle` when it has expired.

use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{MutatingWebhookConfiguration, ValidatingWebhookConfiguration},
    core::v1::Secret,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
};
use rustls::pki_types::CertificateDer;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{self, Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::{
    Certificate, CertificateError, Metrics, Options,
    material::{Lifetimes, Material, MaterialError},
    published::{Configuration, Published, Trust},
    x509::Validity,
};

/// What has a CA of its own.
#[derive(Debug, Clone)]
pub struct Own {
    /// The namespace of the Secret.
    pub namespace: String,
    /// The Secret.
    pub secret: String,
    /// The webhook configurations, mutating and validating, that are told of the CA.
    pub configuration: String,
    /// The names of the serving certificate.
    pub names: Vec<String>,
    /// How long certificates live.
    pub lifetimes: Lifetimes,
}

/// Why a round could not be finished.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OwnError {
    /// There is no certificate.
    #[error(transparent)]
    Material(#[from] MaterialError),
    /// It cannot be served.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// The API server refuses.
    #[error("{what}")]
    Api {
        /// What was asked.
        what: &'static str,
        /// Why it refuses.
        source: Box<kube::Error>,
    },
    /// Another replica was faster.
    #[error("another replica has just changed the Secret or a webhook configuration")]
    Outdated,
}

fn refused(what: &'static str) -> impl Fn(kube::Error) -> OwnError {
    move |error| match &error {
        kube::Error::Api(status) if status.code == 409 => OwnError::Outdated,
        _ => OwnError::Api {
            what,
            source: Box::new(error),
        },
    }
}

/// When a set of CAs was first seen to be published everywhere.
#[derive(Debug, Default)]
struct Since(Option<(Vec<CertificateDer<'static>>, Instant)>);

impl Since {
    /// How long `wanted` has been so, if it is.
    fn note(&mut self, now: Instant, wanted: Vec<CertificateDer<'static>>, is_so: bool) -> Option<Duration> {
        if !is_so {
            self.0 = None;
            return None;
        }
        match &self.0 {
            Some((known, since)) if *known == wanted => Some(now.duration_since(*since)),
            _ => {
                self.0 = Some((wanted, now));
                Some(Duration::ZERO)
            }
        }
    }
}

/// Keeps certificate, Secret and `caBundle` in step.
pub struct Keeper {
    client: Client,
    own: Own,
    certificate: Certificate,
    trust: Trust,
    metrics: Metrics,
    served: Option<Material>,
    announced: Since,
    renewed: Since,
}

impl Keeper {
    /// A certificate to begin with, which nobody trusts yet, and who replaces it.
    ///
    /// # Errors
    /// A name is none, or the CA of the clients cannot be used.
    pub fn new(
        client: Client,
        own: Own,
        options: Options,
        trust: Trust,
        metrics: Metrics,
    ) -> Result<(Self, Certificate), OwnError> {
        let first = Material::new(&own.names, &own.lifetimes, Timestamp::now())?.serving;
        let certificate = Certificate::with_options(options, first.certificate.as_bytes(), first.key.as_bytes())?;
        let keeper = Self {
            client,
            own,
            certificate: certificate.clone(),
            trust,
            metrics,
            served: None,
            announced: Since::default(),
            renewed: Since::default(),
        };
        Ok((keeper, certificate))
    }

    /// Looks after everything until `shutdown`. What cannot be done is logged and tried again.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut failed = None;
        loop {
            let round = tokio::select! {
                () = shutdown.cancelled() => return,
                round = self.round() => round,
            };
            let every = self.own.lifetimes.look_every();
            let pause = match round {
                // There may be more to do.
                Ok(true) | Err(OwnError::Outdated) => Duration::from_millis(200),
                Ok(false) => every,
                Err(error) => {
                    let message = crate::chain(&error);
                    if failed.as_ref() != Some(&message) {
                        tracing::warn!(error = message, "the certificates cannot be looked after");
                        failed = Some(message);
                    }
                    every.min(Duration::from_secs(2))
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = time::sleep(pause) => {}
            }
        }
    }

    /// One look at everything. Returns whether something was changed.
    async fn round(&mut self) -> Result<bool, OwnError> {
        let now = Timestamp::now();
        self.certificate.look_at_clients()?;
        // The configurations first: who has changed the Secret since then changes them next, and our write fails.
        let published = Published::read(&self.client, &self.own.configuration)
            .await
            .map_err(refused("the webhook configurations cannot be read"))?;
        let (material, made) = self.material(&published, now).await?;
        self.metrics
            .ca_expires(material.ca.validity().ok().map(|validity| validity.not_after));
        let told = self.publish(&published, &material, now).await?;
        let served = self.serve(&published, material, now)?;
        self.trust.set(published.trusts(&self.certificate.chain(), now));
        Ok(made || told || served)
    }

    /// What the Secret holds, and whether this process has written that just now.
    async fn material(&mut self, published: &Published, now: Timestamp) -> Result<(Material, bool), OwnError> {
        let Own {
            namespace,
            secret: name,
            names,
            lifetimes,
            ..
        } = &self.own;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let found = api
            .get_opt(name)
            .await
            .map_err(refused("the Secret of the certificates cannot be read"))?;
        let params = PostParams::default();
        let Some(found) = found else {
            let made = Material::new(names, lifetimes, now)?;
            let secret = Secret {
                metadata: ObjectMeta {
                    name: Some(name.clone()),
                    labels: Some([("app.kubernetes.io/name".to_owned(), "pausegen".to_owned())].into()),
                    ..ObjectMeta::default()
                },
                type_: Some("kubernetes.io/tls".to_owned()),
                data: Some(made.write()),
                ..Secret::default()
            };
            api.create(&params, &secret)
                .await
                .map_err(refused("the Secret of the certificates cannot be created"))?;
            tracing::info!(secret = name, "a CA and a serving certificate are made");
            return Ok((made, true));
        };
        let material = Material::read(found.data.as_ref().unwrap_or(&Default::default()))?;
        let next: Vec<_> = material.next.iter().filter_map(|next| next.der().ok()).collect();
        let everywhere = !next.is_empty()
            && published.webhooks().all(|webhook| {
                let cas = webhook.cas();
                next.iter().all(|ca| cas.contains(ca))
            });
        let since = self.announced.note(Instant::now(), next, everywhere);
        let settled = since.is_some_and(|since| since >= lifetimes.settle());
        let Some(changed) = material.step(names, lifetimes, now, settled)? else {
            return Ok((material, false));
        };
        let secret = Secret {
            data: Some(changed.write()),
            ..found
        };
        api.replace(name, &params, &secret)
            .await
            .map_err(refused("the Secret of the certificates cannot be written"))?;
        if changed.ca != material.ca {
            tracing::info!(secret = name, "the next CA takes over, with a new serving certificate");
        } else if changed.next != material.next {
            tracing::info!(secret = name, "the next CA is announced");
        } else {
            tracing::info!(secret = name, "the serving certificate is renewed");
        }
        Ok((changed, true))
    }

    /// Tells both configurations of our CAs. Returns whether one had to be told.
    async fn publish(&self, published: &Published, material: &Material, now: Timestamp) -> Result<bool, OwnError> {
        let name = &self.own.configuration;
        let ours: Vec<_> = material.cas().collect();
        let mut told = false;
        if let Some(patch) = published.mutating.as_ref().and_then(|found| bundles(found, &ours, now)) {
            patch_webhooks::<MutatingWebhookConfiguration>(&self.client, name, &patch).await?;
            told = true;
        }
        if let Some(patch) = published
            .validating
            .as_ref()
            .and_then(|found| bundles(found, &ours, now))
        {
            patch_webhooks::<ValidatingWebhookConfiguration>(&self.client, name, &patch).await?;
            told = true;
        }
        if told {
            tracing::info!(name, cas = ours.len(), "the webhook configurations are told of our CAs");
        }
        Ok(told)
    }

    /// Serves what the Secret holds, as soon as it is trusted, or what is served is not. Returns whether it does from now on.
    fn serve(&mut self, published: &Published, material: Material, now: Timestamp) -> Result<bool, OwnError> {
        let serving = |material: &Material| material.serving.clone();
        if self.served.as_ref().map(serving) == Some(serving(&material)) {
            return Ok(false);
        }
        let chain: Vec<_> = material.serving.der().ok().into_iter().collect();
        let is_trusted = published.trusts(&chain, now).is_ok();
        let since = self.renewed.note(Instant::now(), chain, is_trusted);
        let has_nothing_to_lose = self.served.is_none() || published.trusts(&self.certificate.chain(), now).is_err();
        // A certificate of a CA that has been there all along need not wait; how long it has been there is not known.
        let same_ca = self.served.as_ref().is_some_and(|served| served.ca == material.ca);
        let settled = since.is_some_and(|since| same_ca || since >= self.own.lifetimes.settle());
        if !settled && !has_nothing_to_lose {
            return Ok(false);
        }
        self.certificate
            .replace(material.serving.certificate.as_bytes(), material.serving.key.as_bytes())?;
        let not_after = material
            .serving
            .validity()
            .ok()
            .map(|validity| validity.not_after.to_string());
        tracing::info!(not_after, "serving a new certificate");
        self.served = Some(material);
        Ok(true)
    }
}

/// A patch that gives every webhook all CAs: ours, and those that it has and that have not expired. `None`: they have them.
fn bundles(
    configuration: &Configuration,
    ours: &[CertificateDer<'static>],
    now: Timestamp,
) -> Option<serde_json::Value> {
    let mut changed = false;
    let webhooks: Vec<_> = configuration
        .webhooks
        .iter()
        .map(|webhook| {
            let present = webhook.cas();
            let is_valid =
                |ca: &&CertificateDer<'static>| Validity::of(ca).is_ok_and(|validity| validity.not_after > now);
            let mut wanted: Vec<_> = ours.to_vec();
            for other in present.iter().filter(is_valid) {
                if !wanted.contains(other) {
                    wanted.push(other.clone());
                }
            }
            let is_same = wanted.len() == present.len() && wanted.iter().all(|ca| present.contains(ca));
            changed |= !is_same;
            let pem: String = wanted.iter().map(pem).collect();
            json!({ "name": webhook.name, "clientConfig": { "caBundle": k8s_openapi::ByteString(pem.into_bytes()) } })
        })
        .collect();
    changed.then(|| {
        json!({
            "metadata": { "resourceVersion": configuration.resource_version },
            "webhooks": webhooks,
        })
    })
}

fn pem(certificate: &CertificateDer<'static>) -> String {
    let config = pem::EncodeConfig::new().set_line_ending(pem::LineEnding::LF);
    pem::encode_config(&pem::Pem::new("CERTIFICATE", certificate.as_ref()), config)
}

async fn patch_webhooks<K>(client: &Client, name: &str, patch: &serde_json::Value) -> Result<(), OwnError>
where
    K: kube::Resource<Scope = k8s_openapi::ClusterResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
    K::DynamicType: Default,
{
    let params = PatchParams {
        field_manager: Some("pausegen".to_owned()),
        ..PatchParams::default()
    };
    // By the names of the webhooks, so that nothing else of them is touched.
    let api: Api<K> = Api::all(client.clone());
    match api.patch(name, &params, &Patch::Strategic(patch)).await {
        Ok(_) => Ok(()),
        Err(error) => Err(refused("a webhook configuration cannot be told of our CAs")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::published::Webhook;

    const LIFETIMES: Lifetimes = Lifetimes {
        ca: Duration::from_secs(3600),
        serving: Duration::from_secs(600),
    };

    fn configuration(bundle: &[u8]) -> Configuration {
        let config = serde_json::from_value(json!({
            "url": "https://127.0.0.1:1/mutate", "caBundle": k8s_openapi::ByteString(bundle.to_vec()),
        }));
        Configuration {
            resource_version: Some("7".to_owned()),
            webhooks: vec![Webhook::of("flip.pausegen.io".to_owned(), config.unwrap())],
        }
    }

    fn bundle(patch: &serde_json::Value) -> Vec<u8> {
        let bundle = &patch["webhooks"][0]["clientConfig"]["caBundle"];
        serde_json::from_value::<k8s_openapi::ByteString>(bundle.clone())
            .unwrap()
            .0
    }

    #[test]
    fn a_ca_is_added_and_leaves_when_it_has_expired() {
        let now = Timestamp::now();
        let names = ["127.0.0.1".to_owned()];
        let made = |at| Material::new(&names, &LIFETIMES, at).unwrap();
        let (old, new) = (made(now - Duration::from_secs(3000)), made(now));
        let cas = |material: &Material| material.cas().collect::<Vec<_>>();
        let first = bundle(&bundles(&configuration(b""), &cas(&old), now).unwrap());
        assert!(bundles(&configuration(&first), &cas(&old), now).is_none());
        let patch = bundles(&configuration(&first), &cas(&new), now).unwrap();
        assert_eq!(patch["metadata"]["resourceVersion"], "7");
        let both = configuration(&bundle(&patch));
        assert_eq!(
            both.webhooks[0].cas().len(),
            2,
            "the old one stays until it has expired"
        );
        assert!(bundles(&both, &cas(&new), now).is_none());
        let later = now + Duration::from_secs(900);
        let alone = configuration(&bundle(&bundles(&both, &cas(&new), later).unwrap()));
        assert_eq!(alone.webhooks[0].cas(), cas(&new));
    }

    #[test]
    fn the_time_that_something_is_published_begins_anew_with_each_gap() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut since = Since::default();
        assert_eq!(since.note(at(0), Vec::new(), false), None);
        assert_eq!(since.note(at(1), Vec::new(), true), Some(Duration::ZERO));
        assert_eq!(since.note(at(5), Vec::new(), true), Some(Duration::from_secs(4)));
        assert_eq!(since.note(at(6), Vec::new(), false), None);
        assert_eq!(since.note(at(7), Vec::new(), true), Some(Duration::ZERO));
        let other = vec![CertificateDer::from(vec![1])];
        assert_eq!(since.note(at(9), other, true), Some(Duration::ZERO));
    }
}
