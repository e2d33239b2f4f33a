//! # Address: where an entry stands, in 40 bits
//!
//! FlatStore's entries point by 40 bits (§3.2); so do ours: 16 bits name a slot of the segment
//! table, 24 bits an 8-byte unit in the segment. Addresses live in memory only; on disk a slot is
//! written as the number of its segment.

use crate::frame::ALIGN;

/// Segments there can be at a time.
pub const SLOT_COUNT: usize = 1 << 16;
const UNIT_BITS: u32 = 24;

/// A place in a log. `NONE` is no place (offset 0 holds a segment's header, never a frame).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(u64);

impl Address {
    /// Nowhere.
    pub const NONE: Address = Address(0);
    /// Bits an address takes.
    pub const BITS: u32 = 40;

    /// The place at `offset` of the segment in `slot`.
    #[must_use]
    pub fn new(slot: u32, offset: u64) -> Address {
        debug_assert!(
            (slot as usize) < SLOT_COUNT && offset.is_multiple_of(ALIGN) && offset / ALIGN < 1 << UNIT_BITS
        );
        Address((u64::from(slot) << UNIT_BITS) | (offset / ALIGN))
    }

    /// The address in the low 40 bits of `bits`.
    #[must_use]
    pub fn from_bits(bits: u64) -> Address {
        Address(bits & ((1 << Address::BITS) - 1))
    }

    /// Its 40 bits.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// The slot of its segment.
    #[must_use]
    pub fn slot(self) -> u32 {
        u32::try_from(self.0 >> UNIT_BITS).unwrap_or(u32::MAX)
    }

    /// The offset in its segment, in bytes.
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
