//! # The real disk: Linux
//!
//! [`RealDisk`] and its files over system calls, one call per operation wherever possible. The
//! pointers live in `mapping.rs`, the signal in `sigbus.rs`, the lock in `flock.rs`.
//!
//! ## Invariants
//!
//! 1. Transfers are whole: interrupted calls go on, short ones too, and a transfer that makes no
//!    progress is an error, never a loop. A sync, or a write that syncs, is called once: not even EINTR repeats it.
//! 2. Bytes are stored through a mapping only where they were written by `write_at` before
//!    (blocks exist) and populated (no fault); else they are written.
//!
//! ## Costs
//!
//! `open` 2 system calls, `read_at`, `write_at`, `sync` 1, `mapped`, `opened_len` and a resident `append_at` 0, `map` 2 (and a
//! third, if the file was shorter when it was opened), `expect_scattered` 1, `sync_dir` 3.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::mapping::{Mapping, Stored};
use super::{Disk, Entry, File, How, Locked, PAGE, Permissions, Share, Volume, flock, sigbus, write_zeros};
use crate::clock;

/// The machine's file systems. Paths are those of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk {
    /// Modes of what it creates.
    permissions: Permissions,
}

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
        let fd = open_fd_mode(path, flags | OFlags::NONBLOCK, self.permissions.files())?;
        let seen = rustix::fs::fstat(&fd)?;
        if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let opened_len = u64::try_from(seen.st_size).map_err(io::Error::other)?;
        Ok(Arc::new(RealFile {
            fd,
            path: path.to_path_buf(),
            opened_len,
            least_len: AtomicU64::new(opened_len),
            is_writable: how != How::Read,
            mapping: OnceLock::new(),
            direct: OnceLock::new(),
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
        Ok(rustix::fs::mkdir(dir, Mode::from_raw_mode(self.permissions.directories()))?)
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
        flock::lock(path, share, self.permissions.files())
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let room = rustix::fs::statvfs(path)?;
        Ok(room.f_bavail.saturating_mul(room.f_frsize))
    }

    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let room = rustix::fs::statvfs(path)?;
        Ok((room.f_files > 0).then_some((room.f_favail, room.f_files)))
    }

    fn is_read_only(&self, path: &Path) -> bool {
        rustix::fs::statvfs(path).is_ok_and(|volume| volume.f_flag.contains(StatVfsMountFlags::RDONLY))
    }

    fn permitting(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        Some(Arc::new(RealDisk { permissions }))
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        Some(rustix::fs::stat(path).ok()?.st_mode & 0o7777)
    }

    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.list(dir)?.into_iter().try_fold(0, |all, entry| {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                return Ok(all + self.disk_bytes(&path)?);
            }
            let blocks = u64::try_from(rustix::fs::lstat(&path)?.st_blocks).unwrap_or(0);
            Ok(all + blocks * super::SECTOR)
        })
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

    fn cpu_time(&self) -> Option<Duration> {
        Some(clock::cpu_time())
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

/// Opens what is there; a file that is created is its owner's alone.
pub(super) fn open_fd(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    open_fd_mode(path, flags, Permissions::OWNER.files())
}

/// As [`open_fd`]; a file that is created has the mode `mode`, less the umask.
pub(super) fn open_fd_mode(path: &Path, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
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
    opened_len: u64,
    /// It was as long when it was opened, and we have not made it shorter since.
    least_len: AtomicU64,
    is_writable: bool,
    mapping: OnceLock<Mapping>,
    /// For direct writes, from the first one on. None where there are none.
    direct: OnceLock<Option<OwnedFd>>,
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

    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (pages, rest) = bytes.split_at(bytes.len() - bytes.len() % PAGE);
        let is_aligned = offset.is_multiple_of(PAGE as u64) && pages.as_ptr().addr().is_multiple_of(PAGE);
        let Some(fd) = self.direct().filter(|_| is_aligned) else { return self.write_at(offset, bytes) };
        match write_whole(offset, pages, |bytes, at| rustix::io::pwrite(fd, bytes, at)) {
            Err(refusal) if refusal.kind() == io::ErrorKind::InvalidInput => self.write_at(offset, bytes), // larger blocks
            answer => answer.and_then(|()| self.write_at(offset + pages.len() as u64, rest)),
        }
    }

    fn len(&self) -> io::Result<u64> {
        let len = rustix::fs::fstat(&self.fd)?.st_size;
        u64::try_from(len).map_err(io::Error::other)
    }

    fn opened_len(&self) -> io::Result<u64> {
        Ok(self.opened_len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.least_len.fetch_min(len, Ordering::Relaxed);
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
            Err(Errno::OPNOTSUPP) => write_zeros(self, self.len()?, len),
            answer => Ok(answer?),
        }
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(repeat(|| rustix::fs::fallocate(&self.fd, flags, offset, len))?)
    }

    fn start_sync(&self) {
        // SAFETY: the descriptor is open as long as `self`, and the call touches no memory. Errors are the sync's to tell.
        unsafe { libc::sync_file_range(self.fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
    }

    fn forget(&self, offset: u64, len: u64) {
        if let Some(mapping) = self.mapping.get() {
            mapping.forget(offset, len);
        }
        // A refused hint costs time only.
        let _ = rustix::fs::fadvise(&self.fd, offset, NonZeroU64::new(len), rustix::fs::Advice::DontNeed);
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
        let is_long_enough =
            || self.least_len.load(Ordering::Relaxed) >= len || self.len().is_ok_and(|have| have >= len);
        if self.mapping.get().is_some() || len == 0 || !is_long_enough() {
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

    fn expect_scattered(&self) {
        if let Some(mapping) = self.mapping.get() {
            mapping.expect_scattered();
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        let Some(len) = NonZeroU64::new(len) else { return };
        // A hint that is refused costs time only.
        let _ = rustix::fs::fadvise(&self.fd, offset, Some(len), rustix::fs::Advice::WillNeed);
    }

    fn is_cached(&self, offset: u64) -> bool {
        let mut byte = [0];
        let into = &mut [io::IoSliceMut::new(&mut byte)];
        let read = rustix::io::preadv2(&self.fd, into, offset, ReadWriteFlags::NOWAIT);
        !matches!(read, Err(Errno::AGAIN))
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
        if mapping.can_populate(from, to) && write_zeros(self, from, to).is_ok() {
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
    /// The file once more, for direct writes.
    fn direct(&self) -> Option<&OwnedFd> {
        let again = || format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        let open = || open_fd(Path::new(&again()), OFlags::WRONLY | OFlags::DIRECT).ok();
        self.direct.get_or_init(|| self.is_writable.then(open).flatten()).as_ref()
    }

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
        write_synced(at, &last, |bytes, at| {
            rustix::io::pwritev2(&self.fd, &[io::IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)
        })
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

/// Writes `bytes` at `offset` by one call of `write`, which syncs: whatever comes of it, it is not called again (I1).
fn write_synced(
    offset: u64,
    bytes: &[u8],
    write: impl FnOnce(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    match write(bytes, offset)? == bytes.len() {
        true => Ok(()),
        false => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests;
