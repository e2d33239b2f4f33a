//! # Removed range cache: ranges of removed keys that cursors found
//!
//! A removed key costs each cursor that passes it, until a merge drops it. A cursor that scanned
//! many removed keys records their range here, and later cursors skip it. So the first key of a
//! queue is found at the same cost however many keys were taken.
//!
//! `memtable/removed_ranges.rs` has the same purpose for an engine whose maintenance measures a
//! range. Such a range lies between two keys that may have values; here cursors know positions.
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
//! ## Invariants
//!
//! 1. No view at or after `since` sees a key of a range, nor does the newest state.
//! 2. A put excludes its key from all ranges and watches before it is visible. It changes the
//!    memtable first and looks for ranges then; a watch begins here first, and its cursor reads the
//!    memtables then. So at least one of the two sees the other.
//! 3. There are at most `MAX_RANGES` ranges; that of the fewest removed keys is evicted first.
//!
//! ## Threads
//!
//! Any. The lock is the last one in order. A put takes it only while there are ranges or watches.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use sheaf_log::types::Seq;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, Ordering, fence};

/// Maximum number of ranges.
const MAX_RANGES: usize = 256;
/// Maximum number of keys that a watch records. With more of them, or with a longer key, nothing
/// that its cursor found is kept.
const MAX_WATCHED_PUTS: usize = 1024;
/// Maximum length of the bounds of a range, because ranges are in no account.
const MAX_KEY_BYTES: usize = 1024;
/// Number of removed keys of a range that one commit removed: they are not counted.
const UNCOUNTED: u64 = u64::MAX;

/// A position between keys: before the key that it contains. `None` is behind all keys.
pub type Position = Option<Vec<u8>>;

/// Returns the position behind `key`: the lowest key above it.
#[must_use]
pub fn position_after(key: &[u8]) -> Vec<u8> {
    let mut position = Vec::with_capacity(key.len() + 1);
    position.extend_from_slice(key);
    position.push(0);
    position
}

/// Whether `position` is before `other`.
fn is_before(position: Option<&[u8]>, other: Option<&[u8]>) -> bool {
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

/// Keys put since a watch began.
#[derive(Debug)]
struct WatchedPuts {
    number: u64,
    keys: Vec<Vec<u8>>,
    /// True if keys were put that are not recorded.
    is_incomplete: bool,
}

/// A range of removed keys that a cursor found.
#[derive(Clone, Debug)]
pub struct RemovedRun {
    /// Lowest key of the range.
    pub low: Vec<u8>,
    /// Position behind the range.
    pub high: Position,
    /// Upper bound of the commits of its tombstones.
    pub since: Seq,
    /// Number of removed keys.
    pub count: u64,
}

#[derive(Debug, Default)]
struct RangeCacheState {
    removed_ranges: BTreeMap<Vec<u8>, CachedRange>,
    watches: Vec<WatchedPuts>,
    next_watch: u64,
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
        for watch in &mut self.watches {
            match watch.keys.len() < MAX_WATCHED_PUTS && key.len() <= MAX_KEY_BYTES {
                true => watch.keys.push(key.to_vec()),
                false => watch.is_incomplete = true,
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
        if is_before(Some(&behind), rest.high.as_deref()) {
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
            if is_before(run.high.as_deref(), range.high.as_deref()) {
                run.high = range.high;
            }
            (run.since, run.count) =
                (run.since.max(range.since), run.count.saturating_add(range.removed_count));
        }
        let RemovedRun { low, high, since, count: removed_count } = run;
        self.removed_ranges.insert(low, CachedRange { high, since, removed_count, is_used: true });
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
pub struct RemovedRangeCache {
    /// Whether there are ranges or watches.
    is_active: AtomicBool,
    inner: Mutex<RangeCacheState>,
}

impl RemovedRangeCache {
    fn update_is_active(&self, inner: &RangeCacheState) {
        assert!(inner.removed_ranges.len() <= MAX_RANGES, "removed_range_cache (I3): the ranges are bounded");
        self.is_active.store(!inner.removed_ranges.is_empty() || !inner.watches.is_empty(), Ordering::SeqCst);
    }

    /// Returns true if there is a range, or a watch whose cursor may find one.
    #[inline]
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::SeqCst)
    }

    /// Excludes `key`, for which the memtable now has a value that is not visible yet.
    #[inline]
    pub fn note_put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // between the change of the memtable and the check (I2)
        if self.is_active() {
            let mut inner = self.inner.lock();
            inner.exclude_put(key);
            self.update_is_active(&inner);
        }
    }

    /// Records that commit `seq` removes the keys from `first` on and before `end`. Must be called
    /// after the memtable has the tombstone, and while no put runs.
    pub fn note_range(&self, first: &[u8], end: Option<&[u8]>, seq: Seq) {
        let (low, high) = (first.to_vec(), end.map(<[u8]>::to_vec));
        let mut inner = self.inner.lock();
        inner.add(RemovedRun { low, high, since: seq, count: UNCOUNTED });
        self.update_is_active(&inner);
    }

    /// Returns the position at which a forward cursor at `position` continues, for a view at `at`.
    /// Returns `None` if no range contains `position`.
    #[must_use]
    pub fn skip_forward(&self, position: &[u8], at: Seq) -> Option<Position> {
        if !self.is_active() {
            return None;
        }
        let mut inner = self.inner.lock();
        let (_, range) = inner.range_at(position).filter(|(_, range)| range.since <= at)?;
        range.is_used = true;
        Some(range.high.clone())
    }

    /// Returns the position at which a backward cursor continues that has to show keys before
    /// `position`. Returns `None` if no range contains the keys just before `position`.
    #[must_use]
    pub fn skip_backward(&self, position: Option<&[u8]>, at: Seq) -> Option<Vec<u8>> {
        if !self.is_active() {
            return None;
        }
        let mut inner = self.inner.lock();
        let last = match position {
            Some(position) => {
                inner.removed_ranges.range_mut::<[u8], _>((Unbounded, Excluded(position))).next_back()
            }
            None => inner.removed_ranges.iter_mut().next_back(),
        };
        let (low, range) =
            last.filter(|(_, range)| range.since <= at && !is_before(range.high.as_deref(), position))?;
        range.is_used = true;
        Some(low.clone())
    }

    /// Returns the lowest key of the next range above `position`, for a forward cursor.
    #[must_use]
    pub fn next_range_above(&self, position: &[u8], at: Seq) -> Position {
        let inner = self.inner.lock();
        let mut above = inner.removed_ranges.range::<[u8], _>((Excluded(position), Unbounded));
        above.find(|(_, range)| range.since <= at).map(|(low, _)| low.clone())
    }

    /// Returns the end of the next range below `position`, for a backward cursor.
    #[must_use]
    pub fn next_range_below(&self, position: Option<&[u8]>, at: Seq) -> Position {
        let inner = self.inner.lock();
        let all = match position {
            Some(position) => inner.removed_ranges.range::<[u8], _>((Unbounded, Excluded(position))),
            None => inner.removed_ranges.range::<[u8], _>((Unbounded, Unbounded)),
        };
        let is_below = |range: &CachedRange| is_before(range.high.as_deref(), position);
        let mut below = all.rev().filter(|(_, range)| range.since <= at && is_below(range));
        below.next().and_then(|(_, range)| range.high.clone())
    }

    /// Begins to watch puts, for a scan of keys that may be removed. The cursor must read the
    /// memtables only afterwards.
    pub fn watch_puts(&self) -> PutWatch<'_> {
        let mut inner = self.inner.lock();
        let number = inner.next_watch;
        inner.next_watch += 1;
        inner.watches.push(WatchedPuts { number, keys: Vec::new(), is_incomplete: false });
        self.update_is_active(&inner);
        drop(inner);
        fence(Ordering::SeqCst); // before the memtables are read (I2)
        PutWatch { cache: self, number }
    }

    /// Drops the ranges that were not used since the last call. Called after a merge, which removes
    /// many tombstones.
    pub fn drop_unused(&self) {
        let mut inner = self.inner.lock();
        inner.removed_ranges.retain(|_, range| std::mem::take(&mut range.is_used));
        self.update_is_active(&inner);
    }

    /// Drops all ranges.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.removed_ranges.clear();
        self.update_is_active(&inner);
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.lock().removed_ranges.len()
    }
}

/// Watch of the puts during a scan. Ends when it is dropped.
#[derive(Debug)]
pub struct PutWatch<'a> {
    cache: &'a RemovedRangeCache,
    number: u64,
}

impl PutWatch<'_> {
    /// Adds a run without a value that the scan found, except the keys that were put since the
    /// watch began.
    pub fn record(&self, run: RemovedRun) {
        let inner = &mut *self.cache.inner.lock();
        let watch = inner.watches.iter().find(|watch| watch.number == self.number);
        let Some(keys) = watch.filter(|watch| !watch.is_incomplete).map(|watch| watch.keys.clone()) else {
            return;
        };
        inner.add(run);
        keys.iter().for_each(|key| inner.exclude_key(key));
        self.cache.update_is_active(inner);
    }
}

impl Drop for PutWatch<'_> {
    fn drop(&mut self) {
        let mut inner = self.cache.inner.lock();
        inner.watches.retain(|watch| watch.number != self.number);
        self.cache.update_is_active(&inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(removed_ranges: &RemovedRangeCache, low: &[u8], high: Option<&[u8]>, since: u64) {
        let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        removed_ranges.watch_puts().record(RemovedRun { low, high, since: Seq(since), count: 100 });
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
        let below = |key: &[u8]| removed_ranges.skip_backward(Some(key), Seq::LATEST);
        assert_eq!((below(b"k"), below(b"d")), (Some(b"c".to_vec()), Some(b"c".to_vec())));
        assert_eq!((below(b"c"), below(b"ka")), (None, None));
        assert_eq!(removed_ranges.skip_backward(None, Seq::LATEST), None);
        learn(&removed_ranges, b"x", None, 5);
        assert_eq!(removed_ranges.skip_backward(None, Seq::LATEST), Some(b"x".to_vec()));
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
        let below = |key: Option<&[u8]>, at| removed_ranges.next_range_below(key, Seq(at));
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
        assert_eq!(removed_ranges.skip_backward(None, Seq(4)), None);
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
        let watch = removed_ranges.watch_puts();
        removed_ranges.note_put(b"m");
        let run = RemovedRun { low: Vec::new(), high: None, since: Seq(1), count: 100 };
        watch.record(run.clone());
        assert_eq!((above(&removed_ranges, b"a"), above(&removed_ranges, b"m")), (at(b"m"), None));
        removed_ranges.note_put(b"c"); // the run is recorded already: it is cut
        assert_eq!((above(&removed_ranges, b"a"), above(&removed_ranges, b"c")), (at(b"c"), None));
        drop(watch);
        removed_ranges.watch_puts().record(run);
        assert_eq!(above(&removed_ranges, b"m"), Some(None), "a later watch does not know the puts");
    }

    #[test]
    fn a_watch_with_too_many_puts_or_a_long_key_records_nothing() {
        let (many, long) = (vec![b"m".to_vec(); MAX_WATCHED_PUTS + 1], vec![vec![b'm'; MAX_KEY_BYTES + 1]]);
        for puts in [many, long] {
            let removed_ranges = RemovedRangeCache::default();
            let watch = removed_ranges.watch_puts();
            puts.iter().for_each(|key| removed_ranges.note_put(key));
            watch.record(RemovedRun { low: Vec::new(), high: None, since: Seq(1), count: 100 });
            drop(watch);
            assert_eq!((removed_ranges.count(), removed_ranges.is_active()), (0, false));
        }
    }

    #[test]
    fn a_range_that_one_commit_removed_is_skipped() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"c", Some(b"f"), 5);
        removed_ranges.note_range(b"e", Some(b"k"), Seq(7));
        assert_eq!((removed_ranges.count(), above(&removed_ranges, b"c")), (1, at(b"k")));
        assert_eq!(removed_ranges.skip_forward(b"c", Seq(6)), None);
        removed_ranges.note_range(b"", None, Seq(8));
        assert_eq!((removed_ranges.count(), above(&removed_ranges, b"")), (1, Some(None)));
        removed_ranges.clear();
        assert_eq!((removed_ranges.count(), removed_ranges.is_active()), (0, false));
    }

    #[test]
    fn puts_into_a_removed_range_keep_the_limits() {
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"b", Some(b"z"), 5);
        (0..2 * MAX_RANGES).for_each(|n| removed_ranges.note_put(format!("c{n:05}").as_bytes()));
        assert_eq!(removed_ranges.count(), MAX_RANGES);
        let removed_ranges = RemovedRangeCache::default();
        learn(&removed_ranges, b"b", Some(b"z"), 5);
        removed_ranges.note_put(&[b'c'; 2 * MAX_KEY_BYTES]);
        assert_eq!(removed_ranges.count(), 0, "both parts have an end that is too long");
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
