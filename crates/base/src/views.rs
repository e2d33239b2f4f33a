//! # Views: which past states somebody still reads
//!
//! A snapshot is a number in this registry, nothing else: it pins no epoch, holds no lock and stops
//! no writer (commit.md R17). Registration happens under the commit lock, so the number it gets is a
//! state that existed; an engine asks [`Views::needs`] when a version is superseded.

use std::collections::BTreeMap;

use crate::types::Seq;

/// The registry. Kept under the commit lock.
#[derive(Clone, Debug, Default)]
pub struct Views {
    live: BTreeMap<Seq, usize>,
}

impl Views {
    /// Adds a view of the state at `seq`.
    pub fn register(&mut self, seq: Seq) {
        *self.live.entry(seq).or_default() += 1;
    }

    /// Takes one view at `seq` back. True if it was the last one there.
    pub fn release(&mut self, seq: Seq) -> bool {
        let Some(count) = self.live.get_mut(&seq) else { return false };
        *count -= 1;
        if *count == 0 {
            self.live.remove(&seq);
            return true;
        }
        false
    }

    /// True if a live view sees a version born at `born` and superseded at `died`.
    #[must_use]
    pub fn needs(&self, born: Seq, died: Seq) -> bool {
        !self.live.is_empty() && self.live.range(born..died).next().is_some()
    }

    /// True if nobody looks back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The oldest state somebody reads.
    #[must_use]
    pub fn oldest(&self) -> Option<Seq> {
        self.live.keys().next().copied()
    }

    /// The newest state somebody reads.
    #[must_use]
    pub fn newest(&self) -> Option<Seq> {
        self.live.keys().next_back().copied()
    }

    /// How many views there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_needed_exactly_while_a_view_falls_in_its_life() {
        let mut views = Views::default();
        assert!(!views.needs(Seq(0), Seq(100)));
        views.register(Seq(10));
        views.register(Seq(10));
        assert!(views.needs(Seq(10), Seq(11)), "born at the view");
        assert!(!views.needs(Seq(5), Seq(10)), "superseded at the view");
        assert!(!views.needs(Seq(11), Seq(20)), "born after it");
        assert!(!views.release(Seq(10)));
        assert!(views.needs(Seq(1), Seq(20)));
        assert!(views.release(Seq(10)));
        assert!(!views.needs(Seq(1), Seq(20)) && views.is_empty());
    }
}
