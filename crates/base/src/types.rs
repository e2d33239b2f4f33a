//! # Stored numbers and small shared types
//!
//! A newtype for each number that is stored or crosses a module, so that a segment number can
//! never be taken for a sequence number.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// The number of a commit. Dense within an incarnation, never reused. `0` is "before everything".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// Before every commit.
    pub const ZERO: Seq = Seq(0);
    /// Reads at this number see the newest committed state.
    pub const LATEST: Seq = Seq(u64::MAX);

    /// The number after this one.
    #[must_use]
    pub fn next(self) -> Seq {
        Seq(self.0 + 1)
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a log segment. Monotonic within a database, never reused: it salts the checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a keyspace. Names its files; never reused, also after a drop. `0` is the catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(pub u32);

impl KeyspaceId {
    /// The catalogue of keyspaces itself.
    pub const CATALOGUE: KeyspaceId = KeyspaceId(0);
}

impl fmt::Display for KeyspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One opening of the database for writing. Part of every checksum's salt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// Random identity of a database, drawn at creation. Part of every checksum's salt, so that a
/// file of another database (or a database stored as a value) is never taken for ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreId(pub u128);

/// Which of the database's logs: at most three, whatever the number of keyspaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LogId {
    /// The FIFO log: catalogue commits and engines that keep their data elsewhere.
    Journal = 0,
    /// The store log of `flat`: the entries are the data.
    Flat = 1,
}

impl LogId {
    /// All logs, in the order of their ids.
    pub const ALL: [LogId; 2] = [LogId::Journal, LogId::Flat];

    /// The directory that holds the log's segments.
    #[must_use]
    pub fn directory(self) -> &'static str {
        match self {
            LogId::Journal => "journal",
            LogId::Flat => "flat",
        }
    }

    /// Position in [`LogId::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The log with this number, if there is one.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<LogId> {
        LogId::ALL.into_iter().find(|log| *log as u8 == number)
    }
}

/// What an acknowledged write has survived when the call returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A killed process. The background sync aims to leave nothing unsynced for longer than the
    /// sync interval (100 ms by default); a power cut may take what is younger, newest first.
    #[default]
    Buffer,
    /// A power cut: this commit and every commit before it are on the device.
    Sync,
}

/// Longest key, in bytes.
pub const MAX_KEY: usize = 65_535;
/// Longest value, in bytes.
pub const MAX_VALUE: usize = u32::MAX as usize;
/// Most bytes of one batch in the log: keys, values, and up to 64 bytes for each operation. Values
/// that are kept beside the log do not count.
pub const MAX_BATCH: usize = 64 << 20;

/// 128 bits nobody can guess: std's hash keys are drawn from the system.
#[must_use]
pub fn random_bits() -> u128 {
    if cfg!(shuttle) {
        return 42; // a schedule replays: nothing else may be drawn
    }
    let word = || u128::from(RandomState::new().hash_one(std::process::id()));
    word() << 64 | word()
}
