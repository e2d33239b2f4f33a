//! # Replay database: a scratch database of one engine, and a load on it

use std::path::Path;
use std::time::{Duration, Instant};

use sheaf::{Database, Durability, Error, Keyspace, KeyspaceOptions, Result};

use crate::mix::{ReplayOperation, WorkloadMix};
use crate::random::{LengthDistribution, Random, ZipfRanks, mix64};

/// Pairs of one commit during the initial load.
const LOAD_BATCH_PAIRS: u64 = 200;
/// Operations between two checks of the clock.
const CLOCK_INTERVAL: u64 = 32;
/// One in this number of operations is timed.
const TIMED_INTERVAL: u64 = 8;
/// Maximum number of new pairs, as a multiple of the initial pairs, so that the disk does not fill
/// up.
const MAX_GROWTH: u64 = 2;
/// Length of the noise from which values are cut.
const NOISE_BYTES: usize = 1 << 16;

/// Result of a load so far.
#[derive(Clone, Debug, Default)]
pub struct ReplayOutcome {
    /// Number of operations.
    pub operations: u64,
    /// Time that the operations took.
    pub duration: Duration,
    /// Times of single operations in nanoseconds.
    latencies_ns: Vec<u64>,
}

impl ReplayOutcome {
    /// Returns the operations per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        let seconds = self.duration.as_secs_f64();
        if seconds > 0.0 { self.operations as f64 / seconds } else { 0.0 }
    }

    /// Returns the time within which the fraction `part` of the operations was complete.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    pub fn latency_percentile(&self, part: f64) -> Duration {
        let mut times = self.latencies_ns.clone();
        times.sort_unstable();
        let at = (times.len() as f64 * part) as usize;
        times
            .get(at.min(times.len().saturating_sub(1)))
            .map_or(Duration::ZERO, |ns| Duration::from_nanos(*ns))
    }
}

/// Scratch database of one engine with a load.
pub struct ReplayDatabase {
    db: Database,
    keyspace: Keyspace,
    mix: WorkloadMix,
    cumulative_shares: Vec<(f64, ReplayOperation)>,
    zipf: ZipfRanks,
    values: LengthDistribution,
    noise: Vec<u8>,
    random: Random,
    /// Number of pairs so far. Each lower pair number has a key.
    pairs: u64,
    max_pairs: u64,
    pending: Option<(sheaf::Batch, u64)>,
    outcome: ReplayOutcome,
}

impl ReplayDatabase {
    /// Creates a database in `dir`, which must not exist or be empty, and inserts the pairs of the
    /// mix durably. Returns `None` if `stop` returned true.
    ///
    /// # Errors
    ///
    /// Returns [`Error::InvalidArgument`] if there is no engine `engine`, and otherwise the error
    /// of opening the database or of a commit.
    pub fn new(
        dir: &Path,
        engine: &str,
        mix: &WorkloadMix,
        memory: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<ReplayDatabase>> {
        let db = Database::builder().memory(memory).open(dir)?;
        let keyspace = db.keyspace("replay", KeyspaceOptions::default().engine(engine))?;
        let spread = mix.value_bytes;
        let mut random = Random::new(1);
        let mut subject = ReplayDatabase {
            cumulative_shares: mix.shares.cumulative(),
            zipf: ZipfRanks::new(mix.zipf, mix.pairs),
            values: LengthDistribution::new(spread.mean, spread.p50, spread.p99),
            noise: (0..NOISE_BYTES).map(|_| random.next_u64().to_le_bytes()[0]).collect(),
            random,
            pairs: 0,
            max_pairs: mix.pairs.saturating_mul(1 + MAX_GROWTH),
            pending: None,
            outcome: ReplayOutcome::default(),
            mix: mix.clone(),
            db,
            keyspace,
        };
        while subject.pairs < mix.pairs {
            if stop() {
                return Ok(None);
            }
            subject.load_batch()?;
        }
        subject.db.persist()?;
        Ok(Some(subject))
    }

    fn load_batch(&mut self) -> Result<()> {
        let mut batch = self.db.batch();
        let (mut bytes, end) = (0, self.mix.pairs.min(self.pairs + LOAD_BATCH_PAIRS));
        while self.pairs < end && bytes < 1 << 20 {
            let value = self.value();
            bytes += value.len();
            batch.insert(&self.keyspace, self.key(self.pairs), &value);
            self.pairs += 1;
        }
        batch.commit()
    }

    /// Returns the keyspace with the pairs.
    #[must_use]
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Reads every pair once, so that the caches contain as many as fit. Ends early if `stop`
    /// returns true.
    ///
    /// # Errors
    ///
    /// Returns the error of a failed read.
    pub fn warm_up(&self, stop: &dyn Fn() -> bool) -> Result<()> {
        for pair in 0..self.pairs {
            if pair.is_multiple_of(1024) && stop() {
                break;
            }
            self.keyspace.get_with(self.key(pair), |_| ())?;
        }
        Ok(())
    }

    /// Switches to the operations of another load. Pairs, keys and lengths of values stay.
    pub fn set_mix(&mut self, mix: &WorkloadMix) {
        self.cumulative_shares = mix.shares.cumulative();
        self.pending = None;
        let (pairs, key_bytes, zipf) = (self.mix.pairs, self.mix.key_bytes, self.mix.zipf);
        self.mix = WorkloadMix { pairs, key_bytes, zipf, value_bytes: self.mix.value_bytes, ..mix.clone() };
    }

    /// Discards the result so far.
    pub fn reset(&mut self) {
        self.outcome = ReplayOutcome::default();
    }

    /// Returns the result so far.
    #[must_use]
    pub fn outcome(&self) -> &ReplayOutcome {
        &self.outcome
    }

    /// Runs the load for `duration`. Ends early if `stop` returns true.
    ///
    /// # Errors
    ///
    /// Returns the error of the first operation that fails. A conflict of a commit is not an error.
    pub fn run(&mut self, duration: Duration, stop: &dyn Fn() -> bool) -> Result<()> {
        let began = Instant::now();
        let mut done = 0u64;
        loop {
            if done.is_multiple_of(CLOCK_INTERVAL) && (began.elapsed() >= duration || stop()) {
                break;
            }
            if done.is_multiple_of(TIMED_INTERVAL) {
                let before = Instant::now();
                self.run_operation()?;
                self.outcome
                    .latencies_ns
                    .push(u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX));
            } else {
                self.run_operation()?;
            }
            done += 1;
            if self.mix.durable_share > 0.0 && began.elapsed() >= duration {
                break; // such an operation may take long
            }
        }
        self.outcome.operations += done;
        self.outcome.duration += began.elapsed();
        Ok(())
    }

    /// Closes the database. Its files remain.
    ///
    /// # Errors
    ///
    /// Same as [`Database::close`].
    pub fn close(self) -> Result<()> {
        drop((self.keyspace, self.pending));
        self.db.close()
    }

    /// Returns the key of a pair.
    fn key(&self, pair: u64) -> Vec<u8> {
        let name = if self.mix.is_sequential { pair } else { mix64(pair) };
        let (bytes, width) = (name.to_be_bytes(), self.mix.key_bytes);
        if width >= bytes.len() {
            let mut key = vec![b'k'; width - bytes.len()];
            key.extend_from_slice(&bytes);
            return key;
        }
        // A short key contains the lowest bytes of the number, which differ first.
        bytes[bytes.len() - width..].to_vec()
    }

    /// Returns the number of an existing pair, hot ones more often. The keys of hot pairs are not
    /// adjacent.
    fn choose_pair(&mut self) -> u64 {
        let rank = self.zipf.rank(&mut self.random);
        if self.mix.is_sequential { mix64(rank) % self.pairs.max(1) } else { rank }
    }

    fn value(&mut self) -> Vec<u8> {
        let len = self.values.sample(&mut self.random);
        #[allow(clippy::cast_possible_truncation, reason = "below the length of the noise")]
        let from = self.random.below(NOISE_BYTES as u64) as usize;
        let (mut value, mut at) = (Vec::with_capacity(len), from);
        while value.len() < len {
            let part = (len - value.len()).min(NOISE_BYTES - at);
            value.extend_from_slice(&self.noise[at..at + part]);
            at = 0;
        }
        value
    }

    fn run_operation(&mut self) -> Result<()> {
        let unit = self.random.next_f64();
        let found =
            self.cumulative_shares.iter().find(|(upto, _)| unit < *upto).or(self.cumulative_shares.last());
        let Some(operation) = found.map(|(_, operation)| *operation) else { return Ok(()) };
        match operation {
            ReplayOperation::Get => {
                let pair = self.choose_pair();
                self.keyspace.get_with(self.key(pair), |value| std::hint::black_box(value).len())?;
            }
            ReplayOperation::Miss => {
                let mut key = self.key(self.random.clone().next_u64() | 1 << 62);
                self.random.next_u64();
                key.push(b'?');
                self.keyspace.get_with(key, |_| ())?;
            }
            ReplayOperation::Contains => {
                let pair = self.choose_pair();
                self.keyspace.contains_key(self.key(pair))?;
            }
            ReplayOperation::New => {
                let pair = if self.pairs < self.max_pairs { self.pairs } else { self.choose_pair() };
                self.insert(pair)?;
                self.pairs = self.pairs.max(pair + 1);
            }
            ReplayOperation::Overwrite => {
                let pair = self.choose_pair();
                self.insert(pair)?;
            }
            ReplayOperation::Remove => {
                let pair = self.choose_pair();
                let key = self.key(pair);
                self.commit(|batch, keyspace| {
                    batch.remove(keyspace, &key);
                })?;
            }
            ReplayOperation::Update => {
                let (pair, value) = (self.choose_pair(), self.value());
                self.keyspace.update(self.key(pair), |_| Some(value.clone()))?;
            }
            ReplayOperation::Scan | ReplayOperation::ScanReverse => self.scan(operation)?,
        }
        Ok(())
    }

    fn scan(&mut self, operation: ReplayOperation) -> Result<()> {
        let pair = self.choose_pair();
        let key = self.key(pair);
        let mut iter = match operation {
            ReplayOperation::Scan => self.keyspace.range(key..)?,
            _ => self.keyspace.range(..key)?,
        };
        for _ in 0..self.mix.scan_pairs {
            let read = |key: &[u8], value: &[u8]| std::hint::black_box(key.len() + value.len());
            let pair = if operation == ReplayOperation::Scan {
                iter.next_with(read)
            } else {
                iter.next_back_with(read)
            };
            match pair {
                Some(pair) => drop(pair?),
                None => break,
            }
        }
        Ok(())
    }

    fn insert(&mut self, pair: u64) -> Result<()> {
        let (key, value) = (self.key(pair), self.value());
        if self.mix.batch_size <= 1 && self.mix.durable_share <= 0.0 {
            return self.keyspace.insert(key, value);
        }
        self.commit(|batch, keyspace| {
            batch.insert(keyspace, &key, &value);
        })
    }

    /// Adds a write to the pending commit, and commits it when the batch is full.
    fn commit(&mut self, add: impl FnOnce(&mut sheaf::Batch, &Keyspace)) -> Result<()> {
        let (mut batch, count) = self.pending.take().unwrap_or_else(|| (self.db.batch(), 0));
        add(&mut batch, &self.keyspace);
        if count + 1 < self.mix.batch_size {
            self.pending = Some((batch, count + 1));
            return Ok(());
        }
        let is_durable = self.random.next_f64() < self.mix.durable_share;
        batch.durability(if is_durable { Durability::Sync } else { Durability::Buffer });
        match batch.commit() {
            Err(Error::Conflict { .. }) | Ok(()) => Ok(()),
            Err(other) => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::OperationShares;
    use sheaf::LengthStats;

    fn mixed() -> WorkloadMix {
        let every = OperationShares {
            get: 1.0,
            miss: 1.0,
            contains: 1.0,
            new: 1.0,
            overwrite: 1.0,
            remove: 1.0,
            update: 1.0,
            scan: 1.0,
            scan_reverse: 1.0,
        };
        WorkloadMix {
            pairs: 500,
            key_bytes: 12,
            value_bytes: LengthStats { mean: 60.0, p50: 40, p99: 400 },
            shares: every,
            zipf: 0.9,
            scan_pairs: 5,
            is_sequential: false,
            durable_share: 0.0,
            batch_size: 1,
        }
    }

    #[test]
    fn a_replayed_mix_equals_the_recorded_workload() {
        let dir = std::env::temp_dir().join(format!("sheaf-advisor-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        for engine in sheaf::engines() {
            let mut mix = mixed();
            let db = dir.join(engine);
            if engine == "flat" || engine == "cedrus" {
                (mix.shares.scan, mix.shares.scan_reverse) = (0.0, 0.0);
            }
            let mut subject = ReplayDatabase::new(&db, engine, &mix, 64 << 20, &|| false).unwrap().unwrap();
            for _ in 0..40_000 {
                subject.run_operation().unwrap();
            }
            let load = subject.keyspace().workload().unwrap();
            let again = WorkloadMix::from_workload(&load, subject.keyspace().len().unwrap());
            assert_eq!(again.key_bytes, 12, "{engine}");
            assert!((again.value_bytes.mean / 60.0 - 1.0).abs() < 0.5, "{engine}: {again:?}");
            // A get of a removed key counts as a miss. Both together are two of nine operations, or
            // two of seven without scans. The bounds are six standard deviations away.
            let share = (again.shares.get + again.shares.miss) / load.operations() as f64;
            assert!((0.12..0.40).contains(&share), "{engine}: {again:?}");
            subject.close().unwrap();
        }
        std::fs::remove_dir_all(&dir).ok();
    }

    #[test]
    fn a_stop_request_ends_the_load() {
        let dir = std::env::temp_dir().join(format!("sheaf-advisor-stop-{}", std::process::id()));
        let subject = ReplayDatabase::new(&dir, "flex", &mixed(), 64 << 20, &|| true).unwrap();
        assert!(subject.is_none());
        std::fs::remove_dir_all(&dir).ok();
    }
}
