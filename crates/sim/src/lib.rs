//! # Simulated disk: power cuts, killed processes and failing devices
//!
//! [`SimDisk`] is a file system in memory. It knows the data that a real one could lose.
//!
//! ## Picture
//!
//! ```text
//!            write, set_len, create, rename …            sync, sync_dir
//!   caller ────────────────────────────────────> cache ────────────────> platter
//!                                                  │  pending: sectors,     │
//!                                                  │  lengths, names        │
//!            kill() = cache and pending ───────────┘                        │
//!            power_cut(keep) = platter + any subset of pending ─────────────┘
//! ```
//!
//! ## Invariants (the model)
//!
//! 1. Only `sync` makes the data and the length of a file durable, and only `sync_dir` the names in
//!    one directory. The name of a new directory needs a `sync_dir` of its parent.
//! 2. A power cut keeps any subset of the pending changes, independently: each sector (newest
//!    version), each length of the file, each name. Grown space reads as zeros. A rename is atomic.
//! 3. Paranoid mode adds older versions of a sector, sectors torn at any byte, and lengths at any
//!    sector. It also adds garbage in grown space, and halves of renames between directories.
//! 4. A failed sync writes or drops each pending change at random. The kernel treats all as clean:
//!    the cache still shows them ([`AfterFailedSync`]), but only a rewrite makes them durable.
//! 5. Files share a descriptor cache ([`Disk::with_descriptor_limit`]). Closing a descriptor early
//!    with an unsynced write panics. A file without descriptor and name is deleted.
//! 6. Space is counted in blocks of 4 KiB. Reserved or written blocks can always be written again.
//!    A write that runs out of space has written the part that fitted.

mod content;
mod cut;
mod error_numbers;
mod fault;
mod handle;
mod inode;
mod page_cache;
mod random;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::content::{BLOCK, FileContent};
pub use self::cut::{KeepChoice, KeepFn, PendingUnit, PendingUnits, UnitKind};
pub use self::fault::{CallClass, Fault, FaultKind, FaultPlan, FaultRepeat};
use self::handle::{SimBackend, SimDescriptor, SimFile, SimLockGuard, SimVolume};
use self::page_cache::PageCache;
use self::volume::{Ino, VolumeState};
use sheaf_platform::disk::descriptors::{Backend, BoundedVolume, Descriptors, RawFd};
use sheaf_platform::disk::{
    DescriptorStats, DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, SECTOR, cached_reads,
};

/// Process id of the owner of a simulated lock.
pub const OWNER_PID: u32 = 4242;

/// Content of the page cache for data that a failed sync dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterFailedSync {
    /// The new bytes, although the platter does not have them (ext4, XFS).
    #[default]
    ShowsNew,
    /// The old bytes (btrfs).
    ShowsOld,
}

/// A file system in memory, see the [module](self).
///
/// Makes no I/O, derives its randomness from a seed, and returns the same results in every run. A
/// clone is the same disk; [`SimDisk::fork`] creates another one. A fork or power cut costs a few
/// reference counts per file. Each block that is pending or written later costs a copy of 4 KiB.
///
/// Not simulated: deviations of real kernels from POSIX, memory mappings ([`File::mapped`] always
/// returns `None`), and files too large for memory.
///
/// One mutex protects all state. The hook runs after an operation, without the mutex.
///
/// ```
/// use std::path::Path;
/// use sheaf_platform::disk::{Disk, OpenMode};
/// use sheaf_sim::{KeepChoice, SimDisk};
///
/// # fn main() -> std::io::Result<()> {
/// let disk = SimDisk::new();
/// let path = Path::new("/data");
/// let file = disk.open(path, OpenMode::Create)?;
/// disk.sync_dir(Path::new("/"))?;
/// file.write_at(0, b"lost?")?;
/// for keep in disk.pending().keeps(10, 16, 0) {
///     let image = disk.power_cut(&keep);
///     let len = image.open(path, OpenMode::Read)?.len()?;
///     assert!(len == 0 || len == 5);
/// }
/// file.sync()?;
/// assert_eq!(disk.power_cut(&KeepChoice::None).read_file(path)?, b"lost?");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<SimShared>,
    /// The cache of descriptors, if they are limited.
    bound: Option<Arc<Descriptors>>,
}

/// Function that is called after each operation.
pub type OpHook = dyn Fn(&SimDisk) + Send + Sync;

struct SimShared {
    machine: Mutex<SimMachine>,
    hook: Mutex<Option<Arc<OpHook>>>,
}

/// The volume, and the state that ends with the process that uses it.
struct SimMachine {
    volume: VolumeState,
    faults: FaultPlan,
    injected: u64,
    log: Option<Vec<String>>,
    classes: Option<Vec<CallClass>>,
    locks: BTreeMap<Ino, Holders>,
    zeroes_ahead: bool,
    /// Hints to read ahead since the start of the log, if it is on.
    hints: Option<Vec<(PathBuf, u64)>>,
    is_cold: bool,
    /// Blocks in memory and reads of the device since [`SimDisk::drop_page_cache`].
    page_cache: Option<PageCache>,
    /// Descriptors of files with a limit, and the limit of the process.
    descriptors: BTreeMap<RawFd, SimDescriptor>,
    most_descriptors: usize,
}

/// Holders of a lock: readers, or one writer.
#[derive(Clone, Copy)]
enum Holders {
    Readers(u32),
    Writer,
}

impl Default for SimDisk {
    fn default() -> SimDisk {
        SimDisk::new()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDisk(after operation {})", self.ops())
    }
}

/// Creation and inspection of disks.
impl SimDisk {
    /// Creates an empty disk without limits and faults, not in paranoid mode.
    #[must_use]
    pub fn new() -> SimDisk {
        SimDisk::with_seed(0)
    }

    /// Like [`SimDisk::new`]. `seed` determines the data that failed syncs drop.
    #[must_use]
    pub fn with_seed(seed: u64) -> SimDisk {
        SimDisk::from_volume(VolumeState::new(seed))
    }

    fn from_volume(volume: VolumeState) -> SimDisk {
        let machine = SimMachine {
            volume,
            faults: FaultPlan::default(),
            injected: 0,
            log: None,
            classes: None,
            locks: BTreeMap::new(),
            zeroes_ahead: false,
            hints: None,
            is_cold: false,
            page_cache: None,
            descriptors: BTreeMap::new(),
            most_descriptors: usize::MAX,
        };
        let (machine, hook) = (Mutex::new(machine), Mutex::new(None));
        SimDisk { shared: Arc::new(SimShared { machine, hook }), bound: None }
    }

    /// Creates another disk in the same state: cache, platter, pending changes, number of
    /// operations and capacity. Open files, locks, faults, hook and log are not copied.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        let volume = self.shared.machine.lock().volume.clone();
        SimDisk::from_volume(volume.with_all_closed())
    }

    /// Returns the disk as the next process finds it after this one was killed. All written data is
    /// there, no more of it is durable, and no lock is held. Same as [`SimDisk::fork`].
    #[must_use]
    pub fn kill(&self) -> SimDisk {
        self.fork()
    }

    /// Returns the disk after a power failure: the platter with the pending units that `keep`
    /// selects. The number of operations starts at 0. This disk is not changed.
    #[must_use]
    pub fn power_cut(&self, keep: &KeepChoice) -> SimDisk {
        self.power_cut_of(&self.pending(), keep)
    }

    /// Like [`SimDisk::power_cut`], for many cuts at one moment. `pending` is the result of
    /// [`SimDisk::pending`] at that moment.
    #[must_use]
    pub fn power_cut_of(&self, pending: &PendingUnits, keep: &KeepChoice) -> SimDisk {
        SimDisk::from_volume(self.shared.machine.lock().volume.after_power_cut(pending, keep))
    }

    /// Returns the units that a power cut could lose now.
    #[must_use]
    pub fn pending(&self) -> PendingUnits {
        self.shared.machine.lock().volume.pending()
    }

    /// Returns the number of operations: calls that change or sync something, including failed
    /// ones.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.shared.machine.lock().volume.op
    }

    /// Starts the log of operations, or stops it and drops its content.
    pub fn log_ops(&self, on: bool) {
        self.shared.machine.lock().log = on.then(Vec::new);
    }

    /// Returns one line per operation since [`SimDisk::log_ops`].
    #[must_use]
    pub fn op_log(&self) -> Vec<String> {
        self.shared.machine.lock().log.clone().unwrap_or_default()
    }

    /// Starts the list of call classes that a [`Fault`] can select, or stops it and drops its
    /// content.
    pub fn log_classes(&self, on: bool) {
        self.shared.machine.lock().classes = on.then(Vec::new);
    }

    /// Returns the classes of calls since [`SimDisk::log_classes`].
    #[must_use]
    pub fn class_log(&self) -> Vec<CallClass> {
        self.shared.machine.lock().classes.clone().unwrap_or_default()
    }

    /// Makes [`File::is_cached`] return false for every byte, as after a start of the machine. Off
    /// by default.
    pub fn set_cold(&self, on: bool) {
        self.shared.machine.lock().is_cold = on;
    }

    /// Drops the page cache. From now on the disk knows which blocks are in memory: those that were
    /// read or written since. It counts the reads of others, and refuses them in the cached mode
    /// ([`read_cached`](sheaf_platform::disk::cached_reads::read_cached)). Before the first call
    /// all blocks are in memory.
    pub fn drop_page_cache(&self) {
        self.shared.machine.lock().page_cache = Some(PageCache::default());
    }

    /// Returns how many reads needed the device since [`SimDisk::drop_page_cache`].
    #[must_use]
    pub fn device_reads(&self) -> u64 {
        self.shared.machine.lock().page_cache.as_ref().map_or(0, |cache| cache.device_reads)
    }

    /// Starts the list of hints to read ahead ([`File::will_need`]), or stops it and drops its
    /// content.
    pub fn log_hints(&self, on: bool) {
        self.shared.machine.lock().hints = on.then(Vec::new);
    }

    /// Returns the file and the offset of each hint since [`SimDisk::log_hints`].
    #[must_use]
    pub fn hint_log(&self) -> Vec<(PathBuf, u64)> {
        self.shared.machine.lock().hints.clone().unwrap_or_default()
    }

    /// Calls `hook` after each operation, on its thread, before the operation returns. The hook may
    /// fork and cut the disk, but must not operate on it.
    pub fn set_hook(&self, hook: Option<Arc<OpHook>>) {
        *self.shared.hook.lock() = hook;
    }

    /// Switches paranoid mode (invariant 3). Forks and power cuts of this disk inherit it.
    pub fn set_paranoid(&self, on: bool) {
        self.shared.machine.lock().volume.is_paranoid = on;
    }

    /// Sets the content of the cache after a failed sync. Forks and power cuts inherit it.
    pub fn set_after_failed_sync(&self, after: AfterFailedSync) {
        self.shared.machine.lock().volume.after_failed_sync = after;
    }

    /// Makes [`File::make_resident`] write its zeros, as the real disk may. Off by default.
    pub fn set_zeroes_ahead(&self, on: bool) {
        self.shared.machine.lock().zeroes_ahead = on;
    }

    /// Sets the numbers of free and of all files that the disk reports. They do not limit
    /// creations.
    pub fn set_free_files(&self, free: u64, all: u64) {
        self.shared.machine.lock().volume.files = Some((free, all));
    }

    /// Limits the space to `bytes`, rounded down to blocks of 4 KiB. Existing data is kept.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.machine.lock().volume.capacity = bytes / BLOCK;
    }

    /// Limits the descriptors of files with a descriptor limit, like the limit of a process. Opens
    /// beyond it fail with EMFILE.
    pub fn set_descriptors(&self, most: usize) {
        self.shared.machine.lock().most_descriptors = most;
    }

    /// Replaces the planned faults and resets their counters.
    pub fn set_faults(&self, plan: impl Into<FaultPlan>) {
        self.shared.machine.lock().faults = plan.into();
    }

    /// Returns the number of injected faults.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.shared.machine.lock().injected
    }

    /// Returns a hash of the names and bytes on the platter. A database cannot distinguish images
    /// with equal hashes after a power cut.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.shared.machine.lock().volume.platter_hash()
    }
}

/// Access without the model, for inspection and damage: no operation, no fault, no pending change.
impl SimDisk {
    /// Returns all files with their absolute paths and lengths, sorted.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let machine = self.shared.machine.lock();
        let files = machine.volume.walk(false).into_iter();
        files.map(|(path, file)| (path, file.cache().len())).collect()
    }

    /// Returns the content of a file as reads see it.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing, and `IsADirectory` for a directory.
    pub fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let machine = self.shared.machine.lock();
        let ino = machine.volume.file_at(path)?;
        Ok(machine.volume.file(ino).cache().to_vec())
    }

    /// Creates or replaces a file, durably. Its directory must exist.
    ///
    /// # Errors
    ///
    /// `NotFound` if the directory is missing.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut content = FileContent::default();
        content.write(0, bytes);
        self.shared.machine.lock().volume.put(path, content)
    }

    /// Overwrites bytes in the cache and on the platter.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing, and `IsADirectory` for a directory.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.shared.machine.lock();
        machine.volume.edit(path, |content| content.write(offset, bytes))
    }

    /// Truncates or extends a file in the cache and on the platter.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing, and `IsADirectory` for a directory.
    pub fn truncate_file(&self, path: &Path, len: u64) -> io::Result<()> {
        let mut machine = self.shared.machine.lock();
        machine.volume.edit(path, |content| content.set_len(len))
    }

    /// Copies the content of `from`, as reads see it, to `to`, durably.
    ///
    /// # Errors
    ///
    /// `NotFound` if `from` or the directory of `to` is missing, and `IsADirectory` if `from` is a
    /// directory.
    pub fn copy_file(&self, from: &Path, to: &Path) -> io::Result<()> {
        let volume = &mut self.shared.machine.lock().volume;
        let content = volume.file(volume.file_at(from)?).cache().clone();
        volume.put(to, content)
    }

    /// Removes the name of a file from the cache and the platter.
    ///
    /// # Errors
    ///
    /// `NotFound` if the file is missing, and `IsADirectory` for a directory.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.shared.machine.lock().volume.erase(path)
    }
}

/// Description of a call for faults and the log.
struct SimCall<'a> {
    class: CallClass,
    path: &'a Path,
    /// False for calls that change nothing.
    is_op: bool,
}

impl SimDisk {
    /// Takes the lock of a file of the machine if it is free.
    fn lock_ino(&self, machine: &mut SimMachine, ino: Ino, share: LockMode) -> io::Result<LockOutcome> {
        let holders = match (machine.locks.get(&ino), share) {
            (Some(Holders::Writer), _) => return Ok(LockOutcome::Busy(Some(OWNER_PID))),
            (Some(Holders::Readers(_)), LockMode::Exclusive) => return Ok(LockOutcome::Busy(None)),
            (Some(Holders::Readers(count)), LockMode::Shared) => Holders::Readers(count + 1),
            (None, LockMode::Shared) => Holders::Readers(1),
            (None, LockMode::Exclusive) => Holders::Writer,
        };
        machine.locks.insert(ino, holders);
        machine.volume.opened(ino);
        let disk = self.clone();
        Ok(LockOutcome::Acquired(Box::new(SimLockGuard { disk, ino })))
    }

    /// Makes a call that does nothing if a fault strikes.
    fn call<T>(
        &self,
        call: SimCall<'_>,
        what: impl FnOnce() -> String,
        body: impl FnOnce(&mut SimMachine) -> io::Result<T>,
    ) -> io::Result<T> {
        let class = call.class;
        self.call_with_failure(call, what, |machine, failure| match failure {
            Some(failure) => Err(failure.to_error(class)),
            None => body(machine),
        })
    }

    /// Makes a call. `body` decides the effect of a fault.
    fn call_with_failure<T>(
        &self,
        call: SimCall<'_>,
        what: impl FnOnce() -> String,
        body: impl FnOnce(&mut SimMachine, Option<FaultKind>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut machine = self.shared.machine.lock();
        let failure = machine.begin(&call, what);
        if failure == Some(FaultKind::Panic) {
            drop(machine);
            panic!("injected panic in {:?} of {}", call.class, call.path.display());
        }
        let answer = body(&mut machine, failure);
        drop(machine);
        if call.is_op {
            let hook = self.shared.hook.lock().clone();
            if let Some(hook) = hook {
                hook(self);
            }
        }
        answer
    }

    /// Returns the same disk without a limit of descriptors.
    fn unbounded(&self) -> SimDisk {
        SimDisk { shared: Arc::clone(&self.shared), bound: None }
    }

    /// Opens a file. Its node is kept until it is closed as often as it was opened.
    fn open_node(&self, path: &Path, open_mode: OpenMode) -> io::Result<Ino> {
        let is_op = open_mode == OpenMode::Create;
        let class = if is_op { CallClass::Create } else { CallClass::Open };
        self.call(
            SimCall { class, path, is_op },
            || "create".into(),
            |machine| {
                let ino = match open_mode {
                    OpenMode::Create => machine.volume.create(path, false)?,
                    OpenMode::Read | OpenMode::ReadWrite => machine.volume.file_at(path)?,
                };
                machine.volume.opened(ino);
                Ok(ino)
            },
        )
    }
}

impl SimMachine {
    /// Counts and logs a call, and returns the fault that the plan injects, if any.
    fn begin(&mut self, call: &SimCall<'_>, what: impl FnOnce() -> String) -> Option<FaultKind> {
        if let Some(classes) = &mut self.classes {
            classes.push(call.class);
        }
        let failure = self.faults.strike(call.class, call.path);
        self.injected += u64::from(failure.is_some());
        if call.is_op {
            self.volume.op += 1;
            if let Some(log) = &mut self.log {
                let (op, path, what) = (self.volume.op, call.path.display(), what());
                let fault = failure.map_or(String::new(), |failure| format!(" !{failure:?}"));
                log.push(format!("#{op} {path}: {what}{fault}"));
            }
        }
        failure
    }

    /// Returns the file to lock. An exclusive lock creates it.
    fn lock_file(&mut self, path: &Path, share: LockMode) -> io::Result<Ino> {
        match self.volume.file_at(path) {
            Err(missing) if missing.kind() == io::ErrorKind::NotFound && share == LockMode::Exclusive => {
                self.volume.create(path, false)
            }
            answer => answer,
        }
    }

    fn unlock(&mut self, ino: Ino) {
        match self.locks.get_mut(&ino) {
            Some(Holders::Readers(count)) if *count > 1 => *count -= 1,
            _ => {
                self.locks.remove(&ino);
            }
        }
        self.volume.closed(ino);
    }
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<Arc<dyn File>> {
        cached_reads::check_may_wait()?;
        let (ino, handle) = match &self.bound {
            None => (self.open_node(path, open_mode)?, None),
            Some(bound) => {
                let (handle, _) =
                    bound.open(path, open_mode, || SimBackend(self.unbounded()).open(path, open_mode))?;
                (Ino(handle.inode()), Some(handle))
            }
        };
        let disk = self.unbounded();
        Ok(Arc::new(SimFile {
            disk,
            ino,
            path: path.into(),
            is_writable: open_mode != OpenMode::Read,
            handle,
        }))
    }

    fn with_descriptor_limit(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let bound = Descriptors::new(Box::new(SimBackend(self.unbounded())), limit, PathBuf::new());
        Some(Arc::new(SimDisk { shared: Arc::clone(&self.shared), bound: Some(bound) }))
    }

    fn descriptors(&self) -> Option<DescriptorStats> {
        self.bound.as_ref().map(|bound| bound.stats())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<DirEntry>> {
        let call = SimCall { class: CallClass::List, path: dir, is_op: false };
        self.call(call, String::new, |machine| machine.volume.list(dir))
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let call = SimCall { class: CallClass::Create, path: dir, is_op: true };
        self.call(call, || "create directory".into(), |machine| machine.volume.create(dir, true).map(drop))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.bound.as_ref().map_or(Ok(()), |bound| bound.before_remove(path))?;
        let call = SimCall { class: CallClass::Remove, path, is_op: true };
        self.call(call, || "remove".into(), |machine| machine.volume.remove(path, false))
    }

    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        let call = SimCall { class: CallClass::Remove, path: dir, is_op: true };
        self.call(call, || "remove directory".into(), |machine| machine.volume.remove(dir, true))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let call = SimCall { class: CallClass::Rename, path: from, is_op: true };
        let what = || format!("rename to {}", to.display());
        let rename = || self.call(call, what, |machine| machine.volume.rename(from, to));
        match &self.bound {
            Some(bound) => bound.rename(from, to, rename),
            None => rename(),
        }
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        let call = SimCall { class: CallClass::Create, path: to, is_op: true };
        let what = || format!("link to {}", from.display());
        self.call(call, what, |machine| machine.volume.link(from, to))?;
        if let Some(bound) = &self.bound {
            bound.note_link(from, to);
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.bound.as_ref().map_or(Ok(()), |bound| bound.check_syncs())?;
        let call = SimCall { class: CallClass::SyncDir, path: dir, is_op: true };
        self.call_with_failure(
            call,
            || "sync directory".into(),
            |machine, failure| {
                machine.volume.sync_dir(dir, failure.is_some())?;
                failure.map_or(Ok(()), |failure| Err(failure.to_error(CallClass::SyncDir)))
            },
        )
    }

    fn lock(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        let is_new = self.shared.machine.lock().volume.file_at(path).is_err();
        let is_op = is_new && share == LockMode::Exclusive;
        let call = SimCall { class: CallClass::Lock, path, is_op };
        self.call(
            call,
            || "create for locking".into(),
            |machine| {
                let ino = machine.lock_file(path, share)?;
                self.lock_ino(machine, ino, share)
            },
        )
    }

    fn lock_existing(&self, path: &Path, share: LockMode) -> io::Result<LockOutcome> {
        let call = SimCall { class: CallClass::Lock, path, is_op: false };
        self.call(
            call,
            || "lock".into(),
            |machine| {
                let ino = machine.volume.file_at(path)?;
                self.lock_ino(machine, ino, share)
            },
        )
    }

    fn free_space(&self, path: &Path) -> io::Result<u64> {
        let machine = self.shared.machine.lock();
        machine.volume.ino(path)?;
        Ok(machine.volume.free())
    }

    fn free_files(&self, _path: &Path) -> io::Result<Option<(u64, u64)>> {
        Ok(self.shared.machine.lock().volume.files)
    }

    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn sheaf_platform::disk::Volume>> {
        let disk = self.unbounded();
        let volume: Arc<dyn sheaf_platform::disk::Volume> = Arc::new(SimVolume { disk, path: dir.into() });
        Ok(match &self.bound {
            Some(bound) => Arc::new(BoundedVolume { beneath: volume, descriptors: Arc::clone(bound) }),
            None => volume,
        })
    }
}
