//! # Checkpoint: the index as nodes in two node files
//!
//! A checkpoint writes the nodes of the index that changed since the checkpoint before the last
//! one, and their ancestors (FlexSpace paper, section 4.2). Checkpoints use two node files in turn,
//! so that the two recovery points share no byte: damage to one file leaves the other one readable.
//!
//! ```text
//!  tree/7.nodes   root of checkpoint 9   <── tree/9.img    older recovery point
//!  tree/8.nodes   root of checkpoint 10  <── tree/10.img   newest recovery point
//!  checkpoint 11  writes changed nodes into free blocks of 7.nodes, then 11.img, then both heads
//! ```
//!
//! ## Crash
//!
//! A block is written only if the root that the checkpoint replaces has no node in it. The heads
//! may still name that root. Blocks of superseded nodes are free once both heads name the next root
//! of the file. A crash in between leaves the old root, and the blocks of the attempt are free.
//!
//! A failed attempt is forgotten. After a failed sync the file is not used again, and the next
//! checkpoint in its turn writes a new one.
//!
//! ## Costs
//!
//! A walk over all nodes, without their entries. If three fourths of the nodes changed, or if the
//! file is longer than twice its nodes and 16 blocks, all nodes are written to a new file. A node
//! file therefore exceeds this limit by at most the nodes that one checkpoint changes. A small
//! index is written as a list of extents in the image.

mod block_set;
pub(crate) mod node_format;
mod node_reader;
mod node_table;
mod node_writer;
mod root_record;
mod save;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use sheaf_engine::checkpoint_file::ImageReader;
use sheaf_log::types::{KeyspaceId, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::error::{Damage, Error, Result};

use crate::extent::Extent;
use crate::format::{self, RecoveryPoint, node_file_name};
use crate::tree::{ShiftTree, TreeBuilder};
use block_set::BlockSet;
use node_format::StoredNodeRef;
use node_reader::{NodeLevels, NodeReader};
use node_table::{NodeIndex, NodeTable};
pub(crate) use root_record::{MAX_HEIGHT, NodeRoot};
pub(crate) use save::{CheckpointTarget, SavedNodes};

/// Blocks that a node file may have beyond twice its nodes before it is written anew.
const SLACK_BLOCKS: u64 = 16;

/// Serials of a group of segments, and their stored copy.
#[derive(Clone, Debug, Default)]
struct SerialGroup {
    serials: Vec<(u32, u64)>,
    stored: StoredNodeRef,
}

/// A node file and its newest root.
#[derive(Clone, Debug)]
struct NodeChain {
    /// Number of the checkpoint that created the file.
    file: u64,
    /// Blocks of the root's nodes.
    used: BlockSet,
    /// Length of the file, and of the root's nodes.
    len: u64,
    live: u64,
    groups: Vec<SerialGroup>,
}

/// One of the two node files.
#[derive(Debug, Default)]
enum ChainSlot {
    /// The next checkpoint in this turn writes a new file, or none for a small index.
    #[default]
    Absent,
    /// The file has the root of this checkpoint, from an earlier opening.
    Unread { checkpoint: u64, file: u64 },
    /// Boxed, because most small spaces have no node file.
    Ready(Box<NodeChain>),
}

/// Stored nodes of both recovery points.
#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    chains: [ChainSlot; 2],
    /// Index of the chain with the newest checkpoint.
    newest: usize,
    table: NodeTable,
    /// No node has this number or a higher one. 0 only before the first node.
    next_number: u64,
}

/// Nodes that were read, before their leaves.
fn open_nodes(
    disk: &dyn Disk,
    dir: &Path,
    space: StoreId,
    root: &NodeRoot,
) -> Result<(NodeReader, NodeLevels)> {
    let mut reader = NodeReader::open(disk, dir.join(node_file_name(root.file)), space, root.file)?;
    let levels = reader.read_inners(root)?;
    Ok((reader, levels))
}

/// Returns an error if a checkpoint does not have the number of entries that its image states.
fn check_entries(reader: &NodeReader, expected: u64, got: u64) -> Result<()> {
    if expected == got {
        return Ok(());
    }
    Err(Error::corrupt(reader.path(), 0, "tree node", Damage::bad_field("entries", expected, got)))
}

/// Reads and verifies all nodes of a checkpoint. Returns their bytes.
///
/// # Errors
///
/// Returns `Corrupt` if a node is damaged, and the errors of reading.
pub(crate) fn verify_nodes(
    disk: &dyn Disk,
    dir: &Path,
    space: StoreId,
    root: &NodeRoot,
    entries: u64,
) -> Result<u64> {
    let (mut reader, levels) = open_nodes(disk, dir, space, root)?;
    let mut found = 0;
    reader.read_leaves(&levels, |_, _, starts, _| found += starts.len() as u64)?;
    reader.read_serials(root, |_, _| {})?;
    check_entries(&reader, entries, found)?;
    Ok(reader.read_bytes())
}

impl NodeChain {
    /// Returns the chain with these nodes as its newest root.
    fn of(reader: &NodeReader, levels: &NodeLevels, groups: Vec<SerialGroup>, file: u64, block: u64) -> Self {
        let mut used = BlockSet::new(block);
        let serials = groups.iter().map(|group| group.stored).filter(|stored| stored.number > 0);
        levels.nodes().chain(serials).for_each(|node| used.add(node.place));
        NodeChain { file, used, len: reader.file_len(), live: reader.read_bytes(), groups }
    }
}

/// Reads the serials of a checkpoint.
fn read_groups(reader: &mut NodeReader, root: &NodeRoot) -> Result<Vec<SerialGroup>> {
    let mut groups: Vec<SerialGroup> =
        root.groups.iter().map(|stored| SerialGroup { serials: Vec::new(), stored: *stored }).collect();
    reader.read_serials(root, |number, serials| groups[number].serials = serials)?;
    Ok(groups)
}

/// Index of a loaded checkpoint.
#[derive(Debug)]
pub(crate) struct LoadedNodes {
    pub(crate) tree: ShiftTree<Extent>,
    pub(crate) state: CheckpointState,
    pub(crate) serials: Vec<(u32, u64)>,
    /// Bytes of the nodes.
    pub(crate) bytes: u64,
}

impl CheckpointState {
    /// Loads all nodes of a checkpoint, which becomes the newest one.
    ///
    /// All nodes are loaded at once: the accounting of live bytes walks all extents at the opening,
    /// and readers take no lock and do no I/O for the index.
    ///
    /// # Errors
    ///
    /// Returns `Corrupt` if a node is damaged, and the errors of reading.
    pub(crate) fn load(
        disk: &dyn Disk,
        dir: &Path,
        space: StoreId,
        root: &NodeRoot,
        (entries, block): (u64, u64),
    ) -> Result<LoadedNodes> {
        let (mut reader, levels) = open_nodes(disk, dir, space, root)?;
        let mut builder = TreeBuilder::new(Extent::HOLE, levels.leaf_count());
        let mut state = CheckpointState { next_number: root.next_number, ..CheckpointState::default() };
        reader.read_leaves(&levels, |position, node, starts, items| {
            let index = builder.leaf(position, starts, items);
            state.table.set_at(NodeIndex { is_leaf: true, index }, 0, 0, node);
        })?;
        for level in levels.inners.iter().rev() {
            for inner in level {
                let index = builder.inner(&inner.starts);
                state.table.set_at(NodeIndex { is_leaf: false, index }, 0, 0, inner.node);
            }
            builder.end_level();
        }
        let mut tree = builder.finish(root.len);
        check_entries(&reader, entries, tree.entries())?;
        let groups = read_groups(&mut reader, root)?;
        let serials = groups.iter().flat_map(|group| group.serials.iter().copied()).collect();
        let chain = NodeChain::of(&reader, &levels, groups, root.file, block);
        state.chains[0] = ChainSlot::Ready(Box::new(chain));
        // The loaded nodes have stamp 0. From now on a change copies a node and gives it another
        // stamp.
        drop(tree.publish(0));
        Ok(LoadedNodes { tree, state, serials, bytes: reader.read_bytes() })
    }

    /// Sets the recovery point before the newest one. The next checkpoint reads the references to
    /// its nodes.
    pub(crate) fn set_older(&mut self, older: &RecoveryPoint) {
        if older.nodes > 0 {
            let (checkpoint, file) = (older.checkpoint, older.nodes);
            self.chains[1 - self.newest] = ChainSlot::Unread { checkpoint, file };
        }
    }

    /// Reads the nodes that a chain has from an earlier opening. A chain that cannot be read is
    /// replaced by a new file.
    fn read_chain(&mut self, target: &CheckpointTarget<'_>, chain: usize) {
        let ChainSlot::Unread { checkpoint, file } = self.chains[chain] else { return };
        self.chains[chain] = match read_stored(target, checkpoint, file) {
            Ok((chain_read, mut nodes)) => {
                nodes.sort_unstable_by_key(|node| node.number);
                self.table.set_by_number(&nodes, chain);
                ChainSlot::Ready(Box::new(chain_read))
            }
            Err(_) => ChainSlot::Absent,
        };
    }

    /// Returns the memory of the table of nodes.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Stops the use of a node file that is damaged. The next checkpoint in its turn writes a new
    /// one.
    pub(crate) fn abandon_file(&mut self, damaged: u64) {
        for chain in 0..self.chains.len() {
            let is_damaged = match &self.chains[chain] {
                ChainSlot::Absent => false,
                ChainSlot::Unread { file, .. } => *file == damaged,
                ChainSlot::Ready(ready) => ready.file == damaged,
            };
            if is_damaged {
                self.abandon_chain(chain);
            }
        }
    }

    fn abandon_chain(&mut self, chain: usize) {
        self.chains[chain] = ChainSlot::Absent;
        self.table.forget_all(chain);
    }
}

/// Reads the references of a checkpoint's nodes, without its leaves.
fn read_stored(
    target: &CheckpointTarget<'_>,
    checkpoint: u64,
    file: u64,
) -> Result<(NodeChain, Vec<StoredNodeRef>)> {
    let path = target.dir.join(format::checkpoint_name(checkpoint));
    let mut image =
        ImageReader::open(target.disk, path.clone(), target.space, KeyspaceId(0), checkpoint, |_| None)?;
    let (_, root) = format::read_checkpoint(&mut image, |_, _| {})?;
    let Some(root) = root.filter(|root| root.file == file) else {
        let what = Damage::bad_field("node file", file, 0);
        return Err(Error::corrupt(&path, 0, "image", what));
    };
    let (mut reader, levels) = open_nodes(target.disk, target.dir, target.space, &root)?;
    reader.admit_leaves(&levels)?;
    let groups = read_groups(&mut reader, &root)?;
    let nodes = levels.nodes().collect();
    Ok((NodeChain::of(&reader, &levels, groups, file, target.block), nodes))
}

/// Returns the path of a node file.
fn node_path(dir: &Path, file: u64) -> PathBuf {
    dir.join(node_file_name(file))
}
