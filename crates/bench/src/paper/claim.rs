//! # Claims: ratios of measured cells, and verdicts on them
//!
//! A cell is written `STORE:LOAD` or `STORE:LOAD/THREADS`. STORE is `ours`, a name of a store, or
//! `best` (the best peer). A number instead of a cell is a constant. A claim *holds* from its bound
//! on, holds *in part* from a lower bound on, and *does not hold* below that. On a machine with too
//! few cores a claim is not judged.

use serde::Deserialize;

use super::PaperSpec;
use crate::measure::median;
use crate::record::PhaseRecord;
use crate::report::{ReportMetric, RunSummary, SummaryRow};
use crate::subjects::BenchSubject;

/// A statement of a paper, with the cells that test it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperClaim {
    /// The statement.
    pub(crate) says: String,
    /// The paper's measurement of it.
    pub(crate) paper: String,
    /// The two compared cells; the claim is that the first one is larger. `None` if another command
    /// measures it, or none can.
    pub(super) ratio: Option<[String; 2]>,
    /// Two more cells: the ratio is divided by theirs.
    pub(super) over: Option<[String; 2]>,
    #[serde(default)]
    pub(super) metric: ClaimMetric,
    #[serde(default = "default_factor")]
    pub(crate) holds: f64,
    #[serde(default = "default_factor")]
    pub(super) part: f64,
    /// Smallest number of cores of a machine on which the claim can be judged.
    #[serde(default)]
    pub(super) cores: u64,
}

fn default_factor() -> f64 {
    1.0
}

/// Metric of the cells that a claim compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ClaimMetric {
    #[default]
    Speed,
    Write,
    Cpu,
    P99,
    Disk,
    Memory,
}

impl ClaimMetric {
    pub(super) const ALL: [ClaimMetric; 6] = [
        ClaimMetric::Speed,
        ClaimMetric::Write,
        ClaimMetric::Cpu,
        ClaimMetric::P99,
        ClaimMetric::Disk,
        ClaimMetric::Memory,
    ];

    /// Returns the name in the tables and in saved data.
    pub(super) fn name(self) -> &'static str {
        match self {
            ClaimMetric::Speed => "speed",
            ClaimMetric::Write => "write",
            ClaimMetric::Cpu => "cpu",
            ClaimMetric::P99 => "p99",
            ClaimMetric::Disk => "disk",
            ClaimMetric::Memory => "memory",
        }
    }

    pub(super) fn of(self, record: &PhaseRecord) -> Option<f64> {
        let metric = match self {
            // For openings, the number per second: more is better, as for all speeds.
            ClaimMetric::Speed if record.is_opening() => return Some(1.0 / record.outcome.seconds),
            ClaimMetric::Speed => ReportMetric::Speed,
            ClaimMetric::Write => ReportMetric::WriteAmplification,
            ClaimMetric::Cpu => ReportMetric::Cpu,
            ClaimMetric::P99 => ReportMetric::P99,
            ClaimMetric::Disk => ReportMetric::Disk,
            ClaimMetric::Memory => ReportMetric::Memory,
        };
        metric.of(record)
    }
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Holds,
    InPart,
    DoesNotHold,
    TooFewCores,
    NotMeasured,
    CannotRun,
}

impl Verdict {
    pub(super) const COUNT: usize = 6;
    pub(super) const ALL: [Verdict; Verdict::COUNT] = [
        Verdict::Holds,
        Verdict::InPart,
        Verdict::DoesNotHold,
        Verdict::TooFewCores,
        Verdict::NotMeasured,
        Verdict::CannotRun,
    ];

    /// Returns the words of reports, pages and saved data.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::InPart => "holds in part",
            Verdict::DoesNotHold => "does not hold",
            Verdict::TooFewCores => "too few cores",
            Verdict::NotMeasured => "not measured yet",
            Verdict::CannotRun => "cannot be run here",
        }
    }

    pub(super) fn parse(words: &str) -> Option<Verdict> {
        Verdict::ALL.into_iter().find(|verdict| verdict.words() == words)
    }
}

/// Measured sides of a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ClaimFigures {
    pub(crate) left: f64,
    pub(crate) right: f64,
    pub(crate) ratio: f64,
    /// The peer that was the best one, if the claim names the best.
    pub(crate) best: String,
}

impl PaperClaim {
    /// Returns all cells and constants.
    pub(super) fn cells(&self) -> impl Iterator<Item = &str> {
        self.ratio.iter().chain(&self.over).flatten().map(String::as_str)
    }

    /// Returns the two sides as they are saved.
    pub(super) fn sides(&self) -> Option<[String; 2]> {
        let [left, right] = self.ratio.clone()?;
        Some(match &self.over {
            Some([above, below]) => [format!("{left} ÷ {right}"), format!("{above} ÷ {below}")],
            None => [left, right],
        })
    }

    pub(super) fn classify(&self, ratio: f64) -> Verdict {
        if ratio >= self.holds {
            Verdict::Holds
        } else if ratio >= self.part.min(self.holds) {
            Verdict::InPart
        } else {
            Verdict::DoesNotHold
        }
    }

    /// Returns the verdict on figures from a machine with `cores` cores.
    pub(crate) fn verdict(&self, figures: Option<&ClaimFigures>, cores: u64) -> Verdict {
        match figures {
            None => Verdict::NotMeasured,
            Some(_) if cores < self.cores => Verdict::TooFewCores,
            Some(figures) => self.classify(figures.ratio),
        }
    }

    /// Computes both sides. Returns the missing cell if one was not measured.
    pub(super) fn measure(
        &self,
        paper: &PaperSpec,
        summary: &RunSummary,
        rows: &[&SummaryRow],
    ) -> std::result::Result<ClaimFigures, String> {
        let mut best = String::new();
        let mut value = |cell: &str| {
            let (value, store) =
                self.value(cell, paper, summary, rows).ok_or_else(|| format!("{cell} did not run"))?;
            if claim_best(cell) && best.is_empty() {
                best = store;
            }
            Ok::<f64, String>(value)
        };
        let [left, right] = self.ratio.as_ref().ok_or("another command measures it")?;
        let (mut left, mut right) = (value(left)?, value(right)?);
        if let Some([above, below]) = &self.over {
            (left, right) = (left / right, value(above)? / value(below)?);
        }
        Ok(ClaimFigures { left, right, ratio: left / right, best })
    }

    /// Returns the value of a cell and the store that it is of.
    fn value(
        &self,
        cell: &str,
        paper: &PaperSpec,
        summary: &RunSummary,
        rows: &[&SummaryRow],
    ) -> Option<(f64, String)> {
        if let Some(constant) = constant(cell) {
            return Some((constant, String::new()));
        }
        let (store, load, count) = split(cell)?;
        let row =
            rows.iter().find(|row| row.workload == load && count.is_none_or(|count| count == row.threads))?;
        let of = |name: &str| {
            let rounds = row.rounds(name, false).filter_map(|record| self.metric.of(record));
            Some((median(&rounds.collect::<Vec<_>>())?, name.to_owned()))
        };
        let part = |is_early| Some((part_of_time(row, &paper.engine, is_early)?, paper.engine.clone()));
        match store {
            "ours" => of(&paper.engine),
            "ours-early" => part(true),
            "ours-late" => part(false),
            "best" => {
                let peers = summary.stores.iter().filter(|store| {
                    BenchSubject::by_name(&store.name).is_some_and(BenchSubject::is_peer)
                        && !store.name.contains('-')
                });
                peers.filter_map(|store| of(&store.name)).max_by(|a, b| a.0.total_cmp(&b.0))
            }
            name => of(name),
        }
    }
}

fn claim_best(cell: &str) -> bool {
    cell.starts_with("best:")
}

/// Returns the cores of the machine of a run, 0 if they are unknown.
pub(crate) fn cores(summary: &RunSummary) -> u64 {
    summary.runs.first().and_then(|run| run.probes["cores"].as_u64()).unwrap_or(0)
}

/// Returns the number that replaces a cell.
pub(super) fn constant(cell: &str) -> Option<f64> {
    cell.parse().ok()
}

/// Returns the store of a cell.
pub(super) fn store_of(cell: &str) -> Option<&str> {
    split(cell).map(|(store, _, _)| store)
}

/// Splits a cell into store, load and threads. A store may have options, as in
/// `delsm:file-bytes=256:fill-random`.
pub(super) fn split(cell: &str) -> Option<(&str, &str, Option<u64>)> {
    let mut end = cell.find(':')?;
    while let Some(next) = cell[end + 1..].find(':').map(|at| end + 1 + at) {
        if !cell[end + 1..next].contains('=') {
            break;
        }
        end = next;
    }
    let (load, count) = parse_load(&cell[end + 1..]);
    Some((&cell[..end], load, count))
}

/// Splits a load and its threads, as in `durable/8`. A cap contains a slash too: `capped-get:1/2`.
fn parse_load(load: &str) -> (&str, Option<u64>) {
    match load.rsplit_once('/') {
        Some((name, count)) if !name.ends_with(":1") => (name, count.parse().ok()),
        _ => (load, None),
    }
}

/// Returns the operations per second in the first or the last tenth of a long run.
fn part_of_time(row: &SummaryRow, store: &str, is_early: bool) -> Option<f64> {
    let seconds =
        &row.rounds(store, false).find(|record| record.outcome.timeline.len() > 1)?.outcome.timeline;
    let tenth = seconds.len().div_ceil(10);
    let part = if is_early { &seconds[..tenth] } else { &seconds[seconds.len() - tenth..] };
    Some(part.iter().map(|second| second.operations as f64).sum::<f64>() / part.len() as f64)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::paper::select;
    use crate::report::tests::stored;

    pub(in super::super) fn claim(ratio: [&str; 2], holds: f64) -> PaperClaim {
        PaperClaim {
            says: "it is so".to_owned(),
            paper: "twice".to_owned(),
            ratio: Some(ratio.map(str::to_owned)),
            over: None,
            metric: ClaimMetric::Speed,
            holds,
            part: 1.0,
            cores: 0,
        }
    }

    #[test]
    fn claims_hold_hold_in_part_or_do_not() {
        let fate = |ratio| claim(["", ""], 2.0).classify(ratio);
        assert_eq!(
            [fate(2.0), fate(1.5), fate(0.9)],
            [Verdict::Holds, Verdict::InPart, Verdict::DoesNotHold]
        );
        assert!(Verdict::ALL.into_iter().all(|verdict| Verdict::parse(verdict.words()) == Some(verdict)));
    }

    #[test]
    fn a_claim_without_its_measurement_says_so() {
        let summary = RunSummary::new(&[stored()]);
        let rows: Vec<&SummaryRow> = summary.rows.iter().collect();
        let paper = select("flatstore").unwrap().remove(0);
        let measure = |ratio| claim(ratio, 0.01).measure(&paper, &summary, &rows);
        let figures = measure(["ours:get-uniform", "best:get-uniform"]).unwrap();
        assert_eq!(figures.best, "lmdb");
        assert!((figures.ratio - figures.left / figures.right).abs() < 1e-9);
        let missing = measure(["ours:get-uniform", "rocksdb:get-uniform"]).unwrap_err();
        assert_eq!(missing, "rocksdb:get-uniform did not run");
        assert_eq!(claim(["1", "1"], 0.01).verdict(None, 2), Verdict::NotMeasured);
    }

    #[test]
    fn a_claim_on_many_cores_is_not_judged_on_few() {
        let claim = PaperClaim { cores: 16, ..claim(["3", "2"], 1.0) };
        let summary = RunSummary::new(&[stored()]);
        let paper = select("flatstore").unwrap().remove(0);
        let figures = claim.measure(&paper, &summary, &[]).unwrap();
        assert_eq!(claim.verdict(Some(&figures), cores(&summary)), Verdict::TooFewCores);
        assert_eq!(claim.verdict(Some(&figures), 16), Verdict::Holds);
    }

    #[test]
    fn a_ratio_can_be_divided_by_another() {
        let claim = PaperClaim { over: Some(["3".to_owned(), "2".to_owned()]), ..claim(["12", "4"], 2.0) };
        let summary = RunSummary::new(&[stored()]);
        let paper = select("flatstore").unwrap().remove(0);
        let figures = claim.measure(&paper, &summary, &[]).unwrap();
        assert!((figures.ratio - 2.0).abs() < 1e-9);
        assert_eq!(claim.sides().unwrap(), ["12 ÷ 4", "3 ÷ 2"]);
    }

    #[test]
    fn stores_loads_caps_and_threads_are_told_apart() {
        assert_eq!(split("ours:durable/8"), Some(("ours", "durable", Some(8))));
        assert_eq!(split("ours:capped-get:1/2"), Some(("ours", "capped-get:1/2", None)));
        assert_eq!(split("lmdb:capped-get:1/2/4"), Some(("lmdb", "capped-get:1/2", Some(4))));
        assert_eq!(split("ours:budget-get:2/4"), Some(("ours", "budget-get:2", Some(4))));
        assert_eq!(
            split("delsm:file-bytes=256:fill-random@v4k"),
            Some(("delsm:file-bytes=256", "fill-random@v4k", None))
        );
        assert_eq!(split("ycsb-a"), None);
        assert_eq!(constant("0.139"), Some(0.139));
    }
}
