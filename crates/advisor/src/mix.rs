//! # Mix: the operations, keys and values of a load

use sheaf::{LengthStats, WorkloadStats};

/// Operation of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayOperation {
    /// Reads an existing key.
    Get,
    /// Reads a missing key.
    Miss,
    /// Checks whether an existing key exists.
    Contains,
    /// Inserts a new key.
    New,
    /// Overwrites an existing key.
    Overwrite,
    /// Removes a key. It exists again when a later write selects it.
    Remove,
    /// Reads a value and writes another one in a closure.
    Update,
    /// Reads some pairs in ascending order.
    Scan,
    /// Reads some pairs in descending order.
    ScanReverse,
}

/// Relative frequencies of the operations, in any unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OperationShares {
    /// Frequency of [`ReplayOperation::Get`].
    pub get: f64,
    /// Frequency of [`ReplayOperation::Miss`].
    pub miss: f64,
    /// Frequency of [`ReplayOperation::Contains`].
    pub contains: f64,
    /// Frequency of [`ReplayOperation::New`].
    pub new: f64,
    /// Frequency of [`ReplayOperation::Overwrite`].
    pub overwrite: f64,
    /// Frequency of [`ReplayOperation::Remove`].
    pub remove: f64,
    /// Frequency of [`ReplayOperation::Update`].
    pub update: f64,
    /// Frequency of [`ReplayOperation::Scan`].
    pub scan: f64,
    /// Frequency of [`ReplayOperation::ScanReverse`].
    pub scan_reverse: f64,
}

impl OperationShares {
    /// Returns whether the load writes.
    #[must_use]
    pub fn has_writes(&self) -> bool {
        self.new + self.overwrite + self.remove + self.update > 0.0
    }

    /// Returns the operations of the load, each with the cumulative share up to and including it.
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

/// Description of a load.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadMix {
    /// Number of pairs at the start.
    pub pairs: u64,
    /// Length of keys in bytes.
    pub key_bytes: usize,
    /// Lengths of values in bytes.
    pub value_bytes: LengthStats,
    /// Relative frequencies of the operations.
    pub shares: OperationShares,
    /// Exponent of the Zipf distribution of keys; 0 is uniform.
    pub zipf: f64,
    /// Number of pairs in a scan.
    pub scan_pairs: u64,
    /// True if new keys are above all others; false if they are at random places.
    pub is_sequential: bool,
    /// Share of commits that wait for the device.
    pub durable_share: f64,
    /// Number of writes in one commit.
    pub batch_size: u64,
}

impl WorkloadMix {
    /// Returns the load that the statistics describe, on `keys` keys.
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

    /// Returns the bytes of all pairs at the start.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes")]
    pub fn bytes(&self) -> u64 {
        (self.pairs as f64 * (self.key_bytes as f64 + self.value_bytes.mean)) as u64
    }

    /// Reduces the number of pairs so that they take at most `bytes` bytes.
    #[must_use]
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the pairs")]
    pub fn limited_to_bytes(mut self, bytes: u64) -> WorkloadMix {
        let all = self.bytes();
        if all > bytes {
            self.pairs = ((self.pairs as f64 * bytes as f64 / all as f64) as u64).max(1);
        }
        self
    }

    /// Returns whether the load needs an engine with ordered keys.
    #[must_use]
    pub fn has_scans(&self) -> bool {
        self.shares.scan + self.shares.scan_reverse > 0.0
    }
}
