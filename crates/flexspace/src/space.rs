//! # FlexSpace: a file whose bytes can be inserted and removed anywhere
//!
//! What users call. What the calls share, and who locks what: `shared.rs`; how an operation comes
//! about: `commit.rs`; what opening finds after a crash: `recover.rs`. See the crate's page for the
//! picture.

use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use std::path::Path;
use std::sync::Arc;

use sheaf_base::disk::{Disk, LockMode, LockOutcome};
use sheaf_base::error::{Error, IoContext, LockConflict, Result};
use sheaf_base::memory::MemoryPart;
use sheaf_base::parallel::StepThread;

use crate::check::Verification;
use crate::edit::Edit;
use crate::maintenance::MaintenanceTiming;
use crate::options::SpaceOptions;
use crate::segment_allocator::GC_FREE_SEGMENTS;
use crate::shared::{BACKGROUND_INTERVAL, EXTENT_BYTES, SharedSpace};
use crate::view::SpaceView;
use crate::writer::{SpaceOp, WriteClass};
use crate::{open_partial, recover};

/// The file that holds the lock.
const LOCK: &str = "LOCK";

/// Figures of a space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Length in bytes, holes included.
    pub len: u64,
    /// Extents and holes.
    pub extents: u64,
    /// Bytes of the index in memory.
    pub index_bytes: u64,
    /// Versions that readers hold, the newest included.
    pub versions: u64,
    /// Operations so far, in all lives of the space; and how many of them are durable.
    pub operations: u64,
    /// See `operations`.
    pub durable_operations: u64,
    /// Bytes that live in data files, checksums included.
    pub live_bytes: u64,
    /// Most bytes that may live there; without a limit, a large number.
    pub capacity: u64,
    /// Segments in the data files.
    pub segments: u64,
    /// Segments that can be written.
    pub free_segments: u64,
    /// Bytes that can be written without more room on the disk.
    pub preallocated_bytes: u64,
    /// Segments that are empty and wait for a sync, or for readers, before they can be written.
    pub dead_segments: u64,
    /// Data bytes written by users since the opening, checksums included.
    pub written_bytes: u64,
    /// Data bytes moved by garbage collection since the opening.
    pub moved_bytes: u64,
    /// Segments given back since the opening.
    pub freed_segments: u64,
    /// Checkpoints since the opening.
    pub checkpoints: u64,
    /// Syncs since the opening.
    pub syncs: u64,
}

/// An open FlexSpace. Dropping it closes it; errors of that are lost: prefer [`FlexSpace::close`].
///
/// ```
/// use sheaf_flexspace::{FlexSpace, SpaceOptions};
/// # fn main() -> sheaf_base::error::Result<()> {
/// # let disk = std::sync::Arc::new(sheaf_base::disk::sim::SimDisk::new());
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
    /// `None` for a reader of a space without a lock.
    _lock: Option<DirLock>,
}

/// A lock that is held.
type DirLock = Box<dyn std::fmt::Debug + Send + Sync>;

/// Locks a space. One that was restored or copied has no lock until somebody opens it for writing;
/// a reader may not make one and reads without. A database's own lock keeps writers away from its
/// spaces meanwhile.
fn lock(disk: &dyn Disk, dir: &Path, read_only: bool) -> Result<Option<DirLock>> {
    let share = if read_only { LockMode::Shared } else { LockMode::Exclusive };
    match disk.lock(&dir.join(LOCK), share) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && read_only => Ok(None),
        locked => match locked.during("lock", dir)? {
            LockOutcome::Acquired(lock) => Ok(Some(lock)),
            LockOutcome::Busy(pid) => Err(Error::locked(dir, pid, LockConflict::Owner)),
        },
    }
}

impl FlexSpace {
    /// Opens the space in the directory `dir` of the machine.
    ///
    /// # Errors
    ///
    /// `Locked` if it is open elsewhere, `NotFound` if there is none and `options.create` says no,
    /// `Corrupt` if what must be there is not.
    pub fn open(dir: impl AsRef<Path>, options: SpaceOptions) -> Result<FlexSpace> {
        FlexSpace::open_on(Arc::new(sheaf_base::disk::real::RealDisk::default()), dir, options)
    }

    /// As [`FlexSpace::open`], on any disk.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::open`].
    pub fn open_on(disk: Arc<dyn Disk>, dir: impl AsRef<Path>, options: SpaceOptions) -> Result<FlexSpace> {
        let dir = dir.as_ref();
        if options.create && !options.read_only {
            recover::make_dir(&*disk, dir)?;
        } else if let Err(error) = disk.list(dir) {
            return Err(match error.kind() {
                std::io::ErrorKind::NotFound => Error::DatabaseNotFound { path: dir.to_path_buf() },
                _ => Error::io("list", dir, error),
            });
        }
        let lock = lock(&*disk, dir, options.read_only)?;
        let is_inline = options.inline || options.read_only;
        let shared = Arc::new(recover::open(disk, dir, options)?);
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
    /// that are left. Its bytes may have been superseded or removed by the missing operations.
    /// Calls `skipped` with the error of each file, and of the part of the log, that is left out.
    /// Without a head the grains are those of `options`.
    ///
    /// ```
    /// use sheaf_base::disk::{Disk, sim::SimDisk};
    /// use sheaf_flexspace::{FlexSpace, SpaceOptions};
    /// # fn main() -> sheaf_base::error::Result<()> {
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
    /// Returns `Corrupt` if no checkpoint, or nothing that says which space it is, can be read,
    /// `InvalidArgument` if `options` are not read-only, and the errors of reading.
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

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.shared.current.load().tree.len()
    }

    /// True if it has no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number last set by [`Edit::mark`]: at opening, that of the last operation that a crash
    /// left.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.shared.current.load().mark
    }

    /// Operations so far, in all lives of the space, those of garbage collection included.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.shared.current.load().tree.version()
    }

    /// The state as of now, to read from for as long as it is held. What it alone needs takes space
    /// that long.
    #[must_use]
    pub fn view(&self) -> SpaceView {
        SpaceView::new(self.shared.current.load_full())
    }

    /// Fills `buf` from `at`; fewer bytes only at the end. How many.
    ///
    /// # Errors
    ///
    /// `Corrupt` if a byte is not what was written; `Io` if it cannot be read.
    pub fn read(&self, at: u64, buf: &mut [u8]) -> Result<usize> {
        self.shared.current.load().read(at, buf)
    }

    /// As [`SpaceView::read_extent`], of the state as of now.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::read`].
    pub fn read_extent(&self, at: u64, max: usize) -> Result<Option<crate::view::ExtentBytes>> {
        self.shared.current.load().read_extent(at, max)
    }

    /// Starts an operation of several parts, which is there whole or not at all.
    pub fn edit(&self) -> Edit<'_> {
        Edit::new(self)
    }

    /// Replaces the bytes from `at` on by `bytes`, and goes on behind the end. Beyond the end it
    /// leaves a hole, which reads as zeros and takes no space.
    ///
    /// # Errors
    ///
    /// Nothing was changed: `NoSpace`, `MemoryBudgetExceeded`, `TooLarge`, `Io`. `Poisoned` since a
    /// failed sync.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.shared.commit(&[SpaceOp::Write { at, bytes }])
    }

    /// Inserts `bytes` at `at`; what was there and behind moves.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::write`]; `InvalidArgument` if `at` is beyond the end.
    pub fn insert(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.shared.commit(&[SpaceOp::Insert { at, bytes }])
    }

    /// Inserts a hole of `len` bytes at `at`.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::insert`].
    pub fn insert_hole(&self, at: u64, len: u64) -> Result<()> {
        self.shared.commit(&[SpaceOp::InsertHole { at, len }])
    }

    /// Removes `len` bytes at `at`; what was behind moves to `at`.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::insert`], if the range is not within the space. Needs no room in the
    /// data files.
    pub fn collapse(&self, at: u64, len: u64) -> Result<()> {
        self.shared.commit(&[SpaceOp::Collapse { at, len }])
    }

    /// Writes the bytes of a range again, in as few extents as can be; holes stay holes. Content
    /// does not change.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::write`]; damage in the range.
    pub fn defrag(&self, at: u64, len: u64) -> Result<()> {
        self.shared.defrag(at, len)
    }

    /// Makes everything durable that was done before the call.
    ///
    /// # Errors
    ///
    /// `Poisoned` if it failed, now or before: the space refuses changes until it is opened again.
    pub fn sync(&self) -> Result<()> {
        self.shared.sync()
    }

    /// One step of everything that is due in the background. True if there was anything.
    ///
    /// # Errors
    ///
    /// What the step met.
    pub fn maintain(&self) -> Result<bool> {
        self.shared.maintain(MaintenanceTiming::Idle)
    }

    /// As [`FlexSpace::maintain`], for who goes on with the next operation at once: the kernel gets
    /// what was written when it is worth a call of the system, and nothing is taken for the end of
    /// the work.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn maintain_busy(&self) -> Result<bool> {
        self.shared.maintain(MaintenanceTiming::Busy)
    }

    /// As [`FlexSpace::maintain`] where the disk is full: garbage is collected as long as any is,
    /// and segments that nothing needs are given back at once. True if there are more to write to
    /// than before.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::maintain`].
    pub fn reclaim(&self) -> Result<bool> {
        self.shared.maintain(MaintenanceTiming::Idle)?;
        match self.shared.reclaim_segments() {
            Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(false),
            other => other,
        }
    }

    /// Writes a checkpoint: the next opening has no log to replay.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::sync`].
    pub fn checkpoint(&self) -> Result<()> {
        self.shared.checkpoint()
    }

    /// The state as of now, durable, as files that can be copied and opened as a space: they stay
    /// as they are for as long as it is held. What it alone needs takes space that long.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::sync`].
    pub fn pin_files(&self) -> Result<crate::PinnedSpace> {
        self.shared.pin_files()
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> SpaceStats {
        self.shared.stats()
    }

    /// Bytes of the index in memory; nodes that removals left free are room for extents to come,
    /// and do not count.
    #[must_use]
    pub fn index_bytes(&self) -> u64 {
        let entries = self.shared.current.load().tree.entries();
        self.shared.accounted.load(Ordering::Relaxed).min(entries * EXTENT_BYTES)
    }

    /// Bytes of the disk that going on takes in any case: what garbage collection copies to, of
    /// 30/32 that may live (paper, section 4.1), and an index for the next checkpoint. And the
    /// bytes that have blocks already.
    #[must_use]
    pub fn disk_reserve(&self) -> (u64, u64) {
        let (g, w) = (&self.shared.geometry, self.shared.writer.lock());
        let upkeep = (w.total_live / 15).max((GC_FREE_SEGMENTS as u64 + 2) * g.segment);
        let needs = upkeep + self.shared.maintenance_bytes();
        (needs, w.writable_now(WriteClass::Gc))
    }

    /// What was damaged at opening and could be made again: a checkpoint, from the one before it
    /// and its log.
    #[must_use]
    pub fn repaired_damage(&self) -> Option<&Error> {
        self.shared.repaired_damage.as_ref()
    }

    /// Reads every byte there is, and both checkpoints; each damaged extent goes to `report`.
    ///
    /// # Errors
    ///
    /// None of damage; that goes to `report`.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<()> {
        self.verification().run(&mut report, &mut |_| Ok(()))
    }

    /// What [`FlexSpace::verify`] does, of the state as of now, for who cannot hold on to the space
    /// meanwhile.
    #[must_use]
    pub fn verification(&self) -> Verification {
        Verification::new(Arc::clone(&self.shared), self.view())
    }

    /// Syncs, writes a checkpoint, and marks the space as closed in order.
    ///
    /// # Errors
    ///
    /// As for [`FlexSpace::sync`].
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
        let _ = self.shared.close(); // whoever wants to know calls `close`
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
            syncs: read(&self.counters.syncs),
        }
    }
}
