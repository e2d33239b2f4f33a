//! # Load: many keys come first and are put into order at once
//!
//! What an opening replays is asked for in order only when all of it is there. Keys that come one
//! by one cost a descent and half a leaf moved each; so they wait, are sorted by heads, and leaves
//! are made of them.
//!
//! ## Picture
//!
//! ```text
//!  add_unordered: record, hash cell, place waits     sort_share: waiting places -> runs     settle: runs -> leaves -> root
//! ```
//!
//! ## Invariants
//!
//! 1. A place waits only while the order is empty: once keys were put into order the next ones go
//!    there one by one. So it is if more wait than their owner wants.
//! 2. Nobody asks for keys in order while some wait. (They are found by hash from the beginning.)
//!
//! ## Costs
//!
//! While they wait, 20 bytes a key: its place, and what sorting takes. Of the replay of 2 M records
//! more than half of the time was putting their keys into order one by one; this way the whole
//! takes a third (flex 2.0 s before, 0.6 now; means of two, two cores).

use super::arena::ArenaOffset;
use super::prefix::KeyPrefix;
use super::sorted_keys::KeySource;
use super::table::KeyTable;
use crate::keys::common_prefix_len;
use crate::memory::Memory;
use crate::sync::epoch::Guard;
use crate::types::Seq;

/// Bytes a waiting key takes: a place, and later its place with its head.
pub(super) const PENDING_KEY_BYTES: u64 = 4 + 16;

/// What waits to be put into order.
#[derive(Debug, Default)]
pub(super) struct PendingKeys {
    places: Vec<ArenaOffset>,
    /// Bytes that all their keys share; of the first key.
    shared: usize,
    /// Sorted parts of `places`.
    runs: Vec<(u64, ArenaOffset)>,
    /// Nothing waits any more (I1).
    is_finished: bool,
}

/// What waits takes at most this part of the memory budget.
const BUDGET_SHARE: u64 = 4;

impl<const LINK: usize> KeyTable<LINK> {
    /// What an opening replays of a key, while nobody reads: its record at `place` gets another
    /// word, or it gets one (0) and waits for [`KeyTable::finish_sort`], as far as the budget goes.
    /// One writer.
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

    /// As [`KeyTable::add`], but the key may wait for [`KeyTable::finish_sort`], at most `most` of
    /// them. One writer.
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

    /// Sorts one of `parts` parts of what waits. Parts may be sorted side by side, when all keys
    /// are there.
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

    /// Puts what was sorted into order; from now on keys go there one by one. All parts are sorted,
    /// or none is, where a replay ended early.
    pub fn finish_sort(&self, guard: &Guard) {
        if self.waiting.lock().runs.is_empty() {
            self.sort_part(0, 1);
        }
        let mut waiting = self.waiting.lock();
        let mut all = std::mem::take(&mut waiting.runs);
        if !all.is_empty() {
            all.sort_by(|a, b| self.compare(a, b)); // a stable sort finds the runs and merges them
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
