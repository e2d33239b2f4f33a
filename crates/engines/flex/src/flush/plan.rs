//! # Plan: the new content of the intervals that a step touches
//!
//! ## Rule
//!
//! For each touched interval, with c bytes of changes and l bytes stored:
//!
//! ```text
//!  insert    the index is empty, or all changes are behind the last key of the last
//!            interval and are many: new intervals, nothing is read             costs c
//!  append    a run behind the others, nothing is read                          costs c
//!  rewrite   read, merge, and write new intervals of one run each              costs l + c
//! ```
//!
//! An append is chosen (`should_append`) if it costs at most half of a rewrite. An interval is
//! rewritten nevertheless if it has many runs or superseded versions, grows too large, or gets many
//! tombstones. An interval with blobs is rewritten too: only that finds superseded blobs, which are
//! large. On a nearly full disk, an interval is rewritten only if that frees space.
//! `plan_defragment` and `add_neighbours` rewrite or merge neighbours. `FlushChoiceCounts` counts
//! the choices.
//!
//! ## Costs
//!
//! One walk over the index finds all touched intervals. Slots are prefetched then, and blocks a few
//! intervals ahead. If reads wait for the device, intervals to rewrite are requested further ahead.
//! No key is hashed for its fingerprint: old blocks and the batch have all fingerprints already. An
//! append decodes no stored pair.

use std::ops::Range;

use sheaf_engine::keys::shortest_separator;
use sheaf_engine::memtable::prefix::Separator;
use sheaf_engine::memtable::range_tombstones::RangeTombstones;
use sheaf_engine::views::Views;
use sheaf_flexspace::tree::TreeEntry;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;
use smallvec::{SmallVec, smallvec};

use crate::engine::FlexEngine;
use crate::flush::changes::{ChangeBatch, VersionFilter, merge};
use crate::flush::interval_lookup::TouchedInterval;
use crate::index::slots::{IntervalCounts, UNKNOWN_LIVE};
use crate::index::table::{IntervalPlan, PlannedChange, PlannedInterval};
use crate::index::{Interval, SparseIndex};
use crate::interval::block::{Block, BlockRef, FingerprintedPair};
use crate::interval::run::{self, MAX_RUN_HEADER, StoredPair};

/// Inputs of the plan of a step.
pub(crate) struct PlanInputs<'a> {
    pub(crate) index: &'a SparseIndex,
    pub(crate) batch: &'a ChangeBatch,
    pub(crate) views: &'a Views,
    /// Range tombstones that hide versions of the intervals.
    pub(crate) ranges: Option<&'a RangeTombstones>,
    pub(crate) guard: &'a Guard,
}

impl PlanInputs<'_> {
    /// Returns the first change at or after `from` that belongs to the interval `next` or to a
    /// later one.
    fn end_of(&self, from: usize, next: Option<&TreeEntry<Interval>>) -> usize {
        next.map_or(self.batch.len(), |next| {
            self.batch.end_before(from, |key| self.index.is_before(key, next))
        })
    }
}

/// Blocks that are prefetched ahead.
const PREFETCH_BLOCKS: usize = 4;
/// Intervals ahead that are requested from the device if they will be read.
const READ_AHEAD_INTERVALS: usize = 32;
/// Largest number of neighbours that one rewrite merges. Emptied intervals always fit, and there
/// may be nothing else in the space.
const MAX_MERGED: usize = 32;

/// Neighbouring intervals that become one, and the changes of all of them.
struct IntervalGroup {
    intervals: SmallVec<[TreeEntry<Interval>; 2]>,
    /// The blocks of the intervals. If there is a `replaced_separator`, the first block is the one
    /// of an interval that is only planned.
    blocks: SmallVec<[BlockRef; 2]>,
    changes: Range<usize>,
    /// Number of the versions that stay, and their bytes.
    kept_sizes: [usize; 2],
    /// Separator of the last planned interval, if that interval was moved from the plan into this
    /// group.
    replaced_separator: Option<Option<Vec<u8>>>,
}

impl IntervalGroup {
    /// Returns the versions that stay, and adds superseded blobs to `dead`.
    fn merge<'p>(
        &'p self,
        inputs: &'p PlanInputs<'_>,
        dead: &mut Vec<(Seq, u64)>,
    ) -> Vec<FingerprintedPair<'p>> {
        let blocks: SmallVec<[&Block; 2]> = self.blocks.iter().map(|block| &**block).collect();
        let changes = self.changes.clone().map(|at| inputs.batch.fingerprinted_pair(at));
        merge(&blocks, changes, &mut VersionFilter::new(inputs, dead))
    }

    /// Adds a neighbour behind the others, with the changes up to `end`. Only the versions of the
    /// neighbour are merged, because no key is in two intervals.
    fn push(&mut self, inputs: &PlanInputs<'_>, next: TreeEntry<Interval>, block: BlockRef, end: usize) {
        let changes = (self.changes.end..end).map(|at| inputs.batch.fingerprinted_pair(at));
        let dead = &mut Vec::new(); // counted when all is merged
        let stays = count_and_bytes(&merge(&[&block], changes, &mut VersionFilter::new(inputs, dead)));
        self.kept_sizes = [self.kept_sizes[0] + stays[0], self.kept_sizes[1] + stays[1]];
        self.changes.end = end;
        self.blocks.push(block);
        self.intervals.push(next);
    }

    /// Returns the tombstone that an emptied group keeps at the start of the space: that of its
    /// lowest key. Some interval has to begin with the lowest key.
    fn placeholder<'p>(&'p self, inputs: &'p PlanInputs<'_>) -> Option<FingerprintedPair<'p>> {
        let stored =
            self.blocks.iter().find(|block| block.len() > 0).map(|block| block.fingerprinted_pair(0));
        let changed = self.changes.clone().next().map(|at| inputs.batch.fingerprinted_pair(at));
        let order = |known: &FingerprintedPair<'p>| (known.pair.key, std::cmp::Reverse(known.pair.seq));
        stored
            .into_iter()
            .chain(changed)
            .min_by(|a, b| order(a).cmp(&order(b)))
            .map(|known| match inputs.ranges {
                // A range tombstone hides the version, which nothing needs.
                Some(_) => FingerprintedPair {
                    pair: StoredPair { content: RecordContent::Remove, ..known.pair },
                    ..known
                },
                None => known,
            })
            .filter(|known| known.pair.is_tombstone())
    }

    fn last(&self) -> &TreeEntry<Interval> {
        &self.intervals[self.intervals.len() - 1]
    }

    /// Returns the number of stored versions.
    fn stored_versions(&self) -> usize {
        self.blocks.iter().map(|block| block.len()).sum()
    }
}

impl FlexEngine {
    /// Plans the changes of a batch. Returns how many were planned; the rest needs another step.
    pub(crate) fn plan(&self, inputs: &PlanInputs<'_>, plan: &mut IntervalPlan) -> Result<usize> {
        let batch = inputs.batch;
        let all_touched = inputs.touched_intervals();
        let mut from =
            if all_touched.is_empty() { self.plan_new(inputs, 0..batch.len(), None, plan) } else { 0 };
        all_touched.iter().for_each(|touched| self.interval_cache.slots.prefetch(touched.entry.item.slot));
        let prefetch = |touched: &TouchedInterval| {
            self.interval_cache.slots.get(touched.entry.item.slot).prefetch(touched.entry.len, inputs.guard);
        };
        all_touched.iter().take(PREFETCH_BLOCKS).for_each(prefetch);
        let asks = self.interval_cache.io_gauge.is_device_bound();
        if asks {
            all_touched
                .iter()
                .take(READ_AHEAD_INTERVALS)
                .for_each(|touched| self.request_read(inputs, touched, plan));
        }
        for (number, TouchedInterval { entry, next, changes }) in all_touched.iter().enumerate() {
            all_touched.get(number + PREFETCH_BLOCKS).into_iter().for_each(prefetch);
            if let Some(touched) = all_touched.get(number + READ_AHEAD_INTERVALS).filter(|_| asks) {
                self.request_read(inputs, touched, plan);
            }
            if changes.start < from {
                continue; // merged with an earlier interval
            }
            if plan.counts.bytes >= self.sizes.step_written || plan.examined >= self.sizes.step_changes {
                break;
            }
            from = self.plan_interval(inputs, changes.clone(), entry, plan)?;
            if let Some(next) = next {
                from = self.plan_defragment(inputs, from, next, plan)?;
            }
        }
        for at in 0..from {
            if let RecordContent::Blob(blob) = batch.pair(at).content {
                plan.new_blobs.push(blob.id);
            }
        }
        Ok(from)
    }

    /// Requests the bytes of an interval from the device if the interval will be rewritten.
    fn request_read(&self, inputs: &PlanInputs<'_>, touched: &TouchedInterval, plan: &IntervalPlan) {
        let TouchedInterval { entry, changes, .. } = touched;
        if let Some(view) = &inputs.index.view
            && !self.interval_cache.slots.get(entry.item.slot).is_cached()
            && !plan.is_append_only
            && !self.should_append(inputs, changes, entry, plan.is_disk_low)
        {
            view.will_need(entry.start, entry.len);
        }
    }

    /// Plans new intervals: the first ones of the space, or those behind `last`, an interval and
    /// its last key. Returns the first change that is left.
    fn plan_new(
        &self,
        inputs: &PlanInputs<'_>,
        changes: Range<usize>,
        last: Option<(&TreeEntry<Interval>, &[u8])>,
        plan: &mut IntervalPlan,
    ) -> usize {
        let keeper = &mut VersionFilter::new(inputs, &mut plan.dead_blobs);
        let merged = merge(&[], changes.clone().map(|at| inputs.batch.fingerprinted_pair(at)), keeper);
        let planned_intervals = self.split_into_intervals(&merged, last.map(|(_, key)| key), &mut plan.bytes);
        if !planned_intervals.is_empty() {
            plan.sample_new_keys(0, u32::try_from(changes.len()).unwrap_or(u32::MAX), changes.len());
            plan.counts.inserted += planned_intervals.len() as u64;
            plan.counts.bytes += bytes_of(&planned_intervals);
            plan.counts.inserted_bytes += bytes_of(&planned_intervals);
            let at = last.map_or(0, |(entry, _)| entry.start + entry.len);
            let separator = last.map_or(Separator::LOWEST, |(entry, _)| entry.item.separator);
            plan.changes.push(PlannedChange {
                at,
                len: 0,
                old_slots: SmallVec::new(),
                separator,
                is_append: false,
                planned_intervals,
            });
        }
        changes.end
    }

    /// Plans the new content of one interval, and possibly of its neighbours. Returns the first
    /// change that is left.
    fn plan_interval(
        &self,
        inputs: &PlanInputs<'_>,
        changes: Range<usize>,
        entry: &TreeEntry<Interval>,
        plan: &mut IntervalPlan,
    ) -> Result<usize> {
        if plan.is_append_only {
            return Ok(self.plan_append(inputs, changes, entry, plan));
        }
        if let Some(last) = self.append_point(inputs, &changes, entry)? {
            return Ok(self.plan_new(inputs, changes, Some((entry, &last)), plan));
        }
        if self.should_append(inputs, &changes, entry, plan.is_disk_low) {
            return Ok(self.plan_append(inputs, changes, entry, plan));
        }
        match self.plan_rewrite(inputs, changes.clone(), entry, plan) {
            // The stored bytes cannot be read. The changes can still be appended.
            Err(error) if error.is_corrupt() => Ok(self.plan_append(inputs, changes, entry, plan)),
            other => other,
        }
    }

    /// Returns the last key of the last interval if that interval is nearly full and many changes
    /// are behind the key.
    fn append_point(
        &self,
        inputs: &PlanInputs<'_>,
        changes: &Range<usize>,
        entry: &TreeEntry<Interval>,
    ) -> Result<Option<Vec<u8>>> {
        let is_cached = self.interval_cache.slots.get(entry.item.slot).is_cached();
        if changes.len() * 4 < self.sizes.pairs || !is_cached || inputs.index.next(entry).is_some() {
            return Ok(None);
        }
        let block = inputs.index.block(entry, &self.interval_cache, inputs.guard)?;
        let last = block.len().checked_sub(1).map(|last| block.pair(last).key);
        let is_full = block.len() * 4 >= self.sizes.pairs * 3;
        Ok(last.filter(|last| is_full && *last < inputs.batch.key(changes.start)).map(<[u8]>::to_vec))
    }

    /// Rewrites an interval without changes if it is fragmented and there is time, because the next
    /// change would rewrite it anyway. Returns the first change that is left: `from`, or a later
    /// one if a neighbour was merged with the interval.
    fn plan_defragment(
        &self,
        inputs: &PlanInputs<'_>,
        from: usize,
        entry: &TreeEntry<Interval>,
        plan: &mut IntervalPlan,
    ) -> Result<usize> {
        if !plan.may_defragment
            || !self.is_fragmented(self.interval_cache.slots.get(entry.item.slot).interval_counts())
        {
            return Ok(from);
        }
        let is_untouched = inputs.end_of(from, inputs.index.next(entry).as_ref()) == from
            && plan.changes.last().is_some_and(|last| last.at + last.len <= entry.start);
        if !is_untouched {
            return Ok(from);
        }
        match self.plan_rewrite(inputs, from..from, entry, plan) {
            Err(error) if error.is_corrupt() => Ok(from),
            planned => {
                plan.counts.defragmented += 1;
                planned
            }
        }
    }

    /// Whether an interval has as many runs, or as many superseded versions, as it may have.
    fn is_fragmented(&self, interval_counts: IntervalCounts) -> bool {
        let dead = if interval_counts.live == UNKNOWN_LIVE {
            0
        } else {
            interval_counts.entries.saturating_sub(interval_counts.live)
        };
        interval_counts.runs >= self.sizes.runs
            || u64::from(dead) * 100 >= u64::from(interval_counts.live) * self.sizes.max_dead_percent
    }

    /// Whether changes are appended to an interval rather than merged with it; see the rule in the
    /// header.
    fn should_append(
        &self,
        inputs: &PlanInputs<'_>,
        changes: &Range<usize>,
        entry: &TreeEntry<Interval>,
        is_tight: bool,
    ) -> bool {
        let interval_counts = self.interval_cache.slots.get(entry.item.slot).interval_counts();
        let stored = interval_counts.entries as usize;
        let cost = MAX_RUN_HEADER + inputs.batch.pairs(changes.clone()).map(|pair| pair.len()).sum::<usize>();
        let tombstones = inputs.batch.pairs(changes.clone()).filter(StoredPair::is_tombstone).count();
        let len = usize::try_from(entry.len).unwrap_or(usize::MAX / 2);
        // Superseded versions after the append, if no change has a new key.
        let (live, slack) = (u64::from(interval_counts.live), self.sizes.max_dead_percent);
        let dead = (stored + changes.len()) as u64 - live.min(stored as u64);
        let is_within = interval_counts.live == UNKNOWN_LIVE || dead * 100 <= live * slack;
        let may_append = !interval_counts.has_blobs
            && is_within
            && interval_counts.runs < self.sizes.runs
            && stored + changes.len() <= 2 * self.sizes.pairs
            && len + cost <= 2 * self.sizes.bytes
            && tombstones * 4 <= stored;
        let left = len / stored.max(1) * stored.saturating_sub(tombstones);
        let makes_room = (left + cost) * 2 <= len || len * 4 <= cost;
        (may_append && cost <= len) || (is_tight && !makes_room)
    }

    /// Plans a run behind the others. Returns the first change that is left.
    fn plan_append(
        &self,
        inputs: &PlanInputs<'_>,
        changes: Range<usize>,
        entry: &TreeEntry<Interval>,
        plan: &mut IntervalPlan,
    ) -> usize {
        let start = plan.bytes.len();
        let mut places: SmallVec<[u32; 16]> = SmallVec::new();
        let stands = |at: usize| places.push(u32::try_from(at).unwrap_or(u32::MAX));
        run::encode(false, inputs.batch.pairs(changes.clone()), &mut plan.bytes, stands);
        let data = start..plan.bytes.len();
        let slot = self.interval_cache.slots.get(entry.item.slot);
        let interval_counts = slot.interval_counts();
        let known =
            || changes.clone().map(|at| inputs.batch.fingerprinted_pair(at)).zip(places.iter().copied());
        let block = slot.block(inputs.guard).and_then(|block| {
            let added: SmallVec<[(FingerprintedPair<'_>, u32); 16]> = known().collect();
            block.with_run(&plan.bytes[data.clone()], &added).ok()
        });
        let fingerprints = slot.fingerprints(inputs.guard).and_then(|fingerprints| {
            let added: SmallVec<[(u16, u32); 16]> =
                known().map(|(known, at)| (known.fingerprint, at)).collect();
            fingerprints.with_run(entry.len, &plan.bytes[data.clone()], added.into_iter())
        });
        let added = u32::try_from(changes.len()).unwrap_or(u32::MAX);
        let interval_counts = IntervalCounts {
            entries: interval_counts.entries.saturating_add(added),
            live: block.as_ref().map_or(UNKNOWN_LIVE, |block| block.live()),
            runs: interval_counts.runs + 1,
            has_blobs: interval_counts.has_blobs
                || inputs.batch.pairs(changes.clone()).any(|pair| pair.is_blob()),
        };
        plan.counts.appended += 1;
        plan.counts.bytes += data.len() as u64;
        plan.counts.appended_bytes += data.len() as u64;
        plan.sample_new_keys(slot.interval_counts().live, interval_counts.live, changes.len());
        plan.changes.push(PlannedChange {
            at: entry.start,
            len: entry.len,
            old_slots: smallvec![entry.item.slot],
            separator: entry.item.separator,
            is_append: true,
            planned_intervals: smallvec![PlannedInterval {
                separator: None,
                data,
                interval_counts,
                block,
                fingerprints
            }],
        });
        changes.end
    }

    /// Whether `pairs` pairs of `bytes` bytes and those of `other` fit into one interval.
    fn fits_with(&self, pairs: usize, bytes: usize, other: &TreeEntry<Interval>) -> bool {
        let entries = self.interval_cache.slots.get(other.item.slot).interval_counts().entries as usize;
        pairs + entries <= self.sizes.pairs && bytes as u64 + other.len <= self.sizes.bytes as u64
    }

    /// Plans the rewrite of an interval, and of neighbours that fit into it. Returns the first
    /// change that is left.
    pub(crate) fn plan_rewrite(
        &self,
        inputs: &PlanInputs<'_>,
        changes: Range<usize>,
        entry: &TreeEntry<Interval>,
        plan: &mut IntervalPlan,
    ) -> Result<usize> {
        let block = inputs.index.block(entry, &self.interval_cache, inputs.guard)?.keep();
        let mut group = IntervalGroup {
            intervals: smallvec![*entry],
            blocks: smallvec![block],
            changes,
            kept_sizes: [0; 2],
            replaced_separator: None,
        };
        let mut dead = Vec::new();
        let merged = group.merge(inputs, &mut dead);
        let stays = count_and_bytes(&merged);
        plan.record_read(group.stored_versions());
        if !self.is_small(stays) {
            let planned_intervals = self.split_into_intervals(&merged, None, &mut plan.bytes);
            drop(merged);
            plan.dead_blobs.extend(dead);
            return Ok(plan.replace_group(group, planned_intervals));
        }
        drop(merged);
        group.kept_sizes = stays;
        self.add_neighbours(inputs, &mut group, plan)?;
        plan.record_read(group.stored_versions());
        dead.clear();
        let mut merged = group.merge(inputs, &mut dead);
        let is_first = group.intervals[0].start == 0 && group.replaced_separator.is_none();
        if merged.is_empty() && is_first && inputs.index.next(group.last()).is_some() {
            merged.extend(group.placeholder(inputs));
        }
        let planned_intervals = self.split_into_intervals(&merged, None, &mut plan.bytes);
        drop(merged);
        plan.dead_blobs.extend(dead);
        Ok(plan.replace_group(group, planned_intervals))
    }

    /// Whether the pairs and the bytes are at most half an interval.
    fn is_small(&self, [pairs, bytes]: [usize; 2]) -> bool {
        pairs * 2 <= self.sizes.pairs && bytes * 2 <= self.sizes.bytes
    }

    /// Adds neighbours to a small group while they fit: first those behind it, then the one before
    /// it.
    fn add_neighbours(
        &self,
        inputs: &PlanInputs<'_>,
        group: &mut IntervalGroup,
        plan: &mut IntervalPlan,
    ) -> Result<()> {
        while self.is_small(group.kept_sizes) && group.intervals.len() < MAX_MERGED {
            let [pairs, bytes] = group.kept_sizes;
            // The first interval must not be empty, because it begins with the lowest key.
            let must_grow = pairs == 0 && group.intervals[0].start == 0;
            let fits =
                |next: &TreeEntry<Interval>| must_grow || self.fits_with(pairs, bytes + MAX_RUN_HEADER, next);
            let Some(next) = inputs.index.next(group.last()).filter(fits) else { break };
            let end = inputs.end_of(group.changes.end, inputs.index.next(&next).as_ref());
            let block = inputs.index.block(&next, &self.interval_cache, inputs.guard)?.keep();
            plan.record_read(block.len());
            group.push(inputs, next, block, end);
            plan.counts.merged += 1;
        }
        if self.is_small(group.kept_sizes) {
            self.merge_previous(inputs, group, plan)?;
        }
        Ok(())
    }

    /// Merges the interval before a small group into the group, if both fit into one. That interval
    /// is from the index, or, if it was planned just before, it is the last planned one. Must be
    /// the last step of the growth: an interval that it takes out of the plan must not be lost to
    /// an unreadable block.
    fn merge_previous(
        &self,
        inputs: &PlanInputs<'_>,
        group: &mut IntervalGroup,
        plan: &mut IntervalPlan,
    ) -> Result<()> {
        let bytes = group.kept_sizes[1];
        let Some(previous) = inputs.index.previous(&group.intervals[0]) else { return Ok(()) };
        let stored = group.stored_versions();
        let Some(change) = plan.changes.last_mut().filter(|change| change.at + change.len > previous.start)
        else {
            if self.fits_with(stored, bytes + MAX_RUN_HEADER, &previous) {
                group
                    .blocks
                    .insert(0, inputs.index.block(&previous, &self.interval_cache, inputs.guard)?.keep());
                group.intervals.insert(0, previous);
                plan.counts.merged += 1;
            }
            return Ok(());
        };
        let fits = |planned_interval: &PlannedInterval| {
            planned_interval.interval_counts.entries as usize + stored <= self.sizes.pairs
                && planned_interval.data.len() + bytes + MAX_RUN_HEADER <= self.sizes.bytes
                && planned_interval.block.is_some()
        };
        if !change.is_append
            && change.planned_intervals.last().is_some_and(fits)
            && let Some(PlannedInterval { separator, block: Some(block), .. }) =
                change.planned_intervals.pop()
        {
            group.blocks.insert(0, block);
            group.replaced_separator = Some(separator);
            plan.counts.merged += 1;
        }
        Ok(())
    }

    /// Splits sorted pairs into intervals of about the same size. `low` is the key before all of
    /// them, if the first interval needs a separator of its own.
    fn split_into_intervals(
        &self,
        pairs: &[FingerprintedPair<'_>],
        low: Option<&[u8]>,
        bytes: &mut Vec<u8>,
    ) -> SmallVec<[PlannedInterval; 2]> {
        let parts = pairs.len().div_ceil(self.sizes.pairs).max(1);
        let each = pairs.len().div_ceil(parts).max(1);
        let mut planned_intervals = SmallVec::with_capacity(parts);
        let key = |at: usize| pairs[at].pair.key;
        let mut from = 0;
        while from < pairs.len() {
            let (mut to, mut len) = (from, 0);
            while to < pairs.len() {
                // The versions of one key must stay together.
                let is_new = to == from || key(to) != key(to - 1);
                len += pairs[to].pair.len();
                if is_new && to > from && (to - from >= each || len > self.sizes.bytes) {
                    break;
                }
                to += 1;
            }
            let before = if from > 0 { Some(key(from - 1)) } else { low };
            let separator = before.map(|before| shortest_separator(before, key(from)).to_vec());
            planned_intervals.push(encode_interval(&pairs[from..to], separator, bytes));
            from = to;
        }
        planned_intervals
    }
}

/// Encodes sorted pairs as an interval and appends it to `bytes`.
fn encode_interval(
    pairs: &[FingerprintedPair<'_>],
    separator: Option<Vec<u8>>,
    bytes: &mut Vec<u8>,
) -> PlannedInterval {
    let start = bytes.len();
    let mut places: SmallVec<[u32; 32]> = SmallVec::new();
    let stands = |at: usize| places.push(u32::try_from(at).unwrap_or(u32::MAX));
    run::encode(true, pairs.iter().map(|known| known.pair), bytes, stands);
    let data = start..bytes.len();
    let block = Block::of(&bytes[data.clone()], pairs.iter().copied().zip(places)).ok();
    let interval_counts = IntervalCounts {
        entries: u32::try_from(pairs.len()).unwrap_or(u32::MAX),
        live: block.as_ref().map_or(UNKNOWN_LIVE, |block| block.live()),
        runs: 1,
        has_blobs: pairs.iter().any(|known| known.pair.is_blob()),
    };
    PlannedInterval { separator, data, interval_counts, block, fingerprints: None }
}

impl IntervalPlan {
    /// Adds a sample of `changes` changes to the share of new keys, if the live keys before and
    /// after are known.
    fn sample_new_keys(&mut self, before: u32, after: u32, changes: usize) {
        if before != UNKNOWN_LIVE && after != UNKNOWN_LIVE {
            self.new_key_sample[0] += u64::from(after.saturating_sub(before));
            self.new_key_sample[1] += changes as u64;
        }
    }

    /// Counts the versions that were read from one more interval.
    fn record_read(&mut self, versions: usize) {
        self.examined += 1;
        self.counts.versions_read += versions as u64;
    }

    /// Replaces a group by planned intervals. Returns the first change that is left.
    fn replace_group(
        &mut self,
        group: IntervalGroup,
        planned_intervals: SmallVec<[PlannedInterval; 2]>,
    ) -> usize {
        let before = group.blocks.iter().map(|block| block.live()).sum();
        let after =
            planned_intervals.iter().map(|planned_interval| planned_interval.interval_counts.live).sum();
        self.sample_new_keys(before, after, group.changes.len());
        self.rewrite(&group.intervals, group.replaced_separator, planned_intervals);
        group.changes.end
    }

    /// Replaces `intervals` by `planned_intervals`. If there is `before`, the first one also
    /// replaces the last planned interval, and `before` is the separator of that.
    fn rewrite(
        &mut self,
        intervals: &[TreeEntry<Interval>],
        before: Option<Option<Vec<u8>>>,
        mut planned_intervals: SmallVec<[PlannedInterval; 2]>,
    ) {
        self.counts.rewritten += 1;
        self.counts.bytes += bytes_of(&planned_intervals);
        let len = intervals.iter().map(|entry| entry.len).sum::<u64>();
        let old = intervals.iter().map(|entry| entry.item.slot);
        if let Some(separator) = before
            && let Some(change) = self.changes.last_mut()
        {
            change.len += len;
            change.old_slots.extend(old);
            if let Some(first) = planned_intervals.first_mut() {
                first.separator = separator;
            }
            change.planned_intervals.extend(planned_intervals);
            return;
        }
        let (at, separator) = (intervals[0].start, intervals[0].item.separator);
        self.changes.push(PlannedChange {
            at,
            len,
            old_slots: old.collect(),
            separator,
            is_append: false,
            planned_intervals,
        });
    }
}

/// Returns the number of versions and their bytes.
fn count_and_bytes(merged: &[FingerprintedPair<'_>]) -> [usize; 2] {
    [merged.len(), merged.iter().map(|known| known.pair.len()).sum()]
}

fn bytes_of(planned_intervals: &[PlannedInterval]) -> u64 {
    planned_intervals.iter().map(|planned_interval| planned_interval.data.len() as u64).sum()
}
