//! # Single: one workload over one store, for profilers and for looking closer

use std::path::PathBuf;

use crate::args::Run;
use crate::drive::{Length, Phase, Sample};
use crate::figures::percentiles;
use crate::keys::PAIR;
use crate::place::Place;
use crate::progress::say;
use crate::subjects::{Setting, Store};
use crate::table::number;
use crate::workload::{self, Workload};
use crate::{Result, measure};

/// Fills, warms, runs, prints.
pub(crate) fn run(options: &Run) -> Result<()> {
    let place = if options.keep {
        Place::kept(&options.dir)?
    } else {
        Place::new(&options.dir, (1 << 28) + options.pairs * PAIR * 3)?
    };
    let dir = place.path().join(options.subject.name());
    let is_new = !dir.exists();
    let store = open(options, &dir)?;
    if is_new && options.workload != Workload::Durable {
        let sample = workload::fill(&*store, options.pairs, options.sync_every)?;
        report("fill-random", &sample);
        say("filled; settling");
        measure::settle(std::time::Duration::from_secs(60));
    }
    if options.workload == Workload::UpdateZipf && options.warm > 0 {
        let length = Length::Operations(options.pairs * options.warm / 2);
        workload::update_zipf(&*store, options.pairs, 2, 1, Phase::of(length, options.sync_every))?;
        say("warmed");
    }
    let threads = options.threads.unwrap_or(2);
    let phase =
        Phase { latencies: options.latencies, ..Phase::of(Length::Time(options.phase), options.sync_every) };
    say(&format!("{} with {threads} threads for {} s", options.workload.name(), options.phase.as_secs_f64()));
    let sample = match options.workload {
        Workload::FillRandom => None,
        Workload::UpdateZipf => Some(workload::update_zipf(&*store, options.pairs, threads, 2, phase)?),
        Workload::Durable => {
            Some(workload::durable(&*store, threads, 2, Phase { sync_every: None, ..phase })?)
        }
        reading => Some(workload::get(&*store, reading, options.pairs, threads, 2, phase)?),
    };
    if let Some(sample) = sample {
        report(options.workload.name(), &sample);
    }
    if let Some(inner) = store.inner() {
        println!("{inner:#?}");
        println!("disk: {} MiB", measure::disk_bytes(&dir) >> 20);
    }
    store.close()
}

fn open(options: &Run, dir: &PathBuf) -> Result<Box<dyn Store>> {
    std::fs::create_dir_all(dir)?;
    let setting =
        Setting { durable: options.workload == Workload::Durable, space_limit: options.space_limit };
    options.subject.open(dir, setting)
}

fn report(name: &str, sample: &Sample) {
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
