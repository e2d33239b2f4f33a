//! # Changes: the batch that a flush step takes from the frozen memtable
//!
//! A batch contains the next changes in key order, with their bytes in one buffer. For each key,
//! these are the newest version and the older ones that a view needs. A version that the active
//! memtable supersedes is left out unless a view needs it. `merge` also drops tombstones that hide
//! no older version.
//!
//! ## Costs
//!
//! Four cache misses per key: its record, its frame, and two for its lookup in the active memtable.
//! Each line leads to the next one, so they are prefetched in passes over the whole batch. Without
//! prefetching, the cache misses are a large part of the flush time.

use std::mem;
use std::ops::{Bound, Range};

use sheaf_engine::memtable::range_tombstones::RangeTombstones;
use sheaf_engine::memtable::{ArenaOffset, Memtable, MemtableVersion, decode_blob_ref, encode_blob_ref};
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

use crate::engine::FlexEngine;
use crate::flush::plan::PlanInputs;
use crate::flush::value_prefetch::ValuePrefetch;
use crate::index::table::IntervalPlan;
use crate::interval::block::{Block, FingerprintedPair, fingerprint_of};
use crate::interval::run::StoredPair;

/// A change; the ranges refer to the buffer of the batch.
#[derive(Clone, Debug)]
struct ChangeItem {
    key: Range<usize>,
    fingerprint: u16,
    seq: Seq,
    kind: ChangeItemKind,
    value: Range<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangeItemKind {
    Put,
    Blob,
    Tombstone,
}

/// Records that are prefetched ahead.
const PREFETCH_RECORDS: usize = 8;

/// Changes in the order of keys and descending numbers. The next step reuses the batch and so its
/// memory.
#[derive(Debug, Default)]
pub(crate) struct ChangeBatch {
    buffer: Vec<u8>,
    items: Vec<ChangeItem>,
    /// Places of the records in the memtable, and the hashes of their keys.
    places: Vec<ArenaOffset>,
    hashes: Vec<u64>,
}

impl ChangeBatch {
    /// Returns the number of changes.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns the first change at or after `from` for which `before` is false. `before` must hold
    /// for a prefix of the changes.
    pub(crate) fn end_before(&self, from: usize, before: impl Fn(&[u8]) -> bool) -> usize {
        from + self.items[from..].partition_point(|item| before(&self.buffer[item.key.clone()]))
    }

    /// Returns the bytes of keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.buffer.len()
    }

    fn clear(&mut self) {
        self.buffer.clear();
        self.items.clear();
        self.places.clear();
        self.hashes.clear();
    }

    fn push(&mut self, key: Range<usize>, fingerprint: u16, seq: Seq, content: &RecordContent<'_>) {
        let from = self.buffer.len();
        let kind = match content {
            RecordContent::Put(value) => {
                self.buffer.extend_from_slice(value);
                ChangeItemKind::Put
            }
            RecordContent::Blob(blob) => {
                self.buffer.extend_from_slice(&encode_blob_ref(blob));
                ChangeItemKind::Blob
            }
            RecordContent::Remove | RecordContent::RemoveRange(_) => ChangeItemKind::Tombstone,
        };
        self.items.push(ChangeItem { key, fingerprint, seq, kind, value: from..self.buffer.len() });
    }

    pub(crate) fn key(&self, at: usize) -> &[u8] {
        &self.buffer[self.items[at].key.clone()]
    }

    pub(crate) fn pair(&self, at: usize) -> StoredPair<'_> {
        let item = &self.items[at];
        let value = &self.buffer[item.value.clone()];
        let content = match item.kind {
            ChangeItemKind::Put => RecordContent::Put(value),
            ChangeItemKind::Blob => RecordContent::Blob(decode_blob_ref(value)),
            ChangeItemKind::Tombstone => RecordContent::Remove,
        };
        StoredPair { key: &self.buffer[item.key.clone()], seq: item.seq, content }
    }

    pub(crate) fn fingerprinted_pair(&self, at: usize) -> FingerprintedPair<'_> {
        FingerprintedPair { fingerprint: self.items[at].fingerprint, pair: self.pair(at) }
    }

    pub(crate) fn pairs(&self, range: Range<usize>) -> impl Iterator<Item = StoredPair<'_>> + Clone {
        range.map(|at| self.pair(at))
    }
}

/// Sources of changes.
#[derive(Clone, Copy)]
pub(crate) struct ChangeSource<'a> {
    pub(crate) frozen: &'a Memtable,
    pub(crate) active: &'a Memtable,
    pub(crate) views: &'a Views,
    pub(crate) guard: &'a Guard,
}

/// Drops the superseded versions that no view needs, and collects their blobs.
pub(crate) struct VersionFilter<'a> {
    views: &'a Views,
    /// Range tombstones that hide versions.
    ranges: Option<(&'a RangeTombstones, &'a Guard)>,
    dead_blobs: &'a mut Vec<(Seq, u64)>,
}

impl<'a> VersionFilter<'a> {
    pub(crate) fn new(inputs: &PlanInputs<'a>, dead_blobs: &'a mut Vec<(Seq, u64)>) -> VersionFilter<'a> {
        let ranges = inputs.ranges.map(|ranges| (ranges, inputs.guard));
        VersionFilter { views: inputs.views, ranges, dead_blobs }
    }

    /// Adds a tombstone for each range tombstone that covers the key of `versions`.
    fn add_removals(&self, versions: &mut SmallVec<[FingerprintedPair<'_>; 4]>) {
        let Some((ranges, guard)) = self.ranges else { return };
        let Some(first) = versions.first().copied() else { return };
        let Some(piece) = ranges.piece_of(first.pair.key, guard) else { return };
        versions.extend(piece.seqs.iter().map(|seq| FingerprintedPair {
            pair: StoredPair { seq: *seq, content: RecordContent::Remove, ..first.pair },
            ..first
        }));
        versions.sort_by_key(|version| std::cmp::Reverse(version.pair.seq)); // a put stays first
        versions.dedup_by_key(|version| version.pair.seq);
    }

    /// Appends the versions of one key that must stay to `out`. `versions` are in descending order
    /// of seqs.
    fn filter<'p>(&mut self, versions: &[FingerprintedPair<'p>], out: &mut Vec<FingerprintedPair<'p>>) {
        let start = out.len();
        let mut end_seq = None;
        for version in versions {
            let StoredPair { seq, content, .. } = version.pair;
            match end_seq {
                Some(end_seq) if !self.views.may_need(seq, end_seq) => {
                    if let RecordContent::Blob(blob) = content {
                        self.dead_blobs.push((end_seq, blob.id));
                    }
                }
                _ => out.push(*version),
            }
            end_seq = Some(seq);
        }
        // A tombstone with nothing below it hides nothing.
        while out.len() > start && out.last().is_some_and(|last| last.pair.is_tombstone()) {
            out.pop();
        }
    }
}

impl FlexEngine {
    /// Fills `batch` with the next changes of the frozen memtable behind `after`. Returns the last
    /// key if there are more. Changes that the active memtable supersedes are skipped: the
    /// superseding commit is durable when the checkpoint ends, and the journal contains it.
    pub(crate) fn collect_changes(
        &self,
        source: &ChangeSource<'_>,
        after: Option<&[u8]>,
        most: usize,
        (batch, value_prefetch): (&mut ChangeBatch, &mut ValuePrefetch),
        plan: &mut IntervalPlan,
    ) -> Result<Option<Vec<u8>>> {
        let ChangeSource { frozen: memtable, active, guard, .. } = *source;
        batch.clear();
        let low = after.map_or(Bound::Unbounded, Bound::Excluded);
        memtable.ascend(low, most, guard, &mut batch.places);
        let is_all = batch.places.len() < most;
        value_prefetch.prefetch_if_uncached(memtable, &batch.places, &self.interval_cache.context, guard);
        let has_newer = !active.is_empty();
        batch.places.iter().take(PREFETCH_RECORDS).for_each(|place| memtable.prefetch_record(*place));
        for (number, place) in batch.places.iter().enumerate() {
            if let Some(later) = batch.places.get(number + PREFETCH_RECORDS) {
                memtable.prefetch_record(*later);
            }
            let entry = memtable.entry(*place);
            memtable.prefetch_frame(entry.newest().word, &self.interval_cache.context, guard);
            let hash = self.interval_cache.hash(entry.key());
            if has_newer {
                active.prefetch(hash, guard);
            }
            batch.hashes.push(hash);
        }
        let (places, hashes) = (mem::take(&mut batch.places), mem::take(&mut batch.hashes));
        let moved = self.append_changes(source, &places, &hashes, (batch, value_prefetch), plan);
        let is_cut = matches!(moved, Ok(moved) if moved < places.len());
        let last = moved.map(|moved| places[..moved].last().filter(|_| is_cut || !is_all).copied());
        (batch.places, batch.hashes) = (places, hashes);
        Ok(last?.map(|place| memtable.entry(place).key().to_vec()))
    }

    /// Appends the changes of records to `batch` until it has enough bytes. Returns the number of
    /// records taken.
    fn append_changes(
        &self,
        source: &ChangeSource<'_>,
        places: &[ArenaOffset],
        hashes: &[u64],
        (batch, value_prefetch): (&mut ChangeBatch, &ValuePrefetch),
        plan: &mut IntervalPlan,
    ) -> Result<usize> {
        let ChangeSource { frozen: memtable, active, views, guard } = *source;
        let has_newer = !active.is_empty();
        for (number, (place, hash)) in places.iter().zip(hashes).enumerate() {
            if number > 0 && batch.buffer.len() >= self.sizes.step_bytes {
                return Ok(number);
            }
            if let Some(later) = hashes.get(number + PREFETCH_RECORDS).filter(|_| has_newer) {
                active.prefetch_found(*later, guard);
            }
            let entry = memtable.entry(*place);
            // The newest version in the active memtable. Versions between it and the frozen one, if
            // any, were superseded earlier.
            let newer = if has_newer { active.find(*hash, entry.key(), guard) } else { None };
            let mut end_seq = newer.map(|newer| newer.newest().seq);
            let needs = |begin_seq: Seq, end_seq: Seq| views.may_need(begin_seq, end_seq);
            let newest = entry.newest();
            if let Some(end_seq) = end_seq
                && !newest.word.is_blob()
                && !needs(newest.seq, end_seq)
                && entry.versions().count() == 1
            {
                plan.counts.skipped += 1;
                continue;
            }
            let from = batch.buffer.len();
            batch.buffer.extend_from_slice(entry.key());
            let key = from..batch.buffer.len();
            for MemtableVersion { word, seq } in memtable.all_versions(*place, guard) {
                if end_seq.is_some_and(|end_seq| end_seq <= seq) {
                    continue; // already taken
                }
                let mut take = |content: RecordContent<'_>| {
                    match (end_seq, content) {
                        (Some(end_seq), RecordContent::Blob(blob)) if !needs(seq, end_seq) => {
                            plan.dead_blobs.push((end_seq, blob.id));
                        }
                        (Some(end_seq), _) if !needs(seq, end_seq) => {}
                        (_, content) => batch.push(key.clone(), fingerprint_of(*hash), seq, &content),
                    }
                    Ok(())
                };
                match value_prefetch.value(word) {
                    Some(value) => take(RecordContent::Put(value))?,
                    None => memtable.content(word, &self.interval_cache.context, guard, take)?,
                }
                end_seq = Some(seq);
            }
        }
        Ok(places.len())
    }
}

/// Merges the versions of consecutive blocks with changes, and returns those that stay.
pub(crate) fn merge<'p>(
    blocks: &[&'p Block],
    changes: impl Iterator<Item = FingerprintedPair<'p>>,
    keeper: &mut VersionFilter<'_>,
) -> Vec<FingerprintedPair<'p>> {
    let stored = blocks.iter().map(|block| block.len()).sum::<usize>();
    let mut old = blocks
        .iter()
        .flat_map(|block| (0..block.len()).map(|slot| block.fingerprinted_pair(slot)))
        .peekable();
    let mut new = changes.peekable();
    let mut out = Vec::with_capacity(stored + new.size_hint().0);
    let mut versions: SmallVec<[FingerprintedPair<'p>; 4]> = SmallVec::new();
    loop {
        let key = match (old.peek(), new.peek()) {
            (None, None) => return out,
            (Some(one), None) | (None, Some(one)) => one.pair.key,
            (Some(a), Some(b)) => a.pair.key.min(b.pair.key),
        };
        versions.clear();
        while let Some(version) = new.next_if(|version| version.pair.key == key) {
            versions.push(version);
        }
        let changed = versions.len();
        while let Some(version) = old.next_if(|version| version.pair.key == key) {
            versions.push(version);
        }
        if changed > 0 && changed < versions.len() {
            versions.sort_by_key(|version| std::cmp::Reverse(version.pair.seq));
            versions.dedup_by_key(|version| version.pair.seq);
        }
        keeper.add_removals(&mut versions);
        keeper.filter(&versions, &mut out);
    }
}
