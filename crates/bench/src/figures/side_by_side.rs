//! # Side by side: fills, gets and updates of all stores, in rounds

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::{Bench, Group, SETTLE, THREADS, loads, promises};
use crate::Result;
use crate::data::Data;
use crate::drive::{Length, Phase, Sample};
use crate::measure::{self, median};
use crate::progress::say;
use crate::stage::{Choice, Mix, Stage};
use crate::subjects::{Setting, Store, Subject};
use crate::table::{Promise, number};

/// Updates before the measured ones, as a multiple of the pairs: the log has wrapped by then.
const WRAP: u64 = 2;
/// Peers have no log to wrap; they are warmed for as long as this many phases at most.
const PEER_WARM_PHASES: u32 = 5;

/// Open stores; their databases stay in the place when they are closed.
pub(super) type Open = Vec<(Subject, Box<dyn Store>)>;

/// All groups that work on a filled database. Leaves the databases behind for the opening.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    let all = [
        Group::FillRandom,
        Group::GetUniform,
        Group::GetMiss,
        Group::GetZipf,
        Group::UpdateZipf,
        Group::Open,
    ];
    let ours = [Group::Cpu, Group::Memory, Group::Tail];
    let subjects = match (bench.wants_any(&all), bench.wants_any(&ours)) {
        (true, _) => bench.subjects(0),
        (false, true) => vec![Subject::FLAT],
        (false, false) => return Ok(()),
    };
    let stores = fill(bench, &subjects)?;
    for (subject, store) in &stores {
        loads::check(&**store, bench.options.pairs)
            .map_err(|error| format!("{}: {error}", subject.name()))?;
    }
    for (group, wanted) in [
        (Group::GetUniform, loads::GET_UNIFORM),
        (Group::GetMiss, loads::GET_MISS),
        (Group::GetZipf, loads::GET_ZIPF),
    ] {
        if bench.wants(group) {
            gets(bench, &stores, wanted)?;
        }
    }
    if bench.wants(Group::GetUniform) {
        bench.ratio(promises::GET_UNIFORM, loads::GET_UNIFORM.0, &[Subject::LMDB]);
    }
    if bench.wants(Group::GetMiss) {
        bench.ratio(promises::GET_MISS, loads::GET_MISS.0, &Subject::peers().collect::<Vec<_>>());
    }
    if bench.wants(Group::FillRandom) {
        bench.ratio(promises::FILL_RANDOM, loads::FILL_RANDOM, &[Subject::ROCKSDB]);
    }
    updates(bench, &stores, promises::UPDATE_ZIPF)?;
    memory(bench, &stores, promises::MEMORY);
    cpu(bench, &stores, [promises::CPU_GET, promises::CPU_UPDATE])?;
    tail(bench, &stores)?;
    for (_, store) in stores {
        store.close()?;
    }
    Ok(())
}

/// Fills fresh databases in rounds, if that is wanted; else once.
pub(super) fn fill(bench: &mut Bench<'_>, subjects: &[Subject]) -> Result<Open> {
    let is_wanted = bench.wants(Group::FillRandom);
    let rounds = if is_wanted { bench.options.rounds } else { 1 };
    let mut stores: Open = Vec::new();
    for round in 0..rounds {
        stores.clear();
        let mut order = subjects.to_vec();
        if round % 2 == 1 {
            order.reverse();
        }
        for subject in order {
            let kept = bench.place.path().join(subject.name());
            if !is_wanted && bench.options.keep && kept.exists() {
                stores.push((subject, subject.open(&kept, Setting::BUFFERED)?));
                continue;
            }
            let dir = bench.place.fresh(subject.name())?;
            let store = subject.open(&dir, Setting::BUFFERED)?;
            let sample = loads::fill(&*store, bench.options.pairs, bench.options.sync_every)?;
            let rate = sample.rate() / 1e3;
            if is_wanted {
                bench.note(loads::FILL_RANDOM, subject, round, rate, "k/s");
            } else {
                say(&format!("filled {}: {} k/s", subject.name(), number(rate)));
            }
            if round + 1 < rounds {
                store.close()?;
            } else {
                measure::settle(SETTLE);
                stores.push((subject, store));
            }
        }
    }
    stores.sort_by_key(|(subject, _)| subjects.iter().position(|other| other == subject));
    Ok(stores)
}

pub(super) fn in_order(stores: &Open, round: u64) -> Vec<&(Subject, Box<dyn Store>)> {
    if round % 2 == 1 { stores.iter().rev().collect() } else { stores.iter().collect() }
}

pub(super) fn timed(bench: &Bench<'_>) -> Phase {
    Phase::of(Length::Time(bench.options.phase), bench.options.sync_every)
}

pub(super) fn gets(bench: &mut Bench<'_>, stores: &Open, (name, choice): loads::Gets) -> Result<()> {
    let null = Subject::NULL.open(bench.place.path(), Setting::BUFFERED)?;
    let phase = timed(bench);
    for round in 0..bench.options.rounds {
        for (subject, store) in in_order(stores, round) {
            let sample = loads::get(&**store, choice, bench.options.pairs, THREADS, round, phase)?;
            bench.note(name, *subject, round, sample.rate() / 1e3, "k/s");
        }
        let sample = loads::get(&*null, choice, bench.options.pairs, THREADS, round, phase)?;
        bench.note(name, Subject::NULL, round, sample.rate() / 1e3, "k/s");
    }
    Ok(())
}

/// A mix over all stores, in rounds. Pairs that are inserted come on top of those before.
pub(super) fn mix(
    bench: &mut Bench<'_>,
    stores: &Open,
    row: &'static str,
    mix: &Mix,
    choice: Choice,
) -> Result<()> {
    let mut inserted: BTreeMap<Subject, u64> = BTreeMap::new();
    for round in 0..bench.options.rounds {
        for (subject, store) in in_order(stores, round) {
            let before = inserted.get(subject).copied().unwrap_or(0);
            let stage = Stage {
                seed: 500 + round,
                sync_every: bench.options.sync_every,
                inserted: before,
                ..stage(bench, mix, choice, bench.options.phase)
            };
            let (sample, after) = stage.run(&**store)?;
            inserted.insert(*subject, after);
            bench.note(row, *subject, round, sample.rate() / 1e3, "k/s");
            if mix.writes() {
                measure::settle(SETTLE);
            }
        }
    }
    Ok(())
}

pub(super) fn stage(bench: &Bench<'_>, mix: &Mix, choice: Choice, time: Duration) -> Stage {
    Stage::new(Data::udb(bench.options.pairs), mix.clone(), choice, THREADS, Length::Time(time))
}

/// Warms until the log has wrapped, if anything wants that, and measures updates, if they are wanted.
pub(super) fn updates(bench: &mut Bench<'_>, stores: &Open, promise: Promise) -> Result<()> {
    if !bench.wants_any(&[Group::UpdateZipf, Group::Memory, Group::Cpu, Group::Tail]) {
        return Ok(());
    }
    let (pairs, sync_every) = (bench.options.pairs, bench.options.sync_every);
    for (subject, store) in stores {
        if *subject == bench.options.engine {
            wrap(&**store, pairs, WRAP)?;
        } else if bench.wants(Group::UpdateZipf) {
            let warm = Phase::of(Length::Time(bench.options.phase * PEER_WARM_PHASES), sync_every);
            let sample = loads::update_zipf(&**store, pairs, THREADS, 77, warm)?;
            say(&format!("warmed {} with {} updates", subject.name(), sample.operations));
            measure::settle(SETTLE);
        }
    }
    if !bench.wants(Group::UpdateZipf) {
        return Ok(());
    }
    let null = Subject::NULL.open(bench.place.path(), Setting::BUFFERED)?;
    let row = loads::UPDATE_ZIPF;
    for round in 0..bench.options.rounds {
        for (subject, store) in in_order(stores, round) {
            let sample = loads::update_zipf(&**store, pairs, THREADS, 100 + round, timed(bench))?;
            bench.note(row, *subject, round, sample.rate() / 1e3, "k/s");
            measure::settle(SETTLE);
        }
        let sample = loads::update_zipf(&*null, pairs, THREADS, 100 + round, timed(bench))?;
        bench.note(row, Subject::NULL, round, sample.rate() / 1e3, "k/s");
    }
    bench.ratio(promise, row, &[Subject::ROCKSDB]);
    Ok(())
}

/// Updates `times` as many pairs as there are, in ours.
pub(super) fn wrap(store: &dyn Store, pairs: u64, times: u64) -> Result<()> {
    let phase = Phase::of(Length::Operations(pairs * times), None);
    let sample = loads::update_zipf(store, pairs, THREADS, 99, phase)?;
    let inner = store.inner().unwrap_or_default();
    say(&format!(
        "{} updates at {} k/s: {} MiB appended, {} MiB moved, {} segments freed, {} throttled writes",
        sample.operations,
        number(sample.rate() / 1e3),
        inner.appended >> 20,
        inner.moved >> 20,
        inner.freed,
        inner.brakes
    ));
    Ok(())
}

pub(super) fn of_ours(stores: &Open) -> Option<&dyn Store> {
    stores.iter().find(|(subject, _)| subject.is_ours()).map(|(_, store)| &**store)
}

pub(super) fn memory(bench: &mut Bench<'_>, stores: &Open, promise: Promise) {
    let Some(inner) = of_ours(stores).and_then(Store::inner).filter(|_| bench.wants(Group::Memory)) else {
        return;
    };
    let per_key = inner.index_bytes as f64 / inner.keys.max(1) as f64;
    bench.rows.push(promise.measured(
        Some(per_key),
        format!(
            "{} MiB for {} k keys",
            number(inner.index_bytes as f64 / f64::from(1 << 20)),
            inner.keys / 1000
        ),
    ));
}

/// One thread: what a get and an update cost, background threads included.
pub(super) fn cpu(bench: &mut Bench<'_>, stores: &Open, promises: [Promise; 2]) -> Result<()> {
    let Some(store) = of_ours(stores).filter(|_| bench.wants(Group::Cpu)) else { return Ok(()) };
    let null = Subject::NULL.open(bench.place.path(), Setting::BUFFERED)?;
    let (pairs, phase) = (bench.options.pairs, timed(bench));
    measure::settle(SETTLE);
    let (mut gets, mut updates) = (Vec::new(), Vec::new());
    let mut harness = [0.0; 2];
    for round in 0..bench.options.rounds {
        gets.push(loads::get(store, Choice::Uniform, pairs, 1, 200 + round, phase)?);
        updates.push(loads::update_zipf(store, pairs, 1, 200 + round, phase)?);
        say(&format!(
            "cpu, round {}/{}: {} µs a get, {} µs an update",
            round + 1,
            bench.options.rounds,
            number(gets.last().map_or(0.0, Sample::cpu_micros)),
            number(updates.last().map_or(0.0, Sample::cpu_micros))
        ));
        harness = [
            loads::get(&*null, Choice::Uniform, pairs, 1, 200, phase)?.cpu_micros(),
            loads::update_zipf(&*null, pairs, 1, 200, phase)?.cpu_micros(),
        ];
    }
    for (promise, samples, harness) in [(promises[0], &gets, harness[0]), (promises[1], &updates, harness[1])]
    {
        let middle = |of: fn(&Sample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
        bench.rows.push(promise.measured(
            middle(Sample::cpu_micros),
            format!(
                "whole process; the caller's thread {}, of it the harness {}; {} k/s",
                number(middle(Sample::caller_micros).unwrap_or(0.0)),
                number(harness),
                number(middle(Sample::rate).unwrap_or(0.0) / 1e3)
            ),
        ));
    }
    Ok(())
}

/// Latencies of operations, in runs of their own.
pub(super) struct Tail {
    /// What is said on the way.
    pub(super) name: &'static str,
    /// Which quantile is promised, and the longest.
    pub(super) promises: [Promise; 2],
    /// Which that is.
    pub(super) quantile: f64,
    /// Nanoseconds of the unit that it is promised in; the longest is in milliseconds.
    pub(super) unit: f64,
}

impl Tail {
    /// Of writes.
    pub(super) const WRITES: Tail =
        Tail { name: "tail", promises: [promises::TAIL, promises::LONGEST], quantile: 0.9999, unit: 1e6 };

    /// The medians of what `run` finds, round by round.
    pub(super) fn measure(
        &self,
        bench: &mut Bench<'_>,
        mut run: impl FnMut(&Bench<'_>, u64) -> Result<Sample>,
    ) -> Result<()> {
        let (mut high, mut longest, mut details) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..bench.options.rounds {
            let sample = run(bench, round)?;
            let latencies = sample.latencies.as_ref().ok_or("no latencies were taken")?;
            high.push(latencies.value_at_quantile(self.quantile) as f64 / self.unit);
            longest.push(latencies.max() as f64 / 1e6);
            let detail = format!("{}, {} k/s", percentiles(latencies), number(sample.rate() / 1e3));
            say(&format!("{}, round {}/{}: {detail}", self.name, round + 1, bench.options.rounds));
            details.push(detail);
        }
        let seconds = number(bench.options.tail.as_secs_f64());
        bench.figure(self.promises[0], median(&high), format!("{seconds} s a run; {}", details.join(" / ")));
        let all: Vec<String> = longest.iter().map(|ms| number(*ms)).collect();
        bench.figure(self.promises[1], median(&longest), all.join(", "));
        Ok(())
    }
}

/// Updates with each one's latency.
pub(super) fn tail(bench: &mut Bench<'_>, stores: &Open) -> Result<()> {
    let Some(store) = of_ours(stores).filter(|_| bench.wants(Group::Tail)) else { return Ok(()) };
    let phase =
        Phase { latencies: true, ..Phase::of(Length::Time(bench.options.tail), bench.options.sync_every) };
    Tail::WRITES.measure(bench, |bench, round| {
        loads::update_zipf(store, bench.options.pairs, THREADS, 300 + round, phase)
    })
}

/// Percentiles in microseconds.
pub(crate) fn percentiles(latencies: &Histogram<u64>) -> String {
    let at = |quantile: f64| number(latencies.value_at_quantile(quantile) as f64 / 1e3);
    format!(
        "p50 {} p99 {} p99.9 {} p99.99 {} longest {} µs",
        at(0.5),
        at(0.99),
        at(0.999),
        at(0.9999),
        number(latencies.max() as f64 / 1e3)
    )
}
