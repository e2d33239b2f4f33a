//! # Preparation of batches: prefetches, and operations that are prepared again

use std::sync::Arc;

use smallvec::SmallVec;

use super::CommitWrite;
use super::encode::{EncodedCommit, encode_writes};
use sheaf_engine::contract::{Action, HashedKey};
use sheaf_log::segment::Address;
use sheaf_platform::error::Result;

/// Operations of a batch that are looked up together.
pub(super) const PREFETCH_GROUP: usize = 16;

/// Number of operations by which the prefetch for an apply precedes it.
pub(super) const APPLY_AHEAD: usize = 8;

/// Prefetches the memory that the apply of `write` will use.
#[inline]
pub(super) fn prefetch_apply(write: &mut CommitWrite<'_>) {
    if write.op.address != Address::NONE
        && let Ok(engine) = write.keyspace.engine()
    {
        engine.prefetch_apply(&mut write.op);
    }
}

/// Prepares the operations at the indexes `outdated` again. Encodes the commit again if the
/// preparation of one changed. Returns the index of an operation that expects another version of
/// its key, if there is one.
#[cold]
pub(super) fn reprepare(
    writes: &mut [CommitWrite<'_>],
    encoded: &mut EncodedCommit,
    outdated: &[usize],
) -> Result<Option<usize>> {
    let mut is_changed = false;
    for index in outdated {
        let write = &mut writes[*index];
        if let Some(check) = write.check
            && write.prepare_check(check)?
        {
            continue;
        }
        if matches!(write.op.action, Action::Expect) {
            return Ok(Some(*index));
        }
        let need = write.keyspace.engine()?.prepare(&mut write.op)?;
        is_changed |= need != encoded.preparations[*index];
        encoded.preparations[*index] = need;
    }
    if is_changed {
        encode_writes(writes, encoded);
    }
    Ok(None)
}

/// Prefetches the index entries that the engines need, for several operations at once, and stores
/// the hashes of the keys.
#[inline]
pub(super) fn prefetch(writes: &mut [CommitWrite<'_>]) -> Result<()> {
    for run in writes.chunk_by_mut(|a, b| Arc::ptr_eq(a.keyspace, b.keyspace)) {
        let engine = run[0].keyspace.engine()?;
        let hashed_keys: SmallVec<[HashedKey<'_>; PREFETCH_GROUP]> =
            run.iter().map(|write| engine.hashed_key(write.op.key)).collect();
        if run.len() > 1 {
            engine.prefetch(&hashed_keys, true);
        }
        for (write, hashed_key) in run.iter_mut().zip(hashed_keys) {
            write.op.hash = Some(hashed_key.hash);
        }
    }
    Ok(())
}
