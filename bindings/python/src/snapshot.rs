//! # Snapshot: all keyspaces as of one commit

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyMemoryView};
use sheaf::{Error, KeyspaceSnapshot, Snapshot};

use crate::database::RawDatabase;
use crate::input::{Input, view};
use crate::keyspace::{inputs, optional_bytes, optional_pair, to_list};
use crate::options::range;
use crate::scan::{Part, Scan};
use crate::shared::{Shared, refuse_pickle};
use crate::stream::RawReader;
use crate::worker;

/// Keyspace of a snapshot; `None` after the snapshot was closed.
type Slot = Arc<RwLock<Option<KeyspaceSnapshot>>>;

struct SnapshotState {
    snapshot: Option<Snapshot>,
    slots: HashMap<String, Slot>,
}

/// One state of all keyspaces.
#[pyclass(frozen, subclass, module = "sheaf._sheaf")]
pub(crate) struct RawSnapshot {
    state: Mutex<SnapshotState>,
    seq: u64,
    shared: Arc<Shared>,
}

impl RawSnapshot {
    fn slot(&self, py: Python<'_>, name: &str) -> PyResult<Slot> {
        self.shared.open(py)?;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = state.slots.get(name) {
            return Ok(Arc::clone(slot));
        }
        let found = match &state.snapshot {
            Some(snapshot) => snapshot.keyspace(name),
            None => Err(Error::Closed),
        };
        let slot: Slot =
            Arc::new(RwLock::new(Some(found.map_err(|error| self.shared.exception(py, &error))?)));
        state.slots.insert(name.to_owned(), Arc::clone(&slot));
        Ok(slot)
    }
}

#[pymethods]
impl RawSnapshot {
    /// Create a snapshot of the newest state.
    #[new]
    fn new(py: Python<'_>, database: PyRef<'_, RawDatabase>) -> PyResult<RawSnapshot> {
        let shared = Arc::clone(&database.shared);
        let opened = shared.open(py)?;
        let snapshot = py.detach(|| opened.snapshot()).map_err(|error| shared.exception(py, &error))?;
        let seq = snapshot.seq();
        let state = SnapshotState { snapshot: Some(snapshot), slots: HashMap::new() };
        Ok(RawSnapshot { state: Mutex::new(state), seq, shared })
    }

    /// Number of the newest commit that the snapshot shows.
    #[getter]
    fn seq(&self) -> u64 {
        self.seq
    }

    /// Return the names of the keyspaces.
    fn keyspaces(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.shared.open(py)?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.snapshot {
            Some(snapshot) => Ok(snapshot.keyspaces()),
            None => Err(self.shared.exception(py, &Error::Closed)),
        }
    }

    /// Free the state that the snapshot pins. A second call does nothing.
    fn close(&self, py: Python<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = state.snapshot.take();
        let slots: Vec<Slot> = state.slots.drain().map(|(_, slot)| slot).collect();
        drop(state);
        let take = |slot: Slot| slot.write().unwrap_or_else(PoisonError::into_inner).take();
        let keyspaces: Vec<_> = slots.into_iter().map(take).collect();
        py.detach(|| drop((keyspaces, snapshot)));
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("snapshot"))
    }
}

/// One keyspace of a snapshot.
#[pyclass(frozen, subclass, mapping, module = "sheaf._sheaf")]
pub(crate) struct RawSnapshotKeyspace {
    slot: Slot,
    name: String,
    shared: Arc<Shared>,
}

impl RawSnapshotKeyspace {
    /// Returns a handle for one call. It keeps the state if another thread closes the snapshot.
    fn handle(&self, py: Python<'_>) -> PyResult<KeyspaceSnapshot> {
        self.shared.open(py)?;
        let slot = self.slot.read().unwrap_or_else(PoisonError::into_inner);
        slot.clone().ok_or_else(|| self.shared.exception(py, &Error::Closed))
    }

    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&KeyspaceSnapshot) -> sheaf::Result<T> + Send,
    ) -> PyResult<T> {
        let handle = self.handle(py)?;
        py.detach(move || call(&handle)).map_err(|error| self.shared.exception(py, &error))
    }
}

#[pymethods]
impl RawSnapshotKeyspace {
    #[new]
    fn new(py: Python<'_>, snapshot: PyRef<'_, RawSnapshot>, name: String) -> PyResult<RawSnapshotKeyspace> {
        let slot = snapshot.slot(py, &name)?;
        Ok(RawSnapshotKeyspace { slot, name, shared: Arc::clone(&snapshot.shared) })
    }

    /// Name of the keyspace.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[pyo3(signature = (key, default=None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        let found = self.call(py, |keyspace| keyspace.get(bytes))?;
        Ok(found.map(|value| PyBytes::new(py, &value).into_any()).or(default))
    }

    fn __getitem__<'py>(&self, py: Python<'py>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.get(py, key, None)?.ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __contains__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<bool> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        self.call(py, |keyspace| keyspace.contains_key(bytes))
    }

    /// Return the value as a read-only memoryview, or `None`.
    fn view<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyMemoryView>>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        self.call(py, |keyspace| keyspace.get(bytes))?.map(|value| view(py, value)).transpose()
    }

    /// Return the values of many keys, in the order of the keys; `None` for a missing key.
    fn get_many<'py>(&self, py: Python<'py>, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let keys = inputs(keys)?;
        let values = self.call(py, |keyspace| keyspace.multi_get(&keys))?;
        to_list(py, values)
    }

    fn first<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        Ok(optional_pair(py, self.call(py, |keyspace| keyspace.first())?))
    }

    fn last<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        Ok(optional_pair(py, self.call(py, |keyspace| keyspace.last())?))
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
        let (bytes, stop): (&[u8], u64) = (&input, stop.unwrap_or(u64::MAX));
        Ok(optional_bytes(py, self.call(py, |keyspace| keyspace.get_range(bytes, start..stop.max(start)))?))
    }

    fn raw_reader(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<RawReader>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        let reader = self.call(py, |keyspace| keyspace.reader(bytes))?;
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
        let (start, stop) = (Input::optional(start)?, Input::optional(stop)?);
        let range = range((start, include_start), (stop, include_stop), Input::optional(prefix)?);
        let iter = self.call(py, |keyspace| keyspace.range(range))?;
        Ok(Scan::new(iter, Part::from_number(part), reverse, Arc::clone(&self.shared)))
    }

    fn __iter__(&self, py: Python<'_>) -> PyResult<Scan> {
        self.scan(py, 1, None, None, None, false, true, false)
    }

    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let handle = self.handle(py)?;
        let count = worker::run_to_end(py, move || handle.len())?;
        let count = count.map_err(|error| self.shared.exception(py, &error))?;
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(!self.call(py, |keyspace| keyspace.is_empty())?)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("snapshot"))
    }
}
