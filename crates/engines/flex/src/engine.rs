//! # Engine: FlexDB behind the `Engine` trait
//!
//! ## Threads
//!
//! Commits to different keys write the active memtable concurrently; the store holds the stripes of
//! their keys. Maintenance (`maintain`, `reclaim`, any thread) locks the interval table (`table`).
//! A flush step and `freeze` replace the state as a whole. Readers hold an epoch guard and take no
//! lock.
//!
//! The order of locks is: the store's stripes, `table`, the lock in `state`, `blobs`. A thread that
//! holds stripes must not wait for `table`, because maintenance holds `table` during I/O. The
//! exception is `image_published`. That call takes `table` only if the keyspace has no space, and
//! then maintenance does no I/O.

mod pressure;
pub(crate) mod space_account;

use std::collections::HashSet;
use std::sync::Arc;

use sheaf_engine::backup_files::PinnedFiles;
use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineCache, EngineCheckpoint, EngineCommits, EngineInfo,
    EngineOp, EnginePressure, EngineReads, EngineRecovery, EngineStats, HashedKey, ImageSink, ImageSource,
    Ingest, Preparation, Projection, ReplayRecord,
};
use sheaf_engine::idle::IdleDetector;
use sheaf_engine::range_estimate::RangeSum;
use sheaf_engine::views::{PinnedVersions, Views};
use sheaf_flexspace::FlexSpace;
use sheaf_log::blob_reader::StoredValue;
use sheaf_log::options::EngineOptions;
use sheaf_log::record::RecordContent;
use sheaf_log::types::{KeyspaceId, LogId, Seq};
use sheaf_platform::error::{Error, Result};
use sheaf_platform::memory::cache_arbiter::CacheShare;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{Mutex, Published};

use crate::engine::space_account::SpaceAccount;
use crate::flush::scan_cost::ScanCost;
use crate::image::ingest::FlexIngest;
use crate::index::io_gauge::IoGauge;
use crate::index::slots::IntervalSlots;
use crate::index::table::IntervalTable;
use crate::index::warm_up::WarmUp;
use crate::index::{EngineState, IntervalCache};
use crate::interval::block::fingerprint_of;
use crate::read::cursor::FlexCursor;
use crate::sizes::Sizes;
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_engine::memtable::removed_ranges::RemovedRanges;
use sheaf_engine::memtable::{Memtable, MemtableVersion, Memtables, VersionWord};

/// Name of the engine in the catalog.
pub(crate) const NAME: &str = "flex";
/// Removed ranges that one maintenance step measures.
const RANGES_PER_STEP: usize = 16;
/// Removed keys that a maintenance step passes in each direction to measure one range.
const MAX_MEASURED_KEYS: u64 = 4096;
/// Like [`MAX_MEASURED_KEYS`], for a thread that removes a key: it does less.
const MAX_MEASURED_KEYS_ON_REMOVE: u64 = 256;
/// Index of a memtable sum: bytes of its records in the journal.
const SUM_LOGGED: usize = 0;
/// Index of a memtable sum: the part of those bytes that belongs to the first record of each key.
const SUM_FIRST_RECORDS: usize = 1;
/// A keyspace of the FlexDB engine.
pub(crate) struct FlexEngine {
    pub(crate) id: KeyspaceId,
    pub(crate) interval_cache: IntervalCache,
    pub(crate) sizes: Sizes,
    pub(crate) table: Mutex<IntervalTable>,
    /// Blobs that a memtable or the space refers to.
    pub(crate) blobs: Mutex<HashSet<u64>>,
    /// Versions that views pin.
    pub(crate) pins: PinnedVersions,
    /// Removed ranges that scans skip.
    pub(crate) removed_ranges: RemovedRanges,
    /// Set if intervals may contain many versions that no view needs (`flush/sweep.rs`).
    pub(crate) sweep_due: AtomicBool,
    /// Bytes that sweeps gained since the last image was saved.
    pub(crate) swept_bytes: AtomicU64,
    /// Size of the index in the last image in bytes.
    pub(crate) image_bytes: AtomicU64,
    /// Bytes of the index in all images since the keyspace was opened.
    pub(crate) image_bytes_written: AtomicU64,
    pub(crate) state: Published<EngineState>,
    /// Whether the frozen memtable, if there is one, is in the space or stays in memory
    /// (`image/mod.rs`).
    frozen_flushed: AtomicBool,
    /// Bytes of the frozen memtable in the journal that are not flushed yet.
    frozen_log_bytes: AtomicU64,
    /// Waste of the frozen memtable in bytes, number of its keys, and number of keys flushed.
    frozen_progress: [AtomicU64; 3],
    /// Percentage of new keys among the keys of the last flush.
    pub(crate) new_key_percent: AtomicU64,
    /// Time that scans lost to keys of the active memtable.
    pub(crate) scan_cost: ScanCost,
    /// Approximate bytes of the space that are not superseded.
    pub(crate) live_bytes: AtomicU64,
    /// Division of the disk space, if it has a bound.
    pub(crate) space_account: SpaceAccount,
    /// Disk space that the space requires to continue, and the part of it that is already
    /// allocated.
    disk_reserve: [AtomicU64; 2],
    /// Counts the checks for a checkpoint since the newest commit.
    idle_detector: IdleDetector,
    /// Start of the idle time in milliseconds.
    idle_since_ms: AtomicU64,
}

/// Result of a lookup.
pub(crate) enum LookupResult<'a> {
    /// The version and its sequence number.
    Value(RecordContent<'a>, Seq),
    /// The key is removed or was never written.
    NotFound,
}

impl FlexEngine {
    pub(crate) fn new(context: Arc<EngineContext>, id: KeyspaceId, options: &EngineOptions) -> FlexEngine {
        let mut table = IntervalTable::new();
        let path = context.dir_of(id);
        let (tiny, sizes) = (context.tiny, Sizes::with_options(options, context.tiny, context.space_limit));
        let sizes = if context.space_bound.is_some() { sizes.bounded() } else { sizes };
        let space_account = SpaceAccount::new(context.space_bound);
        let (slots, warm_up) = (IntervalSlots::new(context.memory.budget()), WarmUp::new());
        let io_gauge = IoGauge::new(Arc::clone(&context.clock));
        let interval_cache =
            IntervalCache { slots, context, path, warm_up, io_gauge, single_reads: AtomicU64::new(0) };
        let index = table.publish(&interval_cache, &epoch::pin());
        let memtables = Memtables::new(Memtable::new(1, KeyPrefix::default(), tiny));
        let state = EngineState { memtables, index, unfreeze_count: 0 };
        FlexEngine {
            id,
            interval_cache,
            sizes,
            table: Mutex::new(table),
            blobs: Mutex::default(),
            pins: PinnedVersions::default(),
            removed_ranges: RemovedRanges::default(),
            sweep_due: AtomicBool::new(false),
            swept_bytes: AtomicU64::new(0),
            image_bytes: AtomicU64::new(0),
            image_bytes_written: AtomicU64::new(0),
            state: Published::new(state),
            frozen_flushed: AtomicBool::new(true),
            frozen_log_bytes: Default::default(),
            frozen_progress: Default::default(),
            new_key_percent: AtomicU64::new(0),
            scan_cost: ScanCost::default(),
            live_bytes: AtomicU64::new(0),
            space_account,
            disk_reserve: Default::default(),
            idle_detector: IdleDetector::default(),
            idle_since_ms: AtomicU64::new(0),
        }
    }

    /// Returns the current state.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g EngineState {
        self.state.load(guard)
    }

    pub(crate) fn is_frozen_flushed(&self) -> bool {
        self.frozen_flushed.load(Ordering::Acquire)
    }

    pub(crate) fn mark_frozen_flushed(&self) {
        self.frozen_log_bytes.store(0, Ordering::Relaxed);
        self.frozen_flushed.store(true, Ordering::Release);
    }

    /// Returns the disk space that a flush of all logged data requires beyond the allocated space.
    pub(crate) fn flush_disk_bytes(&self) -> u64 {
        let logged = self.log_bytes_needed();
        let [needs, has] = self.disk_reserve.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        if needs == 0 && logged <= self.sizes.max_in_memory_bytes {
            return 2 * logged; // size of an image
        }
        // A pair takes about as many bytes in the space as in the journal, plus checksums.
        needs.max(self.sizes.min_space).saturating_add(logged + logged / 16).saturating_sub(has)
    }

    /// Returns a sum of the active memtable.
    fn memtable_sum(&self, sum: usize) -> u64 {
        self.state(&epoch::pin()).memtables.active.sum(sum)
    }

    /// Records that `keys` keys with `bytes` bytes of keys and values were flushed.
    pub(crate) fn record_flushed(&self, keys: u64, bytes: u64) {
        self.frozen_progress[2].fetch_add(keys, Ordering::Relaxed);
        let less = |logged: u64| Some(logged.saturating_sub(bytes));
        let _ = self.frozen_log_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Records how much disk space the space requires.
    pub(crate) fn record_disk_reserve(&self, table: &IntervalTable) {
        let (needs, has) = table.space.as_ref().map_or((0, 0), FlexSpace::disk_reserve);
        self.disk_reserve[0].store(needs, Ordering::Relaxed);
        self.disk_reserve[1].store(has, Ordering::Relaxed);
        if let Some(space) = &table.space {
            let live = self.live_bytes.load(Ordering::Relaxed);
            let images = 2 * self.image_bytes.load(Ordering::Relaxed);
            self.space_account.divide(space, live, images, self.sizes.min_waste);
        }
    }

    /// Calls `with` with the version of `key` that a view at `at` shows. In the newest state it
    /// first waits until the commit of a memtable entry is visible.
    #[inline]
    pub(crate) fn lookup<R>(
        &self,
        at: Seq,
        key: &[u8],
        guard: &Guard,
        with: impl FnOnce(LookupResult<'_>) -> Result<R>,
    ) -> Result<R> {
        self.lookup_hashed((at, key, self.interval_cache.hash(key)), at == Seq::LATEST, guard, with)
    }

    #[inline]
    fn lookup_hashed<R>(
        &self,
        (at, key, hash): (Seq, &[u8], u64),
        is_revealed: bool,
        guard: &Guard,
        with: impl FnOnce(LookupResult<'_>) -> Result<R>,
    ) -> Result<R> {
        let state = self.state(guard);
        let found = match is_revealed {
            true => state.memtables.find_visible(hash, key, &self.interval_cache.context, guard)?,
            false => state.memtables.find(hash, key, at, guard),
        };
        if let Some((memtable, version)) = found {
            if version.word.is_tombstone() {
                return with(LookupResult::NotFound);
            }
            return memtable.content(version.word, &self.interval_cache.context, guard, |content| {
                with(LookupResult::Value(content, version.seq))
            });
        }
        let Some(entry) = state.index.find(key) else { return with(LookupResult::NotFound) };
        state.index.find_in_interval(
            &entry,
            &self.interval_cache,
            (fingerprint_of(hash), key, at),
            guard,
            |pair| match pair {
                Some(pair) if !pair.is_tombstone() => with(LookupResult::Value(pair.content, pair.seq)),
                _ => with(LookupResult::NotFound),
            },
        )
    }

    /// Passes the value of `key`, whose hash is `hash`, at `at` to `found`, with the seq of its
    /// version.
    fn get_hashed(
        &self,
        at: Seq,
        (key, hash): (&[u8], u64),
        found: &mut impl FnMut(Seq, StoredValue<'_>),
    ) -> Result<bool> {
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let outcome =
                self.lookup_hashed((at, key, hash), at == Seq::LATEST, guard, |what| match what {
                    LookupResult::NotFound => Ok(Some(None)),
                    LookupResult::Value(RecordContent::Put(value), seq) => {
                        found(seq, StoredValue::Bytes(value));
                        Ok(None)
                    }
                    LookupResult::Value(RecordContent::Blob(blob), seq) => Ok(Some(Some((blob, seq)))),
                    LookupResult::Value(RecordContent::Remove | RecordContent::RemoveRange(_), _) => {
                        Ok(Some(None))
                    }
                })?;
            let (blob, seq) = match outcome {
                None => return Ok(true),
                Some(None) => return Ok(false),
                Some(Some(blob)) => blob,
            };
            // A blob may be freed once its version is superseded: look the key up again.
            let blobs = &self.interval_cache.context.blobs;
            if blobs.read_stored(&blob, &mut missing, &mut |stored| found(seq, stored))? {
                return Ok(true);
            }
        }
    }

    /// Returns the seq of the key's newest version, or zero if there is none. The version may
    /// not be visible yet.
    fn newest_seq(&self, key: &[u8], guard: &Guard) -> Result<Seq> {
        let hash = self.interval_cache.hash(key);
        self.lookup_hashed((Seq::LATEST, key, hash), false, guard, |found| {
            Ok(match found {
                LookupResult::Value(_, seq) => seq,
                LookupResult::NotFound => Seq::ZERO,
            })
        })
    }

    /// Applies the removal of a range. The caller has exclusive access.
    fn remove_range(&self, seq: Seq, op: &EngineOp<'_>, end: Option<&[u8]>, views: &Views) {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        self.pins.update(views);
        self.pins.note_superseded(Seq(1), seq, views); // one for all versions in the range
        add_logged(active, op.span, true);
        active.remove_range(op.key, end, seq, views, &self.interval_cache.context, guard);
        self.removed_ranges.note_range(seq, op.key, end);
    }

    /// Whether the record of `op` would exceed the budget even with all caches evicted. Includes
    /// the room that the memtables will take in the index.
    fn is_over_budget(&self, op: &EngineOp<'_>, state: &EngineState) -> bool {
        !self
            .interval_cache
            .context
            .memory
            .has_room_without_caches(state.memtables.bytes_needed(op, self.sizes.index_bytes_per_pair))
    }
}

/// Counts a journal record of `span` bytes. `is_first` tells whether it is the first one of its key
/// in the memtable.
fn add_logged(active: &Memtable, span: u32, is_first: bool) {
    active.add_to_sum(SUM_LOGGED, u64::from(span));
    if is_first {
        active.add_to_sum(SUM_FIRST_RECORDS, u64::from(span));
    }
}

impl EngineInfo for FlexEngine {
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

impl EngineReads for FlexEngine {
    #[inline]
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { key, hash: self.interval_cache.hash(key) }
    }

    #[inline]
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        self.get_hashed(at, (key, self.interval_cache.hash(key)), &mut |_, stored| found(stored))
    }

    fn get_version(
        &self,
        at: Seq,
        HashedKey { key, hash }: HashedKey<'_>,
        found: &mut dyn FnMut(Option<Seq>, StoredValue<'_>),
    ) -> Result<bool> {
        self.get_hashed(at, (key, hash), &mut |seq, stored| found(Some(seq), stored))
    }

    fn knows_versions(&self) -> bool {
        true
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        self.lookup(at, key, guard, |found| Ok(matches!(found, LookupResult::Value(..))))
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            state.memtables.prefetch(key.hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(FlexCursor::new(self, at, bounds, projection)))
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

impl EngineCommits for FlexEngine {
    fn removes_ranges(&self) -> bool {
        true
    }

    fn prepare(&self, op: &mut EngineOp<'_>) -> Result<Preparation> {
        if matches!(op.action, Action::Remove) {
            self.measure_removed_ranges(1, MAX_MEASURED_KEYS_ON_REMOVE);
        }
        let guard = &epoch::pin();
        let hash = op.hash.unwrap_or_else(|| self.interval_cache.hash(op.key));
        let state = self.state(guard);
        state.memtables.active.prepare(
            op,
            hash,
            (&self.interval_cache.context, guard),
            &self.pins,
            (|op: &EngineOp<'_>| self.is_over_budget(op, state), || self.is_memory_high()),
            |key| self.newest_seq(key, guard),
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
        if let RecordContent::RemoveRange(end) = content {
            return self.remove_range(seq, op, end, views);
        }
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let version = MemtableVersion { word: VersionWord::of(&content, op.address), seq };
        if let RecordContent::Blob(blob) = content {
            self.blobs.lock().insert(blob.id);
        }
        active.note_superseded(op, seq, views, &self.pins);
        let is_tomb = matches!(content, RecordContent::Remove);
        if is_tomb {
            self.removed_ranges.note_removal(seq, op.key);
        }
        let place = Memtable::place_of(op);
        add_logged(active, op.span, place.record == 0);
        let is_kept = active.put(place, op.key, version, views, &self.interval_cache.context, guard);
        if !is_tomb {
            self.removed_ranges.put(op.key);
        }
        if let Some(id) = Memtable::replaced_blob(op).filter(|_| !is_kept) {
            self.blobs.lock().remove(&id);
            self.interval_cache.context.retire_blob(seq, id);
        }
    }

    /// Only counts the released versions. A version is dropped when its interval is rewritten or
    /// its memtable is flushed.
    fn trim(&self, views: &Views, visible: Seq) {
        let pinned = self.pins.count();
        self.pins.trim(views, visible);
        if self.pins.count() < pinned {
            self.sweep_due.store(true, Ordering::Relaxed);
        }
    }
}

impl EngineCheckpoint for FlexEngine {
    fn freeze(&self) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        if !state.memtables.can_freeze() {
            return;
        }
        let about = [self.wasted_log_bytes(), state.memtables.active.count(), 0];
        self.frozen_progress.iter().zip(about).for_each(|(known, now)| known.store(now, Ordering::Relaxed));
        self.frozen_log_bytes.fetch_add(state.memtables.active.sum(SUM_LOGGED), Ordering::Relaxed);
        self.scan_cost.restart();
        self.frozen_flushed.store(false, Ordering::Release);
        let tiny = self.interval_cache.context.tiny;
        self.state.replace(guard, |now| EngineState {
            memtables: now.memtables.freeze(tiny, guard),
            ..now.clone()
        });
    }

    fn maintain(&self, views: &Views, durable_seq: Seq) -> Result<bool> {
        self.measure_removed_ranges(RANGES_PER_STEP, MAX_MEASURED_KEYS);
        self.flush_step(views, durable_seq)
    }

    fn reclaim(&self, views: &Views, _durable_seq: Seq) -> Result<bool> {
        self.sweep(views)
    }

    fn is_flushed(&self) -> bool {
        self.is_frozen_flushed()
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.save_image(out)
    }

    fn image_published(&self) {
        self.unfreeze_retained();
    }

    fn pin_files(self: Arc<Self>) -> Result<Option<Box<dyn PinnedFiles>>> {
        let table = self.table.lock();
        let Some(space) = &table.space else { return Ok(None) };
        Ok(Some(Box::new(space.pin_files()?)))
    }
}

impl EngineRecovery for FlexEngine {
    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.restore_image(image)
    }

    fn restore_without_image(&self, damage: Option<Error>) -> Result<()> {
        self.restore_from_space(damage)
    }

    fn newest_in_files(&self) -> Seq {
        self.table.lock().newest_rebuilt
    }

    fn restore_partial(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        self.restore_partial_space(skipped)
    }

    fn replay(&self, record: &ReplayRecord<'_>) -> Result<()> {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        if let RecordContent::RemoveRange(end) = record.content {
            let views = &Views::default(); // there are none yet
            add_logged(active, record.span, true);
            active.remove_range(record.key, end, record.seq, views, &self.interval_cache.context, guard);
            return Ok(());
        }
        let hash = self.interval_cache.hash(record.key);
        let entry = active.find(hash, record.key, guard);
        add_logged(active, record.span, entry.is_none());
        if entry.as_ref().is_some_and(|entry| entry.newest().seq >= record.seq) {
            return Ok(());
        }
        if let Some(word) = entry.as_ref().map(|entry| entry.newest().word).filter(|word| word.is_blob()) {
            active.content(word, &self.interval_cache.context, guard, |content| {
                if let RecordContent::Blob(blob) = content {
                    self.blobs.lock().remove(&blob.id);
                }
                Ok(())
            })?;
        }
        if let RecordContent::Blob(blob) = record.content {
            self.blobs.lock().insert(blob.id);
        }
        let version =
            MemtableVersion { word: VersionWord::of(&record.content, record.address), seq: record.seq };
        let place = entry.map_or(0, |entry| entry.place);
        active.put_unsorted(place, hash, record.key, version, &self.interval_cache.context, guard);
        Ok(())
    }

    fn finish_replay(&self, part: usize, parts: usize) -> Result<()> {
        self.state(&epoch::pin()).memtables.active.sort_part(part, parts);
        Ok(())
    }

    fn replay_finished(&self) {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.finish_sort(&self.interval_cache.context, guard);
    }
}

impl EngineCache for FlexEngine {
    fn cache_share(&self) -> &CacheShare {
        &self.interval_cache.slots.cache_share
    }

    fn evict(&self, bytes: u64) {
        self.interval_cache.slots.evict(bytes, &self.interval_cache.context, &epoch::pin());
    }
}

impl Engine for FlexEngine {
    fn cache(&self) -> Option<&dyn EngineCache> {
        Some(self)
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        out.extend(self.blobs.lock().iter().copied());
        Ok(())
    }

    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let has_home = self.interval_cache.context.engine_dir.is_some();
        Ok(has_home.then(|| Box::new(FlexIngest::new(self, seq)) as Box<dyn Ingest>))
    }

    fn stats(&self) -> EngineStats {
        let guard = epoch::pin();
        let memtables = self.state(&guard).memtables.bytes();
        drop(guard); // must not be pinned while all keys are counted
        EngineStats {
            keys: self.count_keys(u64::MAX).unwrap_or(0),
            index_bytes: memtables + self.table.lock().index_bytes(&self.interval_cache),
            pinned_versions: self.pins.count(),
            ..EngineStats::default()
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let table = self.table.lock();
        let mut counters = table.counts.named();
        let stats = table.space.as_ref().map(FlexSpace::stats).unwrap_or_default();
        counters.push(("live bytes of the space", stats.live_bytes));
        counters.push(("bytes moved by GC", stats.moved_bytes));
        counters.push(("bytes of images", self.image_bytes_written.load(Ordering::Relaxed)));
        counters.push(("checkpoints of the space", stats.checkpoints));
        counters.push(("intervals warmed", self.interval_cache.warm_up.warmed()));
        counters.push((
            "reads avoided by fingerprints",
            self.interval_cache.single_reads.load(Ordering::Relaxed),
        ));
        counters
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let verification = self.table.lock().space.as_ref().map(FlexSpace::verification);
        verification.map_or(Ok(()), |verification| verification.run(report, step))
    }

    fn drop_data(&self) {
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        self.interval_cache.slots.clear(&self.interval_cache.context, guard);
        self.pins.clear();
        self.removed_ranges.clear();
        self.state(guard).memtables.uncount_memory(&self.interval_cache.context.memory);
        drop(table.space.take());
        table.value_prefetch.free_memory(&self.interval_cache.context);
        table.reset();
        let index = table.publish(&self.interval_cache, guard);
        let tiny = self.interval_cache.context.tiny;
        self.state.replace(guard, |now| EngineState {
            memtables: now.memtables.cleared(tiny, guard),
            index,
            ..now.clone()
        });
        self.mark_frozen_flushed();
        self.interval_cache.context.remove_dir_of(self.id);
    }

    fn close(&self) -> Result<()> {
        let space = self.table.lock().space.take();
        space.map_or(Ok(()), |space| space.close())
    }
}
