//! # Iterators: pairs and keys of a keyspace at one view, from both ends

use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::engine::{Bounds, Cursor, Want};
use sheaf_base::load::{Call, Kind, Sample, Served};
use sheaf_base::store::{Kept, View};

use crate::handle::Handle;
use crate::{Error, Result, Value};

/// A range of keys: each range of std, and a pair of bounds.
///
/// In place of [`RangeBounds`](std::ops::RangeBounds), which leaves open the type of the keys in a pair of bounds that holds
/// a borrowed slice.
pub trait KeyRange<K>: sealed::Sealed<K> {}

impl<K, R: sealed::Sealed<K>> KeyRange<K> for R {}

mod sealed {
    use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull};
    use std::ops::{RangeInclusive, RangeTo, RangeToInclusive};

    use sheaf_base::engine::Bounds;

    /// Ranges that keys can be in.
    pub trait Sealed<K> {
        /// Owned limits of it.
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

/// The limits of all keys that start with `prefix`.
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

/// Pairs at one view, as `Result`s.
///
/// An [`Error::Corrupt`] stands for a damaged stretch of the keyspace: the next call goes on behind it,
/// and each pair outside of the stretch is yielded once. (`for pair in iter { pair?; }` ends at the
/// first damage.) After any other error it yields nothing more. If both ends are taken from, it ends at
/// the first damage.
///
/// Double-ended where the engine is ordered. Elsewhere taking from the back, `rev()` included, yields
/// [`Error::Unsupported`] with the first item: ask [`Keyspace::capabilities`](crate::Keyspace::capabilities)
/// before. Outlives the handles it came from; after the database was closed it yields [`Error::Closed`].
pub struct Iter {
    /// Keeps the database open.
    handle: Arc<Handle>,
    view: Arc<View>,
    kept: Arc<Kept>,
    bounds: Bounds,
    want: Want,
    front: End,
    back: End,
    done: bool,
    /// One that was chosen to be looked at, and the pairs it went over.
    sample: Option<Sample>,
    pairs: u64,
}

/// One end of the walk: its cursor once it was used.
#[derive(Default)]
struct End {
    cursor: Option<Box<dyn Cursor>>,
    moved: bool,
    /// The last step met damage: the cursor's key says nothing about where it is.
    is_lost: bool,
}

impl Iter {
    pub(crate) fn new(
        handle: Arc<Handle>,
        view: Arc<View>,
        kept: Arc<Kept>,
        bounds: Bounds,
        want: Want,
    ) -> Result<Iter> {
        let sample = handle.sample();
        let engine = kept.engine()?;
        if !bounds.is_all() && !engine.capabilities().ordered {
            return Err(Error::Unsupported { engine: kept.engine_name(), feature: "ranges" });
        }
        let done = bounds.is_empty();
        Ok(Iter {
            handle,
            view,
            kept,
            bounds,
            want,
            front: End::default(),
            back: End::default(),
            done,
            sample,
            pairs: 0,
        })
    }

    fn open(&self, forward: bool) -> Result<Box<dyn Cursor>> {
        let engine = self.kept.engine()?;
        if !forward && !engine.capabilities().ordered {
            return Err(Error::Unsupported { engine: self.kept.engine_name(), feature: "reverse iteration" });
        }
        Arc::clone(engine).cursor(self.view.seq(), self.bounds.clone(), self.want)
    }

    /// As `next`, but hands the pair to `read` where it lies: no copies are made.
    pub fn next_with<R>(&mut self, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<Result<R>> {
        self.advance(true, read)
    }

    /// As `next_back`, in the way of [`Iter::next_with`].
    pub fn next_back_with<R>(&mut self, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<Result<R>> {
        self.advance(false, read)
    }

    fn step<R>(&mut self, forward: bool, read: impl FnOnce(&[u8], &[u8]) -> R) -> Result<Option<R>> {
        self.view.check_open()?;
        let end = if forward { &self.front } else { &self.back };
        if end.cursor.is_none() {
            let cursor = Some(self.open(forward)?);
            *(if forward { &mut self.front } else { &mut self.back }) = End { cursor, ..End::default() };
        }
        let (mine, other) =
            if forward { (&mut self.front, &self.back) } else { (&mut self.back, &self.front) };
        let Some(cursor) = mine.cursor.as_mut().filter(|_| !other.is_lost) else { return Ok(None) };
        let stepped = cursor.step(forward);
        mine.is_lost = stepped.is_err();
        let Some((key, value)) = stepped? else { return Ok(None) };
        mine.moved = true;
        if let Some(met) = other.cursor.as_ref().filter(|_| other.moved) {
            let crossed = if forward { key >= met.key() } else { key <= met.key() };
            if crossed {
                return Ok(None);
            }
        }
        Ok(Some(read(key, if self.want == Want::Pairs { value } else { &[] })))
    }

    fn advance<R>(&mut self, forward: bool, read: impl FnOnce(&[u8], &[u8]) -> R) -> Option<Result<R>> {
        if self.done {
            return None;
        }
        // A pair goes straight to the caller: an outcome that is kept meanwhile is a copy of the largest one, an error, for each.
        match self.step(forward, read) {
            Ok(Some(pair)) => {
                if self.sample.is_some() {
                    self.observe(forward);
                }
                Some(Ok(pair))
            }
            end => {
                self.done = !self.goes_on(forward, &end);
                if self.sample.is_some() {
                    self.observe(forward);
                }
                end.err().map(Err)
            }
        }
    }

    /// Whether `end`, which is no pair, is damage behind which the walk goes on.
    #[cold]
    fn goes_on<R>(&self, forward: bool, end: &Result<Option<R>>) -> bool {
        let (mine, other) = if forward { (&self.front, &self.back) } else { (&self.back, &self.front) };
        mine.is_lost && !other.moved && end.as_ref().is_err_and(Error::is_corrupt)
    }

    /// The first step of a sampled scan says what it is and how long it took; the others are counted.
    #[cold]
    #[inline(never)]
    fn observe(&mut self, forward: bool) {
        if self.pairs == 0
            && let Some(sample) = self.sample
        {
            let kind = if forward { Kind::Scan } else { Kind::ScanReverse };
            self.handle.record(&self.kept, sample, Some(Served::Scan), &Call::new(kind, &[]));
        }
        if self.done {
            self.end_sample();
        } else {
            self.pairs += 1;
        }
    }

    fn end_sample(&mut self) {
        self.sample = None;
        self.kept.load().record_scan(self.pairs);
    }
}

impl fmt::Debug for Iter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter")
            .field("keyspace", &self.kept.name())
            .field("seq", &self.view.seq().0)
            .field("is_done", &self.done)
            .finish_non_exhaustive()
    }
}

impl Drop for Iter {
    fn drop(&mut self) {
        // One that was never asked for a pair is no scan.
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

/// The keys of an [`Iter`].
#[derive(Debug)]
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
