//! # Shape: branching, sluggishness and the length of hashes
//!
//! The paper's three parameters (CedrusDB, §2), and the size of a page. The trie's sizes in bytes follow from them.
//!
//! ```text
//!  hash, 32 bits:  [ root_bits ][ node_bits ][ node_bits ] ...      a digit of each node on the way
//!  line, 64 bytes: a node takes one line for every 16 children; a list as many as its entries fill
//! ```
//!
//! Branching, sluggishness and the length of hashes are options of a keyspace. The ranges are such that any of one goes with any
//! of the others: the largest node (256 references) and the largest list (128 entries of 9 bytes) leave room for two more in
//! a page, a count of entries fits its byte, and the digits are used up after 10 nodes at most. What is a page's, a line's and the
//! root's is not chosen: references and the cost of an opening depend on it.

use sheaf_base::options::{EngineOptions, OptionSpec, Values};

/// The paper's branching factor.
pub(crate) const BRANCHING: OptionSpec = OptionSpec {
    name: "branching",
    least: 4,
    most: 256,
    values: Values::PowersOfTwo,
    default: 1 << Shape::NORMAL.node_bits,
    help: "children of each trie node below the root; more: shorter paths, emptier new nodes",
};
/// The paper's sluggishness.
pub(crate) const SLUGGISHNESS: OptionSpec = OptionSpec {
    name: "sluggishness",
    least: 1,
    most: 128,
    values: Values::Any,
    default: Shape::NORMAL.most as u64,
    help: "maximum entries of a list before it is split; more: fewer nodes, longer lists",
};
/// How much of the hash counts.
pub(crate) const HASH_LENGTH: OptionSpec = OptionSpec {
    name: "hash-bits",
    least: 8,
    most: HASH_BITS as u64,
    values: Values::MultiplesOf(8),
    default: HASH_BITS as u64,
    help: "bits of the key hash in the index; 8 fewer: one byte per key less, more reads of other keys' records",
};
/// All of them.
pub(crate) const OPTIONS: [OptionSpec; 3] = [BRANCHING, SLUGGISHNESS, HASH_LENGTH];

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
    /// What keyspaces have where nothing was chosen, in every version: 16 children, 32 entries, pages of 4 KiB.
    pub const NORMAL: Shape =
        Shape { root_bits: 12, node_bits: 4, most: 32, page_lines: 64, hash_bits: HASH_BITS };
    /// So small that everything happens within 200 operations.
    pub const TINY: Shape =
        Shape { root_bits: 2, node_bits: 2, most: 4, page_lines: 8, hash_bits: HASH_BITS };

    /// What was chosen, in normal or tiny geometry.
    #[must_use]
    pub fn chosen(options: &EngineOptions, tiny: bool) -> Shape {
        let usual = if tiny { Shape::TINY } else { Shape::NORMAL };
        let of = |spec: &OptionSpec| options.get(spec.name).filter(|value| spec.allows(*value));
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let mut shape = Shape {
            node_bits: of(&BRANCHING).map_or(usual.node_bits, u64::ilog2),
            most: of(&SLUGGISHNESS).map_or(usual.most, |most| small(most) as usize),
            hash_bits: of(&HASH_LENGTH).map_or(usual.hash_bits, small),
            ..usual
        };
        // Tiny pages are as small as what stands in them lets them be.
        while shape.page_lines <= shape.largest() {
            shape.page_lines *= 2;
        }
        shape
    }

    /// Low bytes of a hash that are zero in all.
    #[must_use]
    pub fn blank_bytes(&self) -> u32 {
        (HASH_BITS - self.hash_bits) / 8
    }

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

    /// Bytes of an entry's hash in a list that stands for the hashes which share `bits` bits, and whose last bytes are blank.
    #[must_use]
    pub fn rest_bytes(bits: u32, blank: u32) -> usize {
        ((HASH_BITS - 8 * blank).saturating_sub(bits) as usize).div_ceil(8).max(1)
    }

    /// Lines of a list of `count` entries.
    #[must_use]
    pub fn list_lines(&self, bits: u32, count: usize) -> usize {
        let rest = Shape::rest_bytes(bits, self.blank_bytes());
        (LIST_HEAD + count * (rest + ADDRESS_BYTES)).div_ceil(LINE)
    }

    /// Lines of a link of a chain.
    #[must_use]
    pub fn link_lines(&self) -> usize {
        (LINK_HEAD + self.most * (1 + ADDRESS_BYTES)).div_ceil(LINE)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_lines * LINE
    }

    /// Lines of the largest thing that stands in a page.
    #[must_use]
    pub fn largest(&self) -> usize {
        self.node_lines().max(self.list_lines(0, self.most)).max(self.link_lines()).max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_chosen_fits_into_a_page() {
        let mut options = EngineOptions::default();
        assert_eq!(Shape::chosen(&options, false), Shape::NORMAL);
        assert_eq!(Shape::chosen(&options, true), Shape::TINY);
        for (bits, most, hash) in (2..=8)
            .flat_map(|bits| (1..=128).flat_map(move |most| [8, 16, 24, 32].map(|hash| (bits, most, hash))))
        {
            for (spec, value) in OPTIONS.iter().zip([1 << bits, most, hash]) {
                assert!(spec.allows(value));
                options.set(spec.name, value);
            }
            let shape = Shape::chosen(&options, false);
            assert_eq!((shape.page_lines, shape.root_bits), (64, 12), "what nobody chooses");
            assert!(3 * shape.largest() < shape.page_lines, "{shape:?}");
            let tiny = Shape::chosen(&options, true);
            assert!(tiny.largest() < tiny.page_lines && tiny.page_lines <= 32, "{tiny:?}");
            assert!((tiny.node_bits, tiny.most as u64, u64::from(tiny.hash_bits)) == (bits, most, hash));
        }
    }
}
