//! # Papers: the experiments of five papers, rerun, with a verdict on each claim
//!
//! For each experiment, `tables/papers.toml` names the workloads that reproduce it, the printed
//! figures, and the claims as ratios of two measured cells. A claim *holds* from its bound on,
//! holds *in part* from a lower bound on, and *does not hold* below that. Engines are found by
//! name.

use serde::Deserialize;

use crate::measure::median;
use crate::plan::{self, RunOptions, WorkloadJob};
use crate::promise_table::{markdown, number};
use crate::record::{PhaseRecord, RecordLine};
use crate::report::{self, ReportMetric, RunSummary, SummaryRow, pairs};
use crate::subjects::BenchSubject;
use crate::workload;
use crate::{Result, args, runner};

const TABLE: &str = include_str!("../tables/papers.toml");

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperTable {
    paper: Vec<PaperSpec>,
}

/// A paper with its experiments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PaperSpec {
    pub(crate) name: String,
    pub(crate) title: String,
    /// Engine of Sheaf that implements the paper.
    engine: String,
    /// Machine of the paper's measurements.
    machine: String,
    /// Variants of peers that replace stores of the paper.
    extra: Vec<String>,
    #[serde(default)]
    absent: Vec<AbsentStore>,
    experiment: Vec<PaperExperiment>,
}

/// A store of a paper that cannot run here.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AbsentStore {
    name: String,
    why: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperExperiment {
    figure: String,
    what: String,
    #[serde(default)]
    loads: Vec<String>,
    #[serde(default)]
    pairs: u64,
    #[serde(default)]
    threads: Vec<u64>,
    published: Vec<PublishedFigure>,
    not_here: Option<String>,
    #[serde(default)]
    claim: Vec<PaperClaim>,
}

/// A figure as the paper prints it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedFigure {
    #[serde(default)]
    load: String,
    store: String,
    value: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperClaim {
    says: String,
    ratio: [String; 2],
    #[serde(default)]
    metric: ClaimMetric,
    holds: f64,
    #[serde(default = "default_factor")]
    part: f64,
}

fn default_factor() -> f64 {
    1.0
}

/// Metric of the two cells that a claim compares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ClaimMetric {
    #[default]
    Speed,
    Write,
    Cpu,
    P99,
    Disk,
    Memory,
}

impl ClaimMetric {
    fn of(self, record: &PhaseRecord) -> Option<f64> {
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

/// Returns all papers.
pub(crate) fn all() -> Result<Vec<PaperSpec>> {
    Ok(toml::from_str::<PaperTable>(TABLE)?.paper)
}

/// Returns the paper of that name, or all papers for `all`.
pub(crate) fn select(name: &str) -> Result<Vec<PaperSpec>> {
    let all = all()?;
    let known: Vec<String> = all.iter().map(|paper| paper.name.clone()).collect();
    let chosen: Vec<PaperSpec> =
        all.into_iter().filter(|paper| name == "all" || paper.name == name).collect();
    if chosen.is_empty() {
        return Err(format!("unknown paper {name:?}; there are: {}, all", known.join(", ")).into());
    }
    Ok(chosen)
}

/// Reruns the experiments and writes the report.
pub(crate) fn run(asked: &args::PaperRun) -> Result<()> {
    let mut options = asked.options.clone();
    let mut jobs: Vec<WorkloadJob> = Vec::new();
    for paper in &asked.papers {
        for extra in paper.extra.iter().filter_map(|name| BenchSubject::parse(name).ok()) {
            if !asked.only_stores && !options.subjects.contains(&extra) {
                options.subjects.push(extra);
            }
        }
        for experiment in &paper.experiment {
            for job in experiment.jobs(&options, asked.scale)? {
                let is_it = |other: &WorkloadJob| {
                    (&other.workload.name, other.data.pairs, other.threads, other.unsynced)
                        == (&job.workload.name, job.data.pairs, job.threads, job.unsynced)
                };
                if !jobs.iter().any(is_it) {
                    jobs.push(job);
                }
            }
        }
    }
    let lines = runner::run(&options, jobs)?;
    let mut text = String::new();
    for paper in &asked.papers {
        text += &paper.report(&lines, asked.scale)?;
    }
    report::write_with_intro(&options.out, &[lines], Some(&text))
}

impl PaperExperiment {
    fn jobs(&self, options: &RunOptions, scale: f64) -> Result<Vec<WorkloadJob>> {
        if self.loads.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = self.loads.iter().map(String::as_str).collect();
        let mut jobs =
            plan::jobs(&workload::select(&names)?, &[self.pairs.max(1)], &self.threads, options.seconds);
        for job in &mut jobs {
            job.data = job.workload.data.exactly(self.pairs as f64 * scale);
            // The scale also shortens phases with a length of their own.
            job.seconds = job.workload.seconds.map_or(options.seconds, |seconds| (seconds * scale).max(2.0));
        }
        Ok(jobs)
    }

    /// Returns the rows of `summary` that belong to the experiment.
    fn rows<'a>(&self, summary: &'a RunSummary, scale: f64) -> Result<Vec<&'a SummaryRow>> {
        if self.loads.is_empty() {
            return Ok(Vec::new());
        }
        let names: Vec<&str> = self.loads.iter().map(String::as_str).collect();
        let loads = workload::select(&names)?;
        let is_its = |row: &&SummaryRow| {
            loads.iter().any(|load| {
                let counts = if self.threads.is_empty() || load.threads == [1] || load.open.is_some() {
                    &load.threads
                } else {
                    &self.threads
                };
                let pairs = load.data.exactly(self.pairs as f64 * scale).pairs;
                load.name == row.workload && pairs == row.pairs && counts.contains(&row.threads)
            })
        };
        Ok(summary.rows.iter().filter(is_its).collect())
    }

    fn report(&self, paper: &PaperSpec, summary: &RunSummary, scale: f64) -> Result<String> {
        let mut text = format!("\n### {}: {}\n", self.figure, self.what);
        for published in self.published.iter().filter(|published| published.load.is_empty()) {
            text += &format!("\nPublished figure of {}: {}.\n", published.store, published.value);
        }
        if let Some(why) = &self.not_here {
            return Ok(text + &format!("\nNot rerun: {why}.\n"));
        }
        let rows = self.rows(summary, scale)?;
        text += &format!("\n{}\n", self.table(paper, summary, &rows));
        for claim in &self.claim {
            text += &format!("- {}\n", claim.verdict(paper, summary, &rows));
        }
        Ok(text)
    }

    /// Returns the table of the paper's figures (marked as published), ours, and those of the
    /// peers.
    fn table(&self, paper: &PaperSpec, summary: &RunSummary, rows: &[&SummaryRow]) -> String {
        let has_run = |name: &str| rows.iter().any(|row| row.rounds(name, false).next().is_some());
        let mut stores: Vec<(String, String)> = summary
            .stores
            .iter()
            .filter(|store| has_run(&store.name) || store.name == paper.engine)
            .map(|store| (store.name.clone(), store.title.clone()))
            .collect();
        if !stores.iter().any(|(name, _)| *name == paper.engine) {
            stores.insert(0, (paper.engine.clone(), format!("Sheaf {}", paper.engine)));
        }
        let head: Vec<String> = ["workload", "pairs", "threads", "published"]
            .map(str::to_owned)
            .into_iter()
            .chain(stores.iter().map(|(_, title)| title.clone()))
            .collect();
        let body: Vec<Vec<String>> = rows
            .iter()
            .map(|row| {
                let printed: Vec<String> = self
                    .published
                    .iter()
                    .filter(|published| published.load == row.workload)
                    .map(|published| format!("{}: {}", published.store, published.value))
                    .collect();
                let lead =
                    [row.workload.clone(), pairs(row.pairs), row.threads.to_string(), printed.join("; ")];
                let cells = stores.iter().map(|(name, _)| self.cell(row, name));
                lead.into_iter().chain(cells).collect()
            })
            .collect();
        markdown(&head, &body)
    }

    /// Returns the speed, and the other metrics that claims compare.
    fn cell(&self, row: &SummaryRow, store: &str) -> String {
        let Some(speed) = row.figure(store, ReportMetric::Speed) else { return "–".to_owned() };
        let unit = if row.is_opening() { "ms" } else { "k/s" };
        let mut text = format!("{} {unit}", number(speed.median));
        for (measure, metric, unit) in [
            (ClaimMetric::Write, ReportMetric::WriteAmplification, "× written"),
            (ClaimMetric::Cpu, ReportMetric::Cpu, "µs CPU"),
            (ClaimMetric::P99, ReportMetric::P99, "µs p99"),
            (ClaimMetric::Disk, ReportMetric::Disk, "× disk"),
            (ClaimMetric::Memory, ReportMetric::Memory, "MiB"),
        ] {
            let is_claimed = self.claim.iter().any(|claim| claim.metric == measure);
            if let Some(figure) = row.figure(store, metric).filter(|_| is_claimed) {
                text += &format!(", {} {unit}", number(figure.median));
            }
        }
        text
    }
}

impl PaperClaim {
    /// Returns the verdict in words, with the measured ratio.
    fn verdict(&self, paper: &PaperSpec, summary: &RunSummary, rows: &[&SummaryRow]) -> String {
        let says = &self.says;
        let [left, right] = &self.ratio;
        let values = (self.value(left, paper, summary, rows), self.value(right, paper, summary, rows));
        let (Some(left_value), Some(right_value)) = values else {
            let missing = if values.0.is_none() { left } else { right };
            return format!("**not measured**: {says} ({missing} did not run)");
        };
        let ratio = left_value / right_value;
        let verdict = self.classify(ratio);
        format!("**{verdict}**: {says}; measured {} (holds from {} on)", number(ratio), number(self.holds))
    }

    fn classify(&self, ratio: f64) -> &'static str {
        if ratio >= self.holds {
            "holds"
        } else if ratio >= self.part.min(self.holds) {
            "in part"
        } else {
            "does not hold"
        }
    }

    /// Returns the value of a cell `STORE:LOAD/THREADS`.
    fn value(
        &self,
        cell: &str,
        paper: &PaperSpec,
        summary: &RunSummary,
        rows: &[&SummaryRow],
    ) -> Option<f64> {
        if cell == "one-second" {
            return Some(1.0);
        }
        let (store, load) = cell.split_once(':')?;
        let (load, count) = parse_load(load);
        let row =
            rows.iter().find(|row| row.workload == load && count.is_none_or(|count| count == row.threads))?;
        let of = |name: &str| {
            median(&row.rounds(name, false).filter_map(|record| self.metric.of(record)).collect::<Vec<_>>())
        };
        match store {
            "ours" => of(&paper.engine),
            "ours-early" => part_of_time(row, &paper.engine, true),
            "ours-late" => part_of_time(row, &paper.engine, false),
            "best" => {
                let peers = summary
                    .stores
                    .iter()
                    .filter(|store| BenchSubject::by_name(&store.name).is_some_and(BenchSubject::is_peer));
                peers.filter_map(|store| of(&store.name)).max_by(f64::total_cmp)
            }
            name => of(name),
        }
    }
}

/// Splits a load and its threads, as in `durable/8`. A cap contains a slash too: `capped-get:1/2`.
fn parse_load(load: &str) -> (&str, Option<u64>) {
    match load.rsplit_once('/') {
        Some((name, count)) if !name.ends_with(":1") => (name, count.parse().ok()),
        _ => (load, None),
    }
}

/// Returns the operations per second in the first or the last tenth of a long run.
fn part_of_time(row: &SummaryRow, store: &str, early: bool) -> Option<f64> {
    let seconds =
        &row.rounds(store, false).find(|record| record.outcome.timeline.len() > 1)?.outcome.timeline;
    let tenth = seconds.len().div_ceil(10);
    let part = if early { &seconds[..tenth] } else { &seconds[seconds.len() - tenth..] };
    Some(part.iter().map(|second| second.operations as f64).sum::<f64>() / part.len() as f64)
}

impl PaperSpec {
    fn report(&self, lines: &[RecordLine], scale: f64) -> Result<String> {
        let summary = RunSummary::new(&[lines.to_vec()]);
        let engine = BenchSubject::parse(&self.engine)?.title();
        let mut text = format!(
            "\n## {}\n\nEngine: {engine}. Machine of the paper: {}. Pairs: {} in tables/papers.toml.\n",
            self.title,
            self.machine,
            if (scale - 1.0).abs() < 1e-9 { "as".to_owned() } else { format!("{} × those", number(scale)) }
        );
        for experiment in &self.experiment {
            text += &experiment.report(self, &summary, scale)?;
        }
        if !self.absent.is_empty() {
            text += "\n### Stores of the paper that cannot run here\n\nTheir figures above are the published ones.\n\n";
            for store in &self.absent {
                text += &format!("- {}: {}\n", store.name, store.why);
            }
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::stored;

    #[test]
    fn every_workload_and_every_cell_of_the_table_is_there() {
        for paper in all().unwrap() {
            for experiment in &paper.experiment {
                let names: Vec<&str> = experiment.loads.iter().map(String::as_str).collect();
                let loads = if names.is_empty() { Vec::new() } else { workload::select(&names).unwrap() };
                assert_eq!(loads.is_empty(), experiment.not_here.is_some(), "{}", experiment.figure);
                let is_known = |name: &str| loads.iter().any(|load| load.name == name);
                for published in experiment.published.iter().filter(|published| !published.load.is_empty()) {
                    assert!(is_known(&published.load), "{}: {}", experiment.figure, published.load);
                }
                for claim in &experiment.claim {
                    assert!(claim.holds > 0.0);
                    for cell in claim.ratio.iter().filter(|cell| *cell != "one-second") {
                        let (store, load) = cell.split_once(':').unwrap();
                        let (load, count) = parse_load(load);
                        assert!(is_known(load), "{}: {cell}", experiment.figure);
                        let is_store = ["ours", "ours-early", "ours-late", "best"].contains(&store)
                            || BenchSubject::by_name(store).is_some();
                        assert!(is_store, "{}: {cell}", experiment.figure);
                        let counts = loads.iter().find(|l| l.name == load).map(|l| l.threads.clone());
                        let counts = if experiment.threads.is_empty() {
                            counts.unwrap()
                        } else {
                            experiment.threads.clone()
                        };
                        assert!(
                            count.is_none_or(|count| counts.contains(&count)),
                            "{}: {cell}",
                            experiment.figure
                        );
                    }
                }
            }
        }
    }

    fn claim(ratio: [&str; 2], holds: f64) -> PaperClaim {
        let ratio = ratio.map(str::to_owned);
        PaperClaim { says: "it is so".to_owned(), ratio, metric: ClaimMetric::Speed, holds, part: 1.0 }
    }

    #[test]
    fn claims_hold_hold_in_part_or_do_not() {
        let fate = |ratio| claim(["", ""], 2.0).classify(ratio);
        assert_eq!([fate(2.0), fate(1.5), fate(0.9)], ["holds", "in part", "does not hold"]);
    }

    #[test]
    fn a_claim_without_its_measurement_says_so() {
        let summary = RunSummary::new(&[stored()]);
        let rows: Vec<&SummaryRow> = summary.rows.iter().collect();
        let paper = select("flatstore").unwrap().remove(0);
        let claim = claim(["ours:get-uniform", "best:get-uniform"], 0.01);
        assert!(claim.verdict(&paper, &summary, &rows).starts_with("**holds**"));
        let other = super::tests::claim(["ours:get-uniform", "rocksdb:get-uniform"], 0.01);
        assert!(other.verdict(&paper, &summary, &rows).starts_with("**not measured**"));
    }

    #[test]
    fn loads_with_caps_and_threads_are_told_apart() {
        assert_eq!(parse_load("durable/8"), ("durable", Some(8)));
        assert_eq!(parse_load("capped-get:1/2"), ("capped-get:1/2", None));
        assert_eq!(parse_load("capped-get:1/2/4"), ("capped-get:1/2", Some(4)));
        assert_eq!(parse_load("ycsb-a"), ("ycsb-a", None));
    }

    #[test]
    fn unknown_papers_are_refused_with_the_list() {
        let refusal = select("bigtable").unwrap_err().to_string();
        assert!(refusal.contains("flatstore") && refusal.contains("kreon"), "{refusal}");
        assert_eq!(select("all").unwrap().len(), 5);
    }
}
