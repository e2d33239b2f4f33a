//! # Engine: DeLSM as an engine of the store
//!
//! ## Threads
//!
//! Commits of different keys write the active memtable at the same time; the store holds the
//! stripes of their keys. Background work holds the lock `work`. Background work and `freeze`
//! replace the whole state. Readers pin the epoch and take no lock. Locks in order of acquisition:
//! the stripes of the store, `work` (never acquired while a stripe is held), the lock of `state`.

use std::sync::Arc;

use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineCheckpoint, EngineCommits, EngineInfo, EngineOp,
    EnginePressure, EngineReads, EngineRecovery, EngineStats, HashedKey, ImageSink, ImageSource, Ingest,
    Preparation, Projection, ReplayRecord,
};
use sheaf_engine::idle::IdleDetector;
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_engine::memtable::{
    Memtable, MemtableLayer, MemtableVersion as MemVersion, Memtables, VersionWord,
};
use sheaf_engine::views::{PinnedVersions, Views};
use sheaf_log::blob::BlobRef;
use sheaf_log::blob_reader::{StoredValue, ValueCache};
use sheaf_log::options::EngineOptions;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{Mutex, Published};

use crate::files::list::ValueRef;
use crate::maintenance::MaintenanceState;
use crate::maintenance::ingest::DelsmIngest;
use crate::read::cursor::DelsmCursor;
use crate::read::removed_ranges::RemovedRangeMap;
use crate::sizes::Sizes;
use crate::tree::{DelsmState, KeyspaceContext, Table, Version};

/// Name of the engine in the catalog.
pub(crate) const NAME: &str = "delsm";
/// Divisor of the memory budget: a larger memtable is due for a checkpoint.
const MEMTABLE_BUDGET_DIVISOR: u64 = 6;
/// Number of full memtables at which the store throttles writers, if no other one can be frozen.
const MEMTABLES_IN_BUDGET: u64 = 5;
/// Index of the memtable sum: estimated bytes of its content in lists and packs.
const TABLE_BYTES_SUM: usize = 0;
/// Index of the memtable sum: wasted bytes of its records in the journal
/// ([`DelsmEngine::note_waste`]).
const WASTE: usize = 1;
/// Waste in the journal, in percent of the live data, above which a memtable is due.
const WASTE_SHARE: u64 = 50;
/// Pressure, in percent, when the waste is just large enough to make a memtable due. The store
/// throttles writers above 100, which is about one and a half times that waste.
const DUE_PRESSURE_PERCENT: u64 = 69;
/// Upper estimate of the bytes of a list entry in addition to its key, including its share of the
/// foot.
const LIST_ENTRY_OVERHEAD: usize = 40;
/// Number of removals between two scans for removed ranges, while the scans are successful.
const RESCAN_REMOVALS: u64 = 4;
/// Divisor of the memory budget. If the budget is used up and the memtables use more than this part
/// of it, they are flushed before a write is refused.
const MEMORY_HIGH_DIVISOR: u64 = 8;

/// Engine instance of one keyspace.
pub(crate) struct DelsmEngine {
    pub(crate) id: KeyspaceId,
    pub(crate) keyspace: Arc<KeyspaceContext>,
    pub(crate) sizes: Sizes,
    pub(crate) work: Mutex<MaintenanceState>,
    state: Published<DelsmState>,
    /// Blobs in the active memtable, and their bytes. Approximate.
    memtable_blobs: [AtomicU64; 2],
    /// Number of memtables that were frozen while a flush was under way, and number of flushes that
    /// wrote several memtables at once.
    queue_counters: [AtomicU64; 2],
    /// Estimated bytes that the frozen memtables will use in lists and packs.
    frozen_table_bytes: AtomicU64,
    /// Bytes of all lists. A merge may have to write them again.
    list_bytes: AtomicU64,
    /// Wasted bytes of the frozen memtables in the journal.
    wasted_bytes: AtomicU64,
    /// Estimated bytes of live values in tables.
    live_bytes: AtomicU64,
    /// Percentage of the keys of the last flush that were in no other table.
    pub(crate) new_key_percent: AtomicU64,
    /// Versions that views pin.
    pinned_versions: PinnedVersions,
    /// Updated when the store asks whether a checkpoint is due.
    idle_detector: IdleDetector,
    /// Ranges of removed keys that readers skip.
    pub(crate) removed_ranges: RemovedRangeMap,
    /// Number of removals since the last scan for removed ranges, and number at which the next scan
    /// is due.
    removal_scan_counters: [AtomicU64; 2],
    /// Number of removed keys that readers have passed.
    pub(crate) removed_keys_skipped: AtomicU64,
    /// True if views were released since the last check.
    pub(crate) has_released_views: AtomicBool,
    /// Blobs of tables that are not published yet (`ingest.rs`).
    pub(crate) ingested_blobs: Mutex<Vec<u64>>,
}

/// Result of a lookup.
pub(crate) enum LookupResult<'a> {
    /// The value is in a memtable.
    Memtable(RecordContent<'a>),
    /// The value is in a table.
    Table(&'a Arc<Table>, ValueRef),
    /// The key was removed, or never existed.
    Absent,
}

impl DelsmEngine {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId, options: &EngineOptions) -> DelsmEngine {
        let path = context.dir_of(id);
        let (tiny, sizes) = (context.tiny, Sizes::from_options(options, context.tiny));
        let state = DelsmState {
            memtables: Memtables::new(Memtable::new(1, KeyPrefix::default(), tiny)),
            version: Arc::default(),
        };
        DelsmEngine {
            id,
            keyspace: Arc::new(KeyspaceContext::new(context, id, path)),
            sizes,
            work: Mutex::default(),
            state: Published::new(state),
            memtable_blobs: Default::default(),
            queue_counters: Default::default(),
            frozen_table_bytes: Default::default(),
            list_bytes: AtomicU64::new(0),
            wasted_bytes: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            new_key_percent: AtomicU64::new(100),
            pinned_versions: PinnedVersions::default(),
            idle_detector: IdleDetector::default(),
            removed_ranges: RemovedRangeMap::default(),
            removal_scan_counters: [AtomicU64::new(0), AtomicU64::new(sizes.removals_per_scan)],
            removed_keys_skipped: AtomicU64::new(0),
            has_released_views: AtomicBool::new(false),
            ingested_blobs: Mutex::default(),
        }
    }

    /// Returns the present state.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g DelsmState {
        self.state.load(guard)
    }

    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.state(&epoch::pin()).version)
    }

    /// Publishes `version`. It contains the content of the `flushed` oldest frozen memtables.
    pub(crate) fn publish_version(&self, version: Version, flushed: usize) {
        let guard = &epoch::pin();
        for memtable in self.state(guard).memtables.all_frozen().iter().take(flushed) {
            memtable.uncount_memory(&self.keyspace.context.memory);
            self.frozen_table_bytes.fetch_sub(memtable.sum(TABLE_BYTES_SUM), Ordering::Relaxed);
            self.wasted_bytes.fetch_sub(memtable.sum(WASTE), Ordering::Relaxed);
        }
        if flushed > 1 {
            self.queue_counters[1].fetch_add(1, Ordering::Relaxed);
        }
        let listed = version.tables().map(|table| table.list.bytes()).sum();
        self.list_bytes.store(listed, Ordering::Relaxed);
        self.live_bytes.store(version.largest_level(), Ordering::Relaxed);
        self.state.replace(guard, |now| DelsmState {
            memtables: now.memtables.without_oldest(flushed),
            version: Arc::new(version),
        });
    }

    /// Freezes the active memtable.
    fn freeze_active(&self, guard: &Guard) {
        let active = &self.state(guard).memtables.active;
        self.memtable_blobs.iter().for_each(|staged| staged.store(0, Ordering::Relaxed));
        self.frozen_table_bytes.fetch_add(active.sum(TABLE_BYTES_SUM), Ordering::Relaxed);
        self.wasted_bytes.fetch_add(active.sum(WASTE), Ordering::Relaxed);
        let tiny = self.keyspace.context.tiny;
        self.state
            .replace(guard, |now| DelsmState { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    /// Returns true if the active memtable is as large as a memtable for a flush should be.
    fn is_full(&self, active: &Memtable) -> bool {
        self.memtable_blobs[0].load(Ordering::Relaxed) >= self.sizes.max_memtable_files
            || self.memtable_blobs[1].load(Ordering::Relaxed) >= self.sizes.max_memtable_file_bytes
            || active.bytes() > self.full_memtable_bytes()
    }

    /// Returns the memory of a memtable above which it is due for a flush.
    fn full_memtable_bytes(&self) -> u64 {
        self.keyspace.context.memory.budget() / MEMTABLE_BUDGET_DIVISOR
    }

    /// Returns the frozen memtables, oldest first, whose commits are all durable, up to `certain`.
    /// One flush writes all of them: level 0 gets one table instead of several, which would cause
    /// more merges, and no version that another one supersedes is written.
    pub(crate) fn memtables_to_flush(&self, certain: Seq) -> Vec<Arc<Memtable>> {
        let guard = &epoch::pin();
        let frozen = self.state(guard).memtables.all_frozen();
        frozen.iter().take_while(|memtable| memtable.newest() <= certain).cloned().collect()
    }

    /// Calls `with` with the version of `key` that is visible at `at` in `state`. The result from a
    /// table is valid only with the same state: a later state may have other tables, and an earlier
    /// one may lack the pack that the result names.
    #[inline]
    fn look_up<R>(
        &self,
        state: &DelsmState,
        (at, key): (Seq, &[u8]),
        guard: &Guard,
        with: impl FnOnce(LookupResult<'_>) -> Result<R>,
    ) -> Result<R> {
        let hash = self.keyspace.hash(key);
        if let Some((memtable, version)) = state.memtables.find(hash, key, at, guard) {
            if at == Seq::LATEST {
                self.keyspace.context.wait_visible(version.seq)?;
            }
            if version.word.is_tombstone() {
                return with(LookupResult::Absent);
            }
            return memtable.content(version.word, &self.keyspace.context, guard, |content| {
                with(LookupResult::Memtable(content))
            });
        }
        match state.version.find(hash, key, at)? {
            None | Some((_, _, ValueRef::Removed)) => with(LookupResult::Absent),
            Some((table, _, what)) => with(LookupResult::Table(table, what)),
        }
    }

    /// Returns the seq of the version of `key` that is visible at `at`. Reads only the word in the
    /// memtable or the key list, but no value. If `is_revealed`, waits until the commit of an entry
    /// in a memtable is visible before the entry counts.
    fn visible_seq(&self, at: Seq, key: &[u8], is_revealed: bool, guard: &Guard) -> Result<Option<Seq>> {
        let (state, hash) = (self.state(guard), self.keyspace.hash(key));
        if let Some((_, version)) = state.memtables.find(hash, key, at, guard) {
            if is_revealed {
                self.keyspace.context.wait_visible(version.seq)?;
            }
            return Ok((!version.word.is_tombstone()).then_some(version.seq));
        }
        let found = state.version.find(hash, key, at)?;
        Ok(found.and_then(|(_, seq, what)| (what != ValueRef::Removed).then_some(seq)))
    }

    /// Returns true if the record of `op` would exceed the budget even after eviction of all
    /// caches. The check includes the memory that the memtables will need in the index.
    fn is_over_budget(&self, op: &EngineOp<'_>, state: &DelsmState) -> bool {
        let more = state.memtables.bytes_needed(op, self.sizes.index_bytes_per_key);
        let memory = &self.keyspace.context.memory;
        self.keyspace.context.blob_cache.evict_to_fit(more, memory);
        !memory.has_room_without_caches(more)
    }

    /// Passes the value of `key` at `at` to `found`. With `from_cache`, passes the cached bytes of
    /// a file instead of the file, if there are any.
    fn read_value(
        &self,
        at: Seq,
        key: &[u8],
        from_cache: bool,
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<bool> {
        let cached = |blob: &BlobRef, found: &mut dyn FnMut(StoredValue<'_>)| {
            let bytes = if from_cache { self.keyspace.context.blob_cache.get(blob.id) } else { None };
            bytes.inspect(|bytes| found(StoredValue::Bytes(bytes))).is_some()
        };
        let mut missed = None;
        loop {
            let guard = &epoch::pin();
            let state = self.state(guard);
            // The inner error has the file that is missing, and its place.
            let answer = self.look_up(state, (at, key), guard, |what| match what {
                LookupResult::Absent => Ok(Ok(false)),
                LookupResult::Memtable(RecordContent::Put(value)) => {
                    found(StoredValue::Bytes(value));
                    Ok(Ok(true))
                }
                LookupResult::Memtable(RecordContent::Blob(blob)) if cached(&blob, found) => Ok(Ok(true)),
                LookupResult::Memtable(RecordContent::Blob(blob)) => {
                    match self.keyspace.context.blobs.open(&blob)? {
                        Some(file) => {
                            found(StoredValue::Blob(file));
                            Ok(Ok(true))
                        }
                        None => Ok(Err((0, blob.id, self.keyspace.context.blobs.missing_error(&blob)))),
                    }
                }
                LookupResult::Memtable(RecordContent::Remove | RecordContent::RemoveRange(_))
                | LookupResult::Table(_, ValueRef::Removed) => Ok(Ok(false)),
                LookupResult::Table(_, ValueRef::Packed { pack, offset, len, sum }) => {
                    let Some(pack) = state.version.packs.get(&pack) else {
                        return Err(crate::recovery::check::missing_pack_error(&self.keyspace, pack));
                    };
                    pack.read(offset, len, sum, |value| found(StoredValue::Bytes(value)))?;
                    Ok(Ok(true))
                }
                LookupResult::Table(_, ValueRef::File { blob, .. }) if cached(&blob, found) => Ok(Ok(true)),
                LookupResult::Table(table, ValueRef::File { blob, location }) => {
                    match table.open_blob(key, &blob, location)? {
                        Some(file) => {
                            found(StoredValue::Blob(file));
                            Ok(Ok(true))
                        }
                        None => Ok(Err((table.list.number() + 1, blob.id, table.missing_error(key, &blob)))),
                    }
                }
            })?;
            // A file may be moved, or removed after it was superseded: then the next lookup finds
            // the new state. A file that is missing twice in the same place is lost.
            match answer {
                Ok(is_there) => return Ok(is_there),
                Err((place, id, error)) => {
                    if missed.replace((place, id)) == Some((place, id)) {
                        return Err(error);
                    }
                }
            }
        }
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
    fn count_table_bytes(&self, active: &Memtable, key: &[u8], content: &RecordContent<'_>) {
        if let RecordContent::Blob(blob) = content {
            self.memtable_blobs[0].fetch_add(1, Ordering::Relaxed);
            self.memtable_blobs[1].fetch_add(u64::from(blob.len), Ordering::Relaxed);
        }
        let packed = if let RecordContent::Put(value) = content { value.len() } else { 0 };
        let bytes = key.len() + packed + LIST_ENTRY_OVERHEAD;
        active.add_to_sum(TABLE_BYTES_SUM, bytes as u64);
    }

    /// Replays a record that no table contains.
    fn replay_unflushed(&self, record: &ReplayRecord<'_>) {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        if let RecordContent::RemoveRange(end) = record.content {
            let views = &Views::default(); // there are none yet
            return active.remove_range(record.key, end, record.seq, views, &self.keyspace.context, guard);
        }
        let hash = self.keyspace.hash(record.key);
        let entry = active.find(hash, record.key, guard);
        if entry.as_ref().is_some_and(|entry| entry.newest().seq >= record.seq) {
            return;
        }
        let version = MemVersion { word: VersionWord::of(&record.content, record.address), seq: record.seq };
        let place = entry.map_or(0, |entry| entry.place);
        active.put_unsorted(place, hash, record.key, version, &self.keyspace.context, guard);
        self.count_table_bytes(active, record.key, &record.content);
        self.note_waste(active, record.span, place == 0);
    }

    /// Counts the wasted bytes of a record in the journal: a flush makes them superfluous, and no
    /// table needs them. A key that the memtable already has wastes its whole record. A new key of
    /// the memtable wastes the fraction of keys that tables already have.
    fn note_waste(&self, active: &Memtable, span: u32, is_first: bool) {
        let fresh = if is_first { self.new_key_percent.load(Ordering::Relaxed).min(100) } else { 0 };
        active.add_to_sum(WASTE, u64::from(span) * (100 - fresh) / 100);
    }

    /// Returns the waste in the journal above which a memtable is due.
    fn most_waste(&self) -> u64 {
        (self.live_bytes.load(Ordering::Relaxed) / 100 * WASTE_SHARE).max(self.sizes.least_waste)
    }

    /// Lists the blobs in the blob store that this keyspace uses: those of memtables, and those
    /// that tables with unlinked files name.
    pub(crate) fn list_blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for memtable in state.memtables.iter() {
            let mut places = Vec::new();
            memtable.ascend(std::ops::Bound::Unbounded, usize::MAX, guard, &mut places);
            for place in places {
                for version in memtable.entry(place).versions().filter(|version| version.word.is_blob()) {
                    out.extend(self.blob_id_of(memtable, version, guard)?);
                }
            }
        }
        for table in state.version.tables().filter(|table| !table.is_linked()) {
            out.extend(crate::recovery::open::pending_blobs_of(table)?);
        }
        Ok(())
    }
}

impl EngineInfo for DelsmEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: true }
    }

    fn log(&self) -> LogId {
        LogId::Journal
    }
}

impl EngineReads for DelsmEngine {
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        self.read_value(at, key, false, found)
    }

    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut file = None;
        let is_there = self.read_value(at, key, true, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => found(bytes),
            StoredValue::Blob(value) => {
                file = Some(value.with_cache(Arc::clone(&self.keyspace.context) as Arc<dyn ValueCache>))
            }
        })?;
        if let Some(file) = file {
            file.read(found)?;
        }
        Ok(is_there)
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        Ok(self.visible_seq(at, key, at == Seq::LATEST, &epoch::pin())?.is_some())
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            let hash = self.keyspace.hash(key.key);
            state.memtables.prefetch(hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(DelsmCursor::new(self, at, bounds, projection)))
    }

    fn len(&self) -> Result<u64> {
        self.count_keys(u64::MAX)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.count_keys(1)? == 0)
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
        let hash = self.keyspace.hash(op.key);
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
        let (record, hash) = (Memtable::record_of(op), Memtable::hash_of(op));
        let is_kept = active.put(record, hash, op.key, version, views, &self.keyspace.context, guard);
        self.count_table_bytes(active, op.key, &content);
        self.note_waste(active, op.span, record == 0);
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

impl EngineCheckpoint for DelsmEngine {
    fn freeze(&self) {
        let guard = &epoch::pin();
        if self.state(guard).memtables.can_queue(self.sizes.max_frozen) {
            self.freeze_active(guard);
        }
        assert!(
            self.state(guard).memtables.active.is_empty(),
            "delsm (I5): a checkpoint covers all commits before it"
        );
        self.state.replace(guard, |now| DelsmState { memtables: now.memtables.covered(), ..now.clone() });
    }

    fn wants_freeze(&self) -> bool {
        let guard = &epoch::pin();
        let memtables = &self.state(guard).memtables;
        // Without a covered memtable the next checkpoint begins soon, and needs a place (I5).
        memtables.covered_count() > 0
            && memtables.can_queue(self.sizes.max_frozen)
            && self.is_full(&memtables.active)
    }

    fn freeze_more(&self) {
        if self.wants_freeze() {
            self.freeze_active(&epoch::pin());
            self.queue_counters[0].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn maintain(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.step(views, certain)
    }

    fn is_flushed(&self) -> bool {
        self.state(&epoch::pin()).memtables.covered_count() == 0
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.save_image(out)
    }

    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        Ok(Some(Box::new(self.pin_tables()?)))
    }
}

impl EnginePressure for DelsmEngine {
    /// Returns the space for the flush of all memtables, for a merge of their lists with all other
    /// lists, and for directories and the manifest.
    fn disk_reserve(&self) -> Option<u64> {
        let logged = self.log_bytes_needed();
        let lists = logged + self.list_bytes.load(Ordering::Relaxed);
        Some(if lists == 0 { 0 } else { logged + 2 * lists + self.sizes.min_reserve_bytes })
    }

    fn log_bytes_needed(&self) -> u64 {
        self.frozen_table_bytes.load(Ordering::Relaxed)
            + self.state(&epoch::pin()).memtables.active.sum(TABLE_BYTES_SUM)
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = &state.memtables.active;
        let rest = self.idle_detector.observe(active.newest());
        // Asks after 1, 2, 4, ... times `idle_samples` observations, so that an idle memtable is
        // not examined again and again.
        let (looked, looks) = (rest.saturating_add(1), self.sizes.idle_samples);
        let is_turn = looked.is_multiple_of(looks) && (looked / looks).is_power_of_two();
        state.memtables.frozen().is_some()
            || self.is_full(active)
            || active.ranges().is_flush_due(rest >= looks, guard)
            || active.sum(WASTE) > self.most_waste()
            || (active.count() >= self.sizes.min_idle_keys && rest >= looks)
            || (!active.is_empty() && is_turn && self.is_superseding_much(state, guard).unwrap_or(false))
    }

    /// Returns the larger of two values, while a memtable is frozen. The first is the waste of all
    /// memtables, as a percentage of the waste above which the store throttles writers. The memory
    /// limit does not bound the journal while a memtable waits for a merge and is flushed: a key
    /// that is overwritten uses no more memory. The second is the memory of the memtables, once the
    /// last of the frozen ones is in use.
    fn pressure_percent(&self) -> u64 {
        let guard = &epoch::pin();
        let memtables = &self.state(guard).memtables;
        if memtables.frozen().is_none() {
            return 0;
        }
        let waste = self.wasted_bytes.load(Ordering::Relaxed).saturating_add(memtables.active.sum(WASTE));
        let of_waste = waste.saturating_mul(DUE_PRESSURE_PERCENT) / self.most_waste().max(1);
        if memtables.all_frozen().len() < self.sizes.max_frozen {
            return of_waste;
        }
        let most = self.full_memtable_bytes().saturating_mul(MEMTABLES_IN_BUDGET);
        of_waste.max(memtables.bytes().saturating_mul(100) / most.max(1))
    }

    fn is_memory_high(&self) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.bytes() > self.keyspace.context.memory.budget() / MEMORY_HIGH_DIVISOR
    }
}

impl EngineRecovery for DelsmEngine {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.restore_image(image)
    }

    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        self.restore_files(Seq::ZERO, damage)
    }

    fn restore_partial(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        self.restore_readable(skipped)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        self.replay_run(std::slice::from_ref(record))
    }

    fn replay_run(&self, records: &[ReplayRecord<'_>]) -> Result<()> {
        let flushed = self.work.lock().flushed_seq;
        let keys: Vec<_> = records.iter().map(|record| self.hashed_key(record.key)).collect();
        self.prefetch(&keys, true);
        let unflushed = records.iter().filter(|record| record.seq > flushed);
        unflushed.for_each(|record| self.replay_unflushed(record));
        Ok(())
    }

    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        self.state(&epoch::pin()).memtables.active.sort_part(part, parts);
        Ok(())
    }

    fn replay_finished(&self) {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.finish_sort(&self.keyspace.context, guard);
    }
}

impl Engine for DelsmEngine {
    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        // In this order: a blob that leaves the state is then among the adopted blobs.
        let named = self.list_blobs(out);
        out.extend(self.ingested_blobs.lock().iter().copied());
        out.extend(self.work.lock().adopted_blobs());
        named
    }

    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let has_engine_dir = self.keyspace.context.engine_dir.is_some();
        Ok(has_engine_dir.then(|| Box::new(DelsmIngest::new(self, seq)) as Box<dyn Ingest>))
    }

    fn stats(&self) -> EngineStats {
        let guard = epoch::pin();
        let state = self.state(&guard);
        let memtables = state.memtables.bytes();
        let lists: u64 = state.version.tables().map(|table| table.list.memory_bytes()).sum();
        drop(guard); // not held while all keys are counted
        EngineStats {
            keys: self.count_keys(u64::MAX).unwrap_or(0),
            index_bytes: memtables + lists,
            pinned_versions: self.pinned_versions.count(),
            ..EngineStats::default()
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("removed keys skipped", self.removed_keys_skipped.load(Ordering::Relaxed)),
            ("memtables queued", self.queue_counters[0].load(Ordering::Relaxed)),
            ("flushes of several memtables", self.queue_counters[1].load(Ordering::Relaxed)),
        ]
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.check(report, step)
    }

    fn drop_data(&self) {
        let mut work = self.work.lock();
        let guard = &epoch::pin();
        self.state(guard).memtables.uncount_memory(&self.keyspace.context.memory);
        self.pinned_versions.clear();
        self.removed_ranges.clear();
        *work = MaintenanceState::default();
        [&self.frozen_table_bytes, &self.list_bytes, &self.wasted_bytes, &self.live_bytes]
            .iter()
            .for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        let tiny = self.keyspace.context.tiny;
        self.state.replace(guard, |now| DelsmState {
            memtables: now.memtables.cleared(tiny, guard),
            version: Arc::default(),
        });
        self.keyspace.context.remove_dir_of(self.id);
    }
}
