//! # Prints: what stays in memory of a leaf that goes
//!
//! A look-up wants one entry of a leaf. Two bytes of each key's hash, and where its record stands,
//! take a quarter of what the leaf takes; the record itself has the key. So a look-up that finds
//! prints in place of the leaf reads the device once, not twice.
//!
//! ## Picture
//!
//! ```text
//!  prints n x 2 | tags n x 1 | places n x 7            in the order of the leaf
//! ```
//!
//! ## Invariants
//!
//! 1. What no print equals is not in the leaf. What one equals may be: one key in some hundred
//!    leaves passes for another, so that the record decides.
//! 2. What only the leaf has (a value, a staged value's number, the commit of a removal) is not
//!    here: such an entry says so.

use sheaf_base::memory::block_alloc::{self, BlockBox, BlockSlice};
use sheaf_base::sync::atomic::{AtomicBool, Ordering};
use sheaf_base::types::Seq;

use super::{HAS_BLOB, INLINE, LOCATION_BYTES, LeafEntry, Node, TOMBSTONE};

const FINGERPRINT_BYTES: usize = 2;
/// Bytes of a key.
const BYTES_PER_KEY: usize = FINGERPRINT_BYTES + 1 + LOCATION_BYTES;
/// A leaf has prints if at most this part of its entries are such that only the leaf answers.
const MAX_LEAF_ONLY_DIVISOR: usize = 4;

/// See the module.
#[derive(Debug)]
pub(crate) struct LeafFingerprints {
    /// They were asked since the clock came by.
    pub(crate) is_referenced: AtomicBool,
    stamp: u64,
    max_seq: Seq,
    count: usize,
    columns: BlockSlice<u8>,
}

/// The part of a hash that is kept: not the byte that leaves keep.
fn print_of(hash: u64) -> [u8; FINGERPRINT_BYTES] {
    [hash.to_be_bytes()[0], hash.to_be_bytes()[1]]
}

impl LeafFingerprints {
    /// Those of a leaf, unless too much of it is nowhere else.
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
            columns.extend_from_slice(&print_of(hash(&key)));
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

    /// The leaf's stamp.
    pub(crate) fn stamp(&self) -> u64 {
        self.stamp
    }

    /// No entry is of a later commit.
    pub(crate) fn max_seq(&self) -> Seq {
        self.max_seq
    }

    /// Entries that may be of a key with this hash, whose byte in leaves is `print`; nothing in the
    /// place of one that only the leaf has.
    pub(crate) fn matches(&self, hash: u64, print: u8) -> impl Iterator<Item = Option<LeafEntry>> {
        let wanted = print_of(hash);
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
                fingerprint: print,
                location: place,
                blob_id: 0,
            })
        })
    }

    /// Bytes of memory.
    pub(crate) fn cost(&self) -> u64 {
        block_alloc::memory_bytes(self.columns.len())
            + block_alloc::memory_bytes(size_of::<LeafFingerprints>())
    }

    /// They were asked.
    pub(crate) fn mark_referenced(&self) {
        if !self.is_referenced.load(Ordering::Relaxed) {
            self.is_referenced.store(true, Ordering::Relaxed);
        }
    }
}

/// Whether only the leaf has what an entry with these flags says.
fn is_leaf_only(flags: u8) -> bool {
    flags & (TOMBSTONE | HAS_BLOB | INLINE) != 0
}
