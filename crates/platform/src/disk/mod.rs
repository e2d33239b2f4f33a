//! # Disk: the only access to files of the operating system
//!
//! [`Disk`] has the calls on names, [`File`] those on bytes. [`real::RealDisk`] uses the system:
//! Linux, macOS and FreeBSD (`real`), or Windows (`windows`).
//! `SimDisk` (crate `sheaf-sim`) separates page cache and device, so that tests can cut the power,
//! kill the process, fail syncs and fill the disk. No other module may use `std::fs`.
//!
//! ## Invariants
//!
//! 1. `read_at` and `write_at` transfer all bytes or fail. The implementation handles short
//!    transfers and EINTR.
//! 2. Only `sync` makes the data and the length of a file durable, and only `sync_dir` the names in
//!    a directory. A failed sync is final: the caller poisons itself and never syncs that file
//!    again.
//! 3. A file with a mapping never shrinks below it. Its blocks are written before the mapping is
//!    used for stores, so that a store cannot fault for lack of space.
//! 4. Offsets and lengths are in bytes.
//!
//! ## Threads
//!
//! All types are `Send + Sync`. The caller must exclude overlapping writes.

#[cfg(unix)]
mod bounded;
pub mod cached_reads;
pub mod descriptors;
pub mod exported;
#[cfg(unix)]
mod flock;
pub mod lock_holder;
#[cfg(unix)]
mod mapping;
#[cfg(unix)]
mod page_advice;
mod permissions;
pub mod persistent;
#[cfg(unix)]
mod persistent_mapping;
#[cfg(unix)]
pub mod real;
#[cfg(windows)]
#[path = "windows/mod.rs"]
pub mod real;
#[cfg(test)]
pub(crate) mod scratch;
#[cfg(unix)]
mod sigbus;
mod write_back;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use persistent::{PersistenceMode, PersistentMemory};

pub use permissions::Permissions;

use crate::error::{Error, IoContext, IoOp, Result};

/// Smallest unit that a device writes atomically: after a torn write each sector is old or new.
pub const SECTOR: u64 = 512;
/// [`SECTOR`] as a `usize`.
pub const SECTOR_BYTES: usize = 512;

/// Access mode of an opened file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A new file, for reading and writing. An existing one is an error.
    Create,
}

/// Entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The last component of the path. If it is not UTF-8, the entry is foreign: no file of a
    /// database has such a name. Its bad bytes are U+FFFD, so the name does not open it.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_dir: bool,
}

/// Mode of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// For readers, which share the lock.
    Shared,
    /// For one writer.
    Exclusive,
}

/// Result of a request for the lock.
pub enum LockOutcome {
    /// The lock is held until the guard is dropped.
    Acquired(Box<dyn fmt::Debug + Send + Sync>),
    /// Another process has the lock. The process id of an exclusive owner, if it is known.
    Busy(Option<u32>),
}

/// Statistics of the file descriptors of a database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescriptorStats {
    /// Most descriptors for files. Files in use beyond the limit, and deleted files that are still
    /// read, may add to them.
    pub limit: u32,
    /// Present number of descriptors.
    pub in_use: u32,
    /// Number of times that a file was opened again.
    pub reopened: u64,
}

impl DescriptorStats {
    /// Returns all fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn to_words(self) -> [u64; 3] {
        let DescriptorStats { limit, in_use, reopened } = self;
        [u64::from(limit), u64::from(in_use), reopened]
    }

    /// Returns the statistics with these fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn from_words([limit, in_use, reopened]: [u64; 3]) -> DescriptorStats {
        let narrow = |word| u32::try_from(word).unwrap_or(u32::MAX);
        DescriptorStats { limit: narrow(limit), in_use: narrow(in_use), reopened }
    }
}

/// Smallest limit of descriptors that [`Disk::with_descriptor_limit`] accepts. Smaller limits are
/// raised to it.
/// With fewer, files would be opened and closed all the time.
pub const MIN_OPEN_FILES: u32 = 16;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileIdentity {
    /// Number of the device.
    pub device: u64,
    /// Number of the inode on the device.
    pub inode: u64,
}

/// Operations on names: files, directories, the lock.
///
/// Unless stated otherwise, a method returns the error of the system call that failed.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens the file at `path`. The name of a created file is durable after `sync_dir` of its
    /// directory.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing, and `AlreadyExists` if [`OpenMode::Create`] finds one.
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// Returns the entries of a directory, sorted by name.
    ///
    /// # Errors
    ///
    /// `InvalidData` if a name is not UTF-8.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Creates one directory. Its parent must exist.
    ///
    /// # Errors
    ///
    /// `AlreadyExists` if the name exists, and `NotFound` if the parent is missing.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes the name of a file. Open files stay readable.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// `NotFound` if the directory is missing, and `DirectoryNotEmpty` if it has entries.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames atomically. An existing target is replaced.
    ///
    /// # Errors
    ///
    /// `NotFound` if `from` is missing.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives the file at `from` a second name, which must be new. Either name may be removed
    /// afterwards.
    ///
    /// # Errors
    ///
    /// `NotFound` if `from` is missing, and `AlreadyExists` if `to` exists.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    ///
    /// # Errors
    ///
    /// An error of the sync is final (I2).
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock of the file at `path` and never waits. An exclusive request creates the file
    /// if needed and stores the process id of the owner in it.
    ///
    /// # Errors
    ///
    /// `NotFound` for a shared request if the file is missing.
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome>;
    /// Takes the lock of a file that has other content, and never waits. Does not change the file.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing.
    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome>;
    /// Returns the number of bytes that a writer may still use on the file system of `path`.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn free_space(&self, path: &Path) -> io::Result<u64>;
    /// Returns the number of files that can still be created on the file system of `path`, and the
    /// maximum number. `None` if the file system has no such limit.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let _ = path;
        Ok(None)
    }

    /// Returns whether the file system of `path` is mounted read-only. False if that is unknown.
    fn is_read_only(&self, path: &Path) -> bool {
        let _ = path;
        false
    }

    /// Returns this disk with other modes for the files and directories that it creates. `None` if
    /// the disk has no modes.
    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let _ = permissions;
        None
    }

    /// Returns the permission bits of the file or directory at `path`. `None` if it is missing, or
    /// if the disk has no modes.
    fn mode(&self, path: &Path) -> Option<u32> {
        let _ = path;
        None
    }

    /// Returns the number of bytes that the files below `dir` occupy: their blocks if the disk
    /// counts them, else their lengths.
    ///
    /// # Errors
    ///
    /// `NotFound` if `dir` is missing, or if an entry is removed during the call.
    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.list(dir)?.into_iter().try_fold(0, |all, entry| {
            let path = dir.join(&entry.name);
            let bytes = if entry.is_dir {
                self.disk_bytes(&path)?
            } else {
                self.open(&path, OpenMode::Read)?.len()?
            };
            Ok(all + bytes)
        })
    }

    /// Returns the path by which other processes find the file at `path`. A file of an exported
    /// state may have another real name.
    fn real_path(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// Returns the volume of `dir`, which makes all its files durable at once. The sync of the
    /// volume reports errors of writes since this call.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the disk cannot sync a volume, or cannot report errors of its writes.
    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        let _ = dir;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Hint to place directories that are created in `dir` from now on far from each other. (To
    /// create a file, ext4 visits every recently freed inode of the block group of the directory.
    /// After many removals that is slow, unless the new directory is in another group.)
    fn spread_dirs(&self, dir: &Path) {
        let _ = dir;
    }
    /// Returns this disk with a limit of about `limit` descriptors for its files, at least
    /// [`MIN_OPEN_FILES`]. Descriptors of idle files are closed, and opened again when they are
    /// used. `None` if a limit has no meaning.
    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let _ = limit;
        None
    }
    /// Returns statistics of the descriptors, if they are limited.
    fn descriptors(&self) -> Option<DescriptorStats> {
        None
    }
    /// Returns the processor time of the calling thread, for comparing the cost of operations.
    /// `None` if times of this disk are not comparable.
    fn cpu_time(&self) -> Option<Duration> {
        None
    }
}

/// A file system.
pub trait Volume: fmt::Debug + Send + Sync {
    /// Makes all files of the volume, including writes through other handles, and all names
    /// durable.
    ///
    /// # Errors
    ///
    /// An error is final, as that of [`File::sync`].
    fn sync(&self) -> io::Result<()>;
}

/// Fills `bytes` from `offset`. Returns `Some(len)` if the file is too short, where `len` is its
/// length; the caller decides whether that is damage.
///
/// # Errors
///
/// Returns the error of a failed read. `UnexpectedEof` is returned only if the file is long enough.
pub fn read_up_to_end(file: &dyn File, offset: u64, bytes: &mut [u8]) -> io::Result<Option<u64>> {
    match file.read_at(offset, bytes) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            let len = file.len()?;
            if len < offset + bytes.len() as u64 { Ok(Some(len)) } else { Err(e) }
        }
        other => other.map(|()| None),
    }
}

/// Zeros for one write call.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// Writes zeros to `[from, to)` in chunks of fixed size, without allocating memory.
///
/// # Errors
///
/// Returns the error of the first write that fails.
pub fn write_zeros(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    for_each_zero_chunk(from, to, |at, zeros| file.write_at(at, zeros))
}

/// Calls `write` with chunks of zeros that fill `[from, to)`.
fn for_each_zero_chunk(
    from: u64,
    to: u64,
    mut write: impl FnMut(u64, &[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let count = usize::try_from(to - at).map_or(ZEROS.len(), |left| left.min(ZEROS.len()));
        write(at, &ZEROS[..count])?;
        at += count as u64;
    }
    Ok(())
}

/// Marks the length of `file` as changed, so that the next sync writes it. A failed sync may have
/// dropped a length that the kernel still shows. Allocates no blocks and leaves the length as it
/// is.
///
/// # Errors
///
/// Returns the error of the system call that failed.
pub fn mark_len_dirty(file: &dyn File) -> io::Result<()> {
    set_len_dirty(file, file.len()?)
}

/// Sets the length of `file` and marks it as changed, even if it is the same. See
/// [`mark_len_dirty`].
///
/// # Errors
///
/// Returns the error of the system call that failed.
pub fn set_len_dirty(file: &dyn File, len: u64) -> io::Result<()> {
    file.set_len(len.next_multiple_of(SECTOR) + SECTOR)?;
    file.set_len(len)
}

/// Creates the directory and its missing parents, durably. Existing ancestors may not be durable,
/// because a process may have been killed while it created them. Therefore all ancestors are
/// synced, up to the first one that the process may not sync.
///
/// # Errors
///
/// Returns [`Error::Io`] or [`Error::NoSpace`] if a directory cannot be created, or if its parent
/// cannot be synced.
pub fn create_dirs(disk: &dyn Disk, path: &Path) -> Result<()> {
    // Another process may create it at the same time.
    let create = || match disk.create_dir(path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    };
    match create() {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            create_dirs(disk, parent.ok_or_else(|| Error::io(IoOp::Create, path, e))?)?;
            create().during(IoOp::Create, path)?;
        }
        done => done.during(IoOp::Create, path)?,
    }
    let mut above =
        path.ancestors().skip(1).map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    if let Some(parent) = above.next()
        && let Err(e) = disk.sync_dir(parent)
    {
        // A failed sync may have dropped the name: the next attempt creates it again.
        let _ = disk.remove_dir(path);
        return Err(Error::io(IoOp::SyncDirectory, parent, e));
    }
    for ancestor in above {
        if disk.sync_dir(ancestor).is_err() {
            break; // a directory that the process cannot sync is not one that it created
        }
    }
    Ok(())
}

/// Removes a directory and everything in it. A missing directory is not an error.
///
/// # Errors
///
/// Returns [`Error::Io`] if a directory cannot be listed, or if an entry cannot be removed.
pub fn remove_tree(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let entries = match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.during(IoOp::List, dir)?,
    };
    for entry in entries {
        let path = dir.join(&entry.name);
        match entry.is_dir {
            true => remove_tree(disk, &path)?,
            false => disk.remove(&path).during(IoOp::Remove, &path)?,
        }
    }
    disk.remove_dir(dir).during(IoOp::Remove, dir)
}

/// Returns whether this process has a database in `dir` open whose directory was moved or replaced.
/// The real disk then refuses to open files and to change names below `dir`.
#[must_use]
pub fn is_moved(dir: &Path) -> bool {
    #[cfg(unix)]
    let is_moved = flock::is_moved(dir);
    #[cfg(not(unix))]
    let is_moved = {
        let _ = dir;
        false // Windows does not move the directory of an open file
    };
    is_moved
}

/// Alignment of a direct write in bytes. It applies to the length, the address in memory and the
/// offset in the file.
pub const PAGE: usize = 4096;

/// Operations on the bytes of an open file.
///
/// Unless stated otherwise, a method returns the error of the system call that failed.
pub trait File: fmt::Debug + Send + Sync {
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    ///
    /// `UnexpectedEof` if the file is too short. In the cached mode ([`cached_reads`]) an
    /// implementation that reads from a device must [refuse](cached_reads::refuse) the read if
    /// bytes are not in memory.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset` and extends the file if needed. On return the bytes are in
    /// the kernel.
    ///
    /// # Errors
    ///
    /// `StorageFull` if there is no space. A part of the bytes may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Like [`File::write_at`], but whole pages ([`PAGE`]) bypass the page cache where possible.
    /// Meant for data that is not read soon, in a file without a mapping. The data is not durable
    /// on return.
    ///
    /// # Errors
    ///
    /// Like [`File::write_at`].
    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }
    /// Returns the length in bytes.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn len(&self) -> io::Result<u64>;
    /// Returns the length in bytes at the time of opening, or the present one. If the opening has
    /// read the length, no system call is made.
    ///
    /// # Errors
    ///
    /// Like [`File::len`].
    fn opened_len(&self) -> io::Result<u64> {
        self.len()
    }
    /// Returns whether the length is zero.
    ///
    /// # Errors
    ///
    /// Like [`File::len`].
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Truncates the file, or extends it with zeros without allocating blocks.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Allocates blocks for `[0, len)` and extends the file to at least that length. New bytes read
    /// as zeros. Later writes in that range cannot run out of space.
    ///
    /// # Errors
    ///
    /// `StorageFull` if there is no space.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Returns whether the file already has blocks for `[0, len)`, so that allocating them needs no
    /// space. The blocks of the file must be contiguous from its start. False if that is unknown.
    ///
    /// # Errors
    ///
    /// Returns the error of the system call.
    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }
    /// Frees the blocks of `[offset, offset + len)`, which must lie within the file. The range then
    /// reads as zeros, and the length does not change.
    ///
    /// # Errors
    ///
    /// `Unsupported` if the disk cannot free blocks of a file.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Hint that this file and others are about to be synced. Starts the write-back of the data, so
    /// that the files share the device time and the journal commits of the file system.
    fn start_sync(&self) {}
    /// Hint that `[offset, offset + len)` is not read again soon, or that the next read is to reach
    /// the device. Drops the range from the page cache.
    fn drop_cached(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Makes data and length durable.
    ///
    /// # Errors
    ///
    /// Any error is final (I2).
    fn sync(&self) -> io::Result<()>;

    /// Like [`File::sync`] for the bytes below `end`. All of them must be written, and the last
    /// eight must not be written during the call. Bytes that [`File::make_resident`] prepared
    /// behind `end` may stay unsynced, and stay resident.
    ///
    /// # Errors
    ///
    /// Any error is final (I2).
    fn sync_to(&self, end: u64) -> io::Result<()> {
        let _ = end;
        self.sync()
    }

    /// Returns the identity of the file: two open files with the same one are the same file. `None`
    /// if the disk has none.
    fn identity(&self) -> Option<FileIdentity> {
        None
    }
    /// Maps `[0, len)` for stores that become durable by explicit calls. The file may be shorter.
    /// Stores through the mapping are no writes of this file: [`File::sync`] need not cover them.
    ///
    /// # Errors
    ///
    /// `Unsupported`, or EOPNOTSUPP, if the disk or the file system has no such mappings.
    fn map_persistent(&self, len: u64, mode: PersistenceMode) -> io::Result<Arc<dyn PersistentMemory>> {
        let _ = (len, mode);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Maps `[0, len)` if the implementation can. The default does nothing. The file must be at
    /// least `len` bytes long and must not shrink below that afterwards.
    fn map(&self, len: u64) {
        let _ = len;
    }
    /// Returns the mapped bytes `[offset, offset + len)`, or `None` if they are not mapped; then
    /// the caller uses `read_at`. A sector that the device cannot read shows as zeros and never
    /// raises a signal.
    ///
    /// # Safety
    ///
    /// * The whole range was written before, and must not be written while the slice lives, except
    ///   with identical bytes.
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let _ = (offset, len);
        None
    }
    /// Prefetches `lines` cache lines from the mapped byte at `offset` on into the cache of the
    /// processor. A hint without effect on an unmapped file.
    fn prefetch(&self, offset: u64, lines: usize) {
        let _ = (offset, lines);
    }
    /// Hint that reads of the mapped bytes are random: the kernel must not read neighbours of a
    /// missing page.
    fn advise_random(&self) {}
    /// Hint that `[offset, offset + len)` will be read soon. Starts reading the missing parts with
    /// one call, in parallel, and does not wait.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Returns whether the byte at `offset` is in memory, so that a read would not wait for the
    /// device. True if that is unknown.
    fn is_cached(&self, offset: u64) -> bool {
        let _ = offset;
        true
    }
    /// Like [`File::write_at`] for the tail of a log. May store through the mapping if
    /// [`File::make_resident`] has prepared the range, between [`File::begin_stores`] and
    /// [`File::end_stores`]. Several threads may call it at once, each with bytes of its own that
    /// no thread reads before the call returns.
    ///
    /// # Errors
    ///
    /// Like [`File::write_at`]. An error after the mapping broke means that the bytes may be lost.
    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }
    /// Permits [`File::append_at`] to store through the mapping from now on. The descriptor stays
    /// open, and the file counts as dirty.
    fn begin_stores(&self) {}
    /// Undoes [`File::begin_stores`]. All calls of [`File::append_at`] must have returned. None of
    /// them may have written beyond `end`.
    fn end_stores(&self, end: u64) {
        let _ = end;
    }
    /// Prepares `[from, to)` for [`File::append_at`] through the mapping: writes zeros there and
    /// makes the pages resident. `from` must be the current end of the data, because the zeros
    /// overwrite the range. A hint: after a failure, appends use writes. `sync` ends the residency.
    fn make_resident(&self, from: u64, to: u64) {
        let _ = (from, to);
    }
    /// Returns whether an `append_at` of `[offset, offset + len)` would store through the mapping.
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        let _ = (offset, len);
        false
    }
}
