//! # Recording disk: counts, observes and falsifies disk calls
//!
//! A wrapper around any disk. An *observer* is called just before every call that changes
//! something, so that the disk can be forked between two calls of one database operation. A
//! *defect* makes the disk report success for work that it does not do; harnesses prove with it
//! that they would notice. A *read hook* is called before every read, by the reading thread, and
//! may block it. Other hooks do the same for creations, appends and syncs. Without any of them the
//! disk only counts. Failing calls are faults of the simulated disk.
//!
//! ## Blind spots
//!
//! Stores through a mapping that do not use [`File::append_at`]; accesses that bypass the disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_platform::disk::{
    DescriptorStats, DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, Permissions,
};
use sheaf_platform::sync::Mutex;

/// Kind of a disk call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // they are the calls of `Disk` and `File`
pub enum DiskCallKind {
    Open,
    Create,
    List,
    CreateDir,
    Remove,
    RemoveDir,
    Rename,
    SyncDir,
    Lock,
    FreeSpace,
    Read,
    Write,
    Len,
    SetLen,
    Allocate,
    Sync,
    Resident,
}

impl DiskCallKind {
    /// All kinds.
    pub const ALL: [DiskCallKind; 17] = [
        DiskCallKind::Open,
        DiskCallKind::Create,
        DiskCallKind::List,
        DiskCallKind::CreateDir,
        DiskCallKind::Remove,
        DiskCallKind::RemoveDir,
        DiskCallKind::Rename,
        DiskCallKind::SyncDir,
        DiskCallKind::Lock,
        DiskCallKind::FreeSpace,
        DiskCallKind::Read,
        DiskCallKind::Write,
        DiskCallKind::Len,
        DiskCallKind::SetLen,
        DiskCallKind::Allocate,
        DiskCallKind::Sync,
        DiskCallKind::Resident,
    ];

    /// Whether the call can change the state that a crash leaves.
    #[must_use]
    pub fn changes_disk(self) -> bool {
        !matches!(
            self,
            DiskCallKind::Open
                | DiskCallKind::List
                | DiskCallKind::FreeSpace
                | DiskCallKind::Read
                | DiskCallKind::Len
        )
    }
}

/// Work that the disk reports as done without doing it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskDefect {
    /// No defect.
    #[default]
    None,
    /// `sync` returns Ok and does nothing.
    IgnoredSync,
    /// Like `IgnoredSync`, for files with this text in their path.
    IgnoredSyncOf(&'static str),
    /// `sync_dir` returns Ok and does nothing.
    IgnoredSyncDir,
    /// Like `IgnoredSyncDir`, for directories with this text in their path.
    IgnoredSyncDirOf(&'static str),
    /// A sync is executed at the next sync.
    DelayedSync,
    /// Every second sync is not executed.
    EverySecondSyncIgnored,
    /// A write to files with this text in their path is executed at the next write.
    DelayedWrite(&'static str),
    /// A write to files with this text in their path omits its last eight bytes, as after a short
    /// transfer that is not continued.
    UnnoticedShortWrite(&'static str),
    /// A failed sync returns Ok.
    HiddenSyncFailure,
    /// A failed sync is retried, and the second result is returned.
    RetriedSync,
    /// A failed write returns Ok.
    HiddenWriteFailure,
}

type CallObserver = Box<dyn FnMut(DiskCallKind, &Path) + Send>;
type PathHook = Arc<dyn Fn(&Path) + Send + Sync>;

#[derive(Default)]
struct RecordingState {
    calls: u64,
    call_limit: Option<u64>,
    observer: Option<CallObserver>,
    read_hook: Option<PathHook>,
    create_hook: Option<PathHook>,
    append_hook: Option<PathHook>,
    sync_hook: Option<PathHook>,
    defect: DiskDefect,
    syncs: u64,
    delayed_sync: Option<Arc<dyn File>>,
    delayed_write: Option<(Arc<dyn File>, u64, Vec<u8>)>,
}

impl RecordingState {
    /// Counts a call, checks the limit and calls the observer.
    fn record(&mut self, class: DiskCallKind, path: &Path) {
        self.calls += 1;
        if let Some(fuse) = self.call_limit.filter(|_| !std::thread::panicking()) {
            assert!(self.calls <= fuse, "more than {fuse} disk calls: it does not end");
        }
        if let Some(watcher) = self.observer.as_mut().filter(|_| class.changes_disk()) {
            watcher(class, path);
        }
    }
}

/// A disk wrapper. Clones share all state.
#[derive(Clone)]
pub struct RecordingDisk {
    inner: Arc<dyn Disk>,
    state: Arc<Mutex<RecordingState>>,
}

impl fmt::Debug for RecordingDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordingDisk").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl RecordingDisk {
    /// Returns a recording disk on `below`.
    #[must_use]
    pub fn new(below: Arc<dyn Disk>) -> RecordingDisk {
        RecordingDisk { inner: below, state: Arc::default() }
    }

    /// Returns the number of calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Panics after `calls` more calls, so that an endless loop becomes a failure.
    pub fn set_call_limit(&self, calls: u64) {
        let mut state = self.state.lock();
        state.call_limit = Some(state.calls + calls);
    }

    /// Calls `watcher` just before every call that can change the state that a crash leaves.
    pub fn set_observer(&self, watcher: impl FnMut(DiskCallKind, &Path) + Send + 'static) {
        self.state.lock().observer = Some(Box::new(watcher));
    }

    /// Removes the observer.
    pub fn clear_observer(&self) {
        self.state.lock().observer = None;
    }

    /// Calls `host` before every read of a file. The read waits for it; other calls do not.
    pub fn on_read(&self, host: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().read_hook = Some(Arc::new(host));
    }

    /// Calls `appender` before every append to a log, which waits for it. It may use the disk.
    pub fn on_append(&self, appender: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().append_hook = Some(Arc::new(appender));
    }

    /// Calls `host` after every sync of a file, before the sync returns. It may use the disk.
    pub fn on_sync(&self, host: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().sync_hook = Some(Arc::new(host));
    }

    /// Calls `maker` before every creation of a file, which waits for it. It may use the disk.
    pub fn on_create(&self, maker: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().create_hook = Some(Arc::new(maker));
    }

    /// Sets the defect from now on.
    pub fn set_defect(&self, defect: DiskDefect) {
        self.state.lock().defect = defect;
    }

    fn record(&self, class: DiskCallKind, path: &Path) {
        self.state.lock().record(class, path);
    }
}

impl Disk for RecordingDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.record(
            if open_mode == OpenMode::Create { DiskCallKind::Create } else { DiskCallKind::Open },
            path,
        );
        let maker = self.state.lock().create_hook.clone().filter(|_| open_mode == OpenMode::Create);
        if let Some(maker) = maker {
            maker(path); // without the lock
        }
        let below = self.inner.open(path, open_mode)?;
        Ok(Arc::new(RecordingFile { inner: below, path: path.to_path_buf(), state: Arc::clone(&self.state) }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        self.record(DiskCallKind::List, dir);
        self.inner.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.record(DiskCallKind::CreateDir, dir);
        self.inner.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.record(DiskCallKind::Remove, path);
        self.inner.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.record(DiskCallKind::RemoveDir, dir);
        self.inner.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.record(DiskCallKind::Rename, from);
        self.inner.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.record(DiskCallKind::Rename, from);
        self.inner.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.record(DiskCallKind::SyncDir, dir);
        let defect = self.state.lock().defect;
        let is_named = |part: &str| dir.to_string_lossy().contains(part);
        if defect == DiskDefect::IgnoredSyncDir
            || matches!(defect, DiskDefect::IgnoredSyncDirOf(part) if is_named(part))
        {
            return Ok(());
        }
        self.inner.sync_dir(dir)
    }
    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.record(DiskCallKind::Lock, path);
        self.inner.lock(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.record(DiskCallKind::FreeSpace, path);
        self.inner.free_space(path)
    }
    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let below = self.inner.with_descriptor_limit(limit)?;
        Some(Arc::new(RecordingDisk { inner: below, state: Arc::clone(&self.state) }))
    }
    fn descriptors(&self) -> Option<DescriptorStats> {
        self.inner.descriptors()
    }
    fn is_read_only(&self, path: &Path) -> bool {
        self.inner.is_read_only(path)
    }
    fn with_permissions(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let below = self.inner.with_permissions(permissions)?;
        Some(Arc::new(RecordingDisk { inner: below, state: Arc::clone(&self.state) }))
    }
    fn mode(&self, path: &Path) -> Option<u32> {
        self.inner.mode(path)
    }
}

struct RecordingFile {
    inner: Arc<dyn File>,
    path: PathBuf,
    state: Arc<Mutex<RecordingState>>,
}

impl fmt::Debug for RecordingFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordingFile").field(&self.path).finish()
    }
}

impl RecordingFile {
    fn record(&self, class: DiskCallKind) {
        self.state.lock().record(class, &self.path);
    }

    fn run_sync_hook(&self) {
        let host = self.state.lock().sync_hook.clone();
        if let Some(host) = host {
            host(&self.path); // without the lock
        }
    }

    fn name_contains(&self, part: &str) -> bool {
        self.path.to_string_lossy().contains(part)
    }

    /// Returns the file to sync for a sync of this file, if any.
    fn sync_target(&self) -> Option<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.syncs += 1;
        match state.defect {
            DiskDefect::IgnoredSync => None,
            DiskDefect::IgnoredSyncOf(part) if self.name_contains(part) => None,
            DiskDefect::EverySecondSyncIgnored if state.syncs.is_multiple_of(2) => None,
            DiskDefect::DelayedSync => state.delayed_sync.replace(Arc::clone(&self.inner)),
            _ => Some(Arc::clone(&self.inner)),
        }
    }

    /// Returns the result to report for a sync with this result.
    fn sync_result(&self, answer: io::Result<()>) -> io::Result<()> {
        match self.state.lock().defect {
            DiskDefect::HiddenSyncFailure => Ok(()),
            DiskDefect::RetriedSync => answer.or_else(|_| self.inner.sync()),
            _ => answer,
        }
    }

    /// Writes `bytes` according to the defect, and returns the result to report.
    fn write_with_defect(&self, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let defect = self.state.lock().defect;
        match defect {
            DiskDefect::UnnoticedShortWrite(part) if self.name_contains(part) => {
                write(&bytes[..bytes.len().saturating_sub(8)])
            }
            DiskDefect::HiddenWriteFailure => write(bytes).or(Ok(())),
            _ => write(bytes),
        }
    }

    /// Delays this write, and executes the previously delayed one. Returns false if writes are not
    /// delayed.
    fn delay_write(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut state = self.state.lock();
        let DiskDefect::DelayedWrite(part) = state.defect else {
            return Ok(false);
        };
        if !self.name_contains(part) {
            return Ok(false);
        }
        let waiting = state.delayed_write.replace((Arc::clone(&self.inner), offset, bytes.to_vec()));
        match waiting {
            Some((file, offset, bytes)) => file.write_at(offset, &bytes).map(|()| true),
            None => Ok(true),
        }
    }
}

impl File for RecordingFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.record(DiskCallKind::Read);
        let host = self.state.lock().read_hook.clone();
        if let Some(host) = host {
            host(&self.path); // without the lock: the hook may wait for other users of the disk
        }
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.record(DiskCallKind::Write);
        if self.delay_write(offset, bytes)? {
            return Ok(());
        }
        self.write_with_defect(bytes, |bytes| self.inner.write_at(offset, bytes))
    }
    fn len(&self) -> io::Result<u64> {
        self.record(DiskCallKind::Len);
        self.inner.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.record(DiskCallKind::SetLen);
        self.inner.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.record(DiskCallKind::Allocate);
        self.inner.allocate(len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.record(DiskCallKind::Write);
        self.inner.punch_hole(offset, len)
    }
    fn sync(&self) -> io::Result<()> {
        self.record(DiskCallKind::Sync);
        let answer = match self.sync_target() {
            Some(file) => self.sync_result(file.sync()),
            None => Ok(()),
        };
        self.run_sync_hook();
        answer
    }
    fn sync_to(&self, end: u64) -> io::Result<()> {
        self.record(DiskCallKind::Sync);
        let answer = match self.sync_target() {
            Some(file) if Arc::ptr_eq(&file, &self.inner) => self.sync_result(file.sync_to(end)),
            Some(file) => self.sync_result(file.sync()),
            None => Ok(()),
        };
        self.run_sync_hook();
        answer
    }
    fn map(&self, len: u64) {
        self.inner.map(len);
    }
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // * The caller's guarantee is passed on unchanged.
        unsafe { self.inner.mapped(offset, len) }
    }
    fn prefetch(&self, offset: u64, lines: usize) {
        self.inner.prefetch(offset, lines);
    }
    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.record(DiskCallKind::Write);
        let appender = self.state.lock().append_hook.clone();
        if let Some(appender) = appender {
            appender(&self.path); // without the lock
        }
        if self.delay_write(offset, bytes)? {
            return Ok(());
        }
        self.write_with_defect(bytes, |bytes| self.inner.append_at(offset, bytes))
    }
    fn make_resident(&self, from: u64, to: u64) {
        self.record(DiskCallKind::Resident);
        self.inner.make_resident(from, to);
    }
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        self.inner.is_resident(offset, len)
    }
}
