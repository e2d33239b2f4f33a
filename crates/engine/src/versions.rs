//! # Old versions: superseded entries that views need
//!
//! For the engines of a store log. If a view is older than a key's newest entry, the entry that it
//! sees is kept here, by the key's place in the index. A cursor therefore finds the old versions of
//! a range together. There is at most one version for a key and view: a version is kept only if a
//! view falls into its lifetime.
//!
//! ## Threads
//!
//! Commits of different keys push in parallel, each before the index refers to the new entry. A
//! reader that finds an entry newer than its view in the index, and then looks here, therefore
//! finds the old one. The count and the newest `end_seq`, which it checks first, were raised
//! before. A concurrent trim keeps all versions that were superseded after `visible`, and so the
//! ones being pushed.

use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::context::EngineContext;
use crate::views::Views;
use sheaf_log::segment::Address;
use sheaf_log::types::Seq;
use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::{Mutex, RwLock};

/// Range of index places.
pub type PlaceRange<P> = (Bound<P>, Bound<P>);

/// A superseded entry.
#[derive(Clone, Copy, Debug)]
pub struct OldVersion {
    /// Log address of the entry.
    pub address: Address,
    /// Bytes of its frame.
    pub span: u32,
    /// Seq of the commit that wrote it.
    pub begin_seq: Seq,
    /// Seq of the commit that superseded it.
    pub end_seq: Seq,
    /// Blob that the entry refers to.
    pub blob: Option<u64>,
}

/// Versions at one place: rarely more than one.
type VersionsAtPlace = SmallVec<[OldVersion; 1]>;

/// Estimated memory of one version in bytes, without its place: nodes of the map are two thirds
/// full.
const VERSION_BYTES: u64 = (8 + size_of::<VersionsAtPlace>() as u64) * 3 / 2;

/// Place of a key in the index, as the key of the map of versions.
pub trait IndexPlace: Ord + Send + Sync {
    /// Returns the bytes that the place owns on the heap.
    fn bytes(&self) -> u64;
}

impl IndexPlace for (usize, u64) {
    fn bytes(&self) -> u64 {
        0
    }
}

impl IndexPlace for u64 {
    fn bytes(&self) -> u64 {
        0
    }
}

impl IndexPlace for Vec<u8> {
    fn bytes(&self) -> u64 {
        self.len() as u64
    }
}

/// Old versions of one keyspace.
#[derive(Debug)]
pub struct OldVersions<P> {
    context: Arc<EngineContext>,
    map: RwLock<BTreeMap<P, VersionsAtPlace>>,
    count: AtomicU64,
    bytes: AtomicU64,
    /// Newest commit that superseded any version pushed so far.
    newest_end_seq: AtomicU64,
    /// Number of versions pushed so far.
    pushed: AtomicU64,
    /// State at the last trim: the number of pushed versions, and the views that may have needed
    /// some.
    trimmed: Mutex<(u64, Vec<Seq>)>,
}

impl<P: IndexPlace> OldVersions<P> {
    /// Returns an empty set of versions.
    pub fn new(context: Arc<EngineContext>) -> OldVersions<P> {
        let zero = AtomicU64::default;
        OldVersions {
            context,
            map: RwLock::default(),
            count: zero(),
            bytes: zero(),
            newest_end_seq: zero(),
            pushed: zero(),
            trimmed: Mutex::default(),
        }
    }

    /// Returns true if there are no versions.
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// Adds `old`.
    pub fn push(&self, place: P, old: OldVersion) {
        let bytes = VERSION_BYTES + place.bytes();
        self.newest_end_seq.fetch_max(old.end_seq.0, Ordering::AcqRel); // before it can be found
        self.map.write().entry(place).or_default().push(old);
        self.count.fetch_add(1, Ordering::Release);
        self.pushed.fetch_add(1, Ordering::Release);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.context.memory.take(MemoryPart::Versions, bytes);
    }

    /// Returns the newest commit that superseded any version pushed so far.
    #[inline]
    pub fn newest_end_seq(&self) -> Seq {
        Seq(self.newest_end_seq.load(Ordering::Acquire))
    }

    /// Returns true if a view at `at` may see any of the versions. A newer view sees newer entries.
    #[inline]
    pub fn may_show(&self, at: Seq) -> bool {
        !self.is_empty() && at < self.newest_end_seq()
    }

    /// Returns the versions at `place` that a view at `at` may see. More than one only if keys
    /// share the place.
    pub fn at(&self, place: &P, at: Seq) -> Vec<Address> {
        if !self.may_show(at) {
            return Vec::new();
        }
        let map = self.map.read();
        let olds = map.get(place).map_or(&[][..], SmallVec::as_slice);
        olds.iter().filter(|o| o.begin_seq <= at && at < o.end_seq).map(|o| o.address).collect()
    }

    /// Returns the versions in `span` that a view at `at` sees, in the order of places.
    pub fn range(&self, span: PlaceRange<P>, at: Seq) -> Vec<Address> {
        if !self.may_show(at) {
            return Vec::new();
        }
        let map = self.map.read();
        let olds = map.range(span).flat_map(|(_, olds)| olds);
        olds.filter(|o| o.begin_seq <= at && at < o.end_seq).map(|o| o.address).collect()
    }

    /// Returns the first versions in `span` that a view at `at` sees, at most `limit`, in the order
    /// of places.
    pub fn first(&self, span: PlaceRange<P>, at: Seq, limit: usize) -> Vec<(P, Address)>
    where
        P: Clone,
    {
        if is_empty_range(&span) || !self.may_show(at) {
            return Vec::new();
        }
        let map = self.map.read();
        let olds = map.range(span).flat_map(|(place, olds)| olds.iter().map(move |old| (place, old)));
        olds.filter(|(_, o)| o.begin_seq <= at && at < o.end_seq)
            .map(|(p, o)| (p.clone(), o.address))
            .take(limit)
            .collect()
    }

    /// Returns the last versions in `span` that a view at `at` sees, at most `limit`, in descending
    /// order of places.
    pub fn last(&self, span: PlaceRange<P>, at: Seq, limit: usize) -> Vec<(P, Address)>
    where
        P: Clone,
    {
        if is_empty_range(&span) || !self.may_show(at) {
            return Vec::new();
        }
        let map = self.map.read();
        let olds = map.range(span).rev().flat_map(|(place, olds)| olds.iter().map(move |old| (place, old)));
        olds.filter(|(_, o)| o.begin_seq <= at && at < o.end_seq)
            .map(|(p, o)| (p.clone(), o.address))
            .take(limit)
            .collect()
    }

    /// Returns the smallest `begin_seq` above `begin` of the versions at `place`.
    pub fn next_begin_seq(&self, place: &P, begin: Seq) -> Option<Seq> {
        let map = self.map.read();
        map.get(place)?.iter().map(|old| old.begin_seq).filter(|other| *other > begin).min()
    }

    /// Returns true if there is a version with this address at `place`.
    pub fn contains(&self, place: &P, address: Address) -> bool {
        self.map.read().get(place).is_some_and(|olds| olds.iter().any(|o| o.address == address))
    }

    /// Returns true if a version at `place` refers to `blob`.
    pub fn refers_to_blob(&self, place: &P, blob: u64) -> bool {
        self.map.read().get(place).is_some_and(|olds| olds.iter().any(|o| o.blob == Some(blob)))
    }

    /// Changes the address of the version at `from` to `to`. Returns whether there is one.
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

    /// Returns the blobs that the versions refer to.
    pub fn blobs(&self) -> HashSet<u64> {
        self.map.read().values().flatten().filter_map(|old| old.blob).collect()
    }

    /// Removes and returns the versions that were superseded at or before `visible` and that no
    /// view needs. Examines all versions, unless none was added since the last call and the same
    /// views may need some.
    pub fn trim(&self, views: &Views, visible: Seq) -> Vec<OldVersion> {
        let mut gone = Vec::new();
        let came = self.pushed.load(Ordering::Acquire);
        let needing = views.before(self.newest_end_seq());
        let mut trimmed = self.trimmed.lock();
        if *trimmed == (came, needing.clone()) {
            return gone;
        }
        // Versions superseded after `visible` are examined again.
        let is_all = self.newest_end_seq() <= visible;
        *trimmed = (if is_all { came } else { u64::MAX }, needing);
        drop(trimmed);
        self.map.write().retain(|place, olds| {
            self.remove_unneeded(place, olds, views, visible, &mut gone);
            !olds.is_empty()
        });
        gone
    }

    /// Like [`OldVersions::trim`], but only for `place`.
    pub fn trim_at(&self, place: &P, views: &Views, visible: Seq) -> Vec<OldVersion> {
        let mut gone = Vec::new();
        let mut map = self.map.write();
        if let Some(olds) = map.get_mut(place) {
            self.remove_unneeded(place, olds, views, visible, &mut gone);
            if olds.is_empty() {
                map.remove(place);
            }
        }
        gone
    }

    fn remove_unneeded(
        &self,
        place: &P,
        olds: &mut VersionsAtPlace,
        views: &Views,
        visible: Seq,
        gone: &mut Vec<OldVersion>,
    ) {
        let before = gone.len();
        olds.retain(|old| {
            let stays = old.end_seq > visible || views.needs(old.begin_seq, old.end_seq);
            if !stays {
                gone.push(*old);
            }
            stays
        });
        let count = (gone.len() - before) as u64;
        let bytes = count * (VERSION_BYTES + place.bytes());
        self.count.fetch_sub(count, Ordering::Release);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.context.memory.give_back(MemoryPart::Versions, bytes);
    }
}

/// Returns true if the range cannot contain a place. A `BTreeMap` panics for such a range.
fn is_empty_range<P: Ord>(span: &PlaceRange<P>) -> bool {
    match span {
        (Bound::Included(low), Bound::Included(high)) => low > high,
        (Bound::Included(low) | Bound::Excluded(low), Bound::Included(high) | Bound::Excluded(high)) => {
            low >= high
        }
        _ => false,
    }
}

impl<P> OldVersions<P> {
    /// Returns the number of versions.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl<P> Drop for OldVersions<P> {
    fn drop(&mut self) {
        self.context.memory.give_back(MemoryPart::Versions, self.bytes.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_log::blob::Blobs;
    use sheaf_log::types::StoreId;
    use sheaf_platform::disk::Disk;
    use sheaf_sim::SimDisk;
    use std::path::PathBuf;

    fn versions() -> OldVersions<u64> {
        let (disk, dir): (Arc<dyn Disk>, _) = (Arc::new(SimDisk::new()), PathBuf::from("/blobs"));
        disk.create_dir(&dir).expect("it is made");
        let blobs = Blobs::new(disk, dir, 1, StoreId(1), true);
        OldVersions::new(Arc::new(EngineContext::new(blobs, 1 << 20, 7, true)))
    }

    fn push(versions: &OldVersions<u64>, place: u64, begin: u64, end: u64) {
        let address = Address::from_bits(place * 64);
        versions.push(
            place,
            OldVersion { address, span: 64, begin_seq: Seq(begin), end_seq: Seq(end), blob: None },
        );
    }

    fn trim(versions: &OldVersions<u64>, live: &[u64], visible: u64) -> Vec<u64> {
        let mut views = Views::default();
        live.iter().for_each(|seq| views.register(Seq(*seq)));
        versions.trim(&views, Seq(visible)).iter().map(|old| old.end_seq.0).collect()
    }

    #[test]
    fn a_view_of_the_newest_state_is_shown_no_old_version() {
        let versions = versions();
        assert!(!versions.may_show(Seq(1)));
        push(&versions, 1, 1, 5);
        push(&versions, 2, 2, 4);
        assert_eq!([3, 4, 5].map(|at| versions.may_show(Seq(at))), [true, true, false]);
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert_eq!([3, 4, 5].map(|at| versions.first(all, Seq(at), 9).len()), [2, 1, 0]);
        assert_eq!([3, 4, 5].map(|at| versions.range(all, Seq(at)).len()), [2, 1, 0]);
    }

    #[test]
    fn trim_frees_versions_of_a_released_view() {
        let versions = versions();
        push(&versions, 1, 1, 5);
        assert_eq!(trim(&versions, &[3, 9], 9), []);
        assert_eq!(trim(&versions, &[3], 9), [], "nothing has changed");
        push(&versions, 2, 8, 12);
        assert_eq!(trim(&versions, &[3], 10), [], "a view that registered later may need it");
        assert_eq!(trim(&versions, &[3], 12), [12]);
        push(&versions, 3, 2, 7);
        assert_eq!(trim(&versions, &[3, 6], 12), []);
        assert_eq!(trim(&versions, &[6], 12), [5]);
        assert_eq!(trim(&versions, &[], 12), [7]);
        assert!(versions.is_empty());
    }
}
