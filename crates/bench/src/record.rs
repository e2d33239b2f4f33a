//! # Record: the lines that a run writes
//!
//! A run writes JSON lines: one [`RunHeader`] that describes the command and the machine, then a
//! [`PhaseRecord`] for each measured phase, and an [`AbsentResult`] for each phase that was not
//! possible. Reports are made from such files, at once or later, of one run or of several.

use std::path::Path;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::drive::TimelineSecond;

/// A line of a run's file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum RecordLine {
    Run(RunHeader),
    Sample(PhaseRecord),
    Absent(AbsentResult),
}

/// Command, machine and settings of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct RunHeader {
    /// The arguments after the program's name.
    pub(crate) command: String,
    pub(crate) version: String,
    /// Seconds since 1970.
    pub(crate) began: u64,
    /// Description of the machine and its probes, in prose.
    pub(crate) machine: String,
    /// The machine and its probes as JSON.
    pub(crate) probes: serde_json::Value,
    /// Rounds, seconds and syncs, in words.
    pub(crate) setting: String,
    pub(crate) stores: Vec<StoreNote>,
}

/// A store of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct StoreNote {
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) setting: String,
}

/// Identity of a measurement. Records with equal keys are rounds of the same measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct CellKey {
    pub(crate) workload: String,
    pub(crate) subject: String,
    pub(crate) pairs: u64,
    pub(crate) threads: u64,
    /// Whether the store was not synced every 100 ms. All other measurements are.
    pub(crate) unsynced: bool,
}

/// One measured phase.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhaseRecord {
    #[serde(flatten)]
    pub(crate) cell: CellKey,
    pub(crate) group: String,
    pub(crate) about: String,
    pub(crate) round: u64,
    /// Bytes of all keys and values of the data.
    pub(crate) data_bytes: u64,
    pub(crate) cap_bytes: Option<u64>,
    #[serde(flatten)]
    pub(crate) outcome: PhaseOutcome,
}

/// Costs and results of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct PhaseOutcome {
    pub(crate) operations: u64,
    pub(crate) seconds: f64,
    /// Total CPU seconds of the whole process, and of the callers' threads alone.
    pub(crate) cpu_seconds: f64,
    pub(crate) caller_seconds: f64,
    pub(crate) latency: Option<LatencyPoints>,
    /// Bytes of keys and values written or removed.
    pub(crate) user_bytes: u64,
    /// Bytes that the device wrote and read until the store was idle.
    pub(crate) device_written: Option<u64>,
    pub(crate) device_read: Option<u64>,
    /// Allocated bytes of the directory of the database after the phase.
    pub(crate) disk_bytes: u64,
    /// Memory of the process that is not backed by a file.
    pub(crate) memory_bytes: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) timeline: Vec<TimelineSecond>,
}

/// Latencies in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LatencyPoints {
    pub(crate) mean: f64,
    pub(crate) p50: f64,
    pub(crate) p95: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) p9999: f64,
    pub(crate) longest: f64,
}

/// A measurement that was not possible, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AbsentResult {
    pub(crate) workload: String,
    pub(crate) subject: String,
    pub(crate) why: String,
}

impl LatencyPoints {
    /// Converts a histogram of nanoseconds.
    pub(crate) fn of(histogram: &Histogram<u64>) -> LatencyPoints {
        let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1e3;
        LatencyPoints {
            mean: histogram.mean() / 1e3,
            p50: at(0.5),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            longest: histogram.max() as f64 / 1e3,
        }
    }

    /// Returns the points of the latency curve: quantile and microseconds.
    pub(crate) fn points(&self) -> [(f64, f64); 5] {
        [(0.5, self.p50), (0.95, self.p95), (0.99, self.p99), (0.999, self.p999), (0.9999, self.p9999)]
    }
}

impl PhaseRecord {
    /// Returns the operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.outcome.operations as f64 / self.outcome.seconds
    }

    /// Returns the CPU microseconds of the whole process per operation.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.outcome.cpu_seconds * 1e6 / self.outcome.operations as f64
    }

    /// Returns the bytes that the device wrote for each byte of the user.
    pub(crate) fn write_amplification(&self) -> Option<f64> {
        let written = self.outcome.device_written? as f64;
        (self.outcome.user_bytes > 0).then(|| written / self.outcome.user_bytes as f64)
    }

    /// Returns whether this is an opening: its figure is the seconds.
    pub(crate) fn is_opening(&self) -> bool {
        self.group == OPENINGS
    }
}

/// Group of the workloads that measure openings.
pub(crate) const OPENINGS: &str = "open";

/// Reads the lines of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<RecordLine>> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse(&text).map_err(|error| format!("{}: {error}", path.display()).into())
}

fn parse(text: &str) -> Result<Vec<RecordLine>> {
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = serde_json::from_str(line)
            .map_err(|error| format!("line {}: not a line of a run: {error}", number + 1))?;
        lines.push(line);
    }
    if !matches!(lines.first(), Some(RecordLine::Run(_))) {
        return Err("does not begin with a run".into());
    }
    Ok(lines)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A stored run with two stores, two workloads, two sizes and two rounds.
    pub(crate) const STORED: &str = include_str!("../testdata/run.jsonl");

    #[test]
    fn a_stored_run_reads_and_writes_the_same() {
        let lines = parse(STORED).unwrap();
        assert!(lines.len() > 10);
        let again: Vec<String> = lines.iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        assert_eq!(parse(&again.join("\n")).unwrap(), lines);
    }

    #[test]
    fn damaged_files_are_refused_with_the_line() {
        let error = parse("{\"kind\":\"sample\"}").unwrap_err().to_string();
        assert!(error.starts_with("line 1:"), "{error}");
        assert!(parse("").unwrap_err().to_string().contains("does not begin with a run"));
    }
}
