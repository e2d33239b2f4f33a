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
use sheaf_flatrpc::address::Address;
use sheaf_flatrpc::hello::{FIXED, Hello, Join, Mode, Status, Welcome};
use sheaf_flatrpc::link::{Applier, Link, SharedLink, TcpLink};
use sheaf_flatrpc::memory::Memory;
use sheaf_flatrpc::ring::{Layout, MAX_RINGS};
use sheaf_flatrpc::wake::Wake;

use crate::{Error, Result};

/// Options of a connection.
///
/// ```
/// use std::time::Duration;
///
/// let options = sheaf_client::Options::default().timeout(Some(Duration::from_secs(5)));
/// assert_eq!(options.timeout, Some(Duration::from_secs(5)));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Path that replies take. Default: [`Mode::Agent`].
    pub mode: Mode,
    /// Token that the server requires over TCP. Default: empty.
    pub token: String,
    /// Longest time to wait for a reply. `None`, the default, waits until the reply arrives or the
    /// connection ends. Connecting takes at most ten seconds in any case.
    pub timeout: Option<Duration>,
}

impl Options {
    /// Sets the path that replies take.
    ///
    /// ```
    /// use sheaf_client::{Mode, Options};
    ///
    /// assert_eq!(Options::default().mode(Mode::AllToAll).mode, Mode::AllToAll);
    /// ```
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Options {
        self.mode = mode;
        self
    }

    /// Sets the token that the server requires over TCP. The token is sent unencrypted.
    ///
    /// ```
    /// let options = sheaf_client::Options::default().token("open sesame");
    /// assert_eq!(options.token, "open sesame");
    /// ```
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> Options {
        self.token = token.into();
        self
    }

    /// Sets the longest time to wait for a reply; `None` sets no limit.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let options = sheaf_client::Options::default().timeout(Some(Duration::from_millis(100)));
    /// assert_eq!(options.timeout, Some(Duration::from_millis(100)));
    /// ```
    #[must_use]
    pub fn timeout(mut self, timeout: Option<Duration>) -> Options {
        self.timeout = timeout;
        self
    }
}

impl Default for Options {
    fn default() -> Options {
        Options { mode: Mode::Agent, token: String::new(), timeout: None }
    }
}

/// Longest time to connect, and to wait for each part of the server's answer.
const CONNECTING: Duration = Duration::from_secs(10);

/// Descriptors that a sleeping client polls.
pub(crate) enum Events {
    /// The server's inbox, the client's bell, and the socket that ends with the server.
    Shared { peer: Arc<Memory>, bell: OwnedFd, socket: OwnedFd },
    /// Sockets, and the parsers of their input.
    Tcp { appliers: Vec<Applier>, sockets: Vec<Arc<OwnedFd>> },
}

/// Connection that the server has accepted.
pub(crate) struct Connected {
    pub(crate) welcome: Welcome,
    pub(crate) layout: Layout,
    pub(crate) inbox: Arc<Memory>,
    /// One link, or one for each worker.
    pub(crate) links: Vec<Box<dyn Link>>,
    pub(crate) events: Events,
}

pub(crate) fn connect(address: &Address, options: &Options) -> Result<Connected> {
    match address {
        Address::Shared(path) => shared(path, options),
        Address::Tcp(address) => {
            let open = || -> io::Result<TcpStream> {
                let socket = TcpStream::connect_timeout(address, CONNECTING)?;
                socket.set_nodelay(true)?;
                Ok(socket)
            };
            tcp(open, options)
        }
    }
}

fn hello(options: &Options, join: Option<Join>) -> Vec<u8> {
    Hello { mode: options.mode, join, token: options.token.clone().into_bytes() }.encode()
}

fn check(welcome: Welcome) -> Result<Welcome> {
    match welcome.status {
        Status::Welcome => Ok(welcome),
        Status::Busy => Err(Error::Busy),
        Status::Denied => Err(Error::Denied),
        Status::Version => Err(Error::Version { theirs: welcome.version }),
        Status::Malformed => Err(strange("the server could not decode the hello")),
    }
}

fn strange(what: &'static str) -> Error {
    Error::Lost(io::Error::new(io::ErrorKind::InvalidData, what))
}

/// Returns the layout of the client's inbox.
///
/// # Errors
///
/// Returns [`Error::Lost`] if the numbers of the server are out of range.
fn layout_of(welcome: &Welcome, mode: Mode) -> Result<Layout> {
    let workers = usize::try_from(welcome.workers).unwrap_or(usize::MAX);
    let replies = if mode == Mode::Agent { 1 } else { workers };
    let sound = welcome.agent < welcome.workers && welcome.window > 0;
    let layout = Layout::new(replies, workers, u64::from(welcome.ring)).filter(|_| sound);
    layout.ok_or_else(|| strange("the server sent numbers out of range"))
}

fn shared(path: &Path, options: &Options) -> Result<Connected> {
    let mut socket = UnixStream::connect(path)?;
    socket.set_read_timeout(Some(CONNECTING))?;
    socket.set_write_timeout(Some(CONNECTING))?;
    socket.write_all(&hello(options, None))?;
    let (welcome, descriptors) = receive(&socket)?;
    let welcome = check(Welcome::decode(&welcome)?)?;
    let layout = layout_of(&welcome, options.mode)?;
    let workers = usize::try_from(welcome.workers).unwrap_or(usize::MAX);
    if descriptors.len() != workers + 4 {
        return Err(strange("the server sent another number of descriptors"));
    }
    let mut descriptors = descriptors.into_iter();
    let mut next = || descriptors.next().ok_or_else(|| strange("the server sent too few descriptors"));
    let peer = Arc::new(Memory::map(next()?, layout.of_peer().words(), false)?);
    let inbox = Arc::new(Memory::map(next()?, layout.words(), false)?);
    let board = Arc::new(Memory::map(next()?, workers * 8, true)?);
    let bell = next()?;
    let mut wakes = Vec::with_capacity(workers);
    for worker in 0..workers {
        wakes.push(Wake { board: Arc::clone(&board), at: worker * 8, bell: next()? });
    }
    let link: Box<dyn Link> = Box::new(SharedLink::new(Arc::clone(&peer), wakes));
    let events = Events::Shared { peer, bell, socket: socket.into() };
    Ok(Connected { welcome, layout, inbox, links: vec![link], events })
}

/// Receives the server's answer and its descriptors.
fn receive(socket: &UnixStream) -> Result<([u8; FIXED], Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RINGS + 4))];
    let mut bytes = [0; FIXED];
    let mut descriptors = Vec::new();
    let mut filled = 0;
    while filled < FIXED {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes[filled..])];
        let got = rustix::net::recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(handed) = message {
                descriptors.extend(handed);
            }
        }
        if got.bytes == 0 {
            return Err(Error::Lost(io::ErrorKind::UnexpectedEof.into()));
        }
        filled += got.bytes;
    }
    Ok((bytes, descriptors))
}

fn tcp(open: impl Fn() -> io::Result<TcpStream>, options: &Options) -> Result<Connected> {
    let greet = |join| -> Result<(TcpStream, Welcome)> {
        let mut socket = open()?;
        socket.set_read_timeout(Some(CONNECTING))?;
        socket.set_write_timeout(Some(CONNECTING))?;
        socket.write_all(&hello(options, join))?;
        let mut bytes = [0; FIXED];
        socket.read_exact(&mut bytes)?;
        let welcome = check(Welcome::decode(&bytes)?)?;
        socket.set_nonblocking(true)?;
        Ok((socket, welcome))
    };
    let (first, welcome) = greet(None)?;
    let layout = layout_of(&welcome, options.mode)?;
    let inbox = Arc::new(Memory::heap(layout.words()));
    let mut sockets = Vec::new();
    match options.mode {
        Mode::Agent => sockets.push(first),
        Mode::AllToAll => {
            // The first connection belongs to the agent. Each other worker gets a connection that
            // joins.
            let mut first = Some(first);
            for worker in 0..welcome.workers {
                let join = Join { session: welcome.session, secret: welcome.secret, worker };
                match first.take_if(|_| worker == welcome.agent) {
                    Some(first) => sockets.push(first),
                    None => sockets.push(greet(Some(join))?.0),
                }
            }
        }
    }
    let sockets: Vec<Arc<OwnedFd>> = sockets.into_iter().map(|s| Arc::new(OwnedFd::from(s))).collect();
    let links = sockets.iter().map(|s| Box::new(TcpLink::new(Arc::clone(s))) as Box<dyn Link>).collect();
    let appliers = sockets.iter().map(|s| Applier::new(Arc::clone(s), Arc::clone(&inbox))).collect();
    Ok(Connected { welcome, layout, inbox, links, events: Events::Tcp { appliers, sockets } })
}
