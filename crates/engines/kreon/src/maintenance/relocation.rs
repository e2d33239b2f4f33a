//! # Relocation: moves of records by GC, and superseded versions that views may need
//!
//! GC asks whether a record is needed (`liveness`), copies it, and repoints the key to the copy
//! (`relocate`). `relocate` runs under the stripe of the key, so it must not read from the disk. So
//! `liveness` stores the facts about a needed record as a *candidate*, unless the record is among
//! the old versions. If the newest version of a key is below the active memtable, `relocate` adds
//! an entry for the copy, with the same seq, to that memtable. It shadows the entry below. A spill
//! with a newer version of the key removes the candidate for the newest record.
//!
//! ## Invariants
//!
//! 1. A candidate is the newest version of its key unless a memtable has a newer one: a spill
//!    removes the candidates of its keys. A candidate is added only while the memtable that was
//!    active during its lookup still is. Otherwise a newer version could have been added and
//!    spilled in between.
//! 2. A version of a memtable that a range tombstone hides is `Pinned`: its word must not point
//!    into a deleted segment. Recovery ignores the copy, as it must: the key is removed.

use std::collections::HashMap;

use sheaf_engine::contract::Liveness;
use sheaf_engine::versions::OldVersion;
use sheaf_engine::views::Views;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

use crate::engine::KreonEngine;
use crate::maintenance::live_bitmap::RecordLocation;
use crate::memtable::{KreonMemtable, KreonVersion, RecordWord};
use crate::read::lookup::FoundVersion;
use crate::tree::{KreonState, LevelEntry};

/// Records that GC is about to move.
#[derive(Debug, Default)]
pub(crate) struct RelocationCandidates {
    /// The newest record of each key.
    pub(crate) newest: HashMap<Vec<u8>, NewestRecord>,
    /// Old versions in the levels or a frozen memtable that views may need.
    pub(crate) old_versions: HashMap<u64, OldVersion>,
    /// Keys of versions that were retained because a view might need them, with the commits that
    /// superseded these. [`KreonEngine::drop_unneeded_versions`] frees them once the views are
    /// known.
    unconfirmed: Vec<(Vec<u8>, Seq)>,
}

impl RelocationCandidates {
    /// Removes the candidate for `word`, a superseded version of `key` that a spill skipped and
    /// accounted for.
    pub(crate) fn note_skipped(&mut self, key: &[u8], word: RecordWord) {
        if self.newest.get(key).is_some_and(|head| word.points_at(head.address)) {
            self.newest.remove(key);
        }
    }

    /// Updates the candidate of `key` when a spill moves `version` into the levels. A candidate
    /// that it supersedes is kept as an old version: a view may need it, and GC may be about to
    /// move it.
    pub(crate) fn note_superseded(&mut self, key: &[u8], version: KreonVersion) {
        if self.newest.is_empty()
            || self.newest.get(key).is_none_or(|head| version.word.points_at(head.address))
        {
            return;
        }
        if let Some(head) = self.newest.remove(key) {
            self.old_versions.insert(head.address.bits(), head.into_old_version(version.seq));
        }
    }
}

/// A candidate for the newest record of a key; see [`RelocationCandidates`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewestRecord {
    pub(crate) address: Address,
    span: u64,
    seq: Seq,
    blob: Option<u64>,
    /// Number of the memtable that contained the record, if any. The commit or spill that
    /// supersedes it there accounts for it.
    memtable: Option<u32>,
}

impl NewestRecord {
    /// Returns the record as an old version that commit `end_seq` superseded.
    fn into_old_version(self, end_seq: Seq) -> OldVersion {
        let span = u32::try_from(self.span).unwrap_or(u32::MAX);
        OldVersion { address: self.address, span, begin_seq: self.seq, end_seq, blob: self.blob }
    }
}

impl KreonEngine {
    /// Whether the record at `address` is the newest of its key. Adds no candidate.
    pub(crate) fn is_newest_record(&self, key: &[u8], address: Address, guard: &Guard) -> Result<bool> {
        let first = self.newest_memtable_of(self.state(guard), self.hash(key), key, address, guard)?;
        Ok(first.is_some())
    }

    /// Returns `None` if the record at `address` is not the newest of its key, else the memtable
    /// that contains it, if one does. Reads no leaf of the last level if the bitmap has the answer.
    fn newest_memtable_of(
        &self,
        state: &KreonState,
        hash: u64,
        key: &[u8],
        address: Address,
        guard: &Guard,
    ) -> Result<Option<Option<u32>>> {
        let upper = state.last_nonempty_level().unwrap_or(0);
        let mut first = self.find_source(state, &state.levels[..upper], hash, key, guard)?;
        let removed = state.range_seq(key, Seq::LATEST, guard); // after the version
        if removed != Seq::ZERO && self.newest_record_at(address, guard)?.seq < removed {
            return Ok(None);
        }
        if first.is_none()
            && let Some(last) = state.levels.get(upper)
        {
            let (frame, segment) = self.context.segments.frame_unchecked(address, guard)?;
            let location = RecordLocation::new(address, frame.span(), segment);
            if let Some(is_referenced) = self.live_bitmap.is_referenced(&location) {
                debug_assert!(
                    self.is_bitmap_consistent(hash, key, &location, guard),
                    "live_bitmap (I1): the bit of a record agrees with the last level"
                );
                return Ok(is_referenced.then_some(None));
            }
            first = self.level_store.find(last, hash, key, guard)?.map(FoundVersion::Level);
        }
        if first.as_ref().and_then(FoundVersion::address) != Some(address) {
            return Ok(None);
        }
        let Some(FoundVersion::Memtable(_, number)) = first else { return Ok(Some(None)) };
        Ok(Some(Some(number)))
    }

    /// Whether the last level agrees with the bitmap. Returns true if that cannot be checked,
    /// because a step is in progress or a leaf is unreadable.
    fn is_bitmap_consistent(&self, hash: u64, key: &[u8], location: &RecordLocation, guard: &Guard) -> bool {
        let Some(_spill) = self.spill.try_lock() else { return true };
        let state = self.state(guard);
        let Some(level) = state.last_nonempty_level() else { return true };
        let Some(is_referenced) = self.live_bitmap.is_referenced_uncounted(location) else { return true };
        let Ok(seen) = self.level_store.find(&state.levels[level], hash, key, guard) else { return true };
        let says = |seen: LevelEntry<'_>| {
            let address = location.address();
            let there = self.level_store.segment_of(address, seen.stamp, guard);
            seen.entry.address() == address && !seen.entry.is_tombstone() && there.is_some()
        };
        is_referenced == seen.is_some_and(says)
    }

    /// Returns whether the record at `address` is needed, and adds a candidate if it is.
    pub(crate) fn liveness_at(&self, key: &[u8], address: Address, guard: &Guard) -> Result<Liveness> {
        let hash = self.hash(key);
        let mut state = self.state(guard);
        while let Some(memtable) = self.newest_memtable_of(state, hash, key, address, guard)? {
            let head = NewestRecord { memtable, ..self.newest_record_at(address, guard)? };
            let mut candidates = self.candidates.lock();
            let now = self.state(guard);
            if now.memtables.active.number == state.memtables.active.number {
                // A version that was added since the lookup is in that memtable (I1).
                candidates.newest.insert(key.to_vec(), head);
                return Ok(Liveness::Newest);
            }
            state = now; // the record may be in a level by now
        }
        let is_pinned = !self.versions.is_empty() && self.versions.contains(&key.to_vec(), address);
        if is_pinned || self.is_hidden_in_memtable(state, hash, key, address, guard) {
            return Ok(Liveness::Pinned);
        }
        if self.newest_superseding_seq.load(Ordering::Acquire) == 0 {
            return Ok(Liveness::Dead);
        }
        // A view may need the record, and a lower source may contain it.
        let mut sources: SmallVec<[FoundVersion<'_>; 4]> = SmallVec::new();
        for memtable in state.memtables.iter() {
            let source = |place| FoundVersion::Memtable(memtable.version(place), memtable.number);
            sources.extend(memtable.find(hash, key, guard).map(source));
        }
        for level in &*state.levels {
            sources.extend(self.level_store.find(level, hash, key, guard)?.map(FoundVersion::Level));
        }
        let is_it = |source: &FoundVersion<'_>| match source {
            FoundVersion::Level(seen) if self.level_store.is_dangling(address, seen.stamp, guard) => false,
            other => other.address() == Some(address),
        };
        let Some(place) = sources.iter().position(is_it) else { return Ok(Liveness::Dead) };
        let newer = match sources.get(place.wrapping_sub(1)) {
            Some(FoundVersion::Memtable(version, _)) => Some(version.seq),
            Some(FoundVersion::Level(seen)) => Some(self.seq_of(seen, guard)?.unwrap_or(seen.max_seq)),
            Some(FoundVersion::RemovedRange(_)) | None => None,
        };
        let head = self.newest_record_at(address, guard)?;
        let removed = state.next_range_seq(key, head.seq, guard);
        let Some(end_seq) = newer.into_iter().chain(removed).min() else { return Ok(Liveness::Dead) };
        if !self.may_view_need(head.seq, end_seq) {
            return Ok(Liveness::Dead);
        }
        self.candidates.lock().old_versions.insert(address.bits(), head.into_old_version(end_seq));
        Ok(Liveness::Pinned)
    }

    /// Whether a memtable has the record at `address` as its version of `key`, and a range
    /// tombstone hides it (I2). A version that a newer one in the active memtable superseded before
    /// is treated like one without tombstones.
    fn is_hidden_in_memtable(
        &self,
        state: &KreonState,
        hash: u64,
        key: &[u8],
        address: Address,
        guard: &Guard,
    ) -> bool {
        let removed = state.range_seq(key, Seq::LATEST, guard);
        if removed == Seq::ZERO {
            return false;
        }
        let mut is_newest = true;
        for memtable in state.memtables.iter() {
            let Some(place) = memtable.find(hash, key, guard) else { continue };
            let version = memtable.version(place);
            if version.word.points_at(address) {
                let is_hidden = is_newest && version.seq < removed;
                return is_hidden || memtable.hides(key, version, guard);
            }
            is_newest = false;
        }
        false
    }

    fn newest_record_at(&self, address: Address, guard: &Guard) -> Result<NewestRecord> {
        let (frame, segment) = self.context.segments.frame_unchecked(address, guard)?;
        let record = Record::decode(frame.payload())
            .map_err(|what| Error::corrupt(segment.path(), address.offset(), "record", what))?;
        let blob = if let RecordContent::Blob(blob) = record.content { Some(blob.id) } else { None };
        Ok(NewestRecord { address, span: frame.span(), seq: frame.header.seq, blob, memtable: None })
    }

    /// Retains `old` if a view may need it. It ends where the next version begins, as far as that
    /// is known: another old version may be in between. The caller holds the lock of the
    /// candidates, so that no other thread retains the same version.
    pub(crate) fn retain_if_needed(
        &self,
        candidates: &mut RelocationCandidates,
        key: &[u8],
        old: OldVersion,
        may_need: impl Fn(Seq, Seq) -> bool,
        guard: &Guard,
    ) -> bool {
        let place = key.to_vec();
        let old = self.ended_by_ranges(key, old, guard);
        let next = self.versions.next_begin_seq(&place, old.begin_seq).unwrap_or(old.end_seq);
        let old = OldVersion { end_seq: old.end_seq.min(next), ..old };
        if old.begin_seq >= old.end_seq || !may_need(old.begin_seq, old.end_seq) {
            return false;
        }
        // A copy of the version may be among the old versions already.
        if self.versions.at(&place, old.begin_seq).is_empty() {
            self.remove_pin(old.begin_seq);
            candidates.unconfirmed.push((place.clone(), old.end_seq));
            self.versions.push(place, old);
        }
        true
    }

    /// Frees the versions that were retained in doubt and that none of `views` needs. Returns false
    /// if some were superseded after `views` was copied.
    pub(crate) fn drop_unneeded_versions(&self, views: &Views, guard: &Guard) -> bool {
        let mut candidates = self.candidates.lock();
        let known = |(_, end_seq): &mut (Vec<u8>, Seq)| *end_seq <= views.as_of();
        for (key, _) in candidates.unconfirmed.extract_if(.., known) {
            for old in self.versions.trim_at(&key, views, views.as_of()) {
                self.accounts.free_version(&old, guard);
            }
        }
        candidates.unconfirmed.is_empty()
    }

    /// Whether a view may need a version that existed from commit `begin_seq` to commit `end_seq`.
    fn may_view_need(&self, begin_seq: Seq, end_seq: Seq) -> bool {
        let (oldest, newest) =
            (self.oldest_view.load(Ordering::Acquire), self.newest_view.load(Ordering::Acquire));
        self.newest_superseding_seq.load(Ordering::Acquire) != 0
            && begin_seq.0 <= newest
            && oldest < end_seq.0
    }

    /// Repoints `key` from the record at `from` to its copy at `to`. The caller holds the stripe of
    /// the key. Returns false if the record is not needed any more.
    pub(crate) fn repoint(&self, key: &[u8], from: Address, to: Address, guard: &Guard) -> bool {
        let mut candidates = self.candidates.lock();
        // GC may move an old version of the key before the newest one.
        let is_head = candidates.newest.get(key).is_some_and(|head| head.address == from);
        let head = if is_head { candidates.newest.remove(key) } else { None };
        let old = candidates.old_versions.remove(&from.bits());
        let hash = self.hash(key);
        let state = self.state(guard);
        if self.repoint_in_memtables(state, (hash, key), (from, to), guard) {
            return true;
        }
        let version_in =
            |memtable: &KreonMemtable| memtable.find(hash, key, guard).map(|place| memtable.version(place));
        let active = version_in(&state.memtables.active);
        let frozen = state.memtables.frozen().and_then(|frozen| version_in(frozen));
        let is_frozen = frozen.is_some_and(|version| version.word.points_at(from));
        // The commit that superseded the record.
        let newer = frozen.filter(|_| !is_frozen).or(active).map(|version| version.seq);
        let removed = head.and_then(|head| state.next_range_seq(key, head.seq, guard));
        let newer = newer.into_iter().chain(removed).min();
        // Whether the commit or spill that supersedes a record of this memtable accounts for it. A
        // put does not account for the version that it supersedes below its memtable, but a view
        // may need that version.
        let accounts_itself = |number| {
            let is_in_frozen = state.memtables.frozen().is_some_and(|frozen| frozen.number == number);
            number == state.memtables.active.number || (is_in_frozen && !is_frozen)
        };
        let old = match (head, newer) {
            (Some(head), None) => return self.add_copy(head, key, to, guard),
            (Some(head), Some(end_seq)) if !head.memtable.is_some_and(accounts_itself) => {
                old.or(Some(head.into_old_version(end_seq)))
            }
            _ => old,
        };
        if !self.versions.is_empty() && self.versions.replace(&key.to_vec(), from, to) {
            return true;
        }
        match old {
            Some(old) => {
                let may_need = |begin_seq, end_seq| self.may_view_need(begin_seq, end_seq);
                self.retain_if_needed(
                    &mut candidates,
                    key,
                    OldVersion { address: to, ..old },
                    may_need,
                    guard,
                )
            }
            None => false,
        }
    }

    /// Repoints the version of a memtable, if it is in the active one, or if a range tombstone
    /// hides it (I2). Returns whether it did.
    fn repoint_in_memtables(
        &self,
        state: &KreonState,
        (hash, key): (u64, &[u8]),
        (from, to): (Address, Address),
        guard: &Guard,
    ) -> bool {
        let replace = |memtable: &KreonMemtable, place, version: KreonVersion| {
            self.move_blob_id(version.word.is_blob(), from, to);
            memtable.replace(place, KreonVersion { word: version.word.with_address(to), ..version });
            true
        };
        let active = &state.memtables.active;
        let place = active.find(hash, key, guard);
        if let Some(place) = place.filter(|place| active.version(*place).word.points_at(from)) {
            return replace(active, place, active.version(place));
        }
        let Some(frozen) = state.memtables.frozen() else { return false };
        let Some(frozen_place) = frozen.find(hash, key, guard) else { return false };
        let version = frozen.version(frozen_place);
        let is_hidden = version.seq < state.range_seq(key, Seq::LATEST, guard);
        if !is_hidden || !version.word.points_at(from) {
            return false;
        }
        // A step may have kept it for a view already.
        let is_kept = self.versions.replace(&key.to_vec(), from, to);
        if frozen.hides(key, version, guard) {
            return replace(frozen, frozen_place, version); // no step moves it into a level
        }
        if !is_kept && place.is_none() {
            let blob = self.blob_ids.lock().get(&from.bits()).copied();
            let (span, seq, memtable) = (version.word.span(), version.seq, Some(frozen.number));
            return self.add_copy(NewestRecord { address: from, span, seq, blob, memtable }, key, to, guard);
        }
        is_kept
    }

    /// Adds an entry for the copy at `to` to the active memtable, which has no entry of the key.
    fn add_copy(&self, head: NewestRecord, key: &[u8], to: Address, guard: &Guard) -> bool {
        if let Some(blob) = head.blob {
            self.blob_ids.lock().insert(to.bits(), blob);
        }
        // GC accounts for the entries of the sources below.
        let word = RecordWord::put(to, head.span, head.blob.is_some()).with_lower_unaccounted(true);
        let version = KreonVersion { word, seq: head.seq };
        let active = &self.state(guard).memtables.active;
        active.put(0, self.hash(key), key, version, &self.context.memory, guard);
        true
    }

    /// Makes the candidates old versions that the range tombstones of `frozen` hide (I1). No
    /// candidate is added for a hidden version.
    pub(crate) fn remove_hidden_candidates(&self, frozen: &KreonMemtable, guard: &Guard) {
        let mut candidates = self.candidates.lock();
        let RelocationCandidates { newest, old_versions, .. } = &mut *candidates;
        newest.retain(|key, head| {
            let Some(removed) = frozen.ranges().next_seq(key, head.seq, guard) else { return true };
            old_versions.insert(head.address.bits(), head.into_old_version(removed));
            false
        });
    }

    fn move_blob_id(&self, is_blob: bool, from: Address, to: Address) {
        if is_blob {
            let mut blob_ids = self.blob_ids.lock();
            if let Some(blob) = blob_ids.remove(&from.bits()) {
                blob_ids.insert(to.bits(), blob);
            }
        }
    }
}
