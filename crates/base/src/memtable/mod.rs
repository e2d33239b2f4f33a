//! # Memtable: what the journal has and an engine's files have not
//!
//! Keys in memory (`table.rs`), values where the journal has them: a record's word says where its
//! key's newest entry stands. For engines of the journal that move what was committed to files of
//! their own.
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
//! 3. A frame's address is good while the memtable is part of the current state: the journal before
//!    a checkpoint goes after the state has changed, and segments go after the readers of that
//!    moment.
//!
//! ## Threads
//!
//! Any number of threads change records of different keys and read. The changes of one key come one
//! after the other, in the order of their seqs: the store holds the stripe of the key. The seqs of
//! different keys come in any order.

pub mod arena;
pub mod deferred_sort;
#[cfg(all(test, shuttle))]
mod interleavings;
mod memtables;
mod op;
pub mod prefix;
pub mod removed_ranges;
pub mod sorted_keys;
pub mod table;
#[cfg(test)]
mod tests;
mod word;

use std::ops::Bound;
use std::ptr;

pub use self::arena::{ArenaOffset, high, low};
pub use self::memtables::{MemtableLayer, Memtables};
use self::prefix::KeyPrefix;
use self::sorted_keys::KeySource;
use self::table::KeyTable;
use self::word::{COPIED, kind_of};
pub use self::word::{VersionWord, decode_blob_ref, encode_blob_ref};
use crate::engine_context::EngineContext;
use crate::error::Result;
use crate::record::{Record, RecordContent};
use crate::segment::{Address, Frame};
use crate::sync::atomic::Ordering;
use crate::sync::epoch::Guard;
use crate::types::Seq;
use crate::views::Views;

/// Bytes of a record before its key.
const HEAD: usize = 24;

/// A record of a memtable.
#[derive(Clone, Copy)]
pub struct MemtableEntry<'m> {
    memtable: &'m Memtable,
    /// Where it is.
    pub place: ArenaOffset,
}

/// One version of a key.
#[derive(Clone, Copy, Debug)]
pub struct MemtableVersion {
    /// What it is.
    pub word: VersionWord,
    /// Its commit.
    pub seq: Seq,
}

impl<'m> MemtableEntry<'m> {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> &'m [u8] {
        self.memtable.table.key(self.place)
    }

    /// The newest version.
    #[inline]
    pub fn newest(&self) -> MemtableVersion {
        self.memtable.version(self.place)
    }

    /// All versions, the newest first. A version may come twice.
    pub fn versions(&self) -> impl Iterator<Item = MemtableVersion> + 'm {
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
    pub fn at(&self, at: Seq) -> Option<MemtableVersion> {
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
    table: KeyTable<4>,
}

impl Memtable {
    /// An empty one. `number` tells it from others of the keyspace; `prefix` is what its keys are
    /// thought to share.
    #[must_use]
    pub fn new(number: u32, prefix: KeyPrefix, tiny: bool) -> Memtable {
        Memtable { number, table: KeyTable::new(prefix, tiny) }
    }

    #[inline]
    fn version(&self, place: ArenaOffset) -> MemtableVersion {
        let (word, seq) = self.table.get(place);
        MemtableVersion { word: VersionWord(word), seq }
    }

    /// Returns the number of keys, removed ones included. Reads the counts of all threads.
    pub fn count(&self) -> u64 {
        self.table.count()
    }

    /// Adds `more` to the sum number `sum` of the owner, below [`SUMS`](table::SUMS). Threads do
    /// not wait for each other.
    #[inline]
    pub fn add_to_sum(&self, sum: usize, more: u64) {
        self.table.add_to_sum(sum, more);
    }

    /// Returns a sum of the owner. Reads the parts of all threads.
    #[must_use]
    pub fn sum(&self, sum: usize) -> u64 {
        self.table.sum(sum)
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
    pub fn with_accounting<T>(&self, context: &EngineContext, change: impl FnOnce() -> T) -> T {
        self.table.with_accounting(&context.memory, change)
    }

    /// The newest commit in it.
    pub fn newest(&self) -> Seq {
        self.table.newest()
    }

    /// What the heads of its keys leave out.
    pub fn prefix(&self, guard: &Guard) -> KeyPrefix {
        self.table.prefix(guard)
    }

    /// How many records share `hash`'s part of the table: whoever loaded it finds as many there.
    #[inline]
    pub fn stripe_len(&self, hash: u64) -> u32 {
        self.table.stripe_len(hash)
    }

    /// The record of `key`.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<MemtableEntry<'_>> {
        self.table.find(hash, key, guard).map(|place| self.entry(place))
    }

    /// The record at a place that came from here.
    pub fn entry(&self, place: ArenaOffset) -> MemtableEntry<'_> {
        MemtableEntry { memtable: self, place }
    }

    /// Hints that `hash` is about to be looked up.
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        self.table.prefetch(hash, guard);
    }

    /// Hints that the record of `hash`, if there is one, is about to be looked at; some time after
    /// [`Memtable::prefetch`].
    #[inline]
    pub fn prefetch_found(&self, hash: u64, guard: &Guard) {
        self.table.prefetch_found(hash, guard);
    }

    /// What a new key costs in memory, about.
    pub fn cost(key: &[u8]) -> u64 {
        (HEAD + key.len() + 8 + 16 + 18) as u64
    }

    /// Adds a record for a key that has none. One thread at a time for each key.
    pub fn add(&self, hash: u64, key: &[u8], version: MemtableVersion, guard: &Guard) {
        self.table.add(hash, key, version.word.0, version.seq, guard);
    }

    /// Gives a record a newer version. One thread at a time for each key. If a view needs the
    /// version before, it is kept; if not, false.
    pub fn replace(&self, place: ArenaOffset, version: MemtableVersion, views: &Views) -> bool {
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

    fn older(&self, version: MemtableVersion, next: ArenaOffset) -> ArenaOffset {
        let (place, _) = self.table.make_record(&[], version.word.0, version.seq);
        self.table.link(place).store(next, Ordering::Relaxed);
        place
    }

    /// Gives the record at `place` a newer version, or adds one for a key that has none (0), and
    /// counts the memory that this takes. One thread at a time for each key. False if the version
    /// before is not kept.
    #[allow(clippy::too_many_arguments)] // of the key three: where it is, its hash, its bytes
    pub fn put(
        &self,
        place: ArenaOffset,
        hash: u64,
        key: &[u8],
        version: MemtableVersion,
        views: &Views,
        context: &EngineContext,
        guard: &Guard,
    ) -> bool {
        let (is_kept, is_more) = match place {
            0 => (true, self.table.add(hash, key, version.word.0, version.seq, guard)),
            _ => {
                let is_kept = self.replace(place, version, views);
                (is_kept, is_kept)
            }
        };
        if is_more {
            self.table.update_accounting(&context.memory);
        }
        is_kept
    }

    /// As [`Memtable::put`] while nobody reads, at an opening: new keys wait to be put into order,
    /// as far as the budget goes, until all are there and [`Memtable::finish_sort`] is called. One
    /// writer.
    pub fn put_unsorted(
        &self,
        place: ArenaOffset,
        hash: u64,
        key: &[u8],
        version: MemtableVersion,
        context: &EngineContext,
        guard: &Guard,
    ) {
        self.table.put_unsorted(place, hash, key, (version.word.0, version.seq), &context.memory, guard);
    }

    /// Sorts one of `parts` parts of the keys that wait. Parts may be sorted side by side.
    pub fn sort_part(&self, part: usize, parts: usize) {
        self.table.sort_part(part, parts);
    }

    /// Puts the keys that wait into order, all parts of which are sorted.
    pub fn finish_sort(&self, context: &EngineContext, guard: &Guard) {
        self.table.with_accounting(&context.memory, || self.table.finish_sort(guard));
    }

    /// Puts versions behind those that a record has. One writer.
    pub fn append_older(&self, place: ArenaOffset, versions: &[MemtableVersion]) {
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

    /// Keeps a copy of `content`.
    pub fn copy_content(&self, content: &RecordContent<'_>) -> VersionWord {
        let staged;
        let bytes = match content {
            RecordContent::Put(value) => *value,
            RecordContent::Blob(blob) => {
                staged = encode_blob_ref(blob);
                &staged[..]
            }
            RecordContent::Remove => &[],
        };
        let (place, _) = self.table.allocate(8 + bytes.len());
        let start = self.table.arena.at(place);
        // SAFETY:
        // * The place was given out just now with room for so much, and nobody else knows it.
        unsafe {
            start.cast::<u64>().write(bytes.len() as u64);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(8), bytes.len());
        }
        VersionWord(u64::from(place) | COPIED | kind_of(content))
    }

    /// Calls `with` with what a version says.
    #[inline]
    pub fn content<R>(
        &self,
        word: VersionWord,
        context: &EngineContext,
        guard: &Guard,
        with: impl FnOnce(RecordContent<'_>) -> Result<R>,
    ) -> Result<R> {
        if word.is_tombstone() {
            return with(RecordContent::Remove);
        }
        if word.0 & COPIED != 0 {
            let start = self.table.arena.at(low(word.0));
            // SAFETY:
            // * Written by `own` before the word was published: a length and so many bytes, which
            //   never change.
            let bytes = unsafe {
                let len = start.cast::<u64>().read();
                std::slice::from_raw_parts(start.add(8), usize::try_from(len).unwrap_or(0))
            };
            return with(if word.is_blob() {
                RecordContent::Blob(decode_blob_ref(bytes))
            } else {
                RecordContent::Put(bytes)
            });
        }
        let address = Address::from_bits(word.0);
        let frame: Frame<'_> = context.segments.frame(address, guard)?;
        match Record::decode(frame.payload()) {
            Ok(record) => with(record.content),
            Err(what) => Err(context.segments.damage_error(address, what, guard)),
        }
    }

    /// Hints that a version is about to be read.
    pub fn prefetch_frame(&self, word: VersionWord, context: &EngineContext, guard: &Guard) {
        if let Some(address) = word.address() {
            context.segments.prefetch_entry(address, guard);
        }
    }

    /// Brings the beginning of a record into the processor's cache, soon.
    #[inline]
    pub fn prefetch_record(&self, place: ArenaOffset) {
        self.table.prefetch_record(place);
    }

    /// Appends to `out` the records from `low` on, until there are `limit`.
    pub fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.table.ascend(low, limit, guard, out);
    }

    /// Appends to `out` the records from `high` down, until there are `limit`.
    pub fn descend(&self, high: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.table.descend(high, limit, guard, out);
    }
}
