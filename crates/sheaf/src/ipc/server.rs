//! # IPC server: the owner's side of the IPC socket
//!
//! Accepts connections in one thread, and serves each in a thread of its own. The picture and the
//! invariants are those of the parent module.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;
use rustix::net::Shutdown;
use sheaf_platform::accept::{Accepted, Acceptor, RETRY_PAUSE};
use sheaf_platform::fork::ForkGuard;
use sheaf_platform::unix_socket::{self, Notifier, Peer, SocketDir};
use sheaf_store::{IPC_SOCKET_NAMES, Store};

use super::connection;
use super::connection_state::ConnectionState;
use super::wire::{self, HelloStatus};
use crate::merge::MergeRegistry;

/// Most connections, and most of them from one process.
const MAX_CONNECTIONS: usize = 64;
const MAX_CONNECTIONS_PER_PROCESS: usize = 32;
/// Most connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Longest time until the hello of a client.
pub(super) const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time that a client may leave messages unread.
pub(super) const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Shortest idle time after which a connection may be replaced by a new one.
const MIN_IDLE: Duration = Duration::from_secs(1);
/// Interval of the signs of life during a request.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// The owner's side of the IPC socket.
pub(crate) struct IpcServer {
    shared: Arc<IpcState>,
    accept_thread: Option<JoinHandle<()>>,
    fork: ForkGuard,
}

/// State shared by the threads of the IPC server.
struct IpcState {
    /// Directory of the database.
    dir: SocketDir,
    listener: OwnedFd,
    /// Wakes the accept thread: a request arrived, or the server closes.
    notifier: Notifier,
    store: Weak<Store>,
    operators: MergeRegistry,
    is_closing: AtomicBool,
    connections: Mutex<Vec<IpcConnection>>,
}

/// A connection.
struct IpcConnection {
    state: Arc<ConnectionState>,
    thread: JoinHandle<()>,
}

/// Returns a socket that listens under the name of the IPC socket. The caller must hold the lock of
/// the database.
fn listen(dir: &SocketDir) -> rustix::io::Result<OwnedFd> {
    let [name, temp_name] = IPC_SOCKET_NAMES;
    for stale in IPC_SOCKET_NAMES {
        match rustix::fs::unlinkat(dir, stale, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let socket = unix_socket::stream_socket(true)?;
    rustix::net::bind(&socket, &dir.address(temp_name)?)?;
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
    /// Opens the IPC socket of an open database.
    pub(crate) fn open(store: &Arc<Store>, operators: MergeRegistry) -> io::Result<IpcServer> {
        let dir = SocketDir::open(store.path())?;
        let listener = listen(&dir)?;
        let shared = Arc::new(IpcState {
            dir,
            listener,
            notifier: Notifier::new()?,
            store: Arc::downgrade(store),
            operators,
            is_closing: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let acceptor = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sheaf-ipc".into());
        let acceptor = thread.spawn(move || acceptor.accept_all());
        let mut server = IpcServer { shared, accept_thread: None, fork: ForkGuard::new() };
        match acceptor {
            Ok(acceptor) => server.accept_thread = Some(acceptor),
            Err(error) => {
                server.close();
                return Err(error);
            }
        }
        Ok(server)
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
        self.shared.notifier.notify(); // only on Linux the shutdown of a listener ends a poll
        if let Some(acceptor) = self.accept_thread.take() {
            acceptor.thread().unpark();
            let _ = acceptor.join();
        }
        let connections = std::mem::take(&mut *self.shared.connections());
        for connection in &connections {
            connection.state.shutdown();
        }
        for connection in connections {
            let _ = connection.thread.join();
        }
        let is_alone = self.shared.connections().is_empty();
        assert!(is_alone, "ipc (I3): all connection threads end before the store closes");
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
            match acceptor.accept(|| unix_socket::accept(&self.listener)) {
                Accepted::Connected(socket) => self.accept_connection(UnixStream::from(socket)),
                Accepted::PeerGone => {}
                Accepted::NonePending => self.wait(),
                Accepted::RetryLater => std::thread::park_timeout(RETRY_PAUSE), // `end` unparks
                Accepted::ListenerClosed => break,
            }
        }
    }

    /// Waits for a connection, and sends signs of life to clients with running requests.
    fn wait(&self) {
        let is_working =
            self.connections().iter().filter(|connection| connection.state.send_heartbeat()).count() > 0;
        let timeout = Timespec::try_from(HEARTBEAT_INTERVAL).ok().filter(|_| is_working);
        let mut polled =
            [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.notifier, PollFlags::IN)];
        let _ = poll(&mut polled, timeout.as_ref()); // the caller checks in any case
        self.notifier.clear();
    }

    /// Returns true if the kernel identifies the peer as our user or root.
    fn is_authorized(stream: &UnixStream) -> bool {
        Peer::of(stream).is_ok_and(Peer::is_our_user_or_root)
    }

    fn accept_connection(self: &Arc<IpcState>, stream: UnixStream) {
        if !IpcState::is_authorized(&stream) {
            return;
        }
        let mut connections = self.connections();
        let (over, here): (Vec<_>, Vec<_>) =
            connections.drain(..).partition(|connection| connection.thread.is_finished());
        *connections = here;
        over.into_iter().for_each(|connection| drop(connection.thread.join()));
        let state = Arc::new(ConnectionState::new(stream));
        if !evict_if_full(&connections, state.pid()) {
            let _ = wire::send_hello(state.stream(), HelloStatus::Busy);
            return;
        }
        let (theirs, shared) = (Arc::clone(&state), Arc::clone(self));
        let thread = std::thread::Builder::new().name("sheaf-ipc-conn".into());
        let ring = move || shared.notifier.notify();
        let (store, operators) = (Weak::clone(&self.store), self.operators.clone());
        // If no thread can be started, the connection ends.
        if let Ok(thread) = thread.spawn(move || connection::serve(&store, &operators, &theirs, ring)) {
            connections.push(IpcConnection { state, thread });
        }
    }
}

/// Returns true if a client of `process` can be served, if necessary after an idle connection was
/// ended (I6).
fn evict_if_full(connections: &[IpcConnection], process: Option<i32>) -> bool {
    let here = || connections.iter().map(|connection| &connection.state).filter(|line| !line.is_evicted());
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
