//! # Waits of asyncio: futures of the library, and a descriptor that reports their progress
//!
//! ```text
//!  poll ── pending ──> waker in the library ── wakes ──> number in a list, byte in a socket
//!                                                                  │
//!  event loop: the socket is readable ─> `take` returns the numbers ┘─> polls those waits again
//! ```
//!
//! ## Invariants
//!
//! 1. A waker runs in a thread of the library. It neither attaches to Python nor blocks: it adds a
//!    number to a list, and writes to a non-blocking socket. If the socket is full, the event loop
//!    has bytes to read, and takes the number with them.
//! 2. The number is in the list before its byte is in the socket. `take` empties the socket before
//!    it reads the list. So no number stays in the list without a byte in the socket.

use std::future::Future;
use std::io::{Read, Write};
use std::mem;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use pyo3::prelude::*;
use pyo3::sync::MutexExt;
use sheaf::{CommitFuture, Error};

use crate::shared::{Shared, refuse_pickle};

/// Sockets and list of one event loop.
struct Woken {
    numbers: Mutex<Vec<u64>>,
    /// Read by the event loop.
    receiver: UnixStream,
    /// Written by wakers.
    sender: UnixStream,
}

impl Woken {
    fn numbers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct NumberWaker {
    woken: Arc<Woken>,
    number: u64,
}

impl Wake for NumberWaker {
    fn wake(self: Arc<Self>) {
        self.woken.numbers().push(self.number);
        // (I1) An error means that the socket is full.
        let _ = (&self.woken.sender).write(&[0]);
    }
}

/// Descriptor that is readable when a wait of an event loop can be polled again.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct PollNotifier(Arc<Woken>);

impl PollNotifier {
    /// Polls `future`. Its waker reports `number`.
    pub(crate) fn poll<F: Future + ?Sized>(&self, number: u64, future: Pin<&mut F>) -> Poll<F::Output> {
        let waker = Waker::from(Arc::new(NumberWaker { woken: Arc::clone(&self.0), number }));
        future.poll(&mut Context::from_waker(&waker))
    }
}

#[pymethods]
impl PollNotifier {
    #[new]
    fn new() -> PyResult<PollNotifier> {
        let (receiver, sender) = UnixStream::pair()?;
        receiver.set_nonblocking(true)?;
        sender.set_nonblocking(true)?;
        Ok(PollNotifier(Arc::new(Woken { numbers: Mutex::default(), receiver, sender })))
    }

    fn fileno(&self) -> RawFd {
        self.0.receiver.as_raw_fd()
    }

    /// Return the numbers of the waits to poll, and forget them.
    fn take(&self) -> Vec<u64> {
        let mut bytes = [0; 512];
        while (&self.0.receiver).read(&mut bytes).is_ok_and(|len| len == bytes.len()) {}
        mem::take(&mut *self.0.numbers())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(refuse_pickle("notifier"))
    }
}

/// Wait for the durability of a commit.
#[pyclass(frozen, module = "sheaf._sheaf")]
pub(crate) struct CommitWait {
    future: Mutex<CommitFuture>,
    shared: Arc<Shared>,
}

impl CommitWait {
    pub(crate) fn new(future: CommitFuture, shared: Arc<Shared>) -> CommitWait {
        CommitWait { future: Mutex::new(future), shared }
    }
}

#[pymethods]
impl CommitWait {
    /// Return true if the wait is over. Otherwise `notifier` reports `number` when it is to be
    /// polled again.
    fn poll(&self, py: Python<'_>, notifier: PyRef<'_, PollNotifier>, number: u64) -> PyResult<bool> {
        if self.shared.is_forked() {
            return Err(self.shared.exception(py, &Error::Closed));
        }
        let mut future = self.future.lock_py_attached(py).unwrap_or_else(PoisonError::into_inner);
        match notifier.poll(number, Pin::new(&mut *future)) {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(())) => Ok(true),
            Poll::Ready(Err(error)) => Err(self.shared.exception(py, &error)),
        }
    }
}
