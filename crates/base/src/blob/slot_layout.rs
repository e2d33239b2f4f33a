//! # Places: how a chunk is laid out, and what the number of a value in one says
//!
//! ```text
//!  chunk    | head: one unit, at least two sectors      | slot 0 | slot 1 | ... | rest that no slot takes |
//!  head     | magic 8, format 4, slots 4, store 16, number 8, unit 4, units 4, checksum 4 | at 512: stamp of each slot |
//!  stamp    | generation 4 | checksum 4 |               the newest value that was begun in the slot; it crosses no sector
//!  number   | 1 | class 5 | slot 6 | chunk 36 | generation 16 |       of a value in a slot, from the highest bit on
//! ```
//!
//! A class is how many slots a chunk has: so no class leaves much of a chunk over. The steps are
//! about 1.25, so that a value takes four fifths of its slot or more, of address space: what is
//! never written has no blocks.
//!
//! ## Invariants
//!
//! 1. The number says where the value is: nothing else on the disk has to be read to find it, or to
//!    know which slots are taken.
//! 2. Numbers never repeat: a chunk's is of the numbers that ROOT reserves, and within it each use
//!    of a slot has a generation of its own. A slot whose generations are used up is used no more,
//!    until its chunk goes.

use crate::frame::u32_at;
use crate::root::FORMAT;
use crate::types::StoreId;

/// Set in numbers of values in slots, in no other.
const IN_SLOT: u64 = 1 << 63;
const CLASS_AT: u32 = 58;
const SLOT_AT: u32 = 52;
const CHUNK_AT: u32 = 16;
/// Chunks have numbers below.
pub(super) const MAX_CHUNKS: u64 = 1 << (SLOT_AT - CHUNK_AT);
/// The last generation of a slot.
pub(super) const LAST_GENERATION: u16 = u16::MAX;

/// Slots of a chunk, by class.
const SLOTS: [u8; 17] = [64, 51, 42, 34, 28, 22, 18, 14, 11, 9, 7, 6, 5, 4, 3, 2, 1];
/// How many classes there are.
pub(super) const CLASSES: usize = SLOTS.len();

const MAGIC: &[u8; 8] = b"SHEAFCHK";
/// Where stamps begin, and what the fields before take.
const STAMPS: usize = 512;
const FIELDS: usize = 52;
/// Fields and stamps.
pub(super) const HEAD: usize = 1024;
const STAMP: usize = 8;

/// Sizes of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLayout {
    /// What slots are multiples of, and what is written at once: a page.
    pub(super) unit: u32,
    /// Units of all slots of a chunk.
    pub(super) units: u32,
}

impl ChunkLayout {
    /// 4 MiB, of pages; or 16 KiB, of sectors.
    pub(crate) fn new(tiny: bool) -> ChunkLayout {
        if tiny { ChunkLayout { unit: 512, units: 32 } } else { ChunkLayout { unit: 4096, units: 1024 } }
    }

    /// The class for values of `len` bytes. None if no slot takes them.
    pub(super) fn class_for(self, len: u64) -> Option<u8> {
        (0..).take(CLASSES).find(|class| self.slot_bytes(*class) >= len)
    }

    /// Bytes of a slot.
    pub(super) fn slot_bytes(self, class: u8) -> u64 {
        u64::from(self.units / u32::from(slots(class))) * u64::from(self.unit)
    }

    /// Where the slot begins.
    pub(super) fn offset(self, place: SlotLocation) -> u64 {
        self.head() + u64::from(place.slot) * self.slot_bytes(place.class)
    }

    fn head(self) -> u64 {
        u64::from(self.unit).max(HEAD as u64)
    }

    /// Bytes of a chunk.
    pub(super) fn chunk_bytes(self) -> u64 {
        self.head() + u64::from(self.unit) * u64::from(self.units)
    }

    /// The fields of a head.
    pub(super) fn fields(self, store: StoreId, chunk: u64, class: u8) -> [u8; FIELDS] {
        let mut bytes = [0; FIELDS];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&u32::from(slots(class)).to_le_bytes());
        bytes[16..32].copy_from_slice(&store.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&chunk.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.unit.to_le_bytes());
        bytes[44..48].copy_from_slice(&self.units.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..48]);
        bytes[48..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }
}

/// Slots of a chunk of `class`; of one that does not exist, none.
pub(super) fn slots(class: u8) -> u8 {
    SLOTS.get(usize::from(class)).copied().unwrap_or(u8::MAX)
}

/// Where a stamp stands in the head.
pub(super) fn stamp_at(slot: u8) -> usize {
    STAMPS + STAMP * usize::from(slot)
}

/// The stamp of a slot.
pub(super) fn stamp(chunk: u64, slot: u8, generation: u16) -> [u8; STAMP] {
    let mut bytes = [0; STAMP];
    bytes[..4].copy_from_slice(&u32::from(generation).to_le_bytes());
    bytes[4..].copy_from_slice(&stamp_sum(chunk, slot, generation).to_le_bytes());
    bytes
}

/// The generation in a stamp, which stands in the head at its place. None if it is damaged.
pub(super) fn generation_in(head: &[u8], chunk: u64, slot: u8) -> Option<u16> {
    let at = stamp_at(slot);
    let generation = u16::try_from(u32_at(head, at)).ok()?;
    (u32_at(head, at + 4) == stamp_sum(chunk, slot, generation)).then_some(generation)
}

fn stamp_sum(chunk: u64, slot: u8, generation: u16) -> u32 {
    let sum = crc32c::crc32c(&chunk.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &[slot]), &generation.to_le_bytes())
}

/// A slot at one of its uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotLocation {
    pub(super) chunk: u64,
    pub(super) class: u8,
    pub(super) slot: u8,
    pub(super) generation: u16,
}

/// The number of the file that blob `id` is, or is in.
pub(crate) fn file_number(id: u64) -> u64 {
    SlotLocation::from_id(id).map_or(id, |place| place.chunk)
}

impl SlotLocation {
    /// What `id` says. None if its value has a file of its own; nor is a slot that no chunk has a
    /// place.
    pub(super) fn from_id(id: u64) -> Option<SlotLocation> {
        let bits = |at: u32, count: u32| id >> at & ((1 << count) - 1);
        let byte = |at, count| u8::try_from(bits(at, count)).unwrap_or(u8::MAX);
        let place = SlotLocation {
            chunk: bits(CHUNK_AT, SLOT_AT - CHUNK_AT),
            class: byte(CLASS_AT, 5),
            slot: byte(SLOT_AT, 6),
            generation: u16::try_from(bits(0, 16)).unwrap_or(LAST_GENERATION),
        };
        let slots = SLOTS.get(usize::from(place.class));
        (id & IN_SLOT != 0 && slots.is_some_and(|slots| place.slot < *slots)).then_some(place)
    }

    /// The number of its value.
    pub(super) fn id(self) -> u64 {
        IN_SLOT
            | u64::from(self.class) << CLASS_AT
            | u64::from(self.slot) << SLOT_AT
            | self.chunk << CHUNK_AT
            | u64::from(self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_says_where_its_value_is() {
        for class in 0..17 {
            for (slot, chunk, generation) in [(0, 1, 1), (slots(class) - 1, MAX_CHUNKS - 1, LAST_GENERATION)]
            {
                let place = SlotLocation { chunk, class, slot, generation };
                assert_eq!(SlotLocation::from_id(place.id()), Some(place));
                assert!(place.id() < u64::MAX, "one more is a number too");
            }
        }
        assert_eq!(SlotLocation::from_id(MAX_CHUNKS), None);
        for (class, slot) in [(17, 0), (31, 63), (16, 1), (2, 42)] {
            let nowhere = SlotLocation { chunk: 1, class, slot, generation: 1 };
            assert_eq!(SlotLocation::from_id(nowhere.id()), None, "slot {slot} of class {class}");
        }
        assert_eq!(SlotLocation::from_id(u64::MAX), None);
    }

    #[test]
    fn slots_lie_side_by_side_and_waste_little() {
        for layout in [ChunkLayout::new(false), ChunkLayout::new(true)] {
            let most = u64::from(layout.unit) * u64::from(layout.units);
            assert_eq!(layout.class_for(most + 1), None);
            assert!(layout.head() >= HEAD as u64);
            for len in (layout.slot_bytes(0).max(1)..=most).step_by(61) {
                let class = layout.class_for(len).unwrap();
                let (bytes, last) = (layout.slot_bytes(class), slots(class) - 1);
                assert!(bytes >= len, "{len} in {bytes}");
                let place = SlotLocation { chunk: 1, class, slot: last, generation: 1 };
                assert!(layout.offset(place) + bytes <= layout.chunk_bytes());
                let all = bytes * u64::from(slots(class));
                assert!(layout.unit < 4096 || all * 100 >= most * 98, "{len}: {all} of {most}");
            }
        }
        let layout = ChunkLayout::new(false);
        for len in [65_537u64, 100 << 10, 256 << 10, 1 << 20] {
            let bytes = layout.slot_bytes(layout.class_for(len).unwrap());
            assert!(len * 5 >= bytes * 4 - 4 * 4096, "{len} in {bytes}");
        }
    }

    #[test]
    fn a_damaged_stamp_is_rejected() {
        let mut head = vec![0; HEAD];
        assert_eq!(generation_in(&head, 7, 63), None, "nothing was written");
        head[stamp_at(63)..].copy_from_slice(&stamp(7, 63, 9));
        assert_eq!(generation_in(&head, 7, 63), Some(9));
        assert_eq!(generation_in(&head, 8, 63), None);
        head[stamp_at(63)] ^= 1;
        assert_eq!(generation_in(&head, 7, 63), None);
    }
}
