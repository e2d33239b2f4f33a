//! # Workers: what is in the rings, executed
//!
//! ```text
//!   pass:  mail ─> commands ─> sockets ─> each lane, a burst at most ─> settle: gates, outboxes, credits, bells
//!   idle:  look for a while; say asleep; pass once more; sleep until an event
//! ```
//!
//! A worker owns its lanes (one ring of each client), the ports of the clients whose agent it is, and an epoll
//! with: its own bell, a bell of each client over shared memory, the sockets of its ports. Bells are not read:
//! each ring is an edge, told once.
//!
//! ## Invariants
//!
//! 1. A pass that took an event has worked: what the event tells of may have come after the pass looked there, and nobody
//!    rings for it again. So no worker sleeps after such a pass.
//! 2. A session's port is delivered before its other lanes: whoever finds no port for a command finds it in the mail, or the
//!    session is over.

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
use crate::gate::Look;
use crate::port::{Port, Ready};
use crate::session::Session;
use crate::shared::{Alarm, Shared};

/// Requests of one lane in a row before others have their turn.
const BURST: usize = 16;
/// A look at the epoll after so many passes, when no socket needs it in each: clients that are gone.
const PASSES: u32 = 256;
/// Looks of an idle worker to one at its sockets.
const LOOKS: u32 = 16;
/// Messages longer than this do not leave their buffer behind.
const KEEP: usize = 64 << 10;
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// A part of a session, on its way to a worker.
pub(crate) struct Arrival {
    pub(crate) session: Arc<Session>,
    pub(crate) ring: Incoming,
    /// What the client rings when this worker sleeps.
    pub(crate) bell: Option<OwnedFd>,
    pub(crate) port: Option<Port>,
}

/// One ring of one client.
struct Lane {
    session: Arc<Session>,
    ring: Incoming,
    bell: Option<OwnedFd>,
    message: Vec<u8>,
    /// The head at which the port was last told to look at it.
    told: u64,
}

impl Lane {
    /// Whether there is something to do for it.
    fn is_ready(&self, outbox: usize) -> bool {
        self.session.dead.load(Ordering::Acquire)
            || (self.ring.has_any(&self.session.inbox) && self.session.owed.load(Ordering::SeqCst) <= outbox)
    }
}

pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) index: usize,
    commands: Receiver<Command>,
    /// A command that was seen while looking.
    pending: Option<Command>,
    epoll: OwnedFd,
    quiet: Option<Sender<()>>,
    /// Dropped when all that was handed over before it has gone on.
    flush: Option<Sender<()>>,
    /// By slot.
    lanes: Vec<Option<Lane>>,
    ports: Vec<Option<Port>>,
    /// Slots that have a lane.
    used: Vec<usize>,
    /// Ports that read a socket.
    sockets: usize,
    /// By number.
    pub(crate) keyspaces: Vec<Option<Keyspace>>,
    /// The reply that is being written.
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
        let spin = Spin::among(shared.limits.workers + 1); // and a client, which looks as well
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
        self.pass(); // replies that are on their way
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

    /// Something is there that a pass would find. Cheap.
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

    /// Whether a socket has something: a system call, so not at every look.
    fn has_events(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        self.sockets > 0 && self.passes.is_multiple_of(LOOKS) && self.poll(Some(&NOW))
    }

    /// One round; whether anything was done.
    fn pass(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        let mut worked = self.take_mail() | self.take_commands();
        let flush = self.flush.take(); // one that comes later has commits before it that this pass may hold
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
            let _ = quiet.send(()); // or nobody waits for it
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
        self.lanes[slot] = Some(Lane { session, ring, bell, message: Vec::new(), told: 0 });
        self.ports[slot] = port;
        self.used.push(slot);
        Ok(())
    }

    /// Lets go of a session's parts.
    fn bury(&mut self, slot: usize) {
        self.used.retain(|used| *used != slot);
        if let Some(bell) = self.lanes[slot].take().and_then(|lane| lane.bell) {
            // The client has it, too: closing ours does not take it out.
            let _ = epoll::delete(&self.epoll, &bell);
        }
        if let Some(port) = self.ports[slot].take() {
            self.sockets -= usize::from(port.is_applied());
        }
    }

    /// Ends a session for a reason of the client's.
    fn fail(&mut self, session: &Session, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData && !session.dead.load(Ordering::SeqCst) {
            self.shared.violations.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.end(session);
    }

    /// Events of sockets; whether there were any events.
    fn poll(&mut self, timeout: Option<&Timespec>) -> bool {
        let mut events = [const {
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }
        }; 64];
        // An interruption is like no event: the next pass looks again.
        let count = epoll::wait(&self.epoll, &mut events, timeout).unwrap_or(0);
        for event in &events[..count] {
            let (flags, data) = (event.flags, event.data.u64());
            if data & 1 == 0
                && let Some(port) =
                    usize::try_from(data >> 1).ok().and_then(|slot| self.ports.get_mut(slot)?.as_mut())
            {
                let gone = epoll::EventFlags::RDHUP | epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                if !port.is_applied() && flags.intersects(gone) {
                    let session = Arc::clone(&port.session);
                    self.shared.end(&session);
                    continue;
                }
                port.ending |= flags.intersects(gone);
                port.readable |= port.is_applied() && flags.intersects(epoll::EventFlags::IN | gone);
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

    /// Reads sockets that have something; whether any had.
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

    /// Takes requests of one lane; whether there were any.
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
        while taken < BURST && !draining {
            match self.take(&session, &mut lane) {
                Ok(true) => taken += 1,
                Ok(false) => break,
                Err(error) => {
                    self.fail(&session, &error);
                    break;
                }
            }
        }
        self.lanes[slot] = Some(lane);
        taken > 0
    }

    /// What is owed keeps a lane from being served: whoever lowers it is to ring.
    fn pause(&mut self, slot: usize) -> bool {
        let outbox = self.shared.limits.outbox;
        let Some(lane) = &self.lanes[slot] else { return false };
        if !lane.ring.has_any(&lane.session.inbox) {
            return false;
        }
        lane.session.paused.store(true, Ordering::SeqCst);
        lane.is_ready(outbox) // lowered just now: once more
    }

    /// Takes one record, and executes the request that it ends; false if there is none to take now.
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
            let executed = self.execute(session, &lane.message);
            lane.message.clear();
            if lane.message.capacity() > KEEP {
                lane.message = Vec::new();
            }
            executed?;
        }
        let owner = session.owner(self.index);
        if owner != self.index && lane.ring.credit().is_due(head - lane.told) {
            lane.told = head;
            self.shared.desks[owner].send(Command::Credit { whom: session.whom });
            self.shared.desks[owner].wake.ring();
        }
        Ok(true)
    }

    /// The port of a session that this worker owns.
    pub(crate) fn port(&mut self, whom: Whom) -> Option<&mut Port> {
        self.ports[whom.slot].as_mut().filter(|port| port.session.whom == whom)
    }

    /// Takes what other workers and the waiter left here; whether there was anything.
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
                self.take_mail(); // delivered after the last look, and others have begun to serve it
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

    /// Gates, outboxes, credits, bells of all ports; whether anything moved.
    fn settle(&mut self) -> bool {
        let mut worked = false;
        let mut gates: Vec<(usize, Look)> = Vec::new();
        for slot in &self.used {
            if let Some(port) = self.ports[*slot].as_ref().filter(|port| !port.gate.is_empty()) {
                gates.push((*slot, port.gate.look(port.session.writing())));
            }
        }
        if !gates.is_empty() {
            worked |= self.take_commands(); // after the look at who is writing: see `gate`
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

    /// Lets out of a port's gate what may leave; whether there was anything.
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
                    let _ = self.shared.jobs.send(Job::Durable { to, id, commit }); // or it ends anyway
                }
            }
        }
        any
    }
}
