//! # Reads: lookups in the memtables and the tables
//!
//! A lookup reads the memtables first, newest first, and then the tables of the version. The state
//! stays the same during a lookup. A file may be moved between the lookup and its opening; then the
//! lookup is repeated.

use std::sync::Arc;

use sheaf_engine::contract::{Bounds, Cursor, EngineReads, HashedKey, Projection};
use sheaf_engine::range_estimate::RangeSum;
use sheaf_log::blob::BlobRef;
use sheaf_log::blob_reader::{StoredValue, ValueCache};
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use super::DelsmEngine;
use crate::files::list::ValueRef;
use crate::read::cursor::DelsmCursor;
use crate::tree::{DelsmState, Table};

/// Result of a lookup.
enum LookupResult<'a> {
    /// The value is in a memtable.
    Memtable(RecordContent<'a>),
    /// The value is in a table.
    Table(&'a Arc<Table>, ValueRef),
    /// The key was removed, or never existed.
    Absent,
}

impl DelsmEngine {
    /// Calls `with` with the version of `key` that is visible at `at` in `state`. The result from a
    /// table is valid only with the same state: a later state may have other tables, and an earlier
    /// one may lack the pack that the result names.
    #[inline]
    fn look_up<R>(
        &self,
        state: &DelsmState,
        (at, key): (Seq, &[u8]),
        guard: &Guard,
        with: impl FnOnce(LookupResult<'_>) -> Result<R>,
    ) -> Result<R> {
        let hash = self.keyspace.hash(key);
        let found = match at {
            Seq::LATEST => state.memtables.find_visible(hash, key, &self.keyspace.context, guard)?,
            at => state.memtables.find(hash, key, at, guard),
        };
        if let Some((memtable, version)) = found {
            if version.word.is_tombstone() {
                return with(LookupResult::Absent);
            }
            return memtable.content(version.word, &self.keyspace.context, guard, |content| {
                with(LookupResult::Memtable(content))
            });
        }
        match state.version.find(hash, key, at)? {
            None | Some((_, _, ValueRef::Removed)) => with(LookupResult::Absent),
            Some((table, _, what)) => with(LookupResult::Table(table, what)),
        }
    }

    /// Returns the seq of the version of `key` that is visible at `at`. Reads only the word in the
    /// memtable or the key list, but no value. If `is_revealed`, waits until the commit of an entry
    /// in a memtable is visible before the entry counts.
    pub(super) fn visible_seq(
        &self,
        at: Seq,
        key: &[u8],
        is_revealed: bool,
        guard: &Guard,
    ) -> Result<Option<Seq>> {
        let (state, hash) = (self.state(guard), self.keyspace.hash(key));
        let found = match is_revealed {
            true => state.memtables.find_visible(hash, key, &self.keyspace.context, guard)?,
            false => state.memtables.find(hash, key, at, guard),
        };
        if let Some((_, version)) = found {
            return Ok((!version.word.is_tombstone()).then_some(version.seq));
        }
        let found = state.version.find(hash, key, at)?;
        Ok(found.and_then(|(_, seq, what)| (what != ValueRef::Removed).then_some(seq)))
    }

    /// Passes the value of `key` at `at` to `found`. With `from_cache`, passes the cached bytes of
    /// a file instead of the file, if there are any.
    fn read_value(
        &self,
        at: Seq,
        key: &[u8],
        from_cache: bool,
        found: &mut dyn FnMut(StoredValue<'_>),
    ) -> Result<bool> {
        let cached = |blob: &BlobRef, found: &mut dyn FnMut(StoredValue<'_>)| {
            let bytes = if from_cache { self.keyspace.context.blob_cache.get(blob.id) } else { None };
            bytes.inspect(|bytes| found(StoredValue::Bytes(bytes))).is_some()
        };
        let mut missed = None;
        loop {
            let guard = &epoch::pin();
            let state = self.state(guard);
            // The inner error has the file that is missing, and its place.
            let answer = self.look_up(state, (at, key), guard, |what| match what {
                LookupResult::Absent => Ok(Ok(false)),
                LookupResult::Memtable(RecordContent::Put(value)) => {
                    found(StoredValue::Bytes(value));
                    Ok(Ok(true))
                }
                LookupResult::Memtable(RecordContent::Blob(blob)) if cached(&blob, found) => Ok(Ok(true)),
                LookupResult::Memtable(RecordContent::Blob(blob)) => {
                    match self.keyspace.context.blobs.open(&blob)? {
                        Some(file) => {
                            found(StoredValue::Blob(file));
                            Ok(Ok(true))
                        }
                        None => Ok(Err((0, blob.id, self.keyspace.context.blobs.missing_error(&blob)))),
                    }
                }
                LookupResult::Memtable(RecordContent::Remove | RecordContent::RemoveRange(_))
                | LookupResult::Table(_, ValueRef::Removed) => Ok(Ok(false)),
                LookupResult::Table(_, ValueRef::Packed { pack, offset, len, sum }) => {
                    let Some(pack) = state.version.packs.get(&pack) else {
                        return Err(crate::recovery::check::missing_pack_error(&self.keyspace, pack));
                    };
                    pack.read(offset, len, sum, |value| found(StoredValue::Bytes(value)))?;
                    Ok(Ok(true))
                }
                LookupResult::Table(_, ValueRef::File { blob, .. }) if cached(&blob, found) => Ok(Ok(true)),
                LookupResult::Table(table, ValueRef::File { blob, location }) => {
                    match table.open_blob(key, &blob, location)? {
                        Some(file) => {
                            found(StoredValue::Blob(file));
                            Ok(Ok(true))
                        }
                        None => Ok(Err((table.list.number() + 1, blob.id, table.missing_error(key, &blob)))),
                    }
                }
            })?;
            // A file may be moved, or removed after it was superseded: then the next lookup finds
            // the new state. A file that is missing twice in the same place is lost.
            match answer {
                Ok(is_there) => return Ok(is_there),
                Err((place, id, error)) => {
                    if missed.replace((place, id)) == Some((place, id)) {
                        return Err(error);
                    }
                }
            }
        }
    }
}

impl EngineReads for DelsmEngine {
    #[inline]
    fn hashed_key<'k>(&self, key: &'k [u8]) -> HashedKey<'k> {
        HashedKey { key, hash: self.keyspace.hash(key) }
    }

    fn get_stored(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(StoredValue<'_>)) -> Result<bool> {
        self.read_value(at, key, false, found)
    }

    fn get(&self, at: Seq, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let mut file = None;
        let is_there = self.read_value(at, key, true, &mut |stored| match stored {
            StoredValue::Bytes(bytes) => found(bytes),
            StoredValue::Blob(value) => {
                file = Some(value.with_cache(Arc::clone(&self.keyspace.context) as Arc<dyn ValueCache>))
            }
        })?;
        if let Some(file) = file {
            file.read(found)?;
        }
        Ok(is_there)
    }

    fn contains(&self, at: Seq, key: &[u8]) -> Result<bool> {
        Ok(self.visible_seq(at, key, at == Seq::LATEST, &epoch::pin())?.is_some())
    }

    fn prefetch(&self, keys: &[HashedKey<'_>], _entries: bool) {
        let guard = &epoch::pin();
        let state = self.state(guard);
        for key in keys {
            state.memtables.prefetch(key.hash, guard);
        }
    }

    fn cursor<'e>(&'e self, at: Seq, bounds: Bounds, projection: Projection) -> Result<Box<dyn Cursor + 'e>> {
        Ok(Box::new(DelsmCursor::new(self, at, bounds, projection)))
    }

    fn estimate_range(&self, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
        self.estimate(first, end)
    }

    fn len(&self) -> Result<u64> {
        self.count_keys(u64::MAX)
    }

    fn is_empty(&self) -> Result<bool> {
        Ok(self.count_keys(1)? == 0)
    }
}
