//! # Tap: a disk that counts, watches and lies
//!
//! Stands between the database and any other disk. A *watcher* hears of every call just before it
//! happens (so the disk can be forked between two calls of one database operation); a *lie* makes the
//! disk claim what it does not do, which is how the harnesses prove that they would notice; a *host* is called
//! before every read, by the thread that reads, and may keep it waiting; a *maker* likewise before every file that is made. Without
//! any of them it only counts. Failing calls are the simulated disk's own faults.
//!
//! ## What it cannot see
//!
//! Stores through a mapping that do not go through [`File::append_at`]; calls that bypass the disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_base::disk::{DescriptorStats, Disk, Entry, File, How, Locked, Permissions, Share};
use sheaf_base::sync::Mutex;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // they are the calls of `Disk` and `File`
pub enum Class {
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

impl Class {
    /// All of them.
    pub const ALL: [Class; 17] = [
        Class::Open,
        Class::Create,
        Class::List,
        Class::CreateDir,
        Class::Remove,
        Class::RemoveDir,
        Class::Rename,
        Class::SyncDir,
        Class::Lock,
        Class::FreeSpace,
        Class::Read,
        Class::Write,
        Class::Len,
        Class::SetLen,
        Class::Allocate,
        Class::Sync,
        Class::Resident,
    ];

    /// Whether the call can change what a crash leaves.
    #[must_use]
    pub fn changes(self) -> bool {
        !matches!(self, Class::Open | Class::List | Class::FreeSpace | Class::Read | Class::Len)
    }
}

/// What the disk claims and does not do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It is honest.
    #[default]
    None,
    /// `sync` answers Ok and does nothing.
    Sync,
    /// The same for files whose name contains this.
    SyncOf(&'static str),
    /// `sync_dir` answers Ok and does nothing.
    SyncDir,
    /// The same for directories whose path contains this.
    SyncDirOf(&'static str),
    /// A sync is carried out when the next one is asked for.
    SyncOneLate,
    /// Every second sync is not carried out.
    EverySecondSync,
    /// A write of files whose name contains this reaches the disk only at the write after it.
    WriteOneLate(&'static str),
    /// A write of files whose name contains this lacks its last eight bytes, as after a short transfer that
    /// nobody went on with.
    ShortWrite(&'static str),
    /// A sync that fails answers Ok.
    HidesFailedSync,
    /// A sync that fails is tried once more, and the second answer is given.
    RetriesSync,
    /// A write that fails answers Ok.
    HidesFailedWrite,
}

type Watcher = Box<dyn FnMut(Class, &Path) + Send>;
type Host = Arc<dyn Fn(&Path) + Send + Sync>;

#[derive(Default)]
struct State {
    calls: u64,
    fuse: Option<u64>,
    watcher: Option<Watcher>,
    host: Option<Host>,
    maker: Option<Host>,
    appender: Option<Host>,
    after_sync: Option<Host>,
    lie: Lie,
    syncs: u64,
    late: Option<Arc<dyn File>>,
    late_write: Option<(Arc<dyn File>, u64, Vec<u8>)>,
}

impl State {
    /// What happens before a call of `class` on `path`.
    fn before(&mut self, class: Class, path: &Path) {
        self.calls += 1;
        if let Some(fuse) = self.fuse.filter(|_| !std::thread::panicking()) {
            assert!(self.calls <= fuse, "more than {fuse} disk calls: it does not end");
        }
        if let Some(watcher) = self.watcher.as_mut().filter(|_| class.changes()) {
            watcher(class, path);
        }
    }
}

/// The disk. Clones share everything.
#[derive(Clone)]
pub struct Tap {
    below: Arc<dyn Disk>,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tap").field("below", &self.below).finish_non_exhaustive()
    }
}

impl Tap {
    /// A tap on `below`.
    #[must_use]
    pub fn new(below: Arc<dyn Disk>) -> Tap {
        Tap { below, state: Arc::default() }
    }

    /// Calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.state.lock().calls
    }

    /// Panics when more than `calls` more calls are made: what loops for ever becomes a finding.
    pub fn set_fuse(&self, calls: u64) {
        let mut state = self.state.lock();
        state.fuse = Some(state.calls + calls);
    }

    /// `watcher` hears of every call that can change what a crash leaves, just before it happens.
    pub fn watch(&self, watcher: impl FnMut(Class, &Path) + Send + 'static) {
        self.state.lock().watcher = Some(Box::new(watcher));
    }

    /// Nobody watches any more.
    pub fn unwatch(&self) {
        self.state.lock().watcher = None;
    }

    /// `host` is called before every read of a file, and the read waits for it; other calls do not.
    pub fn receive(&self, host: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().host = Some(Arc::new(host));
    }

    /// Calls `appender` before every append to a log, which waits for it. It may use the disk.
    pub fn receive_appends(&self, appender: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().appender = Some(Arc::new(appender));
    }

    /// Calls `host` after every sync of a file, which returns after that. It may use the disk.
    pub fn receive_syncs(&self, host: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().after_sync = Some(Arc::new(host));
    }

    /// `maker` is called before every file that is made, which waits for it. It may use the disk.
    pub fn receive_new(&self, maker: impl Fn(&Path) + Send + Sync + 'static) {
        self.state.lock().maker = Some(Arc::new(maker));
    }

    /// From now on the disk lies like this.
    pub fn set_lie(&self, lie: Lie) {
        self.state.lock().lie = lie;
    }

    fn before(&self, class: Class, path: &Path) {
        self.state.lock().before(class, path);
    }
}

impl Disk for Tap {
    fn open(&self, path: &Path, how: How) -> io::Result<Arc<dyn File>> {
        self.before(if how == How::Create { Class::Create } else { Class::Open }, path);
        let maker = self.state.lock().maker.clone().filter(|_| how == How::Create);
        if let Some(maker) = maker {
            maker(path); // the lock is free
        }
        let below = self.below.open(path, how)?;
        Ok(Arc::new(TapFile { below, path: path.to_path_buf(), state: Arc::clone(&self.state) }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<Entry>> {
        self.before(Class::List, dir);
        self.below.list(dir)
    }
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.before(Class::CreateDir, dir);
        self.below.create_dir(dir)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.before(Class::Remove, path);
        self.below.remove(path)
    }
    fn remove_dir(&self, dir: &Path) -> io::Result<()> {
        self.before(Class::RemoveDir, dir);
        self.below.remove_dir(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Class::Rename, from);
        self.below.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.before(Class::Rename, from);
        self.below.link(from, to)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.before(Class::SyncDir, dir);
        let lie = self.state.lock().lie;
        let is_named = |part: &str| dir.to_string_lossy().contains(part);
        if lie == Lie::SyncDir || matches!(lie, Lie::SyncDirOf(part) if is_named(part)) {
            return Ok(());
        }
        self.below.sync_dir(dir)
    }
    fn lock(&self, path: &Path, share: Share) -> io::Result<Locked> {
        self.before(Class::Lock, path);
        self.below.lock(path, share)
    }
    fn free_space(&self, path: &Path) -> io::Result<u64> {
        self.before(Class::FreeSpace, path);
        self.below.free_space(path)
    }
    fn bounded(&self, limit: u32) -> Option<Arc<dyn Disk>> {
        let below = self.below.bounded(limit)?;
        Some(Arc::new(Tap { below, state: Arc::clone(&self.state) }))
    }
    fn descriptors(&self) -> Option<DescriptorStats> {
        self.below.descriptors()
    }
    fn is_read_only(&self, path: &Path) -> bool {
        self.below.is_read_only(path)
    }
    fn permitting(&self, permissions: Permissions) -> Option<Arc<dyn Disk>> {
        let below = self.below.permitting(permissions)?;
        Some(Arc::new(Tap { below, state: Arc::clone(&self.state) }))
    }
    fn mode(&self, path: &Path) -> Option<u32> {
        self.below.mode(path)
    }
}

struct TapFile {
    below: Arc<dyn File>,
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

impl fmt::Debug for TapFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TapFile").field(&self.path).finish()
    }
}

impl TapFile {
    fn before(&self, class: Class) {
        self.state.lock().before(class, &self.path);
    }

    fn after_sync(&self) {
        let host = self.state.lock().after_sync.clone();
        if let Some(host) = host {
            host(&self.path); // the lock is free
        }
    }

    fn is_named(&self, part: &str) -> bool {
        self.path.to_string_lossy().contains(part)
    }

    /// The file that a sync of this one syncs, if it does anything.
    fn to_sync(&self) -> Option<Arc<dyn File>> {
        let mut state = self.state.lock();
        state.syncs += 1;
        match state.lie {
            Lie::Sync => None,
            Lie::SyncOf(part) if self.is_named(part) => None,
            Lie::EverySecondSync if state.syncs.is_multiple_of(2) => None,
            Lie::SyncOneLate => state.late.replace(Arc::clone(&self.below)),
            _ => Some(Arc::clone(&self.below)),
        }
    }

    /// What is said of a sync that came to `answer`.
    fn about_sync(&self, answer: io::Result<()>) -> io::Result<()> {
        match self.state.lock().lie {
            Lie::HidesFailedSync => Ok(()),
            Lie::RetriesSync => answer.or_else(|_| self.below.sync()),
            _ => answer,
        }
    }

    /// What is written of `bytes`, and what is said of it.
    fn about_write(&self, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let lie = self.state.lock().lie;
        match lie {
            Lie::ShortWrite(part) if self.is_named(part) => write(&bytes[..bytes.len().saturating_sub(8)]),
            Lie::HidesFailedWrite => write(bytes).or(Ok(())),
            _ => write(bytes),
        }
    }

    /// Whether this write waits for the next one; that one carries it out.
    fn is_held_back(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut state = self.state.lock();
        let Lie::WriteOneLate(part) = state.lie else {
            return Ok(false);
        };
        if !self.is_named(part) {
            return Ok(false);
        }
        let waiting = state.late_write.replace((Arc::clone(&self.below), offset, bytes.to_vec()));
        match waiting {
            Some((file, offset, bytes)) => file.write_at(offset, &bytes).map(|()| true),
            None => Ok(true),
        }
    }
}

impl File for TapFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.before(Class::Read);
        let host = self.state.lock().host.clone();
        if let Some(host) = host {
            host(&self.path); // the lock is free: it may wait for others who use the disk
        }
        self.below.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.before(Class::Write);
        if self.is_held_back(offset, bytes)? {
            return Ok(());
        }
        self.about_write(bytes, |bytes| self.below.write_at(offset, bytes))
    }
    fn len(&self) -> io::Result<u64> {
        self.before(Class::Len);
        self.below.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.before(Class::SetLen);
        self.below.set_len(len)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        self.before(Class::Allocate);
        self.below.allocate(len)
    }
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.before(Class::Write);
        self.below.punch(offset, len)
    }
    fn sync(&self) -> io::Result<()> {
        self.before(Class::Sync);
        let answer = match self.to_sync() {
            Some(file) => self.about_sync(file.sync()),
            None => Ok(()),
        };
        self.after_sync();
        answer
    }
    fn sync_to(&self, end: u64) -> io::Result<()> {
        self.before(Class::Sync);
        let answer = match self.to_sync() {
            Some(file) if Arc::ptr_eq(&file, &self.below) => self.about_sync(file.sync_to(end)),
            Some(file) => self.about_sync(file.sync()),
            None => Ok(()),
        };
        self.after_sync();
        answer
    }
    fn map(&self, len: u64) {
        self.below.map(len);
    }
    unsafe fn mapped(&self, offset: u64, len: usize) -> Option<&[u8]> {
        // SAFETY: the caller's promise is passed on unchanged.
        unsafe { self.below.mapped(offset, len) }
    }
    fn prefetch(&self, offset: u64, lines: usize) {
        self.below.prefetch(offset, lines);
    }
    fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.before(Class::Write);
        let appender = self.state.lock().appender.clone();
        if let Some(appender) = appender {
            appender(&self.path); // the lock is free
        }
        if self.is_held_back(offset, bytes)? {
            return Ok(());
        }
        self.about_write(bytes, |bytes| self.below.append_at(offset, bytes))
    }
    fn make_resident(&self, from: u64, to: u64) {
        self.before(Class::Resident);
        self.below.make_resident(from, to);
    }
    fn is_resident(&self, offset: u64, len: usize) -> bool {
        self.below.is_resident(offset, len)
    }
}
