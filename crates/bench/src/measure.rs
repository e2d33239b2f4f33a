//! # Measure: CPU time, device bytes, disk space, medians

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Result;

/// A reading of the CPU clock (user + system).
pub(crate) struct CpuTime {
    scope: libc::c_int,
    at: Duration,
}

impl CpuTime {
    /// The whole process.
    pub(crate) fn of_process() -> CpuTime {
        CpuTime { scope: libc::RUSAGE_SELF, at: used(libc::RUSAGE_SELF) }
    }

    /// The calling thread.
    pub(crate) fn of_thread() -> CpuTime {
        CpuTime { scope: libc::RUSAGE_THREAD, at: used(libc::RUSAGE_THREAD) }
    }

    /// CPU time used since the reading.
    pub(crate) fn since(&self) -> Duration {
        used(self.scope).saturating_sub(self.at)
    }
}

fn used(who: libc::c_int) -> Duration {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a rusage; the kernel fills it, and zeroes are valid if it does not.
    let usage = unsafe {
        libc::getrusage(who, usage.as_mut_ptr());
        usage.assume_init()
    };
    let part = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// Looks in a row at which a process must be idle: Sheaf's engines begin to tidy up 400 ms after
/// the last commit.
const IDLE_SAMPLES: u32 = 3;

/// Waits until the process uses less than a twentieth of a core, and goes on to: compactions and
/// cleaners are done.
pub(crate) fn wait_until_idle(at_most: Duration) {
    let began = Instant::now();
    let mut idle = 0;
    while idle < IDLE_SAMPLES && began.elapsed() < at_most {
        let (cpu, time) = (CpuTime::of_process(), Instant::now());
        std::thread::sleep(Duration::from_millis(250));
        idle = if cpu.since() * 20 < time.elapsed() { idle + 1 } else { 0 };
    }
}

/// Bytes the block device beneath a directory was given and asked for so far, by everybody.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceCounters(Option<(u64, u64)>);

impl DeviceCounters {
    /// A reading; with `flush` after everything dirty on the file system was written back.
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

    /// Bytes written since `before`, where there is such a device.
    pub(crate) fn written_since(self, before: &DeviceCounters) -> Option<u64> {
        Some(self.0?.1.saturating_sub(before.0?.1))
    }

    /// Bytes read since `before`.
    pub(crate) fn read_since(self, before: &DeviceCounters) -> Option<u64> {
        Some(self.0?.0.saturating_sub(before.0?.0))
    }
}

/// Writes back everything dirty on the file system of `dir`.
pub(crate) fn write_back(dir: &Path) -> Result<()> {
    let handle = fs::File::open(dir)?;
    // SAFETY: the descriptor is open.
    if unsafe { libc::syncfs(handle.as_raw_fd()) } != 0 {
        return Err(io::Error::last_os_error().into());
    }
    Ok(())
}

/// Bytes written so far: by this process, and by the device (by everybody).
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenBytes {
    /// `write_bytes` of /proc/self/io: what the process made dirty or wrote directly. Without the
    /// file system's own journal and metadata.
    pub(crate) process: u64,
    /// Sectors of /sys/dev/block/…/stat, if there is such a device.
    pub(crate) device: Option<u64>,
}

impl WrittenBytes {
    /// A reading, after everything dirty on the file system of `dir` was written back.
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

    /// What was written since `before`.
    pub(crate) fn since(self, before: WrittenBytes) -> WrittenBytes {
        WrittenBytes {
            process: self.process.saturating_sub(before.process),
            device: self.device.zip(before.device).map(|(now, then)| now.saturating_sub(then)),
        }
    }

    /// The device's count if there is one, else the process's: what a verdict is about.
    pub(crate) fn device_or_process(self) -> u64 {
        self.device.unwrap_or(self.process)
    }
}

/// The statistics file of the block device beneath `dir`.
fn device_stat(dir: &Path) -> Option<PathBuf> {
    let device = fs::metadata(dir).ok()?.dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    path.exists().then_some(path)
}

/// Sectors read and written.
fn sectors(stat: &Path) -> Option<(u64, u64)> {
    // Documentation/block/stat.rst: the third and the seventh field.
    let text = fs::read_to_string(stat).ok()?;
    let field = |place: usize| text.split_whitespace().nth(place)?.parse().ok();
    Some((field(2)?, field(6)?))
}

/// Bytes on disk beneath `dir`: allocated blocks. Files that vanish while we look count as nothing.
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

/// Has the kernel forget what it keeps of the files beneath `dir`, which nobody has open: pages
/// that one process brought in are charged to it for ever, and a cap on another would not count
/// them.
pub(crate) fn drop_page_cache(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            drop_page_cache(&entry.path())?;
            continue;
        }
        let file = fs::File::open(entry.path())?;
        file.sync_all()?; // dirty pages would stay
        // SAFETY: an open file's descriptor; the whole of it.
        let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if code != 0 {
            return Err(std::io::Error::from_raw_os_error(code).into());
        }
    }
    Ok(())
}

/// Memory of this process that is backed by no file.
pub(crate) fn memory_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    kib.and_then(|kib| kib.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) << 10
}

/// The middle of `values` (of two, the mean). `None` without any.
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
