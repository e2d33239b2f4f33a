//! # Calls: requests that wait for their reply

use std::io;
use std::ops::{Bound, RangeBounds};

use sheaf_flatrpc::message::{RangeRequest, Reply, Request};

use super::Client;
#[cfg(doc)]
use crate::ClientOptions;
use crate::request::{ClientBatch, ClientKeyspace, ClientSnapshot};
use crate::{ClientError, Result};

impl Client {
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
    /// # mod served { include!("../../doc/served.rs"); }
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
}

fn unexpected_reply() -> ClientError {
    ClientError::ConnectionLost(io::Error::new(
        io::ErrorKind::InvalidData,
        "the reply is of another kind than the request",
    ))
}
