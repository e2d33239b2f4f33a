//! Memory of the process beyond the accounted memory. A child process runs operation mixes on
//! several times more data than its budget, or is filled with many times more. A thread samples the
//! anonymous memory of the process.
//!
//! The counting allocator does not suffice: caches take much of their memory from the system
//! directly, and memory that an allocator keeps after a free counts too. Peaks between two samples
//! are not seen.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]
#![expect(clippy::disallowed_methods, reason = "a thread samples the memory of the process")]

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sheaf::{Database, Keyspace, KeyspaceOptions};
use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_testkit::crash::workload::TestRandom;

/// Environment variables of a child: its engine and directory.
const CHILD: [&str; 2] = ["SHEAF_PROCESS_ENGINE", "SHEAF_PROCESS_DIR"];
const BUDGET: u64 = 32 << 20;
/// Number of pairs: about three times the budget.
const PAIRS: u64 = 450_000;
const VALUE: usize = 200;
/// Duration of a mix, its threads, and the interval of the samples.
const MIX_DURATION: Duration = Duration::from_millis(1200);
const THREADS: u64 = 2;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum memory in percent of the budget. The system's allocator keeps some hundred KiB per
/// thread.
const MAX_PERCENT: u64 = 200;

/// Budget and number of pairs for a fill with twenty times as much data.
const SMALL: u64 = 12 << 20;
const LONG: u64 = 20 * SMALL / (16 + VALUE as u64);
/// Maximum memory in percent of that budget, with about 5 MiB for a background step and the
/// allocator.
const MAX_PERCENT_SMALL: u64 = 200;

/// Returns the anonymous memory of this process.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

fn key(index: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&index.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

type KeyspaceOp = fn(&Keyspace, u64);

fn get(keyspace: &Keyspace, index: u64) {
    assert!(keyspace.get(key(index)).unwrap().is_some());
}

fn update(keyspace: &Keyspace, index: u64) {
    keyspace.insert(key(index), [8; VALUE]).unwrap();
}

fn both(keyspace: &Keyspace, index: u64) {
    if index.is_multiple_of(2) { get(keyspace, index) } else { update(keyspace, index) }
}

fn scan(keyspace: &Keyspace, index: u64) {
    keyspace.range(&key(index)[..]..).unwrap().take(50).for_each(|pair| drop(pair.unwrap()));
}

fn count(keyspace: &Keyspace, _: u64) {
    assert_eq!(keyspace.len().unwrap(), PAIRS);
}

/// Returns the maximum growth over `before` while `work` runs.
fn peak_growth(before: u64, work: impl FnOnce()) -> u64 {
    let (is_over, most) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                most.fetch_max(anonymous().saturating_sub(before), Ordering::Relaxed);
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        work();
        is_over.store(true, Ordering::Relaxed);
    });
    most.into_inner()
}

fn drive(keyspace: &Keyspace, act: KeyspaceOp) {
    let until = SystemClock.now() + MIX_DURATION;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = TestRandom::new(thread);
                loop {
                    act(keyspace, random.below(PAIRS));
                    if SystemClock.now() >= until {
                        return;
                    }
                }
            });
        }
    });
}

/// Child process, which has its own memory.
#[test]
fn child_under_load() {
    let [Ok(engine), Ok(dir)] = CHILD.map(std::env::var) else { return };
    let before = anonymous();
    let db = Database::builder().memory(BUDGET).open(PathBuf::from(dir)).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(&engine)).unwrap();
    let mut worst = 0;
    let mut tell = |mix: &str, bytes: u64| {
        let share = bytes * 100 / BUDGET;
        println!("{engine}, {mix}: {share} hundredths of the budget, {:?}", db.stats().memory);
        worst = worst.max(share);
    };
    tell("fill", peak_growth(before, || (0..PAIRS).for_each(|index| update(&keyspace, index))));
    let mixes: [(&str, KeyspaceOp); 5] =
        [("get", get), ("update", update), ("get and update", both), ("scan", scan), ("count", count)];
    for (mix, act) in mixes {
        tell(mix, peak_growth(before, || drive(&keyspace, act)));
    }
    drop(keyspace);
    db.close().unwrap();
    assert!(worst >= 80, "the budget is used: {worst} hundredths of it");
    assert!(worst <= MAX_PERCENT, "{worst} hundredths of the budget");
}

/// Child process: its memory must not grow with the data.
#[test]
fn child_that_is_filled() {
    let [Ok(engine), Ok(dir)] = CHILD.map(std::env::var) else { return };
    let before = anonymous();
    let db = Database::builder().memory(SMALL).open(PathBuf::from(dir)).unwrap();
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(&engine)).unwrap();
    let mut worst = 0;
    for part in 0..10 {
        let fill = || (part * LONG / 10..(part + 1) * LONG / 10).for_each(|index| update(&keyspace, index));
        let share = peak_growth(before, fill) * 100 / SMALL;
        println!("{engine}, part {part}: {share} hundredths of the budget, {:?}", db.stats().memory);
        worst = worst.max(share);
    }
    drop(keyspace);
    db.close().unwrap();
    assert!(worst <= MAX_PERCENT_SMALL, "{worst} hundredths of the budget");
}

fn run(engine: &str, test: &str) {
    let name = format!("{test}-{engine}-{}", std::process::id());
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args([&format!("process_memory::{test}"), "--exact", "--nocapture"]);
    let output = child.env(CHILD[0], engine).env(CHILD[1], &dir).output().unwrap();
    let _ = std::fs::remove_dir_all(&dir);
    let [said, why] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    println!("{said}");
    assert!(output.status.success(), "{said}{why}");
}

#[test]
fn flex_stays_near_its_memory_budget() {
    run("flex", "child_under_load");
}

#[test]
fn kreon_stays_near_its_memory_budget() {
    run("kreon", "child_under_load");
}

#[test]
fn kreon_memory_does_not_grow_with_the_data() {
    run("kreon", "child_that_is_filled");
}
