//! # Pack: values that are too small for files of their own
//!
//! ```text
//!  <number:08x>.pack :  magic "SHEAFPAK" 8 | format 4 | owner 8 | number 8
//!                       | crc32c of the 28 bytes before 4 | value ...
//! ```
//!
//! The key lists that name a value contain its length and checksum. A value can therefore be read
//! even if the head of the pack is damaged. A pack is written once, and is removed when no list
//! names it. If less than half of its bytes are live, a merge copies them to another pack.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_platform::disk::{Disk, File, OpenMode};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

use crate::files::file_names;
use crate::files::list::{HEAD_BYTES, accept_head, check_head, encode_head};

const MAGIC: &[u8; 8] = b"SHEAFPAK";
/// Number of buffered bytes above which they are written.
const WRITE_CHUNK_BYTES: usize = 1 << 20;

/// Complete pack, open for reading.
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
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the file is missing or too short, or if its head is valid but
    /// names another owner or number. Returns [`Error::UnsupportedVersion`] if its format is newer,
    /// and [`Error::Io`] if it cannot be read.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, owner: u64, number: u64) -> Result<Pack> {
        let path = dir.join(file_names::pack_name(number));
        let file = match disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::corrupt(
                    &path,
                    0,
                    "file header",
                    Damage::Truncated { got: 0, expected: HEAD_BYTES as u64 },
                ));
            }
            other => other.during(IoOp::Open, &path)?,
        };
        let len = file.len().during(IoOp::Measure, &path)?;
        if len < HEAD_BYTES as u64 {
            return Err(Error::corrupt(
                &path,
                0,
                "file header",
                Damage::Truncated { got: len, expected: HEAD_BYTES as u64 },
            ));
        }
        let mut got = [0; HEAD_BYTES];
        file.read_at(0, &mut got).during(IoOp::Read, &path)?;
        accept_head(&path, &got, MAGIC, owner, number)?;
        file.map(len);
        Ok(Pack { number, len, owner, path, file })
    }

    /// Checks the head. Reads of values do not need it.
    pub(crate) fn check_head(&self) -> Result<()> {
        let mut got = [0; HEAD_BYTES];
        self.file.read_at(0, &mut got).during(IoOp::Read, &self.path)?;
        check_head(&self.path, &got, MAGIC, self.owner, self.number)
    }

    /// Returns the bytes of values in the pack, live or dead.
    pub(crate) fn bytes(&self) -> u64 {
        self.len.saturating_sub(HEAD_BYTES as u64)
    }

    /// Checks the value at `offset` and calls `with` with it.
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
                "value in a pack",
                Damage::BadLength { got: u64::from(len), max: self.len.saturating_sub(offset) },
            ));
        }
        let checked = |bytes: &[u8]| {
            let got = crc32c::crc32c(bytes);
            match got == sum {
                true => Ok(with(bytes)),
                false => {
                    let what = Damage::BadChecksum { expected: sum, got };
                    Err(Error::corrupt(&self.path, offset, "value in a pack", what))
                }
            }
        };
        // SAFETY:
        // * The pack was completely written and synced before it was opened here, and is never
        //   written again.
        if let Some(bytes) = unsafe { self.file.mapped(offset, len as usize) } {
            return checked(bytes);
        }
        let mut bytes = vec![0; len as usize];
        self.file.read_at(offset, &mut bytes).during(IoOp::Read, &self.path)?;
        checked(&bytes)
    }
}

/// Pack that is written chunk by chunk. The first chunk creates its file.
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

    /// Appends a value to the buffer. Returns the offset of the value in the pack.
    pub(crate) fn add(&mut self, value: &[u8]) -> u64 {
        if self.at == 0 && self.chunk.is_empty() {
            self.chunk = encode_head(MAGIC, self.owner, self.number);
        }
        let offset = self.at + self.chunk.len() as u64;
        self.chunk.extend_from_slice(value);
        offset
    }

    /// Writes the buffered bytes if they fill a chunk. The caller must not hold an epoch guard.
    pub(crate) fn write_if_full(&mut self, disk: &dyn Disk) -> Result<()> {
        if self.chunk.len() >= WRITE_CHUNK_BYTES { self.write(disk) } else { Ok(()) }
    }

    /// Writes the buffered bytes.
    fn write(&mut self, disk: &dyn Disk) -> Result<()> {
        if self.chunk.is_empty() {
            return Ok(());
        }
        let path = self.path();
        let file = match self.file.take() {
            Some(file) => file,
            None => disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?,
        };
        self.file.insert(file).write_at(self.at, &self.chunk).during(IoOp::Write, &path)?;
        self.at += self.chunk.len() as u64;
        self.chunk.clear();
        Ok(())
    }

    /// Writes the rest, makes the content durable and opens the pack. Returns `None` if it has no
    /// value.
    pub(crate) fn finish(&mut self, disk: &dyn Disk) -> Result<Option<Pack>> {
        self.write(disk)?;
        let Some(file) = &self.file else { return Ok(None) };
        file.sync().during(IoOp::Sync, &self.path())?;
        Pack::open(disk, &self.dir, self.owner, self.number).map(Some)
    }
}
