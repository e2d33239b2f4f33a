//! # Restore: creation of a database from a backup
//!
//! ```text
//!  check BACKUP ─> lock target, create UNFINISHED ─> copy files, compare checksums ─> sync all
//!    ─> write ROOT ─> remove UNFINISHED ─> the database opens as after a crash at S
//! ```
//!
//! Files are copied and never linked, because the database writes to its files.

use std::path::Path;
use std::sync::Arc;

use super::manifest::{MANIFEST_FILE, Manifest, ManifestEntry, ManifestFile};
use super::output_tree::{FileRange, OutputTree, open};
use super::{BackupPhase, BackupReport, MIN_INCARNATION_DISTANCE, ProgressFn, ProgressMeter};
use crate::backup::output_dir::OutputDir;
use crate::directory::{check_outside, directories};
use sheaf_log::root::{Root, RootSlots};
use sheaf_log::types::Incarnation;
use sheaf_platform::disk::{Disk, Permissions};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};
use sheaf_platform::random::random_bits;

/// Upper bound of the random part of the distance between the incarnations, in addition to
/// [`MIN_INCARNATION_DISTANCE`].
const MAX_INCARNATION_DISTANCE: u128 = 1 << 40;

/// Restores the backup in `from` into `to`. The directory `to` must not exist, or must be empty
/// except for an unused lock file. Without `permissions` the new files are accessible only to users
/// that can access the backup.
///
/// # Errors
///
/// In each case the created files are removed. Returns
///
/// - [`Error::NotABackup`] if `from` contains no complete backup, [`Error::Corrupt`] if a file of
///   it is damaged or missing, [`Error::UnsupportedVersion`] if its format is newer;
/// - [`Error::InvalidArgument`] if `to` is not empty or inside `from`, or `permissions` are not
///   valid,
///   [`Error::Locked`] if `to` is in use;
/// - [`Error::NotADatabase`] if `to` contains an unfinished restore or repair;
/// - [`Error::NoSpace`] if the disk is too small, [`Error::Cancelled`] if `watcher` cancels,
///   [`Error::Io`] if a system call fails.
pub fn restore(
    disk: &Arc<dyn Disk>,
    from: &Path,
    to: &Path,
    permissions: Option<Permissions>,
    watcher: Option<&mut ProgressFn<'_>>,
) -> Result<BackupReport> {
    permissions.map_or(Ok(()), Permissions::check)?;
    check_outside(to, from, &"the backup")?;
    let permissions = permissions.or_else(|| Permissions::of_copy(&**disk, from, &[MANIFEST_FILE]));
    let disk = &permissions.unwrap_or_default().on(Arc::clone(disk));
    let manifest = Manifest::open(&**disk, from)?;
    let mut tree = OutputTree::new(&**disk, OutputDir::claim_for_database(&**disk, to)?);
    let mut forward = watcher.map(|watcher| move |progress| watcher(progress));
    let watcher: Option<&mut ProgressFn<'_>> = forward.as_mut().map(|forward| forward as &mut ProgressFn<'_>);
    let mut meter = ProgressMeter::new(watcher, None);
    restore_files(disk, from, to, &manifest, &mut tree, &mut meter)?;
    tree.finish()?;
    let seq = manifest.root.floor.0;
    Ok(BackupReport { seq, files: manifest.files, copied_bytes: manifest.bytes, linked_bytes: 0 })
}

fn restore_files(
    disk: &Arc<dyn Disk>,
    from: &Path,
    to: &Path,
    manifest: &Manifest,
    tree: &mut OutputTree<'_>,
    meter: &mut ProgressMeter<'_>,
) -> Result<()> {
    if disk.free_space(to).during(IoOp::Measure, to)? < manifest.bytes {
        return Err(Error::NoSpace { path: to.to_path_buf() });
    }
    directories().try_for_each(|name| tree.create_dir(Path::new(name)))?;
    meter.begin(BackupPhase::Copying, manifest.bytes)?;
    manifest.for_each(|entry| match entry {
        ManifestEntry::Directory(name) => tree.create_dir(&name),
        ManifestEntry::File(file) => restore_file(&**disk, from, &file, tree, meter),
    })?;
    tree.sync_all()?;
    tree.begin_database();
    let away = u64::try_from(random_bits() % MAX_INCARNATION_DISTANCE).unwrap_or(0);
    let incarnation =
        Incarnation(manifest.root.incarnation.0.saturating_add(MIN_INCARNATION_DISTANCE + away));
    RootSlots::new(Arc::clone(disk), to).create(&Root { incarnation, ..manifest.root.clone() })
}

/// Copies a file, or a part of one, to its place in the database.
pub(super) fn restore_file(
    disk: &dyn Disk,
    from: &Path,
    stored: &ManifestFile,
    tree: &mut OutputTree<'_>,
    meter: &mut ProgressMeter<'_>,
) -> Result<()> {
    let path = from.join(&stored.name);
    let source = open(disk, &path)?;
    let (file, place) = tree.open_file(&stored.database_name)?;
    let range = FileRange { file: &*source, path: &path, offset: 0, len: stored.len };
    let got = tree.copy_range(
        &range,
        &FileRange { file: &*file, path: &place, offset: stored.offset, len: stored.database_len() },
        meter,
    )?;
    if got != stored.checksum {
        let what = Damage::BadChecksum { expected: stored.checksum, got };
        return Err(Error::corrupt(&path, 0, "file of a backup", what));
    }
    let len = source.len().during(IoOp::Measure, &path)?;
    if len != stored.len {
        let what = Damage::BadLength { got: len, max: stored.len };
        return Err(Error::corrupt(&path, stored.len, "file of a backup", what));
    }
    Ok(())
}
