//! # Live bitmap: the records that the last level points at
//!
//! GC asks for each record of a victim whether it is the newest of its key. If neither memory nor
//! an upper level has the key, the last level decides. That would cost a read of a leaf from the
//! device per record. So this bitmap mirrors the references of the last level: a bit for each
//! granule of the log, in which at most one record begins.
//!
//! ## Picture
//!
//! ```text
//!  step into the last level ──> entries written: set, replaced: cleared ┐
//!  scan of all leaves after an opening, if GC asks ──> set ──> slot: [bits of its segment] <── GC
//! ```
//!
//! ## Invariants
//!
//! 1. For keys below the progress of the scan: the bit of a record in an existing segment is set
//!    exactly if the last level points at it. Steps change the bits of all keys, so the finished
//!    part stays correct.
//! 2. Bits change before the step is published, so GC may still use the previous state. That state
//!    has two kinds of entries in upper levels: those that supersede a record with a cleared bit,
//!    and those that point at a record with a new bit.
//! 3. Two records of the keyspace never share a bit, because none is shorter than a granule. If a
//!    shorter record is added, the granule shrinks and all leaves are scanned again.
//!
//! ## Threads, crash, costs
//!
//! Steps change bits under their lock; a lock of its own protects the bitmap. Nothing is on disk.
//! The bitmap takes a bit per 128 bytes of log if records are that long. If it would take more than
//! a [`BUDGET_DIVISOR`]th of the budget, leaves are read instead.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_log::segment::{Address, Segment};
use sheaf_platform::error::Result;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::tree::{KreonState, Level, SeekTarget};

/// Initial granule: bytes of the log that share a bit.
const MAX_GRANULE: u64 = 128;
/// Minimum granule, because no frame is shorter.
const MIN_GRANULE: u64 = 16;
/// Divisor of the budget that limits the memory of all bits.
const BUDGET_DIVISOR: u64 = 32;

/// Location of a record: its segment, the capacity of the segment, the address and the length.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLocation {
    segment: u64,
    segment_bytes: u64,
    address: Address,
    span: u64,
}

impl RecordLocation {
    pub(crate) fn new(address: Address, span: u64, segment: &Segment) -> RecordLocation {
        RecordLocation { segment: segment.id().0, segment_bytes: segment.identity().capacity, address, span }
    }

    /// Returns the address of the record.
    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

/// Extent of the correct part of the bitmap.
#[derive(Debug, PartialEq, Eq)]
enum BitmapProgress {
    /// Correct for all keys.
    Complete,
    /// Not used since the opening or the last reset.
    NotStarted,
    /// Too large, or a leaf is unreadable: leaves are read.
    Disabled,
    /// Correct below this key.
    CompleteBelow(Vec<u8>),
}

/// The bits of one segment.
#[derive(Debug)]
struct SegmentBits {
    segment: u64,
    words: Box<[u64]>,
}

#[derive(Debug)]
struct LiveBitmapState {
    /// Bits by slot of the segment.
    by_slot: Vec<Option<SegmentBits>>,
    progress: BitmapProgress,
    /// Bytes that share a bit.
    granule_bytes: u64,
    bytes: u64,
}

impl LiveBitmapState {
    /// Returns a word of the bits of the record's segment, if there are any.
    #[inline]
    fn word_of(&mut self, location: &RecordLocation, word: usize) -> Option<&mut u64> {
        let bits = self.by_slot.get_mut(location.address.slot() as usize)?.as_mut()?;
        (bits.segment == location.segment).then(|| bits.words.get_mut(word))?
    }
}

/// The bitmap of a keyspace; see the header of the module.
#[derive(Debug)]
pub(crate) struct LiveBitmap {
    context: Arc<EngineContext>,
    inner: Mutex<LiveBitmapState>,
    /// Number of lookups that it saved.
    lookups_saved: AtomicU64,
}

impl LiveBitmap {
    /// Creates the bitmap of empty levels.
    pub(crate) fn new(context: Arc<EngineContext>) -> LiveBitmap {
        let inner = LiveBitmapState {
            by_slot: Vec::new(),
            progress: BitmapProgress::Complete,
            granule_bytes: MAX_GRANULE,
            bytes: 0,
        };
        LiveBitmap { context, inner: Mutex::new(inner), lookups_saved: AtomicU64::new(0) }
    }

    /// Whether the last level points at the record at `location`; `None` if that is not known.
    pub(crate) fn is_referenced(&self, location: &RecordLocation) -> Option<bool> {
        let known = self.is_referenced_uncounted(location);
        self.lookups_saved.fetch_add(u64::from(known.is_some()), Ordering::Relaxed);
        known
    }

    /// Like [`LiveBitmap::is_referenced`], without counting a saved lookup.
    pub(crate) fn is_referenced_uncounted(&self, location: &RecordLocation) -> Option<bool> {
        let mut inner = self.inner.lock();
        if inner.progress == BitmapProgress::NotStarted {
            inner.progress = BitmapProgress::CompleteBelow(Vec::new());
        }
        if inner.progress != BitmapProgress::Complete || self.refine_granule(&mut inner, location.span) {
            return None;
        }
        let (word, bit) = bit_position(location.address, inner.granule_bytes);
        Some(inner.word_of(location, word).is_some_and(|word| *word & bit != 0))
    }

    /// Returns the number of lookups in leaves that were saved since the opening.
    pub(crate) fn lookups_saved(&self) -> u64 {
        self.lookups_saved.load(Ordering::Relaxed)
    }

    /// Returns the key at which the scan of the last level continues, if one is needed.
    pub(crate) fn resume_key(&self) -> Option<Vec<u8>> {
        match &self.inner.lock().progress {
            BitmapProgress::CompleteBelow(key) => Some(key.clone()),
            _ => None,
        }
    }

    /// Adds records that a scan of the last level has found up to `key`, or up to the end.
    pub(crate) fn add_scanned(&self, locations: &[RecordLocation], key: Option<Vec<u8>>, guard: &Guard) {
        let mut inner = self.inner.lock();
        let is_anew = self.update_locked(&mut inner, &[], locations, guard);
        if !is_anew && let BitmapProgress::CompleteBelow(_) = &inner.progress {
            inner.progress = key.map_or(BitmapProgress::Complete, BitmapProgress::CompleteBelow);
        }
    }

    /// Updates the bits for a step that is published next: the last level no longer points at
    /// `cleared`, and points at `set`.
    pub(crate) fn update(&self, cleared: &[RecordLocation], set: &[RecordLocation], guard: &Guard) {
        self.update_locked(&mut self.inner.lock(), cleared, set, guard);
    }

    /// Like [`LiveBitmap::update`]. Returns whether the scan must start again.
    fn update_locked(
        &self,
        inner: &mut LiveBitmapState,
        cleared: &[RecordLocation],
        set: &[RecordLocation],
        guard: &Guard,
    ) -> bool {
        if matches!(inner.progress, BitmapProgress::NotStarted | BitmapProgress::Disabled) {
            return false;
        }
        let least = set.iter().map(|location| location.span).min();
        let is_anew = least.is_some_and(|least| self.refine_granule(inner, least));
        let place = inner.granule_bytes;
        for at in cleared {
            let (word, bit) = bit_position(at.address, place);
            if let Some(word) = inner.word_of(at, word) {
                *word &= !bit;
            }
        }
        for at in set {
            let (word, bit) = bit_position(at.address, place);
            if inner.word_of(at, word).is_none() {
                self.allocate_segment_bits(inner, at, guard);
            }
            if let Some(word) = inner.word_of(at, word) {
                *word |= bit;
            }
        }
        if !self.is_within_budget(inner.bytes) {
            self.restart(inner, BitmapProgress::Disabled);
        }
        is_anew
    }

    /// Disables the bitmap, so that leaves are read, until the next opening or until another level
    /// becomes the last one ([`LiveBitmap::reset`]).
    pub(crate) fn disable(&self) {
        self.restart(&mut self.inner.lock(), BitmapProgress::Disabled);
    }

    /// Resets the bitmap because another level is the last one that is not empty, or none is.
    pub(crate) fn reset(&self, is_any: bool) {
        let mut inner = self.inner.lock();
        self.restart(&mut inner, if is_any { BitmapProgress::NotStarted } else { BitmapProgress::Complete });
    }

    /// Shrinks the granule for a record of `span` bytes if necessary. Returns whether it did, so
    /// that the scan starts again (I3).
    fn refine_granule(&self, inner: &mut LiveBitmapState, span: u64) -> bool {
        let is = span < inner.granule_bytes;
        if is {
            // A span below the minimum is damage.
            self.restart(
                inner,
                if span < MIN_GRANULE {
                    BitmapProgress::Disabled
                } else {
                    BitmapProgress::CompleteBelow(Vec::new())
                },
            );
            inner.granule_bytes = 1 << span.max(MIN_GRANULE).ilog2();
        }
        assert!(
            span >= inner.granule_bytes || inner.progress == BitmapProgress::Disabled,
            "live_bitmap (I3): a record is not shorter than a granule"
        );
        is
    }

    fn restart(&self, inner: &mut LiveBitmapState, reach: BitmapProgress) {
        inner.by_slot.clear();
        self.context.memory.give_back(MemoryPart::Index, inner.bytes);
        (inner.bytes, inner.progress) = (0, reach);
    }

    /// Allocates bits for a segment without any, and frees those of deleted segments.
    fn allocate_segment_bits(&self, inner: &mut LiveBitmapState, at: &RecordLocation, guard: &Guard) {
        for (slot, bits) in (0..).zip(&mut inner.by_slot) {
            let there = self.context.segments.at(slot, guard).map(|segment| segment.id().0);
            bits.take_if(|bits| Some(bits.segment) != there);
        }
        let slot = at.address.slot() as usize;
        inner.by_slot.resize_with(inner.by_slot.len().max(slot + 1), || None);
        let words = usize::try_from((at.segment_bytes / inner.granule_bytes).div_ceil(64) + 1).unwrap_or(0);
        inner.by_slot[slot] =
            Some(SegmentBits { segment: at.segment, words: vec![0; words].into_boxed_slice() });
        let bytes = inner.by_slot.iter().flatten().map(|bits| 8 * bits.words.len() as u64).sum();
        self.context.memory.take(MemoryPart::Index, bytes);
        self.context.memory.give_back(MemoryPart::Index, std::mem::replace(&mut inner.bytes, bytes));
    }

    fn is_within_budget(&self, bytes: u64) -> bool {
        bytes <= self.context.memory.budget() / BUDGET_DIVISOR
    }
}

impl Drop for LiveBitmap {
    fn drop(&mut self) {
        self.context.memory.give_back(MemoryPart::Index, self.inner.lock().bytes);
    }
}

impl KreonEngine {
    /// Scans `most` further leaves of the last level for the bitmap, if it needs them. Returns
    /// whether it did.
    pub(crate) fn scan_live_records(&self, state: &KreonState, most: usize, guard: &Guard) -> bool {
        let Some((from, level)) = self.live_bitmap.resume_key().zip(state.last_nonempty_level()) else {
            return false;
        };
        match self.live_records_from(&state.levels[level], &from, most, guard) {
            Ok((places, next)) => self.live_bitmap.add_scanned(&places, next, guard),
            // readers of the leaf receive the error themselves
            Err(_) => self.live_bitmap.disable(),
        }
        true
    }

    /// Returns the records that some leaves of `level` point at, and the start of the next leaf.
    fn live_records_from(
        &self,
        level: &Level,
        from: &[u8],
        most: usize,
        guard: &Guard,
    ) -> Result<(Vec<RecordLocation>, Option<Vec<u8>>)> {
        let (mut leaves, mut next) = (Vec::new(), Some(from.to_vec()));
        while let Some(key) = next.take_if(|_| leaves.len() < most) {
            let Some(found) = self.level_store.locate(level, SeekTarget::Containing(&key), guard)? else {
                break;
            };
            leaves.push(found.at);
            next = found.high;
        }
        let mut loaded = HashMap::new();
        self.level_store.read_leaves(&leaves, &mut loaded)?;
        let mut places = Vec::new();
        for leaf in leaves {
            let node = match loaded.get(&leaf.page) {
                Some(frame) => frame.node(),
                None => self.level_store.node(leaf, 0, guard)?.node(),
            };
            for entry in (0..node.len()).map(|slot| node.entry(slot)).filter(|entry| !entry.is_tombstone()) {
                let there = self.level_store.segment_of(entry.address(), node.stamp(), guard);
                places
                    .extend(there.map(|segment| RecordLocation::new(entry.address(), entry.span(), segment)));
            }
        }
        Ok((places, next))
    }
}

/// Returns the position of the bit of an address.
fn bit_position(address: Address, place: u64) -> (usize, u64) {
    let at = address.offset() / place;
    (usize::try_from(at / 64).unwrap_or(usize::MAX), 1 << (at % 64))
}
