//! # Gate: commits leave in the order of their numbers
//!
//! Several workers commit for one client at once, and their replies reach its agent in any order.
//! The gate holds a commit back while another worker may still report a lower number.
//!
//! ## Correctness
//!
//! A worker sets its *writing* flag in the session before it commits, and clears the flag after its
//! reply is in the agent's queue. The agent notes the highest number that it has received, **then**
//! reads the flags, **then** empties its queue. It releases a commit of number s, not above the
//! noted one, if every other worker
//!
//! * was not writing: its earlier commits are in the gate by now, and a later commit gets a number
//!   above the noted one, which was assigned before the flags were read; or
//! * has reported a number ≥ s: its current commit gets a higher one.
//!
//! Commits from the queue above the noted number wait for the next pass: a worker that was not
//! writing may have begun since, with a lower number. A worker rings the agent after it has cleared
//! its flag, so a held commit is checked again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sheaf_platform::sync::atomic::{AtomicBool, Ordering};

/// Flag of a worker in one session.
#[derive(Debug, Default)]
pub(crate) struct WritingFlag(AtomicBool);

impl WritingFlag {
    /// Marks the start of a commit.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Marks that the reply is in the agent's queue. The caller must ring the agent after this.
    pub(crate) fn clear(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Result of reading the flags of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FlagSnapshot {
    /// Highest number received before.
    pub(crate) highest: u64,
    /// One bit for each worker that was writing.
    writing_workers: u64,
}

/// Commits of one session that wait for lower numbers.
#[derive(Debug)]
pub(crate) struct CommitOrder<T> {
    /// Highest number received from each worker.
    highest_from: Vec<u64>,
    pending: BinaryHeap<Reverse<PendingCommit<T>>>,
    arrivals: u64,
    /// Number of the last commit that left.
    last_released: u64,
}

#[derive(Debug)]
struct PendingCommit<T> {
    seq: u64,
    /// Equal numbers (of commits without changes) leave in the order of arrival.
    arrival: u64,
    item: T,
}

impl<T> PartialEq for PendingCommit<T> {
    fn eq(&self, other: &PendingCommit<T>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for PendingCommit<T> {}

impl<T> PartialOrd for PendingCommit<T> {
    fn partial_cmp(&self, other: &PendingCommit<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for PendingCommit<T> {
    fn cmp(&self, other: &PendingCommit<T>) -> std::cmp::Ordering {
        (self.seq, self.arrival).cmp(&(other.seq, other.arrival))
    }
}

impl<T> CommitOrder<T> {
    pub(crate) fn new(workers: usize) -> CommitOrder<T> {
        CommitOrder {
            highest_from: vec![0; workers],
            pending: BinaryHeap::new(),
            arrivals: 0,
            last_released: 0,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Adds a commit `seq` of worker `lane`.
    pub(crate) fn push(&mut self, lane: usize, seq: u64, what: T) {
        self.highest_from[lane] = self.highest_from[lane].max(seq);
        self.arrivals += 1;
        self.pending.push(Reverse(PendingCommit { seq, arrival: self.arrivals, item: what }));
    }

    /// Reads the flags. The caller must empty the queue after this.
    pub(crate) fn read_flags<'a>(&self, workers: impl Iterator<Item = &'a WritingFlag>) -> FlagSnapshot {
        let highest = self.highest_from.iter().copied().max().unwrap_or(0);
        let bit = |(lane, writing): (usize, &WritingFlag)| u64::from(writing.is_set()) << lane;
        FlagSnapshot { highest, writing_workers: workers.enumerate().map(bit).fold(0, |all, bit| all | bit) }
    }

    /// Returns the next commit that may leave after `look`.
    pub(crate) fn pop_ready(&mut self, look: FlagSnapshot) -> Option<T> {
        let Reverse(first) = self.pending.peek()?;
        let may_come =
            |(lane, heard): (usize, &u64)| look.writing_workers & 1 << lane != 0 && *heard < first.seq;
        if first.seq > look.highest || self.highest_from.iter().enumerate().any(may_come) {
            return None;
        }
        // A commit without changes reads its number, which a CPU of weak memory order may delay:
        // so this is checked in debug builds only.
        debug_assert!(first.seq >= self.last_released, "server_state (I5): no commit leaves out of order");
        self.last_released = first.seq;
        self.pending.pop().map(|Reverse(held)| held.item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the flags of three workers.
    fn look<T>(gate: &CommitOrder<T>, writing: [bool; 3]) -> FlagSnapshot {
        let words = writing.map(|on| WritingFlag(AtomicBool::new(on)));
        gate.read_flags(words.iter())
    }

    #[test]
    fn a_commit_waits_for_a_lower_one_that_may_arrive() {
        let mut gate = CommitOrder::new(3);
        gate.push(0, 7, 'b');
        let before = look(&gate, [false, true, false]);
        assert_eq!(gate.pop_ready(before), None);
        gate.push(1, 6, 'a');
        assert_eq!(gate.pop_ready(before), Some('a'));
        assert_eq!(gate.pop_ready(before), None, "worker 1 may continue after 6, perhaps with 7");
        let idle = look(&gate, [false; 3]);
        assert_eq!(gate.pop_ready(idle), Some('b'));
        assert!(gate.is_empty());
    }

    #[test]
    fn a_commit_received_after_the_flags_were_read_waits_for_the_next_pass() {
        let mut gate = CommitOrder::new(3);
        gate.push(0, 5, 'a');
        let before = look(&gate, [false; 3]);
        gate.push(0, 7, 'c');
        assert_eq!(gate.pop_ready(before), Some('a'));
        assert_eq!(gate.pop_ready(before), None, "worker 1 may have begun 6 since");
        gate.push(1, 6, 'b');
        let idle = look(&gate, [false; 3]);
        assert_eq!((gate.pop_ready(idle), gate.pop_ready(idle)), (Some('b'), Some('c')));
    }

    #[test]
    fn a_worker_with_a_higher_number_delays_no_commit() {
        let mut gate = CommitOrder::new(3);
        gate.push(1, 9, 'c');
        gate.push(0, 8, 'b');
        let second = look(&gate, [false, true, false]);
        assert_eq!(gate.pop_ready(second), Some('b'));
        assert_eq!(gate.pop_ready(second), Some('c'), "worker 1 writes after 9");
    }

    #[test]
    fn equal_numbers_leave_in_the_order_of_arrival() {
        let mut gate = CommitOrder::new(3);
        gate.push(0, 5, 1);
        gate.push(0, 5, 2);
        let idle = look(&gate, [false; 3]);
        assert_eq!((gate.pop_ready(idle), gate.pop_ready(idle)), (Some(1), Some(2)));
    }
}
