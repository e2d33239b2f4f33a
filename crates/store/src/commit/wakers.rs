//! # Wakers: tasks that wait for the durability of a commit
//!
//! A task of an asynchronous runtime cannot sleep in [`Store::acknowledge`]. It leaves its waker
//! here instead. The sync thread (`maintenance::threads`) runs the sync rounds for waiting tasks,
//! or waits for those of other leaders, and calls the wakers.
//!
//! ```text
//!  task:         durable? ── no ──> insert waker, look again, request a round ──> pending
//!  sync thread:  round up to the lowest seq of the table | take the wakers that are due | wake
//! ```
//!
//! ## Invariants
//!
//! 1. A task looks at the durable mark and at the health of the store after it has inserted its
//!    waker. The sync thread takes wakers after both have changed. The lock of the table orders the
//!    two, so no task sleeps although its commit is decided.
//! 2. A waker is called, or dropped, without any lock: it may drop a task that has another waker
//!    here, or the last handle of the database.
//! 3. Committers and leaders of rounds never use the table. So a database without tasks that wait
//!    pays nothing for it.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::{Context, Poll, Waker};

use crate::Store;
use sheaf_log::types::{Durability, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::Ordering;

/// Place of a waker in the table: the commit that the task waits for, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WakerKey {
    seq: Seq,
    number: u64,
}

/// State of a task that waits.
#[derive(Debug)]
enum TaskState {
    Waiting(Waker),
    /// A round failed without poisoning the store. The next poll returns the error.
    Failed(Error),
}

#[derive(Debug, Default)]
struct WakerTable {
    tasks: BTreeMap<WakerKey, TaskState>,
    next_number: u64,
}

/// Wakers of the tasks that wait for durability.
#[derive(Debug, Default)]
pub(crate) struct CommitWakers(Mutex<WakerTable>);

impl CommitWakers {
    /// Inserts `waker`, or replaces the waker at `key`. Returns the error of a failed round.
    fn insert(&self, key: &mut Option<WakerKey>, seq: Seq, waker: &Waker) -> Result<()> {
        let mut table = self.0.lock();
        if let Some(found) = key.as_ref().and_then(|key| table.tasks.get_mut(key)) {
            match found {
                TaskState::Waiting(old) if old.will_wake(waker) => {}
                TaskState::Waiting(old) => {
                    let old = std::mem::replace(old, waker.clone());
                    drop(table);
                    drop(old); // (I2)
                }
                TaskState::Failed(_) => {
                    let failed = key.take().and_then(|key| table.tasks.remove(&key));
                    if let Some(TaskState::Failed(error)) = failed {
                        return Err(error);
                    }
                }
            }
            return Ok(());
        }
        table.next_number += 1;
        let new = WakerKey { seq, number: table.next_number };
        table.tasks.insert(new, TaskState::Waiting(waker.clone()));
        *key = Some(new);
        Ok(())
    }

    /// Removes the waker at `key`, if it is still there.
    fn remove(&self, key: &mut Option<WakerKey>) {
        let removed = key.take().and_then(|key| self.0.lock().tasks.remove(&key));
        drop(removed); // (I2)
    }

    /// Returns the lowest commit that a task waits for.
    fn lowest(&self) -> Option<Seq> {
        let table = self.0.lock();
        let waiting = table.tasks.iter().find(|(_, state)| matches!(state, TaskState::Waiting(_)));
        waiting.map(|(key, _)| key.seq)
    }

    /// Wakes the tasks that wait for commits up to `durable`, and removes their wakers.
    fn wake_up_to(&self, durable: Seq) {
        let due = {
            let mut table = self.0.lock();
            let after = WakerKey { seq: Seq(durable.0.saturating_add(1)), number: 0 };
            let rest = table.tasks.split_off(&after);
            std::mem::replace(&mut table.tasks, rest)
        };
        wake(due.into_values());
    }

    /// Wakes all tasks and removes their wakers.
    pub(crate) fn wake_all(&self) {
        let all = std::mem::take(&mut self.0.lock().tasks);
        wake(all.into_values());
    }

    /// Wakes all tasks. Their next poll returns the error that `error` creates.
    fn fail_all(&self, error: impl Fn() -> Error) {
        let failed: Vec<TaskState> = {
            let mut table = self.0.lock();
            let waiting = table.tasks.values_mut().filter(|state| matches!(state, TaskState::Waiting(_)));
            waiting.map(|state| std::mem::replace(state, TaskState::Failed(error()))).collect()
        };
        wake(failed.into_iter());
    }
}

/// Calls the wakers. The caller holds no lock (I2).
fn wake(tasks: impl Iterator<Item = TaskState>) {
    for task in tasks {
        if let TaskState::Waiting(waker) = task {
            // A waker is code of the application. The others must be called nevertheless; the panic
            // hook has reported the panic.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}

/// Guard of the sync thread: wakes all tasks if the thread ends by a panic.
pub(crate) struct WakeOnPanic<'a>(pub(crate) &'a Store);

impl Drop for WakeOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.sync.wakers.wake_all();
        }
    }
}

impl Store {
    /// Polls for the durability of commit `seq`. If it is pending, the waker of `context` is called
    /// when it is decided. `key` must be `None` at the first call, and the caller must pass it to
    /// [`Store::cancel_wait`] if it gives up. A database without background threads runs the round
    /// here.
    ///
    /// # Errors
    ///
    /// The errors of [`Store::acknowledge`]. After [`Error::TooManyFiles`] another poll waits for
    /// the next round.
    pub fn poll_durable(
        &self,
        seq: Seq,
        key: &mut Option<WakerKey>,
        context: &Context<'_>,
    ) -> Poll<Result<()>> {
        if self.durable() >= seq {
            self.cancel_wait(key);
            return Poll::Ready(Ok(()));
        }
        if self.options.inline && !cfg!(shuttle) {
            return Poll::Ready(self.acknowledge(seq, Durability::Sync));
        }
        if self.check_writable().is_ok() {
            if key.is_none() {
                self.counters.sync_waits.fetch_add(1, Ordering::Relaxed);
                self.sync.round.count_waiter();
            }
            if let Err(error) = self.sync.wakers.insert(key, seq, context.waker()) {
                return Poll::Ready(Err(error));
            }
        }
        // (I1) The order matters here too: a commit may become durable before the store fails.
        let health = self.check_writable();
        if self.durable() >= seq {
            self.cancel_wait(key);
            return Poll::Ready(Ok(()));
        }
        if let Err(error) = health {
            self.cancel_wait(key);
            return Poll::Ready(Err(error));
        }
        self.background.signals.request_round();
        Poll::Pending
    }

    /// Removes the waker of a task that no longer waits.
    pub fn cancel_wait(&self, key: &mut Option<WakerKey>) {
        // A forked child has no thread that could release the lock of the table.
        if key.is_some() && !self.health.is_forked_child() {
            self.sync.wakers.remove(key);
        }
    }

    /// Makes the commits durable that tasks wait for, and wakes the tasks. Returns false if no task
    /// waited. The caller must hold no lock.
    pub(crate) fn serve_tasks(&self) -> bool {
        let mut has_served = false;
        while let Some(seq) = self.sync.wakers.lowest() {
            has_served = true;
            let round = self.wait_shared_round(seq);
            self.sync.wakers.wake_up_to(self.durable());
            match round {
                Ok(()) => {}
                Err(Error::TooManyFiles { path, limit }) => {
                    self.sync.wakers.fail_all(|| Error::TooManyFiles { path: path.clone(), limit });
                }
                // The store is poisoned or closed. Each task finds that out by itself.
                Err(_) => self.sync.wakers.wake_all(),
            }
        }
        has_served
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct CountingWaker(AtomicUsize);

    impl Wake for CountingWaker {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Inserts a waker for each of `seqs`.
    fn filled(seqs: &[u64]) -> (CommitWakers, Arc<CountingWaker>, Vec<Option<WakerKey>>) {
        let (wakers, counting) = (CommitWakers::default(), Arc::new(CountingWaker::default()));
        let waker = Waker::from(Arc::clone(&counting));
        let keys = seqs.iter().map(|seq| {
            let mut key = None;
            wakers.insert(&mut key, Seq(*seq), &waker).expect("no round has failed");
            key
        });
        let keys = keys.collect();
        drop(waker);
        (wakers, counting, keys)
    }

    #[test]
    fn only_tasks_of_durable_commits_are_woken_and_no_waker_stays() {
        let (wakers, counting, mut keys) = filled(&[7, 5, 5, 9]);
        assert_eq!(wakers.lowest(), Some(Seq(5)));
        wakers.wake_up_to(Seq(7));
        assert_eq!((counting.0.load(Ordering::Relaxed), wakers.lowest()), (3, Some(Seq(9))));
        keys.iter_mut().for_each(|key| wakers.remove(key));
        assert_eq!((Arc::strong_count(&counting), wakers.lowest()), (1, None));
    }

    #[test]
    fn a_second_poll_replaces_the_waker() {
        let (wakers, counting, mut keys) = filled(&[3]);
        let other = Arc::new(CountingWaker::default());
        let mut key = keys.remove(0);
        wakers.insert(&mut key, Seq(3), &Waker::from(Arc::clone(&other))).expect("no round has failed");
        assert_eq!(Arc::strong_count(&counting), 1);
        wakers.wake_all();
        assert_eq!([&counting, &other].map(|waker| waker.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn a_failed_round_is_reported_to_each_task_once() {
        let (wakers, counting, mut keys) = filled(&[3, 4]);
        wakers.fail_all(|| Error::TooManyFiles { path: PathBuf::from("1.seg"), limit: None });
        assert_eq!((counting.0.load(Ordering::Relaxed), wakers.lowest()), (2, None));
        let waker = Waker::from(Arc::clone(&counting));
        for key in &mut keys {
            let failed = wakers.insert(key, Seq(4), &waker);
            assert!(matches!(failed, Err(Error::TooManyFiles { .. })), "{failed:?}");
            wakers.insert(key, Seq(4), &waker).expect("the next poll waits again");
        }
        assert_eq!(wakers.lowest(), Some(Seq(4)));
    }

    #[test]
    fn a_waker_that_panics_does_not_keep_the_others_asleep() {
        struct Panicking;
        impl Wake for Panicking {
            fn wake(self: Arc<Self>) {
                panic!("a waker panics");
            }
        }
        let (wakers, counting, _keys) = filled(&[2]);
        wakers.insert(&mut None, Seq(1), &Waker::from(Arc::new(Panicking))).expect("no round has failed");
        wakers.wake_all();
        assert_eq!(counting.0.load(Ordering::Relaxed), 1);
    }
}
