//! # Loads: the workloads of the figures, over an open store in this process

use std::time::Duration;

use crate::Result;
use crate::data::{Data, Sizes};
use crate::drive::{Length, Phase, Sample};
use crate::stage::{self, Choice, Mix, Op, Stage};
use crate::subjects::Store;

/// A workload's name in the report, and which pairs its gets ask for.
pub(super) type Gets = (&'static str, Choice);

pub(super) const FILL_RANDOM: &str = "fill-random";
pub(super) const UPDATE_ZIPF: &str = "update-zipf";
pub(super) const GET_UNIFORM: Gets = ("get-uniform", Choice::Uniform);
pub(super) const GET_ZIPF: Gets = ("get-zipf", Choice::Zipf);
pub(super) const GET_MISS: Gets = ("get-miss", Choice::Missing);

/// Puts all pairs, in random key order, from one thread; the time includes a final sync.
pub(super) fn fill(store: &dyn Store, pairs: u64, sync_every: Option<Duration>) -> Result<Sample> {
    let phase = Phase { final_sync: true, ..Phase::of(Length::Operations(pairs), sync_every) };
    run(store, Data::udb(pairs), Op::Load, Choice::Sequential, 1, 1, phase)
}

/// Gets pairs.
pub(super) fn get(
    store: &dyn Store,
    choice: Choice,
    pairs: u64,
    threads: u64,
    seed: u64,
    phase: Phase,
) -> Result<Sample> {
    run(store, Data::udb(pairs), Op::Get, choice, threads, seed, phase)
}

/// Checks that all pairs are there, and that as many others are not. Warms caches too.
pub(super) fn check(store: &dyn Store, pairs: u64) -> Result<()> {
    stage::check(store, &Data::udb(pairs))
}

/// Puts new values for pairs that are there, by Zipf's law.
pub(super) fn update_zipf(
    store: &dyn Store,
    pairs: u64,
    threads: u64,
    seed: u64,
    phase: Phase,
) -> Result<Sample> {
    run(store, Data::udb(pairs), Op::Update, Choice::Zipf, threads, seed, phase)
}

/// Puts pairs with values of 100 bytes among a million keys, in a store that was opened durable.
pub(super) fn durable(store: &dyn Store, threads: u64, seed: u64, phase: Phase) -> Result<Sample> {
    let data = Data { values: Sizes::Fixed(100), ..Data::udb(1_000_000) };
    run(store, data, Op::Update, Choice::Uniform, threads, seed, phase)
}

fn run(
    store: &dyn Store,
    data: Data,
    op: Op,
    choice: Choice,
    threads: u64,
    seed: u64,
    phase: Phase,
) -> Result<Sample> {
    let stage = Stage {
        seed,
        sync_every: phase.sync_every,
        final_sync: phase.final_sync,
        latencies: phase.latencies,
        ..Stage::new(data, Mix::only(op), choice, threads, phase.length)
    };
    stage.run(store).map(|(sample, _)| sample)
}
