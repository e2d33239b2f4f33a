//! # Connecting: the hello of the client and the answer of the server
//!
//! Over a Unix socket the server answers with descriptors: its inbox and the client's, the board on
//! which its workers mark themselves as asleep (read-only for the client), the client's bell, and
//! one bell for each worker. The socket then stays open without traffic. Its end tells each side
//! that the other one has ended.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use sheaf_flatrpc::address::ServerAddress;
use sheaf_flatrpc::handshake::{
    ClientHello, HELLO_BYTES, HandshakeStatus, ReplyMode, ServerHello, SessionJoin,
};
use sheaf_flatrpc::link::{FrameApplier, PeerLink, SharedLink, TcpLink};
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::ring::{InboxLayout, MAX_RINGS};
use sheaf_flatrpc::wake::PeerWaker;

use crate::{ClientError, Result};

/// Options of a connection.
///
/// ```
/// use std::time::Duration;
///
/// let options = sheaf_client::ClientOptions::default().timeout(Some(Duration::from_secs(5)));
/// assert_eq!(options.timeout, Some(Duration::from_secs(5)));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientOptions {
    /// Path that replies take. Default: [`ReplyMode::Agent`].
    pub mode: ReplyMode,
    /// Token that the server requires over TCP. Default: empty.
    pub token: String,
    /// Longest time to wait for a reply. `None`, the default, waits until the reply arrives or the
    /// connection ends. Connecting takes at most ten seconds in any case.
    pub timeout: Option<Duration>,
}

impl ClientOptions {
    /// Sets the path that replies take.
    ///
    /// ```
    /// use sheaf_client::{ClientOptions, ReplyMode};
    ///
    /// assert_eq!(ClientOptions::default().mode(ReplyMode::AllToAll).mode, ReplyMode::AllToAll);
    /// ```
    #[must_use]
    pub fn mode(mut self, mode: ReplyMode) -> ClientOptions {
        self.mode = mode;
        self
    }

    /// Sets the token that the server requires over TCP. The token is sent unencrypted.
    ///
    /// ```
    /// let options = sheaf_client::ClientOptions::default().token("open sesame");
    /// assert_eq!(options.token, "open sesame");
    /// ```
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> ClientOptions {
        self.token = token.into();
        self
    }

    /// Sets the longest time to wait for a reply; `None` sets no limit.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let timeout = Some(Duration::from_millis(100));
    /// let options = sheaf_client::ClientOptions::default().timeout(timeout);
    /// assert_eq!(options.timeout, Some(Duration::from_millis(100)));
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> ClientOptions {
        self.timeout = timeout;
        self
    }
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions { mode: ReplyMode::Agent, token: String::new(), timeout: None }
    }
}

/// Longest time to connect, and to wait for each part of the server's answer.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Descriptors that a sleeping client polls.
pub(crate) enum WakeupSource {
    /// The server's inbox, the client's bell, and the socket that ends with the server.
    SharedMemory { peer: Arc<SharedMemory>, bell: OwnedFd, socket: OwnedFd },
    /// Sockets, and the parsers of their input.
    Tcp { appliers: Vec<FrameApplier>, sockets: Vec<Arc<OwnedFd>> },
}

/// Connection that the server has accepted.
pub(crate) struct Connection {
    pub(crate) welcome: ServerHello,
    pub(crate) layout: InboxLayout,
    pub(crate) inbox: Arc<SharedMemory>,
    /// One link, or one for each worker.
    pub(crate) links: Vec<Box<dyn PeerLink>>,
    pub(crate) events: WakeupSource,
}

pub(crate) fn connect(address: &ServerAddress, options: &ClientOptions) -> Result<Connection> {
    match address {
        ServerAddress::SharedMemory(path) => connect_shared_memory(path, options),
        ServerAddress::Tcp(address) => {
            let open = || -> io::Result<TcpStream> {
                let socket = TcpStream::connect_timeout(address, CONNECT_TIMEOUT)?;
                socket.set_nodelay(true)?;
                Ok(socket)
            };
            connect_tcp(open, options)
        }
    }
}

fn hello(options: &ClientOptions, join: Option<SessionJoin>) -> Vec<u8> {
    ClientHello { mode: options.mode, join, token: options.token.clone().into_bytes() }.encode()
}

fn check_status(welcome: ServerHello) -> Result<ServerHello> {
    match welcome.status {
        HandshakeStatus::Accepted => Ok(welcome),
        HandshakeStatus::Busy => Err(ClientError::Busy),
        HandshakeStatus::Denied => Err(ClientError::Denied),
        HandshakeStatus::Version => Err(ClientError::VersionMismatch { server_version: welcome.version }),
        HandshakeStatus::Malformed => Err(protocol_error("the server could not decode the hello")),
    }
}

fn protocol_error(what: &'static str) -> ClientError {
    ClientError::ConnectionLost(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Returns the layout of the client's inbox.
///
/// # Errors
///
/// Returns [`ClientError::ConnectionLost`] if the numbers of the server are out of range.
fn layout_of(welcome: &ServerHello, mode: ReplyMode) -> Result<InboxLayout> {
    let workers = usize::try_from(welcome.workers).unwrap_or(usize::MAX);
    let replies = if mode == ReplyMode::Agent { 1 } else { workers };
    let sound = welcome.agent < welcome.workers && welcome.window > 0;
    let layout = InboxLayout::new(replies, workers, u64::from(welcome.ring_words)).filter(|_| sound);
    layout.ok_or_else(|| protocol_error("the server sent numbers out of range"))
}

fn connect_shared_memory(path: &Path, options: &ClientOptions) -> Result<Connection> {
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
    socket.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    socket.write_all(&hello(options, None))?;
    let (welcome, descriptors) = receive_server_hello(&socket)?;
    let welcome = check_status(ServerHello::decode(&welcome)?)?;
    let layout = layout_of(&welcome, options.mode)?;
    let workers = usize::try_from(welcome.workers).unwrap_or(usize::MAX);
    if descriptors.len() != workers + 4 {
        return Err(protocol_error("the server sent another number of descriptors"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| protocol_error("the server sent too few descriptors"));
    let peer = Arc::new(SharedMemory::map(next()?, layout.of_peer().words(), false)?);
    let inbox = Arc::new(SharedMemory::map(next()?, layout.words(), false)?);
    let board = Arc::new(SharedMemory::map(next()?, workers * 8, true)?);
    let bell = next()?;
    let mut wakes = Vec::with_capacity(workers);
    for worker in 0..workers {
        wakes.push(PeerWaker { sleep_flags: Arc::clone(&board), flag: worker * 8, notifier: next()? });
    }
    let link: Box<dyn PeerLink> = Box::new(SharedLink::new(Arc::clone(&peer), wakes));
    let events = WakeupSource::SharedMemory { peer, bell, socket: socket.into() };
    Ok(Connection { welcome, layout, inbox, links: vec![link], events })
}

/// Receives the server's answer and its descriptors.
fn receive_server_hello(socket: &UnixStream) -> Result<([u8; HELLO_BYTES], Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RINGS + 4))];
    let mut bytes = [0; HELLO_BYTES];
    let mut descriptors = Vec::new();
    let mut filled = 0;
    while filled < HELLO_BYTES {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes[filled..])];
        let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(handed) = message {
                descriptors.extend(handed);
            }
        }
        if got.bytes == 0 {
            return Err(ClientError::ConnectionLost(io::ErrorKind::UnexpectedEof.into()));
        }
        filled += got.bytes;
    }
    Ok((bytes, descriptors))
}

fn connect_tcp(open: impl Fn() -> io::Result<TcpStream>, options: &ClientOptions) -> Result<Connection> {
    let greet = |join| -> Result<(TcpStream, ServerHello)> {
        let mut socket = open()?;
        socket.set_read_timeout(Some(CONNECT_TIMEOUT))?;
        socket.set_write_timeout(Some(CONNECT_TIMEOUT))?;
        socket.write_all(&hello(options, join))?;
        let mut bytes = [0; HELLO_BYTES];
        socket.read_exact(&mut bytes)?;
        let welcome = check_status(ServerHello::decode(&bytes)?)?;
        socket.set_nonblocking(true)?;
        Ok((socket, welcome))
    };
    let (first, welcome) = greet(None)?;
    let layout = layout_of(&welcome, options.mode)?;
    let inbox = Arc::new(SharedMemory::heap(layout.words()));
    let mut sockets = Vec::new();
    match options.mode {
        ReplyMode::Agent => sockets.push(first),
        ReplyMode::AllToAll => {
            // The first connection belongs to the agent. Each other worker gets a connection that
            // joins.
            let mut first = Some(first);
            for worker in 0..welcome.workers {
                let join = SessionJoin { session: welcome.session, secret: welcome.secret, worker };
                match first.take_if(|_| worker == welcome.agent) {
                    Some(first) => sockets.push(first),
                    None => sockets.push(greet(Some(join))?.0),
                }
            }
        }
    }
    let sockets: Vec<Arc<OwnedFd>> = sockets.into_iter().map(|s| Arc::new(OwnedFd::from(s))).collect();
    let links = sockets.iter().map(|s| Box::new(TcpLink::new(Arc::clone(s))) as Box<dyn PeerLink>).collect();
    let appliers = sockets.iter().map(|s| FrameApplier::new(Arc::clone(s), Arc::clone(&inbox))).collect();
    Ok(Connection { welcome, layout, inbox, links, events: WakeupSource::Tcp { appliers, sockets } })
}
