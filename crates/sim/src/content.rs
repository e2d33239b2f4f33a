//! # File content that is cheap to copy
//!
//! Stores blocks of 4 KiB behind `Arc`s. A copy of a 1-MiB file increments 256 counters, and a
//! write to a copy duplicates one block. Each block caches its hash until it is changed, so
//! comparing disk images only costs the differences.
//!
//! ## Invariants
//!
//! 1. Each stored byte at or beyond `len` is zero, so growing the file shows zeros.
//! 2. `blocks` has no block that starts at or beyond `len`. A missing block is a hole.
//! 3. `used` is the number of blocks that are not holes: they occupy space on the disk.

use std::hash::Hasher;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use siphasher::sip::SipHasher13;

/// Unit of copying and of disk space, in bytes.
pub(super) const BLOCK: u64 = 4096;
const BLOCK_BYTES: usize = 4096;
const SECTOR_BYTES: usize = 512;

/// The bytes of one sector.
pub(super) type Sector = [u8; SECTOR_BYTES];

/// The bytes of a file. Holes have no blocks.
#[derive(Clone, Default)]
pub(super) struct FileContent {
    len: u64,
    blocks: Vec<ContentBlock>,
    used: u64,
}

#[derive(Clone, Default)]
enum ContentBlock {
    /// Zeros without space on the disk.
    #[default]
    Hole,
    /// Zeros with space on the disk.
    Reserved,
    Data(Arc<HashedBytes>),
}

struct HashedBytes {
    bytes: [u8; BLOCK_BYTES],
    /// Hash of `bytes`, 0 if all are zero. Empty after a change.
    hash: OnceLock<u64>,
}

impl Clone for HashedBytes {
    fn clone(&self) -> HashedBytes {
        HashedBytes { bytes: self.bytes, hash: OnceLock::new() }
    }
}

/// Converts `n` to an index. A simulated file is in memory, so its size fits `usize`.
pub(super) fn index(n: u64) -> usize {
    usize::try_from(n).expect("a simulated file fits memory")
}

impl FileContent {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Returns the number of blocks that occupy space.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Fills `buf` from `offset`. Returns false if the content is too short.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> bool {
        let end = offset.checked_add(buf.len() as u64);
        if end.is_none_or(|end| end > self.len) {
            return false;
        }
        let mut done = 0;
        while done < buf.len() {
            let at = index(offset) + done;
            let (block, inside) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
            let count = (BLOCK_BYTES - inside).min(buf.len() - done);
            let target = &mut buf[done..done + count];
            match self.blocks.get(block) {
                Some(ContentBlock::Data(data)) => target.copy_from_slice(&data.bytes[inside..inside + count]),
                _ => target.fill(0),
            }
            done += count;
        }
        true
    }

    /// Returns all bytes.
    pub(super) fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; index(self.len)];
        assert!(self.read(0, &mut bytes), "its own length");
        bytes
    }

    /// Writes bytes and extends the content if needed.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.len = self.len.max(offset + bytes.len() as u64);
        let mut done = 0;
        while done < bytes.len() {
            let at = index(offset) + done;
            let inside = at % BLOCK_BYTES;
            let count = (BLOCK_BYTES - inside).min(bytes.len() - done);
            let block = self.block_mut(at / BLOCK_BYTES);
            block[inside..inside + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        self.check_blocks();
    }

    /// Checks the number of blocks.
    fn check_blocks(&self) {
        let blocks = self.blocks.len() as u64;
        assert!(blocks <= self.len.div_ceil(BLOCK), "content (I2): no block starts at or beyond the end");
        assert!(self.used <= blocks, "content (I3): only blocks that exist are counted");
    }

    /// Truncates the content and frees blocks beyond the end, or extends it by a hole.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            let keep = index(len.div_ceil(BLOCK)).min(self.blocks.len());
            let gone = self.blocks.drain(keep..).filter(ContentBlock::is_used).count();
            self.used -= gone as u64;
            self.len = len;
            self.clear_tail();
        }
        self.len = len;
        self.check_blocks();
    }

    /// Reserves space for the blocks of `[0, to)`, which must be within the length.
    pub(super) fn reserve(&mut self, to: u64) {
        assert!(to <= self.len, "content (I2): no block is reserved beyond the end");
        let count = index(to.div_ceil(BLOCK));
        if self.blocks.len() < count {
            self.blocks.resize_with(count, ContentBlock::default);
        }
        for block in &mut self.blocks[..count] {
            if matches!(block, ContentBlock::Hole) {
                *block = ContentBlock::Reserved;
                self.used += 1;
            }
        }
    }

    /// Returns the blocks of the bytes `range` without space.
    pub(super) fn holes(&self, range: Range<u64>) -> impl Iterator<Item = u64> {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        blocks.filter(|&block| !self.blocks.get(index(block)).is_some_and(ContentBlock::is_used))
    }

    /// Returns the bytes of a sector, with zeros beyond the end.
    pub(super) fn sector(&self, sector: u64) -> Sector {
        let mut bytes = [0; SECTOR_BYTES];
        let at = index(sector) * SECTOR_BYTES;
        if let Some(ContentBlock::Data(data)) = self.blocks.get(at / BLOCK_BYTES) {
            let inside = at % BLOCK_BYTES;
            bytes.copy_from_slice(&data.bytes[inside..inside + SECTOR_BYTES]);
        }
        bytes
    }

    /// Replaces the part of a sector that lies within the length.
    pub(super) fn put_sector(&mut self, sector: u64, bytes: &Sector) {
        let start = sector * SECTOR_BYTES as u64;
        let count = index(self.len.saturating_sub(start)).min(SECTOR_BYTES);
        if count > 0 {
            self.write(start, &bytes[..count]);
        }
    }

    /// Copies one block from `from` by reference. Lengths must be equal.
    pub(super) fn share_block(&mut self, block: u64, from: &FileContent) {
        assert!(self.len == from.len, "content (I2): the copied block lies below the end");
        let Some(shared) = from.blocks.get(index(block)) else {
            return; // A hole in `from`; dirty blocks are never holes.
        };
        if self.blocks.len() <= index(block) {
            self.blocks.resize_with(index(block) + 1, ContentBlock::default);
        }
        let place = &mut self.blocks[index(block)];
        self.used += u64::from(shared.is_used());
        self.used -= u64::from(place.is_used());
        *place = shared.clone();
    }

    /// Adds the visible content to a hash.
    pub(super) fn hash_into(&self, hasher: &mut SipHasher13) {
        hasher.write_u64(self.len);
        for (number, block) in self.blocks.iter().enumerate() {
            let hash = block.hash();
            if hash != 0 {
                hasher.write_usize(number);
                hasher.write_u64(hash);
            }
        }
    }

    fn block_mut(&mut self, block: usize) -> &mut [u8; BLOCK_BYTES] {
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, ContentBlock::default);
        }
        let place = &mut self.blocks[block];
        if !matches!(place, ContentBlock::Data(_)) {
            self.used += u64::from(!place.is_used());
            let (bytes, hash) = ([0; BLOCK_BYTES], OnceLock::new());
            *place = ContentBlock::Data(Arc::new(HashedBytes { bytes, hash }));
        }
        let ContentBlock::Data(data) = place else {
            unreachable!("the block was replaced by data above");
        };
        let data = Arc::make_mut(data);
        data.hash.take();
        &mut data.bytes
    }

    /// Restores invariant 1 after a truncation.
    fn clear_tail(&mut self) {
        let (block, inside) = (index(self.len) / BLOCK_BYTES, index(self.len) % BLOCK_BYTES);
        if inside > 0 && matches!(self.blocks.get(block), Some(ContentBlock::Data(_))) {
            self.block_mut(block)[inside..].fill(0);
        }
    }
}

impl ContentBlock {
    fn is_used(&self) -> bool {
        !matches!(self, ContentBlock::Hole)
    }

    fn hash(&self) -> u64 {
        match self {
            ContentBlock::Data(data) => *data.hash.get_or_init(|| hash_of(&data.bytes)),
            _ => 0,
        }
    }
}

fn hash_of(bytes: &[u8; BLOCK_BYTES]) -> u64 {
    if bytes.iter().all(|&byte| byte == 0) {
        return 0;
    }
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(content: &FileContent) -> u64 {
        let mut hasher = SipHasher13::new();
        content.hash_into(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn cut_and_grown_again_shows_zeros() {
        let mut content = FileContent::default();
        content.write(4000, &[9; 200]);
        assert_eq!((content.len(), content.used()), (4200, 2));
        content.set_len(4050);
        content.set_len(9000);
        assert_eq!(content.used(), 1);
        let bytes = content.to_vec();
        assert_eq!(&bytes[3999..4001], [0, 9]);
        assert_eq!(&bytes[4049..4051], [9, 0]);
        assert!(bytes[4050..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn reserved_blocks_are_no_holes_and_stay_used_once() {
        let mut content = FileContent::default();
        content.set_len(10_000);
        assert_eq!(content.holes(0..10_000).count(), 3);
        content.reserve(5000);
        assert_eq!((content.used(), content.holes(0..10_000).count()), (2, 1));
        content.write(0, b"x");
        content.reserve(5000);
        assert_eq!(content.used(), 2);
        content.set_len(0);
        assert_eq!(content.used(), 0);
    }

    #[test]
    fn copies_are_independent_and_hashes_follow_the_bytes() {
        let mut one = FileContent::default();
        one.write(0, &[1; 5000]);
        let two = one.clone();
        let before = hash(&one);
        one.write(10, b"x");
        assert_ne!(hash(&one), before);
        assert_eq!(hash(&two), before);
        one.write(10, &[1]);
        assert_eq!(hash(&one), before);
    }

    #[test]
    fn zeros_hash_like_holes() {
        let (mut one, mut two) = (FileContent::default(), FileContent::default());
        one.write(0, &[0; 5000]);
        two.set_len(5000);
        assert_eq!(hash(&one), hash(&two));
    }

    #[test]
    fn sector_is_put_up_to_the_end_only() {
        let mut content = FileContent::default();
        content.set_len(700);
        content.put_sector(1, &[5; 512]);
        content.put_sector(2, &[5; 512]);
        assert_eq!(content.len(), 700);
        content.set_len(2000);
        assert_eq!(content.to_vec().iter().filter(|&&byte| byte == 5).count(), 188);
    }
}
