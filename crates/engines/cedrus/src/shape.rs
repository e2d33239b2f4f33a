//! # Shape: branching, sluggishness and the length of hashes
//!
//! The paper's three parameters (CedrusDB, §2), and the size of a page. The trie's sizes in bytes follow from them.
//!
//! ```text
//!  hash, 32 bits:  [ root_bits ][ node_bits ][ node_bits ] ...      a digit of each node on the way
//!  line, 64 bytes: a node takes one line for every 16 children; a list as many as its entries fill
//! ```

/// Bytes of a line, the unit of space in a page.
pub const LINE: usize = 64;
/// Words of a line.
pub(crate) const LINE_WORDS: usize = LINE / 8;
/// Bits of a hash that the trie knows.
pub const HASH_BITS: u32 = 32;
/// Bytes of an address in an entry.
pub(crate) const ADDRESS_BYTES: usize = 5;
/// Bytes before the entries of a list.
pub(crate) const LIST_HEAD: usize = 8;
/// The same where a list is a link of a chain.
pub(crate) const LINK_HEAD: usize = 16;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Digits of the root, in bits.
    pub root_bits: u32,
    /// Digits of every other node, in bits: the branching factor is 2 to this.
    pub node_bits: u32,
    /// Sluggishness: the most entries of a list whose hashes differ.
    pub most: usize,
    /// Lines of a page, the first of which is its head; at most 64.
    pub page_lines: usize,
    /// Bits of the hash that are used; the others count as zero.
    pub hash_bits: u32,
}

impl Shape {
    /// What keyspaces have: 16 children, 32 entries, pages of 4 KiB.
    pub const NORMAL: Shape =
        Shape { root_bits: 12, node_bits: 4, most: 32, page_lines: 64, hash_bits: HASH_BITS };
    /// So small that everything happens within 200 operations.
    pub const TINY: Shape =
        Shape { root_bits: 2, node_bits: 2, most: 4, page_lines: 8, hash_bits: HASH_BITS };

    /// Entries that two lists may have together and become one.
    #[must_use]
    pub fn room(&self) -> usize {
        self.most - self.most / 8
    }

    /// The part of a 64-bit hash that the trie knows.
    #[must_use]
    pub fn cut(&self, hash: u64) -> u32 {
        let top = u32::try_from(hash >> 32).unwrap_or(0);
        top & !u32::MAX.checked_shr(self.hash_bits).unwrap_or(0)
    }

    /// Bits of the digit of a node that stands `depth` bits below the root; 0 is the root's own.
    #[must_use]
    pub fn digit_bits(&self, depth: u32) -> u32 {
        if depth == 0 { self.root_bits } else { self.node_bits.min(HASH_BITS - depth.min(HASH_BITS)) }
    }

    /// Lines of a node of so many children.
    #[must_use]
    pub fn node_lines(&self) -> usize {
        (4usize << self.node_bits).div_ceil(LINE)
    }

    /// Bytes of an entry's hash in a list that stands for the hashes which share `bits` bits.
    #[must_use]
    pub fn rest_bytes(bits: u32) -> usize {
        ((HASH_BITS - bits.min(HASH_BITS)) as usize).div_ceil(8).max(1)
    }

    /// Lines of a list of `count` entries.
    #[must_use]
    pub fn list_lines(bits: u32, count: usize) -> usize {
        (LIST_HEAD + count * (Shape::rest_bytes(bits) + ADDRESS_BYTES)).div_ceil(LINE)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_lines * LINE
    }

    /// Lines of the largest thing that stands in a page.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.node_lines().max(Shape::list_lines(0, self.most)).max(2)
    }
}
