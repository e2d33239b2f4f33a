//! # The engine: FlexDB under the contract
//!
//! ## Threads
//!
//! Commits come under the commit lock and write the active memtable. The committer (`work`, any thread) takes the
//! table's lock. Both change the state by a swap, under `publishing`. Readers pin the epoch and take no lock. Locks in
//! order: the store's commit lock, `table` (never waited for under the commit lock but by `saved`, when the committer has
//! nothing to do), `publishing`, `blobs`.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineStats, ImageSink, ImageSource, Need, Op, Replay, Want,
};
use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::record::Content;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::value::Stored;
use sheaf_base::views::Views;
use sheaf_flexspace::FlexSpace;

use crate::block::print_of;
use crate::commit::Sizes;
use crate::cursor::FlexCursor;
use crate::index::{Shelf, State};
use crate::slots::Slots;
use crate::table::Table;
use sheaf_base::memtable::prefix::Prefix;
use sheaf_base::memtable::{Memtable, Version, Word};

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "flex";
/// A memtable may take this part of the budget.
const MEMTABLE_SHARE: u64 = 6;
/// With the budget used up, memtables that take this part of it are moved before anything is refused.
const SWOLLEN_SHARE: u64 = 8;
/// A memtable is moved after so many bytes of the journal: the longer it gathers, the fewer times an interval is written
/// for its changes (0.30 keys an update of a Zipf load after 1 M updates, 0.20 after 4 M), and the longer a replay.
const ROTATION: u64 = 512 << 20;
/// Times that the store, which looks every 50 ms when it is idle, finds a memtable as it was, before that is moved.
const REST: u32 = 8;

/// A keyspace.
pub(crate) struct FlexEngine {
    pub(crate) id: KeyspaceId,
    pub(crate) shelf: Shelf,
    pub(crate) sizes: Sizes,
    pub(crate) table: Mutex<Table>,
    /// Staged values that anything names.
    pub(crate) blobs: Mutex<HashSet<u64>>,
    /// Versions that views pin: when they were born and superseded.
    pins: Mutex<Vec<(Seq, Seq)>>,
    /// There were views when somebody last looked.
    has_views: AtomicBool,
    state: AtomicPtr<State>,
    publishing: Mutex<()>,
    /// What is frozen, if anything, is in the space, or stays in memory.
    moved: AtomicBool,
    numbers: AtomicU32,
    /// Bytes that the active and the frozen memtable have in the journal.
    logged: [AtomicU64; 2],
    /// What the space needs of the disk to go on, and what of it it has.
    room: [AtomicU64; 2],
    /// The newest commit when the store last asked whether there should be a checkpoint, and how often it was the same.
    seen: AtomicU64,
    rest: AtomicU32,
}

/// What a look-up found.
pub(crate) enum Found<'a> {
    /// The version, and its number.
    Value(Content<'a>, Seq),
    /// It is removed, or was never there.
    Nothing,
}

impl FlexEngine {
    pub(crate) fn new(ground: Arc<Ground>, id: KeyspaceId) -> FlexEngine {
        let mut table = Table::new();
        let path = ground.home.as_ref().map_or_else(Default::default, |home| home.of(id));
        let (tiny, sizes) = (ground.tiny, Sizes::new(ground.tiny));
        let shelf = Shelf { slots: Slots::new(), ground, path };
        let index = table.publish(&shelf, &epoch::pin());
        let state =
            State { active: Arc::new(Memtable::new(1, Prefix::default(), tiny)), frozen: None, index };
        FlexEngine {
            id,
            shelf,
            sizes,
            table: Mutex::new(table),
            blobs: Mutex::default(),
            pins: Mutex::default(),
            has_views: AtomicBool::new(false),
            state: AtomicPtr::new(Box::into_raw(Box::new(state))),
            publishing: Mutex::new(()),
            moved: AtomicBool::new(true),
            numbers: AtomicU32::new(2),
            logged: Default::default(),
            room: Default::default(),
            seen: AtomicU64::new(0),
            rest: AtomicU32::new(0),
        }
    }

    /// The present moment.
    #[inline]
    pub(crate) fn state<'g>(&self, _guard: &'g Guard) -> &'g State {
        // SAFETY:
        // * Made from a box; freed only after all guards of the moment when it was replaced, or with `self`.
        unsafe { &*self.state.load(Ordering::Acquire) }
    }

    /// Makes another state the present one.
    pub(crate) fn publish(&self, guard: &Guard, next: impl FnOnce(&State) -> State) {
        let _one = self.publishing.lock();
        let next = Box::into_raw(Box::new(next(self.state(guard))));
        let before = self.state.swap(next, Ordering::AcqRel) as usize;
        guard.defer(move || {
            // SAFETY:
            // * Made from a box, replaced just now; every guard that may have seen it is gone.
            drop(unsafe { Box::from_raw(before as *mut State) });
        });
        // Whoever waits for the state to go may be another thread, and this one rest from now on.
        guard.flush();
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    pub(crate) fn set_moved(&self) {
        self.logged[1].store(0, Ordering::Relaxed);
        self.moved.store(true, Ordering::Release);
    }

    /// Bytes of the disk that moving all there is to move takes, beside those that the space has.
    pub(crate) fn counted_on(&self) -> u64 {
        let logged: u64 = self.logged.iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum();
        let [needs, has] = self.room.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        if needs == 0 && logged <= self.sizes.small {
            return 2 * logged; // an image
        }
        // Pairs take about as much in the space as in the journal, and checksums come on top.
        needs.max(self.sizes.least_space).saturating_add(logged + logged / 16).saturating_sub(has)
    }

    /// So many bytes of keys and values were moved.
    pub(crate) fn note_moved(&self, bytes: u64) {
        let less = |logged: u64| Some(logged.saturating_sub(bytes));
        let _ = self.logged[1].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Writes down what the space needs of the disk.
    pub(crate) fn note_room(&self, table: &Table) {
        let (needs, has) = table.space.as_ref().map_or((0, 0), FlexSpace::room_to_go_on);
        self.room[0].store(needs, Ordering::Relaxed);
        self.room[1].store(has, Ordering::Relaxed);
    }

    pub(crate) fn memory_taken(&self, bytes: u64) {
        self.shelf.ground.memory.take(Part::Index, bytes);
    }

    /// A memtable left the state.
    pub(crate) fn memtable_gone(&self, memtable: &Memtable) {
        if !memtable.is_empty() {
            self.shelf.ground.memory.give(Part::Index, memtable.bytes());
        }
    }

    /// Calls `with` with what `key` is at `at`.
    #[inline]
    pub(crate) fn look_up<R>(
        &self,
        at: Seq,
        key: &[u8],
        guard: &Guard,
        with: impl FnOnce(Found<'_>) -> Result<R>,
    ) -> Result<R> {
        let state = self.state(guard);
        let hash = self.shelf.hash(key);
        for memtable in state.memtables() {
            if let Some(version) = memtable.find(hash, key, guard).and_then(|entry| entry.at(at)) {
                if version.word.is_tomb() {
                    return with(Found::Nothing);
                }
                return memtable.content(version.word, &self.shelf.ground, guard, |content| {
                    with(Found::Value(content, version.seq))
                });
            }
        }
        let Some(entry) = state.index.find(key) else { return with(Found::Nothing) };
        let block = state.index.block(&entry, &self.shelf, guard)?;
        match block.find(print_of(hash), key, at) {
            Some(pair) if !pair.is_tomb() => with(Found::Value(pair.content, pair.seq)),
            _ => with(Found::Nothing),
        }
    }

    /// The number of the key's newest version; zero if there is none.
    fn prior(&self, key: &[u8], guard: &Guard) -> Result<Seq> {
        self.look_up(Seq::LATEST, key, guard, |found| {
            Ok(match found {
                Found::Value(_, seq) => seq,
                Found::Nothing => Seq::ZERO,
            })
        })
    }

    pub(crate) fn learn_views(&self, views: &Views) {
        let has_views = !views.is_empty();
        if self.has_views.load(Ordering::Relaxed) != has_views {
            self.has_views.store(has_views, Ordering::Relaxed);
        }
    }

    /// Whether the record of `op` would be beyond the budget, with all that can give way gone, and with room for what
    /// the memtables will take in the index. Tables grow by leaps.
    fn is_over(&self, op: &Op<'_>, state: &State) -> bool {
        let cost = Memtable::cost(op.key) + self.sizes.indexed;
        let to_come: u64 = state.memtables().map(|memtable| memtable.count() * self.sizes.indexed).sum();
        let more = cost * (u64::from(op.ahead) + 1) + state.active.bytes() / 16 + to_come;
        let memory = &self.shelf.ground.memory;
        memory.total().saturating_sub(memory.used(Part::Cache)) + more > memory.budget()
    }

    /// Adds or replaces in the active memtable. One writer.
    #[allow(clippy::too_many_arguments)] // two callers
    fn put(
        &self,
        active: &Memtable,
        record: u32,
        hash: u64,
        key: &[u8],
        version: Version,
        views: &Views,
        guard: &Guard,
    ) -> bool {
        let before = active.bytes();
        let is_kept = if record == 0 {
            active.add(hash, key, version, guard);
            true
        } else {
            active.replace(record, version, views)
        };
        match active.bytes() - before {
            0 => {}
            taken => self.memory_taken(taken),
        }
        is_kept
    }
}

impl Engine for FlexEngine {
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

    fn prepare(&self, op: &mut Op<'_>) -> Result<Need> {
        let guard = &epoch::pin();
        let hash = self.shelf.hash(op.key);
        let state = self.state(guard);
        let is_there = state.active.note(op, hash, &self.shelf.ground, guard)?;
        op.prior = Seq::ZERO;
        match op.action {
            Action::Put(_) | Action::Staged(_) => {
                // A key that is new to the memtable is refused beyond the budget if it is new altogether.
                let is_over = !is_there && self.is_over(op, state);
                if is_over || (!is_there && self.has_views.load(Ordering::Relaxed)) {
                    op.prior = self.prior(op.key, guard)?;
                }
                if is_over && op.prior == Seq::ZERO {
                    return Err(Error::OverBudget { budget: self.shelf.ground.memory.budget() });
                }
                Ok(Need::Record)
            }
            Action::Expect => {
                op.prior = self.prior(op.key, guard)?;
                Ok(Need::Nothing)
            }
            Action::Remove => match self.prior(op.key, guard)? {
                Seq::ZERO => Ok(Need::Nothing),
                prior => {
                    op.prior = prior;
                    Ok(Need::Record)
                }
            },
        }
    }

    fn is_current(&self, op: &Op<'_>) -> bool {
        let guard = &epoch::pin();
        self.state(guard).active.is_current(op)
    }

    fn apply(&self, seq: Seq, op: &Op<'_>, views: &Views) {
        let Some(content) = op.action.content() else { return };
        let guard = &epoch::pin();
        let active = &self.state(guard).active;
        let version = Version { word: Word::of(&content, op.address), seq };
        if let Content::Staged(blob) = content {
            self.blobs.lock().insert(blob.id);
        }
        self.learn_views(views);
        let record = Memtable::record_of(op);
        self.logged[0].fetch_add(u64::from(op.span), Ordering::Relaxed);
        if !views.is_empty() {
            let born = if record == 0 { op.prior } else { active.entry(record).newest().seq };
            if born != Seq::ZERO && views.needs(born, seq) {
                self.pins.lock().push((born, seq));
            }
        }
        let is_kept = self.put(active, record, Memtable::hash_of(op), op.key, version, views, guard);
        if let Some(id) = Memtable::replaced_blob(op).filter(|_| !is_kept) {
            self.blobs.lock().remove(&id);
            self.shelf.ground.blob_died(seq, id);
        }
    }

    #[inline]
    fn look(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Stored<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let staged = self.look_up(at, key, guard, |what| match what {
                Found::Nothing => Ok(Some(None)),
                Found::Value(Content::Put(value), _) => {
                    found(Stored::Bytes(value));
                    Ok(None)
                }
                Found::Value(Content::Staged(blob), _) => Ok(Some(Some(blob))),
                Found::Value(Content::Remove, _) => Ok(Some(None)),
            })?;
            let blob = match staged {
                None => return Ok(true),
                Some(None) => return Ok(false),
                Some(Some(blob)) => blob,
            };
            // A staged value goes after what named it was superseded: look again.
            if self.shelf.ground.blobs.give(&blob, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        self.look_up(at, key, guard, |found| Ok(matches!(found, Found::Value(..))))
    }

    fn prefetch(&self, keys: &[&[u8]], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            let hash = self.shelf.hash(key);
            state.memtables().for_each(|memtable| memtable.prefetch(hash, guard));
        }
    }

    fn cursor(self: Arc<Self>, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(FlexCursor::new(self, at, bounds, want)))
    }

    fn len(&self) -> Result<u64> {
        self.count_keys()
    }

    fn is_empty(&self) -> Result<bool> {
        self.has_no_key()
    }

    /// What views pinned goes when its interval is next rewritten, or its memtable moved; here it is counted.
    fn trim(&self, views: &Views, visible: Seq) {
        self.learn_views(views);
        self.pins.lock().retain(|(born, died)| *died > visible || views.needs(*born, *died));
    }

    fn freeze(&self) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        if state.active.is_empty() || state.frozen.is_some() {
            return;
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let fresh = Memtable::new(number, state.active.prefix(guard), self.shelf.ground.tiny);
        self.logged[1].fetch_add(self.logged[0].swap(0, Ordering::Relaxed), Ordering::Relaxed);
        self.moved.store(false, Ordering::Release);
        self.publish(guard, |now| State {
            active: Arc::new(fresh),
            frozen: Some(Arc::clone(&now.active)),
            index: Arc::clone(&now.index),
        });
    }

    fn work(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.step(views, certain)
    }

    fn is_settled(&self) -> bool {
        self.is_moved()
    }

    fn checkpoint_after(&self) -> u64 {
        if self.shelf.ground.tiny { 0 } else { ROTATION }
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let active = &self.state(guard).active;
        let newest = active.newest().0;
        // Asked again and again while nothing else is due: no commit in between is rest.
        let is_same = self.seen.swap(newest, Ordering::Relaxed) == newest;
        let rest = if is_same { self.rest.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.rest.store(rest, Ordering::Relaxed);
        let is_worth_it = active.count() * 8 > self.sizes.small;
        active.bytes() > self.shelf.ground.memory.budget() / MEMTABLE_SHARE || (is_worth_it && rest >= REST)
    }

    fn room_to_settle(&self) -> Option<u64> {
        Some(self.counted_on())
    }

    fn is_swollen(&self) -> bool {
        let guard = &epoch::pin();
        let bytes: u64 = self.state(guard).memtables().map(|memtable| memtable.bytes()).sum();
        bytes > self.shelf.ground.memory.budget() / SWOLLEN_SHARE
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.save_image(out)
    }

    fn saved(&self) {
        self.take_back_kept();
    }

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.restore_image(image)
    }

    fn restore_without(&self, damage: Option<Error>) -> Result<()> {
        self.restore_from_space(damage)
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        let guard = &epoch::pin();
        let active = &self.state(guard).active;
        let hash = self.shelf.hash(record.key);
        let entry = active.find(hash, record.key, guard);
        self.logged[0].fetch_add(u64::from(record.span), Ordering::Relaxed);
        if entry.as_ref().is_some_and(|entry| entry.newest().seq >= record.seq) {
            return Ok(());
        }
        if let Some(word) = entry.as_ref().map(|entry| entry.newest().word).filter(|word| word.is_staged()) {
            active.content(word, &self.shelf.ground, guard, |content| {
                if let Content::Staged(blob) = content {
                    self.blobs.lock().remove(&blob.id);
                }
                Ok(())
            })?;
        }
        if let Content::Staged(blob) = record.content {
            self.blobs.lock().insert(blob.id);
        }
        let version = Version { word: Word::of(&record.content, record.address), seq: record.seq };
        let place = entry.map_or(0, |entry| entry.place);
        self.put(active, place, hash, record.key, version, &Views::default(), guard);
        Ok(())
    }

    fn blobs(&self, out: &mut Vec<u64>) {
        out.extend(self.blobs.lock().iter().copied());
    }

    fn stats(&self) -> EngineStats {
        let guard = &epoch::pin();
        let memtables: u64 = self.state(guard).memtables().map(|memtable| memtable.bytes()).sum();
        EngineStats {
            keys: self.count_keys().unwrap_or(0),
            index_bytes: memtables + self.table.lock().index_bytes(&self.shelf),
            pinned_versions: self.pins.lock().len() as u64,
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.table.lock().counts.named()
    }

    fn verify(&self, report: &mut dyn FnMut(Error)) -> Result<()> {
        let table = self.table.lock();
        table.space.as_ref().map_or(Ok(()), |space| space.verify(report))
    }

    fn retire(&self) {
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        self.shelf.slots.clear(&self.shelf.ground, guard);
        *self.pins.lock() = Vec::new();
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let fresh = Memtable::new(number, Prefix::default(), self.shelf.ground.tiny);
        let state = self.state(guard);
        state.memtables().for_each(|memtable| self.memtable_gone(memtable));
        drop(table.space.take());
        table.forget();
        let index = table.publish(&self.shelf, guard);
        self.publish(guard, |_| State { active: Arc::new(fresh), frozen: None, index });
        self.set_moved();
        if let Some(home) = &self.shelf.ground.home
            && !home.read_only
        {
            let _ = home.remove(self.id); // else it is swept at the next opening
        }
    }

    fn close(&self) -> Result<()> {
        let space = self.table.lock().space.take();
        space.map_or(Ok(()), |space| space.close())
    }
}

impl Drop for FlexEngine {
    fn drop(&mut self) {
        // SAFETY:
        // * Made from a box, and `&mut self`: nobody reads it.
        drop(unsafe { Box::from_raw(self.state.load(Ordering::Relaxed)) });
    }
}
