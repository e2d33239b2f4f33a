//! # FlexSpace: the public API of a space
//!
//! `shared.rs` has the state that the calls share and the order of locks. `write/commit.rs`
//! executes operations, and `recovery/` opens a space after a crash. The crate documentation has
//! the picture.

use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;
use std::sync::Arc;

use sheaf_platform::disk::{Disk, LockMode, LockOutcome};
use sheaf_platform::error::{Error, IoContext, IoOp, LockConflict, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::parallel::StepThread;

use crate::maintenance::MaintenanceTiming;
use crate::options::SpaceOptions;
use crate::read::check::Verification;
use crate::read::view::{ExtentBytes, SpaceView};
use crate::recovery::{self, open_partial};
use crate::segments::segment_allocator::GC_FREE_SEGMENTS;
use crate::shared::{BACKGROUND_INTERVAL, EXTENT_BYTES, SharedSpace};
use crate::write::edit::Edit;
use crate::write::writer::{SpaceOp, WriteClass};

/// Name of the lock file.
const LOCK: &str = "LOCK";

/// Statistics of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Length in bytes, holes included.
    pub len: u64,
    /// Number of extents and holes.
    pub extents: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
    /// Number of versions that readers hold, including the newest.
    pub versions: u64,
    /// Number of operations since the space was created.
    pub operations: u64,
    /// Number of these operations that are durable.
    pub durable_operations: u64,
    /// Live bytes in data files, including checksums.
    pub live_bytes: u64,
    /// Maximum of `live_bytes`; a large number without a limit.
    pub capacity: u64,
    /// Number of segments in data files.
    pub segments: u64,
    /// Number of segments that can be written.
    pub free_segments: u64,
    /// Bytes that can be written without allocating disk blocks.
    pub preallocated_bytes: u64,
    /// Number of empty segments that still wait for a sync or for readers.
    pub dead_segments: u64,
    /// Data bytes written by users since the space was opened, including checksums.
    pub written_bytes: u64,
    /// Data bytes moved by garbage collection since the space was opened.
    pub moved_bytes: u64,
    /// Number of segments freed since the space was opened.
    pub freed_segments: u64,
    /// Number of checkpoints since the space was opened.
    pub checkpoints: u64,
    /// Bytes that these checkpoints wrote: nodes of the index and images.
    pub checkpoint_bytes: u64,
    /// Number of syncs since the space was opened.
    pub syncs: u64,
}

/// An open FlexSpace. Dropping it closes it and ignores errors; prefer [`FlexSpace::close`].
///
/// ```
/// use sheaf_flexspace::{FlexSpace, SpaceOptions};
/// # fn main() -> sheaf_platform::error::Result<()> {
/// # let disk = std::sync::Arc::new(sheaf_sim::SimDisk::new());
/// let options = SpaceOptions { inline: true, ..SpaceOptions::default() };
/// let space = FlexSpace::open_on(disk, "/text", options)?;
/// space.write(0, b"hello world")?;
/// space.insert(5, b", wide")?;
/// space.collapse(0, 2)?;
/// let mut text = vec![0; space.len() as usize];
/// space.read(0, &mut text)?;
/// assert_eq!(text, b"llo, wide world");
/// space.sync()?;
/// space.close()
/// # }
/// ```
#[derive(Debug)]
pub struct FlexSpace {
    shared: Arc<SharedSpace>,
    workers: Vec<StepThread>,
    /// `None` for a reader of a space that has no lock file.
    _lock: Option<DirLock>,
}

/// Lock held by this process.
type DirLock = Box<dyn std::fmt::Debug + Send + Sync>;

/// Locks a space. A restored or copied space has no lock file until it is opened for writing. A
/// reader must not create one and reads without a lock. The lock of the database that contains the
/// space keeps writers away in that case.
fn lock(disk: &dyn Disk, dir: &Path, read_only: bool) -> Result<Option<DirLock>> {
    let share = if read_only { LockMode::Shared } else { LockMode::Exclusive };
    match disk.lock(&dir.join(LOCK), share) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && read_only => Ok(None),
        locked => match locked.during(IoOp::Lock, dir)? {
            LockOutcome::Acquired(lock) => Ok(Some(lock)),
            LockOutcome::Busy(pid) => Err(Error::locked(dir, pid, LockConflict::Owner)),
        },
    }
}

impl FlexSpace {
    /// Opens the space in directory `dir` of the real disk.
    ///
    /// # Errors
    ///
    /// Returns `Locked` if the space is open elsewhere, and `DatabaseNotFound` if it does not exist
    /// and must not be created. Returns `Corrupt` if required data is missing or damaged, and the
    /// errors of reading and writing files.
    pub fn open(dir: impl AsRef<Path>, options: SpaceOptions) -> Result<FlexSpace> {
        FlexSpace::open_on(Arc::new(sheaf_platform::disk::real::RealDisk::default()), dir, options)
    }

    /// Like [`FlexSpace::open`], on any disk.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::open`].
    pub fn open_on(disk: Arc<dyn Disk>, dir: impl AsRef<Path>, options: SpaceOptions) -> Result<FlexSpace> {
        let dir = dir.as_ref();
        if options.create && !options.read_only {
            recovery::make_dir(&*disk, dir)?;
        } else if let Err(error) = disk.list(dir) {
            return Err(match error.kind() {
                std::io::ErrorKind::NotFound => Error::DatabaseNotFound { path: dir.to_path_buf() },
                _ => Error::io(IoOp::List, dir, error),
            });
        }
        let lock = lock(&*disk, dir, options.read_only)?;
        let is_inline = options.inline || options.read_only;
        let shared = Arc::new(recovery::open(disk, dir, options)?);
        let mut workers = Vec::new();
        if !is_inline {
            let (keeper, gc_waker) = (Arc::clone(&shared), Arc::clone(&shared));
            let keep = move || keeper.housekeep(MaintenanceTiming::Idle).unwrap_or(false);
            let collect = move || gc_waker.gc_if_due().unwrap_or(false);
            workers.push(StepThread::start(
                "flexspace",
                shared.maintenance_waker.clone(),
                BACKGROUND_INTERVAL,
                keep,
            )?);
            workers.push(StepThread::start(
                "flexspace-gc",
                shared.gc_waker.clone(),
                BACKGROUND_INTERVAL,
                collect,
            )?);
        }
        Ok(FlexSpace { shared, workers, _lock: lock })
    }

    /// Opens the readable part of a damaged space, without writing: the head, checkpoint and log
    /// that are left. The missing operations may have superseded or removed the bytes that it
    /// contains. Calls `skipped` with the error of each file, and of the part of the log, that is
    /// left out. Without a head the sizes are those of `options`.
    ///
    /// ```
    /// use sheaf_platform::disk::Disk;
    /// use sheaf_sim::SimDisk;
    /// use sheaf_flexspace::{FlexSpace, SpaceOptions};
    /// # fn main() -> sheaf_platform::error::Result<()> {
    /// let disk = std::sync::Arc::new(SimDisk::new());
    /// let options = SpaceOptions { inline: true, ..SpaceOptions::default() };
    /// let space = FlexSpace::open_on(disk.clone(), "/text", options)?;
    /// space.write(0, b"hello world")?;
    /// space.close()?;
    /// for slot in ["/text/HEAD.0", "/text/HEAD.1"] {
    ///     disk.overwrite(slot.as_ref(), 0, &[0; 200]).expect("it is there");
    /// }
    /// let options = SpaceOptions { read_only: true, inline: true, ..SpaceOptions::default() };
    /// assert!(FlexSpace::open_on(disk.clone(), "/text", options.clone()).is_err());
    /// let mut report = |error| println!("{error}");
    /// let space = FlexSpace::open_partial(disk, "/text", options, &mut report)?;
    /// let mut text = vec![0; 11];
    /// space.read(0, &mut text)?;
    /// assert_eq!(text, b"hello world");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns `InvalidArgument` if `options` are not read-only, and `Corrupt` if no checkpoint can
    /// be read or no file identifies the space. Returns `Locked` and the errors of reading.
    pub fn open_partial(
        disk: Arc<dyn Disk>,
        dir: impl AsRef<Path>,
        options: SpaceOptions,
        skipped: &mut dyn FnMut(Error),
    ) -> Result<FlexSpace> {
        let dir = dir.as_ref();
        if !options.read_only {
            let why = "a damaged space is only read".to_owned();
            return Err(Error::InvalidArgument { argument: "options", reason: why });
        }
        let lock = lock(&*disk, dir, true)?;
        let shared = Arc::new(open_partial::open(disk, dir, options, skipped)?);
        Ok(FlexSpace { shared, workers: Vec::new(), _lock: lock })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shared.current.load().tree.len()
    }

    /// Returns true if the space contains no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number last set by [`Edit::mark`]. After opening, it is the mark of the last
    /// recovered operation.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.shared.current.load().mark
    }

    /// Returns the number of operations since the space was created, including those of garbage
    /// collection.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.current.load().tree.version()
    }

    /// Returns the current state for reading. While the view is held, the segments that only it
    /// references cannot be reused.
    #[must_use]
    pub fn view(&self) -> SpaceView {
        SpaceView::new(self.shared.current.load_full())
    }

    /// Fills `buf` with the bytes from `at`. Returns the number of bytes, which is smaller than the
    /// buffer only at the end of the space.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a checksum does not match and `Io` if the bytes cannot be read.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.shared.current.load().read(at, buf)
    }

    /// Like [`SpaceView::read_extent`], on the current state.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::read`].
    pub fn read_extent(&self, at: u64, max: usize) -> Result<Option<ExtentBytes>> {
        self.shared.current.load().read_extent(at, max)
    }

    /// Starts an atomic operation of several parts.
    pub fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }

    /// Overwrites the bytes from `at` with `bytes`, and appends the part beyond the end. If `at` is
    /// beyond the end, the gap becomes a hole, which reads as zeros and takes no space.
    ///
    /// # Errors
    ///
    /// Returns `NoSpace`, `FileSizeLimit`, `MemoryBudgetExceeded`, `TooLarge`, `ReadOnly` or `Io`,
    /// and `Poisoned` after a failed sync. The content is unchanged in each case.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.shared.commit(&[SpaceOp::Write { at, bytes }])
    }

    /// Inserts `bytes` at `at`. The bytes from `at` on move behind them.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::write`], and `InvalidArgument` if `at` is beyond the end.
    pub fn insert(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.shared.commit(&[SpaceOp::Insert { at, bytes }])
    }

    /// Inserts a hole of `len` bytes at `at`.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::insert`].
    pub fn insert_hole(&self, at: u64, len: u64) -> Result<()> {
        self.shared.commit(&[SpaceOp::InsertHole { at, len }])
    }

    /// Removes `len` bytes at `at`. The bytes behind them move to `at`. Takes no space in data
    /// files.
    ///
    /// # Errors
    ///
    /// Returns `InvalidArgument` if the range is not within the space, and the errors of
    /// [`FlexSpace::write`].
    pub fn collapse(&self, at: u64, len: u64) -> Result<()> {
        self.shared.commit(&[SpaceOp::Collapse { at, len }])
    }

    /// Rewrites a range into as few extents as possible. Holes stay holes. The content does not
    /// change.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::write`], and `Corrupt` if the range is damaged.
    pub fn defrag(&self, at: u64, len: u64) -> Result<()> {
        self.shared.defrag(at, len)
    }

    /// Makes all operations before the call durable.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed sync. The space is then poisoned: changes return `Poisoned`
    /// until it is reopened. Returns `Io` or `NoSpace` if buffered bytes cannot be written; that
    /// does not poison, and the next sync tries again. Returns `TooManyFiles` or `ReadOnly`.
    pub fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    /// Executes one step of each kind of background work that is due. Returns true if there may be
    /// more.
    ///
    /// # Errors
    ///
    /// Returns the errors of the step.
    pub fn maintain(&self) -> Result<bool> {
        self.shared.maintain(MaintenanceTiming::Idle)
    }

    /// Like [`FlexSpace::maintain`], for a caller that continues with the next operation
    /// immediately. Flushes only if enough bytes have gathered, and does not treat the space as
    /// idle.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::maintain`].
    pub fn maintain_busy(&self) -> Result<bool> {
        self.shared.maintain(MaintenanceTiming::Busy)
    }

    /// Like [`FlexSpace::maintain`], for a full disk. Collects garbage as long as there is any, and
    /// frees unused segments immediately. Returns true if more segments can be written than before.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::maintain`]. A lack of disk space while reclaiming returns
    /// false.
    pub fn reclaim(&self) -> Result<bool> {
        self.shared.maintain(MaintenanceTiming::Idle)?;
        match self.shared.reclaim_segments() {
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(false),
            other => other,
        }
    }

    /// Writes a checkpoint, so that the next opening replays no log.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::sync`] and of writing the checkpoint.
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// Syncs, and returns the current state as files that can be copied and opened as a space. The
    /// files do not change while the result is held. Segments that only it references cannot be
    /// reused.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::sync`].
    pub fn pin_files(&self) -> Result<crate::PinnedSpace> {
        self.shared.pin_files()
    }

    /// Returns statistics.
    #[must_use]
    pub fn stats(&self) -> SpaceStats {
        self.shared.stats()
    }

    /// Returns the bytes of the index in memory. Nodes that removals left free do not count: new
    /// extents will use them.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let entries = self.shared.current.load().tree.entries();
        self.shared.accounted.load(Ordering::Relaxed).min(entries * EXTENT_BYTES)
    }

    /// Returns the disk space that continued operation requires, and the part of it that is
    /// allocated. Garbage collection requires 1/15 of the live bytes to copy to, because at most
    /// 30/32 of the segments may be live (paper, section 4.1). A checkpoint requires space for the
    /// index.
    #[must_use]
    pub fn disk_reserve(&self) -> (u64, u64) {
        let (g, w) = (&self.shared.geometry, self.shared.writer.lock());
        let upkeep = (w.total_live / 15).max((GC_FREE_SEGMENTS as u64 + 2) * g.segment);
        let needs = upkeep + self.shared.maintenance_bytes();
        (needs, w.writable_now(WriteClass::Gc))
    }

    /// Returns the damage that opening found and repaired: a damaged checkpoint, which was rebuilt
    /// from the previous one and its log.
    #[must_use]
    pub fn repaired_damage(&self) -> Option<&Error> {
        self.shared.repaired_damage.as_ref()
    }

    /// Reads all bytes and both checkpoints. Calls `report` with each damaged extent.
    ///
    /// # Errors
    ///
    /// Returns errors of reading other than damage. Damage is only reported.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<()> {
        self.verification().run(&mut report, &mut |_| Ok(()))
    }

    /// Returns the work of [`FlexSpace::verify`] on the current state as a separate object, which
    /// does not borrow the space.
    #[must_use]
    pub fn verification(&self) -> Verification {
        Verification::new(Arc::clone(&self.shared), self.view())
    }

    /// Syncs, writes a checkpoint, and marks the space as cleanly closed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`FlexSpace::checkpoint`].
    pub fn close(mut self) -> Result<()> {
        self.workers.clear();
        self.shared.close()
    }

    pub(crate) fn shared(&self) -> &SharedSpace {
        &self.shared
    }
}

impl Drop for FlexSpace {
    fn drop(&mut self) {
        self.workers.clear();
        let _ = self.shared.close(); // `close` reports errors; a drop cannot.
        let bytes = self.shared.accounted.swap(0, Ordering::Relaxed);
        self.shared.options.memory.give_back(MemoryPart::Index, bytes);
    }
}

impl SharedSpace {
    fn stats(&self) -> SpaceStats {
        let version = self.current.load_full();
        let w = self.writer.lock();
        let there =
            w.data_files.files.iter().flatten().count() as u64 * u64::from(self.geometry.segments_per_file);
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpaceStats {
            len: version.tree.len(),
            extents: version.tree.entries(),
            index_bytes: w.tree.allocated_bytes(),
            versions: w.tree.versions() as u64,
            operations: w.seq,
            durable_operations: self.durable.load(Ordering::Acquire),
            live_bytes: w.total_live,
            capacity: w.capacity(),
            segments: there,
            free_segments: (w.allocator.free.len() + w.allocator.without_blocks.len()) as u64,
            preallocated_bytes: w.writable_now(WriteClass::User),
            dead_segments: w.dead_segments(),
            written_bytes: read(&self.counters.written),
            moved_bytes: read(&self.counters.moved),
            freed_segments: read(&self.counters.freed),
            checkpoints: read(&self.counters.checkpoints),
            checkpoint_bytes: read(&self.counters.checkpoint_bytes),
            syncs: read(&self.counters.syncs),
        }
    }
}
