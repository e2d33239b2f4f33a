//! # Streams: parts of large values
//!
//! The Python package wraps both in file objects.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sheaf::{Durability, ValueReader, ValueWriter};

use crate::input::{Input, fill_buffer};
use crate::shared::{Shared, lock, refuse_pickle};

/// Bytes that one call reads with the GIL released.
const READ_BYTES: usize = 1 << 20;

/// Reads parts of a value.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct RawReader {
    reader: Mutex<Option<ValueReader>>,
    len: u64,
    shared: Arc<Shared>,
}

fn closed() -> PyErr {
    PyValueError::new_err("I/O operation on closed file")
}

impl RawReader {
    pub(crate) fn new(reader: ValueReader, shared: Arc<Shared>) -> RawReader {
        let len = reader.len();
        RawReader { reader: Mutex::new(Some(reader)), len, shared }
    }
}

impl Drop for RawReader {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // Unpinning a slot takes a lock that another thread of the parent may have held.
            std::mem::forget(self.reader.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[pymethods]
impl RawReader {
    fn __len__(&self) -> usize {
        usize::try_from(self.len).unwrap_or(usize::MAX)
    }

    /// Fill a writable buffer with bytes from `offset` on, and return their number.
    fn read_into(&self, py: Python<'_>, offset: u64, target: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.shared.open(py)?;
        let wanted = fill_buffer(target, |bytes| bytes.len())?.min(READ_BYTES);
        let mut guard = lock(py, &self.reader);
        let reader = guard.as_mut().ok_or_else(closed)?;
        let (got, bytes) = py.detach(|| {
            let mut bytes = vec![0; wanted];
            (reader.read_at(offset, &mut bytes), bytes)
        });
        let got = got.map_err(|error| self.shared.exception(py, &error))?;
        drop(guard);
        // The buffer may have another length now: other threads may have run.
        fill_buffer(target, |target| {
            let count = got.min(target.len());
            target[..count].copy_from_slice(&bytes[..count]);
            count
        })
    }

    /// Return the bytes from `start` to `stop`.
    fn read_range<'py>(&self, py: Python<'py>, start: u64, stop: u64) -> PyResult<Bound<'py, PyBytes>> {
        self.shared.open(py)?;
        let len = usize::try_from(stop.min(self.len).saturating_sub(start)).unwrap_or(0);
        let mut guard = lock(py, &self.reader);
        let reader = guard.as_mut().ok_or_else(closed)?;
        let (got, bytes) = py.detach(|| {
            let mut bytes = vec![0; len];
            (reader.read_at(start, &mut bytes), bytes)
        });
        let got = got.map_err(|error| self.shared.exception(py, &error))?;
        Ok(PyBytes::new(py, &bytes[..got]))
    }

    fn close(&self, py: Python<'_>) {
        if self.shared.is_forked() {
            return; // another thread of the parent may have held the lock
        }
        let reader = lock(py, &self.reader).take();
        py.detach(|| drop(reader));
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("value reader"))
    }
}

/// Writes a value from start to end.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct RawWriter {
    writer: Mutex<Option<ValueWriter>>,
    shared: Arc<Shared>,
}

impl RawWriter {
    pub(crate) fn new(writer: ValueWriter, shared: Arc<Shared>) -> RawWriter {
        RawWriter { writer: Mutex::new(Some(writer)), shared }
    }

    /// Returns the exception of a failed write, which the writer returns as an I/O error.
    fn write_exception(&self, py: Python<'_>, error: std::io::Error) -> PyErr {
        match error.downcast::<sheaf::Error>() {
            Ok(error) => self.shared.exception(py, &error),
            Err(error) => PyOSError::new_err(error.to_string()),
        }
    }
}

impl Drop for RawWriter {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // Dropping the writer would remove the file that the parent still writes.
            std::mem::forget(self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[pymethods]
impl RawWriter {
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let guard = lock(py, &self.writer);
        let len = guard.as_ref().ok_or_else(closed)?.len();
        Ok(usize::try_from(len).unwrap_or(usize::MAX))
    }

    /// Append bytes to the value.
    fn write(&self, py: Python<'_>, bytes: &Bound<'_, PyAny>) -> PyResult<usize> {
        self.shared.open(py)?;
        let input = Input::new(bytes)?;
        let bytes: &[u8] = &input;
        let mut guard = lock(py, &self.writer);
        let writer = guard.as_mut().ok_or_else(closed)?;
        py.detach(|| writer.write_all(bytes)).map_err(|error| self.write_exception(py, error))?;
        Ok(bytes.len())
    }

    /// Insert the value under its key.
    #[pyo3(signature = (durability=None))]
    fn commit(&self, py: Python<'_>, durability: Option<&str>) -> PyResult<()> {
        let durability: Option<Durability> = durability.map(crate::options::durability).transpose()?;
        self.shared.open(py)?;
        let writer = lock(py, &self.writer).take().ok_or_else(closed)?;
        let committed = py.detach(move || match durability {
            None => writer.commit(),
            Some(durability) => writer.submit(durability)?.wait(),
        });
        committed.map_err(|error| self.shared.exception(py, &error))
    }

    /// Discard the bytes. A second call does nothing.
    fn discard(&self, py: Python<'_>) {
        if self.shared.is_forked() {
            return; // another thread of the parent may have held the lock
        }
        let writer = lock(py, &self.writer).take();
        py.detach(|| drop(writer));
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("value writer"))
    }
}
