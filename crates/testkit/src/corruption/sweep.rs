//! # Sweep: every byte, sector, length and file of a database, in every lifecycle state
//!
//! ```text
//!  states:  fresh | loaded | cleaning (killed during background work) | crashed (power cut)
//!           | closed | single (one keyspace, each commit synced, killed: only the newest
//!           segment proves which commits were durable)
//!  a pass:  every written byte in one of 11 ways, 1/16 of the other bytes
//!           · every written sector in 8 ways
//!           · 1/8 of all lengths up to the last written byte, longer by zeros and by garbage
//!           · every file missing, empty, older, foreign, of an older and of a newer format
//! ```
//!
//! A budget smaller than a pass visits places spread evenly over it. A larger budget continues with
//! the next pass, which damages each byte in the next way. A seed and a number determine a damage;
//! the replay line contains both.
//!
//! Each case may use one CPU second, and memory for twice the files plus 1 MiB.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_platform::disk::SECTOR;
use sheaf_platform::sync::Mutex;

use super::{InjectedDamage, StoredDatabase, inspect};
use crate::alloc::{MemoryPeak, measure};
use crate::checksums::fix_checksums;
use crate::crash::workload::{CrashStep, TestRandom, WorkloadShape, generate, parse_steps};
use crate::fixture::TestSubject;
use crate::supervise::run_supervised;
use crate::totals::{Budget, HarnessFailure, Stopwatch, ThreadCpuTimer, Totals};

/// CPU seconds that a case may take.
const MAX_CASE_SECONDS: f64 = 1.0;
/// Bytes that a case may allocate in addition to twice the files and the need of the undamaged
/// database.
const EXTRA_MEMORY: usize = 1 << 20;
/// Required share of errors with an offset that name the damaged 4 KiB, after a close.
const LOCATED_SHARE_CLOSED: f64 = 0.95;
/// Required share after a kill or power cut. If the end of a log is damaged, the error can often
/// name only the missing commits.
const LOCATED_SHARE_CRASHED: f64 = 0.95;
/// Maximum number of badly located errors that are printed.
const MAX_EXAMPLES: usize = 40;
/// Ways to damage a byte.
const BYTE_DAMAGES: u64 = 11;
/// A pass damages one in this many bytes that were never written.
const UNWRITTEN_STRIDE: u64 = 16;
/// Ways to damage a sector.
const SECTOR_DAMAGES: u64 = 8;
/// A pass truncates at one in this many lengths.
const LENGTH_STRIDE: u64 = 8;

/// Lifecycle state of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum LifecycleState {
    Fresh,
    Loaded,
    Cleaning,
    Crashed,
    Closed,
    Single,
}

impl LifecycleState {
    /// All states.
    pub const ALL: [LifecycleState; 6] = [
        LifecycleState::Fresh,
        LifecycleState::Loaded,
        LifecycleState::Cleaning,
        LifecycleState::Crashed,
        LifecycleState::Closed,
        LifecycleState::Single,
    ];

    pub(crate) fn is_closed(self) -> bool {
        matches!(self, LifecycleState::Fresh | LifecycleState::Closed)
    }

    pub(crate) fn by_name(name: &str) -> Option<LifecycleState> {
        LifecycleState::ALL.into_iter().find(|life| format!("{life:?}") == name)
    }
}

fn busy_steps(seed: u64, steps: usize) -> Vec<CrashStep> {
    let mut all = parse_steps("0.2=30 1.2=50 2.2=40 0.3=200 2.3=1500 persist").expect("written by hand");
    all.extend(generate(
        seed,
        &WorkloadShape { steps, has_background_work: true, ..WorkloadShape::default() },
    ));
    all.extend(parse_steps("persist").expect("written by hand"));
    all
}

fn single_keyspace_steps() -> String {
    let synced = (0..30).map(|n| format!("S[0.{}={}] ", n % 9, 150 + n));
    format!("{}0.9=10", synced.collect::<String>())
}

fn last_steps() -> Vec<CrashStep> {
    parse_steps("S[0.4=600,1.4=80,2.4=1200] 0.5=33 1.5=44 2.5=9").expect("written by hand")
}

/// Returns a database of the engine in this state, an earlier version of it, and a foreign
/// database.
fn fixtures(subject: &TestSubject, life: LifecycleState) -> [StoredDatabase; 3] {
    let churn = "B[0.2=250,0.3=250,2.2=250] B[0.2=240,1.4=90,2.3=250] ".repeat(14);
    let churn = parse_steps(&format!("0.4=60 2.4=60 {churn} persist")).expect("written by hand");
    let stored_db = match life {
        LifecycleState::Fresh => {
            StoredDatabase::closed_with(subject, &parse_steps("0.2=10").expect("written by hand"))
        }
        LifecycleState::Loaded => {
            StoredDatabase::killed_with(subject, &[busy_steps(4, 50), last_steps()].concat())
        }
        LifecycleState::Cleaning => StoredDatabase::killed_during_background_work(subject, &churn),
        LifecycleState::Crashed => StoredDatabase::power_cut(subject, &busy_steps(5, 40), &last_steps()),
        LifecycleState::Closed => {
            StoredDatabase::closed_with(subject, &[busy_steps(3, 50), last_steps()].concat())
        }
        LifecycleState::Single => StoredDatabase::killed_with(
            subject,
            &parse_steps(&single_keyspace_steps()).expect("written by hand"),
        ),
    };
    [
        stored_db,
        StoredDatabase::killed_with(subject, &busy_steps(3, 25)),
        StoredDatabase::closed_with(subject, &busy_steps(9, 30)),
    ]
}

/// A stored database and all damages to it.
pub(crate) struct SweepTarget {
    pub(crate) life: LifecycleState,
    pub(crate) stored_db: StoredDatabase,
    /// Copy of `stored_db` without a minimum number of commits.
    pub(crate) without_required_commits: StoredDatabase,
    older: StoredDatabase,
    files: Vec<(PathBuf, Vec<u8>)>,
    /// File number and offset of each byte in a written sector, and of all other bytes.
    written: Vec<(u32, u32)>,
    unwritten: Vec<(u32, u32)>,
    /// File number and offset of each written sector.
    sectors: Vec<(u32, u32)>,
    /// Each file number with each length up to its last written byte.
    lengths: Vec<(u32, u32)>,
    whole: Vec<InjectedDamage>,
    /// Memory that reading the undamaged database requests.
    baseline_memory: MemoryPeak,
    bytes: usize,
}

impl SweepTarget {
    pub(crate) fn new(subject: &TestSubject, life: LifecycleState) -> SweepTarget {
        let [stored_db, older, foreign] = fixtures(subject, life);
        let files: Vec<(PathBuf, Vec<u8>)> =
            stored_db.files().into_iter().map(|(path, _)| (path.clone(), stored_db.bytes(&path))).collect();
        let mut whole = stored_db.file_damages(&older, &foreign);
        whole.extend(files.iter().flat_map(|(path, bytes)| other_formats(path, bytes)));
        let mut target = SweepTarget {
            life,
            written: Vec::new(),
            unwritten: Vec::new(),
            sectors: Vec::new(),
            lengths: Vec::new(),
            whole,
            baseline_memory: MemoryPeak::default(),
            bytes: files.iter().map(|(_, bytes)| bytes.len()).sum(),
            without_required_commits: StoredDatabase {
                min_commits: 0,
                sim: stored_db.sim.clone(),
                history: stored_db.history.clone(),
                subject: subject.clone(),
            },
            stored_db,
            older,
            files,
        };
        target.classify_bytes();
        let nothing = InjectedDamage::Write(target.files[0].0.clone(), 0, Vec::new(), "nothing");
        let (answer, usual) = measure(|| inspect(&target.stored_db, &nothing));
        assert!(answer.is_ok_and(|answer| answer.is_exact), "the undamaged database is sound");
        target.baseline_memory = usual;
        target
    }

    pub(crate) fn len_of(&self, path: &Path) -> u64 {
        self.files.iter().find(|(file, _)| file == path).map_or(0, |(_, bytes)| bytes.len() as u64)
    }

    fn classify_bytes(&mut self) {
        for (file, (_, bytes)) in (0u32..).zip(&self.files) {
            let sectors = bytes.chunks(SECTOR as usize).enumerate();
            for (number, sector) in sectors {
                let first = (number as u64 * SECTOR) as u32;
                let is_written = sector.iter().any(|byte| *byte != 0);
                let places = (first..first + sector.len() as u32).map(|at| (file, at));
                if is_written {
                    self.sectors.push((file, first));
                    self.written.extend(places);
                } else {
                    self.unwritten.extend(places);
                }
            }
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u32 + 1);
            self.lengths.extend((0..end).map(|len| (file, len)));
        }
    }

    /// Returns the number of cases of a pass.
    pub(crate) fn case_count(&self) -> u64 {
        self.written.len() as u64
            + self.unwritten.len() as u64 / UNWRITTEN_STRIDE
            + self.sectors.len() as u64 * SECTOR_DAMAGES
            + self.lengths.len() as u64 / LENGTH_STRIDE
            + self.files.len() as u64 * 4
            + self.whole.len() as u64
    }

    /// Returns the damage with this number, for this seed.
    pub(crate) fn damage(&self, seed: u64, number: u64) -> InjectedDamage {
        let (pass, mut at) = (number / self.case_count(), number % self.case_count());
        let mut random = TestRandom::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if let Some(place) = self.written.get(at as usize) {
            return self.byte(*place, seed, pass);
        }
        at -= self.written.len() as u64;
        if at < self.unwritten.len() as u64 / UNWRITTEN_STRIDE {
            return self.byte(
                self.unwritten[(at * UNWRITTEN_STRIDE + (pass + seed) % UNWRITTEN_STRIDE) as usize],
                seed,
                pass,
            );
        }
        at -= self.unwritten.len() as u64 / UNWRITTEN_STRIDE;
        if at < self.sectors.len() as u64 * SECTOR_DAMAGES {
            let place = self.sectors[(at / SECTOR_DAMAGES) as usize];
            return self.sector(place, at % SECTOR_DAMAGES, &mut random);
        }
        at -= self.sectors.len() as u64 * SECTOR_DAMAGES;
        if at < self.lengths.len() as u64 / LENGTH_STRIDE {
            let (file, len) = self.lengths[(at * LENGTH_STRIDE + (pass + seed) % LENGTH_STRIDE) as usize];
            return InjectedDamage::Length(self.files[file as usize].0.clone(), u64::from(len));
        }
        at -= self.lengths.len() as u64 / LENGTH_STRIDE;
        if at < self.files.len() as u64 * 4 {
            return self.extend_file((at / 4) as usize, at % 2 == 0, &mut random);
        }
        self.whole[(at - self.files.len() as u64 * 4) as usize].clone()
    }

    fn byte(&self, (file, at): (u32, u32), seed: u64, pass: u64) -> InjectedDamage {
        let (path, bytes) = &self.files[file as usize];
        let (was, offset) = (bytes[at as usize], u64::from(at));
        let other = |byte: u8| if byte == was { was ^ 0x5a } else { byte };
        match (TestRandom::new(seed ^ offset).next().wrapping_add(pass)) % BYTE_DAMAGES {
            bit @ 0..8 => InjectedDamage::Flip(path.clone(), offset, bit as u8),
            8 => InjectedDamage::Write(path.clone(), offset, vec![other(0)], "byte zeroed"),
            9 => InjectedDamage::Write(path.clone(), offset, vec![other(0xff)], "byte filled"),
            _ => InjectedDamage::Write(path.clone(), offset, vec![was.wrapping_add(1)], "byte one up"),
        }
    }

    fn sector(&self, (file, at): (u32, u32), way: u64, random: &mut TestRandom) -> InjectedDamage {
        let (path, bytes) = &self.files[file as usize];
        let (start, offset) = (at as usize, u64::from(at));
        let len = bytes.len().min(start + SECTOR as usize) - start;
        let write = |content: Vec<u8>, what| InjectedDamage::Write(path.clone(), offset, content, what);
        let piece = |place: (u32, u32)| {
            let from = &self.files[place.0 as usize].1[place.1 as usize..];
            from[..from.len().min(len)].to_vec()
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) = self.sectors.iter().partition(|place| place.0 == file);
        let any = |of: &[(u32, u32)], random: &mut TestRandom| {
            of.get(random.below(of.len() as u64) as usize).copied()
        };
        match way {
            0 => write(vec![0; len], "sector zeroed"),
            1 => write(vec![0xff; len], "sector filled"),
            2 => write((0..len).map(|_| random.next() as u8).collect(), "sector of garbage"),
            3 => write(piece(any(&here, random).unwrap_or((file, at))), "another sector of the file"),
            4 => write(piece(any(&elsewhere, random).unwrap_or((file, at))), "a sector of another file"),
            5 => match any(&here, random).filter(|place| place.1 != at) {
                Some(place) => InjectedDamage::Swap(path.clone(), offset, u64::from(place.1)),
                None => write(vec![0x80; len], "sector filled"),
            },
            6 => {
                let before = self.older.sim.read_file(path).unwrap_or_default();
                let stale = before.get(start..start + len).map_or_else(|| vec![0; len], <[u8]>::to_vec);
                write(stale, "older sector")
            }
            _ => {
                let half = len / 2;
                write(
                    [&bytes[start..start + half], &vec![0; len - half]].concat(),
                    "half of the sector torn off",
                )
            }
        }
    }

    fn extend_file(&self, file: usize, zeros: bool, random: &mut TestRandom) -> InjectedDamage {
        let (path, bytes) = &self.files[file];
        let more = 1 + random.below(6000);
        if zeros {
            return InjectedDamage::Length(path.clone(), bytes.len() as u64 + more);
        }
        let mut longer = bytes.clone();
        longer.extend((0..more).map(|_| random.next() as u8));
        InjectedDamage::File(path.clone(), longer, "longer by garbage")
    }

    /// Applies a damage and checks the result. Returns whether an error named the location; `None`
    /// if there was no error or the damage has no offset.
    fn check_case(&self, damage: &InjectedDamage, replay: &str) -> Result<Option<bool>, String> {
        let watch = ThreadCpuTimer::start();
        let is_shorter = matches!(damage, InjectedDamage::Length(path, len) if *len < self.len_of(path));
        // A cut may remove the proof that later commits were durable, unless the database was
        // closed.
        let stored_db = if is_shorter && !self.life.is_closed() {
            &self.without_required_commits
        } else {
            &self.stored_db
        };
        let (answer, peak) = measure(|| run_supervised(replay, || inspect(stored_db, damage)));
        let answer = answer?;
        if watch.seconds() > MAX_CASE_SECONDS {
            return Err(format!("it takes {:.1} s", watch.seconds()));
        }
        let most = self.baseline_memory.peak_bytes + 2 * self.bytes + EXTRA_MEMORY;
        if peak.peak_bytes > most || peak.largest_bytes > most {
            return Err(format!("it asks for {peak:?}, where {most} are enough"));
        }
        if answer.has_error
            && damage.location().1.is_some()
            && !answer.is_located
            && std::env::var_os("SHEAF_ELSEWHERE").is_some()
        {
            println!("ELSEWHERE {:?} | {damage} | {:?}", self.life, answer.first_location);
        }
        let is_placed = answer.has_error && damage.location().1.is_some();
        Ok(is_placed.then_some(answer.is_located))
    }
}

/// Returns the file with an older and a newer format version.
fn other_formats(path: &Path, bytes: &[u8]) -> Vec<InjectedDamage> {
    if bytes.len() < 12 || !bytes.starts_with(b"SHEAF") {
        return Vec::new();
    }
    let mut all = Vec::new();
    let now = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    for (version, what) in [(now.wrapping_sub(1), "of an older format"), (now + 1, "of a newer format")] {
        let mut other = bytes.to_vec();
        other[8..12].copy_from_slice(&version.to_le_bytes());
        fix_checksums(&mut other);
        all.push(InjectedDamage::File(path.to_path_buf(), other, what));
    }
    all
}

fn replay_line(subject: &TestSubject, life: LifecycleState, seed: u64, number: u64) -> String {
    format!(
        "SHEAF_CORRUPT='{} {life:?} {seed} {number}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture corruption::replay",
        subject.name
    )
}

/// Damages databases of `subject` until the budget is spent, with all lifecycle states in turn.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let targets: Vec<SweepTarget> =
        LifecycleState::ALL.into_iter().map(|life| SweepTarget::new(subject, life)).collect();
    let all: u64 = targets.iter().map(SweepTarget::case_count).sum();
    let totals = Mutex::new(Totals::new("corruption", subject.name));
    let next = AtomicU64::new(0);
    let [errors, placed]: [[AtomicU64; 2]; 2] = Default::default(); // after a close, otherwise
    let elsewhere: Mutex<Vec<String>> = Mutex::default();
    // Coprime to the size of a pass, so that any range of numbers is spread over the whole pass.
    let stride = (all / 2..).map(|n| n | 1).find(|n| coprime(*n, all)).unwrap_or(1);
    let work = || {
        loop {
            let turn = next.fetch_add(1, Ordering::Relaxed);
            if turn >= budget.cases || watch.seconds() >= budget.seconds || totals.lock().failures.len() >= 10
            {
                return;
            }
            let (pass, mut at) = (turn / all, (turn % all).wrapping_mul(stride) % all);
            let target = targets.iter().find(|target| {
                let here = at < target.case_count();
                at -= if here { 0 } else { target.case_count() };
                here
            });
            let Some(target) = target else { continue };
            let number = pass * target.case_count() + at;
            let damage = target.damage(seed, number);
            let replay = replay_line(subject, target.life, seed, number);
            let judged = target.check_case(&damage, &replay);
            let kind = usize::from(!target.life.is_closed());
            let mut totals = totals.lock();
            totals.cases += 1;
            match judged {
                Ok(said) => {
                    errors[kind].fetch_add(u64::from(said.is_some()), Ordering::Relaxed);
                    placed[kind].fetch_add(u64::from(said == Some(true)), Ordering::Relaxed);
                    if said == Some(false) && elsewhere.lock().len() < MAX_EXAMPLES {
                        elsewhere.lock().push(format!("{:?}, {damage}", target.life));
                    }
                }
                Err(what) => totals
                    .failures
                    .push(HarnessFailure { replay, message: format!("{:?}, {damage}: {what}", target.life) }),
            }
        }
    };
    std::thread::scope(|scope| {
        (1..budget.workers).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    let mut totals = totals.into_inner();
    totals.distinct = totals.cases;
    totals.seconds = watch.seconds();
    for (kind, least) in [LOCATED_SHARE_CLOSED, LOCATED_SHARE_CRASHED].into_iter().enumerate() {
        let (errors, placed) = (errors[kind].load(Ordering::Relaxed), placed[kind].load(Ordering::Relaxed));
        let end = ["an orderly end", "any other"][kind];
        println!("after {end} {placed} of {errors} errors point into the damaged 4 KiB");
        if (placed as f64) < least * errors as f64 {
            let examples = elsewhere.lock().join("\n  ");
            let what =
                format!("of {errors} errors only {placed} point into the damaged 4 KiB; not:\n  {examples}");
            totals.failures.push(HarnessFailure { replay: String::new(), message: what });
        }
    }
    totals
}

pub(crate) fn coprime(a: u64, b: u64) -> bool {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

/// Repeats one damage.
///
/// # Errors
///
/// Returns the violation, or the reason why the line is invalid.
pub fn replay(line: &str) -> Result<(), String> {
    let (target, seed, number) = parse_line(line)?;
    let damage = target.damage(seed, number);
    println!("{damage}");
    target.check_case(&damage, line).map(drop)
}

/// Parses a replay line: a target, a seed, and the number of a damage.
pub(crate) fn parse_line(line: &str) -> Result<(SweepTarget, u64, u64), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [engine, life, seed, number] = words.as_slice() else {
        return Err(format!("{line:?} is not ENGINE LIFE SEED NUMBER"));
    };
    let subject = TestSubject::by_name(engine).ok_or_else(|| format!("no engine {engine}"))?;
    let life = LifecycleState::by_name(life).ok_or_else(|| format!("no life {life}"))?;
    let parse = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
    Ok((SweepTarget::new(&subject, life), parse(seed)?, parse(number)?))
}

/// Generates the corruption test for one engine: `corruption_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! corruption_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn damage_in_any_state_never_causes_a_wrong_answer() {
                assert!($crate::alloc::is_counting(), "the test's allocator counts");
                let subject = $subject;
                // Engines with files of their own need more time for an opening.
                let cases = subject.ci_cases(match subject.engine {
                    "flex" => 3_000,
                    "cedrus" | "kreon" | "delsm" => 5_000,
                    _ => 8_000,
                });
                let budget = $crate::totals::Budget::cases(cases).workers(2);
                $crate::corruption::sweep::run(&subject, 1, budget).must_hold(cases);
            }
        }
    };
}
