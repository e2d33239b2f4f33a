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
//! | `line` | the state of that connection, and signs of life while a request takes its time |
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
//! 6. A guest that says no hello in [`HELLO_WITHIN`], or does not read for [`GUEST_READS_WITHIN`], is shown out. If all places are taken, the
//!    guest that has asked for nothing for longest gives its place to the next.
//! 7. While a request is under way the guest hears something at least every [`PULSE`], unless the process is stopped.
//! 8. A door that was opened stays open until its end: what an `accept` may fail of passes, as a want of descriptors does
//!    ([`sheaf_base::porter`]).
//!
//! ## Threads
//!
//! One that accepts, and sends signs of life; one for each of at most [`MOST_GUESTS`] guests. They sleep in `poll` and `recv`; `shutdown`
//! wakes them. Where nobody can be taken in the one that accepts pauses; `unpark` wakes it. A forked child leaves all of it to its parent.
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

/// Connections at a time, and of them from one process.
const MOST_GUESTS: usize = 64;
const MOST_OF_A_PROCESS: usize = 32;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;
/// How long a guest may take for its hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How long a guest may leave unread what it is told.
const GUEST_READS_WITHIN: Duration = Duration::from_secs(30);
/// How long a guest must have asked for nothing before another one gets its place.
const IDLE: Duration = Duration::from_secs(1);
/// Between two signs of life.
const PULSE: Duration = Duration::from_millis(500);

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
    /// Rung when a guest asks for something.
    bell: OwnedFd,
    store: Weak<Store>,
    ending: AtomicBool,
    guests: Mutex<Vec<Guest>>,
}

/// One connection.
struct Guest {
    line: Arc<Line>,
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
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
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
                Next::Later => std::thread::park_timeout(PAUSE), // the end wakes us
                Next::Never => break,                            // it was shut
            }
        }
    }

    /// Waits until somebody comes. Gives signs of life to guests whose requests take their time.
    fn wait(&self) {
        let is_working = self.guests().iter().filter(|guest| guest.line.pulse()).count() > 0;
        let timeout = Timespec::try_from(PULSE).ok().filter(|_| is_working);
        let mut polled = [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        let _ = poll(&mut polled, timeout.as_ref()); // whatever it says, we look
        let _ = rustix::io::read(&self.bell, &mut [0; 8]); // nothing is there if it was not rung
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
        // Without a thread the connection just ends.
        if let Ok(thread) = thread.spawn(move || guest::attend(&store, &theirs, ring)) {
            guests.push(Guest { line, thread });
        }
    }
}

/// Whether there is a place for a guest of `process`, maybe after another one that asks for nothing was shown out: I6.
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
