//! What is read of a certificate.

use std::sync::Arc;

use jiff::Timestamp;
use rustls::{
    Error, RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use x509_parser::{
    certificate::X509Certificate, error::X509Error, extensions::GeneralName, nom, prelude::FromDer as _,
};

/// When a certificate may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Validity {
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

/// Bytes that are no certificate.
#[derive(Debug, thiserror::Error)]
#[error("not a certificate: {0}")]
pub(crate) struct NotX509(pub(super) String);

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, NotX509> {
    let parsed: Result<_, nom::Err<X509Error>> = X509Certificate::from_der(certificate.as_ref());
    parsed
        .map(|(_, certificate)| certificate)
        .map_err(|error| NotX509(error.to_string()))
}

impl Validity {
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, NotX509> {
        let parsed = parse(certificate)?;
        let validity = parsed.validity();
        let moment = |seconds| Timestamp::from_second(seconds).map_err(|error| NotX509(error.to_string()));
        Ok(Self {
            not_before: moment(validity.not_before.timestamp())?,
            not_after: moment(validity.not_after.timestamp())?,
        })
    }
}

/// The common names and DNS names of a certificate.
pub(super) fn names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = parse(certificate) else {
        return Vec::new();
    };
    let common = parsed
        .subject()
        .iter_common_name()
        .filter_map(|name| name.as_str().ok());
    let mut names: Vec<String> = common.map(str::to_owned).collect();
    if let Ok(Some(alternative)) = parsed.subject_alternative_name() {
        names.extend(alternative.value.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            _ => None,
        }));
    }
    names
}

/// Whether a client that trusts these CAs takes the chain for a server of this name.
pub(super) fn verify(
    chain: &[CertificateDer<'_>],
    cas: Vec<CertificateDer<'_>>,
    name: &ServerName<'_>,
    now: Timestamp,
) -> Result<(), Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(cas);
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::new(ring::default_provider()))
        .build()
        .map_err(|error| Error::General(error.to_string()))?;
    let (leaf, intermediates) = chain.split_first().ok_or(Error::NoCertificatesPresented)?;
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    verifier
        .verify_server_cert(leaf, intermediates, name, &[], now)
        .map(drop)
}
