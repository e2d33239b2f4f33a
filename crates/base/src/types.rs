//! # Stored numbers and small shared types
//!
//! A newtype for each number that is stored or crosses a module, so that a segment number can
//! never be taken for a sequence number.

use std::fmt;
use std::hash::{BuildHasher, RandomState};

/// Number of a commit. Dense within an incarnation, never reused. `0` is before every commit.
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

/// Number of a keyspace, used in its file names. Never reused, even after a drop. `0` is the
/// catalogue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(pub u32);

impl KeyspaceId {
    /// The catalogue of keyspaces itself.
    #[doc(hidden)]
    pub const CATALOG: KeyspaceId = KeyspaceId(0);
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

/// Log of a database: all keyspaces share two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LogId {
    /// Journal, freed from its start: catalogue commits, and records of `flex` and `delsm`.
    Journal = 0,
    /// Store log of `flat`, `flat-ordered`, `cedrus` and `kreon`: its entries are the data.
    ValueLog = 1,
}

impl LogId {
    /// All logs, in the order of their ids.
    pub const ALL: [LogId; 2] = [LogId::Journal, LogId::ValueLog];

    /// The directory that holds the log's segments.
    #[must_use]
    pub fn directory(self) -> &'static str {
        match self {
            LogId::Journal => "journal",
            LogId::ValueLog => "flat",
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

/// Failures that a commit survives after it was acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The death of the process. A background sync aims to write every commit to the device within
    /// the sync interval (100 ms by default). A power failure may lose later commits, but never an
    /// earlier commit without all later ones.
    #[default]
    Buffer,
    /// A power failure: this commit and all earlier commits are on the device.
    Sync,
}

/// Longest key in bytes.
pub const MAX_KEY: usize = 65_535;
/// Longest value in bytes: 4 GiB − 1.
pub const MAX_VALUE: usize = u32::MAX as usize;
/// Largest batch in bytes (64 MiB): keys, values, and up to 64 bytes per operation. Values in blob
/// files do not count.
pub const MAX_BATCH: usize = 64 << 20;

/// Returns 128 unpredictable bits: the hash keys of std come from the system.
#[must_use]
pub fn random_bits() -> u128 {
    if cfg!(shuttle) {
        return 42; // a schedule replays: nothing else may be drawn
    }
    let word = || u128::from(RandomState::new().hash_one(std::process::id()));
    word() << 64 | word()
}
