//! # Engine trait implementation of cedrus
//!
//! `prepare` loads the pages on the path to the key's list, reads the record that the operation
//! replaces and compares its key. `is_current` repeats only the look-up in the trie. `apply` points
//! the trie at the new record. page_access.rs loads and evicts the pages.
//!
//! ## Invariants
//!
//! 1. The trie has exactly one entry for each live key. It contains the address of the newest
//!    record.
//! 2. A record that a view needs is added to `versions` before its entry in the trie is changed. A
//!    reader that finds a record newer than its view therefore finds the old record in `versions`.
//! 3. An address that was loaded under an epoch guard is readable until the guard is dropped. The
//!    committer holds a guard from `prepare` to `apply`, so the addresses in its notes are valid.
//! 4. Pages that `prepare` read are available to `apply`: they are in memory, or they were evicted
//!    under the committer's guard and can be restored (resident_pages.rs). If a commit of another
//!    key moves the list in between, the same holds for the new path: it was in memory then.
//!
//! ## Threads
//!
//! The store holds the stripe of a key from `is_current` to the end of `apply`, and during
//! `relocate`. Changes of keys in different shards run in parallel. Changes in one shard take turns
//! at its lock, which is held only while the trie is changed.
//!
//! ## Crash
//!
//! A checkpoint writes dirty pages to free places. An opening loads the table of the newest image
//! and collects the addresses of the later records. They are inserted on demand or in the
//! background (deferred_replay.rs). The record of a key with the highest seq wins.

use std::sync::Arc;

use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineCache, EngineCheckpoint, EngineCommits, EngineInfo,
    EngineOp, EnginePressure, EngineReads, EngineRecovery, EngineStats, HashedKey, ImageSink, ImageSource,
    Liveness, Preparation, Projection, ReplayRecord, StoreLogIndex,
};
use sheaf_engine::log_entries::{self, AddressSetHash, LiveAccounting, LoggedEntry};
use sheaf_engine::versions::OldVersions;
use sheaf_engine::views::Views;
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::options::EngineOptions;
use sheaf_log::record::Record;
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Damage, Error, Result};
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::memory::cache_arbiter::CacheShare;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use smallvec::SmallVec;

use crate::cursor::CedrusCursor;
use crate::deferred_replay::DeferredReplay;
use crate::entry_list::{KeyHash, TrieEntry};
use crate::replay_cost::ReplayCost;
use crate::shape::{HASH_BITS, TrieShape};
use crate::trie::{Trie, TrieError};
use crate::trie_file::{FrozenTable, TrieFile};

/// Name of the engine in the catalog.
pub(crate) const NAME: &str = "cedrus";
/// Pages that one step of a checkpoint writes.
const PAGES_PER_STEP: usize = 64;
/// A checkpoint is due after this multiple of the trie's size was appended to the log, but at most
/// after `MAX_LOG_BYTES`. Both bound the log that a start after a crash replays.
const LOG_TO_TRIE_RATIO: u64 = 8;
const MAX_LOG_BYTES: u64 = 512 << 20;
/// A checkpoint is requested if dirty pages take more than the budget divided by this. Otherwise
/// writes would be rejected although a checkpoint could make pages clean.
const DIRTY_BUDGET_DIVISOR: u64 = 2;

/// Keyspace of the engine.
pub(crate) struct CedrusEngine {
    pub(crate) context: Arc<EngineContext>,
    pub(crate) trie: Trie,
    pub(crate) trie_file: TrieFile,
    pub(crate) versions: OldVersions<u64>,
    pub(crate) accounting: LiveAccounting,
    /// Records found by the last opening that are not in the trie yet.
    pub(crate) deferred_replay: DeferredReplay,
    /// Estimated cost of replaying the log at the next opening.
    pub(crate) replay_cost: ReplayCost,
    /// Bytes of the trie that are accounted in the memory budget, without clean pages.
    pub(crate) accounted_bytes: AtomicU64,
    /// Bytes of clean pages: the engine's cache.
    pub(crate) cache_share: CacheShare,
    /// Held while pages of a checkpoint are written: one thread writes at a time. While it is held,
    /// the checkpoint is not flushed.
    write_lock: Mutex<()>,
    /// First error of a change in `apply` or `relocate`, which cannot report it. The keyspace then
    /// rejects all operations. The cause is a page that is invalid despite its valid checksum.
    pub(crate) failure: Mutex<Option<TrieError>>,
    pub(crate) has_failed: AtomicBool,
}

fn version_place(hash: KeyHash) -> u64 {
    u64::from(hash.path)
}

impl CedrusEngine {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId, options: &EngineOptions) -> CedrusEngine {
        let shape = TrieShape::from_options(options, context.tiny);
        CedrusEngine {
            trie: Trie::new(shape),
            trie_file: TrieFile::new(Arc::clone(&context), id, shape.page_bytes()),
            versions: OldVersions::new(Arc::clone(&context)),
            accounting: LiveAccounting::new(Arc::clone(&context)),
            deferred_replay: DeferredReplay::new(&shape),
            replay_cost: ReplayCost::new(&context),
            accounted_bytes: AtomicU64::new(0),
            cache_share: CacheShare::new(context.memory.budget()),
            write_lock: Mutex::new(()),
            failure: Mutex::new(None),
            has_failed: AtomicBool::new(false),
            context,
        }
    }

    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.trie.shape().key_hash(self.context.hash(key))
    }

    /// Returns the hash that `prepare` found. The findings have no room for the tail, so hashes
    /// with a tail are computed again.
    fn found_key_hash(&self, op: &EngineOp<'_>) -> KeyHash {
        let has_tail = self.trie.shape().hash_bits > HASH_BITS;
        if has_tail { self.hash(op.key) } else { found_path(op).into() }
    }

    // Records of the log.

    /// Returns the frame at an address from the trie, and verifies its checksum.
    pub(crate) fn frame<'g>(&'g self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.context.segments.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(self.dangling_address_error(address)),
        }
    }

    /// Returns the error for an address in a segment that does not exist.
    fn dangling_address_error(&self, address: Address) -> Error {
        Error::corrupt(
            &self.trie_file.page_file.path,
            0,
            "reference to a record",
            Damage::bad_field("address", "an address in a live segment", address.bits()),
        )
    }

    pub(crate) fn record<'f>(
        &self,
        address: Address,
        frame: &'f Frame<'_>,
        guard: &Guard,
    ) -> Result<Record<'f>> {
        Record::decode(frame.payload()).map_err(|what| {
            match self.context.segments.at(address.slot(), guard) {
                Some(segment) => Error::corrupt(segment.path(), address.offset(), "record", what),
                None => self.dangling_address_error(address),
            }
        })
    }

    /// Returns the record at `address` if its key is `key`.
    #[inline]
    fn read<'g>(&'g self, address: Address, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        let frame = self.frame(address, guard)?;
        let is_key = self.record(address, &frame, guard)?.key == key;
        Ok(is_key.then_some(LoggedEntry { address, frame }))
    }

    #[inline]
    fn find<'g>(&'g self, hash: KeyHash, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        for address in self.find_addresses(hash, guard)? {
            self.request_both_pages(address, guard);
            if let Some(record) = self.read(address, key, guard)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Like [`CedrusEngine::find`], for a record that is about to be replaced. If the key's bytes
    /// match, the checksum is not verified, because no content of the record is returned. If they
    /// do not match, the checksum is verified before the record counts as another key's.
    fn find_to_replace<'g>(
        &'g self,
        found: &[Address],
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<LoggedEntry<'g>>> {
        for address in found.iter().copied() {
            let Some(segment) = self.context.segments.at(address.slot(), guard) else {
                return Err(self.dangling_address_error(address));
            };
            let frame = segment.frame_unchecked(address.offset(), segment.limit_at(address.offset()))?;
            if Record::decode(frame.payload()).is_ok_and(|record| record.key == key) {
                return Ok(Some(LoggedEntry { address, frame }));
            }
            segment.check(address.offset(), &frame)?;
        }
        Ok(None)
    }

    /// Waits until the commit of `record` is visible, if `at` is [`Seq::LATEST`].
    #[inline]
    fn wait_visible(&self, at: Seq, record: &LoggedEntry<'_>) -> Result<()> {
        if at == Seq::LATEST { self.context.wait_visible(record.seq()) } else { Ok(()) }
    }

    /// Returns the record of `key` that a view at `at` reads.
    #[inline]
    fn find_at<'g>(&'g self, at: Seq, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        let hash = self.hash(key);
        let head = self.find(hash, key, guard)?;
        if at == Seq::LATEST || head.as_ref().is_some_and(|record| record.seq() <= at) {
            return Ok(head);
        }
        for address in self.versions.at(&version_place(hash), at) {
            if let Some(record) = self.read(address, key, guard)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

/// Packs the path of the hash and the version of its shard into the findings of `prepare`. A
/// version could only repeat after 2^31 changes between `prepare` and `is_current`.
fn pack_findings(hash: KeyHash, version: u32) -> u64 {
    u64::from(version) << HASH_BITS | u64::from(hash.path)
}

/// Returns the path of the hash that `prepare` found.
fn found_path(op: &EngineOp<'_>) -> u32 {
    u32::try_from(log_entries::found_hash(op) & u64::from(u32::MAX)).unwrap_or(0)
}

/// Returns the version that `prepare` found.
fn found_version(op: &EngineOp<'_>) -> u32 {
    u32::try_from(log_entries::found_hash(op) >> HASH_BITS).unwrap_or(0)
}

impl EngineInfo for CedrusEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: false }
    }

    fn log(&self) -> LogId {
        LogId::ValueLog
    }
}

impl EngineReads for CedrusEngine {
    #[inline]
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let Some(found_record) = self.find_at(at, key, guard)? else { return Ok(false) };
            self.wait_visible(at, &found_record)?;
            let record = self.record(found_record.address, &found_record.frame, guard)?;
            if self.accounting.read_stored(record.content, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        let found = self.find_at(at, key, guard)?;
        found.map_or(Ok(false), |record| self.wait_visible(at, &record).map(|()| true))
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], entries: bool) {
        let guard = &epoch::pin();
        let hashes: SmallVec<[KeyHash; 32]> = keys.iter().map(|key| self.hash(key.key)).collect();
        hashes.iter().for_each(|hash| self.trie.prefetch(hash.path, guard));
        if entries {
            self.prefetch_records(&hashes, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        if !bounds.is_all() {
            return Err(Error::Unsupported { engine: NAME, feature: "ranges" });
        }
        Ok(Box::new(CedrusCursor::new(self, at, projection)))
    }

    fn len(&self) -> Result<u64> {
        self.replay_all_deferred()?;
        Ok(self.trie.len())
    }
}

impl EngineCommits for CedrusEngine {
    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        let guard = &epoch::pin();
        let hash = self.hash(op.key);
        let packed = pack_findings(hash, self.trie.version(hash.path));
        let found = self.find_addresses(hash, guard)?;
        let record = self.find_to_replace(&found, op.key, guard)?;
        let print = AddressSetHash::of(&found);
        if let Some(seen) = record {
            let record = self.record(seen.address, &seen.frame, guard)?;
            log_entries::set_findings(op, packed, Some((&seen, record.content.blob_id())), print);
            return Ok(Preparation::Record);
        }
        log_entries::set_findings(op, packed, None, print);
        match op.action {
            Action::Remove | Action::RemoveRange(_) => Ok(Preparation::NoChange),
            Action::Expect => Ok(Preparation::Record),
            Action::Put(_) | Action::Blob(_) if !self.has_room_for_key(guard) => {
                Err(Error::MemoryBudgetExceeded { budget: self.context.memory.budget() })
            }
            Action::Put(_) | Action::Blob(_) => Ok(Preparation::Record),
        }
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        let version = found_version(op);
        if version.is_multiple_of(2) && self.trie.version(found_path(op)) == version {
            return true;
        }
        let guard = &epoch::pin();
        let Ok(found) = self.trie.find(self.found_key_hash(op), guard, |_| {}) else { return false };
        match log_entries::found_prior(op) {
            Address::NONE => AddressSetHash::of(&found) == log_entries::found_set_hash(op),
            prior => found.contains(&prior),
        }
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        let guard = &epoch::pin();
        let hash = self.found_key_hash(op);
        let prior = log_entries::replaced_version(op, seq);
        let is_put = !matches!(op.action, Action::Remove);
        if let Some(old) = prior {
            // Must precede the change of the trie (I2).
            if views.needs(old.begin_seq, old.end_seq) {
                self.accounting.pin_blob(&old);
                self.versions.push(version_place(hash), old);
            } else {
                self.accounting.free_version(&old, guard);
            }
        }
        let changed = match prior {
            Some(old) if is_put => self.trie.replace(hash, old.address, op.address, guard).map(drop),
            Some(old) => self.trie.remove(hash, old.address, guard).map(drop),
            None => self.trie.insert(TrieEntry::new(hash, op.address), guard),
        };
        self.note_change_result(changed);
        self.replay_cost.add_record(op.span);
        if is_put {
            self.accounting.count_live(op.address, i64::from(op.span), guard);
            if let Action::Blob(blob) = op.action {
                self.accounting.add_blob(blob.id, op.address);
            }
        } else {
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

impl EngineCheckpoint for CedrusEngine {
    fn freeze(&self) {
        assert!(
            !self.deferred_replay.has_pending(),
            "deferred_replay (I3): a checkpoint begins when no record is deferred"
        );
        self.accounting.freeze();
        self.replay_cost.freeze();
        self.trie.freeze();
    }

    fn maintain(&self, _views: &Views, _certain: Seq) -> Result<bool> {
        if self.deferred_replay.has_pending() {
            return self.replay_deferred_step();
        }
        self.evict_for_pages(1, &epoch::pin());
        let _one = self.write_lock.lock();
        let mut heap = self.trie.heap();
        let Some(frozen) = heap.frozen.as_mut().filter(|frozen| !frozen.pages.is_empty()) else {
            return Ok(false);
        };
        let table = FrozenTable::of(frozen);
        let rest = frozen.pages.len().saturating_sub(PAGES_PER_STEP);
        let numbers = frozen.pages.split_off(rest);
        drop(heap);
        // Takes the lock for each page: committers wait only for the copy of one page.
        let thaw =
            |page: &u32| Some((*page, self.trie.heap().thaw(*page, self.trie.pages(), &epoch::pin())?));
        let pages: Vec<(u32, Box<[u64]>)> = numbers.iter().rev().filter_map(thaw).collect();
        let written = self.trie_file.write(&table, &pages);
        let mut heap = self.trie.heap();
        match written {
            Ok(()) => heap.mark_written(&numbers),
            Err(_) => pages.into_iter().rev().for_each(|(page, content)| heap.refreeze(page, content)),
        }
        drop(heap);
        written.map(|()| rest > 0)
    }

    fn is_flushed(&self) -> bool {
        let Some(_nobody) = self.write_lock.try_lock() else { return false };
        self.trie.heap().frozen.as_ref().is_none_or(|frozen| frozen.pages.is_empty())
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(self.failure_error());
        }
        crate::image::save(self, out)
    }

    fn image_published(&self) {
        self.trie_file.image_published();
        self.replay_cost.image_published();
        self.trie.heap().frozen = None;
    }

    fn image_superseded(&self) {
        self.trie_file.image_superseded();
    }

    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        self.trie_file.pin_files()
    }
}

impl EnginePressure for CedrusEngine {
    fn checkpoint_after(&self) -> u64 {
        let (_, on_disk) = self.trie_file.bytes();
        (LOG_TO_TRIE_RATIO * on_disk.max(self.trie.bytes())).min(MAX_LOG_BYTES)
    }

    fn wants_checkpoint(&self) -> bool {
        self.replay_cost.is_checkpoint_due()
    }

    fn pressure_percent(&self) -> u64 {
        self.replay_cost.pressure_percent()
    }

    fn is_memory_high(&self) -> bool {
        self.trie.heap().dirty_pages() * self.page_bytes()
            > self.context.memory.budget() / DIRTY_BUDGET_DIVISOR
    }
}

impl EngineRecovery for CedrusEngine {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        let restored = crate::image::restore(self, image);
        self.update_accounting();
        restored
    }

    fn image_entries(&self, image: &mut dyn ImageSource) -> Result<Vec<(u32, u64)>> {
        crate::image::read_entry_counts(self.trie.shape(), image)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        self.replay_run(std::slice::from_ref(record))
    }

    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        self.defer_replay(records);
        Ok(())
    }

    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        self.replay_if_blobs(part, parts)
    }

    fn is_replay_finished(&self) -> bool {
        !self.deferred_replay.has_pending()
    }
}

impl StoreLogIndex for CedrusEngine {
    fn liveness(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<Liveness> {
        let guard = &epoch::pin();
        let hash = self.hash(hashed_key.key);
        Ok(if self.find_addresses(hash, guard)?.contains(&address) {
            Liveness::Newest
        } else if !self.versions.is_empty() && self.versions.contains(&version_place(hash), address) {
            Liveness::Pinned
        } else {
            Liveness::Dead
        })
    }

    fn prefetch_for_relocate(&self, hashed_key: HashedKey<'_>) -> Result<()> {
        self.find_addresses(self.hash(hashed_key.key), &epoch::pin()).map(drop)
    }

    fn relocate(&self, hashed_key: HashedKey<'_>, from: Address, to: Address, blob_id: Option<u64>) -> bool {
        let guard = &epoch::pin();
        let hash = self.hash(hashed_key.key);
        self.replay_cost.add_copy();
        let changed = self.trie.replace(hash, from, to, guard);
        if self.note_change_result(changed).unwrap_or(false) {
            self.accounting.move_blob(blob_id, to);
            return true;
        }
        !self.versions.is_empty() && self.versions.replace(&version_place(hash), from, to)
    }
}

impl EngineCache for CedrusEngine {
    fn cache_share(&self) -> &CacheShare {
        &self.cache_share
    }

    fn evict(&self, bytes: u64) {
        let pages = usize::try_from(bytes.div_ceil(self.page_bytes())).unwrap_or(usize::MAX);
        self.trie.pages().release(); // pages that were evicted earlier
        self.evict_pages(pages, self.evict_limits().1, &epoch::pin());
    }
}

impl Engine for CedrusEngine {
    fn store_log_index(&self) -> Option<&dyn StoreLogIndex> {
        Some(self)
    }

    fn cache(&self) -> Option<&dyn EngineCache> {
        Some(self)
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounting.list_blobs(out);
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let (table, _) = self.trie_file.bytes();
        EngineStats {
            keys: self.trie.len(),
            index_bytes: self.trie.bytes() + table + self.deferred_replay.bytes(),
            pinned_versions: self.versions.count(),
            ..EngineStats::default()
        }
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.trie_file.verify(report, step) // the store verifies all frames and pairs
    }

    fn drop_data(&self) {
        let guard = &epoch::pin();
        // While records are deferred, the count of a slot may belong to a segment that no longer
        // exists (deferred_replay I5). Then it is not part of the live bytes of the segment that
        // has the slot now.
        let is_behind = self.deferred_replay.has_pending();
        self.drop_deferred(guard);
        // Waits for a running step of a checkpoint, which must not continue with dropped pages.
        let _nobody_writes = self.write_lock.lock();
        let counts = self.trie.counts();
        for (slot, count) in (0..).zip(counts).filter(|(_, count)| *count > 0) {
            if is_behind && self.deferred_replay.is_slot_gone(slot) {
                continue;
            }
            if let Some(segment) = self.context.segments.at(slot, guard) {
                let bytes = count.saturating_mul(segment.mean_frame());
                segment.add_live(-i64::try_from(bytes).unwrap_or(0));
            }
        }
        self.accounting.drop_versions(&self.versions, guard);
        self.trie.clear(guard);
        self.update_accounting();
        self.trie_file.drop_data();
    }

    fn close(&self) -> Result<()> {
        self.trie_file.close();
        Ok(())
    }
}

impl Drop for CedrusEngine {
    fn drop(&mut self) {
        let deferred_bytes = self.deferred_replay.bytes();
        self.context
            .memory
            .give_back(MemoryPart::Index, self.accounted_bytes.load(Ordering::Relaxed) + deferred_bytes);
        self.cache_share.set(0, &self.context.memory);
    }
}
