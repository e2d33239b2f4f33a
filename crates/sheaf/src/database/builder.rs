//! # Builder: options for opening a database

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sheaf_engine::contract::EngineFactory;
use sheaf_log::options::OptionSpec;
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::Disk;
use sheaf_platform::disk::persistent::PersistenceMode;
use sheaf_platform::disk::real::RealDisk;
use sheaf_store::{GroupCommitMode, Stall, StoreOptions};

use crate::MergeOperator;
use crate::merge::MergeRegistry;
use crate::{KeyspaceOptions, Result};

#[cfg(doc)]
use crate::{Batch, Database, DatabaseStats, Error};
use crate::{Durability, Permissions};

/// Name of the default engine, which keeps keys in order and is for mixed load.
pub const DEFAULT_ENGINE: &str = "flex";

/// Returns the names of the built-in engines.
///
/// ```
/// assert!(sheaf::engines().contains(&sheaf::DEFAULT_ENGINE));
/// ```
#[must_use]
pub fn engines() -> Vec<&'static str> {
    Builder::default().engines.iter().map(|engine| engine.name()).collect()
}

/// Checks the name, the engine and the options of a new keyspace, and the time to live and the key
/// of its first pair, without a database. For the command, which creates no database for a pair
/// that would be refused. Knows the built-in operators only.
///
/// # Errors
///
/// Returns the errors of [`Database::keyspace`](crate::Database::keyspace) and
/// [`Keyspace::insert_with_ttl`](crate::Keyspace::insert_with_ttl) for such arguments.
#[doc(hidden)]
pub fn check_new_keyspace(
    name: &str,
    options: &KeyspaceOptions,
    ttl: Option<Duration>,
    key: &[u8],
) -> Result<()> {
    sheaf_store::check_keyspace_name(name)?;
    MergeRegistry::default().check_known(options.options.merge_operator())?;
    let (choice, built_in) = (options.selection(), Builder::default().engines);
    let engine = choice.engine.unwrap_or(DEFAULT_ENGINE);
    if let Some(factory) = built_in.iter().find(|factory| factory.name() == engine) {
        sheaf_store::check_engine_options(&**factory, choice.options)?;
    }
    ttl.map_or(Ok(()), |ttl| sheaf_store::expiry_after(ttl, SystemClock.unix_millis()).map(drop))?;
    sheaf_store::check_sizes(key, 0)
}

/// Returns the versions of the disk format that this build reads and writes. A database of another
/// version is refused with [`crate::Error::UnsupportedVersion`].
///
/// ```
/// assert!(!sheaf::disk_formats().is_empty());
/// ```
#[must_use]
pub fn disk_formats() -> std::ops::RangeInclusive<u32> {
    sheaf_log::root::FORMAT..=sheaf_log::root::FORMAT_WITH_CHANGES
}

/// Returns the creation options of the engine `engine`, with their ranges and defaults. Returns an
/// empty slice if the engine is unknown or has no options.
///
/// ```
/// let branching = &sheaf::engine_options("cedrus")[0];
/// assert_eq!(branching.name, "branching");
/// assert!(branching.allows(branching.default));
/// assert!(sheaf::engine_options("unknown").is_empty());
/// ```
#[must_use]
pub fn engine_options(engine: &str) -> &'static [OptionSpec] {
    let built_in = Builder::default().engines;
    built_in.iter().find(|factory| factory.name() == engine).map_or(&[], |factory| factory.options())
}

/// Returns the options that a keyspace of any engine can have.
///
/// ```
/// assert!(sheaf::keyspace_options().iter().any(|option| option.name == "expiry"));
/// ```
#[must_use]
pub fn keyspace_options() -> &'static [OptionSpec] {
    sheaf_store::KEYSPACE_OPTIONS
}

/// Options for opening a database. [`Database::builder`] returns the defaults.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use sheaf::{Database, Durability};
///
/// let db = Database::builder().memory(256 << 20).durability(Durability::Sync).open(dir.path())?;
/// # db.close()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder {
    pub(crate) options: StoreOptions,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) engines: Vec<Arc<dyn EngineFactory>>,
    pub(super) max_open_files: Option<u32>,
    pub(super) persistence_mode: Option<PersistenceMode>,
    /// True if the disk is the real one, where sockets exist.
    pub(super) is_real: bool,
    pub(super) ipc: bool,
    pub(super) lock_timeout: Duration,
    pub(super) merge_registry: MergeRegistry,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            options: StoreOptions::default(),
            disk: Arc::new(RealDisk::default()),
            clock: Arc::new(SystemClock),
            engines: vec![
                sheaf_flat::hashed(),
                sheaf_flat::ordered(),
                Arc::new(sheaf_flex::Flex),
                Arc::new(sheaf_cedrus::Cedrus),
                Arc::new(sheaf_kreon::Kreon),
                Arc::new(sheaf_delsm::Delsm),
            ],
            max_open_files: None,
            persistence_mode: None,
            is_real: true,
            ipc: true,
            lock_timeout: Duration::ZERO,
            merge_registry: MergeRegistry::default(),
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreOptions { create, read_only, memory_budget: memory, durability, .. } = &self.options;
        f.debug_struct("Builder")
            .field("create", create)
            .field("read_only", read_only)
            .field("memory", memory)
            .field("durability", durability)
            .field("ipc", &self.ipc)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Sets whether a missing database is created (default) or [`Error::DatabaseNotFound`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, Error};
    ///
    /// let missing = Database::builder().create(false).open(dir.path().join("none"));
    /// assert!(matches!(missing, Err(Error::DatabaseNotFound { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn create(mut self, create: bool) -> Builder {
        self.options.create = create;
        self
    }

    /// Sets whether the database is opened for reading only (default: no). A read-only handle
    /// writes nothing; its writes return [`Error::ReadOnly`].
    ///
    /// If no process has the database open for writing, readers share it and keep writers out until
    /// they close. If another process has it open for writing, the reader *attaches* to that owner
    /// through its [IPC socket](Builder::ipc). An attached reader sees a fixed snapshot, takes no
    /// lock, and blocks neither reads nor writes of the owner. The owner keeps the data of the
    /// snapshot on disk until the reader closes; [`DatabaseStats::pinned_states`] and
    /// [`DatabaseStats::pinned_bytes`] show it. If the owner closes the database or dies, reads
    /// that the cache cannot answer return [`Error::OwnerClosed`]; open the database again.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, Error};
    ///
    /// let db = Database::open(dir.path())?; // usually in another process
    /// db.keyspace("users", "flex")?.insert("ada", "lovelace")?;
    ///
    /// let reader = Database::builder().read_only(true).open(dir.path())?;
    /// let users = reader.keyspace("users", "flex")?;
    /// assert!(users.contains_key("ada")?);
    /// assert!(matches!(users.remove("ada"), Err(Error::ReadOnly)));
    /// # drop((reader, users));
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Builder {
        self.options.read_only = read_only;
        self
    }

    /// Sets whether the owner listens on its *IPC socket*, a Unix socket in the database
    /// directory (default: yes). Through it, processes of the same user and of root request
    /// statistics, backups and conversions ([`crate::AttachedOwner`]), or attach as readers
    /// ([`Builder::read_only`]). For a reader it sets whether the reader may attach.
    ///
    /// If the file system does not support sockets, the database opens without the socket;
    /// [`crate::DatabaseStats::has_ipc`] shows whether it has one.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, AttachedOwner};
    ///
    /// let db = Database::builder().ipc(false).open(dir.path())?;
    /// assert!(!db.stats().has_ipc && AttachedOwner::connect(dir.path())?.is_none());
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn ipc(mut self, ipc: bool) -> Builder {
        self.ipc = ipc;
        self
    }

    /// Sets how long the opening waits for another process or handle that uses the database, before
    /// it returns [`Error::Locked`]. Default: zero, no waiting.
    ///
    /// The time starts again when another process becomes the owner, so that openings that start
    /// together take turns. In total an opening waits at most twelve times `wait`. A reader waits
    /// only while it cannot attach to the owner, for example while the owner opens or closes the
    /// database. Readers give precedence to a waiting writer, for at most half a second.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::time::Duration;
    ///
    /// let db = sheaf::Database::builder().wait(Duration::from_secs(5)).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Builder {
        self.lock_timeout = wait;
        self
    }

    /// Sets the memory budget in bytes for indexes, write buffers, old versions that snapshots pin,
    /// and caches. Default: 1 GiB. [`DatabaseStats::memory`] shows its use.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().memory(64 << 20).open(dir.path())?;
    /// assert_eq!(db.stats().memory.budget, 64 << 20);
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Builder {
        self.options.memory_budget = bytes;
        self
    }

    /// Sets the modes of the files and directories that the database creates; the umask applies in
    /// addition. Default: files 0600 and directories 0700 for a new database, and the modes of its
    /// creation for an existing one. A restored or repaired database is never accessible to users
    /// that cannot access its source, unless modes are set.
    ///
    /// Opening returns [`Error::InvalidArgument`] for modes that [`Permissions::new`] excludes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, Permissions};
    ///
    /// let db = Database::builder().permissions(Permissions::GROUP).open(dir.path())?;
    /// // Files have mode 0640, directories 0750.
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn permissions(mut self, permissions: Permissions) -> Builder {
        self.options.permissions = Some(permissions);
        self
    }

    /// Sets the number of file descriptors that the files of the database may use; values below 16
    /// count as 16. Default: a quarter of the limit of the process (`ulimit -n`) at the opening, at
    /// most 1,024.
    ///
    /// Beyond this number the database closes the descriptors of unused files and opens the files
    /// again on the next use; [`DatabaseStats::descriptors`] counts that. Reads of mapped segments
    /// need no descriptor. The limit excludes a few descriptors for the lock and the IPC socket,
    /// one for each thread in a file operation while all others are in use, and those of deleted
    /// files that a snapshot or an iterator still reads.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().open_files(32).open(dir.path())?;
    /// assert_eq!(db.stats().descriptors.limit, 32);
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn open_files(mut self, descriptors: u32) -> Builder {
        self.max_open_files = Some(descriptors);
        self
    }

    /// Puts the files of the database in persistent memory, which the processor addresses by byte.
    /// Default: files on a disk. The format is the same, so that a database may be opened either
    /// way. A handle that only reads is not affected.
    ///
    /// With [`PersistenceMode::Dax`] the directory must be on a DAX file system (ext4 or XFS,
    /// `mount -o dax`) in persistent memory, and the processor must be x86-64, or aarch64 with
    /// `dc cvap`. Files are mapped with `MAP_SYNC`. A commit is durable after its cache lines are
    /// written back and one fence, without a system call. Files are synced only where their length
    /// changes, and directories where their names change. A file that the kernel refuses to map is
    /// written and synced as usual. [`PersistenceMode::Substitute`] runs the same code on any file
    /// system, with `msync` in place of the instructions: it is meant for tests, slower than the
    /// default, and equally safe.
    ///
    /// This never ran on real persistent memory: tests use the substitute, and an emulation that
    /// cuts the power. The page on durability in the guide shows how a kernel emulates such memory.
    ///
    /// Cost: a second mapping (address space, no memory) for each file that is written to.
    ///
    /// Opening returns [`Error::Io`] of kind `Unsupported` if the directory is not on a DAX mount,
    /// or if the processor lacks the instructions.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, Durability, PersistenceMode};
    ///
    /// let builder = || Database::builder().durability(Durability::Sync);
    /// let db = match builder().persistent_memory(PersistenceMode::Dax).open(dir.path()) {
    ///     Ok(db) => db,
    ///     Err(_) => builder().persistent_memory(PersistenceMode::Substitute).open(dir.path())?,
    /// };
    /// db.keyspace("users", "flat")?.insert("ada", "lovelace")?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn persistent_memory(mut self, mode: PersistenceMode) -> Builder {
        self.persistence_mode = Some(mode);
        self
    }

    /// Sets the default durability of commits. Default: [`Durability::Buffer`].
    /// [`Batch::durability`] overrides it for one batch.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, Durability};
    ///
    /// let db = Database::builder().durability(Durability::Sync).open(dir.path())?;
    /// let users = db.keyspace("users", "flex")?;
    /// users.insert("ada", "lovelace")?; // returns when the commit is on the device
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Builder {
        self.options.durability = durability;
        self
    }

    /// Sets the target for the longest time that a buffered commit stays unsynced. Default: 100 ms.
    /// A slow device may exceed it; [`DatabaseStats::unsynced_age`] shows the actual age. Opening
    /// returns [`Error::InvalidArgument`] for zero.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::time::Duration;
    ///
    /// let interval = Duration::from_millis(20);
    /// let db = sheaf::Database::builder().sync_interval(interval).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Builder {
        self.options.sync_interval = interval;
        self
    }

    /// Sets the number of threads that do background work at the same time: garbage collection and
    /// the engines' own steps (flushes, merges, spills). Default: half of the cores, from 1 to 8.
    /// Two further threads sync commits and prepare log segments. Threads beyond the first exist
    /// only while there is work for them. Opening returns [`Error::InvalidArgument`] for zero.
    ///
    /// If background work falls behind, the database slows down writers; [`DatabaseStats::stalls`]
    /// counts that. More threads help if cores are idle then.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().background_threads(2).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn background_threads(mut self, threads: usize) -> Builder {
        self.options.background_threads = threads;
        self
    }

    /// Sets a callback for stalls: `told` is called after each wait of a writer that lasted
    /// [`Builder::stall_threshold`] or longer. [`StallKind`](crate::StallKind) lists the causes.
    ///
    /// The writer itself calls it after the wait, once per wait, and holds no lock. The callback
    /// may therefore use the database; its own waits are counted and not reported. A panic in the
    /// callback is caught. [`DatabaseStats::stalls`] counts shorter waits too.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder()
    ///     .on_stall(|stall| eprintln!("{}: waited {:?}", stall.kind.name(), stall.duration))
    ///     .open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_stall(mut self, callback: impl Fn(&Stall) + Send + Sync + 'static) -> Builder {
        self.options.stall_listener.callback = Some(Arc::new(callback));
        self
    }

    /// Sets the shortest wait that [`Builder::on_stall`] reports, and the shortest wait for a sync
    /// that counts as a stall. Default: 10 ms.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::time::Duration;
    ///
    /// let threshold = Duration::from_millis(50);
    /// let db = sheaf::Database::builder().stall_threshold(threshold).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stall_threshold(mut self, threshold: Duration) -> Builder {
        self.options.stall_listener.threshold = threshold;
        self
    }

    /// Sets the limit on the disk space of the store log, as a multiple of its live entries: from
    /// 1.1 to 10, default 1.6. Above it, garbage collection reclaims space. A smaller limit costs
    /// more device writes; the READMEs of the engines `flat` and `flex` have figures. A keyspace of
    /// `flex` has no limit by default; a value set here also bounds its space and its part of the
    /// journal. If live data cannot fit under the limit, the limit is exceeded and no write waits
    /// for it forever.
    ///
    /// Opening returns [`Error::InvalidArgument`] for a value outside the range.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().space_limit(2.5).open(dir.path())?;
    /// # db.close()?;
    /// assert!(sheaf::Database::builder().space_limit(1.0).open(dir.path()).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn space_limit(mut self, times: f64) -> Builder {
        self.options.max_space_amplification = times;
        self.options.bounds_engine_files = true;
        self
    }

    /// Sets the method by which commits that wait for the device share its syncs. For measurements
    /// (`sheaf-bench batching`): every method gives the same guarantees, and the default is the
    /// fastest.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{GroupCommitMode, Database};
    ///
    /// let db = Database::builder().group_commit_mode(GroupCommitMode::Blocking).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn group_commit_mode(mut self, batching: GroupCommitMode) -> Builder {
        self.options.group_commit_mode = batching;
        self
    }

    /// Registers a merge operator under `name`, for [`Keyspace::merge`](crate::Keyspace::merge). A
    /// keyspace stores the name, and merges with the operator that has this name then; so a name
    /// must keep its meaning. A database whose keyspaces need other operators opens, and only their
    /// merges fail. The name has 1 to 48 letters, digits, `-`, `_` and `.`.
    ///
    /// Opening returns [`Error::InvalidArgument`] if the name is not valid, registered twice, or
    /// that of a [built-in operator](crate::merge_operators).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let first = |_key: &[u8], present: Option<&[u8]>, operand: &[u8]| {
    ///     Ok::<_, sheaf::MergeRefusal>(present.unwrap_or(operand).to_vec())
    /// };
    /// let db = sheaf::Database::builder().merge_operator("first", first).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn merge_operator(mut self, name: &str, operator: impl MergeOperator + 'static) -> Builder {
        self.merge_registry.add(name, Arc::new(operator));
        self
    }

    /// Sets whether logs are checkpointed. Without checkpoints, opening replays all of them. For
    /// measurements.
    #[doc(hidden)]
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: bool) -> Builder {
        self.options.checkpoints = checkpoints;
        self
    }

    /// Sets sizes so small that 200 operations reach every code path. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn tiny(mut self, tiny: bool) -> Builder {
        self.options.tiny = tiny;
        self
    }

    /// Disables background threads: their work runs in [`Database::pump`] and in writers that need
    /// it. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn inline(mut self, inline: bool) -> Builder {
        self.options.inline = inline;
        self
    }

    /// Replaces the real disk. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Builder {
        self.disk = disk;
        self.is_real = false;
        self
    }

    /// Replaces the system clock. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.clock = clock;
        self
    }

    /// Adds an engine. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(mut self, engine: Arc<dyn EngineFactory>) -> Builder {
        self.engines.push(engine);
        self
    }
}
