//! # The real disk: Linux
//!
//! [`RealDisk`] and its files over system calls, one call per operation wherever possible. The
//! pointers live in `mapping.rs`, the signal in `sigbus.rs`, the lock in `flock.rs`.
//!
//! ## Invariants
//!
//! 1. Transfers are whole: interrupted calls go on, short ones too, and a transfer that makes no
//!    progress is an error, never a loop. A sync is called once: not even EINTR repeats it.
//! 2. Bytes are stored through a mapping only where they were written by `write_at` before
//!    (blocks exist) and populated (no fault); else they are written.
//!
//! ## Costs
//!
//! `open` 2 system calls, `read_at`, `write_at`, `sync` 1, `mapped` and a resident `append_at` 0,
//! `sync_dir` 3.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::mapping::{Mapping, Stored};
use super::{Disk, Entry, File, How, Locked, Share, Volume, flock, sigbus};

/// Zeros to write with one call.
static ZEROS: [u8; 256 * 1024] = [0; 256 * 1024];

/// The machine's file systems. Paths are those of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl RealDisk {
    /// Reads of mapped files that would have killed the process, and showed zeros instead, since
    /// the process started.
    #[must_use]
    pub fn mapped_read_faults() -> u64 {
        sigbus::faults()
    }
}

/// Whether files in `dir` are persistent memory: whether one, nameless and gone afterwards, can be mapped with
/// `MAP_SYNC`.
pub fn maps_synchronously(dir: &Path) -> io::Result<bool> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&fd, rustix::param::page_size() as u64)?;
    Ok(super::mapping::is_synchronous(fd.as_fd()))
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>> {
        let flags = match how {
            How::Read => OFlags::RDONLY,
            How::Write => OFlags::RDWR,
            How::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
        };
        // NONBLOCK: opening a named pipe must not wait. It means nothing for files.
        let fd = open_fd(path, flags | OFlags::NONBLOCK)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode);
        if kind != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        Ok(Arc::new(RealFile {
            fd,
            path: path.to_path_buf(),
            is_writable: how != How::Read,
            mapping: OnceLock::new(),
        }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        let fd = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for found in Dir::read_from(&fd)? {
            let found = found?;
            let name = found.file_name().to_str();
            let name = name.map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
            if name != "." && name != ".." {
                let is_dir = is_dir(&fd, name, found.file_type())?;
                let name = name.to_owned();
                entries.push(Entry { name, is_dir });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        Ok(rustix::fs::mkdir(dir, Mode::from_raw_mode(0o777))?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::unlink(path)?)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        Ok(rustix::fs::rmdir(dir)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::rename(from, to)?)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        Ok(rustix::fs::link(from, to)?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let fd = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(rustix::fs::fsync(&fd)?)
    }

    fn lock(&self, path: &Path, share: Share) -> io::Result<Locked> {
        flock::lock(path, share)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let room = rustix::fs::statvfs(path)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }

    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let room = rustix::fs::statvfs(path)?;
        Ok((room.f_files > 0).then_some((room.f_favail, room.f_files)))
    }

    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        if !syncfs_tells_errors() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Arc::new(RealVolume { dir: open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)? }))
    }

    fn spread(&self, dir: &Path) {
        // `chattr +T`; other file systems refuse, and need it not.
        if let Ok(fd) = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)
            && let Ok(flags) = rustix::fs::ioctl_getflags(&fd)
        {
            let _ = rustix::fs::ioctl_setflags(&fd, flags | rustix::fs::IFlags::TOPDIR);
        }
    }
}

/// Linux 5.8 and later: `syncfs` reports failed writes.
fn syncfs_tells_errors() -> bool {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(5), Some(8))
}

#[derive(Debug)]
struct RealVolume {
    dir: OwnedFd,
}

impl Volume for RealVolume {
    fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.dir)?)
    }
}

pub(super) fn open_fd(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(0o666);
    Ok(repeat(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode))?)
}

/// Calls until it is not interrupted.
pub(super) fn repeat<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// Whether a directory's entry is a directory, or a link to one.
fn is_dir(dir: &OwnedFd, name: &str, kind: FileType) -> io::Result<bool> {
    if !matches!(kind, FileType::Unknown | FileType::Symlink) {
        return Ok(kind == FileType::Directory);
    }
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Ok(target) => Ok(FileType::from_raw_mode(target.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false), // A link to nowhere, or gone meanwhile.
        Err(refusal) => Err(refusal.into()),
    }
}

/// An open file.
struct RealFile {
    fd: OwnedFd,
    path: PathBuf,
    is_writable: bool,
    mapping: OnceLock<Mapping>,
}

impl fmt::Debug for RealFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealFile({})", self.path.display())
    }
}

impl File for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        read_whole(offset, buf, |bytes, at| rustix::io::pread(&self.fd, bytes, at))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        write_whole(offset, bytes, |bytes, at| rustix::io::pwrite(&self.fd, bytes, at))
    }

    fn len(&self) -> io::Result<u64> {
        let len = rustix::fs::fstat(&self.fd)?.st_size;
        u64::try_from(len).map_err(io::Error::other)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Ok(repeat(|| rustix::fs::ftruncate(&self.fd, len))?)
    }

    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        let blocks = rustix::fs::fstat(&self.fd)?.st_blocks;
        Ok(u64::try_from(blocks).is_ok_and(|blocks| blocks >= len.div_ceil(512)))
    }

    /// Where the file system cannot reserve, the file is filled with zeros up to `len`: that
    /// covers what is new, not holes that were there before.
    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        let reserve = || rustix::fs::fallocate(&self.fd, FallocateFlags::empty(), 0, len);
        match repeat(reserve) {
            Err(Errno::OPNOTSUPP) => self.write_zeros(self.len()?, len),
            answer => Ok(answer?),
        }
    }

    fn sync(&self) -> io::Result<()> {
        if let Some(mapping) = self.mapping.get() {
            mapping.end_residency();
        }
        Ok(rustix::fs::fdatasync(&self.fd)?)
    }

    fn sync_to(&self, end: u64) -> io::Result<()> {
        match self.mapping.get().filter(|mapping| mapping.was_populated()) {
            Some(mapping) => mapping.settle(end, |from| self.sync_range(from, end)),
            None => self.sync(),
        }
    }

    fn map(&self, len: u64) {
        let is_long_enough = self.len().is_ok_and(|have| have >= len);
        if self.mapping.get().is_some() || len == 0 || !is_long_enough {
            return;
        }
        if let Ok(mapping) = Mapping::new(self.fd.as_fd(), len, self.is_writable) {
            // If another thread was faster, its mapping stays and ours goes.
            let _ = self.mapping.set(mapping);
        }
    }

    #[inline]
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // * Nobody writes the range: our caller's promise, passed on.
        unsafe { self.mapping.get()?.slice(offset, len) }
    }

    #[inline]
    fn prefetch(&self, offset: u64, lines: usize) {
        if let Some(mapping) = self.mapping.get() {
            mapping.prefetch(offset, lines);
        }
    }

    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let stored = self.mapping.get().map_or(Stored::No, |mapping| mapping.store(offset, bytes));
        match stored {
            Stored::Yes => Ok(()),
            Stored::No => self.write_at(offset, bytes),
            Stored::Lost => Err(Errno::IO.into()),
        }
    }

    fn make_resident(&self, from: u64, to: u64) {
        let Some(mapping) = self.mapping.get() else {
            return;
        };
        let ends = mapping.ends();
        if mapping.can_populate(from, to) && self.write_zeros(from, to).is_ok() {
            mapping.populate(from, to, ends);
        }
    }

    #[inline]
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        let mapping = self.mapping.get();
        mapping.is_some_and(|mapping| mapping.is_resident(offset, len))
    }
}

impl RealFile {
    /// Makes `[from, end)` durable and leaves dirty pages behind `end` alone: writes the range back and
    /// waits for it, then rewrites its last bytes with a synced write, which flushes the device and
    /// commits the file's metadata as fdatasync would.
    fn sync_range(&self, from: u64, end: u64) -> io::Result<()> {
        let signed = |number: u64| i64::try_from(number).map_err(io::Error::other);
        let (start, count) = (signed(from)?, signed(end.saturating_sub(from))?);
        let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
            | libc::SYNC_FILE_RANGE_WRITE
            | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        // SAFETY:
        // * A system call on a descriptor that is open; no memory is passed.
        if unsafe { libc::sync_file_range(self.fd.as_raw_fd(), start, count, flags) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut last = [0; 8];
        let at = end.saturating_sub(last.len() as u64);
        self.read_at(at, &mut last)?;
        write_whole(at, &last, |bytes, at| {
            rustix::io::pwritev2(&self.fd, &[io::IoSlice::new(bytes)], at, rustix::io::ReadWriteFlags::DSYNC)
        })
    }

    fn write_zeros(&self, from: u64, to: u64) -> io::Result<()> {
        let mut at = from;
        while at < to {
            let count = usize::try_from(to - at).map_or(ZEROS.len(), |n| n.min(ZEROS.len()));
            self.write_at(at, &ZEROS[..count])?;
            at += count as u64;
        }
        Ok(())
    }
}

/// Fills `buf` from `offset` by as many calls of `read` as it takes.
fn read_whole(
    mut offset: u64,
    mut buf: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !buf.is_empty() {
        let count = repeat(|| read(buf, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf = &mut buf[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes `bytes` at `offset` by as many calls of `write` as it takes.
pub(super) fn write_whole(
    mut offset: u64,
    mut bytes: &[u8],
    mut write: impl FnMut(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = repeat(|| write(bytes, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods, reason = "tests of the door stand outside of it")]

    use super::*;
    use crate::disk::scratch::Scratch;
    use crate::fork::FORKING;

    const PAGE: u64 = 4096;

    fn kind<T>(answer: io::Result<T>) -> io::ErrorKind {
        answer.map(|_| ()).unwrap_err().kind()
    }

    #[test]
    fn bytes_come_back_and_short_files_say_so() {
        let scratch = Scratch::new();
        let file = scratch.file("a", 10);
        file.write_at(20, b"tail").unwrap();
        assert_eq!(file.len().unwrap(), 24);
        let mut buf = [1; 14];
        file.read_at(10, &mut buf).unwrap();
        assert_eq!(&buf, b"\0\0\0\0\0\0\0\0\0\0tail");
        assert_eq!(kind(file.read_at(11, &mut buf)), io::ErrorKind::UnexpectedEof);
        file.set_len(3).unwrap();
        file.allocate(8192).unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 8192);
        let mut buf = [1; 5];
        file.read_at(1, &mut buf).unwrap();
        assert_eq!(buf, [7, 7, 0, 0, 0]);
        file.allocate(0).unwrap();
    }

    #[test]
    fn open_keeps_its_word() {
        let scratch = Scratch::new();
        let path = scratch.path("a");
        assert_eq!(kind(RealDisk.open(&path, How::Read)), io::ErrorKind::NotFound);
        assert_eq!(kind(RealDisk.open(&path, How::Write)), io::ErrorKind::NotFound);
        drop(scratch.file("a", 1));
        assert_eq!(kind(RealDisk.open(&path, How::Create)), io::ErrorKind::AlreadyExists);
        let reader = RealDisk.open(&path, How::Read).unwrap();
        assert!(reader.write_at(0, b"x").is_err());
        assert_eq!(kind(RealDisk.open(&scratch.0, How::Read)), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn names_are_listed_sorted_and_removed() {
        let scratch = Scratch::new();
        for name in ["b", "c", "a"] {
            drop(scratch.file(name, 1));
        }
        RealDisk.create_dir(&scratch.path("dir")).unwrap();
        std::os::unix::fs::symlink(scratch.path("dir"), scratch.path("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", scratch.path("lost")).unwrap();
        RealDisk.rename(&scratch.path("b"), &scratch.path("c")).unwrap();
        RealDisk.sync_dir(&scratch.0).unwrap();
        let listed = RealDisk.list(&scratch.0).unwrap();
        let listed: Vec<_> = listed.iter().map(|e| (e.name.as_str(), e.is_dir)).collect();
        let expected = [("a", false), ("c", false), ("dir", true), ("link", true), ("lost", false)];
        assert_eq!(listed, expected);
        RealDisk.remove(&scratch.path("a")).unwrap();
        RealDisk.remove_dir(&scratch.path("dir")).unwrap();
        assert_eq!(RealDisk.list(&scratch.0).unwrap().len(), 3);
        assert!(RealDisk.free_space(&scratch.0).unwrap() > 0);
    }

    #[test]
    fn name_that_is_not_utf8_is_an_error() {
        use std::os::unix::ffi::OsStrExt;
        let scratch = Scratch::new();
        let name = std::ffi::OsStr::from_bytes(b"\xff");
        std::fs::write(scratch.0.join(name), b"").unwrap();
        assert_eq!(kind(RealDisk.list(&scratch.0)), io::ErrorKind::InvalidData);
    }

    /// Maps a fresh page at `address`, where nothing is mapped; null if something is.
    fn take_page_at(address: usize) -> *const u8 {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY:
        // * NOREPLACE: no existing mapping is touched.
        let page = unsafe { libc::mmap(address as *mut _, 4096, protection, flags, -1, 0) };
        match page {
            libc::MAP_FAILED => std::ptr::null(),
            page => page.cast_const().cast(),
        }
    }

    #[test]
    fn forked_child_that_drops_everything_leaves_the_parents_lock_and_mapping() {
        let _alone = FORKING.lock();
        let scratch = Scratch::new();
        let path = scratch.path("LOCK");
        let held = RealDisk.lock(&path, Share::Exclusive).unwrap();
        let file = scratch.file("a", 4096);
        file.map(PAGE);
        // SAFETY:
        // * Nobody writes the file.
        let address = unsafe { file.mapped(0, 1) }.unwrap().as_ptr().addr();
        // SAFETY:
        // * The child only frees memory of small objects, which glibc allows after fork, and
        //   makes system calls.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY:
            // * Nobody writes the file.
            let hidden = unsafe { file.mapped(0, 1) }.is_none();
            let page = take_page_at(address);
            drop(held);
            drop(file);
            // SAFETY:
            // * A page of the child's own, if it is still there; if not, that is what the parent
            //   wants to know.
            let byte = unsafe { page.read_volatile() };
            // SAFETY:
            // * `_exit` has no conditions.
            unsafe { libc::_exit(i32::from(!hidden) + i32::from(byte)) }
        }
        let mut status = -1;
        // SAFETY:
        // * `status` is a valid place for an int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
        let again = RealDisk.lock(&path, Share::Exclusive).unwrap();
        assert!(matches!(again, Locked::Busy(_)));
        // SAFETY:
        // * Nobody writes the file.
        assert_eq!(unsafe { file.mapped(0, 4) }, Some(&[7; 4][..]));
        drop(held);
    }

    #[test]
    fn mapped_bytes_are_the_files_and_stay_in_bounds() {
        let scratch = Scratch::new();
        let file = scratch.file("a", 10_000);
        // SAFETY:
        // * Nobody writes the range while the slice lives.
        let mapped = |offset, len| unsafe { file.mapped(offset, len) }.map(<[u8]>::to_vec);
        assert_eq!(mapped(0, 1), None);
        file.map(20_000);
        assert_eq!(mapped(0, 1), None, "the file is shorter");
        file.map(9_000);
        file.write_at(8_990, b"0123456789").unwrap();
        assert_eq!(mapped(8_990, 10).unwrap(), b"0123456789");
        assert_eq!(mapped(8_990, 11), None);
        assert_eq!(mapped(u64::MAX, 2), None);
        assert_eq!(mapped(0, usize::MAX), None);
        file.prefetch(0, 1);
        file.prefetch(u64::MAX, 1);
        assert!(!file.is_resident(0, 1));
    }

    #[test]
    fn appends_through_the_mapping_are_the_files_bytes() {
        let scratch = Scratch::new();
        let file = scratch.file("a", 100);
        file.allocate(64 * 1024).unwrap();
        file.map(64 * 1024);
        file.make_resident(100, 16 * 1024);
        assert!(!file.is_resident(100, 10), "not a whole page");
        assert!(file.is_resident(4096, 12 * 1024));
        assert!(!file.is_resident(16 * 1024 - 1, 2));
        file.append_at(100, b"plain").unwrap();
        file.append_at(4095, b"over the edge").unwrap();
        file.append_at(5000, b"stored").unwrap();
        let mut buf = [0; 6];
        file.read_at(5000, &mut buf).unwrap();
        assert_eq!(&buf, b"stored");
        file.make_resident(16 * 1024, 32 * 1024);
        assert!(file.is_resident(4096, 28 * 1024), "joined with what came before");
        file.sync().unwrap();
        assert!(!file.is_resident(5000, 1));
        file.append_at(5006, b" and written").unwrap();
        let mut buf = [0; 18];
        file.read_at(5000, &mut buf).unwrap();
        assert_eq!(&buf, b"stored and written");
    }

    #[test]
    fn appends_of_two_threads_beside_syncs_all_arrive() {
        let scratch = Scratch::new();
        let file = scratch.file("a", 0);
        file.allocate(64 * PAGE).unwrap();
        file.map(64 * PAGE);
        let append = |first: u64, fill: u8| {
            file.make_resident(first * PAGE, (first + 32) * PAGE);
            for offset in (first * PAGE..(first + 32) * PAGE).step_by(64) {
                file.append_at(offset, &[fill; 64]).unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| append(0, 1));
            scope.spawn(|| append(32, 2));
            for _ in 0..20 {
                file.sync().unwrap();
            }
        });
        let mut bytes = vec![0; 64 * 4096];
        file.read_at(0, &mut bytes).unwrap();
        let (left, right) = bytes.split_at(32 * 4096);
        assert!(left.iter().all(|&byte| byte == 1) && right.iter().all(|&byte| byte == 2));
    }

    #[test]
    fn read_only_files_never_become_resident() {
        let scratch = Scratch::new();
        drop(scratch.file("a", 8192));
        let file = RealDisk.open(&scratch.path("a"), How::Read).unwrap();
        file.map(8192);
        file.make_resident(0, 8192);
        assert!(!file.is_resident(0, 1));
        assert!(file.append_at(0, b"x").is_err());
    }

    #[test]
    fn file_cut_under_its_mapping_reads_as_zeros_without_a_crash() {
        let scratch = Scratch::new();
        let file = scratch.file("a", 8192);
        file.map(8192);
        let before = RealDisk::mapped_read_faults();
        file.set_len(4096).unwrap();
        // SAFETY:
        // * Nobody writes the file (any more).
        let page = unsafe { file.mapped(4096, 4096) }.unwrap();
        assert!(page.iter().all(|&byte| byte == 0));
        assert!(RealDisk::mapped_read_faults() > before);
        // SAFETY:
        // * As above.
        let again = unsafe { file.mapped(0, 1) };
        assert!(again.is_none(), "plain reads from now on");
        let mut buf = [0; 1];
        file.read_at(0, &mut buf).unwrap();
        assert_eq!(buf, [7]);
    }

    #[test]
    fn store_that_hits_a_replaced_page_is_an_error() {
        let scratch = Scratch::new();
        let file = scratch.file("a", 16 * 1024);
        file.map(16 * 1024);
        file.make_resident(0, 16 * 1024);
        assert!(file.is_resident(8192, 100));
        file.set_len(4096).unwrap();
        let lost = file.append_at(8192, &[9; 100]).unwrap_err();
        assert_eq!(lost.raw_os_error(), Some(libc::EIO));
        assert!(!file.is_resident(0, 1));
        file.append_at(8192, &[9; 100]).unwrap();
        assert_eq!(file.len().unwrap(), 8292, "written plainly since");
    }

    #[test]
    fn sigbus_elsewhere_still_kills() {
        let _alone = FORKING.lock();
        let scratch = Scratch::new();
        let ours = scratch.file("a", 4096);
        ours.map(PAGE); // Installs the handler.
        let path = scratch.path("b");
        std::fs::write(&path, vec![1; 4096]).unwrap();
        let fd = open_fd(&path, OFlags::RDWR).unwrap();
        let anywhere = std::ptr::null_mut();
        let (read, shared) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
        // SAFETY:
        // * The kernel chooses the address.
        let foreign = unsafe { rustix::mm::mmap(anywhere, 4096, read, shared, &fd, 0) }.unwrap();
        rustix::fs::ftruncate(&fd, 0).unwrap();
        // SAFETY:
        // * The child reads one byte, which kills it, or exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY:
            // * Mapped for reading; that the page is gone is the point.
            let byte = unsafe { foreign.cast::<u8>().read_volatile() };
            // SAFETY:
            // * `_exit` has no conditions.
            unsafe { libc::_exit(i32::from(byte)) }
        }
        let mut status = 0;
        // SAFETY:
        // * `status` is a valid place for an int.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFSIGNALED(status), "status {status}");
        assert_eq!(libc::WTERMSIG(status), libc::SIGBUS);
    }

    #[test]
    fn short_and_interrupted_transfers_go_on() {
        let mut answers = [Ok(2), Err(Errno::INTR), Ok(3), Ok(1)].into_iter();
        let mut seen = Vec::new();
        write_whole(10, b"abcdef", |bytes, at| {
            seen.push((bytes.to_vec(), at));
            answers.next().expect("no more calls than answers")
        })
        .unwrap();
        let places: Vec<u64> = seen.iter().map(|(_, at)| *at).collect();
        assert_eq!(places, [10, 12, 12, 15]);
        assert_eq!(seen[3].0, b"f");
        assert_eq!(kind(write_whole(0, b"x", |_, _| Ok(0))), io::ErrorKind::WriteZero);
        let mut buf = [0; 4];
        read_whole(0, &mut buf, |bytes, _| {
            bytes[0] = 1;
            Ok(1)
        })
        .unwrap();
        assert_eq!(buf, [1; 4]);
    }

    /// Prints what an append of 100 bytes costs through a mapping and without.
    #[test]
    #[ignore = "a measurement"]
    fn measure_appends() {
        use crate::clock::{Clock, SystemClock};
        let scratch = Scratch::new();
        let file = scratch.file("a", 0);
        let len = 16 << 20;
        file.allocate(len).unwrap();
        file.map(len);
        for resident in [false, true] {
            if resident {
                file.make_resident(0, len);
            }
            let (start, count) = (SystemClock.now(), 100_000_u32);
            for n in 0..count {
                file.append_at(u64::from(n) * 100, &[1; 100]).unwrap();
            }
            let each = (SystemClock.now() - start) / count;
            println!("resident {resident}: {each:?} per append");
        }
    }
}
