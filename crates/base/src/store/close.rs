//! # Opening and closing

use std::path::Path;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::catalog::Catalog;
use super::commit::CommitState;
use super::idle::MaintenanceMode;
use super::log::LogState;
use super::preallocate::FULL_DISK_READER_WAIT;
use super::recover::Recovery;
use super::root_writer::{RootState, SurvivorTails};
use super::threads::ThreadSignals;
use super::workload::is_workload_file;
use super::{COMMIT_RATE_SECONDS, OpeningStats, Store, StoreGeometry, StoreOptions, image};
use crate::backup;
use crate::blob::Blobs;
use crate::clock::Clock;
use crate::commit_rate::{CommitRate, CommitSampler};
use crate::disk::{Disk, LockMode, LockOutcome, Permissions, create_dirs};
use crate::engine::EngineFactory;
use crate::engine_context::{ENGINE_DIR, EngineContext, EngineDir};
use crate::error::{Error, IoContext, LockConflict, Result};
use crate::fork::ForkGuard;
use crate::output_dir::{UNFINISHED, check_finished};
use crate::root::{Root, RootSlots};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock, epoch};
use crate::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId, random_bits};
use crate::views::ViewSlots;
use crate::window::{CommitWindow, Stripes};
use crate::{event, span};

/// Passes of cleaning before an orderly end.
const CLOSE_GC_PASSES: usize = 4;

/// With so many keyspaces the end makes images only if they take less than what they spare the next
/// opening.
const MANY_KEYSPACES: u64 = 64;
/// Bytes of disk that an image takes at least.
const MIN_IMAGE_DISK_BYTES: u64 = 4096;

/// The file that is locked.
pub const LOCK: &str = "LOCK";
/// The socket of whoever has the database open, and its name until it may be used.
pub const IPC_SOCKET_NAMES: [&str; 2] = ["door", "door.new"];
const BLOB_DIR: &str = "blob";

/// What stands in the directory.
enum DirContent {
    /// Nothing, or what a creation left that was cut short.
    Empty,
    /// A database.
    Database,
}

impl Store {
    /// Opens or creates the database in `path`.
    pub fn open(
        path: &Path,
        options: StoreOptions,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        factories: Vec<Arc<dyn EngineFactory>>,
    ) -> Result<Arc<Store>> {
        check_options(&options)?;
        let _span = span!(INFO, "open", path = path.display().to_string());
        let began = clock.now();
        let there = inspect_dir(&*disk, path, options.is_repair_output)?;
        if matches!(there, DirContent::Empty) && (!options.create || options.read_only) {
            return Err(Error::DatabaseNotFound { path: path.to_path_buf() });
        }
        let disk =
            options.permissions.or_else(|| existing_permissions(&*disk, path)).unwrap_or_default().on(disk);
        if matches!(there, DirContent::Empty) {
            create_dirs(&*disk, path)?;
        }
        let lock = take_lock(&*disk, path, options.read_only)?;
        let slots = RootSlots::new(Arc::clone(&disk), path);
        let root = match slots.read()? {
            Some(root) => root,
            None if options.read_only || !options.create => {
                return Err(Error::DatabaseNotFound { path: path.to_path_buf() });
            }
            None => create_database(&*disk, path, &slots)?,
        };
        let mut store = Store::new_unopened(path, options, disk, clock, factories, &root);
        *store.file_lock.get_mut() = Some(lock);
        let (frames_scanned, records_replayed, bytes_cut) = store.recover(&root).inspect_err(|_| {
            // What knows only a part of the database must not end it in order.
            store.flags.is_closed.store(true, Ordering::Release);
        })?;
        store.opening = OpeningStats {
            is_clean: root.is_clean,
            duration: store.clock.now().saturating_sub(began),
            frames_scanned,
            records_replayed,
            discarded_bytes: bytes_cut,
        };
        store.trace_opening();
        let store = Arc::new(store);
        store.start_threads()?;
        Ok(store)
    }

    fn trace_opening(&self) {
        let OpeningStats {
            is_clean: clean,
            duration: took,
            frames_scanned,
            records_replayed,
            discarded_bytes: bytes_cut,
        } = self.opening;
        if bytes_cut > 0 {
            event!(INFO, "commits that a crash left incomplete were cut off", bytes = bytes_cut);
        }
        event!(
            INFO,
            "opened",
            clean = clean,
            seconds = took.as_secs_f64(),
            frames = frames_scanned,
            records = records_replayed
        );
    }

    /// Takes over what the last life left, and makes sure of it before anything is served.
    fn recover(&mut self, root: &Root) -> Result<(u64, u64, u64)> {
        let recovered = Recovery::new(self, root).run()?;
        let found = (recovered.frames, recovered.records, recovered.bytes_cut);
        let leftovers = recovered.leftovers.clone();
        self.apply_recovery(root, recovered);
        self.restore_workloads();
        if self.options.read_only {
            let (live, is_whole) = self.referenced_blobs();
            self.context.blobs.mark_used(&live, !is_whole);
        } else {
            // Both slots, before anything is served: the one that was read may speak of an orderly
            // close or of frames that were cut off.
            self.root_slots.rewrite_durably(root)?;
            let mut m = self.maintenance.lock();
            self.write_root(&mut m, false)?;
            self.write_root(&mut m, false)?;
            drop(m);
            self.remove_orphans(root, &leftovers)?;
        }
        Ok(found)
    }

    pub(super) fn new_unopened(
        path: &Path,
        options: StoreOptions,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        factories: Vec<Arc<dyn EngineFactory>>,
        root: &Root,
    ) -> Store {
        let blobs =
            Blobs::new(Arc::clone(&disk), path.join(BLOB_DIR), root.blob_bound, root.store, options.tiny);
        let context = EngineContext::new(blobs, options.memory_budget, root.hash_key, options.tiny)
            .with_space_limit(options.max_space_amplification)
            .with_engine_dir(EngineDir::new(Arc::clone(&disk), path, options.read_only), options.inline);
        let progress = Arc::clone(&context.commit_progress);
        Store {
            dir: path.to_path_buf(),
            geometry: StoreGeometry::new(options.tiny),
            root_slots: RootSlots::new(Arc::clone(&disk), path),
            disk,
            clock,
            factories,
            id: root.store,
            hash_key: root.hash_key,
            incarnation: Incarnation(root.incarnation.0 + 1),
            context: Arc::new(context),
            logs: LogId::ALL.map(|log| LogState::new(log, path)),
            catalog: Catalog::default(),
            commit_state: CachePadded::new(Mutex::new(CommitState::default())),
            window: CommitWindow::new(),
            seq_bound: CachePadded::default(),
            stripes: Stripes::default(),
            commit_progress: progress,
            flags: CachePadded::default(),
            view_slots: ViewSlots::default(),
            durable: AtomicU64::new(0),
            unsynced_since: AtomicU64::new(0),
            syncing_since: AtomicU64::new(0),
            floor_seq: AtomicU64::new(0),
            engine_steps_lock: RwLock::new(()),
            sync_round: super::group_commit::SyncRound::default(),
            maintenance: Mutex::new(RootState::default()),
            next_segment: Mutex::new(0),
            blob_bound: AtomicU64::new(0),
            sealed_since_root: AtomicU64::new(0),
            pending_free_bytes: AtomicU64::new(0),
            pinned_bytes: AtomicU64::new(0),
            pinned_states: AtomicU64::new(0),
            is_disk_full: AtomicBool::new(false),
            is_low_on_inodes: AtomicBool::new(false),
            balanced_at_ns: AtomicU64::new(0),
            idle_state: Mutex::default(),
            pass_lock: Mutex::new(()),
            commit_rate: Mutex::new((
                CommitSampler::default(),
                CommitRate::over_seconds(COMMIT_RATE_SECONDS),
            )),
            min_fragmentation: AtomicU64::new(0),
            lifespan: AtomicU64::new(u64::MAX),
            signals: Arc::new(ThreadSignals::default()),
            counters: super::StoreCounters::default(),
            workload_saver: super::workload::WorkloadSaver::default(),
            close_lock: Mutex::new(()),
            poison_op: Mutex::new(None),
            fork: ForkGuard::new(),
            opening: OpeningStats::default(),
            file_lock: Mutex::new(None),
            threads: Mutex::new(Vec::new()),
            helper_count: AtomicUsize::new(0),
            options,
        }
    }

    /// Makes everything durable, checkpoints, records the orderly end and closes. Every handle
    /// answers `Closed` from then on, also if an error is returned (what was acknowledged is then
    /// recovered).
    pub fn close(&self) -> Result<()> {
        let _closing = self.close_lock.lock(); // a second call waits for the first, and finds it closed
        self.check_open()?;
        self.stop_threads();
        let ended = if self.options.read_only {
            Ok(())
        } else if self.flags.is_poisoned.load(Ordering::Acquire) {
            Err(self.poison_error()) // not everything is durable, and nobody may believe it
        } else {
            self.close_cleanly().inspect(|()| self.save_workloads())
        };
        self.flags.is_closed.store(true, Ordering::Release);
        // Whoever wrote under one of them is done, and whoever comes later sees that it is closed.
        drop(self.maintenance.lock());
        drop(self.next_segment.lock());
        drop(self.stripes.lock_exclusive());
        drop(self.engine_steps_lock.write());
        let engines = self.close_engines();
        self.context.blobs.close();
        // What engines let go of may hold on to the files, in the bag of a thread that does nothing
        // more.
        epoch::wait_for_guards(FULL_DISK_READER_WAIT);
        self.file_lock.lock().take();
        ended.and(engines)
    }

    /// Closes the engines' own files.
    fn close_engines(&self) -> Result<()> {
        let mut ended = Ok(());
        for keyspace in self.catalog.all() {
            if let Ok(engine) = keyspace.engine() {
                ended = ended.and(engine.close());
            }
        }
        ended
    }

    /// A few passes of cleaning, so that the space of short lives comes back too.
    fn gc_for_close(&self) -> Result<()> {
        for _ in 0..CLOSE_GC_PASSES {
            match self.gc(MaintenanceMode::Busy).progress_or_error() {
                Ok(true) => {}
                Ok(false) | Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        let _ = self.shrink_preallocated(); // as far as there is room
        let nothing_waits = {
            let mut m = self.maintenance.lock();
            !self.retire_unreferenced(&mut m) && !m.is_root_write_due()
        };
        if !nothing_waits {
            self.free_retired_now()?;
        }
        self.context.blobs.trim(true);
        // Cleaning may have taken from the reserve, which the next life needs if the disk is full.
        match self.preallocate() {
            Ok(_) | Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether an orderly end checkpoints `log`. Without, the next opening replays what was
    /// appended, as after a crash: less than it would read of the images of many small keyspaces,
    /// each of which takes some syncs.
    fn is_close_checkpoint_due(&self, log: &LogState) -> bool {
        let appended = log.since_checkpoint();
        let keyspaces = self.keyspaces_of(log).len() as u64;
        let is_pending = self.maintenance.lock().pending[log.id.index()].is_some();
        appended > 0
            && (is_pending || keyspaces < MANY_KEYSPACES || appended > keyspaces * MIN_IMAGE_DISK_BYTES)
    }

    fn close_cleanly(&self) -> Result<()> {
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            if self.is_close_checkpoint_due(log) {
                match self.checkpoint(log) {
                    Ok(_) | Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => {} // opening will replay instead
                    Err(error) => return Err(error),
                }
            }
        }
        self.gc_for_close()?;
        let mut m = self.maintenance.lock();
        self.sync_survivors(&mut m)?;
        m.survivors.iter_mut().flatten().for_each(SurvivorTails::end_streams);
        self.flags.is_closed.store(true, Ordering::Release); // no commit after this lock: what follows is the end
        drop(self.stripes.lock_exclusive());
        let next = self.window.word().next();
        self.sync_for_close()?;
        m.seq_bound = next; // above the newest commit, and above what earlier crashes may have taken
        // `blob_bound` stays: a writer that finds out too late may still stage a value, below it.
        self.write_root(&mut m, true)?;
        self.context.blobs.remove_pending(usize::MAX);
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return; // threads, locks and files belong to the parent
        }
        if !self.flags.is_closed.load(Ordering::Acquire) {
            let _ = self.close(); // nobody is left to be told; recovery makes up for it
        }
    }
}

pub(super) fn check_options(options: &StoreOptions) -> Result<()> {
    if !(1.1..=10.0).contains(&options.max_space_amplification) {
        let why = format!("{}; must be 1.1 to 10", options.max_space_amplification);
        return Err(Error::InvalidArgument { argument: "space limit", reason: why });
    }
    if let Some(permissions) = options.permissions {
        permissions.check()?;
    }
    if options.background_threads == 0 {
        return Err(Error::InvalidArgument {
            argument: "background threads",
            reason: "must be at least 1".to_owned(),
        });
    }
    if options.sync_interval.is_zero() {
        return Err(Error::InvalidArgument {
            argument: "sync interval",
            reason: "must not be zero".to_owned(),
        });
    }
    Ok(())
}

/// The modes that the database in `path` was made with; none if there is none.
fn existing_permissions(disk: &dyn Disk, path: &Path) -> Option<Permissions> {
    RootSlots::NAMES.iter().find_map(|slot| Permissions::of_made(disk, &path.join(slot)))
}

/// Takes the lock: shared by readers, or for a writer alone.
fn take_lock(
    disk: &dyn Disk,
    path: &Path,
    is_reader: bool,
) -> Result<Box<dyn std::fmt::Debug + Send + Sync>> {
    let (lock, share) = (path.join(LOCK), if is_reader { LockMode::Shared } else { LockMode::Exclusive });
    match disk.lock(&lock, share) {
        Ok(LockOutcome::Acquired(lock)) => Ok(lock),
        Ok(LockOutcome::Busy(pid)) => Err(Error::locked(
            path,
            pid,
            match (is_reader, pid) {
                (true, _) => LockConflict::NoIpc,
                (false, Some(_)) => LockConflict::Owner,
                (false, None) => LockConflict::Readers,
            },
        )),
        // No writer can come.
        Err(e) if is_reader && e.kind() == std::io::ErrorKind::NotFound && disk.is_read_only(path) => {
            Ok(Box::new(()))
        }
        Err(e) if is_reader && e.kind() == std::io::ErrorKind::NotFound => {
            let why = "it is missing, and a reader needs it to keep writers out; create an empty file";
            Err(Error::io("lock", &lock, std::io::Error::new(e.kind(), why)))
        }
        Err(e) => Err(Error::io("lock", &lock, e)),
    }
}

/// Looks without touching anything. A database that appears meanwhile, made by another process,
/// counts.
fn inspect_dir(disk: &dyn Disk, path: &Path, is_filled: bool) -> Result<DirContent> {
    match inspect_dir_once(disk, path, is_filled) {
        Err(Error::NotADatabase { .. }) if is_created_now(disk, path) => {
            inspect_dir_once(disk, path, is_filled)
        }
        answer => answer,
    }
}

/// Whether `path` has a slot of ROOT by now.
fn is_created_now(disk: &dyn Disk, path: &Path) -> bool {
    disk.list(path).is_ok_and(|entries| entries.iter().any(|entry| RootSlots::is_slot(&entry.name)))
}

fn inspect_dir_once(disk: &dyn Disk, path: &Path, is_filled: bool) -> Result<DirContent> {
    let entries = match disk.list(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(DirContent::Empty),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(Error::NotADatabase {
                path: path.to_path_buf(),
                reason: "it is not a directory".to_owned(),
            });
        }
        other => other.during("list", path)?,
    };
    if !is_filled {
        check_finished(disk, path, &entries)?;
    }
    if entries.iter().any(|e| RootSlots::is_slot(&e.name)) {
        return Ok(DirContent::Database);
    }
    if entries.iter().any(|e| backup::is_backup_file(&e.name)) {
        let why = "it is a backup; `sheaf restore` makes a database of it in another directory".to_owned();
        return Err(Error::NotADatabase { path: path.to_path_buf(), reason: why });
    }
    if let Some(foreign) = entries.iter().find(|e| !is_creation_file(&e.name)) {
        let remedy = match entries.iter().any(|e| is_database_only_file(&e.name)) {
            true => "if it was a database, `sheaf repair` salvages it",
            false => "name a new or empty directory",
        };
        let why = format!("it has no ROOT file but contains {:?}; {remedy}", foreign.name);
        return Err(Error::NotADatabase { path: path.to_path_buf(), reason: why });
    }
    for entry in entries.iter().filter(|e| e.is_dir) {
        let dir = path.join(&entry.name);
        if !disk.list(&dir).during("list", &dir)?.is_empty() {
            let why = format!(
                "its ROOT files are missing, but {:?} contains data; if it was a database, `sheaf repair` salvages it",
                entry.name
            );
            return Err(Error::NotADatabase { path: path.to_path_buf(), reason: why });
        }
    }
    Ok(DirContent::Empty)
}

/// Whether only a database has something of that name, once it is filled.
fn is_database_only_file(name: &str) -> bool {
    name == ENGINE_DIR || directories().any(|dir| dir == name)
}

/// Whether a database that is being made has something of that name.
fn is_creation_file(name: &str) -> bool {
    name == LOCK
        || name == UNFINISHED
        || IPC_SOCKET_NAMES.contains(&name)
        || RootSlots::is_temp_slot(name)
        || directories().any(|dir| dir == name)
}

/// Whether a database consists of something of that name, among others.
pub(crate) fn is_database_file(name: &str) -> bool {
    is_creation_file(name) || RootSlots::is_slot(name) || name == ENGINE_DIR || is_workload_file(name)
}

pub(crate) fn directories() -> impl Iterator<Item = &'static str> {
    LogId::ALL.into_iter().map(LogId::directory).chain([image::IMAGE_DIR, BLOB_DIR])
}

/// Makes a new database: directories, then both slots.
fn create_database(disk: &dyn Disk, path: &Path, slots: &RootSlots) -> Result<Root> {
    for name in directories() {
        let dir = path.join(name);
        match disk.create_dir(&dir) {
            // Left empty by an attempt that failed, maybe at the sync of its name, which no later
            // sync saves.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                disk.remove_dir(&dir).during("remove", &dir)?;
                disk.create_dir(&dir).during("create", &dir)?;
            }
            other => other.during("create", &dir)?,
        }
    }
    disk.sync_dir(path).during("sync directory", path)?;
    let root = Root {
        generation: 1,
        store: StoreId(random_bits()),
        hash_key: random_bits(),
        incarnation: Incarnation(0),
        is_clean: true,
        floor: Seq::ZERO,
        first_seq: Seq(1),
        seq_bound: Seq(1),
        next_segment: SegmentId(1),
        next_keyspace: KeyspaceId(1),
        blob_bound: 1,
        keyspaces: Vec::new(),
        has_options: false,
        logs: Default::default(),
    };
    slots.create(&root)?;
    Ok(Root { generation: 2, ..root })
}
