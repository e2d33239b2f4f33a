//! # The real disk with a bound on its descriptors
//!
//! [`RealDisk`] for one database: its files share a [`Descriptors`] cache, which learns of every
//! name that changes. Calls that need a descriptor for their own duration close an idle one if the
//! process has none left.

use std::io;
use std::os::fd::{IntoRawFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Resource, getrlimit};

use super::descriptors::{Backend, Descriptors, Opened};
use super::real::{self, RealDisk};
use super::{DescriptorStats, Disk, Entry, File, How, Locked, Permissions, Share, Volume};

/// See the module.
#[derive(Debug)]
pub(super) struct LimitedDisk {
    real: RealDisk,
    descriptors: Arc<Descriptors>,
}

impl LimitedDisk {
    /// A disk whose files take at most about `limit` descriptors.
    pub(super) fn new(limit: u32, real: RealDisk) -> LimitedDisk {
        let origin = std::path::absolute(".").unwrap_or_default();
        LimitedDisk { real, descriptors: Descriptors::new(Box::new(System), limit, origin) }
    }
}

/// The system's calls.
#[derive(Debug)]
struct System;

impl Backend for System {
    fn open(&self, path: &Path, how: How) -> io::Result<Opened> {
        real::open_file(path, how, Permissions::default())
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

impl Disk for LimitedDisk {
    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>> {
        let open = || real::open_file(path, how, self.real.permissions);
        let (handle, len) = self.descriptors.open(path, how, open)?;
        Ok(real::file_of(path, how, handle, len))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.descriptors.with_room(|| self.real.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.real.create_dir(dir)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.descriptors.removing(path)?;
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
        self.descriptors.linked(from, to);
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.descriptors.check_syncs()?;
        self.descriptors.with_room(|| self.real.sync_dir(dir))
    }

    fn lock(&self, path: &Path, share: Share) -> io::Result<Locked> {
        self.descriptors.with_room(|| self.real.lock(path, share))
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.real.free_space(path)
    }

    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.real.free_files(path)
    }

    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.descriptors.with_room(|| self.real.disk_bytes(dir))
    }

    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        let beneath = self.descriptors.with_room(|| self.real.volume(dir))?;
        Ok(Arc::new(LimitedVolume { beneath, descriptors: Arc::clone(&self.descriptors) }))
    }

    fn is_read_only(&self, path: &Path) -> bool {
        self.real.is_read_only(path)
    }

    fn permitting(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let descriptors = Arc::clone(&self.descriptors);
        Some(Arc::new(LimitedDisk { real: RealDisk { permissions }, descriptors }))
    }

    fn mode(&self, path: &Path) -> Option<u32> {
        self.real.mode(path)
    }

    fn spread(&self, dir: &Path) {
        self.real.spread(dir);
    }

    fn bounded(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        self.real.bounded(limit)
    }

    fn descriptors(&self) -> Option<DescriptorStats> {
        Some(self.descriptors.stats())
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.real.cpu_time()
    }
}

/// A file system, whose sync covers every open file.
#[derive(Debug)]
pub(super) struct LimitedVolume {
    pub(super) beneath: Arc<dyn Volume>,
    pub(super) descriptors: Arc<Descriptors>,
}

impl Volume for LimitedVolume {
    fn sync(&self) -> io::Result<()> {
        self.descriptors.check_syncs()?;
        let covered = self.descriptors.all_marks();
        self.beneath.sync()?;
        covered.iter().for_each(|(handle, marks)| handle.synced(*marks));
        Ok(())
    }
}
