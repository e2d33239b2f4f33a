//! # Version table of the reference engine
//!
//! A sorted map in memory, without locks, files or views. Each change returns a [`TableChange`]:
//! the memory before and after it, and the blobs that no version references any more.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use sheaf_log::blob::BlobRef;
use sheaf_log::types::Seq;

/// Bytes per key in addition to the key: its share of two map nodes, and the vector of versions.
pub(super) const ENTRY_COST: u64 = 96;

/// Content of a version.
#[derive(Clone, Debug)]
pub(super) enum VersionContent {
    /// The value.
    Inline(Arc<[u8]>),
    /// Reference to the blob with the value.
    Blob(BlobRef),
    /// The key is removed.
    Tombstone,
}

/// One version of a key.
#[derive(Clone, Debug)]
pub(super) struct TableVersion {
    pub(super) seq: Seq,
    pub(super) stored: VersionContent,
}

impl TableVersion {
    fn is_tombstone(&self) -> bool {
        matches!(self.stored, VersionContent::Tombstone)
    }

    fn cost(&self) -> u64 {
        match &self.stored {
            VersionContent::Inline(value) => value.len() as u64,
            VersionContent::Blob(_) | VersionContent::Tombstone => 0,
        }
    }
}

/// Effect of a change: bytes before and after in each part, and the retired blobs, each with the
/// seq that superseded it.
#[derive(Debug, Default)]
pub(super) struct TableChange {
    pub(super) index: (u64, u64),
    pub(super) versions: (u64, u64),
    pub(super) retired_blobs: Vec<(Seq, u64)>,
}

/// Map of keys and versions.
#[derive(Debug, Default)]
pub(super) struct ReferenceTable {
    /// Newest commit applied to each key since the opening.
    applied: BTreeMap<Vec<u8>, Seq>,
    map: BTreeMap<Vec<u8>, Vec<TableVersion>>,
    /// Keys with more than one version.
    multi_version_keys: BTreeSet<Vec<u8>>,
    live_keys: u64,
    pinned_versions: u64,
    index_bytes: u64,
    version_bytes: u64,
}

impl ReferenceTable {
    pub(super) fn live_keys(&self) -> u64 {
        self.live_keys
    }

    pub(super) fn entries(&self) -> u64 {
        self.map.len() as u64
    }

    pub(super) fn pinned_versions(&self) -> u64 {
        self.pinned_versions
    }

    pub(super) fn index_bytes(&self) -> u64 {
        self.index_bytes
    }

    /// Returns the seq of the key's newest version, unless that is a tombstone.
    pub(super) fn live_version_seq(&self, key: &[u8]) -> Option<Seq> {
        let newest = self.map.get(key)?.last()?;
        (!newest.is_tombstone()).then_some(newest.seq)
    }

    /// Returns the version of `key` that is visible at `at`.
    pub(super) fn at(&self, at: Seq, key: &[u8]) -> Option<(Seq, VersionContent)> {
        visible(self.map.get(key)?, at)
    }

    /// Returns the first key in the range that has a value at `at`; the last one if `forward` is
    /// false.
    pub(super) fn seek(
        &self,
        low: Bound<&[u8]>,
        high: Bound<&[u8]>,
        at: Seq,
        forward: bool,
    ) -> Option<(Vec<u8>, VersionContent)> {
        let mut range = self.map.range::<[u8], _>((low, high));
        loop {
            let (key, versions) = if forward { range.next() } else { range.next_back() }?;
            if let Some((_, stored)) = visible(versions, at) {
                return Some((key.clone(), stored));
            }
        }
    }

    /// Returns up to `limit` keys after `after` with their newest versions, without tombstones.
    pub(super) fn newest_versions_after(
        &self,
        after: Bound<&[u8]>,
        limit: usize,
    ) -> Vec<(Vec<u8>, TableVersion)> {
        let range = self.map.range::<[u8], _>((after, Bound::Unbounded));
        let newest = range.filter_map(|(key, versions)| Some((key, versions.last()?)));
        newest
            .filter(|(_, version)| !version.is_tombstone())
            .take(limit)
            .map(|(k, v)| (k.clone(), v.clone()))
            .collect()
    }

    /// Returns every blob that a version references, pinned versions included.
    pub(super) fn blobs(&self) -> impl Iterator<Item = (&[u8], BlobRef)> {
        self.map.iter().flat_map(|(key, versions)| {
            versions.iter().filter_map(move |v| match v.stored {
                VersionContent::Blob(blob) => Some((key.as_slice(), blob)),
                _ => None,
            })
        })
    }

    /// Returns true if a version of `key` references the blob.
    pub(super) fn references_blob(&self, key: &[u8], id: u64) -> bool {
        let versions = self.map.get(key).map_or(&[][..], Vec::as_slice);
        versions.iter().any(|v| matches!(v.stored, VersionContent::Blob(b) if b.id == id))
    }

    /// Adds the newest version of `key`. Keeps older versions as long as a view needs them.
    pub(super) fn push(
        &mut self,
        key: &[u8],
        version: TableVersion,
        needs: impl Fn(Seq, Seq) -> bool,
    ) -> TableChange {
        let before = self.applied.insert(key.to_vec(), version.seq);
        assert!(before <= Some(version.seq), "applied out of order");
        self.change(key, |versions, dead| {
            // A damaged image with a valid checksum may contain seqs that no commit had.
            versions.retain(|v| v.seq < version.seq);
            versions.push(version);
            prune(versions, &needs, dead);
        })
    }

    /// Inserts a version during replay, unless the table has a newer one. Keeps tombstones (I3).
    pub(super) fn replay(&mut self, key: &[u8], version: TableVersion) -> TableChange {
        self.change(key, |versions, _| {
            if versions.last().is_none_or(|v| v.seq < version.seq) {
                *versions = vec![version];
            }
        })
    }

    /// Drops the tombstones at the end of replay: no older record can follow.
    pub(super) fn drop_tombstones(&mut self) -> TableChange {
        let gone: Vec<Vec<u8>> = self
            .map
            .iter()
            .filter(|(_, versions)| versions.iter().all(TableVersion::is_tombstone))
            .map(|(key, _)| key.clone())
            .collect();
        self.change_all(gone, |versions, _| versions.clear())
    }

    /// Drops the versions that no view needs any more.
    pub(super) fn trim(&mut self, needs: impl Fn(Seq, Seq) -> bool) -> TableChange {
        let aged = self.multi_version_keys.iter().cloned().collect();
        self.change_all(aged, |versions, dead| prune(versions, &needs, dead))
    }

    /// Drops all versions.
    pub(super) fn clear(&mut self) -> TableChange {
        let keys = self.map.keys().cloned().collect();
        self.change_all(keys, |versions, _| versions.clear())
    }

    fn change_all(
        &mut self,
        keys: Vec<Vec<u8>>,
        edit: impl Fn(&mut Vec<TableVersion>, &mut Vec<(Seq, u64)>),
    ) -> TableChange {
        let mut sum = TableChange {
            index: (self.index_bytes, 0),
            versions: (self.version_bytes, 0),
            ..TableChange::default()
        };
        for key in keys {
            sum.retired_blobs.extend(self.change(&key, &edit).retired_blobs);
        }
        sum.index.1 = self.index_bytes;
        sum.versions.1 = self.version_bytes;
        sum
    }

    /// Edits the versions of a key. All edits use this function, so that the totals stay correct.
    fn change(
        &mut self,
        key: &[u8],
        edit: impl FnOnce(&mut Vec<TableVersion>, &mut Vec<(Seq, u64)>),
    ) -> TableChange {
        let mut change = TableChange {
            index: (self.index_bytes, 0),
            versions: (self.version_bytes, 0),
            ..TableChange::default()
        };
        let mut versions = self.map.remove(key).unwrap_or_default();
        self.update_counts(key, &versions, false);
        edit(&mut versions, &mut change.retired_blobs);
        self.update_counts(key, &versions, true);
        if versions.len() > 1 {
            self.multi_version_keys.insert(key.to_vec());
        } else {
            self.multi_version_keys.remove(key);
        }
        if !versions.is_empty() {
            self.map.insert(key.to_vec(), versions);
        }
        change.index.1 = self.index_bytes;
        change.versions.1 = self.version_bytes;
        change
    }

    fn update_counts(&mut self, key: &[u8], versions: &[TableVersion], add: bool) {
        let Some((newest, older)) = versions.split_last() else {
            return;
        };
        let index = ENTRY_COST + key.len() as u64 + newest.cost();
        let pinned: u64 = older.iter().map(|v| v.cost() + ENTRY_COST).sum();
        let live = u64::from(!newest.is_tombstone());
        let sign = |total: &mut u64, by: u64| *total = if add { *total + by } else { *total - by };
        sign(&mut self.index_bytes, index);
        sign(&mut self.version_bytes, pinned);
        sign(&mut self.live_keys, live);
        sign(&mut self.pinned_versions, older.len() as u64);
    }
}

/// Returns the version that is visible at `at`.
fn visible(versions: &[TableVersion], at: Seq) -> Option<(Seq, VersionContent)> {
    let version = versions.iter().rev().find(|v| v.seq <= at)?;
    (!version.is_tombstone()).then(|| (version.seq, version.stored.clone()))
}

/// Drops the versions that no view needs, and then tombstones without an older version.
fn prune(versions: &mut Vec<TableVersion>, needs: &impl Fn(Seq, Seq) -> bool, dead: &mut Vec<(Seq, u64)>) {
    let deaths: Vec<Seq> = versions.iter().skip(1).map(|v| v.seq).collect();
    let mut deaths = deaths.into_iter();
    versions.retain(|version| {
        let Some(died) = deaths.next() else {
            return true; // the newest
        };
        let stays = needs(version.seq, died);
        if let (false, VersionContent::Blob(blob)) = (stays, &version.stored) {
            dead.push((died, blob.id));
        }
        stays
    });
    let useless = versions.iter().take_while(|v| v.is_tombstone()).count();
    versions.drain(..useless);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(seq: u64) -> TableVersion {
        TableVersion { seq: Seq(seq), stored: VersionContent::Inline(vec![1].into()) }
    }

    fn tombstone(seq: u64) -> TableVersion {
        TableVersion { seq: Seq(seq), stored: VersionContent::Tombstone }
    }

    #[test]
    fn versions_live_exactly_as_long_as_somebody_needs_them() {
        let mut table = ReferenceTable::default();
        let view_at_5 = |born: Seq, died: Seq| born <= Seq(5) && Seq(5) < died;
        table.push(b"k", put(3), view_at_5);
        table.push(b"k", tombstone(7), view_at_5);
        table.push(b"k", put(9), view_at_5);
        assert_eq!(table.at(Seq(5), b"k").map(|v| v.0), Some(Seq(3)));
        assert_eq!(table.at(Seq::LATEST, b"k").map(|v| v.0), Some(Seq(9)));
        assert!(table.at(Seq(2), b"k").is_none());
        assert_eq!((table.live_keys(), table.pinned_versions()), (1, 1));
        table.trim(|_, _| false);
        assert_eq!((table.live_keys(), table.pinned_versions()), (1, 0));
        let change = table.push(b"k", tombstone(10), |_, _| false);
        assert_eq!((table.live_keys(), table.entries()), (0, 0));
        assert_eq!(change.index.1, 0, "nothing is left to account for");
    }

    #[test]
    fn replay_in_any_order_and_any_number_of_times_ends_the_same() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
            let mut table = ReferenceTable::default();
            for _ in 0..2 {
                for step in order {
                    let versions = [put(4), put(6), tombstone(8)];
                    table.replay(b"k", versions[step].clone());
                }
            }
            table.drop_tombstones();
            assert_eq!((table.live_keys(), table.entries()), (0, 0), "{order:?}");
        }
    }

    #[test]
    fn a_superseded_blob_dies_of_the_commit_that_superseded_it() {
        let blob = BlobRef { id: 7, len: 1, sum: 0 };
        let with_blob = TableVersion { seq: Seq(2), stored: VersionContent::Blob(blob) };
        let mut table = ReferenceTable::default();
        table.push(b"k", with_blob, |_, _| false);
        let change = table.push(b"k", put(5), |_, _| true);
        assert!(change.retired_blobs.is_empty(), "a view needs it");
        assert!(table.references_blob(b"k", 7));
        let change = table.trim(|_, _| false);
        assert_eq!(change.retired_blobs, [(Seq(5), 7)]);
    }
}
