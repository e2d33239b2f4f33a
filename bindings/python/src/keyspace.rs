//! # Keyspace: one map from bytes to bytes
//!
//! The writes; `space` has the reads. `sheaf.Keyspace` adds the views, file objects and batches.

use std::sync::Arc;

use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use sheaf::{Batch, Error, Keyspace, Value};

use crate::database::RawDatabase;
use crate::input::Input;
use crate::options::{durability, keyspace_options, range};
use crate::shared::Shared;
use crate::space::{Pair, RawSpace, optional_bytes, optional_pair};
use crate::stats;
use crate::stream::RawWriter;
use crate::worker;

/// Keys or pairs in one commit of a call that makes several.
const GROUP_PAIRS: usize = 1024;
/// Bytes after which such a commit ends.
const GROUP_BYTES: usize = 256 << 10;

/// Map from bytes to bytes.
#[pyclass(frozen, subclass, mapping, extends = RawSpace, module = "sheaf._sheaf")]
pub(crate) struct RawKeyspace {
    pub(crate) keyspace: Keyspace,
    pub(crate) shared: Arc<Shared>,
}

impl RawKeyspace {
    #[inline]
    fn call<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Keyspace) -> sheaf::Result<T> + Send,
    ) -> PyResult<T> {
        py.detach(|| call(&self.keyspace)).map_err(|error| self.shared.exception(py, &error))
    }

    /// Runs a call that may take long in a worker thread.
    fn call_long<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Keyspace) -> sheaf::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        // The closure drops its keyspace before its reference to the database.
        let (keyspace, shared) = (self.keyspace.clone(), Arc::clone(&self.shared));
        let result = worker::run_to_end(py, move || {
            let result = call(&keyspace);
            drop(keyspace);
            drop(shared);
            result
        })?;
        result.map_err(|error| self.shared.exception(py, &error))
    }

    #[inline]
    fn find(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        self.call(py, |keyspace| keyspace.get(bytes))
    }

    /// Removes a pair and returns its value.
    fn take(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<Value>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        self.call(py, |keyspace| {
            loop {
                let Some(value) = keyspace.get(bytes)? else { return Ok(None) };
                if keyspace.compare_and_swap(bytes, Some(&value), None)? {
                    return Ok(Some(value));
                }
            }
        })
    }

    fn commit(&self, py: Python<'_>, batch: Batch) -> PyResult<()> {
        py.detach(move || batch.commit()).map_err(|error| self.shared.exception(py, &error))
    }
}

#[pymethods]
impl RawKeyspace {
    /// Open a keyspace, and create it if it is missing and `create` is true.
    #[new]
    #[pyo3(signature = (database, name, create=true, engine=None, options=None))]
    fn new(
        py: Python<'_>,
        database: PyRef<'_, RawDatabase>,
        name: &str,
        create: bool,
        engine: Option<&str>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyClassInitializer<RawKeyspace>> {
        let shared = Arc::clone(&database.shared);
        let opened = shared.open(py)?;
        let options = keyspace_options(engine, options)?;
        let found = py.detach(|| match create {
            true => opened.keyspace(name, options).map(Some),
            false => opened.open_keyspace(name),
        });
        let found = found.and_then(|found| found.ok_or(Error::KeyspaceNotFound { name: name.to_owned() }));
        let keyspace = found.map_err(|error| shared.exception(py, &error))?;
        let space = RawSpace::live(keyspace.clone(), Arc::clone(&shared));
        Ok(PyClassInitializer::from(space).add_subclass(RawKeyspace { keyspace, shared }))
    }

    /// Name of the keyspace.
    #[getter]
    fn name(&self) -> String {
        self.keyspace.name()
    }

    /// Give the keyspace another name, durably. All handles have it at once.
    fn rename(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.call(py, |keyspace| keyspace.rename(name))
    }

    /// Name of the engine.
    #[getter]
    fn engine(&self) -> &'static str {
        self.keyspace.engine()
    }

    /// Options of the engine that differ from the defaults, and the merge operator.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let options = PyDict::new(py);
        for (name, value) in self.keyspace.options().iter() {
            match name.strip_prefix("merge:") {
                Some(operator) => options.set_item("merge", operator)?,
                None => options.set_item(name.replace('-', "_"), value)?,
            }
        }
        Ok(options)
    }

    /// True if the engine keeps keys in order, so that ranges and reverse iteration work.
    #[getter]
    fn is_ordered(&self, py: Python<'_>) -> PyResult<bool> {
        self.call(py, |keyspace| Ok(keyspace.capabilities()?.ordered))
    }

    /// Return the length of a value in bytes without reading it, or `None`.
    fn size_of(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Option<u64>> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        self.call(py, |keyspace| keyspace.size_of(bytes))
    }

    /// Return the approximate number of the pairs in a range, and the bytes that they take.
    #[pyo3(signature = (start=None, stop=None, prefix=None))]
    fn raw_estimate(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(u64, u64)> {
        let range = range((start, true), (stop, false), prefix)?;
        let estimate = self.call(py, |keyspace| keyspace.estimate_range(range))?;
        Ok((estimate.pairs, estimate.bytes))
    }

    /// Remove the pair with the smallest key and return it, or `None`.
    fn pop_first<'py>(&self, py: Python<'py>) -> PyResult<Option<Pair<'py>>> {
        Ok(optional_pair(py, self.call(py, Keyspace::pop_first)?))
    }

    /// Remove the pair with the largest key and return it, or `None`.
    fn pop_last<'py>(&self, py: Python<'py>) -> PyResult<Option<Pair<'py>>> {
        Ok(optional_pair(py, self.call(py, Keyspace::pop_last)?))
    }

    /// Insert a pair, replacing the value if the key is present.
    #[pyo3(signature = (key, value, durability=None))]
    fn insert(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        durability: Option<&str>,
    ) -> PyResult<()> {
        let (key, value) = (Input::new(key)?, Input::new(value)?);
        let (key, value): (&[u8], &[u8]) = (&key, &value);
        match durability.map(crate::options::durability).transpose()? {
            None => self.call(py, |keyspace| keyspace.insert(key, value)),
            Some(durability) => {
                self.call(py, |keyspace| keyspace.submit_insert(key, value, durability)?.wait())
            }
        }
    }

    /// Remove a key; a missing key is no error.
    #[pyo3(signature = (key, durability=None))]
    fn remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>, durability: Option<&str>) -> PyResult<()> {
        let key = Input::new(key)?;
        let key: &[u8] = &key;
        match durability.map(self::durability).transpose()? {
            None => self.call(py, |keyspace| keyspace.remove(key)),
            Some(durability) => self.call(py, |keyspace| keyspace.submit_remove(key, durability)?.wait()),
        }
    }

    /// Let the merge operator of the keyspace compute the value of a key.
    #[pyo3(signature = (key, operand, durability=None))]
    fn merge(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        operand: &Bound<'_, PyAny>,
        durability: Option<&str>,
    ) -> PyResult<()> {
        let (key, operand) = (Input::new(key)?, Input::new(operand)?);
        let (key, operand): (&[u8], &[u8]) = (&key, &operand);
        match durability.map(self::durability).transpose()? {
            None => self.call(py, |keyspace| keyspace.merge(key, operand)),
            Some(durability) => {
                self.call(py, |keyspace| keyspace.submit_merge(key, operand, durability)?.wait())
            }
        }
    }

    /// Insert a pair, or raise `BusyError` if the write would wait for background work.
    fn try_insert(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let (key, value) = (Input::new(key)?, Input::new(value)?);
        let (key, value): (&[u8], &[u8]) = (&key, &value);
        self.call(py, |keyspace| keyspace.try_insert(key, value))
    }

    /// Remove a key, or raise `BusyError` if the write would wait for background work.
    fn try_remove(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let key = Input::new(key)?;
        let key: &[u8] = &key;
        self.call(py, |keyspace| keyspace.try_remove(key))
    }

    /// Insert all pairs of an iterable as one commit, and return their number.
    #[pyo3(signature = (pairs, durability=None))]
    fn insert_many(
        &self,
        py: Python<'_>,
        pairs: &Bound<'_, PyAny>,
        durability: Option<&str>,
    ) -> PyResult<usize> {
        let mut batch = self.shared.open(py)?.batch();
        if let Some(durability) = durability {
            batch.durability(self::durability(durability)?);
        }
        for pair in pairs.try_iter()? {
            let (key, value) = split_pair(&pair?)?;
            batch.insert(&self.keyspace, &*Input::new(&key)?, &*Input::new(&value)?);
        }
        let count = batch.len();
        self.commit(py, batch)?;
        Ok(count)
    }

    /// Insert a pair if the key is missing. Return `None` then, and the present value otherwise.
    fn insert_if_absent<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        value: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let (key, value) = (Input::new(key)?, Input::new(value)?);
        let (key, value): (&[u8], &[u8]) = (&key, &value);
        Ok(optional_bytes(py, self.call(py, |keyspace| keyspace.insert_if_absent(key, value))?))
    }

    /// Replace the value if it is `expected`, and return true then. `None` means a missing key.
    #[pyo3(signature = (key, expected, new))]
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        expected: Option<&Bound<'_, PyAny>>,
        new: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        let (key, expected, new) = (Input::new(key)?, Input::optional(expected)?, Input::optional(new)?);
        let (key, expected, new): (&[u8], _, _) = (&key, expected.as_deref(), new.as_deref());
        self.call(py, |keyspace| keyspace.compare_and_swap(key, expected, new))
    }

    /// Replace the value by the result of `change(value)` and return the result. `None` means a
    /// missing key. If the value was changed by another call, `change` is called again.
    fn modify<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        change: &Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        loop {
            let old = self.find(py, key)?;
            let new = change.call1((optional_bytes(py, old.clone()),))?;
            let input = Input::optional(Some(&new))?;
            let (key, old) = (Input::new(key)?, old.as_deref());
            let (key, bytes): (&[u8], _) = (&key, input.as_deref());
            if self.call(py, |keyspace| keyspace.compare_and_swap(key, old, bytes))? {
                return Ok(bytes.map(|bytes| PyBytes::new(py, bytes)));
            }
            py.check_signals()?;
        }
    }

    /// Remove all keys of a range, in one commit.
    #[pyo3(signature = (start=None, stop=None, prefix=None))]
    fn remove_range(
        &self,
        py: Python<'_>,
        start: Option<&Bound<'_, PyAny>>,
        stop: Option<&Bound<'_, PyAny>>,
        prefix: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let range = range((start, true), (stop, false), prefix)?;
        self.call_long(py, |keyspace| keyspace.remove_range(range))
    }

    /// Remove all pairs.
    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.call_long(py, Keyspace::clear)
    }

    /// Return the value. If the key is missing, insert `default` and return it.
    #[pyo3(signature = (key, default=None))]
    fn setdefault<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyAny>,
        default: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        if let Some(value) = self.find(py, key)? {
            return Ok(PyBytes::new(py, &value));
        }
        let default = default.ok_or_else(|| PyTypeError::new_err("setdefault needs a default value"))?;
        let present = self.insert_if_absent(py, key, default)?;
        present.map_or_else(|| Input::new(default).map(|value| PyBytes::new(py, &value)), Ok)
    }

    /// Remove a key and return its value; return the default if it is missing.
    #[pyo3(signature = (key, *default))]
    fn pop<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        if default.len() > 1 {
            return Err(PyTypeError::new_err("pop takes at most one default"));
        }
        match self.take(py, key)? {
            Some(value) => Ok(PyBytes::new(py, &value).into_any()),
            None => default.get_item(0).map_err(|_| PyKeyError::new_err(key.clone().unbind())),
        }
    }

    /// Insert pairs, in several commits.
    fn insert_groups(&self, py: Python<'_>, pairs: &Bound<'_, PyAny>) -> PyResult<()> {
        let database = self.shared.open(py)?;
        let (mut batch, mut bytes) = (database.batch(), 0);
        for pair in pairs.try_iter()? {
            let (key, value) = split_pair(&pair?)?;
            let (key, value) = (Input::new(&key)?, Input::new(&value)?);
            batch.insert(&self.keyspace, &*key, &*value);
            bytes += key.len() + value.len();
            if batch.len() >= GROUP_PAIRS || bytes >= GROUP_BYTES {
                self.commit(py, std::mem::replace(&mut batch, database.batch()))?;
                bytes = 0;
            }
        }
        if batch.is_empty() { Ok(()) } else { self.commit(py, batch) }
    }

    fn __setitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.insert(py, key, value, None)
    }

    fn __delitem__(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<()> {
        match self.take(py, key)? {
            Some(_) => Ok(()),
            None => Err(PyKeyError::new_err(key.clone().unbind())),
        }
    }

    fn raw_writer(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<RawWriter> {
        let input = Input::new(key)?;
        let bytes: &[u8] = &input;
        let writer = self.call(py, |keyspace| keyspace.writer(bytes))?;
        Ok(RawWriter::new(writer, Arc::clone(&self.shared)))
    }

    /// Sort the data on disk, and return the figures of the report.
    fn raw_compact<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let report = self.call_long(py, Keyspace::compact)?;
        stats::compaction(py, &report)
    }

    /// Return the figures of the engine.
    fn raw_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = self.call_long(py, Keyspace::stats)?;
        let disk_bytes = self.call(py, Keyspace::disk_bytes)?;
        stats::keyspace(py, &figures, disk_bytes)
    }
}

/// Returns key and value of a tuple, or of any sequence of two.
fn split_pair<'py>(pair: &Bound<'py, PyAny>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyAny>)> {
    pair.extract().map_err(|_| PyTypeError::new_err("a pair must be a tuple of key and value"))
}
