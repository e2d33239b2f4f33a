//! # Entry counts: the number of entries in each segment of the log
//!
//! An image contains the number of entries in the segment of each slot. Every commit adds to the
//! slot of the newest segment, so a shared counter would be a contended cache line. Each shard of
//! the trie therefore has an [`EntryDeltas`] of the slots to which it added last.
//!
//! ```text
//!  chunk 0: slots 0 to 63 | chunk 1: 128 more | ...        allocated on first use of the chunk
//!  deltas of a shard: slot, delta | slot, delta | ...      by the last bits of the slot
//! ```
//!
//! ## Invariants
//!
//! 1. The count of a slot is the word in its chunk plus the deltas of all shards.

use std::sync::OnceLock;

use sheaf_platform::memory::chunk_position;
use sheaf_platform::sync::atomic::{AtomicI64, Ordering};

/// Slots of the first chunk.
const FIRST_CHUNK_SLOTS: u32 = 64;
/// Number of chunks, enough for all slots of an address.
const MAX_CHUNKS: usize = 11;
/// Number of slots in the deltas of a shard; a power of two.
const CACHED_SLOTS: usize = 4;

/// Counts of entries by slot.
#[derive(Debug, Default)]
pub(crate) struct EntryCounts {
    chunks: [OnceLock<Box<[AtomicI64]>>; MAX_CHUNKS],
}

impl EntryCounts {
    fn add(&self, slot: u32, amount: i64) {
        let (chunk, at) = chunk_position(slot, FIRST_CHUNK_SLOTS);
        let new = || (0..(FIRST_CHUNK_SLOTS as usize) << chunk).map(|_| AtomicI64::new(0)).collect();
        self.chunks[chunk].get_or_init(new)[at].fetch_add(amount, Ordering::Relaxed);
    }

    /// Sets all counts, by slot. No other thread may add at the same time.
    pub(crate) fn set(&self, counts: &[u64]) {
        let words = self.chunks.iter().filter_map(OnceLock::get).flatten();
        words.for_each(|word| word.store(0, Ordering::Relaxed));
        for (slot, count) in (0..).zip(counts).filter(|(_, count)| **count > 0) {
            self.add(slot, i64::try_from(*count).unwrap_or(i64::MAX));
        }
    }

    /// Returns all counts, by slot, without the deltas of shards.
    pub(crate) fn counts(&self) -> Vec<u64> {
        let chunk = |chunk: &OnceLock<Box<[AtomicI64]>>| {
            let words = chunk.get().map_or(&[][..], |words| &words[..]);
            words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<i64>>()
        };
        let mut counts = Vec::new();
        for (number, words) in self.chunks.iter().map(chunk).enumerate() {
            if !words.is_empty() {
                counts.resize(FIRST_CHUNK_SLOTS as usize * ((1 << number) - 1), 0);
                counts.extend(words.into_iter().map(|count| u64::try_from(count).unwrap_or(0)));
            }
        }
        counts
    }
}

/// Deltas of one shard that are not in the shared counts yet.
#[derive(Debug, Default)]
pub(crate) struct EntryDeltas {
    recent: [(u32, i32); CACHED_SLOTS],
}

impl EntryDeltas {
    /// Adds an entry to the count of `slot`.
    pub(crate) fn add(&mut self, slot: u32, slots: &EntryCounts) {
        let (recent, difference) = &mut self.recent[slot as usize % CACHED_SLOTS];
        if *recent != slot {
            if *difference != 0 {
                slots.add(*recent, i64::from(std::mem::replace(difference, 0)));
            }
            *recent = slot;
        }
        *difference += 1;
    }

    /// Removes an entry from the count of `slot`.
    pub(crate) fn remove(&mut self, slot: u32, slots: &EntryCounts) {
        match &mut self.recent[slot as usize % CACHED_SLOTS] {
            (recent, difference) if *recent == slot => *difference -= 1,
            _ => slots.add(slot, -1),
        }
    }

    /// Adds all deltas to `slots`.
    pub(crate) fn flush(&mut self, slots: &EntryCounts) {
        for (slot, difference) in self.recent.iter_mut().filter(|(_, difference)| *difference != 0) {
            slots.add(*slot, i64::from(std::mem::replace(difference, 0)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_log::segment::SLOT_COUNT;

    #[test]
    fn counts_include_the_deltas_of_every_shard() {
        let (slots, mut tallies) = (EntryCounts::default(), [EntryDeltas::default(), EntryDeltas::default()]);
        let last = u32::try_from(SLOT_COUNT - 1).unwrap();
        let all = [0, 1, 4, 63, 64, 191, 192, 9000, last];
        for (round, slot) in all.iter().cycle().take(900).enumerate() {
            tallies[round % 2].add(*slot, &slots);
            tallies[1].add(5, &slots);
            tallies[0].remove(5, &slots);
        }
        tallies.iter_mut().for_each(|tally| tally.flush(&slots));
        let counts = slots.counts();
        assert_eq!(counts.len(), 64 * 2047);
        let counted: Vec<(usize, u64)> = counts.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect();
        assert_eq!(counted, all.map(|slot| (slot as usize, 100)));
        let again = EntryCounts::default();
        again.set(&[9, 9, 9, 9]);
        again.set(&counts);
        assert_eq!(again.counts(), counts);
    }
}
