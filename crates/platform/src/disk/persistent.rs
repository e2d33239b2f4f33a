//! # Persistent memory: files that are stored to through a mapping
//!
//! [`PersistentMemory`] is the mapping of one file in which a program decides itself when bytes are
//! durable. `PersistentMapping` is that of a real file; Windows has none. The emulation of tests is
//! in the crate `sheaf-flat` (`pmem`).
//!
//! ## Invariants
//!
//! 1. With [`PersistenceMode::Dax`] the mapping has `MAP_SYNC`: before a page becomes writable, the
//!    file system makes the location of its block durable. A line that was written back and fenced
//!    is therefore found after a power cut, without a sync of the file.
//! 2. Bytes are stored only where the file has blocks, inside its length. The caller promises that.
//!    If a store faults nevertheless, `sigbus` replaces the page, and the store, the flush
//!    or the fence after it returns an error.
//!
//! ## Threads
//!
//! Several threads may store at once, each to bytes of its own. A thread flushes lines that others
//! stored only after it has synchronised with them, for example through a lock. One thread at a
//! time flushes and fences.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::Path;

use super::real;
pub use super::write_back::{FlushInstruction, LINE_BYTES};
use crate::error::{Error, IoOp, Result};

/// Method by which stores to mapped files become durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PersistenceMode {
    /// Mappings with `MAP_SYNC` on a DAX file system in persistent memory. Cache lines are written
    /// back by instructions of the processor, then a fence waits for them.
    Dax,
    /// Shared mappings on any file system, for tests. `msync` takes the place of write-back and
    /// fence. This is slower and equally safe.
    Substitute,
}

/// Mapping of a file in which stores become durable by explicit calls.
///
/// A store is visible at once. It is durable after a later flush of its range and a fence after the
/// flush. Before that, each aligned group of eight bytes may be durable or not.
pub trait PersistentMemory: fmt::Debug + Send + Sync {
    /// Copies `bytes` to `at`.
    ///
    /// # Errors
    ///
    /// Returns an error if the mapping broke: bytes that were stored since the last fence may be
    /// lost.
    ///
    /// # Safety
    ///
    /// * No other thread may access the range during the call.
    /// * The file must have blocks for the range, and must not shrink below it during the call.
    unsafe fn store(&self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Starts to write back the lines that contain the range. The file must be at least that long.
    ///
    /// # Errors
    ///
    /// Like [`PersistentMemory::store`].
    fn flush(&self, range: Range<u64>) -> io::Result<()>;
    /// Waits until all ranges that this thread flushed before are durable.
    ///
    /// # Errors
    ///
    /// An error is final, as that of [`super::File::sync`].
    fn fence(&self) -> io::Result<()>;
    /// Hint that the range will be stored to: makes its pages writable in advance. The file must
    /// have blocks for it.
    fn populate(&self, range: Range<u64>) {
        let _ = range;
    }
}

/// Checks that a database in `dir` can use [`PersistenceMode::Dax`]. If `dir` does not exist yet,
/// its nearest existing ancestor counts.
///
/// # Errors
///
/// Returns [`Error::Io`] of kind `Unsupported` if the processor cannot write lines back, or if the
/// file system does not map files with `MAP_SYNC`. Returns the error of the system call if no
/// temporary file can be created there.
pub fn check_dax(dir: &Path) -> Result<()> {
    let unsupported = |reason: &str| {
        let source = io::Error::new(io::ErrorKind::Unsupported, reason);
        Error::Io { op: IoOp::Open, path: dir.to_path_buf(), source }
    };
    if FlushInstruction::best().is_none() {
        return Err(unsupported("this processor has no instruction that writes cache lines back"));
    }
    for place in dir.ancestors() {
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        match real::maps_synchronously(place) {
            Ok(true) => return Ok(()),
            Ok(false) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A file system without unnamed files has no DAX either.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => break,
            Err(error) => return Err(Error::io(IoOp::Open, place, error)),
        }
    }
    Err(unsupported(
        "MAP_SYNC is not supported (EOPNOTSUPP): the directory is not on a DAX mount of persistent \
         memory (mount -o dax); PersistenceMode::Substitute works on every file system",
    ))
}
