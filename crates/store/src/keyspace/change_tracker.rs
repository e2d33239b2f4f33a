//! # Change tracker: keys that commits change in a keyspace during a conversion
//!
//! ## Picture
//!
//! ```text
//!  commit:  applied ─> record(key) ─> set of keys ── too large ──> marks: a bit for each hash
//!                                          │                             │
//!  conversion:  [no commit: view, take] └── copies these again ──────────┴── or all marked keys
//! ```
//!
//! ## Invariants
//!
//! 1. A commit records a key before the commit is complete. While a view is registered and the
//!    changes are taken, no commit runs. So the taken keys are all that changed since the previous
//!    view.
//! 2. While the keyspace is blocked, no commit to it gets a seq.
//!
//! ## Threads
//!
//! Committers read one flag. If it is set, they take one lock, after their stripes. A committer
//! waits for a blocked keyspace without stripes and without an epoch guard.
//!
//! ## Costs
//!
//! Inactive: one load per operation. Active: the key in a set up to a limit, and after that one
//! bit.

use std::collections::HashSet;
use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;

use sheaf_platform::sync::atomic::{AtomicBool, Ordering};
use sheaf_platform::sync::{Condvar, Mutex};

/// Longest delay of a commit that changes keys faster than they are copied.
const MAX_DELAY: Duration = Duration::from_millis(10);
/// Estimated bytes of an entry of the set in addition to the key.
const ENTRY_OVERHEAD: usize = 48;

/// Limits of the tracked changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrackerLimits {
    /// Bytes of the set.
    pub(crate) keys: usize,
    /// Bits of the marks: a power of two, at least 64.
    pub(crate) marks: usize,
}

impl TrackerLimits {
    pub(crate) fn new(tiny: bool, budget: u64) -> TrackerLimits {
        match tiny {
            true => TrackerLimits { keys: 8 * ENTRY_OVERHEAD, marks: 1 << 6 },
            false => {
                TrackerLimits { keys: usize::try_from(budget / 16).unwrap_or(usize::MAX), marks: 1 << 23 }
            }
        }
    }
}

/// Changes since the last call.
#[derive(Debug)]
pub(crate) enum ChangedKeys {
    /// Changed keys.
    Keys(HashSet<Box<[u8]>>),
    /// Marks of the changed keys, which were too many for the set.
    Marks(HashMarks),
}

/// Set of hashes, one bit each.
#[derive(Debug)]
pub(crate) struct HashMarks(Box<[u64]>);

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

    /// Returns true if the key, or another one with the same bit, was changed.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let (word, bit) = self.bit_position(key);
        self.0[word] & bit != 0
    }
}

/// Changes since the last [`ChangeTracker::take`].
#[derive(Debug)]
struct TrackedChanges {
    limits: TrackerLimits,
    keys: HashSet<Box<[u8]>>,
    bytes: usize,
    /// Present if there were too many keys for the set.
    marks: Option<HashMarks>,
    /// Above this number of keys commits are delayed.
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

    /// Marks all keys.
    fn add_all(&mut self) {
        (self.keys, self.bytes) = (HashSet::new(), 0);
        let mut marks = HashMarks::new(self.limits.marks);
        marks.0.fill(u64::MAX);
        self.marks = Some(marks);
    }

    fn take(&mut self) -> ChangedKeys {
        self.bytes = 0;
        let keys = std::mem::take(&mut self.keys);
        self.marks.take().map_or(ChangedKeys::Keys(keys), ChangedKeys::Marks)
    }
}

/// Change tracker of a keyspace; inactive unless a conversion is running.
#[derive(Debug, Default)]
pub(crate) struct ChangeTracker {
    /// Whether commits have to take the lock.
    is_active: AtomicBool,
    state: Mutex<TrackerState>,
    /// Signalled when the keyspace is unblocked, and when changes were taken.
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
    /// Starts tracking. Returns false if it is active already. No commit may run concurrently.
    pub(crate) fn start(&self, limits: TrackerLimits) -> bool {
        let mut state = self.state.lock();
        if state.changes.is_some() {
            return false;
        }
        state.changes = Some(TrackedChanges::new(limits));
        self.update_active(&state);
        true
    }

    /// Stops tracking.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.changes = None;
        self.update_active(&state);
    }

    /// Takes the changes since the last call. No commit may run concurrently.
    pub(crate) fn take(&self) -> ChangedKeys {
        let mut state = self.state.lock();
        self.changed.notify_all();
        state.changes.as_mut().map_or(ChangedKeys::Keys(HashSet::new()), TrackedChanges::take)
    }

    /// Returns the number of changed keys, or `None` if they are not known.
    pub(crate) fn count(&self) -> Option<usize> {
        let state = self.state.lock();
        state.changes.as_ref().filter(|notes| notes.marks.is_none()).map(|notes| notes.keys.len())
    }

    /// Returns the memory of the changes in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state.lock();
        let bytes =
            |notes: &TrackedChanges| notes.bytes + notes.marks.as_ref().map_or(0, |marks| marks.0.len() * 8);
        state.changes.as_ref().map_or(0, bytes) as u64
    }

    /// Delays commits while more than `keys` changed keys are pending.
    pub(crate) fn set_delay_above(&self, keys: usize) {
        self.state.lock().changes.iter_mut().for_each(|notes| notes.delay_above = keys);
    }

    /// Returns true if commits have to take the lock.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Records that a commit, which is not complete yet, changed `key`.
    #[cold]
    pub(crate) fn record(&self, key: &[u8]) {
        self.state.lock().changes.iter_mut().for_each(|notes| notes.add(key));
    }

    /// Records that a commit, which is not complete yet, may have changed any keys.
    #[cold]
    pub(crate) fn record_all(&self) {
        self.state.lock().changes.iter_mut().for_each(TrackedChanges::add_all);
    }

    /// Returns true if commits must wait. Called by a commit that holds its stripes.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_active() && self.state.lock().is_blocked
    }

    /// Blocks commits. No commit may run concurrently. One thread at a time may block a keyspace.
    pub(crate) fn block(&self) {
        let mut state = self.state.lock();
        assert!(!state.is_blocked, "change_tracker (I2): only one thread blocks and unblocks a keyspace");
        state.is_blocked = true;
        self.update_active(&state);
    }

    /// Unblocks commits.
    pub(crate) fn unblock(&self) {
        let mut state = self.state.lock();
        state.is_blocked = false;
        self.update_active(&state);
        self.changed.notify_all();
    }

    /// Waits until commits are not blocked.
    #[cold]
    pub(crate) fn wait_unblocked(&self) {
        let mut state = self.state.lock();
        while state.is_blocked {
            self.changed.wait(&mut state);
        }
    }

    /// Returns true if commits are too far ahead of the conversion.
    #[cold]
    pub(crate) fn is_over_limit(&self) -> bool {
        self.state.lock().is_over_limit()
    }

    /// Delays a commit that is too far ahead.
    #[cold]
    pub(crate) fn delay(&self) {
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
        watch.record_all();
        let ChangedKeys::Marks(marks) = watch.take() else { panic!("all keys are marked") };
        assert!(many.iter().all(|key| marks.contains(key)));
        watch.record(b"again");
        assert_eq!(watch.count(), Some(1), "begins anew");
        watch.stop();
        assert!(!watch.is_active());
    }
}
