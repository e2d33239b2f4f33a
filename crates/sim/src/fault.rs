//! # Injected faults
//!
//! A [`FaultPlan`] determines which calls fail, when, and how. Every fault counts the calls that
//! match it. If several faults apply to a call, the first one decides.

use std::io;
use std::path::Path;

use crate::error_numbers::{EAGAIN, EDQUOT, EINTR, EIO, EMFILE, ENOSPC};

/// Classes of calls that a fault can select.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallClass {
    /// `read_at`.
    Read,
    /// `write_at`, `append_at`.
    Write,
    /// `sync`.
    Sync,
    /// `sync_dir`.
    SyncDir,
    /// `open` of an existing file.
    Open,
    /// `open` of a new file, `create_dir`.
    Create,
    /// `remove`, `remove_dir`.
    Remove,
    /// `rename`; the path is the old name.
    Rename,
    /// `allocate`.
    Allocate,
    /// `set_len`.
    SetLen,
    /// `list`.
    List,
    /// `lock`.
    Lock,
    /// All calls.
    Any,
}

/// Repetition of a fault after its `nth` matching call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRepeat {
    /// Only the `nth` call fails.
    Once,
    /// The `nth` call and all later ones fail.
    Forever,
    /// The `nth` call fails, and then every further one after this number of matching calls. `0`
    /// counts as `1`.
    Every(u64),
}

/// Kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO. The call does nothing, except that a `sync` or `sync_dir` saves a random part.
    Io,
    /// ENOSPC, otherwise like [`FaultKind::Io`].
    NoSpace,
    /// EDQUOT, otherwise like [`FaultKind::Io`].
    Quota,
    /// EMFILE, otherwise like [`FaultKind::Io`].
    TooManyOpen,
    /// EINTR of a call that must not be repeated, otherwise like [`FaultKind::Io`].
    Interrupted,
    /// EAGAIN, otherwise like [`FaultKind::Io`].
    Again,
    /// A transfer without progress: the error that `disk::real` returns for calls that
    /// transfer 0 bytes. For other calls like [`FaultKind::Io`].
    NoProgress,
    /// A write that transfers this many sectors to the cache, then EIO. For other calls like
    /// [`FaultKind::Io`].
    Torn {
        /// Number of sectors written, counted from the one with the first byte.
        sectors: u64,
    },
    /// The call panics and does nothing.
    Panic,
}

impl FaultKind {
    pub(super) fn to_error(self, class: CallClass) -> io::Error {
        io::Error::from_raw_os_error(match self {
            FaultKind::NoSpace => ENOSPC,
            FaultKind::Quota => EDQUOT,
            FaultKind::TooManyOpen => EMFILE,
            FaultKind::Interrupted => EINTR,
            FaultKind::Again => EAGAIN,
            FaultKind::NoProgress if class == CallClass::Read => return io::ErrorKind::UnexpectedEof.into(),
            FaultKind::NoProgress if class == CallClass::Write => return io::ErrorKind::WriteZero.into(),
            FaultKind::Io | FaultKind::Torn { .. } | FaultKind::NoProgress | FaultKind::Panic => EIO,
        })
    }
}

/// One fault: by default, the first matching call fails, once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    class: CallClass,
    path: String,
    nth: u64,
    repeat: FaultRepeat,
    failure: FaultKind,
}

impl Fault {
    /// Creates a fault that fails the first call of `class` with `failure`, once.
    #[must_use]
    pub fn new(class: CallClass, failure: FaultKind) -> Fault {
        let (path, nth, repeat) = (String::new(), 1, FaultRepeat::Once);
        Fault { class, path, nth, repeat, failure }
    }

    /// Restricts the fault to calls on paths that contain `part`.
    #[must_use]
    pub fn on(mut self, part: &str) -> Fault {
        part.clone_into(&mut self.path);
        self
    }

    /// Strikes at the `nth` matching call, counted from 1.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Fault {
        self.nth = nth.max(1);
        self
    }

    /// Sets the repetition of the fault.
    #[must_use]
    pub fn repeat(mut self, repeat: FaultRepeat) -> Fault {
        self.repeat = repeat;
        self
    }

    /// Strikes at each matching call from the `nth` on.
    #[must_use]
    pub fn forever(self) -> Fault {
        self.repeat(FaultRepeat::Forever)
    }

    fn matches(&self, class: CallClass, path: &str) -> bool {
        (self.class == CallClass::Any || self.class == class) && path.contains(&self.path)
    }

    /// Returns whether the `count`-th matching call fails.
    fn strikes_at(&self, count: u64) -> bool {
        match self.repeat {
            _ if count < self.nth => false,
            FaultRepeat::Once => count == self.nth,
            FaultRepeat::Forever => true,
            FaultRepeat::Every(period) => (count - self.nth).is_multiple_of(period.max(1)),
        }
    }
}

/// The faults of a disk with their counters. The default has none.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    faults: Vec<(Fault, u64)>,
}

impl FaultPlan {
    /// Creates a plan of all `faults`. If several apply to a call, the first one decides.
    #[must_use]
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> FaultPlan {
        let faults = faults.into_iter().map(|fault| (fault, 0)).collect();
        FaultPlan { faults }
    }

    /// Counts a call and returns its failure, if any.
    pub(super) fn strike(&mut self, class: CallClass, path: &Path) -> Option<FaultKind> {
        if self.faults.is_empty() {
            return None;
        }
        let path = path.to_string_lossy();
        let mut struck = None;
        for (fault, count) in &mut self.faults {
            if fault.matches(class, &path) {
                *count += 1;
                if struck.is_none() && fault.strikes_at(*count) {
                    struck = Some(fault.failure);
                }
            }
        }
        struck
    }
}

impl From<Fault> for FaultPlan {
    fn from(fault: Fault) -> FaultPlan {
        FaultPlan::new([fault])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(fault: Fault) -> Vec<u64> {
        let mut plan = FaultPlan::from(fault);
        let path = Path::new("db/flat/1");
        let fails = |_: &u64| plan.strike(CallClass::Write, path).is_some();
        (1..=8).filter(fails).collect()
    }

    #[test]
    fn faults_strike_when_they_should() {
        let fault = Fault::new(CallClass::Write, FaultKind::Io);
        assert_eq!(strikes(fault.clone()), [1]);
        assert_eq!(strikes(fault.clone().nth(3)), [3]);
        assert_eq!(strikes(fault.clone().nth(6).forever()), [6, 7, 8]);
        assert_eq!(strikes(fault.clone().nth(2).repeat(FaultRepeat::Every(3))), [2, 5, 8]);
        assert_eq!(strikes(fault.clone().on("flat/").nth(8)), [8]);
        assert_eq!(strikes(fault.on("journal/").forever()), []);
        assert_eq!(strikes(Fault::new(CallClass::Sync, FaultKind::Io).forever()), []);
        assert_eq!(strikes(Fault::new(CallClass::Any, FaultKind::Io)), [1]);
    }
}
