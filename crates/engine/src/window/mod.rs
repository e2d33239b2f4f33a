//! # Window: commits between reservation and visibility
//!
//! A commit *reserves* its seq and its places in the logs by one atomic exchange. It copies its
//! frames and changes the indexes in parallel with other commits, and then marks itself *complete*.
//! It becomes visible to all readers when it and all earlier commits are complete (decisions/0027).
//!
//! ## Picture
//!
//! ```text
//!   word:     closed | generation | next seq | offset of each tail          one atomic of 16 bytes
//!                                     │
//!   commit:   stripes of its keys ─> reserve ─> copy, apply ─> complete ─> release stripes ─> wait
//!                                                                │
//!   visible:  ... 41 42 43 │ 44 . 46 47                  44, 46 and 47 are complete: visible is 44
//! ```
//!
//! ## Invariants
//!
//! 1. Only the holder of the order lock changes the `TailSet`. It also changes the word, except for
//!    reservations within the open segments. A reservation by another thread succeeds only if the
//!    word is unchanged since it was read together with the present tail set.
//! 2. `visible` is below every seq that is reserved and not complete. The word and the tail set
//!    that belong together have the same generation.
//! 3. While the word is closed, only the holder of the order lock reserves. A failed append closes
//!    it permanently.

#[cfg(all(test, shuttle))]
mod interleavings;
mod progress;
mod recent_keys;
mod stripes;

pub use self::progress::CommitProgress;
pub use self::recent_keys::{ChangedKey, RangeReader, RecentChange, RecentKeys};
pub use self::stripes::{ExclusiveGuard, StripeList, Stripes, StripesGuard, stripe_of};

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use sheaf_log::segment::Segment;
use sheaf_log::types::{LogId, Seq};
use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch::{self, Guard};
use sheaf_platform::sync::{self, AtomicWide, Published};

/// Number of tails: one for each log, and a second one of the store log.
pub const TAILS: usize = LogId::ALL.len() + 1;

/// Bits of the offset of a tail, in units of 8 bytes.
const OFFSET_BITS: u32 = 25;
const OFFSET_UNIT: u64 = sheaf_log::frame::ALIGN;
const SEQ_BITS: u32 = 48;
const SEQ_SHIFT: u32 = offset_shift(TAILS);
const GENERATION_BITS: u32 = 4;
const GENERATION_SHIFT: u32 = SEQ_SHIFT + SEQ_BITS;
const CLOSED: u128 = 1 << (GENERATION_SHIFT + GENERATION_BITS);
const _: () = assert!(GENERATION_SHIFT + GENERATION_BITS < u128::BITS);

/// Returns the first bit of the offset of a tail.
#[allow(clippy::cast_possible_truncation, reason = "there are few tails")]
const fn offset_shift(tail: usize) -> u32 {
    OFFSET_BITS * tail as u32
}

/// The next seq, and the place of the next frame in each tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowWord(u128);

impl WindowWord {
    /// Makes an open word.
    pub fn new(next: Seq, offsets: [u64; TAILS]) -> WindowWord {
        let mut word = WindowWord(u128::from(next.0) << SEQ_SHIFT);
        for (tail, offset) in offsets.into_iter().enumerate() {
            word.set_offset(tail, offset);
        }
        word
    }

    /// Returns the seq of the next commit.
    #[inline]
    pub fn next(self) -> Seq {
        Seq(self.field(SEQ_SHIFT, SEQ_BITS))
    }

    /// Returns the last seq that is reserved.
    #[inline]
    pub fn reserved(self) -> Seq {
        Seq(self.next().0.saturating_sub(1))
    }

    /// Returns the place of the next frame of a tail, in bytes from the start of its segment.
    #[inline]
    pub fn offset(self, tail: usize) -> u64 {
        self.field(offset_shift(tail), OFFSET_BITS) * OFFSET_UNIT
    }

    /// Sets the place of the next frame of a tail.
    #[inline]
    pub fn set_offset(&mut self, tail: usize, offset: u64) {
        debug_assert!(offset.is_multiple_of(OFFSET_UNIT) && offset / OFFSET_UNIT < 1 << OFFSET_BITS);
        let shift = offset_shift(tail);
        self.0 &= !(((1 << OFFSET_BITS) - 1) << shift);
        self.0 |= u128::from(offset / OFFSET_UNIT) << shift;
    }

    /// Takes the next seq.
    #[inline]
    pub fn take_seq(&mut self) -> Seq {
        let seq = self.next();
        self.0 += 1 << SEQ_SHIFT;
        seq
    }

    /// Gives back the last seq. Its commit failed, and no commit has a later seq.
    pub fn return_seq(&mut self) {
        self.0 -= 1 << SEQ_SHIFT;
    }

    /// Returns `bits` bits from bit `shift` on.
    #[inline]
    #[allow(clippy::cast_possible_truncation, reason = "a field has at most 48 bits")]
    fn field(self, shift: u32, bits: u32) -> u64 {
        (self.0 >> shift) as u64 & ((1 << bits) - 1)
    }

    fn generation(self) -> u64 {
        self.field(GENERATION_SHIFT, GENERATION_BITS)
    }

    fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    fn with_next_generation(self) -> WindowWord {
        let next = (self.generation() + 1) % (1 << GENERATION_BITS);
        let cleared = self.0 & !(((1 << GENERATION_BITS) - 1) << GENERATION_SHIFT);
        WindowWord(cleared | u128::from(next) << GENERATION_SHIFT)
    }
}

/// The open segment of a tail.
#[derive(Clone, Debug)]
pub struct OpenTail {
    /// The segment.
    pub segment: Arc<Segment>,
    /// Limit of the ends of frames.
    pub limit: u64,
    /// Place of the first frame that is reserved with this tail set.
    pub start: u64,
    /// Gap between that frame and the previous one, in units of 8 bytes.
    pub gap: u8,
}

impl OpenTail {
    /// Returns the value of the field `gap` for a frame at `offset`.
    pub fn gap_at(&self, offset: u64) -> u8 {
        if offset == self.start { self.gap } else { 0 }
    }

    /// Returns the end of the last frame, if the next one begins at `offset`.
    fn end_at(&self, offset: u64) -> u64 {
        offset - u64::from(self.gap_at(offset)) * OFFSET_UNIT
    }
}

/// The open segments that a [`WindowWord`] refers to.
#[derive(Clone, Debug, Default)]
pub struct TailSet {
    /// The open segment of each tail; `None` if the tail has none.
    pub tails: [Option<OpenTail>; TAILS],
    /// Generation of the words that refer to this tail set.
    generation: u64,
}

impl TailSet {
    /// Creates a tail set of these open segments.
    pub fn new(tails: [Option<OpenTail>; TAILS]) -> TailSet {
        TailSet { tails, generation: 0 }
    }
}

/// The word that commits reserve with, and its tail set.
#[derive(Debug)]
pub struct CommitWindow {
    word: CachePadded<AtomicWide>,
    tail_set: CachePadded<Published<TailSet>>,
}

impl Default for CommitWindow {
    fn default() -> CommitWindow {
        CommitWindow::new()
    }
}

impl CommitWindow {
    /// Creates a window without open segments.
    #[must_use]
    pub fn new() -> CommitWindow {
        CommitWindow {
            word: CachePadded::new(AtomicWide::new(WindowWord::new(Seq(1), [0; TAILS]).0)),
            tail_set: CachePadded::new(Published::new(TailSet::default())),
        }
    }

    /// Returns the present word. Unless it is closed, it may change at any time.
    #[inline]
    pub fn word(&self) -> WindowWord {
        WindowWord(self.word.load(Ordering::SeqCst))
    }

    /// Returns the last reserved seq.
    #[inline]
    pub fn reserved(&self) -> Seq {
        self.word().reserved()
    }

    /// Returns the last reserved seq, and the open segments with the ends of their last frames.
    pub fn tail_ends(&self) -> (Seq, Vec<(Arc<Segment>, u64)>) {
        let guard = epoch::pin();
        loop {
            let (shape, word) = (self.tail_set.load(&guard), self.word());
            // A new tail set is published before its word.
            if word.generation() != shape.generation {
                sync::thread::yield_now();
            } else if std::ptr::eq(shape, self.tail_set.load(&guard)) {
                let end = |(tail, open): (usize, &Option<OpenTail>)| {
                    let open = open.as_ref()?;
                    Some((Arc::clone(&open.segment), open.end_at(word.offset(tail))))
                };
                return (word.reserved(), shape.tails.iter().enumerate().filter_map(end).collect());
            }
        }
    }

    /// Makes a reservation: `change` gets the tail set and changes the word. Returns `None` if the
    /// word is closed, else the answer of `change`, even if `change` makes no reservation.
    #[inline]
    pub fn reserve<'g, T>(
        &'g self,
        guard: &'g Guard,
        mut change: impl FnMut(&'g TailSet, &mut WindowWord) -> ReserveDecision<T>,
    ) -> Option<(T, &'g TailSet)> {
        loop {
            let shape = self.tail_set.load(guard);
            let before = self.word();
            // While the guard is held, an equal pointer proves that the tail set did not change in
            // between.
            if !std::ptr::eq(shape, self.tail_set.load(guard)) {
                continue;
            }
            if before.is_closed() {
                return None;
            }
            let mut after = before;
            match change(shape, &mut after) {
                ReserveDecision::No(answer) => return Some((answer, shape)),
                ReserveDecision::Yes(answer) => {
                    if self.word.exchange(before.0, after.0).is_ok() {
                        return Some((answer, shape));
                    }
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Closes the word, so that only the caller reserves and may replace the tail set. The caller
    /// must hold the order lock.
    pub fn close(&self) -> ClosedWindow<'_> {
        let mut before = self.word();
        while !before.is_closed() {
            match self.word.exchange(before.0, before.0 | CLOSED) {
                Ok(()) => break,
                Err(now) => before = WindowWord(now),
            }
        }
        ClosedWindow {
            window: self,
            word: WindowWord(before.0 & !CLOSED),
            stays_closed: before.is_closed(),
            tail_set: None,
        }
    }
}

/// Decision of the function passed to [`CommitWindow::reserve`].
pub enum ReserveDecision<T> {
    /// Reserve the place.
    Yes(T),
    /// Reserve nothing.
    No(T),
}

/// The closed word of a window. Drop opens the window again with `word` and `tail_set`.
pub struct ClosedWindow<'a> {
    window: &'a CommitWindow,
    /// The word after the window is opened again.
    pub word: WindowWord,
    /// Whether the window stays closed.
    stays_closed: bool,
    /// The new tail set, if it has changed.
    tail_set: Option<TailSet>,
}

impl ClosedWindow<'_> {
    /// Sets the tail set that belongs to the word.
    pub fn set_tail_set(&mut self, shape: TailSet) {
        self.tail_set = Some(shape);
    }

    /// Keeps the word closed permanently.
    pub fn close_for_good(&mut self) {
        self.stays_closed = true;
    }
}

impl Drop for ClosedWindow<'_> {
    fn drop(&mut self) {
        assert!(
            self.window.word().is_closed(),
            "window (I3): only the holder of the order lock opens the window"
        );
        if let Some(mut shape) = self.tail_set.take() {
            let guard = epoch::pin();
            self.word = self.word.with_next_generation();
            shape.generation = self.word.generation();
            self.window.tail_set.replace(&guard, |_| shape);
        }
        let closed = if self.stays_closed { CLOSED } else { 0 };
        self.window.word.store(self.word.0 | closed, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_log::segment::MAX_CAPACITY;

    #[test]
    fn a_word_holds_the_largest_seq_and_offsets() {
        let (seq, most) = (Seq((1 << SEQ_BITS) - 1), MAX_CAPACITY);
        let mut word = WindowWord::new(seq, [most, 8, 0]);
        assert_eq!((word.next(), [0, 1, 2].map(|tail| word.offset(tail))), (seq, [most, 8, 0]));
        word.set_offset(1, most);
        word.set_offset(0, 16);
        assert_eq!((word.next(), [0, 1, 2].map(|tail| word.offset(tail))), (seq, [16, most, 0]));
        let mut word = WindowWord::new(Seq(7), [8, 16, 24]).with_next_generation();
        assert_eq!((word.take_seq(), word.next(), word.offset(2)), (Seq(7), Seq(8), 24));
        assert!(!word.is_closed() && word != WindowWord::new(Seq(8), [8, 16, 24]));
    }

    #[test]
    fn a_closed_window_takes_no_reservation_until_it_is_open_again() {
        let (window, guard) = (CommitWindow::new(), epoch::pin());
        let take = |_: &TailSet, word: &mut WindowWord| ReserveDecision::Yes(word.take_seq());
        assert_eq!(window.reserve(&guard, take).map(|(seq, _)| seq), Some(Seq(1)));
        let mut closed = window.close();
        assert!(window.reserve(&guard, take).is_none());
        assert_eq!(closed.word.take_seq(), Seq(2));
        closed.set_tail_set(TailSet::default());
        drop(closed);
        assert_eq!(window.reserve(&guard, take).map(|(seq, _)| seq), Some(Seq(3)));
        window.close().close_for_good();
        assert!(window.reserve(&guard, take).is_none());
        drop(window.close());
        assert!(window.reserve(&guard, take).is_none(), "it stays closed");
        assert_eq!(window.reserved(), Seq(3));
    }
}
