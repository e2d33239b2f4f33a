//! # Faults on order
//!
//! A [`FaultPlan`] says which calls fail, when, and how. Every fault counts the calls that match
//! it; the first one whose turn has come strikes.

use std::io;
use std::path::Path;

/// The kinds of calls a fault can choose from.
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
    /// All of them.
    Any,
}

/// When a fault strikes, once its `nth` matching call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultRepeat {
    /// That call only.
    Once,
    /// That call and all after it.
    Forever,
    /// That call and each so-manieth after it. `0` is as `1`.
    Every(u64),
}

/// How the call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// EIO. Nothing happens, except that a `sync` or `sync_dir` fixes at random what it saved.
    Io,
    /// ENOSPC, likewise.
    NoSpace,
    /// EDQUOT, likewise.
    Quota,
    /// EMFILE, likewise.
    TooManyOpen,
    /// EINTR, likewise: of a call that must not be repeated.
    Interrupted,
    /// EAGAIN, likewise.
    Again,
    /// A transfer that makes no progress: what [`super::super::real`] makes of calls that answer 0.
    /// As [`FaultKind::Io`] elsewhere.
    NoProgress,
    /// A write gets this many sectors into the cache, then EIO. As [`FaultKind::Io`] elsewhere.
    Torn {
        /// Sectors written, counted from the one that holds the first byte.
        sectors: u64,
    },
    /// The call panics; nothing happens.
    Panic,
}

impl FaultKind {
    pub(super) fn to_error(self, class: CallClass) -> io::Error {
        io::Error::from_raw_os_error(match self {
            FaultKind::NoSpace => libc::ENOSPC,
            FaultKind::Quota => libc::EDQUOT,
            FaultKind::TooManyOpen => libc::EMFILE,
            FaultKind::Interrupted => libc::EINTR,
            FaultKind::Again => libc::EAGAIN,
            FaultKind::NoProgress if class == CallClass::Read => return io::ErrorKind::UnexpectedEof.into(),
            FaultKind::NoProgress if class == CallClass::Write => return io::ErrorKind::WriteZero.into(),
            FaultKind::Io | FaultKind::Torn { .. } | FaultKind::NoProgress | FaultKind::Panic => libc::EIO,
        })
    }
}

/// One fault: the first matching call fails, once, unless said otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    class: CallClass,
    path: String,
    nth: u64,
    repeat: FaultRepeat,
    failure: FaultKind,
}

impl Fault {
    /// Fails the first call of `class` with `failure`, once.
    #[must_use]
    pub fn new(class: CallClass, failure: FaultKind) -> Fault {
        let (path, nth, repeat) = (String::new(), 1, FaultRepeat::Once);
        Fault { class, path, nth, repeat, failure }
    }

    /// Only calls on paths that contain `part` match.
    #[must_use]
    pub fn on(mut self, part: &str) -> Fault {
        part.clone_into(&mut self.path);
        self
    }

    /// Strikes at the `nth` matching call, counted from 1, instead of the first.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Fault {
        self.nth = nth.max(1);
        self
    }

    /// Strikes again as `repeat` says.
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

    /// Whether the `count`-th matching call fails.
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
    /// A plan of all `faults`; where several strike at once, the first one decides.
    #[must_use]
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> FaultPlan {
        let faults = faults.into_iter().map(|fault| (fault, 0)).collect();
        FaultPlan { faults }
    }

    /// Counts a call and says how it fails, if it does.
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
