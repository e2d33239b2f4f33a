//! # Machine: CPU time, descriptors, disk space and latencies of this process

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
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
    Ok(fs::read_dir("/proc/self/fd")?.count() - 1) // without the one of the listing
}

/// Returns the disk space in bytes of the files below `dir`. A file with several names counts once.
/// A file that is removed during the walk does not count.
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

/// Calls `is_reached` every 50 ms until it returns true or `limit` has passed. Returns the elapsed
/// time.
pub(crate) fn wait_until(limit: Duration, mut is_reached: impl FnMut() -> bool) -> Duration {
    let began = Instant::now();
    while !is_reached() && began.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    began.elapsed()
}

/// Returns the milliseconds that `work` took, and its result.
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let began = Instant::now();
    let done = work();
    (began.elapsed().as_secs_f64() * 1e3, done)
}

/// Latencies in nanoseconds, with three digits. The memory is constant: a vector of all latencies
/// has to be moved when it grows, and during the move other threads wait for the address space.
#[derive(Debug)]
pub(crate) struct Latencies(Histogram<u64>);

impl Default for Latencies {
    fn default() -> Latencies {
        Latencies(Histogram::new(3).expect("three digits are valid"))
    }
}

impl Latencies {
    pub(crate) fn add(&mut self, took: Duration) {
        self.0 += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
    }

    pub(crate) fn extend(&mut self, other: &Latencies) {
        self.0 += &other.0;
    }

    /// Returns the quantile `share` (0 to 1) in microseconds; 0 without latencies.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        self.0.value_at_quantile(share) as f64 / 1e3
    }
}

/// Times of a thread since its start; 0 if the kernel does not count them.
#[derive(Clone, Copy, Default)]
pub(crate) struct ThreadTimes {
    /// Time on a processor.
    pub(crate) ran: Duration,
    /// Time in which the thread was ready to run and waited for a processor.
    pub(crate) queued: Duration,
}

/// Returns the number of times that this thread waited for a page of a file from the device, since
/// its start.
pub(crate) fn device_reads() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
    // The name before the last bracket may contain spaces. The number of major faults is field 12.
    let fields = text.rsplit_once(')').map(|(_, rest)| rest).unwrap_or_default();
    fields.split_whitespace().nth(9).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Returns the number of times that this thread has slept since its start: it waited for another
/// thread, for a device or for time to pass.
pub(crate) fn sleeps() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// Returns the times of this thread.
pub(crate) fn thread_times() -> ThreadTimes {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let mut fields = text.split_whitespace().map(|field| field.parse().unwrap_or(0));
    let mut next = || Duration::from_nanos(fields.next().unwrap_or(0));
    ThreadTimes { ran: next(), queued: next() }
}

/// Returns the time in which this thread was ready to run and waited for a processor, since its
/// start; 0 if the kernel does not count it.
pub(crate) fn queued_time() -> Duration {
    thread_times().queued
}

/// Returns the time that the hypervisor of this virtual machine gave to others, all processors
/// together, since the start of the machine; 0 on real hardware.
pub(crate) fn stolen_time() -> Duration {
    stolen_in_line("cpu")
}

/// Returns the time that the hypervisor took from processor `cpu` since the start of the machine,
/// in whole ticks; 0 on real hardware.
pub(crate) fn stolen_from(cpu: usize) -> Duration {
    stolen_in_line(&format!("cpu{cpu}"))
}

/// Returns the length of a tick, the unit of the kernel's figures.
pub(crate) fn tick() -> Duration {
    Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second()).unwrap_or(100)
}

fn stolen_in_line(name: &str) -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let mut lines = text.lines().map(|line| line.split_ascii_whitespace());
    let ticks = lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(7)).flatten());
    tick() * ticks.and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// Operation counts of equal periods, to compare the last period with the first.
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

    /// Counts an operation now. Returns false after the last period.
    pub(crate) fn count(&mut self) -> bool {
        let index = self.began.elapsed().as_nanos() / self.length.as_nanos().max(1);
        match usize::try_from(index).ok().and_then(|index| self.counts.get_mut(index)) {
            Some(count) => *count += 1,
            None => return false,
        }
        true
    }

    /// Returns the operations per second of each of `parts` equal parts. The number of periods must
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
        for (share, expected) in [(0.0, 1.0), (0.5, 51.0), (1.0, 101.0)] {
            let quantile = latencies.quantile(share);
            assert!((quantile - expected).abs() <= expected / 1000.0, "{quantile}, not {expected}");
        }
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
