//! # Memtable: commits that are in the journal and not yet in an engine's files
//!
//! Holds the keys (`table.rs`) and the range tombstones (`range_tombstones.rs`); the values stay in
//! the journal. A key has one *record*. The word of the record has the address of the key's newest
//! frame in the journal. Used by engines of the journal that flush to files of their own.
//!
//! ## Picture
//!
//! ```text
//!  record:  word 8 | seq 8 | key length 4 | older 4 | key
//!             |                              └──> older version: word 8 | seq 8 | 0 | older 4
//!             |                                   (only while views need it)
//!             └──> flags | address of the frame in the journal, or of a copy in the arena
//! ```
//!
//! ## Invariants
//!
//! 1. The invariants of `table.rs` hold. The field `older` is its link, to the next older version.
//! 2. A version that a view needs is in the chain before the record's word refers to a newer
//!    version.
//! 3. A frame's address is valid while a reader may hold a state with this memtable. A checkpoint
//!    first replaces that state, and then frees the memtable's part of the journal. The segments
//!    remain until all readers of the old state have finished.
//!
//! ## Threads
//!
//! Any number of threads read, and change records of different keys. The changes of one key come
//! one after the other, in the order of their seqs, because the store holds the stripe of the key.
//! The seqs of different keys come in any order.

pub mod arena;
pub mod deferred_sort;
mod estimate;
#[cfg(all(test, shuttle))]
mod interleavings;
mod memtables;
mod op;
pub mod prefix;
pub mod range_tombstones;
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
use self::range_tombstones::RangeTombstones;
use self::sorted_keys::KeySource;
use self::table::KeyTable;
use self::word::{COPIED, kind_of};
pub use self::word::{VersionWord, decode_blob_ref, encode_blob_ref};
use crate::context::EngineContext;
use crate::views::Views;
use sheaf_log::record::{Record, RecordContent};
use sheaf_log::segment::{Address, Frame};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::Guard;
use smallvec::SmallVec;

/// Bytes of a record before its key.
const HEAD: usize = 24;

/// A record of a memtable: one key and its versions.
#[derive(Clone, Copy)]
pub struct MemtableEntry<'m> {
    memtable: &'m Memtable,
    /// Offset of the record in the arena.
    pub place: ArenaOffset,
}

/// Place of a key in a memtable.
#[derive(Clone, Copy, Debug)]
pub struct KeyPlace {
    /// Hash of the key.
    pub hash: u64,
    /// Record of the key; 0 if there is none.
    pub record: ArenaOffset,
    /// Leaf of the order that was prefetched for a key without a record; 0 if it is unknown.
    leaf: ArenaOffset,
}

impl KeyPlace {
    /// Returns the place of a key with the given hash and record.
    #[must_use]
    pub fn new(hash: u64, record: ArenaOffset) -> KeyPlace {
        KeyPlace { hash, record, leaf: 0 }
    }
}

/// One version of a key.
#[derive(Clone, Copy, Debug)]
pub struct MemtableVersion {
    /// Kind and location of the version.
    pub word: VersionWord,
    /// Seq of the commit that wrote it.
    pub seq: Seq,
}

impl MemtableVersion {
    /// Returns the version of a key that commit `seq` removed.
    #[must_use]
    pub fn removed(seq: Seq) -> MemtableVersion {
        MemtableVersion { word: VersionWord::REMOVED, seq }
    }
}

impl<'m> MemtableEntry<'m> {
    /// Returns the key.
    #[must_use]
    pub fn key(&self) -> &'m [u8] {
        self.memtable.table.key(self.place)
    }

    /// Returns the newest version.
    #[inline]
    pub fn newest(&self) -> MemtableVersion {
        self.memtable.version(self.place)
    }

    /// Returns all versions, newest first. A version may occur twice.
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

    /// Returns the version that a view at `at` sees.
    #[inline]
    pub fn at(&self, at: Seq) -> Option<MemtableVersion> {
        if at == Seq::LATEST {
            return Some(self.newest());
        }
        self.versions().find(|version| version.seq <= at)
    }
}

/// Keys of recent commits, with the locations of their values.
#[derive(Debug)]
pub struct Memtable {
    /// Number of the memtable. It is unique among the memtables of the keyspace.
    pub number: u32,
    table: KeyTable<4>,
    ranges: RangeTombstones,
}

impl Memtable {
    /// Returns an empty memtable. `number` distinguishes it from the keyspace's other memtables.
    /// `prefix` is the prefix that its keys are expected to share.
    #[must_use]
    pub fn new(number: u32, prefix: KeyPrefix, tiny: bool) -> Memtable {
        Memtable { number, table: KeyTable::new(prefix, tiny), ranges: RangeTombstones::default() }
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

    /// Adds `more` to sum number `sum` of the owner. `sum` must be below [`SUMS`](table::SUMS).
    /// Threads do not wait for each other.
    #[inline]
    pub fn add_to_sum(&self, sum: usize, more: u64) {
        self.table.add_to_sum(sum, more);
    }

    /// Returns a sum of the owner. Reads the counters of all threads.
    #[must_use]
    pub fn sum(&self, sum: usize) -> u64 {
        self.table.sum(sum)
    }

    #[inline]
    /// Returns true if the memtable has no key and no range tombstone.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty() && self.ranges.is_empty()
    }

    /// Returns the memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.table.bytes() + self.ranges.bytes()
    }

    /// Returns the range tombstones.
    #[inline]
    pub fn ranges(&self) -> &RangeTombstones {
        &self.ranges
    }

    /// Adds the range tombstone of commit `seq` and reports its memory to the budget.
    pub fn remove_range(
        &self,
        first: &[u8],
        end: Option<&[u8]>,
        seq: Seq,
        views: &Views,
        context: &EngineContext,
        guard: &Guard,
    ) {
        self.ranges.add_counted((first, end), seq, views, &context.memory, guard);
    }

    /// Returns the versions of a key with the given record, newest first, with a tombstone for each
    /// range tombstone that covers the key. A version may occur twice.
    pub fn all_versions(&self, place: ArenaOffset, guard: &Guard) -> SmallVec<[MemtableVersion; 2]> {
        let entry = self.entry(place);
        let mut versions: SmallVec<[MemtableVersion; 2]> = entry.versions().collect();
        if let Some(piece) = self.ranges.piece_of(entry.key(), guard).filter(|_| !self.ranges.is_empty()) {
            versions.extend(piece.seqs.iter().map(|seq| MemtableVersion::removed(*seq)));
            versions.sort_by_key(|version| std::cmp::Reverse(version.seq)); // a put stays first
        }
        versions
    }

    /// Runs `change` and then reports the memtable's memory to the budget.
    pub fn with_accounting<T>(&self, context: &EngineContext, change: impl FnOnce() -> T) -> T {
        self.table.with_accounting(&context.memory, change)
    }

    /// Returns the newest commit in the memtable, or a newer one that is being applied.
    pub fn newest(&self) -> Seq {
        self.table.newest().max(self.ranges.newest())
    }

    /// Returns the prefix that the heads of the keys leave out.
    pub fn prefix(&self, guard: &Guard) -> KeyPrefix {
        self.table.prefix(guard)
    }

    /// Returns the number of records in the stripe of `hash`. A thread that has read this number
    /// finds at least as many records there.
    #[inline]
    pub fn stripe_len(&self, hash: u64) -> u32 {
        self.table.stripe_len(hash)
    }

    /// Returns the record of `key`.
    #[inline]
    pub fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<MemtableEntry<'_>> {
        self.table.find(hash, key, guard).map(|place| self.entry(place))
    }

    /// Returns the record at `place`, an offset that this memtable returned.
    pub fn entry(&self, place: ArenaOffset) -> MemtableEntry<'_> {
        MemtableEntry { memtable: self, place }
    }

    /// Prefetches the memory for a lookup of `hash`.
    pub fn prefetch(&self, hash: u64, guard: &Guard) {
        self.table.prefetch(hash, guard);
    }

    /// Prefetches the record of `hash`, if there is one. Call this some time after
    /// [`Memtable::prefetch`].
    #[inline]
    pub fn prefetch_found(&self, hash: u64, guard: &Guard) {
        self.table.prefetch_found(hash, guard);
    }

    /// Returns the approximate memory of a new key in bytes.
    pub fn cost(key: &[u8]) -> u64 {
        (HEAD + key.len() + 8 + 16 + 18) as u64
    }

    /// Adds a record for a key that has none. Must be called by one thread at a time for each key.
    pub fn add(&self, hash: u64, key: &[u8], version: MemtableVersion, guard: &Guard) {
        self.table.add(hash, key, version.word.0, version.seq, guard);
    }

    /// Gives a record a newer version. Keeps the previous version if a view needs it, and returns
    /// whether it did. Must be called by one thread at a time for each key.
    pub fn replace(&self, place: ArenaOffset, version: MemtableVersion, views: &Views) -> bool {
        let old = self.version(place);
        assert!(old.seq <= version.seq, "memtable (I1): a link leads to an older version");
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

    /// Gives the record of a key at `place` a newer version, or adds a record if there is none.
    /// Reports the memory to the budget. Must be called by one thread at a time for each key.
    /// Returns false if a previous version was not kept.
    pub fn put(
        &self,
        place: KeyPlace,
        key: &[u8],
        version: MemtableVersion,
        views: &Views,
        context: &EngineContext,
        guard: &Guard,
    ) -> bool {
        let (is_kept, is_more) = match place.record {
            0 => {
                let content = (version.word.0, version.seq);
                (true, self.table.add_to(place.leaf, place.hash, key, content, guard))
            }
            record => {
                let is_kept = self.replace(record, version, views);
                (is_kept, is_kept)
            }
        };
        if is_more {
            self.table.update_accounting(&context.memory);
        }
        is_kept
    }

    /// Like [`Memtable::put`], for replay while there are no readers. New keys stay unsorted, as
    /// far as the budget permits, until [`Memtable::finish_sort`]. Must be called by one thread at
    /// a time for each key.
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

    /// Sorts one of `parts` parts of the unsorted keys. Parts may be sorted in parallel.
    pub fn sort_part(&self, part: usize, parts: usize) {
        self.table.sort_part(part, parts);
    }

    /// Merges the sorted parts into the order.
    pub fn finish_sort(&self, context: &EngineContext, guard: &Guard) {
        self.table.with_accounting(&context.memory, || self.table.finish_sort(guard));
    }

    /// Appends versions behind the ones that a record has. Must be called by one thread at a time.
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

    /// Copies `content` into the arena and returns the word of the copy.
    pub fn copy_content(&self, content: &RecordContent<'_>) -> VersionWord {
        let encoded;
        let bytes = match content {
            RecordContent::Put(value) => *value,
            RecordContent::Blob(blob) => {
                encoded = encode_blob_ref(blob);
                &encoded[..]
            }
            RecordContent::Remove | RecordContent::RemoveRange(_) => &[],
        };
        let (place, _) = self.table.allocate(8 + bytes.len());
        let start = self.table.arena.at(place);
        // SAFETY:
        // * The place was allocated just now with room for `8 + bytes.len()` bytes, and no other
        //   thread knows it.
        unsafe {
            start.cast::<u64>().write(bytes.len() as u64);
            ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(8), bytes.len());
        }
        VersionWord(u64::from(place) | COPIED | kind_of(content))
    }

    /// Calls `with` with the content of a version.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`](sheaf_platform::error::Error::Corrupt) if the frame in the
    /// journal is damaged, and the error of `with`.
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
            // * `copy_content` wrote a length and as many bytes there before the word was
            //   published. They never change.
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

    /// Prefetches the frame of a version.
    pub fn prefetch_frame(&self, word: VersionWord, context: &EngineContext, guard: &Guard) {
        if let Some(address) = word.address() {
            context.segments.prefetch_entry(address, guard);
        }
    }

    /// Prefetches the first bytes of a record.
    #[inline]
    pub fn prefetch_record(&self, place: ArenaOffset) {
        self.table.prefetch_record(place);
    }

    /// Appends records to `out` in ascending order from `low`, until `out` has `limit` entries.
    pub fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.table.ascend(low, limit, guard, out);
    }

    /// Appends records to `out` in descending order from `high`, until `out` has `limit` entries.
    pub fn descend(&self, high: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.table.descend(high, limit, guard, out);
    }
}
