//! # Sites: where making a file costs too much no more are made
//!
//! ext4 without a journal takes no inode that was freed in the last minutes, and looks at each of
//! these again whenever it makes a file: where many lie, a file costs a hundred to eight hundred µs
//! of the processor in place of ten. A directory may have come to lie there, or come to a part of
//! its group that does; which directory does cannot be told from its name or its number. So some of
//! the files that are made are timed, and a directory in which they cost several times what files
//! cost elsewhere is left for a new one.
//!
//! Time is the processor's, of this thread: what waits for the device is not meant.
//!
//! ## Costs
//!
//! Two clock calls for [`TIMED_FILES`] in each [`TIMED_INTERVAL`] files, and for a directory that
//! is left the rest of its numbers.

use std::time::Duration;

/// Of so many files in a row ...
const TIMED_INTERVAL: u64 = 64;
/// ... so many are timed, and the cheapest counts.
const TIMED_FILES: u64 = 2;
/// Below this nothing is slow.
const MIN_SLOW: Duration = Duration::from_micros(40);
/// Slow is what costs more than so many times the cheapest that was seen.
const SLOW_FACTOR: u32 = 4;
/// Directories that are left one after the other, at most. Each is made up for by as many files as
/// a directory has.
const MAX_SKIPPED_DIRS: u64 = 16;

/// Whether it is timed how the file of this number is made.
pub(super) fn is_timed(number: u64) -> bool {
    number % TIMED_INTERVAL < TIMED_FILES
}

/// What files cost so far.
#[derive(Debug)]
pub(super) struct DirChoice {
    cheapest: Option<Duration>,
    /// The first of the present look.
    first: Option<Duration>,
    /// Looks at a directory's files; and for how many looks' worth of numbers directories may still
    /// be left.
    samples_per_dir: u64,
    skips_left: u64,
}

impl DirChoice {
    /// For directories of so many files.
    pub(super) fn new(files: u64) -> DirChoice {
        let looks_per_dir = files / TIMED_INTERVAL;
        DirChoice {
            cheapest: None,
            first: None,
            skips_left: MAX_SKIPPED_DIRS * looks_per_dir,
            samples_per_dir: looks_per_dir,
        }
    }

    /// One of those that are timed took so long. True if its directory should get no more.
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
