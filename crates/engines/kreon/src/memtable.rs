//! # Memtable: L0, a hash table and an ordered tree in memory
//!
//! Keys are in memory (`KeyTable` of `sheaf_engine::memtable`), values are in the log. The table
//! has one record per key. The word of the record contains the address of the key's newest version
//! in the log, or marks a tombstone. One memtable takes commits; the previous one may be frozen
//! while it is spilled into the levels.
//!
//! ```text
//!  word:  flags 4 | span / 8: 20 | address 40
//! ```
//!
//! ## Invariants
//!
//! 1. The invariants of the key table hold.
//! 2. A version that is superseded here and that a view needs is among the old versions before the
//!    word changes.
//! 3. A version that a range tombstone hides stays in the table, accounted as live, until a newer
//!    one of its key supersedes it or a spill retires it. GC moves its record until then.

use std::ops::Bound;

use sheaf_engine::memtable::MemtableLayer;
use sheaf_engine::memtable::arena::ArenaOffset;
use sheaf_engine::memtable::prefix::KeyPrefix;
use sheaf_engine::memtable::range_tombstones::RangeTombstones;
use sheaf_engine::memtable::sorted_keys::KeySource;
use sheaf_engine::memtable::table::KeyTable;
use sheaf_engine::range_estimate::{KeySample, RangeSum};
use sheaf_engine::versions::OldVersion;
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::memory::Memory;
use sheaf_platform::sync::epoch::Guard;

/// Approximate memory of a key besides its bytes.
const KEY_OVERHEAD: usize = 20 + 8 + 16 + 18;

const TOMBSTONE: u64 = 1 << 62;
const HAS_BLOB: u64 = 1 << 61;
const LOWER_UNACCOUNTED: u64 = 1 << 60;
const SPAN_BITS: u32 = 20;

/// The state of a record: the address and the flags of its newest version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordWord(u64);

impl RecordWord {
    pub(crate) fn put(address: Address, span: u64, is_blob: bool) -> RecordWord {
        let units = (span / 8).min((1 << SPAN_BITS) - 1);
        RecordWord(address.bits() | units << Address::BITS | if is_blob { HAS_BLOB } else { 0 })
    }

    /// Decodes a word of an image. Returns `None` if it does not describe a value in the log.
    pub(crate) fn from_image(bits: u64) -> Option<RecordWord> {
        let word = RecordWord(bits);
        (bits & !(HAS_BLOB - 1) == 0 && !word.is_lower_unaccounted()).then_some(word)
    }

    /// Returns the word as an image contains it.
    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    pub(crate) fn tombstone() -> RecordWord {
        RecordWord(TOMBSTONE)
    }

    /// Returns the word with or without the flag that lower entries of the key are not accounted as
    /// live any more.
    pub(crate) fn with_lower_unaccounted(self, is: bool) -> RecordWord {
        RecordWord(if is { self.0 | LOWER_UNACCOUNTED } else { self.0 })
    }

    pub(crate) fn with_address(self, address: Address) -> RecordWord {
        RecordWord(self.0 & !((1 << Address::BITS) - 1) | address.bits())
    }

    pub(crate) fn is_tombstone(self) -> bool {
        self.0 & TOMBSTONE != 0
    }

    pub(crate) fn is_blob(self) -> bool {
        self.0 & HAS_BLOB != 0
    }

    pub(crate) fn is_lower_unaccounted(self) -> bool {
        self.0 & LOWER_UNACCOUNTED != 0
    }

    pub(crate) fn address(self) -> Address {
        Address::from_bits(self.0)
    }

    pub(crate) fn span(self) -> u64 {
        (self.0 >> Address::BITS & ((1 << SPAN_BITS) - 1)) * 8
    }

    pub(crate) fn points_at(self, address: Address) -> bool {
        !self.is_tombstone() && self.address() == address
    }
}

/// Index of a memtable sum: removals that it took.
pub(crate) const REMOVALS: usize = 0;
/// Index of a memtable sum: bytes that its records are estimated to supersede.
pub(crate) const SUPERSEDED_BYTES: usize = 1;

/// A version of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KreonVersion {
    pub(crate) word: RecordWord,
    pub(crate) seq: Seq,
}

impl KreonVersion {
    /// Returns the version as an old version that commit `end_seq` superseded.
    pub(crate) fn into_old_version(self, end_seq: Seq, blob: Option<u64>) -> OldVersion {
        let KreonVersion { word, seq: begin_seq } = self;
        let (address, span) = match word.is_tombstone() {
            true => (Address::NONE, 0),
            false => (word.address(), u32::try_from(word.span()).unwrap_or(u32::MAX)),
        };
        OldVersion { address, span, begin_seq, end_seq, blob }
    }
}

/// A memtable; see the header of the module.
#[derive(Debug)]
pub(crate) struct KreonMemtable {
    /// Number of the memtable, different from that of the next one.
    pub(crate) number: u32,
    table: KeyTable<0>,
    ranges: RangeTombstones,
}

impl MemtableLayer for KreonMemtable {
    fn next(&self, tiny: bool, guard: &Guard) -> KreonMemtable {
        KreonMemtable::new(self.number.wrapping_add(1), self.table.prefix(guard), tiny)
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.table.is_empty() && self.ranges.is_empty()
    }

    fn bytes(&self) -> u64 {
        self.table.bytes() + self.ranges.bytes()
    }

    #[inline]
    fn prefetch(&self, hash: u64, guard: &Guard) {
        self.table.prefetch(hash, guard);
    }

    fn uncount_memory(&self, memory: &Memory) {
        self.table.uncount_memory(memory);
        self.ranges.uncount_memory(memory);
    }
}

impl KreonMemtable {
    pub(crate) fn new(number: u32, prefix: KeyPrefix, tiny: bool) -> KreonMemtable {
        KreonMemtable { number, table: KeyTable::new(prefix, tiny), ranges: RangeTombstones::default() }
    }

    /// Returns the range tombstones.
    #[inline]
    pub(crate) fn ranges(&self) -> &RangeTombstones {
        &self.ranges
    }

    /// Returns true if one of its own range tombstones hides `version` of `key`.
    pub(crate) fn hides(&self, key: &[u8], version: KreonVersion, guard: &Guard) -> bool {
        version.seq < self.ranges.seq_of(key, Seq::LATEST, guard)
    }

    /// Returns the newest commit in it.
    pub(crate) fn newest(&self) -> Seq {
        self.table.newest().max(self.ranges.newest())
    }

    /// Returns the number of keys, removed ones included.
    pub(crate) fn count(&self) -> u64 {
        self.table.count()
    }

    /// Adds `more` to one of the sums, `REMOVALS` or `SUPERSEDED_BYTES`. Threads do not contend.
    #[inline]
    pub(crate) fn add_to_sum(&self, sum: usize, more: u64) {
        self.table.add_to_sum(sum, more);
    }

    /// Returns one of the sums.
    pub(crate) fn sum(&self, sum: usize) -> u64 {
        self.table.sum(sum)
    }

    /// Sets one of the sums to zero. No commit may be in progress.
    pub(crate) fn clear_sum(&self, sum: usize) {
        self.table.clear_sum(sum);
    }

    /// Returns the approximate memory of a new key.
    pub(crate) fn key_cost(key: &[u8]) -> u64 {
        (KEY_OVERHEAD + key.len()) as u64
    }

    /// Returns the number of records in the part of the hash table that has `hash`. A later lookup
    /// by the same thread finds at least these records.
    #[inline]
    pub(crate) fn hash_part_len(&self, hash: u64) -> u32 {
        self.table.stripe_len(hash)
    }

    /// Returns the record of `key`.
    #[inline]
    pub(crate) fn find(&self, hash: u64, key: &[u8], guard: &Guard) -> Option<ArenaOffset> {
        self.table.find(hash, key, guard)
    }

    /// Returns the key of a record.
    #[inline]
    pub(crate) fn key(&self, place: ArenaOffset) -> &[u8] {
        self.table.key(place)
    }

    /// Prefetches a record into the processor's cache.
    #[inline]
    pub(crate) fn prefetch_record(&self, place: ArenaOffset) {
        self.table.prefetch_record(place);
    }

    /// Returns the current version of the record at `place`.
    #[inline]
    pub(crate) fn version(&self, place: ArenaOffset) -> KreonVersion {
        let (word, seq) = self.table.get(place);
        KreonVersion { word: RecordWord(word), seq }
    }

    /// Like [`KreonMemtable::put`], at an opening while no thread reads. New keys are in order only
    /// after [`KreonMemtable::finish_sort`].
    pub(crate) fn put_unsorted(
        &self,
        place: ArenaOffset,
        hash: u64,
        key: &[u8],
        version: KreonVersion,
        memory: &Memory,
        guard: &Guard,
    ) {
        self.table.put_unsorted(place, hash, key, (version.word.0, version.seq), memory, guard);
    }

    /// Sorts one of `parts` parts of the pending keys. Threads may sort different parts
    /// concurrently.
    pub(crate) fn sort_part(&self, part: usize, parts: usize) {
        self.table.sort_part(part, parts);
    }

    /// Inserts the pending keys in order, after all parts were sorted.
    pub(crate) fn finish_sort(&self, memory: &Memory, guard: &Guard) {
        self.table.with_accounting(memory, || self.table.finish_sort(guard));
    }

    /// Changes the version of the record at `place`, or adds a record if `place` is 0, and counts
    /// its memory. Only one thread at a time may call this for one key.
    pub(crate) fn put(
        &self,
        place: ArenaOffset,
        hash: u64,
        key: &[u8],
        version: KreonVersion,
        memory: &Memory,
        guard: &Guard,
    ) {
        if place != 0 {
            return self.replace(place, version);
        }
        if self.table.add(hash, key, version.word.0, version.seq, guard) {
            self.table.update_accounting(memory);
        }
    }

    /// Replaces the version of a record, or the address of the same version. Only one thread at a
    /// time may call this for one key.
    pub(crate) fn replace(&self, place: ArenaOffset, version: KreonVersion) {
        self.table.set(place, version.word.0, version.seq);
    }

    /// Estimates the pairs from `first` on and below `end`. `sample` reads a record.
    pub(crate) fn estimate(
        &self,
        range: (&[u8], Option<&[u8]>),
        guard: &Guard,
        sample: &dyn Fn(ArenaOffset) -> Result<KeySample>,
    ) -> Result<RangeSum> {
        self.table.estimate(range, guard, sample)
    }

    /// Appends up to `limit` records from `low` upwards to `out`.
    pub(crate) fn ascend(&self, low: Bound<&[u8]>, limit: usize, guard: &Guard, out: &mut Vec<ArenaOffset>) {
        self.table.ascend(low, limit, guard, out);
    }

    /// Appends up to `limit` records from `high` downwards to `out`.
    pub(crate) fn descend(
        &self,
        high: Bound<&[u8]>,
        limit: usize,
        guard: &Guard,
        out: &mut Vec<ArenaOffset>,
    ) {
        self.table.descend(high, limit, guard, out);
    }
}
