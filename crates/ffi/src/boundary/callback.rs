//! # Callbacks: functions of the caller, and the pointers that are passed to them
//!
//! A callback must return: it must not call `longjmp` or throw a C++ exception. It may call any
//! function of the library, except writes inside of `sheaf_read_with`; a call that needs a handle
//! which the outer call changes returns `SHEAF_HANDLE_IN_USE`.

use std::ffi::c_void;
use std::ops::ControlFlow;

use sheaf::Value;

use crate::boundary::code::{sheaf_change, sheaf_code};
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::sheaf_bytes;
use crate::boundary::{Exclusive, Outcome, given, invalid};

/// Receives the progress of a long operation: its phase (`SHEAF_PHASE_*`), and the bytes or pairs
/// done and in total. Returns 0 to continue; any other number cancels the operation, which then
/// returns `SHEAF_CANCELLED`. Runs in the thread of the call.
pub type sheaf_progress_fn =
    Option<extern "C" fn(context: *mut c_void, phase: i32, done: u64, total: u64) -> i32>;

/// Receives a corruption that a verification found. The error is valid until the callback returns
/// and must not be freed. Runs in the thread of the call.
pub type sheaf_finding_fn = Option<extern "C" fn(context: *mut c_void, error: &sheaf_error)>;

/// Receives a wait of a writer: its kind (`throttle`, `memory`, `space`, `segment`, `conversion` or
/// `sync`), the keyspace (empty if there is none), and its duration in nanoseconds. Runs in the
/// thread that waited; several threads may call it at the same time.
pub type sheaf_stall_fn = Option<
    extern "C" fn(context: *mut c_void, kind: sheaf_bytes<'_>, keyspace: sheaf_bytes<'_>, nanoseconds: u64),
>;

/// Is called once when the library no longer uses `context`. May run in any thread.
pub type sheaf_release_fn = Option<extern "C" fn(context: *mut c_void)>;

/// Receives a value without a copy. The bytes are valid until the callback returns. The callback
/// must not write to the database. Runs in the thread of the call.
pub type sheaf_read_fn = Option<extern "C" fn(context: *mut c_void, value: sheaf_bytes<'_>)>;

/// Decides the new value of a key, which has the value `old` (NULL if the key does not exist).
/// Appends the new value to `new_value` with `sheaf_new_value_append`, and returns one of
/// `SHEAF_CHANGE_*`; any other number is an error. May be called again if another thread changes
/// the key. Runs in the thread of the call.
pub type sheaf_change_fn = Option<
    extern "C" fn(context: *mut c_void, old: Option<&sheaf_bytes<'_>>, new_value: &sheaf_new_value) -> i32,
>;

/// Reads the next bytes of a value into `buffer` of `size` bytes, and returns their number: 0 at
/// the end of the value, and a number above `size` to cancel. Runs in the thread of the call.
pub type sheaf_source_fn =
    Option<extern "C" fn(context: *mut c_void, buffer: *mut c_void, size: usize) -> usize>;

/// Value that a callback of `sheaf_update` assembles.
pub struct sheaf_new_value(Exclusive<Vec<u8>>);

/// Appends bytes to the new value of a key. The library copies them.
///
/// Threads: only that of the callback which received `new_value`, and only until it returns.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_new_value_append(
    new_value: Option<&sheaf_new_value>,
    bytes: sheaf_bytes<'_>,
) -> sheaf_code {
    crate::boundary::call(None, || {
        given(new_value, "new_value")?.0.lock("new value")?.extend_from_slice(bytes.get("bytes")?);
        Ok(())
    })
}

/// Calls `change` with the value `old`. Returns the new value; `None` removes the key.
pub(crate) fn decide(
    change: sheaf_change_fn,
    context: *mut c_void,
    old: Option<&Value>,
) -> Outcome<Option<Vec<u8>>> {
    let change = given(change, "change")?;
    let new_value = sheaf_new_value(Exclusive::new(Vec::new()));
    let old = old.map(|old| sheaf_bytes::of(old));
    let answer = change(context, old.as_ref(), &new_value);
    if answer == sheaf_change::SHEAF_CHANGE_SET as i32 {
        Ok(Some(std::mem::take(&mut *new_value.0.lock("new value")?)))
    } else if answer == sheaf_change::SHEAF_CHANGE_REMOVE as i32 {
        Ok(None)
    } else if answer == sheaf_change::SHEAF_CHANGE_CANCEL as i32 {
        Err(sheaf::Error::Cancelled.into())
    } else {
        Err(invalid("change", &format!("the callback returned {answer}")))
    }
}

/// Calls `progress`, if there is one, and returns its decision.
pub(crate) fn report(
    progress: sheaf_progress_fn,
    context: *mut c_void,
    phase: crate::boundary::code::sheaf_phase,
    (done, total): (u64, u64),
) -> ControlFlow<()> {
    match progress.map_or(0, |progress| progress(context, phase as i32, done, total)) {
        0 => ControlFlow::Continue(()),
        _ => ControlFlow::Break(()),
    }
}

/// A pointer of the caller that several threads pass to callbacks, and that is released at the end.
pub(crate) struct SharedContext {
    pointer: *mut c_void,
    release: sheaf_release_fn,
}

// SAFETY: the pointer is only passed to callbacks, and the header requires of the callbacks that
// any thread may call them.
unsafe impl Send for SharedContext {}
// SAFETY: see `Send`; the header states that several threads call at the same time.
unsafe impl Sync for SharedContext {}

impl SharedContext {
    pub(crate) fn new(pointer: *mut c_void, release: sheaf_release_fn) -> SharedContext {
        SharedContext { pointer, release }
    }

    pub(crate) fn pointer(&self) -> *mut c_void {
        self.pointer
    }
}

impl Drop for SharedContext {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            release(self.pointer);
        }
    }
}
