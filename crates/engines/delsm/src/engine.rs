//! # The engine: DeLSM under the contract
//!
//! ## Threads
//!
//! Commits of different keys write the active memtable at once. The store holds the stripes of
//! their keys. Background work takes the work lock. It and `freeze` replace the state as a whole.
//! Readers pin the epoch and take no lock. Locks in order: the store's stripes, `work` (never taken
//! with a stripe), that of `state`.

use std::any::Any;
use std::sync::Arc;

use sheaf_base::backup_files::PinnedFiles;
use sheaf_base::blob::BlobRef;
use sheaf_base::blob_reader::StoredValue;
use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineOp, EngineStats, HashedKey, ImageSink, ImageSource,
    Ingest, Preparation, Projection, ReplayRecord,
};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::{Error, Result};
use sheaf_base::idle::IdleDetector;
use sheaf_base::memtable::prefix::KeyPrefix;
use sheaf_base::memtable::{Memtable, MemtableLayer, MemtableVersion as MemVersion, Memtables, VersionWord};
use sheaf_base::options::EngineOptions;
use sheaf_base::record::RecordContent;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::sync::{Mutex, Published};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::views::{PinnedVersions, Views};

use crate::cursor::DelsmCursor;
use crate::ingest::DelsmIngest;
use crate::list::ValueRef;
use crate::maintenance::MaintenanceState;
use crate::removed_ranges::RemovedRangeMap;
use crate::sizes::Sizes;
use crate::tree::{DelsmState, KeyspaceContext, Table, Version};

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "delsm";
/// A memtable may take this part of the budget.
const MEMTABLE_BUDGET_DIVISOR: u64 = 6;
/// Sum of a memtable: bytes that it will take in lists and packs, about.
const TABLE_BYTES_SUM: usize = 0;
/// Sum of a memtable: bytes that its records waste in the journal; see [`DelsmEngine::note_waste`].
const WASTE: usize = 1;
/// Hundredths of the live data that the journal may waste before a memtable is moved.
const WASTE_SHARE: u64 = 50;
/// The pressure, in hundredths, of as much waste as makes a memtable due: writers are slowed down
/// from one and a half times that on.
const DUE_PRESSURE_PERCENT: u64 = 69;
/// Bytes of a list's entry beside its key, at most, and its share of what stands in the foot.
const LIST_ENTRY_OVERHEAD: usize = 40;
/// Removals between two that look around themselves while that is worth it.
const RESCAN_REMOVALS: u64 = 4;
/// With the budget used up, memtables that take this part of it are moved before anything is
/// refused.
const MEMORY_HIGH_DIVISOR: u64 = 8;

/// A keyspace.
pub(crate) struct DelsmEngine {
    pub(crate) id: KeyspaceId,
    pub(crate) keyspace: Arc<KeyspaceContext>,
    pub(crate) sizes: Sizes,
    pub(crate) work: Mutex<MaintenanceState>,
    state: Published<DelsmState>,
    /// Staged values in the active memtable, about, and their bytes.
    memtable_blobs: [AtomicU64; 2],
    /// Bytes that the frozen memtable will take in lists and packs, about.
    frozen_table_bytes: AtomicU64,
    /// Bytes of all lists: a merge may have to write them once more.
    list_bytes: AtomicU64,
    /// Bytes that the frozen memtable wastes in the journal.
    wasted_bytes: AtomicU64,
    /// Bytes of values that live in tables, about.
    live_bytes: AtomicU64,
    /// Of the keys that were flushed last, so many of a hundred were in no table.
    pub(crate) new_key_percent: AtomicU64,
    /// Versions that views pin.
    pinned_versions: PinnedVersions,
    /// As the store sees it when it asks whether there should be a checkpoint.
    idle_detector: IdleDetector,
    /// Stretches of removed keys that readers skip.
    pub(crate) removed_ranges: RemovedRangeMap,
    /// Removals since one looked around itself, and after how many the next one does.
    removal_scan_counters: [AtomicU64; 2],
    /// Removed keys that readers passed.
    pub(crate) removed_keys_skipped: AtomicU64,
    /// Views were released since somebody last looked.
    pub(crate) has_released_views: AtomicBool,
    /// Staged values of tables that are not published yet: see `ingest.rs`.
    pub(crate) ingested_blobs: Mutex<Vec<u64>>,
}

/// Result of a look-up.
pub(crate) enum LookupResult<'a> {
    /// In a memtable.
    Memtable(RecordContent<'a>),
    /// In a table.
    Table(&'a Arc<Table>, ValueRef),
    /// It is removed, or was never there.
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

    /// The present moment.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g DelsmState {
        self.state.load(guard)
    }

    pub(crate) fn version(&self) -> Arc<Version> {
        Arc::clone(&self.state(&epoch::pin()).version)
    }

    pub(crate) fn frozen(&self) -> Option<Arc<Memtable>> {
        self.state(&epoch::pin()).memtables.frozen.clone()
    }

    /// Publishes `version`; with `is_flushed`, what was frozen is in it.
    pub(crate) fn publish_version(&self, version: Version, is_flushed: bool) {
        let guard = &epoch::pin();
        if let Some(frozen) = self.state(guard).memtables.frozen.as_ref().filter(|_| is_flushed) {
            frozen.uncount_memory(&self.keyspace.context.memory);
            self.frozen_table_bytes.store(0, Ordering::Relaxed);
            self.wasted_bytes.store(0, Ordering::Relaxed);
        }
        let listed = version.tables().map(|table| table.list.bytes()).sum();
        self.list_bytes.store(listed, Ordering::Relaxed);
        self.live_bytes.store(version.largest_level(), Ordering::Relaxed);
        self.state.replace(guard, |now| DelsmState {
            memtables: now.memtables.without_flushed(is_flushed),
            version: Arc::new(version),
        });
    }

    /// Calls `with` with what `key` is at `at` in `state`. What a table says is to be understood by
    /// the same state: a later one may have other tables, and an earlier one lacks the pack that is
    /// named.
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

    /// The number of the version of `key` that a view at `at` shows. No value is read for it, in a
    /// file, a pack or the journal: the memtable's word or the key list says it. If `is_revealed`,
    /// the commit of an entry of a memtable is revealed before the entry counts.
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

    /// Whether the record of `op` would be beyond the budget, with all that can give way gone, and
    /// with room for what the memtables will take in the index.
    fn is_over_budget(&self, op: &EngineOp<'_>, state: &DelsmState) -> bool {
        let more = state.memtables.bytes_needed(op, self.sizes.index_bytes_per_key);
        let memory = &self.keyspace.context.memory;
        self.keyspace.context.blob_cache.evict_to_fit(more, memory);
        !memory.has_room_without_caches(more)
    }

    /// Hands what `key` is at `at` to `found`; with `from_cache`, bytes that were read from a file
    /// before in place of the file.
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
            // None: the file that was named is not there, and which it was.
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
                LookupResult::Memtable(RecordContent::Remove) | LookupResult::Table(_, ValueRef::Removed) => {
                    Ok(Ok(false))
                }
                LookupResult::Table(_, ValueRef::Packed { pack, offset, len, sum }) => {
                    let Some(pack) = state.version.packs.get(&pack) else {
                        return Err(crate::check::missing_pack_error(&self.keyspace, pack));
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
            // A file moves on, or goes after what named it was superseded: missed twice in one
            // place, it is lost.
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

    /// Has the removal of `key` look around itself for a dead range now and then: soon again where
    /// it passed so many removed keys that removals there come in no order.
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

    /// What a record will take in a list, and its value in a pack; or that it is staged.
    fn count_table_bytes(&self, active: &Memtable, key: &[u8], content: &RecordContent<'_>) {
        if let RecordContent::Blob(blob) = content {
            self.memtable_blobs[0].fetch_add(1, Ordering::Relaxed);
            self.memtable_blobs[1].fetch_add(u64::from(blob.len), Ordering::Relaxed);
        }
        let packed = if let RecordContent::Put(value) = content { value.len() } else { 0 };
        let bytes = key.len() + packed + LIST_ENTRY_OVERHEAD;
        active.add_to_sum(TABLE_BYTES_SUM, bytes as u64);
    }

    /// Notes the bytes of a record in the journal that a flush makes superfluous and that say
    /// nothing that tables do not say: those of a key that the memtable has already, and of others
    /// the part that tables have.
    fn note_waste(&self, active: &Memtable, span: u32, is_first: bool) {
        let fresh = if is_first { self.new_key_percent.load(Ordering::Relaxed).min(100) } else { 0 };
        active.add_to_sum(WASTE, u64::from(span) * (100 - fresh) / 100);
    }

    /// Returns the waste of the journal that makes a memtable due.
    fn most_waste(&self) -> u64 {
        (self.live_bytes.load(Ordering::Relaxed) / 100 * WASTE_SHARE).max(self.sizes.least_waste)
    }

    /// Values that stand among the staged ones: in memtables, or named by tables that are not
    /// settled.
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
            out.extend(crate::recover::pending_blobs_of(table)?);
        }
        Ok(())
    }
}

impl Engine for DelsmEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: true }
    }

    fn log(&self) -> LogId {
        LogId::Journal
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn blob_threshold(&self) -> usize {
        self.sizes.max_packed_bytes
    }

    fn takes_blob_files(&self) -> bool {
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

    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        self.read_value(at, key, false, found)
    }

    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut file = None;
        let is_there = self.read_value(at, key, true, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => found(bytes),
            StoredValue::Blob(value) => file = Some(value.with_cache(&self.keyspace.context)),
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

    /// What views pinned goes when its memtable or table is next written, at rest at the latest;
    /// here it is counted.
    fn trim(&self, views: &Views, visible: Seq) {
        self.has_released_views.store(true, Ordering::Relaxed);
        self.pinned_versions.trim(views, visible);
    }

    fn freeze(&self) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        if !state.memtables.can_freeze() {
            return;
        }
        self.memtable_blobs.iter().for_each(|staged| staged.store(0, Ordering::Relaxed));
        self.frozen_table_bytes.store(state.memtables.active.sum(TABLE_BYTES_SUM), Ordering::Relaxed);
        self.wasted_bytes.store(state.memtables.active.sum(WASTE), Ordering::Relaxed);
        let tiny = self.keyspace.context.tiny;
        self.state
            .replace(guard, |now| DelsmState { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    fn maintain(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.step(views, certain)
    }

    fn is_flushed(&self) -> bool {
        self.state(&epoch::pin()).memtables.frozen.is_none()
    }

    /// Lists of what is in memory, the same once more with what they are merged with, and what
    /// stands with them.
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
        let budget = self.keyspace.context.memory.budget();
        // After 1, 2, 4, ... times so many looks: one at rest for hours is not looked through again
        // and again.
        let (looked, looks) = (rest.saturating_add(1), self.sizes.idle_samples);
        let is_turn = looked.is_multiple_of(looks) && (looked / looks).is_power_of_two();
        self.memtable_blobs[0].load(Ordering::Relaxed) >= self.sizes.max_memtable_files
            || self.memtable_blobs[1].load(Ordering::Relaxed) >= self.sizes.max_memtable_file_bytes
            || active.bytes() > budget / MEMTABLE_BUDGET_DIVISOR
            || active.sum(WASTE) > self.most_waste()
            || (active.count() >= self.sizes.min_idle_keys && rest >= looks)
            || (!active.is_empty() && is_turn && self.is_superseding_much(state, guard).unwrap_or(false))
    }

    /// Returns the waste of both memtables in hundredths of the waste that slows writers down.
    /// Memory does not bound the journal while a memtable waits for a merge and is moved: a key
    /// that is overwritten takes no more memory.
    fn pressure_percent(&self) -> u64 {
        if self.is_flushed() {
            return 0;
        }
        let active = self.state(&epoch::pin()).memtables.active.sum(WASTE);
        let waste = self.wasted_bytes.load(Ordering::Relaxed).saturating_add(active);
        waste.saturating_mul(DUE_PRESSURE_PERCENT) / self.most_waste().max(1)
    }

    fn is_memory_high(&self) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.bytes() > self.keyspace.context.memory.budget() / MEMORY_HIGH_DIVISOR
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.save_image(out)
    }

    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        Ok(Some(Box::new(self.pin_tables()?)))
    }

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
        if record.seq <= self.work.lock().flushed_seq {
            return Ok(());
        }
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let hash = self.keyspace.hash(record.key);
        let entry = active.find(hash, record.key, guard);
        if entry.as_ref().is_some_and(|entry| entry.newest().seq >= record.seq) {
            return Ok(());
        }
        let version = MemVersion { word: VersionWord::of(&record.content, record.address), seq: record.seq };
        let place = entry.map_or(0, |entry| entry.place);
        active.put_unsorted(place, hash, record.key, version, &self.keyspace.context, guard);
        self.count_table_bytes(active, record.key, &record.content);
        self.note_waste(active, record.span, place == 0);
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

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        // In this order: what leaves the state goes to what waits to be removed.
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
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("removed keys passed", self.removed_keys_skipped.load(Ordering::Relaxed))]
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
