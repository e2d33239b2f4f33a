//! # Guide: the generated part of docs/engine-guide.md
//!
//! Replaces the text between the two marks of the file, and leaves the rest unchanged.

use std::fs;
use std::path::Path;

use super::{ReportMetric, RunSummary, SummaryRow, markdown, pairs};
use crate::Result;
use crate::promise_table::{self, number};
use crate::subjects::BenchSubject;

const BEGIN: &str = "<!-- generated: begin -->";
const END: &str = "<!-- generated: end -->";

/// Writes the tables of `summary` between the marks of `file`.
pub(super) fn write(file: &Path, summary: &RunSummary) -> Result<()> {
    let text = fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let Some(text) = replace_generated(&text, &tables(summary)) else {
        return Err(format!("{}: no {BEGIN} before an {END}", file.display()).into());
    };
    Ok(fs::write(file, text)?)
}

/// Replaces the text between the two marks, or returns `None` if there are no marks.
pub(crate) fn replace_generated(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n\n{tables}\n{END}{after}"))
}

fn tables(summary: &RunSummary) -> String {
    let mut text = String::new();
    for (place, run) in summary.runs.iter().enumerate() {
        let said = place.checked_sub(1).map(|before| &summary.runs[before]);
        text += &format!("- `sheaf-bench {}`\n", run.command);
        if said.is_none_or(|said| said.setting != run.setting) {
            text += &format!("  {}.\n", run.setting);
        }
        for line in run.machine.lines().filter(|line| said.is_none_or(|said| !said.machine.contains(line))) {
            text += &format!("  {line}\n");
        }
    }
    text += "\n";
    text += &format!(
        "{}\n\nThe fastest engine of Sheaf and the fastest peer in each workload:\n\n{}",
        summary.agreement.sentence(),
        first(summary)
    );
    for (metric, heading, meaning) in markdown::TABLES {
        let rows = summary.rows_with(metric);
        if !rows.is_empty() && metric != ReportMetric::DeviceRead {
            text += &format!("\n{heading}. {meaning}\n\n{}", markdown::table(summary, &rows, metric));
        }
    }
    text
}

/// Returns a table of the fastest engine of Sheaf, the fastest peer, and the ratio of their speeds.
fn first(summary: &RunSummary) -> String {
    let head = ["workload", "pairs", "threads", "best of Sheaf", "best peer", "ratio"].map(str::to_owned);
    let body: Vec<Vec<String>> = summary
        .rows
        .iter()
        .map(|row| {
            let (ours, peer) =
                (best(summary, row, BenchSubject::is_ours), best(summary, row, BenchSubject::is_peer));
            let ratio = match (&ours, &peer) {
                (Some((_, ours)), Some((_, peer))) if row.is_opening() => number(peer / ours) + " ×",
                (Some((_, ours)), Some((_, peer))) => number(ours / peer) + " ×",
                _ => "–".to_owned(),
            };
            let unit = if row.is_opening() { "ms" } else { "k/s" };
            let cell = |best: Option<(String, f64)>| {
                best.map_or("–".to_owned(), |(title, value)| format!("{title} {} {unit}", number(value)))
            };
            let lead = [row.workload.clone(), pairs(row.pairs), row.threads.to_string()];
            lead.into_iter().chain([cell(ours), cell(peer), ratio]).collect()
        })
        .collect();
    promise_table::markdown(&head, &body)
}

/// Returns title and figure of the fastest store of that kind.
fn best(summary: &RunSummary, row: &SummaryRow, kind: fn(BenchSubject) -> bool) -> Option<(String, f64)> {
    let stores = summary.stores.iter().filter(|store| BenchSubject::by_name(&store.name).is_some_and(kind));
    let figures =
        stores.filter_map(|store| Some((store, row.figure(&store.name, ReportMetric::Speed)?.median)));
    let better = |a: &f64, b: &f64| if row.is_opening() { b.total_cmp(a) } else { a.total_cmp(b) };
    figures.max_by(|a, b| better(&a.1, &b.1)).map(|(store, value)| (store.title.clone(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::tests::stored;

    #[test]
    fn only_text_between_the_marks_is_replace_generated() {
        let text = format!("# Guide\n{BEGIN}\nold\n{END}\nprose\n");
        let text = replace_generated(&text, "new\n").unwrap();
        assert_eq!(text, format!("# Guide\n{BEGIN}\n\nnew\n\n{END}\nprose\n"));
        assert!(replace_generated("no marks", "new").is_none());
        assert!(replace_generated(&format!("{END} {BEGIN}"), "new").is_none());
    }

    #[test]
    fn table_compares_sheaf_with_the_best_peer() {
        let text = tables(&RunSummary::new(&[stored()]));
        let line = text.lines().find(|line| line.starts_with("| get-uniform")).unwrap();
        assert!(line.contains("Sheaf flat") && line.contains("LMDB") && line.contains('×'), "{line}");
    }
}
