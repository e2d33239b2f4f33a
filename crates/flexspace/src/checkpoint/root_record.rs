//! # Root record: the root of an index in a node file

use sheaf_engine::contract::ImageSource;
use sheaf_platform::codec::{COUNT_LIMIT, FieldReader, FieldWriter};
use sheaf_platform::error::{Damage, Expected, Result};

use super::node_format::{SERIALS_PER_NODE, StoredNodeRef};
use crate::tree::MAX_LEN;

/// Maximum height of a stored index. Nodes have 16 children or more on average, so that an index of
/// 2^28 nodes has fewer levels. Changes of a loaded index add levels only to full roots.
pub(crate) const MAX_HEIGHT: usize = 12;
/// Bytes of the record without its groups.
const FIXED_BYTES: usize = 52;
const GROUP_BYTES: usize = 16;

/// Root of the index in a node file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRoot {
    /// Number of the checkpoint that created the node file.
    pub(crate) file: u64,
    /// Length of the address space.
    pub(crate) len: u64,
    /// Number of levels, at least 1.
    pub(crate) height: usize,
    pub(crate) root: StoredNodeRef,
    /// No node has this number or a higher one.
    pub(crate) next_number: u64,
    /// Serials of the segments, in groups of [`SERIALS_PER_NODE`]; number 0 if no segment of a
    /// group is used.
    pub(crate) groups: Vec<StoredNodeRef>,
}

impl NodeRoot {
    pub(crate) fn encode(&self, w: &mut FieldWriter) {
        w.u64(self.file);
        w.u64(self.len);
        w.u64(self.height as u64);
        self.root.encode(w);
        w.u64(self.next_number);
        w.list(&self.groups, |w, group| group.encode(w));
    }

    /// Reads a record. Reads a group only if the image has its bytes.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a value is not possible, and the errors of reading.
    pub(crate) fn read(image: &mut dyn ImageSource) -> Result<NodeRoot> {
        let mut fixed = [0; FIXED_BYTES];
        image.fill(&mut fixed)?;
        let damaged = |image: &dyn ImageSource, what| match what {
            Damage::BadField { field, expected, got } => image.invalid_field(field, expected, got),
            _ => image.invalid_field("root of the index", Expected::from(FIXED_BYTES as u64), 0),
        };
        let (mut root, groups) = NodeRoot::decode(&fixed).map_err(|what| damaged(image, what))?;
        for _ in 0..groups {
            let mut group = [0; GROUP_BYTES];
            image.fill(&mut group)?;
            let group = StoredNodeRef::decode(&mut FieldReader::new(&group));
            root.groups.push(group.map_err(|what| damaged(image, what))?);
        }
        Ok(root)
    }

    /// Decodes the fixed part. Returns the record without groups, and their number.
    pub(super) fn decode(fixed: &[u8]) -> Result<(NodeRoot, u32), Damage> {
        let mut r = FieldReader::new(fixed);
        let root = NodeRoot {
            file: r.counter("node file")?,
            len: r.u64()?,
            height: usize::try_from(r.u64()?).unwrap_or(usize::MAX),
            root: StoredNodeRef::decode(&mut r)?,
            next_number: r.counter("next node number")?,
            groups: Vec::new(),
        };
        let groups = r.u32()?;
        let most = u64::from(u32::MAX / SERIALS_PER_NODE);
        let is_possible = [
            ("node file", root.file, 1..=COUNT_LIMIT),
            ("length of the space", root.len, 1..=MAX_LEN),
            ("height of the index", root.height as u64, 1..=MAX_HEIGHT as u64),
            ("groups of segments", u64::from(groups), 0..=most),
        ];
        for (field, value, possible) in is_possible {
            if !possible.contains(&value) {
                return Err(Damage::bad_field(field, possible, value));
            }
        }
        Ok((root, groups))
    }
}
