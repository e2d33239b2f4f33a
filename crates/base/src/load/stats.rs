//! # Load figures: what a sketch shows

use std::time::Duration;

use super::Past;
use super::cells::{self, CLASSES, Cells, Kind, LATENCIES, LONGEST, POWERS, SERVED, Served};
use super::skew::Zipf;

/// How a length is spread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// Half are at most about this (within a factor of two, as the next).
    pub p50: u64,
    /// All but one in a hundred are at most about this.
    pub p99: u64,
}

/// How long calls of one kind took, those that were sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Samples.
    pub samples: u64,
    /// The median, within a sixth, as the next.
    pub p50: Duration,
    /// All but one in a hundred took at most this.
    pub p99: Duration,
    /// The longest of them since they were last halved.
    pub longest: Duration,
}

/// How unevenly keys are used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Skewness {
    /// The exponent of the Zipf distribution that looks like it: 0 is even, 0.99 what YCSB calls Zipfian.
    pub zipf: f64,
    /// About how many keys are in use.
    pub keys: f64,
    /// The share of the operations that go to the hottest thousandth, hundredth and tenth of them.
    pub hottest: [f64; 3],
}

/// What a keyspace is used for: its recent past, estimated from a sample of one operation in 64. Counts are of operations, not of
/// samples. They go on over closings; when they speak of four million calls they are halved.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct LoadStats {
    /// Calls that were sampled: the fewer, the less this says.
    pub samples: u64,
    /// Time that the database was open meanwhile, in seconds.
    pub seconds: f64,
    /// Reads that found a value.
    pub gets_found: u64,
    /// Reads that found none.
    pub gets_missing: u64,
    /// Looks whether a key is there.
    pub contains: u64,
    /// Values set by commits of their own.
    pub inserts: u64,
    /// Keys removed by commits of their own.
    pub removes: u64,
    /// `update` and `compare_and_swap`.
    pub updates: u64,
    /// Commits of many operations that had some for this keyspace.
    pub batches: u64,
    /// Values set in those.
    pub batch_inserts: u64,
    /// Keys removed in those.
    pub batch_removes: u64,
    /// Iterations from low keys to high ones.
    pub scans: u64,
    /// Iterations that went the other way.
    pub scans_reverse: u64,
    /// Pairs (or keys) that iterations went over.
    pub pairs_scanned: u64,
    /// Values read as streams, or in part.
    pub stream_reads: u64,
    /// Values written as streams.
    pub stream_writes: u64,
    /// The share of inserts that set a key that was not there, where the engine looks.
    pub new_share: f64,
    /// The share of commits that waited for the device.
    pub durable_share: f64,
    /// How far inserts go through the keys in order: 0 is no order, 1 is each beyond the one before (or each before it).
    pub sequential_share: f64,
    /// Bytes of keys and values that were written.
    pub bytes_written: u64,
    /// Lengths of keys.
    pub key_bytes: Spread,
    /// Lengths of values, read and written.
    pub value_bytes: Spread,
    /// Pairs of a scan.
    pub scan_pairs: Spread,
    /// Skew, once some hundred operations were sampled.
    pub skew: Option<Skewness>,
    /// Latencies of point reads.
    pub reading: Latency,
    /// Latencies of inserts and removals that did not wait for the device.
    pub writing: Latency,
    /// Latencies of those that did.
    pub durable_writing: Latency,
    /// Latencies of `update` and `compare_and_swap`.
    pub updating: Latency,
    /// Latencies of commits of many operations.
    pub batching: Latency,
    /// Latencies of scans up to the first pair.
    pub seeking: Latency,
    /// Times a writer was held up because background work was behind: all of them.
    pub stalls: u64,
    /// The time that took in all.
    pub stalled: Duration,
    /// The longest of them.
    pub longest_stall: Duration,
}

impl LoadStats {
    /// Operations of all kinds; of a batch each one.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.reads() + self.writes() + self.all_scans()
    }

    /// Point reads of all kinds.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.gets_found + self.gets_missing + self.contains + self.stream_reads
    }

    /// Writes of all kinds, those in batches too.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.inserts
            + self.removes
            + self.updates
            + self.batch_inserts
            + self.batch_removes
            + self.stream_writes
    }

    /// Iterations either way.
    #[must_use]
    pub fn all_scans(&self) -> u64 {
        self.scans + self.scans_reverse
    }

    /// Operations a second while the database was open; 0 where that is not known.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.operations() as f64 / self.seconds } else { 0.0 }
    }

    pub(super) fn of(past: &Past, keys: u64) -> LoadStats {
        let cells = &past.cells;
        let kind = |kind: Kind| cells.get(kind as usize);
        let set = kind(Kind::Insert) + kind(Kind::BatchInsert) + kind(Kind::StreamWrite);
        let commits = cells.get(cells::DURABLE) + cells.get(cells::BUFFERED);
        let ascending = ratio(cells.get(cells::STEPS_UP), cells.get(cells::STEPS));
        LoadStats {
            samples: cells.get(cells::SAMPLES),
            seconds: past.seconds,
            gets_found: kind(Kind::GetFound),
            gets_missing: kind(Kind::GetMissing),
            contains: kind(Kind::Contains),
            inserts: kind(Kind::Insert),
            removes: kind(Kind::Remove),
            updates: kind(Kind::Update),
            batches: kind(Kind::Batch),
            batch_inserts: kind(Kind::BatchInsert),
            batch_removes: kind(Kind::BatchRemove),
            scans: kind(Kind::Scan),
            scans_reverse: kind(Kind::ScanReverse),
            pairs_scanned: cells.get(cells::SCANNED),
            stream_reads: kind(Kind::StreamRead),
            stream_writes: kind(Kind::StreamWrite),
            new_share: ratio(cells.get(cells::NEW), set),
            durable_share: ratio(cells.get(cells::DURABLE), commits),
            sequential_share: if cells.get(cells::STEPS) < 8 { 0.0 } else { (2.0 * ascending - 1.0).abs() },
            bytes_written: cells.get(cells::WRITTEN),
            key_bytes: spread(cells, cells::KEY_BYTES, cells::KEYS, cells::KEY_LENGTHS),
            value_bytes: spread(cells, cells::VALUE_BYTES, cells::VALUES, cells::VALUE_LENGTHS),
            scan_pairs: spread(cells, cells::SCANNED, cells::SCANS_ENDED, cells::SCAN_LENGTHS),
            skew: past.skew.seen().map(|seen| skewness(Zipf::like(seen, keys))),
            reading: latency(cells, Served::Read),
            writing: latency(cells, Served::Write),
            durable_writing: latency(cells, Served::DurableWrite),
            updating: latency(cells, Served::Update),
            batching: latency(cells, Served::Batch),
            seeking: latency(cells, Served::Scan),
            stalls: cells.get(cells::STALLS),
            stalled: Duration::from_nanos(cells.get(cells::STALLED_NS)),
            longest_stall: Duration::from_nanos(cells.get(cells::LONGEST_STALL)),
        }
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn skewness(zipf: Zipf) -> Skewness {
    let hottest = [0.001, 0.01, 0.1].map(|part| zipf.share(part));
    Skewness { zipf: zipf.exponent, keys: zipf.keys, hottest }
}

/// The number, of those in `counts`, below which there are `part` of them: its index, and how far into it.
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

fn spread(cells: &Cells, sum: usize, count: usize, lengths: usize) -> Spread {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lengths are far below 2^53")]
    let at = |part: f64| {
        quantile(cells.slice(lengths, POWERS), part).map_or(0, |(class, into)| {
            let (from, to) = cells::powers(class);
            from + (into * (to - from - 1) as f64) as u64
        })
    };
    Spread { mean: ratio(cells.get(sum), cells.get(count)), p50: at(0.5), p99: at(0.99) }
}

fn latency(cells: &Cells, served: Served) -> Latency {
    let counts = cells.slice(LATENCIES + served as usize * CLASSES, CLASSES);
    let longest = Duration::from_nanos(cells.get(LONGEST + served as usize));
    let at = |part: f64| {
        let ns = quantile(counts, part).map_or(0.0, |(class, _)| cells::latency_of(class));
        let found = Duration::from_secs_f64(ns / 1e9);
        if longest.is_zero() { found } else { found.min(longest) }
    };
    debug_assert!((served as usize) < SERVED, "each has its row");
    Latency { samples: counts.iter().sum(), p50: at(0.5), p99: at(0.99), longest }
}
