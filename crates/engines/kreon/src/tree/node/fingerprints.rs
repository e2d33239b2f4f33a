//! # Leaf fingerprints: the part of a leaf that stays in memory after its eviction
//!
//! A lookup needs one entry of a leaf. For each key, the fingerprints have two bytes of its hash,
//! its tag and the location of its record: ten bytes, or a quarter of a leaf of 100 keys. The
//! record itself contains the key. So a lookup with fingerprints instead of the leaf reads the
//! device once, not twice.
//!
//! ## Picture
//!
//! ```text
//!  fingerprints n x 2 | tags n x 1 | locations n x 7            in the order of the leaf
//! ```
//!
//! ## Invariants
//!
//! 1. A key without an equal fingerprint is not in the leaf. A key with one may be: the record
//!    decides. In a leaf of 150 keys, one lookup in 440 meets another key with the same fingerprint
//!    of 16 bits (150 / 2^16).
//! 2. A value, the id of a blob and the commit of a removal are only in the leaf. The tags of such
//!    entries are marked accordingly.

use sheaf_log::types::Seq;
use sheaf_platform::memory::block_alloc::{self, BlockBox, BlockSlice};
use sheaf_platform::sync::atomic::{AtomicBool, Ordering};

use super::{HAS_BLOB, INLINE, LOCATION_BYTES, LeafEntry, Node, TOMBSTONE};

const FINGERPRINT_BYTES: usize = 2;
/// Bytes per key.
const BYTES_PER_KEY: usize = FINGERPRINT_BYTES + 1 + LOCATION_BYTES;
/// Divisor of the number of entries: with more entries that only the leaf can answer, a leaf gets
/// no fingerprints.
const MAX_LEAF_ONLY_DIVISOR: usize = 4;

/// Fingerprints of a leaf; see the header of the module.
#[derive(Debug)]
pub(crate) struct LeafFingerprints {
    /// Whether a lookup used them since the clock came by.
    pub(crate) is_referenced: AtomicBool,
    stamp: u64,
    max_seq: Seq,
    count: usize,
    columns: BlockSlice<u8>,
}

/// Returns the stored part of a hash. Leaves store another byte of it.
fn hash_fingerprint(hash: u64) -> [u8; FINGERPRINT_BYTES] {
    [hash.to_be_bytes()[0], hash.to_be_bytes()[1]]
}

impl LeafFingerprints {
    /// Makes the fingerprints of a leaf, unless too many of its entries are only in the leaf.
    pub(crate) fn of_leaf(
        leaf: &Node<'_>,
        hash: impl Fn(&[u8]) -> u64,
    ) -> Option<BlockBox<LeafFingerprints>> {
        let count = leaf.len();
        if (0..count).filter(|slot| is_leaf_only(leaf.tag(*slot))).count() > count / MAX_LEAF_ONLY_DIVISOR {
            return None;
        }
        let (mut columns, mut key) = (Vec::with_capacity(count * BYTES_PER_KEY), Vec::new());
        for slot in 0..count {
            key.clear();
            leaf.key(slot, &mut key);
            columns.extend_from_slice(&hash_fingerprint(hash(&key)));
        }
        columns.extend_from_slice(&leaf.bytes[leaf.tags..leaf.tags + count]);
        columns.extend_from_slice(&leaf.bytes[leaf.places..leaf.places + count * LOCATION_BYTES]);
        let (mark, columns) = (AtomicBool::new(false), BlockSlice::copy(&columns));
        Some(BlockBox::new(LeafFingerprints {
            is_referenced: mark,
            stamp: leaf.stamp(),
            max_seq: leaf.max_seq(),
            count,
            columns,
        }))
    }

    /// Returns the stamp of the leaf.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// Returns an upper bound of the commits of the entries.
    pub(crate) fn max_seq(&self) -> Seq {
        self.max_seq
    }

    /// Returns the entries that may belong to a key with this hash. `leaf_fingerprint` is the byte
    /// of the hash that leaves store. Returns `None` for an entry that only the leaf can answer.
    pub(crate) fn matches(&self, hash: u64, leaf_fingerprint: u8) -> impl Iterator<Item = Option<LeafEntry>> {
        let wanted = hash_fingerprint(hash);
        let (fingerprints, rest) = self.columns.split_at(self.count * FINGERPRINT_BYTES);
        let (tags, places) = rest.split_at(self.count);
        let slots = fingerprints
            .as_chunks::<FINGERPRINT_BYTES>()
            .0
            .iter()
            .zip(0..)
            .filter(move |(here, _)| **here == wanted);
        slots.map(move |(_, slot): (_, usize)| {
            let (flags, place) =
                (tags[slot] & super::FLAGS_MASK, places.as_chunks::<LOCATION_BYTES>().0[slot]);
            (!is_leaf_only(flags)).then_some(LeafEntry {
                flags,
                fingerprint: leaf_fingerprint,
                location: place,
                blob_id: 0,
            })
        })
    }

    /// Returns the bytes of memory.
    pub(crate) fn cost(&self) -> u64 {
        block_alloc::memory_bytes(self.columns.len())
            + block_alloc::memory_bytes(size_of::<LeafFingerprints>())
    }

    /// Marks them as used by a lookup.
    pub(crate) fn mark_referenced(&self) {
        if !self.is_referenced.load(Ordering::Relaxed) {
            self.is_referenced.store(true, Ordering::Relaxed);
        }
    }
}

impl LeafEntry {
    /// Whether only the leaf contains the content of the entry (I2).
    pub(crate) fn is_leaf_only(&self) -> bool {
        is_leaf_only(self.flags)
    }
}

/// Whether only the leaf contains the content of an entry with these flags.
fn is_leaf_only(flags: u8) -> bool {
    flags & (TOMBSTONE | HAS_BLOB | INLINE) != 0
}
