//! # Gate: commits leave in the order of their numbers
//!
//! Several workers commit for one client at once, and their replies reach its agent in any order. The gate
//! holds a commit back while another worker may still come with a lower number.
//!
//! ## Why it suffices
//!
//! A worker says in the session that it is *writing* before it commits, and stops saying so after its reply is
//! in the agent's queue. The agent looks at these words **first**, then empties its queue, then lets out a
//! commit of number s if every other worker
//!
//! * was not writing when looked at: what it committed before is in the gate by now, and what it begins later
//!   gets a higher number than s, which was taken before the look; or
//! * has been heard with a number ≥ s: what it writes now gets a higher one.
//!
//! A worker rings the agent after it stopped writing, so a commit that is held is looked at again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Commits of one session that wait for lower numbers.
#[derive(Debug)]
pub(crate) struct Gate<T> {
    /// The highest number heard from each worker.
    heard: Vec<u64>,
    held: BinaryHeap<Reverse<Held<T>>>,
    arrivals: u64,
}

#[derive(Debug)]
struct Held<T> {
    seq: u64,
    /// Equal numbers (of commits that changed nothing) leave as they came.
    arrival: u64,
    what: T,
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Held<T>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Held<T> {}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Held<T>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Held<T> {
    fn cmp(&self, other: &Held<T>) -> std::cmp::Ordering {
        (self.seq, self.arrival).cmp(&(other.seq, other.arrival))
    }
}

impl<T> Gate<T> {
    pub(crate) fn new(workers: usize) -> Gate<T> {
        Gate { heard: vec![0; workers], held: BinaryHeap::new(), arrivals: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Worker `lane` committed `seq`.
    pub(crate) fn hold(&mut self, lane: usize, seq: u64, what: T) {
        self.heard[lane] = self.heard[lane].max(seq);
        self.arrivals += 1;
        self.held.push(Reverse(Held { seq, arrival: self.arrivals, what }));
    }

    /// The next commit that may leave, where bit w of `writing` says that worker w was writing before the queue
    /// was emptied.
    pub(crate) fn release(&mut self, writing: u64) -> Option<T> {
        let Reverse(first) = self.held.peek()?;
        let may_come = |(lane, heard): (usize, &u64)| writing & 1 << lane != 0 && *heard < first.seq;
        if self.heard.iter().enumerate().any(may_come) {
            return None;
        }
        self.held.pop().map(|Reverse(held)| held.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_waits_for_a_lower_one_that_may_come() {
        let mut gate = Gate::new(3);
        gate.hold(0, 7, 'b');
        assert_eq!(gate.release(0b010), None);
        gate.hold(1, 6, 'a');
        assert_eq!(gate.release(0b010), Some('a'));
        assert_eq!(gate.release(0b010), None, "worker 1 goes on behind 6, perhaps with 7");
        assert_eq!(gate.release(0), Some('b'));
        assert!(gate.is_empty());
    }

    #[test]
    fn who_was_heard_beyond_holds_up_nobody() {
        let mut gate = Gate::new(2);
        gate.hold(1, 9, 'c');
        gate.hold(0, 8, 'b');
        assert_eq!(gate.release(0b10), Some('b'));
        assert_eq!(gate.release(0b10), Some('c'), "worker 1 writes behind 9");
    }

    #[test]
    fn equal_numbers_leave_as_they_came() {
        let mut gate = Gate::new(1);
        gate.hold(0, 5, 1);
        gate.hold(0, 5, 2);
        assert_eq!((gate.release(0), gate.release(0)), (Some(1), Some(2)));
    }
}
