//! # Advise: is what `sheaf advise` says true?
//!
//! *Judging* (`sheaf-bench advise`): loads that no cost was measured with (`tables/advise.toml`) run on every engine, in turns, slice by slice. Each
//! engine's sketch of its own run is what is asked for advice. The advice is right if the engine it names was the fastest, or within 5 % of it.
//!
//! *Measuring* (`sheaf-bench advise --measure`): the costs that the advice goes by, one kind of operation at a time, as lines of
//! `crates/sheaf/src/advise/costs.tsv`. Costs outside memory are those of a budget of a sixteenth of the data, with the page cache as the
//! machine has it: what a miss of the engine's own cache costs, and not what the device does.

use std::time::{Duration, Instant};

use ::sheaf::Spread;
use ::sheaf::advise::{Advice, Question, Sureness, advise};
use serde::Deserialize;
use sheaf_replay::{Mix, Shares, Subject};

use crate::Result;
use crate::args;
use crate::measure::median;
use crate::place::Place;

const TABLE: &str = include_str!("../tables/advise.toml");
/// Disk that all databases of a load may take.
const NEED: u64 = 6 << 30;
/// Length of a turn.
const SLICE: Duration = Duration::from_millis(250);
/// The advice is right within this of the fastest.
const RIGHT: f64 = 0.95;

#[derive(Deserialize)]
struct Table {
    mix: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Row {
    name: String,
    about: String,
    pairs: u64,
    key: usize,
    value: u64,
    value_p99: Option<u64>,
    get: f64,
    miss: f64,
    contains: f64,
    new: f64,
    overwrite: f64,
    remove: f64,
    update: f64,
    scan: f64,
    scan_reverse: f64,
    zipf: f64,
    scan_pairs: u64,
    sequential: bool,
    durable: f64,
    batch: u64,
    memory: u64,
}

impl Default for Row {
    fn default() -> Row {
        Row {
            name: String::new(),
            about: String::new(),
            pairs: 100_000,
            key: 16,
            value: 100,
            value_p99: None,
            get: 0.0,
            miss: 0.0,
            contains: 0.0,
            new: 0.0,
            overwrite: 0.0,
            remove: 0.0,
            update: 0.0,
            scan: 0.0,
            scan_reverse: 0.0,
            zipf: 0.0,
            scan_pairs: 1,
            sequential: false,
            durable: 0.0,
            batch: 1,
            memory: 1024,
        }
    }
}

impl Row {
    fn mix(&self) -> Mix {
        let p99 = self.value_p99.unwrap_or(self.value);
        Mix {
            pairs: self.pairs,
            key_bytes: self.key,
            value_bytes: Spread { mean: self.value as f64, p50: self.value, p99 },
            shares: Shares {
                get: self.get,
                miss: self.miss,
                contains: self.contains,
                new: self.new,
                overwrite: self.overwrite,
                remove: self.remove,
                update: self.update,
                scan: self.scan,
                scan_reverse: self.scan_reverse,
            },
            zipf: self.zipf,
            scan_pairs: self.scan_pairs,
            sequential: self.sequential,
            durable: self.durable,
            batch: self.batch,
        }
    }
}

/// Nobody stops it but a signal, which ends the process.
fn never() -> bool {
    false
}

/// Judges, or measures.
pub(crate) fn run(options: &args::Advise) -> Result<()> {
    let place = Place::new(&options.dir.path, NEED)?;
    if options.measure { measure(options, &place) } else { judge(options, &place) }
}

fn judge(options: &args::Advise, place: &Place) -> Result<()> {
    let table: Table = toml::from_str(TABLE)?;
    let mixes =
        table.mix.iter().filter(|row| options.only().is_empty() || options.only().contains(&row.name));
    let (mut right, mut all) = (0, 0);
    println!("| load | measured, thousand operations a second | advised (predicted) | of the fastest | |");
    println!("|---|---|---|---|---|");
    for row in mixes {
        all += 1;
        right += u32::from(judge_one(options, place, row)?);
    }
    println!("\n{right} of {all} advised engines were the fastest, or within 5 % of it");
    Ok(())
}

/// A load on every engine that can have it.
fn judge_one(options: &args::Advise, place: &Place, row: &Row) -> Result<bool> {
    let mix = row.mix();
    let memory = row.memory << 20;
    let mut subjects = Vec::new();
    for engine in candidates(&mix) {
        let dir = place.fresh(&format!("{}-{engine}", row.name))?;
        match Subject::new(&dir, engine, &mix, memory, &never) {
            Ok(Some(subject)) => subjects.push((engine, subject)),
            Ok(None) => {}
            Err(error) => eprintln!("{}: {engine} cannot have it: {error}", row.name),
        }
    }
    in_turns(&row.name, &mut subjects, options.phase());
    let asked: Vec<(&str, f64, Advice)> =
        subjects.iter().map(|(engine, subject)| ask(engine, subject, memory)).collect::<Result<_>>()?;
    for (engine, subject) in subjects {
        subject.close()?;
        place.clear(&format!("{}-{engine}", row.name))?;
    }
    Ok(report(row, asked))
}

/// The engine's speed, and what the sketch of its run says.
fn ask<'e>(engine: &'e str, subject: &Subject, memory: u64) -> Result<(&'e str, f64, Advice)> {
    let (load, keys) = (subject.keyspace().load()?, subject.keyspace().len()?);
    let advice = advise(&Question { load: &load, keys, memory });
    Ok((engine, subject.outcome().per_second(), advice))
}

/// Prints a line; true if the advice was right, whichever engine had been asked: the worst of them counts.
fn report(row: &Row, mut asked: Vec<(&str, f64, Advice)>) -> bool {
    asked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let Some(fastest) = asked.first().map(|first| first.1) else { return false };
    let speeds: Vec<String> =
        asked.iter().map(|(name, speed, _)| format!("{name} {:.1}", speed / 1e3)).collect();
    let speed_of = |name: &str| asked.iter().find(|(other, ..)| *other == name).map_or(0.0, |found| found.1);
    let mut worst: Option<(f64, String)> = None;
    for (_, _, advice) in asked.iter().filter(|(.., advice)| advice.sureness != Sureness::No) {
        let Some(best) = advice.candidates.first() else { continue };
        let part = speed_of(best.engine) / fastest;
        if worst.as_ref().is_none_or(|worst| part < worst.0) {
            worst = Some((part, format!("{} ({:.1})", best.engine, 1e6 / best.ns)));
        }
    }
    let (part, advised) = worst.unwrap_or((0.0, "nothing: too few operations".to_owned()));
    let is_right = part >= RIGHT;
    let mark = if is_right { "right" } else { "**wrong**" };
    println!(
        "| {}: {} | {} | {advised} | {:.0} % | {mark} |",
        row.name,
        row.about,
        speeds.join(", "),
        part * 100.0
    );
    is_right
}

/// The engines that a mix can be given to.
fn candidates(mix: &Mix) -> Vec<&'static str> {
    let unordered = |engine: &str| matches!(engine, "flat" | "cedrus");
    ::sheaf::engines().into_iter().filter(|engine| !(mix.scans() && unordered(engine))).collect()
}

/// Gives each the load for so long, in turns. The first turn of each is not counted. Who refuses the load is out.
fn in_turns(name: &str, subjects: &mut Vec<(&'static str, Subject)>, lasting: Duration) {
    let turns = (lasting.as_millis() / SLICE.as_millis()).max(1);
    for turn in 0..=turns {
        subjects.retain_mut(|(engine, subject)| match subject.run(SLICE, &never) {
            Ok(()) => {
                if turn == 0 {
                    subject.reset();
                }
                true
            }
            Err(error) => {
                eprintln!("{name}: {engine} cannot go on with it: {error}");
                false
            }
        });
    }
}

/// Bytes of values that costs are measured at, and how many pairs of each.
const SIZES: [(u64, u64); 4] = [(100, 200_000), (1_000, 40_000), (10_000, 4_000), (100_000, 500)];

/// What is measured: the table's name for it, the load, and whether it needs order.
fn kinds() -> Vec<(&'static str, Shares, bool)> {
    let one = |set: fn(&mut Shares)| {
        let mut shares = Shares::default();
        set(&mut shares);
        shares
    };
    vec![
        ("get", one(|s| s.get = 1.0), false),
        ("miss", one(|s| s.miss = 1.0), false),
        ("contains", one(|s| s.contains = 1.0), false),
        ("seek", one(|s| s.scan = 1.0), true),
        ("pair", one(|s| s.scan = 1.0), true),
        ("pair-back", one(|s| s.scan_reverse = 1.0), true),
        ("overwrite", one(|s| s.overwrite = 1.0), false),
        ("batch", one(|s| s.overwrite = 1.0), false),
        ("new", one(|s| s.new = 1.0), false),
        ("append", one(|s| s.new = 1.0), false),
        ("durable", one(|s| s.overwrite = 1.0), false),
    ]
}

/// Pairs of the long scans that the cost of a pair is taken from.
const LONG: u64 = 100;

fn measure(options: &args::Advise, place: &Place) -> Result<()> {
    let began = Instant::now();
    let command = "sheaf-bench advise --measure";
    for (value, pairs) in SIZES {
        for fits in [true, false] {
            for engine in ::sheaf::engines() {
                let rows = match measure_engine(options, place, engine, (value, pairs), fits) {
                    Ok(rows) => rows,
                    Err(error) => {
                        eprintln!("{engine}, {value} bytes, fits {fits}: {error}");
                        continue;
                    }
                };
                for (what, ns) in rows {
                    let place = if fits { "memory" } else { "beyond" };
                    println!("{engine}\t{what}\t{value}\t{place}\t{ns:.0}\t{command}");
                }
            }
        }
        eprintln!("values of {value} bytes done after {:.0} s", began.elapsed().as_secs_f64());
    }
    Ok(())
}

/// Each kind of operation on one database.
fn measure_engine(
    options: &args::Advise,
    place: &Place,
    engine: &'static str,
    (value, pairs): (u64, u64),
    fits: bool,
) -> Result<Vec<(&'static str, f64)>> {
    let mut mix = Row { pairs, value, ..Row::default() }.mix();
    let memory = if fits { 1 << 30 } else { (mix.bytes() / 16).max(4 << 20) };
    let dir = place.fresh(engine)?;
    let ordered = !matches!(engine, "flat" | "cedrus");
    mix.shares.get = 1.0;
    let Some(mut subject) = Subject::new(&dir, engine, &mix, memory, &never)? else { return Ok(Vec::new()) };
    if fits {
        subject.warm(&never)?;
    }
    let (mut rows, mut seek) = (Vec::new(), 0.0);
    for (what, shares, needs_order) in kinds() {
        let is_fitting = !needs_order || ordered;
        if !is_fitting || (!fits && what == "durable") || (what == "append" && value > 1000) {
            continue;
        }
        let mut asked = Mix { shares, ..mix.clone() };
        asked.scan_pairs = if what.starts_with("pair") { LONG } else { 1 };
        asked.batch = if what == "batch" { 50 } else { 1 };
        asked.durable = f64::from(u8::from(what == "durable"));
        asked.sequential = what == "append";
        let ns = match cost(&mut subject, &asked, options.phase()) {
            Ok(ns) => ns,
            Err(error) => {
                eprintln!("{engine} {what}, {value} bytes, fits {fits}: {error}");
                continue; // no figure is better than one of refusals
            }
        };
        match what {
            "seek" => seek = ns,
            "pair" | "pair-back" => {
                rows.push((what, ((ns - seek) / (LONG - 1) as f64).max(1.0)));
                continue;
            }
            _ => {}
        }
        rows.push((what, ns));
    }
    subject.close()?;
    place.clear(engine)?;
    Ok(rows)
}

/// Nanoseconds of an operation: the median of five slices, after one that is not counted.
fn cost(subject: &mut Subject, mix: &Mix, lasting: Duration) -> Result<f64> {
    subject.change(mix);
    let mut costs = Vec::new();
    for slice in 0..6 {
        subject.reset();
        subject.run(lasting / 6, &never)?;
        if slice > 0 {
            costs.push(1e9 / subject.outcome().per_second().max(1e-9));
        }
    }
    Ok(median(&costs).unwrap_or(0.0))
}
