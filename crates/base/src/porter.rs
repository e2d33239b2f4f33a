//! # Porter: takes connections in, also where descriptors run out
//!
//! What an `accept` that failed asks for: most failures pass by themselves, and a socket that listens must outlive them. Without a
//! descriptor left whoever waits cannot even be turned away, and stays in the listener, which stays readable: who polls it would spin. So one
//! descriptor is kept for this.
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

/// How long to leave a listener alone when nobody could be taken in: short for whoever waits there, and long enough to cost nothing.
pub const PAUSE: Duration = Duration::from_millis(50);

/// What came of an attempt to take somebody in.
#[derive(Debug)]
pub enum Next {
    /// Somebody came.
    Came(OwnedFd),
    /// Whoever it was is gone again: the next may be there.
    Gone,
    /// Nobody waits, at a listener that does not block.
    Nobody,
    /// Nobody can be taken in for now: look again after [`PAUSE`].
    Later,
    /// This is no listener, or not any more.
    Never,
}

/// Has a descriptor in reserve. See the module.
#[derive(Debug, Default)]
pub struct Porter {
    spare: Option<OwnedFd>,
}

impl Porter {
    /// A porter with a descriptor in reserve, if there is one.
    #[must_use]
    pub fn new() -> Porter {
        Porter { spare: spare().ok() }
    }

    /// Takes in by `accept` who comes next.
    pub fn next(&mut self, accept: impl FnMut() -> Result<OwnedFd>) -> Next {
        self.next_sparing(accept, spare)
    }

    fn next_sparing(
        &mut self,
        mut accept: impl FnMut() -> Result<OwnedFd>,
        mut spare: impl FnMut() -> Result<OwnedFd>,
    ) -> Next {
        if self.spare.is_none() {
            self.spare = spare().ok(); // others may have let go of theirs
        }
        let came = match accept() {
            Err(Errno::MFILE | Errno::NFILE) if self.spare.take().is_some() => accept(),
            answer => return judge(answer),
        };
        self.spare = spare().ok();
        match came {
            // There is no descriptor to spare for it: its own becomes the spare.
            Ok(socket) if self.spare.is_none() => {
                drop(socket);
                self.spare = spare().ok();
                Next::Gone
            }
            answer => judge(answer),
        }
    }
}

fn spare() -> Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

fn judge(answer: Result<OwnedFd>) -> Next {
    match answer {
        Ok(socket) => Next::Came(socket),
        Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Next::Gone,
        Err(Errno::AGAIN) => Next::Nobody,
        Err(Errno::INVAL | Errno::BADF | Errno::NOTSOCK) => Next::Never,
        Err(_) => Next::Later,
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
    fn only_what_cannot_pass_ends_a_door() {
        let mut porter = Porter::new();
        for passes in [Errno::NOMEM, Errno::NOBUFS, Errno::PERM, Errno::NETDOWN] {
            assert!(matches!(porter.next(answers(&[Some(passes)])), Next::Later), "{passes:?}");
        }
        for gone in [Errno::CONNABORTED, Errno::INTR, Errno::PROTO] {
            assert!(matches!(porter.next(answers(&[Some(gone)])), Next::Gone), "{gone:?}");
        }
        for over in [Errno::INVAL, Errno::BADF] {
            assert!(matches!(porter.next(answers(&[Some(over)])), Next::Never), "{over:?}");
        }
        assert!(matches!(porter.next(answers(&[Some(Errno::AGAIN)])), Next::Nobody));
        assert!(matches!(porter.next(answers(&[None])), Next::Came(_)));
        assert!(porter.spare.is_some());
    }

    #[test]
    fn without_descriptors_whoever_waits_is_shown_out_and_a_lost_spare_comes_back() {
        const NONE: Option<Errno> = Some(Errno::MFILE);
        let mut porter = Porter::new();
        // The spare takes it in, and it leaves that to the spare.
        let next = porter.next_sparing(answers(&[NONE, None]), answers(&[NONE, None]));
        assert!(matches!(next, Next::Gone) && porter.spare.is_some());
        // By then there was one for it.
        let next = porter.next_sparing(answers(&[NONE, None]), answers(&[None]));
        assert!(matches!(next, Next::Came(_)) && porter.spare.is_some());
        // Nobody was there, and somebody else took the spare's place.
        let next = porter.next_sparing(answers(&[NONE, Some(Errno::AGAIN)]), answers(&[NONE]));
        assert!(matches!(next, Next::Nobody) && porter.spare.is_none());
        // Without it: later, as often as it takes.
        for _ in 0..3 {
            assert!(matches!(porter.next_sparing(answers(&[NONE]), answers(&[NONE])), Next::Later));
        }
        let next = porter.next_sparing(answers(&[NONE, NONE]), answers(&[None, NONE]));
        assert!(matches!(next, Next::Later) && porter.spare.is_none());
        assert!(matches!(porter.next_sparing(answers(&[None]), answers(&[None])), Next::Came(_)));
        assert!(porter.spare.is_some());
    }
}
