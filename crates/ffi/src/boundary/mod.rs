//! # Boundary: the only place where panics are caught and errors become codes

pub(crate) mod callback;
pub(crate) mod code;
pub(crate) mod error;
pub(crate) mod json;
pub(crate) mod memory;

use std::any::Any;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, TryLockError};

use sheaf::Error;

use crate::boundary::code::sheaf_code;
use crate::boundary::error::sheaf_error;
use crate::boundary::memory::Out;

/// Result of a function that is not `SHEAF_OK`.
pub(crate) enum Failure {
    /// A code without an error object.
    Plain(sheaf_code),
    /// An error object.
    Error(Box<sheaf_error>),
}

/// Result inside of a function of the interface.
pub(crate) type Outcome<T> = Result<T, Failure>;

impl From<Error> for Failure {
    #[cold]
    fn from(error: Error) -> Failure {
        Failure::Error(Box::new(sheaf_error::from(&error)))
    }
}

impl From<std::io::Error> for Failure {
    #[cold]
    fn from(error: std::io::Error) -> Failure {
        match error.downcast::<Error>() {
            Ok(known) => known.into(),
            Err(other) => Failure::new(sheaf_code::SHEAF_OTHER, &other.to_string()),
        }
    }
}

impl Failure {
    #[cold]
    pub(crate) fn new(code: sheaf_code, message: &str) -> Failure {
        Failure::Error(Box::new(sheaf_error::new(code, message)))
    }

    #[cold]
    fn from_panic(panic: &(dyn Any + Send)) -> Failure {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let reason = text.unwrap_or("without a message");
        Failure::new(sheaf_code::SHEAF_PANIC, &format!("the library panicked: {reason}"))
    }
}

/// Returns the error of an argument.
#[cold]
pub(crate) fn invalid(argument: &'static str, reason: &str) -> Failure {
    Error::InvalidArgument { argument, reason: reason.to_owned() }.into()
}

/// Returns a handle, a place or a callback that must not be NULL.
#[inline]
pub(crate) fn given<T>(argument: Option<T>, name: &'static str) -> Outcome<T> {
    argument.ok_or_else(|| invalid(name, "it is NULL"))
}

/// Returns `value`, or the code of a missing key or pair.
#[inline]
pub(crate) fn found<T>(value: Option<T>) -> Outcome<T> {
    value.ok_or(Failure::Plain(sheaf_code::SHEAF_NOT_FOUND))
}

/// Runs a function of the interface: catches its panic, writes its error object to `error`, and
/// returns its code. Writes NULL to `error` if there is no error object.
#[inline]
pub(crate) fn call(error: Out<'_, *mut sheaf_error>, body: impl FnOnce() -> Outcome<()>) -> sheaf_code {
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {
            clear(error);
            return sheaf_code::SHEAF_OK;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::from_panic(&*panic),
    };
    match failure {
        Failure::Plain(code) => {
            clear(error);
            code
        }
        Failure::Error(object) => {
            let code = object.code();
            if let Some(error) = error {
                error.write(Box::into_raw(object));
            }
            code
        }
    }
}

fn clear(error: Out<'_, *mut sheaf_error>) {
    if let Some(error) = error {
        MaybeUninit::write(error, std::ptr::null_mut());
    }
}

/// Drops a handle. A panic of the drop has no receiver and is discarded.
pub(crate) fn release<T>(handle: T) {
    let _ = catch_unwind(AssertUnwindSafe(|| drop(handle)));
}

/// State of a handle that one call at a time may change.
pub(crate) struct Exclusive<T>(Mutex<T>);

impl<T> Exclusive<T> {
    pub(crate) fn new(state: T) -> Exclusive<T> {
        Exclusive(Mutex::new(state))
    }

    /// Locks the handle, without waiting.
    #[inline]
    pub(crate) fn lock(&self, name: &'static str) -> Outcome<MutexGuard<'_, T>> {
        self.0.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => {
                let message = format!("another call uses the {name}, in another thread or around a callback");
                Failure::new(sheaf_code::SHEAF_HANDLE_IN_USE, &message)
            }
            TryLockError::Poisoned(_) => {
                let message = format!("an earlier call on the {name} panicked; free it");
                Failure::new(sheaf_code::SHEAF_PANIC, &message)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::error::{sheaf_error_free, sheaf_error_message};

    /// Returns the code and the message of a call.
    fn result_of(body: impl FnOnce() -> Outcome<()>) -> (sheaf_code, String) {
        let mut error = MaybeUninit::uninit();
        let code = call(Some(&mut error), body);
        // SAFETY: `call` writes NULL or a new error object.
        let error = unsafe { error.assume_init() };
        if error.is_null() {
            return (code, String::new());
        }
        // SAFETY: the object came from `Box::into_raw`.
        let error = unsafe { Box::from_raw(error) };
        // SAFETY: the message ends with a NUL byte and lives as long as the error.
        let message = unsafe { std::ffi::CStr::from_ptr(sheaf_error_message(Some(&error), None)) };
        let message = message.to_string_lossy().into_owned();
        sheaf_error_free(Some(error));
        (code, message)
    }

    #[test]
    fn panic_becomes_a_code_with_its_message() {
        let (code, message) = result_of(|| panic!("row {}", 7));
        assert_eq!((code, &*message), (sheaf_code::SHEAF_PANIC, "the library panicked: row 7"));
        assert_eq!(call(None, || panic!("no place for the error")), sheaf_code::SHEAF_PANIC);
        release(PanicsOnDrop);
    }

    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            panic!("in a drop");
        }
    }

    #[test]
    fn handle_of_a_panicked_call_is_refused() {
        let handle = Exclusive::new(1);
        let (code, _) = result_of(|| {
            let mut state = handle.lock("batch")?;
            *state = 2;
            panic!("in the middle");
        });
        assert_eq!(code, sheaf_code::SHEAF_PANIC);
        let (code, message) = result_of(|| handle.lock("batch").map(|_| ()));
        assert_eq!(
            (code, &*message),
            (sheaf_code::SHEAF_PANIC, "an earlier call on the batch panicked; free it")
        );
    }

    #[test]
    fn plain_codes_have_no_error_object() {
        assert_eq!(result_of(|| Ok(())), (sheaf_code::SHEAF_OK, String::new()));
        assert_eq!(result_of(|| found(None::<()>)), (sheaf_code::SHEAF_NOT_FOUND, String::new()));
    }

    #[test]
    fn error_of_a_stream_keeps_its_code() {
        let (code, _) = result_of(|| Err(std::io::Error::from(Error::ReadOnly).into()));
        assert_eq!(code, sheaf_code::SHEAF_READ_ONLY);
    }
}
