//! # Merge accounting: old entries of the keys of a batch that is merged into a level
//!
//! For each key, the old entry is dead, retained for a view, or not accounted any more (`spill.rs`
//! has the rules). The accounts change after the step was published.

use std::collections::HashMap;

use sheaf_engine::versions::OldVersion;
use sheaf_engine::views::Views;
use sheaf_log::segment::{Address, Segment};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use crate::engine::KreonEngine;
use crate::maintenance::level_edit::{MergeResolver, merged_flags};
use crate::maintenance::live_bitmap::RecordLocation;
use crate::maintenance::spill::SpillState;
use crate::tree::node::{HAS_BLOB, LOWER_UNACCOUNTED, LeafEntry, LeafPair};
use crate::tree::{Level, record_seq};

/// Segments that the entries of leaves point into, by slot, at the time when the leaves were read.
pub(crate) type SourceSegments<'g> = HashMap<u32, &'g Segment>;

/// Merges a batch with the entries of a level and collects the changes of the accounts.
pub(crate) struct MergeAccounting<'a> {
    engine: &'a KreonEngine,
    pub(crate) views: &'a Views,
    guard: &'a Guard,
    is_last: bool,
    /// Whether the batch only removes the entries of its keys, and has the versions above them.
    pub(crate) only_removes: bool,
    /// Segments of the batch's entries, by slot. `None` if the batch is from a memtable, so that
    /// `max_seq` is the exact seq.
    sources: Option<&'a SourceSegments<'a>>,
    /// Change of the bytes for which the levels account, by slot.
    live_bytes_delta: HashMap<u32, i64>,
    /// Records that are dead once the step is published.
    pub(crate) dead_records: Vec<(Address, u64)>,
    /// Blobs that are dead then, and the commits that superseded them.
    pub(crate) dead_blobs: Vec<(Seq, u64)>,
    /// Records that the last level points at no longer.
    unreferenced: Vec<RecordLocation>,
    /// Records that the last level points at after the step.
    referenced: Vec<RecordLocation>,
}

impl MergeAccounting<'_> {
    pub(crate) fn add_live(&mut self, entry: &LeafEntry, sign: i64) {
        if !entry.is_tombstone() {
            let span = i64::try_from(entry.span()).unwrap_or(0);
            *self.live_bytes_delta.entry(entry.address().slot()).or_insert(0) += sign * span;
        }
    }

    /// Returns the seq of a new entry.
    fn seq_of(&self, new: &LeafPair<'_>) -> Result<Seq> {
        if new.entry.is_tombstone() {
            return Ok(new.entry.tombstone_seq());
        }
        let Some(sources) = self.sources else { return Ok(new.max_seq) };
        let address = new.entry.address();
        match sources.get(&address.slot()) {
            Some(segment) => record_seq(segment, address),
            None => Err(self.engine.dangling_address_error(address)),
        }
    }

    /// Records that the last level will point at the record of `entry`.
    fn reference_record(&mut self, entry: &LeafEntry) {
        let address = entry.address();
        let there = match self.sources {
            Some(sources) => sources.get(&address.slot()).copied(),
            None => self.engine.context.segments.at(address.slot(), self.guard),
        };
        self.referenced.extend(there.map(|segment| RecordLocation::new(address, entry.span(), segment)));
    }

    /// Whether both entries are one version that GC copied, so that the old address is already
    /// accounted. If the old entry was dropped with its segment on the way down, the new entry
    /// meets an older version, which a view may need.
    fn is_relocated_copy(
        &self,
        new: &LeafPair<'_>,
        old: &LeafEntry,
        there: Option<&Segment>,
    ) -> Result<bool> {
        match there {
            Some(there) if !new.entry.is_tombstone() => {
                Ok(self.seq_of(new)? == record_seq(there, old.address())?)
            }
            _ => Ok(false),
        }
    }

    /// Retains `old`, superseded by `new`, if a view may need it. Returns whether it did.
    fn retain_for_views(
        &mut self,
        new: &LeafPair<'_>,
        old: &LeafEntry,
        there: Option<&Segment>,
    ) -> Result<bool> {
        // `new.max_seq` is an upper bound of the commit that superseded `old`.
        if !self.views.may_need_before(new.max_seq) {
            return Ok(false);
        }
        let end_seq = self.seq_of(new)?;
        if !self.views.may_need_before(end_seq) {
            return Ok(false);
        }
        let may_need = |begin_seq, end_seq| self.views.may_need(begin_seq, end_seq);
        let begin_seq = match there {
            Some(there) => record_seq(there, old.address())?,
            None => old.tombstone_seq(),
        };
        let blob = (old.flags & HAS_BLOB != 0).then_some(old.blob_id);
        let (address, span) = match old.is_tombstone() {
            true => (Address::NONE, 0),
            false => (old.address(), u32::try_from(old.span()).unwrap_or(u32::MAX)),
        };
        let old = OldVersion { address, span, begin_seq, end_seq, blob };
        Ok(self.engine.retain_if_needed(
            &mut self.engine.candidates.lock(),
            new.key,
            old,
            may_need,
            self.guard,
        ))
    }
}

impl MergeResolver for MergeAccounting<'_> {
    fn resolve(
        &mut self,
        new: &LeafPair<'_>,
        old: Option<(&LeafEntry, u64, Seq)>,
    ) -> Result<Option<LeafEntry>> {
        let mut flags = new.entry.flags;
        if let Some((old, stamp, _)) = old {
            let is_below = new.entry.flags & LOWER_UNACCOUNTED != 0;
            // Looked up only once, because a segment may leave its slot at any time. A tombstone
            // has no segment and is never void.
            let segment = || self.engine.level_store.segment_of(old.address(), stamp, self.guard);
            let there = if old.is_tombstone() { None } else { segment() };
            let is_gone = !old.is_tombstone() && there.is_none();
            let is_itself = is_below && self.is_relocated_copy(new, old, there)?;
            let is_kept = !is_gone && !is_itself && self.retain_for_views(new, old, there)?;
            // After a crash, replay may add the same version again, from the place to which GC had
            // copied it.
            let is_lost = old.is_blob() && !(new.entry.is_blob() && new.entry.blob_id == old.blob_id);
            // If a view needs the version, its record was copied, and the copy is among the old
            // versions, which account for the blob.
            let refers_to_blob = || self.engine.versions.refers_to_blob(&new.key.to_vec(), old.blob_id);
            if is_gone && !is_below && is_lost && !refers_to_blob() {
                self.dead_blobs.push((new.max_seq, old.blob_id));
            }
            if let Some(there) = there.filter(|_| self.is_last) {
                self.unreferenced.push(RecordLocation::new(old.address(), old.span(), there));
            }
            if !is_gone {
                self.add_live(old, -1);
                if !old.is_tombstone() && !is_itself && !is_kept {
                    self.dead_records.push((old.address(), old.span()));
                    if is_lost {
                        self.dead_blobs.push((new.max_seq, old.blob_id));
                    }
                }
            }
            flags = merged_flags(flags, Some(old.flags), self.is_last);
        } else {
            flags = merged_flags(flags, None, self.is_last);
        }
        if self.only_removes || (new.entry.is_tombstone() && self.is_last) {
            return Ok(None);
        }
        self.add_live(&new.entry, 1);
        if self.is_last {
            self.reference_record(&new.entry);
        }
        Ok(Some(new.entry.with_flags(flags)))
    }

    fn resolve_unmatched(&mut self, old: &LeafEntry, stamp: u64) -> Option<LeafEntry> {
        if old.is_tombstone() {
            return (!self.is_last).then_some(*old);
        }
        match self.engine.level_store.is_dangling(old.address(), stamp, self.guard) {
            false => Some(*old),
            // Keep the entry for the merge that frees its blob. Its address must be removed: with
            // the new stamp of the leaf it would refer to the segment that has the slot now.
            true if old.is_blob() => Some(old.without_address()),
            true => None,
        }
    }

    fn is_last_level(&self) -> bool {
        self.is_last
    }

    fn before_publish(&mut self) {
        self.engine.live_bitmap.update(&self.unreferenced, &self.referenced, self.guard);
    }
}

impl KreonEngine {
    /// Creates the accounting of a step into the level above the `lower` ones. `sources` are the
    /// segments of the batch's entries if these are from leaves, `None` if they are from a
    /// memtable.
    pub(crate) fn merge_accounting<'a, 'l>(
        &'a self,
        views: &'a Views,
        mut lower: impl Iterator<Item = &'l Level>,
        sources: Option<&'a SourceSegments<'a>>,
        guard: &'a Guard,
    ) -> MergeAccounting<'a> {
        MergeAccounting {
            engine: self,
            views,
            guard,
            is_last: lower.all(|level| level.root.is_none()),
            only_removes: false,
            sources,
            live_bytes_delta: HashMap::new(),
            dead_records: Vec::new(),
            dead_blobs: Vec::new(),
            unreferenced: Vec::new(),
            referenced: Vec::new(),
        }
    }

    /// Accounts for the entries that a published step has superseded.
    pub(crate) fn account_published(
        &self,
        spill: &mut SpillState,
        merge_accounting: MergeAccounting<'_>,
        guard: &Guard,
    ) {
        for (slot, bytes) in merge_accounting.live_bytes_delta {
            spill.add_live_bytes(self, slot, bytes, guard);
        }
        for (address, span) in merge_accounting.dead_records {
            self.accounts.count_live(address, -i64::try_from(span).unwrap_or(0), guard);
        }
        for (end_seq, blob) in merge_accounting.dead_blobs {
            if self.accounts.remove_blob(blob) {
                self.context.retire_blob(end_seq, blob);
            }
        }
    }
}
