//! # Page: output of the demo

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anstream::AutoStream;
use anstyle::Style;

use crate::failure::{Failure, Result};
use crate::output::{CAUTION, GOOD, HEADING, HINT, NAME, Watch, time};

/// Column where the names of steps end and their lines begin.
const MARGIN: usize = 10;
/// Column where the times end.
const WIDTH: usize = 96;

/// Prints steps, times and verdicts.
pub(crate) struct Page {
    out: AutoStream<std::io::Stdout>,
    watch: Watch,
    /// Name of a step that has no line yet.
    step: &'static str,
    broken: Vec<&'static str>,
}

impl Page {
    pub(crate) fn new() -> Page {
        Page { out: anstream::stdout(), watch: Watch::start(), step: "", broken: Vec::new() }
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
        self.mark(HINT, " ", text, took)
    }

    /// Prints a guarantee and whether it held.
    pub(crate) fn verdict(&mut self, holds: bool, promise: &'static str, found: &str) -> Result {
        if holds {
            return self.mark(GOOD, "✓", found, None);
        }
        self.broken.push(promise);
        self.mark(CAUTION, "✗", &format!("{found}: {promise} is broken"), None)
    }

    fn mark(&mut self, style: Style, mark: &str, text: &str, took: Option<Duration>) -> Result {
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
        if !self.broken.is_empty() {
            return Err(Failure::Refused(format!(
                "the demo found broken guarantees: {}",
                self.broken.join(", ")
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
