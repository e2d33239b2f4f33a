//! # Handles: open files, locks and the volume of a simulated disk
//!
//! The machine counts and logs each call, and injects the planned faults.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::content;
use super::volume::Ino;
use super::{CallClass, FaultKind, SimCall, SimDisk, SimMachine};
use crate::error_numbers::{EBADF, EMFILE};
use sheaf_platform::disk::descriptors::{Backend, DescriptorPin, FileIdentity, OpenedFd, OwnedHandle, RawFd};
use sheaf_platform::disk::{File, OpenMode, SECTOR, Volume};

/// The simulated volume as a whole.
pub(super) struct SimVolume {
    pub(super) disk: SimDisk,
    pub(super) path: Arc<Path>,
}

impl fmt::Debug for SimVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimVolume")
    }
}

impl Volume for SimVolume {
    fn sync(&self) -> io::Result<()> {
        let call = SimCall { class: CallClass::Sync, path: &self.path, is_op: true };
        self.disk.call_with_failure(
            call,
            || "sync everything".into(),
            |machine, failure| {
                machine.volume.sync_all(failure.is_some());
                if failure.is_none() {
                    machine.descriptors.values_mut().for_each(|descriptor| descriptor.is_dirty = false);
                }
                failure.map_or(Ok(()), |failure| Err(failure.to_error(CallClass::Sync)))
            },
        )
    }
}

/// A lock held on a simulated disk.
pub(super) struct SimLockGuard {
    pub(super) disk: SimDisk,
    pub(super) ino: Ino,
}

impl fmt::Debug for SimLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockGuard({:?})", self.ino)
    }
}

impl Drop for SimLockGuard {
    fn drop(&mut self) {
        self.disk.shared.machine.lock().unlock(self.ino);
    }
}

/// An open file of a simulated disk.
pub(super) struct SimFile {
    pub(super) disk: SimDisk,
    pub(super) ino: Ino,
    pub(super) path: Arc<Path>,
    pub(super) is_writable: bool,
    /// The handle, if descriptors are limited.
    pub(super) handle: Option<OwnedHandle>,
}

/// A descriptor of a file with a descriptor limit.
pub(super) struct SimDescriptor {
    ino: Ino,
    path: Arc<Path>,
    /// Whether a write through the descriptor is unsynced.
    is_dirty: bool,
}

/// The calls of a descriptor cache.
pub(super) struct SimBackend(pub(super) SimDisk);

impl fmt::Debug for SimBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SimBackend")
    }
}

impl Backend for SimBackend {
    fn open(&self, path: &Path, open_mode: OpenMode) -> io::Result<OpenedFd> {
        let ino = {
            let machine = self.0.shared.machine.lock();
            if machine.descriptors.len() >= machine.most_descriptors {
                return Err(io::Error::from_raw_os_error(EMFILE));
            }
            drop(machine);
            self.0.open_node(path, open_mode)?
        };
        let mut machine = self.0.shared.machine.lock();
        let fd = (0..).find(|fd| !machine.descriptors.contains_key(fd)).unwrap_or(RawFd::MAX);
        machine.descriptors.insert(fd, SimDescriptor { ino, path: path.into(), is_dirty: false });
        let len = machine.volume.file(ino).cache().len();
        Ok(OpenedFd { fd, identity: FileIdentity { device: 0, inode: ino.0 }, len })
    }

    fn sync(&self, fd: RawFd) -> io::Result<()> {
        let machine = self.0.shared.machine.lock();
        let Some(descriptor) = machine.descriptors.get(&fd) else {
            return Err(io::Error::from_raw_os_error(EBADF));
        };
        let (ino, path) = (descriptor.ino, Arc::clone(&descriptor.path));
        drop(machine);
        self.0.sync_node(ino, &path)
    }

    fn close(&self, fd: RawFd) {
        let mut machine = self.0.shared.machine.lock();
        if let Some(descriptor) = machine.descriptors.remove(&fd) {
            machine.volume.closed(descriptor.ino);
        }
    }

    fn before_eviction(&self, fd: RawFd) {
        let machine = self.0.shared.machine.lock();
        let descriptor = machine.descriptors.get(&fd);
        let is_clean = descriptor.is_some_and(|descriptor| !descriptor.is_dirty);
        assert!(is_clean, "sim (I5): a descriptor with an unsynced write is not closed early");
    }
}

impl SimDisk {
    /// Syncs one file.
    fn sync_node(&self, ino: Ino, path: &Path) -> io::Result<()> {
        let call = SimCall { class: CallClass::Sync, path, is_op: true };
        self.call_with_failure(
            call,
            || "sync".into(),
            |machine, failure| {
                machine.volume.sync(ino, failure.is_some());
                if failure.is_none() {
                    let same = machine.descriptors.values_mut().filter(|descriptor| descriptor.ino == ino);
                    same.for_each(|descriptor| descriptor.is_dirty = false);
                }
                failure.map_or(Ok(()), |failure| Err(failure.to_error(CallClass::Sync)))
            },
        )
    }
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.path.display())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if self.handle.is_none() {
            self.disk.shared.machine.lock().volume.closed(self.ino);
        }
    }
}

impl SimFile {
    fn pin(&self) -> io::Result<Option<DescriptorPin<'_>>> {
        self.handle.as_ref().map(|handle| handle.pin()).transpose()
    }

    /// Makes a change that ends at `end` and records it as unsynced, even if it fails half-way.
    fn change(
        &self,
        (class, end): (CallClass, u64),
        what: impl FnOnce() -> String,
        body: impl FnOnce(&mut SimMachine, Option<FaultKind>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.writable()?;
        let pin = self.pin()?;
        let answer = self.disk.call_with_failure(self.op(class), what, |machine, failure| {
            if let Some(descriptor) = pin.as_ref().and_then(|pin| machine.descriptors.get_mut(&pin.fd())) {
                descriptor.is_dirty = true;
            }
            body(machine, failure)
        });
        if let Some(handle) = &self.handle {
            handle.note_write(end);
        }
        answer
    }

    fn op(&self, class: CallClass) -> SimCall<'_> {
        SimCall { class, path: &self.path, is_op: class != CallClass::Read }
    }

    /// Returns the error of the kernel for a change of a file that was opened for reading.
    fn writable(&self) -> io::Result<()> {
        match self.is_writable {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(EBADF)),
        }
    }

    /// Returns the part of `bytes` at `offset` that is written despite `failure`.
    fn let_through(offset: u64, bytes: &[u8], failure: Option<FaultKind>) -> &[u8] {
        match failure {
            None => bytes,
            Some(FaultKind::Torn { sectors }) => {
                let end = (offset / SECTOR).saturating_add(sectors).saturating_mul(SECTOR);
                let count = usize::try_from(end.saturating_sub(offset)).unwrap_or(usize::MAX);
                &bytes[..count.min(bytes.len())]
            }
            Some(_) => &[],
        }
    }
}

impl File for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let _pin = self.pin()?;
        self.disk.call(self.op(CallClass::Read), String::new, |machine| {
            if let Some(cache) = &mut machine.page_cache {
                cache.read(self.ino, offset, buf.len())?;
            }
            match machine.volume.file(self.ino).cache().read(offset, buf) {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let what = || format!("write {} at {offset}", bytes.len());
        let end = offset.saturating_add(bytes.len() as u64);
        self.change((CallClass::Write, end), what, |machine, failure| {
            let bytes = SimFile::let_through(offset, bytes, failure);
            machine.volume.write(self.ino, offset, bytes)?;
            if let Some(cache) = &mut machine.page_cache {
                cache.insert(self.ino, offset, bytes.len());
            }
            failure.map_or(Ok(()), |failure| Err(failure.to_error(CallClass::Write)))
        })
    }

    fn len(&self) -> io::Result<u64> {
        let _pin = self.pin()?;
        let machine = self.disk.shared.machine.lock();
        Ok(machine.volume.file(self.ino).cache().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let what = || format!("set length {len}");
        self.change((CallClass::SetLen, 0), what, |machine, failure| match failure {
            Some(failure) => Err(failure.to_error(CallClass::SetLen)),
            None => {
                machine.volume.set_len(self.ino, len);
                Ok(())
            }
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let what = || format!("allocate {len}");
        self.change((CallClass::Allocate, 0), what, |machine, failure| match failure {
            Some(failure) => Err(failure.to_error(CallClass::Allocate)),
            None => machine.volume.allocate(self.ino, len),
        })
    }

    /// Writes zeros. The blocks are not freed.
    fn punch_hole(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(offset, &vec![0; content::index(len)])
    }

    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        let _pin = self.pin()?;
        Ok(self.disk.shared.machine.lock().volume.has_blocks(self.ino, len))
    }

    fn sync(&self) -> io::Result<()> {
        let Some(handle) = &self.handle else { return self.disk.sync_node(self.ino, &self.path) };
        let _pin = handle.pin()?;
        let marks = handle.marks();
        let answer = handle.check_syncs().and_then(|()| self.disk.sync_node(self.ino, &self.path));
        match answer {
            Ok(()) => handle.note_sync(marks),
            Err(_) => handle.note_failed_sync(),
        }
        answer
    }

    fn will_need(&self, offset: u64, _len: u64) {
        if let Some(hints) = &mut self.disk.shared.machine.lock().hints {
            hints.push((self.path.to_path_buf(), offset));
        }
    }

    fn is_cached(&self, _offset: u64) -> bool {
        !self.disk.shared.machine.lock().is_cold
    }

    fn make_resident(&self, from: u64, to: u64) {
        let zeroes_ahead = self.disk.shared.machine.lock().zeroes_ahead;
        if let (true, Some(count)) = (zeroes_ahead, to.checked_sub(from)) {
            // A hint: an append to this range would get the same error.
            let _ = self.write_at(from, &vec![0; content::index(count)]);
        }
    }
}
