//! # Costs: what each engine takes for each kind of operation
//!
//! All engines do the same kind in turns, slice by slice, so that what disturbs the machine or the device disturbs all. First what reads,
//! then what writes; the background works off what is written, so writes are measured longer. Single writes are measured among gets: nothing
//! but writes, by a thread that does nothing else, is bound by the device sooner than by the engine.
//!
//! All keys are used alike, or (*hot*) by a Zipf distribution: then caches of the processor answer most of it, and what is overwritten was written just before,
//! which log cleaners like. Costs beyond memory are those of a budget of a sixteenth of the data, with the page cache as the machine has it: what a miss of the
//! engine's own cache costs, and not what the device does.

use std::time::{Duration, Instant};

use sheaf_replay::{Mix, Shares, Subject};

use super::{Row, never, of_age};
use crate::Result;
use crate::args;
use crate::measure::median;
use crate::place::Place;

/// Bytes of values, and how many pairs of each: more than the processor's caches hold.
const SIZES: [(u64, u64); 6] =
    [(10, 1_500_000), (100, 800_000), (1_000, 150_000), (10_000, 12_000), (50_000, 2_500), (100_000, 1_200)];
/// A budget holds the index, of so many bytes a key at most.
const INDEXED: u64 = 32;
/// Exponent of the distribution of hot keys, and with how many of the sizes they are measured: of large values the copy costs what there is
/// to cost.
const ZIPF: f64 = 0.99;
const HOT_SIZES: usize = 4;
/// Slices of each kind; the median counts.
const SLICES: u32 = 7;
/// Writes are measured so many times as long as reads.
const WRITES: u32 = 3;
/// Writes of a commit that has many.
const BATCH: u64 = 50;
/// Pairs of the long scans that the cost of a pair is taken from.
const LONG: u64 = 100;

const SEEK: &str = "seek";

/// How keys are used, as the table names it.
const HOT: &str = "hot";
const MEMORY: &str = "memory";
const BEYOND: &str = "beyond";

/// A kind of operation: the table's name for it, the load, and what it takes.
struct Kind {
    name: &'static str,
    shares: Shares,
    /// Needs engines that keep order.
    ordered: bool,
    scan_pairs: u64,
    batch: u64,
    durable: f64,
    sequential: bool,
}

impl Kind {
    fn new(name: &'static str, set: fn(&mut Shares)) -> Kind {
        let mut shares = Shares::default();
        set(&mut shares);
        let (durable, sequential) = (0.0, false);
        Kind { name, shares, ordered: false, scan_pairs: 1, batch: 1, durable, sequential }
    }

    /// A scan of so many pairs.
    fn scan(name: &'static str, set: fn(&mut Shares), scan_pairs: u64) -> Kind {
        Kind { ordered: true, scan_pairs, ..Kind::new(name, set) }
    }

    /// Whether it is measured with values of so many bytes there: large ones are not appended all day, and what waits for the device is
    /// the same everywhere.
    fn is_asked(&self, value: u64, used: &str) -> bool {
        !(self.durable > 0.0 && used != MEMORY || self.sequential && value > 1000)
    }

    fn mix(&self, of: &Mix) -> Mix {
        Mix {
            shares: self.shares.clone(),
            scan_pairs: self.scan_pairs,
            batch: self.batch,
            durable: self.durable,
            sequential: self.sequential,
            ..of.clone()
        }
    }
}

/// What is measured, in this order.
fn kinds() -> Vec<Kind> {
    let overwrite: fn(&mut Shares) = |s| s.overwrite = 1.0;
    let new: fn(&mut Shares) = |s| s.new = 1.0;
    vec![
        Kind::new("get", |s| s.get = 1.0),
        Kind::new("miss", |s| s.miss = 1.0),
        Kind::new("contains", |s| s.contains = 1.0),
        Kind::scan(SEEK, |s| s.scan = 1.0, 1),
        Kind::scan("pair", |s| s.scan = 1.0, LONG),
        Kind::scan("pair-back", |s| s.scan_reverse = 1.0, LONG),
        Kind::new("tenth-overwrites", |s| (s.get, s.overwrite) = (0.9, 0.1)),
        Kind::new("half-overwrites", |s| (s.get, s.overwrite) = (0.5, 0.5)),
        Kind::new("half-new", |s| (s.get, s.new) = (0.5, 0.5)),
        Kind::new("update", |s| s.update = 1.0),
        Kind { sequential: true, ..Kind::new("append", new) },
        Kind { batch: BATCH, ..Kind::new("batch", overwrite) },
        Kind { batch: BATCH, ..Kind::new("batch-new", new) },
        Kind { durable: 1.0, ..Kind::new("durable", overwrite) },
    ]
}

/// Prints a line for each engine, kind, size of value and use of keys.
pub(super) fn measure(options: &args::Advise, place: &Place) -> Result<()> {
    let began = Instant::now();
    let is_asked = |used: &str| is_asked(options, &[HOT, MEMORY, BEYOND], used);
    // Of the smallest values, a budget that does not hold the data does not hold an index either.
    let runs = [(MEMORY, &SIZES[..]), (HOT, &SIZES[..HOT_SIZES]), (BEYOND, &SIZES[1..])];
    for (used, sizes) in runs.into_iter().filter(|(used, _)| is_asked(used)) {
        for size in sizes {
            measure_size(options, place, *size, used)?;
            let after = began.elapsed().as_secs_f64();
            eprintln!("{used}: values of {} bytes done after {after:.0} s", size.0);
        }
    }
    Ok(())
}

/// Whether a name among `names` is to be measured: all are unless one of them was named.
fn is_asked(options: &args::Advise, names: &[&str], name: &str) -> bool {
    let named = |name: &str| options.only().iter().any(|only| only == name);
    named(name) || !names.iter().any(|name| named(name))
}

fn measure_size(options: &args::Advise, place: &Place, (value, pairs): (u64, u64), used: &str) -> Result<()> {
    let mut mix = Row { pairs, value, ..Row::default() }.mix();
    mix.shares.get = 1.0;
    mix.zipf = if used == HOT { ZIPF } else { 0.0 };
    let memory = if used == BEYOND { (mix.bytes() / 16).max(pairs * INDEXED) } else { 1 << 30 };
    let mut subjects = Vec::new();
    for engine in ::sheaf::engines() {
        match Subject::new(&place.fresh(engine)?, engine, &mix, memory, &never) {
            Ok(Some(subject)) => subjects.push((engine, subject)),
            Ok(None) => {}
            Err(error) => eprintln!("{engine}, {value} bytes, {used}: {error}"),
        }
    }
    of_age(subjects.iter().map(|(_, subject)| subject))?;
    let mut seeks = Vec::new();
    let kinds = kinds();
    let names: Vec<&str> = kinds.iter().map(|kind| kind.name).collect();
    let asked = |kind: &Kind| kind.is_asked(value, used) && is_asked(options, &names, kind.name);
    let needs_seek = kinds.iter().any(|kind| kind.scan_pairs == LONG && asked(kind));
    for kind in kinds.iter().filter(|kind| asked(kind) || kind.name == SEEK && needs_seek) {
        let phase = if kind.shares.writes() { options.phase() * WRITES } else { options.phase() };
        let all = costs(&mut subjects, kind, &mix, phase);
        for &(engine, ns) in &all {
            let seek = seeks.iter().find(|(other, _)| *other == engine).map_or(0.0, |seek| seek.1);
            let ns = if kind.scan_pairs == LONG { (ns - seek) / (LONG - 1) as f64 } else { ns };
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

/// Nanoseconds of an operation of each engine that can do it: the median of slices, after one that is not counted.
fn costs(
    subjects: &mut [(&'static str, Subject)],
    kind: &Kind,
    mix: &Mix,
    phase: Duration,
) -> Vec<(&'static str, f64)> {
    let is_ordered = |engine: &str| !matches!(engine, "flat" | "cedrus");
    let mut able: Vec<_> =
        subjects.iter_mut().filter(|(engine, _)| !kind.ordered || is_ordered(engine)).collect();
    let mut taken: Vec<(&'static str, Vec<f64>)> =
        able.iter().map(|(engine, _)| (*engine, Vec::new())).collect();
    able.iter_mut().for_each(|(_, subject)| subject.change(&kind.mix(mix)));
    for slice in 0..=SLICES {
        for ((engine, subject), (_, costs)) in able.iter_mut().zip(&mut taken) {
            subject.reset();
            match subject.run(phase / SLICES, &never) {
                Ok(()) if slice > 0 => costs.push(1e9 / subject.outcome().per_second().max(1e-9)),
                Ok(()) => {}
                // No figure is better than one of refusals.
                Err(error) if slice == 0 => eprintln!("{engine} {}: {error}", kind.name),
                Err(_) => {}
            }
        }
    }
    taken.retain(|(_, costs)| costs.len() == SLICES as usize);
    taken.into_iter().filter_map(|(engine, costs)| Some((engine, median(&costs)?))).collect()
}
