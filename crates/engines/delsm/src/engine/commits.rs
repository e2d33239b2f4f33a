//! # Commits: operations on the active memtable
//!
//! The store prepares an operation before it has a seq, and applies it afterwards. Each applied
//! record is counted: the bytes that it will need in lists and packs, and those that it wastes in
//! the journal.

use sheaf_engine::contract::{Action, EngineCommits, EngineOp, EnginePressure, Preparation};
use sheaf_engine::memtable::{Memtable, MemtableVersion as MemVersion, VersionWord};
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

use super::{DelsmEngine, TABLE_BYTES_SUM, WASTE};
use crate::tree::DelsmState;

/// Upper estimate of the bytes of a list entry in addition to its key, including its share of the
/// foot.
const LIST_ENTRY_OVERHEAD: usize = 40;
/// Number of removals between two scans for removed ranges, while the scans are successful.
const RESCAN_REMOVALS: u64 = 4;

impl DelsmEngine {
    /// Returns true if the record of `op` would exceed the budget even after eviction of all
    /// caches. The check includes the memory that the memtables will need in the index.
    fn is_over_budget(&self, op: &EngineOp<'_>, state: &DelsmState) -> bool {
        let more = state.memtables.bytes_needed(op, self.sizes.index_bytes_per_key);
        let memory = &self.keyspace.context.memory;
        self.keyspace.context.blob_cache.evict_to_fit(more, memory);
        !memory.has_room_without_caches(more)
    }

    /// Scans around the removed `key` for a removed range, if a scan is due. The next scan is due
    /// soon if this one passed many removed keys: removals there come in no order.
    fn record_ranges_if_due(&self, key: &[u8]) {
        let [removed, due] = &self.removal_scan_counters;
        if removed.load(Ordering::Relaxed) < due.load(Ordering::Relaxed) {
            return;
        }
        removed.store(0, Ordering::Relaxed);
        let is_worth_it = self.record_ranges_around(key) >= 2 * self.sizes.min_removed_run as u64;
        let later = (2 * due.load(Ordering::Relaxed)).min(self.sizes.removals_per_scan);
        due.store(if is_worth_it { RESCAN_REMOVALS.min(later) } else { later }, Ordering::Relaxed);
    }

    /// Counts the bytes of a record in a list and of its value in a pack, or the blob of the
    /// record.
    pub(super) fn count_table_bytes(&self, active: &Memtable, key: &[u8], content: &RecordContent<'_>) {
        if let RecordContent::Blob(blob) = content {
            self.memtable_blobs[0].fetch_add(1, Ordering::Relaxed);
            self.memtable_blobs[1].fetch_add(u64::from(blob.len), Ordering::Relaxed);
        }
        let packed = if let RecordContent::Put(value) = content { value.len() } else { 0 };
        let bytes = key.len() + packed + LIST_ENTRY_OVERHEAD;
        active.add_to_sum(TABLE_BYTES_SUM, bytes as u64);
    }

    /// Counts the wasted bytes of a record in the journal: a flush makes them superfluous, and no
    /// table needs them. A key that the memtable already has wastes its whole record. A new key of
    /// the memtable wastes the fraction of keys that tables already have.
    pub(super) fn note_waste(&self, active: &Memtable, span: u32, is_first: bool) {
        let fresh = if is_first { self.new_key_percent.load(Ordering::Relaxed).min(100) } else { 0 };
        active.add_to_sum(WASTE, u64::from(span) * (100 - fresh) / 100);
    }
}

impl EngineCommits for DelsmEngine {
    fn blob_threshold(&self) -> usize {
        self.sizes.max_packed_bytes
    }

    fn takes_blob_files(&self) -> bool {
        true
    }

    fn removes_ranges(&self) -> bool {
        true
    }

    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        if matches!(op.action, Action::Remove) && op.ops_before == 0 {
            self.record_ranges_if_due(op.key);
        }
        let guard = &epoch::pin();
        let hash = op.hash.unwrap_or_else(|| self.keyspace.hash(op.key));
        let state = self.state(guard);
        state.memtables.active.prepare(
            op,
            hash,
            (&self.keyspace.context, guard),
            &self.pinned_versions,
            (|op: &EngineOp<'_>| self.is_over_budget(op, state), || self.is_memory_high()),
            |key| Ok(self.visible_seq(Seq::LATEST, key, false, guard)?.unwrap_or(Seq::ZERO)),
        )
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.is_current(op, guard)
    }

    fn prefetch_apply(&self, op: &mut EngineOp<'_>) {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.prefetch_apply(op, guard);
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        let Some(content) = op.action.content() else { return };
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        if let RecordContent::RemoveRange(end) = content {
            self.pinned_versions.update(views);
            self.pinned_versions.note_superseded(Seq(1), seq, views); // one for all in the range
            active.remove_range(op.key, end, seq, views, &self.keyspace.context, guard);
            self.note_waste(active, op.span, false);
            return self.removed_ranges.note_range(op.key, end, seq);
        }
        let version = MemVersion { word: VersionWord::of(&content, op.address), seq };
        active.note_superseded(op, seq, views, &self.pinned_versions);
        let place = Memtable::place_of(op);
        let is_kept = active.put(place, op.key, version, views, &self.keyspace.context, guard);
        self.count_table_bytes(active, op.key, &content);
        self.note_waste(active, op.span, place.record == 0);
        match content {
            RecordContent::Remove => drop(self.removal_scan_counters[0].fetch_add(1, Ordering::Relaxed)),
            _ => self.removed_ranges.note_put(op.key),
        }
        if let Some(id) = Memtable::replaced_blob(op).filter(|_| !is_kept) {
            self.keyspace.context.retire_blob(seq, id);
        }
    }

    /// Only updates the count of pinned versions. The versions are dropped when their memtable or
    /// table is next written, at the latest when the database is idle.
    fn trim(&self, views: &Views, visible: Seq) {
        self.has_released_views.store(true, Ordering::Relaxed);
        self.pinned_versions.trim(views, visible);
    }
}
