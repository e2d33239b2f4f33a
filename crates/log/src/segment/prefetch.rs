//! # Prefetched entries: located first, read later
//!
//! A reader of many entries locates all of them and prefetches their cache lines. It reads the
//! first entry after the last one was requested. The steps from an address to a cache line (slot,
//! segment, mapping, address translation) then overlap for many entries.
//!
//! ## Invariants
//!
//! 1. The bytes reach from the entry to the end that was published when the entry was located, or
//!    to the end of the entry. They remain valid while the guard lives.
//! 2. Only valid entries are returned. Otherwise the caller uses [`SegmentTable::frame`], which
//!    determines the error from the file: the entry may not be mapped, or the mapping may be
//!    unusable.

use super::{Address, Segment, SegmentTable};
use crate::record::Record;
use crate::types::Seq;
use sheaf_platform::sync::epoch::Guard;

/// An entry that was located in a mapping.
#[derive(Clone, Copy, Debug)]
pub struct PrefetchedEntry<'g> {
    segment: &'g Segment,
    offset: u64,
    /// Bytes from the entry on.
    bytes: &'g [u8],
}

impl SegmentTable {
    /// Locates the entry at `address` and prefetches as many cache lines as a usual entry has.
    /// Returns `None` if the entry is not mapped.
    #[inline]
    pub fn prefetch_located<'g>(&'g self, address: Address, guard: &'g Guard) -> Option<PrefetchedEntry<'g>> {
        let (segment, offset) = (self.at(address.slot(), guard)?, address.offset());
        let room = usize::try_from(segment.limit_at(offset).checked_sub(offset)?).ok()?;
        // SAFETY:
        // * The range ends at a published end, or at the end of the complete frame. Bytes below
        //   either are not written (I1 and I2 of the segment).
        let bytes = unsafe { segment.file.mapped(offset, room) }?;
        sheaf_platform::memory::prefetch(bytes.as_ptr(), segment.lines());
        Some(PrefetchedEntry { segment, offset, bytes })
    }
}

impl<'g> PrefetchedEntry<'g> {
    /// Returns the number of cache lines that were prefetched.
    #[inline]
    #[must_use]
    pub fn lines(&self) -> usize {
        self.segment.lines()
    }

    /// Returns the seq and the record of the entry after verification. `None` if the entry is not
    /// valid.
    #[inline]
    #[must_use]
    pub fn entry(&self) -> Option<(Seq, Record<'g>)> {
        let (header, frame, _) = self.segment.verified(self.offset, self.bytes)?;
        Some((header.seq, Record::decode(header.payload(frame)).ok()?))
    }
}

#[cfg(all(test, unix))] // files of Windows are not mapped
mod tests {
    use std::sync::Arc;

    use super::super::{DATA_START, SegmentIdentity};
    use super::*;
    use crate::frame::{FIRST, FrameHeader, FrameKind, HEADER, LAST, body_sum, span};
    use crate::record::RecordContent;
    use crate::types::{Incarnation, KeyspaceId, LogId, SegmentId, StoreId};
    use sheaf_platform::disk::real::RealDisk;
    use sheaf_platform::sync::epoch;

    #[test]
    fn only_published_valid_frames_are_entries() {
        let scratch = tempfile::tempdir().unwrap();
        let (store, log, incarnation) = (StoreId(1), LogId::ValueLog, Incarnation(1));
        let identity =
            SegmentIdentity { store, log, id: SegmentId(3), stream: 0, incarnation, capacity: 1 << 16 };
        let segment = Arc::new(Segment::create(&RealDisk::default(), scratch.path(), identity).unwrap());
        let record = Record { keyspace: KeyspaceId(1), key: b"key", content: RecordContent::Put(b"value") };
        let mut body = Vec::new();
        record.encode(&mut body);
        let (kind, flags, seq) = (FrameKind::Commit, FIRST | LAST, Seq(7));
        let header = FrameHeader { check: 0, len: body.len(), kind, flags, seq, part: 0, parts: 1, gap: 0 };
        let mut frame = vec![0; usize::try_from(span(body.len())).unwrap()];
        frame[HEADER..HEADER + body.len()].copy_from_slice(&body);
        segment.seed().write_header(DATA_START, &header, body_sum(&body), &mut frame);
        segment.file().write_at(DATA_START, &frame).unwrap();

        let table = SegmentTable::with_slots(2);
        let slot = table.add(&segment).unwrap();
        let guard = &epoch::pin();
        let entry =
            |offset| table.prefetch_located(Address::new(slot, offset), guard).and_then(|spot| spot.entry());
        assert_eq!(entry(DATA_START), Some((seq, record)), "complete behind the published end");
        segment.publish(DATA_START + frame.len() as u64 - 8);
        assert_eq!(entry(DATA_START), None, "not all of it");
        segment.publish(DATA_START + frame.len() as u64);
        assert_eq!(entry(DATA_START), Some((seq, record)));
        assert_eq!(entry(DATA_START + 8), None, "another place");
        assert_eq!(entry(DATA_START + 4096), None, "behind the end");
        assert!(table.prefetch_located(Address::new(slot + 1, DATA_START), guard).is_none(), "no segment");
        for at in 0..HEADER + body.len() {
            let offset = DATA_START + at as u64;
            segment.file().write_at(offset, &[frame[at] ^ 4]).unwrap();
            assert_eq!(entry(DATA_START), None, "byte {at}");
            segment.file().write_at(offset, &frame[at..=at]).unwrap();
        }
        assert_eq!(entry(DATA_START), Some((seq, record)));
    }
}
