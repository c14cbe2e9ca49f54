//! Consistent reads that baselines rest on: an object as it was no earlier than when the read was sent.
//!
//! They are made once for an object that has none, when everything has been quiet for the staleness bound; a system
//! where nothing happens reads nothing. Few objects are read one by one, many by one list.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::mpsc, time::sleep};
use tokio_util::sync::CancellationToken;

use super::{World, cache::Key, kinds::Kind, lock, look};

/// How long requests are gathered.
const GATHER: Duration = Duration::from_millis(300);
/// Up to this many objects of a kind are read one by one.
const FEW: usize = 20;
/// When to ask again after a read that failed.
pub(super) const RETRY: Duration = Duration::from_secs(30);

/// The object to read, and for whom.
type Request = (Key, Key);

/// Asks for reads.
#[derive(Debug, Clone)]
pub(super) struct Requests(mpsc::UnboundedSender<Request>);

impl Requests {
    pub(super) fn new() -> (Self, mpsc::UnboundedReceiver<Request>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self(sender), receiver)
    }

    /// Reads `object`, then sees to `whom`.
    pub(super) fn ask(&self, object: Key, whom: &Key) {
        // Without a receiver everything is stopping.
        drop(self.0.send((object, whom.clone())));
    }
}

/// Answers requests until `shutdown`.
pub(super) async fn run(
    world: Arc<World>,
    mut requests: mpsc::UnboundedReceiver<Request>,
    shutdown: CancellationToken,
) {
    loop {
        let first = tokio::select! {
            () = shutdown.cancelled() => return,
            request = requests.recv() => request,
        };
        let Some(first) = first else { return };
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = sleep(GATHER) => {}
        }
        let mut wanted: BTreeMap<_, BTreeSet<Key>> = BTreeMap::new();
        let mut whom: BTreeMap<_, BTreeSet<Key>> = BTreeMap::new();
        let mut request = Some(first);
        while let Some((object, for_whom)) = request {
            whom.entry(object.kind.clone()).or_default().insert(for_whom);
            wanted.entry(object.kind.clone()).or_default().insert(object);
            request = requests.try_recv().ok();
        }
        for (name, keys) in wanted {
            let Some(kind) = world.kind(&name) else { continue };
            let done = tokio::select! {
                () = shutdown.cancelled() => return,
                done = read(&world, &kind, &keys) => done,
            };
            let delay = match done {
                Ok(()) => Duration::ZERO,
                Err(error) => {
                    world.metrics.errors.inc();
                    tracing::warn!(kind = %name, %error, "cannot be read for baselines; tried again later");
                    RETRY
                }
            };
            for key in whom.remove(&name).unwrap_or_default() {
                world.queue.after(key, delay);
            }
        }
    }
}

async fn read(world: &World, kind: &Kind, keys: &BTreeSet<Key>) -> Result<(), kube::Error> {
    if keys.len() <= FEW {
        for key in keys {
            let sent = world.clock.now();
            if let Some(item) = look::api(world, kind, &key.namespace).get_opt(&key.name).await? {
                confirm(world, kind, sent, item.view);
            }
        }
        return Ok(());
    }
    let namespaces: BTreeSet<&str> = keys.iter().map(|key| key.namespace.as_str()).collect();
    let namespace = match (namespaces.len(), namespaces.first()) {
        (1, Some(namespace)) => namespace,
        _ => "",
    };
    let sent = world.clock.now();
    for object in look::list(world, kind, namespace).await? {
        confirm(world, kind, sent, object);
    }
    Ok(())
}

fn confirm(world: &World, kind: &Kind, sent: crate::protocol::Moment, object: crate::protocol::object::ObjectView) {
    let object = kind.needs.slim(look::typed(kind, object));
    let key = Key::of(&kind.rule.group_kind, &object);
    let concern = lock(&world.cache).confirm(world.clock.now(), sent, &kind.needs, object, &kind.rule);
    if let Some(concern) = concern {
        world.dispatch(&key, !kind.rule.inputs.is_empty(), concern);
    }
}
