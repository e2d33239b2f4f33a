//! # Machine: CPU time, descriptors, disk space and latencies of this process

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Bytes of a block in `st_blocks`.
const STAT_BLOCK: u64 = 512;

/// Returns the CPU time of this process, all threads together, in seconds.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the number of open descriptors of this process.
///
/// # Errors
///
/// Returns the error of reading `/proc/self/fd`.
pub(crate) fn descriptors() -> io::Result<usize> {
    Ok(fs::read_dir("/proc/self/fd")?.count() - 1) // one is that of the listing
}

/// Returns the bytes that the files below `dir` take on disk. A file that has several names
/// counts once; a file that is removed meanwhile does not count.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    let (mut seen, mut total) = (HashSet::new(), 0);
    add_tree(dir, &mut seen, &mut total);
    total
}

fn add_tree(path: &Path, seen: &mut HashSet<u64>, total: &mut u64) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if seen.insert(meta.ino()) {
        *total += meta.blocks() * STAT_BLOCK;
    }
    if meta.is_dir()
        && let Ok(entries) = fs::read_dir(path)
    {
        entries.flatten().for_each(|entry| add_tree(&entry.path(), seen, total));
    }
}

/// Calls `is_reached` every 50 ms until it returns true or `limit` is over. Returns the time that
/// passed.
pub(crate) fn wait_until(limit: Duration, mut is_reached: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_reached() && began.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

/// Returns the milliseconds that `work` takes, and its result.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = work();
    (began.elapsed().as_secs_f64() * 1e3, done)
}

/// Latencies in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct Latencies(Vec<u64>);

impl Latencies {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(crate) fn extend(&mut self, other: Latencies) {
        self.0.extend(other.0);
    }

    /// Returns the quantile `share` (0 to 1) in microseconds; 0 without latencies.
    pub(crate) fn quantile(&mut self, share: f64) -> f64 {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 <= share <= 1
        let index = (last as f64 * share).round() as usize;
        self.0.get(index).map_or(0.0, |&ns| ns as f64 / 1e3)
    }
}

/// Operations counted by equal periods, to compare the last period with the first.
pub(crate) struct Periods {
    began: Instant,
    length: Duration,
    counts: Vec<u64>,
}

impl Periods {
    /// Divides `total` into `count` periods.
    pub(crate) fn new(total: Duration, count: u32) -> Periods {
        let counts = vec![0; count as usize];
        Periods { began: Instant::now(), length: total / count, counts }
    }

    /// Counts an operation at the present time. Returns false if the last period is over.
    pub(crate) fn count(&mut self) -> bool {
        let index = self.began.elapsed().as_nanos() / self.length.as_nanos().max(1);
        match usize::try_from(index).ok().and_then(|index| self.counts.get_mut(index)) {
            Some(count) => *count += 1,
            None => return false,
        }
        true
    }

    /// Returns the operations a second of each of `parts` equal parts. The number of periods must
    /// be a multiple of `parts`.
    pub(crate) fn rates(&self, parts: usize) -> Vec<f64> {
        let periods = self.counts.len() / parts;
        let seconds = self.length.as_secs_f64() * periods as f64;
        self.counts.chunks(periods).map(|counts| counts.iter().sum::<u64>() as f64 / seconds).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_sorted_latencies() {
        let mut latencies = Latencies::default();
        (1..=101).rev().for_each(|us| latencies.add(Duration::from_micros(us)));
        assert_eq!(latencies.quantile(0.0), 1.0);
        assert_eq!(latencies.quantile(0.5), 51.0);
        assert_eq!(latencies.quantile(1.0), 101.0);
    }

    #[test]
    fn rates_are_of_whole_parts() {
        let periods =
            Periods { began: Instant::now(), length: Duration::from_secs(2), counts: vec![2, 4, 6, 8] };
        assert_eq!(periods.rates(4), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(periods.rates(2), [1.5, 3.5]);
    }

    #[test]
    fn a_descriptor_that_is_opened_is_counted() {
        let before = descriptors().unwrap();
        let file = fs::File::open("/proc/self/exe").unwrap();
        assert!(descriptors().unwrap() > before);
        drop(file);
    }
}
