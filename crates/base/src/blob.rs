//! # Blobs: values too large to stand in a log
//!
//! A value above the staging limit is written to a file of its own before its commit has a number
//! (commit.md R9); the commit's record carries number, length and checksum. The sync round syncs
//! staged files before the logs, so a durable record never names a value that is not.
//!
//! ## Picture
//!
//! ```text
//!  blob/<number:016x>.blob :  magic "SHEAFBLB" 8 | format 4 | crc32c of the value 4 | store 16 | number 8 |
//!                             length 8 | crc32c of the 48 bytes before 4 | zeros to 64 | value
//! ```
//!
//! ## Crash
//!
//! A file without a live record is an orphan and swept at the next open. Numbers never repeat.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, File, How};
use crate::error::{Damage, Error, IoContext, Result};
use crate::frame::{u32_at, u64_at};
use crate::root::FORMAT;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::StoreId;

const MAGIC: &[u8; 8] = b"SHEAFBLB";
const HEAD: usize = 64;

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
    store: StoreId,
    next: AtomicU64,
}

impl Blobs {
    /// The blobs in `dir`, numbered from `next`.
    #[must_use]
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf, store: StoreId, next: u64) -> Arc<Blobs> {
        Arc::new(Blobs { dir, disk, store, next: AtomicU64::new(next) })
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

    fn path(&self, id: u64) -> PathBuf {
        self.dir.join(format!("{id:016x}.blob"))
    }

    /// Writes `value` to a file of its own. In the kernel on return, not on the device.
    pub fn stage(self: &Arc<Blobs>, value: &[u8]) -> Result<Staged> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.path(id);
        let len = u32::try_from(value.len()).map_err(|_| Error::TooLarge {
            what: "value",
            got: value.len() as u64,
            max: crate::types::MAX_VALUE as u64,
        })?;
        let blob = BlobRef { id, len, sum: crc32c::crc32c(value) };
        let file = self.disk.open(&path, How::Create).during("create", &path)?;
        let staged = Staged { blob, file, owner: Arc::clone(self), used: false };
        staged.file.allocate((HEAD + value.len()) as u64).during("allocate", &path)?;
        staged.file.write_at(0, &self.head(&blob)).during("write", &path)?;
        staged.file.write_at(HEAD as u64, value).during("write", &path)?;
        Ok(staged)
    }

    fn head(&self, blob: &BlobRef) -> [u8; HEAD] {
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        head[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        head[12..16].copy_from_slice(&blob.sum.to_le_bytes());
        head[16..32].copy_from_slice(&self.store.0.to_le_bytes());
        head[32..40].copy_from_slice(&blob.id.to_le_bytes());
        head[40..48].copy_from_slice(&u64::from(blob.len).to_le_bytes());
        let sum = crc32c::crc32c(&head[..48]);
        head[48..52].copy_from_slice(&sum.to_le_bytes());
        head
    }

    /// The value of `blob`, checked. `Ok(None)` if the file is gone: superseded a moment ago.
    pub fn read(&self, blob: &BlobRef) -> Result<Option<Vec<u8>>> {
        let path = self.path(blob.id);
        let file = match self.disk.open(&path, How::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.during("open", &path)?,
        };
        let (got, expected) = (file.len().during("measure", &path)?, HEAD as u64 + u64::from(blob.len));
        if got < expected {
            return Err(Error::corrupt(&path, got, Damage::Short { got, expected }));
        }
        let mut head = [0; HEAD];
        file.read_at(0, &mut head).during("read", &path)?;
        self.check_head(&path, &head, blob)?;
        let mut value = vec![0; blob.len as usize];
        file.read_at(HEAD as u64, &mut value).during("read", &path)?;
        let got = crc32c::crc32c(&value);
        if got != blob.sum {
            return Err(Error::corrupt(&path, HEAD as u64, Damage::BadChecksum { expected: blob.sum, got }));
        }
        Ok(Some(value))
    }

    /// The error for a blob that a live record names and that is not there.
    #[must_use]
    pub fn missing(&self, blob: &BlobRef) -> Error {
        let expected = HEAD as u64 + u64::from(blob.len);
        Error::corrupt(&self.path(blob.id), 0, Damage::Short { got: 0, expected })
    }

    /// Writes a blob's bytes again where they stand and syncs them.
    pub fn rewrite(&self, blob: &BlobRef) -> Result<()> {
        let path = self.path(blob.id);
        let Some(value) = self.read(blob)? else {
            return Err(self.missing(blob));
        };
        let file = self.disk.open(&path, How::Write).during("open", &path)?;
        file.write_at(0, &self.head(blob)).during("write", &path)?;
        file.write_at(HEAD as u64, &value).during("write", &path)?;
        crate::disk::renew_len(&*file).during("extend", &path)?;
        file.sync().during("sync", &path)
    }

    fn check_head(&self, path: &Path, head: &[u8; HEAD], blob: &BlobRef) -> Result<()> {
        let sum = crc32c::crc32c(&head[..48]);
        let damage = if &head[..8] != MAGIC {
            Damage::BadMagic
        } else if u32_at(head, 48) != sum {
            Damage::BadChecksum { expected: u32_at(head, 48), got: sum }
        } else if u32_at(head, 8) != FORMAT {
            return Err(Error::Format {
                path: path.to_path_buf(),
                found: u32_at(head, 8),
                supported: FORMAT,
            });
        } else if head[..52] != self.head(blob)[..52] {
            Damage::Foreign {
                field: "blob",
                expected: u128::from(blob.id),
                got: u128::from(u64_at(head, 32)),
            }
        } else {
            return Ok(());
        };
        Err(Error::corrupt(path, 0, damage))
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
