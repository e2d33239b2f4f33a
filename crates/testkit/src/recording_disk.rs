//! # Recording disk: counts, observes and falsifies disk calls
//!
//! A wrapper around any disk. An *observer* is called just before every call that changes
//! something, so that the disk can be forked between two calls of one database operation. A
//! *defect* makes the disk report success for work that it does not do; harnesses prove with it
//! that they would notice. A *read hook* is called before every read, by the reading thread, and
//! may block it. Other hooks do the same for writes, creations, appends and syncs. Without any of
//! them the disk only counts. Failing calls are faults of the simulated disk.
//!
//! ## Blind spots
//!
//! Stores through a mapping that do not use [`File::append_at`]; accesses that bypass the disk. A
//! defect of the syncs of some files or of directories hides the volume, because the sync of a
//! volume would repair its effect.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sheaf_platform::disk::{
    DescriptorStats, DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, Permissions, Volume,
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

impl DiskDefect {
    /// Whether the sync of a volume would do the work that the defect omits.
    fn is_repaired_by_volume_sync(self) -> bool {
        matches!(
            self,
            DiskDefect::IgnoredSyncOf(_) | DiskDefect::IgnoredSyncDir | DiskDefect::IgnoredSyncDirOf(_)
        )
    }
}

type CallObserver = Box<dyn FnMut(DiskCallKind, &Path) + Send>;
type PathHook = Arc<dyn Fn(&Path) + Send + Sync>;

/// File or volume to sync.
enum SyncTarget {
    File(Arc<dyn File>),
    Volume(Arc<dyn Volume>),
}

impl SyncTarget {
    fn sync(&self) -> io::Result<()> {
        match self {
            SyncTarget::File(file) => file.sync(),
            SyncTarget::Volume(volume) => volume.sync(),
        }
    }
}

#[derive(Default)]
struct RecordingState {
    calls: u64,
    call_limit: Option<u64>,
    observer: Option<CallObserver>,
    read_hook: Option<PathHook>,
    write_hook: Option<PathHook>,
    create_hook: Option<PathHook>,
    append_hook: Option<PathHook>,
    sync_hook: Option<PathHook>,
    defect: DiskDefect,
    syncs: u64,
    delayed_sync: Option<SyncTarget>,
    has_failed_volume_sync: bool,
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

    /// Returns the file or volume to sync for a sync of `requested`, if any.
    fn sync_target(&mut self, path: &Path, requested: SyncTarget) -> Option<SyncTarget> {
        self.syncs += 1;
        match self.defect {
            DiskDefect::IgnoredSync => None,
            DiskDefect::IgnoredSyncOf(part) if path.to_string_lossy().contains(part) => None,
            DiskDefect::EverySecondSyncIgnored if self.syncs.is_multiple_of(2) => None,
            DiskDefect::DelayedSync => self.delayed_sync.replace(requested),
            _ => Some(requested),
        }
    }
}

/// Executes the sync `execute`, and `retry` after a failure, according to the defect. Returns the
/// result to report.
fn sync_with_defect(
    state: &Mutex<RecordingState>,
    execute: impl FnOnce() -> io::Result<()>,
    retry: impl FnOnce() -> io::Result<()>,
) -> io::Result<()> {
    let answer = execute();
    let defect = state.lock().defect;
    match defect {
        DiskDefect::HiddenSyncFailure => Ok(()),
        DiskDefect::RetriedSync => answer.or_else(|_| retry()),
        _ => answer,
    }
}

/// Calls the hook of syncs.
fn run_sync_hook(state: &Mutex<RecordingState>, path: &Path) {
    let host = state.lock().sync_hook.clone();
    if let Some(host) = host {
        host(path); // without the lock
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

    /// Calls `writer` before every write of a file that is no append to a log. The write waits for
    /// it; other calls do not.
    pub fn on_write(&self, writer: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().write_hook = Some(Arc::new(writer));
    }

    /// Calls `appender` before every append to a log, which waits for it. It may use the disk.
    pub fn on_append(&self, appender: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().append_hook = Some(Arc::new(appender));
    }

    /// Calls `host` after every sync of a file or volume, before the sync returns. It may use the
    /// disk.
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

    /// Whether the sync of a volume failed. It may have lost names, which no later sync of a
    /// directory saves.
    #[must_use]
    pub fn has_failed_volume_sync(&self) -> bool {
        self.state.lock().has_failed_volume_sync
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
    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        self.record(DiskCallKind::Lock, path);
        self.inner.lock_existing(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.record(DiskCallKind::FreeSpace, path);
        self.inner.free_space(path)
    }
    fn free_files(&self, path: &Path) -> io::Result<Option<(u64, u64)>> {
        self.record(DiskCallKind::FreeSpace, path);
        self.inner.free_files(path)
    }
    fn disk_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.record(DiskCallKind::List, dir);
        self.inner.disk_bytes(dir)
    }
    fn real_path(&self, path: &Path) -> PathBuf {
        self.inner.real_path(path)
    }
    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn Volume>> {
        self.record(DiskCallKind::Open, dir);
        if self.state.lock().defect.is_repaired_by_volume_sync() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let below = self.inner.volume(dir)?;
        Ok(Arc::new(RecordingVolume { inner: below, dir: dir.to_path_buf(), state: Arc::clone(&self.state) }))
    }
    fn spread_dirs(&self, dir: &Path) {
        self.inner.spread_dirs(dir);
    }
    fn cpu_time(&self) -> Option<Duration> {
        self.inner.cpu_time()
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

struct RecordingVolume {
    inner: Arc<dyn Volume>,
    dir: PathBuf,
    state: Arc<Mutex<RecordingState>>,
}

impl fmt::Debug for RecordingVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordingVolume").field(&self.dir).finish()
    }
}

impl Volume for RecordingVolume {
    fn sync(&self) -> io::Result<()> {
        self.state.lock().record(DiskCallKind::Sync, &self.dir);
        let requested = SyncTarget::Volume(Arc::clone(&self.inner));
        let target = self.state.lock().sync_target(&self.dir, requested);
        let answer = match target {
            Some(target) => sync_with_defect(
                &self.state,
                || {
                    let answer = target.sync();
                    self.state.lock().has_failed_volume_sync |= answer.is_err();
                    answer
                },
                || self.inner.sync(),
            ),
            None => Ok(()),
        };
        run_sync_hook(&self.state, &self.dir);
        answer
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

    fn name_contains(&self, part: &str) -> bool {
        self.path.to_string_lossy().contains(part)
    }

    /// Syncs this file by `sync`, or another target, according to the defect.
    fn sync_by(&self, sync: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        self.record(DiskCallKind::Sync);
        let requested = SyncTarget::File(Arc::clone(&self.inner));
        let target = self.state.lock().sync_target(&self.path, requested);
        let retry = || self.inner.sync();
        let answer = match target {
            Some(SyncTarget::File(file)) if Arc::ptr_eq(&file, &self.inner) => {
                sync_with_defect(&self.state, || sync(&*file), retry)
            }
            Some(target) => sync_with_defect(&self.state, || target.sync(), retry),
            None => Ok(()),
        };
        run_sync_hook(&self.state, &self.path);
        answer
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

impl RecordingFile {
    fn run_write_hook(&self) {
        let writer = self.state.lock().write_hook.clone();
        if let Some(writer) = writer {
            writer(&self.path); // without the lock
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
        self.run_write_hook();
        if self.delay_write(offset, bytes)? {
            return Ok(());
        }
        self.write_with_defect(bytes, |bytes| self.inner.write_at(offset, bytes))
    }
    fn write_direct(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.record(DiskCallKind::Write);
        self.run_write_hook();
        if self.delay_write(offset, bytes)? {
            return Ok(());
        }
        self.write_with_defect(bytes, |bytes| self.inner.write_direct(offset, bytes))
    }
    fn len(&self) -> io::Result<u64> {
        self.record(DiskCallKind::Len);
        self.inner.len()
    }
    fn opened_len(&self) -> io::Result<u64> {
        self.record(DiskCallKind::Len);
        self.inner.opened_len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.record(DiskCallKind::SetLen);
        self.inner.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.record(DiskCallKind::Allocate);
        self.inner.allocate(len)
    }
    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        self.record(DiskCallKind::Len);
        self.inner.has_blocks(len)
    }
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.record(DiskCallKind::Write);
        self.inner.punch_hole(offset, len)
    }
    fn start_sync(&self) {
        self.inner.start_sync();
    }
    fn drop_cached(&self, offset: u64, len: u64) {
        self.inner.drop_cached(offset, len);
    }
    fn sync(&self) -> io::Result<()> {
        self.sync_by(|file| file.sync())
    }
    fn sync_to(&self, end: u64) -> io::Result<()> {
        self.sync_by(|file| file.sync_to(end))
    }
    fn map(&self, len: u64) {
        self.inner.map(len);
    }
    // SAFETY: the contract is that of `File::mapped`, which is passed on unchanged.
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY:
        // * The caller's guarantee is passed on unchanged.
        unsafe { self.inner.mapped(offset, len) }
    }
    fn prefetch(&self, offset: u64, lines: usize) {
        self.inner.prefetch(offset, lines);
    }
    fn advise_random(&self) {
        self.inner.advise_random();
    }
    fn will_need(&self, offset: u64, len: u64) {
        self.inner.will_need(offset, len);
    }
    fn is_cached(&self, offset: u64) -> bool {
        self.inner.is_cached(offset)
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
    fn begin_stores(&self) {
        self.inner.begin_stores();
    }
    fn end_stores(&self, end: u64) {
        self.inner.end_stores(end);
    }
    fn make_resident(&self, from: u64, to: u64) {
        self.record(DiskCallKind::Resident);
        self.inner.make_resident(from, to);
    }
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        self.inner.is_resident(offset, len)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_sim::{KeepChoice, SimDisk};

    use super::*;

    const PATH: &str = "/file";

    /// Writes a file on a recording disk with `defect` and syncs the volume, if there is one.
    /// Returns the disk below.
    fn write_and_sync_volume(defect: DiskDefect) -> (SimDisk, RecordingDisk, bool) {
        let sim = SimDisk::new();
        let recording_disk = RecordingDisk::new(Arc::new(sim.clone()));
        recording_disk.set_defect(defect);
        let volume = recording_disk.volume(Path::new("/"));
        let file = recording_disk.open(Path::new(PATH), OpenMode::Create).unwrap();
        file.write_at(0, b"bytes").unwrap();
        if let Ok(volume) = &volume {
            volume.sync().unwrap();
        }
        (sim, recording_disk, volume.is_ok())
    }

    fn is_durable(sim: &SimDisk) -> bool {
        sim.power_cut(&KeepChoice::None).read_file(Path::new(PATH)).is_ok_and(|bytes| bytes == b"bytes")
    }

    #[test]
    fn the_sync_of_a_volume_is_recorded_and_executed() {
        let (sim, recording_disk, _) = write_and_sync_volume(DiskDefect::None);
        assert!(is_durable(&sim));
        let seen: Arc<Mutex<Vec<(DiskCallKind, PathBuf)>>> = Arc::default();
        let sink = Arc::clone(&seen);
        recording_disk.set_observer(move |class, path| sink.lock().push((class, path.to_path_buf())));
        recording_disk.volume(Path::new("/")).unwrap().sync().unwrap();
        assert_eq!(*seen.lock(), [(DiskCallKind::Sync, PathBuf::from("/"))]);
    }

    #[test]
    fn defects_of_syncs_apply_to_the_volume() {
        let (sim, _, _) = write_and_sync_volume(DiskDefect::IgnoredSync);
        assert!(!is_durable(&sim));
        let (sim, recording_disk, _) = write_and_sync_volume(DiskDefect::DelayedSync);
        assert!(!is_durable(&sim));
        recording_disk.open(Path::new("/other"), OpenMode::Create).unwrap().sync().unwrap();
        assert!(is_durable(&sim), "executed at the next sync");
        for defect in [
            DiskDefect::IgnoredSyncOf("file"),
            DiskDefect::IgnoredSyncDir,
            DiskDefect::IgnoredSyncDirOf("dir"),
        ] {
            assert!(!write_and_sync_volume(defect).2, "{defect:?}");
        }
    }

    #[test]
    fn properties_of_the_disk_below_are_not_hidden() {
        let sim = SimDisk::new();
        let recording_disk = RecordingDisk::new(Arc::new(sim.clone()));
        sim.set_free_files(7, 100);
        assert_eq!(recording_disk.free_files(Path::new("/")).unwrap(), Some((7, 100)));
        let file = recording_disk.open(Path::new(PATH), OpenMode::Create).unwrap();
        assert!(!file.has_blocks(1 << 16).unwrap());
        file.allocate(1 << 16).unwrap();
        assert!(file.has_blocks(1 << 16).unwrap());
        file.write_direct(0, &[1; 4096]).unwrap();
        assert_eq!(sim.read_file(Path::new(PATH)).unwrap()[..4096], [1; 4096]);
        assert_eq!(
            recording_disk.disk_bytes(Path::new("/")).unwrap(),
            sim.disk_bytes(Path::new("/")).unwrap()
        );
    }
}
