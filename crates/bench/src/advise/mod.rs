//! # Advise: a test of the advice of `sheaf advise`
//!
//! *Check* (`sheaf-bench advise`): workloads that are not in the measured costs
//! (`tables/advise.toml`) run on every engine, in turns of one slice each. The workload statistics
//! of each engine's own run are the input of one advice. The advice is right if the advised engine
//! was the fastest or within 5 % of it. It is also right if a sign test at the level of 5 % cannot
//! tell the two engines apart.
//!
//! *Measurement* (`sheaf-bench advise --measure`, module `costs`): the costs that the advice uses,
//! as lines of `crates/advisor/src/advice/costs.tsv`.
//!
//! Both modes first age the databases, so that data has left the memtables and caches are full. A
//! memtable that contains all data right after a fill would make an engine look too fast.

mod costs;

use std::time::Duration;

use ::sheaf::{Database, KeyspaceOptions, LengthStats};
use serde::Deserialize;
use sheaf_advisor::{Advice, AdviceRequest, Confidence, advise};
use sheaf_advisor::{OperationShares, ReplayDatabase, WorkloadMix};

use crate::Result;
use crate::args;
use crate::measure::wait_until_idle;
use crate::run_dir::RunDir;

const TABLE: &str = include_str!("../../tables/advise.toml");
/// Bound on the disk space of all databases of a workload.
const DISK_BYTES: u64 = 6 << 30;
/// Length of a turn.
const SLICE: Duration = Duration::from_millis(250);
/// Longest wait until background work is done.
const MAX_QUIESCE: Duration = Duration::from_secs(20);
/// Advice is right from this share of the speed of the fastest engine on.
const ADVICE_TOLERANCE: f64 = 0.95;
/// Level of the sign test. Advice is also right if an engine as fast as the fastest would be ahead
/// in at most so few turns with a higher probability than this.
const SIGNIFICANCE: f64 = 0.05;

#[derive(Deserialize)]
struct MixTable {
    mix: Vec<MixRow>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MixRow {
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

impl Default for MixRow {
    fn default() -> MixRow {
        MixRow {
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

impl MixRow {
    fn mix(&self) -> WorkloadMix {
        let p99 = self.value_p99.unwrap_or(self.value);
        WorkloadMix {
            pairs: self.pairs,
            key_bytes: self.key,
            value_bytes: LengthStats { mean: self.value as f64, p50: self.value, p99 },
            shares: OperationShares {
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
            is_sequential: self.sequential,
            durable_share: self.durable,
            batch_size: self.batch,
        }
    }
}

/// Never stops a run: only a signal does, which ends the process.
fn never_stop() -> bool {
    false
}

/// Checks the advice, or measures the costs.
pub(crate) fn run(options: &args::AdviseArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, DISK_BYTES)?;
    if options.measure { costs::measure(options, &place) } else { check_advice(options, &place) }
}

fn check_advice(options: &args::AdviseArgs, place: &RunDir) -> Result<()> {
    let table: MixTable = toml::from_str(TABLE)?;
    let mixes =
        table.mix.iter().filter(|row| options.only().is_empty() || options.only().contains(&row.name));
    let (mut right, mut all) = (0, 0);
    println!(
        "| workload | measured (predicted), thousand operations a second | advised (predicted) | of the fastest | |"
    );
    println!("|---|---|---|---|---|");
    for row in mixes {
        all += 1;
        right += u32::from(check_mix(options, place, row)?);
    }
    println!("\n{right} of {all} advised engines were the fastest, or within 5 % of it");
    Ok(())
}

/// An engine with a database that runs the workload.
struct EngineRun {
    engine: &'static str,
    subject: ReplayDatabase,
    /// Operations per second of each turn.
    turns: Vec<f64>,
}

/// Result of an engine: its speed, that of each turn, and the advice from the workload of its run.
struct EngineResult {
    engine: &'static str,
    speed: f64,
    turns: Vec<f64>,
    advice: Advice,
}

/// Runs a workload on every engine that supports it. Returns whether the advice was right.
fn check_mix(options: &args::AdviseArgs, place: &RunDir, row: &MixRow) -> Result<bool> {
    let mix = row.mix();
    let memory = row.memory << 20;
    let mut judges = Vec::new();
    for engine in candidates(&mix, place)? {
        let dir = place.fresh(&format!("{}-{engine}", row.name))?;
        match ReplayDatabase::new(&dir, engine, &mix, memory, &never_stop) {
            Ok(Some(subject)) => judges.push(EngineRun { engine, subject, turns: Vec::new() }),
            Ok(None) => {}
            Err(error) => eprintln!("{}: {engine} cannot store it: {error}", row.name),
        }
    }
    age_stores(judges.iter().map(|judge| &judge.subject))?;
    run_in_turns(&row.name, &mut judges, options.phase());
    let mut all = Vec::new();
    for EngineRun { engine, subject, turns } in judges {
        let (load, keys) = (subject.keyspace().workload()?, subject.keyspace().len()?);
        let advice = advise(&AdviceRequest { workload: &load, key_count: keys, memory_budget: memory });
        all.push(EngineResult { engine, speed: subject.outcome().per_second(), turns, advice });
        subject.close()?;
        place.clear(&format!("{}-{engine}", row.name))?;
    }
    Ok(report(row, all))
}

/// Prints a line. Returns whether the worst advice of all engines was right.
fn report(row: &MixRow, mut all: Vec<EngineResult>) -> bool {
    all.sort_by(|a, b| b.speed.total_cmp(&a.speed));
    let Some(fastest) = all.first() else { return false };
    let speeds: Vec<String> = all.iter().map(describe_speed).collect();
    let asked = all.iter().filter(|found| found.advice.confidence != Confidence::TooFewSamples);
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
    let is_tie = binomial_at_most(ahead, fastest.turns.len()) > SIGNIFICANCE;
    let is_right = part >= ADVICE_TOLERANCE || is_tie;
    let mark = match is_right {
        true if part >= ADVICE_TOLERANCE => "right",
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

/// Returns the probability of at most `heads` heads in `throws` throws of a coin.
fn binomial_at_most(heads: usize, throws: usize) -> f64 {
    let mut ways = 1.0; // the number of ways to get `count` heads
    let mut sum = 0.0;
    for count in 0..=heads.min(throws) {
        sum += ways;
        ways *= (throws - count) as f64 / (count + 1) as f64;
    }
    sum / 2f64.powf(throws as f64)
}

/// Formats the speed of an engine, and the speed that its own workload predicts.
fn describe_speed(found: &EngineResult) -> String {
    let own = found.advice.candidates.iter().find(|candidate| candidate.engine == found.engine);
    let predicted = own.map_or("none".to_owned(), |candidate| format!("{:.1}", 1e6 / candidate.ns));
    format!("{} {:.1} ({predicted})", found.engine, found.speed / 1e3)
}

/// Returns the engines that support a mix. Asks an empty keyspace of each engine whether it has a
/// key order.
fn candidates(mix: &WorkloadMix, place: &RunDir) -> Result<Vec<&'static str>> {
    const NAME: &str = "capabilities";
    let mut engines = ::sheaf::engines();
    if mix.has_scans() {
        let db = Database::open(place.fresh(NAME)?)?;
        let mut ordered = Vec::new();
        for engine in engines {
            let keyspace = db.keyspace(engine, KeyspaceOptions::default().engine(engine))?;
            if keyspace.capabilities()?.ordered {
                ordered.push(engine);
            }
        }
        engines = ordered;
        db.close()?;
        place.clear(NAME)?;
    }
    Ok(engines)
}

/// Ages the databases, and then resets their workload statistics, which must not include the
/// ageing.
fn age_stores<'s>(mut subjects: impl Iterator<Item = &'s ReplayDatabase>) -> Result<()> {
    wait_until_idle(MAX_QUIESCE);
    subjects.try_for_each(|subject| {
        subject.warm_up(&never_stop)?;
        Ok(subject.keyspace().reset_workload()?)
    })
}

/// Runs the workload on each engine for the time `lasting`, in turns. The first turn of each is not
/// counted. An engine that returns an error is removed.
fn run_in_turns(name: &str, judges: &mut Vec<EngineRun>, lasting: Duration) {
    let turns = (lasting.as_millis() / SLICE.as_millis()).max(1);
    for turn in 0..=turns {
        judges.retain_mut(|EngineRun { engine, subject, turns }| {
            let (operations, took) = (subject.outcome().operations, subject.outcome().duration);
            if let Err(error) = subject.run(SLICE, &never_stop) {
                eprintln!("{name}: {engine} failed: {error}");
                return false;
            }
            if turn == 0 {
                subject.reset();
            } else {
                let now = subject.outcome();
                turns.push(
                    (now.operations - operations) as f64 / (now.duration - took).as_secs_f64().max(1e-9),
                );
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
        assert_eq!(binomial_at_most(0, 1), 0.5);
        assert_eq!(binomial_at_most(8, 8), 1.0);
        assert_eq!(binomial_at_most(1, 8), 9.0 / 256.0);
    }
}
