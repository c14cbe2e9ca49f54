//! Rules that may change while the process runs: the rules file is looked at again and again.
//!
//! Whoever asks about a kind asks [`Live::get`] each time, and so never sees half of a change. A file that cannot be used
//! changes nothing: the rules before it stay in force, the log says why, and `pausegen_rules_refused` is 1 until the file
//! can be used again.

use std::{
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    sync::watch,
    time::{self, MissedTickBehavior},
};

use super::{
    Rules,
    error::RulesError,
    manifests::{Endpoint, Target, webhooks},
};

/// How often the file is looked at. A kubelet swaps a mounted ConfigMap by a symlink above the file, which a watch on the
/// file itself would miss.
pub const RELOAD_EVERY: Duration = Duration::from_secs(2);

/// The rules in force. Clones follow the same file.
#[derive(Debug, Clone)]
pub struct Live(watch::Receiver<Arc<Rules>>);

impl Live {
    /// Rules that never change.
    #[must_use]
    pub fn fixed(rules: Arc<Rules>) -> Self {
        Self(watch::channel(rules).1)
    }

    /// The rules in force now.
    #[must_use]
    pub fn get(&self) -> Arc<Rules> {
        Arc::clone(&self.0.borrow())
    }

    /// The rules in force now; [`Live::changed`] waits for others than these.
    pub fn take(&mut self) -> Arc<Rules> {
        Arc::clone(&self.0.borrow_and_update())
    }

    /// Waits until other rules are in force than at the last [`Live::take`].
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // Nobody looks any more.
            std::future::pending::<()>().await;
        }
    }
}

/// What is counted of reloads. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    reloads: Family<Labels, Counter>,
    refused: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    outcome: &'static str,
}

impl Metrics {
    /// Registers them, all named `pausegen_rules_...`.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("pausegen_rules");
        registry.register(
            "reloads",
            "Changes of the rules file, by whether it was taken or refused",
            metrics.reloads.clone(),
        );
        registry.register(
            "refused",
            "1 while the rules file cannot be used and older rules are in force",
            metrics.refused.clone(),
        );
        metrics
    }

    fn count(&self, outcome: &'static str) {
        self.reloads.get_or_create(&Labels { outcome }).inc();
    }
}

/// A rules file that is followed.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    /// The text of the rules in force.
    text: String,
    sender: watch::Sender<Arc<Rules>>,
}

/// What one look at the file has found. Errors are compared by what they say.
type Look = Result<String, String>;

impl Source {
    /// Loads a rules file, to be followed by [`Source::follow`].
    ///
    /// # Errors
    /// The file cannot be used.
    pub fn load(path: &Path) -> Result<(Self, Live), RulesError> {
        let origin = path.display().to_string();
        let text = std::fs::read_to_string(path).map_err(|source| RulesError::Read {
            origin: origin.clone(),
            source,
        })?;
        let (sender, receiver) = watch::channel(Arc::new(Rules::parse(&text, &origin)?));
        let source = Self {
            path: path.to_owned(),
            text,
            sender,
        };
        Ok((source, Live(receiver)))
    }

    /// Looks at the file every so often until `shutdown`. What it holds is taken once two looks have found the same, so
    /// that nothing is read of a file that is still being written.
    pub async fn follow(mut self, every: Duration, metrics: Metrics, shutdown: impl Future<Output = ()>) {
        let mut ticks = time::interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        tokio::pin!(shutdown);
        let mut last: Look = Ok(self.text.clone());
        let mut refused: Option<Look> = None;
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                _ = ticks.tick() => {}
            }
            let look = read(&self.path).await;
            let rests = look == last;
            last.clone_from(&look);
            if !rests || refused.as_ref() == Some(&look) {
                continue;
            }
            match self.take(&look) {
                Ok(taken) => {
                    if taken {
                        metrics.count("taken");
                    }
                    metrics.refused.set(0);
                    refused = None;
                }
                Err(error) => {
                    tracing::error!(
                        file = %self.path.display(),
                        error,
                        "the rules file cannot be used: the rules before it stay in force"
                    );
                    metrics.count("refused");
                    metrics.refused.set(1);
                    refused = Some(look);
                }
            }
        }
    }

    /// Puts what was found in force. Returns whether that is anything new.
    fn take(&mut self, look: &Look) -> Result<bool, String> {
        let text = look.as_ref().map_err(Clone::clone)?;
        if *text == self.text {
            return Ok(false);
        }
        let rules = Rules::parse(text, &self.path.display().to_string()).map_err(|error| error.to_string())?;
        self.text.clone_from(text);
        let before = self.sender.send_replace(Arc::new(rules));
        tracing::info!(file = %self.path.display(), "other rules are in force");
        let target = Target::new(Endpoint::Url(String::new()));
        if webhooks(&before, &target) != webhooks(&self.sender.borrow(), &target) {
            tracing::warn!(
                "these rules call for other webhook configurations: apply what `pausegen manifests` prints for them, else \
                 the API server goes on calling for the rules before"
            );
        }
        Ok(true)
    }
}

async fn read(path: &Path) -> Look {
    let read = async || -> io::Result<String> { tokio::fs::read_to_string(path).await };
    read().await.map_err(|error| format!("it cannot be read: {error}"))
}

#[cfg(test)]
mod tests {
    use std::{fs, time::Duration};

    use prometheus_client::registry::Registry;
    use tokio_util::sync::CancellationToken;

    use super::{Live, Metrics, Source};

    const EVERY: Duration = Duration::from_millis(5);

    fn rules(bound: u32) -> String {
        format!("apiVersion: pausegen.io/v1alpha1\nkind: Rules\nextends: capi\nstalenessBound: {bound}s\n")
    }

    fn bound(live: &Live) -> u64 {
        live.get().file().staleness_bound.as_ref().unwrap().value.0.as_secs()
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let waited = async {
            while !is_so() {
                tokio::time::sleep(EVERY).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(30), waited).await.is_ok(),
            "{what}"
        );
    }

    #[tokio::test]
    async fn a_changed_file_is_taken_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        fs::write(&path, rules(7)).unwrap();
        let (source, mut live) = Source::load(&path).unwrap();
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let stop = CancellationToken::new();
        let follower = tokio::spawn(source.follow(EVERY, metrics.clone(), stop.clone().cancelled_owned()));
        assert_eq!(bound(&live), 7);
        live.take();

        fs::write(&path, rules(8)).unwrap();
        live.changed().await;
        assert_eq!(bound(&live), 8);
        live.take();

        // Broken in every way: what was in force still is.
        for broken in ["rules: [", "kind: Rules\n", "", "\u{0}"] {
            fs::write(&path, rules(8)).unwrap();
            until("it is fine again", || metrics.refused.get() == 0).await;
            fs::write(&path, broken).unwrap();
            until(broken, || metrics.refused.get() == 1).await;
            assert_eq!(bound(&live), 8);
        }
        fs::remove_file(&path).unwrap();
        fs::write(&path, b"\xff\xfe").unwrap();
        until("not UTF-8", || metrics.refused.get() == 1).await;
        fs::remove_file(&path).unwrap();

        fs::write(&path, rules(9)).unwrap();
        live.changed().await;
        assert_eq!(bound(&live), 9);
        until("it is fine again", || metrics.refused.get() == 0).await;
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        assert!(
            text.contains("pausegen_rules_reloads_total{outcome=\"taken\"} 2"),
            "{text}"
        );
        stop.cancel();
        follower.await.unwrap();
    }
}
