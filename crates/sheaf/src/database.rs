//! # Database: opening and closing, keyspaces, snapshots, backups
//!
//! One type and its methods. More than half of the lines are their docs and examples, so the file
//! is long.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sheaf_engine::contract::EngineFactory;
use sheaf_log::options::OptionSpec;
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::lock_holder::add_lock_holder;
use sheaf_platform::disk::real::{RealDisk, usual_open_files};
use sheaf_platform::disk::{Disk, LockMode, LockOutcome};
use sheaf_store::backup;
use sheaf_store::{
    self, BackupOptions, BackupReport, DatabaseStats, GroupCommitMode, KeyspaceInfo, LOCK, ProgressFn,
    RepairOptions, RepairReport, Stall, Store, StoreOptions, VerifyReport,
};

use crate::ipc::{AttachedOwner, DatabaseOverview, ExportedSnapshot, IpcServer, open_attached, overview};
use crate::lock_wait::LockWait;
use crate::open_database::OpenDatabase;
use crate::{
    Batch, Durability, Error, Keyspace, KeyspaceOptions, LockConflict, Permissions, Result, Snapshot,
};

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
    options: StoreOptions,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    engines: Vec<Arc<dyn EngineFactory>>,
    max_open_files: Option<u32>,
    /// True if the disk is the real one, where sockets exist.
    is_real: bool,
    ipc: bool,
    lock_timeout: Duration,
}

/// Result of [`Builder::open_or_connect`].
#[derive(Debug)]
pub enum OpenOutcome {
    /// The database, opened in this process.
    Database(Database),
    /// A connection to the process that has the database open.
    Owner(AttachedOwner),
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
            is_real: true,
            ipc: true,
            lock_timeout: Duration::ZERO,
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
            .field("door", &self.ipc)
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
    /// through its [door](Builder::ipc). An attached reader sees a fixed snapshot, takes no lock,
    /// and blocks neither reads nor writes of the owner. The owner keeps the data of the snapshot
    /// on disk until the reader closes; [`DatabaseStats::pinned_states`] and
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

    /// Sets whether the owner listens on its *door*, a Unix socket in the database directory
    /// (default: yes). Through it, processes of the same user and of root request statistics,
    /// backups and conversions ([`crate::AttachedOwner`]), or attach as readers
    /// ([`Builder::read_only`]). For a reader it sets whether the reader may attach.
    ///
    /// If the file system does not support sockets, the database opens without the door;
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
    pub fn ipc(mut self, door: bool) -> Builder {
        self.ipc = door;
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
    /// need no descriptor. The limit excludes a few descriptors for the lock and the door, one for
    /// each thread in a file operation while all others are in use, and those of deleted files that
    /// a snapshot or an iterator still reads.
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
    /// more device writes; the README of the engine `flat` has figures. For `flex` the value does
    /// not limit disk space: it controls the amount of superseded data in its journal and
    /// intervals.
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

    /// Restores a backup like [`Database::restore`], with the permissions of the builder. `watcher`
    /// receives the progress and may cancel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use std::ops::ControlFlow;
    ///
    /// use sheaf::{BackupOptions, Database};
    ///
    /// let (monday, again) = (dir.path().join("monday"), dir.path().join("again.db"));
    /// let db = Database::open(dir.path().join("my.db"))?;
    /// db.backup(&monday, BackupOptions::default())?;
    /// let mut watcher = |progress: sheaf::BackupProgress| {
    ///     println!("{} of {} bytes", progress.done, progress.total);
    ///     ControlFlow::Continue(())
    /// };
    /// Database::builder().restore(&monday, &again, Some(&mut watcher))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::restore`], and [`Error::Cancelled`] if the watcher
    /// returned `Break`; nothing stays in `to`.
    pub fn restore(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        on_progress: Option<&mut ProgressFn<'_>>,
    ) -> Result<BackupReport> {
        let permissions = self.options.permissions;
        let restored =
            backup::restore(&self.limited_disk(), from.as_ref(), to.as_ref(), permissions, on_progress);
        restored.map_err(|error| if self.is_real { add_lock_holder(error, LOCK) } else { error })
    }

    /// Repairs a database like [`Database::repair`], with the memory budget and the permissions of
    /// the builder. Waits for a writer as [`Builder::wait`] allows. Both databases share the memory
    /// budget.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, RepairOptions};
    ///
    /// let (old, new) = (dir.path().join("my.db"), dir.path().join("new.db"));
    /// Database::open(&old)?.close()?;
    /// let options = RepairOptions::default();
    /// let report = Database::builder().memory(64 << 20).repair(&old, &new, options)?;
    /// assert!(report.is_complete());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Database::repair`]; nothing stays in `to`.
    pub fn repair(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: RepairOptions<'_>,
    ) -> Result<RepairReport> {
        self.wait_for_writers(from.as_ref())?;
        let (place, machine) = ((from.as_ref(), to.as_ref()), (self.limited_disk(), self.clock));
        sheaf_store::repair(place, &self.options, machine, &self.engines, options)
    }

    /// Returns the disk with the limit on descriptors. A simulated disk has no limit unless one is
    /// set.
    fn limited_disk(&self) -> Arc<dyn Disk> {
        let limit = self.max_open_files.or_else(|| self.is_real.then(usual_open_files));
        limit
            .and_then(|limit| self.disk.with_descriptor_limit(limit))
            .unwrap_or_else(|| Arc::clone(&self.disk))
    }

    /// Opens the database in the directory `path`; creates it unless [`Builder::create`] forbids
    /// it. Replays the part of the logs after the last checkpoint. Damage in one keyspace does not
    /// fail the opening: it is reported when that keyspace is used.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().open(dir.path().join("my.db"))?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::DatabaseNotFound`] if there is no database and `create` is false.
    /// - [`Error::NotADatabase`] if the directory contains other files.
    /// - [`Error::Locked`] if the database is in use for longer than [`Builder::wait`], and a
    ///   reader cannot attach.
    /// - [`Error::UnsupportedVersion`] if this build does not support its format version.
    /// - [`Error::Corrupt`] if both slots of ROOT are damaged.
    /// - [`Error::InvalidArgument`] if an option is out of range.
    /// - [`Error::Io`], [`Error::NoSpace`] and [`Error::TooManyFiles`] from the operating system.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        let path = path.as_ref();
        self.retry_while_locked(path, |waiting| self.open_once(path, waiting))
    }

    /// Opens the database in the directory `path`, or connects to the process that has it open.
    /// Waits like [`Builder::open`] until one of them succeeds.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, OpenOutcome};
    ///
    /// let newest = match Database::builder().open_or_connect(dir.path())? {
    ///     OpenOutcome::Database(db) => db.stats().visible_seq,
    ///     OpenOutcome::Owner(mut owner) => owner.stats()?.visible_seq,
    /// };
    /// # assert_eq!(newest, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`] and [`AttachedOwner::connect`].
    pub fn open_or_connect(self, path: impl AsRef<Path>) -> Result<OpenOutcome> {
        let path = path.as_ref();
        self.retry_while_locked(path, |waiting| match AttachedOwner::connect(path)? {
            Some(owner) => Ok(OpenOutcome::Owner(owner)),
            None => self.open_once(path, waiting).map(OpenOutcome::Database),
        })
    }

    /// Repeats `attempt` until it succeeds, fails because of anything but another user of the
    /// database, or the time is up.
    fn retry_while_locked<T>(&self, path: &Path, attempt: impl Fn(&LockWait) -> Result<T>) -> Result<T> {
        let mut waiting = LockWait::new(path, self.options.read_only, self.lock_timeout);
        loop {
            match attempt(&waiting) {
                Err(error) if LockWait::is_retryable(&error) && waiting.wait_for_retry() => {}
                Err(error) if self.is_real => return Err(add_lock_holder(error, LOCK)),
                answer => return answer,
            }
        }
    }

    fn open_once(&self, path: &Path, waiting: &LockWait) -> Result<Database> {
        let Builder { options, clock, engines, .. } = self;
        let (disk, has_door) = (self.limited_disk(), self.ipc && self.is_real);
        let alone = || match waiting.must_yield_to_writer() {
            true => Err(Error::locked(path, None, LockConflict::Readers)),
            false => {
                Store::open(path, options.clone(), Arc::clone(&disk), Arc::clone(clock), engines.clone())
            }
        };
        let store = match alone() {
            Err(Error::Locked { .. }) if options.read_only && has_door => {
                open_attached(path, options, Arc::clone(&disk), clock, engines, alone)?
            }
            opened => opened?,
        };
        let is_owner = !options.read_only && !options.inline;
        let door = (has_door && is_owner).then(|| IpcServer::open(&store).ok()).flatten();
        Ok(Database { store: OpenDatabase::new(store, door) })
    }

    /// Waits until no process has the database in `path` open for writing.
    fn wait_for_writers(&self, path: &Path) -> Result<()> {
        self.retry_while_locked(path, |_| match self.disk.lock(&path.join(LOCK), LockMode::Shared) {
            Ok(LockOutcome::Busy(pid)) => Err(Error::locked(path, pid, LockConflict::Owner)),
            _ => Ok(()), // or an error that the repair itself runs into
        })
    }

    /// Opens an exported snapshot for reading, on any disk. For tests.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    #[doc(hidden)]
    pub fn open_exported(self, snapshot: ExportedSnapshot) -> Result<Database> {
        let store = snapshot.open(self.limited_disk(), self.options, self.clock, self.engines)?;
        Ok(Database { store: OpenDatabase::new(store, None) })
    }
}

/// An open database: keyspaces in one directory with one order of commits.
///
/// A handle is `Send + Sync`; clones are cheap and share the database. The database closes when
/// [`Database::close`] is called or the last handle is dropped. Keyspaces, snapshots, iterators,
/// batches and loaders are handles too.
#[derive(Clone)]
pub struct Database {
    store: Arc<OpenDatabase>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.store.path()).finish_non_exhaustive()
    }
}

impl Database {
    /// Opens the database in the directory `path` with the default options; creates it if it does
    /// not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::Database;
    ///
    /// let db = Database::open(dir.path())?;
    /// assert!(db.keyspaces().is_empty());
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Database::builder().open(path)
    }

    /// Returns the default options for opening.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let db = sheaf::Database::builder().memory(64 << 20).open(dir.path())?;
    /// # db.close()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn handle(&self) -> &Arc<OpenDatabase> {
        &self.store
    }

    /// Returns the directory of the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert_eq!(db.path(), dir.path());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.store.path().to_path_buf()
    }

    /// Opens the keyspace `name`; creates it durably if it does not exist. A name has 1 to 255
    /// bytes. `options` is the name of an engine, or [`KeyspaceOptions`]; an existing keyspace must
    /// match the options that are set. Creation waits for a sync of the device.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::KeyspaceOptions;
    ///
    /// let logs = db.keyspace("logs", "flat-ordered")?;
    /// let small = KeyspaceOptions::default().option("interval-bytes", 4096);
    /// let users = db.keyspace("users", small)?;
    /// assert_eq!((logs.engine(), users.engine()), ("flat-ordered", "flex"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::EngineMismatch`] if it exists with another engine or another value of an option.
    /// - [`Error::InvalidArgument`] for an unknown engine or option, a value out of range, or a
    ///   name of the wrong length.
    /// - [`Error::Closed`], and [`Error::Poisoned`] after a panic in a commit.
    /// - The [write errors](Keyspace#write-errors), if it must be created.
    pub fn keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        let state = self.store.keyspace(name, options.into().selection(), DEFAULT_ENGINE)?;
        Ok(Keyspace::new(Arc::clone(&self.store), state))
    }

    /// Creates the keyspace `name` durably. If several threads call it at the same time, one of
    /// them creates the keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::{Error, KeyspaceOptions};
    ///
    /// db.create_keyspace("users", KeyspaceOptions::default())?;
    /// let again = db.create_keyspace("users", KeyspaceOptions::default());
    /// assert!(matches!(again, Err(Error::KeyspaceExists { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::KeyspaceExists`] if there is a keyspace of this name, with any engine;
    /// otherwise the errors of [`Database::keyspace`].
    pub fn create_keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        let state = self.store.create_keyspace(name, options.into().selection(), DEFAULT_ENGINE)?;
        Ok(Keyspace::new(Arc::clone(&self.store), state))
    }

    /// Opens the keyspace `name`; returns `None` if it does not exist.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// assert!(db.open_keyspace("users")?.is_none());
    /// db.create_keyspace("users", "flex")?;
    /// assert!(db.open_keyspace("users")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed, and [`Error::Poisoned`] after a
    /// panic in a commit.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        let state = self.store.find_keyspace(name)?;
        Ok(state.map(|state| Keyspace::new(Arc::clone(&self.store), state)))
    }

    /// Returns the keyspaces with their engines and options, sorted by name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// db.keyspace("users", "flex")?;
    /// db.keyspace("logs", "kreon")?;
    /// let names: Vec<String> = db.keyspaces().into_iter().map(|info| info.name).collect();
    /// assert_eq!(names, ["logs", "users"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.store.keyspaces()
    }

    /// Drops the keyspace `name` durably and returns true; returns false if it does not exist.
    /// Snapshots and iterators that include the keyspace stay readable; its space is reclaimed
    /// after the last of them is dropped.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let snapshot = db.snapshot()?;
    /// assert!(db.drop_keyspace("users")?);
    /// assert!(!db.drop_keyspace("users")?);
    /// assert!(users.get("ada").is_err() && snapshot.keyspace("users")?.is_empty()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the [write errors](Keyspace#write-errors).
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.store.drop_keyspace(name)
    }

    /// Returns an empty batch for any keyspaces of this database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let mut batch = db.batch();
    /// batch.insert(&users, "ada", "lovelace").insert(&users, "alan", "turing");
    /// batch.commit()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.store))
    }

    /// Returns a snapshot of all keyspaces as of now. Takes no lock, waits for the commits that
    /// have begun, and reads nothing.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.snapshot()?;
    /// users.insert("ada", "lovelace")?;
    /// assert!(before.keyspace("users")?.get("ada")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] after the database was closed, and [`Error::Poisoned`] after a
    /// panic in a commit.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::new(&self.store)
    }

    /// Waits until all commits acknowledged before the call are on the device. Concurrent calls
    /// share a sync. Returns at once if the database is read-only.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// db.persist()?; // survives a power failure from here on
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and [`Error::Poisoned`] if a sync failed.
    pub fn persist(&self) -> Result<()> {
        self.store.persist()
    }

    /// Waits until the database is at rest: all commits acknowledged before are on the device, and
    /// no background work is due or could free disk space.
    ///
    /// The caller's thread takes part in the work and does not wait for commits to pause. It moves
    /// the contents of the journal to the files of the engines, garbage-collects the store log
    /// while that frees more bytes than it writes, frees preallocated files, and runs the
    /// maintenance of every engine. It may therefore read and write much data.
    ///
    /// It does not reclaim space that snapshots, iterators, backups or attached readers hold.
    /// Commits of other threads may continue, but delay the rest. Returns at once if the database
    /// is read-only.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// use sheaf::KeyspaceOptions;
    ///
    /// let ks = db.keyspace("scratch", KeyspaceOptions::default())?;
    /// for index in 0..1000_u32 {
    ///     ks.insert(index.to_be_bytes(), vec![1; 1000])?;
    /// }
    /// db.drop_keyspace("scratch")?;
    /// db.quiesce()?;
    /// assert!(db.stats().logs.iter().map(|log| log.disk_bytes).sum::<u64>() < 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Busy`] if commits continued for a minute.
    /// - [`Error::Closed`], [`Error::Poisoned`].
    /// - The error that stops the background work, for example [`Error::NoSpace`].
    pub fn quiesce(&self) -> Result<()> {
        self.store.quiesce()
    }

    /// Returns the number of the newest commit over all keyspaces; 0 before the first one. Each
    /// commit that changes data has the next number. Creating, clearing and dropping a keyspace are
    /// commits too. Does not block, and works after the database was closed through another handle.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// let before = db.seq();
    /// users.insert("ada", "lovelace")?;
    /// users.insert("alan", "turing")?;
    /// assert_eq!(db.seq(), before + 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.store.visible().0
    }

    /// Returns the statistics of the whole database. Reads no data.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let stats = db.stats();
    /// assert!(stats.visible_seq >= 1 && stats.memory.total() <= stats.memory.budget);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> DatabaseStats {
        let mut stats = self.store.stats();
        stats.has_ipc = self.store.has_ipc();
        stats
    }

    /// Returns the statistics of the database and of each keyspace. Counts the keys of each
    /// keyspace, at the cost of [`Keyspace::len`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let overview = db.overview();
    /// let users = &overview.keyspaces[0];
    /// assert_eq!((users.info.name.as_str(), users.stats.keys), ("users", 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn overview(&self) -> DatabaseOverview {
        overview(self.store.store(), self.store.has_ipc())
    }

    /// Reads all data, verifies every checksum, and calls `report` for each corruption. Reads and
    /// writes of other threads continue; space of data that they overwrite may be reclaimed only
    /// after the verification.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let report = db.verify(|damage| eprintln!("{damage}"))?;
    /// assert_eq!((report.pairs, report.findings), (1, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and an I/O error that stops the verification. Corruptions are
    /// reported, not returned.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<VerifyReport> {
        self.store.store().verify(&mut report)
    }

    /// Copies the database, as of one moment during the call, to the directory `dir`. The directory
    /// must be empty or is created. The backup contains all commits acknowledged before the call,
    /// over all keyspaces. Reads and writes of other threads continue; space of data that they
    /// overwrite may be reclaimed only after the backup.
    ///
    /// [`Database::restore`] makes a database from the backup; nothing else opens it.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{BackupOptions, Database, KeyspaceOptions};
    ///
    /// let dir = dir.path();
    /// let db = Database::open(dir.join("my.db"))?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// db.backup(dir.join("monday"), BackupOptions::default())?;
    /// users.insert("alan", "turing")?;
    /// // Files that have not changed since Monday are linked, not copied.
    /// db.backup(dir.join("tuesday"), BackupOptions::default().base(dir.join("monday")))?;
    ///
    /// Database::restore(dir.join("monday"), dir.join("again.db"))?;
    /// let again = Database::open(dir.join("again.db"))?;
    /// let users = again.keyspace("users", KeyspaceOptions::default())?;
    /// assert!(users.contains_key("ada")? && !users.contains_key("alan")?);
    /// # drop((db, again, users));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error the backup is removed.
    ///
    /// - [`Error::InvalidArgument`] if the directory is not empty or is inside the database, or if
    ///   the base is a backup of another database.
    /// - [`Error::NotABackup`] if the base is not a backup.
    /// - [`Error::NoSpace`] if the disk is full.
    /// - [`Error::Corrupt`] if a keyspace cannot be opened because of damage (drop or repair it
    ///   first), or if the copy differs from the data when it is read back. Damaged pairs are
    ///   copied as they are.
    /// - [`Error::ReadOnly`] if the database was opened for reading only.
    /// - [`Error::Cancelled`] if the watcher returned `Break`.
    pub fn backup(&self, dir: impl AsRef<Path>, options: BackupOptions<'_>) -> Result<BackupReport> {
        self.store.store().back_up(dir.as_ref(), options)
    }

    /// Restores the backup in `from` to a new database in the directory `to`, and verifies every
    /// byte. The directory must be empty or is created. The new database opens like after a crash
    /// at the moment of the backup.
    ///
    /// [`Database::backup`] has an example.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{BackupOptions, Database};
    ///
    /// let db = Database::open(dir.path().join("my.db"))?;
    /// db.backup(dir.path().join("monday"), BackupOptions::default())?;
    /// let report = Database::restore(dir.path().join("monday"), dir.path().join("again.db"))?;
    /// assert_eq!(report.seq, db.seq());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error nothing stays in `to`.
    ///
    /// - [`Error::NotABackup`] if `from` is not a complete backup.
    /// - [`Error::Corrupt`], with the file, if the backup is damaged.
    /// - [`Error::InvalidArgument`] if `to` is not empty.
    /// - [`Error::NoSpace`] if the disk is full.
    pub fn restore(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<BackupReport> {
        Database::builder().restore(from, to, None)
    }

    /// Salvages the damaged database in the directory `from` into a new database in `to`. The
    /// directory `to` must be empty or is created. The damaged database is only read.
    ///
    /// A pair is *certain* if the intact parts of the damaged database prove that it is the newest
    /// version of its key. All certain pairs are copied. [`RepairOptions::keep_doubtful`] also
    /// copies pairs with intact bytes that a damaged part may have superseded or removed. The
    /// report counts the doubtful and the lost pairs; [`RepairOptions::on_finding`] receives each
    /// of them.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use sheaf::{Database, KeyspaceOptions, RepairOptions};
    ///
    /// let dir = dir.path();
    /// let db = Database::open(dir.join("my.db"))?;
    /// db.keyspace("users", KeyspaceOptions::default())?.insert("ada", "lovelace")?;
    /// db.close()?;
    /// std::fs::write(dir.join("my.db/ROOT.0"), "a disaster")?;
    ///
    /// let options = RepairOptions::default();
    /// let report = Database::repair(dir.join("my.db"), dir.join("new.db"), options)?;
    /// assert!(report.is_complete(), "the other slot of ROOT is intact");
    /// assert_eq!(report.damaged_files.len(), 1);
    /// assert_eq!(report.keyspaces[0].certain, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// After an error nothing stays in `to`.
    ///
    /// - [`Error::DatabaseNotFound`] or [`Error::NotADatabase`] if `from` contains no database.
    /// - [`Error::Locked`] if a process has it open for writing.
    /// - [`Error::InvalidArgument`] if `to` is not empty, or is inside `from`.
    /// - [`Error::UnsupportedVersion`] if this build does not support its format version.
    /// - [`Error::Cancelled`] if the watcher returned `Break`.
    /// - The errors of writing the new database, for example [`Error::NoSpace`].
    pub fn repair(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: RepairOptions<'_>,
    ) -> Result<RepairReport> {
        Database::builder().repair(from, to, options)
    }

    /// Runs the background work that is due in the caller's thread; returns true if there was any.
    /// For tests.
    ///
    /// # Errors
    ///
    /// Returns the error of the background work.
    #[doc(hidden)]
    pub fn pump(&self) -> Result<bool> {
        self.store.pump()
    }

    /// Exports a snapshot for an attached reader, as the door does for other processes. For tests.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`], and the errors of a checkpoint.
    #[doc(hidden)]
    pub fn export_snapshot(&self) -> Result<ExportedSnapshot> {
        let (hold, items) = self.store.store().export_state()?;
        Ok(ExportedSnapshot::new(self.path(), items, hold))
    }

    /// Releases at once the files that running backups pin, which spoils these backups. For tests
    /// of tests.
    #[doc(hidden)]
    pub fn release_pinned_states(&self) {
        self.store.unpin_all_states();
    }

    /// Makes all commits durable, writes a checkpoint so that the next opening is fast, and closes
    /// the database. Other handles return [`Error::Closed`] from then on. Ends running requests of
    /// other processes first.
    ///
    /// Dropping the last handle closes too, but cannot return an error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// db.close()?;
    /// assert!(matches!(users.get("ada"), Err(sheaf::Error::Closed)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error that kept the data from the device, for example [`Error::NoSpace`] or
    /// [`Error::Poisoned`]. The database is closed in any case; the next opening recovers it.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }
}
