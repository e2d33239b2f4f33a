//! # Costs: what each engine takes for each kind of operation
//!
//! All engines do the same kind in turns, slice by slice, so that what disturbs the machine or the device disturbs all. First what reads,
//! then what writes; the background works off what is written, so writes are measured longer.
//!
//! Costs beyond memory are those of a budget of a sixteenth of the data, with the page cache as the machine has it: what a miss of the
//! engine's own cache costs, and not what the device does.

use std::time::{Duration, Instant};

use sheaf_replay::{Mix, Shares, Subject};

use super::{Row, never, of_age};
use crate::Result;
use crate::args;
use crate::measure::median;
use crate::place::Place;

/// Bytes of values, and how many pairs of each.
const SIZES: [(u64, u64); 6] =
    [(10, 400_000), (100, 200_000), (1_000, 40_000), (10_000, 4_000), (50_000, 1_000), (100_000, 500)];
/// Slices of each kind; the median counts.
const SLICES: u32 = 7;
/// Writes are measured so many times as long as reads.
const WRITES: u32 = 3;
/// The share of the operations that write where single writes are measured; the others are gets, whose cost is taken off. Nothing but
/// writes, by a thread that does nothing else, is bound by the device sooner than by the engine.
const AMONG_GETS: f64 = 0.5;
/// The share of the operations that write where gets among writes are measured.
const SOME_WRITES: f64 = 0.1;
/// Writes of a commit that has many.
const BATCH: u64 = 50;
/// Pairs of the long scans that the cost of a pair is taken from.
const LONG: u64 = 100;

const OVERWRITE: &str = "overwrite";
const GET_AMONG_WRITES: &str = "get-among-writes";

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
    /// Done among gets.
    among_gets: bool,
}

impl Kind {
    fn new(name: &'static str, set: fn(&mut Shares)) -> Kind {
        let mut shares = Shares::default();
        set(&mut shares);
        let (durable, sequential, among_gets) = (0.0, false, false);
        Kind { name, shares, ordered: false, scan_pairs: 1, batch: 1, durable, sequential, among_gets }
    }

    /// A write of one pair.
    fn write(name: &'static str, set: fn(&mut Shares)) -> Kind {
        let mut kind = Kind { among_gets: true, ..Kind::new(name, set) };
        kind.shares.get = 1.0 / AMONG_GETS - 1.0;
        kind
    }

    /// A scan of so many pairs.
    fn scan(name: &'static str, set: fn(&mut Shares), scan_pairs: u64) -> Kind {
        Kind { ordered: true, scan_pairs, ..Kind::new(name, set) }
    }

    /// Whether it is measured with values of so many bytes: large ones are not appended all day, and what waits for the device has no
    /// use for memory.
    fn is_asked(&self, value: u64, fits: bool) -> bool {
        !(self.durable > 0.0 && !fits || self.sequential && value > 1000)
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
        Kind::scan("seek", |s| s.scan = 1.0, 1),
        Kind::scan("pair", |s| s.scan = 1.0, LONG),
        Kind::scan("pair-back", |s| s.scan_reverse = 1.0, LONG),
        Kind::write(OVERWRITE, overwrite),
        Kind::new(GET_AMONG_WRITES, |s| (s.get, s.overwrite) = (1.0 - SOME_WRITES, SOME_WRITES)),
        Kind::write("new", new),
        Kind { sequential: true, ..Kind::new("append", new) },
        Kind { batch: BATCH, ..Kind::new("batch", overwrite) },
        Kind { batch: BATCH, ..Kind::new("batch-new", new) },
        Kind { durable: 1.0, ..Kind::new("durable", overwrite) },
    ]
}

/// Prints a line for each engine, kind, size of value and memory.
pub(super) fn measure(options: &args::Advise, place: &Place) -> Result<()> {
    let began = Instant::now();
    for size in SIZES {
        measure_size(options, place, size, true)?;
        // Of the smallest, a budget that does not hold the data does not hold an index either.
        if size != SIZES[0] {
            measure_size(options, place, size, false)?;
        }
        eprintln!("values of {} bytes done after {:.0} s", size.0, began.elapsed().as_secs_f64());
    }
    Ok(())
}

fn measure_size(options: &args::Advise, place: &Place, (value, pairs): (u64, u64), fits: bool) -> Result<()> {
    let mut mix = Row { pairs, value, ..Row::default() }.mix();
    mix.shares.get = 1.0;
    let memory = if fits { 1 << 30 } else { (mix.bytes() / 16).max(4 << 20) };
    let mut subjects = Vec::new();
    for engine in ::sheaf::engines() {
        match Subject::new(&place.fresh(engine)?, engine, &mix, memory, &never) {
            Ok(Some(subject)) => subjects.push((engine, subject)),
            Ok(None) => {}
            Err(error) => eprintln!("{engine}, {value} bytes, fits {fits}: {error}"),
        }
    }
    of_age(&subjects)?;
    let mut all = Measured::default();
    for kind in kinds().iter().filter(|kind| kind.is_asked(value, fits)) {
        let phase = if kind.shares.writes() { options.phase() * WRITES } else { options.phase() };
        for (engine, ns) in costs(&mut subjects, kind, &mix, phase) {
            all.0.push((engine, kind.name, kind.among_gets, ns));
        }
    }
    let place_of = if fits { "memory" } else { "beyond" };
    for (engine, kind, ns) in all.costs() {
        println!("{engine}\t{kind}\t{value}\t{place_of}\t{ns:.0}\tsheaf-bench advise --measure");
    }
    for (engine, subject) in subjects {
        subject.close()?;
        place.clear(engine)?;
    }
    Ok(())
}

/// Engine, kind, whether among gets, and nanoseconds of an operation of that load.
#[derive(Default)]
struct Measured(Vec<(&'static str, &'static str, bool, f64)>);

impl Measured {
    fn of(&self, engine: &str, kind: &str) -> f64 {
        self.0.iter().find(|row| (row.0, row.1) == (engine, kind)).map_or(0.0, |row| row.3)
    }

    /// Of two loads with different shares of writes, what a get takes in them.
    fn get_among_writes(&self, engine: &str) -> f64 {
        let (few, many) = (self.of(engine, GET_AMONG_WRITES), self.of(engine, OVERWRITE));
        let part = SOME_WRITES / AMONG_GETS;
        (few - part * many) / (1.0 - SOME_WRITES - part * (1.0 - AMONG_GETS))
    }

    /// What one operation of each kind takes: without the gets it was done among, without the seek before the pairs.
    fn costs(&self) -> impl Iterator<Item = (&'static str, &'static str, f64)> {
        self.0.iter().map(|&(engine, kind, among_gets, ns)| {
            let ns = match kind {
                GET_AMONG_WRITES => self.get_among_writes(engine),
                "pair" | "pair-back" => (ns - self.of(engine, "seek")) / (LONG - 1) as f64,
                _ if among_gets => (ns - (1.0 - AMONG_GETS) * self.get_among_writes(engine)) / AMONG_GETS,
                _ => ns,
            };
            (engine, kind, ns.max(1.0))
        })
    }
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
