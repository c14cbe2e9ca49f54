//! `pausegen serve`: the webhook and the companion, together or each alone.

mod args;
mod certificate;
mod error;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use prometheus_client::registry::Registry;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
    time,
};
use tokio_util::sync::CancellationToken;

pub use args::Args;
pub use error::ServeError;

use certificate::Source;

use crate::{
    admission::{
        self,
        metrics::Metrics,
        ops::{self, Ops},
        server::{self, Drain},
    },
    companion,
    rules::{
        Rules,
        live::{self, Live},
    },
    tls,
};

/// How long calls that have begun may take to end: as long as the API server may wait for one.
const DRAIN: Drain = Drain {
    limit: Duration::from_secs(30),
};

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// A setting that cannot be used, or a part that ended unasked.
pub async fn run(args: Args) -> super::Result {
    serve(args).await?;
    Ok(ExitCode::SUCCESS)
}

type Tasks = JoinSet<Result<&'static str, ServeError>>;

async fn serve(args: Args) -> Result<(), ServeError> {
    let Args {
        rules,
        no_admission,
        no_companion,
        admission,
        limits,
        companion,
        process,
        client,
    } = args;
    if no_admission && no_companion {
        return Err(ServeError::Nothing);
    }
    let shutdown_delay = process.shutdown_delay()?;
    let mut signals = Signals::new()?;
    let (source, rules) = match rules {
        Some(path) => {
            let (source, rules) = live::Source::load(&path)?;
            (Some(source), rules)
        }
        None => (None, Live::fixed(Arc::new(Rules::capi()?))),
    };
    let mut registry = Registry::default();
    let rules_metrics = live::Metrics::register(&mut registry);
    let metrics = Metrics::register(&mut registry);
    let server_metrics = server::Metrics::register(&mut registry);
    let certificate_metrics = tls::Metrics::register(&mut registry);
    let companion_metrics = (!no_companion).then(|| companion::Metrics::register(&mut registry));
    let ops = Ops::new(registry);
    // `stopping`: whoever can stop at once should. `draining`: nobody sends calls here any more.
    let (stopping, draining) = (CancellationToken::new(), CancellationToken::new());
    let mut tasks = Tasks::new();

    if !no_admission {
        let state = |settings| admission::State {
            rules: rules.clone(),
            settings: Arc::new(settings),
            clock: Arc::new(crate::wall_clock::now),
            metrics,
            ops: ops.clone(),
        };
        let settings = admission.settings()?;
        let address = admission.bind;
        let source = Source {
            args: &admission,
            namespace: process.namespace(),
            configuration: companion.webhook_configuration.clone(),
            client: &client,
            has_companion: !no_companion,
            metrics: certificate_metrics,
        };
        let certificate = source.start(&mut tasks, &ops, &draining).await?;
        let listener = listen("--bind", address)?;
        tracing::info!(address = %listener.local_addr().unwrap_or(address), "serving admission");
        let router = admission::router(state(settings));
        let options = server::Options {
            limits: limits.limits(),
            metrics: server_metrics,
        };
        let stop = draining.clone().cancelled_owned();
        tasks.spawn(async move {
            let result = server::serve(listener, Some(certificate), router, options, DRAIN, stop).await;
            ended("admission", result)
        });
    }
    if let Some(address) = process.metrics_bind {
        let listener = listen("--metrics-bind", address)?;
        let served = server::serve_plain(
            listener,
            ops::router(ops.clone()),
            DRAIN,
            draining.clone().cancelled_owned(),
        );
        tasks.spawn(async move { ended("metrics", served.await) });
    }
    let mut history = None;
    if let Some(companion_metrics) = companion_metrics {
        if no_admission {
            // Where the webhook is served too, flips must not wait for a kind that cannot be listed.
            let synced = companion_metrics.clone();
            ops.require(move || {
                let waits = || "the companion's caches are not filled yet".to_owned();
                synced.is_synced().then_some(()).ok_or_else(waits)
            });
        }
        let client = client.client().await.map_err(|source| ServeError::Client {
            what: "the companion",
            source,
        })?;
        let stopping = stopping.clone();
        history = companion.history()?;
        let settings = companion.settings(&process, history.clone());
        tasks.spawn(async move {
            follow_rules(rules, &stopping, |rules, stop| {
                companion::run(client.clone(), rules, settings.clone(), companion_metrics.clone(), stop)
            })
            .await;
            Ok("companion")
        });
    }
    if let Some(source) = source {
        let stopping = stopping.clone();
        tasks.spawn(async move {
            source
                .follow(live::RELOAD_EVERY, rules_metrics, stopping.cancelled_owned())
                .await;
            Ok("the watch of the rules file")
        });
    }

    let unasked = tokio::select! {
        () = signals.wait() => None,
        ended = tasks.join_next() => ended,
    };
    ops.stop();
    stopping.cancel();
    if unasked.is_none() && !no_admission {
        tracing::info!(delay = ?shutdown_delay, "stopping: not ready any more, still serving");
        time::sleep(shutdown_delay).await;
    }
    draining.cancel();
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    if let Some(history) = history {
        history.close();
    }
    match unasked {
        None => Ok(()),
        Some(ended) => Err(ServeError::Ended { what: ended?? }),
    }
}

/// Runs a companion, and another one whenever other rules are in force: what one remembers it has learnt under its rules.
async fn follow_rules<F: Future<Output = ()>>(
    mut rules: Live,
    stopping: &CancellationToken,
    mut run: impl FnMut(Arc<Rules>, CancellationToken) -> F,
) {
    loop {
        let stop = stopping.child_token();
        let running = run(rules.take(), stop.clone());
        tokio::pin!(running);
        tokio::select! {
            () = &mut running => return,
            () = rules.changed() => {}
        }
        tracing::info!("the companion begins anew with other rules");
        stop.cancel();
        running.await;
    }
}

fn ended(what: &'static str, result: io::Result<()>) -> Result<&'static str, ServeError> {
    result
        .map(|()| what)
        .map_err(|source| ServeError::Serve { what, source })
}

fn listen(setting: &'static str, address: SocketAddr) -> Result<TcpListener, ServeError> {
    TcpListener::bind(address).map_err(|source| ServeError::Listen {
        setting,
        address,
        source,
    })
}

/// The signals that ask a process to end.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, ServeError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate()).map_err(ServeError::Signal)?,
            interrupt: signal(SignalKind::interrupt()).map_err(ServeError::Signal)?,
        })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
