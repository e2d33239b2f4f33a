//! # Engine: Kreon behind the `Engine` trait
//!
//! ## Threads
//!
//! Commits to different keys write the active memtable concurrently; the store holds the stripes of
//! their keys. Maintenance spills. Readers pin the epoch, load one state, and take no lock. Locks
//! in order of acquisition: the store's stripes, `spill`, the lock of `state`, `candidates`, all
//! others. A thread that holds a stripe never waits for `spill`.
//!
//! ## Recovery
//!
//! Replay fills the active memtable. Of the records of a key, the one with the highest seq wins;
//! tombstones are records too. A tombstone is also compared with the levels: GC copies tombstones
//! without asking the engine, so it may be older than an entry there. Readers and spills compare a
//! range tombstone with the versions in its range. An entry of a level may refer to a segment that
//! GC deleted after the image was made. GC did so because all records of the segment had been
//! moved, superseded or removed. Each of these changes is a record that is replayed, so the
//! memtable shadows the entry.

mod commits;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Bounds, Capabilities, Cursor, Engine, EngineCache, EngineCheckpoint, EngineInfo, EnginePressure,
    EngineReads, EngineRecovery, EngineStats, HashedKey, ImageSink, ImageSource, Liveness, Projection,
    ReplayRecord, StoreLogIndex,
};
use sheaf_engine::idle::IdleDetector;
use sheaf_engine::log_entries::LiveAccounting;
use sheaf_engine::memtable::arena::high;
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_engine::memtable::{MemtableLayer, Memtables};
use sheaf_engine::range_estimate::RangeSum;
use sheaf_engine::removed_range_cache::RemovedRangeCache;
use sheaf_engine::scan_length::ScanLength;
use sheaf_engine::versions::{OldVersion, OldVersions};
use sheaf_engine::views::Views;
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::record::RecordContent;
use sheaf_log::segment::Address;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::cache_arbiter::CacheShare;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{Mutex, Published};

use crate::image::image_keys::{self, ImageKey};
use crate::maintenance::live_bitmap::LiveBitmap;
use crate::maintenance::relocation::RelocationCandidates;
use crate::maintenance::spill::SpillState;
use crate::memtable::{self, KreonMemtable, KreonVersion, RecordWord};
use crate::read::cursor::KreonCursor;
use crate::read::eager_cursors::EagerCursors;
use crate::tree::{KreonState, LevelStore};

/// Name of the engine in the catalog.
pub(crate) const NAME: &str = "kreon";
/// Percentage of the budget at which the active memtable is frozen.
const MEMTABLE_PERCENT: u64 = 28;
/// Divisor of the budget that gives the size of all memtables above which they are spilled before a
/// commit is refused for lack of memory.
const MEMORY_HIGH_DIVISOR: u64 = 8;
/// Bytes of the log after which a memtable is spilled. A larger memtable collects more entries per
/// leaf, so leaves are written less often, but replay takes longer.
const CHECKPOINT_LOG_BYTES: u64 = 1 << 30;
/// Number of removals after which an idle memtable is spilled. Otherwise the first cursor would
/// scan all of them.
const MIN_IDLE_REMOVALS: u64 = 4096;
/// Like [`MIN_IDLE_REMOVALS`], for the estimated bytes of records and values that a memtable
/// supersedes. They become free only when a spill merges the memtable with the levels.
const MIN_IDLE_SUPERSEDED: u64 = 1 << 20;
/// Number of checks by the store without a new commit after which a memtable is idle. The idle
/// store checks every 50 ms.
pub(crate) const IDLE_SAMPLES: u32 = 8;
/// Number of locks of replay. Threads replay records with different locks at the same time.
const REPLAY_LOCKS: usize = 1 << REPLAY_LOCK_BITS;
const REPLAY_LOCK_BITS: u32 = 6;

/// Held by a thread that replays a record of some keys. On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct ReplayLock(Mutex<()>);

/// A keyspace of the Kreon engine.
pub(crate) struct KreonEngine {
    pub(crate) context: Arc<EngineContext>,
    pub(crate) level_store: Arc<LevelStore>,
    pub(crate) versions: OldVersions<Vec<u8>>,
    pub(crate) accounts: LiveAccounting,
    pub(crate) spill: Mutex<SpillState>,
    pub(crate) live_bitmap: LiveBitmap,
    pub(crate) removed_ranges: RemovedRangeCache,
    pub(crate) eager_cursors: EagerCursors,
    pub(crate) scan_length: ScanLength,
    pub(crate) candidates: Mutex<RelocationCandidates>,
    /// Numbers of the blobs that records of memtables refer to, by the addresses of the records.
    pub(crate) blob_ids: Mutex<HashMap<u64, u64>>,
    /// Newest commit that superseded a version while there were views; 0 if no view may need such a
    /// version any more.
    pub(crate) newest_superseding_seq: AtomicU64,
    /// Oldest view at that commit.
    pub(crate) oldest_view: AtomicU64,
    /// Newest view at that commit.
    pub(crate) newest_view: AtomicU64,
    /// Commit that last set the two views, and the lock for them. Commits arrive in any order, and
    /// a view that may need a version can be missing only from the views of older commits.
    view_range_seq: Mutex<Seq>,
    /// Pinned versions that no spill has merged yet: the commits that superseded them, by the
    /// commits that created them.
    unspilled_pins: Mutex<BTreeMap<Seq, Vec<Seq>>>,
    pub(crate) state: Published<KreonState>,
    /// Locks of replay, allocated by the first record.
    replay_locks: OnceLock<Box<[ReplayLock]>>,
    /// Keys that the last freeze left in the active memtable, for the image: see
    /// [`image_keys`].
    pub(crate) image_keys: Mutex<Vec<ImageKey>>,
    pub(crate) max_image_keys: u64,
    /// Number of removed keys that cursors scanned.
    pub(crate) removed_keys_skipped: AtomicU64,
    /// Counts the checks for a checkpoint since the newest commit.
    pub(crate) idle_detector: IdleDetector,
}

impl KreonEngine {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId) -> KreonEngine {
        let memtables = Memtables::new(KreonMemtable::new(1, KeyPrefix::default(), context.tiny));
        let state = KreonState { memtables, levels: Arc::new([]) };
        KreonEngine {
            level_store: Arc::new(LevelStore::new(Arc::clone(&context), id)),
            versions: OldVersions::new(Arc::clone(&context)),
            accounts: LiveAccounting::new(Arc::clone(&context)),
            spill: Mutex::default(),
            live_bitmap: LiveBitmap::new(Arc::clone(&context)),
            removed_ranges: RemovedRangeCache::default(),
            eager_cursors: EagerCursors::default(),
            scan_length: ScanLength::default(),
            candidates: Mutex::default(),
            blob_ids: Mutex::default(),
            newest_superseding_seq: AtomicU64::new(0),
            oldest_view: AtomicU64::new(0),
            newest_view: AtomicU64::new(0),
            view_range_seq: Mutex::new(Seq::ZERO),
            unspilled_pins: Mutex::default(),
            state: Published::new(state),
            replay_locks: OnceLock::new(),
            image_keys: Mutex::default(),
            max_image_keys: image_keys::max_keys(context.tiny),
            removed_keys_skipped: AtomicU64::new(0),
            idle_detector: IdleDetector::default(),
            context,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.level_store.hash(key)
    }

    /// Returns the current state.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g KreonState {
        self.state.load(guard)
    }

    /// Returns the size at which a memtable is frozen.
    fn memtable_limit(&self) -> u64 {
        self.context.memory.budget() / 100 * MEMTABLE_PERCENT
    }

    /// Returns the version of a memtable's record as an old version that commit `end_seq`
    /// superseded.
    pub(crate) fn old_version_of(&self, version: KreonVersion, end_seq: Seq) -> OldVersion {
        let address = version.word.address();
        let blob = if version.word.is_blob() { self.blob_ids.lock().remove(&address.bits()) } else { None };
        version.into_old_version(end_seq, blob)
    }

    /// Removes the pin of a version that is now among the old versions.
    pub(crate) fn remove_pin(&self, begin_seq: Seq) {
        let mut pins = self.unspilled_pins.lock();
        if let Some(end_seqs) = pins.get_mut(&begin_seq) {
            end_seqs.pop();
            if end_seqs.is_empty() {
                pins.remove(&begin_seq);
            }
        }
    }

    /// Replays a record. Of the records of a key, the one with the highest seq wins.
    fn replay_one(&self, record: &ReplayRecord<'_>, guard: &Guard) -> Result<()> {
        if let RecordContent::RemoveRange(end) = record.content {
            self.accounts.count_tombstone(record.address, record.span, guard);
            let (views, memory) = (&Views::default(), &self.context.memory); // no views yet
            let ranges = self.state(guard).memtables.active.ranges();
            ranges.add_counted((record.key, end), record.seq, views, memory, guard);
            return Ok(());
        }
        let hash = self.hash(record.key);
        if matches!(record.content, RecordContent::Remove) {
            self.accounts.count_tombstone(record.address, record.span, guard);
            self.state(guard).memtables.active.add_to_sum(memtable::REMOVALS, 1);
            // GC copies tombstones without asking the engine, so a tombstone may be older than the
            // entry in the levels.
            if self.is_superseded(hash, record.key, record.seq, guard)? {
                return Ok(());
            }
        }
        let locks =
            self.replay_locks.get_or_init(|| (0..REPLAY_LOCKS).map(|_| ReplayLock::default()).collect());
        let _alone_on_key = locks[(high(hash) >> (32 - REPLAY_LOCK_BITS)) as usize].0.lock();
        let active = &self.state(guard).memtables.active;
        let place = active.find(hash, record.key, guard);
        let old = place.map(|place| active.version(place));
        let word = self.word_of(&record.content, record.address, record.span);
        // Of two copies with the same seq, the first one stays.
        if old.is_some_and(|old| old.seq >= record.seq) {
            return Ok(());
        }
        if let Some(old) = old.filter(|old| !old.word.is_tombstone()) {
            let old = self.old_version_of(old, record.seq);
            self.accounts.count_live(old.address, -i64::from(old.span), guard);
            if let Some(blob) = old.blob {
                self.accounts.remove_blob(blob);
            }
        }
        self.account_record(&record.content, record.address, record.span, guard);
        let version = KreonVersion { word, seq: record.seq };
        active.put_unsorted(place.unwrap_or(0), hash, record.key, version, &self.context.memory, guard);
        Ok(())
    }

    fn word_of(&self, content: &RecordContent<'_>, address: Address, span: u32) -> RecordWord {
        match content {
            RecordContent::Remove => RecordWord::tombstone(),
            other => RecordWord::put(address, u64::from(span), matches!(other, RecordContent::Blob(_))),
        }
    }

    /// Accounts for a record to which the index will refer.
    fn account_record(&self, content: &RecordContent<'_>, address: Address, span: u32, guard: &Guard) {
        if let RecordContent::Blob(blob) = content {
            self.accounts.add_blob(blob.id, address);
            self.blob_ids.lock().insert(address.bits(), blob.id);
        }
        if !matches!(content, RecordContent::Remove) {
            self.accounts.count_live(address, i64::from(span), guard);
        }
    }
}

impl EngineInfo for KreonEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: true }
    }

    fn log(&self) -> LogId {
        LogId::ValueLog
    }
}

impl EngineReads for KreonEngine {
    #[inline]
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let Some(shown) = self.find_revealed(at, key, guard)? else { return Ok(false) };
            if let Some(value) = shown.value {
                found(StoredValue::Bytes(value));
                return Ok(true);
            }
            self.level_store.prefetch_record_if_short(shown.address, shown.span, guard);
            let frame = self.read_frame(shown.address, guard)?;
            let record = self.decode_record(shown.address, &frame, key, guard)?;
            if self.accounts.read_stored(record.content, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        Ok(self.find_revealed(at, key, guard)?.is_some())
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            let hash = self.hash(key.key);
            state.memtables.prefetch(hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(KreonCursor::new(self, at, bounds, projection)))
    }

    fn estimate_range(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        self.estimate(first, end)
    }

    fn len(&self) -> Result<u64> {
        self.count_keys(u64::MAX)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.count_keys(1)? == 0)
    }
}

impl EngineCheckpoint for KreonEngine {
    fn freeze(&self) {
        self.accounts.freeze();
        let guard = &epoch::pin();
        let state = self.state(guard);
        let image_keys = self.image_keys_of(state, guard);
        let has_image_keys = image_keys.is_some();
        *self.image_keys.lock() = image_keys.unwrap_or_default();
        state.memtables.active.clear_sum(memtable::REMOVALS);
        state.memtables.active.clear_sum(memtable::SUPERSEDED_BYTES);
        if has_image_keys || !state.memtables.can_freeze() {
            return;
        }
        let tiny = self.context.tiny;
        self.state
            .replace(guard, |now| KreonState { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    fn maintain(&self, views: &Views, _certain: Seq) -> Result<bool> {
        self.step(views)
    }

    fn is_flushed(&self) -> bool {
        self.state(&epoch::pin()).memtables.frozen().is_none()
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        crate::image::save(self, out)
    }

    fn image_published(&self) {
        self.level_store.space.image_published();
    }

    fn image_superseded(&self) {
        self.level_store.space.image_superseded();
    }

    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        self.level_store.space.pin_files()
    }
}

impl EnginePressure for KreonEngine {
    fn checkpoint_after(&self) -> u64 {
        if self.context.tiny { 0 } else { CHECKPOINT_LOG_BYTES }
    }

    /// Returns the growth of the levels' file by two spills: of the current memtables, and of the
    /// removals that follow on a full disk. Only the second spill finds the removed values, because
    /// their entries are in the levels.
    fn disk_reserve(&self) -> Option<u64> {
        let guard = &epoch::pin();
        Some(self.level_store.space.max_growth_bytes(self.state(guard).memtables.bytes()))
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let is_idle = self.idle_detector.observe(active.newest()) >= IDLE_SAMPLES;
        let is_worth_it = active.bytes() * 8 > self.memtable_limit()
            || active.sum(memtable::REMOVALS) >= MIN_IDLE_REMOVALS
            || active.sum(memtable::SUPERSEDED_BYTES) >= MIN_IDLE_SUPERSEDED
            || self.level_store.space.is_much_unreclaimed();
        active.bytes() > self.memtable_limit()
            || (is_worth_it && is_idle)
            || active.ranges().is_flush_due(is_idle, guard)
    }

    fn pressure_percent(&self) -> u64 {
        let guard = &epoch::pin();
        let state = self.state(guard);
        match state.memtables.frozen() {
            Some(_) => (state.memtables.active.bytes() * 100).checked_div(self.memtable_limit()).unwrap_or(0),
            None => 0,
        }
    }

    fn is_memory_high(&self) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.bytes() > self.context.memory.budget() / MEMORY_HIGH_DIVISOR
    }
}

impl EngineRecovery for KreonEngine {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        crate::image::restore(self, image)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        self.replay_one(record, &epoch::pin())
    }

    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        self.state(&epoch::pin()).memtables.active.sort_part(part, parts);
        Ok(())
    }

    fn replay_finished(&self) {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.finish_sort(&self.context.memory, guard);
    }
}

impl StoreLogIndex for KreonEngine {
    fn liveness(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<Liveness> {
        self.liveness_at(hashed_key.key, address, &epoch::pin())
    }

    fn is_newest(&self, hashed_key: HashedKey<'_>, address: Address) -> Result<bool> {
        self.is_newest_record(hashed_key.key, address, &epoch::pin())
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        Ok(self.find_at(Seq::LATEST, key, &epoch::pin())?.map(|shown| shown.address))
    }

    fn relocate(&self, hashed_key: HashedKey<'_>, from: Address, to: Address, _blob_id: Option<u64>) -> bool {
        self.repoint(hashed_key.key, from, to, &epoch::pin())
    }
}

impl EngineCache for KreonEngine {
    fn cache_share(&self) -> &CacheShare {
        self.level_store.cache.cache_share()
    }

    fn evict(&self, bytes: u64) {
        self.level_store.cache.evict(bytes, &epoch::pin());
    }
}

impl Engine for KreonEngine {
    fn store_log_index(&self) -> Option<&dyn StoreLogIndex> {
        Some(self)
    }

    fn cache(&self) -> Option<&dyn EngineCache> {
        Some(self)
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounts.list_blobs(out);
        Ok(())
    }

    fn stats(&self) -> EngineStats {
        let guard = epoch::pin();
        let memtables = self.state(&guard).memtables.bytes();
        drop(guard); // must not be pinned while all keys are counted
        EngineStats {
            keys: self.count_keys(u64::MAX).unwrap_or(0),
            index_bytes: memtables + self.level_store.cache.bytes(),
            pinned_versions: self.versions.count()
                + self.unspilled_pins.lock().values().map(|end_seqs| end_seqs.len() as u64).sum::<u64>(),
            ..EngineStats::default()
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let stats = self.spill.lock().spill_stats;
        vec![
            ("ranges spilled", stats.spills.0),
            ("leaves written by spills", stats.spills.1),
            ("ranges merged", stats.merges.0),
            ("leaves written by merges", stats.merges.1),
            ("pages read", self.level_store.cache.pages_read()),
            ("reads avoided by filters", self.level_store.filters.reads_saved()),
            ("reads avoided by fingerprints", self.level_store.cache.reads_saved()),
            ("removed keys skipped", self.removed_keys_skipped.load(Ordering::Relaxed)),
            ("lookups avoided by the live bitmap", self.live_bitmap.lookups_saved()),
        ]
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.check(report, step)
    }

    fn drop_data(&self) {
        self.drop_all();
    }

    fn close(&self) -> Result<()> {
        self.level_store.space.close();
        Ok(())
    }
}

impl Drop for KreonEngine {
    fn drop(&mut self) {
        self.state(&epoch::pin()).memtables.uncount_memory(&self.context.memory);
    }
}
