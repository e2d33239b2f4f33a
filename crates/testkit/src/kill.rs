//! # Kill: a process that dies in mid-write, on the real disk
//!
//! The running program starts itself again as a child that writes as fast as it can from 16 threads,
//! over keyspaces of two engines (or of all), alone and in batches, buffered and synced, and says on a pipe after every
//! acknowledged commit how far it is. It dies by SIGKILL. The parent opens the database itself and
//! checks: the lock is free and then held, each thread's commits are there as a prefix, no acknowledged one
//! is missing, every batch is whole. Then it closes or just lets go, and the next child takes over.
//!
//! ## When it dies
//!
//! ```text
//!  timer      the parent kills it after a moment
//!  opening    the child kills itself before its n-th disk call: nearly always while it recovers
//!  writing    the same, far later
//!  image      before the n-th call on an image: in a checkpoint
//!  cleaning   before the n-th removal of a segment
//!  root       before the n-th write or sync of ROOT
//!  sync       before the n-th sync of a log, between write and acknowledgement
//! ```
//!
//! Several victims live side by side, each in its own directory: most of a life is waiting for syncs.
//!
//! ## What it cannot see
//!
//! Anything a power cut would lose: the kernel survives. The order between commits of different threads.
//! Which of the moments a race needs: it is hit or not.

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
use sheaf_base::disk::real::RealDisk;
use sheaf_base::sync::Mutex;

use crate::crash::history::NAMES;
use crate::crash::workload::{Random, value_bytes};
use crate::stage::Subject;
use crate::tap::{Class, Lie, Tap};
use crate::totals::{Budget, Failure, Totals};

const DIR: &str = "SHEAF_KILL_DIR";
const ENGINE: &str = "SHEAF_KILL_ENGINE";
const SEED: &str = "SHEAF_KILL_SEED";
const TINY: &str = "SHEAF_KILL_TINY";
const DEATH: &str = "SHEAF_KILL_DEATH";
const LIE: &str = "SHEAF_KILL_LIE";
const THREADS: u8 = 16;
/// Mark: the child has opened the database.
const OPENED: u8 = 0xff;
/// A mark is a thread and how many of its commits were acknowledged.
const MARK: usize = 5;
/// A child that did not come to the moment it was to die at is killed after so long.
const PATIENCE: Duration = Duration::from_millis(250);
/// One that is to die at a moment few have come to, as on a slow file system, is given so much.
const LONG_PATIENCE: Duration = Duration::from_secs(3);
/// How many is few.
const FEW: u64 = 3;
/// Lives in one directory before the next one is begun.
const LIVES: u64 = 25;

/// A keyspace, a key, and its new value.
type Change = (usize, Vec<u8>, Option<Vec<u8>>);

/// What one thread's keys hold: by keyspace and key.
type Pairs = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

/// At which moment a life ends. See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Moment {
    Timer,
    Opening,
    Writing,
    Image,
    Cleaning,
    Root,
    Sync,
}

impl Moment {
    const ALL: [Moment; 7] = [
        Moment::Timer,
        Moment::Opening,
        Moment::Writing,
        Moment::Image,
        Moment::Cleaning,
        Moment::Root,
        Moment::Sync,
    ];

    /// Whether a disk call counts towards the moment.
    fn counts(self, class: Class, path: &Path) -> bool {
        let is = |part: &str| path.to_string_lossy().contains(part);
        match self {
            Moment::Timer => false,
            Moment::Opening | Moment::Writing => true,
            Moment::Image => is("/images"),
            Moment::Cleaning => class == Class::Remove && is(".seg"),
            Moment::Root => is("ROOT."),
            Moment::Sync => class == Class::Sync && is(".seg"),
        }
    }

    /// How many such calls a life has, at most: drawn.
    fn draw(self, random: &mut Random) -> u64 {
        match self {
            Moment::Timer => 0,
            Moment::Opening => 1 + random.below(90),
            Moment::Writing => 90 + random.below(1500),
            Moment::Image | Moment::Root => 1 + random.below(16),
            Moment::Cleaning => 1 + random.below(6),
            Moment::Sync => 1 + random.below(40),
        }
    }
}

/// When a life ends: the moment, and the how-manieth call (of the timer: microseconds).
#[derive(Clone, Copy, Debug)]
struct Death {
    moment: Moment,
    count: u64,
}

impl Death {
    fn draw(random: &mut Random) -> Death {
        let moment = Moment::ALL[random.below(Moment::ALL.len() as u64) as usize];
        let count = match moment {
            Moment::Timer if random.once_in(3) => random.below(9_000),
            Moment::Timer => random.below(40_000),
            other => other.draw(random),
        };
        Death { moment, count }
    }

    fn parse(text: &str) -> Option<Death> {
        let (name, count) = text.split_once(' ')?;
        let moment = Moment::ALL.into_iter().find(|moment| format!("{moment:?}") == name)?;
        Some(Death { moment, count: count.parse().ok()? })
    }
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}", self.moment, self.count)
    }
}

/// How a child is started: this program again, with these arguments. It must call [`be_the_child`].
#[derive(Clone, Debug)]
pub struct Starter {
    arguments: Vec<String>,
    lies: bool,
}

impl Starter {
    /// A program that calls [`be_the_child`] first of all.
    #[must_use]
    pub fn program() -> Starter {
        Starter { arguments: Vec::new(), lies: false }
    }

    /// A test executable, whose test of this name (with its crate and modules) calls it.
    #[must_use]
    pub fn test(path: &str) -> Starter {
        let name = path.split_once("::").map_or(path, |(_, name)| name);
        let arguments = [name, "--exact", "--nocapture", "--test-threads=1"];
        Starter { arguments: arguments.map(str::to_owned).to_vec(), lies: false }
    }

    /// The children's disk keeps each write to a log back until the next one: what the loop must notice.
    #[must_use]
    pub fn lying(self) -> Starter {
        Starter { lies: true, ..self }
    }
}

/// What the loop did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Processes killed.
    pub kills: u64,
    /// Those that had not opened the database yet.
    pub during_open: u64,
    /// Those that came to their moment, by moment; the others were killed when patience ended.
    pub by_moment: BTreeMap<Moment, u64>,
    /// Commits acknowledged before the kills.
    pub commits: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.kills as f64 / self.seconds.max(1e-9);
        let Report { kills, during_open, by_moment, commits, seconds, .. } = self;
        write!(
            f,
            "{kills} kills ({during_open} while opening; {by_moment:?}), {commits} commits, {seconds:.1} s, \
             {rate:.0} kills/s"
        )
    }
}

/// Kills children until the budget is spent, `budget.workers` side by side, in fresh directories under
/// `scratch`. The directory of a failure is left there.
#[must_use]
pub fn run(subject: &Subject, scratch: &Path, starter: &Starter, seed: u64, budget: Budget) -> Totals {
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

/// As [`run`], with what the kills hit.
#[must_use]
pub fn kill_loop(subject: &Subject, scratch: &Path, starter: &Starter, seed: u64, budget: Budget) -> Report {
    let ground = Ground {
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
            let ground = &ground;
            scope.spawn(move || ground.work(Random::new(seed ^ worker << 32)));
        }
    });
    let mut report = ground.report.into_inner();
    report.seconds = ground.started.elapsed().as_secs_f64();
    report
}

/// What the workers share.
struct Ground<'a> {
    subject: &'a Subject,
    scratch: &'a Path,
    starter: &'a Starter,
    budget: Budget,
    started: Instant,
    kills: AtomicU64,
    report: Mutex<Report>,
}

impl Ground<'_> {
    fn is_over(&self) -> bool {
        self.started.elapsed().as_secs_f64() > self.budget.seconds || !self.report.lock().failures.is_empty()
    }

    fn work(&self, mut random: Random) {
        while !self.is_over() {
            static DIRECTORIES: AtomicU64 = AtomicU64::new(0);
            let number = DIRECTORIES.fetch_add(1, Ordering::Relaxed);
            let dir = self.scratch.join(format!("kill-{}-{number}", std::process::id()));
            let is_tiny = !random.once_in(4);
            let mut victim = Victim { ground: self, dir: dir.clone(), is_tiny, model: Default::default() };
            for _ in 0..LIVES {
                if self.is_over() || self.kills.fetch_add(1, Ordering::Relaxed) >= self.budget.cases {
                    let _ = std::fs::remove_dir_all(&dir);
                    return;
                }
                let (life, death) = (random.next(), Death::draw(&mut random));
                if let Err(what) = victim.live_and_die(life, death) {
                    let replay = victim.replay(life, death);
                    self.report.lock().failures.push(Failure { replay, what });
                    return;
                }
            }
            // What cannot be removed is left to whoever looks after the scratch directory.
            let _ = std::fs::remove_dir_all(&dir);
        }
    }
}

struct Victim<'a> {
    ground: &'a Ground<'a>,
    dir: PathBuf,
    is_tiny: bool,
    model: [Pairs; THREADS as usize],
}

impl Victim<'_> {
    fn replay(&self, life: u64, death: Death) -> String {
        let engine = self.ground.subject.name;
        format!(
            "{ENGINE}={engine} {DIR}={} {SEED}={life} {TINY}={} {DEATH}='{death}' (the directory is as it was left)",
            self.dir.display(),
            self.is_tiny
        )
    }

    fn live_and_die(&mut self, life: u64, death: Death) -> Result<(), String> {
        let mut child = self.start(life, death)?;
        let mut pipe = child.stderr.take().ok_or("stderr is not piped")?;
        let delay = match death.moment {
            Moment::Timer => Duration::from_micros(death.count),
            moment if self.ground.report.lock().by_moment.get(&moment).is_none_or(|hits| *hits < FEW) => {
                LONG_PATIENCE
            }
            _ => PATIENCE,
        };
        let mut is_in_time = death.moment == Moment::Timer;
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
        let marks = marks(&told).filter(|_| status.signal() == Some(libc::SIGKILL));
        let (has_opened, acked) = marks
            .ok_or_else(|| format!("the child ended with {status}: {}", String::from_utf8_lossy(&told)))?;
        let mut report = self.ground.report.lock();
        report.kills += 1;
        report.during_open += u64::from(!has_opened);
        *report.by_moment.entry(death.moment).or_default() += u64::from(is_in_time);
        report.commits += acked.iter().map(|k| u64::from(*k)).sum::<u64>();
        drop(report);
        self.inspect(life, acked).map_err(|what| format!("{what}; acknowledged {acked:?}, killed by {death}"))
    }

    fn start(&self, life: u64, death: Death) -> Result<Child, String> {
        // Not by its path: a build may replace the file while a campaign runs.
        let mut command = Command::new("/proc/self/exe");
        command.args(&self.ground.starter.arguments);
        command.env(ENGINE, self.ground.subject.name).env(DIR, &self.dir).env(SEED, life.to_string());
        command.env(TINY, self.is_tiny.to_string()).env(DEATH, death.to_string());
        if self.ground.starter.lies {
            command.env(LIE, "1");
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().map_err(|e| e.to_string())
    }

    /// Opens what the dead child left.
    fn inspect(&mut self, life: u64, acked: [u32; THREADS as usize]) -> Result<(), String> {
        let open = || builder(self.ground.subject, self.is_tiny).open(&self.dir);
        let db = open().map_err(|e| format!("it does not open after the kill: {e}"))?;
        match open() {
            Err(Error::Locked { pid: Some(pid), .. }) if pid == std::process::id() => {}
            other => return Err(format!("opened twice, the answer is {:?}", other.map(drop))),
        }
        let found = read(&db)?;
        let spaces = engines(self.ground.subject).len();
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
        if life.is_multiple_of(8) {
            let mut damage = None;
            let verified = db.verify(|error| damage = Some(error));
            verified.map_err(|e| format!("it cannot be verified: {e}"))?;
            damage.map_or(Ok(()), |error| Err(format!("verification says: {error}")))?;
        }
        let alpha = keyspace(&db, self.ground.subject, 0).map_err(|e| e.to_string())?;
        alpha.insert("the parent", life.to_le_bytes()).map_err(|e| format!("it takes no commit: {e}"))?;
        drop(alpha);
        if life.is_multiple_of(2) {
            db.close().map_err(|e| format!("it does not close: {e}"))?;
        }
        Ok(())
    }
}

fn builder(subject: &Subject, is_tiny: bool) -> Builder {
    subject.factories.iter().cloned().fold(Database::builder(), Builder::engine).tiny(is_tiny)
}

/// The engines of the keyspaces that are written to: those of a crash workload, each once.
fn engines(subject: &Subject) -> Vec<&'static str> {
    let mut engines = subject.engines();
    engines.dedup();
    engines
}

fn keyspace(db: &Database, subject: &Subject, space: usize) -> sheaf::Result<Keyspace> {
    db.keyspace(NAMES[space], subject.options_of(engines(subject)[space]))
}

/// Whether the child had opened the database, and how many commits of each thread it acknowledged.
/// `None` if it said anything else.
fn marks(told: &[u8]) -> Option<(bool, [u32; THREADS as usize])> {
    let mut acked = [0; THREADS as usize];
    let mut has_opened = false;
    for mark in told.as_chunks::<MARK>().0 {
        let count = u32::from_le_bytes([mark[1], mark[2], mark[3], mark[4]]);
        match mark[0] {
            OPENED if count == 0 => has_opened = true,
            thread if thread < THREADS => acked[usize::from(thread)] = count,
            _ => return None,
        }
    }
    Some((has_opened, acked))
}

/// The threads' pairs in the database.
fn read(db: &Database) -> Result<[Pairs; THREADS as usize], String> {
    let mut found: [Pairs; THREADS as usize] = Default::default();
    for (space, name) in NAMES.iter().enumerate() {
        let Some(keyspace) = db.existing_keyspace(name).map_err(|e| e.to_string())? else {
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

fn difference(found: &Pairs, model: &Pairs) -> String {
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

/// The changes of a thread's commit number `k` in the life `life`, and whether it is synced.
fn changes(spaces: usize, thread: u8, life: u64, k: u32) -> (Vec<Change>, bool) {
    let mut random = Random::new(life ^ u64::from(k) << 8 ^ u64::from(thread));
    let count = if random.once_in(3) { 2 + random.below(5) } else { 1 };
    let mut changes: BTreeMap<(usize, Vec<u8>), Option<Vec<u8>>> = BTreeMap::new();
    for write in 0..count {
        let key = vec![thread, b'k', random.below(200) as u8];
        let len = if random.once_in(200) { 30_000 } else { random.below(300) as u32 };
        let value = (!random.once_in(5)).then(|| {
            let mut value = life.to_le_bytes().to_vec();
            value.extend(value_bytes(k as usize, write as usize, len));
            value
        });
        changes.insert((random.index(spaces), key), value);
    }
    let list = changes.into_iter().map(|((space, key), value)| (space, key, value)).collect();
    (list, random.once_in(12))
}

fn apply(model: &mut Pairs, spaces: usize, thread: u8, life: u64, k: u32) {
    for (space, key, value) in changes(spaces, thread, life, k).0 {
        match value {
            Some(value) => model.insert((space, key), value),
            None => model.remove(&(space, key)),
        };
    }
}

/// In a child: writes until it is killed. Elsewhere: returns at once.
///
/// # Panics
///
/// If the database refuses anything.
pub fn be_the_child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let text = |name| std::env::var(name).unwrap_or_default();
    let life: u64 = text(SEED).parse().expect("the parent sets a seed");
    let subject = Subject::named(&text(ENGINE)).expect("the parent names an engine");
    let death = Death::parse(&text(DEATH)).expect("the parent sets a death");
    let disk = Arc::new(doomed(death));
    let db = builder(&subject, text(TINY) == "true").disk(disk).open(PathBuf::from(dir)).expect("it opens");
    let spaces: Vec<_> = (0..engines(&subject).len())
        .map(|space| keyspace(&db, &subject, space).expect("a keyspace"))
        .collect();
    tell(OPENED, 0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, spaces) = (&db, &spaces);
            scope.spawn(move || {
                for k in 0.. {
                    write(db, spaces, thread, life, k).expect("it takes every write");
                    tell(thread, k + 1);
                }
            });
        }
    });
}

/// The real disk, before whose so-manieth call of a kind the process dies.
fn doomed(death: Death) -> Tap {
    let tap = Tap::new(Arc::new(RealDisk::default()));
    if std::env::var_os(LIE).is_some() {
        tap.set_lie(Lie::WriteOneLate(".seg"));
    }
    let mut left = death.count;
    tap.watch(move |class, path| {
        if !death.moment.counts(class, path) {
            return;
        }
        left -= 1;
        if left == 0 {
            // SAFETY:
            // * A system call without memory; it does not return.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    });
    tap
}

fn write(db: &Database, spaces: &[Keyspace], thread: u8, life: u64, k: u32) -> sheaf::Result<()> {
    let (changes, is_synced) = changes(spaces.len(), thread, life, k);
    if let ([(space, key, value)], false) = (&changes[..], is_synced) {
        return match value {
            Some(value) => spaces[*space].insert(key, value),
            None => spaces[*space].remove(key),
        };
    }
    let mut batch = db.batch();
    for (space, key, value) in &changes {
        match value {
            Some(value) => batch.insert(&spaces[*space], key, value),
            None => batch.remove(&spaces[*space], key),
        };
    }
    batch.durability(if is_synced { Durability::Sync } else { Durability::Buffer });
    batch.commit()
}

/// One mark to the parent, in one write: it arrives whole or not at all.
fn tell(thread: u8, count: u32) {
    let mut mark = [thread; MARK];
    mark[1..].copy_from_slice(&count.to_le_bytes());
    std::io::stderr().write_all(&mark).expect("the parent listens");
}

/// The kill loop's test for one engine: `kill_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! kill_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;
            use $crate::kill::{Starter, be_the_child, kill_loop};
            use $crate::totals::Budget;

            /// A campaign kills some thousand times.
            const KILLS: u64 = 200;

            #[test]
            fn child_of_the_kill_loop() {
                be_the_child();
            }

            #[test]
            fn killed_processes_lose_nothing_acknowledged_and_leave_the_lock() {
                let scratch = $crate::stage::scratch(env!("CARGO_TARGET_TMPDIR"));
                let child = concat!(module_path!(), "::child_of_the_kill_loop");
                let budget = Budget::cases(KILLS).workers(4);
                let report = kill_loop(&$subject, &scratch, &Starter::test(child), 1, budget);
                println!("{}: {report}", stringify!($module));
                assert!(report.failures.is_empty(), "{report}\n{:?}", report.failures);
                assert_eq!(report.kills, KILLS, "{report}");
                assert!(report.during_open > 0, "no kill while opening: {report}");
                assert!(
                    report.by_moment.values().all(|kills| *kills > 0),
                    "a moment was never hit: {report}"
                );
                assert!(report.commits > 0, "nothing was written: {report}");
            }
        }
    };
}
