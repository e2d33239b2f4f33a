//! # Views: which past states somebody still reads
//!
//! A snapshot is a number in this registry, nothing else: it pins no epoch, holds no lock and stops
//! no writer (commit.md R17). Registration happens under the commit lock, so the number it gets is a
//! state that existed; an engine asks [`Views::needs`] when a version is superseded.

use std::collections::BTreeMap;

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::types::Seq;

/// The registry. Kept under the commit lock.
#[derive(Clone, Debug, Default)]
pub struct Views {
    live: BTreeMap<Seq, usize>,
    /// Of a copy: views registered later are of this state or a newer one.
    as_of: Seq,
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

    /// The states before `seq` that somebody reads, the oldest first.
    pub fn before(&self, seq: Seq) -> impl Iterator<Item = Seq> {
        self.live.range(..seq).map(|(seq, _)| *seq)
    }

    /// A copy, made under the commit lock while `visible` is the newest state.
    #[must_use]
    pub fn copy_as_of(&self, visible: Seq) -> Views {
        Views { live: self.live.clone(), as_of: visible }
    }

    /// Of a copy: the newest state when it was made.
    #[must_use]
    pub fn as_of(&self) -> Seq {
        self.as_of
    }

    /// As [`Views::needs`], of a copy, for a version that may have been superseded after the copy was made: then a view
    /// that was registered in between may see it.
    #[must_use]
    pub fn may_need(&self, born: Seq, died: Seq) -> bool {
        died > self.as_of || self.needs(born, died)
    }

    /// Whether [`Views::may_need`] may say yes to any version that was superseded at `died`.
    #[must_use]
    pub fn may_need_before(&self, died: Seq) -> bool {
        died > self.as_of || self.oldest().is_some_and(|oldest| oldest < died)
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

/// Superseded versions that views pin, of an engine whose versions go when what holds them is next rewritten: here they are
/// counted.
#[derive(Debug, Default)]
pub struct Pins {
    /// When they were born and superseded.
    lives: Mutex<Vec<(Seq, Seq)>>,
    /// There were views when somebody last looked.
    has_views: AtomicBool,
}

impl Pins {
    /// Whether there were views when somebody last looked: then the number of what an operation supersedes has to be known.
    pub fn has_views(&self) -> bool {
        self.has_views.load(Ordering::Relaxed)
    }

    /// There are `views` now.
    pub fn learn(&self, views: &Views) {
        let has_views = !views.is_empty();
        if self.has_views() != has_views {
            self.has_views.store(has_views, Ordering::Relaxed); // a line that all committers read
        }
    }

    /// The version `born` was superseded by `died`.
    pub fn superseded(&self, born: Seq, died: Seq, views: &Views) {
        if born != Seq::ZERO && views.needs(born, died) {
            self.lives.lock().push((born, died));
        }
    }

    /// Forgets what no view needs any more.
    pub fn trim(&self, views: &Views, visible: Seq) {
        self.learn(views);
        self.lives.lock().retain(|(born, died)| *died > visible || views.needs(*born, *died));
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.lives.lock().len() as u64
    }

    /// Forgets all.
    pub fn clear(&self) {
        *self.lives.lock() = Vec::new();
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

    #[test]
    fn a_copy_gives_what_died_behind_it_to_views_it_does_not_know() {
        let mut views = Views::default();
        let copy = views.copy_as_of(Seq(10));
        views.register(Seq(12));
        assert!(copy.may_need(Seq(5), Seq(15)), "the view at 12 sees it");
        assert!(!copy.may_need(Seq(5), Seq(10)), "no view to come does");
        assert!(copy.may_need_before(Seq(15)) && !copy.may_need_before(Seq(10)));
        views.register(Seq(7));
        let copy = views.copy_as_of(Seq(20));
        assert!(copy.may_need(Seq(5), Seq(10)));
        assert!(copy.may_need_before(Seq(8)) && !copy.may_need_before(Seq(7)));
    }
}
