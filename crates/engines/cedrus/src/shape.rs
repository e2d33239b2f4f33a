//! # Shape: branching, sluggishness and the length of hashes
//!
//! The paper's three parameters (CedrusDB, §2), and the size of a page. They determine the sizes of
//! the trie's parts.
//!
//! ```text
//!  hash, 32 bits:  [ root_bits ][ node_bits ][ node_bits ] ...   a digit for each node on the path
//!  40 bits:        the same, and a byte behind it that only the entry has
//!  line, 64 bytes: a node takes one line for every 16 children, a list as many as it needs
//! ```
//!
//! Branching, sluggishness and hash length are options of a keyspace. Their ranges permit every
//! combination. Three of the largest nodes (256 references) or lists (128 entries of 10 bytes) fit
//! into a page. The count of a list's entries fits into a byte. A path has at most 10 nodes below
//! the root. The sizes of pages, lines and the root are fixed: references and the cost of an
//! opening depend on them.

use crate::entry_list::KeyHash;
use sheaf_log::options::{COMPRESSION, EngineOptions, OptionDomain, OptionSpec};

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
/// Length of the hash in the index.
pub(crate) const HASH_LENGTH: OptionSpec = OptionSpec {
    name: "hash-bits",
    min: 8,
    max: MAX_HASH_BITS as u64,
    domain: OptionDomain::MultiplesOf(8),
    default: HASH_BITS as u64,
    help: "bits of the key hash in the index; 8 fewer: one byte per key less, more reads of other keys' records; 40: from 10^9 keys on",
};
/// All options of the engine.
pub(crate) const OPTIONS: [OptionSpec; 4] = [BRANCHING, SLUGGISHNESS, HASH_LENGTH, COMPRESSION];

/// Bytes of a line, the unit of space in a page.
pub const LINE_BYTES: usize = 64;
/// Words of a line.
pub(crate) const LINE_WORDS: usize = LINE_BYTES / 8;
/// Number of hash bits that select a path in the trie, and the default number of bits of a hash.
pub const HASH_BITS: u32 = 32;
/// Maximum number of hash bits. The bits behind `HASH_BITS` only distinguish entries.
pub const MAX_HASH_BITS: u32 = 40;
/// Bytes of an address in an entry.
pub(crate) const ADDRESS_BYTES: usize = 5;
/// Bytes before the entries of a list.
pub(crate) const LIST_HEAD: usize = 8;
/// Bytes before the entries of a link of a chain.
pub(crate) const LINK_HEAD: usize = 16;

/// Parameters of a trie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrieShape {
    /// Bits of a digit of the root.
    pub root_bits: u32,
    /// Bits of a digit of every other node. The branching factor is 2 to this power.
    pub node_bits: u32,
    /// Sluggishness: maximum number of entries of a list with different hashes.
    pub max_list_entries: usize,
    /// Lines of a page, with the head in the first one; at most 64.
    pub page_lines: usize,
    /// Number of hash bits in use; the others are zero.
    pub hash_bits: u32,
}

impl TrieShape {
    /// Default shape in every version: 16 children, 32 entries, pages of 4 KiB.
    pub const NORMAL: TrieShape =
        TrieShape { root_bits: 12, node_bits: 4, max_list_entries: 32, page_lines: 64, hash_bits: HASH_BITS };
    /// Shape for tests: so small that all kinds of changes occur within 200 operations.
    pub const TINY: TrieShape =
        TrieShape { root_bits: 2, node_bits: 2, max_list_entries: 4, page_lines: 8, hash_bits: HASH_BITS };

    /// Returns the shape with the options of a keyspace, in normal or tiny geometry.
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
        // Tiny pages are as small as the largest node or list permits.
        while shape.page_lines <= shape.max_lines() {
            shape.page_lines *= 2;
        }
        shape
    }

    /// Returns the number of low bytes of a hash of `MAX_HASH_BITS` bits that are always zero and
    /// are not stored.
    #[must_use]
    pub fn omitted_hash_bytes(&self) -> u32 {
        (MAX_HASH_BITS - self.hash_bits) / 8
    }

    /// Returns the maximum number of entries of two lists that are merged.
    #[must_use]
    pub fn merge_limit(&self) -> usize {
        self.max_list_entries - self.max_list_entries / 8
    }

    /// Returns the bits of a 64-bit hash that the trie stores.
    pub(crate) fn key_hash(&self, hash: u64) -> KeyHash {
        let [_, _, _, tail, ..] = hash.to_le_bytes();
        KeyHash { path: self.truncate_hash(hash), tail: if self.hash_bits > HASH_BITS { tail } else { 0 } }
    }

    /// Returns the bits of a 64-bit hash that select the path.
    #[must_use]
    pub fn truncate_hash(&self, hash: u64) -> u32 {
        let top = u32::try_from(hash >> 32).unwrap_or(0);
        top & !u32::MAX.checked_shr(self.hash_bits).unwrap_or(0)
    }

    /// Returns the number of bits of the digit of a node `depth` hash bits below the top; 0 is the
    /// root.
    #[must_use]
    pub fn digit_bits(&self, depth: u32) -> u32 {
        if depth == 0 { self.root_bits } else { self.node_bits.min(HASH_BITS - depth.min(HASH_BITS)) }
    }

    /// Returns the lines of a node.
    #[must_use]
    pub fn node_lines(&self) -> usize {
        (4usize << self.node_bits).div_ceil(LINE_BYTES)
    }

    /// Returns the number of hash bytes of an entry in a list with hashes that share `bits` bits,
    /// without the last `omitted_bytes` bytes.
    #[must_use]
    pub fn entry_hash_bytes(bits: u32, omitted_bytes: u32) -> usize {
        ((MAX_HASH_BITS - 8 * omitted_bytes).saturating_sub(bits) as usize).div_ceil(8).max(1)
    }

    /// Returns the lines of a list of `count` entries.
    #[must_use]
    pub fn list_lines(&self, bits: u32, count: usize) -> usize {
        let rest = TrieShape::entry_hash_bytes(bits, self.omitted_hash_bytes());
        (LIST_HEAD + count * (rest + ADDRESS_BYTES)).div_ceil(LINE_BYTES)
    }

    /// Returns the lines of a link of a chain.
    #[must_use]
    pub fn link_lines(&self) -> usize {
        (LINK_HEAD + self.max_list_entries * (1 + ADDRESS_BYTES)).div_ceil(LINE_BYTES)
    }

    /// Returns the bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.page_lines * LINE_BYTES
    }

    /// Returns the lines of the largest node, list or link.
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
        for (bits, most, hash) in (2..=8).flat_map(|bits| {
            (1..=128).flat_map(move |most| [8, 16, 24, 32, 40].map(|hash| (bits, most, hash)))
        }) {
            for (spec, value) in OPTIONS.iter().zip([1 << bits, most, hash]) {
                assert!(spec.allows(value));
                options.set(spec.name, value);
            }
            let shape = TrieShape::from_options(&options, false);
            assert_eq!((shape.page_lines, shape.root_bits), (64, 12), "these are fixed sizes");
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
