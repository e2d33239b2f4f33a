//! # Index: what the engine asks of what maps keys to entries
//!
//! FlatStore runs on any volatile index (§3.1); so does this engine. An index says where the newest
//! entry of each live key stands; the log says everything else, so an index may answer with entries
//! of other keys and have them told apart by what is read.
//!
//! | index | keeps | order |
//! |---|---|---|
//! | [`crate::hash`] | some bits of each key's hash | none |
//! | [`crate::ordered`] | whole keys | of bytes |
//! | [`crate::plain`] | whole keys, behind one lock: for comparison | of bytes |
//!
//! ## Threads
//!
//! `insert` and `replace` are called by several threads at once, each of which owns the key that it
//! changes: no other thread changes it until the call has returned. A change may become visible,
//! and for a moment invisible again, before its call returns; afterwards every reader sees it.
//! Calls that change the index as a whole, `clear` and `load`, come one at a time and during no
//! other change; `shrink_if_empty` may come during changes. Readers come at any time and bring an
//! epoch guard.

use std::sync::Arc;

pub(crate) use sheaf_base::engine::HashedKey;
use sheaf_base::engine::{Bounds, ImageSink, ImageSource};
use sheaf_base::engine_context::EngineContext;
use sheaf_base::error::{Error, Result};
use sheaf_base::log_entries::AddressSetHash;
use sheaf_base::segment::{Address, DATA_START};
use sheaf_base::sync::epoch::{self, Guard};

use crate::bulk_build::BulkBuild;
use sheaf_base::versions::IndexPlace;
pub(crate) use sheaf_base::versions::PlaceRange;

/// A walk over an index.
pub(crate) trait Walk<I: Index>: Send {
    /// About so many pairs will be asked for.
    fn hint_size(&mut self, _pairs: usize) {}
    /// Adds the entries of the next piece, from the low end or from the high one, to `heads`, in
    /// the order of the walk. Answers which places it looked at, or `None` at the end.
    fn step(
        &mut self,
        index: &I,
        way: ScanDirection,
        guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<PlaceRange<I::Place>>;
}

/// From which end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScanDirection {
    Forward,
    Backward,
}

/// See the module.
pub(crate) trait Index: Send + Sync + Sized + 'static {
    /// The name of an engine with this index in the catalogue.
    const NAME: &'static str;
    /// Whether it walks in the order of keys, both ways.
    const ORDERED: bool;
    /// Where a key stands among others: what old versions are kept by.
    type Place: IndexPlace;
    /// A walk over it.
    type Walk: Walk<Self>;
    /// What it gathers of records that are replayed while it is empty.
    type BulkBuilder: BulkBuild<Self>;

    /// An empty index.
    fn new(context: Arc<EngineContext>) -> Self;
    /// The hash of a key, where one is needed.
    fn hash(&self, key: &[u8]) -> u64;
    /// Where a key stands.
    fn place(&self, hashed_key: HashedKey<'_>) -> Self::Place;

    /// Calls `each` with every entry that may be the key's, until it answers false.
    fn matches(&self, hashed_key: HashedKey<'_>, guard: &Guard, each: impl FnMut(Address) -> bool);
    /// As [`Index::prefetch`], where that costs next to nothing beside the look-up itself.
    fn prefetch_if_cheap(&self, _wanted: HashedKey<'_>, _guard: &Guard) {}
    /// Asks for what a look-up reads to be loaded.
    fn prefetch(&self, hashed_key: HashedKey<'_>, guard: &Guard);
    /// True if a new key finds a place, or the budget has room for the growth it may bring.
    fn has_room_for_key(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> bool;
    /// Adds the entry of a key that has none. The caller owns the key.
    fn insert(&self, hashed_key: HashedKey<'_>, address: Address);
    /// Points the entry at `from` to `to` (`NONE` removes it). False if there is none. The caller
    /// owns the key.
    fn replace(&self, hashed_key: HashedKey<'_>, from: Address, to: Address) -> bool;

    /// A walk over the keys within `bounds`, which are all if it is not ordered.
    fn walk(bounds: Bounds) -> Self::Walk;
    /// Calls `each` with every entry.
    fn for_each(&self, each: impl FnMut(Address));
    /// Forgets everything.
    fn clear(&self);
    /// Whether the index may be empty, now that the entry of `wanted` was removed: a look at its
    /// former place. Of several threads that remove the last entries at once, the last one is told
    /// so.
    fn may_be_empty(&self, _wanted: HashedKey<'_>, _guard: &Guard) -> bool {
        false
    }
    /// Takes the space of an empty index back, so that a walk over it takes no longer than over an
    /// index that never had any entry. Does nothing if there are entries.
    fn shrink_if_empty(&self) {}
    /// Bytes it takes.
    fn bytes(&self) -> u64;

    /// Writes what [`Index::load`] reads.
    fn save(&self, out: &mut dyn ImageSink) -> Result<()>;
    /// Takes up an image, into an empty index.
    fn load(&self, image: &mut IndexImage<'_>) -> Result<()>;

    /// Stands for the set of entries that may be the key's: equal sets, equal prints.
    fn address_set_hash(&self, hashed_key: HashedKey<'_>, guard: &Guard) -> AddressSetHash {
        let mut print = AddressSetHash::default();
        self.matches(hashed_key, guard, |address| {
            print.add(address);
            true
        });
        print
    }

    /// True if an entry that may be the key's stands at `address`.
    fn contains(&self, hashed_key: HashedKey<'_>, address: Address, guard: &Guard) -> bool {
        let mut found = false;
        self.matches(hashed_key, guard, |at| {
            found |= at == address;
            !found
        });
        found
    }
}

/// An image being read, and what it is found to hold.
pub(crate) struct IndexImage<'a> {
    source: &'a mut dyn ImageSource,
    pub(crate) keys: u64,
    /// Entries in each slot's segment.
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

    pub(crate) fn invalid_field(&self, field: &'static str, value: u64) -> Error {
        self.source.invalid_field(field, value)
    }

    /// Counts an entry; where it stands now, or `None` if its segment is gone: what lived there was
    /// superseded or moved since, and replay brings it.
    pub(crate) fn translate_address(&mut self, then: Address) -> Result<Option<Address>> {
        if then.offset() < DATA_START {
            return Err(self.invalid_field("address", then.bits()));
        }
        let Some(slot) = self.source.slot_of(then.slot()) else { return Ok(None) };
        let index = slot as usize; // of 16 bits
        if index >= self.live_by_slot.len() {
            self.live_by_slot.resize(index + 1, 0);
        }
        self.live_by_slot[index] += 1;
        self.keys += 1;
        Ok(Some(Address::new(slot, then.offset())))
    }

    /// Accounts what was found as live: by the mean frame of its segment, until it is superseded.
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
