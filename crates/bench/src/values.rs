//! # Values: stores compared with large values
//!
//! Runs keys of 16 bytes and values of one size through the phases of the picture. All stores run
//! in this process, one after the other within a round.
//!
//! ```text
//!   fill ── settle ── device bytes ── get ── keys ── remove all ── refill at once          one database
//!   fill, remove half, fill ── settle ── device bytes                                      churn, in a fresh one
//!   fill ── update for a minute: each latency                                              tail, in a fresh one
//! ```
//!
//! Device bytes are bytes written to the block device until the store is idle and the page cache is
//! written back, divided by the bytes of keys and values that were put.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;
use crate::args;
use crate::data::{Data, Sizes};
use crate::drive::{Length, Sample};
use crate::keys::Layout;
use crate::measure::{self, Written};
use crate::place::{LIMIT, Place};
use crate::progress::say;
use crate::stage::{Choice, Mix, Op, Stage};
use crate::subjects::{Setting, Store, Subject};
use crate::table::{markdown, number};

/// Bytes of a key.
const KEY: usize = 16;
/// A database may take this multiple of its data while it is compacted.
const SPREAD: u64 = 5;
/// What a store gets at most to come to rest.
const REST: Duration = Duration::from_secs(60);

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Each pair once, in random order, by one thread.
    Fill,
    /// Uniform gets by two threads.
    Get,
    /// All keys, without values.
    Keys,
    /// All removed, and filled again at once.
    Refill,
    /// Filled, half removed, filled.
    Churn,
    /// Updates, each timed.
    Tail,
}

impl Part {
    pub(crate) const ALL: [Part; 6] =
        [Part::Fill, Part::Get, Part::Keys, Part::Refill, Part::Churn, Part::Tail];

    fn name(self) -> &'static str {
        match self {
            Part::Fill => "fill",
            Part::Get => "get",
            Part::Keys => "keys",
            Part::Refill => "refill",
            Part::Churn => "churn",
            Part::Tail => "tail",
        }
    }

    /// The part of that name.
    pub(crate) fn parse(name: &str) -> Result<Part> {
        let names = Part::ALL.map(Part::name).join(", ");
        let part = Part::ALL.into_iter().find(|part| part.name() == name);
        part.ok_or_else(|| format!("there is no part {name:?}; there are: {names}").into())
    }

    /// The stores that are compared if nobody says which.
    pub(crate) fn stores() -> Vec<Subject> {
        let known = ["delsm", "leveldb", "rocksdb"].into_iter().filter_map(Subject::known);
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

/// Measures and prints.
pub(crate) fn run(options: &args::Values) -> Result<()> {
    let place = Place::new(&options.dir.path, (options.bytes * SPREAD).min(LIMIT))?;
    let mut rows = Vec::new();
    for _ in 0..options.rounds {
        for size in &options.sizes {
            for store in &options.stores() {
                rows.push(row(options, &place, *store, *size)?);
            }
        }
    }
    print!("{}", markdown(&HEAD.map(str::to_owned), &rows));
    Ok(())
}

/// One store with values of one size.
struct Case<'a> {
    options: &'a args::Values,
    subject: Subject,
    data: Data,
}

fn row(options: &args::Values, place: &Place, subject: Subject, size: u64) -> Result<Vec<String>> {
    let values = usize::try_from(size)?;
    let pairs = (options.bytes / (size + KEY as u64)).max(1000);
    let data = Data { keys: Layout { len: KEY, ordered: false }, values: Sizes::Fixed(values), pairs };
    let case = Case { options, subject, data };
    let mut cells = vec![subject.title(), size.to_string()];
    let wants = |parts: &[Part]| parts.iter().any(|part| options.only().contains(part));
    match wants(&[Part::Fill, Part::Get, Part::Keys, Part::Refill]) {
        true => cells.extend(case.life(&place.fresh("values")?)?),
        false => cells.extend((0..9).map(|_| String::new())),
    }
    cells.push(if wants(&[Part::Churn]) { case.churn(&place.fresh("values")?)? } else { String::new() });
    match wants(&[Part::Tail]) {
        true => cells.extend(case.tail(&place.fresh("values")?)?),
        false => cells.extend([String::new(), String::new()]),
    }
    place.clear("values")?;
    Ok(cells)
}

/// A latency in milliseconds.
fn ms(sample: &Sample, quantile: f64) -> String {
    let latencies = sample.latencies.as_ref();
    latencies.map_or(String::new(), |latencies| number(latencies.value_at_quantile(quantile) as f64 / 1e6))
}

impl Case<'_> {
    fn open(&self, dir: &Path) -> Result<Box<dyn Store>> {
        self.subject.open(dir, Setting { memory: self.options.memory, ..Setting::BUFFERED })
    }

    fn stage(&self, op: Op, choice: Choice, threads: u64, length: Length) -> Stage {
        Stage {
            sync_every: self.options.sync_every,
            ..Stage::new(self.data.clone(), Mix::only(op), choice, threads, length)
        }
    }

    fn fill(&self, store: &dyn Store, seed: u64) -> Result<Sample> {
        let length = Length::Operations(self.data.pairs);
        let stage = self.stage(Op::Load, Choice::Permuted, 1, length);
        let sample = Stage { final_sync: true, latencies: true, seed, ..stage }.run(store)?.0;
        self.say("filled", &sample);
        Ok(sample)
    }

    fn remove(&self, store: &dyn Store, pairs: u64) -> Result<Sample> {
        let stage = self.stage(Op::Remove, Choice::Permuted, 1, Length::Operations(pairs));
        let sample = Stage { final_sync: true, ..stage }.run(store)?.0;
        self.say("removed", &sample);
        Ok(sample)
    }

    fn say(&self, what: &str, sample: &Sample) {
        let (rate, cpu) = (number(sample.rate() / 1e3), number(sample.cpu_micros()));
        let callers = number(sample.caller_micros());
        let size = self.data.values.mean();
        say(&format!("{} {size}: {what} {rate} k/s, CPU {cpu} us each ({callers})", self.subject.name()));
    }

    /// Device bytes since `before` over user bytes.
    fn amplification(&self, dir: &Path, before: Written, puts: f64) -> Result<String> {
        measure::settle(REST);
        let written = Written::read(dir)?.since(before).verdict();
        Ok(number(written as f64 / (puts * self.data.bytes() as f64)))
    }

    fn life(&self, dir: &Path) -> Result<Vec<String>> {
        let wants = |part: Part| self.options.only().contains(&part);
        let before = Written::read(dir)?;
        let store = self.open(dir)?;
        let fill = self.fill(&*store, 1)?;
        let mut cells = vec![number(fill.rate() / 1e3), ms(&fill, 0.9999), ms(&fill, 1.0)];
        cells.push(self.amplification(dir, before, 1.0)?);
        let mut cell = |text: Option<String>| cells.push(text.unwrap_or_default());
        cell(if wants(Part::Get) {
            self.stage(Op::Get, Choice::Sequential, 2, Length::Operations(self.data.pairs)).run(&*store)?;
            let stage = self.stage(Op::Get, Choice::Uniform, 2, Length::Time(self.options.phase));
            let sample = stage.run(&*store)?.0;
            self.say("got", &sample);
            Some(number(sample.rate() / 1e3))
        } else {
            None
        });
        cell(if wants(Part::Keys) { Some(self.keys(&*store)?) } else { None });
        if wants(Part::Refill) {
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

    /// Million keys a second; the second of two walks counts.
    fn keys(&self, store: &dyn Store) -> Result<String> {
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
        say(&format!("{}: {rate} M keys/s", self.subject.name()));
        Ok(rate)
    }

    fn churn(&self, dir: &Path) -> Result<String> {
        let before = Written::read(dir)?;
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
        let stage = self.stage(Op::Update, Choice::Uniform, 1, Length::Time(self.options.tail));
        let sample = Stage { latencies: true, ..stage }.run(&*store)?.0;
        self.say("updated", &sample);
        store.close()?;
        Ok(vec![ms(&sample, 0.9999), ms(&sample, 1.0)])
    }
}
