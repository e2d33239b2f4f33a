//! Tests of rings over both kinds of link. Messages of any length arrive unchanged. A hostile peer
//! that writes arbitrary values to an inbox causes a violation or an invalid message, never a
//! panic.

#![allow(clippy::cast_possible_truncation, reason = "numbers are cut on purpose")]

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use sheaf_flatrpc::link::{ApplyOutcome, FrameApplier, PeerLink, SharedLink, TcpLink};
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::ring::{InboxLayout, RingCredit, RingReader, RingWriter};

const RING: u64 = 64;

/// Both ends of one direction. Credits return directly to the sender.
struct RingPair {
    sender: Arc<SharedMemory>,
    receiver: Arc<SharedMemory>,
    out: RingWriter,
    link: Box<dyn PeerLink>,
    applier: Option<FrameApplier>,
    incoming: RingReader,
    credit: RingCredit,
    back: SharedLink,
}

impl RingPair {
    fn new(tcp: bool) -> RingPair {
        let layout = InboxLayout::new(2, 3, RING).expect("a layout");
        let sender = Arc::new(SharedMemory::heap(layout.words()));
        let receiver = Arc::new(SharedMemory::heap(layout.of_peer().words()));
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        ours.set_nonblocking(true).expect("a socket");
        theirs.set_nonblocking(true).expect("a socket");
        let (ours, theirs) = (Arc::new(OwnedFd::from(ours)), Arc::new(OwnedFd::from(theirs)));
        let link: Box<dyn PeerLink> = if tcp {
            Box::new(TcpLink::new(ours))
        } else {
            Box::new(SharedLink::<OwnedFd>::new(Arc::clone(&receiver), Vec::new()))
        };
        let incoming = RingReader::new(layout.of_peer(), 1);
        RingPair {
            out: RingWriter::new(layout, 1),
            link,
            applier: tcp.then(|| FrameApplier::new(theirs, Arc::clone(&receiver))),
            credit: incoming.credit(),
            incoming,
            back: SharedLink::<OwnedFd>::new(Arc::clone(&sender), Vec::new()),
            sender,
            receiver,
        }
    }

    /// Sends one message while the other end reads.
    fn send(&mut self, message: &[u8]) -> io::Result<Vec<u8>> {
        let (mut from, mut got) = (0, Vec::new());
        loop {
            if from < message.len() || message.is_empty() {
                from = self.out.write_message(&self.sender, &mut *self.link, message, from)?.unwrap_or(from);
            }
            self.link.flush()?;
            if let Some(applier) = &mut self.applier {
                while applier.apply(&mut |_| {})? == ApplyOutcome::More {}
            }
            while let Some(whole) = self.incoming.read_record(&self.receiver, &mut got)? {
                self.credit.send_if_due(&mut self.back, self.incoming.head())?;
                if whole {
                    return Ok(got);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn messages_of_any_length_survive_a_ring(lens in vec(0usize..2000, 1..30), tcp in any::<bool>()) {
        let mut pipe = RingPair::new(tcp);
        for (number, len) in lens.into_iter().enumerate() {
            let message: Vec<u8> = (0..len).map(|at| (at * 31 + number) as u8).collect();
            prop_assert_eq!(pipe.send(&message).expect("it goes through"), message);
        }
    }

    #[test]
    fn a_corrupted_inbox_is_a_violation_or_a_message(
        writes in vec((0usize..200, prop_oneof![0u64..100, any::<u64>(), Just(1 << 32 | 8)]), 1..20)
    ) {
        let mut pipe = RingPair::new(false);
        for (at, value) in writes {
            pipe.receiver.writable_word(at % pipe.receiver.len()).store(value, Ordering::Relaxed);
            pipe.sender.writable_word(at % pipe.sender.len()).store(value, Ordering::Relaxed);
            let mut got = Vec::new();
            for _ in 0..RING {
                if !matches!(pipe.incoming.read_record(&pipe.receiver, &mut got), Ok(Some(_))) {
                    break;
                }
            }
            prop_assert!(got.len() <= 8 * usize::try_from(RING * RING).expect("small"));
            let _ = pipe.out.write_message(&pipe.sender, &mut *pipe.link, &[1; 900], 0);
        }
    }

    #[test]
    fn any_bytes_from_a_socket_stay_within_the_inbox(bytes in vec(any::<u8>(), 0..600), small in any::<bool>()) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        theirs.set_nonblocking(true).expect("a socket");
        let mut bytes = bytes;
        if small && bytes.len() >= 8 {
            bytes[..8].copy_from_slice(&[5, 0, 0, 0, 3, 0, 0, 0]);
        }
        io::Write::write_all(&mut &ours, &bytes).expect("room");
        drop(ours);
        let mut applier = FrameApplier::new(Arc::new(theirs.into()), Arc::new(SharedMemory::heap(40)));
        for _ in 0..8 {
            match applier.apply(&mut |at| assert!(at < 40)) {
                Ok(ApplyOutcome::Closed) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
}

#[test]
fn a_frame_beyond_the_inbox_is_refused() {
    for (at, count) in [(40u32, 1u32), (0, 41), (u32::MAX, u32::MAX), (39, 2), (3, 0)] {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let frame = [at.to_le_bytes(), count.to_le_bytes()].concat();
        io::Write::write_all(&mut &ours, &frame).expect("room");
        let mut applier = FrameApplier::new(Arc::new(theirs.into()), Arc::new(SharedMemory::heap(40)));
        assert!(applier.apply(&mut |_| {}).is_err(), "{at} {count}");
    }
}
