//! # Progress: on standard error, a bar with the time left at a terminal, lines elsewhere
//!
//! The time left is the share of the plan's estimate that is still to come, scaled by how long the
//! part already done has taken.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

static START: OnceLock<Instant> = OnceLock::new();
static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// Says what is being done.
pub(crate) fn print_status(text: &str) {
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs();
    let line = format!("[{:>3}:{:02}] {text}", seconds / 60, seconds % 60);
    match BAR.get() {
        Some(bar) if !bar.is_finished() => bar.println(line),
        _ => eprintln!("{line}"),
    }
}

/// How far a plan is.
pub(crate) struct PlanProgress {
    began: Instant,
    /// Seconds the plan was estimated at, and those of what is done.
    estimated: f64,
    done: f64,
}

/// The bar counts tenths of estimated seconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a plan")]
fn ticks(seconds: f64) -> u64 {
    (seconds.max(0.0) * 10.0) as u64
}

impl PlanProgress {
    /// Of a plan that should take so many seconds.
    pub(crate) fn new(estimated: f64) -> PlanProgress {
        if std::io::stderr().is_terminal() {
            let bar = BAR.get_or_init(|| ProgressBar::new(ticks(estimated)));
            if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan/238} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
        }
        PlanProgress { began: Instant::now(), estimated, done: 0.0 }
    }

    /// This comes next.
    pub(crate) fn next(&self, what: &str) {
        if let Some(bar) = BAR.get() {
            bar.set_message(format!("{} left  {what}", time(self.left())));
        }
    }

    /// A part is done that was estimated at so many seconds; `outcome` came of it.
    pub(crate) fn done(&mut self, seconds: f64, outcome: &str) {
        self.done += seconds;
        match BAR.get() {
            Some(bar) => {
                bar.set_position(ticks(self.done));
                print_status(outcome);
            }
            None => print_status(&format!(
                "{:>3.0} %, {} left: {outcome}",
                100.0 * self.share(),
                time(self.left())
            )),
        }
    }

    /// Nothing is left to do.
    pub(crate) fn finish(&self) {
        if let Some(bar) = BAR.get() {
            bar.finish_and_clear();
        }
    }

    fn share(&self) -> f64 {
        (self.done / self.estimated.max(1e-9)).min(1.0)
    }

    fn left(&self) -> f64 {
        let ahead = (self.estimated - self.done).max(0.0);
        // Until a twentieth is done the estimate is the better guess.
        if self.share() < 0.05 { ahead } else { ahead * self.began.elapsed().as_secs_f64() / self.done }
    }
}

/// `1:02:03`, `2:03`.
fn time(seconds: f64) -> String {
    let seconds = ticks(seconds) / 10;
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_clocks_do() {
        assert_eq!(time(7.0), "0:07");
        assert_eq!(time(125.9), "2:05");
        assert_eq!(time(3725.0), "1:02:05");
        assert_eq!(time(-1.0), "0:00");
    }

    #[test]
    fn the_time_left_follows_what_was_really_taken() {
        let mut progress = PlanProgress { began: Instant::now(), estimated: 100.0, done: 0.0 };
        assert!((progress.left() - 100.0).abs() < 1e-9);
        progress.done = 50.0; // in no time at all: the rest will take none either
        assert!(progress.left() < 1.0);
    }
}
