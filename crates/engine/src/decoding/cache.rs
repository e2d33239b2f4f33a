//! # Decoded values: a cache of decompressed values for all keyspaces of a database
//!
//! A get of a pair in memory often takes less time than the decompression of its value. While the
//! memory budget has room, this cache has the decompressed values of recent gets. Used for engines
//! with gets that know the seq of the version (`EngineReads::get_version`).
//!
//! ```text
//!  hash of the key ── chunk ── set: 4 slots of address | tag | used since the hand passed
//!                                           └─> seq, keyspace, key, value
//! ```
//!
//! ## Invariants
//!
//! 1. Keyspace, seq and key identify a version, and a version never changes its value. So no entry
//!    is ever out of date. A newer version of the key replaces it, or the hand evicts it.
//! 2. A slot owns its entry. An entry that leaves a slot is freed after the readers of that time
//!    are done.
//! 3. The memory budget counts entries and chunks.
//!
//! ## Memory
//!
//! The cache takes only memory that is free, and at most half of the budget. A miss here costs a
//! decompression, while the misses of other caches cost a read from the device. So misses are not
//! reported to the cache arbiter, and it takes memory from this cache first.
//!
//! ## Costs
//!
//! A hit reads two more cache lines than the get of a value that is not compressed. A chunk takes
//! 16 KiB from the first insertion into it on.

use std::fmt;
use std::ptr;
use std::sync::OnceLock;

use sheaf_platform::memory::block_alloc::BlockSlice;
use sheaf_platform::memory::cache_arbiter::{CacheShare, is_retire_queue_full};
use sheaf_platform::memory::{Memory, prefetch};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{Guard, free_deferred, note_deferred};

use super::value::{CachedValue, CachedValueRef, CachedVersion};

/// Slots of a set, which is one cache line: blocks of the allocator begin at one.
const WAYS: usize = 4;
/// Sets of a chunk. Few under the scheduler, which keeps a state for each atomic.
const CHUNK_SETS: usize = if cfg!(shuttle) { 4 } else { 256 };
/// Bytes of the budget for each slot.
const BYTES_PER_SLOT: u64 = 2 << 10;
/// Maximum number of chunks.
const MAX_CHUNKS: u64 = 1 << 12;
/// The cache takes at most the budget divided by this.
const BUDGET_DIVISOR: u64 = 2;
/// Cache lines of a value that are prefetched: header and key.
const PREFETCHED_LINES: usize = 2;
/// Maximum number of sets that the hand visits to make room for one value.
const MAX_HAND_STEPS: u32 = 16;

/// Cache of decompressed values.
#[derive(Debug)]
pub struct DecodedValues {
    chunks: Box<[OnceLock<BlockSlice<SlotSet>>]>,
    hand: AtomicU64,
    /// Limit in bytes.
    limit: u64,
    cache_share: CacheShare,
}

#[derive(Debug, Default)]
struct SlotSet {
    slots: [Slot; WAYS],
}

/// Place of one value.
struct Slot {
    /// Address of a [`CachedValue`] that the slot owns (I2), or null.
    value: AtomicPtr<u8>,
    /// Tag of the value's key. Two insertions at once may leave a tag of another value: then the
    /// value is not found, and is evicted later.
    tag: AtomicU32,
    is_used: AtomicBool,
}

impl DecodedValues {
    /// Creates a cache for a memory budget of `budget` bytes.
    #[must_use]
    pub fn new(budget: u64) -> DecodedValues {
        let slots_per_chunk = (CHUNK_SETS * WAYS) as u64;
        let chunks = (budget / BYTES_PER_SLOT / slots_per_chunk).clamp(1, MAX_CHUNKS);
        DecodedValues {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            hand: AtomicU64::new(0),
            limit: budget / BUDGET_DIVISOR,
            cache_share: CacheShare::new(budget),
        }
    }

    /// Returns the cache share.
    #[must_use]
    pub fn cache_share(&self) -> &CacheShare {
        &self.cache_share
    }

    /// Returns the chunk, the set in it, and the tag of a key with this hash.
    fn position(&self, hash: u64) -> (usize, usize, u32) {
        let [low, high] =
            [hash, hash >> 32].map(|half| u32::try_from(half & u64::from(u32::MAX)).unwrap_or(0));
        let chunk = usize::try_from((u64::from(high) * self.chunks.len() as u64) >> 32).unwrap_or(0);
        (chunk, low as usize % CHUNK_SETS, low)
    }

    /// Prefetches the value of a key with this hash into the processor's cache.
    #[inline]
    pub(super) fn prefetch(&self, hash: u64) {
        let (chunk, set, tag) = self.position(hash);
        let Some(sets) = self.chunks[chunk].get() else { return };
        let is_same = |slot: &&Slot| slot.tag.load(Ordering::Relaxed) == tag;
        if let Some(slot) = sets[set].slots.iter().find(is_same) {
            prefetch(slot.value.load(Ordering::Relaxed), PREFETCHED_LINES);
        }
    }

    /// Returns the value of `version` if it is cached. `hash` is that of the key.
    #[inline]
    pub(super) fn get<'g>(
        &'g self,
        version: CachedVersion<'_>,
        hash: u64,
        _guard: &'g Guard,
    ) -> Option<&'g [u8]> {
        let (chunk, set, tag) = self.position(hash);
        let set = &self.chunks[chunk].get()?[set];
        set.slots.iter().filter(|slot| slot.tag.load(Ordering::Relaxed) == tag).find_map(|slot| {
            // SAFETY:
            // * The slot owns the value. A value that leaves it is freed only after all guards of
            //   that time are released (I2), and ours was pinned before this load.
            let value = unsafe { CachedValueRef::<'g>::from_raw(slot.value.load(Ordering::Acquire)) }?;
            let value = value.value_of(version)?;
            if !slot.is_used.load(Ordering::Relaxed) {
                slot.is_used.store(true, Ordering::Relaxed);
            }
            Some(value)
        })
    }

    /// Inserts the value of `version` if the memory has room for it. `hash` is that of the key.
    pub(super) fn insert(
        &self,
        version: CachedVersion<'_>,
        hash: u64,
        value: &[u8],
        memory: &Memory,
        guard: &Guard,
    ) {
        let Some(size) = CachedValue::memory_bytes(version.key, value) else { return };
        if !self.make_room(size, memory, guard) {
            return;
        }
        let Some(new) = CachedValue::copy(version, value) else { return };
        let (chunk, set, tag) = self.position(hash);
        let chunk = self.chunks[chunk].get_or_init(|| {
            let sets = BlockSlice::new(CHUNK_SETS, SlotSet::default);
            self.cache_share.take(size_of_val(&*sets) as u64, memory);
            sets
        });
        let slot = chunk[set].slot_for(tag);
        self.cache_share.take(size, memory); // before another thread can evict it
        let old = slot.exchange(Some(new));
        slot.tag.store(tag, Ordering::Relaxed);
        self.defer_free(old, memory, guard);
    }

    /// Evicts until `size` bytes fit. Returns false if they still do not.
    fn make_room(&self, size: u64, memory: &Memory, guard: &Guard) -> bool {
        free_deferred(guard);
        let fits = || {
            self.cache_share.bytes().saturating_add(size) <= self.limit
                && self.cache_share.has_room(size, memory)
        };
        if is_retire_queue_full(memory) {
            guard.flush();
            return fits();
        }
        for _ in 0..MAX_HAND_STEPS {
            if fits() {
                return true;
            }
            self.advance_hand(memory, guard);
        }
        fits()
    }

    /// Evicts about `bytes` bytes, or everything.
    pub fn evict(&self, bytes: u64, memory: &Memory, guard: &Guard) {
        let until = self.cache_share.bytes().saturating_sub(bytes);
        let sets = self.chunks.len().saturating_mul(CHUNK_SETS);
        // The second round evicts the values that were used before the first.
        for _ in 0..2 * sets {
            if self.cache_share.bytes() <= until {
                return;
            }
            self.advance_hand(memory, guard);
        }
    }

    /// Moves the hand by one set, or by one chunk that is not allocated.
    fn advance_hand(&self, memory: &Memory, guard: &Guard) {
        let hand = usize::try_from(self.hand.fetch_add(1, Ordering::Relaxed)).unwrap_or(0);
        let (chunk, set) = (hand / CHUNK_SETS % self.chunks.len(), hand % CHUNK_SETS);
        let Some(sets) = self.chunks[chunk].get() else {
            let rest = (CHUNK_SETS - 1 - set) as u64;
            self.hand.fetch_add(rest, Ordering::Relaxed);
            return;
        };
        for slot in &sets[set].slots {
            if slot.is_used.load(Ordering::Relaxed) {
                slot.is_used.store(false, Ordering::Relaxed);
            } else {
                self.defer_free(slot.exchange(None), memory, guard);
            }
        }
    }

    /// Frees a value that left its slot after all current readers are done.
    fn defer_free(&self, old: Option<CachedValue>, memory: &Memory, guard: &Guard) {
        let Some(old) = old else { return };
        let size = old.size();
        assert!(self.cache_share.bytes() >= size, "cache (I3): a value that leaves a slot was counted");
        self.cache_share.give_back(size, memory);
        note_deferred(usize::try_from(size).unwrap_or(usize::MAX));
        guard.defer(move || drop(old));
    }
}

impl SlotSet {
    /// Returns the slot for a key with this tag: that of another version of the key, or an empty
    /// one, or the first that was not used recently.
    fn slot_for(&self, tag: u32) -> &Slot {
        let is_empty = |slot: &&Slot| slot.value.load(Ordering::Relaxed).is_null();
        let is_same = |slot: &&Slot| slot.tag.load(Ordering::Relaxed) == tag && !is_empty(slot);
        let is_unused = |slot: &&Slot| !slot.is_used.swap(false, Ordering::Relaxed);
        let found = self.slots.iter().find(is_same).or_else(|| self.slots.iter().find(is_empty));
        found.or_else(|| self.slots.iter().find(is_unused)).unwrap_or(&self.slots[0])
    }
}

impl Slot {
    /// Replaces the value, and returns the old one.
    fn exchange(&self, new: Option<CachedValue>) -> Option<CachedValue> {
        let new = new.map_or(ptr::null_mut(), CachedValue::into_raw);
        // SAFETY:
        // * The slot owned the old value, and the swap transfers it to this call (I2).
        unsafe { CachedValue::from_raw(self.value.swap(new, Ordering::AcqRel)) }
    }
}

impl Default for Slot {
    fn default() -> Slot {
        Slot {
            value: AtomicPtr::new(ptr::null_mut()),
            tag: AtomicU32::new(0),
            is_used: AtomicBool::new(false),
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({:?})", self.value)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.exchange(None); // there are no readers any more
    }
}
