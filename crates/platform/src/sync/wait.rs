//! # Waiting: threads sleep until another thread makes progress
//!
//! - [`WaitWord`]: all sleepers are woken together.
//! - [`WaitWords`]: threads that wait for different numbers sleep on different words. The end of
//!   one commit then wakes the threads that wait for it and few others.
//! - [`WaitTree`]: many threads wait for the same event, and wake each other. Waking takes a system
//!   call per thread. The threads woken first share this work.

use crossbeam_utils::CachePadded;

use super::atomic::{AtomicU32, Ordering};
use super::imp::Futex;
use super::thread_shard;

/// A counter that threads sleep on until it changes. One futex wakes all sleepers together, without
/// a system call if there are none.
#[derive(Debug, Default)]
pub struct WaitWord {
    count: AtomicU32,
    sleepers: AtomicU32,
    futex: Futex,
}

impl WaitWord {
    /// Returns the present count, to wait on.
    pub fn load(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// Sleeps while the count is `seen`. May return early.
    pub fn wait(&self, seen: u32) {
        // The sleeper is counted before the kernel compares the word. An `advance` that misses the
        // sleeper has changed the word before, and the kernel sees the change.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        if self.count.load(Ordering::SeqCst) == seen {
            self.futex.wait(&self.count, seen);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Like [`WaitWord::wait`], but does not sleep if `is_over` returns true. `is_over` is called
    /// after the sleeper is counted. A thread that makes it true must call [`WaitWord::wake`]
    /// afterwards. Returns the result of `is_over`.
    pub fn sleep_unless(&self, seen: u32, is_over: impl FnOnce() -> bool) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let is_over = is_over();
        if !is_over && self.count.load(Ordering::SeqCst) == seen {
            self.futex.wait(&self.count, seen);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        is_over
    }

    /// Wakes all threads that sleep. Writes nothing if there are none.
    #[inline]
    pub fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.advance();
        }
    }

    /// Increments the count and wakes all threads.
    pub fn advance(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            self.futex.wake(&self.count);
        }
    }

    /// Raises the count to `to`, if it is lower, and wakes all threads.
    fn advance_to(&self, to: u32) -> AdvanceOutcome {
        let is_lower = |count: u32| (count.wrapping_sub(to).cast_signed() < 0).then_some(to);
        if self.count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_lower).is_err() {
            return AdvanceOutcome::Unchanged;
        }
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            return AdvanceOutcome::WithoutSleepers;
        }
        self.futex.wake(&self.count);
        AdvanceOutcome::Woken
    }
}

/// Words of threads that wait for different numbers. Waking the threads that wait for one number
/// wakes few others.
#[derive(Debug)]
pub struct WaitWords(Box<[CachePadded<WaitWord>]>);

/// Number of words.
const WORDS: u64 = if cfg!(shuttle) { 2 } else { 64 };

impl Default for WaitWords {
    fn default() -> WaitWords {
        WaitWords((0..WORDS).map(|_| CachePadded::default()).collect())
    }
}

impl WaitWords {
    /// Returns the word of threads that wait for `number`.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "below WORDS")]
    pub fn of(&self, number: u64) -> &WaitWord {
        &self.0[(number % WORDS) as usize]
    }

    /// Wakes the threads that wait for `first` to `last`.
    #[inline]
    pub fn wake(&self, first: u64, last: u64) {
        let last = last.min(first.saturating_add(WORDS - 1));
        (first..=last).for_each(|number| self.of(number).wake());
    }

    /// Wakes all threads.
    pub fn wake_all(&self) {
        self.wake(0, WORDS - 1);
    }
}

/// A counter that many threads sleep on until it changes.
///
/// Each thread sleeps at a node of a binary tree. The thread that changes the counter wakes the
/// sleepers of the root. A thread that was woken wakes those of the two nodes below its own.
///
/// ## Invariants
///
/// 1. The count of a node only grows, up to the counter.
/// 2. If a node has no sleepers, the thread that raises its count also raises those of the nodes
///    below. Otherwise its sleepers do so, since each reads the count after it woke up.
#[derive(Debug, Default)]
pub struct WaitTree {
    count: AtomicU32,
    nodes: [CachePadded<WaitWord>; NODES],
}

/// Nodes of a tree.
const NODES: usize = if cfg!(shuttle) { 3 } else { 15 };

impl WaitTree {
    /// Returns the present count, to wait on.
    pub fn load(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Sleeps while the count is `seen`. May return early.
    pub fn wait(&self, seen: u32) {
        let at = thread_shard() % NODES;
        let node = &self.nodes[at];
        let count = node.load();
        // A node with a count below `seen` is about to be raised to it.
        if count.wrapping_sub(seen).cast_signed() <= 0 {
            node.wait(count);
            self.wake_below(at, node.load());
        }
    }

    /// Increments the count and wakes all threads.
    pub fn advance(&self) {
        let count = self.count.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
        self.wake_at(0, count);
    }

    fn wake_at(&self, at: usize, count: u32) {
        let Some(node) = self.nodes.get(at) else { return };
        if node.advance_to(count) == AdvanceOutcome::WithoutSleepers {
            self.wake_below(at, count); // (I2)
        }
    }

    fn wake_below(&self, at: usize, count: u32) {
        self.wake_at(2 * at + 1, count);
        self.wake_at(2 * at + 2, count);
    }
}

/// Effect of [`WaitWord::advance_to`].
#[derive(PartialEq, Eq)]
enum AdvanceOutcome {
    Unchanged,
    WithoutSleepers,
    Woken,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::thread;
    use super::*;

    /// Starts threads that wait for `rounds` consecutive rounds, and ends these rounds.
    fn check_rounds(threads: usize, rounds: u32) {
        let world = Arc::new((WaitTree::default(), AtomicU32::new(0)));
        let wait = || {
            let world = Arc::clone(&world);
            move || {
                let (tree, ended) = &*world;
                for round in 1..=rounds {
                    loop {
                        let seen = tree.load();
                        if ended.load(Ordering::SeqCst) >= round {
                            break;
                        }
                        tree.wait(seen);
                    }
                }
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| start(wait())).collect();
        let (tree, ended) = &*world;
        for round in 1..=rounds {
            ended.store(round, Ordering::SeqCst);
            tree.advance();
        }
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    }

    #[allow(clippy::disallowed_methods, reason = "a test of waiting threads")]
    fn start(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
        thread::spawn(body)
    }

    #[cfg(shuttle)]
    #[test]
    fn interleavings_wake_every_thread_of_a_tree() {
        super::super::explore(20_000, || check_rounds(3, 2));
    }

    #[cfg(not(shuttle))]
    #[test]
    fn every_thread_of_a_tree_is_woken() {
        check_rounds(64, 500);
    }
}
