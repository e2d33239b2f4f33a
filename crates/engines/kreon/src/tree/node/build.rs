//! # Node construction: the items that fit into a node, and its bytes

use sheaf_engine::keys::{HEAD, common_prefix_len, head};
use sheaf_log::types::Seq;

use super::{
    BLOB_ID_BYTES, HAS_BLOB, HEADER, INLINE, INNER_ENTRY, LEAF_ENTRY, LeafEntry, NODE_KIND, NodeRef,
};

/// A key with its content, to be written into a node.
pub(crate) trait NodeItem {
    fn key(&self) -> &[u8];
    fn write(&self, builder: &mut NodeBuilder);
    /// Returns the number of bytes behind the rest of the key.
    fn extra(&self) -> usize;
}

/// A leaf entry with its key.
#[derive(Clone, Debug)]
pub(crate) struct LeafPair<'k> {
    pub(crate) key: &'k [u8],
    pub(crate) entry: LeafEntry,
    /// Upper bound of the number of its commit.
    pub(crate) max_seq: Seq,
    /// The value, if the entry has a copy of it.
    pub(crate) value: &'k [u8],
}

impl NodeItem for LeafPair<'_> {
    fn key(&self) -> &[u8] {
        self.key
    }
    fn write(&self, builder: &mut NodeBuilder) {
        builder.fingerprints.push(self.entry.fingerprint);
        builder.places.extend_from_slice(&self.entry.location);
        builder.flags = self.entry.flags;
        if self.entry.is_blob() {
            builder.extra.extend_from_slice(&self.entry.blob_id.to_le_bytes());
        } else if self.entry.is_inline() {
            builder.extra.extend_from_slice(self.value);
            builder.extra.push(u8::try_from(self.value.len()).unwrap_or(u8::MAX));
        }
    }
    fn extra(&self) -> usize {
        match self.entry.flags & (HAS_BLOB | INLINE) {
            0 => 0,
            HAS_BLOB => BLOB_ID_BYTES,
            _ => self.value.len() + 1,
        }
    }
}

/// A child with the key at which it begins.
#[derive(Clone, Debug)]
pub(crate) struct Child {
    pub(crate) key: Vec<u8>,
    pub(crate) child: NodeRef,
}

impl NodeItem for Child {
    fn key(&self) -> &[u8] {
        &self.key
    }
    fn write(&self, builder: &mut NodeBuilder) {
        builder.places.extend_from_slice(&self.child.to_bytes());
    }
    fn extra(&self) -> usize {
        0
    }
}

/// Columns of a node that is being built.
#[derive(Default)]
pub(crate) struct NodeBuilder {
    fingerprints: Vec<u8>,
    places: Vec<u8>,
    flags: u8,
    extra: Vec<u8>,
}

fn entry_shape(level: u8) -> (usize, usize) {
    // Bytes of an entry, and the first entry with a key of its own (I3).
    if level == 0 { (LEAF_ENTRY, 0) } else { (INNER_ENTRY, 1) }
}

/// Returns the number of `items`, from the start, that fit into a node of `target` bytes, and the
/// bytes of that node. `most` is the size of a page (I2).
pub(crate) fn fit_items<I: NodeItem>(items: &[I], level: u8, target: usize, most: usize) -> (usize, usize) {
    let (fixed, first) = entry_shape(level);
    let least = 1 + first;
    let mut shared = items.get(first).map_or(0, |item| item.key().len());
    let (mut rests, mut size) = (0, HEADER + fixed);
    let behind = |item: &I, shared: usize| (item.key().len() - shared).saturating_sub(HEAD) + item.extra();
    let mut count = items.len();
    for number in 0..items.len() {
        if number >= first {
            let now = common_prefix_len(items[first].key(), items[number].key()).min(shared);
            if now == shared {
                rests += behind(&items[number], shared);
            } else {
                shared = now;
                rests = items[first..=number].iter().map(|item| behind(item, shared)).sum();
            }
        }
        let next = HEADER + shared + (number + 1) * fixed + rests;
        if number >= least && (next > most || next > target) {
            count = number;
            break;
        }
        size = next;
    }
    assert!(count <= least || size <= most, "node (I2): a node of several entries is one page");
    (count, size)
}

/// Returns the bytes of a node of all `items`, in whole pages of `page` bytes, and the number of
/// bytes used.
pub(crate) fn build_node<I: NodeItem>(
    items: &[I],
    level: u8,
    stamp: u64,
    newest: Seq,
    page: usize,
) -> (Vec<u8>, usize) {
    let (_, first) = entry_shape(level);
    let shared = match (items.get(first), items.last()) {
        (Some(low), Some(high)) => common_prefix_len(low.key(), high.key()),
        _ => 0,
    };
    let mut builder = NodeBuilder::default();
    let (mut heads, mut tags) = (Vec::with_capacity(items.len() * HEAD), Vec::with_capacity(items.len()));
    let (mut ends, mut rests) = (Vec::with_capacity(items.len() * 2), Vec::new());
    for (number, item) in items.iter().enumerate() {
        let suffix = if number < first { &[] } else { &item.key()[shared..] };
        item.write(&mut builder);
        heads.extend_from_slice(&head(suffix).to_be_bytes());
        tags.push(builder.flags | u8::try_from(suffix.len().min(HEAD)).unwrap_or(0));
        rests.extend_from_slice(suffix.get(HEAD..).unwrap_or_default());
        rests.append(&mut builder.extra);
        ends.extend_from_slice(&u16::try_from(rests.len()).unwrap_or(u16::MAX).to_le_bytes());
    }
    assert!(
        first == 0 || tags.first().is_none_or(|tag| *tag == 0),
        "node (I3): the first child has no separator"
    );
    let prefix = items.get(first).map_or(&[][..], |item| &item.key()[..shared]);
    let mut bytes = Vec::with_capacity(page);
    bytes.extend_from_slice(&[NODE_KIND, level]);
    bytes.extend_from_slice(&u16::try_from(items.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(shared).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(&[0; 2]);
    bytes.extend_from_slice(&stamp.to_le_bytes());
    bytes.extend_from_slice(&newest.0.to_le_bytes());
    for column in [prefix, &builder.fingerprints, &heads, &builder.places, &tags, &ends, &rests] {
        bytes.extend_from_slice(column);
    }
    let used = bytes.len();
    bytes.resize(used.next_multiple_of(page), 0);
    (bytes, used)
}
