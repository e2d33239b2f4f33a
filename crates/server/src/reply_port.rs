//! # Ports: replies to a client
//!
//! A port is owned by one worker: the client's agent, or with all-to-all every worker for its lane.
//! All writes to the client's memory use the port.
//!
//! ```text
//!   commits ─> gate ─┬─> outbox ─> ring of the client ─> link
//!   other replies ───┼─────^
//!                    └─> waiter (durable ones), which sends the replies as other replies
//! ```
//!
//! ## Invariants
//!
//! 1. Replies leave in the order in which they entered the outbox. After a drain the outbox is
//!    empty, or the ring or the socket is full.
//! 2. The session's `unsent_bytes` count every byte between a worker and the ring, and nothing
//!    else.
//! 3. Nothing is added to a link with a full socket, even if the client reports room in the ring:
//!    `unsent_bytes` would not count these bytes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf::CommitTicket;
use sheaf_flatrpc::link::{ApplyOutcome, FrameApplier, PeerLink};
use sheaf_flatrpc::ring::{RingCredit, RingWriter};

use crate::commands::{EncodedReply, PendingReply};
use crate::commit_order::CommitOrder;
use crate::session::Session;

/// Item that leaves the gate.
pub(crate) enum ReadyReply {
    Reply(EncodedReply),
    Durable { to: PendingReply, id: u64, commit: CommitTicket },
}

/// Reads of a socket in a row before other sockets have their turn.
const MAX_SOCKET_READS: usize = 4;

pub(crate) struct ReplyPort {
    pub(crate) session: Arc<Session>,
    link: Box<dyn PeerLink>,
    ring: RingWriter,
    /// Read positions that the client was told, for the lanes of this port.
    credits: Vec<(usize, RingCredit)>,
    outbox: VecDeque<EncodedReply>,
    /// Bytes of the first reply in the outbox that are in the ring already.
    first_sent: usize,
    pub(crate) commit_order: CommitOrder<ReadyReply>,
    applier: Option<FrameApplier>,
    pub(crate) socket: Arc<OwnedFd>,
    /// The socket may have input.
    pub(crate) is_readable: bool,
    /// The peer has closed its side: read to the end.
    pub(crate) is_peer_closed: bool,
    /// Set if something was written and the client was not woken since.
    needs_wake: bool,
    /// The socket is full. An event reports when it accepts bytes again.
    pub(crate) is_socket_full: bool,
}

/// Parts of a port that depend on the transport.
pub(crate) struct PortTransport {
    pub(crate) link: Box<dyn PeerLink>,
    pub(crate) applier: Option<FrameApplier>,
    pub(crate) socket: Arc<OwnedFd>,
}

impl ReplyPort {
    pub(crate) fn new(
        session: &Arc<Session>,
        ring: RingWriter,
        credits: Vec<(usize, RingCredit)>,
        wire: PortTransport,
    ) -> ReplyPort {
        ReplyPort {
            session: Arc::clone(session),
            link: wire.link,
            ring,
            credits,
            outbox: VecDeque::new(),
            first_sent: 0,
            commit_order: CommitOrder::new(session.lanes.len()),
            is_readable: wire.applier.is_some(),
            is_peer_closed: false,
            applier: wire.applier,
            socket: wire.socket,
            needs_wake: false,
            is_socket_full: false,
        }
    }

    /// Returns true if the client writes through the socket.
    pub(crate) fn reads_socket(&self) -> bool {
        self.applier.is_some()
    }

    /// Sends a reply of the owner itself, which is not yet counted in `unsent_bytes`.
    pub(crate) fn reply(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.outbox.is_empty() {
            let pushed = self.write_message(bytes, 0)?;
            if pushed == bytes.len() {
                return Ok(());
            }
            self.first_sent = pushed;
        }
        self.session.unsent_bytes.fetch_add(bytes.len(), Ordering::SeqCst);
        self.outbox.push_back(EncodedReply::new(bytes));
        Ok(())
    }

    /// Sends a reply that is counted in `unsent_bytes`.
    pub(crate) fn enqueue(&mut self, payload: EncodedReply) -> io::Result<()> {
        self.outbox.push_back(payload);
        self.drain_outbox().map(drop)
    }

    /// Writes a message to the ring. Returns the number of its bytes that are in the ring.
    fn write_message(&mut self, bytes: &[u8], from: usize) -> io::Result<usize> {
        if self.is_socket_full {
            return Ok(from);
        }
        match self.ring.write_message(&self.session.inbox, &mut *self.link, bytes, from)? {
            Some(to) => {
                self.needs_wake = true;
                Ok(to)
            }
            None => Ok(from),
        }
    }

    /// Moves replies into the ring while there is room. Returns whether any was moved.
    fn drain_outbox(&mut self) -> io::Result<bool> {
        let mut any = false;
        while let Some(first) = self.outbox.pop_front() {
            let (from, len) = (self.first_sent, first.bytes().len());
            match self.write_message(first.bytes(), from) {
                Ok(to) => self.first_sent = to,
                Err(error) => {
                    // Other replies may arrive until the session is released: `first_sent` must
                    // still be a position in the first one.
                    self.outbox.push_front(first);
                    return Err(error);
                }
            }
            any |= self.first_sent > from;
            if self.first_sent < len {
                self.outbox.push_front(first);
                break;
            }
            self.first_sent = 0;
            let before = self.session.unsent_bytes.fetch_sub(len, Ordering::SeqCst);
            assert!(before >= len, "reply_port (I2): each reply in the outbox is counted");
        }
        let first_len = self.outbox.front().map_or(0, |first| first.bytes().len());
        assert!(self.first_sent <= first_len, "reply_port (I1): only the first reply may be partly sent");
        Ok(any)
    }

    /// Moves replies into the ring and wakes the client. Returns whether any reply was moved.
    pub(crate) fn flush_replies(&mut self) -> io::Result<bool> {
        if self.is_socket_full {
            return Ok(false);
        }
        let drained = self.drain_outbox()?;
        self.send_credits()?;
        self.wake_client()?;
        Ok(drained)
    }

    /// Tells the client the read positions of its rings, if that is due.
    fn send_credits(&mut self) -> io::Result<()> {
        for (lane, credit) in &mut self.credits {
            let head = self.session.lanes[*lane].head.load(Ordering::Acquire);
            self.needs_wake |= credit.send_if_due(&mut *self.link, head)?;
        }
        Ok(())
    }

    /// Wakes the client if something was written.
    fn wake_client(&mut self) -> io::Result<()> {
        assert!(!self.is_socket_full, "reply_port (I3): nothing is added to a link with a full socket");
        if self.needs_wake {
            self.link.post(0)?;
            self.is_socket_full = !self.link.flush()?;
            self.needs_wake = false;
        }
        Ok(())
    }

    /// Sends the bytes that wait for the socket, after an event that it accepts more.
    pub(crate) fn resume_send(&mut self) -> io::Result<()> {
        self.is_socket_full = !self.link.flush()?;
        Ok(())
    }

    /// Applies the input of the socket, up to a limit. Returns one bit for each lane with news, or
    /// `None` if the client has closed.
    pub(crate) fn read_socket(&mut self) -> io::Result<Option<u64>> {
        let Some(applier) = &mut self.applier else { return Ok(Some(0)) };
        let layout = self.session.layout;
        let mut lanes = 0;
        for _ in 0..MAX_SOCKET_READS {
            let applied = applier.apply(&mut |at| {
                if let Some(lane) = layout.ring_of_tail(at) {
                    lanes |= 1 << lane;
                }
            })?;
            match applied {
                ApplyOutcome::More => {}
                ApplyOutcome::Drained if self.is_peer_closed => {}
                ApplyOutcome::Drained => {
                    self.is_readable = false;
                    break;
                }
                ApplyOutcome::Closed => return Ok(None),
            }
        }
        Ok(Some(lanes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use sheaf_flatrpc::handshake::ReplyMode;
    use sheaf_flatrpc::link::TcpLink;
    use sheaf_flatrpc::memory::SharedMemory;
    use sheaf_flatrpc::ring::InboxLayout;

    use super::*;
    use crate::commands::Recipient;
    use crate::session::SessionSlots;

    /// Words of a ring.
    const RING: u64 = 8192;

    /// Returns a port over a stream, its session, and the client's end of the stream.
    fn port() -> (ReplyPort, Arc<Session>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).expect("a socket"));
        let layout = InboxLayout::new(1, 1, RING).expect("a layout");
        let slots = Arc::new(SessionSlots::new(1));
        let whom = Recipient { slot: slots.allocate().expect("a place"), session: 1 };
        let inbox = Arc::new(SharedMemory::heap(layout.words()));
        let session = Arc::new(Session::new(whom, ReplyMode::Agent, 0, 1, layout, inbox, slots));
        let socket: Arc<OwnedFd> = Arc::new(ours.into());
        let wire = PortTransport { link: Box::new(TcpLink::new(Arc::clone(&socket))), applier: None, socket };
        (ReplyPort::new(&session, RingWriter::new(layout, 0), Vec::new(), wire), session, theirs)
    }

    #[test]
    fn a_reply_after_a_violation_during_a_long_reply_causes_no_panic() {
        let (mut port, session, _theirs) = port();
        let long = vec![1; 1 << 20];
        session.unsent_bytes.fetch_add(long.len() + 3, Ordering::SeqCst);
        port.enqueue(EncodedReply::new(&long)).expect("no complaint");
        session.inbox.publish(8, u64::MAX); // a credit for words that were not sent
        assert!(port.flush_replies().is_err());
        // Another worker replies before the parts of the session are released.
        assert!(port.enqueue(EncodedReply::new(b"abc")).is_err());
    }

    #[test]
    fn replies_to_a_client_that_acknowledges_without_reading_stay_counted() {
        const EACH: usize = 64 << 10;
        const ALL: usize = 64 << 20;
        let (mut port, session, mut theirs) = port();
        for _ in 0..ALL / EACH {
            session.unsent_bytes.fetch_add(EACH, Ordering::SeqCst);
            port.enqueue(EncodedReply::new(&[1; EACH])).expect("no complaint");
        }
        // More than a ring less a record is in the link whenever replies wait: half can be "read".
        let mut credit = RING / 2;
        session.inbox.publish(8, credit);
        let mut say = |port: &mut ReplyPort| {
            if port.flush_replies().expect("no complaint") {
                credit += RING / 2;
                session.inbox.publish(8, credit);
                return true;
            }
            false
        };
        while say(&mut port) {}
        let owed = session.unsent_bytes.load(Ordering::SeqCst);
        assert!(ALL - owed < 2 << 20, "{} bytes wait in the link", ALL - owed);

        // A client that reads gets the rest, a socket's worth at a time.
        let (mut buffer, mut read) = (vec![0; EACH], 0);
        while session.unsent_bytes.load(Ordering::SeqCst) > 0 {
            read += theirs.read(&mut buffer).expect("something, or it is stuck");
            port.resume_send().expect("no complaint");
            say(&mut port);
        }
        let lag = ALL.saturating_sub(read);
        assert!(lag < 2 << 20, "{lag} bytes wait in the link");
    }
}
