//! # Bounded disk: the real disk with a limit of its descriptors
//!
//! [`RealDisk`] for one database. Its files share a [`Descriptors`] cache, which is informed of
//! each change of a name. If the process has no descriptor left, calls that need one for themselves
//! close an idle one.

use std::io;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit};

use super::descriptors::{Backend, BoundedVolume, Descriptors, OpenedFd, RawFd};
use super::real::{self, RealDisk};
use super::{DescriptorStats, DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, Permissions, Volume};

/// The real disk with a limit of its descriptors.
#[derive(Debug)]
pub(super) struct BoundedDisk {
    real: RealDisk,
    descriptors: Arc<Descriptors>,
}

impl BoundedDisk {
    /// Creates a disk with a limit of about `limit` descriptors for its files.
    pub(super) fn new(limit: u32, real: RealDisk) -> BoundedDisk {
        let origin = std::path::absolute(".").unwrap_or_default();
        BoundedDisk { real, descriptors: Descriptors::new(Box::new(SystemBackend), limit, origin) }
    }
}

/// Backend of the system calls.
#[derive(Debug)]
struct SystemBackend;

impl Backend for SystemBackend {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<OpenedFd> {
        real::open_file(path, open_mode, Permissions::default())
    }

    fn sync(&self, fd: RawFd) -> io::Result<()> {
        real::sync(fd)
    }

    fn close(&self, fd: RawFd) {
        real::close(fd);
    }

    fn spare(&self) -> Option<RawFd> {
        let opened = real::open_fd(Path::new("/dev/null"), OFlags::RDONLY);
        opened.ok().map(IntoRawFd::into_raw_fd)
    }

    fn process_limit(&self) -> Option<u64> {
        getrlimit(Resource::Nofile).current
    }
}

impl Disk for BoundedDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        real::check_open(path)?;
        let open = || real::open_file(path, open_mode, self.real.permissions);
        let (handle, len) = self.descriptors.open(path, open_mode, open)?;
        Ok(real::file_of(path, open_mode, handle, len))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.descriptors.retry_after_eviction(|| self.real.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.descriptors.before_remove(path)?;
        self.real.remove(path)
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.remove_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.descriptors.rename(from, to, || self.real.rename(from, to))
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.real.link(from, to)?;
        self.descriptors.note_link(from, to);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.descriptors.check_syncs()?;
        self.descriptors.retry_after_eviction(|| self.real.sync_dir(dir))
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.descriptors.retry_after_eviction(|| self.real.lock(path, share))
    }

    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.descriptors.retry_after_eviction(|| self.real.lock_existing(path, share))
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.real.free_space(path)
    }

    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.real.free_files(path)
    }

    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.descriptors.retry_after_eviction(|| self.real.disk_bytes(dir))
    }

    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        let beneath = self.descriptors.retry_after_eviction(|| self.real.volume(dir))?;
        Ok(Arc::new(BoundedVolume { beneath, descriptors: Arc::clone(&self.descriptors) }))
    }

    fn is_read_only(&self, path: &Path) -> bool {
        self.real.is_read_only(path)
    }

    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let descriptors = Arc::clone(&self.descriptors);
        Some(Arc::new(BoundedDisk { real: RealDisk { permissions }, descriptors }))
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        self.real.mode(path)
    }

    fn spread_dirs(&self, dir: &Path) {
        self.real.spread_dirs(dir);
    }

    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        self.real.with_descriptor_limit(limit)
    }

    fn descriptors(&self) -> Option<DescriptorStats> {
        Some(self.descriptors.stats())
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.real.cpu_time()
    }
}
