//! # Figures: measured values with their required values
//!
//! A case prints each figure as one line on stdout, and the runner parses the lines. The runner
//! shows all other lines of a case unchanged.

use std::fmt;

/// First word of a line with a figure.
const LINE_PREFIX: &str = "FIGURE";

/// Required value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Requirement {
    /// The value must not be larger.
    AtMost(f64),
    /// The value must not be smaller.
    AtLeast(f64),
    /// The value is only shown.
    None,
}

impl Requirement {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Requirement::AtMost(bound) => value <= bound,
            Requirement::AtLeast(bound) => value >= bound,
            Requirement::None => true,
        }
    }
}

/// Measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldFigure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) required: Requirement,
    /// Factor by which the short form relaxes the required value, because it measures wall time on
    /// a shared machine.
    pub(crate) slack: f64,
}

impl FieldFigure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> FieldFigure {
        let (name, unit) = (name.into(), unit.to_owned());
        FieldFigure { name, value, unit, required: Requirement::None, slack: 1.0 }
    }

    pub(crate) fn at_most(mut self, bound: f64) -> FieldFigure {
        self.required = Requirement::AtMost(bound);
        self
    }

    pub(crate) fn at_least(mut self, bound: f64) -> FieldFigure {
        self.required = Requirement::AtLeast(bound);
        self
    }

    /// Relaxes the required value by `factor` in the short form, which runs in parallel with other
    /// work.
    pub(crate) fn slack(mut self, factor: f64) -> FieldFigure {
        self.slack = factor;
        self
    }

    /// Prints the line that the runner parses.
    pub(crate) fn report(&self) {
        let (kind, bound) = match self.required {
            Requirement::AtMost(bound) => ("<=", bound),
            Requirement::AtLeast(bound) => (">=", bound),
            Requirement::None => ("-", 0.0),
        };
        let FieldFigure { name, value, unit, slack, .. } = self;
        println!("{LINE_PREFIX}\t{name}\t{value}\t{unit}\t{kind}\t{bound}\t{slack}");
    }

    /// Parses a line of a case. Returns `None` if it has no figure.
    pub(crate) fn parse(line: &str) -> Option<FieldFigure> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [LINE_PREFIX, name, value, unit, kind, bound, slack] = parts[..] else { return None };
        let bound = bound.parse().ok()?;
        let required = match kind {
            "<=" => Requirement::AtMost(bound),
            ">=" => Requirement::AtLeast(bound),
            _ => Requirement::None,
        };
        let (value, slack) = (value.parse().ok()?, slack.parse().ok()?);
        Some(FieldFigure { name: name.to_owned(), value, unit: unit.to_owned(), required, slack })
    }

    /// Returns whether the value meets its required value. `is_relaxed` applies the slack.
    pub(crate) fn is_met(&self, is_relaxed: bool) -> bool {
        let slack = if is_relaxed { self.slack } else { 1.0 };
        match self.required {
            Requirement::AtMost(bound) => Requirement::AtMost(bound * slack).is_met_by(self.value),
            Requirement::AtLeast(bound) => Requirement::AtLeast(bound / slack).is_met_by(self.value),
            Requirement::None => true,
        }
    }
}

impl fmt::Display for FieldFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FieldFigure { name, value, unit, required, .. } = self;
        let digits = if value.abs() < 10.0 && value.fract() != 0.0 { 3 } else { 0 };
        write!(f, "{name:<46} {value:>12.digits$} {unit:<8}")?;
        match required {
            Requirement::AtMost(bound) => write!(f, " <= {bound}"),
            Requirement::AtLeast(bound) => write!(f, " >= {bound}"),
            Requirement::None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_meets_its_bound_and_slack_applies_to_the_short_form_only() {
        let slow = FieldFigure::new("wait", 12.0, "ms").at_most(5.0).slack(3.0);
        assert!(!slow.is_met(false) && slow.is_met(true));
        let rate = FieldFigure::new("rate", 20.0, "/s").at_least(30.0).slack(2.0);
        assert!(!rate.is_met(false) && rate.is_met(true));
        assert!(FieldFigure::new("seen", 1e9, "").is_met(false));
    }

    #[test]
    fn a_line_that_is_no_figure_is_none() {
        assert_eq!(FieldFigure::parse("FIGURE\tname\tmany\tms\t<=\t1\t1"), None);
        assert_eq!(FieldFigure::parse("loading"), None);
        let line = "FIGURE\twait\t12.5\tms\t<=\t5\t3";
        let figure = FieldFigure::new("wait", 12.5, "ms").at_most(5.0).slack(3.0);
        assert_eq!(FieldFigure::parse(line), Some(figure));
    }
}
