//! Which of several companions acts: the holder of a Lease (coordination.k8s.io/v1).
//!
//! The times are those of controller-runtime. Only this process's monotonic clock is asked, never the times in the Lease:
//!
//! - A leader acts until 10 s after it *sent* its last renewal that succeeded.
//! - Another candidate takes the Lease 15 s after it *read* the last change of it. That is later than 15 s after the
//!   renewal was sent, so between the two there are 5 s in which nobody acts.
//! - A write that the leader makes has to end before the 15 s are over ([`Leadership::write`]).
//! - Every write of the Lease names the resourceVersion that it rests on.
//!
//! One that finds itself named as the holder without having written that does not lead. One whose Lease is edited or
//! deleted steps down at its next renewal, and others wait for the 15 s then too. Only a holder that releases its Lease is
//! followed at once.

use std::{
    future::Future,
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, api::PostParams};
use prometheus_client::metrics::gauge::Gauge;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use crate::wall_clock;

/// How long a Lease stands for others after its last renewal.
const LEASE: Duration = Duration::from_secs(15);
/// How long a leader acts after its last renewal.
const DEADLINE: Duration = Duration::from_secs(10);
/// The time between two renewals, and between two looks of a candidate.
const RETRY: Duration = Duration::from_secs(2);
/// How long one request for the Lease may take.
const REQUEST: Duration = Duration::from_secs(4);
/// A leader's write ends this long before its Lease does.
const MARGIN: Duration = Duration::from_secs(1);
/// `leaseDurationSeconds` of a Lease that its holder has released (as client-go writes it).
const RELEASED: i32 = 1;

/// A stretch of time in which this process leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    number: u64,
    /// When the last renewal was sent.
    renewed: Instant,
}

/// Not the leader, or not for long enough to begin a write.
#[derive(Debug, thiserror::Error)]
#[error("this process does not hold the Lease any more")]
pub(super) struct NotLeading;

/// Whether this process leads. Clones see the same.
#[derive(Debug, Clone)]
pub(super) struct Leadership(watch::Receiver<Option<Term>>);

impl Leadership {
    /// When a write that begins now has to have ended.
    fn end_of_writes(&self, now: Instant) -> Option<Instant> {
        let term = (*self.0.borrow())?;
        (now < term.renewed + DEADLINE).then(|| term.renewed + LEASE - MARGIN)
    }

    /// Makes a write as the leader: not begun by anybody else, and given up before another may lead.
    pub(super) async fn write<T>(&self, write: impl Future<Output = T>) -> Result<T, NotLeading> {
        let end = self.end_of_writes(Instant::now()).ok_or(NotLeading)?;
        timeout_at(end, write).await.map_err(|_| NotLeading)
    }

    /// Waits until this process leads.
    pub(super) async fn gained(&mut self) {
        if self.0.wait_for(Option::is_some).await.is_err() {
            // Nobody is left who could lead.
            std::future::pending::<()>().await;
        }
    }

    /// Waits until this process leads no more.
    pub(super) async fn lost(&mut self) {
        let number = |term: &Option<Term>| term.as_ref().map(|term| term.number);
        let present = number(&self.0.borrow());
        // An error: nobody is left who could lead.
        drop(
            self.0
                .wait_for(|term| number(term) != present || present.is_none())
                .await,
        );
    }
}

/// What the Lease says, as far as it tells one holder, or one renewal, from another.
#[derive(Debug, Clone, PartialEq)]
struct Record {
    uid: Option<String>,
    spec: LeaseSpec,
}

impl Record {
    fn of(lease: &Lease) -> Self {
        Self {
            uid: lease.metadata.uid.clone(),
            spec: lease.spec.clone().unwrap_or_default(),
        }
    }

    fn holder(&self) -> &str {
        self.spec.holder_identity.as_deref().unwrap_or_default()
    }

    /// An empty holder alone may be anybody's edit, of which the leader knows nothing yet.
    fn is_released(&self) -> bool {
        self.holder().is_empty() && self.spec.lease_duration_seconds == Some(RELEASED)
    }

    fn duration(&self) -> Duration {
        let seconds = self.spec.lease_duration_seconds.unwrap_or_default();
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default()).max(LEASE)
    }
}

/// What a candidate writes.
#[derive(Debug, PartialEq)]
enum Take {
    /// The Lease, taken.
    Hold(Lease),
    /// A Lease that is not led by.
    Place(Lease),
}

/// One that may lead: what it knows and what it decides. No I/O, and time comes in.
#[derive(Debug)]
struct Candidate {
    name: String,
    identity: String,
    /// What the Lease said last, and when that was read first.
    observed: Option<(Record, Instant)>,
    /// The Lease as this process has written it, and when it sent that.
    held: Option<(Lease, Instant)>,
}

impl Candidate {
    fn new(name: &str, identity: String) -> Self {
        Self {
            name: name.to_owned(),
            identity,
            observed: None,
            held: None,
        }
    }

    /// The Lease was read, and the answer was there at `now`. Returns what to write to take it, if it can be taken.
    fn read(&mut self, now: Instant, found: Option<Lease>, wall: Timestamp) -> Option<Take> {
        let Some(found) = found else {
            let lease = self.taken(Lease::default(), wall);
            // Its holder may not know yet that it is gone: a new one for everybody to wait for.
            return Some(match self.observed {
                Some(_) => Take::Place(lease),
                None => Take::Hold(lease),
            });
        };
        let record = Record::of(&found);
        let is_free = match &self.observed {
            Some((known, since)) if *known == record => now >= *since + record.duration(),
            _ => {
                self.observed = Some((record.clone(), now));
                false
            }
        };
        (is_free || record.is_released()).then(|| Take::Hold(self.taken(found, wall)))
    }

    fn taken(&self, mut lease: Lease, wall: Timestamp) -> Lease {
        lease.metadata.name = Some(self.name.clone());
        let spec = lease.spec.get_or_insert_default();
        spec.acquire_time = Some(MicroTime(wall));
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count.saturating_add(1)));
        self.renew(spec, wall);
        lease
    }

    fn renew(&self, spec: &mut LeaseSpec, wall: Timestamp) {
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(LEASE.as_secs()).ok();
        spec.renew_time = Some(MicroTime(wall));
    }

    /// What to write to go on leading. `None`: it does not lead at `now`.
    fn renewal(&self, now: Instant, wall: Timestamp) -> Option<Lease> {
        let (mut lease, sent) = self.held.clone()?;
        self.renew(lease.spec.get_or_insert_default(), wall);
        (now < sent + DEADLINE).then_some(lease)
    }

    /// A write that was sent at `sent` is stored.
    fn wrote(&mut self, now: Instant, sent: Instant, stored: Lease) {
        self.observed = Some((Record::of(&stored), now));
        self.held = Some((stored, sent));
    }

    /// A renewal was refused because the Lease has changed, and this is what it is now: an edit of something else, or
    /// the end. Returns whether it still leads.
    fn reread(&mut self, now: Instant, found: Option<Lease>) -> bool {
        let Some((held, sent)) = self.held.take() else {
            return false;
        };
        let is_ours = |lease: &Lease| {
            let record = Record::of(lease);
            record.uid == held.metadata.uid && record.holder() == self.identity
        };
        match found {
            Some(lease) if is_ours(&lease) && now < sent + DEADLINE => {
                self.held = Some((lease, sent));
                true
            }
            found => {
                if let Some(lease) = found {
                    self.observed = Some((Record::of(&lease), now));
                }
                false
            }
        }
    }

    /// What to write to hand the Lease over. It does not lead from now on.
    fn release(&mut self) -> Option<Lease> {
        let (mut lease, _) = self.held.take()?;
        let spec = lease.spec.get_or_insert_default();
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(RELEASED);
        Some(lease)
    }
}

/// A name that no other process has, for the Lease.
pub(super) fn identity(instance: &str) -> String {
    let seed = (std::process::id(), Timestamp::now().as_nanosecond());
    format!("{instance}_{:016x}", RandomState::new().hash_one(seed))
}

/// Takes part in the election.
pub(super) struct Elector {
    api: Api<Lease>,
    candidate: Candidate,
    sender: watch::Sender<Option<Term>>,
    gauge: Gauge,
}

impl Elector {
    /// One candidate for the Lease of this name. No two may have the same identity.
    pub(super) fn new(api: Api<Lease>, name: &str, identity: String, gauge: Gauge) -> (Self, Leadership) {
        let (sender, receiver) = watch::channel(None);
        let elector = Self {
            api,
            candidate: Candidate::new(name, identity),
            sender,
            gauge,
        };
        (elector, Leadership(receiver))
    }

    /// Stands for election until `stop`; then whoever leads hands the Lease over.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut terms = 0;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.stand() => {}
            }
            terms += 1;
            let stopped = tokio::select! {
                () = stop.cancelled() => true,
                () = self.lead(terms) => false,
            };
            self.sender.send_replace(None);
            self.gauge.set(0);
            if stopped {
                return self.release().await;
            }
        }
    }

    /// Looks at the Lease until it is taken.
    async fn stand(&mut self) {
        let mut holder = None;
        loop {
            let next = Instant::now() + RETRY;
            if let Err(error) = self.attempt(&mut holder).await {
                tracing::warn!(lease = self.candidate.name, %error, "cannot stand for election");
            }
            if self.candidate.held.is_some() {
                return;
            }
            sleep_until(next).await;
        }
    }

    async fn attempt(&mut self, holder: &mut Option<String>) -> Result<(), Trouble> {
        let found = within(self.api.get_opt(&self.candidate.name)).await?;
        let present = found.as_ref().map(|lease| Record::of(lease).holder().to_owned());
        if present.is_some() && present != *holder {
            tracing::info!(lease = self.candidate.name, holder = present, "another companion leads");
            *holder = present;
        }
        let Some(take) = self.candidate.read(Instant::now(), found, wall_clock::now()) else {
            return Ok(());
        };
        let (Take::Hold(lease) | Take::Place(lease)) = &take;
        let sent = Instant::now();
        match self.put(lease).await {
            Ok(stored) if matches!(take, Take::Hold(_)) => self.candidate.wrote(Instant::now(), sent, stored),
            Ok(_) => {}
            // Another one was faster.
            Err(Trouble::Refused(error)) if is_outdated(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Renews the Lease as long as that works.
    async fn lead(&mut self, number: u64) {
        let Some((_, mut sent)) = self.candidate.held.clone() else {
            return;
        };
        tracing::info!(
            lease = self.candidate.name,
            identity = self.candidate.identity,
            "this companion leads"
        );
        self.gauge.set(1);
        let mut attempted = sent;
        loop {
            self.sender.send_if_modified(|term| {
                let is_new = term.is_none_or(|term| term.number != number);
                *term = Some(Term { number, renewed: sent });
                is_new
            });
            sleep_until(attempted + RETRY).await;
            attempted = Instant::now();
            let Some(lease) = self.candidate.renewal(attempted, wall_clock::now()) else {
                break self.step_down("it could not be renewed in time");
            };
            let answer = tokio::select! {
                answer = self.put(&lease) => answer,
                () = sleep_until(sent + DEADLINE) => continue,
            };
            match answer {
                Ok(stored) => {
                    sent = attempted;
                    self.candidate.wrote(Instant::now(), sent, stored);
                }
                Err(Trouble::Refused(error)) if is_outdated(&error) => {
                    let found = tokio::select! {
                        found = within(self.api.get_opt(&self.candidate.name)) => found,
                        () = sleep_until(sent + DEADLINE) => continue,
                    };
                    match found {
                        // If something else of it was edited, it is renewed again at once.
                        Ok(found) => {
                            if !self.candidate.reread(Instant::now(), found) {
                                break self.step_down("somebody else has written or deleted it");
                            }
                            attempted = sent;
                        }
                        Err(error) => tracing::warn!(lease = self.candidate.name, %error, "the Lease cannot be read"),
                    }
                }
                Err(error) => tracing::warn!(lease = self.candidate.name, %error, "the Lease cannot be renewed"),
            }
        }
    }

    fn step_down(&mut self, why: &str) {
        self.candidate.held = None;
        tracing::warn!(
            lease = self.candidate.name,
            why,
            "this companion does not lead any more"
        );
    }

    async fn release(&mut self) {
        let Some(lease) = self.candidate.release() else {
            return;
        };
        match self.put(&lease).await {
            Ok(_) => tracing::info!(lease = self.candidate.name, "the Lease is handed over"),
            Err(error) => tracing::warn!(lease = self.candidate.name, %error, "the Lease could not be handed over"),
        }
    }

    async fn put(&self, lease: &Lease) -> Result<Lease, Trouble> {
        let params = PostParams {
            field_manager: Some("pausegen".to_owned()),
            ..PostParams::default()
        };
        if lease.metadata.resource_version.is_some() {
            within(self.api.replace(&self.candidate.name, &params, lease)).await
        } else {
            within(self.api.create(&params, lease)).await
        }
    }
}

/// Why a request for the Lease failed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("no answer within {} s", REQUEST.as_secs())]
    Late,
    #[error(transparent)]
    Refused(#[from] Box<kube::Error>),
}

async fn within<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, Trouble> {
    match tokio::time::timeout(REQUEST, request).await {
        Ok(answer) => answer.map_err(|error| Trouble::Refused(Box::new(error))),
        Err(_) => Err(Trouble::Late),
    }
}

/// The Lease is another one, or there is none or one already.
fn is_outdated(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 404 | 409))
}

#[cfg(test)]
mod tests;
