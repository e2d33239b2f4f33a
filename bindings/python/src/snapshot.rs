//! # Snapshot: all keyspaces as of one commit

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use pyo3::prelude::*;
use sheaf::{Error, Snapshot};

use crate::database::RawDatabase;
use crate::shared::{Shared, refuse_pickle};
use crate::space::{RawSpace, Slot};

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

    /// Return the position in the change feed after the newest commit that the snapshot shows, when
    /// that is on the device.
    fn change_position(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.open(py)?;
        let snapshot = self.state.lock().unwrap_or_else(PoisonError::into_inner).snapshot.clone();
        let position = match &snapshot {
            Some(snapshot) => py.detach(|| snapshot.change_position()),
            None => Err(Error::Closed),
        };
        Ok(position.map_err(|error| self.shared.exception(py, &error))?.to_string())
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
#[pyclass(frozen, subclass, mapping, extends = RawSpace, module = "sheaf._sheaf")]
pub(crate) struct RawSnapshotKeyspace {
    name: String,
}

#[pymethods]
impl RawSnapshotKeyspace {
    #[new]
    fn new(
        py: Python<'_>,
        snapshot: PyRef<'_, RawSnapshot>,
        name: String,
    ) -> PyResult<PyClassInitializer<RawSnapshotKeyspace>> {
        let slot = snapshot.slot(py, &name)?;
        let space = RawSpace::of_snapshot(slot, Arc::clone(&snapshot.shared));
        Ok(PyClassInitializer::from(space).add_subclass(RawSnapshotKeyspace { name }))
    }

    /// Name of the keyspace.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }
}
