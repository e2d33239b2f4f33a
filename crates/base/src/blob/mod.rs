//! # Blobs: values too large to stand in a log
//!
//! A value above the staging limit is written to a slot of a chunk, or to a file of its own, before
//! its commit has a number (commit.md R9); the commit's record carries number, length and checksum.
//! The sync round syncs what was staged before the logs, so a durable record never names a value
//! that is not.
//!
//! ## Picture
//!
//! ```text
//!  blob/<number / 4096:08x>-<part of the database's id:08x>/<number:016x>.chunk :  a head, and values in slots of one size
//!                                                           <number:016x>.blob  :  a value, and nothing else
//! ```
//!
//! `chunks` has the slots. A file of its own gets a value that is larger than a chunk, one that
//! comes bit by bit and is not whole when its first bytes are written, and one of an engine that
//! adopts files.
//!
//! Directories lie far from each other on the device, where their names say, and names are never
//! used again, nor by another database: creating files where many were removed a moment ago is up
//! to thirty times slower (`Disk::spread`; with the same names, a database made where another was
//! just removed took 1.2 thousand values of 64 KiB a second). One in which it is slow all the same
//! gets no more files (`sites`). One goes with its last file.
//!
//! Number, length and checksum stand in the record, and guard against a foreign file as well as a
//! header would: a value of another length or sum is damage. So an engine may *adopt* a staged
//! file: give it a name of its own ([`Blobs::path`], `Disk::link`), and let this one go.
//!
//! ## Crash
//!
//! A file, or chunk, without a live record is an orphan and swept at the next open, with the
//! directory that becomes empty. Numbers never repeat.
//!
//! ## Costs
//!
//! A file created, written and closed: 15 µs and the copy, and ten times that when its blocks are
//! found and freed. A round syncs up to [`SYNCFS_THRESHOLD`] files one by one; if there are more
//! they are closed when they are written, and the volume is synced as a whole.

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
use crate::disk::{Disk, File, OpenMode, Volume, set_len_dirty};
use crate::error::{Damage, Error, IoContext, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::StoreId;
use chunks::ChunkTable;
use dir_choice::DirChoice;
use slot_layout::{ChunkLayout, SlotLocation};

pub(crate) use chunks::SlotPin;
pub(crate) use slot_layout::file_number;

/// More staged files than this are synced by syncing the volume.
pub const SYNCFS_THRESHOLD: usize = 64;
const TINY_SYNCFS_THRESHOLD: usize = 3;
/// Files of a directory, as a power of two.
const DIR_BITS: u32 = 12;
const TINY_DIR_BITS: u32 = 2;

/// A staged value, as its record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// Its number: of its file, or of its place and the use of that.
    pub id: u64,
    /// Bytes of the value.
    pub len: u32,
    /// Checksum of the value.
    pub sum: u32,
}

/// A value staged for a commit that has no number yet. Its file, or slot, goes if it is dropped
/// unused.
#[derive(Debug)]
pub struct UncommittedBlob {
    /// What the record will say.
    pub blob: BlobRef,
    file: Arc<dyn File>,
    owner: Arc<Blobs>,
    is_committed: bool,
}

impl UncommittedBlob {
    /// Appends to the value, which has a file of its own.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let (path, at) = (self.owner.path(self.blob.id), u64::from(self.blob.len));
        let got = at + bytes.len() as u64;
        let max = crate::types::MAX_VALUE as u64;
        let len = u32::try_from(got).map_err(|_| Error::TooLarge { object: "value", got, max })?;
        self.file.write_at(at, bytes).during("write", &path)?;
        self.blob.sum = crc32c::crc32c_append(self.blob.sum, bytes);
        self.blob.len = len;
        Ok(())
    }

    /// Makes what was appended durable. If it fails the value can only be dropped.
    pub fn sync(&self) -> Result<()> {
        self.file.sync().during("sync", &self.owner.path(self.blob.id))
    }

    /// The commit took it: the file stays, and the next sync round must sync it.
    #[must_use]
    pub fn commit(mut self) -> Arc<dyn File> {
        self.is_committed = true;
        Arc::clone(&self.file)
    }
}

impl Drop for UncommittedBlob {
    fn drop(&mut self) {
        if !self.is_committed {
            // A file that cannot be removed is an orphan, which the next open sweeps.
            let _ = match SlotLocation::from_id(self.blob.id) {
                Some(place) => self.owner.discard_slot(place),
                None => self.owner.remove(self.blob.id),
            };
        }
    }
}

/// The directories of blobs.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    next: AtomicU64,
    syncfs_threshold: usize,
    dir_bits: u32,
    /// In the names of directories.
    salt: u32,
    dirs: Mutex<Dirs>,
    /// Values in files of their own.
    files: AtomicU64,
    /// Numbers of files that nobody names any more, to be removed.
    pending_removals: Mutex<Vec<u64>>,
    store: StoreId,
    layout: ChunkLayout,
    chunks: Arc<ChunkTable>,
    /// None where the volume cannot be synced as a whole.
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

/// What is known of the directories.
#[derive(Debug)]
struct Dirs {
    /// Files in them: those made in this life, and those that were listed.
    counts: HashMap<u64, u64>,
    /// The device may not have their names.
    unsynced_names: HashSet<u64>,
    dir_choice: DirChoice,
}

impl Dirs {
    /// None, for so many files each.
    fn new(files: u64) -> Dirs {
        Dirs { counts: HashMap::new(), unsynced_names: HashSet::new(), dir_choice: DirChoice::new(files) }
    }
}

/// Staged files of commits the device does not have.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedBlobs {
    files: Vec<UnsyncedFile>,
    /// There are others, closed by now.
    has_closed_files: bool,
}

/// A file the device may lack, or parts of it.
#[derive(Debug)]
struct UnsyncedFile {
    number: u64,
    file: Arc<dyn File>,
    is_name_unsynced: bool,
}

impl UnsyncedBlobs {
    /// A commit took `staged`.
    pub(crate) fn add(&mut self, staged: UncommittedBlob) {
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

    /// Those of `other` are unsynced too.
    pub(crate) fn merge(&mut self, other: UnsyncedBlobs) {
        self.has_closed_files |= other.has_closed_files;
        for new in other.files {
            if !self.files.iter().any(|known| known.number == new.number) {
                self.files.push(new);
            }
        }
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.has_closed_files
    }
}

impl Blobs {
    /// The blobs in `dir`, numbered from `next`.
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

    /// The volume, looked up before anything is written whose failure its sync has to tell.
    fn volume(&self) -> Option<&Arc<dyn Volume>> {
        self.volume.get_or_init(|| self.disk.volume(&self.dir).ok()).as_ref()
    }

    /// Makes staged files and their names durable.
    pub(crate) fn sync(&self, staged: &UnsyncedBlobs) -> Result<()> {
        if staged.is_empty() {
            return Ok(());
        }
        let unnamed = self.dirs.lock().unsynced_names.clone();
        match self.volume().filter(|_| staged.has_closed_files) {
            Some(volume) => volume.sync().during("sync", &self.dir)?,
            None => {
                if staged.files.len() > 1 {
                    staged.files.iter().for_each(|new| new.file.start_sync());
                }
                staged.files.iter().try_for_each(|new| new.file.sync()).during("sync", &self.dir)?;
                let new = || staged.files.iter().filter(|new| new.is_name_unsynced).map(|new| new.number);
                self.sync_names(new())?;
                self.chunks.mark_names_synced(new());
                if unnamed.is_empty() {
                    return Ok(());
                }
                self.disk.sync_dir(&self.dir).during("sync directory", &self.dir)?;
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
            self.disk.sync_dir(&path).during("sync directory", &path)?;
        }
        Ok(())
    }

    /// Makes the names of these durable, and those of their directories, whoever made them.
    pub(crate) fn sync_all_names(&self, blobs: &[BlobRef]) -> Result<()> {
        if blobs.is_empty() {
            return Ok(());
        }
        self.sync_names(
            blobs.iter().map(|blob| SlotLocation::from_id(blob.id).map_or(blob.id, |place| place.chunk)),
        )?;
        self.disk.sync_dir(&self.dir).during("sync directory", &self.dir)
    }

    /// The directory of file `number`.
    fn dir_of(&self, number: u64) -> u64 {
        number >> self.dir_bits
    }

    fn dir_path(&self, dir: u64) -> PathBuf {
        self.dir.join(format!("{dir:08x}-{:08x}", self.salt))
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The number the next file gets.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The file that blob `id` is, or is in.
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

    /// Makes a file for a value. In the kernel, not on the device, as is what is appended.
    pub fn create_blob_file(self: &Arc<Blobs>) -> Result<UncommittedBlob> {
        let id = self.number()?;
        let file = self.create(id, "blob")?;
        self.files.fetch_add(1, Ordering::Relaxed);
        let blob = BlobRef { id, len: 0, sum: crc32c::crc32c(&[]) };
        Ok(UncommittedBlob { blob, file, owner: Arc::clone(self), is_committed: false })
    }

    /// Makes the file of a number that was just given.
    fn create(&self, id: u64, kind: &str) -> Result<Arc<dyn File>> {
        self.volume();
        let path = self.file_path(id, kind);
        let mut file = self.create_timed(id, &path);
        if file.as_ref().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound) {
            // Another life, which ended or began beside this one, found the directory empty and
            // removed it.
            let mut dirs = self.dirs.lock();
            dirs.unsynced_names.insert(self.dir_of(id));
            file = match self.make_dir(self.dir_of(id)) {
                Ok(()) => self.disk.open(&path, OpenMode::Create),
                Err(_) => file,
            };
        }
        let file = file.during("create", &path);
        if file.is_err() {
            self.record_removal(id);
        }
        file
    }

    /// Makes the file, and of some takes the time.
    fn create_timed(&self, id: u64, path: &Path) -> std::io::Result<Arc<dyn File>> {
        let began = if dir_choice::is_timed(id) { self.disk.cpu_time() } else { None };
        let file = self.disk.open(path, OpenMode::Create)?;
        if let Some(took) = began.and_then(|began| Some(self.disk.cpu_time()?.saturating_sub(began))) {
            self.record_create_time(id, took);
        }
        Ok(file)
    }

    /// Making the file of `id` took so long: if that was too long, no more files are made in its
    /// directory.
    fn record_create_time(&self, id: u64, took: Duration) {
        let (dir, mut dirs) = (self.dir_of(id), self.dirs.lock());
        if self.dir_of(self.next()) == dir && dirs.dir_choice.is_dir_slow(took) {
            self.next.store((dir + 1) << self.dir_bits, Ordering::Relaxed);
        }
    }

    /// A new number, counted in its directory, which is there.
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

    /// Makes a directory, far from others on the device.
    fn make_dir(&self, dir: u64) -> Result<()> {
        self.disk.spread_dirs(&self.dir);
        let path = self.dir_path(dir);
        match self.disk.create_dir(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(Error::io("create", &path, e)),
            _ => Ok(()),
        }
    }

    /// The file of `id` is gone, or was never made: so goes a directory that gets no more files and
    /// has none.
    fn record_removal(&self, id: u64) {
        let dir = self.dir_of(id);
        let mut dirs = self.dirs.lock();
        let Some(count) = dirs.counts.get_mut(&dir) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 && dir != self.dir_of(self.next()) {
            dirs.counts.remove(&dir);
            dirs.unsynced_names.remove(&dir);
            drop(dirs); // nobody makes a file in it, and its blocks take their time to go
            let _ = self.disk.remove_dir(&self.dir_path(dir)); // one that stays is swept at the next opening
        }
    }

    /// The value of `blob`, opened. `Ok(None)` if it is gone: superseded a moment ago.
    pub fn open(&self, blob: &BlobRef) -> Result<Option<OpenBlob>> {
        if let Some(place) = SlotLocation::from_id(blob.id) {
            return self.find_in_slot(place, blob);
        }
        open_blob_file(&*self.disk, self.path(blob.id), blob)
    }

    /// The value of `blob`, checked. `Ok(None)` if it is gone.
    pub fn read(&self, blob: &BlobRef) -> Result<Option<Vec<u8>>> {
        self.open(blob)?.map(|file| file.read(<[u8]>::to_vec)).transpose()
    }

    /// Hands `blob`, opened, to `found`. False if it is gone: look again. One that is gone twice,
    /// as `missing` remembers, is lost.
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

    /// The value in `file`, to be read piece by piece.
    pub fn reader(&self, file: OpenBlob) -> Result<BlobReader> {
        self.checksums.reader(file)
    }

    /// Whether it lies in a slot, and has no file of its own.
    pub(crate) fn is_slot(&self, blob: &BlobRef) -> bool {
        SlotLocation::from_id(blob.id).is_some()
    }

    /// The error for a blob that a live record names and that is not there.
    #[must_use]
    pub fn missing_error(&self, blob: &BlobRef) -> Error {
        let expected = u64::from(blob.len);
        Error::corrupt(&self.path(blob.id), 0, Damage::Truncated { got: 0, expected })
    }

    /// Writes a blob's bytes again where they stand and syncs them.
    pub fn rewrite(&self, blob: &BlobRef) -> Result<()> {
        let path = self.path(blob.id);
        let Some(value) = self.open(blob)? else {
            return Err(self.missing_error(blob));
        };
        let file = self.disk.open(&path, OpenMode::ReadWrite).during("open", &path)?;
        value.check()?;
        if let Some(place) = SlotLocation::from_id(blob.id) {
            return self.rewrite_slot(place, &value, &*file);
        }
        value.for_each_stride(|at, bytes| file.write_at(at, bytes).during("write", &path))?;
        // A power cut in here may have left it longer before.
        set_len_dirty(&*file, u64::from(blob.len)).during("extend", &path)?;
        file.sync().during("sync", &path)
    }

    /// Removes blob `id`; one that is gone already is fine.
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

    /// Nobody names blob `id` any more. A slot is free at once; a file, which takes the file system
    /// its time, is removed by [`Blobs::remove_pending`].
    pub(crate) fn remove_later(&self, id: u64) {
        match SlotLocation::from_id(id) {
            Some(place) => self.chunks.release(place),
            None => self.pending_removals.lock().push(id),
        }
    }

    /// Removes up to `most` of the files that were left. False if there was none. One that cannot
    /// be removed is swept at the next opening.
    pub(crate) fn remove_pending(&self, most: usize) -> bool {
        let going: Vec<u64> = {
            let mut left = self.pending_removals.lock();
            let count = left.len().min(most);
            left.drain(..count).collect() // the oldest first: directories become empty one after the other
        };
        going.iter().for_each(|id| drop(self.remove(*id)));
        !going.is_empty()
    }

    /// False if it was gone already.
    fn remove_file(&self, id: u64, kind: &str) -> Result<bool> {
        let path = self.file_path(id, kind);
        match self.disk.remove(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            other => other.during("remove", &path)?,
        }
        self.record_removal(id);
        Ok(true)
    }

    /// The number in a file's name, and whether it is a chunk's.
    fn number_of(name: &str) -> Option<(u64, bool)> {
        let (number, kind) = name.split_once('.').filter(|(n, _)| n.len() == 16)?;
        let is_chunk = match kind {
            "chunk" => true,
            "blob" => false,
            _ => return None,
        };
        Some((u64::from_str_radix(number, 16).ok()?, is_chunk))
    }

    /// Takes note of what is named, and if `frozen`, that there may be more.
    pub(crate) fn mark_used(&self, live: &HashSet<u64>, frozen: bool) {
        let places = || live.iter().filter_map(|id| SlotLocation::from_id(*id));
        self.chunks.mark_used(places(), self.layout, frozen);
        self.files.store((live.len() - places().count()) as u64, Ordering::Relaxed);
    }

    /// Takes up what there is, before anything is staged in this life: `live` is named, other files
    /// go, and so do directories without any. None of it goes if not all that is named is known,
    /// and so `frozen`.
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

    /// Figures.
    pub(crate) fn stats(&self) -> BlobStats {
        BlobStats { files: self.files.load(Ordering::Relaxed), ..self.chunks.stats(self.layout) }
    }

    /// The numbers of all files there now, and which are chunks.
    pub(crate) fn files(&self) -> Result<Vec<(u64, bool)>> {
        let mut all = Vec::new();
        for entry in self.disk.list(&self.dir).during("list", &self.dir)? {
            let path = self.dir.join(&entry.name);
            match self.disk.list(&path) {
                Err(e) if !entry.is_dir || e.kind() == std::io::ErrorKind::NotFound => {} // not ours, or gone just now
                found => {
                    all.extend(found.during("list", &path)?.iter().filter_map(|e| Blobs::number_of(&e.name)))
                }
            }
        }
        Ok(all)
    }

    /// The file of a number, which is a chunk or not.
    pub(crate) fn file_of(&self, number: u64, is_chunk: bool) -> PathBuf {
        self.file_path(number, if is_chunk { "chunk" } else { "blob" })
    }

    /// The numbers of all files there, before any is made in this life, and which are chunks.
    /// Directories without any go.
    fn list(&self) -> Result<Vec<(u64, bool)>> {
        let (mut all, mut dirs) = (Vec::new(), self.dirs.lock());
        for entry in self.disk.list(&self.dir).during("list", &self.dir)? {
            let number = entry.name.split('-').next().and_then(|name| u64::from_str_radix(name, 16).ok());
            let Some(dir) = number.filter(|_| entry.is_dir) else { continue };
            let path = self.dir_path(dir);
            if path.file_name().is_none_or(|name| *name != *entry.name) {
                continue; // not ours
            }
            let files = self.disk.list(&path).during("list", &path)?;
            let before = all.len();
            all.extend(files.iter().filter_map(|e| Blobs::number_of(&e.name)));
            match (all.len() - before) as u64 {
                0 if files.is_empty() => drop(self.disk.remove_dir(&path)), // else it is tried again
                count => drop(dirs.counts.insert(dir, count)),
            }
        }
        Ok(all)
    }
}

/// The file at `path`, which is to be the value of `blob`. None if there is no such file.
pub fn open_blob_file(disk: &dyn Disk, path: PathBuf, blob: &BlobRef) -> Result<Option<OpenBlob>> {
    match disk.open(&path, OpenMode::Read) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(OpenBlob::new(file.during("open", &path)?, path, *blob))),
    }
}

#[cfg(test)]
mod tests;
