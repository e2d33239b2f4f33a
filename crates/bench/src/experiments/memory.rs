//! # Memory: the accounted memory of a database under load, and the memory of the process
//!
//! One database with a keyspace of each engine and one budget runs through several mixes. A thread
//! samples the parts of `DatabaseStats::memory`. It also samples the memory of the process that is
//! not backed by a file, less its value before the opening.
//!
//! ```text
//!   fill -- get -- update -- mixed -- scan -- with a snapshot -- large values -- each engine alone
//!            the fill is sampled from its begin; the first half of the other mixes is not sampled
//! ```
//!
//! The index of `flat` and `flat-ordered` must fit in memory: their keyspaces get so many keys that
//! it takes some hundredths of the budget. The other keyspaces get several times their share of the
//! budget in data. The figure of the process includes memory outside of the database: that of the
//! driving threads, and spare pages of the allocator.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ::sheaf::{Database, Keyspace, KeyspaceOptions, MemoryStats};

use crate::Result;
use crate::args;
use crate::keys::{BenchRandom, ValueGenerator, key};
use crate::measure::memory_bytes;
use crate::promise_table::{markdown, number};
use crate::run_dir::RunDir;

/// Bytes of a value.
const VALUE: usize = 300;
/// Bytes of a large value, and number of large values of each keyspace.
const LARGE_VALUE: usize = 100_000;
const LARGE_KEYS: u64 = 200;
/// Interval between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Pairs of a scan.
const SCAN: usize = 50;
/// Number of threads that drive the load.
const THREADS: u64 = 2;

/// Default engines: each gets a keyspace.
pub(crate) const ENGINES: &str = "flat,flat-ordered,flex,cedrus,kreon,delsm";

/// A keyspace and its number of pairs.
struct KeyspaceLoad {
    keyspace: Keyspace,
    pairs: u64,
    is_ordered: bool,
}

/// Operations of a driving thread.
#[derive(Clone, Copy)]
enum MemoryMix {
    Fill,
    Get,
    Update,
    Mixed,
    Scan,
    Large,
    /// Gets from one keyspace.
    Alone(usize),
}

/// Sums and peaks of the samples during one mix.
#[derive(Default)]
struct MemorySamples {
    samples: u64,
    parts: [f64; 4],
    accounted_peak: u64,
    real: f64,
    real_peak: u64,
}

impl MemorySamples {
    fn add(&mut self, stats: &MemoryStats, real: u64) {
        self.samples += 1;
        let parts = [stats.index, stats.versions, stats.buffers, stats.cache];
        for (sum, part) in self.parts.iter_mut().zip(parts) {
            *sum += part as f64;
        }
        self.accounted_peak = self.accounted_peak.max(parts.iter().sum());
        self.real += real as f64;
        self.real_peak = self.real_peak.max(real);
    }
}

/// Measures all mixes and prints a table.
pub(crate) fn run(options: &args::MemoryArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, 40 * options.memory)?;
    let dir = place.fresh("memory")?;
    let before = memory_bytes();
    let db = Database::builder().memory(options.memory).open(&dir)?;
    let loads = open_all(&db, options)?;
    let mut rows = vec![measure_mix(&db, "opened", options, before, |half| {
        half();
        Ok(())
    })?];
    rows.push(measure_mix(&db, "fill", options, before, |half| {
        half();
        drive(&loads, MemoryMix::Fill, None)
    })?);
    let timed = |name: &str, mix: MemoryMix| {
        measure_mix(&db, name, options, before, |half| {
            drive(&loads, mix, Some(options.phase / 2))?;
            half();
            drive(&loads, mix, Some(options.phase / 2))
        })
    };
    rows.push(timed("get", MemoryMix::Get)?);
    rows.push(timed("update", MemoryMix::Update)?);
    rows.push(timed("get and update", MemoryMix::Mixed)?);
    rows.push(timed("scan", MemoryMix::Scan)?);
    let snapshot = db.snapshot()?;
    rows.push(timed("get and update, a snapshot", MemoryMix::Mixed)?);
    drop(snapshot);
    rows.push(timed("large values", MemoryMix::Large)?);
    for (index, engine) in options.engines.iter().enumerate() {
        rows.push(timed(&format!("get from {} alone", engine.name()), MemoryMix::Alone(index))?);
    }
    let head = [
        "mix",
        "index",
        "versions",
        "buffers",
        "cache",
        "accounted",
        "at most",
        "real",
        "at most",
        "real / accounted",
    ];
    println!("Budget {} MiB; means, and the most seen, in hundredths of it.\n", options.memory >> 20);
    print!("{}", markdown(&head.map(str::to_owned), &rows));
    drop(loads);
    db.close()?;
    place.clear("memory")?;
    Ok(())
}

fn open_all(db: &Database, options: &args::MemoryArgs) -> Result<Vec<KeyspaceLoad>> {
    let budget = options.memory;
    let open = |engine: &str| {
        let keyspace = db.keyspace(engine, KeyspaceOptions::default().engine(engine))?;
        let pairs = match engine {
            "flat" => budget / 300,
            "flat-ordered" => budget / 900,
            _ => budget / 400, // three quarters of the budget each
        };
        let is_ordered = keyspace.capabilities()?.ordered;
        Ok(KeyspaceLoad { keyspace, pairs, is_ordered })
    };
    options.engines.iter().map(|engine| engine.name()).map(open).collect()
}

/// Runs `work`, which calls its argument when the samples shall begin. Returns a row of the table.
fn measure_mix(
    db: &Database,
    name: &str,
    options: &args::MemoryArgs,
    before: u64,
    work: impl FnOnce(&dyn Fn()) -> Result<()>,
) -> Result<Vec<String>> {
    let (done, half) = (AtomicBool::new(false), AtomicBool::new(false));
    let seen = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = MemorySamples::default();
            while !done.load(Ordering::Relaxed) {
                if half.load(Ordering::Relaxed) {
                    seen.add(&db.stats().memory, memory_bytes().saturating_sub(before));
                }
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            seen.add(&db.stats().memory, memory_bytes().saturating_sub(before));
            seen
        });
        let worked = work(&|| half.store(true, Ordering::Relaxed));
        done.store(true, Ordering::Relaxed);
        let seen = watch.join().map_err(|_| "the watch over memory panicked")?;
        worked.map(|()| seen)
    })?;
    let share = |bytes: f64| number(bytes * 100.0 / options.memory as f64);
    let mean = |sum: f64| sum / seen.samples as f64;
    let accounted: f64 = seen.parts.iter().sum();
    let mut row = vec![name.to_owned()];
    row.extend(seen.parts.iter().map(|sum| share(mean(*sum))));
    row.extend([
        share(mean(accounted)),
        share(seen.accounted_peak as f64),
        share(mean(seen.real)),
        share(seen.real_peak as f64),
        number(seen.real / accounted),
    ]);
    eprintln!("{}", row.join("  "));
    Ok(row)
}

/// Runs the mix on all driving threads, for `time` unless it is a fill.
fn drive(loads: &[KeyspaceLoad], mix: MemoryMix, time: Option<Duration>) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let drivers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let next = &next;
                scope.spawn(move || match mix {
                    MemoryMix::Fill => fill(loads, next),
                    _ => {
                        let until = Instant::now() + time.unwrap_or_default();
                        let (mut random, mut values) = (BenchRandom::new(thread + 1), ValueGenerator::new());
                        while Instant::now() < until {
                            (0..32).try_for_each(|_| run_operation(loads, mix, &mut random, &mut values))?;
                        }
                        Ok(())
                    }
                })
            })
            .collect();
        drivers.into_iter().try_for_each(|driver| driver.join().map_err(|_| "a driver panicked")?)
    })
}

/// Fills one keyspace after the other.
fn fill(loads: &[KeyspaceLoad], next: &AtomicUsize) -> Result<()> {
    let mut values = ValueGenerator::new();
    while let Some(load) = loads.get(next.fetch_add(1, Ordering::Relaxed)) {
        for index in 0..load.pairs {
            load.keyspace.insert(key(index), values.make(index, 0, VALUE))?;
        }
    }
    Ok(())
}

fn run_operation(
    loads: &[KeyspaceLoad],
    mix: MemoryMix,
    random: &mut BenchRandom,
    values: &mut ValueGenerator,
) -> Result<()> {
    let load = match mix {
        MemoryMix::Alone(index) => &loads[index],
        _ => &loads[usize::try_from(random.below(loads.len() as u64))?],
    };
    let index = random.below(load.pairs);
    let is_update = match mix {
        MemoryMix::Update => true,
        MemoryMix::Mixed => random.below(2) == 0,
        _ => false,
    };
    match mix {
        MemoryMix::Large => {
            let key = format!("large {}", random.below(LARGE_KEYS));
            match random.below(4) {
                0 => load.keyspace.insert(key, values.make(index, 1, LARGE_VALUE))?,
                _ => drop(load.keyspace.get(key)?),
            }
        }
        MemoryMix::Scan if load.is_ordered => {
            for pair in load.keyspace.range(&key(index)[..]..)?.take(SCAN) {
                pair?;
            }
        }
        _ if is_update => load.keyspace.insert(key(index), values.make(index, random.next(), VALUE))?,
        _ => drop(load.keyspace.get(key(index))?),
    }
    Ok(())
}
