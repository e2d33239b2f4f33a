//! # Cedrus: the figures of `cedrus`, in its order
//!
//! ```text
//!   fill-random    each round: fresh databases, one store after the other; those of the last round stay open
//!   memory         ours, when what was filled is in its place
//!   get-* mixes    rounds; all stores open, one working at a time
//!   tail           ours alone: the writes of a mix, half and half
//!   open           each round: the database is opened after it was closed, and after a writer was killed
//!   device-bytes   ours alone, fresh: of the fill, then of a mix, half and half
//!   churn          ours alone, fresh: each step removes the oldest pair and inserts a new one
//! ```
//!
//! With a cap on memory: `compare --only capped-get`.

use std::time::Instant;

use super::promises::cedrus as promises;
use super::side_by_side::{self as side, Open};
use super::{Bench, Group, SETTLE, THREADS, alone, loads};
use crate::Result;
use crate::data::Data;
use crate::drive::{Length, SYNC_INTERVAL};
use crate::keys::{KeyMaker, Layout, PAIR, VALUE, Values, key};
use crate::measure::{Written, disk_bytes, settle};
use crate::stage::{Choice, Mix, Op, Stage};
use crate::subjects::{Setting, Subject};
use crate::table::number;

const OPEN_CLOSED: &str = "open after a close (s)";

/// Name, mix, and what is promised of it against RocksDB and LMDB, by its place.
const MIXES: [(&str, &str); 3] = [
    ("95 % reads", "get 95, update 5"),
    ("90 % reads", "get 90, update 10"),
    ("50 % updates", "get 50, update 50"),
];
/// Operations of the mix whose device bytes are measured, as a multiple of the pairs: half of them are updates.
const MEASURED: u64 = 4;
/// Pairs that a churn replaces, as a multiple of those there are, and what the log may take in it: the trie comes on top.
const CHURN: u64 = 4;
const CHURN_LIMIT: f64 = 1.25;
/// Looks at the disk in a churn.
const LOOKS: u64 = 200;

/// Everything that `cedrus` promises.
pub(super) fn run(bench: &mut Bench<'_>) -> Result<()> {
    side_by_side(bench)?;
    open_after_close(bench)?;
    alone::open_after_kill(bench, promises::OPEN_KILLED)?;
    device_bytes(bench)?;
    churn(bench)
}

fn side_by_side(bench: &mut Bench<'_>) -> Result<()> {
    let all =
        [Group::FillRandom, Group::GetUniform, Group::GetMiss, Group::GetZipf, Group::Mixes, Group::Open];
    let ours = [Group::Memory, Group::Tail];
    let subjects = match (bench.wants_any(&all), bench.wants_any(&ours)) {
        (true, _) => bench.subjects(0),
        (false, true) => vec![bench.options.engine],
        (false, false) => return Ok(()),
    };
    let stores = side::fill(bench, &subjects)?;
    side::memory(bench, &stores, promises::MEMORY);
    if bench.wants(Group::FillRandom) {
        bench.ratio(promises::FILL_RANDOM, loads::FILL_RANDOM, &[Subject::ROCKSDB]);
    }
    let every: Vec<Subject> = Subject::peers().collect();
    for (group, wanted, promise, peers) in [
        (Group::GetUniform, loads::GET_UNIFORM, promises::GET_UNIFORM, &[Subject::LMDB][..]),
        (Group::GetMiss, loads::GET_MISS, promises::GET_MISS, &every),
    ] {
        if bench.wants(group) {
            side::gets(bench, &stores, wanted)?;
            bench.ratio(promise, wanted.0, peers);
        }
    }
    mixes(bench, &stores)?;
    tail(bench, &stores)?;
    stores.into_iter().try_for_each(|(_, store)| store.close())
}

fn mixes(bench: &mut Bench<'_>, stores: &Open) -> Result<()> {
    if !bench.wants(Group::Mixes) {
        return Ok(());
    }
    for (place, (row, mix)) in MIXES.into_iter().enumerate() {
        side::mix(bench, stores, row, &Mix::parse(mix)?, Choice::Zipf)?;
        bench.ratio(promises::MIXES_ROCKSDB[place], row, &[Subject::ROCKSDB]);
        if let Some(promise) = promises::MIXES_LMDB.get(place) {
            bench.ratio(*promise, row, &[Subject::LMDB]);
        }
    }
    Ok(())
}

fn halves(bench: &Bench<'_>, length: Length) -> Result<Stage> {
    let mix = Mix::parse(MIXES[2].1)?;
    Ok(Stage::new(Data::udb(bench.options.pairs), mix, Choice::Zipf, THREADS, length))
}

/// The updates of a mix, each one's latency.
fn tail(bench: &mut Bench<'_>, stores: &Open) -> Result<()> {
    let Some(store) = side::of_ours(stores).filter(|_| bench.wants(Group::Tail)) else { return Ok(()) };
    let promises = [promises::TAIL, promises::LONGEST];
    side::Tail { promises, ..side::Tail::WRITES }.measure(bench, |bench, round| {
        let stage = Stage {
            seed: 700 + round,
            latencies: true,
            timed: Some(Op::Update),
            ..halves(bench, Length::Time(bench.options.tail))?
        };
        Ok(stage.run(store)?.0)
    })
}

/// Opens what was closed. The time ends with the first get.
fn open_after_close(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::Open) {
        return Ok(());
    }
    for round in 0..bench.options.rounds {
        for subject in bench.subjects(round) {
            let dir = bench.place.path().join(subject.name());
            let began = Instant::now();
            let store = subject.open(&dir, Setting::BUFFERED)?;
            let found = store.session()?.get(&key(0))?;
            let seconds = began.elapsed().as_secs_f64();
            if found != Some(0) {
                return Err(format!("{}: pair 0 is missing after a close: {found:?}", subject.name()).into());
            }
            bench.note(OPEN_CLOSED, subject, round, seconds, "s");
            store.close()?;
        }
    }
    let millis = bench.results.median(OPEN_CLOSED, bench.options.engine).map(|seconds| seconds * 1e3);
    bench.figure(promises::OPEN_CLOSED, millis, "until the first get has returned");
    Ok(())
}

/// What the device is given to write by a fill, and by a mix.
fn device_bytes(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::DeviceBytes) {
        return Ok(());
    }
    let dir = bench.place.fresh("space")?;
    let store = bench.options.engine.open(&dir, Setting::BUFFERED)?;
    let pairs = bench.options.pairs;
    let before = Written::read(&dir)?;
    let sample = loads::fill(&*store, pairs, None)?;
    settle(SETTLE);
    let written = Written::read(&dir)?.since(before);
    let per_user = |written: Written, user: u64| written.verdict() as f64 / user as f64;
    let detail = format!("{} k/s", number(sample.rate() / 1e3));
    bench.figure(promises::DEVICE_FILL, Some(per_user(written, pairs * PAIR)), detail);

    let before = Written::read(&dir)?;
    let stage = Stage { final_sync: true, ..halves(bench, Length::Operations(pairs * MEASURED))? };
    let (sample, _) = stage.run(&*store)?;
    settle(SETTLE);
    let written = Written::read(&dir)?.since(before);
    let inner = store.inner().unwrap_or_default();
    let detail = format!(
        "{} k/s; disk at the end {} × live",
        number(sample.rate() / 1e3),
        number(disk_bytes(&dir) as f64 / inner.live_bytes.max(1) as f64)
    );
    bench.figure(promises::DEVICE_MIX, Some(per_user(written, sample.user_bytes)), detail);
    store.close()?;
    bench.place.clear("space")
}

/// Pairs come and go, as many as there are several times over.
fn churn(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.wants(Group::Churn) {
        return Ok(());
    }
    let dir = bench.place.fresh("churn")?;
    let store = bench.options.engine.open(&dir, Setting { space_limit: CHURN_LIMIT, ..Setting::BUFFERED })?;
    let pairs = bench.options.pairs;
    let inserts = loads::fill(&*store, pairs, Some(SYNC_INTERVAL))?.rate();
    let (mut keys, mut values, mut most) = (KeyMaker::new(Layout::UDB), Values::new(), 0.0f64);
    let mut session = store.session()?;
    let began = Instant::now();
    for index in 0..pairs * CHURN {
        session.remove(keys.make(index))?;
        session.put(keys.make(index + pairs), values.make(index + pairs, 1, VALUE))?;
        if index % (pairs * CHURN / LOOKS).max(1) == 0 {
            let live = store.inner().unwrap_or_default().live_bytes;
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
    bench.figure(promises::CHURN_DISK, Some(most), format!("maximum of {LOOKS} samples"));
    store.close()?;
    bench.place.clear("churn")
}
