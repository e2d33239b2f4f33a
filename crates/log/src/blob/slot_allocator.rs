//! # Slot allocator: the state of all slots of chunks
//!
//! FlatStore's lazy-persist allocator (§4.2): allocation is kept in memory only, and recovery
//! rebuilds it from the references of the engines. No I/O and no clock.
//!
//! ## Picture
//!
//! ```text
//!            allocate: next generation          release: nothing refers to it
//!   free -----------------------------> used -------------------------------------> free
//!    ^                                   | `--- release while pinned ---> removed
//!    `------------ last unpin -----------|----------------------------------'
//!                                        v  after the last generation, or if the stamp is damaged
//!                                     retired, until its chunk is removed
//! ```
//!
//! ## Invariants
//!
//! 1. A slot is written only between `allocate` and the end of the write, by the thread that
//!    allocated it. Only a free slot is allocated, so the content of a referenced or pinned slot
//!    never changes.
//! 2. A number is pinned only while its own value has the slot: chunk, class, slot and generation
//!    must match. Otherwise the value does not exist any more.
//! 3. In a chunk of an earlier opening no slot is allocated before its stamps are read. So no
//!    number that any record may contain, live or dead, is assigned again.
//! 4. A chunk is removed only if all its slots are free or retired. It leaves the table before its
//!    file is removed.
//! 5. If damage closed a keyspace, its references are unknown. Chunks of earlier openings are then
//!    *frozen*: no slot of them is allocated, and they are kept.

use std::collections::{BTreeMap, BTreeSet};

use super::BlobStats;
use super::slot_layout::{self, CLASSES, ChunkLayout, LAST_GENERATION, SlotLocation, slots};

/// State of a slot. A slot is `Used` from before its first byte is written until its value is
/// removed. A blob that was never committed is removed at once, since no record has its number. The
/// store removes a committed one when it would remove a file. The superseding data must be durable,
/// neither slot of ROOT may refer to it, and no view may need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SlotUse {
    #[default]
    Free,
    Used,
    /// Removed, but pinned by readers.
    Removed,
    Retired,
}

#[derive(Clone, Copy, Debug, Default)]
struct BlobSlot {
    /// Generation of the present value, or of the last one.
    generation: u16,
    /// Newest generation that was ever assigned.
    newest: u16,
    state: SlotUse,
    readers: u32,
    /// Has no blocks, as far as is known.
    is_punched: bool,
}

#[derive(Debug)]
struct ChunkSlots {
    class: u8,
    slots: Box<[BlobSlot]>,
    /// Slots that are used or removed but pinned.
    taken: usize,
    /// Free slots that have blocks.
    with_blocks: usize,
    /// Whether the generations of free slots are known.
    has_generations: bool,
    is_frozen: bool,
    /// Whether the name is durable.
    is_name_synced: bool,
}

impl ChunkSlots {
    /// Returns a chunk without used slots and without known generations, in which every slot is
    /// `slot`.
    fn of(class: u8, slot: BlobSlot) -> ChunkSlots {
        let slots = vec![slot; usize::from(slots(class))].into();
        ChunkSlots {
            class,
            slots,
            taken: 0,
            with_blocks: 0,
            has_generations: false,
            is_frozen: false,
            is_name_synced: false,
        }
    }
}

/// Result of [`SlotAllocator::allocate`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SlotAllocation {
    /// The allocated slot.
    Slot(SlotLocation),
    /// A chunk, the stamps of which must be read first.
    NeedsRead(u64),
    /// No free slot: a chunk must be created.
    NoSlot,
}

/// State of all slots.
#[derive(Debug, Default)]
pub(super) struct SlotAllocator {
    chunks: BTreeMap<u64, ChunkSlots>,
    /// By class: chunks that have a free slot.
    open: [BTreeSet<u64>; CLASSES],
    /// By class: empty chunks, ...
    empty: [BTreeSet<u64>; CLASSES],
    /// ... and the least number of them since the last call of
    /// [`SlotAllocator::take_empty_chunks`].
    spare: [usize; CLASSES],
    /// By class: chunks with free slots that have blocks, the number of such slots, and its minimum
    /// since the last [`SlotAllocator::take_excess_slots`].
    with_blocks: [BTreeSet<u64>; CLASSES],
    slots_with_blocks: [usize; CLASSES],
    spare_slots: [usize; CLASSES],
}

impl SlotAllocator {
    /// Allocates a slot of `class`: the lowest one of the lowest chunk. So values gather in low
    /// chunks, high ones become empty, and a reused slot was often in use recently and is still
    /// cached.
    pub(super) fn allocate(&mut self, class: u8) -> SlotAllocation {
        let Some(number) = self.open[usize::from(class)].first().copied() else {
            return SlotAllocation::NoSlot;
        };
        let Some(chunk) = self.chunks.get_mut(&number) else { return SlotAllocation::NoSlot };
        if !chunk.has_generations {
            return SlotAllocation::NeedsRead(number);
        }
        let free = chunk.slots.iter_mut().enumerate().find(|(_, slot)| slot.state == SlotUse::Free);
        let Some((index, slot)) = free else { return SlotAllocation::NoSlot };
        assert!(slot.readers == 0, "slot_allocator (I1): a free slot has no pin");
        assert!(!chunk.is_frozen, "slot_allocator (I5): a slot of a frozen chunk is not allocated");
        assert!(slot.newest < LAST_GENERATION, "slot_layout (I2): a free slot has a generation left");
        slot.state = SlotUse::Used;
        slot.newest += 1;
        slot.generation = slot.newest;
        let place = SlotLocation {
            chunk: number,
            class,
            slot: u8::try_from(index).unwrap_or(u8::MAX),
            generation: slot.generation,
        };
        slot.is_punched = false;
        chunk.taken += 1;
        self.reindex(number);
        SlotAllocation::Slot(place)
    }

    /// Adds a new chunk and allocates its first slot.
    pub(super) fn add_chunk(&mut self, number: u64, class: u8) -> SlotLocation {
        let mut chunk = ChunkSlots {
            has_generations: true,
            ..ChunkSlots::of(class, BlobSlot { is_punched: true, ..BlobSlot::default() })
        };
        chunk.slots[0] = BlobSlot { generation: 1, newest: 1, state: SlotUse::Used, ..BlobSlot::default() };
        chunk.taken = 1;
        self.chunks.insert(number, chunk);
        self.reindex(number);
        SlotLocation { chunk: number, class, slot: 0, generation: 1 }
    }

    /// Sets the generations from the head of a chunk; `None` if the head is damaged (I3). Recovery
    /// reads dead records in any order: with a repeated number it would free the live value
    /// together with the dead one.
    pub(super) fn set_generations(&mut self, number: u64, head: Option<&[u8]>) {
        let Some(head) = head else { return self.freeze(number) };
        let Some(chunk) = self.chunks.get_mut(&number).filter(|chunk| !chunk.has_generations) else { return };
        chunk.has_generations = true;
        for (index, slot) in (0..).zip(chunk.slots.iter_mut()) {
            match slot_layout::generation_in(head, number, index) {
                Ok(generation) => slot.newest = slot.newest.max(generation),
                Err(_) => slot.newest = LAST_GENERATION, // not used any more
            }
            if slot.state == SlotUse::Free && slot.newest == LAST_GENERATION {
                slot.state = SlotUse::Retired;
            }
        }
        self.reindex(number);
    }

    /// Prevents further allocations in a chunk.
    pub(super) fn freeze(&mut self, number: u64) {
        if let Some(chunk) = self.chunks.get_mut(&number) {
            chunk.is_frozen = true;
        }
        self.reindex(number);
    }

    /// Marks a slot of an earlier opening as used, because an engine refers to it.
    pub(super) fn mark_used(&mut self, place: SlotLocation, layout: ChunkLayout) {
        if usize::from(place.class) >= CLASSES || layout.slot_bytes(place.class) == 0 {
            return; // the record is damaged, although its checksum is right
        }
        let of_before =
            || ChunkSlots { is_name_synced: true, ..ChunkSlots::of(place.class, BlobSlot::default()) };
        let chunk = self.chunks.entry(place.chunk).or_insert_with(of_before);
        let slot = chunk.slots.get_mut(usize::from(place.slot));
        let Some(slot) = slot.filter(|_| chunk.class == place.class) else {
            chunk.is_frozen = true;
            return;
        };
        if slot.state == SlotUse::Free {
            slot.state = SlotUse::Used;
            chunk.taken += 1;
        }
        slot.generation = slot.generation.max(place.generation);
        slot.newest = slot.generation;
    }

    /// Ends recovery: all used slots were marked. `frozen` means that there may be others.
    pub(super) fn finish_recovery(&mut self, frozen: bool) {
        let numbers: Vec<u64> = self.chunks.keys().copied().collect();
        for number in numbers {
            if let Some(chunk) = self.chunks.get_mut(&number) {
                chunk.is_frozen |= frozen;
            }
            self.reindex(number);
        }
    }

    /// Returns true if there is such a chunk.
    pub(super) fn contains(&self, number: u64) -> bool {
        self.chunks.contains_key(&number)
    }

    /// Pins the value at `place`, so that it is not overwritten. Returns false if it does not exist
    /// any more.
    pub(super) fn pin(&mut self, place: SlotLocation) -> bool {
        let slot = self.slot(place).filter(|slot| slot.state == SlotUse::Used);
        slot.map(|slot| slot.readers += 1).is_some()
    }

    /// Removes a pin.
    pub(super) fn unpin(&mut self, place: SlotLocation) {
        let Some(slot) = self.slot(place) else { return };
        assert!(slot.readers > 0, "slot_allocator (I2): a pinned slot keeps its value until it is unpinned");
        slot.readers -= 1;
        if slot.readers == 0 && slot.state == SlotUse::Removed {
            self.free(place);
        }
    }

    /// Releases the slot at `place`, to which nothing refers any more.
    pub(super) fn release(&mut self, place: SlotLocation) {
        match self.slot(place) {
            Some(slot) if slot.state != SlotUse::Used => {}
            Some(slot) if slot.readers > 0 => slot.state = SlotUse::Removed,
            Some(_) => self.free(place),
            None => {}
        }
    }

    fn slot(&mut self, place: SlotLocation) -> Option<&mut BlobSlot> {
        let chunk = self.chunks.get_mut(&place.chunk).filter(|chunk| chunk.class == place.class)?;
        let slot = chunk.slots.get_mut(usize::from(place.slot))?;
        Some(slot).filter(|slot| slot.generation == place.generation)
    }

    fn free(&mut self, place: SlotLocation) {
        let Some(chunk) = self.chunks.get_mut(&place.chunk) else { return };
        let slot = &mut chunk.slots[usize::from(place.slot)];
        slot.state = if slot.newest == LAST_GENERATION { SlotUse::Retired } else { SlotUse::Free };
        chunk.taken -= 1;
        self.reindex(place.chunk);
    }

    /// Updates the sets and counts of a chunk's class.
    fn reindex(&mut self, number: u64) {
        let Some(chunk) = self.chunks.get_mut(&number) else { return };
        let class = usize::from(chunk.class);
        let free = || chunk.slots.iter().filter(|slot| slot.state == SlotUse::Free && !chunk.is_frozen);
        let (count, warm) = (free().count(), free().filter(|slot| !slot.is_punched).count());
        self.slots_with_blocks[class] = self.slots_with_blocks[class] + warm - chunk.with_blocks;
        chunk.with_blocks = warm;
        let put = |set: &mut BTreeSet<u64>, is_in: bool| {
            if is_in { set.insert(number) } else { set.remove(&number) }
        };
        put(&mut self.open[class], count > 0);
        put(&mut self.with_blocks[class], warm > 0);
        put(&mut self.empty[class], chunk.taken == 0 && !chunk.is_frozen);
        self.spare[class] = self.spare[class].min(self.empty[class].len());
        self.spare_slots[class] = self.spare_slots[class].min(self.slots_with_blocks[class]);
    }

    /// Takes free slots to be punched: half of those that were not needed since the last call, at
    /// most `most` per class. Each is pinned until [`SlotAllocator::mark_punched`].
    pub(super) fn take_excess_slots(&mut self, most: usize) -> Vec<SlotLocation> {
        let mut out = Vec::new();
        for class in 0..CLASSES {
            let mut count = self.spare_slots[class].div_ceil(2).min(most);
            while count > 0
                && let Some(number) = self.with_blocks[class].last().copied()
                && let Some(chunk) = self.chunks.get_mut(&number)
            {
                for (index, slot) in (0..).zip(chunk.slots.iter_mut()) {
                    if slot.state == SlotUse::Free && !slot.is_punched && count > 0 {
                        (slot.state, slot.readers) = (SlotUse::Removed, 1);
                        chunk.taken += 1;
                        count -= 1;
                        out.push(SlotLocation {
                            chunk: number,
                            class: chunk.class,
                            slot: index,
                            generation: slot.generation,
                        });
                    }
                }
                self.reindex(number);
            }
            self.spare_slots[class] = self.slots_with_blocks[class];
        }
        out
    }

    /// Records that the slot has no blocks any more, and frees it.
    pub(super) fn mark_punched(&mut self, place: SlotLocation) {
        self.unpin(place);
        if let Some(slot) = self.slot(place).filter(|slot| slot.state == SlotUse::Free) {
            slot.is_punched = true;
        }
        self.reindex(place.chunk);
    }

    /// Removes empty chunks from the table: all, or half of those that were not needed since the
    /// last call. The caller must remove their files. Slots become free in bursts, when ROOT is
    /// written; chunks that stay empty until the next burst are too many.
    pub(super) fn take_empty_chunks(&mut self, all: bool) -> Vec<u64> {
        let mut out = Vec::new();
        for class in 0..CLASSES {
            let count = if all { self.empty[class].len() } else { self.spare[class].div_ceil(2) };
            for _ in 0..count {
                let Some(number) = self.empty[class].last().copied() else { break };
                let is_removed = self.remove_if_empty(number);
                assert!(is_removed, "slot_allocator (I4): a chunk that is removed has no used slot");
                out.push(number);
            }
            self.spare[class] = self.empty[class].len();
        }
        out
    }

    /// Removes a chunk from the table if it is empty.
    pub(super) fn remove_if_empty(&mut self, number: u64) -> bool {
        let Some(chunk) = self.chunks.get(&number).filter(|chunk| chunk.taken == 0 && !chunk.is_frozen)
        else {
            return false;
        };
        let (class, warm) = (usize::from(chunk.class), chunk.with_blocks);
        for set in [&mut self.open[class], &mut self.with_blocks[class], &mut self.empty[class]] {
            set.remove(&number);
        }
        self.chunks.remove(&number);
        self.slots_with_blocks[class] -= warm;
        self.spare_slots[class] = self.spare_slots[class].min(self.slots_with_blocks[class]);
        self.spare[class] = self.spare[class].min(self.empty[class].len());
        true
    }

    /// Returns true if the name of the chunk must be synced.
    pub(super) fn is_name_unsynced(&self, number: u64) -> bool {
        self.chunks.get(&number).is_some_and(|chunk| !chunk.is_name_synced)
    }

    /// Records that the name of a chunk is durable.
    pub(super) fn mark_name_synced(&mut self, number: u64) {
        if let Some(chunk) = self.chunks.get_mut(&number) {
            chunk.is_name_synced = true;
        }
    }

    /// Returns statistics. Free bytes are those of free slots that have blocks.
    pub(super) fn stats(&self, layout: ChunkLayout) -> BlobStats {
        let mut stats = BlobStats { chunks: self.chunks.len() as u64, ..BlobStats::default() };
        for chunk in self.chunks.values() {
            let bytes = layout.slot_bytes(chunk.class);
            stats.slots += chunk.taken as u64;
            stats.used_bytes += chunk.taken as u64 * bytes;
            stats.free_bytes += chunk.with_blocks as u64 * bytes;
        }
        stats
    }

    /// Returns numbers and classes of all chunks.
    pub(super) fn numbers(&self) -> Vec<(u64, u8)> {
        self.chunks.iter().map(|(number, chunk)| (*number, chunk.class)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: u8 = 13;

    fn take(slots: &mut SlotAllocator) -> SlotLocation {
        match slots.allocate(CLASS) {
            SlotAllocation::Slot(place) => place,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pinned_slot_is_not_reused() {
        let mut slots = SlotAllocator::default();
        let first = slots.add_chunk(7, CLASS);
        assert!(slots.pin(first) && slots.pin(first));
        slots.release(first);
        assert!(!slots.pin(first), "it was removed");
        let others: Vec<SlotLocation> = (1..4).map(|_| take(&mut slots)).collect();
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NoSlot);
        slots.unpin(first);
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NoSlot);
        slots.unpin(first);
        let again = take(&mut slots);
        assert_eq!(again, SlotLocation { generation: 2, ..first });
        assert!(!slots.pin(first), "another value is there");
        slots.release(first);
        assert!(slots.pin(again), "the old number frees nothing");
        assert_eq!(slots.take_empty_chunks(true), []);
        slots.unpin(again);
        others.into_iter().chain([again]).for_each(|place| slots.release(place));
        assert_eq!(slots.take_empty_chunks(true), [7]);
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NoSlot);
    }

    #[test]
    fn a_chunk_of_an_earlier_opening_is_used_after_its_generations_are_read() {
        let mut slots = SlotAllocator::default();
        let live = SlotLocation { chunk: 3, class: CLASS, slot: 1, generation: 5 };
        slots.mark_used(live, ChunkLayout::new(false));
        slots.finish_recovery(false);
        assert!(slots.pin(live));
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NeedsRead(3));
        let mut head = vec![0; slot_layout::HEAD];
        for (slot, generation) in [(0, 9), (1, 4), (3, LAST_GENERATION)] {
            head[slot_layout::stamp_at(slot)..][..8]
                .copy_from_slice(&slot_layout::stamp(3, slot, generation));
        }
        slots.set_generations(3, Some(&head));
        assert_eq!(take(&mut slots), SlotLocation { slot: 0, generation: 10, ..live });
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NoSlot, "one is damaged, one is used up");
        slots.unpin(live);
        slots.release(live);
        assert_eq!(take(&mut slots), SlotLocation { generation: 6, ..live });
    }

    #[test]
    fn a_frozen_chunk_is_not_reused() {
        let mut slots = SlotAllocator::default();
        let live = SlotLocation { chunk: 3, class: CLASS, slot: 1, generation: 5 };
        slots.mark_used(live, ChunkLayout::new(false));
        slots.finish_recovery(true);
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NoSlot);
        slots.release(live);
        assert_eq!(slots.take_empty_chunks(true), []);
        assert!(slots.contains(3) && !slots.pin(live));
    }

    #[test]
    fn unused_blocks_are_punched_after_a_while() {
        let mut slots = SlotAllocator::default();
        let places: Vec<SlotLocation> =
            [slots.add_chunk(1, CLASS)].into_iter().chain((0..3).map(|_| take(&mut slots))).collect();
        places[..3].iter().for_each(|place| slots.release(*place));
        assert_eq!(slots.take_excess_slots(9), [], "they came free only now");
        let out = slots.take_excess_slots(9);
        assert_eq!(out, places[..2], "half");
        assert_eq!(slots.take_empty_chunks(true), []);
        assert_eq!(
            take(&mut slots),
            SlotLocation { generation: 2, ..places[2] },
            "the others are being emptied"
        );
        assert_eq!(slots.allocate(CLASS), SlotAllocation::NoSlot);
        out.iter().for_each(|place| slots.mark_punched(*place));
        assert_eq!(slots.take_excess_slots(9), []);
        assert_eq!(slots.take_excess_slots(9), [], "there is nothing in them any more");
        assert_eq!(take(&mut slots), SlotLocation { generation: 2, ..places[0] });
    }

    #[test]
    fn unused_empty_chunks_are_removed_after_a_while() {
        let mut slots = SlotAllocator::default();
        let places: Vec<SlotLocation> = (0..8).map(|number| slots.add_chunk(number, 16)).collect();
        places.iter().for_each(|place| slots.release(*place));
        assert_eq!(slots.take_empty_chunks(false), [], "they came empty only now");
        let again: Vec<SlotLocation> = (0..5)
            .map(|_| match slots.allocate(16) {
                SlotAllocation::Slot(place) => place,
                other => panic!("{other:?}"),
            })
            .collect();
        again.iter().for_each(|place| slots.release(*place));
        assert_eq!(slots.take_empty_chunks(false), [7, 6], "three were never needed");
        assert_eq!(slots.take_empty_chunks(false).len(), 3);
    }
}
