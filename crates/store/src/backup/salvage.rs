//! # Salvage: the readable part of a damaged backup
//!
//! A repair of a backup works on a copy with the places that the files have in a database. Unlike a
//! restore, the copy continues behind damage, and it gets no ROOT: no process can open it. It
//! exists only during the repair.

use std::path::Path;

use super::manifest::{Manifest, ManifestEntry, ManifestFile};
use super::output_tree::OutputTree;
use super::restore::restore_file;
use super::{BackupPhase, ProgressFn, ProgressMeter};
use crate::backup::output_dir::OutputDir;
use crate::directory::directories;
use sheaf_log::root::Root;
use sheaf_platform::disk::{Disk, OpenMode, PAGE};
use sheaf_platform::error::{Error, IoContext, IoOp, Result};

/// Copy of the readable part of a backup. Dropping it removes the files.
pub(crate) struct SalvagedBackup<'a> {
    /// ROOT of the database when it was backed up.
    pub(crate) root: Root,
    #[expect(dead_code, reason = "removes the files when it is dropped")]
    tree: OutputTree<'a>,
}

/// Copies the readable part of the backup in `from` to `to`, which must not exist. Calls
/// `on_damage` with the error of each file that a restore refuses; it returns errors that are no
/// damage. Returns `None` if the list of files
/// in the backup cannot be read: then the places of its files are unknown.
///
/// # Errors
///
/// Returns [`Error::UnsupportedVersion`] if the format of the backup is newer, [`Error::NoSpace`]
/// if the disk is too small, [`Error::Cancelled`] if `watcher` cancels, and errors of writing to
/// `to`.
pub(crate) fn salvage<'a>(
    disk: &'a dyn Disk,
    from: &Path,
    to: &Path,
    on_damage: &mut dyn FnMut(Error) -> Result<()>,
    watcher: &mut ProgressFn<'_>,
) -> Result<Option<SalvagedBackup<'a>>> {
    let manifest = match Manifest::open(disk, from) {
        Err(error @ (Error::Corrupt { .. } | Error::NotABackup { .. })) => {
            on_damage(error)?;
            return Ok(None);
        }
        other => other?,
    };
    let mut tree = OutputTree::new(disk, OutputDir::claim_for_database(disk, to)?);
    if disk.free_space(to).during(IoOp::Measure, to)? < manifest.bytes {
        return Err(Error::NoSpace { path: to.to_path_buf() });
    }
    directories().try_for_each(|name| tree.create_dir(Path::new(name)))?;
    let mut forward = |progress| watcher(progress);
    let mut meter = ProgressMeter::new(Some(&mut forward), None);
    meter.begin(BackupPhase::Copying, manifest.bytes)?;
    manifest.for_each(|entry| match entry {
        ManifestEntry::Directory(name) => tree.create_dir(&name),
        ManifestEntry::File(file) => salvage_file(disk, from, &file, &mut tree, &mut meter, on_damage),
    })?;
    Ok(Some(SalvagedBackup { root: manifest.root, tree }))
}

/// Restores a file. If that fails, copies the pages that can be read, and calls `on_damage`.
fn salvage_file(
    disk: &dyn Disk,
    from: &Path,
    stored: &ManifestFile,
    tree: &mut OutputTree<'_>,
    meter: &mut ProgressMeter<'_>,
    on_damage: &mut dyn FnMut(Error) -> Result<()>,
) -> Result<()> {
    let Err(error) = restore_file(disk, from, stored, tree, meter) else { return Ok(()) };
    on_damage(error)?;
    let Ok(source) = disk.open(&from.join(&stored.name), OpenMode::Read) else { return Ok(()) };
    let (file, place) = tree.open_file(&stored.database_name)?;
    let readable = stored.len.min(source.len().unwrap_or(0));
    let mut page = [0; PAGE];
    let mut at = 0;
    while at < readable {
        let len = usize::try_from(readable - at).map_or(PAGE, |left| left.min(PAGE));
        let bytes = &mut page[..len];
        if source.read_at(at, bytes).is_ok() && bytes.iter().any(|byte| *byte != 0) {
            file.write_at(stored.offset + at, bytes).during(IoOp::Write, &place)?;
        }
        meter.add_bytes(len as u64)?;
        at += len as u64;
    }
    if file.len().during(IoOp::Measure, &place)? < stored.database_len() {
        file.set_len(stored.database_len()).during(IoOp::Extend, &place)?;
    }
    Ok(())
}
