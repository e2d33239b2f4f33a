//! # Index: mapping from keys to log addresses
//!
//! Defines the trait that the engine requires of its index. FlatStore runs on any volatile index
//! (§3.1). An index refers to the newest entry of each live key. It may also return entries of
//! other keys: the engine reads an entry and compares its key.
//!
//! | index | stores | order |
//! |---|---|---|
//! | [`crate::hash`] | some bits of each key's hash | none |
//! | [`ordered`](mod@crate::ordered) | whole keys | of bytes |
//! | `plain` (feature `plain-index`) | whole keys, behind one lock: for comparison | of bytes |
//!
//! ## Threads
//!
//! - `insert` and `replace` run in parallel for different keys. The caller owns the key: no other
//!   thread changes it until the call returns. During the call one reader may see the change and a
//!   later reader not, because a split can repeat the change. After the call every reader sees it.
//! - `clear` and `load` change the whole index. They run one at a time, and not during other
//!   changes.
//! - `shrink_if_empty` may run during changes.
//! - Readers may run at any time. They must hold an epoch guard.

use std::sync::Arc;

use sheaf_engine::context::EngineContext;
pub(crate) use sheaf_engine::contract::HashedKey;
use sheaf_engine::contract::{Bounds, ImageSink, ImageSource};
use sheaf_engine::log_entries::AddressSetHash;
use sheaf_engine::range_estimate::{KeySample, RangeSum};
use sheaf_log::segment::{Address, DATA_START};
use sheaf_platform::error::{Error, Expected, Result};
use sheaf_platform::sync::epoch::{self, Guard};

use crate::bulk_build::BulkBuild;
use sheaf_engine::versions::IndexPlace;
pub(crate) use sheaf_engine::versions::PlaceRange;

/// Iterator over an index.
pub(crate) trait Walk<I: Index>: Send {
    /// Announces the number of pairs that the caller will probably read.
    fn hint_size(&mut self, _pairs: usize) {}
    /// Appends the entries of the next piece, from the low or the high end, to `heads` in the order
    /// of the walk. Returns the range of places that the piece covers, or `None` at the end.
    fn step(
        &mut self,
        index: &I,
        way: ScanDirection,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<PlaceRange<I::Place>>;
}

/// Reads a sampled entry of an index.
pub(crate) type SampleEntry<'a> = &'a dyn Fn(Address) -> Result<KeySample>;

/// Direction of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanDirection {
    Forward,
    Backward,
}

/// Volatile index of one keyspace. The module states the rules for threads.
pub(crate) trait Index: Send + Sync + Sized + 'static {
    /// Name of the engine with this index, as in the catalog.
    const NAME: &'static str;
    /// True if walks follow the order of keys, in both directions.
    const ORDERED: bool;
    /// Position of a key, under which its old versions are kept.
    type Place: IndexPlace;
    /// Iterator over this index.
    type Walk: Walk<Self>;
    /// Buffer for records that are replayed while the index is empty.
    type BulkBuilder: BulkBuild<Self>;

    /// Returns an empty index.
    fn new(context: Arc<EngineContext>) -> Self;
    /// Returns the hash of a key, or 0 if the index needs no hash.
    fn hash(&self, key: &[u8]) -> u64;
    /// Returns the place of a key.
    fn place(&self, hashed_key: HashedKey<'_>) -> Self::Place;

    /// Calls `each` with every entry that may belong to the key, until `each` returns false.
    fn matches(&self, hashed_key: HashedKey<'_>, guard: &Guard, each: impl FnMut(Address) -> bool);
    /// Like [`Index::prefetch`], if a prefetch is nearly free compared with the lookup itself.
    fn prefetch_if_cheap(&self, _wanted: HashedKey<'_>, _guard: &Guard) {}
    /// Prefetches the memory that a lookup reads.
    fn prefetch(&self, hashed_key: HashedKey<'_>, guard: &Guard);
    /// Returns true if a new key fits into the index, or if the budget allows the growth it may
    /// cause.
    fn has_room_for_key(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> bool;
    /// Adds the entry of a key that has none. The caller owns the key.
    fn insert(&self, hashed_key: HashedKey<'_>, address: Address);
    /// Replaces the address `from` of an entry by `to`; [`Address::NONE`] removes the entry.
    /// Returns false if the key has no entry at `from`. The caller owns the key.
    fn replace(&self, hashed_key: HashedKey<'_>, from: Address, to: Address) -> bool;

    /// Returns an iterator over the keys within `bounds`. If the index is not ordered, `bounds` is
    /// the range of all keys.
    fn walk(bounds: Bounds) -> Self::Walk;
    /// Estimates the pairs from the first key of `range` on and below its end; `sample` reads an
    /// entry. Returns `Error::Unsupported` if the index is not ordered.
    fn estimate(
        &self,
        range: (&[u8], Option<&[u8]>),
        guard: &Guard,
        sample: SampleEntry<'_>,
    ) -> Result<RangeSum> {
        let _ = (range, guard, sample);
        Err(Error::Unsupported { engine: Self::NAME, feature: "estimates of ranges" })
    }
    /// Calls `each` with every entry.
    fn for_each(&self, each: impl FnMut(Address));
    /// Removes all entries.
    fn clear(&self);
    /// Returns whether the index may be empty, after the entry of `wanted` was removed. Looks only
    /// at the former place of that entry. If several threads remove the last entries at once, the
    /// call of the last one returns true.
    fn may_be_empty(&self, _wanted: HashedKey<'_>, _guard: &Guard) -> bool {
        false
    }
    /// Frees the space of an empty index, so that a walk is as fast as over an index that was
    /// always empty. Does nothing if there are entries.
    fn shrink_if_empty(&self) {}
    /// Returns the size of the index in bytes.
    fn bytes(&self) -> u64;

    /// Writes the image that [`Index::load`] reads.
    fn save(&self, out: &mut dyn ImageSink) -> Result<()>;
    /// Loads an image into an empty index.
    fn load(&self, image: &mut IndexImage<'_>) -> Result<()>;

    /// Returns a hash of the set of entries that may belong to the key. Equal sets have equal
    /// hashes.
    fn address_set_hash(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> AddressSetHash {
        let mut print = AddressSetHash::default();
        self.matches(hashed_key, guard, |address| {
            print.add(address);
            true
        });
        print
    }

    /// Returns true if an entry at `address` may belong to the key.
    fn contains(&self, hashed_key: HashedKey<'_>, address: Address, guard: &Guard) -> bool {
        let mut found = false;
        self.matches(hashed_key, guard, |at| {
            found |= at == address;
            !found
        });
        found
    }
}

/// Image that is being read, with counts of the entries read so far.
pub(crate) struct IndexImage<'a> {
    source: &'a mut dyn ImageSource,
    pub(crate) keys: u64,
    /// Number of entries in the segment of each slot.
    live_by_slot: Vec<u64>,
}

impl<'a> IndexImage<'a> {
    pub(crate) fn new(source: &'a mut dyn ImageSource) -> IndexImage<'a> {
        IndexImage { source, keys: 0, live_by_slot: Vec::new() }
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.source.fill(bytes)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.fill(&mut byte)?;
        Ok(byte[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        self.fill(&mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    pub(crate) fn invalid_field(&self, field: &'static str, expected: Expected, got: u64) -> Error {
        self.source.invalid_field(field, expected, got)
    }

    /// Counts an entry and returns its present address. Returns `None` if its segment was freed:
    /// the entry was superseded or moved since then, and replay brings the newer one.
    pub(crate) fn translate_address(&mut self, then: Address) -> Result<Option<Address>> {
        if then.offset() < DATA_START {
            return Err(self.invalid_field("offset of a record", (DATA_START..).into(), then.offset()));
        }
        let Some(slot) = self.source.slot_of(then.slot()) else { return Ok(None) };
        let index = slot as usize; // at most 16 bits
        if index >= self.live_by_slot.len() {
            self.live_by_slot.resize(index + 1, 0);
        }
        self.live_by_slot[index] += 1;
        self.keys += 1;
        Ok(Some(Address::new(slot, then.offset())))
    }

    /// Counts the loaded entries as live, each with the mean frame size of its segment.
    pub(crate) fn account_live(&self, context: &EngineContext) {
        let guard = epoch::pin();
        for (slot, count) in (0..).zip(&self.live_by_slot).filter(|(_, count)| **count > 0) {
            if let Some(segment) = context.segments.at(slot, &guard) {
                let bytes = count.saturating_mul(segment.mean_frame());
                segment.add_live(i64::try_from(bytes).unwrap_or(0));
            }
        }
    }
}
