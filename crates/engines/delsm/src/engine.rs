//! # Engine: DeLSM as an engine of the store
//!
//! ## Threads
//!
//! Commits of different keys write the active memtable at the same time; the store holds the
//! stripes of their keys. Background work holds the lock `work`. Background work and `freeze`
//! replace the whole state. Readers pin the epoch and take no lock. Locks in order of acquisition:
//! the stripes of the store, `work` (never acquired while a stripe is held), the lock of `state`.

mod commits;
mod pressure;
mod reads;

use std::sync::Arc;

use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Capabilities, Engine, EngineCheckpoint, EngineInfo, EngineReads, EngineRecovery, EngineStats, ImageSink,
    ImageSource, Ingest, ReplayRecord,
};
use sheaf_engine::idle::IdleDetector;
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_engine::memtable::{
    Memtable, MemtableLayer, MemtableVersion as MemVersion, Memtables, VersionWord,
};
use sheaf_engine::removed_range_cache::RemovedRangeCache;
use sheaf_engine::views::{PinnedVersions, Views};
use sheaf_log::options::EngineOptions;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{Mutex, Published};

use crate::maintenance::MaintenanceState;
use crate::maintenance::ingest::DelsmIngest;
use crate::sizes::Sizes;
use crate::tree::{DelsmState, KeyspaceContext, Version};

/// Name of the engine in the catalog.
pub(crate) const NAME: &str = "delsm";
/// Index of the memtable sum: estimated bytes of its content in lists and packs.
const TABLE_BYTES_SUM: usize = 0;
/// Index of the memtable sum: wasted bytes of its records in the journal
/// ([`DelsmEngine::note_waste`]).
const WASTE: usize = 1;

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
    pub(crate) removed_ranges: RemovedRangeCache,
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
            removed_ranges: RemovedRangeCache::default(),
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
        self.memtable_blobs.iter().for_each(|blobs| blobs.store(0, Ordering::Relaxed));
        self.frozen_table_bytes.fetch_add(active.sum(TABLE_BYTES_SUM), Ordering::Relaxed);
        self.wasted_bytes.fetch_add(active.sum(WASTE), Ordering::Relaxed);
        let tiny = self.keyspace.context.tiny;
        self.state
            .replace(guard, |now| DelsmState { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    /// Returns the frozen memtables, oldest first, whose commits are all durable, up to `certain`.
    /// One flush writes all of them: level 0 gets one table instead of several, which would cause
    /// more merges, and no version that another one supersedes is written.
    pub(crate) fn memtables_to_flush(&self, certain: Seq) -> Vec<Arc<Memtable>> {
        let guard = &epoch::pin();
        let frozen = self.state(guard).memtables.all_frozen();
        frozen.iter().take_while(|memtable| memtable.newest() <= certain).cloned().collect()
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

impl EngineRecovery for DelsmEngine {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.restore_image(image)
    }

    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        self.restore_files(Seq::ZERO, damage)
    }

    fn newest_in_files(&self) -> Seq {
        self.work.lock().flushed_seq
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
