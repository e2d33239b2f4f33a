//! # Denials: wrong tokens, by the address that they came from
//!
//! The answer to a wrong token is held back: 250 ms at first, twice as long with each further one, 4 s at most. Nothing is slept for: the
//! door keeps the connection until the answer is due. A right token is answered at once, so that nobody is kept out by
//! another one's mistakes; only where many wrong ones come from is it held back as long as a first mistake, so that a
//! connection that was not answered at once tells nothing.
//!
//! All addresses of this machine count as one, and of IPv6 all of a network (64 bits), since a peer can choose among those.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the answer to a first mistake is held back.
pub(crate) const FIRST: Duration = Duration::from_millis(250);
/// The delay is doubled so often at most.
const DOUBLINGS: u32 = 4;
/// So many mistakes make an address suspicious: right tokens from there are held back too.
const MANY: u32 = 8;
/// Mistakes are forgotten after so long without another one.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Between two reports of one address.
const QUIET: Duration = Duration::from_secs(10);
/// Addresses that are remembered.
const MOST: usize = 1024;

/// Wrong tokens from one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied {
    /// Where they came from; one address for all of this machine, or of an IPv6 network.
    pub peer: IpAddr,
    /// How many came since the last report of this address, at least one.
    pub count: u64,
}

/// Is told of wrong tokens.
pub(crate) type Tell = Arc<dyn Fn(&Denied) + Send + Sync>;

/// What one address did.
struct Peer {
    mistakes: u32,
    last: Instant,
    told: Option<Instant>,
    untold: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Denials {
    peers: HashMap<IpAddr, Peer>,
}

impl Denials {
    /// Counts a wrong token from `peer`. Returns how long the answer is to be held back, and a report if one is due.
    pub(crate) fn wrong(&mut self, peer: IpAddr, now: Instant) -> (Duration, Option<Denied>) {
        let address = group(peer);
        self.forget(now);
        let peer =
            self.peers.entry(address).or_insert(Peer { mistakes: 0, last: now, told: None, untold: 0 });
        peer.mistakes = peer.mistakes.saturating_add(1);
        peer.last = now;
        peer.untold += 1;
        let delay = FIRST * (1 << (peer.mistakes - 1).min(DOUBLINGS));
        if peer.told.is_some_and(|told| now.saturating_duration_since(told) < QUIET) {
            return (delay, None);
        }
        peer.told = Some(now);
        (delay, Some(Denied { peer: address, count: std::mem::take(&mut peer.untold) }))
    }

    /// Whether many wrong tokens came from `peer` of late.
    pub(crate) fn is_suspicious(&self, peer: IpAddr, now: Instant) -> bool {
        let is_recent = |peer: &Peer| now.saturating_duration_since(peer.last) < FORGOTTEN;
        self.peers.get(&group(peer)).is_some_and(|peer| peer.mistakes >= MANY && is_recent(peer))
    }

    /// Forgets what is long ago; if there is too much still, the address that was quiet for longest.
    fn forget(&mut self, now: Instant) {
        if self.peers.len() < MOST {
            self.peers.retain(|_, peer| now.saturating_duration_since(peer.last) < FORGOTTEN);
            return;
        }
        let quietest = self.peers.iter().min_by_key(|(_, peer)| peer.last).map(|(address, _)| *address);
        if let Some(quietest) = quietest {
            self.peers.remove(&quietest);
        }
    }
}

/// The address that stands for all that a peer may have.
fn group(peer: IpAddr) -> IpAddr {
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
    fn each_mistake_takes_longer_and_they_are_forgotten() {
        let (mut denials, now) = (Denials::default(), origin());
        let delays: Vec<u128> = (0..7).map(|_| denials.wrong(at("10.0.0.1"), now).0.as_millis()).collect();
        assert_eq!(delays, [250, 500, 1000, 2000, 4000, 4000, 4000]);
        assert_eq!(denials.wrong(at("10.0.0.2"), now).0, FIRST, "another's mistakes are not ours");
        assert!(!denials.is_suspicious(at("10.0.0.1"), now));
        denials.wrong(at("10.0.0.1"), now);
        assert!(denials.is_suspicious(at("10.0.0.1"), now) && !denials.is_suspicious(at("10.0.0.2"), now));
        let later = now + FORGOTTEN;
        assert!(!denials.is_suspicious(at("10.0.0.1"), later));
        assert_eq!(denials.wrong(at("10.0.0.1"), later).0, FIRST);
    }

    #[test]
    fn an_address_is_reported_now_and_then_with_all_that_came() {
        let (mut denials, now) = (Denials::default(), origin());
        let told =
            |denials: &mut Denials, now| denials.wrong(at("10.0.0.1"), now).1.map(|denied| denied.count);
        assert_eq!((told(&mut denials, now), told(&mut denials, now)), (Some(1), None));
        assert_eq!(told(&mut denials, now + QUIET), Some(2));
    }

    #[test]
    fn a_peer_cannot_choose_who_it_is() {
        assert_eq!(group(at("127.9.8.7")), group(at("::1")));
        assert_eq!(group(at("::ffff:10.0.0.1")), at("10.0.0.1"));
        assert_eq!(group(at("2001:db8::1:2:3:4")), group(at("2001:db8::9")));
        assert_ne!(group(at("2001:db8:0:1::1")), group(at("2001:db8::1")));
        let (mut denials, now) = (Denials::default(), origin());
        for n in 0..3 * u32::try_from(MOST).unwrap() {
            denials.wrong(IpAddr::from(Ipv4Addr::from_bits(n | 10 << 24)), now);
        }
        assert!(denials.peers.len() <= MOST);
    }
}
