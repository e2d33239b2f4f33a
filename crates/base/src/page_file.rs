//! # Paged: a file of pages of an engine's own
//!
//! For engines that keep an index on disk, in the keyspace's directory below
//! [`crate::engine_context::EngineDir`]. Which page holds what is theirs to know; here is what does
//! not depend on it: the head, opening, making, and reads that tell damage from a device that
//! fails.
//!
//! ```text
//!  page 0: magic 8 | format 4 | bytes of a page 4 | keyspace 4 | crc32c of these 4 | 0 ...
//!  page 1, 2 ...: the engine's
//! ```
//!
//! Little-endian.

use std::path::PathBuf;
use std::sync::Arc;

use crate::backup_files::{FilePrefix, PinnedFiles};
use crate::codec::FieldWriter;
use crate::disk::{File, OpenMode, create_dirs, mark_len_dirty, read_up_to_end};
use crate::engine_context::EngineContext;
use crate::error::{Damage, Error, IoContext, Result};
use crate::frame::u32_at;
use crate::types::KeyspaceId;

/// Bytes of the head that are summed.
const CHECKSUMMED_BYTES: usize = 20;

/// Where the file is, and what its head says.
#[derive(Debug)]
pub struct PageFile {
    /// The keyspace's directory.
    pub dir: PathBuf,
    /// The file.
    pub path: PathBuf,
    /// Bytes of a page.
    pub page: usize,
    magic: &'static [u8; 8],
    format: u32,
    context: Arc<EngineContext>,
    id: KeyspaceId,
}

impl PageFile {
    /// The file `name` of keyspace `id`.
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

    /// Where page `page` begins.
    #[must_use]
    pub fn offset(&self, page: u32) -> u64 {
        u64::from(page) * self.page as u64
    }

    /// The error for what stands on a page and cannot be.
    #[must_use]
    pub fn damage_error(&self, page: u32, what: Damage) -> Error {
        Error::corrupt(&self.path, self.offset(page), what)
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

    /// Whether `file` is this keyspace's, and of this format.
    pub fn check_head(&self, file: &dyn File) -> Result<()> {
        let damaged = |what| Err(self.damage_error(0, what));
        let expected = self.head();
        let mut got = vec![0; expected.len()];
        let len = file.len().during("measure", &self.path)?;
        if len < got.len() as u64 {
            return damaged(Damage::Truncated { got: len, expected: got.len() as u64 });
        }
        file.read_at(0, &mut got).during("read", &self.path)?;
        if got == expected {
            return Ok(());
        }
        if &got[..8] != self.magic {
            return damaged(Damage::BadMagic);
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
            return damaged(Damage::BadField { field: "bytes of a page", value: page.into() });
        }
        let (expected, got) = (u128::from(self.id.0), u128::from(u32_at(&got, 16)));
        damaged(Damage::Foreign { field: "keyspace", expected, got })
    }

    /// The file of an image that has pages below `end`; none if it has no page. A head that is
    /// damaged costs nothing, since pages are checked by what names them: [`PageFile::check_head`]
    /// reports it. One that is whole and says that the file is another is an error.
    pub fn open(&self, end: u32) -> Result<Option<Arc<dyn File>>> {
        let Some(engine_dir) = self.context.engine_dir.as_ref().filter(|_| end > 1) else { return Ok(None) };
        let open_mode = if engine_dir.read_only { OpenMode::Read } else { OpenMode::ReadWrite };
        let file = match engine_dir.disk.open(&self.path, open_mode) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                let what = Damage::Truncated { got: 0, expected: self.offset(end) };
                return Err(self.damage_error(0, what));
            }
            other => other.during("open", &self.path)?,
        };
        match self.check_head(&*file) {
            Err(Error::Corrupt { damage: Damage::BadMagic | Damage::BadChecksum { .. }, .. }) => {}
            checked => checked?,
        }
        let len = file.len().during("measure", &self.path)?;
        if len < self.offset(end) {
            let what = Damage::Truncated { got: len, expected: self.offset(end) };
            return Err(Error::corrupt(&self.path, len, what));
        }
        if !engine_dir.read_only {
            mark_len_dirty(&*file).during("extend", &self.path)?;
        }
        Ok(Some(file))
    }

    /// Makes the file of a keyspace whose image has no page. One that is there is of no use to
    /// anybody: both slots of ROOT name that image, as the store is open. It may be of a life that
    /// ended at a failed sync of the directory: then the kernel may have dropped its name, and
    /// takes it for durable ever after. So it is made anew.
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
                engine_dir.disk.remove(&self.path).during("remove", &self.path)?;
                engine_dir.disk.open(&self.path, OpenMode::Create).during("create", &self.path)?
            }
            other => other.during("create", &self.path)?,
        };
        file.write_at(0, &self.head()).during("write", &self.path)?;
        Ok(file)
    }

    /// The file that is open, or else is made now.
    pub fn open_or_create(&self, open: &mut Option<Arc<dyn File>>) -> Result<Arc<dyn File>> {
        if let Some(file) = open {
            return Ok(Arc::clone(file));
        }
        Ok(Arc::clone(open.insert(self.create()?)))
    }

    /// Makes what was written to the file durable, for the image that is to name it, and the file's
    /// name, unless it `is_named`. The errors say which of the two `ops` failed.
    pub fn sync(&self, file: &dyn File, is_named: bool, ops: [&'static str; 2]) -> Result<()> {
        if file.sync().is_err() {
            return Err(Error::Poisoned { op: ops[0] });
        }
        match self.context.engine_dir.as_ref().filter(|_| !is_named) {
            Some(engine_dir) if engine_dir.disk.sync_dir(&self.dir).is_err() => {
                Err(Error::Poisoned { op: ops[1] })
            }
            _ => Ok(()),
        }
    }

    /// The keyspace is dropped.
    pub fn remove(&self) {
        self.context.remove_dir_of(self.id);
    }

    /// The file up to its present length, for a backup. What an image names in it is not written
    /// while that copies it; what is between may be torn, and is free.
    pub fn pin_files(&self, file: Option<&dyn File>) -> Result<Option<Box<dyn PinnedFiles>>> {
        let Some(file) = file else { return Ok(None) };
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let len = file.len().during("measure", &self.path)?;
        Ok(Some(Box::new(FilePrefix { name, path: self.path.clone(), len })))
    }

    /// Reads from the start of a page on. An end of the file before is damage; a read that failed
    /// is none.
    pub fn read(&self, file: &dyn File, page: u32, bytes: &mut [u8]) -> Result<()> {
        let offset = self.offset(page);
        match read_up_to_end(file, offset, bytes).during("read", &self.path)? {
            None => Ok(()),
            Some(got) => {
                let expected = offset + bytes.len() as u64;
                Err(self.damage_error(page, Damage::Truncated { got, expected }))
            }
        }
    }
}
