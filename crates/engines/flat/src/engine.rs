//! # Engine: writes, reads and recovery of FlatStore
//!
//! Implements the engine contract over any index of this crate.
//!
//! ## Path of a put
//!
//! `prepare` looks the key up: it reads the entry to be replaced and compares its key. Under the
//! stripe of the key, `is_current` compares only words of the index, and `apply` points the index
//! at the new entry. A get reads the index and one entry, and verifies its checksum at every
//! access. A get of the newest state waits until the commit of the entry is visible.
//!
//! ## Invariants
//!
//! 1. The index has exactly one word for each live key. It refers to the newest entry of the key.
//! 2. An entry that a view needs is added to `versions` before the index stops referring to it. A
//!    reader that finds an entry newer than its view therefore finds the old one in `versions`.
//! 3. `keys` is increased before a new key enters the index, and decreased before a key leaves it.
//!    If several threads remove the last keys at once, one of them therefore reads zero, and frees
//!    the memory of the empty index.
//! 4. Addresses loaded under an epoch guard stay readable until the guard is dropped. The notes of
//!    an operation are used under the guard that the committer holds from `prepare` to `apply`.
//!
//! ## Recovery
//!
//! Replay receives the records of one key in any order: the highest seq wins. If the index is
//! empty, the records are gathered (`bulk_build`). Otherwise each record is replayed singly.
//! Removals are remembered until replay ends, because a moved copy of an older entry may come after
//! them.

use std::collections::HashMap;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineCheckpoint, EngineCommits, EngineInfo, EngineOp,
    EnginePressure, EngineReads, EngineRecovery, EngineStats, ImageSink, ImageSource, Liveness, Preparation,
    Projection, ReplayRecord, StoreLogIndex,
};
use sheaf_engine::log_entries::{self, AddressSetHash, LiveAccounting, LoggedEntry};
use sheaf_engine::range_estimate::{KeySample, RangeSum, content_bytes};
use sheaf_engine::scan_length::ScanLength;
use sheaf_engine::versions::{OldVersion, OldVersions};
use sheaf_engine::views::Views;
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{Counter, Mutex};
use smallvec::SmallVec;

use crate::bulk_build::BulkBuild;
use crate::cursor::FlatCursor;
use crate::index::{HashedKey, Index};

/// Engine instance of one keyspace.
///
/// ## Threads
///
/// The store holds the stripe of a key from `is_current` to the end of `apply`, and during
/// `relocate`. Only one thread at a time changes the index and the versions of a key. A commit
/// writes no cache line that all commits write, except for blobs.
pub(crate) struct FlatEngine<I: Index> {
    pub(crate) context: Arc<EngineContext>,
    pub(crate) index: I,
    pub(crate) versions: OldVersions<I::Place>,
    keys: Counter,
    pub(crate) accounting: LiveAccounting,
    pub(crate) scan_length: ScanLength,
    /// Newest removal of each key that replay has met. Cleared when replay ends. Replay threads
    /// hold this lock while they change the index.
    removed: Mutex<HashMap<Vec<u8>, Seq>>,
    bulk_build: I::BulkBuilder,
    /// True once a record was replayed singly.
    has_replayed_singly: AtomicBool,
    /// Number of keys in the parts that are built so far.
    built_keys: AtomicU64,
}

type Entries<'g> = SmallVec<[LoggedEntry<'g>; 2]>;

/// Entry that is about to be replaced, and the id of the blob that it refers to.
type Prior<'g> = (LoggedEntry<'g>, Option<u64>);

impl<I: Index> FlatEngine<I> {
    pub(crate) fn new(context: Arc<EngineContext>) -> FlatEngine<I> {
        FlatEngine {
            index: I::new(Arc::clone(&context)),
            versions: OldVersions::new(Arc::clone(&context)),
            accounting: LiveAccounting::new(Arc::clone(&context)),
            scan_length: ScanLength::default(),
            context,
            keys: Counter::default(),
            removed: Mutex::default(),
            bulk_build: I::BulkBuilder::default(),
            has_replayed_singly: AtomicBool::new(false),
            built_keys: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_keys(&self, keys: u64) {
        self.keys.set(i64::try_from(keys).unwrap_or(0));
    }

    /// Returns the entry of `key` that the index refers to.
    #[inline]
    fn find<'g>(&'g self, hashed_key: HashedKey<'_>, guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        let mut found = Ok(None);
        self.index.matches(hashed_key, guard, |address| match self.read(address, hashed_key.key, guard) {
            Ok(None) => true,
            other => {
                found = other;
                false
            }
        });
        found
    }

    /// Returns the entry at `address` if its key is `key`.
    #[inline]
    fn read<'g>(&'g self, address: Address, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        let frame = self.context.segments.frame(address, guard)?;
        let is_key = self.record(address, &frame, guard)?.key == key;
        Ok(is_key.then_some(LoggedEntry { address, frame }))
    }

    /// Like [`FlatEngine::find`], for an entry that is about to be replaced. Skips the checksum if
    /// all bytes of the key match, because no data of the entry is returned to the caller. An entry
    /// that does not match is verified before it counts as an entry of another key.
    ///
    /// Also returns the id of the blob that the entry refers to, and the set hash of all entries
    /// that were read.
    fn find_to_replace<'g>(
        &'g self,
        hashed_key: HashedKey<'_>,
        guard: &'g Guard,
    ) -> Result<(Option<Prior<'g>>, AddressSetHash)> {
        let mut found = Ok(None);
        let mut print = AddressSetHash::default();
        self.index.matches(hashed_key, guard, |address| {
            print.add(address);
            let read = self.context.segments.frame_unchecked(address, guard).and_then(|(frame, segment)| {
                let record =
                    Record::decode(frame.payload()).ok().filter(|record| record.key == hashed_key.key);
                let Some(blob_id) = record.map(|record| record.content.blob_id()) else {
                    segment.check(address.offset(), &frame)?;
                    return Ok(None);
                };
                segment.prefetch_counts();
                Ok(Some((LoggedEntry { address, frame }, blob_id)))
            });
            match read {
                Ok(None) => true,
                other => {
                    found = other;
                    false
                }
            }
        });
        Ok((found?, print))
    }

    /// Decodes a frame that the index refers to.
    pub(crate) fn record<'f>(
        &self,
        address: Address,
        frame: &'f Frame<'_>,
        guard: &Guard,
    ) -> Result<Record<'f>> {
        Record::decode(frame.payload())
            .map_err(|what| self.context.segments.damage_error(address, what, guard))
    }

    /// Returns the entry of `key` that is visible at `at`.
    fn find_at<'g>(
        &'g self,
        at: Seq,
        hashed_key: HashedKey<'_>,
        guard: &'g Guard,
    ) -> Result<Option<LoggedEntry<'g>>> {
        let head = self.find(hashed_key, guard)?;
        if at == Seq::LATEST || head.as_ref().is_some_and(|entry| entry.seq() <= at) {
            return Ok(head);
        }
        for address in self.versions.at(&self.index.place(hashed_key), at) {
            if let Some(entry) = self.read(address, hashed_key.key, guard)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Waits until `entry`, found at `at`, may be returned to the caller.
    #[inline]
    fn wait_visible(&self, at: Seq, entry: &LoggedEntry<'_>) -> Result<()> {
        if at == Seq::LATEST { self.context.wait_visible(entry.seq()) } else { Ok(()) }
    }

    fn retire_version(&self, hashed_key: HashedKey<'_>, old: OldVersion, views: &Views, guard: &Guard) {
        if views.needs(old.begin_seq, old.end_seq) {
            self.accounting.pin_blob(&old);
            self.versions.push(self.index.place(hashed_key), old);
        } else {
            self.accounting.free_version(&old, guard);
        }
    }

    /// Returns all entries of `key`, and the set hash of all entries that were read. During replay
    /// a key may have several entries.
    fn entries_of<'g>(
        &'g self,
        hashed_key: HashedKey<'_>,
        guard: &'g Guard,
    ) -> Result<(Entries<'g>, AddressSetHash)> {
        let mut same = Entries::new();
        let mut failed = None;
        let mut print = AddressSetHash::default();
        self.index.matches(hashed_key, guard, |address| {
            print.add(address);
            match self.read(address, hashed_key.key, guard) {
                Ok(entry) => same.extend(entry),
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        });
        failed.map_or(Ok((same, print)), Err)
    }

    /// Replays a record against `same`, the entries of its key. The entry with the highest seq
    /// stays.
    fn apply_replayed(
        &self,
        record: &ReplayRecord<'_>,
        hashed_key: HashedKey<'_>,
        same: &[LoggedEntry<'_>],
        guard: &Guard,
    ) -> Result<()> {
        let is_put = !matches!(record.content, RecordContent::Remove);
        let newest = same.iter().map(LoggedEntry::seq).max();
        // If several copies have the same seq, one that is already in the index stays, with one
        // word.
        let wins = newest.is_none_or(|newest| newest < record.seq);
        let keep = if wins { None } else { same.iter().find(|e| Some(e.seq()) == newest).map(|e| e.address) };
        for entry in same.iter().filter(|entry| Some(entry.address) != keep) {
            self.index.replace(hashed_key, entry.address, Address::NONE);
            self.keys.add(-1);
            self.accounting.count_live(entry.address, -i64::try_from(entry.span()).unwrap_or(0), guard);
            // An entry with the newest seq is a copy of `keep`, with the same blob.
            let is_superseded = wins || Some(entry.seq()) != newest;
            if is_superseded
                && let RecordContent::Blob(blob) = self.record(entry.address, &entry.frame, guard)?.content
            {
                self.accounting.remove_blob(blob.id);
            }
        }
        if wins && is_put {
            self.index.insert(hashed_key, record.address);
            self.keys.add(1);
            self.accounting.count_live(record.address, i64::from(record.span), guard);
        }
        // Also adds the blob of a copy that stays: the image may have recorded the blob under
        // another copy, in a segment that has been freed.
        if (wins || newest == Some(record.seq))
            && let RecordContent::Blob(blob) = record.content
        {
            self.accounting.add_blob(blob.id, keep.unwrap_or(record.address));
        }
        Ok(())
    }

    /// Returns true if records are gathered: the index is empty, and no record was replayed singly.
    fn is_bulk_replay(&self) -> bool {
        !self.has_replayed_singly.load(Ordering::Acquire) && self.keys.count() == 0
    }

    /// Replays a single record.
    fn replay_one(&self, record: &ReplayRecord<'_>) -> Result<()> {
        self.has_replayed_singly.store(true, Ordering::Release);
        let guard = &epoch::pin();
        let hashed_key = self.hashed_key(record.key);
        loop {
            // The expensive lookups run in parallel. Only the update runs under the lock of
            // `removed`.
            let (same, print) = self.entries_of(hashed_key, guard)?;
            let mut removed = self.removed.lock();
            if self.index.address_set_hash(hashed_key, guard) != print {
                continue;
            }
            if removed.get(record.key).is_some_and(|seq| *seq > record.seq) {
                return Ok(());
            }
            if matches!(record.content, RecordContent::Remove) {
                removed.insert(record.key.to_vec(), record.seq);
                self.accounting.count_tombstone(record.address, record.span, guard);
            }
            return self.apply_replayed(record, hashed_key, &same, guard);
        }
    }
}

/// Returns the key of `op` with the hash that `prepare` found.
fn found_hashed_key<'a>(op: &EngineOp<'a>) -> HashedKey<'a> {
    HashedKey { key: op.key, hash: log_entries::found_hash(op) }
}

impl<I: Index> EngineInfo for FlatEngine<I> {
    fn name(&self) -> &'static str {
        I::NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: I::ORDERED }
    }

    fn log(&self) -> LogId {
        LogId::ValueLog
    }
}

impl<I: Index> EngineReads for FlatEngine<I> {
    #[inline]
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { key, hash: self.index.hash(key) }
    }

    fn prefetch_index(&self, hashed_key: HashedKey<'_>) {
        self.index.prefetch_if_cheap(hashed_key, &epoch::pin());
    }

    #[inline]
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        let hashed_key = self.hashed_key(key);
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let Some(entry) = self.find_at(at, hashed_key, guard)? else { return Ok(false) };
            self.wait_visible(at, &entry)?;
            let record = self.record(entry.address, &entry.frame, guard)?;
            if self.accounting.read_stored(record.content, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        let found = self.find_at(at, self.hashed_key(key), guard)?;
        found.map_or(Ok(false), |entry| self.wait_visible(at, &entry).map(|()| true))
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], entries: bool) {
        let guard = &epoch::pin();
        keys.iter().for_each(|hashed_key| self.index.prefetch(*hashed_key, guard));
        if !entries {
            return;
        }
        for hashed_key in keys {
            self.index.matches(*hashed_key, guard, |address| {
                self.context.segments.prefetch(address, guard);
                false
            });
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        if !I::ORDERED && !bounds.is_all() {
            return Err(Error::Unsupported { engine: I::NAME, feature: "ranges" });
        }
        Ok(Box::new(FlatCursor::new(self, at, bounds, projection)))
    }

    fn estimate_range(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        let guard = &epoch::pin();
        self.index.estimate((first, end), guard, &|address| {
            let frame = self.context.segments.frame(address, guard)?;
            let record = self.record(address, &frame, guard)?;
            Ok(KeySample::live(record.key.len() as u64 + content_bytes(&record.content)))
        })
    }

    fn len(&self) -> Result<u64> {
        Ok(self.keys.count())
    }
}

impl<I: Index> EngineCommits for FlatEngine<I> {
    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        let guard = &epoch::pin();
        let hashed_key = match op.hash {
            Some(hash) => HashedKey { key: op.key, hash },
            None => self.hashed_key(op.key),
        };
        let (found, print) = self.find_to_replace(hashed_key, guard)?;
        if let Some((entry, blob_id)) = found {
            log_entries::set_findings(op, hashed_key.hash, Some((&entry, blob_id)), print);
            return Ok(Preparation::Record);
        }
        log_entries::set_findings(op, hashed_key.hash, None, print);
        match op.action {
            Action::Remove | Action::RemoveRange(_) => Ok(Preparation::NoChange),
            Action::Expect => Ok(Preparation::Record),
            Action::Put(_) | Action::Blob(_) if !self.index.has_room_for_key(hashed_key, guard) => {
                Err(Error::MemoryBudgetExceeded { budget: self.context.memory.budget() })
            }
            Action::Put(_) | Action::Blob(_) => Ok(Preparation::Record),
        }
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        let guard = &epoch::pin();
        let hashed_key = found_hashed_key(op);
        match log_entries::found_prior(op) {
            Address::NONE => {
                self.index.address_set_hash(hashed_key, guard) == log_entries::found_set_hash(op)
            }
            prior => self.index.contains(hashed_key, prior, guard),
        }
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        let guard = &epoch::pin();
        let hashed_key = found_hashed_key(op);
        let prior = log_entries::replaced_version(op, seq);
        let is_put = !matches!(op.action, Action::Remove);
        if let Some(old) = prior {
            self.retire_version(hashed_key, old, views, guard); // before the index changes (I2)
        }
        let to = if is_put { op.address } else { Address::NONE };
        match (is_put, prior.is_some()) {
            (true, false) => self.keys.add(1), // before the index changes (I3)
            (false, true) => self.keys.add(-1),
            _ => {}
        }
        match prior {
            Some(old) => {
                let replaced = self.index.replace(hashed_key, old.address, to);
                assert!(replaced, "engine (I1): the index has the word that is_current found");
            }
            None => self.index.insert(hashed_key, to),
        }
        if is_put {
            self.accounting.count_live(to, i64::from(op.span), guard);
            if let Action::Blob(blob) = op.action {
                self.accounting.add_blob(blob.id, to);
            }
        } else {
            if self.index.may_be_empty(hashed_key, guard) && self.keys.sum() == 0 {
                self.index.shrink_if_empty();
            }
            self.accounting.count_tombstone(op.address, op.span, guard);
        }
    }

    fn trim(&self, views: &Views, visible: Seq) {
        if self.versions.is_empty() {
            return;
        }
        let guard = &epoch::pin();
        for old in self.versions.trim(views, visible) {
            self.accounting.free_version(&old, guard);
        }
    }
}

impl<I: Index> EngineCheckpoint for FlatEngine<I> {
    fn freeze(&self) {
        self.accounting.freeze();
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        crate::image::save(self, out)
    }
}

impl<I: Index> EnginePressure for FlatEngine<I> {}

impl<I: Index> EngineRecovery for FlatEngine<I> {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        crate::image::restore(self, image)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        self.replay_run(std::slice::from_ref(record))
    }

    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        if self.is_bulk_replay() {
            return self
                .bulk_build
                .push(&self.index, records, &self.context, &mut |one| self.replay_one(one));
        }
        let keys: SmallVec<[HashedKey<'_>; 32]> =
            records.iter().map(|record| self.hashed_key(record.key)).collect();
        self.prefetch(&keys, true);
        records.iter().try_for_each(|record| self.replay_one(record))
    }

    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        if !self.is_bulk_replay() {
            let one = &mut |one: &ReplayRecord<'_>| self.replay_one(one);
            return self.bulk_build.replay_part((part, parts), &self.context, one);
        }
        assert!(
            self.removed.lock().is_empty(),
            "flat::bulk_build (I1): no removal is remembered while records are gathered"
        );
        let tally = self.bulk_build.build_part(&self.index, (part, parts), &self.context)?;
        tally.add_to_accounting(&self.accounting, &self.context);
        self.built_keys.fetch_add(tally.keys, Ordering::Relaxed);
        Ok(())
    }

    fn replay_finished(&self) {
        self.bulk_build.install_parts(&self.index);
        self.keys.add(i64::try_from(self.built_keys.swap(0, Ordering::Relaxed)).unwrap_or(0));
        self.has_replayed_singly.store(false, Ordering::Relaxed);
        self.bulk_build.clear(&self.context.memory);
        *self.removed.lock() = HashMap::new();
    }
}

impl<I: Index> StoreLogIndex for FlatEngine<I> {
    fn liveness(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<Liveness> {
        let guard = &epoch::pin();
        Ok(if self.index.contains(hashed_key, address, guard) {
            Liveness::Newest
        } else if !self.versions.is_empty() && self.versions.contains(&self.index.place(hashed_key), address)
        {
            Liveness::Pinned
        } else {
            Liveness::Dead
        })
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        let guard = &epoch::pin();
        Ok(self.find(self.hashed_key(key), guard)?.map(|entry| entry.address))
    }

    fn prefetch_for_relocate(&self, hashed_key: HashedKey<'_>) -> Result<()> {
        self.index.prefetch_if_cheap(hashed_key, &epoch::pin());
        Ok(())
    }

    fn relocate(&self, hashed_key: HashedKey<'_>, from: Address, to: Address, blob_id: Option<u64>) -> bool {
        if self.index.replace(hashed_key, from, to) {
            self.accounting.move_blob(blob_id, to);
            return true;
        }
        !self.versions.is_empty() && self.versions.replace(&self.index.place(hashed_key), from, to)
    }
}

impl<I: Index> Engine for FlatEngine<I> {
    fn store_log_index(&self) -> Option<&dyn StoreLogIndex> {
        Some(self)
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounting.list_blobs(out);
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            keys: self.keys.count(),
            index_bytes: self.index.bytes(),
            pinned_versions: self.versions.count(),
            ..EngineStats::default()
        }
    }

    fn verify(&self, _report: &mut dyn FnMut(Error), _step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        Ok(()) // the store verifies every frame, and every pair through a cursor
    }

    fn drop_data(&self) {
        let guard = &epoch::pin();
        self.index.for_each(|address| {
            if let Ok(frame) = self.context.segments.frame(address, guard) {
                self.accounting.count_live(address, -i64::try_from(frame.span()).unwrap_or(0), guard);
            }
        });
        self.accounting.drop_versions(&self.versions, guard);
        self.index.clear();
        self.set_keys(0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hash::HashIndex;
    use sheaf_log::blob::Blobs;
    use sheaf_sim::SimDisk;

    /// Returns an engine context without a store.
    pub(crate) fn context(tiny: bool) -> Arc<EngineContext> {
        let disk = Arc::new(SimDisk::new());
        Arc::new(EngineContext::new(
            Blobs::new(disk, "blob".into(), 1, sheaf_log::types::StoreId(1), tiny),
            1 << 22,
            7,
            tiny,
        ))
    }

    #[test]
    fn an_empty_keyspace_holds_nothing() {
        let engine = FlatEngine::<HashIndex>::new(context(true));
        assert!(!engine.contains(Seq::LATEST, b"key").unwrap());
        assert_eq!(engine.liveness(engine.hashed_key(b"key"), Address::new(0, 512)).unwrap(), Liveness::Dead);
        let mut remove = EngineOp::new(b"key", Action::Remove);
        assert_eq!(engine.prepare(&mut remove).unwrap(), Preparation::NoChange);
    }
}
