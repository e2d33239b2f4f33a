//! # Door: accepts connections and makes sessions
//!
//! One thread for all connections without a session. No connection can delay it: sockets do not
//! block, a hello has a fixed length and must arrive within [`PATIENCE`], and at most
//! [`MOST_GUESTS`] connections wait. If there are that many, a new connection replaces the oldest
//! one that has not sent a correct token, but not before [`GRACE`].
//!
//! ```text
//!   listener ─> guest: hello arrives ─┬─> refused: the answer has the reason
//!                                     ├─> session over shared memory: memory and bells are sent
//!                                     ├─> session over TCP
//!                                     └─> all-to-all over TCP: a party, until all have connected
//! ```
//!
//! If no connection can be accepted (no descriptor, no memory), the door ignores its listeners for
//! a moment: a waiting connection keeps them readable.
//!
//! Over a Unix socket the kernel reports the user of the other process, which must be the user of
//! the server. Over TCP the token decides, if there is one; replies to wrong tokens are delayed
//! ([`denials`](crate::denials)).

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, acceptfrom_with, recv, send,
};
use sheaf_base::porter::{Next, PAUSE, Porter};
use sheaf_flatrpc::address::Address;
use sheaf_flatrpc::hello::{FIXED, Hello, Join, MAX_TOKEN, Mode, Status, VERSION, Welcome, is_same};
use sheaf_flatrpc::link::{Applier, SharedLink, TcpLink};
use sheaf_flatrpc::memory::Memory;
use sheaf_flatrpc::ring::{Incoming, Layout, MAX_RINGS, Outgoing};
use sheaf_flatrpc::wake::{Rope, Wake};

use crate::commands::Whom;
use crate::denials::{Denials, FIRST};
use crate::port::{Port, Wire};
use crate::session::Session;
use crate::shared::{Alarm, Shared, bell};
use crate::worker::Arrival;

/// Time limit for a hello, and for the connections of a party.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum number of connections without a hello.
const MOST_GUESTS: usize = 128;
/// Time for which a guest cannot be replaced.
const GRACE: Duration = FIRST;

enum Listener {
    Shared(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Shared(listener, _) => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Shared(_, path) = self {
            remove(path);
        }
    }
}

/// Removes a socket's name. A file of another type at this path is not removed.
#[expect(clippy::disallowed_methods, reason = "a socket's name, not a file of a database")]
fn remove(path: &Path) {
    if is_socket(path).unwrap_or(false) {
        let _ = std::fs::remove_file(path); // it may have been removed already
    }
}

/// Returns true if `path` is a socket. Does not follow links.
fn is_socket(path: &Path) -> io::Result<bool> {
    Ok(std::fs::symlink_metadata(path)?.file_type().is_socket())
}

/// Connection that has not finished its hello.
struct Guest {
    socket: OwnedFd,
    is_shared: bool,
    /// Address of the peer, over TCP.
    peer: Option<IpAddr>,
    said: Vec<u8>,
    came: Instant,
    until: Instant,
    /// Delayed answer and its time. Once set, the door reads no more from the connection.
    answer: Option<(Instant, Answer)>,
}

impl Guest {
    /// Returns the time from which another guest may replace this one; `None` if it is admitted.
    fn may_go(&self) -> Option<Instant> {
        (!matches!(self.answer, Some((_, Answer::In(_))))).then_some(self.came + GRACE)
    }
}

/// Delayed answer.
enum Answer {
    Denied,
    In(Box<Hello>),
}

/// Session over TCP that waits for its other connections.
struct Party {
    session: Arc<Session>,
    secret: u128,
    sockets: Vec<Option<OwnedFd>>,
    until: Instant,
}

/// Session, and the time since which it has sent no request.
struct Watched {
    session: Weak<Session>,
    asked: u64,
    since: Instant,
}

impl Watched {
    /// Checks for requests at `now`. Returns false if the session has ended.
    fn look(&mut self, now: Instant, idle: Duration, shared: &Shared) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        let asked = session.asked();
        if asked != self.asked || session.waiting.load(Ordering::SeqCst) > 0 {
            (self.asked, self.since) = (asked, now);
        } else if now.duration_since(self.since) >= idle {
            shared.end(&session);
            return false;
        }
        true
    }
}

pub(crate) struct Door {
    shared: Arc<Shared>,
    listeners: Vec<Listener>,
    guests: Vec<Guest>,
    parties: Vec<Party>,
    /// Sessions to disconnect if they are idle too long.
    watched: Vec<Watched>,
    porter: Porter,
    denials: Denials,
    /// Time before which no connection is accepted.
    shut_until: Option<Instant>,
    sessions: AtomicU64,
}

#[expect(clippy::disallowed_methods, reason = "timeouts of connections; no data depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl Door {
    pub(crate) fn open(shared: Arc<Shared>, addresses: Vec<Address>) -> io::Result<Door> {
        let listeners = addresses.into_iter().map(listen).collect::<io::Result<Vec<_>>>()?;
        Ok(Door {
            shared,
            listeners,
            guests: Vec::new(),
            parties: Vec::new(),
            watched: Vec::new(),
            porter: Porter::new(),
            denials: Denials::default(),
            shut_until: None,
            sessions: AtomicU64::new(1),
        })
    }

    pub(crate) fn addresses(&self) -> Vec<Address> {
        let of = |listener: &Listener| match listener {
            Listener::Shared(_, path) => Some(Address::Shared(path.clone())),
            Listener::Tcp(listener) => listener.local_addr().ok().map(Address::Tcp),
        };
        self.listeners.iter().filter_map(of).collect()
    }

    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _alarm = Alarm(&shared);
        let is_over = || shared.draining.load(Ordering::SeqCst) || shared.stop.load(Ordering::SeqCst);
        while !is_over() {
            self.wait();
            self.shut_until = self.shut_until.filter(|until| *until > now());
            for at in 0..self.listeners.len() {
                while let Some(guest) = self.accept(at) {
                    self.guests.push(guest);
                }
            }
            for guest in std::mem::take(&mut self.guests) {
                match guest.answer.as_ref().map(|(at, _)| *at) {
                    None => self.listen_to(guest),
                    Some(at) if at > now() => self.guests.push(guest),
                    Some(_) => self.answer(guest),
                }
            }
            let now = now();
            let before = self.guests.len() + self.parties.len();
            self.guests.retain(|guest| guest.until > now || guest.answer.is_some());
            self.parties.retain(|party| party.until > now);
            let late = before - self.guests.len() - self.parties.len();
            self.shared.refused.fetch_add(late as u64, Ordering::Relaxed);
            if let Some(idle) = shared.limits.idle {
                self.watched.retain_mut(|watched| watched.look(now, idle, &shared));
            }
        }
    }

    /// Waits for a connection, input or a timeout.
    fn wait(&self) {
        let guests = self.guests.iter().filter(|guest| guest.answer.is_none());
        let guests = guests.map(|guest| PollFd::new(&guest.socket, PollFlags::IN));
        let listeners =
            self.listeners.iter().filter(|_| self.may_accept()).map(|l| PollFd::new(l, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = guests.chain(listeners).collect();
        polled.push(PollFd::new(&self.shared.door_bell, PollFlags::IN));
        let idle = self.shared.limits.idle;
        let place = self.guests.iter().filter(|_| self.guests.len() >= MOST_GUESTS).filter_map(Guest::may_go);
        let due = |guest: &Guest| guest.answer.as_ref().map_or(guest.until, |(at, _)| *at);
        let patience = (self.guests.iter().map(due))
            .chain(place.filter(|_| !self.may_accept()))
            .chain(self.parties.iter().map(|party| party.until))
            .chain(self.shut_until)
            .chain(self.watched.iter().filter_map(|watched| watched.since.checked_add(idle?)));
        let left =
            patience.min().map(|until| until.saturating_duration_since(now()) + Duration::from_millis(1));
        let timeout: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        let _ = rustix::event::poll(&mut polled, timeout.as_ref()); // the caller checks all of them
    }

    fn may_accept(&self) -> bool {
        self.shut_until.is_none() && (self.guests.len() < MOST_GUESTS || self.replaceable().is_some())
    }

    /// Returns the guest that a new connection may replace.
    fn replaceable(&self) -> Option<usize> {
        let (now, guests) = (now(), self.guests.iter().enumerate());
        let may_go = guests.filter_map(|(index, guest)| Some((guest.may_go()?, index)));
        may_go.min().filter(|(at, _)| *at <= now).map(|(_, index)| index)
    }

    fn accept(&mut self, listener: usize) -> Option<Guest> {
        if !self.may_accept() {
            return None;
        }
        let listener = &self.listeners[listener];
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let mut peer = None;
        let accept = || {
            let (socket, address) = acceptfrom_with(listener, flags)?;
            peer = address.and_then(|address| SocketAddr::try_from(address).ok()).map(|address| address.ip());
            Ok(socket)
        };
        let socket = match self.porter.next(accept) {
            Next::Came(socket) => socket,
            Next::Gone | Next::Nobody => return None, // the next listener has its turn
            Next::Later | Next::Never => {
                self.shut_until = now().checked_add(PAUSE);
                return None;
            }
        };
        let is_shared = matches!(listener, Listener::Shared(..));
        if self.guests.len() >= MOST_GUESTS
            && let Some(index) = self.replaceable()
        {
            drop(self.guests.swap_remove(index));
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        let came = now();
        Some(Guest { socket, is_shared, peer, said: Vec::new(), came, until: came + PATIENCE, answer: None })
    }

    /// Reads from a guest, which then stays, is admitted, or is refused.
    fn listen_to(&mut self, mut guest: Guest) {
        let mut bytes = [0; FIXED + MAX_TOKEN + 1];
        let room = bytes.len() - guest.said.len();
        let heard = match recv(&guest.socket, &mut bytes[..room], RecvFlags::empty()) {
            Ok((_, 0)) => return self.refuse(None, Status::Malformed),
            Ok((_, count)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return self.guests.push(guest),
            Err(_) => return self.refuse(None, Status::Malformed),
        };
        guest.said.extend_from_slice(&bytes[..heard]);
        match Hello::decode(&guest.said) {
            Ok(None) => self.guests.push(guest),
            Ok(Some(hello)) => self.judge(guest, hello),
            Err(status) => self.refuse(Some(&guest.socket), status),
        }
    }

    fn refuse(&self, socket: Option<&OwnedFd>, status: Status) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(socket) = socket {
            let _ = send(socket, &Welcome::refusal(status).encode(), SendFlags::NOSIGNAL);
        }
    }

    /// Returns true if the guest may be admitted.
    fn knows(&self, guest: &Guest, hello: &Hello) -> bool {
        if guest.is_shared {
            let other = rustix::net::sockopt::socket_peercred(&guest.socket);
            return other.is_ok_and(|other| other.uid == rustix::process::geteuid());
        }
        self.shared.token.as_ref().is_none_or(|token| is_same(token.as_bytes(), &hello.token))
    }

    /// Decides whether a guest is admitted, and when it gets the answer.
    fn judge(&mut self, mut guest: Guest, hello: Hello) {
        let (now, knows) = (now(), self.knows(&guest, &hello));
        if guest.is_shared || self.shared.token.is_none() {
            return match knows {
                true => self.greet(guest, &hello),
                false => self.refuse(Some(&guest.socket), Status::Denied),
            };
        }
        let peer = guest.peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        guest.answer = match knows {
            true if self.denials.is_suspicious(peer, now) => Some((now + FIRST, Answer::In(Box::new(hello)))),
            true => return self.greet(guest, &hello),
            false => {
                self.shared.denied.fetch_add(1, Ordering::Relaxed);
                let (delay, report) = self.denials.wrong(peer, now);
                if let (Some(report), Some(tell)) = (report, &self.shared.on_denied) {
                    tell(&report);
                }
                Some((now + delay, Answer::Denied))
            }
        };
        self.guests.push(guest);
    }

    /// Gives a delayed answer.
    fn answer(&mut self, mut guest: Guest) {
        match guest.answer.take() {
            Some((_, Answer::In(hello))) => self.greet(guest, &hello),
            _ => self.refuse(Some(&guest.socket), Status::Denied),
        }
    }

    fn greet(&mut self, guest: Guest, hello: &Hello) {
        if let Some(join) = hello.join {
            return self.join(guest, join);
        }
        let Some(slot) = self.shared.slots.take() else {
            return self.refuse(Some(&guest.socket), Status::Busy);
        };
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        let whom = Whom { slot, session: number };
        if let Err(socket) = self.open_session(guest, hello.mode, whom) {
            self.refuse(socket.as_ref(), Status::Busy); // no memory or no descriptors
        }
    }

    /// Makes a session for a guest. The error is the guest's socket if it has no answer yet.
    fn open_session(&mut self, guest: Guest, mode: Mode, whom: Whom) -> Result<(), Option<OwnedFd>> {
        let limits = &self.shared.limits;
        let workers = limits.workers;
        let agent = usize::try_from(whom.session % workers as u64).expect("below the number of workers");
        let replies = if mode == Mode::Agent { 1 } else { workers };
        let layout = Layout::new(workers, replies, limits.ring).expect("limits were checked at the start");
        let welcome = Welcome {
            version: VERSION,
            status: Status::Welcome,
            workers: small(workers),
            agent: small(agent),
            ring: u32::try_from(limits.ring).expect("limits were checked at the start"),
            window: limits.window,
            max_message: limits.message,
            session: whom.session,
            secret: secret(),
        };
        let slots = Arc::clone(&self.shared.slots);
        let session = |inbox| Session::new(whom, mode, agent, workers, layout, inbox, slots);
        if guest.is_shared {
            let made = Memory::create(layout.words(), false);
            let Ok((inbox, file)) = made else {
                slots_back(&self.shared, whom);
                return Err(Some(guest.socket));
            };
            let session = Arc::new(session(Arc::new(inbox)));
            return self.hand_over(guest.socket, &session, &file, &welcome).map_err(|_| None);
        }
        let session = Arc::new(session(Arc::new(Memory::heap(layout.words()))));
        settle(&guest.socket);
        if send(&guest.socket, &welcome.encode(), SendFlags::NOSIGNAL) != Ok(FIXED) {
            return Err(None);
        }
        let mut sockets: Vec<Option<OwnedFd>> = (0..workers).map(|_| None).collect();
        sockets[agent] = Some(guest.socket);
        let party = Party { session, secret: welcome.secret, sockets, until: now() + PATIENCE };
        self.admit_or_wait(party);
        Ok(())
    }

    /// Sends memory and bells to a client on this machine.
    fn hand_over(
        &mut self,
        socket: OwnedFd,
        session: &Arc<Session>,
        inbox_file: &OwnedFd,
        welcome: &Welcome,
    ) -> io::Result<()> {
        let workers = session.lanes.len();
        let (theirs, their_file) = Memory::create(session.layout.of_peer().words(), false)?;
        let theirs = Arc::new(theirs);
        let (rope, their_bell) = Rope::new()?;
        let bells = (0..workers).map(|_| bell()).collect::<io::Result<Vec<_>>>()?;
        let mut handed = vec![inbox_file.as_fd(), their_file.as_fd(), self.shared.board_file.as_fd()];
        handed.push(their_bell.as_fd());
        handed.extend(bells.iter().map(AsFd::as_fd));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RINGS + 4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&handed)), "room for all of them");
        let bytes = welcome.encode();
        let sent = rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        if sent != FIXED {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let socket = Arc::new(socket);
        let port = |worker: usize| -> io::Result<Port> {
            let bell = rope.try_clone()?;
            let wake = Wake { board: Arc::clone(&session.inbox), at: session.layout.asleep(), bell };
            let link = SharedLink::new(Arc::clone(&theirs), vec![wake]);
            Ok(make_port(
                session,
                worker,
                Wire { link: Box::new(link), applier: None, socket: Arc::new(socket.try_clone()?) },
            ))
        };
        let mut ports = Vec::with_capacity(workers);
        for worker in 0..workers {
            ports.push(if session.owner(worker) == worker { Some(port(worker)?) } else { None });
        }
        if session.mode == Mode::Agent {
            debug_assert!(ports[session.agent].is_some());
        }
        let parts = ports.into_iter().zip(bells.into_iter().map(Some)).collect();
        self.deliver(session, parts);
        Ok(())
    }

    fn join(&mut self, guest: Guest, join: Join) {
        let worker = usize::try_from(join.worker).unwrap_or(usize::MAX);
        let party = self.parties.iter().position(|party| {
            party.session.whom.session == join.session
                && is_same(&party.secret.to_le_bytes(), &join.secret.to_le_bytes())
                && party.sockets.get(worker).is_some_and(Option::is_none)
        });
        let Some(at) = party.filter(|_| !guest.is_shared) else {
            return self.refuse(Some(&guest.socket), Status::Denied);
        };
        let welcome = Welcome { status: Status::Welcome, ..Welcome::refusal(Status::Welcome) };
        settle(&guest.socket);
        if send(&guest.socket, &welcome.encode(), SendFlags::NOSIGNAL) != Ok(FIXED) {
            return self.refuse(None, Status::Malformed);
        }
        let mut party = self.parties.swap_remove(at);
        party.sockets[worker] = Some(guest.socket);
        self.admit_or_wait(party);
    }

    /// Admits a session over TCP once all its connections exist.
    fn admit_or_wait(&mut self, party: Party) {
        let session = &party.session;
        let mut needed = (0..party.sockets.len()).filter(|worker| session.owner(*worker) == *worker);
        if needed.any(|worker| party.sockets[worker].is_none()) {
            self.parties.push(party);
            return;
        }
        let Party { session, sockets, .. } = party;
        let part = |(worker, socket): (usize, Option<OwnedFd>)| {
            let port = socket.map(|socket| {
                let socket = Arc::new(socket);
                let link = Box::new(TcpLink::new(Arc::clone(&socket)));
                let applier = Some(Applier::new(Arc::clone(&socket), Arc::clone(&session.inbox)));
                make_port(&session, worker, Wire { link, applier, socket })
            });
            (port, None)
        };
        let parts = sockets.into_iter().enumerate().map(part).collect();
        self.deliver(&session, parts);
    }

    /// Gives each worker its part; first to owners of a port, as other workers send them replies.
    fn deliver(&mut self, session: &Arc<Session>, parts: Vec<(Option<Port>, Option<OwnedFd>)>) {
        self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
        parts.sort_by_key(|(_, (port, _))| port.is_none());
        for (worker, (port, bell)) in parts {
            let ring = Incoming::new(session.layout, worker);
            let arrival = Arrival { session: Arc::clone(session), ring, bell, port };
            self.shared.desks[worker].deliver(arrival);
        }
        if self.shared.limits.idle.is_some() {
            self.watched.push(Watched { session: Arc::downgrade(session), asked: 0, since: now() });
        }
    }
}

fn make_port(session: &Arc<Session>, worker: usize, wire: Wire) -> Port {
    let (ring, lanes) = match session.mode {
        Mode::Agent => (0, 0..session.lanes.len()),
        Mode::AllToAll => (worker, worker..worker + 1),
    };
    let ring = Outgoing::new(session.layout, ring);
    let credits = lanes.map(|lane| (lane, Incoming::new(session.layout, lane).credit())).collect();
    Port::new(session, ring, credits, wire)
}

/// Sets socket options. If they cannot be set, the connection is slower, and the failure of the
/// peer's machine is detected later.
fn settle(socket: &OwnedFd) {
    use rustix::net::sockopt::{
        set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
    };
    let _ = set_tcp_nodelay(socket, true);
    let _ = set_socket_keepalive(socket, true);
    let _ = set_tcp_keepidle(socket, Duration::from_secs(60));
    let _ = set_tcp_keepintvl(socket, Duration::from_secs(10));
    let _ = set_tcp_keepcnt(socket, 6);
}

/// Returns a slot that no session has taken.
fn slots_back(shared: &Shared, whom: Whom) {
    shared.slots.give_back(whom.slot);
}

fn small(number: usize) -> u32 {
    u32::try_from(number).expect("at most 64")
}

/// Returns a random number: the standard library draws its hash keys from the system.
fn secret() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let word = || u128::from(RandomState::new().hash_one(std::process::id()));
    word() << 64 | word()
}

fn listen(address: Address) -> io::Result<Listener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"));
    match &address {
        Address::Shared(path) => {
            let listener = bind(path).map_err(named)?;
            listener.set_nonblocking(true)?;
            Ok(Listener::Shared(listener, path.clone()))
        }
        Address::Tcp(at) => {
            let listener = TcpListener::bind(at).map_err(named)?;
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(listener))
        }
    }
}

/// Binds a Unix socket for its owner. Takes over the name of a socket without a server.
fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = match UnixListener::bind(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            // A connection to a file that is not a socket is refused like one to a dead server.
            if !is_socket(path)? {
                let why = "a file that is not a socket has this name";
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => remove(path),
                _ => return Err(error),
            }
            UnixListener::bind(path)?
        }
        other => other?,
    };
    // Before this line other users can connect; `knows` refuses them.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
