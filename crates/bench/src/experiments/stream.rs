//! # Stream: one large value, written and read in pieces, compared with a plain file
//!
//! ```text
//!   a plain file:  write ── sync ── drop cache ── read      the device's speed, in the same round
//!   a value:       write ── durable commit ── close ── drop cache ── open ── read and compare
//! ```
//!
//! The bytes are not zeros, and are compared when they are read. "Drop cache" removes the files
//! from the page cache. A reader of a value reads it once when it is opened, to verify it. Its
//! second pass finds the page cache, and the measured time includes both. Memory is the peak of the
//! memory without a file behind it while the value is written or read, less its value before.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ::sheaf::{Database, Durability, KeyspaceOptions};

use crate::Result;
use crate::args;
use crate::keys::BenchRandom;
use crate::measure::{drop_page_cache, median, memory_bytes};
use crate::promise_table::{markdown, number};
use crate::run_dir::RunDir;

/// Bytes of a call.
const CHUNK_BYTES: usize = 1 << 20;
/// Interval between two samples of the memory.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(5);
const KEY: &str = "stream";

/// Figures of one round: bytes per second, and bytes of memory.
struct StreamRound {
    plain_write: f64,
    plain_read: f64,
    write: f64,
    read: f64,
    memory: f64,
}

/// Measures all rounds and prints a table.
pub(crate) fn run(options: &args::StreamArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, options.bytes * 2)?;
    let rounds = (0..options.rounds).map(|_| round(options, &place)).collect::<Result<Vec<_>>>()?;
    let of = |field: fn(&StreamRound) -> f64| {
        median(&rounds.iter().map(field).collect::<Vec<_>>()).unwrap_or_default()
    };
    let mega = |field: fn(&StreamRound) -> f64| number(of(field) / 1e6);
    let head =
        ["engine", "MB", "write MB/s", "of a plain file's", "read MB/s", "of a plain file's", "memory MiB"];
    let row = vec![
        options.subject.name().to_owned(),
        number(options.bytes as f64 / 1e6),
        mega(|round| round.write),
        number(of(|round| round.write / round.plain_write)),
        mega(|round| round.read),
        number(of(|round| round.read / round.plain_read)),
        number(of(|round| round.memory) / f64::from(1 << 20)),
    ];
    print!("{}", markdown(&head.map(str::to_owned), &[row]));
    Ok(())
}

fn round(options: &args::StreamArgs, place: &RunDir) -> Result<StreamRound> {
    let dir = place.fresh("stream")?;
    std::fs::create_dir_all(&dir)?;
    let path = dir.join("plain");
    let plain_write = rate(options.bytes, || {
        let mut file = File::create(&path)?;
        write(&mut file, options.bytes)?;
        Ok(file.sync_all()?)
    })?;
    drop_page_cache(&dir)?;
    let plain_read = rate(options.bytes, || compare(&mut File::open(&path)?, options.bytes))?;
    let dir = place.fresh("stream")?;
    let before = memory_bytes();
    let ((write, read), most) = peak_memory(|| value(options, &dir))?;
    place.clear("stream")?;
    Ok(StreamRound { plain_write, plain_read, write, read, memory: most.saturating_sub(before) as f64 })
}

/// Writes and reads the value. Returns both speeds.
fn value(options: &args::StreamArgs, dir: &Path) -> Result<(f64, f64)> {
    let open = || Database::builder().memory(options.memory).open(dir);
    let db = open()?;
    let keyspace = db.keyspace("k", KeyspaceOptions::default().engine(options.subject.name()))?;
    let written = rate(options.bytes, || {
        let mut writer = keyspace.writer(KEY)?;
        write(&mut writer, options.bytes)?;
        Ok(writer.submit(Durability::Sync)?.wait()?)
    })?;
    drop(keyspace);
    db.close()?;
    drop_page_cache(dir)?;
    let db = open()?;
    let keyspace = db.keyspace("k", KeyspaceOptions::default())?;
    let read = rate(options.bytes, || {
        let mut reader = keyspace.reader(KEY)?.ok_or("the value is missing")?;
        compare(&mut reader, options.bytes)
    })?;
    drop(keyspace);
    db.close()?;
    Ok((written, read))
}

/// Returns bytes per second.
fn rate(bytes: u64, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    work()?;
    Ok(bytes as f64 / began.elapsed().as_secs_f64())
}

/// Returns the result of `work` and the peak of the memory during it.
fn peak_memory<T>(work: impl FnOnce() -> Result<T>) -> Result<(T, u64)> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut most = 0;
            while !done.load(Ordering::Relaxed) {
                most = most.max(memory_bytes());
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            most
        });
        let answer = work();
        done.store(true, Ordering::Relaxed);
        let most = watch.join().map_err(|_| "the watch over memory panicked")?;
        Ok((answer?, most))
    })
}

/// Returns the bytes to write. They are repeated, each time with another first word.
fn pattern() -> Vec<u8> {
    let mut random = BenchRandom::new(5);
    (0..CHUNK_BYTES / 8).flat_map(|_| random.below(u64::MAX).to_le_bytes()).collect()
}

/// Calls `each` with every piece of `bytes` bytes. A piece begins with its offset.
fn for_each_chunk(bytes: u64, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let mut piece = pattern();
    for start in (0..bytes).step_by(CHUNK_BYTES) {
        piece[..8].copy_from_slice(&start.to_le_bytes());
        each(&piece[..usize::try_from(bytes - start)?.min(CHUNK_BYTES)])?;
    }
    Ok(())
}

fn write(to: &mut impl Write, bytes: u64) -> Result<()> {
    for_each_chunk(bytes, |piece| Ok(to.write_all(piece)?))
}

/// Reads `bytes` bytes. Returns an error if they differ from the written ones.
fn compare(from: &mut impl Read, bytes: u64) -> Result<()> {
    let mut found = vec![0; CHUNK_BYTES];
    for_each_chunk(bytes, |piece| {
        let found = &mut found[..piece.len()];
        from.read_exact(found)?;
        if found == piece { Ok(()) } else { Err("the value read differs from the value written".into()) }
    })
}
