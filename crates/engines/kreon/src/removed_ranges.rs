//! # Gaps: stretches of keys that are known to be removed
//!
//! Removed keys stay in memtables and upper levels until a spill meets the last level. A cursor
//! that went over many of them remembers the stretch here, so that the next cursor goes around it:
//! a queue's `first` costs the same however much was taken.
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
//! Keys are given as positions: a position is a key, and lies before it; the position behind a key
//! is the key with a zero byte.
//!
//! ## Invariants
//!
//! 1. No view at or after `since` sees a key of a gap, nor does the newest state.
//! 2. A put takes its key out of all gaps and walks before it is visible. It changes the memtable
//!    first and looks for gaps then; a walk begins here first and reads the memtables then. So one
//!    of the two learns of the other.
//! 3. There are at most [`MAX_RANGES`] gaps: those that spared least go.
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
const MAX_RANGES: usize = 256;
/// Keys put during one walk that are noted: a walk that sees more, or a longer one, learns nothing.
const MAX_PUTS_PER_SCAN: usize = 1024;
/// Keys at the ends of a gap are no longer than this: gaps are in no account.
const MAX_KEY_BYTES: usize = 1024;
/// Cursors that note at once what they go over, after one that met many removed keys: it had not
/// noted those that it met first.
const EAGER_CURSORS: u32 = 4;

/// A place between keys: before the key that it is. `None` lies behind all keys.
pub(crate) type Position = Option<Vec<u8>>;

/// The position behind `key`.
pub(crate) fn position_after(key: &[u8]) -> Vec<u8> {
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
struct CachedRange {
    high: Position,
    since: Seq,
    /// Removed keys that a cursor went over to learn of it.
    removed_count: u64,
    is_used: bool,
}

/// A cursor that is going over removed keys, and the keys that were put meanwhile.
#[derive(Debug)]
struct ActiveScan {
    number: u64,
    keys_put: Vec<Vec<u8>>,
    is_void: bool,
}

/// A stretch that a walk went over.
#[derive(Clone, Debug)]
pub(crate) struct RemovedRun {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Position,
    /// No removal in it is of a later commit.
    pub(crate) since: Seq,
    /// Removed keys in it.
    pub(crate) count: u64,
}

#[derive(Debug, Default)]
struct RangeCacheState {
    removed_ranges: BTreeMap<Vec<u8>, CachedRange>,
    scans: Vec<ActiveScan>,
    next: u64,
}

impl RangeCacheState {
    /// The gap that begins at or before `position`, and reaches beyond it.
    fn range_at(&mut self, position: &[u8]) -> Option<(&Vec<u8>, &mut CachedRange)> {
        let (low, range) =
            self.removed_ranges.range_mut::<[u8], _>((Unbounded, Included(position))).next_back()?;
        let is_within = range.high.as_ref().is_none_or(|high| position < &high[..]);
        is_within.then_some((low, range))
    }

    fn exclude_put(&mut self, key: &[u8]) {
        for walk in &mut self.scans {
            match walk.keys_put.len() < MAX_PUTS_PER_SCAN && key.len() <= MAX_KEY_BYTES {
                true => walk.keys_put.push(key.to_vec()),
                false => walk.is_void = true,
            }
        }
        self.exclude_key(key);
    }

    fn exclude_key(&mut self, key: &[u8]) {
        let Some((low, range)) = self.range_at(key) else { return };
        let (low, rest) =
            (low.clone(), CachedRange { removed_count: range.removed_count / 2, ..range.clone() });
        let behind = position_after(key);
        (range.high, range.removed_count) = (Some(key.to_vec()), range.removed_count / 2);
        if low == key {
            self.removed_ranges.remove(&low);
        }
        if key.len() > MAX_KEY_BYTES {
            self.removed_ranges.remove(&low);
            return;
        }
        if is_before(&Some(behind.clone()), &rest.high) {
            self.removed_ranges.insert(behind, rest);
        }
        self.evict_excess();
    }

    fn add(&mut self, mut run: RemovedRun) {
        if run.low.len() > MAX_KEY_BYTES || run.high.as_ref().is_some_and(|high| high.len() > MAX_KEY_BYTES) {
            return;
        }
        // What touches it or lies in it becomes one with it.
        while let Some((low, range)) = self.adjacent_range(&run) {
            self.removed_ranges.remove(&low);
            run.low = run.low.min(low);
            if is_before(&run.high, &range.high) {
                run.high = range.high;
            }
            (run.since, run.count) = (run.since.max(range.since), run.count + range.removed_count);
        }
        let RemovedRun { low, high, since, count: spares } = run;
        self.removed_ranges.insert(low, CachedRange { high, since, removed_count: spares, is_used: true });
        self.evict_excess();
    }

    /// A gap that overlaps a stretch, or ends or begins where the stretch begins or ends.
    fn adjacent_range(&self, run: &RemovedRun) -> Option<(Vec<u8>, CachedRange)> {
        let last = match &run.high {
            Some(high) => self.removed_ranges.range::<[u8], _>((Unbounded, Included(&high[..]))).next_back(),
            None => self.removed_ranges.iter().next_back(),
        };
        let (low, range) = last?;
        let touches = range.high.as_ref().is_none_or(|high| *high >= run.low);
        touches.then(|| (low.clone(), range.clone()))
    }

    /// (I3)
    fn evict_excess(&mut self) {
        while self.removed_ranges.len() > MAX_RANGES {
            let least = self
                .removed_ranges
                .iter()
                .min_by_key(|(_, range)| range.removed_count)
                .map(|(low, _)| low.clone());
            least.and_then(|low| self.removed_ranges.remove(&low));
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RemovedRangeCache {
    /// There are gaps or walks.
    is_active: AtomicBool,
    /// So many of the next cursors note what they go over from their first key on.
    eager_cursors: AtomicU32,
    inner: Mutex<RangeCacheState>,
}

impl RemovedRangeCache {
    fn update_is_active(&self, inner: &RangeCacheState) {
        self.is_active.store(!inner.removed_ranges.is_empty() || !inner.scans.is_empty(), Ordering::SeqCst);
    }

    /// Whether there is any, or somebody is about to find one.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// The memtable has a value of `key` now, which is not visible yet.
    #[inline]
    pub(crate) fn note_put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // between the change of the memtable and the look (I2)
        if self.is_active() {
            let mut inner = self.inner.lock();
            inner.exclude_put(key);
            self.update_is_active(&inner);
        }
    }

    /// A cursor met many removed keys.
    pub(crate) fn set_eager(&self) {
        self.eager_cursors.store(EAGER_CURSORS, Ordering::Relaxed);
    }

    /// Whether a cursor that begins is to note what it goes over.
    pub(crate) fn take_eager(&self) -> bool {
        let eager = self.eager_cursors.load(Ordering::Relaxed);
        if eager > 0 {
            self.eager_cursors.store(eager - 1, Ordering::Relaxed); // about so many
        }
        eager > 0
    }

    /// Where a cursor for a view at `at` that stands at `position` may go on upwards.
    pub(crate) fn skip_forward(&self, position: &[u8], at: Seq) -> Option<Position> {
        let mut inner = self.inner.lock();
        let (_, range) = inner.range_at(position).filter(|(_, range)| range.since <= at)?;
        range.is_used = true;
        Some(range.high.clone())
    }

    /// Where a cursor that has to show keys before `position` may go on downwards.
    pub(crate) fn skip_backward(&self, position: &Position, at: Seq) -> Option<Vec<u8>> {
        let mut inner = self.inner.lock();
        let last = match position {
            Some(position) => {
                inner.removed_ranges.range_mut::<[u8], _>((Unbounded, Excluded(&position[..]))).next_back()
            }
            None => inner.removed_ranges.iter_mut().next_back(),
        };
        let (low, range) =
            last.filter(|(_, range)| range.since <= at && !is_before(&range.high, position))?;
        range.is_used = true;
        Some(low.clone())
    }

    /// Where the next gap begins that a cursor comes to, which stands at `position` and goes up:
    /// the lowest key of it.
    pub(crate) fn next_range_above(&self, position: &[u8], at: Seq) -> Position {
        let inner = self.inner.lock();
        let mut above = inner.removed_ranges.range::<[u8], _>((Excluded(position), Unbounded));
        above.find(|(_, range)| range.since <= at).map(|(low, _)| low.clone())
    }

    /// The same downwards: the end of the next gap below.
    pub(crate) fn next_range_below(&self, position: &Position, at: Seq) -> Position {
        let inner = self.inner.lock();
        let all = match position {
            Some(position) => inner.removed_ranges.range::<[u8], _>((Unbounded, Excluded(&position[..]))),
            None => inner.removed_ranges.range::<[u8], _>((Unbounded, Unbounded)),
        };
        let mut below = all.rev().filter(|(_, range)| range.since <= at && is_before(&range.high, position));
        below.next().and_then(|(_, range)| range.high.clone())
    }

    /// A cursor begins to go over what may be removed keys, and reads the memtables only then; its
    /// number.
    pub(crate) fn begin_scan(&self) -> u64 {
        let mut inner = self.inner.lock();
        let number = inner.next;
        inner.next += 1;
        inner.scans.push(ActiveScan { number, keys_put: Vec::new(), is_void: false });
        self.update_is_active(&inner);
        drop(inner);
        fence(Ordering::SeqCst); // before the memtables are read (I2)
        number
    }

    /// A walk is over, and these stretches had no value in what it read. What was put meanwhile is
    /// left out.
    pub(crate) fn end_scan(&self, number: u64, removed_runs: Vec<RemovedRun>) {
        let mut inner = self.inner.lock();
        let Some(place) = inner.scans.iter().position(|walk| walk.number == number) else { return };
        let walk = inner.scans.swap_remove(place);
        if !walk.is_void {
            removed_runs.into_iter().for_each(|run| inner.add(run));
            walk.keys_put.iter().for_each(|key| inner.exclude_key(key));
        }
        self.update_is_active(&inner);
    }

    /// Much of what was removed went down: gaps that were not used since the last time go.
    pub(crate) fn drop_unused(&self) {
        let mut inner = self.inner.lock();
        inner.removed_ranges.retain(|_, range| std::mem::take(&mut range.is_used));
        self.update_is_active(&inner);
    }

    /// How many gaps there are.
    #[cfg(test)]
    pub(crate) fn count(&self) -> usize {
        self.inner.lock().removed_ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(removed_ranges: &RemovedRangeCache, low: &[u8], high: Option<&[u8]>, since: u64) {
        let number = removed_ranges.begin_scan();
        let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        removed_ranges.end_scan(number, vec![RemovedRun { low, high, since: Seq(since), count: 100 }]);
    }

    fn above(removed_ranges: &RemovedRangeCache, position: &[u8]) -> Option<Position> {
        removed_ranges.skip_forward(position, Seq::LATEST)
    }

    fn at(key: &[u8]) -> Option<Position> {
        Some(Some(key.to_vec()))
    }

    #[test]
    fn a_cursor_skips_a_removed_range_in_both_directions() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"c", Some(b"k"), 5);
        assert_eq!((above(&removed_ranges, b"b"), above(&removed_ranges, b"k")), (None, None));
        assert_eq!((above(&removed_ranges, b"c"), above(&removed_ranges, b"j")), (at(b"k"), at(b"k")));
        let below = |key: &[u8]| removed_ranges.skip_backward(&Some(key.to_vec()), Seq::LATEST);
        assert_eq!((below(b"k"), below(b"d")), (Some(b"c".to_vec()), Some(b"c".to_vec())));
        assert_eq!((below(b"c"), below(b"ka")), (None, None));
        assert_eq!(removed_ranges.skip_backward(&None, Seq::LATEST), None);
        learn(&removed_ranges, b"x", None, 5);
        assert_eq!(removed_ranges.skip_backward(&None, Seq::LATEST), Some(b"x".to_vec()));
        assert_eq!(above(&removed_ranges, b"y"), Some(None));
    }

    #[test]
    fn a_cursor_is_told_where_the_next_removed_range_begins() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"c", Some(b"e"), 5);
        learn(&removed_ranges, b"k", Some(b"m"), 7);
        let above = |key: &[u8], at| removed_ranges.next_range_above(key, Seq(at));
        assert_eq!(
            (above(b"a", 7), above(b"c", 7), above(b"k", 7)),
            (Some(b"c".to_vec()), Some(b"k".to_vec()), None)
        );
        assert_eq!(above(b"c", 6), None);
        let below =
            |key: Option<&[u8]>, at| removed_ranges.next_range_below(&key.map(<[u8]>::to_vec), Seq(at));
        assert_eq!(
            (below(None, 7), below(Some(b"m"), 7), below(Some(b"e"), 7)),
            (Some(b"m".to_vec()), Some(b"e".to_vec()), None)
        );
        assert_eq!(below(None, 6), Some(b"e".to_vec()));
    }

    #[test]
    fn an_older_view_does_not_skip_a_removed_range() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"", None, 5);
        assert_eq!(removed_ranges.skip_forward(b"a", Seq(4)), None);
        assert_eq!(removed_ranges.skip_backward(&None, Seq(4)), None);
        assert_eq!(removed_ranges.skip_forward(b"a", Seq(5)), Some(None));
    }

    #[test]
    fn a_put_takes_its_key_out() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"", None, 5);
        removed_ranges.note_put(b"m");
        assert_eq!((above(&removed_ranges, b""), above(&removed_ranges, b"m")), (at(b"m"), None));
        assert_eq!(above(&removed_ranges, b"m\0"), Some(None));
        removed_ranges.note_put(b"");
        assert_eq!((above(&removed_ranges, b""), above(&removed_ranges, b"\0")), (None, at(b"m")));
    }

    #[test]
    fn a_key_put_during_a_scan_is_excluded_from_its_ranges() {
        let removed_ranges = RemovedRangeCache::default();
        let number = removed_ranges.begin_scan();
        removed_ranges.note_put(b"m");
        let run = RemovedRun { low: Vec::new(), high: None, since: Seq(1), count: 100 };
        removed_ranges.end_scan(number, vec![run]);
        assert_eq!((above(&removed_ranges, b"a"), above(&removed_ranges, b"m")), (at(b"m"), None));
    }

    #[test]
    fn adjacent_removed_runs_become_one_range() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"c", Some(b"f"), 5);
        learn(&removed_ranges, b"f", Some(b"k"), 7);
        learn(&removed_ranges, b"a", Some(b"d"), 6);
        assert_eq!(removed_ranges.count(), 1);
        assert_eq!(above(&removed_ranges, b"a"), at(b"k"));
        assert_eq!(removed_ranges.skip_forward(b"a", Seq(6)), None);
    }

    #[test]
    fn removed_ranges_are_bounded_and_unused_ones_are_dropped() {
        let removed_ranges = RemovedRangeCache::default();
        for number in 0..2 * u32::try_from(MAX_RANGES).unwrap() {
            let key = (2 * number).to_be_bytes();
            learn(&removed_ranges, &key, Some(&(2 * number + 1).to_be_bytes()), 1);
        }
        assert_eq!(removed_ranges.count(), MAX_RANGES);
        removed_ranges.drop_unused();
        let last = (2 * (2 * u32::try_from(MAX_RANGES).unwrap() - 1)).to_be_bytes();
        assert!(above(&removed_ranges, &last).is_some());
        removed_ranges.drop_unused();
        assert_eq!(removed_ranges.count(), 1);
    }
}
