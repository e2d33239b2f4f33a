//! # Slots: what is known of each interval, and the cache of their blocks
//!
//! An interval of the sparse index names a slot: its block, if it is in memory, or its prints, a few figures, and its separator if that is
//! long. Content of an interval never changes: a commit makes a new one with a new slot.
//!
//! ## Invariants
//!
//! 1. A slot stays where it is. The committer alone gives slots out and takes them back, the latter when no state that a
//!    reader may have names them.
//! 2. All but what is kept and marks are written before an index names the slot, and not again while one does.
//! 3. What a slot keeps is counted in the budget's cache. It leaves by an exchange, and is freed when the readers of that
//!    moment are gone.
//!
//! ## Eviction
//!
//! CLOCK: reading a block marks its slot; a hand goes around, takes marks away and evicts what has none. It moves when a
//! block is added beyond the budget, which the cache shares with everything else and gives way to.
//!
//! Of a block that goes prints stay (`prints.rs`), if gets have asked for the interval: they spare a get all pages of the interval but one, for a
//! twentieth of its bytes. So they go only when they would have most of the cache, and nothing has used them since the hand came by.
//!
//! ## Admission
//!
//! While the budget is full an interval that is missed gets its block into memory only if it was missed before and not long ago (the
//! ghosts of [`Account`] know): of what is read from far more than the budget, most does not come again in time. What is read once takes
//! nobody's place (but one in 16), and a get does not even make a block of it. Nor does anything while much of what went waits for guards.
//!
//! An interval that has prints is read whole for its block, on two or three pages where a get needs one, and lets another's block go: it has to be known
//! twice, with no round of the hand between in which nobody used it. Of gets that prefer nothing, one miss in five is of an interval that ghosts know.

use std::ptr;

use sheaf_base::ground::Ground;
use sheaf_base::memory::{in_chunks, prefetch, prefetch_block};
use sheaf_base::shares::{Account, is_clogged};
use sheaf_base::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{Guard, note_deferred, relieve};

use crate::block::{Block, BlockRef};
use crate::kept::{Kept, Look, Own};
use crate::prints::{Prints, Shown};

/// Slots of the first chunk; chunk k has `FIRST << k`.
const FIRST: u32 = 64;
const CHUNKS: usize = 26;
/// Slots that the hand looks at, at most, to make room for one block.
const TURN: u32 = 1024;
/// One in so many of those that are not worth a place gets one all the same: there may be too few ghosts to know it again. Of those that have
/// prints one in so many, since a get reads more for it.
const LUCKY: u32 = 16;
const LUCKY_WITH_PRINTS: u32 = 64;
/// There is room while so many more such blocks have some: what one block leaves of another's place is none.
const ROOMY: u64 = 8;
/// What a block takes beside the interval's bytes, about.
const DIRECTORY: u64 = 128;
/// Most bytes of a block that are asked for ahead.
const AHEAD: u64 = 4 << 10;
/// Prints may have so many quarters of the cache.
const PRINTED_QUARTERS: u64 = 3;
/// Marks: what is kept was used since the hand came by; a get has missed the block; it was known when it was missed.
const USED: u32 = 1;
const ASKED: u32 = 2;
const KNOWN: u32 = 4;
/// Live keys are not known: something was appended to a block that was not in memory.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// One interval.
#[derive(Debug)]
pub(crate) struct Slot {
    kept: Kept,
    marks: AtomicU32,
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
    /// What blocks and prints take of the budget, ...
    pub(crate) account: Account,
    /// ... and prints of that.
    printed: AtomicU64,
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
            printed: AtomicU64::new(0),
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
    /// was missed lately, too (twice, if it has prints), and now and then.
    pub(crate) fn wants(&self, id: u32, len: u64, ground: &Ground) -> bool {
        let slot = self.get(id);
        let size = Block::size_of(len, slot.figures().entries);
        let has_prints = slot.kept.is_prints();
        let is_known = self.account.missed(u64::from(id), len);
        let may_take = is_known && (!has_prints || slot.note_known()) && !is_clogged(&ground.memory);
        if may_take || self.account.has_room(size.saturating_mul(ROOMY), &ground.memory) {
            return true;
        }
        let lucky = if has_prints { LUCKY_WITH_PRINTS } else { LUCKY };
        if self.refused.fetch_add(1, Ordering::Relaxed) % lucky == lucky - 1 {
            return true;
        }
        self.account.went(u64::from(id), size);
        false
    }

    /// Puts a block into its slot, if the budget has room for it or can be given some.
    pub(crate) fn offer(&self, id: u32, block: &BlockRef, ground: &Ground, guard: &Guard) {
        let size = block.size();
        if !self.make_room(size, ground, guard) {
            self.account.went(u64::from(id), size);
            return;
        }
        self.put(id, Own::Block(block.clone()), ground, guard);
    }

    /// Puts prints into the slot of a block that has no place, unless there are too many already. Gets ask for it.
    pub(crate) fn offer_prints(&self, id: u32, prints: Prints, ground: &Ground, guard: &Guard) {
        self.expect_gets(id);
        if !self.has_many_prints() && self.make_room(prints.show().size(), ground, guard) {
            self.put(id, Own::Prints(prints), ground, guard);
        }
    }

    /// Puts a block into a slot that has none, or prints into one that has nothing.
    fn put(&self, id: u32, new: Own, ground: &Ground, guard: &Guard) {
        let slot = self.get(id);
        let seen = slot.kept.look(guard);
        if match &new {
            Own::Block(_) => matches!(seen, Look::Block(_)),
            Own::Prints(_) => !matches!(seen, Look::Nothing),
        } {
            return;
        }
        self.exchange(slot, &seen, Some(new), ground, guard);
        slot.mark(USED);
    }

    /// Puts `new` into a slot in place of what was `seen` there, if it is still that; what it takes more, or less, is accounted for. Whether it did.
    fn exchange(
        &self,
        slot: &Slot,
        seen: &Look<'_>,
        new: Option<Own>,
        ground: &Ground,
        guard: &Guard,
    ) -> bool {
        new.iter().for_each(|new| self.count(new, ground)); // before it can go again
        match slot.kept.exchange(seen, new) {
            Ok(old) => {
                old.into_iter().for_each(|old| self.let_go(old, ground, guard));
                true
            }
            Err(new) => {
                new.iter().for_each(|new| self.uncount(new, ground));
                false
            }
        }
    }

    fn count(&self, new: &Own, ground: &Ground) {
        self.account.take(new.size(), &ground.memory);
        if let Own::Prints(_) = new {
            self.printed.fetch_add(new.size(), Ordering::Relaxed);
        }
    }

    fn uncount(&self, old: &Own, ground: &Ground) {
        self.account.give(old.size(), &ground.memory);
        if let Own::Prints(_) = old {
            self.printed.fetch_sub(old.size(), Ordering::Relaxed);
        }
    }

    /// Frees what was taken out of a slot when nobody looks at it any more.
    fn let_go(&self, old: Own, ground: &Ground, guard: &Guard) {
        self.uncount(&old, ground);
        note_deferred(usize::try_from(old.size()).unwrap_or(usize::MAX));
        guard.defer(move || drop(old));
    }

    /// Whether prints have as much of the cache as they may.
    pub(crate) fn has_many_prints(&self) -> bool {
        self.printed.load(Ordering::Relaxed) > self.account.bytes() / 4 * PRINTED_QUARTERS
    }

    /// Moves the hand until `size` bytes fit. False if they still do not.
    pub(crate) fn make_room(&self, size: u64, ground: &Ground, guard: &Guard) -> bool {
        relieve(guard);
        if is_clogged(&ground.memory) {
            guard.flush();
            return self.account.has_room(size, &ground.memory);
        }
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
        let marks = slot.marks.load(Ordering::Relaxed);
        if marks & USED != 0 {
            slot.marks.fetch_and(!USED, Ordering::Relaxed);
            return;
        }
        if marks & KNOWN != 0 {
            slot.marks.fetch_and(!KNOWN, Ordering::Relaxed);
        }
        let seen = slot.kept.look(guard);
        match seen {
            Look::Nothing => {}
            Look::Block(block) => {
                let leaves = marks & ASKED != 0 && !self.has_many_prints();
                let prints = leaves.then(|| block.to_prints()).flatten().map(Own::Prints);
                let size = block.size();
                if self.exchange(slot, &seen, prints, ground, guard) {
                    self.account.went(u64::from(id), size);
                }
            }
            Look::Prints(_) => {
                if self.has_many_prints() {
                    self.exchange(slot, &seen, None, ground, guard);
                }
            }
        }
    }

    /// Whether gets have missed the block of slot `id`, or one that it comes from.
    pub(crate) fn is_asked(&self, id: u32) -> bool {
        self.get(id).marks.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Gets will ask for the block of slot `id`.
    pub(crate) fn expect_gets(&self, id: u32) {
        self.get(id).mark(ASKED);
    }

    /// Nobody reads slot `id` any more: it may be given out again.
    pub(crate) fn take_back(&self, id: u32, ground: &Ground, guard: &Guard) {
        let slot = self.get(id);
        slot.kept.take().into_iter().for_each(|old| self.let_go(old, ground, guard));
        slot.marks.store(0, Ordering::Relaxed);
        slot.drop_sep();
    }

    /// Lets everything go.
    pub(crate) fn clear(&self, ground: &Ground, guard: &Guard) {
        for id in 0..self.next.load(Ordering::Acquire) {
            self.get(id).kept.take().into_iter().for_each(|old| self.let_go(old, ground, guard));
        }
    }
}

impl Slot {
    fn empty() -> Slot {
        Slot {
            kept: Kept::nothing(),
            marks: AtomicU32::new(0),
            entries: AtomicU32::new(0),
            live: AtomicU32::new(0),
            runs: AtomicU32::new(0),
            sep: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Its block, if it is in memory.
    #[inline]
    pub(crate) fn block<'g>(&self, guard: &'g Guard) -> Option<&'g Block> {
        let block = self.kept.block(guard)?;
        self.mark(USED);
        Some(block)
    }

    /// Its block or its prints.
    #[inline]
    pub(crate) fn look<'g>(&self, guard: &'g Guard) -> Look<'g> {
        let seen = self.kept.look(guard);
        self.mark(USED);
        seen
    }

    /// Its prints, if it has no block but these.
    pub(crate) fn prints<'g>(&self, guard: &'g Guard) -> Option<Shown<'g>> {
        match self.kept.look(guard) {
            Look::Prints(prints) => Some(prints),
            _ => None,
        }
    }

    #[inline]
    fn mark(&self, mark: u32) {
        if self.marks.load(Ordering::Relaxed) & mark == 0 {
            self.marks.fetch_or(mark, Ordering::Relaxed);
        }
    }

    /// Notes that it was known when it was missed; whether that had been noted before.
    fn note_known(&self) -> bool {
        self.marks.fetch_or(KNOWN, Ordering::Relaxed) & KNOWN != 0
    }

    /// Asks for its block, of an interval of `len` bytes, to be in the processor's cache soon.
    #[inline]
    pub(crate) fn prefetch(&self, len: u64, _guard: &Guard) {
        if let Some(block) = self.kept.address() {
            prefetch_block(block.cast(), usize::try_from((len + DIRECTORY).min(AHEAD)).unwrap_or(0));
        }
    }

    /// Whether its block is in memory.
    pub(crate) fn is_cached(&self) -> bool {
        self.kept.address().is_some()
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
            slots.iter().for_each(Slot::drop_sep);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sheaf_base::blob::Blobs;
    use sheaf_base::disk::sim::SimDisk;
    use sheaf_base::memory::Part;
    use sheaf_base::sync::epoch;
    use sheaf_base::types::StoreId;

    use super::*;

    #[test]
    fn what_is_missed_twice_is_wanted_and_what_is_missed_once_while_there_is_room() {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let ground = Ground::new(blobs, 1 << 20, 7, true);
        let slots = Slots::new(1 << 20);
        assert_eq!((0..20).map(|_| slots.add()).last(), Some(19));
        assert!(slots.wants(0, 2000, &ground));
        ground.memory.take(Part::Index, 1 << 20);
        let wanted = || (0..20).filter(|id| slots.wants(*id, 2000, &ground)).count();
        assert_eq!(wanted(), 1); // by luck
        assert!(wanted() > 15);
    }

    #[test]
    fn what_has_prints_is_wanted_when_it_was_known_twice_since_the_hand_found_it_unused() {
        let blobs = Blobs::new(Arc::new(SimDisk::new()), "blob".into(), 1, StoreId(1), true);
        let (ground, guard) = (Ground::new(blobs, 1 << 20, 7, true), epoch::pin());
        let slots = Slots::new(1 << 20);
        for _ in 0..20 {
            let none = Prints::of(&[], [].into_iter()).expect("small");
            slots.account.take(1 << 10, &ground.memory); // of others, so that these are not many
            slots.offer_prints(slots.add(), none, &ground, &guard);
        }
        ground.memory.take(Part::Index, 1 << 20);
        let wanted = || (0..20).filter(|id| slots.wants(*id, 2000, &ground)).count();
        assert_eq!([wanted(), wanted()], [0, 0]);
        assert!(wanted() > 15);
        assert!(wanted() < 5, "missed once since they were wanted");
        let turn = || (0..20).for_each(|_| slots.turn(20, &ground, &guard));
        turn();
        assert!(wanted() > 15, "used since the hand came by before");
        wanted();
        turn();
        assert!(wanted() < 5, "unused for a round");
        assert!((0..20).all(|id| slots.get(id).prints(&guard).is_some()));
    }
}
