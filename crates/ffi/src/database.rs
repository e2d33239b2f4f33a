//! # Database: opening, closing, keyspaces, and durability

use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;

use sheaf::{Database, OpenOutcome};

use crate::batch::sheaf_batch;
use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, call, found, given};
use crate::keyspace::sheaf_keyspace;
use crate::keyspace_options::sheaf_keyspace_options;
use crate::options::sheaf_options;
use crate::owner::sheaf_owner;
use crate::snapshot::sheaf_snapshot;

/// An open database.
pub struct sheaf_db(pub(crate) Database);

fn new_handle(database: Database) -> *mut sheaf_db {
    Box::into_raw(Box::new(sheaf_db(database)))
}

/// Opens the database in the directory `path` (any bytes except NUL). Creates it unless the options
/// forbid that. `options` may be NULL for the defaults. The database must be freed with
/// `sheaf_db_free`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_open(
    path: sheaf_bytes<'_>,
    options: Option<&sheaf_options>,
    db: Option<&mut MaybeUninit<*mut sheaf_db>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let db = handle_out(db, "db")?;
        let builder = sheaf_options::builder(options)?;
        db.write(new_handle(builder.open(path.path("path")?)?));
        Ok(())
    })
}

/// Opens the database like `sheaf_open`, or connects to the process that has it open. Writes a
/// handle to `db` or to `owner`, and NULL to the other.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_open_or_connect(
    path: sheaf_bytes<'_>,
    options: Option<&sheaf_options>,
    db: Option<&mut MaybeUninit<*mut sheaf_db>>,
    owner: Option<&mut MaybeUninit<*mut sheaf_owner>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let db = handle_out(db, "db")?;
        let owner = handle_out(owner, "owner")?;
        match sheaf_options::builder(options)?.open_or_connect(path.path("path")?)? {
            OpenOutcome::Database(database) => _ = db.write(new_handle(database)),
            OpenOutcome::Owner(connected) => _ = owner.write(sheaf_owner::handle(connected)),
        }
        Ok(())
    })
}

/// Makes all commits durable, writes a checkpoint, and closes the database. All handles of the
/// database stay allocated: their calls return `SHEAF_CLOSED`, and they must still be freed. The
/// database is closed even if the call returns an error. A second call returns `SHEAF_CLOSED`.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_close(
    db: Option<&sheaf_db>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(db, "db")?.0.clone().close()?))
}

/// Frees the handle. The database closes when its last handle is freed: keyspaces, snapshots,
/// iterators, batches, tickets, streams and loaders are handles too. Errors of this closing are
/// lost; `sheaf_db_close` returns them. NULL is allowed.
///
/// Threads: any. No other call may use this handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_free(db: Option<Box<sheaf_db>>) {
    boundary::release(db);
}

/// Returns the directory of the database.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_path(
    db: Option<&sheaf_db>,
    path: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let path = handle_out(path, "path")?;
        path.write(sheaf_value::handle(given(db, "db")?.0.path().as_os_str().as_bytes()));
        Ok(())
    })
}

/// Opens the keyspace `name` (UTF-8, 1 to 255 bytes); creates it durably if it does not exist.
/// `options` may be NULL. An existing keyspace must match the options that are set.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_keyspace(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    options: Option<&sheaf_keyspace_options>,
    keyspace: Option<&mut MaybeUninit<*mut sheaf_keyspace>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspace = handle_out(keyspace, "keyspace")?;
        let options = sheaf_keyspace_options::get(options)?;
        let opened = given(db, "db")?.0.keyspace(name.text("name")?, options)?;
        keyspace.write(sheaf_keyspace::handle(opened));
        Ok(())
    })
}

/// Creates the keyspace `name` durably. Returns `SHEAF_KEYSPACE_EXISTS` if there is one.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_create_keyspace(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    options: Option<&sheaf_keyspace_options>,
    keyspace: Option<&mut MaybeUninit<*mut sheaf_keyspace>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspace = handle_out(keyspace, "keyspace")?;
        let options = sheaf_keyspace_options::get(options)?;
        let created = given(db, "db")?.0.create_keyspace(name.text("name")?, options)?;
        keyspace.write(sheaf_keyspace::handle(created));
        Ok(())
    })
}

/// Opens the keyspace `name`. Returns `SHEAF_NOT_FOUND` if it does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_open_keyspace(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    keyspace: Option<&mut MaybeUninit<*mut sheaf_keyspace>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspace = handle_out(keyspace, "keyspace")?;
        let opened = found(given(db, "db")?.0.open_keyspace(name.text("name")?)?)?;
        keyspace.write(sheaf_keyspace::handle(opened));
        Ok(())
    })
}

/// Drops the keyspace `name` durably. Returns `SHEAF_NOT_FOUND` if it does not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_drop_keyspace(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let is_dropped = given(db, "db")?.0.drop_keyspace(name.text("name")?)?;
        found(is_dropped.then_some(()))
    })
}

/// Returns the keyspaces as a JSON array of objects with `name`, `engine`, `options` and `damage`,
/// sorted by name.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_keyspaces(
    db: Option<&sheaf_db>,
    keyspaces: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let keyspaces = handle_out(keyspaces, "keyspaces")?;
        let infos = given(db, "db")?.0.keyspaces();
        keyspaces.write(json::handle(&infos.iter().map(json::keyspace_info).collect()));
        Ok(())
    })
}

/// Creates an empty batch for any keyspaces of the database.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_batch(
    db: Option<&sheaf_db>,
    batch: Option<&mut MaybeUninit<*mut sheaf_batch>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let batch = handle_out(batch, "batch")?;
        batch.write(sheaf_batch::handle(&given(db, "db")?.0));
        Ok(())
    })
}

/// Creates a snapshot of all keyspaces as of now. Reads nothing.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_snapshot(
    db: Option<&sheaf_db>,
    snapshot: Option<&mut MaybeUninit<*mut sheaf_snapshot>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let snapshot = handle_out(snapshot, "snapshot")?;
        let taken = given(db, "db")?.0.snapshot()?;
        snapshot.write(Box::into_raw(Box::new(sheaf_snapshot(taken))));
        Ok(())
    })
}

/// Waits until all commits that were acknowledged before the call are on the device.
///
/// Threads: any, also at the same time; concurrent calls share a sync.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_persist(
    db: Option<&sheaf_db>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(db, "db")?.0.persist()?))
}

/// Returns the number of the newest commit over all keyspaces; 0 before the first one, and if `db`
/// is NULL.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_seq(db: Option<&sheaf_db>) -> u64 {
    db.map_or(0, |db| db.0.seq())
}

/// Waits until no background work is due. The calling thread takes part in the work.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_quiesce(
    db: Option<&sheaf_db>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || Ok(given(db, "db")?.0.quiesce()?))
}
