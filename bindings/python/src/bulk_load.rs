//! # Bulk load: sorted pairs as a new keyspace, or added to a keyspace

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sheaf::{BulkLoadOptions, BulkLoadReport, BulkLoader, ConversionProgress};

use crate::database::{RawDatabase, tell};
use crate::input::Input;
use crate::options::keyspace_options;
use crate::shared::{Shared, lock, refuse_pickle};
use crate::stats;
use crate::worker::{self, Caller};

/// Running bulk load. Nothing is visible before its end.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct RawBulkLoader {
    loader: Mutex<Option<BulkLoader>>,
    shared: Arc<Shared>,
}

fn ended() -> PyErr {
    PyValueError::new_err("the bulk load has ended")
}

/// Returns options with the treatment of the pairs of an existing keyspace that `mode` names.
fn with_mode(options: BulkLoadOptions, mode: &str) -> PyResult<BulkLoadOptions> {
    match mode {
        "empty" => Ok(options),
        "replace" => Ok(options.replace(true)),
        "keep" => Ok(options.keep(true)),
        other => {
            Err(PyValueError::new_err(format!("mode must be 'empty', 'replace' or 'keep', not {other:?}")))
        }
    }
}

impl Drop for RawBulkLoader {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // Dropping the loader would remove files that the parent still writes.
            std::mem::forget(self.loader.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

#[pymethods]
impl RawBulkLoader {
    /// Begin a bulk load of the keyspace `name`.
    #[new]
    #[pyo3(signature = (database, name, mode, engine, options))]
    fn new(
        py: Python<'_>,
        database: PyRef<'_, RawDatabase>,
        name: &str,
        mode: &str,
        engine: Option<&str>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<RawBulkLoader> {
        let chosen = with_mode(keyspace_options(engine, options)?.into(), mode)?;
        let (shared, open) = (Arc::clone(&database.shared), database.shared.open(py)?);
        let begun = py.detach(|| open.bulk_load(name, chosen));
        let loader = begun.map_err(|error| shared.exception(py, &error))?;
        Ok(RawBulkLoader { loader: Mutex::new(Some(loader)), shared })
    }

    /// Add pairs with keys in ascending order.
    fn push(&self, py: Python<'_>, pairs: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)>) -> PyResult<()> {
        self.shared.open(py)?;
        let inputs = pairs.iter().map(|(key, value)| Ok((Input::new(key)?, Input::new(value)?)));
        let inputs: Vec<(Input<'_>, Input<'_>)> = inputs.collect::<PyResult<_>>()?;
        let mut guard = lock(py, &self.loader);
        let loader = guard.as_mut().ok_or_else(ended)?;
        let pushed = py.detach(|| inputs.iter().try_for_each(|(key, value)| loader.push(&**key, &**value)));
        pushed.map_err(|error| self.shared.exception(py, &error))
    }

    /// Publish the pairs.
    #[pyo3(signature = (progress))]
    fn finish<'py>(
        &self,
        py: Python<'py>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        self.shared.open(py)?;
        let (loader, shared) = (lock(py, &self.loader).take().ok_or_else(ended)?, Arc::clone(&self.shared));
        let work = move |caller: &Caller<ConversionProgress, sheaf::Result<BulkLoadReport>>| {
            let report = loader.finish_with(|at| caller.report(*at));
            drop(shared);
            report
        };
        let report = worker::run(py, true, work, |at: ConversionProgress| {
            tell(progress.as_ref(), (stats::phase_name(format!("{:?}", at.phase)), at.copied_pairs, at.pairs))
        })?;
        stats::bulk_load(py, &report.map_err(|error| self.shared.exception(py, &error))?)
    }

    /// Discard the pairs. Does nothing after the end.
    fn discard(&self, py: Python<'_>) {
        if self.shared.is_forked() {
            return; // another thread of the parent may have held the lock
        }
        let loader = lock(py, &self.loader).take();
        py.detach(|| drop(loader));
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("bulk load"))
    }
}
