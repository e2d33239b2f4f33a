//! # Totals of a harness run
//!
//! Every harness has one entry point, `run(subject, seed, budget) -> Totals`. A CI test and a
//! campaign of hours differ only in their [`Budget`], and their figures can be added and recorded.

use std::fmt;

use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::disk::Disk;
use sheaf_platform::disk::real::RealDisk;

/// Limits of a harness run.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Maximum duration in seconds.
    pub seconds: f64,
    /// Maximum number of cases.
    pub cases: u64,
    /// Number of threads, if the harness can use several.
    pub workers: usize,
}

impl Budget {
    /// Returns a budget of seconds for one thread.
    #[must_use]
    pub fn seconds(seconds: f64) -> Budget {
        Budget { seconds, cases: u64::MAX, workers: 1 }
    }

    /// Returns a budget of cases for one thread, without a time limit.
    #[must_use]
    pub fn cases(cases: u64) -> Budget {
        Budget { seconds: f64::INFINITY, cases, workers: 1 }
    }

    /// Returns this budget for a number of threads.
    #[must_use]
    pub fn workers(self, workers: usize) -> Budget {
        Budget { workers: workers.max(1), ..self }
    }
}

/// One violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HarnessFailure {
    /// Shell command that runs the case again.
    pub replay: String,
    /// Description of the violation.
    pub message: String,
}

/// Figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Name of the harness.
    pub harness: String,
    /// Engine under test.
    pub engine: String,
    /// Cases tried, in the harness's own unit.
    pub cases: u64,
    /// Distinct cases among them, if the harness can tell; otherwise `cases`.
    pub distinct: u64,
    /// Duration in seconds.
    pub seconds: f64,
    /// First violations.
    pub failures: Vec<HarnessFailure>,
}

impl Totals {
    /// Returns totals without cases.
    #[must_use]
    pub fn new(harness: &str, engine: &str) -> Totals {
        Totals { harness: harness.into(), engine: engine.into(), ..Totals::default() }
    }

    /// Adds the figures of another part of the same run. Durations are added: if the parts ran in
    /// parallel, the caller must correct `seconds`.
    pub fn add(&mut self, other: Totals) {
        self.cases += other.cases;
        self.distinct += other.distinct;
        self.seconds += other.seconds;
        self.failures.extend(other.failures);
    }

    /// Returns the cases per second.
    #[must_use]
    pub fn cases_per_second(&self) -> f64 {
        self.cases as f64 / self.seconds.max(1e-9)
    }

    /// Prints the figures. For tests.
    ///
    /// # Panics
    ///
    /// Panics if there is a violation, with every replay line, or if fewer than `at_least` cases
    /// were tried.
    pub fn must_hold(&self, at_least: u64) {
        println!("{self}");
        let failures = self.failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        assert!(self.failures.is_empty(), "{self}\n{failures}");
        assert!(self.cases >= at_least, "{self}: at least {at_least} cases were wanted");
    }
}

impl fmt::Display for HarnessFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  replay: {}", self.message, self.replay)
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { harness, engine, cases, distinct, seconds, failures } = self;
        let rate = self.cases_per_second();
        write!(
            f,
            "{harness} {engine}: {cases} cases ({distinct} different), {} wrong, {seconds:.1} s, {rate:.0}/s",
            failures.len()
        )
    }
}

/// Measures wall-clock seconds.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Duration);

impl Stopwatch {
    /// Starts a stopwatch.
    #[must_use]
    pub fn start() -> Stopwatch {
        Stopwatch(SystemClock.now())
    }

    /// Returns the seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (SystemClock.now() - self.0).as_secs_f64()
    }
}

/// Measures the CPU seconds of this thread, which other load on the machine does not increase. On
/// Windows they are 0.
#[derive(Clone, Copy, Debug)]
pub struct ThreadCpuTimer(f64);

impl ThreadCpuTimer {
    /// Starts a timer.
    #[must_use]
    pub fn start() -> ThreadCpuTimer {
        ThreadCpuTimer(ThreadCpuTimer::now())
    }

    /// Returns the CPU seconds since the start.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        ThreadCpuTimer::now() - self.0
    }

    fn now() -> f64 {
        RealDisk::default().cpu_time().map_or(0.0, |time| time.as_secs_f64())
    }
}
