//! # Stage: a database to play on, and the disk and clock beneath it
//!
//! One [`Fixture`] is one directory on one disk, in one geometry and one way of running background
//! work, for one engine. It opens, reopens and kills databases there and shows every byte of their
//! files. Its directory goes with it.

#![expect(clippy::disallowed_methods, reason = "makes and removes its own directory on the real disk")]

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sheaf::{Builder, Database, Keyspace, KeyspaceOptions, Result};
use sheaf_base::clock::{Clock, ManualClock, SystemClock};
use sheaf_base::disk::real::RealDisk;
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::disk::{Disk, MIN_OPEN_FILES, OpenMode};
use sheaf_base::engine::EngineFactory;
use sheaf_base::sync::epoch;

use crate::crashable_disk::CrashableDisk;
use crate::reference_engine::{self, EngineFlaw, ReferenceEngineFactory};

/// What [`TestSubject::all_engines`] is called in replay lines.
pub const ALL_ENGINES: &str = "across";

/// The engine under test.
#[derive(Clone)]
pub struct TestSubject {
    /// What replay lines and reports call it: the engine, and if its options were chosen, how.
    pub name: &'static str,
    /// Its name in the catalogue.
    pub engine: &'static str,
    /// What is chosen of its options.
    pub chosen_options: &'static [(&'static str, u64)],
    /// Whether it has ranges.
    pub ordered: bool,
    /// The engine of the keyspaces beside it: one that commits to another log.
    pub other_engine: &'static str,
    /// Engines the facade does not know by itself.
    pub factories: Vec<Arc<dyn EngineFactory>>,
}

impl TestSubject {
    /// FlatStore with a hash index.
    #[must_use]
    pub fn flat() -> TestSubject {
        TestSubject {
            name: "flat",
            engine: "flat",
            chosen_options: &[],
            ordered: false,
            other_engine: reference_engine::NAME,
            factories: vec![Arc::new(ReferenceEngineFactory::default())],
        }
    }

    /// FlexDB.
    #[must_use]
    pub fn flex() -> TestSubject {
        TestSubject { ordered: true, other_engine: "flat", ..TestSubject::flat().with_engine("flex") }
    }

    /// CedrusDB.
    #[must_use]
    pub fn cedrus() -> TestSubject {
        TestSubject::flat().with_engine("cedrus")
    }

    /// Kreon.
    #[must_use]
    pub fn kreon() -> TestSubject {
        TestSubject { ordered: true, ..TestSubject::flat().with_engine("kreon") }
    }

    /// DeLSM.
    #[must_use]
    pub fn delsm() -> TestSubject {
        TestSubject::flex().with_engine("delsm")
    }

    /// FlatStore with an ordered index.
    #[must_use]
    pub fn flat_ordered() -> TestSubject {
        TestSubject { ordered: true, ..TestSubject::flat().with_engine("flat-ordered") }
    }

    /// FlatStore with a sorted map behind one lock.
    #[must_use]
    pub fn flat_plain() -> TestSubject {
        let factories =
            vec![Arc::new(ReferenceEngineFactory::default()) as Arc<dyn EngineFactory>, sheaf_flat::plain()];
        TestSubject { ordered: true, factories, ..TestSubject::flat().with_engine("flat-plain") }
    }

    /// The reference engine.
    #[must_use]
    pub fn reference() -> TestSubject {
        TestSubject {
            ordered: true,
            other_engine: "flat",
            ..TestSubject::flat().with_engine(reference_engine::NAME)
        }
    }

    fn with_engine(self, engine: &'static str) -> TestSubject {
        TestSubject { name: engine, engine, ..self }
    }

    /// CedrusDB with the smallest nodes, lists that are never split in time, and hashes of 8 bits,
    /// of which many keys have the same.
    #[must_use]
    pub fn cedrus_narrow() -> TestSubject {
        let chosen = &[("branching", 4), ("sluggishness", 24), ("hash-bits", 8)];
        TestSubject { name: "cedrus-narrow", chosen_options: chosen, ..TestSubject::cedrus() }
    }

    /// CedrusDB with the largest nodes, lists of one entry, and hashes of 24 bits.
    #[must_use]
    pub fn cedrus_wide() -> TestSubject {
        let chosen = &[("branching", 256), ("sluggishness", 1), ("hash-bits", 24)];
        TestSubject { name: "cedrus-wide", chosen_options: chosen, ..TestSubject::cedrus() }
    }

    /// FlexDB with intervals larger than its tiny ones.
    #[must_use]
    pub fn flex_wide() -> TestSubject {
        TestSubject {
            name: "flex-wide",
            chosen_options: &[("interval-pairs", 9), ("interval-bytes", 1500)],
            ..TestSubject::flex()
        }
    }

    /// DeLSM with fewer and larger levels.
    #[must_use]
    pub fn delsm_steep() -> TestSubject {
        TestSubject { name: "delsm-steep", chosen_options: &[("level-factor", 4)], ..TestSubject::delsm() }
    }

    /// Engines with options that were chosen: they pass the suites at a small part of their length.
    #[must_use]
    pub fn geometries() -> Vec<TestSubject> {
        vec![
            TestSubject::cedrus_narrow(),
            TestSubject::cedrus_wide(),
            TestSubject::flex_wide(),
            TestSubject::delsm_steep(),
        ]
    }

    /// What is asked for of a keyspace of `engine`: with what was chosen, if that is the engine
    /// under test.
    #[must_use]
    pub fn options_of(&self, engine: &str) -> KeyspaceOptions {
        let options = KeyspaceOptions::from(engine);
        let chosen = if engine == self.engine { self.chosen_options } else { &[] };
        chosen.iter().fold(options, |options, (name, value)| options.option(name, *value))
    }

    /// What is asked for of a keyspace of the engine under test.
    #[must_use]
    pub fn options(&self) -> KeyspaceOptions {
        self.options_of(self.engine)
    }

    /// All of them: what replay lines and campaigns know. `every_engine!` is the other half of the
    /// list.
    #[must_use]
    pub fn all() -> Vec<TestSubject> {
        vec![
            TestSubject::flat(),
            TestSubject::flat_ordered(),
            TestSubject::flat_plain(),
            TestSubject::flex(),
            TestSubject::cedrus(),
            TestSubject::kreon(),
            TestSubject::delsm(),
            TestSubject::reference(),
        ]
    }

    /// The subject of this name, as replay lines call it.
    #[must_use]
    pub fn by_name(engine: &str) -> Option<TestSubject> {
        let beside = TestSubject::geometries().into_iter().chain([TestSubject::all_engines()]);
        TestSubject::all().into_iter().chain(beside).find(|subject| subject.name == engine)
    }

    /// How many of so many cases CI has time for: of the reference engine a fifth. It is there for
    /// the harnesses, whose proofs on its flaws are tests of their own; campaigns run it like any
    /// other.
    #[must_use]
    pub fn ci_cases(&self, cases: u64) -> u64 {
        if self.engine == reference_engine::NAME { cases / 5 } else { cases }
    }

    /// Whether a compaction puts its log into the order of its keys.
    #[must_use]
    pub fn is_sorted_by_compaction(&self) -> bool {
        matches!(self.engine, "flat-ordered" | "flat-plain" | "kreon")
    }

    /// Whether its index may be larger than the budget, so that no key is refused for want of
    /// memory.
    #[must_use]
    pub fn has_paged_index(&self) -> bool {
        matches!(self.engine, "cedrus" | "kreon" | "delsm")
    }

    /// All engines at once, a keyspace each: for the crash explorer and the kill loop, which ask
    /// for [`TestSubject::engines`].
    #[must_use]
    pub fn all_engines() -> TestSubject {
        TestSubject::flat().with_engine(ALL_ENGINES)
    }

    /// The engines of the keyspaces of a crash workload: two under test, one in another log; or all
    /// there are.
    #[must_use]
    pub fn engines(&self) -> Vec<&'static str> {
        if self.engine == ALL_ENGINES {
            sheaf::engines()
        } else {
            vec![self.engine, self.engine, self.other_engine]
        }
    }

    /// The reference engine, wrong in one way.
    #[must_use]
    pub fn with_flaw(flaw: EngineFlaw) -> TestSubject {
        TestSubject {
            factories: vec![Arc::new(ReferenceEngineFactory::flawed(flaw))],
            ..TestSubject::reference()
        }
    }
}

impl fmt::Debug for TestSubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Background threads of tiny databases, which collect the garbage of several segments and do the
/// steps of several keyspaces at the same time.
const THREADS: usize = if cfg!(shuttle) { 2 } else { 4 };

/// Which disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// The machine's, in a directory of the system's temporary one.
    Real,
    /// The simulated one.
    Simulated,
}

/// How a database is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TestSetting {
    /// Which disk.
    pub disk_kind: DiskKind,
    /// Sizes so small that everything happens within 200 operations.
    pub tiny: bool,
    /// Background work only when asked for, time only when told.
    pub inline: bool,
}

impl TestSetting {
    /// A setting.
    #[must_use]
    pub const fn new(place: DiskKind, tiny: bool, inline: bool) -> TestSetting {
        TestSetting { disk_kind: place, tiny, inline }
    }

    /// The setting that shows as `name`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<TestSetting> {
        let places = [DiskKind::Real, DiskKind::Simulated].into_iter();
        let mut all = places.flat_map(|place| {
            [(true, true), (true, false), (false, true), (false, false)]
                .map(|(tiny, inline)| TestSetting::new(place, tiny, inline))
        });
        all.find(|setting| format!("{setting:?}") == name)
    }

    /// Values above this are staged beside the log (`StoreGeometry::blob_threshold` of the store).
    #[must_use]
    pub fn blob_threshold(&self) -> usize {
        if self.tiny { 1 << 10 } else { 64 << 10 }
    }

    /// Bytes of frames a batch may have (`StoreGeometry::max_batch` of the store).
    #[must_use]
    pub fn max_batch(&self) -> usize {
        if self.tiny { 1 << 20 } else { 64 << 20 }
    }
}

impl fmt::Debug for TestSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match self.disk_kind {
            DiskKind::Real => "real",
            DiskKind::Simulated => "sim",
        };
        let size = if self.tiny { "tiny" } else { "normal" };
        let work = if self.inline { "inline" } else { "threaded" };
        write!(f, "{place}-{size}-{work}")
    }
}

/// See the module.
pub struct Fixture {
    /// The engine under test.
    pub subject: TestSubject,
    /// How it is run.
    pub setting: TestSetting,
    root: PathBuf,
    disk: Arc<dyn Disk>,
    sim_disk: Option<Arc<SimDisk>>,
    manual_clock: Option<Arc<ManualClock>>,
    crashable_disk: Mutex<Option<CrashableDisk>>,
}

impl Fixture {
    /// An empty directory.
    #[must_use]
    pub fn new(subject: &TestSubject, setting: TestSetting) -> Fixture {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (root, disk, simulated): (_, Arc<dyn Disk>, _) = match setting.disk_kind {
            DiskKind::Real => {
                let name = format!("sheaf-testkit-{}-{number}", std::process::id());
                let root = std::env::temp_dir().join(name);
                std::fs::create_dir(&root).expect("the temporary directory can be written");
                (root, Arc::new(RealDisk::default()), None)
            }
            DiskKind::Simulated => {
                let disk = Arc::new(SimDisk::new());
                let root = PathBuf::from("/stage");
                disk.create_dir(&root).expect("an empty disk has room");
                disk.sync_dir(Path::new("/")).expect("an empty disk syncs");
                (root, Arc::clone(&disk) as Arc<dyn Disk>, Some(disk))
            }
        };
        Fixture {
            subject: subject.clone(),
            setting,
            root,
            disk,
            sim_disk: simulated,
            manual_clock: setting.inline.then(|| Arc::new(ManualClock::new())),
            crashable_disk: Mutex::default(),
        }
    }

    /// Where the database is, or will be. Its parent exists.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.root.join("db")
    }

    /// The disk itself: works whatever was killed.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// The simulated disk, where it is one.
    #[must_use]
    pub fn sim_disk(&self) -> Option<&Arc<SimDisk>> {
        self.sim_disk.as_ref()
    }

    /// Lets time pass, where it does not by itself.
    pub fn advance(&self, by: Duration) {
        if let Some(clock) = &self.manual_clock {
            clock.advance(by);
        }
    }

    /// How databases are opened here. Begins the life that [`Fixture::kill`] ends.
    pub fn builder(&self) -> Builder {
        let life = CrashableDisk::new(Arc::clone(&self.disk));
        *self.crashable_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(life.clone());
        self.builder_on(Arc::new(life))
    }

    /// How databases are opened here, on another disk.
    pub fn builder_on(&self, disk: Arc<dyn Disk>) -> Builder {
        let factories = self.subject.factories.iter().cloned();
        factories.fold(self.builtin_engines_builder_on(disk), Builder::engine)
    }

    /// As [`Fixture::builder_on`], by a program that knows the facade's own engines only.
    pub fn builtin_engines_builder_on(&self, disk: Arc<dyn Disk>) -> Builder {
        let clock: Arc<dyn Clock> = match &self.manual_clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            None => Arc::new(SystemClock),
        };
        let builder = Database::builder().disk(disk).clock(clock);
        // Tiny databases have many files: with few descriptors most of them are closed most of the
        // time.
        let builder = match self.setting.tiny {
            true => builder.open_files(MIN_OPEN_FILES).background_threads(THREADS),
            false => builder,
        };
        builder.tiny(self.setting.tiny).inline(self.setting.inline)
    }

    /// Opens or creates the database.
    pub fn try_open(&self) -> Result<Database> {
        self.builder().open(self.path())
    }

    /// As [`Fixture::try_open`], and it must work.
    #[must_use]
    pub fn open(&self) -> Database {
        self.try_open().expect("the database opens")
    }

    /// Closes in order and opens again.
    #[must_use]
    pub fn reopen(&self, db: Database) -> Database {
        db.close().expect("the database closes");
        self.open()
    }

    /// Ends the present life without a chance to tidy up. The caller drops its handles.
    pub fn kill(&self) {
        if let Some(life) = self.crashable_disk.lock().unwrap_or_else(PoisonError::into_inner).take() {
            life.kill();
        }
    }

    /// Kills and opens again. `db` is the last handle.
    #[must_use]
    pub fn kill_and_reopen(&self, db: Database) -> Database {
        self.kill();
        drop(db);
        self.open()
    }

    /// A keyspace of the engine under test.
    #[must_use]
    pub fn keyspace(&self, db: &Database, name: &str) -> Keyspace {
        db.keyspace(name, self.subject.options()).expect("the keyspace opens")
    }

    /// A keyspace of the engine beside it.
    #[must_use]
    pub fn other_keyspace(&self, db: &Database, name: &str) -> Keyspace {
        let options = KeyspaceOptions::default().engine(self.subject.other_engine);
        db.keyspace(name, options).expect("the keyspace opens")
    }

    /// Every file of the database with its bytes, every directory with none.
    #[must_use]
    pub fn read_tree(&self) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
        let mut tree = BTreeMap::new();
        self.collect_tree(&self.path(), &mut tree);
        tree
    }

    fn collect_tree(&self, dir: &Path, tree: &mut BTreeMap<PathBuf, Option<Vec<u8>>>) {
        for entry in self.disk.list(dir).unwrap_or_default() {
            let path = dir.join(&entry.name);
            if entry.is_dir {
                self.collect_tree(&path, tree);
                tree.insert(path, None);
            } else {
                if let Ok(bytes) = self.try_read(&path) {
                    tree.insert(path, Some(bytes)); // else the background has just removed it
                }
            }
        }
    }

    /// Bytes of all files together.
    #[must_use]
    pub fn bytes_on_disk(&self) -> u64 {
        let files = self.read_tree();
        files.values().flatten().map(|bytes| bytes.len() as u64).sum()
    }

    /// A file's bytes.
    #[must_use]
    pub fn read_file(&self, path: &Path) -> Vec<u8> {
        self.try_read(path).expect("the file is readable")
    }

    fn try_read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        let file = self.disk.open(path, OpenMode::Read)?;
        let mut bytes = vec![0; usize::try_from(file.len()?).expect("a file of a test fits in memory")];
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Puts `bytes` into the file at `path`, which is created if need be.
    pub fn write_file(&self, path: &Path, offset: u64, bytes: &[u8]) {
        let file = self
            .disk
            .open(path, OpenMode::ReadWrite)
            .or_else(|_| self.disk.open(path, OpenMode::Create))
            .expect("the file opens");
        file.write_at(offset, bytes).expect("the file takes bytes");
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if self.setting.disk_kind == DiskKind::Real {
            // What cannot be removed is left to whoever looks after the temporary directory.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// Where a test puts what it writes on a real disk: the directory that `SHEAF_SCRATCH` names, or
/// else `usual`.
#[must_use]
pub fn scratch_dir(usual: &str) -> PathBuf {
    std::env::var_os("SHEAF_SCRATCH").map_or_else(|| PathBuf::from(usual), PathBuf::from)
}

/// Waits until nobody is left in what was let go up to now. Epochs are the process's: a reader of
/// another test's database keeps the segments of this one as well. Gives up after some seconds:
/// somebody may be the caller.
pub fn wait_epoch_garbage_freed() {
    let _ = epoch::wait_for_guards(Duration::from_secs(5));
}

/// Writes a suite's tests for every engine there is: `every_engine!(crash_suite);`. With
/// [`TestSubject::all`] this is the one list; an engine that is in both passes all suites.
#[macro_export]
macro_rules! every_engine {
    ($suite:ident) => {
        $crate::$suite!(flat, $crate::fixture::TestSubject::flat());
        $crate::$suite!(flat_ordered, $crate::fixture::TestSubject::flat_ordered());
        $crate::$suite!(flex, $crate::fixture::TestSubject::flex());
        $crate::$suite!(cedrus, $crate::fixture::TestSubject::cedrus());
        $crate::$suite!(kreon, $crate::fixture::TestSubject::kreon());
        $crate::$suite!(delsm, $crate::fixture::TestSubject::delsm());
        $crate::$suite!(reference, $crate::fixture::TestSubject::reference());
    };
}
