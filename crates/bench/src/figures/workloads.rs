//! # Workloads of the figures, over an open store in this process

use std::time::Duration;

use crate::Result;
use crate::data::{DataSpec, ValueSizes};
use crate::drive::{DriveOptions, PhaseLength, PhaseSample};
use crate::phase_spec::{self, KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::subjects::BenchStore;

/// Name of a workload in the report, and choice of the pairs that its gets read.
pub(super) type GetWorkload = (&'static str, KeyChoice);

pub(super) const FILL_RANDOM: &str = "fill-random";
pub(super) const UPDATE_ZIPF: &str = "update-zipf";
pub(super) const GET_UNIFORM: GetWorkload = ("get-uniform", KeyChoice::Uniform);
pub(super) const GET_ZIPF: GetWorkload = ("get-zipf", KeyChoice::Zipf);
pub(super) const GET_MISS: GetWorkload = ("get-miss", KeyChoice::Missing);

/// Puts all pairs from one thread, in random key order. The time includes a final sync.
pub(super) fn fill(store: &dyn BenchStore, pairs: u64, sync_every: Option<Duration>) -> Result<PhaseSample> {
    let phase =
        DriveOptions { final_sync: true, ..DriveOptions::new(PhaseLength::Operations(pairs), sync_every) };
    run(store, DataSpec::udb(pairs), PairOperation::Load, KeyChoice::Sequential, 1, 1, phase)
}

/// Gets pairs.
pub(super) fn get(
    store: &dyn BenchStore,
    choice: KeyChoice,
    pairs: u64,
    threads: u64,
    seed: u64,
    phase: DriveOptions,
) -> Result<PhaseSample> {
    run(store, DataSpec::udb(pairs), PairOperation::Get, choice, threads, seed, phase)
}

/// Gets all pairs and 1,000 missing ones, and returns an error if a result is wrong. Also warms
/// caches.
pub(super) fn check(store: &dyn BenchStore, pairs: u64) -> Result<()> {
    phase_spec::check(store, &DataSpec::udb(pairs))
}

/// Updates existing pairs by a Zipf distribution.
pub(super) fn update_zipf(
    store: &dyn BenchStore,
    pairs: u64,
    threads: u64,
    seed: u64,
    phase: DriveOptions,
) -> Result<PhaseSample> {
    run(store, DataSpec::udb(pairs), PairOperation::Update, KeyChoice::Zipf, threads, seed, phase)
}

/// Puts values of 100 bytes under a million keys, in a store that was opened durable.
pub(super) fn durable(
    store: &dyn BenchStore,
    threads: u64,
    seed: u64,
    phase: DriveOptions,
) -> Result<PhaseSample> {
    let data = DataSpec { values: ValueSizes::Fixed(100), ..DataSpec::udb(1_000_000) };
    run(store, data, PairOperation::Update, KeyChoice::Uniform, threads, seed, phase)
}

fn run(
    store: &dyn BenchStore,
    data: DataSpec,
    op: PairOperation,
    choice: KeyChoice,
    threads: u64,
    seed: u64,
    phase: DriveOptions,
) -> Result<PhaseSample> {
    let phase_spec = PhaseSpec {
        seed,
        sync_every: phase.sync_every,
        final_sync: phase.final_sync,
        latencies: phase.latencies,
        ..PhaseSpec::new(data, OperationMix::only(op), choice, threads, phase.length)
    };
    phase_spec.run(store).map(|(sample, _)| sample)
}
