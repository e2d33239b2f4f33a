//! # Client: connection that sends requests and receives replies
//!
//! One type and its methods. Half of the lines are their docs and examples, so the file is long.
//!
//! ```text
//!   submit ─> ring of the key's worker ─> .. server .. ─> ring of replies ─> done ─> wait, next
//!                     (link)                                  (inbox)
//! ```
//!
//! ## Invariants
//!
//! 1. At most `window` requests are unanswered. `submit` waits for a reply before it exceeds that.
//! 2. `done` holds replies in their order of arrival until the caller takes them.
//! 3. The client first polls memory for a short time, then sleeps on the bell or the sockets. The
//!    end of a socket wakes it too, so that it notices the death of the server.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use sheaf_flatrpc::address::ServerAddress;
use sheaf_flatrpc::handshake::ReplyMode;
use sheaf_flatrpc::link::{ApplyOutcome, PeerLink};
use sheaf_flatrpc::memory::SharedMemory;
use sheaf_flatrpc::message::{RangeRequest, Reply, Request};
use sheaf_flatrpc::ring::{RingCredit, RingReader, RingWriter};
use sheaf_flatrpc::spin::SpinWait;
use sheaf_flatrpc::wake::SleepGuard;
use sheaf_flatrpc::worker_for_key;

use crate::connect::{ClientOptions, Connection, WakeupSource, connect};
use crate::request::{ClientBatch, ClientKeyspace, ClientSnapshot};
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
    /// # mod served { include!("../doc/served.rs"); }
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
    /// # mod served { include!("../doc/served.rs"); }
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
    /// # mod served { include!("../doc/served.rs"); }
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
    /// # mod served { include!("../doc/served.rs"); }
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
    /// # mod served { include!("../doc/served.rs"); }
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

    /// Returns the keyspace `name`; creates it with the default engine if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the name is invalid or the keyspace cannot be created,
    /// [`ClientError::Busy`] if the server is overloaded, [`ClientError::TimedOut`] if no reply
    /// arrived within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the
    /// connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn keyspace(&mut self, name: &str) -> Result<ClientKeyspace> {
        self.request_keyspace(&Request::Keyspace { name, engine: "", create: true })
    }

    /// Returns the keyspace `name`; creates it with `engine` if it does not exist. An existing
    /// keyspace must have that engine.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the engine is unknown, the keyspace has another engine,
    /// or the keyspace cannot be created, [`ClientError::Busy`] if the server is overloaded,
    /// [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`], and
    /// [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let counters = client.keyspace_with_engine("counters", "flat")?;
    /// assert!(!counters.is_ordered());
    /// assert!(client.keyspace_with_engine("counters", "kreon").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn keyspace_with_engine(&mut self, name: &str, engine: &str) -> Result<ClientKeyspace> {
        self.request_keyspace(&Request::Keyspace { name, engine, create: true })
    }

    /// Returns the keyspace `name` if it exists.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] with [`sheaf::Error::KeyspaceNotFound`] if it does not
    /// exist, [`ClientError::Busy`] if the server is overloaded, [`ClientError::TimedOut`] if no
    /// reply arrived within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the
    /// connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// assert!(client.open_keyspace("users").is_err());
    /// client.keyspace("users")?;
    /// assert!(client.open_keyspace("users").is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn open_keyspace(&mut self, name: &str) -> Result<ClientKeyspace> {
        self.request_keyspace(&Request::Keyspace { name, engine: "", create: false })
    }

    fn request_keyspace(&mut self, request: &Request<'_>) -> Result<ClientKeyspace> {
        match self.call(request)? {
            Reply::Keyspace { number, ordered } => Ok(ClientKeyspace { number, ordered }),
            _ => Err(unexpected_reply()),
        }
    }

    /// Returns the newest value of `key`, or `None` if the key does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the value cannot be read or is longer than a message of
    /// the server, [`ClientError::Busy`] if the server is overloaded, [`ClientError::TimedOut`] if
    /// no reply arrived within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if
    /// the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// assert_eq!(client.get(users, "ada")?, Some(b"lovelace".to_vec()));
    /// assert_eq!(client.get(users, "alan")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get(&mut self, keyspace: ClientKeyspace, key: impl AsRef<[u8]>) -> Result<Option<Vec<u8>>> {
        self.call_for_value(&keyspace.get(key.as_ref()))
    }

    /// Returns the value of `key` in a snapshot, or `None` if the key does not exist there.
    ///
    /// # Errors
    ///
    /// Like [`Client::get`]. Also returns [`ClientError::Database`] if the snapshot belongs to
    /// another connection or does not contain the keyspace.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// let snapshot = client.snapshot()?;
    /// client.remove(users, "ada")?;
    /// assert_eq!(client.get_at(&snapshot, users, "ada")?, Some(b"lovelace".to_vec()));
    /// assert_eq!(client.get(users, "ada")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn get_at(
        &mut self,
        snapshot: &ClientSnapshot,
        keyspace: ClientKeyspace,
        key: impl AsRef<[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        self.call_for_value(&keyspace.get_at(snapshot, key.as_ref()))
    }

    fn call_for_value(&mut self, request: &Request<'_>) -> Result<Option<Vec<u8>>> {
        match self.call(request)? {
            Reply::Value(value) => Ok(value),
            _ => Err(unexpected_reply()),
        }
    }

    /// Sets `key` to `value` with [`Durability::Buffer`](crate::Durability::Buffer) and returns the
    /// sequence number of the commit. [`ClientKeyspace::write`] makes a request with another
    /// durability.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the database refuses the commit, for example with
    /// [`sheaf::Error::NoSpace`], [`ClientError::Busy`] if the server is overloaded,
    /// [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`], and
    /// [`ClientError::ConnectionLost`] if the connection ended; after the last two the commit may
    /// have been made.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let first = client.insert(users, "ada", "lovelace")?;
    /// assert!(client.insert(users, "alan", "turing")? > first);
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert(
        &mut self,
        keyspace: ClientKeyspace,
        key: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<u64> {
        self.call_for_seq(&keyspace.insert(key.as_ref(), value.as_ref()))
    }

    /// Removes `key` with [`Durability::Buffer`](crate::Durability::Buffer) and returns the
    /// sequence number of the commit. The key does not have to exist.
    ///
    /// # Errors
    ///
    /// Like [`Client::insert`].
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// client.remove(users, "ada")?;
    /// assert_eq!(client.get(users, "ada")?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&mut self, keyspace: ClientKeyspace, key: impl AsRef<[u8]>) -> Result<u64> {
        self.call_for_seq(&keyspace.remove(key.as_ref()))
    }

    /// Commits a batch atomically and returns the sequence number of the commit.
    ///
    /// # Errors
    ///
    /// Like [`Client::insert`]. Also returns [`ClientError::Database`] with
    /// [`sheaf::Error::Conflict`] if an expectation of the batch does not hold; then nothing is
    /// committed.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let mut batch = sheaf_client::ClientBatch::default();
    /// batch.insert(users, b"ada", b"lovelace").insert(users, b"alan", b"turing");
    /// client.commit(&batch)?;
    /// assert_eq!(client.get(users, "alan")?, Some(b"turing".to_vec()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn commit(&mut self, batch: &ClientBatch<'_>) -> Result<u64> {
        self.call_for_seq(&batch.request())
    }

    /// Waits until every commit that was acknowledged before the call is on the device.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if a device sync fails, [`ClientError::Busy`] if the
    /// server is overloaded, [`ClientError::TimedOut`] if no reply arrived within
    /// [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// client.persist()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn persist(&mut self) -> Result<()> {
        self.call_for_seq(&Request::Persist).map(drop)
    }

    /// Sends a request without effect and waits for the reply.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`], and
    /// [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// client.ping()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn ping(&mut self) -> Result<()> {
        self.call_for_seq(&Request::Ping).map(drop)
    }

    fn call_for_seq(&mut self, request: &Request<'_>) -> Result<u64> {
        match self.call(request)? {
            Reply::Done { seq } => Ok(seq),
            _ => Err(unexpected_reply()),
        }
    }

    /// Returns a snapshot of the whole database. The server keeps the snapshot until
    /// [`Client::release`] or the end of the connection, and limits the number of snapshots of a
    /// client (16 by default).
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Busy`] if this client holds its maximum number of snapshots,
    /// [`ClientError::Database`] if the database refuses, [`ClientError::TimedOut`] if no reply
    /// arrived within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the
    /// connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let seq = client.insert(users, "ada", "lovelace")?;
    /// let snapshot = client.snapshot()?;
    /// assert!(snapshot.seq() >= seq);
    /// client.release(snapshot)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&mut self) -> Result<ClientSnapshot> {
        match self.call(&Request::Snapshot)? {
            Reply::Snapshot { number, seq } => Ok(ClientSnapshot { number, seq }),
            _ => Err(unexpected_reply()),
        }
    }

    /// Releases a snapshot.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the snapshot belongs to another connection,
    /// [`ClientError::Busy`] if the server is overloaded, [`ClientError::TimedOut`] if no reply
    /// arrived within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the
    /// connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let snapshot = client.snapshot()?;
    /// client.release(snapshot)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn release(&mut self, snapshot: ClientSnapshot) -> Result<()> {
        self.call_for_seq(&Request::Release { snapshot: snapshot.number }).map(drop)
    }

    /// Returns the pairs within `range`, at most `limit`, in key order, or in descending order if
    /// `reverse` is true.
    ///
    /// A long range takes several requests. Without a snapshot each of them reads the state of its
    /// own time. An engine without key order allows only the range of all keys, forward, and only
    /// if its pairs up to `limit` fit into one message.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the engine does not support the range, a pair does not
    /// fit into a message, or the snapshot belongs to another connection, [`ClientError::Busy`] if
    /// the server is overloaded, [`ClientError::TimedOut`] if no reply arrived within
    /// [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// client.insert(users, "alan", "turing")?;
    /// let pairs = client.range(users, None, "ada".."b", false, 10)?;
    /// assert_eq!(pairs.len(), 2);
    /// let last = client.range::<&str>(users, None, .., true, 1)?;
    /// assert_eq!(last[0].0, b"alan");
    /// # Ok(())
    /// # }
    /// ```
    pub fn range<K: AsRef<[u8]>>(
        &mut self,
        keyspace: ClientKeyspace,
        snapshot: Option<&ClientSnapshot>,
        range: impl RangeBounds<K>,
        reverse: bool,
        limit: usize,
    ) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
        let (mut low, mut high) = (own(range.start_bound()), own(range.end_bound()));
        let mut all: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        loop {
            let request = Request::Range(RangeRequest {
                keyspace: keyspace.number,
                snapshot: snapshot.map_or(0, |snapshot| snapshot.number),
                low: low.as_ref().map(Vec::as_slice),
                high: high.as_ref().map(Vec::as_slice),
                reverse,
                limit: u32::try_from(limit - all.len()).unwrap_or(u32::MAX),
            });
            let Reply::Pairs { pairs, more } = self.call(&request)? else { return Err(unexpected_reply()) };
            all.extend(pairs);
            match all.last() {
                Some((last, _)) if more && all.len() < limit && keyspace.ordered => {
                    *(if reverse { &mut high } else { &mut low }) = Bound::Excluded(last.clone());
                }
                _ => return Ok(all),
            }
        }
    }

    /// Submits a request and waits for its reply.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Client::submit`] and of [`Client::wait`].
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// use sheaf_client::{Durability, Reply};
    ///
    /// let users = client.keyspace("users")?;
    /// let reply = client.call(&users.write(b"ada", Some(b"lovelace"), Durability::Sync))?;
    /// assert!(matches!(reply, Reply::Done { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn call(&mut self, request: &Request<'_>) -> Result<Reply> {
        let ticket = self.submit(request)?;
        self.wait(ticket)
    }

    /// Submits a request without waiting for its reply. Waits if [`Client::window`] requests are
    /// unanswered or the ring of the request is full. Over TCP the request may stay in the client
    /// until [`Client::flush`] or the next call that waits.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] with [`sheaf::Error::TooLarge`] if the request is longer
    /// than a message of the server, [`ClientError::TimedOut`] if no unanswered request got its
    /// reply within [`ClientOptions::timeout`], and [`ClientError::ConnectionLost`] if the
    /// connection ended. After the first two nothing was submitted.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let insert = client.submit(&users.insert(b"ada", b"lovelace"))?;
    /// let get = client.submit(&users.get(b"alan"))?;
    /// client.wait(get)?; // in any order
    /// client.wait(insert)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn submit(&mut self, request: &Request<'_>) -> Result<Ticket> {
        while self.unanswered >= self.window {
            self.wait_for_any()?;
        }
        let ticket = Ticket(self.next_ticket);
        self.scratch.clear();
        request.encode(ticket.0, &mut self.scratch);
        if self.scratch.len() > self.max_message {
            let (got, max) = (self.scratch.len() as u64, self.max_message as u64);
            return Err(sheaf::Error::TooLarge { object: "message", got, max }.into());
        }
        self.check_connected()?;
        let message = std::mem::take(&mut self.scratch);
        let pushed = self.push(worker_for_request(request, self.requests.len(), self.agent), &message);
        self.scratch = message;
        pushed?;
        self.next_ticket += 1;
        self.unanswered += 1;
        Ok(ticket)
    }

    fn push(&mut self, worker: usize, message: &[u8]) -> Result<()> {
        let link = if self.links.len() == 1 { 0 } else { worker };
        let mut from = 0;
        loop {
            let pushed =
                self.requests[worker].write_message(&self.inbox, &mut *self.links[link], message, from);
            if let Some(to) = self.mark_lost_on_error(pushed)? {
                from = to;
                let posted = self.links[link].post(worker);
                self.mark_lost_on_error(posted)?;
            }
            if from == message.len() {
                return Ok(());
            }
            // Part of the message is in the ring: only the end of the connection may stop the rest.
            self.sleep(Some(worker), None)?;
            self.take_replies()?;
        }
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

    /// Sends the submitted requests as far as the connection accepts bytes without blocking.
    /// Returns true if nothing is left to send. All calls that wait do this too.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let ticket = client.submit(&users.insert(b"ada", b"lovelace"))?;
    /// client.flush()?;
    /// // ... other work, while the server executes the request ...
    /// client.wait(ticket)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&mut self) -> Result<bool> {
        let mut all = true;
        for link in 0..self.links.len() {
            let flushed = self.links[link].flush();
            all &= self.mark_lost_on_error(flushed)?;
        }
        Ok(all)
    }

    /// Waits for the reply to a request and returns it. Replies to other requests are kept for
    /// later calls.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::Database`] if the reply is an error of the database or if no request
    /// with this ticket is unanswered, [`ClientError::Busy`] if the server is overloaded,
    /// [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`] (the call
    /// may be repeated), and [`ClientError::ConnectionLost`] if the connection ended.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// use sheaf_client::Reply;
    ///
    /// let users = client.keyspace("users")?;
    /// let ticket = client.submit(&users.get(b"ada"))?;
    /// assert!(matches!(client.wait(ticket)?, Reply::Value(None)));
    /// # Ok(())
    /// # }
    /// ```
    pub fn wait(&mut self, ticket: Ticket) -> Result<Reply> {
        loop {
            if let Some(at) = self.completed.iter().position(|(done, _)| *done == ticket)
                && let Some((_, reply)) = self.completed.remove(at)
            {
                return into_result(reply);
            }
            if self.unanswered == 0 {
                let why = "no request with this ticket is unanswered".to_owned();
                return Err(sheaf::Error::InvalidArgument { argument: "ticket", reason: why }.into());
            }
            self.wait_for_any()?;
        }
    }

    /// Waits for any reply and returns it with the ticket of its request, or `None` if no request
    /// is unanswered. Replies come in the order in which the server sent them.
    ///
    /// # Errors
    ///
    /// Returns [`ClientError::TimedOut`] if no reply arrived within [`ClientOptions::timeout`], and
    /// [`ClientError::ConnectionLost`] if the connection ended. The inner result is that of
    /// [`Client::wait`].
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let keys: Vec<[u8; 4]> = (0..100u32).map(u32::to_be_bytes).collect();
    /// for key in &keys {
    ///     client.submit(&users.insert(key, b"value"))?;
    /// }
    /// let mut replies = 0;
    /// while let Some((_ticket, reply)) = client.next_reply()? {
    ///     reply?;
    ///     replies += 1;
    /// }
    /// assert_eq!(replies, 100);
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_reply(&mut self) -> Result<Option<(Ticket, Result<Reply>)>> {
        loop {
            if let Some((ticket, reply)) = self.completed.pop_front() {
                return Ok(Some((ticket, into_result(reply))));
            }
            if self.unanswered == 0 {
                return Ok(None);
            }
            self.wait_for_any()?;
        }
    }

    /// Waits until a reply has arrived.
    fn wait_for_any(&mut self) -> Result<()> {
        while !self.take_replies()? {
            self.sleep(None, self.timeout)?;
        }
        Ok(())
    }

    /// Takes all replies that have arrived. Returns whether there were any.
    fn take_replies(&mut self) -> Result<bool> {
        if let WakeupSource::Tcp { appliers, .. } = &mut self.events
            && !self.replies.iter().any(|replies| replies.ring.has_record(&self.inbox))
        {
            for applier in appliers {
                match applier.apply(&mut |_| {}) {
                    Ok(ApplyOutcome::Closed) => self.is_lost = true,
                    Ok(_) => {}
                    Err(error) => {
                        self.is_lost = true;
                        return Err(ClientError::ConnectionLost(error));
                    }
                }
            }
        }
        let mut any = false;
        for index in 0..self.replies.len() {
            while let Some(whole) = self.read_record(index)? {
                if whole {
                    any = true;
                }
            }
        }
        if !any {
            self.check_connected()?;
        }
        Ok(any)
    }

    /// Takes a record of a ring. Returns whether it completes a message, or `None` if there is
    /// none.
    fn read_record(&mut self, index: usize) -> Result<Option<bool>> {
        let replies = &mut self.replies[index];
        let taken = replies.ring.read_record(&self.inbox, &mut replies.message).map_err(io::Error::from);
        let Some(whole) = self.mark_lost_on_error(taken)? else { return Ok(None) };
        let replies = &mut self.replies[index];
        if replies.message.len() > self.max_message {
            self.is_lost = true;
            return Err(ClientError::ConnectionLost(io::ErrorKind::InvalidData.into()));
        }
        let link = if self.links.len() == 1 { 0 } else { index };
        let told = replies.credit.send_if_due(&mut *self.links[link], replies.ring.head());
        if whole {
            let decoded = Reply::decode(&replies.message);
            replies.message.clear();
            let (id, reply) = decoded.inspect_err(|_| self.is_lost = true)?;
            self.unanswered = self.unanswered.saturating_sub(1);
            self.completed.push_back((Ticket(id), reply));
        }
        if self.mark_lost_on_error(told)? {
            let reader = if self.replies.len() == 1 { self.agent } else { index };
            let posted = self.links[link].post(reader);
            self.mark_lost_on_error(posted)?;
            self.flush()?;
        }
        Ok(Some(whole))
    }

    /// Returns true if there is a reason not to sleep: a reply, or room in the ring of `worker`.
    fn has_work(&mut self, worker: Option<usize>) -> bool {
        let room = worker.is_some_and(|worker| {
            // The push reports the error.
            self.requests[worker].has_room_for_any_record(&self.inbox).unwrap_or(true)
        });
        room || self.replies.iter().any(|replies| replies.ring.has_record(&self.inbox))
    }

    /// Waits until the server has written something. May return early.
    fn sleep(&mut self, worker: Option<usize>, timeout: Option<Timespec>) -> Result<()> {
        let flushed = self.flush()?;
        if matches!(self.events, WakeupSource::Tcp { .. }) {
            return self.poll_sockets(flushed, timeout);
        }
        let mut spin = std::mem::take(&mut self.spin);
        let seen = spin.spin_until(|| self.has_work(worker));
        self.spin = spin;
        if seen {
            return Ok(());
        }
        let WakeupSource::SharedMemory { peer, .. } = &self.events else { return Ok(()) };
        let peer = Arc::clone(peer);
        let asleep = SleepGuard::set(&peer, self.sleep_flag);
        let polled = if self.has_work(worker) { Ok(()) } else { self.poll_bell(timeout) };
        drop(asleep);
        self.spin.after_sleep();
        polled
    }

    fn poll_bell(&mut self, timeout: Option<Timespec>) -> Result<()> {
        let WakeupSource::SharedMemory { bell, socket, .. } = &self.events else { return Ok(()) };
        let mut polled = [PollFd::new(bell, PollFlags::IN), PollFd::new(socket, PollFlags::RDHUP)];
        let count = poll(&mut polled, timeout)?;
        if polled[1].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR) {
            self.is_lost = true; // replies that arrived before are still taken
            return Ok(());
        }
        let mut count_of_rings = [0; 8];
        // Does not block; there may be nothing to read.
        let _ = rustix::io::read(bell, &mut count_of_rings);
        if count == 0 { Err(ClientError::TimedOut) } else { Ok(()) }
    }

    fn poll_sockets(&mut self, flushed: bool, timeout: Option<Timespec>) -> Result<()> {
        let WakeupSource::Tcp { sockets, .. } = &self.events else { return Ok(()) };
        let events = if flushed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut polled: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(&**socket, events)).collect();
        match poll(&mut polled, timeout)? {
            0 => Err(ClientError::TimedOut),
            _ => Ok(()),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if !self.is_lost {
            let _ = self.flush(); // drop cannot report an error
        }
    }
}

/// Polls and returns the number of ready descriptors; 1 after an interruption, so that it does not
/// count as a timeout.
fn poll(polled: &mut [PollFd<'_>], timeout: Option<Timespec>) -> Result<usize> {
    match rustix::event::poll(polled, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => Ok(1),
        other => Ok(other?),
    }
}

fn into_result(reply: Reply) -> Result<Reply> {
    match reply {
        Reply::Busy => Err(ClientError::Busy),
        Reply::Failed(error) => Err(ClientError::Database(error)),
        other => Ok(other),
    }
}

fn unexpected_reply() -> ClientError {
    ClientError::ConnectionLost(io::Error::new(
        io::ErrorKind::InvalidData,
        "the reply is of another kind than the request",
    ))
}

/// Returns the worker that executes a request.
fn worker_for_request(request: &Request<'_>, workers: usize, agent: usize) -> usize {
    let key = match request {
        Request::Get { key, .. } => Some(*key),
        Request::Write { pair, .. } => Some(pair.key),
        Request::Batch { expectations, changes, .. } => {
            changes.first().or(expectations.first()).map(|pair| pair.key)
        }
        Request::Range(range) => match range.low {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        },
        _ => None,
    };
    key.map_or(agent, |key| worker_for_key(key, workers))
}
