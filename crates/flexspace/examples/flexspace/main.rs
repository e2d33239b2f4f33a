//! # Benchmark of FlexSpace and a plain file
//!
//! ```text
//! cargo run --release -p sheaf-flexspace --example flexspace -- [--dir DIR]... [--mib N]
//!     [--block BYTES] [--only PART] [--pattern insert|random|sequential]
//!     [--subject space|file] [--seconds N]
//! ```
//!
//! Prints the FlexSpace paper's Table 2 for this machine. It has random inserts, random writes and
//! sequential writes of N MiB (default 1024) in blocks (default 4096 bytes). Each ends with a sync.
//! Then everything is read sequentially and at random, cold and warm, by 1 to 8 threads. Give one
//! `--dir` for each file system; the space is in the first. Inserts into files use `fallocate` if
//! possible, and end after 20 seconds. Each insert is slower than the one before, so the result
//! flatters the file. PART is `compare` (all except the following), `write` (without reads),
//! `turns`, `warm` or `collect`.
//!
//! XFS and Btrfs can be in an image file: `truncate -s 4G x.img; mkfs.xfs x.img; mount -o loop
//! x.img /mnt/x`, and `--dir /mnt/x`.
//!
//! `turns` alternates random and sequential writes into new spaces. `warm` alternates reads of a
//! space and a file, both in memory. They print medians and the median ratio of pairs, because
//! single short runs vary with other load. `collect` overwrites random blocks of a space that is 85
//! % full, and of a full one. It prints the longest stall and the bytes moved per byte, for three
//! runs of `--seconds`.
//!
//! Blind spots: other programs, and the device's own cache. Before a cold read, the space is closed
//! and dropped from the page cache (by `drop_caches` if permitted, otherwise by `posix_fadvise`).

#![allow(clippy::disallowed_methods, reason = "measuring needs the real clock, files and threads")]
#![allow(clippy::cast_possible_truncation, reason = "sizes of a benchmark")]

mod alternating;
mod collect;
mod target;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use target::{BenchTarget, FlexSpaceTarget, PlainFileTarget, device_bytes};

/// Result of any step.
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Random numbers (splitmix64) with a fixed seed, so that every run is the same.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * u128::from(bound)) >> 64) as u64
    }

    /// Returns the numbers below `count` in random order.
    fn shuffled(&mut self, count: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..count).collect();
        for index in (1..all.len()).rev() {
            all.swap(index, self.below(index as u64 + 1) as usize);
        }
        all
    }
}

struct Options {
    dirs: Vec<PathBuf>,
    bytes: u64,
    block: u64,
    only: Option<String>,
    pattern: Option<String>,
    target: Option<String>,
    seconds: u64,
}

fn options() -> Outcome<Options> {
    let mut options = Options {
        dirs: Vec::new(),
        bytes: 1 << 30,
        block: 4096,
        only: None,
        pattern: None,
        target: None,
        seconds: 20,
    };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().ok_or("an option has no value")?;
        match name.as_str() {
            "--dir" => options.dirs.push(value.into()),
            "--mib" => options.bytes = value.parse::<u64>()? << 20,
            "--block" => options.block = value.parse()?,
            "--only" => options.only = Some(value),
            "--pattern" => options.pattern = Some(value),
            "--subject" => options.target = Some(value),
            "--seconds" => options.seconds = value.parse()?,
            _ => return Err(format!("no option {name}").into()),
        }
    }
    if options.dirs.is_empty() {
        options.dirs.push(std::env::temp_dir());
    }
    Ok(options)
}

impl Options {
    fn has_pattern(&self, pattern: Pattern) -> bool {
        self.pattern.as_ref().is_none_or(|wanted| *wanted == format!("{pattern:?}").to_lowercase())
    }
}

/// Directory of one run. It is deleted at the end of the run.
struct RunDir(PathBuf);

impl RunDir {
    fn new(dir: &Path) -> Outcome<RunDir> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let place = dir.join(format!("flexspace-figures-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&place)?;
        Ok(RunDir(place))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pattern {
    Insert,
    Random,
    Sequential,
}

/// Time limit for inserts into a file, in seconds.
const MAX_FILL_SECONDS: f64 = 20.0;

/// Fills a new target. Returns MB/s, device bytes per byte, and the bytes written.
fn fill(target: &mut dyn BenchTarget, pattern: Pattern, o: &Options) -> Outcome<(f64, f64, u64)> {
    let is_limited = pattern == Pattern::Insert && !target.inserts_cheaply();
    let blocks = o.bytes / o.block;
    let mut random = Random(7);
    let order = if pattern == Pattern::Random { random.shuffled(blocks) } else { Vec::new() };
    let bytes: Vec<u8> = (0..o.block).map(|n| (n * 31) as u8).collect();
    target.sync_file_system()?;
    let before = device_bytes(target.dir());
    let begun = Instant::now();
    let mut done = 0;
    for n in 0..blocks {
        match pattern {
            Pattern::Insert => target.insert(random.below(n + 1) * o.block, &bytes)?,
            Pattern::Random => target.write(order[n as usize] * o.block, &bytes)?,
            Pattern::Sequential => target.write(n * o.block, &bytes)?,
        }
        done += o.block;
        if is_limited && begun.elapsed().as_secs_f64() > MAX_FILL_SECONDS {
            break;
        }
    }
    target.sync()?;
    let seconds = begun.elapsed().as_secs_f64();
    target.sync_file_system()?;
    let device = device_bytes(target.dir()).saturating_sub(before);
    Ok((done as f64 / seconds / 1e6, device as f64 / done as f64, done))
}

/// Reads every block once with `threads` threads. Returns MB/s.
fn read(target: &dyn BenchTarget, blocks: u64, block: u64, is_random: bool, threads: u64) -> Outcome<f64> {
    let orders: Vec<Vec<u64>> = (0..threads)
        .map(|thread| {
            let (from, to) = (blocks * thread / threads, blocks * (thread + 1) / threads);
            if is_random {
                Random(thread).shuffled(to - from).into_iter().map(|n| n + from).collect()
            } else {
                (from..to).collect()
            }
        })
        .collect();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let readers: Vec<_> = orders
            .iter()
            .map(|order| {
                scope.spawn(move || -> Outcome<()> {
                    let mut buffer = vec![0; block as usize];
                    order.iter().try_for_each(|n| target.read(n * block, &mut buffer))
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| "a reader failed")?)
    })?;
    Ok((blocks * block) as f64 / begun.elapsed().as_secs_f64() / 1e6)
}

fn targets(o: &Options, pattern: Pattern) -> Outcome<Vec<(RunDir, Box<dyn BenchTarget>)>> {
    let has = |kind: &str| o.target.as_ref().is_none_or(|target| target == kind);
    let mut all = Vec::new();
    if has("space") {
        let place = RunDir::new(&o.dirs[0])?;
        let flex: Box<dyn BenchTarget> = Box::new(FlexSpaceTarget::new(&place.0.join("space"))?);
        all.push((place, flex));
    }
    for dir in o.dirs.iter().filter(|_| has("file")) {
        let place = RunDir::new(dir)?;
        let name = format!("plain-{pattern:?}");
        let plain: Box<dyn BenchTarget> = Box::new(PlainFileTarget::new(dir, &place.0.join(name))?);
        all.push((place, plain));
    }
    Ok(all)
}

fn compare(o: &Options) -> Outcome<()> {
    println!("MB/s, {} MiB in blocks of {} bytes; device bytes for a byte written\n", o.bytes >> 20, o.block);
    println!(
        "| pattern | subject | MiB | write | device bytes | in order, cold: 1, 8 threads | warm: 1, 8 | random, cold: 1, 8 | warm: 1, 2, 4, 8 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for pattern in [Pattern::Insert, Pattern::Random, Pattern::Sequential] {
        if !o.has_pattern(pattern) {
            continue;
        }
        for (_place, mut target) in targets(o, pattern)? {
            let (speed, device, done) = match fill(&mut *target, pattern, o) {
                Ok(filled) => filled,
                Err(refusal) => {
                    println!("| {pattern:?} | {} | | cannot: {refusal} | | | | | |", target.name());
                    continue;
                }
            };
            print!("| {pattern:?} | {} | {} | {speed:.0} | {device:.3} |", target.name(), done >> 20);
            if o.only.as_deref() != Some("write") {
                print!("{}", read_all(&mut *target, done / o.block, o.block)?);
            }
            println!();
        }
    }
    Ok(())
}

/// Reads everything in each way. Returns the rest of the target's row. A cold read leaves the data
/// warm.
fn read_all(target: &mut dyn BenchTarget, blocks: u64, block: u64) -> Outcome<String> {
    let mut row = String::new();
    for is_random in [false, true] {
        let cold: &[u64] = &[1, 8];
        let warm: &[u64] = if is_random { &[1, 2, 4, 8] } else { cold };
        for (is_cold, threads) in [(true, cold), (false, warm)] {
            let mut speeds = Vec::new();
            for count in threads {
                if is_cold {
                    target.drop_page_cache()?;
                }
                speeds.push(format!("{:.0}", read(target, blocks, block, is_random, *count)?));
            }
            row += &format!(" {} |", speeds.join(", "));
        }
    }
    Ok(row)
}

fn main() -> Outcome<()> {
    let o = options()?;
    let is_wanted = |part: &str| o.only.as_deref().is_none_or(|only| only == part);
    if is_wanted("compare") || is_wanted("write") {
        compare(&o)?;
    }
    if is_wanted("turns") {
        alternating::writes(&o)?;
    }
    if is_wanted("warm") {
        alternating::warm_reads(&o)?;
    }
    if is_wanted("collect") {
        let place = RunDir::new(&o.dirs[0])?;
        collect::run(&place.0, &o)?;
    }
    Ok(())
}
