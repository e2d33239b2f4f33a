//! # Run directory: the directory of a run, bounded in size and removed at the end
//!
//! ## Invariants
//!
//! 1. A run writes only within a directory of its own, `sheaf-bench-PID`, in the directory that the
//!    options name. With `--keep`, the named directory itself is used and kept.
//! 2. Before a run without `--keep` writes anything, the free space covers its needs. Runs with the
//!    default bound need at most 20 GiB.
//! 3. Without `--keep`, the directory is removed at the end, after an error, and on SIGINT, SIGTERM
//!    and SIGHUP (not on SIGKILL).
//!
//! ## Threads
//!
//! The first thread blocks the signals before any other thread starts, so that all threads inherit
//! the mask. One thread waits for the signals.

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::{Result, measure};

/// Bound on the disk space of a run, except those of [`RunDir::in_empty_parent`].
pub(crate) const MAX_DISK_BYTES: u64 = 20 << 30;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Never returns after a signal: the thread that received it cleans up and ends the process. Errors
/// that the signal caused, such as a killed child, must not be reported.
pub(crate) fn block_if_interrupted() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// File that marks a directory with kept databases.
const KEPT_MARKER: &str = "kept-by-sheaf-bench";

/// Directory of a run. It is removed when this value is dropped, unless it is kept.
pub(crate) struct RunDir {
    root: PathBuf,
    /// Bound on its bytes on disk.
    limit: u64,
    is_kept: bool,
}

impl RunDir {
    /// Creates the directory within `parent`, after a check that `need` bytes are free and allowed.
    pub(crate) fn new(parent: &Path, need: u64) -> Result<RunDir> {
        RunDir::within(parent, need, MAX_DISK_BYTES)
    }

    fn within(parent: &Path, need: u64, limit: u64) -> Result<RunDir> {
        if need > limit {
            return Err(format!(
                "this run may need {:.1} GiB of disk, and {:.0} GiB is the most it may take; \
                 ask for fewer --pairs or --peers",
                gib(need),
                gib(limit)
            )
            .into());
        }
        let there = parent.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("."));
        let free = free_bytes(there)?;
        if need > free {
            return Err(format!(
                "this run may need {:.1} GiB of disk; {} has {:.1} GiB free; ask for fewer --pairs",
                gib(need),
                parent.display(),
                gib(free)
            )
            .into());
        }
        fs::create_dir_all(parent).map_err(|error| format!("{}: {error}", parent.display()))?;
        let root = parent.join(format!("sheaf-bench-{}", std::process::id()));
        fs::create_dir(&root).map_err(|error| format!("{}: {error}", root.display()))?;
        remove_on_signal(root.clone());
        Ok(RunDir { root, limit, is_kept: false })
    }

    /// Like [`RunDir::new`], without the bound of 20 GiB, in a `parent` that is new or empty.
    pub(crate) fn in_empty_parent(parent: &Path, need: u64) -> Result<RunDir> {
        if fs::read_dir(parent).is_ok_and(|mut entries| entries.next().is_some()) {
            return Err(format!(
                "{} is not empty; databases go into a new or an empty directory (is another bench running there?)",
                parent.display()
            )
            .into());
        }
        RunDir::within(parent, need, u64::MAX)
    }

    /// Opens a directory that is kept at the end, with the databases of earlier runs. It must be
    /// new, empty, or marked as kept.
    pub(crate) fn keeping(root: &Path) -> Result<RunDir> {
        let mark = root.join(KEPT_MARKER);
        if fs::read_dir(root).is_ok_and(|mut entries| entries.next().is_some()) && !mark.exists() {
            return Err(format!("{} is not empty and was not kept by an earlier run", root.display()).into());
        }
        fs::create_dir_all(root)?;
        fs::write(&mark, "databases kept by sheaf-bench run --keep\n")?;
        Ok(RunDir { root: root.to_path_buf(), limit: u64::MAX, is_kept: true })
    }

    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.root
    }

    /// Returns an empty subdirectory `name`. Earlier content is removed.
    pub(crate) fn fresh(&self, name: &str) -> Result<PathBuf> {
        self.clear(name)?;
        let dir = self.root.join(name);
        fs::create_dir(&dir)?;
        Ok(dir)
    }

    /// Removes the subdirectory `name`, if it exists. Returns an error if the run has exceeded its
    /// bound.
    pub(crate) fn clear(&self, name: &str) -> Result<()> {
        let used = measure::disk_bytes(&self.root);
        match fs::remove_dir_all(self.root.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        if used > self.limit && !self.is_kept {
            return Err(format!("the run took {:.1} GiB of disk and was stopped", gib(used)).into());
        }
        Ok(())
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::remove_dir_all(&self.root); // an error cannot be reported here
        }
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

fn free_bytes(dir: &Path) -> Result<u64> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    let mut stat = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `path` is a C string and `stat` is a statvfs, for which zeroes are valid.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error().into());
        }
        stat.assume_init()
    };
    Ok(stat.f_bavail * stat.f_frsize)
}

fn remove_on_signal(root: PathBuf) {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: sigemptyset initialises the set before any other use.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        set.assume_init()
    };
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: the set is initialised, and `signal` is a place for the number.
        if unsafe { libc::sigwait(&set, &mut signal) } == 0 {
            INTERRUPTED.store(true, Ordering::SeqCst);
            crate::store_process::kill_all_children();
            // A killed store may create files until it has ended: another pass removes them.
            for _ in 0..100 {
                if fs::remove_dir_all(&root).is_ok() || !root.exists() {
                    break;
                }
            }
            // The same Ctrl-C may have ended the reader of standard error. An error here must not
            // stop the exit.
            let _ = writeln!(io::stderr(), "sheaf-bench: interrupted; {} was removed", root.display());
            std::process::exit(128 + signal);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_dir_is_removed_and_oversized_runs_are_refused_before_writing() {
        let parent = std::env::temp_dir().join(format!("sheaf-bench-place-{}", std::process::id()));
        assert!(RunDir::new(&parent, MAX_DISK_BYTES + 1).is_err());
        assert!(RunDir::in_empty_parent(&parent, u64::MAX).is_err());
        assert!(!parent.exists());
        let place = RunDir::new(&parent, 1).unwrap();
        let dir = place.fresh("store").unwrap();
        fs::write(dir.join("file"), "x").unwrap();
        assert_eq!(fs::read_dir(place.fresh("store").unwrap()).unwrap().count(), 0);
        drop(place);
        assert!(fs::read_dir(&parent).unwrap().next().is_none());
        fs::remove_dir(&parent).unwrap();
    }

    #[test]
    fn directories_with_anything_else_in_them_are_refused() {
        let parent = std::env::temp_dir().join(format!("sheaf-bench-full-{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        fs::write(parent.join("letters.txt"), "dear").unwrap();
        assert!(RunDir::in_empty_parent(&parent, 1).is_err());
        assert!(RunDir::keeping(&parent).is_err());
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 1);
        fs::remove_dir_all(&parent).unwrap();
        drop(RunDir::keeping(&parent).unwrap());
        RunDir::keeping(&parent).unwrap();
        fs::remove_dir_all(&parent).unwrap();
    }
}
