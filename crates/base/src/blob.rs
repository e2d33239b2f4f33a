//! # Blobs: values too large to stand in a log
//!
//! A value above the staging limit is written to a file of its own before its commit has a number
//! (commit.md R9); the commit's record carries number, length and checksum. The sync round syncs
//! staged files before the logs, so a durable record never names a value that is not.
//!
//! ## Picture
//!
//! ```text
//!  blob/<number:016x>.blob :  the value, and nothing else
//! ```
//!
//! Number, length and checksum stand in the record, and guard against a foreign file as well as a header would: a file
//! of another length or sum is damage. So an engine may *adopt* a staged file: give it a name of its own
//! ([`Blobs::path`], `Disk::link`), and let this one go.
//!
//! ## Crash
//!
//! A file without a live record is an orphan and swept at the next open. Numbers never repeat.
//!
//! ## Costs
//!
//! A file created, written and closed: 15 µs and the copy. A round syncs up to [`MANY`] files one by one; if there are more
//! they are closed when they are written, and the volume is synced as a whole.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::disk::{Disk, File, How, Volume, set_len_anew};
use crate::error::{Damage, Error, IoContext, Result};
use crate::sync::atomic::{AtomicU64, Ordering};

/// More staged files than this are synced by syncing the volume.
pub const MANY: usize = 64;
const TINY_MANY: usize = 3;

/// A staged value, as its record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlobRef {
    /// Number of the file.
    pub id: u64,
    /// Bytes of the value.
    pub len: u32,
    /// Checksum of the value.
    pub sum: u32,
}

/// A value staged for a commit that has no number yet. Its file goes if it is dropped unused.
#[derive(Debug)]
pub struct Staged {
    /// What the record will say.
    pub blob: BlobRef,
    file: Arc<dyn File>,
    owner: Arc<Blobs>,
    used: bool,
}

impl Staged {
    /// The commit took it: the file stays, and the next sync round must sync it.
    #[must_use]
    pub fn keep(mut self) -> Arc<dyn File> {
        self.used = true;
        Arc::clone(&self.file)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.used {
            // A file that cannot be removed is an orphan, which the next open sweeps.
            let _ = self.owner.remove(self.blob.id);
        }
    }
}

/// The directory of blobs.
#[derive(Debug)]
pub struct Blobs {
    dir: PathBuf,
    disk: Arc<dyn Disk>,
    next: AtomicU64,
    many: usize,
    /// None where the volume cannot be synced as a whole.
    volume: OnceLock<Option<Arc<dyn Volume>>>,
}

/// Staged files of commits the device does not have.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    files: Vec<Arc<dyn File>>,
    /// There are others, closed by now.
    and_more: bool,
}

impl Unsynced {
    /// A commit took `staged`.
    pub(crate) fn add(&mut self, staged: Staged) {
        let owner = Arc::clone(&staged.owner);
        let file = staged.keep();
        if !self.and_more {
            self.files.push(file);
            if self.files.len() > owner.many && owner.volume().is_some() {
                self.and_more = true;
                self.files.clear();
            }
        }
    }

    /// True if there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && !self.and_more
    }
}

impl Blobs {
    /// The blobs in `dir`, numbered from `next`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf, next: u64, tiny: bool) -> Arc<Blobs> {
        let many = if tiny { TINY_MANY } else { MANY };
        Arc::new(Blobs { dir, disk, next: AtomicU64::new(next), many, volume: OnceLock::new() })
    }

    /// The volume, looked up before anything is written whose failure its sync has to tell.
    fn volume(&self) -> Option<&Arc<dyn Volume>> {
        self.volume.get_or_init(|| self.disk.volume(&self.dir).ok()).as_ref()
    }

    /// Makes staged files and their names durable.
    pub(crate) fn sync(&self, staged: &Unsynced) -> Result<()> {
        match self.volume().filter(|_| staged.and_more) {
            Some(volume) => volume.sync().during("sync", &self.dir),
            None if staged.is_empty() => Ok(()),
            None => {
                staged.files.iter().try_for_each(|file| file.sync()).during("sync", &self.dir)?;
                self.disk.sync_dir(&self.dir).during("sync directory", &self.dir)
            }
        }
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The number the next blob gets.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The file of blob `id`.
    #[must_use]
    pub fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:016x}.blob"))
    }

    /// Writes `value` to a file of its own. In the kernel on return, not on the device.
    pub fn stage(self: &Arc<Blobs>, value: &[u8]) -> Result<Staged> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path(id);
        self.volume();
        let len = u32::try_from(value.len()).map_err(|_| Error::TooLarge {
            what: "value",
            got: value.len() as u64,
            max: crate::types::MAX_VALUE as u64,
        })?;
        let blob = BlobRef { id, len, sum: crc32c::crc32c(value) };
        let file = self.disk.open(&path, How::Create).during("create", &path)?;
        let staged = Staged { blob, file, owner: Arc::clone(self), used: false };
        staged.file.write_at(0, value).during("write", &path)?;
        Ok(staged)
    }

    /// The value of `blob`, checked. `Ok(None)` if the file is gone: superseded a moment ago.
    pub fn read(&self, blob: &BlobRef) -> Result<Option<Vec<u8>>> {
        let path = self.path(blob.id);
        let file = match self.disk.open(&path, How::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.during("open", &path)?,
        };
        read_value(&*file, &path, blob).map(Some)
    }

    /// The error for a blob that a live record names and that is not there.
    #[must_use]
    pub fn missing(&self, blob: &BlobRef) -> Error {
        let expected = u64::from(blob.len);
        Error::corrupt(&self.path(blob.id), 0, Damage::Short { got: 0, expected })
    }

    /// Writes a blob's bytes again where they stand and syncs them.
    pub fn rewrite(&self, blob: &BlobRef) -> Result<()> {
        let path = self.path(blob.id);
        let Some(value) = self.read(blob)? else {
            return Err(self.missing(blob));
        };
        let file = self.disk.open(&path, How::Write).during("open", &path)?;
        file.write_at(0, &value).during("write", &path)?;
        // A power cut in here may have left it longer before.
        set_len_anew(&*file, u64::from(blob.len)).during("extend", &path)?;
        file.sync().during("sync", &path)
    }

    /// Removes the file of blob `id`; one that is gone already is fine.
    pub fn remove(&self, id: u64) -> Result<()> {
        let path = self.path(id);
        match self.disk.remove(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => other.during("remove", &path),
        }
    }

    /// The number in a blob's file name.
    fn number_of(name: &str) -> Option<u64> {
        name.strip_suffix(".blob").filter(|n| n.len() == 16).and_then(|n| u64::from_str_radix(n, 16).ok())
    }

    /// The numbers of all files there.
    pub fn list(&self) -> Result<Vec<u64>> {
        let entries = self.disk.list(&self.dir).during("list", &self.dir)?;
        Ok(entries.iter().filter_map(|e| Blobs::number_of(&e.name)).collect())
    }
}

/// The value that `file` at `path` consists of, checked against length and checksum. Bytes behind it are what a power cut in a
/// [`Blobs::rewrite`] may leave, and no part of it.
pub fn read_value(file: &dyn File, path: &Path, blob: &BlobRef) -> Result<Vec<u8>> {
    let (got, expected) = (file.len().during("measure", path)?, u64::from(blob.len));
    if got < expected {
        return Err(Error::corrupt(path, got, Damage::Short { got, expected }));
    }
    let mut value = vec![0; blob.len as usize];
    file.read_at(0, &mut value).during("read", path)?;
    let got = crc32c::crc32c(&value);
    if got != blob.sum {
        return Err(Error::corrupt(path, 0, Damage::BadChecksum { expected: blob.sum, got }));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::SimDisk;

    #[test]
    fn what_a_power_cut_left_behind_a_value_is_no_part_of_it() {
        let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
        disk.create_dir(Path::new("/db")).unwrap();
        let blobs = Blobs::new(Arc::clone(&disk), PathBuf::from("/db"), 1, true);
        let staged = blobs.stage(&[7; 900]).unwrap();
        let blob = staged.blob;
        drop(staged.keep());
        let file = disk.open(&blobs.path(blob.id), How::Write).unwrap();
        file.set_len(1536).unwrap();
        assert_eq!(blobs.read(&blob).unwrap(), Some(vec![7; 900]));
        blobs.rewrite(&blob).unwrap();
        assert_eq!((file.len().unwrap(), blobs.read(&blob).unwrap()), (900, Some(vec![7; 900])));
        file.set_len(899).unwrap();
        assert!(blobs.read(&blob).unwrap_err().is_corrupt());
    }
}
