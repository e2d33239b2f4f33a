//! # Copy: pairs of a keyspace, as of a view, into another one
//!
//! ## Picture
//!
//! ```text
//!  FullCopy             all pairs in the cursor's order; if values may be large: get for each key
//!  SortedCopy           scan all keys -> keep the lowest that fit, sort -> get each -> repeat
//!  ChangedCopy::Keys    get each changed key: put, or remove
//!  ChangedCopy::Marked  the same for all keys of source and target that are marked
//! ```
//!
//! Keys that a bulk load wrote into the target before (`LoadedPairs`) are skipped everywhere.
//!
//! ## Costs
//!
//! One scan. A sorted copy scans the keys once for each part that fits into its memory limit.

use std::sync::Arc;

use crate::keyspace::change_tracker::HashMarks;
use crate::keyspace::ingest::IngestWriter;
use crate::{ConversionProgress, KeyspaceState, OwnedCursor, View};
use sheaf_engine::contract::{Bounds, Cursor, Projection};
use sheaf_log::blob_reader::{OpenBlob, StoredValue};
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;

/// Estimated bytes of a collected key in addition to the key.
const ENTRY_OVERHEAD: usize = 32;
/// The keys of a pass may take the memory budget divided by this.
const SORT_BUDGET_DIVISOR: u64 = 8;
/// Maximum number of passes. A keyspace with more keys is committed in the source's order: more
/// scans would cost more than the journal.
const MAX_SORT_PASSES: usize = 4;

/// Pairs that a bulk load wrote into the target before the copy: they win over those of the source.
///
/// The view is older than the first pair that is copied, so the target as of this view has exactly
/// the loaded keys.
pub(crate) struct LoadedPairs {
    pub(crate) keyspace: Arc<KeyspaceState>,
    pub(crate) view: View,
    /// Smallest and largest key.
    pub(crate) ends: (Box<[u8]>, Box<[u8]>),
}

impl LoadedPairs {
    fn contains(&self, key: &[u8]) -> Result<bool> {
        let is_between = *self.ends.0 <= *key && *key <= *self.ends.1;
        Ok(is_between && self.keyspace.engine()?.contains(self.view.seq(), key)?)
    }
}

/// Keyspace as of a view, which the caller keeps.
pub(crate) struct CopySource<'a> {
    pub(crate) keyspace: &'a Arc<KeyspaceState>,
    pub(crate) at: Seq,
    /// Pairs with these keys are not copied.
    pub(crate) loaded: Option<&'a LoadedPairs>,
}

impl CopySource<'_> {
    /// Returns true if the pairs of the source with this key must not change the target.
    fn is_loaded(&self, key: &[u8]) -> Result<bool> {
        self.loaded.map_or(Ok(false), |loaded| loaded.contains(key))
    }

    pub(crate) fn cursor(&self, projection: Projection) -> Result<Box<dyn Cursor>> {
        Ok(Box::new(OwnedCursor::open_stored(
            Arc::<KeyspaceState>::clone(self.keyspace),
            self.at,
            Bounds::all(),
            projection,
        )?))
    }

    /// Returns true if a scan may find values that are too large for memory.
    fn may_have_blobs(&self) -> Result<bool> {
        let engine = self.keyspace.engine()?;
        let mut blobs = Vec::new();
        engine.blobs(&mut blobs)?;
        Ok(engine.takes_blob_files() || !blobs.is_empty())
    }

    /// Returns the bytes of the value of `key`.
    pub(crate) fn value_len(&self, key: &[u8]) -> Result<u64> {
        let mut len = 0;
        self.keyspace.engine()?.get_stored(self.at, key, &mut |stored| {
            len = match stored {
                StoredValue::Bytes(found) => found.len() as u64,
                StoredValue::Blob(found) => found.len(),
            };
        })?;
        Ok(len)
    }

    /// Copies the value of `key`. Returns false if there is none.
    fn copy(&self, key: &[u8], to: &mut IngestWriter, done: &mut ConversionProgress) -> Result<bool> {
        let (mut bytes, mut file): (Option<Vec<u8>>, Option<OpenBlob>) = (None, None);
        self.keyspace.engine()?.get_stored(self.at, key, &mut |stored| match stored {
            StoredValue::Bytes(found) => bytes = Some(found.to_vec()),
            StoredValue::Blob(found) => file = Some(found),
        })?;
        let (len, stored) = match (&bytes, file) {
            (_, Some(file)) => (file.len(), StoredValue::Blob(file)),
            (Some(bytes), None) => (bytes.len() as u64, StoredValue::Bytes(bytes)),
            (None, None) => return Ok(false),
        };
        to.put_copy(key, stored)?;
        done.copied_pairs += 1;
        done.bytes += key.len() as u64 + len;
        Ok(true)
    }
}

/// Copy of all pairs in the order of the cursor.
pub(crate) struct FullCopy {
    cursor: Box<dyn Cursor>,
    projection: Projection,
}

impl FullCopy {
    pub(crate) fn new(source: &CopySource<'_>) -> Result<FullCopy> {
        let projection = if source.may_have_blobs()? { Projection::Keys } else { Projection::Pairs };
        Ok(FullCopy { cursor: source.cursor(projection)?, projection })
    }

    /// Copies the next `count` pairs. Returns false at the end.
    pub(crate) fn step(
        &mut self,
        source: &CopySource<'_>,
        count: usize,
        to: &mut IngestWriter,
        done: &mut ConversionProgress,
    ) -> Result<bool> {
        for _ in 0..count {
            if !self.cursor.next()? {
                return Ok(false);
            }
            let key = self.cursor.key();
            if source.is_loaded(key)? {
                continue;
            }
            match self.projection {
                Projection::Pairs => {
                    let value = self.cursor.value();
                    to.put_copy(key, StoredValue::Bytes(value))?;
                    done.copied_pairs += 1;
                    done.bytes += (key.len() + value.len()) as u64;
                }
                Projection::Keys => drop(source.copy(key, to, done)?),
            }
        }
        Ok(true)
    }
}

/// Copy of all pairs in the order of keys.
pub(crate) struct SortedCopy {
    cursor: Box<dyn Cursor>,
    /// Last key of the previous pass.
    lower_bound: Option<Box<[u8]>>,
    keys: Vec<Box<[u8]>>,
    bytes: usize,
    limit: usize,
    /// Lowest key that did not fit: this key and all above it are left to the next pass.
    upper_bound: Option<Box<[u8]>>,
    /// Total bytes of all keys seen.
    total: usize,
    /// After a scan: the rest of the collected keys, in order.
    sorted: Option<std::vec::IntoIter<Box<[u8]>>>,
}

/// Result of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SortedCopyStep {
    /// There is more to do.
    More,
    /// Everything was copied.
    All,
    /// There are too many keys to sort.
    TooMany,
}

impl SortedCopy {
    pub(crate) fn new(source: &CopySource<'_>, tiny: bool, budget: u64) -> Result<SortedCopy> {
        let limit = match tiny {
            true => 60 * ENTRY_OVERHEAD,
            false => usize::try_from(budget / SORT_BUDGET_DIVISOR).unwrap_or(usize::MAX),
        };
        let cursor = source.cursor(Projection::Keys)?;
        Ok(SortedCopy {
            cursor,
            lower_bound: None,
            keys: Vec::new(),
            bytes: 0,
            limit,
            upper_bound: None,
            total: 0,
            sorted: None,
        })
    }

    /// Returns the memory in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.bytes as u64
    }

    /// Examines the next `count` keys, or copies as many collected ones.
    pub(crate) fn step(
        &mut self,
        source: &CopySource<'_>,
        count: usize,
        to: &mut IngestWriter,
        done: &mut ConversionProgress,
    ) -> Result<SortedCopyStep> {
        if let Some(sorted) = &mut self.sorted {
            for key in sorted.by_ref().take(count) {
                source.copy(&key, to, done)?;
                self.lower_bound = Some(key);
            }
            return if sorted.as_slice().is_empty() {
                self.next_pass(source)
            } else {
                Ok(SortedCopyStep::More)
            };
        }
        for _ in 0..count {
            if !self.cursor.next()? {
                return Ok(self.finish_scan());
            }
            let key = self.cursor.key();
            self.total += key.len() + ENTRY_OVERHEAD;
            let is_wanted = self.lower_bound.as_deref().is_none_or(|above| key > above)
                && self.upper_bound.as_deref().is_none_or(|below| key < below);
            if is_wanted {
                self.bytes += key.len() + ENTRY_OVERHEAD;
                self.keys.push(key.into());
                if self.bytes > self.limit {
                    self.keep_lower_half();
                }
            }
        }
        Ok(SortedCopyStep::More)
    }

    /// Keeps the lower half of the keys, if there are at least two.
    fn keep_lower_half(&mut self) {
        let half = self.keys.len() / 2;
        if half > 0 {
            self.keys.select_nth_unstable(half);
            self.upper_bound = Some(self.keys.swap_remove(half));
            self.keys.truncate(half);
        }
        self.bytes = self.keys.iter().map(|key| key.len() + ENTRY_OVERHEAD).sum();
    }

    /// Ends a scan: sorts the collected keys.
    fn finish_scan(&mut self) -> SortedCopyStep {
        if self.lower_bound.is_none() && self.total / 2 > MAX_SORT_PASSES * self.limit {
            return SortedCopyStep::TooMany;
        }
        self.keys.sort_unstable();
        self.sorted = Some(std::mem::take(&mut self.keys).into_iter());
        SortedCopyStep::More
    }

    /// Starts the next scan, if keys did not fit into this pass.
    fn next_pass(&mut self, source: &CopySource<'_>) -> Result<SortedCopyStep> {
        if self.upper_bound.take().is_none() {
            return Ok(SortedCopyStep::All);
        }
        (self.sorted, self.bytes) = (None, 0);
        self.cursor = source.cursor(Projection::Keys)?;
        Ok(SortedCopyStep::More)
    }
}

/// Copy of the keys that changed since the last pass.
pub(crate) enum ChangedCopy {
    /// Set of changed keys.
    Keys(std::collections::hash_set::IntoIter<Box<[u8]>>),
    /// Marked keys of the source, then those of the target.
    Marked(HashMarks, Box<dyn Cursor>, bool),
}

impl ChangedCopy {
    /// Copies the next `count` keys. Returns false at the end. `target` is the keyspace that is
    /// being filled, as of a view that contains all earlier passes.
    pub(crate) fn step(
        &mut self,
        source: &CopySource<'_>,
        target: &CopySource<'_>,
        count: usize,
        to: &mut IngestWriter,
        done: &mut ConversionProgress,
    ) -> Result<bool> {
        for _ in 0..count {
            match self {
                ChangedCopy::Keys(keys) => {
                    let Some(key) = keys.next() else { return Ok(false) };
                    if !source.is_loaded(&key)? && !source.copy(&key, to, done)? {
                        to.remove(&key)?;
                    }
                }
                ChangedCopy::Marked(marks, cursor, is_target) => {
                    if !cursor.next()? {
                        if *is_target {
                            return Ok(false);
                        }
                        to.flush()?; // the scan of the target may find the same key again
                        (*cursor, *is_target) = (target.cursor(Projection::Keys)?, true);
                        continue;
                    }
                    let key = cursor.key();
                    if !marks.contains(key) || source.is_loaded(key)? {
                        continue;
                    }
                    let is_there = match is_target {
                        false => source.copy(key, to, done)?,
                        true => source.keyspace.engine()?.contains(source.at, key)?,
                    };
                    if !is_there {
                        to.remove(key)?;
                    }
                }
            }
        }
        Ok(true)
    }
}
