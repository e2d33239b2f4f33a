//! # Format of a node file: header, nodes and their places
//!
//! docs/format/flexspace.md specifies the layouts. A node is named by its place and its *number*.
//! The checksum of a node covers space, file, offset and number. Bytes of an earlier node at the
//! same place therefore fail it.

use sheaf_log::root::FORMAT;
use sheaf_log::types::StoreId;
use sheaf_platform::codec::{FieldReader, FieldWriter, put_varint, take_varint, u32_at, u64_at};
use sheaf_platform::error::Damage;

use crate::extent::Extent;
use crate::format::{VALID_EXTENT, max_len};
use crate::tree::{CAPACITY, SnapshotNode};

const MAGIC: &[u8; 8] = b"SHEAFTRE";
/// Bytes of the header of a node file.
pub(crate) const FILE_HEADER_BYTES: usize = 40;
/// Bytes of a node before its content: checksum 4, kind 1, count 1.
const NODE_HEADER_BYTES: usize = 6;
const LEAF: u8 = 1;
const INNER: u8 = 2;
const SERIALS: u8 = 3;
/// Maximum bytes of a node: a header, and in an inner node 64 children of 16 bytes and starts of at
/// most nine bytes. A group of serials takes up to 256 entries of eleven bytes.
pub(crate) const MAX_NODE_BYTES: u64 = 4 << 10;
/// Segments in a node of serials.
pub(crate) const SERIALS_PER_NODE: u32 = 256;
const LEN_BITS: u32 = 16;

/// Place of a node in a node file: 48 bits of offset, 16 bits of length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodePlace(u64);

impl NodePlace {
    /// No place. Offset 0 belongs to the header of the file.
    pub(crate) const NONE: NodePlace = NodePlace(0);

    pub(crate) fn new(offset: u64, len: u64) -> NodePlace {
        assert!(offset < 1 << (64 - LEN_BITS) && len <= MAX_NODE_BYTES, "a node fits its place");
        NodePlace(offset << LEN_BITS | len)
    }

    pub(crate) fn offset(self) -> u64 {
        self.0 >> LEN_BITS
    }

    pub(crate) fn len(self) -> u64 {
        self.0 & ((1 << LEN_BITS) - 1)
    }
}

/// Reference to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredNodeRef {
    pub(crate) place: NodePlace,
    /// Number of the content. The same content has the same number in all node files.
    pub(crate) number: u64,
}

impl StoredNodeRef {
    pub(crate) fn encode(self, w: &mut FieldWriter) {
        w.u64(self.place.0);
        w.u64(self.number);
    }

    pub(crate) fn decode(r: &mut FieldReader<'_>) -> Result<StoredNodeRef, Damage> {
        Ok(StoredNodeRef { place: NodePlace(r.u64()?), number: r.counter("node number")? })
    }
}

/// Returns the header of node file `file`.
pub(crate) fn file_header(space: StoreId, file: u64) -> Vec<u8> {
    let mut w = FieldWriter(MAGIC.to_vec());
    w.u32(FORMAT);
    w.u128(space.0);
    w.u64(file);
    let sum = crc32c::crc32c(&w.0);
    w.u32(sum);
    w.0
}

/// Returns the checksum of a node, of its bytes behind the checksum.
pub(crate) fn node_checksum(space: StoreId, file: u64, offset: u64, number: u64, rest: &[u8]) -> u32 {
    let mut salt = [0; 40];
    salt[..16].copy_from_slice(&space.0.to_le_bytes());
    for (field, value) in salt[16..].chunks_exact_mut(8).zip([file, offset, number]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    crc32c::crc32c_append(crc32c::crc32c(&salt), rest)
}

/// Starts a node in `out`, with four bytes for its checksum.
fn begin(out: &mut Vec<u8>, kind: u8, count: usize) {
    out.clear();
    out.extend_from_slice(&[0, 0, 0, 0, kind, count.to_le_bytes()[0]]);
}

/// Appends the distances of the starts. The first start is 0.
fn put_starts(out: &mut Vec<u8>, starts: &[u64]) {
    starts.windows(2).for_each(|pair| put_varint(out, pair[1] - pair[0]));
}

/// Encodes a leaf.
pub(crate) fn encode_leaf(node: &SnapshotNode<'_, Extent>, out: &mut Vec<u8>) {
    begin(out, LEAF, node.items().len());
    node.items().iter().for_each(|item| out.extend_from_slice(&item.bits().to_le_bytes()));
    put_starts(out, node.starts());
}

/// Encodes an inner node.
pub(crate) fn encode_inner(starts: &[u64], children: &[StoredNodeRef], out: &mut Vec<u8>) {
    begin(out, INNER, children.len());
    for child in children {
        out.extend_from_slice(&child.place.0.to_le_bytes());
        out.extend_from_slice(&child.number.to_le_bytes());
    }
    put_starts(out, starts);
}

/// Encodes the serials of one group of segments. The count is stored less one.
pub(crate) fn encode_serials(serials: &[(u32, u64)], out: &mut Vec<u8>) {
    assert!((1..=SERIALS_PER_NODE as usize).contains(&serials.len()), "a group has used segments");
    begin(out, SERIALS, serials.len() - 1);
    for (segment, serial) in serials {
        out.push((segment % SERIALS_PER_NODE).to_le_bytes()[0]);
        put_varint(out, *serial);
    }
}

/// Starts of a decoded node.
#[derive(Debug)]
pub(crate) struct NodeStarts {
    starts: [u64; CAPACITY],
    count: usize,
}

impl NodeStarts {
    pub(crate) fn new() -> NodeStarts {
        NodeStarts { starts: [0; CAPACITY], count: 0 }
    }

    pub(crate) fn as_slice(&self) -> &[u64] {
        &self.starts[..self.count]
    }

    /// Decodes the starts of a node of `len` bytes from `bytes`, which must end with them. Calls
    /// `check` with the slot and length of each entry.
    fn decode(
        &mut self,
        bytes: &[u8],
        count: usize,
        len: u64,
        check: impl Fn(usize, u64) -> Result<(), Damage>,
    ) -> Result<(), Damage> {
        let (mut at, mut start) = (0, 0);
        self.count = count;
        for slot in 0..count {
            self.starts[slot] = start;
            let left = len - start;
            let entry = if slot + 1 == count { left } else { take_varint(bytes, &mut at)? };
            // An entry is not empty, and only the last one reaches the end.
            if entry == 0 || entry > left || (entry == left && slot + 1 < count) {
                return Err(Damage::bad_field("length in a node", 1..=left, entry));
            }
            check(slot, entry)?;
            start += entry;
        }
        if at != bytes.len() {
            return Err(Damage::bad_field("trailing bytes", 0, (bytes.len() - at) as u64));
        }
        Ok(())
    }
}

/// Returns the count of entries and the rest of a node of kind `kind`.
fn header(node: &[u8], kind: u8) -> Result<(usize, &[u8]), Damage> {
    let short = || Damage::BadLength { got: NODE_HEADER_BYTES as u64, max: node.len() as u64 };
    let rest = node.get(NODE_HEADER_BYTES..).ok_or_else(short)?;
    if node[4] != kind {
        return Err(Damage::bad_field("kind of a node", u64::from(kind), u64::from(node[4])));
    }
    Ok((usize::from(node[5]), rest))
}

/// Splits off `count` fields of `bytes` bytes each. `count` is from 1 to 64.
fn fields(rest: &[u8], count: usize, bytes: usize) -> Result<(&[u8], &[u8]), Damage> {
    if !(1..=CAPACITY).contains(&count) {
        return Err(Damage::bad_field("entries of a node", 1..=CAPACITY as u64, count as u64));
    }
    let short = || Damage::BadLength { got: (count * bytes) as u64, max: rest.len() as u64 };
    rest.split_at_checked(count * bytes).ok_or_else(short)
}

/// Decodes a leaf of `len` bytes of the space.
pub(crate) fn decode_leaf(
    node: &[u8],
    len: u64,
    starts: &mut NodeStarts,
    items: &mut [Extent; CAPACITY],
) -> Result<(), Damage> {
    let (count, rest) = header(node, LEAF)?;
    let (extents, rest) = fields(rest, count, 8)?;
    for (item, bytes) in items.iter_mut().zip(extents.chunks_exact(8)) {
        let bits = u64_at(bytes, 0);
        *item = Extent::from_bits(bits).ok_or_else(|| Damage::bad_field("extent", VALID_EXTENT, bits))?;
    }
    starts.decode(rest, count, len, |slot, entry| {
        let most = max_len(items[slot]);
        if entry <= most { Ok(()) } else { Err(Damage::bad_field("extent length", 1..=most, entry)) }
    })
}

/// Decodes an inner node of `len` bytes of the space.
pub(crate) fn decode_inner(
    node: &[u8],
    len: u64,
    starts: &mut NodeStarts,
    children: &mut Vec<StoredNodeRef>,
) -> Result<(), Damage> {
    let (count, rest) = header(node, INNER)?;
    let (refs, rest) = fields(rest, count, 16)?;
    children.clear();
    let mut r = FieldReader::new(refs);
    for _ in 0..count {
        children.push(StoredNodeRef::decode(&mut r)?);
    }
    starts.decode(rest, count, len, |_, _| Ok(()))
}

/// Decodes the serials of group `group` of segments.
pub(crate) fn decode_serials(node: &[u8], group: u32) -> Result<Vec<(u32, u64)>, Damage> {
    let (count, rest) = header(node, SERIALS)?;
    let (mut at, mut serials) = (0, Vec::new());
    for _ in 0..=count {
        let Some(place) = rest.get(at) else {
            return Err(Damage::BadLength { got: at as u64 + 1, max: rest.len() as u64 });
        };
        at += 1;
        let segment = group * SERIALS_PER_NODE + u32::from(*place);
        serials.push((segment, take_varint(rest, &mut at)?));
    }
    if at != rest.len() || !serials.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(Damage::bad_field("serials", "ascending segments", at as u64));
    }
    Ok(serials)
}

/// Returns the stored checksum of a node.
pub(crate) fn stored_checksum(node: &[u8]) -> u32 {
    u32_at(node, 0)
}

/// Returns true if the length of a node is possible.
pub(crate) fn is_possible_len(len: u64) -> bool {
    (NODE_HEADER_BYTES as u64..=MAX_NODE_BYTES).contains(&len)
}
