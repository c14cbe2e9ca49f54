//! A CA of one's own and the serving certificate that it signed: what has to be done when. No I/O, and time comes in.
//!
//! A serving certificate is replaced at two thirds of its life. So is a CA, in two steps: first the next one is announced
//! beside it, so that both are published in `caBundle`; only when that has been so everywhere for a while does the next one
//! take over and sign a serving certificate. No client ever meets a certificate of a CA that it has not been told of.

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

use super::x509::{self, Validity};

/// Certificates are valid a little before they are made: other clocks are not ours.
const BACKDATED: Duration = Duration::from_secs(3600);

/// How long certificates live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetimes {
    /// A CA.
    pub ca: Duration,
    /// A serving certificate; one ends with its CA at the latest.
    pub serving: Duration,
}

impl Lifetimes {
    /// How often to look whether something has to be done.
    #[must_use]
    pub fn look_every(&self) -> Duration {
        (self.serving.min(self.ca) / 20).clamp(Duration::from_millis(500), Duration::from_secs(10))
    }

    /// How long a CA has to be published before a certificate of it is served: API servers follow a change of the
    /// configuration by a watch.
    #[must_use]
    pub fn settle(&self) -> Duration {
        (self.ca / 12).min(Duration::from_secs(30))
    }
}

/// A certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// What the Secret holds.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The CA that signs.
    pub ca: Pair,
    /// The CA that is announced.
    pub next: Option<Pair>,
    /// The serving certificate.
    pub serving: Pair,
}

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MaterialError {
    /// The Secret holds something else.
    #[error("the Secret's {key} {why}: delete the Secret to have it made anew")]
    Content {
        /// The key of the Secret.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Make(#[from] rcgen::Error),
}

const KEYS: [(&str, &str); 3] = [
    ("ca.crt", "ca.key"),
    ("next-ca.crt", "next-ca.key"),
    ("tls.crt", "tls.key"),
];

impl Material {
    /// What a Secret holds.
    ///
    /// # Errors
    /// Something is missing, or is no certificate.
    pub fn read(data: &BTreeMap<String, ByteString>) -> Result<Self, MaterialError> {
        let text = |key: &'static str| {
            let bytes = data.get(key).filter(|bytes| !bytes.0.is_empty())?;
            Some(String::from_utf8_lossy(&bytes.0).into_owned())
        };
        let [ca, next, serving] = KEYS;
        let pair = |(certificate, key): (&'static str, &'static str)| {
            let missing = |key| MaterialError::Content {
                key,
                why: "is missing".to_owned(),
            };
            let pair = Pair {
                certificate: text(certificate).ok_or_else(|| missing(certificate))?,
                key: text(key).ok_or_else(|| missing(key))?,
            };
            let unreadable = |key, why: String| MaterialError::Content { key, why };
            pair.validity()
                .map_err(|error| unreadable(certificate, error.to_string()))?;
            KeyPair::from_pem(&pair.key).map_err(|error| unreadable(key, error.to_string()))?;
            Ok::<_, MaterialError>(pair)
        };
        Ok(Self {
            ca: pair(ca)?,
            next: text(next.0).is_some().then(|| pair(next)).transpose()?,
            serving: pair(serving)?,
        })
    }

    /// As a Secret holds it.
    #[must_use]
    pub fn write(&self) -> BTreeMap<String, ByteString> {
        let [ca, next, serving] = KEYS;
        let pairs = [
            (ca, Some(&self.ca)),
            (next, self.next.as_ref()),
            (serving, Some(&self.serving)),
        ];
        let mut data = BTreeMap::new();
        for ((certificate, key), pair) in pairs {
            let Some(pair) = pair else { continue };
            data.insert(
                certificate.to_owned(),
                ByteString(pair.certificate.clone().into_bytes()),
            );
            data.insert(key.to_owned(), ByteString(pair.key.clone().into_bytes()));
        }
        data
    }

    /// A CA, and a certificate of it.
    ///
    /// # Errors
    /// A name is none, or there is no randomness.
    pub fn new(names: &[String], lifetimes: &Lifetimes, now: Timestamp) -> Result<Self, MaterialError> {
        let ca = Pair::ca(lifetimes, now)?;
        Ok(Self {
            serving: ca.sign(names, lifetimes, now)?,
            ca,
            next: None,
        })
    }

    /// What has to change at `now`. `settled`: the announced CA has been published for long enough.
    ///
    /// # Errors
    /// A certificate could not be made.
    pub fn step(
        &self,
        names: &[String],
        lifetimes: &Lifetimes,
        now: Timestamp,
        settled: bool,
    ) -> Result<Option<Self>, MaterialError> {
        if let Some(next) = self.next.as_ref().filter(|_| settled) {
            return Ok(Some(Self {
                ca: next.clone(),
                next: None,
                serving: next.sign(names, lifetimes, now)?,
            }));
        }
        let mut changed = self.clone();
        if self.next.is_none() && self.ca.is_due(now) {
            changed.next = Some(Pair::ca(lifetimes, now)?);
        }
        if self.serving.is_due(now) || !self.serving.is_of(&self.ca, names, now) {
            changed.serving = self.ca.sign(names, lifetimes, now)?;
        }
        Ok((changed != *self).then_some(changed))
    }

    /// The CAs to publish.
    pub(super) fn cas(&self) -> impl Iterator<Item = CertificateDer<'static>> {
        let all = std::iter::once(&self.ca).chain(&self.next);
        all.filter_map(|pair| pair.der().ok())
    }
}

impl Pair {
    fn ca(lifetimes: &Lifetimes, now: Timestamp) -> Result<Self, MaterialError> {
        // Two CAs of one name are told apart by their keys alone, which some clients are bad at.
        let mut params = valid(CertificateParams::new(Vec::new())?, now, lifetimes.ca);
        params
            .distinguished_name
            .push(DnType::CommonName, format!("pausegen-ca {now:.0}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.self_signed(&key)?.pem(),
            key: key.serialize_pem(),
        })
    }

    fn sign(&self, names: &[String], lifetimes: &Lifetimes, now: Timestamp) -> Result<Self, MaterialError> {
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?;
        let left = self.validity().ok().and_then(|ca| between(now, ca.not_after));
        let life = lifetimes.serving.min(left.unwrap_or_default());
        let mut params = valid(CertificateParams::new(names.to_vec())?, now, life);
        params.distinguished_name.push(DnType::CommonName, "pausegen");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok(Self {
            certificate: params.signed_by(&key, &issuer)?.pem(),
            key: key.serialize_pem(),
        })
    }

    pub(super) fn der(&self) -> Result<CertificateDer<'static>, x509::NotX509> {
        CertificateDer::from_pem_slice(self.certificate.as_bytes()).map_err(|error| x509::NotX509(error.to_string()))
    }

    pub(super) fn validity(&self) -> Result<Validity, x509::NotX509> {
        Validity::of(&self.der()?)
    }

    /// Two thirds of its life are over.
    fn is_due(&self, now: Timestamp) -> bool {
        let Ok(Validity { not_before, not_after }) = self.validity() else {
            return true;
        };
        let made = not_before + BACKDATED;
        let life = between(made, not_after).unwrap_or_default();
        between(now, not_after).is_none_or(|left| left <= life / 3)
    }

    /// A client that trusts the CA takes it for a server of each of these names.
    fn is_of(&self, ca: &Self, names: &[String], now: Timestamp) -> bool {
        let (Ok(leaf), Ok(ca)) = (self.der(), ca.der()) else {
            return false;
        };
        names.iter().all(|name| {
            rustls::pki_types::ServerName::try_from(name.as_str())
                .is_ok_and(|name| x509::verify(std::slice::from_ref(&leaf), vec![ca.clone()], &name, now).is_ok())
        })
    }
}

fn between(from: Timestamp, to: Timestamp) -> Option<Duration> {
    Duration::try_from(to.duration_since(from)).ok()
}

fn valid(mut params: CertificateParams, now: Timestamp, life: Duration) -> CertificateParams {
    params.distinguished_name = rcgen::DistinguishedName::new();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let after = |moment: Timestamp| {
        let since = moment.duration_since(Timestamp::UNIX_EPOCH).max(SignedDuration::ZERO);
        epoch + since.unsigned_abs()
    };
    params.not_before = after(now - BACKDATED);
    params.not_after = after(now) + life;
    params
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIMES: Lifetimes = Lifetimes {
        ca: Duration::from_secs(365 * 86_400),
        serving: Duration::from_secs(90 * 86_400),
    };

    fn at(days: u64) -> Timestamp {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        start + Duration::from_secs(days * 86_400)
    }

    fn names() -> Vec<String> {
        vec!["pausegen.pausegen-system.svc".to_owned(), "127.0.0.1".to_owned()]
    }

    fn trusts(published: &Material, serving: &Pair, now: Timestamp) -> bool {
        names().iter().all(|name| {
            let name = rustls::pki_types::ServerName::try_from(name.as_str()).unwrap();
            x509::verify(&[serving.der().unwrap()], published.cas().collect(), &name, now).is_ok()
        })
    }

    #[test]
    fn everything_is_replaced_at_two_thirds_of_its_life_and_never_before_its_ca_is_known() {
        let mut material = Material::new(&names(), &LIFETIMES, at(0)).unwrap();
        let mut published = material.clone();
        let (mut renewed, mut announced, mut promoted) = (Vec::new(), Vec::new(), Vec::new());
        for day in 0..730 {
            let now = at(day);
            assert!(trusts(&published, &material.serving, now), "day {day}");
            // What is announced is published a day later.
            let settled = material.next.is_some() && published.next == material.next;
            published = material.clone();
            if let Some(next) = material.step(&names(), &LIFETIMES, now, settled).unwrap() {
                if next.ca != material.ca {
                    promoted.push(day);
                } else if next.next != material.next {
                    announced.push(day);
                } else {
                    renewed.push(day);
                }
                assert!(trusts(&published, &next.serving, now), "day {day}");
                material = Material::read(&next.write()).unwrap_or_else(|error| panic!("{error}"));
                assert!(material == next);
            }
        }
        assert_eq!(renewed.first(), Some(&60));
        assert_eq!(announced.first(), Some(&244), "two thirds of 365 days");
        assert_eq!(promoted.len(), announced.len());
        assert!(
            promoted
                .iter()
                .zip(&announced)
                .all(|(promoted, announced)| promoted > announced)
        );
    }

    #[test]
    fn another_name_and_another_ca_make_another_certificate() {
        let material = Material::new(&names(), &LIFETIMES, at(0)).unwrap();
        assert!(material.step(&names(), &LIFETIMES, at(1), true).unwrap().is_none());
        let other = vec!["other.pausegen-system.svc".to_owned()];
        let renamed = material.step(&other, &LIFETIMES, at(1), false).unwrap().unwrap();
        assert!(renamed.ca == material.ca && renamed.serving != material.serving);
        let mut mixed = material.clone();
        mixed.ca = Material::new(&names(), &LIFETIMES, at(0)).unwrap().ca;
        assert!(mixed.step(&names(), &LIFETIMES, at(1), false).unwrap().is_some());
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_told() {
        let material = Material::new(&names(), &LIFETIMES, at(0)).unwrap();
        for key in ["ca.crt", "ca.key", "tls.crt", "tls.key"] {
            let mut data = material.write();
            data.remove(key);
            assert!(Material::read(&data).err().unwrap().to_string().contains(key));
            data.insert(key.to_owned(), ByteString(b"rubbish".to_vec()));
            assert!(Material::read(&data).err().unwrap().to_string().contains(key));
        }
    }
}
