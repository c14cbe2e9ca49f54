use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::*;

fn wall() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn candidate(identity: &str) -> Candidate {
    Candidate::new("pausegen", identity.to_owned())
}

/// An API server with one Lease at most.
#[derive(Default)]
struct Store {
    lease: Option<Lease>,
    versions: u64,
}

impl Store {
    fn stamp(&mut self, mut lease: Lease, uid: String) -> Lease {
        self.versions += 1;
        lease.metadata.uid = Some(uid);
        lease.metadata.resource_version = Some(self.versions.to_string());
        self.lease.insert(lease).clone()
    }

    fn put(&mut self, lease: Lease) -> Option<Lease> {
        match (&self.lease, &lease.metadata.resource_version) {
            (None, None) => {
                let uid = format!("uid-{}", self.versions);
                Some(self.stamp(lease, uid))
            }
            (Some(stored), Some(version)) if stored.metadata.resource_version.as_ref() == Some(version) => {
                let uid = stored.metadata.uid.clone().unwrap();
                Some(self.stamp(lease, uid))
            }
            _ => None,
        }
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Lease)) {
        if let Some(mut lease) = self.lease.clone() {
            edit(&mut lease);
            let uid = lease.metadata.uid.clone().unwrap();
            self.stamp(lease, uid);
        }
    }
}

fn takes(candidate: &mut Candidate, store: &mut Store, now: Instant) -> bool {
    match candidate.read(now, store.lease.clone(), wall()) {
        Some(Take::Hold(lease)) => store.put(lease).is_some_and(|stored| {
            candidate.wrote(now, now, stored);
            true
        }),
        Some(Take::Place(lease)) => {
            store.put(lease).unwrap();
            false
        }
        None => false,
    }
}

#[test]
fn a_dead_leader_is_followed_after_the_lease_and_a_living_one_never() {
    let (mut a, mut b) = (candidate("a"), candidate("b"));
    let mut store = Store::default();
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    assert!(takes(&mut a, &mut store, at(0)));
    assert!(!takes(&mut b, &mut store, at(1000)));
    for millis in (2000..60_000).step_by(2000) {
        let renewed = store.put(a.renewal(at(millis), wall()).unwrap()).unwrap();
        a.wrote(at(millis), at(millis), renewed);
        // The wall clock stands still here, so that the record is the same: only what is read tells.
        store.edit(|lease| {
            lease.spec.as_mut().unwrap().renew_time =
                Some(MicroTime(Timestamp::from_millisecond(millis as i64).unwrap()));
        });
        a.reread(at(millis), store.lease.clone());
        assert!(!takes(&mut b, &mut store, at(millis + 1000)));
    }
    // b has read the last renewal at 59 s; it was sent at 58 s.
    assert!(!takes(&mut b, &mut store, at(73_999)));
    assert!(a.renewal(at(67_999), wall()).is_some());
    assert!(a.renewal(at(68_000), wall()).is_none());
    assert!(takes(&mut b, &mut store, at(74_000)));
    assert!(!takes(&mut a, &mut store, at(74_001)));
    assert_eq!(store.lease.unwrap().spec.unwrap().lease_transitions, Some(1));
}

#[test]
fn a_released_lease_is_taken_at_once_and_an_edited_one_is_not() {
    let (mut a, mut b) = (candidate("a"), candidate("b"));
    let mut store = Store::default();
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    assert!(takes(&mut a, &mut store, at(0)));
    assert!(!takes(&mut b, &mut store, at(1)));
    // Whoever empties, deletes or gives away the Lease by hand tells the leader nothing.
    store.edit(|lease| lease.spec.as_mut().unwrap().holder_identity = Some(String::new()));
    assert!(!takes(&mut b, &mut store, at(2)));
    store.edit(|lease| lease.spec.as_mut().unwrap().holder_identity = Some("b".to_owned()));
    assert!(!takes(&mut b, &mut store, at(3)));
    let edited = store.lease.take();
    assert!(!takes(&mut b, &mut store, at(18)));
    assert!(!takes(&mut b, &mut store, at(19)));
    assert!(!takes(&mut b, &mut store, at(33)));
    assert!(takes(&mut b, &mut store, at(34)));
    assert!(!a.reread(at(4), edited), "b is written there");

    let (mut a, mut b) = (candidate("a"), candidate("b"));
    let mut store = Store::default();
    assert!(takes(&mut a, &mut store, at(0)));
    assert!(!takes(&mut b, &mut store, at(1)));
    // A label is not the end of a term.
    store.edit(|lease| lease.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into()));
    assert!(store.put(a.renewal(at(2), wall()).unwrap()).is_none());
    assert!(a.reread(at(2), store.lease.clone()));
    assert!(store.put(a.renewal(at(2), wall()).unwrap()).is_some());
    a.reread(at(2), store.lease.clone());
    let released = a.release().unwrap();
    assert!(store.put(released).is_some());
    assert!(a.renewal(at(3), wall()).is_none());
    assert!(takes(&mut b, &mut store, at(3)));
}

/// Something that is under way.
#[derive(Debug, Clone, PartialEq)]
enum Step {
    /// A candidate does what is next for it.
    Wake,
    /// Its read is answered from the store, and the answer arrives later.
    Get,
    Got(Option<Box<Lease>>),
    /// Its write arrives at the store. `sent` is when it was sent.
    Put {
        lease: Box<Lease>,
        sent: u64,
        hold: bool,
    },
    /// What the store said arrives.
    Wrote {
        stored: Option<Box<Lease>>,
        sent: u64,
        hold: bool,
    },
    /// Somebody edits or deletes the Lease.
    Steal(u8),
}

#[derive(Debug, PartialEq)]
struct Event {
    at: u64,
    order: u64,
    who: usize,
    step: Step,
}

impl Eq for Event {}

impl Ord for Event {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.at, other.order).cmp(&(self.at, self.order))
    }
}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Candidates whose requests and answers take as long as they like: a late answer is a lost one, a frozen process, or a
/// network that is slow. Returns how often the leader changed.
fn simulate(choices: &[u8]) -> Result<usize, TestCaseError> {
    const CANDIDATES: usize = 3;
    let start = Instant::now();
    let at = |millis: u64| start + Duration::from_millis(millis);
    let mut choices = choices.iter().cycle().copied();
    let mut choose = || u64::from(choices.next().unwrap_or_default());
    let mut candidates: Vec<Candidate> = ["a", "b", "c"].map(candidate).into();
    // When each has to have ended its last write.
    let mut acts_until: Vec<Option<u64>> = vec![None; CANDIDATES];
    let mut store = Store::default();
    let mut heap = BinaryHeap::new();
    let mut order = 0;
    let mut changes = 0;
    let mut push = |heap: &mut BinaryHeap<Event>, at, who, step| {
        order += 1;
        heap.push(Event { at, order, who, step });
    };
    for who in 0..CANDIDATES {
        push(&mut heap, choose() * 10, who, Step::Wake);
    }
    for steal in 0..4 {
        push(
            &mut heap,
            20_000 + steal * 40_000 + choose() * 100,
            0,
            Step::Steal(choose() as u8),
        );
    }
    // Mostly quick, sometimes for longer than a Lease.
    fn delay(choice: u64) -> u64 {
        match choice {
            0..=199 => choice,
            200..=239 => (choice - 199) * 150,
            _ => (choice - 239) * 2000,
        }
    }
    while let Some(Event { at: now, who, step, .. }) = heap.pop() {
        if now > 200_000 {
            break;
        }
        match step {
            Step::Wake => match candidates[who].renewal(at(now), wall()) {
                Some(lease) => {
                    let lease = Box::new(lease);
                    push(
                        &mut heap,
                        now + delay(choose()),
                        who,
                        Step::Put {
                            lease,
                            sent: now,
                            hold: true,
                        },
                    );
                }
                None => {
                    candidates[who].held = None;
                    push(&mut heap, now + delay(choose()), who, Step::Get);
                }
            },
            Step::Get => {
                let found = store.lease.clone();
                push(&mut heap, now + delay(choose()), who, Step::Got(found.map(Box::new)));
            }
            Step::Got(found) => {
                let found = found.map(|lease| *lease);
                let is_held = candidates[who].held.is_some();
                if is_held {
                    candidates[who].reread(at(now), found);
                } else if let Some(take) = candidates[who].read(at(now), found, wall()) {
                    let hold = matches!(take, Take::Hold(_));
                    let (Take::Hold(mut lease) | Take::Place(mut lease)) = take;
                    // Wall clocks differ, and say nothing.
                    lease.spec.as_mut().unwrap().renew_time =
                        Some(MicroTime(Timestamp::from_second(choose() as i64).unwrap()));
                    let lease = Box::new(lease);
                    push(
                        &mut heap,
                        now + delay(choose()),
                        who,
                        Step::Put { lease, sent: now, hold },
                    );
                    continue;
                }
                push(&mut heap, now + 2000, who, Step::Wake);
            }
            Step::Put { mut lease, sent, hold } => {
                // No two renewals are the same to a reader.
                lease.spec.as_mut().unwrap().renew_time =
                    Some(MicroTime(Timestamp::from_millisecond(now as i64).unwrap()));
                let stored = store.put(*lease).map(Box::new);
                push(
                    &mut heap,
                    now + delay(choose()),
                    who,
                    Step::Wrote { stored, sent, hold },
                );
            }
            Step::Wrote { stored, sent, hold } => {
                match stored {
                    // The client has given up by then.
                    Some(_) if !hold || now > sent + 4000 => {}
                    Some(stored) => {
                        candidates[who].wrote(at(now), at(sent), *stored);
                        if now < sent + 10_000 {
                            for (other, until) in acts_until.iter().enumerate() {
                                prop_assert!(
                                    other == who || until.is_none_or(|until| until <= now),
                                    "at {now} {who} leads, and {other} may write until {until:?}"
                                );
                            }
                            changes += usize::from(acts_until[who].is_none_or(|until| until < sent));
                            acts_until[who] = Some(sent + 14_000);
                        }
                    }
                    None => {
                        push(&mut heap, now, who, Step::Get);
                        continue;
                    }
                }
                push(&mut heap, now + 2000, who, Step::Wake);
            }
            Step::Steal(how) => {
                if candidates.iter().any(|candidate| candidate.observed.is_none()) {
                    continue;
                }
                let spec = |lease: &mut Lease, holder: &str| {
                    lease.spec.as_mut().unwrap().holder_identity = Some(holder.to_owned());
                };
                match how % 5 {
                    0 => store.lease = None,
                    1 => store.edit(|lease| spec(lease, "")),
                    2 => store.edit(|lease| spec(lease, "b")),
                    3 => store.edit(|lease| spec(lease, "thief")),
                    _ => store.edit(|lease| lease.metadata.labels = Some([("x".to_owned(), how.to_string())].into())),
                }
            }
        }
    }
    Ok(changes)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn never_two_lead(choices in prop::collection::vec(any::<u8>(), 50..400)) {
        simulate(&choices)?;
    }
}

#[test]
fn the_simulation_sees_changes_of_the_leader() {
    let choices: Vec<u8> = (0..1000_u64)
        .map(|n| (n.wrapping_mul(6_364_136_223_846_793_005) >> 33) as u8)
        .collect();
    assert!(simulate(&choices).unwrap() >= 2);
}
