//! # Node table: where each node of the index is stored
//!
//! The nodes of a published tree are identified by kind, index and stamp (`tree/snapshot_node.rs`).
//! The table maps them to their number and to their place in each of the two node files. A record
//! of an earlier node with the same index has another stamp and does not count.
//!
//! 32 bytes for each node, that is 0.7 to 1 byte for each extent.

use super::node_format::{NodePlace, StoredNodeRef};
use crate::extent::Extent;
use crate::tree::SnapshotNode;

/// Stored copies of a node.
#[derive(Clone, Copy, Debug, Default)]
struct NodeRecord {
    stamp: u64,
    /// Number of the content; 0 if the record is unused.
    number: u64,
    places: [NodePlace; 2],
}

/// Kind and index of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeIndex {
    pub(crate) is_leaf: bool,
    pub(crate) index: usize,
}

/// Records of all nodes, by kind and index.
#[derive(Debug, Default)]
pub(crate) struct NodeTable {
    leaves: Vec<NodeRecord>,
    inners: Vec<NodeRecord>,
}

fn index_of(node: &SnapshotNode<'_, Extent>) -> NodeIndex {
    NodeIndex { is_leaf: node.height() == 1, index: node.index() }
}

impl NodeTable {
    fn records_mut(&mut self, is_leaf: bool) -> &mut Vec<NodeRecord> {
        if is_leaf { &mut self.leaves } else { &mut self.inners }
    }

    fn record(&self, node: &SnapshotNode<'_, Extent>) -> Option<&NodeRecord> {
        let NodeIndex { is_leaf, index } = index_of(node);
        let records = if is_leaf { &self.leaves } else { &self.inners };
        records.get(index).filter(|record| record.number > 0 && record.stamp == node.stamp())
    }

    /// Returns the number of a node's content, if it has one.
    pub(crate) fn number(&self, node: &SnapshotNode<'_, Extent>) -> Option<u64> {
        self.record(node).map(|record| record.number)
    }

    /// Returns the copy of a node in the file of `chain`.
    pub(crate) fn stored(&self, node: &SnapshotNode<'_, Extent>, chain: usize) -> Option<StoredNodeRef> {
        let record = self.record(node)?;
        let place = record.places[chain];
        (place != NodePlace::NONE).then_some(StoredNodeRef { place, number: record.number })
    }

    /// Records the copy of a node in the file of `chain`. Returns the index of the record.
    pub(crate) fn set(
        &mut self,
        node: &SnapshotNode<'_, Extent>,
        chain: usize,
        stored: StoredNodeRef,
    ) -> NodeIndex {
        let at = index_of(node);
        self.set_at(at, node.stamp(), chain, stored);
        at
    }

    /// Like [`NodeTable::set`], for the node with this index and stamp.
    pub(crate) fn set_at(&mut self, at: NodeIndex, stamp: u64, chain: usize, stored: StoredNodeRef) {
        let records = self.records_mut(at.is_leaf);
        records.resize(records.len().max(at.index + 1), NodeRecord::default());
        let record = &mut records[at.index];
        if (record.stamp, record.number) != (stamp, stored.number) {
            *record = NodeRecord { stamp, number: stored.number, places: [NodePlace::NONE; 2] };
        }
        record.places[chain] = stored.place;
    }

    /// Forgets the copies of these nodes in the file of `chain`.
    pub(crate) fn forget(&mut self, nodes: &[NodeIndex], chain: usize) {
        for node in nodes {
            self.records_mut(node.is_leaf)[node.index].places[chain] = NodePlace::NONE;
        }
    }

    /// Forgets all copies in the file of `chain`.
    pub(crate) fn forget_all(&mut self, chain: usize) {
        let all = self.leaves.iter_mut().chain(&mut self.inners);
        all.for_each(|record| record.places[chain] = NodePlace::NONE);
    }

    /// Sets the places of all nodes in the file of `chain`. `stored` lists its nodes in ascending
    /// order of their numbers.
    pub(crate) fn set_by_number(&mut self, stored: &[StoredNodeRef], chain: usize) {
        for record in self.leaves.iter_mut().chain(&mut self.inners).filter(|record| record.number > 0) {
            let found = stored.binary_search_by_key(&record.number, |node| node.number);
            record.places[chain] = found.map_or(NodePlace::NONE, |at| stored[at].place);
        }
    }

    /// Returns the memory of the table.
    pub(crate) fn bytes(&self) -> u64 {
        ((self.leaves.capacity() + self.inners.capacity()) * size_of::<NodeRecord>()) as u64
    }
}
