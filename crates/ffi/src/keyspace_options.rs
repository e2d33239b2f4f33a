//! # Options of a keyspace: its engine, and options of the engine

use std::mem::MaybeUninit;

use sheaf::KeyspaceOptions;

use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::{handle_out, sheaf_bytes};
use crate::boundary::{self, Exclusive, Outcome, call, given};

/// Options of a keyspace at its creation.
pub struct sheaf_keyspace_options(Exclusive<KeyspaceOptions>);

impl sheaf_keyspace_options {
    /// Returns a copy of the options; the defaults if `options` is NULL.
    pub(crate) fn get(options: Option<&sheaf_keyspace_options>) -> Outcome<KeyspaceOptions> {
        match options {
            Some(options) => Ok(options.0.lock("keyspace options")?.clone()),
            None => Ok(KeyspaceOptions::default()),
        }
    }
}

/// Creates options for keyspaces of the engine `engine`, for example `flex`. An empty name selects
/// the engine of an existing keyspace, and `flex` for a new one. `sheaf_engines` lists the engines
/// with their options.
///
/// Threads: any.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_options_create(
    engine: sheaf_bytes<'_>,
    options: Option<&mut MaybeUninit<*mut sheaf_keyspace_options>>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let options = handle_out(options, "options")?;
        let set = match engine.text("engine")? {
            "" => KeyspaceOptions::default(),
            engine => KeyspaceOptions::default().engine(engine),
        };
        options.write(Box::into_raw(Box::new(sheaf_keyspace_options(Exclusive::new(set)))));
        Ok(())
    })
}

/// Sets an option of the engine. The creation of the keyspace checks the name and the value.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_options_set(
    options: Option<&sheaf_keyspace_options>,
    name: sheaf_bytes<'_>,
    value: u64,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut options = given(options, "options")?.0.lock("keyspace options")?;
        *options = options.clone().option(name.text("name")?, value);
        Ok(())
    })
}

/// Sets the merge operator of a new keyspace: `add`, `append`, `max`, `min`, `or` or `union`. The
/// creation of the keyspace checks the name.
///
/// Threads: one at a time for each options handle.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_options_set_merge_operator(
    options: Option<&sheaf_keyspace_options>,
    name: sheaf_bytes<'_>,
    error: Option<&mut MaybeUninit<*mut sheaf_error>>,
) -> sheaf_code {
    call(error, || {
        let mut options = given(options, "options")?.0.lock("keyspace options")?;
        *options = options.clone().merge_operator(name.text("name")?);
        Ok(())
    })
}

/// Frees options of keyspaces. NULL is allowed.
///
/// Threads: any. No other call may use the options.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_keyspace_options_free(options: Option<Box<sheaf_keyspace_options>>) {
    boundary::release(options);
}
