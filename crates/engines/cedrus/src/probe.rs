//! # Trie probe: a trie without data, for measurements of its size
//!
//! Present only with the feature `measure`, which `sheaf-bench` enables. No engine uses it.

use sheaf_log::segment::Address;
use sheaf_platform::sync::epoch;

use crate::entry_list::TrieEntry;
use crate::resident_pages;
use crate::shape::TrieShape;
use crate::trie::Trie;

/// Range of hashes that one reference serves, or several references to one list.
#[derive(Clone, Copy, Debug)]
pub struct ProbeRange {
    /// Number of hashes in the range.
    pub hashes: u64,
    /// Number of nodes on the path, with the root.
    pub level: u64,
    /// Number of entries of the list; 0 without a list.
    pub entries: u64,
}

/// Trie of hashes. Its entries refer to no records.
pub struct TrieProbe(Trie);

impl TrieProbe {
    /// Maximum number of pages of a trie.
    pub const MAX_PAGES: u32 = resident_pages::MAX_PAGES;

    /// Returns an empty trie.
    #[must_use]
    pub fn new(shape: TrieShape) -> TrieProbe {
        TrieProbe(Trie::new(shape))
    }

    /// Adds an entry for the hash of a key.
    ///
    /// # Panics
    ///
    /// Panics if the trie has the maximum number of pages.
    pub fn insert(&mut self, hash: u64) {
        let address = Address::from_bits((self.keys() + 1) * 8);
        let entry = TrieEntry::new(self.shape().truncate_hash(hash), address);
        let grown = self.0.insert(entry, &epoch::pin());
        assert!(grown.is_ok(), "all pages are in memory");
    }

    /// Calls `each` with every range of hashes, in their order.
    pub fn for_each_range(&self, mut each: impl FnMut(ProbeRange)) {
        let (mut from, mut entries) = (0, Vec::new());
        loop {
            let Ok((last, level)) = self.0.visit_with_level(from, &epoch::pin(), &mut entries) else { break };
            let hashes = u64::from(last - from) + 1;
            each(ProbeRange { hashes, level: level as u64, entries: entries.len() as u64 });
            match last.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
    }

    /// Returns the shape of the trie.
    #[must_use]
    pub fn shape(&self) -> &TrieShape {
        self.0.shape()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.0.len()
    }

    /// Returns the bytes of the pages and of the root.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    /// Returns the used fraction of the lines in pages.
    #[must_use]
    pub fn page_fill(&self) -> f64 {
        self.0.fill_ratio()
    }
}
