//! # Slots: what is known of each interval, and the cache of their blocks
//!
//! An interval of the sparse index names a slot: its block, if it is in memory, a few figures, and its separator if that is
//! long. Content of an interval never changes: a commit makes a new one with a new slot.
//!
//! ## Invariants
//!
//! 1. A slot stays where it is. The committer alone gives slots out and takes them back, the latter when no state that a
//!    reader may have names them.
//! 2. All but block and mark are written before an index names the slot, and not again while one does.
//! 3. A block in a slot is counted in the budget's cache. It leaves by a swap, and is freed when the readers of that
//!    moment are gone.
//!
//! ## Eviction
//!
//! CLOCK: reading a block marks its slot; a hand goes around, takes marks away and evicts what has none. It moves when a
//! block is added beyond the budget, which the cache shares with everything else and gives way to.
//!
//! ## Admission
//!
//! While the budget is full an interval that is missed gets its block into memory only if it was missed before and not long ago (the
//! ghosts of [`Account`] know): of what is read from far more than the budget, most does not come again in time. What is read once takes
//! nobody's place (but one in 16), and a get does not even make a block of it.

use std::ptr;

use sheaf_base::ground::Ground;
use sheaf_base::memory::{in_chunks, prefetch, prefetch_block};
use sheaf_base::shares::Account;
use sheaf_base::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use sheaf_base::sync::epoch::{Guard, note_deferred, relieve};

use crate::block::{Block, BlockRef};

/// Slots of the first chunk; chunk k has `FIRST << k`.
const FIRST: u32 = 64;
const CHUNKS: usize = 26;
/// Slots that the hand looks at, at most, to make room for one block.
const TURN: u32 = 1024;
/// One in so many of those that are not worth a place gets one all the same: there may be too few ghosts to know it again.
const LUCKY: u32 = 16;
/// What a block takes beside the interval's bytes, about.
const DIRECTORY: u64 = 128;
/// Most bytes of a block that are asked for ahead.
const AHEAD: u64 = 4 << 10;
/// Live keys are not known: something was appended to a block that was not in memory.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// One interval.
#[derive(Debug)]
pub(crate) struct Slot {
    block: AtomicPtr<Block>,
    marked: AtomicU32,
    /// Versions in it, or more if some came twice.
    entries: AtomicU32,
    live: AtomicU32,
    runs: AtomicU32,
    sep: AtomicPtr<Box<[u8]>>,
}

/// The figures of an interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    pub(crate) entries: u32,
    pub(crate) live: u32,
    pub(crate) runs: u32,
    /// A staged value is named in it, or was.
    pub(crate) is_staged: bool,
}

/// Beside the number of runs: staged values are named.
const STAGED: u32 = 1 << 31;

impl Figures {
    /// Runs and mark in one word.
    pub(crate) fn marked_runs(self) -> u32 {
        self.runs & !STAGED | if self.is_staged { STAGED } else { 0 }
    }

    /// The figures that three words say.
    pub(crate) fn of(entries: u32, live: u32, marked_runs: u32) -> Figures {
        let is_staged = marked_runs & STAGED != 0;
        Figures { entries, live, runs: marked_runs & !STAGED, is_staged }
    }
}

/// All slots.
#[derive(Debug)]
pub(crate) struct Slots {
    chunks: [AtomicPtr<Slot>; CHUNKS],
    next: AtomicU32,
    hand: AtomicU32,
    /// Blocks that were not worth a place.
    refused: AtomicU32,
    /// What the blocks take of the budget.
    pub(crate) account: Account,
}

fn place(id: u32) -> (usize, usize) {
    in_chunks(id, FIRST)
}

impl Slots {
    pub(crate) fn new(budget: u64) -> Slots {
        Slots {
            chunks: [const { AtomicPtr::new(ptr::null_mut()) }; CHUNKS],
            next: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            refused: AtomicU32::new(0),
            account: Account::new(budget),
        }
    }

    /// The slot `id`, which was given out.
    #[inline]
    pub(crate) fn get(&self, id: u32) -> &Slot {
        let (chunk, index) = place(id);
        // SAFETY:
        // * Given out, so its chunk is there, and chunks stay as long as `self`.
        unsafe { &*self.chunks[chunk].load(Ordering::Acquire).add(index) }
    }

    /// Asks for the slot `id`, which was given out, to be in the processor's cache soon.
    #[inline]
    pub(crate) fn prefetch(&self, id: u32) {
        prefetch(std::ptr::from_ref(self.get(id)).cast(), 1);
    }

    /// One more slot. The committer alone.
    pub(crate) fn add(&self) -> u32 {
        let id = self.next.load(Ordering::Relaxed);
        let (chunk, index) = place(id);
        assert!(chunk < CHUNKS, "more than 10^9 intervals");
        if index == 0 {
            let slots: Box<[Slot]> = (0..(FIRST as usize) << chunk).map(|_| Slot::empty()).collect();
            self.chunks[chunk].store(Box::into_raw(slots).cast(), Ordering::Release);
        }
        self.next.store(id + 1, Ordering::Release);
        id
    }

    /// Bytes of all slots.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.next.load(Ordering::Relaxed)) * size_of::<Slot>() as u64
    }

    /// Whether the block of slot `id`, of an interval of `len` bytes that was missed, gets a place: if none has to go for it, if it
    /// was missed lately, too, and now and then.
    pub(crate) fn wants(&self, id: u32, len: u64, ground: &Ground) -> bool {
        let is_known = self.account.missed(u64::from(id), len);
        if is_known || self.account.has_room(len + DIRECTORY, &ground.memory) {
            return true;
        }
        if self.refused.fetch_add(1, Ordering::Relaxed) % LUCKY == LUCKY - 1 {
            return true;
        }
        self.account.went(u64::from(id), len + DIRECTORY);
        false
    }

    /// Puts a block into its slot, if the budget has room for it or can be given some.
    pub(crate) fn offer(&self, id: u32, block: &BlockRef, ground: &Ground, guard: &Guard) {
        let size = block.size();
        if !self.make_room(size, ground, guard) {
            self.account.went(u64::from(id), size);
            return;
        }
        let slot = self.get(id);
        let given = block.clone().into_raw();
        self.account.take(size, &ground.memory);
        let put = slot.block.compare_exchange(ptr::null_mut(), given, Ordering::AcqRel, Ordering::Relaxed);
        if put.is_err() {
            self.account.give(size, &ground.memory);
            // SAFETY:
            // * Given away just now, to nobody.
            drop(unsafe { BlockRef::from_raw(given) });
        }
        slot.marked.store(1, Ordering::Relaxed);
    }

    /// Moves the hand until `size` bytes fit. False if they still do not.
    pub(crate) fn make_room(&self, size: u64, ground: &Ground, guard: &Guard) -> bool {
        relieve(guard);
        let count = self.next.load(Ordering::Acquire);
        for _ in 0..TURN.min(count.saturating_mul(2)) {
            if self.account.has_room(size, &ground.memory) {
                return true;
            }
            self.turn(count, ground, guard);
        }
        self.account.has_room(size, &ground.memory)
    }

    /// Moves the hand until about `bytes` are gone, or it was everywhere twice.
    pub(crate) fn give_way(&self, bytes: u64, ground: &Ground, guard: &Guard) {
        let (count, until) = (self.next.load(Ordering::Acquire), self.account.bytes().saturating_sub(bytes));
        for _ in 0..count.saturating_mul(2) {
            if self.account.bytes() <= until {
                return;
            }
            self.turn(count, ground, guard);
        }
    }

    /// Moves the hand by one.
    fn turn(&self, count: u32, ground: &Ground, guard: &Guard) {
        let id = self.hand.fetch_add(1, Ordering::Relaxed) % count;
        let slot = self.get(id);
        if slot.marked.swap(0, Ordering::Relaxed) == 0 {
            let size = slot.evict(&self.account, ground, guard);
            if size > 0 {
                self.account.went(u64::from(id), size);
            }
        }
    }

    /// Evicts everything.
    pub(crate) fn clear(&self, ground: &Ground, guard: &Guard) {
        for id in 0..self.next.load(Ordering::Acquire) {
            self.get(id).evict(&self.account, ground, guard);
        }
    }
}

impl Slot {
    fn empty() -> Slot {
        Slot {
            block: AtomicPtr::new(ptr::null_mut()),
            marked: AtomicU32::new(0),
            entries: AtomicU32::new(0),
            live: AtomicU32::new(0),
            runs: AtomicU32::new(0),
            sep: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its block, if it is in memory.
    #[inline]
    pub(crate) fn block<'g>(&self, _guard: &'g Guard) -> Option<&'g Block> {
        // SAFETY:
        // * A slot holds a reference to its block; what is swapped out is given back only after all guards of that
        //   moment (I3), and ours was there before this load.
        let block = unsafe { self.block.load(Ordering::Acquire).as_ref() }?;
        if self.marked.load(Ordering::Relaxed) == 0 {
            self.marked.store(1, Ordering::Relaxed);
        }
        Some(block)
    }

    /// Asks for its block, of an interval of `len` bytes, to be in the processor's cache soon.
    #[inline]
    pub(crate) fn prefetch(&self, len: u64, _guard: &Guard) {
        let block = self.block.load(Ordering::Relaxed);
        if !block.is_null() {
            prefetch_block(block.cast(), usize::try_from((len + DIRECTORY).min(AHEAD)).unwrap_or(0));
        }
    }

    /// Whether its block is in memory.
    pub(crate) fn is_cached(&self) -> bool {
        !self.block.load(Ordering::Relaxed).is_null()
    }

    pub(crate) fn figures(&self) -> Figures {
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        Figures::of(load(&self.entries), load(&self.live), load(&self.runs))
    }

    pub(crate) fn set_figures(&self, figures: Figures) {
        self.entries.store(figures.entries, Ordering::Relaxed);
        self.live.store(figures.live, Ordering::Relaxed);
        self.runs.store(figures.marked_runs(), Ordering::Relaxed);
    }

    /// Live keys were counted.
    pub(crate) fn learn_live(&self, live: u32) {
        self.live.store(live, Ordering::Relaxed);
    }

    /// Keeps a separator's bytes; where they are.
    pub(crate) fn keep_sep(&self, bytes: &[u8]) -> *const Box<[u8]> {
        let kept = Box::into_raw(Box::new(Box::<[u8]>::from(bytes)));
        debug_assert!(self.sep.load(Ordering::Relaxed).is_null(), "taken back before");
        self.sep.store(kept, Ordering::Release);
        kept
    }

    /// Takes its block out; bytes of it.
    pub(crate) fn evict(&self, account: &Account, ground: &Ground, guard: &Guard) -> u64 {
        let block = self.block.swap(ptr::null_mut(), Ordering::AcqRel);
        if block.is_null() {
            return 0;
        }
        let block = block as usize;
        // SAFETY:
        // * Swapped out: the slot's reference is ours to give back.
        let size = unsafe { (*(block as *const Block)).size() };
        account.give(size, &ground.memory);
        guard.defer(move || {
            // SAFETY:
            // * As above; every guard that may have loaded it from the slot is gone.
            drop(unsafe { BlockRef::from_raw(block as *mut Block) });
        });
        note_deferred(usize::try_from(size).unwrap_or(usize::MAX));
        size
    }

    /// Nobody reads it any more: it may be given out again.
    pub(crate) fn take_back(&self, account: &Account, ground: &Ground, guard: &Guard) {
        self.evict(account, ground, guard);
        self.drop_sep();
    }

    fn drop_sep(&self) {
        let sep = self.sep.swap(ptr::null_mut(), Ordering::AcqRel);
        if !sep.is_null() {
            // SAFETY:
            // * Made from a box in `keep_sep`; no index that names it is read any more (I1).
            drop(unsafe { Box::from_raw(sep) });
        }
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        for (number, chunk) in self.chunks.iter().enumerate() {
            let start = chunk.load(Ordering::Relaxed);
            if start.is_null() {
                continue;
            }
            let slots = ptr::slice_from_raw_parts_mut(start, (FIRST as usize) << number);
            // SAFETY:
            // * Made from a box of this length in `add`; `&mut self`: nobody reads it.
            let slots = unsafe { Box::from_raw(slots) };
            for slot in &slots {
                slot.drop_sep();
                // SAFETY:
                // * The slot's own reference; the slot goes now.
                drop(unsafe { BlockRef::from_raw(slot.block.load(Ordering::Relaxed)) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sheaf_base::blob::Blobs;
    use sheaf_base::disk::sim::SimDisk;
    use sheaf_base::memory::Part;
    use sheaf_base::types::StoreId;

    use super::*;

    #[test]
    fn what_is_missed_twice_is_wanted_and_what_is_missed_once_while_there_is_room() {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let ground = Ground::new(blobs, 1 << 20, 7, true);
        let slots = Slots::new(1 << 20);
        assert!(slots.wants(0, 2000, &ground));
        ground.memory.take(Part::Index, 1 << 20);
        let wanted = || (0..20).filter(|id| slots.wants(*id, 2000, &ground)).count();
        assert_eq!(wanted(), 1); // by luck
        assert!(wanted() > 15);
    }
}
