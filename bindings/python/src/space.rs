//! # Space: reads of a keyspace, either of the database or of a snapshot
//!
//! `RawKeyspace` and `RawSnapshotKeyspace` extend the class of this module.

use std::sync::{Arc, PoisonError, RwLock};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView};
use sheaf::{Error, Keyspace, KeyspaceSnapshot, Value};
use smallvec::SmallVec;

use crate::input::{Input, view};
use crate::options::range;
use crate::scan::{Part, Scan};
use crate::shared::{Shared, refuse_pickle};
use crate::stream::RawReader;
use crate::worker;

/// Longest value in bytes that `get` copies without an allocation of its own.
const SHORT_VALUE: usize = 512;

pub(crate) type Pair<'py> = (Bound<'py, PyBytes>, Bound<'py, PyBytes>);

/// Keyspace of a snapshot; `None` after the snapshot was closed.
pub(crate) type Slot = Arc<RwLock<Option<KeyspaceSnapshot>>>;

/// Copies the keys of an iterable.
fn inputs(keys: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<u8>>> {
    keys.try_iter()?.map(|key| Ok(Input::new(&key?)?.to_vec())).collect()
}

pub(crate) fn optional_bytes(py: Python<'_>, value: Option<Value>) -> Option<Bound<'_, PyBytes>> {
    value.map(|value| PyBytes::new(py, &value))
}

pub(crate) fn optional_pair(py: Python<'_>, pair: Option<(Value, Value)>) -> Option<Pair<'_>> {
    pair.map(|(key, value)| (PyBytes::new(py, &key), PyBytes::new(py, &value)))
}

enum Source {
    Live(Keyspace),
    Snapshot(Slot),
}

/// Reads of a map from bytes to bytes.
#[pyclass(frozen, subclass, mapping, module = "sheaf._sheaf")]
pub(crate) struct RawSpace {
    source: Source,
    shared: Arc<Shared>,
}

/// Evaluates an expression on the keyspace of a space with the GIL released.
macro_rules! read {
    ($space:expr, $py:expr, |$keyspace:ident| $read:expr) => {{
        let space: &RawSpace = $space;
        let result = match &space.source {
            Source::Live($keyspace) => $py.detach(|| $read),
            Source::Snapshot(slot) => {
                let handle = space.snapshot($py, slot)?;
                let $keyspace = &handle;
                $py.detach(|| $read)
            }
        };
        result.map_err(|error| space.shared.exception($py, &error))
    }};
}

impl RawSpace {
    pub(crate) fn live(keyspace: Keyspace, shared: Arc<Shared>) -> RawSpace {
        RawSpace { source: Source::Live(keyspace), shared }
    }

    pub(crate) fn of_snapshot(slot: Slot, shared: Arc<Shared>) -> RawSpace {
        RawSpace { source: Source::Snapshot(slot), shared }
    }

    /// Returns a handle for one call. It keeps the state if another thread closes the snapshot.
    fn snapshot(&self, py: Python<'_>, slot: &Slot) -> PyResult<KeyspaceSnapshot> {
        self.shared.open(py)?;
        let slot = slot.read().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or_else(|| self.shared.exception(py, &Error::Closed))
    }

    #[inline]
    fn find(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        read!(self, py, |keyspace| keyspace.get(bytes))
    }

    /// Returns the value of a key as `bytes`. A short value is copied by way of the stack.
    #[inline]
    fn find_bytes<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let input = Input::new(key)?;
        let (bytes, mut value): (&[u8], _) = (&input, SmallVec::<[u8; SHORT_VALUE]>::new());
        let found =
            read!(self, py, |keyspace| keyspace.get_with(bytes, |found| value.extend_from_slice(found)))?;
        Ok(found.map(|()| PyBytes::new(py, &value)))
    }
}

#[pymethods]
impl RawSpace {
    /// Return the value as bytes, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.find_bytes(py, key)?.map(Bound::into_any).or(default))
    }

    /// Return the value as a read-only memoryview that keeps it alive, or `None`.
    fn view<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        self.find(py, key)?.map(|value| view(py, value)).transpose()
    }

    /// Return the values of many keys, in the order of the keys; `None` for a missing key.
    fn get_many<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let keys = inputs(keys)?;
        let values = read!(self, py, |keyspace| keyspace.multi_get(&keys))?;
        PyList::new(py, values.into_iter().map(|value| optional_bytes(py, value)))
    }

    /// Return a part of a value, or `None`.
    #[pyo3(signature = (key, start=0, stop=None))]
    fn get_range<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        start: u64,
        stop: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let input = Input::new(key)?;
        let (bytes, stop): (&[u8], u64) = (&input, stop.unwrap_or(u64::MAX).max(start));
        Ok(optional_bytes(py, read!(self, py, |keyspace| keyspace.get_range(bytes, start..stop))?))
    }

    /// Return the pair with the smallest key, or `None`.
    fn first<'py>(&self, py: Python<'py>) -> PyResult<Option<Pair<'py>>> {
        Ok(optional_pair(py, read!(self, py, |keyspace| keyspace.first())?))
    }

    /// Return the pair with the largest key, or `None`.
    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<Pair<'py>>> {
        Ok(optional_pair(py, read!(self, py, |keyspace| keyspace.last())?))
    }

    fn raw_reader(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<RawReader>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        let reader = read!(self, py, |keyspace| keyspace.reader(bytes))?;
        Ok(reader.map(|reader| RawReader::new(reader, Arc::clone(&self.shared))))
    }

    #[pyo3(signature = (part, start, stop, prefix, reverse, include_start=true, include_stop=false))]
    #[allow(clippy::too_many_arguments)]
    fn scan(
        &self,
        py: Python<'_>,
        part: u8,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
        include_start: bool,
        include_stop: bool,
    ) -> PyResult<Scan> {
        let range = range((start, include_start), (stop, include_stop), prefix)?;
        let iter = read!(self, py, |keyspace| keyspace.range(range))?;
        Ok(Scan::new(iter, Part::from_number(part), reverse, Arc::clone(&self.shared)))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
        self.find_bytes(py, key)?.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        read!(self, py, |keyspace| keyspace.contains_key(bytes))
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Scan> {
        self.scan(py, 1, None, None, None, false, true, false)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let count = match &self.source {
            Source::Live(keyspace) => {
                // The closure drops its keyspace before its reference to the database.
                let (keyspace, shared) = (keyspace.clone(), Arc::clone(&self.shared));
                worker::run_to_end(py, move || {
                    let count = keyspace.len();
                    drop(keyspace);
                    drop(shared);
                    count
                })?
            }
            Source::Snapshot(slot) => {
                let (handle, shared) = (self.snapshot(py, slot)?, Arc::clone(&self.shared));
                worker::run_to_end(py, move || {
                    let count = handle.len();
                    drop(handle);
                    drop(shared);
                    count
                })?
            }
        };
        let count = count.map_err(|error| self.shared.exception(py, &error))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!read!(self, py, |keyspace| keyspace.is_empty())?)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("keyspace"))
    }
}
