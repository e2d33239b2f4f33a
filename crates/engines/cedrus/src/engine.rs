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
//! 2. A record that a view needs is in `versions` before the trie stops pointing at it; so a reader who finds a newer one
//!    than its view finds the old one there.
//! 3. Addresses loaded under an epoch guard stay readable until it goes; notes are used under the guard that the committer
//!    holds from `prepare` to `apply`.
//! 4. What `prepare` looked at can be had when `apply` comes: the pages are in memory, or were
//!    evicted under the guard that the committer holds and come back (page.rs). A commit of another
//!    key that moves the list in between brings the new way into memory under the same guard.
//!
//! ## Threads
//!
//! The store has the stripe of a key from `is_current` to the end of `apply`, and during `moved`.
//! Applies of different keys change the trie side by side if the first bits of their hashes differ;
//! the others take turns at the lock of their shard, which is held for the change of the trie only.
//!
//! ## Checkpoints
//!
//! `freeze` notes which pages are dirty; `work` writes some of them a step into free places, as they were; `save` syncs them
//! and writes the table. So an image is the trie of one moment, of which a start reads only what it needs.
//!
//! ## Memory
//!
//! Pages are in memory as long as the budget has room for them; then those that are on disk as they are go, the least used first
//! (heap.rs). What is dirty counts as swollen above a part of the budget, and a checkpoint makes it clean.
//!
//! ## Recovery
//!
//! Replay notes where the records behind the checkpoint stand; they are taken into the trie when somebody needs them, or by the
//! background (owed.rs). Of the records of one key the highest number wins, in whatever order they stand. An entry whose segment
//! has gone since the image is dropped when its hash is taken in, and that is certain to happen: it went because all it held was
//! moved, superseded or removed after the image, and every one of these is a record that is replayed.
//!
//! How long replaying would take is estimated as the log grows (tail.rs): a checkpoint is due when it is too long, or when it is
//! worth it and nothing was written for a while. Writers who outrun a checkpoint are slowed down.
//!
//! ## Damage
//!
//! A page that is not what its checkpoint wrote is an error of whoever needs it, and names its place. Should `apply`, which
//! cannot fail, come across sense that only a forged checksum lets through, the keyspace refuses everything from then on.
//!
//! The file is long because the contract is: trie, heap, pages, replay and the log's tail have files of their own, and what is left
//! here is one implementation of `Engine`, method by method.

use std::any::Any;
use std::sync::Arc;

use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineStats, Hold, ImageSink, ImageSource, Need, Op,
    Replay, Want, Wanted,
};
use sheaf_base::entries::{self, Accounts, Entry as Seen, Print};
use sheaf_base::error::{Damage, Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::options::EngineOptions;
use sheaf_base::own::OwnFiles;
use sheaf_base::record::Record;
use sheaf_base::segment::{Address, Frame};
use sheaf_base::shares::Account;
use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::{KeyspaceId, LogId, Seq};
use sheaf_base::value::Stored;
use sheaf_base::versions::Versions;
use sheaf_base::views::Views;
use smallvec::SmallVec;

use crate::cursor::CedrusCursor;
use crate::list::Entry;
use crate::owed::Owed;
use crate::shape::{HASH_BITS, Shape};
use crate::space::{FrozenTable, Space};
use crate::tail::Tail;
use crate::trie::{Found, Trie, Trouble};

/// The engine's name in the catalogue.
pub(crate) const NAME: &str = "cedrus";
/// Pages that one step of a checkpoint writes.
const PAGES_A_STEP: usize = 64;
/// A checkpoint is due after so many times the trie's bytes were appended to the log, but at most after `MOST_LOG`: what
/// a start after a crash has to replay.
const TIMES_TRIE: u64 = 8;
const MOST_LOG: u64 = 512 << 20;
/// Pages that are left when new keys are refused, for changes of those there are.
const PAGES_LEFT: u64 = 1024;
/// Pages that a new key may take.
const PAGES_A_CHANGE: u64 = 4;
/// Pages that go at a time when there is no room.
const GO_AT_ONCE: usize = 16;
const TINY_AT_ONCE: usize = 4;
/// Pages that stay whatever the budget says; in tiny geometry there are no more than `TINY_MOST`, so that every suite has pages
/// come and go.
const LEAST: u64 = 64;
const TINY_LEAST: u64 = 8;
const TINY_MOST: u64 = 24;
/// Dirty pages that take this part of the budget are written before anything is refused.
const SWOLLEN_SHARE: u64 = 2;

/// A keyspace.
pub(crate) struct CedrusEngine {
    pub(crate) ground: Arc<Ground>,
    pub(crate) trie: Trie,
    pub(crate) space: Space,
    pub(crate) versions: Versions<u64>,
    pub(crate) accounts: Accounts,
    /// What the last start has not taken in yet.
    pub(crate) owed: Owed,
    /// What the next start would have to replay.
    pub(crate) tail: Tail,
    /// Bytes of the trie that the budget knows of, without the pages that may go.
    accounted: AtomicU64,
    /// Those.
    account: Account,
    /// Held by whoever writes pages of a checkpoint: there is one at a time, and while there is one not all is written.
    writing: Mutex<()>,
    /// What was found out too late.
    broken: Mutex<Option<Trouble>>,
    is_broken: AtomicBool,
}

fn place_of(hash: u32) -> u64 {
    u64::from(hash)
}

impl CedrusEngine {
    pub(crate) fn new(ground: Arc<Ground>, id: KeyspaceId, options: &EngineOptions) -> CedrusEngine {
        let shape = Shape::chosen(options, ground.tiny);
        CedrusEngine {
            trie: Trie::new(shape),
            space: Space::new(Arc::clone(&ground), id, shape.page_bytes()),
            versions: Versions::new(Arc::clone(&ground)),
            accounts: Accounts::new(Arc::clone(&ground)),
            owed: Owed::new(&shape),
            tail: Tail::new(&ground),
            accounted: AtomicU64::new(0),
            account: Account::new(ground.memory.budget()),
            writing: Mutex::new(()),
            broken: Mutex::new(None),
            is_broken: AtomicBool::new(false),
            ground,
        }
    }

    pub(crate) fn hash(&self, key: &[u8]) -> u32 {
        self.trie.shape().cut(self.ground.hash(key))
    }

    // The trie, with pages brought in as they are needed.

    /// What `look` sees once all that it needs is in memory.
    #[inline]
    pub(crate) fn with_pages<T>(
        &self,
        guard: &Guard,
        mut look: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T> {
        let (mut missed, mut has_room) = (None, false);
        loop {
            match look() {
                Ok(seen) => return Ok(seen),
                Err(Trouble::Absent(page)) => {
                    // Once a look, so that a way which is longer than what may stay comes together all the same.
                    if !std::mem::replace(&mut has_room, true) && !self.has_cache_room() {
                        let (most, least) = self.at_once();
                        self.evict(most, least, guard);
                    }
                    self.account.missed(u64::from(page), self.page_bytes());
                    // A page may go, empty, between the look and the load: missed twice, it is lost.
                    if let Err(error) = self.space.load(page, &self.trie, guard)
                        && (!error.is_corrupt() || missed.replace(page) == Some(page))
                    {
                        return Err(error);
                    }
                    self.account_pages();
                }
                Err(trouble) => return Err(self.space.damaged(trouble)),
            }
        }
    }

    #[inline]
    fn found(&self, hash: u32, guard: &Guard) -> Result<Found> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(self.broken());
        }
        self.pay(hash)?;
        let ask = |address| self.ground.segments.prefetch_entry(address, guard);
        self.with_pages(guard, || self.trie.find(hash, guard, ask))
    }

    /// The entries of a piece of hashes that begins at `from`; its last hash.
    pub(crate) fn visit(&self, from: u32, guard: &Guard, out: &mut Vec<Entry>) -> Result<u32> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(self.broken());
        }
        let end = self.pay_from(from)?;
        let last = self.with_pages(guard, || self.trie.visit(from, guard, out))?;
        if last > end {
            out.retain(|entry| entry.hash <= end);
        }
        Ok(last.min(end))
    }

    /// Where a walk goes on behind `from`, at which the trie cannot be read: behind the list or the node
    /// that cannot. None at the end, or if nothing can be read.
    pub(crate) fn behind(&self, from: u32, guard: &Guard) -> Option<u32> {
        if self.is_broken.load(Ordering::Relaxed) {
            return None;
        }
        let mut last = from;
        // The page that cannot be read is what ends it.
        let _ = self.with_pages(guard, || self.trie.outline(from, guard, &mut last));
        last.checked_add(1)
    }

    /// Tells the budget how large the trie has become.
    fn account_pages(&self) {
        let memory = &self.ground.memory;
        let clean = self.trie.clean_bytes();
        self.account.set(clean, memory);
        memory.settle(Part::Index, &self.accounted, self.trie.bytes().saturating_sub(clean));
    }

    /// Whether so many bytes fit into the budget.
    fn has_room(&self, bytes: u64) -> bool {
        let is_small = !self.ground.tiny || self.trie.bytes() < TINY_MOST * self.page_bytes();
        is_small && self.ground.memory.has_room(bytes)
    }

    fn page_bytes(&self) -> u64 {
        self.trie.shape().page_bytes() as u64
    }

    /// Lets pages go if there is no room for `pages` more. True if there is then.
    fn make_room(&self, pages: u64, guard: &Guard) -> bool {
        let bytes = pages * self.page_bytes();
        if self.has_room(bytes) {
            return true;
        }
        let (most, least) = self.at_once();
        self.evict(most, least, guard);
        self.ground.memory.has_room(bytes)
    }

    /// How many pages go at once, and how many stay.
    fn at_once(&self) -> (usize, u64) {
        if self.ground.tiny { (TINY_AT_ONCE, TINY_LEAST) } else { (GO_AT_ONCE, LEAST) }
    }

    fn evict(&self, most: usize, least: u64, guard: &Guard) {
        let went = |page| self.account.went(u64::from(page), self.page_bytes());
        self.trie.evict(most, least, guard, went);
        self.account_pages();
    }

    /// Whether a page that is read finds room in the cache's share.
    fn has_cache_room(&self) -> bool {
        let bytes = self.page_bytes();
        self.has_room(bytes) && self.account.has_room(bytes, &self.ground.memory)
    }

    pub(crate) fn broken(&self) -> Error {
        self.space.damaged((*self.broken.lock()).unwrap_or(Trouble::Full))
    }

    /// A change cannot fail; one that did all the same is remembered.
    pub(crate) fn done<T>(&self, changed: Result<T, Trouble>) -> Option<T> {
        self.account_pages();
        match changed {
            Ok(done) => Some(done),
            Err(trouble) => {
                self.broken.lock().get_or_insert(trouble);
                self.is_broken.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Whether a new key finds room, or the budget has some.
    fn may_take(&self, guard: &Guard) -> bool {
        (self.make_room(PAGES_A_CHANGE, guard) || self.trie.is_roomy()) && self.trie.can_grow_by(PAGES_LEFT)
    }

    // Records.

    /// The record at an address that the trie has.
    pub(crate) fn frame<'g>(&self, address: Address, guard: &'g Guard) -> Result<Frame<'g>> {
        match self.ground.segments.at(address.slot(), guard) {
            Some(segment) => segment.frame(address.offset(), segment.limit_at(address.offset())),
            None => Err(self.lost(address)),
        }
    }

    /// An address that leads nowhere.
    fn lost(&self, address: Address) -> Error {
        Error::corrupt(
            &self.space.paged.path,
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
        Record::decode(frame.payload()).map_err(|what| match self.ground.segments.at(address.slot(), guard) {
            Some(segment) => Error::corrupt(segment.path(), address.offset(), what),
            None => self.lost(address),
        })
    }

    /// The record at `address` if it is of `key`.
    #[inline]
    fn read<'g>(&self, address: Address, key: &[u8], guard: &'g Guard) -> Result<Option<Seen<'g>>> {
        let frame = self.frame(address, guard)?;
        let is_key = self.record(address, &frame, guard)?.key == key;
        Ok(is_key.then_some(Seen { address, frame }))
    }

    #[inline]
    fn find<'g>(&self, hash: u32, key: &[u8], guard: &'g Guard) -> Result<Option<Seen<'g>>> {
        for address in self.found(hash, guard)? {
            if let Some(record) = self.read(address, key, guard)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// As [`CedrusEngine::find`] for a record that is about to be replaced: where the key's bytes are all there, its
    /// checksum is not worth its time, since nothing of it is handed out. One that does not match is verified before it
    /// counts as another key's.
    fn find_to_replace<'g>(
        &self,
        found: &[Address],
        key: &[u8],
        guard: &'g Guard,
    ) -> Result<Option<Seen<'g>>> {
        for address in found.iter().copied() {
            let Some(segment) = self.ground.segments.at(address.slot(), guard) else {
                return Err(self.lost(address));
            };
            let frame = segment.frame_unchecked(address.offset(), segment.limit_at(address.offset()))?;
            if Record::decode(frame.payload()).is_ok_and(|record| record.key == key) {
                return Ok(Some(Seen { address, frame }));
            }
            segment.check(address.offset(), &frame)?;
        }
        Ok(None)
    }

    /// Waits until `record`, found at `at`, may be shown.
    #[inline]
    fn reveal(&self, at: Seq, record: &Seen<'_>) -> Result<()> {
        if at == Seq::LATEST { self.ground.reveal(record.seq()) } else { Ok(()) }
    }

    /// The record of `key` that a view at `at` shows.
    #[inline]
    fn find_at<'g>(&self, at: Seq, key: &[u8], guard: &'g Guard) -> Result<Option<Seen<'g>>> {
        let hash = self.hash(key);
        let head = self.find(hash, key, guard)?;
        if at == Seq::LATEST || head.as_ref().is_some_and(|record| record.seq() <= at) {
            return Ok(head);
        }
        for address in self.versions.at(&place_of(hash), at) {
            if let Some(record) = self.read(address, key, guard)? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }
}

/// What `prepare` notes as the hash: with the version of what it looked at, which no thread sleeps through 2^31 changes of.
fn to_note(hash: u32, version: u32) -> u64 {
    u64::from(version) << HASH_BITS | u64::from(hash)
}

/// The hash that `prepare` noted.
fn noted(op: &Op<'_>) -> u32 {
    u32::try_from(entries::noted_hash(op) & u64::from(u32::MAX)).unwrap_or(0)
}

/// The version that it noted.
fn noted_version(op: &Op<'_>) -> u32 {
    u32::try_from(entries::noted_hash(op) >> HASH_BITS).unwrap_or(0)
}

impl Engine for CedrusEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: false }
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
        let noted = to_note(hash, self.trie.version(hash));
        let found = self.found(hash, guard)?;
        let record = self.find_to_replace(&found, op.key, guard)?;
        let print = Print::of(&found);
        if let Some(seen) = record {
            let record = self.record(seen.address, &seen.frame, guard)?;
            entries::note(op, noted, Some((&seen, record.content.staged())), print);
            return Ok(Need::Record);
        }
        entries::note(op, noted, None, print);
        match op.action {
            Action::Remove => Ok(Need::Nothing),
            Action::Expect => Ok(Need::Record),
            Action::Put(_) | Action::Staged(_) if !self.may_take(guard) => {
                Err(Error::OverBudget { budget: self.ground.memory.budget() })
            }
            Action::Put(_) | Action::Staged(_) => Ok(Need::Record),
        }
    }

    fn is_current(&self, op: &Op<'_>) -> bool {
        let (hash, version) = (noted(op), noted_version(op));
        if version.is_multiple_of(2) && self.trie.version(hash) == version {
            return true;
        }
        let guard = &epoch::pin();
        let Ok(found) = self.trie.find(hash, guard, |_| {}) else { return false };
        match entries::noted_prior(op) {
            Address::NONE => Print::of(&found) == entries::noted_print(op),
            prior => found.contains(&prior),
        }
    }

    fn apply(&self, seq: Seq, op: &Op<'_>, views: &Views) {
        let guard = &epoch::pin();
        let hash = noted(op);
        let prior = entries::replaced(op, seq);
        let is_put = !matches!(op.action, Action::Remove);
        if let Some(old) = prior {
            // Before the trie changes (I2).
            if views.needs(old.born, old.died) {
                self.accounts.pin(&old);
                self.versions.push(place_of(hash), old);
            } else {
                self.accounts.bury(&old, guard);
            }
        }
        let changed = match prior {
            Some(old) if is_put => self.trie.replace(hash, old.address, op.address, guard).map(drop),
            Some(old) => self.trie.remove(hash, old.address, guard).map(drop),
            None => self.trie.insert(Entry::new(hash, op.address), guard),
        };
        self.done(changed);
        self.tail.add(op.span);
        if is_put {
            self.accounts.count(op.address, i64::from(op.span), guard);
            if let Action::Staged(blob) = op.action {
                self.accounts.name(blob.id, op.address);
            }
        } else {
            self.accounts.count_tomb(op.address, op.span, guard);
        }
    }

    #[inline]
    fn look(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Stored<'_>)) -> Result<bool> {
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let Some(found_record) = self.find_at(at, key, guard)? else { return Ok(false) };
            self.reveal(at, &found_record)?;
            let record = self.record(found_record.address, &found_record.frame, guard)?;
            if self.accounts.give(record.content, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        let found = self.find_at(at, key, guard)?;
        found.map_or(Ok(false), |record| self.reveal(at, &record).map(|()| true))
    }

    fn prefetch(&self, keys: &[Wanted<'_>], entries: bool) {
        let guard = &epoch::pin();
        let hashes: SmallVec<[u32; 32]> = keys.iter().map(|key| self.hash(key.key)).collect();
        hashes.iter().for_each(|hash| self.trie.prefetch(*hash, guard));
        if entries {
            for hash in hashes {
                let ask = |address| self.ground.segments.prefetch_entry(address, guard);
                let _ = self.trie.find(hash, guard, ask); // a hint: whoever looks up says what is wrong
            }
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor + 'e>> {
        if !bounds.is_all() {
            return Err(Error::Unsupported { engine: NAME, feature: "ranges" });
        }
        Ok(Box::new(CedrusCursor::new(self, at, want)))
    }

    fn len(&self) -> Result<u64> {
        self.pay_all()?;
        Ok(self.trie.len())
    }

    fn trim(&self, views: &Views, visible: Seq) {
        if self.versions.is_empty() {
            return;
        }
        let guard = &epoch::pin();
        for old in self.versions.trim(views, visible) {
            self.accounts.bury(&old, guard);
        }
    }

    fn freeze(&self) {
        debug_assert!(!self.owed.is_any(), "the store asks whether it has caught up");
        self.accounts.freeze();
        self.tail.freeze();
        self.trie.freeze();
    }

    fn work(&self, _views: &Views, _certain: Seq) -> Result<bool> {
        if self.owed.is_any() {
            return self.pay_some();
        }
        self.make_room(1, &epoch::pin());
        let _one = self.writing.lock();
        let mut heap = self.trie.heap();
        let Some(frozen) = heap.frozen.as_mut().filter(|frozen| !frozen.pages.is_empty()) else {
            return Ok(false);
        };
        let table = FrozenTable::of(frozen);
        let rest = frozen.pages.len().saturating_sub(PAGES_A_STEP);
        let numbers = frozen.pages.split_off(rest);
        drop(heap);
        // One at a time: committers wait for a copy of one page.
        let thaw =
            |page: &u32| Some((*page, self.trie.heap().thaw(*page, self.trie.pages(), &epoch::pin())?));
        let pages: Vec<(u32, Box<[u64]>)> = numbers.iter().rev().filter_map(thaw).collect();
        let written = self.space.write(&table, &pages);
        let mut heap = self.trie.heap();
        match written {
            Ok(()) => heap.written(&numbers),
            Err(_) => pages.into_iter().rev().for_each(|(page, content)| heap.refreeze(page, content)),
        }
        drop(heap);
        written.map(|()| rest > 0)
    }

    fn is_settled(&self) -> bool {
        let Some(_nobody) = self.writing.try_lock() else { return false };
        self.trie.heap().frozen.as_ref().is_none_or(|frozen| frozen.pages.is_empty())
    }

    fn checkpoint_after(&self) -> u64 {
        let (_, on_disk) = self.space.bytes();
        (TIMES_TRIE * on_disk.max(self.trie.bytes())).min(MOST_LOG)
    }

    fn wants_checkpoint(&self) -> bool {
        self.tail.is_due()
    }

    fn pressure(&self) -> u64 {
        self.tail.pressure()
    }

    fn cache(&self) -> Option<&Account> {
        Some(&self.account)
    }

    fn give_way(&self, bytes: u64) {
        let pages = usize::try_from(bytes.div_ceil(self.page_bytes())).unwrap_or(usize::MAX);
        self.trie.pages().release(); // those that went before
        self.evict(pages, self.at_once().1, &epoch::pin());
    }

    fn is_swollen(&self) -> bool {
        self.trie.heap().dirty_pages() * self.page_bytes() > self.ground.memory.budget() / SWOLLEN_SHARE
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        if self.is_broken.load(Ordering::Relaxed) {
            return Err(self.broken());
        }
        crate::image::save(self, out)
    }

    fn saved(&self) {
        self.space.saved();
        self.tail.saved();
        self.trie.heap().frozen = None;
    }

    fn outlived(&self) {
        self.space.outlived();
    }

    fn still(self: Arc<Self>) -> Result<Option<Box<dyn OwnFiles>>> {
        self.space.still()
    }

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        let restored = crate::image::restore(self, image);
        self.account_pages();
        restored
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        self.replay_run(std::slice::from_ref(record))
    }

    fn replay_run(&self, records: &[Replay<'_>]) -> Result<()> {
        self.owe(records);
        Ok(())
    }

    fn absorb(&self, part: usize, parts: usize) -> Result<()> {
        self.take_in_if_urgent(part, parts)
    }

    fn is_caught_up(&self) -> bool {
        !self.owed.is_any()
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounts.list(out);
        Ok(())
    }

    fn hold(&self, wanted: Wanted<'_>, address: Address) -> Result<Hold> {
        let guard = &epoch::pin();
        let hash = self.hash(wanted.key);
        Ok(if self.found(hash, guard)?.contains(&address) {
            Hold::Head
        } else if !self.versions.is_empty() && self.versions.contains(&place_of(hash), address) {
            Hold::Pinned
        } else {
            Hold::Dead
        })
    }

    fn ready(&self, wanted: Wanted<'_>) -> Result<()> {
        self.found(self.hash(wanted.key), &epoch::pin()).map(drop)
    }

    fn moved(&self, wanted: Wanted<'_>, from: Address, to: Address, staged: Option<u64>) -> bool {
        let guard = &epoch::pin();
        let hash = self.hash(wanted.key);
        self.tail.add_copy();
        let changed = self.trie.replace(hash, from, to, guard);
        if self.done(changed).unwrap_or(false) {
            self.accounts.follow(staged, to);
            return true;
        }
        !self.versions.is_empty() && self.versions.replace(&place_of(hash), from, to)
    }

    fn stats(&self) -> EngineStats {
        let (table, _) = self.space.bytes();
        EngineStats {
            keys: self.trie.len(),
            index_bytes: self.trie.bytes() + table + self.owed.bytes(),
            pinned_versions: self.versions.count(),
        }
    }

    fn verify(&self, report: &mut dyn FnMut(Error), step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        self.space.verify(report, step) // the store reads every frame, and every pair through a cursor
    }

    fn retire(&self) {
        let guard = &epoch::pin();
        // As long as anything is owed, what is counted in slots of segments that are gone may be of those (owed, I5), and no part of what
        // is in these slots now.
        let is_behind = self.owed.is_any();
        self.forget_owed(guard);
        let _nobody_writes = self.writing.lock(); // or a step would go on with pages that are no more
        let counts = self.trie.counts();
        for (slot, count) in (0..).zip(counts).filter(|(_, count)| *count > 0) {
            if is_behind && self.owed.has_lost(slot) {
                continue;
            }
            if let Some(segment) = self.ground.segments.at(slot, guard) {
                let bytes = count.saturating_mul(segment.mean_frame());
                segment.account(-i64::try_from(bytes).unwrap_or(0));
            }
        }
        self.accounts.forget(&self.versions, guard);
        self.trie.clear(guard);
        self.account_pages();
        self.space.retire();
    }

    fn close(&self) -> Result<()> {
        self.space.close();
        Ok(())
    }
}

impl Drop for CedrusEngine {
    fn drop(&mut self) {
        let owed = self.owed.bytes();
        self.ground.memory.give(Part::Index, self.accounted.load(Ordering::Relaxed) + owed);
        self.account.set(0, &self.ground.memory);
    }
}
