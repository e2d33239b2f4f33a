//! # Client: connection that sends requests and receives replies
//!
//! This file has the connection and its properties. `calls` has the calls that wait for their
//! reply, `pipeline` sends requests and takes replies without waiting, and `sleep` waits.
//!
//! ```text
//!   submit ─> ring of the key's worker ─> .. server .. ─> ring of replies ─> completed ─> wait
//!                     (links)                                 (inbox)                next_reply
//! ```
//!
//! ## Invariants
//!
//! 1. At most `window` requests are unanswered. `submit` waits for a reply before it exceeds that.
//! 2. `completed` holds replies in their order of arrival until the caller takes them.
//! 3. The client first polls memory for a short time, then sleeps on the bell or the sockets. The
//!    end of a socket wakes it too, so that it notices the death of the server.

mod calls;
mod pipeline;
mod sleep;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;

use rustix::event::Timespec;
use sheaf_flatrpc::address::ServerAddress;
use sheaf_flatrpc::handshake::ReplyMode;
use sheaf_flatrpc::link::PeerLink;
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::message::Reply;
use sheaf_flatrpc::ring::{RingCredit, RingReader, RingWriter};
use sheaf_flatrpc::spin::SpinWait;

use crate::connect::{ClientOptions, Connection, WakeupSource, connect};
use crate::{ClientError, Result};

/// Identifier of a submitted request, unique within its [`Client`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(u64);

/// One ring of replies, and the message that is being assembled from it.
struct ReplyRing {
    ring: RingReader,
    credit: RingCredit,
    message: Vec<u8>,
}

/// Connection to a served database.
///
/// All calls take `&mut self`: one thread uses a client at a time. Open one client for each thread.
/// A client starts no threads.
pub struct Client {
    inbox: Arc<SharedMemory>,
    links: Vec<Box<dyn PeerLink>>,
    events: WakeupSource,
    /// Index of the word that tells the server whether this client sleeps.
    sleep_flag: usize,
    requests: Vec<RingWriter>,
    replies: Vec<ReplyRing>,
    mode: ReplyMode,
    agent: usize,
    window: usize,
    max_message: usize,
    timeout: Option<Timespec>,
    next_ticket: u64,
    unanswered: usize,
    completed: VecDeque<(Ticket, Reply)>,
    scratch: Vec<u8>,
    spin: SpinWait,
    is_lost: bool,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("mode", &self.mode)
            .field("workers", &self.requests.len())
            .field("window", &self.window)
            .field("unanswered", &self.unanswered)
            .field("is_lost", &self.is_lost)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Connects to the server at `address`. Takes at most ten seconds for each connection.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Busy`] if the server has its maximum number of clients,
    /// [`ClientError::Denied`] if the token is wrong or another user owns the server,
    /// [`ClientError::VersionMismatch`] if the server speaks another version of the protocol, and
    /// [`ClientError::ConnectionLost`] if no server listens at `address` or the connection fails.
    ///
    /// ```no_run
    /// use sheaf_client::{Client, ClientOptions};
    ///
    /// let options = ClientOptions::default().token("open sesame");
    /// let client = Client::connect(&"192.0.2.7:7421".parse()?, &options)?;
    /// assert_eq!(client.unanswered(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(address: &ServerAddress, options: &ClientOptions) -> Result<Client> {
        let Connection { welcome, layout, inbox, links, events } = connect(address, options)?;
        let number = |number: u32| usize::try_from(number).unwrap_or(usize::MAX);
        let replies = |index| {
            let ring = RingReader::new(layout, index);
            ReplyRing { credit: ring.credit(), ring, message: Vec::new() }
        };
        let lookers = match address {
            ServerAddress::SharedMemory(_) => number(welcome.workers) + 1,
            ServerAddress::Tcp(_) => 1, // the workers may run on another machine
        };
        let rings = if options.mode == ReplyMode::Agent { 1 } else { number(welcome.workers) };
        Ok(Client {
            inbox,
            links,
            events,
            sleep_flag: layout.of_peer().sleep_flag(),
            requests: (0..number(welcome.workers)).map(|index| RingWriter::new(layout, index)).collect(),
            replies: (0..rings).map(replies).collect(),
            mode: options.mode,
            agent: number(welcome.agent),
            window: number(welcome.window),
            max_message: number(welcome.max_message),
            timeout: options.timeout.and_then(|timeout| timeout.try_into().ok()),
            next_ticket: 1,
            unanswered: 0,
            completed: VecDeque::new(),
            scratch: Vec::new(),
            spin: SpinWait::for_pollers(lookers),
            is_lost: false,
        })
    }

    /// Returns the path that replies take.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// assert_eq!(client.mode(), sheaf_client::ReplyMode::Agent);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn mode(&self) -> ReplyMode {
        self.mode
    }

    /// Returns the number of workers of the server.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// assert!(client.workers() >= 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn workers(&self) -> usize {
        self.requests.len()
    }

    /// Returns the maximum number of unanswered requests.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// assert!(client.window() >= 1);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    /// Returns the maximum size of a message in bytes. A request or a reply that exceeds it, for
    /// example a value with its key, returns [`sheaf::Error::TooLarge`].
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// assert_eq!(client.max_message(), 4 << 20, "the default of a server");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn max_message(&self) -> usize {
        self.max_message
    }

    /// Returns the number of unanswered requests.
    ///
    /// ```
    /// # mod served { include!("../../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let ticket = client.submit(&sheaf_client::Request::Ping)?;
    /// assert_eq!(client.unanswered(), 1);
    /// client.wait(ticket)?;
    /// assert_eq!(client.unanswered(), 0);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// Marks the connection as lost if `result` is an error.
    fn mark_lost_on_error<T>(&mut self, result: io::Result<T>) -> Result<T> {
        result.map_err(|error| {
            self.is_lost = true;
            ClientError::ConnectionLost(error)
        })
    }

    fn check_connected(&self) -> Result<()> {
        if self.is_lost {
            return Err(ClientError::ConnectionLost(io::ErrorKind::NotConnected.into()));
        }
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_lost {
            let _ = self.flush(); // drop cannot report an error
        }
    }
}
