//! # Memory of C: byte ranges, buffers, and values that the library owns
//!
//! ## Invariants
//!
//! 1. Only C constructs a [`sheaf_bytes`] or a [`sheaf_buffer`] that Rust code reads. By the
//!    contract of the header, `data` is NULL with size 0, or refers to `size` bytes that stay valid
//!    and unchanged during the call.
//! 2. A range of more than `isize::MAX` bytes, or of NULL with a size, is refused: no object in
//!    memory can have it.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use sheaf::Value;

use crate::boundary::{self, Outcome, given, invalid};

/// Bytes that the callee only reads during the call. `data` may be NULL if `size` is 0. In results
/// the bytes belong to the handle; the function states how long they are valid.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct sheaf_bytes<'a> {
    /// First byte.
    data: *const c_void,
    /// Number of bytes.
    size: usize,
    _lifetime: PhantomData<&'a [u8]>,
}

impl<'a> sheaf_bytes<'a> {
    /// Returns the range of `bytes`, for as long as they live.
    pub(crate) fn of(bytes: &'a [u8]) -> sheaf_bytes<'a> {
        sheaf_bytes { data: bytes.as_ptr().cast(), size: bytes.len(), _lifetime: PhantomData }
    }

    /// Returns the range of `bytes` for C, without a limit on its life: the function that returns
    /// it states when it ends. Rust code must not read it.
    pub(crate) fn lent(bytes: &[u8]) -> sheaf_bytes<'a> {
        sheaf_bytes { data: bytes.as_ptr().cast(), size: bytes.len(), _lifetime: PhantomData }
    }

    /// Returns an empty range.
    pub(crate) fn empty() -> sheaf_bytes<'a> {
        sheaf_bytes { data: std::ptr::null(), size: 0, _lifetime: PhantomData }
    }

    /// Returns the bytes of an argument with this name.
    #[inline]
    pub(crate) fn get(&self, argument: &'static str) -> Outcome<&'a [u8]> {
        if self.size == 0 {
            return Ok(&[]);
        }
        if self.data.is_null() || isize::try_from(self.size).is_err() {
            return Err(invalid(argument, &format!("{} bytes at {:?}", self.size, self.data)));
        }
        // SAFETY: (I1) C passed a valid range, and (I2) it can be a slice.
        Ok(unsafe { std::slice::from_raw_parts(self.data.cast(), self.size) })
    }

    /// Returns the text of an argument with this name.
    pub(crate) fn text(&self, argument: &'static str) -> Outcome<&'a str> {
        std::str::from_utf8(self.get(argument)?).map_err(|error| invalid(argument, &error.to_string()))
    }

    /// Returns the path of an argument with this name. A path may have any bytes except NUL.
    pub(crate) fn path(&self, argument: &'static str) -> Outcome<&'a std::path::Path> {
        use std::os::unix::ffi::OsStrExt;
        match self.get(argument)? {
            [] => Err(invalid(argument, "the path is empty")),
            bytes if bytes.contains(&0) => Err(invalid(argument, "the path contains a NUL byte")),
            bytes => Ok(std::path::Path::new(std::ffi::OsStr::from_bytes(bytes))),
        }
    }
}

/// Memory of the caller that a function writes to.
#[repr(C)]
#[derive(Debug)]
pub struct sheaf_buffer<'a> {
    /// First byte; may be NULL if `size` is 0.
    data: *mut c_void,
    /// Number of bytes that fit.
    size: usize,
    _lifetime: PhantomData<&'a mut [u8]>,
}

impl sheaf_buffer<'_> {
    fn check(&self) -> Outcome<()> {
        if self.size > 0 && self.data.is_null() || isize::try_from(self.size).is_err() {
            return Err(invalid("buffer", &format!("{} bytes at {:?}", self.size, self.data)));
        }
        Ok(())
    }

    /// Copies `bytes` to the start of the buffer if they fit, and returns whether they did.
    #[inline]
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Outcome<bool> {
        self.check()?;
        if bytes.len() > self.size {
            return Ok(false);
        }
        if !bytes.is_empty() {
            // SAFETY: (I1) the buffer has `size` bytes, which are not part of a value.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data.cast(), bytes.len()) };
        }
        Ok(true)
    }

    /// Returns the whole buffer, filled with zeros.
    pub(crate) fn zeroed(&mut self) -> Outcome<&mut [u8]> {
        self.check()?;
        if self.size == 0 {
            return Ok(&mut []);
        }
        // SAFETY: (I1) the buffer has `size` bytes of the caller.
        unsafe { std::ptr::write_bytes(self.data.cast::<u8>(), 0, self.size) };
        // SAFETY: (I1), and all bytes are initialized.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.size) })
    }
}

/// Owned bytes that a function returned.
pub struct sheaf_value(pub(crate) Value);

impl sheaf_value {
    /// Returns a new handle of `value` for C.
    pub(crate) fn handle(value: impl Into<Value>) -> *mut sheaf_value {
        Box::into_raw(Box::new(sheaf_value(value.into())))
    }
}

/// Returns the bytes of a value; an empty range if `value` is NULL. They are valid until the value
/// is freed.
///
/// Threads: any, also at the same time.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_value_bytes(value: Option<&sheaf_value>) -> sheaf_bytes<'_> {
    value.map_or(sheaf_bytes::empty(), |value| sheaf_bytes::of(&value.0))
}

/// Frees a value. NULL is allowed.
///
/// Threads: any. No other call may use the value.
#[unsafe(no_mangle)]
pub extern "C" fn sheaf_value_free(value: Option<Box<sheaf_value>>) {
    boundary::release(value);
}

/// Pointer to which a function writes a result.
pub(crate) type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// Returns the place of a handle that the function returns. It is NULL until a handle is written,
/// so that the caller may free it after an error, too.
pub(crate) fn handle_out<'a, T>(
    out: Out<'a, *mut T>,
    argument: &'static str,
) -> Outcome<&'a mut MaybeUninit<*mut T>> {
    let out = given(out, argument)?;
    out.write(std::ptr::null_mut());
    Ok(out)
}
