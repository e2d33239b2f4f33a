//! # Change feed: committed changes in commit order, and named cursors
//!
//! Positions are texts in Python.

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, UNIX_EPOCH};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use pyo3::types::{PyBytes, PyDict, PyList};
use sheaf::{ChangeCursor, ChangeKind, ChangePosition, ChangeValue, CommittedChanges, Error};

use crate::database::RawDatabase;
use crate::input::Input;
use crate::options::seconds;
use crate::shared::{Shared, refuse_pickle};
use crate::wait::PollNotifier;

/// Time between two checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Result of a wait for a commit.
type Next = sheaf::Result<Option<CommittedChanges>>;

fn parse(py: Python<'_>, shared: &Shared, position: &str) -> PyResult<ChangePosition> {
    position.parse::<ChangePosition>().map_err(|error| shared.exception(py, &error))
}

/// Feed that an event loop waits for. Returns the feed at the end of the wait.
type Wait = Pin<Box<dyn Future<Output = (sheaf::Changes, sheaf::Result<()>)> + Send>>;

/// Feed of changes.
enum Feed {
    Idle(sheaf::Changes),
    /// An event loop waits for the next commit. The wait ends at once if the flag is true.
    Waiting(Wait, Arc<AtomicBool>),
    Closed,
}

impl Feed {
    /// Returns a wait that keeps `changes` until it ends.
    fn waiting(mut changes: sheaf::Changes) -> Feed {
        let is_given_up = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&is_given_up);
        let wait = Box::pin(async move {
            let mut ready = changes.ready();
            let result = poll_fn(|context| match flag.load(Ordering::Relaxed) {
                true => Poll::Ready(Ok(())),
                false => Pin::new(&mut ready).poll(context),
            });
            let result = result.await;
            drop(ready);
            (changes, result)
        });
        Feed::Waiting(wait, is_given_up)
    }

    /// Ends a wait of an event loop, and returns the feed. `None` after `close`.
    fn changes(&mut self) -> Option<&mut sheaf::Changes> {
        if let Feed::Waiting(wait, is_given_up) = self {
            is_given_up.store(true, Ordering::Relaxed);
            if let Poll::Ready((changes, _)) = wait.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                *self = Feed::Idle(changes);
            }
        }
        match self {
            Feed::Idle(changes) => Some(changes),
            Feed::Waiting(..) | Feed::Closed => None,
        }
    }
}

/// The changes after a position, commit by commit. An iterator: waits for the next commit, and ends
/// when the database is closed.
#[pyclass(frozen, module = "sheaf")]
pub(crate) struct Changes {
    changes: Mutex<Feed>,
    shared: Arc<Shared>,
}

impl Changes {
    fn lock(&self, py: Python<'_>) -> MutexGuard<'_, Feed> {
        self.changes.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next commit, at most for `timeout` if it is given. Returns the exception of a
    /// signal handler, or the result of the library.
    fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<Next> {
        let mut left = timeout;
        loop {
            if self.shared.open(py).is_err() {
                return Ok(Err(Error::Closed));
            }
            let mut guard = self.lock(py);
            let Some(changes) = guard.changes() else { return Ok(Err(Error::Closed)) };
            let wait = left.unwrap_or(SIGNAL_INTERVAL).min(SIGNAL_INTERVAL);
            left = left.map(|left| left - wait);
            match py.detach(|| changes.next_within(wait)) {
                Ok(None) if left.is_none_or(|left| !left.is_zero()) => drop(guard),
                result => return Ok(result),
            }
            py.check_signals()?;
        }
    }

    fn commit<'py>(&self, py: Python<'py>, commit: CommittedChanges) -> PyResult<Bound<'py, Commit>> {
        let position = commit.position.to_string();
        let seq = commit.position.commit();
        let changes = PyList::empty(py);
        for change in commit.changes {
            let (keyspace, shared) = (change.keyspace.to_string(), Arc::clone(&self.shared));
            changes.append(Change { keyspace, kind: change.kind, shared })?;
        }
        Bound::new(py, Commit { position, seq, changes: changes.unbind() })
    }
}

#[pymethods]
impl Changes {
    #[new]
    #[pyo3(signature = (database, position, keyspaces, prefixes, include_unsynced))]
    fn new(
        py: Python<'_>,
        database: PyRef<'_, RawDatabase>,
        position: Option<&str>,
        keyspaces: Vec<String>,
        prefixes: Vec<Bound<'_, PyAny>>,
        include_unsynced: bool,
    ) -> PyResult<Changes> {
        let shared = Arc::clone(&database.shared);
        let opened = shared.open(py)?;
        let from = position.map(|position| parse(py, &shared, position)).transpose()?;
        let changes =
            py.detach(|| from.map_or_else(|| opened.oldest_change(), Ok).and_then(|at| opened.changes(at)));
        let mut changes = changes.map_err(|error| shared.exception(py, &error))?;
        for name in keyspaces {
            changes = changes.keyspace(name);
        }
        for prefix in prefixes {
            changes = changes.prefix(&*Input::new(&prefix)?);
        }
        if include_unsynced {
            changes = changes.include_unsynced();
        }
        Ok(Changes { changes: Mutex::new(Feed::Idle(changes)), shared })
    }

    /// Position after all commits that were returned or filtered out.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.open(py)?;
        let mut guard = self.lock(py);
        let changes = guard.changes().ok_or_else(|| self.shared.exception(py, &Error::Closed))?;
        Ok(changes.resume_position().to_string())
    }

    /// Return the next commit, or `None` if there is none within `timeout` seconds. Without a
    /// timeout, wait for it.
    #[pyo3(signature = (timeout=None))]
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, Commit>>> {
        let timeout = timeout.map(|timeout| seconds("timeout", timeout)).transpose()?;
        let commit = self.wait(py, timeout)?.map_err(|error| self.shared.exception(py, &error))?;
        commit.map(|commit| self.commit(py, commit)).transpose()
    }

    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, Commit>>> {
        match self.wait(py, None)? {
            Ok(commit) => commit.map(|commit| self.commit(py, commit)).transpose(),
            Err(Error::Closed) if !self.shared.is_forked() => Ok(None),
            Err(error) => Err(self.shared.exception(py, &error)),
        }
    }

    /// Return true if `next(0)` may return a commit or raise an error. Otherwise `notifier` reports
    /// `number` when it may.
    fn poll_ready(&self, py: Python<'_>, notifier: PyRef<'_, PollNotifier>, number: u64) -> PyResult<bool> {
        self.shared.open(py)?;
        let mut feed = self.lock(py);
        *feed = match mem::replace(&mut *feed, Feed::Closed) {
            Feed::Idle(changes) => Feed::waiting(changes),
            other => other,
        };
        let Feed::Waiting(wait, _) = &mut *feed else {
            return Err(self.shared.exception(py, &Error::Closed));
        };
        match notifier.poll(number, wait.as_mut()) {
            Poll::Pending => Ok(false),
            Poll::Ready((changes, result)) => {
                *feed = Feed::Idle(changes);
                result.map(|()| true).map_err(|error| self.shared.exception(py, &error))
            }
        }
    }

    /// Free the feed. Further calls raise `ClosedError`.
    fn close(&self, py: Python<'_>) {
        if self.shared.is_forked() {
            return; // another thread of the parent may have held the lock
        }
        let changes = mem::replace(&mut *self.lock(py), Feed::Closed);
        py.detach(|| drop(changes));
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_arguments))]
    fn __exit__(&self, py: Python<'_>, _arguments: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("change feed"))
    }
}

/// All changes of one commit.
#[pyclass(frozen, module = "sheaf")]
pub(crate) struct Commit {
    /// Position after the commit.
    #[pyo3(get)]
    position: String,
    /// Number of the commit.
    #[pyo3(get)]
    seq: u64,
    /// The changes, in the order of the batch.
    #[pyo3(get)]
    changes: Py<PyList>,
}

/// One change of a commit.
#[pyclass(frozen, module = "sheaf")]
pub(crate) struct Change {
    /// Name of the keyspace.
    #[pyo3(get)]
    keyspace: String,
    kind: ChangeKind,
    shared: Arc<Shared>,
}

impl Change {
    fn value(&self) -> Option<&ChangeValue> {
        match &self.kind {
            ChangeKind::Put { value, .. } => Some(value),
            _ => None,
        }
    }
}

#[pymethods]
impl Change {
    /// Kind of the change: `put`, `removed`, `range_removed`, `expired`, `created`, `cleared`,
    /// `loaded`, `converted`, `renamed` or `dropped`.
    #[getter]
    fn kind(&self) -> &'static str {
        match &self.kind {
            ChangeKind::RangeRemoved { .. } => "range_removed",
            kind => kind.name(),
        }
    }

    /// Key of the change, or first key of a removed range; `None` for a change of a keyspace.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.kind.key().map(|key| PyBytes::new(py, key))
    }

    /// Key after a removed range; `None` if the range has no end.
    #[getter]
    fn end<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.kind {
            ChangeKind::RangeRemoved { end: Some(end), .. } => Some(PyBytes::new(py, end)),
            _ => None,
        }
    }

    /// New name of a keyspace that was renamed.
    #[getter]
    fn to(&self) -> Option<&str> {
        match &self.kind {
            ChangeKind::Renamed { to } => Some(to),
            _ => None,
        }
    }

    /// Length of the value of a put in bytes.
    #[getter]
    fn size(&self) -> Option<usize> {
        self.value().map(ChangeValue::len)
    }

    /// Seconds since 1970 at which the pair expires, if it does.
    #[getter]
    fn expires_at(&self) -> Option<f64> {
        match &self.kind {
            ChangeKind::Put { expires_at: Some(time), .. } => {
                time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs_f64())
            }
            _ => None,
        }
    }

    /// Engine of a keyspace that was created, loaded or converted.
    #[getter]
    fn engine(&self) -> Option<&str> {
        self.kind.engine().map(|(engine, _)| engine)
    }

    /// Options of this keyspace that differ from the defaults.
    #[getter]
    fn options<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, value) in self.kind.engine().map_or(&[][..], |(_, options)| options) {
            dict.set_item(name.replace('-', "_"), value)?;
        }
        Ok(dict)
    }

    /// Return the value of a put, and `None` for other kinds. Read a large value from its file.
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let Some(value) = self.value() else { return Ok(None) };
        self.shared.open(py)?;
        let bytes = py.detach(|| value.read()).map_err(|error| self.shared.exception(py, &error))?;
        Ok(Some(PyBytes::new(py, &bytes)))
    }

    fn __repr__(&self) -> String {
        format!("<sheaf.Change {:?} of {:?}>", self.kind(), self.keyspace)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("change"))
    }
}

/// Named, durable position of a consumer.
#[pyclass(frozen, subclass, module = "sheaf._sheaf")]
pub(crate) struct RawChangeCursor {
    cursor: ChangeCursor,
    shared: Arc<Shared>,
}

#[pymethods]
impl RawChangeCursor {
    /// Open a named cursor, and create it if it is missing.
    #[new]
    fn new(py: Python<'_>, database: PyRef<'_, RawDatabase>, name: &str) -> PyResult<RawChangeCursor> {
        let shared = Arc::clone(&database.shared);
        let opened = shared.open(py)?;
        let cursor =
            py.detach(|| opened.change_cursor(name)).map_err(|error| shared.exception(py, &error))?;
        Ok(RawChangeCursor { cursor, shared })
    }

    /// Name of the cursor.
    #[getter]
    fn name(&self) -> &str {
        self.cursor.name()
    }

    /// Position that was committed last.
    #[getter]
    fn position(&self, py: Python<'_>) -> PyResult<String> {
        self.shared.open(py)?;
        let position =
            py.detach(|| self.cursor.position()).map_err(|error| self.shared.exception(py, &error))?;
        Ok(position.to_string())
    }

    /// Move the cursor to a position, durably.
    fn commit(&self, py: Python<'_>, position: &str) -> PyResult<()> {
        self.shared.open(py)?;
        let position = parse(py, &self.shared, position)?;
        py.detach(|| self.cursor.commit(position)).map_err(|error| self.shared.exception(py, &error))
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("change cursor"))
    }
}
