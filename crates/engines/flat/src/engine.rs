//! # The engine: FlatStore's write, read, recovery under the contract
//!
//! ## The way of a put
//!
//! `prepare` looks the key up (the entry it replaces is read and its key compared), under the
//! stripe of the key `is_current` compares index words only, `apply` points the index at the new
//! entry. A get is the index and one entry, whose checksum is verified at every access. A get of
//! the newest state waits until the commit of the entry is visible.
//!
//! ## Invariants
//!
//! 1. The index has exactly one word for each live key, at its newest entry.
//! 2. An entry that a view needs is in `versions` before the index stops pointing at it; so a reader who
//!    finds a newer entry than its view finds the old one there.
//! 3. `keys` has every key that the index has: it grows before the index has a new one, and shrinks
//!    before the index loses one. So of the threads that remove the last keys, one finds it at
//!    zero.
//! 4. Addresses loaded under an epoch guard stay readable until it goes; notes are used under the
//!    guard that the committer holds from `prepare` to `apply`.
//!
//! ## Recovery
//!
//! Replay sees records of one key in any order: the highest number wins. Into an empty index they are gathered
//! (`replay`); else each is replayed by itself, and removals are remembered until all were seen, since a
//! moved copy of an older entry may come after them.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use sheaf_base::engine::{
    Action, Bounds, Capabilities, Cursor, Engine, EngineStats, Hold, ImageSink, ImageSource, Need, Op,
    Replay, Want,
};
use sheaf_base::entries::{self, Accounts, Entry, Print};
use sheaf_base::error::{Error, Result};
use sheaf_base::ground::Ground;
use sheaf_base::reach::Reach;
use sheaf_base::record::{Content, Record};
use sheaf_base::segment::{Address, Frame};
use sheaf_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::sync::{Counter, Mutex};
use sheaf_base::types::{LogId, Seq};
use sheaf_base::value::Stored;
use sheaf_base::versions::{Old, Versions};
use sheaf_base::views::Views;
use smallvec::SmallVec;

use crate::cursor::FlatCursor;
use crate::index::{Index, Wanted};
use crate::replay::Gather;

/// A keyspace.
///
/// ## Threads
///
/// The store has the stripe of a key from `is_current` to the end of `apply`, and during `moved`:
/// one thread at a time changes the index and the versions at a key. A commit writes no cache line
/// that all commits write, but for staged values.
pub(crate) struct FlatEngine<I: Index> {
    pub(crate) ground: Arc<Ground>,
    pub(crate) index: I,
    pub(crate) versions: Versions<I::Place>,
    keys: Counter,
    pub(crate) accounts: Accounts,
    pub(crate) reach: Reach,
    /// Removals seen by replay, until it ends; its threads change the index one at a time, under this lock.
    removed: Mutex<HashMap<Vec<u8>, Seq>>,
    gathered: I::Gathered,
    /// Records were replayed by themselves.
    by_itself: AtomicBool,
    /// Keys of the parts made so far.
    made: AtomicU64,
}

type Entries<'g> = SmallVec<[Entry<'g>; 2]>;

/// An entry that is about to be replaced, and the staged value that it names.
type Prior<'g> = (Entry<'g>, Option<u64>);

impl<I: Index> FlatEngine<I> {
    pub(crate) fn new(ground: Arc<Ground>) -> FlatEngine<I> {
        FlatEngine {
            index: I::new(Arc::clone(&ground)),
            versions: Versions::new(Arc::clone(&ground)),
            accounts: Accounts::new(Arc::clone(&ground)),
            reach: Reach::default(),
            ground,
            keys: Counter::default(),
            removed: Mutex::default(),
            gathered: I::Gathered::default(),
            by_itself: AtomicBool::new(false),
            made: AtomicU64::new(0),
        }
    }

    pub(crate) fn set_keys(&self, keys: u64) {
        self.keys.set(i64::try_from(keys).unwrap_or(0));
    }

    /// The entry of `key` that the index points at.
    #[inline]
    fn find<'g>(&self, wanted: Wanted<'_>, guard: &'g Guard) -> Result<Option<Entry<'g>>> {
        let mut found = Ok(None);
        self.index.matches(wanted, guard, |address| match self.read(address, wanted.key, guard) {
            Ok(None) => true,
            other => {
                found = other;
                false
            }
        });
        found
    }

    /// The entry at `address` if it is of `key`.
    #[inline]
    fn read<'g>(&self, address: Address, key: &[u8], guard: &'g Guard) -> Result<Option<Entry<'g>>> {
        let frame = self.ground.segments.frame(address, guard)?;
        let is_key = self.record(address, &frame, guard)?.key == key;
        Ok(is_key.then_some(Entry { address, frame }))
    }

    /// As [`FlatEngine::find`] for an entry that is about to be replaced: where the key's bytes are all
    /// there, its checksum is not worth its time, since nothing of the entry is handed out. One that does
    /// not match is verified before it counts as another key's. With the entry comes the staged value that it names; the
    /// print is that of all entries it looked at.
    fn find_to_replace<'g>(
        &self,
        wanted: Wanted<'_>,
        guard: &'g Guard,
    ) -> Result<(Option<Prior<'g>>, Print)> {
        let mut found = Ok(None);
        let mut print = Print::default();
        self.index.matches(wanted, guard, |address| {
            print.add(address);
            let read = self.ground.segments.frame_unchecked(address, guard).and_then(|(frame, segment)| {
                let record = Record::decode(frame.payload()).ok().filter(|record| record.key == wanted.key);
                let Some(staged) = record.map(|record| record.content.staged()) else {
                    segment.check(address.offset(), &frame)?;
                    return Ok(None);
                };
                segment.will_account();
                Ok(Some((Entry { address, frame }, staged)))
            });
            match read {
                Ok(None) => true,
                other => {
                    found = other;
                    false
                }
            }
        });
        Ok((found?, print))
    }

    /// Decodes a frame the index pointed at.
    pub(crate) fn record<'f>(
        &self,
        address: Address,
        frame: &'f Frame<'_>,
        guard: &Guard,
    ) -> Result<Record<'f>> {
        Record::decode(frame.payload()).map_err(|what| self.ground.segments.damaged(address, what, guard))
    }

    /// The entry of `key` that a view at `at` shows.
    fn find_at<'g>(&self, at: Seq, wanted: Wanted<'_>, guard: &'g Guard) -> Result<Option<Entry<'g>>> {
        let head = self.find(wanted, guard)?;
        if at == Seq::LATEST || head.as_ref().is_some_and(|entry| entry.seq() <= at) {
            return Ok(head);
        }
        for address in self.versions.at(&self.index.place(wanted), at) {
            if let Some(entry) = self.read(address, wanted.key, guard)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Waits until `entry`, found at `at`, may be shown.
    #[inline]
    fn reveal(&self, at: Seq, entry: &Entry<'_>) -> Result<()> {
        if at == Seq::LATEST { self.ground.reveal(entry.seq()) } else { Ok(()) }
    }

    fn forget(&self, wanted: Wanted<'_>, old: Old, views: &Views, guard: &Guard) {
        if views.needs(old.born, old.died) {
            self.accounts.pin(&old);
            self.versions.push(self.index.place(wanted), old);
        } else {
            self.accounts.bury(&old, guard);
        }
    }

    /// All entries of `key`, of which a replay may have found several, and the print of all it looked at.
    fn entries_of<'g>(&self, wanted: Wanted<'_>, guard: &'g Guard) -> Result<(Entries<'g>, Print)> {
        let mut same = Entries::new();
        let mut failed = None;
        let mut print = Print::default();
        self.index.matches(wanted, guard, |address| {
            print.add(address);
            match self.read(address, wanted.key, guard) {
                Ok(entry) => same.extend(entry),
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        });
        failed.map_or(Ok((same, print)), Err)
    }

    /// Replays a record against `same`, the entries of its key: the highest number stays.
    fn settle(
        &self,
        record: &Replay<'_>,
        wanted: Wanted<'_>,
        same: &[Entry<'_>],
        guard: &Guard,
    ) -> Result<()> {
        let is_put = !matches!(record.content, Content::Remove);
        let newest = same.iter().map(Entry::seq).max();
        // Of two copies with the same number the one already there stays, one word of it.
        let wins = newest.is_none_or(|newest| newest < record.seq);
        let keep = if wins { None } else { same.iter().find(|e| Some(e.seq()) == newest).map(|e| e.address) };
        for entry in same.iter().filter(|entry| Some(entry.address) != keep) {
            self.index.replace(wanted, entry.address, Address::NONE);
            self.keys.add(-1);
            self.accounts.count(entry.address, -i64::try_from(entry.span()).unwrap_or(0), guard);
            let is_superseded = wins || Some(entry.seq()) != newest; // else it is a copy of what stays
            if is_superseded
                && let Content::Staged(blob) = self.record(entry.address, &entry.frame, guard)?.content
            {
                self.accounts.unname(blob.id);
            }
        }
        if wins && is_put {
            self.index.insert(wanted, record.address);
            self.keys.add(1);
            self.accounts.count(record.address, i64::from(record.span), guard);
        }
        // Also what a copy that stays names: the image may have known its value by another copy, which is gone.
        if (wins || newest == Some(record.seq))
            && let Content::Staged(blob) = record.content
        {
            self.accounts.name(blob.id, keep.unwrap_or(record.address));
        }
        Ok(())
    }

    /// Whether records are gathered: into an empty index, before the first that was replayed by itself.
    fn gathers(&self) -> bool {
        !self.by_itself.load(Ordering::Acquire) && self.keys.count() == 0
    }

    /// Replays a record by itself.
    fn replay_one(&self, record: &Replay<'_>) -> Result<()> {
        self.by_itself.store(true, Ordering::Release);
        let guard = &epoch::pin();
        let wanted = self.wanted(record.key);
        loop {
            // What costs time is looked up beside other threads; `removed` is what they take turns by.
            let (same, print) = self.entries_of(wanted, guard)?;
            let mut removed = self.removed.lock();
            if self.index.print(wanted, guard) != print {
                continue;
            }
            if removed.get(record.key).is_some_and(|seq| *seq > record.seq) {
                return Ok(());
            }
            if matches!(record.content, Content::Remove) {
                removed.insert(record.key.to_vec(), record.seq);
                self.accounts.count_tomb(record.address, record.span, guard);
            }
            return self.settle(record, wanted, &same, guard);
        }
    }
}

/// The key of `op`, with the hash that `prepare` noted.
fn noted<'a>(op: &Op<'a>) -> Wanted<'a> {
    Wanted { key: op.key, hash: entries::noted_hash(op) }
}

impl<I: Index> Engine for FlatEngine<I> {
    fn name(&self) -> &'static str {
        I::NAME
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ordered: I::ORDERED }
    }

    fn log(&self) -> LogId {
        LogId::Flat
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    #[inline]
    fn wanted<'k>(&self, key: &'k [u8]) -> Wanted<'k> {
        Wanted { key, hash: self.index.hash(key) }
    }

    fn hint(&self, wanted: Wanted<'_>) {
        self.index.hint(wanted, &epoch::pin());
    }

    fn prepare(&self, op: &mut Op<'_>) -> Result<Need> {
        let guard = &epoch::pin();
        let wanted = match op.hash {
            Some(hash) => Wanted { key: op.key, hash },
            None => self.wanted(op.key),
        };
        let (found, print) = self.find_to_replace(wanted, guard)?;
        if let Some((entry, staged)) = found {
            entries::note(op, wanted.hash, Some((&entry, staged)), print);
            return Ok(Need::Record);
        }
        entries::note(op, wanted.hash, None, print);
        match op.action {
            Action::Remove => Ok(Need::Nothing),
            Action::Expect => Ok(Need::Record),
            Action::Put(_) | Action::Staged(_) if !self.index.may_take(wanted, guard) => {
                Err(Error::OverBudget { budget: self.ground.memory.budget() })
            }
            Action::Put(_) | Action::Staged(_) => Ok(Need::Record),
        }
    }

    fn is_current(&self, op: &Op<'_>) -> bool {
        let guard = &epoch::pin();
        let wanted = noted(op);
        match entries::noted_prior(op) {
            Address::NONE => self.index.print(wanted, guard) == entries::noted_print(op),
            prior => self.index.contains(wanted, prior, guard),
        }
    }

    fn apply(&self, seq: Seq, op: &Op<'_>, views: &Views) {
        let guard = &epoch::pin();
        let wanted = noted(op);
        let prior = entries::replaced(op, seq);
        let is_put = !matches!(op.action, Action::Remove);
        if let Some(old) = prior {
            self.forget(wanted, old, views, guard); // before the index changes (I2)
        }
        let to = if is_put { op.address } else { Address::NONE };
        match (is_put, prior.is_some()) {
            (true, false) => self.keys.add(1), // before the index changes (I3)
            (false, true) => self.keys.add(-1),
            _ => {}
        }
        match prior {
            Some(old) => {
                let replaced = self.index.replace(wanted, old.address, to);
                debug_assert!(replaced, "is_current saw it, under the stripe that is still held");
            }
            None => self.index.insert(wanted, to),
        }
        if is_put {
            self.accounts.count(to, i64::from(op.span), guard);
            if let Action::Staged(blob) = op.action {
                self.accounts.name(blob.id, to);
            }
        } else {
            if self.index.may_be_empty(wanted, guard) && self.keys.sum() == 0 {
                self.index.emptied();
            }
            self.accounts.count_tomb(op.address, op.span, guard);
        }
    }

    #[inline]
    fn look(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(Stored<'_>)) -> Result<bool> {
        let wanted = self.wanted(key);
        let mut missing = None;
        loop {
            let guard = &epoch::pin();
            let Some(entry) = self.find_at(at, wanted, guard)? else { return Ok(false) };
            self.reveal(at, &entry)?;
            let record = self.record(entry.address, &entry.frame, guard)?;
            if self.accounts.give(record.content, &mut missing, found)? {
                return Ok(true);
            }
        }
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        let guard = &epoch::pin();
        let found = self.find_at(at, self.wanted(key), guard)?;
        found.map_or(Ok(false), |entry| self.reveal(at, &entry).map(|()| true))
    }

    fn prefetch(&self, keys: &[Wanted<'_>], entries: bool) {
        let guard = &epoch::pin();
        keys.iter().for_each(|wanted| self.index.prefetch(*wanted, guard));
        if !entries {
            return;
        }
        for wanted in keys {
            self.index.matches(*wanted, guard, |address| {
                self.ground.segments.prefetch(address, guard);
                false
            });
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, want: Want) -> Result<Box<dyn Cursor + 'e>> {
        if !I::ORDERED && !bounds.is_all() {
            return Err(Error::Unsupported { engine: I::NAME, feature: "ranges" });
        }
        Ok(Box::new(FlatCursor::new(self, at, bounds, want)))
    }

    fn len(&self) -> Result<u64> {
        Ok(self.keys.count())
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
        self.accounts.freeze();
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        crate::image::save(self, out)
    }

    fn restore(&self, image: &mut dyn ImageSource) -> Result<()> {
        crate::image::restore(self, image)
    }

    fn replay(&self, record: &Replay<'_>) -> Result<()> {
        self.replay_run(std::slice::from_ref(record))
    }

    fn replay_run(&self, records: &[Replay<'_>]) -> Result<()> {
        if self.gathers() {
            return self.gathered.push(&self.index, records, &self.ground, &mut |one| self.replay_one(one));
        }
        let keys: SmallVec<[Wanted<'_>; 32]> = records.iter().map(|record| self.wanted(record.key)).collect();
        self.prefetch(&keys, true);
        records.iter().try_for_each(|record| self.replay_one(record))
    }

    fn absorb(&self, part: usize, parts: usize) -> Result<()> {
        if !self.gathers() {
            let one = &mut |one: &Replay<'_>| self.replay_one(one);
            return self.gathered.give_back((part, parts), &self.ground, one);
        }
        let tally = self.gathered.make(&self.index, (part, parts), &self.ground)?;
        tally.book(&self.accounts, &self.ground);
        self.made.fetch_add(tally.keys, Ordering::Relaxed);
        Ok(())
    }

    fn replayed(&self) {
        self.gathered.join(&self.index);
        self.keys.add(i64::try_from(self.made.swap(0, Ordering::Relaxed)).unwrap_or(0));
        self.by_itself.store(false, Ordering::Relaxed);
        self.gathered.clear(&self.ground.memory);
        *self.removed.lock() = HashMap::new();
    }

    fn blobs(&self, out: &mut Vec<u64>) -> Result<()> {
        self.accounts.list(out);
        Ok(())
    }

    fn hold(&self, wanted: Wanted<'_>, address: Address) -> Result<Hold> {
        let guard = &epoch::pin();
        Ok(if self.index.contains(wanted, address, guard) {
            Hold::Head
        } else if !self.versions.is_empty() && self.versions.contains(&self.index.place(wanted), address) {
            Hold::Pinned
        } else {
            Hold::Dead
        })
    }

    fn locate(&self, key: &[u8]) -> Result<Option<Address>> {
        let guard = &epoch::pin();
        Ok(self.find(self.wanted(key), guard)?.map(|entry| entry.address))
    }

    fn ready(&self, wanted: Wanted<'_>) -> Result<()> {
        self.index.hint(wanted, &epoch::pin());
        Ok(())
    }

    fn moved(&self, wanted: Wanted<'_>, from: Address, to: Address, staged: Option<u64>) -> bool {
        if self.index.replace(wanted, from, to) {
            self.accounts.follow(staged, to);
            return true;
        }
        !self.versions.is_empty() && self.versions.replace(&self.index.place(wanted), from, to)
    }

    fn stats(&self) -> EngineStats {
        EngineStats {
            keys: self.keys.count(),
            index_bytes: self.index.bytes(),
            pinned_versions: self.versions.count(),
        }
    }

    fn verify(&self, _report: &mut dyn FnMut(Error), _step: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
        Ok(()) // the store reads every frame, and every pair through a cursor: there is nothing else
    }

    fn retire(&self) {
        let guard = &epoch::pin();
        self.index.each(|address| {
            if let Ok(frame) = self.ground.segments.frame(address, guard) {
                self.accounts.count(address, -i64::try_from(frame.span()).unwrap_or(0), guard);
            }
        });
        self.accounts.forget(&self.versions, guard);
        self.index.clear();
        self.set_keys(0);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::hash::Hash;
    use sheaf_base::blob::Blobs;
    use sheaf_base::disk::sim::SimDisk;

    /// Services without a store.
    pub(crate) fn ground(tiny: bool) -> Arc<Ground> {
        let disk = Arc::new(SimDisk::new());
        Arc::new(Ground::new(
            Blobs::new(disk, "blob".into(), 1, sheaf_base::types::StoreId(1), tiny),
            1 << 30,
            7,
            tiny,
        ))
    }

    #[test]
    fn an_empty_keyspace_holds_nothing() {
        let engine = FlatEngine::<Hash>::new(ground(true));
        assert!(!engine.contains(Seq::LATEST, b"key").unwrap());
        assert_eq!(engine.hold(engine.wanted(b"key"), Address::new(0, 512)).unwrap(), Hold::Dead);
        let mut remove = Op::new(b"key", Action::Remove);
        assert_eq!(engine.prepare(&mut remove).unwrap(), Need::Nothing);
    }
}
