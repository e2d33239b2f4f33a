//! # Door: the Unix socket through which other processes reach the owner of a database
//!
//! Serves statistics, backups, conversions and snapshots to attached readers, but no data
//! (`sheaf-server` does). docs/format/door.md specifies every byte. `connection` serves a
//! connection, `attached_owner` is the client; `message`, `overview` and `wire` encode.
//!
//! ```text
//!  owner                                            client process
//!  Handle ── Door ── accept thread                  AttachedOwner::connect ── /proc/self/fd/N/door
//!              │        └ guest threads <── hello, requests ──┘
//!              │             └ Weak<Store>  ── replies: progress, a result, or an error ──>
//!              └ end: sockets shut, threads joined; then the store closes
//! ```
//!
//! ## Invariants
//!
//! 1. The socket is created under the lock with mode 0600 before it gets its name. The kernel must
//!    identify the peer as the owner's user or root.
//! 2. A database works without a door; `DatabaseStats::has_ipc` shows whether it has one.
//! 3. Guest threads hold the store, never a handle, and end before the store closes.
//! 4. The owner shuts a connection before it releases the snapshot exported through it. If a reader
//!    finds the connection open *after* a read, the read is valid.
//! 5. Input of a guest never makes the owner panic, wait at close, or allocate more than a message.
//! 6. A guest that sends no hello within [`HELLO_TIMEOUT`], or does not read for
//!    [`SEND_TIMEOUT`], is disconnected. At the connection limit, so is the longest idle one.
//! 7. During a request the guest receives a message at least every [`HEARTBEAT_INTERVAL`].
//! 8. An open socket stays open: errors of `accept` are retried ([`sheaf_platform::accept`]).
//!
//! Threads: one accepts and sends signs of life; at most [`MAX_CONNECTIONS`] serve. `shutdown` and
//! `unpark` wake them. After a crash the stale socket refuses connections until the next owner.

mod attach;
mod attached_owner;
mod connection;
mod connection_state;
mod message;
mod overview;
mod wire;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use sheaf_platform::accept::{Accepted, Acceptor, RETRY_PAUSE};
use sheaf_platform::fork::ForkGuard;
use sheaf_store::{IPC_SOCKET_NAMES, Store};

pub use attach::ExportedSnapshot;
pub(crate) use attach::open_attached;
pub use attached_owner::AttachedOwner;
pub(crate) use attached_owner::read_lock_file;
#[doc(hidden)]
pub use message::decode_and_reencode;
pub(crate) use overview::overview;
pub use overview::{DatabaseOverview, KeyspaceOverview};

use connection_state::ConnectionState;
use wire::HelloStatus;

/// Most connections, and most of them from one process.
const MAX_CONNECTIONS: usize = 64;
const MAX_CONNECTIONS_PER_PROCESS: usize = 32;
/// Most connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Longest time until the hello of a guest.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a guest may leave messages unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest idle time after which a connection may be replaced by a new one.
const MIN_IDLE: Duration = Duration::from_secs(1);
/// Interval of the signs of life during a request.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The owner's side of the door.
pub(crate) struct IpcServer {
    shared: Arc<IpcState>,
    accept_thread: Option<JoinHandle<()>>,
    fork: ForkGuard,
}

/// State shared by the threads of the door.
struct IpcState {
    /// Directory of the database.
    dir: OwnedFd,
    listener: OwnedFd,
    /// Eventfd that a guest thread writes when a request arrives.
    notifier: OwnedFd,
    store: Weak<Store>,
    is_closing: AtomicBool,
    connections: Mutex<Vec<IpcConnection>>,
}

/// A connection.
struct IpcConnection {
    state: Arc<ConnectionState>,
    thread: JoinHandle<()>,
}

/// Returns a path to a name in an open directory that fits into a socket address, for a directory
/// path of any length.
fn socket_path(dir: &OwnedFd, name: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

fn open_dir(dir: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns a socket that listens under the name of the door. The caller must hold the lock of the
/// database.
fn listen(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let [name, temp_name] = IPC_SOCKET_NAMES;
    for stale in IPC_SOCKET_NAMES {
        match rustix::fs::unlinkat(dir, stale, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(socket_path(dir, temp_name))?)?;
    let named = rustix::fs::chmodat(dir, temp_name, Mode::RUSR | Mode::WUSR, AtFlags::empty())
        .and_then(|()| rustix::net::listen(&socket, BACKLOG)) // accepts connections from here on
        .and_then(|()| rustix::fs::renameat(dir, temp_name, dir, name));
    if let Err(refusal) = named {
        let _ = rustix::fs::unlinkat(dir, temp_name, AtFlags::empty());
        return Err(refusal);
    }
    Ok(socket)
}

impl IpcServer {
    /// Opens the door of an open database.
    pub(crate) fn open(store: &Arc<Store>) -> io::Result<IpcServer> {
        let dir = open_dir(store.path())?;
        let listener = listen(&dir)?;
        let shared = Arc::new(IpcState {
            dir,
            listener,
            notifier: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            store: Arc::downgrade(store),
            is_closing: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let acceptor = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sheaf-door".into());
        let acceptor = thread.spawn(move || acceptor.accept_all());
        let mut door = IpcServer { shared, accept_thread: None, fork: ForkGuard::new() };
        match acceptor {
            Ok(acceptor) => door.accept_thread = Some(acceptor),
            Err(error) => {
                door.close();
                return Err(error);
            }
        }
        Ok(door)
    }

    /// Returns true if new connections are accepted.
    pub(crate) fn is_open(&self) -> bool {
        self.accept_thread.as_ref().is_some_and(|acceptor| !acceptor.is_finished())
    }

    /// Cancels running requests, notifies attached readers, and waits for all threads.
    pub(crate) fn close(&mut self) {
        if self.fork.is_child() {
            return; // the sockets are shared with the parent, and the child has no threads
        }
        self.shared.is_closing.store(true, Ordering::Release);
        let _ = rustix::fs::unlinkat(&self.shared.dir, IPC_SOCKET_NAMES[0], AtFlags::empty());
        let _ = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(acceptor) = self.accept_thread.take() {
            acceptor.thread().unpark();
            let _ = acceptor.join();
        }
        let guests = std::mem::take(&mut *self.shared.connections());
        for guest in &guests {
            guest.state.shutdown();
        }
        for guest in guests {
            let _ = guest.thread.join();
        }
        let is_alone = self.shared.connections().is_empty();
        assert!(is_alone, "ipc (I3): all guest threads end before the store closes");
    }
}

impl Drop for IpcServer {
    fn drop(&mut self) {
        self.close();
    }
}

impl IpcState {
    fn connections(&self) -> std::sync::MutexGuard<'_, Vec<IpcConnection>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<IpcState>) {
        let mut acceptor = Acceptor::new();
        while !self.is_closing.load(Ordering::Acquire) {
            match acceptor.accept(|| rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)) {
                Accepted::Connected(socket) => self.accept_connection(UnixStream::from(socket)),
                Accepted::PeerGone => {}
                Accepted::NonePending => self.wait(),
                Accepted::RetryLater => std::thread::park_timeout(RETRY_PAUSE), // `end` unparks
                Accepted::ListenerClosed => break,
            }
        }
    }

    /// Waits for a connection, and sends signs of life to guests with running requests.
    fn wait(&self) {
        let is_working = self.connections().iter().filter(|guest| guest.state.send_heartbeat()).count() > 0;
        let timeout = Timespec::try_from(HEARTBEAT_INTERVAL).ok().filter(|_| is_working);
        let mut polled =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.notifier, PollFlags::IN)];
        let _ = poll(&mut polled, timeout.as_ref()); // the caller checks in any case
        let _ = rustix::io::read(&self.notifier, &mut [0; 8]); // empty if no guest wrote
    }

    /// Returns true if the kernel identifies the peer as our user or root.
    fn is_authorized(stream: &UnixStream) -> bool {
        let peer = rustix::net::sockopt::socket_peercred(stream);
        peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
    }

    fn accept_connection(self: &Arc<IpcState>, stream: UnixStream) {
        if !IpcState::is_authorized(&stream) {
            return;
        }
        let mut guests = self.connections();
        let (over, here): (Vec<_>, Vec<_>) = guests.drain(..).partition(|guest| guest.thread.is_finished());
        *guests = here;
        over.into_iter().for_each(|guest| drop(guest.thread.join()));
        let state = Arc::new(ConnectionState::new(stream));
        if !evict_if_full(&guests, state.pid()) {
            let _ = wire::send_hello(state.stream(), HelloStatus::Busy);
            return;
        }
        let (theirs, shared) = (Arc::clone(&state), Arc::clone(self));
        let thread = std::thread::Builder::new().name("sheaf-guest".into());
        let ring = move || {
            let _ = rustix::io::write(&shared.notifier, &1u64.to_ne_bytes());
        };
        let store = Weak::clone(&self.store);
        // If no thread can be started, the connection ends.
        if let Ok(thread) = thread.spawn(move || connection::serve(&store, &theirs, ring)) {
            guests.push(IpcConnection { state, thread });
        }
    }
}

/// Returns true if a guest of `process` can be served, if necessary after an idle connection was
/// ended (I6).
fn evict_if_full(guests: &[IpcConnection], process: Option<i32>) -> bool {
    let here = || guests.iter().map(|guest| &guest.state).filter(|line| !line.is_evicted());
    let of_process = |line: &&Arc<ConnectionState>| process.is_some() && line.pid() == process;
    let evict = |of: &dyn Fn(&&Arc<ConnectionState>) -> bool| {
        let idle = here().filter(of).filter_map(|line| Some((line.idle_since()?, line)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|(since, _)| *since);
        idle.into_iter().any(|(_, line)| line.evict_if_idle(MIN_IDLE))
    };
    if here().filter(of_process).count() >= MAX_CONNECTIONS_PER_PROCESS {
        return evict(&of_process);
    }
    here().count() < MAX_CONNECTIONS || evict(&|_| true)
}
