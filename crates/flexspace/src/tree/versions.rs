//! # Versions: states that readers hold, and nodes that come back when they are gone
//!
//! ## Picture
//!
//! ```text
//!  versions   oldest ------------ v ------------ newest      tree
//!  nodes                 |    made before v     |  replaced after v: on v's list
//!                        |    v and older ones may read it until v goes; then it is freed, or, if the version
//!                        |    before v may reach it too, that one has it on its list
//! ```
//!
//! So a version that is held keeps its own nodes and not those of the versions after it. Each
//! publication looks at a few versions only: the cost does not grow with their number.

use std::sync::Arc;

use super::{ShiftTree, TreeItem, TreeSnapshot};

/// Versions looked at on each publication.
const RECLAIM_STEP: usize = 3;

/// Nodes, by kind.
#[derive(Debug, Default)]
pub(super) struct RetiredNodes {
    pub(super) leaves: Vec<u32>,
    pub(super) inners: Vec<u32>,
}

/// A version, the stamp of the newest nodes it reaches, and what it leaves behind when it goes:
/// nodes that the versions after it do not need.
#[derive(Debug)]
pub(super) struct TreeVersion<T: TreeItem> {
    pub(super) snapshot: Arc<TreeSnapshot<T>>,
    pub(super) stamp: u64,
    pub(super) retired: RetiredNodes,
}

impl<T: TreeItem> ShiftTree<T> {
    /// Freezes the present state for readers, under a name of the caller's. Gives back what
    /// versions that are gone kept.
    pub fn publish(&mut self, mark: u64) -> Arc<TreeSnapshot<T>> {
        let lists = self.reclaim(RECLAIM_STEP);
        let frozen = Arc::new(TreeSnapshot { version: mark, ..self.snapshot() });
        let kept = Arc::clone(&frozen);
        self.versions.push_back(TreeVersion { snapshot: kept, stamp: self.stamp, retired: lists });
        self.stamp += 1;
        self.append_leaf = None;
        frozen
    }

    /// The marks of the versions that are being read, and of the newest, in order. The version of
    /// mark `excepted` is left out if it is an older one that has but one owner: that one must be
    /// who does not read what it maps to, and the mark is passed only while he has the version.
    pub fn versions_in_use(&mut self, excepted: Option<u64>) -> Vec<u64> {
        self.reclaim_all();
        let newest = self.versions.back().map(|version| version.snapshot.version);
        let counts = |version: &&TreeVersion<T>| {
            let mark = version.snapshot.version;
            Some(mark) == newest || Some(mark) != excepted || Arc::strong_count(&version.snapshot) > 2
        };
        self.versions.iter().filter(counts).map(|version| version.snapshot.version).collect()
    }

    /// Takes back what versions kept that nobody has any more.
    pub fn reclaim_all(&mut self) {
        self.reclaim(usize::MAX);
    }

    /// Takes versions that nobody has any more off the list, looking at `most` of them: the one
    /// before the newest, which is the usual one to go, the oldest, and others in turn. A pair of
    /// empty lists, for the next version.
    fn reclaim(&mut self, most: usize) -> RetiredNodes {
        let mut lists = RetiredNodes::default();
        let older = self.versions.len().saturating_sub(1);
        if older <= most {
            // From the newest on, so that what one hands to the one before it is looked at once.
            for index in (0..older).rev() {
                self.reclaim_one(index, &mut lists);
            }
            return lists;
        }
        self.next_reclaimed = (self.next_reclaimed + 1) % older;
        let mut indices = [older - 1, self.next_reclaimed, 0];
        indices.sort_unstable_by(|a, b| b.cmp(a));
        for (number, index) in indices.into_iter().enumerate() {
            if number == 0 || index != indices[number - 1] {
                self.reclaim_one(index, &mut lists);
            }
        }
        lists
    }

    /// If nobody has version `index` any more, it goes: what it kept is freed, but for nodes that
    /// the version before it may reach, which that one keeps from now on.
    fn reclaim_one(&mut self, index: usize, lists: &mut RetiredNodes) {
        if Arc::get_mut(&mut self.versions[index].snapshot).is_none() {
            return;
        }
        let Some(mut gone) = self.versions.remove(index) else { return };
        let before = index.checked_sub(1).map(|index| &mut self.versions[index]);
        let (mut kept, reach) = match before {
            Some(version) => (std::mem::take(&mut version.retired), Some(version.stamp)),
            None => (RetiredNodes::default(), None),
        };
        for id in gone.retired.leaves.drain(..) {
            if reach.is_some_and(|reach| self.leaf(id).stamp <= reach) {
                kept.leaves.push(id);
            } else {
                // SAFETY:
                // * Replaced after `gone` was frozen, made after the version before it was: only
                //   `gone` had it (A3).
                unsafe { self.leaves.free(id) }
            }
        }
        for id in gone.retired.inners.drain(..) {
            if reach.is_some_and(|reach| self.inner(id).stamp <= reach) {
                kept.inners.push(id);
            } else {
                // SAFETY:
                // * As above.
                unsafe { self.inners.free(id) }
            }
        }
        if let Some(index) = index.checked_sub(1) {
            self.versions[index].retired = kept;
        }
        *lists = gone.retired;
    }
}
