//! # Page file: a file of pages that belongs to an engine
//!
//! For engines that keep an index on disk, in the directory of the keyspace below
//! [`crate::context::EngineDir`]. The engine decides about the content of the pages. This
//! module has the common part: the head, opening, creation, and reads that distinguish damage from
//! a failing device.
//!
//! ```text
//!  page 0: magic 8 | format 4 | page size 4 | keyspace 4 | crc32c of these 4 | 0 ...
//!  page 1, 2 ...: content of the engine
//! ```
//!
//! Little-endian.

use sheaf_platform::error::{Damage, Error, IoContext, IoOp, PoisonCause, Result};
use std::path::PathBuf;
use std::sync::Arc;

use crate::backup_files::{FilePrefix, PinnedFiles};
use crate::context::EngineContext;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::codec::{FieldWriter, u32_at};
use sheaf_platform::disk::{File, OpenMode, create_dirs, mark_len_dirty, read_up_to_end};

/// Bytes of the head that its checksum covers.
const CHECKSUMMED_BYTES: usize = 20;

/// Location of the file, and the expected content of its head.
#[derive(Debug)]
pub struct PageFile {
    /// Directory of the keyspace.
    pub dir: PathBuf,
    /// Path of the file.
    pub path: PathBuf,
    /// Size of a page in bytes.
    pub page: usize,
    magic: &'static [u8; 8],
    format: u32,
    context: Arc<EngineContext>,
    id: KeyspaceId,
}

impl PageFile {
    /// Describes the file `name` of keyspace `id`.
    #[must_use]
    pub fn new(
        context: Arc<EngineContext>,
        id: KeyspaceId,
        name: &str,
        (magic, format): (&'static [u8; 8], u32),
        page: usize,
    ) -> PageFile {
        let dir = context.dir_of(id);
        PageFile { path: dir.join(name), dir, page, magic, format, context, id }
    }

    /// Returns the offset of page `page`.
    #[must_use]
    pub fn offset(&self, page: u32) -> u64 {
        u64::from(page) * self.page as u64
    }

    /// Returns an error for damage on a page.
    #[must_use]
    pub fn damage_error(&self, page: u32, what: Damage) -> Error {
        Error::corrupt(&self.path, self.offset(page), "page", what)
    }

    fn head(&self) -> Vec<u8> {
        let mut w = FieldWriter::default();
        w.0.extend_from_slice(self.magic);
        w.u32(self.format);
        w.u32(u32::try_from(self.page).unwrap_or(u32::MAX));
        w.u32(self.id.0);
        let sum = crc32c::crc32c(&w.0);
        w.u32(sum);
        w.0
    }

    /// Checks that `file` belongs to this keyspace and has this format.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the head is damaged or that of another file, and
    /// [`Error::UnsupportedVersion`] if it has another format. Returns [`Error::Io`] if the file
    /// cannot be read.
    pub fn check_head(&self, file: &dyn File) -> Result<()> {
        let damaged = |what| Err(Error::corrupt(&self.path, 0, "header of a page file", what));
        let expected = self.head();
        let mut got = vec![0; expected.len()];
        let len = file.len().during(IoOp::Measure, &self.path)?;
        if len < got.len() as u64 {
            return damaged(Damage::Truncated { got: len, expected: got.len() as u64 });
        }
        file.read_at(0, &mut got).during(IoOp::Read, &self.path)?;
        if got == expected {
            return Ok(());
        }
        if &got[..8] != self.magic {
            return damaged(Damage::bad_magic(self.magic, &got));
        }
        let (expected_sum, got_sum) =
            (u32_at(&got, CHECKSUMMED_BYTES), crc32c::crc32c(&got[..CHECKSUMMED_BYTES]));
        if expected_sum != got_sum {
            return damaged(Damage::BadChecksum { expected: expected_sum, got: got_sum });
        }
        if u32_at(&got, 8) != self.format {
            let (path, found, supported) = (self.path.clone(), u32_at(&got, 8), self.format);
            return Err(Error::UnsupportedVersion { path, found, supported });
        }
        let page = u32_at(&got, 12);
        if u32_at(&expected, 12) != page {
            let expected = u64::from(u32_at(&expected, 12));
            return damaged(Damage::bad_field("bytes of a page", expected, page.into()));
        }
        let (expected, got) = (u128::from(self.id.0), u128::from(u32_at(&got, 16)));
        damaged(Damage::Foreign { field: "keyspace", expected, got })
    }

    /// Opens the file of an image that has pages below `end`. Returns `None` if the image has no
    /// page. A damaged head is ignored, since the references to pages contain their checksums;
    /// [`PageFile::check_head`] reports it. A valid head of another file is an error.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the file is missing, too short, or has the head of another
    /// file. Returns [`Error::UnsupportedVersion`] if it has another format, and [`Error::Io`] if
    /// it cannot be opened or read.
    pub fn open(&self, end: u32) -> Result<Option<Arc<dyn File>>> {
        let Some(engine_dir) = self.context.engine_dir.as_ref().filter(|_| end > 1) else { return Ok(None) };
        let open_mode = if engine_dir.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        let file = match engine_dir.disk.open(&self.path, open_mode) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let what = Damage::Truncated { got: 0, expected: self.offset(end) };
                return Err(self.damage_error(0, what));
            }
            other => other.during(IoOp::Open, &self.path)?,
        };
        match self.check_head(&*file) {
            Err(Error::Corrupt { damage, .. })
                if matches!(*damage, Damage::BadMagic { .. } | Damage::BadChecksum { .. }) => {}
            checked => checked?,
        }
        let len = file.len().during(IoOp::Measure, &self.path)?;
        if len < self.offset(end) {
            let what = Damage::Truncated { got: len, expected: self.offset(end) };
            return Err(Error::corrupt(&self.path, len, "page", what));
        }
        if !engine_dir.read_only {
            mark_len_dirty(&*file).during(IoOp::Extend, &self.path)?;
        }
        Ok(Some(file))
    }

    /// Creates the file of a keyspace with an image without pages. An existing file is not needed:
    /// the store is open, so both slots of ROOT refer to that image. Its name may have been lost in
    /// a failed sync of the directory by an earlier process, although the kernel treats the name as
    /// durable. Therefore the file is removed and created again.
    fn create(&self) -> Result<Arc<dyn File>> {
        let Some(engine_dir) = &self.context.engine_dir else {
            return Err(Error::InvalidArgument {
                argument: "engine",
                reason: "it has no directory for its files".into(),
            });
        };
        create_dirs(&*engine_dir.disk, &self.dir)?;
        let file = match engine_dir.disk.open(&self.path, OpenMode::Create) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                engine_dir.disk.remove(&self.path).during(IoOp::Remove, &self.path)?;
                engine_dir.disk.open(&self.path, OpenMode::Create).during(IoOp::Create, &self.path)?
            }
            other => other.during(IoOp::Create, &self.path)?,
        };
        file.write_at(0, &self.head()).during(IoOp::Write, &self.path)?;
        Ok(file)
    }

    /// Returns the open file, or creates it.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] or [`Error::NoSpace`] if the file cannot be created or written, and
    /// [`Error::InvalidArgument`] if the engine has no directory.
    pub fn open_or_create(&self, open: &mut Option<Arc<dyn File>>) -> Result<Arc<dyn File>> {
        if let Some(file) = open {
            return Ok(Arc::clone(file));
        }
        Ok(Arc::clone(open.insert(self.create()?)))
    }

    /// Makes the content of the file durable, and its name unless it `is_named`. Must be called
    /// before an image that refers to the content is written.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Poisoned`] if the sync of the file or of its directory fails.
    pub fn sync(&self, file: &dyn File, is_named: bool) -> Result<()> {
        let unnamed = self.context.engine_dir.as_ref().filter(|_| !is_named);
        let synced = file
            .sync()
            .and_then(|()| unnamed.map_or(Ok(()), |engine_dir| engine_dir.disk.sync_dir(&self.dir)));
        synced.map_err(|_| Error::Poisoned { cause: PoisonCause::Sync })
    }

    /// Removes the directory of the keyspace after it was dropped.
    pub fn remove(&self) {
        self.context.remove_dir_of(self.id);
    }

    /// Returns the file up to its present length, for a backup. Pages that an image refers to are
    /// not written during the copy. Other pages may be torn, but they are free.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Io`] if the length cannot be read.
    pub fn pin_files(&self, file: Option<&dyn File>) -> Result<Option<Box<dyn PinnedFiles>>> {
        let Some(file) = file else { return Ok(None) };
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let len = file.len().during(IoOp::Measure, &self.path)?;
        Ok(Some(Box::new(FilePrefix { name, path: self.path.clone(), len })))
    }

    /// Reads from the start of a page on.
    ///
    /// # Errors
    ///
    /// Returns [`Error::Corrupt`] if the file is too short, and [`Error::Io`] if the read fails.
    pub fn read(&self, file: &dyn File, page: u32, bytes: &mut [u8]) -> Result<()> {
        let offset = self.offset(page);
        match read_up_to_end(file, offset, bytes).during(IoOp::Read, &self.path)? {
            None => Ok(()),
            Some(got) => {
                let expected = offset + bytes.len() as u64;
                Err(self.damage_error(page, Damage::Truncated { got, expected }))
            }
        }
    }
}
