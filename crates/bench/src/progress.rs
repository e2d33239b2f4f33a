//! # Progress: a bar with the time left on a terminal, otherwise lines on standard error
//!
//! The time left is the estimate of the remaining work, multiplied by the ratio of real to
//! estimated time of the work already done.

use std::io::IsTerminal;
use std::sync::OnceLock;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};

static START: OnceLock<Instant> = OnceLock::new();
static BAR: OnceLock<ProgressBar> = OnceLock::new();

/// Prints a line with the elapsed time.
pub(crate) fn print_status(text: &str) {
    let seconds = START.get_or_init(Instant::now).elapsed().as_secs();
    let line = format!("[{:>3}:{:02}] {text}", seconds / 60, seconds % 60);
    match BAR.get() {
        Some(bar) if !bar.is_finished() => bar.println(line),
        _ => eprintln!("{line}"),
    }
}

/// Progress of a plan.
pub(crate) struct PlanProgress {
    began: Instant,
    /// Estimated seconds of the whole plan, and of its finished parts.
    estimated: f64,
    done: f64,
}

/// Returns the ticks of the bar: tenths of estimated seconds.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "seconds of a plan")]
fn ticks(seconds: f64) -> u64 {
    (seconds.max(0.0) * 10.0) as u64
}

impl PlanProgress {
    /// Starts the progress of a plan with an estimate in seconds.
    pub(crate) fn new(estimated: f64) -> PlanProgress {
        if std::io::stderr().is_terminal() {
            let bar = BAR.get_or_init(|| ProgressBar::new(ticks(estimated)));
            if let Ok(style) = ProgressStyle::with_template("{wide_bar:.cyan/238} {percent:>3} %  {msg}") {
                bar.set_style(style);
            }
        }
        PlanProgress { began: Instant::now(), estimated, done: 0.0 }
    }

    /// Shows the part that starts now.
    pub(crate) fn next(&self, what: &str) {
        if let Some(bar) = BAR.get() {
            bar.set_message(format!("{} left  {what}", time(self.left())));
        }
    }

    /// Records that a part with an estimate of `seconds` is finished, and prints `outcome`.
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

    /// Removes the bar at the end of the plan.
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
        // Until a twentieth is done, the estimate is more reliable than the measured speed.
        if self.share() < 0.05 { ahead } else { ahead * self.began.elapsed().as_secs_f64() / self.done }
    }
}

/// Formats a time as `1:02:03` or `2:03`.
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
        progress.done = 50.0; // took no time, so that the rest has none left
        assert!(progress.left() < 1.0);
    }
}
