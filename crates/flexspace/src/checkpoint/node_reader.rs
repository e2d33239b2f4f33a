//! # Node reader: reads and verifies the nodes of a checkpoint
//!
//! The inner nodes are read level by level from the root, then the leaves. Within a level the order
//! is that of the file, in large reads: a file that was written at once is read sequentially.
//!
//! All references are untrusted. A node must be within the file and match its checksum, which
//! covers its place and number. The nodes together must not be longer than the file, so that
//! references that share nodes end the reading early. Memory is allocated only for nodes that were
//! read.

use std::path::PathBuf;
use std::sync::Arc;

use sheaf_log::root::FORMAT;
use sheaf_log::types::StoreId;
use sheaf_platform::codec::u32_at;
use sheaf_platform::disk::{Disk, File, OpenMode, read_up_to_end};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

use super::NodeRoot;
use super::node_format::{
    FILE_HEADER_BYTES, NodeStarts, StoredNodeRef, decode_inner, decode_leaf, decode_serials, file_header,
    is_possible_len, node_checksum, stored_checksum,
};
use crate::extent::Extent;
use crate::tree::CAPACITY;

/// Maximum bytes of one read.
const READ_BYTES: u64 = 256 << 10;
/// Nodes with a smaller gap between them are read together.
const MAX_GAP: u64 = 16 << 10;

/// Reference to a node, and its length in the address space.
#[derive(Clone, Copy, Debug)]
struct NodeSpan {
    node: StoredNodeRef,
    len: u64,
}

/// Inner node.
#[derive(Debug)]
pub(crate) struct InnerBody {
    pub(crate) node: StoredNodeRef,
    pub(crate) starts: Vec<u64>,
}

/// Inner nodes of a checkpoint, and its leaves in the order of the address space.
#[derive(Debug)]
pub(crate) struct NodeLevels {
    /// Levels from the root down.
    pub(crate) inners: Vec<Vec<InnerBody>>,
    leaves: Vec<NodeSpan>,
}

impl NodeLevels {
    /// Returns the number of leaves.
    pub(crate) fn leaf_count(&self) -> usize {
        self.leaves.len()
    }

    /// Returns the references of all nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = StoredNodeRef> {
        let inners = self.inners.iter().flatten().map(|inner| inner.node);
        inners.chain(self.leaves.iter().map(|leaf| leaf.node))
    }
}

/// Reader of a node file.
#[derive(Debug)]
pub(crate) struct NodeReader {
    file: Arc<dyn File>,
    path: PathBuf,
    space: StoreId,
    number: u64,
    len: u64,
    /// Bytes of the nodes that were read or are being read.
    seen: u64,
}

impl NodeReader {
    /// Opens node file `number`.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if the file is missing or has another header, `UnsupportedVersion` if it
    /// has another format, and the errors of reading.
    pub(crate) fn open(disk: &dyn Disk, path: PathBuf, space: StoreId, number: u64) -> Result<NodeReader> {
        let damaged = |what| Error::corrupt(&path, 0, "header of a node file", what);
        let expected = FILE_HEADER_BYTES as u64;
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(damaged(Damage::Truncated { got: 0, expected }));
            }
            other => other.during(IoOp::Open, &path)?,
        };
        let mut header = [0; FILE_HEADER_BYTES];
        if let Some(got) = read_up_to_end(&*file, 0, &mut header).during(IoOp::Read, &path)? {
            return Err(damaged(Damage::Truncated { got, expected }));
        }
        let sum = crc32c::crc32c(&header[..FILE_HEADER_BYTES - 4]);
        if u32_at(&header, FILE_HEADER_BYTES - 4) != sum {
            let got = u32_at(&header, FILE_HEADER_BYTES - 4);
            return Err(damaged(Damage::BadChecksum { expected: sum, got }));
        }
        if u32_at(&header, 8) != FORMAT {
            let found = u32_at(&header, 8);
            return Err(Error::UnsupportedVersion { path, found, supported: FORMAT });
        }
        if header[..] != file_header(space, number)[..] {
            let got = sheaf_platform::codec::u64_at(&header, 28);
            let (expected, got) = (u128::from(number), u128::from(got));
            return Err(damaged(Damage::Foreign { field: "node file", expected, got }));
        }
        let len = file.opened_len().during(IoOp::Measure, &path)?;
        Ok(NodeReader { file, path, space, number, len, seen: FILE_HEADER_BYTES as u64 })
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.path
    }

    /// Returns the length of the file.
    pub(crate) fn file_len(&self) -> u64 {
        self.len
    }

    /// Returns the bytes of the nodes that were read.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.seen - FILE_HEADER_BYTES as u64
    }

    /// Checks the references of the leaves and counts their bytes, without reading them.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a reference is not within the file.
    pub(crate) fn admit_leaves(&mut self, levels: &NodeLevels) -> Result<()> {
        levels.leaves.iter().try_for_each(|leaf| self.admit(leaf.node))
    }

    fn damaged(&self, node: StoredNodeRef, what: Damage) -> Error {
        Error::corrupt(&self.path, node.place.offset(), "tree node", what)
    }

    /// Checks that a reference is within the file, and counts its bytes.
    fn admit(&mut self, node: StoredNodeRef) -> Result<()> {
        let (offset, len) = (node.place.offset(), node.place.len());
        self.seen += len;
        if !is_possible_len(len) || offset < FILE_HEADER_BYTES as u64 {
            return Err(self.damaged(node, Damage::bad_field("place of a node", "a node", len)));
        }
        if offset + len > self.len {
            return Err(self.damaged(node, Damage::Truncated { got: self.len, expected: offset + len }));
        }
        if self.seen > self.len {
            return Err(self.damaged(node, Damage::BadLength { got: self.seen, max: self.len }));
        }
        Ok(())
    }

    /// Reads nodes in the order of the file. Calls `each` with the position of each node in `nodes`
    /// and its bytes.
    fn read_nodes(
        &mut self,
        nodes: &[StoredNodeRef],
        mut each: impl FnMut(&NodeReader, usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        for node in nodes {
            self.admit(*node)?;
        }
        let mut order: Vec<usize> = (0..nodes.len()).collect();
        order.sort_unstable_by_key(|position| nodes[*position].place);
        let mut buffer = Vec::new();
        let mut next = 0;
        while next < order.len() {
            let start = nodes[order[next]].place.offset();
            let mut end = start;
            let mut upto = next;
            while let Some(place) = order.get(upto).map(|position| nodes[*position].place) {
                let place_end = place.offset() + place.len();
                if upto > next && (place.offset() > end + MAX_GAP || place_end > start + READ_BYTES) {
                    break;
                }
                end = end.max(place_end);
                upto += 1;
            }
            buffer.resize(usize::try_from(end - start).unwrap_or(usize::MAX), 0);
            self.file.read_at(start, &mut buffer).during(IoOp::Read, &self.path)?;
            for position in &order[next..upto] {
                let node = nodes[*position];
                let at = usize::try_from(node.place.offset() - start).unwrap_or(usize::MAX);
                let bytes = &buffer[at..][..usize::try_from(node.place.len()).unwrap_or(usize::MAX)];
                let (expected, got) = (
                    stored_checksum(bytes),
                    node_checksum(self.space, self.number, node.place.offset(), node.number, &bytes[4..]),
                );
                if expected != got {
                    return Err(self.damaged(node, Damage::BadChecksum { expected, got }));
                }
                each(self, *position, bytes)?;
            }
            next = upto;
        }
        Ok(())
    }

    /// Reads all inner nodes.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a node is damaged, and the errors of reading.
    pub(crate) fn read_inners(&mut self, root: &NodeRoot) -> Result<NodeLevels> {
        let mut level = vec![NodeSpan { node: root.root, len: root.len }];
        let mut inners = Vec::new();
        for _ in 1..root.height {
            let nodes: Vec<StoredNodeRef> = level.iter().map(|span| span.node).collect();
            let mut bodies: Vec<Option<(InnerBody, Vec<StoredNodeRef>)>> =
                nodes.iter().map(|_| None).collect();
            let (mut starts, mut children) = (NodeStarts::new(), Vec::new());
            self.read_nodes(&nodes, |reader, position, bytes| {
                decode_inner(bytes, level[position].len, &mut starts, &mut children)
                    .map_err(|what| reader.damaged(nodes[position], what))?;
                let body = InnerBody { node: nodes[position], starts: starts.as_slice().to_vec() };
                bodies[position] = Some((body, children.clone()));
                Ok(())
            })?;
            let mut below = Vec::new();
            let mut done = Vec::new();
            for (span, (body, children)) in level.iter().zip(bodies.into_iter().flatten()) {
                let ends = body.starts[1..].iter().copied().chain([span.len]);
                let lens = body.starts.iter().zip(ends).map(|(start, end)| end - start);
                below.extend(children.into_iter().zip(lens).map(|(node, len)| NodeSpan { node, len }));
                done.push(body);
            }
            inners.push(done);
            level = below;
        }
        Ok(NodeLevels { inners, leaves: level })
    }

    /// Reads the leaves. Calls `each` with the position of each leaf, its reference, starts and
    /// extents. The order is that of the file.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a leaf is damaged, and the errors of reading.
    pub(crate) fn read_leaves(
        &mut self,
        levels: &NodeLevels,
        mut each: impl FnMut(usize, StoredNodeRef, &[u64], &[Extent]),
    ) -> Result<()> {
        let nodes: Vec<StoredNodeRef> = levels.leaves.iter().map(|leaf| leaf.node).collect();
        let (mut starts, mut items) = (NodeStarts::new(), [Extent::HOLE; CAPACITY]);
        self.read_nodes(&nodes, |reader, position, bytes| {
            let NodeSpan { node, len } = levels.leaves[position];
            decode_leaf(bytes, len, &mut starts, &mut items).map_err(|what| reader.damaged(node, what))?;
            let starts = starts.as_slice();
            each(position, node, starts, &items[..starts.len()]);
            Ok(())
        })
    }

    /// Reads the serials of all segments. Calls `each` with the group and its serials.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a node is damaged, and the errors of reading.
    pub(crate) fn read_serials(
        &mut self,
        root: &NodeRoot,
        mut each: impl FnMut(usize, Vec<(u32, u64)>),
    ) -> Result<()> {
        let groups = root.groups.iter().enumerate().filter(|(_, group)| group.number > 0);
        let (numbers, nodes): (Vec<usize>, Vec<StoredNodeRef>) = groups.map(|(n, group)| (n, *group)).unzip();
        self.read_nodes(&nodes, |reader, position, bytes| {
            let group = u32::try_from(numbers[position]).unwrap_or(u32::MAX);
            let serials =
                decode_serials(bytes, group).map_err(|what| reader.damaged(nodes[position], what))?;
            each(numbers[position], serials);
            Ok(())
        })
    }
}
