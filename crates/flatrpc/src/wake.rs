//! # Wake-ups: sleeping without missing an event
//!
//! ```text
//!   sleeper:  sets its sleep flag ── fence ── polls once more ── sleeps if there is no event
//!   waker:    writes its event ────── fence ── reads the flag ── notifies if it is set
//! ```
//!
//! One of the two fences is first. All writes before it are visible after the other fence. So
//! either the sleeper sees the event, or the waker sees the flag. A notification persists until a
//! sleeper consumes it.
//!
//! ## Costs
//!
//! A waker executes a fence and a load. It makes a system call only if the peer sleeps.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use sheaf_platform::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::SharedMemory;

/// Means to wake a sleeping thread. A notification persists until a sleeper consumes it.
pub trait PeerNotifier {
    /// Wakes the sleeper.
    fn notify(&self);
}

/// Notifies through an eventfd.
impl PeerNotifier for OwnedFd {
    fn notify(&self) {
        // If the counter is full, earlier notifications have already woken the sleeper.
        let _ = rustix::io::write(self, &1u64.to_le_bytes());
    }
}

/// Notifier for an untrusted sleeper. Each process with an eventfd can make it blocking and can
/// fill it. A write could then block. Only the sender decides whether `send` on a socket blocks.
#[derive(Debug)]
pub struct SocketNotifier(OwnedFd);

impl SocketNotifier {
    /// Returns the notifier, and the descriptor on which the sleeper waits and reads.
    ///
    /// # Errors
    ///
    /// Returns the errors of the system calls.
    pub fn new() -> io::Result<(SocketNotifier, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Minimal buffer: it holds a few notifications, which the sleeper consumes with one read.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 0)?;
        Ok((SocketNotifier(ours), theirs))
    }

    /// Returns another notifier for the same sleeper.
    ///
    /// # Errors
    ///
    /// Returns the error of duplicating the descriptor.
    pub fn try_clone(&self) -> io::Result<SocketNotifier> {
        self.0.try_clone().map(SocketNotifier)
    }
}

impl PeerNotifier for SocketNotifier {
    fn notify(&self) {
        // A full buffer has already woken the sleeper. Without a sleeper there is nothing to wake.
        let _ = rustix::net::send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Sleep flag and notifier of a peer.
#[derive(Debug)]
pub struct PeerWaker<B = OwnedFd> {
    /// Memory with the sleep flag.
    pub sleep_flags: Arc<SharedMemory>,
    /// Word of the flag in that memory.
    pub flag: usize,
    /// Means to wake the peer.
    pub notifier: B,
}

impl<B: PeerNotifier> PeerWaker<B> {
    /// Wakes the peer if its sleep flag is set. The peer sees all earlier writes of this thread.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleep_flags.load_word(self.flag) != 0 {
            self.notifier.notify();
        }
    }
}

/// Guard that keeps a sleep flag set until it is dropped.
#[derive(Debug)]
pub struct SleepGuard<'a>(&'a AtomicU64);

impl<'a> SleepGuard<'a> {
    /// Sets the flag in word `at` of `board`. The caller must poll once more and only then sleep.
    #[must_use]
    pub fn set(board: &'a SharedMemory, at: usize) -> SleepGuard<'a> {
        let word = board.writable_word(at);
        word.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        SleepGuard(word)
    }
}

impl Drop for SleepGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// Notifier for models that the scheduler of the model checker controls.
#[cfg(shuttle)]
#[derive(Clone, Debug, Default)]
pub struct ModelNotifier(Arc<(sheaf_platform::sync::Mutex<bool>, sheaf_platform::sync::Condvar)>);

#[cfg(shuttle)]
impl PeerNotifier for ModelNotifier {
    fn notify(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

#[cfg(shuttle)]
impl ModelNotifier {
    /// Waits for a notification and consumes it.
    pub fn wait(&self) {
        let mut rung = self.0.0.lock();
        while !*rung {
            self.0.1.wait(&mut rung);
        }
        *rung = false;
    }

    /// Consumes a notification. Returns true if there was one.
    pub fn take(&self) -> bool {
        std::mem::take(&mut *self.0.0.lock())
    }
}
