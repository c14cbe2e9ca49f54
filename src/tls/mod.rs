//! CA and serving certificates.
//!
//! - [`Certificate`] is what a server serves: it can be replaced while connections stand.
//! - [`watch_files`] replaces it when its files change.
//! - [`own`] makes it from a CA of its own, in a Secret, and replaces both in time; [`material`] is what has to be done when.
//! - [`published`] compares it with what the API server trusts.
//! - [`generate()`] makes a CA and a certificate for the sandbox, the demo and tests.

mod clients;
mod files;
mod generate;
pub mod material;
mod metrics;
pub mod own;
pub mod published;
mod x509;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use rustls::{
    ServerConfig, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    version,
};
use tokio_rustls::TlsAcceptor;

pub use clients::{ClientError, Clients};
pub use files::{FileError, Files, RELOAD_EVERY, watch_files};
pub use generate::{GenerateError, Generated, generate};
pub use metrics::Metrics;
pub(crate) use x509::Validity;

/// Why a certificate cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CertificateError {
    /// The certificate is not PEM.
    #[error("the certificate is not PEM: {0}")]
    Certificate(#[source] pem::Error),
    /// There is no certificate in it.
    #[error("there is no CERTIFICATE block in the certificate's PEM")]
    NoCertificate,
    /// The key is not a private key in PEM.
    #[error("the private key is not PEM (PKCS#8, PKCS#1 or SEC1): {0}")]
    Key(#[source] pem::Error),
    /// The two do not go together, or rustls does not know the kind of key.
    #[error("the certificate cannot be served with this private key: {0}")]
    Pair(#[source] rustls::Error),
    /// The CA of the clients cannot be used.
    #[error(transparent)]
    Clients(#[from] ClientError),
}

/// The oldest version of TLS that is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MinVersion {
    /// 1.2
    #[default]
    V12,
    /// 1.3
    V13,
}

/// How to speak TLS.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The oldest version that is spoken.
    pub min_version: MinVersion,
    /// Who may connect; `None`: anybody.
    pub clients: Option<Clients>,
}

/// The certificate that a server serves. Clones share it.
#[derive(Clone)]
pub struct Certificate {
    options: Arc<Options>,
    served: Arc<Mutex<Served>>,
}

#[derive(Clone)]
struct Served {
    chain: Vec<CertificateDer<'static>>,
    key: Arc<PrivateKeyDer<'static>>,
    /// What the file of the clients' CA held.
    clients: Option<Arc<[u8]>>,
    config: Arc<ServerConfig>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl Certificate {
    /// A certificate chain and its key, both PEM, for whoever connects.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        Self::with_options(Options::default(), certificate, key)
    }

    /// A certificate chain and its key, both PEM.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together, or the CA of the clients cannot be used.
    pub fn with_options(options: Options, certificate: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let served = Served::load(&options, certificate, key)?;
        Ok(Self {
            options: Arc::new(options),
            served: Arc::new(Mutex::new(served)),
        })
    }

    /// Serves these from the next connection on.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together (a file was read before the other was written): what was served
    /// before still is.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        let served = Served::load(&self.options, certificate, key)?;
        *self.lock() = served;
        Ok(())
    }

    /// Looks at the file of the clients' CA again.
    ///
    /// # Errors
    /// It cannot be used: the one before still is in force.
    pub fn look_at_clients(&self) -> Result<(), CertificateError> {
        let Some(clients) = &self.options.clients else {
            return Ok(());
        };
        let present: Arc<[u8]> = clients.read()?.into();
        let served = self.lock().clone();
        if served.clients.as_ref() != Some(&present) {
            let renewed = Served::of(&self.options, served.chain, served.key)?;
            *self.lock() = renewed;
            tracing::info!("the CA of the clients is another one");
        }
        Ok(())
    }

    /// Speaks TLS with the certificate of this moment.
    #[must_use]
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(Arc::clone(&self.lock().config))
    }

    /// The chain that is served, leaf first.
    #[must_use]
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        self.lock().chain.clone()
    }

    /// When the certificate that is served expires.
    #[must_use]
    pub fn not_after(&self) -> Option<Timestamp> {
        let served = self.lock();
        let leaf = served.chain.first()?;
        x509::Validity::of(leaf).ok().map(|validity| validity.not_after)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Served {
    fn load(options: &Options, certificate: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        let chain = certificates(certificate).map_err(CertificateError::Certificate)?;
        if chain.is_empty() {
            return Err(CertificateError::NoCertificate);
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::Key)?;
        Self::of(options, chain, Arc::new(key))
    }

    fn of(
        options: &Options,
        chain: Vec<CertificateDer<'static>>,
        key: Arc<PrivateKeyDer<'static>>,
    ) -> Result<Self, CertificateError> {
        const SINCE_12: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];
        const SINCE_13: &[&SupportedProtocolVersion] = &[&version::TLS13];
        let versions = match options.min_version {
            MinVersion::V12 => SINCE_12,
            MinVersion::V13 => SINCE_13,
        };
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .map_err(CertificateError::Pair)?;
        let mut read = None;
        let builder = match &options.clients {
            None => builder.with_no_client_auth(),
            Some(clients) => {
                let pem = clients.read()?;
                let verifier = clients.verifier(&pem)?;
                read = Some(pem.into());
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(CertificateError::Pair)?;
        // That is what the API server's webhook client speaks.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self {
            chain,
            key,
            clients: read,
            config: Arc::new(config),
        })
    }
}

/// The certificates in a PEM.
pub(crate) fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}
