//! # Standard streams: stdin and stdout, unless they were closed
//!
//! A shell closes a stream with `<&-` or `>&-`. Before `main` the runtime of Rust opens /dev/null
//! for a closed stream, and it accepts a stream of the wrong direction. A command that cannot read
//! its input or write its output must fail, so this module checks the streams before the runtime.
//!
//! ## Invariants
//!
//! 1. [`input`] returns an error, and each write to [`Stdout`] fails, if the descriptor was
//!    closed, or open in the other direction, when the process began.
//!
//! ## Limits
//!
//! A pipe, a file or /dev/null counts as open: `> /dev/null` is no error. On Windows nothing is
//! checked before `main`.

use std::fs::File;
use std::io::{self, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::{Failure, Result};

/// Set if descriptor 0 could not be read when the process began.
static NO_INPUT: AtomicBool = AtomicBool::new(false);
/// Set if descriptor 1 could not be written when the process began.
static NO_OUTPUT: AtomicBool = AtomicBool::new(false);

/// Records which streams are unusable. Runs before `main` and before the runtime of Rust.
#[cfg(unix)]
extern "C" fn record_open_streams() {
    NO_INPUT.store(!is_open_for(libc::STDIN_FILENO, libc::O_RDONLY), Ordering::Relaxed);
    NO_OUTPUT.store(!is_open_for(libc::STDOUT_FILENO, libc::O_WRONLY), Ordering::Relaxed);
}

#[cfg(unix)]
fn is_open_for(descriptor: libc::c_int, access: libc::c_int) -> bool {
    // SAFETY:
    // - F_GETFL takes no pointer and changes nothing; it returns -1 for a closed descriptor.
    // - libc is initialised: the functions of the section run after it.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags != -1 && [access, libc::O_RDWR].contains(&(flags & libc::O_ACCMODE))
}

// SAFETY: the loader calls each pointer in this section once, before `main`, as a C function; the
// calling convention ignores arguments that a function does not name. `look` needs nothing of the
// runtime: it calls fcntl and stores to two atomics.
#[cfg(unix)]
#[used]
#[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static RECORD_OPEN_STREAMS: extern "C" fn() = record_open_streams;

/// Returns stdin, unbuffered.
///
/// # Errors
///
/// Fails if stdin was closed when the process began.
pub(crate) fn input() -> Result<File> {
    if NO_INPUT.load(Ordering::Relaxed) {
        let source = io::Error::other("stdin is closed");
        return Err(Failure::Stream { op: "read", path: "stdin".into(), source });
    }
    #[cfg(unix)]
    let own = std::os::fd::AsFd::as_fd(&io::stdin()).try_clone_to_owned();
    #[cfg(windows)]
    let own = std::os::windows::io::AsHandle::as_handle(&io::stdin()).try_clone_to_owned();
    Ok(own.map_err(Failure::stream("read", "stdin"))?.into())
}

/// Stdout; `None` if it was closed when the process began.
pub(crate) struct Stdout(Option<StdoutLock<'static>>);

impl Stdout {
    pub(crate) fn lock() -> Stdout {
        Stdout((!NO_OUTPUT.load(Ordering::Relaxed)).then(|| io::stdout().lock()))
    }

    fn open(&mut self) -> io::Result<&mut StdoutLock<'static>> {
        self.0.as_mut().ok_or_else(|| io::Error::other("stdout is closed"))
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.open()?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.as_mut().map_or(Ok(()), Write::flush)
    }
}
