//! # Store: one order of commits over logs, ROOT and engines
//!
//! Executes the operations of the public API and calls the engines.
//!
//! ## Picture
//!
//! ```text
//!  commits       commit encode append tail log group_commit stall threads
//!  space         preallocate root_writer gc checkpoint idle compact cache_balance
//!  keyspaces     catalog state expiry unpublished bulk_load ingest convert copy change_tracker
//!  open, close   recover tail_scan replay close health repair verify
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
//! Any thread may call any function. Locks, in order of acquisition: `close_lock`, the
//! `removal_lock` of a keyspace with expiry, `pass_lock`, the `change_lock` of the catalog,
//! `engine_steps_lock`, `maintenance`, the `leader` lock of the sync rounds, `next_segment`, the
//! stripes (some, or all exclusively), `commit_state` (the *order lock*), the segment lists of the
//! logs, and the locks of engines. Under the order lock the only I/O is that of notes and seals. No
//! lock is held while a closure of the caller runs.

pub mod backup;
mod changes;
mod checkpoint;
mod commit;
mod directory;
mod expiry;
mod health;
mod keyspace;
mod maintenance;
mod pass;
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
#[doc(hidden)]
pub use changes::wire as change_wire;
pub use changes::{
    Change, ChangeBound, ChangeKind, ChangePosition, ChangeReader, ChangeStats, ChangeValue, ChangeWakerKey,
    CommittedChanges, CursorInfo, RetentionChoice,
};
pub use commit::group_commit::GroupCommitMode;
pub use commit::stall::{Stall, StallCallback, StallListener, StallStats};
pub use commit::transaction::{RangeRead, RangeReads, RangeView, VersionCheck};
pub use commit::value_writer::{FinishedValue, PartialValue};
pub use commit::wakers::WakerKey;
pub use commit::{CommitConflict, CommitOutcome, CommitWrite, check_sizes};
pub use directory::{IPC_SOCKET_NAMES, LOCK, LOCKED_FILES};
pub use expiry::{
    EXPIRY_OPTION, Expires, ExpiryStats, KEYSPACE_OPTIONS, MAX_EXPIRY, ReadPoint, TTL_OPTION, expiry_after,
};
pub use keyspace::bulk_load::{BulkLoad, BulkLoadReport, PresentPairs};
pub use keyspace::catalog::{KeyspaceInfo, check_engine_options, check_keyspace_name};
pub use keyspace::convert::{
    Conversion, ConversionEstimate, ConversionPhase, ConversionProgress, ConversionReport,
};
pub use keyspace::state::{EngineChoice, KeyspaceState};
pub use maintenance::verify::VerifyProgressFn;
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
pub use space::log::LogStats;
pub use stats::{
    CacheStats, DatabaseStats, MemoryStats, OpeningStats, StoreOptions, TransactionStats, VerifyReport,
};

use crate::changes::ChangeFeed;
use crate::health::Health;
use commit::CommitPipeline;
use commit::group_commit::SyncState;
use keyspace::catalog::Catalog;
use maintenance::cache_balance::CacheBalance;
use maintenance::threads::Background;
use recovery::close::Lifecycle;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::EngineFactory;
use sheaf_engine::views::ViewSlots;
use sheaf_log::root::Root;
use sheaf_log::types::{Durability, Incarnation, LogId, MAX_BATCH, Seq, StoreId};
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::{Disk, is_moved};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::{event, span};
use space::log::LogState;
use space::preallocate::DiskState;
use space::root_writer::RootWriter;

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
    pub(crate) transactions: AtomicU64,
    pub(crate) transaction_conflicts: AtomicU64,
    pub(crate) stalls: commit::stall::StallCounters,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) blob_bytes_written: AtomicU64,
}

/// Identity of the database and of this opening. It never changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreIdentity {
    pub(crate) id: StoreId,
    /// Key of the hashes of user keys.
    pub(crate) hash_key: u128,
    pub(crate) incarnation: Incarnation,
}

/// One open database.
pub struct Store {
    dir: PathBuf,
    options: StoreOptions,
    geometry: StoreGeometry,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    factories: Vec<Arc<dyn EngineFactory>>,
    identity: StoreIdentity,
    context: Arc<EngineContext>,
    logs: [LogState; LogId::ALL.len()],
    catalog: Catalog,
    changes: ChangeFeed,
    /// Order, places and visibility of commits. Contains the order lock.
    pipeline: CommitPipeline,
    /// Flags that every call reads.
    health: Health,
    /// Whether pairs can expire, and when.
    expiry: expiry::StoreExpiry,
    /// Registrations of views.
    view_slots: ViewSlots,
    /// Sync rounds, and what is durable. Contains the leader lock.
    sync: SyncState,
    /// ROOT. Contains the maintenance lock and the lock of segment numbers.
    root: RootWriter,
    disk_state: DiskState,
    /// Background threads and maintenance passes. Contains `pass_lock` and `engine_steps_lock`.
    background: Background,
    cache_balance: CacheBalance,
    counters: StoreCounters,
    workload_saver: stats::workload::WorkloadSaver,
    /// Opening and closing. Contains `close_lock`.
    lifecycle: Lifecycle,
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
        self.pipeline.progress.visible()
    }

    /// Returns the last commit that has a sequence number. It may not be visible yet.
    pub(crate) fn newest(&self) -> Seq {
        self.pipeline.newest()
    }

    /// Returns the number of commits per second over the last two to four seconds. Returns `None`
    /// if there were none, or if the rate is not known yet.
    pub(crate) fn commits_per_second(&self) -> Option<f64> {
        self.cache_balance.commits_per_second()
    }

    /// Waits until commit `seq` is visible to all readers. Called by a reader that found an entry
    /// of a commit that is not visible yet.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if the commit, or an earlier one, failed.
    pub fn wait_visible(&self, seq: Seq) -> Result<()> {
        self.pipeline.progress.wait(seq)
    }

    /// Returns the newest commit that is known to be durable, with all commits before it.
    #[must_use]
    pub fn durable(&self) -> Seq {
        self.sync.durable()
    }

    /// Checks that the database can be read.
    ///
    /// # Errors
    ///
    /// - [`Error::Closed`] if the database is closed, or if this process is a forked child.
    /// - [`Error::Poisoned`] if a commit is half applied.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        self.health.check_readable()
    }

    /// Like [`Store::check_open`], and also checks that the database can be written.
    ///
    /// # Errors
    ///
    /// - The errors of [`Store::check_open`].
    /// - [`Error::ReadOnly`] if the database is open for reading only.
    /// - [`Error::Poisoned`] if the database is poisoned.
    #[inline]
    pub fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.health.check_not_poisoned()
    }

    /// Poisons the database: every later write fails. Called after a failure, if the kernel may
    /// hold some of its data.
    pub(crate) fn poison(&self, cause: PoisonCause) -> Error {
        // The failure is a consequence of the move: its remedy is another one.
        let cause = if is_moved(&self.dir) { PoisonCause::MovedDirectory } else { cause };
        event!(ERROR, "the database refuses writes from now on", cause = cause.name());
        self.health.mark_poisoned(cause);
        self.sync.round.wake();
        self.changes.signal.wake_all();
        self.background.signals.request_round(); // it wakes the tasks that wait for durability
        self.background.wake();
        self.health.poison_error()
    }

    /// Like [`Store::poison`], and also makes every later read fail.
    pub(crate) fn poison_reads(&self, cause: PoisonCause) {
        self.health.mark_commit_half_applied();
        drop(self.poison(cause));
    }

    pub(crate) fn log(&self, id: LogId) -> &LogState {
        &self.logs[id.index()]
    }

    /// Returns the statistics of the database.
    #[must_use]
    pub fn stats(&self) -> DatabaseStats {
        let memory = &self.context.memory;
        let unsynced_age = match self.sync.oldest_unsynced() {
            Some(since) if self.durable() < self.visible() => self.clock.now().saturating_sub(since),
            _ => Duration::ZERO,
        };
        let (mut views, mut oldest_view, mut staged) = (0, None, BlobStats::default());
        let (mut range_readers, mut recent_key_bytes) = (0, 0);
        if !self.health.is_forked_child() {
            staged = self.context.blobs.stats();
            let now = self.current_views();
            (views, oldest_view) = (now.len() as u64, now.oldest().map(|s| s.0));
            (range_readers, recent_key_bytes) = self.pipeline.recent_keys.stats();
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
            pinned_states: load(&self.root.published.pinned_states),
            pinned_bytes: load(&self.root.published.pinned_bytes),
            throttles: load(&self.counters.throttles),
            transactions: TransactionStats {
                committed: load(&self.counters.transactions),
                conflicts: load(&self.counters.transaction_conflicts),
                range_readers: range_readers as u64,
                recent_key_bytes,
            },
            expiry: self.expiry_stats(),
            stalls: self.counters.stalls.stats(),
            checkpoints: load(&self.counters.checkpoints),
            checkpoint_bytes: load(&self.counters.checkpoint_bytes),
            blob_bytes_written: load(&self.counters.blob_bytes_written),
            blobs: staged,
            poisoned: self.health.poison_cause(),
            memory: MemoryStats {
                budget: memory.budget(),
                index: memory.used(MemoryPart::Index),
                versions: memory.used(MemoryPart::Versions),
                buffers: memory.used(MemoryPart::Buffers),
                cache: memory.used(MemoryPart::Cache),
            },
            caches: if self.health.is_forked_child() { Vec::new() } else { self.cache_stats() },
            logs: self.logs.iter().map(LogState::stats).collect(),
            changes: if self.health.is_forked_child() {
                ChangeStats::default()
            } else {
                self.changes.stats()
            },
            opening: self.lifecycle.opening,
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
            store: self.identity.id,
            hash_key: self.identity.hash_key,
            incarnation: self.identity.incarnation,
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
            changes: None, // a pinned state has no retained segments
        }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use crossbeam_utils::CachePadded;

    use super::*;
    use crate::commit::CommitState;
    use sheaf_engine::window::CommitWindow;
    use sheaf_platform::sync::Mutex;

    #[test]
    fn written_and_read_fields_share_no_cache_line() {
        let line = align_of::<CachePadded<u8>>();
        let fields = [
            (offset_of!(Store, pipeline.commit_state), size_of::<CachePadded<Mutex<CommitState>>>()),
            (offset_of!(Store, pipeline.window), size_of::<CommitWindow>()),
            (offset_of!(Store, pipeline.seq_bound), size_of::<CachePadded<AtomicU64>>()),
            (offset_of!(Store, pipeline), size_of::<CommitPipeline>()),
            (offset_of!(Store, health), size_of::<Health>()),
            (offset_of!(Store, view_slots), size_of::<ViewSlots>()),
        ];
        for (offset, size) in fields {
            assert_eq!((offset % line, size % line), (0, 0), "{fields:?}");
        }
    }
}
