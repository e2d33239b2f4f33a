//! # Detection of persistent memory
//!
//! Only a mapping with `MAP_SYNC` proves that a file is in persistent memory (mmap(2)). The
//! devices, and the persistence domains that the kernel reports, are listed as additional
//! information.

use std::path::{Path, PathBuf};

use sheaf_platform::disk::{Disk, OpenMode};

use super::FlushInstruction;

/// Part of the machine that keeps its content without power, as the kernel reports it for a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PersistenceDomain {
    /// The caches of the processor are saved too (eADR): no flush is needed.
    Caches,
    /// Data is saved once it has left the caches: flush and fence are needed.
    Memory,
    /// Another value of the kernel.
    Other(String),
}

/// Result of the detection. If nothing was found, all fields are empty or false.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmemSupport {
    /// True if a file in the given directory can be mapped with `MAP_SYNC`.
    pub maps_synchronously: bool,
    /// Devices named /dev/dax*.
    pub devices: Vec<PathBuf>,
    /// Regions on the non-volatile memory bus of the kernel.
    pub domains: Vec<(String, PersistenceDomain)>,
    /// Instruction of this processor that writes lines back.
    pub flush: Option<FlushInstruction>,
}

impl PmemSupport {
    /// Returns true if files in the directory are persistent memory, and the processor can write
    /// lines back.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.maps_synchronously && self.flush.is_some()
    }
}

const REGIONS: &str = "/sys/bus/nd/devices";

/// Looks for persistent memory on this machine and in the file system of `dir`.
#[must_use]
pub fn probe(disk: &dyn Disk, dir: &Path) -> PmemSupport {
    let names = |dir: &str| {
        let entries = disk.list(Path::new(dir)).unwrap_or_default();
        entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    let devices = names("/dev").into_iter().filter(|name| name.starts_with("dax"));
    let regions = names(REGIONS).into_iter().filter(|name| name.starts_with("region"));
    let domain = |region: String| {
        let path = Path::new(REGIONS).join(&region).join("persistence_domain");
        Some((region, parse_domain(&first_word(disk, &path)?)))
    };
    PmemSupport {
        maps_synchronously: sheaf_platform::disk::real::maps_synchronously(dir).unwrap_or(false),
        devices: devices.map(|name| Path::new("/dev").join(name)).collect(),
        domains: regions.filter_map(domain).collect(),
        flush: FlushInstruction::best(),
    }
}

fn parse_domain(word: &str) -> PersistenceDomain {
    match word {
        "cpu_cache" => PersistenceDomain::Caches,
        "memory_controller" => PersistenceDomain::Memory,
        other => PersistenceDomain::Other(other.to_owned()),
    }
}

/// Reads the word in a file of the kernel, which reports a wrong length.
fn first_word(disk: &dyn Disk, path: &Path) -> Option<String> {
    let file = disk.open(path, OpenMode::Read).ok()?;
    let mut word = Vec::new();
    for at in 0..64 {
        let mut byte = [0];
        if file.read_at(at, &mut byte).is_err() || byte[0].is_ascii_whitespace() {
            break;
        }
        word.push(byte[0]);
    }
    String::from_utf8(word).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn persistence_domains_are_parsed() {
        assert_eq!(parse_domain("cpu_cache"), PersistenceDomain::Caches);
        assert_eq!(parse_domain("memory_controller"), PersistenceDomain::Memory);
        assert_eq!(parse_domain("none"), PersistenceDomain::Other("none".into()));
    }
}
