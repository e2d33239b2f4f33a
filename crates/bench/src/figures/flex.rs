//! # Flex: the figures of `flex`, in its order
//!
//! ```text
//!   fill-random    each round: fresh databases, one store after the other; those of the last round stay open
//!   memory         ours, when what was filled is in its place
//!   get-* scan-*   rounds; all stores open, one working at a time
//!   update-zipf    ours after twice as many updates as there are pairs, then rounds
//!   ycsb           A, B, C, F, E and, since it adds pairs, D last
//!   cpu            ours alone, one thread
//!   read-tail      ours alone: the reads of YCSB A
//!   tail           ours alone: updates
//!   open           each round: a writer is killed, the database is opened
//!   device-bytes   ours alone, fresh: of the fill, then of five times as many updates as pairs
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::promises::flex as promises;
use super::side_by_side::{self as side, Open};
use super::{Bench, Group, SETTLE, THREADS, alone, loads};
use crate::Result;
use crate::drive::{Length, Phase};
use crate::keys::PAIR;
use crate::measure::{Written, disk_bytes, settle};
use crate::stage::{Choice, Mix, Op, Stage};
use crate::subjects::{Setting, Subject};
use crate::table::number;

/// Everything that `flex` promises.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    side_by_side(bench)?;
    alone::open_after_kill(bench, super::promises::OPEN)?;
    device_bytes(bench)
}

fn side_by_side(bench: &mut Bench<'_>) -> Result<()> {
    let all = [
        Group::FillRandom,
        Group::GetUniform,
        Group::GetMiss,
        Group::GetZipf,
        Group::Scan,
        Group::ScanDown,
        Group::UpdateZipf,
        Group::Ycsb,
        Group::Open,
    ];
    let ours = [Group::Cpu, Group::Memory, Group::ReadTail, Group::Tail];
    let subjects = match (bench.wants_any(&all), bench.wants_any(&ours)) {
        (true, _) => bench.subjects(0),
        (false, true) => vec![bench.options.engine],
        (false, false) => return Ok(()),
    };
    let stores = side::fill(bench, &subjects)?;
    side::memory(bench, &stores, promises::MEMORY);
    if bench.wants(Group::FillRandom) {
        bench.ratio(promises::FILL_RANDOM, loads::FILL_RANDOM, &[Subject::ROCKSDB]);
    }
    for (subject, store) in &stores {
        loads::check(&**store, bench.options.pairs)
            .map_err(|error| format!("{}: {error}", subject.name()))?;
    }
    gets(bench, &stores)?;
    for (group, row, op, promise) in [
        (Group::Scan, "scan-50", Op::Scan, promises::SCAN),
        (Group::ScanDown, "scan-50-down", Op::ScanDown, promises::SCAN_DOWN),
    ] {
        if bench.wants(group) {
            side::mix(bench, &stores, row, &Mix::only(op), Choice::Uniform)?;
            bench.ratio(promise, row, &[Subject::LMDB]);
        }
    }
    if bench.wants(Group::UpdateZipf) {
        side::updates(bench, &stores, promises::UPDATE_ZIPF)?;
    }
    ycsb(bench, &stores)?;
    side::cpu(bench, &stores, [promises::CPU_GET, promises::CPU_UPDATE])?;
    read_tail(bench, &stores)?;
    side::tail(bench, &stores)?;
    for (_, store) in stores {
        store.close()?;
    }
    Ok(())
}

fn gets(bench: &mut Bench<'_>, stores: &Open) -> Result<()> {
    let every: Vec<Subject> = Subject::peers().collect();
    for (group, wanted, promise, peers) in [
        (Group::GetUniform, loads::GET_UNIFORM, promises::GET_UNIFORM, &[Subject::LMDB][..]),
        (Group::GetZipf, loads::GET_ZIPF, promises::GET_ZIPF, &[Subject::LMDB]),
        (Group::GetMiss, loads::GET_MISS, promises::GET_MISS, &every),
    ] {
        if bench.wants(group) {
            side::gets(bench, stores, wanted)?;
            bench.ratio(promise, wanted.0, peers);
        }
    }
    Ok(())
}

/// Name, mix, choice, and the place among the promises.
const YCSB: [(&str, &str, Choice, usize); 6] = [
    ("ycsb-a", "get 50, update 50", Choice::Zipf, 0),
    ("ycsb-b", "get 95, update 5", Choice::Zipf, 1),
    ("ycsb-c", "get", Choice::Zipf, 2),
    ("ycsb-f", "get 50, read-modify-write 50", Choice::Zipf, 5),
    ("ycsb-e", "scan 95, insert 5", Choice::Zipf, 4),
    ("ycsb-d", "get 95, insert 5", Choice::Latest, 3),
];

fn ycsb(bench: &mut Bench<'_>, stores: &Open) -> Result<()> {
    if !bench.wants(Group::Ycsb) {
        return Ok(());
    }
    let peers: Vec<Subject> = Subject::peers().collect();
    let mut worst: Option<(f64, String)> = None;
    for (row, mix, choice, place) in YCSB {
        side::mix(bench, stores, row, &Mix::parse(mix)?, choice)?;
        bench.ratio(promises::YCSB[place], row, &[Subject::ROCKSDB]);
        let Some(best) = bench.results.ratio(row, &peers) else { continue };
        if worst.as_ref().is_none_or(|(least, _)| best.value < *least) {
            worst = Some((best.value, format!("{row}: {}", best.detail)));
        }
    }
    let (value, detail) = worst.map_or((None, String::new()), |(value, detail)| (Some(value), detail));
    bench.figure(promises::YCSB_BEST, value, detail);
    Ok(())
}

/// The reads of YCSB A, each one's latency.
fn read_tail(bench: &mut Bench<'_>, stores: &Open) -> Result<()> {
    let Some(store) = side::of_ours(stores).filter(|_| bench.wants(Group::ReadTail)) else { return Ok(()) };
    let mix = Mix::parse("get 50, update 50")?;
    let promises = [promises::READ_TAIL, promises::READ_LONGEST];
    side::Tail { name: "read-tail", promises, quantile: 0.999, unit: 1e3 }.measure(bench, |bench, round| {
        let stage = Stage {
            seed: 600 + round,
            latencies: true,
            timed: Some(Op::Get),
            ..side::stage(bench, &mix, Choice::Zipf, bench.options.tail)
        };
        Ok(stage.run(store)?.0)
    })
}

/// Updates of which device bytes and disk are measured, as a multiple of the pairs.
const MEASURED: u64 = 5;

/// What the device is given to write by a fill, and by updates; the disk taken meanwhile.
fn device_bytes(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::DeviceBytes) {
        return Ok(());
    }
    let dir = bench.place.fresh("space")?;
    let store = bench.options.engine.open(&dir, Setting::BUFFERED)?;
    let pairs = bench.options.pairs;
    let ratio = |bytes: u64, user: u64| bytes as f64 / (user * PAIR) as f64;
    let before = Written::read(&dir)?;
    let sample = loads::fill(&*store, pairs, None)?;
    settle(SETTLE);
    let written = Written::read(&dir)?.since(before);
    let detail =
        format!("process {}; {} k/s", number(ratio(written.process, pairs)), number(sample.rate() / 1e3));
    bench.figure(promises::DEVICE_FILL, Some(ratio(written.verdict(), pairs)), detail);

    let (before, stop) = (Written::read(&dir)?, AtomicBool::new(false));
    let (sample, disk) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| most_disk(&dir, &stop));
        let phase = Phase { final_sync: true, ..Phase::of(Length::Operations(pairs * MEASURED), None) };
        let sample = loads::update_zipf(&*store, pairs, THREADS, 400, phase);
        settle(SETTLE);
        stop.store(true, Ordering::Relaxed);
        (sample, watcher.join().unwrap_or_default())
    });
    let sample = sample?;
    let written = Written::read(&dir)?.since(before);
    let user = pairs * MEASURED;
    let detail =
        format!("process {}; {} k/s", number(ratio(written.process, user)), number(sample.rate() / 1e3));
    bench.figure(promises::DEVICE_UPDATE, Some(ratio(written.verdict(), user)), detail);
    let detail =
        format!("maximum of 20 samples a second; {} at the end", number(ratio(disk_bytes(&dir), pairs)));
    bench.figure(promises::DISK, Some(ratio(disk, pairs)), detail);
    store.close()?;
    bench.place.clear("space")
}

/// The most blocks of a directory, seen until told to stop.
fn most_disk(dir: &Path, stop: &AtomicBool) -> u64 {
    let mut most = 0;
    while !stop.load(Ordering::Relaxed) {
        most = most.max(disk_bytes(dir));
        std::thread::sleep(Duration::from_millis(50));
    }
    most
}
