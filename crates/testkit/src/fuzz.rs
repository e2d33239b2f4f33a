//! # Fuzz: decoders and whole databases fed with bytes nobody wrote
//!
//! The targets are functions of bytes; whoever finds the bytes may be libFuzzer (`fuzz/`, guided by
//! coverage, a crate of its own outside the workspace) or [`run`], a loop of mutations in plain Rust that
//! needs nothing and runs in CI.
//!
//! ```text
//!  record    a log's record, and back               root      a slot of ROOT behind its checksum
//!  segment   a segment's header and frames, behind  database  any file of a small database, mutated in several
//!            their checksums                                  places, checksums made right; opened, read, verified
//!  door      what is said through the door, both ways
//! ```
//!
//! Behind a right checksum any answer is fair; a panic, a loop without end, or memory beyond bounds is not.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_base::disk::sim::SimDisk;
use sheaf_base::disk::{Disk, How};
use sheaf_base::record::Record;
use sheaf_base::root::Slots;
use sheaf_base::segment::{Scan, Segment};
use sheaf_base::types::{LogId, SegmentId, Seq, StoreId};

use crate::alloc::measure;
use crate::corrupt::Fixture;
use crate::crash::history::NAMES;
use crate::crash::workload::{Random, Shape, generate, parse};
use crate::crash::world::World;
use crate::reseal::reseal;
use crate::stage::Subject;
use crate::totals::{Budget, Failure, Stopwatch, Toil, Totals};
use crate::trial::trial;

/// No opening and reading of a small database takes this many disk calls.
const FUSE: u64 = 100_000;
/// Memory that a case may hold.
const MEMORY: usize = 24 << 20;
/// Seconds a case may take.
const SLOW: f64 = 2.0;
/// Most bytes of an input that [`run`] makes.
const LONGEST: usize = 4096;

/// Inputs that earlier finds or formats gave, by target: replayed before anything else.
const CORPUS: [(Target, &[u8]); 13] = [
    (Target::Record, b"\x01\x01\x01\x01kv"),
    (Target::Record, b"\x02\x05\x03key"),
    (Target::Record, b"\x03\x01\x01\xff\xff\xff\xff\x0fk\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
    (Target::Record, b"\x01\xff\xff\xff\xff\xff\x01"),
    (Target::Record, b"\x01\x00\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f"),
    (Target::Root, b"SHEAFROT\x02\x00\x00\x00\xff\xff\xff\xff"),
    (Target::Segment, b"SHEAFSEG\x02\x00\x00\x00\x01\x00\x00\x00"),
    (Target::Door, b"\x02\x04\x00\x00\x00/a/b\x01\x02\x00\x00\x00/c\x01"),
    (Target::Door, b"\x0f\x01\x00\x00\x00\x01\x01\x00\x00\x00a\xff\xff\xff\xff\xff\xff\xff\xff"),
    (Target::Database, b"\x00\x00\x0c\x00\xff\x0d\x00\xff\x0e\x00\xff"),
    (Target::Database, b"\x04\x00\x04\x02\xff\x05\x02\xff\x06\x02\xff"),
    (Target::Database, b"\x07\x00\x30\x00\x01\x31\x00\x01"),
    (Target::Database, b"\x01\x62\x40\x4c"), // a bound of numbers beyond what a frame can hold
];

/// What is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum Target {
    Record,
    Root,
    Segment,
    Door,
    Database,
}

impl Target {
    /// All of them.
    pub const ALL: [Target; 5] =
        [Target::Record, Target::Root, Target::Segment, Target::Door, Target::Database];
}

/// What the targets need beside their input.
pub struct Ground {
    fixture: Fixture,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl Ground {
    /// A small database of the engine.
    #[must_use]
    pub fn new(subject: &Subject) -> Ground {
        let mut steps =
            parse("0.2=30 1.2=50 2.2=40 0.3=200 2.3=1500 persist work reopen").unwrap_or_default();
        steps.extend(generate(6, &Shape { steps: 25, busy: true, ..Shape::default() }));
        let fixture = Fixture::closed_of(subject, &steps);
        let read = |path: PathBuf| fixture.sim.read_file(&path).ok().map(|bytes| (path, bytes));
        let files = fixture.files().into_iter().filter_map(|(path, _)| read(path)).collect();
        Ground { fixture, files }
    }

    /// Feeds a target.
    pub fn feed(&self, target: Target, input: &[u8]) {
        match target {
            Target::Record => record(input),
            Target::Root => root(input),
            Target::Segment => segment(input),
            Target::Door => sheaf::feed_door(input),
            Target::Database => self.database(input),
        }
    }

    /// The first byte chooses a file; each three after it a place and what to do there.
    fn database(&self, input: &[u8]) {
        let Some((file, edits)) = input.split_first() else { return };
        let (path, bytes) = &self.files[usize::from(*file) % self.files.len()];
        let mut bytes = bytes.clone();
        let written = bytes.iter().rposition(|byte| *byte != 0).map_or(1, |last| last + 24);
        for edit in edits.as_chunks::<3>().0 {
            let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % written.min(bytes.len()).max(1);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = edit[2];
            }
        }
        reseal(&mut bytes);
        let world = World::of(&self.fixture.subject, self.fixture.sim.kill());
        world.sim.put_file(path, &bytes).expect("the disk has room");
        world.tap.set_fuse(FUSE);
        if let Ok(db) = world.open() {
            for name in NAMES {
                let Ok(Some(keyspace)) = db.existing_keyspace(name) else { continue };
                let Ok(pairs) = keyspace.iter() else { continue };
                for (key, _) in pairs.map_while(Result::ok).take(100) {
                    let _ = keyspace.get(&key);
                }
                let _ = keyspace.insert("new", "value");
                let _ = keyspace.remove("key2");
            }
            let _ = db.verify(drop);
            let _ = world.work(&db);
            let _ = db.close();
        }
        if let Ok(db) = world.open() {
            let _ = db.verify(drop);
        }
    }
}

fn record(input: &[u8]) {
    if let Ok(record) = Record::decode(input) {
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(Record::decode(&again), Ok(record), "a record does not survive its encoding");
    }
}

/// A disk with one file.
fn disk_with(path: &str, bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    let dir = Path::new(path).parent().expect("a file in a directory");
    disk.create_dir(dir).expect("an empty disk has room");
    disk.put_file(Path::new(path), bytes).expect("an empty disk has room");
    disk
}

fn root(input: &[u8]) {
    let mut bytes = input.to_vec();
    reseal(&mut bytes);
    let disk = disk_with("/db/ROOT.0", &bytes);
    let slots = Slots::new(Arc::new(disk), Path::new("/db"));
    let _ = slots.read();
    slots.check(&mut drop);
}

fn segment(input: &[u8]) {
    let mut bytes = input.to_vec();
    reseal(&mut bytes);
    let disk = disk_with("/log/0000000000000001.seg", &bytes);
    let mut store = [0; 16];
    store.copy_from_slice(&[input, &[0; 32]].concat()[16..32]);
    let store = StoreId(u128::from_le_bytes(store));
    for log in LogId::ALL {
        let Ok(segment) = Segment::open(&disk, Path::new("/log"), SegmentId(1), store, log, How::Read) else {
            continue;
        };
        let mut scan = Scan::new(&segment, 0, bytes.len() as u64);
        loop {
            for scanned in scan.by_ref() {
                let _ = (
                    scanned.frame.water(),
                    scanned.frame.sealed_to(),
                    Record::decode(scanned.frame.payload()),
                );
            }
            if !scan.resume(Seq(u64::MAX >> 16)) {
                break;
            }
        }
    }
}

/// Makes inputs out of inputs.
struct Mutator {
    random: Random,
    pool: Vec<(Target, Vec<u8>)>,
}

impl Mutator {
    fn new(ground: &Ground, seed: u64) -> Mutator {
        let mut pool: Vec<(Target, Vec<u8>)> = CORPUS.iter().map(|(t, bytes)| (*t, bytes.to_vec())).collect();
        for (_, bytes) in &ground.files {
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let start = bytes[..written.min(LONGEST)].to_vec();
            match bytes.get(..8) {
                Some(b"SHEAFROT") => pool.push((Target::Root, start)),
                Some(b"SHEAFSEG") => {
                    let mut first = start;
                    first[32..40].copy_from_slice(&1u64.to_le_bytes()); // the number that the target opens
                    pool.push((Target::Segment, first));
                }
                _ => {}
            }
        }
        Mutator { random: Random::new(seed), pool }
    }

    fn next(&mut self) -> (Target, Vec<u8>) {
        let target = match self.random.below(18) {
            0..6 => Target::Record,
            6..9 => Target::Root,
            9..12 => Target::Segment,
            12..14 => Target::Door,
            _ => Target::Database,
        };
        let mine: Vec<usize> = (0..self.pool.len()).filter(|at| self.pool[*at].0 == target).collect();
        let mut bytes = self.pool[mine[self.random.below(mine.len() as u64) as usize]].1.clone();
        for _ in 0..=self.random.below(6) {
            self.mutate(&mut bytes);
        }
        bytes.truncate(LONGEST);
        (target, bytes)
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        const ODD: [u64; 9] = [0, 1, 7, 0x7f, 0x80, 0xff, 0xffff, 0xffff_ffff, u64::MAX];
        let at = self.random.below(bytes.len() as u64 + 1) as usize;
        let odd = ODD[self.random.below(ODD.len() as u64) as usize].to_le_bytes();
        match self.random.below(7) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << self.random.below(8),
            2 if at < bytes.len() => bytes[at] = self.random.next() as u8,
            3 => {
                let width = [1, 2, 4, 8][self.random.below(4) as usize].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&odd[..width]);
            }
            4 => bytes.truncate(at),
            5 => {
                let more: Vec<u8> = (0..self.random.below(24)).map(|_| self.random.next() as u8).collect();
                bytes.splice(at..at, more);
            }
            _ => {
                let from = self.random.below(bytes.len() as u64 + 1) as usize;
                let piece = bytes[from.min(at)..from.max(at)].to_vec();
                bytes.extend(piece);
            }
        }
    }
}

/// One input. What is wrong, if anything.
fn case(ground: &Ground, target: Target, input: &[u8], line: &str) -> Result<(), String> {
    let watch = Toil::start();
    let (fed, peak) = measure(|| {
        trial(line, || {
            ground.feed(target, input);
            Ok(())
        })
    });
    fed?;
    if watch.seconds() > SLOW {
        return Err(format!("it takes {:.1} s", watch.seconds()));
    }
    if peak.held > MEMORY {
        return Err(format!("it asks for {peak:?}"));
    }
    Ok(())
}

fn replay_line(subject: &Subject, target: Target, input: &[u8]) -> String {
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "SHEAF_FUZZ='{} {target:?} {hex}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture fuzz::a_line_again",
        subject.name
    )
}

/// Replays the corpus, then mutates, until the budget is spent.
#[must_use]
pub fn run(subject: &Subject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let ground = Ground::new(subject);
    let mut mutator = Mutator::new(&ground, seed);
    let mut totals = Totals::new("fuzz", subject.name);
    let mut corpus = CORPUS.iter().map(|(target, bytes)| (*target, bytes.to_vec()));
    while totals.cases < budget.cases && watch.seconds() < budget.seconds && totals.failures.len() < 5 {
        let (target, input) = corpus.next().unwrap_or_else(|| mutator.next());
        totals.cases += 1;
        let replay = replay_line(subject, target, &input);
        if let Err(what) = case(&ground, target, &input, &replay) {
            totals.failures.push(Failure { replay, what });
        }
    }
    totals.distinct = totals.cases;
    totals.seconds = watch.seconds();
    totals
}

/// Runs one input again.
///
/// # Errors
///
/// What is wrong with it, or with the line.
pub fn replay(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [engine, target, hex] = words.as_slice() else {
        return Err(format!("{line:?} is not ENGINE TARGET HEX"));
    };
    let subject = Subject::named(engine).ok_or_else(|| format!("no engine {engine}"))?;
    let target = Target::ALL.into_iter().find(|t| format!("{t:?}") == *target).ok_or("no such target")?;
    let digits: Vec<u8> = hex.bytes().collect();
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|text| u8::from_str_radix(text, 16).ok());
    let input: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let ground = Ground::new(&subject);
    ground.feed(target, &input.ok_or("no bytes")?);
    Ok(())
}

/// The fuzzing of one engine's files: `fuzz_suite!(flat, Subject::flat())`.
#[macro_export]
macro_rules! fuzz_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn bytes_nobody_wrote_are_errors_and_nothing_worse() {
                $crate::fuzz::run(&$subject, 1, $crate::totals::Budget::cases(20_000)).must_hold(20_000);
            }
        }
    };
}
