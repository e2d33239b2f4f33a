//! # Fixture: a database of one engine, its disk and its clock
//!
//! A [`Fixture`] is a directory on one disk, with one geometry, one way of running background work
//! and one engine. It opens, reopens and kills databases in that directory and returns every byte
//! of their files. Dropping the fixture removes the directory.

#![expect(clippy::disallowed_methods, reason = "makes and removes its own directory on the real disk")]

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sheaf::{Builder, Database, Keyspace, KeyspaceOptions, PersistenceMode, Result};
use sheaf_engine::contract::EngineFactory;
use sheaf_flat::pmem::PmDisk;
use sheaf_platform::clock::{Clock, ManualClock, SystemClock, UnixMillis};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, MIN_OPEN_FILES, OpenMode};
use sheaf_platform::sync::epoch;
use sheaf_sim::SimDisk;

use crate::crashable_disk::CrashableDisk;
use crate::reference_engine::{self, EngineFlaw, ReferenceEngineFactory};

/// Name of [`TestSubject::all_engines`] in replay lines.
pub const ALL_ENGINES: &str = "across";

/// Engine under test.
#[derive(Clone)]
pub struct TestSubject {
    /// Name in replay lines and reports: the engine, with a suffix if its options are set.
    pub name: &'static str,
    /// Name of the engine in the catalog.
    pub engine: &'static str,
    /// Engine options that differ from the defaults, by name.
    pub chosen_options: &'static [(&'static str, u64)],
    /// Whether the engine supports ranges.
    pub ordered: bool,
    /// Engine of the other keyspaces in the same database. It commits to the other log.
    pub other_engine: &'static str,
    /// Whether files on the real disk are mapped as the substitute of persistent memory.
    pub is_persistent: bool,
    /// Space limit of the database, if it is set.
    pub space_limit: Option<f64>,
    /// Whether the databases of the crash harness retain all changes. Its checks then also require
    /// that the change feed leads to the state of the database.
    pub retains_changes: bool,
    /// Factories of engines that the facade does not register itself.
    pub factories: Vec<Arc<dyn EngineFactory>>,
}

/// Options of a keyspace with the codec `lz4`.
const COMPRESSED: &[(&str, u64)] = &[("compression", 1)];

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
            is_persistent: false,
            space_limit: None,
            retains_changes: false,
            factories: vec![Arc::new(ReferenceEngineFactory::default())],
        }
    }

    /// FlatStore in the substitute of persistent memory. Suites run it on the real disk only.
    #[must_use]
    pub fn flat_persistent() -> TestSubject {
        TestSubject { name: "flat-persistent", is_persistent: true, ..TestSubject::flat() }
    }

    /// Returns the subject with databases that retain all changes.
    #[must_use]
    pub fn with_changes(self) -> TestSubject {
        TestSubject { retains_changes: true, ..self }
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

    /// CedrusDB with the largest nodes, lists of one entry, and hashes of 40 bits.
    #[must_use]
    pub fn cedrus_wide() -> TestSubject {
        let chosen = &[("branching", 256), ("sluggishness", 1), ("hash-bits", 40)];
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

    /// FlexDB under a bound of disk space.
    #[must_use]
    pub fn flex_bounded() -> TestSubject {
        TestSubject { name: "flex-bounded", space_limit: Some(1.6), ..TestSubject::flex_wide() }
    }

    /// DeLSM with fewer and larger levels, and three frozen memtables.
    #[must_use]
    pub fn delsm_steep() -> TestSubject {
        let chosen = &[("level-factor", 4), ("frozen-memtables", 3)];
        TestSubject { name: "delsm-steep", chosen_options: chosen, ..TestSubject::delsm() }
    }

    /// `flat` with compressed values.
    #[must_use]
    pub fn flat_compressed() -> TestSubject {
        TestSubject { name: "flat-compressed", chosen_options: COMPRESSED, ..TestSubject::flat() }
    }

    /// `flat-ordered` with compressed values.
    #[must_use]
    pub fn flat_ordered_compressed() -> TestSubject {
        TestSubject {
            name: "flat-ordered-compressed",
            chosen_options: COMPRESSED,
            ..TestSubject::flat_ordered()
        }
    }

    /// `flex` with compressed values.
    #[must_use]
    pub fn flex_compressed() -> TestSubject {
        TestSubject { name: "flex-compressed", chosen_options: COMPRESSED, ..TestSubject::flex() }
    }

    /// `delsm` with compressed values.
    #[must_use]
    pub fn delsm_compressed() -> TestSubject {
        TestSubject { name: "delsm-compressed", chosen_options: COMPRESSED, ..TestSubject::delsm() }
    }

    /// `cedrus` with compressed values.
    #[must_use]
    pub fn cedrus_compressed() -> TestSubject {
        TestSubject { name: "cedrus-compressed", chosen_options: COMPRESSED, ..TestSubject::cedrus() }
    }

    /// `kreon` with compressed values.
    #[must_use]
    pub fn kreon_compressed() -> TestSubject {
        TestSubject { name: "kreon-compressed", chosen_options: COMPRESSED, ..TestSubject::kreon() }
    }

    /// Returns the engines with non-default options. They pass all suites at a small part of the
    /// length.
    #[must_use]
    pub fn geometries() -> Vec<TestSubject> {
        vec![
            TestSubject::cedrus_narrow(),
            TestSubject::cedrus_wide(),
            TestSubject::flex_wide(),
            TestSubject::flex_bounded(),
            TestSubject::delsm_steep(),
            TestSubject::flat_compressed(),
            TestSubject::flat_ordered_compressed(),
            TestSubject::flex_compressed(),
            TestSubject::delsm_compressed(),
            TestSubject::cedrus_compressed(),
            TestSubject::kreon_compressed(),
        ]
    }

    /// Adds the factories and the space limit to a builder.
    #[must_use]
    pub fn configure(&self, builder: Builder) -> Builder {
        let builder = self.factories.iter().cloned().fold(builder, Builder::engine);
        self.space_limit.into_iter().fold(builder, Builder::space_limit)
    }

    /// Returns the options for a keyspace of `engine`, with the chosen options if it is the engine
    /// under test.
    #[must_use]
    pub fn options_of(&self, engine: &str) -> KeyspaceOptions {
        let options = KeyspaceOptions::from(engine);
        let chosen = if engine == self.engine { self.chosen_options } else { &[] };
        chosen.iter().fold(options, |options, (name, value)| options.option(name, *value))
    }

    /// Returns the options for a keyspace of the engine under test.
    #[must_use]
    pub fn options(&self) -> KeyspaceOptions {
        self.options_of(self.engine)
    }

    /// Returns all engines, for replay lines and campaigns. `every_engine!` repeats this list for
    /// the suites: keep both complete.
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

    /// Returns the subject of this name, as written in replay lines.
    #[must_use]
    pub fn by_name(engine: &str) -> Option<TestSubject> {
        let others = [TestSubject::all_engines(), TestSubject::flat_persistent()];
        let beside = TestSubject::geometries().into_iter().chain(others);
        TestSubject::all().into_iter().chain(beside).find(|subject| subject.name == engine)
    }

    /// Returns the number of cases that a test of this engine runs: `cases` times the environment
    /// variable `SHEAF_CASES_FACTOR` (default 1), and a fifth of it for the reference engine. That
    /// engine exists for the harnesses, and separate tests on its flaws prove them. Campaigns run
    /// it like any other engine.
    ///
    /// # Panics
    ///
    /// Panics if the variable is not a number.
    #[must_use]
    pub fn ci_cases(&self, cases: u64) -> u64 {
        let factor = std::env::var("SHEAF_CASES_FACTOR");
        let factor: u64 = factor.map_or(1, |text| text.parse().expect("SHEAF_CASES_FACTOR is a number"));
        factor * if self.engine == reference_engine::NAME { cases / 5 } else { cases }
    }

    /// Whether a compaction rewrites the log in key order.
    #[must_use]
    pub fn is_sorted_by_compaction(&self) -> bool {
        matches!(self.engine, "flat-ordered" | "flat-plain" | "kreon")
    }

    /// Whether the index may exceed the memory budget, so that no key is refused for lack of
    /// memory.
    #[must_use]
    pub fn has_paged_index(&self) -> bool {
        matches!(self.engine, "cedrus" | "kreon" | "delsm")
    }

    /// Returns a subject with one keyspace of each engine, for the crash explorer and the kill
    /// loop. They call [`TestSubject::engines`].
    #[must_use]
    pub fn all_engines() -> TestSubject {
        TestSubject::flat().with_engine(ALL_ENGINES)
    }

    /// Returns the engines of the keyspaces of a crash workload: two of the engine under test and
    /// one in the other log, or all engines.
    #[must_use]
    pub fn engines(&self) -> Vec<&'static str> {
        if self.engine == ALL_ENGINES {
            sheaf::engines()
        } else {
            vec![self.engine, self.engine, self.other_engine]
        }
    }

    /// Returns the reference engine with one deliberate bug.
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

/// Background threads of tiny databases. Several threads collect several segments, and run the
/// steps of several keyspaces, at the same time.
const THREADS: usize = if cfg!(shuttle) { 2 } else { 4 };

/// Kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskKind {
    /// The real disk, in a new directory below the system's temporary directory.
    Real,
    /// The simulated disk.
    Simulated,
}

/// Disk, geometry and threading of a database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TestSetting {
    /// Disk that holds the database.
    pub disk_kind: DiskKind,
    /// Uses sizes so small that flushes, checkpoints and GC happen within 200 operations.
    pub tiny: bool,
    /// Runs background work only on request, and advances the clock only on request.
    pub inline: bool,
}

impl TestSetting {
    /// Returns a setting.
    #[must_use]
    pub const fn new(place: DiskKind, tiny: bool, inline: bool) -> TestSetting {
        TestSetting { disk_kind: place, tiny, inline }
    }

    /// Returns the setting with the `Debug` text `name`.
    #[must_use]
    pub fn by_name(name: &str) -> Option<TestSetting> {
        let places = [DiskKind::Real, DiskKind::Simulated].into_iter();
        let mut all = places.flat_map(|place| {
            [(true, true), (true, false), (false, true), (false, false)]
                .map(|(tiny, inline)| TestSetting::new(place, tiny, inline))
        });
        all.find(|setting| format!("{setting:?}") == name)
    }

    /// Returns the length above which the store writes values as blobs outside of the log
    /// (`StoreGeometry::blob_threshold`).
    #[must_use]
    pub fn blob_threshold(&self) -> usize {
        if self.tiny { 1 << 10 } else { 64 << 10 }
    }

    /// Returns the maximum bytes of frames in a batch (`StoreGeometry::max_batch`).
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

/// Directory, disk and clock of one database; see the module.
pub struct Fixture {
    /// Engine under test.
    pub subject: TestSubject,
    /// Setting of the databases.
    pub setting: TestSetting,
    root: PathBuf,
    disk: Arc<dyn Disk>,
    sim_disk: Option<Arc<SimDisk>>,
    manual_clock: Option<Arc<ManualClock>>,
    crashable_disk: Mutex<Option<CrashableDisk>>,
}

impl Fixture {
    /// Creates an empty directory.
    #[must_use]
    pub fn new(subject: &TestSubject, setting: TestSetting) -> Fixture {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (root, disk, simulated): (_, Arc<dyn Disk>, _) = match setting.disk_kind {
            DiskKind::Real => {
                let name = format!("sheaf-testkit-{}-{number}", std::process::id());
                let root = std::env::temp_dir().join(name);
                std::fs::create_dir(&root).expect("the temporary directory can be written");
                let real: Arc<dyn Disk> = Arc::new(RealDisk::default());
                let disk: Arc<dyn Disk> = match subject.is_persistent {
                    true => Arc::new(PmDisk::new(real, PersistenceMode::Substitute)),
                    false => real,
                };
                (root, disk, None)
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

    /// Returns the path of the database. The parent directory exists.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.root.join("db")
    }

    /// Returns the disk below all [`CrashableDisk`]s: it works after a kill, too.
    #[must_use]
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Returns the simulated disk, if the setting uses it.
    #[must_use]
    pub fn sim_disk(&self) -> Option<&Arc<SimDisk>> {
        self.sim_disk.as_ref()
    }

    /// Advances the clock, if the setting has a manual clock.
    pub fn advance(&self, by: Duration) {
        if let Some(clock) = &self.manual_clock {
            clock.advance(by);
        }
    }

    /// Sets the time that decides whether pairs have expired, if the setting has a manual clock.
    pub fn set_unix_millis(&self, time: UnixMillis) {
        if let Some(clock) = &self.manual_clock {
            clock.set_unix_millis(time);
        }
    }

    /// Returns that time. Zero, if the setting has the clock of the machine.
    #[must_use]
    pub fn unix_millis(&self) -> UnixMillis {
        self.manual_clock.as_ref().map_or(UnixMillis(0), |clock| clock.unix_millis())
    }

    /// Returns a builder on a new [`CrashableDisk`], which [`Fixture::kill`] cuts off.
    pub fn builder(&self) -> Builder {
        let life = CrashableDisk::new(Arc::clone(&self.disk));
        *self.crashable_disk.lock().unwrap_or_else(PoisonError::into_inner) = Some(life.clone());
        self.builder_on(Arc::new(life))
    }

    /// Returns a builder on another disk.
    pub fn builder_on(&self, disk: Arc<dyn Disk>) -> Builder {
        self.subject.configure(self.builtin_engines_builder_on(disk))
    }

    /// Like [`Fixture::builder_on`], but registers only the engines that the facade registers
    /// itself.
    pub fn builtin_engines_builder_on(&self, disk: Arc<dyn Disk>) -> Builder {
        let clock: Arc<dyn Clock> = match &self.manual_clock {
            Some(clock) => Arc::clone(clock) as Arc<dyn Clock>,
            None => Arc::new(SystemClock),
        };
        let builder = Database::builder().disk(disk).clock(clock);
        // Tiny databases have many files. A low limit keeps most of them closed most of the time,
        // so that reopening is tested too.
        let builder = match self.setting.tiny {
            true => builder.open_files(MIN_OPEN_FILES).background_threads(THREADS),
            false => builder,
        };
        builder.tiny(self.setting.tiny).inline(self.setting.inline)
    }

    /// Opens or creates the database.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Builder::open`].
    pub fn try_open(&self) -> Result<Database> {
        self.builder().open(self.path())
    }

    /// Like [`Fixture::try_open`], but panics on an error.
    #[must_use]
    pub fn open(&self) -> Database {
        self.try_open().expect("the database opens")
    }

    /// Closes the database and opens it again.
    #[must_use]
    pub fn reopen(&self, db: Database) -> Database {
        db.close().expect("the database closes");
        self.open()
    }

    /// Cuts the open database off from its disk, without a clean shutdown. The caller must drop its
    /// handles.
    pub fn kill(&self) {
        if let Some(life) = self.crashable_disk.lock().unwrap_or_else(PoisonError::into_inner).take() {
            life.kill();
        }
    }

    /// Kills the database and opens it again. `db` must be the last handle.
    #[must_use]
    pub fn kill_and_reopen(&self, db: Database) -> Database {
        self.kill();
        drop(db);
        self.open()
    }

    /// Opens or creates a keyspace of the engine under test.
    #[must_use]
    pub fn keyspace(&self, db: &Database, name: &str) -> Keyspace {
        db.keyspace(name, self.subject.options()).expect("the keyspace opens")
    }

    /// Opens or creates a keyspace of [`TestSubject::other_engine`].
    #[must_use]
    pub fn other_keyspace(&self, db: &Database, name: &str) -> Keyspace {
        let options = KeyspaceOptions::default().engine(self.subject.other_engine);
        db.keyspace(name, options).expect("the keyspace opens")
    }

    /// Returns every file of the database with its bytes, and every directory with `None`.
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
                    tree.insert(path, Some(bytes)); // otherwise background work has just removed it
                }
            }
        }
    }

    /// Returns the total bytes of all files.
    #[must_use]
    pub fn bytes_on_disk(&self) -> u64 {
        let files = self.read_tree();
        files.values().flatten().map(|bytes| bytes.len() as u64).sum()
    }

    /// Returns the bytes of a file.
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

    /// Writes `bytes` to the file at `path`. Creates the file if necessary.
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
            // A directory that cannot be removed stays in the system's temporary directory.
            let _ = std::fs::remove_dir_all(&self.root);
        }
    }
}

/// Returns the directory for test files on a real disk: the value of `SHEAF_SCRATCH`, or else
/// `usual`.
#[must_use]
pub fn scratch_dir(usual: &str) -> PathBuf {
    std::env::var_os("SHEAF_SCRATCH").map_or_else(|| PathBuf::from(usual), PathBuf::from)
}

/// Waits until no reader can hold memory or files retired up to now. They are freed then, or are
/// being freed by another thread (`wait_for_guards`), so a test must repeat the wait and its check.
/// Epochs are per process, so a reader of another test's database delays this too. Gives up after
/// five seconds, because the calling thread may hold a guard itself.
pub fn wait_epoch_garbage_freed() {
    let _ = epoch::wait_for_guards(Duration::from_secs(5));
}

/// Generates the tests of a suite for every engine: `every_engine!(crash_suite);`. An engine that
/// is in this list and in [`TestSubject::all`] passes all suites.
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
