//! # The engine: FlexDB under the contract
//!
//! ## Threads
//!
//! Commits of different keys write the active memtable at once. The store holds the stripes of their
//! keys. The committer (`work`, any thread) takes the table's lock. It and `freeze` replace the state as
//! a whole. Readers pin the epoch and take no lock. Locks in order: the store's stripes, `table` (never
//! waited for with a stripe but by `saved`, when the committer has nothing to do), that of `state`,
//! `blobs`.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};
use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineStats, ImageSink, ImageSource, Ingest, Need, Op,
    Replay, Want, Wanted,
};
use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::lull::Lull;
use sheaf_base::memory::Part;
use sheaf_base::options::EngineOptions;
use sheaf_base::own::OwnFiles;
use sheaf_base::record::Content;
use sheaf_base::shares::Account;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::sync::{Mutex, Published};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::value::Stored;
use sheaf_base::views::{Pins, Views};
use sheaf_flexspace::FlexSpace;

use crate::block::print_of;
use crate::cursor::FlexCursor;
use crate::index::{Shelf, State};
use crate::ingest::FlexIngest;
use crate::sizes::Sizes;
use crate::slots::Slots;
use crate::table::Table;
use crate::toll::{Move, Toll};
use crate::wait::Wait;
use crate::warm::Warmth;
use sheaf_base::memtable::gaps::Gaps;
use sheaf_base::memtable::prefix::Prefix;
use sheaf_base::memtable::{Memtable, Memtables, Version, Word};

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "flex";
/// A memtable may take this part of the budget, and this one of what indexes and buffers leave of it.
const MEMTABLE_SHARE: [u64; 2] = [6, 3];
/// With the budget used up, memtables that take these parts are moved before anything is refused.
const SWOLLEN_SHARE: [u64; 2] = [8, 4];
/// This part of the budget is too little to be moved for itself.
const LEAST_SHARE: u64 = 64;
/// A memtable is moved after so many bytes of the journal: the longer it gathers, the fewer times an interval is written
/// for its changes (0.30 keys an update of a Zipf load after 1 M updates, 0.20 after 4 M), and the longer a replay.
const ROTATION: u64 = 512 << 20;
/// The pressure, in hundredths, of as much waste as makes a memtable due: at one and a half times that writers are slowed down.
const PACE: u64 = 69;
/// The same of as much memory as makes one due: all of it stays until the end of the move, and more than twice as much there may not be.
const MEMORY_PACE: u64 = 103;
/// Removed stretches that a step of the background measures, ...
const GAPS_A_STEP: usize = 16;
/// ... and removed keys of each that it goes through in either direction; who removes does less.
const MEASURED: u64 = 4096;
const MEASURED_BESIDE: u64 = 256;
/// Sum of a memtable: bytes that it has in the journal, ...
const LOGGED: usize = 0;
/// ... and those of them that belong to the first record of a key in it.
const FIRST: usize = 1;
/// It is moved after so long without a commit; without a clock, after so many looks of the store.
const REST: Duration = Duration::from_millis(400);
const REST_LOOKS: u32 = 8;

/// A keyspace.
pub(crate) struct FlexEngine {
    pub(crate) id: KeyspaceId,
    pub(crate) shelf: Shelf,
    pub(crate) sizes: Sizes,
    pub(crate) table: Mutex<Table>,
    /// Staged values that anything names.
    pub(crate) blobs: Mutex<HashSet<u64>>,
    /// Versions that views pin.
    pub(crate) pins: Pins,
    /// Removed stretches that walks skip.
    pub(crate) gaps: Gaps,
    /// Intervals may hold much that no view needs any more; see `sweep.rs`.
    pub(crate) sweep_due: AtomicBool,
    /// Bytes that sweeps gained since the last image was saved, and the size of that image's index.
    pub(crate) swept: AtomicU64,
    pub(crate) image_bytes: AtomicU64,
    pub(crate) state: Published<State>,
    /// What is frozen, if anything, is in the space, or stays in memory.
    moved: AtomicBool,
    /// Bytes that the frozen memtable has in the journal.
    logged: AtomicU64,
    /// The waste of the frozen one, how many keys it has, and how many of them are moved.
    frozen: [AtomicU64; 3],
    /// Of the keys that were moved last, so many of a hundred were new.
    pub(crate) fresh: AtomicU64,
    /// What walks lost over the active memtable's keys.
    pub(crate) toll: Toll,
    /// Bytes of the space that are not superseded, about.
    pub(crate) live: AtomicU64,
    /// What the space needs of the disk to go on, and what of it it has.
    room: [AtomicU64; 2],
    /// As the store sees it when it asks whether there should be a checkpoint; and since when, in milliseconds.
    lull: Lull,
    since: AtomicU64,
}

/// What a look-up found.
pub(crate) enum Found<'a> {
    /// The version, and its number.
    Value(Content<'a>, Seq),
    /// It is removed, or was never there.
    Nothing,
}

impl FlexEngine {
    pub(crate) fn new(ground: Arc<Ground>, id: KeyspaceId, options: &EngineOptions) -> FlexEngine {
        let mut table = Table::new();
        let path = ground.dir_of(id);
        let (tiny, sizes) = (ground.tiny, Sizes::chosen(options, ground.tiny, ground.space_limit));
        let (slots, warmth, wait) = (Slots::new(ground.memory.budget()), Warmth::new(), Wait::default());
        let shelf = Shelf { slots, ground, path, warmth, wait, spared: AtomicU64::new(0) };
        let index = table.publish(&shelf, &epoch::pin());
        let memtables = Memtables::new(Memtable::new(1, Prefix::default(), tiny));
        let state = State { memtables, index, joined: 0 };
        FlexEngine {
            id,
            shelf,
            sizes,
            table: Mutex::new(table),
            blobs: Mutex::default(),
            pins: Pins::default(),
            gaps: Gaps::default(),
            sweep_due: AtomicBool::new(false),
            swept: AtomicU64::new(0),
            image_bytes: AtomicU64::new(0),
            state: Published::new(state),
            moved: AtomicBool::new(true),
            logged: Default::default(),
            frozen: Default::default(),
            fresh: AtomicU64::new(0),
            toll: Toll::default(),
            live: AtomicU64::new(0),
            room: Default::default(),
            lull: Lull::default(),
            since: AtomicU64::new(0),
        }
    }

    /// The present moment.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g State {
        self.state.load(guard)
    }

    pub(crate) fn is_moved(&self) -> bool {
        self.moved.load(Ordering::Acquire)
    }

    pub(crate) fn set_moved(&self) {
        self.logged.store(0, Ordering::Relaxed);
        self.moved.store(true, Ordering::Release);
    }

    /// Bytes of the disk that moving all there is to move takes, beside those that the space has.
    pub(crate) fn counted_on(&self) -> u64 {
        let logged = self.logged();
        let [needs, has] = self.room.each_ref().map(|bytes| bytes.load(Ordering::Relaxed));
        if needs == 0 && logged <= self.sizes.small {
            return 2 * logged; // an image
        }
        // Pairs take about as much in the space as in the journal, and checksums come on top.
        needs.max(self.sizes.least_space).saturating_add(logged + logged / 16).saturating_sub(has)
    }

    /// Returns a sum of the active memtable.
    fn sum(&self, sum: usize) -> u64 {
        self.state(&epoch::pin()).memtables.active.sum(sum)
    }

    /// So many keys were moved, and so many bytes of keys and values.
    pub(crate) fn note_moved(&self, keys: u64, bytes: u64) {
        self.frozen[2].fetch_add(keys, Ordering::Relaxed);
        let less = |logged: u64| Some(logged.saturating_sub(bytes));
        let _ = self.logged.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Writes down what the space needs of the disk.
    pub(crate) fn note_room(&self, table: &Table) {
        let (needs, has) = table.space.as_ref().map_or((0, 0), FlexSpace::room_to_go_on);
        self.room[0].store(needs, Ordering::Relaxed);
        self.room[1].store(has, Ordering::Relaxed);
    }

    /// Bytes of the journal that say again what the space says, or what later ones say: what a bound on the disk has to
    /// bound. Of a memtable that is being filled with new keys that is nothing.
    fn waste(&self) -> u64 {
        let logged = self.sum(LOGGED);
        let first = self.sum(FIRST).min(logged);
        let fresh =
            if self.live.load(Ordering::Relaxed) == 0 { 100 } else { self.fresh.load(Ordering::Relaxed) };
        logged - first / 100 * fresh.min(100)
    }

    /// What is not moved yet of so much of the frozen memtable.
    fn left_of(&self, frozen: u64) -> u64 {
        let [keys, moved] = [1, 2].map(|at| self.frozen[at].load(Ordering::Relaxed));
        let left = u128::from(keys.saturating_sub(moved)) * u128::from(frozen);
        u64::try_from(left.checked_div(u128::from(keys)).unwrap_or(0)).unwrap_or(frozen)
    }

    /// The waste after which a memtable is moved: with that of the one that is moved meanwhile, and with what is superseded in
    /// the space, it is the limit of the disk that was asked for, about.
    fn most_waste(&self) -> u64 {
        let live = self.live.load(Ordering::Relaxed);
        self.sizes.share_of(live, self.sizes.journal_share).max(self.sizes.least_waste)
    }

    /// Whether walks have lost more time over what the active memtable has than moving it takes.
    fn is_in_the_way(&self, state: &State) -> bool {
        self.toll.is_above(Move {
            keys: state.memtables.active.count(),
            fresh: self.fresh.load(Ordering::Relaxed),
            logged: state.memtables.active.sum(LOGGED),
            intervals: state.index.tree.entries(),
        })
    }

    /// Whether the active memtable is less than half full, and there is time for what can wait.
    pub(crate) fn has_leisure(&self) -> bool {
        let logged = self.sum(LOGGED);
        logged < ROTATION / 2 && self.waste() < self.most_waste() / 2
    }

    /// Whether there was no commit for a while, as seen by the store, which asks whenever it has done something, and every 50 ms.
    fn is_at_rest(&self, newest: Seq) -> bool {
        let looks = self.lull.look(newest);
        if self.shelf.ground.inline {
            return looks >= REST_LOOKS;
        }
        let now = u64::try_from(SystemClock.now().as_millis()).unwrap_or(u64::MAX);
        if looks == 0 {
            self.since.store(now, Ordering::Relaxed);
        }
        u128::from(now.saturating_sub(self.since.load(Ordering::Relaxed))) >= REST.as_millis()
    }

    /// Whether the next image gives back more bytes that sweeps gained than it writes.
    fn gains_by_image(&self) -> bool {
        let swept = self.swept.load(Ordering::Relaxed);
        swept > 0 && swept >= self.image_bytes.load(Ordering::Relaxed)
    }

    /// Calls `with` with what `key` is at `at`. Reveals a commit before its entry is handed out.
    #[inline]
    pub(crate) fn look_up<R>(
        &self,
        at: Seq,
        key: &[u8],
        guard: &Guard,
        with: impl FnOnce(Found<'_>) -> Result<R>,
    ) -> Result<R> {
        self.look_for((at, key), at == Seq::LATEST, guard, with)
    }

    #[inline]
    fn look_for<R>(
        &self,
        (at, key): (Seq, &[u8]),
        is_revealed: bool,
        guard: &Guard,
        with: impl FnOnce(Found<'_>) -> Result<R>,
    ) -> Result<R> {
        let state = self.state(guard);
        let hash = self.shelf.hash(key);
        if let Some((memtable, version)) = state.memtables.find(hash, key, at, guard) {
            if is_revealed {
                self.shelf.ground.reveal(version.seq)?;
            }
            if version.word.is_tomb() {
                return with(Found::Nothing);
            }
            return memtable.content(version.word, &self.shelf.ground, guard, |content| {
                with(Found::Value(content, version.seq))
            });
        }
        let Some(entry) = state.index.find(key) else { return with(Found::Nothing) };
        state.index.look_into(&entry, &self.shelf, (print_of(hash), key, at), guard, |pair| match pair {
            Some(pair) if !pair.is_tomb() => with(Found::Value(pair.content, pair.seq)),
            _ => with(Found::Nothing),
        })
    }

    /// A part of the budget, or one of what indexes and buffers leave of it to memtables.
    fn share(&self, [of_all, of_rest]: [u64; 2], state: &State) -> u64 {
        let memory = &self.shelf.ground.memory;
        let memtables = state.memtables.bytes();
        let others = memory.total().saturating_sub(memory.used(Part::Cache) + memtables);
        let rest = memory.budget().saturating_sub(others);
        (memory.budget() / of_all).min(rest / of_rest).max(memory.budget() / LEAST_SHARE)
    }

    /// The number of the key's newest version; zero if there is none. It may not be visible yet.
    fn prior(&self, key: &[u8], guard: &Guard) -> Result<Seq> {
        self.look_for((Seq::LATEST, key), false, guard, |found| {
            Ok(match found {
                Found::Value(_, seq) => seq,
                Found::Nothing => Seq::ZERO,
            })
        })
    }

    /// Whether the record of `op` would be beyond the budget, with all that can give way gone, and with room for what
    /// the memtables will take in the index.
    fn is_over(&self, op: &Op<'_>, state: &State) -> bool {
        !self.shelf.ground.memory.has_room_at_last(state.memtables.more_with(op, self.sizes.indexed))
    }
}

/// A record of so many bytes is in the journal, the first of its key in the memtable or not.
fn note_logged(active: &Memtable, span: u32, is_first: bool) {
    active.add_to_sum(LOGGED, u64::from(span));
    if is_first {
        active.add_to_sum(FIRST, u64::from(span));
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
        if matches!(op.action, Action::Remove) {
            self.measure_gaps(1, MEASURED_BESIDE);
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
            |key| self.prior(key, guard),
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
        let version = Version { word: Word::of(&content, op.address), seq };
        if let Content::Staged(blob) = content {
            self.blobs.lock().insert(blob.id);
        }
        active.note_superseded(op, seq, views, &self.pins);
        let is_tomb = matches!(content, Content::Remove);
        if is_tomb {
            self.gaps.removed(seq, op.key);
        }
        let (record, hash) = (Memtable::record_of(op), Memtable::hash_of(op));
        note_logged(active, op.span, record == 0);
        let is_kept = active.put(record, hash, op.key, version, views, &self.shelf.ground, guard);
        if !is_tomb {
            self.gaps.put(op.key);
        }
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

    fn prefetch(&self, keys: &[Wanted<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            let hash = self.shelf.hash(key.key);
            state.memtables.prefetch(hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(FlexCursor::new(self, at, bounds, want)))
    }

    fn len(&self) -> Result<u64> {
        self.count_keys(u64::MAX)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.count_keys(1)? == 0)
    }

    /// What views pinned goes when its interval is next rewritten, or its memtable moved; here it is counted.
    fn trim(&self, views: &Views, visible: Seq) {
        let pinned = self.pins.count();
        self.pins.trim(views, visible);
        if self.pins.count() < pinned {
            self.sweep_due.store(true, Ordering::Relaxed);
        }
    }

    fn freeze(&self) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        if !state.memtables.can_freeze() {
            return;
        }
        let about = [self.waste(), state.memtables.active.count(), 0];
        self.frozen.iter().zip(about).for_each(|(known, now)| known.store(now, Ordering::Relaxed));
        self.logged.fetch_add(state.memtables.active.sum(LOGGED), Ordering::Relaxed);
        self.toll.restart();
        self.moved.store(false, Ordering::Release);
        let tiny = self.shelf.ground.tiny;
        self.state
            .replace(guard, |now| State { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    fn work(&self, views: &Views, certain: Seq) -> Result<bool> {
        self.measure_gaps(GAPS_A_STEP, MEASURED);
        self.step(views, certain)
    }

    fn tidy(&self, views: &Views, _certain: Seq) -> Result<bool> {
        self.sweep(views)
    }

    fn is_settled(&self) -> bool {
        self.is_moved()
    }

    fn checkpoint_after(&self) -> u64 {
        if self.shelf.ground.tiny { 0 } else { ROTATION }
    }

    fn logged(&self) -> u64 {
        self.logged.load(Ordering::Relaxed) + self.sum(LOGGED)
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = &state.memtables.active;
        let rests = self.is_at_rest(active.newest());
        let is_worth_it = active.count() * 8 > self.sizes.small;
        active.bytes() > self.share(MEMTABLE_SHARE, state)
            || self.waste() > self.most_waste()
            || (rests && self.gains_by_image())
            || (is_worth_it && (rests || self.is_in_the_way(state)))
    }

    /// What gathers while a memtable is moved may waste half a share at once, and beyond that as much as was moved of the other:
    /// writers go at the pace of the move from its begin to its end. Half a share later they are slowed down as far as they can be. So it
    /// is with the memory that the two take, of which nothing comes back before the end of the move: who has none left waits for that.
    fn pressure(&self) -> u64 {
        if self.is_moved() {
            return 0;
        }
        let guard = &epoch::pin();
        let state = self.state(guard);
        let active = state.memtables.active.bytes();
        let frozen = state.memtables.bytes().saturating_sub(active);
        let of = |pace: u64, frozen: u64, active: u64, due: u64| {
            let waits = self.left_of(frozen).saturating_add(active);
            waits.saturating_mul(pace).checked_div(due).unwrap_or(0)
        };
        let waste = of(PACE, self.frozen[0].load(Ordering::Relaxed), self.waste(), self.most_waste());
        waste.max(of(MEMORY_PACE, frozen, active, self.share(MEMTABLE_SHARE, state)))
    }

    fn left_to_move(&self) -> u64 {
        if self.is_moved() { 0 } else { self.left_of(100) }
    }

    fn room_to_settle(&self) -> Option<u64> {
        Some(self.counted_on())
    }

    fn cache(&self) -> Option<&Account> {
        Some(&self.shelf.slots.account)
    }

    fn give_way(&self, bytes: u64) {
        self.shelf.slots.give_way(bytes, &self.shelf.ground, &epoch::pin());
    }

    fn is_swollen(&self) -> bool {
        let guard = &epoch::pin();
        let state = self.state(guard);
        state.memtables.bytes() > self.share(SWOLLEN_SHARE, state)
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        self.save_image(out)
    }

    fn saved(&self) {
        self.take_back_kept();
    }

    fn still(self: Arc<Self>) -> Result<Option<Box<dyn OwnFiles>>> {
        let table = self.table.lock();
        let Some(space) = &table.space else { return Ok(None) };
        Ok(Some(Box::new(space.still()?)))
    }

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        self.restore_image(image)
    }

    fn restore_without(&self, damage: Option<Error>) -> Result<()> {
        self.restore_from_space(damage)
    }

    fn restore_rest(&self, skipped: &mut dyn FnMut(Error)) -> Result<()> {
        self.restore_readable(skipped)
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let hash = self.shelf.hash(record.key);
        let entry = active.find(hash, record.key, guard);
        note_logged(active, record.span, entry.is_none());
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
        active.load(place, hash, record.key, version, &self.shelf.ground, guard);
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
        out.extend(self.blobs.lock().iter().copied());
        Ok(())
    }

    fn ingest(self: Arc<Self>, seq: Seq) -> Result<Option<Box<dyn Ingest>>> {
        let has_home = self.shelf.ground.home.is_some();
        Ok(has_home.then(|| Box::new(FlexIngest::new(self, seq)) as Box<dyn Ingest>))
    }

    fn stats(&self) -> EngineStats {
        let guard = epoch::pin();
        let memtables = self.state(&guard).memtables.bytes();
        drop(guard); // not held while all keys are counted
        EngineStats {
            keys: self.count_keys(u64::MAX).unwrap_or(0),
            index_bytes: memtables + self.table.lock().index_bytes(&self.shelf),
            pinned_versions: self.pins.count(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let table = self.table.lock();
        let mut counters = table.counts.named();
        let stats = table.space.as_ref().map(FlexSpace::stats).unwrap_or_default();
        counters.push(("bytes of the space", stats.live_bytes));
        counters.push(("bytes collected", stats.moved_bytes));
        counters.push(("intervals warmed", self.shelf.warmth.warmed()));
        counters.push(("reads spared by prints", self.shelf.spared.load(Ordering::Relaxed)));
        counters
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        let verification = self.table.lock().space.as_ref().map(FlexSpace::verification);
        verification.map_or(Ok(()), |verification| verification.run(report, step))
    }

    fn retire(&self) {
        let mut table = self.table.lock();
        let guard = &epoch::pin();
        self.shelf.slots.clear(&self.shelf.ground, guard);
        self.pins.clear();
        self.gaps.clear();
        self.state(guard).memtables.gone(&self.shelf.ground.memory);
        drop(table.space.take());
        table.hoard.give_back(&self.shelf.ground);
        table.forget();
        let index = table.publish(&self.shelf, guard);
        let tiny = self.shelf.ground.tiny;
        self.state.replace(guard, |now| State {
            memtables: now.memtables.emptied(tiny, guard),
            index,
            ..now.clone()
        });
        self.set_moved();
        self.shelf.ground.remove_dir_of(self.id);
    }

    fn close(&self) -> Result<()> {
        let space = self.table.lock().space.take();
        space.map_or(Ok(()), |space| space.close())
    }
}
