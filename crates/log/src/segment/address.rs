//! # Address: the place of an entry, in 40 bits
//!
//! FlatStore refers to log entries by 40-bit pointers (§3.2). An [`Address`] has the same size: 16
//! bits select a slot of the segment table, 24 bits a unit of 8 bytes in the segment. Addresses
//! exist only in memory. On disk, the number of the segment replaces the slot.

use crate::frame::ALIGN;

/// Maximum number of segments at a time.
pub const SLOT_COUNT: usize = 1 << 16;
const UNIT_BITS: u32 = 24;

/// Place of an entry in a log. `NONE` is not a place: offset 0 has the header of a segment, never a
/// frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(u64);

impl Address {
    /// No place.
    pub const NONE: Address = Address(0);
    /// Number of bits of an address.
    pub const BITS: u32 = 40;

    /// Returns the address of `offset` in the segment in `slot`.
    #[must_use]
    pub fn new(slot: u32, offset: u64) -> Address {
        debug_assert!(
            (slot as usize) < SLOT_COUNT && offset.is_multiple_of(ALIGN) && offset / ALIGN < 1 << UNIT_BITS
        );
        Address((u64::from(slot) << UNIT_BITS) | (offset / ALIGN))
    }

    /// Returns the address in the low 40 bits of `bits`.
    #[must_use]
    pub fn from_bits(bits: u64) -> Address {
        Address(bits & ((1 << Address::BITS) - 1))
    }

    /// Returns the address as a number of 40 bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Returns the slot of the segment.
    #[must_use]
    pub fn slot(self) -> u32 {
        u32::try_from(self.0 >> UNIT_BITS).unwrap_or(u32::MAX)
    }

    /// Returns the offset in the segment, in bytes.
    #[must_use]
    pub fn offset(self) -> u64 {
        (self.0 & ((1 << UNIT_BITS) - 1)) * ALIGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_farthest_places_round_trip() {
        for (slot, offset) in [(0, 512), (u32::from(u16::MAX), super::super::MAX_CAPACITY - ALIGN)] {
            let address = Address::from_bits(Address::new(slot, offset).bits());
            assert_eq!((address.slot(), address.offset()), (slot, offset));
        }
    }
}
