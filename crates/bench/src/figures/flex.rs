//! # Figures of flex, in the order of measurement
//!
//! ```text
//!   fill-random    each round: fresh databases, store by store; the last round's stay open
//!   memory         ours, after the fill is settled
//!   get-* scan-*   rounds; all stores open, one of them working at a time
//!   update-zipf    ours after twice as many updates as there are pairs, then rounds
//!   ycsb           A, B, C, F, E and finally D, because it inserts pairs
//!   cpu            ours alone, one thread
//!   read-tail      ours alone: the reads of YCSB A
//!   tail           ours alone: updates
//!   open           each round: a writer is killed, the database is opened
//!   device-bytes   ours alone, fresh: of the fill, then of five times as many updates as pairs
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::peer_comparison::{self as side, OpenStoreList};
use super::promises::flex as promises;
use super::{FigureGroup, FiguresRun, MAX_QUIESCE, THREADS, durable_and_open, workloads};
use crate::Result;
use crate::drive::{DriveOptions, PhaseLength};
use crate::keys::UDB_PAIR_BYTES;
use crate::measure::{WrittenBytes, disk_bytes, wait_until_idle};
use crate::phase_spec::{KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::promise_table::number;
use crate::subjects::{BenchSubject, StoreSetting};

/// Measures all promises of `flex`.
pub(super) fn run(bench: &mut FiguresRun<'_>) -> Result<()> {
    side_by_side(bench)?;
    durable_and_open::open_after_kill(bench, super::promises::OPEN)?;
    device_bytes(bench)
}

fn side_by_side(bench: &mut FiguresRun<'_>) -> Result<()> {
    let all = [
        FigureGroup::FillRandom,
        FigureGroup::GetUniform,
        FigureGroup::GetMiss,
        FigureGroup::GetZipf,
        FigureGroup::Scan,
        FigureGroup::ScanDown,
        FigureGroup::UpdateZipf,
        FigureGroup::Ycsb,
        FigureGroup::Open,
    ];
    let ours = [FigureGroup::Cpu, FigureGroup::Memory, FigureGroup::ReadTail, FigureGroup::Tail];
    let subjects = match (bench.any_selected(&all), bench.any_selected(&ours)) {
        (true, _) => bench.subjects(0),
        (false, true) => vec![bench.options.engine],
        (false, false) => return Ok(()),
    };
    let stores = side::fill(bench, &subjects)?;
    side::memory(bench, &stores, promises::MEMORY);
    if bench.is_selected(FigureGroup::FillRandom) {
        bench.ratio(promises::FILL_RANDOM, workloads::FILL_RANDOM, &[BenchSubject::ROCKSDB]);
    }
    for (subject, store) in &stores {
        workloads::check(&**store, bench.options.pairs)
            .map_err(|error| format!("{}: {error}", subject.name()))?;
    }
    gets(bench, &stores)?;
    for (group, row, op, promise) in [
        (FigureGroup::Scan, "scan-50", PairOperation::Scan, promises::SCAN),
        (FigureGroup::ScanDown, "scan-50-down", PairOperation::ScanDown, promises::SCAN_DOWN),
    ] {
        if bench.is_selected(group) {
            side::mix(bench, &stores, row, &OperationMix::only(op), KeyChoice::Uniform)?;
            bench.ratio(promise, row, &[BenchSubject::LMDB]);
        }
    }
    if bench.is_selected(FigureGroup::UpdateZipf) {
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

fn gets(bench: &mut FiguresRun<'_>, stores: &OpenStoreList) -> Result<()> {
    let every: Vec<BenchSubject> = BenchSubject::peers().collect();
    for (group, wanted, promise, peers) in [
        (FigureGroup::GetUniform, workloads::GET_UNIFORM, promises::GET_UNIFORM, &[BenchSubject::LMDB][..]),
        (FigureGroup::GetZipf, workloads::GET_ZIPF, promises::GET_ZIPF, &[BenchSubject::LMDB]),
        (FigureGroup::GetMiss, workloads::GET_MISS, promises::GET_MISS, &every),
    ] {
        if bench.is_selected(group) {
            side::gets(bench, stores, wanted)?;
            bench.ratio(promise, wanted.0, peers);
        }
    }
    Ok(())
}

/// Name, mix and choice of each workload, and the index of its promise.
const YCSB: [(&str, &str, KeyChoice, usize); 6] = [
    ("ycsb-a", "get 50, update 50", KeyChoice::Zipf, 0),
    ("ycsb-b", "get 95, update 5", KeyChoice::Zipf, 1),
    ("ycsb-c", "get", KeyChoice::Zipf, 2),
    ("ycsb-f", "get 50, read-modify-write 50", KeyChoice::Zipf, 5),
    ("ycsb-e", "scan 95, insert 5", KeyChoice::Zipf, 4),
    ("ycsb-d", "get 95, insert 5", KeyChoice::Latest, 3),
];

fn ycsb(bench: &mut FiguresRun<'_>, stores: &OpenStoreList) -> Result<()> {
    if !bench.is_selected(FigureGroup::Ycsb) {
        return Ok(());
    }
    let peers: Vec<BenchSubject> = BenchSubject::peers().collect();
    let mut worst: Option<(f64, String)> = None;
    for (row, mix, choice, place) in YCSB {
        side::mix(bench, stores, row, &OperationMix::parse(mix)?, choice)?;
        bench.ratio(promises::YCSB[place], row, &[BenchSubject::ROCKSDB]);
        let Some(best) = bench.results.ratio(row, &peers) else { continue };
        if worst.as_ref().is_none_or(|(least, _)| best.value < *least) {
            worst = Some((best.value, format!("{row}: {}", best.detail)));
        }
    }
    let (value, detail) = worst.map_or((None, String::new()), |(value, detail)| (Some(value), detail));
    bench.figure(promises::YCSB_BEST, value, detail);
    Ok(())
}

/// Measures the latency of each read of YCSB A.
fn read_tail(bench: &mut FiguresRun<'_>, stores: &OpenStoreList) -> Result<()> {
    let Some(store) = side::own_store(stores).filter(|_| bench.is_selected(FigureGroup::ReadTail)) else {
        return Ok(());
    };
    let mix = OperationMix::parse("get 50, update 50")?;
    let promises = [promises::READ_TAIL, promises::READ_LONGEST];
    side::TailLatency { name: "read-tail", promises, quantile: 0.999, unit: 1e3 }.measure(
        bench,
        |bench, round| {
            let phase_spec = PhaseSpec {
                seed: 600 + round,
                latencies: true,
                timed: Some(PairOperation::Get),
                ..side::phase_spec(bench, &mix, KeyChoice::Zipf, bench.options.tail)
            };
            Ok(phase_spec.run(store)?.0)
        },
    )
}

/// Updates for device bytes and disk space, as a multiple of the pairs.
const MEASURED_UPDATES: u64 = 5;

/// Measures the bytes written to the device by a fill and by updates, and the disk space during the
/// updates.
fn device_bytes(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::DeviceBytes) {
        return Ok(());
    }
    let dir = bench.run_dir.fresh("space")?;
    let store = bench.options.engine.open(&dir, StoreSetting::BUFFERED)?;
    let pairs = bench.options.pairs;
    let ratio = |bytes: u64, user: u64| bytes as f64 / (user * UDB_PAIR_BYTES) as f64;
    let before = WrittenBytes::read(&dir)?;
    let sample = workloads::fill(&*store, pairs, None)?;
    wait_until_idle(MAX_QUIESCE);
    let written = WrittenBytes::read(&dir)?.since(before);
    let detail =
        format!("process {}; {} k/s", number(ratio(written.process, pairs)), number(sample.rate() / 1e3));
    bench.figure(promises::DEVICE_FILL, Some(ratio(written.device_or_process(), pairs)), detail);

    let (before, stop) = (WrittenBytes::read(&dir)?, AtomicBool::new(false));
    let (sample, disk) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| peak_disk_bytes(&dir, &stop));
        let phase = DriveOptions {
            final_sync: true,
            ..DriveOptions::new(PhaseLength::Operations(pairs * MEASURED_UPDATES), None)
        };
        let sample = workloads::update_zipf(&*store, pairs, THREADS, 400, phase);
        wait_until_idle(MAX_QUIESCE);
        stop.store(true, Ordering::Relaxed);
        (sample, watcher.join().unwrap_or_default())
    });
    let sample = sample?;
    let written = WrittenBytes::read(&dir)?.since(before);
    let user = pairs * MEASURED_UPDATES;
    let detail =
        format!("process {}; {} k/s", number(ratio(written.process, user)), number(sample.rate() / 1e3));
    bench.figure(promises::DEVICE_UPDATE, Some(ratio(written.device_or_process(), user)), detail);
    let detail =
        format!("maximum of 20 samples a second; {} at the end", number(ratio(disk_bytes(&dir), pairs)));
    bench.figure(promises::DISK, Some(ratio(disk, pairs)), detail);
    store.close()?;
    bench.run_dir.clear("space")
}

/// Returns the peak of the disk space of a directory until `stop` is set.
fn peak_disk_bytes(dir: &Path, stop: &AtomicBool) -> u64 {
    let mut most = 0;
    while !stop.load(Ordering::Relaxed) {
        most = most.max(disk_bytes(dir));
        std::thread::sleep(Duration::from_millis(50));
    }
    most
}
