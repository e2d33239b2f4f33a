//! # Persistent mapping: stores to a mapped real file that become durable by explicit calls
//!
//! Implements [`PersistentMemory`] for the real disk of Unix systems. The invariants are those of
//! the module `persistent`. Only Linux has [`PersistenceMode::Dax`].

use std::io;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::mm::MapFlags;

use super::mapping::{FileMapping, StoreOutcome};
use super::persistent::{PersistenceMode, PersistentMemory};
#[cfg(target_os = "linux")]
use super::write_back::{self, FlushInstruction};
use crate::sync::Mutex;

/// Mapping of a real file.
#[derive(Debug)]
pub(super) struct PersistentMapping {
    mapping: FileMapping,
    method: Method,
}

#[derive(Debug)]
enum Method {
    #[cfg(target_os = "linux")]
    Lines(FlushInstruction),
    /// Range that was flushed since the last fence.
    Msync(Mutex<Option<Range<u64>>>),
}

impl PersistentMapping {
    /// Maps `[0, len)` of the file, which may be shorter.
    pub(super) fn new(fd: BorrowedFd<'_>, len: u64, mode: PersistenceMode) -> io::Result<PersistentMapping> {
        let (method, flags) = match mode {
            #[cfg(target_os = "linux")]
            PersistenceMode::Dax => {
                let instruction = FlushInstruction::best().ok_or(io::ErrorKind::Unsupported)?;
                (Method::Lines(instruction), MapFlags::SHARED_VALIDATE | MapFlags::SYNC)
            }
            #[cfg(not(target_os = "linux"))]
            PersistenceMode::Dax => return Err(io::ErrorKind::Unsupported.into()),
            PersistenceMode::Substitute => (Method::Msync(Mutex::default()), MapFlags::SHARED),
        };
        Ok(PersistentMapping { mapping: FileMapping::with_flags(fd, len, true, flags)?, method })
    }
}

impl PersistentMemory for PersistentMapping {
    // SAFETY: the contract is that of `PersistentMemory::store`. The mapping checks the bounds.
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
            #[cfg(target_os = "linux")]
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
            #[cfg(target_os = "linux")]
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
#[cfg(target_os = "linux")]
#[allow(clippy::disallowed_methods, reason = "tests of the disk layer access files directly")]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::disk::persistent::check_dax;
    use crate::disk::real;
    use crate::disk::scratch::ScratchDir;
    use crate::error::Error;

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
