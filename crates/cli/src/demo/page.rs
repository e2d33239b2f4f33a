//! # Page: output of the demo

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anstream::AutoStream;
use anstyle::Style;

use crate::failure::{Failure, Result};
use crate::output::{CAUTION, GOOD, HEADING, HINT, NAME, Stopwatch, time};

/// Column where the names of steps end and their lines begin.
const MARGIN: usize = 10;
/// Column where the times end.
const WIDTH: usize = 96;

/// Prints steps, times and verdicts.
pub(crate) struct DemoPage {
    out: AutoStream<std::io::Stdout>,
    watch: Stopwatch,
    /// Name of a step that has no line yet.
    step: &'static str,
    failed_promises: Vec<&'static str>,
}

impl DemoPage {
    pub(crate) fn new() -> DemoPage {
        DemoPage { out: anstream::stdout(), watch: Stopwatch::start(), step: "", failed_promises: Vec::new() }
    }

    pub(crate) fn title(&mut self, database: &Path, source: &str) -> Result {
        let version = env!("CARGO_PKG_VERSION");
        writeln!(self.out, "{HEADING}Sheaf {version}{HEADING:#}  {HINT}{}{HINT:#}", database.display())?;
        writeln!(self.out, "{HINT}on {source}{HINT:#}")?;
        Ok(())
    }

    /// Starts a step. Its name appears in the margin of its first line.
    pub(crate) fn step(&mut self, name: &'static str) -> Result {
        self.step = name;
        Ok(writeln!(self.out)?)
    }

    /// Prints a line of a step, with the time that it took.
    pub(crate) fn line(&mut self, text: &str, took: Option<Duration>) -> Result {
        self.print_line(HINT, " ", text, took)
    }

    /// Prints a guarantee and whether it held.
    pub(crate) fn verdict(&mut self, holds: bool, promise: &'static str, found: &str) -> Result {
        if holds {
            return self.print_line(GOOD, "✓", found, None);
        }
        self.failed_promises.push(promise);
        self.print_line(CAUTION, "✗", &format!("{found}: {promise} is broken"), None)
    }

    fn print_line(&mut self, style: Style, mark: &str, text: &str, took: Option<Duration>) -> Result {
        let step = std::mem::take(&mut self.step);
        write!(self.out, "{NAME}{step:<MARGIN$}{NAME:#}{style}{mark}{style:#} {text}")?;
        if let Some(took) = took {
            let gap = WIDTH.saturating_sub(MARGIN + 2 + text.chars().count()).max(2);
            write!(self.out, "{HINT}{:>gap$}{HINT:#}", time(took))?;
        }
        Ok(writeln!(self.out)?)
    }

    /// Prints the total time, or fails with the guarantees that did not hold.
    pub(crate) fn end(mut self, left_in: Option<&Path>) -> Result {
        let took = time(self.watch.elapsed());
        if !self.failed_promises.is_empty() {
            return Err(Failure::Refused(format!(
                "the demo found broken guarantees: {}",
                self.failed_promises.join(", ")
            )));
        }
        let place = match left_in {
            Some(dir) => format!("`sheaf stats {}` shows the database", dir.display()),
            None => "the temporary directory was removed".to_owned(),
        };
        writeln!(self.out, "\n{GOOD}All guarantees held.{GOOD:#} {took} in total; {place}.")?;
        let put = "sheaf put my.db ada lovelace && sheaf get my.db ada";
        Ok(writeln!(self.out, "{HINT}Next:{HINT:#} {put}   {HINT}(target/release/sheaf){HINT:#}")?)
    }
}
