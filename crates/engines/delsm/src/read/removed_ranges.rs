//! # Removed ranges: runs of removed keys that readers skip
//!
//! Every reader that passes a removed key pays for it until a merge drops the key. A reader that
//! has passed many of them in a row records the range here, and later readers continue behind it.
//! Some removals scan their neighborhood, so that a long range is known before the first reader
//! reaches it. Ranges are kept in memory only. Readers can find a forgotten range again.
//!
//! ## Picture
//!
//! ```text
//!  keys     d d d d d d d L d d d L ...        d: removed, in any memtable or table; L: live
//!  ranges  [low, high) since 41                a view at 41 or later has no key in it
//!                 ^ a put of commit 57 cuts the range there
//! ```
//!
//! ## Invariants
//!
//! 1. The newest version of each key in a range, if there is one, is a removal at or before
//!    `since`.
//! 2. A put cuts all ranges before its commit is visible. A put during the scan of a reader also
//!    cuts the range that this reader will record: either the put sees the watch, or the reader
//!    sees the record of the put. (Both sides write, execute a fence, and then read.)
//! 3. There are at most [`MAX_RANGES`] ranges, and the keys of each have at most
//!    [`MAX_RANGE_KEY_BYTES`] bytes. A put that cuts a range forgets the parts that exceed a limit.
//!
//! ## Threads
//!
//! Any thread, several puts at once. Callers may hold stripes of the store: the lock only protects
//! lookups in a small map. A put acquires it only if there is a range or a watch.

use std::collections::BTreeMap;

use sheaf_log::types::Seq;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicUsize, Ordering, fence};

/// Maximum number of ranges. If there are more, all are dropped: readers record again the ranges
/// that they meet.
const MAX_RANGES: usize = 1024;
/// Maximum bytes of both ends of a range.
const MAX_RANGE_KEY_BYTES: usize = 1024;

/// Upper end and age of a range. The map key is the low end, which belongs to the range.
#[derive(Clone, Debug)]
struct RemovedRangeTail {
    /// High end, which does not belong to the range. `None` if the range contains all higher keys.
    high: Option<Vec<u8>>,
    since: Seq,
}

impl RemovedRangeTail {
    /// Returns the bytes of both ends of the range that begins at `low`.
    fn key_bytes(&self, low: &[u8]) -> usize {
        low.len() + self.high.as_ref().map_or(0, Vec::len)
    }
}

/// Lowest and highest key that was put since a watch began.
type PutBounds = Option<(Vec<u8>, Vec<u8>)>;

#[derive(Debug, Default)]
struct RemovedRangeMapState {
    /// Ranges by low end. No two of them touch or overlap.
    ranges: BTreeMap<Vec<u8>, RemovedRangeTail>,
    /// Active watches with their numbers.
    watches: Vec<(u64, PutBounds)>,
    next: u64,
}

/// Known removed ranges, and the watches of scans in progress.
#[derive(Debug, Default)]
pub(crate) struct RemovedRangeMap {
    /// Number of ranges and watches.
    count: AtomicUsize,
    inner: Mutex<RemovedRangeMapState>,
}

/// Returns the lowest key above `key`.
pub(crate) fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Returns true if a range that ends at `high` has a key at or above `key`.
fn extends_past(high: Option<&Vec<u8>>, key: &[u8]) -> bool {
    high.is_none_or(|high| high.as_slice() > key)
}

impl RemovedRangeMapState {
    /// Returns the last range that begins at or below `key`.
    fn at_or_below(&self, key: &[u8]) -> Option<(&Vec<u8>, &RemovedRangeTail)> {
        self.ranges.range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(key))).next_back()
    }

    /// Cuts `key` out of the range that contains it.
    fn remove_key(&mut self, key: &[u8]) {
        let Some((low, range)) = self.at_or_below(key) else { return };
        if !extends_past(range.high.as_ref(), key) {
            return;
        }
        let (low, RemovedRangeTail { high, since }) = (low.clone(), range.clone());
        self.ranges.remove(&low);
        let above = successor(key);
        if high.as_ref().is_none_or(|high| *high > above) {
            self.insert(above, RemovedRangeTail { high, since });
        }
        if low.as_slice() < key {
            self.insert(low, RemovedRangeTail { high: Some(key.to_vec()), since });
        }
    }

    /// Inserts a range, unless a limit forbids it (I3).
    fn insert(&mut self, low: Vec<u8>, range: RemovedRangeTail) {
        if range.key_bytes(&low) <= MAX_RANGE_KEY_BYTES && self.ranges.len() < MAX_RANGES {
            self.ranges.insert(low, range);
        }
        assert!(self.ranges.len() <= MAX_RANGES, "removed_ranges (I3): there are at most MAX_RANGES");
    }

    /// Adds a range, merged with all ranges that it touches.
    fn add(&mut self, mut low: Vec<u8>, mut high: Option<Vec<u8>>, mut since: Seq) {
        loop {
            // The last range that begins at or below the end of the new one.
            let last = match &high {
                Some(high) => self.at_or_below(high),
                None => self.ranges.last_key_value(),
            };
            let Some((other, range)) = last else { break };
            if range.high.as_ref().is_some_and(|end| *end < low) {
                break;
            }
            let (other, range) = (other.clone(), range.clone());
            self.ranges.remove(&other);
            high = match (high, range.high) {
                (Some(one), Some(other)) => Some(one.max(other)),
                _ => None,
            };
            (low, since) = (low.min(other), since.max(range.since));
        }
        let range = RemovedRangeTail { high, since };
        if range.key_bytes(&low) <= MAX_RANGE_KEY_BYTES && self.ranges.len() >= MAX_RANGES {
            self.ranges.clear();
        }
        self.insert(low, range);
    }
}

impl RemovedRangeMap {
    fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    fn update_count(&self, inner: &RemovedRangeMapState) {
        self.count.store(inner.ranges.len() + inner.watches.len(), Ordering::Relaxed);
    }

    /// Cuts `key` out of all ranges, because a commit puts it. Must be called after the record can
    /// be found, and before the commit is visible.
    #[inline]
    pub(crate) fn note_put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // (I2)
        if !self.is_empty() {
            self.note_put_locked(key);
        }
    }

    fn note_put_locked(&self, key: &[u8]) {
        let mut inner = self.inner.lock();
        for (_, bounds) in &mut inner.watches {
            match bounds {
                None => *bounds = Some((key.to_vec(), key.to_vec())),
                Some((lowest, _)) if key < lowest.as_slice() => *lowest = key.to_vec(),
                Some((_, highest)) if key > highest.as_slice() => *highest = key.to_vec(),
                Some(_) => {}
            }
        }
        inner.remove_key(key);
        self.update_count(&inner);
    }

    /// Records that commit `seq` removes the keys from `first` on and before `end`. Must be called
    /// after the memtable has the tombstone, and while no put runs.
    pub(crate) fn note_range(&self, first: &[u8], end: Option<&[u8]>, seq: Seq) {
        let mut inner = self.inner.lock();
        inner.add(first.to_vec(), end.map(<[u8]>::to_vec), seq);
        self.update_count(&inner);
    }

    /// Returns the end of the range that contains `key` for a view at `at`: the lowest higher key
    /// that may be live. Returns `Some(None)` if no higher key is live, and `None` if no range
    /// contains `key`.
    pub(crate) fn end_of(&self, key: &[u8], at: Seq) -> Option<Option<Vec<u8>>> {
        if self.is_empty() {
            return None;
        }
        let inner = self.inner.lock();
        let (_, range) = inner.at_or_below(key)?;
        (range.since <= at && extends_past(range.high.as_ref(), key)).then(|| range.high.clone())
    }

    /// Returns the low end of the range that contains the keys just below `key` for a view at `at`.
    /// If `key` is `None`, these are the highest keys.
    pub(crate) fn start_of(&self, key: Option<&[u8]>, at: Seq) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        let inner = self.inner.lock();
        let (low, range) = match key {
            Some(key) => {
                let below = (std::ops::Bound::Unbounded, std::ops::Bound::Excluded(key));
                inner.ranges.range::<[u8], _>(below).next_back()?
            }
            None => inner.ranges.last_key_value()?,
        };
        let has_it = match (key, &range.high) {
            (_, None) => true,
            (None, Some(_)) => false,
            (Some(key), Some(high)) => high.as_slice() >= key,
        };
        (has_it && range.since <= at).then(|| low.clone())
    }

    /// Starts a watch of puts. The caller must load the state that it scans afterwards.
    pub(crate) fn watch_puts(&self) -> PutWatch<'_> {
        let mut inner = self.inner.lock();
        let number = inner.next;
        inner.next += 1;
        inner.watches.push((number, None));
        self.update_count(&inner);
        drop(inner);
        fence(Ordering::SeqCst); // (I2)
        PutWatch { ranges: self, number }
    }

    /// Drops all ranges.
    pub(crate) fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.ranges.clear();
        self.update_count(&inner);
    }

    /// Returns the number of known ranges.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().ranges.len()
    }
}

/// Scan for removed keys in progress. Collects the bounds of the keys that are put during the scan.
#[derive(Debug)]
pub(crate) struct PutWatch<'a> {
    ranges: &'a RemovedRangeMap,
    number: u64,
}

impl PutWatch<'_> {
    /// Records the range from `low` (inclusive) to `high` (exclusive): the scan found all its keys
    /// removed by commits up to `since`. Leaves out the part with the keys that were put during the
    /// watch.
    pub(crate) fn record_range(&self, low: &[u8], high: Option<&[u8]>, since: Seq) {
        let mut inner = self.ranges.inner.lock();
        let bounds = inner.watches.iter().find(|(number, _)| *number == self.number);
        let (mut low, mut high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        if let Some((_, Some((lowest, highest)))) = bounds
            && highest.as_slice() >= low.as_slice()
            && extends_past(high.as_ref(), lowest)
        {
            if *lowest > low {
                high = Some(lowest.clone());
            } else {
                low = successor(highest);
            }
        }
        if high.as_ref().is_none_or(|high| *high > low) {
            inner.add(low, high, since);
        }
        self.ranges.update_count(&inner);
    }
}

impl Drop for PutWatch<'_> {
    fn drop(&mut self) {
        let mut inner = self.ranges.inner.lock();
        inner.watches.retain(|(number, _)| *number != self.number);
        self.ranges.update_count(&inner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(ranges: &RemovedRangeMap, low: &str, high: &str, since: u64) {
        let high = (!high.is_empty()).then_some(high.as_bytes());
        ranges.watch_puts().record_range(low.as_bytes(), high, Seq(since));
    }

    fn end(ranges: &RemovedRangeMap, key: &str, at: u64) -> Option<String> {
        let end = ranges.end_of(key.as_bytes(), Seq(at))?;
        Some(end.map_or("end".to_owned(), |end| String::from_utf8(end).unwrap()))
    }

    fn start(ranges: &RemovedRangeMap, key: &str, at: u64) -> Option<String> {
        let key = (!key.is_empty()).then_some(key.as_bytes());
        ranges.start_of(key, Seq(at)).map(|low| String::from_utf8(low).unwrap())
    }

    #[test]
    fn ranges_that_touch_are_one_and_a_view_from_before_sees_none() {
        let ranges = RemovedRangeMap::default();
        add(&ranges, "b", "d", 5);
        add(&ranges, "f", "h", 7);
        assert_eq!((end(&ranges, "c", 5), end(&ranges, "c", 4)), (Some("d".into()), None));
        assert_eq!((end(&ranges, "d", 9), end(&ranges, "a", 9)), (None, None));
        assert_eq!((start(&ranges, "d", 9), start(&ranges, "e", 9)), (Some("b".into()), None));
        add(&ranges, "d", "f", 6);
        assert_eq!((ranges.len(), end(&ranges, "b", 7), end(&ranges, "b", 6)), (1, Some("h".into()), None));
        add(&ranges, "g", "", 8);
        assert_eq!((end(&ranges, "z", 8), start(&ranges, "", 8)), (Some("end".into()), Some("b".into())));
    }

    #[test]
    fn puts_into_a_range_keep_the_limits() {
        let ranges = RemovedRangeMap::default();
        add(&ranges, "b", "z", 5);
        (0..2 * MAX_RANGES).for_each(|n| ranges.note_put(format!("c{n:05}").as_bytes()));
        assert_eq!(ranges.len(), MAX_RANGES);
        assert_eq!(end(&ranges, "c00000x", 5), Some("c00001".into()), "the first parts are still known");

        let ranges = RemovedRangeMap::default();
        add(&ranges, "b", "z", 5);
        ranges.note_put(&[b'c'; 2 * MAX_RANGE_KEY_BYTES]);
        assert_eq!(ranges.len(), 0, "both parts have an end that is too long");
    }

    #[test]
    fn a_put_cuts_the_range_and_nothing_else() {
        let ranges = RemovedRangeMap::default();
        add(&ranges, "b", "m", 5);
        ranges.note_put(b"f");
        assert_eq!(end(&ranges, "b", 5), Some("f".into()));
        assert_eq!((end(&ranges, "f", 5), end(&ranges, "f\0", 5)), (None, Some("m".into())));
        ranges.note_put(b"m");
        ranges.note_put(b"a");
        assert_eq!(ranges.len(), 2);
        ranges.note_put(b"b");
        assert_eq!((end(&ranges, "b", 5), end(&ranges, "b\0", 5)), (None, Some("f".into())));
    }

    #[test]
    fn a_key_put_during_a_watch_is_excluded_from_its_range() {
        let ranges = RemovedRangeMap::default();
        let watch = ranges.watch_puts();
        ranges.note_put(b"f");
        ranges.note_put(b"h");
        watch.record_range(b"b", Some(b"m"), Seq(5));
        assert_eq!((end(&ranges, "b", 5), end(&ranges, "g", 5)), (Some("f".into()), None));
        watch.record_range(b"f", Some(b"z"), Seq(5));
        assert_eq!((end(&ranges, "h", 5), end(&ranges, "i", 5)), (None, Some("z".into())));
        watch.record_range(b"g", Some(b"h"), Seq(5));
        assert_eq!((end(&ranges, "g", 5), end(&ranges, "h", 5)), (None, None));
        drop(watch);
        assert_eq!(ranges.inner.lock().watches.len(), 0);
    }

    #[test]
    fn ranges_dropped_by_the_limit_are_recorded_again() {
        let ranges = RemovedRangeMap::default();
        for n in 0..=MAX_RANGES {
            add(&ranges, &format!("{n:06}"), &format!("{n:06}x"), 1);
        }
        assert_eq!(ranges.len(), 1);
    }
}
