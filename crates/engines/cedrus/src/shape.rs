//! # Shape: branching, sluggishness and the length of hashes
//!
//! The paper's three parameters (CedrusDB, §2), and the size of a page. The trie's sizes in bytes
//! follow from them.
//!
//! ```text
//!  hash, 32 bits:  [ root_bits ][ node_bits ][ node_bits ] ...      a digit of each node on the way
//!  line, 64 bytes: a node takes one line for every 16 children; a list as many as its entries fill
//! ```
//!
//! Branching, sluggishness and the length of hashes are options of a keyspace. The ranges are such
//! that any of one goes with any of the others: the largest node (256 references) and the largest
//! list (128 entries of 9 bytes) leave room for two more in a page, a count of entries fits its
//! byte, and the digits are used up after 10 nodes at most. What is a page's, a line's and the
//! root's is not chosen: references and the cost of an opening depend on it.

use sheaf_base::options::{EngineOptions, OptionDomain, OptionSpec};

/// The paper's branching factor.
pub(crate) const BRANCHING: OptionSpec = OptionSpec {
    name: "branching",
    min: 4,
    max: 256,
    domain: OptionDomain::PowersOfTwo,
    default: 1 << TrieShape::NORMAL.node_bits,
    help: "children of each trie node below the root; more: shorter paths, emptier new nodes",
};
/// The paper's sluggishness.
pub(crate) const SLUGGISHNESS: OptionSpec = OptionSpec {
    name: "sluggishness",
    min: 1,
    max: 128,
    domain: OptionDomain::Any,
    default: TrieShape::NORMAL.max_list_entries as u64,
    help: "maximum entries of a list before it is split; more: fewer nodes, longer lists",
};
/// How much of the hash counts.
pub(crate) const HASH_LENGTH: OptionSpec = OptionSpec {
    name: "hash-bits",
    min: 8,
    max: HASH_BITS as u64,
    domain: OptionDomain::MultiplesOf(8),
    default: HASH_BITS as u64,
    help: "bits of the key hash in the index; 8 fewer: one byte per key less, more reads of other keys' records",
};
/// All of them.
pub(crate) const OPTIONS: [OptionSpec; 3] = [BRANCHING, SLUGGISHNESS, HASH_LENGTH];

/// Bytes of a line, the unit of space in a page.
pub const LINE_BYTES: usize = 64;
/// Words of a line.
pub(crate) const LINE_WORDS: usize = LINE_BYTES / 8;
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
pub struct TrieShape {
    /// Digits of the root, in bits.
    pub root_bits: u32,
    /// Digits of every other node, in bits: the branching factor is 2 to this.
    pub node_bits: u32,
    /// Sluggishness: the most entries of a list whose hashes differ.
    pub max_list_entries: usize,
    /// Lines of a page, the first of which is its head; at most 64.
    pub page_lines: usize,
    /// Bits of the hash that are used; the others count as zero.
    pub hash_bits: u32,
}

impl TrieShape {
    /// What keyspaces have where nothing was chosen, in every version: 16 children, 32 entries,
    /// pages of 4 KiB.
    pub const NORMAL: TrieShape =
        TrieShape { root_bits: 12, node_bits: 4, max_list_entries: 32, page_lines: 64, hash_bits: HASH_BITS };
    /// So small that everything happens within 200 operations.
    pub const TINY: TrieShape =
        TrieShape { root_bits: 2, node_bits: 2, max_list_entries: 4, page_lines: 8, hash_bits: HASH_BITS };

    /// What was chosen, in normal or tiny geometry.
    #[must_use]
    pub fn from_options(options: &EngineOptions, tiny: bool) -> TrieShape {
        let usual = if tiny { TrieShape::TINY } else { TrieShape::NORMAL };
        let of = |spec: &OptionSpec| options.get(spec.name).filter(|value| spec.allows(*value));
        let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        let mut shape = TrieShape {
            node_bits: of(&BRANCHING).map_or(usual.node_bits, u64::ilog2),
            max_list_entries: of(&SLUGGISHNESS).map_or(usual.max_list_entries, |most| small(most) as usize),
            hash_bits: of(&HASH_LENGTH).map_or(usual.hash_bits, small),
            ..usual
        };
        // Tiny pages are as small as what stands in them lets them be.
        while shape.page_lines <= shape.max_lines() {
            shape.page_lines *= 2;
        }
        shape
    }

    /// Low bytes of a hash that are zero in all.
    #[must_use]
    pub fn omitted_hash_bytes(&self) -> u32 {
        (HASH_BITS - self.hash_bits) / 8
    }

    /// Entries that two lists may have together and become one.
    #[must_use]
    pub fn merge_limit(&self) -> usize {
        self.max_list_entries - self.max_list_entries / 8
    }

    /// The part of a 64-bit hash that the trie knows.
    #[must_use]
    pub fn truncate_hash(&self, hash: u64) -> u32 {
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
        (4usize << self.node_bits).div_ceil(LINE_BYTES)
    }

    /// Bytes of an entry's hash in a list that stands for the hashes which share `bits` bits, and
    /// whose last bytes are blank.
    #[must_use]
    pub fn entry_hash_bytes(bits: u32, omitted_bytes: u32) -> usize {
        ((HASH_BITS - 8 * omitted_bytes).saturating_sub(bits) as usize).div_ceil(8).max(1)
    }

    /// Lines of a list of `count` entries.
    #[must_use]
    pub fn list_lines(&self, bits: u32, count: usize) -> usize {
        let rest = TrieShape::entry_hash_bytes(bits, self.omitted_hash_bytes());
        (LIST_HEAD + count * (rest + ADDRESS_BYTES)).div_ceil(LINE_BYTES)
    }

    /// Lines of a link of a chain.
    #[must_use]
    pub fn link_lines(&self) -> usize {
        (LINK_HEAD + self.max_list_entries * (1 + ADDRESS_BYTES)).div_ceil(LINE_BYTES)
    }

    /// Bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_lines * LINE_BYTES
    }

    /// Lines of the largest thing that stands in a page.
    #[must_use]
    pub fn max_lines(&self) -> usize {
        self.node_lines().max(self.list_lines(0, self.max_list_entries)).max(self.link_lines()).max(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_shape_fits_into_a_page() {
        let mut options = EngineOptions::default();
        assert_eq!(TrieShape::from_options(&options, false), TrieShape::NORMAL);
        assert_eq!(TrieShape::from_options(&options, true), TrieShape::TINY);
        for (bits, most, hash) in (2..=8)
            .flat_map(|bits| (1..=128).flat_map(move |most| [8, 16, 24, 32].map(|hash| (bits, most, hash))))
        {
            for (spec, value) in OPTIONS.iter().zip([1 << bits, most, hash]) {
                assert!(spec.allows(value));
                options.set(spec.name, value);
            }
            let shape = TrieShape::from_options(&options, false);
            assert_eq!((shape.page_lines, shape.root_bits), (64, 12), "what nobody chooses");
            assert!(3 * shape.max_lines() < shape.page_lines, "{shape:?}");
            let tiny = TrieShape::from_options(&options, true);
            assert!(tiny.max_lines() < tiny.page_lines && tiny.page_lines <= 32, "{tiny:?}");
            assert!(
                (tiny.node_bits, tiny.max_list_entries as u64, u64::from(tiny.hash_bits))
                    == (bits, most, hash)
            );
        }
    }
}
