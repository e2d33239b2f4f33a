//! # Backup: a copy of a database that goes on, and the way back
//!
//! ## Picture
//!
//! ```text
//!  database ── Still (store/still) ──> copy ──> directory of plain files, BACKUP ──> verify ──> restore ──> database as of S
//!                                       ^ same name, fixed, same bytes: linked
//!                             an earlier backup
//! ```
//!
//! | file | job |
//! |---|---|
//! | `copy` | the files of a state into a new directory, or out of an earlier backup |
//! | `restore` | a backup into a new directory, every byte checked |
//! | `manifest` | BACKUP: what a backup consists of (docs/format/backup.md) |
//! | `pace` | what a backup leaves to others |
//! | `tree` | making files and directories, durably, and copying bytes |
//!
//! ## Invariants
//!
//! 1. BACKUP gets its name last, when everything else is on the device and was read back. So half a backup is none.
//! 2. A backup has no ROOT: nothing opens it, and nothing changes it. BACKUP has what ROOT is to say.
//! 3. No file of a backup is ever written again, so that a later backup may have it under a second name.
//! 4. ROOT of a restored database comes last. Its incarnation is far from the original's, which tells the two apart: both go on with the same
//!    names and numbers, so that neither's backups are a base for the other.
//!
//! ## Crash
//!
//! What a crash leaves of a backup or a restoration is refused by everything that opens databases or backups; it is removed by hand.
//! Any other failure removes what was written.
//!
//! ## Costs
//!
//! Each byte is read and written once, and read once more to verify; a mebibyte of memory. What is linked is read, not written. Beside commits a ninth
//! to two thirds of its time is rest, unless another pace is asked for (`pace`).

mod copy;
mod manifest;
mod pace;
mod restore;
mod tree;

use std::ops::ControlFlow;
use std::path::PathBuf;

use crate::error::{Error, Result};
use pace::Pace;

pub(crate) use copy::back_up;
pub use manifest::NAME;
pub(crate) use manifest::UNBORN;
pub use pace::BackupPace;
pub use restore::restore;

/// Incarnations of a database and of one restored from its backups are at least so far apart: more than openings there will be.
const APART: u64 = 1 << 24;
/// Bytes handled at a time.
const PIECE: usize = 1 << 20;

/// Phase of a backup or a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackupPhase {
    /// Copies files.
    Copying,
    /// Reads the copy back and compares it.
    Verifying,
}

/// Progress of a backup or a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupProgress {
    /// The present phase.
    pub phase: BackupPhase,
    /// Bytes done in this phase.
    pub done: u64,
    /// Estimated bytes of this phase.
    pub total: u64,
}

/// Progress callback. It is called after each piece of at most 1 MiB, and from time to time during
/// a pause; `Break` cancels the operation.
pub type Watcher<'a> = dyn FnMut(BackupProgress) -> ControlFlow<()> + 'a;

/// Options of a backup.
pub struct BackupOptions<'a> {
    base: Option<PathBuf>,
    verify: bool,
    pace: BackupPace,
    watcher: Option<&'a mut Watcher<'a>>,
}

impl Default for BackupOptions<'_> {
    fn default() -> Self {
        BackupOptions { base: None, verify: true, pace: BackupPace::default(), watcher: None }
    }
}

impl std::fmt::Debug for BackupOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BackupOptions { base, verify, pace, .. } = self;
        write!(f, "BackupOptions {{ base: {base:?}, verify: {verify}, pace: {pace:?} }}")
    }
}

impl<'a> BackupOptions<'a> {
    /// Sets the base: an earlier backup of the same database on the same file system. Files that
    /// have not changed since are hard-linked, not copied. Either backup may be deleted afterwards.
    #[must_use]
    pub fn base(mut self, base: impl Into<PathBuf>) -> Self {
        self.base = Some(base.into());
        self
    }

    /// Sets whether the copy is read back from the device and compared (default: yes).
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the share of the machine that the backup uses. Default: [`BackupPace::GiveWay`], which
    /// gives precedence to commits.
    #[must_use]
    pub fn pace(mut self, pace: BackupPace) -> Self {
        self.pace = pace;
        self
    }

    /// Sets the progress callback. If it returns `Break`, the backup is removed and the call
    /// returns [`Error::Cancelled`].
    #[must_use]
    pub fn watched(mut self, watcher: &'a mut Watcher<'a>) -> Self {
        self.watcher = Some(watcher);
        self
    }
}

/// Result of a backup or a restore.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BackupReport {
    /// Number of the newest commit in it.
    pub seq: u64,
    /// Number of files.
    pub files: u64,
    /// Bytes of the copied files.
    pub copied: u64,
    /// Bytes of the files that are linked to the base.
    pub linked: u64,
}

/// Counts what is done, tells the watcher, and rests.
struct Meter<'a> {
    phase: BackupPhase,
    done: u64,
    total: u64,
    watcher: Option<&'a mut Watcher<'a>>,
    pace: Option<Pace>,
}

impl<'a> Meter<'a> {
    fn new(watcher: Option<&'a mut Watcher<'a>>, pace: Option<Pace>) -> Meter<'a> {
        Meter { phase: BackupPhase::Copying, done: 0, total: 0, watcher, pace }
    }

    fn begin(&mut self, phase: BackupPhase, total: u64) -> Result<()> {
        (self.phase, self.done, self.total) = (phase, 0, total);
        self.tick(0)
    }

    fn tick(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        self.total = self.total.max(self.done);
        let progress = BackupProgress { phase: self.phase, done: self.done, total: self.total };
        let Meter { watcher, pace, .. } = self;
        let mut tell = || match watcher.as_mut().map(|watcher| watcher(progress)) {
            Some(ControlFlow::Break(())) => Err(Error::Cancelled),
            _ => Ok(()),
        };
        tell()?;
        pace.as_mut().map_or(Ok(()), |pace| pace.rest(bytes, tell))
    }
}

/// True if a file of that name makes a directory a backup, finished or not.
pub(crate) fn is_part(name: &str) -> bool {
    name == NAME || name == manifest::UNBORN
}
