//! # Pages of papers: a table of claims, made from the table of the paper and the saved figures
//!
//! The table is between the marks of `DIR/NAME.md`, and is made from `DIR/data/NAME.tsv`. Text
//! around the marks is written by hand. Figures of `--quick` runs are not shown. Of several runs,
//! the one at the largest scale gives the verdict; at the same scale, the one with most cores. A
//! note gives it only where there is no run.

use std::fs;
use std::path::Path;

use super::claim::Verdict;
use super::saved::{SavedKind, SavedRow, SavedTable};
use super::{PaperClaim, PaperExperiment, PaperSpec};
use crate::Result;
use crate::promise_table::number;
use crate::report::replace_generated;

/// Writes the table of a paper into its page.
///
/// # Errors
///
/// Returns an error if the page does not exist, has no marks or cannot be written, or if the saved
/// figures are damaged.
pub(super) fn write(paper: &PaperSpec, dir: &Path) -> Result<()> {
    let (path, text) = updated(paper, dir)?;
    fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    eprintln!("written: {}", path.display());
    Ok(())
}

/// Returns the path of a page and its text with the current table.
fn updated(paper: &PaperSpec, dir: &Path) -> Result<(std::path::PathBuf, String)> {
    let path = dir.join(format!("{}.md", paper.name));
    let saved = SavedTable::open(&dir.join("data").join(format!("{}.tsv", paper.name)))?;
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let text = replace_generated(&text, &table(paper, &saved.rows))
        .ok_or_else(|| format!("{}: no marks of the generated table", path.display()))?;
    Ok((path, text))
}

/// Returns the table of all claims, and the stores that cannot run.
fn table(paper: &PaperSpec, saved: &[SavedRow]) -> String {
    let head = ["figure", "claim", "the paper's measurement", "holds from", "measured here", "verdict"]
        .map(str::to_owned);
    let mut rows = Vec::new();
    let mut counts = [0u64; Verdict::COUNT];
    for experiment in paper.with_headline() {
        for claim in &experiment.claim {
            let (measured, verdict) = experiment.result(claim, paper, saved);
            counts[verdict as usize] += 1;
            let bound = claim.ratio.as_ref().map_or_else(|| "–".to_owned(), |_| number(claim.holds));
            rows.push(vec![
                experiment.figure.clone(),
                claim.says.clone(),
                claim.paper.clone(),
                bound,
                measured,
                verdict.words().to_owned(),
            ]);
        }
    }
    let sums = Verdict::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
    let sums: Vec<String> = sums.map(|(verdict, count)| format!("{} {count}", verdict.words())).collect();
    let mut text = format!("{} claims: {}.\n\n{}", rows.len(), sums.join(", "), plain_table(&head, &rows));
    if !paper.absent.is_empty() {
        text += &format!("\nStores of the paper that cannot run here:\n\n{}", paper.absent_list());
    }
    text
}

/// Formats a table without padding, as its cells are long. A `|` within a cell is escaped.
fn plain_table(head: &[String], rows: &[Vec<String>]) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let rule = vec!["---".to_owned(); head.len()];
    line(head) + &line(&rule) + &rows.iter().map(|row| line(row)).collect::<String>()
}

impl PaperExperiment {
    /// Returns the measurement of a claim in words, and the verdict.
    fn result(&self, claim: &PaperClaim, paper: &PaperSpec, saved: &[SavedRow]) -> (String, Verdict) {
        let mut rows: Vec<&SavedRow> = saved.iter().filter(|row| self.is_of(claim, row)).collect();
        rows.sort_by(|a, b| {
            let order = |row: &SavedRow| (row.cores, row.date.clone());
            a.kind.cmp(&b.kind).then(b.scale.total_cmp(&a.scale)).then_with(|| order(b).cmp(&order(a)))
        });
        let Some(first) = rows.first() else {
            return match (&self.not_here, &self.command) {
                (Some(why), None) => (why.clone(), Verdict::CannotRun),
                (_, Some(command)) => (format!("`{command}`"), Verdict::NotMeasured),
                (None, None) => (
                    format!(
                        "`sheaf-bench paper {} --only {} --save docs/papers/data`",
                        paper.name, self.name
                    ),
                    Verdict::NotMeasured,
                ),
            };
        };
        let verdict = match first.ratio {
            Some(_) if first.cores < claim.cores => Verdict::TooFewCores,
            Some(ratio) => claim.classify(ratio),
            None => Verdict::parse(&first.verdict).unwrap_or(Verdict::NotMeasured),
        };
        let texts: Vec<String> = rows.iter().map(|row| measurement(row)).collect();
        (texts.join("; before: "), verdict)
    }

    /// Returns whether a saved line is a measurement of the claim.
    fn is_of(&self, claim: &PaperClaim, row: &SavedRow) -> bool {
        if row.experiment != self.name {
            return false;
        }
        match (row.kind, claim.sides()) {
            (SavedKind::Quick, _) => false,
            (SavedKind::Note, _) => row.claim == claim.says,
            (SavedKind::Full, Some([left, right])) => {
                (&*row.metric, &row.left, &row.right) == (claim.metric.name(), &left, &right)
            }
            (SavedKind::Full, None) => false,
        }
    }
}

/// Formats a measurement: its ratio with both sides, or its text, and its origin.
fn measurement(row: &SavedRow) -> String {
    let mut origin = vec![format!("{} cores", row.cores)];
    if row.kind == SavedKind::Full {
        if (row.scale - 1.0).abs() > 1e-9 {
            origin.push(format!("{} × the pairs", number(row.scale)));
        }
        origin.push(format!("{} rounds", row.rounds));
    }
    origin.extend([row.date.clone(), row.commit.clone()].into_iter().filter(|text| !text.is_empty()));
    let origin = origin.join(", ");
    let (Some(ratio), Some(left), Some(right)) = (row.ratio, row.left_value, row.right_value) else {
        return format!("{} ({origin})", row.note);
    };
    let best = if row.best.is_empty() { String::new() } else { format!(", best peer {}", row.best) };
    format!("{} ({} : {}{best}; {origin})", number(ratio), number(left), number(right))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::all;
    use crate::paper::saved::tests::{sample, tiny_paper};

    fn docs() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers")
    }

    /// The committed pages are those that `paper --page` writes from the committed figures.
    #[test]
    fn pages_agree_with_the_tables_and_the_saved_figures() {
        for paper in all().unwrap() {
            let (path, text) = updated(&paper, &docs()).unwrap();
            let is_same = fs::read_to_string(&path).unwrap() == text;
            assert!(is_same, "{}: run `sheaf-bench paper {} --page`", path.display(), paper.name);
        }
    }

    /// Each committed line belongs to a claim or a cell of the tables.
    #[test]
    fn every_saved_line_is_of_a_claim_or_a_cell() {
        for paper in all().unwrap() {
            let path = docs().join("data").join(format!("{}.tsv", paper.name));
            for row in SavedTable::open(&path).unwrap().rows {
                let experiment = paper.with_headline().find(|experiment| experiment.name == row.experiment);
                let experiment =
                    experiment.unwrap_or_else(|| panic!("{}: {}", path.display(), row.experiment));
                let is_claim = experiment.claim.iter().any(|claim| claim.says == row.claim);
                assert!(is_claim || row.claim.is_empty(), "{}: {}", path.display(), row.claim);
                let has_verdict = Verdict::parse(&row.verdict).is_some();
                assert_eq!(has_verdict, !row.claim.is_empty(), "{}: {}", path.display(), row.claim);
            }
        }
    }

    #[test]
    fn the_largest_run_gives_the_verdict_and_quick_runs_give_none() {
        let paper = tiny_paper();
        let (experiment, claim) = (&paper.experiment[0], &paper.experiment[0].claim[0]);
        let result = |rows: &[SavedRow]| experiment.result(claim, &paper, rows);
        let row = |kind, scale, cores, ratio| SavedRow { kind, scale, cores, ..sample(claim, ratio) };
        let full = SavedKind::Full;
        let (text, verdict) = result(&[row(SavedKind::Quick, 1.0, 2, 9.0)]);
        assert_eq!(verdict, Verdict::NotMeasured);
        assert!(text.contains("paper flatstore --only fig-1 --save"), "{text}");
        let small = row(full, 0.1, 16, 9.0);
        let (text, verdict) = result(&[small.clone(), row(full, 1.0, 2, 0.0001)]);
        assert_eq!(verdict, Verdict::DoesNotHold);
        assert!(text.contains("before: 9 ") && text.contains("0.1 × the pairs"), "{text}");
        assert_eq!(result(&[small]).1, Verdict::Holds);
    }

    #[test]
    fn claims_that_need_cores_or_other_commands_say_so() {
        let mut paper = tiny_paper();
        paper.experiment[0].claim[0].cores = 16;
        let claim = paper.experiment[0].claim[0].clone();
        let (_, verdict) = paper.experiment[0].result(&claim, &paper, &[sample(&claim, 9.0)]);
        assert_eq!(verdict, Verdict::TooFewCores);
        paper.experiment[0].claim[0].ratio = None;
        paper.experiment[0].not_here = Some("needs a card".to_owned());
        let claim = paper.experiment[0].claim[0].clone();
        let (text, verdict) = paper.experiment[0].result(&claim, &paper, &[]);
        assert_eq!((&*text, verdict), ("needs a card", Verdict::CannotRun));
        paper.experiment[0].command = Some("cargo run".to_owned());
        let (text, verdict) = paper.experiment[0].result(&claim, &paper, &[]);
        assert_eq!((&*text, verdict), ("`cargo run`", Verdict::NotMeasured));
        let note = SavedRow {
            kind: SavedKind::Note,
            note: "75 ×".to_owned(),
            ratio: None,
            verdict: "holds".to_owned(),
            ..sample(&claim, 1.0)
        };
        let (text, verdict) = paper.experiment[0].result(&claim, &paper, &[note]);
        assert!(text.starts_with("75 ×") && verdict == Verdict::Holds, "{text}");
    }
}
