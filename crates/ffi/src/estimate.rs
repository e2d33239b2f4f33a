//! # Estimates: the approximate number and size of the pairs in a range

use std::mem::MaybeUninit;

use sheaf::RangeEstimate;

use crate::boundary::call;
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::sheaf_bytes;
use crate::keyspace::{sheaf_keyspace, writable};
use crate::write::bounds;

/// Estimates the number of pairs with keys from `start` (included; NULL: the first key) to `end`
/// (excluded; NULL: all following keys), and the bytes of their keys and values as they are stored.
/// `pairs` and `bytes` may be NULL. The cost does not grow with the range. A range of at most about
/// 250 pairs is counted; otherwise the number is usually off by less than a quarter. Needs an
/// ordered engine, unless `start` and `end` are NULL. Not for keyspaces of snapshots
/// (`SHEAF_READ_ONLY`): engines estimate the newest state.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_estimate_range(
    keyspace: Option<&sheaf_keyspace>,
    start: Option<&sheaf_bytes<'_>>,
    end: Option<&sheaf_bytes<'_>>,
    pairs: Option<&mut MaybeUninit<u64>>,
    bytes: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        write(writable(keyspace)?.estimate_range(bounds(start, end)?)?, pairs, bytes);
        Ok(())
    })
}

/// Estimates the number and size of the pairs with keys that start with `prefix`, like
/// `sheaf_estimate_range`. Needs an ordered engine, unless the prefix is empty.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_estimate_prefix(
    keyspace: Option<&sheaf_keyspace>,
    prefix: sheaf_bytes<'_>,
    pairs: Option<&mut MaybeUninit<u64>>,
    bytes: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        write(writable(keyspace)?.estimate_prefix(prefix.get("prefix")?)?, pairs, bytes);
        Ok(())
    })
}

/// Writes an estimate to the places that the caller passes.
fn write(
    estimate: RangeEstimate,
    pairs: Option<&mut MaybeUninit<u64>>,
    bytes: Option<&mut MaybeUninit<u64>>,
) {
    if let Some(pairs) = pairs {
        pairs.write(estimate.pairs);
    }
    if let Some(bytes) = bytes {
        bytes.write(estimate.bytes);
    }
}
