//! # Descriptor cache: a bound on the open files of one database
//!
//! [`Descriptors`] opens files, closes the descriptors of idle ones, and opens them again when they
//! are used. A [`Handle`] is one open file, with or without a descriptor at the moment.
//!
//! ## Picture
//!
//! ```text
//!           pin          last unpin
//!   idle ─────────> in use ───────> idle ─ clean ─> closed ── pin: open, compare ──> in use
//!                                     └── dirty ─> synced early, then closed
//! ```
//!
//! ## Invariants
//!
//! 1. A descriptor is closed only if no call uses it and no write through it is unsynced: Linux
//!    reports a failed writeback only to descriptors that were open then ([`Handle::try_close`]).
//! 2. After a failed early sync every later sync of this disk fails, so the database is poisoned.
//!    The descriptor of a failed sync is neither synced again nor closed while its file is open.
//! 3. A handle is opened again only as the file that it was: same device, same inode.
//! 4. A file that loses its last name keeps its descriptor, or is served by a mapping of all of it.
//! 5. Descriptors beyond the limit are those of (4), of files that take stores, and in calls now.
//!
//! ## Threads
//!
//! One mutex for opening, closing and names, a leaf in the lock order; never held in a sync.
//!
//! ## Costs
//!
//! Eviction follows the clock algorithm: O(log n) per open file passed. Reopening: 2 system calls.

mod handle;
#[cfg(all(test, shuttle))]
mod interleavings;
mod names;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::ops::Bound;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub(super) use self::handle::{Handle, Held, Marks, Pin};
use self::handle::{NONE, OPEN, Owner};
use self::names::Names;
use super::{DescriptorStats, How};
use crate::error::Error;
use crate::fork::ForkGuard;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// The least bound on descriptors: fewer would be opened and closed all the time.
pub(super) const LEAST: u32 = 16;
/// Early syncs for one descriptor, should writers dirty each file again.
const EARLY_SYNCS: u32 = 8;

/// Device and inode of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Identity {
    pub(super) device: u64,
    pub(super) inode: u64,
}

/// A file that was opened just now.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) fd: RawFd,
    pub(super) identity: Identity,
    pub(super) len: u64,
}

/// The calls that make, sync and end descriptors: the system's, or a simulated disk's.
pub(super) trait Backend: fmt::Debug + Send + Sync {
    /// Opens a regular file that is there.
    fn open(&self, path: &Path, how: How) -> io::Result<Opened>;
    /// Makes the data and the length of a file durable.
    fn sync(&self, fd: RawFd) -> io::Result<()>;
    /// Ends a descriptor.
    fn close(&self, fd: RawFd);
    /// A descriptor to give up when there is no other, if the disk has such.
    fn spare(&self) -> Option<RawFd> {
        None
    }
    /// The process's own limit of descriptors, for the error.
    fn process_limit(&self) -> Option<u64> {
        None
    }
    /// Asserts what the backend knows by itself of (I1).
    fn before_eviction(&self, fd: RawFd) {
        let _ = fd;
    }
}

/// The descriptors of one database. See the module.
#[derive(Debug)]
pub(super) struct Descriptors {
    backend: Box<dyn Backend>,
    limit: u32,
    /// Relative names are below it, wherever the process goes.
    origin: PathBuf,
    reopened: AtomicU64,
    /// Descriptors of handles beside their first one.
    extra: AtomicU32,
    /// The first early sync that failed (I2).
    lost: OnceLock<(PathBuf, i32)>,
    fork: ForkGuard,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    /// Every handle, by number.
    handles: BTreeMap<u64, Arc<Handle>>,
    /// Those with a descriptor.
    open: BTreeMap<u64, Arc<Handle>>,
    /// Being opened outside of the lock.
    opening: usize,
    /// The handle that was looked at last.
    hand: u64,
    names: Names,
    spare: Option<RawFd>,
}

type Guard<'a> = MutexGuard<'a, Inner>;

impl Descriptors {
    /// A cache of at most `limit` descriptors, but at least [`LEAST`].
    pub(super) fn new(backend: Box<dyn Backend>, limit: u32, origin: PathBuf) -> Arc<Descriptors> {
        let inner = Inner { spare: backend.spare(), ..Inner::default() };
        Arc::new(Descriptors {
            backend,
            limit: limit.max(LEAST),
            origin,
            reopened: AtomicU64::new(0),
            extra: AtomicU32::new(0),
            lost: OnceLock::new(),
            fork: ForkGuard::new(),
            inner: Mutex::new(inner),
        })
    }

    /// The limit, the descriptors in use, and how often one was opened again.
    pub(super) fn stats(&self) -> DescriptorStats {
        let in_use = self.used(&self.inner.lock());
        DescriptorStats {
            limit: self.limit,
            in_use: u32::try_from(in_use).unwrap_or(u32::MAX),
            reopened: self.reopened.load(Ordering::Relaxed),
        }
    }

    fn used(&self, inner: &Inner) -> usize {
        let extra = usize::try_from(self.extra.load(Ordering::Relaxed)).unwrap_or(0);
        inner.open.len() + inner.opening + extra + usize::from(inner.spare.is_some())
    }

    /// Opens the file at `path` by `call`; the handle ends with the answer.
    pub(super) fn open(
        self: &Arc<Self>,
        path: &Path,
        how: How,
        call: impl Fn() -> io::Result<Opened>,
    ) -> io::Result<(Held, u64)> {
        let mut inner = self.make_room(self.inner.lock());
        // Making a file may wait for the file system: other files go on meanwhile.
        let opened = if how == How::Create {
            inner.opening += 1;
            drop(inner);
            let opened = self.with_room(&call);
            inner = self.inner.lock();
            inner.opening -= 1;
            opened?
        } else {
            let (guard, opened) = self.open_within(inner, call);
            inner = guard;
            opened?
        };
        let id = inner.next;
        inner.next += 1;
        let how = if how == How::Read { How::Read } else { How::Write };
        let owner = Some(Owner { cache: Arc::clone(self), id, how });
        let handle = Arc::new(Handle::new(opened.fd, opened.identity, owner));
        inner.names.opened(id, opened.identity, path);
        inner.handles.insert(id, Arc::clone(&handle));
        inner.open.insert(id, Arc::clone(&handle));
        if inner.spare.is_none() {
            inner.spare = self.backend.spare();
        }
        Ok((Held(handle), opened.len))
    }

    /// Makes a call that needs a descriptor for as long as it takes. Where there is none, idle ones
    /// are closed and the call is repeated.
    pub(super) fn with_room<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        loop {
            match call() {
                Err(refusal) if is_exhausted(&refusal) => {
                    let (_, freed) = self.free_any(self.inner.lock());
                    if !freed {
                        return Err(self.describe(&refusal));
                    }
                }
                answer => return answer,
            }
        }
    }

    /// As [`Descriptors::with_room`], for an open under the lock.
    fn open_within<'a>(
        &'a self,
        mut inner: Guard<'a>,
        call: impl Fn() -> io::Result<Opened>,
    ) -> (Guard<'a>, io::Result<Opened>) {
        loop {
            match call() {
                Err(refusal) if is_exhausted(&refusal) => {
                    let (guard, freed) = self.free_any(inner);
                    inner = guard;
                    if !freed {
                        return (inner, Err(self.describe(&refusal)));
                    }
                }
                answer => return (inner, answer),
            }
        }
    }

    /// The error of a process, or system, without a descriptor left.
    fn describe(&self, refusal: &io::Error) -> io::Error {
        let system = refusal.raw_os_error() == Some(libc::ENFILE);
        io::Error::other(Error::TooManyFiles {
            path: PathBuf::new(),
            limit: self.backend.process_limit().filter(|_| !system),
        })
    }

    /// Closes idle descriptors until one more may be opened, as far as there are any (I5).
    fn make_room<'a>(&'a self, mut inner: Guard<'a>) -> Guard<'a> {
        while self.used(&inner) >= self.limit as usize {
            let (guard, freed) = self.free_one(inner);
            inner = guard;
            if !freed {
                break;
            }
        }
        inner
    }

    /// Closes one idle descriptor, or the spare one. False if there is none.
    fn free_any<'a>(&'a self, inner: Guard<'a>) -> (Guard<'a>, bool) {
        let (mut inner, freed) = self.free_one(inner);
        match (freed, inner.spare.take()) {
            (true, spare) => inner.spare = spare,
            (false, Some(spare)) => self.backend.close(spare),
            (false, None) => return (inner, false),
        }
        (inner, true)
    }

    /// Closes one idle descriptor. If all of them are dirty, one is synced before; the lock is free
    /// meanwhile.
    fn free_one<'a>(&'a self, mut inner: Guard<'a>) -> (Guard<'a>, bool) {
        for _ in 0..EARLY_SYNCS {
            let dirty = match self.sweep(&mut inner) {
                Swept::Closed => return (inner, true),
                Swept::Dirty(handle) => handle,
                Swept::None => break,
            };
            let Some(pin) = dirty.try_pin() else { continue };
            drop(inner);
            self.sync_early(&dirty, &pin);
            drop(pin);
            inner = self.inner.lock();
            if dirty.is_orphan.load(Ordering::Relaxed) {
                self.end(&dirty);
            }
        }
        (inner, false)
    }

    /// Passes the hand over the open files, at most twice: the first idle, clean file that was not
    /// used since the hand passed it last is closed.
    fn sweep(&self, inner: &mut Inner) -> Swept {
        let mut dirty = None;
        for _ in 0..2 * inner.open.len() {
            let after = (Bound::Excluded(inner.hand), Bound::Unbounded);
            let next = inner.open.range(after).next().or_else(|| inner.open.iter().next());
            let Some((id, handle)) = next.map(|(id, handle)| (*id, Arc::clone(handle))) else { break };
            inner.hand = id;
            let stays = handle.is_kept.load(Ordering::Relaxed) || handle.takes_stores();
            if stays || handle.was_used.swap(false, Ordering::Relaxed) {
                continue;
            }
            if handle.is_dirty() {
                dirty = dirty.or(Some(handle));
            } else if self.evict(&handle) {
                inner.open.remove(&id);
                return Swept::Closed;
            }
        }
        dirty.map_or(Swept::None, Swept::Dirty)
    }

    /// Closes a handle's descriptor if it is idle and clean.
    fn evict(&self, handle: &Handle) -> bool {
        let Some((fd, direct)) = handle.try_close() else { return false };
        self.backend.before_eviction(fd);
        self.backend.close(fd);
        self.close_extra(direct);
        true
    }

    fn close_extra(&self, direct: RawFd) {
        if direct >= 0 {
            self.backend.close(direct);
            self.extra.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Syncs a dirty file so that its descriptor can be closed.
    fn sync_early(&self, handle: &Handle, pin: &Pin<'_>) {
        let marks = handle.marks();
        match self.backend.sync(pin.fd()) {
            Ok(()) => handle.synced(marks),
            Err(error) => {
                handle.fail();
                let path = self.inner.lock().names.any(handle.identity).unwrap_or_default();
                let _ = self.lost.set((path, error.raw_os_error().unwrap_or(libc::EIO)));
            }
        }
    }

    /// An error after an early sync failed (I2).
    pub(super) fn check_syncs(&self) -> io::Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some((_, code)) => Err(io::Error::from_raw_os_error(*code)),
        }
    }

    /// Opens a handle again and pins it.
    fn reopen(&self, handle: &Handle, id: u64, how: How) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !handle.is_open() {
            inner = self.make_room(inner);
        }
        if !handle.is_open() {
            inner = self.open_again(inner, handle, id, how)?;
        }
        handle.state.fetch_add(1, Ordering::Acquire); // open, and it stays so under the lock
        drop(inner);
        Ok(())
    }

    /// Opens a closed handle at one of its names (I3).
    fn open_again<'a>(
        &'a self,
        mut inner: Guard<'a>,
        handle: &Handle,
        id: u64,
        how: How,
    ) -> io::Result<Guard<'a>> {
        let mut failure = io::Error::new(io::ErrorKind::NotFound, "the file was removed");
        for name in inner.names.all(handle.identity) {
            let path = self.origin.join(&name);
            let (guard, opened) = self.open_within(inner, || self.backend.open(&path, how));
            inner = guard;
            if handle.is_open() {
                if let Ok(opened) = opened {
                    self.backend.close(opened.fd); // the lock was free, and another thread was faster
                }
                return Ok(inner);
            }
            match opened {
                Ok(opened) if opened.identity == handle.identity => {
                    handle.fd.store(opened.fd, Ordering::Relaxed);
                    handle.state.fetch_or(OPEN, Ordering::Release);
                    if let Some(handle) = inner.handles.get(&id).map(Arc::clone) {
                        inner.open.insert(id, handle);
                    }
                    self.reopened.fetch_add(1, Ordering::Relaxed);
                    return Ok(inner);
                }
                Ok(other) => {
                    self.backend.close(other.fd);
                    failure = io::Error::other("another program put a different file in its place");
                }
                Err(refusal) => failure = refusal,
            }
        }
        Err(failure)
    }

    /// A name is about to be removed, or replaced: files without another one are still read (I4).
    pub(super) fn removing(&self, path: &Path) -> io::Result<()> {
        self.forget_name(self.inner.lock(), path).map(drop)
    }

    fn forget_name<'a>(&'a self, mut inner: Guard<'a>, path: &Path) -> io::Result<Guard<'a>> {
        for id in inner.names.only_named(path) {
            let Some(handle) = inner.handles.get(&id).map(Arc::clone) else { continue };
            if handle.is_mapped() {
                continue;
            }
            if !handle.is_open() {
                let how = handle.owner.as_ref().map_or(How::Read, |owner| owner.how);
                inner = self.open_again(inner, &handle, id, how)?;
            }
            handle.is_kept.store(true, Ordering::Relaxed);
        }
        inner.names.removed(path);
        Ok(inner)
    }

    /// Renames by `call`; open files, and those in a directory that is renamed, are known by the new name.
    pub(super) fn rename(
        &self,
        from: &Path,
        to: &Path,
        call: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut inner = self.inner.lock();
        if !inner.names.are_one(from, to) {
            inner = self.forget_name(inner, to)?;
        }
        call()?;
        inner.names.renamed(from, to);
        Ok(())
    }

    /// The file at `from` has a second name.
    pub(super) fn linked(&self, from: &Path, to: &Path) {
        self.inner.lock().names.linked(from, to);
    }

    /// What is unsynced now, for a sync of the whole volume.
    pub(super) fn all_marks(&self) -> Vec<(Arc<Handle>, Marks)> {
        let inner = self.inner.lock();
        let open = inner.open.values().filter(|handle| handle.is_dirty());
        open.map(|handle| (Arc::clone(handle), handle.marks())).collect()
    }

    /// The file of a handle is dropped. If the handle is being synced early, its descriptor is
    /// closed after that.
    fn release(&self, handle: &Handle, id: u64) {
        if !self.fork.is_child() {
            let mut inner = self.inner.lock(); // a child would wait for a thread that it does not have
            inner.handles.remove(&id);
            inner.open.remove(&id);
            inner.names.closed(id, handle.identity);
            handle.is_orphan.store(true, Ordering::Relaxed);
        }
        self.end(handle);
    }

    /// Closes the descriptors of a handle without a file, unless it is pinned.
    fn end(&self, handle: &Handle) {
        if handle.state.compare_exchange(OPEN, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            self.backend.close(handle.fd.swap(NONE, Ordering::Relaxed));
            self.close_extra(handle.direct.swap(NONE, Ordering::Relaxed));
        }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        if self.fork.is_child() {
            return; // the lock may be held by a thread that the child does not have
        }
        if let Some(spare) = self.inner.lock().spare.take() {
            self.backend.close(spare);
        }
    }
}

/// The outcome of [`Descriptors::sweep`].
enum Swept {
    Closed,
    Dirty(Arc<Handle>),
    None,
}

/// True if a call failed for want of a descriptor.
fn is_exhausted(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}
