//! # Watch: what commits change in a keyspace that is being copied
//!
//! ## Picture
//!
//! ```text
//!  commit:  applied ─> note(key) ─> keys ── more than fit ──> marks: a bit for each hash
//!                                         │                          │
//!  conversion:  [no commit: view, take] └── these are copied again ┴── so is every key whose bit is set
//! ```
//!
//! ## Invariants
//!
//! 1. A key is noted by the commit that changes it, before it is complete. A view is registered and notes are taken while no commit
//!    runs, so that what is taken is all that changed since the view before.
//! 2. While the keyspace is held no commit that touches it gets a number.
//!
//! ## Threads
//!
//! Committers look at one flag. Behind it one lock, which is taken after stripes. Whoever meets a held keyspace waits
//! without stripes and without a guard.
//!
//! ## Costs
//!
//! Unwatched: one load an operation. Watched: the key in a set, up to a limit; from then on a bit of a fixed number of them.

use std::collections::HashSet;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};

/// Longest delay of a commit that changes more than is copied.
const LONGEST_DELAY: Duration = Duration::from_millis(10);
/// Bytes that an entry of the set takes beside its key, about.
const ENTRY: usize = 48;

/// How much is noted key by key, and how finely the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes of the set.
    pub(super) keys: usize,
    /// Bits of the marks: a power of two, at least 64.
    pub(super) marks: usize,
}

impl Limits {
    pub(super) fn new(tiny: bool, budget: u64) -> Limits {
        match tiny {
            true => Limits { keys: 8 * ENTRY, marks: 1 << 6 },
            false => Limits { keys: usize::try_from(budget / 16).unwrap_or(usize::MAX), marks: 1 << 23 },
        }
    }
}

/// What was changed.
#[derive(Debug)]
pub(super) enum Touched {
    /// These.
    Keys(HashSet<Box<[u8]>>),
    /// All whose mark is set, and more than there is room for.
    Marks(Marks),
}

/// A bit for each hash.
#[derive(Debug)]
pub(super) struct Marks(Box<[u64]>);

impl Marks {
    fn new(bits: usize) -> Marks {
        Marks(vec![0; bits / 64].into())
    }

    fn place(&self, key: &[u8]) -> (usize, u64) {
        let mut hasher = SipHasher13::new();
        hasher.write(key);
        let hash = usize::try_from(hasher.finish() >> 1).unwrap_or(usize::MAX);
        (hash / 64 % self.0.len(), 1 << (hash % 64))
    }

    fn set(&mut self, key: &[u8]) {
        let (word, bit) = self.place(key);
        self.0[word] |= bit;
    }

    /// Whether the key, or another with its mark, was changed.
    pub(super) fn has(&self, key: &[u8]) -> bool {
        let (word, bit) = self.place(key);
        self.0[word] & bit != 0
    }
}

/// What is noted since the last look.
#[derive(Debug)]
struct Notes {
    limits: Limits,
    keys: HashSet<Box<[u8]>>,
    bytes: usize,
    /// There were too many keys for the set.
    marks: Option<Marks>,
    /// From so many keys on commits are delayed.
    eager: usize,
}

impl Notes {
    fn new(limits: Limits) -> Notes {
        Notes { limits, keys: HashSet::new(), bytes: 0, marks: None, eager: usize::MAX }
    }

    fn add(&mut self, key: &[u8]) {
        if let Some(marks) = &mut self.marks {
            return marks.set(key);
        }
        if !self.keys.contains(key) {
            self.bytes += ENTRY + key.len();
            self.keys.insert(key.into());
        }
        if self.bytes > self.limits.keys {
            let mut marks = Marks::new(self.limits.marks);
            self.keys.drain().for_each(|key| marks.set(&key));
            (self.keys, self.bytes, self.marks) = (HashSet::new(), 0, Some(marks));
        }
    }

    fn take(&mut self) -> Touched {
        self.bytes = 0;
        let keys = std::mem::take(&mut self.keys);
        self.marks.take().map_or(Touched::Keys(keys), Touched::Marks)
    }
}

/// One keyspace's watch: off but for the time of a conversion.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Commits have to look closer.
    is_on: AtomicBool,
    state: Mutex<State>,
    /// It is held no more, or something was copied.
    moved: Condvar,
}

#[derive(Debug, Default)]
struct State {
    notes: Option<Notes>,
    is_held: bool,
}

impl State {
    fn is_ahead(&self) -> bool {
        let is_ahead = |notes: &Notes| notes.marks.is_some() || notes.keys.len() > notes.eager;
        self.notes.as_ref().is_some_and(|notes| notes.eager != usize::MAX && is_ahead(notes))
    }
}

impl Watch {
    /// Begins to take notes. False if somebody does already. While no commit runs.
    pub(super) fn begin(&self, limits: Limits) -> bool {
        let mut state = self.state.lock();
        if state.notes.is_some() {
            return false;
        }
        state.notes = Some(Notes::new(limits));
        self.settle(&state);
        true
    }

    /// Ends it.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        state.notes = None;
        self.settle(&state);
    }

    /// What was changed since the last call. While no commit runs.
    pub(super) fn take(&self) -> Touched {
        let mut state = self.state.lock();
        self.moved.notify_all();
        state.notes.as_mut().map_or(Touched::Keys(HashSet::new()), Notes::take)
    }

    /// How many keys were changed since then, if they are known.
    pub(super) fn count(&self) -> Option<usize> {
        let state = self.state.lock();
        state.notes.as_ref().filter(|notes| notes.marks.is_none()).map(|notes| notes.keys.len())
    }

    /// Bytes that the notes take.
    pub(super) fn memory(&self) -> u64 {
        let state = self.state.lock();
        let bytes = |notes: &Notes| notes.bytes + notes.marks.as_ref().map_or(0, |marks| marks.0.len() * 8);
        state.notes.as_ref().map_or(0, bytes) as u64
    }

    /// From now on commits are delayed while more than `keys` are noted.
    pub(super) fn slow_down(&self, keys: usize) {
        self.state.lock().notes.iter_mut().for_each(|notes| notes.eager = keys);
    }

    /// Whether commits have to look closer.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// A commit that is not complete yet changed `key`.
    #[cold]
    pub(super) fn note(&self, key: &[u8]) {
        self.state.lock().notes.iter_mut().for_each(|notes| notes.add(key));
    }

    /// Whether commits have to wait. Asked by a commit that holds its stripes.
    pub(super) fn is_held(&self) -> bool {
        self.is_on() && self.state.lock().is_held
    }

    /// While no commit runs: from now on commits wait.
    pub(super) fn hold(&self) {
        let mut state = self.state.lock();
        state.is_held = true;
        self.settle(&state);
    }

    /// Commits go on.
    pub(super) fn let_go(&self) {
        let mut state = self.state.lock();
        state.is_held = false;
        self.settle(&state);
        self.moved.notify_all();
    }

    /// Waits until commits may go on.
    #[cold]
    pub(super) fn wait(&self) {
        let mut state = self.state.lock();
        while state.is_held {
            self.moved.wait(&mut state);
        }
    }

    /// Whether a commit is too far ahead of whoever copies.
    #[cold]
    pub(super) fn is_ahead(&self) -> bool {
        self.state.lock().is_ahead()
    }

    /// Slows a commit down that is.
    #[cold]
    pub(super) fn delay(&self) {
        let mut state = self.state.lock();
        if state.is_ahead() {
            self.moved.wait_for(&mut state, LONGEST_DELAY);
        }
    }

    fn settle(&self, state: &State) {
        self.is_on.store(state.notes.is_some() || state.is_held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_as_keys_is_marked() {
        let watch = Watch::default();
        assert!(watch.begin(Limits { keys: 3 * (ENTRY + 1), marks: 1 << 10 }));
        assert!(!watch.begin(Limits::new(true, 0)), "one at a time");
        [b"a", b"b", b"a", b"c"].into_iter().for_each(|key| watch.note(key));
        assert_eq!(watch.count(), Some(3));
        drop(watch.take());
        let many: Vec<[u8; 2]> = (0..100u8).map(|byte| [byte, 7]).collect();
        many.iter().for_each(|key| watch.note(key));
        assert_eq!(watch.count(), None);
        let Touched::Marks(marks) = watch.take() else { panic!("they do not fit") };
        assert!(many.iter().all(|key| marks.has(key)));
        let others = (0..1000u16).filter(|other| marks.has(&[b"other", &other.to_le_bytes()[..]].concat()));
        assert!(others.count() < 300, "and few others");
        watch.note(b"again");
        assert_eq!(watch.count(), Some(1), "begins anew");
        watch.end();
        assert!(!watch.is_on());
    }
}
