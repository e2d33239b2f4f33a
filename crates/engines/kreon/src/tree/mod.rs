//! # Tree: a level, which is a full index, and the state that readers see
//!
//! A level is a copy-on-write B+-tree: a root, and nodes that never change after publication. A
//! reader with a root and a guard sees one consistent version of the level.
//!
//! ```text
//!  level_store: lookups, leaf positions, stamps
//!    │ page in memory?       │ leaf not in memory          │ read
//!    v                       v                             v
//!  cache, page_table       fingerprints (node/), filter   level_file: pages on disk
//! ```

pub(crate) mod cache;
pub(crate) mod filter;
pub(crate) mod level_file;
mod level_store;
pub(crate) mod node;
mod page_table;

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_engine::memtable::Memtables;
use sheaf_log::types::Seq;
use sheaf_platform::error::Error;
use sheaf_platform::sync::epoch::Guard;

pub(crate) use self::level_store::{LevelStore, record_seq};
use self::node::{LeafEntry, Node, NodeRef};
use crate::memtable::KreonMemtable;

/// Maximum height; a higher tree is damaged.
pub(crate) const MAX_HEIGHT: u8 = 24;

/// Incarnations of the keyspace: the first begins with its creation, and each opening from an image
/// begins the next one. At an opening, a segment that the image does not know may get the slot of
/// another one. Its id can be lower than the stamps of leaves that refer to the other segment, so
/// these leaves are recognized by their incarnation.
#[derive(Debug)]
pub(crate) struct SlotIncarnations {
    /// The current incarnation; the first is 1.
    pub(crate) current: u64,
    /// Slots that got another segment at an opening, with the incarnation that began then.
    pub(crate) reused_slots: BTreeMap<u32, u64>,
}

impl Default for SlotIncarnations {
    fn default() -> SlotIncarnations {
        SlotIncarnations { current: 1, reused_slots: BTreeMap::new() }
    }
}

/// A level: its root with the root's height, if there is any key. A leaf has height 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub(crate) root: Option<(NodeRef, u8)>,
}

impl Level {
    /// Returns the number of entries.
    pub(crate) fn count(&self) -> u64 {
        self.root.map_or(0, |(root, _)| u64::from(root.count))
    }
}

/// A consistent state for readers.
#[derive(Clone)]
pub(crate) struct KreonState {
    pub(crate) memtables: Memtables<KreonMemtable>,
    pub(crate) levels: Arc<[Level]>,
}

impl KreonState {
    /// Returns the next state, with other levels. If `is_spilled`, they include the frozen
    /// memtable.
    pub(crate) fn with_levels(&self, levels: Vec<Level>, is_spilled: bool) -> KreonState {
        KreonState { memtables: self.memtables.without_flushed(is_spilled), levels: levels.into() }
    }

    /// Returns the commit of the newest range tombstone that covers `key` and that a view at `at`
    /// sees. Returns zero if there is none. All versions of older commits are hidden.
    #[inline]
    pub(crate) fn range_seq(&self, key: &[u8], at: Seq, guard: &Guard) -> Seq {
        let seqs = self.memtables.iter().map(|memtable| memtable.ranges().seq_of(key, at, guard));
        seqs.max().unwrap_or(Seq::ZERO)
    }

    /// Returns the commit of the oldest range tombstone after commit `seq` that covers `key`, as
    /// far as a view needs to know.
    pub(crate) fn next_range_seq(&self, key: &[u8], seq: Seq, guard: &Guard) -> Option<Seq> {
        self.memtables.iter().filter_map(|memtable| memtable.ranges().next_seq(key, seq, guard)).min()
    }

    /// Returns the lowest level that is not empty.
    pub(crate) fn last_nonempty_level(&self) -> Option<usize> {
        last_nonempty_level(&self.levels)
    }
}

/// Returns the lowest of `levels` that is not empty.
pub(crate) fn last_nonempty_level(levels: &[Level]) -> Option<usize> {
    levels.iter().rposition(|level| level.root.is_some())
}

/// The entry of a level for a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelEntry<'g> {
    pub(crate) entry: LeafEntry,
    pub(crate) stamp: u64,
    /// Upper bound of its seq.
    pub(crate) max_seq: Seq,
    /// The value, if the entry has a copy of it.
    pub(crate) value: &'g [u8],
}

impl<'g> LevelEntry<'g> {
    #[inline]
    pub(crate) fn from_slot(node: &Node<'g>, slot: usize) -> LevelEntry<'g> {
        let (stamp, newest) = (node.stamp(), node.max_seq());
        LevelEntry { entry: node.entry(slot), stamp, max_seq: newest, value: node.value(slot) }
    }
}

/// The leaf of a level that a caller looks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SeekTarget<'a> {
    /// The leaf with the range that contains the key.
    Containing(&'a [u8]),
    /// The leaf that has the highest keys before this one.
    LastBefore(&'a [u8]),
    First,
    Last,
}

/// An unreadable node, and the range of keys below it, from `low` up to below `high`.
#[derive(Debug)]
pub(crate) struct Unreadable {
    pub(crate) error: Error,
    pub(crate) low: Vec<u8>,
    pub(crate) high: Option<Vec<u8>>,
}

impl Unreadable {
    /// Creates the range of the node at `found`.
    pub(crate) fn from_position(found: LeafPosition, error: Error) -> Box<Unreadable> {
        Box::new(Unreadable { error, low: found.low, high: found.high })
    }
}

impl From<Box<Unreadable>> for Error {
    fn from(unreadable: Box<Unreadable>) -> Error {
        unreadable.error
    }
}

/// The position of a leaf in its level.
#[derive(Clone, Debug)]
pub(crate) struct LeafPosition {
    pub(crate) at: NodeRef,
    /// Lower bound of its keys; empty for the first leaf.
    pub(crate) low: Vec<u8>,
    /// Lower bound of the next leaf.
    pub(crate) high: Option<Vec<u8>>,
}
