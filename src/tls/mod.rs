//! CA and serving certificates.
//!
//! [`Certificate`] is what a server serves: it can be replaced while connections stand. [`watch_files`] replaces it
//! when its files change. [`generate()`] makes a CA and a certificate of its own for the sandbox, the demo and tests.

mod files;
mod generate;

use std::{fmt, sync::Arc};

use axum_server::tls_rustls::RustlsConfig;
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

pub use files::{FileError, Files, RELOAD_EVERY, watch_files};
pub use generate::{GenerateError, Generated, generate};

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
}

/// The certificate that a server serves. Clones share it.
#[derive(Clone)]
pub struct Certificate(RustlsConfig);

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate")
    }
}

impl Certificate {
    /// A certificate chain and its key, both PEM.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together.
    pub fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, CertificateError> {
        Ok(Self(RustlsConfig::from_config(Arc::new(server_config(
            certificate,
            key,
        )?))))
    }

    /// Serves these from the next connection on.
    ///
    /// # Errors
    /// They are not PEM, or do not belong together (a file was read before the other was written): what was served
    /// before still is.
    pub fn replace(&self, certificate: &[u8], key: &[u8]) -> Result<(), CertificateError> {
        self.0.reload_from_config(Arc::new(server_config(certificate, key)?));
        Ok(())
    }

    /// As axum-server takes it.
    #[must_use]
    pub fn config(&self) -> RustlsConfig {
        self.0.clone()
    }
}

/// TLS 1.2 or later. ALPN offers `http/1.1` alone: that is what the API server's webhook client speaks.
fn server_config(certificate: &[u8], key: &[u8]) -> Result<ServerConfig, CertificateError> {
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(CertificateError::Certificate)?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(CertificateError::Key)?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(CertificateError::Pair)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(CertificateError::Pair)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
