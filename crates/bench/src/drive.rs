//! # Drive: threads that repeat an operation until told to stop, and what that took
//!
//! ## Threads
//!
//! Each worker makes its session in its own thread, waits at a barrier with the others and then repeats
//! its step; the clock runs from the barrier until the last one has ended. A further thread syncs a store
//! every 100 ms if the store does not do so by itself.
//!
//! ## Costs
//!
//! A relaxed load, a counter and two indirect calls per operation; with latencies, two readings of the
//! clock and a histogram more (about 100 ns).

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use crate::Result;
use crate::measure::{self, Cpu};
use crate::subjects::{Session, Store};

/// How often a buffered store is synced, unless the options say otherwise.
pub(crate) const SYNC_INTERVAL: Duration = Duration::from_millis(100);

/// When a worker ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Length {
    /// After this time.
    Time(Duration),
    /// After this many operations each.
    Operations(u64),
}

/// What one thread does again and again.
pub(crate) trait Worker: Send {
    /// One operation.
    fn step(&mut self, session: &mut dyn Session) -> Result<()>;
    /// After the last one, still within the measured time.
    fn finish(&mut self, session: &mut dyn Session) -> Result<()> {
        let _ = session;
        Ok(())
    }
}

/// How to drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Phase {
    /// When it ends.
    pub(crate) length: Length,
    /// Whether each operation is timed.
    pub(crate) latencies: bool,
    /// How often a store that does not sync by itself is synced.
    pub(crate) sync_every: Option<Duration>,
    /// Whether the time includes a sync at the end.
    pub(crate) final_sync: bool,
}

impl Phase {
    /// For this long, synced as usual, operations not timed.
    pub(crate) fn of(length: Length, sync_every: Option<Duration>) -> Phase {
        Phase { length, latencies: false, sync_every, final_sync: false }
    }
}

/// What it took.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Operations of all threads.
    pub(crate) operations: u64,
    /// From the first operation to the end of the last.
    pub(crate) elapsed: Duration,
    /// CPU time of the whole process in that time: callers, background threads and the kernel's part.
    pub(crate) cpu: Duration,
    /// CPU time of the callers' threads alone.
    pub(crate) caller_cpu: Duration,
    /// Latencies in nanoseconds, if they were taken.
    pub(crate) latencies: Option<Histogram<u64>>,
}

impl Sample {
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

struct Part {
    operations: u64,
    cpu: Duration,
    latencies: Option<Histogram<u64>>,
}

/// Runs one thread for each worker.
pub(crate) fn drive<W: Worker>(store: &dyn Store, phase: Phase, workers: Vec<W>) -> Result<Sample> {
    let (start, stop) = (Barrier::new(workers.len() + 1), AtomicBool::new(false));
    let (start, stop) = (&start, &stop);
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers
            .into_iter()
            .map(|worker| scope.spawn(move || work(store, phase, worker, start, stop)))
            .collect();
        start.wait();
        let (began, cpu) = (Instant::now(), Cpu::of_process());
        if let (Some(interval), false) = (phase.sync_every, store.syncs_itself()) {
            scope.spawn(move || sync_regularly(store, interval, stop));
        }
        if let Length::Time(time) = phase.length {
            sleep_unless(time, || threads.iter().all(|thread| thread.is_finished()));
            stop.store(true, Ordering::Relaxed);
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Part>>| {
            thread.join().unwrap_or_else(|_| Err("a worker panicked".into()))
        };
        let parts: Vec<Result<Part>> = threads.into_iter().map(join).collect();
        stop.store(true, Ordering::Relaxed);
        if phase.final_sync {
            store.sync()?;
        }
        let (elapsed, cpu) = (began.elapsed(), cpu.since());
        let parts = parts.into_iter().collect::<Result<Vec<Part>>>()?;
        let mut latencies: Option<Histogram<u64>> = None;
        for part in parts.iter().filter_map(|part| part.latencies.as_ref()) {
            match &mut latencies {
                Some(sum) => sum.add(part)?,
                None => latencies = Some(part.clone()),
            }
        }
        Ok(Sample {
            operations: parts.iter().map(|part| part.operations).sum(),
            elapsed,
            cpu,
            caller_cpu: parts.iter().map(|part| part.cpu).sum(),
            latencies,
        })
    })
}

fn work<W: Worker>(
    store: &dyn Store,
    phase: Phase,
    mut worker: W,
    start: &Barrier,
    stop: &AtomicBool,
) -> Result<Part> {
    let session = store.session();
    start.wait(); // also after an error: the others wait for us
    let mut session = session?;
    let mut latencies =
        if phase.latencies { Some(Histogram::new_with_bounds(1, 60_000_000_000, 3)?) } else { None };
    let limit = if let Length::Operations(count) = phase.length { count } else { u64::MAX };
    let cpu = Cpu::of_thread();
    let mut operations = 0;
    while operations < limit && !stop.load(Ordering::Relaxed) {
        match &mut latencies {
            None => worker.step(&mut *session)?,
            Some(latencies) => {
                let before = Instant::now();
                worker.step(&mut *session)?;
                latencies.saturating_record(measure::nanos(before.elapsed()));
            }
        }
        operations += 1;
    }
    worker.finish(&mut *session)?;
    Ok(Part { operations, cpu: cpu.since(), latencies })
}

fn sync_regularly(store: &dyn Store, interval: Duration, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let due = Instant::now() + interval;
        // An error shows again in the workers or at the final sync.
        if store.sync().is_err() {
            return;
        }
        while Instant::now() < due && !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Sleeps, but wakes early if `over` says that there is nothing to wait for.
fn sleep_unless(time: Duration, over: impl Fn() -> bool) {
    let end = Instant::now() + time;
    while Instant::now() < end && !over() {
        std::thread::sleep((end - Instant::now()).min(Duration::from_millis(20)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subjects::{Setting, Subject};

    struct Count(u64, u64);

    impl Worker for Count {
        fn step(&mut self, session: &mut dyn Session) -> Result<()> {
            self.0 += 1;
            if self.0 == self.1 {
                return Err("worker gave up".into());
            }
            session.get(b"").map(|_| ())
        }
    }

    #[test]
    fn operations_are_counted_over_all_threads() {
        let store = Subject::Null.open(std::path::Path::new("/"), Setting::BUFFERED).unwrap();
        let phase = Phase { latencies: true, ..Phase::of(Length::Operations(1000), None) };
        let sample = drive(&*store, phase, vec![Count(0, 0), Count(0, 0)]).unwrap();
        assert_eq!(sample.operations, 2000);
        assert_eq!(sample.latencies.unwrap().len(), 2000);
    }

    #[test]
    fn an_error_of_one_worker_ends_the_phase_and_comes_out() {
        let store = Subject::Null.open(std::path::Path::new("/"), Setting::BUFFERED).unwrap();
        let phase = Phase::of(Length::Time(Duration::from_millis(50)), None);
        let error = drive(&*store, phase, vec![Count(0, 0), Count(0, 10)]).unwrap_err();
        assert_eq!(error.to_string(), "worker gave up");
    }
}
