//! # Single: one workload over one store in this process, for profilers and for looking closer

use std::path::Path;
use std::time::Duration;

use crate::args::Run;
use crate::drive::{Length, Sample};
use crate::figures::percentiles;
use crate::measure;
use crate::place::Place;
use crate::progress::say;
use crate::spec::Start;
use crate::stage::{Choice, Mix, Op, Stage};
use crate::subjects::{Setting, Store};
use crate::table::number;
use crate::{Result, data::Data};

/// Updates before the timed ones, as a multiple of the pairs: the log has wrapped by then.
const WARM: u64 = 2;

/// Fills, warms, runs, prints.
pub(crate) fn run(options: &Run) -> Result<()> {
    let (load, data) = (&options.load, options.load.data.of(options.pairs));
    if load.open.is_some() || load.cap.is_some() {
        return Err(format!("{} needs processes of its own: compare --only {}", load.name, load.name).into());
    }
    let place = if options.keep {
        Place::kept(&options.dir.path)?
    } else {
        Place::new(&options.dir.path, (1 << 28) + data.bytes() * 3)?
    };
    let dir = place.path().join(options.subject.name());
    let is_new = !dir.exists();
    let store = open(options, &dir)?;
    let is_filled = load.start != Start::Empty;
    if is_new && is_filled {
        fill(options, &*store, &data)?;
    }
    if is_filled {
        warm(options, &*store, &data)?;
    }
    let threads = options.threads.or(load.threads.first().copied()).unwrap_or(2);
    let length = match load.length {
        Some(length) => operations(&data, length),
        None => Length::Time(options.phase),
    };
    let stage = Stage {
        seed: 2,
        sync_every: options.sync_every.filter(|_| !load.durable),
        final_sync: load.mix.writes() && load.length.is_some(),
        latencies: options.latencies,
        full: is_filled && load.removed <= 0.0,
        ..Stage::new(data, load.mix.clone(), load.choice, threads, length)
    };
    say(&format!("{} with {threads} threads", load.name));
    report(&load.name, &stage.run(&*store)?.0);
    if let Some(inner) = store.inner() {
        println!("{inner:#?}");
        println!("disk: {} MiB", measure::disk_bytes(&dir) >> 20);
    }
    store.close()
}

fn open(options: &Run, dir: &Path) -> Result<Box<dyn Store>> {
    std::fs::create_dir_all(dir)?;
    let setting = Setting {
        durable: options.load.durable,
        space_limit: options.load.space_limit.unwrap_or(options.space_limit),
        memory: options.memory,
    };
    options.subject.open(dir, setting)
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a multiple of a count")]
fn operations(data: &Data, times: f64) -> Length {
    Length::Operations(((data.pairs as f64 * times) as u64).max(1))
}

fn fill(options: &Run, store: &dyn Store, data: &Data) -> Result<()> {
    let choice = if data.keys.ordered { Choice::Sequential } else { Choice::Permuted };
    let stage = Stage::new(data.clone(), Mix::only(Op::Load), choice, 1, Length::Operations(data.pairs));
    let stage = Stage { sync_every: options.sync_every, final_sync: true, ..stage };
    report("fill", &stage.run(store)?.0);
    say("filled; settling");
    measure::settle(Duration::from_secs(60));
    Ok(())
}

/// What is to be done before the workload itself.
fn warm(options: &Run, store: &dyn Store, data: &Data) -> Result<()> {
    let load = &options.load;
    let usual = if load.mix == Mix::only(Op::Update) && load.length.is_none() { WARM } else { 0 };
    let times = options.warm.unwrap_or(usual) as f64 + load.aged;
    for (op, choice, times) in
        [(Op::Update, Choice::Zipf, times), (Op::Remove, Choice::Permuted, load.removed)]
    {
        if times > 0.0 {
            let stage = Stage::new(data.clone(), Mix::only(op), choice, 2, operations(data, times));
            Stage { sync_every: options.sync_every, ..stage }.run(store)?;
            say("warmed");
        }
    }
    if load.compacted {
        let (op, choice) = (Mix::only(Op::Compact), Choice::Sequential);
        let stage = Stage::new(data.clone(), op, choice, 1, Length::Operations(1));
        report("compact", &stage.run(store)?.0);
    }
    Ok(())
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
