//! # Node: pages of a level's tree, as bytes
//!
//! A leaf contains the keys of its range, each with the address of its record. An inner node
//! contains separators and references to children. The common prefix of a node's keys is stored
//! once. The next eight bytes of each key are in a column of *heads* for the search, and longer
//! rests are behind the columns.
//!
//! ## Picture
//!
//! ```text
//!  kind 1 | level 1 | count 2 | prefix 2 | 0 2 | stamp 8 | newest 8 | prefix ...
//!  leaf:   fingerprints n x 1 | heads n x 8 | locations n x 7 | tags n x 1 | ends n x 2 | rests ..
//!  inner:                       heads n x 8 | children n x 16 | tags n x 1 | ends n x 2 | rests ..
//! ```
//!
//! Each field is given with its length in bytes; n is the count. A rest of a leaf may be followed
//! by a small value or the id of a blob. Columns make a point read cheap: it reads the
//! fingerprints, which are three cache lines, and one entry.
//!
//! ## Invariants
//!
//! 1. [`Node::parse`] checks every length once, so that later accesses stay in bounds for any
//!    bytes.
//! 2. Keys ascend. A node of more than one leaf entry, or more than two children, is one page.
//!    Other nodes take as many pages as their key needs.
//! 3. The first child of an inner node has no separator: it begins where the node begins.

mod build;
mod fingerprints;
#[cfg(test)]
mod tests;

use std::cmp::Ordering;

use sheaf_engine::keys::{HEAD, head};
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::codec::{u32_at, u64_at};
use sheaf_platform::error::{Damage, Expected};

pub(crate) use self::build::{Child, LeafPair, build_node, fit_items};
pub(crate) use self::fingerprints::LeafFingerprints;

const NODE_KIND: u8 = 0x4b;
pub(crate) const HEADER: usize = 24;
/// Bytes of a leaf entry, without the rest of its key.
const LEAF_ENTRY: usize = 1 + 8 + LOCATION_BYTES + 1 + 2;
const INNER_ENTRY: usize = 8 + NODE_REF_BYTES + 1 + 2;
const LOCATION_BYTES: usize = 7;
const NODE_REF_BYTES: usize = 16;
/// Bytes of a blob's id, behind the rest of the key.
const BLOB_ID_BYTES: usize = 8;
/// Length of the longest value that is copied into a leaf, behind the rest of its key and followed
/// by its length. A lookup then needs no record. The copy costs as many bytes for each entry;
/// without copies, a leaf has half more entries than with values of 32 bytes.
pub(crate) const MAX_INLINE: usize = 32;

/// Flag: the key is removed; the location contains the seq of that commit.
pub(crate) const TOMBSTONE: u8 = 0x10;
/// Flag: the record refers to a blob.
pub(crate) const HAS_BLOB: u8 = 0x20;
/// Flag: entries of the key in lower levels are not accounted as live any more.
pub(crate) const LOWER_UNACCOUNTED: u8 = 0x40;
/// Flag: the entry has a copy of the value.
pub(crate) const INLINE: u8 = 0x80;
const FLAGS_MASK: u8 = TOMBSTONE | HAS_BLOB | LOWER_UNACCOUNTED | INLINE;
const LENGTH_MASK: u8 = 0x0f;

/// Returns the byte of a hash that leaves store.
pub(crate) fn fingerprint_of(hash: u64) -> u8 {
    hash.to_be_bytes()[3]
}

/// A reference to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeRef {
    /// First page of the node.
    pub(crate) page: u32,
    /// Checksum of its bytes.
    pub(crate) crc: u32,
    /// Number of its pages.
    pub(crate) pages: u16,
    /// Number of bytes used in them, limited to two bytes.
    pub(crate) fill: u16,
    /// Number of entries in the leaves below it.
    pub(crate) count: u32,
}

impl NodeRef {
    pub(crate) fn to_bytes(self) -> [u8; NODE_REF_BYTES] {
        let mut bytes = [0; NODE_REF_BYTES];
        bytes[..4].copy_from_slice(&self.page.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.crc.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.pages.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.fill.to_le_bytes());
        bytes[12..].copy_from_slice(&self.count.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> NodeRef {
        let word = u32_at(bytes, 8);
        let low = |word: u32| u16::try_from(word & 0xffff).unwrap_or(0);
        NodeRef {
            page: u32_at(bytes, 0),
            crc: u32_at(bytes, 4),
            pages: low(word),
            fill: low(word >> 16),
            count: u32_at(bytes, 12),
        }
    }
}

/// The entry of a level for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafEntry {
    /// Combination of [`TOMBSTONE`], [`HAS_BLOB`], [`LOWER_UNACCOUNTED`] and [`INLINE`].
    pub(crate) flags: u8,
    /// A byte of the hash of the key.
    pub(crate) fingerprint: u8,
    location: [u8; LOCATION_BYTES],
    /// Id of the blob, if the value is one.
    pub(crate) blob_id: u64,
}

impl LeafEntry {
    pub(crate) fn put(address: Address, span: u64, fingerprint: u8, flags: u8, blob: u64) -> LeafEntry {
        let units = u16::try_from(span / 8).unwrap_or(u16::MAX);
        let mut place = [0; LOCATION_BYTES];
        place[..5].copy_from_slice(&address.bits().to_le_bytes()[..5]);
        place[5..].copy_from_slice(&units.to_le_bytes());
        LeafEntry { flags, fingerprint, location: place, blob_id: blob }
    }

    pub(crate) fn tombstone(seq: Seq, fingerprint: u8, flags: u8) -> LeafEntry {
        let mut place = [0; LOCATION_BYTES];
        place[..6].copy_from_slice(&seq.0.to_le_bytes()[..6]);
        LeafEntry { flags: flags & LOWER_UNACCOUNTED | TOMBSTONE, fingerprint, location: place, blob_id: 0 }
    }

    pub(crate) fn is_tombstone(&self) -> bool {
        self.flags & TOMBSTONE != 0
    }

    pub(crate) fn is_blob(&self) -> bool {
        self.flags & HAS_BLOB != 0
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.flags & INLINE != 0
    }

    pub(crate) fn with_flags(self, flags: u8) -> LeafEntry {
        LeafEntry { flags, ..self }
    }

    /// Returns the entry without the address of its deleted record.
    pub(crate) fn without_address(&self) -> LeafEntry {
        LeafEntry::put(Address::NONE, 0, self.fingerprint, self.flags, self.blob_id)
    }

    fn word(&self) -> u64 {
        let mut word = [0; 8];
        word[..LOCATION_BYTES].copy_from_slice(&self.location);
        u64::from_le_bytes(word)
    }

    /// Returns the address of the record; meaningless for a tombstone.
    pub(crate) fn address(&self) -> Address {
        Address::from_bits(self.word())
    }

    /// Returns the bytes of the record's frame.
    pub(crate) fn span(&self) -> u64 {
        (self.word() >> 40) * 8
    }

    /// Returns the commit of a tombstone.
    pub(crate) fn tombstone_seq(&self) -> Seq {
        Seq(self.word())
    }
}

/// A checked view of the bytes of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'a> {
    bytes: &'a [u8],
    count: usize,
    prefix: usize,
    /// Offsets of the columns.
    heads: usize,
    places: usize,
    tags: usize,
    ends: usize,
    rests: usize,
    is_leaf: bool,
}

impl<'a> Node<'a> {
    /// Creates a view of bytes that [`Node::parse`] has accepted before.
    #[inline]
    pub(crate) fn from_checked(bytes: &'a [u8]) -> Node<'a> {
        let (count, prefix) = (u16_at(bytes, 2), u16_at(bytes, 4));
        let is_leaf = bytes[1] == 0;
        let (fingerprints, width) = if is_leaf { (count, LOCATION_BYTES) } else { (0, NODE_REF_BYTES) };
        let heads = HEADER + prefix + fingerprints;
        let places = heads + count * HEAD;
        let tags = places + count * width;
        let ends = tags + count;
        Node { bytes, count, prefix, heads, places, tags, ends, rests: ends + 2 * count, is_leaf }
    }

    /// Whether `bytes` begin like a leaf or like an inner node.
    pub(crate) fn is_kind(bytes: &[u8], is_leaf: bool) -> bool {
        matches!(bytes, [NODE_KIND, level, ..] if (*level == 0) == is_leaf)
    }

    /// Checks `bytes`, which should be a node of `level` (I1).
    pub(crate) fn parse(bytes: &'a [u8], level: u8) -> Result<Node<'a>, Damage> {
        let bad = |field, expected: Expected, got: usize| {
            Err(Damage::BadField { field, expected, got: got as u64 })
        };
        if bytes.len() < HEADER || bytes[0] != NODE_KIND {
            let expected = u64::from(NODE_KIND).into();
            return bad("kind of a node", expected, usize::from(bytes.first().copied().unwrap_or(0)));
        }
        if bytes[1] != level {
            return bad("level of a node", u64::from(level).into(), usize::from(bytes[1]));
        }
        let node = Node::from_checked(bytes);
        if node.count == 0 || node.rests > bytes.len() {
            return bad("count of a node", "1 to the entries that fit the node".into(), node.count);
        }
        let mut end = 0;
        for slot in 0..node.count {
            let next = u16_at(bytes, node.ends + 2 * slot);
            if next < end || node.rests + next > bytes.len() {
                let expected = end as u64..=(bytes.len() - node.rests) as u64;
                return bad("end of an entry", expected.into(), next);
            }
            let tag = bytes[node.tags + slot];
            let extra = match tag & (HAS_BLOB | INLINE | TOMBSTONE) {
                0 | TOMBSTONE => 0,
                HAS_BLOB => BLOB_ID_BYTES,
                INLINE if next > end => 1 + usize::from(bytes[node.rests + next - 1]),
                _ => usize::MAX,
            };
            let rest = next - end;
            let is_short = usize::from(tag & LENGTH_MASK) < HEAD && rest != extra;
            if usize::from(tag & LENGTH_MASK) > HEAD || rest < extra || is_short {
                let expected = "a tag that fits the length of the entry".into();
                return bad("tag of an entry", expected, usize::from(tag));
            }
            if !node.is_leaf {
                let child = node.child(slot);
                if child.page == 0 {
                    return bad("page of a child", (1..).into(), 0);
                }
                if child.pages == 0 {
                    return bad("pages of a child", (1..).into(), 0);
                }
            }
            end = next;
        }
        Ok(node)
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns the number of the next segment when the leaf was written. The leaf points into older
    /// segments only.
    pub(crate) fn stamp(&self) -> u64 {
        u64_at(self.bytes, 8)
    }

    /// Returns an upper bound of the commits of the entries.
    pub(crate) fn max_seq(&self) -> Seq {
        Seq(u64_at(self.bytes, 16))
    }

    fn prefix(&self) -> &'a [u8] {
        &self.bytes[HEADER..HEADER + self.prefix]
    }

    #[inline]
    fn head(&self, slot: usize) -> u64 {
        let at = self.heads + slot * HEAD;
        match self.bytes[at..].first_chunk::<HEAD>() {
            Some(head) => u64::from_be_bytes(*head),
            None => 0,
        }
    }

    fn tag(&self, slot: usize) -> u8 {
        self.bytes[self.tags + slot]
    }

    /// Returns the rest of the key, and the bytes behind it: the number of a blob, or a value.
    #[inline]
    fn rest(&self, slot: usize) -> (&'a [u8], &'a [u8]) {
        let start = if slot == 0 { 0 } else { u16_at(self.bytes, self.ends + 2 * slot - 2) };
        let end = u16_at(self.bytes, self.ends + 2 * slot);
        let rest = &self.bytes[self.rests + start..self.rests + end];
        match self.tag(slot) & (HAS_BLOB | INLINE) {
            0 => (rest, &[]),
            HAS_BLOB => rest.split_at(rest.len() - BLOB_ID_BYTES),
            _ => {
                let (rest, len) = rest.split_at(rest.len() - 1);
                rest.split_at(rest.len() - usize::from(len[0]))
            }
        }
    }

    /// Compares the key of `slot` with a key that has this suffix behind the prefix.
    #[inline]
    fn cmp(&self, slot: usize, head: u64, suffix: &[u8]) -> Ordering {
        match self.head(slot).cmp(&head) {
            Ordering::Equal => {}
            other => return other,
        }
        let len = usize::from(self.tag(slot) & LENGTH_MASK);
        if len < HEAD || suffix.len() < HEAD {
            return len.cmp(&suffix.len());
        }
        self.rest(slot).0.cmp(&suffix[HEAD..])
    }

    /// Appends the key of `slot` to `out`.
    pub(crate) fn key(&self, slot: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix());
        let at = self.heads + slot * HEAD;
        out.extend_from_slice(&self.bytes[at..at + usize::from(self.tag(slot) & LENGTH_MASK)]);
        out.extend_from_slice(self.rest(slot).0);
    }

    /// Returns the first slot from `first` on with a key at or after `key`; with `with`, the first
    /// one with a later key.
    #[inline]
    fn position(&self, first: usize, key: &[u8], with: bool) -> usize {
        let Some(suffix) = key.strip_prefix(self.prefix()) else {
            return if key < self.prefix() { first } else { self.count };
        };
        let head = head(suffix);
        let (mut low, mut high) = (first, self.count);
        while low < high {
            let middle = (low + high) / 2;
            let is_before = match self.cmp(middle, head, suffix) {
                Ordering::Less => true,
                Ordering::Equal => with,
                Ordering::Greater => false,
            };
            if is_before { low = middle + 1 } else { high = middle }
        }
        low
    }

    // Leaves.

    /// Returns the number of entries with keys before `key`; with `with`, also at it.
    pub(crate) fn count_before(&self, key: &[u8], with: bool) -> usize {
        self.position(0, key, with)
    }

    pub(crate) fn entry(&self, slot: usize) -> LeafEntry {
        let mut place = [0; LOCATION_BYTES];
        place.copy_from_slice(&self.bytes[self.places + slot * LOCATION_BYTES..][..LOCATION_BYTES]);
        let fingerprint = self.bytes[HEADER + self.prefix + slot];
        let flags = self.tag(slot) & FLAGS_MASK;
        let blob = if flags & HAS_BLOB == 0 { 0 } else { u64_at(self.rest(slot).1, 0) };
        LeafEntry { flags, fingerprint, location: place, blob_id: blob }
    }

    /// Returns the value if the entry has a copy of it, else nothing.
    #[inline]
    pub(crate) fn value(&self, slot: usize) -> &'a [u8] {
        if self.tag(slot) & INLINE == 0 { &[] } else { self.rest(slot).1 }
    }

    /// Returns the slot of `key`, if the hash of the key has the byte `fingerprint`.
    #[inline]
    pub(crate) fn find(&self, fingerprint: u8, key: &[u8]) -> Option<usize> {
        const LOW: u64 = 0x0101_0101_0101_0101;
        const HIGH: u64 = 0x8080_8080_8080_8080;
        let suffix = key.strip_prefix(self.prefix())?;
        let head = head(suffix);
        let fingerprints = &self.bytes[HEADER + self.prefix..self.heads];
        let wanted = LOW * u64::from(fingerprint);
        let mut chunks = fingerprints.chunks_exact(8);
        let is_it = |slot: &usize| self.cmp(*slot, head, suffix) == Ordering::Equal;
        for (number, chunk) in chunks.by_ref().enumerate() {
            let differs = u64_at(chunk, 0) ^ wanted;
            // 0x80 in each byte that may be equal: it may be set too often, never too rarely.
            let mut equal = differs.wrapping_sub(LOW) & !differs & HIGH;
            while equal != 0 {
                let slot = number * 8 + equal.trailing_zeros() as usize / 8;
                if is_it(&slot) {
                    return Some(slot);
                }
                equal &= equal - 1;
            }
        }
        let start = fingerprints.len() / 8 * 8;
        let last = chunks.remainder().iter().zip(start..);
        last.filter(|(p, _)| **p == fingerprint).map(|(_, slot)| slot).find(is_it)
    }

    // Inner nodes.

    pub(crate) fn child(&self, slot: usize) -> NodeRef {
        NodeRef::from_bytes(&self.bytes[self.places + slot * NODE_REF_BYTES..][..NODE_REF_BYTES])
    }

    /// Returns the child with the range that contains `key`.
    #[inline]
    pub(crate) fn child_containing(&self, key: &[u8]) -> usize {
        self.position(1, key, true) - 1
    }

    /// Returns the child that has the highest keys before `key`.
    pub(crate) fn child_containing_before(&self, key: &[u8]) -> usize {
        self.position(1, key, false) - 1
    }
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]))
}
