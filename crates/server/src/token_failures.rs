//! # Denials: wrong tokens by address
//!
//! The reply to a wrong token is delayed by 250 ms at first, twice as long for each further one, at
//! most 4 s. No thread sleeps: the acceptor keeps the connection until the reply is due. The reply
//! to a correct token is immediate, so that a client is not delayed by the mistakes of another.
//! After many wrong tokens from an address, the reply to a correct one is delayed as long as for a
//! first mistake, so that the lack of an immediate reply reveals nothing.
//!
//! All addresses of this machine count as one, and so does each IPv6 network (64 bits), since a
//! peer can choose among these addresses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Delay of the reply to a first mistake.
pub(crate) const FIRST_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of times that the delay is doubled.
const MAX_DOUBLINGS: u32 = 4;
/// Number of mistakes that make an address suspicious: correct tokens are then delayed too.
const SUSPICIOUS_COUNT: u32 = 8;
/// Time without a mistake after which the mistakes of an address are forgotten.
const FAILURE_LIFETIME: Duration = Duration::from_secs(60);
/// Minimum time between two reports of one address.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of addresses that are remembered.
const MAX_PEERS: usize = 1024;

/// Wrong tokens from one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeniedClients {
    /// Address of the clients; one address for all of this machine or of an IPv6 network.
    pub peer: IpAddr,
    /// Number of wrong tokens since the last report of this address, at least one.
    pub count: u64,
}

/// Callback for wrong tokens.
pub(crate) type DenialCallback = Arc<dyn Fn(&DeniedClients) + Send + Sync>;

/// Mistakes of one address.
struct PeerFailures {
    failures: u32,
    last: Instant,
    last_report: Option<Instant>,
    unreported: u64,
}

/// Mistakes of all addresses.
#[derive(Default)]
pub(crate) struct TokenFailures {
    peers: HashMap<IpAddr, PeerFailures>,
}

impl TokenFailures {
    /// Counts a wrong token from `peer`. Returns the delay of the reply, and a report if one is
    /// due.
    pub(crate) fn record_failure(&mut self, peer: IpAddr, now: Instant) -> (Duration, Option<DeniedClients>) {
        let address = address_group(peer);
        self.evict_old(now);
        let peer = self.peers.entry(address).or_insert(PeerFailures {
            failures: 0,
            last: now,
            last_report: None,
            unreported: 0,
        });
        peer.failures = peer.failures.saturating_add(1);
        peer.last = now;
        peer.unreported += 1;
        let delay = FIRST_DELAY * (1 << (peer.failures - 1).min(MAX_DOUBLINGS));
        if peer.last_report.is_some_and(|told| now.saturating_duration_since(told) < REPORT_INTERVAL) {
            return (delay, None);
        }
        peer.last_report = Some(now);
        (delay, Some(DeniedClients { peer: address, count: std::mem::take(&mut peer.unreported) }))
    }

    /// Returns true if many wrong tokens came from `peer` recently.
    pub(crate) fn is_suspicious(&self, peer: IpAddr, now: Instant) -> bool {
        let is_recent = |peer: &PeerFailures| now.saturating_duration_since(peer.last) < FAILURE_LIFETIME;
        self.peers
            .get(&address_group(peer))
            .is_some_and(|peer| peer.failures >= SUSPICIOUS_COUNT && is_recent(peer))
    }

    /// Forgets old mistakes; if too many addresses remain, forgets the one that was quiet longest.
    fn evict_old(&mut self, now: Instant) {
        if self.peers.len() < MAX_PEERS {
            self.peers.retain(|_, peer| now.saturating_duration_since(peer.last) < FAILURE_LIFETIME);
            return;
        }
        let quietest = self.peers.iter().min_by_key(|(_, peer)| peer.last).map(|(address, _)| *address);
        if let Some(quietest) = quietest {
            self.peers.remove(&quietest);
        }
    }
}

/// Returns the address under which the mistakes of `peer` are counted.
fn address_group(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        peer if peer.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(peer) => Ipv6Addr::from_bits(peer.to_bits() & !u128::from(u64::MAX)).into(),
        peer => peer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[expect(clippy::disallowed_methods, reason = "an origin to count from")]
    fn origin() -> Instant {
        Instant::now()
    }

    #[test]
    fn each_wrong_token_doubles_the_delay_until_it_expires() {
        let (mut denials, now) = (TokenFailures::default(), origin());
        let delays: Vec<u128> =
            (0..7).map(|_| denials.record_failure(at("10.0.0.1"), now).0.as_millis()).collect();
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(
            denials.record_failure(at("10.0.0.2"), now).0,
            FIRST_DELAY,
            "other addresses are not affected"
        );
        assert!(!denials.is_suspicious(at("10.0.0.1"), now));
        denials.record_failure(at("10.0.0.1"), now);
        assert!(denials.is_suspicious(at("10.0.0.1"), now) && !denials.is_suspicious(at("10.0.0.2"), now));
        let later = now + FAILURE_LIFETIME;
        assert!(!denials.is_suspicious(at("10.0.0.1"), later));
        assert_eq!(denials.record_failure(at("10.0.0.1"), later).0, FIRST_DELAY);
    }

    #[test]
    fn an_address_is_reported_at_intervals_with_the_total() {
        let (mut denials, now) = (TokenFailures::default(), origin());
        let told = |denials: &mut TokenFailures, now| {
            denials.record_failure(at("10.0.0.1"), now).1.map(|denied| denied.count)
        };
        assert_eq!((told(&mut denials, now), told(&mut denials, now)), (Some(1), None));
        assert_eq!(told(&mut denials, now + REPORT_INTERVAL), Some(2));
    }

    #[test]
    fn an_address_cannot_evade_its_group() {
        assert_eq!(address_group(at("127.9.8.7")), address_group(at("::1")));
        assert_eq!(address_group(at("::ffff:10.0.0.1")), at("10.0.0.1"));
        assert_eq!(address_group(at("2001:db8::1:2:3:4")), address_group(at("2001:db8::9")));
        assert_ne!(address_group(at("2001:db8:0:1::1")), address_group(at("2001:db8::1")));
        let (mut denials, now) = (TokenFailures::default(), origin());
        for n in 0..3 * u32::try_from(MAX_PEERS).unwrap() {
            denials.record_failure(IpAddr::from(Ipv4Addr::from_bits(n | 10 << 24)), now);
        }
        assert!(denials.peers.len() <= MAX_PEERS);
    }
}
