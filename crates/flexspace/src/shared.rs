//! # Shared state of users, housekeeping and garbage collection
//!
//! ## Threads
//!
//! Any thread may call anything. The order of locks is `gc_pass`, `checkpointing`, `head_state`,
//! `syncing`, `flushing`, `allocating`, `writer`, `poison`. Readers take no lock: they load the
//! current version. Under `writer` the only system call is the `pwrite` of data while all buffers
//! are in use. Two background threads run: housekeeping (`maintenance/mod.rs`) and garbage
//! collection (`maintenance/gc.rs`).
//!
//! Both threads yield regularly (`sheaf_platform::parallel`). With more threads than processors a
//! writer that slept would otherwise wait for one or more scheduler ticks.

use sheaf_platform::error::{Error, PoisonCause, Result};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sheaf_log::double_slot::DoubleSlot;
use sheaf_log::segment::Segment;
use sheaf_log::types::Incarnation;
use sheaf_platform::disk::Disk;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::parallel::StepWaker;
use sheaf_platform::sync::{Mutex, MutexGuard};

use crate::checkpoint::CheckpointState;
use crate::extent::Extent;
use crate::format::{IndexRecord, RecoveryPoint, SpaceHead};
use crate::maintenance::gc::GcPass;
use crate::options::{SpaceGeometry, SpaceOptions};
use crate::read::current::CurrentVersion;
use crate::segments::data_file::DataFiles;
use crate::tree::TreeSnapshot;
use crate::write::throttle::WriteThrottle;
use crate::write::writer::SpaceWriter;

/// Bytes assumed for an extent in the index and in a checkpoint. The index takes less unless many
/// nodes are sparse.
pub(crate) const EXTENT_BYTES: u64 = 26;
/// Number of attempts to take the lock before a writer sleeps.
const LOCK_SPINS: u32 = if cfg!(shuttle) { 0 } else { 2000 };
/// Maximum time between two rounds of a background thread.
pub(crate) const BACKGROUND_INTERVAL: Duration = Duration::from_millis(50);

/// State of the space that readers use.
#[derive(Debug)]
pub(crate) struct SpaceVersion {
    pub(crate) tree: Arc<TreeSnapshot<Extent>>,
    pub(crate) data_files: Arc<DataFiles>,
    pub(crate) mark: u64,
}

#[derive(Debug)]
pub(crate) struct HeadState {
    pub(crate) head_slots: DoubleSlot,
    /// Contents that both slots must get.
    pub(crate) head: SpaceHead,
    /// A slot does not have these contents yet, because a write failed. Files that one of the slots
    /// may reference must not be deleted.
    pub(crate) is_write_pending: bool,
    /// Recovery points to delete once both slots are written.
    pub(crate) obsolete: Vec<RecoveryPoint>,
    /// Log segment that becomes the spare once both slots are written.
    pub(crate) pending_spare: Option<Arc<Segment>>,
    /// Size of the last checkpoint in bytes.
    pub(crate) checkpoint_bytes: u64,
    pub(crate) is_closed: bool,
    /// Last operation that housekeeping saw, and the time when it saw it first.
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
    /// At most one checkpoint, sync, flush, and allocation of segments runs at a time.
    pub(crate) checkpointing: Mutex<CheckpointState>,
    pub(crate) syncing: Mutex<()>,
    pub(crate) flushing: Mutex<()>,
    pub(crate) allocating: Mutex<()>,
    pub(crate) writer: Mutex<SpaceWriter>,
    /// Version from which a checkpoint is being written; `u64::MAX` if none. It is set, and reset
    /// together with the release of the version, under the writer's lock.
    pub(crate) checkpoint_seq: AtomicU64,
    pub(crate) throttle: WriteThrottle,
    /// Damage that opening found and repaired.
    pub(crate) repaired_damage: Option<Error>,
    pub(crate) durable: AtomicU64,
    pub(crate) poison: Mutex<Option<PoisonCause>>,
    pub(crate) maintenance_waker: StepWaker,
    pub(crate) gc_waker: StepWaker,
    pub(crate) counters: SpaceCounters,
    pub(crate) accounted: AtomicU64,
    /// Memory of the table of stored nodes.
    pub(crate) node_table_bytes: AtomicU64,
    /// Whether the owner has set a bound (`maintenance/space_bound.rs`).
    pub(crate) is_bounded: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct SpaceCounters {
    pub(crate) written: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) freed: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) syncs: AtomicU64,
}

impl SharedSpace {
    /// Returns the state after recovery, with `tree` as the version for readers.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        options: SpaceOptions,
        writer: SpaceWriter,
        tree: Arc<TreeSnapshot<Extent>>,
        maintenance: HeadState,
        checkpoints: CheckpointState,
        healed: Option<Error>,
    ) -> SharedSpace {
        let first = SpaceVersion { tree, data_files: Arc::clone(&writer.data_files), mark: writer.mark };
        SharedSpace {
            dir: writer.dir.clone(),
            geometry: writer.data_files.geometry,
            incarnation: Incarnation(maintenance.head.incarnation),
            current: CurrentVersion::new(first),
            gc_pass: Mutex::new(None),
            node_table_bytes: AtomicU64::new(checkpoints.table_bytes()),
            checkpointing: Mutex::new(checkpoints),
            head_state: Mutex::new(maintenance),
            syncing: Mutex::new(()),
            flushing: Mutex::new(()),
            allocating: Mutex::new(()),
            checkpoint_seq: AtomicU64::new(u64::MAX),
            throttle: WriteThrottle::new(Arc::clone(&options.clock)),
            repaired_damage: healed,
            durable: AtomicU64::new(writer.seq),
            writer: Mutex::new(writer),
            poison: Mutex::new(None),
            maintenance_waker: StepWaker::default(),
            gc_waker: StepWaker::default(),
            counters: SpaceCounters::default(),
            accounted: AtomicU64::new(0),
            is_bounded: AtomicBool::new(false),
            disk,
            options,
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        match *self.poison.lock() {
            Some(cause) => Err(Error::Poisoned { cause }),
            None => Ok(()),
        }
    }

    /// Locks the writer, for callers that must be quick. Other threads hold the lock for
    /// microseconds. A thread that sleeps for it may get its processor back only after several
    /// scheduler ticks.
    pub(crate) fn writer(&self) -> MutexGuard<'_, SpaceWriter> {
        for _ in 0..LOCK_SPINS {
            if let Some(w) = self.writer.try_lock() {
                return w;
            }
            std::hint::spin_loop();
        }
        self.writer.lock()
    }

    /// Poisons the space if `answer` is an error. No changes are possible afterwards.
    pub(crate) fn poison<T>(&self, cause: PoisonCause, answer: Result<T>) -> Result<T> {
        if answer.is_err() {
            self.poison.lock().get_or_insert(cause);
        }
        answer
    }

    /// Logs, applies and publishes records after their data was written.
    pub(crate) fn commit_records(&self, w: &mut SpaceWriter, records: &[IndexRecord]) {
        w.log(self.durable.load(Ordering::Acquire), records);
        w.apply(records);
        let tree = w.tree.publish(w.seq);
        self.account(w.tree.allocated_bytes() + self.node_table_bytes.load(Ordering::Relaxed));
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
