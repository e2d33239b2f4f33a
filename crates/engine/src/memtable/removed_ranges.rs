//! # Removed ranges: runs of removed keys that readers skip
//!
//! A *removed range* is an open interval of keys without a value, from a certain commit on.
//! Removals report some of their keys. Later, a thread *measures* the interval around such a key by
//! a scan of all of the engine's data. Scans then skip the interval in one step. (Cursors of other
//! engines record ranges and their exact ends: `removed_range_cache.rs`.)
//!
//! ## Picture
//!
//! ```text
//!  keys   a  b  x  x  x  x  x  x  x  x  q  r     x: removed, in memtables or below
//!            └──────── removed range ────┘       (b, q), for views at or above its commit
//!                   put(f): (b, f) and (f, q)
//! ```
//!
//! ## Invariants
//!
//! 1. No view at or above the commit of a range sees a key strictly between its ends.
//! 2. A put reports its key after the memtable has it. It splits the ranges that exist then, and
//!    shortens the range that is being measured. With the fences of [`RemovedRanges::put`] and
//!    [`RemovedRanges::measure`], either the scan finds the key or the put finds the measurement.
//! 3. A removal reports its seq before the memtable has it, and a measured range gets the highest
//!    reported seq as its commit. So no removal in a range is newer than the commit of the range.
//! 4. There are at most `MAX_RANGES` ranges, and their ends have at most `MAX_KEY_LEN` bytes.
//!    If a put splits a range and there are that many, the lower part is forgotten: most keys are
//!    put in ascending order.
//!
//! ## Threads
//!
//! Any. The lock is held for the lookup of one key, never during a scan. One thread measures.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

/// Measures one of so many removed keys: ranges that matter contain more.
const MEASURE_INTERVAL: u64 = 16;
/// Minimum number of removed keys of a range. Scans read through shorter ones.
pub const MIN_REMOVED_KEYS: u64 = 64;
/// Maximum number of ranges. The shortest one is dropped for a new one.
const MAX_RANGES: usize = 512;
/// Maximum number of reported keys that wait for their measurement.
const MAX_REQUESTS: usize = 64;
/// Maximum number of puts during one measurement. With more, its result is discarded.
const MAX_PUTS: usize = 256;
/// Number of keys of a range that one commit removed: they are not counted.
const UNKNOWN_KEYS: u64 = u64::MAX;
/// Maximum length in bytes of a key that is an end of a range.
const MAX_KEY_LEN: usize = 1 << 10;

/// Interval without a value, as a scan found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasuredRange {
    /// Key before the interval, which may have a value. `None` if the interval has no lower end.
    pub low: Option<Vec<u8>>,
    /// Key behind the interval, which may have a value. `None` if the interval has no upper end.
    pub high: Option<Vec<u8>>,
    /// Number of removed keys that the scan read or skipped.
    pub keys: u64,
}

/// Position where a scan continues behind a removed range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SkipTarget {
    /// This key, which may have a value.
    To(Vec<u8>),
    /// The end: no keys follow.
    End,
}

#[derive(Debug)]
struct RangeEnd {
    high: Option<Vec<u8>>,
    /// Views at or above this commit see nothing in the range.
    at: Seq,
    keys: u64,
}

#[derive(Debug, Default)]
struct RangesInner {
    /// Ranges by the key before them. Disjoint.
    ranges: BTreeMap<Option<Vec<u8>>, RangeEnd>,
    /// Keys put during the current measurement. `None` if there is no measurement.
    puts: Option<Vec<Vec<u8>>>,
    requests: VecDeque<Vec<u8>>,
}

/// Removed ranges of a keyspace.
#[derive(Debug, Default)]
pub struct RemovedRanges {
    /// True if puts must check: there are ranges, or one is being measured.
    must_check_puts: AtomicBool,
    /// True if there are ranges.
    has_ranges: AtomicBool,
    /// True if there are keys to measure.
    has_requests: AtomicBool,
    /// Seq of the newest removal.
    newest: AtomicU64,
    removals: AtomicU64,
    inner: Mutex<RangesInner>,
    measuring: Mutex<()>,
}

/// Returns true if `key` is above a lower end.
fn is_above(low: Option<&[u8]>, key: &[u8]) -> bool {
    low.is_none_or(|low| low < key)
}

/// Returns true if `key` is below an upper end.
fn is_below(high: Option<&[u8]>, key: &[u8]) -> bool {
    high.is_none_or(|high| key < high)
}

impl RangesInner {
    /// Returns the range with the last lower end before `key`, or at it if `with`.
    fn before(&self, key: Option<&[u8]>, with: bool) -> Option<(&Option<Vec<u8>>, &RangeEnd)> {
        let Some(key) = key else { return self.ranges.iter().next_back() };
        let key = Some(key.to_vec());
        if with { self.ranges.range(..=key).next_back() } else { self.ranges.range(..key).next_back() }
    }

    fn cut(&mut self, key: &[u8]) {
        let Some((low, gap)) = self.before(Some(key), false) else { return };
        if !is_below(gap.high.as_deref(), key) {
            return;
        }
        let low = low.clone();
        let Some(RangeEnd { high, at, keys }) = self.ranges.remove(&low) else { return };
        let keys = if keys == UNKNOWN_KEYS { keys } else { keys / 2 };
        if keys >= MIN_REMOVED_KEYS && key.len() <= MAX_KEY_LEN {
            self.ranges.insert(Some(key.to_vec()), RangeEnd { high, at, keys });
            if self.ranges.len() < MAX_RANGES {
                self.ranges.insert(low, RangeEnd { high: Some(key.to_vec()), at, keys });
            }
            assert!(self.ranges.len() <= MAX_RANGES, "removed_ranges (I4): a cut keeps the limit of ranges");
        }
    }

    /// Adds an interval, and merges it with the ranges that it overlaps.
    fn add(&mut self, mut stretch: MeasuredRange, mut at: Seq) {
        let overlaps = |low: Option<&[u8]>, high: Option<&[u8]>, other: &MeasuredRange| {
            let starts = |low: Option<&[u8]>, high: Option<&[u8]>| match (low, high) {
                (Some(low), Some(high)) => low < high,
                _ => true,
            };
            starts(low, other.high.as_deref()) && starts(other.low.as_deref(), high)
        };
        while let Some((low, gap)) = self.before(stretch.high.as_deref(), false)
            && overlaps(low.as_deref(), gap.high.as_deref(), &stretch)
        {
            let low = low.clone();
            let Some(gap) = self.ranges.remove(&low) else { return };
            at = at.max(gap.at);
            stretch.keys = stretch.keys.saturating_add(gap.keys); // the scan skipped it
            stretch.low = stretch.low.min(low);
            stretch.high = match (stretch.high, gap.high) {
                (Some(one), Some(other)) => Some(one.max(other)),
                _ => None,
            };
        }
        let is_long = |end: &Option<Vec<u8>>| end.as_ref().is_some_and(|end| end.len() > MAX_KEY_LEN);
        if stretch.keys < MIN_REMOVED_KEYS || is_long(&stretch.low) || is_long(&stretch.high) {
            return;
        }
        if self.ranges.len() >= MAX_RANGES {
            let shortest = self.ranges.iter().min_by_key(|(_, gap)| gap.keys).map(|(low, _)| low.clone());
            shortest.map(|low| self.ranges.remove(&low));
        }
        self.ranges.insert(stretch.low, RangeEnd { high: stretch.high, at, keys: stretch.keys });
    }
}

impl RemovedRanges {
    /// Records that `key` has a value from now on. Must be called after the memtable has it, and
    /// before its commit is visible.
    #[inline]
    pub fn put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // between the memtable's store and this load (I2)
        if self.must_check_puts.load(Ordering::Relaxed) {
            self.put_checked(key);
        }
    }

    #[cold]
    fn put_checked(&self, key: &[u8]) {
        let mut inner = self.inner.lock();
        if let Some(puts) = inner.puts.as_mut().filter(|puts| puts.len() <= MAX_PUTS) {
            puts.push(key.to_vec());
        }
        inner.cut(key);
        self.update_flags(&inner);
    }

    /// Records that commit `seq` removes `key`. Must be called before the memtable has it.
    #[inline]
    pub fn note_removal(&self, seq: Seq, key: &[u8]) {
        self.newest.fetch_max(seq.0, Ordering::Release); // removals come in any order
        let count = self.removals.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(MEASURE_INTERVAL) {
            self.request_measurement(key);
        }
    }

    /// Records that commit `seq` removes the keys from `first` on and before `end`. Must be called
    /// after the memtable has the tombstone, and while no put runs.
    pub fn note_range(&self, seq: Seq, first: &[u8], end: Option<&[u8]>) {
        self.newest.fetch_max(seq.0, Ordering::Release);
        let low = (!first.is_empty()).then(|| first.to_vec());
        let range = MeasuredRange { low, high: end.map(<[u8]>::to_vec), keys: UNKNOWN_KEYS };
        let mut inner = self.inner.lock();
        inner.add(range, seq);
        self.update_flags(&inner);
    }

    /// Requests the measurement of the interval around `key`.
    pub fn request_measurement(&self, key: &[u8]) {
        if key.len() > MAX_KEY_LEN {
            return;
        }
        let mut inner = self.inner.lock();
        if inner.requests.len() >= MAX_REQUESTS {
            inner.requests.pop_front();
        }
        inner.requests.push_back(key.to_vec());
        self.update_flags(&inner);
    }

    /// Removes and returns the newest requested key that is not in a known range.
    pub fn take_request(&self) -> Option<Vec<u8>> {
        if !self.has_requests.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.inner.lock();
        let mut found = None;
        while let Some(key) = inner.requests.pop_back() {
            let known = inner.before(Some(&key), false);
            if known.is_none_or(|(_, gap)| !is_below(gap.high.as_deref(), &key)) {
                found = Some(key);
                break;
            }
        }
        self.update_flags(&inner);
        found
    }

    /// Measures the interval around `key` with the scan `walk`. `walk` must read the newest
    /// versions of all keys, with memtables loaded after this call began, and returns `None` if
    /// `key` has a value. Does nothing while another thread measures.
    ///
    /// # Errors
    ///
    /// Returns the error of `walk`.
    pub fn measure(&self, key: &[u8], walk: impl FnOnce() -> Result<Option<MeasuredRange>>) -> Result<()> {
        let Some(_one) = self.measuring.try_lock() else { return Ok(()) };
        self.inner.lock().puts = Some(Vec::new());
        self.must_check_puts.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // (I2)
        let walked = walk();
        let mut inner = self.inner.lock();
        let puts = inner.puts.take().unwrap_or_default();
        let at = Seq(self.newest.load(Ordering::Acquire)); // (I3)
        if let Ok(Some(stretch)) = &walked
            && puts.len() <= MAX_PUTS
            && let Some(stretch) = shortened(stretch.clone(), key, puts)
        {
            inner.add(stretch, at);
        }
        self.update_flags(&inner);
        walked.map(drop)
    }

    /// Returns the position where a scan with a view at `at` continues if it is at `from`. Returns
    /// `None` if `from` is not in a removed range for this view.
    #[must_use]
    pub fn skip(&self, from: Bound<&[u8]>, forward: bool, at: Seq) -> Option<SkipTarget> {
        if !self.has_ranges.load(Ordering::Acquire) {
            return None;
        }
        let inner = self.inner.lock();
        let (low, gap) = match (from, forward) {
            (Bound::Included(key), _) | (Bound::Excluded(key), false) => inner.before(Some(key), false),
            (Bound::Excluded(key), true) => inner.before(Some(key), true),
            (Bound::Unbounded, true) => inner.ranges.iter().next().filter(|(low, _)| low.is_none()),
            (Bound::Unbounded, false) => inner.before(None, false),
        }?;
        let high = gap.high.as_deref();
        let is_in = match (from, forward) {
            (Bound::Included(key), _) | (Bound::Excluded(key), true) => is_below(high, key),
            (Bound::Excluded(key), false) => high.is_none_or(|high| key <= high),
            (Bound::Unbounded, true) => true,
            (Bound::Unbounded, false) => high.is_none(),
        };
        let end = if forward { &gap.high } else { low };
        (is_in && at >= gap.at).then(|| end.clone().map_or(SkipTarget::End, SkipTarget::To))
    }

    /// Removes all ranges and requests.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.ranges.clear();
        inner.requests.clear();
        self.update_flags(&inner);
    }

    /// Returns the number of ranges.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.lock().ranges.len()
    }

    fn update_flags(&self, inner: &RangesInner) {
        let has_gaps = !inner.ranges.is_empty();
        self.has_ranges.store(has_gaps, Ordering::Release);
        self.has_requests.store(!inner.requests.is_empty(), Ordering::Relaxed);
        self.must_check_puts.store(has_gaps || inner.puts.is_some(), Ordering::Relaxed);
    }
}

/// Returns the part of `stretch` around `key` that contains none of `puts`. Returns `None` if `key`
/// itself was put.
fn shortened(mut stretch: MeasuredRange, key: &[u8], puts: Vec<Vec<u8>>) -> Option<MeasuredRange> {
    for put in puts {
        if put == key {
            return None;
        }
        if put[..] < *key && is_above(stretch.low.as_deref(), &put) {
            stretch.low = Some(put);
        } else if put[..] > *key && is_below(stretch.high.as_deref(), &put) {
            stretch.high = Some(put);
        }
    }
    Some(stretch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(key: &str) -> Option<Vec<u8>> {
        (!key.is_empty()).then(|| key.as_bytes().to_vec())
    }

    fn measured(gaps: &RemovedRanges, key: &str, (low, high): (&str, &str), puts: &[&str]) {
        let walk = || {
            puts.iter().for_each(|key| gaps.put(key.as_bytes()));
            Ok(Some(MeasuredRange { low: end(low), high: end(high), keys: 1000 }))
        };
        gaps.measure(key.as_bytes(), walk).unwrap();
    }

    fn up(gaps: &RemovedRanges, key: &str) -> Option<SkipTarget> {
        gaps.skip(Bound::Included(key.as_bytes()), true, Seq::LATEST)
    }

    fn to(key: &str) -> Option<SkipTarget> {
        Some(SkipTarget::To(key.as_bytes().to_vec()))
    }

    #[test]
    fn puts_into_a_range_keep_the_limit() {
        let gaps = RemovedRanges::default();
        let walk = || Ok(Some(MeasuredRange { low: end("b"), high: end("z"), keys: 1 << 40 }));
        gaps.measure(b"f", walk).unwrap();
        // Each put halves the longest range; enough of them exceed the limit.
        for bits in 1..14_u32 {
            for n in 0..1_u32 << (bits - 1) {
                let key = ((2 * n + 1) << (24 - bits)).to_be_bytes();
                gaps.put(&[&b"c"[..], &key[1..]].concat());
            }
        }
        assert_eq!(gaps.inner.lock().ranges.len(), MAX_RANGES);
    }

    #[test]
    fn walks_skip_from_within_to_the_ends() {
        let gaps = RemovedRanges::default();
        measured(&gaps, "f", ("b", "q"), &[]);
        let down = |from: Bound<&str>| gaps.skip(from.map(str::as_bytes), false, Seq::LATEST);
        assert_eq!([up(&gaps, "a"), up(&gaps, "b"), up(&gaps, "q")], [None, None, None]);
        assert_eq!([up(&gaps, "c"), up(&gaps, "p")], [to("q"), to("q")]);
        assert_eq!(gaps.skip(Bound::Excluded(b"b"), true, Seq::LATEST), to("q"));
        assert_eq!(gaps.skip(Bound::Excluded(b"q"), true, Seq::LATEST), None);
        assert_eq!([down(Bound::Included("p")), down(Bound::Excluded("q"))], [to("b"), to("b")]);
        assert_eq!([down(Bound::Included("q")), down(Bound::Excluded("b"))], [None, None]);
        assert_eq!([down(Bound::Unbounded), gaps.skip(Bound::Unbounded, true, Seq::LATEST)], [None, None]);
        measured(&gaps, "c", ("", ""), &[]);
        assert_eq!(
            [down(Bound::Unbounded), down(Bound::Included("a"))],
            [Some(SkipTarget::End), Some(SkipTarget::End)]
        );
        assert_eq!(gaps.skip(Bound::Unbounded, true, Seq::LATEST), Some(SkipTarget::End));
        assert_eq!(gaps.count(), 1, "they are one");
    }

    #[test]
    fn puts_cut_existing_ranges_and_shorten_a_measured_one() {
        let gaps = RemovedRanges::default();
        measured(&gaps, "f", ("b", "q"), &["d", "c", "h", "k"]);
        assert_eq!([up(&gaps, "c"), up(&gaps, "e"), up(&gaps, "i")], [None, to("h"), None]);
        gaps.put(b"f");
        assert_eq!([up(&gaps, "e"), up(&gaps, "f"), up(&gaps, "g")], [to("f"), None, to("h")]);
        measured(&gaps, "m", ("k", "q"), &["m"]);
        assert_eq!(up(&gaps, "n"), None, "the key itself has a value");
        measured(&gaps, "m", ("k", "q"), &["x"; MAX_PUTS + 1]);
        assert_eq!(up(&gaps, "n"), None, "more than it bears");
        for key in ["e", "ee", "eee", "eeee", "eeeee"] {
            gaps.put(key.as_bytes());
        }
        assert_eq!(up(&gaps, "eee1"), None, "too short to be kept");
    }

    #[test]
    fn views_from_before_the_removals_skip_nothing() {
        let gaps = RemovedRanges::default();
        (1..=16).for_each(|seq| gaps.note_removal(Seq(seq), b"f"));
        assert_eq!(gaps.take_request().as_deref(), Some(&b"f"[..]));
        measured(&gaps, "f", ("b", "q"), &[]);
        let skip = |at: u64| gaps.skip(Bound::Included(b"f"), true, Seq(at));
        assert_eq!([skip(15), skip(16)], [None, to("q")]);
        gaps.request_measurement(b"g");
        assert_eq!(gaps.take_request(), None, "it is in a gap");
        gaps.clear();
        assert_eq!((skip(16), gaps.count()), (None, 0));
    }

    #[test]
    fn there_is_a_limit_to_gaps() {
        let gaps = RemovedRanges::default();
        for n in 0..MAX_RANGES + 10 {
            let (low, key, high) = (format!("{n:04}a"), format!("{n:04}b"), format!("{n:04}c"));
            measured(&gaps, &key, (&low, &high), &[]);
        }
        assert_eq!(gaps.count(), MAX_RANGES);
    }
}
