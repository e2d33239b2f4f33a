//! # Emulated disk: files in persistent memory that loses power
//!
//! A simulated disk keeps names and lengths, [`EmulatedPmem`] the bytes. Writes and syncs of a file
//! behave as on a DAX file system, and `map_persistent` gives the memory itself. [`super::PmDisk`]
//! on this disk therefore runs the same code as on a real one.
//!
//! A power cut can be planned for any event: a store, a flush, a fence, a sync, or a change of a
//! name or a length. The image of that moment is kept, and the run continues.
//!
//! ## Blind spots
//!
//! Names and lengths that were not synced are lost in every power cut. Damaged media. Memory that
//! the file system has moved.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use sheaf_platform::disk::persistent::{PersistenceMode, PersistentMemory};
use sheaf_platform::disk::{DirEntry, Disk, File, FileIdentity, LockMode, LockOutcome, OpenMode};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_sim::{KeepChoice, SimDisk};

use super::emulated::offset;
use super::{EmulatedPmem, UnfencedBytes};

/// Disk with emulated persistent memory; see the [module](self). A clone is the same disk.
#[derive(Clone, Debug)]
pub struct EmulatedDisk(Arc<DiskInner>);

#[derive(Debug)]
struct DiskInner {
    names: SimDisk,
    files: Mutex<BTreeMap<PathBuf, Arc<EmulatedFile>>>,
    next_inode: AtomicU64,
    /// Number of events since the disk was made.
    events: AtomicU64,
    /// Number that the test sets, kept with the image of a planned power cut.
    mark: AtomicU64,
    plan: Mutex<Option<(u64, UnfencedBytes)>>,
    image: Mutex<Option<(EmulatedDisk, u64)>>,
    /// Whether fences do nothing: a bug that the power cuts must find.
    loses_fences: AtomicBool,
}

impl DiskInner {
    /// Counts an event. Keeps the image of this moment if a power cut is planned for it.
    fn note_event(&self) {
        let event = self.events.fetch_add(1, Ordering::Relaxed);
        let planned = self.plan.lock().take_if(|(at, _)| *at == event);
        if let Some((_, fate)) = planned {
            let image = self.power_cut(fate).expect("the names are in memory");
            *self.image.lock() = Some((image, self.mark.load(Ordering::Relaxed)));
        }
    }

    fn power_cut(&self, fate: UnfencedBytes) -> io::Result<EmulatedDisk> {
        let names = self.names.power_cut(&KeepChoice::None);
        let files = self.files.lock();
        for (path, len) in names.files() {
            if let Some(file) = files.get(&path) {
                let mut bytes = file.pmem.after_power_cut(fate);
                bytes.resize(usize::try_from(len).map_err(io::Error::other)?, 0);
                names.put_file(&path, &bytes)?;
            }
        }
        EmulatedDisk::new(names)
    }
}

impl EmulatedDisk {
    /// Creates a disk with the files of `names`, copied into memory.
    ///
    /// # Errors
    ///
    /// Returns an error if a file of `names` cannot be opened or read.
    pub fn new(names: SimDisk) -> io::Result<EmulatedDisk> {
        let disk = EmulatedDisk(Arc::new(DiskInner {
            names,
            files: Mutex::default(),
            next_inode: AtomicU64::new(1),
            events: AtomicU64::new(0),
            mark: AtomicU64::new(0),
            plan: Mutex::default(),
            image: Mutex::default(),
            loses_fences: AtomicBool::new(false),
        }));
        for (path, _) in disk.0.names.files() {
            let bytes = disk.0.names.read_file(&path)?;
            let file = disk.file(&path, OpenMode::ReadWrite, EmulatedPmem::with_bytes(bytes))?;
            disk.0.files.lock().insert(path, file);
        }
        Ok(disk)
    }

    /// Returns the disk after a power cut: with the names that were synced, and for each file the
    /// fenced bytes and the part of the others that `fate` keeps.
    ///
    /// # Errors
    ///
    /// Returns an error if a file of the names cannot be written or read, or is too large for
    /// memory.
    pub fn power_cut(&self, fate: UnfencedBytes) -> io::Result<EmulatedDisk> {
        self.0.power_cut(fate)
    }

    /// Plans a power cut before the event number `event`.
    pub fn plan_power_cut(&self, event: u64, fate: UnfencedBytes) {
        *self.0.plan.lock() = Some((event, fate));
    }

    /// Returns the number of events so far.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.0.events.load(Ordering::Relaxed)
    }

    /// Sets the number that is kept with the image of a planned power cut.
    pub fn set_mark(&self, mark: u64) {
        self.0.mark.store(mark, Ordering::Relaxed);
    }

    /// Returns the image of the planned power cut and the mark at that time, once.
    #[must_use]
    pub fn take_image(&self) -> Option<(EmulatedDisk, u64)> {
        self.0.image.lock().take()
    }

    /// Makes all fences of this disk do nothing, to prove that the power cuts find it.
    pub fn lose_fences(&self) {
        self.0.loses_fences.store(true, Ordering::Relaxed);
    }

    fn file(&self, path: &Path, open_mode: OpenMode, pmem: EmulatedPmem) -> io::Result<Arc<EmulatedFile>> {
        Ok(Arc::new(EmulatedFile {
            inner: self.0.names.open(path, open_mode)?,
            pmem: Arc::new(pmem),
            inode: self.0.next_inode.fetch_add(1, Ordering::Relaxed),
            disk: Arc::downgrade(&self.0),
        }))
    }
}

/// A file of the disk. All its handles are this one.
#[derive(Debug)]
struct EmulatedFile {
    /// File on the simulated disk, which keeps the name and the length.
    inner: Arc<dyn File>,
    pmem: Arc<EmulatedPmem>,
    inode: u64,
    disk: Weak<DiskInner>,
}

impl EmulatedFile {
    fn note_event(&self) {
        if let Some(disk) = self.disk.upgrade() {
            disk.note_event();
        }
    }
}

/// Mapping of a file.
#[derive(Debug)]
struct EmulatedMapping {
    pmem: Arc<EmulatedPmem>,
    len: u64,
    disk: Weak<DiskInner>,
}

impl EmulatedMapping {
    fn note_event(&self) -> bool {
        let disk = self.disk.upgrade();
        disk.is_some_and(|disk| {
            disk.note_event();
            disk.loses_fences.load(Ordering::Relaxed)
        })
    }
}

impl PersistentMemory for EmulatedMapping {
    // SAFETY: the contract is that of `PersistentMemory::store`, which is passed on unchanged.
    unsafe fn store(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.note_event();
        assert!(at + bytes.len() as u64 <= self.len, "a store leaves its mapping");
        // SAFETY:
        // * The caller promises the same.
        unsafe { self.pmem.store(at, bytes) }
    }

    fn flush(&self, range: Range<u64>) -> io::Result<()> {
        self.note_event();
        assert!(range.end <= self.len, "pmem::disk (I4): a flush stays in its mapping");
        self.pmem.flush(range)
    }

    fn fence(&self) -> io::Result<()> {
        match self.note_event() {
            true => Ok(()),
            false => self.pmem.fence(),
        }
    }
}

impl File for EmulatedFile {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let at = usize::try_from(at).map_err(io::Error::other)?;
        if at.checked_add(buf.len()).is_none_or(|end| end > self.pmem.len()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.pmem.load(at, buf);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.note_event();
        let at = usize::try_from(at).map_err(io::Error::other)?;
        let end = at + bytes.len();
        if end > self.pmem.len() {
            self.inner.set_len(end as u64)?;
            self.pmem.resize(end);
        }
        self.pmem.write(at, bytes);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.pmem.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.note_event();
        self.inner.set_len(len)?;
        self.pmem.resize(offset(len));
        Ok(())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.note_event();
        self.inner.allocate(len)?;
        if offset(len) > self.pmem.len() {
            self.pmem.resize(offset(len));
        }
        self.pmem.allocate(0..offset(len));
        Ok(())
    }

    fn has_blocks(&self, _len: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn punch_hole(&self, at: u64, len: u64) -> io::Result<()> {
        self.note_event();
        self.pmem.punch_hole(offset(at)..offset(at + len));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.note_event();
        self.pmem.sync();
        self.inner.sync()
    }

    fn identity(&self) -> Option<FileIdentity> {
        Some(FileIdentity { device: 0, inode: self.inode })
    }

    fn map_persistent(&self, len: u64, _mode: PersistenceMode) -> io::Result<Arc<dyn PersistentMemory>> {
        let (pmem, disk) = (Arc::clone(&self.pmem), Weak::clone(&self.disk));
        Ok(Arc::new(EmulatedMapping { pmem, len, disk }))
    }
}

impl Disk for EmulatedDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if open_mode == OpenMode::Create {
            self.0.note_event();
            let file = self.file(path, open_mode, EmulatedPmem::default())?;
            self.0.files.lock().insert(path.to_path_buf(), Arc::clone(&file));
            return Ok(file);
        }
        let found = self.0.files.lock().get(path).cloned();
        found.map_or_else(|| Err(io::ErrorKind::NotFound.into()), |file| Ok(file as Arc<dyn File>))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.0.names.list(dir)
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.note_event();
        self.0.names.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.note_event();
        self.0.names.remove(path)?;
        self.0.files.lock().remove(path);
        Ok(())
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.names.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.note_event();
        self.0.names.rename(from, to)?;
        let mut files = self.0.files.lock();
        if let Some(file) = files.remove(from) {
            files.insert(to.to_path_buf(), file);
        }
        Ok(())
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.note_event();
        self.0.names.link(from, to)?;
        let mut files = self.0.files.lock();
        if let Some(file) = files.get(from).cloned() {
            files.insert(to.to_path_buf(), file);
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.note_event();
        self.0.names.sync_dir(dir)
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.0.names.lock(path, share)
    }

    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.0.names.lock_existing(path, share)
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.0.names.free_space(path)
    }
}
