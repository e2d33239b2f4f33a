//! # Backup: its speed relative to the device, and the updates during a backup
//!
//! ```text
//!  fill ─> the same bytes to a file, and sync ─> backup alone ─> updates alone
//!       ─> updates during a backup ─> incremental backup
//! ```
//!
//! Updates choose among the filled pairs by a Zipf distribution. They run for a phase before they
//! are counted, because GC has no work at first. Updates during a backup are counted from its begin
//! to its end. The rate of a backup is the bytes copied, divided by its time. An incremental backup
//! also counts the bytes compared. The time includes syncs and excludes the verification, unless
//! the row names it.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::sheaf::{BackupOptions, Database, Keyspace, KeyspaceOptions};

use crate::Result;
use crate::args;
use crate::keys::{BenchRandom, KeyLayout, KeyMaker, UDB_VALUE_BYTES, ValueGenerator};
use crate::measure::{disk_bytes, median, wait_until_idle};
use crate::progress::print_status;
use crate::run_dir::RunDir;
use crate::zipf::ZipfGenerator;

/// Upper bound on the bytes of a pair on disk, including its backups.
const DISK_BYTES_PER_PAIR: u64 = 1500;
/// Longest wait until the device is idle.
const MAX_QUIESCE: Duration = Duration::from_secs(20);

/// Figures of one round: MB/s, and thousand updates per second.
struct BackupRound {
    device_rate: f64,
    backup_rate: f64,
    verified_rate: f64,
    rate_under_updates: f64,
    incremental_rate: f64,
    updates_alone: f64,
    updates_during_backup: f64,
}

/// Measures all rounds and prints a table.
pub(crate) fn run(options: &args::BackupArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, options.pairs * DISK_BYTES_PER_PAIR)?;
    let rounds = (0..options.rounds).map(|_| round(options, &place)).collect::<Result<Vec<_>>>()?;
    let of = |field: fn(&BackupRound) -> f64| {
        median(&rounds.iter().map(field).collect::<Vec<_>>()).unwrap_or_default()
    };
    let (device, alone) = (of(|r| r.device_rate), of(|r| r.updates_alone));
    println!("| {} | MB/s | of the device |", options.subject.name());
    println!("|---|---|---|");
    println!("| write and sync of the same bytes | {device:.0} | |");
    for (step, rate) in [
        ("backup", of(|r| r.backup_rate)),
        ("backup with verification", of(|r| r.verified_rate)),
        ("backup during updates", of(|r| r.rate_under_updates)),
        ("incremental backup after the updates", of(|r| r.incremental_rate)),
    ] {
        println!("| {step} | {rate:.0} | {:.0} % |", 100.0 * rate / device);
    }
    let during = of(|r| r.updates_during_backup);
    println!(
        "\nupdate-zipf, {} threads: {alone:.0} k/s alone, {during:.0} during a backup ({:.0} %)",
        options.threads,
        100.0 * during / alone
    );
    Ok(())
}

fn round(options: &args::BackupArgs, place: &RunDir) -> Result<BackupRound> {
    let dir = place.fresh("backup")?;
    std::fs::create_dir_all(&dir)?;
    let db = Database::open(dir.join("db"))?;
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(options.subject.name()))?;
    let (mut keys, mut values) = (KeyMaker::new(KeyLayout::UDB), ValueGenerator::new());
    for index in 0..options.pairs {
        keyspace.insert(keys.make(index), values.make(index, 0, UDB_VALUE_BYTES))?;
    }
    db.persist()?;
    wait_until_idle(MAX_QUIESCE);
    print_status("filled");
    let device =
        rate(disk_bytes(&dir.join("db")), || write(&dir.join("plain"), disk_bytes(&dir.join("db"))))?;
    wait_until_idle(MAX_QUIESCE);
    let (backup, _) = copy(&db, &dir, "peace", BackupOptions::default().verify(false))?;
    let (verified, _) = copy(&db, &dir, "read", BackupOptions::default())?;
    wait_until_idle(MAX_QUIESCE);
    let updates = UpdateLoad { keyspace: &keyspace, pairs: options.pairs, threads: options.threads };
    let (alone, beside, busy) = updates.run_during(|done| {
        std::thread::sleep(options.phase); // until GC has reached its steady load
        let (began, before) = (Instant::now(), done.load(Ordering::Relaxed));
        std::thread::sleep(options.phase);
        let alone = per_second(done.load(Ordering::Relaxed) - before, began);
        let (began, before) = (Instant::now(), done.load(Ordering::Relaxed));
        let (busy, _) = copy(&db, &dir, "base", BackupOptions::default().verify(false))?;
        Ok((alone, per_second(done.load(Ordering::Relaxed) - before, began), busy))
    })?;
    let options = BackupOptions::default().verify(false).base(dir.join("base"));
    let (incremental, linked) = copy(&db, &dir, "next", options)?;
    print_status(&format!("{:.0} % of the incremental backup was linked", linked * 100.0));
    drop(keyspace);
    db.close()?;
    Ok(BackupRound {
        device_rate: device,
        backup_rate: backup,
        verified_rate: verified,
        rate_under_updates: busy,
        incremental_rate: incremental,
        updates_alone: alone,
        updates_during_backup: beside,
    })
}

/// Returns thousand operations per second.
fn per_second(done: u64, began: Instant) -> f64 {
    done as f64 / began.elapsed().as_secs_f64() / 1e3
}

/// Returns the MB/s of `bytes` during the time of `work`.
fn rate(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64() / 1e6)
}

/// Writes `bytes` bytes to a file from begin to end, syncs it, and removes it.
fn write(path: &Path, bytes: u64) -> Result<()> {
    let mut random = BenchRandom::new(1);
    let piece: Vec<u8> = (0..1 << 17).flat_map(|_| random.next().to_le_bytes()).collect();
    let mut file = File::create(path)?;
    for _ in 0..bytes.div_ceil(piece.len() as u64) {
        file.write_all(&piece)?;
    }
    file.sync_all()?;
    Ok(std::fs::remove_file(path)?)
}

/// Makes a backup. Returns its MB/s and the linked share of its bytes. Removes it unless it is
/// `base`.
fn copy(db: &Database, dir: &Path, name: &str, options: BackupOptions<'_>) -> Result<(f64, f64)> {
    let to = dir.join(name);
    let began = Instant::now();
    let report = db.backup(&to, options)?;
    let (all, took) = (report.copied_bytes + report.linked_bytes, began.elapsed().as_secs_f64());
    if !matches!(name, "base") {
        std::fs::remove_dir_all(&to)?;
    }
    Ok((all as f64 / took / 1e6, report.linked_bytes as f64 / all as f64))
}

/// A load of updates to one keyspace.
struct UpdateLoad<'a> {
    keyspace: &'a Keyspace,
    pairs: u64,
    threads: u64,
}

impl UpdateLoad<'_> {
    /// Runs updates until `work` has returned. Gives `work` the counter of updates.
    fn run_during<R>(&self, work: impl FnOnce(&AtomicU64) -> Result<R>) -> Result<R> {
        let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
        let (answer, ended) = std::thread::scope(|scope| {
            let (stop, done) = (&stop, &done);
            let threads: Vec<_> =
                (0..self.threads).map(|seed| scope.spawn(move || self.update(seed, stop, done))).collect();
            let answer = work(done);
            stop.store(true, Ordering::Relaxed);
            let ended: Result<Vec<()>> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|_| Err("a panic".into())))
                .collect();
            (answer, ended)
        });
        ended?;
        answer
    }

    fn update(&self, seed: u64, stop: &AtomicBool, done: &AtomicU64) -> Result<()> {
        let (zipf, mut random) = (ZipfGenerator::new(self.pairs), BenchRandom::new(seed + 7));
        let (mut keys, mut values) = (KeyMaker::new(KeyLayout::UDB), ValueGenerator::new());
        while !stop.load(Ordering::Relaxed) {
            let pair = zipf.pair(&mut random);
            self.keyspace.insert(keys.make(pair), values.make(pair, random.next(), UDB_VALUE_BYTES))?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}
