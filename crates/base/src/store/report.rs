//! # What a store says of itself

use std::path::PathBuf;
use std::time::Duration;

use super::stall::{StallStats, StallWatch};
use crate::blob::StagedStats;
use crate::disk::{DescriptorStats, Permissions};
use crate::options::EngineOptions;
use crate::types::{Durability, KeyspaceId};

/// How to open a store.
#[derive(Clone, Debug)]
pub struct Options {
    /// Create it if there is none.
    pub create: bool,
    /// Change nothing on disk.
    pub read_only: bool,
    /// Memory budget in bytes.
    pub memory: u64,
    /// What a write has survived when it is acknowledged, unless it says otherwise.
    pub durability: Durability,
    /// Buffered writes are synced this long after they were made, as a target.
    pub sync_interval: Duration,
    /// How many times the live entries the store logs may take on disk.
    pub space_limit: f64,
    /// Modes of files and directories. None: those of an existing database, or of its source; else the owner's alone.
    pub permissions: Option<Permissions>,
    /// Sizes for tests.
    pub tiny: bool,
    /// No background threads.
    pub inline: bool,
    /// How committers share syncs.
    pub batching: Batching,
    /// Whether logs are checkpointed, in which case opening need not replay all of them.
    pub checkpoints: bool,
    /// Whom to tell of writers that wait.
    pub stalls: StallWatch,
    /// Opens a directory that a repair is filling, which is refused else.
    #[doc(hidden)]
    pub is_filled: bool,
}

/// How committers that wait for the device share what it does for them: FlatStore's ways (§3.3), to be measured
/// against each other. All keep every promise; the default is the fastest (decisions/0011).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// A sync for each wait, whatever the device has by then.
    None,
    /// A sync for what the waiting thread committed itself since its last one.
    Vertical,
    /// A sync for everybody, and nobody commits while it runs.
    Naive,
    /// A sync for everybody, while others go on: the next round gathers beside it.
    #[default]
    Pipelined,
}

impl Batching {
    /// All of them.
    pub const ALL: [Batching; 4] = [Batching::None, Batching::Vertical, Batching::Naive, Batching::Pipelined];
}

impl Default for Options {
    fn default() -> Options {
        Options {
            create: true,
            read_only: false,
            memory: 1 << 30,
            durability: Durability::Buffer,
            sync_interval: Duration::from_millis(100),
            space_limit: 1.6,
            permissions: None,
            tiny: false,
            inline: false,
            batching: Batching::default(),
            checkpoints: true,
            stalls: StallWatch::default(),
            is_filled: false,
        }
    }
}

/// One keyspace in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// Its name.
    pub name: String,
    /// Its number: never reused, names its files.
    pub id: KeyspaceId,
    /// Its engine.
    pub engine: &'static str,
    /// What was chosen of its engine's options.
    pub options: EngineOptions,
    /// What is wrong with it, if it cannot be used.
    pub damage: Option<String>,
}

/// Memory by purpose, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The budget.
    pub budget: u64,
    /// Volatile indexes.
    pub index: u64,
    /// Old versions that snapshots pin.
    pub versions: u64,
    /// Memtables and write buffers.
    pub buffers: u64,
    /// Caches.
    pub cache: u64,
}

impl MemoryStats {
    /// Bytes of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.must_be_here().saturating_add(self.cache)
    }

    /// Whether the budget is exceeded by what cannot give way. Then new keys are refused by the engines whose index must be
    /// in memory, checkpoints come early, and nothing is cached.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.must_be_here() > self.budget
    }

    fn must_be_here(&self) -> u64 {
        self.index.saturating_add(self.versions).saturating_add(self.buffers)
    }
}

/// What one cache has of the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Whose it is; none for the one of large values, which all keyspaces share.
    pub keyspace: Option<String>,
    /// Bytes in it.
    pub bytes: u64,
    /// Bytes it may have at this moment, if another would make better use of more.
    pub share: Option<u64>,
}

/// Figures of one log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Its name: `journal`, `flat`.
    pub name: &'static str,
    /// Live segments.
    pub segments: u64,
    /// Bytes of their files.
    pub disk_bytes: u64,
    /// Bytes of entries that something points to.
    pub live_bytes: u64,
    /// Bytes appended by commits since opening.
    pub appended: u64,
    /// Bytes appended by the cleaner since opening.
    pub moved: u64,
    /// Segments freed since opening.
    pub freed: u64,
    /// Segments kept as they are because a frame in them is damaged.
    pub damaged: u64,
}

/// Figures of the whole database.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Number of the newest commit.
    pub visible: u64,
    /// Everything up to here survives a power cut.
    pub durable: u64,
    /// How long the oldest unsynced commit has been waiting.
    pub unsynced_age: Duration,
    /// Sync rounds since opening.
    pub sync_rounds: u64,
    /// Commits that waited for a sync round since opening.
    pub sync_waits: u64,
    /// Live snapshots and iterators.
    pub views: u64,
    /// The oldest state one of them shows.
    pub oldest_view: Option<u64>,
    /// States that backups, and readers beside, keep on disk.
    pub stills: u64,
    /// Bytes of segments that are kept for their sake alone.
    pub held_bytes: u64,
    /// Times a writer was slowed down because background work was behind.
    pub brakes: u64,
    /// Waits of writers, by kind.
    pub stalls: Vec<StallStats>,
    /// Checkpoints published since opening.
    pub checkpoints: u64,
    /// Bytes of checkpoints written since opening.
    pub checkpoint_bytes: u64,
    /// Bytes of values that stand beside the logs, staged since opening.
    pub staged_bytes: u64,
    /// Values beside the logs.
    pub staged: StagedStats,
    /// Why the database refuses writes, if it does.
    pub poisoned: Option<&'static str>,
    /// Memory.
    pub memory: MemoryStats,
    /// The caches, of which [`MemoryStats::cache`] is the sum; those of keyspaces that were dropped, but are still seen, among them.
    pub caches: Vec<CacheStats>,
    /// The logs.
    pub logs: Vec<LogStats>,
    /// How the opening went.
    pub opening: OpeningStats,
    /// Descriptors of its files; zeros where the disk does not bound them.
    pub descriptors: DescriptorStats,
    /// Whether other processes can come in: to ask for these figures, for backups, and to read beside.
    pub door: bool,
}

/// How an opening went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpeningStats {
    /// The database had been closed in order.
    pub clean: bool,
    /// Time it took.
    pub took: Duration,
    /// Frames read to find the end.
    pub frames_scanned: u64,
    /// Records replayed into engines.
    pub records_replayed: u64,
    /// Bytes of commits above the cut that a crash left incomplete.
    pub bytes_cut: u64,
}

/// What a verification read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Pairs read.
    pub pairs: u64,
    /// Frames checked.
    pub frames: u64,
    /// Bytes checked.
    pub bytes: u64,
    /// Damages reported.
    pub findings: u64,
    /// Files checked.
    pub files: Vec<PathBuf>,
}
