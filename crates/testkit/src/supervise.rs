//! # Supervised cases: panics and endless loops of a harness become failures
//!
//! A panic becomes an error with its location. A case that never ends is printed with its name, and
//! the process is aborted: without this, a harness that hangs prints nothing.
//!
//! ## Threads
//!
//! Cases run on the threads of their harnesses. The first case starts one watchdog thread per
//! process, which waits for the case with the nearest time limit. It uses wall-clock time, because
//! a deadlock uses no CPU time. The limit is long, because a machine may be suspended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use sheaf_platform::clock::{Clock, SystemClock};

/// Time after which a case counts as endless. The longest takes some seconds.
const CASE_TIMEOUT: Duration = Duration::from_secs(600);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

struct RunningCases {
    /// Names of the running cases, by start time and a number.
    cases: BTreeMap<(Duration, u64), String>,
    /// Whether the watchdog waits for a case to start. Otherwise it waits for a time limit, and a
    /// case that starts later has a later limit.
    is_idle: bool,
}

static RUNNING_CASES: Mutex<RunningCases> =
    Mutex::new(RunningCases { cases: BTreeMap::new(), is_idle: false });
static CASE_STARTED: Condvar = Condvar::new();

fn running_cases() -> MutexGuard<'static, RunningCases> {
    RUNNING_CASES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`. A panic becomes an error with its location and is not printed. If `work` does not
/// end within `CASE_TIMEOUT`, prints `name`, best a replay line, and aborts the process.
///
/// # Errors
///
/// Returns the error of `work`, or the text of its panic.
#[allow(clippy::disallowed_methods)] // the watcher is no thread of a store's
pub fn run_supervised<R>(
    name: impl Into<String>,
    work: impl FnOnce() -> Result<R, String>,
) -> Result<R, String> {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                LAST_PANIC.replace(info.to_string());
            } else {
                before(info);
            }
        }));
        std::thread::spawn(|| {
            watch_for_timeouts(CASE_TIMEOUT, |name| {
                eprintln!("after {} s this has not ended: {name}", CASE_TIMEOUT.as_secs());
                process::abort()
            })
        });
    });
    let _entry = RunningCase::new(name.into());
    let outer = QUIET.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(outer);
    result.unwrap_or_else(|_| Err(LAST_PANIC.take()))
}

struct RunningCase((Duration, u64));

impl RunningCase {
    fn new(name: String) -> RunningCase {
        let mut all = running_cases();
        let (now, number) =
            (SystemClock.now(), all.cases.keys().map(|(_, number)| number + 1).max().unwrap_or(0));
        all.cases.insert((now, number), name);
        if mem::take(&mut all.is_idle) {
            CASE_STARTED.notify_all();
        }
        RunningCase((now, number))
    }
}

impl Drop for RunningCase {
    fn drop(&mut self) {
        running_cases().cases.remove(&self.0);
    }
}

/// Calls `alarm` with the name of each case that runs longer than `most`, until it returns true.
fn watch_for_timeouts(most: Duration, alarm: impl Fn(&str) -> bool) {
    let mut all = running_cases();
    loop {
        let Some(((began, _), name)) = all.cases.first_key_value() else {
            all.is_idle = true;
            all = CASE_STARTED.wait(all).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        let taken = SystemClock.now().saturating_sub(*began);
        if taken >= most && alarm(name) {
            return;
        }
        let left = most.saturating_sub(taken);
        all = CASE_STARTED.wait_timeout(all, left).map_or_else(|e| e.into_inner().0, |(all, _)| all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_that_says_where() {
        let said = run_supervised("", || -> Result<(), String> { panic!("seven of nine") }).unwrap_err();
        assert!(said.contains("seven of nine") && said.contains("supervise.rs"), "{said}");
        assert_eq!(run_supervised("", || Ok(7)), Ok(7));
    }

    #[test]
    fn a_case_that_never_ends_is_reported_by_name() {
        let (ended, end) = std::sync::mpsc::channel::<()>();
        let (heard, hear) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || run_supervised("the endless one", || end.recv().map_err(|e| e.to_string())));
            let alarm = |name: &str| name == "the endless one" && heard.send(()).is_ok();
            watch_for_timeouts(Duration::from_millis(1), alarm);
            hear.recv().unwrap();
            ended.send(()).unwrap();
        });
    }
}
