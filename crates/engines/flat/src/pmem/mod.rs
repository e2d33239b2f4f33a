//! # Persistent memory: the medium of FlatStore
//!
//! Runs a whole store on emulated persistent memory. The log of the paper is in Optane memory: a
//! store is durable once its cache lines are written back (`clwb`) and a fence (`sfence`) has
//! waited for that (§2.3). [`PmDisk`] is a disk with files in such memory. A sync writes back the
//! changed lines and executes one fence.
//!
//! ## Picture
//!
//! ```text
//!   store, logs, rounds  ->  PmDisk: names by an ordinary file system, bytes in memory
//!                              | write         | sync_to(end): lines since the last one
//!                              v               v
//!             PersistentMemory: store          flush (clwb a line) ... fence (sfence)   counted
//!                              |
//!      EmulatedPmem (loses data that was not fenced) | MappedPmem (instructions of the machine)
//! ```
//!
//! ## Costs
//!
//! Pairs of write-back and fence, counted by a test: 1 for a put or a batch with all values in the
//! log. The paper needs 2; here frames have checksums and no tail pointer is written. Each value
//! outside of the log adds 1; the paper needs 3 for a put and N + 2 for a batch. After each sync
//! the log continues at the next 512 bytes. No line is thus written back twice, nor any 256-byte
//! block of Optane (§3.2, padding).
//!
//! [`probe()`] detects real persistent memory. The code was never measured on it, so no database
//! uses it unless the caller asks.

mod disk;
mod emulated;
mod mapped;
mod probe;

pub use disk::PmDisk;
pub use emulated::{EmulatedPmem, UnfencedBytes};
pub use mapped::{FlushInstruction, MappedPmem};
pub use probe::{PersistenceDomain, PmemSupport, probe};

use std::fmt;

/// Number of bytes that are written back together.
pub const LINE_BYTES: usize = 64;

/// Counts of the operations on the medium since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushCounts {
    /// Number of lines written back.
    pub lines: u64,
    /// Number of fences that had write-backs to wait for.
    pub fences: u64,
}

/// Memory that keeps its content without power, with explicit durability.
///
/// A store is visible at once. It is durable after a later flush of its line and a fence after the
/// flush. Before that, each aligned group of eight bytes may be durable or not.
pub trait PersistentMemory: fmt::Debug + Send + Sync {
    /// Returns the size in bytes.
    fn len(&self) -> usize;
    /// Returns true if the size is zero.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes out. The range must be within the memory.
    fn load(&self, at: usize, bytes: &mut [u8]);
    /// Copies bytes in. The range must be within the memory.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Starts to write back the lines that contain the range.
    fn flush(&self, at: usize, len: usize);
    /// Waits until all lines flushed before are durable.
    fn fence(&self);
    /// Returns the counts of the operations so far.
    fn flush_counts(&self) -> FlushCounts;
}

/// Returns the lines that contain `[at, at + len)`.
fn line_range(at: usize, len: usize) -> std::ops::Range<usize> {
    at / LINE_BYTES..(at + len).div_ceil(LINE_BYTES)
}

#[cfg(test)]
mod tests;
