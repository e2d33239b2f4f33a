//! # Door: the Unix socket through which other processes reach the owner of a database
//!
//! Serves statistics, backups, conversions and snapshots to attached readers, but no data: that is
//! the job of `sheaf-server`. docs/format/door.md specifies every byte. `guest` serves a
//! connection, `line` has its state, `owner` is the client, and `message`, `figures` and `wire`
//! encode.
//!
//! ```text
//!  owner                                            client process
//!  Handle ── Door ── accept thread                  Owner::connect ── /proc/self/fd/N/door
//!              │        └ guest threads <── hello, requests ──┘
//!              │             └ Weak<Store>  ── replies: progress, a result, or an error ──>
//!              └ end: sockets shut, threads joined; then the store closes
//! ```
//!
//! 1. The socket is created under the lock with mode 0600 before it gets its name. The kernel must
//!    identify the peer as the owner's user or root.
//! 2. A database works without a door; `Stats::door` shows whether it has one.
//! 3. Guest threads hold the store, never a handle, and end before the store closes.
//! 4. The owner shuts a connection before it releases the snapshot exported through it. If a reader
//!    finds the connection open *after* a read, the read is valid.
//! 5. Input of a guest never makes the owner panic, wait at close, or allocate more than a message.
//! 6. A guest that sends no hello within [`HELLO_WITHIN`], or does not read for
//!    [`GUEST_READS_WITHIN`], is disconnected. At the connection limit, so is the longest idle one.
//! 7. During a request the guest receives a message at least every [`PULSE`].
//! 8. An open door stays open: errors of `accept` are retried ([`sheaf_base::porter`]).
//!
//! Threads: one accepts and sends signs of life; at most [`MOST_GUESTS`] serve. `shutdown` and
//! `unpark` wake them. After a crash the stale socket refuses connections until the next owner.

mod beside;
mod figures;
mod guest;
mod line;
mod message;
mod owner;
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
use sheaf_base::fork::ForkGuard;
use sheaf_base::porter::{Next, PAUSE, Porter};
use sheaf_base::store::{DOOR, Store};

pub use beside::Held;
pub(crate) use beside::open_beside;
pub(crate) use figures::overview;
pub use figures::{KeyspaceOverview, Overview};
#[doc(hidden)]
pub use message::feed;
pub use owner::Owner;
pub(crate) use owner::lock_of;

use line::Line;
use wire::Status;

/// Most connections, and most of them from one process.
const MOST_GUESTS: usize = 64;
const MOST_OF_A_PROCESS: usize = 32;
/// Most connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// Longest time until the hello of a guest.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// Longest time that a guest may leave messages unread.
const GUEST_READS_WITHIN: Duration = Duration::from_secs(30);
/// Shortest idle time after which a connection may be replaced by a new one.
const IDLE: Duration = Duration::from_secs(1);
/// Interval of the signs of life during a request.
const PULSE: Duration = Duration::from_millis(500);

/// The owner's side of the door.
pub(crate) struct Door {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    fork: ForkGuard,
}

/// State shared by the threads of the door.
struct Shared {
    /// Directory of the database.
    dir: OwnedFd,
    listener: OwnedFd,
    /// Eventfd that a guest thread writes when a request arrives.
    bell: OwnedFd,
    store: Weak<Store>,
    ending: AtomicBool,
    guests: Mutex<Vec<Guest>>,
}

/// A connection.
struct Guest {
    line: Arc<Line>,
    thread: JoinHandle<()>,
}

/// Returns a path to a name in an open directory that fits into a socket address, for a directory
/// path of any length.
fn way_to(dir: &OwnedFd, name: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

fn open_dir(dir: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Returns a socket that listens under the name of the door. The caller must hold the lock of the
/// database.
fn listen(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let [name, unborn] = DOOR;
    for stale in DOOR {
        match rustix::fs::unlinkat(dir, stale, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(way_to(dir, unborn))?)?;
    let named = rustix::fs::chmodat(dir, unborn, Mode::RUSR | Mode::WUSR, AtFlags::empty())
        .and_then(|()| rustix::net::listen(&socket, BACKLOG)) // accepts connections from here on
        .and_then(|()| rustix::fs::renameat(dir, unborn, dir, name));
    if let Err(refusal) = named {
        let _ = rustix::fs::unlinkat(dir, unborn, AtFlags::empty());
        return Err(refusal);
    }
    Ok(socket)
}

impl Door {
    /// Opens the door of an open database.
    pub(crate) fn open(store: &Arc<Store>) -> io::Result<Door> {
        let dir = open_dir(store.path())?;
        let listener = listen(&dir)?;
        let shared = Arc::new(Shared {
            dir,
            listener,
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            store: Arc::downgrade(store),
            ending: AtomicBool::new(false),
            guests: Mutex::default(),
        });
        let acceptor = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("sheaf-door".into());
        let acceptor = thread.spawn(move || acceptor.accept_all());
        let mut door = Door { shared, acceptor: None, fork: ForkGuard::new() };
        match acceptor {
            Ok(acceptor) => door.acceptor = Some(acceptor),
            Err(error) => {
                door.end();
                return Err(error);
            }
        }
        Ok(door)
    }

    /// Returns true if new connections are accepted.
    pub(crate) fn is_open(&self) -> bool {
        self.acceptor.as_ref().is_some_and(|acceptor| !acceptor.is_finished())
    }

    /// Cancels running requests, notifies attached readers, and waits for all threads.
    pub(crate) fn end(&mut self) {
        if self.fork.is_child() {
            return; // the sockets are shared with the parent, and the child has no threads
        }
        self.shared.ending.store(true, Ordering::Release);
        let _ = rustix::fs::unlinkat(&self.shared.dir, DOOR[0], AtFlags::empty());
        let _ = rustix::net::shutdown(&self.shared.listener, Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.thread().unpark();
            let _ = acceptor.join();
        }
        let guests = std::mem::take(&mut *self.shared.guests());
        for guest in &guests {
            guest.line.hang_up();
        }
        for guest in guests {
            let _ = guest.thread.join();
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn guests(&self) -> std::sync::MutexGuard<'_, Vec<Guest>> {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept_all(self: &Arc<Shared>) {
        let mut porter = Porter::new();
        while !self.ending.load(Ordering::Acquire) {
            match porter.next(|| rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC)) {
                Next::Came(socket) => self.let_in(UnixStream::from(socket)),
                Next::Gone => {}
                Next::Nobody => self.wait(),
                Next::Later => std::thread::park_timeout(PAUSE), // `end` unparks
                Next::Never => break,                            // the listener was shut
            }
        }
    }

    /// Waits for a connection, and sends signs of life to guests with running requests.
    fn wait(&self) {
        let is_working = self.guests().iter().filter(|guest| guest.line.pulse()).count() > 0;
        let timeout = Timespec::try_from(PULSE).ok().filter(|_| is_working);
        let mut polled = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        let _ = poll(&mut polled, timeout.as_ref()); // the caller checks in any case
        let _ = rustix::io::read(&self.bell, &mut [0; 8]); // empty if no guest wrote
    }

    /// Returns true if the kernel identifies the peer as our user or root.
    fn is_ours(stream: &UnixStream) -> bool {
        let peer = rustix::net::sockopt::socket_peercred(stream);
        peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid() || peer.uid.is_root())
    }

    fn let_in(self: &Arc<Shared>, stream: UnixStream) {
        if !Shared::is_ours(&stream) {
            return;
        }
        let mut guests = self.guests();
        let (over, here): (Vec<_>, Vec<_>) = guests.drain(..).partition(|guest| guest.thread.is_finished());
        *guests = here;
        over.into_iter().for_each(|guest| drop(guest.thread.join()));
        let line = Arc::new(Line::new(stream));
        if !make_room(&guests, line.process()) {
            let _ = wire::greet(line.stream(), Status::Busy);
            return;
        }
        let (theirs, shared) = (Arc::clone(&line), Arc::clone(self));
        let thread = std::thread::Builder::new().name("sheaf-guest".into());
        let ring = move || {
            let _ = rustix::io::write(&shared.bell, &1u64.to_ne_bytes());
        };
        let store = Weak::clone(&self.store);
        // If no thread can be started, the connection ends.
        if let Ok(thread) = thread.spawn(move || guest::attend(&store, &theirs, ring)) {
            guests.push(Guest { line, thread });
        }
    }
}

/// Returns true if a guest of `process` can be served, if necessary after an idle connection was
/// ended (I6).
fn make_room(guests: &[Guest], process: Option<i32>) -> bool {
    let here = || guests.iter().map(|guest| &guest.line).filter(|line| !line.is_shown_out());
    let of_process = |line: &&Arc<Line>| process.is_some() && line.process() == process;
    let show_out = |of: &dyn Fn(&&Arc<Line>) -> bool| {
        let idle = here().filter(of).filter_map(|line| Some((line.idle_since()?, line)));
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|(since, _)| *since);
        idle.into_iter().any(|(_, line)| line.show_out(IDLE))
    };
    if here().filter(of_process).count() >= MOST_OF_A_PROCESS {
        return show_out(&of_process);
    }
    here().count() < MOST_GUESTS || show_out(&|_| true)
}
