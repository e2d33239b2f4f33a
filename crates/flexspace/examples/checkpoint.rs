//! # Bytes of a checkpoint after random updates, and the cost of an opening
//!
//! ```text
//! cargo run --release -p sheaf-flexspace --example checkpoint -- DIR [--extents N]
//!     [--updates N,..]
//! perf stat -e instructions:u target/release/examples/checkpoint DIR --open
//! ```
//!
//! Makes a space of N extents (default 1,000,000) by insertions of 16 bytes at random places. Then
//! overwrites random extents and writes a checkpoint, three times for each number of updates.
//! Prints the bytes that the process wrote during the third one, for all files. The data is synced
//! before. Two node files are written in turn, so that the third checkpoint is the first one that
//! follows two of its kind.
//!
//! With `--open`, opens the space in DIR and drops it, and does nothing else.

#![allow(clippy::disallowed_methods, reason = "measuring needs real files")]

use std::path::Path;

use sheaf_flexspace::{FlexSpace, SpaceOptions};

/// Result of any step.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
/// Bytes of an extent.
const EXTENT: u64 = 16;

/// Random numbers (splitmix64) with a fixed seed, so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}

/// Returns the bytes that this process has passed to `write` calls.
fn written_bytes() -> Outcome<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(line.ok_or("no wchar in /proc/self/io")?.parse()?)
}

fn open(dir: &Path) -> Outcome<FlexSpace> {
    let options = SpaceOptions { inline: true, merge_extents: false, ..SpaceOptions::default() };
    Ok(FlexSpace::open(dir, options)?)
}

/// Makes the space and prints the bytes of checkpoints.
fn measure(dir: &Path, extents: u64, updates: &[u64]) -> Outcome<()> {
    let space = open(dir)?;
    let mut random = Random(1);
    for n in 0..extents {
        space.insert(random.below(n + 1) * EXTENT, &[n.to_le_bytes()[0]; 16])?;
        if n % 1000 == 0 {
            space.maintain_busy()?;
        }
    }
    space.sync()?;
    println!("{} extents", space.stats().extents);
    println!("| updates | bytes of the checkpoint | bytes an update |");
    println!("|---|---|---|");
    for count in updates {
        let mut written = 0;
        for round in 0..3u8 {
            for _ in 0..*count {
                space.write(random.below(extents) * EXTENT, &[round; 16])?;
            }
            space.sync()?;
            let before = written_bytes()?;
            space.checkpoint()?;
            written = written_bytes()? - before;
        }
        println!("| {count} | {written} | {} |", written / (*count).max(1));
    }
    space.close()?;
    Ok(())
}

fn main() -> Outcome<()> {
    let mut words = std::env::args().skip(1);
    let dir = words.next().ok_or("the directory of the space is missing")?;
    let (mut extents, mut updates) = (1_000_000, vec![1, 10, 100, 1000, 10_000, 100_000]);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--open" => return open(Path::new(&dir)).map(drop),
            "--extents" => extents = words.next().ok_or("--extents needs a number")?.parse()?,
            "--updates" => {
                let list = words.next().ok_or("--updates needs numbers")?;
                updates = list.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            other => return Err(format!("unknown word {other}").into()),
        }
    }
    measure(Path::new(&dir), extents, &updates)
}
