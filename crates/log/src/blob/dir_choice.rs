//! # Directory choice: avoidance of directories in which creating files is slow
//!
//! ext4 without a journal does not reuse an inode that was freed in the last minutes. Whenever it
//! creates a file, it examines each such inode of the block group again. In a group with many of
//! them, creating a file takes much more processor time. Neither the name nor the number of a
//! directory tells in which group it is. So this module measures some creations. If files cost
//! several times as much as elsewhere, the directory gets no more files and a new one is used.
//!
//! Time is processor time of the calling thread: waiting for the device does not count.
//!
//! ## Costs
//!
//! Two clock calls for [`TIMED_FILES`] in each [`TIMED_INTERVAL`] files, and the unused numbers of
//! a directory that is abandoned.

use std::time::Duration;

/// Among this many files in a row ...
const TIMED_INTERVAL: u64 = 64;
/// ... this many are measured, and the cheapest counts.
const TIMED_FILES: u64 = 2;
/// Creations up to this time are never slow.
const MIN_SLOW: Duration = Duration::from_micros(40);
/// Creations are slow if they take more than this many times the cheapest one.
const SLOW_FACTOR: u32 = 4;
/// Maximum number of directories that are abandoned one after the other. Each must be made up for
/// by as many fast files as a directory has.
const MAX_SKIPPED_DIRS: u64 = 16;

/// Returns true if the creation of file `number` is measured.
pub(super) fn is_timed(number: u64) -> bool {
    number % TIMED_INTERVAL < TIMED_FILES
}

/// Creation times so far.
#[derive(Debug)]
pub(super) struct DirChoice {
    cheapest: Option<Duration>,
    /// First time of the present measurement.
    first: Option<Duration>,
    /// Measurements per directory, and the budget for abandoning directories, in measurements.
    samples_per_dir: u64,
    skips_left: u64,
}

impl DirChoice {
    /// Creates the state for directories of `files` files.
    pub(super) fn new(files: u64) -> DirChoice {
        let looks_per_dir = files / TIMED_INTERVAL;
        DirChoice {
            cheapest: None,
            first: None,
            skips_left: MAX_SKIPPED_DIRS * looks_per_dir,
            samples_per_dir: looks_per_dir,
        }
    }

    /// Adds a measured time. Returns true if its directory should get no more files.
    pub(super) fn is_dir_slow(&mut self, took: Duration) -> bool {
        let Some(first) = self.first.take() else {
            self.first = Some(took);
            return false;
        };
        let least = first.min(took);
        let is_slow = least > MIN_SLOW && self.cheapest.is_none_or(|cheapest| least > cheapest * SLOW_FACTOR);
        self.cheapest = Some(self.cheapest.map_or(least, |cheapest| cheapest.min(least)));
        if !is_slow {
            self.skips_left = (self.skips_left + 1).min(MAX_SKIPPED_DIRS * self.samples_per_dir);
            return false;
        }
        let is_left = self.samples_per_dir > 0 && self.skips_left >= self.samples_per_dir;
        self.skips_left -= if is_left { self.samples_per_dir } else { 0 };
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(sites: &mut DirChoice, micros: u64) -> bool {
        let took = Duration::from_micros(micros);
        !sites.is_dir_slow(took + MIN_SLOW) && sites.is_dir_slow(took)
    }

    #[test]
    fn a_directory_several_times_slower_is_slow() {
        let mut sites = DirChoice::new(4096);
        assert!(!look(&mut sites, 12), "quick");
        assert!(!look(&mut sites, 30), "nothing to speak of");
        assert!(look(&mut sites, 60), "five times as much");
        assert!(!look(&mut sites, 12));
    }

    #[test]
    fn on_a_slow_disk_only_one_directory_is_skipped() {
        let mut sites = DirChoice::new(4096);
        assert!(look(&mut sites, 300), "there may be better ones");
        (0..1000).for_each(|_| assert!(!look(&mut sites, 300)));
        assert!(!look(&mut sites, 1100), "a bad moment");
    }

    #[test]
    fn skips_run_out_and_recover() {
        let mut sites = DirChoice::new(4096);
        assert!(!look(&mut sites, 10));
        assert_eq!((0..100).filter(|_| look(&mut sites, 500)).count() as u64, MAX_SKIPPED_DIRS);
        (0..4096 / TIMED_INTERVAL - 1).for_each(|_| assert!(!look(&mut sites, 10)));
        assert!(!look(&mut sites, 500), "not as many as a directory has yet");
        assert!(!look(&mut sites, 10));
        assert!(look(&mut sites, 500));
    }

    #[test]
    fn small_directories_are_not_skipped() {
        let mut sites = DirChoice::new(TIMED_INTERVAL - 1);
        assert!(!look(&mut sites, 10));
        assert!(!look(&mut sites, 1000));
    }
}
