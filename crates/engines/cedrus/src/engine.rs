//! # The engine: CedrusDB under the contract
//!
//! ## The way of a put
//!
//! `prepare` brings the way to the key's list into memory, looks the key up (the entry it replaces
//! is read and its key compared); under the stripe of the key `is_current` looks again at the list
//! only; `apply` points the trie at the new entry. A get is the trie and one record, which is asked
//! for as soon as its address is seen; its checksum is verified at every access. A get of the
//! newest state waits until the commit of the record is visible.
//!
//! ## Invariants
//!
//! 1. The trie has exactly one entry for each live key, at its newest record.
//! 2. A record that a view needs is in `versions` before the trie stops pointing at it; so a reader
//!    who finds a newer one than its view finds the old one there.
//! 3. Addresses loaded under an epoch guard stay readable until it goes; notes are used under the
//!    guard that the committer holds from `prepare` to `apply`.
//! 4. What `prepare` looked at can be had when `apply` comes: the pages are in memory, or were
//!    evicted under the guard that the committer holds and come back (resident_pages.rs). A commit
//!    of another key that moves the list in between brings the new way into memory under the same
//!    guard.
//!
//! ## Threads
//!
//! The store has the stripe of a key from `is_current` to the end of `apply`, and during `moved`.
//! Applies of different keys change the trie side by side if the first bits of their hashes differ;
//! the others take turns at the lock of their shard, which is held for the change of the trie only.
//!
//! ## Checkpoints
//!
//! `freeze` notes which pages are dirty; `work` writes some of them a step into free places, as
//! they were; `save` syncs them and writes the table. So an image is the trie of one moment, of
//! which a start reads only what it needs.
//!
//! ## Memory
//!
//! Pages are in memory as long as the budget has room for them; then those that are on disk as they
//! are go, the least used first (heap.rs). What is dirty counts as swollen above a part of the
//! budget, and a checkpoint makes it clean.
//!
//! ## Recovery
//!
//! Replay notes where the records behind the checkpoint stand; they are taken into the trie when
//! somebody needs them, or by the background (deferred_replay.rs). Of the records of one key the
//! highest number wins, in whatever order they stand. An entry whose segment has gone since the
//! image is dropped when its hash is taken in, and that is certain to happen: it went because all
//! it held was moved, superseded or removed after the image, and every one of these is a record
//! that is replayed.
//!
//! How long replaying would take is estimated as the log grows (replay_cost.rs): a checkpoint is
//! due when it is too long, or when it is worth it and nothing was written for a while. Writers who
//! outrun a checkpoint are slowed down.
//!
//! ## Damage
//!
//! A page that is not what its checkpoint wrote is an error of whoever needs it, and names its
//! place. Should `apply`, which cannot fail, come across sense that only a forged checksum lets
//! through, the keyspace refuses everything from then on.
//!
//! The file is long because the contract is: trie, heap, pages, replay and the log's tail have
//! files of their own, and what is left here is one implementation of `Engine`, method by method.

use std::any::Any;
use std::sync::Arc;

use sheaf_base::backup_files::PinnedFiles;
use sheaf_base::blob_reader::StoredValue;
use sheaf_base::cache_arbiter::CacheShare;
use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineOp, EngineStats, HashedKey, ImageSink, ImageSource,
    Liveness, Preparation, Projection, ReplayRecord,
};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::log_entries::{self, AddressSetHash, LiveAccounting, LoggedEntry};
use sheaf_base::memory::MemoryPart;
use sheaf_base::options::EngineOptions;
use sheaf_base::record::Record;
use sheaf_base::segment::{Address, Frame};
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::versions::OldVersions;
use sheaf_base::views::Views;
use smallvec::SmallVec;

use crate::cursor::CedrusCursor;
use crate::deferred_replay::DeferredReplay;
use crate::entry_list::TrieEntry;
use crate::replay_cost::ReplayCost;
use crate::shape::{HASH_BITS, TrieShape};
use crate::trie::{FoundAddresses, Trie, TrieError};
use crate::trie_file::{FrozenTable, TrieFile};

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "cedrus";
/// Pages that one step of a checkpoint writes.
const PAGES_PER_STEP: usize = 64;
/// A checkpoint is due after so many times the trie's bytes were appended to the log, but at most
/// after `MAX_LOG_BYTES`: what a start after a crash has to replay.
const LOG_TO_TRIE_RATIO: u64 = 8;
const MAX_LOG_BYTES: u64 = 512 << 20;
/// Pages that are left when new keys are refused, for changes of those there are.
const RESERVED_PAGES: u64 = 1024;
/// Pages that a new key may take.
const PAGES_PER_CHANGE: u64 = 4;
/// Pages that go at a time when there is no room.
const EVICT_BATCH: usize = 16;
const TINY_EVICT_BATCH: usize = 4;
/// Pages that stay whatever the budget says; in tiny geometry there are no more than
/// `TINY_MAX_RESIDENT_PAGES`, so that every suite has pages come and go.
const MIN_RESIDENT_PAGES: u64 = 64;
const TINY_MIN_RESIDENT_PAGES: u64 = 8;
const TINY_MAX_RESIDENT_PAGES: u64 = 24;
/// Dirty pages that take this part of the budget are written before anything is refused.
const DIRTY_BUDGET_DIVISOR: u64 = 2;

/// A keyspace.
pub(crate) struct CedrusEngine {
    pub(crate) context: Arc<EngineContext>,
    pub(crate) trie: Trie,
    pub(crate) trie_file: TrieFile,
    pub(crate) versions: OldVersions<u64>,
    pub(crate) accounting: LiveAccounting,
    /// What the last start has not taken in yet.
    pub(crate) deferred_replay: DeferredReplay,
    /// What the next start would have to replay.
    pub(crate) replay_cost: ReplayCost,
    /// Bytes of the trie that the budget knows of, without the pages that may go.
    accounted_bytes: AtomicU64,
    /// Those.
    cache_share: CacheShare,
    /// Held by whoever writes pages of a checkpoint: there is one at a time, and while there is one
    /// not all is written.
    write_lock: Mutex<()>,
    /// What was found out too late.
    failure: Mutex<Option<TrieError>>,
    has_failed: AtomicBool,
}

fn version_place(hash: u32) -> u64 {
    u64::from(hash)
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

    pub(crate) fn hash(&self, key: &[u8]) -> u32 {
        self.trie.shape().truncate_hash(self.context.hash(key))
    }

    // The trie, with pages brought in as they are needed.

    /// What `look` sees once all that it needs is in memory.
    #[inline]
    pub(crate) fn with_pages<T>(
        &self,
        guard: &Guard,
        mut look: impl FnMut() -> Result<T, TrieError>,
    ) -> Result<T> {
        let (mut missed, mut has_room) = (None, false);
        loop {
            match look() {
                Ok(seen) => return Ok(seen),
                Err(TrieError::NotResident(page)) => {
                    // Once a look, so that a way which is longer than what may stay comes together
                    // all the same.
                    if !std::mem::replace(&mut has_room, true) && !self.has_cache_room() {
                        let (most, least) = self.evict_limits();
                        self.evict_pages(most, least, guard);
                    }
                    self.cache_share.record_miss(u64::from(page), self.page_bytes());
                    // A page may go, empty, between the look and the load: missed twice, it is
                    // lost.
                    if let Err(error) = self.trie_file.load(page, &self.trie, guard)
                        && (!error.is_corrupt() || missed.replace(page) == Some(page))
                    {
                        return Err(error);
                    }
                    self.update_accounting();
                }
                Err(trouble) => return Err(self.trie_file.damage_error(trouble)),
            }
        }
    }

    #[inline]
    fn find_addresses(&self, hash: u32, guard: &Guard) -> Result<FoundAddresses> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(self.failure_error());
        }
        self.ensure_replayed(hash)?;
        let ask = |address| self.context.segments.prefetch_entry(address, guard);
        self.with_pages(guard, || self.trie.find(hash, guard, ask))
    }

    /// The entries of a piece of hashes that begins at `from`; its last hash.
    pub(crate) fn visit(&self, from: u32, guard: &Guard, out: &mut Vec<TrieEntry>) -> Result<u32> {
        if self.has_failed.load(Ordering::Relaxed) {
            return Err(self.failure_error());
        }
        let end = self.ensure_replayed_from(from)?;
        let last = self.with_pages(guard, || self.trie.visit(from, guard, out))?;
        if last > end {
            out.retain(|entry| entry.hash <= end);
        }
        Ok(last.min(end))
    }

    /// Where a walk goes on behind `from`, at which the trie cannot be read: behind the list or the
    /// node that cannot. None at the end, or if nothing can be read.
    pub(crate) fn next_readable_hash(&self, from: u32, guard: &Guard) -> Option<u32> {
        if self.has_failed.load(Ordering::Relaxed) {
            return None;
        }
        let mut last = from;
        // The page that cannot be read is what ends it.
        let _ = self.with_pages(guard, || self.trie.find_subtree_end(from, guard, &mut last));
        last.checked_add(1)
    }

    /// Tells the budget how large the trie has become.
    fn update_accounting(&self) {
        let memory = &self.context.memory;
        let clean = self.trie.clean_bytes();
        self.cache_share.set(clean, memory);
        memory.update_held(MemoryPart::Index, &self.accounted_bytes, self.trie.bytes().saturating_sub(clean));
    }

    /// Whether so many bytes fit into the budget.
    fn has_room(&self, bytes: u64) -> bool {
        let is_small = !self.context.tiny || self.trie.bytes() < TINY_MAX_RESIDENT_PAGES * self.page_bytes();
        is_small && self.context.memory.has_room(bytes)
    }

    fn page_bytes(&self) -> u64 {
        self.trie.shape().page_bytes() as u64
    }

    /// Lets pages go if there is no room for `pages` more. True if there is then.
    fn evict_for_pages(&self, pages: u64, guard: &Guard) -> bool {
        let bytes = pages * self.page_bytes();
        if self.has_room(bytes) {
            return true;
        }
        let (most, least) = self.evict_limits();
        self.evict_pages(most, least, guard);
        self.context.memory.has_room(bytes)
    }

    /// How many pages go at once, and how many stay.
    fn evict_limits(&self) -> (usize, u64) {
        if self.context.tiny {
            (TINY_EVICT_BATCH, TINY_MIN_RESIDENT_PAGES)
        } else {
            (EVICT_BATCH, MIN_RESIDENT_PAGES)
        }
    }

    fn evict_pages(&self, most: usize, least: u64, guard: &Guard) {
        let went = |page| self.cache_share.record_eviction(u64::from(page), self.page_bytes());
        self.trie.evict(most, least, guard, went);
        self.update_accounting();
    }

    /// Whether a page that is read finds room in the cache's share.
    fn has_cache_room(&self) -> bool {
        let bytes = self.page_bytes();
        self.has_room(bytes) && self.cache_share.has_room(bytes, &self.context.memory)
    }

    pub(crate) fn failure_error(&self) -> Error {
        self.trie_file.damage_error((*self.failure.lock()).unwrap_or(TrieError::OutOfPages))
    }

    /// A change cannot fail; one that did all the same is remembered.
    pub(crate) fn note_change_result<T>(&self, changed: Result<T, TrieError>) -> Option<T> {
        self.update_accounting();
        match changed {
            Ok(done) => Some(done),
            Err(trouble) => {
                self.failure.lock().get_or_insert(trouble);
                self.has_failed.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether a new key finds room, or the budget has some.
    fn has_room_for_key(&self, guard: &Guard) -> bool {
        (self.evict_for_pages(PAGES_PER_CHANGE, guard) || self.trie.has_free_lines())
            && self.trie.can_grow_by(RESERVED_PAGES)
    }

    // Records.

    /// The record at an address that the trie has.
    pub(crate) fn frame<'g>(&self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.context.segments.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(self.dangling_address_error(address)),
        }
    }

    /// An address that leads nowhere.
    fn dangling_address_error(&self, address: Address) -> Error {
        Error::corrupt(
            &self.trie_file.page_file.path,
            0,
            Damage::BadField { field: "address", value: address.bits() },
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
                Some(segment) => Error::corrupt(segment.path(), address.offset(), what),
                None => self.dangling_address_error(address),
            }
        })
    }

    /// The record at `address` if it is of `key`.
    #[inline]
    fn read<'g>(&self, address: Address, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        let frame = self.frame(address, guard)?;
        let is_key = self.record(address, &frame, guard)?.key == key;
        Ok(is_key.then_some(LoggedEntry { address, frame }))
    }

    #[inline]
    fn find<'g>(&self, hash: u32, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
        for address in self.find_addresses(hash, guard)? {
            if let Some(record) = self.read(address, key, guard)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// As [`CedrusEngine::find`] for a record that is about to be replaced: where the key's bytes
    /// are all there, its checksum is not worth its time, since nothing of it is handed out. One
    /// that does not match is verified before it counts as another key's.
    fn find_to_replace<'g>(
        &self,
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

    /// Waits until `record`, found at `at`, may be shown.
    #[inline]
    fn wait_visible(&self, at: Seq, record: &LoggedEntry<'_>) -> Result<()> {
        if at == Seq::LATEST { self.context.wait_visible(record.seq()) } else { Ok(()) }
    }

    /// The record of `key` that a view at `at` shows.
    #[inline]
    fn find_at<'g>(&self, at: Seq, key: &[u8], guard: &'g Guard) -> Result<Option<LoggedEntry<'g>>> {
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

/// What `prepare` notes as the hash: with the version of what it looked at, which no thread sleeps
/// through 2^31 changes of.
fn pack_note(hash: u32, version: u32) -> u64 {
    u64::from(version) << HASH_BITS | u64::from(hash)
}

/// The hash that `prepare` noted.
fn noted_hash(op: &EngineOp<'_>) -> u32 {
    u32::try_from(log_entries::noted_hash(op) & u64::from(u32::MAX)).unwrap_or(0)
}

/// The version that it noted.
fn noted_version(op: &EngineOp<'_>) -> u32 {
    u32::try_from(log_entries::noted_hash(op) >> HASH_BITS).unwrap_or(0)
}

impl Engine for CedrusEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: false }
    }

    fn log(&self) -> LogId {
        LogId::ValueLog
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        let guard = &epoch::pin();
        let hash = self.hash(op.key);
        let noted = pack_note(hash, self.trie.version(hash));
        let found = self.find_addresses(hash, guard)?;
        let record = self.find_to_replace(&found, op.key, guard)?;
        let print = AddressSetHash::of(&found);
        if let Some(seen) = record {
            let record = self.record(seen.address, &seen.frame, guard)?;
            log_entries::note(op, noted, Some((&seen, record.content.blob_id())), print);
            return Ok(Preparation::Record);
        }
        log_entries::note(op, noted, None, print);
        match op.action {
            Action::Remove => Ok(Preparation::NoChange),
            Action::Expect => Ok(Preparation::Record),
            Action::Put(_) | Action::Blob(_) if !self.has_room_for_key(guard) => {
                Err(Error::MemoryBudgetExceeded { budget: self.context.memory.budget() })
            }
            Action::Put(_) | Action::Blob(_) => Ok(Preparation::Record),
        }
    }

    fn is_current(&self, op: &EngineOp<'_>) -> bool {
        let (hash, version) = (noted_hash(op), noted_version(op));
        if version.is_multiple_of(2) && self.trie.version(hash) == version {
            return true;
        }
        let guard = &epoch::pin();
        let Ok(found) = self.trie.find(hash, guard, |_| {}) else { return false };
        match log_entries::noted_prior(op) {
            Address::NONE => AddressSetHash::of(&found) == log_entries::noted_set_hash(op),
            prior => found.contains(&prior),
        }
    }

    fn apply(&self, seq: Seq, op: &EngineOp<'_>, views: &Views) {
        let guard = &epoch::pin();
        let hash = noted_hash(op);
        let prior = log_entries::replaced_version(op, seq);
        let is_put = !matches!(op.action, Action::Remove);
        if let Some(old) = prior {
            // Before the trie changes (I2).
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
        let hashes: SmallVec<[u32; 32]> = keys.iter().map(|key| self.hash(key.key)).collect();
        hashes.iter().for_each(|hash| self.trie.prefetch(*hash, guard));
        if entries {
            for hash in hashes {
                let ask = |address| self.context.segments.prefetch_entry(address, guard);
                let _ = self.trie.find(hash, guard, ask); // a hint: whoever looks up says what is wrong
            }
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

    fn trim(&self, views: &Views, visible: Seq) {
        if self.versions.is_empty() {
            return;
        }
        let guard = &epoch::pin();
        for old in self.versions.trim(views, visible) {
            self.accounting.free_version(&old, guard);
        }
    }

    fn freeze(&self) {
        debug_assert!(!self.deferred_replay.has_pending(), "the store asks whether it has caught up");
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
        // One at a time: committers wait for a copy of one page.
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

    fn cache_share(&self) -> Option<&CacheShare> {
        Some(&self.cache_share)
    }

    fn evict(&self, bytes: u64) {
        let pages = usize::try_from(bytes.div_ceil(self.page_bytes())).unwrap_or(usize::MAX);
        self.trie.pages().release(); // those that went before
        self.evict_pages(pages, self.evict_limits().1, &epoch::pin());
    }

    fn is_memory_high(&self) -> bool {
        self.trie.heap().dirty_pages() * self.page_bytes()
            > self.context.memory.budget() / DIRTY_BUDGET_DIVISOR
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

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        let restored = crate::image::restore(self, image);
        self.update_accounting();
        restored
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

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounting.list_blobs(out);
        Ok(())
    }

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

    fn stats(&self) -> EngineStats {
        let (table, _) = self.trie_file.bytes();
        EngineStats {
            keys: self.trie.len(),
            index_bytes: self.trie.bytes() + table + self.deferred_replay.bytes(),
            pinned_versions: self.versions.count(),
        }
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.trie_file.verify(report, step) // the store reads every frame, and every pair through a cursor
    }

    fn drop_data(&self) {
        let guard = &epoch::pin();
        // As long as anything is owed, what is counted in slots of segments that are gone may be of
        // those (owed, I5), and no part of what is in these slots now.
        let is_behind = self.deferred_replay.has_pending();
        self.drop_deferred(guard);
        let _nobody_writes = self.write_lock.lock(); // or a step would go on with pages that are no more
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
        let owed = self.deferred_replay.bytes();
        self.context.memory.give_back(MemoryPart::Index, self.accounted_bytes.load(Ordering::Relaxed) + owed);
        self.cache_share.set(0, &self.context.memory);
    }
}
