//! # Results: the figure of each store in each round, and ratios within rounds

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::measure::median;
use crate::promise_table::{self, number};
use crate::subjects::BenchSubject;

/// Thousand operations per second, or seconds, by row and store. Each has one value per round, in
/// the order of the rounds.
pub(super) struct FigureResults {
    /// Engine that the figures are measured for.
    ours: BenchSubject,
    values: BTreeMap<(&'static str, BenchSubject), Vec<f64>>,
    /// Rows in the order of their first value.
    rows: Vec<&'static str>,
}

/// Ratio of our engine to the best of some peers.
pub(super) struct PeerRatio {
    /// Median over the rounds of ours / best.
    pub(super) value: f64,
    /// Figures behind the ratio, in words.
    pub(super) detail: String,
}

impl FigureResults {
    pub(super) fn new(ours: BenchSubject) -> FigureResults {
        FigureResults { ours, values: BTreeMap::new(), rows: Vec::new() }
    }

    pub(super) fn add(&mut self, row: &'static str, subject: BenchSubject, value: f64) {
        if !self.rows.contains(&row) {
            self.rows.push(row);
        }
        self.values.entry((row, subject)).or_default().push(value);
    }

    pub(super) fn rounds_of(&self, row: &'static str, subject: BenchSubject) -> &[f64] {
        self.values.get(&(row, subject)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn median(&self, row: &'static str, subject: BenchSubject) -> Option<f64> {
        median(self.rounds_of(row, subject))
    }

    /// Returns the median over the rounds of our figure divided by that of the best of `peers`.
    /// Returns `None` if none of them ran.
    pub(super) fn ratio(&self, row: &'static str, peers: &[BenchSubject]) -> Option<PeerRatio> {
        let ours = self.rounds_of(row, self.ours);
        let per_round: Vec<f64> = ours
            .iter()
            .enumerate()
            .filter_map(|(round, our)| {
                let best = peers
                    .iter()
                    .filter_map(|peer| self.rounds_of(row, *peer).get(round))
                    .copied()
                    .reduce(f64::max)?;
                Some(our / best)
            })
            .collect();
        let best = peers
            .iter()
            .filter_map(|peer| Some((*peer, self.median(row, *peer)?)))
            .max_by(|a, b| a.1.total_cmp(&b.1))?;
        let detail = format!("{} k/s; {} {} k/s", number(median(ours)?), best.0.title(), number(best.1));
        Some(PeerRatio { value: median(&per_round)?, detail })
    }

    /// Formats a table of medians with their extremes: a row for each measurement and a column for
    /// each store.
    pub(super) fn markdown(&self) -> String {
        let every = [self.ours].into_iter().chain(BenchSubject::peers()).chain([BenchSubject::NULL]);
        let subjects: Vec<BenchSubject> =
            every.filter(|subject| self.values.keys().any(|(_, other)| other == subject)).collect();
        let head: Vec<String> =
            [String::new()].into_iter().chain(subjects.iter().map(|s| s.title())).collect();
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                [(*row).to_owned()].into_iter().chain(subjects.iter().map(|s| self.cell(row, *s))).collect()
            })
            .collect();
        promise_table::markdown(&head, &rows)
    }

    fn cell(&self, row: &'static str, subject: BenchSubject) -> String {
        let values = self.rounds_of(row, subject);
        let Some(middle) = median(values) else { return "–".to_owned() };
        if values.len() == 1 {
            return number(middle);
        }
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        let most = values.iter().copied().fold(0.0, f64::max);
        format!("{} ({}–{})", number(middle), number(least), number(most))
    }

    /// Returns all values as JSON.
    pub(super) fn json(&self) -> Value {
        let of_row = |row: &&'static str| {
            let samples = self.values.iter().filter(|((other, _), _)| other == row);
            json!({
                "what": row,
                "rounds": samples.map(|((_, subject), values)| (subject.name(), values)).collect::<BTreeMap<_, _>>(),
            })
        };
        Value::Array(self.rows.iter().map(of_row).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_taken_within_rounds_against_the_best_of_the_round() {
        let mut results = FigureResults::new(BenchSubject::FLAT);
        for (ours, lmdb, redb) in [(10.0, 5.0, 1.0), (30.0, 10.0, 5.0), (8.0, 1.0, 2.0)] {
            results.add("get", BenchSubject::FLAT, ours);
            results.add("get", BenchSubject::LMDB, lmdb);
            results.add("get", BenchSubject::LEVELDB, redb);
        }
        let ratio = results.ratio("get", &[BenchSubject::LMDB, BenchSubject::LEVELDB]).unwrap();
        assert!((ratio.value - 3.0).abs() < 1e-9);
        assert_eq!(ratio.detail, "10 k/s; LMDB 5 k/s");
        assert!(results.ratio("get", &[BenchSubject::ROCKSDB]).is_none());
        assert!(results.ratio("put", &[BenchSubject::LMDB, BenchSubject::LEVELDB]).is_none());
        assert!(results.markdown().contains("10 (8–30)"));
    }
}
