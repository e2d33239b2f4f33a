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
//! 2. The session's `owed` counts every byte between a worker and the ring, and nothing else.
//! 3. Nothing is added to a link with a full socket, even if the client reports room in the ring:
//!    `owed` would not count these bytes.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sheaf::Commit;
use sheaf_flatrpc::link::{Applied, Applier, Link};
use sheaf_flatrpc::ring::{Credit, Outgoing};

use crate::commands::{Payload, Reader};
use crate::gate::Gate;
use crate::session::Session;

/// Item that leaves the gate.
pub(crate) enum Ready {
    Reply(Payload),
    Durable { to: Reader, id: u64, commit: Commit },
}

/// Reads of a socket in a row before other sockets have their turn.
const LOOKS: usize = 4;

pub(crate) struct Port {
    pub(crate) session: Arc<Session>,
    link: Box<dyn Link>,
    ring: Outgoing,
    /// Read positions that the client was told, for the lanes of this port.
    credits: Vec<(usize, Credit)>,
    outbox: VecDeque<Payload>,
    /// Bytes of the first reply in the outbox that are in the ring already.
    sent: usize,
    pub(crate) gate: Gate<Ready>,
    applier: Option<Applier>,
    pub(crate) socket: Arc<OwnedFd>,
    /// The socket may have input.
    pub(crate) readable: bool,
    /// The peer has closed its side: read to the end.
    pub(crate) ending: bool,
    /// Set if something was written and the client was not woken since.
    dirty: bool,
    /// The socket is full. An event reports when it accepts bytes again.
    pub(crate) blocked: bool,
}

/// Parts of a port that depend on the transport.
pub(crate) struct Wire {
    pub(crate) link: Box<dyn Link>,
    pub(crate) applier: Option<Applier>,
    pub(crate) socket: Arc<OwnedFd>,
}

impl Port {
    pub(crate) fn new(
        session: &Arc<Session>,
        ring: Outgoing,
        credits: Vec<(usize, Credit)>,
        wire: Wire,
    ) -> Port {
        Port {
            session: Arc::clone(session),
            link: wire.link,
            ring,
            credits,
            outbox: VecDeque::new(),
            sent: 0,
            gate: Gate::new(session.lanes.len()),
            readable: wire.applier.is_some(),
            ending: false,
            applier: wire.applier,
            socket: wire.socket,
            dirty: false,
            blocked: false,
        }
    }

    /// Returns true if the client writes through the socket.
    pub(crate) fn is_applied(&self) -> bool {
        self.applier.is_some()
    }

    /// Sends a reply of the owner itself, which is not yet counted in `owed`.
    pub(crate) fn reply(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.outbox.is_empty() {
            let pushed = self.push(bytes, 0)?;
            if pushed == bytes.len() {
                return Ok(());
            }
            self.sent = pushed;
        }
        self.session.owed.fetch_add(bytes.len(), Ordering::SeqCst);
        self.outbox.push_back(Payload::new(bytes));
        Ok(())
    }

    /// Sends a reply that is counted in `owed`.
    pub(crate) fn enqueue(&mut self, payload: Payload) -> io::Result<()> {
        self.outbox.push_back(payload);
        self.drain().map(drop)
    }

    /// Writes a message to the ring. Returns the number of its bytes that are in the ring.
    fn push(&mut self, bytes: &[u8], from: usize) -> io::Result<usize> {
        if self.blocked {
            return Ok(from);
        }
        match self.ring.push(&self.session.inbox, &mut *self.link, bytes, from)? {
            Some(to) => {
                self.dirty = true;
                Ok(to)
            }
            None => Ok(from),
        }
    }

    /// Moves replies into the ring while there is room. Returns whether any was moved.
    fn drain(&mut self) -> io::Result<bool> {
        let mut any = false;
        while let Some(first) = self.outbox.pop_front() {
            let (from, len) = (self.sent, first.bytes().len());
            self.sent = self.push(first.bytes(), from)?;
            any |= self.sent > from;
            if self.sent < len {
                self.outbox.push_front(first);
                break;
            }
            self.sent = 0;
            self.session.owed.fetch_sub(len, Ordering::SeqCst);
        }
        Ok(any)
    }

    /// Moves replies into the ring and wakes the client. Returns whether any reply was moved.
    pub(crate) fn settle(&mut self) -> io::Result<bool> {
        if self.blocked {
            return Ok(false);
        }
        let drained = self.drain()?;
        self.tell_credits()?;
        self.flush()?;
        Ok(drained)
    }

    /// Tells the client the read positions of its rings, if that is due.
    fn tell_credits(&mut self) -> io::Result<()> {
        for (lane, credit) in &mut self.credits {
            let head = self.session.lanes[*lane].head.load(Ordering::Acquire);
            self.dirty |= credit.tell(&mut *self.link, head)?;
        }
        Ok(())
    }

    /// Wakes the client if something was written.
    fn flush(&mut self) -> io::Result<()> {
        if self.dirty {
            self.link.post(0)?;
            self.blocked = !self.link.flush()?;
            self.dirty = false;
        }
        Ok(())
    }

    /// Sends the bytes that wait for the socket, after an event that it accepts more.
    pub(crate) fn unblock(&mut self) -> io::Result<()> {
        self.blocked = !self.link.flush()?;
        Ok(())
    }

    /// Applies the input of the socket, up to a limit. Returns one bit for each lane with news, or
    /// `None` if the client has closed.
    pub(crate) fn apply(&mut self) -> io::Result<Option<u64>> {
        let Some(applier) = &mut self.applier else { return Ok(Some(0)) };
        let layout = self.session.layout;
        let mut lanes = 0;
        for _ in 0..LOOKS {
            let applied = applier.apply(&mut |at| {
                if let Some(lane) = layout.ring_of_tail(at) {
                    lanes |= 1 << lane;
                }
            })?;
            match applied {
                Applied::Some => {}
                Applied::All if self.ending => {}
                Applied::All => {
                    self.readable = false;
                    break;
                }
                Applied::End => return Ok(None),
            }
        }
        Ok(Some(lanes))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use sheaf_flatrpc::hello::Mode;
    use sheaf_flatrpc::link::TcpLink;
    use sheaf_flatrpc::memory::Memory;
    use sheaf_flatrpc::ring::Layout;

    use super::*;
    use crate::commands::Whom;
    use crate::session::Slots;

    /// Words of a ring.
    const RING: u64 = 8192;

    /// Returns a port over a stream, its session, and the client's end of the stream.
    fn port() -> (Port, Arc<Session>, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        [&ours, &theirs].iter().for_each(|end| end.set_nonblocking(true).expect("a socket"));
        let layout = Layout::new(1, 1, RING).expect("a layout");
        let slots = Arc::new(Slots::new(1));
        let whom = Whom { slot: slots.take().expect("a place"), session: 1 };
        let inbox = Arc::new(Memory::heap(layout.words()));
        let session = Arc::new(Session::new(whom, Mode::Agent, 0, 1, layout, inbox, slots));
        let socket: Arc<OwnedFd> = Arc::new(ours.into());
        let wire = Wire { link: Box::new(TcpLink::new(Arc::clone(&socket))), applier: None, socket };
        (Port::new(&session, Outgoing::new(layout, 0), Vec::new(), wire), session, theirs)
    }

    #[test]
    fn replies_to_a_client_that_only_claims_to_read_stay_counted() {
        const EACH: usize = 64 << 10;
        const ALL: usize = 64 << 20;
        let (mut port, session, mut theirs) = port();
        for _ in 0..ALL / EACH {
            session.owed.fetch_add(EACH, Ordering::SeqCst);
            port.enqueue(Payload::new(&[1; EACH])).expect("no complaint");
        }
        // More than a ring less a record is in the link whenever replies wait: half can be "read".
        let mut credit = RING / 2;
        session.inbox.publish(8, credit);
        let mut say = |port: &mut Port| {
            if port.settle().expect("no complaint") {
                credit += RING / 2;
                session.inbox.publish(8, credit);
                return true;
            }
            false
        };
        while say(&mut port) {}
        let owed = session.owed.load(Ordering::SeqCst);
        assert!(ALL - owed < 2 << 20, "{} bytes wait in the link", ALL - owed);

        // A client that reads gets the rest, a socket's worth at a time.
        let (mut buffer, mut read) = (vec![0; EACH], 0);
        while session.owed.load(Ordering::SeqCst) > 0 {
            read += theirs.read(&mut buffer).expect("something, or it is stuck");
            port.unblock().expect("no complaint");
            say(&mut port);
        }
        let lag = ALL.saturating_sub(read);
        assert!(lag < 2 << 20, "{lag} bytes wait in the link");
    }
}
