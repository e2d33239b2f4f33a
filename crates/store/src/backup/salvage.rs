//! # Salvage: the readable part of a damaged backup
//!
//! A repair of a backup works on a copy with the places that the files have in a database. Unlike a
//! restore, the copy continues behind damage, and it gets no ROOT: no process can open it. It
//! exists only during the repair.

use std::path::Path;

use super::manifest::{Manifest, ManifestEntry, ManifestFile};
use super::output_tree::{OutputTree, open};
use super::{BackupPhase, COPY_CHUNK, ProgressFn, ProgressMeter};
use crate::backup::output_dir::OutputDir;
use crate::directory::directories;
use sheaf_log::root::Root;
use sheaf_platform::disk::{Disk, File, OpenMode, PAGE};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

/// Copy of the readable part of a backup. Dropping it removes the files.
pub(crate) struct SalvagedBackup<'a> {
    /// ROOT of the database when it was backed up.
    pub(crate) root: Root,
    #[expect(dead_code, reason = "removes the files when it is dropped")]
    tree: OutputTree<'a>,
}

/// Copies the readable part of the backup in `from` to `to`, which must not exist. Calls
/// `on_damage` with the error of each damaged or missing file. Returns `None` if the list of files
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
    on_damage: &mut dyn FnMut(Error),
    watcher: &mut ProgressFn<'_>,
) -> Result<Option<SalvagedBackup<'a>>> {
    let manifest = match Manifest::open(disk, from) {
        Err(error @ (Error::Corrupt { .. } | Error::NotABackup { .. })) => {
            on_damage(error);
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

/// Copies the readable bytes of a file to their place in the database.
fn salvage_file(
    disk: &dyn Disk,
    from: &Path,
    stored: &ManifestFile,
    tree: &mut OutputTree<'_>,
    meter: &mut ProgressMeter<'_>,
    on_damage: &mut dyn FnMut(Error),
) -> Result<()> {
    let path = from.join(&stored.name);
    let source = match open(disk, &path) {
        Ok(source) => source,
        Err(error) => {
            on_damage(error);
            return Ok(());
        }
    };
    let place = tree.create_parent(&stored.database_name)?;
    let file = match disk.open(&place, OpenMode::Create) {
        // An earlier entry, a part of the same file, has created it.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => disk.open(&place, OpenMode::ReadWrite),
        other => other,
    };
    let file = file.during(IoOp::Create, &place)?;
    let whole = stored.min_len.max(stored.offset + stored.len);
    if file.len().during(IoOp::Measure, &place)? < whole {
        file.set_len(whole).during(IoOp::Extend, &place)?;
    }
    let got = source.len().during(IoOp::Measure, &path)?;
    if got < stored.len {
        let what = Damage::Truncated { got, expected: stored.len };
        on_damage(Error::corrupt(&path, got, "file of a backup", what));
    }
    let (mut at, mut checksum, mut buffer) = (0, Some(0), vec![0; COPY_CHUNK]);
    while at < stored.len.min(got) {
        let len = usize::try_from(stored.len.min(got) - at).map_or(COPY_CHUNK, |left| left.min(COPY_CHUNK));
        let bytes = &mut buffer[..len];
        checksum = match source.read_at(at, bytes) {
            Ok(()) => checksum.map(|checksum| crc32c::crc32c_append(checksum, bytes)),
            Err(error) => {
                on_damage(Error::io(IoOp::Read, &path, error));
                read_pages(&*source, at, bytes);
                None
            }
        };
        file.write_at(stored.offset + at, bytes).during(IoOp::Write, &place)?;
        meter.add_bytes(len as u64)?;
        at += len as u64;
    }
    if let Some(got) = checksum.filter(|sum| got >= stored.len && *sum != stored.checksum) {
        let what = Damage::BadChecksum { expected: stored.checksum, got };
        on_damage(Error::corrupt(&path, 0, "file of a backup", what));
    }
    Ok(())
}

/// Reads each page for itself. Pages that cannot be read get zeros.
fn read_pages(file: &dyn File, from: u64, bytes: &mut [u8]) {
    for (number, page) in bytes.chunks_mut(PAGE).enumerate() {
        if file.read_at(from + (number * PAGE) as u64, page).is_err() {
            page.fill(0);
        }
    }
}
