//! # Costs: the time of each kind of operation on each engine
//!
//! All engines run one kind of operation in turns, slice by slice, so that disturbances of the
//! machine or the device affect all of them. Reads come before writes. Writes are measured longer,
//! because background work processes them later. Single writes are mixed with gets: a thread that
//! only writes is limited by the device rather than by the engine.
//!
//! Keys are uniform, or *hot* with a Zipf distribution. Then the caches of the processor serve most
//! reads, and overwritten pairs were written shortly before, which favours GC of logs. Costs
//! *beyond* memory have a budget of a sixteenth of the data and the page cache of the machine. They
//! measure the costs of a miss in the engine's own cache, without the device.

use std::time::{Duration, Instant};

use sheaf_advisor::{OperationShares, ReplayDatabase, WorkloadMix};

use super::{MixRow, age_stores, never_stop};
use crate::Result;
use crate::args;
use crate::measure::median;
use crate::run_dir::RunDir;

/// Lengths of values with the number of pairs: more data than the caches of the processor hold.
const SIZES: [(u64, u64); 6] =
    [(10, 1_500_000), (100, 800_000), (1_000, 150_000), (10_000, 12_000), (50_000, 2_500), (100_000, 1_200)];
/// Upper bound on the index bytes per key, which a budget must cover.
const INDEX_BYTES_PER_KEY: u64 = 32;
/// Skew of the hot keys, and number of the smallest sizes they are measured with. The cost of a
/// large value is mainly that of its copy.
const ZIPF: f64 = 0.99;
const HOT_SIZES: usize = 4;
/// Number of slices of each kind. The median counts.
const SLICES: u32 = 7;
/// Factor by which writes are measured longer than reads.
const WRITES: u32 = 3;
/// Writes in a commit of many writes.
const BATCH: u64 = 50;
/// Pairs of a long scan, which gives the cost per pair.
const LONG_SCAN_PAIRS: u64 = 100;

const SEEK: &str = "seek";

/// Use of the keys, as the table names it.
const HOT: &str = "hot";
const MEMORY: &str = "memory";
const BEYOND_MEMORY: &str = "beyond";

/// A kind of operation: its name in the table and its workload.
struct CostOperation {
    name: &'static str,
    shares: OperationShares,
    /// Whether it needs an engine with key order.
    ordered: bool,
    scan_pairs: u64,
    batch: u64,
    durable: f64,
    sequential: bool,
}

impl CostOperation {
    fn new(name: &'static str, set: fn(&mut OperationShares)) -> CostOperation {
        let mut shares = OperationShares::default();
        set(&mut shares);
        let (durable, sequential) = (0.0, false);
        CostOperation { name, shares, ordered: false, scan_pairs: 1, batch: 1, durable, sequential }
    }

    /// Returns a scan of `scan_pairs` pairs.
    fn scan(name: &'static str, set: fn(&mut OperationShares), scan_pairs: u64) -> CostOperation {
        CostOperation { ordered: true, scan_pairs, ..CostOperation::new(name, set) }
    }

    /// Returns whether it is measured with values of `value` bytes and the key use `used`. Large
    /// values are not appended, as that is rare. A durable write has the same costs with every use,
    /// as it waits for the device.
    fn is_measured(&self, value: u64, used: &str) -> bool {
        !(self.durable > 0.0 && used != MEMORY || self.sequential && value > 1000)
    }

    fn mix(&self, of: &WorkloadMix) -> WorkloadMix {
        WorkloadMix {
            shares: self.shares.clone(),
            scan_pairs: self.scan_pairs,
            batch_size: self.batch,
            durable_share: self.durable,
            is_sequential: self.sequential,
            ..of.clone()
        }
    }
}

/// Returns all kinds in the order of measurement.
fn operations() -> Vec<CostOperation> {
    let overwrite: fn(&mut OperationShares) = |s| s.overwrite = 1.0;
    let new: fn(&mut OperationShares) = |s| s.new = 1.0;
    vec![
        CostOperation::new("get", |s| s.get = 1.0),
        CostOperation::new("miss", |s| s.miss = 1.0),
        CostOperation::new("contains", |s| s.contains = 1.0),
        CostOperation::scan(SEEK, |s| s.scan = 1.0, 1),
        CostOperation::scan("pair", |s| s.scan = 1.0, LONG_SCAN_PAIRS),
        CostOperation::scan("pair-back", |s| s.scan_reverse = 1.0, LONG_SCAN_PAIRS),
        CostOperation::new("tenth-overwrites", |s| (s.get, s.overwrite) = (0.9, 0.1)),
        CostOperation::new("half-overwrites", |s| (s.get, s.overwrite) = (0.5, 0.5)),
        CostOperation::new("half-new", |s| (s.get, s.new) = (0.5, 0.5)),
        CostOperation::new("update", |s| s.update = 1.0),
        CostOperation { sequential: true, ..CostOperation::new("append", new) },
        CostOperation { batch: BATCH, ..CostOperation::new("batch", overwrite) },
        CostOperation { batch: BATCH, ..CostOperation::new("batch-new", new) },
        CostOperation { durable: 1.0, ..CostOperation::new("durable", overwrite) },
    ]
}

/// Prints a line for each engine, kind, value size and key use.
pub(super) fn measure(options: &args::AdviseArgs, place: &RunDir) -> Result<()> {
    let began = Instant::now();
    let is_asked = |used: &str| is_selected(options, &[HOT, MEMORY, BEYOND_MEMORY], used);
    // For the smallest values, a budget below the size of the data would not hold the index.
    let runs = [(MEMORY, &SIZES[..]), (HOT, &SIZES[..HOT_SIZES]), (BEYOND_MEMORY, &SIZES[1..])];
    for (used, sizes) in runs.into_iter().filter(|(used, _)| is_asked(used)) {
        for size in sizes {
            measure_size(options, place, *size, used)?;
            let after = began.elapsed().as_secs_f64();
            eprintln!("{used}: values of {} bytes done after {after:.0} s", size.0);
        }
    }
    Ok(())
}

/// Returns whether `name` is measured: if the options name one of `names`, only named ones are.
fn is_selected(options: &args::AdviseArgs, names: &[&str], name: &str) -> bool {
    let named = |name: &str| options.only().iter().any(|only| only == name);
    named(name) || !names.iter().any(|name| named(name))
}

fn measure_size(
    options: &args::AdviseArgs,
    place: &RunDir,
    (value, pairs): (u64, u64),
    used: &str,
) -> Result<()> {
    let mut mix = MixRow { pairs, value, ..MixRow::default() }.mix();
    mix.shares.get = 1.0;
    mix.zipf = if used == HOT { ZIPF } else { 0.0 };
    let memory =
        if used == BEYOND_MEMORY { (mix.bytes() / 16).max(pairs * INDEX_BYTES_PER_KEY) } else { 1 << 30 };
    let mut subjects = Vec::new();
    for engine in ::sheaf::engines() {
        match ReplayDatabase::new(&place.fresh(engine)?, engine, &mix, memory, &never_stop) {
            Ok(Some(subject)) => subjects.push((engine, subject)),
            Ok(None) => {}
            Err(error) => eprintln!("{engine}, {value} bytes, {used}: {error}"),
        }
    }
    age_stores(subjects.iter().map(|(_, subject)| subject))?;
    let mut seeks = Vec::new();
    let kinds = operations();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let asked =
        |kind: &CostOperation| kind.is_measured(value, used) && is_selected(options, &names, kind.name);
    let needs_seek = kinds.iter().any(|kind| kind.scan_pairs == LONG_SCAN_PAIRS && asked(kind));
    for kind in kinds.iter().filter(|kind| asked(kind) || kind.name == SEEK && needs_seek) {
        let phase = if kind.shares.has_writes() { options.phase() * WRITES } else { options.phase() };
        let all = costs(&mut subjects, kind, &mix, phase);
        for &(engine, ns) in &all {
            let seek = seeks.iter().find(|(other, _)| *other == engine).map_or(0.0, |seek| seek.1);
            let ns = if kind.scan_pairs == LONG_SCAN_PAIRS {
                (ns - seek) / (LONG_SCAN_PAIRS - 1) as f64
            } else {
                ns
            };
            let (what, ns) = (kind.name, ns.max(1.0));
            println!("{engine}\t{what}\t{value}\t{used}\t{ns:.0}\tsheaf-bench advise --measure");
        }
        if kind.name == SEEK {
            seeks = all;
        }
    }
    for (engine, subject) in subjects {
        subject.close()?;
        place.clear(engine)?;
    }
    Ok(())
}

/// Returns the nanoseconds of an operation for each engine that supports it: the median of the
/// slices. The first slice is not counted.
fn costs(
    subjects: &mut [(&'static str, ReplayDatabase)],
    kind: &CostOperation,
    mix: &WorkloadMix,
    phase: Duration,
) -> Vec<(&'static str, f64)> {
    let is_ordered = |subject: &ReplayDatabase| {
        subject.keyspace().capabilities().is_ok_and(|capabilities| capabilities.ordered)
    };
    let mut able: Vec<_> =
        subjects.iter_mut().filter(|(_, subject)| !kind.ordered || is_ordered(subject)).collect();
    let mut taken: Vec<(&'static str, Vec<f64>)> =
        able.iter().map(|(engine, _)| (*engine, Vec::new())).collect();
    able.iter_mut().for_each(|(_, subject)| subject.set_mix(&kind.mix(mix)));
    for slice in 0..=SLICES {
        for ((engine, subject), (_, costs)) in able.iter_mut().zip(&mut taken) {
            subject.reset();
            match subject.run(phase / SLICES, &never_stop) {
                Ok(()) if slice > 0 => costs.push(1e9 / subject.outcome().per_second().max(1e-9)),
                Ok(()) => {}
                // An engine with an error gets no figure, because failed operations have no
                // meaningful time.
                Err(error) if slice == 0 => eprintln!("{engine} {}: {error}", kind.name),
                Err(_) => {}
            }
        }
    }
    taken.retain(|(_, costs)| costs.len() == SLICES as usize);
    taken.into_iter().filter_map(|(engine, costs)| Some((engine, median(&costs)?))).collect()
}
