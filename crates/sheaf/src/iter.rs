//! # Iterators: pairs and keys of a keyspace in one snapshot, from both ends

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_engine::workload::{CallKind, LatencyKind, SampleStart, SampledCall};
use sheaf_store::{OwnedCursor, ReadPoint, View};

use crate::scan_scope::{ScanScope, ScopedStore};
use crate::{Error, Result, Value};

/// Range of keys: every range type of std, and a pair of bounds. Callers use it through
/// [`Keyspace::range`](crate::Keyspace::range).
///
/// [`RangeBounds`](std::ops::RangeBounds) itself leaves the key type ambiguous for a pair of bounds
/// that contains a borrowed slice.
pub trait KeyRange<K>: sealed::Sealed<K> {}

impl<K, R: sealed::Sealed<K>> KeyRange<K> for R {}

mod sealed {
    use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull};
    use std::ops::{RangeInclusive, RangeTo, RangeToInclusive};

    use sheaf_engine::contract::Bounds;

    /// Implemented by the supported ranges.
    pub trait Sealed<K> {
        /// Returns the range with owned bounds.
        fn bounds(&self) -> Bounds;
    }

    macro_rules! ranges {
        ($($range:ty),+) => {$(
            impl<K: AsRef<[u8]>> Sealed<K> for $range {
                fn bounds(&self) -> Bounds {
                    let own = |bound: Bound<&K>| bound.map(|key| key.as_ref().to_vec());
                    Bounds {
                        low: own(RangeBounds::<K>::start_bound(self)),
                        high: own(RangeBounds::<K>::end_bound(self)),
                    }
                }
            }
        )+};
    }

    ranges!(
        Range<K>,
        RangeFrom<K>,
        RangeFull,
        RangeInclusive<K>,
        RangeTo<K>,
        RangeToInclusive<K>,
        (Bound<K>, Bound<K>)
    );
}

/// Returns the range of all keys that start with `prefix`.
pub(crate) fn prefix_bounds(prefix: &[u8]) -> Bounds {
    if prefix.is_empty() {
        return Bounds::all();
    }
    let mut after = prefix.to_vec();
    while let Some(last) = after.pop() {
        if let Some(next) = last.checked_add(1) {
            after.push(next);
            break;
        }
    }
    let high = if after.is_empty() { Bound::Unbounded } else { Bound::Excluded(after) };
    Bounds { low: Bound::Included(prefix.to_vec()), high }
}

/// Iterator over the pairs of a keyspace, in one snapshot. Its items are `Result`s.
///
/// An [`Error::Corrupt`] reports a damaged part of the keyspace. The next call continues after it,
/// and each pair outside the damaged part is returned once. (`for pair in iter { pair?; }` ends at
/// the first damage.) After any other error the iterator ends. If items are taken from both ends,
/// it ends at the first damage.
///
/// If the engine is ordered, the iterator is double-ended. Otherwise taking from the back,
/// including `rev()`, returns [`Error::Unsupported`] as the first item;
/// [`Keyspace::capabilities`](crate::Keyspace::capabilities) tells whether the engine is ordered.
/// The iterator outlives the handle it came from, and returns [`Error::Closed`] after the database
/// was closed.
///
/// A live iterator pins its snapshot: space of data that is overwritten later is reclaimed after
/// the iterator is dropped.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// users.insert("ada", "lovelace")?;
/// users.insert("alan", "turing")?;
/// for pair in users.iter()? {
///     let (key, value) = pair?;
///     println!("{key:?} {value:?}");
/// }
/// assert_eq!(users.iter()?.rev().next().transpose()?, users.last()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "an iterator reads nothing until it is advanced"]
pub struct Iter {
    // The cursors end before the view that they read.
    front: IterEnd,
    back: IterEnd,
    /// Keeps the database open while the iterator exists.
    scope: Arc<ScanScope>,
    /// Registers the state that the iterator reads, unless the scope has a snapshot.
    _view: Option<View<ScopedStore>>,
    at: ReadPoint,
    bounds: Bounds,
    /// Position of the front, if it is not the start of `bounds`: after a seek, or after the ends
    /// have met. A cursor that has moved since is ahead of it.
    front_low: Option<Bound<Vec<u8>>>,
    /// Position of the back, if it is not the end of `bounds`.
    back_high: Option<Bound<Vec<u8>>>,
    projection: Projection,
    is_done: bool,
    /// Set if the scan is sampled for the workload statistics; then `pairs` counts its items.
    sample: Option<SampleStart>,
    pairs: u64,
    /// Number of pairs that the caller probably reads, if known.
    expected_pairs: Option<usize>,
}

/// State of one end: its cursor after the first use.
#[derive(Default)]
struct IterEnd {
    cursor: Option<OwnedCursor>,
    has_moved: bool,
    /// True if the last step found damage, so that the key of the cursor is not its position.
    is_position_lost: bool,
    /// True if this end returned all pairs of the range.
    is_exhausted: bool,
}

impl Iter {
    /// An iterator over the state of the snapshot of `scope`.
    pub(crate) fn from_snapshot(
        scope: Arc<ScanScope>,
        at: ReadPoint,
        bounds: Bounds,
        projection: Projection,
    ) -> Result<Iter> {
        Iter::new(scope, None, at, bounds, projection)
    }

    /// An iterator over the state of `view`, at `at`.
    pub(crate) fn from_view(
        scope: Arc<ScanScope>,
        view: View<ScopedStore>,
        at: ReadPoint,
        bounds: Bounds,
        projection: Projection,
    ) -> Result<Iter> {
        Iter::new(scope, Some(view), at, bounds, projection)
    }

    fn new(
        scope: Arc<ScanScope>,
        view: Option<View<ScopedStore>>,
        at: ReadPoint,
        bounds: Bounds,
        projection: Projection,
    ) -> Result<Iter> {
        let sample = scope.handle.sample();
        let engine = scope.keyspace.engine()?;
        if !bounds.is_all() && !engine.capabilities().ordered {
            return Err(Error::Unsupported { engine: scope.keyspace.engine_name(), feature: "ranges" });
        }
        let done = bounds.is_empty();
        Ok(Iter {
            scope,
            _view: view,
            at,
            bounds,
            front_low: None,
            back_high: None,
            projection,
            front: IterEnd::default(),
            back: IterEnd::default(),
            is_done: done,
            sample,
            pairs: 0,
            expected_pairs: None,
        })
    }

    /// Returns the iterator, prepared for a caller that probably reads only `pairs` pairs.
    pub(crate) fn expect_pairs(mut self, pairs: usize) -> Iter {
        self.expected_pairs = Some(pairs);
        self
    }

    fn open_cursor(&self, forward: bool) -> Result<OwnedCursor> {
        let engine = self.scope.keyspace.engine()?;
        if !forward && !engine.capabilities().ordered {
            let engine = self.scope.keyspace.engine_name();
            return Err(Error::Unsupported { engine, feature: "reverse iteration" });
        }
        let scope: Arc<ScanScope> = Arc::clone(&self.scope);
        let mut cursor = OwnedCursor::open(scope, self.at, self.remaining(), self.projection)?;
        if let Some(pairs) = self.expected_pairs {
            cursor.expect_pairs(pairs);
        }
        Ok(cursor)
    }

    /// Advances the iterator like `next`, but passes the pair to `read` without copying it. `read`
    /// must not write to the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let mut bytes = 0;
    /// let mut iter = users.iter()?;
    /// while let Some(len) = iter.next_with(|_key, value| value.len()) {
    ///     bytes += len?;
    /// }
    /// assert_eq!(bytes, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_with<R>(&mut self, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<Result<R>> {
        self.advance(true, read)
    }

    /// Advances the iterator like `next_back`, but passes the pair to `read` without copying it.
    /// `read` must not write to the database.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// let last = users.iter()?.next_back_with(|key, _value| key.len()).transpose()?;
    /// assert_eq!(last, Some(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_back_with<R>(&mut self, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<Result<R>> {
        self.advance(false, read)
    }

    /// Moves the front to the first key at or above `key`, within the range of the iterator. It may
    /// move in both directions, also after the end; pairs that were taken from the back are not
    /// returned again. Costs as much as the first step of a new iterator, and keeps the snapshot.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let words = db.keyspace("words", sheaf::KeyspaceOptions::default())?;
    /// for word in ["ape", "bee", "cat", "dog"] {
    ///     words.insert(word, "")?;
    /// }
    /// let mut iter = words.range("b"..)?;
    /// iter.seek("c")?;
    /// assert_eq!(iter.next().transpose()?, Some(("cat".into(), "".into())));
    /// iter.seek("a")?; // below the range: its start
    /// assert_eq!(iter.next().transpose()?, Some(("bee".into(), "".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered, and [`Error::Corrupt`] if the
    /// keyspace is damaged as a whole. The iterator is then unchanged.
    pub fn seek(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.begin_seek()?;
        let key = key.as_ref();
        self.front_low = Some(match &self.bounds.low {
            Bound::Included(low) if low.as_slice() >= key => Bound::Included(low.clone()),
            Bound::Excluded(low) if low.as_slice() >= key => Bound::Excluded(low.clone()),
            _ => Bound::Included(key.to_vec()),
        });
        self.front.is_exhausted = false;
        self.is_done = self.remaining().is_empty();
        Ok(())
    }

    /// Moves the back to the last key at or below `key`, within the range of the iterator.
    /// Otherwise like [`Iter::seek`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let words = db.keyspace("words", sheaf::KeyspaceOptions::default())?;
    /// for word in ["ape", "bee", "cat"] {
    ///     words.insert(word, "")?;
    /// }
    /// let mut iter = words.iter()?;
    /// iter.seek_back("bull")?;
    /// assert_eq!(iter.next_back().transpose()?, Some(("bee".into(), "".into())));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Iter::seek`].
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.begin_seek()?;
        let key = key.as_ref();
        self.back_high = Some(match &self.bounds.high {
            Bound::Included(high) if high.as_slice() <= key => Bound::Included(high.clone()),
            Bound::Excluded(high) if high.as_slice() <= key => Bound::Excluded(high.clone()),
            _ => Bound::Included(key.to_vec()),
        });
        self.back.is_exhausted = false;
        self.is_done = self.remaining().is_empty();
        Ok(())
    }

    /// Closes both cursors. An end that has returned a pair continues after it.
    fn begin_seek(&mut self) -> Result<()> {
        crate::keyspace::require_ordered(&self.scope.keyspace, "seek")?;
        for (end, bound) in [(&mut self.front, &mut self.front_low), (&mut self.back, &mut self.back_high)] {
            let returned = end.cursor.take().filter(|_| end.has_moved && !end.is_position_lost);
            if let Some(cursor) = returned {
                *bound = Some(Bound::Excluded(cursor.key().to_vec()));
            }
            *end = IterEnd { is_exhausted: end.is_exhausted, ..IterEnd::default() };
        }
        Ok(())
    }

    /// Returns the range between the ends, as of the last seek.
    fn remaining(&self) -> Bounds {
        let Bounds { low, high } = &self.bounds;
        Bounds {
            low: self.front_low.as_ref().unwrap_or(low).clone(),
            high: self.back_high.as_ref().unwrap_or(high).clone(),
        }
    }

    fn step<R>(&mut self, forward: bool, read: impl FnOnce(&[u8], &[u8]) -> R) -> Result<Option<R>> {
        self.scope.handle.check_open()?;
        let end = if forward { &self.front } else { &self.back };
        if end.is_exhausted {
            return Ok(None); // the other end was moved by a seek
        }
        if end.cursor.is_none() {
            let cursor = Some(self.open_cursor(forward)?);
            *(if forward { &mut self.front } else { &mut self.back }) =
                IterEnd { cursor, ..IterEnd::default() };
        }
        let (mine, other) =
            if forward { (&mut self.front, &self.back) } else { (&mut self.back, &self.front) };
        let is_blocked = other.is_position_lost || other.is_exhausted;
        let Some(cursor) = mine.cursor.as_mut().filter(|_| !is_blocked) else { return Ok(None) };
        let stepped = cursor.step(forward);
        mine.is_position_lost = stepped.is_err();
        let Some((key, value)) = stepped? else { return Ok(None) };
        mine.has_moved = true;
        if let Some(met) = other.cursor.as_ref().filter(|_| other.has_moved) {
            let crossed = if forward { key >= met.key() } else { key <= met.key() };
            if crossed {
                return Ok(None);
            }
        }
        Ok(Some(read(key, if self.projection == Projection::Pairs { value } else { &[] })))
    }

    fn advance<R>(&mut self, forward: bool, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<Result<R>> {
        if self.is_done {
            return None;
        }
        // A pair is returned directly: storing the outcome first would copy an enum of the size of
        // its largest variant, an error, for each pair.
        match self.step(forward, read) {
            Ok(Some(pair)) => {
                if self.sample.is_some() {
                    self.observe(forward);
                }
                Some(Ok(pair))
            }
            end => {
                self.is_done = !self.continues_after(forward, &end);
                if let Ok(None) = end {
                    self.record_end(forward);
                }
                if self.sample.is_some() {
                    self.observe(forward);
                }
                end.err().map(Err)
            }
        }
    }

    /// Records that one end returned all pairs up to the position of the other end. Its cursor has
    /// passed that position, so a seek of the other end must not compare with its key.
    #[cold]
    fn record_end(&mut self, forward: bool) {
        let (mine, other) =
            if forward { (&mut self.front, &self.back) } else { (&mut self.back, &self.front) };
        let met = other.cursor.as_ref().filter(|_| other.has_moved).map(|met| met.key().to_vec());
        let limit = match forward {
            true => self.back_high.as_ref().unwrap_or(&self.bounds.high),
            false => self.front_low.as_ref().unwrap_or(&self.bounds.low),
        };
        let next = met.map(Bound::Included).or_else(|| match limit {
            Bound::Included(key) => Some(Bound::Excluded(key.clone())),
            Bound::Excluded(key) => Some(Bound::Included(key.clone())),
            Bound::Unbounded => None,
        });
        *mine = IterEnd { is_exhausted: next.is_none(), ..IterEnd::default() };
        if next.is_some() {
            *(if forward { &mut self.front_low } else { &mut self.back_high }) = next;
        }
    }

    /// Returns true if `end`, which is not a pair, is damage after which the iteration continues.
    #[cold]
    fn continues_after<R>(&self, forward: bool, end: &Result<Option<R>>) -> bool {
        let (mine, other) = if forward { (&self.front, &self.back) } else { (&self.back, &self.front) };
        mine.is_position_lost && !other.has_moved && end.as_ref().is_err_and(Error::is_corrupt)
    }

    /// Records the first step of a sampled scan with its kind and duration; later steps are
    /// counted.
    #[cold]
    #[inline(never)]
    fn observe(&mut self, forward: bool) {
        if self.pairs == 0
            && let Some(sample) = self.sample
        {
            let kind = if forward { CallKind::Scan } else { CallKind::ScanReverse };
            self.scope.handle.record_call(
                &self.scope.keyspace,
                sample,
                Some(LatencyKind::Scan),
                &SampledCall::new(kind, &[]),
            );
        }
        if self.is_done {
            self.end_sample();
        } else {
            self.pairs += 1;
        }
    }

    fn end_sample(&mut self) {
        self.sample = None;
        self.scope.keyspace.workload().record_scan(self.pairs);
    }
}

impl fmt::Debug for Iter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("keyspace", &self.scope.keyspace.name())
            .field("seq", &self.at.seq.0)
            .field("is_done", &self.is_done)
            .finish_non_exhaustive()
    }
}

impl Drop for Iter {
    fn drop(&mut self) {
        // An iterator that returned no pair is not a scan.
        if self.sample.is_some() && self.pairs > 0 {
            self.end_sample();
        }
    }
}

impl Iterator for Iter {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance(true, |key, value| (Value::new(key), Value::new(value)))
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.advance(false, |key, value| (Value::new(key), Value::new(value)))
    }
}

/// Iterator over the keys of a keyspace. It behaves like [`Iter`], but does not read values where
/// the engine stores them apart from the keys.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let db = sheaf::Database::open(dir.path())?;
/// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
/// users.insert("ada", "lovelace")?;
/// let keys: Vec<sheaf::Value> = users.keys()?.collect::<sheaf::Result<_>>()?;
/// assert_eq!(keys, ["ada"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an iterator reads nothing until it is advanced"]
pub struct Keys(pub(crate) Iter);

impl Iterator for Keys {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next_with(|key, _| Value::new(key))
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back_with(|key, _| Value::new(key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_of_high_bytes_has_no_upper_end() {
        assert_eq!(prefix_bounds(b"a\xff").high, Bound::Excluded(b"b".to_vec()));
        assert_eq!(prefix_bounds(b"\xff\xff").high, Bound::Unbounded);
        assert!(prefix_bounds(b"").is_all());
    }
}
