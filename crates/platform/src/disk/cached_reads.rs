//! # Cached reads: reads that must not wait for the device
//!
//! [`read_cached`] runs a read of this thread with the *cached mode* on. While it is on, a disk
//! serves bytes only from memory and refuses all other reads. An engine needs no code of its own
//! for that: each of its reads ends in a call of the disk.
//!
//! ## Invariants
//!
//! 1. A refusal stays recorded until the end of [`read_cached`], which then returns `None`. An
//!    engine that ignores the error of a read can therefore not give a wrong answer.
//! 2. In the cached mode, [`File::mapped`](super::File::mapped) of a file of the system returns
//!    `None`: an access to a mapping cannot fail. The caller then reads, and a read can fail.
//!
//! ## Threads
//!
//! The mode belongs to the calling thread. Other threads are not affected.

use std::cell::Cell;
use std::io;

use crate::sync;

/// State of the cached mode of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CachedMode {
    Off,
    On,
    /// On, and a disk has refused a read.
    Refused,
}

sync::thread_local! {
    static MODE: Cell<CachedMode> = const { Cell::new(CachedMode::Off) };
}

/// Runs `read` in the cached mode and returns its result. Returns `None` if a read was refused.
///
/// ```
/// use sheaf_platform::disk::cached_reads::{is_active, read_cached, refuse};
///
/// assert_eq!(read_cached(|| is_active()), Some(true));
/// assert_eq!(read_cached(|| refuse().kind()), None);
/// assert!(!is_active());
/// ```
pub fn read_cached<T>(read: impl FnOnce() -> T) -> Option<T> {
    let mode = CachedScope(MODE.with(|mode| mode.replace(CachedMode::On)));
    let answer = read();
    let is_refused = MODE.with(Cell::get) == CachedMode::Refused;
    drop(mode);
    if is_refused { None } else { Some(answer) }
}

/// Returns whether this thread is in the cached mode.
#[inline]
#[must_use]
pub fn is_active() -> bool {
    // Fails in a thread that is ending, which is not in the cached mode.
    MODE.try_with(|mode| mode.get() != CachedMode::Off).unwrap_or(false)
}

/// Records a refusal and returns its error. The thread must be in the cached mode.
#[cold]
pub fn refuse() -> io::Error {
    MODE.with(|mode| mode.set(CachedMode::Refused));
    io::ErrorKind::WouldBlock.into()
}

/// Checks that the thread may wait for the device.
///
/// # Errors
///
/// Returns the error of [`refuse`] in the cached mode.
pub fn check_may_wait() -> io::Result<()> {
    if is_active() { Err(refuse()) } else { Ok(()) }
}

/// Restores the former mode, also after a panic.
struct CachedScope(CachedMode);

impl Drop for CachedScope {
    fn drop(&mut self) {
        MODE.with(|mode| mode.set(self.0));
    }
}
