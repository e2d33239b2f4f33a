//! # Acceptor: accepts connections even when descriptors run out
//!
//! Most failures of `accept` are temporary, and a listener must survive them. Without a free
//! descriptor a pending connection cannot even be rejected. It would stay in the queue, keep the
//! listener readable, and make a polling thread spin. Therefore one descriptor is kept in reserve.
//!
//! ## Picture
//!
//! ```text
//!  accept ─┬─> Connected
//!          ├─> EMFILE: close the spare, accept, reopen the spare ─┬─> reopened: Connected
//!          │                                                      └─> not: close the connection
//!          └─> EMFILE without a spare, ENOMEM, ...: retry after RETRY_PAUSE
//! ```
//!
//! ## Threads
//!
//! One acceptor for each accepting thread. It waits only in the `accept` call that it is given.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

/// Pause before a listener is tried again after a failure: short for the waiting peer, and long
/// enough to cost little.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Result of an attempt to accept a connection.
#[derive(Debug)]
pub enum Accepted {
    /// A new connection.
    Connected(OwnedFd),
    /// The connection ended, or was closed for lack of a descriptor. Another one may be pending.
    PeerGone,
    /// No connection is pending at a non-blocking listener.
    NonePending,
    /// No connection can be accepted at the moment: try again after [`RETRY_PAUSE`].
    RetryLater,
    /// The descriptor is not a listener, or not any more.
    ListenerClosed,
}

/// Accepts connections, with a descriptor in reserve.
#[derive(Debug, Default)]
pub struct Acceptor {
    spare: Option<OwnedFd>,
}

impl Acceptor {
    /// Creates an acceptor with a descriptor in reserve, if one is free.
    #[must_use]
    pub fn new() -> Acceptor {
        Acceptor { spare: spare().ok() }
    }

    /// Accepts the next connection by calling `accept`.
    pub fn accept(&mut self, accept: impl FnMut() -> Result<OwnedFd>) -> Accepted {
        self.accept_with_spare(accept, spare)
    }

    fn accept_with_spare(
        &mut self,
        mut accept: impl FnMut() -> Result<OwnedFd>,
        mut spare: impl FnMut() -> Result<OwnedFd>,
    ) -> Accepted {
        if self.spare.is_none() {
            self.spare = spare().ok(); // another thread may have freed a descriptor
        }
        let came = match accept() {
            Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => accept(),
            answer => return classify(answer),
        };
        self.spare = spare().ok();
        match came {
            // There is no spare descriptor left: that of the connection becomes the spare.
            Ok(socket) if self.spare.is_none() => {
                drop(socket);
                self.spare = spare().ok();
                Accepted::PeerGone
            }
            answer => classify(answer),
        }
    }
}

fn spare() -> Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn classify(answer: Result<OwnedFd>) -> Accepted {
    match answer {
        Ok(socket) => Accepted::Connected(socket),
        Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Accepted::PeerGone,
        Err(Errno::AGAIN) => Accepted::NonePending,
        Err(Errno::INVAL | Errno::BADF | Errno::NOTSOCK) => Accepted::ListenerClosed,
        Err(_) => Accepted::RetryLater,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of a system call, one after the other.
    fn answers(said: &[Option<Errno>]) -> impl FnMut() -> Result<OwnedFd> {
        let mut said = said.iter().copied();
        move || said.next().expect("not asked again").map_or_else(spare, Err)
    }

    #[test]
    fn only_permanent_errors_close_the_listener() {
        let mut acceptor = Acceptor::new();
        for passes in [Errno::NOMEM, Errno::NOBUFS, Errno::PERM, Errno::NETDOWN] {
            assert!(matches!(acceptor.accept(answers(&[Some(passes)])), Accepted::RetryLater), "{passes:?}");
        }
        for gone in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO] {
            assert!(matches!(acceptor.accept(answers(&[Some(gone)])), Accepted::PeerGone), "{gone:?}");
        }
        for over in [Errno::INVAL, Errno::BADF] {
            assert!(matches!(acceptor.accept(answers(&[Some(over)])), Accepted::ListenerClosed), "{over:?}");
        }
        assert!(matches!(acceptor.accept(answers(&[Some(Errno::AGAIN)])), Accepted::NonePending));
        assert!(matches!(acceptor.accept(answers(&[None])), Accepted::Connected(_)));
        assert!(acceptor.spare.is_some());
    }

    #[test]
    fn without_descriptors_a_pending_peer_is_closed_and_the_spare_is_reopened() {
        const NONE: Option<Errno> = Some(Errno::MFILE);
        let mut acceptor = Acceptor::new();
        // The spare accepts the connection, which is then closed to reopen the spare.
        let next = acceptor.accept_with_spare(answers(&[NONE, None]), answers(&[NONE, None]));
        assert!(matches!(next, Accepted::PeerGone) && acceptor.spare.is_some());
        // This time a descriptor is free for the spare.
        let next = acceptor.accept_with_spare(answers(&[NONE, None]), answers(&[None]));
        assert!(matches!(next, Accepted::Connected(_)) && acceptor.spare.is_some());
        // No connection is pending, and another thread takes the descriptor of the spare.
        let next = acceptor.accept_with_spare(answers(&[NONE, Some(Errno::AGAIN)]), answers(&[NONE]));
        assert!(matches!(next, Accepted::NonePending) && acceptor.spare.is_none());
        // Without a spare: retry later, repeatedly.
        for _ in 0..3 {
            assert!(matches!(
                acceptor.accept_with_spare(answers(&[NONE]), answers(&[NONE])),
                Accepted::RetryLater
            ));
        }
        let next = acceptor.accept_with_spare(answers(&[NONE, NONE]), answers(&[None, NONE]));
        assert!(matches!(next, Accepted::RetryLater) && acceptor.spare.is_none());
        assert!(matches!(
            acceptor.accept_with_spare(answers(&[None]), answers(&[None])),
            Accepted::Connected(_)
        ));
        assert!(acceptor.spare.is_some());
    }
}
