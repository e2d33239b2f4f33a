//! # Markdown: the report as tables

use super::{ReportMetric, RunSummary, ScaleAxis, SummaryRow, TOLERANCE, pairs};
use crate::promise_table::{markdown, number};

/// Tables of one figure for each workload and store: the figure, its heading, its meaning.
pub(super) const TABLES: [(ReportMetric, &str, &str); 6] = [
    (
        ReportMetric::Speed,
        "Throughput",
        "Thousand operations per second; milliseconds for openings. Bold: best of the row.",
    ),
    (
        ReportMetric::Cpu,
        "CPU per operation",
        "CPU time of the whole process in microseconds, including background threads.",
    ),
    (
        ReportMetric::WriteAmplification,
        "Write amplification",
        "Bytes written to the device per byte of keys and values, counted until the store was idle and \
         the page cache was written back. Phases of a few seconds favour log-structured stores.",
    ),
    (
        ReportMetric::DeviceRead,
        "Device reads",
        "Bytes read from the device per operation; 0 if all reads hit memory.",
    ),
    (ReportMetric::Disk, "Disk", "Disk blocks of the database divided by the bytes of keys and values."),
    (
        ReportMetric::Memory,
        "Memory",
        "Anonymous memory of the process in MiB: caches, memtables, indexes. Excludes the page cache.",
    ),
];

pub(super) fn report(summary: &RunSummary) -> String {
    let mut text = "# Sheaf compared with its peers\n\n".to_owned();
    for run in &summary.runs {
        text +=
            &format!("{}Setting: {}.\nCommand: `sheaf-bench {}`\n\n", run.machine, run.setting, run.command);
    }
    text += &format!("{}\n", summary.agreement.sentence());
    for (metric, heading, meaning) in TABLES {
        let rows = summary.rows_with(metric);
        if !rows.is_empty() {
            text += &format!("\n## {heading}\n\n{meaning}\n\n{}", table(summary, &rows, metric));
        }
    }
    text += &scaling(summary);
    text += &latencies(summary);
    text += &timelines(summary);
    text += &absent(summary);
    text += "\n## Settings of the stores\n\n";
    for store in &summary.stores {
        text += &format!("- {}: {}\n", store.title, store.setting);
    }
    text
}

pub(super) fn table(summary: &RunSummary, rows: &[&SummaryRow], metric: ReportMetric) -> String {
    let stores: Vec<&str> = summary
        .stores
        .iter()
        .map(|store| &*store.name)
        .filter(|store| rows.iter().any(|row| row.figure(store, metric).is_some()))
        .collect();
    let title = |name: &str| summary.stores.iter().find(|store| store.name == name).map(|s| s.title.clone());
    let head: Vec<String> = ["workload", "pairs", "threads"]
        .map(str::to_owned)
        .into_iter()
        .chain(stores.iter().filter_map(|store| title(store)))
        .collect();
    let body: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            let lead = [row.workload.clone(), pairs(row.pairs), row.threads.to_string()];
            let best = if metric == ReportMetric::Speed { row.best(&summary.stores) } else { None };
            let cell = |store: &&str| cell(row, store, metric, best.as_deref() == Some(store));
            lead.into_iter().chain(stores.iter().map(cell)).collect()
        })
        .collect();
    markdown(&head, &body)
}

/// Formats a cell: `**412** ±12 % (unsynced 480)`.
fn cell(row: &SummaryRow, store: &str, metric: ReportMetric, is_best: bool) -> String {
    let Some(figure) = row.figure(store, metric) else { return "–".to_owned() };
    let mut text = number(figure.median);
    if is_best {
        text = format!("**{text}**");
    }
    if metric == ReportMetric::Speed && figure.spread() > TOLERANCE / 2.0 {
        text += &format!(" ±{:.0} %", figure.spread() * 100.0);
    }
    if let Some(unsynced) = row.unsynced(store, metric) {
        text += &format!(" (unsynced {})", number(unsynced));
    }
    text
}

/// Returns a table of the throughput by number of threads, with cells like `913 (6.9 ×)`.
fn scaling(summary: &RunSummary) -> String {
    let families = summary.families(ScaleAxis::Threads);
    if families.is_empty() {
        return String::new();
    }
    let head = ["workload", "pairs", "threads"].map(str::to_owned).into_iter();
    let head: Vec<String> = head.chain(summary.stores.iter().map(|store| store.title.clone())).collect();
    let mut body = Vec::new();
    for family in families {
        for row in &family {
            let lead = [row.workload.clone(), pairs(row.pairs), row.threads.to_string()];
            let cell = |store: &str| {
                let speed =
                    |row: &SummaryRow| row.figure(store, ReportMetric::Speed).map(|figure| figure.median);
                match (speed(row), speed(family[0])) {
                    (Some(now), Some(first)) if row.threads != family[0].threads => {
                        format!("{} ({} ×)", number(now), number(now / first))
                    }
                    (Some(now), _) => number(now),
                    (None, _) => "–".to_owned(),
                }
            };
            body.push(lead.into_iter().chain(summary.stores.iter().map(|store| cell(&store.name))).collect());
        }
    }
    format!(
        "\n## Scaling with threads\n\nThousand operations per second; in brackets the multiple of the first line of the \
         workload.\n\n{}",
        markdown(&head, &body)
    )
}

fn latencies(summary: &RunSummary) -> String {
    let head = ["workload", "threads", "store", "mean", "p50", "p95", "p99", "p99.9", "p99.99", "longest"]
        .map(str::to_owned);
    let mut body = Vec::new();
    for row in summary.rows.iter().filter(|row| !row.is_opening()) {
        for store in &summary.stores {
            let Some(points) = row.latency(&store.name) else { continue };
            let means: Vec<f64> = row
                .rounds(&store.name, false)
                .filter_map(|record| record.outcome.latency.as_ref())
                .map(|latency| latency.mean)
                .collect();
            let mean = crate::measure::median(&means).unwrap_or(0.0);
            let lead = [
                format!("{} ({})", row.workload, pairs(row.pairs)),
                row.threads.to_string(),
                store.title.clone(),
                number(mean),
            ];
            body.push(lead.into_iter().chain(points.iter().map(|(_, micros)| number(*micros))).collect());
        }
    }
    format!("\n## Latency\n\nMicroseconds, medians of the rounds.\n\n{}", markdown(&head, &body))
}

/// Returns the throughput of long runs in each tenth of their time.
fn timelines(summary: &RunSummary) -> String {
    let mut text = String::new();
    for row in &summary.rows {
        for store in &summary.stores {
            let Some(record) = row.rounds(&store.name, false).find(|r| r.outcome.timeline.len() >= 10) else {
                continue;
            };
            let seconds = &record.outcome.timeline;
            let parts = seconds.chunks(seconds.len().div_ceil(10));
            let rates: Vec<String> = parts
                .clone()
                .map(|part| part.iter().map(|s| s.operations).sum::<u64>() as f64 / part.len() as f64 / 1e3)
                .map(number)
                .collect();
            let freed: Vec<String> = parts
                .map(|part| part.iter().map(|s| s.freed).sum::<u64>() as f64 / part.len() as f64)
                .map(number)
                .collect();
            text += &format!(
                "- {}, {}: k/s in each tenth of the run: {}; log segments freed per second: {}\n",
                row.title(),
                store.title,
                rates.join(", "),
                freed.join(", ")
            );
        }
    }
    if text.is_empty() { text } else { format!("\n## Over time\n\n{text}") }
}

fn absent(summary: &RunSummary) -> String {
    if summary.absent.is_empty() && summary.agreement.disagreeing.is_empty() {
        return String::new();
    }
    let mut text = String::new();
    if !summary.absent.is_empty() {
        text += "\n## Not measured\n\n";
        for absent in &summary.absent {
            text += &format!("- {}: {}: {}\n", absent.workload, absent.subject, absent.why);
        }
    }
    if !summary.agreement.disagreeing.is_empty() {
        text += "\n## Figures that differ by more than 10 %\n\n";
        for (store, row, apart) in &summary.agreement.disagreeing {
            text += &format!("- {store}: {row}: {:.0} % apart\n", apart * 100.0);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::stored;

    #[test]
    fn the_report_has_a_table_for_each_figure_and_names_what_is_missing() {
        let text = report(&RunSummary::new(&[stored()]));
        for heading in ["## Throughput", "## Latency", "## Write amplification", "## Not measured"] {
            assert!(text.contains(heading), "{heading}");
        }
        assert!(text.contains("unsynced") && text.contains("**"), "{text}");
        assert!(text.contains("has no key order"), "{text}");
    }

    #[test]
    fn throughput_by_threads_is_a_multiple_of_the_least_threads() {
        let mut lines = stored();
        for line in stored() {
            if let crate::record::RecordLine::Sample(mut record) = line {
                record.cell.threads *= 4;
                record.outcome.seconds /= 3.0;
                lines.push(crate::record::RecordLine::Sample(record));
            }
        }
        let text = report(&RunSummary::new(&[lines]));
        let table = text.split("## Scaling with threads").nth(1).expect("a table of threads");
        assert!(table.contains("(3 ×)"), "{table}");
        assert!(!report(&RunSummary::new(&[stored()])).contains("Scaling with threads"));
    }
}
