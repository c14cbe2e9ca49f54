//! Where the serving certificate comes from, and who looks after it.

use tokio_util::sync::CancellationToken;

use super::{
    ServeError, Tasks,
    args::{AdmissionArgs, ClusterArgs, TlsSource},
};
use crate::{
    admission::ops::Ops,
    tls::{
        self, Certificate, Metrics,
        own::Keeper,
        published::{self, Trust},
    },
};

/// What the certificate is made of.
pub(super) struct Source<'a> {
    pub(super) args: &'a AdmissionArgs,
    pub(super) namespace: String,
    pub(super) configuration: String,
    pub(super) client: &'a ClusterArgs,
    pub(super) has_companion: bool,
    pub(super) metrics: Metrics,
}

impl Source<'_> {
    /// The certificate, which is looked after until `stop`. Not ready until the API server trusts it, where that can be
    /// found out: with files and without a companion no cluster is needed.
    pub(super) async fn start(
        self,
        tasks: &mut Tasks,
        ops: &Ops,
        stop: &CancellationToken,
    ) -> Result<Certificate, ServeError> {
        let Self {
            args,
            namespace,
            configuration,
            client,
            has_companion,
            metrics,
        } = self;
        let options = args.tls();
        if let Some(clients) = &options.clients {
            clients.check()?;
        }
        let trust = Trust::default();
        let connect = async || {
            client.client().await.map_err(|source| ServeError::Client {
                what: "the certificate",
                source,
            })
        };
        let certificate = if args.tls_source == TlsSource::Own {
            let own = args.own(namespace, configuration)?;
            let (keeper, certificate) = Keeper::new(connect().await?, own, options, trust.clone(), metrics.clone())?;
            let stop = stop.clone();
            tasks.spawn(async move {
                keeper.run(stop).await;
                Ok("the keeper of the certificates")
            });
            certificate
        } else {
            let files = args.files()?;
            let certificate = files.load(options).await?;
            let watched = certificate.clone();
            let stopped = stop.clone().cancelled_owned();
            tasks.spawn(async move {
                tls::watch_files(watched, files, tls::RELOAD_EVERY, stopped).await;
                Ok("the watch of the certificate")
            });
            if !has_companion && args.tls_source == TlsSource::Files {
                metrics.serves(&certificate);
                return Ok(certificate);
            }
            let watch = published::watch(
                connect().await?,
                configuration,
                certificate.clone(),
                trust.clone(),
                stop.clone(),
            );
            tasks.spawn(async move {
                watch.await;
                Ok("the watch of the caBundle")
            });
            certificate
        };
        metrics.serves(&certificate);
        metrics.trusts(&trust);
        ops.require(move || trust.get());
        Ok(certificate)
    }
}
