//! # Removed range: a range of keys that one commit removes
//!
//! Engines with range tombstones remove a range by one record. For the others, the commit removes
//! the keys one by one: it lists them at a snapshot, and succeeds only if no commit after the
//! snapshot changed a key in the range, as a transaction does.

use std::sync::Arc;

use sheaf_engine::contract::{Action, Bounds, EngineOp, Projection};
use sheaf_log::record::MAX_RANGE_END;
use sheaf_log::types::Seq;
use sheaf_store::{CommitWrite, KeyspaceState, RangeRead, RangeView};

use crate::open_database::OpenDatabase;
use crate::{ConflictKeys, Error, MAX_BATCH, Result, Value};

/// Estimated bytes of the record of a removal, in addition to its key.
const RECORD_OVERHEAD: usize = 24;

/// Range of keys that is not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemovedRange {
    /// First key.
    pub(crate) first: Value,
    /// End, which is not in the range. `None` if the range has no upper limit.
    pub(crate) end: Option<Value>,
}

impl RemovedRange {
    /// Returns the range of `bounds`, or `None` if no key can be in it.
    pub(crate) fn new(bounds: &Bounds) -> Option<RemovedRange> {
        let (mut first, mut end) = bounds.first_and_end();
        // All keys are shorter, so these bytes decide each comparison.
        first.truncate(MAX_RANGE_END);
        end.iter_mut().for_each(|end| end.truncate(MAX_RANGE_END));
        let is_empty = bounds.is_empty() || end.as_ref().is_some_and(|end| *end <= first);
        (!is_empty).then(|| RemovedRange { first: Value::from(first), end: end.map(Value::from) })
    }

    /// Returns true if `key` is in the range.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        *self.first <= *key && self.end.as_ref().is_none_or(|end| *key < **end)
    }

    /// Returns true if the range contains all keys.
    fn is_all(&self) -> bool {
        self.first.is_empty() && self.end.is_none()
    }

    /// Returns the range without limits if it contains all keys, as unordered engines require.
    pub(crate) fn bounds(&self) -> Bounds {
        match self.is_all() {
            true => Bounds::all(),
            false => Bounds::between(&self.first, self.end.as_deref()),
        }
    }

    /// Returns the error of a removal from `keyspace` that conflicts with other commits.
    pub(crate) fn conflict(&self, keyspace: &KeyspaceState) -> Error {
        let Bounds { low, high } = self.bounds();
        Error::conflict(&keyspace.name(), ConflictKeys::Range { low, high })
    }

    /// Returns the operation of an engine with range tombstones.
    pub(crate) fn write<'a>(&'a self, keyspace: &'a Arc<KeyspaceState>) -> CommitWrite<'a> {
        CommitWrite::new(keyspace, EngineOp::new(&self.first, Action::RemoveRange(self.end.as_deref())))
    }

    /// Returns true if the engine of `keyspace` has range tombstones.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Unsupported`] if the engine is not ordered and the range is not `..`.
    pub(crate) fn is_one_record(&self, keyspace: &KeyspaceState) -> Result<bool> {
        let engine = keyspace.engine()?;
        if !self.is_all() && !engine.capabilities().ordered {
            return Err(Error::Unsupported { engine: keyspace.engine_name(), feature: "ranges" });
        }
        Ok(engine.removes_ranges())
    }
}

/// Keys of the ranges that a commit removes key by key, as of a snapshot.
pub(crate) struct ListedRanges {
    /// Registered as a reader of the ranges until the commit is done.
    view: RangeView,
    /// Keys, each with the number of its keyspace.
    keys: Vec<(usize, Vec<u8>)>,
    reads: Vec<RangeRead>,
}

impl ListedRanges {
    /// Lists the keys of `ranges`, each with the number of its keyspace in `states`.
    ///
    /// # Errors
    ///
    /// Returns [`Error::TooLarge`] if the removals do not fit into a commit, and the read errors.
    pub(crate) fn list(
        database: &OpenDatabase,
        states: &[Arc<KeyspaceState>],
        ranges: &[(usize, &RemovedRange)],
    ) -> Result<ListedRanges> {
        let view = RangeView::new(Arc::clone(database.store()))?;
        let (mut keys, mut reads, mut bytes) = (Vec::new(), Vec::new(), 0);
        for (number, range) in ranges {
            let keyspace = &states[*number];
            let mut cursor =
                keyspace.engine()?.cursor(view.view().seq(), range.bounds(), Projection::Keys)?;
            while cursor.next()? {
                let key = cursor.key();
                bytes += key.len() + RECORD_OVERHEAD;
                if bytes > MAX_BATCH {
                    let (got, max) = (bytes as u64, MAX_BATCH as u64);
                    return Err(Error::TooLarge { object: "batch", got, max });
                }
                keys.push((*number, key.to_vec()));
            }
            drop(cursor);
            reads.push(RangeRead { keyspace: Arc::clone(keyspace), bounds: range.bounds() });
        }
        Ok(ListedRanges { view, keys, reads })
    }

    /// Returns the snapshot and the ranges, for the check of the commit.
    pub(crate) fn reads(&self) -> (Seq, &[RangeRead]) {
        (self.view.view().seq(), &self.reads)
    }

    /// Returns the listed keys, each with the number of its keyspace.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.keys.iter().map(|(number, key)| (*number, &key[..]))
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Bound;

    use super::*;

    fn range(low: Bound<&[u8]>, high: Bound<&[u8]>) -> Option<RemovedRange> {
        RemovedRange::new(&Bounds { low: low.map(<[u8]>::to_vec), high: high.map(<[u8]>::to_vec) })
    }

    #[test]
    fn a_range_contains_the_keys_of_its_bounds() {
        let keys: [&[u8]; 7] = [b"", b"\0", b"a", b"a\0", b"a\0\0", b"b", &[0xff; 8]];
        let bounds = |key| [Bound::Included(key), Bound::Excluded(key), Bound::Unbounded];
        for low in keys.into_iter().flat_map(bounds) {
            for high in keys.into_iter().flat_map(bounds) {
                let removed = range(low, high);
                let both = Bounds { low: low.map(<[u8]>::to_vec), high: high.map(<[u8]>::to_vec) };
                for key in keys {
                    let is_in = removed.as_ref().is_some_and(|removed| removed.contains(key));
                    assert_eq!(is_in, !both.is_empty() && both.contains(key), "{low:?} {high:?} {key:?}");
                }
            }
        }
        let long = vec![b'a'; MAX_RANGE_END + 5];
        let removed = range(Bound::Excluded(&long), Bound::Unbounded).unwrap();
        assert!(!removed.contains(&long[..MAX_RANGE_END - 1]) && removed.contains(b"b"));
        assert!(range(Bound::Included(&long), Bound::Included(&long)).is_none(), "no key is so long");
    }
}
