//! # Measure: CPU time, device bytes, disk space, medians

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Result;

/// A reading of the CPU clock: user and system time.
pub(crate) struct CpuTime {
    scope: libc::c_int,
    at: Duration,
}

impl CpuTime {
    /// Reads the clock of the whole process.
    pub(crate) fn of_process() -> CpuTime {
        CpuTime { scope: libc::RUSAGE_SELF, at: used(libc::RUSAGE_SELF) }
    }

    /// Reads the clock of the calling thread.
    pub(crate) fn of_thread() -> CpuTime {
        CpuTime { scope: libc::RUSAGE_THREAD, at: used(libc::RUSAGE_THREAD) }
    }

    /// Returns the CPU time used since the reading.
    pub(crate) fn since(&self) -> Duration {
        used(self.scope).saturating_sub(self.at)
    }
}

fn used(who: libc::c_int) -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer refers to a rusage. The kernel fills it; if the call fails, it is all
    // zeroes, which is a valid rusage.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    let part = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// Number of consecutive samples in which a process must be idle. They span more than 400 ms,
/// because engines of Sheaf start background work 400 ms after the last commit.
const IDLE_SAMPLES: u32 = 3;

/// Waits at most `at_most` until the process uses less than a twentieth of a core for several
/// samples: then compaction and GC are done.
pub(crate) fn wait_until_idle(at_most: Duration) {
    let began = Instant::now();
    let mut idle = 0;
    while idle < IDLE_SAMPLES && began.elapsed() < at_most {
        let (cpu, time) = (CpuTime::of_process(), Instant::now());
        std::thread::sleep(Duration::from_millis(250));
        idle = if cpu.since() * 20 < time.elapsed() { idle + 1 } else { 0 };
    }
}

/// Total bytes that the block device beneath a directory has read and written, for all processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCounters(Option<(u64, u64)>);

impl DeviceCounters {
    /// Reads the counters. With `flush`, first writes back all dirty data of the file system.
    pub(crate) fn read(dir: &Path, flush: bool) -> Result<DeviceCounters> {
        if flush {
            write_back(dir)?;
        }
        Ok(DeviceCounters(
            device_stat(dir)
                .and_then(|path| sectors(&path))
                .map(|(read, written)| (read * 512, written * 512)),
        ))
    }

    /// Returns the bytes written since `before`, or `None` if the device has no counters.
    pub(crate) fn written_since(self, before: &DeviceCounters) -> Option<u64> {
        Some(self.0?.1.saturating_sub(before.0?.1))
    }

    /// Returns the bytes read since `before`, or `None` if the device has no counters.
    pub(crate) fn read_since(self, before: &DeviceCounters) -> Option<u64> {
        Some(self.0?.0.saturating_sub(before.0?.0))
    }
}

/// Writes back all dirty data of the file system of `dir`.
pub(crate) fn write_back(dir: &Path) -> Result<()> {
    let handle = fs::File::open(dir)?;
    // SAFETY: `handle` keeps the descriptor open during the call.
    if unsafe { libc::syncfs(handle.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

/// Total bytes written: by this process, and by the device for all processes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenBytes {
    /// `write_bytes` of /proc/self/io: the bytes that the process dirtied or wrote directly.
    /// Excludes the journal and the metadata of the file system.
    pub(crate) process: u64,
    /// Bytes from /sys/dev/block/…/stat, if the device has that file.
    pub(crate) device: Option<u64>,
}

impl WrittenBytes {
    /// Reads the counters, after all dirty data of the file system of `dir` was written back.
    pub(crate) fn read(dir: &Path) -> Result<WrittenBytes> {
        write_back(dir)?;
        let io = fs::read_to_string("/proc/self/io")?;
        let process = io
            .lines()
            .find_map(|line| line.strip_prefix("write_bytes: "))
            .and_then(|number| number.trim().parse().ok())
            .ok_or("no write_bytes in /proc/self/io")?;
        Ok(WrittenBytes {
            process,
            device: device_stat(dir).and_then(|path| sectors(&path)).map(|(_, written)| written * 512),
        })
    }

    /// Returns the bytes written since `before`.
    pub(crate) fn since(self, before: WrittenBytes) -> WrittenBytes {
        WrittenBytes {
            process: self.process.saturating_sub(before.process),
            device: self.device.zip(before.device).map(|(now, then)| now.saturating_sub(then)),
        }
    }

    /// Returns the count of the device, which verdicts use, or that of the process without such a
    /// device.
    pub(crate) fn device_or_process(self) -> u64 {
        self.device.unwrap_or(self.process)
    }
}

/// Returns the statistics file of the block device beneath `dir`.
fn device_stat(dir: &Path) -> Option<PathBuf> {
    let device = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

/// Returns the sectors read and written.
fn sectors(stat: &Path) -> Option<(u64, u64)> {
    // Documentation/block/stat.rst: the third and the seventh field.
    let text = fs::read_to_string(stat).ok()?;
    let field = |place: usize| text.split_whitespace().nth(place)?.parse().ok();
    Some((field(2)?, field(6)?))
}

/// Returns the allocated bytes on disk beneath `dir`. Ignores files that are deleted during the
/// call.
pub(crate) fn disk_bytes(dir: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries
        .flatten()
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            Some(if meta.is_dir() { disk_bytes(&entry.path()) } else { meta.blocks() * 512 })
        })
        .sum()
}

/// Drops the page cache of the files beneath `dir`, which must not be open. The kernel charges a
/// cached page to the process that read it, so a cap on another process would not count it.
pub(crate) fn drop_page_cache(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            drop_page_cache(&entry.path())?;
        }
        // A killed process leaves its socket.
        if !kind.is_file() {
            continue;
        }
        let file = fs::File::open(entry.path())?;
        file.sync_all()?; // dirty pages are not dropped
        // SAFETY: `file` keeps the descriptor open during the call, and the call takes no pointer.
        let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if code != 0 {
            return Err(std::io::Error::from_raw_os_error(code).into());
        }
    }
    Ok(())
}

/// Returns the memory of this process that is not backed by a file.
pub(crate) fn memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Returns the median of `values`: the mean of the two middle ones if their number is even. Returns
/// `None` if there are none.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_page_cache_is_dropped_beside_the_socket_of_a_killed_process() {
        let dir = std::env::temp_dir().join(format!("sheaf-bench-socket-{}", std::process::id()));
        fs::create_dir_all(dir.join("below")).unwrap();
        drop(std::os::unix::net::UnixListener::bind(dir.join("socket")).unwrap());
        fs::write(dir.join("below/file"), "x").unwrap();
        drop_page_cache(&dir).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn disk_bytes_counts_blocks_of_all_files_beneath() {
        let dir = std::env::temp_dir().join(format!("sheaf-bench-footprint-{}", std::process::id()));
        fs::create_dir_all(dir.join("deep")).unwrap();
        fs::write(dir.join("deep/file"), vec![1; 10_000]).unwrap();
        fs::File::open(dir.join("deep/file")).unwrap().sync_all().unwrap();
        let bytes = disk_bytes(&dir);
        assert!((8192..=65_536).contains(&bytes), "{bytes}");
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn cpu_time_of_work_is_seen_and_of_sleep_is_not() {
        let cpu = CpuTime::of_thread();
        std::thread::sleep(Duration::from_millis(30));
        assert!(cpu.since() < Duration::from_millis(15));
        let until = Instant::now() + Duration::from_millis(200);
        while Instant::now() < until {}
        assert!(cpu.since() > Duration::from_millis(20));
    }
}
