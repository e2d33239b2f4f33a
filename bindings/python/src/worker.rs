//! # Long calls: a worker thread runs them, the calling thread checks for signals
//!
//! ## Invariants
//!
//! 1. Callbacks of the user run in the calling thread. While one runs, the worker waits.
//! 2. After an exception of a callback or a signal handler, a call that can be cancelled is
//!    cancelled, and the exception is raised when the worker has ended. A call that cannot be
//!    cancelled continues in its thread, and the exception is raised at once.
//!
//! ## Costs
//!
//! Starting a thread: about 30 microseconds for each call.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::lost_worker;

/// Time between two checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(20);

enum Message<P, T> {
    Progress(P),
    Done(T),
}

/// Connection of a worker to the thread that called it.
pub(crate) struct Caller<P, T> {
    messages: Sender<Message<P, T>>,
    replies: Receiver<ControlFlow<()>>,
    is_cancelled: Arc<AtomicBool>,
}

impl<P, T> Caller<P, T> {
    /// Passes `progress` to the callback, and returns `Break` if the call is to be cancelled.
    pub(crate) fn report(&self, progress: P) -> ControlFlow<()> {
        if self.is_cancelled.load(Ordering::Relaxed)
            || self.messages.send(Message::Progress(progress)).is_err()
        {
            return ControlFlow::Break(());
        }
        self.replies.recv().unwrap_or(ControlFlow::Break(()))
    }
}

/// Runs `work` in a thread and waits for its result. `callback` gets its progress; an exception
/// cancels the call.
///
/// # Errors
///
/// Returns the exception of the callback or of a signal handler.
pub(crate) fn run<P: Send + 'static, T: Send + 'static>(
    py: Python<'_>,
    can_cancel: bool,
    work: impl FnOnce(&Caller<P, T>) -> T + Send + 'static,
    mut callback: impl FnMut(P) -> PyResult<()>,
) -> PyResult<T> {
    let (send_message, messages) = channel();
    let (send_reply, replies) = channel();
    let is_cancelled = Arc::new(AtomicBool::new(false));
    let caller = Caller { messages: send_message, replies, is_cancelled: Arc::clone(&is_cancelled) };
    std::thread::Builder::new().name("sheaf-python".to_owned()).spawn(move || {
        let result = work(&caller);
        // If the calling thread has returned, the result has no receiver.
        let _ = caller.messages.send(Message::Done(result));
    })?;
    let mut messages = messages;
    let mut failure = None;
    loop {
        let received;
        (messages, received) = py.detach(move || {
            let received = messages.recv_timeout(SIGNAL_INTERVAL);
            (messages, received)
        });
        match received {
            Ok(Message::Done(result)) => return failure.map_or(Ok(result), Err),
            Ok(Message::Progress(progress)) => {
                failure = failure.or_else(|| callback(progress).err());
                let flow = if failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                // A worker that has ended needs no reply.
                let _ = send_reply.send(flow);
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    if !can_cancel {
                        return Err(raised);
                    }
                    is_cancelled.store(true, Ordering::Relaxed);
                    failure = failure.or(Some(raised));
                }
            }
            Err(RecvTimeoutError::Disconnected) => return Err(failure.unwrap_or_else(lost_worker)),
        }
    }
}

/// Runs `work`, which reports no progress and cannot be cancelled, in a thread.
///
/// # Errors
///
/// Returns the exception of a signal handler; `work` then continues.
pub(crate) fn run_to_end<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce() -> T + Send + 'static,
) -> PyResult<T> {
    run::<(), T>(py, false, move |_| work(), |()| Ok(()))
}
