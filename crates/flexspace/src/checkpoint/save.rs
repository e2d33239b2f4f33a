//! # Saving: the changed nodes of a version are written to a node file

use std::path::Path;

use sheaf_log::types::StoreId;
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::parallel::yield_if_due;

use super::block_set::BlockSet;
use super::node_format::{
    FILE_HEADER_BYTES, SERIALS_PER_NODE, StoredNodeRef, encode_inner, encode_leaf, encode_serials,
};
use super::node_table::{NodeIndex, NodeTable};
use super::node_writer::{NodeFile, NodeWriter};
use super::{ChainSlot, CheckpointState, NodeChain, NodeRoot, SLACK_BLOCKS, SerialGroup, node_path};
use crate::extent::Extent;
use crate::tree::{CAPACITY, SnapshotNode, TreeSnapshot};

/// Files that a checkpoint is written to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CheckpointTarget<'a> {
    pub(crate) disk: &'a dyn Disk,
    /// Directory of the space.
    pub(crate) dir: &'a Path,
    pub(crate) space: StoreId,
    /// Number of the checkpoint.
    pub(crate) number: u64,
    /// Bytes of a block of a node file.
    pub(crate) block: u64,
}

/// Nodes of a checkpoint that no head names yet.
#[derive(Debug)]
pub(crate) struct SavedNodes {
    /// Root, or `None` if the image has the list of extents.
    pub(crate) root: Option<NodeRoot>,
    /// Bytes of all nodes of the root, and of the nodes that were written.
    pub(crate) live: u64,
    pub(crate) written: u64,
    chain: usize,
    saved: Option<NodeChain>,
    /// Nodes with a new copy.
    stored: Vec<NodeIndex>,
    is_new_file: bool,
}

impl SavedNodes {
    /// Returns the number of the node file, 0 if there is none.
    pub(crate) fn file(&self) -> u64 {
        self.root.as_ref().map_or(0, |root| root.file)
    }
}

/// Nodes of a version, compared with the stored ones.
#[derive(Debug)]
struct NodeScan {
    nodes: u64,
    changed: u64,
    /// Blocks and bytes of the unchanged nodes.
    used: BlockSet,
    live: u64,
}

impl NodeScan {
    fn add(&mut self, table: &NodeTable, chain: usize, node: &SnapshotNode<'_, Extent>) {
        self.nodes += 1;
        match table.stored(node, chain) {
            Some(stored) => {
                self.used.add(stored.place);
                self.live += stored.place.len();
            }
            None => self.changed += 1,
        }
        if node.height() == 2 {
            yield_if_due();
        }
        node.children().for_each(|child| self.add(table, chain, &child));
    }
}

/// Writer of the changed nodes of a version.
#[derive(Debug)]
struct NodeSaver<'a> {
    table: &'a mut NodeTable,
    next_number: &'a mut u64,
    writer: NodeWriter<'a>,
    chain: usize,
    stored: &'a mut Vec<NodeIndex>,
    node: Vec<u8>,
}

impl NodeSaver<'_> {
    fn take_number(&mut self) -> u64 {
        *self.next_number = (*self.next_number).max(1) + 1;
        *self.next_number - 1
    }

    /// Returns the stored copy of a node. Writes the node, below it first, if it has changed.
    fn save(&mut self, node: &SnapshotNode<'_, Extent>) -> Result<StoredNodeRef> {
        if let Some(stored) = self.table.stored(node, self.chain) {
            return Ok(stored);
        }
        if node.height() == 1 {
            encode_leaf(node, &mut self.node);
        } else {
            yield_if_due();
            let mut children = [StoredNodeRef::default(); CAPACITY];
            for (child, stored) in node.children().zip(&mut children) {
                *stored = self.save(&child)?;
            }
            let starts = node.starts();
            encode_inner(starts, &children[..starts.len()], &mut self.node);
        }
        let number = self.table.number(node).unwrap_or_else(|| self.take_number());
        let stored = self.writer.put(number, &mut self.node)?;
        self.stored.push(self.table.set(node, self.chain, stored));
        Ok(stored)
    }

    /// Writes the groups of serials that differ from those of the file's last root.
    fn save_serials(&mut self, serials: &[(u32, u64)], before: &[SerialGroup]) -> Result<Vec<SerialGroup>> {
        let mut groups = Vec::new();
        for serials in serials.chunk_by(|a, b| a.0 / SERIALS_PER_NODE == b.0 / SERIALS_PER_NODE) {
            let number = usize::try_from(serials[0].0 / SERIALS_PER_NODE).unwrap_or(usize::MAX);
            groups.resize_with(number, SerialGroup::default);
            let same = before.get(number).filter(|group| group.serials == serials);
            groups.push(match same {
                Some(group) => {
                    self.writer.used.add(group.stored.place);
                    group.clone()
                }
                None => {
                    encode_serials(serials, &mut self.node);
                    let number = self.take_number();
                    let stored = self.writer.put(number, &mut self.node)?;
                    SerialGroup { serials: serials.to_vec(), stored }
                }
            });
        }
        Ok(groups)
    }
}

impl CheckpointState {
    /// Returns the state of a checkpoint with a list of extents in its image.
    pub(crate) fn save_list(&self) -> SavedNodes {
        let chain = 1 - self.newest;
        SavedNodes {
            root: None,
            live: 0,
            written: 0,
            chain,
            saved: None,
            stored: Vec::new(),
            is_new_file: false,
        }
    }

    /// Writes the nodes of `tree` that the older node file does not have, and syncs the file. The
    /// caller must then call [`CheckpointState::commit`] or [`CheckpointState::abandon`].
    ///
    /// # Errors
    ///
    /// Returns the errors of writing. Nothing is stored then.
    pub(crate) fn save(
        &mut self,
        target: &CheckpointTarget<'_>,
        tree: &TreeSnapshot<Extent>,
        serials: &[(u32, u64)],
    ) -> Result<SavedNodes> {
        let chain = 1 - self.newest;
        self.read_chain(target, chain);
        let mut scan = NodeScan { nodes: 0, changed: 0, used: BlockSet::new(target.block), live: 0 };
        scan.add(&self.table, chain, &tree.root_node());
        if let Some(file) = self.reusable_file(target, chain, &scan) {
            return self.save_to(target, file, false, tree, serials, scan);
        }
        self.abandon_chain(chain);
        let path = node_path(target.dir, target.number);
        let file = target.disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?;
        let file = NodeFile { file, path, space: target.space, number: target.number };
        let scan = NodeScan { used: BlockSet::new(target.block), live: 0, ..scan };
        self.save_to(target, file, true, tree, serials, scan)
    }

    /// Returns the node file of `chain`, unless a new one is better.
    fn reusable_file(
        &self,
        target: &CheckpointTarget<'_>,
        chain: usize,
        scan: &NodeScan,
    ) -> Option<NodeFile> {
        let ChainSlot::Ready(ready) = &self.chains[chain] else { return None };
        let most = 2 * ready.live + SLACK_BLOCKS * target.block;
        if scan.changed * 4 >= scan.nodes * 3 || ready.len > most {
            return None;
        }
        let path = node_path(target.dir, ready.file);
        let file = target.disk.open(&path, OpenMode::ReadWrite).ok()?;
        Some(NodeFile { file, path, space: target.space, number: ready.file })
    }

    fn save_to(
        &mut self,
        target: &CheckpointTarget<'_>,
        file: NodeFile,
        is_new_file: bool,
        tree: &TreeSnapshot<Extent>,
        serials: &[(u32, u64)],
        scan: NodeScan,
    ) -> Result<SavedNodes> {
        let chain = 1 - self.newest;
        let before = match &self.chains[chain] {
            ChainSlot::Ready(ready) => NodeChain::clone(ready),
            _ => NodeChain {
                file: file.number,
                used: BlockSet::new(target.block),
                len: FILE_HEADER_BYTES as u64,
                live: 0,
                groups: Vec::new(),
            },
        };
        let mut saved = self.save_list();
        saved.is_new_file = is_new_file;
        let written = self.write_nodes(&file, &before, tree, serials, (scan, &mut saved));
        let synced = written.and_then(|root| file.file.sync().during(IoOp::Sync, &file.path).map(|()| root));
        match synced {
            Ok(root) => {
                saved.root = Some(root);
                Ok(saved)
            }
            Err(error) => {
                self.abandon(target, &saved);
                if !matches!(error, Error::NoSpace { .. } | Error::FileSizeLimit { .. }) {
                    // The content of the file is unknown now.
                    self.abandon_chain(chain);
                }
                Err(error)
            }
        }
    }

    /// Writes nodes and serials. Returns the root.
    fn write_nodes(
        &mut self,
        file: &NodeFile,
        before: &NodeChain,
        tree: &TreeSnapshot<Extent>,
        serials: &[(u32, u64)],
        (scan, saved): (NodeScan, &mut SavedNodes),
    ) -> Result<NodeRoot> {
        let writer = NodeWriter::new(file, &before.used, scan.used);
        if saved.is_new_file {
            writer.write_header()?;
        }
        let mut saver = NodeSaver {
            table: &mut self.table,
            next_number: &mut self.next_number,
            writer,
            chain: saved.chain,
            stored: &mut saved.stored,
            node: Vec::new(),
        };
        let top = tree.root_node();
        let root = saver.save(&top)?;
        let groups = saver.save_serials(serials, &before.groups)?;
        saver.writer.flush()?;
        let NodeWriter { used, written, end, .. } = saver.writer;
        let unchanged = groups.iter().zip(&before.groups).filter(|(a, b)| a.stored == b.stored);
        saved.live = scan.live + written + unchanged.map(|(group, _)| group.stored.place.len()).sum::<u64>();
        saved.written = written;
        let stored = groups.iter().map(|group| group.stored).collect();
        saved.saved =
            Some(NodeChain { file: file.number, used, len: before.len.max(end), live: saved.live, groups });
        Ok(NodeRoot {
            file: file.number,
            len: tree.len(),
            height: top.height(),
            root,
            next_number: self.next_number,
            groups: stored,
        })
    }

    /// Makes saved nodes the newest ones. The heads must name their root, in memory at least, and
    /// must not name the former root of the file.
    pub(crate) fn commit(&mut self, saved: SavedNodes) {
        if saved.saved.is_none() {
            self.abandon_chain(saved.chain);
        }
        self.chains[saved.chain] =
            saved.saved.map_or(ChainSlot::Absent, |chain| ChainSlot::Ready(Box::new(chain)));
        self.newest = saved.chain;
    }

    /// Forgets saved nodes of a checkpoint that failed later.
    pub(crate) fn abandon(&mut self, target: &CheckpointTarget<'_>, saved: &SavedNodes) {
        if saved.is_new_file {
            self.abandon_chain(saved.chain);
            // No head names the file. If the removal fails, the next opening deletes it.
            let _ = target.disk.remove(&node_path(target.dir, target.number));
        } else {
            self.table.forget(&saved.stored, saved.chain);
        }
    }
}
