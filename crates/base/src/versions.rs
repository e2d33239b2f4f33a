//! # Old versions that views need
//!
//! For engines whose data is the flat log. Where a view is older than a key's newest entry, the entry it shows stands here, by the key's place in the
//! index, so that a cursor finds the old versions of a piece together. At most one version a key and view: a
//! version is kept only if a view falls into its life.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ground::Ground;
use crate::memory::Part;
use crate::segment::Address;
use crate::sync::RwLock;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::Seq;
use crate::views::Views;

/// A range of places.
pub type Span<P> = (Bound<P>, Bound<P>);

/// A superseded entry.
#[derive(Clone, Copy, Debug)]
pub struct Old {
    /// Where it stands.
    pub address: Address,
    /// Bytes of its frame.
    pub span: u32,
    /// Its commit.
    pub born: Seq,
    /// The commit that superseded it.
    pub died: Seq,
    /// The staged value it names.
    pub blob: Option<u64>,
}

/// The versions at one place: hardly ever more than one.
type Olds = SmallVec<[Old; 1]>;

/// Estimate of one version's memory, its place aside: nodes of the map are two thirds full.
const BYTES: u64 = (8 + size_of::<Olds>() as u64) * 3 / 2;

/// What versions are kept by.
pub trait Place: Ord + Send + Sync {
    /// Bytes it has beside itself.
    fn bytes(&self) -> u64;
}

impl Place for (usize, u64) {
    fn bytes(&self) -> u64 {
        0
    }
}

impl Place for u64 {
    fn bytes(&self) -> u64 {
        0
    }
}

impl Place for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// The versions of one keyspace.
#[derive(Debug)]
pub struct Versions<P> {
    ground: Arc<Ground>,
    map: RwLock<BTreeMap<P, Olds>>,
    count: AtomicU64,
    bytes: AtomicU64,
}

impl<P: Place> Versions<P> {
    /// None yet.
    pub fn new(ground: Arc<Ground>) -> Versions<P> {
        Versions { ground, map: RwLock::default(), count: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Keeps `old`.
    pub fn push(&self, place: P, old: Old) {
        let bytes = BYTES + place.bytes();
        self.map.write().entry(place).or_default().push(old);
        self.count.fetch_add(1, Ordering::Release);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.ground.memory.take(Part::Versions, bytes);
    }

    /// The versions at `place` that a view at `at` may show: several only if keys share the place.
    pub fn at(&self, place: &P, at: Seq) -> Vec<Address> {
        let map = self.map.read();
        let olds = map.get(place).map_or(&[][..], SmallVec::as_slice);
        olds.iter().filter(|o| o.born <= at && at < o.died).map(|o| o.address).collect()
    }

    /// The versions within `span` that a view at `at` shows, in the order of places.
    pub fn range(&self, span: Span<P>, at: Seq) -> Vec<Address> {
        let map = self.map.read();
        let olds = map.range(span).flat_map(|(_, olds)| olds);
        olds.filter(|o| o.born <= at && at < o.died).map(|o| o.address).collect()
    }

    /// The first versions within `span` that a view at `at` shows, in the order of places, at most `limit`.
    pub fn first(&self, span: Span<P>, at: Seq, limit: usize) -> Vec<(P, Address)>
    where
        P: Clone,
    {
        let map = self.map.read();
        if is_void(&span) {
            return Vec::new();
        }
        let olds = map.range(span).flat_map(|(place, olds)| olds.iter().map(move |old| (place, old)));
        olds.filter(|(_, o)| o.born <= at && at < o.died)
            .map(|(p, o)| (p.clone(), o.address))
            .take(limit)
            .collect()
    }

    /// The last ones, from the last on.
    pub fn last(&self, span: Span<P>, at: Seq, limit: usize) -> Vec<(P, Address)>
    where
        P: Clone,
    {
        let map = self.map.read();
        if is_void(&span) {
            return Vec::new();
        }
        let olds = map.range(span).rev().flat_map(|(place, olds)| olds.iter().map(move |old| (place, old)));
        olds.filter(|(_, o)| o.born <= at && at < o.died)
            .map(|(p, o)| (p.clone(), o.address))
            .take(limit)
            .collect()
    }

    /// When the oldest of the versions at `place` was born that is younger than `born`.
    pub fn next_born(&self, place: &P, born: Seq) -> Option<Seq> {
        let map = self.map.read();
        map.get(place)?.iter().map(|old| old.born).filter(|other| *other > born).min()
    }

    /// True if a version stands at `address`.
    pub fn contains(&self, place: &P, address: Address) -> bool {
        self.map.read().get(place).is_some_and(|olds| olds.iter().any(|o| o.address == address))
    }

    /// True if a version names the staged value `blob`.
    pub fn names(&self, place: &P, blob: u64) -> bool {
        self.map.read().get(place).is_some_and(|olds| olds.iter().any(|o| o.blob == Some(blob)))
    }

    /// Points the version at `from` to `to`.
    pub fn replace(&self, place: &P, from: Address, to: Address) -> bool {
        let mut map = self.map.write();
        let olds = map.get_mut(place).into_iter().flatten();
        let mut found = false;
        for old in olds.filter(|o| o.address == from) {
            old.address = to;
            found = true;
        }
        found
    }

    /// Numbers of their staged values.
    pub fn blobs(&self) -> HashSet<u64> {
        self.map.read().values().flatten().filter_map(|old| old.blob).collect()
    }

    /// Takes the versions that died up to `visible` and no view needs.
    pub fn trim(&self, views: &Views, visible: Seq) -> Vec<Old> {
        let mut gone = Vec::new();
        self.map.write().retain(|place, olds| {
            self.sift(place, olds, views, visible, &mut gone);
            !olds.is_empty()
        });
        gone
    }

    /// As [`Versions::trim`], of those at `place`.
    pub fn trim_at(&self, place: &P, views: &Views, visible: Seq) -> Vec<Old> {
        let mut gone = Vec::new();
        let mut map = self.map.write();
        if let Some(olds) = map.get_mut(place) {
            self.sift(place, olds, views, visible, &mut gone);
            if olds.is_empty() {
                map.remove(place);
            }
        }
        gone
    }

    fn sift(&self, place: &P, olds: &mut Olds, views: &Views, visible: Seq, gone: &mut Vec<Old>) {
        let before = gone.len();
        olds.retain(|old| {
            let stays = old.died > visible || views.needs(old.born, old.died);
            if !stays {
                gone.push(*old);
            }
            stays
        });
        let count = (gone.len() - before) as u64;
        let bytes = count * (BYTES + place.bytes());
        self.count.fetch_sub(count, Ordering::Release);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.ground.memory.give(Part::Versions, bytes);
    }
}

/// Whether no place can lie within, which a map refuses to be asked about.
fn is_void<P: Ord>(span: &Span<P>) -> bool {
    match span {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    }
}

impl<P> Versions<P> {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl<P> Drop for Versions<P> {
    fn drop(&mut self) {
        self.ground.memory.give(Part::Versions, self.bytes.load(Ordering::Relaxed));
    }
}
