//! # Wake: sleeping without missing what comes meanwhile
//!
//! ```text
//!   sleeper:  says that it sleeps ── fence ── looks once more ── sleeps if there is nothing
//!   waker:    writes its news ────── fence ── looks who sleeps ── rings
//! ```
//!
//! One of the two fences is first: then what was written before it is seen after the other. So the
//! sleeper sees the news, or the waker sees the sleeper. A bell keeps a ring until somebody waits
//! for it.
//!
//! ## Costs
//!
//! A waker pays a fence and a load; a system call only if there is a sleeper.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};
use sheaf_base::sync::atomic::{AtomicU64, Ordering, fence};

use crate::memory::SharedMemory;

/// What wakes a sleeper. A ring that nobody waits for is kept.
pub trait Notifier {
    /// Rings it.
    fn notify(&self);
}

/// An eventfd.
impl Notifier for OwnedFd {
    fn notify(&self) {
        let _ = rustix::io::write(self, &1u64.to_le_bytes()); // a full counter has woken the sleeper already
    }
}

/// A bell for a sleeper that is not trusted. Whether a write to an eventfd waits is up to each
/// process that has it, and they can fill it; whether this sends without waiting is up to the
/// sender alone.
#[derive(Debug)]
pub struct SocketNotifier(OwnedFd);

impl SocketNotifier {
    /// A rope, and what the sleeper waits for and reads.
    pub fn new() -> io::Result<(SocketNotifier, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // As little as can be: a few rings, which one read takes.
        rustix::net::sockopt::set_socket_send_buffer_size(&ours, 0)?;
        Ok((SocketNotifier(ours), theirs))
    }

    /// One more end of the same rope.
    pub fn try_clone(&self) -> io::Result<SocketNotifier> {
        self.0.try_clone().map(SocketNotifier)
    }
}

impl Notifier for SocketNotifier {
    fn notify(&self) {
        // One that is full has woken the sleeper already; one without a sleeper has nobody to wake.
        let _ = rustix::net::send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

/// Who is to be woken, and how.
#[derive(Debug)]
pub struct PeerWaker<B = OwnedFd> {
    /// Where the sleeper says that it sleeps.
    pub sleep_flags: Arc<SharedMemory>,
    /// Which word of it.
    pub flag: usize,
    /// What wakes it.
    pub notifier: B,
}

impl<B: Notifier> PeerWaker<B> {
    /// Wakes the sleeper if it says that it sleeps. What was written before is seen by it.
    #[inline]
    pub fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.sleep_flags.word(self.flag).load(Ordering::Relaxed) != 0 {
            self.notifier.notify();
        }
    }
}

/// Says that somebody sleeps, as long as it lives.
#[derive(Debug)]
pub struct SleepGuard<'a>(&'a AtomicU64);

impl<'a> SleepGuard<'a> {
    /// Says so in the word `at` of `board`. Look once more after this, and then wait for the bell.
    #[must_use]
    pub fn set(board: &'a SharedMemory, at: usize) -> SleepGuard<'a> {
        let word = board.word(at);
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

/// A bell for models, which a scheduler sees.
#[cfg(shuttle)]
#[derive(Clone, Debug, Default)]
pub struct ModelNotifier(Arc<(sheaf_base::sync::Mutex<bool>, sheaf_base::sync::Condvar)>);

#[cfg(shuttle)]
impl Notifier for ModelNotifier {
    fn notify(&self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

#[cfg(shuttle)]
impl ModelNotifier {
    /// Waits until it is rung, or was since it was last waited for.
    pub fn wait(&self) {
        let mut rung = self.0.0.lock();
        while !*rung {
            self.0.1.wait(&mut rung);
        }
        *rung = false;
    }

    /// Whether it was rung since it was last waited for or taken.
    pub fn take(&self) -> bool {
        std::mem::take(&mut *self.0.0.lock())
    }
}
