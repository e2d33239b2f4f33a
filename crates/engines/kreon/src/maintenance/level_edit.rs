//! # Level edit: the changes that one step makes to a level
//!
//! A *spill* inserts sorted entries into the leaves of their ranges. These leaves and the nodes
//! above them are written to free pages, and everything else stays. If that would leave many pages
//! half empty, a *merge* rewrites the whole range.
//!
//! ## Rule
//!
//! The rule applies to the children of one node, from the first to the last with new entries. They
//! form groups of at most the size of a merge. Writing a page costs [`WRITE_COST`] page reads. A
//! spill reads and writes the touched leaves. A merge reads all leaves of the group and writes full
//! ones. The cheaper one is chosen.
//!
//! ## Invariants
//!
//! 1. The ranges of children have no gaps: the first child begins where its parent does.
//! 2. Nothing is published, freed or subtracted from the accounts before the whole step has
//!    succeeded. A version that a view may need is copied to the old versions before.

use std::collections::HashMap;

use sheaf_engine::keys::shortest_separator;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Damage, Result};
use sheaf_platform::memory::block_alloc::BlockBox;
use sheaf_platform::sync::epoch::Guard;

use crate::tree::cache::CachedNode;
use crate::tree::filter::LeafFilter;
use crate::tree::node::{
    Child, LOWER_UNACCOUNTED, LeafEntry, LeafPair, Node, NodeRef, build_node, fit_items,
};
use crate::tree::{Level, LevelStore, MAX_HEIGHT};

/// Cost of writing a page, in page reads.
const WRITE_COST: u64 = 2;
/// Divisor of a page that a packed leaf leaves free.
const SLACK_DIVISOR: usize = 16;
/// Maximum number of pages allocated at once. Each allocation takes twice as many as the last one,
/// because a first edit of few entries needs few.
const MAX_PAGE_POOL: usize = 64;
/// Estimated number of entries of a leaf, for the first allocation.
const ENTRIES_PER_POOL_PAGE: usize = 64;
/// Divisor of the budget that limits the memory of a merge, which is in no account.
const MERGE_BUDGET_DIVISOR: u64 = 32;
/// Bytes of a merge for each leaf; most of them are for single entries.
const MERGED_LEAF_BYTES: u64 = 32 << 10;
/// Minimum number of leaves of a merge with the smallest budget.
const MIN_MERGED_LEAVES: usize = 16;

/// A node that this step has built.
pub(crate) struct NewNode {
    pub(crate) at: NodeRef,
    pub(crate) level: u8,
    pub(crate) bytes: Vec<u8>,
    /// Filter of a leaf, if there is room for one.
    pub(crate) filter: Option<LeafFilter>,
}

/// Decides which entries stay when a batch is merged with a level.
pub(crate) trait MergeResolver {
    /// Merges `new` with the level's `old` entry, which is given with the stamp of its leaf and an
    /// upper bound of the seqs in it. Returns the entry that stays, if any.
    fn resolve(
        &mut self,
        new: &LeafPair<'_>,
        old: Option<(&LeafEntry, u64, Seq)>,
    ) -> Result<Option<LeafEntry>>;
    /// Returns the entry that stays of `old`, an entry of the level without a new one, if any.
    fn resolve_unmatched(&mut self, old: &LeafEntry, stamp: u64) -> Option<LeafEntry>;
    /// Whether all levels below are empty.
    fn is_last_level(&self) -> bool;
    /// Called when the step is written, directly before it is published.
    fn before_publish(&mut self) {}
}

/// Counters of spilled and merged ranges.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SpillStats {
    /// Ranges that were spilled into, and leaves written for them.
    pub(crate) spills: (u64, u64),
    /// Ranges that were merged, and leaves written for them.
    pub(crate) merges: (u64, u64),
}

/// The state of an edit; see the header of the module.
pub(crate) struct LevelEdit<'a, M> {
    pub(crate) level_store: &'a LevelStore,
    pub(crate) guard: &'a Guard,
    pub(crate) stamp: u64,
    pub(crate) resolver: &'a mut M,
    /// Leaves that were read ahead.
    pub(crate) prefetched_leaves: HashMap<u32, BlockBox<CachedNode>>,
    pub(crate) new_nodes: Vec<NewNode>,
    pub(crate) replaced_pages: Vec<(u32, u32)>,
    pub(crate) spill_stats: SpillStats,
    /// Whether new leaves get filters.
    has_filters: bool,
    /// Maximum number of leaves that one merge rewrites.
    max_merged_leaves: usize,
    /// Forces merges, or prevents them, to measure the rule.
    #[cfg(any(test, feature = "measure"))]
    pub(crate) forced_merge: Option<bool>,
    page_pool: Vec<u32>,
    /// Number of pages of the next allocation.
    pool_size: usize,
    /// All allocated pages, which are freed if the step fails.
    allocated_pages: Vec<(u32, u32)>,
}

/// Sorted entries that a part of the level receives.
type LeafPairs<'s, 'k> = &'s [LeafPair<'k>];

impl<'a, M: MergeResolver> LevelEdit<'a, M> {
    pub(crate) fn new(
        level_store: &'a LevelStore,
        guard: &'a Guard,
        stamp: u64,
        resolver: &'a mut M,
    ) -> LevelEdit<'a, M> {
        LevelEdit {
            has_filters: level_store.filters.may_grow(resolver.is_last_level()),
            max_merged_leaves: usize::try_from(
                level_store.context.memory.budget() / MERGE_BUDGET_DIVISOR / MERGED_LEAF_BYTES,
            )
            .unwrap_or(usize::MAX)
            .max(MIN_MERGED_LEAVES),
            #[cfg(any(test, feature = "measure"))]
            forced_merge: None,
            level_store,
            guard,
            stamp,
            resolver,
            prefetched_leaves: HashMap::new(),
            new_nodes: Vec::new(),
            replaced_pages: Vec::new(),
            spill_stats: SpillStats::default(),
            page_pool: Vec::new(),
            pool_size: 1,
            allocated_pages: Vec::new(),
        }
    }

    fn page(&self) -> usize {
        self.level_store.space.page_file.page
    }

    /// Reads the leaves at `refs` that are not in memory.
    pub(crate) fn read_ahead(&mut self, refs: &[NodeRef]) -> Result<()> {
        self.level_store.read_leaves(refs, &mut self.prefetched_leaves)
    }

    /// Allocates a node of `pages` pages.
    fn allocate(&mut self, pages: u16) -> Result<u32> {
        if pages > 1 {
            let page = self.level_store.space.allocate(&[pages])?[0];
            self.allocated_pages.push((page, u32::from(pages)));
            return Ok(page);
        }
        if self.page_pool.is_empty() {
            self.page_pool = self.level_store.space.allocate(&[1; MAX_PAGE_POOL][..self.pool_size])?;
            self.pool_size = (2 * self.pool_size).min(MAX_PAGE_POOL);
            self.allocated_pages.extend(self.page_pool.iter().map(|page| (*page, 1)));
            self.page_pool.reverse();
        }
        Ok(self.page_pool.pop().unwrap_or(0))
    }

    fn add_node(
        &mut self,
        bytes: Vec<u8>,
        used: usize,
        level: u8,
        count: u32,
        filter: Option<LeafFilter>,
    ) -> Result<NodeRef> {
        let pages = u16::try_from(bytes.len() / self.page()).unwrap_or(u16::MAX);
        let at = NodeRef {
            page: self.allocate(pages)?,
            crc: crc32c::crc32c(&bytes),
            pages,
            fill: u16::try_from(used).unwrap_or(u16::MAX),
            count,
        };
        self.new_nodes.push(NewNode { at, level, bytes, filter });
        Ok(at)
    }

    fn replace_node(&mut self, at: NodeRef) {
        self.replaced_pages.push((at.page, u32::from(at.pages)));
    }

    // Leaves.

    /// Builds leaves of `pairs`; the first one begins at `low`. If there is a `filter`, it includes
    /// all keys.
    fn pack_leaves(
        &mut self,
        pairs: LeafPairs<'_, '_>,
        low: &[u8],
        is_merge: bool,
        filter: Option<&LeafFilter>,
    ) -> Result<Vec<Child>> {
        let most = self.page();
        let target = match is_merge {
            true => most - most / SLACK_DIVISOR,
            false => {
                let mut rest = pairs;
                let (mut total, mut leaves) = (0, 0);
                while !rest.is_empty() {
                    let (count, size) = fit_items(rest, 0, most, most);
                    (total, leaves) = (total + size.min(most), leaves + 1);
                    rest = &rest[count..];
                }
                if leaves < 2 { most } else { total / leaves + most / SLACK_DIVISOR }
            }
        };
        let mut children: Vec<Child> = Vec::new();
        let mut rest = pairs;
        while !rest.is_empty() {
            let (count, _) = fit_items(rest, 0, target, most);
            let (now, behind) = rest.split_at(count);
            let newest = now.iter().map(|pair| pair.max_seq).max().unwrap_or(Seq::ZERO);
            let (bytes, used) = build_node(now, 0, self.stamp, newest, most);
            let made = || LeafFilter::build(count, now.iter().map(|pair| self.level_store.hash(pair.key)));
            let filter = self.has_filters.then(|| filter.cloned().unwrap_or_else(made));
            let child = self.add_node(bytes, used, 0, u32::try_from(count).unwrap_or(u32::MAX), filter)?;
            let key = match pairs.len() - rest.len() {
                0 => low.to_vec(),
                first => shortest_separator(pairs[first - 1].key, now[0].key).to_vec(),
            };
            children.push(Child { key, child });
            rest = behind;
        }
        let stats = if is_merge { &mut self.spill_stats.merges } else { &mut self.spill_stats.spills };
        *stats = (stats.0 + 1, stats.1 + children.len() as u64);
        Ok(children)
    }

    /// Rewrites consecutive leaves together with the entries of `sources`.
    fn rewrite_leaves(
        &mut self,
        old: &[Child],
        sources: LeafPairs<'_, '_>,
        low: &[u8],
        is_merge: bool,
    ) -> Result<Vec<Child>> {
        let mut olds = GatheredEntries::default();
        for leaf in old {
            let loaded = self.prefetched_leaves.remove(&leaf.child.page);
            let node = match &loaded {
                Some(frame) => frame.node(),
                None => self.level_store.node(leaf.child, 0, self.guard)?.node(),
            };
            let damaged = |what| self.level_store.space.page_file.damage_error(leaf.child.page, what);
            (0..node.len()).try_for_each(|slot| olds.add(&node, slot)).map_err(damaged)?;
            self.replace_node(leaf.child);
        }
        let mut pairs: Vec<LeafPair<'_>> = Vec::with_capacity(olds.entries.len() + sources.len());
        let mut rest = &olds.entries[..];
        for new in sources {
            while let Some((old, behind)) = rest.split_first().filter(|(old, _)| olds.key(old) < new.key) {
                self.retain_unmatched(&olds, old, &mut pairs);
                rest = behind;
            }
            let met = rest.first().filter(|old| olds.key(old) == new.key);
            rest = &rest[usize::from(met.is_some())..];
            let old = met.map(|old| (&old.entry, old.stamp, old.newest));
            if let Some(entry) = self.resolver.resolve(new, old)? {
                pairs.push(LeafPair { entry, ..new.clone() });
            }
        }
        rest.iter().for_each(|old| self.retain_unmatched(&olds, old, &mut pairs));
        let filter = match old {
            [leaf] if self.has_filters => self.extended_filter(leaf.child, sources),
            _ => None,
        };
        self.pack_leaves(&pairs, low, is_merge, filter.as_ref())
    }

    /// Returns the filter of a leaf with the keys of `sources` added, unless it has no room for
    /// them.
    fn extended_filter(&self, leaf: NodeRef, sources: LeafPairs<'_, '_>) -> Option<LeafFilter> {
        let hashes = sources.iter().map(|pair| self.level_store.hash(pair.key));
        self.level_store.filters.get(leaf.page, self.guard)?.extended(sources.len(), hashes)
    }

    fn retain_unmatched<'k>(
        &mut self,
        olds: &'k GatheredEntries,
        old: &GatheredEntry,
        out: &mut Vec<LeafPair<'k>>,
    ) {
        if let Some(entry) = self.resolver.resolve_unmatched(&old.entry, old.stamp) {
            out.push(LeafPair { entry, ..olds.pair(old) });
        }
    }

    /// Whether a merge of these leaves is cheaper than a spill. `coming` has the bytes that each
    /// leaf receives.
    fn is_merge_cheaper(&self, leaves: &[Child], coming: &[usize]) -> bool {
        #[cfg(any(test, feature = "measure"))]
        if let Some(merges) = self.forced_merge {
            return merges;
        }
        let page = self.page();
        let (mut spill, mut all) = (0, 0);
        for (leaf, bytes) in leaves.iter().zip(coming) {
            let after = usize::from(leaf.child.fill) + bytes;
            all += after;
            if *bytes > 0 {
                spill += 1 + WRITE_COST * after.div_ceil(page) as u64;
            }
        }
        let merge = leaves.len() as u64 + WRITE_COST * all.div_ceil(page - page / SLACK_DIVISOR) as u64;
        merge < spill
    }

    // Inner nodes.

    fn children(&self, at: NodeRef, level: u8, low: &[u8]) -> Result<Vec<Child>> {
        let node = self.level_store.node(at, level, self.guard)?.node();
        let page_count = self.level_store.space.page_count();
        let damaged = |what| self.level_store.space.page_file.damage_error(at.page, what);
        let mut children: Vec<Child> = Vec::with_capacity(node.len());
        for slot in 0..node.len() {
            let mut key = Vec::new();
            match slot {
                0 => key.extend_from_slice(low),
                _ => node.key(slot, &mut key),
            }
            if slot > 1 && children.last().is_some_and(|last| last.key >= key) {
                return Err(damaged(Damage::BadOrder { item: "separator", index: slot as u64 }));
            }
            let child = node.child(slot);
            let end = u64::from(child.page) + u64::from(child.pages);
            if end > u64::from(page_count) {
                let expected = 1..=u64::from(page_count);
                return Err(damaged(Damage::bad_field("end of a child", expected, end)));
            }
            children.push(Child { key, child });
        }
        Ok(children)
    }

    /// Builds nodes of `level` of `children`, which are one level below.
    fn pack_inner(&mut self, children: &[Child], level: u8) -> Result<Vec<Child>> {
        let most = self.page();
        let mut nodes: Vec<Child> = Vec::new();
        let mut rest = children;
        while !rest.is_empty() {
            let (mut count, size) = fit_items(rest, level, most, most);
            if count < rest.len() && rest.len() < 2 * count && size <= most {
                count = rest.len().div_ceil(2); // two nodes of about the same size
            }
            let (now, behind) = rest.split_at(count);
            let (bytes, used) = build_node(now, level, 0, Seq::ZERO, most);
            let below = now.iter().fold(0u32, |sum, child| sum.saturating_add(child.child.count));
            let child = self.add_node(bytes, used, level, below, None)?;
            nodes.push(Child { key: now[0].key.clone(), child });
            rest = behind;
        }
        Ok(nodes)
    }

    /// Returns the children of a node after the entries of `sources` were inserted.
    fn edit_node(
        &mut self,
        at: NodeRef,
        level: u8,
        low: &[u8],
        sources: LeafPairs<'_, '_>,
    ) -> Result<Vec<Child>> {
        let children = self.children(at, level, low)?;
        self.replace_node(at);
        let mut shares: Vec<LeafPairs<'_, '_>> = Vec::with_capacity(children.len());
        let mut rest = sources;
        for next in children.iter().skip(1) {
            let (mine, behind) = rest.split_at(rest.partition_point(|pair| pair.key < &next.key[..]));
            shares.push(mine);
            rest = behind;
        }
        shares.push(rest);
        let mut out = if level == 1 {
            self.edit_leaves(&children, &shares)?
        } else {
            self.edit_inner(&children, &shares, level)?
        };
        if let Some(first) = out.first_mut() {
            first.key = low.to_vec(); // (I1)
        }
        Ok(out)
    }

    fn edit_leaves(&mut self, children: &[Child], shares: &[LeafPairs<'_, '_>]) -> Result<Vec<Child>> {
        let first = shares.iter().position(|share| !share.is_empty()).unwrap_or(0);
        let last = shares.iter().rposition(|share| !share.is_empty()).unwrap_or(0);
        let cost = |pair: &LeafPair<'_>| 19 + pair.key.len() / 4 + pair.value.len();
        let bytes = |share: &LeafPairs<'_, '_>| share.iter().map(cost).sum::<usize>();
        let mut out = children[..first].to_vec();
        let ranges = children[first..=last]
            .chunks(self.max_merged_leaves)
            .zip(shares[first..=last].chunks(self.max_merged_leaves));
        for (leaves, shares) in ranges {
            let coming: Vec<usize> = shares.iter().map(bytes).collect();
            if self.is_merge_cheaper(leaves, &coming) {
                out.extend(self.merge_leaves(leaves, shares)?);
                continue;
            }
            for (leaf, share) in leaves.iter().zip(shares) {
                match share.is_empty() {
                    true => out.push(leaf.clone()),
                    false => out.extend(self.rewrite_leaves(
                        std::slice::from_ref(leaf),
                        share,
                        &leaf.key,
                        false,
                    )?),
                }
            }
        }
        out.extend_from_slice(&children[last + 1..]);
        Ok(out)
    }

    /// Merges consecutive leaves with the entries that each receives.
    fn merge_leaves(&mut self, leaves: &[Child], shares: &[LeafPairs<'_, '_>]) -> Result<Vec<Child>> {
        let all: Vec<LeafPair<'_>> = shares.iter().flat_map(|share| share.iter().cloned()).collect();
        let unread: Vec<NodeRef> = leaves
            .iter()
            .map(|leaf| leaf.child)
            .filter(|at| !self.prefetched_leaves.contains_key(&at.page))
            .collect();
        self.read_ahead(&unread)?;
        self.rewrite_leaves(leaves, &all, &leaves[0].key, true)
    }

    fn edit_inner(
        &mut self,
        children: &[Child],
        shares: &[LeafPairs<'_, '_>],
        level: u8,
    ) -> Result<Vec<Child>> {
        let mut out = Vec::with_capacity(children.len());
        // The children of consecutive touched nodes are redistributed.
        let mut run: Vec<Child> = Vec::new();
        for (child, share) in children.iter().zip(shares) {
            if share.is_empty() {
                let done = std::mem::take(&mut run);
                out.extend(self.pack_inner(&done, level - 1)?);
                out.push(child.clone());
            } else {
                run.extend(self.edit_node(child.child, level - 1, &child.key, share)?);
            }
        }
        out.extend(self.pack_inner(&run, level - 1)?);
        Ok(out)
    }

    /// Returns the level after the entries of `sources` were inserted.
    pub(crate) fn apply(&mut self, level: &Level, sources: LeafPairs<'_, '_>) -> Result<Level> {
        self.pool_size = (sources.len() / ENTRIES_PER_POOL_PAGE).clamp(1, MAX_PAGE_POOL);
        let (list, height) = match level.root {
            _ if sources.is_empty() => return Ok(*level),
            None => (self.rewrite_leaves(&[], sources, &[], false)?, 0),
            Some((root, 0)) => {
                let leaf = Child { key: Vec::new(), child: root };
                (self.rewrite_leaves(&[leaf], sources, &[], false)?, 0)
            }
            Some((root, height)) => (self.edit_node(root, height, &[], sources)?, height - 1),
        };
        self.build_root(list, height)
    }

    /// Builds the root over nodes of `height`.
    fn build_root(&mut self, mut list: Vec<Child>, mut height: u8) -> Result<Level> {
        assert!(
            list.first().is_none_or(|first| first.key.is_empty()),
            "level_edit (I1): the first child of the root begins at the lowest key"
        );
        while list.len() > 1 && height < MAX_HEIGHT {
            height += 1;
            list = self.pack_inner(&list, height)?;
        }
        Ok(Level { root: list.first().map(|root| (root.child, height)) })
    }

    /// Returns the level without the leaves in `[from, to)`. The bounds must not divide a leaf.
    pub(crate) fn remove_range(&mut self, level: &Level, from: &[u8], to: Option<&[u8]>) -> Result<Level> {
        match level.root {
            None => Ok(*level),
            Some((root, _)) if from.is_empty() && to.is_none() => {
                self.replace_subtree(root, level.root.map_or(0, |(_, height)| height))?;
                Ok(Level::default())
            }
            Some((_, 0)) => Ok(*level),
            Some((root, height)) => {
                let list = self.remove_range_in_node(root, height, (&[], None), (from, to))?;
                self.build_root(list, height - 1)
            }
        }
    }

    fn remove_range_in_node(
        &mut self,
        at: NodeRef,
        level: u8,
        (low, high): (&[u8], Option<&[u8]>),
        (from, to): (&[u8], Option<&[u8]>),
    ) -> Result<Vec<Child>> {
        let children = self.children(at, level, low)?;
        self.replace_node(at);
        let mut out: Vec<Child> = Vec::new();
        let mut run: Vec<Child> = Vec::new();
        for (slot, child) in children.iter().enumerate() {
            let end = children.get(slot + 1).map(|next| &next.key[..]).or(high);
            let begins_within = &child.key[..] >= from && to.is_none_or(|to| &child.key[..] < to);
            let ends_within = match (end, to) {
                (_, None) => true,
                (None, Some(_)) => false,
                (Some(end), Some(to)) => end <= to,
            };
            let is_apart = to.is_some_and(|to| &child.key[..] >= to) || end.is_some_and(|end| end <= from);
            if is_apart || (level == 1 && !(begins_within && ends_within)) {
                let done = std::mem::take(&mut run);
                out.extend(self.pack_inner(&done, level.saturating_sub(1))?);
                out.push(child.clone());
            } else if begins_within && ends_within {
                self.replace_subtree(child.child, level - 1)?;
            } else {
                run.extend(self.remove_range_in_node(
                    child.child,
                    level - 1,
                    (&child.key, end),
                    (from, to),
                )?);
            }
        }
        out.extend(self.pack_inner(&run, level.saturating_sub(1))?);
        if let Some(first) = out.first_mut() {
            first.key = low.to_vec();
        }
        Ok(out)
    }

    /// Marks all nodes of a subtree as replaced.
    fn replace_subtree(&mut self, at: NodeRef, level: u8) -> Result<()> {
        if level > 0 {
            for child in self.children(at, level, &[])? {
                match level {
                    1 => self.replace_node(child.child),
                    _ => self.replace_subtree(child.child, level - 1)?,
                }
            }
        }
        self.replace_node(at);
        Ok(())
    }

    /// Completes a successful step: frees the unused pages.
    pub(crate) fn finish(&mut self) {
        let unused: Vec<(u32, u32)> = self.page_pool.drain(..).map(|page| (page, 1)).collect();
        self.level_store.space.cancel_allocation(&unused);
    }

    /// Undoes a failed step: frees all its pages.
    pub(crate) fn roll_back(&mut self) {
        self.page_pool.clear();
        self.level_store.space.cancel_allocation(&self.allocated_pages);
    }
}

/// Entries taken out of leaves.
#[derive(Default)]
pub(crate) struct GatheredEntries {
    /// Keys, each followed by its value if the entry had a copy.
    bytes: Vec<u8>,
    pub(crate) entries: Vec<GatheredEntry>,
    /// Blobs of entries that were dropped, and the commits that superseded them.
    pub(crate) dead_blobs: Vec<(Seq, u64)>,
}

/// An entry taken out of a leaf.
pub(crate) struct GatheredEntry {
    /// Offsets of the key's start, the key's end, and the value's end.
    at: [usize; 3],
    pub(crate) entry: LeafEntry,
    stamp: u64,
    newest: Seq,
}

impl GatheredEntries {
    /// Adds an entry. Its key must be above the one before.
    ///
    /// # Errors
    ///
    /// Returns [`Damage::BadOrder`] if the key is not above the one before.
    pub(crate) fn add(&mut self, node: &Node<'_>, slot: usize) -> Result<(), Damage> {
        let start = self.bytes.len();
        node.key(slot, &mut self.bytes);
        let middle = self.bytes.len();
        if self.entries.last().is_some_and(|last| self.key(last) >= &self.bytes[start..]) {
            return Err(Damage::BadOrder { item: "key", index: slot as u64 });
        }
        self.bytes.extend_from_slice(node.value(slot));
        let at = [start, middle, self.bytes.len()];
        self.entries.push(GatheredEntry {
            at,
            entry: node.entry(slot),
            stamp: node.stamp(),
            newest: node.max_seq(),
        });
        Ok(())
    }

    fn key(&self, old: &GatheredEntry) -> &[u8] {
        &self.bytes[old.at[0]..old.at[1]]
    }

    pub(crate) fn pair(&self, old: &GatheredEntry) -> LeafPair<'_> {
        let value = &self.bytes[old.at[1]..old.at[2]];
        LeafPair { key: self.key(old), entry: old.entry, max_seq: old.newest, value }
    }
}

/// Returns the flags of a new entry that replaces `old`, or no entry.
pub(crate) fn merged_flags(new: u8, old: Option<u8>, is_last: bool) -> u8 {
    match old {
        _ if is_last => new & !LOWER_UNACCOUNTED,
        Some(old) => new & !LOWER_UNACCOUNTED | old & LOWER_UNACCOUNTED,
        None => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{NewerWins, level_edit, publish};
    use crate::tests::fixture::level_store;
    use sheaf_log::segment::Address;
    use sheaf_platform::error::Error;
    use sheaf_platform::sync::epoch;

    fn pair(key: &[u8], number: u64) -> LeafPair<'_> {
        let entry = LeafEntry::put(Address::from_bits(number * 8), 64, 0, 0, 0);
        LeafPair { key, entry, max_seq: Seq(number), value: &[] }
    }

    /// Publishes a level of one node that the file cannot contain unless it is damaged.
    fn level_of<'a>(store: &'a LevelStore, guard: &'a Guard, bytes: Vec<u8>, height: u8) -> Level {
        let mut resolver = NewerWins;
        let mut edit = level_edit(store, guard, &mut resolver);
        let at = edit.add_node(bytes, 0, height, 1, None).expect("the disk has room");
        publish(store, edit, |_| false, guard).expect("the disk has room");
        Level { root: Some((at, height)) }
    }

    #[test]
    fn a_leaf_out_of_order_is_damage() {
        let (store, guard) = (&level_store(true), &epoch::pin());
        let (bytes, _) = build_node(&[pair(b"b", 1), pair(b"aa", 2), pair(b"c", 3)], 0, 1, Seq(3), 512);
        let level = level_of(store, guard, bytes, 0);
        let mut resolver = NewerWins;
        let error = level_edit(store, guard, &mut resolver).apply(&level, &[pair(b"d", 4)]);
        let Err(Error::Corrupt { damage, .. }) = error else { panic!("{error:?}") };
        assert!(matches!(*damage, Damage::BadOrder { .. }), "{damage}");
    }

    #[test]
    fn a_child_behind_the_end_of_the_file_is_damage() {
        let (store, guard) = (&level_store(true), &epoch::pin());
        let child = NodeRef { page: u32::MAX - 8, crc: 0, pages: 1, fill: 0, count: 1 };
        let children = [Child { key: Vec::new(), child }, Child { key: b"m".to_vec(), child }];
        let (bytes, _) = build_node(&children, 1, 0, Seq::ZERO, 512);
        let level = level_of(store, guard, bytes, 1);
        let mut resolver = NewerWins;
        let error = level_edit(store, guard, &mut resolver).remove_range(&level, b"", None);
        assert!(matches!(error, Err(Error::Corrupt { .. })), "{error:?}");
    }
}
