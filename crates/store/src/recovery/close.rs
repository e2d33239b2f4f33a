//! # Opening and closing

use sheaf_platform::error::{Error, IoContext, IoOp, LockConflict, Result};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::backup;
use crate::changes::ChangeFeed;
use crate::commit::CommitPipeline;
use crate::commit::group_commit::SyncState;
use crate::directory::{
    BLOB_DIR, DirLock, LOCK, check_finished, directories, is_creation_file, is_database_only_file,
};
use crate::health::Health;
use crate::keyspace::catalog::Catalog;
use crate::maintenance::cache_balance::CacheBalance;
use crate::maintenance::threads::Background;
use crate::pass::MaintenanceMode;
use crate::recovery::recover::Recovery;
use crate::space::log::LogState;
use crate::space::preallocate::{DiskState, FULL_DISK_READER_WAIT};
use crate::space::root_writer::{RootWriter, SurvivorTails};
use crate::{OpeningStats, Store, StoreGeometry, StoreIdentity, StoreOptions};
use crate::{event, span};
use sheaf_engine::context::{EngineContext, EngineDir};
use sheaf_engine::contract::EngineFactory;
use sheaf_engine::views::ViewSlots;
use sheaf_log::blob::Blobs;
use sheaf_log::root::{Root, RootSlots};
use sheaf_log::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::clock::Clock;
use sheaf_platform::disk::{DirEntry, Disk, LockMode, LockOutcome, Permissions, create_dirs};
use sheaf_platform::random::random_bits;
use sheaf_platform::sync::{Mutex, epoch};

/// Maximum GC passes of a clean close.
const CLOSE_GC_PASSES: usize = 4;

/// With this many keyspaces, closing writes images only if they are smaller than the log that they
/// save the next opening from replaying.
const MANY_KEYSPACES: u64 = 64;
/// Minimum disk space of an image in bytes.
const MIN_IMAGE_DISK_BYTES: u64 = 4096;

/// Content of a directory.
enum DirContent {
    /// Nothing, or remains of an interrupted creation.
    Empty,
    /// A database.
    Database,
}

/// State of opening and closing a database.
#[derive(Debug, Default)]
pub(crate) struct Lifecycle {
    pub(crate) opening: OpeningStats,
    /// Seqs that were never assigned, or that a crash lost, before this opening.
    pub(crate) lost_seqs: Range<Seq>,
    /// Serializes calls of `close`.
    close_lock: Mutex<()>,
    /// Lock on the database directory. `None` after `close`.
    pub(crate) file_lock: Mutex<Option<DirLock>>,
}

impl Store {
    /// Opens or creates the database in `path`.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidArgument`] if an option is not valid, or the database needs an engine that
    ///   `factories` lacks.
    /// - [`Error::DatabaseNotFound`] if there is no database and `options` do not permit creating
    ///   one.
    /// - [`Error::NotADatabase`] if the directory contains something else.
    /// - [`Error::Locked`] if another opening excludes this one.
    /// - [`Error::Corrupt`] if ROOT or the journal is damaged, or [`Error::UnsupportedVersion`] if
    ///   ROOT has a newer format.
    /// - [`Error::Io`] and other errors of the disk. An opening that fails writes nothing more.
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
        let mut lock = take_lock(&*disk, path, options.read_only)?;
        let slots = RootSlots::new(Arc::clone(&disk), path);
        let root = match slots.read()? {
            Some(root) => root,
            None if options.read_only || !options.create => {
                return Err(Error::DatabaseNotFound { path: path.to_path_buf() });
            }
            None => {
                let root = create_database(&*disk, path, &slots)?;
                lock.lock_new_slots(&*disk, path)?;
                root
            }
        };
        let mut store = Store::new_unopened(path, options, disk, clock, factories, &root);
        *store.lifecycle.file_lock.get_mut() = Some(lock);
        let (frames_scanned, records_replayed, bytes_cut) = store.recover(&root).inspect_err(|_| {
            // A partly recovered store must not be closed cleanly when it is dropped.
            store.health.mark_closed();
        })?;
        store.lifecycle.opening = OpeningStats {
            is_clean: root.is_clean,
            duration: store.clock.now().saturating_sub(began),
            frames_scanned,
            records_replayed,
            discarded_bytes: bytes_cut,
        };
        store.trace_opening();
        let store = Arc::new(store);
        store.start_threads()?;
        store.connect_indexes()?;
        Ok(store)
    }

    fn trace_opening(&self) {
        let OpeningStats {
            is_clean: clean,
            duration: took,
            frames_scanned,
            records_replayed,
            discarded_bytes: bytes_cut,
        } = self.lifecycle.opening;
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

    /// Recovers the state of the previous opening and makes it durable before anything is served.
    fn recover(&mut self, root: &Root) -> Result<(u64, u64, u64)> {
        let recovered = Recovery::new(self, root).run()?;
        let found = (recovered.frames, recovered.records, recovered.bytes_cut);
        let leftovers = recovered.leftovers.clone();
        self.apply_recovery(root, recovered);
        self.restore_workloads();
        if self.options.read_only {
            let (live, is_whole) = self.referenced_blobs();
            let (retained, has_all) = self.retained_blobs(&live);
            let needed = live.union(&retained).copied().collect();
            self.context.blobs.mark_used(&needed, !is_whole || !has_all);
        } else {
            // Both slots: the slot that was read may describe a clean close, or frames that were
            // cut off.
            self.root.slots.rewrite_durably(root)?;
            let mut m = self.root.maintenance.lock();
            self.write_root(&mut m, false)?;
            self.write_root(&mut m, false)?;
            drop(m);
            self.remove_orphans(root, &leftovers)?;
        }
        Ok(found)
    }

    pub(crate) fn new_unopened(
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
            .with_space_bound(options.bounds_engine_files.then_some(options.max_space_amplification))
            .with_clock(Arc::clone(&clock))
            .with_engine_dir(EngineDir::new(Arc::clone(&disk), path, options.read_only), options.inline);
        let progress = Arc::clone(&context.commit_progress);
        let pipeline = CommitPipeline::new(progress, context.memory.budget());
        Store {
            dir: path.to_path_buf(),
            geometry: StoreGeometry::new(options.tiny),
            root: RootWriter::new(RootSlots::new(Arc::clone(&disk), path)),
            disk,
            clock,
            factories,
            identity: StoreIdentity {
                id: root.store,
                hash_key: root.hash_key,
                incarnation: Incarnation(root.incarnation.0 + 1),
            },
            context: Arc::new(context),
            logs: LogId::ALL.map(|log| LogState::new(log, path)),
            catalog: Catalog::default(),
            changes: ChangeFeed::default(),
            pipeline,
            health: Health::new(),
            expiry: crate::expiry::StoreExpiry::default(),
            view_slots: ViewSlots::default(),
            sync: SyncState::default(),
            disk_state: DiskState::default(),
            background: Background::default(),
            cache_balance: CacheBalance::new(),
            counters: crate::StoreCounters::default(),
            workload_saver: crate::stats::workload::WorkloadSaver::default(),
            lifecycle: Lifecycle::default(),
            options,
        }
    }

    /// Makes everything durable, writes checkpoints, records the clean close in ROOT and closes.
    /// After that every handle returns [`Error::Closed`], even if this call fails. In that case the
    /// next opening recovers all acknowledged commits.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Closed`] if the database is closed already, and [`Error::Poisoned`] if it
    /// is poisoned. Returns an error of a write, of a sync, or of closing an engine.
    pub fn close(&self) -> Result<()> {
        // a second call waits for the first and then returns `Closed`
        let _closing = self.lifecycle.close_lock.lock();
        self.health.check_not_closed()?;
        self.stop_threads();
        let ended = if self.options.read_only {
            Ok(())
        } else if self.health.is_poisoned() {
            // not everything is durable, so a clean close must not be recorded
            Err(self.health.poison_error())
        } else {
            self.close_cleanly().inspect(|()| self.save_workloads())
        };
        self.health.mark_closed();
        self.sync.wakers.wake_all(); // the sync thread has ended
        self.changes.signal.wake_all();
        // Each of these locks is taken to wait for writers under it. Later writers see the flag.
        drop(self.root.maintenance.lock());
        drop(self.root.next_segment.lock());
        drop(self.pipeline.stripes.lock_exclusive());
        drop(self.background.engine_steps_lock.write());
        // After a panic in a commit the state of an engine is unknown, so it is not called again.
        let is_unknown = self.health.is_commit_half_applied();
        let engines = if is_unknown { Ok(()) } else { self.close_engines() };
        self.context.blobs.close();
        // Retired states of engines and removed segments hold descriptors of files. The functions
        // that drop them were flushed where they were deferred. They never write.
        epoch::wait_for_guards(FULL_DISK_READER_WAIT);
        self.lifecycle.file_lock.lock().take();
        ended.and(engines)
    }

    /// Closes the files of the engines.
    fn close_engines(&self) -> Result<()> {
        let mut ended = Ok(());
        for keyspace in self.catalog.all() {
            if let Ok(engine) = keyspace.engine() {
                ended = ended.and(engine.close());
            }
        }
        ended
    }

    /// Performs a few GC passes, which also reclaim the space of short openings.
    fn gc_for_close(&self) -> Result<()> {
        for _ in 0..CLOSE_GC_PASSES {
            match self.gc(MaintenanceMode::Busy).progress_or_error() {
                Ok(true) => {}
                Ok(false) | Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        let _ = self.shrink_preallocated(); // as far as there is space
        let nothing_waits = {
            let mut m = self.root.maintenance.lock();
            !self.retire_unreferenced(&mut m) && !m.is_root_write_due()
        };
        if !nothing_waits {
            self.free_retired_now()?;
        }
        self.context.blobs.trim(true);
        // GC may have used reserve segments, which the next opening needs if the disk is full.
        match self.preallocate() {
            Ok(_) | Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns whether a clean close checkpoints `log`. Without a checkpoint, the next opening
    /// replays the appended log, as after a crash. With many small keyspaces that is cheaper than
    /// writing and reading their images, each of which needs syncs.
    fn is_close_checkpoint_due(&self, log: &LogState) -> bool {
        let appended = log.since_checkpoint();
        let keyspaces = self.keyspaces_of(log).len() as u64;
        let is_pending = self.root.maintenance.lock().pending[log.id.index()].is_some();
        appended > 0
            && (is_pending || keyspaces < MANY_KEYSPACES || appended > keyspaces * MIN_IMAGE_DISK_BYTES)
    }

    fn close_cleanly(&self) -> Result<()> {
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            if self.is_close_checkpoint_due(log) {
                match self.checkpoint(log) {
                    // the next opening replays instead
                    Ok(_) | Err(Error::NoSpace { .. } | Error::FileSizeLimit { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        self.gc_for_close()?;
        let mut m = self.root.maintenance.lock();
        self.sync_survivors(&mut m)?;
        m.survivors.iter_mut().flatten().for_each(SurvivorTails::end_streams);
        self.health.mark_closed(); // no commit after this
        drop(self.pipeline.stripes.lock_exclusive());
        let next = self.pipeline.window.word().next();
        self.sync_for_close()?;
        // above the newest commit and all seqs that earlier crashes may have used
        m.seq_bound = next;
        // `blob_bound` stays: a concurrent writer may still write a blob with a number below it.
        self.write_root(&mut m, true)?;
        self.context.blobs.remove_pending(usize::MAX);
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.health.is_forked_child() {
            return; // threads, locks and files belong to the parent
        }
        if !self.health.is_closed() {
            let _ = self.close(); // a drop cannot report an error; the next opening recovers
        }
    }
}

pub(crate) fn check_options(options: &StoreOptions) -> Result<()> {
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

/// Returns the modes with which the database in `path` was created, or `None` if there is none.
fn existing_permissions(disk: &dyn Disk, path: &Path) -> Option<Permissions> {
    RootSlots::NAMES.iter().find_map(|slot| Permissions::of_made(disk, &path.join(slot)))
}

/// Takes the lock: shared for a reader, exclusive for a writer.
fn take_lock(disk: &dyn Disk, path: &Path, is_reader: bool) -> Result<DirLock> {
    let (lock, share) = (path.join(LOCK), if is_reader { LockMode::Shared } else { LockMode::Exclusive });
    match disk.lock(&lock, share) {
        Ok(LockOutcome::Acquired(lock)) => DirLock::with_slots(disk, path, share, Some(lock)),
        Ok(LockOutcome::Busy(pid)) => Err(Error::locked(
            path,
            pid,
            match (is_reader, pid) {
                (true, _) => LockConflict::NoIpc,
                (false, Some(_)) => LockConflict::Owner,
                (false, None) => LockConflict::Readers,
            },
        )),
        Err(e) if is_reader && e.kind() == std::io::ErrorKind::NotFound => {
            let slots = DirLock::with_slots(disk, path, share, None)?;
            // On a read-only file system there cannot be a writer.
            if disk.is_read_only(path) {
                return Ok(slots);
            }
            let why = "it is missing, and a reader needs it to keep writers out; create an empty file";
            Err(Error::io(IoOp::Lock, &lock, std::io::Error::new(e.kind(), why)))
        }
        Err(e) => Err(Error::io(IoOp::Lock, &lock, e)),
    }
}

/// Determines the content of a directory without changing it. A database that another process
/// creates at the same time is recognized.
fn inspect_dir(disk: &dyn Disk, path: &Path, is_filled: bool) -> Result<DirContent> {
    match inspect_dir_once(disk, path, is_filled) {
        Err(Error::NotADatabase { .. }) if is_created_now(disk, path) => {
            inspect_dir_once(disk, path, is_filled)
        }
        answer => answer,
    }
}

/// Returns true if `path` contains a slot of ROOT now.
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
        other => other.during(IoOp::List, path)?,
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
        let remedy = match foreign_store(&entries) {
            _ if entries.iter().any(|e| is_database_only_file(&e.name)) => {
                "if it was a database, `sheaf repair` salvages it".to_owned()
            }
            Some(store) => format!(
                "it is a database of {store}: export its pairs, and load them with `sheaf load` into a new \
                 directory"
            ),
            None => "name a new or empty directory".to_owned(),
        };
        let why = format!("it has no ROOT file but contains {:?}; {remedy}", foreign.name);
        return Err(Error::NotADatabase { path: path.to_path_buf(), reason: why });
    }
    for entry in entries.iter().filter(|e| e.is_dir) {
        let dir = path.join(&entry.name);
        if !disk.list(&dir).during(IoOp::List, &dir)?.is_empty() {
            let why = format!(
                "its ROOT files are missing, but {:?} contains data; if it was a database, `sheaf repair` salvages it",
                entry.name
            );
            return Err(Error::NotADatabase { path: path.to_path_buf(), reason: why });
        }
    }
    Ok(DirContent::Empty)
}

/// Returns the name of another key-value store if `entries` are the files of its database.
fn foreign_store(entries: &[DirEntry]) -> Option<&'static str> {
    let has = |name: &str| entries.iter().any(|entry| entry.name == name);
    let has_manifest = entries.iter().any(|entry| entry.name.starts_with("MANIFEST-"));
    match (has("CURRENT") && has_manifest, has("data.mdb")) {
        (true, _) => Some("LevelDB or RocksDB"),
        (_, true) => Some("LMDB"),
        _ => None,
    }
}

/// Creates a new database: directories, then both slots.
fn create_database(disk: &dyn Disk, path: &Path, slots: &RootSlots) -> Result<Root> {
    for name in directories() {
        let dir = path.join(name);
        match disk.create_dir(&dir) {
            // Left by a failed attempt, possibly because the sync of the name failed. A later sync
            // may not make that name durable, so the directory is created again.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                disk.remove_dir(&dir).during(IoOp::Remove, &dir)?;
                disk.create_dir(&dir).during(IoOp::Create, &dir)?;
            }
            other => other.during(IoOp::Create, &dir)?,
        }
    }
    disk.sync_dir(path).during(IoOp::SyncDirectory, path)?;
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
        changes: None,
    };
    slots.create(&root)?;
    Ok(Root { generation: 2, ..root })
}
