//! # Messages: requests and replies
//!
//! A message is the payload of one or more records of a ring: a number chosen by the client, a
//! kind, and the fields of the kind. docs/format/flatrpc.md specifies every byte.
//!
//! ## Invariants
//!
//! 1. Bytes from the peer are hostile. Decoding is total: any bytes result in a message or in
//!    [`MalformedMessage`]. No allocation exceeds the size that the received bytes justify. No
//!    bytes may remain after the last field.
//! 2. An encoded message decodes to an equal message.

use std::ops::Bound;

use sheaf::{Durability, Error};
use sheaf_platform::codec::{FieldReader, FieldWriter};
use sheaf_platform::wire_error;

/// Error for bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message: {0}")]
pub struct MalformedMessage(pub &'static str);

type Result<T, E = MalformedMessage> = std::result::Result<T, E>;

/// Change within a batch, or an expectation. A value of `None` removes the key, or expects no
/// value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair<'a> {
    /// Number of the keyspace.
    pub keyspace: u32,
    /// Key.
    pub key: &'a [u8],
    /// Value, or `None`.
    pub value: Option<&'a [u8]>,
}

/// Scan of a range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangeRequest<'a> {
    /// Number of the keyspace.
    pub keyspace: u32,
    /// Snapshot to read; 0 for the newest state.
    pub snapshot: u32,
    /// Lower bound of the range.
    pub low: Bound<&'a [u8]>,
    /// Upper bound of the range.
    pub high: Bound<&'a [u8]>,
    /// Scans from the highest key down.
    pub reverse: bool,
    /// Maximum number of pairs in the reply.
    pub limit: u32,
}

/// Request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Requests an empty reply.
    Ping,
    /// Requests the number of a keyspace.
    Keyspace {
        /// Name of the keyspace.
        name: &'a str,
        /// Engine for a new keyspace; empty for the default.
        engine: &'a str,
        /// Creates the keyspace if it does not exist.
        create: bool,
    },
    /// Requests the value of a key.
    Get {
        /// Number of the keyspace.
        keyspace: u32,
        /// Snapshot to read; 0 for the newest state.
        snapshot: u32,
        /// Key.
        key: &'a [u8],
    },
    /// Sets or removes a key.
    Write {
        /// Key and its value.
        pair: Pair<'a>,
        /// Durability before the reply.
        durability: Durability,
    },
    /// Applies many changes as one commit if all expectations hold.
    Batch {
        /// Durability before the reply.
        durability: Durability,
        /// Values that the keys must have.
        expectations: Vec<Pair<'a>>,
        /// Changes. The last change of a key wins.
        changes: Vec<Pair<'a>>,
    },
    /// Requests the pairs of a range.
    Range(RangeRequest<'a>),
    /// Creates a snapshot for later requests.
    Snapshot,
    /// Releases a snapshot.
    Release {
        /// Number of the snapshot.
        snapshot: u32,
    },
    /// Makes every acknowledged commit durable.
    Persist,
}

/// Reply to a client.
#[derive(Debug)]
pub enum Reply {
    /// Success.
    Done {
        /// Sequence number of the commit; 0 for other requests.
        seq: u64,
    },
    /// Value of a key, if it exists.
    Value(Option<Vec<u8>>),
    /// Pairs of a range in scan order.
    Pairs {
        /// Keys and values.
        pairs: Vec<(Vec<u8>, Vec<u8>)>,
        /// True if the range continues after the last pair.
        more: bool,
    },
    /// Number of a keyspace.
    Keyspace {
        /// Number of the keyspace. It is valid while the server runs.
        number: u32,
        /// True if the engine supports ranges.
        ordered: bool,
    },
    /// Snapshot.
    Snapshot {
        /// Number of the snapshot. It is valid for this connection.
        number: u32,
        /// Sequence number of the last commit in the snapshot.
        seq: u64,
    },
    /// Nothing was done: the server is overloaded, or the client has too many open resources.
    Busy,
    /// Error of the database.
    Failed(Error),
}

const PING: u8 = 0;
const KEYSPACE: u8 = 1;
const GET: u8 = 2;
const INSERT: u8 = 3;
const REMOVE: u8 = 4;
const BATCH: u8 = 5;
const RANGE: u8 = 6;
const SNAPSHOT: u8 = 7;
const RELEASE: u8 = 8;
const PERSIST: u8 = 9;

const DONE: u8 = 0;
const VALUE: u8 = 1;
const MISSING: u8 = 2;
const PAIRS: u8 = 3;
const KEYSPACE_REPLY: u8 = 4;
const SNAPSHOT_REPLY: u8 = 5;
const BUSY: u8 = 6;
const FAILED: u8 = 7;

/// Minimum bytes of a pair in a batch: keyspace 4, flag 1, two lengths of 4.
const MIN_PAIR_BYTES: usize = 13;

impl Request<'_> {
    /// Appends the request to `out` with the number `id`.
    pub fn encode(&self, id: u64, out: &mut Vec<u8>) {
        let mut out = MessageEncoder(out);
        out.u64(id);
        match self {
            Request::Ping => out.u8(PING),
            Request::Keyspace { name, engine, create } => {
                out.u8(KEYSPACE);
                out.u8(u8::from(*create));
                out.bytes(name.as_bytes());
                out.bytes(engine.as_bytes());
            }
            Request::Get { keyspace, snapshot, key } => {
                out.u8(GET);
                out.u32(*keyspace);
                out.u32(*snapshot);
                out.bytes(key);
            }
            Request::Write { pair, durability } => {
                out.u8(if pair.value.is_some() { INSERT } else { REMOVE });
                out.durability(*durability);
                out.u32(pair.keyspace);
                out.bytes(pair.key);
                if let Some(value) = pair.value {
                    out.bytes(value);
                }
            }
            Request::Batch { durability, expectations, changes } => {
                out.u8(BATCH);
                out.durability(*durability);
                out.pairs(expectations);
                out.pairs(changes);
            }
            Request::Range(range) => {
                out.u8(RANGE);
                out.u8(u8::from(range.reverse));
                out.u32(range.keyspace);
                out.u32(range.snapshot);
                out.u32(range.limit);
                out.bound(range.low);
                out.bound(range.high);
            }
            Request::Snapshot => out.u8(SNAPSHOT),
            Request::Release { snapshot } => {
                out.u8(RELEASE);
                out.u32(*snapshot);
            }
            Request::Persist => out.u8(PERSIST),
        }
    }
}

impl<'a> Request<'a> {
    /// Decodes a request and its number.
    ///
    /// # Errors
    ///
    /// Returns [`MalformedMessage`] if `bytes` is not exactly one request.
    pub fn decode(bytes: &'a [u8]) -> Result<(u64, Request<'a>)> {
        let mut from = MessageDecoder(bytes);
        let id = from.u64()?;
        let request = match from.u8()? {
            PING => Request::Ping,
            KEYSPACE => {
                let create = from.flag()?;
                Request::Keyspace { name: from.text()?, engine: from.text()?, create }
            }
            GET => Request::Get { keyspace: from.u32()?, snapshot: from.u32()?, key: from.bytes()? },
            kind @ (INSERT | REMOVE) => {
                let durability = from.durability()?;
                let (keyspace, key) = (from.u32()?, from.bytes()?);
                let value = if kind == INSERT { Some(from.bytes()?) } else { None };
                Request::Write { pair: Pair { keyspace, key, value }, durability }
            }
            BATCH => Request::Batch {
                durability: from.durability()?,
                expectations: from.pairs()?,
                changes: from.pairs()?,
            },
            RANGE => {
                let reverse = from.flag()?;
                let (keyspace, snapshot, limit) = (from.u32()?, from.u32()?, from.u32()?);
                let (low, high) = (from.bound()?, from.bound()?);
                Request::Range(RangeRequest { keyspace, snapshot, low, high, reverse, limit })
            }
            SNAPSHOT => Request::Snapshot,
            RELEASE => Request::Release { snapshot: from.u32()? },
            PERSIST => Request::Persist,
            _ => return Err(MalformedMessage("an unknown request")),
        };
        from.finish()?;
        Ok((id, request))
    }
}

/// Encoder of a reply that avoids the owned data of a [`Reply`].
pub struct ReplyEncoder<'a>(MessageEncoder<'a>);

impl<'a> ReplyEncoder<'a> {
    /// Starts the reply to request `id` at the end of `out`.
    pub fn new(id: u64, out: &'a mut Vec<u8>) -> ReplyEncoder<'a> {
        let mut out = MessageEncoder(out);
        out.u64(id);
        ReplyEncoder(out)
    }

    /// Writes [`Reply::Done`].
    pub fn done(mut self, seq: u64) {
        self.0.u8(DONE);
        self.0.u64(seq);
    }

    /// Writes [`Reply::Value`] with a value.
    pub fn value(mut self, value: &[u8]) {
        self.0.u8(VALUE);
        self.0.bytes(value);
    }

    /// Writes [`Reply::Value`] without a value.
    pub fn missing(mut self) {
        self.0.u8(MISSING);
    }

    /// Writes [`Reply::Keyspace`].
    pub fn keyspace(mut self, number: u32, ordered: bool) {
        self.0.u8(KEYSPACE_REPLY);
        self.0.u32(number);
        self.0.u8(u8::from(ordered));
    }

    /// Writes [`Reply::Snapshot`].
    pub fn snapshot(mut self, number: u32, seq: u64) {
        self.0.u8(SNAPSHOT_REPLY);
        self.0.u32(number);
        self.0.u64(seq);
    }

    /// Writes [`Reply::Busy`].
    pub fn busy(mut self) {
        self.0.u8(BUSY);
    }

    /// Writes [`Reply::Failed`].
    pub fn failed(mut self, error: &Error) {
        self.0.u8(FAILED);
        let mut fields = FieldWriter(Vec::new());
        wire_error::encode(error, &mut fields);
        self.0.bytes(&fields.0);
    }

    /// Starts [`Reply::Pairs`]. The caller adds the pairs one by one.
    #[must_use]
    pub fn pairs(mut self) -> PairsEncoder<'a> {
        self.0.u8(PAIRS);
        let head = self.0.0.len();
        self.0.u8(0);
        self.0.u32(0);
        PairsEncoder { out: self.0.0, head, count: 0 }
    }
}

/// Encoder of the pairs of a reply.
pub struct PairsEncoder<'a> {
    out: &'a mut Vec<u8>,
    head: usize,
    count: u32,
}

impl PairsEncoder<'_> {
    /// Returns the encoded size of a pair in bytes.
    #[must_use]
    pub fn pair_size(key: &[u8], value: &[u8]) -> usize {
        8 + key.len() + value.len()
    }

    /// Returns the size of the whole message so far in bytes.
    #[must_use]
    pub fn message_bytes(&self) -> usize {
        self.out.len()
    }

    /// Adds a pair.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let mut out = MessageEncoder(self.out);
        out.bytes(key);
        out.bytes(value);
        self.count += 1;
    }

    /// Returns the number of pairs so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Completes the reply. `more` states that the range continues.
    pub fn finish(self, more: bool) {
        self.out[self.head] = u8::from(more);
        self.out[self.head + 1..self.head + 5].copy_from_slice(&self.count.to_le_bytes());
    }
}

impl Reply {
    /// Decodes a reply and the number of its request.
    ///
    /// # Errors
    ///
    /// Returns [`MalformedMessage`] if `bytes` is not exactly one reply.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Reply)> {
        let mut from = MessageDecoder(bytes);
        let id = from.u64()?;
        let reply = match from.u8()? {
            DONE => Reply::Done { seq: from.u64()? },
            VALUE => Reply::Value(Some(from.bytes()?.to_vec())),
            MISSING => Reply::Value(None),
            PAIRS => {
                let more = from.flag()?;
                let count = from.count(8)?;
                let mut pairs = Vec::with_capacity(count);
                for _ in 0..count {
                    pairs.push((from.bytes()?.to_vec(), from.bytes()?.to_vec()));
                }
                Reply::Pairs { pairs, more }
            }
            KEYSPACE_REPLY => Reply::Keyspace { number: from.u32()?, ordered: from.flag()? },
            SNAPSHOT_REPLY => Reply::Snapshot { number: from.u32()?, seq: from.u64()? },
            BUSY => Reply::Busy,
            FAILED => Reply::Failed(decode_error(from.bytes()?)?),
            _ => return Err(MalformedMessage("an unknown reply")),
        };
        from.finish()?;
        Ok((id, reply))
    }
}

/// Encoder of numbers and byte strings.
pub(crate) struct MessageEncoder<'a>(pub(crate) &'a mut Vec<u8>);

impl MessageEncoder<'_> {
    pub(crate) fn u8(&mut self, number: u8) {
        self.0.push(number);
    }

    pub(crate) fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    /// Appends the length and the bytes. The length saturates at `u32::MAX`; the receiver rejects
    /// such a message because it exceeds the limit.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
    }

    fn durability(&mut self, durability: Durability) {
        self.u8(u8::from(durability == Durability::Sync));
    }

    fn bound(&mut self, bound: Bound<&[u8]>) {
        match bound {
            Bound::Unbounded => self.u8(0),
            Bound::Included(key) => {
                self.u8(1);
                self.bytes(key);
            }
            Bound::Excluded(key) => {
                self.u8(2);
                self.bytes(key);
            }
        }
    }

    fn pairs(&mut self, pairs: &[Pair<'_>]) {
        self.u32(u32::try_from(pairs.len()).unwrap_or(u32::MAX));
        for pair in pairs {
            self.u32(pair.keyspace);
            self.u8(u8::from(pair.value.is_some()));
            self.bytes(pair.key);
            self.bytes(pair.value.unwrap_or_default());
        }
    }
}

fn decode_error(bytes: &[u8]) -> Result<Error, MalformedMessage> {
    let mut fields = FieldReader::new(bytes);
    let error = wire_error::decode(&mut fields).and_then(|error| fields.finish().map(|()| error));
    error.map_err(|_| MalformedMessage("not an error"))
}

/// Decoder of numbers and byte strings. Fails at the end of the input.
pub(crate) struct MessageDecoder<'a>(pub(crate) &'a [u8]);

impl<'a> MessageDecoder<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(MalformedMessage("it ends too early"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = usize::try_from(self.u32()?).map_err(|_| MalformedMessage("a length beyond memory"))?;
        let (head, rest) = self.0.split_at_checked(len).ok_or(MalformedMessage("it ends too early"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(|_| MalformedMessage("a text that is not UTF-8"))
    }

    pub(crate) fn flag(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MalformedMessage("a flag that is neither 0 nor 1")),
        }
    }

    /// Reads a count of elements of at least `least` bytes each. Fails if the remaining bytes are
    /// too few.
    fn count(&mut self, least: usize) -> Result<usize> {
        let count = usize::try_from(self.u32()?).map_err(|_| MalformedMessage("a count beyond memory"))?;
        if count > self.0.len() / least {
            return Err(MalformedMessage("a count of more than there is"));
        }
        Ok(count)
    }

    fn durability(&mut self) -> Result<Durability> {
        Ok(if self.flag()? { Durability::Sync } else { Durability::Buffer })
    }

    fn bound(&mut self) -> Result<Bound<&'a [u8]>> {
        match self.u8()? {
            0 => Ok(Bound::Unbounded),
            1 => Ok(Bound::Included(self.bytes()?)),
            2 => Ok(Bound::Excluded(self.bytes()?)),
            _ => Err(MalformedMessage("an unknown bound")),
        }
    }

    fn pairs(&mut self) -> Result<Vec<Pair<'a>>> {
        let count = self.count(MIN_PAIR_BYTES)?;
        let mut pairs = Vec::with_capacity(count);
        for _ in 0..count {
            let (keyspace, has_value) = (self.u32()?, self.flag()?);
            let (key, value) = (self.bytes()?, self.bytes()?);
            if !has_value && !value.is_empty() {
                return Err(MalformedMessage("a value where none is allowed"));
            }
            pairs.push(Pair { keyspace, key, value: has_value.then_some(value) });
        }
        Ok(pairs)
    }

    fn finish(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(MalformedMessage("trailing bytes")) }
    }
}
