//! # Table: the keys of a memtable, by hash and in order
//!
//! A record for each key: the key, which is fixed, and a number and the owner's word, which change.
//!
//! ## Picture
//!
//! ```text
//!  hash -> stripe -> cell: tag 32 | record 32 ──┐          ordered tree (`sorted_keys.rs`) ──┐
//!                                               v                                     v
//!  record:  word 8 | seq 8 | key length 4 | link 4, if the owner has links | key
//! ```
//!
//! ## Invariants
//!
//! 1. A record is never moved nor removed; only its word, number and link change. Its number is
//!    stored before the word, and a reader loads the word first: the number it then sees is that of
//!    the word or a later one.
//! 2. `len` of a stripe counts records that a thread which loaded it finds in the stripe.
//! 3. No record that is found is newer than [`KeyTable::newest`]. If counted, it is found in order.
//! 4. `held` is the number of bytes that the memory budget knows of.
//!
//! ## Threads
//!
//! Any number of threads add, change and read records. One thread at a time adds or changes the
//! record of one key. Readers take no lock. A thread that adds locks a stripe and, once it has
//! released that, nodes of the tree. Counters are per thread: see `CoreCounters`.
//!
//! ## Costs
//!
//! A key: its record, 8 bytes in cells that are 3/8 to 3/4 full, 12 in the tree.

use std::ops::Bound;
use std::ptr;
use std::sync::OnceLock;
use std::thread::available_parallelism;

use super::arena::{ArenaBlock, ArenaOffset, MemtableArena, high, low};
use super::deferred_sort::{PENDING_KEY_BYTES, PendingKeys};
use super::prefix::KeyPrefix;
use super::sorted_keys::{KeySource, SortedKeys};
use crate::memory::block_alloc::BlockSlice;
use crate::memory::{Memory, MemoryPart, prefetch};
use crate::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use crate::sync::epoch::{Guard, note_deferred};
use crate::sync::{self, Mutex, bare};
use crate::types::Seq;

/// Stripes of the hash table: each grows on its own, so that no growth takes long.
const STRIPES: usize = 256;
const TINY_STRIPES: usize = 4;
/// Cells of a new stripe.
const FIRST_CELLS: usize = 8;
/// Lines of a table at most; there is one for each core.
const LINES: usize = sync::THREAD_SHARDS;
const TINY_LINES: usize = 1;
/// Sums that the owner of a table may keep in its lines.
pub const SUMS: usize = 2;

// Where the parts of a record are, in bytes.
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

    /// Where the search for a tag begins, and what to wrap around with.
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
    /// Held by the thread that adds a record.
    adding: Mutex<()>,
}

impl HashStripe {
    fn new() -> HashStripe {
        HashStripe { cells: AtomicPtr::new(ptr::null_mut()), len: AtomicU32::new(0), adding: Mutex::new(()) }
    }
}

/// Fields that one thread, as a rule, writes when it adds or changes records: its own cache lines.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CoreCounters {
    /// The newest commit of those that came by this line.
    newest: AtomicU64,
    /// Records that are not in `TableTotals::count` yet.
    uncounted: AtomicU64,
    sums: [AtomicU64; SUMS],
    block: ArenaBlock,
}

/// Parts that are made with the first change: most keyspaces of many are empty.
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

/// Returns the lines of a table: a power of two.
fn lines_of_cores() -> usize {
    static LINES_OF_CORES: OnceLock<usize> = OnceLock::new();
    let of_cores = || available_parallelism().map_or(1, usize::from).next_power_of_two().min(LINES);
    *LINES_OF_CORES.get_or_init(of_cores)
}

/// Totals of all lines. Written when a line gets a block, so that threads seldom wait for them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct TableTotals {
    /// Bytes of memory, without the order's.
    bytes: AtomicU64,
    count: AtomicU64,
    /// Bytes that the memory budget knows of.
    held: AtomicU64,
}

/// Of so many stripes, a power of two, that of `hash`.
#[inline]
fn stripe_of(stripes: &[HashStripe], hash: u64) -> &HashStripe {
    &stripes[high(hash) as usize >> 24 & (stripes.len() - 1)]
}

/// The keys. A record has `LINK` bytes, 4 or none, for a link of the owner's.
#[derive(Debug)]
pub struct KeyTable<const LINK: usize> {
    /// Where the records are; the owner may have more in it.
    pub arena: MemtableArena,
    parts: OnceLock<TableParts>,
    is_tiny: bool,
    order: SortedKeys,
    totals: TableTotals,
    /// Keys that are not in order yet (`deferred_sort.rs`), and how many they are.
    pub(super) waiting: Mutex<PendingKeys>,
    waiting_count: AtomicU64,
}

impl<const LINK: usize> KeySource for KeyTable<LINK> {
    #[inline]
    fn key(&self, record: ArenaOffset) -> &[u8] {
        let len = self.part32(record, KEY_LEN).load(Ordering::Relaxed) as usize;
        // SAFETY:
        // * A record's key was written behind its head before its place was published, and never
        //   changes.
        unsafe { std::slice::from_raw_parts(self.arena.at(record).add(HEAD + LINK), len) }
    }
}

impl<const LINK: usize> KeyTable<LINK> {
    /// An empty one. `prefix` is what its keys are thought to share.
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
            waiting: Mutex::new(PendingKeys::default()),
            waiting_count: AtomicU64::new(0),
        }
    }

    pub(super) fn order(&self) -> &SortedKeys {
        &self.order
    }

    pub(super) fn note_waiting(&self, count: u64) {
        self.waiting_count.store(count, Ordering::Relaxed);
    }

    #[inline]
    fn part64(&self, place: ArenaOffset, at: usize) -> &bare::AtomicU64 {
        // SAFETY:
        // * Places of records start with a head, aligned to 8 bytes, of zeros or what was stored;
        //   `at` is `WORD` or `SEQ`.
        unsafe { &*self.arena.at(place).add(at).cast::<bare::AtomicU64>() }
    }

    #[inline]
    fn part32(&self, place: ArenaOffset, at: usize) -> &bare::AtomicU32 {
        // SAFETY:
        // * As in `part64`; `at` is `KEY_LEN`, or `HEAD` where records have links.
        unsafe { &*self.arena.at(place).add(at).cast::<bare::AtomicU32>() }
    }

    /// A record's link. 0 to begin with.
    #[inline]
    pub fn link(&self, place: ArenaOffset) -> &bare::AtomicU32 {
        const { assert!(LINK == 4, "its records have no links") };
        self.part32(place, HEAD)
    }

    /// Returns the number of keys, removed ones included. Reads the lines of all threads.
    pub fn count(&self) -> u64 {
        // First: a count that moves from a line into the total after this is not counted twice.
        let total = self.totals.count.load(Ordering::Acquire);
        total + self.lines().map(|line| line.uncounted.load(Ordering::Acquire)).sum::<u64>()
    }

    /// Returns about the number of keys: each thread may have added some more. Cheap.
    #[inline]
    pub fn approximate_count(&self) -> u64 {
        self.totals.count.load(Ordering::Relaxed)
    }

    /// True if nothing can be found in it. Whoever found something finds this false.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parts.get().is_none()
    }

    /// Returns the bytes of memory. Later changes use up the memory that the arena holds ahead,
    /// so that one may take less than it uses.
    pub fn bytes(&self) -> u64 {
        let waiting = PENDING_KEY_BYTES * self.waiting_count.load(Ordering::Relaxed);
        self.totals.bytes.load(Ordering::Relaxed) + self.order.bytes() + waiting + self.arena.bytes_ahead()
    }

    /// Tells `memory` how many bytes the table has.
    pub fn update_accounting(&self, memory: &Memory) {
        memory.update_held(MemoryPart::Index, &self.totals.held, self.bytes());
    }

    /// Makes `change`, and tells `memory` how many bytes the table has then.
    pub fn with_accounting<T>(&self, memory: &Memory, change: impl FnOnce() -> T) -> T {
        let done = change();
        self.update_accounting(memory);
        done
    }

    /// The table is not counted any more. No thread changes it from now on.
    pub fn uncount_memory(&self, memory: &Memory) {
        memory.update_held(MemoryPart::Index, &self.totals.held, 0);
    }

    /// Returns the newest commit in it, or a newer one that is about to be. Reads the lines of all
    /// threads.
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

    /// Makes one of the owner's sums zero. No thread adds to it during the call.
    pub fn clear_sum(&self, sum: usize) {
        self.lines().for_each(|line| line.sums[sum].store(0, Ordering::Relaxed));
    }

    fn lines(&self) -> impl Iterator<Item = &CoreCounters> {
        self.parts.get().into_iter().flat_map(|parts| parts.lines.iter())
    }

    /// What the heads of its keys leave out.
    pub fn prefix(&self, guard: &Guard) -> KeyPrefix {
        self.order.prefix(guard)
    }

    /// The stripe of `hash`; none if there is no key.
    #[inline]
    fn stripe(&self, hash: u64) -> Option<&HashStripe> {
        #[cfg(shuttle)]
        crate::sync::step(); // they may be made now, or not yet
        self.parts.get().map(|parts| stripe_of(&parts.stripes, hash))
    }

    /// The parts, which are there from now on.
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

    /// How many records share `hash`'s stripe; see (I2).
    #[inline]
    pub fn stripe_len(&self, hash: u64) -> u32 {
        self.stripe(hash).map_or(0, |stripe| stripe.len.load(Ordering::Acquire))
    }

    #[inline]
    fn cells<'g>(stripe: &HashStripe, _guard: &'g Guard) -> Option<&'g HashCells> {
        // SAFETY:
        // * Made from a box; freed only after all guards of the moment when it was replaced, or
        //   with `self`.
        unsafe { stripe.cells.load(Ordering::Acquire).as_ref() }
    }

    /// The record of `key`.
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

    /// Hints that `hash` is about to be looked up.
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        if let Some(stripe) = self.stripe(hash)
            && let Some(cells) = KeyTable::<LINK>::cells(stripe, guard)
        {
            let (slot, _) = cells.start(low(hash));
            prefetch((&raw const cells.cells[slot]).cast(), 1);
        }
    }

    /// Hints that the record of `hash`, if there is one, is about to be looked at. Reads the table:
    /// [`KeyTable::prefetch`] comes before.
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

    /// Brings the beginning of a record into the processor's cache, soon.
    #[inline]
    pub fn prefetch_record(&self, place: ArenaOffset) {
        prefetch(self.arena.at(place), 1);
    }

    /// The word and number of a record.
    #[inline]
    pub fn get(&self, place: ArenaOffset) -> (u64, Seq) {
        let word = self.part64(place, WORD).load(Ordering::Acquire); // first (I1)
        (word, Seq(self.part64(place, SEQ).load(Ordering::Acquire)))
    }

    /// Gives a record another word and number. One thread at a time for each record.
    #[inline]
    pub fn set(&self, place: ArenaOffset, word: u64, seq: Seq) {
        self.note_newest(seq);
        self.part64(place, SEQ).store(seq.0, Ordering::Release); // (I1)
        self.part64(place, WORD).store(word, Ordering::Release);
    }

    /// Called before the commit can be found (I3): an `Acquire` load that finds it then sees this.
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

    /// Makes a record that no key leads to, and says whether [`KeyTable::bytes`] changed.
    pub fn make_record(&self, key: &[u8], word: u64, seq: Seq) -> (ArenaOffset, bool) {
        let (place, is_more) = self.allocate(HEAD + LINK + key.len());
        self.part64(place, WORD).store(word, Ordering::Relaxed);
        self.part64(place, SEQ).store(seq.0, Ordering::Relaxed);
        self.part32(place, KEY_LEN).store(u32::try_from(key.len()).unwrap_or(0), Ordering::Relaxed);
        // SAFETY:
        // * The place was given out just now with room for the key behind the head; nobody else
        //   knows it.
        unsafe { ptr::copy_nonoverlapping(key.as_ptr(), self.arena.at(place).add(HEAD + LINK), key.len()) };
        (place, is_more)
    }

    /// Adds a record for a key that has none, and says whether [`KeyTable::bytes`] changed. One
    /// thread at a time for each key.
    pub fn add(&self, hash: u64, key: &[u8], word: u64, seq: Seq, guard: &Guard) -> bool {
        let (place, is_more) = self.add_found(hash, key, word, seq, guard);
        let is_taller = self.order.insert(&self.arena, self, place, guard);
        self.count_one();
        is_more || is_taller
    }

    /// As [`KeyTable::add`], but the record is found by its hash and is not in order.
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

    /// Makes the record at `place` be found by its hash. Returns whether the stripe grew.
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
                // * Made from a box, replaced just now; all guards that may see it have ended.
                drop(unsafe { Box::from_raw(old as *mut HashCells) });
            });
            note_deferred(8 * before);
        }
        replaced.is_some()
    }

    /// Appends to `out` the records from `low` on, until there are `limit`.
    pub fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.order.ascend(&self.arena, self, low, limit, guard, out);
    }

    /// Appends to `out` the records from `high` down, until there are `limit`.
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
                // * Made from a box, and `&mut self`: nobody reads it.
                drop(unsafe { Box::from_raw(cells) });
            }
        }
    }
}
