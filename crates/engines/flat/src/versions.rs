//! # Old versions that views need
//!
//! Where a view is older than a key's newest entry, the entry it shows stands here, by place in the index
//! (unit, then hash), so that a cursor finds a table's old versions together. At most one version a key and
//! view: a version is kept only if a view falls into its life.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_base::ground::Ground;
use sheaf_base::memory::Part;
use sheaf_base::segment::Address;
use sheaf_base::sync::RwLock;
use sheaf_base::sync::atomic::{AtomicU64, Ordering};
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

/// A superseded entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    pub(crate) address: Address,
    pub(crate) span: u32,
    pub(crate) born: Seq,
    pub(crate) died: Seq,
    pub(crate) blob: Option<u64>,
}

/// Estimate of one version's memory.
const BYTES: u64 = 96;

/// The versions of one keyspace.
pub(crate) struct Versions {
    ground: Arc<Ground>,
    map: RwLock<BTreeMap<(usize, u64), Vec<Old>>>,
    count: AtomicU64,
}

impl Versions {
    pub(crate) fn new(ground: Arc<Ground>) -> Versions {
        Versions { ground, map: RwLock::default(), count: AtomicU64::new(0) }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Keeps `old`.
    pub(crate) fn push(&self, unit: usize, hash: u64, old: Old) {
        self.map.write().entry((unit, hash)).or_default().push(old);
        self.count.fetch_add(1, Ordering::Release);
        self.ground.memory.take(Part::Versions, BYTES);
    }

    /// The versions under `hash` that a view at `at` may show: several only if keys share the hash.
    pub(crate) fn at(&self, unit: usize, hash: u64, at: Seq) -> Vec<Address> {
        let map = self.map.read();
        let olds = map.get(&(unit, hash)).map_or(&[][..], Vec::as_slice);
        olds.iter().filter(|o| o.born <= at && at < o.died).map(|o| o.address).collect()
    }

    /// The versions of `unit` with hashes from `first` to `last` that a view at `at` shows.
    pub(crate) fn range(&self, unit: usize, first: u64, last: u64, at: Seq) -> Vec<Address> {
        let map = self.map.read();
        let olds = map.range((unit, first)..=(unit, last)).flat_map(|(_, olds)| olds);
        olds.filter(|o| o.born <= at && at < o.died).map(|o| o.address).collect()
    }

    /// True if a version stands at `address`.
    pub(crate) fn contains(&self, unit: usize, hash: u64, address: Address) -> bool {
        self.map.read().get(&(unit, hash)).is_some_and(|olds| olds.iter().any(|o| o.address == address))
    }

    /// Points the version at `from` to `to`.
    pub(crate) fn replace(&self, unit: usize, hash: u64, from: Address, to: Address) -> bool {
        let mut map = self.map.write();
        let olds = map.get_mut(&(unit, hash)).into_iter().flatten();
        let mut found = false;
        for old in olds.filter(|o| o.address == from) {
            old.address = to;
            found = true;
        }
        found
    }

    /// Takes the versions that died up to `visible` and no view needs.
    pub(crate) fn trim(&self, views: &Views, visible: Seq) -> Vec<Old> {
        let mut gone = Vec::new();
        self.map.write().retain(|_, olds| {
            olds.retain(|old| {
                let stays = old.died > visible || views.needs(old.born, old.died);
                if !stays {
                    gone.push(*old);
                }
                stays
            });
            !olds.is_empty()
        });
        self.count.fetch_sub(gone.len() as u64, Ordering::Release);
        self.ground.memory.give(Part::Versions, BYTES * gone.len() as u64);
        gone
    }
}

impl Drop for Versions {
    fn drop(&mut self) {
        self.ground.memory.give(Part::Versions, BYTES * self.count());
    }
}
