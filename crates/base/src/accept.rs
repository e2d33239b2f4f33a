//! # Porter: takes connections in, also where descriptors run out
//!
//! What an `accept` that failed asks for: most failures pass by themselves, and a socket that
//! listens must outlive them. Without a descriptor left whoever waits cannot even be turned away,
//! and stays in the listener, which stays readable: who polls it would spin. So one descriptor is
//! kept for this.
//!
//! ## Picture
//!
//! ```text
//!  accept ─┬─> came
//!          ├─> EMFILE: let go of the spare, accept, take the spare again ─┬─> there is one: came
//!          │                                                             └─> there is none: whoever came is shown out
//!          └─> EMFILE without a spare, ENOMEM, ...: later, after PAUSE
//! ```
//!
//! ## Threads
//!
//! One porter a thread that accepts. It never waits but in the `accept` that it is given.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, Result};

/// How long to leave a listener alone when nobody could be taken in: short for whoever waits there,
/// and long enough to cost nothing.
pub const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What came of an attempt to take somebody in.
#[derive(Debug)]
pub enum Accepted {
    /// Somebody came.
    Connected(OwnedFd),
    /// Whoever it was is gone again: the next may be there.
    PeerGone,
    /// Nobody waits, at a listener that does not block.
    NonePending,
    /// Nobody can be taken in for now: look again after [`RETRY_PAUSE`].
    RetryLater,
    /// This is no listener, or not any more.
    ListenerClosed,
}

/// Has a descriptor in reserve. See the module.
#[derive(Debug, Default)]
pub struct Acceptor {
    spare: Option<OwnedFd>,
}

impl Acceptor {
    /// A porter with a descriptor in reserve, if there is one.
    #[must_use]
    pub fn new() -> Acceptor {
        Acceptor { spare: spare().ok() }
    }

    /// Takes in by `accept` who comes next.
    pub fn accept(&mut self, accept: impl FnMut() -> Result<OwnedFd>) -> Accepted {
        self.accept_with_spare(accept, spare)
    }

    fn accept_with_spare(
        &mut self,
        mut accept: impl FnMut() -> Result<OwnedFd>,
        mut spare: impl FnMut() -> Result<OwnedFd>,
    ) -> Accepted {
        if self.spare.is_none() {
            self.spare = spare().ok(); // others may have let go of theirs
        }
        let came = match accept() {
            Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => accept(),
            answer => return classify(answer),
        };
        self.spare = spare().ok();
        match came {
            // There is no descriptor to spare for it: its own becomes the spare.
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

    /// Answers of a system call, one after the other.
    fn answers(said: &[Option<Errno>]) -> impl FnMut() -> Result<OwnedFd> {
        let mut said = said.iter().copied();
        move || said.next().expect("not asked again").map_or_else(spare, Err)
    }

    #[test]
    fn only_permanent_errors_close_the_listener() {
        let mut porter = Acceptor::new();
        for passes in [Errno::NOMEM, Errno::NOBUFS, Errno::PERM, Errno::NETDOWN] {
            assert!(matches!(porter.accept(answers(&[Some(passes)])), Accepted::RetryLater), "{passes:?}");
        }
        for gone in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO] {
            assert!(matches!(porter.accept(answers(&[Some(gone)])), Accepted::PeerGone), "{gone:?}");
        }
        for over in [Errno::INVAL, Errno::BADF] {
            assert!(matches!(porter.accept(answers(&[Some(over)])), Accepted::ListenerClosed), "{over:?}");
        }
        assert!(matches!(porter.accept(answers(&[Some(Errno::AGAIN)])), Accepted::NonePending));
        assert!(matches!(porter.accept(answers(&[None])), Accepted::Connected(_)));
        assert!(porter.spare.is_some());
    }

    #[test]
    fn without_descriptors_a_pending_peer_is_closed_and_the_spare_is_reopened() {
        const NONE: Option<Errno> = Some(Errno::MFILE);
        let mut porter = Acceptor::new();
        // The spare takes it in, and it leaves that to the spare.
        let next = porter.accept_with_spare(answers(&[NONE, None]), answers(&[NONE, None]));
        assert!(matches!(next, Accepted::PeerGone) && porter.spare.is_some());
        // By then there was one for it.
        let next = porter.accept_with_spare(answers(&[NONE, None]), answers(&[None]));
        assert!(matches!(next, Accepted::Connected(_)) && porter.spare.is_some());
        // Nobody was there, and somebody else took the spare's place.
        let next = porter.accept_with_spare(answers(&[NONE, Some(Errno::AGAIN)]), answers(&[NONE]));
        assert!(matches!(next, Accepted::NonePending) && porter.spare.is_none());
        // Without it: later, as often as it takes.
        for _ in 0..3 {
            assert!(matches!(
                porter.accept_with_spare(answers(&[NONE]), answers(&[NONE])),
                Accepted::RetryLater
            ));
        }
        let next = porter.accept_with_spare(answers(&[NONE, NONE]), answers(&[None, NONE]));
        assert!(matches!(next, Accepted::RetryLater) && porter.spare.is_none());
        assert!(matches!(
            porter.accept_with_spare(answers(&[None]), answers(&[None])),
            Accepted::Connected(_)
        ));
        assert!(porter.spare.is_some());
    }
}
