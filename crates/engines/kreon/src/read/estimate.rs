//! # Estimates of ranges
//!
//! The nodes of a level have the number of entries below each child, so the entries of a level in a
//! range are exact after one descent for each end. Samples find the entries that are the newest
//! ones of their keys.

use std::ops::Range;

use sheaf_engine::memtable::ArenaOffset;
use sheaf_engine::range_estimate::{EstimatedTree, KeySample, RangeSum, content_bytes, estimate_tree};
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use super::lookup::FoundVersion;
use crate::engine::KreonEngine;
use crate::memtable::KreonMemtable;
use crate::tree::node::{Node, NodeRef};
use crate::tree::{KreonState, Level};

impl KreonEngine {
    /// Estimates number and size of the pairs in a range. Reads two paths of each level, and a leaf
    /// for each sample.
    pub(crate) fn estimate(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let mut sum = RangeSum::default();
        for memtable in state.memtables.filled() {
            let sample = |place| self.sample_record(state, memtable, place, guard);
            sum += memtable.estimate((first, end), guard, &sample)?;
        }
        for level in &*state.levels {
            let nodes = LevelNodes { engine: self, state, level, guard };
            sum += estimate_tree(&nodes, first, end)?;
        }
        Ok(sum)
    }

    fn sample_record(
        &self,
        state: &KreonState,
        memtable: &KreonMemtable,
        place: ArenaOffset,
        guard: &Guard,
    ) -> Result<KeySample> {
        let (key, version) = (memtable.key(place), memtable.version(place));
        match self.find_newest_in(state, &[], self.hash(key), key, guard)? {
            Some(FoundVersion::Memtable(_, number))
                if number == memtable.number && !version.word.is_tombstone() =>
            {
                let word = version.word;
                self.live_sample(key, (word.address(), word.span()), word.is_blob(), guard)
            }
            _ => Ok(KeySample::dead()),
        }
    }

    /// Returns the sample of a live pair. The record of a blob has the length of the blob.
    fn live_sample(
        &self,
        key: &[u8],
        (address, span): (Address, u64),
        is_blob: bool,
        guard: &Guard,
    ) -> Result<KeySample> {
        if !is_blob {
            return Ok(KeySample::live(span));
        }
        let frame = self.read_frame(address, guard)?;
        let record = self.decode_record(address, &frame, key, guard)?;
        Ok(KeySample::live(key.len() as u64 + content_bytes(&record.content)))
    }
}

/// The nodes of a level.
struct LevelNodes<'e> {
    engine: &'e KreonEngine,
    state: &'e KreonState,
    level: &'e Level,
    guard: &'e Guard,
}

impl LevelNodes<'_> {
    fn node(&self, (at, height): (NodeRef, u8)) -> Result<Node<'_>> {
        Ok(self.engine.level_store.node(at, height, self.guard)?.node())
    }
}

impl EstimatedTree for LevelNodes<'_> {
    /// The node and its height; 0 for a leaf.
    type Node = (NodeRef, u8);

    fn root(&self) -> Option<(NodeRef, u8)> {
        self.level.root
    }

    fn is_leaf(&self, (_, height): (NodeRef, u8)) -> bool {
        height == 0
    }

    fn len(&self, at: (NodeRef, u8)) -> Result<usize> {
        Ok(self.node(at)?.len())
    }

    fn position(&self, at: (NodeRef, u8), key: &[u8]) -> Result<usize> {
        let node = self.node(at)?;
        Ok(if self.is_leaf(at) { node.count_before(key, false) } else { node.child_containing(key) })
    }

    fn child(&self, at: (NodeRef, u8), index: usize) -> Result<Option<(NodeRef, u8)>> {
        let node = self.node(at)?;
        Ok((index < node.len()).then(|| (node.child(index), at.1 - 1)))
    }

    fn count_below(&self, at: (NodeRef, u8), children: Range<usize>) -> Result<Option<u64>> {
        let node = self.node(at)?;
        Ok(Some(children.map(|slot| u64::from(node.child(slot).count)).sum()))
    }

    fn sample(&self, at: (NodeRef, u8), slot: usize) -> Result<KeySample> {
        let (engine, node, mut key) = (self.engine, self.node(at)?, Vec::new());
        let entry = node.entry(slot);
        if entry.is_tombstone() {
            return Ok(KeySample::dead());
        }
        node.key(slot, &mut key);
        let hash = engine.hash(&key);
        let newest = engine.find_newest_in(self.state, &self.state.levels, hash, &key, self.guard)?;
        match newest {
            Some(FoundVersion::Level(seen))
                if !seen.entry.is_tombstone() && seen.entry.address() == entry.address() =>
            {
                engine.live_sample(&key, (entry.address(), entry.span()), entry.is_blob(), self.guard)
            }
            _ => Ok(KeySample::dead()),
        }
    }
}
