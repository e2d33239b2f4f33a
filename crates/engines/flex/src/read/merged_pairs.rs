//! # Merged pairs: the pairs of an interval that a scan shows if it cannot show the block as stored
//!
//! Used if memtables have keys of the interval, if versions of the block are newer than the view,
//! or if the block refers to blobs. The pairs are then chosen key by key. A pair of a memtable is
//! copied; a pair of the block is a slot number.

use std::ops::Range;

use sheaf_engine::contract::Projection;
use sheaf_engine::memtable::{Memtables, decode_blob_ref, encode_blob_ref};
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use crate::engine::FlexEngine;
use crate::interval::block::Block;
use crate::interval::run::StoredPair;
use crate::read::merge_inputs::MergeSource;

/// Maximum number of pairs of a batch with pairs of memtables.
const MAX_PAIRS: usize = 64;
/// Approximate limit of the bytes copied for a batch.
const MAX_COPIED_BYTES: usize = 256 << 10;

/// Location of a pair.
#[derive(Clone, Copy, Debug)]
pub(crate) enum MergedItem {
    /// A slot of the block.
    Block(u32),
    /// In the copies: start of the key, start of the value, end of the value, and whether the value
    /// is a blob reference.
    Copy(u32, u32, u32, bool),
}

/// Returns the item of a slot of the block.
fn block_item(slot: usize) -> MergedItem {
    MergedItem::Block(u32::try_from(slot).unwrap_or(u32::MAX))
}

/// Range tombstones that hide versions from a view.
pub(crate) struct RangeFilter<'a> {
    memtables: &'a Memtables,
    at: Seq,
    guard: &'a Guard,
}

impl<'a> RangeFilter<'a> {
    /// Returns the tombstones that may cover a key from `low` on and before `high`, if there are
    /// any.
    pub(crate) fn new(
        memtables: &'a Memtables,
        (low, high): (&[u8], Option<&[u8]>),
        at: Seq,
        guard: &'a Guard,
    ) -> Option<RangeFilter<'a>> {
        memtables.has_ranges_in(low, high, at, guard).then_some(RangeFilter { memtables, at, guard })
    }

    /// Returns true if a tombstone hides the version of commit `seq`.
    pub(crate) fn hides(&self, key: &[u8], seq: Seq) -> bool {
        self.memtables.range_seq(key, self.at, self.guard) > seq
    }
}

/// The pairs of an interval that a view shows.
#[derive(Debug)]
pub(crate) struct MergedPairs {
    at: Seq,
    projection: Projection,
    copies: Vec<u8>,
    items: Vec<MergedItem>,
    next: usize,
    /// Maximum number of pairs of the batch, if memtables have keys in it.
    limit: usize,
}

impl MergedPairs {
    pub(crate) fn new(at: Seq, projection: Projection) -> MergedPairs {
        MergedPairs { at, projection, copies: Vec::new(), items: Vec::new(), next: 0, limit: MAX_PAIRS }
    }

    /// Limits the next batch with pairs to `pairs`.
    pub(crate) fn expect_pairs(&mut self, pairs: usize) {
        self.limit = pairs.clamp(1, MAX_PAIRS);
    }

    pub(crate) fn clear(&mut self) {
        if !self.items.is_empty() {
            self.limit = MAX_PAIRS; // the scan reads more pairs than were expected
        }
        self.copies.clear();
        self.items.clear();
        self.next = 0;
    }

    /// Whether nothing is left to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.items.len()
    }

    /// Returns the number of pairs taken.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether the batch has reached one of its limits.
    pub(crate) fn is_full(&self) -> bool {
        self.items.len() >= self.limit || self.copies.len() > MAX_COPIED_BYTES
    }

    /// Returns the next pair.
    #[inline]
    pub(crate) fn step(&mut self) -> Option<MergedItem> {
        let item = *self.items.get(self.next)?;
        self.next += 1;
        Some(item)
    }

    /// Returns copied bytes of an item.
    #[inline]
    pub(crate) fn bytes(&self, from: u32, to: u32) -> &[u8] {
        &self.copies[from as usize..to as usize]
    }

    /// Takes the pairs that the view shows from slots of the block. No other source may have their
    /// keys.
    pub(crate) fn take_slots(
        &mut self,
        block: &Block,
        slots: Range<usize>,
        forward: bool,
        removals: Option<&RangeFilter<'_>>,
    ) {
        let first = self.items.len();
        if removals.is_none() && block.is_visible_as_stored(self.at) {
            self.items.extend(slots.filter(|slot| !block.is_hidden(*slot)).map(block_item));
        } else {
            let mut decided = None;
            for slot in slots {
                let pair = block.pair(slot);
                if pair.seq <= self.at && decided != Some(pair.key) {
                    decided = Some(pair.key);
                    if removals.is_none_or(|removals| !removals.hides(pair.key, pair.seq)) {
                        self.take_slot(slot, &pair);
                    }
                }
            }
        }
        if !forward {
            self.items[first..].reverse();
        }
    }

    /// Takes the pair of `key` that the view shows. It is in the first source with a version for
    /// the view, else in `slots` of the block. Advances the sources that are at `key`.
    pub(crate) fn take_key(
        &mut self,
        engine: &FlexEngine,
        key: &[u8],
        sources: &mut [MergeSource<'_>],
        (block, slots): (Option<&Block>, Range<usize>),
        forward: bool,
        (removals, guard): (Option<&RangeFilter<'_>>, &Guard),
    ) -> Result<()> {
        let mut is_decided = false;
        for source in sources.iter_mut().filter(|source| source.key() == Some(key)) {
            let memtable = source.memtable;
            let entry = memtable.entry(source.input.places[source.input.next]);
            source.prefetch_ahead(engine, guard);
            source.advance(forward, guard);
            if is_decided {
                continue;
            }
            let Some(version) = entry.at(self.at) else { continue };
            is_decided = true;
            let is_hidden = removals.is_some_and(|removals| removals.hides(key, version.seq));
            if version.word.is_tombstone() || is_hidden {
                continue;
            }
            memtable.content(version.word, &engine.interval_cache.context, guard, |content| {
                self.copy(key, &content);
                Ok(())
            })?;
        }
        if let Some(block) = block.filter(|_| !is_decided) {
            self.take_slots(block, slots, true, removals);
        }
        Ok(())
    }

    /// Takes a slot of the block that the view shows, unless it is a tombstone.
    fn take_slot(&mut self, slot: usize, pair: &StoredPair<'_>) {
        match pair.content {
            RecordContent::Put(_) => self.items.push(block_item(slot)),
            RecordContent::Blob(_) => self.copy(pair.key, &pair.content),
            RecordContent::Remove | RecordContent::RemoveRange(_) => {}
        }
    }

    /// Copies a pair.
    fn copy(&mut self, key: &[u8], content: &RecordContent<'_>) {
        let at = |copies: &Vec<u8>| u32::try_from(copies.len()).unwrap_or(u32::MAX);
        let from = at(&self.copies);
        self.copies.extend_from_slice(key);
        let value = at(&self.copies);
        let is_blob = match content {
            RecordContent::Put(bytes) if self.projection == Projection::Pairs => {
                self.copies.extend_from_slice(bytes);
                false
            }
            RecordContent::Blob(blob) => {
                self.copies.extend_from_slice(&encode_blob_ref(blob));
                true
            }
            _ => false,
        };
        self.items.push(MergedItem::Copy(from, value, at(&self.copies), is_blob));
    }

    /// Reads the value of an item with a blob reference from `from` to `to`.
    pub(crate) fn read_blob(&self, engine: &FlexEngine, from: u32, to: u32) -> Result<Vec<u8>> {
        let blob = decode_blob_ref(self.bytes(from, to));
        let blobs = &engine.interval_cache.context.blobs;
        // The cursor's view pins the blob, so a missing file is damage.
        blobs.read(&blob)?.ok_or_else(|| blobs.missing_error(&blob))
    }
}
