//! # Benchmark targets: a space and a file behind one trait

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use sheaf_flexspace::{FlexSpace, SpaceOptions};

use crate::Outcome;

/// A measured storage.
pub(crate) trait BenchTarget: Sync {
    fn name(&self) -> String;
    /// Directory of the files.
    fn dir(&self) -> &Path;
    fn inserts_cheaply(&self) -> bool;
    fn insert(&mut self, at: u64, bytes: &[u8]) -> Outcome<()>;
    fn write(&mut self, at: u64, bytes: &[u8]) -> Outcome<()>;
    fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()>;
    fn sync(&self) -> Outcome<()>;
    /// Drops the files from the page cache.
    fn drop_page_cache(&mut self) -> Outcome<()>;
    /// Syncs the file system, so that the device's counter is right.
    fn sync_file_system(&self) -> Outcome<()> {
        let dir = File::open(self.dir())?;
        // std has no sync of a file system; rustix does.
        Ok(rustix::fs::syncfs(&dir)?)
    }
}

pub(crate) struct FlexSpaceTarget {
    /// `None` only while the space is closed to drop its page cache.
    space: Option<FlexSpace>,
    dir: PathBuf,
}

impl FlexSpaceTarget {
    pub(crate) fn new(dir: &Path) -> Outcome<FlexSpaceTarget> {
        let space = FlexSpace::open(dir, SpaceOptions::default())?;
        Ok(FlexSpaceTarget { space: Some(space), dir: dir.to_path_buf() })
    }

    fn space(&self) -> Outcome<&FlexSpace> {
        Ok(self.space.as_ref().ok_or("the space did not open again")?)
    }
}

impl BenchTarget for FlexSpaceTarget {
    fn name(&self) -> String {
        "FlexSpace".into()
    }
    fn dir(&self) -> &Path {
        &self.dir
    }
    fn inserts_cheaply(&self) -> bool {
        true
    }
    fn insert(&mut self, at: u64, bytes: &[u8]) -> Outcome<()> {
        Ok(self.space()?.insert(at, bytes)?)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Outcome<()> {
        Ok(self.space()?.write(at, bytes)?)
    }
    fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()> {
        match self.space()?.read(at, bytes)? {
            count if count == bytes.len() => Ok(()),
            count => Err(format!("{count} bytes at {at}").into()),
        }
    }
    fn sync(&self) -> Outcome<()> {
        Ok(self.space()?.sync()?)
    }
    /// Closes the space first, because mapped pages stay in the page cache.
    fn drop_page_cache(&mut self) -> Outcome<()> {
        if let Some(space) = self.space.take() {
            space.close()?;
        }
        drop_cached_files(&self.dir)?;
        self.space = Some(FlexSpace::open(&self.dir, SpaceOptions::default())?);
        Ok(())
    }
}

pub(crate) struct PlainFileTarget {
    file: File,
    dir: PathBuf,
    kind: String,
    len: u64,
}

impl PlainFileTarget {
    pub(crate) fn new(file_system: &Path, dir: &Path) -> Outcome<PlainFileTarget> {
        fs::create_dir_all(dir)?;
        let file =
            File::options().read(true).write(true).create(true).truncate(true).open(dir.join("file"))?;
        Ok(PlainFileTarget {
            file,
            dir: dir.to_path_buf(),
            kind: mount_of(file_system).map_or("?".into(), |mount| mount.kind),
            len: 0,
        })
    }
}

impl BenchTarget for PlainFileTarget {
    fn name(&self) -> String {
        format!("file on {}", self.kind)
    }
    fn dir(&self) -> &Path {
        &self.dir
    }
    fn inserts_cheaply(&self) -> bool {
        false
    }
    fn insert(&mut self, at: u64, bytes: &[u8]) -> Outcome<()> {
        if at < self.len {
            fallocate(&self.file, FallocateFlags::INSERT_RANGE, at, bytes.len() as u64)?;
        }
        self.len += bytes.len() as u64;
        Ok(self.file.write_all_at(bytes, at)?)
    }
    fn write(&mut self, at: u64, bytes: &[u8]) -> Outcome<()> {
        Ok(self.file.write_all_at(bytes, at)?)
    }
    fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()> {
        Ok(self.file.read_exact_at(bytes, at)?)
    }
    fn sync(&self) -> Outcome<()> {
        Ok(self.file.sync_all()?)
    }
    fn drop_page_cache(&mut self) -> Outcome<()> {
        drop_cached_files(&self.dir)
    }
}

/// Collects every file below `dir`.
fn files(dir: &Path, found: &mut Vec<PathBuf>) -> Outcome<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// Drops the files from the page cache.
fn drop_cached_files(dir: &Path) -> Outcome<()> {
    let mut all = Vec::new();
    files(dir, &mut all)?;
    if fs::write("/proc/sys/vm/drop_caches", "1").is_ok() {
        return Ok(());
    }
    for path in all {
        let file = File::open(path)?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Returns the bytes written to the device of `dir` since boot, or 0 if they are not counted.
pub(crate) fn device_bytes(dir: &Path) -> u64 {
    let device = mount_of(dir).and_then(|mount| fs::metadata(mount.source).ok()).map(|meta| meta.rdev());
    let Some(number) = device.or_else(|| fs::metadata(dir).ok().map(|meta| meta.dev())) else { return 0 };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let stat = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).unwrap_or_default();
    stat.split_whitespace().nth(6).and_then(|sectors| sectors.parse::<u64>().ok()).unwrap_or(0) * 512
}

/// Type and device of a mounted file system, as the kernel reports them. (`stat` on Btrfs returns
/// another device number.)
struct Mount {
    kind: String,
    source: String,
}

fn mount_of(dir: &Path) -> Option<Mount> {
    let number = fs::metadata(dir).ok()?.dev();
    let wanted = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let line = mounts.lines().find(|line| line.split_whitespace().nth(2) == Some(&wanted))?;
    let mut words = line.split_once(" - ")?.1.split_whitespace();
    Some(Mount { kind: words.next()?.to_owned(), source: words.next()?.to_owned() })
}
