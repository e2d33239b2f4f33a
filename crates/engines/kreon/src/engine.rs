//! # The engine: Kreon under the contract
//!
//! ## The way of a put
//!
//! `prepare` looks at the active memtable and nothing else; what lower sources have of the key stays there, shadowed.
//! Expectations and removals look the key up.
//!
//! ## Recovery
//!
//! Replay goes into the active memtable, the highest number of a key wins, removals are records like others. An entry of the
//! levels whose segment has gone since the image is shadowed then: it went because all it held was moved, superseded or removed
//! after the image, and every one of these is a record that is replayed.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineStats, Hold, ImageSink, ImageSource, Need, Op,
    Replay, Want, Wanted,
};
use sheaf_base::entries::Accounts;
use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::lull::Lull;
use sheaf_base::memtable::arena::{high, low};
use sheaf_base::memtable::prefix::Prefix;
use sheaf_base::memtable::{Layer, Memtables};
use sheaf_base::own::OwnFiles;
use sheaf_base::reach::Reach;
use sheaf_base::record::Content;
use sheaf_base::segment::Address;
use sheaf_base::shares::Account;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::sync::{Mutex, Published};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::value::Stored;
use sheaf_base::versions::{Old, Versions};
use sheaf_base::views::Views;

use crate::cursor::KreonCursor;
use crate::gaps::Gaps;
use crate::look::Candidates;
use crate::memtable::{self, Memtable, Version, Word};
use crate::named::Named;
use crate::resting::Resting;
use crate::spill::Spill;
use crate::tree::{Shelf, State};

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "kreon";
/// The active memtable is frozen when it takes this part of the budget, in hundredths.
const MEMTABLE_SHARE: u64 = 28;
/// With the budget used up, memtables that take this part of it are moved before anything is refused.
const SWOLLEN_SHARE: u64 = 8;
/// A memtable is spilled after so many bytes of the log: the longer it gathers, the fewer times a leaf is written for its
/// entries, and the longer a replay.
const ROTATION: u64 = 1 << 30;
/// With so many removals a memtable that rests is moved: a cursor that comes first goes over them all.
const REMOVALS: u64 = 4096;
/// As with so many bytes of records and values that it is thought to supersede: they are not free before both meet.
const OWED: u64 = 1 << 20;
/// Of what a put brings, this part is thought to be what it supersedes: it does not look.
const OWED_BY_PUT: u64 = 16;
/// Times that the store, which looks every 50 ms when it is idle, finds a memtable as it was, before that is moved.
pub(crate) const REST: u32 = 8;
/// What the cache leaves free of the budget for memtables to grow into.
const HEADROOM: u64 = 256 << 10;

// The words of an operation's note.
const HASH: usize = 0;
/// Number of the active memtable, and the key's record there; 0 if there is none.
const RECORD: usize = 1;
/// The record's number.
const SEQ: usize = 2;
/// Without a record: how many records shared the key's stripe. With one: the record's word.
const LEN_OR_WORD: usize = 3;
/// Of a removal: bytes of what it removes, as far as known.
const REMOVED: usize = 4;

/// A keyspace.
pub(crate) struct KreonEngine {
    pub(crate) ground: Arc<Ground>,
    pub(crate) shelf: Arc<Shelf>,
    pub(crate) versions: Versions<Vec<u8>>,
    pub(crate) accounts: Accounts,
    pub(crate) spill: Mutex<Spill>,
    pub(crate) named: Named,
    pub(crate) gaps: Gaps,
    pub(crate) reach: Reach,
    pub(crate) candidates: Mutex<Candidates>,
    /// Numbers of the staged values that records of memtables name, by the records' addresses.
    pub(crate) staged: Mutex<HashMap<u64, u64>>,
    /// The newest commit that superseded something while there were views; 0 if none may need it any more.
    pub(crate) needed: AtomicU64,
    /// The oldest and the newest view when that was, and the lock under which they change: commits
    /// come in any order, and a view that may need a version is missing only from older commits.
    pub(crate) oldest_view: AtomicU64,
    pub(crate) newest_view: AtomicU64,
    learning: Mutex<Seq>,
    /// Versions below that views pin, and that no spill has met: when they were superseded, by when they were born.
    pins: Mutex<BTreeMap<Seq, Vec<Seq>>>,
    pub(crate) state: Published<State>,
    replaying: Mutex<()>,
    /// What the last freeze left in the active memtable, for the image: see [`crate::resting`].
    pub(crate) resting: Mutex<Vec<Resting>>,
    pub(crate) most_resting: u64,
    /// Removed keys that cursors went over.
    pub(crate) passed: AtomicU64,
    /// As the store sees it when it asks whether there should be a checkpoint.
    pub(crate) lull: Lull,
}

impl KreonEngine {
    pub(crate) fn new(ground: Arc<Ground>, id: KeyspaceId) -> KreonEngine {
        let memtables = Memtables::new(Memtable::new(1, Prefix::default(), ground.tiny));
        let state = State { memtables, levels: Arc::new([]) };
        KreonEngine {
            shelf: Arc::new(Shelf::new(Arc::clone(&ground), id)),
            versions: Versions::new(Arc::clone(&ground)),
            accounts: Accounts::new(Arc::clone(&ground)),
            spill: Mutex::default(),
            named: Named::new(Arc::clone(&ground)),
            gaps: Gaps::default(),
            reach: Reach::default(),
            candidates: Mutex::default(),
            staged: Mutex::default(),
            needed: AtomicU64::new(0),
            oldest_view: AtomicU64::new(0),
            newest_view: AtomicU64::new(0),
            learning: Mutex::new(Seq::ZERO),
            pins: Mutex::default(),
            state: Published::new(state),
            replaying: Mutex::new(()),
            resting: Mutex::default(),
            most_resting: crate::resting::most(ground.tiny),
            passed: AtomicU64::new(0),
            lull: Lull::default(),
            ground,
        }
    }

    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        self.shelf.hash(key)
    }

    /// The present moment.
    #[inline]
    pub(crate) fn state<'g>(&'g self, guard: &'g Guard) -> &'g State {
        self.state.load(guard)
    }

    /// Bytes at which a memtable is to be frozen.
    fn memtable_limit(&self) -> u64 {
        self.ground.memory.budget() / 100 * MEMTABLE_SHARE
    }

    /// Something is superseded by commit `died` while there are views, or not. The newest commit
    /// decides: a view that may need a version that any of them superseded is among its views.
    fn learn_views(&self, views: &Views, died: Seq) {
        if let (Some(oldest), Some(newest)) = (views.oldest(), views.newest()) {
            let mut last = self.learning.lock();
            if died >= *last {
                *last = died;
                self.oldest_view.store(oldest.0, Ordering::Release);
                self.newest_view.store(newest.0, Ordering::Release);
            }
            self.needed.fetch_max(died.0, Ordering::AcqRel);
        }
    }

    /// Whether the record of `op` would be beyond the budget, with all that can give way gone.
    fn is_over(&self, op: &Op<'_>, active: &Memtable) -> bool {
        let more = Memtable::cost(op.key) * (u64::from(op.ahead) + 1) + active.bytes() / 16;
        !self.ground.memory.has_room_at_last(more)
    }

    /// The version of a memtable's record, as one that commit `died` superseded.
    pub(crate) fn old_of(&self, version: Version, died: Seq) -> Old {
        let Version { word, seq: born } = version;
        if word.is_tomb() {
            return Old { address: Address::NONE, span: 0, born, died, blob: None };
        }
        let address = word.address();
        let blob = if word.is_staged() { self.staged.lock().remove(&address.bits()) } else { None };
        Old { address, span: u32::try_from(word.span()).unwrap_or(u32::MAX), born, died, blob }
    }

    /// A version that was born then is among the versions now.
    pub(crate) fn unpin(&self, born: Seq) {
        let mut pins = self.pins.lock();
        if let Some(dieds) = pins.get_mut(&born) {
            dieds.pop();
            if dieds.is_empty() {
                pins.remove(&born);
            }
        }
    }

    fn superseded(&self, key: &[u8], version: Version, died: Seq, views: &Views, guard: &Guard) {
        let old = self.old_of(version, died);
        if views.needs(old.born, old.died) {
            self.versions.push(key.to_vec(), old);
        } else if !version.word.is_tomb() {
            self.accounts.bury(&old, guard);
        }
    }

    /// Records of replay win by their numbers.
    fn replay_one(&self, record: &Replay<'_>, guard: &Guard) -> Result<()> {
        let hash = self.hash(record.key);
        if matches!(record.content, Content::Remove) {
            self.accounts.count_tomb(record.address, record.span, guard);
            self.state(guard).memtables.active.add_to_sum(memtable::REMOVALS, 1);
            // The cleaner copies removals unasked, so that one may come that is older than what the levels have.
            if self.is_old_news(hash, record.key, record.seq, guard)? {
                return Ok(());
            }
        }
        let _one = self.replaying.lock();
        let active = &self.state(guard).memtables.active;
        let place = active.find(hash, record.key, guard);
        let old = place.map(|place| active.version(place));
        let word = self.word_of(&record.content, record.address, record.span);
        // Of two copies with the same number the one already there stays.
        if old.is_some_and(|old| old.seq >= record.seq) {
            return Ok(());
        }
        if let Some(old) = old.filter(|old| !old.word.is_tomb()) {
            let old = self.old_of(old, record.seq);
            self.accounts.count(old.address, -i64::from(old.span), guard);
            if let Some(blob) = old.blob {
                self.accounts.unname(blob);
            }
        }
        self.arrived(&record.content, record.address, record.span, guard);
        let version = Version { word, seq: record.seq };
        active.load(place.unwrap_or(0), hash, record.key, version, &self.ground.memory, guard);
        Ok(())
    }

    fn word_of(&self, content: &Content<'_>, address: Address, span: u32) -> Word {
        match content {
            Content::Remove => Word::tomb(),
            other => Word::put(address, u64::from(span), matches!(other, Content::Staged(_))),
        }
    }

    /// A record is going to be pointed at.
    fn arrived(&self, content: &Content<'_>, address: Address, span: u32, guard: &Guard) {
        if let Content::Staged(blob) = content {
            self.accounts.name(blob.id, address);
            self.staged.lock().insert(address.bits(), blob.id);
        }
        if !matches!(content, Content::Remove) {
            self.accounts.count(address, i64::from(span), guard);
        }
    }
}

impl Engine for KreonEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: true }
    }

    fn log(&self) -> LogId {
        LogId::Flat
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn prepare(&self, op: &mut Op<'_>) -> Result<Need> {
        let guard = &epoch::pin();
        let hash = self.hash(op.key);
        let active = &self.state(guard).memtables.active;
        let len = active.stripe_len(hash); // before the look (memtable I3)
        let place = active.find(hash, op.key, guard);
        let version = place.map(|place| active.version(place));
        let number = u64::from(active.number) << 32 | u64::from(place.unwrap_or(0));
        let (seq, word) = version.map_or((0, u64::from(len)), |v| (v.seq.0, v.word.bits()));
        op.note = [hash, number, seq, word, 0];
        op.prior = version.filter(|version| !version.word.is_tomb()).map_or(Seq::ZERO, |version| version.seq);
        match op.action {
            Action::Put(_) | Action::Staged(_) => {
                if place.is_none() {
                    self.shelf.cache.make_room(HEADROOM.min(self.ground.memory.budget() / 64), guard);
                    if self.is_over(op, active) {
                        return Err(Error::OverBudget { budget: self.ground.memory.budget() });
                    }
                    if self.needed.load(Ordering::Relaxed) != 0 {
                        op.prior = self.newest(hash, op.key, guard)?; // for what is told of pinned versions
                    }
                }
                Ok(Need::Record)
            }
            Action::Expect => {
                op.prior = self.newest(hash, op.key, guard)?;
                Ok(Need::Nothing)
            }
            Action::Remove => {
                (op.prior, op.note[REMOVED]) = self.newest_with_bytes(hash, op.key, guard)?;
                Ok(if op.prior == Seq::ZERO { Need::Nothing } else { Need::Record })
            }
        }
    }

    fn is_current(&self, op: &Op<'_>) -> bool {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let (number, place) = (high(op.note[RECORD]), low(op.note[RECORD]));
        if active.number != number {
            return false;
        }
        if place == 0 {
            // New records of the stripe may be those of other keys.
            let hash = op.note[HASH];
            return u64::from(active.stripe_len(hash)) == op.note[LEN_OR_WORD]
                || active.find(hash, op.key, guard).is_none();
        }
        // A look during an `apply` may have seen the number of a version with the word of the one
        // before.
        let Version { word, seq } = active.version(place);
        matches!(op.action, Action::Put(_) | Action::Staged(_))
            || (seq.0 == op.note[SEQ] && word.bits() == op.note[LEN_OR_WORD])
    }

    fn apply(&self, seq: Seq, op: &Op<'_>, views: &Views) {
        let Some(content) = op.action.content() else { return };
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let mut word = self.word_of(&content, op.address, op.span);
        self.arrived(&content, op.address, op.span, guard);
        if matches!(content, Content::Remove) {
            self.accounts.count_tomb(op.address, op.span, guard);
        }
        self.learn_views(views, seq);
        let place = low(op.note[RECORD]);
        if place == 0 {
            if op.prior != Seq::ZERO && views.needs(op.prior, seq) {
                self.pins.lock().entry(op.prior).or_default().push(seq);
            }
        } else {
            let old = active.version(place);
            self.superseded(op.key, old, seq, views, guard); // before the record changes (memtable I4)
            word = word.below(old.word.is_below());
        }
        active.put(place, op.note[HASH], op.key, Version { word, seq }, &self.ground.memory, guard);
        let brought = match content {
            Content::Remove => {
                active.add_to_sum(memtable::REMOVALS, 1);
                op.note[REMOVED]
            }
            Content::Staged(blob) => (u64::from(op.span) + u64::from(blob.len)) / OWED_BY_PUT,
            Content::Put(_) => u64::from(op.span) / OWED_BY_PUT,
        };
        active.add_to_sum(memtable::OWED, brought);
        if !matches!(content, Content::Remove) {
            self.gaps.put(op.key);
        }
    }

    #[inline]
    fn look(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Stored<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let Some(shown) = self.find_revealed(at, key, guard)? else { return Ok(false) };
            if let Some(value) = shown.value {
                found(Stored::Bytes(value));
                return Ok(true);
            }
            self.shelf.may_need(shown.address, shown.span, guard);
            let frame = self.frame(shown.address, guard)?;
            let record = self.record(shown.address, &frame, key, guard)?;
            if self.accounts.give(record.content, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        Ok(self.find_revealed(at, key, guard)?.is_some())
    }

    fn prefetch(&self, keys: &[Wanted<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            let hash = self.hash(key.key);
            state.memtables.prefetch(hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(KreonCursor::new(self, at, bounds, want)))
    }

    fn len(&self) -> Result<u64> {
        self.count_keys(u64::MAX)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.count_keys(1)? == 0)
    }

    fn trim(&self, views: &Views, visible: Seq) {
        self.pins.lock().retain(|born, dieds| {
            dieds.retain(|died| *died > visible || views.needs(*born, *died));
            !dieds.is_empty()
        });
        if views.is_empty() {
            let needed = self.needed.load(Ordering::Acquire);
            if needed <= visible.0 {
                // Not if a commit has set it meanwhile.
                let _ = self.needed.compare_exchange(needed, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
        }
        if self.versions.is_empty() {
            return;
        }
        let guard = &epoch::pin();
        for old in self.versions.trim(views, visible) {
            self.accounts.bury(&old, guard);
        }
    }

    fn freeze(&self) {
        self.accounts.freeze();
        let guard = &epoch::pin();
        let state = self.state(guard);
        let resting = self.resting_of(state, guard);
        let stays = resting.is_some();
        *self.resting.lock() = resting.unwrap_or_default();
        state.memtables.active.clear_sum(memtable::REMOVALS);
        state.memtables.active.clear_sum(memtable::OWED);
        if stays || !state.memtables.can_freeze() {
            return;
        }
        let tiny = self.ground.tiny;
        self.state
            .replace(guard, |now| State { memtables: now.memtables.freeze(tiny, guard), ..now.clone() });
    }

    fn work(&self, views: &Views, _certain: Seq) -> Result<bool> {
        self.step(views)
    }

    fn is_settled(&self) -> bool {
        self.state(&epoch::pin()).memtables.frozen.is_none()
    }

    fn checkpoint_after(&self) -> u64 {
        if self.ground.tiny { 0 } else { ROTATION }
    }

    /// Growth of the levels' file by two spills: one of the present memtables, and one of the
    /// removals that follow on a full disk. Only that second spill finds the values that were
    /// removed, because their entries are in the levels.
    fn room_to_settle(&self) -> Option<u64> {
        let guard = &epoch::pin();
        Some(self.shelf.space.growth(self.state(guard).memtables.bytes()))
    }

    fn wants_checkpoint(&self) -> bool {
        let guard = &epoch::pin();
        let active = &self.state(guard).memtables.active;
        let rests = self.lull.look(active.newest()) >= REST;
        let is_worth_it = active.bytes() * 8 > self.memtable_limit()
            || active.sum(memtable::REMOVALS) >= REMOVALS
            || active.sum(memtable::OWED) >= OWED
            || self.shelf.space.is_much_waiting();
        active.bytes() > self.memtable_limit() || (is_worth_it && rests)
    }

    fn pressure(&self) -> u64 {
        let guard = &epoch::pin();
        let state = self.state(guard);
        match state.memtables.frozen {
            Some(_) => (state.memtables.active.bytes() * 100).checked_div(self.memtable_limit()).unwrap_or(0),
            None => 0,
        }
    }

    fn cache(&self) -> Option<&Account> {
        Some(self.shelf.cache.account())
    }

    fn give_way(&self, bytes: u64) {
        self.shelf.cache.give_way(bytes, &epoch::pin());
    }

    fn is_swollen(&self) -> bool {
        let guard = &epoch::pin();
        self.state(guard).memtables.bytes() > self.ground.memory.budget() / SWOLLEN_SHARE
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        crate::image::save(self, out)
    }

    fn saved(&self) {
        self.shelf.space.saved();
    }

    fn outlived(&self) {
        self.shelf.space.outlived(&epoch::pin());
    }

    fn still(self: Arc<Self>) -> Result<Option<Box<dyn OwnFiles>>> {
        self.shelf.space.still()
    }

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        crate::image::restore(self, image)
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        self.replay_one(record, &epoch::pin())
    }

    fn absorb(&self, part: usize, parts: usize) -> Result<()> {
        self.state(&epoch::pin()).memtables.active.sort_share(part, parts);
        Ok(())
    }

    fn replayed(&self) {
        let guard = &epoch::pin();
        self.state(guard).memtables.active.settle(&self.ground.memory, guard);
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounts.list(out);
        Ok(())
    }

    fn hold(&self, wanted: Wanted<'_>, address: Address) -> Result<Hold> {
        self.hold_at(wanted.key, address, &epoch::pin())
    }

    fn is_newest(&self, wanted: Wanted<'_>, address: Address) -> Result<bool> {
        self.is_first(wanted.key, address, &epoch::pin())
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        Ok(self.find_at(Seq::LATEST, key, &epoch::pin())?.map(|shown| shown.address))
    }

    fn moved(&self, wanted: Wanted<'_>, from: Address, to: Address, _staged: Option<u64>) -> bool {
        self.repoint(wanted.key, from, to, &epoch::pin())
    }

    fn stats(&self) -> EngineStats {
        let guard = epoch::pin();
        let memtables = self.state(&guard).memtables.bytes();
        drop(guard); // not held while all keys are counted
        EngineStats {
            keys: self.count_keys(u64::MAX).unwrap_or(0),
            index_bytes: memtables + self.shelf.cache.bytes(),
            pinned_versions: self.versions.count()
                + self.pins.lock().values().map(|dieds| dieds.len() as u64).sum::<u64>(),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let ways = self.spill.lock().ways;
        vec![
            ("ranges spilled", ways.spills.0),
            ("leaves written by spills", ways.spills.1),
            ("ranges merged", ways.merges.0),
            ("leaves written by merges", ways.merges.1),
            ("pages read", self.shelf.cache.loads()),
            ("reads spared by filters", self.shelf.filters.spared()),
            ("reads spared by prints", self.shelf.cache.spared()),
            ("removed keys passed", self.passed.load(Ordering::Relaxed)),
            ("look-ups spared by what the last level names", self.named.spared()),
        ]
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.check(report, step)
    }

    fn retire(&self) {
        self.drop_all();
    }

    fn close(&self) -> Result<()> {
        self.shelf.space.close();
        Ok(())
    }
}

impl Drop for KreonEngine {
    fn drop(&mut self) {
        self.state(&epoch::pin()).memtables.gone(&self.ground.memory);
    }
}
