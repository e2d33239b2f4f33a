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
use sheaf_flatrpc::ring::{ProtocolViolation, RingReader};
use sheaf_flatrpc::spin::SpinWait;
use sheaf_flatrpc::wake::SleepGuard;

use crate::commands::{Recipient, WaiterJob, WorkerCommand};
use crate::commit_order::FlagSnapshot;
use crate::execute::can_join_batch;
use crate::reply_port::{ReadyReply, ReplyPort};
use crate::server_state::{ServerState, StopOnPanic};
use crate::session::Session;

/// Requests of one lane in a row before other lanes have their turn.
const MAX_BURST: usize = 16;
/// Passes between two polls of the epoll if no socket needs one in each pass; finds dead clients.
const EPOLL_INTERVAL: u32 = 256;
/// Polls of memory by an idle worker for each poll of its sockets.
const SOCKET_POLL_INTERVAL: u32 = 16;
/// Buffers of longer messages are freed after the message.
const MAX_KEPT_BUFFER: usize = 64 << 10;
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Part of a session for one worker.
pub(crate) struct SessionPart {
    pub(crate) session: Arc<Session>,
    pub(crate) ring: RingReader,
    /// Bell that the client rings if this worker sleeps.
    pub(crate) notifier: Option<OwnedFd>,
    pub(crate) port: Option<ReplyPort>,
}

/// Writes of one lane that are committed together.
#[derive(Default)]
pub(crate) struct WriteBurst {
    /// Messages, then empty buffers for later ones.
    messages: Vec<Vec<u8>>,
    count: usize,
}

impl WriteBurst {
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
        self.messages[..self.count].iter_mut().for_each(reset_buffer);
        self.count = 0;
    }
}

/// Empties a buffer, and frees it if it is large.
fn reset_buffer(message: &mut Vec<u8>) {
    message.clear();
    if message.capacity() > MAX_KEPT_BUFFER {
        *message = Vec::new();
    }
}

/// One ring of one client.
struct RequestLane {
    session: Arc<Session>,
    ring: RingReader,
    notifier: Option<OwnedFd>,
    message: Vec<u8>,
    /// Writes of the present burst, which are committed together.
    burst: WriteBurst,
    /// Head at which the port was last told to send credit.
    credited_head: u64,
}

impl RequestLane {
    /// Returns true if the lane has work.
    fn is_ready(&self, outbox: usize) -> bool {
        self.session.is_ended.load(Ordering::Acquire)
            || (self.ring.has_record(&self.session.inbox)
                && self.session.unsent_bytes.load(Ordering::SeqCst) <= outbox)
    }
}

pub(crate) struct Worker {
    pub(crate) shared: Arc<ServerState>,
    pub(crate) index: usize,
    commands: Receiver<WorkerCommand>,
    /// Command that was received during polling.
    pending: Option<WorkerCommand>,
    epoll: OwnedFd,
    drained: Option<Sender<()>>,
    /// Dropped when all earlier commands have been passed on.
    flush: Option<Sender<()>>,
    /// Lanes by slot.
    lanes: Vec<Option<RequestLane>>,
    ports: Vec<Option<ReplyPort>>,
    /// Slots that have a lane.
    used_slots: Vec<usize>,
    /// Number of ports that read a socket.
    socket_ports: usize,
    /// Keyspaces by number.
    pub(crate) keyspaces: Vec<Option<Keyspace>>,
    /// Reply that is being written.
    pub(crate) reply: Vec<u8>,
    spin: SpinWait,
    passes: u32,
}

impl Worker {
    pub(crate) fn new(
        shared: Arc<ServerState>,
        index: usize,
        commands: Receiver<WorkerCommand>,
        epoll: OwnedFd,
        quiet: Sender<()>,
    ) -> io::Result<Worker> {
        let slots = shared.limits.max_clients;
        let spin = SpinWait::for_pollers(shared.limits.workers + 1); // one client polls as well
        Ok(Worker {
            shared,
            index,
            commands,
            pending: None,
            epoll,
            drained: Some(quiet),
            flush: None,
            lanes: (0..slots).map(|_| None).collect(),
            ports: (0..slots).map(|_| None).collect(),
            used_slots: Vec::new(),
            socket_ports: 0,
            keyspaces: Vec::new(),
            reply: Vec::new(),
            spin,
            passes: 0,
        })
    }

    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _alarm = StopOnPanic(&shared);
        while !shared.is_stopping.load(Ordering::SeqCst) {
            if self.run_pass() {
                continue;
            }
            let mut spin = std::mem::take(&mut self.spin);
            let seen = spin.spin_until(|| self.has_work());
            self.spin = spin;
            if !seen {
                self.sleep();
                self.spin.after_sleep();
            }
        }
        self.run_pass(); // sends the remaining replies
    }

    fn sleep(&mut self) {
        let shared = Arc::clone(&self.shared);
        let wake = &shared.worker_handles[self.index].wake;
        let asleep = SleepGuard::set(&wake.sleep_flags, wake.flag);
        if !self.run_pass() && !shared.is_stopping.load(Ordering::SeqCst) {
            self.poll(None);
        }
        drop(asleep);
    }

    /// Returns true if a pass would find work. Cheap.
    fn has_work(&mut self) -> bool {
        if self.pending.is_none() {
            self.pending = self.commands.try_recv().ok();
        }
        let outbox = self.shared.limits.max_outbox_bytes;
        self.pending.is_some()
            || self.shared.worker_handles[self.index].has_new_sessions.load(Ordering::Relaxed)
            || self.has_events()
            || self
                .used_slots
                .iter()
                .any(|slot| self.lanes[*slot].as_ref().is_some_and(|lane| lane.is_ready(outbox)))
    }

    /// Polls the sockets. This is a system call, so not every call of this function does it.
    fn has_events(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        self.socket_ports > 0 && self.passes.is_multiple_of(SOCKET_POLL_INTERVAL) && self.poll(Some(&NO_WAIT))
    }

    /// Runs one pass. Returns whether there was any work.
    fn run_pass(&mut self) -> bool {
        self.passes = self.passes.wrapping_add(1);
        let mut worked = self.take_new_sessions() | self.take_commands();
        // A flush that arrives later follows commits that this pass may hold.
        let flush = self.flush.take();
        if self.socket_ports > 0 || self.passes.is_multiple_of(EPOLL_INTERVAL) {
            worked |= self.poll(Some(&NO_WAIT));
            worked |= self.read_sockets();
        }
        let draining = self.shared.is_draining.load(Ordering::SeqCst);
        for at in (0..self.used_slots.len()).rev() {
            worked |= self.serve(self.used_slots[at], draining);
        }
        worked |= self.flush_ports();
        drop(flush);
        if draining && let Some(quiet) = self.drained.take() {
            let _ = quiet.send(()); // fails if the server does not wait for it
        }
        worked
    }

    fn take_new_sessions(&mut self) -> bool {
        if !self.shared.worker_handles[self.index].has_new_sessions.load(Ordering::SeqCst) {
            return false;
        }
        for arrival in self.shared.clone().worker_handles[self.index].take_new_sessions() {
            let session = Arc::clone(&arrival.session);
            if self.add_session(arrival).is_err() {
                self.shared.end_session(&session);
            }
        }
        true
    }

    fn add_session(&mut self, arrival: SessionPart) -> io::Result<()> {
        let SessionPart { session, ring, notifier: bell, port } = arrival;
        let slot = session.recipient.slot;
        let is_owner = session.owner(self.index) == self.index;
        assert!(port.is_none() || is_owner, "server_state (I4): only its owner has a port");
        let data = |kind: u64| epoll::EventData::new_u64((slot as u64) << 1 | kind);
        use epoll::EventFlags as On;
        if let Some(bell) = &bell {
            epoll::add(&self.epoll, bell, data(1), On::IN | On::ET)?;
        }
        if let Some(port) = &port {
            let on = if port.reads_socket() { On::IN | On::OUT | On::RDHUP } else { On::RDHUP };
            epoll::add(&self.epoll, port.socket.as_fd(), data(0), on | On::ET)?;
            self.socket_ports += usize::from(port.reads_socket());
        }
        self.lanes[slot] = Some(RequestLane {
            session,
            ring,
            notifier: bell,
            message: Vec::new(),
            burst: WriteBurst::default(),
            credited_head: 0,
        });
        self.ports[slot] = port;
        self.used_slots.push(slot);
        Ok(())
    }

    /// Releases the parts of a session.
    fn release_session(&mut self, slot: usize) {
        self.used_slots.retain(|used| *used != slot);
        if let Some(bell) = self.lanes[slot].take().and_then(|lane| lane.notifier) {
            // The client has the descriptor too, so closing it here does not remove it from the
            // epoll.
            let _ = epoll::delete(&self.epoll, &bell);
        }
        if let Some(port) = self.ports[slot].take() {
            self.socket_ports -= usize::from(port.reads_socket());
        }
    }

    /// Ends a session because of an error of the client or its connection.
    fn end_with_error(&mut self, session: &Session, why: &io::Error) {
        if why.kind() == io::ErrorKind::InvalidData && !session.is_ended.load(Ordering::SeqCst) {
            self.shared.violations.fetch_add(1, Ordering::Relaxed);
        }
        self.shared.end_session(session);
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
                if !port.reads_socket() && flags.intersects(end) {
                    let session = Arc::clone(&port.session);
                    self.shared.end_session(&session);
                    continue;
                }
                port.is_peer_closed |= flags.intersects(end);
                port.is_readable |= port.reads_socket() && flags.intersects(epoll::EventFlags::IN | end);
                if flags.intersects(epoll::EventFlags::OUT)
                    && port.is_socket_full
                    && let Err(error) = port.resume_send()
                {
                    let session = Arc::clone(&port.session);
                    self.end_with_error(&session, &error);
                }
            }
        }
        count > 0
    }

    /// Reads the sockets with input. Returns whether there were any.
    fn read_sockets(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.used_slots.len() {
            let Some(port) = self.ports[self.used_slots[at]].as_mut().filter(|port| port.is_readable) else {
                continue;
            };
            any = true;
            let session = Arc::clone(&port.session);
            match port.read_socket() {
                Ok(Some(lanes)) => {
                    let others = (0..self.shared.worker_handles.len()).filter(|lane| *lane != self.index);
                    others
                        .filter(|lane| lanes & 1 << lane != 0)
                        .for_each(|lane| self.shared.worker_handles[lane].wake.wake());
                }
                Ok(None) => self.shared.end_session(&session),
                Err(error) => self.end_with_error(&session, &error),
            }
        }
        any
    }

    /// Takes requests of one lane. Returns whether there were any.
    fn serve(&mut self, slot: usize, draining: bool) -> bool {
        let outbox = self.shared.limits.max_outbox_bytes;
        let Some(mut lane) = self.lanes[slot].take_if(|lane| lane.is_ready(outbox)) else {
            return self.mark_paused(slot);
        };
        let session = Arc::clone(&lane.session);
        if session.is_ended.load(Ordering::SeqCst) {
            self.lanes[slot] = Some(lane);
            self.release_session(slot);
            return true;
        }
        let mut taken = 0;
        let mut served = Ok(true);
        while taken < MAX_BURST && !draining && matches!(served, Ok(true)) {
            served = self.take_request(&session, &mut lane);
            taken += usize::from(matches!(served, Ok(true)));
        }
        // Also after a violation: the requests before it were correct.
        let committed = self.commit_burst(&session, &mut lane.burst);
        if let Err(error) = served.and(committed) {
            self.end_with_error(&session, &error);
        }
        self.lanes[slot] = Some(lane);
        taken > 0
    }

    /// Marks a lane that is not served because too many bytes are unsent. The thread that lowers
    /// `unsent_bytes` rings.
    fn mark_paused(&mut self, slot: usize) -> bool {
        let outbox = self.shared.limits.max_outbox_bytes;
        let Some(lane) = &self.lanes[slot] else { return false };
        if !lane.ring.has_record(&lane.session.inbox) {
            return false;
        }
        lane.session.is_paused.store(true, Ordering::SeqCst);
        lane.is_ready(outbox) // true if it was lowered just now
    }

    /// Takes one record and executes the request that it completes. Returns false if none can be
    /// taken now.
    fn take_request(&mut self, session: &Arc<Session>, lane: &mut RequestLane) -> io::Result<bool> {
        if session.unsent_bytes.load(Ordering::Relaxed) > self.shared.limits.max_outbox_bytes {
            return Ok(false);
        }
        let Some(whole) = lane.ring.read_record(&session.inbox, &mut lane.message)? else { return Ok(false) };
        let head = lane.ring.head();
        session.lanes[self.index].head.store(head, Ordering::Release);
        if lane.message.len() > self.shared.limits.max_message_bytes as usize {
            return Err(ProtocolViolation("a message beyond the limit").into());
        }
        if whole {
            if can_join_batch(&lane.message) {
                lane.burst.push(&mut lane.message);
            } else {
                self.commit_burst(session, &mut lane.burst)?;
                let executed = self.execute(session, &lane.message);
                reset_buffer(&mut lane.message);
                executed?;
            }
        }
        let owner = session.owner(self.index);
        if owner != self.index && lane.ring.credit().is_due(head - lane.credited_head) {
            lane.credited_head = head;
            self.shared.worker_handles[owner].send(WorkerCommand::Credit { recipient: session.recipient });
            self.shared.worker_handles[owner].wake.wake();
        }
        Ok(true)
    }

    /// Returns the port of a session that this worker owns.
    pub(crate) fn port(&mut self, whom: Recipient) -> Option<&mut ReplyPort> {
        self.ports[whom.slot].as_mut().filter(|port| port.session.recipient == whom)
    }

    /// Takes the commands of other workers and the waiter. Returns whether there were any.
    fn take_commands(&mut self) -> bool {
        let mut any = false;
        while let Some(command) = self.pending.take().or_else(|| self.commands.try_recv().ok()) {
            any = true;
            let Some(whom) = command.recipient() else {
                if let WorkerCommand::Flush(done) = command {
                    self.flush = Some(done);
                }
                continue;
            };
            if self.port(whom).is_none() {
                // Delivered since the mail was taken, and other workers already serve the session.
                self.take_new_sessions();
            }
            let Some(port) = self.port(whom) else { continue };
            let done = match command {
                WorkerCommand::Reply { payload, .. } => port.enqueue(payload),
                WorkerCommand::Commit { lane, seq, payload, .. } => {
                    port.commit_order.push(lane, seq, ReadyReply::Reply(payload));
                    Ok(())
                }
                WorkerCommand::Durable { to, lane, id, commit } => {
                    port.commit_order.push(lane, commit.seq(), ReadyReply::Durable { to, id, commit });
                    Ok(())
                }
                WorkerCommand::Credit { .. } | WorkerCommand::Flush(_) => Ok(()), // flushed later
            };
            if let Err(error) = done {
                let session = Arc::clone(&port.session);
                self.end_with_error(&session, &error);
            }
        }
        any
    }

    /// Handles gates, outboxes, credits and bells of all ports. Returns whether anything moved.
    fn flush_ports(&mut self) -> bool {
        let mut worked = false;
        let mut gates: Vec<(usize, FlagSnapshot)> = Vec::new();
        for slot in &self.used_slots {
            if let Some(port) = self.ports[*slot].as_ref().filter(|port| !port.commit_order.is_empty()) {
                gates.push((*slot, port.commit_order.read_flags(port.session.writing_flags())));
            }
        }
        if !gates.is_empty() {
            worked |= self.take_commands(); // after the flags were read: see `commit_order`
        }
        for (slot, look) in gates {
            worked |= self.release_commits(slot, look);
        }
        for at in 0..self.used_slots.len() {
            let Some(port) = self.ports[self.used_slots[at]].as_mut() else { continue };
            let settled = port.flush_replies();
            let session = &port.session;
            if session.is_paused.load(Ordering::SeqCst)
                && session.unsent_bytes.load(Ordering::SeqCst) <= self.shared.limits.max_outbox_bytes
            {
                session.is_paused.store(false, Ordering::SeqCst);
                self.shared.worker_handles.iter().for_each(|desk| desk.wake.wake());
                worked = true;
            }
            match settled {
                Ok(drained) => worked |= drained,
                Err(error) => {
                    let session = Arc::clone(session);
                    self.end_with_error(&session, &error);
                }
            }
        }
        worked
    }

    /// Releases commits from the gate of a port. Returns whether there were any.
    fn release_commits(&mut self, slot: usize, look: FlagSnapshot) -> bool {
        let mut any = false;
        while let Some(port) = self.ports[slot].as_mut()
            && let Some(ready) = port.commit_order.pop_ready(look)
        {
            any = true;
            match ready {
                ReadyReply::Reply(payload) => {
                    if let Err(error) = port.enqueue(payload) {
                        let session = Arc::clone(&port.session);
                        self.end_with_error(&session, &error);
                    }
                }
                ReadyReply::Durable { to, id, commit } => {
                    // Fails only if the server ends.
                    let _ = self.shared.jobs.send(WaiterJob::Durable { to, id, commit });
                }
            }
        }
        any
    }
}
