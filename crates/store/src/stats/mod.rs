//! # Options and statistics of a store

#[doc(hidden)]
pub mod wire;
pub(crate) mod workload;

use sheaf_platform::error::PoisonCause;
use std::path::PathBuf;
use std::time::Duration;

use crate::changes::{ChangeStats, RetentionChoice};
use crate::commit::group_commit::GroupCommitMode;
use crate::commit::stall::{StallListener, StallStats};
use crate::expiry::ExpiryStats;
use crate::space::log::LogStats;
use sheaf_log::blob::BlobStats;
use sheaf_log::types::Durability;
use sheaf_platform::disk::{DescriptorStats, Permissions};
use sheaf_platform::parallel::background_threads;

/// Options for opening a store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Create the database if it does not exist.
    pub create: bool,
    /// Change nothing on disk.
    pub read_only: bool,
    /// Memory budget in bytes.
    pub memory_budget: u64,
    /// Default durability of writes.
    pub durability: Durability,
    /// Target age at which buffered commits are synced.
    pub sync_interval: Duration,
    /// Number of threads that run background steps in parallel.
    pub background_threads: usize,
    /// Space limit of the store log, as a multiple of its live bytes.
    pub max_space_amplification: f64,
    /// Whether the space limit was set explicitly and also bounds engines that keep their data in
    /// files of their own.
    pub bounds_engine_files: bool,
    /// Modes of files and directories. `None` selects those of an existing database or of its
    /// source. If there is neither, only the owner has access.
    pub permissions: Option<Permissions>,
    /// Use small sizes, for tests.
    pub tiny: bool,
    /// Start no background threads.
    pub inline: bool,
    /// Method by which committers share syncs.
    pub group_commit_mode: GroupCommitMode,
    /// Write checkpoints, so that an opening need not replay the whole logs.
    pub checkpoints: bool,
    /// Retention of changes for the change feed.
    pub retain_changes: RetentionChoice,
    /// Callback for waits of writers.
    pub stall_listener: StallListener,
    /// Open a directory that a repair is writing. Without this flag such a directory is refused.
    #[doc(hidden)]
    pub is_repair_output: bool,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions {
            create: true,
            read_only: false,
            memory_budget: 1 << 30,
            durability: Durability::Buffer,
            sync_interval: Duration::from_millis(100),
            background_threads: background_threads(),
            max_space_amplification: 1.6,
            bounds_engine_files: false,
            permissions: None,
            tiny: false,
            inline: false,
            group_commit_mode: GroupCommitMode::default(),
            checkpoints: true,
            retain_changes: RetentionChoice::Keep,
            stall_listener: StallListener::default(),
            is_repair_output: false,
        }
    }
}

/// Memory by purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStats {
    /// The budget (`Builder::memory`).
    pub budget: u64,
    /// Indexes in memory.
    pub index: u64,
    /// Old versions that snapshots pin.
    pub versions: u64,
    /// Memtables and write buffers.
    pub buffers: u64,
    /// Caches.
    pub cache: u64,
}

impl MemoryStats {
    /// Returns the sum of all parts in bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.unevictable_bytes().saturating_add(self.cache)
    }

    /// Returns true if indexes, versions and buffers alone exceed the budget. Then engines with an
    /// index in memory refuse new keys, checkpoints run early, and nothing is cached.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.unevictable_bytes() > self.budget
    }

    fn unevictable_bytes(&self) -> u64 {
        self.index.saturating_add(self.versions).saturating_add(self.buffers)
    }
}

/// Statistics of one cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Keyspace of the cache; `None` for the caches of large values and of decompressed values,
    /// which all keyspaces share.
    pub keyspace: Option<String>,
    /// Bytes in the cache.
    pub bytes: u64,
    /// Current limit in bytes, if another cache would make better use of more memory.
    pub limit_bytes: Option<u64>,
}

/// Statistics of a database. Counters start at 0 with each opening.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DatabaseStats {
    /// Number of the newest commit.
    pub visible_seq: u64,
    /// Number of the newest durable commit: it and all earlier ones survive a power failure.
    pub durable_seq: u64,
    /// Age of the oldest commit that is not durable.
    pub unsynced_age: Duration,
    /// Number of syncs (group commits).
    pub sync_rounds: u64,
    /// Number of commits and `persist` calls that waited for a sync.
    pub sync_waits: u64,
    /// Live snapshots and iterators.
    pub views: u64,
    /// Number of the commit that the oldest of them shows.
    pub oldest_view_seq: Option<u64>,
    /// On-disk states pinned by backups and attached readers.
    pub pinned_states: u64,
    /// Bytes of segments that only these pinned states keep.
    pub pinned_bytes: u64,
    /// Number of writes that were throttled because background work was behind.
    pub throttles: u64,
    /// Transactions.
    pub transactions: TransactionStats,
    /// Expiry of pairs.
    pub expiry: ExpiryStats,
    /// Waits of writers, by kind.
    pub stalls: Vec<StallStats>,
    /// Published checkpoints.
    pub checkpoints: u64,
    /// Bytes written by checkpoints.
    pub checkpoint_bytes: u64,
    /// Bytes of values that were written to blob files.
    pub blob_bytes_written: u64,
    /// Current values in blob files.
    pub blobs: BlobStats,
    /// Operation that failed, if the database therefore refuses writes.
    pub poisoned: Option<PoisonCause>,
    /// Memory by purpose.
    pub memory: MemoryStats,
    /// Each cache; [`MemoryStats::cache`] is their sum. Includes caches of dropped keyspaces that a
    /// snapshot still shows.
    pub caches: Vec<CacheStats>,
    /// Each log.
    pub logs: Vec<LogStats>,
    /// The change feed.
    pub changes: ChangeStats,
    /// Statistics of the opening.
    pub opening: OpeningStats,
    /// File descriptors; zeros if the disk does not limit them.
    pub descriptors: DescriptorStats,
    /// True if other processes can connect to the IPC socket.
    pub has_ipc: bool,
}

/// Statistics of transactions since the opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionStats {
    /// Commits of transactions that changed or checked something.
    pub committed: u64,
    /// Commits of transactions that failed because of a conflict.
    pub conflicts: u64,
    /// Open transactions that have read a range.
    pub range_readers: u64,
    /// Bytes of the keys that commits recorded for them; part of [`MemoryStats::buffers`].
    pub recent_key_bytes: u64,
}

/// Statistics of an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpeningStats {
    /// True if the database had been closed properly.
    pub is_clean: bool,
    /// Duration of the opening.
    pub duration: Duration,
    /// Frames read to find the end of the logs.
    pub frames_scanned: u64,
    /// Records replayed into engines.
    pub records_replayed: u64,
    /// Bytes of incomplete commits after the cut, left by a crash.
    pub discarded_bytes: u64,
}

/// Result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Pairs read.
    pub pairs: u64,
    /// Log frames checked.
    pub frames: u64,
    /// Bytes checked.
    pub bytes: u64,
    /// Corruptions reported.
    pub findings: u64,
    /// Files checked.
    pub files: Vec<PathBuf>,
}
