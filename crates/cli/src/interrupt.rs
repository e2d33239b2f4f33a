//! # Interrupts: signals that ask a verb to end
//!
//! A verb that writes output watches for SIGINT, SIGTERM and SIGHUP, removes its partial output,
//! and ends with exit code 128 + the number of the signal. All other verbs end by the signal at
//! once.
//!
//! ## Invariants
//!
//! 1. A signal that the process was told to ignore stays ignored (`nohup`, background jobs).
//! 2. A second SIGINT ends the process at once, even during removal. The next run recognises
//!    the files that are left.
//! 3. A read through [`InterruptibleFile`] ends when a signal arrives, however long its input stays
//!    silent. (On Windows it ends with the next input.)

use std::fs::File;
use std::io::{self, Read};
use std::ops::ControlFlow;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::Arc;
#[cfg(unix)]
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::failure::{Failure, Result};

/// Watches for signals from its creation to the end of the process.
pub(crate) struct Interrupt {
    /// Number of the last signal; zero if there was none.
    caught: Arc<AtomicUsize>,
    /// Gets a byte with each signal.
    #[cfg(unix)]
    wake_pipe: UnixStream,
}

impl Interrupt {
    /// Starts to watch.
    ///
    /// # Errors
    ///
    /// Fails if the system refuses a pipe or a handler.
    pub(crate) fn watch() -> Result<Interrupt> {
        Interrupt::begin().map_err(Failure::stream("watch for", "signals"))
    }

    /// Watches for the signals that Windows emulates: Ctrl-C and the end of the session.
    #[cfg(not(unix))]
    fn begin() -> io::Result<Interrupt> {
        let caught = Arc::new(AtomicUsize::new(0));
        for signal in [SIGINT, SIGTERM] {
            flag::register_usize(signal, Arc::clone(&caught), usize::try_from(signal).unwrap_or(0))?;
        }
        Ok(Interrupt { caught })
    }

    #[cfg(unix)]
    fn begin() -> io::Result<Interrupt> {
        use signal_hook::consts::SIGHUP;
        use signal_hook::low_level;
        let caught = Arc::new(AtomicUsize::new(0));
        let (woken, wake) = UnixStream::pair()?;
        let ignored = ignored();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            if ignored & (1 << (signal - 1)) != 0 {
                continue; // (I1)
            }
            flag::register_usize(signal, Arc::clone(&caught), usize::try_from(signal).unwrap_or(0))?;
            low_level::pipe::register(signal, wake.try_clone()?)?;
            if signal == SIGINT {
                // In this order: the first signal passes the first handler and arms it. (I2)
                let armed = Arc::new(AtomicBool::new(false));
                flag::register_conditional_default(signal, Arc::clone(&armed))?;
                flag::register(signal, armed)?;
            }
        }
        Ok(Interrupt { caught, wake_pipe: woken })
    }

    /// Returns true if a signal has arrived.
    pub(crate) fn is_caught(&self) -> bool {
        self.caught.load(Ordering::SeqCst) != 0
    }

    /// Returns `Break` once a signal has arrived, for progress callbacks of the library.
    pub(crate) fn control_flow(&self) -> ControlFlow<()> {
        if self.is_caught() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Fails once a signal has arrived; `left` returns a text about the state that remains.
    pub(crate) fn check(&self, left: impl FnOnce() -> String) -> Result {
        match self.caught.load(Ordering::SeqCst) {
            0 => Ok(()),
            signal => Err(Failure::Interrupted { signal: u8::try_from(signal).unwrap_or(0), left: left() }),
        }
    }

    /// Returns the result of a call that a progress callback may have cancelled.
    pub(crate) fn map_cancelled<T>(
        &self,
        result: sheaf::Result<T>,
        left: impl FnOnce() -> String,
    ) -> Result<T> {
        match result {
            Err(sheaf::Error::Cancelled) => {
                self.check(left)?;
                Err(sheaf::Error::Cancelled.into())
            }
            other => Ok(other?),
        }
    }
}

/// Returns the signals that this process ignores, signal `n` as bit `n - 1`; 0 without /proc.
#[cfg(unix)]
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// File or pipe. A signal ends a read with an error.
pub(crate) struct InterruptibleFile<'a> {
    pub(crate) file: File,
    pub(crate) interrupt: &'a Interrupt,
}

impl Read for InterruptibleFile<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.interrupt.is_caught() {
                return Err(io::Error::other("interrupted"));
            }
            if self.wait_for_input()? {
                return self.file.read(bytes);
            }
        }
    }
}

impl InterruptibleFile<'_> {
    /// Waits for input or a signal. Returns true if a read does not block.
    #[cfg(unix)]
    fn wait_for_input(&self) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, poll};
        let mut ready =
            [PollFd::new(&self.file, PollFlags::IN), PollFd::new(&self.interrupt.wake_pipe, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) => Ok(!ready[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns true: a read ends without a signal only if there is input.
    #[cfg(not(unix))]
    fn wait_for_input(&self) -> io::Result<bool> {
        Ok(true)
    }
}
