//! # Real disk: files on Linux
//!
//! [`RealDisk`] and its files, with one system call per operation where possible. The pointers are
//! in `mapping.rs`, the signal handler in `sigbus.rs`, the lock in `flock.rs`.
//!
//! ## Invariants
//!
//! 1. Transfers are complete: interrupted and short calls continue. A transfer without progress is
//!    an error, never a loop. A sync, or a write that syncs, is called once, even after EINTR.
//! 2. Bytes are stored through a mapping only if `write_at` wrote the range before (blocks exist)
//!    and the pages are populated (no fault). Otherwise they are written.
//! 3. Each call on a file pins its descriptor (`super::descriptors`). A write is recorded before
//!    its pin ends, so the descriptor stays open until a sync.
//! 4. No call extends a file beyond RLIMIT_FSIZE, since the signal would kill the process. The
//!    limit is queried once for each MiB of growth.
//!
//! ## Costs
//!
//! System calls: `open` 2; `read_at`, `write_at`, `sync`, `advise_random` 1; `mapped`, `opened_len`
//! and a resident `append_at` 0; `map` 2 (3 if the file was shorter when it was opened); `sync_dir`
//! 3.

use std::fmt;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags, StatVfsMountFlags};
use rustix::io::{Errno, ReadWriteFlags};

use super::bounded::BoundedDisk;
use super::descriptors::{DescriptorPin, FileHandle, FileIdentity, OpenedFd, OwnedHandle};
use super::mapping::{FileMapping, StoreOutcome};
use super::{
    DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, PAGE, Permissions, Volume, flock, sigbus,
    write_zeros,
};
use crate::clock;
use crate::error::Error;

/// Growth in bytes after which the limit of file sizes is queried again.
const LIMIT_CHECK_STEP: u64 = 1 << 20;

/// The file systems of the machine. Paths are those of the process.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk {
    /// Modes of the files and directories that it creates.
    pub(super) permissions: Permissions,
}

impl RealDisk {
    /// Returns the number of reads of mapped files that showed zeros after a SIGBUS, since the
    /// process started.
    #[must_use]
    pub fn mapped_read_faults() -> u64 {
        sigbus::faults()
    }
}

/// Returns whether files in `dir` are in persistent memory: whether an unnamed temporary file can
/// be mapped with `MAP_SYNC`.
///
/// # Errors
///
/// Returns the error of the system call if the temporary file cannot be created or extended.
pub fn maps_synchronously(dir: &Path) -> io::Result<bool> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let fd = rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::ftruncate(&fd, rustix::param::page_size() as u64)?;
    Ok(super::mapping::is_synchronous(fd.as_fd()))
}

/// Returns a quarter of the descriptors that the process may have, from [`super::MIN_OPEN_FILES`]
/// to 1,024.
#[must_use]
pub fn usual_open_files() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.and_then(|limit| u32::try_from(limit / 4).ok()).unwrap_or(u32::MAX);
    share.clamp(super::MIN_OPEN_FILES, 1024)
}

/// Opens a regular file. A created file gets the mode of `permissions`.
pub(super) fn open_file(path: &Path, open_mode: OpenMode, permissions: Permissions) -> io::Result<OpenedFd> {
    let flags = match open_mode {
        OpenMode::Read => OFlags::RDONLY,
        OpenMode::ReadWrite => OFlags::RDWR,
        OpenMode::Create => OFlags::RDWR | OFlags::CREATE | OFlags::EXCL,
    };
    // NONBLOCK: opening a named pipe must not wait. The flag has no effect on regular files.
    let fd = open_fd_mode(path, flags | OFlags::NONBLOCK, permissions.files())?;
    let seen = rustix::fs::fstat(&fd)?;
    if FileType::from_raw_mode(seen.st_mode) != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let len = u64::try_from(seen.st_size).map_err(io::Error::other)?;
    let identity = FileIdentity { device: seen.st_dev, inode: seen.st_ino };
    Ok(OpenedFd { fd: fd.into_raw_fd(), identity, len })
}

/// Closes a descriptor of [`open_file`], or another one that belongs to the caller alone.
pub(super) fn close(fd: RawFd) {
    // SAFETY:
    // * `fd` is open and belongs to the caller: the state of the handle assigns each close to one
    //   caller.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Calls `fdatasync` once.
pub(super) fn sync(fd: RawFd) -> io::Result<()> {
    // SAFETY:
    // * The caller has pinned `fd`, so it is open until the call returns.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    Ok(rustix::fs::fdatasync(fd)?)
}

/// Returns an open file as a [`File`].
pub(super) fn file_of(
    path: &Path,
    open_mode: OpenMode,
    handle: OwnedHandle,
    opened_len: u64,
) -> Arc<dyn File> {
    Arc::new(RealFile {
        handle,
        path: path.to_path_buf(),
        opened_len,
        least_len: AtomicU64::new(opened_len),
        allowed_len: AtomicU64::new(0),
        is_writable: open_mode != OpenMode::Read,
        mapping: OnceLock::new(),
    })
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let opened = open_file(path, open_mode, self.permissions)?;
        Ok(file_of(path, open_mode, FileHandle::unbounded(&opened), opened.len))
    }

    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        Some(Arc::new(BoundedDisk::new(limit, *self)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let fd = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for found in Dir::read_from(&fd)? {
            let found = found?;
            let name = found.file_name().to_str();
            let name = name.map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))?;
            if name != "." && name != ".." {
                let is_dir = is_dir(&fd, name, found.file_type())?;
                let name = name.to_owned();
                entries.push(DirEntry { name, is_dir });
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

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
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

    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
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

    fn spread_dirs(&self, dir: &Path) {
        // Equivalent to `chattr +T`. Other file systems than ext4 refuse it, and do not need it.
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

/// Returns whether `syncfs` reports failed writes: Linux 5.8 and later.
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

/// Opens a file or directory. A created file is accessible to its owner only.
pub(super) fn open_fd(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    open_fd_mode(path, flags, Permissions::OWNER.files())
}

/// Like [`open_fd`]. A created file gets the mode `mode`, less the umask.
pub(super) fn open_fd_mode(path: &Path, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let mode = Mode::from_raw_mode(mode);
    Ok(retry_interrupted(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode))?)
}

/// Repeats `call` while it is interrupted.
pub(super) fn retry_interrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

/// Returns whether a directory entry is a directory, or a link to one.
fn is_dir(dir: &OwnedFd, name: &str, kind: FileType) -> io::Result<bool> {
    if !matches!(kind, FileType::Unknown | FileType::Symlink) {
        return Ok(kind == FileType::Directory);
    }
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Ok(target) => Ok(FileType::from_raw_mode(target.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false), // A dangling link, or an entry that was just removed.
        Err(refusal) => Err(refusal.into()),
    }
}

/// An open file.
struct RealFile {
    handle: OwnedHandle,
    path: PathBuf,
    opened_len: u64,
    /// Lower bound of the length: the length when the file was opened, reduced by each later
    /// truncation.
    least_len: AtomicU64,
    /// Length that the limit of file sizes is known to allow.
    allowed_len: AtomicU64,
    is_writable: bool,
    mapping: OnceLock<FileMapping>,
}

impl fmt::Debug for RealFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RealFile({})", self.path.display())
    }
}

impl File for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let pin = match self.handle.pin() {
            Ok(pin) => pin,
            // An unlinked file that is mapped completely has no descriptor any more.
            Err(gone) => return if self.load(offset, buf) { Ok(()) } else { Err(gone) },
        };
        read_whole(offset, buf, |bytes, at| rustix::io::pread(fd_of(&pin), bytes, at))
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_change(offset + bytes.len() as u64, |pin| {
            write_whole(offset, bytes, |bytes, at| rustix::io::pwrite(fd_of(pin), bytes, at))
        })
    }

    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (pages, rest) = bytes.split_at(bytes.len() - bytes.len() % PAGE);
        let is_aligned = offset.is_multiple_of(PAGE as u64) && pages.as_ptr().addr().is_multiple_of(PAGE);
        if !is_aligned || !self.is_writable {
            return self.write_at(offset, bytes);
        }
        let end = offset + pages.len() as u64;
        let written = self.write_change(end, |pin| {
            let Some(fd) = pin.direct(open_direct) else { return Err(io::ErrorKind::InvalidInput.into()) };
            // SAFETY:
            // * The pin keeps both descriptors of the handle open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            write_whole(offset, pages, |bytes, at| rustix::io::pwrite(fd, bytes, at))
        });
        match written {
            // The device has larger blocks.
            Err(refusal) if refusal.kind() == io::ErrorKind::InvalidInput => self.write_at(offset, bytes),
            Ok(()) if rest.is_empty() => Ok(()),
            answer => answer.and_then(|()| self.write_at(end, rest)),
        }
    }

    fn len(&self) -> io::Result<u64> {
        let pin = match (self.handle.pin(), self.mapping.get()) {
            (Ok(pin), _) => pin,
            // No descriptor, see `read_at`.
            (Err(_), Some(mapping)) if self.handle.is_mapped() => return Ok(mapping.len()),
            (Err(gone), _) => return Err(gone),
        };
        let len = rustix::fs::fstat(fd_of(&pin))?.st_size;
        u64::try_from(len).map_err(io::Error::other)
    }

    fn opened_len(&self) -> io::Result<u64> {
        Ok(self.opened_len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.least_len.fetch_min(len, Ordering::Relaxed);
        if self.allowed_len.load(Ordering::Relaxed) < len && self.len()? < len {
            self.check_file_limit(len)?;
        }
        let pin = self.handle.pin()?;
        self.note_len(len);
        let answer = retry_interrupted(|| rustix::fs::ftruncate(fd_of(&pin), len));
        self.handle.note_write(0);
        Ok(answer?)
    }

    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        let blocks = rustix::fs::fstat(fd_of(&self.handle.pin()?))?.st_blocks;
        Ok(u64::try_from(blocks).is_ok_and(|blocks| blocks >= len.div_ceil(512)))
    }

    /// Allocates by `fallocate`. If the file system does not support it, fills the file with zeros
    /// up to `len`. That covers new bytes, but not existing holes.
    fn allocate(&self, len: u64) -> io::Result<()> {
        if len == 0 {
            return Ok(());
        }
        if self.allowed_len.load(Ordering::Relaxed) < len && self.len()? < len {
            self.check_file_limit(len)?;
        }
        let pin = self.handle.pin()?;
        self.note_len(len);
        let answer =
            retry_interrupted(|| rustix::fs::fallocate(fd_of(&pin), FallocateFlags::empty(), 0, len));
        self.handle.note_write(0);
        match answer {
            Err(Errno::OPNOTSUPP) => write_zeros(self, self.len()?, len),
            answer => Ok(answer?),
        }
    }

    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let pin = self.handle.pin()?;
        let answer = retry_interrupted(|| rustix::fs::fallocate(fd_of(&pin), flags, offset, len));
        self.handle.note_write(0);
        Ok(answer?)
    }

    fn start_sync(&self) {
        // Without a descriptor no data is unsynced.
        if let Some(pin) = self.handle.try_pin() {
            // SAFETY: the descriptor is pinned, and the call accesses no memory. The sync reports
            // errors.
            unsafe { libc::sync_file_range(pin.fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
        }
    }

    fn drop_cached(&self, offset: u64, len: u64) {
        if let Some(mapping) = self.mapping.get() {
            mapping.unmap_pages(offset, len);
        }
        if let Ok(pin) = self.handle.pin() {
            // A refused hint only costs time.
            let advice = rustix::fs::Advice::DontNeed;
            let _ = rustix::fs::fadvise(fd_of(&pin), offset, NonZeroU64::new(len), advice);
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_by(FileHandle::note_sync, |pin| {
            if let Some(mapping) = self.mapping.get() {
                mapping.end_residency();
            }
            sync(pin.fd())
        })
    }

    fn sync_to(&self, end: u64) -> io::Result<()> {
        match self.mapping.get().filter(|mapping| mapping.was_populated()) {
            Some(mapping) => self.sync_by(
                |handle, marks| handle.note_sync_to(end, marks),
                |pin| mapping.sync_below(end, |from| sync_range(fd_of(pin), from, end)),
            ),
            None => self.sync(),
        }
    }

    fn map(&self, len: u64) {
        let is_long_enough =
            || self.least_len.load(Ordering::Relaxed) >= len || self.len().is_ok_and(|have| have >= len);
        if self.mapping.get().is_some() || len == 0 || !is_long_enough() {
            return;
        }
        let Ok(pin) = self.handle.pin() else { return };
        if let Ok(mapping) = FileMapping::new(fd_of(&pin), len, self.is_writable) {
            // If another thread stored its mapping first, that one is used and ours is dropped.
            let _ = self.mapping.set(mapping);
            let is_whole = self.len().is_ok_and(|have| have <= len);
            self.handle
                .set_mapped(is_whole && self.mapping.get().is_some_and(|mapping| mapping.len() == len));
        }
    }

    #[inline]
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // * The caller of `mapped` promises that the range is not written while the slice lives.
        unsafe { self.mapping.get()?.slice(offset, len) }
    }

    #[inline]
    fn prefetch(&self, offset: u64, lines: usize) {
        if let Some(mapping) = self.mapping.get() {
            mapping.prefetch(offset, lines);
        }
    }

    fn advise_random(&self) {
        if let Some(mapping) = self.mapping.get() {
            mapping.expect_scattered();
        }
    }

    fn will_need(&self, offset: u64, len: u64) {
        let Some(count) = NonZeroU64::new(len) else { return };
        match (self.handle.try_pin(), self.mapping.get()) {
            (None, Some(mapping)) => mapping.will_need(offset, len),
            (pin, _) => {
                let Some(pin) = pin.or_else(|| self.handle.pin().ok()) else { return };
                // A refused hint only costs time.
                let _ = rustix::fs::fadvise(fd_of(&pin), offset, Some(count), rustix::fs::Advice::WillNeed);
            }
        }
    }

    fn is_cached(&self, offset: u64) -> bool {
        let pin = match (self.handle.try_pin(), self.mapping.get()) {
            (None, Some(mapping)) => return mapping.is_cached(offset),
            (None, None) => self.handle.pin().ok(),
            (pin, _) => pin,
        };
        let Some(pin) = pin else { return true };
        let mut byte = [0];
        let into = &mut [io::IoSliceMut::new(&mut byte)];
        let read = rustix::io::preadv2(fd_of(&pin), into, offset, ReadWriteFlags::NOWAIT);
        !matches!(read, Err(Errno::AGAIN))
    }

    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mapping = self.mapping.get();
        let stored = mapping.map_or(StoreOutcome::NotResident, |mapping| {
            // SAFETY:
            // * The caller of `append_at` gives each thread bytes of its own, which no thread reads
            //   yet, and calls `end_stores` after all calls returned.
            unsafe { mapping.store(offset, bytes, &self.handle) }
        });
        match stored {
            StoreOutcome::Stored => Ok(()),
            StoreOutcome::NotResident => self.write_at(offset, bytes),
            StoreOutcome::Lost => Err(Errno::IO.into()),
        }
    }

    fn begin_stores(&self) {
        // Without a descriptor, appends use writes, which open one.
        if self.mapping.get().is_some()
            && let Ok(_pin) = self.handle.pin()
        {
            self.handle.begin_stores();
        }
    }

    fn end_stores(&self, end: u64) {
        self.handle.end_stores(end);
    }

    fn make_resident(&self, from: u64, to: u64) {
        let Some(mapping) = self.mapping.get() else {
            return;
        };
        let ends = mapping.residency_epoch();
        // The zeros are not data: they lie behind `end` of a sync, which may leave them unsynced.
        if mapping.can_populate(from, to)
            && self.check_file_limit(to).is_ok()
            && self.write_unmarked_zeros(from, to)
        {
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
    /// Makes a change of the bytes below `end` and records it as unsynced, even if it failed
    /// half-way.
    fn write_change(
        &self,
        end: u64,
        call: impl FnOnce(&DescriptorPin<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_file_limit(end)?;
        let pin = self.handle.pin()?;
        self.note_len(end);
        let answer = call(&pin);
        self.handle.note_write(end);
        answer
    }

    /// Makes the file durable by `call`; `done` records the covered writes.
    fn sync_by(
        &self,
        done: impl FnOnce(&FileHandle, super::descriptors::SyncMarks),
        call: impl FnOnce(&DescriptorPin<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        // A descriptor is closed only after everything written through it is durable (descriptors
        // I1). Without one there is nothing to sync. The file may have lost its name, so it could
        // not be opened again.
        let Some(pin) = self.handle.try_pin() else { return self.handle.check_syncs() };
        let marks = self.handle.marks();
        let answer = self.handle.check_syncs().and_then(|()| call(&pin));
        match answer {
            Ok(()) => done(&self.handle, marks),
            Err(_) => self.handle.note_failed_sync(),
        }
        answer
    }

    /// Checks that the process may write a file of `end` bytes (I4).
    fn check_file_limit(&self, end: u64) -> io::Result<()> {
        if end <= self.allowed_len.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        let limit = limit.unwrap_or(u64::MAX);
        if end > limit {
            let path = self.path.clone();
            return Err(io::Error::other(Error::FileSizeLimit { path, size: end, limit }));
        }
        self.allowed_len.fetch_max(limit.min(end.next_multiple_of(LIMIT_CHECK_STEP)), Ordering::Relaxed);
        Ok(())
    }

    /// Records that the file may become `len` bytes long. The mapping may then not cover all of it.
    fn note_len(&self, len: u64) {
        if self.mapping.get().is_some_and(|mapping| mapping.len() < len) {
            self.handle.set_mapped(false);
        }
    }

    /// Reads from a mapping of the complete file. Returns false if there is none.
    fn load(&self, offset: u64, buf: &mut [u8]) -> bool {
        self.handle.is_mapped() && self.mapping.get().is_some_and(|mapping| mapping.read(offset, buf))
    }

    /// Writes zeros without marking the file as dirty, since they need no sync. Returns false on
    /// failure.
    fn write_unmarked_zeros(&self, from: u64, to: u64) -> bool {
        let Ok(pin) = self.handle.pin() else { return false };
        super::for_each_zero_chunk(from, to, |at, zeros| {
            write_whole(at, zeros, |bytes, at| rustix::io::pwrite(fd_of(&pin), bytes, at))
        })
        .is_ok()
    }
}

/// Returns the descriptor of a pin.
fn fd_of<'p>(pin: &'p DescriptorPin<'_>) -> BorrowedFd<'p> {
    // SAFETY:
    // * The descriptor is open as long as the pin lives (descriptors I1).
    unsafe { BorrowedFd::borrow_raw(pin.fd()) }
}

/// Opens the file of `fd` again, for direct writes.
fn open_direct(fd: RawFd) -> Option<RawFd> {
    let again = format!("/proc/self/fd/{fd}");
    let opened = open_fd(Path::new(&again), OFlags::WRONLY | OFlags::DIRECT);
    opened.ok().map(IntoRawFd::into_raw_fd)
}

/// Makes `[from, end)` durable and leaves dirty pages behind `end` alone. Writes the range back and
/// waits for it. Then rewrites its last bytes with a synced write, which flushes the device and
/// commits the metadata of the file as fdatasync would.
fn sync_range(fd: BorrowedFd<'_>, from: u64, end: u64) -> io::Result<()> {
    let signed = |number: u64| i64::try_from(number).map_err(io::Error::other);
    let (start, count) = (signed(from)?, signed(end.saturating_sub(from))?);
    let flags =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY:
    // * A system call on an open descriptor; no memory is passed.
    if unsafe { libc::sync_file_range(fd.as_raw_fd(), start, count, flags) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut last = [0; 8];
    let at = end.saturating_sub(last.len() as u64);
    read_whole(at, &mut last, |bytes, at| rustix::io::pread(fd, bytes, at))?;
    write_synced(at, &last, |bytes, at| {
        rustix::io::pwritev2(fd, &[io::IoSlice::new(bytes)], at, ReadWriteFlags::DSYNC)
    })
}

/// Fills `buf` from `offset` with as many calls of `read` as needed.
fn read_whole(
    mut offset: u64,
    mut buf: &mut [u8],
    mut read: impl FnMut(&mut [u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !buf.is_empty() {
        let count = retry_interrupted(|| read(buf, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buf = &mut buf[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes `bytes` at `offset` with as many calls of `write` as needed.
pub(super) fn write_whole(
    mut offset: u64,
    mut bytes: &[u8],
    mut write: impl FnMut(&[u8], u64) -> rustix::io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = retry_interrupted(|| write(bytes, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes `bytes` at `offset` with a single call of `write`, which syncs. It is never repeated
/// (I1).
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
