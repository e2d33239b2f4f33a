//! # Transaction: reads and changes that one commit makes if no other commit changed the reads

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sheaf::{Durability, Error, Keyspace, Savepoint, Transaction, TransactionIter, Value};

use crate::batch::CommitTicket;
use crate::database::RawDatabase;
use crate::input::Input;
use crate::keyspace::RawKeyspace;
use crate::options::range;
use crate::shared::{Shared, lock, refuse_pickle};
use crate::space::{optional_bytes, optional_pair};

/// Reads of one snapshot, and changes.
#[pyclass(frozen, subclass, module = "sheaf._sheaf")]
pub(crate) struct RawTransaction {
    state: Mutex<State>,
    durability: Option<Durability>,
    shared: Arc<Shared>,
}

struct State {
    /// `None` after the end.
    transaction: Option<Transaction>,
    savepoints: Vec<Savepoint>,
}

impl RawTransaction {
    fn lock(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        self.shared.open(py)?;
        Ok(lock(py, &self.state))
    }

    fn ended(&self, py: Python<'_>) -> PyErr {
        let reason = "it has ended by a commit or a rollback".to_owned();
        self.shared.exception(py, &Error::InvalidArgument { argument: "transaction", reason })
    }

    /// Runs a call on the open transaction with the GIL released.
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Transaction) -> sheaf::Result<T> + Send,
    ) -> PyResult<T> {
        let state = self.lock(py)?;
        let transaction = state.transaction.as_ref().ok_or_else(|| self.ended(py))?;
        py.detach(|| call(transaction)).map_err(|error| self.shared.exception(py, &error))
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        keyspace: &RawKeyspace,
        key: &Bound<'py, PyAny>,
        get: impl FnOnce(&Transaction, &Keyspace, &[u8]) -> sheaf::Result<Option<Value>> + Send,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        let value = self.call(py, |transaction| get(transaction, &keyspace.keyspace, bytes))?;
        Ok(optional_bytes(py, value))
    }

    /// Ends the transaction and returns it. `None` if it has ended already.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Transaction>> {
        Ok(self.lock(py)?.transaction.take())
    }
}

#[pymethods]
impl RawTransaction {
    /// Begin a transaction.
    #[new]
    #[pyo3(signature = (database, durability=None))]
    fn new(
        py: Python<'_>,
        database: PyRef<'_, RawDatabase>,
        durability: Option<&str>,
    ) -> PyResult<RawTransaction> {
        let durability = durability.map(crate::options::durability).transpose()?;
        let shared = Arc::clone(&database.shared);
        let opened = shared.open(py)?;
        let begun = py.detach(|| opened.transaction()).map_err(|error| shared.exception(py, &error))?;
        let state = State { transaction: Some(begun), savepoints: Vec::new() };
        Ok(RawTransaction { state: Mutex::new(state), durability, shared })
    }

    /// Number of the newest commit that the reads show.
    #[getter]
    fn seq(&self, py: Python<'_>) -> PyResult<u64> {
        self.call(py, |transaction| Ok(transaction.seq()))
    }

    /// Return the value of a key, or `None`. The commit checks that the key is unchanged.
    fn get<'py>(
        &self,
        py: Python<'py>,
        keyspace: PyRef<'py, RawKeyspace>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, &keyspace, key, |transaction, keyspace, key| transaction.get(keyspace, key))
    }

    /// Return the value of a key like `get`. The commit then checks all reads even if the
    /// transaction changes nothing.
    fn get_for_update<'py>(
        &self,
        py: Python<'py>,
        keyspace: PyRef<'py, RawKeyspace>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, &keyspace, key, |transaction, keyspace, key| transaction.get_for_update(keyspace, key))
    }

    /// Return the value of a key like `get`, but the commit does not check the key.
    fn untracked_get<'py>(
        &self,
        py: Python<'py>,
        keyspace: PyRef<'py, RawKeyspace>,
        key: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        self.read(py, &keyspace, key, |transaction, keyspace, key| transaction.untracked_get(keyspace, key))
    }

    /// Set a key to a value.
    fn insert(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, value) = (Input::new(key)?, Input::new(value)?);
        let (key, value): (&[u8], &[u8]) = (&key, &value);
        let keyspace = &keyspace.keyspace;
        self.call(py, |transaction| transaction.insert(keyspace, key, value))
    }

    /// Merge an operand into the value of a key.
    fn merge(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
        operand: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (key, operand) = (Input::new(key)?, Input::new(operand)?);
        let (key, operand): (&[u8], &[u8]) = (&key, &operand);
        let keyspace = &keyspace.keyspace;
        self.call(py, |transaction| transaction.merge(keyspace, key, operand))
    }

    /// Remove a key. A missing key is no error.
    fn remove(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        let keyspace = &keyspace.keyspace;
        self.call(py, |transaction| transaction.remove(keyspace, bytes))
    }

    /// Remove all keys of a range.
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
        let keyspace = &keyspace.keyspace;
        self.call(py, |transaction| transaction.remove_range(keyspace, range))
    }

    fn scan(
        &self,
        py: Python<'_>,
        keyspace: PyRef<'_, RawKeyspace>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
        reverse: bool,
    ) -> PyResult<TransactionScan> {
        let range = range((start, true), (stop, false), prefix)?;
        let keyspace = &keyspace.keyspace;
        let iter = self.call(py, |transaction| transaction.range(keyspace, range))?;
        Ok(TransactionScan { iter: Mutex::new(iter), is_reverse: reverse, shared: Arc::clone(&self.shared) })
    }

    /// Return the number of a savepoint.
    fn savepoint(&self, py: Python<'_>) -> PyResult<usize> {
        let point = self.call(py, Transaction::savepoint)?;
        let mut state = self.lock(py)?;
        state.savepoints.push(point);
        Ok(state.savepoints.len() - 1)
    }

    /// Undo all changes after a savepoint, which stays valid. Later ones do not.
    fn roll_back_to(&self, py: Python<'_>, savepoint: usize) -> PyResult<()> {
        let point = self.lock(py)?.savepoints.get(savepoint).copied().ok_or_else(|| {
            let reason = "the transaction has no such savepoint".to_owned();
            self.shared.exception(py, &Error::InvalidArgument { argument: "savepoint", reason })
        })?;
        self.call(py, |transaction| transaction.roll_back_to(point))?;
        self.lock(py)?.savepoints.truncate(savepoint + 1);
        Ok(())
    }

    /// True until the commit or the rollback.
    #[getter]
    fn is_open(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.lock(py)?.transaction.is_some())
    }

    /// Drop all changes and end the transaction.
    fn roll_back(&self, py: Python<'_>) -> PyResult<()> {
        let ended = self.take(py)?;
        py.detach(|| drop(ended));
        Ok(())
    }

    /// Commit, and return the ticket without waiting for durability. Raises `ConflictError`, and
    /// writes nothing, if another commit changed a key or range that was read. The transaction has
    /// ended then, too.
    fn submit(&self, py: Python<'_>) -> PyResult<CommitTicket> {
        let mut ended = self.take(py)?.ok_or_else(|| self.ended(py))?;
        if let Some(durability) = self.durability {
            ended = ended.durability(durability);
        }
        let ticket = py.detach(|| ended.submit()).map_err(|error| self.shared.exception(py, &error))?;
        Ok(CommitTicket { ticket, shared: Arc::clone(&self.shared) })
    }

    /// Commit like `submit`, and wait for the durability.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.submit(py)?.wait(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("transaction"))
    }
}

/// Iterator over the pairs of a range in a transaction. Reads one pair at a time: the commit checks
/// only the part that was iterated over.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct TransactionScan {
    iter: Mutex<TransactionIter>,
    is_reverse: bool,
    shared: Arc<Shared>,
}

#[pymethods]
impl TransactionScan {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        self.shared.open(py)?;
        let mut iter = lock(py, &self.iter);
        let pairs: &mut TransactionIter = &mut iter;
        let pair = py.detach(|| if self.is_reverse { pairs.next_back() } else { pairs.next() });
        let pair = pair.transpose().map_err(|error| self.shared.exception(py, &error))?;
        Ok(optional_pair(py, pair))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("iterator"))
    }
}
