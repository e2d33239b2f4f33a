//! # Opening and closing

use std::path::Path;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use super::background::Signals;
use super::catalogue::Catalogue;
use super::idle::Pace;
use super::log::Log;
use super::order::Order;
use super::ready::PATIENCE;
use super::recover::Recovery;
use super::rooting::{Maintenance, SurvivorTails};
use super::sketch::is_sketch;
use super::{Geometry, OpeningStats, Options, SPEED_MEMORY, Store, image};
use crate::backup;
use crate::blob::Blobs;
use crate::clock::Clock;
use crate::disk::{Disk, Locked, Permissions, Share, create_dirs};
use crate::engine::EngineFactory;
use crate::error::{Error, InUse, IoContext, Result};
use crate::fork::ForkGuard;
use crate::ground::{Ground, Home, OWN};
use crate::root::{Root, Slots};
use crate::speed::{Looks, Speed};
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{Mutex, RwLock, epoch};
use crate::target::{UNFINISHED, check_finished};
use crate::types::{Incarnation, KeyspaceId, LogId, SegmentId, Seq, StoreId, random_bits};
use crate::views::ViewSlots;
use crate::window::{Stripes, Window};
use crate::{event, span};

/// Passes of cleaning before an orderly end.
const CLOSING_PASSES: usize = 4;

/// With so many keyspaces the end makes images only if they take less than what they spare the next
/// opening.
const MANY: u64 = 64;
/// Bytes of disk that an image takes at least.
const IMAGE: u64 = 4096;

/// The file that is locked.
pub const LOCK: &str = "LOCK";
/// The socket of whoever has the database open, and its name until it may be used.
pub const DOOR: [&str; 2] = ["door", "door.new"];
const BLOBS: &str = "blob";

/// What stands in the directory.
enum There {
    /// Nothing, or what a creation left that was cut short.
    Nothing,
    /// A database.
    Database,
}

impl Store {
    /// Opens or creates the database in `path`.
    pub fn open(
        path: &Path,
        options: Options,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        factories: Vec<Arc<dyn EngineFactory>>,
    ) -> Result<Arc<Store>> {
        check_options(&options)?;
        let _span = span!(INFO, "open", path = path.display().to_string());
        let began = clock.now();
        let there = look(&*disk, path, options.is_filled)?;
        if matches!(there, There::Nothing) && (!options.create || options.read_only) {
            return Err(Error::NotFound { path: path.to_path_buf() });
        }
        let disk = options.permissions.or_else(|| made_with(&*disk, path)).unwrap_or_default().on(disk);
        if matches!(there, There::Nothing) {
            create_dirs(&*disk, path)?;
        }
        let lock = take_lock(&*disk, path, options.read_only)?;
        let slots = Slots::new(Arc::clone(&disk), path);
        let root = match slots.read()? {
            Some(root) => root,
            None if options.read_only || !options.create => {
                return Err(Error::NotFound { path: path.to_path_buf() });
            }
            None => create(&*disk, path, &slots)?,
        };
        let mut store = Store::blank(path, options, disk, clock, factories, &root);
        *store.lock.get_mut() = Some(lock);
        let (frames_scanned, records_replayed, bytes_cut) = store.bring_up(&root).inspect_err(|_| {
            // What knows only a part of the database must not end it in order.
            store.flags.closed.store(true, Ordering::Release);
        })?;
        store.opening = OpeningStats {
            clean: root.clean,
            took: store.clock.now().saturating_sub(began),
            frames_scanned,
            records_replayed,
            bytes_cut,
        };
        store.tell_opening();
        let store = Arc::new(store);
        store.start()?;
        Ok(store)
    }

    fn tell_opening(&self) {
        let OpeningStats { clean, took, frames_scanned, records_replayed, bytes_cut } = self.opening;
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
    fn bring_up(&mut self, root: &Root) -> Result<(u64, u64, u64)> {
        let recovered = Recovery::new(self, root).run()?;
        let found = (recovered.frames, recovered.records, recovered.bytes_cut);
        let leftovers = recovered.leftovers.clone();
        self.settle(root, recovered);
        self.recall_loads();
        if self.options.read_only {
            let (live, is_whole) = self.staged();
            self.ground.blobs.found(&live, !is_whole);
        } else {
            // Both slots, before anything is served: the one that was read may speak of an orderly close
            // or of frames that were cut off.
            self.slots.settle(root)?;
            let mut m = self.maintenance.lock();
            self.write_root(&mut m, false)?;
            self.write_root(&mut m, false)?;
            drop(m);
            self.sweep(root, &leftovers)?;
        }
        Ok(found)
    }

    pub(super) fn blank(
        path: &Path,
        options: Options,
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        factories: Vec<Arc<dyn EngineFactory>>,
        root: &Root,
    ) -> Store {
        let blobs =
            Blobs::new(Arc::clone(&disk), path.join(BLOBS), root.blob_bound, root.store, options.tiny);
        let ground = Ground::new(blobs, options.memory, root.hash_key, options.tiny)
            .with_space_limit(options.space_limit)
            .with_home(Home::new(Arc::clone(&disk), path, options.read_only), options.inline);
        let progress = Arc::clone(&ground.progress);
        Store {
            dir: path.to_path_buf(),
            geometry: Geometry::new(options.tiny),
            slots: Slots::new(Arc::clone(&disk), path),
            disk,
            clock,
            factories,
            id: root.store,
            hash_key: root.hash_key,
            incarnation: Incarnation(root.incarnation.0 + 1),
            ground: Arc::new(ground),
            logs: LogId::ALL.map(|log| Log::new(log, path)),
            catalogue: Catalogue::default(),
            order: CachePadded::new(Mutex::new(Order::default())),
            window: Window::new(),
            seq_bound: CachePadded::default(),
            stripes: Stripes::default(),
            progress,
            flags: CachePadded::default(),
            view_slots: ViewSlots::default(),
            durable: AtomicU64::new(0),
            unsynced_since: AtomicU64::new(0),
            syncing_since: AtomicU64::new(0),
            certain: AtomicU64::new(0),
            at_work: RwLock::new(()),
            round: super::round::Round::default(),
            maintenance: Mutex::new(Maintenance::default()),
            making: Mutex::new(0),
            blob_bound: AtomicU64::new(0),
            sealed: AtomicU64::new(0),
            dying_bytes: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            stills: AtomicU64::new(0),
            full: AtomicBool::new(false),
            files_are_scarce: AtomicBool::new(false),
            balanced: AtomicU64::new(0),
            quiet: Mutex::default(),
            keeping: Mutex::new(()),
            speed: Mutex::new((Looks::default(), Speed::of(SPEED_MEMORY))),
            trimmed: AtomicU64::new(0),
            lifespan: AtomicU64::new(u64::MAX),
            signals: Arc::new(Signals::default()),
            counters: super::Counters::default(),
            sketches: super::sketch::Sketches::default(),
            closing: Mutex::new(()),
            poison: Mutex::new(None),
            fork: ForkGuard::new(),
            opening: OpeningStats::default(),
            lock: Mutex::new(None),
            workers: Mutex::new(Vec::new()),
            helping: AtomicUsize::new(0),
            options,
        }
    }

    /// Makes everything durable, checkpoints, records the orderly end and closes. Every handle answers
    /// `Closed` from then on, also if an error is returned (what was acknowledged is then recovered).
    pub fn close(&self) -> Result<()> {
        let _closing = self.closing.lock(); // a second call waits for the first, and finds it closed
        self.check_open()?;
        self.stop();
        let ended = if self.options.read_only {
            Ok(())
        } else if self.flags.poisoned.load(Ordering::Acquire) {
            Err(self.poison_error()) // not everything is durable, and nobody may believe it
        } else {
            self.end_in_order().inspect(|()| self.save_loads())
        };
        self.flags.closed.store(true, Ordering::Release);
        // Whoever wrote under one of them is done, and whoever comes later sees that it is closed.
        drop(self.maintenance.lock());
        drop(self.making.lock());
        drop(self.stripes.alone());
        drop(self.at_work.write());
        let engines = self.close_engines();
        self.ground.blobs.close();
        // What engines let go of may hold on to the files, in the bag of a thread that does nothing more.
        epoch::settle(PATIENCE);
        self.lock.lock().take();
        ended.and(engines)
    }

    /// Closes the engines' own files.
    fn close_engines(&self) -> Result<()> {
        let mut ended = Ok(());
        for kept in self.catalogue.all() {
            if let Ok(engine) = kept.engine() {
                ended = ended.and(engine.close());
            }
        }
        ended
    }

    /// A few passes of cleaning, so that the space of short lives comes back too.
    fn clean_for_close(&self) -> Result<()> {
        for _ in 0..CLOSING_PASSES {
            match self.clean(Pace::Busy).any() {
                Ok(true) => {}
                Ok(false) | Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => break,
                Err(error) => return Err(error),
            }
        }
        let _ = self.shrink_ready(); // as far as there is room
        let nothing_waits = {
            let mut m = self.maintenance.lock();
            !self.bury(&mut m) && !m.waits_for_root()
        };
        if !nothing_waits {
            self.let_go_now()?;
        }
        self.ground.blobs.trim(true);
        // Cleaning may have taken from the reserve, which the next life needs if the disk is full.
        match self.top_up() {
            Ok(_) | Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether an orderly end checkpoints `log`. Without, the next opening replays what was
    /// appended, as after a crash: less than it would read of the images of many small keyspaces,
    /// each of which takes some syncs.
    fn ends_with_checkpoint(&self, log: &Log) -> bool {
        let appended = log.since_checkpoint();
        let keyspaces = self.kepts_of(log).len() as u64;
        let is_pending = self.maintenance.lock().pending[log.id.index()].is_some();
        appended > 0 && (is_pending || keyspaces < MANY || appended > keyspaces * IMAGE)
    }

    fn end_in_order(&self) -> Result<()> {
        for log in self.logs.iter().filter(|_| self.options.checkpoints) {
            if self.ends_with_checkpoint(log) {
                match self.checkpoint(log) {
                    Ok(_) | Err(Error::NoSpace { .. } | Error::FileLimit { .. }) => {} // opening will replay instead
                    Err(error) => return Err(error),
                }
            }
        }
        self.clean_for_close()?;
        let mut m = self.maintenance.lock();
        self.sync_survivors(&mut m)?;
        m.survivors.iter_mut().flatten().for_each(SurvivorTails::seal);
        self.flags.closed.store(true, Ordering::Release); // no commit after this lock: what follows is the end
        drop(self.stripes.alone());
        let next = self.window.word().next();
        self.sync_for_close()?;
        m.seq_bound = next; // above the newest commit, and above what earlier crashes may have taken
        // `blob_bound` stays: a writer that finds out too late may still stage a value, below it.
        self.write_root(&mut m, true)?;
        self.ground.blobs.remove_left(usize::MAX);
        Ok(())
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return; // threads, locks and files belong to the parent
        }
        if !self.flags.closed.load(Ordering::Acquire) {
            let _ = self.close(); // nobody is left to be told; recovery makes up for it
        }
    }
}

pub(super) fn check_options(options: &Options) -> Result<()> {
    if !(1.1..=10.0).contains(&options.space_limit) {
        let why = format!("{}; must be 1.1 to 10", options.space_limit);
        return Err(Error::Invalid { what: "space limit", why });
    }
    if let Some(permissions) = options.permissions {
        permissions.check()?;
    }
    if options.background_threads == 0 {
        return Err(Error::Invalid { what: "background threads", why: "must be at least 1".to_owned() });
    }
    if options.sync_interval.is_zero() {
        return Err(Error::Invalid { what: "sync interval", why: "must not be zero".to_owned() });
    }
    Ok(())
}

/// The modes that the database in `path` was made with; none if there is none.
fn made_with(disk: &dyn Disk, path: &Path) -> Option<Permissions> {
    Slots::NAMES.iter().find_map(|slot| Permissions::of_made(disk, &path.join(slot)))
}

/// Takes the lock: shared by readers, or for a writer alone.
fn take_lock(
    disk: &dyn Disk,
    path: &Path,
    is_reader: bool,
) -> Result<Box<dyn std::fmt::Debug + Send + Sync>> {
    let (lock, share) = (path.join(LOCK), if is_reader { Share::Shared } else { Share::Exclusive });
    match disk.lock(&lock, share) {
        Ok(Locked::Held(lock)) => Ok(lock),
        Ok(Locked::Busy(pid)) => Err(Error::locked(
            path,
            pid,
            match (is_reader, pid) {
                (true, _) => InUse::NoDoor,
                (false, Some(_)) => InUse::Owner,
                (false, None) => InUse::Readers,
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

/// Looks without touching anything. A database that appears meanwhile, made by another process, counts.
fn look(disk: &dyn Disk, path: &Path, is_filled: bool) -> Result<There> {
    match look_once(disk, path, is_filled) {
        Err(Error::NotADatabase { .. }) if made_now(disk, path) => look_once(disk, path, is_filled),
        answer => answer,
    }
}

/// Whether `path` has a slot of ROOT by now.
fn made_now(disk: &dyn Disk, path: &Path) -> bool {
    disk.list(path).is_ok_and(|entries| entries.iter().any(|entry| Slots::is_slot(&entry.name)))
}

fn look_once(disk: &dyn Disk, path: &Path, is_filled: bool) -> Result<There> {
    let entries = match disk.list(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(There::Nothing),
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            return Err(Error::NotADatabase {
                path: path.to_path_buf(),
                why: "it is not a directory".to_owned(),
            });
        }
        other => other.during("list", path)?,
    };
    if !is_filled {
        check_finished(disk, path, &entries)?;
    }
    if entries.iter().any(|e| Slots::is_slot(&e.name)) {
        return Ok(There::Database);
    }
    if entries.iter().any(|e| backup::is_part(&e.name)) {
        let why = "it is a backup; `sheaf restore` makes a database of it in another directory".to_owned();
        return Err(Error::NotADatabase { path: path.to_path_buf(), why });
    }
    if let Some(foreign) = entries.iter().find(|e| !is_unborn_part(&e.name)) {
        let remedy = match entries.iter().any(|e| is_filled_part(&e.name)) {
            true => "if it was a database, `sheaf repair` salvages it",
            false => "name a new or empty directory",
        };
        let why = format!("it has no ROOT file but contains {:?}; {remedy}", foreign.name);
        return Err(Error::NotADatabase { path: path.to_path_buf(), why });
    }
    for entry in entries.iter().filter(|e| e.is_dir) {
        let dir = path.join(&entry.name);
        if !disk.list(&dir).during("list", &dir)?.is_empty() {
            let why = format!(
                "its ROOT files are missing, but {:?} contains data; if it was a database, `sheaf repair` salvages it",
                entry.name
            );
            return Err(Error::NotADatabase { path: path.to_path_buf(), why });
        }
    }
    Ok(There::Nothing)
}

/// Whether only a database has something of that name, once it is filled.
fn is_filled_part(name: &str) -> bool {
    name == OWN || directories().any(|dir| dir == name)
}

/// Whether a database that is being made has something of that name.
fn is_unborn_part(name: &str) -> bool {
    name == LOCK
        || name == UNFINISHED
        || DOOR.contains(&name)
        || Slots::is_unborn_slot(name)
        || directories().any(|dir| dir == name)
}

/// Whether a database consists of something of that name, among others.
pub(crate) fn is_part(name: &str) -> bool {
    is_unborn_part(name) || Slots::is_slot(name) || name == OWN || is_sketch(name)
}

pub(crate) fn directories() -> impl Iterator<Item = &'static str> {
    LogId::ALL.into_iter().map(LogId::directory).chain([image::DIRECTORY, BLOBS])
}

/// Makes a new database: directories, then both slots.
fn create(disk: &dyn Disk, path: &Path, slots: &Slots) -> Result<Root> {
    for name in directories() {
        let dir = path.join(name);
        match disk.create_dir(&dir) {
            // Left empty by an attempt that failed, maybe at the sync of its name, which no later sync saves.
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
        clean: true,
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
