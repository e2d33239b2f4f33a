//! # Gaps: removed stretches that a walk need not go through
//!
//! A *gap* is an open interval of keys without a value. Removals report keys; somebody with time *measures* the stretch around
//! such a key once, by a walk over everything an engine has; later walks skip it in one step.
//!
//! ## Picture
//!
//! ```text
//!  keys   a  b  x  x  x  x  x  x  x  x  q  r          x: removed, in memtables or below
//!            └──────────── gap ──────────┘            (b, q), shown by no view at or above its commit
//!                   put(f): (b, f) and (f, q)
//! ```
//!
//! ## Invariants
//!
//! 1. No view at or above a gap's commit shows a key strictly between its ends.
//! 2. A put reports its key after the memtable has it. It cuts the gaps that exist then, and shortens what is being measured.
//!    With the fences of [`Gaps::put`] and [`Gaps::measure`], either the walk finds the key or the put finds the measurement.
//! 3. A removal reports its commit before the memtable has it: the commit of a gap is at least that of each removal in it.
//!
//! ## Threads
//!
//! Any. The lock is held for the look-up of one key; never while a walk is under way. One measurement at a time.
//!
//! ## Costs
//!
//! A put: a fence, and a look-up where there are gaps. A removal: one in `SAMPLE` keys is copied. At most `MOST` gaps.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use crate::error::Result;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use crate::types::Seq;

/// One removed key in so many is measured: stretches that matter have more.
const SAMPLE: u64 = 16;
/// Stretches of fewer removed keys are walked through.
pub const LEAST: u64 = 64;
/// Most gaps, of which the shortest is dropped for another ...
const MOST: usize = 512;
/// ... and most reported keys that wait to be measured.
const MOST_WANTED: usize = 64;
/// Puts that one measurement bears.
const MOST_PUTS: usize = 256;
/// Longer keys are no ends of gaps.
const LONGEST: usize = 1 << 10;

/// A stretch without a value, as a walk found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// The key before it, which may have a value; none if it has no begin.
    pub low: Option<Vec<u8>>,
    /// The key behind it, which may have a value; none if it has no end.
    pub high: Option<Vec<u8>>,
    /// Removed keys that the walk went through, or skipped.
    pub keys: u64,
}

/// Where a walk goes on that skips a gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Skip {
    /// At this key, which may have a value.
    To(Vec<u8>),
    /// Nowhere: there is nothing behind.
    End,
}

#[derive(Debug)]
struct Gap {
    high: Option<Vec<u8>>,
    /// Views at or above it see nothing in the gap.
    at: Seq,
    keys: u64,
}

#[derive(Debug, Default)]
struct Inner {
    /// By the key before it. Disjoint.
    gaps: BTreeMap<Option<Vec<u8>>, Gap>,
    /// Keys put during the measurement under way; none without one.
    puts: Option<Vec<Vec<u8>>>,
    wanted: VecDeque<Vec<u8>>,
}

/// The gaps of a keyspace.
#[derive(Debug, Default)]
pub struct Gaps {
    /// Puts have to look: there are gaps, or one is measured.
    is_watched: AtomicBool,
    /// There are gaps, ...
    has_gaps: AtomicBool,
    /// ... and keys to measure.
    has_wanted: AtomicBool,
    /// The newest removal.
    newest: AtomicU64,
    removals: AtomicU64,
    inner: Mutex<Inner>,
    measuring: Mutex<()>,
}

/// Whether `key` is above a lower end.
fn is_above(low: Option<&[u8]>, key: &[u8]) -> bool {
    low.is_none_or(|low| low < key)
}

/// Whether `key` is below an upper end.
fn is_below(high: Option<&[u8]>, key: &[u8]) -> bool {
    high.is_none_or(|high| key < high)
}

impl Inner {
    /// The gap that begins last of those that begin before `key`, or at it if `with`.
    fn before(&self, key: Option<&[u8]>, with: bool) -> Option<(&Option<Vec<u8>>, &Gap)> {
        let Some(key) = key else { return self.gaps.iter().next_back() };
        let key = Some(key.to_vec());
        if with { self.gaps.range(..=key).next_back() } else { self.gaps.range(..key).next_back() }
    }

    fn cut(&mut self, key: &[u8]) {
        let Some((low, gap)) = self.before(Some(key), false) else { return };
        if !is_below(gap.high.as_deref(), key) {
            return;
        }
        let low = low.clone();
        let Some(Gap { high, at, keys }) = self.gaps.remove(&low) else { return };
        if keys / 2 >= LEAST && key.len() <= LONGEST {
            self.gaps.insert(low, Gap { high: Some(key.to_vec()), at, keys: keys / 2 });
            self.gaps.insert(Some(key.to_vec()), Gap { high, at, keys: keys / 2 });
        }
    }

    /// Adds a stretch, together with the gaps that it overlaps.
    fn add(&mut self, mut stretch: Stretch, mut at: Seq) {
        let overlaps = |low: Option<&[u8]>, high: Option<&[u8]>, other: &Stretch| {
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
            let Some(gap) = self.gaps.remove(&low) else { return };
            at = at.max(gap.at);
            stretch.keys = stretch.keys.saturating_add(gap.keys); // the walk skipped it
            stretch.low = stretch.low.min(low);
            stretch.high = match (stretch.high, gap.high) {
                (Some(one), Some(other)) => Some(one.max(other)),
                _ => None,
            };
        }
        let is_long = |end: &Option<Vec<u8>>| end.as_ref().is_some_and(|end| end.len() > LONGEST);
        if stretch.keys < LEAST || is_long(&stretch.low) || is_long(&stretch.high) {
            return;
        }
        if self.gaps.len() >= MOST {
            let shortest = self.gaps.iter().min_by_key(|(_, gap)| gap.keys).map(|(low, _)| low.clone());
            shortest.map(|low| self.gaps.remove(&low));
        }
        self.gaps.insert(stretch.low, Gap { high: stretch.high, at, keys: stretch.keys });
    }
}

impl Gaps {
    /// Records that `key` has a value from now on. Must be called after the memtable has it, and before
    /// its commit is visible.
    #[inline]
    pub fn put(&self, key: &[u8]) {
        fence(Ordering::SeqCst); // between the memtable's store and this load (I2)
        if self.is_watched.load(Ordering::Relaxed) {
            self.put_watched(key);
        }
    }

    #[cold]
    fn put_watched(&self, key: &[u8]) {
        let mut inner = self.inner.lock();
        if let Some(puts) = inner.puts.as_mut().filter(|puts| puts.len() <= MOST_PUTS) {
            puts.push(key.to_vec());
        }
        inner.cut(key);
        self.note(&inner);
    }

    /// Records that commit `seq` removes `key`. Must be called before the memtable has it.
    #[inline]
    pub fn removed(&self, seq: Seq, key: &[u8]) {
        self.newest.fetch_max(seq.0, Ordering::Release); // removals come in any order
        let count = self.removals.fetch_add(1, Ordering::Relaxed) + 1;
        if count.is_multiple_of(SAMPLE) {
            self.want(key);
        }
    }

    /// Asks for the stretch around `key` to be measured.
    pub fn want(&self, key: &[u8]) {
        if key.len() > LONGEST {
            return;
        }
        let mut inner = self.inner.lock();
        if inner.wanted.len() >= MOST_WANTED {
            inner.wanted.pop_front();
        }
        inner.wanted.push_back(key.to_vec());
        self.note(&inner);
    }

    /// The next key whose surroundings are to be measured, and which is in no gap.
    pub fn take_wanted(&self) -> Option<Vec<u8>> {
        if !self.has_wanted.load(Ordering::Relaxed) {
            return None;
        }
        let mut inner = self.inner.lock();
        let mut found = None;
        while let Some(key) = inner.wanted.pop_back() {
            let known = inner.before(Some(&key), false);
            if known.is_none_or(|(_, gap)| !is_below(gap.high.as_deref(), &key)) {
                found = Some(key);
                break;
            }
        }
        self.note(&inner);
        found
    }

    /// Measures the stretch around `key` by `walk`, which must look at the newest versions of all keys, with memtables as of after
    /// this call; none if `key` has a value. Does nothing while another thread measures.
    ///
    /// # Errors
    ///
    /// Those of the walk.
    pub fn measure(&self, key: &[u8], walk: impl FnOnce() -> Result<Option<Stretch>>) -> Result<()> {
        let Some(_one) = self.measuring.try_lock() else { return Ok(()) };
        self.inner.lock().puts = Some(Vec::new());
        self.is_watched.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst); // (I2)
        let walked = walk();
        let mut inner = self.inner.lock();
        let puts = inner.puts.take().unwrap_or_default();
        let at = Seq(self.newest.load(Ordering::Acquire)); // (I3)
        if let Ok(Some(stretch)) = &walked
            && puts.len() <= MOST_PUTS
            && let Some(stretch) = shortened(stretch.clone(), key, puts)
        {
            inner.add(stretch, at);
        }
        self.note(&inner);
        walked.map(drop)
    }

    /// Where a walk goes on that stands at `from` and has a view at `at`; none if it stands in no gap of that view.
    #[must_use]
    pub fn skip(&self, from: Bound<&[u8]>, forward: bool, at: Seq) -> Option<Skip> {
        if !self.has_gaps.load(Ordering::Acquire) {
            return None;
        }
        let inner = self.inner.lock();
        let (low, gap) = match (from, forward) {
            (Bound::Included(key), _) | (Bound::Excluded(key), false) => inner.before(Some(key), false),
            (Bound::Excluded(key), true) => inner.before(Some(key), true),
            (Bound::Unbounded, true) => inner.gaps.iter().next().filter(|(low, _)| low.is_none()),
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
        (is_in && at >= gap.at).then(|| end.clone().map_or(Skip::End, Skip::To))
    }

    /// Forgets everything.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.gaps.clear();
        inner.wanted.clear();
        self.note(&inner);
    }

    /// How many gaps there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.lock().gaps.len()
    }

    fn note(&self, inner: &Inner) {
        let has_gaps = !inner.gaps.is_empty();
        self.has_gaps.store(has_gaps, Ordering::Release);
        self.has_wanted.store(!inner.wanted.is_empty(), Ordering::Relaxed);
        self.is_watched.store(has_gaps || inner.puts.is_some(), Ordering::Relaxed);
    }
}

/// What is left around `key` of a stretch into which keys were put; none if `key` was, too.
fn shortened(mut stretch: Stretch, key: &[u8], puts: Vec<Vec<u8>>) -> Option<Stretch> {
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

    fn measured(gaps: &Gaps, key: &str, (low, high): (&str, &str), puts: &[&str]) {
        let walk = || {
            puts.iter().for_each(|key| gaps.put(key.as_bytes()));
            Ok(Some(Stretch { low: end(low), high: end(high), keys: 1000 }))
        };
        gaps.measure(key.as_bytes(), walk).unwrap();
    }

    fn up(gaps: &Gaps, key: &str) -> Option<Skip> {
        gaps.skip(Bound::Included(key.as_bytes()), true, Seq::LATEST)
    }

    fn to(key: &str) -> Option<Skip> {
        Some(Skip::To(key.as_bytes().to_vec()))
    }

    #[test]
    fn walks_skip_from_within_to_the_ends() {
        let gaps = Gaps::default();
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
        assert_eq!([down(Bound::Unbounded), down(Bound::Included("a"))], [Some(Skip::End), Some(Skip::End)]);
        assert_eq!(gaps.skip(Bound::Unbounded, true, Seq::LATEST), Some(Skip::End));
        assert_eq!(gaps.count(), 1, "they are one");
    }

    #[test]
    fn puts_cut_what_is_there_and_shorten_what_is_measured() {
        let gaps = Gaps::default();
        measured(&gaps, "f", ("b", "q"), &["d", "c", "h", "k"]);
        assert_eq!([up(&gaps, "c"), up(&gaps, "e"), up(&gaps, "i")], [None, to("h"), None]);
        gaps.put(b"f");
        assert_eq!([up(&gaps, "e"), up(&gaps, "f"), up(&gaps, "g")], [to("f"), None, to("h")]);
        measured(&gaps, "m", ("k", "q"), &["m"]);
        assert_eq!(up(&gaps, "n"), None, "the key itself has a value");
        measured(&gaps, "m", ("k", "q"), &["x"; MOST_PUTS + 1]);
        assert_eq!(up(&gaps, "n"), None, "more than it bears");
        for key in ["e", "ee", "eee", "eeee", "eeeee"] {
            gaps.put(key.as_bytes());
        }
        assert_eq!(up(&gaps, "eee1"), None, "too short to be kept");
    }

    #[test]
    fn views_from_before_the_removals_skip_nothing() {
        let gaps = Gaps::default();
        (1..=16).for_each(|seq| gaps.removed(Seq(seq), b"f"));
        assert_eq!(gaps.take_wanted().as_deref(), Some(&b"f"[..]));
        measured(&gaps, "f", ("b", "q"), &[]);
        let skip = |at: u64| gaps.skip(Bound::Included(b"f"), true, Seq(at));
        assert_eq!([skip(15), skip(16)], [None, to("q")]);
        gaps.want(b"g");
        assert_eq!(gaps.take_wanted(), None, "it is in a gap");
        gaps.clear();
        assert_eq!((skip(16), gaps.count()), (None, 0));
    }

    #[test]
    fn there_is_a_limit_to_gaps() {
        let gaps = Gaps::default();
        for n in 0..MOST + 10 {
            let (low, key, high) = (format!("{n:04}a"), format!("{n:04}b"), format!("{n:04}c"));
            measured(&gaps, &key, (&low, &high), &[]);
        }
        assert_eq!(gaps.count(), MOST);
    }
}
