//! # Drive: threads that repeat an operation until they are stopped, and its costs
//!
//! ## Threads
//!
//! Each worker opens its session in its own thread, waits at a barrier for the others, and then
//! repeats its step. The clock runs from the barrier until the last worker has ended. Another
//! thread syncs the store at the requested interval if the store does not sync itself.
//!
//! ## Costs
//!
//! An operation costs a relaxed load and store and two indirect calls. With latencies, it also
//! costs two reads of the time stamp counter and an update of a histogram.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use quanta::Clock;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::measure::CpuTime;
use crate::subjects::{BenchSession, BenchStore};

/// Interval of syncs of a buffered store, unless the options name another.
pub(crate) const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// Returns a clock that reads the time stamp counter where that is reliable. It is calibrated once,
/// at the first use.
fn clock() -> &'static Clock {
    static CLOCK: OnceLock<Clock> = OnceLock::new();
    CLOCK.get_or_init(Clock::new)
}

/// Condition that ends a worker.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum PhaseLength {
    /// After this time.
    Time(Duration),
    /// After this many operations each.
    Operations(u64),
}

/// Operation that one thread repeats.
pub(crate) trait PhaseWorker: Send {
    /// Runs one operation. Returns its weight: 1, or the number of pairs of a whole scan.
    fn step(&mut self, session: &mut dyn BenchSession) -> Result<u64>;
    /// Runs after the last operation, still within the measured time.
    fn finish(&mut self, session: &mut dyn BenchSession) -> Result<()> {
        let _ = session;
        Ok(())
    }
    /// Returns whether the latency of the last operation is recorded.
    fn is_timed(&self) -> bool {
        true
    }
    /// Returns the bytes of keys and values that this worker wrote or removed.
    fn user_bytes(&self) -> u64 {
        0
    }
}

/// Options of a phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveOptions {
    /// Condition that ends the phase.
    pub(crate) length: PhaseLength,
    /// Whether each operation is timed.
    pub(crate) latencies: bool,
    /// Interval of syncs of a store that does not sync itself.
    pub(crate) sync_every: Option<Duration>,
    /// Whether the time includes a sync at the end.
    pub(crate) final_sync: bool,
    /// Whether operations are also counted for each second.
    pub(crate) timeline: bool,
}

impl DriveOptions {
    /// Returns options for a phase without latencies, final sync or timeline.
    pub(crate) fn new(length: PhaseLength, sync_every: Option<Duration>) -> DriveOptions {
        DriveOptions { length, latencies: false, sync_every, final_sync: false, timeline: false }
    }
}

/// Costs of a phase.
#[derive(Clone, Debug)]
pub(crate) struct PhaseSample {
    /// Operations of all threads.
    pub(crate) operations: u64,
    /// Time from the first operation to the end of the last.
    pub(crate) elapsed: Duration,
    /// CPU time of the whole process in that time: callers, background threads, and the kernel on
    /// their behalf.
    pub(crate) cpu: Duration,
    /// CPU time of the callers' threads alone.
    pub(crate) caller_cpu: Duration,
    /// Bytes of keys and values written or removed.
    pub(crate) user_bytes: u64,
    /// Latencies in nanoseconds, if they were recorded.
    pub(crate) latencies: Option<Histogram<u64>>,
    /// Figures for each second, if they were requested.
    pub(crate) timeline: Vec<TimelineSecond>,
}

/// An interval of one second of a phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct TimelineSecond {
    /// Operations in this second.
    pub(crate) operations: u64,
    /// Segments that GC freed in this second, if the store reports them.
    pub(crate) freed: u64,
}

/// A counter with a cache line of its own.
#[derive(Default)]
#[repr(align(128))]
struct PaddedCounter(AtomicU64);

impl PhaseSample {
    /// Operations per second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 / self.elapsed.as_secs_f64()
    }

    /// CPU microseconds per operation, whole process.
    pub(crate) fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.operations as f64
    }

    /// CPU microseconds per operation, callers' threads.
    pub(crate) fn caller_micros(&self) -> f64 {
        self.caller_cpu.as_secs_f64() * 1e6 / self.operations as f64
    }
}

struct ThreadSample {
    operations: u64,
    user_bytes: u64,
    cpu: Duration,
    latencies: Option<Histogram<u64>>,
}

/// Runs one thread for each worker, and returns the sum of their costs.
pub(crate) fn drive<W: PhaseWorker>(
    store: &dyn BenchStore,
    phase: DriveOptions,
    workers: Vec<W>,
) -> Result<PhaseSample> {
    let (start, stop) = (Barrier::new(workers.len() + 1), AtomicBool::new(false));
    let (start, stop) = (&start, &stop);
    let tallies: Vec<PaddedCounter> = workers.iter().map(|_| PaddedCounter::default()).collect();
    clock(); // calibrated before the time runs
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .zip(&tallies)
            .map(|(worker, tally)| scope.spawn(move || work(store, phase, worker, tally, start, stop)))
            .collect();
        start.wait();
        let (began, cpu) = (Instant::now(), CpuTime::of_process());
        if let (Some(interval), false) = (phase.sync_every, store.syncs_itself()) {
            scope.spawn(move || sync_regularly(store, interval, stop));
        }
        let watcher = phase.timeline.then(|| scope.spawn(|| record_timeline(store, &tallies, stop)));
        if let PhaseLength::Time(time) = phase.length {
            sleep_until_done(time, || threads.iter().all(|thread| thread.is_finished()));
            stop.store(true, Ordering::Relaxed);
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<ThreadSample>>| {
            thread.join().unwrap_or_else(|_| Err("a worker panicked".into()))
        };
        let parts: Vec<Result<ThreadSample>> = threads.into_iter().map(join).collect();
        stop.store(true, Ordering::Relaxed);
        let timeline = watcher.map_or(Vec::new(), |watcher| watcher.join().unwrap_or_default());
        if phase.final_sync {
            store.sync()?;
        }
        let (elapsed, cpu) = (began.elapsed(), cpu.since());
        let parts = parts.into_iter().collect::<Result<Vec<ThreadSample>>>()?;
        let mut latencies: Option<Histogram<u64>> = None;
        for part in parts.iter().filter_map(|part| part.latencies.as_ref()) {
            match &mut latencies {
                Some(sum) => sum.add(part)?,
                None => latencies = Some(part.clone()),
            }
        }
        Ok(PhaseSample {
            operations: parts.iter().map(|part| part.operations).sum(),
            elapsed,
            cpu,
            caller_cpu: parts.iter().map(|part| part.cpu).sum(),
            user_bytes: parts.iter().map(|part| part.user_bytes).sum(),
            latencies,
            timeline,
        })
    })
}

fn work<W: PhaseWorker>(
    store: &dyn BenchStore,
    phase: DriveOptions,
    mut worker: W,
    tally: &PaddedCounter,
    start: &Barrier,
    stop: &AtomicBool,
) -> Result<ThreadSample> {
    let session = store.session();
    start.wait(); // a worker without a session waits too: the others need it
    let mut session = session?;
    let mut latencies =
        if phase.latencies { Some(Histogram::new_with_bounds(1, 60_000_000_000, 3)?) } else { None };
    let limit = if let PhaseLength::Operations(count) = phase.length { count } else { u64::MAX };
    let clock = clock();
    let cpu = CpuTime::of_thread();
    let mut operations = 0;
    while operations < limit && !stop.load(Ordering::Relaxed) {
        operations += match &mut latencies {
            None => worker.step(&mut *session)?,
            Some(latencies) => {
                let before = clock.raw();
                let counted = worker.step(&mut *session)?;
                if worker.is_timed() {
                    latencies.saturating_record(clock.delta_as_nanos(before, clock.raw()));
                }
                counted
            }
        };
        tally.0.store(operations, Ordering::Relaxed);
    }
    worker.finish(&mut *session)?;
    Ok(ThreadSample { operations, user_bytes: worker.user_bytes(), cpu: cpu.since(), latencies })
}

/// Records the operations and the freed segments of each whole second, until `stop` is set.
fn record_timeline(
    store: &dyn BenchStore,
    tallies: &[PaddedCounter],
    stop: &AtomicBool,
) -> Vec<TimelineSecond> {
    let now = || TimelineSecond {
        operations: tallies.iter().map(|tally| tally.0.load(Ordering::Relaxed)).sum(),
        freed: store.sheaf_figures().map_or(0, |inner| inner.freed),
    };
    let (mut seconds, mut before) = (Vec::new(), now());
    loop {
        sleep_until_done(Duration::from_secs(1), || stop.load(Ordering::Relaxed));
        if stop.load(Ordering::Relaxed) {
            return seconds;
        }
        let after = now();
        let freed = after.freed.saturating_sub(before.freed);
        seconds.push(TimelineSecond { operations: after.operations - before.operations, freed });
        before = after;
    }
}

fn sync_regularly(store: &dyn BenchStore, interval: Duration, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let due = Instant::now() + interval;
        // A worker or the final sync reports the same error.
        if store.sync().is_err() {
            return;
        }
        while Instant::now() < due && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sleeps for `time`. Wakes early if `over` returns true.
fn sleep_until_done(time: Duration, over: impl Fn() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !over() {
        std::thread::sleep((end - Instant::now()).min(Duration::from_millis(20)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::{BenchSubject, StoreSetting};

    struct CountWorker(u64, u64);

    impl PhaseWorker for CountWorker {
        fn step(&mut self, session: &mut dyn BenchSession) -> Result<u64> {
            self.0 += 1;
            if self.0 == self.1 {
                return Err("worker gave up".into());
            }
            session.get(b"").map(|_| 1)
        }
    }

    #[test]
    fn operations_are_counted_over_all_threads() {
        let store = BenchSubject::NULL.open(std::path::Path::new("/"), StoreSetting::BUFFERED).unwrap();
        let phase =
            DriveOptions { latencies: true, ..DriveOptions::new(PhaseLength::Operations(1000), None) };
        let sample = drive(&*store, phase, vec![CountWorker(0, 0), CountWorker(0, 0)]).unwrap();
        assert_eq!(sample.operations, 2000);
        assert_eq!(sample.latencies.unwrap().len(), 2000);
    }

    #[test]
    fn an_error_of_one_worker_ends_the_phase_and_comes_out() {
        let store = BenchSubject::NULL.open(std::path::Path::new("/"), StoreSetting::BUFFERED).unwrap();
        let phase = DriveOptions::new(PhaseLength::Time(Duration::from_millis(50)), None);
        let error = drive(&*store, phase, vec![CountWorker(0, 0), CountWorker(0, 10)]).unwrap_err();
        assert_eq!(error.to_string(), "worker gave up");
    }
}
