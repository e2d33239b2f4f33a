//! # Gaps: stretches of keys that are known to be removed
//!
//! Removed keys stay in memtables and upper levels until a spill meets the last level. A cursor that went over many of them
//! remembers the stretch here, so that the next cursor goes around it: a queue's `first` costs the same however much was taken.
//!
//! ## Picture
//!
//! ```text
//!  keys:     a  b  c  d  e  f  g        x: removed in the newest state
//!            x  x  x  x     x
//!  gap:     [ low .......... high = e)  cursor at `low <= key < high` goes on at `high`
//!  put(c):  the gap is divided: [low, c) and (c, high)
//! ```
//!
//! Keys are given as positions: a position is a key, and lies before it; the position behind a key is the key with a zero byte.
//!
//! ## Invariants
//!
//! 1. No view at or after `since` sees a key of a gap, nor does the newest state.
//! 2. A put takes its key out of all gaps and walks before it is visible. It changes the memtable first and looks for gaps then; a
//!    walk begins here first and reads the memtables then. So one of the two learns of the other.
//! 3. There are at most [`MOST`] gaps: those that spared least go.
//!
//! ## Threads
//!
//! Any. The lock is the last one, and taken by a put only while there are gaps or walks.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use sheaf_base::types::Seq;

/// Gaps that are remembered.
const MOST: usize = 256;
/// Keys put during one walk that are noted: a walk that sees more, or a longer one, learns nothing.
const MOST_PUT: usize = 1024;
/// Keys at the ends of a gap are no longer than this: gaps are in no account.
const MOST_KEY: usize = 1024;
/// Cursors that note at once what they go over, after one that met many removed keys: it had not noted those that it met first.
const EAGER: u32 = 4;

/// A place between keys: before the key that it is. `None` lies behind all keys.
pub(crate) type Position = Option<Vec<u8>>;

/// The position behind `key`.
pub(crate) fn behind(key: &[u8]) -> Vec<u8> {
    let mut position = Vec::with_capacity(key.len() + 1);
    position.extend_from_slice(key);
    position.push(0);
    position
}

/// Whether `position` lies before `other`.
fn is_before(position: &Position, other: &Position) -> bool {
    match (position, other) {
        (Some(position), Some(other)) => position < other,
        (position, _) => position.is_some() && other.is_none(),
    }
}

/// A stretch from the key it stands under in the map.
#[derive(Clone, Debug)]
struct Gap {
    high: Position,
    since: Seq,
    /// Removed keys that a cursor went over to learn of it.
    spares: u64,
    is_used: bool,
}

/// A cursor that is going over removed keys, and the keys that were put meanwhile.
#[derive(Debug)]
struct Walk {
    number: u64,
    put: Vec<Vec<u8>>,
    is_void: bool,
}

/// A stretch that a walk went over.
#[derive(Clone, Debug)]
pub(crate) struct Stretch {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Position,
    /// No removal in it is of a later commit.
    pub(crate) since: Seq,
    /// Removed keys in it.
    pub(crate) count: u64,
}

#[derive(Debug, Default)]
struct Inner {
    gaps: BTreeMap<Vec<u8>, Gap>,
    walks: Vec<Walk>,
    next: u64,
}

impl Inner {
    /// The gap that begins at or before `position`, and reaches beyond it.
    fn at(&mut self, position: &[u8]) -> Option<(&Vec<u8>, &mut Gap)> {
        let (low, gap) = self.gaps.range_mut::<[u8], _>((Unbounded, Included(position))).next_back()?;
        let is_within = gap.high.as_ref().is_none_or(|high| position < &high[..]);
        is_within.then_some((low, gap))
    }

    fn put(&mut self, key: &[u8]) {
        for walk in &mut self.walks {
            match walk.put.len() < MOST_PUT && key.len() <= MOST_KEY {
                true => walk.put.push(key.to_vec()),
                false => walk.is_void = true,
            }
        }
        self.take_out(key);
    }

    fn take_out(&mut self, key: &[u8]) {
        let Some((low, gap)) = self.at(key) else { return };
        let (low, rest) = (low.clone(), Gap { spares: gap.spares / 2, ..gap.clone() });
        let behind = behind(key);
        (gap.high, gap.spares) = (Some(key.to_vec()), gap.spares / 2);
        if low == key {
            self.gaps.remove(&low);
        }
        if key.len() > MOST_KEY {
            self.gaps.remove(&low);
            return;
        }
        if is_before(&Some(behind.clone()), &rest.high) {
            self.gaps.insert(behind, rest);
        }
        self.bound();
    }

    fn add(&mut self, mut stretch: Stretch) {
        if stretch.low.len() > MOST_KEY || stretch.high.as_ref().is_some_and(|high| high.len() > MOST_KEY) {
            return;
        }
        // What touches it or lies in it becomes one with it.
        while let Some((low, gap)) = self.touching(&stretch) {
            self.gaps.remove(&low);
            stretch.low = stretch.low.min(low);
            if is_before(&stretch.high, &gap.high) {
                stretch.high = gap.high;
            }
            (stretch.since, stretch.count) = (stretch.since.max(gap.since), stretch.count + gap.spares);
        }
        let Stretch { low, high, since, count: spares } = stretch;
        self.gaps.insert(low, Gap { high, since, spares, is_used: true });
        self.bound();
    }

    /// A gap that overlaps a stretch, or ends or begins where the stretch begins or ends.
    fn touching(&self, stretch: &Stretch) -> Option<(Vec<u8>, Gap)> {
        let last = match &stretch.high {
            Some(high) => self.gaps.range::<[u8], _>((Unbounded, Included(&high[..]))).next_back(),
            None => self.gaps.iter().next_back(),
        };
        let (low, gap) = last?;
        let touches = gap.high.as_ref().is_none_or(|high| *high >= stretch.low);
        touches.then(|| (low.clone(), gap.clone()))
    }

    /// (I3)
    fn bound(&mut self) {
        while self.gaps.len() > MOST {
            let least = self.gaps.iter().min_by_key(|(_, gap)| gap.spares).map(|(low, _)| low.clone());
            least.and_then(|low| self.gaps.remove(&low));
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Gaps {
    /// There are gaps or walks.
    is_any: AtomicBool,
    /// So many of the next cursors note what they go over from their first key on.
    eager: AtomicU32,
    inner: Mutex<Inner>,
}

impl Gaps {
    fn renew(&self, inner: &Inner) {
        self.is_any.store(!inner.gaps.is_empty() || !inner.walks.is_empty(), Ordering::SeqCst);
    }

    /// Whether there is any, or somebody is about to find one.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::SeqCst)
    }

    /// The memtable has a value of `key` now, which is not visible yet.
    #[inline]
    pub(crate) fn put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // between the change of the memtable and the look (I2)
        if self.is_any() {
            let mut inner = self.inner.lock();
            inner.put(key);
            self.renew(&inner);
        }
    }

    /// A cursor met many removed keys.
    pub(crate) fn be_eager(&self) {
        self.eager.store(EAGER, Ordering::Relaxed);
    }

    /// Whether a cursor that begins is to note what it goes over.
    pub(crate) fn is_eager(&self) -> bool {
        let eager = self.eager.load(Ordering::Relaxed);
        if eager > 0 {
            self.eager.store(eager - 1, Ordering::Relaxed); // about so many
        }
        eager > 0
    }

    /// Where a cursor for a view at `at` that stands at `position` may go on upwards.
    pub(crate) fn above(&self, position: &[u8], at: Seq) -> Option<Position> {
        let mut inner = self.inner.lock();
        let (_, gap) = inner.at(position).filter(|(_, gap)| gap.since <= at)?;
        gap.is_used = true;
        Some(gap.high.clone())
    }

    /// Where a cursor that has to show keys before `position` may go on downwards.
    pub(crate) fn below(&self, position: &Position, at: Seq) -> Option<Vec<u8>> {
        let mut inner = self.inner.lock();
        let last = match position {
            Some(position) => {
                inner.gaps.range_mut::<[u8], _>((Unbounded, Excluded(&position[..]))).next_back()
            }
            None => inner.gaps.iter_mut().next_back(),
        };
        let (low, gap) = last.filter(|(_, gap)| gap.since <= at && !is_before(&gap.high, position))?;
        gap.is_used = true;
        Some(low.clone())
    }

    /// Where the next gap begins that a cursor comes to, which stands at `position` and goes up: the lowest key of it.
    pub(crate) fn next_above(&self, position: &[u8], at: Seq) -> Position {
        let inner = self.inner.lock();
        let mut above = inner.gaps.range::<[u8], _>((Excluded(position), Unbounded));
        above.find(|(_, gap)| gap.since <= at).map(|(low, _)| low.clone())
    }

    /// The same downwards: the end of the next gap below.
    pub(crate) fn next_below(&self, position: &Position, at: Seq) -> Position {
        let inner = self.inner.lock();
        let all = match position {
            Some(position) => inner.gaps.range::<[u8], _>((Unbounded, Excluded(&position[..]))),
            None => inner.gaps.range::<[u8], _>((Unbounded, Unbounded)),
        };
        let mut below = all.rev().filter(|(_, gap)| gap.since <= at && is_before(&gap.high, position));
        below.next().and_then(|(_, gap)| gap.high.clone())
    }

    /// A cursor begins to go over what may be removed keys, and reads the memtables only then; its number.
    pub(crate) fn begin(&self) -> u64 {
        let mut inner = self.inner.lock();
        let number = inner.next;
        inner.next += 1;
        inner.walks.push(Walk { number, put: Vec::new(), is_void: false });
        self.renew(&inner);
        drop(inner);
        fence(Ordering::SeqCst); // before the memtables are read (I2)
        number
    }

    /// A walk is over, and these stretches had no value in what it read. What was put meanwhile is left out.
    pub(crate) fn end(&self, number: u64, stretches: Vec<Stretch>) {
        let mut inner = self.inner.lock();
        let Some(place) = inner.walks.iter().position(|walk| walk.number == number) else { return };
        let walk = inner.walks.swap_remove(place);
        if !walk.is_void {
            stretches.into_iter().for_each(|stretch| inner.add(stretch));
            walk.put.iter().for_each(|key| inner.take_out(key));
        }
        self.renew(&inner);
    }

    /// Much of what was removed went down: gaps that were not used since the last time go.
    pub(crate) fn age(&self) {
        let mut inner = self.inner.lock();
        inner.gaps.retain(|_, gap| std::mem::take(&mut gap.is_used));
        self.renew(&inner);
    }

    /// How many gaps there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.inner.lock().gaps.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(gaps: &Gaps, low: &[u8], high: Option<&[u8]>, since: u64) {
        let number = gaps.begin();
        let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        gaps.end(number, vec![Stretch { low, high, since: Seq(since), count: 100 }]);
    }

    fn above(gaps: &Gaps, position: &[u8]) -> Option<Position> {
        gaps.above(position, Seq::LATEST)
    }

    fn at(key: &[u8]) -> Option<Position> {
        Some(Some(key.to_vec()))
    }

    #[test]
    fn a_cursor_goes_around_a_gap_both_ways() {
        let gaps = Gaps::default();
        learn(&gaps, b"c", Some(b"k"), 5);
        assert_eq!((above(&gaps, b"b"), above(&gaps, b"k")), (None, None));
        assert_eq!((above(&gaps, b"c"), above(&gaps, b"j")), (at(b"k"), at(b"k")));
        let below = |key: &[u8]| gaps.below(&Some(key.to_vec()), Seq::LATEST);
        assert_eq!((below(b"k"), below(b"d")), (Some(b"c".to_vec()), Some(b"c".to_vec())));
        assert_eq!((below(b"c"), below(b"ka")), (None, None));
        assert_eq!(gaps.below(&None, Seq::LATEST), None);
        learn(&gaps, b"x", None, 5);
        assert_eq!(gaps.below(&None, Seq::LATEST), Some(b"x".to_vec()));
        assert_eq!(above(&gaps, b"y"), Some(None));
    }

    #[test]
    fn a_cursor_learns_where_the_next_gap_begins() {
        let gaps = Gaps::default();
        learn(&gaps, b"c", Some(b"e"), 5);
        learn(&gaps, b"k", Some(b"m"), 7);
        let above = |key: &[u8], at| gaps.next_above(key, Seq(at));
        assert_eq!(
            (above(b"a", 7), above(b"c", 7), above(b"k", 7)),
            (Some(b"c".to_vec()), Some(b"k".to_vec()), None)
        );
        assert_eq!(above(b"c", 6), None);
        let below = |key: Option<&[u8]>, at| gaps.next_below(&key.map(<[u8]>::to_vec), Seq(at));
        assert_eq!(
            (below(None, 7), below(Some(b"m"), 7), below(Some(b"e"), 7)),
            (Some(b"m".to_vec()), Some(b"e".to_vec()), None)
        );
        assert_eq!(below(None, 6), Some(b"e".to_vec()));
    }

    #[test]
    fn an_older_view_goes_through_a_gap() {
        let gaps = Gaps::default();
        learn(&gaps, b"", None, 5);
        assert_eq!(gaps.above(b"a", Seq(4)), None);
        assert_eq!(gaps.below(&None, Seq(4)), None);
        assert_eq!(gaps.above(b"a", Seq(5)), Some(None));
    }

    #[test]
    fn a_put_takes_its_key_out() {
        let gaps = Gaps::default();
        learn(&gaps, b"", None, 5);
        gaps.put(b"m");
        assert_eq!((above(&gaps, b""), above(&gaps, b"m")), (at(b"m"), None));
        assert_eq!(above(&gaps, b"m\0"), Some(None));
        gaps.put(b"");
        assert_eq!((above(&gaps, b""), above(&gaps, b"\0")), (None, at(b"m")));
    }

    #[test]
    fn what_is_put_while_a_walk_goes_on_is_left_out() {
        let gaps = Gaps::default();
        let number = gaps.begin();
        gaps.put(b"m");
        let stretch = Stretch { low: Vec::new(), high: None, since: Seq(1), count: 100 };
        gaps.end(number, vec![stretch]);
        assert_eq!((above(&gaps, b"a"), above(&gaps, b"m")), (at(b"m"), None));
    }

    #[test]
    fn stretches_that_touch_become_one_gap() {
        let gaps = Gaps::default();
        learn(&gaps, b"c", Some(b"f"), 5);
        learn(&gaps, b"f", Some(b"k"), 7);
        learn(&gaps, b"a", Some(b"d"), 6);
        assert_eq!(gaps.count(), 1);
        assert_eq!(above(&gaps, b"a"), at(b"k"));
        assert_eq!(gaps.above(b"a", Seq(6)), None);
    }

    #[test]
    fn gaps_are_bounded_and_those_not_used_go() {
        let gaps = Gaps::default();
        for number in 0..2 * u32::try_from(MOST).unwrap() {
            let key = (2 * number).to_be_bytes();
            learn(&gaps, &key, Some(&(2 * number + 1).to_be_bytes()), 1);
        }
        assert_eq!(gaps.count(), MOST);
        gaps.age();
        let last = (2 * (2 * u32::try_from(MOST).unwrap() - 1)).to_be_bytes();
        assert!(above(&gaps, &last).is_some());
        gaps.age();
        assert_eq!(gaps.count(), 1);
    }
}
