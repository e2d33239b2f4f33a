//! # Blobs: values that are too large for a log
//!
//! A value above the blob threshold is written to a slot of a chunk or to a file of its own. This
//! is done before its commit has a number (commit.md R9). The record of the commit contains number,
//! length and checksum. A sync round syncs blobs before logs, so a durable record never refers to a
//! blob that is not durable.
//!
//! ## Picture
//!
//! ```text
//!  blob/<number / 4096:08x>-<salt:08x>/<number:016x>.chunk   a head, and slots of one size
//!                                      <number:016x>.blob    a value, and nothing else
//! ```
//!
//! The salt is a part of the database's id. Slots are in `chunks`. A value gets its own file if it
//! is larger than a chunk or written in parts, or if its engine adopts files. To *adopt* a file, an
//! engine links it under a name of its own ([`Blobs::path`], `Disk::link`) and releases this one.
//! Number, length and checksum in the record detect a foreign file as well as a file header would.
//!
//! Names are never reused, not even by another database, and directories are spread over the device
//! (`Disk::spread_dirs`). The reason: creating files is slow where many were just removed. If it is
//! slow anyway, the directory gets no more files (`dir_choice`). A directory is removed with its
//! last file.
//!
//! ## Crash
//!
//! A file or chunk without a live record is an orphan. The next opening removes it, and a directory
//! that becomes empty. Numbers never repeat.

mod chunks;
mod dir_choice;
#[cfg(all(test, shuttle))]
mod interleavings;
mod slot_allocator;
mod slot_layout;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::blob_reader::{BlobChecksums, BlobReader, OpenBlob, StoredValue};
use crate::types::StoreId;
use chunks::ChunkTable;
use dir_choice::DirChoice;
use sheaf_platform::disk::{Disk, File, OpenMode, Volume, set_len_dirty};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use slot_layout::{ChunkLayout, SlotLocation};

pub(crate) use chunks::SlotPin;
pub use slot_layout::file_number;

/// If more blob files than this are unsynced, they are closed and the volume is synced as a whole.
/// Otherwise they are synced one by one.
pub const SYNCFS_THRESHOLD: usize = 64;
const TINY_SYNCFS_THRESHOLD: usize = 3;
/// Files in a directory, as a power of two.
const DIR_BITS: u32 = 12;
const TINY_DIR_BITS: u32 = 2;

/// Reference to a blob in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// Number of the file, or encoded location and generation of the slot.
    pub id: u64,
    /// Bytes of the value.
    pub len: u32,
    /// Checksum of the value.
    pub sum: u32,
}

/// Blob of a commit that has no number yet. If it is dropped without a commit, its file or slot is
/// freed.
#[derive(Debug)]
pub struct UncommittedBlob {
    /// Reference for the record.
    pub blob: BlobRef,
    file: Arc<dyn File>,
    owner: Arc<Blobs>,
    is_committed: bool,
}

impl UncommittedBlob {
    /// Appends to the value, which has a file of its own.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the value would have 4 GiB or more, and an error of the
    /// write.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let (path, at) = (self.owner.path(self.blob.id), u64::from(self.blob.len));
        let got = at + bytes.len() as u64;
        let max = crate::types::MAX_VALUE as u64;
        let len = u32::try_from(got).map_err(|_| Error::TooLarge { object: "value", got, max })?;
        self.file.write_at(at, bytes).during(IoOp::Write, &path)?;
        self.blob.sum = crc32c::crc32c_append(self.blob.sum, bytes);
        self.blob.len = len;
        Ok(())
    }

    /// Makes the appended bytes durable. After a failure the blob must be dropped.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the sync fails.
    pub fn sync(&self) -> Result<()> {
        self.file.sync().during(IoOp::Sync, &self.owner.path(self.blob.id))
    }

    /// Marks the blob as committed: the file stays, and the next sync round must sync it.
    #[must_use]
    pub fn commit(mut self) -> Arc<dyn File> {
        self.is_committed = true;
        Arc::clone(&self.file)
    }
}

impl Drop for UncommittedBlob {
    fn drop(&mut self) {
        if !self.is_committed {
            // A file that cannot be removed is an orphan, which the next opening removes.
            let _ = match SlotLocation::from_id(self.blob.id) {
                Some(place) => self.owner.discard_slot(place),
                None => self.owner.remove(self.blob.id),
            };
        }
    }
}

/// All blobs of a database.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    next: AtomicU64,
    syncfs_threshold: usize,
    dir_bits: u32,
    /// Part of the names of directories: bits of the database's id.
    salt: u32,
    dirs: Mutex<Dirs>,
    /// Number of values in files of their own.
    files: AtomicU64,
    /// Unreferenced files that are to be removed.
    pending_removals: Mutex<Vec<u64>>,
    store: StoreId,
    layout: ChunkLayout,
    chunks: Arc<ChunkTable>,
    /// Volume of the directory; `None` if it cannot be synced as a whole.
    volume: OnceLock<Option<Arc<dyn Volume>>>,
    checksums: BlobChecksums,
}

/// Statistics of values in shared blob files. Values in files of an engine are not included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobStats {
    /// Chunk files, which consist of slots of equal size.
    pub chunks: u64,
    /// Values in slots, including superseded ones that a snapshot or an older checkpoint needs.
    pub slots: u64,
    /// Bytes of the slots in use.
    pub used_bytes: u64,
    /// Bytes of free slots that are not yet returned to the file system, as far as known.
    pub free_bytes: u64,
    /// Values in files of their own.
    pub files: u64,
}

impl BlobStats {
    /// Returns all fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn to_words(self) -> [u64; 5] {
        let BlobStats { chunks, slots, used_bytes, free_bytes, files } = self;
        [chunks, slots, used_bytes, free_bytes, files]
    }

    /// Returns the statistics with these fields, in the order of messages.
    #[doc(hidden)]
    #[must_use]
    pub fn from_words([chunks, slots, used_bytes, free_bytes, files]: [u64; 5]) -> BlobStats {
        BlobStats { chunks, slots, used_bytes, free_bytes, files }
    }
}

/// State of the directories.
#[derive(Debug)]
struct Dirs {
    /// Files per directory: created since the opening, or found by it.
    counts: HashMap<u64, u64>,
    /// Directories with names that may not be durable.
    unsynced_names: HashSet<u64>,
    dir_choice: DirChoice,
}

impl Dirs {
    /// Returns an empty state for directories of at most `files` files.
    fn new(files: u64) -> Dirs {
        Dirs { counts: HashMap::new(), unsynced_names: HashSet::new(), dir_choice: DirChoice::new(files) }
    }
}

/// Files of committed blobs that may not be durable.
#[derive(Debug, Default)]
pub struct UnsyncedBlobs {
    files: Vec<UnsyncedFile>,
    /// Whether there are others, which are closed already.
    has_closed_files: bool,
}

/// File that may not be completely durable.
#[derive(Debug)]
struct UnsyncedFile {
    number: u64,
    file: Arc<dyn File>,
    is_name_unsynced: bool,
}

impl UnsyncedBlobs {
    /// Adds the committed blob `staged`.
    pub fn add(&mut self, staged: UncommittedBlob) {
        let owner = Arc::clone(&staged.owner);
        let id = staged.blob.id;
        let file = staged.commit();
        if !self.has_closed_files {
            let (number, is_unnamed) = match SlotLocation::from_id(id) {
                Some(SlotLocation { chunk, .. }) => (chunk, owner.chunks.is_name_unsynced(chunk)),
                None => (id, true),
            };
            if self.files.iter().any(|new| new.number == number) {
                return;
            }
            self.files.push(UnsyncedFile { number, file, is_name_unsynced: is_unnamed });
            if self.files.len() > owner.syncfs_threshold && owner.volume().is_some() {
                self.has_closed_files = true;
                self.files.clear();
            }
        }
    }

    /// Adds the files of `other`.
    pub fn merge(&mut self, other: UnsyncedBlobs) {
        self.has_closed_files |= other.has_closed_files;
        for new in other.files {
            if !self.files.iter().any(|known| known.number == new.number) {
                self.files.push(new);
            }
        }
    }

    /// Returns true if there are no files.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.has_closed_files
    }
}

impl Blobs {
    /// Creates the state of the blobs in `dir`. The next file gets the number `next`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf, next: u64, store: StoreId, tiny: bool) -> Arc<Blobs> {
        let (many, dir_bits) =
            if tiny { (TINY_SYNCFS_THRESHOLD, TINY_DIR_BITS) } else { (SYNCFS_THRESHOLD, DIR_BITS) };
        Arc::new(Blobs {
            dir,
            disk,
            next: AtomicU64::new(next),
            syncfs_threshold: many,
            dir_bits,
            salt: u32::try_from(store.0 & u128::from(u32::MAX)).unwrap_or(0),
            dirs: Mutex::new(Dirs::new(1 << dir_bits)),
            files: AtomicU64::new(0),
            pending_removals: Mutex::default(),
            store,
            layout: ChunkLayout::new(tiny),
            chunks: ChunkTable::new(tiny),
            volume: OnceLock::new(),
            checksums: BlobChecksums::default(),
        })
    }

    /// Returns the volume. It must be opened before the first write, so that its sync reports a
    /// failed writeback of that write.
    fn volume(&self) -> Option<&Arc<dyn Volume>> {
        self.volume.get_or_init(|| self.disk.volume(&self.dir).ok()).as_ref()
    }

    /// Makes blob files and their names durable.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a sync fails. The data may then be lost.
    pub fn sync(&self, staged: &UnsyncedBlobs) -> Result<()> {
        if staged.is_empty() {
            return Ok(());
        }
        let unnamed = self.dirs.lock().unsynced_names.clone();
        match self.volume().filter(|_| staged.has_closed_files) {
            Some(volume) => volume.sync().during(IoOp::Sync, &self.dir)?,
            None => {
                if staged.files.len() > 1 {
                    staged.files.iter().for_each(|new| new.file.start_sync());
                }
                staged.files.iter().try_for_each(|new| new.file.sync()).during(IoOp::Sync, &self.dir)?;
                let new = || staged.files.iter().filter(|new| new.is_name_unsynced).map(|new| new.number);
                self.sync_names(new())?;
                self.chunks.mark_names_synced(new());
                if unnamed.is_empty() {
                    return Ok(());
                }
                self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir)?;
            }
        }
        self.dirs.lock().unsynced_names.retain(|dir| !unnamed.contains(dir));
        Ok(())
    }

    /// Makes the names of files durable within their directories.
    fn sync_names(&self, numbers: impl Iterator<Item = u64>) -> Result<()> {
        let dirs: HashSet<u64> = numbers.map(|number| self.dir_of(number)).collect();
        for dir in dirs {
            let path = self.dir_path(dir);
            self.disk.sync_dir(&path).during(IoOp::SyncDirectory, &path)?;
        }
        Ok(())
    }

    /// Makes the names of these blobs and of their directories durable. They may have been created
    /// in an earlier opening.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a directory cannot be synced.
    pub fn sync_all_names(&self, blobs: &[BlobRef]) -> Result<()> {
        if blobs.is_empty() {
            return Ok(());
        }
        self.sync_names(
            blobs.iter().map(|blob| SlotLocation::from_id(blob.id).map_or(blob.id, |place| place.chunk)),
        )?;
        self.disk.sync_dir(&self.dir).during(IoOp::SyncDirectory, &self.dir)
    }

    /// Returns the directory of file `number`.
    fn dir_of(&self, number: u64) -> u64 {
        number >> self.dir_bits
    }

    fn dir_path(&self, dir: u64) -> PathBuf {
        self.dir.join(format!("{dir:08x}-{:08x}", self.salt))
    }

    /// Returns the directory of all blobs.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the number of the next file.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Returns the path of the file that contains blob `id`.
    #[must_use]
    pub fn path(&self, id: u64) -> PathBuf {
        match SlotLocation::from_id(id) {
            Some(SlotLocation { chunk, .. }) => self.file_path(chunk, "chunk"),
            None => self.file_path(id, "blob"),
        }
    }

    fn file_path(&self, number: u64, kind: &str) -> PathBuf {
        let mut path = self.dir_path(self.dir_of(number));
        path.push(format!("{number:016x}.{kind}"));
        path
    }

    /// Creates a file for a value. The file and the appended bytes are not durable before the next
    /// sync.
    ///
    /// # Errors
    ///
    /// Returns an error if the file, or a directory for it, cannot be created.
    pub fn create_blob_file(self: &Arc<Blobs>) -> Result<UncommittedBlob> {
        let id = self.number()?;
        let file = self.create(id, "blob")?;
        self.files.fetch_add(1, Ordering::Relaxed);
        let blob = BlobRef { id, len: 0, sum: crc32c::crc32c(&[]) };
        Ok(UncommittedBlob { blob, file, owner: Arc::clone(self), is_committed: false })
    }

    /// Creates the file of a number that was just assigned.
    fn create(&self, id: u64, kind: &str) -> Result<Arc<dyn File>> {
        self.volume();
        let path = self.file_path(id, kind);
        let mut file = self.create_timed(id, &path);
        if file.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            // Another opening of the database, which ended or began at the same time, found the
            // directory empty and removed it.
            let mut dirs = self.dirs.lock();
            dirs.unsynced_names.insert(self.dir_of(id));
            file = match self.make_dir(self.dir_of(id)) {
                Ok(()) => self.disk.open(&path, OpenMode::Create),
                Err(_) => file,
            };
        }
        let file = file.during(IoOp::Create, &path);
        if file.is_err() {
            self.record_removal(id);
        }
        file
    }

    /// Creates the file. Measures the time for a sample of the files.
    fn create_timed(&self, id: u64, path: &Path) -> std::io::Result<Arc<dyn File>> {
        let began = if dir_choice::is_timed(id) { self.disk.cpu_time() } else { None };
        let file = self.disk.open(path, OpenMode::Create)?;
        if let Some(took) = began.and_then(|began| Some(self.disk.cpu_time()?.saturating_sub(began))) {
            self.record_create_time(id, took);
        }
        Ok(file)
    }

    /// Records the time that creating file `id` took. If it was too long, the directory gets no
    /// more files.
    fn record_create_time(&self, id: u64, took: Duration) {
        let (dir, mut dirs) = (self.dir_of(id), self.dirs.lock());
        if self.dir_of(self.next()) == dir && dirs.dir_choice.is_dir_slow(took) {
            self.next.store((dir + 1) << self.dir_bits, Ordering::Relaxed);
        }
    }

    /// Assigns a new number. Counts it in its directory, which is created if necessary.
    fn number(&self) -> Result<u64> {
        let mut dirs = self.dirs.lock();
        let id = self.next();
        let dir = self.dir_of(id);
        match dirs.counts.get_mut(&dir) {
            Some(count) => *count += 1,
            None => {
                self.make_dir(dir)?;
                dirs.counts.insert(dir, 1);
                dirs.unsynced_names.insert(dir);
            }
        }
        self.next.store(id + 1, Ordering::Relaxed);
        Ok(id)
    }

    /// Creates a directory, far from others on the device.
    fn make_dir(&self, dir: u64) -> Result<()> {
        self.disk.spread_dirs(&self.dir);
        let path = self.dir_path(dir);
        match self.disk.create_dir(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io(IoOp::Create, &path, e)),
            _ => Ok(()),
        }
    }

    /// Records that file `id` was removed, or could not be created. Removes a directory that is
    /// empty and gets no more files.
    fn record_removal(&self, id: u64) {
        let dir = self.dir_of(id);
        let mut dirs = self.dirs.lock();
        let Some(count) = dirs.counts.get_mut(&dir) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 && dir != self.dir_of(self.next()) {
            dirs.counts.remove(&dir);
            dirs.unsynced_names.remove(&dir);
            drop(dirs); // no file is created in it any more, and freeing its blocks takes time
            // if it stays, the next opening removes it
            let _ = self.disk.remove_dir(&self.dir_path(dir));
        }
    }

    /// Opens the value of `blob`. Returns `Ok(None)` if it does not exist, because it was
    /// superseded just before.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob is larger than its slot, and an error of opening the
    /// file.
    pub fn open(&self, blob: &BlobRef) -> Result<Option<OpenBlob>> {
        if let Some(place) = SlotLocation::from_id(blob.id) {
            return self.find_in_slot(place, blob);
        }
        open_blob_file(&*self.disk, self.path(blob.id), blob)
    }

    /// Reads and checks the value of `blob`. Returns `Ok(None)` if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the value is damaged, and an error of opening or reading the
    /// file. Returns [`Error::Closed`] if it is in a slot and the database was closed.
    pub fn read(&self, blob: &BlobRef) -> Result<Option<Vec<u8>>> {
        self.open(blob)?.map(|file| file.read(<[u8]>::to_vec)).transpose()
    }

    /// Passes the opened `blob` to `found`. Returns false if it does not exist: the caller must
    /// look up the key again. The second failure for one number, as stored in `missing`, is
    /// reported as damage.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob is missing again, and the errors of [`Blobs::open`].
    pub fn read_stored(
        &self,
        blob: &BlobRef,
        missing: &mut Option<u64>,
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<bool> {
        match self.open(blob)? {
            Some(file) => found(StoredValue::Blob(file)),
            None if missing.replace(blob.id) == Some(blob.id) => return Err(self.missing_error(blob)),
            None => return Ok(false),
        }
        Ok(true)
    }

    /// Returns a reader of parts of the value in `file`.
    ///
    /// # Errors
    ///
    /// The first reader of a value checks all of it: returns the errors of [`OpenBlob::check`].
    pub fn reader(&self, file: OpenBlob) -> Result<BlobReader> {
        self.checksums.reader(file)
    }

    /// Returns true if the blob is in a slot, and not in a file of its own.
    pub fn is_slot(&self, blob: &BlobRef) -> bool {
        SlotLocation::from_id(blob.id).is_some()
    }

    /// Returns the error for a missing blob to which a live record refers.
    #[must_use]
    pub fn missing_error(&self, blob: &BlobRef) -> Error {
        let expected = u64::from(blob.len);
        Error::corrupt(&self.path(blob.id), 0, "blob", Damage::Truncated { got: 0, expected })
    }

    /// Writes a blob's bytes again at the same place and syncs them.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the blob is missing or damaged, and an error of a read, write
    /// or sync.
    pub fn rewrite(&self, blob: &BlobRef) -> Result<()> {
        let path = self.path(blob.id);
        let Some(value) = self.open(blob)? else {
            return Err(self.missing_error(blob));
        };
        let file = self.disk.open(&path, OpenMode::ReadWrite).during(IoOp::Open, &path)?;
        value.check()?;
        if let Some(place) = SlotLocation::from_id(blob.id) {
            return self.rewrite_slot(place, &value, &*file);
        }
        value.for_each_stride(|at, bytes| file.write_at(at, bytes).during(IoOp::Write, &path))?;
        // A power cut during an earlier rewrite may have left the file longer.
        set_len_dirty(&*file, u64::from(blob.len)).during(IoOp::Extend, &path)?;
        file.sync().during(IoOp::Sync, &path)
    }

    /// Removes blob `id`. A missing blob is no error.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a file of its own cannot be removed.
    pub fn remove(&self, id: u64) -> Result<()> {
        match SlotLocation::from_id(id) {
            Some(place) => {
                self.chunks.release(place);
                Ok(())
            }
            None => {
                if self.remove_file(id, "blob")? {
                    let less = |files: u64| Some(files.saturating_sub(1));
                    let _ = self.files.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                }
                Ok(())
            }
        }
    }

    /// Releases blob `id`, to which nothing refers any more. A slot is free at once. Removing a
    /// file takes the file system longer, so that [`Blobs::remove_pending`] does it.
    pub fn remove_later(&self, id: u64) {
        match SlotLocation::from_id(id) {
            Some(place) => self.chunks.release(place),
            None => self.pending_removals.lock().push(id),
        }
    }

    /// Removes up to `most` of the pending files. Returns false if there was none. If a file cannot
    /// be removed, the next opening removes it.
    pub fn remove_pending(&self, most: usize) -> bool {
        let going: Vec<u64> = {
            let mut left = self.pending_removals.lock();
            let count = left.len().min(most);
            // the oldest first, so that directories become empty one after the other
            left.drain(..count).collect()
        };
        going.iter().for_each(|id| drop(self.remove(*id)));
        !going.is_empty()
    }

    /// Removes a file. Returns false if it did not exist.
    fn remove_file(&self, id: u64, kind: &str) -> Result<bool> {
        let path = self.file_path(id, kind);
        match self.disk.remove(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.during(IoOp::Remove, &path)?,
        }
        self.record_removal(id);
        Ok(true)
    }

    /// Parses a file name. Returns the number, and whether the file is a chunk.
    fn number_of(name: &str) -> Option<(u64, bool)> {
        let (number, kind) = name.split_once('.').filter(|(n, _)| n.len() == 16)?;
        let is_chunk = match kind {
            "chunk" => true,
            "blob" => false,
            _ => return None,
        };
        Some((u64::from_str_radix(number, 16).ok()?, is_chunk))
    }

    /// Records the referenced blobs. `frozen` means that there may be others.
    pub fn mark_used(&self, live: &HashSet<u64>, frozen: bool) {
        let places = || live.iter().filter_map(|id| SlotLocation::from_id(*id));
        self.chunks.mark_used(places(), self.layout, frozen);
        self.files.store((live.len() - places().count()) as u64, Ordering::Relaxed);
    }

    /// Ends recovery, before any blob is written: `live` are the referenced blobs. Removes all
    /// other files, and empty directories. Removes nothing if `frozen`: then some references are
    /// not known.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a directory cannot be listed or a file cannot be removed.
    pub fn finish_recovery(&self, live: &HashSet<u64>, frozen: bool) -> Result<()> {
        self.mark_used(live, frozen);
        self.chunks.finish_recovery();
        if frozen {
            return Ok(());
        }
        for (number, is_chunk) in self.list()? {
            match is_chunk {
                true if !self.chunks.contains(number) => self.remove_file(number, "chunk")?,
                false if !live.contains(&number) => self.remove_file(number, "blob")?,
                _ => false,
            };
        }
        Ok(())
    }

    /// Returns statistics.
    pub fn stats(&self) -> BlobStats {
        BlobStats { files: self.files.load(Ordering::Relaxed), ..self.chunks.stats(self.layout) }
    }

    /// Returns the numbers of all present files, and whether each is a chunk.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if a directory cannot be listed.
    pub fn files(&self) -> Result<Vec<(u64, bool)>> {
        let mut all = Vec::new();
        for entry in self.disk.list(&self.dir).during(IoOp::List, &self.dir)? {
            let path = self.dir.join(&entry.name);
            match self.disk.list(&path) {
                // foreign, or removed just now
                Err(e) if !entry.is_dir || e.kind() == std::io::ErrorKind::NotFound => {}
                found => all.extend(
                    found.during(IoOp::List, &path)?.iter().filter_map(|e| Blobs::number_of(&e.name)),
                ),
            }
        }
        Ok(all)
    }

    /// Returns the path of the chunk or blob file `number`.
    pub fn file_of(&self, number: u64, is_chunk: bool) -> PathBuf {
        self.file_path(number, if is_chunk { "chunk" } else { "blob" })
    }

    /// Returns the numbers of all files, and whether each is a chunk. Called before any file is
    /// created. Removes empty directories.
    fn list(&self) -> Result<Vec<(u64, bool)>> {
        let (mut all, mut dirs) = (Vec::new(), self.dirs.lock());
        for entry in self.disk.list(&self.dir).during(IoOp::List, &self.dir)? {
            let number = entry.name.split('-').next().and_then(|name| u64::from_str_radix(name, 16).ok());
            let Some(dir) = number.filter(|_| entry.is_dir) else { continue };
            let path = self.dir_path(dir);
            if path.file_name().is_none_or(|name| *name != *entry.name) {
                continue; // foreign
            }
            let files = self.disk.list(&path).during(IoOp::List, &path)?;
            let before = all.len();
            all.extend(files.iter().filter_map(|e| Blobs::number_of(&e.name)));
            match (all.len() - before) as u64 {
                // if it fails, the next opening tries again
                0 if files.is_empty() => drop(self.disk.remove_dir(&path)),
                count => drop(dirs.counts.insert(dir, count)),
            }
        }
        Ok(all)
    }
}

/// Opens the file at `path` as the value of `blob`. Returns `None` if there is no such file. The
/// content is not checked.
///
/// # Errors
///
/// Returns an error if the file exists and cannot be opened.
pub fn open_blob_file(disk: &dyn Disk, path: PathBuf, blob: &BlobRef) -> Result<Option<OpenBlob>> {
    match disk.open(&path, OpenMode::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(OpenBlob::new(file.during(IoOp::Open, &path)?, path, *blob))),
    }
}

#[cfg(test)]
mod tests;
