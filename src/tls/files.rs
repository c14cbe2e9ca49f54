//! A certificate in files, looked at again and again.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::{self, MissedTickBehavior};

use super::{Certificate, CertificateError, Options};

/// How often the files are looked at. A kubelet swaps a mounted Secret by a symlink above the files, which a watch on the
/// files themselves would miss.
pub const RELOAD_EVERY: Duration = Duration::from_secs(10);

/// The files of a certificate chain and its key, both PEM.
#[derive(Debug, Clone)]
pub struct Files {
    /// The certificate chain, leaf first.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

/// Why the files give no certificate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What they hold cannot be served.
    #[error("cannot serve {certificate} with {key}: {source}")]
    Content {
        /// The file of the certificate.
        certificate: PathBuf,
        /// The file of the key.
        key: PathBuf,
        /// Why not.
        source: Box<CertificateError>,
    },
}

/// What the files held when they were last looked at.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Loads the certificate.
    ///
    /// # Errors
    /// A file cannot be read, or the two do not make a certificate.
    pub async fn load(&self, options: Options) -> Result<Certificate, FileError> {
        let content = self.read().await?;
        Certificate::with_options(options, &content.certificate, &content.key).map_err(|source| self.content(source))
    }

    async fn read(&self) -> Result<Content, FileError> {
        Ok(Content {
            certificate: read(&self.certificate).await?,
            key: read(&self.key).await?,
        })
    }

    fn content(&self, source: CertificateError) -> FileError {
        FileError::Content {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            source: Box::new(source),
        }
    }
}

async fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    tokio::fs::read(path).await.map_err(|source| FileError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Serves what the files hold, looking at them every so often until `shutdown`. Files that cannot be served are
/// logged once for each state that they are in, and what was served before still is.
pub async fn watch_files(certificate: Certificate, files: Files, every: Duration, shutdown: impl Future<Output = ()>) {
    let mut ticks = time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(shutdown);
    let mut served = None;
    let mut refused = None;
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            _ = ticks.tick() => {}
        }
        match reload(&certificate, &files, served.as_ref()).await {
            Ok(None) => refused = None,
            Ok(Some(content)) => {
                if served.replace(content).is_some() {
                    tracing::info!(certificate = %files.certificate.display(), "serving a new certificate");
                }
                refused = None;
            }
            Err(error) => {
                let message = error.to_string();
                if refused.as_ref() != Some(&message) {
                    tracing::warn!(%error, "keeping the certificate that is served");
                    refused = Some(message);
                }
            }
        }
    }
}

async fn reload(
    certificate: &Certificate,
    files: &Files,
    served: Option<&Content>,
) -> Result<Option<Content>, FileError> {
    let content = files.read().await?;
    if served == Some(&content) {
        certificate.look_at_clients().map_err(|source| files.content(source))?;
        return Ok(None);
    }
    certificate
        .replace(&content.certificate, &content.key)
        .map_err(|source| files.content(source))?;
    Ok(Some(content))
}
