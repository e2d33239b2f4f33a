//! # Line: the state of one connection
//!
//! ```text
//!  greeting ─> nothing <─> working ─> lending
//!       └─────────┴─ replaced by another client ─> closed
//! ```
//!
//! The state is locked while a message is sent. A sign of life therefore never interrupts a message
//! or follows the last message of a listing, and a client with a pending request is never replaced.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sheaf_platform::clock::{Clock, SystemClock};
use sheaf_platform::unix_socket::Peer;

use super::message::IpcReply;
use super::wire;

/// Activity of a connection thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionActivity {
    /// Waits for the hello.
    Handshake,
    /// Waits for a request.
    Idle,
    /// Serves a request.
    Working,
    /// Keeps a snapshot for the client and sends nothing.
    Exporting,
    /// Ends: another client replaces this one.
    Evicted,
}

/// A connection.
pub(super) struct ConnectionState {
    stream: UnixStream,
    pid: Option<i32>,
    state: Mutex<ActivityState>,
}

struct ActivityState {
    activity: ConnectionActivity,
    since: Duration,
}

impl ConnectionState {
    /// Wraps a connection on which nothing was received.
    pub(super) fn new(stream: UnixStream) -> ConnectionState {
        let process = Peer::of(&stream).ok().and_then(|peer| peer.pid);
        let state =
            Mutex::new(ActivityState { activity: ConnectionActivity::Handshake, since: SystemClock.now() });
        ConnectionState { stream, pid: process, state }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Returns the process id of the peer.
    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    fn state(&self) -> MutexGuard<'_, ActivityState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the activity of the connection thread. Returns false if the client was replaced.
    pub(super) fn set_activity(&self, doing: ConnectionActivity) -> bool {
        let mut state = self.state();
        if state.activity == ConnectionActivity::Evicted {
            return false;
        }
        *state = ActivityState { activity: doing, since: SystemClock.now() };
        true
    }

    /// Sends a message.
    pub(super) fn send(&self, message: &[u8]) -> io::Result<()> {
        let _state = self.state();
        wire::send(&self.stream, message)
    }

    /// Sends the last message of a listing. Returns false if that failed.
    pub(super) fn start_export(&self, message: &[u8]) -> bool {
        let mut state = self.state();
        state.activity = ConnectionActivity::Exporting;
        wire::send(&self.stream, message).is_ok()
    }

    /// Sends a sign of life if a request is running and sending does not block. Returns true if a
    /// request is running.
    pub(super) fn send_heartbeat(&self) -> bool {
        let Ok(state) = self.state.try_lock() else { return true }; // a message is being sent
        if state.activity != ConnectionActivity::Working {
            return false;
        }
        if wire::can_send(&self.stream) {
            let _ = wire::send(&self.stream, &IpcReply::Heartbeat.encode()); // errors: its thread
        }
        true
    }

    /// Returns the start of the idle time; `None` if a request is running or a snapshot is
    /// exported.
    pub(super) fn idle_since(&self) -> Option<Duration> {
        let state = self.state.try_lock().ok()?;
        matches!(state.activity, ConnectionActivity::Handshake | ConnectionActivity::Idle)
            .then_some(state.since)
    }

    /// Returns true if another client replaces this one.
    pub(super) fn is_evicted(&self) -> bool {
        self.state.try_lock().is_ok_and(|state| state.activity == ConnectionActivity::Evicted)
    }

    /// Ends the connection if it has been idle for `after`, and returns true in this case.
    pub(super) fn evict_if_idle(&self, after: Duration) -> bool {
        let Ok(mut state) = self.state.try_lock() else { return false };
        let is_idle = matches!(state.activity, ConnectionActivity::Handshake | ConnectionActivity::Idle);
        if !is_idle || SystemClock.now().saturating_sub(state.since) < after {
            return false;
        }
        state.activity = ConnectionActivity::Evicted;
        drop(state);
        self.shutdown();
        true
    }

    /// Ends the connection; its thread detects that.
    pub(super) fn shutdown(&self) {
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
    fn heartbeats_are_sent_only_during_a_request() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = ConnectionState::new(ours);
        let working = Some(IpcReply::Heartbeat.encode());
        assert!(
            !line.send_heartbeat() && line.set_activity(ConnectionActivity::Idle) && !line.send_heartbeat()
        );
        assert_eq!(heard(&theirs), None);
        assert!(line.set_activity(ConnectionActivity::Working) && line.send_heartbeat());
        assert_eq!((heard(&theirs), heard(&theirs)), (working, None));
        assert!(line.start_export(b"done") && !line.send_heartbeat());
        assert_eq!((heard(&theirs), heard(&theirs)), (Some(b"done".to_vec()), None));
        assert_eq!(line.pid().and_then(|pid| u32::try_from(pid).ok()), Some(std::process::id()));
    }

    #[test]
    fn only_an_idle_connection_is_evicted() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let line = ConnectionState::new(ours);
        assert!(line.idle_since().is_some() && !line.evict_if_idle(Duration::from_secs(3600)));
        assert!(
            line.set_activity(ConnectionActivity::Working)
                && line.idle_since().is_none()
                && !line.evict_if_idle(Duration::ZERO)
        );
        assert!(
            line.set_activity(ConnectionActivity::Idle)
                && line.evict_if_idle(Duration::ZERO)
                && line.is_evicted()
        );
        assert!(!line.set_activity(ConnectionActivity::Working) && !line.send_heartbeat());
        assert!(matches!(wire::receive(&theirs), Ok(None)), "it learns it");
    }
}
