//! # Removed ranges: ranges of keys that are known to be removed
//!
//! Tombstones stay in memtables and upper levels until a spill merges them with the last level. A
//! cursor that scanned many removed keys remembers their range here, and later cursors skip it. So
//! the first key of a queue is found at the same cost however many keys were taken.
//!
//! ## Picture
//!
//! ```text
//!  keys:     a  b  c  d  e  f  g        x: removed in the newest state
//!            x  x  x  x     x
//!  range:   [ low .......... high = e)  a cursor at `low <= key < high` continues at `high`
//!  put(c):  the range is divided: [low, c) and (c, high)
//! ```
//!
//! Bounds are positions. The position of a key is before that key; the position behind a key is the
//! key with a zero byte appended.
//!
//! ## Invariants
//!
//! 1. No view at or after `since` sees a key of a range, nor does the newest state.
//! 2. A put excludes its key from all ranges and scans before it is visible. It changes the
//!    memtable first and looks for ranges then; a scan registers here first and reads the memtables
//!    then. So at least one of the two sees the other.
//! 3. There are at most [`MAX_RANGES`] ranges. The one with the fewest removed keys is evicted
//!    first.
//!
//! ## Threads
//!
//! Any. The lock is the last one in order. A put takes it only while there are ranges or scans.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use sheaf_log::types::Seq;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};

/// Maximum number of ranges.
const MAX_RANGES: usize = 256;
/// Maximum number of keys put during a scan that are recorded. A scan with more of them, or with a
/// longer key, remembers nothing.
const MAX_PUTS_PER_SCAN: usize = 1024;
/// Maximum length of the bounds of a range, because ranges are in no account.
const MAX_KEY_BYTES: usize = 1024;
/// Number of cursors that record removed keys from their first key on, after a cursor that met
/// many. That cursor had not recorded the first ones.
const EAGER_CURSORS: u32 = 4;

/// A position between keys: before the key that it contains. `None` is behind all keys.
pub(crate) type Position = Option<Vec<u8>>;

/// Returns the position behind `key`.
pub(crate) fn position_after(key: &[u8]) -> Vec<u8> {
    let mut position = Vec::with_capacity(key.len() + 1);
    position.extend_from_slice(key);
    position.push(0);
    position
}

/// Whether `position` is before `other`.
fn is_before(position: &Position, other: &Position) -> bool {
    match (position, other) {
        (Some(position), Some(other)) => position < other,
        (position, _) => position.is_some() && other.is_none(),
    }
}

/// A range that begins at its key in the map.
#[derive(Clone, Debug)]
struct CachedRange {
    high: Position,
    since: Seq,
    /// Number of removed keys that a cursor scanned to find the range.
    removed_count: u64,
    is_used: bool,
}

/// A cursor that is scanning removed keys, and the keys put since its start.
#[derive(Debug)]
struct ActiveScan {
    number: u64,
    keys_put: Vec<Vec<u8>>,
    is_void: bool,
}

/// A range of removed keys that a scan found.
#[derive(Clone, Debug)]
pub(crate) struct RemovedRun {
    pub(crate) low: Vec<u8>,
    pub(crate) high: Position,
    /// Upper bound of the commits of its tombstones.
    pub(crate) since: Seq,
    /// Number of removed keys.
    pub(crate) count: u64,
}

#[derive(Debug, Default)]
struct RangeCacheState {
    removed_ranges: BTreeMap<Vec<u8>, CachedRange>,
    scans: Vec<ActiveScan>,
    next: u64,
}

impl RangeCacheState {
    /// Returns the range that contains `position`.
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
        // Merge the run with all ranges that touch or overlap it.
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

    /// Returns a range that overlaps or touches a run.
    fn adjacent_range(&self, run: &RemovedRun) -> Option<(Vec<u8>, CachedRange)> {
        let last = match &run.high {
            Some(high) => self.removed_ranges.range::<[u8], _>((Unbounded, Included(&high[..]))).next_back(),
            None => self.removed_ranges.iter().next_back(),
        };
        let (low, range) = last?;
        let touches = range.high.as_ref().is_none_or(|high| *high >= run.low);
        touches.then(|| (low.clone(), range.clone()))
    }

    /// Evicts ranges until (I3) holds.
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

/// The removed ranges of a keyspace; see the header of the module.
#[derive(Debug, Default)]
pub(crate) struct RemovedRangeCache {
    /// Whether there are ranges or scans.
    is_active: AtomicBool,
    /// Number of the next cursors that record removed keys from their first key on.
    eager_cursors: AtomicU32,
    inner: Mutex<RangeCacheState>,
}

impl RemovedRangeCache {
    fn update_is_active(&self, inner: &RangeCacheState) {
        assert!(inner.removed_ranges.len() <= MAX_RANGES, "removed_ranges (I3): the ranges are bounded");
        self.is_active.store(!inner.removed_ranges.is_empty() || !inner.scans.is_empty(), Ordering::SeqCst);
    }

    /// Whether there is a range, or a scan that may find one.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// Excludes `key`, for which the memtable now has a value that is not visible yet.
    #[inline]
    pub(crate) fn note_put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // between the change of the memtable and the check (I2)
        if self.is_active() {
            let mut inner = self.inner.lock();
            inner.exclude_put(key);
            self.update_is_active(&inner);
        }
    }

    /// Records that a cursor met many removed keys.
    pub(crate) fn set_eager(&self) {
        self.eager_cursors.store(EAGER_CURSORS, Ordering::Relaxed);
    }

    /// Whether a new cursor must record removed keys from its first key on.
    pub(crate) fn take_eager(&self) -> bool {
        let eager = self.eager_cursors.load(Ordering::Relaxed);
        if eager > 0 {
            self.eager_cursors.store(eager - 1, Ordering::Relaxed); // approximate under races
        }
        eager > 0
    }

    /// Returns the position at which a forward cursor at `position` continues, for a view at `at`.
    pub(crate) fn skip_forward(&self, position: &[u8], at: Seq) -> Option<Position> {
        let mut inner = self.inner.lock();
        let (_, range) = inner.range_at(position).filter(|(_, range)| range.since <= at)?;
        range.is_used = true;
        Some(range.high.clone())
    }

    /// Returns the position at which a backward cursor continues that has to show keys before
    /// `position`.
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

    /// Returns the lowest key of the next range above `position`, for a forward cursor.
    pub(crate) fn next_range_above(&self, position: &[u8], at: Seq) -> Position {
        let inner = self.inner.lock();
        let mut above = inner.removed_ranges.range::<[u8], _>((Excluded(position), Unbounded));
        above.find(|(_, range)| range.since <= at).map(|(low, _)| low.clone())
    }

    /// Returns the end of the next range below `position`, for a backward cursor.
    pub(crate) fn next_range_below(&self, position: &Position, at: Seq) -> Position {
        let inner = self.inner.lock();
        let all = match position {
            Some(position) => inner.removed_ranges.range::<[u8], _>((Unbounded, Excluded(&position[..]))),
            None => inner.removed_ranges.range::<[u8], _>((Unbounded, Unbounded)),
        };
        let mut below = all.rev().filter(|(_, range)| range.since <= at && is_before(&range.high, position));
        below.next().and_then(|(_, range)| range.high.clone())
    }

    /// Registers a scan of keys that may be removed, and returns its number. The cursor must read
    /// the memtables only afterwards.
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

    /// Ends a scan and adds the runs without a value that it found. Excludes the keys that were put
    /// during the scan.
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

    /// Drops the ranges that were not used since the last call. Called after a spill, which removes
    /// many tombstones.
    pub(crate) fn drop_unused(&self) {
        let mut inner = self.inner.lock();
        inner.removed_ranges.retain(|_, range| std::mem::take(&mut range.is_used));
        self.update_is_active(&inner);
    }

    /// Returns the number of ranges.
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
