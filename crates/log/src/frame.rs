//! # Frame: the unit of a log
//!
//! The part of a commit in a log is a *run* of frames, one frame per operation, from [`FIRST`] to
//! [`LAST`]. An index may point at a single operation, and its checksum is verified without the
//! rest of the batch. A run is complete if a scan gets from its first to its last frame.
//!
//! ## Picture
//!
//! ```text
//!  0        4           8                 16
//!  | check  | len:24    | seq:48          | durable mark (8, if WATERMARK) | payload | pad to 8 |
//!  | u32    | kind:4    | part:4 parts:4  |
//!  |        | flags:4   | gap:8           |
//! ```
//!
//! Little-endian. `gap` is the distance from the end of the previous frame, in units of 8 bytes.
//! `len` counts the durable mark and the payload, not the header and the padding. `check =
//! crc32c(seed, offset ‖ bytes 4..16 ‖ crc32c(body))`, with the seed of [`ChecksumSeed`]. Only the
//! last 24 bytes need a seq: the checksum of the body is computed before.
//!
//! ## Invariants
//!
//! 1. A frame is valid at one place only. Its checksum includes offset, segment, incarnation, log
//!    and store, and segment numbers are never reused. Stale bytes of a recycled file, a database
//!    stored as a value, or a misplaced block are not frames (commit.md R6, scenarios 1, 18).
//! 2. Frames start at multiples of 8 bytes. After a sync the next frame starts at the next sector,
//!    so that no later write can tear acknowledged bytes (scenario 11). Such a gap exists only
//!    after a LAST frame. The next frame stores its width, so a damaged frame is never mistaken for
//!    a gap.
//! 3. `len` is checked against the end of the segment before bytes are read or allocated by it.

use crate::types::{Incarnation, LogId, SegmentId, Seq, StoreId};
use sheaf_platform::codec::{u32_at, u64_at};
use sheaf_platform::error::Damage;

/// Bytes of a frame header.
pub const HEADER: usize = 16;
/// Alignment of frames in bytes.
pub const ALIGN: u64 = 8;
/// [`ALIGN`] as a `usize`.
pub const ALIGN_BYTES: usize = 8;
/// Longest body of a frame in bytes.
pub const MAX_BODY: usize = (1 << 24) - 1;
/// Highest sequence number the format holds.
pub const MAX_SEQ: u64 = (1 << 48) - 1;
/// Most parts of a commit: one in each log.
#[allow(clippy::cast_possible_truncation)] // there are few logs
const MAX_PARTS: u8 = LogId::ALL.len() as u8;

/// Flag: the first frame of a commit's run.
pub const FIRST: u8 = 1;
/// Flag: the last frame of a commit's run.
pub const LAST: u8 = 2;
/// Flag: the body starts with the durable mark (8 bytes).
pub const WATERMARK: u8 = 4;

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Part of a commit in the order of the log.
    Commit = 1,
    /// A live entry that GC copied. It keeps its seq and is not part of the order.
    Relocated = 2,
    /// An old version that GC copied because a view needs it. Recovery ignores it.
    Pinned = 3,
    /// A note: a durable mark without an operation.
    Watermark = 4,
    /// The end of a segment. The log continues in the next one.
    Seal = 5,
}

impl FrameKind {
    fn from_u8(number: u8) -> Option<FrameKind> {
        match number {
            1 => Some(FrameKind::Commit),
            2 => Some(FrameKind::Relocated),
            3 => Some(FrameKind::Pinned),
            4 => Some(FrameKind::Watermark),
            5 => Some(FrameKind::Seal),
            _ => None,
        }
    }
}

/// A decoded header. The checksum is not verified yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The stored checksum.
    pub check: u32,
    /// Bytes of the body.
    pub len: usize,
    /// The kind of the frame.
    pub kind: FrameKind,
    /// [`FIRST`] | [`LAST`] | [`WATERMARK`].
    pub flags: u8,
    /// The commit. A copied entry keeps the number of its original commit.
    pub seq: Seq,
    /// Index of the part of the commit in this log, from 0.
    pub part: u8,
    /// Number of logs that have a part of the commit.
    pub parts: u8,
    /// Unused bytes before the frame, in units of [`ALIGN`].
    pub gap: u8,
}

impl FrameHeader {
    /// Returns whether this is the first frame of a run.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.flags & FIRST != 0
    }

    /// Returns whether this is the last frame of a run.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }

    /// Returns the number of bytes of the frame in the log, padding included.
    #[must_use]
    pub fn span(&self) -> u64 {
        span(self.len)
    }

    /// Returns the payload: the body without the durable mark. `frame` must contain the complete
    /// frame.
    #[inline]
    #[must_use]
    pub fn payload<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        let skip = if self.flags & WATERMARK != 0 { 8 } else { 0 };
        &frame[HEADER + skip..HEADER + self.len]
    }

    /// Returns the header fields behind the checksum as two little-endian words.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // a length has 24 bits
    fn words(&self) -> (u32, u64) {
        debug_assert!(self.len <= MAX_BODY, "frame (I3): the body fits the field of its length");
        debug_assert!(self.seq.0 <= MAX_SEQ, "frame (I3): the commit fits its field");
        let word = self.len as u32 | (self.kind as u32) << 24 | u32::from(self.flags) << 28;
        let order =
            self.seq.0 | u64::from(self.part) << 48 | u64::from(self.parts) << 52 | u64::from(self.gap) << 56;
        (word, order)
    }

    /// Returns the damage of bytes that [`FrameHeader::decode`] rejects.
    #[cold]
    pub(crate) fn damage(bytes: &[u8; HEADER]) -> Damage {
        let [kind, part, parts] = [bytes[7] & 0xf, bytes[14] & 0xf, bytes[14] >> 4];
        if FrameKind::from_u8(kind).is_none() {
            return Damage::bad_field("frame kind", 1..=FrameKind::Seal as u64, u64::from(kind));
        }
        match part < MAX_PARTS {
            true => Damage::bad_field("parts", 0..=u64::from(MAX_PARTS), u64::from(parts)),
            false => Damage::bad_field("part", 0..u64::from(MAX_PARTS), u64::from(part)),
        }
    }

    /// Decodes a header. Returns `None` if the bytes cannot be one.
    #[inline]
    #[must_use]
    pub fn decode(bytes: &[u8; HEADER]) -> Option<FrameHeader> {
        let check = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let word = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        let order = u64_at(bytes, 8);
        let (part, parts) = ((order >> 48 & 0xf) as u8, (order >> 52 & 0xf) as u8);
        if part >= MAX_PARTS || parts > MAX_PARTS {
            return None;
        }
        Some(FrameHeader {
            check,
            len: (word & 0x00ff_ffff) as usize,
            kind: FrameKind::from_u8((word >> 24 & 0xf) as u8)?,
            flags: (word >> 28) as u8,
            seq: Seq(order & MAX_SEQ),
            part,
            parts,
            gap: (order >> 56) as u8,
        })
    }
}

/// Returns the number of bytes of a frame with a body of `len` bytes.
#[inline]
#[must_use]
pub fn span(len: usize) -> u64 {
    ((HEADER + len) as u64).next_multiple_of(ALIGN)
}

/// Seed of the checksums of the frames of a segment: store id, log id, segment number and
/// incarnation. It covers the place of a frame except its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumSeed(u32);

impl ChecksumSeed {
    /// Returns the seed of a segment in an incarnation.
    #[must_use]
    pub fn new(store: StoreId, log: LogId, segment: SegmentId, incarnation: Incarnation) -> ChecksumSeed {
        let mut bytes = [0u8; 33];
        bytes[..16].copy_from_slice(&store.0.to_le_bytes());
        bytes[16] = log as u8;
        bytes[17..25].copy_from_slice(&segment.0.to_le_bytes());
        bytes[25..33].copy_from_slice(&incarnation.0.to_le_bytes());
        ChecksumSeed(crc32c::crc32c(&bytes))
    }

    /// Computes the checksum from the offset, the words of the header, and the checksum of the
    /// body.
    #[inline]
    fn check(self, offset: u64, (word, order): (u32, u64), body: u32) -> u32 {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&word.to_le_bytes());
        bytes[12..20].copy_from_slice(&order.to_le_bytes());
        bytes[20..].copy_from_slice(&body.to_le_bytes());
        crc32c::crc32c_append(self.0, &bytes)
    }

    /// Writes the header of a frame at `offset` to `out`. `body` is the checksum of its body.
    #[inline]
    pub fn write_header(self, offset: u64, header: &FrameHeader, body: u32, out: &mut [u8]) {
        let (word, order) = header.words();
        let check = self.check(offset, (word, order), body);
        let first = u64::from(check) | u64::from(word) << 32;
        out[..8].copy_from_slice(&first.to_le_bytes());
        out[8..HEADER].copy_from_slice(&order.to_le_bytes());
    }

    /// Verifies the bytes of a frame (header and body) at `offset`.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadChecksum`] if the checksum does not match.
    pub fn verify(self, offset: u64, header: &FrameHeader, frame: &[u8]) -> Result<(), Damage> {
        self.verify_and_sum(offset, header, frame).map(drop)
    }

    /// Like [`ChecksumSeed::verify`], and returns the checksum of the body.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadChecksum`] if the checksum does not match.
    #[inline]
    pub fn verify_and_sum(self, offset: u64, header: &FrameHeader, frame: &[u8]) -> Result<u32, Damage> {
        let body = body_sum(&frame[HEADER..HEADER + header.len]);
        let got = self.check(offset, (u32_at(frame, 4), u64_at(frame, 8)), body);
        if got == header.check { Ok(body) } else { Err(Damage::BadChecksum { expected: header.check, got }) }
    }
}

/// Returns the part of the checksum of a frame that does not depend on its place.
#[inline]
#[must_use]
pub fn body_sum(body: &[u8]) -> u32 {
    crc32c::crc32c(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Record, RecordContent};
    use crate::types::KeyspaceId;
    use sheaf_platform::disk::{SECTOR, SECTOR_BYTES};

    fn seed(segment: u64) -> ChecksumSeed {
        ChecksumSeed::new(StoreId(7), LogId::ValueLog, SegmentId(segment), Incarnation(1))
    }

    fn frame(offset: u64, body: &[u8]) -> (FrameHeader, Vec<u8>) {
        let header = FrameHeader {
            check: 0,
            len: body.len(),
            kind: FrameKind::Commit,
            flags: FIRST | LAST,
            seq: Seq(MAX_SEQ),
            part: 1,
            parts: 2,
            gap: 63,
        };
        let mut bytes = vec![0; usize::try_from(span(body.len())).unwrap()];
        bytes[HEADER..HEADER + body.len()].copy_from_slice(body);
        seed(3).write_header(offset, &header, body_sum(body), &mut bytes);
        (header, bytes)
    }

    /// Returns the bytes that one sync round writes to the device if its frames have `len` bytes:
    /// zeros of the preallocation, and pages of data. Mean over all sectors in which it may begin.
    fn round_bytes(len: u64) -> u64 {
        const PAGE: u64 = 4096;
        let starts = (0..PAGE).step_by(SECTOR_BYTES);
        let pages: u64 = starts.map(|start| (start + len).div_ceil(PAGE)).sum();
        len.next_multiple_of(SECTOR) + pages * SECTOR
    }

    /// The figures of decisions/0032: pairs of 8 + 8 bytes, with a frame each, or with one frame
    /// for all pairs of a round and 4 more bytes for each pair.
    #[test]
    fn one_frame_for_128_commits_saves_less_than_a_quarter_of_the_device_bytes() {
        let mut record = Vec::new();
        let content = RecordContent::Put(&[0; 8]);
        Record { keyspace: KeyspaceId(1), key: &[0; 8], content }.encode(&mut record);
        let sizes = |pairs: u64| {
            let (own, group) =
                (pairs * span(record.len()), HEADER as u64 + 8 + pairs * (record.len() as u64 + 4));
            (own, group, round_bytes(own), round_bytes(group))
        };
        assert_eq!(sizes(12), (480, 312, 4608, 4608));
        assert_eq!(sizes(41), (1640, 1008, 7680, 5632));
        assert_eq!(sizes(68), (2720, 1656, 9728, 7680));
        let (own, group, before, after) = sizes(128);
        assert_eq!((own, group, before, after), (5120, 3096, 13_824, 10_752));
        assert_eq!((before - after) * 100 / before, 22);
    }

    #[test]
    fn header_round_trips_at_its_limits() {
        let (header, bytes) = frame(512, b"body");
        let mut head = [0; HEADER];
        head.copy_from_slice(&bytes[..HEADER]);
        let back = FrameHeader::decode(&head).unwrap();
        assert_eq!(FrameHeader { check: back.check, ..header }, back);
        assert!(seed(3).verify(512, &back, &bytes).is_ok());
    }

    #[test]
    fn a_header_with_too_many_parts_is_rejected() {
        let (header, mut bytes) = frame(512, b"body");
        for (part, parts) in [(0, 3), (1, 9), (0, 15), (2, 2), (15, 1), (8, 0)] {
            seed(3).write_header(512, &FrameHeader { part, parts, ..header }, body_sum(b"body"), &mut bytes);
            let mut head = [0; HEADER];
            head.copy_from_slice(&bytes[..HEADER]);
            assert_eq!(FrameHeader::decode(&head), None, "part {part} of {parts}");
        }
    }

    #[test]
    fn a_frame_is_valid_in_one_place_only() {
        let (_, bytes) = frame(512, b"body");
        let mut head = [0; HEADER];
        head.copy_from_slice(&bytes[..HEADER]);
        let header = FrameHeader::decode(&head).unwrap();
        assert!(seed(3).verify(520, &header, &bytes).is_err(), "another offset");
        assert!(seed(4).verify(512, &header, &bytes).is_err(), "another segment");
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let (_, bytes) = frame(512, b"some body");
        for bit in 0..(HEADER + 9) * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let mut head = [0; HEADER];
            head.copy_from_slice(&bad[..HEADER]);
            let valid = FrameHeader::decode(&head)
                .is_some_and(|h| HEADER + h.len <= bad.len() && seed(3).verify(512, &h, &bad).is_ok());
            assert!(!valid, "bit {bit}");
        }
    }
}
