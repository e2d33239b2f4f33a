//! # Real disk: files on Unix systems
//!
//! [`RealDisk`] has the calls on names, with one system call per operation where possible.
//! `file` has the calls on the bytes of a file, and `transfer` the loops of reads and writes. The
//! pointers are in `mapping.rs`, the signal handler in `sigbus.rs`, the lock in `flock.rs`. Calls
//! that differ between the systems are in `linux.rs` and `bsd.rs` (macOS and FreeBSD).
//!
//! ## Costs
//!
//! System calls: `open` 2; `read_at`, `write_at`, `sync`, `advise_random` 1; `mapped`, `opened_len`
//! and a resident `append_at` 0; `map` 2 (3 if the file was shorter when it was opened); `sync_dir`
//! 3. Below the directory of a locked database, changes of names and opening for writing take one
//! more (`flock.rs`, I5).

mod file;
#[cfg(not(target_os = "linux"))]
#[path = "bsd.rs"]
mod system;
#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod system;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;
mod transfer;

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, Stat, StatVfsMountFlags};
use rustix::io::Errno;

pub(super) use self::file::file_of;
pub(super) use self::transfer::{retry_interrupted, write_whole};
use super::bounded::BoundedDisk;
use super::descriptors::{FileHandle, FileIdentity, OpenedFd};
use super::{
    DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, Permissions, Volume, cached_reads, flock, sigbus,
};
use crate::clock;

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
/// be mapped with `MAP_SYNC`. Always false on systems other than Linux.
///
/// # Errors
///
/// Returns the error of the system call if the temporary file cannot be created or extended.
pub fn maps_synchronously(dir: &Path) -> io::Result<bool> {
    #[cfg(target_os = "linux")]
    return Ok(super::mapping::is_synchronous(system::unnamed_page(dir)?.as_fd()));
    #[cfg(not(target_os = "linux"))]
    return rustix::fs::stat(dir).map(|_| false).map_err(io::Error::from);
}

/// Returns a quarter of the descriptors that the process may have, from [`super::MIN_OPEN_FILES`]
/// to 1,024.
#[must_use]
pub fn usual_open_files() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.and_then(|limit| u32::try_from(limit / 4).ok()).unwrap_or(u32::MAX);
    share.clamp(super::MIN_OPEN_FILES, 1024)
}

/// Returns an error if the caller must not wait for an opening, or if the file may be one of
/// another database.
pub(super) fn check_open(path: &Path) -> io::Result<()> {
    cached_reads::check_may_wait()?;
    flock::check_owned(path)
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
    let identity = identity_of(&seen);
    Ok(OpenedFd { fd: fd.into_raw_fd(), identity, len })
}

/// Closes a descriptor of [`open_file`], or another one that belongs to the caller alone.
pub(super) fn close(fd: RawFd) {
    // SAFETY:
    // * `fd` is open and belongs to the caller: the state of the handle assigns each close to one
    //   caller.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
}

/// Returns the device and the inode of a file.
#[allow(clippy::unnecessary_cast, clippy::cast_sign_loss, reason = "the types differ between systems")]
pub(super) fn identity_of(seen: &Stat) -> FileIdentity {
    FileIdentity { device: seen.st_dev as u64, inode: seen.st_ino as u64 }
}

/// Returns the blocks of a file, in units of 512 bytes.
#[allow(clippy::useless_conversion, reason = "the type differs between systems")]
pub(super) fn blocks_of(seen: &Stat) -> u64 {
    u64::try_from(seen.st_blocks).unwrap_or(0)
}

/// Returns the permission bits of a file.
#[allow(clippy::useless_conversion, reason = "the type differs between systems")]
pub(super) fn mode_of(seen: &Stat) -> u32 {
    u32::from(seen.st_mode) & 0o7777
}

/// Returns `bits` in the type of the system.
#[allow(clippy::unnecessary_cast, clippy::cast_possible_truncation, reason = "modes have 12 bits")]
pub(super) fn raw_mode(bits: u32) -> Mode {
    Mode::from_raw_mode((bits & 0o7777) as RawMode)
}

/// Makes the data and the length of a file durable, by one call.
pub(super) fn sync(fd: RawFd) -> io::Result<()> {
    // SAFETY:
    // * The caller has pinned `fd`, so it is open until the call returns.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    system::sync_data(fd)
}

impl Disk for RealDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        check_open(path)?;
        let opened = open_file(path, open_mode, self.permissions)?;
        Ok(file_of(path, open_mode, FileHandle::unbounded(&opened), opened.len))
    }

    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        Some(Arc::new(BoundedDisk::new(limit, *self)))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        flock::check_owned(dir)?;
        let fd = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = Vec::new();
        for found in Dir::read_from(&fd)? {
            let found = found?;
            let name = found.file_name();
            if name != c"." && name != c".." {
                let is_dir = is_dir(&fd, name, found.file_type())?;
                let name = name.to_string_lossy().into_owned();
                entries.push(DirEntry { name, is_dir });
            }
        }
        entries.sort();
        Ok(entries)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        flock::check_owned(dir)?;
        Ok(rustix::fs::mkdir(dir, raw_mode(self.permissions.directories()))?)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        flock::check_owned(path)?;
        rustix::fs::unlink(path)?;
        flock::note_removal(path);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        flock::check_owned(dir)?;
        Ok(rustix::fs::rmdir(dir)?)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        flock::check_owned(from)?;
        flock::check_owned(to)?;
        rustix::fs::rename(from, to)?;
        flock::note_rename(from, to);
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        flock::check_owned(to)?;
        Ok(rustix::fs::link(from, to)?)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let fd = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        system::sync_names(fd.as_fd())
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        flock::lock(path, share, self.permissions.files())
    }

    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        flock::lock_existing(path, share)
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
        Some(mode_of(&rustix::fs::stat(path).ok()?))
    }

    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.list(dir)?.into_iter().try_fold(0, |all, entry| {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                return Ok(all + self.disk_bytes(&path)?);
            }
            Ok(all + blocks_of(&rustix::fs::lstat(&path)?) * super::SECTOR)
        })
    }

    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        if !system::volume_sync_tells_errors() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Arc::new(RealVolume { dir: open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY)? }))
    }

    fn spread_dirs(&self, dir: &Path) {
        if let Ok(fd) = open_fd(dir, OFlags::RDONLY | OFlags::DIRECTORY) {
            system::spread_dirs(fd.as_fd());
        }
    }

    fn cpu_time(&self) -> Option<Duration> {
        Some(clock::cpu_time())
    }
}

#[derive(Debug)]
struct RealVolume {
    dir: OwnedFd,
}

impl Volume for RealVolume {
    fn sync(&self) -> io::Result<()> {
        system::sync_volume(self.dir.as_fd())
    }
}

/// Opens a file or directory. A created file is accessible to its owner only.
pub(super) fn open_fd(path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    open_fd_mode(path, flags, Permissions::OWNER.files())
}

/// Like [`open_fd`]. A created file gets the mode `mode`, less the umask.
pub(super) fn open_fd_mode(path: &Path, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
    let mode = raw_mode(mode);
    Ok(retry_interrupted(|| rustix::fs::open(path, flags | OFlags::CLOEXEC, mode))?)
}

/// Returns whether a directory entry is a directory, or a link to one.
fn is_dir(dir: &OwnedFd, name: &CStr, kind: FileType) -> io::Result<bool> {
    if !matches!(kind, FileType::Unknown | FileType::Symlink) {
        return Ok(kind == FileType::Directory);
    }
    match rustix::fs::statat(dir, name, AtFlags::empty()) {
        Ok(target) => Ok(FileType::from_raw_mode(target.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false), // A dangling link, or an entry that was just removed.
        Err(refusal) => Err(refusal.into()),
    }
}
