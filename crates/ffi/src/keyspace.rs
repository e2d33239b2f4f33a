//! # Keyspaces: handles, properties, and maintenance
//!
//! A handle is a keyspace of the database, or one of a snapshot. Both have the reading functions.

use std::mem::MaybeUninit;

use sheaf::{Keyspace, KeyspaceSnapshot};

use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, Outcome, call, given};

/// A map from bytes to bytes: a keyspace of the database, or one of a snapshot.
pub struct sheaf_keyspace(pub(crate) Source);

/// Keyspace that a handle reads.
pub(crate) enum Source {
    Live(Keyspace),
    Snapshot(KeyspaceSnapshot),
}

impl sheaf_keyspace {
    pub(crate) fn handle(keyspace: Keyspace) -> *mut sheaf_keyspace {
        Box::into_raw(Box::new(sheaf_keyspace(Source::Live(keyspace))))
    }

    pub(crate) fn snapshot_handle(keyspace: KeyspaceSnapshot) -> *mut sheaf_keyspace {
        Box::into_raw(Box::new(sheaf_keyspace(Source::Snapshot(keyspace))))
    }
}

/// Returns the keyspace to read.
#[inline]
pub(crate) fn readable(keyspace: Option<&sheaf_keyspace>) -> Outcome<&Source> {
    Ok(&given(keyspace, "keyspace")?.0)
}

/// Returns the keyspace to write to, which must not be one of a snapshot.
#[inline]
pub(crate) fn writable(keyspace: Option<&sheaf_keyspace>) -> Outcome<&Keyspace> {
    match readable(keyspace)? {
        Source::Live(keyspace) => Ok(keyspace),
        Source::Snapshot(_) => Err(sheaf::Error::ReadOnly.into()),
    }
}

/// Frees a keyspace handle. Iterators, streams and batches that use the keyspace stay usable. NULL
/// is allowed.
///
/// Threads: any. No other call may use this handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_free(keyspace: Option<Box<sheaf_keyspace>>) {
    boundary::release(keyspace);
}

/// Returns the name of the keyspace. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_name(
    keyspace: Option<&sheaf_keyspace>,
    name: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let name = handle_out(name, "name")?;
        name.write(sheaf_value::handle(writable(keyspace)?.name()));
        Ok(())
    })
}

/// Gives the keyspace another name, durably. Returns `SHEAF_KEYSPACE_EXISTS` if there is a keyspace
/// with this name. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_rename(
    keyspace: Option<&sheaf_keyspace>,
    name: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.rename(name.text("name")?)?))
}

/// Returns the properties of the keyspace as a JSON object: `name`, `engine`, `options` (those that
/// differ from the defaults) and `ordered`. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_properties(
    keyspace: Option<&sheaf_keyspace>,
    properties: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let properties = handle_out(properties, "properties")?;
        let keyspace = writable(keyspace)?;
        properties.write(json::handle(&serde_json::json!({
            "name": keyspace.name(),
            "engine": keyspace.engine(),
            "options": json::engine_options(&keyspace.options()),
            "ordered": keyspace.capabilities()?.ordered,
        })));
        Ok(())
    })
}

/// Returns the statistics of the keyspace as a JSON object: `keys`, `index_bytes`,
/// `pinned_versions`, `encoded_raw_bytes`, `encoded_bytes`, `disk_bytes`, `counters` and
/// `workload`. Some engines count all keys. Not for keyspaces of snapshots (`SHEAF_READ_ONLY`).
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_stats(
    keyspace: Option<&sheaf_keyspace>,
    stats: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let stats = handle_out(stats, "stats")?;
        let keyspace = writable(keyspace)?;
        let mut all = json::engine_stats(&keyspace.stats()?);
        all["disk_bytes"] = keyspace.disk_bytes()?.into();
        all["counters"] = json::counters(&keyspace.counters()?);
        all["workload"] = json::workload(&keyspace.workload()?);
        stats.write(json::handle(&all));
        Ok(())
    })
}

/// Sets the workload statistics of the keyspace to zero.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_reset_workload(
    keyspace: Option<&sheaf_keyspace>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(writable(keyspace)?.reset_workload()?))
}

/// Runs all maintenance that frees disk space or speeds up reads, in the calling thread. Writes a
/// report as a JSON object to `report`, unless that is NULL: `rewritten_pairs`, `rewritten_bytes`
/// and `skipped_pairs`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_compact(
    keyspace: Option<&sheaf_keyspace>,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let done = writable(keyspace)?.compact();
        json::write_report(report, done.map(|done| json::compaction(&done)))
    })
}
