//! # Advise: is what `sheaf advise` says true?
//!
//! *Judging* (`sheaf-bench advise`): loads that no cost was measured with (`tables/advise.toml`) run on every engine, in turns, slice by slice. Each
//! engine's sketch of its own run is what is asked for advice. The advice is right if the engine it names was the fastest, or within 5 % of it.
//!
//! *Measuring* (`sheaf-bench advise --measure`, module `costs`): the costs that the advice goes by, as lines of
//! `crates/sheaf/src/advise/costs.tsv`.
//!
//! For both, databases are of some age first: what came in has its place, and what memory can hold is there. Right after a fill a
//! memtable may have all of it, which flatters.

mod costs;

use std::time::Duration;

use ::sheaf::Spread;
use ::sheaf::advise::{Advice, Question, Sureness, advise};
use serde::Deserialize;
use sheaf_replay::{Mix, Shares, Subject};

use crate::Result;
use crate::args;
use crate::measure::settle;
use crate::place::Place;

const TABLE: &str = include_str!("../../tables/advise.toml");
/// Disk that all databases of a load may take.
const NEED: u64 = 6 << 30;
/// Length of a turn.
const SLICE: Duration = Duration::from_millis(250);
/// The longest wait for the background.
const REST: Duration = Duration::from_secs(20);
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
    if options.measure { costs::measure(options, &place) } else { judge(options, &place) }
}

fn judge(options: &args::Advise, place: &Place) -> Result<()> {
    let table: Table = toml::from_str(TABLE)?;
    let mixes =
        table.mix.iter().filter(|row| options.only().is_empty() || options.only().contains(&row.name));
    let (mut right, mut all) = (0, 0);
    println!("| load | measured (predicted), thousand operations a second | advised (predicted) | of the fastest | |");
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
    of_age(&subjects)?;
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
    let speeds: Vec<String> = asked.iter().map(|(name, speed, advice)| speeds(name, *speed, advice)).collect();
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

/// An engine's speed, and what its own sketch let expect of it.
fn speeds(name: &str, speed: f64, advice: &Advice) -> String {
    let predicted = advice.candidates.iter().find(|candidate| candidate.engine == name);
    let predicted = predicted.map_or("none".to_owned(), |candidate| format!("{:.1}", 1e6 / candidate.ns));
    format!("{name} {:.1} ({predicted})", speed / 1e3)
}

/// The engines that a mix can be given to.
fn candidates(mix: &Mix) -> Vec<&'static str> {
    let unordered = |engine: &str| matches!(engine, "flat" | "cedrus");
    ::sheaf::engines().into_iter().filter(|engine| !(mix.scans() && unordered(engine))).collect()
}

/// Subjects of some age, whose sketches have not seen how they came by it.
fn of_age(subjects: &[(&'static str, Subject)]) -> Result<()> {
    settle(REST);
    subjects.iter().try_for_each(|(_, subject)| {
        subject.warm(&never)?;
        Ok(subject.keyspace().forget_load()?)
    })
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
