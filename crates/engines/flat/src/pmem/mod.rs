//! # Persistent memory: the medium of FlatStore
//!
//! The log of the paper is in Optane memory: a store is durable once its cache lines are written
//! back (`clwb`) and a fence (`sfence`) has waited for that (§2.3). [`PmDisk`] gives a whole
//! database such files, with any engine. Its sync of a file flushes the stored lines.
//! decisions/0035 lists the promises of the store and the flush that keeps each.
//!
//! ## Picture
//!
//! ```text
//!   store, logs, rounds  ->  PmDisk ---------- names, lengths, blocks ----> another disk
//!                              | store, flush ... fence                         |
//!                              v                                                v
//!                       PersistentMemory     of a real file: lines, or msync    RealDisk
//!                                            EmulatedPmem: loses power          EmulatedDisk
//! ```
//!
//! ## Costs
//!
//! Pairs of write-back and fence, counted by a test: 1 for a put or a batch with all values in the
//! log. The paper needs 2. After each sync the log continues at the next 512 bytes, so no line, and
//! no 256-byte block of Optane, is written back twice (§3.2, padding).
//!
//! No part of this ran on real persistent memory (decisions/0035).

mod disk;
#[cfg(any(test, feature = "pmem"))]
mod emulated;
#[cfg(any(test, feature = "pmem"))]
mod emulated_disk;
mod probe;
mod range_set;

pub use disk::PmDisk;
#[cfg(any(test, feature = "pmem"))]
pub use emulated::{EmulatedPmem, UnfencedBytes};
#[cfg(any(test, feature = "pmem"))]
pub use emulated_disk::EmulatedDisk;
pub use probe::{PersistenceDomain, PmemSupport, probe};
pub use sheaf_platform::disk::persistent::{FlushInstruction, LINE_BYTES, PersistenceMode, PersistentMemory};

/// Counts of the operations on a disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushCounts {
    /// Number of lines written back.
    pub lines: u64,
    /// Number of fences that had write-backs to wait for.
    pub fences: u64,
    /// Number of files synced through the file system.
    pub file_syncs: u64,
}

#[cfg(test)]
mod tests;
