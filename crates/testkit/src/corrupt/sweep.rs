//! # Sweep: every byte, sector, length and file of an engine's database, in every state of its life
//!
//! ```text
//!  lives:   fresh | loaded | cleaning (killed in the middle of background work) | crashed (power cut) | closed
//!           | single (one keyspace, each commit synced, killed: the newest segment alone says what was durable)
//!  a pass:  every written byte in one of 11 ways, 1/16 of the others · every written sector in 8 ways
//!           · 1/8 of all lengths up to the last written byte, longer by zeros and garbage · every file missing, empty,
//!           as it was, another's, of an older and a newer format
//! ```
//!
//! A budget smaller than a pass visits places spread evenly over it; a larger one goes on with the next
//! pass, which damages in the next way. Seed and number determine a damage: that is the replay line.
//!
//! Each case has a second and memory for twice the files and a MiB; one that needs more has failed.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sheaf_base::disk::SECTOR;
use sheaf_base::sync::Mutex;

use super::{Damage, Fixture, inspect};
use crate::alloc::{Peak, measure};
use crate::crash::workload::{Random, Shape, Step, generate, parse};
use crate::reseal::reseal;
use crate::stage::Subject;
use crate::totals::{Budget, Failure, Stopwatch, Toil, Totals};
use crate::trial::trial;

/// Seconds a case may take.
const SLOW: f64 = 1.0;
/// Bytes a case may hold beyond what the undamaged database needs, beside twice its files.
const SPARE: usize = 1 << 20;
/// Of the errors about a place, this share must point into its 4 KiB after an orderly end ...
const PLACED: f64 = 0.95;
/// ... and this share else: where the end of a log is damaged, all that can be said may be which commits miss.
const PLACED_AT_THE_END: f64 = 0.95;
/// Errors that point elsewhere, shown if they are too many.
const EXAMPLES: usize = 40;
/// Ways to damage a byte.
const WAYS: u64 = 11;
/// A pass damages each of so many bytes that were never written.
const BLANK: u64 = 16;
/// Ways to damage a sector.
const SECTOR_WAYS: u64 = 8;
/// A pass cuts at each of so many lengths.
const LENGTHS: u64 = 8;

/// A state of a database's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum Life {
    Fresh,
    Loaded,
    Cleaning,
    Crashed,
    Closed,
    Single,
}

impl Life {
    /// All of them.
    pub const ALL: [Life; 6] =
        [Life::Fresh, Life::Loaded, Life::Cleaning, Life::Crashed, Life::Closed, Life::Single];

    pub(crate) fn is_closed(self) -> bool {
        matches!(self, Life::Fresh | Life::Closed)
    }

    pub(crate) fn named(name: &str) -> Option<Life> {
        Life::ALL.into_iter().find(|life| format!("{life:?}") == name)
    }
}

fn busy(seed: u64, steps: usize) -> Vec<Step> {
    let mut all = parse("0.2=30 1.2=50 2.2=40 0.3=200 2.3=1500 persist").expect("written by hand");
    all.extend(generate(seed, &Shape { steps, busy: true, ..Shape::default() }));
    all.extend(parse("persist").expect("written by hand"));
    all
}

fn single() -> String {
    let synced = (0..30).map(|n| format!("S[0.{}={}] ", n % 9, 150 + n));
    format!("{}0.9=10", synced.collect::<String>())
}

fn last() -> Vec<Step> {
    parse("S[0.4=600,1.4=80,2.4=1200] 0.5=33 1.5=44 2.5=9").expect("written by hand")
}

/// A database of the engine in this state, one of the same in an earlier state, and a stranger.
fn fixtures(subject: &Subject, life: Life) -> [Fixture; 3] {
    let churn = "B[0.2=250,0.3=250,2.2=250] B[0.2=240,1.4=90,2.3=250] ".repeat(14);
    let churn = parse(&format!("0.4=60 2.4=60 {churn} persist")).expect("written by hand");
    let fixture = match life {
        Life::Fresh => Fixture::closed_of(subject, &parse("0.2=10").expect("written by hand")),
        Life::Loaded => Fixture::killed_of(subject, &[busy(4, 50), last()].concat()),
        Life::Cleaning => Fixture::working(subject, &churn),
        Life::Crashed => Fixture::cut(subject, &busy(5, 40), &last()),
        Life::Closed => Fixture::closed_of(subject, &[busy(3, 50), last()].concat()),
        Life::Single => Fixture::killed_of(subject, &parse(&single()).expect("written by hand")),
    };
    [fixture, Fixture::killed_of(subject, &busy(3, 25)), Fixture::closed_of(subject, &busy(9, 30))]
}

/// One fixture and all that can be done to it.
pub(crate) struct Target {
    pub(crate) life: Life,
    pub(crate) fixture: Fixture,
    /// The same, of which nothing needs to be there.
    pub(crate) forgetful: Fixture,
    older: Fixture,
    files: Vec<(PathBuf, Vec<u8>)>,
    /// Places of bytes in written sectors, and of all others.
    written: Vec<(u32, u32)>,
    blank: Vec<(u32, u32)>,
    /// First bytes of written sectors.
    sectors: Vec<(u32, u32)>,
    /// Files and their lengths up to the last written byte.
    lengths: Vec<(u32, u32)>,
    whole: Vec<Damage>,
    /// What the undamaged database asks for.
    usual: Peak,
    bytes: usize,
}

impl Target {
    pub(crate) fn new(subject: &Subject, life: Life) -> Target {
        let [fixture, older, foreign] = fixtures(subject, life);
        let files: Vec<(PathBuf, Vec<u8>)> =
            fixture.files().into_iter().map(|(path, _)| (path.clone(), fixture.bytes(&path))).collect();
        let mut whole = fixture.whole_files(&older, &foreign);
        whole.extend(files.iter().flat_map(|(path, bytes)| other_formats(path, bytes)));
        let mut target = Target {
            life,
            written: Vec::new(),
            blank: Vec::new(),
            sectors: Vec::new(),
            lengths: Vec::new(),
            whole,
            usual: Peak::default(),
            bytes: files.iter().map(|(_, bytes)| bytes.len()).sum(),
            forgetful: Fixture {
                from: 0,
                sim: fixture.sim.clone(),
                history: fixture.history.clone(),
                subject: subject.clone(),
            },
            fixture,
            older,
            files,
        };
        target.survey();
        let nothing = Damage::Write(target.files[0].0.clone(), 0, Vec::new(), "nothing");
        let (answer, usual) = measure(|| inspect(&target.fixture, &nothing));
        assert!(answer.is_ok_and(|answer| answer.exact), "the undamaged database is sound");
        target.usual = usual;
        target
    }

    pub(crate) fn len_of(&self, path: &Path) -> u64 {
        self.files.iter().find(|(file, _)| file == path).map_or(0, |(_, bytes)| bytes.len() as u64)
    }

    fn survey(&mut self) {
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
                    self.blank.extend(places);
                }
            }
            let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last as u32 + 1);
            self.lengths.extend((0..end).map(|len| (file, len)));
        }
    }

    /// Cases of a pass.
    pub(crate) fn breadth(&self) -> u64 {
        self.written.len() as u64
            + self.blank.len() as u64 / BLANK
            + self.sectors.len() as u64 * SECTOR_WAYS
            + self.lengths.len() as u64 / LENGTHS
            + self.files.len() as u64 * 4
            + self.whole.len() as u64
    }

    /// The damage of this number, for this seed.
    pub(crate) fn damage(&self, seed: u64, number: u64) -> Damage {
        let (pass, mut at) = (number / self.breadth(), number % self.breadth());
        let mut random = Random::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        if let Some(place) = self.written.get(at as usize) {
            return self.byte(*place, seed, pass);
        }
        at -= self.written.len() as u64;
        if at < self.blank.len() as u64 / BLANK {
            return self.byte(self.blank[(at * BLANK + (pass + seed) % BLANK) as usize], seed, pass);
        }
        at -= self.blank.len() as u64 / BLANK;
        if at < self.sectors.len() as u64 * SECTOR_WAYS {
            let place = self.sectors[(at / SECTOR_WAYS) as usize];
            return self.sector(place, at % SECTOR_WAYS, &mut random);
        }
        at -= self.sectors.len() as u64 * SECTOR_WAYS;
        if at < self.lengths.len() as u64 / LENGTHS {
            let (file, len) = self.lengths[(at * LENGTHS + (pass + seed) % LENGTHS) as usize];
            return Damage::Length(self.files[file as usize].0.clone(), u64::from(len));
        }
        at -= self.lengths.len() as u64 / LENGTHS;
        if at < self.files.len() as u64 * 4 {
            return self.longer((at / 4) as usize, at % 2 == 0, &mut random);
        }
        self.whole[(at - self.files.len() as u64 * 4) as usize].clone()
    }

    fn byte(&self, (file, at): (u32, u32), seed: u64, pass: u64) -> Damage {
        let (path, bytes) = &self.files[file as usize];
        let (was, offset) = (bytes[at as usize], u64::from(at));
        let other = |byte: u8| if byte == was { was ^ 0x5a } else { byte };
        match (Random::new(seed ^ offset).next().wrapping_add(pass)) % WAYS {
            bit @ 0..8 => Damage::Flip(path.clone(), offset, bit as u8),
            8 => Damage::Write(path.clone(), offset, vec![other(0)], "byte zeroed"),
            9 => Damage::Write(path.clone(), offset, vec![other(0xff)], "byte filled"),
            _ => Damage::Write(path.clone(), offset, vec![was.wrapping_add(1)], "byte one up"),
        }
    }

    fn sector(&self, (file, at): (u32, u32), way: u64, random: &mut Random) -> Damage {
        let (path, bytes) = &self.files[file as usize];
        let (start, offset) = (at as usize, u64::from(at));
        let len = bytes.len().min(start + SECTOR as usize) - start;
        let write = |content: Vec<u8>, what| Damage::Write(path.clone(), offset, content, what);
        let piece = |place: (u32, u32)| {
            let from = &self.files[place.0 as usize].1[place.1 as usize..];
            from[..from.len().min(len)].to_vec()
        };
        let (here, elsewhere): (Vec<_>, Vec<_>) = self.sectors.iter().partition(|place| place.0 == file);
        let any =
            |of: &[(u32, u32)], random: &mut Random| of.get(random.below(of.len() as u64) as usize).copied();
        match way {
            0 => write(vec![0; len], "sector zeroed"),
            1 => write(vec![0xff; len], "sector filled"),
            2 => write((0..len).map(|_| random.next() as u8).collect(), "sector of garbage"),
            3 => write(piece(any(&here, random).unwrap_or((file, at))), "another sector of the file"),
            4 => write(piece(any(&elsewhere, random).unwrap_or((file, at))), "a sector of another file"),
            5 => match any(&here, random).filter(|place| place.1 != at) {
                Some(place) => Damage::Swap(path.clone(), offset, u64::from(place.1)),
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

    fn longer(&self, file: usize, zeros: bool, random: &mut Random) -> Damage {
        let (path, bytes) = &self.files[file];
        let more = 1 + random.below(6000);
        if zeros {
            return Damage::Length(path.clone(), bytes.len() as u64 + more);
        }
        let mut longer = bytes.clone();
        longer.extend((0..more).map(|_| random.next() as u8));
        Damage::File(path.clone(), longer, "longer by garbage")
    }

    /// Does it and judges the answer. Whether an error said where, if that could be said.
    fn judge(&self, damage: &Damage, replay: &str) -> Result<Option<bool>, String> {
        let watch = Toil::start();
        let is_shorter = matches!(damage, Damage::Length(path, len) if *len < self.len_of(path));
        // What says that more was durable may be cut off with it, unless the end was orderly.
        let fixture = if is_shorter && !self.life.is_closed() { &self.forgetful } else { &self.fixture };
        let (answer, peak) = measure(|| trial(replay, || inspect(fixture, damage)));
        let answer = answer?;
        if watch.seconds() > SLOW {
            return Err(format!("it takes {:.1} s", watch.seconds()));
        }
        let most = self.usual.held + 2 * self.bytes + SPARE;
        if peak.held > most || peak.largest > most {
            return Err(format!("it asks for {peak:?}, where {most} are enough"));
        }
        if answer.error
            && damage.place().1.is_some()
            && !answer.placed
            && std::env::var_os("SHEAF_ELSEWHERE").is_some()
        {
            println!("ELSEWHERE {:?} | {damage} | {:?}", self.life, answer.said);
        }
        let is_placed = answer.error && damage.place().1.is_some();
        Ok(is_placed.then_some(answer.placed))
    }
}

/// The file as an older and as a newer version of the format would have it.
fn other_formats(path: &Path, bytes: &[u8]) -> Vec<Damage> {
    if bytes.len() < 12 || !bytes.starts_with(b"SHEAF") {
        return Vec::new();
    }
    let mut all = Vec::new();
    let now = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    for (version, what) in [(now.wrapping_sub(1), "of an older format"), (now + 1, "of a newer format")] {
        let mut other = bytes.to_vec();
        other[8..12].copy_from_slice(&version.to_le_bytes());
        reseal(&mut other);
        all.push(Damage::File(path.to_path_buf(), other, what));
    }
    all
}

fn replay_line(subject: &Subject, life: Life, seed: u64, number: u64) -> String {
    format!(
        "SHEAF_CORRUPT='{} {life:?} {seed} {number}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture corruption::replay",
        subject.name
    )
}

/// Damages databases of `subject` until the budget is spent; lives take turns.
#[must_use]
pub fn run(subject: &Subject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let targets: Vec<Target> = Life::ALL.into_iter().map(|life| Target::new(subject, life)).collect();
    let all: u64 = targets.iter().map(Target::breadth).sum();
    let totals = Mutex::new(Totals::new("corruption", subject.name));
    let next = AtomicU64::new(0);
    let [errors, placed]: [[AtomicU64; 2]; 2] = Default::default(); // after an orderly end, else
    let elsewhere: Mutex<Vec<String>> = Mutex::default();
    // Coprime to what a pass has, so that any stretch of numbers is spread over the whole of it.
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
                let here = at < target.breadth();
                at -= if here { 0 } else { target.breadth() };
                here
            });
            let Some(target) = target else { continue };
            let number = pass * target.breadth() + at;
            let damage = target.damage(seed, number);
            let replay = replay_line(subject, target.life, seed, number);
            let judged = target.judge(&damage, &replay);
            let kind = usize::from(!target.life.is_closed());
            let mut totals = totals.lock();
            totals.cases += 1;
            match judged {
                Ok(said) => {
                    errors[kind].fetch_add(u64::from(said.is_some()), Ordering::Relaxed);
                    placed[kind].fetch_add(u64::from(said == Some(true)), Ordering::Relaxed);
                    if said == Some(false) && elsewhere.lock().len() < EXAMPLES {
                        elsewhere.lock().push(format!("{:?}, {damage}", target.life));
                    }
                }
                Err(what) => totals
                    .failures
                    .push(Failure { replay, what: format!("{:?}, {damage}: {what}", target.life) }),
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
    for (kind, least) in [PLACED, PLACED_AT_THE_END].into_iter().enumerate() {
        let (errors, placed) = (errors[kind].load(Ordering::Relaxed), placed[kind].load(Ordering::Relaxed));
        let end = ["an orderly end", "any other"][kind];
        println!("after {end} {placed} of {errors} errors point into the damaged 4 KiB");
        if (placed as f64) < least * errors as f64 {
            let examples = elsewhere.lock().join("\n  ");
            let what =
                format!("of {errors} errors only {placed} point into the damaged 4 KiB; not:\n  {examples}");
            totals.failures.push(Failure { replay: String::new(), what });
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

/// Does one damage again.
///
/// # Errors
///
/// What is wrong with the answer, or with the line.
pub fn replay(line: &str) -> Result<(), String> {
    let (target, seed, number) = named_by(line)?;
    let damage = target.damage(seed, number);
    println!("{damage}");
    target.judge(&damage, line).map(drop)
}

/// What a line names: a target, a seed, and the number of a damage.
pub(crate) fn named_by(line: &str) -> Result<(Target, u64, u64), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [engine, life, seed, number] = words.as_slice() else {
        return Err(format!("{line:?} is not ENGINE LIFE SEED NUMBER"));
    };
    let subject = Subject::named(engine).ok_or_else(|| format!("no engine {engine}"))?;
    let life = Life::named(life).ok_or_else(|| format!("no life {life}"))?;
    let parse = |text: &str| text.parse::<u64>().map_err(|e| format!("{text}: {e}"));
    Ok((Target::new(&subject, life), parse(seed)?, parse(number)?))
}

/// The corrupter's tests for one engine: `corruption_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! corruption_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            use super::*;

            #[test]
            fn damage_anywhere_in_any_state_is_never_a_wrong_answer() {
                assert!($crate::alloc::is_counting(), "the test's allocator counts");
                let subject = $subject;
                // With files of an engine's own an opening costs up to three times as much.
                let cases = subject.in_ci(match subject.engine {
                    "flex" => 10_000,
                    "cedrus" | "kreon" | "delsm" => 15_000,
                    _ => 25_000,
                });
                let budget = $crate::totals::Budget::cases(cases).workers(2);
                $crate::corrupt::sweep::run(&subject, 1, budget).must_hold(cases);
            }
        }
    };
}
