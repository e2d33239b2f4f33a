//! # Database: opening, keyspaces, snapshots, the end

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::backup;
use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::disk::holder::identify;
use sheaf_base::disk::real::{RealDisk, usual_open_files};
use sheaf_base::disk::{Disk, Locked, Share};
use sheaf_base::engine::EngineFactory;
use sheaf_base::options::OptionSpec;
use sheaf_base::store::{
    self, BackupOptions, BackupReport, Batching, KeyspaceInfo, LOCK, Options, RepairOptions, RepairReport,
    Stall, Stats, Store, VerifyReport, Watcher,
};

use crate::door::{Door, Held, Overview, Owner, open_beside, overview};
use crate::handle::Handle;
use crate::waiting::Waiting;
use crate::{Batch, Durability, Error, InUse, Keyspace, KeyspaceOptions, Permissions, Result, Snapshot};

/// The engine of a keyspace that does not ask for one: keys in order, for mixed load.
pub const DEFAULT_ENGINE: &str = "flex";

/// Names of the engines that are built in, in the order of the project's plan.
#[must_use]
pub fn engines() -> Vec<&'static str> {
    Builder::default().engines.iter().map(|engine| engine.name()).collect()
}

/// What can be chosen of a keyspace of this engine at its creation; nothing for an engine there is not.
#[must_use]
pub fn engine_options(engine: &str) -> &'static [OptionSpec] {
    let built_in = Builder::default().engines;
    built_in.iter().find(|factory| factory.name() == engine).map_or(&[], |factory| factory.options())
}

/// How to open a database.
pub struct Builder {
    options: Options,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    engines: Vec<Arc<dyn EngineFactory>>,
    open_files: Option<u32>,
    /// Whether the disk is the machine's, where sockets are.
    is_real: bool,
    door: bool,
    wait: Duration,
}

/// What [`Builder::reach`] found.
pub enum Reached {
    /// The database, opened in this process.
    Database(Database),
    /// The process that has it open.
    Owner(Owner),
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            options: Options::default(),
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
            open_files: None,
            is_real: true,
            door: true,
            wait: Duration::ZERO,
        }
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { create, read_only, memory, durability, .. } = &self.options;
        f.debug_struct("Builder")
            .field("create", create)
            .field("read_only", read_only)
            .field("memory", memory)
            .field("durability", durability)
            .field("door", &self.door)
            .finish_non_exhaustive()
    }
}

impl Builder {
    /// Whether a missing database is created (default) or is an error.
    #[must_use]
    pub fn create(mut self, create: bool) -> Builder {
        self.options.create = create;
        self
    }

    /// Opens for reading only: nothing is written, writes answer [`Error::ReadOnly`].
    ///
    /// A database that nobody has open for writing is shared by its readers; they keep writers out meanwhile. One that another process has
    /// open is read *beside* it, through its [`Builder::door`]: the reader sees the moment of its opening, takes no lock, waits for
    /// nobody and stops nobody. What its owner supersedes meanwhile stays on disk until the reader closes
    /// ([`crate::Stats::stills`], `held_bytes`). If the owner closes the database, or ends, reads answer [`Error::OwnerGone`] from then on; open
    /// it again.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Builder {
        self.options.read_only = read_only;
        self
    }

    /// Whether there is a door while the database is open: a socket in its directory through which processes of the same user, and root's, ask for
    /// figures, backups and conversions ([`crate::Owner`]) or read beside ([`Builder::read_only`]). Default yes. Where a file
    /// system has no sockets the database opens without; [`crate::Stats::door`] says which. For a reader: whether it may use one.
    #[must_use]
    pub fn door(mut self, door: bool) -> Builder {
        self.door = door;
        self
    }

    /// How long to wait for another process, or handle, that uses the database, before [`Error::Locked`] is the answer. Default: not at all.
    ///
    /// The time counts anew whenever the database gets another owner, so that an opening that stands in line behind short ones gets its
    /// turn; it waits for twelve times `wait` at most. A reader waits only if the owner cannot be read beside, as while that
    /// opens or closes the database. Readers give way to a writer that waits, for half a second at most.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-wait-{}", std::process::id()));
    /// use std::time::Duration;
    ///
    /// let db = sheaf::Database::builder().wait(Duration::from_secs(5)).open(&dir)?;
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Builder {
        self.wait = wait;
        self
    }

    /// The memory budget in bytes for indexes, caches and pinned versions. Default 1 GiB.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Builder {
        self.options.memory = bytes;
        self
    }

    /// Modes of the files and directories that are created; the umask applies to them. Without, a new database is its owner's alone
    /// (files 0600, directories 0700), and an existing one goes on with the modes that it was made with. A restored or
    /// repaired database is for no one for whom its source is not, unless modes are given.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-modes-{}", std::process::id()));
    /// use sheaf::{Database, Permissions};
    ///
    /// let db = Database::builder().permissions(Permissions::GROUP).open(&dir)?; // 0640 and 0750
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn permissions(mut self, permissions: Permissions) -> Builder {
        self.options.permissions = Some(permissions);
        self
    }

    /// How many file descriptors the files of the database may take, at least 16. Default: a quarter of what the process may have (`ulimit
    /// -n`) when the database is opened, at most 1,024.
    ///
    /// Descriptors of files that nobody uses at the moment are closed, and opened again when they are used ([`Stats::descriptors`]
    /// counts); reads of mapped segments need none. Not counted are a handful for the lock and the door, one for each thread that is in
    /// a call on a file while all others are in use, and those of removed files that a snapshot or an iterator still reads.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-files-{}", std::process::id()));
    /// let db = sheaf::Database::builder().open_files(32).open(&dir)?;
    /// assert_eq!(db.stats().descriptors.limit, 32);
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn open_files(mut self, descriptors: u32) -> Builder {
        self.open_files = Some(descriptors);
        self
    }

    /// How durable a write is when it is acknowledged, unless its batch says otherwise.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Builder {
        self.options.durability = durability;
        self
    }

    /// How long a buffered write may stay unsynced: a target. Default 100 ms.
    #[must_use]
    pub fn sync_interval(mut self, interval: Duration) -> Builder {
        self.options.sync_interval = interval;
        self
    }

    /// `told` is called whenever a writer was slowed down, or made to wait, for the threshold or longer: see [`Builder::stall_threshold`]
    /// and [`StallKind`](crate::StallKind). It is called by the writer itself once its wait is over, outside of all locks, once for
    /// each wait, so it may use the database; what it waits for there is counted and not told again. A panic in it ends there.
    /// Shorter waits are in [`Stats::stalls`] as well.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-stall-{}", std::process::id()));
    /// let db = sheaf::Database::builder()
    ///     .on_stall(|stall| eprintln!("{}: a writer waited {:?}", stall.kind.name(), stall.took))
    ///     .open(&dir)?;
    /// # drop(db);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn on_stall(mut self, told: impl Fn(&Stall) + Send + Sync + 'static) -> Builder {
        self.options.stalls.tell = Some(Arc::new(told));
        self
    }

    /// From what length on waits are told, and waits for a sync count as stalls. Default 10 ms.
    #[must_use]
    pub fn stall_threshold(mut self, threshold: Duration) -> Builder {
        self.options.stalls.threshold = threshold;
        self
    }

    /// How many times the live entries the store logs may take on disk before cleaning works them
    /// down; from 1.1 to 10. Less costs device writes: see the engine's README. Default 1.6. For `flex` it is no bound but a
    /// measure of how much may be superseded in its journal and its intervals.
    #[must_use]
    pub fn space_limit(mut self, times: f64) -> Builder {
        self.options.space_limit = times;
        self
    }

    /// How committers that wait for the device share its syncs. For measurements (`sheaf-bench batching`): every
    /// way keeps every promise, and the default is the fastest.
    #[must_use]
    pub fn batching(mut self, batching: Batching) -> Builder {
        self.options.batching = batching;
        self
    }

    /// Whether logs are checkpointed. Without, opening replays all of them. For measurements.
    #[doc(hidden)]
    #[must_use]
    pub fn checkpoints(mut self, checkpoints: bool) -> Builder {
        self.options.checkpoints = checkpoints;
        self
    }

    /// Sizes so small that everything happens within 200 operations. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn tiny(mut self, tiny: bool) -> Builder {
        self.options.tiny = tiny;
        self
    }

    /// No background threads: work runs in [`Database::pump`] and in writers that need it. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn inline(mut self, inline: bool) -> Builder {
        self.options.inline = inline;
        self
    }

    /// Another disk than the machine's. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Builder {
        self.disk = disk;
        self.is_real = false;
        self
    }

    /// Another clock than the machine's. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Builder {
        self.clock = clock;
        self
    }

    /// One more engine. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn engine(mut self, engine: Arc<dyn EngineFactory>) -> Builder {
        self.engines.push(engine);
        self
    }

    /// As [`Database::restore`]; `watcher` is told of the progress, and may end it ([`Error::Cancelled`]).
    pub fn restore(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        watcher: Option<&mut Watcher<'_>>,
    ) -> Result<BackupReport> {
        let permissions = self.options.permissions;
        let restored =
            backup::restore(&self.bounded_disk(), from.as_ref(), to.as_ref(), permissions, watcher);
        restored.map_err(|error| if self.is_real { identify(error) } else { error })
    }

    /// As [`Database::repair`]. The memory budget is for both databases.
    pub fn repair(
        self,
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: RepairOptions<'_>,
    ) -> Result<RepairReport> {
        self.wait_for_writers(from.as_ref())?;
        let (place, machine) = ((from.as_ref(), to.as_ref()), (self.bounded_disk(), self.clock));
        store::repair(place, &self.options, machine, &self.engines, options)
    }

    /// The disk with the bound on descriptors. A simulated one has none unless it is asked for.
    fn bounded_disk(&self) -> Arc<dyn Disk> {
        let limit = self.open_files.or_else(|| self.is_real.then(usual_open_files));
        limit.and_then(|limit| self.disk.bounded(limit)).unwrap_or_else(|| Arc::clone(&self.disk))
    }

    /// Opens (or creates) the database in directory `path`.
    ///
    /// Errors: [`Error::NotFound`] without `create`; [`Error::NotADatabase`] for a directory that holds
    /// anything else; [`Error::Locked`] if a process has it open after [`Builder::wait`] (and, for a reader, has no door); [`Error::Format`] for a newer format;
    /// [`Error::Corrupt`] if ROOT is damaged. Damage in one keyspace shows when that one is used.
    pub fn open(self, path: impl AsRef<Path>) -> Result<Database> {
        let path = path.as_ref();
        self.patiently(path, |waiting| self.open_once(path, waiting))
    }

    /// Opens the database in directory `path`, or connects to the process that has it open. Waits as [`Builder::open`] does until
    /// either can be had.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-reach-{}", std::process::id()));
    /// use sheaf::{Database, Reached};
    ///
    /// let visible = match Database::builder().reach(&dir)? {
    ///     Reached::Database(db) => db.stats().visible,
    ///     Reached::Owner(mut owner) => owner.stats()?.visible,
    /// };
    /// # assert_eq!(visible, 0);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Builder::open`] and [`Owner::connect`].
    pub fn reach(self, path: impl AsRef<Path>) -> Result<Reached> {
        let path = path.as_ref();
        self.patiently(path, |waiting| match Owner::connect(path)? {
            Some(owner) => Ok(Reached::Owner(owner)),
            None => self.open_once(path, waiting).map(Reached::Database),
        })
    }

    /// Tries until it succeeds, fails for another reason than that the database is in use, or the time is up.
    fn patiently<T>(&self, path: &Path, attempt: impl Fn(&Waiting) -> Result<T>) -> Result<T> {
        let mut waiting = Waiting::new(path, self.options.read_only, self.wait);
        loop {
            match attempt(&waiting) {
                Err(error) if Waiting::is_for(&error) && waiting.again() => {}
                Err(error) if self.is_real => return Err(identify(error)),
                answer => return answer,
            }
        }
    }

    fn open_once(&self, path: &Path, waiting: &Waiting) -> Result<Database> {
        let Builder { options, clock, engines, .. } = self;
        let (disk, has_door) = (self.bounded_disk(), self.door && self.is_real);
        let alone = || match waiting.gives_way() {
            true => Err(Error::locked(path, None, InUse::Readers)),
            false => {
                Store::open(path, options.clone(), Arc::clone(&disk), Arc::clone(clock), engines.clone())
            }
        };
        let store = match alone() {
            Err(Error::Locked { .. }) if options.read_only && has_door => {
                open_beside(path, options, Arc::clone(&disk), clock, engines, alone)?
            }
            opened => opened?,
        };
        let is_owner = !options.read_only && !options.inline;
        let door = (has_door && is_owner).then(|| Door::open(&store).ok()).flatten();
        Ok(Database { store: Handle::new(store, door) })
    }

    /// Waits until no process has the database in `path` open for writing.
    fn wait_for_writers(&self, path: &Path) -> Result<()> {
        self.patiently(path, |_| match self.disk.lock(&path.join(LOCK), Share::Shared) {
            Ok(Locked::Busy(pid)) => Err(Error::locked(path, pid, InUse::Owner)),
            _ => Ok(()), // or an error that the repair itself runs into
        })
    }

    /// Opens a state that somebody holds, for reading. For tests, on whatever disk.
    #[doc(hidden)]
    pub fn open_held(self, held: Held) -> Result<Database> {
        let store = held.open(self.bounded_disk(), self.options, self.clock, self.engines)?;
        Ok(Database { store: Handle::new(store, None) })
    }
}

/// A database: keyspaces in a directory, under one order of commits. A cheap clone; `Send + Sync`.
/// It closes when [`Database::close`] is called or the last handle goes.
#[derive(Clone)]
pub struct Database {
    store: Arc<Handle>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("path", &self.store.path()).finish_non_exhaustive()
    }
}

impl Database {
    /// Opens or creates the database in directory `path` with default options.
    pub fn open(path: impl AsRef<Path>) -> Result<Database> {
        Database::builder().open(path)
    }

    /// Options for opening.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.store
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.store.path().to_path_buf()
    }

    /// Opens the keyspace `name`, or creates it durably. Names have 1 to 255 bytes. `options` is the
    /// name of an engine, or [`KeyspaceOptions`].
    ///
    /// # Errors
    ///
    /// [`Error::EngineMismatch`] if it is there with another engine or option than asked for;
    /// [`Error::Invalid`] for an engine or option there is not.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-keyspace-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// use sheaf::KeyspaceOptions;
    ///
    /// let logs = db.keyspace("logs", "flat-ordered")?;
    /// let users = db.keyspace("users", KeyspaceOptions::default().option("interval-bytes", 4096))?;
    /// assert_eq!((logs.engine(), users.engine()), ("flat-ordered", "flex"));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        let kept = self.store.keyspace(name, options.into().choice(), DEFAULT_ENGINE)?;
        Ok(Keyspace::new(Arc::clone(&self.store), kept))
    }

    /// Creates the keyspace `name` durably. Of calls at the same time one creates it.
    ///
    /// # Errors
    ///
    /// [`Error::KeyspaceExists`] if there is one, whatever its engine; else as [`Database::keyspace`].
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-create-doc-{}", std::process::id()));
    /// # let db = sheaf::Database::open(&dir)?;
    /// use sheaf::{Error, KeyspaceOptions};
    ///
    /// db.create_keyspace("users", KeyspaceOptions::default())?;
    /// let again = db.create_keyspace("users", KeyspaceOptions::default());
    /// assert!(matches!(again, Err(Error::KeyspaceExists { .. })));
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_keyspace(&self, name: &str, options: impl Into<KeyspaceOptions>) -> Result<Keyspace> {
        let kept = self.store.create_keyspace(name, options.into().choice(), DEFAULT_ENGINE)?;
        Ok(Keyspace::new(Arc::clone(&self.store), kept))
    }

    /// The keyspace `name` if there is one.
    pub fn existing_keyspace(&self, name: &str) -> Result<Option<Keyspace>> {
        let kept = self.store.existing(name)?;
        Ok(kept.map(|kept| Keyspace::new(Arc::clone(&self.store), kept)))
    }

    /// The keyspaces, sorted by name.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        self.store.keyspaces()
    }

    /// Drops the keyspace `name`, durably. False if there is none. Snapshots that show it still do.
    pub fn drop_keyspace(&self, name: &str) -> Result<bool> {
        self.store.drop_keyspace(name)
    }

    /// A batch of operations over any of its keyspaces.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(Arc::clone(&self.store))
    }

    /// The database as of now.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::new(&self.store)
    }

    /// Waits until everything acknowledged before the call is on the device.
    pub fn persist(&self) -> Result<()> {
        self.store.persist()
    }

    /// Waits until the database is at rest: everything acknowledged before is on the device, and no background work is due or could give
    /// back disk space. Works in the caller's thread as well, and does not wait for commits to pause: it moves what the journal holds
    /// to the engines' own files, cleans the store log as far as that gains more than it writes, gives back what was prepared for
    /// later commits, and has every engine tidy up.
    ///
    /// Space that snapshots, iterators, backups and readers beside hold is left alone. Commits of other threads may go on, but keep the
    /// database from rest.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-settle-{}", std::process::id()));
    /// use sheaf::{Database, KeyspaceOptions};
    ///
    /// let db = Database::open(&dir)?;
    /// let ks = db.keyspace("scratch", KeyspaceOptions::default())?;
    /// for index in 0..1000_u32 {
    ///     ks.insert(index.to_be_bytes(), vec![1; 1000])?;
    /// }
    /// db.drop_keyspace("scratch")?;
    /// db.settle()?;
    /// assert!(db.stats().logs.iter().map(|log| log.disk_bytes).sum::<u64>() < 1 << 20);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Busy`] if commits went on for a minute; [`Error::Closed`]; [`Error::Poisoned`]; otherwise the error that keeps the
    /// background from its work, such as [`Error::NoSpace`]. Returns at once for a database that was opened read-only.
    pub fn settle(&self) -> Result<()> {
        self.store.come_to_rest()
    }

    /// The number of the newest commit, over all keyspaces; 0 before the first one. Each commit that changes something has the next
    /// number. Creating, clearing and dropping a keyspace are commits as well. Waits for nothing; works after
    /// [`close`](Database::close) of another handle, too.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-seq-{}", std::process::id()));
    /// use sheaf::{Database, KeyspaceOptions};
    ///
    /// let db = Database::open(&dir)?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// let before = db.seq();
    /// users.insert("ada", "lovelace")?;
    /// users.insert("alan", "turing")?;
    /// assert_eq!(db.seq(), before + 2);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.store.visible().0
    }

    /// Figures of the whole database.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats { door: self.store.has_door(), ..self.store.stats() }
    }

    /// Figures of the database and of each keyspace.
    #[must_use]
    pub fn overview(&self) -> Overview {
        overview(self.store.store(), self.store.has_door())
    }

    /// Reads everything and reports each damage to `report`. Others go on reading and writing; what they supersede meanwhile may take space
    /// until it is done.
    pub fn verify(&self, mut report: impl FnMut(Error)) -> Result<VerifyReport> {
        self.store.store().verify(&mut report)
    }

    /// Copies the database, as of a moment during the call, into the directory `dir`, which is made or is empty. Everything
    /// acknowledged before the call is in the copy, over all keyspaces. Others go on reading and writing; what they supersede
    /// meanwhile takes space until the copy is done. [`Database::restore`] makes a database of it again; nothing else opens it.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-backup-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).ok();
    /// use sheaf::{BackupOptions, Database, KeyspaceOptions};
    ///
    /// let db = Database::open(dir.join("my.db"))?;
    /// let users = db.keyspace("users", KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// db.backup(dir.join("monday"), BackupOptions::default())?;
    /// users.insert("alan", "turing")?;
    /// // What has not changed since Monday gets a second name in place of being copied.
    /// db.backup(dir.join("tuesday"), BackupOptions::default().base(dir.join("monday")))?;
    ///
    /// Database::restore(dir.join("monday"), dir.join("again.db"))?;
    /// let again = Database::open(dir.join("again.db"))?;
    /// let users = again.keyspace("users", KeyspaceOptions::default())?;
    /// assert!(users.contains_key("ada")? && !users.contains_key("alan")?);
    /// # drop((db, again));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing is left of it: [`Error::Invalid`] for a target that is not empty or inside the database, or a base of another
    /// database; [`Error::NotABackup`] for the base; [`Error::NoSpace`]; [`Error::Corrupt`] for a damaged keyspace, and for
    /// what was not read back as written; [`Error::Cancelled`] if the watcher said so.
    pub fn backup(&self, dir: impl AsRef<Path>, options: BackupOptions<'_>) -> Result<BackupReport> {
        self.store.store().back_up(dir.as_ref(), options)
    }

    /// Makes a database in the directory `to`, which is made or is empty, of the backup in `from`, and checks every byte of it. It
    /// opens as after a crash at the moment of the backup.
    ///
    /// # Errors
    ///
    /// Nothing is left of it: [`Error::NotABackup`]; [`Error::Corrupt`] for a backup that is damaged or incomplete, which names
    /// the file; [`Error::Invalid`] for a target that is not empty; [`Error::NoSpace`].
    pub fn restore(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<BackupReport> {
        Database::builder().restore(from, to, None)
    }

    /// Salvages the damaged database in the directory `from` into a new one in `to`, which is made or is empty. The damaged one is
    /// only read.
    ///
    /// A pair is written if it is *certain*: what is whole of the damaged database proves that this is the newest version of its
    /// key. With [`RepairOptions::doubtful`] so are pairs whose bytes are right, but which something damaged may have superseded or
    /// removed. What is doubtful or lost is in the report by number, and [`RepairOptions::told`] hears of it key by key.
    ///
    /// ```
    /// # fn main() -> sheaf::Result<()> {
    /// # let dir = std::env::temp_dir().join(format!("sheaf-doc-repair-{}", std::process::id()));
    /// # std::fs::create_dir_all(&dir).ok();
    /// use sheaf::{Database, KeyspaceOptions, RepairOptions};
    ///
    /// let db = Database::open(dir.join("my.db"))?;
    /// db.keyspace("users", KeyspaceOptions::default())?.insert("ada", "lovelace")?;
    /// db.close()?;
    /// std::fs::write(dir.join("my.db/ROOT.0"), "a disaster").ok();
    ///
    /// let report = Database::repair(dir.join("my.db"), dir.join("new.db"), RepairOptions::default())?;
    /// assert!(report.is_whole() && report.damages.len() == 1, "the other slot of ROOT says it all");
    /// assert_eq!(report.keyspaces[0].certain, 1);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Nothing is left in `to`: [`Error::NotFound`] and [`Error::NotADatabase`] if there is nothing to salvage; [`Error::Locked`] if
    /// somebody writes to the damaged one; [`Error::Invalid`] for a target that is not empty, or inside of it; [`Error::Format`];
    /// [`Error::Cancelled`] if the watcher said so; and what writing the new one answers, as [`Error::NoSpace`].
    pub fn repair(
        from: impl AsRef<Path>,
        to: impl AsRef<Path>,
        options: RepairOptions<'_>,
    ) -> Result<RepairReport> {
        Database::builder().repair(from, to, options)
    }

    /// Runs background work that is due, in the caller's thread; true if there was any. For tests.
    #[doc(hidden)]
    pub fn pump(&self) -> Result<bool> {
        self.store.pump()
    }

    /// Has the state of now held, for a reader beside, as the door does for other processes. For tests.
    #[doc(hidden)]
    pub fn held(&self) -> Result<Held> {
        let (hold, items) = self.store.store().hold_beside()?;
        Ok(Held::new(self.path(), items, hold))
    }

    /// Lets go at once what backups that are under way hold, which spoils them. For tests of tests.
    #[doc(hidden)]
    pub fn forget_stills(&self) {
        self.store.forget_stills();
    }

    /// Makes everything durable, writes what makes the next opening fast, and closes. Other handles
    /// answer [`Error::Closed`] from then on.
    pub fn close(self) -> Result<()> {
        self.store.close()
    }
}
