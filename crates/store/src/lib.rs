//! # Store: one order of commits over logs, ROOT and engines
//!
//! Executes the operations of the public API and calls the engines. `recover` describes recovery.
//!
//! ## Picture
//!
//! ```text
//!  commits       commit encode append tail log group_commit stall threads
//!  space         preallocate root_writer gc checkpoint idle compact cache_balance
//!  keyspaces     catalog keyspace_state unpublished bulk_load ingest convert copy change_tracker
//!  open, close   recover tail_scan replay close repair verify
//!  readers       view owned_cursor pinned_state export image value_writer stats workload wire
//! ```
//!
//! ## Invariants
//!
//! 1. Everything up to `visible` is in the kernel and applied (`sheaf_engine::window`).
//! 2. `durable <= visible`; both only grow. After a failed sync or append no commit succeeds.
//! 3. A file is freed only if neither ROOT slot lists it, no view or reader needs it, and the data
//!    that superseded it is durable.
//! 4. After an unclean opening, new frames go only to segments stamped by this incarnation.
//!
//! ## Threads
//!
//! Any thread may call any function. Locks, in order of acquisition: `close_lock`, `pass_lock`, the
//! `change_lock` of the catalog, `engine_steps_lock`, `maintenance`, the `leader` lock of
//! `sync_round`, `next_segment`, the stripes (some, or all exclusively), `commit_state` (the *order
//! lock*), the segment lists of the logs, and the locks of engines. No I/O happens under the order
//! lock, except for notes and seals. No lock is held while a closure of the caller runs.

pub mod backup;
mod checkpoint;
mod commit;
mod keyspace;
mod maintenance;
mod recovery;
mod repair;
mod snapshot;
mod space;
pub mod stats;

#[doc(hidden)]
pub use stats::wire;

use sheaf_platform::error::{Error, PoisonCause, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use crate::backup::{BackupOptions, BackupPhase, BackupProgress, BackupRate, BackupReport, ProgressFn};
pub use commit::stall::{Stall, StallCallback, StallListener, StallStats};
pub use commit::value_writer::{FinishedValue, PartialValue};
pub use commit::{CommitOutcome, CommitWrite};
pub use keyspace::bulk_load::{BulkLoad, BulkLoadReport};
pub use keyspace::convert::{
    Conversion, ConversionEstimate, ConversionPhase, ConversionProgress, ConversionReport,
};
pub use keyspace::state::{EngineChoice, KeyspaceState};
pub use maintenance::verify::VerifyProgressFn;
pub use recovery::close::{IPC_SOCKET_NAMES, LOCK};
pub(crate) use recovery::close::{directories, is_database_file};
pub use repair::{
    DamagedFile, KeyspaceRepair, LostRecords, RepairFinding, RepairOptions, RepairOutcome, RepairProgress,
    RepairReport, UnreadableRange, repair,
};
pub use sheaf_log::blob::BlobStats;
pub use sheaf_platform::error::StallKind;
pub use snapshot::export::ExportedState;
pub use snapshot::owned_cursor::{KeyspaceOwner, OwnedCursor};
pub use snapshot::pinned_state::PinnedState;
pub use snapshot::view::{View, ViewKeyspaces};
pub use space::compact::CompactionReport;
pub use stats::{
    CacheStats, DatabaseStats, GroupCommitMode, KeyspaceInfo, LogStats, MemoryStats, OpeningStats,
    StoreOptions, VerifyReport,
};

use crossbeam_utils::CachePadded;

use crate::stats::commit_rate::{CommitRate, CommitSampler};
use commit::CommitState;
use commit::group_commit::SyncRound;
use keyspace::catalog::Catalog;
use maintenance::threads::ThreadSignals;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::EngineFactory;
use sheaf_engine::views::ViewSlots;
use sheaf_engine::window::{CommitProgress, CommitWindow, Stripes};
use sheaf_log::root::{Root, RootSlots};
use sheaf_log::types::{Durability, Incarnation, LogId, MAX_BATCH, Seq, StoreId};
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::Disk;
use sheaf_platform::fork::ForkGuard;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sheaf_platform::sync::{Mutex, RwLock};
use sheaf_platform::{event, span};
use space::log::LogState;
use space::root_writer::RootState;

/// Length of the window, in seconds, over which the commit rate is averaged.
const COMMIT_RATE_SECONDS: f64 = 4.0;

/// Sizes and thresholds that differ between the normal and the tiny geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreGeometry {
    /// Smallest segment, in bytes.
    pub(crate) min_segment: u64,
    /// Largest segment, in bytes. A segment for a larger frame may exceed it.
    pub(crate) max_segment: u64,
    /// Values larger than this, in bytes, are written to blob files.
    pub(crate) blob_threshold: usize,
    /// Sequence numbers that ROOT reserves at a time.
    pub(crate) seq_chunk: u64,
    /// Blob numbers in one chunk. ROOT reserves several chunks at a time.
    pub(crate) blob_chunk: u64,
    /// Bytes of a log after which its keyspaces are checkpointed.
    pub(crate) checkpoint_bytes: u64,
    /// Lower threshold, in bytes, for a checkpoint that frees space. It applies if the images are
    /// no larger than the bytes appended since, so that the device writes at most twice the
    /// appended bytes.
    pub(crate) gain_checkpoint_bytes: u64,
    /// Minimum gain, in bytes, for GC below the space limit and for returning preallocated
    /// segments.
    pub(crate) min_gain_bytes: u64,
    /// Preallocated segments of a log that only removals and GC may use.
    pub(crate) reserve_segments: usize,
    /// Slack before GC starts, in segments. Only small logs get it.
    pub(crate) slack_segments: u64,
    /// Maximum bytes of the frames of one commit.
    pub(crate) max_batch: u64,
}

impl StoreGeometry {
    fn new(tiny: bool) -> StoreGeometry {
        if tiny {
            StoreGeometry {
                min_segment: 4 << 10,
                max_segment: 16 << 10,
                blob_threshold: 1 << 10,
                seq_chunk: 64,
                blob_chunk: 4,
                checkpoint_bytes: 16 << 10,
                gain_checkpoint_bytes: 8 << 10,
                min_gain_bytes: 16 << 10,
                reserve_segments: 6,
                slack_segments: 2,
                max_batch: 1 << 20,
            }
        } else {
            StoreGeometry {
                min_segment: 64 << 10,
                max_segment: 64 << 20,
                blob_threshold: 64 << 10,
                seq_chunk: 1 << 24,
                blob_chunk: 1 << 15,
                checkpoint_bytes: 128 << 20,
                gain_checkpoint_bytes: 4 << 20,
                min_gain_bytes: 1 << 20,
                reserve_segments: 2,
                slack_segments: 4,
                max_batch: MAX_BATCH as u64,
            }
        }
    }
}

/// Counters since opening.
#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    pub(crate) sync_rounds: AtomicU64,
    pub(crate) sync_waits: AtomicU64,
    pub(crate) throttles: AtomicU64,
    pub(crate) stalls: commit::stall::StallCounters,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) blob_bytes_written: AtomicU64,
}

/// Flags that every call reads and that rarely change.
#[derive(Debug, Default)]
struct StoreFlags {
    is_closed: AtomicBool,
    is_poisoned: AtomicBool,
    /// A commit is half applied: reads fail too.
    is_commit_half_applied: AtomicBool,
}

/// One open database.
pub struct Store {
    dir: PathBuf,
    options: StoreOptions,
    geometry: StoreGeometry,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    factories: Vec<Arc<dyn EngineFactory>>,
    id: StoreId,
    hash_key: u128,
    incarnation: Incarnation,
    context: Arc<EngineContext>,
    root_slots: RootSlots,
    logs: [LogState; LogId::ALL.len()],
    catalog: Catalog,
    commit_state: CachePadded<Mutex<CommitState>>,
    /// Reserves the sequence numbers and the places of commits.
    window: CommitWindow,
    /// Sequence numbers from here on need a new ROOT first.
    seq_bound: CachePadded<AtomicU64>,
    stripes: Stripes,
    commit_progress: Arc<CommitProgress>,
    flags: CachePadded<StoreFlags>,
    /// Registrations of views.
    view_slots: ViewSlots,
    durable: AtomicU64,
    /// Time of the oldest commit that no sync round has taken, in ns of the clock plus 1. 0 if
    /// there is none.
    unsynced_since: AtomicU64,
    /// Time of the oldest commit that a sync round has taken and not yet made durable, in the same
    /// unit.
    syncing_since: AtomicU64,
    sync_round: SyncRound,
    /// The journal is durable up to this commit, and ROOT says so. Changed only under
    /// `maintenance`.
    floor_seq: AtomicU64,
    /// Held shared while an engine writes files of its own. `close` acquires it exclusively, and
    /// thereby waits for these writes, before it closes the engines.
    engine_steps_lock: RwLock<()>,
    maintenance: Mutex<RootState>,
    /// Number of the next segment. The lock is held while a segment is created.
    next_segment: Mutex<u64>,
    blob_bound: AtomicU64,
    /// Segments sealed since the background last wrote ROOT because of sealed segments.
    sealed_since_root: AtomicU64,
    /// Bytes of retired segments that one ROOT slot may still list.
    pending_free_bytes: AtomicU64,
    /// Bytes of retired segments that only pinned states keep.
    pinned_bytes: AtomicU64,
    pinned_states: AtomicU64,
    /// The disk was full at the last creation of a segment: GC frees as much as it can.
    is_disk_full: AtomicBool,
    /// The file system has few free inodes.
    is_low_on_inodes: AtomicBool,
    /// Detects pauses between commits.
    idle_state: Mutex<maintenance::idle::IdleState>,
    /// Serializes maintenance passes. While it is held, no pass is in the middle of a step.
    pass_lock: Mutex<()>,
    /// Time of the last adjustment of cache shares, in ns of the clock.
    balanced_at_ns: AtomicU64,
    /// Smallest number of free bytes between cache blocks since they were last returned to the
    /// system.
    min_fragmentation: AtomicU64,
    /// Commit rate of the last seconds, sampled with every adjustment of cache shares.
    commit_rate: Mutex<(CommitSampler, CommitRate)>,
    /// Mean lifespan of an entry in a hot segment, in commits. `u64::MAX` until it is known.
    lifespan: AtomicU64,
    signals: Arc<ThreadSignals>,
    counters: StoreCounters,
    workload_saver: stats::workload::WorkloadSaver,
    /// Serializes calls of `close`.
    close_lock: Mutex<()>,
    poison_cause: Mutex<Option<PoisonCause>>,
    fork: ForkGuard,
    opening: OpeningStats,
    /// Lock on the database directory. `None` after `close`.
    file_lock: Mutex<Option<Box<dyn std::fmt::Debug + Send + Sync>>>,
    threads: Mutex<Vec<maintenance::threads::BackgroundThread>>,
    /// Helper threads that are running background steps now.
    helper_count: AtomicUsize,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store at {}", self.dir.display())
    }
}

impl Store {
    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Returns the disk that the database is on.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Writes a backup of the current state to `dir`, which must be empty or must not exist.
    /// Commits and reads continue.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if `dir` is inside the database, or if the base in `options` is
    ///   not a backup of this database.
    /// - [`Error::Cancelled`] if a progress callback cancels the backup.
    /// - [`Error::Corrupt`] if the data that is copied, or the written copy, is damaged.
    /// - Any error of reading the database or of writing the copy.
    pub fn back_up(self: &Arc<Store>, dir: &Path, options: BackupOptions<'_>) -> Result<BackupReport> {
        let _span = span!(INFO, "backup", to = dir.display().to_string());
        backup::back_up(self, dir, options)
    }

    /// Returns the default durability of writes.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.options.durability
    }

    /// Returns the newest visible commit.
    #[must_use]
    pub fn visible(&self) -> Seq {
        self.commit_progress.visible()
    }

    /// Returns the last commit that has a sequence number. It may not be visible yet.
    pub(crate) fn newest(&self) -> Seq {
        self.commit_progress.last_assigned(self.window.reserved())
    }

    /// Returns the number of commits per second over the last two to four seconds. Returns `None`
    /// if there were none, or if the rate is not known yet.
    pub(crate) fn commits_per_second(&self) -> Option<f64> {
        self.commit_rate.lock().1.get()
    }

    /// Waits until commit `seq` is visible to all readers. Called by a reader that found an entry
    /// of a commit that is not visible yet.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if the commit, or an earlier one, failed.
    pub fn wait_visible(&self, seq: Seq) -> Result<()> {
        self.commit_progress.wait(seq)
    }

    /// Returns the newest commit that is known to be durable, with all commits before it.
    #[must_use]
    pub fn durable(&self) -> Seq {
        Seq(self.durable.load(Ordering::Acquire))
    }
    /// Returns [`Error::Closed`] if the database is closed, or if this process is a forked child.
    #[inline]
    pub(crate) fn check_not_closed(&self) -> Result<()> {
        if self.flags.is_closed.load(Ordering::Relaxed) || self.fork.is_child() {
            return Err(Error::Closed);
        }
        Ok(())
    }

    /// Checks that the database can be read.
    ///
    /// # Errors
    ///
    /// - [`Error::Closed`] if the database is closed, or if this process is a forked child.
    /// - [`Error::Poisoned`] if a commit is half applied.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        self.check_not_closed()?;
        if self.flags.is_commit_half_applied.load(Ordering::Acquire) {
            return Err(self.poison_error());
        }
        Ok(())
    }

    /// Like [`Store::check_open`], and also checks that the database can be written.
    ///
    /// # Errors
    ///
    /// - The errors of [`Store::check_open`].
    /// - [`Error::ReadOnly`] if the database is open for reading only.
    /// - [`Error::Poisoned`] if the database is poisoned.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.check_not_poisoned()
    }

    /// Checks that the database is not poisoned.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] otherwise.
    #[inline]
    pub(crate) fn check_not_poisoned(&self) -> Result<()> {
        if self.flags.is_poisoned.load(Ordering::Acquire) { Err(self.poison_error()) } else { Ok(()) }
    }

    /// Returns the error of a poisoned database. A reader may see a half-applied commit just before
    /// its cause is recorded.
    pub(crate) fn poison_error(&self) -> Error {
        Error::Poisoned { cause: self.poison_cause.lock().unwrap_or(PoisonCause::Commit) }
    }

    /// Poisons the database: every later write fails. Called after a failure, if the kernel may
    /// hold some of its data.
    pub(crate) fn poison(&self, cause: PoisonCause) -> Error {
        event!(ERROR, "the database refuses writes from now on", cause = cause.name());
        self.poison_cause.lock().get_or_insert(cause);
        self.flags.is_poisoned.store(true, Ordering::Release);
        self.sync_round.wake();
        self.signals.wake();
        self.poison_error()
    }

    /// Like [`Store::poison`], and also makes every later read fail.
    pub(crate) fn poison_reads(&self, cause: PoisonCause) {
        self.flags.is_commit_half_applied.store(true, Ordering::Release);
        drop(self.poison(cause));
    }

    pub(crate) fn log(&self, id: LogId) -> &LogState {
        &self.logs[id.index()]
    }

    /// Returns the statistics of the database.
    #[must_use]
    pub fn stats(&self) -> DatabaseStats {
        let memory = &self.context.memory;
        // The order matters: a sync round moves the time from the first variable to the second.
        let since = [&self.unsynced_since, &self.syncing_since].map(|since| since.load(Ordering::Acquire));
        let unsynced_age = match since.iter().filter_map(|since| since.checked_sub(1)).min() {
            Some(since) if self.durable() < self.visible() => {
                self.clock.now().saturating_sub(Duration::from_nanos(since))
            }
            _ => Duration::ZERO,
        };
        let (mut views, mut oldest_view, mut staged) = (0, None, BlobStats::default());
        if !self.fork.is_child() {
            staged = self.context.blobs.stats();
            let now = self.current_views();
            (views, oldest_view) = (now.len() as u64, now.oldest().map(|s| s.0));
        }
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DatabaseStats {
            visible_seq: self.visible().0,
            durable_seq: self.durable().0,
            unsynced_age,
            sync_rounds: load(&self.counters.sync_rounds),
            sync_waits: load(&self.counters.sync_waits),
            views,
            oldest_view_seq: oldest_view,
            pinned_states: load(&self.pinned_states),
            pinned_bytes: load(&self.pinned_bytes),
            throttles: load(&self.counters.throttles),
            stalls: self.counters.stalls.stats(),
            checkpoints: load(&self.counters.checkpoints),
            checkpoint_bytes: load(&self.counters.checkpoint_bytes),
            blob_bytes_written: load(&self.counters.blob_bytes_written),
            blobs: staged,
            poisoned: if self.flags.is_poisoned.load(Ordering::Acquire) {
                *self.poison_cause.lock()
            } else {
                None
            },
            memory: MemoryStats {
                budget: memory.budget(),
                index: memory.used(MemoryPart::Index),
                versions: memory.used(MemoryPart::Versions),
                buffers: memory.used(MemoryPart::Buffers),
                cache: memory.used(MemoryPart::Cache),
            },
            caches: if self.fork.is_child() { Vec::new() } else { self.cache_stats() },
            logs: self.logs.iter().map(LogState::stats).collect(),
            opening: self.opening,
            descriptors: self.disk.descriptors().unwrap_or_default(),
            has_ipc: false,
        }
    }

    /// Returns the path by which other processes find the file at `path`.
    #[must_use]
    pub fn real_path(&self, path: &Path) -> PathBuf {
        self.disk.real_path(path)
    }

    /// Returns the parts of ROOT that do not change from one write to the next.
    pub(crate) fn root_template(&self) -> Root {
        Root {
            generation: 0,
            store: self.id,
            hash_key: self.hash_key,
            incarnation: self.incarnation,
            is_clean: false,
            floor: Seq::ZERO,
            first_seq: Seq::ZERO,
            seq_bound: Seq::ZERO,
            next_segment: sheaf_log::types::SegmentId(0),
            next_keyspace: sheaf_log::types::KeyspaceId(0),
            blob_bound: 0,
            keyspaces: Vec::new(),
            has_options: self.catalog.has_options(),
            logs: Default::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    #[test]
    fn written_and_read_fields_share_no_cache_line() {
        let line = align_of::<CachePadded<u8>>();
        let fields = [
            (offset_of!(Store, commit_state), size_of::<CachePadded<Mutex<CommitState>>>()),
            (offset_of!(Store, window), size_of::<CommitWindow>()),
            (offset_of!(Store, seq_bound), size_of::<CachePadded<AtomicU64>>()),
            (offset_of!(Store, flags), size_of::<CachePadded<StoreFlags>>()),
            (offset_of!(Store, view_slots), size_of::<ViewSlots>()),
        ];
        for (offset, size) in fields {
            assert_eq!((offset % line, size % line), (0, 0), "{fields:?}");
        }
    }
}
