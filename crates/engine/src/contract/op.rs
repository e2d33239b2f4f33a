//! # Operations of a commit, from `prepare` to `apply`

use sheaf_log::blob::BlobRef;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;

/// Effect of an operation on its key.
#[derive(Clone, Copy, Debug)]
pub enum Action<'a> {
    /// Sets the value.
    Put(&'a [u8]),
    /// Sets a value that was written to a blob file before the commit.
    Blob(BlobRef),
    /// Removes the key.
    Remove,
    /// Removes all keys from the key of the operation on and before this end, or all above it. The
    /// commit has exclusive access. Only for an engine with
    /// [`EngineCommits::removes_ranges`](super::EngineCommits::removes_ranges).
    RemoveRange(Option<&'a [u8]>),
    /// Writes nothing. The commit fails as stale if the key changes between `prepare` and the
    /// commit.
    Expect,
}

impl<'a> Action<'a> {
    /// Returns the content of the operation's record. Returns `None` for [`Action::Expect`], which
    /// has no record.
    #[must_use]
    pub fn content(&self) -> Option<RecordContent<'a>> {
        match self {
            Action::Put(value) => Some(RecordContent::Put(value)),
            Action::Blob(blob) => Some(RecordContent::Blob(*blob)),
            Action::Remove => Some(RecordContent::Remove),
            Action::RemoveRange(end) => Some(RecordContent::RemoveRange(*end)),
            Action::Expect => None,
        }
    }
}

/// A key and its hash, as returned by `EngineReads::hashed_key`. A caller hashes a key once and
/// passes the result to several lookups.
#[derive(Clone, Copy, Debug)]
pub struct HashedKey<'k> {
    /// The key.
    pub key: &'k [u8],
    /// Hash of the key. Zero for an engine that needs none.
    pub hash: u64,
}

/// Number of words of an [`OpaqueFindings`].
pub const FINDING_WORDS: usize = 5;

/// Findings of an engine for one operation, carried from `prepare` to `apply`. They are opaque to
/// the store.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpaqueFindings([u64; FINDING_WORDS]);

impl OpaqueFindings {
    /// Stores the findings.
    #[inline]
    pub fn set<F: Findings>(&mut self, findings: F) {
        self.0 = findings.to_words();
    }

    /// Returns the findings, which must be of the type that was stored.
    #[inline]
    #[must_use]
    pub fn get<F: Findings>(&self) -> F {
        F::from_words(self.0)
    }
}

/// Content of an [`OpaqueFindings`]. Each engine has a type of its own.
pub trait Findings: Copy {
    /// Returns the findings as words.
    fn to_words(self) -> [u64; FINDING_WORDS];
    /// Returns the findings that [`Findings::to_words`] converted.
    fn from_words(words: [u64; FINDING_WORDS]) -> Self;
}

/// One operation, from `prepare` to `apply`.
#[derive(Clone, Copy, Debug)]
pub struct EngineOp<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Hash of the key, if it is known. The store sets it before `prepare`.
    pub hash: Option<u64>,
    /// Effect on the key.
    pub action: Action<'a>,
    /// Seq of the key's newest entry, set by `prepare`; zero if there is none. For
    /// [`Action::Expect`] this is the expected version: the commit happens only if it is still the
    /// newest one.
    pub prior: Seq,
    /// Findings of the engine, carried from `prepare` to `apply`.
    pub findings: OpaqueFindings,
    /// Log address of the record, set before `apply`.
    pub address: Address,
    /// Bytes of the record's frame, set before `apply`.
    pub span: u32,
    /// Number of earlier operations of the same commit, set before `prepare`. The memory that these
    /// operations need is not allocated yet.
    pub ops_before: u32,
    /// True if the commit may wait for a checkpoint, set before `prepare`. An engine over its
    /// budget may then return `Error::MemoryBudgetExceeded` at once. Otherwise it must read from
    /// the device to learn whether the key is new. The store repeats a refused operation with
    /// `may_wait` cleared.
    pub may_wait: bool,
}

impl<'a> EngineOp<'a> {
    /// Returns an operation that is not prepared yet.
    #[must_use]
    pub fn new(key: &'a [u8], action: Action<'a>) -> EngineOp<'a> {
        EngineOp {
            key,
            hash: None,
            action,
            prior: Seq::ZERO,
            findings: OpaqueFindings::default(),
            address: Address::NONE,
            span: 0,
            ops_before: 0,
            may_wait: false,
        }
    }
}

/// Result of `EngineCommits::prepare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// The operation needs a record.
    Record,
    /// The operation needs no record: it removes a key that does not exist, or is an
    /// [`Action::Expect`].
    NoChange,
}
