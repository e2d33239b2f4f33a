//! # Shared: what users, the keeper and garbage collection have in common
//!
//! ## Threads
//!
//! Any thread may call anything. Locks, in order: `gc_pass`, `checkpointing`, `maintenance`,
//! `syncing`, `flushing`, `allocating`, `writer`. Readers take none: they load the current version.
//! Under `writer` there is no call of the system but the data's `pwrite` when all buffers are in
//! use. Two threads work in the background: one keeps house (`maintenance.rs`), one collects.
//!
//! Both let others run every 2 ms (`base::work`): with more threads than processors a writer that
//! was asleep would else wait for the clock's next tick, or for three.

use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::disk::Disk;
use sheaf_base::double_slot::DoubleSlot;
use sheaf_base::error::{Error, Result};
use sheaf_base::memory::MemoryPart;
use sheaf_base::parallel::StepWaker;
use sheaf_base::segment::Segment;
use sheaf_base::sync::{Mutex, MutexGuard};
use sheaf_base::types::Incarnation;

use crate::current::CurrentVersion;
use crate::data_file::DataFiles;
use crate::extent::Extent;
use crate::format::{IndexRecord, RecoveryPoint, SpaceHead};
use crate::gc::GcPass;
use crate::options::{SpaceGeometry, SpaceOptions};
use crate::throttle::WriteThrottle;
use crate::tree::TreeSnapshot;
use crate::writer::SpaceWriter;

/// What an extent takes in the index.
pub(crate) const EXTENT_BYTES: u64 = 26;
/// How often a writer looks whether the lock is free before it sleeps: some 50 to 100 µs.
const LOCK_SPINS: u32 = if cfg!(shuttle) { 0 } else { 2000 };
/// Background work looks around at least this often.
pub(crate) const BACKGROUND_INTERVAL: Duration = Duration::from_millis(50);

/// A state of the space that readers may have.
#[derive(Debug)]
pub(crate) struct SpaceVersion {
    pub(crate) tree: Arc<TreeSnapshot<Extent>>,
    pub(crate) data_files: Arc<DataFiles>,
    pub(crate) mark: u64,
}

#[derive(Debug)]
pub(crate) struct HeadState {
    pub(crate) head_slots: DoubleSlot,
    /// As both slots are to have it.
    pub(crate) head: SpaceHead,
    /// They do not: writing failed. Nothing goes that one of them may name.
    pub(crate) is_write_pending: bool,
    /// Chapters that go when they do.
    pub(crate) obsolete: Vec<RecoveryPoint>,
    /// A segment for the log that is its spare when they do.
    pub(crate) pending_spare: Option<Arc<Segment>>,
    /// Size of the last checkpoint in bytes.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) is_closed: bool,
    /// The last operation that housekeeping saw, and when it saw that first.
    pub(crate) last_activity: (u64, Duration),
}

#[derive(Debug)]
pub(crate) struct SharedSpace {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) dir: PathBuf,
    pub(crate) options: SpaceOptions,
    pub(crate) geometry: SpaceGeometry,
    pub(crate) incarnation: Incarnation,
    pub(crate) current: CurrentVersion,
    pub(crate) gc_pass: Mutex<Option<GcPass>>,
    pub(crate) head_state: Mutex<HeadState>,
    /// One checkpoint, sync, flush, maker of segments at a time.
    pub(crate) checkpointing: Mutex<()>,
    pub(crate) syncing: Mutex<()>,
    pub(crate) flushing: Mutex<()>,
    pub(crate) allocating: Mutex<()>,
    pub(crate) writer: Mutex<SpaceWriter>,
    /// The operation whose version a checkpoint is written from: set, and taken back with the
    /// version, under the writer's lock.
    pub(crate) checkpoint_seq: AtomicU64,
    pub(crate) throttle: WriteThrottle,
    /// What was damaged at opening and made again.
    pub(crate) repaired_damage: Option<Error>,
    pub(crate) durable: AtomicU64,
    pub(crate) poison: Mutex<Option<&'static str>>,
    pub(crate) maintenance_waker: StepWaker,
    pub(crate) gc_waker: StepWaker,
    pub(crate) counters: SpaceCounters,
    pub(crate) accounted: AtomicU64,
}

#[derive(Debug, Default)]
pub(crate) struct SpaceCounters {
    pub(crate) written: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

impl SharedSpace {
    /// A space as its opening found it, with `tree` for readers.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: SpaceOptions,
        writer: SpaceWriter,
        tree: Arc<TreeSnapshot<Extent>>,
        maintenance: HeadState,
        healed: Option<Error>,
    ) -> SharedSpace {
        let first = SpaceVersion { tree, data_files: Arc::clone(&writer.data_files), mark: writer.mark };
        SharedSpace {
            dir: writer.dir.clone(),
            geometry: writer.data_files.geometry,
            incarnation: Incarnation(maintenance.head.incarnation),
            current: CurrentVersion::new(first),
            gc_pass: Mutex::new(None),
            checkpointing: Mutex::new(()),
            head_state: Mutex::new(maintenance),
            syncing: Mutex::new(()),
            flushing: Mutex::new(()),
            allocating: Mutex::new(()),
            checkpoint_seq: AtomicU64::new(u64::MAX),
            throttle: WriteThrottle::default(),
            repaired_damage: healed,
            durable: AtomicU64::new(writer.seq),
            writer: Mutex::new(writer),
            poison: Mutex::new(None),
            maintenance_waker: StepWaker::default(),
            gc_waker: StepWaker::default(),
            counters: SpaceCounters::default(),
            accounted: AtomicU64::new(0),
            disk,
            options,
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        match *self.poison.lock() {
            Some(op) => Err(Error::Poisoned { op }),
            None => Ok(()),
        }
    }

    /// The writer's lock, for those who have to be quick. Others hold it for some microseconds; a
    /// thread that gave its processor up for that got it back a tick of the clock later, or three
    /// (4 to 13 ms on two busy cores).
    pub(crate) fn writer(&self) -> MutexGuard<'_, SpaceWriter> {
        for _ in 0..LOCK_SPINS {
            if let Some(w) = self.writer.try_lock() {
                return w;
            }
            std::hint::spin_loop();
        }
        self.writer.lock()
    }

    /// From now on nothing is changed any more.
    pub(crate) fn poison<T>(&self, op: &'static str, answer: Result<T>) -> Result<T> {
        if answer.is_err() {
            self.poison.lock().get_or_insert(op);
        }
        answer
    }

    /// Logs, applies and publishes records whose data is written.
    pub(crate) fn commit_records(&self, w: &mut SpaceWriter, records: &[IndexRecord]) {
        w.log(self.durable.load(Ordering::Acquire), records);
        w.apply(records);
        let tree = w.tree.publish(w.seq);
        self.account(w.tree.allocated_bytes());
        let version = SpaceVersion { tree, data_files: Arc::clone(&w.data_files), mark: w.mark };
        self.current.store(version);
    }

    fn account(&self, bytes: u64) {
        let before = self.accounted.swap(bytes, Ordering::Relaxed);
        if bytes > before {
            self.options.memory.take(MemoryPart::Index, bytes - before);
        } else if before > bytes {
            self.options.memory.give_back(MemoryPart::Index, before - bytes);
        }
    }
}
