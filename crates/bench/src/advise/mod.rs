//! # Advise: is what `sheaf advise` says true?
//!
//! *Judging* (`sheaf-bench advise`): loads that no cost was measured with (`tables/advise.toml`) run on every engine, in turns, slice by slice. Each
//! engine's sketch of its own run is what is asked for advice. The advice is right if the engine it names was the fastest, or within 5 % of it, or if
//! the fastest cannot be told from it: it was ahead in too many of the turns for chance to be ruled out (a sign test, at one in twenty).
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
/// ... or if an engine as fast as the fastest would be ahead of it in so few turns more often than this.
const CHANCE: f64 = 0.05;

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
    println!(
        "| workload | measured (predicted), thousand operations a second | advised (predicted) | of the fastest | |"
    );
    println!("|---|---|---|---|---|");
    for row in mixes {
        all += 1;
        right += u32::from(judge_one(options, place, row)?);
    }
    println!("\n{right} of {all} advised engines were the fastest, or within 5 % of it");
    Ok(())
}

/// An engine that is judged by.
struct Judge {
    engine: &'static str,
    subject: Subject,
    /// Operations a second, turn by turn.
    turns: Vec<f64>,
}

/// What it found: its speed, that of each turn, and what the sketch of its run says.
struct Found {
    engine: &'static str,
    speed: f64,
    turns: Vec<f64>,
    advice: Advice,
}

/// A load on every engine that can have it.
fn judge_one(options: &args::Advise, place: &Place, row: &Row) -> Result<bool> {
    let mix = row.mix();
    let memory = row.memory << 20;
    let mut judges = Vec::new();
    for engine in candidates(&mix) {
        let dir = place.fresh(&format!("{}-{engine}", row.name))?;
        match Subject::new(&dir, engine, &mix, memory, &never) {
            Ok(Some(subject)) => judges.push(Judge { engine, subject, turns: Vec::new() }),
            Ok(None) => {}
            Err(error) => eprintln!("{}: {engine} cannot store it: {error}", row.name),
        }
    }
    of_age(judges.iter().map(|judge| &judge.subject))?;
    in_turns(&row.name, &mut judges, options.phase());
    let mut all = Vec::new();
    for Judge { engine, subject, turns } in judges {
        let (load, keys) = (subject.keyspace().load()?, subject.keyspace().len()?);
        let advice = advise(&Question { load: &load, keys, memory });
        all.push(Found { engine, speed: subject.outcome().per_second(), turns, advice });
        subject.close()?;
        place.clear(&format!("{}-{engine}", row.name))?;
    }
    Ok(report(row, all))
}

/// Prints a line; true if the advice was right, whichever engine had been asked: the worst of them counts.
fn report(row: &Row, mut all: Vec<Found>) -> bool {
    all.sort_by(|a, b| b.speed.total_cmp(&a.speed));
    let Some(fastest) = all.first() else { return false };
    let speeds: Vec<String> = all.iter().map(speeds).collect();
    let asked = all.iter().filter(|found| found.advice.sureness != Sureness::No);
    let advised = asked.filter_map(|found| {
        let best = found.advice.candidates.first()?;
        Some((all.iter().find(|other| other.engine == best.engine)?, 1e6 / best.ns))
    });
    let worst = advised.min_by(|a, b| a.0.speed.total_cmp(&b.0.speed));
    let Some((advised, predicted)) = worst else {
        println!(
            "| {}: {} | {} | nothing: too few operations | | **wrong** |",
            row.name,
            row.about,
            speeds.join(", ")
        );
        return false;
    };
    let part = advised.speed / fastest.speed;
    let ahead = advised.turns.iter().zip(&fastest.turns).filter(|(own, other)| own > other).count();
    let is_tie = chance_of_at_most(ahead, fastest.turns.len()) > CHANCE;
    let is_right = part >= RIGHT || is_tie;
    let mark = match is_right {
        true if part >= RIGHT => "right",
        true => "right: not distinguishable",
        false => "**wrong**",
    };
    println!(
        "| {}: {} | {} | {} ({predicted:.1}) | {:.0} %, ahead in {ahead} of {} turns | {mark} |",
        row.name,
        row.about,
        speeds.join(", "),
        advised.engine,
        part * 100.0,
        fastest.turns.len()
    );
    is_right
}

/// How often a coin that is thrown `throws` times shows heads at most `heads` times.
fn chance_of_at_most(heads: usize, throws: usize) -> f64 {
    let mut ways = 1.0; // to have so many heads
    let mut sum = 0.0;
    for count in 0..=heads.min(throws) {
        sum += ways;
        ways *= (throws - count) as f64 / (count + 1) as f64;
    }
    sum / 2f64.powf(throws as f64)
}

/// An engine's speed, and what its own sketch let expect of it.
fn speeds(found: &Found) -> String {
    let own = found.advice.candidates.iter().find(|candidate| candidate.engine == found.engine);
    let predicted = own.map_or("none".to_owned(), |candidate| format!("{:.1}", 1e6 / candidate.ns));
    format!("{} {:.1} ({predicted})", found.engine, found.speed / 1e3)
}

/// The engines that a mix can be given to.
fn candidates(mix: &Mix) -> Vec<&'static str> {
    let unordered = |engine: &str| matches!(engine, "flat" | "cedrus");
    ::sheaf::engines().into_iter().filter(|engine| !(mix.scans() && unordered(engine))).collect()
}

/// Subjects of some age, whose sketches have not seen how they came by it.
fn of_age<'s>(mut subjects: impl Iterator<Item = &'s Subject>) -> Result<()> {
    settle(REST);
    subjects.try_for_each(|subject| {
        subject.warm(&never)?;
        Ok(subject.keyspace().forget_load()?)
    })
}

/// Gives each the load for so long, in turns. The first turn of each is not counted. Who refuses the load is out.
fn in_turns(name: &str, judges: &mut Vec<Judge>, lasting: Duration) {
    let turns = (lasting.as_millis() / SLICE.as_millis()).max(1);
    for turn in 0..=turns {
        judges.retain_mut(|Judge { engine, subject, turns }| {
            let (operations, took) = (subject.outcome().operations, subject.outcome().took);
            if let Err(error) = subject.run(SLICE, &never) {
                eprintln!("{name}: {engine} failed: {error}");
                return false;
            }
            if turn == 0 {
                subject.reset();
            } else {
                let now = subject.outcome();
                turns.push((now.operations - operations) as f64 / (now.took - took).as_secs_f64().max(1e-9));
            }
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coin_shows_heads_half_of_the_time() {
        assert_eq!(chance_of_at_most(0, 1), 0.5);
        assert_eq!(chance_of_at_most(8, 8), 1.0);
        assert_eq!(chance_of_at_most(1, 8), 9.0 / 256.0);
    }
}
