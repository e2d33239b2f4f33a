//! # The simulated disk: power cuts, killed processes and failing devices at will
//!
//! [`SimDisk`] is a file system in memory that knows what a real one would have lost. It does no
//! I/O, draws its randomness from a seed, and gives the same answers in every run. A clone is the
//! same disk; [`SimDisk::fork`] is another one.
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
//! 1. `sync` of a file makes its data and length durable, `sync_dir` the names in one directory;
//!    nothing else makes anything durable. A file's name is not its directory's content's business:
//!    new directories need a `sync_dir` of their parent.
//! 2. A power cut keeps any subset of what is pending: each sector (newest version), each length
//!    the file passed through, each name change, independently. Grown space reads as zeros. A
//!    rename is kept or lost whole.
//! 3. In paranoid mode also: older versions of a sector, sectors torn at any byte, lengths at any
//!    sector, garbage in grown space, renames between directories seen half-way.
//! 4. A failed sync fixes each pending thing at random: on the platter, or dropped. Either way the
//!    kernel takes it for clean: the cache goes on showing it ([`AfterFailedSync`]), and later
//!    syncs succeed without saving it, until it is written again.
//! 5. With [`Disk::with_descriptor_limit`] files share a descriptor cache as on the real disk. A
//!    descriptor that is closed before its file with an unsynced write panics; a file without
//!    descriptor and name is gone.
//! 6. Space is counted in blocks of 4 KiB. Reserved or written blocks can always be written again.
//!    A write that runs out of space has written what fitted.
//!
//! What it cannot show: what real kernels do beside POSIX, memory mappings ([`File::mapped`] is
//! always `None`), and files too large for memory.
//!
//! ## Threads
//!
//! One mutex around everything. The hook runs after an operation, outside of the mutex.
//!
//! ## Costs
//!
//! A fork or power cut costs a few reference counts per file, plus 4 KiB of copying for each block
//! that is pending or written later.
//!
//! ## Use
//!
//! ```
//! use std::path::Path;
//! use sheaf_base::disk::{Disk, OpenMode, sim::{KeepChoice, SimDisk}};
//!
//! # fn main() -> std::io::Result<()> {
//! let disk = SimDisk::new();
//! let path = Path::new("/data");
//! let file = disk.open(path, OpenMode::Create)?;
//! disk.sync_dir(Path::new("/"))?;
//! file.write_at(0, b"lost?")?;
//! for keep in disk.pending().keeps(10, 16, 0) {
//!     let image = disk.power_cut(&keep);
//!     let len = image.open(path, OpenMode::Read)?.len()?;
//!     assert!(len == 0 || len == 5);
//! }
//! file.sync()?;
//! assert_eq!(disk.power_cut(&KeepChoice::None).read_file(path)?, b"lost?");
//! # Ok(())
//! # }
//! ```

mod content;
mod cut;
mod fault;
mod handle;
mod inode;
mod random;
#[cfg(test)]
mod tests;
mod volume;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::content::{BLOCK, FileContent};
pub use self::cut::{KeepChoice, KeepFn, PendingUnit, PendingUnits, UnitKind};
pub use self::fault::{CallClass, Fault, FaultKind, FaultPlan, FaultRepeat};
use self::handle::{SimBackend, SimDescriptor, SimFile, SimLockGuard, SimVolume};
use self::volume::{Ino, VolumeState};
use super::bounded::BoundedVolume;
use super::descriptors::{Backend, Descriptors};
use super::{DescriptorStats, DirEntry, Disk, File, LockMode, LockOutcome, OpenMode, SECTOR};

/// The process id that simulated locks name as their owner.
pub const OWNER_PID: u32 = 4242;

/// What the page cache shows of data that a failed sync dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AfterFailedSync {
    /// The new bytes, though they are nowhere on the platter (ext4, XFS).
    #[default]
    ShowsNew,
    /// The old bytes again (btrfs).
    ShowsOld,
}

/// A disk in memory. See the [module](self).
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<SimShared>,
    /// The cache of descriptors, if they are bounded.
    bound: Option<Arc<Descriptors>>,
}

/// Called after each operation.
pub type OpHook = dyn Fn(&SimDisk) + Send + Sync;

struct SimShared {
    machine: Mutex<SimMachine>,
    hook: Mutex<Option<Arc<OpHook>>>,
}

/// The volume and what does not outlive the process that uses it.
struct SimMachine {
    volume: VolumeState,
    faults: FaultPlan,
    injected: u64,
    log: Option<Vec<String>>,
    classes: Option<Vec<CallClass>>,
    locks: BTreeMap<Ino, Holders>,
    zeroes_ahead: bool,
    /// Descriptors of bounded files, and how many there can be.
    descriptors: BTreeMap<RawFd, SimDescriptor>,
    most_descriptors: usize,
}

/// Who holds a lock: readers, or one writer.
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

/// Making disks, and looking at them.
impl SimDisk {
    /// An empty disk without limits, faults or paranoia.
    #[must_use]
    pub fn new() -> SimDisk {
        SimDisk::with_seed(0)
    }

    /// As [`SimDisk::new`]; `seed` fixes what failed syncs drop.
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
            descriptors: BTreeMap::new(),
            most_descriptors: usize::MAX,
        };
        let (machine, hook) = (Mutex::new(machine), Mutex::new(None));
        SimDisk { shared: Arc::new(SimShared { machine, hook }), bound: None }
    }

    /// Another disk in the same state: what is in the cache, on the platter and pending, the count
    /// of operations, the capacity. Open files, locks, faults, hook and log stay behind.
    #[must_use]
    pub fn fork(&self) -> SimDisk {
        let volume = self.shared.machine.lock().volume.clone();
        SimDisk::from_volume(volume.with_all_closed())
    }

    /// The disk as the next process finds it after this one was killed: everything that was
    /// written is there, nothing more is durable, no lock is held. As [`SimDisk::fork`].
    #[must_use]
    pub fn kill(&self) -> SimDisk {
        self.fork()
    }

    /// The disk after the power went: the platter, with what `keep` chooses of the pending units.
    /// Its count of operations starts at 0. This disk is not changed.
    #[must_use]
    pub fn power_cut(&self, keep: &KeepChoice) -> SimDisk {
        self.power_cut_of(&self.pending(), keep)
    }

    /// As [`SimDisk::power_cut`], for many cuts at one moment: `pending` is what
    /// [`SimDisk::pending`] says then.
    #[must_use]
    pub fn power_cut_of(&self, pending: &PendingUnits, keep: &KeepChoice) -> SimDisk {
        SimDisk::from_volume(self.shared.machine.lock().volume.after_power_cut(pending, keep))
    }

    /// What a power cut could lose now.
    #[must_use]
    pub fn pending(&self) -> PendingUnits {
        self.shared.machine.lock().volume.pending()
    }

    /// How many operations there were: calls that change or sync something, failed ones included.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.shared.machine.lock().volume.op
    }

    /// Starts (or stops and forgets) the log of operations.
    pub fn log_ops(&self, on: bool) {
        self.shared.machine.lock().log = on.then(Vec::new);
    }

    /// One line per operation since [`SimDisk::log_ops`].
    #[must_use]
    pub fn op_log(&self) -> Vec<String> {
        self.shared.machine.lock().log.clone().unwrap_or_default()
    }

    /// Starts (or stops and forgets) the list of the kinds of calls: those that a [`Fault`] can
    /// strike.
    pub fn log_classes(&self, on: bool) {
        self.shared.machine.lock().classes = on.then(Vec::new);
    }

    /// The kinds of calls since [`SimDisk::log_classes`].
    #[must_use]
    pub fn class_log(&self) -> Vec<CallClass> {
        self.shared.machine.lock().classes.clone().unwrap_or_default()
    }

    /// Calls `hook` after each operation, on the thread that made it, before it returns. The hook
    /// may fork and cut the disk, but must not operate on it.
    pub fn set_hook(&self, hook: Option<Arc<OpHook>>) {
        *self.shared.hook.lock() = hook;
    }

    /// Switches paranoid mode (invariant 3), on the forks and power cuts of this disk too.
    pub fn set_paranoid(&self, on: bool) {
        self.shared.machine.lock().volume.is_paranoid = on;
    }

    /// What the cache shows after a failed sync. Forks and power cuts inherit it.
    pub fn set_after_failed_sync(&self, after: AfterFailedSync) {
        self.shared.machine.lock().volume.after_failed_sync = after;
    }

    /// Makes [`File::make_resident`] write its zeros, as the real disk may. Off at first.
    pub fn set_zeroes_ahead(&self, on: bool) {
        self.shared.machine.lock().zeroes_ahead = on;
    }

    /// What it says of files that may still be made; it makes them all the same.
    pub fn set_free_files(&self, free: u64, all: u64) {
        self.shared.machine.lock().volume.files = Some((free, all));
    }

    /// Limits the space to `bytes`, rounded down to blocks of 4 KiB. What is there stays there.
    pub fn set_capacity(&self, bytes: u64) {
        self.shared.machine.lock().volume.capacity = bytes / BLOCK;
    }

    /// Limits the descriptors of bounded files, as a process is limited: beyond, an open is refused
    /// with EMFILE.
    pub fn set_descriptors(&self, most: usize) {
        self.shared.machine.lock().most_descriptors = most;
    }

    /// Orders faults, in place of those ordered before; counting starts anew.
    pub fn set_faults(&self, plan: impl Into<FaultPlan>) {
        self.shared.machine.lock().faults = plan.into();
    }

    /// How many faults have struck.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.shared.machine.lock().injected
    }

    /// Hash of the names and bytes on the platter: equal for images that a database cannot tell
    /// apart after a power cut.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.shared.machine.lock().volume.platter_hash()
    }
}

/// Past the model: no operation, no fault, nothing pending. For looking and for damage.
impl SimDisk {
    /// All files with their lengths, sorted, with absolute paths.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let machine = self.shared.machine.lock();
        let files = machine.volume.walk(false).into_iter();
        files.map(|(path, file)| (path, file.cache().len())).collect()
    }

    /// A file's bytes as reads see them.
    pub fn read_file(&self, path: &Path) -> io::Result<Vec<u8>> {
        let machine = self.shared.machine.lock();
        let ino = machine.volume.file_at(path)?;
        Ok(machine.volume.file(ino).cache().to_vec())
    }

    /// Creates or replaces a file, durably. Its directory must exist.
    pub fn put_file(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut content = FileContent::default();
        content.write(0, bytes);
        self.shared.machine.lock().volume.put(path, content)
    }

    /// Overwrites bytes in the cache and on the platter.
    pub fn overwrite(&self, path: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut machine = self.shared.machine.lock();
        machine.volume.edit(path, |content| content.write(offset, bytes))
    }

    /// Cuts or extends a file in the cache and on the platter.
    pub fn truncate_file(&self, path: &Path, len: u64) -> io::Result<()> {
        let mut machine = self.shared.machine.lock();
        machine.volume.edit(path, |content| content.set_len(len))
    }

    /// Puts a copy of what reads see of `from` at `to`, durably.
    pub fn copy_file(&self, from: &Path, to: &Path) -> io::Result<()> {
        let volume = &mut self.shared.machine.lock().volume;
        let content = volume.file(volume.file_at(from)?).cache().clone();
        volume.put(to, content)
    }

    /// Removes a file's name from the cache and the platter.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.shared.machine.lock().volume.erase(path)
    }
}

/// A call to be made: what faults and log see of it.
struct SimCall<'a> {
    class: CallClass,
    path: &'a Path,
    /// False for calls that change nothing.
    is_op: bool,
}

impl SimDisk {
    /// Makes a call that a fault simply refuses.
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

    /// Makes a call whose `body` decides what a failure does.
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

    /// The same disk without a bound.
    fn unbounded(&self) -> SimDisk {
        SimDisk { shared: Arc::clone(&self.shared), bound: None }
    }

    /// Opens a file: its node is kept until it is closed as often as it was opened.
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
    /// Counts and logs a call, and asks the plan for a fault.
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

    /// The file to lock; an exclusive lock makes it.
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

    fn volume(&self, dir: &Path) -> io::Result<Arc<dyn super::Volume>> {
        let disk = self.unbounded();
        let volume: Arc<dyn super::Volume> = Arc::new(SimVolume { disk, path: dir.into() });
        Ok(match &self.bound {
            Some(bound) => Arc::new(BoundedVolume { beneath: volume, descriptors: Arc::clone(bound) }),
            None => volume,
        })
    }
}
