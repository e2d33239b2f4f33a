//! # Export: a pinned state as a list of files
//!
//! Lists the files that a backup would copy: names, lengths, and locations of the bytes. A reader
//! with the list and the lease opens them as a disk ([`sheaf_platform::disk::exported`]) while the
//! owner continues.
//!
//! If an engine would create a file for a backup (the index of a FlexSpace), it creates the file
//! now, in the directory of images. No ROOT refers to it: it is removed with the exported state, or
//! by the next opening.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::directory::directories;
use crate::{PinnedState, Store};
use sheaf_engine::backup_files::{FileSource, PinnedFile, PinnedFiles};
use sheaf_engine::checkpoint_file;
use sheaf_engine::context::EngineDir;
use sheaf_log::double_slot::{slot_bytes, slot_name};
use sheaf_log::root::Root;
use sheaf_log::types::KeyspaceId;
use sheaf_platform::disk::exported::{ByteSource, ExportLease, ExportedExtent, ExportedItem};
use sheaf_platform::disk::{Disk, OpenMode};
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::random::random_bits;
use sheaf_platform::sync::Mutex;

/// Pinned state for attached readers. Dropping it releases the pins.
#[derive(Debug)]
pub struct ExportedState {
    store: Arc<Store>,
    /// Files that were created for it.
    created_files: Vec<PathBuf>,
    /// In a lock, because pins of engines need not be `Sync`; it is only dropped.
    #[expect(dead_code, reason = "held until the export ends")]
    pinned: Mutex<PinnedState>,
}

impl ExportLease for ExportedState {
    fn is_held(&self) -> bool {
        !self.store.health.is_closed() // closing releases the pins
    }
}

impl Drop for ExportedState {
    fn drop(&mut self) {
        if self.store.health.is_forked_child() {
            return; // the files belong to the parent
        }
        for path in &self.created_files {
            let _ = self.store.disk.remove(path); // if it stays, the next opening removes it
        }
    }
}

impl Store {
    /// Pins the present state and lists its files.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::pin_state`], and of creating or measuring a file.
    pub fn export_state(self: &Arc<Store>) -> Result<(ExportedState, Vec<ExportedItem>)> {
        let pinned = self.pin_state()?;
        let mut lister = ExportLister { store: self, items: Vec::new(), created_files: Vec::new() };
        let listed = lister.list(&pinned);
        let ExportLister { items, created_files: made, .. } = lister;
        let exported =
            ExportedState { store: Arc::clone(self), created_files: made, pinned: Mutex::new(pinned) };
        listed?;
        self.check_open()?;
        Ok((exported, items))
    }
}

struct ExportLister<'a> {
    store: &'a Store,
    items: Vec<ExportedItem>,
    created_files: Vec<PathBuf>,
}

impl ExportLister<'_> {
    fn list(&mut self, pinned: &PinnedState) -> Result<()> {
        self.items.extend(directories().map(|name| ExportedItem::Directory(name.into())));
        let root = pinned.root();
        for generation in [root.generation, root.generation + 1] {
            let bytes = slot_bytes(&Root { generation, ..root.clone() });
            self.add(
                slot_name::<Root>(generation).into(),
                0,
                0,
                bytes.len() as u64,
                ByteSource::Inline(bytes),
            );
        }
        for file in pinned.files() {
            let len = match file.len {
                Some(len) => len,
                None => match self.measure(&file.name) {
                    Err(error) if error.is_corrupt() && file.may_be_missing => continue,
                    len => len?,
                },
            };
            self.add(file.name.clone(), file.min_len, 0, len, ByteSource::File(file.name, 0));
        }
        pinned.engine_files().try_for_each(|(id, pinned_files)| self.list_engine_files(id, pinned_files))
    }

    fn add(&mut self, name: PathBuf, whole: u64, at: u64, len: u64, bytes: ByteSource) {
        self.items.push(ExportedItem::Extent(ExportedExtent {
            name,
            file_len: whole,
            offset: at,
            len,
            bytes,
        }));
    }

    /// Returns the length of a file that must exist.
    fn measure(&self, name: &Path) -> Result<u64> {
        let path = self.store.dir.join(name);
        match self.store.disk.open(&path, OpenMode::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::missing_file(&path, "file")),
            file => file.during(IoOp::Open, &path)?.len().during(IoOp::Measure, &path),
        }
    }

    /// Returns the path relative to the database's directory.
    fn relative_path(&self, path: &Path) -> Result<PathBuf> {
        let why = || format!("{} is outside the database", path.display());
        let below = path.strip_prefix(&self.store.dir).map(Path::to_path_buf);
        below.map_err(|_| Error::InvalidArgument { argument: "file of an engine", reason: why() })
    }

    fn list_engine_files(&mut self, id: KeyspaceId, pinned_files: &dyn PinnedFiles) -> Result<()> {
        let engine_dir = EngineDir::name_of(id);
        pinned_files.for_each(&mut |file: PinnedFile<'_>| {
            let name = engine_dir.join(&file.name);
            let (target, at, whole) = match file.part {
                Some(part) => (engine_dir.join(part.of), part.offset, part.len),
                None => (name.clone(), 0, 0),
            };
            match file.source {
                FileSource::Directory => self.items.push(ExportedItem::Directory(name)),
                FileSource::File { path, at: from, len } => {
                    let source = ByteSource::File(self.relative_path(&path)?, from);
                    self.add(target, whole, at, len, source);
                }
                FileSource::Bytes(bytes) => {
                    self.add(target, whole, at, bytes.len() as u64, ByteSource::Inline(bytes.to_vec()));
                }
                FileSource::WrittenBy(make) => {
                    let name = self.create_file(make)?;
                    let len = self.measure(&name)?;
                    self.add(target, whole, at, len, ByteSource::File(name, 0));
                }
            }
            Ok(())
        })
    }

    /// Creates a file with `make`.
    fn create_file(&mut self, make: &dyn Fn(&dyn Disk, PathBuf) -> Result<()>) -> Result<PathBuf> {
        let name = Path::new(checkpoint_file::IMAGE_DIR).join(format!("held-{:032x}", random_bits()));
        let path = self.store.dir.join(&name);
        self.created_files.push(path.clone());
        make(&*self.store.disk, path)?;
        Ok(name)
    }
}
