//! A CA and a serving certificate made on the spot, for the sandbox, the demo and tests.

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A CA and a serving certificate that it signed. The CA's key is gone.
#[derive(Clone)]
pub struct Generated {
    /// The CA's certificate, PEM: what a client trusts (a webhook's `caBundle`).
    pub ca_pem: String,
    /// The serving certificate, PEM.
    pub cert_pem: String,
    /// The key of the serving certificate, PEM.
    pub key_pem: String,
}

/// A certificate could not be made.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a certificate for {names}: {source}")]
pub struct GenerateError {
    names: String,
    source: rcgen::Error,
}

/// Makes a CA and a certificate for these DNS names and IP addresses. Both never expire: not for production.
///
/// # Errors
/// A name is no DNS name, or there is no randomness.
pub fn generate(names: &[&str]) -> Result<Generated, GenerateError> {
    sign(names).map_err(|source| GenerateError {
        names: names.join(", "),
        source,
    })
}

fn sign(names: &[&str]) -> Result<Generated, rcgen::Error> {
    let mut ca = CertificateParams::new(Vec::new())?;
    ca.distinguished_name = common_name("pausegen-ca");
    ca.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let ca_key = KeyPair::generate()?;
    let ca_pem = ca.self_signed(&ca_key)?.pem();

    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut serving = CertificateParams::new(names)?;
    serving.distinguished_name = common_name("pausegen");
    serving.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    serving.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let cert_pem = serving.signed_by(&key, &Issuer::new(ca, ca_key))?.pem();
    Ok(Generated {
        ca_pem,
        cert_pem,
        key_pem: key.serialize_pem(),
    })
}

fn common_name(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::CommonName, name);
    distinguished
}
