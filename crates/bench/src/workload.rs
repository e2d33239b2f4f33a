//! # Workload: which keys, which calls
//!
//! Each function drives one workload over a store and checks on the way that gets answer what they must.

use std::time::Duration;

use crate::Result;
use crate::drive::{Length, Phase, Sample, Worker, drive};
use crate::keys::{DURABLE_VALUE, Random, VALUE, Values, key};
use crate::subjects::{Session, Store};
use crate::zipf::Zipf;

/// A workload that can be asked for by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Workload {
    FillRandom,
    GetUniform,
    GetZipf,
    GetMiss,
    UpdateZipf,
    Durable,
}

impl Workload {
    pub(crate) const ALL: [Workload; 6] = [
        Workload::FillRandom,
        Workload::GetUniform,
        Workload::GetZipf,
        Workload::GetMiss,
        Workload::UpdateZipf,
        Workload::Durable,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::FillRandom => "fill-random",
            Workload::GetUniform => "get-uniform",
            Workload::GetZipf => "get-zipf",
            Workload::GetMiss => "get-miss",
            Workload::UpdateZipf => "update-zipf",
            Workload::Durable => "durable",
        }
    }

    pub(crate) fn parse(name: &str) -> Result<Workload> {
        Workload::ALL.into_iter().find(|workload| workload.name() == name).ok_or_else(|| {
            format!("unknown workload {name:?}; there are: {}", Workload::ALL.map(Workload::name).join(", "))
                .into()
        })
    }
}

/// Puts all pairs, in random key order, from one thread; the time includes a final sync.
pub(crate) fn fill(store: &dyn Store, pairs: u64, sync_every: Option<Duration>) -> Result<Sample> {
    let phase = Phase { final_sync: true, ..Phase::of(Length::Operations(pairs), sync_every) };
    drive(store, phase, vec![Fill { next: 0, values: Values::new() }])
}

struct Fill {
    next: u64,
    values: Values,
}

impl Worker for Fill {
    fn step(&mut self, session: &mut dyn Session) -> Result<()> {
        let index = self.next;
        self.next += 1;
        session.load(&key(index), self.values.make(index, index, VALUE))
    }

    fn finish(&mut self, session: &mut dyn Session) -> Result<()> {
        session.finish()
    }
}

/// Gets pairs: every one equally likely, by Zipf's law, or none that is there.
pub(crate) fn get(
    store: &dyn Store,
    workload: Workload,
    pairs: u64,
    threads: u64,
    seed: u64,
    phase: Phase,
) -> Result<Sample> {
    let choice = match workload {
        Workload::GetUniform => Choice::Uniform,
        Workload::GetZipf => Choice::Zipf(Zipf::new(pairs)),
        Workload::GetMiss => Choice::Missing,
        other => return Err(format!("{} is not a reading workload", other.name()).into()),
    };
    let must_find = store.keeps_data() && workload != Workload::GetMiss;
    let workers = (0..threads)
        .map(|thread| Get {
            pairs,
            must_find,
            choice: choice.clone(),
            random: Random::new(seed * 1000 + thread),
        })
        .collect();
    drive(store, phase, workers)
}

/// Which pairs are wanted.
#[derive(Clone)]
enum Choice {
    Uniform,
    Zipf(Zipf),
    Missing,
}

struct Get {
    pairs: u64,
    must_find: bool,
    choice: Choice,
    random: Random,
}

impl Worker for Get {
    fn step(&mut self, session: &mut dyn Session) -> Result<()> {
        let index = match &self.choice {
            Choice::Uniform => self.random.below(self.pairs),
            Choice::Zipf(zipf) => zipf.pair(&mut self.random),
            Choice::Missing => self.pairs + self.random.below(self.pairs),
        };
        let expected = self.must_find.then_some(index);
        let found = session.get(&key(index))?;
        if found == expected {
            return Ok(());
        }
        Err(format!("pair {index}: a get answered {found:?} where {expected:?} was expected").into())
    }
}

/// Checks that all pairs are there, from two threads, and that as many others are not. Warms caches too.
pub(crate) fn check(store: &dyn Store, pairs: u64) -> Result<()> {
    let half = pairs / 2;
    let workers = vec![Check { next: 0 }, Check { next: half }];
    drive(store, Phase::of(Length::Operations(pairs - half), None), workers).map(|_| ())?;
    let mut session = store.session()?;
    for index in pairs..pairs + 1000 {
        if session.get(&key(index))?.is_some() {
            return Err(format!("pair {index} was never put and is there").into());
        }
    }
    Ok(())
}

struct Check {
    next: u64,
}

impl Worker for Check {
    fn step(&mut self, session: &mut dyn Session) -> Result<()> {
        let index = self.next;
        self.next += 1;
        match session.get(&key(index))? {
            Some(found) if found == index => Ok(()),
            other => Err(format!("pair {index}: expected, but a get answered {other:?}").into()),
        }
    }
}

/// Puts new values for pairs that are there, by Zipf's law.
pub(crate) fn update_zipf(
    store: &dyn Store,
    pairs: u64,
    threads: u64,
    seed: u64,
    phase: Phase,
) -> Result<Sample> {
    let zipf = Zipf::new(pairs);
    let workers = (0..threads)
        .map(|thread| Update {
            random: Random::new(seed * 1000 + thread),
            zipf: zipf.clone(),
            values: Values::new(),
        })
        .collect();
    drive(store, phase, workers)
}

struct Update {
    random: Random,
    zipf: Zipf,
    values: Values,
}

impl Worker for Update {
    fn step(&mut self, session: &mut dyn Session) -> Result<()> {
        let index = self.zipf.pair(&mut self.random);
        let value = self.values.make(index, self.random.next(), VALUE);
        session.put(&key(index), value)
    }
}

/// Puts pairs with values of 100 bytes among a million keys, in a store that was opened durable.
pub(crate) fn durable(store: &dyn Store, threads: u64, seed: u64, phase: Phase) -> Result<Sample> {
    let workers = (0..threads)
        .map(|thread| Durable { random: Random::new(seed * 1000 + thread), values: Values::new() })
        .collect();
    drive(store, phase, workers)
}

const DURABLE_PAIRS: u64 = 1_000_000;

struct Durable {
    random: Random,
    values: Values,
}

impl Worker for Durable {
    fn step(&mut self, session: &mut dyn Session) -> Result<()> {
        let index = self.random.below(DURABLE_PAIRS);
        let value = self.values.make(index, self.random.next(), DURABLE_VALUE);
        session.put(&key(index), value)
    }
}
