//! # Figures of cedrus, in the order of measurement
//!
//! ```text
//!   fill-random    each round: fresh databases, store by store; the last round's stay open
//!   memory         ours, after the fill is settled
//!   get-* mixes    rounds; all stores open, one of them working at a time
//!   tail           ours alone: the writes of a mix, half and half
//!   open           each round: the database is opened after a close, and after a kill of a writer
//!   device-bytes   ours alone, fresh: of the fill, then of a mix, half and half
//!   churn          ours alone, fresh: each step removes the oldest pair and inserts a new one
//! ```
//!
//! `compare --only capped-get` measures it with a cap on memory.

use std::time::Instant;

use super::peer_comparison::{self as side, OpenStoreList};
use super::promises::cedrus as promises;
use super::{FigureGroup, FiguresRun, MAX_QUIESCE, THREADS, durable_and_open, workloads};
use crate::Result;
use crate::data::DataSpec;
use crate::drive::{PhaseLength, SYNC_INTERVAL};
use crate::keys::{KeyLayout, KeyMaker, UDB_PAIR_BYTES, UDB_VALUE_BYTES, ValueGenerator, key};
use crate::measure::{WrittenBytes, disk_bytes, wait_until_idle};
use crate::phase_spec::{KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::promise_table::number;
use crate::subjects::{BenchSubject, StoreSetting};

const OPEN_CLOSED: &str = "open after a close (s)";

/// Name and operations of each mix. The promises have the same order.
const MIXES: [(&str, &str); 3] = [
    ("95 % reads", "get 95, update 5"),
    ("90 % reads", "get 90, update 10"),
    ("50 % updates", "get 50, update 50"),
];
/// Operations of the mix for device bytes, as a multiple of the pairs. Half of them are updates.
const MEASURED_OPERATIONS: u64 = 4;
/// Pairs that the churn replaces, as a multiple of the existing ones, and the space limit of the
/// log. The space of the trie is not included in the limit.
const CHURN: u64 = 4;
const CHURN_LIMIT: f64 = 1.25;
/// Samples of the disk space during the churn.
const DISK_SAMPLES: u64 = 200;

/// Measures all promises of `cedrus`.
pub(super) fn run(bench: &mut FiguresRun<'_>) -> Result<()> {
    side_by_side(bench)?;
    open_after_close(bench)?;
    durable_and_open::open_after_kill(bench, promises::OPEN_KILLED)?;
    device_bytes(bench)?;
    churn(bench)
}

fn side_by_side(bench: &mut FiguresRun<'_>) -> Result<()> {
    let all = [
        FigureGroup::FillRandom,
        FigureGroup::GetUniform,
        FigureGroup::GetMiss,
        FigureGroup::GetZipf,
        FigureGroup::Mixes,
        FigureGroup::Open,
    ];
    let ours = [FigureGroup::Memory, FigureGroup::Tail];
    let subjects = match (bench.any_selected(&all), bench.any_selected(&ours)) {
        (true, _) => bench.subjects(0),
        (false, true) => vec![bench.options.engine],
        (false, false) => return Ok(()),
    };
    let stores = side::fill(bench, &subjects)?;
    side::memory(bench, &stores, promises::MEMORY);
    if bench.is_selected(FigureGroup::FillRandom) {
        bench.ratio(promises::FILL_RANDOM, workloads::FILL_RANDOM, &[BenchSubject::ROCKSDB]);
    }
    let every: Vec<BenchSubject> = BenchSubject::peers().collect();
    for (group, wanted, promise, peers) in [
        (FigureGroup::GetUniform, workloads::GET_UNIFORM, promises::GET_UNIFORM, &[BenchSubject::LMDB][..]),
        (FigureGroup::GetMiss, workloads::GET_MISS, promises::GET_MISS, &every),
    ] {
        if bench.is_selected(group) {
            side::gets(bench, &stores, wanted)?;
            bench.ratio(promise, wanted.0, peers);
        }
    }
    mixes(bench, &stores)?;
    tail(bench, &stores)?;
    stores.into_iter().try_for_each(|(_, store)| store.close())
}

fn mixes(bench: &mut FiguresRun<'_>, stores: &OpenStoreList) -> Result<()> {
    if !bench.is_selected(FigureGroup::Mixes) {
        return Ok(());
    }
    for (place, (row, mix)) in MIXES.into_iter().enumerate() {
        side::mix(bench, stores, row, &OperationMix::parse(mix)?, KeyChoice::Zipf)?;
        bench.ratio(promises::MIXES_ROCKSDB[place], row, &[BenchSubject::ROCKSDB]);
        if let Some(promise) = promises::MIXES_LMDB.get(place) {
            bench.ratio(*promise, row, &[BenchSubject::LMDB]);
        }
    }
    Ok(())
}

fn half_updates(bench: &FiguresRun<'_>, length: PhaseLength) -> Result<PhaseSpec> {
    let mix = OperationMix::parse(MIXES[2].1)?;
    Ok(PhaseSpec::new(DataSpec::udb(bench.options.pairs), mix, KeyChoice::Zipf, THREADS, length))
}

/// Measures the latency of each update of a mix.
fn tail(bench: &mut FiguresRun<'_>, stores: &OpenStoreList) -> Result<()> {
    let Some(store) = side::own_store(stores).filter(|_| bench.is_selected(FigureGroup::Tail)) else {
        return Ok(());
    };
    let promises = [promises::TAIL, promises::LONGEST];
    side::TailLatency { promises, ..side::TailLatency::WRITES }.measure(bench, |bench, round| {
        let phase_spec = PhaseSpec {
            seed: 700 + round,
            latencies: true,
            timed: Some(PairOperation::Update),
            ..half_updates(bench, PhaseLength::Time(bench.options.tail))?
        };
        Ok(phase_spec.run(store)?.0)
    })
}

/// Opens closed databases. The time ends with the first get.
fn open_after_close(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::Open) {
        return Ok(());
    }
    for round in 0..bench.options.rounds {
        for subject in bench.subjects(round) {
            let dir = bench.run_dir.path().join(subject.name());
            let began = Instant::now();
            let store = subject.open(&dir, StoreSetting::BUFFERED)?;
            let found = store.session()?.get(&key(0))?;
            let seconds = began.elapsed().as_secs_f64();
            if found != Some(0) {
                return Err(format!("{}: pair 0 is missing after a close: {found:?}", subject.name()).into());
            }
            bench.record_value(OPEN_CLOSED, subject, round, seconds, "s");
            store.close()?;
        }
    }
    let millis = bench.results.median(OPEN_CLOSED, bench.options.engine).map(|seconds| seconds * 1e3);
    bench.figure(promises::OPEN_CLOSED, millis, "until the first get has returned");
    Ok(())
}

/// Measures the bytes written to the device by a fill and by a mix.
fn device_bytes(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::DeviceBytes) {
        return Ok(());
    }
    let dir = bench.run_dir.fresh("space")?;
    let store = bench.options.engine.open(&dir, StoreSetting::BUFFERED)?;
    let pairs = bench.options.pairs;
    let before = WrittenBytes::read(&dir)?;
    let sample = workloads::fill(&*store, pairs, None)?;
    wait_until_idle(MAX_QUIESCE);
    let written = WrittenBytes::read(&dir)?.since(before);
    let per_user = |written: WrittenBytes, user: u64| written.device_or_process() as f64 / user as f64;
    let detail = format!("{} k/s", number(sample.rate() / 1e3));
    bench.figure(promises::DEVICE_FILL, Some(per_user(written, pairs * UDB_PAIR_BYTES)), detail);

    let before = WrittenBytes::read(&dir)?;
    let phase_spec = PhaseSpec {
        final_sync: true,
        ..half_updates(bench, PhaseLength::Operations(pairs * MEASURED_OPERATIONS))?
    };
    let (sample, _) = phase_spec.run(&*store)?;
    wait_until_idle(MAX_QUIESCE);
    let written = WrittenBytes::read(&dir)?.since(before);
    let inner = store.sheaf_figures().unwrap_or_default();
    let detail = format!(
        "{} k/s; disk at the end {} × live",
        number(sample.rate() / 1e3),
        number(disk_bytes(&dir) as f64 / inner.live_bytes.max(1) as f64)
    );
    bench.figure(promises::DEVICE_MIX, Some(per_user(written, sample.user_bytes)), detail);
    store.close()?;
    bench.run_dir.clear("space")
}

/// Replaces all pairs several times: each step removes the oldest pair and inserts a new one.
fn churn(bench: &mut FiguresRun<'_>) -> Result<()> {
    if !bench.is_selected(FigureGroup::Churn) {
        return Ok(());
    }
    let dir = bench.run_dir.fresh("churn")?;
    let store = bench
        .options
        .engine
        .open(&dir, StoreSetting { space_limit: Some(CHURN_LIMIT), ..StoreSetting::BUFFERED })?;
    let pairs = bench.options.pairs;
    let inserts = workloads::fill(&*store, pairs, Some(SYNC_INTERVAL))?.rate();
    let (mut keys, mut values, mut most) = (KeyMaker::new(KeyLayout::UDB), ValueGenerator::new(), 0.0f64);
    let mut session = store.session()?;
    let began = Instant::now();
    for index in 0..pairs * CHURN {
        session.remove(keys.make(index))?;
        session.put(keys.make(index + pairs), values.make(index + pairs, 1, UDB_VALUE_BYTES))?;
        if index % (pairs * CHURN / DISK_SAMPLES).max(1) == 0 {
            let live = store.sheaf_figures().unwrap_or_default().live_bytes;
            most = most.max(disk_bytes(&dir) as f64 / live.max(1) as f64);
        }
    }
    let rate = (2 * pairs * CHURN) as f64 / began.elapsed().as_secs_f64();
    drop(session);
    let detail = format!(
        "{} k removals and inserts a second, {} k inserts",
        number(rate / 1e3),
        number(inserts / 1e3)
    );
    bench.figure(promises::CHURN, Some(rate / inserts), detail);
    bench.figure(promises::CHURN_DISK, Some(most), format!("maximum of {DISK_SAMPLES} samples"));
    store.close()?;
    bench.run_dir.clear("churn")
}
