//! # Stage: one workload over one open store, complete and small enough to be sent to a child
//!
//! Which operations in which shares, which pairs they are for, by how many threads, for how long. Every
//! get checks on the way that it answers what it must. docs/bench.md says what the names mean; the
//! tables combine them.
//!
//! ## Threads
//!
//! A thread has its own random numbers, its own part of a walk over all pairs, and shares with the
//! others only the number of the next new pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::data::{Data, EtcPicker, Sizer};
use crate::drive::{Length, Phase, Sample, Worker, drive};
use crate::keys::{KeyMaker, Random, Values};
use crate::subjects::{Session, Store, Way};
use crate::zipf::Zipf;

/// What is done to a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Op {
    /// Reads it.
    Get,
    /// Sets it, as a commit of its own.
    Update,
    /// Sets it, perhaps together with others.
    Load,
    /// Sets a pair that is not there yet.
    Insert,
    /// Reads it, then sets it.
    ReadModifyWrite,
    /// Removes it.
    Remove,
    /// Reads it and those after it, `scan` together.
    Scan,
    /// Reads it and those before it.
    ScanDown,
    /// Reads all pairs in order; counts for as many operations.
    ScanAll,
    /// Has the store put its pairs into order; counts for as many operations as it says.
    Compact,
}

/// Which pairs are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Choice {
    /// One after the other; each thread has its part, and begins again at its end.
    Sequential,
    /// The same in random order: each pair once before any comes twice.
    Permuted,
    Uniform,
    /// YCSB's Zipfian, skew 0.99, hot pairs scattered.
    Zipf,
    /// The first three digits of the number Zipfian, the rest uniform.
    Composite,
    /// Zipfian by age, the newest most often.
    Latest,
    /// None that is there.
    Missing,
    /// Zipfian among the small ones, uniform among the large ones.
    Etc,
}

/// Operations with their shares in per cent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mix(pub(crate) Vec<(Op, u64)>);

impl Mix {
    /// One operation alone.
    pub(crate) fn only(op: Op) -> Mix {
        Mix(vec![(op, 100)])
    }

    /// `get 95, update 5`; one operation may stand without a number and gets what is left.
    pub(crate) fn parse(text: &str) -> Result<Mix> {
        let mut parts = Vec::new();
        for part in text.split(',') {
            let (name, share) = match part.trim().split_once(' ') {
                Some((name, share)) => {
                    let share = share.trim().parse::<u64>();
                    (name, Some(share.map_err(|_| format!("{part:?}: not an operation and its share"))?))
                }
                None => (part.trim(), None),
            };
            let op: Op =
                serde_json::from_value(name.into()).map_err(|_| format!("there is no operation {name:?}"))?;
            parts.push((op, share));
        }
        let named: u64 = parts.iter().filter_map(|(_, share)| *share).sum();
        let unnamed = parts.iter().filter(|(_, share)| share.is_none()).count();
        if named > 100 || unnamed > 1 || (unnamed == 0 && named != 100) {
            return Err(format!("{text:?}: the shares do not make 100").into());
        }
        let shares = parts.into_iter().map(|(op, share)| (op, share.unwrap_or(100 - named)));
        Ok(Mix(shares.filter(|(_, share)| *share > 0).collect()))
    }

    pub(crate) fn has(&self, wanted: &[Op]) -> bool {
        self.0.iter().any(|(op, _)| wanted.contains(op))
    }

    /// Whether anything is written.
    pub(crate) fn writes(&self) -> bool {
        self.has(&[Op::Update, Op::Load, Op::Insert, Op::ReadModifyWrite, Op::Remove, Op::Compact])
    }

    /// Whether key order is needed.
    pub(crate) fn scans(&self) -> bool {
        self.has(&[Op::Scan, Op::ScanDown, Op::ScanAll])
    }
}

/// A workload, complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Stage {
    pub(crate) data: Data,
    pub(crate) mix: Mix,
    pub(crate) choice: Choice,
    pub(crate) threads: u64,
    /// Operations are those of all threads together.
    pub(crate) length: Length,
    /// Pairs of a scan.
    pub(crate) scan: u64,
    /// Runs with the same seed ask for the same pairs.
    pub(crate) seed: u64,
    /// How often a store that does not sync by itself is synced.
    pub(crate) sync_every: Option<Duration>,
    /// Whether the time includes a sync at the end.
    pub(crate) final_sync: bool,
    pub(crate) latencies: bool,
    /// The only operation whose latencies are taken, if it is one of many.
    pub(crate) timed: Option<Op>,
    pub(crate) timeline: bool,
    /// Whether all pairs are there: then each get of one must find it.
    pub(crate) full: bool,
    /// Pairs inserted beyond the data by stages before.
    pub(crate) inserted: u64,
}

impl Stage {
    /// Over a filled database, unsynced, untimed.
    pub(crate) fn new(data: Data, mix: Mix, choice: Choice, threads: u64, length: Length) -> Stage {
        Stage {
            data,
            mix,
            choice,
            threads,
            length,
            scan: 50,
            seed: 1,
            sync_every: None,
            final_sync: false,
            latencies: false,
            timed: None,
            timeline: false,
            full: true,
            inserted: 0,
        }
    }

    /// Drives it. Answers also how many pairs were inserted, those before included.
    pub(crate) fn run(&self, store: &dyn Store) -> Result<(Sample, u64)> {
        let tip = AtomicU64::new(self.data.pairs + self.inserted);
        let workers = (0..self.threads).map(|thread| Actor::new(self, store, &tip, thread)).collect();
        let length = match self.length {
            Length::Operations(all) => Length::Operations(all.div_ceil(self.threads)),
            time @ Length::Time(_) => time,
        };
        let phase = Phase {
            length,
            latencies: self.latencies,
            sync_every: self.sync_every,
            final_sync: self.final_sync,
            timeline: self.timeline,
        };
        let sample = drive(store, phase, workers)?;
        Ok((sample, tip.into_inner() - self.data.pairs))
    }
}

/// Numbers of pairs that are never there begin here.
const NOWHERE: u64 = 1 << 40;

/// Draws numbers of pairs.
enum Picker {
    /// The next, the part's first, the end of the part, and the permutation if the order is random.
    Walk {
        next: u64,
        from: u64,
        to: u64,
        order: Option<Zipf>,
    },
    Uniform,
    Zipf(Zipf),
    Composite(Zipf),
    Latest(Zipf),
    Missing,
    Etc(EtcPicker),
}

/// Groups of pairs with the same first three digits.
const GROUPS: u64 = 1000;

impl Picker {
    fn new(stage: &Stage, thread: u64) -> Picker {
        let pairs = stage.data.pairs;
        let zipf = || Zipf::new(pairs.max(2));
        match stage.choice {
            Choice::Sequential | Choice::Permuted => {
                let part = |thread: u64| thread * pairs / stage.threads;
                let (from, to) = (part(thread), part(thread + 1).max(part(thread) + 1));
                let order = (stage.choice == Choice::Permuted).then(zipf);
                Picker::Walk { next: from, from, to, order }
            }
            Choice::Uniform => Picker::Uniform,
            Choice::Zipf => Picker::Zipf(zipf()),
            Choice::Composite => Picker::Composite(Zipf::new(GROUPS)),
            Choice::Latest => Picker::Latest(zipf()),
            Choice::Missing => Picker::Missing,
            Choice::Etc => Picker::Etc(EtcPicker::new(pairs)),
        }
    }

    /// A pair of `0..pairs`, or for `Latest` of `0..tip`.
    fn pick(&mut self, random: &mut Random, pairs: u64, tip: &AtomicU64) -> u64 {
        match self {
            Picker::Walk { next, from, to, order } => {
                let at = *next;
                *next = if at + 1 == *to { *from } else { at + 1 };
                order.as_ref().map_or(at, |order| order.scatter(at))
            }
            Picker::Uniform => random.below(pairs),
            Picker::Zipf(zipf) => zipf.pair(random),
            Picker::Composite(groups) => {
                let (group, inner) = (groups.pair(random), pairs.div_ceil(GROUPS));
                (group * inner + random.below(inner)).min(pairs - 1)
            }
            Picker::Latest(zipf) => {
                let newest = tip.load(Ordering::Relaxed) - 1;
                newest - zipf.rank(random).min(newest)
            }
            Picker::Missing => NOWHERE + random.below(pairs),
            Picker::Etc(picker) => picker.pair(random),
        }
    }
}

/// One thread of a stage.
struct Actor<'a> {
    stage: &'a Stage,
    tip: &'a AtomicU64,
    random: Random,
    picker: Picker,
    keys: KeyMaker,
    values: Values,
    sizer: Sizer,
    /// Whether a get of a pair must find its number.
    checks: bool,
    user_bytes: u64,
    is_timed: bool,
}

impl<'a> Actor<'a> {
    fn new(stage: &'a Stage, store: &dyn Store, tip: &'a AtomicU64, thread: u64) -> Actor<'a> {
        Actor {
            stage,
            tip,
            random: Random::new(stage.seed * 1000 + thread),
            picker: Picker::new(stage, thread),
            keys: KeyMaker::new(stage.data.keys),
            values: Values::new(),
            sizer: Sizer::new(&stage.data),
            checks: store.keeps_data() && stage.full && stage.data.values.hold_numbers(),
            user_bytes: 0,
            is_timed: true,
        }
    }

    fn op(&mut self) -> Op {
        if let [(op, _)] = self.stage.mix.0[..] {
            return op;
        }
        let mut left = self.random.below(100);
        for (op, share) in &self.stage.mix.0 {
            if left < *share {
                return *op;
            }
            left -= share;
        }
        self.stage.mix.0[0].0
    }

    fn get(&mut self, session: &mut dyn Session, index: u64) -> Result<()> {
        let found = session.get(self.keys.make(index))?;
        let is_right = match found {
            _ if !self.checks => true,
            // One just inserted may not be there yet: its number is given before it is put.
            None => index >= self.stage.data.pairs,
            Some(found) => found == index,
        };
        if is_right {
            return Ok(());
        }
        Err(format!("pair {index}: a get answered {found:?}").into())
    }

    fn put(&mut self, session: &mut dyn Session, index: u64, load: bool) -> Result<()> {
        let len = self.sizer.size(index, &mut self.random);
        let value = self.values.make(index, self.random.next(), len);
        let key = self.keys.make(index);
        self.user_bytes += (key.len() + len) as u64;
        if load { session.load(key, value) } else { session.put(key, value) }
    }
}

impl Worker for Actor<'_> {
    fn step(&mut self, session: &mut dyn Session) -> Result<u64> {
        let op = self.op();
        self.is_timed = self.stage.timed.is_none_or(|timed| timed == op);
        if op == Op::Insert {
            let index = self.tip.fetch_add(1, Ordering::Relaxed);
            return self.put(session, index, false).map(|()| 1);
        }
        if op == Op::ScanAll {
            return session.scan(b"", u64::MAX, Way::Up).map(|seen| seen.max(1));
        }
        if op == Op::Compact {
            return session.compact();
        }
        let index = self.picker.pick(&mut self.random, self.stage.data.pairs, self.tip);
        match op {
            Op::Get => self.get(session, index)?,
            Op::Update => self.put(session, index, false)?,
            Op::Load | Op::Insert => self.put(session, index, true)?,
            Op::ReadModifyWrite => {
                self.get(session, index)?;
                self.put(session, index, false)?;
            }
            Op::Remove => {
                let key = self.keys.make(index);
                self.user_bytes += key.len() as u64;
                session.remove(key)?;
            }
            Op::Scan | Op::ScanAll | Op::Compact => {
                session.scan(self.keys.make(index), self.stage.scan, Way::Up)?;
            }
            Op::ScanDown => {
                session.scan(self.keys.make(index), self.stage.scan, Way::Down)?;
            }
        }
        Ok(1)
    }

    fn finish(&mut self, session: &mut dyn Session) -> Result<()> {
        session.finish()
    }

    fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    fn is_timed(&self) -> bool {
        self.is_timed
    }
}

/// Checks that all pairs are there, from two threads, and that as many others are not. Warms caches too.
pub(crate) fn check(store: &dyn Store, data: &Data) -> Result<()> {
    let length = Length::Operations(data.pairs);
    Stage::new(data.clone(), Mix::only(Op::Get), Choice::Sequential, 2, length).run(store)?;
    let (mut session, mut keys) = (store.session()?, KeyMaker::new(data.keys));
    for index in NOWHERE..NOWHERE + 1000 {
        if store.keeps_data() && session.get(keys.make(index))?.is_some() {
            return Err(format!("pair {index} was never put and is there").into());
        }
    }
    Ok(())
}

/// How often each choice of `draws` was drawn, for tests of the tables.
#[cfg(test)]
fn drawn(stage: &Stage, draws: u64) -> std::collections::BTreeMap<u64, u64> {
    let tip = AtomicU64::new(stage.data.pairs);
    let (mut picker, mut random) = (Picker::new(stage, 0), Random::new(1));
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..draws {
        *counts.entry(picker.pick(&mut random, stage.data.pairs, &tip)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Layout;
    use crate::subjects::{Setting, Subject};

    fn stage(mix: &str, choice: Choice, operations: u64) -> Stage {
        let data = Data::udb(10_000);
        Stage::new(data, Mix::parse(mix).unwrap(), choice, 2, Length::Operations(operations))
    }

    #[test]
    fn mixes_read_as_they_are_written() {
        assert_eq!(Mix::parse("get").unwrap(), Mix::only(Op::Get));
        assert_eq!(Mix::parse("update 5, get").unwrap().0, [(Op::Update, 5), (Op::Get, 95)]);
        assert_eq!(Mix::parse("update 100, get").unwrap().0, [(Op::Update, 100)]);
        for wrong in ["got", "get 50", "get 60, update 60", "get, update", "get x", ""] {
            assert!(Mix::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn walks_meet_every_pair_once_before_any_twice() {
        for choice in [Choice::Sequential, Choice::Permuted] {
            let mut stage = stage("get", choice, 0);
            stage.threads = 1;
            let counts = drawn(&stage, 10_000);
            assert_eq!((counts.len(), counts.values().max()), (10_000, Some(&1)), "{choice:?}");
            assert_eq!(drawn(&stage, 20_000).values().min(), Some(&2), "{choice:?}");
        }
    }

    #[test]
    fn choices_stay_in_their_range_and_have_their_skew() {
        for choice in [Choice::Uniform, Choice::Zipf, Choice::Composite, Choice::Latest, Choice::Etc] {
            let counts = drawn(&stage("get", choice, 0), 50_000);
            assert!(counts.keys().all(|index| *index < 10_000), "{choice:?}");
            let hottest = counts.values().max().copied().unwrap_or(0);
            let is_skewed = matches!(choice, Choice::Zipf | Choice::Latest | Choice::Etc);
            assert_eq!(hottest > 1000, is_skewed, "{choice:?}: {hottest}");
        }
        assert!(drawn(&stage("get", Choice::Missing, 0), 100).keys().all(|index| *index >= NOWHERE));
        assert!(drawn(&stage("get", Choice::Latest, 0), 1000).contains_key(&9_999));
    }

    #[test]
    fn composite_keys_are_hot_by_range() {
        let counts = drawn(&stage("get", Choice::Composite, 0), 100_000);
        let mut groups = [0u64; 1000];
        for (index, count) in counts {
            groups[usize::try_from(index / 10).unwrap()] += count;
        }
        groups.sort_unstable();
        assert!(groups[999] > 10_000 && groups[0] < 100, "{:?}", &groups[990..]);
    }

    #[test]
    fn every_operation_runs_over_a_store_and_is_checked() {
        let dir = std::env::temp_dir().join(format!("sheaf-bench-stage-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let store = Subject::FLAT.open(&dir, Setting { memory: 64 << 20, ..Setting::BUFFERED }).unwrap();
        let fill = stage("load", Choice::Permuted, 10_000);
        let (sample, _) = fill.run(&*store).unwrap();
        assert_eq!((sample.operations, sample.user_bytes), (10_000, 1_540_000));
        check(&*store, &fill.data).unwrap();
        let mixed = stage("get 40, update 20, read-modify-write 20, insert 20", Choice::Latest, 5_000);
        let (_, inserted) = mixed.run(&*store).unwrap();
        assert!((800..1200).contains(&inserted), "{inserted}");
        stage("remove", Choice::Permuted, 5_000).run(&*store).unwrap();
        let refusal = stage("get", Choice::Uniform, 1000).run(&*store).unwrap_err().to_string();
        assert!(refusal.contains("a get answered None"), "{refusal}");
        Stage { full: false, ..stage("get", Choice::Uniform, 1000) }.run(&*store).unwrap();
        store.close().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn keys_of_a_stage_have_its_layout() {
        let data = Data { keys: Layout { len: 8, ordered: true }, ..Data::udb(100) };
        let null = Subject::NULL.open(std::path::Path::new("/"), Setting::BUFFERED).unwrap();
        let load = Stage::new(data, Mix::only(Op::Load), Choice::Sequential, 1, Length::Operations(100));
        assert_eq!(load.run(&*null).unwrap().0.user_bytes, 100 * (8 + 127));
    }
}
