//! # Role: gets, cursors and counts

use std::ops::Bound;

use sheaf_log::blob_reader::StoredValue;
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};

use super::{EngineInfo, HashedKey};
use crate::keys::{borrow_bound, is_above, is_below};
use crate::range_estimate::RangeSum;

/// Part of a pair that a cursor fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Only the key.
    Keys,
    /// Key and value.
    Pairs,
}

/// Limits of a range. Keys are compared as unsigned bytes.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Lower end.
    pub low: Bound<Vec<u8>>,
    /// Upper end.
    pub high: Bound<Vec<u8>>,
}

impl Bounds {
    /// Returns the range of all keys.
    #[must_use]
    pub fn all() -> Bounds {
        Bounds { low: Bound::Unbounded, high: Bound::Unbounded }
    }

    /// Returns true if the range has no limits.
    #[must_use]
    pub fn is_all(&self) -> bool {
        matches!((&self.low, &self.high), (Bound::Unbounded, Bound::Unbounded))
    }

    /// Returns true if no key can be in the range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match (&self.low, &self.high) {
            (Bound::Included(l), Bound::Included(h)) => l > h,
            (Bound::Included(l) | Bound::Excluded(l), Bound::Included(h) | Bound::Excluded(h)) => l >= h,
            _ => false,
        }
    }

    /// Returns the keys from `first` on and before `end`, or all above `first`.
    #[must_use]
    pub fn between(first: &[u8], end: Option<&[u8]>) -> Bounds {
        let high = end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec()));
        Bounds { low: Bound::Included(first.to_vec()), high }
    }

    /// Returns true if a key may be in both ranges.
    #[must_use]
    pub fn overlaps(&self, other: &Bounds) -> bool {
        let both = |low: &Bounds, high: &Bounds| {
            let both = Bounds { low: low.low.clone(), high: high.high.clone() };
            !both.is_empty()
        };
        !self.is_empty() && !other.is_empty() && both(self, other) && both(other, self)
    }

    /// Returns the first key that may be in the range, and the lowest key above the range, or
    /// `None` if the range has no upper limit.
    #[must_use]
    pub fn first_and_end(&self) -> (Vec<u8>, Option<Vec<u8>>) {
        let above = |key: &Vec<u8>| [key.as_slice(), &[0]].concat();
        let first = match &self.low {
            Bound::Included(key) => key.clone(),
            Bound::Excluded(key) => above(key),
            Bound::Unbounded => Vec::new(),
        };
        let end = match &self.high {
            Bound::Included(key) => Some(above(key)),
            Bound::Excluded(key) => Some(key.clone()),
            Bound::Unbounded => None,
        };
        (first, end)
    }

    /// Returns true if `key` is in the range.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        is_above(key, borrow_bound(&self.low)) && is_below(key, borrow_bound(&self.high))
    }
}

/// Iterator over the pairs of one keyspace at one view. A cursor moves in one direction: `next`
/// from the low end or `prev` from the high end.
///
/// A damaged entry, or a range of keys that a damaged block covers, is reported once as
/// `Error::Corrupt`. The next call continues behind it. Each pair outside of damaged ranges is
/// returned exactly once, so a walk ends after finitely many errors. If the end of a damaged range
/// is unknown, and after any other error, every later call reports the end.
pub trait Cursor: Send {
    /// Moves to the next pair; the first call moves to the first pair. Returns false at the end.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` for damaged data, as the trait describes, and `Error::Io` if a
    /// read fails.
    fn next(&mut self) -> Result<bool>;
    /// Moves to the previous pair; the first call moves to the last pair. Returns false at the end.
    ///
    /// # Errors
    ///
    /// Same as [`Cursor::next`].
    fn prev(&mut self) -> Result<bool>;
    /// Tells the cursor that the caller probably reads only `pairs` more pairs, so that the cursor
    /// prepares no more ahead. Further reads are correct, at a slightly higher cost.
    fn expect_pairs(&mut self, pairs: usize) {
        let _ = pairs;
    }
    /// Returns the key of the current pair.
    fn key(&self) -> &[u8];
    /// Returns the value of the current pair.
    fn value(&self) -> &[u8];
    /// Returns key and value of the current pair.
    fn pair(&self) -> (&[u8], &[u8]) {
        (self.key(), self.value())
    }
    /// Moves by one pair, upwards if `forward`, and returns that pair. Returns `None` at the end.
    ///
    /// # Errors
    ///
    /// Same as [`Cursor::next`].
    fn step(&mut self, forward: bool) -> Result<Option<(&[u8], &[u8])>> {
        let is_there = if forward { self.next()? } else { self.prev()? };
        Ok(if is_there { Some(self.pair()) } else { None })
    }
}

/// Reads of a keyspace, in the newest state or at a view.
pub trait EngineReads: EngineInfo {
    /// Returns `key` with its hash, if the engine looks keys up by hash. Other calls take the
    /// result.
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { key, hash: 0 }
    }
    /// Prefetches the memory that a lookup of the key reads first. Must not wait.
    fn prefetch_index(&self, hashed_key: HashedKey<'_>) {
        let _ = hashed_key;
    }
    /// Prefetches the memory for lookups of `keys` and, if `entries` is true, their entries. Must
    /// not wait for the device.
    fn prefetch(&self, keys: &[HashedKey<'_>], entries: bool) {
        let _ = (keys, entries);
    }
    /// Calls `found` with the value of `key` at `at`: its bytes, or the opened but unread blob.
    /// Returns false if there is no value. `at` is a registered view or [`Seq::LATEST`]. `found`
    /// may run at most once.
    ///
    /// At [`Seq::LATEST`] the engine must call
    /// [`EngineContext::wait_visible`](crate::context::EngineContext::wait_visible) with the
    /// seq of the entry before it calls `found` or returns true. During that call it must hold no
    /// lock that `apply` takes. For a missing key the store does the waiting.
    ///
    /// # Errors
    ///
    /// Returns `Error::Io` or `Error::Corrupt` if the entry cannot be read, and
    /// `Error::Poisoned` if a commit that the reader waits for failed.
    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool>;
    /// Like [`EngineReads::get_stored`], but reads a blob and passes its bytes to `found`.
    ///
    /// # Errors
    ///
    /// Same as [`EngineReads::get_stored`]; also if the blob cannot be read.
    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut file = None;
        let is_there = self.get_stored(at, key, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => found(bytes),
            StoredValue::Blob(value) => file = Some(value),
        })?;
        if let Some(file) = file {
            file.read(found)?;
        }
        Ok(is_there)
    }
    /// Like [`EngineReads::get_stored`], and passes the seq of the version that it has found if
    /// [`EngineReads::knows_versions`] returns true. The hash of the key is that of
    /// [`EngineContext::hash`](crate::context::EngineContext::hash). A cache of something that was
    /// computed from the value finds it by key and seq.
    ///
    /// # Errors
    ///
    /// Same as [`EngineReads::get_stored`].
    fn get_version(
        &self,
        at: Seq,
        hashed_key: HashedKey<'_>,
        found: &mut dyn FnMut(Option<Seq>, StoredValue<'_>),
    ) -> Result<bool> {
        self.get_stored(at, hashed_key.key, &mut |stored| found(None, stored))
    }
    /// Returns true if a get knows the seq of the version that it has found without more work.
    fn knows_versions(&self) -> bool {
        false
    }
    /// Returns true if `key` has a value at `at`.
    ///
    /// # Errors
    ///
    /// Same as [`EngineReads::get`].
    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        self.get(at, key, &mut |_| {})
    }
    /// Returns a cursor over `bounds` at `at`. The caller keeps the view registered while the
    /// cursor lives. The cursor must not write memory that other cursors or writers write, such as
    /// a reference count of the engine. Otherwise scans would slow each other down.
    ///
    /// # Errors
    ///
    /// Returns `Error::Unsupported` for bounds, if the engine is not ordered.
    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>>;
    /// Estimates number and size of the pairs from `first` on and below `end`, in the newest state.
    /// `end` is above `first`, or `None` for no limit. The cost must not grow with the number of
    /// pairs. The result may be off by a quarter of the versions of keys that the engine has in the
    /// range, if these are spread evenly.
    ///
    /// # Errors
    ///
    /// Returns `Error::Unsupported` if the engine is not ordered, and `Error::Io` or
    /// `Error::Corrupt` if the part of the index that it needs cannot be read.
    fn estimate_range(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        let _ = (first, end);
        Err(Error::Unsupported { engine: self.name(), feature: "estimates of ranges" })
    }
    /// Returns the number of live keys in the newest state.
    ///
    /// # Errors
    ///
    /// Returns `Error::Io` or `Error::Corrupt` if the engine must read to count and the read
    /// fails.
    fn len(&self) -> Result<u64>;
    /// Returns true if there is no live key.
    ///
    /// # Errors
    ///
    /// Same as [`EngineReads::len`].
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }
}
