//! # Interval table: the writer's side of the sparse index
//!
//! All changes of the space and the index are made here, under one lock. Each is an edit of the
//! space, the same change of the tree, and one publication of both.
//!
//! ## Invariants
//!
//! 1. The tree and the space agree: the bytes of an interval of the tree are, in the space, its
//!    runs and nothing else.
//! 2. A slot without an interval is reused only after every index that refers to it is dropped.
//! 3. The mark of the space counts our edits in steps of two. The lowest bit is set when a memtable
//!    was flushed completely for the first time; before that, pairs may be in the image only. An
//!    image of the index describes the space exactly if both marks are equal.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::keys::common_prefix_len;
use sheaf_engine::views::Views;
use sheaf_flexspace::tree::ShiftTree;
use sheaf_flexspace::{FlexSpace, SpaceOptions};
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering, fence};
use sheaf_platform::sync::epoch::Guard;

use crate::flush::changes::ChangeBatch;
use crate::flush::range_removal::RangeProgress;
use crate::flush::value_prefetch::ValuePrefetch;
use crate::image::RetainedRecords;
use crate::index::slot_state::SlotView;
use crate::index::slots::IntervalCounts;
use crate::index::{Interval, IntervalCache, SparseIndex};
use crate::interval::block::BlockRef;
use crate::interval::fingerprints::Fingerprints;
use sheaf_engine::memtable::prefix::{KeyPrefix, Separator};
use smallvec::SmallVec;

/// A planned interval.
#[derive(Debug)]
pub(crate) struct PlannedInterval {
    /// Separator of the interval. `None` means the one of the first interval that it replaces.
    pub(crate) separator: Option<Vec<u8>>,
    /// Range of the plan's bytes with its runs, or with the run that is appended.
    pub(crate) data: Range<usize>,
    pub(crate) interval_counts: IntervalCounts,
    /// The block of the whole interval, if it is known.
    pub(crate) block: Option<BlockRef>,
    /// The fingerprints of the interval, if only these are known.
    pub(crate) fingerprints: Option<Fingerprints>,
}

/// A change of a range of the space.
#[derive(Debug)]
pub(crate) struct PlannedChange {
    /// Start of the range, before all changes of the plan.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Slots of the intervals in the range.
    pub(crate) old_slots: SmallVec<[u32; 2]>,
    /// Separator of the first interval in the range.
    pub(crate) separator: Separator,
    /// Whether the stored bytes stay, and the only planned interval is appended to the same
    /// interval.
    pub(crate) is_append: bool,
    pub(crate) planned_intervals: SmallVec<[PlannedInterval; 2]>,
}

/// Changes of disjoint ranges, in order, and the fate of blobs.
#[derive(Debug, Default)]
pub(crate) struct IntervalPlan {
    pub(crate) changes: Vec<PlannedChange>,
    /// Bytes of the planned intervals.
    pub(crate) bytes: Vec<u8>,
    /// Blobs that the space refers to after this plan.
    pub(crate) new_blobs: Vec<u64>,
    /// Blobs that the space no longer refers to, and the commits that superseded them.
    pub(crate) dead_blobs: Vec<(Seq, u64)>,
    /// Nothing is rewritten, because the edit was too large or the disk is full.
    pub(crate) is_append_only: bool,
    /// The disk is nearly full: an interval is rewritten only if that frees space.
    pub(crate) is_disk_low: bool,
    /// Whether intervals without changes may be rewritten if that pays.
    pub(crate) may_defragment: bool,
    /// Sample of changes with intervals in memory: number of new keys, and of all keys.
    pub(crate) new_key_sample: [u64; 2],
    /// Number of intervals that were read for a rewrite. A step ends after many of them even if it
    /// writes nothing.
    pub(crate) examined: usize,
    pub(crate) counts: FlushChoiceCounts,
}

/// Counters of the choices that flush steps made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlushChoiceCounts {
    /// New intervals.
    pub(crate) inserted: u64,
    /// Runs appended to intervals.
    pub(crate) appended: u64,
    /// Intervals, or neighbours together, that were rewritten.
    pub(crate) rewritten: u64,
    /// Intervals that were rewritten though nothing changed in them.
    pub(crate) defragmented: u64,
    /// Intervals that were merged into a neighbour.
    pub(crate) merged: u64,
    /// Changes that were superseded before they were flushed.
    pub(crate) skipped: u64,
    /// Versions that rewrites read.
    pub(crate) versions_read: u64,
    /// Bytes that flush steps wrote.
    pub(crate) bytes: u64,
    /// The part of these bytes in new intervals, and in runs appended to intervals. The rest was
    /// rewritten.
    pub(crate) inserted_bytes: u64,
    pub(crate) appended_bytes: u64,
}

impl FlushChoiceCounts {
    /// Returns the counters by name.
    pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("intervals inserted", self.inserted),
            ("intervals appended to", self.appended),
            ("intervals rewritten", self.rewritten),
            ("intervals defragmented", self.defragmented),
            ("intervals merged", self.merged),
            ("changes skipped", self.skipped),
            ("versions read by rewrites", self.versions_read),
            ("bytes committed", self.bytes),
            ("bytes of new intervals", self.inserted_bytes),
            ("bytes of appended runs", self.appended_bytes),
            ("bytes of rewritten intervals", self.bytes - self.inserted_bytes - self.appended_bytes),
        ]
    }
}

/// The state of the writer: the space, the tree and their bookkeeping.
#[derive(Debug)]
pub(crate) struct IntervalTable {
    pub(crate) space: Option<FlexSpace>,
    pub(crate) tree: ShiftTree<Interval>,
    pub(crate) prefix: Arc<KeyPrefix>,
    pub(crate) mark: u64,
    /// Mark of the space when the image was made. A space with a smaller mark is damaged.
    pub(crate) min_mark: u64,
    /// Newest commit that an index rebuild has found in the space.
    pub(crate) newest_rebuilt: Seq,
    /// Blobs that the space refers to.
    pub(crate) blobs: HashSet<u64>,
    /// The last key of the frozen memtable that was flushed.
    pub(crate) progress: Option<Box<[u8]>>,
    /// Progress of the last removals of ranges (`flush/range_removal.rs`).
    pub(crate) range_progress: Option<Box<RangeProgress>>,
    /// Key at which the sweep in progress continues (`flush/sweep.rs`).
    pub(crate) sweep: Option<Box<[u8]>>,
    /// Records of a frozen memtable that stay in memory (`image/mod.rs`).
    pub(crate) retained: RetainedRecords,
    /// Copy of the views at the time of that decision.
    pub(crate) views: Views,
    pub(crate) counts: FlushChoiceCounts,
    /// Sample of new keys since the last update: see [`IntervalPlan::new_key_sample`].
    pub(crate) new_key_sample: [u64; 2],
    /// Memory of the last step for the next one: its batch, and the bytes of its plan.
    pub(crate) spare_buffers: (ChangeBatch, Vec<u8>),
    /// Values of changes that will be flushed.
    pub(crate) value_prefetch: ValuePrefetch,
    token: Arc<()>,
    /// Slots that left the tree since the last publication.
    retired_slots: Vec<u32>,
    retire_queue: VecDeque<(Arc<()>, Vec<u32>)>,
    free: Vec<u32>,
    /// Memory account of the space. It has no limit: [`IntervalTable::account`] adds it to the
    /// budget together with our index.
    space_memory: Arc<Memory>,
    /// Bytes of the indexes that the budget counts.
    accounted: AtomicU64,
    /// Bytes of the space's buffers that the budget counts.
    buffered: AtomicU64,
    publications: u64,
    /// Consecutive steps that waited for readers.
    reader_waits: u32,
}

/// Number of steps that wait for readers before one continues regardless: the reader may be the
/// caller itself.
const MAX_READER_WAITS: u32 = 64;

impl IntervalTable {
    pub(crate) fn new() -> IntervalTable {
        IntervalTable {
            space: None,
            tree: ShiftTree::new(Interval::NONE),
            prefix: Arc::default(),
            mark: 0,
            min_mark: 0,
            newest_rebuilt: Seq::ZERO,
            blobs: HashSet::new(),
            progress: None,
            range_progress: None,
            sweep: None,
            retained: RetainedRecords::default(),
            views: Views::default(),
            counts: FlushChoiceCounts::default(),
            new_key_sample: [0; 2],
            spare_buffers: Default::default(),
            value_prefetch: ValuePrefetch::default(),
            token: Arc::default(),
            retired_slots: Vec::new(),
            retire_queue: VecDeque::new(),
            free: Vec::new(),
            space_memory: Arc::new(Memory::new(u64::MAX)),
            accounted: AtomicU64::new(0),
            buffered: AtomicU64::new(0),
            publications: 0,
            reader_waits: 0,
        }
    }

    /// Opens the space of the keyspace, and creates it if there is none and `create` is set.
    pub(crate) fn open(&mut self, context: &EngineContext, id: KeyspaceId, create: bool) -> Result<()> {
        let Some(engine_dir) = &context.engine_dir else { return Ok(()) };
        if self.space.is_some() || (!create && !engine_dir.exists(id)?) {
            return Ok(());
        }
        let options = self.options(context, create, engine_dir.read_only);
        match FlexSpace::open_on(Arc::clone(&engine_dir.disk), engine_dir.of(id), options) {
            Ok(space) => {
                self.mark = space.view().mark();
                self.space = Some(space);
                Ok(())
            }
            // An interrupted creation: the space was always empty.
            Err(Error::DatabaseNotFound { .. }) if !create => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Opens the readable part of the keyspace's space. Returns false if it has none.
    pub(crate) fn open_partial(
        &mut self,
        context: &EngineContext,
        id: KeyspaceId,
        skipped: &mut dyn FnMut(Error),
    ) -> Result<bool> {
        let Some(engine_dir) = context.engine_dir.as_ref().filter(|engine_dir| engine_dir.read_only) else {
            return Ok(false);
        };
        if !engine_dir.has_files(id)? {
            return Ok(false);
        }
        let options = self.options(context, false, true);
        let space =
            FlexSpace::open_partial(Arc::clone(&engine_dir.disk), engine_dir.of(id), options, skipped)?;
        self.mark = space.view().mark();
        self.space = Some(space);
        Ok(true)
    }

    fn options(&self, context: &EngineContext, create: bool, read_only: bool) -> SpaceOptions {
        SpaceOptions {
            create,
            read_only,
            memory: Arc::clone(&self.space_memory),
            clock: Arc::clone(&context.clock),
            inline: true,
            fine: true,
            // A damaged byte must not lose the pairs of other intervals, and removals must not need
            // memory for the parts of longer extents.
            merge_extents: false,
            tiny: context.tiny,
            ..SpaceOptions::default()
        }
    }

    /// Whether a memtable was ever flushed completely into the space.
    pub(crate) fn has_flushed_memtable(&self) -> bool {
        self.mark & 1 == 1
    }

    /// Carries out a plan, first in the space and then in the tree. `is_last` tells that it
    /// completes a memtable.
    pub(crate) fn commit(
        &mut self,
        plan: &IntervalPlan,
        is_last: bool,
        interval_cache: &IntervalCache,
        guard: &Guard,
    ) -> Result<()> {
        if plan.changes.is_empty() && (self.has_flushed_memtable() || !is_last) {
            return Ok(());
        }
        let mark = (self.mark + 2) | u64::from(is_last);
        let excess = self.space_excess();
        self.edit(plan, mark)?;
        self.mark = mark;
        let mut shift = 0u64; // wrapped
        for change in &plan.changes {
            let at = change.at.wrapping_add(shift);
            if change.planned_intervals.is_empty() {
                self.tree.collapse(at, change.len, |_, _| {});
            }
            self.retired_slots.extend_from_slice(&change.old_slots);
            let is_asked = change.old_slots.iter().any(|slot| interval_cache.slots.is_requested(*slot));
            let (mut to, mut less) = (at, change.len);
            for planned_interval in &change.planned_intervals {
                let before = if change.is_append { change.len } else { 0 };
                let len = before + planned_interval.data.len() as u64;
                let item = self.interval(change, planned_interval, interval_cache);
                if is_asked {
                    interval_cache.slots.mark_requested(item.slot);
                }
                if let Some(block) = &planned_interval.block {
                    interval_cache.slots.insert_block(item.slot, block, &interval_cache.context, guard);
                } else if let Some(fingerprints) = &planned_interval.fingerprints {
                    interval_cache.slots.insert_fingerprints(
                        item.slot,
                        fingerprints.clone(),
                        &interval_cache.context,
                        guard,
                    );
                }
                self.tree.replace(to, less, len, item, |_, _| {});
                (to, less) = (to + len, 0);
            }
            shift = shift.wrapping_add(to - at).wrapping_sub(change.len);
        }
        assert!(self.space_excess() == excess, "table (I1): tree and space grow by the same bytes");
        assert!(
            self.space.as_ref().is_none_or(|space| space.mark() == mark),
            "table (I3): the space has the mark of the newest edit"
        );
        self.blobs.extend(plan.new_blobs.iter().copied());
        for (_, id) in &plan.dead_blobs {
            self.blobs.remove(id);
        }
        self.new_key_sample[0] += plan.new_key_sample[0];
        self.new_key_sample[1] += plan.new_key_sample[1];
        let counts = &mut self.counts;
        counts.inserted += plan.counts.inserted;
        counts.appended += plan.counts.appended;
        counts.rewritten += plan.counts.rewritten;
        counts.defragmented += plan.counts.defragmented;
        counts.merged += plan.counts.merged;
        counts.skipped += plan.counts.skipped;
        counts.versions_read += plan.counts.versions_read;
        counts.bytes += plan.counts.bytes;
        counts.inserted_bytes += plan.counts.inserted_bytes;
        counts.appended_bytes += plan.counts.appended_bytes;
        Ok(())
    }

    /// Returns the bytes of the space that the tree lacks (wrapped). Edits do not change them.
    fn space_excess(&self) -> Option<u64> {
        self.space.as_ref().map(|space| space.len().wrapping_sub(self.tree.len()))
    }

    fn edit(&self, plan: &IntervalPlan, mark: u64) -> Result<()> {
        let Some(space) = &self.space else { return Ok(()) };
        let mut edit = space.edit();
        let mut shift = 0u64; // wrapped
        for change in &plan.changes {
            let at = change.at.wrapping_add(shift);
            let mut to = at;
            if change.is_append {
                to += change.len;
            } else if change.len > 0 {
                edit = edit.collapse(at, change.len);
                shift = shift.wrapping_sub(change.len);
            }
            for planned_interval in &change.planned_intervals {
                edit = edit.insert(to, &plan.bytes[planned_interval.data.clone()]);
                to += planned_interval.data.len() as u64;
                shift = shift.wrapping_add(planned_interval.data.len() as u64);
            }
        }
        edit.mark(mark).commit()
    }

    /// Returns a new interval with its slot and separator.
    fn interval(
        &mut self,
        change: &PlannedChange,
        planned_interval: &PlannedInterval,
        interval_cache: &IntervalCache,
    ) -> Interval {
        match &planned_interval.separator {
            Some(bytes) => self.new_interval(bytes, planned_interval.interval_counts, interval_cache),
            None if change.separator.is_long() => self.new_interval(
                &change.separator.bytes(&self.prefix),
                planned_interval.interval_counts,
                interval_cache,
            ),
            None => Interval {
                separator: change.separator,
                slot: self.new_slot(planned_interval.interval_counts, interval_cache),
            },
        }
    }

    fn new_slot(&mut self, interval_counts: IntervalCounts, interval_cache: &IntervalCache) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| interval_cache.slots.add());
        let unused = interval_cache.slots.get(slot);
        assert!(unused.is_empty(), "table (I2): a slot that is reused has no content");
        unused.set_interval_counts(interval_counts);
        slot
    }

    /// Returns an interval with a slot of its own.
    pub(crate) fn new_interval(
        &mut self,
        separator: &[u8],
        interval_counts: IntervalCounts,
        interval_cache: &IntervalCache,
    ) -> Interval {
        let slot = self.new_slot(interval_counts, interval_cache);
        let kept = interval_cache.slots.get(slot);
        let separator = Separator::inline(&self.prefix, separator).unwrap_or_else(|| {
            // SAFETY:
            // * The slot keeps the bytes until no index refers to the slot any more (slots I1).
            //   Every holder of a copy of the separator holds such an index.
            unsafe { Separator::out_of_line(&self.prefix, kept.store_separator(separator)) }
        });
        Interval { separator, slot }
    }

    /// Returns the current state for readers. The caller must publish it.
    pub(crate) fn publish(&mut self, interval_cache: &IntervalCache, guard: &Guard) -> Arc<SparseIndex> {
        // Queue a token even without retired slots: a reader of this index may also hold slots that
        // are retired by a later publication.
        let before = std::mem::take(&mut self.token);
        self.retire_queue.push_back((before, std::mem::take(&mut self.retired_slots)));
        self.publications += 1;
        let tree = self.tree.publish(self.publications);
        let view = self.space.as_ref().map(FlexSpace::view);
        self.reclaim(interval_cache, guard);
        self.account(interval_cache);
        Arc::new(SparseIndex {
            number: self.publications,
            prefix: Arc::clone(&self.prefix),
            tree,
            view,
            _token: Arc::clone(&self.token),
        })
    }

    /// Frees the memory of tree versions that no reader holds any more.
    pub(crate) fn reclaim_versions(&mut self, interval_cache: &IntervalCache, guard: &Guard) {
        self.tree.reclaim_all();
        self.reclaim(interval_cache, guard);
        self.account(interval_cache);
    }

    /// Whether a step must wait: the budget is exceeded, and memory of earlier publications is
    /// freed as soon as readers drop them. Each further publication would take as much again.
    pub(crate) fn must_wait_for_readers(&mut self, interval_cache: &IntervalCache, guard: &Guard) -> bool {
        let is_held = |table: &IntervalTable| table.retire_queue.iter().any(|(_, slots)| !slots.is_empty());
        if self.reader_waits >= MAX_READER_WAITS
            || !interval_cache.context.memory.is_over_without_caches()
            || !is_held(self)
        {
            self.reader_waits = 0;
            return false;
        }
        guard.flush();
        self.reclaim_versions(interval_cache, guard);
        self.reader_waits += 1;
        true
    }

    /// Reuses slots that no index refers to any more.
    pub(crate) fn reclaim(&mut self, interval_cache: &IntervalCache, guard: &Guard) {
        while let Some((token, _)) = self.retire_queue.front()
            && Arc::strong_count(token) == 1
            && let Some((_, slots)) = self.retire_queue.pop_front()
        {
            // The count was read relaxed: the last reader's accesses must come before the reuse.
            fence(Ordering::Acquire);
            for slot in slots {
                interval_cache.slots.recycle(slot, &interval_cache.context, guard);
                self.free.push(slot);
            }
        }
    }

    /// Returns the estimated bytes of the space that are not superseded.
    pub(crate) fn live_bytes(&self, interval_cache: &IntervalCache) -> u64 {
        let mut live = 0;
        self.tree.read(|tree| {
            for entry in tree.range(0) {
                let interval_counts = interval_cache.slots.get(entry.item.slot).interval_counts();
                live += match interval_counts.live {
                    crate::index::slots::UNKNOWN_LIVE => entry.len / 4 * 3,
                    known => entry.len * u64::from(known) / u64::from(interval_counts.entries.max(1)),
                };
            }
        });
        live
    }

    /// Returns the bytes of our index and of the space's index.
    pub(crate) fn index_bytes(&self, interval_cache: &IntervalCache) -> u64 {
        let space = self.space.as_ref().map_or(0, FlexSpace::index_bytes);
        if self.tree.is_empty() && space == 0 {
            return 0;
        }
        // Free slots are room for future keys.
        let free = (self.free.len() * size_of::<crate::index::slots::IntervalSlot>()) as u64;
        self.tree.bytes() + interval_cache.slots.bytes() - free + space
    }

    /// Resets the table of a dropped keyspace: nothing is indexed.
    pub(crate) fn reset(&mut self) {
        (self.tree, self.progress, self.retained) =
            (ShiftTree::new(Interval::NONE), None, RetainedRecords::default());
        (self.sweep, self.range_progress, self.newest_rebuilt) = (None, None, Seq::ZERO);
        (self.blobs, self.spare_buffers) = (HashSet::new(), Default::default());
        // Readers may hold buffers of the old account for a while.
        self.space_memory = Arc::new(Memory::new(u64::MAX));
    }

    fn account(&mut self, interval_cache: &IntervalCache) {
        let memory = &interval_cache.context.memory;
        memory.update_held(MemoryPart::Index, &self.accounted, self.index_bytes(interval_cache));
        memory.update_held(MemoryPart::Buffers, &self.buffered, self.space_memory.used(MemoryPart::Buffers));
    }

    /// Chooses a new common prefix of the separators if too many do not fit into two words.
    pub(crate) fn update_prefix(&mut self, interval_cache: &IntervalCache, guard: &Guard) {
        let (mut long, mut first, mut last) = (0u64, None, None);
        self.tree.read(|tree| {
            for entry in tree.range(0) {
                long += u64::from(entry.item.separator.is_long());
                if first.is_none() && !entry.item.separator.is_lowest() {
                    first = Some(entry.item.separator);
                }
                last = Some(entry.item.separator);
            }
        });
        let (Some(first), Some(last)) = (first, last) else { return };
        let (first, last) = (first.bytes(&self.prefix), last.bytes(&self.prefix));
        let shared = common_prefix_len(&first, &last);
        let prefix = KeyPrefix::new(&first[..shared.min(first.len().saturating_sub(1))]);
        let is_worse = long * 4 > self.tree.entries();
        let is_longer = self.prefix.len() < prefix.len() && self.tree.entries() > 1;
        if (!is_worse && !is_longer) || prefix == *self.prefix {
            return;
        }
        self.rebuild_with_prefix(prefix, interval_cache, guard);
    }

    fn rebuild_with_prefix(&mut self, prefix: KeyPrefix, interval_cache: &IntervalCache, guard: &Guard) {
        let mut entries = Vec::new();
        self.tree.read(|tree| entries.extend(tree.range(0)));
        let before = std::mem::replace(&mut self.prefix, Arc::new(prefix));
        let mut tree = ShiftTree::new(Interval::NONE);
        for entry in entries {
            let bytes = entry.item.separator.bytes(&before);
            let old = interval_cache.slots.get(entry.item.slot);
            let item = self.new_interval(&bytes, old.interval_counts(), interval_cache);
            match old.view(guard) {
                SlotView::Block(block) => {
                    interval_cache.slots.insert_block(
                        item.slot,
                        &BlockRef::of(block),
                        &interval_cache.context,
                        guard,
                    );
                }
                SlotView::Fingerprints(fingerprints) => {
                    interval_cache.slots.insert_fingerprints(
                        item.slot,
                        fingerprints.copy(),
                        &interval_cache.context,
                        guard,
                    );
                }
                SlotView::Empty => {}
            }
            self.retired_slots.push(entry.item.slot);
            tree.insert(entry.start, entry.len, item);
        }
        self.tree = tree;
    }
}
