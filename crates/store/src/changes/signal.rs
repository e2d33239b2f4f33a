//! # Signal: consumers that wait for the next change
//!
//! A consumer waits for a commit to become durable or visible. A sync round and a commit wake the
//! consumers; if there are none, each of them only reads one counter.
//!
//! ## Invariants
//!
//! 1. A consumer is counted before it looks for a new commit, and a commit moves its mark before it
//!    reads the counter. These accesses are sequentially consistent, so one sees the other.
//! 2. A waker is called, or dropped, without any lock: it may drop the last handle of the database.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::Duration;

use sheaf_platform::sync::atomic::{AtomicUsize, Ordering, fence};
use sheaf_platform::sync::{Condvar, Mutex};

use super::reader::ChangeBound;

/// Place of a waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeWakerKey {
    number: u64,
    bound: ChangeBound,
}

#[derive(Debug, Default)]
struct SleepingTasks {
    wakers: BTreeMap<u64, (ChangeBound, Waker)>,
    next: u64,
}

/// Consumers that wait.
#[derive(Debug, Default)]
pub(crate) struct ChangeSignal {
    /// Number of consumers that wait for durable and for visible commits.
    waiting: [AtomicUsize; 2],
    tasks: Mutex<SleepingTasks>,
    changed: Condvar,
}

impl ChangeSignal {
    /// Sleeps until `is_over` returns true, at most for `limit`. May return early.
    pub(crate) fn sleep(&self, bound: ChangeBound, limit: Option<Duration>, is_over: impl Fn() -> bool) {
        let waiting = &self.waiting[bound as usize];
        waiting.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst); // (I1)
        let mut tasks = self.tasks.lock();
        if !is_over() {
            match limit {
                Some(limit) => drop(self.changed.wait_for(&mut tasks, limit)),
                None => self.changed.wait(&mut tasks),
            }
        }
        drop(tasks);
        waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Inserts or replaces a waker. The caller looks for a new commit afterwards.
    pub(crate) fn insert(&self, bound: ChangeBound, key: &mut Option<ChangeWakerKey>, waker: &Waker) {
        let mut tasks = self.tasks.lock();
        let number = match key {
            Some(key) => key.number,
            None => {
                tasks.next += 1;
                tasks.next
            }
        };
        let before = tasks.wakers.insert(number, (bound, waker.clone()));
        if before.is_none() {
            self.waiting[bound as usize].fetch_add(1, Ordering::SeqCst);
        }
        drop(tasks);
        drop(before); // (I2)
        *key = Some(ChangeWakerKey { number, bound });
        fence(Ordering::SeqCst); // (I1)
    }

    /// Removes a waker, if it was not called yet.
    pub(crate) fn remove(&self, key: &mut Option<ChangeWakerKey>) {
        let Some(key) = key.take() else { return };
        let removed = self.tasks.lock().wakers.remove(&key.number);
        if removed.is_some() {
            self.waiting[key.bound as usize].fetch_sub(1, Ordering::SeqCst);
        }
        drop(removed); // (I2)
    }

    /// Wakes the consumers of durable commits. Called after the durable mark was moved.
    #[inline]
    pub(crate) fn wake_durable(&self) {
        fence(Ordering::SeqCst); // (I1)
        self.wake(ChangeBound::Durable);
    }

    /// Wakes the consumers of visible commits. Called after a commit became complete, which is a
    /// sequentially consistent change of the visible mark.
    #[inline]
    pub(crate) fn wake_visible(&self) {
        self.wake(ChangeBound::Visible);
    }

    /// Wakes all consumers, because the store was closed or poisoned.
    pub(crate) fn wake_all(&self) {
        self.wake_durable();
        self.wake_visible();
    }

    #[inline]
    fn wake(&self, bound: ChangeBound) {
        if self.waiting[bound as usize].load(Ordering::SeqCst) > 0 {
            self.wake_waiting(bound);
        }
    }

    #[cold]
    fn wake_waiting(&self, bound: ChangeBound) {
        let due: Vec<Waker> = {
            let mut tasks = self.tasks.lock();
            let due = tasks.wakers.extract_if(.., |_, (of, _)| *of == bound);
            let due: Vec<Waker> = due.map(|(_, (_, waker))| waker).collect();
            self.waiting[bound as usize].fetch_sub(due.len(), Ordering::SeqCst);
            due
        };
        self.changed.notify_all();
        for waker in due {
            // A waker is code of the application, and the others must be called nevertheless.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
    }
}
