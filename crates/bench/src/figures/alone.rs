//! # Alone: openings after a kill, durable writes, device bytes, an empty database

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::side_by_side::wrap;
use super::{Bench, Group, SETTLE, THREADS, loads, promises};
use crate::data::Data;
use crate::drive::{Length, Phase};
use crate::host::Host;
use crate::keys::{PAIR, key};
use crate::measure::{Written, disk_bytes, median, settle};
use crate::progress::say;
use crate::runner::moment;
use crate::subjects::{Setting, Store, Subject};
use crate::table::{Promise, number};
use crate::{Result, machine};

const OPEN: &str = "open after kill -9 (s)";

/// Kills a writer of each store in mid-write and opens what it left. The time ends with the first get, so
/// that work put off until then counts.
pub(super) fn open_after_kill(bench: &mut Bench<'_>, promise: Promise) -> Result<()> {
    if !bench.wants(Group::Open) {
        return Ok(());
    }
    let mut detail = String::new();
    for round in 0..bench.options.rounds {
        for subject in bench.subjects(round) {
            let dir = bench.place.path().join(subject.name());
            let mut writer = Host::start(None)?;
            writer.open(subject, &dir, Setting::BUFFERED, None)?;
            writer.kill_in_mid_write(&Data::udb(bench.options.pairs), moment(round))?;
            let began = Instant::now();
            let store = subject.open(&dir, Setting::BUFFERED)?;
            let found = store.session()?.get(&key(0))?;
            let seconds = began.elapsed().as_secs_f64();
            if found != Some(0) {
                return Err(format!("{}: pair 0 is missing after the kill: {found:?}", subject.name()).into());
            }
            bench.note(OPEN, subject, round, seconds, "s");
            if let Some(inner) = store.inner() {
                let (replayed, scanned) = (inner.replayed / 1000, inner.scanned / 1000);
                detail = format!("{replayed} k records replayed, {scanned} k frames read");
                loads::check(&*store, bench.options.pairs)?;
            }
            store.close()?;
        }
    }
    let seconds = bench.results.median(OPEN, bench.options.engine);
    bench.figure(promise, seconds, detail);
    Ok(())
}

/// The rows of durable writes: threads, name, promise.
const DURABLE: [(u64, &str, Promise); 3] = [
    (1, "durable, 1 thread", promises::DURABLE_1),
    (8, "durable, 8 threads", promises::DURABLE_8),
    (32, "durable, 32 threads", promises::DURABLE_32),
];

/// Durable writes into fresh databases, the device's own syncs probed in each round.
pub(super) fn durable(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::Durable) {
        return Ok(());
    }
    for subject in bench.subjects(0) {
        bench.place.clear(subject.name())?;
    }
    let mut stores = Vec::new();
    for subject in bench.subjects(0) {
        let dir = bench.place.fresh(&format!("durable-{}", subject.name()))?;
        stores.push((subject, subject.open(&dir, Setting::DURABLE)?));
    }
    let time = bench.options.phase / 2;
    let phase = Phase::of(Length::Time(time), None);
    let mut device = Vec::new();
    for round in 0..bench.options.rounds {
        for (threads, row, _) in DURABLE {
            for (subject, store) in in_order(&stores, round) {
                if threads == 1 && *subject == Subject::FLAT {
                    let syncs = machine::syncs(bench.place.path(), time)? / 1e3;
                    say(&format!("the device's syncs: {} k/s", number(syncs)));
                    device.push(syncs);
                }
                let sample = loads::durable(&**store, threads, round, phase)?;
                bench.note(row, *subject, round, sample.rate() / 1e3, "k/s");
            }
        }
    }
    let ours = bench.results.of(DURABLE[0].1, Subject::FLAT);
    let ratios: Vec<f64> = ours.iter().zip(&device).map(|(ours, device)| ours / device).collect();
    let detail = format!(
        "{} k/s; the device {} k/s",
        number(median(ours).unwrap_or(0.0)),
        number(median(&device).unwrap_or(0.0))
    );
    bench.rows.push(DURABLE[0].2.measured(median(&ratios), detail));
    for (_, row, promise) in &DURABLE[1..] {
        bench.ratio(*promise, row, &[Subject::ROCKSDB, Subject::LEVELDB]);
    }
    for (subject, store) in stores {
        store.close()?;
        bench.place.clear(&format!("durable-{}", subject.name()))?;
    }
    Ok(())
}

type Open = [(Subject, Box<dyn Store>)];

fn in_order(stores: &Open, round: u64) -> Vec<&(Subject, Box<dyn Store>)> {
    if round % 2 == 1 { stores.iter().rev().collect() } else { stores.iter().collect() }
}

/// Updates before the measured ones, as a multiple of the pairs: a cleaner's victims need that long to
/// reach their steady state.
const STEADY: u64 = 6;
/// Updates measured, as a multiple of the pairs.
const MEASURED: u64 = 2;

/// What the device is given to write in steady state, for each of the two bounds on the disk.
pub(super) fn device_bytes(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::DeviceBytes) {
        return Ok(());
    }
    for subject in bench.subjects(0) {
        bench.place.clear(subject.name())?;
    }
    for (space_limit, bytes, disk) in [
        (1.6, promises::DEVICE_BYTES_TIGHT, promises::DISK_TIGHT),
        (1.8, promises::DEVICE_BYTES_WIDE, promises::DISK_WIDE),
    ] {
        let dir = bench.place.fresh("space")?;
        let store = Subject::FLAT.open(&dir, Setting { space_limit, ..Setting::BUFFERED })?;
        let pairs = bench.options.pairs;
        loads::fill(&*store, pairs, None)?;
        wrap(&*store, pairs, STEADY)?;
        let steady = steady(&*store, &dir, pairs)?;
        let user = (pairs * MEASURED * PAIR) as f64;
        let per_user = |bytes: u64| bytes as f64 / user;
        let device = steady.written.device.map_or("not available".to_owned(), |n| number(per_user(n)));
        let detail = format!(
            "device {device}, process {}; log {} + cleaner {} + checkpoints {}; {} k/s",
            number(per_user(steady.written.process)),
            number(per_user(steady.appended)),
            number(per_user(steady.moved)),
            number(per_user(steady.checkpoints)),
            number(steady.rate / 1e3)
        );
        say(&format!(
            "device bytes per user byte at {space_limit}: {detail}; disk {} × live",
            number(steady.disk)
        ));
        bench.rows.push(bytes.measured(Some(per_user(steady.written.verdict())), detail));
        let logs = format!("largest of 20 samples a second; the log's files alone {}", number(steady.log));
        bench.rows.push(disk.measured(Some(steady.disk), logs));
        store.close()?;
        bench.place.clear("space")?;
    }
    Ok(())
}

struct Steady {
    written: Written,
    appended: u64,
    moved: u64,
    checkpoints: u64,
    rate: f64,
    /// Largest ratio of the directory to the live entries, as far as those are known.
    disk: f64,
    /// Largest ratio of the log's files to the live entries.
    log: f64,
}

fn steady(store: &dyn Store, dir: &Path, pairs: u64) -> Result<Steady> {
    let stop = AtomicBool::new(false);
    store.sync()?;
    let (before, inner_before) = (Written::read(dir)?, store.inner().unwrap_or_default());
    let (sample, (disk, log)) = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| watch_disk(store, dir, &stop));
        let phase = Phase { final_sync: true, ..Phase::of(Length::Operations(pairs * MEASURED), None) };
        let sample = loads::update_zipf(store, pairs, THREADS, 400, phase);
        stop.store(true, Ordering::Relaxed);
        (sample, watcher.join().unwrap_or((f64::NAN, f64::NAN)))
    });
    let sample = sample?;
    let inner = store.inner().unwrap_or_default();
    Ok(Steady {
        written: Written::read(dir)?.since(before),
        appended: inner.appended - inner_before.appended,
        moved: inner.moved - inner_before.moved,
        checkpoints: inner.checkpoint_bytes - inner_before.checkpoint_bytes,
        rate: sample.rate(),
        disk,
        log,
    })
}

/// The largest ratios to the live entries seen: of the directory, and of the log's files in it.
fn watch_disk(store: &dyn Store, dir: &Path, stop: &AtomicBool) -> (f64, f64) {
    let (mut disk, mut log) = (0.0f64, 0.0f64);
    while !stop.load(Ordering::Relaxed) {
        let inner = store.inner().unwrap_or_default();
        let live = inner.live_bytes.max(1) as f64;
        disk = disk.max(disk_bytes(dir) as f64 / live);
        log = log.max(inner.log_bytes as f64 / live);
        std::thread::sleep(Duration::from_millis(50));
    }
    (disk, log)
}

/// An empty database with one keyspace, while it is open and after it was closed: the larger.
pub(super) fn empty(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::Empty) {
        return Ok(());
    }
    let dir = bench.place.fresh("empty")?;
    let store = Subject::FLAT.open(&dir, Setting::BUFFERED)?;
    settle(SETTLE);
    let open = disk_bytes(&dir);
    store.close()?;
    let closed = disk_bytes(&dir);
    let kib = |bytes: u64| bytes as f64 / 1024.0;
    let detail = format!("open {}, closed {}", number(kib(open)), number(kib(closed)));
    bench.rows.push(promises::EMPTY.measured(Some(kib(open.max(closed))), detail));
    Ok(())
}
