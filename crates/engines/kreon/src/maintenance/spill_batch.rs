//! # Spill batch: the entries of the frozen memtable that one step moves down
//!
//! A version stays behind if the active memtable has a newer one of its key, or if a range
//! tombstone hides it. It is then freed, or kept among the old versions for a view.

use std::ops::Range;

use sheaf_engine::memtable::ArenaOffset;
use sheaf_engine::views::Views;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::types::Seq;
use sheaf_platform::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::maintenance::merge_accounting::MergeAccounting;
use crate::memtable::{KreonMemtable, KreonVersion, RecordWord};
use crate::tree::KreonState;
use crate::tree::node::{
    HAS_BLOB, INLINE, LOWER_UNACCOUNTED, LeafEntry, LeafPair, MAX_INLINE, fingerprint_of,
};

/// Maximum number of bytes of a record's frame besides key and value.
const RECORD_OVERHEAD: usize = 48;
/// Records that are prefetched ahead of the one with the value to copy.
const PREFETCHED_RECORDS: usize = 8;

/// Entries that one step moves down.
#[derive(Default)]
pub(crate) struct SpillBatch<'k> {
    /// Keys, entries, their commits, and the ranges of their values in `values`.
    entries: Vec<(&'k [u8], LeafEntry, Seq, Range<usize>)>,
    values: Vec<u8>,
    /// Addresses of records that refer to blobs.
    pub(crate) blob_records: Vec<u64>,
}

impl SpillBatch<'_> {
    pub(crate) fn pairs(&self) -> Vec<LeafPair<'_>> {
        let all = self.entries.iter();
        all.map(|(key, entry, newest, value)| LeafPair {
            key,
            entry: *entry,
            max_seq: *newest,
            value: &self.values[value.clone()],
        })
        .collect()
    }
}

impl KreonEngine {
    /// Returns the entries of the first `count` records of a frozen memtable that move down.
    pub(crate) fn collect_batch<'k>(
        &self,
        frozen: &KreonMemtable,
        (places, keys, count): (&[ArenaOffset], &[&'k [u8]], usize),
        state: &KreonState,
        merge_accounting: &mut MergeAccounting<'_>,
        guard: &Guard,
    ) -> SpillBatch<'k> {
        let active = &state.memtables.active;
        let mut batch = SpillBatch { entries: Vec::with_capacity(count), ..SpillBatch::default() };
        for (number, (place, key)) in places.iter().zip(keys).take(count).enumerate() {
            if let Some((place, key)) =
                places.get(number + PREFETCHED_RECORDS).zip(keys.get(number + PREFETCHED_RECORDS))
            {
                self.prefetch_inline_value(key, frozen.version(*place), guard);
            }
            let version = frozen.version(*place);
            let hash = self.hash(key);
            if frozen.hides(key, version, guard) {
                self.retire_hidden(frozen, *place, merge_accounting.views, &mut batch.blob_records, guard);
                continue;
            }
            if let Some(newer) = active.find(hash, key, guard) {
                // Skip the entry: the active memtable has a newer version.
                self.skip_superseded(
                    merge_accounting,
                    key,
                    version,
                    active.version(newer),
                    &mut batch.blob_records,
                    guard,
                );
                continue;
            }
            if version.seq < state.range_seq(key, Seq::LATEST, guard) {
                self.retire_hidden(frozen, *place, merge_accounting.views, &mut batch.blob_records, guard);
                continue;
            }
            let mut entry = self.entry_of(version, fingerprint_of(hash), &mut batch.blob_records);
            self.candidates.lock().note_superseded(key, version);
            let start = batch.values.len();
            if self.copy_inline_value(key, version, guard, &mut batch.values) {
                entry = entry.with_flags(entry.flags | INLINE);
            }
            batch.entries.push((key, entry, version.seq, start..batch.values.len()));
        }
        batch
    }

    /// Accounts for a version of the frozen memtable that the active one supersedes.
    fn skip_superseded(
        &self,
        merge_accounting: &mut MergeAccounting<'_>,
        key: &[u8],
        version: KreonVersion,
        newer: KreonVersion,
        blob_records: &mut Vec<u64>,
        guard: &Guard,
    ) {
        let (word, begin_seq, end_seq) = (version.word, version.seq, newer.seq);
        if newer.word.is_lower_unaccounted() || begin_seq == end_seq {
            return; // GC has moved it: already accounted
        }
        let blob = self.blob_ids.lock().get(&word.address().bits()).copied().filter(|_| word.is_blob());
        blob_records.extend(blob.map(|_| word.address().bits()));
        let old = version.into_old_version(end_seq, blob);
        // The newer version may be younger than the copy of the registry, and a view may have
        // registered before it.
        let may_need = |begin_seq, end_seq| merge_accounting.views.may_need(begin_seq, end_seq);
        let mut candidates = self.candidates.lock();
        candidates.note_skipped(key, word);
        if !self.retain_if_needed(&mut candidates, key, old, may_need, guard) && !word.is_tombstone() {
            merge_accounting.dead_records.push((word.address(), word.span()));
            merge_accounting.dead_blobs.extend(blob.map(|blob| (end_seq, blob)));
        }
    }

    /// Keeps or frees the version of a record in the frozen memtable that a range tombstone hides.
    /// Until then GC moves its record, under the same lock. A version that a view may need stays in
    /// the memtable too, since a reader may have looked for old versions before.
    fn retire_hidden(
        &self,
        frozen: &KreonMemtable,
        place: ArenaOffset,
        views: &Views,
        blob_records: &mut Vec<u64>,
        guard: &Guard,
    ) {
        let mut candidates = self.candidates.lock();
        let (key, version) = (frozen.key(place), frozen.version(place));
        let KreonVersion { word, seq } = version;
        let blob = self.blob_ids.lock().get(&word.address().bits()).copied().filter(|_| word.is_blob());
        blob_records.extend(blob.map(|_| word.address().bits()));
        let old = self.ended_by_ranges(key, version.into_old_version(Seq::LATEST, blob), guard);
        candidates.note_skipped(key, word);
        let may_need = |begin_seq, end_seq| views.may_need(begin_seq, end_seq);
        if !self.retain_if_needed(&mut candidates, key, old, may_need, guard) && !word.is_tombstone() {
            let word = RecordWord::tombstone().with_lower_unaccounted(word.is_lower_unaccounted());
            frozen.replace(place, KreonVersion { word, seq });
            self.accounts.free_version(&old, guard);
        }
    }

    /// Whether the record of a version is so short that its value may be copied into the leaf.
    fn may_be_inline(key: &[u8], version: KreonVersion) -> bool {
        let word = version.word;
        !word.is_tombstone()
            && !word.is_blob()
            && word.span() <= (key.len() + MAX_INLINE + RECORD_OVERHEAD) as u64
    }

    /// Prefetches a value that will be copied.
    fn prefetch_inline_value(&self, key: &[u8], version: KreonVersion, guard: &Guard) {
        if KreonEngine::may_be_inline(key, version) {
            self.context.segments.prefetch_entry(version.word.address(), guard);
        }
    }

    /// Appends a small value to `values` and returns true. An unreadable value is not copied, so
    /// that its readers receive the error.
    fn copy_inline_value(
        &self,
        key: &[u8],
        version: KreonVersion,
        guard: &Guard,
        values: &mut Vec<u8>,
    ) -> bool {
        if !KreonEngine::may_be_inline(key, version) {
            return false;
        }
        let address = version.word.address();
        let Ok(frame) = self.read_frame(address, guard) else { return false };
        match self.decode_record(address, &frame, key, guard) {
            Ok(Record { content: RecordContent::Put(value), .. }) if value.len() <= MAX_INLINE => {
                values.extend_from_slice(value);
                true
            }
            _ => false,
        }
    }

    pub(crate) fn entry_of(
        &self,
        version: KreonVersion,
        fingerprint: u8,
        blob_records: &mut Vec<u64>,
    ) -> LeafEntry {
        let word = version.word;
        let below = if word.is_lower_unaccounted() { LOWER_UNACCOUNTED } else { 0 };
        if word.is_tombstone() {
            return LeafEntry::tombstone(version.seq, fingerprint, below);
        }
        let mut blob = 0;
        let mut flags = below;
        if word.is_blob() {
            flags |= HAS_BLOB;
            blob = self.blob_ids.lock().get(&word.address().bits()).copied().unwrap_or(u64::MAX);
            blob_records.push(word.address().bits());
        }
        LeafEntry::put(word.address(), word.span(), fingerprint, flags, blob)
    }
}
