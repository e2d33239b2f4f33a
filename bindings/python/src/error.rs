//! # Errors of the library as Python exceptions
//!
//! Every variant of [`sheaf::Error`] has a class in `sheaf._errors`, with its fields.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyType};
use sheaf::{ConflictKeys, Error};

use crate::shared::Shared;

/// Class of an error and its fields.
type Description<'py> = PyResult<(&'static str, Bound<'py, PyDict>)>;

macro_rules! fields {
    ($py:expr, $($name:ident = $value:expr),* $(,)?) => {{
        let fields = PyDict::new($py);
        $(fields.set_item(stringify!($name), $value)?;)*
        fields
    }};
}

fn describe<'py>(py: Python<'py>, error: &Error, shared: Option<&Shared>) -> Description<'py> {
    Ok(match error {
        Error::Io { op, path, source } => {
            ("IoError", fields!(py, op = op.to_string(), path = path, errno = source.raw_os_error()))
        }
        Error::Corrupt { path, offset, structure, damage } => (
            "CorruptError",
            fields!(py, path = path, offset = *offset, structure = *structure, damage = damage.to_string()),
        ),
        Error::NoSpace { path } => ("NoSpaceError", fields!(py, path = path)),
        Error::TooManyFiles { path, limit } => {
            ("TooManyFilesError", fields!(py, path = path, limit = *limit))
        }
        Error::FileSizeLimit { path, size, limit } => {
            ("FileSizeLimitError", fields!(py, path = path, size = *size, limit = *limit))
        }
        Error::Locked { path, pid, program, is_stopped, .. } => (
            "LockedError",
            fields!(py, path = path, pid = *pid, program = program.as_deref(), is_stopped = *is_stopped),
        ),
        Error::OwnerUnresponsive { path, pid, program, is_stopped, waited } => (
            "OwnerUnresponsiveError",
            fields!(
                py,
                path = path,
                pid = *pid,
                program = program.as_deref(),
                is_stopped = *is_stopped,
                waited = waited.as_secs_f64(),
            ),
        ),
        Error::OwnerClosed { path } => ("OwnerClosedError", fields!(py, path = path)),
        Error::Poisoned { cause } => ("PoisonedError", fields!(py, cause = cause.name())),
        Error::Busy { waiting_for } => ("BusyError", fields!(py, waiting_for = waiting_for.name())),
        Error::Closed => {
            ("ClosedError", fields!(py, is_forked = shared.is_some_and(|shared| shared.is_forked())))
        }
        other => describe_rest(py, other)?,
    })
}

fn describe_rest<'py>(py: Python<'py>, error: &Error) -> Description<'py> {
    Ok(match error {
        Error::TooLarge { object, got, max } => {
            ("TooLargeError", fields!(py, object = *object, got = *got, max = *max))
        }
        Error::UnsupportedVersion { path, found, supported } => {
            ("UnsupportedVersionError", fields!(py, path = path, found = *found, supported = *supported))
        }
        Error::NotADatabase { path, reason } => {
            ("NotADatabaseError", fields!(py, path = path, reason = reason))
        }
        Error::NotABackup { path, reason } => ("NotABackupError", fields!(py, path = path, reason = reason)),
        Error::Cancelled => ("CancelledError", fields!(py,)),
        Error::DatabaseNotFound { path } => ("DatabaseNotFoundError", fields!(py, path = path)),
        Error::KeyspaceNotFound { name } => ("KeyspaceNotFoundError", fields!(py, name = name)),
        Error::KeyspaceExists { name } => ("KeyspaceExistsError", fields!(py, name = name)),
        Error::EngineMismatch { name, found, requested } => {
            ("EngineMismatchError", fields!(py, name = name, found = found, requested = requested))
        }
        Error::Unsupported { engine, feature } => {
            ("UnsupportedError", fields!(py, engine = *engine, feature = *feature))
        }
        Error::Conflict { keyspace, keys } => {
            let key = match &**keys {
                ConflictKeys::Key(key) => Some(PyBytes::new(py, key)),
                _ => None,
            };
            ("ConflictError", fields!(py, keyspace = keyspace, key = key))
        }
        Error::MemoryBudgetExceeded { budget } => ("MemoryBudgetError", fields!(py, budget = *budget)),
        Error::ChangesTooOld { position, oldest } => {
            ("ChangesTooOldError", fields!(py, position = *position, oldest = *oldest))
        }
        Error::ReadOnly => ("ReadOnlyError", fields!(py,)),
        Error::InvalidArgument { argument, reason } => {
            ("InvalidArgumentError", fields!(py, argument = *argument, reason = reason))
        }
        _ => ("Error", fields!(py,)),
    })
}

fn build(py: Python<'_>, error: &Error, shared: Option<&Shared>) -> PyResult<PyErr> {
    let (class, fields) = describe(py, error, shared)?;
    let text = match error {
        Error::Closed if shared.is_some_and(Shared::is_forked) => {
            "this process was forked after the database was opened; only the parent may use it".to_owned()
        }
        other => other.to_string(),
    };
    let class = py.import("sheaf._errors")?.getattr(class)?.cast_into::<PyType>()?;
    Ok(PyErr::from_value(class.call((text,), Some(&fields))?))
}

/// Returns the exception of an error that belongs to no open database.
#[cold]
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    build(py, error, None).unwrap_or_else(|failure| failure)
}

/// Returns the exception of an error of an open database.
#[cold]
#[inline(never)]
pub(crate) fn exception_of(py: Python<'_>, error: &Error, shared: &Shared) -> PyErr {
    build(py, error, Some(shared)).unwrap_or_else(|failure| failure)
}

/// Returns the exception of a lost worker thread.
#[cold]
pub(crate) fn lost_worker() -> PyErr {
    PyRuntimeError::new_err("the worker thread of the call ended without a result")
}
