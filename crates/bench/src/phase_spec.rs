//! # Phase: one workload over one open store, in a form that can be sent to a child process
//!
//! The specification lists the operations with their shares, the choice of pairs, the threads and
//! the length. Every get checks its result. docs/bench.md explains the names, and the tables
//! combine them.
//!
//! ## Threads
//!
//! A thread has its own random numbers and its own part of a walk over all pairs. The threads share
//! only the number of the next new pair.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::data::{DataSpec, EtcPicker, SizeGenerator};
use crate::drive::{DriveOptions, PhaseLength, PhaseSample, PhaseWorker, drive};
use crate::keys::{BenchRandom, KeyMaker, ValueGenerator};
use crate::subjects::{BenchSession, BenchStore, ScanDirection};
use crate::zipf::ZipfGenerator;

/// Operation on a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum PairOperation {
    /// Reads the pair.
    Get,
    /// Sets the pair, as a commit of its own.
    Update,
    /// Sets the pair. The store may gather several sets in one transaction.
    Load,
    /// Sets a pair that does not exist yet.
    Insert,
    /// Reads the pair, then sets it.
    ReadModifyWrite,
    /// Removes the pair.
    Remove,
    /// Reads `scan` pairs in ascending order, from the chosen one on.
    Scan,
    /// Reads `scan` pairs in descending order, from the chosen one on.
    ScanDown,
    /// Reads all pairs in order. Counts as one operation per pair.
    ScanAll,
    /// Tells the store to sort its pairs. Counts as many operations as the store reports.
    Compact,
}

/// Distribution of the chosen pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum KeyChoice {
    /// In order. Each thread has its part of the pairs, and starts again at its begin.
    Sequential,
    /// Like `Sequential`, but in random order: each pair once before any pair comes twice.
    Permuted,
    Uniform,
    /// Zipf distribution of YCSB: skew 0.99, with hot pairs scattered.
    Zipf,
    /// Zipf distribution over the first three digits of the number, uniform within.
    Composite,
    /// Zipf distribution over the age: the newest pair is the most frequent.
    Latest,
    /// Only pairs that do not exist.
    Missing,
    /// Zipf distribution over the pairs with small values, uniform over those with large ones.
    Etc,
}

/// Operations with their shares in per cent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct OperationMix(pub(crate) Vec<(PairOperation, u64)>);

impl OperationMix {
    /// One operation alone.
    pub(crate) fn only(op: PairOperation) -> OperationMix {
        OperationMix(vec![(op, 100)])
    }

    /// Parses a mix such as `get 95, update 5`. One operation may have no number: it gets the rest.
    pub(crate) fn parse(text: &str) -> Result<OperationMix> {
        let mut parts = Vec::new();
        for part in text.split(',') {
            let (name, share) = match part.trim().split_once(' ') {
                Some((name, share)) => {
                    let share = share.trim().parse::<u64>();
                    (name, Some(share.map_err(|_| format!("{part:?}: not an operation and its share"))?))
                }
                None => (part.trim(), None),
            };
            let op: PairOperation =
                serde_json::from_value(name.into()).map_err(|_| format!("there is no operation {name:?}"))?;
            parts.push((op, share));
        }
        let named: u64 = parts.iter().filter_map(|(_, share)| *share).sum();
        let unnamed = parts.iter().filter(|(_, share)| share.is_none()).count();
        if named > 100 || unnamed > 1 || (unnamed == 0 && named != 100) {
            return Err(format!("{text:?}: the shares do not make 100").into());
        }
        let shares = parts.into_iter().map(|(op, share)| (op, share.unwrap_or(100 - named)));
        Ok(OperationMix(shares.filter(|(_, share)| *share > 0).collect()))
    }

    pub(crate) fn has(&self, wanted: &[PairOperation]) -> bool {
        self.0.iter().any(|(op, _)| wanted.contains(op))
    }

    /// Returns whether any operation writes.
    pub(crate) fn writes(&self) -> bool {
        self.has(&[
            PairOperation::Update,
            PairOperation::Load,
            PairOperation::Insert,
            PairOperation::ReadModifyWrite,
            PairOperation::Remove,
            PairOperation::Compact,
        ])
    }

    /// Returns whether any operation needs key order.
    pub(crate) fn scans(&self) -> bool {
        self.has(&[PairOperation::Scan, PairOperation::ScanDown, PairOperation::ScanAll])
    }
}

/// A complete specification of a phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhaseSpec {
    pub(crate) data: DataSpec,
    pub(crate) mix: OperationMix,
    pub(crate) choice: KeyChoice,
    pub(crate) threads: u64,
    /// A number of operations counts all threads together.
    pub(crate) length: PhaseLength,
    /// Number of pairs of a scan.
    pub(crate) scan: u64,
    /// Seed of the random numbers. Runs with the same seed choose the same pairs.
    pub(crate) seed: u64,
    /// Interval of syncs of a store that does not sync itself.
    pub(crate) sync_every: Option<Duration>,
    /// Whether the time includes a sync at the end.
    pub(crate) final_sync: bool,
    pub(crate) latencies: bool,
    /// The only operation with recorded latencies, if the mix has several.
    pub(crate) timed: Option<PairOperation>,
    pub(crate) timeline: bool,
    /// Whether the database has all pairs: then each get of one must find it.
    pub(crate) full: bool,
    /// Number of pairs that earlier phases inserted in addition to the data.
    pub(crate) inserted: u64,
}

impl PhaseSpec {
    /// Returns a phase over a filled database, without syncs and latencies.
    pub(crate) fn new(
        data: DataSpec,
        mix: OperationMix,
        choice: KeyChoice,
        threads: u64,
        length: PhaseLength,
    ) -> PhaseSpec {
        PhaseSpec {
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

    /// Runs the phase. Also returns the number of inserted pairs, including those of earlier
    /// phases.
    pub(crate) fn run(&self, store: &dyn BenchStore) -> Result<(PhaseSample, u64)> {
        let tip = AtomicU64::new(self.data.pairs + self.inserted);
        let workers = (0..self.threads).map(|thread| PhaseThread::new(self, store, &tip, thread)).collect();
        let length = match self.length {
            PhaseLength::Operations(all) => PhaseLength::Operations(all.div_ceil(self.threads)),
            time @ PhaseLength::Time(_) => time,
        };
        let phase = DriveOptions {
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

/// First number of the pairs that never exist.
const FIRST_MISSING_PAIR: u64 = 1 << 40;

/// Draws numbers of pairs.
enum PairPicker {
    /// A walk over one thread's part: the next pair, the first one, the end of the part, and a
    /// permutation if the order is random.
    Walk {
        next: u64,
        from: u64,
        to: u64,
        order: Option<ZipfGenerator>,
    },
    Uniform,
    Zipf(ZipfGenerator),
    Composite(ZipfGenerator),
    Latest(ZipfGenerator),
    Missing,
    Etc(EtcPicker),
}

/// Number of groups of pairs with the same first three digits.
const GROUPS: u64 = 1000;

impl PairPicker {
    fn new(phase_spec: &PhaseSpec, thread: u64) -> PairPicker {
        let pairs = phase_spec.data.pairs;
        let zipf = || ZipfGenerator::new(pairs.max(2));
        match phase_spec.choice {
            KeyChoice::Sequential | KeyChoice::Permuted => {
                let part = |thread: u64| thread * pairs / phase_spec.threads;
                let (from, to) = (part(thread), part(thread + 1).max(part(thread) + 1));
                let order = (phase_spec.choice == KeyChoice::Permuted).then(zipf);
                PairPicker::Walk { next: from, from, to, order }
            }
            KeyChoice::Uniform => PairPicker::Uniform,
            KeyChoice::Zipf => PairPicker::Zipf(zipf()),
            KeyChoice::Composite => PairPicker::Composite(ZipfGenerator::new(GROUPS)),
            KeyChoice::Latest => PairPicker::Latest(zipf()),
            KeyChoice::Missing => PairPicker::Missing,
            KeyChoice::Etc => PairPicker::Etc(EtcPicker::new(pairs)),
        }
    }

    /// Chooses a pair of `0..pairs`. `Latest` chooses one below `tip`, and `Missing` one that does
    /// not exist.
    fn pick(&mut self, random: &mut BenchRandom, pairs: u64, tip: &AtomicU64) -> u64 {
        match self {
            PairPicker::Walk { next, from, to, order } => {
                let at = *next;
                *next = if at + 1 == *to { *from } else { at + 1 };
                order.as_ref().map_or(at, |order| order.scatter(at))
            }
            PairPicker::Uniform => random.below(pairs),
            PairPicker::Zipf(zipf) => zipf.pair(random),
            PairPicker::Composite(groups) => {
                let (group, inner) = (groups.pair(random), pairs.div_ceil(GROUPS));
                (group * inner + random.below(inner)).min(pairs - 1)
            }
            PairPicker::Latest(zipf) => {
                let newest = tip.load(Ordering::Relaxed) - 1;
                newest - zipf.rank(random).min(newest)
            }
            PairPicker::Missing => FIRST_MISSING_PAIR + random.below(pairs),
            PairPicker::Etc(picker) => picker.pair(random),
        }
    }
}

/// One thread of a phase.
struct PhaseThread<'a> {
    phase_spec: &'a PhaseSpec,
    inserted_count: &'a AtomicU64,
    random: BenchRandom,
    picker: PairPicker,
    keys: KeyMaker,
    values: ValueGenerator,
    sizer: SizeGenerator,
    /// Whether the value of each pair that is read must contain the number of the pair.
    checks: bool,
    user_bytes: u64,
    is_timed: bool,
}

impl<'a> PhaseThread<'a> {
    fn new(
        phase_spec: &'a PhaseSpec,
        store: &dyn BenchStore,
        tip: &'a AtomicU64,
        thread: u64,
    ) -> PhaseThread<'a> {
        PhaseThread {
            phase_spec,
            inserted_count: tip,
            random: BenchRandom::new(phase_spec.seed * 1000 + thread),
            picker: PairPicker::new(phase_spec, thread),
            keys: KeyMaker::new(phase_spec.data.keys),
            values: ValueGenerator::new(),
            sizer: SizeGenerator::new(&phase_spec.data),
            checks: store.keeps_data() && phase_spec.full && phase_spec.data.values.fit_pair_index(),
            user_bytes: 0,
            is_timed: true,
        }
    }

    fn op(&mut self) -> PairOperation {
        if let [(op, _)] = self.phase_spec.mix.0[..] {
            return op;
        }
        let mut left = self.random.below(100);
        for (op, share) in &self.phase_spec.mix.0 {
            if left < *share {
                return *op;
            }
            left -= share;
        }
        self.phase_spec.mix.0[0].0
    }

    fn get(&mut self, session: &mut dyn BenchSession, index: u64) -> Result<()> {
        let found = session.get(self.keys.make(index))?;
        let is_right = match found {
            _ if !self.checks => true,
            // A new pair may not exist yet: a thread takes its number before it puts the pair.
            None => index >= self.phase_spec.data.pairs,
            Some(found) => found == index,
        };
        if is_right {
            return Ok(());
        }
        Err(format!("pair {index}: a get answered {found:?}").into())
    }

    fn put(&mut self, session: &mut dyn BenchSession, index: u64, load: bool) -> Result<()> {
        let len = self.sizer.size(index, &mut self.random);
        let value = self.values.make(index, self.random.next(), len);
        let key = self.keys.make(index);
        self.user_bytes += (key.len() + len) as u64;
        if load { session.load(key, value) } else { session.put(key, value) }
    }
}

impl PhaseWorker for PhaseThread<'_> {
    fn step(&mut self, session: &mut dyn BenchSession) -> Result<u64> {
        let op = self.op();
        self.is_timed = self.phase_spec.timed.is_none_or(|timed| timed == op);
        if op == PairOperation::Insert {
            let index = self.inserted_count.fetch_add(1, Ordering::Relaxed);
            return self.put(session, index, false).map(|()| 1);
        }
        if op == PairOperation::ScanAll {
            return session.scan(b"", u64::MAX, ScanDirection::Up).map(|seen| seen.max(1));
        }
        if op == PairOperation::Compact {
            return session.compact();
        }
        let index = self.picker.pick(&mut self.random, self.phase_spec.data.pairs, self.inserted_count);
        match op {
            PairOperation::Get => self.get(session, index)?,
            PairOperation::Update => self.put(session, index, false)?,
            PairOperation::Load | PairOperation::Insert => self.put(session, index, true)?,
            PairOperation::ReadModifyWrite => {
                self.get(session, index)?;
                self.put(session, index, false)?;
            }
            PairOperation::Remove => {
                let key = self.keys.make(index);
                self.user_bytes += key.len() as u64;
                session.remove(key)?;
            }
            PairOperation::Scan | PairOperation::ScanAll | PairOperation::Compact => {
                session.scan(self.keys.make(index), self.phase_spec.scan, ScanDirection::Up)?;
            }
            PairOperation::ScanDown => {
                session.scan(self.keys.make(index), self.phase_spec.scan, ScanDirection::Down)?;
            }
        }
        Ok(1)
    }

    fn finish(&mut self, session: &mut dyn BenchSession) -> Result<()> {
        session.finish()
    }

    fn user_bytes(&self) -> u64 {
        self.user_bytes
    }

    fn is_timed(&self) -> bool {
        self.is_timed
    }
}

/// Gets all pairs from two threads and 1,000 missing ones, and returns an error if a result is
/// wrong. Also warms caches.
pub(crate) fn check(store: &dyn BenchStore, data: &DataSpec) -> Result<()> {
    let length = PhaseLength::Operations(data.pairs);
    PhaseSpec::new(data.clone(), OperationMix::only(PairOperation::Get), KeyChoice::Sequential, 2, length)
        .run(store)?;
    let (mut session, mut keys) = (store.session()?, KeyMaker::new(data.keys));
    for index in FIRST_MISSING_PAIR..FIRST_MISSING_PAIR + 1000 {
        if store.keeps_data() && session.get(keys.make(index))?.is_some() {
            return Err(format!("pair {index} was never put and is there").into());
        }
    }
    Ok(())
}

/// Returns how often each pair was chosen in `draws` draws, for tests of the tables.
#[cfg(test)]
fn drawn(phase_spec: &PhaseSpec, draws: u64) -> std::collections::BTreeMap<u64, u64> {
    let tip = AtomicU64::new(phase_spec.data.pairs);
    let (mut picker, mut random) = (PairPicker::new(phase_spec, 0), BenchRandom::new(1));
    let mut counts = std::collections::BTreeMap::new();
    for _ in 0..draws {
        *counts.entry(picker.pick(&mut random, phase_spec.data.pairs, &tip)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KeyLayout;
    use crate::subjects::{BenchSubject, StoreSetting};

    fn phase_spec(mix: &str, choice: KeyChoice, operations: u64) -> PhaseSpec {
        let data = DataSpec::udb(10_000);
        PhaseSpec::new(
            data,
            OperationMix::parse(mix).unwrap(),
            choice,
            2,
            PhaseLength::Operations(operations),
        )
    }

    #[test]
    fn mixes_read_as_they_are_written() {
        assert_eq!(OperationMix::parse("get").unwrap(), OperationMix::only(PairOperation::Get));
        assert_eq!(
            OperationMix::parse("update 5, get").unwrap().0,
            [(PairOperation::Update, 5), (PairOperation::Get, 95)]
        );
        assert_eq!(OperationMix::parse("update 100, get").unwrap().0, [(PairOperation::Update, 100)]);
        for wrong in ["got", "get 50", "get 60, update 60", "get, update", "get x", ""] {
            assert!(OperationMix::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn walks_meet_every_pair_once_before_any_twice() {
        for choice in [KeyChoice::Sequential, KeyChoice::Permuted] {
            let mut phase_spec = phase_spec("get", choice, 0);
            phase_spec.threads = 1;
            let counts = drawn(&phase_spec, 10_000);
            assert_eq!((counts.len(), counts.values().max()), (10_000, Some(&1)), "{choice:?}");
            assert_eq!(drawn(&phase_spec, 20_000).values().min(), Some(&2), "{choice:?}");
        }
    }

    #[test]
    fn choices_stay_in_their_range_and_have_their_skew() {
        for choice in
            [KeyChoice::Uniform, KeyChoice::Zipf, KeyChoice::Composite, KeyChoice::Latest, KeyChoice::Etc]
        {
            let counts = drawn(&phase_spec("get", choice, 0), 50_000);
            assert!(counts.keys().all(|index| *index < 10_000), "{choice:?}");
            let hottest = counts.values().max().copied().unwrap_or(0);
            let is_skewed = matches!(choice, KeyChoice::Zipf | KeyChoice::Latest | KeyChoice::Etc);
            assert_eq!(hottest > 1000, is_skewed, "{choice:?}: {hottest}");
        }
        assert!(
            drawn(&phase_spec("get", KeyChoice::Missing, 0), 100)
                .keys()
                .all(|index| *index >= FIRST_MISSING_PAIR)
        );
        assert!(drawn(&phase_spec("get", KeyChoice::Latest, 0), 1000).contains_key(&9_999));
    }

    #[test]
    fn composite_keys_are_hot_by_range() {
        let counts = drawn(&phase_spec("get", KeyChoice::Composite, 0), 100_000);
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
        let store = BenchSubject::FLAT
            .open(&dir, StoreSetting { memory: 64 << 20, ..StoreSetting::BUFFERED })
            .unwrap();
        let fill = phase_spec("load", KeyChoice::Permuted, 10_000);
        let (sample, _) = fill.run(&*store).unwrap();
        assert_eq!((sample.operations, sample.user_bytes), (10_000, 1_540_000));
        check(&*store, &fill.data).unwrap();
        let mixed =
            phase_spec("get 40, update 20, read-modify-write 20, insert 20", KeyChoice::Latest, 5_000);
        let (_, inserted) = mixed.run(&*store).unwrap();
        assert!((800..1200).contains(&inserted), "{inserted}");
        phase_spec("remove", KeyChoice::Permuted, 5_000).run(&*store).unwrap();
        let refusal = phase_spec("get", KeyChoice::Uniform, 1000).run(&*store).unwrap_err().to_string();
        assert!(refusal.contains("a get answered None"), "{refusal}");
        PhaseSpec { full: false, ..phase_spec("get", KeyChoice::Uniform, 1000) }.run(&*store).unwrap();
        store.close().unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn keys_of_a_stage_have_its_layout() {
        let data = DataSpec { keys: KeyLayout { len: 8, ordered: true }, ..DataSpec::udb(100) };
        let null = BenchSubject::NULL.open(std::path::Path::new("/"), StoreSetting::BUFFERED).unwrap();
        let load = PhaseSpec::new(
            data,
            OperationMix::only(PairOperation::Load),
            KeyChoice::Sequential,
            1,
            PhaseLength::Operations(100),
        );
        assert_eq!(load.run(&*null).unwrap().0.user_bytes, 100 * (8 + 127));
    }
}
