//! # Deferred sort: replayed keys are sorted together
//!
//! Readers need the order of replayed keys only when replay is complete. Inserting the keys one by
//! one would cost a descent and the move of half a leaf for each. They are therefore collected,
//! sorted by heads, and written to leaves together.
//!
//! ## Picture
//!
//! ```text
//!  add_unordered: record, hash cell, pending place in the line of the thread
//!  sort_part:     pending places of all lines -> runs
//!  finish_sort:   runs -> leaves -> root
//! ```
//!
//! ## Invariants
//!
//! 1. Keys are pending only while the tree of keys (`sorted_keys`) is empty. If as many are pending
//!    as the owner permits, they are sorted at once. After the first sort, keys are inserted into
//!    the tree one by one.
//! 2. No reader requests keys in order while some are pending. (Lookups by hash work from the
//!    beginning.)
//!
//! ## Threads
//!
//! Threads add different keys at the same time. A thread holds the lock of its line until its key
//! is pending. The sort takes the locks of all lines in ascending order, so it misses no key.
//!
//! ## Costs
//!
//! A pending key takes 20 bytes, and each line has room for up to as many keys as it has.

use super::arena::ArenaOffset;
use super::prefix::KeyPrefix;
use super::sorted_keys::KeySource;
use super::table::KeyTable;
use crate::keys::common_prefix_len;
use sheaf_log::types::Seq;
use sheaf_platform::memory::Memory;
use sheaf_platform::sync::MutexGuard;
use sheaf_platform::sync::epoch::Guard;

/// Bytes of a pending key: its place, and later its place with its head.
pub(super) const PENDING_KEY_BYTES: u64 = 4 + 16;

/// Keys of one line that are not sorted yet.
#[derive(Debug, Default)]
pub(super) struct PendingKeys {
    places: Vec<ArenaOffset>,
    /// Length of the prefix that all keys share, taken from the first key.
    shared: usize,
}

impl PendingKeys {
    /// Adds a key. Returns the number of keys for which room was added.
    fn push<const LINK: usize>(&mut self, place: ArenaOffset, key: &[u8], table: &KeyTable<LINK>) -> u64 {
        self.shared = match self.places.first() {
            None => key.len(),
            Some(first) => common_prefix_len(&table.key(*first)[..self.shared], key),
        };
        let room = self.places.capacity();
        self.places.push(place);
        (self.places.capacity() - room) as u64
    }
}

/// Fraction (1/n) of the memory budget that pending keys may take.
const BUDGET_SHARE: u64 = 4;

impl<const LINK: usize> KeyTable<LINK> {
    /// Stores a replayed version, while there are no readers. If `place` is not 0, the record there
    /// gets a new word. Otherwise a new record is added, pending for [`KeyTable::finish_sort`], as
    /// far as the budget permits. Must be called by one thread at a time for each key.
    pub fn put_unsorted(
        &self,
        place: ArenaOffset,
        hash: u64,
        key: &[u8],
        (word, seq): (u64, Seq),
        memory: &Memory,
        guard: &Guard,
    ) {
        if place != 0 {
            return self.set(place, word, seq);
        }
        let most = memory.budget() / BUDGET_SHARE / PENDING_KEY_BYTES;
        if self.add_unordered(hash, key, (word, seq), most, guard) {
            self.update_accounting(memory);
        }
    }

    /// Like [`KeyTable::add`], but the key may stay pending for [`KeyTable::finish_sort`]. At most
    /// `most` keys are pending. Returns whether [`KeyTable::bytes`] changed. Must be called by one
    /// thread at a time for each key.
    pub(super) fn add_unordered(
        &self,
        hash: u64,
        key: &[u8],
        (word, seq): (u64, Seq),
        most: u64,
        guard: &Guard,
    ) -> bool {
        let mut pending = self.pending().lock();
        if self.is_in_order() {
            drop(pending);
            return self.add(hash, key, word, seq, guard);
        }
        let (place, is_more) = self.add_found(hash, key, word, seq, guard);
        let more = pending.push(place, key, self);
        let room = self.note_pending_room(more); // before the key is counted (`is_in_order`)
        drop(pending);
        self.count_one();
        if more > 0 && room >= most {
            self.finish_sort(guard);
        }
        is_more || more > 0
    }

    /// Returns true if new keys belong into the order at once (I1): a sort took place, or there are
    /// keys that never were pending. The caller holds the lock of its line.
    fn is_in_order(&self) -> bool {
        // A thread that adds the first key makes room before it counts the key. So a thread that
        // sees the count then sees the room.
        if self.is_sorted() {
            return true;
        }
        let has_sorted_keys = self.pending_room() == 0 && self.count() > 0;
        has_sorted_keys && self.pending_room() == 0
    }

    /// Sorts one of `parts` parts of the pending keys. Parts may be sorted in parallel, after all
    /// keys have been added.
    pub fn sort_part(&self, part: usize, parts: usize) {
        let (places, prefix) = {
            let lines = self.lock_pending();
            let len: usize = lines.iter().map(|line| line.places.len()).sum();
            let (from, to) = (len * part / parts, len * (part + 1) / parts);
            (places_between(&lines, from, to), self.common_prefix(&lines))
        };
        let mut run = self.sorted_run(places, &prefix);
        self.sorted_runs.lock().append(&mut run);
    }

    fn sorted_run(&self, places: Vec<ArenaOffset>, prefix: &KeyPrefix) -> Vec<(u64, ArenaOffset)> {
        let mut run: Vec<_> = places.into_iter().map(|place| (prefix.head(self.key(place)), place)).collect();
        run.sort_unstable_by(|a, b| self.compare(a, b));
        run
    }

    /// Inserts the sorted keys into the order. From now on keys are inserted one by one. Either all
    /// parts are sorted, or none, if replay ended early.
    pub fn finish_sort(&self, guard: &Guard) {
        let mut lines = self.lock_pending();
        let prefix = self.common_prefix(&lines);
        let mut all = std::mem::take(&mut *self.sorted_runs.lock());
        if all.is_empty() {
            all = self.sorted_run(places_between(&lines, 0, usize::MAX), &prefix);
        } else {
            all.sort_by(|a, b| self.compare(a, b)); // the stable sort merges the runs
        }
        if !all.is_empty() {
            self.order().build(&self.arena, prefix, &all, guard);
        }
        lines.iter_mut().for_each(|line| **line = PendingKeys::default());
        self.note_sorted();
    }

    /// Locks the pending keys of all lines, in ascending order. Empty if there are no keys.
    fn lock_pending(&self) -> Vec<MutexGuard<'_, PendingKeys>> {
        self.all_pending().map(|pending| pending.lock()).collect()
    }

    /// Returns the prefix that all pending keys share.
    fn common_prefix(&self, lines: &[MutexGuard<'_, PendingKeys>]) -> KeyPrefix {
        let firsts = || lines.iter().filter_map(|line| Some((self.key(*line.places.first()?), line.shared)));
        let Some((first, _)) = firsts().next() else { return KeyPrefix::new(&[]) };
        let shared = firsts().map(|(key, shared)| shared.min(common_prefix_len(first, key))).min();
        KeyPrefix::new(&first[..shared.unwrap_or(0)])
    }

    fn compare(
        &self,
        (a, a_place): &(u64, ArenaOffset),
        (b, b_place): &(u64, ArenaOffset),
    ) -> std::cmp::Ordering {
        a.cmp(b).then_with(|| self.key(*a_place).cmp(self.key(*b_place)))
    }
}

/// Returns the pending places from number `from` to number `to`, counted over all lines.
fn places_between(lines: &[MutexGuard<'_, PendingKeys>], from: usize, to: usize) -> Vec<ArenaOffset> {
    let (mut all, mut before) = (Vec::new(), 0);
    for line in lines {
        let len = line.places.len();
        let share = from.clamp(before, before + len)..to.clamp(before, before + len);
        all.extend_from_slice(&line.places[share.start - before..share.end - before]);
        before += len;
    }
    all
}
