//! # Requests: what is asked of a server, by keyspace, snapshot and batch
//!
//! Nothing here talks to anybody: a request is made, then [`Client::submit`](crate::Client::submit) sends it.

use sheaf::Durability;
use sheaf_flatrpc::message::{Pair, Request};

/// A keyspace of the server's database. Good for every client of that server, as long as the server lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keyspace {
    pub(crate) number: u32,
    pub(crate) ordered: bool,
}

/// A snapshot that the server holds for this client, until it is released or the connection ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot {
    pub(crate) number: u32,
    pub(crate) seq: u64,
}

impl Snapshot {
    /// The sequence number of the last commit it shows.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }
}

impl Keyspace {
    /// Whether its engine keeps keys in order.
    #[must_use]
    pub fn is_ordered(&self) -> bool {
        self.ordered
    }

    /// A request for the value of `key`.
    #[must_use]
    pub fn get<'a>(&self, key: &'a [u8]) -> Request<'a> {
        Request::Get { keyspace: self.number, snapshot: 0, key }
    }

    /// A request for the value of `key` in a snapshot.
    #[must_use]
    pub fn get_at<'a>(&self, snapshot: &Snapshot, key: &'a [u8]) -> Request<'a> {
        Request::Get { keyspace: self.number, snapshot: snapshot.number, key }
    }

    /// A request that sets `key` to `value`.
    #[must_use]
    pub fn insert<'a>(&self, key: &'a [u8], value: &'a [u8]) -> Request<'a> {
        self.write(key, Some(value), Durability::Buffer)
    }

    /// A request that removes `key`.
    #[must_use]
    pub fn remove<'a>(&self, key: &'a [u8]) -> Request<'a> {
        self.write(key, None, Durability::Buffer)
    }

    /// A request that sets or removes `key` and is answered when that is as durable as asked.
    #[must_use]
    pub fn write<'a>(&self, key: &'a [u8], value: Option<&'a [u8]>, durability: Durability) -> Request<'a> {
        Request::Write { pair: Pair { keyspace: self.number, key, value }, durability }
    }
}

/// Changes that become one commit. The last change of a key wins.
#[derive(Clone, Debug, Default)]
pub struct Batch<'a> {
    durability: Durability,
    expectations: Vec<Pair<'a>>,
    changes: Vec<Pair<'a>>,
}

impl<'a> Batch<'a> {
    /// Sets `key` to `value`.
    pub fn insert(&mut self, keyspace: Keyspace, key: &'a [u8], value: &'a [u8]) -> &mut Batch<'a> {
        self.changes.push(Pair { keyspace: keyspace.number, key, value: Some(value) });
        self
    }

    /// Removes `key`.
    pub fn remove(&mut self, keyspace: Keyspace, key: &'a [u8]) -> &mut Batch<'a> {
        self.changes.push(Pair { keyspace: keyspace.number, key, value: None });
        self
    }

    /// The commit happens only if `key` has this value then; else it answers [`sheaf::Error::Conflict`].
    pub fn expect(&mut self, keyspace: Keyspace, key: &'a [u8], value: Option<&'a [u8]>) -> &mut Batch<'a> {
        self.expectations.push(Pair { keyspace: keyspace.number, key, value });
        self
    }

    /// How durable it is when it is answered.
    pub fn durability(&mut self, durability: Durability) -> &mut Batch<'a> {
        self.durability = durability;
        self
    }

    /// The request.
    #[must_use]
    pub fn request(&self) -> Request<'a> {
        Request::Batch {
            durability: self.durability,
            expectations: self.expectations.clone(),
            changes: self.changes.clone(),
        }
    }
}
