//! # Slots: state and counts of each interval, and the cache of their blocks
//!
//! An interval of the sparse index refers to a slot. The slot contains the interval's block or
//! fingerprints, some counts, and a long separator. The content of an interval never changes: a
//! flush creates a new one with a new slot.
//!
//! ## Invariants
//!
//! 1. A slot never moves. Only the table assigns slots. A slot is reused when no index that a
//!    reader may hold refers to it.
//! 2. While an index refers to a slot, only state, marks and live keys change. Everything else is
//!    written before.
//! 3. The memory budget counts cached content. Content that an exchange removes is freed after the
//!    readers of that time are done.
//!
//! ## Eviction
//!
//! CLOCK: reading a block marks its slot. A hand moves in circles, clears marks, and evicts blocks
//! without one. It moves when a block is added beyond the budget that all users of memory share.
//!
//! If gets have missed the block before, its eviction leaves `interval::fingerprints`. They take a
//! twentieth of the bytes, and with them a get reads one page. Unused fingerprints are evicted only
//! while all fingerprints together take more than three quarters of the cache.
//!
//! ## Admission
//!
//! While the budget is full, [`IntervalSlots::should_admit`] admits a missed block only if its
//! interval was missed recently. Most data that is read once is not read again in time.

use std::ptr;

use sheaf_engine::context::EngineContext;
use sheaf_platform::memory::cache_arbiter::{CacheShare, MAX_EVICTIONS_BY_LOOKUP, is_retire_queue_full};
use sheaf_platform::memory::{chunk_position, prefetch, prefetch_block};
use sheaf_platform::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{Guard, free_deferred, note_deferred};

use crate::index::slot_state::{SlotContent, SlotState, SlotView};
use crate::interval::block::{Block, BlockRef};
use crate::interval::fingerprints::{Fingerprints, FingerprintsRef};

/// Slots of the first chunk; chunk k has `FIRST_CHUNK_SLOTS << k`.
const FIRST_CHUNK_SLOTS: u32 = 64;
const MAX_CHUNKS: usize = 26;
/// Maximum number of slots that the hand visits to make room for one block.
const MAX_HAND_STEPS: u32 = 1024;
/// One in this many refused blocks is admitted nevertheless, because there may be too few ghosts to
/// recognize the interval later.
const ADMIT_ONE_IN: u32 = 16;
/// Like [`ADMIT_ONE_IN`], for intervals with fingerprints. It is rarer, because a get reads more to
/// build the block.
const ADMIT_ONE_IN_WITH_FINGERPRINTS: u32 = 64;
/// There is room while this many more blocks of the same size would fit. The remainder that one
/// block leaves of the place of another does not count as room.
const ROOM_FACTOR: u64 = 8;
/// Approximate bytes of a block in addition to those of the interval.
const BLOCK_OVERHEAD: u64 = 128;
/// Maximum number of bytes of a block that are prefetched.
const MAX_PREFETCH_BYTES: u64 = 4 << 10;
/// Quarters of the cache that fingerprints may take.
const MAX_FINGERPRINT_QUARTERS: u64 = 3;
/// The content was used since the hand came by.
const MARK_USED: u32 = 1;
/// A get has missed the block.
const MARK_REQUESTED: u32 = 2;
/// A ghost was found at the last miss.
const MARK_GHOST_HIT: u32 = 4;
/// The number of live keys is unknown, because a run was appended to a block that was not in
/// memory.
pub(crate) const UNKNOWN_LIVE: u32 = u32::MAX;

/// State and counts of one interval.
#[derive(Debug)]
pub(crate) struct IntervalSlot {
    state: SlotState,
    marks: AtomicU32,
    /// Number of versions; versions that occur twice may count twice.
    entries: AtomicU32,
    live: AtomicU32,
    runs: AtomicU32,
    separator: AtomicPtr<Box<[u8]>>,
}

/// Counts of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalCounts {
    pub(crate) entries: u32,
    pub(crate) live: u32,
    pub(crate) runs: u32,
    /// Whether the interval refers to a blob, or may do so.
    pub(crate) has_blobs: bool,
}

/// Bit of the encoded number of runs that encodes `has_blobs`.
const HAS_BLOBS: u32 = 1 << 31;

impl IntervalCounts {
    /// Returns the number of runs and the mark of blobs in one word.
    pub(crate) fn encoded_runs(self) -> u32 {
        self.runs & !HAS_BLOBS | if self.has_blobs { HAS_BLOBS } else { 0 }
    }

    /// Decodes counts from three words.
    pub(crate) fn from_encoded(entries: u32, live: u32, marked_runs: u32) -> IntervalCounts {
        let has_blobs = marked_runs & HAS_BLOBS != 0;
        IntervalCounts { entries, live, runs: marked_runs & !HAS_BLOBS, has_blobs }
    }
}

/// All slots of a keyspace.
#[derive(Debug)]
pub(crate) struct IntervalSlots {
    chunks: [AtomicPtr<IntervalSlot>; MAX_CHUNKS],
    next: AtomicU32,
    hand: AtomicU32,
    /// Number of blocks that were not admitted.
    refused: AtomicU32,
    /// Bytes of the budget that blocks and fingerprints take.
    pub(crate) cache_share: CacheShare,
    /// Part of those bytes that fingerprints take.
    fingerprint_bytes: AtomicU64,
}

fn slot_position(id: u32) -> (usize, usize) {
    chunk_position(id, FIRST_CHUNK_SLOTS)
}

impl IntervalSlots {
    pub(crate) fn new(budget: u64) -> IntervalSlots {
        IntervalSlots {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CHUNKS],
            next: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            cache_share: CacheShare::new(budget),
            fingerprint_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the slot `id`, which `add` has returned before.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> &IntervalSlot {
        let (chunk, index) = slot_position(id);
        let start = self.chunks[chunk].load(Ordering::Acquire);
        assert!(!start.is_null(), "slots (I1): only the table assigns slots");
        // SAFETY:
        // * A chunk is published with all of its slots, and lives as long as `self`.
        unsafe { &*start.add(index) }
    }

    /// Prefetches the slot `id`, which `add` has returned before, into the processor's cache.
    #[inline]
    pub(crate) fn prefetch(&self, id: u32) {
        prefetch(std::ptr::from_ref(self.get(id)).cast(), 1);
    }

    /// Adds a slot. Only the holder of the table's lock may call this.
    pub(crate) fn add(&self) -> u32 {
        let id = self.next.load(Ordering::Relaxed);
        let (chunk, index) = slot_position(id);
        assert!(chunk < MAX_CHUNKS, "more than 10^9 intervals");
        if index == 0 {
            let is_new = self.chunks[chunk].load(Ordering::Relaxed).is_null();
            assert!(is_new, "slots (I1): a chunk of slots is allocated only once");
            let slots: Box<[IntervalSlot]> =
                (0..(FIRST_CHUNK_SLOTS as usize) << chunk).map(|_| IntervalSlot::empty()).collect();
            self.chunks[chunk].store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        self.next.store(id + 1, Ordering::Release);
        id
    }

    /// Returns the bytes of all slots.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.next.load(Ordering::Relaxed)) * size_of::<IntervalSlot>() as u64
    }

    /// Whether the block of slot `id`, of a missed interval of `len` bytes, is admitted to the
    /// cache. It is admitted if there is room, or if its interval was missed recently and evicted
    /// memory is not waiting to be freed. Of intervals without these conditions one in
    /// [`ADMIT_ONE_IN`] is admitted.
    ///
    /// An interval with fingerprints must be known to the ghosts at two misses, without an unused
    /// round of the hand in between. A single ghost hit is often chance. Building its block reads
    /// two or three pages where a get needs one, and evicts another block.
    pub(crate) fn should_admit(&self, id: u32, len: u64, context: &EngineContext) -> bool {
        let slot = self.get(id);
        let size = Block::size_of(len, slot.interval_counts().entries);
        let has_prints = slot.state.is_fingerprints();
        let is_known = self.cache_share.record_miss(u64::from(id), len);
        let may_take =
            is_known && (!has_prints || slot.mark_ghost_hit()) && !is_retire_queue_full(&context.memory);
        if may_take || self.cache_share.has_room(size.saturating_mul(ROOM_FACTOR), &context.memory) {
            return true;
        }
        let lucky = if has_prints { ADMIT_ONE_IN_WITH_FINGERPRINTS } else { ADMIT_ONE_IN };
        if self.refused.fetch_add(1, Ordering::Relaxed) % lucky == lucky - 1 {
            return true;
        }
        self.cache_share.record_eviction(u64::from(id), size);
        false
    }

    /// Inserts a block into its slot if the budget has room or eviction makes some.
    pub(crate) fn insert_block(&self, id: u32, block: &BlockRef, context: &EngineContext, guard: &Guard) {
        let size = block.size();
        if !self.make_room(size, MAX_EVICTIONS_BY_LOOKUP, context, guard) {
            self.cache_share.record_eviction(u64::from(id), size);
            return;
        }
        self.insert(id, SlotContent::Block(block.clone()), context, guard);
    }

    /// Inserts fingerprints into the slot of a block that was not admitted, unless fingerprints
    /// already take too much of the cache. Marks the slot as requested.
    pub(crate) fn insert_fingerprints(
        &self,
        id: u32,
        fingerprints: Fingerprints,
        context: &EngineContext,
        guard: &Guard,
    ) {
        self.mark_requested(id);
        let size = fingerprints.view().size();
        if !self.is_fingerprint_limit_reached()
            && self.make_room(size, MAX_EVICTIONS_BY_LOOKUP, context, guard)
        {
            self.insert(id, SlotContent::Fingerprints(fingerprints), context, guard);
        }
    }

    /// Inserts a block into a slot without one, or fingerprints into an empty slot.
    fn insert(&self, id: u32, new: SlotContent, context: &EngineContext, guard: &Guard) {
        let slot = self.get(id);
        let seen = slot.state.view(guard);
        if match &new {
            SlotContent::Block(_) => matches!(seen, SlotView::Block(_)),
            SlotContent::Fingerprints(_) => !matches!(seen, SlotView::Empty),
        } {
            return;
        }
        self.exchange(slot, &seen, Some(new), context, guard);
        slot.mark(MARK_USED);
    }

    /// Replaces the content of a slot by `new` if it is still `seen`, and adjusts the accounts.
    /// Returns whether it did.
    fn exchange(
        &self,
        slot: &IntervalSlot,
        seen: &SlotView<'_>,
        new: Option<SlotContent>,
        context: &EngineContext,
        guard: &Guard,
    ) -> bool {
        new.iter().for_each(|new| self.charge(new, context)); // before another thread can evict it
        match slot.state.exchange(seen, new) {
            Ok(old) => {
                old.into_iter().for_each(|old| self.defer_free(old, context, guard));
                true
            }
            Err(new) => {
                new.iter().for_each(|new| self.uncharge(new, context));
                false
            }
        }
    }

    fn charge(&self, new: &SlotContent, context: &EngineContext) {
        self.cache_share.take(new.size(), &context.memory);
        if let SlotContent::Fingerprints(_) = new {
            self.fingerprint_bytes.fetch_add(new.size(), Ordering::Relaxed);
        }
    }

    fn uncharge(&self, old: &SlotContent, context: &EngineContext) {
        self.cache_share.give_back(old.size(), &context.memory);
        if let SlotContent::Fingerprints(_) = old {
            let charged = self.fingerprint_bytes.fetch_sub(old.size(), Ordering::Relaxed);
            assert!(charged >= old.size(), "slots (I3): fingerprints that leave a slot were charged");
        }
    }

    /// Frees content that was removed from a slot after all current readers are done.
    fn defer_free(&self, old: SlotContent, context: &EngineContext, guard: &Guard) {
        self.uncharge(&old, context);
        note_deferred(usize::try_from(old.size()).unwrap_or(usize::MAX));
        guard.defer(move || drop(old));
    }

    /// Whether fingerprints take as much of the cache as they may.
    pub(crate) fn is_fingerprint_limit_reached(&self) -> bool {
        self.fingerprint_bytes.load(Ordering::Relaxed)
            > self.cache_share.bytes() / 4 * MAX_FINGERPRINT_QUARTERS
    }

    /// Moves the hand until `size` bytes fit, or until `max_evictions` blocks are evicted. Returns
    /// false if they still do not fit.
    pub(crate) fn make_room(
        &self,
        size: u64,
        max_evictions: usize,
        context: &EngineContext,
        guard: &Guard,
    ) -> bool {
        free_deferred(guard);
        if is_retire_queue_full(&context.memory) {
            guard.flush();
            return self.cache_share.has_room(size, &context.memory);
        }
        let (count, mut evictions) = (self.next.load(Ordering::Acquire), 0);
        for _ in 0..MAX_HAND_STEPS.min(count.saturating_mul(2)) {
            if evictions == max_evictions || self.cache_share.has_room(size, &context.memory) {
                break;
            }
            evictions += usize::from(self.advance_hand(count, context, guard));
        }
        self.cache_share.has_room(size, &context.memory)
    }

    /// Moves the hand until about `bytes` are evicted, or until it has visited every slot twice.
    pub(crate) fn evict(&self, bytes: u64, context: &EngineContext, guard: &Guard) {
        let (count, until) =
            (self.next.load(Ordering::Acquire), self.cache_share.bytes().saturating_sub(bytes));
        for _ in 0..count.saturating_mul(2) {
            if self.cache_share.bytes() <= until {
                return;
            }
            self.advance_hand(count, context, guard);
        }
    }

    /// Moves the hand by one slot. Returns whether it has evicted the content.
    fn advance_hand(&self, count: u32, context: &EngineContext, guard: &Guard) -> bool {
        let id = self.hand.fetch_add(1, Ordering::Relaxed) % count;
        let slot = self.get(id);
        let marks = slot.marks.load(Ordering::Relaxed);
        if marks & MARK_USED != 0 {
            slot.marks.fetch_and(!MARK_USED, Ordering::Relaxed);
            return false;
        }
        if marks & MARK_GHOST_HIT != 0 {
            slot.marks.fetch_and(!MARK_GHOST_HIT, Ordering::Relaxed);
        }
        let seen = slot.state.view(guard);
        match seen {
            SlotView::Empty => false,
            SlotView::Block(block) => {
                let leaves = marks & MARK_REQUESTED != 0 && !self.is_fingerprint_limit_reached();
                let fingerprints =
                    leaves.then(|| block.to_fingerprints()).flatten().map(SlotContent::Fingerprints);
                let size = block.size();
                let is_evicted = self.exchange(slot, &seen, fingerprints, context, guard);
                if is_evicted {
                    self.cache_share.record_eviction(u64::from(id), size);
                }
                is_evicted
            }
            SlotView::Fingerprints(_) => {
                self.is_fingerprint_limit_reached() && self.exchange(slot, &seen, None, context, guard)
            }
        }
    }

    /// Whether gets have missed the block of slot `id`, or of an interval that it replaces.
    pub(crate) fn is_requested(&self, id: u32) -> bool {
        self.get(id).marks.load(Ordering::Relaxed) & MARK_REQUESTED != 0
    }

    /// Marks the block of slot `id` as requested by gets.
    pub(crate) fn mark_requested(&self, id: u32) {
        self.get(id).mark(MARK_REQUESTED);
    }

    /// Clears slot `id`, which no reader uses any more, for reuse.
    pub(crate) fn recycle(&self, id: u32, context: &EngineContext, guard: &Guard) {
        let slot = self.get(id);
        slot.state.take().into_iter().for_each(|old| self.defer_free(old, context, guard));
        slot.marks.store(0, Ordering::Relaxed);
        slot.free_separator();
    }

    /// Removes the content of all slots.
    pub(crate) fn clear(&self, context: &EngineContext, guard: &Guard) {
        for id in 0..self.next.load(Ordering::Acquire) {
            self.get(id).state.take().into_iter().for_each(|old| self.defer_free(old, context, guard));
        }
    }
}

impl IntervalSlot {
    fn empty() -> IntervalSlot {
        IntervalSlot {
            state: SlotState::empty(),
            marks: AtomicU32::new(0),
            entries: AtomicU32::new(0),
            live: AtomicU32::new(0),
            runs: AtomicU32::new(0),
            separator: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Returns the block of the interval if it is in memory, and marks the slot as used.
    #[inline]
    pub(crate) fn block<'g>(&'g self, guard: &'g Guard) -> Option<&'g Block> {
        let block = self.state.block(guard)?;
        self.mark(MARK_USED);
        Some(block)
    }

    /// Returns the block or the fingerprints of the interval, and marks the slot as used.
    #[inline]
    pub(crate) fn view<'g>(&'g self, guard: &'g Guard) -> SlotView<'g> {
        let seen = self.state.view(guard);
        self.mark(MARK_USED);
        seen
    }

    /// Returns the fingerprints of the interval if it has no block.
    pub(crate) fn fingerprints<'g>(&'g self, guard: &'g Guard) -> Option<FingerprintsRef<'g>> {
        match self.state.view(guard) {
            SlotView::Fingerprints(fingerprints) => Some(fingerprints),
            _ => None,
        }
    }

    #[inline]
    fn mark(&self, mark: u32) {
        if self.marks.load(Ordering::Relaxed) & mark == 0 {
            self.marks.fetch_or(mark, Ordering::Relaxed);
        }
    }

    /// Marks that a ghost was found at a miss. Returns whether that was marked before.
    fn mark_ghost_hit(&self) -> bool {
        self.marks.fetch_or(MARK_GHOST_HIT, Ordering::Relaxed) & MARK_GHOST_HIT != 0
    }

    /// Prefetches the block of an interval of `len` bytes into the processor's cache.
    #[inline]
    pub(crate) fn prefetch(&self, len: u64, _guard: &Guard) {
        if let Some(block) = self.state.address() {
            prefetch_block(
                block.cast(),
                usize::try_from((len + BLOCK_OVERHEAD).min(MAX_PREFETCH_BYTES)).unwrap_or(0),
            );
        }
    }

    /// Whether neither block nor fingerprints of the interval are in memory.
    pub(crate) fn is_empty(&self) -> bool {
        self.state.is_empty()
    }

    /// Whether the block of the interval is in memory.
    pub(crate) fn is_cached(&self) -> bool {
        self.state.address().is_some()
    }

    pub(crate) fn interval_counts(&self) -> IntervalCounts {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        IntervalCounts::from_encoded(load(&self.entries), load(&self.live), load(&self.runs))
    }

    pub(crate) fn set_interval_counts(&self, interval_counts: IntervalCounts) {
        self.entries.store(interval_counts.entries, Ordering::Relaxed);
        self.live.store(interval_counts.live, Ordering::Relaxed);
        self.runs.store(interval_counts.encoded_runs(), Ordering::Relaxed);
    }

    /// Sets the number of live keys once they are counted.
    pub(crate) fn set_live(&self, live: u32) {
        self.live.store(live, Ordering::Relaxed);
    }

    /// Stores the bytes of a separator and returns their address.
    pub(crate) fn store_separator(&self, bytes: &[u8]) -> *const Box<[u8]> {
        let kept = Box::into_raw(Box::new(Box::<[u8]>::from(bytes)));
        let is_unset = self.separator.load(Ordering::Relaxed).is_null();
        assert!(is_unset, "slots (I2): the separator of a slot is not replaced while it is in use");
        self.separator.store(kept, Ordering::Release);
        kept
    }

    fn free_separator(&self) {
        let separator = self.separator.swap(ptr::null_mut(), Ordering::AcqRel);
        if !separator.is_null() {
            // SAFETY:
            // * `store_separator` made it from a box, and no reader has an index that refers to it
            //   (I1).
            drop(unsafe { Box::from_raw(separator) });
        }
    }
}

impl Drop for IntervalSlots {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let start = chunk.load(Ordering::Relaxed);
            if start.is_null() {
                continue;
            }
            let slots = ptr::slice_from_raw_parts_mut(start, (FIRST_CHUNK_SLOTS as usize) << number);
            // SAFETY:
            // * `add` made it from a box of this length, and `&mut self` excludes readers.
            let slots = unsafe { Box::from_raw(slots) };
            slots.iter().for_each(IntervalSlot::free_separator);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sheaf_log::blob::Blobs;
    use sheaf_log::types::StoreId;
    use sheaf_platform::memory::MemoryPart;
    use sheaf_platform::sync::epoch;
    use sheaf_sim::SimDisk;

    use super::*;

    #[test]
    fn an_interval_is_admitted_after_two_misses_or_while_there_is_room() {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let context = EngineContext::new(blobs, 1 << 20, 7, true);
        let slots = IntervalSlots::new(1 << 20);
        assert_eq!((0..20).map(|_| slots.add()).last(), Some(19));
        assert!(slots.should_admit(0, 2000, &context));
        context.memory.take(MemoryPart::Index, 1 << 20);
        let wanted = || (0..20).filter(|id| slots.should_admit(*id, 2000, &context)).count();
        assert_eq!(wanted(), 1); // the one in [`ADMIT_ONE_IN`]
        assert!(wanted() > 15);
    }

    #[test]
    fn an_interval_with_fingerprints_is_admitted_after_two_ghost_hits() {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let (context, guard) = (EngineContext::new(blobs, 1 << 20, 7, true), epoch::pin());
        let slots = IntervalSlots::new(1 << 20);
        for _ in 0..20 {
            let none = Fingerprints::of(&[], [].into_iter()).expect("small");
            // other content, so that these are a small part
            slots.cache_share.take(1 << 10, &context.memory);
            slots.insert_fingerprints(slots.add(), none, &context, &guard);
        }
        context.memory.take(MemoryPart::Index, 1 << 20);
        let wanted = || (0..20).filter(|id| slots.should_admit(*id, 2000, &context)).count();
        assert_eq!([wanted(), wanted()], [0, 0]);
        assert!(wanted() > 15);
        assert!(wanted() < 5, "missed once since they were wanted");
        let turn =
            || assert!((0..20).all(|_| !slots.advance_hand(20, &context, &guard)), "fingerprints stay");
        turn();
        assert!(wanted() > 15, "used since the hand came by before");
        wanted();
        turn();
        assert!(wanted() < 5, "unused for a round");
        assert!((0..20).all(|id| slots.get(id).fingerprints(&guard).is_some()));
    }
}
