//! # Openings after a kill, durable writes, device bytes, and an empty database

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::peer_comparison::overwrite_log;
use super::{FigureGroup, FiguresRun, MAX_QUIESCE, THREADS, promises, workloads};
use crate::data::DataSpec;
use crate::drive::{DriveOptions, PhaseLength};
use crate::keys::{UDB_PAIR_BYTES, key};
use crate::measure::{WrittenBytes, disk_bytes, median, wait_until_idle};
use crate::progress::print_status;
use crate::promise_table::{PromisedFigure, number};
use crate::runner::kill_delay;
use crate::store_process::StoreProcess;
use crate::subjects::{BenchStore, BenchSubject, StoreSetting};
use crate::{Result, machine};

const OPEN_ROW: &str = "open after kill -9 (s)";

/// Kills a writer of each store while it writes, and opens its database. The time ends with the
/// first get, so that work that the opening defers is included.
pub(super) fn open_after_kill(bench: &mut FiguresRun<'_>, promise: PromisedFigure) -> Result<()> {
    if !bench.is_selected(FigureGroup::Open) {
        return Ok(());
    }
    let mut detail = String::new();
    for round in 0..bench.options.rounds {
        for subject in bench.subjects(round) {
            let dir = bench.run_dir.path().join(subject.name());
            let mut writer = StoreProcess::start(None)?;
            writer.open(subject, &dir, StoreSetting::BUFFERED, None)?;
            writer.kill_during_writes(&DataSpec::udb(bench.options.pairs), kill_delay(round))?;
            let began = Instant::now();
            let store = subject.open(&dir, StoreSetting::BUFFERED)?;
            let found = store.session()?.get(&key(0))?;
            let seconds = began.elapsed().as_secs_f64();
            if found != Some(0) {
                return Err(format!("{}: pair 0 is missing after the kill: {found:?}", subject.name()).into());
            }
            bench.record_value(OPEN_ROW, subject, round, seconds, "s");
            if let Some(inner) = store.sheaf_figures() {
                let (replayed, scanned) = (inner.replayed / 1000, inner.scanned / 1000);
                detail = format!("{replayed} k records replayed, {scanned} k frames read");
                workloads::check(&*store, bench.options.pairs)?;
            }
            store.close()?;
        }
    }
    let seconds = bench.results.median(OPEN_ROW, bench.options.engine);
    bench.figure(promise, seconds, detail);
    Ok(())
}

/// Rows of the durable writes: threads, name, promise.
const DURABLE: [(u64, &str, PromisedFigure); 3] = [
    (1, "durable, 1 thread", promises::DURABLE_1),
    (8, "durable, 8 threads", promises::DURABLE_8),
    (32, "durable, 32 threads", promises::DURABLE_32),
];

/// Measures durable writes to fresh databases. Probes the syncs of the device in each round.
pub(super) fn durable(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::Durable) {
        return Ok(());
    }
    for subject in bench.subjects(0) {
        bench.run_dir.clear(subject.name())?;
    }
    let mut stores = Vec::new();
    for subject in bench.subjects(0) {
        let dir = bench.run_dir.fresh(&format!("durable-{}", subject.name()))?;
        stores.push((subject, subject.open(&dir, StoreSetting::DURABLE)?));
    }
    let time = bench.options.phase / 2;
    let phase = DriveOptions::new(PhaseLength::Time(time), None);
    let mut device = Vec::new();
    for round in 0..bench.options.rounds {
        for (threads, row, _) in DURABLE {
            for (subject, store) in in_order(&stores, round) {
                if threads == 1 && *subject == BenchSubject::FLAT {
                    let syncs = machine::syncs(bench.run_dir.path(), time)? / 1e3;
                    print_status(&format!("the device's syncs: {} k/s", number(syncs)));
                    device.push(syncs);
                }
                let sample = workloads::durable(&**store, threads, round, phase)?;
                bench.record_value(row, *subject, round, sample.rate() / 1e3, "k/s");
            }
        }
    }
    let ours = bench.results.rounds_of(DURABLE[0].1, BenchSubject::FLAT);
    let ratios: Vec<f64> = ours.iter().zip(&device).map(|(ours, device)| ours / device).collect();
    let detail = format!(
        "{} k/s; the device {} k/s",
        number(median(ours).unwrap_or(0.0)),
        number(median(&device).unwrap_or(0.0))
    );
    bench.rows.push(DURABLE[0].2.measured(median(&ratios), detail));
    for (_, row, promise) in &DURABLE[1..] {
        bench.ratio(*promise, row, &[BenchSubject::ROCKSDB, BenchSubject::LEVELDB]);
    }
    for (subject, store) in stores {
        store.close()?;
        bench.run_dir.clear(&format!("durable-{}", subject.name()))?;
    }
    Ok(())
}

type OpenStores = [(BenchSubject, Box<dyn BenchStore>)];

fn in_order(stores: &OpenStores, round: u64) -> Vec<&(BenchSubject, Box<dyn BenchStore>)> {
    if round % 2 == 1 { stores.iter().rev().collect() } else { stores.iter().collect() }
}

/// Updates before the measured ones, as a multiple of the pairs. GC needs that many to reach its
/// steady state.
const WARM_UPDATES: u64 = 6;
/// Updates measured, as a multiple of the pairs.
const MEASURED_UPDATES: u64 = 2;

/// Measures the bytes written to the device in steady state, for each of the two bounds on the
/// disk.
pub(super) fn device_bytes(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::DeviceBytes) {
        return Ok(());
    }
    for subject in bench.subjects(0) {
        bench.run_dir.clear(subject.name())?;
    }
    for (space_limit, bytes, disk) in [
        (1.6, promises::DEVICE_BYTES_LOW_SPACE, promises::DISK_LOW_SPACE),
        (1.8, promises::DEVICE_BYTES_HIGH_SPACE, promises::DISK_HIGH_SPACE),
    ] {
        let dir = bench.run_dir.fresh("space")?;
        let store = BenchSubject::FLAT
            .open(&dir, StoreSetting { space_limit: Some(space_limit), ..StoreSetting::BUFFERED })?;
        let pairs = bench.options.pairs;
        workloads::fill(&*store, pairs, None)?;
        overwrite_log(&*store, pairs, WARM_UPDATES)?;
        let steady = steady(&*store, &dir, pairs)?;
        let user = (pairs * MEASURED_UPDATES * UDB_PAIR_BYTES) as f64;
        let per_user = |bytes: u64| bytes as f64 / user;
        let device = steady.written.device.map_or("not available".to_owned(), |n| number(per_user(n)));
        let detail = format!(
            "device {device}, process {}; log {} + cleaner {} + checkpoints {}; {} k/s",
            number(per_user(steady.written.process)),
            number(per_user(steady.appended)),
            number(per_user(steady.gc_bytes)),
            number(per_user(steady.checkpoints)),
            number(steady.rate / 1e3)
        );
        print_status(&format!(
            "device bytes per user byte at {space_limit}: {detail}; disk {} × live",
            number(steady.disk_ratio)
        ));
        bench.rows.push(bytes.measured(Some(per_user(steady.written.device_or_process())), detail));
        let logs =
            format!("largest of 20 samples a second; the log's files alone {}", number(steady.log_ratio));
        bench.rows.push(disk.measured(Some(steady.disk_ratio), logs));
        store.close()?;
        bench.run_dir.clear("space")?;
    }
    Ok(())
}

struct SteadyState {
    written: WrittenBytes,
    appended: u64,
    gc_bytes: u64,
    checkpoints: u64,
    rate: f64,
    /// Largest ratio of the directory to the live entries, among the samples.
    disk_ratio: f64,
    /// Largest ratio of the log files to the live entries, among the samples.
    log_ratio: f64,
}

fn steady(store: &dyn BenchStore, dir: &Path, pairs: u64) -> Result<SteadyState> {
    let stop = AtomicBool::new(false);
    store.sync()?;
    let (before, inner_before) = (WrittenBytes::read(dir)?, store.sheaf_figures().unwrap_or_default());
    let (sample, (disk, log)) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch_disk(store, dir, &stop));
        let phase = DriveOptions {
            final_sync: true,
            ..DriveOptions::new(PhaseLength::Operations(pairs * MEASURED_UPDATES), None)
        };
        let sample = workloads::update_zipf(store, pairs, THREADS, 400, phase);
        stop.store(true, Ordering::Relaxed);
        (sample, watcher.join().unwrap_or((f64::NAN, f64::NAN)))
    });
    let sample = sample?;
    let inner = store.sheaf_figures().unwrap_or_default();
    Ok(SteadyState {
        written: WrittenBytes::read(dir)?.since(before),
        appended: inner.appended - inner_before.appended,
        gc_bytes: inner.gc_bytes - inner_before.gc_bytes,
        checkpoints: inner.checkpoint_bytes - inner_before.checkpoint_bytes,
        rate: sample.rate(),
        disk_ratio: disk,
        log_ratio: log,
    })
}

/// Returns the largest ratios to the live entries: of the directory, and of the log files in it.
fn watch_disk(store: &dyn BenchStore, dir: &Path, stop: &AtomicBool) -> (f64, f64) {
    let (mut disk, mut log) = (0.0f64, 0.0f64);
    while !stop.load(Ordering::Relaxed) {
        let inner = store.sheaf_figures().unwrap_or_default();
        let live = inner.live_bytes.max(1) as f64;
        disk = disk.max(disk_bytes(dir) as f64 / live);
        log = log.max(inner.log_bytes as f64 / live);
        std::thread::sleep(Duration::from_millis(50));
    }
    (disk, log)
}

/// Measures an empty database with one keyspace, while it is open and after its close. The larger
/// size counts.
pub(super) fn empty(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::Empty) {
        return Ok(());
    }
    let dir = bench.run_dir.fresh("empty")?;
    let store = BenchSubject::FLAT.open(&dir, StoreSetting::BUFFERED)?;
    wait_until_idle(MAX_QUIESCE);
    let open = disk_bytes(&dir);
    store.close()?;
    let closed = disk_bytes(&dir);
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let detail = format!("open {}, closed {}", number(kib(open)), number(kib(closed)));
    bench.rows.push(promises::EMPTY.measured(Some(kib(open.max(closed))), detail));
    Ok(())
}
