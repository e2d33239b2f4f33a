//! # Parallel work: a background thread outside of the store, and parallel loops
//!
//! The store has its own threads (`store/src/maintenance/threads.rs`). A FlexSpace that is used
//! alone has a [`StepThread`]. It repeats its step while there is work, and otherwise at intervals
//! or when it is woken. Dropping it waits for the current step.

use std::cell::Cell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::error::{Error, IoOp, Result};
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::sync::{Condvar, Mutex};

/// Time for which background work keeps its processor. A thread that yields is charged for a whole
/// slice of the scheduler (about 3 ms). Yielding after each step, which takes a fraction of a
/// millisecond, would cost it most of its share if other threads are busy.
const YIELD_INTERVAL: Duration = Duration::from_millis(2);

thread_local! {
    /// Time when this thread last yielded.
    static LAST_YIELD: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Yields to threads that wait for this processor, if the last yield is long enough ago. Background
/// work calls this often. The scheduler itself only checks at ticks of the clock, 4 ms apart at 250
/// Hz.
pub fn yield_if_due() {
    if SystemClock.now().saturating_sub(LAST_YIELD.get()) >= YIELD_INTERVAL {
        thread::yield_now();
        LAST_YIELD.set(SystemClock.now());
    }
}

#[derive(Debug, Default)]
struct WakeSignal {
    state: Mutex<WakeState>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct WakeState {
    due: bool,
    stop: bool,
}

/// Waker of a [`StepThread`]. A clone wakes the same thread.
#[derive(Clone, Debug, Default)]
pub struct StepWaker(Arc<WakeSignal>);

impl StepWaker {
    /// Tells the thread that there may be work.
    pub fn wake(&self) {
        self.0.state.lock().due = true;
        self.0.condvar.notify_one();
    }
}

/// A thread that performs steps.
#[derive(Debug)]
pub struct StepThread {
    waker: StepWaker,
    thread: Option<JoinHandle<()>>,
}

impl StepThread {
    /// Starts a thread with the name `name`. `step` does a bounded part of the work, if there is
    /// any, and returns whether there is more.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the system cannot start a thread.
    #[allow(clippy::disallowed_methods)] // threads start only in this module
    pub fn start(
        name: &str,
        waker: StepWaker,
        interval: Duration,
        mut step: impl FnMut() -> bool + Send + 'static,
    ) -> Result<StepThread> {
        let signal = Arc::clone(&waker.0);
        let body = move || {
            loop {
                {
                    let mut state = signal.state.lock();
                    if !state.due && !state.stop {
                        signal.condvar.wait_for(&mut state, interval);
                    }
                    if state.stop {
                        return;
                    }
                    state.due = false;
                }
                if step() {
                    signal.state.lock().due = true;
                    yield_if_due();
                }
            }
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(body);
        let thread =
            thread.map_err(|source| Error::Io { op: IoOp::StartThread, path: name.into(), source })?;
        Ok(StepThread { waker, thread: Some(thread) })
    }
}

impl Drop for StepThread {
    fn drop(&mut self) {
        self.waker.0.state.lock().stop = true;
        self.waker.0.condvar.notify_one();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            let _ = thread.join(); // the runtime reported a panic there
        }
    }
}

/// Starts a thread. Returns `None` if the system cannot.
#[cfg(not(shuttle))]
#[allow(clippy::disallowed_methods)] // threads start only in this module
fn try_spawn<'s, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    body: impl FnOnce() -> T + Send + 's,
) -> Option<thread::ScopedJoinHandle<'s, T>> {
    thread::Builder::new().spawn_scoped(scope, body).ok()
}

#[cfg(shuttle)]
fn try_spawn<'s, T: Send + 's>(
    scope: &'s thread::Scope<'s, '_>,
    body: impl FnOnce() -> T + Send + 's,
) -> Option<thread::ScopedJoinHandle<'s, T>> {
    Some(scope.spawn(body))
}

/// Returns the number of processors that the first caller of this function may use, at least 1.
/// Later calls return the same number: asking the system again would read several files of the
/// control group, which takes about a tenth of the opening of a small database.
#[must_use]
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Returns the number of parts into which an opening divides its work: the number of cores, at
/// least 4 and at most 64. More parts than cores even out the load.
#[must_use]
pub fn opening_threads() -> usize {
    processors().clamp(4, 64)
}

/// Returns the number of threads that [`run_parallel`] uses, if the system can start them.
#[must_use]
pub fn usable_threads(threads: usize) -> usize {
    threads.min(processors())
}

/// Returns the number of threads that do background work unless the caller sets one: half of the
/// cores, from 1 to 8.
#[must_use]
pub fn background_threads() -> usize {
    (processors() / 2).clamp(1, 8)
}

/// Runs `first` on this thread and `second` on another one. Runs `second` after `first` if the
/// system cannot start a thread.
pub fn join_both<A, B: Send>(first: impl FnOnce() -> A, second: impl Fn() -> B + Sync) -> (A, B) {
    thread::scope(|scope| {
        let other = try_spawn(scope, &second);
        let first = first();
        let second = match other {
            Some(other) => other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => second(),
        };
        (first, second)
    })
}

/// Runs `body` on up to `threads` threads, including this one, and returns their results. Uses at
/// most as many threads as there are cores and as the system can start. Propagates a panic.
pub fn run_parallel<T: Send>(threads: usize, body: impl Fn() -> T + Sync) -> Vec<T> {
    run_threads(usable_threads(threads), body)
}

/// Like [`run_parallel`], but regardless of the number of cores: for threads that wait for a
/// device.
pub fn run_threads<T: Send>(threads: usize, body: impl Fn() -> T + Sync) -> Vec<T> {
    if threads <= 1 {
        return vec![body()];
    }
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map_while(|_| try_spawn(scope, &body)).collect();
        let mut all = vec![body()];
        for other in others {
            all.push(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    })
}

/// Returns the results of `body` for `0..count`, in order, computed in parallel on up to `threads`
/// threads and cores. Starts no more calls after an error.
///
/// # Errors
///
/// Returns the error of the lowest index that failed.
pub fn map_parallel<T: Send, E: Send>(
    threads: usize,
    count: usize,
    body: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    map_threads(usable_threads(threads), count, body)
}

/// Like [`map_parallel`], but regardless of the number of cores: for calls that wait for a device.
///
/// # Errors
///
/// Returns the error of the lowest index that failed.
pub fn map_threads<T: Send, E: Send>(
    threads: usize,
    count: usize,
    body: impl Fn(usize) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    // All calls with an index below that of an error started before it, and are completed.
    let share = || {
        let mut done = Vec::new();
        while !is_over.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= count {
                break;
            }
            let made = body(index);
            is_over.fetch_or(made.is_err(), Ordering::Relaxed);
            done.push((index, made));
        }
        done
    };
    let mut all: Vec<_> = run_threads(threads.min(count), share).into_iter().flatten().collect();
    all.sort_by_key(|(index, _)| *index);
    all.into_iter().map(|(_, made)| made).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Barrier, mpsc};

    #[test]
    fn parallel_results_are_in_order() {
        for threads in [0, 1, 4] {
            assert_eq!(map_parallel(threads, 100, Ok::<_, ()>), Ok((0..100).collect()));
        }
        assert_eq!(map_parallel(4, 0, Ok::<_, ()>), Ok(vec![]));
    }

    #[test]
    fn the_error_of_the_lowest_index_is_returned() {
        let (together, begun) = (Barrier::new(processors().min(2)), AtomicUsize::new(0));
        let body = |index| {
            begun.fetch_add(1, Ordering::Relaxed);
            if index < 2 {
                together.wait(); // both fail, in any order
                return Err(index);
            }
            Ok(index)
        };
        assert_eq!(map_parallel(2, 1000, body), Err(0));
        assert!(begun.into_inner() < 1000, "after an error no more are begun");
    }

    #[test]
    fn a_panic_in_a_thread_propagates() {
        let body = |index| if index == 3 { panic!("as it has to be") } else { Ok::<_, ()>(index) };
        assert!(std::panic::catch_unwind(|| map_parallel(4, 10, body)).is_err());
    }

    #[test]
    fn the_thread_steps_while_there_is_work_and_when_woken_and_ends_when_dropped() {
        let (sender, steps) = mpsc::channel();
        let waker = StepWaker::default();
        waker.wake();
        let mut left = 3;
        let worker = StepThread::start("test", waker.clone(), Duration::from_secs(3600), move || {
            left -= 1;
            sender.send(left).is_ok() && left > 0
        })
        .unwrap();
        assert_eq!(steps.iter().take(3).collect::<Vec<i32>>(), [2, 1, 0]);
        waker.wake();
        assert_eq!(steps.recv(), Ok(-1));
        drop(worker);
        assert!(steps.recv().is_err(), "the step went with the thread");
    }
}
