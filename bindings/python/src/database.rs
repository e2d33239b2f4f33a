//! # Database: opening, closing, and calls on all keyspaces

use std::path::PathBuf;
use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use sheaf::{
    BackupOptions, BackupProgress, BackupRate, BackupReport, ConversionProgress, ConversionReport, Database,
    Error, RepairOptions, RepairProgress, RepairReport, VerifyReport,
};

use crate::error::exception;
use crate::options::{self, builder, keyspace_options};
use crate::shared::{Shared, refuse_pickle};
use crate::stats;
use crate::worker::{self, Caller};

type Outcome<T> = sheaf::Result<T>;

/// Open database.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct RawDatabase {
    pub(crate) shared: Arc<Shared>,
}

impl RawDatabase {
    /// Runs a call that may take long in a worker thread.
    fn call_long<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Database) -> Outcome<T> + Send + 'static,
    ) -> PyResult<T> {
        let (database, shared) = (self.shared.open(py)?.clone(), Arc::clone(&self.shared));
        let result = worker::run_to_end(py, move || {
            let result = call(&database);
            drop(database);
            drop(shared);
            result
        })?;
        result.map_err(|error| self.shared.exception(py, &error))
    }

    fn result<T>(&self, py: Python<'_>, result: Outcome<T>) -> PyResult<T> {
        result.map_err(|error| self.shared.exception(py, &error))
    }
}

/// Calls `progress`, if there is one, with `arguments`.
pub(crate) fn tell<'py, A>(progress: Option<&Bound<'py, PyAny>>, arguments: A) -> PyResult<()>
where
    A: pyo3::call::PyCallArgs<'py>,
{
    progress.map_or(Ok(()), |progress| progress.call1(arguments).map(drop))
}

fn tell_backup(progress: Option<&Bound<'_, PyAny>>, at: BackupProgress) -> PyResult<()> {
    tell(progress, (stats::phase_name(format!("{:?}", at.phase)), at.done, at.total))
}

fn rate(py: Python<'_>, rate: Option<&Bound<'_, PyAny>>) -> PyResult<BackupRate> {
    let Some(rate) = rate else { return Ok(BackupRate::default()) };
    if rate.extract::<&str>().is_ok_and(|name| name == "unlimited") {
        return Ok(BackupRate::Unlimited);
    }
    let invalid = || {
        let reason = "must be None, 'unlimited' or a positive number of bytes per second".to_owned();
        exception(py, &Error::InvalidArgument { argument: "rate", reason })
    };
    let rate: u64 = rate.extract().map_err(|_| invalid())?;
    Ok(BackupRate::BytesPerSecond(std::num::NonZeroU64::new(rate).ok_or_else(invalid)?))
}

#[pymethods]
impl RawDatabase {
    /// Open or create the database in the directory `path`.
    #[new]
    #[pyo3(signature = (path, options))]
    fn new(py: Python<'_>, path: PathBuf, options: &Bound<'_, PyDict>) -> PyResult<RawDatabase> {
        let (builder, path) = (builder(options)?, options::path(py, "path", path)?);
        let opened = worker::run_to_end(py, move || builder.open(path))?;
        let database = opened.map_err(|error| exception(py, &error))?;
        Ok(RawDatabase { shared: Shared::new(database) })
    }

    /// Close the database. A second call does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.close(py)
    }

    /// True after `close`, and in a forked child.
    #[getter]
    fn is_closed(&self) -> bool {
        self.shared.is_closed() || self.shared.is_forked()
    }

    /// Number of the newest visible commit.
    #[getter]
    fn seq(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.shared.open(py)?.seq())
    }

    /// Return name, engine and damage of each keyspace.
    fn keyspaces(&self, py: Python<'_>) -> PyResult<Vec<(String, &'static str, Option<String>)>> {
        let infos = self.shared.open(py)?.keyspaces();
        Ok(infos.into_iter().map(|info| (info.name, info.engine, info.damage)).collect())
    }

    /// Remove a keyspace and its pairs. Return false if there is none of this name.
    fn drop_keyspace(&self, py: Python<'_>, name: String) -> PyResult<bool> {
        self.call_long(py, move |database| database.drop_keyspace(&name))
    }

    /// Give a keyspace another name, durably.
    fn rename_keyspace(&self, py: Python<'_>, name: String, to: String) -> PyResult<()> {
        self.call_long(py, move |database| database.rename_keyspace(&name, &to))
    }

    /// Return the position before the oldest change that is retained.
    fn oldest_change(&self, py: Python<'_>) -> PyResult<String> {
        let database = self.shared.open(py)?;
        let position = py.detach(|| database.oldest_change());
        Ok(self.result(py, position)?.to_string())
    }

    /// Return the position after the newest commit, when that is on the device.
    fn newest_change(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.call_long(py, Database::newest_change)?.to_string())
    }

    /// Return the positions of all named cursors by their names.
    fn change_cursors<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let database = self.shared.open(py)?;
        let cursors = py.detach(|| database.change_cursors());
        let positions = PyDict::new(py);
        for cursor in self.result(py, cursors)? {
            positions.set_item(cursor.name, cursor.position.to_string())?;
        }
        Ok(positions)
    }

    /// Remove a named cursor. Return false if there is none of this name.
    fn remove_change_cursor(&self, py: Python<'_>, name: String) -> PyResult<bool> {
        self.call_long(py, move |database| database.remove_change_cursor(&name))
    }

    /// Wait until all commits acknowledged before are on the device.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.call_long(py, Database::persist)
    }

    /// Wait until no background work is due.
    fn quiesce(&self, py: Python<'_>) -> PyResult<()> {
        self.call_long(py, Database::quiesce)
    }

    fn raw_stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let database = self.shared.open(py)?;
        let figures = py.detach(|| database.stats());
        stats::database(py, &figures)
    }

    #[pyo3(signature = (on_damage=None))]
    fn raw_verify<'py>(
        &self,
        py: Python<'py>,
        on_damage: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (database, shared) = (self.shared.open(py)?.clone(), Arc::clone(&self.shared));
        let work = move |caller: &Caller<Error, Outcome<VerifyReport>>| {
            // The verification ends only at its end; later damages are not reported.
            let report = database.verify(|damage| {
                let _ = caller.report(damage);
            });
            drop(database);
            drop(shared);
            report
        };
        let report = worker::run(py, false, work, |damage| {
            tell(on_damage.as_ref(), (self.shared.exception(py, &damage).into_value(py),))
        })?;
        stats::verify(py, &self.result(py, report)?)
    }

    #[pyo3(signature = (path, base, verify, rate, progress))]
    fn raw_backup<'py>(
        &self,
        py: Python<'py>,
        path: PathBuf,
        base: Option<PathBuf>,
        verify: bool,
        rate: Option<&Bound<'py, PyAny>>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (database, shared) = (self.shared.open(py)?.clone(), Arc::clone(&self.shared));
        let rate = self::rate(py, rate)?;
        let path = options::path(py, "path", path)?;
        let base = base.map(|base| options::path(py, "base", base)).transpose()?;
        let work = move |caller: &Caller<BackupProgress, Outcome<BackupReport>>| {
            let mut watcher = |at| caller.report(at);
            let mut options = BackupOptions::default().verify(verify).rate(rate).on_progress(&mut watcher);
            if let Some(base) = base {
                options = options.base(base);
            }
            let report = database.backup(path, options);
            drop(database);
            drop(shared);
            report
        };
        let report = worker::run(py, true, work, |at| tell_backup(progress.as_ref(), at))?;
        stats::backup(py, &self.result(py, report)?)
    }

    /// Convert a keyspace to another engine while it is in use.
    #[pyo3(signature = (name, engine, options, progress))]
    fn raw_convert<'py>(
        &self,
        py: Python<'py>,
        name: String,
        engine: &str,
        options: Option<&Bound<'py, PyDict>>,
        progress: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let (database, shared) = (self.shared.open(py)?.clone(), Arc::clone(&self.shared));
        let to = keyspace_options(Some(engine), options)?;
        let work = move |caller: &Caller<ConversionProgress, Outcome<Option<ConversionReport>>>| {
            let report = database.convert(&name, to, |at| caller.report(*at));
            drop(database);
            drop(shared);
            report
        };
        let report = worker::run(py, true, work, |at: ConversionProgress| {
            tell(progress.as_ref(), (stats::phase_name(format!("{:?}", at.phase)), at.copied_pairs, at.pairs))
        })?;
        self.result(py, report)?.map(|report| stats::conversion(py, &report)).transpose()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("database"))
    }
}

/// Restore a backup to a new database.
#[pyfunction]
#[pyo3(signature = (source, target, progress))]
pub(crate) fn restore<'py>(
    py: Python<'py>,
    source: PathBuf,
    target: PathBuf,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (source, target) = (options::path(py, "source", source)?, options::path(py, "target", target)?);
    let work = move |caller: &Caller<BackupProgress, Outcome<BackupReport>>| {
        Database::builder().restore(source, target, Some(&mut |at| caller.report(at)))
    };
    let report = worker::run(py, true, work, |at| tell_backup(progress.as_ref(), at))?;
    stats::backup(py, &report.map_err(|error| exception(py, &error))?)
}

/// Salvage a damaged database into a new one.
#[pyfunction]
#[pyo3(signature = (source, target, keep_doubtful, progress))]
pub(crate) fn repair<'py>(
    py: Python<'py>,
    source: PathBuf,
    target: PathBuf,
    keep_doubtful: bool,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyList>)> {
    let (source, target) = (options::path(py, "source", source)?, options::path(py, "target", target)?);
    if source == target {
        let reason = format!("source and target are the same directory, {}", source.display());
        return Err(PyValueError::new_err(reason));
    }
    let work = move |caller: &Caller<RepairProgress, Outcome<RepairReport>>| {
        let mut watcher = |at| caller.report(at);
        let options = RepairOptions::default().keep_doubtful(keep_doubtful).on_progress(&mut watcher);
        Database::repair(source, target, options)
    };
    let report = worker::run(py, true, work, |at: RepairProgress| {
        tell(progress.as_ref(), ("repairing", at.done, at.total))
    })?;
    stats::repair(py, &report.map_err(|error| exception(py, &error))?)
}
