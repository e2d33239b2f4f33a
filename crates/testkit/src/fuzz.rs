//! # Fuzzing: decoders and whole databases with arbitrary bytes
//!
//! The targets are functions of bytes. The bytes come from libFuzzer (crate `fuzz/` outside of the
//! workspace, guided by coverage), or from [`run`], a mutation loop for CI.
//!
//! ```text
//!  record    a record of a log, decoded and encoded
//!  segment   header and frames of a segment, with valid checksums
//!  root      a ROOT slot with a valid checksum
//!  ipc       messages of the IPC socket
//!  database  a file of a small database, mutated in several places, with valid checksums;
//!            opened, read and verified
//! ```
//!
//! With a valid checksum any result is allowed, except a panic, an endless loop, and memory beyond
//! the limit.

#![allow(clippy::cast_possible_truncation)] // numbers here are small by construction

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_log::record::Record;
use sheaf_log::root::RootSlots;
use sheaf_log::segment::{Segment, SegmentScan};
use sheaf_log::types::{LogId, SegmentId, Seq, StoreId};
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_sim::SimDisk;

use crate::alloc::measure;
use crate::checksums::fix_checksums;
use crate::corruption::StoredDatabase;
use crate::crash::history::KEYSPACE_NAMES;
use crate::crash::machine::TestMachine;
use crate::crash::workload::{TestRandom, WorkloadShape, generate, parse_steps};
use crate::fixture::TestSubject;
use crate::supervise::run_supervised;
use crate::totals::{Budget, HarnessFailure, Stopwatch, ThreadCpuTimer, Totals};

/// No opening and reading of a small database makes this many disk calls.
const CALL_LIMIT: u64 = 100_000;
/// Bytes that a case may allocate.
const MAX_MEMORY: usize = 24 << 20;
/// CPU seconds that a case may take.
const MAX_CASE_SECONDS: f64 = 2.0;
/// Maximum length of an input that [`run`] generates.
const MAX_INPUT: usize = 4096;

/// Inputs from earlier failures or from format limits, by target. They run first.
const CORPUS: [(FuzzTarget, &[u8]); 13] = [
    (FuzzTarget::Record, b"\x01\x01\x01\x01kv"),
    (FuzzTarget::Record, b"\x02\x05\x03key"),
    (
        FuzzTarget::Record,
        b"\x03\x01\x01\xff\xff\xff\xff\x0fk\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
    ),
    (FuzzTarget::Record, b"\x01\xff\xff\xff\xff\xff\x01"),
    (FuzzTarget::Record, b"\x01\x00\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f"),
    (FuzzTarget::Root, b"SHEAFROT\x02\x00\x00\x00\xff\xff\xff\xff"),
    (FuzzTarget::Segment, b"SHEAFSEG\x02\x00\x00\x00\x01\x00\x00\x00"),
    (FuzzTarget::IpcMessage, b"\x02\x04\x00\x00\x00/a/b\x01\x02\x00\x00\x00/c\x01"),
    (FuzzTarget::IpcMessage, b"\x0f\x01\x00\x00\x00\x01\x01\x00\x00\x00a\xff\xff\xff\xff\xff\xff\xff\xff"),
    (FuzzTarget::Database, b"\x00\x00\x0c\x00\xff\x0d\x00\xff\x0e\x00\xff"),
    (FuzzTarget::Database, b"\x04\x00\x04\x02\xff\x05\x02\xff\x06\x02\xff"),
    (FuzzTarget::Database, b"\x07\x00\x30\x00\x01\x31\x00\x01"),
    (FuzzTarget::Database, b"\x01\x62\x40\x4c"), // a bound of numbers above the maximum of a frame
];

/// Decoder or database that receives the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the module
pub enum FuzzTarget {
    Record,
    Root,
    Segment,
    IpcMessage,
    Database,
}

impl FuzzTarget {
    /// All targets.
    pub const ALL: [FuzzTarget; 5] = [
        FuzzTarget::Record,
        FuzzTarget::Root,
        FuzzTarget::Segment,
        FuzzTarget::IpcMessage,
        FuzzTarget::Database,
    ];
}

/// State that targets need in addition to their input.
pub struct FuzzContext {
    stored_db: StoredDatabase,
    files: Vec<(PathBuf, Vec<u8>)>,
}

impl FuzzContext {
    /// Creates a small database of the engine.
    #[must_use]
    pub fn new(subject: &TestSubject) -> FuzzContext {
        let mut steps =
            parse_steps("0.2=30 1.2=50 2.2=40 0.3=200 2.3=1500 persist work reopen").unwrap_or_default();
        steps.extend(generate(
            6,
            &WorkloadShape { steps: 25, has_background_work: true, ..WorkloadShape::default() },
        ));
        let stored_db = StoredDatabase::closed_with(subject, &steps);
        let read = |path: PathBuf| stored_db.sim.read_file(&path).ok().map(|bytes| (path, bytes));
        let files = stored_db.files().into_iter().filter_map(|(path, _)| read(path)).collect();
        FuzzContext { stored_db, files }
    }

    /// Runs a target on an input.
    pub fn run_input(&self, target: FuzzTarget, input: &[u8]) {
        match target {
            FuzzTarget::Record => fuzz_record(input),
            FuzzTarget::Root => fuzz_root(input),
            FuzzTarget::Segment => fuzz_segment(input),
            FuzzTarget::IpcMessage => sheaf::fuzz_ipc_message(input),
            FuzzTarget::Database => self.fuzz_database(input),
        }
    }

    /// Mutates a file: the first byte of the input selects it, and each following three bytes are
    /// an offset and a new byte.
    fn fuzz_database(&self, input: &[u8]) {
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
        fix_checksums(&mut bytes);
        let machine = TestMachine::for_subject(&self.stored_db.subject, self.stored_db.sim.kill());
        machine.sim.put_file(path, &bytes).expect("the disk has room");
        machine.recording_disk.set_call_limit(CALL_LIMIT);
        if let Ok(db) = machine.open() {
            for name in KEYSPACE_NAMES {
                let Ok(Some(keyspace)) = db.open_keyspace(name) else { continue };
                let Ok(pairs) = keyspace.iter() else { continue };
                for (key, _) in pairs.map_while(Result::ok).take(100) {
                    let _ = keyspace.get(&key);
                }
                let _ = keyspace.insert("new", "value");
                let _ = keyspace.remove("key2");
            }
            let _ = db.verify(drop);
            let _ = machine.run_background(&db);
            let _ = db.close();
        }
        if let Ok(db) = machine.open() {
            let _ = db.verify(drop);
        }
    }
}

fn fuzz_record(input: &[u8]) {
    if let Ok(record) = Record::decode(input) {
        let mut again = Vec::new();
        record.encode(&mut again);
        assert_eq!(Record::decode(&again), Ok(record), "a record does not survive its encoding");
    }
}

/// Returns a disk with one file.
fn disk_with(path: &str, bytes: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    let dir = Path::new(path).parent().expect("a file in a directory");
    disk.create_dir(dir).expect("an empty disk has room");
    disk.put_file(Path::new(path), bytes).expect("an empty disk has room");
    disk
}

fn fuzz_root(input: &[u8]) {
    let mut bytes = input.to_vec();
    fix_checksums(&mut bytes);
    let disk = disk_with("/db/ROOT.0", &bytes);
    let slots = RootSlots::new(Arc::new(disk), Path::new("/db"));
    let _ = slots.read();
    slots.check(&mut drop);
}

fn fuzz_segment(input: &[u8]) {
    let mut bytes = input.to_vec();
    fix_checksums(&mut bytes);
    let disk = disk_with("/log/0000000000000001.seg", &bytes);
    let mut store = [0; 16];
    store.copy_from_slice(&[input, &[0; 32]].concat()[16..32]);
    let store = StoreId(u128::from_le_bytes(store));
    for log in LogId::ALL {
        let Ok(segment) = Segment::open(&disk, Path::new("/log"), SegmentId(1), store, log, OpenMode::Read)
        else {
            continue;
        };
        let mut scan = SegmentScan::new(&segment, 0, bytes.len() as u64);
        loop {
            for scanned in scan.by_ref() {
                let _ = (
                    scanned.frame.watermark(),
                    scanned.frame.successor(),
                    Record::decode(scanned.frame.payload()),
                );
            }
            if !scan.resume(Seq(u64::MAX >> 16)) {
                break;
            }
        }
    }
}

/// Generates inputs by mutation of other inputs.
struct Mutator {
    random: TestRandom,
    pool: Vec<(FuzzTarget, Vec<u8>)>,
}

impl Mutator {
    fn new(context: &FuzzContext, seed: u64) -> Mutator {
        let mut pool: Vec<(FuzzTarget, Vec<u8>)> =
            CORPUS.iter().map(|(t, bytes)| (*t, bytes.to_vec())).collect();
        for (_, bytes) in &context.files {
            let written = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let start = bytes[..written.min(MAX_INPUT)].to_vec();
            match bytes.get(..8) {
                Some(b"SHEAFROT") => pool.push((FuzzTarget::Root, start)),
                Some(b"SHEAFSEG") => {
                    let mut first = start;
                    // The id that the target opens.
                    first[32..40].copy_from_slice(&1u64.to_le_bytes());
                    pool.push((FuzzTarget::Segment, first));
                }
                _ => {}
            }
        }
        Mutator { random: TestRandom::new(seed), pool }
    }

    fn next(&mut self) -> (FuzzTarget, Vec<u8>) {
        let target = match self.random.below(18) {
            0..6 => FuzzTarget::Record,
            6..9 => FuzzTarget::Root,
            9..12 => FuzzTarget::Segment,
            12..14 => FuzzTarget::IpcMessage,
            _ => FuzzTarget::Database,
        };
        let mine: Vec<usize> = (0..self.pool.len()).filter(|at| self.pool[*at].0 == target).collect();
        let mut bytes = self.pool[mine[self.random.below(mine.len() as u64) as usize]].1.clone();
        for _ in 0..=self.random.below(6) {
            self.mutate(&mut bytes);
        }
        bytes.truncate(MAX_INPUT);
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

/// Runs one input. Returns the violation, if any.
fn case(context: &FuzzContext, target: FuzzTarget, input: &[u8], line: &str) -> Result<(), String> {
    let watch = ThreadCpuTimer::start();
    let (fed, peak) = measure(|| {
        run_supervised(line, || {
            context.run_input(target, input);
            Ok(())
        })
    });
    fed?;
    if watch.seconds() > MAX_CASE_SECONDS {
        return Err(format!("it takes {:.1} s", watch.seconds()));
    }
    if peak.peak_bytes > MAX_MEMORY {
        return Err(format!("it asks for {peak:?}"));
    }
    Ok(())
}

fn replay_line(subject: &TestSubject, target: FuzzTarget, input: &[u8]) -> String {
    let hex: String = input.iter().map(|byte| format!("{byte:02x}")).collect();
    format!(
        "SHEAF_FUZZ='{} {target:?} {hex}' cargo test -p sheaf-testkit --test suites -- --ignored --nocapture fuzz::replay_line",
        subject.name
    )
}

/// Runs the corpus and then mutated inputs, until the budget is spent.
#[must_use]
pub fn run(subject: &TestSubject, seed: u64, budget: Budget) -> Totals {
    let watch = Stopwatch::start();
    let context = FuzzContext::new(subject);
    let mut mutator = Mutator::new(&context, seed);
    let mut totals = Totals::new("fuzz", subject.name);
    let mut corpus = CORPUS.iter().map(|(target, bytes)| (*target, bytes.to_vec()));
    while totals.cases < budget.cases && watch.seconds() < budget.seconds && totals.failures.len() < 5 {
        let (target, input) = corpus.next().unwrap_or_else(|| mutator.next());
        totals.cases += 1;
        let replay = replay_line(subject, target, &input);
        if let Err(what) = case(&context, target, &input, &replay) {
            totals.failures.push(HarnessFailure { replay, message: what });
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
/// Returns the reason why the line is invalid. A violation panics.
pub fn replay(line: &str) -> Result<(), String> {
    let words: Vec<&str> = line.split(' ').collect();
    let [engine, target, hex] = words.as_slice() else {
        return Err(format!("{line:?} is not ENGINE TARGET HEX"));
    };
    let subject = TestSubject::by_name(engine).ok_or_else(|| format!("no engine {engine}"))?;
    let target = FuzzTarget::ALL.into_iter().find(|t| format!("{t:?}") == *target).ok_or("no such target")?;
    let digits: Vec<u8> = hex.bytes().collect();
    let byte =
        |pair: &[u8]| std::str::from_utf8(pair).ok().and_then(|text| u8::from_str_radix(text, 16).ok());
    let input: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
    let context = FuzzContext::new(&subject);
    context.run_input(target, &input.ok_or("no bytes")?);
    Ok(())
}

/// Generates the fuzz test for one engine's files: `fuzz_suite!(flat, TestSubject::flat())`.
#[macro_export]
macro_rules! fuzz_suite {
    ($module:ident, $subject:expr) => {
        mod $module {
            #[test]
            fn arbitrary_bytes_cause_errors_only() {
                $crate::fuzz::run(&$subject, 1, $crate::totals::Budget::cases(8_000)).must_hold(8_000);
            }
        }
    };
}
