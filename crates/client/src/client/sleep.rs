//! # Sleep: waits for replies, and for room in the rings of requests (I3)

use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use sheaf_flatrpc::wake::SleepGuard;

use super::Client;
use crate::connect::WakeupSource;
use crate::{ClientError, Result};

impl Client {
    /// Waits until a reply has arrived.
    pub(super) fn wait_for_any(&mut self) -> Result<()> {
        while !self.take_replies()? {
            self.sleep(None, self.timeout)?;
        }
        Ok(())
    }

    /// Returns true if there is a reason not to sleep: a reply, or room in the ring of `worker`.
    fn has_work(&mut self, worker: Option<usize>) -> bool {
        let room = worker.is_some_and(|worker| {
            // The push reports the error.
            self.requests[worker].has_room_for_any_record(&self.inbox).unwrap_or(true)
        });
        room || self.replies.iter().any(|replies| replies.ring.has_record(&self.inbox))
    }

    /// Waits until the server has written something. May return early.
    pub(super) fn sleep(&mut self, worker: Option<usize>, timeout: Option<Timespec>) -> Result<()> {
        let flushed = self.flush()?;
        if matches!(self.events, WakeupSource::Tcp { .. }) {
            return self.poll_sockets(flushed, timeout);
        }
        let mut spin = std::mem::take(&mut self.spin);
        let seen = spin.spin_until(|| self.has_work(worker));
        self.spin = spin;
        if seen {
            return Ok(());
        }
        let WakeupSource::SharedMemory { peer, .. } = &self.events else { return Ok(()) };
        let peer = Arc::clone(peer);
        let asleep = SleepGuard::set(&peer, self.sleep_flag);
        let polled = if self.has_work(worker) { Ok(()) } else { self.poll_bell(timeout) };
        drop(asleep);
        self.spin.after_sleep();
        polled
    }

    fn poll_bell(&mut self, timeout: Option<Timespec>) -> Result<()> {
        let WakeupSource::SharedMemory { bell, socket, .. } = &self.events else { return Ok(()) };
        let mut polled = [PollFd::new(bell, PollFlags::IN), PollFd::new(socket, PollFlags::RDHUP)];
        let count = poll(&mut polled, timeout)?;
        if polled[1].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR) {
            self.is_lost = true; // replies that arrived before are still taken
            return Ok(());
        }
        let mut count_of_rings = [0; 8];
        // Does not block; there may be nothing to read.
        let _ = rustix::io::read(bell, &mut count_of_rings);
        if count == 0 { Err(ClientError::TimedOut) } else { Ok(()) }
    }

    fn poll_sockets(&mut self, flushed: bool, timeout: Option<Timespec>) -> Result<()> {
        let WakeupSource::Tcp { sockets, .. } = &self.events else { return Ok(()) };
        let events = if flushed { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut polled: Vec<PollFd<'_>> =
            sockets.iter().map(|socket| PollFd::new(&**socket, events)).collect();
        match poll(&mut polled, timeout)? {
            0 => Err(ClientError::TimedOut),
            _ => Ok(()),
        }
    }
}

/// Polls and returns the number of ready descriptors; 1 after an interruption, so that it does not
/// count as a timeout.
fn poll(polled: &mut [PollFd<'_>], timeout: Option<Timespec>) -> Result<usize> {
    match rustix::event::poll(polled, timeout.as_ref()) {
        Err(rustix::io::Errno::INTR) => Ok(1),
        other => Ok(other?),
    }
}
