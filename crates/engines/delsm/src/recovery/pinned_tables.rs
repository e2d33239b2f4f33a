//! # Pinned tables: the files of one state of the keyspace
//!
//! A backup or an attached reader uses a pinned state while flushes, merges and moves continue.
//! These only create names and write new files; removals wait until the last pin is released
//! ([`MaintenanceState::pin_count`]). The files that the pinned version names therefore stay.
//!
//! ## Picture
//!
//! ```text
//!  version ──> lists, packs            under their names, which are never reused
//!          ──> values                  named in their tables' directories, read where they are now
//!          ──> KEYS.0 KEYS.1           manifest of these tables, all of them linked
//! ```
//!
//! On a file system without hard links a move removes the old name of a value, so a state cannot be
//! pinned. Pinning returns [`Error::Unsupported`] there.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf_engine::backup_files::{FileSource, PinnedFile, PinnedFiles};
use sheaf_log::blob::BlobRef;
use sheaf_log::double_slot::{DoubleSlotState, slot_bytes, slot_name};
use sheaf_platform::disk::OpenMode;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};

use crate::engine::{DelsmEngine, NAME};
use crate::files::file_names;
use crate::files::list::{BlobLocation, ValueRef};
use crate::files::manifest::{TableFlags, TableManifest};
use crate::maintenance::MaintenanceState;
use crate::recovery::open::pending_blobs_of;
use crate::tree::{Table, Version};

/// Name of a temporary link that tests for hard links.
const LINK_PROBE_NAME: &str = "KEYS.link";

/// Pinned state of the keyspace.
pub(crate) struct PinnedTables {
    engine: Arc<DelsmEngine>,
    version: Arc<Version>,
    /// Manifest of the state. `None` if none was written yet: the keyspace then has no tables, only
    /// memtables and their blobs.
    manifest: Option<TableManifest>,
    /// Blobs in the blob store that the tables of the version name.
    pending_blobs: HashSet<u64>,
}

impl DelsmEngine {
    pub(crate) fn pin_tables(self: Arc<Self>) -> Result<PinnedTables> {
        let mut work = self.work.lock();
        self.check_links(&work)?;
        let version = self.version();
        let mut pending_blobs = HashSet::new();
        for table in version.tables().filter(|table| !table.is_linked()) {
            pending_blobs.extend(pending_blobs_of(table)?);
        }
        let moved = |marks| TableFlags { files_linked: true, has_unlisted_files: false, ..marks };
        let manifest =
            work.manifest_slots.is_some().then(|| self.manifest_of(&work, &version, work.flushed_seq, moved));
        work.pin_count += 1;
        drop(work);
        Ok(PinnedTables { engine: self, version, manifest, pending_blobs })
    }

    /// Returns an error if the file system does not support hard links.
    fn check_links(&self, work: &MaintenanceState) -> Result<()> {
        let disk = self.disk()?;
        let [slot, probe] = [slot_name::<TableManifest>(work.generation), LINK_PROBE_NAME.to_owned()]
            .map(|n| self.keyspace.path.join(n));
        match disk.link(&slot, &probe) {
            Ok(()) => disk.remove(&probe).during(IoOp::Remove, &probe),
            Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists) => {
                disk.remove(&probe).during(IoOp::Remove, &probe)
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound) => Ok(()), // no manifest yet
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
                Err(Error::Unsupported {
                    engine: NAME,
                    feature: "backups and attached readers on a file system without hard links",
                })
            }
            Err(e) => Err(Error::io(IoOp::Link, &probe, e)),
        }
    }
}

impl PinnedTables {
    /// Returns the present path of a value.
    fn current_path(
        &self,
        table: &Table,
        key: &[u8],
        blob: &BlobRef,
        location: BlobLocation,
    ) -> Result<PathBuf> {
        let disk = self.engine.disk()?;
        let Some(source) = table.path_before_linking(key, blob, location).filter(|_| !table.is_linked())
        else {
            return Ok(table.linked_path(key, blob));
        };
        match disk.open(&source, OpenMode::Read) {
            Ok(_) => Ok(source),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(table.linked_path(key, blob)),
            Err(e) => Err(Error::io(IoOp::Open, &source, e)), // the place of the value is unknown
        }
    }

    /// Returns the description of a file that is written once.
    fn immutable_file(&self, path: PathBuf, name: &Path, len: u64) -> PinnedFile<'static> {
        let name = name.to_string_lossy().into_owned();
        PinnedFile { name, part: None, is_fixed: true, source: FileSource::File { path, at: 0, len } }
    }

    fn for_each_of_table(
        &self,
        table: &Table,
        each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>,
    ) -> Result<()> {
        each(PinnedFile::directory(file_names::dir_name(table.dir)))?;
        let list = file_names::list_name(table.list.number());
        each(self.immutable_file(
            self.engine.keyspace.path.join(&list),
            Path::new(&list),
            table.list.file_len()?,
        ))?;
        for block in 0..table.list.block_count() {
            for item in table.list.entries_of_block(block)? {
                if let ValueRef::File { blob, location } = item.value {
                    let name = Path::new(&file_names::dir_name(table.dir))
                        .join(file_names::value_name(&item.key, blob.id));
                    let place = self.current_path(table, &item.key, &blob, location)?;
                    each(self.immutable_file(place, &name, u64::from(blob.len)))?;
                }
            }
        }
        Ok(())
    }
}

impl PinnedFiles for PinnedTables {
    fn bytes(&self) -> u64 {
        let of_table = |table: &Arc<Table>| table.list.totals().file_bytes + table.list.bytes();
        self.version.tables().map(of_table).sum::<u64>()
            + self.version.packs.values().map(|pack| pack.len).sum::<u64>()
    }

    fn for_each(&self, each: &mut dyn FnMut(PinnedFile<'_>) -> Result<()>) -> Result<()> {
        for pack in self.version.packs.values() {
            let name = file_names::pack_name(pack.number);
            each(self.immutable_file(self.engine.keyspace.path.join(&name), Path::new(&name), pack.len))?;
        }
        self.version.tables().try_for_each(|table| self.for_each_of_table(table, each))?;
        for (manifest, more) in self.manifest.iter().flat_map(|manifest| [(manifest, 0), (manifest, 1)]) {
            let generation = manifest.generation() + more;
            let slot = slot_bytes(&TableManifest { generation, ..manifest.clone() });
            let name = slot_name::<TableManifest>(generation);
            each(PinnedFile { name, part: None, is_fixed: false, source: FileSource::Bytes(&slot) })?;
        }
        Ok(())
    }

    fn has_blob(&self, id: u64) -> bool {
        self.pending_blobs.contains(&id)
    }
}

impl Drop for PinnedTables {
    fn drop(&mut self) {
        let mut work = self.engine.work.lock();
        work.pin_count = work.pin_count.saturating_sub(1);
        if work.pin_count == 0 {
            work.recheck_garbage();
        }
    }
}
