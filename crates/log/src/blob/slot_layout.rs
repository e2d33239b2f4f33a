//! # Slot layout: bytes of a chunk, and numbers of values in slots
//!
//! ```text
//!  chunk    | head: one unit, at least two sectors | slot 0 | slot 1 | ... | unused rest |
//!  head     | magic 8, format 4, slots 4, store 16, number 8, unit 4, units 4, checksum 4 |
//!           | at 512: stamp of each slot |
//!  stamp    | generation 4 | checksum 4 |           crosses no sector
//!  number   | 1 | class 5 | slot 6 | chunk 36 | generation 16 |   bits, from the highest on
//! ```
//!
//! A stamp has the newest generation that was started in its slot. A number is that of a value in a
//! slot.
//!
//! A class is defined by the number of slots of a chunk, so that little of a chunk is unused. The
//! slot sizes of neighboring classes differ by a factor of about 1.25: a value fills at least four
//! fifths of its slot. Unwritten parts of a slot have no blocks.
//!
//! ## Invariants
//!
//! 1. The number of a value determines its location. Nothing else must be read to find the value,
//!    or to know the used slots.
//! 2. Numbers never repeat. The number of a chunk is one of those that ROOT reserves, and each use
//!    of a slot has its own generation. A slot without further generations is not used again until
//!    its chunk is removed.

use crate::root::FORMAT;
use crate::types::StoreId;
use sheaf_platform::codec::u32_at;
use sheaf_platform::error::Damage;

/// Bit that is set only in numbers of values in slots.
const IN_SLOT: u64 = 1 << 63;
const CLASS_AT: u32 = 58;
const SLOT_AT: u32 = 52;
const CHUNK_AT: u32 = 16;
/// Upper bound (exclusive) of the numbers of chunks.
pub(super) const MAX_CHUNKS: u64 = 1 << (SLOT_AT - CHUNK_AT);
/// Last generation of a slot.
pub(super) const LAST_GENERATION: u16 = u16::MAX;

/// Slots of a chunk, by class.
const SLOTS: [u8; 17] = [64, 51, 42, 34, 28, 22, 18, 14, 11, 9, 7, 6, 5, 4, 3, 2, 1];
/// Number of classes.
pub(super) const CLASSES: usize = SLOTS.len();

const MAGIC: &[u8; 8] = b"SHEAFCHK";
/// Offset of the stamps, and bytes of the fields.
const STAMPS: usize = 512;
const FIELDS: usize = 52;
/// Bytes of fields and stamps.
pub(super) const HEAD: usize = 1024;
const STAMP: usize = 8;

/// Sizes of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkLayout {
    /// Bytes that the size of a slot is a multiple of, and that are written at a time: a page.
    pub(super) unit: u32,
    /// Units of all slots of a chunk.
    pub(super) units: u32,
}

impl ChunkLayout {
    /// Returns the layout: 4 MiB of pages, or 16 KiB of sectors if `tiny`.
    pub(crate) fn new(tiny: bool) -> ChunkLayout {
        if tiny { ChunkLayout { unit: 512, units: 32 } } else { ChunkLayout { unit: 4096, units: 1024 } }
    }

    /// Returns the class for values of `len` bytes, or `None` if no slot is large enough.
    pub(super) fn class_for(self, len: u64) -> Option<u8> {
        (0..).take(CLASSES).find(|class| self.slot_bytes(*class) >= len)
    }

    /// Returns the bytes of a slot.
    pub(super) fn slot_bytes(self, class: u8) -> u64 {
        u64::from(self.units / u32::from(slots(class))) * u64::from(self.unit)
    }

    /// Returns the offset of the slot in its chunk.
    pub(super) fn offset(self, place: SlotLocation) -> u64 {
        self.head() + u64::from(place.slot) * self.slot_bytes(place.class)
    }

    fn head(self) -> u64 {
        u64::from(self.unit).max(HEAD as u64)
    }

    /// Returns the bytes of a chunk.
    pub(super) fn chunk_bytes(self) -> u64 {
        self.head() + u64::from(self.unit) * u64::from(self.units)
    }

    /// Returns the fields of a head.
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

/// Returns the slots of a chunk of `class`; 255 if there is no such class.
pub(super) fn slots(class: u8) -> u8 {
    SLOTS.get(usize::from(class)).copied().unwrap_or(u8::MAX)
}

/// Returns the offset of a stamp in the head.
pub(super) fn stamp_at(slot: u8) -> usize {
    STAMPS + STAMP * usize::from(slot)
}

/// Returns the stamp of a slot.
pub(super) fn stamp(chunk: u64, slot: u8, generation: u16) -> [u8; STAMP] {
    let mut bytes = [0; STAMP];
    bytes[..4].copy_from_slice(&u32::from(generation).to_le_bytes());
    bytes[4..].copy_from_slice(&stamp_sum(chunk, slot, generation).to_le_bytes());
    bytes
}

/// Returns the generation in the stamp of a slot.
///
/// # Errors
///
/// Returns the damage of the stamp.
pub(super) fn generation_in(head: &[u8], chunk: u64, slot: u8) -> Result<u16, Damage> {
    let (stored, expected) = (u32_at(head, stamp_at(slot)), u32_at(head, stamp_at(slot) + 4));
    let too_large = |_| Damage::bad_field("generation", ..=u64::from(u16::MAX), u64::from(stored));
    let generation = u16::try_from(stored).map_err(too_large)?;
    let got = stamp_sum(chunk, slot, generation);
    if expected == got { Ok(generation) } else { Err(Damage::BadChecksum { expected, got }) }
}

fn stamp_sum(chunk: u64, slot: u8, generation: u16) -> u32 {
    let sum = crc32c::crc32c(&chunk.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c_append(sum, &[slot]), &generation.to_le_bytes())
}

/// Location of a slot and generation of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotLocation {
    pub(super) chunk: u64,
    pub(super) class: u8,
    pub(super) slot: u8,
    pub(super) generation: u16,
}

/// Returns the number of the file that contains blob `id`.
pub fn file_number(id: u64) -> u64 {
    SlotLocation::from_id(id).map_or(id, |place| place.chunk)
}

impl SlotLocation {
    /// Decodes `id`. Returns `None` if the value has a file of its own, or if there is no such
    /// slot.
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

    /// Returns the number of the value.
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
        assert!(generation_in(&head, 7, 63).is_err(), "nothing was written");
        head[stamp_at(63)..].copy_from_slice(&stamp(7, 63, 9));
        assert_eq!(generation_in(&head, 7, 63), Ok(9));
        assert!(matches!(generation_in(&head, 8, 63), Err(Damage::BadChecksum { .. })));
        head[stamp_at(63)] ^= 1;
        assert!(generation_in(&head, 7, 63).is_err());
    }
}
