//! # Snapshots: all keyspaces as of one commit

use std::mem::MaybeUninit;

use sheaf::Snapshot;

use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, call, given};
use crate::keyspace::sheaf_keyspace;

/// A read-only view of all keyspaces as of one commit. Disk space of data that is overwritten later
/// is reclaimed after the snapshot, its keyspaces and its iterators were freed.
pub struct sheaf_snapshot(pub(crate) Snapshot);

/// Returns the number of the newest commit that the snapshot shows; 0 if `snapshot` is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_snapshot_seq(snapshot: Option<&sheaf_snapshot>) -> u64 {
    snapshot.map_or(0, |snapshot| snapshot.0.seq())
}

/// Returns the names of the keyspaces in the snapshot as a JSON array.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_snapshot_keyspaces(
    snapshot: Option<&sheaf_snapshot>,
    keyspaces: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspaces = handle_out(keyspaces, "keyspaces")?;
        keyspaces.write(json::handle(&given(snapshot, "snapshot")?.0.keyspaces().into()));
        Ok(())
    })
}

/// Opens the keyspace `name` of the snapshot. All reading functions for keyspaces accept the
/// handle; functions that write return `SHEAF_READ_ONLY`. Returns `SHEAF_KEYSPACE_NOT_FOUND` if the
/// snapshot does not have the keyspace.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_snapshot_keyspace(
    snapshot: Option<&sheaf_snapshot>,
    name: sheaf_bytes<'_>,
    keyspace: Option<&mut MaybeUninit<*mut sheaf_keyspace>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspace = handle_out(keyspace, "keyspace")?;
        let shown = given(snapshot, "snapshot")?.0.keyspace(name.text("name")?)?;
        keyspace.write(sheaf_keyspace::snapshot_handle(shown));
        Ok(())
    })
}

/// Frees a snapshot. Its keyspaces and iterators stay usable. NULL is allowed.
///
/// Threads: any. No other call may use the snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_snapshot_free(snapshot: Option<Box<sheaf_snapshot>>) {
    boundary::release(snapshot);
}
