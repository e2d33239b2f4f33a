//! # Named: which records the last level points at
//!
//! The cleaner asks of each record of a victim whether it is the newest of its key. Where neither
//! memory nor an upper level has the key, the last level decides, and for a record that was not
//! touched for long that is a leaf to be read from the device: a read a record. So what the last
//! level points at is mirrored here, a bit for each place in the log where a record may begin.
//!
//! ## Picture
//!
//! ```text
//!  step into the last level ──> entries written: set, met: cleared ──┐
//!  after an opening, when the cleaner asks: leaf after leaf ──> set ──> slot: [bits of its segment] <── is this record named? (cleaner)
//! ```
//!
//! ## Invariants
//!
//! 1. Up to the key that has been reached: an entry of the last level that has any points at a
//!    record of a segment that is there exactly if the record's bit is set. Steps change bits of
//!    all keys, so that what is reached stays right.
//! 2. Bits change before the step is published. Who loaded the state of before finds there what
//!    supersedes a record whose bit went meanwhile, and what had a record whose bit came.
//! 3. Two records of the keyspace never share a bit: none is shorter than the places are long. If a
//!    shorter one comes, the places become shorter, and everything is gone over again.
//!
//! ## Threads, crash, costs
//!
//! Bits are changed under the lock of the steps, and read under a lock of their own. Nothing is on
//! disk. A bit for each 128 bytes of the log where records are so long, at most a
//! [`BUDGET_DIVISOR`]th of the budget: a log that would take more is not mirrored, and the leaves
//! are asked.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::Result;
use sheaf_base::memory::MemoryPart;
use sheaf_base::segment::{Address, Segment};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::tree::{KreonState, Level, SeekTarget};

/// Bytes of the log that share a bit, at first, ...
const MAX_GRANULE: u64 = 128;
/// ... and at least: no frame is shorter.
const MIN_GRANULE: u64 = 16;
/// The part of the budget that all bits may take.
const BUDGET_DIVISOR: u64 = 32;

/// A record: in which segment it stands, of how many bytes, and how long it is.
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

    /// Where it begins.
    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

/// How far the mirror is right.
#[derive(Debug, PartialEq, Eq)]
enum BitmapProgress {
    /// It is right for all keys.
    Complete,
    /// Nobody has asked since the opening.
    NotStarted,
    /// It took too much, or a leaf cannot be read: leaves are asked.
    Disabled,
    /// It is right below this key.
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
    /// By slots.
    by_slot: Vec<Option<SegmentBits>>,
    progress: BitmapProgress,
    /// Bytes that share a bit.
    granule_bytes: u64,
    bytes: u64,
}

impl LiveBitmapState {
    /// A word of the bits of the segment that a record stands in, if there are any.
    #[inline]
    fn word_of(&mut self, spot: &RecordLocation, word: usize) -> Option<&mut u64> {
        let bits = self.by_slot.get_mut(spot.address.slot() as usize)?.as_mut()?;
        (bits.segment == spot.segment).then(|| bits.words.get_mut(word))?
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LiveBitmap {
    context: Arc<EngineContext>,
    inner: Mutex<LiveBitmapState>,
    /// Look-ups that were spared.
    lookups_saved: AtomicU64,
}

impl LiveBitmap {
    /// Of levels that have nothing.
    pub(crate) fn new(context: Arc<EngineContext>) -> LiveBitmap {
        let inner = LiveBitmapState {
            by_slot: Vec::new(),
            progress: BitmapProgress::Complete,
            granule_bytes: MAX_GRANULE,
            bytes: 0,
        };
        LiveBitmap { context, inner: Mutex::new(inner), lookups_saved: AtomicU64::new(0) }
    }

    /// Whether the last level points at the record at `spot`. None if that is not known (yet).
    pub(crate) fn is_referenced(&self, spot: &RecordLocation) -> Option<bool> {
        let known = self.is_referenced_uncounted(spot);
        self.lookups_saved.fetch_add(u64::from(known.is_some()), Ordering::Relaxed);
        known
    }

    /// The same, not counted as a look-up.
    pub(crate) fn is_referenced_uncounted(&self, spot: &RecordLocation) -> Option<bool> {
        let mut inner = self.inner.lock();
        if inner.progress == BitmapProgress::NotStarted {
            inner.progress = BitmapProgress::CompleteBelow(Vec::new());
        }
        if inner.progress != BitmapProgress::Complete || self.refine_granule(&mut inner, spot.span) {
            return None;
        }
        let (word, bit) = bit_position(spot.address, inner.granule_bytes);
        Some(inner.word_of(spot, word).is_some_and(|word| *word & bit != 0))
    }

    /// Look-ups in leaves that were spared since the opening.
    pub(crate) fn lookups_saved(&self) -> u64 {
        self.lookups_saved.load(Ordering::Relaxed)
    }

    /// From which key on the last level is to be gone over, if it is.
    pub(crate) fn resume_key(&self) -> Option<Vec<u8>> {
        match &self.inner.lock().progress {
            BitmapProgress::CompleteBelow(key) => Some(key.clone()),
            _ => None,
        }
    }

    /// The last level was gone over up to `key`, or to its end, and points at these.
    pub(crate) fn add_scanned(&self, spots: &[RecordLocation], key: Option<Vec<u8>>, guard: &Guard) {
        let mut inner = self.inner.lock();
        let is_anew = self.update_locked(&mut inner, &[], spots, guard);
        if !is_anew && let BitmapProgress::CompleteBelow(_) = &inner.progress {
            inner.progress = key.map_or(BitmapProgress::Complete, BitmapProgress::CompleteBelow);
        }
    }

    /// A step is about to be published with which the last level points no more at the ones, and at
    /// the others instead.
    pub(crate) fn update(&self, cleared: &[RecordLocation], set: &[RecordLocation], guard: &Guard) {
        self.update_locked(&mut self.inner.lock(), cleared, set, guard);
    }

    /// Whether everything is to be gone over from the begin.
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
        let least = set.iter().map(|spot| spot.span).min();
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

    /// Leaves are asked from now on, until the next opening.
    pub(crate) fn disable(&self) {
        self.restart(&mut self.inner.lock(), BitmapProgress::Disabled);
    }

    /// Another level is the last one that has anything, or none is.
    pub(crate) fn reset(&self, is_any: bool) {
        let mut inner = self.inner.lock();
        self.restart(&mut inner, if is_any { BitmapProgress::NotStarted } else { BitmapProgress::Complete });
    }

    /// Whether a record of so many bytes is shorter than all before, so that everything is gone
    /// over again (I3).
    fn refine_granule(&self, inner: &mut LiveBitmapState, span: u64) -> bool {
        let is = span < inner.granule_bytes;
        if is {
            // No frame is shorter than the shortest: who says so is not to be believed.
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
        is
    }

    fn restart(&self, inner: &mut LiveBitmapState, reach: BitmapProgress) {
        inner.by_slot.clear();
        self.context.memory.give_back(MemoryPart::Index, inner.bytes);
        (inner.bytes, inner.progress) = (0, reach);
    }

    /// Bits for a segment that has none, and room for them where segments have gone.
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
    /// A step goes over `most` more leaves of the last level, if the cleaner wants to know what it
    /// points at. Whether it did.
    pub(crate) fn scan_live_records(&self, state: &KreonState, most: usize, guard: &Guard) -> bool {
        let Some((from, level)) = self.live_bitmap.resume_key().zip(state.last_nonempty_level()) else {
            return false;
        };
        match self.live_records_from(&state.levels[level], &from, most, guard) {
            Ok((places, next)) => self.live_bitmap.add_scanned(&places, next, guard),
            Err(_) => self.live_bitmap.disable(), // who asks for what the leaf has is told
        }
        true
    }

    /// What some leaves of `level` point at, and where the next one begins.
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

/// Where an address has its bit.
fn bit_position(address: Address, place: u64) -> (usize, u64) {
    let at = address.offset() / place;
    (usize::try_from(at / 64).unwrap_or(usize::MAX), 1 << (at % 64))
}
