//! # Table: the committer's side of the sparse index
//!
//! Who changes the space and the index does it here, under one lock: an edit of the space, the same
//! change of the tree, then both are published together.
//!
//! ## Invariants
//!
//! 1. The tree and the space agree: an interval of the tree is, in the space, its runs and nothing
//!    else.
//! 2. A slot that no longer belongs to an interval is given out again when every index that names
//!    it is gone.
//! 3. The space's mark counts our edits, and says in its lowest bit whether a memtable was ever
//!    moved whole: before that, pairs may be in the image only. An image of the index with the same
//!    mark describes the space.

use std::collections::{HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::{Error, Result};
use sheaf_base::keys::common_prefix_len;
use sheaf_base::memory::{Memory, MemoryPart};
use sheaf_base::sync::atomic::AtomicU64;
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::{KeyspaceId, Seq};
use sheaf_base::views::Views;
use sheaf_flexspace::tree::ShiftTree;
use sheaf_flexspace::{FlexSpace, SpaceOptions};

use crate::block::BlockRef;
use crate::changes::ChangeBatch;
use crate::fingerprints::Fingerprints;
use crate::image::RetainedRecords;
use crate::index::{Interval, IntervalCache, SparseIndex};
use crate::slot_state::SlotView;
use crate::slots::IntervalCounts;
use crate::value_prefetch::ValuePrefetch;
use sheaf_base::memtable::prefix::{KeyPrefix, Separator};
use smallvec::SmallVec;

/// An interval to be.
#[derive(Debug)]
pub(crate) struct PlannedInterval {
    /// Its separator; without one, that of the first interval it replaces.
    pub(crate) separator: Option<Vec<u8>>,
    /// Its runs, or the one that is added, in the plan's bytes.
    pub(crate) data: Range<usize>,
    pub(crate) interval_counts: IntervalCounts,
    /// The whole interval, where it is known, ...
    pub(crate) block: Option<BlockRef>,
    /// ... or its prints.
    pub(crate) fingerprints: Option<Fingerprints>,
}

/// A change of a stretch of the space.
#[derive(Debug)]
pub(crate) struct PlannedChange {
    /// Where the stretch is, before all changes of the plan.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The slots of its intervals.
    pub(crate) old_slots: SmallVec<[u32; 2]>,
    /// The separator of its first interval.
    pub(crate) separator: Separator,
    /// What stands there stays, and the only draft goes behind it, into the same interval.
    pub(crate) is_append: bool,
    pub(crate) planned_intervals: SmallVec<[PlannedInterval; 2]>,
}

/// Changes of disjoint stretches, in order, and what becomes of staged values.
#[derive(Debug, Default)]
pub(crate) struct IntervalPlan {
    pub(crate) changes: Vec<PlannedChange>,
    /// What the drafts consist of.
    pub(crate) bytes: Vec<u8>,
    /// Staged values that the space names from now on.
    pub(crate) new_blobs: Vec<u64>,
    /// Those it does not any more, and which commits superseded them.
    pub(crate) dead_blobs: Vec<(Seq, u64)>,
    /// Nothing is rewritten: the edit was too large, or the disk is full.
    pub(crate) is_append_only: bool,
    /// The disk is nearly full: only what makes room is rewritten.
    pub(crate) is_disk_low: bool,
    /// Intervals that nothing changes may be rewritten, if that pays.
    pub(crate) may_defragment: bool,
    /// Of changes whose intervals were in memory: keys that were new, and all of them.
    pub(crate) new_key_sample: [u64; 2],
    /// Looks at intervals to rewrite: with many of them the step is over, also if it writes
    /// nothing.
    pub(crate) examined: usize,
    pub(crate) counts: FlushCounts,
}

/// What the committer chose, how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlushCounts {
    /// New intervals.
    pub(crate) inserted: u64,
    /// Runs appended to intervals.
    pub(crate) appended: u64,
    /// Intervals, or neighbours together, that were rewritten.
    pub(crate) rewritten: u64,
    /// Intervals that were rewritten though nothing changed in them.
    pub(crate) defragmented: u64,
    /// Intervals that went into a neighbour.
    pub(crate) merged: u64,
    /// Changes that were superseded before they were moved.
    pub(crate) skipped: u64,
    /// Versions that rewrites went through.
    pub(crate) versions_read: u64,
    /// Bytes of all this.
    pub(crate) bytes: u64,
}

impl FlushCounts {
    /// By name.
    pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("intervals inserted", self.inserted),
            ("intervals appended to", self.appended),
            ("intervals rewritten", self.rewritten),
            ("intervals tidied", self.defragmented),
            ("intervals merged", self.merged),
            ("changes skipped", self.skipped),
            ("versions gone through", self.versions_read),
            ("bytes committed", self.bytes),
        ]
    }
}

/// The committer's side.
#[derive(Debug)]
pub(crate) struct IntervalTable {
    pub(crate) space: Option<FlexSpace>,
    pub(crate) tree: ShiftTree<Interval>,
    pub(crate) prefix: Arc<KeyPrefix>,
    pub(crate) mark: u64,
    /// The space had come so far when the image was made: with less it is damaged.
    pub(crate) min_mark: u64,
    /// Staged values that the space names.
    pub(crate) blobs: HashSet<u64>,
    /// The last key of the frozen memtable that was moved.
    pub(crate) progress: Option<Vec<u8>>,
    /// Where the sweep goes on that is under way: see `sweep.rs`.
    pub(crate) sweep: Option<Vec<u8>>,
    /// What of a frozen memtable stays in memory: see `image.rs`.
    pub(crate) retained: RetainedRecords,
    /// The views when that was decided.
    pub(crate) views: Views,
    pub(crate) counts: FlushCounts,
    /// Of the changes moved since the last look: see [`IntervalPlan::new_key_sample`].
    pub(crate) new_key_sample: [u64; 2],
    /// Memory of the last step, for the next one: its batch, and the bytes of its plan.
    pub(crate) spare_buffers: (ChangeBatch, Vec<u8>),
    /// Values of changes that are to be moved.
    pub(crate) value_prefetch: ValuePrefetch,
    token: Arc<()>,
    /// Slots that the tree names no more since the last publication.
    retired_slots: Vec<u32>,
    retire_queue: VecDeque<(Arc<()>, Vec<u32>)>,
    free: Vec<u32>,
    /// What the space takes for itself, without a limit: it is accounted by us, its index with
    /// ours.
    space_memory: Arc<Memory>,
    /// Bytes of the indexes, and of the space's buffers, that the budget knows of.
    accounted: AtomicU64,
    buffered: AtomicU64,
    publications: u64,
    /// Steps that waited for readers, since one did not.
    reader_waits: u32,
}

/// Steps that wait for readers before one goes on all the same: the reader may be the caller.
const MAX_READER_WAITS: u32 = 64;

impl IntervalTable {
    pub(crate) fn new() -> IntervalTable {
        IntervalTable {
            space: None,
            tree: ShiftTree::new(Interval::NONE),
            prefix: Arc::default(),
            mark: 0,
            min_mark: 0,
            blobs: HashSet::new(),
            progress: None,
            sweep: None,
            retained: RetainedRecords::default(),
            views: Views::default(),
            counts: FlushCounts::default(),
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

    /// Opens the keyspace's space, and makes it if there is none and `create` says so.
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
            // A creation that was cut short: there never was anything in it.
            Err(Error::DatabaseNotFound { .. }) if !create => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Opens the readable part of the keyspace's space. False if it has none.
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
            inline: true,
            fine: true,
            tiny: context.tiny,
            ..SpaceOptions::default()
        }
    }

    /// Whether a memtable was ever moved whole into the space.
    pub(crate) fn has_flushed_memtable(&self) -> bool {
        self.mark & 1 == 1
    }

    /// Does what is planned: in the space, then in the tree. `is_last` of a memtable.
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
        Ok(())
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

    /// The slot and separator of a new interval.
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
        interval_cache.slots.get(slot).set_interval_counts(interval_counts);
        slot
    }

    /// An interval with a slot of its own.
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
            // * The slot keeps the bytes until no index that names it is left (slots I1), and
            //   whoever has a copy of the separator has such an index.
            unsafe { Separator::out_of_line(&self.prefix, kept.store_separator(separator)) }
        });
        Interval { separator, slot }
    }

    /// The present state for readers. The caller makes it known.
    pub(crate) fn publish(&mut self, interval_cache: &IntervalCache, guard: &Guard) -> Arc<SparseIndex> {
        // Also without a slot: whoever has an older index than the next grave's must be waited for
        // too.
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

    /// Takes back what versions that are gone held.
    pub(crate) fn reclaim_versions(&mut self, interval_cache: &IntervalCache, guard: &Guard) {
        self.tree.reclaim_all();
        self.reclaim(interval_cache, guard);
        self.account(interval_cache);
    }

    /// Whether the budget is exceeded, and what earlier publications left behind comes back as soon
    /// as readers are gone: each one more would take as much again.
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

    /// Takes slots back that no index names any more.
    pub(crate) fn reclaim(&mut self, interval_cache: &IntervalCache, guard: &Guard) {
        while let Some((token, _)) = self.retire_queue.front()
            && Arc::strong_count(token) == 1
            && let Some((_, slots)) = self.retire_queue.pop_front()
        {
            for slot in slots {
                interval_cache.slots.recycle(slot, &interval_cache.context, guard);
                self.free.push(slot);
            }
        }
    }

    /// Bytes of the space that are not superseded, as far as that is known.
    pub(crate) fn live_bytes(&self, interval_cache: &IntervalCache) -> u64 {
        let mut live = 0;
        self.tree.read(|tree| {
            for entry in tree.range(0) {
                let interval_counts = interval_cache.slots.get(entry.item.slot).interval_counts();
                live += match interval_counts.live {
                    crate::slots::UNKNOWN_LIVE => entry.len / 4 * 3,
                    known => entry.len * u64::from(known) / u64::from(interval_counts.entries.max(1)),
                };
            }
        });
        live
    }

    /// Bytes of the indexes: ours and the space's.
    pub(crate) fn index_bytes(&self, interval_cache: &IntervalCache) -> u64 {
        let space = self.space.as_ref().map_or(0, FlexSpace::index_bytes);
        if self.tree.is_empty() && space == 0 {
            return 0;
        }
        // What is free is room for keys to come.
        let free = (self.free.len() * size_of::<crate::slots::IntervalSlot>()) as u64;
        self.tree.bytes() + interval_cache.slots.bytes() - free + space
    }

    /// The keyspace is gone: nothing is indexed.
    pub(crate) fn reset(&mut self) {
        (self.tree, self.progress, self.retained) =
            (ShiftTree::new(Interval::NONE), None, RetainedRecords::default());
        self.sweep = None;
        (self.blobs, self.spare_buffers) = (HashSet::new(), Default::default());
        // Readers may have the old one's buffers for a while.
        self.space_memory = Arc::new(Memory::new(u64::MAX));
    }

    fn account(&mut self, interval_cache: &IntervalCache) {
        let memory = &interval_cache.context.memory;
        memory.update_held(MemoryPart::Index, &self.accounted, self.index_bytes(interval_cache));
        memory.update_held(MemoryPart::Buffers, &self.buffered, self.space_memory.used(MemoryPart::Buffers));
    }

    /// Cuts separators' heads anew, if too many do not fit into two words.
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
