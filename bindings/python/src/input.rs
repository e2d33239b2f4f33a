//! # Keys and values from Python buffers, and values as Python buffers
//!
//! The only module with unsafe code: it calls the buffer protocol of Python.
//!
//! ## Invariants
//!
//! 1. A borrowed input is a `bytes` object. Its bytes never change, and the caller of the method
//!    holds a reference to it, so other threads may run while the library reads it.
//! 2. The bytes of any other buffer are copied in a critical section of its object: another thread
//!    could change them later. With the GIL no other thread runs Python code during the copy.
//!    Without it, methods of the object itself wait, for example those of a `bytearray`. A change
//!    that does not take the lock of this object, for example by way of a second `memoryview`,
//!    races with the copy, as in other extension modules.

use std::ffi::{c_int, c_void};
use std::ops::Deref;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::critical_section::with_critical_section;
use pyo3::types::{PyBytes, PyMemoryView};
use sheaf::{Error, MAX_VALUE, Value};

use crate::error::exception;

/// Bytes of one argument.
pub(crate) enum Input<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
}

impl<'a> Input<'a> {
    /// Returns the bytes of `object`, which must support the buffer protocol.
    #[inline]
    pub(crate) fn new(object: &'a Bound<'_, PyAny>) -> PyResult<Input<'a>> {
        match object.cast::<PyBytes>() {
            Ok(bytes) => Ok(Input::Borrowed(bytes.as_bytes())),
            Err(_) => copy(object).map(Input::Owned),
        }
    }

    /// Like [`Input::new`], but `None` in Python is `None`.
    pub(crate) fn optional(object: Option<&'a Bound<'_, PyAny>>) -> PyResult<Option<Input<'a>>> {
        object.filter(|object| !object.is_none()).map(Input::new).transpose()
    }
}

impl Deref for Input<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Input::Borrowed(bytes) => bytes,
            Input::Owned(bytes) => bytes,
        }
    }
}

/// Copies the bytes of a contiguous buffer of any format. Refuses a buffer that is longer than any
/// key or value may be, because a copy of it could exhaust the memory.
fn copy(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    let mut view = ffi::Py_buffer::new();
    // SAFETY: `object` is a live object and `view` a writable struct; the GIL is held.
    let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut view, ffi::PyBUF_SIMPLE) };
    if failed != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let len = usize::try_from(view.len).unwrap_or(0);
    let bytes = match len {
        0 => Ok(Vec::new()),
        _ if len > MAX_VALUE => {
            let (object, got, max) = ("value", len as u64, MAX_VALUE as u64);
            Err(Error::TooLarge { object, got, max })
        }
        _ => Ok(with_critical_section(object, || {
            // SAFETY: PyBUF_SIMPLE guarantees `len` readable bytes at `buf` until the release
            // below. They do not change before (I2).
            unsafe { std::slice::from_raw_parts(view.buf.cast::<u8>(), len) }.to_vec()
        })),
    };
    // SAFETY: `view` was filled above and is released once.
    unsafe { ffi::PyBuffer_Release(&mut view) };
    bytes.map_err(|error| exception(object.py(), &error))
}

/// Calls `fill` with the memory of a writable buffer and returns its result. `fill` must not run
/// Python code.
pub(crate) fn fill_buffer<T>(object: &Bound<'_, PyAny>, fill: impl FnOnce(&mut [u8]) -> T) -> PyResult<T> {
    let mut view = ffi::Py_buffer::new();
    // SAFETY: `object` is a live object and `view` a writable struct; the GIL is held.
    let failed = unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut view, ffi::PyBUF_WRITABLE) };
    if failed != 0 {
        return Err(PyErr::fetch(object.py()));
    }
    let len = usize::try_from(view.len).unwrap_or(0);
    let result = match len {
        0 => fill(&mut []),
        _ => with_critical_section(object, || {
            // SAFETY: PyBUF_WRITABLE guarantees `len` writable bytes at `buf` until the release
            // below. No other Python code uses them before (I2).
            fill(unsafe { std::slice::from_raw_parts_mut(view.buf.cast::<u8>(), len) })
        }),
    };
    // SAFETY: `view` was filled above and is released once.
    unsafe { ffi::PyBuffer_Release(&mut view) };
    Ok(result)
}

/// Read-only buffer that owns a value. A memoryview of it keeps it alive.
#[pyclass(frozen, module = "sheaf._sheaf")]
struct ValueBuffer {
    value: Value,
}

#[pymethods]
impl ValueBuffer {
    /// Fills `view` with the bytes of the value.
    ///
    /// # Safety
    ///
    /// Python calls it with a valid `view`.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("view is null"));
        }
        let bytes: &[u8] = &slf.get().value;
        let (start, len) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len());
        let len = ffi::Py_ssize_t::try_from(len).map_err(|_| PyBufferError::new_err("value is too long"))?;
        // SAFETY: the bytes never change and live as long as `slf`, which `view` gets a reference
        // to. The last but one argument makes the view read-only.
        let failed = unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, 1, flags) };
        if failed != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }
}

/// Returns a read-only memoryview that keeps `value` alive.
pub(crate) fn view(py: Python<'_>, value: Value) -> PyResult<Bound<'_, PyMemoryView>> {
    let owner = Bound::new(py, ValueBuffer { value })?;
    PyMemoryView::from(owner.as_any())
}
