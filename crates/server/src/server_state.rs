//! # Shared state of the threads of a server
//!
//! ## Invariants
//!
//! They hold for the whole server.
//!
//! 1. Memory that a client can write is copied, then checked, then used. A violation of the
//!    protocol ends the session of that client and has no other effect.
//! 2. A request is taken from a ring only if at most `max_outbox_bytes` of replies to its client
//!    are unsent. Each worker may then add the replies of a burst, and each request that waits for
//!    the device its reply. At most `window` requests of a client and `max_waiting` in total wait
//!    for the device. Beyond these limits requests stay in the ring or get
//!    [`Busy`](sheaf_flatrpc::message::Reply::Busy).
//! 3. A reply is written after the database has acknowledged the commit that it reports.
//! 4. Only the owner of its port writes to a client: the agent, or each worker with all-to-all.
//! 5. Commits of one durability leave the agent in the order of their numbers (`commit_order`).
//! 6. A thread marks itself as asleep before its last check for work. Other threads publish work
//!    before they check for sleepers.
//!
//! ## Threads
//!
//! One acceptor, `workers` workers, one waiter. A request takes no lock outside of the database. A
//! panic in a worker ends the server, not the process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, epoll, eventfd};
use sheaf::Database;
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::wake::{PeerNotifier, PeerWaker};

use crate::commands::{WaiterJob, WorkerCommand};
use crate::keyspaces::KeyspaceNumbers;
use crate::session::{Session, SessionSlots};
use crate::token_failures::DenialCallback;
use crate::worker::SessionPart;
use crate::{ServerLimits, ServerStats};

/// Words of the board for one worker.
pub(crate) const SLEEP_FLAG_WORDS: usize = 8;
/// Event data of an epoll for the worker's own bell.
pub(crate) const OWN_NOTIFIER: u64 = u64::MAX;

/// Access of other threads to a worker.
pub(crate) struct WorkerHandle {
    pub(crate) wake: PeerWaker,
    commands: Sender<WorkerCommand>,
    new_sessions: Mutex<Vec<SessionPart>>,
    pub(crate) has_new_sessions: AtomicBool,
}

impl WorkerHandle {
    /// Sends a command. The caller must ring the worker.
    pub(crate) fn send(&self, command: WorkerCommand) {
        let _ = self.commands.send(command); // a worker that has ended has no clients
    }

    /// Delivers a part of a new session and rings the worker.
    pub(crate) fn deliver(&self, arrival: SessionPart) {
        self.new_sessions.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        self.has_new_sessions.store(true, Ordering::SeqCst);
        self.wake.wake();
    }

    pub(crate) fn take_new_sessions(&self) -> Vec<SessionPart> {
        self.has_new_sessions.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.new_sessions.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct ServerState {
    pub(crate) db: Database,
    pub(crate) limits: ServerLimits,
    pub(crate) token: Option<String>,
    pub(crate) on_denied: Option<DenialCallback>,
    pub(crate) worker_handles: Vec<WorkerHandle>,
    /// Board on which workers mark themselves as asleep; clients can read it.
    pub(crate) sleep_flags_file: OwnedFd,
    pub(crate) jobs: Sender<WaiterJob>,
    pub(crate) keyspaces: KeyspaceNumbers,
    pub(crate) slots: Arc<SessionSlots>,
    /// Number of requests of all clients that wait for the device.
    pub(crate) waiting_requests: Arc<AtomicUsize>,
    /// Set when no more requests are taken.
    pub(crate) is_draining: AtomicBool,
    /// Set when threads must end.
    pub(crate) is_stopping: AtomicBool,
    pub(crate) acceptor_notifier: OwnedFd,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) busy: AtomicU64,
}

/// Receivers of the channels in [`ServerState`].
pub(crate) struct Receivers {
    pub(crate) workers: Vec<(Receiver<WorkerCommand>, OwnedFd)>,
    pub(crate) jobs: Receiver<WaiterJob>,
}

/// Returns an eventfd, which does not block.
pub(crate) fn new_notifier() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl ServerState {
    pub(crate) fn new(
        db: Database,
        limits: ServerLimits,
        token: Option<String>,
        on_denied: Option<DenialCallback>,
    ) -> io::Result<(Arc<ServerState>, Receivers)> {
        let (board, sleep_flags_file) = SharedMemory::create(limits.workers * SLEEP_FLAG_WORDS, true)?;
        let board = Arc::new(board);
        let mut desks = Vec::new();
        let mut workers = Vec::new();
        for worker in 0..limits.workers {
            let (commands, receiver) = channel();
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let bell = new_notifier()?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &bell, epoll::EventData::new_u64(OWN_NOTIFIER), flags)?;
            let wake = PeerWaker {
                sleep_flags: Arc::clone(&board),
                flag: worker * SLEEP_FLAG_WORDS,
                notifier: bell,
            };
            desks.push(WorkerHandle {
                wake,
                commands,
                new_sessions: Mutex::default(),
                has_new_sessions: AtomicBool::new(false),
            });
            workers.push((receiver, epoll));
        }
        let (jobs, job_receiver) = channel();
        let shared = ServerState {
            db,
            limits,
            token,
            on_denied,
            worker_handles: desks,
            sleep_flags_file,
            jobs,
            keyspaces: KeyspaceNumbers::default(),
            slots: Arc::new(SessionSlots::new(limits.max_clients)),
            waiting_requests: Arc::default(),
            is_draining: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            acceptor_notifier: new_notifier()?,
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        };
        Ok((Arc::new(shared), Receivers { workers, jobs: job_receiver }))
    }

    /// Wakes all threads.
    pub(crate) fn notify_all(&self) {
        self.worker_handles.iter().for_each(|desk| desk.wake.wake());
        self.acceptor_notifier.notify();
    }

    /// Ends a session: each worker releases its part.
    pub(crate) fn end_session(&self, session: &Session) {
        if !session.is_ended.swap(true, Ordering::SeqCst) {
            self.worker_handles.iter().for_each(|desk| desk.wake.wake());
        }
    }

    pub(crate) fn stats(&self) -> ServerStats {
        ServerStats {
            clients: self.slots.used_count(),
            accepted: self.accepted.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            denied: self.denied.load(Ordering::Relaxed),
            violations: self.violations.load(Ordering::Relaxed),
            busy: self.busy.load(Ordering::Relaxed),
        }
    }
}

/// Ends the server if the thread that holds this guard panics. Clients notice the end of their
/// connections; [`Server::close`](crate::Server::close) reports the panic.
pub(crate) struct StopOnPanic<'a>(pub(crate) &'a ServerState);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.is_stopping.store(true, Ordering::SeqCst);
            self.0.notify_all();
        }
    }
}
