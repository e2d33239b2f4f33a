//! # Stored numbers and small shared types
//!
//! Each number that is stored or passed between modules has a newtype. The compiler then rejects a
//! segment number where a sequence number is expected.

use std::fmt;

/// Number of a commit. Numbers are dense within an incarnation and never reused. `0` precedes every
/// commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

impl Seq {
    /// The number before the first commit.
    pub const ZERO: Seq = Seq(0);
    /// Read position that sees the newest committed state.
    pub const LATEST: Seq = Seq(u64::MAX);

    /// Returns the number after this one.
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

/// Number of a log segment. Numbers increase and are never reused within a database, because they
/// salt the checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of a keyspace, used in its file names. Numbers are never reused, even after a keyspace is
/// dropped. `0` is the catalog.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyspaceId(pub u32);

impl KeyspaceId {
    /// The catalog of keyspaces.
    #[doc(hidden)]
    pub const CATALOG: KeyspaceId = KeyspaceId(0);
}

impl fmt::Display for KeyspaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Number of an opening of the database for writing. It is part of the salt of every checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(pub u64);

/// Random identity of a database, chosen at creation. It is part of the salt of every checksum: a
/// file of another database, or a database stored as a value, is therefore never accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreId(pub u128);

/// Log of a database. All keyspaces share two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LogId {
    /// Journal, freed from its start. It contains commits to the catalog and records of `flex` and
    /// `delsm`.
    Journal = 0,
    /// Store log of `flat`, `flat-ordered`, `cedrus` and `kreon`. Its entries are the data.
    ValueLog = 1,
}

impl LogId {
    /// All logs, in the order of their numbers.
    pub const ALL: [LogId; 2] = [LogId::Journal, LogId::ValueLog];

    /// Returns the name of the directory that contains the segments of the log.
    #[must_use]
    pub fn directory(self) -> &'static str {
        match self {
            LogId::Journal => "journal",
            LogId::ValueLog => "flat",
        }
    }

    /// Returns the position in [`LogId::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// Returns the log with this number, if there is one.
    #[must_use]
    pub fn from_u8(number: u8) -> Option<LogId> {
        LogId::ALL.into_iter().find(|log| *log as u8 == number)
    }
}

/// Failures that an acknowledged commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// Crash of the process. A background thread aims to sync every commit within the sync interval
    /// (100 ms by default). A power failure may lose the newest commits. If it loses a commit, it
    /// loses all later commits too.
    #[default]
    Buffer,
    /// Power failure. The commit and all earlier commits are on the device when it is acknowledged.
    Sync,
}

/// Longest key in bytes.
pub const MAX_KEY: usize = 65_535;
/// Longest value in bytes: 4 GiB − 1.
pub const MAX_VALUE: usize = u32::MAX as usize;
/// Largest batch in bytes (64 MiB): keys, values, and up to 64 bytes per operation. Values in blob
/// files do not count.
pub const MAX_BATCH: usize = 64 << 20;
