//! # Deferred sort: replayed keys are sorted together
//!
//! Readers need the order of replayed keys only when replay is complete. Inserting the keys one by
//! one would cost a descent and the move of half a leaf for each. They are therefore collected,
//! sorted by heads, and written to leaves together.
//!
//! ## Picture
//!
//! ```text
//!  add_unordered: record, hash cell, pending place
//!  sort_part:     pending places -> runs
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
//! ## Costs
//!
//! A pending key takes 20 bytes: its place, and the memory for sorting.

use super::arena::ArenaOffset;
use super::prefix::KeyPrefix;
use super::sorted_keys::KeySource;
use super::table::KeyTable;
use crate::keys::common_prefix_len;
use sheaf_log::types::Seq;
use sheaf_platform::memory::Memory;
use sheaf_platform::sync::epoch::Guard;

/// Bytes of a pending key: its place, and later its place with its head.
pub(super) const PENDING_KEY_BYTES: u64 = 4 + 16;

/// Keys that are not sorted yet.
#[derive(Debug, Default)]
pub(super) struct PendingKeys {
    places: Vec<ArenaOffset>,
    /// Length of the prefix that all keys share, taken from the first key.
    shared: usize,
    /// Sorted parts of `places`.
    runs: Vec<(u64, ArenaOffset)>,
    /// True if keys are inserted directly from now on (I1).
    is_finished: bool,
}

/// Fraction (1/n) of the memory budget that pending keys may take.
const BUDGET_SHARE: u64 = 4;

impl<const LINK: usize> KeyTable<LINK> {
    /// Stores a replayed version, while there are no readers. If `place` is not 0, the record there
    /// gets a new word. Otherwise a new record is added, pending for [`KeyTable::finish_sort`], as
    /// far as the budget permits. Must be called by one thread at a time.
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
        self.with_accounting(memory, || self.add_unordered(hash, key, (word, seq), most, guard));
    }

    /// Like [`KeyTable::add`], but the key may stay pending for [`KeyTable::finish_sort`]. At most
    /// `most` keys are pending. Must be called by one thread at a time.
    pub(super) fn add_unordered(
        &self,
        hash: u64,
        key: &[u8],
        (word, seq): (u64, Seq),
        most: u64,
        guard: &Guard,
    ) {
        let mut waiting = self.waiting.lock();
        let count = waiting.places.len() as u64;
        if waiting.is_finished || (count == 0 && self.count() > 0) {
            drop(waiting);
            self.add(hash, key, word, seq, guard);
            return;
        }
        let (place, _) = self.add_found(hash, key, word, seq, guard);
        waiting.shared = match waiting.places.first() {
            None => key.len(),
            Some(first) => common_prefix_len(&self.key(*first)[..waiting.shared], key),
        };
        waiting.places.push(place);
        self.note_waiting(count + 1);
        drop(waiting);
        self.count_one();
        if count + 1 >= most {
            self.sort_part(0, 1);
            self.finish_sort(guard);
        }
    }

    /// Sorts one of `parts` parts of the pending keys. Parts may be sorted in parallel, after all
    /// keys have been added.
    pub fn sort_part(&self, part: usize, parts: usize) {
        let (mut run, prefix) = {
            let waiting = self.waiting.lock();
            let len = waiting.places.len();
            let share = &waiting.places[len * part / parts..len * (part + 1) / parts];
            (share.iter().map(|place| (0, *place)).collect::<Vec<_>>(), self.common_prefix(&waiting))
        };
        run.iter_mut().for_each(|(head, place)| *head = prefix.head(self.key(*place)));
        run.sort_unstable_by(|a, b| self.compare(a, b));
        self.waiting.lock().runs.append(&mut run);
    }

    /// Inserts the sorted keys into the order. From now on keys are inserted one by one. Either all
    /// parts are sorted, or none, if replay ended early.
    pub fn finish_sort(&self, guard: &Guard) {
        if self.waiting.lock().runs.is_empty() {
            self.sort_part(0, 1);
        }
        let mut waiting = self.waiting.lock();
        let mut all = std::mem::take(&mut waiting.runs);
        if !all.is_empty() {
            all.sort_by(|a, b| self.compare(a, b)); // the stable sort merges the runs
            self.order().build(&self.arena, self.common_prefix(&waiting), &all, guard);
        }
        *waiting = PendingKeys { is_finished: true, ..PendingKeys::default() };
        self.note_waiting(0);
    }

    fn common_prefix(&self, waiting: &PendingKeys) -> KeyPrefix {
        let first = waiting.places.first().map_or(&[][..], |first| self.key(*first));
        KeyPrefix::new(&first[..waiting.shared])
    }

    fn compare(
        &self,
        (a, a_place): &(u64, ArenaOffset),
        (b, b_place): &(u64, ArenaOffset),
    ) -> std::cmp::Ordering {
        a.cmp(b).then_with(|| self.key(*a_place).cmp(self.key(*b_place)))
    }
}
