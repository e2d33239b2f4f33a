//! # Handles: what a program has of a simulated disk
//!
//! An open file, a lock, the volume as a whole. Each call is counted, logged and failed by the machine as a plan says.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::content;
use super::volume::Ino;
use super::{Call, Class, Failure, SimDisk};
use crate::disk::{File, SECTOR, Volume};

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
        let call = Call { class: Class::Sync, path: &self.path, is_op: true };
        self.disk.call_with_failure(
            call,
            || "sync everything".into(),
            |machine, failure| {
                machine.volume.sync_all(failure.is_some());
                failure.map_or(Ok(()), |failure| Err(failure.to_error(Class::Sync)))
            },
        )
    }
}

/// A lock held on a simulated disk.
pub(super) struct LockGuard {
    pub(super) disk: SimDisk,
    pub(super) ino: Ino,
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockGuard({:?})", self.ino)
    }
}

impl Drop for LockGuard {
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
}

impl fmt::Debug for SimFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFile({})", self.path.display())
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        self.disk.shared.machine.lock().volume.closed(self.ino);
    }
}

impl SimFile {
    fn op(&self, class: Class) -> Call<'_> {
        Call { class, path: &self.path, is_op: class != Class::Read }
    }

    /// A file opened for reading refuses changes as the kernel does.
    fn writable(&self) -> io::Result<()> {
        match self.is_writable {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(libc::EBADF)),
        }
    }

    /// The part of `bytes` at `offset` that `failure` lets through.
    fn let_through(offset: u64, bytes: &[u8], failure: Option<Failure>) -> &[u8] {
        match failure {
            None => bytes,
            Some(Failure::Torn { sectors }) => {
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
        self.disk.call(self.op(Class::Read), String::new, |machine| {
            match machine.volume.file(self.ino).cache().read(offset, buf) {
                true => Ok(()),
                false => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        })
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.writable()?;
        let what = || format!("write {} at {offset}", bytes.len());
        self.disk.call_with_failure(self.op(Class::Write), what, |machine, failure| {
            let bytes = SimFile::let_through(offset, bytes, failure);
            machine.volume.write(self.ino, offset, bytes)?;
            failure.map_or(Ok(()), |failure| Err(failure.to_error(Class::Write)))
        })
    }

    fn len(&self) -> io::Result<u64> {
        let machine = self.disk.shared.machine.lock();
        Ok(machine.volume.file(self.ino).cache().len())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        let what = || format!("set length {len}");
        self.disk.call(self.op(Class::SetLen), what, |machine| {
            machine.volume.set_len(self.ino, len);
            Ok(())
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.writable()?;
        let what = || format!("allocate {len}");
        self.disk.call(self.op(Class::Allocate), what, |machine| machine.volume.allocate(self.ino, len))
    }

    /// Zeros are written, and the blocks stay.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.write_at(offset, &vec![0; content::index(len)])
    }

    fn has_blocks(&self, len: u64) -> io::Result<bool> {
        Ok(self.disk.shared.machine.lock().volume.has_blocks(self.ino, len))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call_with_failure(
            self.op(Class::Sync),
            || "sync".into(),
            |machine, failure| {
                machine.volume.sync(self.ino, failure.is_some());
                failure.map_or(Ok(()), |failure| Err(failure.to_error(Class::Sync)))
            },
        )
    }

    fn make_resident(&self, from: u64, to: u64) {
        let zeroes_ahead = self.disk.shared.machine.lock().zeroes_ahead;
        if let (true, Some(count)) = (zeroes_ahead, to.checked_sub(from)) {
            // A hint: whoever appends there will meet the same error.
            let _ = self.write_at(from, &vec![0; content::index(count)]);
        }
    }
}
