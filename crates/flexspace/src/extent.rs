//! # Extents: location and checksums of bytes
//!
//! The bytes of one write, up to the maximum extent length, are a *chunk*: a sequence of *blocks*,
//! each with its own checksum. A write directly behind the last bytes of the space's newest chunk
//! extends that chunk and its extent (FlexSpace paper, section 4.1), as long as the last block is
//! full or not flushed. An extent names a chunk and the number of its bytes to skip.
//! Splitting an extent therefore moves no bytes and computes no checksums, and reading 4 KiB of it
//! verifies 4 KiB and not 128.
//!
//! ## Picture
//!
//! ```text
//!  extent   hole 1 | 0 1 | skip 17 | chunk's address / 8, 45 bits
//!
//!  chunk    | sum 4 | len 4 | body, 4096 | sum | len | body, 4096 | sum | len | rest | pad to 8 |
//!             crc32c(seed of the segment, offset in it ‖ len ‖ body)
//! ```
//!
//! The seed consists of the space's id, the segment's number and its *serial*. The serial is new
//! for each use of the segment, also after reopening the space. Bytes of an earlier use therefore
//! fail the checksum.

use sheaf_log::types::StoreId;

use crate::format::ExtentRun;
use crate::tree::{ShiftTree, TreeEntry, TreeItem};

/// Bytes of the header of each block.
pub(crate) const BLOCK_HEADER: u64 = 8;
/// [`BLOCK_HEADER`] as a `usize`.
pub(crate) const BLOCK_HEADER_BYTES: usize = 8;
/// Alignment of chunks.
pub(crate) const ALIGN: u64 = 8;
/// Bytes of a space's id.
const SPACE_BYTES: usize = size_of::<StoreId>();
const SKIP_BITS: u32 = 17;
const ADDRESS_BITS: u32 = 45;
const HOLE: u64 = 1 << 63;
/// Maximum length of an extent in the format.
pub(crate) const MAX_EXTENT: u64 = 1 << SKIP_BITS;

/// Location of bytes: the item of a FlexSpace's tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent(u64);

impl Extent {
    /// A run of zeros that takes no space.
    pub(crate) const HOLE: Extent = Extent(HOLE);

    /// Returns the extent that starts with the first byte of the chunk at `address`.
    pub(crate) fn new(address: u64) -> Extent {
        debug_assert!(address.is_multiple_of(ALIGN) && address / ALIGN < 1 << ADDRESS_BITS);
        Extent(address / ALIGN)
    }

    /// Returns the stored form.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// Decodes the stored form; `None` if it is invalid.
    pub(crate) fn from_bits(bits: u64) -> Option<Extent> {
        (bits == HOLE || bits >> (SKIP_BITS + ADDRESS_BITS) == 0).then_some(Extent(bits))
    }

    /// Returns true for a hole.
    pub(crate) fn is_hole(self) -> bool {
        self.0 == HOLE
    }

    /// Returns the address of the chunk, in bytes from the start of segment 0.
    pub(crate) fn chunk(self) -> u64 {
        (self.0 & ((1 << ADDRESS_BITS) - 1)) * ALIGN
    }

    /// Returns the number of bytes of the chunk to skip.
    pub(crate) fn skip(self) -> u64 {
        self.0 >> ADDRESS_BITS & (MAX_EXTENT - 1)
    }

    /// Returns true if `next` continues the chunk behind `len` bytes of this extent.
    pub(crate) fn is_continued_by(self, len: u64, next: Extent) -> bool {
        !self.is_hole()
            && !next.is_hole()
            && self.chunk() == next.chunk()
            && self.skip().checked_add(len) == Some(next.skip())
    }
}

/// Appends an extent to a run. It becomes a part of the last one if it continues its chunk.
pub(crate) fn push_extent(run: &mut ExtentRun, len: u64, extent: Extent) {
    match run.last_mut() {
        Some((before, last)) if last.is_continued_by(*before, extent) => *before += len,
        _ => run.push((len, extent)),
    }
}

/// Returns the entry that ends at `at` if `extent` continues its chunk. Bytes that are inserted at
/// `at` then extend the entry.
pub(crate) fn entry_continued_by(
    tree: &ShiftTree<Extent>,
    at: u64,
    extent: Extent,
) -> Option<TreeEntry<Extent>> {
    // Only a chunk that grew has an extent that does not start with its first byte.
    let last = at.checked_sub(1).filter(|_| !extent.is_hole() && extent.skip() > 0)?;
    tree.get(last).filter(|e| e.start + e.len == at && e.item.is_continued_by(e.len, extent))
}

impl TreeItem for Extent {
    type Pivot = ();
    fn pivot(&self) {}
    fn suffix(self, at: u64) -> Extent {
        if self.is_hole() { self } else { Extent(self.0 + (at << ADDRESS_BITS)) }
    }
    fn is_contiguous(&self, _: u64, next: &Extent) -> bool {
        self.is_hole() && next.is_hole()
    }
}

/// Returns the bytes that `len` bytes take in a segment, in checksum blocks of `piece` bytes.
#[inline]
pub(crate) fn footprint(len: u64, piece: u64) -> u64 {
    (len + len.div_ceil(piece) * BLOCK_HEADER).next_multiple_of(ALIGN)
}

/// Returns the maximum number of bytes with a footprint of at most `room`.
pub(crate) fn max_len_in(room: u64, piece: u64) -> u64 {
    let room = room / ALIGN * ALIGN;
    let whole = room / (piece + BLOCK_HEADER);
    whole * piece + (room % (piece + BLOCK_HEADER)).saturating_sub(BLOCK_HEADER)
}

/// Seed of the checksums of one segment in one use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentSeed(u32);

impl SegmentSeed {
    pub(crate) fn new(space: StoreId, segment: u32, serial: u64) -> SegmentSeed {
        let mut what = [0; SPACE_BYTES + 12];
        what[..SPACE_BYTES].copy_from_slice(&space.0.to_le_bytes());
        what[SPACE_BYTES..SPACE_BYTES + 4].copy_from_slice(&segment.to_le_bytes());
        what[SPACE_BYTES + 4..].copy_from_slice(&serial.to_le_bytes());
        SegmentSeed(crc32c::crc32c(&what))
    }

    /// Returns the checksum of the block at `offset` of the segment.
    pub(crate) fn checksum(self, offset: u64, body: &[u8]) -> u32 {
        let mut place = [0; 16];
        place[..8].copy_from_slice(&offset.to_le_bytes());
        place[8..].copy_from_slice(&(body.len() as u64).to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, &place), body)
    }

    /// Encodes `bytes` as a chunk for `offset` of the segment into `out`, which must be as long as
    /// the footprint.
    pub(crate) fn encode(self, offset: u64, bytes: &[u8], piece: usize, out: &mut [u8]) {
        let mut at = 0;
        for body in bytes.chunks(piece) {
            let end = at + BLOCK_HEADER_BYTES + body.len();
            let (head, rest) = out[at..end].split_at_mut(BLOCK_HEADER_BYTES);
            rest.copy_from_slice(body);
            head.copy_from_slice(&self.header(offset + at as u64, body));
            at = end;
        }
        out[at..].fill(0);
    }

    /// Returns the header of the block at `offset` of the segment.
    pub(crate) fn header(self, offset: u64, body: &[u8]) -> [u8; BLOCK_HEADER_BYTES] {
        let mut head = [0; BLOCK_HEADER_BYTES];
        head[..4].copy_from_slice(&self.checksum(offset, body).to_le_bytes());
        head[4..].copy_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        head
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_keep_their_fields_when_they_are_split() {
        let extent = Extent::new(((1 << ADDRESS_BITS) - 1) * 8);
        let tail = extent.suffix(100_000).suffix(31_071);
        assert_eq!((tail.chunk(), tail.skip()), (extent.chunk(), 131_071));
        assert_eq!(Extent::from_bits(tail.bits()), Some(tail));
        assert!(!tail.is_hole() && Extent::HOLE.suffix(1 << 60).is_hole());
        assert_eq!(Extent::from_bits(1 << 62), None);
        assert_eq!(Extent::from_bits(HOLE | 1), None);
    }

    #[test]
    fn extents_of_a_chunk_join_only_in_sequence() {
        let extent = Extent::new(64);
        let mut run = ExtentRun::new();
        for (len, extent) in [
            (100, extent),
            (50, extent.suffix(100)),
            (5, extent.suffix(151)),
            (5, Extent::new(72).suffix(156)),
            (5, Extent::HOLE),
            (5, extent.suffix(5)),
        ] {
            push_extent(&mut run, len, extent);
        }
        assert_eq!(run.iter().map(|(len, _)| *len).collect::<Vec<_>>(), [150, 5, 5, 5, 5]);
    }

    #[test]
    fn the_largest_fitting_length_has_the_stated_footprint() {
        for piece in [128, 4096] {
            for room in 0..20_000 {
                let len = max_len_in(room, piece);
                assert!(footprint(len, piece) <= room || len == 0, "{len} in {room}");
                assert!(footprint(len + 9, piece) > room / 8 * 8, "{len} in {room} is not the most");
            }
        }
        let mut out = vec![1; usize::try_from(footprint(1001, 128)).expect("small")];
        SegmentSeed::new(StoreId(1), 2, 3).encode(64, &[7; 1001], 128, &mut out);
        assert_eq!(out.iter().rev().take_while(|byte| **byte == 0).count(), 7, "padded to a multiple of 8");
    }
}
