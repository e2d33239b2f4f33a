//! # Measure: one level without an engine
//!
//! Inserts sorted keys into a level by the edits that a spill makes, and finds and scans them. The
//! pages come from the cache, or from the caller, for example from a read-only mapping of the file.
//! Built with the feature `measure`, for the example `kreon_levels` of `sheaf-bench`, and in tests.

use std::path::Path;
use std::sync::Arc;

use sheaf_engine::context::{EngineContext, EngineDir};
use sheaf_log::blob::Blobs;
use sheaf_log::segment::Address;
use sheaf_log::types::{KeyspaceId, Seq, StoreId};
use sheaf_platform::disk::Disk;
use sheaf_platform::error::{IoContext, IoOp, Result};
use sheaf_platform::sync::epoch::{self, Guard};

use crate::maintenance::level_edit::{LevelEdit, MergeResolver, NewNode};
use crate::tree::cache::CachedNode;
use crate::tree::node::{LeafEntry, LeafPair, Node, fingerprint_of};
use crate::tree::{Level, LevelStore, SeekTarget};

/// Stamp of all leaves. No segment is older, so that a lookup reads no record.
const STAMP: u64 = 1 << 40;
/// Bytes of the records of the entries.
const SPAN: u64 = 64;

/// A key with its number.
pub type NumberedKey = (Vec<u8>, u64);

/// Pages that an insertion replaced, and leaves that it wrote.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageCost {
    /// Number of replaced nodes.
    pub read: u64,
    /// Number of written leaves.
    pub written: u64,
}

/// A level of keys with numbers.
#[derive(Debug)]
pub struct MeasuredLevel {
    level_store: Arc<LevelStore>,
    level: Level,
}

impl MeasuredLevel {
    /// Creates an empty level in a new directory, with a cache of at most `budget` bytes.
    ///
    /// # Errors
    ///
    /// Returns [`sheaf_platform::error::Error::Io`] if the directory cannot be created.
    pub fn create(disk: Arc<dyn Disk>, dir: &Path, budget: u64) -> Result<MeasuredLevel> {
        let context = create_context(disk, dir, budget, false)?;
        let level_store = Arc::new(LevelStore::new(context, KeyspaceId(1)));
        Ok(MeasuredLevel { level_store, level: Level::default() })
    }

    /// Inserts sorted keys. If `merges` is given, every range is merged, or none is. Else the rule
    /// of spills decides.
    ///
    /// # Errors
    ///
    /// Returns [`sheaf_platform::error::Error::Io`] or
    /// [`sheaf_platform::error::Error::NoSpace`] if a page cannot be read or written.
    pub fn insert(&mut self, keys: &[NumberedKey], merges: Option<bool>) -> Result<PageCost> {
        let (level, cost) = insert(&self.level_store, &self.level, keys, merges)?;
        self.level = level;
        Ok(cost)
    }

    /// Returns the path of the file of pages.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.level_store.space.page_file.path
    }

    /// Returns the bytes of a page.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.level_store.space.page_file.page
    }

    /// Returns the number of `key`, if the level has it.
    ///
    /// # Errors
    ///
    /// Returns [`sheaf_platform::error::Error::Io`] or
    /// [`sheaf_platform::error::Error::Corrupt`] if a page cannot be read.
    pub fn find(&self, key: &[u8]) -> Result<Option<u64>> {
        let (guard, hash) = (&epoch::pin(), self.level_store.hash(key));
        let found = self.level_store.find(&self.level, hash, key, guard)?;
        Ok(found.map(|seen| number_of(&seen.entry)))
    }

    /// Like [`MeasuredLevel::find`], in the pages that `page` returns. They must be those of the
    /// file.
    pub fn find_in<'p>(&self, page: impl Fn(u32) -> &'p [u8], key: &[u8]) -> Option<u64> {
        let hash = self.level_store.hash(key);
        let (mut at, height) = self.level.root?;
        for _ in 0..height {
            let node = Node::from_checked(page(at.page));
            at = node.child(node.child_containing(key));
        }
        let node = Node::from_checked(page(at.page));
        node.find(fingerprint_of(hash), key).map(|slot| number_of(&node.entry(slot)))
    }

    /// Returns the sum of the numbers and key lengths of the first `count` keys from `key` on.
    ///
    /// # Errors
    ///
    /// Returns [`sheaf_platform::error::Error::Io`] or
    /// [`sheaf_platform::error::Error::Corrupt`] if a page cannot be read.
    pub fn scan(&self, key: &[u8], count: usize) -> Result<u64> {
        let guard = &epoch::pin();
        let mut sum = ScanSum::new(count);
        let mut leaf = self.level_store.locate(&self.level, SeekTarget::Containing(key), guard)?;
        let mut from = Some(key);
        while let Some(now) = leaf {
            let node = self.level_store.node(now.at, 0, guard)?.node();
            if sum.add_leaf(&node, from.take()) {
                break;
            }
            let Some(high) = now.high else { break };
            leaf = self.level_store.locate(&self.level, SeekTarget::Containing(&high), guard)?;
        }
        Ok(sum.sum)
    }

    /// Like [`MeasuredLevel::scan`], in the pages that `page` returns. They must be those of the
    /// file.
    pub fn scan_in<'p>(&self, page: impl Fn(u32) -> &'p [u8], key: &[u8], count: usize) -> u64 {
        let mut sum = ScanSum::new(count);
        let mut from = key.to_vec();
        while let Some((mut at, height)) = self.level.root {
            let mut high = None;
            for _ in 0..height {
                let node = Node::from_checked(page(at.page));
                let slot = node.child_containing(&from);
                if slot + 1 < node.len() {
                    let mut next = Vec::new();
                    node.key(slot + 1, &mut next);
                    high = Some(next);
                }
                at = node.child(slot);
            }
            if sum.add_leaf(&Node::from_checked(page(at.page)), Some(&from)) {
                break;
            }
            let Some(next) = high else { break };
            from = next;
        }
        sum.sum
    }
}

#[cfg(test)]
impl MeasuredLevel {
    /// Returns the content of the file of pages.
    pub(crate) fn file_bytes(&self) -> Result<Vec<u8>> {
        let (written, _) = self.level_store.space.bytes();
        let mut bytes = vec![0; usize::try_from(written).unwrap_or(0)];
        self.level_store.space.read_bytes(0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Sum of the keys that a scan has passed.
struct ScanSum {
    left: usize,
    sum: u64,
    key: Vec<u8>,
}

impl ScanSum {
    fn new(count: usize) -> ScanSum {
        ScanSum { left: count, sum: 0, key: Vec::new() }
    }

    /// Adds the entries of a leaf, from `from` on. Returns whether the scan is complete.
    fn add_leaf(&mut self, node: &Node<'_>, from: Option<&[u8]>) -> bool {
        for slot in from.map_or(0, |key| node.count_before(key, false))..node.len() {
            if self.left == 0 {
                break;
            }
            self.key.clear();
            node.key(slot, &mut self.key);
            self.sum += number_of(&node.entry(slot)) + self.key.len() as u64;
            self.left -= 1;
        }
        self.left == 0
    }
}

/// Returns the number of a key, which is the location of its record.
fn number_of(entry: &LeafEntry) -> u64 {
    entry.address().bits() / 8
}

/// Creates the context of an engine in a new directory.
pub(crate) fn create_context(
    disk: Arc<dyn Disk>,
    dir: &Path,
    budget: u64,
    tiny: bool,
) -> Result<Arc<EngineContext>> {
    let blob_dir = dir.join("blobs");
    for dir in [dir, &blob_dir] {
        disk.create_dir(dir).during(IoOp::Create, dir)?;
    }
    let blobs = Blobs::new(Arc::clone(&disk), blob_dir, 1, StoreId(1), true);
    let engine_dir = EngineDir::new(disk, dir, false);
    Ok(Arc::new(EngineContext::new(blobs, budget, 7, tiny).with_engine_dir(engine_dir, true)))
}

/// A resolver in which newer entries win, and tombstones remove.
pub(crate) struct NewerWins;

impl MergeResolver for NewerWins {
    fn resolve(
        &mut self,
        new: &LeafPair<'_>,
        _old: Option<(&LeafEntry, u64, Seq)>,
    ) -> Result<Option<LeafEntry>> {
        Ok((!new.entry.is_tombstone()).then_some(new.entry))
    }

    fn resolve_unmatched(&mut self, old: &LeafEntry, _stamp: u64) -> Option<LeafEntry> {
        Some(*old)
    }

    fn is_last_level(&self) -> bool {
        false
    }
}

/// Returns an edit of a level of `level_store`.
pub(crate) fn level_edit<'a>(
    level_store: &'a LevelStore,
    guard: &'a Guard,
    resolver: &'a mut NewerWins,
) -> LevelEdit<'a, NewerWins> {
    LevelEdit::new(level_store, guard, STAMP, resolver)
}

/// Returns the level after sorted keys with their numbers were inserted. Merges always, never, or
/// by the rule.
pub(crate) fn insert(
    level_store: &LevelStore,
    level: &Level,
    keys: &[NumberedKey],
    merges: Option<bool>,
) -> Result<(Level, PageCost)> {
    let guard = &epoch::pin();
    let pair = |(key, number): &'_ NumberedKey| {
        let print = fingerprint_of(level_store.hash(key));
        LeafEntry::put(Address::from_bits(number * 8), SPAN, print, 0, 0)
    };
    let pairs: Vec<LeafPair<'_>> = keys
        .iter()
        .map(|item| LeafPair { key: &item.0, entry: pair(item), max_seq: Seq(1), value: &[] })
        .collect();
    let mut resolver = NewerWins;
    let mut edit = level_edit(level_store, guard, &mut resolver);
    edit.forced_merge = merges;
    let level = edit.apply(level, &pairs)?;
    let cost = publish(level_store, edit, |_| true, guard)?;
    Ok((level, cost))
}

/// Publishes a step without waiting, since there are no readers. Nodes for which `stays` is false
/// have to be read again.
pub(crate) fn publish(
    level_store: &LevelStore,
    mut edit: LevelEdit<'_, NewerWins>,
    stays: impl Fn(&NewNode) -> bool,
    guard: &Guard,
) -> Result<PageCost> {
    edit.finish();
    let nodes = std::mem::take(&mut edit.new_nodes);
    let written = nodes.iter().filter(|node| node.level == 0).count() as u64;
    level_store.space.write_unpublished(nodes.iter().map(|node| (node.at.page, &node.bytes[..])))?;
    for node in nodes {
        if stays(&node) {
            let frame = CachedNode::new(&node.bytes, node.level == 0, false);
            level_store.cache.replace(node.at.page, frame, guard);
        }
        level_store.filters.replace(node.at.page, node.filter, guard);
    }
    let replaced = std::mem::take(&mut edit.replaced_pages);
    level_store.space.release_pages(&replaced);
    replaced.iter().for_each(|(page, _)| level_store.cache.remove(*page, guard));
    level_store.space.free_unreadable_pages(&replaced);
    Ok(PageCost { read: replaced.len() as u64, written })
}
