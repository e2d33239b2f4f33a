//! # Sparse index: from keys to intervals
//!
//! The sparse index is a [`ShiftTree`](sheaf_flexspace::tree::ShiftTree) of its own, like the one
//! in the space (paper, section 5.1). An entry is an interval of the space, and searches compare
//! its separator, which is not above any key of the interval. If an interval grows, both trees
//! change some numbers on one search path, and thereby move all intervals behind it.
//!
//! ## Picture
//!
//! ```text
//!  EngineState ── active memtable        receives commits
//!              ── frozen memtable        is being flushed into the space, if there is one
//!              ── SparseIndex ── tree of intervals ─┐ published together: the tree has offsets in
//!                             ── SpaceView ─────────┘ this state of the space
//! ```
//!
//! A reader takes an epoch guard and loads the state, which describes one moment. The frozen
//! memtable stays in the state until all of it is in the space. A key that was flushed is then in
//! both, with the same result.

use std::cmp::Ordering;
use std::ops::{Bound, Deref};
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_flexspace::SpaceView;
use sheaf_flexspace::tree::{TreeEntry, TreeItem, TreeSnapshot};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::memory::block_alloc::BlockSlice;
use sheaf_platform::sync::atomic::{self, AtomicU64};
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

use crate::index::io_gauge::IoGauge;
use crate::index::slot_state::SlotView;
use crate::index::slots::IntervalSlots;
use crate::index::warm_up::WarmUp;
use crate::interval::block::{Block, BlockRef, SortedVersions, fingerprint_of};
use crate::interval::fingerprints::{Fingerprints, FingerprintsRef};
use crate::interval::run::StoredPair;
use sheaf_engine::memtable::Memtables;
use sheaf_engine::memtable::prefix::{KeyPrefix, Separator};

/// An interval of the space.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval {
    pub(crate) separator: Separator,
    pub(crate) slot: u32,
}

impl Interval {
    pub(crate) const NONE: Interval = Interval { separator: Separator::LOWEST, slot: 0 };
}

impl TreeItem for Interval {
    type Pivot = Separator;
    fn pivot(&self) -> Separator {
        self.separator
    }
    fn suffix(self, _: u64) -> Interval {
        self // intervals are removed whole and never split
    }
    fn is_contiguous(&self, _: u64, _: &Interval) -> bool {
        false
    }
}

/// A published version of the sparse index.
#[derive(Debug)]
pub(crate) struct SparseIndex {
    /// Number of the publication; unique within the keyspace.
    pub(crate) number: u64,
    pub(crate) prefix: Arc<KeyPrefix>,
    pub(crate) tree: Arc<TreeSnapshot<Interval>>,
    pub(crate) view: Option<SpaceView>,
    /// Every holder of the index holds this token, so the table detects when the last one is
    /// dropped.
    pub(crate) _token: Arc<()>,
}

/// A consistent state of a keyspace.
#[derive(Clone, Debug)]
pub(crate) struct EngineState {
    pub(crate) memtables: Memtables,
    pub(crate) index: Arc<SparseIndex>,
    /// Number of times that records of a frozen memtable were moved back to the active one. After
    /// such a move, the active memtable contains versions older than those that were looked up in
    /// it before.
    pub(crate) unfreeze_count: u64,
}

/// A block that stays allocated while it is used.
pub(crate) enum BlockHandle<'g> {
    /// Protected by an epoch guard; in its slot or just evicted from it.
    Cached(&'g Block),
    /// Read just now.
    Owned(BlockRef),
}

impl Deref for BlockHandle<'_> {
    type Target = Block;

    #[inline]
    fn deref(&self) -> &Block {
        match self {
            BlockHandle::Cached(block) => block,
            BlockHandle::Owned(block) => block,
        }
    }
}

impl BlockHandle<'_> {
    /// Returns a reference that outlives the guard.
    pub(crate) fn keep(&self) -> BlockRef {
        BlockRef::of(self)
    }
}

/// An interval that was read just now.
enum IntervalRead {
    /// The block was admitted to the cache.
    Block(BlockRef),
    /// The block was not admitted and is not built.
    Bytes(BlockSlice<u8>),
}

/// Bytes of a pair that is read alone. A short pair is on the stack, so that a read need not wait
/// for another thread in the allocator.
type PairBytes = SmallVec<[u8; 512]>;

/// Result of a lookup by fingerprints.
#[expect(clippy::large_enum_variant, reason = "lives on the stack for one read")]
enum SingleRead {
    /// The bytes of the pair that the view shows.
    Pair(PairBytes),
    /// The view shows no version of the key.
    NotFound,
    /// The bytes differ from those that were checked before, or cannot be read.
    Undetermined,
}

/// The parts of an engine, besides the index, that are needed to read a block.
#[derive(Debug)]
pub(crate) struct IntervalCache {
    pub(crate) slots: IntervalSlots,
    pub(crate) context: Arc<EngineContext>,
    /// Path of the space, for errors.
    pub(crate) path: PathBuf,
    pub(crate) warm_up: WarmUp,
    pub(crate) io_gauge: IoGauge,
    /// Number of gets that read at most one pair of an interval that is not in memory.
    pub(crate) single_reads: AtomicU64,
}

impl IntervalCache {
    /// Returns the hash of a key, keyed by the secret of the database.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.context.hash(key)
    }

    /// Builds the block of an interval from its bytes.
    pub(crate) fn build_block(&self, data: &[u8]) -> Result<BlockRef, Damage> {
        Block::build(data, |key| self.hash(key))
    }
}

impl SparseIndex {
    /// Returns the interval that `key` belongs to.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> Option<TreeEntry<Interval>> {
        let (head, prefix) = (self.prefix.head(key), &*self.prefix);
        self.tree.find(|separator| separator.cmp(head, key, prefix) != Ordering::Greater)
    }

    /// Returns the last interval that can have keys within the upper bound.
    pub(crate) fn find_last(&self, high: Bound<&[u8]>) -> Option<TreeEntry<Interval>> {
        match high {
            Bound::Included(key) => self.find(key),
            Bound::Excluded(key) => {
                let (head, prefix) = (self.prefix.head(key), &*self.prefix);
                self.tree.find(|separator| separator.cmp(head, key, prefix) == Ordering::Less)
            }
            Bound::Unbounded => self.tree.get(self.tree.len().checked_sub(1)?),
        }
    }

    /// Whether `key` belongs to an interval before `entry`.
    #[inline]
    pub(crate) fn is_before(&self, key: &[u8], entry: &TreeEntry<Interval>) -> bool {
        entry.item.separator.cmp(self.prefix.head(key), key, &self.prefix) == Ordering::Greater
    }

    /// Returns the interval behind `entry`.
    pub(crate) fn next(&self, entry: &TreeEntry<Interval>) -> Option<TreeEntry<Interval>> {
        self.tree.get(entry.start + entry.len)
    }

    /// Returns the interval before `entry`.
    pub(crate) fn previous(&self, entry: &TreeEntry<Interval>) -> Option<TreeEntry<Interval>> {
        self.tree.get(entry.start.checked_sub(1)?)
    }

    /// Returns the bytes of the separator of an interval.
    pub(crate) fn separator_bytes(&self, interval: &Interval) -> Vec<u8> {
        interval.separator.bytes(&self.prefix)
    }

    /// Returns the block of an interval, from memory or from the space.
    #[inline]
    pub(crate) fn block<'g>(
        &self,
        entry: &TreeEntry<Interval>,
        interval_cache: &'g IntervalCache,
        guard: &'g Guard,
    ) -> Result<BlockHandle<'g>> {
        match interval_cache.slots.get(entry.item.slot).block(guard) {
            Some(block) => Ok(BlockHandle::Cached(block)),
            None => {
                interval_cache.warm_up.record_miss();
                self.load_block(entry, interval_cache, guard).map(BlockHandle::Owned)
            }
        }
    }

    /// Calls `with` with the version of `key` in its interval that a view at `at` shows. If the
    /// interval is neither in memory nor admitted to it, reads only the pairs that its fingerprints
    /// allow. Without fingerprints it reads the whole interval, builds no block, and leaves
    /// fingerprints.
    #[inline]
    pub(crate) fn find_in_interval<R>(
        &self,
        entry: &TreeEntry<Interval>,
        interval_cache: &IntervalCache,
        (fingerprint, key, at): (u16, &[u8], Seq),
        guard: &Guard,
        with: impl FnOnce(Option<StoredPair<'_>>) -> Result<R>,
    ) -> Result<R> {
        match interval_cache.slots.get(entry.item.slot).view(guard) {
            SlotView::Block(block) => with(block.find(fingerprint, key, at)),
            missed => {
                self.find_uncached(entry, interval_cache, (fingerprint, key, at), (missed, guard), with)
            }
        }
    }

    #[cold]
    fn find_uncached<R>(
        &self,
        entry: &TreeEntry<Interval>,
        interval_cache: &IntervalCache,
        (fingerprint, key, at): (u16, &[u8], Seq),
        (missed, guard): (SlotView<'_>, &Guard),
        with: impl FnOnce(Option<StoredPair<'_>>) -> Result<R>,
    ) -> Result<R> {
        interval_cache.warm_up.record_miss();
        let is_wanted =
            interval_cache.slots.should_admit(entry.item.slot, entry.len, &interval_cache.context);
        if let SlotView::Fingerprints(fingerprints) = missed
            && !is_wanted
        {
            let single = self.read_single(entry, interval_cache, (fingerprint, key, at), fingerprints);
            if !matches!(single, SingleRead::Undetermined) {
                interval_cache.single_reads.fetch_add(1, atomic::Ordering::Relaxed);
            }
            match single {
                SingleRead::Pair(bytes) => {
                    return with(Some(self.decode_pair(entry, &bytes, interval_cache)?));
                }
                SingleRead::NotFound => return with(None),
                SingleRead::Undetermined => {}
            }
        }
        interval_cache.slots.mark_requested(entry.item.slot);
        match self.read_interval(entry, interval_cache, is_wanted, guard)? {
            IntervalRead::Block(block) => with(block.find(fingerprint, key, at)),
            IntervalRead::Bytes(data) => {
                let found = SortedVersions::of(&data)
                    .map_err(|what| Error::corrupt(&interval_cache.path, entry.start, "interval", what))?
                    .found;
                if !interval_cache.slots.is_fingerprint_limit_reached() {
                    let printed = found
                        .iter()
                        .map(|(stands, pair)| (fingerprint_of(interval_cache.hash(pair.key)), *stands));
                    if let Some(fingerprints) = Fingerprints::of(&data, printed) {
                        interval_cache.slots.insert_fingerprints(
                            entry.item.slot,
                            fingerprints,
                            &interval_cache.context,
                            guard,
                        );
                    }
                }
                let mut versions = found.iter().map(|(_, pair)| *pair);
                with(versions.find(|pair| pair.key == key && pair.seq <= at))
            }
        }
    }

    /// Reads only the pairs of an interval that may be the version of `key` that a view at `at`
    /// shows.
    fn read_single(
        &self,
        entry: &TreeEntry<Interval>,
        interval_cache: &IntervalCache,
        (fingerprint, key, at): (u16, &[u8], Seq),
        fingerprints: FingerprintsRef<'_>,
    ) -> SingleRead {
        let Some(view) = &self.view else { return SingleRead::Undetermined };
        let mut newest: Option<(Seq, PairBytes)> = None;
        for candidate in fingerprints.candidates(fingerprint, entry.len) {
            let len = usize::try_from(candidate.bytes.end - candidate.bytes.start).unwrap_or(0);
            let mut bytes = PairBytes::from_elem(0, len);
            let from = entry.start + candidate.bytes.start;
            let count = interval_cache.io_gauge.measure(|| {}, || view.peek(from, &mut bytes));
            bytes.truncate(count);
            let Some(pair) = candidate.pair(&bytes) else { return SingleRead::Undetermined };
            if pair.key == key && pair.seq <= at && newest.as_ref().is_none_or(|(seq, _)| *seq < pair.seq) {
                newest = Some((pair.seq, bytes));
                if fingerprints.is_ordered() {
                    break;
                }
            }
        }
        newest.map_or(SingleRead::NotFound, |(_, bytes)| SingleRead::Pair(bytes))
    }

    fn decode_pair<'b>(
        &self,
        entry: &TreeEntry<Interval>,
        bytes: &'b [u8],
        interval_cache: &IntervalCache,
    ) -> Result<StoredPair<'b>> {
        let decoded = StoredPair::decode(bytes, 0);
        decoded
            .map(|(pair, _)| pair)
            .map_err(|what| Error::corrupt(&interval_cache.path, entry.start, "interval", what))
    }

    /// Reads the block of an interval from the space. Puts it into its slot if it is admitted.
    #[cold]
    pub(crate) fn load_block(
        &self,
        entry: &TreeEntry<Interval>,
        interval_cache: &IntervalCache,
        guard: &Guard,
    ) -> Result<BlockRef> {
        let is_wanted =
            interval_cache.slots.should_admit(entry.item.slot, entry.len, &interval_cache.context);
        match self.read_interval(entry, interval_cache, is_wanted, guard)? {
            IntervalRead::Block(block) => Ok(block),
            IntervalRead::Bytes(data) => self.build_interval_block(entry, &data, interval_cache),
        }
    }

    /// Reads an interval from the space. If `is_wanted`, builds its block and puts it into its
    /// slot.
    #[cold]
    fn read_interval(
        &self,
        entry: &TreeEntry<Interval>,
        interval_cache: &IntervalCache,
        is_wanted: bool,
        guard: &Guard,
    ) -> Result<IntervalRead> {
        let mut data = BlockSlice::new(usize::try_from(entry.len).unwrap_or(usize::MAX), || 0);
        if let Some(view) = &self.view {
            let ask = || view.will_need(entry.start, entry.len);
            interval_cache.io_gauge.measure(ask, || view.read(entry.start, &mut data))?;
        }
        if !is_wanted {
            return Ok(IntervalRead::Bytes(data));
        }
        let block = self.build_interval_block(entry, &data, interval_cache)?;
        interval_cache.slots.insert_block(entry.item.slot, &block, &interval_cache.context, guard);
        Ok(IntervalRead::Block(block))
    }

    fn build_interval_block(
        &self,
        entry: &TreeEntry<Interval>,
        data: &[u8],
        interval_cache: &IntervalCache,
    ) -> Result<BlockRef> {
        let block = interval_cache
            .build_block(data)
            .map_err(|what| Error::corrupt(&interval_cache.path, entry.start, "interval", what))?;
        interval_cache.slots.get(entry.item.slot).set_live(block.live());
        Ok(block)
    }
}
