//! The certificates: what the API server trusts, and whether that goes for what is in the Secret.

use jiff::{Timestamp, ToSpan as _};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::{Findings, Settings, Status};
use crate::tls::{self, Validity, published::Published};

const CHECK: &str = "certificates";
/// Whoever renews certificates does so earlier.
const SOON_DAYS: i64 = 14;

/// Looks at `caBundle` of every webhook of ours, and at the Secret.
pub(super) async fn check(client: &Client, settings: &Settings, findings: &mut Findings) {
    let published = match Published::read(client, &settings.webhook_configuration).await {
        Ok(published) => published,
        Err(error) => return findings.unanswered(CHECK, "what is in caBundle", &error),
    };
    let now = Timestamp::now();
    bundles(&published, now, findings);
    serving(client, settings, &published, now, findings).await;
}

/// The CAs that are published. That there is none is told with the configurations.
fn bundles(published: &Published, now: Timestamp, findings: &mut Findings) {
    let remedy = "see who publishes it: serve with certificates.source=self (its log), cert-manager's injector, or you \
                  (certs/publish.sh)";
    let mut first = None;
    for webhook in published.webhooks() {
        let ends = webhook
            .cas()
            .iter()
            .filter_map(|ca| Validity::of(ca).ok())
            .map(|ca| ca.not_after)
            .max();
        let Some(ends) = ends else { continue };
        let name = &webhook.name;
        if ends <= now {
            let message = format!("{name}: every CA in caBundle has expired, the last one at {ends}");
            findings.advise(CHECK, Status::Problem, message, remedy);
        } else if ends < now + (24 * SOON_DAYS).hours() {
            let message = format!("{name}: the last CA in caBundle expires at {ends}");
            findings.advise(CHECK, Status::Warning, message, remedy);
        } else {
            first = Some(first.map_or(ends, |first: Timestamp| first.min(ends)));
        }
    }
    if let Some(first) = first {
        findings.add(
            CHECK,
            Status::Ok,
            format!("caBundle has a CA that is valid until {first}"),
        );
    }
}

/// The serving certificate.
async fn serving(client: &Client, settings: &Settings, published: &Published, now: Timestamp, findings: &mut Findings) {
    let Settings {
        lease_namespace: namespace,
        tls_secret: name,
        ..
    } = settings;
    let what = format!("the Secret {namespace}/{name}");
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = match api.get_opt(name).await {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let message = format!("there is no Secret {namespace}/{name}: the serving certificate was not looked at");
            return findings.advise(CHECK, Status::Note, message, "name it with --tls-secret");
        }
        Err(error) => return findings.unanswered(CHECK, &what, &error),
    };
    let pem = secret.data.unwrap_or_default().remove("tls.crt").unwrap_or_default().0;
    let chain = match tls::certificates(&pem) {
        Ok(chain) => chain,
        Err(error) => return findings.add(CHECK, Status::Problem, format!("tls.crt of {what} is no PEM: {error}")),
    };
    let Some(leaf) = chain.first() else {
        return findings.add(CHECK, Status::Problem, format!("{what} has no certificate in tls.crt"));
    };
    let Validity { not_before, not_after } = match Validity::of(leaf) {
        Ok(validity) => validity,
        Err(error) => return findings.add(CHECK, Status::Problem, format!("tls.crt of {what}: {error}")),
    };
    let untrusted: Vec<String> = published
        .webhooks()
        .filter_map(|webhook| webhook.trusts(&chain, now).err())
        .collect();
    if not_after <= now {
        findings.advise(
            CHECK,
            Status::Problem,
            format!("the certificate in {what} has expired at {not_after}"),
            "see who renews it: serve with certificates.source=self (its log), cert-manager, or you",
        );
    } else if !untrusted.is_empty() {
        findings.advise(
            CHECK,
            Status::Problem,
            format!("of the certificate in {what}: {}", untrusted.join("; ")),
            "publish the CA that has signed it beside what is in caBundle: certs/publish.sh, with certificates.source=files",
        );
    } else if not_after.duration_since(now) < not_after.duration_since(not_before) / 5 {
        findings.advise(
            CHECK,
            Status::Warning,
            format!("the certificate in {what} should have been replaced by now: it expires at {not_after}"),
            "see who renews it: serve with certificates.source=self (its log), cert-manager, or you",
        );
    } else {
        findings.add(
            CHECK,
            Status::Ok,
            format!("the certificate in {what} is trusted, and valid until {not_after}"),
        );
    }
}
