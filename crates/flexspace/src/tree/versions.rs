//! # Versions: states held by readers, and reclamation of their nodes
//!
//! ## Picture
//!
//! ```text
//!  versions   oldest ------------ v ------------ newest      tree
//!  nodes                 |    made before v     |  replaced after v: on v's list
//!                        |    v and older versions may read it; when v is dropped, it is freed or,
//!                        |    if the version before v may reach it too, moved to that one's list
//! ```
//!
//! A version therefore keeps its own nodes alive, but not those of later versions. Each publication
//! examines only a few versions, so that its cost does not grow with their number.

use std::sync::Arc;

use super::{ShiftTree, TreeItem, TreeSnapshot};

/// Versions that each publication examines.
const RECLAIM_STEP: usize = 3;

/// Nodes by kind.
#[derive(Debug, Default)]
pub(super) struct RetiredNodes {
    pub(super) leaves: Vec<u32>,
    pub(super) inners: Vec<u32>,
}

/// A version, with the stamp of its newest nodes. `retired` has the nodes that later versions do
/// not need.
#[derive(Debug)]
pub(super) struct TreeVersion<T: TreeItem> {
    pub(super) snapshot: Arc<TreeSnapshot<T>>,
    pub(super) stamp: u64,
    pub(super) retired: RetiredNodes,
}

impl<T: TreeItem> ShiftTree<T> {
    /// Publishes the current state for concurrent readers, with a mark of the caller. Each node has
    /// the stamp of the period between two publications in which it was made. A later period copies
    /// it before the first change. Also reclaims nodes of dropped versions.
    pub fn publish(&mut self, mark: u64) -> Arc<TreeSnapshot<T>> {
        let lists = self.reclaim(RECLAIM_STEP);
        let published = Arc::new(TreeSnapshot { version: mark, ..self.snapshot() });
        let kept = Arc::clone(&published);
        self.versions.push_back(TreeVersion { snapshot: kept, stamp: self.stamp, retired: lists });
        self.stamp += 1;
        self.append_leaf = None;
        published
    }

    /// Returns the marks of the versions that are in use, and of the newest, in order. An older
    /// version with mark `excepted` is left out if it has only one owner besides the tree. That
    /// owner must not access the data that its items refer to. The caller may pass the mark only
    /// while that owner has the version.
    pub fn versions_in_use(&mut self, excepted: Option<u64>) -> Vec<u64> {
        self.reclaim_all();
        let newest = self.versions.back().map(|version| version.snapshot.version);
        let counts = |version: &&TreeVersion<T>| {
            let mark = version.snapshot.version;
            Some(mark) == newest || Some(mark) != excepted || Arc::strong_count(&version.snapshot) > 2
        };
        self.versions.iter().filter(counts).map(|version| version.snapshot.version).collect()
    }

    /// Reclaims the nodes of all dropped versions.
    pub fn reclaim_all(&mut self) {
        self.reclaim(usize::MAX);
    }

    /// Removes dropped versions from the list. Examines at most `most` of them: the second newest,
    /// which is dropped most often, the oldest, and others in turn. Returns a pair of empty lists
    /// for reuse by the next version.
    fn reclaim(&mut self, most: usize) -> RetiredNodes {
        let mut lists = RetiredNodes::default();
        let older = self.versions.len().saturating_sub(1);
        if older <= most {
            // From the newest on: nodes that are moved to the previous version are then examined in
            // the same pass.
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

    /// Removes version `index` if only the tree owns it. Frees its retired nodes, except those that
    /// the previous version may reach: they are moved to that version's list.
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
        let is_ordered = reach.is_none_or(|reach| reach < gone.stamp);
        assert!(is_ordered, "tree (I5): no version before the previous one reaches a freed node");
        for id in gone.retired.leaves.drain(..) {
            if reach.is_some_and(|reach| self.leaf(id).stamp <= reach) {
                kept.leaves.push(id);
            } else {
                // SAFETY: the node was replaced after the dropped version was published, and made
                // after the previous one was. Only the dropped version reached it (tree I5).
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
