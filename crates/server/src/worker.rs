//! # Workers: execute the requests in the rings
//!
//! ```text
//!   pass:  mail ─> commands ─> sockets ─> each lane, a burst at most
//!          ─> settle: gates, outboxes, credits, bells
//!   idle:  poll for a while; mark as asleep; pass once more; sleep until an event
//! ```
//!
//! Buffered writes that follow each other in a lane are committed as one batch: a burst then has
//! one reservation in the log and one wait for earlier commits (FlatStore, section 3.3).
//! A request of another kind, a write that waits for the device, and the end of the burst end the
//! batch, so that each request sees the requests of its lane before it.
//!
//! A worker owns its lanes (one ring of each client), the ports of the clients that it serves as
//! agent, and an epoll with its own bell, a bell of each client over shared memory, and the sockets
//! of its ports. Bells are edge-triggered and never read: each ring is reported once.
//!
//! ## Invariants
//!
//! 1. A pass that took an event returns true, since the cause of the event may have arrived after
//!    the pass checked for it, and no further ring follows. So no worker sleeps after such a pass.
//! 2. A session's port is delivered before its other lanes. If there is no port for a command, it
//!    is in the mail, or the session has ended.

#[cfg(test)]
mod tests;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};

use rustix::event::{Timespec, epoll};
use sheaf::Keyspace;
use sheaf_flatrpc::ring::{Incoming, Violation};
use sheaf_flatrpc::spin::Spin;
use sheaf_flatrpc::wake::Asleep;

use crate::commands::{Command, Job, Whom};
use crate::execute::joins_burst;
use crate::gate::Look;
use crate::port::{Port, Ready};
use crate::session::Session;
use crate::shared::{Alarm, Shared};

/// Requests of one lane in a row before other lanes have their turn.
const BURST: usize = 16;
/// Passes between two polls of the epoll if no socket needs one in each pass; finds dead clients.
const PASSES: u32 = 256;
/// Polls of memory by an idle worker for each poll of its sockets.
const LOOKS: u32 = 16;
/// Buffers of longer messages are freed after the message.
const KEEP: usize = 64 << 10;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Part of a session for one worker.
pub(crate) struct Arrival {
    pub(crate) session: Arc<Session>,
    pub(crate) ring: Incoming,
    /// Bell that the client rings if this worker sleeps.
    pub(crate) bell: Option<OwnedFd>,
    pub(crate) port: Option<Port>,
}

/// Writes of one lane that are committed together.
#[derive(Default)]
pub(crate) struct Burst {
    /// Messages, then empty buffers for later ones.
    messages: Vec<Vec<u8>>,
    count: usize,
}

impl Burst {
    /// Adds a message. Leaves an empty buffer in its place.
    fn push(&mut self, message: &mut Vec<u8>) {
        if self.count == self.messages.len() {
            self.messages.push(Vec::new());
        }
        std::mem::swap(&mut self.messages[self.count], message);
        self.count += 1;
    }

    pub(crate) fn messages(&self) -> &[Vec<u8>] {
        &self.messages[..self.count]
    }

    pub(crate) fn clear(&mut self) {
        self.messages[..self.count].iter_mut().for_each(empty);
        self.count = 0;
    }
}

/// Empties a buffer, and frees it if it is large.
fn empty(message: &mut Vec<u8>) {
    message.clear();
    if message.capacity() > KEEP {
        *message = Vec::new();
    }
}

/// One ring of one client.
struct Lane {
    session: Arc<Session>,
    ring: Incoming,
    bell: Option<OwnedFd>,
    message: Vec<u8>,
    /// Writes of the present burst, which are committed together.
    burst: Burst,
    /// Head at which the port was last told to send credit.
    told: u64,
}

impl Lane {
    /// Returns true if the lane has work.
    fn is_ready(&self, outbox: usize) -> bool {
        self.session.dead.load(Ordering::Acquire)
            || (self.ring.has_any(&self.session.inbox) && self.session.owed.load(Ordering::SeqCst) <= outbox)
    }
}

pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    commands: Receiver<Command>,
    /// Command that was received during polling.
    pending: Option<Command>,
    epoll: OwnedFd,
    quiet: Option<Sender<()>>,
    /// Dropped when all earlier commands have been passed on.
    flush: Option<Sender<()>>,
    /// Lanes by slot.
    lanes: Vec<Option<Lane>>,
    ports: Vec<Option<Port>>,
    /// Slots that have a lane.
    used: Vec<usize>,
    /// Number of ports that read a socket.
    sockets: usize,
    /// Keyspaces by number.
    pub(crate) keyspaces: Vec<Option<Keyspace>>,
    /// Reply that is being written.
    pub(crate) reply: Vec<u8>,
    spin: Spin,
    passes: u32,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        index: usize,
        commands: Receiver<Command>,
        epoll: OwnedFd,
        quiet: Sender<()>,
    ) -> io::Result<Worker> {
        let slots = shared.limits.clients;
        let spin = Spin::among(shared.limits.workers + 1); // one client polls as well
        Ok(Worker {
            shared,
            index,
            commands,
            pending: None,
            epoll,
            quiet: Some(quiet),
            flush: None,
            lanes: (0..slots).map(|_| None).collect(),
            ports: (0..slots).map(|_| None).collect(),
            used: Vec::new(),
            sockets: 0,
            keyspaces: Vec::new(),
            reply: Vec::new(),
            spin,
            passes: 0,
        })
    }

    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _alarm = Alarm(&shared);
        while !shared.stop.load(Ordering::SeqCst) {
            if self.pass() {
                continue;
            }
            let mut spin = std::mem::take(&mut self.spin);
            let seen = spin.until(|| self.has_news());
            self.spin = spin;
            if !seen {
                self.sleep();
                self.spin.slept();
            }
        }
        self.pass(); // sends the remaining replies
    }

    fn sleep(&mut self) {
        let shared = Arc::clone(&self.shared);
        let wake = &shared.desks[self.index].wake;
        let asleep = Asleep::say(&wake.board, wake.at);
        if !self.pass() && !shared.stop.load(Ordering::SeqCst) {
            self.poll(None);
        }
        drop(asleep);
    }

    /// Returns true if a pass would find work. Cheap.
    fn has_news(&mut self) -> bool {
        if self.pending.is_none() {
            self.pending = self.commands.try_recv().ok();
        }
        let outbox = self.shared.limits.outbox;
        self.pending.is_some()
            || self.shared.desks[self.index].has_mail.load(Ordering::Relaxed)
            || self.has_events()
            || self
                .used
                .iter()
                .any(|slot| self.lanes[*slot].as_ref().is_some_and(|lane| lane.is_ready(outbox)))
    }

    /// Polls the sockets. This is a system call, so not every call of this function does it.
    fn has_events(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        self.sockets > 0 && self.passes.is_multiple_of(LOOKS) && self.poll(Some(&NOW))
    }

    /// Runs one pass. Returns whether there was any work.
    fn pass(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        let mut worked = self.take_mail() | self.take_commands();
        // A flush that arrives later follows commits that this pass may hold.
        let flush = self.flush.take();
        if self.sockets > 0 || self.passes.is_multiple_of(PASSES) {
            worked |= self.poll(Some(&NOW));
            worked |= self.apply();
        }
        let draining = self.shared.draining.load(Ordering::SeqCst);
        for at in (0..self.used.len()).rev() {
            worked |= self.serve(self.used[at], draining);
        }
        worked |= self.settle();
        drop(flush);
        if draining && let Some(quiet) = self.quiet.take() {
            let _ = quiet.send(()); // fails if the server does not wait for it
        }
        worked
    }

    fn take_mail(&mut self) -> bool {
        if !self.shared.desks[self.index].has_mail.load(Ordering::SeqCst) {
            return false;
        }
        for arrival in self.shared.clone().desks[self.index].take_mail() {
            let session = Arc::clone(&arrival.session);
            if self.admit(arrival).is_err() {
                self.shared.end(&session);
            }
        }
        true
    }

    fn admit(&mut self, arrival: Arrival) -> io::Result<()> {
        let Arrival { session, ring, bell, port } = arrival;
        let slot = session.whom.slot;
        let data = |kind: u64| epoll::EventData::new_u64((slot as u64) << 1 | kind);
        use epoll::EventFlags as On;
        if let Some(bell) = &bell {
            epoll::add(&self.epoll, bell, data(1), On::IN | On::ET)?;
        }
        if let Some(port) = &port {
            let on = if port.is_applied() { On::IN | On::OUT | On::RDHUP } else { On::RDHUP };
            epoll::add(&self.epoll, port.socket.as_fd(), data(0), on | On::ET)?;
            self.sockets += usize::from(port.is_applied());
        }
        self.lanes[slot] =
            Some(Lane { session, ring, bell, message: Vec::new(), burst: Burst::default(), told: 0 });
        self.ports[slot] = port;
        self.used.push(slot);
        Ok(())
    }

    /// Releases the parts of a session.
    fn bury(&mut self, slot: usize) {
        self.used.retain(|used| *used != slot);
        if let Some(bell) = self.lanes[slot].take().and_then(|lane| lane.bell) {
            // The client has the descriptor too, so closing it here does not remove it from the
            // epoll.
            let _ = epoll::delete(&self.epoll, &bell);
        }
        if let Some(port) = self.ports[slot].take() {
            self.sockets -= usize::from(port.is_applied());
        }
    }

    /// Ends a session because of an error of the client or its connection.
    fn fail(&mut self, session: &Session, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData && !session.dead.load(Ordering::SeqCst) {
            self.shared.violations.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.end(session);
    }

    /// Polls the epoll and handles events of sockets. Returns whether there were any events.
    fn poll(&mut self, timeout: Option<&Timespec>) -> bool {
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        // An interruption counts as no event: the next pass polls again.
        let count = epoll::wait(&self.epoll, &mut events, timeout).unwrap_or(0);
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data & 1 == 0
                && let Some(port) =
                    usize::try_from(data >> 1).ok().and_then(|slot| self.ports.get_mut(slot)?.as_mut())
            {
                let end = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                if !port.is_applied() && flags.intersects(end) {
                    let session = Arc::clone(&port.session);
                    self.shared.end(&session);
                    continue;
                }
                port.ending |= flags.intersects(end);
                port.readable |= port.is_applied() && flags.intersects(epoll::EventFlags::IN | end);
                if flags.intersects(epoll::EventFlags::OUT)
                    && port.blocked
                    && let Err(error) = port.unblock()
                {
                    let session = Arc::clone(&port.session);
                    self.fail(&session, &error);
                }
            }
        }
        count > 0
    }

    /// Reads the sockets with input. Returns whether there were any.
    fn apply(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.used.len() {
            let Some(port) = self.ports[self.used[at]].as_mut().filter(|port| port.readable) else {
                continue;
            };
            any = true;
            let session = Arc::clone(&port.session);
            match port.apply() {
                Ok(Some(lanes)) => {
                    let others = (0..self.shared.desks.len()).filter(|lane| *lane != self.index);
                    others
                        .filter(|lane| lanes & 1 << lane != 0)
                        .for_each(|lane| self.shared.desks[lane].wake.ring());
                }
                Ok(None) => self.shared.end(&session),
                Err(error) => self.fail(&session, &error),
            }
        }
        any
    }

    /// Takes requests of one lane. Returns whether there were any.
    fn serve(&mut self, slot: usize, draining: bool) -> bool {
        let outbox = self.shared.limits.outbox;
        let Some(mut lane) = self.lanes[slot].take_if(|lane| lane.is_ready(outbox)) else {
            return self.pause(slot);
        };
        let session = Arc::clone(&lane.session);
        if session.dead.load(Ordering::SeqCst) {
            self.lanes[slot] = Some(lane);
            self.bury(slot);
            return true;
        }
        let mut taken = 0;
        let mut served = Ok(true);
        while taken < BURST && !draining && matches!(served, Ok(true)) {
            served = self.take(&session, &mut lane);
            taken += usize::from(matches!(served, Ok(true)));
        }
        // Also after a violation: the requests before it were correct.
        let committed = self.commit_burst(&session, &mut lane.burst);
        if let Err(error) = served.and(committed) {
            self.fail(&session, &error);
        }
        self.lanes[slot] = Some(lane);
        taken > 0
    }

    /// Marks a lane that is not served because too much is owed: the thread that lowers `owed`
    /// rings.
    fn pause(&mut self, slot: usize) -> bool {
        let outbox = self.shared.limits.outbox;
        let Some(lane) = &self.lanes[slot] else { return false };
        if !lane.ring.has_any(&lane.session.inbox) {
            return false;
        }
        lane.session.paused.store(true, Ordering::SeqCst);
        lane.is_ready(outbox) // true if it was lowered just now
    }

    /// Takes one record and executes the request that it completes. Returns false if none can be
    /// taken now.
    fn take(&mut self, session: &Arc<Session>, lane: &mut Lane) -> io::Result<bool> {
        if session.owed.load(Ordering::Relaxed) > self.shared.limits.outbox {
            return Ok(false);
        }
        let Some(whole) = lane.ring.take(&session.inbox, &mut lane.message)? else { return Ok(false) };
        let head = lane.ring.head();
        session.lanes[self.index].head.store(head, Ordering::Release);
        if lane.message.len() > self.shared.limits.message as usize {
            return Err(Violation("a message beyond the limit").into());
        }
        if whole {
            if joins_burst(&lane.message) {
                lane.burst.push(&mut lane.message);
            } else {
                self.commit_burst(session, &mut lane.burst)?;
                let executed = self.execute(session, &lane.message);
                empty(&mut lane.message);
                executed?;
            }
        }
        let owner = session.owner(self.index);
        if owner != self.index && lane.ring.credit().is_due(head - lane.told) {
            lane.told = head;
            self.shared.desks[owner].send(Command::Credit { whom: session.whom });
            self.shared.desks[owner].wake.ring();
        }
        Ok(true)
    }

    /// Returns the port of a session that this worker owns.
    pub(crate) fn port(&mut self, whom: Whom) -> Option<&mut Port> {
        self.ports[whom.slot].as_mut().filter(|port| port.session.whom == whom)
    }

    /// Takes the commands of other workers and the waiter. Returns whether there were any.
    fn take_commands(&mut self) -> bool {
        let mut any = false;
        while let Some(command) = self.pending.take().or_else(|| self.commands.try_recv().ok()) {
            any = true;
            let Some(whom) = command.whom() else {
                if let Command::Flush(done) = command {
                    self.flush = Some(done);
                }
                continue;
            };
            if self.port(whom).is_none() {
                // Delivered since the mail was taken, and other workers already serve the session.
                self.take_mail();
            }
            let Some(port) = self.port(whom) else { continue };
            let done = match command {
                Command::Reply { payload, .. } => port.enqueue(payload),
                Command::Commit { lane, seq, payload, .. } => {
                    port.gate.hold(lane, seq, Ready::Reply(payload));
                    Ok(())
                }
                Command::Durable { to, lane, id, commit } => {
                    port.gate.hold(lane, commit.seq(), Ready::Durable { to, id, commit });
                    Ok(())
                }
                Command::Credit { .. } | Command::Flush(_) => Ok(()), // `settle` tells
            };
            if let Err(error) = done {
                let session = Arc::clone(&port.session);
                self.fail(&session, &error);
            }
        }
        any
    }

    /// Handles gates, outboxes, credits and bells of all ports. Returns whether anything moved.
    fn settle(&mut self) -> bool {
        let mut worked = false;
        let mut gates: Vec<(usize, Look)> = Vec::new();
        for slot in &self.used {
            if let Some(port) = self.ports[*slot].as_ref().filter(|port| !port.gate.is_empty()) {
                gates.push((*slot, port.gate.look(port.session.writing())));
            }
        }
        if !gates.is_empty() {
            worked |= self.take_commands(); // after the flags were read: see `gate`
        }
        for (slot, look) in gates {
            worked |= self.let_out(slot, look);
        }
        for at in 0..self.used.len() {
            let Some(port) = self.ports[self.used[at]].as_mut() else { continue };
            let settled = port.settle();
            let session = &port.session;
            if session.paused.load(Ordering::SeqCst)
                && session.owed.load(Ordering::SeqCst) <= self.shared.limits.outbox
            {
                session.paused.store(false, Ordering::SeqCst);
                self.shared.desks.iter().for_each(|desk| desk.wake.ring());
                worked = true;
            }
            match settled {
                Ok(drained) => worked |= drained,
                Err(error) => {
                    let session = Arc::clone(session);
                    self.fail(&session, &error);
                }
            }
        }
        worked
    }

    /// Releases commits from the gate of a port. Returns whether there were any.
    fn let_out(&mut self, slot: usize, look: Look) -> bool {
        let mut any = false;
        while let Some(port) = self.ports[slot].as_mut()
            && let Some(ready) = port.gate.release(look)
        {
            any = true;
            match ready {
                Ready::Reply(payload) => {
                    if let Err(error) = port.enqueue(payload) {
                        let session = Arc::clone(&port.session);
                        self.fail(&session, &error);
                    }
                }
                Ready::Durable { to, id, commit } => {
                    // Fails only if the server ends.
                    let _ = self.shared.jobs.send(Job::Durable { to, id, commit });
                }
            }
        }
        any
    }
}
