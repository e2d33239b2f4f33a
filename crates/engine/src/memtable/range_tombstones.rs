//! # Range tombstones: ranges of keys that a commit of the memtable removed
//!
//! ## Picture
//!
//! ```text
//!  removed   [a ........ m) at 7      [f ............ z) at 9
//!  pieces    [a .. f) 7    [f .. m) 9, 7    [m ...... z) 9      sorted, disjoint
//! ```
//!
//! A tombstone hides the versions of lower seqs in its range, in this memtable, in older ones, and
//! in files (commit.md R20). A piece keeps an older seq only while a view below the newer one
//! needs it.
//!
//! ## Invariants
//!
//! 1. The pieces are sorted and disjoint. The seqs of a piece descend.
//! 2. A published list never changes. `newest` is stored after the list that it belongs to.
//!
//! ## Threads
//!
//! Threads that add ranges exclude each other. Readers hold an epoch guard and take no lock.
//!
//! ## Costs
//!
//! A lookup costs one load if there are no tombstones, else O(log n) for n pieces. Adding a range
//! copies the list of pointers to the pieces.

use std::sync::{Arc, OnceLock};

use smallvec::{SmallVec, smallvec};

use crate::views::Views;
use sheaf_log::types::Seq;
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering};
use sheaf_platform::sync::epoch::Guard;
use sheaf_platform::sync::{Mutex, Published};

/// Estimated bytes of a piece besides the bytes of its ends.
const PIECE_OVERHEAD: u64 = 96;

/// Number of pieces from which a flush pays: a new tombstone copies the list of pieces.
const MANY_PIECES: usize = 1024;

/// Piece of a removed range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RangePiece {
    /// First key.
    pub first: Arc<[u8]>,
    /// End, which is not in the piece. `None` if the piece has no upper limit.
    pub end: Option<Arc<[u8]>>,
    /// Seqs of the commits that removed it, newest first.
    pub seqs: SmallVec<[Seq; 2]>,
}

impl RangePiece {
    /// Returns true if `key` is in the piece or above it.
    fn begins_at_or_before(&self, key: &[u8]) -> bool {
        *self.first <= *key
    }

    /// Returns true if `key` is below the end of the piece.
    #[must_use]
    pub fn ends_after(&self, key: &[u8]) -> bool {
        self.end.as_ref().is_none_or(|end| *key < **end)
    }

    /// Returns the newest seq, at most `at`. Returns zero if there is none.
    fn newest_at(&self, at: Seq) -> Seq {
        self.seqs.iter().copied().find(|seq| *seq <= at).unwrap_or(Seq::ZERO)
    }

    /// Adds a seq, and drops older ones that no view needs.
    fn add(&mut self, seq: Seq, views: &Views) {
        let at = self.seqs.partition_point(|other| *other > seq);
        if self.seqs.get(at) == Some(&seq) {
            return;
        }
        self.seqs.insert(at, seq);
        let mut newer = Seq::LATEST;
        self.seqs.retain(|seq| {
            let stays = newer == Seq::LATEST || views.needs(*seq, newer);
            newer = *seq;
            stays
        });
    }
}

/// Range tombstones of a memtable. Allocates nothing before the first one.
#[derive(Debug, Default)]
pub struct RangeTombstones(OnceLock<Box<PieceList>>);

/// Pieces of the range tombstones.
#[derive(Debug)]
struct PieceList {
    /// Seq of the newest tombstone; zero while the first one is added.
    newest: AtomicU64,
    /// Estimated bytes of the pieces.
    bytes: AtomicU64,
    adding: Mutex<()>,
    pieces: Published<Vec<Arc<RangePiece>>>,
}

impl PieceList {
    fn new() -> Box<PieceList> {
        let (newest, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        Box::new(PieceList { newest, bytes, adding: Mutex::new(()), pieces: Published::new(Vec::new()) })
    }
}

impl RangeTombstones {
    /// Returns true if there are none.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.newest() == Seq::ZERO
    }

    /// Returns the seq of the newest tombstone. Returns zero if there are none.
    #[inline]
    #[must_use]
    pub fn newest(&self) -> Seq {
        self.0.get().map_or(Seq::ZERO, |list| Seq(list.newest.load(Ordering::Acquire)))
    }

    /// Returns the estimated memory in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.0.get().map_or(0, |list| list.bytes.load(Ordering::Relaxed))
    }

    /// Returns the pieces.
    #[must_use]
    pub fn pieces<'g>(&'g self, guard: &'g Guard) -> &'g [Arc<RangePiece>] {
        self.0.get().map_or(&[], |list| list.pieces.load(guard))
    }

    /// Returns true if the memtable should be flushed to apply the tombstones: the keyspace is
    /// idle, or there are many.
    #[must_use]
    pub fn is_flush_due(&self, is_idle: bool, guard: &Guard) -> bool {
        !self.is_empty() && (is_idle || self.pieces(guard).len() > MANY_PIECES)
    }

    /// Returns the piece with `key`.
    #[must_use]
    pub fn piece_of<'g>(&'g self, key: &[u8], guard: &'g Guard) -> Option<&'g RangePiece> {
        let pieces = self.pieces(guard);
        let before = pieces.partition_point(|piece| piece.begins_at_or_before(key));
        let piece = pieces.get(before.checked_sub(1)?)?;
        piece.ends_after(key).then_some(&**piece)
    }

    /// Returns the seq of the newest tombstone that covers `key` and that a view at `at` sees.
    /// Returns zero if there is none.
    #[inline]
    #[must_use]
    pub fn seq_of(&self, key: &[u8], at: Seq, guard: &Guard) -> Seq {
        if self.is_empty() {
            return Seq::ZERO;
        }
        self.piece_of(key, guard).map_or(Seq::ZERO, |piece| piece.newest_at(at))
    }

    /// Returns the seq of the oldest known tombstone after `seq` that covers `key`. A tombstone is
    /// unknown if a newer one covers the key too, and no view needs the older one.
    #[must_use]
    pub fn next_seq(&self, key: &[u8], seq: Seq, guard: &Guard) -> Option<Seq> {
        if self.newest() <= seq {
            return None;
        }
        self.piece_of(key, guard)?.seqs.iter().copied().take_while(|other| *other > seq).last()
    }

    /// Returns true if a tombstone that a view at `at` sees may cover a key from `low` on and
    /// before `high`.
    #[must_use]
    pub fn overlaps(&self, low: &[u8], high: Option<&[u8]>, at: Seq, guard: &Guard) -> bool {
        if self.is_empty() {
            return false;
        }
        let pieces = self.pieces(guard);
        let begin = pieces.partition_point(|piece| !piece.ends_after(low));
        let is_before = |piece: &&Arc<RangePiece>| high.is_none_or(|high| *piece.first < *high);
        pieces[begin..].iter().take_while(is_before).any(|piece| piece.newest_at(at) > Seq::ZERO)
    }

    /// Returns the lowest key at or above `key` that a tombstone may cover.
    #[must_use]
    pub fn next_from(&self, key: &[u8], guard: &Guard) -> Option<Vec<u8>> {
        let pieces = self.pieces(guard);
        let piece = pieces.get(pieces.partition_point(|piece| !piece.ends_after(key)))?;
        let first: &[u8] = &piece.first;
        Some(first.max(key).to_vec())
    }

    /// Returns true if the tombstones cover all keys from `low` on and before `high`.
    #[must_use]
    pub fn covers(&self, low: &[u8], high: Option<&[u8]>, guard: &Guard) -> bool {
        let pieces = self.pieces(guard);
        let begin = pieces.partition_point(|piece| !piece.ends_after(low));
        covers(&pieces[begin..], low, |end| high.is_some_and(|high| end >= high))
    }

    /// Adds the tombstone of commit `seq` for the keys from `first` on and before `end`. Adding it
    /// again changes nothing. Returns the bytes of memory before and after the call.
    pub fn add(
        &self,
        first: &[u8],
        end: Option<&[u8]>,
        seq: Seq,
        views: &Views,
        guard: &Guard,
    ) -> (u64, u64) {
        let list = self.0.get_or_init(PieceList::new);
        let _one = list.adding.lock();
        let mut bytes = 0;
        list.pieces.replace(guard, |pieces| {
            let next = added(pieces, first, end, seq, views);
            let of = |piece: &Arc<RangePiece>| {
                PIECE_OVERHEAD + (piece.first.len() + piece.end.as_ref().map_or(0, |end| end.len())) as u64
            };
            bytes = next.iter().map(of).sum();
            next
        });
        let before = list.bytes.swap(bytes, Ordering::Relaxed);
        list.newest.fetch_max(seq.0, Ordering::Release); // (I2)
        (before, bytes)
    }
}

impl RangeTombstones {
    /// Like [`RangeTombstones::add`], and reports the memory to the budget.
    pub fn add_counted(
        &self,
        (first, end): (&[u8], Option<&[u8]>),
        seq: Seq,
        views: &Views,
        memory: &Memory,
        guard: &Guard,
    ) {
        let (before, after) = self.add(first, end, seq, views, guard);
        match after.checked_sub(before) {
            Some(more) => memory.take(MemoryPart::Index, more),
            None => memory.give_back(MemoryPart::Index, before - after),
        }
    }

    /// Removes the tombstones from the memory accounting, after their memtable has left the
    /// published state.
    pub fn uncount_memory(&self, memory: &Memory) {
        memory.give_back(MemoryPart::Index, self.bytes());
    }
}

/// Returns true if `pieces`, which are in the order of their first keys and may overlap, cover all
/// keys from `low` on, up to an end for which `is_enough` returns true.
pub fn covers(pieces: &[Arc<RangePiece>], low: &[u8], is_enough: impl Fn(&[u8]) -> bool) -> bool {
    let mut covered = low; // all keys below it are covered
    for piece in pieces.iter().filter(|piece| piece.ends_after(low)) {
        if *piece.first > *covered {
            return false;
        }
        match &piece.end {
            None => return true,
            Some(end) if is_enough(end) => return true,
            Some(end) => covered = covered.max(end),
        }
    }
    false
}

/// Returns `pieces` with the range added.
fn added(
    pieces: &[Arc<RangePiece>],
    first: &[u8],
    end: Option<&[u8]>,
    seq: Seq,
    views: &Views,
) -> Vec<Arc<RangePiece>> {
    let mut out: Vec<Arc<RangePiece>> = Vec::with_capacity(pieces.len() + 3);
    let begin = pieces.partition_point(|piece| !piece.ends_after(first));
    out.extend_from_slice(&pieces[..begin]);
    // The part of the range from `next` on is not added yet; `None` at its end.
    let mut next: Option<Arc<[u8]>> = Some(first.into());
    let end: Option<Arc<[u8]>> = end.map(Into::into);
    let is_before_end = |key: &[u8]| end.as_ref().is_none_or(|end| *key < **end);
    let mut rest = pieces.len();
    for (index, piece) in pieces.iter().enumerate().skip(begin) {
        let Some(from) = next.clone().filter(|_| is_before_end(&piece.first)) else {
            rest = index;
            break;
        };
        if *piece.first < *from {
            out.push(Arc::new(RangePiece { end: Some(Arc::clone(&from)), ..RangePiece::clone(piece) }));
        } else if *from < *piece.first {
            out.push(Arc::new(RangePiece {
                first: Arc::clone(&from),
                end: Some(Arc::clone(&piece.first)),
                seqs: smallvec![seq],
            }));
        }
        let mut both = RangePiece { first: from.max(Arc::clone(&piece.first)), ..RangePiece::clone(piece) };
        let ends_first = match (&piece.end, &end) {
            (Some(one), Some(other)) => one <= other,
            (Some(_), None) => true,
            (None, end) => end.is_none(),
        };
        if !ends_first {
            both.end.clone_from(&end);
        }
        both.add(seq, views);
        out.push(Arc::new(both));
        next = piece.end.clone().filter(|_| ends_first);
        if !ends_first && let Some(end) = &end {
            out.push(Arc::new(RangePiece { first: Arc::clone(end), ..RangePiece::clone(piece) }));
            out.extend_from_slice(&pieces[index + 1..]);
            return merged(out);
        }
    }
    if let Some(from) = next.filter(|from| is_before_end(from)) {
        out.push(Arc::new(RangePiece { first: from, end, seqs: smallvec![seq] }));
    }
    out.extend_from_slice(&pieces[rest..]);
    merged(out)
}

/// Joins adjacent pieces with equal seqs.
fn merged(pieces: Vec<Arc<RangePiece>>) -> Vec<Arc<RangePiece>> {
    let mut out: Vec<Arc<RangePiece>> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match out.last_mut() {
            Some(last) if last.end.as_ref() == Some(&piece.first) && last.seqs == piece.seqs => {
                let joined = RangePiece { end: piece.end.clone(), ..RangePiece::clone(last) };
                *last = Arc::new(joined);
            }
            _ => out.push(piece),
        }
    }
    let is_apart = |pair: &[Arc<RangePiece>]| pair[0].end.as_ref().is_some_and(|end| **end <= *pair[1].first);
    debug_assert!(out.windows(2).all(is_apart), "range_tombstones (I1): pieces are sorted and disjoint");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheaf_platform::sync::epoch;

    fn random(state: &mut u64, below: u64) -> u64 {
        *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (*state >> 33) % below
    }

    #[test]
    fn pieces_agree_with_a_list_of_ranges() {
        let guard = &epoch::pin();
        for turn in 0..200u64 {
            let (mut state, tombstones) = (turn, RangeTombstones::default());
            let mut views = Views::default();
            views.register(Seq(6));
            let mut ranges: Vec<(u8, Option<u8>, Seq)> = Vec::new();
            let mut seqs: Vec<u64> = (1..13).collect();
            while !seqs.is_empty() {
                let seq = match turn % 2 {
                    0 => seqs.remove(0), // commits come in order, a replay in any order
                    _ => seqs.swap_remove(usize::try_from(random(&mut state, seqs.len() as u64)).unwrap()),
                };
                let low = u8::try_from(random(&mut state, 20)).unwrap();
                let high = (random(&mut state, 4) > 0)
                    .then(|| low + 1 + u8::try_from(random(&mut state, 9)).unwrap());
                let end = high.map(|high| [high]);
                tombstones.add(&[low], end.as_ref().map(<[u8; 1]>::as_slice), Seq(seq), &views, guard);
                ranges.push((low, high, Seq(seq)));
                for key in 0..32u8 {
                    let covers = |(low, high, _): &&(u8, Option<u8>, Seq)| {
                        *low <= key && high.is_none_or(|high| key < high)
                    };
                    let newest = |at: Seq| {
                        let seqs = ranges.iter().filter(covers).map(|(_, _, seq)| *seq);
                        seqs.filter(|seq| *seq <= at).max().unwrap_or(Seq::ZERO)
                    };
                    let above =
                        ranges.iter().filter(covers).map(|(_, _, seq)| *seq).filter(|seq| *seq > Seq(6));
                    let next = tombstones.next_seq(&[key], Seq(6), guard);
                    assert_eq!(next.is_some(), above.clone().count() > 0, "turn {turn}, {key}");
                    assert!(next.is_none_or(|next| above.clone().any(|seq| seq == next)));
                    for at in [Seq(6), Seq::LATEST] {
                        assert_eq!(tombstones.seq_of(&[key], at, guard), newest(at), "turn {turn}, {key}");
                        let overlaps = tombstones.overlaps(&[key], Some(&[key + 1]), at, guard);
                        assert_eq!(overlaps, newest(at) > Seq::ZERO);
                    }
                }
                let newest = ranges.iter().map(|(_, _, seq)| *seq).max();
                assert_eq!(Some(tombstones.newest()), newest);
            }
            assert!(tombstones.bytes() > 0 && !tombstones.is_empty());
        }
    }

    #[test]
    fn without_views_a_piece_has_one_seq_and_equal_pieces_join() {
        let (tombstones, views, guard) = (RangeTombstones::default(), Views::default(), &epoch::pin());
        for key in 0..100u8 {
            tombstones.add(&[key], Some(&[key + 1]), Seq(u64::from(key) + 1), &views, guard);
        }
        assert_eq!(tombstones.pieces(guard).len(), 100);
        tombstones.add(&[0], None, Seq(200), &views, guard);
        let [piece] = tombstones.pieces(guard) else { panic!("{:?}", tombstones.pieces(guard)) };
        assert_eq!((&*piece.first, &piece.end, &piece.seqs[..]), (&[0][..], &None, &[Seq(200)][..]));
    }
}
