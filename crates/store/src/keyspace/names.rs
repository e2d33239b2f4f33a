//! # Names of a keyspace: the present one, and earlier ones
//!
//! A rename changes the name of a keyspace; its state stays the same. ROOT and snapshots need the
//! name at an earlier commit.
//!
//! ## Invariants
//!
//! 1. ROOT has the name at its floor (commit.md R21). Otherwise a crash that loses the rename
//!    leaves the new name.

use std::sync::Arc;

use sheaf_log::types::Seq;
use sheaf_platform::sync::RwLock;
use smallvec::{SmallVec, smallvec};

/// A name, and the commit that gave it.
type GivenName = (Seq, Arc<str>);

/// Names of a keyspace; the oldest one is first.
#[derive(Debug)]
pub(crate) struct KeyspaceNames(RwLock<SmallVec<[GivenName; 1]>>);

impl KeyspaceNames {
    pub(crate) fn new(name: &str) -> KeyspaceNames {
        KeyspaceNames(RwLock::new(smallvec![(Seq::ZERO, name.into())]))
    }

    /// Returns the present name.
    pub(crate) fn newest(&self) -> Arc<str> {
        self.at(Seq::LATEST)
    }

    /// Returns the name after commit `seq`. Before the first known name returns that one.
    pub(crate) fn at(&self, seq: Seq) -> Arc<str> {
        let names = self.0.read();
        let index = names.partition_point(|(since, _)| *since <= seq).saturating_sub(1);
        Arc::clone(&names[index].1)
    }

    /// Adds the name that commit `seq` gives. Forgets the names before commit `needed`.
    pub(crate) fn add(&self, name: &str, seq: Seq, needed: Seq) {
        let mut names = self.0.write();
        let keep_from = names.partition_point(|(since, _)| *since <= needed).saturating_sub(1);
        names.drain(..keep_from);
        names.push((seq, name.into()));
    }

    /// Takes over the names of a keyspace that this one replaces.
    pub(crate) fn copy_from(&self, other: &KeyspaceNames) {
        *self.0.write() = other.0.read().clone();
    }
}

impl Clone for KeyspaceNames {
    fn clone(&self) -> KeyspaceNames {
        KeyspaceNames(RwLock::new(self.0.read().clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_commit_has_the_name_of_its_time() {
        let names = KeyspaceNames::new("a");
        names.add("b", Seq(10), Seq::ZERO);
        names.add("c", Seq(20), Seq::ZERO);
        let at = |seq: u64| names.at(Seq(seq)).to_string();
        assert_eq!([at(0), at(9), at(10), at(19), at(20)], ["a", "a", "b", "b", "c"]);
        assert_eq!(&*names.newest(), "c");
    }

    #[test]
    fn names_that_no_root_and_no_view_needs_are_forgotten() {
        let names = KeyspaceNames::new("a");
        for seq in 1..100 {
            names.add(&format!("n{seq}"), Seq(seq), Seq(seq.saturating_sub(2)));
            assert!(names.0.read().len() <= 4, "after commit {seq}");
        }
        assert_eq!(&*names.at(Seq(98)), "n98");
    }
}
