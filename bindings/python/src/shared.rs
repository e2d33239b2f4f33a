//! # Shared: open database of all objects that were made from it
//!
//! ## Invariants
//!
//! 1. Each object has its own handles in front of its reference to [`Shared`], so the last handle
//!    is the one in [`Shared`]. Dropping it closes the database, with the GIL released.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use sheaf::{Database, Error};
use sheaf_platform::fork::ForkGuard;

use crate::error::exception_of;

pub(crate) struct Shared {
    database: Option<Database>,
    is_closed: AtomicBool,
    fork: ForkGuard,
}

impl Shared {
    pub(crate) fn new(database: Database) -> Arc<Shared> {
        Arc::new(Shared {
            database: Some(database),
            is_closed: AtomicBool::new(false),
            fork: ForkGuard::new(),
        })
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(crate) fn is_forked(&self) -> bool {
        self.fork.is_child()
    }

    /// Returns the database, or an exception if it was closed or belongs to a parent process.
    #[inline]
    pub(crate) fn open(&self, py: Python<'_>) -> PyResult<&Database> {
        match &self.database {
            Some(database) if !self.is_closed() && !self.is_forked() => Ok(database),
            _ => Err(exception_of(py, &Error::Closed, self)),
        }
    }

    /// Returns the exception of `error`.
    pub(crate) fn exception(&self, py: Python<'_>, error: &Error) -> PyErr {
        exception_of(py, error, self)
    }

    /// Closes the database. A second call does nothing.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(database) = self.database.clone() else { return Ok(()) };
        if self.is_forked() || self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        py.detach(|| database.close()).map_err(|error| self.exception(py, &error))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let mut database = self.database.take();
        // While the interpreter ends it cannot be attached, and no thread waits for the GIL.
        let _ = Python::try_attach(|py| {
            let database = database.take();
            py.detach(|| drop(database));
        });
    }
}

/// Locks a mutex. A thread that waits for it releases the GIL.
pub(crate) fn lock<'a, T>(py: Python<'_>, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
    mutex.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
}

/// Returns the exception that refuses to pickle or copy an object.
pub(crate) fn refuse_pickle(kind: &str) -> PyErr {
    PyTypeError::new_err(format!(
        "cannot pickle or copy a {kind}: an open database belongs to one process; \
         pass its path and open it there"
    ))
}
