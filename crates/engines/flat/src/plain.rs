//! # Plain index: a sorted map behind one lock
//!
//! The simplest possible index, as a baseline for measurements. An advantage of `flat-ordered` over
//! `flat-plain` is due to its index; their common behavior is due to the log.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::context::EngineContext;
use sheaf_engine::contract::{Bounds, ImageSink};
use sheaf_engine::range_estimate::RangeSum;
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::RwLock;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;

use crate::index::{HashedKey, Index, IndexImage, PlaceRange, SampleEntry, ScanDirection, Walk};
use crate::ordered::image;

/// Estimated bytes of an entry in addition to the key: vector, address, allocation, slack of the
/// node.
const KEY_OVERHEAD: u64 = 64;
/// Maximum number of entries of a step.
const STEP_ENTRIES: usize = 32;

/// Sorted map with the address of each key's newest entry.
pub(crate) struct PlainIndex {
    context: Arc<EngineContext>,
    map: RwLock<BTreeMap<Vec<u8>, Address>>,
    bytes: AtomicU64,
}

impl PlainIndex {
    fn grow(&self, key: &[u8]) {
        let bytes = KEY_OVERHEAD + key.len() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.context.memory.take(MemoryPart::Index, bytes);
    }

    fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.context.memory.give_back(MemoryPart::Index, bytes);
    }
}

impl Index for PlainIndex {
    const NAME: &'static str = "flat-plain";
    const ORDERED: bool = true;
    type Place = Vec<u8>;
    type Walk = PlainWalk;
    type BulkBuilder = ();

    fn new(context: Arc<EngineContext>) -> PlainIndex {
        PlainIndex { context, map: RwLock::default(), bytes: AtomicU64::new(0) }
    }

    fn hash(&self, _key: &[u8]) -> u64 {
        0
    }

    fn place(&self, hashed_key: HashedKey<'_>) -> Vec<u8> {
        hashed_key.key.to_vec()
    }

    fn matches(&self, hashed_key: HashedKey<'_>, _guard: &Guard, mut each: impl FnMut(Address) -> bool) {
        let found = self.map.read().get(hashed_key.key).copied();
        found.map(&mut each);
    }

    fn prefetch(&self, _wanted: HashedKey<'_>, _guard: &Guard) {}

    fn has_room_for_key(&self, hashed_key: HashedKey<'_>, _guard: &Guard) -> bool {
        self.context.memory.has_room(KEY_OVERHEAD + hashed_key.key.len() as u64)
    }

    fn insert(&self, hashed_key: HashedKey<'_>, address: Address) {
        if self.map.write().insert(hashed_key.key.to_vec(), address).is_none() {
            self.grow(hashed_key.key);
        }
    }

    fn replace(&self, hashed_key: HashedKey<'_>, from: Address, to: Address) -> bool {
        let mut map = self.map.write();
        match map.get_mut(hashed_key.key) {
            Some(address) if *address == from => *address = to,
            _ => return false,
        }
        if to == Address::NONE {
            map.remove(hashed_key.key);
            self.shrink(KEY_OVERHEAD + hashed_key.key.len() as u64);
        }
        true
    }

    fn walk(bounds: Bounds) -> PlainWalk {
        PlainWalk { is_done: bounds.is_empty(), remaining: bounds }
    }

    /// Reads all entries of the range: this index is for comparison only.
    fn estimate(
        &self,
        (first, end): (&[u8], Option<&[u8]>),
        _guard: &Guard,
        sample: SampleEntry<'_>,
    ) -> Result<RangeSum> {
        let Bounds { low, high } = Bounds::between(first, end);
        let mut sum = RangeSum::default();
        for (_, address) in self.map.read().range((low, high)) {
            sum.add_sample(sample(*address)?, 1.0);
        }
        Ok(sum)
    }

    fn for_each(&self, each: impl FnMut(Address)) {
        self.map.read().values().copied().for_each(each);
    }

    fn clear(&self) {
        self.map.write().clear();
        self.shrink(self.bytes());
    }

    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn save(&self, out: &mut dyn ImageSink) -> Result<()> {
        let mut block = image::ImageBlock::default();
        let mut walk = PlainIndex::walk(Bounds::all());
        while let Some((pairs, _)) = walk.pairs(self, ScanDirection::Forward) {
            block.put(pairs.iter().map(|(key, address)| (&**key, *address)), out)?;
        }
        block.finish(out)
    }

    fn load(&self, image: &mut IndexImage<'_>) -> Result<()> {
        image::load(image, &mut |key, address| {
            self.insert(HashedKey { key, hash: 0 }, address);
        })
    }
}

impl Drop for PlainIndex {
    fn drop(&mut self) {
        self.shrink(self.bytes());
    }
}

/// Remaining range of a walk.
pub(crate) struct PlainWalk {
    remaining: Bounds,
    is_done: bool,
}

impl PlainWalk {
    /// Returns the pairs of the next step, and the range that the step covers.
    #[allow(clippy::type_complexity)]
    fn pairs(
        &mut self,
        index: &PlainIndex,
        way: ScanDirection,
    ) -> Option<(Vec<(Vec<u8>, Address)>, PlaceRange<Vec<u8>>)> {
        if self.is_done {
            return None;
        }
        let map = index.map.read();
        let range = map.range((self.remaining.low.clone(), self.remaining.high.clone()));
        let own = |(key, address): (&Vec<u8>, &Address)| (key.clone(), *address);
        let pairs: Vec<_> = match way {
            ScanDirection::Forward => range.take(STEP_ENTRIES).map(own).collect(),
            ScanDirection::Backward => range.rev().take(STEP_ENTRIES).map(own).collect(),
        };
        let mut span = (self.remaining.low.clone(), self.remaining.high.clone());
        match pairs.last() {
            Some((last, _)) if pairs.len() == STEP_ENTRIES => {
                let (end, next) = (Bound::Included(last.clone()), Bound::Excluded(last.clone()));
                match way {
                    ScanDirection::Forward => (span.1, self.remaining.low) = (end, next),
                    ScanDirection::Backward => (span.0, self.remaining.high) = (end, next),
                }
                self.is_done = self.remaining.is_empty();
            }
            _ => self.is_done = true,
        }
        Some((pairs, span))
    }
}

impl Walk<PlainIndex> for PlainWalk {
    fn step(
        &mut self,
        index: &PlainIndex,
        way: ScanDirection,
        _guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<PlaceRange<Vec<u8>>> {
        let (pairs, span) = self.pairs(index, way)?;
        heads.extend(pairs.iter().map(|(_, address)| *address));
        Some(span)
    }
}
