//! # Slots: which of them are taken, and by what
//!
//! FlatStore's lazy-persist allocator (§4.2): what is taken is known in memory only, and found again from what the engines name.
//! No I/O here, and no clock.
//!
//! ## The life of a slot
//!
//! ```text
//!              take: the next generation                 release: nothing names it
//!   free ------------------------------------> taken ------------------------------> free
//!    | ^                                        | |  readers
//!    | |   the last reader is done              | +-------------> leaving
//!    | +----------------------------------------|--------------------+
//!    |                                          | after the last generation, and where
//!    +----> gone with its chunk                 | the stamp cannot be read
//!                                               v
//!                                            retired, until its chunk goes
//! ```
//!
//! A value is *taken* from before its first byte is written until it is removed. Whoever stages one and drops it removes it
//! at once: nobody could know its number. Of a committed one the store removes it when it would have removed a file: what
//! superseded it is durable, neither slot of ROOT names it, and no view needs it. A reader that found it before *pins* it: the slot
//! is not free until the last pin is gone, so that an open value stays what it was.
//!
//! ## Invariants
//!
//! 1. A slot is written only between `take` and the end of staging, by whoever took it; it is taken only when it is free. So what a
//!    pinned, or a named, slot holds never changes.
//! 2. A number is pinned only while its own value has the slot: chunk, class, slot and generation must match. Any other answer is
//!    "gone".
//! 3. In a chunk of an earlier life nothing is taken before its stamps are known: a number that may stand in a record, dead or
//!    not, is never given again. (A recovery goes through dead records in any order. One number in two of them would take the live
//!    value along with the dead one.)
//! 4. A chunk goes only when all its slots are free or retired. It is out of the table before its file is removed.
//! 5. Where a keyspace is closed by damage nobody knows what it names: chunks of earlier lives are *frozen*, nothing is taken in
//!    them and they stay.
//!
//! ## Which slot
//!
//! One of the chunk with the lowest number that has any, the lowest one there. So values gather in low chunks and the high
//! ones become empty; and what is used again was often used lately and is in memory still. An empty chunk, and the blocks of a free
//! slot beside taken ones, are given back when they were not needed for a while: see [`Slots::surplus`] and [`Slots::excess`].
//!
//! ## Threads
//!
//! One mutex around it, held for a tree's look-up, and over no I/O.
//!
//! ## Costs
//!
//! 16 bytes a slot and 150 a chunk; each change goes through the slots of one chunk.

use std::collections::{BTreeMap, BTreeSet};

use super::StagedStats;
use super::place::{self, CLASSES, LAST, Layout, Place, slots};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Use {
    #[default]
    Free,
    Taken,
    /// Removed, and still read.
    Leaving,
    Retired,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// Of the value that has it, or had it last.
    generation: u16,
    /// The newest that was ever given.
    newest: u16,
    state: Use,
    readers: u32,
    /// It has no blocks, as far as is known.
    is_hollow: bool,
}

#[derive(Debug)]
struct Chunk {
    class: u8,
    slots: Box<[Slot]>,
    /// Slots that are taken or left.
    taken: usize,
    /// Slots that may be taken and have blocks.
    warm: usize,
    /// Generations of free slots are known.
    is_known: bool,
    is_frozen: bool,
    /// Its name is durable.
    is_named: bool,
}

impl Chunk {
    /// One of which nothing is known, and in which nothing is taken.
    fn of(class: u8, slot: Slot) -> Chunk {
        let slots = vec![slot; usize::from(slots(class))].into();
        Chunk { class, slots, taken: 0, warm: 0, is_known: false, is_frozen: false, is_named: false }
    }
}

/// What `take` found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Take {
    /// This one.
    Slot(Place),
    /// One in a chunk whose stamps must be read first.
    Unread(u64),
    /// None: a chunk has to be made.
    Nothing,
}

/// All slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    chunks: BTreeMap<u64, Chunk>,
    /// Chunks by class that have a slot to take.
    open: [BTreeSet<u64>; CLASSES],
    /// Empty ones among them, ...
    empty: [BTreeSet<u64>; CLASSES],
    /// ... and how many of these were not needed since the last look.
    spare: [usize; CLASSES],
    /// The same of slots: chunks that have free ones with blocks, how many there are, and how many were not needed.
    warm: [BTreeSet<u64>; CLASSES],
    warm_slots: [usize; CLASSES],
    spare_slots: [usize; CLASSES],
}

impl Slots {
    /// Takes a slot of `class`.
    pub(super) fn take(&mut self, class: u8) -> Take {
        let Some(number) = self.open[usize::from(class)].first().copied() else { return Take::Nothing };
        let Some(chunk) = self.chunks.get_mut(&number) else { return Take::Nothing };
        if !chunk.is_known {
            return Take::Unread(number);
        }
        let free = chunk.slots.iter_mut().enumerate().find(|(_, slot)| slot.state == Use::Free);
        let Some((index, slot)) = free else { return Take::Nothing };
        slot.state = Use::Taken;
        slot.newest += 1; // a free one has not used its last
        slot.generation = slot.newest;
        let place = Place {
            chunk: number,
            class,
            slot: u8::try_from(index).unwrap_or(u8::MAX),
            generation: slot.generation,
        };
        slot.is_hollow = false;
        chunk.taken += 1;
        self.file(number);
        Take::Slot(place)
    }

    /// A chunk was made, and its first slot is taken.
    pub(super) fn made(&mut self, number: u64, class: u8) -> Place {
        let mut chunk =
            Chunk { is_known: true, ..Chunk::of(class, Slot { is_hollow: true, ..Slot::default() }) };
        chunk.slots[0] = Slot { generation: 1, newest: 1, state: Use::Taken, ..Slot::default() };
        chunk.taken = 1;
        self.chunks.insert(number, chunk);
        self.file(number);
        Place { chunk: number, class, slot: 0, generation: 1 }
    }

    /// The head of a chunk was read; None if it is damaged.
    pub(super) fn know(&mut self, number: u64, head: Option<&[u8]>) {
        let Some(head) = head else { return self.freeze(number) };
        let Some(chunk) = self.chunks.get_mut(&number).filter(|chunk| !chunk.is_known) else { return };
        chunk.is_known = true;
        for (index, slot) in (0..).zip(chunk.slots.iter_mut()) {
            match place::generation_in(head, number, index) {
                Some(generation) => slot.newest = slot.newest.max(generation),
                None => slot.newest = LAST, // used no more
            }
            if slot.state == Use::Free && slot.newest == LAST {
                slot.state = Use::Retired;
            }
        }
        self.file(number);
    }

    /// Nothing more is taken in this chunk.
    pub(super) fn freeze(&mut self, number: u64) {
        if let Some(chunk) = self.chunks.get_mut(&number) {
            chunk.is_frozen = true;
        }
        self.file(number);
    }

    /// A value that an engine names, in a chunk of an earlier life.
    pub(super) fn found(&mut self, place: Place, layout: Layout) {
        if usize::from(place.class) >= CLASSES || layout.slot_bytes(place.class) == 0 {
            return; // its record is damaged, whatever its checksum says
        }
        let of_before = || Chunk { is_named: true, ..Chunk::of(place.class, Slot::default()) };
        let chunk = self.chunks.entry(place.chunk).or_insert_with(of_before);
        let slot = chunk.slots.get_mut(usize::from(place.slot));
        let Some(slot) = slot.filter(|_| chunk.class == place.class) else {
            chunk.is_frozen = true;
            return;
        };
        if slot.state == Use::Free {
            slot.state = Use::Taken;
            chunk.taken += 1;
        }
        slot.generation = slot.generation.max(place.generation);
        slot.newest = slot.generation;
    }

    /// All were found. `frozen` if there may be others.
    pub(super) fn settle(&mut self, frozen: bool) {
        let numbers: Vec<u64> = self.chunks.keys().copied().collect();
        for number in numbers {
            if let Some(chunk) = self.chunks.get_mut(&number) {
                chunk.is_frozen |= frozen;
            }
            self.file(number);
        }
    }

    /// Whether there is such a chunk.
    pub(super) fn has(&self, number: u64) -> bool {
        self.chunks.contains_key(&number)
    }

    /// Keeps the value at `place` from being written over. False if it is gone.
    pub(super) fn pin(&mut self, place: Place) -> bool {
        let slot = self.slot(place).filter(|slot| slot.state == Use::Taken);
        slot.map(|slot| slot.readers += 1).is_some()
    }

    /// A reader is done.
    pub(super) fn unpin(&mut self, place: Place) {
        let Some(slot) = self.slot(place) else { return };
        slot.readers -= 1;
        if slot.readers == 0 && slot.state == Use::Leaving {
            self.free(place);
        }
    }

    /// Nothing names the value at `place` any more.
    pub(super) fn release(&mut self, place: Place) {
        match self.slot(place) {
            Some(slot) if slot.state != Use::Taken => {}
            Some(slot) if slot.readers > 0 => slot.state = Use::Leaving,
            Some(_) => self.free(place),
            None => {}
        }
    }

    fn slot(&mut self, place: Place) -> Option<&mut Slot> {
        let chunk = self.chunks.get_mut(&place.chunk).filter(|chunk| chunk.class == place.class)?;
        let slot = chunk.slots.get_mut(usize::from(place.slot))?;
        Some(slot).filter(|slot| slot.generation == place.generation)
    }

    fn free(&mut self, place: Place) {
        let Some(chunk) = self.chunks.get_mut(&place.chunk) else { return };
        let slot = &mut chunk.slots[usize::from(place.slot)];
        slot.state = if slot.newest == LAST { Use::Retired } else { Use::Free };
        chunk.taken -= 1;
        self.file(place.chunk);
    }

    /// Files a chunk under what it is now.
    fn file(&mut self, number: u64) {
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        let class = usize::from(chunk.class);
        let free = || chunk.slots.iter().filter(|slot| slot.state == Use::Free && !chunk.is_frozen);
        let (count, warm) = (free().count(), free().filter(|slot| !slot.is_hollow).count());
        self.warm_slots[class] = self.warm_slots[class] + warm - chunk.warm;
        chunk.warm = warm;
        let put = |set: &mut BTreeSet<u64>, is_in: bool| {
            if is_in { set.insert(number) } else { set.remove(&number) }
        };
        put(&mut self.open[class], count > 0);
        put(&mut self.warm[class], warm > 0);
        put(&mut self.empty[class], chunk.taken == 0 && !chunk.is_frozen);
        self.spare[class] = self.spare[class].min(self.empty[class].len());
        self.spare_slots[class] = self.spare_slots[class].min(self.warm_slots[class]);
    }

    /// Takes free slots whose blocks are to be given back: half of those that were never needed since the last look, if there are
    /// not more than `most`. Each is pinned, and ends with [`Slots::hollowed`].
    pub(super) fn excess(&mut self, most: usize) -> Vec<Place> {
        let mut out = Vec::new();
        for class in 0..CLASSES {
            let mut count = self.spare_slots[class].div_ceil(2).min(most);
            while count > 0
                && let Some(number) = self.warm[class].last().copied()
                && let Some(chunk) = self.chunks.get_mut(&number)
            {
                for (index, slot) in (0..).zip(chunk.slots.iter_mut()) {
                    if slot.state == Use::Free && !slot.is_hollow && count > 0 {
                        (slot.state, slot.readers) = (Use::Leaving, 1);
                        chunk.taken += 1;
                        count -= 1;
                        out.push(Place {
                            chunk: number,
                            class: chunk.class,
                            slot: index,
                            generation: slot.generation,
                        });
                    }
                }
                self.file(number);
            }
            self.spare_slots[class] = self.warm_slots[class];
        }
        out
    }

    /// The slot has no blocks any more, and is free.
    pub(super) fn hollowed(&mut self, place: Place) {
        self.unpin(place);
        if let Some(slot) = self.slot(place).filter(|slot| slot.state == Use::Free) {
            slot.is_hollow = true;
        }
        self.file(place.chunk);
    }

    /// Chunks to give back, which are out of the table: of the empty ones `all`, or half of those that were never needed since the
    /// last look. What comes free comes in bursts, when ROOT was written; what is empty until the next one is too much.
    pub(super) fn surplus(&mut self, all: bool) -> Vec<u64> {
        let mut out = Vec::new();
        for class in 0..CLASSES {
            let count = if all { self.empty[class].len() } else { self.spare[class].div_ceil(2) };
            for _ in 0..count {
                let Some(number) = self.empty[class].last().copied() else { break };
                self.forget(number);
                out.push(number);
            }
            self.spare[class] = self.empty[class].len();
        }
        out
    }

    /// Takes a chunk out of the table if it is empty.
    pub(super) fn forget(&mut self, number: u64) -> bool {
        let Some(chunk) = self.chunks.get(&number).filter(|chunk| chunk.taken == 0 && !chunk.is_frozen)
        else {
            return false;
        };
        let (class, warm) = (usize::from(chunk.class), chunk.warm);
        for set in [&mut self.open[class], &mut self.warm[class], &mut self.empty[class]] {
            set.remove(&number);
        }
        self.chunks.remove(&number);
        self.warm_slots[class] -= warm;
        self.spare_slots[class] = self.spare_slots[class].min(self.warm_slots[class]);
        self.spare[class] = self.spare[class].min(self.empty[class].len());
        true
    }

    /// Whether the name of a chunk has to be synced.
    pub(super) fn is_unnamed(&self, number: u64) -> bool {
        self.chunks.get(&number).is_some_and(|chunk| !chunk.is_named)
    }

    /// The name of a chunk is durable.
    pub(super) fn named(&mut self, number: u64) {
        if let Some(chunk) = self.chunks.get_mut(&number) {
            chunk.is_named = true;
        }
    }

    /// Figures. Free bytes are those of slots that have blocks.
    pub(super) fn stats(&self, layout: Layout) -> StagedStats {
        let mut stats = StagedStats { chunks: self.chunks.len() as u64, ..StagedStats::default() };
        for chunk in self.chunks.values() {
            let bytes = layout.slot_bytes(chunk.class);
            stats.slots += chunk.taken as u64;
            stats.used_bytes += chunk.taken as u64 * bytes;
            stats.free_bytes += chunk.warm as u64 * bytes;
        }
        stats
    }

    /// The numbers of all chunks.
    pub(super) fn numbers(&self) -> Vec<(u64, u8)> {
        self.chunks.iter().map(|(number, chunk)| (*number, chunk.class)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: u8 = 13;

    fn take(slots: &mut Slots) -> Place {
        match slots.take(CLASS) {
            Take::Slot(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_read_is_taken_by_nobody_else() {
        let mut slots = Slots::default();
        let first = slots.made(7, CLASS);
        assert!(slots.pin(first) && slots.pin(first));
        slots.release(first);
        assert!(!slots.pin(first), "it was removed");
        let others: Vec<Place> = (1..4).map(|_| take(&mut slots)).collect();
        assert_eq!(slots.take(CLASS), Take::Nothing);
        slots.unpin(first);
        assert_eq!(slots.take(CLASS), Take::Nothing);
        slots.unpin(first);
        let again = take(&mut slots);
        assert_eq!(again, Place { generation: 2, ..first });
        assert!(!slots.pin(first), "another value is there");
        slots.release(first);
        assert!(slots.pin(again), "the old number frees nothing");
        assert_eq!(slots.surplus(true), []);
        slots.unpin(again);
        others.into_iter().chain([again]).for_each(|place| slots.release(place));
        assert_eq!(slots.surplus(true), [7]);
        assert_eq!(slots.take(CLASS), Take::Nothing);
    }

    #[test]
    fn a_chunk_of_an_earlier_life_tells_its_generations_first() {
        let mut slots = Slots::default();
        let live = Place { chunk: 3, class: CLASS, slot: 1, generation: 5 };
        slots.found(live, Layout::new(false));
        slots.settle(false);
        assert!(slots.pin(live));
        assert_eq!(slots.take(CLASS), Take::Unread(3));
        let mut head = vec![0; place::HEAD];
        for (slot, generation) in [(0, 9), (1, 4), (3, LAST)] {
            head[place::stamp_at(slot)..][..8].copy_from_slice(&place::stamp(3, slot, generation));
        }
        slots.know(3, Some(&head));
        assert_eq!(take(&mut slots), Place { slot: 0, generation: 10, ..live });
        assert_eq!(slots.take(CLASS), Take::Nothing, "one is damaged, one is used up");
        slots.unpin(live);
        slots.release(live);
        assert_eq!(take(&mut slots), Place { generation: 6, ..live });
    }

    #[test]
    fn what_may_hold_unknown_values_stays() {
        let mut slots = Slots::default();
        let live = Place { chunk: 3, class: CLASS, slot: 1, generation: 5 };
        slots.found(live, Layout::new(false));
        slots.settle(true);
        assert_eq!(slots.take(CLASS), Take::Nothing);
        slots.release(live);
        assert_eq!(slots.surplus(true), []);
        assert!(slots.has(3) && !slots.pin(live));
    }

    #[test]
    fn blocks_that_were_not_needed_for_a_while_are_given_back() {
        let mut slots = Slots::default();
        let places: Vec<Place> =
            [slots.made(1, CLASS)].into_iter().chain((0..3).map(|_| take(&mut slots))).collect();
        places[..3].iter().for_each(|place| slots.release(*place));
        assert_eq!(slots.excess(9), [], "they came free only now");
        let out = slots.excess(9);
        assert_eq!(out, places[..2], "half");
        assert_eq!(slots.surplus(true), []);
        assert_eq!(take(&mut slots), Place { generation: 2, ..places[2] }, "the others are being emptied");
        assert_eq!(slots.take(CLASS), Take::Nothing);
        out.iter().for_each(|place| slots.hollowed(*place));
        assert_eq!(slots.excess(9), []);
        assert_eq!(slots.excess(9), [], "there is nothing in them any more");
        assert_eq!(take(&mut slots), Place { generation: 2, ..places[0] });
    }

    #[test]
    fn empty_chunks_go_when_they_were_not_needed_for_a_while() {
        let mut slots = Slots::default();
        let places: Vec<Place> = (0..8).map(|number| slots.made(number, 16)).collect();
        places.iter().for_each(|place| slots.release(*place));
        assert_eq!(slots.surplus(false), [], "they came empty only now");
        let again: Vec<Place> = (0..5)
            .map(|_| match slots.take(16) {
                Take::Slot(place) => place,
                other => panic!("{other:?}"),
            })
            .collect();
        again.iter().for_each(|place| slots.release(*place));
        assert_eq!(slots.surplus(false), [7, 6], "three were never needed");
        assert_eq!(slots.surplus(false).len(), 3);
    }
}
