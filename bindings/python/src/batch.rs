//! # Batch and commit ticket

use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use sheaf::{Batch, Durability, Keyspace};

use crate::input::Input;
use crate::keyspace::RawKeyspace;
use crate::options::range;
use crate::shared::{Shared, lock, refuse_pickle};
use crate::wait::CommitWait;

/// Changes that one commit makes.
#[pyclass(frozen, subclass, module = "sheaf._sheaf")]
pub(crate) struct RawBatch {
    /// `None` between a commit and the next change.
    batch: Mutex<Option<Batch>>,
    /// Keyspace of `batch[key] = value`, if the batch was made by a keyspace.
    keyspace: Option<Keyspace>,
    durability: Option<Durability>,
    shared: Arc<Shared>,
}

impl RawBatch {
    /// Calls `change` with the batch.
    #[inline]
    fn with<T>(&self, py: Python<'_>, change: impl FnOnce(&mut Batch) -> T) -> PyResult<T> {
        let database = self.shared.open(py)?;
        let mut batch = lock(py, &self.batch);
        Ok(change(batch.get_or_insert_with(|| database.batch())))
    }

    fn own_keyspace(&self) -> PyResult<&Keyspace> {
        self.keyspace.as_ref().ok_or_else(|| {
            PyTypeError::new_err(
                "this batch has no keyspace of its own: use insert(keyspace, key, value) and \
                 remove(keyspace, key), or make the batch with keyspace.batch()",
            )
        })
    }
}

#[pymethods]
impl RawBatch {
    /// Create an empty batch of the database of `keyspace`.
    #[new]
    #[pyo3(signature = (keyspace, is_own, durability=None))]
    fn new(keyspace: &Bound<'_, PyAny>, is_own: bool, durability: Option<&str>) -> PyResult<RawBatch> {
        let durability = durability.map(crate::options::durability).transpose()?;
        if let Ok(database) = keyspace.cast::<crate::database::RawDatabase>() {
            let shared = Arc::clone(&database.get().shared);
            return Ok(RawBatch { batch: Mutex::new(None), keyspace: None, durability, shared });
        }
        let keyspace = keyspace.cast::<RawKeyspace>()?.get();
        let shared = Arc::clone(&keyspace.shared);
        let keyspace = is_own.then(|| keyspace.keyspace.clone());
        Ok(RawBatch { batch: Mutex::new(None), keyspace, durability, shared })
    }

    /// Add the insertion of a pair.
    fn insert(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, value) = (Input::new(key)?, Input::new(value)?);
        self.with(py, |batch| {
            batch.insert(&keyspace.keyspace, &*key, &*value);
        })
    }

    /// Add the merge of an operand into the value of a key.
    fn merge(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
        operand: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, operand) = (Input::new(key)?, Input::new(operand)?);
        self.with(py, |batch| {
            batch.merge(&keyspace.keyspace, &*key, &*operand);
        })
    }

    /// Add the removal of a key.
    fn remove(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let key = Input::new(key)?;
        self.with(py, |batch| {
            batch.remove(&keyspace.keyspace, &*key);
        })
    }

    /// Add the removal of all keys of a range.
    #[pyo3(signature = (keyspace, start=None, stop=None, prefix=None))]
    fn remove_range(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let range = range((start, true), (stop, false), prefix)?;
        self.with(py, |batch| {
            batch.remove_range(&keyspace.keyspace, range);
        })
    }

    /// Add an expectation: the commit fails with `ConflictError` if the key has another value.
    /// `None` expects that the key is missing.
    #[pyo3(signature = (keyspace, key, value))]
    fn expect_value(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
        value: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let (key, value) = (Input::new(key)?, Input::optional(value)?);
        self.with(py, |batch| {
            batch.expect_value(&keyspace.keyspace, &*key, value.as_deref());
        })
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let keyspace = self.own_keyspace()?;
        let (key, value) = (Input::new(key)?, Input::new(value)?);
        self.with(py, |batch| {
            batch.insert(keyspace, &*key, &*value);
        })
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let keyspace = self.own_keyspace()?;
        let key = Input::new(key)?;
        self.with(py, |batch| {
            batch.remove(keyspace, &*key);
        })
    }

    /// Move the changes and expectations of `other` to the end of this batch.
    fn append(slf: &Bound<'_, Self>, other: &Bound<'_, RawBatch>) -> PyResult<()> {
        if slf.is(other) {
            return Ok(());
        }
        let py = slf.py();
        let Some(mut moved) = lock(py, &other.get().batch).take() else { return Ok(()) };
        slf.get().with(py, |batch| {
            batch.append(&mut moved);
        })
    }

    /// Remove all changes and expectations.
    fn clear(&self, py: Python<'_>) {
        let batch = lock(py, &self.batch).take();
        drop(batch);
    }

    fn __len__(&self, py: Python<'_>) -> usize {
        lock(py, &self.batch).as_ref().map_or(0, Batch::len)
    }

    /// Make all changes as one commit, and return its ticket without waiting for durability. The
    /// batch is empty afterwards, even after an error.
    fn submit(&self, py: Python<'_>) -> PyResult<CommitTicket> {
        let database = self.shared.open(py)?;
        let batch = lock(py, &self.batch).take();
        let mut batch = batch.unwrap_or_else(|| database.batch());
        if let Some(durability) = self.durability {
            batch.durability(durability);
        }
        let ticket = py.detach(move || batch.submit()).map_err(|error| self.shared.exception(py, &error))?;
        Ok(CommitTicket { ticket, shared: Arc::clone(&self.shared) })
    }

    /// Make all changes as one commit, and wait for its durability. The batch is empty afterwards,
    /// even after an error.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.submit(py)?.wait(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("batch"))
    }
}

/// Ticket of a commit that is visible to readers.
#[pyclass(frozen, module = "sheaf")]
pub(crate) struct CommitTicket {
    pub(crate) ticket: sheaf::CommitTicket,
    pub(crate) shared: Arc<Shared>,
}

#[pymethods]
impl CommitTicket {
    /// Number of the commit.
    #[getter]
    fn seq(&self) -> u64 {
        self.ticket.seq()
    }

    /// True if the commit is known to be on the device.
    #[getter]
    fn is_durable(&self) -> bool {
        self.ticket.is_durable()
    }

    /// Wait until the commit has the durability that was asked for.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.ticket.wait()).map_err(|error| self.shared.exception(py, &error))
    }

    /// Wait until the commit is on the device.
    fn wait_durable(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.ticket.wait_durable()).map_err(|error| self.shared.exception(py, &error))
    }

    /// Return a wait for an event loop, like `wait_durable` if `is_sync` and like `wait` otherwise.
    fn start_wait(&self, is_sync: bool) -> CommitWait {
        let future = if is_sync { self.ticket.durable() } else { (&self.ticket).into_future() };
        CommitWait::new(future, Arc::clone(&self.shared))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("commit ticket"))
    }
}
