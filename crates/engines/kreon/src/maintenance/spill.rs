//! # Spill: moves the frozen memtable into the first level, and excess entries into the next one
//!
//! Each step inserts a batch of sorted entries into the leaves of a range and is published as a
//! whole. The old leaves are read ahead in the order of the file, and the new ones are written
//! contiguously. A level pushes ranges of leaves down, in circular key order, in three cases: it
//! exceeds its capacity, it shadows more than a [`MAX_SHADOWED_DIVISOR`]th of the last level, or it
//! contains many tombstones ([`MAX_REMOVALS_DIVISOR`], [`MIN_IDLE_LEVEL_REMOVALS`]).
//!
//! ## Accounts
//!
//! Each segment has an account of its live bytes. An entry of a level counts the bytes of its
//! record there until a spill merges a newer entry of the key with it. If GC copies a record, GC
//! subtracts the bytes of the old record. The entry of the copy gets the flag
//! [`LOWER_UNACCOUNTED`], so that a spill does not subtract them again. An entry that replaces it
//! in a memtable keeps the flag. The account of a deleted segment is deleted too.
//!
//! ## Crash
//!
//! A crash leaves only pages that no image refers to. Inner nodes are not even written before an
//! image is made.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::memtable::MemtableLayer;
use sheaf_engine::views::Views;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::{IDLE_SAMPLES, KreonEngine};
use crate::maintenance::level_edit::{GatheredEntries, LevelEdit, MergeResolver, NewNode, SpillStats};
use crate::maintenance::merge_accounting::SourceSegments;
use crate::maintenance::range_removal::RangeProgress;
use crate::memtable::KreonMemtable;
use crate::tree::cache::CachedNode;
use crate::tree::level_file::PAGE;
use crate::tree::node::{LeafPair, NodeRef};
use crate::tree::{KreonState, LeafPosition, Level, LevelStore, SeekTarget, last_nonempty_level};

/// Maximum number of entries of a step.
const STEP_ENTRIES: usize = 16 << 10;
/// Approximate number of leaves that a step changes.
const STEP_LEAVES: usize = 256;
/// Leaves that a step takes out of a level. Their keys belong to about ten times as many leaves of
/// the level below.
const STEP_SOURCE_LEAVES: usize = 32;
/// Divisor of the budget that limits the memory of a step, which is in no account.
const STEP_BUDGET_DIVISOR: u64 = 32;
/// Bytes of a step for each entry.
const ENTRY_BYTES: u64 = 192;
/// Bytes of a step for each leaf: as it was, as it is, and in the write buffer.
const LEAF_BYTES: u64 = 3 * PAGE as u64;
/// Entries of a step with the smallest budget.
const MIN_STEP_ENTRIES: usize = 2 << 10;
/// Leaves of a step with the smallest budget.
const MIN_STEP_LEAVES: usize = 32;
/// Maximum ratio of the entries that a step examines to those that the previous step could move.
const LOOKAHEAD_FACTOR: usize = 4;
/// Sizes of a step in tiny geometry.
const TINY_ENTRIES: usize = 24;
const TINY_LEAVES: usize = 6;
const TINY_SOURCE_LEAVES: usize = 2;
/// Ratio of the capacity of a level to that of the level above.
const LEVEL_RATIO: u64 = 10;
const TINY_LEVEL_RATIO: u64 = 4;
/// Minimum capacity of the first level in keys.
const MIN_LEVEL_KEYS: u64 = 1 << 17;
/// Capacity of the first level in tiny geometry.
const TINY_LEVEL_KEYS: u64 = 60;
/// Divisor of the entries of an upper level: with more removals it pushes down, so that the removed
/// values are found soon.
const MAX_REMOVALS_DIVISOR: u64 = 4;
/// Number of removals with which a level pushes down while no commits arrive.
const MIN_IDLE_LEVEL_REMOVALS: u64 = 4096;
/// Divisor of the last level's entries that upper levels may shadow.
const MAX_SHADOWED_DIVISOR: u64 = 10;
/// Keys of a step that are looked up in the last level to estimate how many of them it contains.
const SAMPLES_PER_STEP: usize = 2;
/// Number of recent samples that count.
const SAMPLE_WINDOW: u64 = 256;
/// Approximate bytes of a key in a memtable.
const MEMTABLE_KEY_BYTES: u64 = 90;

/// State of spills between steps.
#[derive(Debug, Default)]
pub(crate) struct SpillState {
    /// Number of the memtable that is being spilled, and the last key that was.
    pub(crate) spilled_up_to: Option<(u32, Vec<u8>)>,
    /// Progress of the range tombstones of the memtable that is being spilled.
    pub(crate) range_progress: Option<RangeProgress>,
    /// Key at which each level continues to push down.
    push_down_from: Vec<Vec<u8>>,
    /// Inner nodes that are in memory only.
    pub(crate) dirty_nodes: BTreeSet<u32>,
    /// Bytes for which the levels' entries account, by slot, with the number of the segment.
    pub(crate) live_bytes: HashMap<u32, (u64, i64)>,
    pub(crate) spill_stats: SpillStats,
    shadowing: ShadowSample,
    /// Upper bound of the removals that came into each level since the opening and are still there.
    removals: Vec<u64>,
    /// Number of entries of the frozen memtable in the last step; 0 if there was none.
    last_step_entries: usize,
}

/// Sample of the entries of upper levels that shadow an entry of the last level. A shadowed entry
/// counts as live until both are merged.
#[derive(Debug, Default)]
struct ShadowSample {
    sampled: u64,
    shadowing: u64,
}

impl ShadowSample {
    fn record(&mut self, is_shadowing: bool) {
        if self.sampled == SAMPLE_WINDOW {
            (self.sampled, self.shadowing) = (self.sampled / 2, self.shadowing / 2);
        }
        (self.sampled, self.shadowing) = (self.sampled + 1, self.shadowing + u64::from(is_shadowing));
    }

    /// Returns the number of entries that an upper level may have.
    fn max_upper_entries(&self, state: &KreonState) -> u64 {
        let last = state.last_nonempty_level().map_or(0, |level| state.levels[level].count());
        (last / MAX_SHADOWED_DIVISOR * self.sampled).checked_div(self.shadowing).unwrap_or(u64::MAX)
    }
}

impl SpillState {
    /// Adds `come` removals to `level` and subtracts `go`.
    pub(crate) fn adjust_removals(&mut self, level: usize, come: u64, go: u64) {
        self.removals.resize(self.removals.len().max(level + 1), 0);
        self.removals[level] = (self.removals[level] + come).saturating_sub(go);
    }

    /// Whether `level`, of `count` entries, has so many removals that it must push down.
    fn has_many_removals(&self, level: usize, count: u64, is_idle: bool) -> bool {
        let removals = self.removals.get(level).copied().unwrap_or(0).min(count);
        removals * MAX_REMOVALS_DIVISOR > count || (is_idle && removals >= MIN_IDLE_LEVEL_REMOVALS)
    }

    pub(crate) fn add_live_bytes(&mut self, engine: &KreonEngine, slot: u32, bytes: i64, guard: &Guard) {
        let Some(segment) = engine.context.segments.at(slot, guard) else { return };
        let count = self.live_bytes.entry(slot).or_insert((segment.id().0, 0));
        if count.0 != segment.id().0 {
            *count = (segment.id().0, 0);
        }
        count.1 += bytes;
    }
}

/// Returns the number of tombstones in `pairs`.
pub(crate) fn count_removals(pairs: &[LeafPair<'_>]) -> u64 {
    pairs.iter().filter(|pair| pair.entry.is_tombstone()).count() as u64
}

impl KreonEngine {
    fn level_capacity(&self, level: usize) -> u64 {
        let (least, growth) = match self.context.tiny {
            true => (TINY_LEVEL_KEYS, TINY_LEVEL_RATIO),
            false => {
                let memtable = self.context.memory.budget() / 4 / MEMTABLE_KEY_BYTES;
                (MIN_LEVEL_KEYS.max(memtable * LEVEL_RATIO), LEVEL_RATIO)
            }
        };
        least.saturating_mul(growth.saturating_pow(u32::try_from(level).unwrap_or(u32::MAX)))
    }

    pub(crate) fn step_sizes(&self) -> (usize, usize, usize) {
        match self.context.tiny {
            true => (TINY_ENTRIES, TINY_LEAVES, TINY_SOURCE_LEAVES),
            false => {
                let share = self.context.memory.budget() / STEP_BUDGET_DIVISOR;
                let most = |bytes| usize::try_from(share / bytes).unwrap_or(usize::MAX);
                let leaves = most(LEAF_BYTES).clamp(MIN_STEP_LEAVES, STEP_LEAVES);
                let entries = most(ENTRY_BYTES).clamp(MIN_STEP_ENTRIES, STEP_ENTRIES);
                (entries, leaves, leaves * STEP_SOURCE_LEAVES / STEP_LEAVES)
            }
        }
    }

    /// Performs one step of the work that is due. Returns true if there was any.
    pub(crate) fn step(&self, views: &Views) -> Result<bool> {
        let mut spill = self.spill.lock();
        let guard = &epoch::pin();
        let is_clear = self.drop_unneeded_versions(views, guard);
        let state = self.state(guard);
        let (_, most_leaves, _) = self.step_sizes();
        let is_reading = self.scan_live_records(state, most_leaves, guard);
        if let Some(frozen) = state.memtables.frozen() {
            self.spill_frozen(&mut spill, state, &Arc::clone(frozen), views, guard)?;
            return Ok(true);
        }
        let most = spill.shadowing.max_upper_entries(state);
        let is_idle = self.idle_detector.idle_count() >= IDLE_SAMPLES;
        let over = |(level, at): &(usize, &Level)| {
            let is_upper = Some(*level) < state.last_nonempty_level();
            at.count() > self.level_capacity(*level)
                || (is_upper && at.count() > most)
                || (is_upper && spill.has_many_removals(*level, at.count(), is_idle))
        };
        if let Some((level, _)) = state.levels.iter().enumerate().find(over) {
            self.push_down(&mut spill, state, level, views, guard)?;
            return Ok(true);
        }
        self.level_store.space.truncate_free_tail();
        Ok(is_reading || !is_clear)
    }

    fn spill_frozen(
        &self,
        spill: &mut SpillState,
        state: &KreonState,
        frozen: &Arc<KreonMemtable>,
        views: &Views,
        guard: &Guard,
    ) -> Result<()> {
        if self.remove_ranges_step(spill, state, frozen, views, guard)? {
            return Ok(());
        }
        let (most, most_leaves, _) = self.step_sizes();
        // If few entries touch all leaves of a step, examining more entries is useless.
        let most = if spill.last_step_entries > 0 {
            most.min(LOOKAHEAD_FACTOR * spill.last_step_entries.max(most_leaves))
        } else {
            most
        };
        // Stays set until the step is published: entries that went down before a failed step must
        // not be moved again.
        let done = spill.spilled_up_to.as_ref().filter(|(number, _)| *number == frozen.number);
        let from = done.map(|(_, key)| key.clone());
        let mut places = Vec::new();
        let low = from.as_ref().map_or(Bound::Unbounded, |key| Bound::Excluded(&key[..]));
        frozen.ascend(low, most, guard, &mut places);
        let is_end = places.len() < most;
        let level = state.levels.first().copied().unwrap_or_default();
        let keys: Vec<&[u8]> = places.iter().map(|place| frozen.key(*place)).collect();
        let (leaves, count) = self.target_leaves(&level, &keys, most_leaves, guard)?;
        spill.last_step_entries = count;
        self.sample_shadowing(spill, state, &keys[..count], guard);
        let mut merge_accounting = self.merge_accounting(views, state.levels.iter().skip(1), None, guard);
        let batch = self.collect_batch(frozen, (&places, &keys, count), state, &mut merge_accounting, guard);
        let pairs = batch.pairs();
        let (removals, is_last) = (count_removals(&pairs), merge_accounting.is_last_level());
        let stamp = self.level_store.stamp(guard);
        let mut change = LevelEdit::new(&self.level_store, guard, stamp, &mut merge_accounting);
        let made = change.read_ahead(&leaves).and_then(|()| change.apply(&level, &pairs));
        let is_done = is_end && count == places.len();
        let done = self.publish_step(
            spill,
            &mut change,
            made.map(|level| vec![(0, level)]),
            is_done.then_some(frozen),
            guard,
        );
        drop(change);
        done?;
        if is_last {
            spill.removals.clear();
        } else {
            spill.adjust_removals(0, removals, 0);
        }
        if is_done {
            (spill.spilled_up_to, spill.range_progress) = (None, None);
            self.removed_ranges.drop_unused();
        } else if let Some(key) = keys.get(count.wrapping_sub(1)) {
            spill.spilled_up_to = Some((frozen.number, key.to_vec()));
        }
        if !batch.blob_records.is_empty() {
            self.blob_ids.lock().retain(|address, _| !batch.blob_records.contains(address));
        }
        self.account_published(spill, merge_accounting, guard);
        Ok(())
    }

    /// Looks up some of the keys that go into the first level in the last level.
    fn sample_shadowing(&self, spill: &mut SpillState, state: &KreonState, keys: &[&[u8]], guard: &Guard) {
        let Some(level) = state.last_nonempty_level().filter(|level| *level > 0) else { return };
        for key in keys.iter().step_by((keys.len() / SAMPLES_PER_STEP).max(1)).take(SAMPLES_PER_STEP) {
            if let Ok(seen) = self.level_store.find(&state.levels[level], self.hash(key), key, guard) {
                spill.shadowing.record(seen.is_some());
            }
        }
    }

    /// Returns the leaves that sorted `keys` belong to, at most those of one step, and the number
    /// of keys that they cover.
    fn target_leaves(
        &self,
        level: &Level,
        keys: &[&[u8]],
        most: usize,
        guard: &Guard,
    ) -> Result<(Vec<NodeRef>, usize)> {
        let (mut leaves, mut count) = (Vec::new(), 0);
        while count < keys.len() && leaves.len() < most {
            let Some(found) = self.level_store.locate(level, SeekTarget::Containing(keys[count]), guard)?
            else {
                return Ok((leaves, keys.len()));
            };
            leaves.push(found.at);
            count = match &found.high {
                Some(high) => count + keys[count..].partition_point(|key| *key < &high[..]),
                None => keys.len(),
            };
        }
        Ok((leaves, count))
    }

    /// Moves some leaves of `level` into the next one.
    fn push_down(
        &self,
        spill: &mut SpillState,
        state: &KreonState,
        level: usize,
        views: &Views,
        guard: &Guard,
    ) -> Result<()> {
        let below = state.levels.get(level + 1).copied().unwrap_or_default();
        // The last level has no tombstones: none are moved into it, even if it is empty.
        let is_last = state.levels.iter().skip(level + 1).all(|lower| lower.root.is_none());
        let was_last = state.levels.len() == level + 1;
        if below.root.is_none() && (was_last || !is_last) {
            // The next level is empty: move the root.
            let whole = state.levels[level];
            self.state.replace(guard, |now| {
                let mut levels = now.levels.to_vec();
                levels.resize(levels.len().max(level + 2), Level::default());
                (levels[level], levels[level + 1]) = (Level::default(), whole);
                now.with_levels(levels, false)
            });
            let removals = spill.removals.get(level).copied().unwrap_or(0);
            spill.adjust_removals(level, 0, removals);
            spill.adjust_removals(level + 1, removals, 0);
            return Ok(());
        }
        let (_, _, most) = self.step_sizes();
        spill.push_down_from.resize_with(spill.push_down_from.len().max(level + 1), Vec::new);
        let from = std::mem::take(&mut spill.push_down_from[level]);
        let (found, mut pairs_of, sources) = self.leaves_from(state, level, &from, most, guard)?;
        let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(()) };
        let mut merge_accounting =
            self.merge_accounting(views, state.levels.iter().skip(level + 2), Some(&sources), guard);
        merge_accounting.dead_blobs = std::mem::take(&mut pairs_of.dead_blobs);
        let pairs: Vec<LeafPair<'_>> = pairs_of.entries.iter().map(|old| pairs_of.pair(old)).collect();
        let (removals, into_last) = (count_removals(&pairs), merge_accounting.is_last_level());
        let keys: Vec<&[u8]> = pairs.iter().map(|pair| pair.key).collect();
        let (leaves, _) = self.target_leaves(&below, &keys, usize::MAX, guard)?;
        pairs.iter().for_each(|pair| merge_accounting.add_live(&pair.entry, -1));
        let stamp = self.level_store.stamp(guard);
        let mut change = LevelEdit::new(&self.level_store, guard, stamp, &mut merge_accounting);
        let made = change.read_ahead(&leaves).and_then(|()| {
            let into = change.apply(&below, &pairs)?;
            let rest = change.remove_range(&state.levels[level], &first.low, last.high.as_deref())?;
            Ok(vec![(level, rest), (level + 1, into)])
        });
        let done = self.publish_step(spill, &mut change, made, None, guard);
        drop(change);
        done?;
        spill.push_down_from[level] = last.high.clone().unwrap_or_default();
        spill.adjust_removals(level, 0, removals);
        if !into_last {
            spill.adjust_removals(level + 1, removals, 0);
        }
        self.account_published(spill, merge_accounting, guard);
        Ok(())
    }

    /// Returns consecutive leaves of a level, their entries that are still valid, and the segments
    /// of these.
    fn leaves_from<'g>(
        &'g self,
        state: &KreonState,
        level: usize,
        from: &[u8],
        most: usize,
        guard: &'g Guard,
    ) -> Result<(Vec<LeafPosition>, GatheredEntries, SourceSegments<'g>)> {
        let (mut found, mut gathered, mut sources) =
            (Vec::new(), GatheredEntries::default(), SourceSegments::new());
        let (above, level) = (&state.levels[..level], &state.levels[level]);
        let mut next = self.level_store.locate(level, SeekTarget::Containing(from), guard)?;
        while let Some(leaf) = next.take() {
            let node = self.level_store.node(leaf.at, 0, guard)?.node();
            for slot in 0..node.len() {
                let entry = node.entry(slot);
                if !entry.is_tombstone() {
                    let address = entry.address();
                    let Some(there) = self.level_store.segment_of(address, node.stamp(), guard) else {
                        if entry.is_blob() {
                            let mut key = Vec::new();
                            node.key(slot, &mut key);
                            let end_seq = self.blob_end_seq(state, above, &key, entry.blob_id, guard)?;
                            gathered.dead_blobs.extend(end_seq.map(|end_seq| (end_seq, entry.blob_id)));
                        }
                        continue;
                    };
                    sources.insert(address.slot(), there);
                }
                let damaged = |what| self.level_store.space.page_file.damage_error(leaf.at.page, what);
                gathered.add(&node, slot).map_err(damaged)?;
            }
            if let Some(high) = leaf.high.as_ref().filter(|_| found.len() + 1 < most) {
                next = self.level_store.locate(level, SeekTarget::Containing(high), guard)?;
            }
            found.push(leaf);
        }
        Ok((found, gathered, sources))
    }

    /// Returns the commit that superseded a blob of `key` after its record was deleted below the
    /// levels `above`. Returns `None` if a newer entry refers to the blob, as the copy of the
    /// record does, or may do so. No memtable is frozen.
    fn blob_end_seq(
        &self,
        state: &KreonState,
        above: &[Level],
        key: &[u8],
        blob: u64,
        guard: &Guard,
    ) -> Result<Option<Seq>> {
        let hash = self.hash(key);
        let mut end_seq = None;
        for memtable in state.memtables.iter() {
            let Some(place) = memtable.find(hash, key, guard) else { continue };
            let version = memtable.version(place);
            if version.word.is_blob() {
                // A blob that is being moved or superseded concurrently has no number here.
                let referenced_blob = self.blob_ids.lock().get(&version.word.address().bits()).copied();
                if referenced_blob.is_none_or(|referenced_blob| referenced_blob == blob) {
                    return Ok(None);
                }
            }
            end_seq = end_seq.or(Some(version.seq));
        }
        for level in above {
            let Some(seen) = self.level_store.find(level, hash, key, guard)? else { continue };
            if seen.entry.is_blob() && seen.entry.blob_id == blob {
                return Ok(None);
            }
            end_seq = end_seq.or(Some(seen.max_seq));
        }
        if end_seq.is_none() {
            end_seq = Some(state.range_seq(key, Seq::LATEST, guard)).filter(|removed| *removed != Seq::ZERO);
        }
        // Checked after the memtables: a version that they drop for a view is among the old
        // versions before.
        Ok(end_seq.filter(|_| !self.versions.refers_to_blob(&key.to_vec(), blob)))
    }

    /// Writes the result of a step and publishes it.
    pub(crate) fn publish_step<M: MergeResolver>(
        &self,
        spill: &mut SpillState,
        change: &mut LevelEdit<'_, M>,
        levels: Result<Vec<(usize, Level)>>,
        spilled: Option<&Arc<KreonMemtable>>,
        guard: &Guard,
    ) -> Result<()> {
        let written = levels.and_then(|levels| {
            let leaves = change.new_nodes.iter().filter(|made| made.level == 0);
            self.level_store.space.write_unpublished(leaves.map(|made| (made.at.page, &made.bytes[..])))?;
            Ok(levels)
        });
        let levels = match written {
            Ok(levels) => levels,
            Err(error) => {
                change.roll_back();
                return Err(error);
            }
        };
        change.finish();
        let is_hot = change.replaced_pages.iter().any(|(page, _)| self.level_store.cache.contains(*page));
        for NewNode { at, level, bytes, filter } in std::mem::take(&mut change.new_nodes) {
            let is_inner = level > 0;
            self.level_store.filters.replace(at.page, filter, guard);
            if is_inner {
                spill.dirty_nodes.insert(at.page);
            }
            let has_room =
                self.context.memory.has_room(bytes.len() as u64 + (self.context.memory.budget() >> 5));
            if is_inner
                || has_room
                || (is_hot && self.level_store.cache.evict_until_room(bytes.len() as u64, guard))
            {
                self.level_store.cache.replace(at.page, CachedNode::new(&bytes, !is_inner, is_inner), guard);
            } else {
                self.level_store.cache.remove(at.page, guard);
            }
        }
        let before = self.state(guard);
        let mut all = before.levels.to_vec();
        for (number, level) in levels {
            all.resize(all.len().max(number + 1), Level::default());
            all[number] = level;
        }
        change.resolver.before_publish();
        let after = last_nonempty_level(&all);
        if before.last_nonempty_level().is_some_and(|before| Some(before) != after) {
            self.live_bitmap.reset(after.is_some());
        }
        self.state.replace(guard, |now| {
            let frozen = now.memtables.frozen().map(|frozen| frozen.number);
            assert!(
                spilled.is_none_or(|spilled| Some(spilled.number) == frozen),
                "kreon (I1): a memtable leaves the state only after its entries are in a level"
            );
            now.with_levels(all, spilled.is_some())
        });
        if let Some(spilled) = spilled {
            spilled.uncount_memory(&self.context.memory);
        }
        let gone = std::mem::take(&mut change.replaced_pages);
        for (page, _) in &gone {
            spill.dirty_nodes.remove(page);
        }
        self.level_store.free_replaced_nodes(&gone, guard);
        let (stats, now) = (&mut spill.spill_stats, change.spill_stats);
        stats.spills = (stats.spills.0 + now.spills.0, stats.spills.1 + now.spills.1);
        stats.merges = (stats.merges.0 + now.merges.0, stats.merges.1 + now.merges.1);
        Ok(())
    }
}

impl LevelStore {
    /// Frees nodes that are no longer part of the levels. Readers of earlier states may still use
    /// them; some nodes exist only in memory.
    pub(crate) fn free_replaced_nodes(self: &Arc<LevelStore>, gone: &[(u32, u32)], guard: &Guard) {
        self.space.release_pages(gone);
        let (level_store, gone) = (Arc::clone(self), gone.to_vec());
        guard.defer(move || {
            let guard = &epoch::pin();
            for (page, _) in &gone {
                level_store.cache.remove(*page, guard);
                level_store.filters.remove(*page, guard);
            }
            level_store.space.free_unreadable_pages(&gone);
        });
        guard.flush();
    }
}
