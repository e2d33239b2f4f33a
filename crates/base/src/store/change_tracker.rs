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
//! 1. A key is noted by the commit that changes it, before it is complete. A view is registered and
//!    notes are taken while no commit runs, so that what is taken is all that changed since the
//!    view before.
//! 2. While the keyspace is held no commit that touches it gets a number.
//!
//! ## Threads
//!
//! Committers look at one flag. Behind it one lock, which is taken after stripes. Whoever meets a
//! held keyspace waits without stripes and without a guard.
//!
//! ## Costs
//!
//! Unwatched: one load an operation. Watched: the key in a set, up to a limit; from then on a bit
//! of a fixed number of them.

use std::collections::HashSet;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, Mutex};

/// Longest delay of a commit that changes more than is copied.
const MAX_DELAY: Duration = Duration::from_millis(10);
/// Bytes that an entry of the set takes beside its key, about.
const ENTRY_OVERHEAD: usize = 48;

/// How much is noted key by key, and how finely the rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrackerLimits {
    /// Bytes of the set.
    pub(super) keys: usize,
    /// Bits of the marks: a power of two, at least 64.
    pub(super) marks: usize,
}

impl TrackerLimits {
    pub(super) fn new(tiny: bool, budget: u64) -> TrackerLimits {
        match tiny {
            true => TrackerLimits { keys: 8 * ENTRY_OVERHEAD, marks: 1 << 6 },
            false => {
                TrackerLimits { keys: usize::try_from(budget / 16).unwrap_or(usize::MAX), marks: 1 << 23 }
            }
        }
    }
}

/// What was changed.
#[derive(Debug)]
pub(super) enum ChangedKeys {
    /// These.
    Keys(HashSet<Box<[u8]>>),
    /// All whose mark is set, and more than there is room for.
    Marks(HashMarks),
}

/// A bit for each hash.
#[derive(Debug)]
pub(super) struct HashMarks(Box<[u64]>);

impl HashMarks {
    fn new(bits: usize) -> HashMarks {
        HashMarks(vec![0; bits / 64].into())
    }

    fn bit_position(&self, key: &[u8]) -> (usize, u64) {
        let mut hasher = SipHasher13::new();
        hasher.write(key);
        let hash = usize::try_from(hasher.finish() >> 1).unwrap_or(usize::MAX);
        (hash / 64 % self.0.len(), 1 << (hash % 64))
    }

    fn set(&mut self, key: &[u8]) {
        let (word, bit) = self.bit_position(key);
        self.0[word] |= bit;
    }

    /// Whether the key, or another with its mark, was changed.
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        let (word, bit) = self.bit_position(key);
        self.0[word] & bit != 0
    }
}

/// What is noted since the last look.
#[derive(Debug)]
struct TrackedChanges {
    limits: TrackerLimits,
    keys: HashSet<Box<[u8]>>,
    bytes: usize,
    /// There were too many keys for the set.
    marks: Option<HashMarks>,
    /// From so many keys on commits are delayed.
    delay_above: usize,
}

impl TrackedChanges {
    fn new(limits: TrackerLimits) -> TrackedChanges {
        TrackedChanges { limits, keys: HashSet::new(), bytes: 0, marks: None, delay_above: usize::MAX }
    }

    fn add(&mut self, key: &[u8]) {
        if let Some(marks) = &mut self.marks {
            return marks.set(key);
        }
        if !self.keys.contains(key) {
            self.bytes += ENTRY_OVERHEAD + key.len();
            self.keys.insert(key.into());
        }
        if self.bytes > self.limits.keys {
            let mut marks = HashMarks::new(self.limits.marks);
            self.keys.drain().for_each(|key| marks.set(&key));
            (self.keys, self.bytes, self.marks) = (HashSet::new(), 0, Some(marks));
        }
    }

    fn take(&mut self) -> ChangedKeys {
        self.bytes = 0;
        let keys = std::mem::take(&mut self.keys);
        self.marks.take().map_or(ChangedKeys::Keys(keys), ChangedKeys::Marks)
    }
}

/// One keyspace's watch: off but for the time of a conversion.
#[derive(Debug, Default)]
pub(super) struct ChangeTracker {
    /// Commits have to look closer.
    is_active: AtomicBool,
    state: Mutex<TrackerState>,
    /// It is held no more, or something was copied.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TrackerState {
    changes: Option<TrackedChanges>,
    is_blocked: bool,
}

impl TrackerState {
    fn is_over_limit(&self) -> bool {
        let is_ahead = |notes: &TrackedChanges| notes.marks.is_some() || notes.keys.len() > notes.delay_above;
        self.changes.as_ref().is_some_and(|notes| notes.delay_above != usize::MAX && is_ahead(notes))
    }
}

impl ChangeTracker {
    /// Begins to take notes. False if somebody does already. While no commit runs.
    pub(super) fn start(&self, limits: TrackerLimits) -> bool {
        let mut state = self.state.lock();
        if state.changes.is_some() {
            return false;
        }
        state.changes = Some(TrackedChanges::new(limits));
        self.update_active(&state);
        true
    }

    /// Ends it.
    pub(super) fn stop(&self) {
        let mut state = self.state.lock();
        state.changes = None;
        self.update_active(&state);
    }

    /// What was changed since the last call. While no commit runs.
    pub(super) fn take(&self) -> ChangedKeys {
        let mut state = self.state.lock();
        self.changed.notify_all();
        state.changes.as_mut().map_or(ChangedKeys::Keys(HashSet::new()), TrackedChanges::take)
    }

    /// How many keys were changed since then, if they are known.
    pub(super) fn count(&self) -> Option<usize> {
        let state = self.state.lock();
        state.changes.as_ref().filter(|notes| notes.marks.is_none()).map(|notes| notes.keys.len())
    }

    /// Bytes that the notes take.
    pub(super) fn memory(&self) -> u64 {
        let state = self.state.lock();
        let bytes =
            |notes: &TrackedChanges| notes.bytes + notes.marks.as_ref().map_or(0, |marks| marks.0.len() * 8);
        state.changes.as_ref().map_or(0, bytes) as u64
    }

    /// From now on commits are delayed while more than `keys` are noted.
    pub(super) fn set_delay_above(&self, keys: usize) {
        self.state.lock().changes.iter_mut().for_each(|notes| notes.delay_above = keys);
    }

    /// Whether commits have to look closer.
    #[inline]
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// A commit that is not complete yet changed `key`.
    #[cold]
    pub(super) fn record(&self, key: &[u8]) {
        self.state.lock().changes.iter_mut().for_each(|notes| notes.add(key));
    }

    /// Whether commits have to wait. Asked by a commit that holds its stripes.
    pub(super) fn is_blocked(&self) -> bool {
        self.is_active() && self.state.lock().is_blocked
    }

    /// While no commit runs: from now on commits wait.
    pub(super) fn block(&self) {
        let mut state = self.state.lock();
        state.is_blocked = true;
        self.update_active(&state);
    }

    /// Commits go on.
    pub(super) fn unblock(&self) {
        let mut state = self.state.lock();
        state.is_blocked = false;
        self.update_active(&state);
        self.changed.notify_all();
    }

    /// Waits until commits may go on.
    #[cold]
    pub(super) fn wait_unblocked(&self) {
        let mut state = self.state.lock();
        while state.is_blocked {
            self.changed.wait(&mut state);
        }
    }

    /// Whether a commit is too far ahead of whoever copies.
    #[cold]
    pub(super) fn is_over_limit(&self) -> bool {
        self.state.lock().is_over_limit()
    }

    /// Slows a commit down that is.
    #[cold]
    pub(super) fn delay(&self) {
        let mut state = self.state.lock();
        if state.is_over_limit() {
            self.changed.wait_for(&mut state, MAX_DELAY);
        }
    }

    fn update_active(&self, state: &TrackerState) {
        self.is_active.store(state.changes.is_some() || state.is_blocked, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_keys_are_tracked_by_hash() {
        let watch = ChangeTracker::default();
        assert!(watch.start(TrackerLimits { keys: 3 * (ENTRY_OVERHEAD + 1), marks: 1 << 10 }));
        assert!(!watch.start(TrackerLimits::new(true, 0)), "one at a time");
        [b"a", b"b", b"a", b"c"].into_iter().for_each(|key| watch.record(key));
        assert_eq!(watch.count(), Some(3));
        drop(watch.take());
        let many: Vec<[u8; 2]> = (0..100u8).map(|byte| [byte, 7]).collect();
        many.iter().for_each(|key| watch.record(key));
        assert_eq!(watch.count(), None);
        let ChangedKeys::Marks(marks) = watch.take() else { panic!("they do not fit") };
        assert!(many.iter().all(|key| marks.contains(key)));
        let others =
            (0..1000u16).filter(|other| marks.contains(&[b"other", &other.to_le_bytes()[..]].concat()));
        assert!(others.count() < 300, "and few others");
        watch.record(b"again");
        assert_eq!(watch.count(), Some(1), "begins anew");
        watch.stop();
        assert!(!watch.is_active());
    }
}
