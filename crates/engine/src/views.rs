//! # Views: the past states that snapshots and iterators read
//!
//! A view is a seq in this registry: it pins no epoch, holds no lock and blocks no writer
//! (commit.md R17). An engine calls [`Views::needs`] when a commit supersedes a version.
//!
//! ## Picture
//!
//! ```text
//!   view:    V = visible -> slot = V -> reserved <= V? reads the state at V
//!                                         | no
//!                                         +-> slot = "V or newer"
//!                                             -> waits until visible >= reserved
//!                                             -> S = visible -> slot = S
//!   commit:  reserves seq -> reads the slots -> applies, keeps versions for views -> completes
//! ```
//!
//! ## Invariants
//!
//! 1. A view stores its slot and then reads the last reserved seq. A commit that missed the slot
//!    has at most that seq, since all these accesses are sequentially consistent. The view waits
//!    for that commit (model `views`, W10).
//! 2. A view that is missing from a copy of the registry reads the state of the copy or a newer
//!    state: `visible` is loaded before the slots.
//!
//! ## Costs
//!
//! A view stores to one slot, on a cache line of its thread. A commit reads the lines in use. Views
//! beyond the number of slots are in a map under a lock; commits take it while there are any.

#[cfg(all(test, shuttle))]
mod interleavings;

use std::collections::BTreeMap;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

use crate::window::CommitProgress;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use sheaf_platform::sync::{self, Mutex};

/// Number of cache lines with slots. A thread searches its own line first.
const LINES: usize = sync::THREAD_SHARDS;
/// Number of slots of a line.
const SLOTS: usize = 4;
/// Value of a slot that no view uses.
const FREE: u64 = 0;
/// Bit of a slot: its view will read the state at the seq of the slot, or a newer state.
const OR_NEWER: u64 = 1;

/// Slots that normally one thread uses.
type SlotLine = CachePadded<[AtomicU64; SLOTS]>;

/// Place where a view is registered.
#[derive(Debug, PartialEq, Eq)]
pub struct ViewSlot(Registered);

#[derive(Debug, PartialEq, Eq)]
enum Registered {
    /// A slot, by its number.
    Slot(u32),
    /// The map, because all slots were in use; with the state that the view reads.
    Map(Seq),
}

/// Slots in which views register without a lock.
#[derive(Debug, Default)]
pub struct ViewSlots {
    lines: [SlotLine; LINES],
    /// Number of lines that were used so far; the others need not be read. The number only grows.
    used: AtomicUsize,
    /// Number of views that are in `overflow`, or about to be.
    overflow_count: CachePadded<AtomicUsize>,
    overflow: Mutex<OverflowViews>,
}

/// Views without a slot.
#[derive(Debug, Default)]
struct OverflowViews {
    /// Number of views by the state that they read.
    exact: Option<Arc<BTreeMap<Seq, usize>>>,
    /// Number of views that are registering, by the oldest state that they may read.
    or_newer: BTreeMap<Seq, usize>,
}

fn add(map: &mut BTreeMap<Seq, usize>, seq: Seq) {
    *map.entry(seq).or_default() += 1;
}

fn subtract(map: &mut BTreeMap<Seq, usize>, seq: Seq) {
    if let Some(count) = map.get_mut(&seq) {
        *count -= 1;
        if *count == 0 {
            map.remove(&seq);
        }
    }
}

impl OverflowViews {
    fn add(&mut self, seq: Seq) {
        add(Arc::make_mut(self.exact.get_or_insert_default()), seq);
    }

    fn remove(&mut self, seq: Seq) {
        let Some(exact) = self.exact.as_mut().map(Arc::make_mut) else { return };
        subtract(exact, seq);
        if exact.is_empty() {
            self.exact = None;
        }
    }
}

fn encode(seq: Seq) -> u64 {
    (seq.0 + 1) << 1
}

/// Returns the seq of a slot that is not free.
fn decode(slot: u64) -> Seq {
    Seq((slot >> 1) - 1)
}

impl ViewSlots {
    /// Registers a view of the newest state. Returns its place and the state. `reserved` returns
    /// the last seq that any commit has reserved.
    ///
    /// # Errors
    ///
    /// Returns the error of [`CommitProgress::wait`]; then no view is registered.
    pub fn register(&self, progress: &CommitProgress, reserved: impl Fn() -> Seq) -> Result<(ViewSlot, Seq)> {
        let visible = progress.visible();
        let Some(slot) = self.claim(visible) else { return self.register_in_map(progress, reserved) };
        if progress.is_visible(reserved(), visible) {
            return Ok((ViewSlot(Registered::Slot(slot)), visible));
        }
        // That commit may have read the slots before this one was set. Later commits keep all
        // versions for this view.
        self.at(slot).store(encode(visible) | OR_NEWER, Ordering::SeqCst);
        if let Err(failed) = progress.wait(reserved()) {
            self.at(slot).store(FREE, Ordering::Release);
            return Err(failed);
        }
        let seq = progress.visible();
        self.at(slot).store(encode(seq), Ordering::Release);
        Ok((ViewSlot(Registered::Slot(slot)), seq))
    }

    #[cold]
    fn register_in_map(
        &self,
        progress: &CommitProgress,
        reserved: impl Fn() -> Seq,
    ) -> Result<(ViewSlot, Seq)> {
        let visible = progress.visible();
        self.overflow_count.fetch_add(1, Ordering::SeqCst);
        add(&mut self.overflow.lock().or_newer, visible);
        let waited = progress.wait(reserved());
        let seq = progress.visible();
        let mut rest = self.overflow.lock();
        subtract(&mut rest.or_newer, visible);
        match waited {
            Ok(()) => {
                rest.add(seq);
                Ok((ViewSlot(Registered::Map(seq)), seq))
            }
            Err(failed) => {
                self.overflow_count.fetch_sub(1, Ordering::SeqCst);
                Err(failed)
            }
        }
    }

    /// Registers a view of the state at `seq`, which is the newest one. The caller must prevent
    /// commits during the call.
    pub fn register_exclusive(&self, seq: Seq) -> ViewSlot {
        ViewSlot(match self.claim(seq) {
            Some(slot) => Registered::Slot(slot),
            None => {
                self.overflow_count.fetch_add(1, Ordering::SeqCst);
                self.overflow.lock().add(seq);
                Registered::Map(seq)
            }
        })
    }

    /// Takes a free slot for a view of the state at `seq`. Returns `None` if all are in use.
    fn claim(&self, seq: Seq) -> Option<u32> {
        let own = sync::thread_shard();
        (0..LINES).map(|next| (own + next) % LINES).find_map(|line| {
            if self.used.load(Ordering::Acquire) <= line {
                self.used.fetch_max(line + 1, Ordering::SeqCst);
            }
            let index = self.lines[line].iter().position(|slot| {
                slot.load(Ordering::Relaxed) == FREE
                    && slot.compare_exchange(FREE, encode(seq), Ordering::SeqCst, Ordering::Relaxed).is_ok()
            })?;
            u32::try_from(line * SLOTS + index).ok()
        })
    }

    fn at(&self, slot: u32) -> &AtomicU64 {
        let index = slot as usize;
        &self.lines[index / SLOTS][index % SLOTS]
    }

    /// Ends the registration of a view.
    pub fn release(&self, slot: ViewSlot) {
        match slot.0 {
            Registered::Slot(slot) => self.at(slot).store(FREE, Ordering::Release),
            Registered::Map(seq) => {
                self.overflow.lock().remove(seq);
                self.overflow_count.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Returns the registered views.
    #[inline]
    pub fn collect(&self) -> Views {
        let mut views = Views::default();
        let used = self.used.load(Ordering::SeqCst);
        for slot in self.lines[..used].iter().flat_map(|line| line.iter()) {
            match slot.load(Ordering::SeqCst) {
                FREE => {}
                or_newer if or_newer & OR_NEWER != 0 => views.may_read_from(decode(or_newer)),
                exact => views.slots.push(decode(exact)),
            }
        }
        if self.overflow_count.load(Ordering::SeqCst) > 0 {
            let rest = self.overflow.lock();
            views.overflow.clone_from(&rest.exact);
            rest.or_newer.keys().next().into_iter().for_each(|seq| views.may_read_from(*seq));
        }
        views
    }
}

/// Views that were registered at one time.
#[derive(Clone, Debug, Default)]
pub struct Views {
    /// States that views in slots read, unsorted.
    slots: SmallVec<[Seq; 8]>,
    /// Oldest state that views may read that are being registered in slots.
    from: Option<Seq>,
    /// Number of the other views by the state that they read. `None` if there are none.
    overflow: Option<Arc<BTreeMap<Seq, usize>>>,
    /// Views that register later read this state or a newer one.
    as_of: Seq,
}

impl Views {
    /// Adds a view of the state at `seq`.
    pub fn register(&mut self, seq: Seq) {
        add(Arc::make_mut(self.overflow.get_or_insert_default()), seq);
    }

    /// Removes one view of the state at `seq`.
    pub fn release(&mut self, seq: Seq) {
        let Some(rest) = self.overflow.as_mut().map(Arc::make_mut) else { return };
        subtract(rest, seq);
        if rest.is_empty() {
            self.overflow = None;
        }
    }

    /// Adds a view that will read the state at `seq` or a newer one.
    fn may_read_from(&mut self, seq: Seq) {
        self.from = Some(self.from.map_or(seq, |from| from.min(seq)));
    }

    /// Returns the states that views read, from `begin` to before `end`, unsorted.
    fn between(&self, begin: Seq, end: Seq) -> impl Iterator<Item = Seq> {
        let slots = self.slots.iter().copied().filter(move |seq| begin <= *seq && *seq < end);
        let range = begin..end.max(begin);
        slots.chain(self.overflow.iter().flat_map(move |rest| rest.range(range.clone()).map(|(seq, _)| *seq)))
    }

    /// Returns true if a view reads a version that exists from `begin` to before `end`.
    #[must_use]
    pub fn needs(&self, begin: Seq, end: Seq) -> bool {
        self.from.is_some_and(|from| from < end) || self.between(begin, end).next().is_some()
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

    /// Returns the newest state at the time when these views were collected. Views that register
    /// later read it or a newer one.
    #[must_use]
    pub fn as_of(&self) -> Seq {
        self.as_of
    }

    /// Like [`Views::needs`], for a version that may have been superseded after the views were
    /// collected: a view that registered in between may read it.
    #[must_use]
    pub fn may_need(&self, begin: Seq, end: Seq) -> bool {
        end > self.as_of || self.needs(begin, end)
    }

    /// Returns true if [`Views::may_need`] can be true for a version that was superseded at `end`.
    #[must_use]
    pub fn may_need_before(&self, end: Seq) -> bool {
        end > self.as_of || self.oldest().is_some_and(|oldest| oldest < end)
    }

    /// Returns true if there are no views.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.from.is_none() && self.overflow.is_none()
    }

    /// Returns the oldest state that a view reads or may come to read.
    #[must_use]
    pub fn oldest(&self) -> Option<Seq> {
        let rest = self.overflow.iter().filter_map(|rest| rest.keys().next());
        self.slots.iter().chain(rest).chain(&self.from).min().copied()
    }

    /// Returns the newest state that a view reads or may come to read.
    #[must_use]
    pub fn newest(&self) -> Option<Seq> {
        if self.from.is_some() {
            return Some(Seq::LATEST);
        }
        let rest = self.overflow.iter().filter_map(|rest| rest.keys().next_back());
        self.slots.iter().chain(rest).max().copied()
    }

    /// Returns the number of views.
    #[must_use]
    pub fn len(&self) -> usize {
        let rest: usize = self.overflow.iter().flat_map(|rest| rest.values()).sum();
        self.slots.len() + usize::from(self.from.is_some()) + rest
    }
}

/// Counts of superseded versions that views pin, for an engine that frees versions when it next
/// rewrites the block that contains them.
#[derive(Debug, Default)]
pub struct PinnedVersions {
    /// Seqs at which the versions were written and superseded.
    lifetimes: Mutex<Vec<(Seq, Seq)>>,
    /// True if there were views at the last update.
    has_views: AtomicBool,
}

impl PinnedVersions {
    /// Returns true if there were views at the last call of [`PinnedVersions::update`]: then an
    /// operation must know the seq of the version that it supersedes.
    pub fn has_views(&self) -> bool {
        self.has_views.load(Ordering::Relaxed)
    }

    /// Records whether there are views.
    pub fn update(&self, views: &Views) {
        let has_views = !views.is_empty();
        if self.has_views() != has_views {
            self.has_views.store(has_views, Ordering::Relaxed); // all committers read this line
        }
    }

    /// Records that commit `end` superseded the version of commit `begin`, if a view needs that
    /// version.
    pub fn note_superseded(&self, begin: Seq, end: Seq, views: &Views) {
        if begin != Seq::ZERO && views.needs(begin, end) {
            self.lifetimes.lock().push((begin, end));
        }
    }

    /// Removes the versions that no view needs any more.
    pub fn trim(&self, views: &Views, visible: Seq) {
        self.update(views);
        self.lifetimes.lock().retain(|(begin, end)| *end > visible || views.needs(*begin, *end));
    }

    /// Returns the number of pinned versions.
    pub fn count(&self) -> u64 {
        self.lifetimes.lock().len() as u64
    }

    /// Removes all versions.
    pub fn clear(&self) {
        *self.lifetimes.lock() = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use sheaf_platform::error::PoisonCause;

    use super::*;

    #[test]
    fn a_version_is_needed_exactly_while_a_view_falls_in_its_life() {
        let mut views = Views::default();
        assert!(!views.needs(Seq(0), Seq(100)));
        views.register(Seq(10));
        views.register(Seq(10));
        assert!(views.needs(Seq(10), Seq(11)), "written at the view");
        assert!(!views.needs(Seq(5), Seq(10)), "superseded at the view");
        assert!(!views.needs(Seq(11), Seq(20)), "written after it");
        views.release(Seq(10));
        assert!(views.needs(Seq(1), Seq(20)));
        views.release(Seq(10));
        assert!(!views.needs(Seq(1), Seq(20)) && views.is_empty());
    }

    #[test]
    fn views_in_slots_are_needed_like_others() {
        let (slots, progress) = (ViewSlots::default(), CommitProgress::default());
        progress.begin(Seq(3), Seq(4));
        let old = slots.register(&progress, || Seq(3)).unwrap();
        progress.begin(Seq(10), Seq(11));
        let (slot, seq) = slots.register(&progress, || Seq(10)).unwrap();
        assert_eq!((old.1, seq), (Seq(3), Seq(10)));
        let views = slots.collect();
        assert!(
            views.needs(Seq(10), Seq(11)) && !views.needs(Seq(5), Seq(10)) && views.needs(Seq(3), Seq(4))
        );
        assert_eq!((views.oldest(), views.newest(), views.len()), (Some(Seq(3)), Some(Seq(10)), 2));
        assert_eq!(views.before(Seq(11)), [Seq(3), Seq(10)]);
        slots.release(slot);
        slots.release(old.0);
        assert!(slots.collect().is_empty());
    }

    #[test]
    fn a_view_waits_for_a_commit_that_may_have_missed_it() {
        let (slots, progress) = (ViewSlots::default(), CommitProgress::default());
        progress.begin(Seq(6), Seq(7));
        let looks = std::cell::Cell::new(0);
        let reserved = || {
            looks.set(looks.get() + 1);
            if looks.get() == 2 {
                let views = slots.collect();
                assert_eq!((views.oldest(), views.newest()), (Some(Seq(6)), Some(Seq::LATEST)));
                assert!(views.needs(Seq(5), Seq(7)), "the view may still read that state");
                progress.complete(Seq(7)).unwrap();
            }
            Seq(7)
        };
        let (_, seq) = slots.register(&progress, reserved).unwrap();
        assert_eq!(seq, Seq(7));
        assert_eq!(slots.collect().before(Seq(8)), [Seq(7)]);
        progress.fail(Seq(8), PoisonCause::Append);
        assert!(slots.register(&progress, || Seq(8)).is_err());
        assert_eq!(slots.collect().len(), 1, "a view that failed is not registered");
    }

    #[test]
    fn each_slot_is_given_to_one_view_and_given_again() {
        let (slots, progress) = (ViewSlots::default(), CommitProgress::default());
        progress.begin(Seq(1), Seq(2));
        let register = || slots.register(&progress, || Seq(1)).unwrap().0;
        let mut held: Vec<ViewSlot> = (0..LINES * SLOTS).map(|_| register()).collect();
        assert!(held.iter().all(|slot| matches!(slot.0, Registered::Slot(_))));
        held.push(register());
        held.push(slots.register_exclusive(Seq(1)));
        assert_eq!(held.iter().filter(|slot| matches!(slot.0, Registered::Map(_))).count(), 2);
        assert_eq!((slots.collect().len(), slots.collect().oldest()), (LINES * SLOTS + 2, Some(Seq(1))));
        progress.fail(Seq(2), PoisonCause::Append);
        assert!(slots.register(&progress, || Seq(2)).is_err());
        held.into_iter().for_each(|slot| slots.release(slot));
        assert!(slots.collect().is_empty());
        assert_eq!(slots.overflow_count.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn slots_of_two_threads_share_no_cache_line() {
        let line = align_of::<CachePadded<u8>>();
        assert!(line >= 64);
        assert_eq!((align_of::<SlotLine>(), size_of::<SlotLine>()), (line, line));
    }

    #[test]
    fn a_copy_assumes_that_later_views_need_newer_versions() {
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
