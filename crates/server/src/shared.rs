//! # Shared state of the threads of a server
//!
//! ## Invariants of the server
//!
//! 1. Memory that a client can write is copied, then checked, then used. A violation of the
//!    protocol ends the session of that client and has no other effect.
//! 2. A request is taken from a ring only if there is room for its reply. Unsent replies to a
//!    client have at most `outbox` bytes plus one message for each worker. At most `window`
//!    requests of a client and `waiting` in total wait for the device. Beyond these limits requests
//!    stay in the ring or get [`Busy`](sheaf_flatrpc::message::Reply::Busy).
//! 3. A reply is written after the database has acknowledged the commit that it reports.
//! 4. Only the owner of its port writes to a client: the agent, or each worker with all-to-all.
//! 5. Commits of one durability leave the agent in the order of their numbers (`gate`).
//! 6. A thread marks itself as asleep before its last check for work. Other threads publish work
//!    before they check for sleepers.
//!
//! ## Threads
//!
//! One door, `workers` workers, one waiter. A request takes no lock outside of the database. A
//! panic in a worker ends the server, not the process.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, epoll, eventfd};
use sheaf::Database;
use sheaf_flatrpc::memory::Memory;
use sheaf_flatrpc::wake::{Bell, Wake};

use crate::commands::{Command, Job};
use crate::denials::Tell;
use crate::keyspaces::Keyspaces;
use crate::session::{Session, Slots};
use crate::worker::Arrival;
use crate::{Limits, Stats};

/// Words of the board for one worker.
pub(crate) const BOARD_LINE: usize = 8;
/// Event data of an epoll for the worker's own bell.
pub(crate) const OWN_BELL: u64 = u64::MAX;

/// Access of other threads to a worker.
pub(crate) struct Desk {
    pub(crate) wake: Wake,
    commands: Sender<Command>,
    mail: Mutex<Vec<Arrival>>,
    pub(crate) has_mail: AtomicBool,
}

impl Desk {
    /// Sends a command. The caller must ring the worker.
    pub(crate) fn send(&self, command: Command) {
        let _ = self.commands.send(command); // a worker that has ended has no clients
    }

    /// Delivers a part of a new session and rings the worker.
    pub(crate) fn deliver(&self, arrival: Arrival) {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner).push(arrival);
        self.has_mail.store(true, Ordering::SeqCst);
        self.wake.ring();
    }

    pub(crate) fn take_mail(&self) -> Vec<Arrival> {
        self.has_mail.store(false, Ordering::SeqCst);
        std::mem::take(&mut *self.mail.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

pub(crate) struct Shared {
    pub(crate) db: Database,
    pub(crate) limits: Limits,
    pub(crate) token: Option<String>,
    pub(crate) on_denied: Option<Tell>,
    pub(crate) desks: Vec<Desk>,
    /// Board on which workers mark themselves as asleep; clients can read it.
    pub(crate) board_file: OwnedFd,
    pub(crate) jobs: Sender<Job>,
    pub(crate) keyspaces: Keyspaces,
    pub(crate) slots: Arc<Slots>,
    /// Number of requests of all clients that wait for the device.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Set when no more requests are taken.
    pub(crate) draining: AtomicBool,
    /// Set when threads must end.
    pub(crate) stop: AtomicBool,
    pub(crate) door_bell: OwnedFd,
    pub(crate) accepted: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) denied: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) busy: AtomicU64,
}

/// Receivers of the channels in [`Shared`].
pub(crate) struct Ends {
    pub(crate) workers: Vec<(Receiver<Command>, OwnedFd)>,
    pub(crate) jobs: Receiver<Job>,
}

/// Returns an eventfd, which does not block.
pub(crate) fn bell() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl Shared {
    pub(crate) fn new(
        db: Database,
        limits: Limits,
        token: Option<String>,
        on_denied: Option<Tell>,
    ) -> io::Result<(Arc<Shared>, Ends)> {
        let (board, board_file) = Memory::create(limits.workers * BOARD_LINE, true)?;
        let board = Arc::new(board);
        let mut desks = Vec::new();
        let mut workers = Vec::new();
        for worker in 0..limits.workers {
            let (commands, receiver) = channel();
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let bell = bell()?;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
            epoll::add(&epoll, &bell, epoll::EventData::new_u64(OWN_BELL), flags)?;
            let wake = Wake { board: Arc::clone(&board), at: worker * BOARD_LINE, bell };
            desks.push(Desk { wake, commands, mail: Mutex::default(), has_mail: AtomicBool::new(false) });
            workers.push((receiver, epoll));
        }
        let (jobs, job_receiver) = channel();
        let shared = Shared {
            db,
            limits,
            token,
            on_denied,
            desks,
            board_file,
            jobs,
            keyspaces: Keyspaces::default(),
            slots: Arc::new(Slots::new(limits.clients)),
            waiting: Arc::default(),
            draining: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            door_bell: bell()?,
            accepted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            denied: AtomicU64::new(0),
            violations: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        };
        Ok((Arc::new(shared), Ends { workers, jobs: job_receiver }))
    }

    /// Wakes all threads.
    pub(crate) fn ring_all(&self) {
        self.desks.iter().for_each(|desk| desk.wake.ring());
        self.door_bell.ring();
    }

    /// Ends a session: each worker releases its part.
    pub(crate) fn end(&self, session: &Session) {
        if !session.dead.swap(true, Ordering::SeqCst) {
            self.desks.iter().for_each(|desk| desk.wake.ring());
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            clients: self.slots.used(),
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
pub(crate) struct Alarm<'a>(pub(crate) &'a Shared);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop.store(true, Ordering::SeqCst);
            self.0.ring_all();
        }
    }
}
