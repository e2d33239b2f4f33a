//! # Mix: what a load is made of

use sheaf::{LengthStats, WorkloadStats};

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayOperation {
    /// Reads a key that is there.
    Get,
    /// Reads one that is not.
    Miss,
    /// Asks whether one is there.
    Contains,
    /// Sets a key that was not there.
    New,
    /// Sets one that was.
    Overwrite,
    /// Removes one; the next time it is chosen it is set.
    Remove,
    /// Reads, decides and writes.
    Update,
    /// Goes over some pairs upwards.
    Scan,
    /// Goes over some pairs downwards.
    ScanReverse,
}

/// How often each is done, in any unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationShares {
    /// Of [`ReplayOperation::Get`].
    pub get: f64,
    /// Of [`ReplayOperation::Miss`].
    pub miss: f64,
    /// Of [`ReplayOperation::Contains`].
    pub contains: f64,
    /// Of [`ReplayOperation::New`].
    pub new: f64,
    /// Of [`ReplayOperation::Overwrite`].
    pub overwrite: f64,
    /// Of [`ReplayOperation::Remove`].
    pub remove: f64,
    /// Of [`ReplayOperation::Update`].
    pub update: f64,
    /// Of [`ReplayOperation::Scan`].
    pub scan: f64,
    /// Of [`ReplayOperation::ScanReverse`].
    pub scan_reverse: f64,
}

impl OperationShares {
    /// Whether any of them writes.
    #[must_use]
    pub fn has_writes(&self) -> bool {
        self.new + self.overwrite + self.remove + self.update > 0.0
    }

    /// Each operation and its share of all.
    pub(crate) fn cumulative(&self) -> Vec<(f64, ReplayOperation)> {
        let all = [
            (self.get, ReplayOperation::Get),
            (self.miss, ReplayOperation::Miss),
            (self.contains, ReplayOperation::Contains),
            (self.new, ReplayOperation::New),
            (self.overwrite, ReplayOperation::Overwrite),
            (self.remove, ReplayOperation::Remove),
            (self.update, ReplayOperation::Update),
            (self.scan, ReplayOperation::Scan),
            (self.scan_reverse, ReplayOperation::ScanReverse),
        ];
        let (total, mut sum) = (all.iter().map(|share| share.0).sum::<f64>().max(f64::MIN_POSITIVE), 0.0);
        let mut upto = |share: f64| {
            sum += share / total;
            sum
        };
        all.into_iter().filter(|(share, _)| *share > 0.0).map(|(share, op)| (upto(share), op)).collect()
    }
}

/// A load.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadMix {
    /// Pairs there are at the beginning.
    pub pairs: u64,
    /// Bytes of a key.
    pub key_bytes: usize,
    /// Bytes of values.
    pub value_bytes: LengthStats,
    /// How often what is done.
    pub shares: OperationShares,
    /// The exponent of the Zipf distribution of keys; 0 is even.
    pub zipf: f64,
    /// Pairs of a scan.
    pub scan_pairs: u64,
    /// New keys are above all others, in place of anywhere.
    pub is_sequential: bool,
    /// The share of commits that wait for the device.
    pub durable_share: f64,
    /// Writes of one commit.
    pub batch_size: u64,
}

impl WorkloadMix {
    /// The load that a sketch shows, on `keys` keys.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "means of lengths and counts")]
    pub fn from_workload(load: &WorkloadStats, keys: u64) -> WorkloadMix {
        let sets = (load.inserts + load.batch_inserts + load.stream_writes) as f64;
        let batched = (load.batch_inserts + load.batch_removes) as f64;
        let is_batched = batched > (load.inserts + load.removes + load.updates) as f64;
        WorkloadMix {
            pairs: keys,
            key_bytes: load.key_bytes.mean.round().max(1.0) as usize,
            value_bytes: load.value_bytes,
            shares: OperationShares {
                get: (load.gets_found + load.stream_reads) as f64,
                miss: load.gets_missing as f64,
                contains: load.contains as f64,
                new: sets * load.new_share,
                overwrite: sets * (1.0 - load.new_share),
                remove: (load.removes + load.batch_removes) as f64,
                update: load.updates as f64,
                scan: load.scans as f64,
                scan_reverse: load.scans_reverse as f64,
            },
            zipf: load.skew.map_or(0.0, |skew| skew.zipf),
            scan_pairs: load.scan_pairs.mean.round().max(1.0) as u64,
            is_sequential: load.sequential_share > 0.5,
            durable_share: load.durable_share,
            batch_size: if is_batched {
                (batched / load.batches.max(1) as f64).round().max(1.0) as u64
            } else {
                1
            },
        }
    }

    /// Bytes of all pairs at the beginning.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
    pub fn bytes(&self) -> u64 {
        (self.pairs as f64 * (self.key_bytes as f64 + self.value_bytes.mean)) as u64
    }

    /// The same load on fewer pairs, so that they take at most so many bytes.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the pairs")]
    pub fn limited_to_bytes(mut self, bytes: u64) -> WorkloadMix {
        let all = self.bytes();
        if all > bytes {
            self.pairs = ((self.pairs as f64 * bytes as f64 / all as f64) as u64).max(1);
        }
        self
    }

    /// Whether it needs keys in order.
    #[must_use]
    pub fn has_scans(&self) -> bool {
        self.shares.scan + self.shares.scan_reverse > 0.0
    }
}
