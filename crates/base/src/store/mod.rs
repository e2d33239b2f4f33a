//! # Store: one order of commits over everything
//!
//! Ties disk, logs, ROOT, views and engines together. The facade hands it operations; engines are
//! called back through their contract. What each file does:
//!
//! ```text
//!  order, append, tail   seq, place, bytes, apply              round     sync rounds, tickets, poison
//!  ready       segments made ahead of the writers               rooting   what goes into ROOT, what may go
//!  catalogue   keyspaces as commits                             view      snapshots' registrations
//!  clean       survivors out, victims away                      checkpoint, image   what makes opening fast
//!  recover, survey, load   from files to a served state         background  ticks and maintenance
//!  sort        a log in the order of keys, when asked       still      a state that stays, for backups
//!  fill, bulk  pairs in order, past the journal             making     keyspaces that have no name yet
//!  convert, copy, watch   another engine, while writers go on   salvage  what is left of a damaged database
//!  stall       what writers wait for, or are told instead   sketch      what keyspaces are used for, over closings
//!  balance     caches give way to what must be in memory    hold        a state that stays as a listing, for readers
//!  idle        what can wait until writers pause, or ask
//! ```
//!
//! ## Invariants
//!
//! 1. Everything up to `visible` is in the kernel and applied (`crate::window`).
//! 2. `durable <= visible`; both only grow. A failed sync or a failed append poisons: no commit
//!    after.
//! 3. What is freed is in neither ROOT slot, was superseded durably, and no view or reader needs
//!    it.
//! 4. After an unclean opening new frames go to segments stamped by this incarnation only.
//!
//! ## Threads
//!
//! Any thread may call anything. Locks, in order of acquisition: `closing`, `pass_lock`, the
//! catalogue's `changing`, `engine_steps_lock`, `maintenance`, the round's leader lock, `making`,
//! the stripes or being alone (`crate::window`), `order`, the log lists, engines' own. No I/O under
//! `order` but notes and seals; no lock is held while a caller's closure runs.
//!
//! ## Crash
//!
//! `recover` has the whole story; docs/format/log.md the byte layouts.

mod append;
mod bulk_load;
mod cache_balance;
mod catalog;
mod change_tracker;
mod checkpoint;
mod close;
mod commit;
mod compact;
mod convert;
mod copy;
mod encode;
mod export;
mod gc;
mod group_commit;
mod idle;
pub mod image;
mod ingest;
mod keyspace_state;
mod log;
mod owned_cursor;
mod pinned_state;
mod preallocate;
mod recover;
mod repair;
mod replay;
mod root_writer;
mod stall;
mod stats;
mod tail;
mod tail_scan;
mod threads;
mod unpublished;
mod value_writer;
mod verify;
mod view;
#[doc(hidden)]
pub mod wire;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use crate::backup::{BackupOptions, BackupPhase, BackupProgress, BackupRate, BackupReport, ProgressFn};
pub use crate::blob::BlobStats;
pub use bulk_load::{BulkLoad, BulkLoadReport};
pub use close::{IPC_SOCKET_NAMES, LOCK};
pub(crate) use close::{directories, is_database_file};
pub use commit::{CommitOutcome, CommitWrite};
pub use compact::CompactionReport;
pub use convert::{Conversion, ConversionEstimate, ConversionPhase, ConversionProgress, ConversionReport};
pub use export::ExportedState;
pub use keyspace_state::{EngineChoice, KeyspaceState};
pub use owned_cursor::{KeyspaceOwner, OwnedCursor};
pub use pinned_state::PinnedState;
pub use repair::{
    DamagedFile, KeyspaceRepair, LostRecords, RepairFinding, RepairOptions, RepairOutcome, RepairProgress,
    RepairReport, UnreadableRange, repair,
};
pub use stall::{Stall, StallCallback, StallKind, StallListener, StallStats};
pub use stats::{
    CacheStats, DatabaseStats, GroupCommitMode, KeyspaceInfo, LogStats, MemoryStats, OpeningStats,
    StoreOptions, VerifyReport,
};
pub use value_writer::{FinishedValue, PartialValue};
pub use verify::VerifyProgressFn;
pub use view::{View, ViewKeyspaces};

use crossbeam_utils::CachePadded;

use crate::backup;
use crate::clock::Clock;
use crate::commit_rate::{CommitRate, CommitSampler};
use crate::disk::Disk;
use crate::engine::EngineFactory;
use crate::engine_context::EngineContext;
use crate::error::{Error, Result};
use crate::fork::ForkGuard;
use crate::memory::MemoryPart;
use crate::root::{Root, RootSlots};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock};
use crate::types::{Durability, Incarnation, LogId, MAX_BATCH, Seq, StoreId};
use crate::views::ViewSlots;
use crate::window::{CommitProgress, CommitWindow, Stripes};
use crate::{event, span};
use catalog::Catalog;
use commit::CommitState;
use group_commit::SyncRound;
use log::LogState;
use root_writer::RootState;
use threads::ThreadSignals;

/// The speed of commits is that of about so many last seconds.
const COMMIT_RATE_SECONDS: f64 = 4.0;

/// Numbers that differ between normal and tiny geometry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreGeometry {
    /// Smallest segment.
    pub(crate) min_segment: u64,
    /// Largest ordinary segment.
    pub(crate) max_segment: u64,
    /// Values above this are staged.
    pub(crate) blob_threshold: usize,
    /// Sequence numbers reserved in ROOT at a time.
    pub(crate) seq_chunk: u64,
    /// Blob numbers reserved at a time, several times over.
    pub(crate) blob_chunk: u64,
    /// A log's keyspaces are checkpointed after at least this many bytes of it ...
    pub(crate) checkpoint_bytes: u64,
    /// ... or after this many, if it gains space while its images are no larger: the device writes
    /// at most twice what was appended.
    pub(crate) gain_checkpoint_bytes: u64,
    /// Cleaning below the space limit begins, and ready segments are given back, if that gains so
    /// much.
    pub(crate) min_gain_bytes: u64,
    /// Ready segments of a log that only removals and the cleaner may use.
    pub(crate) reserve_segments: usize,
    /// Slack before cleaning starts, in segments.
    pub(crate) slack_segments: u64,
    /// Most bytes of frames in one commit.
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
    pub(crate) stalls: stall::StallCounters,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) checkpoint_bytes: AtomicU64,
    pub(crate) blob_bytes_written: AtomicU64,
}

/// Flags that each call reads, and that hardly ever change.
#[derive(Debug, Default)]
struct StoreFlags {
    is_closed: AtomicBool,
    is_poisoned: AtomicBool,
    /// A commit is half applied: not even reads are possible.
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
    /// Where commits reserve.
    window: CommitWindow,
    /// Seqs from here on need another ROOT first.
    seq_bound: CachePadded<AtomicU64>,
    stripes: Stripes,
    commit_progress: Arc<CommitProgress>,
    flags: CachePadded<StoreFlags>,
    /// Where views register.
    view_slots: ViewSlots,
    durable: AtomicU64,
    /// When the oldest commit was made that no round has taken, in ns of the clock plus 1; 0 if
    /// there is none.
    unsynced_since: AtomicU64,
    /// The same of those that a round has taken and not made durable.
    syncing_since: AtomicU64,
    sync_round: SyncRound,
    /// Up to here the journal is durable, and ROOT says so. Changed with `maintenance` held.
    floor_seq: AtomicU64,
    /// Held, to read, by whoever has engines write files of their own; the end waits for them
    /// before it closes these.
    engine_steps_lock: RwLock<()>,
    maintenance: Mutex<RootState>,
    /// The number of the next segment; held while one is made.
    next_segment: Mutex<u64>,
    blob_bound: AtomicU64,
    /// Segments sealed since ROOT was last written for their sake.
    sealed_since_root: AtomicU64,
    /// Bytes of segments that are in one ROOT slot only.
    pending_free_bytes: AtomicU64,
    /// Bytes of segments that would be gone but for states that stay, and how many such states
    /// there are.
    pinned_bytes: AtomicU64,
    pinned_states: AtomicU64,
    /// The disk was full when a segment was last made: cleaning wins what it can.
    is_disk_full: AtomicBool,
    /// The file system can take few more files.
    is_low_on_inodes: AtomicBool,
    /// Whether commits have paused.
    idle_state: Mutex<idle::IdleState>,
    /// One look of the background at a time: who holds it knows that nobody is in the midst of a
    /// step.
    pass_lock: Mutex<()>,
    /// When shares of caches were last looked at, in ns of the clock.
    balanced_at_ns: AtomicU64,
    /// Least that was between pieces since it was last given back.
    min_fragmentation: AtomicU64,
    /// How fast commits were in the last seconds, looked at as often.
    commit_rate: Mutex<(CommitSampler, CommitRate)>,
    /// How long, in commits, what stands in hot segments tends to live; `u64::MAX` until it is
    /// known.
    lifespan: AtomicU64,
    signals: Arc<ThreadSignals>,
    counters: StoreCounters,
    workload_saver: workload::WorkloadSaver,
    /// One end at a time.
    close_lock: Mutex<()>,
    poison_op: Mutex<Option<&'static str>>,
    fork: ForkGuard,
    opening: OpeningStats,
    /// Held for life; `None` after closing.
    file_lock: Mutex<Option<Box<dyn std::fmt::Debug + Send + Sync>>>,
    threads: Mutex<Vec<threads::BackgroundThread>>,
    /// Threads that help with background steps now.
    helper_count: AtomicUsize,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store at {}", self.dir.display())
    }
}

impl Store {
    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// What it is on.
    pub(crate) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Copies the state of now into the directory `dir`, which is made, or is empty. Others go on.
    pub fn back_up(self: &Arc<Store>, dir: &Path, options: BackupOptions<'_>) -> Result<BackupReport> {
        let _span = span!(INFO, "backup", to = dir.display().to_string());
        backup::back_up(self, dir, options)
    }

    /// What writes are acknowledged at unless they say otherwise.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.options.durability
    }

    /// The newest commit.
    #[must_use]
    pub fn visible(&self) -> Seq {
        self.commit_progress.visible()
    }

    /// Returns the last commit that has a seq. It may not be visible yet.
    pub(super) fn newest(&self) -> Seq {
        self.commit_progress.last_assigned(self.window.reserved())
    }

    /// Commits a second, in the last two to four seconds; none if there were none, or they are not
    /// known yet.
    pub(crate) fn commits_per_second(&self) -> Option<f64> {
        self.commit_rate.lock().1.get()
    }

    /// Waits until all readers see commit `seq`, of which something was seen.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if it failed.
    pub fn wait_visible(&self, seq: Seq) -> Result<()> {
        self.commit_progress.wait(seq)
    }

    /// Everything up to here is on the device.
    #[must_use]
    pub fn durable(&self) -> Seq {
        Seq(self.durable.load(Ordering::Acquire))
    }

    /// An error if the database is closed, a commit is half applied, or this is a forked child.
    #[inline]
    pub fn check_open(&self) -> Result<()> {
        if self.flags.is_closed.load(Ordering::Relaxed) || self.fork.is_child() {
            return Err(Error::Closed);
        }
        if self.flags.is_commit_half_applied.load(Ordering::Acquire) {
            return Err(self.poison_error());
        }
        Ok(())
    }

    /// As [`Store::check_open`], and writes must be possible.
    #[inline]
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.check_open()?;
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        self.check_not_poisoned()
    }

    /// An error if the database is poisoned.
    #[inline]
    pub(crate) fn check_not_poisoned(&self) -> Result<()> {
        if self.flags.is_poisoned.load(Ordering::Acquire) { Err(self.poison_error()) } else { Ok(()) }
    }

    pub(crate) fn poison_error(&self) -> Error {
        Error::Poisoned { op: self.poison_op.lock().unwrap_or("write") }
    }

    /// From here on nothing is written any more: `op` failed in a way that leaves the kernel in
    /// doubt.
    pub(crate) fn poison(&self, op: &'static str) -> Error {
        event!(ERROR, "the database refuses writes from now on", op = op);
        self.poison_op.lock().get_or_insert(op);
        self.flags.is_poisoned.store(true, Ordering::Release);
        self.sync_round.wake();
        self.signals.wake();
        self.poison_error()
    }

    /// As [`Store::poison_op`], and nothing is read any more either.
    pub(crate) fn poison_reads(&self, op: &'static str) {
        self.flags.is_commit_half_applied.store(true, Ordering::Release);
        drop(self.poison(op));
    }

    pub(crate) fn log(&self, id: LogId) -> &LogState {
        &self.logs[id.index()]
    }

    /// Figures.
    #[must_use]
    pub fn stats(&self) -> DatabaseStats {
        let memory = &self.context.memory;
        // In this order: a round that takes what there is passes it from the first to the second.
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
                *self.poison_op.lock()
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

    /// Where the file at `path` is for others.
    #[must_use]
    pub fn real_path(&self, path: &Path) -> PathBuf {
        self.disk.real_path(path)
    }

    /// What ROOT says now, without what changes at each write of it.
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
            next_segment: crate::types::SegmentId(0),
            next_keyspace: crate::types::KeyspaceId(0),
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
