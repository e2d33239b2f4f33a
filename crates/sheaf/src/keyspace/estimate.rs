//! # Estimates: the approximate number and size of the pairs in a range

use sheaf_engine::contract::{Bounds, Projection};
use sheaf_engine::range_estimate::{RangeSum, to_f64};

use super::{Keyspace, require_ordered};
use crate::iter::{KeyRange, prefix_bounds};
use crate::{Keys, Result};

/// Estimated pairs up to which they are counted instead.
const COUNTED_PAIRS: f64 = 256.0;
/// Pairs at which such a count ends: the estimate was too low.
const MAX_COUNTED_PAIRS: usize = 1024;
/// Values that are measured if no sample shows their size.
const MEASURED_VALUES: usize = 8;
/// Pairs of an engine without order that are measured.
const SAMPLED_PAIRS: usize = 100;

/// Approximate number and size of the pairs in a range
/// ([`Keyspace::estimate_range`](crate::Keyspace::estimate_range)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeEstimate {
    /// Number of pairs.
    pub pairs: u64,
    /// Bytes of their keys and values as they are stored: compressed, with the headers of their
    /// records in `kreon`, without them in the other engines.
    pub bytes: u64,
}

impl Keyspace {
    /// Estimates number and size of the pairs with keys in `range`, for example to choose between
    /// two ways of a query or to cut a keyspace into parts of the same size.
    ///
    /// The cost does not grow with the pairs in the range: the engine reads the ends of the range
    /// in its index and about 100 pairs. A range of at most about 250 pairs is counted.
    ///
    /// The number is usually off by less than a quarter. Where pairs were overwritten or removed
    /// recently, it is a quarter of the versions of keys in the range, since the engine has not
    /// merged all of them. In data of very different sizes, `bytes` may be off by more. Expired
    /// pairs count until they are removed.
    ///
    /// Snapshots have no estimates: an engine knows the versions of its index as of now, so an
    /// estimate of a snapshot would be the one of the keyspace.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// for number in 0..100_u32 {
    ///     users.insert(number.to_be_bytes(), "a user")?;
    /// }
    /// let range = 10_u32.to_be_bytes()..20_u32.to_be_bytes();
    /// let estimate = users.estimate_range(range)?;
    /// assert_eq!(estimate.pairs, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`](crate::Error::Unsupported) if the engine is not ordered and
    /// the range is not `..`, and the [read errors](Keyspace#read-errors).
    pub fn estimate_range<K: AsRef<[u8]>>(&self, range: impl KeyRange<K>) -> Result<RangeEstimate> {
        self.estimate(&range.bounds())
    }

    /// Estimates number and size of the pairs with keys that start with `prefix`, like
    /// [`Keyspace::estimate_range`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let db = sheaf::Database::open(dir.path())?;
    /// # let users = db.keyspace("users", sheaf::KeyspaceOptions::default())?;
    /// users.insert("ada", "lovelace")?;
    /// users.insert("bob", "noyce")?;
    /// assert_eq!(users.estimate_prefix("a")?.pairs, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Keyspace::estimate_range`].
    pub fn estimate_prefix(&self, prefix: impl AsRef<[u8]>) -> Result<RangeEstimate> {
        self.estimate(&prefix_bounds(prefix.as_ref()))
    }

    fn estimate(&self, bounds: &Bounds) -> Result<RangeEstimate> {
        let sum = self.query(|state| {
            let engine = state.engine()?;
            if engine.capabilities().ordered || !bounds.is_all() {
                require_ordered(state, "estimates of ranges")?;
                if bounds.is_empty() {
                    return Ok(RangeSum::default());
                }
                let (first, end) = bounds.first_and_end();
                return engine.estimate_range(&first, end.as_deref());
            }
            Ok(RangeSum { pairs: to_f64(engine.len()?), bytes: 0.0 })
        })?;
        if !self.capabilities()?.ordered {
            let bytes = sum.pairs * self.sample_pair_bytes(bounds)?;
            return Ok(RangeEstimate { pairs: rounded(sum.pairs), bytes: rounded(bytes) });
        }
        if sum.pairs <= COUNTED_PAIRS
            && let Some(counted) = self.count_pairs(bounds, sum)?
        {
            return Ok(counted);
        }
        Ok(RangeEstimate { pairs: rounded(sum.pairs), bytes: rounded(sum.bytes) })
    }

    /// Returns the mean size of a pair of an engine without order. Such an engine lists its keys by
    /// their hashes, so that the first ones are a random sample.
    fn sample_pair_bytes(&self, bounds: &Bounds) -> Result<f64> {
        let (mut pairs, mut bytes) = (0, 0);
        for key in Keys(self.iterate(bounds.clone(), Projection::Keys)?).take(SAMPLED_PAIRS) {
            let key = key?;
            pairs += 1;
            bytes += key.len() as u64 + self.size_of(&key)?.unwrap_or(0);
        }
        Ok(if pairs == 0 { 0.0 } else { to_f64(bytes) / to_f64(pairs) })
    }

    /// Counts the pairs in a range of about as many as `estimated`. Returns `None` if there are too
    /// many.
    fn count_pairs(&self, bounds: &Bounds, estimated: RangeSum) -> Result<Option<RangeEstimate>> {
        let (mut pairs, mut measured, mut bytes) = (0_usize, 0_usize, 0);
        for key in Keys(self.iterate(bounds.clone(), Projection::Keys)?) {
            let key = key?;
            pairs += 1;
            if pairs > MAX_COUNTED_PAIRS {
                return Ok(None);
            }
            if estimated.pairs < 1.0 && measured < MEASURED_VALUES {
                measured += 1;
                bytes += key.len() as u64 + self.size_of(&key)?.unwrap_or(0);
            }
        }
        let (sampled_pairs, sampled_bytes) = match measured {
            0 => (estimated.pairs, estimated.bytes),
            _ => (to_f64(measured as u64), to_f64(bytes)),
        };
        let pair_bytes = if pairs == 0 { 0.0 } else { sampled_bytes / sampled_pairs };
        let bytes = rounded(pair_bytes * to_f64(pairs as u64));
        Ok(Some(RangeEstimate { pairs: pairs as u64, bytes }))
    }
}

#[expect(clippy::cast_possible_truncation, reason = "saturates; not negative")]
fn rounded(number: f64) -> u64 {
    number.round() as u64
}
