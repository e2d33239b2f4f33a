//! # Options for opening a database
//!
//! The handle collects the calls, so that it can be used for several openings.

use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::Duration;

use sheaf::{Builder, ChangeRetention, Database, Durability, Permissions, PersistenceMode, Stall};

use crate::boundary::callback::{SharedContext, sheaf_release_fn, sheaf_stall_fn};
use crate::boundary::code::{sheaf_code, sheaf_durability, sheaf_persistent_memory};
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes};
use crate::boundary::{self, Exclusive, Outcome, call, given, invalid};

type Setting = Box<dyn Fn(Builder) -> Builder + Send>;

/// Options for opening a database.
pub struct sheaf_options(Exclusive<Vec<Setting>>);

impl sheaf_options {
    /// Returns a builder with the options; with the defaults if `options` is NULL.
    pub(crate) fn builder(options: Option<&sheaf_options>) -> Outcome<Builder> {
        let Some(options) = options else { return Ok(Database::builder()) };
        let settings = options.0.lock("options")?;
        Ok(settings.iter().fold(Database::builder(), |builder, set| set(builder)))
    }

    fn set(
        options: Option<&sheaf_options>,
        setting: impl Fn(Builder) -> Builder + Send + 'static,
    ) -> sheaf_code {
        call(None, || {
            given(options, "options")?.0.lock("options")?.push(Box::new(setting));
            Ok(())
        })
    }
}

/// Returns the durability of a constant.
pub(crate) fn chosen_durability(constant: i32) -> Outcome<Durability> {
    const BUFFER: i32 = sheaf_durability::SHEAF_DURABILITY_BUFFER as i32;
    const SYNC: i32 = sheaf_durability::SHEAF_DURABILITY_SYNC as i32;
    match constant {
        BUFFER => Ok(Durability::Buffer),
        SYNC => Ok(Durability::Sync),
        other => Err(invalid("durability", &format!("{other} is not one of SHEAF_DURABILITY_*"))),
    }
}

/// Creates options with the defaults. They may be used for several openings, and freed after them.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_create(
    options: Option<&mut MaybeUninit<*mut sheaf_options>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let handle = Box::new(sheaf_options(Exclusive::new(Vec::new())));
        handle_out(options, "options")?.write(Box::into_raw(handle));
        Ok(())
    })
}

/// Frees options. NULL is allowed.
///
/// Threads: any. No other call may use the options.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_free(options: Option<Box<sheaf_options>>) {
    boundary::release(options);
}

/// Sets whether a missing database is created. Default: true. Otherwise opening it returns
/// `SHEAF_DATABASE_NOT_FOUND`.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_create(options: Option<&sheaf_options>, create: bool) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.create(create))
}

/// Sets whether the database is opened for reading only. Default: false. If another process has the
/// database open for writing, the reader attaches to it and sees a fixed snapshot.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_read_only(
    options: Option<&sheaf_options>,
    read_only: bool,
) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.read_only(read_only))
}

/// Sets whether other processes may attach through a Unix socket in the directory of the database.
/// Default: true.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_ipc(options: Option<&sheaf_options>, ipc: bool) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.ipc(ipc))
}

/// Sets the time in milliseconds that an opening waits for another process that has the database
/// open. Default: 0.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_wait(options: Option<&sheaf_options>, milliseconds: u64) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.wait(Duration::from_millis(milliseconds)))
}

/// Sets the memory budget in bytes for indexes, buffers, old versions and caches. Default: 1 GiB.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_memory(options: Option<&sheaf_options>, bytes: u64) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.memory(bytes))
}

/// Sets the modes of new files and directories, for example 0640 and 0750. Default: 0600 and 0700.
/// Opening checks the modes.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_permissions(
    options: Option<&sheaf_options>,
    file_mode: u32,
    directory_mode: u32,
) -> sheaf_code {
    sheaf_options::set(options, move |builder| {
        builder.permissions(Permissions::new(file_mode, directory_mode))
    })
}

/// Sets the number of file descriptors that the database may use; numbers below 16 count as 16.
/// Default: a quarter of the limit of the process, at most 1,024.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_open_files(
    options: Option<&sheaf_options>,
    descriptors: u32,
) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.open_files(descriptors))
}

/// Sets whether the files are in persistent memory: one of `SHEAF_PERSISTENT_MEMORY_*`.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_persistent_memory(
    options: Option<&sheaf_options>,
    mode: i32,
) -> sheaf_code {
    const OFF: i32 = sheaf_persistent_memory::SHEAF_PERSISTENT_MEMORY_OFF as i32;
    const DAX: i32 = sheaf_persistent_memory::SHEAF_PERSISTENT_MEMORY_DAX as i32;
    const SUBSTITUTE: i32 = sheaf_persistent_memory::SHEAF_PERSISTENT_MEMORY_SUBSTITUTE as i32;
    let mode = match mode {
        OFF => return sheaf_options::set(options, |builder| builder),
        DAX => PersistenceMode::Dax,
        SUBSTITUTE => PersistenceMode::Substitute,
        _ => return sheaf_code::SHEAF_INVALID_ARGUMENT,
    };
    sheaf_options::set(options, move |builder| builder.persistent_memory(mode))
}

/// Sets the default durability of commits: `SHEAF_DURABILITY_BUFFER` (default) or
/// `SHEAF_DURABILITY_SYNC`.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_durability(
    options: Option<&sheaf_options>,
    durability: i32,
) -> sheaf_code {
    match chosen_durability(durability) {
        Ok(durability) => sheaf_options::set(options, move |builder| builder.durability(durability)),
        Err(_) => sheaf_code::SHEAF_INVALID_ARGUMENT,
    }
}

/// Sets the target for the longest time in milliseconds that a buffered commit stays unsynced.
/// Default: 100. Opening refuses 0.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_sync_interval(
    options: Option<&sheaf_options>,
    milliseconds: u64,
) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.sync_interval(Duration::from_millis(milliseconds)))
}

/// Sets the number of threads for background work. Default: half of the cores, from 1 to 8.
/// Opening refuses 0.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_background_threads(
    options: Option<&sheaf_options>,
    threads: usize,
) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.background_threads(threads))
}

/// Sets the limit on the disk space of the store log, as a multiple of its live entries: 1.1 to 10,
/// default 1.6. Opening refuses other numbers.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_space_limit(options: Option<&sheaf_options>, times: f64) -> sheaf_code {
    sheaf_options::set(options, move |builder| builder.space_limit(times))
}

/// Sets the changes that the database retains for `sheaf_db_changes`: for `seconds` seconds, and at
/// most `bytes` bytes of log files beyond those that the database needs itself. With
/// `until_cursors_pass`, a change also stays until all named cursors have passed it. 0 for `bytes`
/// ends the retention. The setting is stored in the database; openings without it keep it.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_retain_changes(
    options: Option<&sheaf_options>,
    bytes: u64,
    seconds: u64,
    until_cursors_pass: bool,
) -> sheaf_code {
    sheaf_options::set(options, move |builder| {
        let retention = ChangeRetention::new(bytes, Duration::from_secs(seconds));
        let retention = if until_cursors_pass { retention.until_cursors_pass() } else { retention };
        builder.retain_changes((bytes > 0).then_some(retention))
    })
}

/// Sets a callback for waits of writers of at least `threshold_ms` milliseconds. `release` (may be
/// NULL) is called with `context` after the options were freed and all databases that were opened
/// with them are closed and freed with all their handles.
///
/// Threads: one at a time for each options handle. The callbacks may run in any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_options_set_stall_callback(
    options: Option<&sheaf_options>,
    on_stall: sheaf_stall_fn,
    context: *mut c_void,
    release: sheaf_release_fn,
    threshold_ms: u64,
) -> sheaf_code {
    let Some(on_stall) = on_stall else { return sheaf_code::SHEAF_INVALID_ARGUMENT };
    let context = Arc::new(SharedContext::new(context, release));
    sheaf_options::set(options, move |builder| {
        let context = Arc::clone(&context);
        let report = move |stall: &Stall| {
            let nanoseconds = u64::try_from(stall.duration.as_nanos()).unwrap_or(u64::MAX);
            let keyspace = stall.keyspace.as_deref().unwrap_or_default();
            let kind = sheaf_bytes::of(stall.kind.name().as_bytes());
            on_stall(context.pointer(), kind, sheaf_bytes::of(keyspace.as_bytes()), nanoseconds);
        };
        builder.on_stall(report).stall_threshold(Duration::from_millis(threshold_ms))
    })
}
