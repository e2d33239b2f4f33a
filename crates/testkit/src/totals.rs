//! # Totals: what one run of a harness came to
//!
//! Every harness has one entry, `run(subject, seed, budget) -> Totals`, so that a test of CI and a
//! campaign of hours differ in their [`Budget`] only, and their figures can be added up and kept.

use std::fmt;

use sheaf_base::clock::{Clock, SystemClock};

/// How long a harness may look.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// It ends after so many seconds.
    pub seconds: f64,
    /// Or after so many cases.
    pub cases: u64,
    /// In so many threads, where it can use them.
    pub workers: usize,
}

impl Budget {
    /// So many seconds, in one thread.
    #[must_use]
    pub fn seconds(seconds: f64) -> Budget {
        Budget { seconds, cases: u64::MAX, workers: 1 }
    }

    /// So many cases, in one thread, however long they take.
    #[must_use]
    pub fn cases(cases: u64) -> Budget {
        Budget { seconds: f64::INFINITY, cases, workers: 1 }
    }

    /// The same in so many threads.
    #[must_use]
    pub fn workers(self, workers: usize) -> Budget {
        Budget { workers: workers.max(1), ..self }
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HarnessFailure {
    /// What runs it again: a line for a shell.
    pub replay: String,
    /// What is wrong.
    pub message: String,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// The harness.
    pub harness: String,
    /// The engine under test.
    pub engine: String,
    /// Cases tried, in the harness's own unit.
    pub cases: u64,
    /// Different ones among them, where the harness can tell; else as `cases`.
    pub distinct: u64,
    /// Seconds it took.
    pub seconds: f64,
    /// What went wrong, the first few.
    pub failures: Vec<HarnessFailure>,
}

impl Totals {
    /// Nothing yet.
    #[must_use]
    pub fn new(harness: &str, engine: &str) -> Totals {
        Totals { harness: harness.into(), engine: engine.into(), ..Totals::default() }
    }

    /// Adds the figures of another part of the same run. `seconds` is the longer of the two if the
    /// parts ran side by side, which is the caller's to know: here they add up.
    pub fn add(&mut self, other: Totals) {
        self.cases += other.cases;
        self.distinct += other.distinct;
        self.seconds += other.seconds;
        self.failures.extend(other.failures);
    }

    /// Cases a second.
    #[must_use]
    pub fn cases_per_second(&self) -> f64 {
        self.cases as f64 / self.seconds.max(1e-9)
    }

    /// For tests: prints the figures.
    ///
    /// # Panics
    ///
    /// If something went wrong, with every replay line, or if fewer than `at_least` cases were
    /// tried.
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

/// Seconds since it was made.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(std::time::Duration);

impl Stopwatch {
    /// Starts now.
    #[must_use]
    pub fn start() -> Stopwatch {
        Stopwatch(SystemClock.now())
    }

    /// Seconds so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        (SystemClock.now() - self.0).as_secs_f64()
    }
}

/// Seconds that this thread has worked since it was made: what a machine with other things to do
/// does not lengthen.
#[derive(Clone, Copy, Debug)]
pub struct ThreadCpuTimer(f64);

impl ThreadCpuTimer {
    /// Starts now.
    #[must_use]
    pub fn start() -> ThreadCpuTimer {
        ThreadCpuTimer(ThreadCpuTimer::now())
    }

    /// Seconds so far.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        ThreadCpuTimer::now() - self.0
    }

    fn now() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY:
        // * The call writes one `timespec`, which outlives it.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
        assert_eq!(answer, 0, "every Linux has this clock");
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    }
}
