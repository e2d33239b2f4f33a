//! # Spot: an entry in memory, found at once and read later
//!
//! Who is about to read many entries finds all of them, asks the processor for their lines, and reads the first when
//! the last was asked for. What the way from an address to a line of memory costs (the table, the segment, its mapping,
//! the processor's own tables) is paid once, and for many side by side.
//!
//! ## Invariants
//!
//! 1. The bytes are those of the mapping from the entry on to the end that was published when it was found. They stay for
//!    as long as the guard does.
//! 2. Only what is without a flaw is answered. Else the caller goes the usual way ([`Segments::frame`]), which says what is
//!    wrong, after a look at the file: there may be no mapping, or a broken one.

use super::{Address, Segment, Segments};
use crate::record::Record;
use crate::sync::epoch::Guard;
use crate::types::Seq;

/// Where an entry stands in memory.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'g> {
    segment: &'g Segment,
    offset: u64,
    /// From the entry on.
    bytes: &'g [u8],
}

impl Segments {
    /// The spot of the entry at `address`, and asks for as much as a usual entry takes to be loaded soon. None if it is not mapped.
    #[inline]
    pub fn spot<'g>(&self, address: Address, guard: &'g Guard) -> Option<Spot<'g>> {
        let (segment, offset) = (self.at(address.slot(), guard)?, address.offset());
        let room = usize::try_from(segment.end().checked_sub(offset)?).ok()?;
        // SAFETY:
        // * Up to a published end, which nobody writes below (I1 of the segment).
        let bytes = unsafe { segment.file.mapped(offset, room) }?;
        crate::memory::prefetch(bytes.as_ptr(), segment.lines());
        Some(Spot { segment, offset, bytes })
    }
}

impl<'g> Spot<'g> {
    /// Lines of the cache that were asked for.
    #[inline]
    #[must_use]
    pub fn lines(&self) -> usize {
        self.segment.lines()
    }

    /// The number and the record of the entry, checked. None if anything is wrong with it.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Option<(Seq, Record<'g>)> {
        let (header, frame, _) = self.segment.flawless(self.offset, self.bytes)?;
        Some((header.seq, Record::decode(header.payload(frame)).ok()?))
    }
}
