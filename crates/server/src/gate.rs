//! # Gate: commits leave in the order of their numbers
//!
//! Several workers commit for one client at once, and their replies reach its agent in any order. The gate
//! holds a commit back while another worker may still come with a lower number.
//!
//! ## Why it suffices
//!
//! A worker says in the session that it is *writing* before it commits, and stops saying so after its reply is
//! in the agent's queue. The agent notes the highest number that it has heard, **then** looks at these words, **then** empties its
//! queue, and lets out a commit of number s, not above the noted one, if every other worker
//!
//! * was not writing when looked at: what it committed before is in the gate by now, and what it begins later
//!   gets a higher number than the noted one, which was given before the look; or
//! * has been heard with a number ≥ s: what it writes now gets a higher one.
//!
//! What the emptying brought beyond the noted number has to wait for the next look: a worker that was not writing may have begun
//! since, and have a lower one. A worker rings the agent after it stopped writing, so a commit that is held is looked at again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sheaf_base::sync::atomic::{AtomicBool, Ordering};

/// What a worker says about one session.
#[derive(Debug, Default)]
pub(crate) struct Writing(AtomicBool);

impl Writing {
    /// It is about to commit.
    pub(crate) fn begin(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Its reply is in the agent's queue. Ring the agent after this.
    pub(crate) fn end(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// What a look at the workers of a session came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    /// The highest number heard before.
    pub(crate) highest: u64,
    /// One bit each that was writing.
    writing: u64,
}

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

    /// A look at who is writing. Empty the queue after it.
    pub(crate) fn look<'a>(&self, workers: impl Iterator<Item = &'a Writing>) -> Look {
        let highest = self.heard.iter().copied().max().unwrap_or(0);
        let bit = |(lane, writing): (usize, &Writing)| u64::from(writing.is_on()) << lane;
        Look { highest, writing: workers.enumerate().map(bit).fold(0, |all, bit| all | bit) }
    }

    /// The next commit that may leave after this look.
    pub(crate) fn release(&mut self, look: Look) -> Option<T> {
        let Reverse(first) = self.held.peek()?;
        let may_come = |(lane, heard): (usize, &u64)| look.writing & 1 << lane != 0 && *heard < first.seq;
        if first.seq > look.highest || self.heard.iter().enumerate().any(may_come) {
            return None;
        }
        self.held.pop().map(|Reverse(held)| held.what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A look at three workers, of whom these are writing.
    fn look<T>(gate: &Gate<T>, writing: [bool; 3]) -> Look {
        let words = writing.map(|on| Writing(AtomicBool::new(on)));
        gate.look(words.iter())
    }

    #[test]
    fn a_commit_waits_for_a_lower_one_that_may_come() {
        let mut gate = Gate::new(3);
        gate.hold(0, 7, 'b');
        let before = look(&gate, [false, true, false]);
        assert_eq!(gate.release(before), None);
        gate.hold(1, 6, 'a');
        assert_eq!(gate.release(before), Some('a'));
        assert_eq!(gate.release(before), None, "worker 1 goes on behind 6, perhaps with 7");
        let nobody = look(&gate, [false; 3]);
        assert_eq!(gate.release(nobody), Some('b'));
        assert!(gate.is_empty());
    }

    #[test]
    fn a_commit_heard_after_the_look_waits_for_the_next_one() {
        let mut gate = Gate::new(3);
        gate.hold(0, 5, 'a');
        let before = look(&gate, [false; 3]);
        gate.hold(0, 7, 'c');
        assert_eq!(gate.release(before), Some('a'));
        assert_eq!(gate.release(before), None, "worker 1 may have begun 6 after the look");
        gate.hold(1, 6, 'b');
        let nobody = look(&gate, [false; 3]);
        assert_eq!((gate.release(nobody), gate.release(nobody)), (Some('b'), Some('c')));
    }

    #[test]
    fn who_was_heard_beyond_holds_up_nobody() {
        let mut gate = Gate::new(3);
        gate.hold(1, 9, 'c');
        gate.hold(0, 8, 'b');
        let second = look(&gate, [false, true, false]);
        assert_eq!(gate.release(second), Some('b'));
        assert_eq!(gate.release(second), Some('c'), "worker 1 writes behind 9");
    }

    #[test]
    fn equal_numbers_leave_as_they_came() {
        let mut gate = Gate::new(3);
        gate.hold(0, 5, 1);
        gate.hold(0, 5, 2);
        let nobody = look(&gate, [false; 3]);
        assert_eq!((gate.release(nobody), gate.release(nobody)), (Some(1), Some(2)));
    }
}
