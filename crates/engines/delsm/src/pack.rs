//! # Pack: values that are too small for files of their own
//!
//! ```text
//!  <number:08x>.pack :  magic "SHEAFPAK" 8 | format 4 | owner 8 | number 8 | crc32c of the 28 bytes before 4 | value ...
//! ```
//!
//! Length and checksum of each value stand in the key lists that name it, so values are read
//! whatever the head says. A pack is written once; it lives while any
//! list names it, and what is left of it is copied to another when that is less than half.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_base::disk::{Disk, File, OpenMode};
use sheaf_base::error::{Damage, Error, IoContext, Result};

use crate::file_names;
use crate::list::{HEAD_BYTES, accept_head, check_head, encode_head};

const MAGIC: &[u8; 8] = b"SHEAFPAK";
/// Bytes gathered before they are written.
const WRITE_CHUNK_BYTES: usize = 1 << 20;

/// A pack that is there.
#[derive(Debug)]
pub(crate) struct Pack {
    pub(crate) number: u64,
    pub(crate) len: u64,
    owner: u64,
    path: PathBuf,
    file: Arc<dyn File>,
}

impl Pack {
    /// Opens pack `number` in `dir`.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, owner: u64, number: u64) -> Result<Pack> {
        let path = dir.join(file_names::pack_name(number));
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::corrupt(
                    &path,
                    0,
                    Damage::Truncated { got: 0, expected: HEAD_BYTES as u64 },
                ));
            }
            other => other.during("open", &path)?,
        };
        let len = file.len().during("measure", &path)?;
        if len < HEAD_BYTES as u64 {
            return Err(Error::corrupt(
                &path,
                0,
                Damage::Truncated { got: len, expected: HEAD_BYTES as u64 },
            ));
        }
        let mut got = [0; HEAD_BYTES];
        file.read_at(0, &mut got).during("read", &path)?;
        accept_head(&path, &got, MAGIC, owner, number)?;
        file.map(len);
        Ok(Pack { number, len, owner, path, file })
    }

    /// Checks the head, which no value is read by.
    pub(crate) fn check_head(&self) -> Result<()> {
        let mut got = [0; HEAD_BYTES];
        self.file.read_at(0, &mut got).during("read", &self.path)?;
        check_head(&self.path, &got, MAGIC, self.owner, self.number)
    }

    /// Bytes of values that were written to it.
    pub(crate) fn bytes(&self) -> u64 {
        self.len.saturating_sub(HEAD_BYTES as u64)
    }

    /// Calls `with` with the value at `offset`, checked.
    pub(crate) fn read<R>(
        &self,
        offset: u64,
        len: u32,
        sum: u32,
        with: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        if offset.checked_add(u64::from(len)).is_none_or(|end| end > self.len) {
            return Err(Error::corrupt(
                &self.path,
                offset,
                Damage::BadLength { got: u64::from(len), max: self.len },
            ));
        }
        let checked = |bytes: &[u8]| {
            let got = crc32c::crc32c(bytes);
            match got == sum {
                true => Ok(with(bytes)),
                false => Err(Error::corrupt(&self.path, offset, Damage::BadChecksum { expected: sum, got })),
            }
        };
        // SAFETY:
        // * A pack was written whole and synced before it was opened here, and is never written
        //   again.
        if let Some(bytes) = unsafe { self.file.mapped(offset, len as usize) } {
            return checked(bytes);
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_at(offset, &mut bytes).during("read", &self.path)?;
        checked(&bytes)
    }
}

/// A pack being written, chunk by chunk. Its file is made with the first.
#[derive(Debug)]
pub(crate) struct PackWriter {
    pub(crate) number: u64,
    owner: u64,
    dir: PathBuf,
    file: Option<Arc<dyn File>>,
    at: u64,
    chunk: Vec<u8>,
}

impl PackWriter {
    pub(crate) fn new(dir: &Path, owner: u64, number: u64) -> PackWriter {
        PackWriter { number, owner, dir: dir.to_owned(), file: None, at: 0, chunk: Vec::new() }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(file_names::pack_name(self.number))
    }

    /// Appends a value, in memory; where it stands.
    pub(crate) fn add(&mut self, value: &[u8]) -> u64 {
        if self.at == 0 && self.chunk.is_empty() {
            self.chunk = encode_head(MAGIC, self.owner, self.number);
        }
        let offset = self.at + self.chunk.len() as u64;
        self.chunk.extend_from_slice(value);
        offset
    }

    /// Writes what was gathered if that is a chunk. The caller holds no guard.
    pub(crate) fn write_if_full(&mut self, disk: &dyn Disk) -> Result<()> {
        if self.chunk.len() >= WRITE_CHUNK_BYTES { self.write(disk) } else { Ok(()) }
    }

    /// Writes what was gathered.
    fn write(&mut self, disk: &dyn Disk) -> Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let path = self.path();
        let file = match self.file.take() {
            Some(file) => file,
            None => disk.open(&path, OpenMode::Create).during("create", &path)?,
        };
        self.file.insert(file).write_at(self.at, &self.chunk).during("write", &path)?;
        self.at += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the rest, makes the pack's bytes durable and opens it. None if there was no value.
    pub(crate) fn finish(&mut self, disk: &dyn Disk) -> Result<Option<Pack>> {
        self.write(disk)?;
        let Some(file) = &self.file else { return Ok(None) };
        file.sync().during("sync", &self.path())?;
        Pack::open(disk, &self.dir, self.owner, self.number).map(Some)
    }
}
