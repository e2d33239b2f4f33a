//! # Copy: the files of a pinned state in a new directory
//!
//! No lock is held: the pinned state keeps the files unchanged. If the base has a file with the
//! same fixed name and the same bytes, that file is hard-linked. The source is read in any case, so
//! that an old copy does not hide damage of the source.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{
    MANIFEST_FILE, MANIFEST_TEMP_FILE, Manifest, ManifestEntry, ManifestFile, ManifestWriter,
};
use super::output_tree::{FileRange, OutputTree, open};
use super::pace::BackupPacer;
use super::{BackupOptions, BackupPhase, BackupReport, MIN_INCARNATION_DISTANCE, ProgressMeter};
use crate::backup::output_dir::OutputDir;
use crate::directory::check_outside;
use crate::{PinnedState, Store};
use sheaf_engine::backup_files::{FileSource, PinnedFile, PinnedFiles};
use sheaf_engine::context::EngineDir;
use sheaf_log::root::RootSlots;
use sheaf_platform::disk::{Disk, File, OpenMode, Permissions};
use sheaf_platform::error::{Damage, Error, IoContext, IoOp, Result};

/// Earlier backup. Its files may be linked.
struct BaseBackup {
    dir: PathBuf,
    /// Length and checksum of the files with fixed names.
    immutable_files: HashMap<PathBuf, (u64, u32)>,
}

/// File that is to be copied.
struct CopyRequest {
    name: PathBuf,
    source_name: PathBuf,
    offset: u64,
    min_len: u64,
    is_immutable: bool,
}

/// State of a running copy.
struct BackupCopier<'a, 'w> {
    disk: &'a dyn Disk,
    /// Modes of the new files, and the widest modes that a linked file may have.
    permissions: Permissions,
    store: &'a Store,
    tree: OutputTree<'a>,
    manifest: ManifestWriter,
    base: Option<BaseBackup>,
    meter: ProgressMeter<'w>,
    report: BackupReport,
}

/// Backs up the present state into `dir`.
pub(crate) fn back_up(store: &Arc<Store>, dir: &Path, options: BackupOptions<'_>) -> Result<BackupReport> {
    let permissions = Permissions::of_copy(store.disk(), store.path(), &RootSlots::NAMES).unwrap_or_default();
    let permitted = store.disk().with_permissions(permissions);
    let disk = permitted.as_deref().unwrap_or(store.disk());
    check_outside(dir, store.path(), &"the database")?;
    let BackupOptions { base, verify, rate: pace, progress: watcher } = options;
    let base = base.map(|base| BaseBackup::open(disk, &base, store)).transpose()?;
    let pinned = store.pin_state()?;
    let (target, file) = OutputDir::claim_by_file(disk, dir, MANIFEST_TEMP_FILE)?;
    let manifest = ManifestWriter::new(file, dir, pinned.root());
    let tree = OutputTree::new(disk, target);
    let meter = ProgressMeter::new(watcher, Some(BackupPacer::new(store, pace)));
    let report = BackupReport { seq: pinned.seq().0, ..BackupReport::default() };
    let mut copier = BackupCopier { disk, permissions, store, tree, manifest, base, meter, report };
    let copied = copier.copy(&pinned);
    drop(pinned);
    let BackupCopier { tree, manifest, meter, report, .. } = copier;
    let mut ending = BackupFinisher { disk, dir, tree, meter };
    copied.and_then(|()| ending.finish(manifest, verify))?;
    ending.tree.finish()?;
    Ok(report)
}

impl BaseBackup {
    fn open(disk: &dyn Disk, dir: &Path, store: &Store) -> Result<BaseBackup> {
        let manifest = Manifest::open(disk, dir)?;
        let (theirs, ours) = (&manifest.root, store.root_template());
        let openings = ours.incarnation.0.checked_sub(theirs.incarnation.0);
        let why = match theirs.store == ours.store {
            false => Some("is a backup of another database"),
            true if openings.is_none_or(|openings| openings >= MIN_INCARNATION_DISTANCE) => {
                Some("was made before this database was restored, or from another copy of it")
            }
            true => None,
        };
        if let Some(why) = why {
            return Err(Error::InvalidArgument {
                argument: "base",
                reason: format!("{} {why}", dir.display()),
            });
        }
        let mut fixed = HashMap::new();
        manifest.for_each(|entry| {
            if let ManifestEntry::File(ManifestFile {
                name, len, checksum: sum, is_immutable: true, ..
            }) = entry
            {
                fixed.insert(name, (len, sum));
            }
            Ok(())
        })?;
        Ok(BaseBackup { dir: dir.to_path_buf(), immutable_files: fixed })
    }
}

impl BackupCopier<'_, '_> {
    fn copy(&mut self, pinned: &PinnedState) -> Result<()> {
        let mut total: u64 = pinned.engine_files().map(|(_, pinned_files)| pinned_files.bytes()).sum();
        for file in pinned.files() {
            total += file.len.unwrap_or_else(|| self.measure(&file.name));
        }
        self.check_free_space(total)?;
        self.meter.begin(BackupPhase::Copying, total)?;
        for file in pinned.files() {
            let request = CopyRequest {
                source_name: file.name.clone(),
                name: file.name,
                offset: 0,
                min_len: file.min_len,
                is_immutable: file.is_immutable,
            };
            let path = self.store.path().join(&request.name);
            match open(self.disk, &path) {
                Err(error) if error.is_corrupt() && file.may_be_missing => {}
                source => self.copy_file(request, &*source?, &path, 0, file.len)?,
            }
        }
        for (id, pinned_files) in pinned.engine_files() {
            self.add_engine_files(&EngineDir::name_of(id), pinned_files)?;
        }
        // last: closing the database releases the pins, and files may have changed
        self.store.check_open()
    }

    /// Returns the length of a file, or 0 if it is not known.
    fn measure(&self, name: &Path) -> u64 {
        let file = self.disk.open(&self.store.path().join(name), OpenMode::Read);
        file.and_then(|file| file.len()).unwrap_or(0)
    }

    /// Refuses a backup that does not fit: the database may be on the same disk. With a base the
    /// number of bytes to copy is not known in advance, so nothing is checked.
    fn check_free_space(&self, bytes: u64) -> Result<()> {
        let root = self.tree.root();
        if self.base.is_none() && self.disk.free_space(root).during(IoOp::Measure, root)? < bytes {
            return Err(Error::NoSpace { path: root.to_path_buf() });
        }
        Ok(())
    }

    fn add_engine_files(&mut self, engine_dir: &Path, pinned_files: &dyn PinnedFiles) -> Result<()> {
        pinned_files.for_each(&mut |file: PinnedFile<'_>| {
            let name = engine_dir.join(&file.name);
            let (target, at, whole) = match file.part {
                Some(part) => (engine_dir.join(part.of), part.offset, part.len),
                None => (name.clone(), 0, 0),
            };
            let request = CopyRequest {
                name,
                source_name: target,
                offset: at,
                min_len: whole,
                is_immutable: file.is_fixed,
            };
            match file.source {
                FileSource::Directory => self.manifest.add(&ManifestEntry::Directory(request.name)),
                FileSource::File { path, at, len } => {
                    self.copy_file(request, &*open(self.disk, &path)?, &path, at, Some(len))
                }
                FileSource::Bytes(bytes) => self.add_written_file(request, &|disk, path| {
                    let file = disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?;
                    file.write_at(0, bytes).during(IoOp::Write, &path)
                }),
                FileSource::WrittenBy(make) => self.add_written_file(request, make),
            }
        })
    }

    /// Copies, or links, `len` bytes at offset `at` of `source`.
    fn copy_file(
        &mut self,
        request: CopyRequest,
        source: &dyn File,
        path: &Path,
        at: u64,
        len: Option<u64>,
    ) -> Result<()> {
        self.store.check_open()?;
        let len = match len {
            Some(len) => len,
            None => source.len().during(IoOp::Measure, path)?,
        };
        let from = FileRange { file: source, path, offset: at, len };
        if let Some(sum) = self.link_from_base(&request, &from)? {
            self.report.linked_bytes += len;
            return self.add_entry(request, len, sum);
        }
        let copy = self.tree.create_parent(&request.name)?;
        let file = self.disk.open(&copy, OpenMode::Create).during(IoOp::Create, &copy)?;
        self.tree.note_created(&request.name);
        let sum = self.tree.copy_range(
            &from,
            &FileRange { file: &*file, path: &copy, offset: 0, len },
            &mut self.meter,
        )?;
        self.report.copied_bytes += len;
        self.add_entry(request, len, sum)
    }

    /// Links the base's file if it has the same name and content, and returns the checksum. Returns
    /// `None` if there is no such file or it cannot be linked.
    fn link_from_base(&mut self, request: &CopyRequest, from: &FileRange<'_>) -> Result<Option<u32>> {
        let Some(base) = self.base.as_ref().filter(|_| request.is_immutable) else { return Ok(None) };
        let Some((_, expected)) =
            base.immutable_files.get(&request.name).copied().filter(|(len, _)| *len == from.len)
        else {
            return Ok(None);
        };
        let earlier = base.dir.join(&request.name);
        if self.disk.mode(&earlier).is_some_and(|mode| mode & 0o777 & !self.permissions.files() != 0) {
            return Ok(None); // a link shares the mode, which permits more users than the copy may
        }
        let done = self.meter.done;
        let sum = self.tree.checksum(from, &mut self.meter)?;
        if sum == expected && self.disk.link(&earlier, &self.tree.create_parent(&request.name)?).is_ok() {
            self.tree.note_created(&request.name);
            return Ok(Some(sum));
        }
        self.meter.done = done; // the file is copied instead, and counted then
        Ok(None)
    }

    /// Creates a file with `make` and computes its checksum.
    fn add_written_file(
        &mut self,
        request: CopyRequest,
        make: &dyn Fn(&dyn Disk, PathBuf) -> Result<()>,
    ) -> Result<()> {
        self.store.check_open()?;
        let path = self.tree.create_parent(&request.name)?;
        make(self.disk, path.clone())?;
        self.tree.note_created(&request.name);
        let file = open(self.disk, &path)?;
        let len = file.len().during(IoOp::Measure, &path)?;
        let sum =
            self.tree.checksum(&FileRange { file: &*file, path: &path, offset: 0, len }, &mut self.meter)?;
        self.tree.finish_file(&*file, &path)?;
        self.report.copied_bytes += len;
        self.add_entry(request, len, sum)
    }

    fn add_entry(&mut self, request: CopyRequest, len: u64, sum: u32) -> Result<()> {
        let CopyRequest { name, source_name: target, offset: at, min_len: whole, is_immutable: is_fixed } =
            request;
        self.report.files += 1;
        self.manifest.add(&ManifestEntry::File(ManifestFile {
            name,
            database_name: target,
            offset: at,
            min_len: whole,
            len,
            checksum: sum,
            is_immutable: is_fixed,
        }))
    }
}

/// Completes a copy: manifest, sync, verification and final name.
struct BackupFinisher<'a, 'w> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    tree: OutputTree<'a>,
    meter: ProgressMeter<'w>,
}

impl BackupFinisher<'_, '_> {
    fn finish(&mut self, manifest: ManifestWriter, verify: bool) -> Result<()> {
        manifest.finish()?;
        self.tree.sync_all()?;
        if verify {
            self.verify()?;
        }
        let (temp_path, name) = (self.dir.join(MANIFEST_TEMP_FILE), self.dir.join(MANIFEST_FILE));
        self.disk.rename(&temp_path, &name).during(IoOp::Rename, &temp_path)?;
        self.tree.note_created(Path::new(MANIFEST_FILE));
        self.disk.sync_dir(self.dir).during(IoOp::SyncDirectory, self.dir)
    }

    /// Reads the copy back, from the device if its cached pages can be dropped.
    fn verify(&mut self) -> Result<()> {
        let manifest = Manifest::open_unfinished(self.disk, self.dir)?;
        self.meter.begin(BackupPhase::Verifying, manifest.bytes)?;
        manifest.for_each(|entry| {
            let ManifestEntry::File(ManifestFile { name, len, checksum: sum, .. }) = entry else {
                return Ok(());
            };
            let path = self.dir.join(name);
            let file = open(self.disk, &path)?;
            file.drop_cached(0, len);
            let got = self
                .tree
                .checksum(&FileRange { file: &*file, path: &path, offset: 0, len }, &mut self.meter)?;
            file.drop_cached(0, len);
            match got == sum {
                true => Ok(()),
                false => Err(Error::corrupt(&path, 0, "file", Damage::BadChecksum { expected: sum, got })),
            }
        })
    }
}
