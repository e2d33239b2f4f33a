//! # Kill loop: processes killed in mid-write on the real disk
//!
//! The running program starts itself again as a child. The child writes from 16 threads to
//! keyspaces of two engines (or of all), single and in batches, with `Buffer` and `Sync`: inserts,
//! removals and merges that append. After each acknowledged commit it writes a mark to a pipe. It
//! ends by SIGKILL. The parent then opens the database and checks:
//!
//! - the lock is free, and afterwards held by the parent;
//! - the commits of each thread are a prefix that contains every acknowledged one;
//! - every batch is complete, and every value has each of its operands once and in order;
//! - a key to which all threads append has every acknowledged operand exactly once.
//!
//! The parent then closes the database, or only drops it, and starts the next child.
//!
//! ## Kill points
//!
//! ```text
//!  timer      the parent kills the child after a delay
//!  opening    the child kills itself before its n-th disk call: nearly always during recovery
//!  writing    the same, much later
//!  image      before the n-th call on an image: in a checkpoint
//!  cleaning   before the n-th removal of a segment
//!  root       before the n-th write or sync of ROOT
//!  sync       before the n-th sync of a log, between write and acknowledgement
//! ```
//!
//! ## Blind spots
//!
//! Losses by a power cut: the kernel survives. The order between commits of different threads.
//! Races that need exact timing: a run hits them by chance or not at all.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction
#![expect(clippy::disallowed_methods, reason = "real processes, real time, real files")]

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use sheaf::{Builder, Database, Durability, Error, Keyspace};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::sync::Mutex;

use crate::crash::history::KEYSPACE_NAMES;
use crate::crash::workload::{TestRandom, value_bytes};
use crate::fixture::TestSubject;
use crate::recording_disk::{DiskCallKind, DiskDefect, RecordingDisk};
use crate::totals::{Budget, HarnessFailure, Totals};

mod shared_key;

const DIR_VAR: &str = "SHEAF_KILL_DIR";
const ENGINE_VAR: &str = "SHEAF_KILL_ENGINE";
const SEED_VAR: &str = "SHEAF_KILL_SEED";
const TINY_VAR: &str = "SHEAF_KILL_TINY";
const KILL_PLAN_VAR: &str = "SHEAF_KILL_DEATH";
const DEFECT_VAR: &str = "SHEAF_KILL_LIE";
const THREADS: u8 = 16;
/// Mark: the child has opened the database.
const OPENED_MARK: u8 = 0xff;
/// Bytes of a mark: a thread and the number of its acknowledged commits.
const MARK_BYTES: usize = 5;
/// Time after which the parent kills a child that did not reach its kill point.
const KILL_TIMEOUT: Duration = Duration::from_millis(250);
/// Longer time limit for a kill point that was rarely reached so far, as on a slow file system.
const LONG_KILL_TIMEOUT: Duration = Duration::from_secs(3);
/// A kill point reached fewer times than this gets the longer limit.
const RARE_KILLS: u64 = 3;
/// Children per directory before a worker starts with a new one.
const RUNS_PER_DIR: u64 = 25;

/// Change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KilledEdit {
    Put(Vec<u8>),
    Remove,
    /// Appends the bytes to the value.
    Append(Vec<u8>),
}

/// A keyspace, a key, and its change.
type KilledChange = (usize, Vec<u8>, KilledEdit);

/// Pairs that belong to one thread, by keyspace and key.
type ThreadPairs = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

/// Event at which a child ends; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum KillPoint {
    Timer,
    Opening,
    Writing,
    Image,
    Cleaning,
    Root,
    Sync,
}

impl KillPoint {
    const ALL: [KillPoint; 7] = [
        KillPoint::Timer,
        KillPoint::Opening,
        KillPoint::Writing,
        KillPoint::Image,
        KillPoint::Cleaning,
        KillPoint::Root,
        KillPoint::Sync,
    ];

    /// Whether a disk call counts towards the kill point.
    fn matches_call(self, class: DiskCallKind, path: &Path) -> bool {
        let is = |part: &str| path.to_string_lossy().contains(part);
        match self {
            KillPoint::Timer => false,
            KillPoint::Opening | KillPoint::Writing => true,
            KillPoint::Image => is("/images"),
            KillPoint::Cleaning => class == DiskCallKind::Remove && is(".seg"),
            KillPoint::Root => is("ROOT."),
            KillPoint::Sync => class == DiskCallKind::Sync && is(".seg"),
        }
    }

    /// Draws the number of such calls before the kill.
    fn max_calls(self, random: &mut TestRandom) -> u64 {
        match self {
            KillPoint::Timer => 0,
            KillPoint::Opening => 1 + random.below(90),
            KillPoint::Writing => 90 + random.below(1500),
            KillPoint::Image | KillPoint::Root => 1 + random.below(16),
            KillPoint::Cleaning => 1 + random.below(6),
            KillPoint::Sync => 1 + random.below(40),
        }
    }
}

/// Kill point of a child, and the number of the call (for the timer: microseconds).
#[derive(Clone, Copy, Debug)]
struct KillPlan {
    kill_point: KillPoint,
    count: u64,
}

impl KillPlan {
    fn draw(random: &mut TestRandom) -> KillPlan {
        let moment = KillPoint::ALL[random.below(KillPoint::ALL.len() as u64) as usize];
        let count = match moment {
            KillPoint::Timer if random.one_in(3) => random.below(9_000),
            KillPoint::Timer => random.below(40_000),
            other => other.max_calls(random),
        };
        KillPlan { kill_point: moment, count }
    }

    fn parse(text: &str) -> Option<KillPlan> {
        let (name, count) = text.split_once(' ')?;
        let moment = KillPoint::ALL.into_iter().find(|moment| format!("{moment:?}") == name)?;
        Some(KillPlan { kill_point: moment, count: count.parse().ok()? })
    }
}

impl fmt::Display for KillPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.kill_point, self.count)
    }
}

/// Arguments with which this program starts itself as a child. The child must call [`child_main`].
#[derive(Clone, Debug)]
pub struct ChildLauncher {
    arguments: Vec<String>,
    has_defect: bool,
}

impl ChildLauncher {
    /// Returns a launcher for a program that calls [`child_main`] first.
    #[must_use]
    pub fn program() -> ChildLauncher {
        ChildLauncher { arguments: Vec::new(), has_defect: false }
    }

    /// Returns a launcher for a test executable. The test at `path` (with crate and modules) must
    /// call [`child_main`].
    #[must_use]
    pub fn test(path: &str) -> ChildLauncher {
        let name = path.split_once("::").map_or(path, |(_, name)| name);
        let arguments = [name, "--exact", "--nocapture", "--test-threads=1"];
        ChildLauncher { arguments: arguments.map(str::to_owned).to_vec(), has_defect: false }
    }

    /// Gives the children a disk that delays each write to a log until the next one. The loop must
    /// detect this.
    #[must_use]
    pub fn with_defect(self) -> ChildLauncher {
        ChildLauncher { has_defect: true, ..self }
    }
}

/// Figures of a run of the kill loop.
#[derive(Clone, Debug, Default)]
pub struct KillReport {
    /// Processes killed.
    pub kills: u64,
    /// Processes killed before they had opened the database.
    pub before_open: u64,
    /// Children that reached their kill point, by kill point. The others were killed at the time
    /// limit.
    pub by_kill_point: BTreeMap<KillPoint, u64>,
    /// Commits acknowledged before the kills.
    pub commits: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// Violations found.
    pub failures: Vec<HarnessFailure>,
}

impl fmt::Display for KillReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.kills as f64 / self.seconds.max(1e-9);
        let KillReport { kills, before_open, by_kill_point, commits, seconds, .. } = self;
        write!(
            f,
            "{kills} kills ({before_open} while opening; {by_kill_point:?}), {commits} commits, {seconds:.1} s, \
             {rate:.0} kills/s"
        )
    }
}

/// Kills children until the budget is spent, with `budget.workers` loops in parallel, in new
/// directories below `scratch`. Keeps the directory of a failure.
#[must_use]
pub fn run(
    subject: &TestSubject,
    scratch: &Path,
    starter: &ChildLauncher,
    seed: u64,
    budget: Budget,
) -> Totals {
    let report = kill_loop(subject, scratch, starter, seed, budget);
    println!("kill -9 on {}: {report}", subject.name);
    Totals {
        cases: report.kills,
        distinct: report.kills,
        seconds: report.seconds,
        failures: report.failures,
        ..Totals::new("kill -9", subject.name)
    }
}

/// Like [`run`], but returns the figures of the kills.
#[must_use]
pub fn kill_loop(
    subject: &TestSubject,
    scratch: &Path,
    starter: &ChildLauncher,
    seed: u64,
    budget: Budget,
) -> KillReport {
    let context = KillContext {
        subject,
        scratch,
        starter,
        budget,
        started: Instant::now(),
        kills: AtomicU64::new(0),
        report: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for worker in 0..budget.workers as u64 {
            let context = &context;
            scope.spawn(move || context.run_worker(TestRandom::new(seed ^ worker << 32)));
        }
    });
    let mut report = context.report.into_inner();
    report.seconds = context.started.elapsed().as_secs_f64();
    report
}

/// State shared by the workers.
struct KillContext<'a> {
    subject: &'a TestSubject,
    scratch: &'a Path,
    starter: &'a ChildLauncher,
    budget: Budget,
    started: Instant,
    kills: AtomicU64,
    report: Mutex<KillReport>,
}

impl KillContext<'_> {
    fn is_over(&self) -> bool {
        self.started.elapsed().as_secs_f64() > self.budget.seconds || !self.report.lock().failures.is_empty()
    }

    fn run_worker(&self, mut random: TestRandom) {
        while !self.is_over() {
            static DIRECTORIES: AtomicU64 = AtomicU64::new(0);
            let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
            let dir = self.scratch.join(format!("kill-{}-{number}", std::process::id()));
            let is_tiny = !random.one_in(4);
            let mut victim =
                KillWorker { context: self, dir: dir.clone(), is_tiny, model: Default::default() };
            for _ in 0..RUNS_PER_DIR {
                if self.is_over() || self.kills.fetch_add(1, Ordering::Relaxed) >= self.budget.cases {
                    let _ = std::fs::remove_dir_all(&dir);
                    return;
                }
                let (life, death) = (random.next(), KillPlan::draw(&mut random));
                if let Err(what) = victim.run_and_kill_child(life, death) {
                    let replay = victim.replay_line(life, death);
                    self.report.lock().failures.push(HarnessFailure { replay, message: what });
                    return;
                }
            }
            // A directory that cannot be removed stays in the scratch directory.
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
}

struct KillWorker<'a> {
    context: &'a KillContext<'a>,
    dir: PathBuf,
    is_tiny: bool,
    model: [ThreadPairs; THREADS as usize],
}

impl KillWorker<'_> {
    fn replay_line(&self, life: u64, death: KillPlan) -> String {
        let engine = self.context.subject.name;
        format!(
            "{ENGINE_VAR}={engine} {DIR_VAR}={} {SEED_VAR}={life} {TINY_VAR}={} {KILL_PLAN_VAR}='{death}' (the directory is as it was left)",
            self.dir.display(),
            self.is_tiny
        )
    }

    fn run_and_kill_child(&mut self, life: u64, death: KillPlan) -> Result<(), String> {
        let mut child = self.start_child(life, death)?;
        let mut pipe = child.stderr.take().ok_or("stderr is not piped")?;
        let delay = match death.kill_point {
            KillPoint::Timer => Duration::from_micros(death.count),
            moment
                if self
                    .context
                    .report
                    .lock()
                    .by_kill_point
                    .get(&moment)
                    .is_none_or(|hits| *hits < RARE_KILLS) =>
            {
                LONG_KILL_TIMEOUT
            }
            _ => KILL_TIMEOUT,
        };
        let mut is_in_time = death.kill_point == KillPoint::Timer;
        let told = std::thread::scope(|scope| -> std::io::Result<Vec<u8>> {
            let (ended, end) = mpsc::channel::<()>();
            let reader = scope.spawn(move || {
                let mut told = Vec::new();
                let read = pipe.read_to_end(&mut told);
                drop(ended); // the pipe ends when the child does
                read.map(|_| told)
            });
            is_in_time |= end.recv_timeout(delay) == Err(RecvTimeoutError::Disconnected);
            child.kill()?;
            reader.join().unwrap_or_else(|_| Err(std::io::Error::other("the reader panicked")))
        });
        let told = told.map_err(|e| e.to_string())?;
        let status = child.wait().map_err(|e| e.to_string())?;
        let marks = parse_marks(&told).filter(|_| status.signal() == Some(libc::SIGKILL));
        let (has_opened, acked) = marks
            .ok_or_else(|| format!("the child ended with {status}: {}", String::from_utf8_lossy(&told)))?;
        let mut report = self.context.report.lock();
        report.kills += 1;
        report.before_open += u64::from(!has_opened);
        *report.by_kill_point.entry(death.kill_point).or_default() += u64::from(is_in_time);
        report.commits += acked.iter().map(|k| u64::from(*k)).sum::<u64>();
        drop(report);
        self.check_after_kill(life, acked)
            .map_err(|failure| format!("{failure}; acknowledged {acked:?}, killed by {death}"))
    }

    fn start_child(&self, life: u64, death: KillPlan) -> Result<Child, String> {
        // Not the path of the executable: a build may replace that file while a campaign runs.
        let mut command = Command::new("/proc/self/exe");
        command.args(&self.context.starter.arguments);
        command
            .env(ENGINE_VAR, self.context.subject.name)
            .env(DIR_VAR, &self.dir)
            .env(SEED_VAR, life.to_string());
        command.env(TINY_VAR, self.is_tiny.to_string()).env(KILL_PLAN_VAR, death.to_string());
        if self.context.starter.has_defect {
            command.env(DEFECT_VAR, "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|e| e.to_string())
    }

    /// Opens the database that the killed child left, and checks it.
    fn check_after_kill(&mut self, life: u64, acked: [u32; THREADS as usize]) -> Result<(), String> {
        let open = || builder(self.context.subject, self.is_tiny).open(&self.dir);
        let db = open().map_err(|e| format!("it does not open after the kill: {e}"))?;
        match open() {
            Err(Error::Locked { pid: Some(pid), .. }) if pid == std::process::id() => {}
            other => return Err(format!("opened twice, the answer is {:?}", other.map(drop))),
        }
        let found = read(&db)?;
        let spaces = engines(self.context.subject).len();
        for thread in 0..THREADS {
            let number = usize::from(thread);
            let model = &mut self.model[number];
            for k in 0..acked[number] {
                apply(model, spaces, thread, life, k);
            }
            if found[number] != *model {
                let before = difference(&found[number], model);
                apply(model, spaces, thread, life, acked[number]);
                if found[number] != *model {
                    let after = difference(&found[number], model);
                    return Err(format!(
                        "thread {thread} is neither at commit {} ({before}) nor at the one after ({after})",
                        acked[number]
                    ));
                }
            }
        }
        let alpha = keyspace(&db, self.context.subject, 0).map_err(|e| e.to_string())?;
        shared_key::check_and_remove(&alpha, life, &acked)?;
        if life.is_multiple_of(8) {
            let mut damage = None;
            let verified = db.verify(|error| damage = Some(error));
            verified.map_err(|e| format!("it cannot be verified: {e}"))?;
            damage.map_or(Ok(()), |error| Err(format!("verification says: {error}")))?;
        }
        alpha.insert("the parent", life.to_le_bytes()).map_err(|e| format!("it takes no commit: {e}"))?;
        drop(alpha);
        if life.is_multiple_of(2) {
            db.close().map_err(|e| format!("it does not close: {e}"))?;
        }
        Ok(())
    }
}

fn builder(subject: &TestSubject, is_tiny: bool) -> Builder {
    subject.configure(Database::builder()).tiny(is_tiny)
}

/// Returns the engines of the written keyspaces: those of a crash workload, without duplicates.
fn engines(subject: &TestSubject) -> Vec<&'static str> {
    let mut engines = subject.engines();
    engines.dedup();
    engines
}

fn keyspace(db: &Database, subject: &TestSubject, space: usize) -> sheaf::Result<Keyspace> {
    let options = subject.options_of(engines(subject)[space]).merge_operator("append");
    db.keyspace(KEYSPACE_NAMES[space], options)
}

/// Returns whether the child had opened the database, and the number of acknowledged commits of
/// each thread. Returns `None` if the pipe contains anything else.
fn parse_marks(told: &[u8]) -> Option<(bool, [u32; THREADS as usize])> {
    let mut acked = [0; THREADS as usize];
    let mut has_opened = false;
    for mark in told.as_chunks::<MARK_BYTES>().0 {
        let count = u32::from_le_bytes([mark[1], mark[2], mark[3], mark[4]]);
        match mark[0] {
            OPENED_MARK if count == 0 => has_opened = true,
            thread if thread < THREADS => acked[usize::from(thread)] = count,
            _ => return None,
        }
    }
    Some((has_opened, acked))
}

/// Reads the pairs of all threads from the database.
fn read(db: &Database) -> Result<[ThreadPairs; THREADS as usize], String> {
    let mut found: [ThreadPairs; THREADS as usize] = Default::default();
    for (space, name) in KEYSPACE_NAMES.iter().enumerate() {
        let Some(keyspace) = db.open_keyspace(name).map_err(|e| e.to_string())? else {
            continue;
        };
        for pair in keyspace.iter().map_err(|e| e.to_string())? {
            let (key, value) = pair.map_err(|e| format!("iteration: {e}"))?;
            if let Some(thread) = key.first().filter(|thread| **thread < THREADS) {
                found[usize::from(*thread)].insert((space, key.to_vec()), value.to_vec());
            }
        }
    }
    Ok(found)
}

fn difference(found: &ThreadPairs, model: &ThreadPairs) -> String {
    let keys: std::collections::BTreeSet<_> = found.keys().chain(model.keys()).collect();
    let show = |value: Option<&Vec<u8>>| {
        let shown = value.map(|v| {
            let life = u64::from_le_bytes(v[..8].try_into().unwrap_or_default());
            format!("life {life} {:?} ({} bytes)", String::from_utf8_lossy(&v[8..v.len().min(24)]), v.len())
        });
        shown.unwrap_or_else(|| "nothing".to_owned())
    };
    let differing = keys.into_iter().filter(|key| found.get(*key) != model.get(*key));
    let lines =
        differing.map(|key| format!("{key:?}: {} instead of {}", show(found.get(key)), show(model.get(key))));
    lines.take(6).collect::<Vec<_>>().join("; ")
}

/// Returns the changes of commit number `k` of a thread in the child with seed `life`, and whether
/// the commit is synced. There are none if the commit is a merge of the shared key.
fn commit_changes(spaces: usize, thread: u8, life: u64, k: u32) -> (Vec<KilledChange>, bool) {
    if shared_key::is_append(thread, life, k) {
        return (Vec::new(), false);
    }
    let mut random = TestRandom::new(life ^ u64::from(k) << 8 ^ u64::from(thread));
    let count = if random.one_in(3) { 2 + random.below(5) } else { 1 };
    let mut changes: BTreeMap<(usize, Vec<u8>), KilledEdit> = BTreeMap::new();
    for write in 0..count {
        let key = vec![thread, b'k', random.below(200) as u8];
        let len = if random.one_in(200) { 30_000 } else { random.below(300) as u32 };
        let bytes = || {
            let mut bytes = life.to_le_bytes().to_vec();
            bytes.extend(value_bytes(k as usize, write as usize, len));
            bytes
        };
        let edit = match random.below(5) {
            0 => KilledEdit::Remove,
            1 => KilledEdit::Append(bytes()),
            _ => KilledEdit::Put(bytes()),
        };
        changes.insert((random.index_below(spaces), key), edit);
    }
    let list = changes.into_iter().map(|((space, key), edit)| (space, key, edit)).collect();
    (list, random.one_in(12))
}

fn apply(model: &mut ThreadPairs, spaces: usize, thread: u8, life: u64, k: u32) {
    for (space, key, edit) in commit_changes(spaces, thread, life, k).0 {
        match edit {
            KilledEdit::Put(value) => drop(model.insert((space, key), value)),
            KilledEdit::Remove => drop(model.remove(&(space, key))),
            KilledEdit::Append(operand) => model.entry((space, key)).or_default().extend(operand),
        }
    }
}

/// In a child process: writes until the process is killed. Otherwise returns at once.
///
/// # Panics
///
/// Panics if a database call returns an error.
pub fn child_main() {
    let Some(dir) = std::env::var_os(DIR_VAR) else {
        return;
    };
    let text = |name| std::env::var(name).unwrap_or_default();
    let life: u64 = text(SEED_VAR).parse().expect("the parent sets a seed");
    let subject = TestSubject::by_name(&text(ENGINE_VAR)).expect("the parent names an engine");
    let death = KillPlan::parse(&text(KILL_PLAN_VAR)).expect("the parent sets a death");
    let disk = Arc::new(self_killing_disk(death));
    let db =
        builder(&subject, text(TINY_VAR) == "true").disk(disk).open(PathBuf::from(dir)).expect("it opens");
    let spaces: Vec<_> = (0..engines(&subject).len())
        .map(|space| keyspace(&db, &subject, space).expect("a keyspace"))
        .collect();
    send_mark(OPENED_MARK, 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, spaces) = (&db, &spaces);
            scope.spawn(move || {
                for k in 0.. {
                    write(db, spaces, thread, life, k).expect("it takes every write");
                    send_mark(thread, k + 1);
                }
            });
        }
    });
}

/// Returns the real disk with an observer that kills the process before the planned call.
fn self_killing_disk(death: KillPlan) -> RecordingDisk {
    let recording_disk = RecordingDisk::new(Arc::new(RealDisk::default()));
    if std::env::var_os(DEFECT_VAR).is_some() {
        recording_disk.set_defect(DiskDefect::DelayedWrite(".seg"));
    }
    let mut left = death.count;
    recording_disk.set_observer(move |class, path| {
        if !death.kill_point.matches_call(class, path) {
            return;
        }
        left -= 1;
        if left == 0 {
            // SAFETY:
            // * The system call takes no pointers, and the process ends before it returns.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    });
    recording_disk
}

fn write(db: &Database, spaces: &[Keyspace], thread: u8, life: u64, k: u32) -> sheaf::Result<()> {
    if shared_key::is_append(thread, life, k) {
        return shared_key::append(&spaces[0], thread, k);
    }
    let (changes, is_synced) = commit_changes(spaces.len(), thread, life, k);
    if let ([(space, key, edit)], false) = (&changes[..], is_synced) {
        return match edit {
            KilledEdit::Put(value) => spaces[*space].insert(key, value),
            KilledEdit::Remove => spaces[*space].remove(key),
            KilledEdit::Append(operand) => spaces[*space].merge(key, operand),
        };
    }
    let mut batch = db.batch();
    for (space, key, edit) in &changes {
        match edit {
            KilledEdit::Put(value) => batch.insert(&spaces[*space], key, value),
            KilledEdit::Remove => batch.remove(&spaces[*space], key),
            KilledEdit::Append(operand) => batch.merge(&spaces[*space], key, operand),
        };
    }
    batch.durability(if is_synced { Durability::Sync } else { Durability::Buffer });
    batch.commit()
}

/// Sends one mark to the parent in a single write, so that it arrives complete or not at all.
fn send_mark(thread: u8, count: u32) {
    let mut mark = [thread; MARK_BYTES];
    mark[1..].copy_from_slice(&count.to_le_bytes());
    std::io::stderr().write_all(&mark).expect("the parent listens");
}

/// Generates the kill loop's test for one engine: `kill_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! kill_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;
            use $crate::kill::{ChildLauncher, child_main, kill_loop};
            use $crate::totals::Budget;

            /// A campaign kills thousands of processes.
            const KILLS: u64 = 200;

            #[test]
            fn child_of_the_kill_loop() {
                child_main();
            }

            #[test]
            fn killed_processes_keep_acknowledged_commits_and_release_the_lock() {
                let scratch = $crate::fixture::scratch_dir(env!("CARGO_TARGET_TMPDIR"));
                let child = concat!(module_path!(), "::child_of_the_kill_loop");
                let budget = Budget::cases(KILLS).workers(4);
                let report = kill_loop(&$subject, &scratch, &ChildLauncher::test(child), 1, budget);
                println!("{}: {report}", stringify!($module));
                assert!(report.failures.is_empty(), "{report}\n{:?}", report.failures);
                assert_eq!(report.kills, KILLS, "{report}");
                assert!(report.before_open > 0, "no kill while opening: {report}");
                assert!(
                    report.by_kill_point.values().all(|kills| *kills > 0),
                    "a moment was never hit: {report}"
                );
                assert!(report.commits > 0, "nothing was written: {report}");
            }
        }
    };
}
