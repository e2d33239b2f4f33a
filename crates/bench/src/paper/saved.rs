//! # Saved figures of papers: one file of tab-separated values for each paper, merged over runs
//!
//! A line is a claim with its ratio, or a single cell with its median. Both cells of a claim are of
//! one run, as figures of two runs must not be compared. A later run replaces the lines with the
//! same identity; a run with another scale or on another number of cores adds its own. Lines with
//! the kind `note` are written by hand, for claims that other commands measure: they have a text
//! instead of cells, and no run replaces them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::claim::{self, ClaimMetric};
use super::{PaperExperiment, PaperSpec};
use crate::Result;
use crate::record::{RecordLine, RunHeader};
use crate::report::RunSummary;

/// First line of a file.
const COLUMNS: &str = "experiment\tclaim\tmetric\tleft\tright\tleft_value\tright_value\tratio\tbest\tverdict\t\
                       kind\tpairs\tscale\trounds\tcores\tdate\tcommit\tnote";
/// Number of fields of a line.
const FIELDS: usize = 18;

/// Origin of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SavedKind {
    /// A run at size.
    Full,
    /// A run with `--quick`. Its ratios mean nothing.
    Quick,
    /// A figure of another command, written by hand.
    Note,
}

impl SavedKind {
    fn name(self) -> &'static str {
        match self {
            SavedKind::Full => "full",
            SavedKind::Quick => "quick",
            SavedKind::Note => "note",
        }
    }
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SavedRow {
    pub(super) experiment: String,
    /// The statement of a claim; empty for a single cell.
    pub(super) claim: String,
    pub(super) metric: String,
    /// The two sides of a claim; a single cell has no right side, and a note has none.
    pub(super) left: String,
    pub(super) right: String,
    pub(super) left_value: Option<f64>,
    pub(super) right_value: Option<f64>,
    pub(super) ratio: Option<f64>,
    /// The peer that was the best one.
    pub(super) best: String,
    pub(super) verdict: String,
    pub(super) kind: SavedKind,
    /// Pairs of a single cell, 0 for claims.
    pub(super) pairs: u64,
    pub(super) scale: f64,
    pub(super) rounds: u64,
    pub(super) cores: u64,
    /// Year, month and day.
    pub(super) date: String,
    pub(super) commit: String,
    pub(super) note: String,
}

impl SavedRow {
    /// Returns whether a run replaces `other` by this line.
    fn replaces(&self, other: &SavedRow) -> bool {
        let key = |row: &SavedRow| {
            let claim = if row.kind == SavedKind::Note { row.claim.clone() } else { String::new() };
            let sides = (row.metric.clone(), row.left.clone(), row.right.clone());
            (row.experiment.clone(), claim, sides, row.kind, exact(row.scale), row.cores)
        };
        key(self) == key(other)
    }

    fn line(&self) -> String {
        let value = |value: Option<f64>| value.map_or(String::new(), exact);
        let plain = |text: &str| text.replace(['\t', '\n'], " ");
        [
            plain(&self.experiment),
            plain(&self.claim),
            plain(&self.metric),
            plain(&self.left),
            plain(&self.right),
            value(self.left_value),
            value(self.right_value),
            value(self.ratio),
            plain(&self.best),
            plain(&self.verdict),
            self.kind.name().to_owned(),
            self.pairs.to_string(),
            exact(self.scale),
            self.rounds.to_string(),
            self.cores.to_string(),
            plain(&self.date),
            plain(&self.commit),
            plain(&self.note),
        ]
        .join("\t")
    }

    fn parse(line: &str) -> Result<SavedRow> {
        let fields: Vec<&str> = line.split('\t').collect();
        let Ok(fields) = <[&str; FIELDS]>::try_from(fields) else {
            return Err(format!("not {FIELDS} fields").into());
        };
        let value = |text: &str| -> Result<Option<f64>> {
            if text.is_empty() { Ok(None) } else { Ok(Some(text.parse()?)) }
        };
        let kinds = [SavedKind::Full, SavedKind::Quick, SavedKind::Note];
        let kind = kinds.into_iter().find(|kind| kind.name() == fields[10]);
        Ok(SavedRow {
            experiment: fields[0].to_owned(),
            claim: fields[1].to_owned(),
            metric: fields[2].to_owned(),
            left: fields[3].to_owned(),
            right: fields[4].to_owned(),
            left_value: value(fields[5])?,
            right_value: value(fields[6])?,
            ratio: value(fields[7])?,
            best: fields[8].to_owned(),
            verdict: fields[9].to_owned(),
            kind: kind.ok_or_else(|| format!("unknown kind {:?}", fields[10]))?,
            pairs: fields[11].parse()?,
            scale: fields[12].parse()?,
            rounds: fields[13].parse()?,
            cores: fields[14].parse()?,
            date: fields[15].to_owned(),
            commit: fields[16].to_owned(),
            note: fields[17].to_owned(),
        })
    }
}

/// Formats a number with six significant digits.
fn exact(value: f64) -> String {
    format!("{value:.5e}").parse::<f64>().map_or_else(|_| String::new(), |rounded| rounded.to_string())
}

/// The saved lines of a paper.
#[derive(Debug)]
pub(super) struct SavedTable {
    path: PathBuf,
    pub(super) rows: Vec<SavedRow>,
}

impl SavedTable {
    /// Reads a file; a missing file has no lines.
    pub(super) fn open(path: &Path) -> Result<SavedTable> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let text = match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            text => text.map_err(|error| failed(&error))?,
        };
        let mut table = SavedTable { path: path.to_path_buf(), rows: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            if index == 0 {
                if line != COLUMNS {
                    return Err(failed(&"the first line does not name the columns").into());
                }
                continue;
            }
            let row = SavedRow::parse(line);
            table.rows.push(row.map_err(|error| failed(&format!("line {}: {error}", index + 1)))?);
        }
        Ok(table)
    }

    /// Adds the figures of a run. Replaces older ones of the same identity.
    pub(super) fn add(
        &mut self,
        paper: &PaperSpec,
        run: &[RecordLine],
        scale: f64,
        is_quick: bool,
    ) -> Result<()> {
        let summary = RunSummary::new(&[run.to_vec()]);
        let header = summary.runs.first().ok_or("the run has no header")?;
        let origin = SavedRow {
            kind: if is_quick { SavedKind::Quick } else { SavedKind::Full },
            scale,
            cores: claim::cores(&summary),
            date: date(header.began),
            commit: commit(header),
            ..SavedRow::empty()
        };
        for experiment in &paper.experiment {
            for row in experiment.saved_claims(paper, &summary, &origin)? {
                self.put(row);
            }
            for row in experiment.saved_cells(&summary, &origin)? {
                self.put(row);
            }
        }
        self.sort(paper);
        Ok(())
    }

    /// Adds the lines of another file. Of two lines with the same identity the later one stays.
    pub(super) fn merge(&mut self, paper: &PaperSpec, other: SavedTable) {
        for row in other.rows {
            let is_newer = self.rows.iter().any(|old| row.replaces(old) && old.date > row.date);
            if !is_newer {
                self.put(row);
            }
        }
        self.sort(paper);
    }

    fn put(&mut self, row: SavedRow) {
        match self.rows.iter_mut().find(|old| row.replaces(old)) {
            Some(old) => *old = row,
            None => self.rows.push(row),
        }
    }

    /// Sorts by the order of the experiments, claims before cells.
    fn sort(&mut self, paper: &PaperSpec) {
        let order: Vec<String> = paper.with_headline().map(|experiment| experiment.name.clone()).collect();
        self.rows.sort_by_key(|row| {
            let place = order.iter().position(|name| *name == row.experiment);
            (place.unwrap_or(usize::MAX), row.claim.is_empty(), row.kind)
        });
    }

    /// Writes the file.
    pub(super) fn write(&self) -> Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        let lines: String = self.rows.iter().map(|row| row.line() + "\n").collect();
        fs::write(&self.path, format!("{COLUMNS}\n{lines}"))
            .map_err(|error| format!("{}: {error}", self.path.display()))?;
        eprintln!("saved: {}", self.path.display());
        Ok(())
    }
}

impl SavedRow {
    fn empty() -> SavedRow {
        SavedRow {
            experiment: String::new(),
            claim: String::new(),
            metric: String::new(),
            left: String::new(),
            right: String::new(),
            left_value: None,
            right_value: None,
            ratio: None,
            best: String::new(),
            verdict: String::new(),
            kind: SavedKind::Full,
            pairs: 0,
            scale: 1.0,
            rounds: 0,
            cores: 0,
            date: String::new(),
            commit: String::new(),
            note: String::new(),
        }
    }
}

impl PaperExperiment {
    /// Returns a line for each claim of which both sides were measured.
    fn saved_claims(
        &self,
        paper: &PaperSpec,
        summary: &RunSummary,
        origin: &SavedRow,
    ) -> Result<Vec<SavedRow>> {
        let rows = self.rows(summary, origin.scale)?;
        let rounds = rows.iter().flat_map(|row| row.rounds_of_all()).map(|record| record.round + 1).max();
        let saved = self.claim.iter().filter_map(|claim| {
            let [left, right] = claim.sides()?;
            let figures = claim.measure(paper, summary, &rows).ok()?;
            Some(SavedRow {
                experiment: self.name.clone(),
                claim: claim.says.clone(),
                metric: claim.metric.name().to_owned(),
                left,
                right,
                left_value: Some(figures.left),
                right_value: Some(figures.right),
                ratio: Some(figures.ratio),
                best: figures.best.clone(),
                verdict: claim.verdict(Some(&figures), origin.cores).words().to_owned(),
                rounds: rounds.unwrap_or(0),
                ..origin.clone()
            })
        });
        Ok(saved.collect())
    }

    /// Returns a line for each store and workload, with the median of its speed and of the metrics
    /// that claims compare.
    fn saved_cells(&self, summary: &RunSummary, origin: &SavedRow) -> Result<Vec<SavedRow>> {
        let mut saved = Vec::new();
        for row in self.rows(summary, origin.scale)? {
            for store in &summary.stores {
                for metric in ClaimMetric::ALL {
                    if metric != ClaimMetric::Speed && !self.claims_on(metric) {
                        continue;
                    }
                    let rounds: Vec<f64> =
                        row.rounds(&store.name, false).filter_map(|record| metric.of(record)).collect();
                    let Some(median) = crate::measure::median(&rounds) else { continue };
                    saved.push(SavedRow {
                        experiment: self.name.clone(),
                        metric: metric.name().to_owned(),
                        left: format!("{}:{}/{}", store.name, row.workload, row.threads),
                        left_value: Some(median),
                        pairs: row.pairs,
                        rounds: rounds.len() as u64,
                        ..origin.clone()
                    });
                }
            }
        }
        Ok(saved)
    }
}

/// Returns the commit of the working tree, or the version of the program that ran.
fn commit(header: &RunHeader) -> String {
    let asked = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    match asked {
        Ok(answer) if answer.status.success() => String::from_utf8_lossy(&answer.stdout).trim().to_owned(),
        _ => format!("version {}", header.version),
    }
}

/// Formats seconds since 1970 as year, month and day.
fn date(seconds: u64) -> String {
    let mut day = seconds / 86_400;
    let mut year = 1970;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    while day >= 365 + u64::from(is_leap(year)) {
        day -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::paper::claim::tests::claim;
    use crate::paper::select;
    use crate::report::tests::stored;

    /// Returns a paper with one experiment over the stored run, of 20,000 pairs.
    pub(in super::super) fn tiny_paper() -> PaperSpec {
        let mut paper = select("flatstore").unwrap().remove(0);
        let mut experiment = paper.headline.clone();
        experiment.name = "fig-1".to_owned();
        experiment.loads = vec!["get-uniform".to_owned(), "update-zipf".to_owned()];
        (experiment.pairs, experiment.threads) = (20_000, Vec::new());
        experiment.claim = vec![claim(["ours:get-uniform", "best:get-uniform"], 0.001)];
        paper.experiment = vec![experiment];
        paper
    }

    /// Returns a line of the first claim of [`tiny_paper`].
    pub(in super::super) fn sample(claim: &crate::paper::PaperClaim, ratio: f64) -> SavedRow {
        let [left, right] = claim.sides().unwrap_or_default();
        SavedRow {
            experiment: "fig-1".to_owned(),
            claim: claim.says.clone(),
            metric: "speed".to_owned(),
            left,
            right,
            left_value: Some(ratio),
            right_value: Some(1.0),
            ratio: Some(ratio),
            cores: 2,
            ..SavedRow::empty()
        }
    }

    fn table() -> SavedTable {
        SavedTable { path: PathBuf::from("/none"), rows: Vec::new() }
    }

    #[test]
    fn a_run_saves_its_claims_and_its_cells_and_replaces_an_older_one() {
        let (paper, mut saved) = (tiny_paper(), table());
        saved.add(&paper, &stored(), 1.0, false).unwrap();
        let claims: Vec<&SavedRow> = saved.rows.iter().filter(|row| !row.claim.is_empty()).collect();
        assert_eq!((claims.len(), &*claims[0].verdict, &*claims[0].best), (1, "holds", "lmdb"));
        assert_eq!((claims[0].cores, claims[0].rounds, &*claims[0].date), (2, 2, "2026-11-21"));
        assert!(saved.rows.iter().any(|row| row.left == "flat:update-zipf/2" && row.right.is_empty()));
        let count = saved.rows.len();
        saved.add(&paper, &stored(), 1.0, false).unwrap();
        assert_eq!(saved.rows.len(), count);
        saved.add(&paper, &stored(), 1.0, true).unwrap();
        assert_eq!(saved.rows.len(), 2 * count, "a quick run replaces no full one");
    }

    #[test]
    fn files_read_as_they_were_written_and_damaged_ones_are_refused_with_the_line() {
        let dir = std::env::temp_dir().join(format!("sheaf-bench-saved-{}", std::process::id()));
        let path = dir.join("flatstore.tsv");
        let mut saved = SavedTable::open(&path).unwrap();
        saved.add(&tiny_paper(), &stored(), 1.0, false).unwrap();
        saved.write().unwrap();
        let again = SavedTable::open(&path).unwrap();
        assert_eq!(again.rows.len(), saved.rows.len());
        again.write().unwrap();
        assert_eq!(SavedTable::open(&path).unwrap().rows, again.rows);
        let text = fs::read_to_string(&path).unwrap();
        for (damaged, reason) in [
            (text.replacen("fig-1\t", "", 1), "line 2: not 18 fields"),
            (text.replacen("\tfull\t", "\thalf\t", 1), "unknown kind"),
            (text.replacen("experiment", "figure", 1), "columns"),
        ] {
            fs::write(&path, damaged).unwrap();
            let error = SavedTable::open(&path).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn merging_keeps_the_later_line_and_the_notes() {
        let paper = tiny_paper();
        let note = SavedRow {
            experiment: "fig-1".to_owned(),
            claim: "so".to_owned(),
            kind: SavedKind::Note,
            note: "75 ×".to_owned(),
            ..SavedRow::empty()
        };
        let (mut old, mut new) = (table(), table());
        old.add(&paper, &stored(), 1.0, false).unwrap();
        old.rows.push(note);
        new.add(&paper, &stored(), 1.0, false).unwrap();
        for row in &mut new.rows {
            row.date = "2026-12-24".to_owned();
        }
        let count = old.rows.len();
        let older = SavedTable { path: PathBuf::new(), rows: old.rows.clone() };
        old.merge(&paper, new);
        assert_eq!(old.rows.len(), count);
        assert_eq!(old.rows.iter().filter(|row| row.date == "2026-12-24").count(), count - 1);
        old.merge(&paper, older);
        assert_eq!(old.rows.iter().filter(|row| row.date == "2026-12-24").count(), count - 1);
        assert!(old.rows.iter().any(|row| row.note == "75 ×"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_798_675_199, "2026-12-30"),
            (1_798_761_600, "2027-01-01"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }
}
