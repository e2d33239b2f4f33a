//! # Compression: disk space and gets next to a keyspace without a codec
//!
//! `cargo bench -p sheaf-db --bench compression -- [ENGINE] [VALUE_BYTES] [PAIRS]` prints for text
//! of ratio 3 the disk space, puts, gets in memory, where each pair was read once before, and gets
//! beyond the memory: after the kernel dropped its pages, with a budget of an eighth of the raw
//! bytes. Rounds take turns. The figures are medians, and the fastest rounds for a machine with
//! other work; a ratio is compressed to not compressed.

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock and files")]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "small numbers")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use sheaf::{Builder, Codec, Database, Keyspace, KeyspaceOptions, Result};

const ROUNDS: usize = 15;
const CALLS: u64 = 200_000;
const PUTS: u64 = 2_000;
const COLD_CALLS: u64 = 1_500;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Returns text that `lz4` compresses to about a third: sentences of common words, half of them
/// repeated.
fn text(len: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "storage ",
        "engine ",
        "of the ",
        "database ",
        "returns ",
        "a value ",
        "that ",
        "commits ",
        "segment ",
        "after ",
        "recovery ",
        "checksum ",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let (mut out, mut sentences): (Vec<u8>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    while out.len() < len {
        let pick = random(&mut state);
        let sentence = match sentences.get(pick as usize % 8) {
            Some(known) if pick & 0x300 != 0 => known.clone(),
            _ => {
                let word = |_| WORDS[random(&mut state) as usize % WORDS.len()].as_bytes();
                let mut sentence: Vec<u8> = (0..9).flat_map(word).copied().collect();
                sentence.extend_from_slice(format!("{:06x}. ", pick >> 40).as_bytes());
                sentences.push(sentence.clone());
                sentence
            }
        };
        out.extend_from_slice(&sentence);
    }
    out.truncate(len);
    out
}

fn key(number: u64, pairs: u64) -> [u8; 8] {
    // Neighbouring numbers are far apart.
    (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % pairs).to_be_bytes()
}

/// A database with one keyspace, with or without a codec.
struct Side {
    dir: PathBuf,
    db: Option<Database>,
}

impl Side {
    fn open(dir: PathBuf, memory: u64) -> Result<Side> {
        let db = Builder::default().memory(memory).open(&dir)?;
        Ok(Side { dir, db: Some(db) })
    }

    fn keyspace(&self) -> Result<Keyspace> {
        let db = self.db.as_ref().expect("it is open");
        Ok(db.open_keyspace("data")?.expect("it was created"))
    }

    fn close(&mut self) -> Result<()> {
        self.db.take().map_or(Ok(()), |db| db.close())
    }

    /// Closes the database, drops the kernel's pages of its files, and opens it again.
    fn reopen_cold(&mut self, memory: u64) -> Result<()> {
        self.close()?;
        walk(&self.dir, &mut |path| {
            let file = File::open(path).expect("a file of the database");
            file.sync_all().expect("it syncs");
            #[cfg(target_os = "linux")]
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).expect("pages are dropped");
        });
        self.db = Some(Builder::default().memory(memory).open(&self.dir)?);
        Ok(())
    }

    fn disk_bytes(&self) -> u64 {
        let mut bytes = 0;
        walk(&self.dir, &mut |path| {
            #[cfg(unix)]
            {
                use std::os::unix::fs::MetadataExt;
                bytes += fs::metadata(path).map_or(0, |meta| meta.blocks() * 512);
            }
            #[cfg(not(unix))]
            {
                bytes += fs::metadata(path).map_or(0, |meta| meta.len());
            }
        });
        bytes
    }
}

/// Calls `each` with every file below `dir`.
fn walk(dir: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => walk(&entry.path(), each),
            Ok(kind) if kind.is_file() => each(&entry.path()),
            _ => {}
        }
    }
}

/// Gets `calls` random keys. Returns the time of a call in microseconds.
fn gets(keyspace: &Keyspace, calls: u64, round: u64, pairs: u64, len: usize) -> Result<f64> {
    let began = Instant::now();
    for number in 0..calls {
        let found = keyspace.get(key(number + round * calls, pairs))?;
        assert_eq!(found.map(|value| value.len()), Some(len));
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / calls as f64)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Runs `measure` for both sides in turns and prints the medians. `is_rate` inverts the ratio.
fn compare(
    name: &str,
    sides: &mut [Side; 2],
    rounds: usize,
    mut measure: impl FnMut(&mut Side, u64) -> Result<f64>,
) -> Result<()> {
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        for turn in 0..2 {
            let side = (round + turn) % 2;
            times[side].push(measure(&mut sides[side], round as u64)?);
        }
    }
    let best = times.each_ref().map(|times| times.iter().copied().fold(f64::MAX, f64::min));
    let [plain, compressed] = times.map(median);
    println!(
        "{name}: {plain:.2} us without, {compressed:.2} us with a codec: {:.2} x the rate \
         (fastest rounds: {:.2} us, {:.2} us, {:.2} x)",
        plain / compressed,
        best[0],
        best[1],
        best[0] / best[1]
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let engine = args.next().unwrap_or_else(|| "flex".to_owned());
    let mut number = |default: u64| args.next().and_then(|text| text.parse().ok()).unwrap_or(default);
    let (len, pairs) = (number(1000) as usize, number(100_000));
    let raw_bytes = pairs * len as u64;
    let root = std::env::temp_dir().join(format!("sheaf-compression-{}", std::process::id()));
    let large = raw_bytes * 2 + (256 << 20);
    let mut sides = [Side::open(root.join("plain"), large)?, Side::open(root.join("compressed"), large)?];
    for (side, codec) in sides.iter().zip([None, Some(Codec::Lz4)]) {
        let options = KeyspaceOptions::default().engine(&engine).compression(codec);
        let keyspace = side.db.as_ref().expect("it is open").keyspace("data", options)?;
        (0..pairs).try_for_each(|number| keyspace.insert(number.to_be_bytes(), text(len, number)))?;
        let stats = keyspace.stats()?;
        if codec.is_some() {
            println!("{engine}: ratio {:.2}", stats.encoded_raw_bytes as f64 / stats.encoded_bytes as f64);
        }
        side.db.as_ref().expect("it is open").quiesce()?;
    }
    for side in &sides {
        let keyspace = side.keyspace()?;
        (0..pairs).try_for_each(|number| keyspace.get(number.to_be_bytes()).map(drop))?;
    }
    compare(&format!("{engine}: get in memory"), &mut sides, ROUNDS, |side, round| {
        gets(&side.keyspace()?, CALLS, round, pairs, len)
    })?;
    let values: Vec<Vec<u8>> = (0..64).map(|seed| text(len, seed)).collect();
    compare(&format!("{engine}: put"), &mut sides, ROUNDS, |side, round| {
        let (keyspace, began) = (side.keyspace()?, Instant::now());
        for number in 0..PUTS {
            keyspace.insert(key(number + round * PUTS, pairs), &values[number as usize % values.len()])?;
        }
        Ok(began.elapsed().as_secs_f64() * 1e6 / PUTS as f64)
    })?;
    for side in &mut sides {
        side.db.as_ref().expect("it is open").quiesce()?;
        side.close()?;
    }
    let [plain, compressed] = [&sides[0], &sides[1]].map(Side::disk_bytes);
    let ratio = compressed as f64 / plain as f64;
    println!("{engine}: disk: {} MiB, {} MiB with a codec: {ratio:.2} x", plain >> 20, compressed >> 20);
    let small = (raw_bytes / 8).max(16 << 20);
    compare(&format!("{engine}: get beyond the budget"), &mut sides, 5, |side, round| {
        side.reopen_cold(small)?;
        gets(&side.keyspace()?, COLD_CALLS, round, pairs, len)
    })?;
    for side in &mut sides {
        side.close()?;
    }
    drop(fs::remove_dir_all(&root));
    Ok(())
}
