//! # Machine: its properties and short probes of its speed
//!
//! The probes take about two seconds together. The syncs of the device are probed again in each
//! round of the durable writes, because ratios count only within a round.

use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Result;
use crate::keys::BenchRandom;

/// Properties of the machine, and results of the probes.
pub(crate) struct MachineInfo {
    pub(crate) cores: usize,
    pub(crate) model: String,
    pub(crate) memory_gib: f64,
    pub(crate) kernel: String,
    pub(crate) filesystem: String,
    /// Time of a load that depends on the previous one, over 512 MiB.
    pub(crate) dependent_load_ns: f64,
    /// Speed at which one core copies 64 MiB.
    pub(crate) copy_gb_per_s: f64,
    /// Time of the cheapest system call.
    pub(crate) system_call_ns: f64,
    /// Time to read 256 bytes from the page cache.
    pub(crate) cached_read_ns: f64,
    /// Rate of durable overwrites of 512 bytes by one thread.
    pub(crate) syncs_per_s: f64,
}

impl MachineInfo {
    /// Reads the properties and runs the probes, with files in `dir`.
    pub(crate) fn probe(dir: &Path) -> Result<MachineInfo> {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib: f64 = field(&memory, "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0.0);
        Ok(MachineInfo {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            model: field(&cpu, "model name"),
            memory_gib: kib / f64::from(1 << 20),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            filesystem: filesystem(dir),
            dependent_load_ns: dependent_load(),
            copy_gb_per_s: copy(),
            system_call_ns: system_call(),
            cached_read_ns: cached_read(dir)?,
            syncs_per_s: syncs(dir, Duration::from_millis(500))?,
        })
    }

    /// Returns a description for people.
    pub(crate) fn markdown(&self) -> String {
        format!(
            "Machine: {} cores ({}), {:.0} GiB, Linux {}, {}.\n\
             Probes: dependent load {:.0} ns, copy {:.1} GB/s, system call {:.0} ns, cached read of 256 B {:.2} µs, \
             durable overwrites of 512 B {:.1} k/s.\n",
            self.cores,
            self.model,
            self.memory_gib,
            self.kernel,
            self.filesystem,
            self.dependent_load_ns,
            self.copy_gb_per_s,
            self.system_call_ns,
            self.cached_read_ns / 1e3,
            self.syncs_per_s / 1e3,
        )
    }

    /// Returns the same figures as JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "cores": self.cores,
            "model": self.model,
            "memory_gib": self.memory_gib,
            "kernel": self.kernel,
            "filesystem": self.filesystem,
            "dependent_load_ns": self.dependent_load_ns,
            "copy_gb_per_s": self.copy_gb_per_s,
            "system_call_ns": self.system_call_ns,
            "cached_read_256_ns": self.cached_read_ns,
            "durable_overwrites_per_s": self.syncs_per_s,
        })
    }
}

/// Returns the value of a line `name: value`, as in files of /proc.
fn field(text: &str, name: &str) -> String {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
}

/// Returns type and options of the file system of `dir`.
fn filesystem(dir: &Path) -> String {
    let Ok(device) = fs::metadata(dir).map(|meta| meta.dev()) else { return "unknown".to_owned() };
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        // Example: 36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue
        let Some((mount, kind)) = line.split_once(" - ") else { continue };
        if mount.split_whitespace().nth(2) == Some(&number) {
            let mut kind = kind.split_whitespace();
            let name = kind.next().unwrap_or("unknown").to_owned();
            return format!("{name} ({})", kind.nth(1).unwrap_or_default());
        }
    }
    "unknown".to_owned()
}

fn nanos_each(began: Instant, count: u32) -> f64 {
    began.elapsed().as_secs_f64() * 1e9 / f64::from(count)
}

/// Returns the nanoseconds of a step of a pointer chase. The pointers form one cycle over all lines
/// of 512 MiB (Sattolo's shuffle), and a million steps are measured.
fn dependent_load() -> f64 {
    const LINES: u32 = (512 << 20) / 64;
    const STEPS: u32 = 1_000_000;
    #[derive(Clone, Copy)]
    #[repr(align(64))]
    struct CacheLine(u32);
    let mut lines: Vec<CacheLine> = (0..LINES).map(CacheLine).collect();
    let mut random = BenchRandom::new(7);
    for i in (1..LINES as usize).rev() {
        let other = usize::try_from(random.below(i as u64)).unwrap_or(0);
        lines.swap(i, other);
    }
    let began = Instant::now();
    let mut at = 0;
    for _ in 0..STEPS {
        at = lines[at as usize].0;
    }
    std::hint::black_box(at);
    nanos_each(began, STEPS)
}

fn copy() -> f64 {
    const BYTES: usize = 64 << 20;
    const TIMES: u32 = 8;
    let from = vec![1u8; BYTES];
    let mut to = vec![2u8; BYTES];
    let began = Instant::now();
    for _ in 0..TIMES {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
    }
    BYTES as f64 / nanos_each(began, TIMES)
}

fn system_call() -> f64 {
    const TIMES: u32 = 500_000;
    let began = Instant::now();
    for _ in 0..TIMES {
        // SAFETY: the call takes nothing and cannot fail. It is never cached, unlike getpid in old
        // C libraries.
        unsafe { libc::getppid() };
    }
    nanos_each(began, TIMES)
}

fn cached_read(dir: &Path) -> Result<f64> {
    const TIMES: u32 = 300_000;
    const BYTES: u64 = 16 << 20;
    let path = dir.join("probe-read");
    fs::write(&path, vec![7; usize::try_from(BYTES)?])?;
    let file = fs::File::open(&path)?;
    let mut random = BenchRandom::new(8);
    let mut bytes = [0; 256];
    let began = Instant::now();
    for _ in 0..TIMES {
        file.read_exact_at(&mut bytes, random.below(BYTES - 256))?;
    }
    let each = nanos_each(began, TIMES);
    fs::remove_file(&path)?;
    Ok(each)
}

/// Returns the durable overwrites per second of one thread: `pwritev2` with `RWF_DSYNC` of 512
/// aligned bytes, one after the other. The file is allocated and written first.
pub(crate) fn syncs(dir: &Path, time: Duration) -> Result<f64> {
    const BYTES: i64 = 8 << 20;
    let path = dir.join("probe-sync");
    let file = fs::File::create(&path)?;
    file.write_all_at(&vec![1; usize::try_from(BYTES)?], 0)?;
    file.sync_all()?;
    let sector = [9u8; 512];
    let vector = libc::iovec { iov_base: sector.as_ptr().cast_mut().cast(), iov_len: sector.len() };
    let (mut count, mut at) = (0u32, 0);
    let began = Instant::now();
    while began.elapsed() < time {
        // SAFETY: the one vector refers to `sector`, which lives during the call and which the
        // kernel only reads. `file` keeps the descriptor open.
        let written = unsafe { libc::pwritev2(file.as_raw_fd(), &vector, 1, at, libc::RWF_DSYNC) };
        if written != 512 {
            return Err(io::Error::last_os_error().into());
        }
        count += 1;
        at = (at + 512) % BYTES;
    }
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    fs::remove_file(&path)?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_proc_files_are_found() {
        assert_eq!(field("model name\t: Fast 3\nMemTotal:   24 kB\n", "model name"), "Fast 3");
        assert_eq!(field("model name\t: Fast 3\nMemTotal:   24 kB\n", "MemTotal"), "24 kB");
        assert_eq!(field("", "MemTotal"), "unknown");
    }

    #[test]
    fn the_file_system_of_the_root_has_a_name() {
        assert!(!filesystem(Path::new("/")).is_empty());
    }
}
