//! # The door: a way in for other processes while a database is open
//!
//! One process owns a database. Through a socket in the directory others of the same user may ask it for figures, a backup, a conversion,
//! or for a state to read ([`beside`]). No data is served here: that is `sheaf-server`'s. docs/format/door.md has every byte.
//!
//! ## Picture
//!
//! ```text
//!  owner                                            somebody else
//!  Handle ── Door ── accept thread                  Owner::connect ── /proc/self/fd/N/door
//!              │        └ guest threads <── hello, requests ──┘
//!              │             └ Weak<Store>  ── replies: progress, a result, or an error ──>
//!              └ end: sockets shut, threads joined; then the store closes
//! ```
//!
//! | file | job |
//! |---|---|
//! | `mod` | the socket, who may come in, the end |
//! | `guest` | one connection: requests into calls |
//! | `owner` | the other end |
//! | `beside` | reading beside the owner: the hold, and the lease on it |
//! | `message` `figures` `wire` | what is said, byte by byte (errors: `sheaf_base::fault`) |
//!
//! ## Invariants
//!
//! 1. The socket is made under the lock and named once it is 0600: it is never wider. Each peer's user is asked of the kernel: the owner's,
//!    or root.
//! 2. A database opens and works without a door; `Stats::door` says whether there is one.
//! 3. The door keeps nothing alive: guests hold the store, never a handle, and are gone before it closes.
//! 4. Whoever lent a state shuts the connection first and lets go of the state then, so that a reader who finds the connection open *after* a
//!    read has read what was held.
//! 5. No bytes of a guest make the owner panic, wait for that guest while it closes, or take more than a message's memory.
//! 6. A door that was opened stays open until its end: what an `accept` may fail of passes, as a want of descriptors does
//!    ([`sheaf_base::porter`]).
//!
//! ## Threads
//!
//! One that accepts, one for each of at most [`MOST_GUESTS`] guests. They sleep in `accept` and `recv`; `shutdown` wakes them. Where nobody
//! can be taken in the one that accepts pauses; `unpark` wakes it. A forked child leaves all of it to its parent.
//!
//! ## Crash
//!
//! The socket's name stays: a connection to it is refused, which is taken for "no owner", and the next owner removes it.
//!
//! ## Costs
//!
//! A thread and a socket a database. A guest who asks for nothing costs a thread.

mod beside;
mod figures;
mod guest;
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

use wire::Status;

/// Connections at a time.
const MOST_GUESTS: usize = 16;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 16;

/// The owner's side of the door. See the module.
pub(crate) struct Door {
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
    fork: ForkGuard,
}

/// What the threads share.
struct Shared {
    /// The database's directory.
    dir: OwnedFd,
    listener: OwnedFd,
    store: Weak<Store>,
    ending: AtomicBool,
    guests: Mutex<Vec<Guest>>,
}

/// One connection.
struct Guest {
    stream: Arc<UnixStream>,
    thread: JoinHandle<()>,
}

/// The way to a name in an open directory that fits into a socket's address, however long the directory's path is.
fn way_to(dir: &OwnedFd, name: &str) -> PathBuf {
    Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name)
}

fn open_dir(dir: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// A socket that listens under the door's name. The caller has the lock of the database.
fn listen(dir: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    let [name, unborn] = DOOR;
    for stale in DOOR {
        match rustix::fs::unlinkat(dir, stale, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(way_to(dir, unborn))?)?;
    let named = rustix::fs::chmodat(dir, unborn, Mode::RUSR | Mode::WUSR, AtFlags::empty())
        .and_then(|()| rustix::net::listen(&socket, BACKLOG)) // until now nobody could connect
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

    /// Whether somebody could come in.
    pub(crate) fn is_open(&self) -> bool {
        self.acceptor.as_ref().is_some_and(|acceptor| !acceptor.is_finished())
    }

    /// Ends what is under way as if it had been cancelled, and waits for it. Whoever reads beside is told first.
    pub(crate) fn end(&mut self) {
        if self.fork.is_child() {
            return; // sockets are shared with the parent, threads are not there
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
            let _ = guest.stream.shutdown(std::net::Shutdown::Both);
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
                Next::Nobody | Next::Later => std::thread::park_timeout(PAUSE), // the end wakes us
                Next::Never => break,                                           // it was shut
            }
        }
    }

    /// Whether the kernel says that it is us, or root.
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
        if guests.len() >= MOST_GUESTS {
            let _ = wire::greet(&stream, Status::Busy);
            return;
        }
        let (stream, shared) = (Arc::new(stream), Arc::clone(self));
        let theirs = Arc::clone(&stream);
        let thread = std::thread::Builder::new().name("sheaf-guest".into());
        // Without a thread the connection just ends.
        if let Ok(thread) = thread.spawn(move || guest::attend(&shared.store, &theirs)) {
            guests.push(Guest { stream, thread });
        }
    }
}
