//! # Levels of kreon: cost of a cache hit, and of a spill compared with a merge
//!
//! ```text
//!   mapping   gets and scans through the cache, compared with a read-only mapping of the pages
//!   ways      insertions of random keys: spills only, merges only, or by the rule of the engine
//! ```
//!
//! Both use a level of two million keys, without an engine, in a new directory below TMPDIR. The
//! paper's code reads its trees through a kernel mapping; the engine finds a page through an array.
//! `mapping` uses the same pages and the same node code for both, with everything in memory, on one
//! thread. The cache is on huge pages if the system provides them.
//!
//!     cargo run --release -p sheaf-bench --example kreon_levels -- mapping

#![allow(
    clippy::disallowed_methods,
    reason = "measuring needs the real clock and files; nothing here runs on the simulated disk"
)]

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use sheaf_kreon::measure::{MeasuredLevel, NumberedKey, PageCost};
use sheaf_platform::disk::real::RealDisk;
use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::memory::block_alloc;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const PAIRS: u64 = 2_000_000;
/// Memory budget of the level in bytes.
const BUDGET: u64 = 2 << 30;
/// Number of steps in which the keys are inserted, so that leaves are split and packed as in a
/// database that grew.
const STEPS: usize = 20;
/// Number of calls that move the whole cache to huge pages.
const HUGE_PAGE_CALLS: usize = 500;
/// Number of times that both variants are measured, in turns.
const MAPPING_ROUNDS: usize = 7;
const GETS: u64 = 500_000;
const SCANS: u64 = 50_000;
const SCAN: usize = 50;
/// Number of keys of a batch.
const BATCHES: [u64; 4] = [2_000, 10_000, 50_000, 200_000];
const BATCH_ROUNDS: u64 = 2;

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some("mapping") => measure_mapping(),
        Some("ways") => measure_ways(),
        _ => Err("usage: kreon_levels mapping|ways".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kreon_levels: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A directory that is removed when this is dropped.
struct BenchDir(PathBuf);

impl BenchDir {
    fn new(name: &str) -> BenchDir {
        BenchDir(std::env::temp_dir().join(format!("sheaf-kreon-{name}-{}", std::process::id())))
    }

    /// Returns a level of all pairs in the directory.
    fn fill(&self) -> Result<MeasuredLevel> {
        let mut level = MeasuredLevel::create(Arc::new(RealDisk::default()), &self.0, BUDGET)?;
        for step in 0..STEPS as u64 {
            level.insert(&sorted_keys((step..PAIRS).step_by(STEPS)), None)?;
        }
        Ok(level)
    }
}

impl Drop for BenchDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key_of(number: u64) -> Vec<u8> {
    // The factor is odd, so each number occurs once, in no order.
    format!("{:027}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes()
}

fn sorted_keys(numbers: impl Iterator<Item = u64>) -> Vec<NumberedKey> {
    let mut keys: Vec<NumberedKey> = numbers.map(|number| (key_of(number), number)).collect();
    keys.sort_unstable();
    keys
}

/// The pages of a file in a mapping of the kernel.
struct MappedPages {
    file: Arc<dyn File>,
    page_bytes: usize,
}

impl MappedPages {
    /// Maps the file of a level, which must not change any more.
    fn new(level: &MeasuredLevel) -> Result<MappedPages> {
        let file = RealDisk::default().open(level.path(), OpenMode::Read)?;
        file.map(file.len()?);
        Ok(MappedPages { file, page_bytes: level.page_bytes() })
    }

    fn page(&self, page: u32) -> &[u8] {
        // SAFETY:
        // * The pages were written before the file was opened, and have not been written since.
        let bytes = unsafe { self.file.mapped(u64::from(page) * self.page_bytes as u64, self.page_bytes) };
        bytes.expect("the whole file is mapped")
    }
}

/// Returns the nanoseconds of a call, on average over `count` numbers of keys.
fn nanoseconds(count: u64, mut each: impl FnMut(u64) -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    (0..count).try_for_each(|n| each(n.wrapping_mul(0x2545_f491_4f6c_dd1d) % PAIRS))?;
    Ok(began.elapsed().as_secs_f64() * 1e9 / count as f64)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn measure_mapping() -> Result<()> {
    let dir = BenchDir::new("mapping");
    let level = dir.fill()?;
    // As the database does while there is room, a few pages at a time.
    (0..HUGE_PAGE_CALLS).for_each(|_| block_alloc::collapse_some());
    let mapped = MappedPages::new(&level)?;
    let (mut gets, mut scans) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for round in 0..2 * MAPPING_ROUNDS {
        let is_cached = round % 2 == 0;
        let get = nanoseconds(GETS, |number| {
            let key = key_of(number);
            let found =
                if is_cached { level.find(&key)? } else { level.find_in(|page| mapped.page(page), &key) };
            if found == Some(number) { Ok(()) } else { Err("a key is missing".into()) }
        })?;
        let mut sum = 0u64;
        let scan = nanoseconds(SCANS, |number| {
            let key = key_of(number);
            sum = sum.wrapping_add(match is_cached {
                true => level.scan(&key, SCAN)?,
                false => level.scan_in(|page| mapped.page(page), &key, SCAN),
            });
            Ok(())
        })?;
        std::hint::black_box(sum);
        gets[round % 2].push(get);
        scans[round % 2].push(scan);
    }
    for (operation, [cached, mapped]) in [("get", gets), ("scan of 50", scans)] {
        let (cached, mapped) = (median(cached), median(mapped));
        println!("{operation}: {cached:.0} ns, over a mapping {mapped:.0} ns: {:.2} x", cached / mapped);
    }
    Ok(())
}

fn measure_ways() -> Result<()> {
    println!("keys per batch | way | leaves read per key | leaves written per key | µs per key");
    for batch in BATCHES {
        for (way, merges) in [("spill", Some(false)), ("merge", Some(true)), ("rule", None)] {
            let dir = BenchDir::new("ways");
            let mut level = dir.fill()?;
            let (mut all, mut seconds) = (PageCost::default(), 0.0);
            for round in 0..BATCH_ROUNDS {
                let first = PAIRS + round * batch;
                let keys = sorted_keys(first..first + batch);
                let began = Instant::now();
                let cost = level.insert(&keys, merges)?;
                seconds += began.elapsed().as_secs_f64();
                all = PageCost { read: all.read + cost.read, written: all.written + cost.written };
            }
            let per_key = |sum: f64| sum / (BATCH_ROUNDS * batch) as f64;
            let (read, written) = (per_key(all.read as f64), per_key(all.written as f64));
            println!("{batch} | {way} | {read:.3} | {written:.3} | {:.2}", per_key(seconds * 1e6));
        }
    }
    Ok(())
}
