//! # Bulk load: sorted pairs as a new keyspace, or added to a keyspace

use std::ffi::c_void;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::time::{Duration, UNIX_EPOCH};

use sheaf::{BulkLoadOptions, BulkLoader, Expiry};

use crate::boundary::callback::{report as progress_of, sheaf_progress_fn, sheaf_source_fn};
use crate::boundary::code::{sheaf_code, sheaf_load_mode};
use crate::boundary::error::sheaf_error;
use crate::boundary::json;
use crate::boundary::memory::{handle_out, sheaf_bytes, sheaf_value};
use crate::boundary::{self, Exclusive, Failure, Outcome, call, given, invalid};
use crate::database::sheaf_db;
use crate::maintenance::conversion_step;

/// Options of a bulk load.
pub struct sheaf_loader_options(Exclusive<BulkLoadOptions>);

/// Returns the options with the mode `mode`.
fn with_mode(options: BulkLoadOptions, mode: i32) -> Outcome<BulkLoadOptions> {
    let is = |known: sheaf_load_mode| mode == known as i32;
    if is(sheaf_load_mode::SHEAF_LOAD_EMPTY) {
        Ok(options)
    } else if is(sheaf_load_mode::SHEAF_LOAD_REPLACE) {
        Ok(options.replace(true))
    } else if is(sheaf_load_mode::SHEAF_LOAD_KEEP) {
        Ok(options.keep(true))
    } else {
        Err(invalid("mode", &format!("there is no mode {mode}")))
    }
}

/// Creates options of a bulk load. An empty `engine` selects the engine of an existing keyspace,
/// and `flex` for a new one. `mode` is one of `SHEAF_LOAD_*` and decides about the pairs of an
/// existing keyspace.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_options_create(
    engine: sheaf_bytes<'_>,
    mode: i32,
    options: Option<&mut MaybeUninit<*mut sheaf_loader_options>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let options = handle_out(options, "options")?;
        let set = with_mode(BulkLoadOptions::default(), mode)?;
        let set = match engine.text("engine")? {
            "" => set,
            engine => set.engine(engine),
        };
        options.write(Box::into_raw(Box::new(sheaf_loader_options(Exclusive::new(set)))));
        Ok(())
    })
}

/// Sets an option of the engine.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_options_set(
    options: Option<&sheaf_loader_options>,
    name: sheaf_bytes<'_>,
    value: u64,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut options = given(options, "options")?.0.lock("loader options")?;
        *options = options.clone().option(name.text("name")?, value);
        Ok(())
    })
}

/// Frees options of a bulk load. NULL is allowed.
///
/// Threads: any. No other call may use the options.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_options_free(options: Option<Box<sheaf_loader_options>>) {
    boundary::release(options);
}

/// A running bulk load. Nothing is visible before its end.
pub struct sheaf_loader(Exclusive<Option<BulkLoader>>);

#[cold]
fn ended() -> Failure {
    invalid("loader", "it was finished")
}

/// Begins a bulk load of the keyspace `name` with pairs in ascending key order. `options` may be
/// NULL; the keyspace must then be empty or not exist.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_db_bulk_load(
    db: Option<&sheaf_db>,
    name: sheaf_bytes<'_>,
    options: Option<&sheaf_loader_options>,
    loader: Option<&mut MaybeUninit<*mut sheaf_loader>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let loader = handle_out(loader, "loader")?;
        let options = match options {
            Some(options) => options.0.lock("loader options")?.clone(),
            None => BulkLoadOptions::default(),
        };
        let begun = given(db, "db")?.0.bulk_load(name.text("name")?, options)?;
        loader.write(Box::into_raw(Box::new(sheaf_loader(Exclusive::new(Some(begun))))));
        Ok(())
    })
}

/// Adds the next pair. Returns `SHEAF_INVALID_ARGUMENT` if the key is not above the previous one;
/// the load can continue after that, and after `SHEAF_TOO_LARGE`.
///
/// Threads: one at a time for each loader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_push(
    loader: Option<&sheaf_loader>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut loader = given(loader, "loader")?.0.lock("loader")?;
        let loader = loader.as_mut().ok_or_else(ended)?;
        Ok(loader.push(key.get("key")?, value.get("value")?)?)
    })
}

/// Adds the next pair like `sheaf_loader_push`. It expires at `expires_at_ms`, in milliseconds
/// since 1970; 0 means never. The options of the load must set `expiry` to 1.
///
/// Threads: one at a time for each loader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_push_with_expiry(
    loader: Option<&sheaf_loader>,
    key: sheaf_bytes<'_>,
    value: sheaf_bytes<'_>,
    expires_at_ms: u64,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let expiry = match expires_at_ms {
            0 => Expiry::Never,
            ms => match UNIX_EPOCH.checked_add(Duration::from_millis(ms)) {
                Some(time) => Expiry::At(time),
                None => return Err(invalid("expires_at_ms", &format!("there is no time {ms}"))),
            },
        };
        let mut loader = given(loader, "loader")?.0.lock("loader")?;
        let loader = loader.as_mut().ok_or_else(ended)?;
        Ok(loader.push_with_expiry(key.get("key")?, value.get("value")?, expiry)?)
    })
}

/// Bytes that a callback returns.
struct CallbackSource {
    read: extern "C" fn(context: *mut c_void, buffer: *mut c_void, size: usize) -> usize,
    context: *mut c_void,
}

impl Read for CallbackSource {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = (self.read)(self.context, buffer.as_mut_ptr().cast(), buffer.len());
        if got > buffer.len() { Err(sheaf::Error::Cancelled.into()) } else { Ok(got) }
    }
}

/// Adds the next pair with the value that `source` returns in parts, and writes its size to
/// `value_size` (may be NULL). After an error of `source` the call returns `SHEAF_CANCELLED`, and
/// the loader must be freed.
///
/// Threads: one at a time for each loader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_push_source(
    loader: Option<&sheaf_loader>,
    key: sheaf_bytes<'_>,
    source: sheaf_source_fn,
    context: *mut c_void,
    value_size: Option<&mut MaybeUninit<u64>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let value_size = value_size.map(|size| size.write(0));
        let mut source = CallbackSource { read: given(source, "source")?, context };
        let mut loader = given(loader, "loader")?.0.lock("loader")?;
        let loader = loader.as_mut().ok_or_else(ended)?;
        let pushed = loader.push_reader(key.get("key")?, &mut source)?;
        if let Some(value_size) = value_size {
            *value_size = pushed;
        }
        Ok(())
    })
}

/// Returns the counts of the pairs added so far as a JSON object with `pairs`, `bytes` and
/// `is_direct`.
///
/// Threads: one at a time for each loader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_progress(
    loader: Option<&sheaf_loader>,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let report = handle_out(report, "report")?;
        let loader = given(loader, "loader")?.0.lock("loader")?;
        let progress = loader.as_ref().ok_or_else(ended)?.progress();
        report.write(json::handle(&json::bulk_load(&progress)));
        Ok(())
    })
}

/// Publishes the pairs as the keyspace, atomically and durably. `report` receives a JSON object
/// like that of `sheaf_loader_progress`, unless it is NULL. The loader accepts no more calls
/// afterwards and must be freed.
///
/// With `SHEAF_LOAD_KEEP` the call copies all pairs of the keyspace, which can be used meanwhile.
/// `progress` with `context`, unless NULL, receives the number of copied pairs and may cancel.
///
/// Threads: one at a time for each loader; any thread.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_finish(
    loader: Option<&sheaf_loader>,
    progress: sheaf_progress_fn,
    context: *mut c_void,
    report: Option<&mut MaybeUninit<*mut sheaf_value>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        // Taken out of the lock: the callback may use the handle.
        let ending = given(loader, "loader")?.0.lock("loader")?.take().ok_or_else(ended)?;
        let done = ending.finish_with(|now| {
            let (phase, counts) = conversion_step(now);
            progress_of(progress, context, phase, counts)
        });
        json::write_report(report, done.map(|done| json::bulk_load(&done)))
    })
}

/// Frees a loader. Without an end its pairs are discarded. NULL is allowed.
///
/// Threads: any. No other call may use the loader.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_loader_free(loader: Option<Box<sheaf_loader>>) {
    boundary::release(loader);
}
