//! # Disk: the only door to the operating system
//!
//! A dozen calls on names ([`Disk`]) and a handful on bytes ([`File`]). [`real::RealDisk`] is
//! Linux; [`sim::SimDisk`] keeps page cache and platter apart, so that power cuts, killed
//! processes, failed syncs and full disks can be had at will. No other module may use `std::fs`.
//!
//! ## Invariants
//!
//! 1. `read_at` and `write_at` do all or fail: short transfers and EINTR are the implementation's.
//! 2. `sync` makes the file's data and length durable, `sync_dir` a directory's names; nothing
//!    else does. A failed sync is final: the caller poisons itself and never syncs that file again.
//! 3. A file with a mapping never shrinks below it, and its blocks are written before they are
//!    stored to through the mapping, so that a store cannot fault for want of space.
//! 4. Offsets and lengths are in bytes.
//!
//! ## Threads
//!
//! Everything is `Send + Sync`. Overlapping writes are the caller's to exclude.

mod bounded;
mod descriptors;
pub mod exported;
mod flock;
pub mod lock_holder;
mod mapping;
#[cfg(test)]
mod parity;
mod permissions;
pub mod real;
#[cfg(test)]
pub(crate) mod scratch;
mod sigbus;
pub mod sim;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use permissions::Permissions;

use crate::error::{Error, IoContext, Result};

/// Smallest unit a device writes whole: a torn write leaves each sector old or new.
pub const SECTOR: u64 = 512;
/// [`SECTOR`] as a length of memory.
pub const SECTOR_BYTES: usize = 512;

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Existing, for reading.
    Read,
    /// Existing, for reading and writing.
    ReadWrite,
    /// New (an existing one is an error), for reading and writing.
    Create,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirEntry {
    /// The last part of the path.
    pub name: String,
    /// Whether it is a directory.
    pub is_dir: bool,
}

/// Whether others may hold the lock too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockMode {
    /// Readers together.
    Shared,
    /// One writer alone.
    Exclusive,
}

/// The answer to a request for the lock.
pub enum LockOutcome {
    /// Held until the guard is dropped.
    Acquired(Box<dyn fmt::Debug + Send + Sync>),
    /// Somebody else has it; the process id of an exclusive owner where known.
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

/// The least bound on descriptors that [`Disk::with_descriptor_limit`] takes; a smaller one means
/// this.
pub const MIN_OPEN_FILES: u32 = descriptors::MIN_DESCRIPTORS;

/// Names: files, directories, the lock.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Opens the file at `path`. The name of a created file is durable after `sync_dir` of its
    /// directory.
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>>;
    /// The entries of a directory, sorted by name. Non-UTF-8 names are an error.
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>>;
    /// Makes one directory; its parent must exist, it must not (`AlreadyExists`).
    fn create_dir(&self, dir: &Path) -> io::Result<()>;
    /// Removes a file's name. Open files stay readable.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames atomically; an existing target is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives the file at `from` a second name, which must be new. Either may go afterwards.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Makes the names in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock of the file at `path`, creating the file if need be (a shared lock on a
    /// missing file is `NotFound`). An exclusive owner's process id is left in the file. Never
    /// waits.
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome>;
    /// Bytes a writer may still use on the file system of `path`.
    fn free_space(&self, path: &Path) -> io::Result<u64>;
    /// How many files may still be made on the file system of `path`, and how many there can be.
    /// None where nothing but room limits them.
    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        let _ = path;
        Ok(None)
    }

    /// Returns whether nothing can be written to the file system of `path`. False where nobody
    /// knows.
    fn is_read_only(&self, path: &Path) -> bool {
        let _ = path;
        false
    }

    /// Returns this disk, for files and directories of the modes `permissions` from now on. None
    /// where there are no modes.
    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let _ = permissions;
        None
    }

    /// Returns the permission bits of what is at `path`. None if nothing is there, or where there
    /// are no modes.
    fn mode(&self, path: &Path) -> Option<u32> {
        let _ = path;
        None
    }

    /// Bytes that the files below `dir` take: their blocks, where these are counted, or their
    /// lengths.
    ///
    /// # Errors
    ///
    /// `NotFound` if `dir` or something below it is not there, or went meanwhile.
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

    /// Where the file at `path` is for others: what is shown under one name may stand under
    /// another.
    fn real_path(&self, path: &Path) -> PathBuf {
        path.to_path_buf()
    }

    /// The volume that `dir` is on, to make everything on it durable at once. Errors of writes
    /// since this call show at its sync. `Unsupported` where that cannot be had, or not with its
    /// errors.
    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        let _ = dir;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// A hint: directories made in `dir` from now on are to lie far from each other. (ext4 looks at
    /// every inode of a directory's group that was freed a moment ago before it takes one: creating
    /// files is fifteen times slower after many were removed, but for directories that land
    /// elsewhere.)
    fn spread_dirs(&self, dir: &Path) {
        let _ = dir;
    }
    /// The same disk with at most about `limit` descriptors for its files, at least
    /// [`MIN_OPEN_FILES`]: those of idle files are closed, and opened again when they are used.
    /// None where a bound means nothing.
    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let _ = limit;
        None
    }
    /// The descriptors of its files, where they are bounded.
    fn descriptors(&self) -> Option<DescriptorStats> {
        None
    }
    /// What the calling thread has taken of the processor so far, to compare what operations cost.
    /// None where they are not to be compared.
    fn cpu_time(&self) -> Option<Duration> {
        None
    }
}

/// A file system.
pub trait Volume: fmt::Debug + Send + Sync {
    /// Makes all files, written through whatever handle, and all names durable. As final as
    /// [`File::sync`].
    fn sync(&self) -> io::Result<()>;
}

/// Fills `bytes` from `offset`. `Some`: the file ends before, and that is its length, which may be
/// damage; a read that failed is an error, and none.
pub fn read_up_to_end(file: &dyn File, offset: u64, bytes: &mut [u8]) -> io::Result<Option<u64>> {
    match file.read_at(offset, bytes) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => {
            let len = file.len()?;
            if len < offset + bytes.len() as u64 { Ok(Some(len)) } else { Err(e) }
        }
        other => other.map(|()| None),
    }
}

/// Zeros to write with one call.
static ZEROS: [u8; 256 << 10] = [0; 256 << 10];

/// Writes zeros to `[from, to)`, so many at a time that they take no memory to speak of.
pub(crate) fn write_zeros(file: &dyn File, from: u64, to: u64) -> io::Result<()> {
    for_each_zero_chunk(from, to, |at, zeros| file.write_at(at, zeros))
}

/// Calls `write` for pieces of zeros that fill `[from, to)`.
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

/// Makes the length of `file` count as changed, so that the next sync saves it: a failed sync may
/// have dropped a length that the kernel goes on showing. Takes no blocks and leaves the length as
/// it is.
pub fn mark_len_dirty(file: &dyn File) -> io::Result<()> {
    set_len_dirty(file, file.len()?)
}

/// Sets the length of `file` so that it counts as changed, also if it was the same: see
/// [`mark_len_dirty`].
pub fn set_len_dirty(file: &dyn File, len: u64) -> io::Result<()> {
    file.set_len(len.next_multiple_of(SECTOR) + SECTOR)?;
    file.set_len(len)
}

/// Makes the directory and its missing parents, durably. What is there already may be there in the
/// kernel only, left by a creation that was killed: the names up to the root are synced as far as
/// we may.
pub fn create_dirs(disk: &dyn Disk, path: &Path) -> Result<()> {
    match disk.create_dir(path) {
        Ok(()) => {}
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
            create_dirs(disk, parent.ok_or_else(|| Error::io("create", path, e))?)?;
            disk.create_dir(path).during("create", path)?;
        }
        Err(e) => return Err(Error::io("create", path, e)),
    }
    let mut above =
        path.ancestors().skip(1).map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    if let Some(parent) = above.next()
        && let Err(e) = disk.sync_dir(parent)
    {
        let _ = disk.remove_dir(path); // the kernel may have dropped the name: the next attempt makes it anew
        return Err(Error::io("sync directory", parent, e));
    }
    for ancestor in above {
        if disk.sync_dir(ancestor).is_err() {
            break; // not ours to read, so not ours to have made
        }
    }
    Ok(())
}

/// Removes a directory and everything in it; one that is not there is fine.
pub fn remove_tree(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let entries = match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        other => other.during("list", dir)?,
    };
    for entry in entries {
        let path = dir.join(&entry.name);
        match entry.is_dir {
            true => remove_tree(disk, &path)?,
            false => disk.remove(&path).during("remove", &path)?,
        }
    }
    disk.remove_dir(dir).during("remove", dir)
}

/// What a direct write takes, in bytes: a multiple of it, from a multiple of it in memory, to one
/// in the file.
pub const PAGE: usize = 4096;

/// Bytes: an open file.
pub trait File: fmt::Debug + Send + Sync {
    /// Fills `buf` from `offset`; `UnexpectedEof` if the file is shorter.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;
    /// Writes all of `bytes` at `offset`, growing the file if need be. In the kernel on return.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// As [`File::write_at`], and whole pages ([`PAGE`]) go past the page cache where that can be:
    /// for what nobody reads soon, in a file without a mapping. Not durable by that.
    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Length in bytes when it was opened, or now. Where the opening has seen it, that takes no
    /// call of the system.
    fn opened_len(&self) -> io::Result<u64> {
        self.len()
    }
    /// True if the length is zero.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts or extends (with zeros, without blocks).
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Gives `[0, len)` blocks and at least that length; new bytes read as zeros. Later writes in
    /// that range cannot run out of space.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Whether a file that has blocks from its start on only has them for `[0, len)`, so that
    /// allocating that takes no room. False where nobody knows.
    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }
    /// Gives blocks of `[offset, offset + len)` back, which is within the file, where that can be
    /// had: it reads as zeros, and the length stays.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// A hint: this and other files are about to be synced. What was written goes on its way, so
    /// that they share the time on the device, and what the file system has to write of its own.
    fn start_sync(&self) {}
    /// A hint: what memory has of `[offset, offset + len)`, and the device too, will not be asked
    /// for again soon; or is to be asked of the device.
    fn drop_cached(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Makes data and length durable. See invariant 2.
    fn sync(&self) -> io::Result<()>;

    /// As [`File::sync`] for the bytes below `end`, all of them written, of which the last eight
    /// are not written while this runs. What was prepared behind may stay unsynced, and stays
    /// resident.
    fn sync_to(&self, end: u64) -> io::Result<()> {
        let _ = end;
        self.sync()
    }

    /// Maps `[0, len)` where the implementation can; a plain default that does nothing. The file
    /// must be at least `len` long and must not shrink below it afterwards.
    fn map(&self, len: u64) {
        let _ = len;
    }
    /// The mapped bytes `[offset, offset + len)`, or `None` if they are not mapped: use `read_at`.
    /// A sector the device cannot read shows as zeros, never as a signal.
    ///
    /// # Safety
    ///
    /// * The whole range was written before, and is not written while the slice lives (identical
    ///   bytes excepted).
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let _ = (offset, len);
        None
    }
    /// Asks for `lines` of the cache, from the mapped byte at `offset` on, to be loaded soon. A
    /// hint without effect elsewhere.
    fn prefetch(&self, offset: u64, lines: usize) {
        let _ = (offset, lines);
    }
    /// The mapped bytes will be read here and there: a page that is missing brings no neighbours
    /// along. A hint.
    fn advise_random(&self) {}
    /// `[offset, offset + len)` will be read soon: what of it is not in memory is read by one call,
    /// side by side. A hint; it waits for nothing.
    fn will_need(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }
    /// Whether the byte at `offset` is in memory, so that reading it would not wait for the device.
    /// True where nobody knows.
    fn is_cached(&self, offset: u64) -> bool {
        let _ = offset;
        true
    }
    /// As [`File::write_at`] for the tail of a log: may store through the mapping where
    /// [`File::make_resident`] has prepared it, between [`File::begin_stores`] and
    /// [`File::end_stores`]. Several threads may call it at once, each for bytes of its own that
    /// no thread reads before the call returns.
    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }
    /// From now on [`File::append_at`] may store through the mapping. The descriptor stays open,
    /// and the file counts as dirty.
    fn begin_stores(&self) {}
    /// Undoes [`File::begin_stores`]. All calls of [`File::append_at`] have returned, and wrote
    /// below `end`.
    fn end_stores(&self, end: u64) {
        let _ = end;
    }
    /// Prepares `[from, to)` for [`File::append_at`] through the mapping: writes zeros there (so
    /// nothing may be stored in it yet, and `from` must be the current end of what was written)
    /// and makes the pages resident. A hint; failures only mean the plain path. Ended by `sync`.
    fn make_resident(&self, from: u64, to: u64) {
        let _ = (from, to);
    }
    /// True if an `append_at` of `[offset, offset + len)` would go through the mapping.
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        let _ = (offset, len);
        false
    }
}
