//! # Persistent memory: FlatStore's own medium, where there is any
//!
//! The paper's log lives in Optane memory: what was stored counts once its cache lines are written back (`clwb`)
//! and a fence (`sfence`) has waited for that (§2.3). Here the whole store can stand on such a medium: [`PmDisk`] is a disk
//! whose files are memory, and whose sync is one write-back of the lines in question and one fence.
//!
//! ## Picture
//!
//! ```text
//!   store, logs, rounds  ->  PmDisk: names by an ordinary file system, bytes in memory
//!                              | store        | sync_to(end): lines since the last one
//!                              v              v
//!                            Lines: store     flush (clwb a line) ... fence (sfence)
//!                              |                                      counted
//!                   Emulated (loses what was not fenced)  |  Mapped (the machine's instructions)
//! ```
//!
//! ## What it costs
//!
//! Pairs of write-back and fence, counted by a test: 1 for a put or a batch whose values stand in the log, where the
//! paper takes 2, since frames prove themselves and no tail pointer is written; 1 more for each value beside the log,
//! where the paper takes 3 and N + 2. Units: lines of 64 bytes; after each sync the log goes on in the next 512 bytes, which
//! is two of Optane's 256-byte blocks, so no line and no block is written back twice (§3.2, padding).
//!
//! ## What this cannot say
//!
//! No machine of ours has such memory. [`probe()`] finds it where it is and says so where it is not; the instructions run in
//! a test on common memory; the protocol runs on the emulated medium, which drops, keeps or tears whatever was not
//! fenced. Nothing here was ever measured on the real thing, so no database is put on it unasked.

mod disk;
mod emulated;
mod mapped;
mod probe;

pub use disk::PmDisk;
pub use emulated::{EmulatedPmem, UnfencedBytes};
pub use mapped::{FlushInstruction, MappedPmem};
pub use probe::{PersistenceDomain, PmemSupport, probe};

use std::fmt;

/// Bytes that are written back together.
pub const LINE_BYTES: usize = 64;

/// What the medium was told, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushCounts {
    /// Lines written back.
    pub lines: u64,
    /// Fences that had something to wait for.
    pub fences: u64,
}

/// Memory that outlives the power: bytes, and when they count.
///
/// A store is visible at once, and durable when its line was flushed after it and a fence came
/// after that. Before, each aligned eight bytes of it may be durable or not.
pub trait PersistentMemory: fmt::Debug + Send + Sync {
    /// How many bytes there are.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Copies bytes out. The range lies within.
    fn load(&self, at: usize, bytes: &mut [u8]);
    /// Copies bytes in. The range lies within.
    fn store(&self, at: usize, bytes: &[u8]);
    /// Begins to write back the lines that hold the range.
    fn flush(&self, at: usize, len: usize);
    /// Waits until what was flushed before is durable.
    fn fence(&self);
    /// What it was told so far.
    fn flush_counts(&self) -> FlushCounts;
}

/// The lines that hold `[at, at + len)`.
fn line_range(at: usize, len: usize) -> std::ops::Range<usize> {
    at / LINE_BYTES..(at + len).div_ceil(LINE_BYTES)
}

#[cfg(test)]
mod tests;
