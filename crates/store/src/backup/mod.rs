//! # Backup: online copy of a database, and its restore
//!
//! A backup is a directory of plain files, copied from a pinned state while commits continue.
//!
//! ## Picture
//!
//! ```text
//!  database ─ store::PinnedState ─> copy ─> plain files, BACKUP ─> verify ─> restore ─> database
//!                                    ^ same fixed name and same bytes: hard link
//!                          an earlier backup
//! ```
//!
//! ## Invariants
//!
//! 1. BACKUP gets its name last, after everything else is durable and was read back. An incomplete
//!    backup is therefore never taken for a backup.
//! 2. A backup has no ROOT, so that it cannot be opened and changed. BACKUP contains the content of
//!    ROOT.
//! 3. A file of a backup is never written again. A later backup may therefore share it by a hard
//!    link.
//! 4. A restore writes ROOT last. The incarnation is far from that of the original. Both databases
//!    continue with the same names and numbers, so that neither may use a backup of the other as a
//!    base.
//!
//! ## Crash
//!
//! Every command refuses the remains of a crashed backup or restore; they are removed by hand.
//! After any other failure this module removes the files that it wrote.

mod copy;
mod manifest;
pub(crate) mod output_dir;
mod output_tree;
mod pace;
mod restore;
mod salvage;

use std::ops::ControlFlow;
use std::path::PathBuf;

use pace::BackupPacer;
use sheaf_platform::error::{Error, Result};

pub(crate) use copy::back_up;
pub use manifest::MANIFEST_FILE;
pub(crate) use manifest::MANIFEST_TEMP_FILE;
pub use pace::BackupRate;
pub use restore::restore;
pub(crate) use salvage::{SalvagedBackup, salvage};

/// Minimum distance between the incarnations of a database and of one restored from its backup:
/// more than the number of openings that will ever happen.
const MIN_INCARNATION_DISTANCE: u64 = 1 << 24;
/// Bytes copied at a time.
const COPY_CHUNK: usize = 1 << 20;

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
pub type ProgressFn<'a> = dyn FnMut(BackupProgress) -> ControlFlow<()> + 'a;

/// Options of a backup.
pub struct BackupOptions<'a> {
    base: Option<PathBuf>,
    verify: bool,
    rate: BackupRate,
    progress: Option<&'a mut ProgressFn<'a>>,
}

impl Default for BackupOptions<'_> {
    fn default() -> Self {
        BackupOptions { base: None, verify: true, rate: BackupRate::default(), progress: None }
    }
}

impl std::fmt::Debug for BackupOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BackupOptions { base, verify, rate: pace, .. } = self;
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

    /// Sets the share of the machine that the backup uses. Default: [`BackupRate::YieldToCommits`],
    /// which gives precedence to commits.
    #[must_use]
    pub fn rate(mut self, pace: BackupRate) -> Self {
        self.rate = pace;
        self
    }

    /// Sets the progress callback. If it returns `Break`, the backup is removed and the call
    /// returns [`Error::Cancelled`].
    #[must_use]
    pub fn on_progress(mut self, watcher: &'a mut ProgressFn<'a>) -> Self {
        self.progress = Some(watcher);
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
    pub copied_bytes: u64,
    /// Bytes of the files that are linked to the base.
    pub linked_bytes: u64,
}

/// Progress counter. Calls the progress callback and pauses.
struct ProgressMeter<'a> {
    phase: BackupPhase,
    done: u64,
    total: u64,
    watcher: Option<&'a mut ProgressFn<'a>>,
    pace: Option<BackupPacer>,
}

impl<'a> ProgressMeter<'a> {
    fn new(watcher: Option<&'a mut ProgressFn<'a>>, pace: Option<BackupPacer>) -> ProgressMeter<'a> {
        ProgressMeter { phase: BackupPhase::Copying, done: 0, total: 0, watcher, pace }
    }

    fn begin(&mut self, phase: BackupPhase, total: u64) -> Result<()> {
        (self.phase, self.done, self.total) = (phase, 0, total);
        self.add_bytes(0)
    }

    fn add_bytes(&mut self, bytes: u64) -> Result<()> {
        self.done += bytes;
        self.total = self.total.max(self.done);
        let progress = BackupProgress { phase: self.phase, done: self.done, total: self.total };
        let ProgressMeter { watcher, pace, .. } = self;
        let mut tell = || match watcher.as_mut().map(|watcher| watcher(progress)) {
            Some(ControlFlow::Break(())) => Err(Error::Cancelled),
            _ => Ok(()),
        };
        tell()?;
        pace.as_mut().map_or(Ok(()), |pace| pace.pause(bytes, tell))
    }
}

/// Returns true if a file of this name marks its directory as a backup, complete or not.
pub(crate) fn is_backup_file(name: &str) -> bool {
    name == MANIFEST_FILE || name == manifest::MANIFEST_TEMP_FILE
}
