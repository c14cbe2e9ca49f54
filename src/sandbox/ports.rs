//! Free ports and loopback addresses for sandboxes that run side by side.

use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Error;

/// Below the ports that Linux gives to outgoing connections (32768 and up), so that none of those is in the way by
/// accident, and below 20000, where the in-memory workload clusters of Cluster API begin.
const FIRST: u16 = 10_000;
const LAST: u16 = 18_999;

/// A port that nobody listens on. Each call within a process gives another one; other processes start elsewhere in
/// the range. Nothing holds the port: whoever uses it has to be ready to be beaten to it.
pub(super) fn free() -> Result<u16, Error> {
    static NEXT: OnceLock<AtomicUsize> = OnceLock::new();
    let count = usize::from(LAST - FIRST) + 1;
    let next = NEXT.get_or_init(|| AtomicUsize::new(random()));
    for _ in 0..count {
        let offset = next.fetch_add(1, Ordering::Relaxed) % count;
        let Ok(offset) = u16::try_from(offset) else { continue };
        let port = FIRST + offset;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::NoPort { from: FIRST, to: LAST })
}

/// A loopback address of a sandbox's own. The in-memory workload clusters take fixed ports, so they need an address
/// that no other sandbox has. All of 127.0.0.0/8 is loopback on Linux.
pub(super) fn loopback() -> Ipv4Addr {
    if cfg!(target_os = "linux") {
        let [a, b, c, ..] = random().to_ne_bytes();
        // Not 0 and 1, where others are.
        Ipv4Addr::new(127, 64 + a % 64, b, 2 + c % 250)
    } else {
        Ipv4Addr::LOCALHOST
    }
}

fn random() -> usize {
    let hash = RandomState::new().hash_one(std::process::id());
    usize::try_from(hash >> 1).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_not_given_out() {
        let port = free().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        let count = usize::from(LAST - FIRST) + 1;
        for _ in 0..count.min(50) {
            assert_ne!(free().unwrap(), port);
        }
        drop(listener);
    }

    #[test]
    fn loopback_addresses_differ() {
        let addresses: std::collections::BTreeSet<_> = (0..20).map(|_| loopback()).collect();
        assert!(addresses.len() > 15, "{addresses:?}");
        assert!(addresses.iter().all(|address| address.is_loopback()));
    }
}
