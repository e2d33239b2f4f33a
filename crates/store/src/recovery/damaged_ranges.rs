//! # Damaged ranges: reading a segment past damage
//!
//! A scan stops at the first invalid frame. This one continues at the next bytes that are a valid
//! frame of this segment at this place. Frames of any kind are accepted, since each is verified
//! separately. The bytes between are a *damaged range*.
//!
//! ## Costs
//!
//! Each position with a plausible header is verified by a checksum. Values that imitate headers
//! could make that slow. So the checksummed bytes are limited to a multiple of the segment; frames
//! behind the limit count as lost.

use sheaf_log::frame::{ALIGN, ALIGN_BYTES, FrameHeader, HEADER};
use sheaf_log::segment::{ScanEnd, ScannedFrame, Segment, SegmentScan};
use sheaf_platform::disk::{SECTOR, SECTOR_BYTES};
use sheaf_platform::error::{Damage, Error};

/// Bytes read at a time in search of a frame.
const SEARCH_BYTES: u64 = 64 << 10;
/// Maximum bytes of possible frames that are checksummed, as a multiple of the segment's.
const MAX_CHECKSUM_FACTOR: u64 = 64;

/// Bytes of a segment that cannot be read.
#[derive(Debug)]
pub(crate) struct DamagedRange {
    pub(crate) from: u64,
    pub(crate) to: u64,
    /// Error at its start.
    pub(crate) error: Error,
}

/// Part of a segment.
pub(crate) enum ScanPart<'a, 's> {
    Frame(&'a ScannedFrame<'s>),
    Damaged(DamagedRange),
}

/// Visits the frames of `segment` from `from` on. They must end at `end`. If the segment
/// `may_go_on`, they may continue behind `end`, up to the last valid frame. Returns the end of the
/// last frame.
pub(crate) fn scan_past_damage(
    segment: &Segment,
    from: u64,
    end: u64,
    may_go_on: bool,
    visit: &mut dyn FnMut(ScanPart<'_, '_>),
) -> u64 {
    let len = segment.file().len().unwrap_or(0);
    let most = if may_go_on { segment.identity().capacity } else { end };
    let limit = most.min(len);
    let (mut reached, mut effort) = (from, MAX_CHECKSUM_FACTOR * limit + SEARCH_BYTES);
    let mut scan = SegmentScan::new(segment, from, limit);
    loop {
        for scanned in scan.by_ref() {
            reached = scanned.offset + scanned.frame.header.span();
            visit(ScanPart::Frame(&scanned));
        }
        let (at, error) = match scan.stop() {
            ScanEnd::Sealed(_) => break,
            ScanEnd::Torn(at, error) => (at, error),
        };
        match next_frame(segment, at + ALIGN, limit, &mut effort) {
            Some(next) => {
                visit(ScanPart::Damaged(DamagedRange { from: at, to: next, error }));
                scan = SegmentScan::new(segment, next, limit);
            }
            None if at < end => {
                visit(ScanPart::Damaged(DamagedRange { from: at, to: end, error }));
                return reached;
            }
            None => return reached,
        }
    }
    if reached < end && limit < end {
        let what = Damage::Truncated { got: len, expected: end };
        let error = Error::corrupt(segment.path(), reached, "log segment", what);
        visit(ScanPart::Damaged(DamagedRange { from: reached, to: end, error }));
    }
    reached
}

/// Returns true if any frame of `segment` is valid.
pub(crate) fn has_frame(segment: &Segment) -> bool {
    let limit = segment.identity().capacity.min(segment.file().len().unwrap_or(0));
    next_frame(segment, sheaf_log::segment::DATA_START, limit, &mut (MAX_CHECKSUM_FACTOR * limit)).is_some()
}

/// Returns the offset of the first valid frame at or behind `from`.
fn next_frame(segment: &Segment, from: u64, limit: u64, effort: &mut u64) -> Option<u64> {
    let mut at = from.next_multiple_of(ALIGN);
    let mut chunk = Vec::new();
    while at + HEADER as u64 <= limit {
        let len = (limit - at).min(SEARCH_BYTES + HEADER as u64 - ALIGN);
        chunk.clear();
        chunk.resize(usize::try_from(len).unwrap_or(0), 0);
        read_best_effort(segment, at, &mut chunk);
        for start in (0..chunk.len() - (HEADER - 1)).step_by(ALIGN_BYTES) {
            let mut head = [0; HEADER];
            head.copy_from_slice(&chunk[start..start + HEADER]);
            let offset = at + start as u64;
            let Some(header) = FrameHeader::decode(&head) else { continue };
            if header.span() > limit - offset {
                continue;
            }
            *effort = effort.checked_sub(header.span())?;
            if segment.frame(offset, limit).is_ok() {
                return Some(offset);
            }
        }
        at += SEARCH_BYTES;
    }
    None
}

/// Fills `bytes` from offset `at`. Unreadable sectors are filled with zeros.
fn read_best_effort(segment: &Segment, at: u64, bytes: &mut [u8]) {
    if segment.file().read_at(at, bytes).is_ok() {
        return;
    }
    let mut done = 0;
    while done < bytes.len() {
        let here = at + done as u64;
        let room = usize::try_from(SECTOR - here % SECTOR).unwrap_or(SECTOR_BYTES);
        let end = bytes.len().min(done + room);
        if segment.file().read_at(here, &mut bytes[done..end]).is_err() {
            bytes[done..end].fill(0);
        }
        done = end;
    }
}
