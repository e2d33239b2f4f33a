//! One value of a GiB as a stream: how fast, beside a plain file, and in how much memory.
//!
//! `cargo run --release -p sheaf --example stream -- [DIRECTORY [MIB]]`

#![allow(clippy::disallowed_methods, reason = "measures time, and a plain file beside the database")]

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use sheaf::{Database, Durability, KeyspaceOptions};

/// Bytes given and taken at a time.
const CHUNK: usize = 1 << 20;

type Answer<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Answer<()> {
    let mut words = std::env::args().skip(1);
    let dir = PathBuf::from(words.next().unwrap_or_else(|| "target/stream".to_owned()));
    let mib: u64 = words.next().map_or(Ok(1024), |word| word.parse())?;
    std::fs::create_dir_all(&dir)?;
    let chunk: Vec<u8> = (0..CHUNK).map(|at| (at % 251).to_le_bytes()[0]).collect();
    for round in 1..=3 {
        let plain = plain(&dir.join("plain"), &chunk, mib)?;
        let (written, read) = streamed(&dir.join("db"), &chunk, mib)?;
        println!(
            "round {round}: written and synced {written:.0} MiB/s, a plain file {plain:.0} ({:.0} %); checked and read {read:.0}; \
             most memory {:.1} MiB",
            written / plain * 100.0,
            most_memory_mib()?
        );
    }
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// MiB a second of what was begun then.
fn rate(mib: u64, began: Instant) -> f64 {
    mib as f64 / began.elapsed().as_secs_f64()
}

/// A file written and synced.
fn plain(path: &Path, chunk: &[u8], mib: u64) -> Answer<f64> {
    let began = Instant::now();
    let mut file = File::create(path)?;
    for _ in 0..mib {
        file.write_all(chunk)?;
    }
    file.sync_all()?;
    let rate = rate(mib, began);
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// A value written as a stream, durable at the end; and read, which checks it first.
fn streamed(dir: &Path, chunk: &[u8], mib: u64) -> Answer<(f64, f64)> {
    let db = Database::builder().open(dir)?;
    let files = db.keyspace("files", KeyspaceOptions::default().engine("delsm"))?;
    let began = Instant::now();
    let mut writer = files.writer("value")?;
    for _ in 0..mib {
        writer.write_all(chunk)?;
    }
    writer.submit(Durability::Sync)?.wait()?;
    let written = rate(mib, began);
    let began = Instant::now();
    let mut reader = files.reader("value")?.ok_or("the value is gone")?;
    let mut got = vec![0; CHUNK];
    for _ in 0..mib {
        reader.read_exact(&mut got)?;
        assert!(got == *chunk, "it is as it was written");
    }
    let read = rate(mib, began);
    drop((reader, files));
    db.close()?;
    std::fs::remove_dir_all(dir)?;
    Ok((written, read))
}

/// The most that the process ever had resident.
fn most_memory_mib() -> Answer<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmHWM")).ok_or("no VmHWM")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib / 1024.0)
}
