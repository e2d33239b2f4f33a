//! # Single run: one workload over one store in this process, for profilers and debugging

use std::path::Path;
use std::time::Duration;

use crate::args::RunArgs;
use crate::drive::{PhaseLength, PhaseSample};
use crate::figures::percentiles;
use crate::measure;
use crate::phase_spec::{KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::progress::print_status;
use crate::promise_table::number;
use crate::run_dir::RunDir;
use crate::subjects::{BenchStore, StoreSetting};
use crate::workload::InitialState;
use crate::{Result, data::DataSpec};

/// Updates before the timed ones, as a multiple of the pairs. This many make the log reuse its
/// segments.
const WARM_UPDATES: u64 = 2;

/// Fills and warms the store, runs the workload, and prints the results.
pub(crate) fn run(options: &RunArgs) -> Result<()> {
    let (load, data) = (&options.workload, options.workload.data.of(options.pairs));
    if load.open.is_some() || load.cap.is_some() {
        return Err(format!("{} needs processes of its own: compare --only {}", load.name, load.name).into());
    }
    let place = if options.keep {
        RunDir::keeping(&options.dir.path)?
    } else {
        RunDir::new(&options.dir.path, (1 << 28) + data.bytes() * 3)?
    };
    let dir = place.path().join(options.subject.name());
    let is_new = !dir.exists();
    let store = open(options, &dir)?;
    let is_filled = load.start != InitialState::Empty;
    if is_new && is_filled {
        fill(options, &*store, &data)?;
    }
    if is_filled {
        warm(options, &*store, &data)?;
    }
    let threads = options.threads.or(load.threads.first().copied()).unwrap_or(2);
    let length = match load.length {
        Some(length) => operations(&data, length),
        None => PhaseLength::Time(options.phase),
    };
    let phase_spec = PhaseSpec {
        seed: 2,
        sync_every: options.sync_every.filter(|_| !load.durable),
        final_sync: load.mix.writes() && load.length.is_some(),
        latencies: options.latencies,
        full: is_filled && load.removed <= 0.0,
        ..PhaseSpec::new(data, load.mix.clone(), load.choice, threads, length)
    };
    print_status(&format!("{} with {threads} threads", load.name));
    report(&load.name, &phase_spec.run(&*store)?.0);
    if let Some(inner) = store.sheaf_figures() {
        println!("{inner:#?}");
        println!("disk: {} MiB", measure::disk_bytes(&dir) >> 20);
    }
    store.close()
}

fn open(options: &RunArgs, dir: &Path) -> Result<Box<dyn BenchStore>> {
    std::fs::create_dir_all(dir)?;
    let setting = StoreSetting {
        durable: options.workload.durable,
        space_limit: options.workload.space_limit.or(options.space_limit),
        memory: options.memory,
    };
    options.subject.open(dir, setting)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a multiple of a count")]
fn operations(data: &DataSpec, times: f64) -> PhaseLength {
    PhaseLength::Operations(((data.pairs as f64 * times) as u64).max(1))
}

fn fill(options: &RunArgs, store: &dyn BenchStore, data: &DataSpec) -> Result<()> {
    let choice = if data.keys.ordered { KeyChoice::Sequential } else { KeyChoice::Permuted };
    let phase_spec = PhaseSpec::new(
        data.clone(),
        OperationMix::only(PairOperation::Load),
        choice,
        1,
        PhaseLength::Operations(data.pairs),
    );
    let phase_spec = PhaseSpec { sync_every: options.sync_every, final_sync: true, ..phase_spec };
    report("fill", &phase_spec.run(store)?.0);
    print_status("filled; settling");
    measure::wait_until_idle(Duration::from_secs(60));
    Ok(())
}

/// Runs the phases that prepare the store for the workload: updates, removals, a compaction.
fn warm(options: &RunArgs, store: &dyn BenchStore, data: &DataSpec) -> Result<()> {
    let load = &options.workload;
    let usual = if load.mix == OperationMix::only(PairOperation::Update) && load.length.is_none() {
        WARM_UPDATES
    } else {
        0
    };
    let times = options.warm.unwrap_or(usual) as f64 + load.aged;
    for (op, choice, times) in [
        (PairOperation::Update, KeyChoice::Zipf, times),
        (PairOperation::Remove, KeyChoice::Permuted, load.removed),
    ] {
        if times > 0.0 {
            let phase_spec =
                PhaseSpec::new(data.clone(), OperationMix::only(op), choice, 2, operations(data, times));
            PhaseSpec { sync_every: options.sync_every, ..phase_spec }.run(store)?;
            print_status("warmed");
        }
    }
    if load.compacted {
        let (op, choice) = (OperationMix::only(PairOperation::Compact), KeyChoice::Sequential);
        let phase_spec = PhaseSpec::new(data.clone(), op, choice, 1, PhaseLength::Operations(1));
        report("compact", &phase_spec.run(store)?.0);
    }
    Ok(())
}

fn report(name: &str, sample: &PhaseSample) {
    println!(
        "{name}: {} k/s, {} operations in {:.2} s, CPU {} µs each (callers' threads {})",
        number(sample.rate() / 1e3),
        sample.operations,
        sample.elapsed.as_secs_f64(),
        number(sample.cpu_micros()),
        number(sample.caller_micros()),
    );
    if let Some(latencies) = &sample.latencies {
        println!("{name}: {}", percentiles(latencies));
    }
}
