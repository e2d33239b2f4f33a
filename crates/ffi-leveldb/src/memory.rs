//! # Memory: bytes of C, and memory that C frees

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use sheaf::Error;

/// Returns the `size` bytes at `data`, or an empty slice if there are none.
///
/// # Safety
///
/// The bytes must stay valid and unchanged for `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const c_char, size: usize) -> &'a [u8] {
    if size == 0 || data.is_null() {
        return &[];
    }
    // SAFETY: the caller promises `size` valid bytes.
    unsafe { std::slice::from_raw_parts(data.cast(), size) }
}

/// Returns the path with this name, or `None` for NULL.
///
/// # Safety
///
/// The name must be NULL or end with a NUL byte, and stay valid for `'a`.
pub(crate) unsafe fn path<'a>(name: *const c_char) -> Option<&'a Path> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller promises a text with a NUL byte at its end.
    let name = unsafe { CStr::from_ptr(name) };
    Some(Path::new(OsStr::from_bytes(name.to_bytes())))
}

/// Returns a copy of `bytes`, followed by a NUL byte, that C frees with `free`.
pub(crate) fn allocate(bytes: &[u8]) -> *mut c_char {
    // SAFETY: `malloc` accepts every size.
    let copy: *mut u8 = unsafe { libc::malloc(bytes.len() + 1) }.cast();
    if copy.is_null() {
        std::alloc::handle_alloc_error(std::alloc::Layout::new::<u8>());
    }
    // SAFETY: the new memory has room for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), copy, bytes.len()) };
    // SAFETY: the memory has one byte more.
    unsafe { copy.add(bytes.len()).write(0) };
    copy.cast()
}

/// Frees memory of [`allocate`].
///
/// # Safety
///
/// `pointer` must be NULL, or memory of `allocate` that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn leveldb_free(pointer: *mut c_void) {
    // SAFETY: the caller passes NULL or memory that `malloc` returned.
    unsafe { libc::free(pointer) };
}

/// Error text of a function.
pub(crate) struct Failure(pub(crate) String);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let kind = match &error {
            Error::Corrupt { .. } => "Corruption",
            Error::InvalidArgument { .. } | Error::TooLarge { .. } => "Invalid argument",
            Error::Unsupported { .. } => "Not implemented",
            Error::DatabaseNotFound { .. } => "NotFound",
            _ => "IO error",
        };
        Failure(format!("{kind}: {error}"))
    }
}

/// Returns the value of a handle that must not be NULL.
pub(crate) fn given<T>(handle: Option<T>, name: &str) -> Result<T, Failure> {
    handle.ok_or_else(|| Failure(format!("Invalid argument: {name} is NULL")))
}

/// Runs `body`; returns the default of its result after a panic.
pub(crate) fn guard<T: Default>(body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_default()
}

/// Runs `body`. After an error or a panic it replaces the text at `errptr` and returns `None`.
///
/// # Safety
///
/// `errptr` must be NULL, or point to NULL or to memory that `malloc` returned.
pub(crate) unsafe fn report<T>(
    errptr: *mut *mut c_char,
    body: impl FnOnce() -> Result<T, Failure>,
) -> Option<T> {
    let outcome = catch_unwind(AssertUnwindSafe(body));
    let message = match outcome {
        Ok(Ok(result)) => return Some(result),
        Ok(Err(Failure(message))) => message,
        Err(_) => "IO error: the library panicked".to_owned(),
    };
    if !errptr.is_null() {
        // SAFETY: the caller promises a pointer to a text.
        let old = unsafe { errptr.replace(allocate(message.replace('\0', "\\0").as_bytes())) };
        // SAFETY: the old text is NULL or came from `malloc`.
        unsafe { libc::free(old.cast()) };
    }
    None
}
