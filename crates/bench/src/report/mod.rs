//! # Report: a Markdown file and a self-contained HTML page, made from the lines of runs
//!
//! ## Picture
//!
//! ```text
//!   lines -> RunSummary (a row for each workload, a column for each store, rounds of each cell)
//!              |-> markdown    tables of medians
//!              |-> html        the same with plots (plot: bars and curves as SVG)
//!              |-> guide       the fastest engine for each workload, for docs/engine-guide.md
//! ```
//!
//! A figure is the median of its rounds. If rounds differ by more than [`TOLERANCE`], the cell also
//! contains their spread.

mod guide;
mod html;
mod markdown;
mod plot;

pub(crate) use guide::replace_generated;

use std::fs;
use std::path::Path;

use crate::Result;
use crate::args;
use crate::measure::median;
use crate::record::{self, AbsentResult, CellKey, PhaseRecord, RecordLine, RunHeader, StoreNote};
use crate::runner::{REPORT_FILES, RESULTS_FILE};
use crate::subjects::BenchSubject;
use crate::workload;

/// Relative difference of medians from which on the report mentions it.
pub(crate) const TOLERANCE: f64 = 0.1;

/// Content of a report.
pub(crate) struct RunSummary {
    pub(crate) runs: Vec<RunHeader>,
    pub(crate) stores: Vec<StoreNote>,
    pub(crate) rows: Vec<SummaryRow>,
    pub(crate) absent: Vec<AbsentResult>,
    pub(crate) agreement: RunAgreement,
}

/// Results of one workload with one number of pairs and threads.
pub(crate) struct SummaryRow {
    pub(crate) workload: String,
    pub(crate) group: String,
    pub(crate) about: String,
    pub(crate) pairs: u64,
    pub(crate) threads: u64,
    records: Vec<PhaseRecord>,
}

/// Metric of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportMetric {
    /// Thousand operations per second, or milliseconds of an opening.
    Speed,
    /// CPU microseconds of the whole process per operation.
    Cpu,
    /// Bytes written to the device for each byte of the user.
    WriteAmplification,
    /// Bytes read from the device per operation.
    DeviceRead,
    /// Disk space divided by the bytes of keys and values.
    Disk,
    /// MiB of memory.
    Memory,
    /// p99 in microseconds.
    P99,
}

impl ReportMetric {
    pub(crate) fn of(self, record: &PhaseRecord) -> Option<f64> {
        match self {
            ReportMetric::Speed if record.is_opening() => Some(record.outcome.seconds * 1e3),
            _ if record.is_opening() => None,
            ReportMetric::Speed => Some(record.rate() / 1e3),
            ReportMetric::Cpu => Some(record.cpu_micros()),
            ReportMetric::WriteAmplification => record.write_amplification(),
            ReportMetric::DeviceRead => {
                Some(record.outcome.device_read? as f64 / record.outcome.operations.max(1) as f64)
            }
            ReportMetric::Disk => Some(record.outcome.disk_bytes as f64 / record.data_bytes as f64),
            ReportMetric::Memory => Some(record.outcome.memory_bytes as f64 / f64::from(1 << 20)),
            ReportMetric::P99 => Some(record.outcome.latency.as_ref()?.p99),
        }
    }
}

/// A median with the extremes of its values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct MedianFigure {
    pub(crate) median: f64,
    pub(crate) least: f64,
    pub(crate) most: f64,
}

impl MedianFigure {
    fn of(values: &[f64]) -> Option<MedianFigure> {
        Some(MedianFigure {
            median: median(values)?,
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    /// Returns half the distance between the extremes, as a share of the median.
    pub(crate) fn spread(self) -> f64 {
        (self.most - self.least) / 2.0 / self.median.max(f64::MIN_POSITIVE)
    }
}

impl SummaryRow {
    fn is_of(&self, cell: &CellKey) -> bool {
        (&*self.workload, self.pairs, self.threads) == (&*cell.workload, cell.pairs, cell.threads)
    }

    /// Returns the rounds of a store.
    pub(crate) fn rounds(&self, store: &str, unsynced: bool) -> impl Iterator<Item = &PhaseRecord> {
        let is_it = move |cell: &CellKey| cell.subject == store && cell.unsynced == unsynced;
        self.records.iter().filter(move |record| is_it(&record.cell))
    }

    pub(crate) fn figure(&self, store: &str, metric: ReportMetric) -> Option<MedianFigure> {
        MedianFigure::of(
            &self.rounds(store, false).filter_map(|record| metric.of(record)).collect::<Vec<_>>(),
        )
    }

    /// Returns the median of a peer in the runs without syncs.
    pub(crate) fn unsynced(&self, store: &str, metric: ReportMetric) -> Option<f64> {
        median(&self.rounds(store, true).filter_map(|record| metric.of(record)).collect::<Vec<_>>())
    }

    /// Returns the median of each point of the latency curve, and of the longest latency.
    pub(crate) fn latency(&self, store: &str) -> Option<Vec<(f64, f64)>> {
        let curves: Vec<_> =
            self.rounds(store, false).filter_map(|record| record.outcome.latency.as_ref()).collect();
        let mut points = curves.first()?.points().to_vec();
        for (place, point) in points.iter_mut().enumerate() {
            point.1 = median(&curves.iter().map(|curve| curve.points()[place].1).collect::<Vec<_>>())?;
        }
        points.push((1.0, median(&curves.iter().map(|curve| curve.longest).collect::<Vec<_>>())?));
        Some(points)
    }

    pub(crate) fn is_opening(&self) -> bool {
        self.group == record::OPENINGS
    }

    /// Returns whether an operation scans all pairs, so that its latency depends on their number.
    pub(crate) fn is_whole_scan(&self) -> bool {
        self.workload.starts_with("scan-all")
    }

    /// Returns the rounds of all stores.
    pub(crate) fn rounds_of_all(&self) -> impl Iterator<Item = &PhaseRecord> {
        self.records.iter()
    }

    /// Returns the fastest store, if more than one ran.
    pub(crate) fn best(&self, stores: &[StoreNote]) -> Option<String> {
        let mut ranked: Vec<(f64, &str)> = stores
            .iter()
            .filter(|store| store.name != BenchSubject::NULL.name())
            .filter_map(|store| Some((self.figure(&store.name, ReportMetric::Speed)?.median, &*store.name)))
            .collect();
        ranked.sort_by(|a, b| if self.is_opening() { a.0.total_cmp(&b.0) } else { b.0.total_cmp(&a.0) });
        if ranked.len() > 1 { ranked.first().map(|best| best.1.to_owned()) } else { None }
    }
}

/// Agreement between the medians of several runs, or between the rounds of one run.
pub(crate) struct RunAgreement {
    /// Number of compared cells.
    pub(crate) cells: usize,
    /// Cells that differ by more than [`TOLERANCE`]: store, workload, and relative difference.
    pub(crate) disagreeing: Vec<(String, String, f64)>,
    /// Whether some cells were measured in more than one run.
    pub(crate) between_runs: bool,
}

impl RunAgreement {
    fn between(rows: &[SummaryRow], runs: &[Vec<RecordLine>]) -> RunAgreement {
        let mut agreement = RunAgreement { cells: 0, disagreeing: Vec::new(), between_runs: false };
        for row in rows {
            let mut stores: Vec<&str> = row.records.iter().map(|record| &*record.cell.subject).collect();
            stores.sort_unstable();
            stores.dedup();
            for store in stores {
                let mut values: Vec<f64> =
                    runs.iter().filter_map(|lines| median_in(lines, row, store)).collect();
                agreement.between_runs |= values.len() > 1;
                if values.len() == 1 {
                    let rounds = row.rounds(store, false);
                    values = rounds.filter_map(|record| ReportMetric::Speed.of(record)).collect();
                }
                let Some(figure) = MedianFigure::of(&values).filter(|_| values.len() > 1) else { continue };
                agreement.cells += 1;
                let apart = (figure.most - figure.least) / figure.median;
                if apart > TOLERANCE {
                    agreement.disagreeing.push((store.to_owned(), row.title(), apart));
                }
            }
        }
        agreement.disagreeing.sort_by(|a, b| b.2.total_cmp(&a.2));
        agreement
    }

    /// Returns a sentence about the agreement.
    pub(crate) fn sentence(&self) -> String {
        let (sources, figures) = if self.between_runs {
            ("the runs", "medians")
        } else {
            ("the rounds of this run", "measurements")
        };
        let (of, apart) = (self.cells, self.disagreeing.len());
        if of == 0 {
            return "One round of one run: the spread of these figures is unknown.".to_owned();
        }
        if apart == 0 {
            return format!("All {of} {figures} of {sources} agree within 10 %.");
        }
        format!("Of {of} {figures} of {sources}, {apart} do **not** agree within 10 %.")
    }
}

fn median_in(lines: &[RecordLine], row: &SummaryRow, store: &str) -> Option<f64> {
    let values: Vec<f64> = lines
        .iter()
        .filter_map(|line| match line {
            RecordLine::Sample(record) => Some(record),
            _ => None,
        })
        .filter(|record| row.is_of(&record.cell) && record.cell.subject == store && !record.cell.unsynced)
        .filter_map(|record| ReportMetric::Speed.of(record))
        .collect();
    median(&values)
}

impl SummaryRow {
    /// Returns workload and threads, for prose.
    pub(crate) fn title(&self) -> String {
        format!("{}, {}", self.workload, threads(self.threads))
    }
}

/// Formats a number of threads: `1 thread`, `8 threads`.
pub(crate) fn threads(count: u64) -> String {
    if count == 1 { "1 thread".to_owned() } else { format!("{count} threads") }
}

/// Formats a number of pairs: `200 k`, `1 M`, `1.5 M`.
pub(crate) fn pairs(count: u64) -> String {
    match count {
        1_000_000.. => format!("{} M", crate::promise_table::number(count as f64 / 1e6)),
        1_000.. => format!("{} k", crate::promise_table::number(count as f64 / 1e3)),
        _ => count.to_string(),
    }
}

impl RunSummary {
    /// Summarises one run, or several as if their rounds belonged to one.
    pub(crate) fn new(runs: &[Vec<RecordLine>]) -> RunSummary {
        let mut summary = RunSummary {
            runs: Vec::new(),
            stores: Vec::new(),
            rows: Vec::new(),
            absent: Vec::new(),
            agreement: RunAgreement { cells: 0, disagreeing: Vec::new(), between_runs: false },
        };
        for line in runs.iter().flatten() {
            summary.add(line);
        }
        let order = workload::all().unwrap_or_default();
        let place = |row: &SummaryRow| order.iter().position(|load| load.name == row.workload);
        summary.rows.sort_by_key(|row| (place(row), row.pairs, row.threads));
        summary.agreement = RunAgreement::between(&summary.rows, runs);
        summary
    }

    fn add(&mut self, line: &RecordLine) {
        match line {
            RecordLine::Run(run) => {
                for store in &run.stores {
                    if !self.stores.iter().any(|other| other.name == store.name) {
                        self.stores.push(store.clone());
                    }
                }
                self.runs.push(run.clone());
            }
            RecordLine::Absent(absent) if !self.absent.contains(absent) => self.absent.push(absent.clone()),
            RecordLine::Absent(_) => {}
            RecordLine::Sample(record) => {
                if let Some(row) = self.rows.iter_mut().find(|row| row.is_of(&record.cell)) {
                    return row.records.push(record.clone());
                }
                self.rows.push(SummaryRow {
                    workload: record.cell.workload.clone(),
                    group: record.group.clone(),
                    about: record.about.clone(),
                    pairs: record.cell.pairs,
                    threads: record.cell.threads,
                    records: vec![record.clone()],
                });
            }
        }
    }

    /// Returns the rows in which some store has this figure.
    pub(crate) fn rows_with(&self, metric: ReportMetric) -> Vec<&SummaryRow> {
        let has =
            |row: &&SummaryRow| self.stores.iter().any(|store| row.figure(&store.name, metric).is_some());
        self.rows.iter().filter(has).collect()
    }

    /// Returns groups of more than one row with the same workload that differ only in the axis
    /// `by`.
    pub(crate) fn families(&self, by: ScaleAxis) -> Vec<Vec<&SummaryRow>> {
        let mut families: Vec<Vec<&SummaryRow>> = Vec::new();
        for row in self.rows.iter().filter(|row| !row.is_opening()) {
            let is_kin = |kin: &SummaryRow| kin.workload == row.workload && by.other(kin) == by.other(row);
            match families.iter_mut().find(|family| is_kin(family[0])) {
                Some(family) => family.push(row),
                None => families.push(vec![row]),
            }
        }
        families.retain(|family| family.len() > 1);
        families
    }
}

/// Axis along which a workload is scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScaleAxis {
    Pairs,
    Threads,
}

impl ScaleAxis {
    /// Returns the label of the axis.
    fn name(self) -> &'static str {
        if self == ScaleAxis::Pairs { "pairs" } else { "threads" }
    }

    /// Returns the position of a row on the other axis.
    fn other(self, row: &SummaryRow) -> u64 {
        if self == ScaleAxis::Pairs { row.threads } else { row.pairs }
    }
}

/// Writes Markdown and HTML to the directory of the lines, and prints the Markdown.
pub(crate) fn write(out: &Path, runs: &[Vec<RecordLine>]) -> Result<()> {
    write_with_intro(out, runs, None)
}

/// Like [`write`], with the text `lead` before the tables. If it is given, only `lead` is printed.
pub(crate) fn write_with_intro(out: &Path, runs: &[Vec<RecordLine>], lead: Option<&str>) -> Result<()> {
    let summary = RunSummary::new(runs);
    let [_, markdown_file, html_file] = REPORT_FILES;
    let text = markdown::report(&summary);
    println!("{}", lead.unwrap_or(&text));
    fs::write(out.join(markdown_file), format!("{}{text}", lead.unwrap_or_default()))?;
    fs::write(out.join(html_file), html::page(&summary, lead))?;
    eprintln!("written: {}, and {RESULTS_FILE} in the same directory", out.join(html_file).display());
    Ok(())
}

/// Writes the report of stored runs.
pub(crate) fn from_files(options: &args::ReportCommand) -> Result<()> {
    let runs = options.files.iter().map(|file| record::read(file)).collect::<Result<Vec<_>>>()?;
    if let Some(guide) = &options.guide {
        guide::write(guide, &RunSummary::new(&runs))?;
    }
    fs::create_dir_all(&options.out)?;
    write(&options.out, &runs)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn stored() -> Vec<RecordLine> {
        record::tests::STORED.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn rounds_of_a_cell_come_together_and_rows_stand_in_the_order_of_the_table() {
        let summary = RunSummary::new(&[stored()]);
        let names: Vec<&str> = summary.rows.iter().map(|row| &*row.workload).collect();
        let place = |name: &str| names.iter().position(|other| *other == name);
        assert!(place("fill-random") < place("get-uniform") && place("get-uniform") < place("update-zipf"));
        let row = summary.rows.iter().find(|row| row.workload == "get-uniform").unwrap();
        let figure = row.figure("flat", ReportMetric::Speed).unwrap();
        assert!(figure.least < figure.median && figure.median < figure.most);
        assert_eq!(row.rounds("flat", false).count(), 2);
    }

    #[test]
    fn one_run_with_itself_agrees_and_with_a_faster_one_does_not() {
        let run = stored();
        assert!(RunSummary::new(&[run.clone(), run.clone()]).agreement.disagreeing.is_empty());
        let faster: Vec<RecordLine> = run
            .iter()
            .cloned()
            .map(|line| match line {
                RecordLine::Sample(mut record) => {
                    record.outcome.seconds /= 1.3;
                    RecordLine::Sample(record)
                }
                other => other,
            })
            .collect();
        let agreement = RunSummary::new(&[run, faster]).agreement;
        assert_eq!((agreement.disagreeing.len(), agreement.between_runs), (agreement.cells, true));
        assert!(agreement.sentence().contains("do **not** agree"), "{}", agreement.sentence());
    }

    #[test]
    fn several_sizes_of_one_workload_are_a_family() {
        let summary = RunSummary::new(&[stored()]);
        let by_pairs = summary.families(ScaleAxis::Pairs);
        assert!(by_pairs.iter().any(|family| family[0].workload == "get-uniform" && family.len() == 2));
    }

    #[test]
    fn counts_read_well() {
        assert_eq!(pairs(200_000), "200 k");
        assert_eq!(pairs(1_500_000), "1.5 M");
        assert_eq!(threads(1), "1 thread");
    }
}
