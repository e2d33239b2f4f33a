//! # The simplest index there is: a sorted map behind one lock
//!
//! For comparison: what `flat-ordered` does better than `flat-plain` is its index's merit, what both do alike is the log's.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, ImageSink};
use sheaf_base::error::Result;
use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::segment::Address;
use sheaf_base::sync::RwLock;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::sync::epoch::Guard;

use crate::index::{Image, Index, Span, Walk, Wanted, Way};
use crate::ordered::image;

/// Estimate of what a key takes beside its bytes: vector, address, allocation, the node's slack.
const BYTES: u64 = 64;
/// Entries of a step.
const STEP: usize = 32;

/// The map.
pub(crate) struct Plain {
    ground: Arc<Ground>,
    map: RwLock<BTreeMap<Vec<u8>, Address>>,
    bytes: AtomicU64,
}

impl Plain {
    fn grow(&self, key: &[u8]) {
        let bytes = BYTES + key.len() as u64;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.ground.memory.take(Part::Index, bytes);
    }

    fn shrink(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.ground.memory.give(Part::Index, bytes);
    }
}

impl Index for Plain {
    const NAME: &'static str = "flat-plain";
    const ORDERED: bool = true;
    type Place = Vec<u8>;
    type Walk = PlainWalk;
    type Gathered = ();

    fn new(ground: Arc<Ground>) -> Plain {
        Plain { ground, map: RwLock::default(), bytes: AtomicU64::new(0) }
    }

    fn hash(&self, _key: &[u8]) -> u64 {
        0
    }

    fn place(&self, wanted: Wanted<'_>) -> Vec<u8> {
        wanted.key.to_vec()
    }

    fn matches(&self, wanted: Wanted<'_>, _guard: &Guard, mut each: impl FnMut(Address) -> bool) {
        let found = self.map.read().get(wanted.key).copied();
        found.map(&mut each);
    }

    fn prefetch(&self, _wanted: Wanted<'_>, _guard: &Guard) {}

    fn may_take(&self, wanted: Wanted<'_>, _guard: &Guard) -> bool {
        self.ground.memory.has_room(BYTES + wanted.key.len() as u64)
    }

    fn insert(&self, wanted: Wanted<'_>, address: Address) {
        if self.map.write().insert(wanted.key.to_vec(), address).is_none() {
            self.grow(wanted.key);
        }
    }

    fn replace(&self, wanted: Wanted<'_>, from: Address, to: Address) -> bool {
        let mut map = self.map.write();
        match map.get_mut(wanted.key) {
            Some(address) if *address == from => *address = to,
            _ => return false,
        }
        if to == Address::NONE {
            map.remove(wanted.key);
            self.shrink(BYTES + wanted.key.len() as u64);
        }
        true
    }

    fn walk(bounds: Bounds) -> PlainWalk {
        PlainWalk { done: bounds.is_empty(), left: bounds }
    }

    fn each(&self, each: impl FnMut(Address)) {
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
        let mut block = image::Block::default();
        let mut walk = Plain::walk(Bounds::all());
        while let Some((pairs, _)) = walk.pairs(self, Way::Up) {
            block.put(pairs.iter().map(|(key, address)| (&**key, *address)), out)?;
        }
        block.end(out)
    }

    fn load(&self, image: &mut Image<'_>) -> Result<()> {
        image::load(image, &mut |key, address| {
            self.insert(Wanted { key, hash: 0 }, address);
        })
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        self.shrink(self.bytes());
    }
}

/// What is left of a range.
pub(crate) struct PlainWalk {
    left: Bounds,
    done: bool,
}

impl PlainWalk {
    /// The pairs of the next step, and what they were looked for in.
    #[allow(clippy::type_complexity)]
    fn pairs(&mut self, index: &Plain, way: Way) -> Option<(Vec<(Vec<u8>, Address)>, Span<Vec<u8>>)> {
        if self.done {
            return None;
        }
        let map = index.map.read();
        let range = map.range((self.left.low.clone(), self.left.high.clone()));
        let own = |(key, address): (&Vec<u8>, &Address)| (key.clone(), *address);
        let pairs: Vec<_> = match way {
            Way::Up => range.take(STEP).map(own).collect(),
            Way::Down => range.rev().take(STEP).map(own).collect(),
        };
        let mut span = (self.left.low.clone(), self.left.high.clone());
        match pairs.last() {
            Some((last, _)) if pairs.len() == STEP => {
                let (end, next) = (Bound::Included(last.clone()), Bound::Excluded(last.clone()));
                match way {
                    Way::Up => (span.1, self.left.low) = (end, next),
                    Way::Down => (span.0, self.left.high) = (end, next),
                }
                self.done = self.left.is_empty();
            }
            _ => self.done = true,
        }
        Some((pairs, span))
    }
}

impl Walk<Plain> for PlainWalk {
    fn step(
        &mut self,
        index: &Plain,
        way: Way,
        _guard: &Guard,
        heads: &mut Vec<Address>,
    ) -> Option<Span<Vec<u8>>> {
        let (pairs, span) = self.pairs(index, way)?;
        heads.extend(pairs.iter().map(|(_, address)| *address));
        Some(span)
    }
}
