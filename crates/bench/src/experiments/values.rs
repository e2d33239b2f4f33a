//! # Values: stores compared with large values
//!
//! Runs keys of 16 bytes and values of one size through the phases of the picture. All stores run
//! in this process, one after the other within a round.
//!
//! ```text
//!   fill -- settle -- device bytes -- get -- keys -- remove all -- refill at once   one database
//!   fill, remove half, fill -- settle -- device bytes                    churn, in a fresh one
//!   fill -- update for a minute: each latency                            tail, in a fresh one
//! ```
//!
//! Device bytes are the bytes written to the block device, divided by the bytes of keys and values
//! that were put. They are counted until the store is idle and the page cache is written back.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;
use crate::args;
use crate::data::{DataSpec, ValueSizes};
use crate::drive::{PhaseLength, PhaseSample};
use crate::keys::KeyLayout;
use crate::measure::{self, WrittenBytes};
use crate::phase_spec::{KeyChoice, OperationMix, PairOperation, PhaseSpec};
use crate::progress::print_status;
use crate::promise_table::{markdown, number};
use crate::run_dir::{MAX_DISK_BYTES, RunDir};
use crate::subjects::{BenchStore, BenchSubject, StoreSetting};

/// Bytes of a key.
const KEY: usize = 16;
/// A database may take this multiple of its data while it is compacted.
const MAX_SPACE_FACTOR: u64 = 5;
/// Longest wait until a store is idle.
const MAX_QUIESCE: Duration = Duration::from_secs(60);

/// Part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ValueMeasurement {
    /// Fill of each pair once, in random order, by one thread.
    Fill,
    /// Uniform gets by two threads.
    Get,
    /// Scan of all keys, without values.
    Keys,
    /// Removal of all pairs and an immediate fill.
    Refill,
    /// Fill, removal of a half, and another fill.
    Churn,
    /// Updates with the latency of each.
    Tail,
}

impl ValueMeasurement {
    pub(crate) const ALL: [ValueMeasurement; 6] = [
        ValueMeasurement::Fill,
        ValueMeasurement::Get,
        ValueMeasurement::Keys,
        ValueMeasurement::Refill,
        ValueMeasurement::Churn,
        ValueMeasurement::Tail,
    ];

    fn name(self) -> &'static str {
        match self {
            ValueMeasurement::Fill => "fill",
            ValueMeasurement::Get => "get",
            ValueMeasurement::Keys => "keys",
            ValueMeasurement::Refill => "refill",
            ValueMeasurement::Churn => "churn",
            ValueMeasurement::Tail => "tail",
        }
    }

    /// Returns the part of that name.
    pub(crate) fn parse(name: &str) -> Result<ValueMeasurement> {
        let names = ValueMeasurement::ALL.map(ValueMeasurement::name).join(", ");
        let part = ValueMeasurement::ALL.into_iter().find(|part| part.name() == name);
        part.ok_or_else(|| format!("there is no part {name:?}; there are: {names}").into())
    }

    /// Returns the default stores, if the build includes them.
    pub(crate) fn stores() -> Vec<BenchSubject> {
        let known = ["delsm", "leveldb", "rocksdb"].into_iter().filter_map(BenchSubject::by_name);
        known.filter(|store| store.is_built_in()).collect()
    }
}

const HEAD: [&str; 14] = [
    "store",
    "value",
    "fill k/s",
    "p99.99 ms",
    "longest ms",
    "device bytes/user byte",
    "get k/s",
    "keys M/s",
    "remove k/s",
    "refill k/s",
    "refill/fill",
    "churn: device bytes/user byte",
    "tail: p99.99 ms",
    "tail: longest ms",
];

/// Measures all stores and prints a table.
pub(crate) fn run(options: &args::ValuesArgs) -> Result<()> {
    let place = RunDir::new(&options.dir.path, (options.bytes * MAX_SPACE_FACTOR).min(MAX_DISK_BYTES))?;
    let mut rows = Vec::new();
    for _ in 0..options.rounds {
        for size in &options.sizes {
            for store in &options.stores() {
                rows.push(measure_store(options, &place, *store, *size)?);
            }
        }
    }
    print!("{}", markdown(&HEAD.map(str::to_owned), &rows));
    Ok(())
}

/// One store with values of one size.
struct ValuesCase<'a> {
    options: &'a args::ValuesArgs,
    subject: BenchSubject,
    data: DataSpec,
}

fn measure_store(
    options: &args::ValuesArgs,
    place: &RunDir,
    subject: BenchSubject,
    size: u64,
) -> Result<Vec<String>> {
    let values = usize::try_from(size)?;
    let pairs = (options.bytes / (size + KEY as u64)).max(1000);
    let data =
        DataSpec { keys: KeyLayout { len: KEY, ordered: false }, values: ValueSizes::Fixed(values), pairs };
    let case = ValuesCase { options, subject, data };
    let mut cells = vec![subject.title(), size.to_string()];
    let wants = |parts: &[ValueMeasurement]| parts.iter().any(|part| options.only().contains(part));
    match wants(&[
        ValueMeasurement::Fill,
        ValueMeasurement::Get,
        ValueMeasurement::Keys,
        ValueMeasurement::Refill,
    ]) {
        true => cells.extend(case.run_lifecycle(&place.fresh("values")?)?),
        false => cells.extend((0..9).map(|_| String::new())),
    }
    cells.push(if wants(&[ValueMeasurement::Churn]) {
        case.churn(&place.fresh("values")?)?
    } else {
        String::new()
    });
    match wants(&[ValueMeasurement::Tail]) {
        true => cells.extend(case.tail(&place.fresh("values")?)?),
        false => cells.extend([String::new(), String::new()]),
    }
    place.clear("values")?;
    Ok(cells)
}

/// Returns a quantile of the latencies in milliseconds.
fn quantile_ms(sample: &PhaseSample, quantile: f64) -> String {
    let latencies = sample.latencies.as_ref();
    latencies.map_or(String::new(), |latencies| number(latencies.value_at_quantile(quantile) as f64 / 1e6))
}

impl ValuesCase<'_> {
    fn open(&self, dir: &Path) -> Result<Box<dyn BenchStore>> {
        self.subject.open(dir, StoreSetting { memory: self.options.memory, ..StoreSetting::BUFFERED })
    }

    fn phase_spec(
        &self,
        op: PairOperation,
        choice: KeyChoice,
        threads: u64,
        length: PhaseLength,
    ) -> PhaseSpec {
        PhaseSpec {
            sync_every: self.options.sync_every,
            ..PhaseSpec::new(self.data.clone(), OperationMix::only(op), choice, threads, length)
        }
    }

    fn fill(&self, store: &dyn BenchStore, seed: u64) -> Result<PhaseSample> {
        let length = PhaseLength::Operations(self.data.pairs);
        let phase_spec = self.phase_spec(PairOperation::Load, KeyChoice::Permuted, 1, length);
        let sample = PhaseSpec { final_sync: true, latencies: true, seed, ..phase_spec }.run(store)?.0;
        self.say("filled", &sample);
        Ok(sample)
    }

    fn remove(&self, store: &dyn BenchStore, pairs: u64) -> Result<PhaseSample> {
        let phase_spec =
            self.phase_spec(PairOperation::Remove, KeyChoice::Permuted, 1, PhaseLength::Operations(pairs));
        let sample = PhaseSpec { final_sync: true, ..phase_spec }.run(store)?.0;
        self.say("removed", &sample);
        Ok(sample)
    }

    fn say(&self, action: &str, sample: &PhaseSample) {
        let (rate, cpu) = (number(sample.rate() / 1e3), number(sample.cpu_micros()));
        let callers = number(sample.caller_micros());
        let size = self.data.values.mean();
        print_status(&format!(
            "{} {size}: {action} {rate} k/s, CPU {cpu} us each ({callers})",
            self.subject.name()
        ));
    }

    /// Returns the device bytes since `before`, divided by the user bytes of `puts` fills.
    fn amplification(&self, dir: &Path, before: WrittenBytes, puts: f64) -> Result<String> {
        measure::wait_until_idle(MAX_QUIESCE);
        let written = WrittenBytes::read(dir)?.since(before).device_or_process();
        Ok(number(written as f64 / (puts * self.data.bytes() as f64)))
    }

    fn run_lifecycle(&self, dir: &Path) -> Result<Vec<String>> {
        let wants = |part: ValueMeasurement| self.options.only().contains(&part);
        let before = WrittenBytes::read(dir)?;
        let store = self.open(dir)?;
        let fill = self.fill(&*store, 1)?;
        let mut cells = vec![number(fill.rate() / 1e3), quantile_ms(&fill, 0.9999), quantile_ms(&fill, 1.0)];
        cells.push(self.amplification(dir, before, 1.0)?);
        let mut cell = |text: Option<String>| cells.push(text.unwrap_or_default());
        cell(if wants(ValueMeasurement::Get) {
            self.phase_spec(
                PairOperation::Get,
                KeyChoice::Sequential,
                2,
                PhaseLength::Operations(self.data.pairs),
            )
            .run(&*store)?;
            let phase_spec = self.phase_spec(
                PairOperation::Get,
                KeyChoice::Uniform,
                2,
                PhaseLength::Time(self.options.phase),
            );
            let sample = phase_spec.run(&*store)?.0;
            self.say("got", &sample);
            Some(number(sample.rate() / 1e3))
        } else {
            None
        });
        cell(if wants(ValueMeasurement::Keys) { Some(self.keys(&*store)?) } else { None });
        if wants(ValueMeasurement::Refill) {
            let removed = self.remove(&*store, self.data.pairs)?;
            let refill = self.fill(&*store, 2)?;
            cell(Some(number(removed.rate() / 1e3)));
            cell(Some(number(refill.rate() / 1e3)));
            cell(Some(number(refill.rate() / fill.rate())));
        } else {
            (0..3).for_each(|_| cell(None));
        }
        store.close()?;
        Ok(cells)
    }

    /// Returns million keys per second. A first scan warms up and is not counted.
    fn keys(&self, store: &dyn BenchStore) -> Result<String> {
        let mut session = store.session()?;
        session.keys()?;
        let (began, mut seen) = (Instant::now(), 0);
        while began.elapsed() < self.options.phase / 4 {
            let keys = session.keys()?;
            if keys != self.data.pairs {
                return Err(format!("a walk saw {keys} keys of {}", self.data.pairs).into());
            }
            seen += keys;
        }
        let rate = number(seen as f64 / began.elapsed().as_secs_f64() / 1e6);
        print_status(&format!("{}: {rate} M keys/s", self.subject.name()));
        Ok(rate)
    }

    fn churn(&self, dir: &Path) -> Result<String> {
        let before = WrittenBytes::read(dir)?;
        let store = self.open(dir)?;
        self.fill(&*store, 1)?;
        self.remove(&*store, self.data.pairs / 2)?;
        self.fill(&*store, 2)?;
        let cell = self.amplification(dir, before, 2.0)?;
        store.close()?;
        Ok(cell)
    }

    fn tail(&self, dir: &Path) -> Result<Vec<String>> {
        let store = self.open(dir)?;
        self.fill(&*store, 1)?;
        let phase_spec = self.phase_spec(
            PairOperation::Update,
            KeyChoice::Uniform,
            1,
            PhaseLength::Time(self.options.tail),
        );
        let sample = PhaseSpec { latencies: true, ..phase_spec }.run(&*store)?.0;
        self.say("updated", &sample);
        store.close()?;
        Ok(vec![quantile_ms(&sample, 0.9999), quantile_ms(&sample, 1.0)])
    }
}
