//! The certificates of a sandbox: one authority signs them all.

use std::net::{IpAddr, Ipv4Addr};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use super::Error;

/// A certificate and its key, as PEM.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certificate: String,
    pub(super) key: String,
}

/// A certificate authority that lives as long as its sandbox.
#[derive(Debug)]
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    pub(super) fn new() -> Result<Self, Error> {
        let failed = failed("the sandbox's authority");
        let key = KeyPair::generate().map_err(&failed)?;
        let mut params = params("pausegen-sandbox", Vec::new()).map_err(&failed)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let pem = params.self_signed(&key).map_err(&failed)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            pem,
        })
    }

    /// The authority's own certificate.
    pub(super) fn pem(&self) -> &str {
        &self.pem
    }

    /// A certificate for a server on this machine.
    pub(super) fn server(&self, name: &str) -> Result<Pair, Error> {
        let failed = failed(name);
        let names = [
            "localhost",
            "kubernetes",
            "kubernetes.default",
            "kubernetes.default.svc",
        ];
        let mut params = params(name, names.map(String::from).to_vec()).map_err(&failed)?;
        for address in [Ipv4Addr::LOCALHOST, Ipv4Addr::new(10, 0, 0, 1)] {
            params.subject_alt_names.push(SanType::IpAddress(IpAddr::V4(address)));
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params).map_err(&failed)
    }

    /// A client certificate: Kubernetes takes the common name for the user and the organizations for the groups.
    pub(super) fn client(&self, user: &str, groups: &[&str]) -> Result<Pair, Error> {
        let failed = failed(user);
        let mut params = params(user, Vec::new()).map_err(&failed)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        // A name holds one value per type; the second type is the first one's number.
        let mut types = [DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])].into_iter();
        for group in groups {
            let kind = types
                .next()
                .ok_or_else(|| Error::TooManyGroups { user: user.to_owned() })?;
            params.distinguished_name.push(kind, *group);
        }
        self.sign(&params).map_err(&failed)
    }

    fn sign(&self, params: &CertificateParams) -> Result<Pair, rcgen::Error> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(Pair {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

/// A key pair for service account tokens, as PEM: the private and the public key.
pub(super) fn service_account_keys() -> Result<(String, String), Error> {
    let key = KeyPair::generate().map_err(failed("service accounts"))?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}

fn params(name: &str, alt_names: Vec<String>) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(alt_names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}

fn failed(name: &str) -> impl Fn(rcgen::Error) -> Error {
    move |source| Error::Certificate {
        name: name.to_owned(),
        source,
    }
}
