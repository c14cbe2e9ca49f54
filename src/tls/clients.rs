//! Who may connect: clients with a certificate of one CA, by name.
//!
//! The API server has such a certificate where its admission configuration gives it a kubeconfig for the webhook.

use std::{collections::BTreeSet, fmt, io, path::PathBuf, sync::Arc};

use rustls::{
    CertificateError as Refused, DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::ring,
    pki_types::{CertificateDer, UnixTime, pem},
    server::{
        VerifierBuilderError, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};

use super::{certificates, x509};

/// Who may connect.
#[derive(Debug, Clone)]
pub struct Clients {
    /// The CA of their certificates, PEM.
    pub ca: PathBuf,
    /// The common names and DNS names that their certificates may have; empty: any.
    pub names: BTreeSet<String>,
}

/// Why the CA of the clients cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// It cannot be read.
    #[error("cannot read the CA of the clients, {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is not PEM.
    #[error("the CA of the clients, {path}, is not PEM: {source}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: pem::Error,
    },
    /// It is no CA.
    #[error("no certificate of {path} can be the CA of clients: {source}")]
    Verifier {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: VerifierBuilderError,
    },
}

impl Clients {
    /// Whether the CA can be used.
    ///
    /// # Errors
    /// It cannot.
    pub fn check(&self) -> Result<(), ClientError> {
        self.verifier(&self.read()?).map(drop)
    }

    pub(super) fn read(&self) -> Result<Vec<u8>, ClientError> {
        std::fs::read(&self.ca).map_err(|source| ClientError::Read {
            path: self.ca.clone(),
            source,
        })
    }

    pub(super) fn verifier(&self, pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, ClientError> {
        let found = certificates(pem).map_err(|source| ClientError::Pem {
            path: self.ca.clone(),
            source,
        })?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(found);
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
            .build()
            .map_err(|source| ClientError::Verifier {
                path: self.ca.clone(),
                source,
            })?;
        Ok(Arc::new(Named {
            inner,
            names: self.names.clone(),
        }))
    }
}

/// Verifies certificates, and then their names.
struct Named {
    inner: Arc<dyn ClientCertVerifier>,
    names: BTreeSet<String>,
}

impl fmt::Debug for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl ClientCertVerifier for Named {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        let is_named = || x509::names(end_entity).iter().any(|name| self.names.contains(name));
        if self.names.is_empty() || is_named() {
            Ok(verified)
        } else {
            Err(Error::InvalidCertificate(Refused::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
