//! # Peer comparison: fills, gets and updates of all stores, in rounds

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

use super::{FigureGroup, FiguresRun, MAX_QUIESCE, THREADS, promises, workloads};
use crate::Result;
use crate::data::DataSpec;
use crate::drive::{DriveOptions, PhaseLength, PhaseSample};
use crate::measure::{self, median};
use crate::phase_spec::{KeyChoice, OperationMix, PhaseSpec};
use crate::progress::print_status;
use crate::promise_table::{PromisedFigure, number};
use crate::subjects::{BenchStore, BenchSubject, StoreSetting};

/// Updates before the measured ones, as a multiple of the pairs. After them the log reuses
/// segments.
const WARM_UPDATES: u64 = 2;
/// Bound on the warming of a peer, as a multiple of a phase. Peers have no log that must be reused.
const PEER_WARM_PHASES: u32 = 5;

/// Open stores. Closing them does not remove their databases.
pub(super) type OpenStoreList = Vec<(BenchSubject, Box<dyn BenchStore>)>;

/// Measures all groups that need a filled database. Does not remove the databases, for the
/// openings.
pub(super) fn run(bench: &mut FiguresRun<'_>) -> Result<()> {
    let all = [
        FigureGroup::FillRandom,
        FigureGroup::GetUniform,
        FigureGroup::GetMiss,
        FigureGroup::GetZipf,
        FigureGroup::UpdateZipf,
        FigureGroup::Open,
    ];
    let ours = [FigureGroup::Cpu, FigureGroup::Memory, FigureGroup::Tail];
    let subjects = match (bench.any_selected(&all), bench.any_selected(&ours)) {
        (true, _) => bench.subjects(0),
        (false, true) => vec![BenchSubject::FLAT],
        (false, false) => return Ok(()),
    };
    let stores = fill(bench, &subjects)?;
    for (subject, store) in &stores {
        workloads::check(&**store, bench.options.pairs)
            .map_err(|error| format!("{}: {error}", subject.name()))?;
    }
    for (group, wanted) in [
        (FigureGroup::GetUniform, workloads::GET_UNIFORM),
        (FigureGroup::GetMiss, workloads::GET_MISS),
        (FigureGroup::GetZipf, workloads::GET_ZIPF),
    ] {
        if bench.is_selected(group) {
            gets(bench, &stores, wanted)?;
        }
    }
    if bench.is_selected(FigureGroup::GetUniform) {
        bench.ratio(promises::GET_UNIFORM, workloads::GET_UNIFORM.0, &[BenchSubject::LMDB]);
    }
    if bench.is_selected(FigureGroup::GetMiss) {
        bench.ratio(promises::GET_MISS, workloads::GET_MISS.0, &BenchSubject::peers().collect::<Vec<_>>());
    }
    if bench.is_selected(FigureGroup::FillRandom) {
        bench.ratio(promises::FILL_RANDOM, workloads::FILL_RANDOM, &[BenchSubject::ROCKSDB]);
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

/// Fills fresh databases in rounds, if that group is selected; otherwise once.
pub(super) fn fill(bench: &mut FiguresRun<'_>, subjects: &[BenchSubject]) -> Result<OpenStoreList> {
    let is_wanted = bench.is_selected(FigureGroup::FillRandom);
    let rounds = if is_wanted { bench.options.rounds } else { 1 };
    let mut stores: OpenStoreList = Vec::new();
    for round in 0..rounds {
        stores.clear();
        let mut order = subjects.to_vec();
        if round % 2 == 1 {
            order.reverse();
        }
        for subject in order {
            let kept = bench.run_dir.path().join(subject.name());
            if !is_wanted && bench.options.keep && kept.exists() {
                stores.push((subject, subject.open(&kept, StoreSetting::BUFFERED)?));
                continue;
            }
            let dir = bench.run_dir.fresh(subject.name())?;
            let store = subject.open(&dir, StoreSetting::BUFFERED)?;
            let sample = workloads::fill(&*store, bench.options.pairs, bench.options.sync_every)?;
            let rate = sample.rate() / 1e3;
            if is_wanted {
                bench.record_value(workloads::FILL_RANDOM, subject, round, rate, "k/s");
            } else {
                print_status(&format!("filled {}: {} k/s", subject.name(), number(rate)));
            }
            if round + 1 < rounds {
                store.close()?;
            } else {
                measure::wait_until_idle(MAX_QUIESCE);
                stores.push((subject, store));
            }
        }
    }
    stores.sort_by_key(|(subject, _)| subjects.iter().position(|other| other == subject));
    Ok(stores)
}

pub(super) fn in_order(stores: &OpenStoreList, round: u64) -> Vec<&(BenchSubject, Box<dyn BenchStore>)> {
    if round % 2 == 1 { stores.iter().rev().collect() } else { stores.iter().collect() }
}

pub(super) fn timed(bench: &FiguresRun<'_>) -> DriveOptions {
    DriveOptions::new(PhaseLength::Time(bench.options.phase), bench.options.sync_every)
}

pub(super) fn gets(
    bench: &mut FiguresRun<'_>,
    stores: &OpenStoreList,
    (name, choice): workloads::GetWorkload,
) -> Result<()> {
    let null = BenchSubject::NULL.open(bench.run_dir.path(), StoreSetting::BUFFERED)?;
    let phase = timed(bench);
    for round in 0..bench.options.rounds {
        for (subject, store) in in_order(stores, round) {
            let sample = workloads::get(&**store, choice, bench.options.pairs, THREADS, round, phase)?;
            bench.record_value(name, *subject, round, sample.rate() / 1e3, "k/s");
        }
        let sample = workloads::get(&*null, choice, bench.options.pairs, THREADS, round, phase)?;
        bench.record_value(name, BenchSubject::NULL, round, sample.rate() / 1e3, "k/s");
    }
    Ok(())
}

/// Runs a mix over all stores, in rounds. New pairs follow those of earlier rounds.
pub(super) fn mix(
    bench: &mut FiguresRun<'_>,
    stores: &OpenStoreList,
    row: &'static str,
    mix: &OperationMix,
    choice: KeyChoice,
) -> Result<()> {
    let mut inserted: BTreeMap<BenchSubject, u64> = BTreeMap::new();
    for round in 0..bench.options.rounds {
        for (subject, store) in in_order(stores, round) {
            let before = inserted.get(subject).copied().unwrap_or(0);
            let phase_spec = PhaseSpec {
                seed: 500 + round,
                sync_every: bench.options.sync_every,
                inserted: before,
                ..phase_spec(bench, mix, choice, bench.options.phase)
            };
            let (sample, after) = phase_spec.run(&**store)?;
            inserted.insert(*subject, after);
            bench.record_value(row, *subject, round, sample.rate() / 1e3, "k/s");
            if mix.writes() {
                measure::wait_until_idle(MAX_QUIESCE);
            }
        }
    }
    Ok(())
}

pub(super) fn phase_spec(
    bench: &FiguresRun<'_>,
    mix: &OperationMix,
    choice: KeyChoice,
    time: Duration,
) -> PhaseSpec {
    PhaseSpec::new(DataSpec::udb(bench.options.pairs), mix.clone(), choice, THREADS, PhaseLength::Time(time))
}

/// Warms the stores if a later group needs it, and measures updates if that group is selected.
pub(super) fn updates(
    bench: &mut FiguresRun<'_>,
    stores: &OpenStoreList,
    promise: PromisedFigure,
) -> Result<()> {
    if !bench.any_selected(&[
        FigureGroup::UpdateZipf,
        FigureGroup::Memory,
        FigureGroup::Cpu,
        FigureGroup::Tail,
    ]) {
        return Ok(());
    }
    let (pairs, sync_every) = (bench.options.pairs, bench.options.sync_every);
    for (subject, store) in stores {
        if *subject == bench.options.engine {
            overwrite_log(&**store, pairs, WARM_UPDATES)?;
        } else if bench.is_selected(FigureGroup::UpdateZipf) {
            let warm =
                DriveOptions::new(PhaseLength::Time(bench.options.phase * PEER_WARM_PHASES), sync_every);
            let sample = workloads::update_zipf(&**store, pairs, THREADS, 77, warm)?;
            print_status(&format!("warmed {} with {} updates", subject.name(), sample.operations));
            measure::wait_until_idle(MAX_QUIESCE);
        }
    }
    if !bench.is_selected(FigureGroup::UpdateZipf) {
        return Ok(());
    }
    let null = BenchSubject::NULL.open(bench.run_dir.path(), StoreSetting::BUFFERED)?;
    let row = workloads::UPDATE_ZIPF;
    for round in 0..bench.options.rounds {
        for (subject, store) in in_order(stores, round) {
            let sample = workloads::update_zipf(&**store, pairs, THREADS, 100 + round, timed(bench))?;
            bench.record_value(row, *subject, round, sample.rate() / 1e3, "k/s");
            measure::wait_until_idle(MAX_QUIESCE);
        }
        let sample = workloads::update_zipf(&*null, pairs, THREADS, 100 + round, timed(bench))?;
        bench.record_value(row, BenchSubject::NULL, round, sample.rate() / 1e3, "k/s");
    }
    bench.ratio(promise, row, &[BenchSubject::ROCKSDB]);
    Ok(())
}

/// Updates `times` as many pairs as exist, in our store.
pub(super) fn overwrite_log(store: &dyn BenchStore, pairs: u64, times: u64) -> Result<()> {
    let phase = DriveOptions::new(PhaseLength::Operations(pairs * times), None);
    let sample = workloads::update_zipf(store, pairs, THREADS, 99, phase)?;
    let inner = store.sheaf_figures().unwrap_or_default();
    print_status(&format!(
        "{} updates at {} k/s: {} MiB appended, {} MiB moved, {} segments freed, {} throttled writes",
        sample.operations,
        number(sample.rate() / 1e3),
        inner.appended >> 20,
        inner.gc_bytes >> 20,
        inner.freed,
        inner.throttles
    ));
    Ok(())
}

pub(super) fn own_store(stores: &OpenStoreList) -> Option<&dyn BenchStore> {
    stores.iter().find(|(subject, _)| subject.is_ours()).map(|(_, store)| &**store)
}

pub(super) fn memory(bench: &mut FiguresRun<'_>, stores: &OpenStoreList, promise: PromisedFigure) {
    let Some(inner) = own_store(stores)
        .and_then(BenchStore::sheaf_figures)
        .filter(|_| bench.is_selected(FigureGroup::Memory))
    else {
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

/// Measures the CPU time of a get and an update from one thread, including background threads.
pub(super) fn cpu(
    bench: &mut FiguresRun<'_>,
    stores: &OpenStoreList,
    promises: [PromisedFigure; 2],
) -> Result<()> {
    let Some(store) = own_store(stores).filter(|_| bench.is_selected(FigureGroup::Cpu)) else {
        return Ok(());
    };
    let null = BenchSubject::NULL.open(bench.run_dir.path(), StoreSetting::BUFFERED)?;
    let (pairs, phase) = (bench.options.pairs, timed(bench));
    measure::wait_until_idle(MAX_QUIESCE);
    let (mut gets, mut updates) = (Vec::new(), Vec::new());
    let mut harness = [0.0; 2];
    for round in 0..bench.options.rounds {
        gets.push(workloads::get(store, KeyChoice::Uniform, pairs, 1, 200 + round, phase)?);
        updates.push(workloads::update_zipf(store, pairs, 1, 200 + round, phase)?);
        print_status(&format!(
            "cpu, round {}/{}: {} µs a get, {} µs an update",
            round + 1,
            bench.options.rounds,
            number(gets.last().map_or(0.0, PhaseSample::cpu_micros)),
            number(updates.last().map_or(0.0, PhaseSample::cpu_micros))
        ));
        harness = [
            workloads::get(&*null, KeyChoice::Uniform, pairs, 1, 200, phase)?.cpu_micros(),
            workloads::update_zipf(&*null, pairs, 1, 200, phase)?.cpu_micros(),
        ];
    }
    for (promise, samples, harness) in [(promises[0], &gets, harness[0]), (promises[1], &updates, harness[1])]
    {
        let middle = |of: fn(&PhaseSample) -> f64| median(&samples.iter().map(of).collect::<Vec<_>>());
        bench.rows.push(promise.measured(
            middle(PhaseSample::cpu_micros),
            format!(
                "whole process; the caller's thread {}, of it the harness {}; {} k/s",
                number(middle(PhaseSample::caller_micros).unwrap_or(0.0)),
                number(harness),
                number(middle(PhaseSample::rate).unwrap_or(0.0) / 1e3)
            ),
        ));
    }
    Ok(())
}

/// Latencies of operations, measured in runs of their own.
pub(super) struct TailLatency {
    /// Name in the status lines.
    pub(super) name: &'static str,
    /// Promises of the quantile and of the longest latency.
    pub(super) promises: [PromisedFigure; 2],
    /// Quantile that is promised.
    pub(super) quantile: f64,
    /// Nanoseconds per unit of the promised quantile. The longest latency is in milliseconds.
    pub(super) unit: f64,
}

impl TailLatency {
    /// Latencies of writes.
    pub(super) const WRITES: TailLatency = TailLatency {
        name: "tail",
        promises: [promises::TAIL, promises::LONGEST],
        quantile: 0.9999,
        unit: 1e6,
    };

    /// Adds the rows of the medians over the rounds. `run` measures one round.
    pub(super) fn measure(
        &self,
        bench: &mut FiguresRun<'_>,
        mut run: impl FnMut(&FiguresRun<'_>, u64) -> Result<PhaseSample>,
    ) -> Result<()> {
        let (mut high, mut longest, mut details) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..bench.options.rounds {
            let sample = run(bench, round)?;
            let latencies = sample.latencies.as_ref().ok_or("no latencies were taken")?;
            high.push(latencies.value_at_quantile(self.quantile) as f64 / self.unit);
            longest.push(latencies.max() as f64 / 1e6);
            let detail = format!("{}, {} k/s", percentiles(latencies), number(sample.rate() / 1e3));
            print_status(&format!("{}, round {}/{}: {detail}", self.name, round + 1, bench.options.rounds));
            details.push(detail);
        }
        let seconds = number(bench.options.tail.as_secs_f64());
        bench.figure(self.promises[0], median(&high), format!("{seconds} s a run; {}", details.join(" / ")));
        let all: Vec<String> = longest.iter().map(|ms| number(*ms)).collect();
        bench.figure(self.promises[1], median(&longest), all.join(", "));
        Ok(())
    }
}

/// Measures the latency of each update.
pub(super) fn tail(bench: &mut FiguresRun<'_>, stores: &OpenStoreList) -> Result<()> {
    let Some(store) = own_store(stores).filter(|_| bench.is_selected(FigureGroup::Tail)) else {
        return Ok(());
    };
    let phase = DriveOptions {
        latencies: true,
        ..DriveOptions::new(PhaseLength::Time(bench.options.tail), bench.options.sync_every)
    };
    TailLatency::WRITES.measure(bench, |bench, round| {
        workloads::update_zipf(store, bench.options.pairs, THREADS, 300 + round, phase)
    })
}

/// Formats percentiles in microseconds.
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
