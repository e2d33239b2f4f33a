//! # Persistent memory: files that are stored to through a mapping
//!
//! [`PersistentMemory`] is the mapping of one file in which a program decides itself when bytes are
//! durable. `PersistentMapping` is that of a real file. The emulation of tests is in the crate
//! `sheaf-flat` (`pmem`).
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
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::mapping::{FileMapping, StoreOutcome};
pub use super::write_back::{FlushInstruction, LINE_BYTES};
use super::{real, write_back};
use crate::error::{Error, IoOp, Result};
use crate::sync::Mutex;

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
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => break,
            Err(error) => return Err(Error::io(IoOp::Open, place, error)),
        }
    }
    Err(unsupported(
        "MAP_SYNC is not supported (EOPNOTSUPP): the directory is not on a DAX mount of persistent \
         memory (mount -o dax); PersistenceMode::Substitute works on every file system",
    ))
}

/// Mapping of a real file; see the [module](self).
#[derive(Debug)]
pub(super) struct PersistentMapping {
    mapping: FileMapping,
    method: Method,
}

#[derive(Debug)]
enum Method {
    Lines(FlushInstruction),
    /// Range that was flushed since the last fence.
    Msync(Mutex<Option<Range<u64>>>),
}

impl PersistentMapping {
    /// Maps `[0, len)` of the file, which may be shorter.
    pub(super) fn new(fd: BorrowedFd<'_>, len: u64, mode: PersistenceMode) -> io::Result<PersistentMapping> {
        let (method, flags) = match mode {
            PersistenceMode::Dax => {
                let instruction = FlushInstruction::best().ok_or(io::ErrorKind::Unsupported)?;
                (Method::Lines(instruction), MapFlags::SHARED_VALIDATE | MapFlags::SYNC)
            }
            PersistenceMode::Substitute => (Method::Msync(Mutex::default()), MapFlags::SHARED),
        };
        Ok(PersistentMapping { mapping: FileMapping::with_flags(fd, len, true, flags)?, method })
    }
}

impl PersistentMemory for PersistentMapping {
    unsafe fn store(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        // SAFETY:
        // * The caller promises that no other thread accesses the range.
        match unsafe { self.mapping.store_to_blocks(at, bytes) } {
            StoreOutcome::Stored => Ok(()),
            StoreOutcome::NotResident | StoreOutcome::Lost => Err(Errno::IO.into()),
        }
    }

    fn flush(&self, range: Range<u64>) -> io::Result<()> {
        match &self.method {
            Method::Lines(instruction) => {
                // SAFETY:
                // * `best` found the instruction when the mapping was made.
                match unsafe { self.mapping.write_lines_back(range, *instruction) } {
                    true => Ok(()),
                    false => Err(Errno::IO.into()),
                }
            }
            Method::Msync(flushed) => {
                let mut flushed = flushed.lock();
                let all = flushed.clone().unwrap_or_else(|| range.clone());
                *flushed = Some(all.start.min(range.start)..all.end.max(range.end));
                Ok(())
            }
        }
    }

    fn fence(&self) -> io::Result<()> {
        match &self.method {
            Method::Lines(_) => {
                write_back::fence();
                Ok(())
            }
            Method::Msync(flushed) => match flushed.lock().take() {
                Some(range) => self.mapping.msync(range),
                None => Ok(()),
            },
        }
    }

    fn populate(&self, range: Range<u64>) {
        self.mapping.prepare_blocks(range);
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::disk::scratch::ScratchDir;

    fn mapped(len: usize, method: Method) -> (ScratchDir, PersistentMapping) {
        let scratch = ScratchDir::new();
        drop(scratch.file("a", len));
        let file = std::fs::File::options().read(true).write(true).open(scratch.path("a")).unwrap();
        let mapping = FileMapping::with_flags(file.as_fd(), 1 << 20, true, MapFlags::SHARED).unwrap();
        (scratch, PersistentMapping { mapping, method })
    }

    /// On common memory the instructions have no lasting effect, but they run.
    #[test]
    fn both_methods_store_flush_and_fence_without_changing_other_bytes() {
        let lines = FlushInstruction::best().map(Method::Lines);
        for method in lines.into_iter().chain([Method::Msync(Mutex::default())]) {
            let (scratch, memory) = mapped(10_000, method);
            memory.populate(0..8192);
            // SAFETY:
            // * Only this thread uses the file, and it has blocks there.
            unsafe { memory.store(4090, b"over the end of a page") }.unwrap();
            memory.flush(4090..4112).unwrap();
            memory.flush(0..1).unwrap();
            memory.fence().unwrap();
            memory.fence().unwrap();
            let bytes = std::fs::read(scratch.path("a")).unwrap();
            assert_eq!(&bytes[4089..4113], b"\x07over the end of a page\x07", "{memory:?}");
            assert_eq!(bytes.len(), 10_000);
        }
    }

    /// A page without a block raises SIGBUS, which becomes an error of the store.
    #[test]
    fn a_store_behind_the_end_is_an_error_and_no_signal() {
        let (_scratch, memory) = mapped(100, Method::Msync(Mutex::default()));
        // SAFETY:
        // * Only this thread uses the file. The handler of SIGBUS replaces the missing page.
        let lost = unsafe { memory.store(8192, b"nothing is here") }.unwrap_err();
        assert_eq!(lost.raw_os_error(), Some(libc::EIO));
        // SAFETY:
        // * As above.
        assert!(unsafe { memory.store(0, b"a broken mapping stays broken") }.is_err());
        // SAFETY:
        // * As above.
        assert!(unsafe { memory.store(u64::MAX, b"out of bounds") }.is_err());
    }

    #[test]
    fn a_directory_without_dax_is_refused_with_the_reason() {
        let scratch = ScratchDir::new();
        if real::maps_synchronously(&scratch.0).unwrap_or(false) {
            println!("skipped: the temporary directory is in persistent memory");
            return;
        }
        let refusal = check_dax(&scratch.path("not/yet/created")).unwrap_err();
        assert!(matches!(&refusal, Error::Io { source, .. } if source.kind() == io::ErrorKind::Unsupported));
        let text = refusal.to_string();
        assert!(text.contains("DAX") || text.contains("instruction"), "{text}");
        let file = scratch.file("a", 4096);
        let refusal = file.map_persistent(4096, PersistenceMode::Dax).map(drop).unwrap_err();
        assert!(
            matches!(refusal.raw_os_error(), Some(libc::EOPNOTSUPP))
                || refusal.kind() == io::ErrorKind::Unsupported
        );
    }
}
