//! # Frame: the unit of a log
//!
//! A commit's part in a log is a *run* of frames, one frame an operation; the first carries
//! [`FIRST`], the last [`LAST`]. So an index may point at any single operation and have its bytes
//! checked without the rest of the batch, and a run is whole exactly if a scan gets from its first
//! frame to its last without a break.
//!
//! ## Picture
//!
//! ```text
//!  0        4           8                 16
//!  | check  | len:24    | seq:48          | water (8 bytes, if WATER) | payload ...  | pad to 8 |
//!  | u32    | kind:4    | part:4 parts:4  |
//!  |        | flags:4   | gap:8           |
//! ```
//!
//! Little-endian. `gap` is the distance from the end of the frame before, in units of 8 bytes. `len` counts the water mark and the payload, not header and padding.
//! `check = crc32c(seed, offset ‖ bytes 4..16 ‖ crc32c(body))` where `seed` sums store id, log id,
//! segment number and incarnation. The body's sum is taken before the commit has a seq; then
//! only 24 bytes are summed.
//!
//! ## Invariants
//!
//! 1. A frame is valid at one place only: offset, segment, incarnation, log and store are in its sum
//!    and segment numbers are never reused. Stale bytes of a recycled file, a database stored as a
//!    value, or a block written to the wrong place are not frames (commit.md R6, scenarios 1, 18).
//! 2. Frames start on 8-byte bounds; after a sync the next one starts at the next sector, so that no
//!    later write can tear what was acknowledged (scenario 11). Such a gap is only ever after a LAST, and the
//!    frame behind it says how wide it is: a damaged frame is never taken for one.
//! 3. `len` is checked against the segment's end before anything is read or allocated by it.

use crate::error::Damage;
use crate::types::{Incarnation, LogId, SegmentId, Seq, StoreId};

/// Bytes of a frame header.
pub const HEADER: usize = 16;
/// Frames start on multiples of this.
pub const ALIGN: u64 = 8;
/// [`ALIGN`] as a length of memory.
pub const ALIGN_BYTES: usize = 8;
/// Longest body of a frame in bytes.
pub const MAX_BODY: usize = (1 << 24) - 1;
/// Highest sequence number the format holds.
pub const MAX_SEQ: u64 = (1 << 48) - 1;
/// A commit has a part in each log at most.
#[allow(clippy::cast_possible_truncation)] // of a few logs
const MAX_PARTS: u8 = LogId::ALL.len() as u8;

/// Flag: the first frame of a commit's run.
pub const FIRST: u8 = 1;
/// Flag: the last frame of a commit's run.
pub const LAST: u8 = 2;
/// Flag: the body starts with the durable watermark (8 bytes).
pub const WATERMARK: u8 = 4;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Part of a commit: counts in the order.
    Commit = 1,
    /// A live entry the cleaner copied, with its own seq: never counts in the order.
    Relocated = 2,
    /// An old version copied because a view needs it: recovery ignores it.
    Pinned = 3,
    /// Carries a watermark and nothing else.
    Watermark = 4,
    /// The proper end of a segment: its log goes on in the next one.
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

/// A decoded header whose checksum was not looked at yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Stored checksum.
    pub check: u32,
    /// Bytes of the body.
    pub len: usize,
    /// What it is.
    pub kind: FrameKind,
    /// [`FIRST`] | [`LAST`] | [`WATERMARK`].
    pub flags: u8,
    /// The commit (of a moved entry: its original one).
    pub seq: Seq,
    /// Which part of the commit this log holds, from 0.
    pub part: u8,
    /// In how many logs the commit has parts.
    pub parts: u8,
    /// Unused bytes before it, in units of [`ALIGN`].
    pub gap: u8,
}

impl FrameHeader {
    /// True for the first frame of a run.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.flags & FIRST != 0
    }

    /// True for the last frame of a run.
    #[must_use]
    pub fn is_last(&self) -> bool {
        self.flags & LAST != 0
    }

    /// Bytes the frame takes in the log, padding included.
    #[must_use]
    pub fn span(&self) -> u64 {
        span(self.len)
    }

    /// The payload of its frame, all of whose bytes the caller has: the body without the water
    /// mark.
    #[inline]
    #[must_use]
    pub fn payload<'f>(&self, frame: &'f [u8]) -> &'f [u8] {
        let skip = if self.flags & WATERMARK != 0 { 8 } else { 0 };
        &frame[HEADER + skip..HEADER + self.len]
    }

    /// What stands behind the checksum: two little-endian words.
    #[inline]
    #[allow(clippy::cast_possible_truncation)] // of a length of 24 bits
    fn words(&self) -> (u32, u64) {
        debug_assert!(self.len <= MAX_BODY && self.seq.0 <= MAX_SEQ);
        let word = self.len as u32 | (self.kind as u32) << 24 | u32::from(self.flags) << 28;
        let order =
            self.seq.0 | u64::from(self.part) << 48 | u64::from(self.parts) << 52 | u64::from(self.gap) << 56;
        (word, order)
    }

    /// Decodes a header; `None` if it cannot be one.
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

/// Bytes a frame with a body of `len` takes.
#[inline]
#[must_use]
pub fn span(len: usize) -> u64 {
    ((HEADER + len) as u64).next_multiple_of(ALIGN)
}

/// Where a frame's checksum is seeded: everything about its place but the offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumSeed(u32);

impl ChecksumSeed {
    /// The seed of one segment in one incarnation.
    #[must_use]
    pub fn new(store: StoreId, log: LogId, segment: SegmentId, incarnation: Incarnation) -> ChecksumSeed {
        let mut bytes = [0u8; 33];
        bytes[..16].copy_from_slice(&store.0.to_le_bytes());
        bytes[16] = log as u8;
        bytes[17..25].copy_from_slice(&segment.0.to_le_bytes());
        bytes[25..33].copy_from_slice(&incarnation.0.to_le_bytes());
        ChecksumSeed(crc32c::crc32c(&bytes))
    }

    /// Of the offset, the words of the header without the sum, and the sum of the body.
    #[inline]
    fn check(self, offset: u64, (word, order): (u32, u64), body: u32) -> u32 {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&offset.to_le_bytes());
        bytes[8..12].copy_from_slice(&word.to_le_bytes());
        bytes[12..20].copy_from_slice(&order.to_le_bytes());
        bytes[20..].copy_from_slice(&body.to_le_bytes());
        crc32c::crc32c_append(self.0, &bytes)
    }

    /// Writes the header of a frame at `offset` whose body sums to `body` into `out`.
    #[inline]
    pub fn write_header(self, offset: u64, header: &FrameHeader, body: u32, out: &mut [u8]) {
        let (word, order) = header.words();
        let check = self.check(offset, (word, order), body);
        let first = u64::from(check) | u64::from(word) << 32;
        out[..8].copy_from_slice(&first.to_le_bytes());
        out[8..HEADER].copy_from_slice(&order.to_le_bytes());
    }

    /// Checks a frame's bytes (header and body) at `offset`.
    pub fn verify(self, offset: u64, header: &FrameHeader, frame: &[u8]) -> Result<(), Damage> {
        self.verify_and_sum(offset, header, frame).map(drop)
    }

    /// As [`ChecksumSeed::verify`]; answers what the body sums to.
    #[inline]
    pub fn verify_and_sum(self, offset: u64, header: &FrameHeader, frame: &[u8]) -> Result<u32, Damage> {
        let body = body_sum(&frame[HEADER..HEADER + header.len]);
        let got = self.check(offset, (u32_at(frame, 4), u64_at(frame, 8)), body);
        if got == header.check { Ok(body) } else { Err(Damage::BadChecksum { expected: header.check, got }) }
    }
}

/// The part of a frame's checksum that does not depend on its place.
#[inline]
#[must_use]
pub fn body_sum(body: &[u8]) -> u32 {
    crc32c::crc32c(body)
}

/// The little-endian number at `at`; the caller has checked the bounds.
#[inline]
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// The little-endian number at `at`; the caller has checked the bounds.
#[inline]
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

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
