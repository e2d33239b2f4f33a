//! # Line: the state of one connection
//!
//! ```text
//!  greeting ─> nothing <─> working ─> lending
//!       └─────────┴─ replaced by another guest ─> shown out
//! ```
//!
//! The state is locked while a message is sent. A sign of life therefore never interrupts a message
//! or follows the last message of a listing, and a guest with a pending request is never replaced.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sheaf_base::clock::{Clock, SystemClock};

use super::message::Reply;
use super::wire;

/// Activity of a guest thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    /// Waits for the hello.
    Greeting,
    /// Waits for a request.
    Nothing,
    /// Serves a request.
    Working,
    /// Keeps a snapshot for the guest and sends nothing.
    Lending,
    /// Ends: another guest replaces this one.
    ShownOut,
}

/// A connection.
pub(super) struct Line {
    stream: UnixStream,
    process: Option<i32>,
    state: Mutex<State>,
}

struct State {
    doing: Doing,
    since: Duration,
}

impl Line {
    /// Wraps a connection on which nothing was received.
    pub(super) fn new(stream: UnixStream) -> Line {
        let peer = rustix::net::sockopt::socket_peercred(&stream);
        let process = peer.ok().map(|peer| peer.pid.as_raw_nonzero().get());
        let state = Mutex::new(State { doing: Doing::Greeting, since: SystemClock.now() });
        Line { stream, process, state }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the process id of the peer.
    pub(super) fn process(&self) -> Option<i32> {
        self.process
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the activity of the guest thread. Returns false if the guest was replaced.
    pub(super) fn begin(&self, doing: Doing) -> bool {
        let mut state = self.state();
        if state.doing == Doing::ShownOut {
            return false;
        }
        *state = State { doing, since: SystemClock.now() };
        true
    }

    /// Sends a message.
    pub(super) fn say(&self, message: &[u8]) -> io::Result<()> {
        let _state = self.state();
        wire::send(&self.stream, message)
    }

    /// Sends the last message of a listing. Returns false if that failed.
    pub(super) fn lend(&self, message: &[u8]) -> bool {
        let mut state = self.state();
        state.doing = Doing::Lending;
        wire::send(&self.stream, message).is_ok()
    }

    /// Sends a sign of life if a request is running and sending does not block. Returns true if a
    /// request is running.
    pub(super) fn pulse(&self) -> bool {
        let Ok(state) = self.state.try_lock() else { return true }; // a message is being sent
        if state.doing != Doing::Working {
            return false;
        }
        if wire::has_room(&self.stream) {
            let _ = wire::send(&self.stream, &Reply::Working.encode()); // its thread detects errors
        }
        true
    }

    /// Returns the start of the idle time; `None` if a request is running or a snapshot is
    /// exported.
    pub(super) fn idle_since(&self) -> Option<Duration> {
        let state = self.state.try_lock().ok()?;
        matches!(state.doing, Doing::Greeting | Doing::Nothing).then_some(state.since)
    }

    /// Returns true if another guest replaces this one.
    pub(super) fn is_shown_out(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.doing == Doing::ShownOut)
    }

    /// Ends the connection if it has been idle for `after`, and returns true in this case.
    pub(super) fn show_out(&self, after: Duration) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        let is_idle = matches!(state.doing, Doing::Greeting | Doing::Nothing);
        if !is_idle || SystemClock.now().saturating_sub(state.since) < after {
            return false;
        }
        state.doing = Doing::ShownOut;
        drop(state);
        self.hang_up();
        true
    }

    /// Ends the connection; its thread detects that.
    pub(super) fn hang_up(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(stream: &UnixStream) -> Option<Vec<u8>> {
        stream.set_nonblocking(true).unwrap();
        wire::receive(stream).ok().flatten()
    }

    #[test]
    fn signs_of_life_come_while_a_request_is_under_way_and_at_no_other_time() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = Line::new(ours);
        let working = Some(Reply::Working.encode());
        assert!(!line.pulse() && line.begin(Doing::Nothing) && !line.pulse());
        assert_eq!(heard(&theirs), None);
        assert!(line.begin(Doing::Working) && line.pulse());
        assert_eq!((heard(&theirs), heard(&theirs)), (working, None));
        assert!(line.lend(b"done") && !line.pulse());
        assert_eq!((heard(&theirs), heard(&theirs)), (Some(b"done".to_vec()), None));
        assert_eq!(line.process().and_then(|pid| u32::try_from(pid).ok()), Some(std::process::id()));
    }

    #[test]
    fn a_guest_that_asks_is_not_shown_out_and_one_that_does_not_is() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = Line::new(ours);
        assert!(line.idle_since().is_some() && !line.show_out(Duration::from_secs(3600)));
        assert!(line.begin(Doing::Working) && line.idle_since().is_none() && !line.show_out(Duration::ZERO));
        assert!(line.begin(Doing::Nothing) && line.show_out(Duration::ZERO) && line.is_shown_out());
        assert!(!line.begin(Doing::Working) && !line.pulse());
        assert!(matches!(wire::receive(&theirs), Ok(None)), "it learns it");
    }
}
