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

use sheaf_base::blob::BlobRef;
use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineStats, ImageSink, ImageSource, Ingest, Need, Op,
    Replay, Want, Wanted,
};
use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::lull::Lull;
use sheaf_base::memtable::prefix::Prefix;
use sheaf_base::memtable::{Layer, Memtable, Memtables, Version as MemVersion, Word};
use sheaf_base::options::EngineOptions;
use sheaf_base::own::OwnFiles;
use sheaf_base::record::Content;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::sync::{Mutex, Published};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::value::Stored;
use sheaf_base::views::{Pins, Views};

use crate::cursor::DelsmCursor;
use crate::dead::DeadRanges;
use crate::ingest::DelsmIngest;
use crate::list::What;
use crate::sizes::Sizes;
use crate::tree::{Shelf, State, Table, Version};
use crate::work::Work;

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "delsm";
/// A memtable may take this part of the budget.
const MEMTABLE_SHARE: u64 = 6;
/// Sum of a memtable: bytes that it will take in lists and packs, about.
const LOGGED: usize = 0;
/// Sum of a memtable: bytes that its records waste in the journal; see [`DelsmEngine::note_waste`].
const WASTE: usize = 1;
/// Hundredths of the live data that the journal may waste before a memtable is moved.
const WASTE_SHARE: u64 = 50;
/// The pressure, in hundredths, of as much waste as makes a memtable due: writers are slowed down
/// from one and a half times that on.
const PACE: u64 = 69;
/// Bytes of a list's entry beside its key, at most, and its share of what stands in the foot.
const LISTED: usize = 40;
/// Removals between two that look around themselves while that is worth it.
const SOON: u64 = 4;
/// With the budget used up, memtables that take this part of it are moved before anything is refused.
const SWOLLEN_SHARE: u64 = 8;

/// A keyspace.
pub(crate) struct DelsmEngine {
    pub(crate) id: KeyspaceId,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) sizes: Sizes,
    pub(crate) work: Mutex<Work>,
    state: Published<State>,
    /// Staged values in the active memtable, about, and their bytes.
    staged: [AtomicU64; 2],
    /// Bytes that the frozen memtable will take in lists and packs, about.
    logged: AtomicU64,
    /// Bytes of all lists: a merge may have to write them once more.
    listed: AtomicU64,
    /// Bytes that the frozen memtable wastes in the journal.
    wasted: AtomicU64,
    /// Bytes of values that live in tables, about.
    live: AtomicU64,
    /// Of the keys that were flushed last, so many of a hundred were in no table.
    pub(crate) fresh: AtomicU64,
    /// Versions that views pin.
    pins: Pins,
    /// As the store sees it when it asks whether there should be a checkpoint.
    lull: Lull,
    /// Stretches of removed keys that readers skip.
    pub(crate) dead: DeadRanges,
    /// Removals since one looked around itself, and after how many the next one does.
    removed: [AtomicU64; 2],
    /// Removed keys that readers passed.
    pub(crate) passed: AtomicU64,
    /// Views were released since somebody last looked.
    pub(crate) released: AtomicBool,
    /// Staged values of tables that are not published yet: see `ingest.rs`.
    pub(crate) ingested: Mutex<Vec<u64>>,
}

/// What a look-up found.
pub(crate) enum Found<'a> {
    /// In a memtable.
    Memory(Content<'a>),
    /// In a table.
    Table(&'a Arc<Table>, What),
    /// It is removed, or was never there.
    Nothing,
}

impl DelsmEngine {
    pub(crate) fn new(ground: Arc<Ground>, id: KeyspaceId, options: &EngineOptions) -> DelsmEngine {
        let path = ground.dir_of(id);
        let (tiny, sizes) = (ground.tiny, Sizes::chosen(options, ground.tiny));
        let state = State {
            memtables: Memtables::new(Memtable::new(1, Prefix::default(), tiny)),
            version: Arc::default(),
        };
        DelsmEngine {
            id,
            shelf: Arc::new(Shelf::new(ground, id, path)),
            sizes,
            work: Mutex::default(),
            state: Published::new(state),
            staged: Default::default(),
            logged: Default::default(),
            listed: AtomicU64::new(0),
            wasted: AtomicU64::new(0),
            live: AtomicU64::new(0),
            fresh: AtomicU64::new(100),
            pins: Pins::default(),
            lull: Lull::default(),
            dead: DeadRanges::default(),
            removed: [AtomicU64::new(0), AtomicU64::new(sizes.removals)],
            passed: AtomicU64::new(0),
            released: AtomicBool::new(false),
            ingested: Mutex::default(),
        }
    }

    /// The present moment.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g State {
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
            frozen.gone(&self.shelf.ground.memory);
            self.logged.store(0, Ordering::Relaxed);
            self.wasted.store(0, Ordering::Relaxed);
        }
        let listed = version.tables().map(|table| table.list.bytes()).sum();
        self.listed.store(listed, Ordering::Relaxed);
        self.live.store(version.largest_level(), Ordering::Relaxed);
        self.state.replace(guard, |now| State {
            memtables: now.memtables.left(is_flushed),
            version: Arc::new(version),
        });
    }

    /// Calls `with` with what `key` is at `at` in `state`. What a table says is to be understood by the same state: a later one may have
    /// other tables, and an earlier one lacks the pack that is named.
    #[inline]
    fn look_up<R>(
        &self,
        state: &State,
        (at, key): (Seq, &[u8]),
        guard: &Guard,
        with: impl FnOnce(Found<'_>) -> Result<R>,
    ) -> Result<R> {
        let hash = self.shelf.hash(key);
        if let Some((memtable, version)) = state.memtables.find(hash, key, at, guard) {
            if at == Seq::LATEST {
                self.shelf.ground.reveal(version.seq)?;
            }
            if version.word.is_tomb() {
                return with(Found::Nothing);
            }
            return memtable
                .content(version.word, &self.shelf.ground, guard, |content| with(Found::Memory(content)));
        }
        match state.version.find(hash, key, at)? {
            None | Some((_, _, What::Gone)) => with(Found::Nothing),
            Some((table, _, what)) => with(Found::Table(table, what)),
        }
    }

    /// The number of the version of `key` that a view at `at` shows. No value is read for it, in a file, a pack or the journal: the
    /// memtable's word or the key list says it. If `is_revealed`, the commit of an
    /// entry of a memtable is revealed before the entry counts.
    fn seen(&self, at: Seq, key: &[u8], is_revealed: bool, guard: &Guard) -> Result<Option<Seq>> {
        let (state, hash) = (self.state(guard), self.shelf.hash(key));
        if let Some((_, version)) = state.memtables.find(hash, key, at, guard) {
            if is_revealed {
                self.shelf.ground.reveal(version.seq)?;
            }
            return Ok((!version.word.is_tomb()).then_some(version.seq));
        }
        let found = state.version.find(hash, key, at)?;
        Ok(found.and_then(|(_, seq, what)| (what != What::Gone).then_some(seq)))
    }

    /// Whether the record of `op` would be beyond the budget, with all that can give way gone, and with room for what
    /// the memtables will take in the index.
    fn is_over(&self, op: &Op<'_>, state: &State) -> bool {
        let more = state.memtables.more_with(op, self.sizes.indexed);
        let memory = &self.shelf.ground.memory;
        self.shelf.ground.values.give_way(more, memory);
        !memory.has_room_at_last(more)
    }

    /// Hands what `key` is at `at` to `found`; with `from_cache`, bytes that were read from a file before in place of the file.
    fn seek(&self, at: Seq, key: &[u8], from_cache: bool, found: &mut dyn FnMut(Stored<'_>)) -> Result<bool> {
        let cached = |blob: &BlobRef, found: &mut dyn FnMut(Stored<'_>)| {
            let bytes = if from_cache { self.shelf.ground.values.get(blob.id) } else { None };
            bytes.inspect(|bytes| found(Stored::Bytes(bytes))).is_some()
        };
        let mut missed = None;
        loop {
            let guard = &epoch::pin();
            let state = self.state(guard);
            // None: the file that was named is not there, and which it was.
            let answer = self.look_up(state, (at, key), guard, |what| match what {
                Found::Nothing => Ok(Ok(false)),
                Found::Memory(Content::Put(value)) => {
                    found(Stored::Bytes(value));
                    Ok(Ok(true))
                }
                Found::Memory(Content::Staged(blob)) if cached(&blob, found) => Ok(Ok(true)),
                Found::Memory(Content::Staged(blob)) => match self.shelf.ground.blobs.find(&blob)? {
                    Some(file) => {
                        found(Stored::File(file));
                        Ok(Ok(true))
                    }
                    None => Ok(Err((0, blob.id, self.shelf.ground.blobs.missing(&blob)))),
                },
                Found::Memory(Content::Remove) | Found::Table(_, What::Gone) => Ok(Ok(false)),
                Found::Table(_, What::Packed { pack, offset, len, sum }) => {
                    let Some(pack) = state.version.packs.get(&pack) else {
                        return Err(crate::check::no_such_pack(&self.shelf, pack));
                    };
                    pack.read(offset, len, sum, |value| found(Stored::Bytes(value)))?;
                    Ok(Ok(true))
                }
                Found::Table(_, What::File { blob, .. }) if cached(&blob, found) => Ok(Ok(true)),
                Found::Table(table, What::File { blob, home }) => match table.file(key, &blob, home)? {
                    Some(file) => {
                        found(Stored::File(file));
                        Ok(Ok(true))
                    }
                    None => Ok(Err((table.list.number() + 1, blob.id, table.missing(key, &blob)))),
                },
            })?;
            // A file moves on, or goes after what named it was superseded: missed twice in one place, it is lost.
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
    fn look_around_if_due(&self, key: &[u8]) {
        let [removed, due] = &self.removed;
        if removed.load(Ordering::Relaxed) < due.load(Ordering::Relaxed) {
            return;
        }
        removed.store(0, Ordering::Relaxed);
        let is_worth_it = self.look_around(key) >= 2 * self.sizes.dead as u64;
        let later = (2 * due.load(Ordering::Relaxed)).min(self.sizes.removals);
        due.store(if is_worth_it { SOON.min(later) } else { later }, Ordering::Relaxed);
    }

    /// What a record will take in a list, and its value in a pack; or that it is staged.
    fn note_logged(&self, active: &Memtable, key: &[u8], content: &Content<'_>) {
        if let Content::Staged(blob) = content {
            self.staged[0].fetch_add(1, Ordering::Relaxed);
            self.staged[1].fetch_add(u64::from(blob.len), Ordering::Relaxed);
        }
        let packed = if let Content::Put(value) = content { value.len() } else { 0 };
        let bytes = key.len() + packed + LISTED;
        active.add_to_sum(LOGGED, bytes as u64);
    }

    /// Notes the bytes of a record in the journal that a flush makes superfluous and that say
    /// nothing that tables do not say: those of a key that the memtable has already, and of others
    /// the part that tables have.
    fn note_waste(&self, active: &Memtable, span: u32, is_first: bool) {
        let fresh = if is_first { self.fresh.load(Ordering::Relaxed).min(100) } else { 0 };
        active.add_to_sum(WASTE, u64::from(span) * (100 - fresh) / 100);
    }

    /// Returns the waste of the journal that makes a memtable due.
    fn most_waste(&self) -> u64 {
        (self.live.load(Ordering::Relaxed) / 100 * WASTE_SHARE).max(self.sizes.least_waste)
    }

    /// Values that stand among the staged ones: in memtables, or named by tables that are not settled.
    pub(crate) fn staged_blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for memtable in state.memtables.iter() {
            let mut places = Vec::new();
            memtable.ascend(std::ops::Bound::Unbounded, usize::MAX, guard, &mut places);
            for place in places {
                for version in memtable.entry(place).versions().filter(|version| version.word.is_staged()) {
                    out.extend(self.staged_id(memtable, version, guard)?);
                }
            }
        }
        for table in state.version.tables().filter(|table| !table.is_settled()) {
            out.extend(crate::open::staged_of(table)?);
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

    fn stages_above(&self) -> usize {
        self.sizes.packed
    }

    fn adopts_files(&self) -> bool {
        true
    }

    fn prepare(&self, op: &mut Op<'_>) -> Result<Need> {
        if matches!(op.action, Action::Remove) && op.ahead == 0 {
            self.look_around_if_due(op.key);
        }
        let guard = &epoch::pin();
        let hash = self.shelf.hash(op.key);
        let state = self.state(guard);
        state.memtables.active.prepare(
            op,
            hash,
            (&self.shelf.ground, guard),
            &self.pins,
            (|op: &Op<'_>| self.is_over(op, state), || self.is_swollen()),
            |key| Ok(self.seen(Seq::LATEST, key, false, guard)?.unwrap_or(Seq::ZERO)),
        )
    }

    fn is_current(&self, op: &Op<'_>) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.is_current(op, guard)
    }

    fn apply(&self, seq: Seq, op: &Op<'_>, views: &Views) {
        let Some(content) = op.action.content() else { return };
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let version = MemVersion { word: Word::of(&content, op.address), seq };
        active.note_superseded(op, seq, views, &self.pins);
        let (record, hash) = (Memtable::record_of(op), Memtable::hash_of(op));
        let is_kept = active.put(record, hash, op.key, version, views, &self.shelf.ground, guard);
        self.note_logged(active, op.key, &content);
        self.note_waste(active, op.span, record == 0);
        match content {
            Content::Remove => drop(self.removed[0].fetch_add(1, Ordering::Relaxed)),
            _ => self.dead.put(op.key),
        }
        if let Some(id) = Memtable::replaced_blob(op).filter(|_| !is_kept) {
            self.shelf.ground.blob_died(seq, id);
        }
    }

    fn look(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Stored<'_>)) -> Result<bool> {
        self.seek(at, key, false, found)
    }

    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut file = None;
        let is_there = self.seek(at, key, true, &mut |stored| match stored {
            Stored::Bytes(bytes) => found(bytes),
            Stored::File(value) => file = Some(value.cached(&self.shelf.ground)),
        })?;
        if let Some(file) = file {
            file.read(found)?;
        }
        Ok(is_there)
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        Ok(self.seen(at, key, at == Seq::LATEST, &epoch::pin())?.is_some())
    }

    fn prefetch(&self, keys: &[Wanted<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            let hash = self.shelf.hash(key.key);
            state.memtables.prefetch(hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(DelsmCursor::new(self, at, bounds, want)))
    }

    fn len(&self) -> Result<u64> {
        self.count_keys(u64::MAX)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.count_keys(1)? == 0)
    }

    /// What views pinned goes when its memtable or table is next written, at rest at the latest; here it is counted.
    fn trim(&self, views: &Views, visible: Seq) {
        self.released.store(true, Ordering::Relaxed);
        self.pins.trim(views, visible);
    }

    fn freeze(&self) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        if !state.memtables.can_freeze() {
            return;
        }
        self.staged.iter().for_each(|staged| staged.store(0, Ordering::Relaxed));
        self.logged.store(state.memtables.active.sum(LOGGED), Ordering::Relaxed);
        self.wasted.store(state.memtables.active.sum(WASTE), Ordering::Relaxed);
        let tiny = self.shelf.ground.tiny;
        self.state
            .replace(guard, |now| State { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    fn work(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.step(views, certain)
    }

    fn is_settled(&self) -> bool {
        self.state(&epoch::pin()).memtables.frozen.is_none()
    }

    /// Lists of what is in memory, the same once more with what they are merged with, and what stands with them.
    fn room_to_settle(&self) -> Option<u64> {
        let logged = self.logged();
        let lists = logged + self.listed.load(Ordering::Relaxed);
        Some(if lists == 0 { 0 } else { logged + 2 * lists + self.sizes.least_room })
    }

    fn logged(&self) -> u64 {
        self.logged.load(Ordering::Relaxed) + self.state(&epoch::pin()).memtables.active.sum(LOGGED)
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = &state.memtables.active;
        let rest = self.lull.look(active.newest());
        let budget = self.shelf.ground.memory.budget();
        // After 1, 2, 4, ... times so many looks: one at rest for hours is not looked through again and again.
        let (looked, looks) = (rest.saturating_add(1), self.sizes.looks);
        let is_turn = looked.is_multiple_of(looks) && (looked / looks).is_power_of_two();
        self.staged[0].load(Ordering::Relaxed) >= self.sizes.files
            || self.staged[1].load(Ordering::Relaxed) >= self.sizes.file_bytes
            || active.bytes() > budget / MEMTABLE_SHARE
            || active.sum(WASTE) > self.most_waste()
            || (active.count() >= self.sizes.resting && rest >= looks)
            || (!active.is_empty() && is_turn && self.hides_much(state, guard).unwrap_or(false))
    }

    /// Returns the waste of both memtables in hundredths of that which slows writers down. What
    /// gathers while a memtable waits for a merge, and is moved, is not bounded by memory: a key
    /// that is overwritten takes no more of it.
    fn pressure(&self) -> u64 {
        if self.is_settled() {
            return 0;
        }
        let active = self.state(&epoch::pin()).memtables.active.sum(WASTE);
        let waste = self.wasted.load(Ordering::Relaxed).saturating_add(active);
        waste.saturating_mul(PACE) / self.most_waste().max(1)
    }

    fn is_swollen(&self) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.bytes() > self.shelf.ground.memory.budget() / SWOLLEN_SHARE
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.save_image(out)
    }

    fn still(self: Arc<Self>) -> Result<Option<Box<dyn OwnFiles>>> {
        Ok(Some(Box::new(self.hold()?)))
    }

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.restore_image(image)
    }

    fn restore_without(&self, damage: Option<Error>) -> Result<()> {
        self.restore_files(Seq::ZERO, damage)
    }

    fn restore_rest(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        self.restore_readable(skipped)
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        if record.seq <= self.work.lock().up_to {
            return Ok(());
        }
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let hash = self.shelf.hash(record.key);
        let entry = active.find(hash, record.key, guard);
        if entry.as_ref().is_some_and(|entry| entry.newest().seq >= record.seq) {
            return Ok(());
        }
        let version = MemVersion { word: Word::of(&record.content, record.address), seq: record.seq };
        let place = entry.map_or(0, |entry| entry.place);
        active.load(place, hash, record.key, version, &self.shelf.ground, guard);
        self.note_logged(active, record.key, &record.content);
        self.note_waste(active, record.span, place == 0);
        Ok(())
    }

    fn absorb(&self, part: usize, parts: usize) -> Result<()> {
        self.state(&epoch::pin()).memtables.active.sort_share(part, parts);
        Ok(())
    }

    fn replayed(&self) {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.settle(&self.shelf.ground, guard);
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        // In this order: what leaves the state goes to what waits to be removed.
        let named = self.staged_blobs(out);
        out.extend(self.ingested.lock().iter().copied());
        out.extend(self.work.lock().adopted());
        named
    }

    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let has_home = self.shelf.ground.home.is_some();
        Ok(has_home.then(|| Box::new(DelsmIngest::new(self, seq)) as Box<dyn Ingest>))
    }

    fn stats(&self) -> EngineStats {
        let guard = epoch::pin();
        let state = self.state(&guard);
        let memtables = state.memtables.bytes();
        let lists: u64 = state.version.tables().map(|table| table.list.memory()).sum();
        drop(guard); // not held while all keys are counted
        EngineStats {
            keys: self.count_keys(u64::MAX).unwrap_or(0),
            index_bytes: memtables + lists,
            pinned_versions: self.pins.count(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("removed keys passed", self.passed.load(Ordering::Relaxed))]
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.check(report, step)
    }

    fn retire(&self) {
        let mut work = self.work.lock();
        let guard = &epoch::pin();
        self.state(guard).memtables.gone(&self.shelf.ground.memory);
        self.pins.clear();
        self.dead.clear();
        *work = Work::default();
        [&self.logged, &self.listed, &self.wasted, &self.live]
            .iter()
            .for_each(|bytes| bytes.store(0, Ordering::Relaxed));
        let tiny = self.shelf.ground.tiny;
        self.state.replace(guard, |now| State {
            memtables: now.memtables.emptied(tiny, guard),
            version: Arc::default(),
        });
        self.shelf.ground.remove_dir_of(self.id);
    }
}
