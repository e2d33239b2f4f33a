//! # Workload statistics: the figures of a workload recorder

use std::time::Duration;

use super::WorkloadHistory;
use super::counters::{
    self, CLASSES, CallKind, LATENCIES, LATENCY_KINDS, LONGEST_LATENCIES, LatencyKind, POWERS,
    WorkloadCounters,
};
use super::skew::ZipfFit;

/// Distribution of a length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LengthStats {
    /// Mean.
    pub mean: f64,
    /// Median, within a factor of two.
    pub p50: u64,
    /// 99th percentile, within a factor of two.
    pub p99: u64,
}

/// Latency of the sampled calls of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Number of samples.
    pub samples: u64,
    /// Median, within a sixth.
    pub p50: Duration,
    /// 99th percentile, within a sixth.
    pub p99: Duration,
    /// Longest sample since the counts were last halved.
    pub longest: Duration,
}

/// Skew of the key distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Skewness {
    /// Exponent of the most similar Zipf distribution: 0 is uniform, 0.99 is the Zipfian
    /// distribution of YCSB.
    pub zipf: f64,
    /// Estimated number of keys in use.
    pub keys: f64,
    /// Shares of the operations on the hottest 0.1 %, 1 % and 10 % of these keys, from 0 to 1.
    pub hottest: [f64; 3],
}

/// Workload statistics of a keyspace: its recent use, estimated from one operation in 64. Counts
/// are scaled to operations. They persist over reopening, and are halved when they reach four
/// million calls.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct WorkloadStats {
    /// Number of sampled calls; more samples give better estimates.
    pub samples: u64,
    /// Time that the database was open, in seconds.
    pub seconds: f64,
    /// Reads that found a value.
    pub gets_found: u64,
    /// Reads that found no value.
    pub gets_missing: u64,
    /// Checks whether a key exists.
    pub contains: u64,
    /// Values set by commits of one operation.
    pub inserts: u64,
    /// Keys removed by commits of one operation.
    pub removes: u64,
    /// Calls of `update` and `compare_and_swap`.
    pub updates: u64,
    /// Batches with operations in this keyspace.
    pub batches: u64,
    /// Values set by batches.
    pub batch_inserts: u64,
    /// Keys removed by batches.
    pub batch_removes: u64,
    /// Forward iterations.
    pub scans: u64,
    /// Backward iterations.
    pub scans_reverse: u64,
    /// Pairs or keys returned by iterations.
    pub pairs_scanned: u64,
    /// Values read as streams or by range.
    pub stream_reads: u64,
    /// Values written as streams.
    pub stream_writes: u64,
    /// Share of inserts that set a new key, from 0 to 1, if the engine looks the key up.
    pub new_share: f64,
    /// Share of commits that waited for the device, from 0 to 1.
    pub durable_share: f64,
    /// Degree to which inserts are in key order: 0 is random, 1 is fully ascending or descending.
    pub sequential_share: f64,
    /// Bytes of keys and values written.
    pub bytes_written: u64,
    /// Lengths of keys in bytes.
    pub key_bytes: LengthStats,
    /// Lengths of values in bytes, read and written.
    pub value_bytes: LengthStats,
    /// Pairs per iteration.
    pub scan_pairs: LengthStats,
    /// Skew of the keys, after some hundred sampled operations.
    pub skew: Option<Skewness>,
    /// Latency of point reads.
    pub read_latency: Latency,
    /// Latency of inserts and removals that did not wait for the device.
    pub write_latency: Latency,
    /// Latency of inserts and removals that waited for the device.
    pub durable_write_latency: Latency,
    /// Latency of `update` and `compare_and_swap`.
    pub update_latency: Latency,
    /// Latency of batches.
    pub batch_latency: Latency,
    /// Latency of iterations up to the first pair.
    pub seek_latency: Latency,
    /// Number of waits of writers because background work was behind (all, not sampled).
    pub stalls: u64,
    /// Total duration of these waits.
    pub stall_time: Duration,
    /// Longest of these waits.
    pub longest_stall: Duration,
}

impl WorkloadStats {
    /// Returns the number of all operations; each operation of a batch counts.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.reads() + self.writes() + self.all_scans()
    }

    /// Returns the number of point reads of all kinds.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.gets_found + self.gets_missing + self.contains + self.stream_reads
    }

    /// Returns the number of writes of all kinds, including those in batches.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.inserts
            + self.removes
            + self.updates
            + self.batch_inserts
            + self.batch_removes
            + self.stream_writes
    }

    /// Returns the number of iterations in both directions.
    #[must_use]
    pub fn all_scans(&self) -> u64 {
        self.scans + self.scans_reverse
    }

    /// Returns the operations per second while the database was open; 0 if the time is unknown.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.operations() as f64 / self.seconds } else { 0.0 }
    }

    pub(super) fn from_history(past: &WorkloadHistory, keys: u64) -> WorkloadStats {
        let cells = &past.cells;
        let kind = |kind: CallKind| cells.get(kind as usize);
        let set = kind(CallKind::Insert) + kind(CallKind::BatchInsert) + kind(CallKind::StreamWrite);
        let commits = cells.get(counters::DURABLE) + cells.get(counters::BUFFERED);
        let ascending = ratio(cells.get(counters::STEPS_UP), cells.get(counters::STEPS));
        WorkloadStats {
            samples: cells.get(counters::SAMPLES),
            seconds: past.seconds,
            gets_found: kind(CallKind::GetFound),
            gets_missing: kind(CallKind::GetMissing),
            contains: kind(CallKind::Contains),
            inserts: kind(CallKind::Insert),
            removes: kind(CallKind::Remove),
            updates: kind(CallKind::Update),
            batches: kind(CallKind::Batch),
            batch_inserts: kind(CallKind::BatchInsert),
            batch_removes: kind(CallKind::BatchRemove),
            scans: kind(CallKind::Scan),
            scans_reverse: kind(CallKind::ScanReverse),
            pairs_scanned: cells.get(counters::SCANNED),
            stream_reads: kind(CallKind::StreamRead),
            stream_writes: kind(CallKind::StreamWrite),
            new_share: ratio(cells.get(counters::NEW_KEYS), set),
            durable_share: ratio(cells.get(counters::DURABLE), commits),
            sequential_share: if cells.get(counters::STEPS) < 8 {
                0.0
            } else {
                (2.0 * ascending - 1.0).abs()
            },
            bytes_written: cells.get(counters::WRITTEN),
            key_bytes: spread(cells, counters::KEY_BYTES, counters::KEYS, counters::KEY_LENGTHS),
            value_bytes: spread(cells, counters::VALUE_BYTES, counters::VALUES, counters::VALUE_LENGTHS),
            scan_pairs: spread(cells, counters::SCANNED, counters::SCANS_ENDED, counters::SCAN_LENGTHS),
            skew: past.skew.estimate().map(|seen| skewness(ZipfFit::fit(seen, keys))),
            read_latency: latency(cells, LatencyKind::Read),
            write_latency: latency(cells, LatencyKind::Write),
            durable_write_latency: latency(cells, LatencyKind::DurableWrite),
            update_latency: latency(cells, LatencyKind::Update),
            batch_latency: latency(cells, LatencyKind::Batch),
            seek_latency: latency(cells, LatencyKind::Scan),
            stalls: cells.get(counters::STALLS),
            stall_time: Duration::from_nanos(cells.get(counters::STALLED_NS)),
            longest_stall: Duration::from_nanos(cells.get(counters::LONGEST_STALL)),
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn skewness(zipf: ZipfFit) -> Skewness {
    let hottest = [0.001, 0.01, 0.1].map(|part| zipf.share(part));
    Skewness { zipf: zipf.exponent, keys: zipf.keys, hottest }
}

/// Returns the quantile `part` of a histogram: the index of its class, and the position in the
/// class from 0 to 1.
fn quantile(counts: &[u64], part: f64) -> Option<(usize, f64)> {
    let total: u64 = counts.iter().sum();
    let wanted = total as f64 * part;
    let mut below = 0.0;
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = *count as f64;
        if below + count >= wanted {
            return Some((index, (wanted - below) / count));
        }
        below += count;
    }
    None
}

fn spread(cells: &WorkloadCounters, sum: usize, count: usize, lengths: usize) -> LengthStats {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths are far below 2^53")]
    let at = |part: f64| {
        quantile(cells.slice(lengths, POWERS), part).map_or(0, |(class, into)| {
            let (from, to) = counters::class_lengths(class);
            from + (into * (to - from - 1) as f64) as u64
        })
    };
    LengthStats { mean: ratio(cells.get(sum), cells.get(count)), p50: at(0.5), p99: at(0.99) }
}

fn latency(cells: &WorkloadCounters, served: LatencyKind) -> Latency {
    let counts = cells.slice(LATENCIES + served as usize * CLASSES, CLASSES);
    let longest = Duration::from_nanos(cells.get(LONGEST_LATENCIES + served as usize));
    let at = |part: f64| {
        let ns = quantile(counts, part).map_or(0.0, |(class, _)| counters::latency_of(class));
        let found = Duration::from_secs_f64(ns / 1e9);
        if longest.is_zero() { found } else { found.min(longest) }
    };
    debug_assert!((served as usize) < LATENCY_KINDS, "each has its row");
    Latency { samples: counts.iter().sum(), p50: at(0.5), p99: at(0.99), longest }
}
