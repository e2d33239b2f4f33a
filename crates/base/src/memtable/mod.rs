//! # Memtable: what the journal has and an engine's files have not
//!
//! Keys in memory (`table.rs`), values where the journal has them: a record's word says where its key's newest entry stands.
//! For engines of the journal that move what was committed to files of their own.
//!
//! ## Picture
//!
//! ```text
//!  record:  word 8 | seq 8 | key length 4 | older 4 | key
//!             |                              └──> older version: word 8 | seq 8 | 0 | older 4      (only while views need it)
//!             └──> flags | address of the frame in the journal, or of a copy in the arena
//! ```
//!
//! ## Invariants
//!
//! 1. Those of `table.rs`; a link leads to the version before.
//! 2. A version that a view needs is in the chain before the word says something newer.
//! 3. A frame's address is good while the memtable is part of the current state: the journal before a checkpoint
//!    goes after the state has changed, and segments go after the readers of that moment.

pub mod arena;
#[cfg(all(test, shuttle))]
mod interleavings;
pub mod load;
pub mod order;
pub mod prefix;
pub mod table;

use std::ops::Bound;
use std::ptr;

use crate::blob::BlobRef;
use crate::error::{Error, Result};
use crate::frame::{u32_at, u64_at};
use crate::ground::Ground;
use crate::record::{Content, Record};
use crate::segment::{Address, Frame};
use crate::sync::atomic::Ordering;
use crate::sync::epoch::Guard;
use crate::types::Seq;
use crate::views::{Pins, Views};

pub use self::arena::{Place, high, low};
use self::order::Keys;
use self::prefix::Prefix;
use self::table::Table;
use crate::engine::{Action, Need, Op};

/// Bytes of a record before its key.
const HEAD: usize = 24;

// The words of an operation's note.
const HASH: usize = 0;
/// Number of the memtable, and the key's record there; 0 if there is none.
const RECORD: usize = 1;
/// The record's word.
const WORD: usize = 2;
/// Without a record: how many records shared the key's stripe.
const LEN: usize = 3;
/// The staged value that is replaced, plus one; 0 for none.
const BLOB: usize = 4;

const TOMB: u64 = 1 << 62;
const STAGED: u64 = 1 << 61;
const OWNED: u64 = 1 << 60;

/// What a version of a key is, in a word: where its frame or its copy stands, and of what kind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(u64);

impl Word {
    /// The entry whose frame stands at `address`.
    pub fn of(content: &Content<'_>, address: Address) -> Word {
        Word(address.bits() | kind_of(content))
    }

    /// A removal.
    #[must_use]
    pub fn is_tomb(self) -> bool {
        self.0 & TOMB != 0
    }

    /// A staged value.
    #[must_use]
    pub fn is_staged(self) -> bool {
        self.0 & STAGED != 0
    }

    /// Where its frame stands; none of a removal, and of a copy.
    #[must_use]
    pub fn address(self) -> Option<Address> {
        (self.0 & (OWNED | TOMB) == 0).then(|| Address::from_bits(self.0))
    }

    /// As a number.
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What [`Word::bits`] gave.
    #[must_use]
    pub fn from_bits(bits: u64) -> Word {
        Word(bits)
    }
}

fn kind_of(content: &Content<'_>) -> u64 {
    match content {
        Content::Put(_) => 0,
        Content::Staged(_) => STAGED,
        Content::Remove => TOMB,
    }
}

/// A record of a memtable.
#[derive(Clone, Copy)]
pub struct Entry<'m> {
    memtable: &'m Memtable,
    /// Where it is.
    pub place: Place,
}

/// One version of a key.
#[derive(Clone, Copy, Debug)]
pub struct Version {
    /// What it is.
    pub word: Word,
    /// Its commit.
    pub seq: Seq,
}

impl<'m> Entry<'m> {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &'m [u8] {
        self.memtable.table.key(self.place)
    }

    /// The newest version.
    #[inline]
    pub fn newest(&self) -> Version {
        self.memtable.version(self.place)
    }

    /// All versions, the newest first. A version may come twice.
    pub fn versions(&self) -> impl Iterator<Item = Version> + 'm {
        let newest = self.newest(); // before the chain (I2)
        let memtable = self.memtable;
        let mut next = memtable.table.link(self.place).load(Ordering::Acquire);
        let older = std::iter::from_fn(move || {
            let place = (next != 0).then_some(next)?;
            next = memtable.table.link(place).load(Ordering::Acquire);
            Some(memtable.version(place))
        });
        std::iter::once(newest).chain(older)
    }

    /// The version that a view at `at` shows.
    #[inline]
    pub fn at(&self, at: Seq) -> Option<Version> {
        if at == Seq::LATEST {
            return Some(self.newest());
        }
        self.versions().find(|version| version.seq <= at)
    }
}

/// A memtable.
#[derive(Debug)]
pub struct Memtable {
    /// Tells one from the next.
    pub number: u32,
    table: Table<4>,
}

impl Memtable {
    /// An empty one. `number` tells it from others of the keyspace; `prefix` is what its keys are thought to share.
    #[must_use]
    pub fn new(number: u32, prefix: Prefix, tiny: bool) -> Memtable {
        Memtable { number, table: Table::new(prefix, tiny) }
    }

    #[inline]
    fn version(&self, place: Place) -> Version {
        let (word, seq) = self.table.get(place);
        Version { word: Word(word), seq }
    }

    /// Keys in it, removed ones included.
    #[inline]
    pub fn count(&self) -> u64 {
        self.table.count()
    }

    #[inline]
    /// True without any.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> u64 {
        self.table.bytes()
    }

    /// Makes `change` of it, and counts the memory that takes.
    pub fn counted<T>(&self, ground: &Ground, change: impl FnOnce() -> T) -> T {
        self.table.counted(&ground.memory, change)
    }

    /// The newest commit in it.
    pub fn newest(&self) -> Seq {
        self.table.newest()
    }

    /// What the heads of its keys leave out.
    pub fn prefix(&self, guard: &Guard) -> Prefix {
        self.table.prefix(guard)
    }

    /// How many records share `hash`'s part of the table: whoever loaded it finds as many there.
    #[inline]
    pub fn stripe_len(&self, hash: u64) -> u32 {
        self.table.stripe_len(hash)
    }

    /// The record of `key`.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<Entry<'_>> {
        self.table.find(hash, key, guard).map(|place| self.entry(place))
    }

    /// The record at a place that came from here.
    pub fn entry(&self, place: Place) -> Entry<'_> {
        Entry { memtable: self, place }
    }

    /// Hints that `hash` is about to be looked up.
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        self.table.prefetch(hash, guard);
    }

    /// Hints that the record of `hash`, if there is one, is about to be looked at; some time after [`Memtable::prefetch`].
    #[inline]
    pub fn prefetch_found(&self, hash: u64, guard: &Guard) {
        self.table.prefetch_found(hash, guard);
    }

    /// What a new key costs in memory, about.
    pub fn cost(key: &[u8]) -> u64 {
        (HEAD + key.len() + 8 + 16 + 18) as u64
    }

    /// Adds a record for a key that has none. One writer.
    pub fn add(&self, hash: u64, key: &[u8], version: Version, guard: &Guard) {
        self.table.add(hash, key, version.word.0, version.seq, guard);
    }

    /// Gives a record a newer version. One writer. If a view needs the one before, it is kept; if not, false.
    pub fn replace(&self, place: Place, version: Version, views: &Views) -> bool {
        let old = self.version(place);
        let is_kept = views.needs(old.seq, version.seq);
        if is_kept {
            let link = self.table.link(place);
            let kept = self.older(old, link.load(Ordering::Relaxed));
            link.store(kept, Ordering::Release); // (I2)
        }
        self.table.set(place, version.word.0, version.seq);
        is_kept
    }

    fn older(&self, version: Version, next: Place) -> Place {
        let place = self.table.make(&[], version.word.0, version.seq);
        self.table.link(place).store(next, Ordering::Relaxed);
        place
    }

    /// Gives the record at `place` a newer version, or adds one for a key that has none (0), and counts the memory that takes. One
    /// writer. False if the version before is gone.
    #[allow(clippy::too_many_arguments)] // of the key three: where it is, its hash, its bytes
    pub fn put(
        &self,
        place: Place,
        hash: u64,
        key: &[u8],
        version: Version,
        views: &Views,
        ground: &Ground,
        guard: &Guard,
    ) -> bool {
        self.table.counted(&ground.memory, || match place {
            0 => {
                self.add(hash, key, version, guard);
                true
            }
            _ => self.replace(place, version, views),
        })
    }

    /// As [`Memtable::put`] while nobody reads, at an opening: new keys wait to be put into order, as far as the budget goes, until
    /// all are there and [`Memtable::settle`] is called. One writer.
    pub fn load(
        &self,
        place: Place,
        hash: u64,
        key: &[u8],
        version: Version,
        ground: &Ground,
        guard: &Guard,
    ) {
        self.table.load(place, hash, key, (version.word.0, version.seq), &ground.memory, guard);
    }

    /// Sorts one of `parts` parts of the keys that wait. Parts may be sorted side by side.
    pub fn sort_share(&self, part: usize, parts: usize) {
        self.table.sort_share(part, parts);
    }

    /// Puts the keys that wait into order, all parts of which are sorted.
    pub fn settle(&self, ground: &Ground, guard: &Guard) {
        self.table.counted(&ground.memory, || self.table.settle(guard));
    }

    /// `Engine::prepare` of an engine whose newest memtable this is: what the commit of `op` needs. `is_over` says whether a key
    /// that is new here is beyond the budget, and whether a checkpoint would change that, `prior` looks for its newest version everywhere.
    pub fn prepare(
        &self,
        op: &mut Op<'_>,
        hash: u64,
        (ground, guard): (&Ground, &Guard),
        pins: &Pins,
        (is_over, passes): (impl FnOnce(&Op<'_>) -> bool, impl FnOnce() -> bool),
        prior: impl Fn(&[u8]) -> Result<Seq>,
    ) -> Result<Need> {
        let is_there = self.note(op, hash, ground, guard)?;
        op.prior = Seq::ZERO;
        match op.action {
            Action::Put(_) | Action::Staged(_) => {
                // A key that is new to the memtable is refused beyond the budget if it is new altogether.
                let is_over = !is_there && is_over(op);
                if is_over && op.may_wait && passes() {
                    return Err(Error::OverBudget { budget: ground.memory.budget() });
                }
                if is_over || (!is_there && pins.has_views()) {
                    op.prior = prior(op.key)?;
                }
                if is_over && op.prior == Seq::ZERO {
                    return Err(Error::OverBudget { budget: ground.memory.budget() });
                }
                Ok(Need::Record)
            }
            Action::Expect => {
                op.prior = prior(op.key)?;
                Ok(Need::Nothing)
            }
            Action::Remove => match prior(op.key)? {
                Seq::ZERO => Ok(Need::Nothing),
                prior => {
                    op.prior = prior;
                    Ok(Need::Record)
                }
            },
        }
    }

    /// Tells `pins` of the version that `op` supersedes by commit `seq`, if a view needs it. Before the memtable changes.
    pub fn note_superseded(&self, op: &Op<'_>, seq: Seq, views: &Views, pins: &Pins) {
        pins.learn(views);
        if !views.is_empty() {
            let record = Memtable::record_of(op);
            let born = if record == 0 { op.prior } else { self.entry(record).newest().seq };
            pins.superseded(born, seq, views);
        }
    }

    /// Puts versions behind those that a record has. One writer.
    pub fn append_older(&self, place: Place, versions: &[Version]) {
        let mut last = place;
        loop {
            let next = self.table.link(last).load(Ordering::Relaxed);
            if next == 0 {
                break;
            }
            last = next;
        }
        let mut chain = 0;
        for version in versions.iter().rev() {
            chain = self.older(*version, chain);
        }
        self.table.link(last).store(chain, Ordering::Release);
    }

    /// Keeps a copy of `content`. One writer.
    pub fn own(&self, content: &Content<'_>) -> Word {
        let staged;
        let bytes = match content {
            Content::Put(value) => *value,
            Content::Staged(blob) => {
                staged = blob_bytes(blob);
                &staged[..]
            }
            Content::Remove => &[],
        };
        let place = self.table.arena.alloc(8 + bytes.len(), false);
        let start = self.table.arena.at(place);
        // SAFETY:
        // * The place was given out just now with room for so much, and nobody else knows it.
        unsafe {
            start.cast::<u64>().write(bytes.len() as u64);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(8), bytes.len());
        }
        self.table.add_bytes(8 + bytes.len());
        Word(u64::from(place) | OWNED | kind_of(content))
    }

    /// Calls `with` with what a version says.
    #[inline]
    pub fn content<R>(
        &self,
        word: Word,
        ground: &Ground,
        guard: &Guard,
        with: impl FnOnce(Content<'_>) -> Result<R>,
    ) -> Result<R> {
        if word.is_tomb() {
            return with(Content::Remove);
        }
        if word.0 & OWNED != 0 {
            let start = self.table.arena.at(low(word.0));
            // SAFETY:
            // * Written by `own` before the word was published: a length and so many bytes, which never change.
            let bytes = unsafe {
                let len = start.cast::<u64>().read();
                std::slice::from_raw_parts(start.add(8), usize::try_from(len).unwrap_or(0))
            };
            return with(if word.is_staged() {
                Content::Staged(blob_of(bytes))
            } else {
                Content::Put(bytes)
            });
        }
        let address = Address::from_bits(word.0);
        let frame: Frame<'_> = ground.segments.frame(address, guard)?;
        match Record::decode(frame.payload()) {
            Ok(record) => with(record.content),
            Err(what) => Err(ground.segments.damaged(address, what, guard)),
        }
    }

    /// Hints that a version is about to be read.
    pub fn prefetch_frame(&self, word: Word, ground: &Ground, guard: &Guard) {
        if let Some(address) = word.address() {
            ground.segments.prefetch_entry(address, guard);
        }
    }

    /// Brings the beginning of a record into the processor's cache, soon.
    #[inline]
    pub fn prefetch_record(&self, place: Place) {
        crate::memory::prefetch(self.table.arena.at(place), 1);
    }

    /// Appends to `out` the records from `low` on, until there are `limit`.
    pub fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<Place>) {
        self.table.ascend(low, limit, guard, out);
    }

    /// Appends to `out` the records from `high` down, until there are `limit`.
    pub fn fall(&self, high: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<Place>) {
        self.table.fall(high, limit, guard, out);
    }

    /// Writes down in `op` what it found here, for [`Memtable::is_current`] and `apply`. True if the key has a record.
    pub fn note(&self, op: &mut Op<'_>, hash: u64, ground: &Ground, guard: &Guard) -> Result<bool> {
        let len = self.stripe_len(hash); // before the look
        let entry = self.find(hash, op.key, guard);
        let word = entry.as_ref().map(|entry| entry.newest().word);
        op.note[HASH] = hash;
        op.note[RECORD] =
            u64::from(self.number) << 32 | u64::from(entry.as_ref().map_or(0, |entry| entry.place));
        op.note[WORD] = word.map_or(0, Word::bits);
        op.note[LEN] = u64::from(len);
        op.note[BLOB] = 0;
        if let Some(word) = word.filter(|word| word.is_staged()) {
            op.note[BLOB] = self.content(word, ground, guard, |content| {
                Ok(if let Content::Staged(blob) = content { blob.id + 1 } else { 0 })
            })?;
        }
        Ok(entry.is_some())
    }

    /// Whether this is the memtable that `op` was noted in, and what it found there still holds.
    pub fn is_current(&self, op: &Op<'_>) -> bool {
        let (number, record) = (high(op.note[RECORD]), low(op.note[RECORD]));
        if self.number != number {
            return false;
        }
        if record == 0 {
            return u64::from(self.stripe_len(op.note[HASH])) == op.note[LEN];
        }
        let word = self.entry(record).newest().word;
        let is_blind = matches!(op.action, Action::Put(_) | Action::Staged(_));
        word.bits() == op.note[WORD] || (is_blind && op.note[BLOB] == 0 && !word.is_staged())
    }

    /// The record that `op` found; 0 for none.
    #[must_use]
    pub fn record_of(op: &Op<'_>) -> Place {
        low(op.note[RECORD])
    }

    /// The hash that `op` was noted with.
    #[must_use]
    pub fn hash_of(op: &Op<'_>) -> u64 {
        op.note[HASH]
    }

    /// The staged value that `op` replaces.
    #[must_use]
    pub fn replaced_blob(op: &Op<'_>) -> Option<u64> {
        op.note[BLOB].checked_sub(1)
    }
}

/// A staged value's reference as bytes.
pub fn blob_bytes(blob: &BlobRef) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&blob.id.to_le_bytes());
    bytes[8..12].copy_from_slice(&blob.len.to_le_bytes());
    bytes[12..].copy_from_slice(&blob.sum.to_le_bytes());
    bytes
}

/// The reference that `bytes`, 16 of them, are.
pub fn blob_of(bytes: &[u8]) -> BlobRef {
    BlobRef { id: u64_at(bytes, 0), len: u32_at(bytes, 8), sum: u32_at(bytes, 12) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::HUGE_PAGE;
    use crate::sync::epoch;
    use std::collections::BTreeMap;

    fn keys(memtable: &Memtable, places: &[Place]) -> Vec<Vec<u8>> {
        places.iter().map(|place| memtable.table.key(*place).to_vec()).collect()
    }

    fn settle(memtable: &Memtable, parts: usize, guard: &Guard) {
        let before = memtable.bytes();
        (0..parts).for_each(|part| memtable.sort_share(part, parts));
        memtable.table.settle(guard);
        assert!(memtable.bytes() < before + before / 2 + HUGE_PAGE as u64);
        memtable.table.settle(guard); // nothing waits any more
    }

    /// Once put in one by one; and once the first thousands loaded, sorted in some parts, of which `most` may wait.
    fn check(tiny: bool, keys_of: impl Iterator<Item = Vec<u8>> + Clone) {
        check_loaded(tiny, 0, (1, u64::MAX), keys_of.clone());
        check_loaded(tiny, u64::MAX, (4, u64::MAX), keys_of.clone());
        check_loaded(tiny, 2500, (3, u64::MAX), keys_of.clone());
        check_loaded(tiny, 2500, (1, 700), keys_of);
    }

    fn check_loaded(
        tiny: bool,
        loaded: u64,
        (parts, most): (usize, u64),
        keys_of: impl Iterator<Item = Vec<u8>>,
    ) {
        let memtable = Memtable::new(1, Prefix::default(), tiny);
        let guard = &epoch::pin();
        let mut expected = BTreeMap::new();
        let hash = |key: &[u8]| u64::from(crc32c::crc32c(key)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (number, key) in (1..).zip(keys_of) {
            let version = Version { word: Word(number), seq: Seq(number) };
            if number == loaded {
                settle(&memtable, parts, guard);
            }
            match memtable.find(hash(&key), &key, guard) {
                None if number < loaded => {
                    memtable.table.add_unordered(hash(&key), &key, (number, Seq(number)), most, guard);
                }
                Some(entry) => assert!(!memtable.replace(entry.place, version, &Views::default())),
                None => memtable.add(hash(&key), &key, version, guard),
            }
            expected.insert(key, number);
        }
        if loaded == u64::MAX {
            settle(&memtable, parts, guard);
        }
        assert_eq!(memtable.count(), expected.len() as u64);
        for (key, number) in &expected {
            let found = memtable.find(hash(key), key, guard).expect("it was added");
            assert_eq!((found.newest().seq, found.key()), (Seq(*number), &key[..]));
        }
        let all: Vec<Vec<u8>> = expected.keys().cloned().collect();
        let mut places = Vec::new();
        memtable.ascend(Bound::Unbounded, usize::MAX, guard, &mut places);
        assert_eq!(keys(&memtable, &places), all);
        places.clear();
        memtable.fall(Bound::Unbounded, usize::MAX, guard, &mut places);
        assert_eq!(keys(&memtable, &places), all.iter().rev().cloned().collect::<Vec<_>>());
        for key in all.iter().step_by(all.len() / 50 + 1) {
            for bound in [Bound::Included(&key[..]), Bound::Excluded(&key[..])] {
                for limit in [1, 3, 100] {
                    places.clear();
                    memtable.ascend(bound, limit, guard, &mut places);
                    let range = expected.range::<[u8], _>((bound, Bound::Unbounded));
                    assert_eq!(
                        keys(&memtable, &places),
                        range.take(limit).map(|(k, _)| k.clone()).collect::<Vec<_>>()
                    );
                    places.clear();
                    memtable.fall(bound, limit, guard, &mut places);
                    let range = expected.range::<[u8], _>((Bound::Unbounded, bound)).rev();
                    assert_eq!(
                        keys(&memtable, &places),
                        range.take(limit).map(|(k, _)| k.clone()).collect::<Vec<_>>()
                    );
                }
            }
        }
    }

    #[test]
    fn it_holds_what_it_was_given_in_order() {
        let random = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for tiny in [true, false] {
            check(tiny, (0..5000).map(|i| format!("user{:016x}", random(i)).into_bytes()));
            check(tiny, (0..5000).map(|i| format!("user{i:016}").into_bytes()));
            check(tiny, (0..5000).rev().map(|i| format!("user{i:016}").into_bytes()));
            check(
                tiny,
                (0..3000)
                    .map(|i| random(i % 1500).to_be_bytes()[..usize::try_from(i % 9).unwrap_or(0)].to_vec()),
            );
            check(tiny, (0..3000).map(|i| vec![0; usize::try_from(random(i) % 300).unwrap_or(0)]));
        }
    }

    #[test]
    fn versions_that_views_need_stay() {
        let memtable = Memtable::new(1, Prefix::default(), true);
        let guard = &epoch::pin();
        let version = |seq| Version { word: Word(seq), seq: Seq(seq) };
        let mut views = Views::default();
        memtable.add(7, b"k", version(3), guard);
        let entry = memtable.find(7, b"k", guard).expect("it was added");
        views.register(Seq(4));
        assert!(memtable.replace(entry.place, version(5), &views));
        assert!(!memtable.replace(entry.place, version(6), &views));
        assert_eq!(entry.at(Seq(4)).map(|v| v.seq), Some(Seq(3)));
        assert_eq!(entry.at(Seq::LATEST).map(|v| v.seq), Some(Seq(6)));
        assert!(entry.at(Seq(2)).is_none());
        memtable.append_older(entry.place, &[version(2), version(1)]);
        assert_eq!(entry.at(Seq(2)).map(|v| v.seq), Some(Seq(2)));
        assert_eq!(entry.versions().map(|v| v.seq.0).collect::<Vec<_>>(), [6, 3, 2, 1]);
    }
}
