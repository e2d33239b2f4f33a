//! # Session acceptor: accepts connections and makes sessions
//!
//! One thread for all connections without a session. No connection can delay it: sockets do not
//! block, a hello has a fixed length and must arrive within [`HANDSHAKE_TIMEOUT`], and at most
//! [`MAX_PENDING_CONNECTIONS`] connections wait. If there are that many, a new connection replaces
//! the oldest one that has not sent a correct token, but not before [`MIN_PENDING_TIME`].
//!
//! ```text
//!   listener ─> client: hello arrives ─┬─> refused: the answer has the reason
//!                                      ├─> session over shared memory: memory and bells are sent
//!                                      ├─> session over TCP
//!                                      └─> all-to-all over TCP: a party, until all have connected
//! ```
//!
//! If no connection can be accepted (no descriptor, no memory), the acceptor ignores its listeners
//! for a moment: a waiting connection keeps them readable.
//!
//! Over a Unix socket the kernel reports the user of the other process, which must be the user of
//! the server. Over TCP the token decides, if there is one; replies to wrong tokens are delayed
//! ([`token_failures`](crate::token_failures)).

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
use sheaf_flatrpc::address::ServerAddress;
use sheaf_flatrpc::handshake::{
    ClientHello, HELLO_BYTES, HandshakeStatus, MAX_TOKEN_BYTES, ReplyMode, ServerHello, SessionJoin, VERSION,
    constant_time_eq,
};
use sheaf_flatrpc::link::{FrameApplier, SharedLink, TcpLink};
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::ring::{InboxLayout, MAX_RINGS, RingReader, RingWriter};
use sheaf_flatrpc::wake::{PeerWaker, SocketNotifier};
use sheaf_platform::accept::{Accepted, Acceptor, RETRY_PAUSE};

use crate::commands::Recipient;
use crate::reply_port::{PortTransport, ReplyPort};
use crate::server_state::{ServerState, StopOnPanic, new_notifier};
use crate::session::Session;
use crate::token_failures::{FIRST_DELAY, TokenFailures};
use crate::worker::SessionPart;

/// Time limit for a hello, and for the connections of a party.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of connections without a hello.
const MAX_PENDING_CONNECTIONS: usize = 128;
/// Time for which a client cannot be replaced.
const MIN_PENDING_TIME: Duration = FIRST_DELAY;

enum ServerListener {
    SharedMemory(UnixListener, PathBuf),
    Tcp(TcpListener),
}

impl AsFd for ServerListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ServerListener::SharedMemory(listener, _) => listener.as_fd(),
            ServerListener::Tcp(listener) => listener.as_fd(),
        }
    }
}

impl Drop for ServerListener {
    fn drop(&mut self) {
        if let ServerListener::SharedMemory(_, path) = self {
            remove_socket(path);
        }
    }
}

/// Removes a socket's name. A file of another type at this path is not removed.
#[expect(clippy::disallowed_methods, reason = "a socket's name, not a file of a database")]
fn remove_socket(path: &Path) {
    if is_socket(path).unwrap_or(false) {
        let _ = std::fs::remove_file(path); // it may have been removed already
    }
}

/// Returns true if `path` is a socket. Does not follow links.
fn is_socket(path: &Path) -> io::Result<bool> {
    Ok(std::fs::symlink_metadata(path)?.file_type().is_socket())
}

/// Connection that has not finished its hello.
struct PendingConnection {
    socket: OwnedFd,
    is_shared: bool,
    /// Address of the peer, over TCP.
    peer: Option<IpAddr>,
    received: Vec<u8>,
    accepted_at: Instant,
    deadline: Instant,
    /// Delayed answer and its time. Once set, the acceptor reads no more from the connection.
    delayed_reply: Option<(Instant, DelayedReply)>,
}

impl PendingConnection {
    /// Returns the time from which another client may replace this one; `None` if it is admitted.
    fn replaceable_from(&self) -> Option<Instant> {
        (!matches!(self.delayed_reply, Some((_, DelayedReply::Admit(_)))))
            .then_some(self.accepted_at + MIN_PENDING_TIME)
    }
}

/// Delayed answer.
enum DelayedReply {
    Denied,
    Admit(Box<ClientHello>),
}

/// Session over TCP that waits for its other connections.
struct PartialSession {
    session: Arc<Session>,
    secret: u128,
    sockets: Vec<Option<OwnedFd>>,
    deadline: Instant,
}

/// Session, and the time since which it has sent no request.
struct IdleTracker {
    session: Weak<Session>,
    request_words: u64,
    since: Instant,
}

impl IdleTracker {
    /// Checks for requests at `now`. Returns false if the session has ended.
    fn check(&mut self, now: Instant, idle: Duration, shared: &ServerState) -> bool {
        let Some(session) = self.session.upgrade() else { return false };
        let asked = session.request_words();
        if asked != self.request_words || session.waiting_requests.load(Ordering::SeqCst) > 0 {
            (self.request_words, self.since) = (asked, now);
        } else if now.duration_since(self.since) >= idle {
            shared.end_session(&session);
            return false;
        }
        true
    }
}

pub(crate) struct SessionAcceptor {
    shared: Arc<ServerState>,
    listeners: Vec<ServerListener>,
    pending: Vec<PendingConnection>,
    partial_sessions: Vec<PartialSession>,
    /// Sessions to disconnect if they are idle too long.
    idle_trackers: Vec<IdleTracker>,
    acceptor: Acceptor,
    denials: TokenFailures,
    /// Time before which no connection is accepted.
    paused_until: Option<Instant>,
    next_session: AtomicU64,
}

#[expect(clippy::disallowed_methods, reason = "deadlines of connections; no data depends on it")]
fn now() -> Instant {
    Instant::now()
}

impl SessionAcceptor {
    pub(crate) fn bind_all(
        shared: Arc<ServerState>,
        addresses: Vec<ServerAddress>,
    ) -> io::Result<SessionAcceptor> {
        let listeners = addresses.into_iter().map(listen).collect::<io::Result<Vec<_>>>()?;
        Ok(SessionAcceptor {
            shared,
            listeners,
            pending: Vec::new(),
            partial_sessions: Vec::new(),
            idle_trackers: Vec::new(),
            acceptor: Acceptor::new(),
            denials: TokenFailures::default(),
            paused_until: None,
            next_session: AtomicU64::new(1),
        })
    }

    pub(crate) fn addresses(&self) -> Vec<ServerAddress> {
        let of = |listener: &ServerListener| match listener {
            ServerListener::SharedMemory(_, path) => Some(ServerAddress::SharedMemory(path.clone())),
            ServerListener::Tcp(listener) => listener.local_addr().ok().map(ServerAddress::Tcp),
        };
        self.listeners.iter().filter_map(of).collect()
    }

    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let _alarm = StopOnPanic(&shared);
        let is_over =
            || shared.is_draining.load(Ordering::SeqCst) || shared.is_stopping.load(Ordering::SeqCst);
        while !is_over() {
            self.wait();
            self.paused_until = self.paused_until.filter(|until| *until > now());
            for at in 0..self.listeners.len() {
                while let Some(client) = self.accept(at) {
                    self.pending.push(client);
                }
            }
            for client in std::mem::take(&mut self.pending) {
                match client.delayed_reply.as_ref().map(|(at, _)| *at) {
                    None => self.read_hello(client),
                    Some(at) if at > now() => self.pending.push(client),
                    Some(_) => self.send_delayed_reply(client),
                }
            }
            let now = now();
            let before = self.pending.len() + self.partial_sessions.len();
            self.pending.retain(|client| client.deadline > now || client.delayed_reply.is_some());
            self.partial_sessions.retain(|party| party.deadline > now);
            let late = before - self.pending.len() - self.partial_sessions.len();
            self.shared.refused.fetch_add(late as u64, Ordering::Relaxed);
            if let Some(idle) = shared.limits.idle_timeout {
                self.idle_trackers.retain_mut(|watched| watched.check(now, idle, &shared));
            }
        }
    }

    /// Waits for a connection, input or a timeout.
    fn wait(&self) {
        let clients = self.pending.iter().filter(|client| client.delayed_reply.is_none());
        let clients = clients.map(|client| PollFd::new(&client.socket, PollFlags::IN));
        let listeners =
            self.listeners.iter().filter(|_| self.can_accept()).map(|l| PollFd::new(l, PollFlags::IN));
        let mut polled: Vec<PollFd<'_>> = clients.chain(listeners).collect();
        polled.push(PollFd::new(&self.shared.acceptor_notifier, PollFlags::IN));
        let idle = self.shared.limits.idle_timeout;
        let place = self
            .pending
            .iter()
            .filter(|_| self.pending.len() >= MAX_PENDING_CONNECTIONS)
            .filter_map(PendingConnection::replaceable_from);
        let due =
            |client: &PendingConnection| client.delayed_reply.as_ref().map_or(client.deadline, |(at, _)| *at);
        let deadlines = (self.pending.iter().map(due))
            .chain(place.filter(|_| !self.can_accept()))
            .chain(self.partial_sessions.iter().map(|party| party.deadline))
            .chain(self.paused_until)
            .chain(self.idle_trackers.iter().filter_map(|watched| watched.since.checked_add(idle?)));
        let left =
            deadlines.min().map(|until| until.saturating_duration_since(now()) + Duration::from_millis(1));
        let timeout: Option<Timespec> = left.and_then(|left| left.try_into().ok());
        let _ = rustix::event::poll(&mut polled, timeout.as_ref()); // the caller checks all of them
    }

    fn can_accept(&self) -> bool {
        self.paused_until.is_none()
            && (self.pending.len() < MAX_PENDING_CONNECTIONS || self.replaceable().is_some())
    }

    /// Returns the client that a new connection may replace.
    fn replaceable(&self) -> Option<usize> {
        let (now, clients) = (now(), self.pending.iter().enumerate());
        let may_go = clients.filter_map(|(index, client)| Some((client.replaceable_from()?, index)));
        may_go.min().filter(|(at, _)| *at <= now).map(|(_, index)| index)
    }

    fn accept(&mut self, listener: usize) -> Option<PendingConnection> {
        if !self.can_accept() {
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
        let socket = match self.acceptor.accept(accept) {
            Accepted::Connected(socket) => socket,
            Accepted::PeerGone | Accepted::NonePending => return None, // try the next listener
            Accepted::RetryLater | Accepted::ListenerClosed => {
                self.paused_until = now().checked_add(RETRY_PAUSE);
                return None;
            }
        };
        let is_shared = matches!(listener, ServerListener::SharedMemory(..));
        if self.pending.len() >= MAX_PENDING_CONNECTIONS
            && let Some(index) = self.replaceable()
        {
            drop(self.pending.swap_remove(index));
            self.shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        let came = now();
        Some(PendingConnection {
            socket,
            is_shared,
            peer,
            received: Vec::new(),
            accepted_at: came,
            deadline: came + HANDSHAKE_TIMEOUT,
            delayed_reply: None,
        })
    }

    /// Reads from a client, which then stays, is admitted, or is refused.
    fn read_hello(&mut self, mut client: PendingConnection) {
        let mut bytes = [0; HELLO_BYTES + MAX_TOKEN_BYTES + 1];
        let room = bytes.len() - client.received.len();
        let heard = match recv(&client.socket, &mut bytes[..room], RecvFlags::empty()) {
            Ok((_, 0)) => return self.refuse(None, HandshakeStatus::Malformed),
            Ok((_, count)) => count,
            Err(Errno::AGAIN | Errno::INTR) => return self.pending.push(client),
            Err(_) => return self.refuse(None, HandshakeStatus::Malformed),
        };
        client.received.extend_from_slice(&bytes[..heard]);
        match ClientHello::decode(&client.received) {
            Ok(None) => self.pending.push(client),
            Ok(Some(hello)) => self.authenticate(client, hello),
            Err(status) => self.refuse(Some(&client.socket), status),
        }
    }

    fn refuse(&self, socket: Option<&OwnedFd>, status: HandshakeStatus) {
        self.shared.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(socket) = socket {
            let _ = send(socket, &ServerHello::refused(status).encode(), SendFlags::NOSIGNAL);
        }
    }

    /// Returns true if the client may be admitted.
    fn is_authorized(&self, client: &PendingConnection, hello: &ClientHello) -> bool {
        if client.is_shared {
            let other = rustix::net::sockopt::socket_peercred(&client.socket);
            return other.is_ok_and(|other| other.uid == rustix::process::geteuid());
        }
        self.shared.token.as_ref().is_none_or(|token| constant_time_eq(token.as_bytes(), &hello.token))
    }

    /// Decides whether a client is admitted, and when it gets the answer.
    fn authenticate(&mut self, mut client: PendingConnection, hello: ClientHello) {
        let (now, knows) = (now(), self.is_authorized(&client, &hello));
        if client.is_shared || self.shared.token.is_none() {
            return match knows {
                true => self.start_session(client, &hello),
                false => self.refuse(Some(&client.socket), HandshakeStatus::Denied),
            };
        }
        let peer = client.peer.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        client.delayed_reply = match knows {
            true if self.denials.is_suspicious(peer, now) => {
                Some((now + FIRST_DELAY, DelayedReply::Admit(Box::new(hello))))
            }
            true => return self.start_session(client, &hello),
            false => {
                self.shared.denied.fetch_add(1, Ordering::Relaxed);
                let (delay, report) = self.denials.record_failure(peer, now);
                if let (Some(report), Some(tell)) = (report, &self.shared.on_denied) {
                    tell(&report);
                }
                Some((now + delay, DelayedReply::Denied))
            }
        };
        self.pending.push(client);
    }

    /// Gives a delayed answer.
    fn send_delayed_reply(&mut self, mut client: PendingConnection) {
        match client.delayed_reply.take() {
            Some((_, DelayedReply::Admit(hello))) => self.start_session(client, &hello),
            _ => self.refuse(Some(&client.socket), HandshakeStatus::Denied),
        }
    }

    fn start_session(&mut self, client: PendingConnection, hello: &ClientHello) {
        if let Some(join) = hello.join {
            return self.join(client, join);
        }
        let Some(slot) = self.shared.slots.allocate() else {
            return self.refuse(Some(&client.socket), HandshakeStatus::Busy);
        };
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        let whom = Recipient { slot, session: number };
        if let Err(socket) = self.open_session(client, hello.mode, whom) {
            self.refuse(socket.as_ref(), HandshakeStatus::Busy); // no memory or no descriptors
        }
    }

    /// Makes a session for a client. The error is the client's socket if it has no answer yet.
    fn open_session(
        &mut self,
        client: PendingConnection,
        mode: ReplyMode,
        whom: Recipient,
    ) -> Result<(), Option<OwnedFd>> {
        let limits = &self.shared.limits;
        let workers = limits.workers;
        let agent = usize::try_from(whom.session % workers as u64).expect("below the number of workers");
        let replies = if mode == ReplyMode::Agent { 1 } else { workers };
        let layout =
            InboxLayout::new(workers, replies, limits.ring_words).expect("limits were checked at the start");
        let welcome = ServerHello {
            version: VERSION,
            status: HandshakeStatus::Accepted,
            workers: to_u32(workers),
            agent: to_u32(agent),
            ring_words: u32::try_from(limits.ring_words).expect("limits were checked at the start"),
            window: limits.window,
            max_message: limits.max_message_bytes,
            session: whom.session,
            secret: random_secret(),
        };
        let slots = Arc::clone(&self.shared.slots);
        let session = |inbox| Session::new(whom, mode, agent, workers, layout, inbox, slots);
        if client.is_shared {
            let made = SharedMemory::create(layout.words(), false);
            let Ok((inbox, file)) = made else {
                free_slot(&self.shared, whom);
                return Err(Some(client.socket));
            };
            let session = Arc::new(session(Arc::new(inbox)));
            return self.send_descriptors(client.socket, &session, &file, &welcome).map_err(|_| None);
        }
        let session = Arc::new(session(Arc::new(SharedMemory::heap(layout.words()))));
        set_socket_options(&client.socket);
        if send(&client.socket, &welcome.encode(), SendFlags::NOSIGNAL) != Ok(HELLO_BYTES) {
            return Err(None);
        }
        let mut sockets: Vec<Option<OwnedFd>> = (0..workers).map(|_| None).collect();
        sockets[agent] = Some(client.socket);
        let party =
            PartialSession { session, secret: welcome.secret, sockets, deadline: now() + HANDSHAKE_TIMEOUT };
        self.admit_or_wait(party);
        Ok(())
    }

    /// Sends memory and bells to a client on this machine.
    fn send_descriptors(
        &mut self,
        socket: OwnedFd,
        session: &Arc<Session>,
        inbox_file: &OwnedFd,
        welcome: &ServerHello,
    ) -> io::Result<()> {
        let workers = session.lanes.len();
        let (theirs, their_file) = SharedMemory::create(session.layout.of_peer().words(), false)?;
        let theirs = Arc::new(theirs);
        let (rope, their_bell) = SocketNotifier::new()?;
        let bells = (0..workers).map(|_| new_notifier()).collect::<io::Result<Vec<_>>>()?;
        let mut handed = vec![inbox_file.as_fd(), their_file.as_fd(), self.shared.sleep_flags_file.as_fd()];
        handed.push(their_bell.as_fd());
        handed.extend(bells.iter().map(AsFd::as_fd));
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RINGS + 4))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&handed)), "room for all of them");
        let bytes = welcome.encode();
        let sent = rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        if sent != HELLO_BYTES {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let socket = Arc::new(socket);
        let port = |worker: usize| -> io::Result<ReplyPort> {
            let bell = rope.try_clone()?;
            let wake = PeerWaker {
                sleep_flags: Arc::clone(&session.inbox),
                flag: session.layout.sleep_flag(),
                notifier: bell,
            };
            let link = SharedLink::new(Arc::clone(&theirs), vec![wake]);
            Ok(make_port(
                session,
                worker,
                PortTransport { link: Box::new(link), applier: None, socket: Arc::new(socket.try_clone()?) },
            ))
        };
        let mut ports = Vec::with_capacity(workers);
        for worker in 0..workers {
            ports.push(if session.owner(worker) == worker { Some(port(worker)?) } else { None });
        }
        if session.mode == ReplyMode::Agent {
            debug_assert!(ports[session.agent].is_some());
        }
        let parts = ports.into_iter().zip(bells.into_iter().map(Some)).collect();
        self.deliver_to_workers(session, parts);
        Ok(())
    }

    fn join(&mut self, client: PendingConnection, join: SessionJoin) {
        let worker = usize::try_from(join.worker).unwrap_or(usize::MAX);
        let party = self.partial_sessions.iter().position(|party| {
            party.session.recipient.session == join.session
                && constant_time_eq(&party.secret.to_le_bytes(), &join.secret.to_le_bytes())
                && party.sockets.get(worker).is_some_and(Option::is_none)
        });
        let Some(at) = party.filter(|_| !client.is_shared) else {
            return self.refuse(Some(&client.socket), HandshakeStatus::Denied);
        };
        let welcome = ServerHello {
            status: HandshakeStatus::Accepted,
            ..ServerHello::refused(HandshakeStatus::Accepted)
        };
        set_socket_options(&client.socket);
        if send(&client.socket, &welcome.encode(), SendFlags::NOSIGNAL) != Ok(HELLO_BYTES) {
            return self.refuse(None, HandshakeStatus::Malformed);
        }
        let mut party = self.partial_sessions.swap_remove(at);
        party.sockets[worker] = Some(client.socket);
        self.admit_or_wait(party);
    }

    /// Admits a session over TCP once all its connections exist.
    fn admit_or_wait(&mut self, party: PartialSession) {
        let session = &party.session;
        let mut needed = (0..party.sockets.len()).filter(|worker| session.owner(*worker) == *worker);
        if needed.any(|worker| party.sockets[worker].is_none()) {
            self.partial_sessions.push(party);
            return;
        }
        let PartialSession { session, sockets, .. } = party;
        let part = |(worker, socket): (usize, Option<OwnedFd>)| {
            let port = socket.map(|socket| {
                let socket = Arc::new(socket);
                let link = Box::new(TcpLink::new(Arc::clone(&socket)));
                let applier = Some(FrameApplier::new(Arc::clone(&socket), Arc::clone(&session.inbox)));
                make_port(&session, worker, PortTransport { link, applier, socket })
            });
            (port, None)
        };
        let parts = sockets.into_iter().enumerate().map(part).collect();
        self.deliver_to_workers(&session, parts);
    }

    /// Gives each worker its part; first to owners of a port, as other workers send them replies.
    fn deliver_to_workers(
        &mut self,
        session: &Arc<Session>,
        parts: Vec<(Option<ReplyPort>, Option<OwnedFd>)>,
    ) {
        self.shared.accepted.fetch_add(1, Ordering::Relaxed);
        let mut parts: Vec<_> = parts.into_iter().enumerate().collect();
        parts.sort_by_key(|(_, (port, _))| port.is_none());
        for (worker, (port, bell)) in parts {
            let ring = RingReader::new(session.layout, worker);
            let arrival = SessionPart { session: Arc::clone(session), ring, notifier: bell, port };
            self.shared.worker_handles[worker].deliver(arrival);
        }
        if self.shared.limits.idle_timeout.is_some() {
            self.idle_trackers.push(IdleTracker {
                session: Arc::downgrade(session),
                request_words: 0,
                since: now(),
            });
        }
    }
}

fn make_port(session: &Arc<Session>, worker: usize, wire: PortTransport) -> ReplyPort {
    let (ring, lanes) = match session.mode {
        ReplyMode::Agent => (0, 0..session.lanes.len()),
        ReplyMode::AllToAll => (worker, worker..worker + 1),
    };
    let ring = RingWriter::new(session.layout, ring);
    let credits = lanes.map(|lane| (lane, RingReader::new(session.layout, lane).credit())).collect();
    ReplyPort::new(session, ring, credits, wire)
}

/// Sets socket options. If they cannot be set, the connection is slower, and the failure of the
/// peer's machine is detected later.
fn set_socket_options(socket: &OwnedFd) {
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
fn free_slot(shared: &ServerState, whom: Recipient) {
    shared.slots.free(whom.slot);
}

fn to_u32(number: usize) -> u32 {
    u32::try_from(number).expect("at most 64")
}

/// Returns a random number: the standard library draws its hash keys from the system.
fn random_secret() -> u128 {
    use std::hash::{BuildHasher, RandomState};
    let word = || u128::from(RandomState::new().hash_one(std::process::id()));
    word() << 64 | word()
}

fn listen(address: ServerAddress) -> io::Result<ServerListener> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("cannot listen at {address}: {error}"));
    match &address {
        ServerAddress::SharedMemory(path) => {
            let listener = bind(path).map_err(named)?;
            listener.set_nonblocking(true)?;
            Ok(ServerListener::SharedMemory(listener, path.clone()))
        }
        ServerAddress::Tcp(at) => {
            let listener = TcpListener::bind(at).map_err(named)?;
            listener.set_nonblocking(true)?;
            Ok(ServerListener::Tcp(listener))
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
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => remove_socket(path),
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
