//! # Key table: the keys of a memtable, by hash and in order
//!
//! Has one record for each key. The key is fixed; the seq and the owner's word change.
//!
//! ## Picture
//!
//! ```text
//!  hash -> stripe -> cell: tag 32 | record 32 ──┐          ordered tree (`sorted_keys`) ─────┐
//!                                               v                                            v
//!  record:  word 8 | seq 8 | key length 4 | link 4, if the owner has links | key
//! ```
//!
//! ## Invariants
//!
//! 1. A record is never moved or removed; only its word, seq and link change. A writer stores the
//!    seq first and a reader loads the word first, so the seq read is that of the word or newer.
//! 2. A *stripe* here is a part of the hash table. A thread that loaded the `len` of a stripe finds
//!    at least `len` records in it.
//! 3. No record that can be found is newer than [`KeyTable::newest`]. A record is counted last.
//! 4. `held` is the size of the table that was last reported to the memory budget.
//!
//! ## Threads
//!
//! Any number of threads add, change and read records. One thread at a time adds or changes the
//! record of one key. Readers take no lock. An adding thread locks a stripe and then, after it has
//! released the stripe, nodes of the tree. Counters are per thread: `CoreCounters`.
//!
//! ## Costs
//!
//! A key takes its record, 8 bytes in cells that are 3/8 to 3/4 full, and 12 bytes in the tree.

use std::ops::Bound;
use std::ptr;
use std::sync::OnceLock;

use super::arena::{ArenaBlock, ArenaOffset, MemtableArena, high, low};
use super::deferred_sort::{PENDING_KEY_BYTES, PendingKeys};
use super::prefix::KeyPrefix;
use super::sorted_keys::{KeySource, SortedKeys};
use crate::range_estimate::{KeySample, RangeSum};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::memory::block_alloc::BlockSlice;
use sheaf_platform::memory::{Memory, MemoryPart, prefetch};
use sheaf_platform::parallel::processors;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{Guard, note_deferred};
use sheaf_platform::sync::{self, Mutex, bare};

/// Number of stripes of the hash table. Each grows separately, so that no growth takes long.
const STRIPES: usize = 256;
const TINY_STRIPES: usize = 4;
/// Number of cells of a new stripe.
const FIRST_CELLS: usize = 8;
/// Maximum number of counter lines of a table; there is one for each core.
const LINES: usize = sync::THREAD_SHARDS;
const TINY_LINES: usize = 1;
/// Number of sums that the owner of a table may keep in its lines.
pub const SUMS: usize = 2;

// Offsets of the parts of a record in bytes.
const WORD: usize = 0;
const SEQ: usize = 8;
const KEY_LEN: usize = 16;
const HEAD: usize = 20;

#[derive(Debug)]
struct HashCells {
    cells: BlockSlice<AtomicU64>,
}

impl HashCells {
    fn new(count: usize) -> HashCells {
        HashCells { cells: BlockSlice::new(count, || AtomicU64::new(0)) }
    }

    /// Returns the slot where the search for a tag begins, and the mask for wrapping around.
    fn start(&self, tag: u32) -> (usize, usize) {
        let mask = self.cells.len() - 1;
        (tag as usize & mask, mask)
    }

    fn put(&self, cell: u64) {
        let (mut slot, mask) = self.start(high(cell));
        while self.cells[slot].load(Ordering::Relaxed) != 0 {
            slot = (slot + 1) & mask;
        }
        self.cells[slot].store(cell, Ordering::Release);
    }
}

#[derive(Debug)]
struct HashStripe {
    cells: AtomicPtr<HashCells>,
    len: AtomicU32,
    /// Held by a thread that adds a record.
    adding: Mutex<()>,
}

impl HashStripe {
    fn new() -> HashStripe {
        HashStripe { cells: AtomicPtr::new(ptr::null_mut()), len: AtomicU32::new(0), adding: Mutex::new(()) }
    }
}

/// Counters and memory that normally one thread writes when it adds or changes records, on cache
/// lines of their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CoreCounters {
    /// Newest commit that was noted in this line.
    newest: AtomicU64,
    /// Number of records that are not in `TableTotals::count` yet.
    uncounted: AtomicU64,
    sums: [AtomicU64; SUMS],
    block: ArenaBlock,
    /// Keys that are not sorted yet (`deferred_sort.rs`).
    pending: Mutex<PendingKeys>,
}

/// Parts that are allocated with the first change, because most keyspaces of a large set are empty.
#[derive(Debug)]
struct TableParts {
    stripes: Box<[HashStripe]>,
    lines: Box<[CoreCounters]>,
}

impl TableParts {
    #[inline]
    fn line(&self) -> &CoreCounters {
        &self.lines[sync::thread_shard() & (self.lines.len() - 1)]
    }
}

/// Returns the number of lines of a table: a power of two.
fn lines_of_cores() -> usize {
    processors().next_power_of_two().min(LINES)
}

/// Totals of all lines. A thread updates them only when its line gets a block, so contention is
/// rare.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TableTotals {
    /// Bytes of memory, without the memory of the order.
    bytes: AtomicU64,
    count: AtomicU64,
    /// Bytes that the memory budget has been told.
    held: AtomicU64,
}

/// Returns the stripe of `hash`. The number of stripes must be a power of two.
#[inline]
fn stripe_of(stripes: &[HashStripe], hash: u64) -> &HashStripe {
    &stripes[high(hash) as usize >> 24 & (stripes.len() - 1)]
}

/// Keys of a memtable. A record has `LINK` bytes, 4 or 0, for a link of the owner.
#[derive(Debug)]
pub struct KeyTable<const LINK: usize> {
    /// Arena with the records. The owner may allocate in it, too.
    pub arena: MemtableArena,
    parts: OnceLock<TableParts>,
    is_tiny: bool,
    order: SortedKeys,
    totals: TableTotals,
    /// Sorted parts of the pending keys (`deferred_sort.rs`).
    pub(super) sorted_runs: Mutex<Vec<(u64, ArenaOffset)>>,
    /// Number of keys for which the lists of pending keys have room.
    pending_room: AtomicU64,
    /// True if keys are inserted into the order directly from now on (deferred_sort I1).
    is_sorted: AtomicBool,
}

impl<const LINK: usize> KeySource for KeyTable<LINK> {
    #[inline]
    fn key(&self, record: ArenaOffset) -> &[u8] {
        let len = self.part32(record, KEY_LEN).load(Ordering::Relaxed) as usize;
        // SAFETY:
        // * The key was written behind the record's head before the place was published, and never
        //   changes.
        unsafe { std::slice::from_raw_parts(self.arena.at(record).add(HEAD + LINK), len) }
    }
}

impl<const LINK: usize> KeyTable<LINK> {
    /// Returns an empty table. `prefix` is the prefix that its keys are expected to share.
    #[must_use]
    pub fn new(prefix: KeyPrefix, tiny: bool) -> KeyTable<LINK> {
        const { assert!(LINK == 0 || LINK == 4) };
        let arena = MemtableArena::new();
        let order = SortedKeys::new(&arena, prefix, tiny);
        KeyTable {
            parts: OnceLock::new(),
            is_tiny: tiny,
            order,
            arena,
            totals: TableTotals::default(),
            sorted_runs: Mutex::new(Vec::new()),
            pending_room: AtomicU64::new(0),
            is_sorted: AtomicBool::new(false),
        }
    }

    pub(super) fn order(&self) -> &SortedKeys {
        &self.order
    }

    /// Returns the pending keys of this thread's line.
    pub(super) fn pending(&self) -> &Mutex<PendingKeys> {
        &self.parts().line().pending
    }

    /// Returns the pending keys of each line.
    pub(super) fn all_pending(&self) -> impl Iterator<Item = &Mutex<PendingKeys>> {
        self.lines().map(|line| &line.pending)
    }

    /// Records room for `more` pending keys. Returns the room of all lines in keys.
    pub(super) fn note_pending_room(&self, more: u64) -> u64 {
        match more {
            0 => self.pending_room(),
            more => self.pending_room.fetch_add(more, Ordering::Relaxed) + more,
        }
    }

    /// Returns the number of keys for which the lists of pending keys have room.
    pub(super) fn pending_room(&self) -> u64 {
        self.pending_room.load(Ordering::Relaxed)
    }

    /// Returns true if keys are inserted into the order directly.
    pub(super) fn is_sorted(&self) -> bool {
        self.is_sorted.load(Ordering::Acquire)
    }

    /// Records that no key is pending any more. The caller holds the locks of all lines.
    pub(super) fn note_sorted(&self) {
        self.is_sorted.store(true, Ordering::Release);
        self.pending_room.store(0, Ordering::Relaxed);
    }

    #[inline]
    fn part64(&self, place: ArenaOffset, at: usize) -> &bare::AtomicU64 {
        // SAFETY:
        // * A record starts at its place with a head that is aligned to 8 bytes and contains zeros
        //   or stored values. `at` is `WORD` or `SEQ`.
        unsafe { &*self.arena.at(place).add(at).cast::<bare::AtomicU64>() }
    }

    #[inline]
    fn part32(&self, place: ArenaOffset, at: usize) -> &bare::AtomicU32 {
        // SAFETY:
        // * As in `part64`. `at` is `KEY_LEN`, or `HEAD` in a table with links.
        unsafe { &*self.arena.at(place).add(at).cast::<bare::AtomicU32>() }
    }

    /// Returns the link of a record. Initially 0.
    #[inline]
    pub fn link(&self, place: ArenaOffset) -> &bare::AtomicU32 {
        const { assert!(LINK == 4, "its records have no links") };
        self.part32(place, HEAD)
    }

    /// Returns the number of keys, removed ones included. Reads the lines of all threads. The
    /// result may be too low while other threads add keys.
    pub fn count(&self) -> u64 {
        // First the total: a count that moves from a line to the total afterwards is not counted
        // twice.
        let total = self.totals.count.load(Ordering::Acquire);
        total + self.lines().map(|line| line.uncounted.load(Ordering::Acquire)).sum::<u64>()
    }

    /// Returns the approximate number of keys, without the last ones that each thread added. Cheap.
    #[inline]
    pub fn approximate_count(&self) -> u64 {
        self.totals.count.load(Ordering::Relaxed)
    }

    /// Returns true if the table has no key. A thread that has found a record gets false.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parts.get().is_none()
    }

    /// Returns the memory in bytes. Includes memory that the arena holds for future places. A later
    /// change that uses it therefore increases the result by less than its size.
    pub fn bytes(&self) -> u64 {
        let pending = PENDING_KEY_BYTES * self.pending_room();
        self.totals.bytes.load(Ordering::Relaxed) + self.order.bytes() + pending + self.arena.bytes_ahead()
    }

    /// Reports the table's size in bytes to `memory`.
    pub fn update_accounting(&self, memory: &Memory) {
        memory.update_held(MemoryPart::Index, &self.totals.held, self.bytes());
    }

    /// Runs `change`, and then reports the table's size to `memory`.
    pub fn with_accounting<T>(&self, memory: &Memory, change: impl FnOnce() -> T) -> T {
        let done = change();
        self.update_accounting(memory);
        done
    }

    /// Removes the table from the memory accounting. No thread may change it from now on.
    pub fn uncount_memory(&self, memory: &Memory) {
        memory.update_held(MemoryPart::Index, &self.totals.held, 0);
    }

    /// Returns the newest commit in the table, or a newer one that is being applied. Reads the
    /// lines of all threads.
    pub fn newest(&self) -> Seq {
        Seq(self.lines().map(|line| line.newest.load(Ordering::Acquire)).max().unwrap_or(0))
    }

    /// Adds `more` to one of the owner's sums.
    #[inline]
    pub fn add_to_sum(&self, sum: usize, more: u64) {
        self.parts().line().sums[sum].fetch_add(more, Ordering::Relaxed);
    }

    /// Returns one of the owner's sums. Reads the lines of all threads.
    pub fn sum(&self, sum: usize) -> u64 {
        self.lines().map(|line| line.sums[sum].load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }

    /// Sets one of the owner's sums to zero. No thread may add to it during the call.
    pub fn clear_sum(&self, sum: usize) {
        self.lines().for_each(|line| line.sums[sum].store(0, Ordering::Relaxed));
    }

    fn lines(&self) -> impl Iterator<Item = &CoreCounters> {
        self.parts.get().into_iter().flat_map(|parts| parts.lines.iter())
    }

    /// Returns the prefix that the heads of the keys leave out.
    pub fn prefix(&self, guard: &Guard) -> KeyPrefix {
        self.order.prefix(guard)
    }

    /// Returns the stripe of `hash`, or `None` if the table has no key.
    #[inline]
    fn stripe(&self, hash: u64) -> Option<&HashStripe> {
        #[cfg(shuttle)]
        sheaf_platform::sync::step(); // the parts may be allocated at this point
        self.parts.get().map(|parts| stripe_of(&parts.stripes, hash))
    }

    /// Returns the parts. Allocates them if necessary.
    #[inline]
    fn parts(&self) -> &TableParts {
        self.parts.get_or_init(|| {
            let (stripes, lines) =
                if self.is_tiny { (TINY_STRIPES, TINY_LINES) } else { (STRIPES, lines_of_cores()) };
            TableParts {
                stripes: (0..stripes).map(|_| HashStripe::new()).collect(),
                lines: (0..lines).map(|_| CoreCounters::default()).collect(),
            }
        })
    }

    /// Returns the number of records in the stripe of `hash` (I2).
    #[inline]
    pub fn stripe_len(&self, hash: u64) -> u32 {
        self.stripe(hash).map_or(0, |stripe| stripe.len.load(Ordering::Acquire))
    }

    #[inline]
    fn cells<'g>(stripe: &'g HashStripe, _guard: &'g Guard) -> Option<&'g HashCells> {
        // SAFETY:
        // * The pointer comes from a box. The box is freed with the table, whose stripe is
        //   borrowed, or after it was replaced and all guards of that time have ended.
        unsafe { stripe.cells.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the record of `key`.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<ArenaOffset> {
        let cells = KeyTable::<LINK>::cells(self.stripe(hash)?, guard)?;
        let tag = low(hash);
        let (mut slot, mask) = cells.start(tag);
        loop {
            let cell = cells.cells[slot].load(Ordering::Acquire);
            if cell == 0 {
                return None;
            }
            if high(cell) == tag && self.key(low(cell)) == key {
                return Some(low(cell));
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Prefetches the memory for a lookup of `hash`.
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        if let Some(stripe) = self.stripe(hash)
            && let Some(cells) = KeyTable::<LINK>::cells(stripe, guard)
        {
            let (slot, _) = cells.start(low(hash));
            prefetch((&raw const cells.cells[slot]).cast(), 1);
        }
    }

    /// Prefetches the record of `hash`, if there is one. Reads the table, so that
    /// [`KeyTable::prefetch`] should precede it.
    #[inline]
    pub fn prefetch_found(&self, hash: u64, guard: &Guard) {
        let Some(stripe) = self.stripe(hash) else { return };
        let Some(cells) = KeyTable::<LINK>::cells(stripe, guard) else { return };
        let tag = low(hash);
        let (mut slot, mask) = cells.start(tag);
        loop {
            let cell = cells.cells[slot].load(Ordering::Relaxed);
            if cell == 0 {
                return;
            }
            if high(cell) == tag {
                return prefetch(self.arena.at(low(cell)), 1);
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Prefetches the first bytes of a record.
    #[inline]
    pub fn prefetch_record(&self, place: ArenaOffset) {
        prefetch(self.arena.at(place), 1);
    }

    /// Returns the word and the seq of a record.
    #[inline]
    pub fn get(&self, place: ArenaOffset) -> (u64, Seq) {
        let word = self.part64(place, WORD).load(Ordering::Acquire); // before the seq (I1)
        (word, Seq(self.part64(place, SEQ).load(Ordering::Acquire)))
    }

    /// Sets the word and the seq of a record. Must be called by one thread at a time for each
    /// record.
    #[inline]
    pub fn set(&self, place: ArenaOffset, word: u64, seq: Seq) {
        self.note_newest(seq);
        self.part64(place, SEQ).store(seq.0, Ordering::Release); // (I1)
        self.part64(place, WORD).store(word, Ordering::Release);
    }

    /// Records that commit `seq` is in the table. Must be called before the commit can be found
    /// (I3): a thread that finds it by an `Acquire` load then sees this change.
    #[inline]
    fn note_newest(&self, seq: Seq) {
        self.parts().line().newest.fetch_max(seq.0, Ordering::Relaxed);
    }

    /// Returns a new place of `bytes` in the arena, all zeros, and whether [`KeyTable::bytes`]
    /// changed.
    pub fn allocate(&self, bytes: usize) -> (ArenaOffset, bool) {
        let line = self.parts().line();
        let (place, taken) = match self.is_tiny {
            false => self.arena.alloc_in(&line.block, bytes),
            true => (self.arena.alloc(bytes, false), bytes.next_multiple_of(8) as u64),
        };
        if taken > 0 {
            self.totals.bytes.fetch_add(taken, Ordering::Relaxed);
            let fresh = line.uncounted.swap(0, Ordering::AcqRel);
            self.totals.count.fetch_add(fresh, Ordering::Release);
        }
        (place, taken > 0)
    }

    /// Creates a record that no index refers to. Returns it, and whether [`KeyTable::bytes`]
    /// changed.
    pub fn make_record(&self, key: &[u8], word: u64, seq: Seq) -> (ArenaOffset, bool) {
        let (place, is_more) = self.allocate(HEAD + LINK + key.len());
        self.part64(place, WORD).store(word, Ordering::Relaxed);
        self.part64(place, SEQ).store(seq.0, Ordering::Relaxed);
        self.part32(place, KEY_LEN).store(u32::try_from(key.len()).unwrap_or(0), Ordering::Relaxed);
        // SAFETY:
        // * The place was allocated just now with room for the key behind the head, and no other
        //   thread knows it.
        unsafe { ptr::copy_nonoverlapping(key.as_ptr(), self.arena.at(place).add(HEAD + LINK), key.len()) };
        (place, is_more)
    }

    /// Prefetches the memory for the addition of `key`. Returns the leaf for [`KeyTable::add_to`];
    /// 0 if it is unknown.
    #[inline]
    pub fn prefetch_to_add(&self, hash: u64, key: &[u8], guard: &Guard) -> ArenaOffset {
        self.prefetch(hash, guard);
        self.order.prefetch_leaf(&self.arena, self, key, guard)
    }

    /// Adds a record for a key that has none. Returns whether [`KeyTable::bytes`] changed. Must be
    /// called by one thread at a time for each key.
    pub fn add(&self, hash: u64, key: &[u8], word: u64, seq: Seq, guard: &Guard) -> bool {
        self.add_to(0, hash, key, (word, seq), guard)
    }

    /// Ends the rebuilds of the order, which a large memtable does not need any more.
    #[cfg(shuttle)]
    pub fn make_order_final(&self) {
        self.order.make_final();
    }

    /// Like [`KeyTable::add`], with the leaf that [`KeyTable::prefetch_to_add`] returned.
    pub fn add_to(
        &self,
        leaf: ArenaOffset,
        hash: u64,
        key: &[u8],
        (word, seq): (u64, Seq),
        guard: &Guard,
    ) -> bool {
        let (place, is_more) = self.add_found(hash, key, word, seq, guard);
        let is_taller = self.order.insert(&self.arena, self, (place, leaf), guard);
        self.count_one();
        is_more || is_taller
    }

    /// Like [`KeyTable::add`], but adds the record only to the hash table, not to the order.
    pub(super) fn add_found(
        &self,
        hash: u64,
        key: &[u8],
        word: u64,
        seq: Seq,
        guard: &Guard,
    ) -> (ArenaOffset, bool) {
        let (place, is_more) = self.make_record(key, word, seq);
        self.note_newest(seq);
        let is_wider = self.hash_in(hash, place, guard);
        (place, is_more || is_wider)
    }

    pub(super) fn count_one(&self) {
        self.parts().line().uncounted.fetch_add(1, Ordering::Release);
    }

    /// Adds the record at `place` to the hash table. Returns whether the stripe grew.
    fn hash_in(&self, hash: u64, place: ArenaOffset, guard: &Guard) -> bool {
        let stripe = stripe_of(&self.parts().stripes, hash);
        let one = stripe.adding.lock();
        let len = stripe.len.load(Ordering::Relaxed) as usize;
        let cells = KeyTable::<LINK>::cells(stripe, guard);
        let before = cells.map_or(0, |cells| cells.cells.len());
        let cell = u64::from(low(hash)) << 32 | u64::from(place);
        let mut replaced = None;
        match cells.filter(|_| len < before / 4 * 3) {
            Some(cells) => cells.put(cell),
            None => {
                let grown = HashCells::new((2 * before).max(FIRST_CELLS));
                for cell in cells.iter().flat_map(|cells| &*cells.cells) {
                    let cell = cell.load(Ordering::Relaxed);
                    if cell != 0 {
                        grown.put(cell);
                    }
                }
                grown.put(cell);
                let more = 8 * (grown.cells.len() - before) as u64;
                self.totals.bytes.fetch_add(more, Ordering::Relaxed);
                let old = stripe.cells.swap(Box::into_raw(Box::new(grown)), Ordering::AcqRel);
                replaced = Some(old as usize);
            }
        }
        stripe.len.store(u32::try_from(len + 1).unwrap_or(u32::MAX), Ordering::Release); // (I2)
        drop(one);
        if let Some(old) = replaced.filter(|old| *old != 0) {
            guard.defer(move || {
                // SAFETY:
                // * The pointer came from a box and was replaced just now. All guards that may have
                //   seen it have ended.
                drop(unsafe { Box::from_raw(old as *mut HashCells) });
            });
            note_deferred(8 * before);
        }
        replaced.is_some()
    }

    /// Estimates the pairs from `first` on and below `end`. `sample` reads a record.
    ///
    /// # Errors
    ///
    /// Returns the error of `sample`.
    pub fn estimate(
        &self,
        (first, end): (&[u8], Option<&[u8]>),
        guard: &Guard,
        sample: &dyn Fn(ArenaOffset) -> Result<KeySample>,
    ) -> Result<RangeSum> {
        self.order.estimate((&self.arena, self), (first, end), guard, sample)
    }

    /// Appends records to `out` in ascending order from `low`, until `out` has `limit` entries.
    pub fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.order.ascend(&self.arena, self, low, limit, guard, out);
    }

    /// Appends records to `out` in descending order from `high`, until `out` has `limit` entries.
    pub fn descend(&self, high: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.order.descend(&self.arena, self, high, limit, guard, out);
    }
}

impl<const LINK: usize> Drop for KeyTable<LINK> {
    fn drop(&mut self) {
        for stripe in self.parts.get().into_iter().flat_map(|parts| &*parts.stripes) {
            let cells = stripe.cells.load(Ordering::Relaxed);
            if !cells.is_null() {
                // SAFETY:
                // * The pointer came from a box. `&mut self`: there are no readers.
                drop(unsafe { Box::from_raw(cells) });
            }
        }
    }
}
