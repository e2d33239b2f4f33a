//! # Figures: measured values with the values they must reach
//!
//! A case prints each figure as one line on stdout; the runner parses the lines. All other lines
//! of a case are shown as they are.

use std::fmt;

/// First word of the line of a figure.
const MARK: &str = "FIGURE";

/// Condition that a value must meet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Required {
    /// The value must not be larger.
    AtMost(f64),
    /// The value must not be smaller.
    AtLeast(f64),
    /// The value is shown only.
    Nothing,
}

impl Required {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Required::AtMost(bound) => value <= bound,
            Required::AtLeast(bound) => value >= bound,
            Required::Nothing => true,
        }
    }
}

/// A measured value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    pub(crate) required: Required,
    /// Factor by which the short form relaxes the condition: wall time on a shared machine.
    pub(crate) slack: f64,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &str) -> Figure {
        let (name, unit) = (name.into(), unit.to_owned());
        Figure { name, value, unit, required: Required::Nothing, slack: 1.0 }
    }

    pub(crate) fn at_most(mut self, bound: f64) -> Figure {
        self.required = Required::AtMost(bound);
        self
    }

    pub(crate) fn at_least(mut self, bound: f64) -> Figure {
        self.required = Required::AtLeast(bound);
        self
    }

    /// Relaxes the condition by `factor` in the short form, which runs beside other work.
    pub(crate) fn slack(mut self, factor: f64) -> Figure {
        self.slack = factor;
        self
    }

    /// Prints the line that the runner parses.
    pub(crate) fn report(&self) {
        let (kind, bound) = match self.required {
            Required::AtMost(bound) => ("<=", bound),
            Required::AtLeast(bound) => (">=", bound),
            Required::Nothing => ("-", 0.0),
        };
        let Figure { name, value, unit, slack, .. } = self;
        println!("{MARK}\t{name}\t{value}\t{unit}\t{kind}\t{bound}\t{slack}");
    }

    /// Parses a line of a case; `None` if it is not the line of a figure.
    pub(crate) fn parse(line: &str) -> Option<Figure> {
        let parts: Vec<&str> = line.split('\t').collect();
        let [MARK, name, value, unit, kind, bound, slack] = parts[..] else { return None };
        let bound = bound.parse().ok()?;
        let required = match kind {
            "<=" => Required::AtMost(bound),
            ">=" => Required::AtLeast(bound),
            _ => Required::Nothing,
        };
        let (value, slack) = (value.parse().ok()?, slack.parse().ok()?);
        Some(Figure { name: name.to_owned(), value, unit: unit.to_owned(), required, slack })
    }

    /// Whether the value meets its condition; `is_relaxed` applies the slack.
    pub(crate) fn is_met(&self, is_relaxed: bool) -> bool {
        let slack = if is_relaxed { self.slack } else { 1.0 };
        match self.required {
            Required::AtMost(bound) => Required::AtMost(bound * slack).is_met_by(self.value),
            Required::AtLeast(bound) => Required::AtLeast(bound / slack).is_met_by(self.value),
            Required::Nothing => true,
        }
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Figure { name, value, unit, required, .. } = self;
        let digits = if value.abs() < 10.0 && value.fract() != 0.0 { 3 } else { 0 };
        write!(f, "{name:<46} {value:>12.digits$} {unit:<8}")?;
        match required {
            Required::AtMost(bound) => write!(f, " <= {bound}"),
            Required::AtLeast(bound) => write!(f, " >= {bound}"),
            Required::Nothing => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_meets_its_bound_and_slack_applies_to_the_short_form_only() {
        let slow = Figure::new("wait", 12.0, "ms").at_most(5.0).slack(3.0);
        assert!(!slow.is_met(false) && slow.is_met(true));
        let rate = Figure::new("rate", 20.0, "/s").at_least(30.0).slack(2.0);
        assert!(!rate.is_met(false) && rate.is_met(true));
        assert!(Figure::new("seen", 1e9, "").is_met(false));
    }

    #[test]
    fn a_line_that_is_no_figure_is_none() {
        assert_eq!(Figure::parse("FIGURE\tname\tmany\tms\t<=\t1\t1"), None);
        assert_eq!(Figure::parse("loading"), None);
        let line = "FIGURE\twait\t12.5\tms\t<=\t5\t3";
        let figure = Figure::new("wait", 12.5, "ms").at_most(5.0).slack(3.0);
        assert_eq!(Figure::parse(line), Some(figure));
    }
}
