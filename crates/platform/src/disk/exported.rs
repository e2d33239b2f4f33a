//! # Exported disk: a pinned state of a database as a disk
//!
//! [`ExportedDisk`] shows a state that the owner of the database has pinned (`store::pinned_state`)
//! to an attached reader. It has exactly the names, lengths and bytes that a backup of the state
//! would have. It reads the files of the owner without copying, and rejects changes.
//!
//! ## Picture
//!
//! ```text
//!  name shown            source
//!  ROOT.0                bytes of the listing
//!  journal/7.seg         journal/7.seg [0, end)            bytes that the owner appends are hidden
//!  own/3/data/0          own/3/data/0  [a, b) [c, d) ..    zeros in between
//!  own/3/tree/9.img      images/held-..                    made by the owner for this reader
//!  own/4/t-2/key         blob/../5.blob                    has another name at the moment
//! ```
//!
//! ## Invariants
//!
//! 1. A read returns bytes of the state or an error. The result is valid only if the owner has the
//!    state pinned *afterwards*, so [`ExportLease`] is checked after each read. Bytes that were
//!    freed and overwritten during the read are therefore never returned.
//! 2. Files are not mapped: a mapped byte could change between its use and the check.
//! 3. No name of a listing leads out of the directory.
//!
//! ## Threads
//!
//! Any thread may use the disk. The lock of the database is the lease: it can be taken once, and
//! the state stays pinned until it is dropped. A check may make one or two system calls.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::{DirEntry, Disk, File, LockMode, LockOutcome, OpenMode};
use crate::error::Error;

/// Proof that the owner has a state pinned. Dropping it releases the state.
pub trait ExportLease: fmt::Debug + Send + Sync {
    /// Returns whether the state is still pinned. Once false, the result stays false.
    fn is_held(&self) -> bool;
}

/// Source of the bytes of an [`ExportedExtent`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteSource {
    /// A file of the directory, from an offset on.
    File(PathBuf, u64),
    /// Bytes in memory.
    Inline(Vec<u8>),
}

/// Part of an exported file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportedExtent {
    /// Path of the file, relative to the directory.
    pub name: PathBuf,
    /// Minimum length of the file in bytes.
    pub file_len: u64,
    /// Offset of the part in the file.
    pub offset: u64,
    /// Length of the part in bytes.
    pub len: u64,
    /// Source of the bytes.
    pub bytes: ByteSource,
}

/// Entry of the listing of an exported state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExportedItem {
    /// A directory, relative to that of the database.
    Directory(PathBuf),
    /// A file, or a part of one.
    Extent(ExportedExtent),
}

impl ExportedItem {
    /// Returns whether the names stay inside of the directory and the numbers are consistent.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        match self {
            ExportedItem::Directory(name) => is_inside(name),
            ExportedItem::Extent(ExportedExtent { name, offset: at, len, bytes, .. }) => {
                is_inside(name)
                    && at.checked_add(*len).is_some()
                    && match bytes {
                        ByteSource::File(path, from) => is_inside(path) && from.checked_add(*len).is_some(),
                        ByteSource::Inline(bytes) => bytes.len() as u64 == *len,
                    }
            }
        }
    }
}

/// Returns whether a name leads to a place below the directory and nowhere else.
pub fn is_inside(name: &Path) -> bool {
    let mut parts = name.components();
    !name.as_os_str().is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// An exported file: its length, and its parts by offset.
#[derive(Debug, Default)]
struct ExtentMap {
    len: u64,
    parts: BTreeMap<u64, (u64, ByteSource)>,
}

/// A pinned state of a database as a read-only disk.
pub struct ExportedDisk {
    base_disk: Arc<dyn Disk>,
    dir: PathBuf,
    dirs: BTreeSet<PathBuf>,
    files: BTreeMap<PathBuf, Arc<ExtentMap>>,
    /// The lease, until it is taken as the lock.
    lease: Mutex<Option<Arc<dyn ExportLease>>>,
    lease_alive: Weak<dyn ExportLease>,
}

impl fmt::Debug for ExportedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExportedDisk({}, {} files)", self.dir.display(), self.files.len())
    }
}

impl ExportedDisk {
    /// Shows `items` in `dir`, with their bytes on `beneath`. Returns `None` if an item is not
    /// valid.
    #[must_use]
    pub fn new(
        beneath: Arc<dyn Disk>,
        dir: &Path,
        items: Vec<ExportedItem>,
        lease: Arc<dyn ExportLease>,
    ) -> Option<ExportedDisk> {
        let mut dirs = BTreeSet::from([PathBuf::new()]);
        let mut files: BTreeMap<PathBuf, ExtentMap> = BTreeMap::new();
        for item in items {
            if !item.is_valid() {
                return None;
            }
            match item {
                ExportedItem::Directory(name) => dirs.extend(name.ancestors().map(Path::to_path_buf)),
                ExportedItem::Extent(ExportedExtent { name, file_len: whole, offset: at, len, bytes }) => {
                    dirs.extend(name.ancestors().skip(1).map(Path::to_path_buf));
                    let shown = files.entry(name).or_default();
                    shown.len = shown.len.max(whole).max(at + len);
                    if len > 0 {
                        shown.parts.insert(at, (len, bytes));
                    }
                }
            }
        }
        let files = files.into_iter().map(|(name, shown)| (name, Arc::new(shown))).collect();
        let held = Arc::downgrade(&lease);
        let lease = Mutex::new(Some(lease));
        Some(ExportedDisk {
            base_disk: beneath,
            dir: dir.to_path_buf(),
            dirs,
            files,
            lease,
            lease_alive: held,
        })
    }

    /// Returns the path relative to the directory.
    fn name<'p>(&self, path: &'p Path) -> io::Result<&'p Path> {
        path.strip_prefix(&self.dir).map_err(|_| io::ErrorKind::NotFound.into())
    }

    fn check(&self) -> io::Result<()> {
        check(&self.lease_alive, &self.dir)
    }
}

/// Returns an error if the state is not pinned any more.
fn check(held: &Weak<dyn ExportLease>, dir: &Path) -> io::Result<()> {
    match held.upgrade().is_some_and(|lease| lease.is_held()) {
        true => Ok(()),
        false => Err(io::Error::other(Error::OwnerClosed { path: dir.to_path_buf() })),
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::ReadOnlyFilesystem.into())
}

impl Disk for ExportedDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let name = self.name(path)?;
        if open_mode != OpenMode::Read {
            return refused();
        }
        let shown = self.files.get(name).ok_or(io::ErrorKind::NotFound)?;
        let mut sources: BTreeMap<PathBuf, Arc<dyn File>> = BTreeMap::new();
        for (_, bytes) in shown.parts.values() {
            let ByteSource::File(path, _) = bytes else { continue };
            if sources.contains_key(path) {
                continue;
            }
            match self.base_disk.open(&self.dir.join(path), OpenMode::Read) {
                Ok(file) => drop(sources.insert(path.clone(), file)),
                // The owner may have released the state and deleted the file.
                Err(error) => return Err(self.check().err().unwrap_or(error)),
            }
        }
        let (dir, held) = (self.dir.clone(), Weak::clone(&self.lease_alive));
        Ok(Arc::new(ExportedFile { shown: Arc::clone(shown), sources, dir, held }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let name = self.name(dir)?;
        if !self.dirs.contains(name) {
            let is_file = self.files.contains_key(name);
            return Err(if is_file { io::ErrorKind::NotADirectory } else { io::ErrorKind::NotFound }.into());
        }
        let entry = |path: &Path, is_dir| {
            let name = path.file_name().filter(|_| path.parent() == Some(name))?;
            Some(DirEntry { name: name.to_str()?.to_owned(), is_dir })
        };
        let below = |path: &Path| path.starts_with(name);
        let dirs = self.dirs.range(name.to_path_buf()..).take_while(|path| below(path));
        let files = self.files.range(name.to_path_buf()..).take_while(|(path, _)| below(path));
        let mut entries: Vec<DirEntry> = dirs.filter_map(|path| entry(path, true)).collect();
        entries.extend(files.filter_map(|(path, _)| entry(path, false)));
        entries.sort();
        Ok(entries)
    }

    fn create_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn remove_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn link(&self, _: &Path, _: &Path) -> io::Result<()> {
        refused()
    }

    fn sync_dir(&self, _: &Path) -> io::Result<()> {
        refused()
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        if share == LockMode::Exclusive {
            return refused();
        }
        if self.name(path)?.parent() != Some(Path::new("")) {
            // The lock of a part of the database, which does not change either.
            return Ok(LockOutcome::Acquired(Box::new(())));
        }
        let lease = self.lease.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(lease.map_or(LockOutcome::Busy(None), |lease| LockOutcome::Acquired(Box::new(lease))))
    }

    /// Needs no lock of its own: the lease covers all files.
    fn lock_existing(&self, _: &Path, _: LockMode) -> io::Result<LockOutcome> {
        Ok(LockOutcome::Acquired(Box::new(())))
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.base_disk.free_space(path)
    }

    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.base_disk.free_files(path)
    }

    fn descriptors(&self) -> Option<super::DescriptorStats> {
        self.base_disk.descriptors()
    }

    fn is_read_only(&self, path: &Path) -> bool {
        self.base_disk.is_read_only(path)
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        self.base_disk.mode(&self.real_path(path))
    }

    fn real_path(&self, path: &Path) -> PathBuf {
        let shown = self.name(path).ok().and_then(|name| self.files.get(name));
        match shown.and_then(|shown| shown.parts.get(&0)) {
            Some((_, ByteSource::File(source, 0))) => self.dir.join(source),
            _ => path.to_path_buf(),
        }
    }
}

/// An open file of the state.
#[derive(Debug)]
struct ExportedFile {
    shown: Arc<ExtentMap>,
    sources: BTreeMap<PathBuf, Arc<dyn File>>,
    dir: PathBuf,
    held: Weak<dyn ExportLease>,
}

impl ExportedFile {
    /// Fills `buf` with the exported bytes at `offset`.
    fn fill(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.shown.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let first = self.shown.parts.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        buf.fill(0);
        for (at, (len, bytes)) in self.shown.parts.range(first..end) {
            let (from, to) = (offset.max(*at), end.min(at + len));
            if from >= to {
                continue;
            }
            let index = |place: u64, base: u64| usize::try_from(place - base).map_err(io::Error::other);
            let into = &mut buf[index(from, offset)?..index(to, offset)?];
            match bytes {
                ByteSource::Inline(bytes) => into.copy_from_slice(&bytes[index(from, *at)?..index(to, *at)?]),
                ByteSource::File(path, start) => {
                    let source = self.sources.get(path).ok_or(io::ErrorKind::NotFound)?;
                    source.read_at(start + (from - at), into)?;
                }
            }
        }
        Ok(())
    }
}

impl File for ExportedFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = self.fill(offset, buf);
        check(&self.held, &self.dir)?; // I1: after the read
        read
    }

    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        refused()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.shown.len)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        refused()
    }

    fn allocate(&self, _: u64) -> io::Result<()> {
        refused()
    }

    fn sync(&self) -> io::Result<()> {
        refused()
    }

    fn will_need(&self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        let first = self.shown.parts.range(..=offset).next_back().map_or(offset, |(at, _)| *at);
        for (at, (len, bytes)) in self.shown.parts.range(first..end.max(first)) {
            let (from, to) = (offset.max(*at), end.min(at + len));
            if let ByteSource::File(path, start) = bytes
                && from < to
                && let Some(source) = self.sources.get(path)
            {
                source.will_need(start + (from - at), to - from);
            }
        }
    }
}
