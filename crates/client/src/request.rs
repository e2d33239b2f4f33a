//! # Requests: keyspaces, snapshots and batches
//!
//! Functions of this module build requests and send nothing.
//! [`Client::submit`](crate::Client::submit) sends them.

use sheaf::Durability;
use sheaf_flatrpc::message::{Pair, Request};

/// Keyspace of the server's database. Valid for every client of the server, as long as the server
/// runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientKeyspace {
    pub(crate) number: u32,
    pub(crate) ordered: bool,
}

/// Snapshot that the server keeps for this client until it is released or the connection ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the server keeps the snapshot until `Client::release` or the end of the connection"]
pub struct ClientSnapshot {
    pub(crate) number: u32,
    pub(crate) seq: u64,
}

impl ClientSnapshot {
    /// Returns the sequence number of the last commit that the snapshot contains.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let seq = client.insert(users, "ada", "lovelace")?;
    /// assert_eq!(client.snapshot()?.seq(), seq);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }
}

impl ClientKeyspace {
    /// Returns true if the engine keeps keys in order.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// assert!(client.keyspace_with_engine("events", "kreon")?.is_ordered());
    /// assert!(!client.keyspace_with_engine("counters", "flat")?.is_ordered());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// Returns a request for the newest value of `key`. The reply is
    /// [`Reply::Value`](crate::Reply::Value).
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let reply = client.call(&users.get(b"ada"))?;
    /// assert!(matches!(reply, sheaf_client::Reply::Value(None)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get<'a>(&self, key: &'a [u8]) -> Request<'a> {
        Request::Get { keyspace: self.number, snapshot: 0, key }
    }

    /// Returns a request for the value of `key` in a snapshot. The reply is
    /// [`Reply::Value`](crate::Reply::Value).
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let snapshot = client.snapshot()?;
    /// client.insert(users, "ada", "lovelace")?;
    /// let reply = client.call(&users.get_at(&snapshot, b"ada"))?;
    /// assert!(matches!(reply, sheaf_client::Reply::Value(None)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn get_at<'a>(&self, snapshot: &ClientSnapshot, key: &'a [u8]) -> Request<'a> {
        Request::Get { keyspace: self.number, snapshot: snapshot.number, key }
    }

    /// Returns a request that sets `key` to `value` with [`Durability::Buffer`]. The reply is
    /// [`Reply::Done`](crate::Reply::Done) with the sequence number of the commit.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let reply = client.call(&users.insert(b"ada", b"lovelace"))?;
    /// assert!(matches!(reply, sheaf_client::Reply::Done { .. }));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn insert<'a>(&self, key: &'a [u8], value: &'a [u8]) -> Request<'a> {
        self.write(key, Some(value), Durability::Buffer)
    }

    /// Returns a request that removes `key` with [`Durability::Buffer`]. The reply is
    /// [`Reply::Done`](crate::Reply::Done) with the sequence number of the commit.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// client.insert(users, "ada", "lovelace")?;
    /// client.call(&users.remove(b"ada"))?;
    /// assert_eq!(client.get(users, "ada")?, None);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remove<'a>(&self, key: &'a [u8]) -> Request<'a> {
        self.write(key, None, Durability::Buffer)
    }

    /// Returns a request that sets `key` to `value`, or removes it if `value` is `None`. The server
    /// replies when the commit has the given durability.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// // The reply arrives after a device sync.
    /// client.call(&users.write(b"ada", Some(b"lovelace"), sheaf_client::Durability::Sync))?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn write<'a>(&self, key: &'a [u8], value: Option<&'a [u8]>, durability: Durability) -> Request<'a> {
        Request::Write { pair: Pair { keyspace: self.number, key, value }, durability }
    }
}

/// Changes that are committed atomically. If a key is changed more than once, its last change wins.
#[derive(Clone, Debug, Default)]
#[must_use = "a batch changes nothing until `Client::commit`"]
pub struct ClientBatch<'a> {
    durability: Durability,
    expectations: Vec<Pair<'a>>,
    changes: Vec<Pair<'a>>,
}

impl<'a> ClientBatch<'a> {
    /// Adds a change that sets `key` to `value`.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let (users, mails) = (client.keyspace("users")?, client.keyspace("mails")?);
    /// let mut batch = sheaf_client::ClientBatch::default();
    /// batch.insert(users, b"ada", b"lovelace").insert(mails, b"ada", b"ada@example.org");
    /// client.commit(&batch)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn insert(
        &mut self,
        keyspace: ClientKeyspace,
        key: &'a [u8],
        value: &'a [u8],
    ) -> &mut ClientBatch<'a> {
        self.changes.push(Pair { keyspace: keyspace.number, key, value: Some(value) });
        self
    }

    /// Adds a change that removes `key`. The key does not have to exist.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let mut batch = sheaf_client::ClientBatch::default();
    /// batch.remove(users, b"ada").remove(users, b"alan");
    /// client.commit(&batch)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn remove(&mut self, keyspace: ClientKeyspace, key: &'a [u8]) -> &mut ClientBatch<'a> {
        self.changes.push(Pair { keyspace: keyspace.number, key, value: None });
        self
    }

    /// Adds a condition: the batch is committed only if `key` has `value` at that time, or does not
    /// exist if `value` is `None`. Otherwise the commit returns [`sheaf::Error::Conflict`] and
    /// changes nothing.
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let mut batch = sheaf_client::ClientBatch::default();
    /// batch.expect_value(users, b"ada", None).insert(users, b"ada", b"lovelace");
    /// client.commit(&batch)?;
    /// assert!(client.commit(&batch).is_err()); // `ada` exists by now
    /// # Ok(())
    /// # }
    /// ```
    pub fn expect_value(
        &mut self,
        keyspace: ClientKeyspace,
        key: &'a [u8],
        value: Option<&'a [u8]>,
    ) -> &mut ClientBatch<'a> {
        self.expectations.push(Pair { keyspace: keyspace.number, key, value });
        self
    }

    /// Sets the durability of the commit. Default: [`Durability::Buffer`].
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let mut batch = sheaf_client::ClientBatch::default();
    /// batch.insert(users, b"ada", b"lovelace").durability(sheaf_client::Durability::Sync);
    /// client.commit(&batch)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn durability(&mut self, durability: Durability) -> &mut ClientBatch<'a> {
        self.durability = durability;
        self
    }

    /// Returns a request that commits the batch, for [`Client::submit`](crate::Client::submit).
    ///
    /// ```
    /// # mod served { include!("../doc/served.rs"); }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let (_served, mut client) = served::start()?;
    /// let users = client.keyspace("users")?;
    /// let mut batch = sheaf_client::ClientBatch::default();
    /// batch.insert(users, b"ada", b"lovelace");
    /// let ticket = client.submit(&batch.request())?;
    /// client.wait(ticket)?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn request(&self) -> Request<'a> {
        Request::Batch {
            durability: self.durability,
            expectations: self.expectations.clone(),
            changes: self.changes.clone(),
        }
    }
}
