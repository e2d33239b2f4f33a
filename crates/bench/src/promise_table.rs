//! # Promise table: promised figures, measured figures, and verdicts

use serde_json::{Value, json};

/// Direction of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BoundKind {
    AtLeast,
    AtMost,
}

/// A promised figure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromisedFigure {
    /// Name of the figure.
    pub(crate) what: &'static str,
    pub(crate) bound: BoundKind,
    /// Unit after the number, such as `× LMDB` or `bytes`.
    pub(crate) unit: &'static str,
    pub(crate) must: f64,
    pub(crate) aim: Option<f64>,
}

/// A promise with its measurement.
#[derive(Clone, Debug)]
pub(crate) struct PromiseRow {
    pub(crate) promise: PromisedFigure,
    /// Measured figure, or `None` without a figure to compare with.
    pub(crate) measured: Option<f64>,
    /// Figures that the measured one is computed from.
    pub(crate) detail: String,
}

impl PromisedFigure {
    /// Returns the row of this promise.
    pub(crate) fn measured(self, measured: Option<f64>, detail: impl Into<String>) -> PromiseRow {
        PromiseRow { promise: self, measured, detail: detail.into() }
    }

    fn is_met(self, bound: f64, measured: f64) -> bool {
        match self.bound {
            BoundKind::AtLeast => measured >= bound,
            BoundKind::AtMost => measured <= bound,
        }
    }

    fn shown(self, bound: f64) -> String {
        let sign = if self.bound == BoundKind::AtLeast { "≥" } else { "≤" };
        format!("{sign} {} {}", number(bound), self.unit).trim_end().to_owned()
    }
}

impl PromiseRow {
    /// Returns the verdict in words.
    pub(crate) fn verdict(&self) -> String {
        let Some(measured) = self.measured else { return "not measured".to_owned() };
        let promise = self.promise;
        if promise.aim.is_some_and(|aim| promise.is_met(aim, measured)) {
            return "holds, aim reached".to_owned();
        }
        if promise.is_met(promise.must, measured) {
            return "holds".to_owned();
        }
        let ratio = if promise.bound == BoundKind::AtLeast {
            promise.must / measured
        } else {
            measured / promise.must
        };
        format!("**missed by a factor of {}**", number(ratio))
    }

    fn cells(&self) -> [String; 5] {
        let measured = match self.measured {
            Some(measured) => format!("{} {}", number(measured), self.promise.unit).trim_end().to_owned(),
            None => "–".to_owned(),
        };
        [
            self.promise.what.to_owned(),
            self.promise.shown(self.promise.must),
            self.promise.aim.map_or(String::new(), |aim| self.promise.shown(aim)),
            measured,
            self.verdict(),
        ]
    }

    /// Returns the row as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "what": self.promise.what,
            "unit": self.promise.unit,
            "bound": if self.promise.bound == BoundKind::AtLeast { "at least" } else { "at most" },
            "must": self.promise.must,
            "aim": self.promise.aim,
            "measured": self.measured,
            "holds": self.measured.map(|measured| self.promise.is_met(self.promise.must, measured)),
            "detail": self.detail,
        })
    }
}

/// Formats a number with three significant digits, without trailing zeros.
pub(crate) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "∞".to_owned();
    }
    let places = match value.abs() {
        x if x >= 100.0 || x == 0.0 => 0,
        x if x >= 10.0 => 1,
        x if x >= 1.0 => 2,
        x if x >= 0.1 => 3,
        _ => 5,
    };
    let text = format!("{value:.places$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Formats a Markdown table. Padded columns make it readable as plain text too.
pub(crate) fn markdown(head: &[String], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().map(Vec::as_slice).chain([head]).filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = cells
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell}{}", " ".repeat(width - cell.chars().count())))
            .collect();
        format!("| {} |\n", padded.join(" | "))
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let body: String = rows.iter().map(|row| line(row)).collect();
    line(head) + &line(&rule) + &body
}

/// Formats the table of figures, followed by the details of each figure.
pub(crate) fn figures(rows: &[PromiseRow]) -> String {
    let head = ["figure", "must", "aim", "measured", "verdict"].map(str::to_owned);
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells().to_vec()).collect();
    let behind: String = rows
        .iter()
        .filter(|row| !row.detail.is_empty())
        .map(|row| format!("- {}: {}\n", row.promise.what, row.detail))
        .collect();
    format!("{}\nDetails:\n\n{behind}", markdown(&head, &cells))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: PromisedFigure =
        PromisedFigure { what: "get", bound: BoundKind::AtLeast, unit: "× LMDB", must: 2.0, aim: Some(3.0) };
    const SMALL: PromisedFigure =
        PromisedFigure { what: "size", bound: BoundKind::AtMost, unit: "bytes", must: 24.0, aim: None };

    #[test]
    fn verdicts_say_whether_and_by_how_much() {
        for (row, verdict) in [
            (FAST.measured(Some(3.0), ""), "holds, aim reached"),
            (FAST.measured(Some(2.0), ""), "holds"),
            (FAST.measured(Some(1.6), ""), "**missed by a factor of 1.25**"),
            (FAST.measured(None, ""), "not measured"),
            (SMALL.measured(Some(24.0), ""), "holds"),
            (SMALL.measured(Some(36.0), ""), "**missed by a factor of 1.5**"),
        ] {
            assert_eq!(row.verdict(), verdict);
        }
    }

    #[test]
    fn numbers_have_three_digits() {
        for (value, text) in [
            (1234.5, "1234"),
            (99.96, "100"),
            (12.34, "12.3"),
            (2.0, "2"),
            (0.7, "0.7"),
            (0.1234, "0.123"),
            (0.0, "0"),
            (100.0, "100"),
            (0.00021, "0.00021"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn the_table_is_markdown_and_aligned() {
        let text = figures(&[FAST.measured(Some(2.5), "10 k/s"), SMALL.measured(Some(12.0), "")]);
        let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 4);
        assert!(text.contains("- get: 10 k/s\n"));
        assert!(lines.iter().all(|line| line.chars().count() == lines[0].chars().count()), "{text}");
        assert!(lines[2].contains("≥ 2 × LMDB") && lines[2].contains("2.5 × LMDB "), "{text}");
    }
}
