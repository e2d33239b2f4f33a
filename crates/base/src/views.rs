//! # Views: the past states that snapshots and iterators read
//!
//! A view is a seq in this registry: it pins no epoch, holds no lock and blocks no writer
//! (commit.md R17). An engine calls [`Views::needs`] when a commit supersedes a version.
//!
//! ## Picture
//!
//! ```text
//!   view:    V = visible -> slot = V -> begun <= V? reads the state at V
//!                                         | no
//!                                         +-> slot = "V or newer" -> waits until visible >= begun
//!                                             -> S = visible -> slot = S
//!   commit:  begun = seq -> reads the slots -> applies, keeps versions for views -> visible = seq
//! ```
//!
//! ## Invariants
//!
//! 1. A commit that missed the slot of a view has at most the seq `begun` that the view reads after
//!    it stored the slot, since all these accesses are sequentially consistent. The view waits for
//!    that commit (model `views`, W10).
//! 2. A view that is missing from a copy of the registry reads the state of the copy or a newer
//!    state: `visible` is loaded before the slots.
//!
//! ## Costs
//!
//! A view stores to one slot, on a cache line of its thread. A commit reads the lines in use. Views
//! beyond the number of slots are in a map under the commit lock.

#[cfg(all(test, shuttle))]
mod interleavings;

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::error::Result;
use crate::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use crate::sync::{self, Mutex};
use crate::types::Seq;

/// Progress of the commits.
#[derive(Debug, Default)]
pub struct Progress {
    /// The newest commit that engines have begun to apply.
    begun: AtomicU64,
    /// The newest commit that all readers see.
    visible: AtomicU64,
}

impl Progress {
    /// Returns the newest commit that all readers see.
    #[inline]
    #[must_use]
    pub fn visible(&self) -> Seq {
        Seq(self.visible.load(Ordering::Acquire))
    }

    /// Announces that engines are about to apply commit `seq`. The caller holds the commit lock.
    pub fn begin(&self, seq: Seq) {
        self.begun.store(seq.0, Ordering::SeqCst);
    }

    /// Makes commit `seq` visible. The caller holds the commit lock.
    pub fn publish(&self, seq: Seq) {
        self.visible.store(seq.0, Ordering::Release);
    }
}

/// Cache lines with slots. A thread looks for a free slot in its own line first.
const LINES: usize = sync::PLACES;
/// Slots of a line.
const SLOTS: usize = 4;
/// The value of a slot that no view uses.
const FREE: u64 = 0;
/// Bit of a slot: its view will read the state at the seq of the slot, or a newer state.
const OR_NEWER: u64 = 1;

/// Slots that one thread uses, as a rule.
type Line = CachePadded<[AtomicU64; SLOTS]>;

/// A slot that a view uses.
#[derive(Debug, PartialEq, Eq)]
pub struct ViewSlot(u32);

/// Slots in which views register without a lock.
#[derive(Debug, Default)]
pub struct ViewSlots {
    lines: [Line; LINES],
    /// Lines that were used so far; the others need not be read. The number only grows.
    used: AtomicUsize,
}

fn encode(seq: Seq) -> u64 {
    (seq.0 + 1) << 1
}

/// Returns the seq in a slot that is not free.
fn decode(slot: u64) -> Seq {
    Seq((slot >> 1) - 1)
}

impl ViewSlots {
    /// Registers a view of the newest state. Returns its slot and the state, or `None` if all slots
    /// are in use. Calls `wait` until the commit in its argument is visible.
    ///
    /// # Errors
    ///
    /// Returns the error of `wait`; then no view is registered.
    pub fn register(
        &self,
        progress: &Progress,
        mut wait: impl FnMut(Seq) -> Result<()>,
    ) -> Result<Option<(ViewSlot, Seq)>> {
        let visible = progress.visible();
        let Some(slot) = self.claim(visible) else { return Ok(None) };
        if progress.begun.load(Ordering::SeqCst) <= visible.0 {
            return Ok(Some((slot, visible)));
        }
        // That commit may have read the slots before. Later ones keep all versions for this view.
        self.at(&slot).store(encode(visible) | OR_NEWER, Ordering::SeqCst);
        let begun = Seq(progress.begun.load(Ordering::SeqCst));
        while progress.visible() < begun {
            if let Err(failed) = wait(begun) {
                self.release(slot);
                return Err(failed);
            }
        }
        let seq = progress.visible();
        self.at(&slot).store(encode(seq), Ordering::Release);
        Ok(Some((slot, seq)))
    }

    /// Takes a slot for a view of the state at `seq`. Returns `None` if all are in use. The caller
    /// holds the commit lock, so that no commit can miss the slot.
    pub fn claim(&self, seq: Seq) -> Option<ViewSlot> {
        let own = sync::place();
        (0..LINES).map(|next| (own + next) % LINES).find_map(|line| {
            if self.used.load(Ordering::Acquire) <= line {
                self.used.fetch_max(line + 1, Ordering::SeqCst);
            }
            let index = self.lines[line].iter().position(|slot| {
                slot.load(Ordering::Relaxed) == FREE
                    && slot.compare_exchange(FREE, encode(seq), Ordering::SeqCst, Ordering::Relaxed).is_ok()
            })?;
            u32::try_from(line * SLOTS + index).ok().map(ViewSlot)
        })
    }

    fn at(&self, slot: &ViewSlot) -> &AtomicU64 {
        let index = slot.0 as usize;
        &self.lines[index / SLOTS][index % SLOTS]
    }

    /// Releases the slot of a view that has ended.
    pub fn release(&self, slot: ViewSlot) {
        self.at(&slot).store(FREE, Ordering::Release);
    }

    /// Returns `rest` and the views of all slots.
    pub fn with(&self, rest: &Views) -> Views {
        let mut views = rest.clone();
        let used = self.used.load(Ordering::SeqCst);
        for slot in self.lines[..used].iter().flat_map(|line| line.iter()) {
            match slot.load(Ordering::SeqCst) {
                FREE => {}
                or_newer if or_newer & OR_NEWER != 0 => {
                    let seq = decode(or_newer);
                    views.from = Some(views.from.map_or(seq, |from| from.min(seq)));
                }
                exact => views.slots.push(decode(exact)),
            }
        }
        views
    }
}

/// The views at one moment.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// The states that views in slots read, unsorted.
    slots: SmallVec<[Seq; 8]>,
    /// Views in slots will read this state or newer ones.
    from: Option<Seq>,
    /// The other views: the number of views by the state that they read. `None` without such views.
    rest: Option<Arc<BTreeMap<Seq, usize>>>,
    /// Views that register later read this state or a newer state.
    as_of: Seq,
}

impl Views {
    /// Adds a view of the state at `seq`.
    pub fn register(&mut self, seq: Seq) {
        *Arc::make_mut(self.rest.get_or_insert_default()).entry(seq).or_default() += 1;
    }

    /// Takes one view at `seq` back.
    pub fn release(&mut self, seq: Seq) {
        let Some(rest) = self.rest.as_mut().map(Arc::make_mut) else { return };
        let Some(count) = rest.get_mut(&seq) else { return };
        *count -= 1;
        if *count == 0 {
            rest.remove(&seq);
        }
        if rest.is_empty() {
            self.rest = None;
        }
    }

    /// Returns the states from `begin` to before `end` that views read, unsorted.
    fn between(&self, begin: Seq, end: Seq) -> impl Iterator<Item = Seq> {
        let slots = self.slots.iter().copied().filter(move |seq| begin <= *seq && *seq < end);
        let range = begin..end.max(begin);
        slots.chain(self.rest.iter().flat_map(move |rest| rest.range(range.clone()).map(|(seq, _)| *seq)))
    }

    /// True if a live view sees a version born at `born` and superseded at `died`.
    #[must_use]
    pub fn needs(&self, born: Seq, died: Seq) -> bool {
        self.from.is_some_and(|from| from < died) || self.between(born, died).next().is_some()
    }

    /// Returns the states before `seq` that views read or may come to read, oldest first.
    #[must_use]
    pub fn before(&self, seq: Seq) -> Vec<Seq> {
        let mut before: Vec<Seq> = self.between(Seq::ZERO, seq).collect();
        before.extend(self.from.filter(|from| *from < seq));
        before.sort_unstable();
        before.dedup();
        before
    }

    /// Returns a copy of these views, marked as collected when `visible` was the newest state.
    #[must_use]
    pub fn copy_as_of(&self, visible: Seq) -> Views {
        Views { as_of: visible, ..self.clone() }
    }

    /// Returns the newest state when these views were collected. Views that register later read it
    /// or a newer state.
    #[must_use]
    pub fn as_of(&self) -> Seq {
        self.as_of
    }

    /// Like [`Views::needs`], for a version that may have been superseded after the views were
    /// collected: a view that registered in between may read it.
    #[must_use]
    pub fn may_need(&self, born: Seq, died: Seq) -> bool {
        died > self.as_of || self.needs(born, died)
    }

    /// Whether [`Views::may_need`] may say yes to any version that was superseded at `died`.
    #[must_use]
    pub fn may_need_before(&self, died: Seq) -> bool {
        died > self.as_of || self.oldest().is_some_and(|oldest| oldest < died)
    }

    /// Returns true if there are no views.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.from.is_none() && self.rest.is_none()
    }

    /// Returns the oldest state that a view reads or may come to read.
    #[must_use]
    pub fn oldest(&self) -> Option<Seq> {
        let rest = self.rest.iter().filter_map(|rest| rest.keys().next());
        self.slots.iter().chain(rest).chain(&self.from).min().copied()
    }

    /// Returns the newest state that a view reads or may come to read.
    #[must_use]
    pub fn newest(&self) -> Option<Seq> {
        if self.from.is_some() {
            return Some(Seq::LATEST);
        }
        let rest = self.rest.iter().filter_map(|rest| rest.keys().next_back());
        self.slots.iter().chain(rest).max().copied()
    }

    /// Returns the number of views.
    #[must_use]
    pub fn len(&self) -> usize {
        let rest: usize = self.rest.iter().flat_map(|rest| rest.values()).sum();
        self.slots.len() + usize::from(self.from.is_some()) + rest
    }
}

/// Counts of superseded versions that views pin, for an engine that frees versions when it next
/// rewrites the block that contains them.
#[derive(Debug, Default)]
pub struct Pins {
    /// When they were born and superseded.
    lives: Mutex<Vec<(Seq, Seq)>>,
    /// There were views when somebody last looked.
    has_views: AtomicBool,
}

impl Pins {
    /// Returns true if there were views at the last call of [`Pins::learn`]: then an operation must
    /// know the seq of the version that it supersedes.
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
        views.release(Seq(10));
        assert!(views.needs(Seq(1), Seq(20)));
        views.release(Seq(10));
        assert!(!views.needs(Seq(1), Seq(20)) && views.is_empty());
    }

    #[test]
    fn views_in_slots_are_needed_like_others() {
        let (slots, progress) = (ViewSlots::default(), Progress::default());
        let never = |_| -> Result<()> { unreachable!("no commit is under way") };
        progress.publish(Seq(10));
        let (slot, seq) = slots.register(&progress, never).unwrap().expect("a slot");
        assert_eq!(seq, Seq(10));
        let mut rest = Views::default();
        rest.register(Seq(3));
        let views = slots.with(&rest);
        assert!(
            views.needs(Seq(10), Seq(11)) && !views.needs(Seq(5), Seq(10)) && views.needs(Seq(3), Seq(4))
        );
        assert_eq!((views.oldest(), views.newest(), views.len()), (Some(Seq(3)), Some(Seq(10)), 2));
        assert_eq!(views.before(Seq(11)), [Seq(3), Seq(10)]);
        slots.release(slot);
        assert!(slots.with(&Views::default()).is_empty());
    }

    #[test]
    fn a_view_waits_for_a_commit_that_may_have_missed_it() {
        let (slots, progress) = (ViewSlots::default(), Progress::default());
        progress.begin(Seq(7));
        let wait = |begun| {
            let views = slots.with(&Views::default());
            assert_eq!((begun, views.oldest(), views.newest()), (Seq(7), Some(Seq(0)), Some(Seq::LATEST)));
            assert!(views.needs(Seq(5), Seq(7)), "the view may still read that state");
            progress.publish(Seq(7));
            Ok(())
        };
        let registered = slots.register(&progress, wait).unwrap();
        assert_eq!(registered.map(|(_, seq)| seq), Some(Seq(7)));
        assert_eq!(slots.with(&Views::default()).before(Seq(8)), [Seq(7)]);
        progress.begin(Seq(8));
        assert!(slots.register(&progress, |_| Err(crate::error::Error::Closed)).is_err());
        assert_eq!(slots.with(&Views::default()).len(), 1, "a view that failed is not registered");
    }

    #[test]
    fn each_slot_is_given_to_one_view_and_given_again() {
        let slots = ViewSlots::default();
        let mut held: Vec<ViewSlot> =
            (0..LINES * SLOTS).map(|_| slots.claim(Seq(1)).expect("a slot")).collect();
        assert!(slots.claim(Seq(2)).is_none());
        assert_eq!(slots.with(&Views::default()).len(), LINES * SLOTS);
        slots.release(held.pop().expect("one"));
        assert!(slots.claim(Seq(2)).is_some() && slots.claim(Seq(2)).is_none());
        assert_eq!(slots.with(&Views::default()).newest(), Some(Seq(2)));
    }

    #[test]
    fn slots_of_two_threads_share_no_cache_line() {
        let line = align_of::<CachePadded<u8>>();
        assert!(line >= 64);
        assert_eq!((align_of::<Line>(), size_of::<Line>()), (line, line));
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
