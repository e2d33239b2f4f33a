//! # Trial: one case of a harness, whatever becomes of it
//!
//! A panic becomes an error that says where. A case that never ends is named, and ends the process
//! with it: a harness that hangs says nothing otherwise.
//!
//! ## Threads
//!
//! Trials run on the threads of their harnesses. One watcher for the process starts with the first
//! and waits for the trial that is due next. Time is the wall's, since a deadlock works no time,
//! and long, since machines may stand still.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::process;
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};

/// After this time a trial is taken for one that never ends. The longest takes some seconds.
const CASE_TIMEOUT: Duration = Duration::from_secs(600);

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

struct RunningCases {
    /// By when they began.
    cases: BTreeMap<(Duration, u64), String>,
    /// The watcher waits for a trial to begin. Else it waits for a time, and what begins meanwhile
    /// is due after that.
    is_idle: bool,
}

static RUNNING_CASES: Mutex<RunningCases> =
    Mutex::new(RunningCases { cases: BTreeMap::new(), is_idle: false });
static CASE_STARTED: Condvar = Condvar::new();

fn running_cases() -> MutexGuard<'static, RunningCases> {
    RUNNING_CASES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `work`; a panic becomes an error that says where, and is not printed. If it never ends, the
/// process aborts and says `name`: best a line that replays it.
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

/// Tells `alarm` the name of every trial that takes longer than `most`, until it says that this is
/// enough.
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
