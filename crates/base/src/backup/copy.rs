//! # Copy: the files of a state into a new directory
//!
//! No lock is held: what is read is held still. What the base has under the same name is given a second one, if the name is fixed and the
//! bytes are the same: those of the source are read all the same, so that damage there does not hide behind an old copy.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::manifest::{Entry, Manifest, ManifestWriter, NAME, Stored, UNBORN};
use super::pace::Pace;
use super::tree::{Range, Tree, open};
use super::{APART, BackupOptions, BackupPhase, BackupReport, Meter};
use crate::disk::{Disk, File, How, Permissions};
use crate::error::{Damage, Error, IoContext, Result};
use crate::ground::Home;
use crate::own::{OwnFile, OwnFiles, Source};
use crate::root::Slots;
use crate::store::{Still, Store};
use crate::target::Target;

/// An earlier backup.
struct Base {
    dir: PathBuf,
    /// Files with fixed names: length and sum.
    fixed: HashMap<PathBuf, (u64, u32)>,
}

/// A file that is to be copied.
struct Wanted {
    name: PathBuf,
    target: PathBuf,
    at: u64,
    whole: u64,
    is_fixed: bool,
}

/// What a copy works on.
struct Copier<'a, 'w> {
    disk: &'a dyn Disk,
    /// Modes of the copy, and the widest that a linked file may have.
    permissions: Permissions,
    store: &'a Store,
    tree: Tree<'a>,
    manifest: ManifestWriter,
    base: Option<Base>,
    meter: Meter<'w>,
    report: BackupReport,
}

/// Backs up the state of now into `dir`.
pub(crate) fn back_up(store: &Arc<Store>, dir: &Path, options: BackupOptions<'_>) -> Result<BackupReport> {
    let permissions = Permissions::of_copy(store.disk(), store.path(), &Slots::NAMES).unwrap_or_default();
    let permitted = store.disk().permitting(permissions);
    let disk = permitted.as_deref().unwrap_or(store.disk());
    let absolute = |path: &Path| std::path::absolute(path).during("find", path);
    if absolute(dir)?.starts_with(absolute(store.path())?) {
        let why = format!("{} is inside the database", dir.display());
        return Err(Error::Invalid { what: "target", why });
    }
    let BackupOptions { base, verify, pace, watcher } = options;
    let base = base.map(|base| Base::open(disk, &base, store)).transpose()?;
    let still = store.still()?;
    let (target, file) = Target::by_file(disk, dir, UNBORN)?;
    let manifest = ManifestWriter::new(file, dir, still.root());
    let tree = Tree::new(disk, target);
    let meter = Meter::new(watcher, Some(Pace::new(store, pace)));
    let report = BackupReport { seq: still.seq().0, ..BackupReport::default() };
    let mut copier = Copier { disk, permissions, store, tree, manifest, base, meter, report };
    let copied = copier.copy(&still);
    drop(still);
    let Copier { tree, manifest, meter, report, .. } = copier;
    let mut ending = Ending { disk, dir, tree, meter };
    copied.and_then(|()| ending.run(manifest, verify))?;
    ending.tree.keep()?;
    Ok(report)
}

impl Base {
    fn open(disk: &dyn Disk, dir: &Path, store: &Store) -> Result<Base> {
        let manifest = Manifest::open(disk, dir)?;
        let (theirs, ours) = (&manifest.root, store.root_frame());
        let openings = ours.incarnation.0.checked_sub(theirs.incarnation.0);
        let why = match theirs.store == ours.store {
            false => Some("is a backup of another database"),
            true if openings.is_none_or(|openings| openings >= APART) => {
                Some("was made before this database was restored, or from another copy of it")
            }
            true => None,
        };
        if let Some(why) = why {
            return Err(Error::Invalid { what: "base", why: format!("{} {why}", dir.display()) });
        }
        let mut fixed = HashMap::new();
        manifest.each(|entry| {
            if let Entry::File(Stored { name, len, sum, is_fixed: true, .. }) = entry {
                fixed.insert(name, (len, sum));
            }
            Ok(())
        })?;
        Ok(Base { dir: dir.to_path_buf(), fixed })
    }
}

impl Copier<'_, '_> {
    fn copy(&mut self, still: &Still) -> Result<()> {
        let mut total: u64 = still.own().map(|(_, own)| own.bytes()).sum();
        for file in still.files() {
            total += file.len.unwrap_or_else(|| self.measure(&file.name));
        }
        self.leave_room(total)?;
        self.meter.begin(BackupPhase::Copying, total)?;
        for file in still.files() {
            let wanted = Wanted {
                target: file.name.clone(),
                name: file.name,
                at: 0,
                whole: file.whole,
                is_fixed: file.is_fixed,
            };
            let path = self.store.path().join(&wanted.name);
            match open(self.disk, &path) {
                Err(error) if error.is_corrupt() && file.may_miss => {}
                source => self.add(wanted, &*source?, &path, 0, file.len)?,
            }
        }
        for (id, own) in still.own() {
            self.add_own(&Home::name_of(id), own)?;
        }
        self.store.check_open() // since: after the end of the database nothing is held any more
    }

    /// The length of a file; nothing if it cannot be said.
    fn measure(&self, name: &Path) -> u64 {
        let file = self.disk.open(&self.store.path().join(name), How::Read);
        file.and_then(|file| file.len()).unwrap_or(0)
    }

    /// A backup that does not fit is not begun: the database may be on the same disk. With a base nobody knows what it takes.
    fn leave_room(&self, bytes: u64) -> Result<()> {
        let root = self.tree.root();
        if self.base.is_none() && self.disk.free_space(root).during("measure", root)? < bytes {
            return Err(Error::NoSpace { path: root.to_path_buf() });
        }
        Ok(())
    }

    fn add_own(&mut self, home: &Path, own: &dyn OwnFiles) -> Result<()> {
        own.each(&mut |file: OwnFile<'_>| {
            let name = home.join(&file.name);
            let (target, at, whole) = match file.part {
                Some(part) => (home.join(part.of), part.at, part.len),
                None => (name.clone(), 0, 0),
            };
            let wanted = Wanted { name, target, at, whole, is_fixed: file.is_fixed };
            match file.source {
                Source::Directory => self.manifest.add(&Entry::Directory(wanted.name)),
                Source::File { path, at, len } => {
                    self.add(wanted, &*open(self.disk, &path)?, &path, at, Some(len))
                }
                Source::Bytes(bytes) => self.add_made(wanted, &|disk, path| {
                    let file = disk.open(&path, How::Create).during("create", &path)?;
                    file.write_at(0, bytes).during("write", &path)
                }),
                Source::Made(make) => self.add_made(wanted, make),
            }
        })
    }

    /// Copies, or links, `len` bytes at `at` of `source`.
    fn add(
        &mut self,
        wanted: Wanted,
        source: &dyn File,
        path: &Path,
        at: u64,
        len: Option<u64>,
    ) -> Result<()> {
        self.store.check_open()?;
        let len = match len {
            Some(len) => len,
            None => source.len().during("measure", path)?,
        };
        let from = Range { file: source, path, at, len };
        if let Some(sum) = self.link(&wanted, &from)? {
            self.report.linked += len;
            return self.enter(wanted, len, sum);
        }
        let copy = self.tree.place(&wanted.name)?;
        let file = self.disk.open(&copy, How::Create).during("create", &copy)?;
        self.tree.made(&wanted.name);
        let sum = self.tree.pour(&from, &Range { file: &*file, path: &copy, at: 0, len }, &mut self.meter)?;
        self.report.copied += len;
        self.enter(wanted, len, sum)
    }

    /// Gives the base's file of that name and content a second name. None if there is none, or it cannot be had.
    fn link(&mut self, wanted: &Wanted, from: &Range<'_>) -> Result<Option<u32>> {
        let Some(base) = self.base.as_ref().filter(|_| wanted.is_fixed) else { return Ok(None) };
        let Some((_, expected)) = base.fixed.get(&wanted.name).copied().filter(|(len, _)| *len == from.len)
        else {
            return Ok(None);
        };
        let earlier = base.dir.join(&wanted.name);
        if self.disk.mode(&earlier).is_some_and(|mode| mode & 0o777 & !self.permissions.files() != 0) {
            return Ok(None); // a second name may stand where others can reach it
        }
        let done = self.meter.done;
        let sum = self.tree.sum(from, &mut self.meter)?;
        if sum == expected && self.disk.link(&earlier, &self.tree.place(&wanted.name)?).is_ok() {
            self.tree.made(&wanted.name);
            return Ok(Some(sum));
        }
        self.meter.done = done; // it is copied after all
        Ok(None)
    }

    /// Has a file made in place, and sums it.
    fn add_made(&mut self, wanted: Wanted, make: &dyn Fn(&dyn Disk, PathBuf) -> Result<()>) -> Result<()> {
        self.store.check_open()?;
        let path = self.tree.place(&wanted.name)?;
        make(self.disk, path.clone())?;
        self.tree.made(&wanted.name);
        let file = open(self.disk, &path)?;
        let len = file.len().during("measure", &path)?;
        let sum = self.tree.sum(&Range { file: &*file, path: &path, at: 0, len }, &mut self.meter)?;
        self.tree.written(&*file, &path)?;
        self.report.copied += len;
        self.enter(wanted, len, sum)
    }

    fn enter(&mut self, wanted: Wanted, len: u64, sum: u32) -> Result<()> {
        let Wanted { name, target, at, whole, is_fixed } = wanted;
        self.report.files += 1;
        self.manifest.add(&Entry::File(Stored { name, target, at, whole, len, sum, is_fixed }))
    }
}

/// What makes a copy a backup.
struct Ending<'a, 'w> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    tree: Tree<'a>,
    meter: Meter<'w>,
}

impl Ending<'_, '_> {
    fn run(&mut self, manifest: ManifestWriter, verify: bool) -> Result<()> {
        manifest.finish()?;
        self.tree.settle()?;
        if verify {
            self.verify()?;
        }
        let (unborn, name) = (self.dir.join(UNBORN), self.dir.join(NAME));
        self.disk.rename(&unborn, &name).during("rename", &unborn)?;
        self.tree.made(Path::new(NAME));
        self.disk.sync_dir(self.dir).during("sync directory", self.dir)
    }

    /// Reads back what was written, from the device where it can be had.
    fn verify(&mut self) -> Result<()> {
        let manifest = Manifest::unborn(self.disk, self.dir)?;
        self.meter.begin(BackupPhase::Verifying, manifest.bytes)?;
        manifest.each(|entry| {
            let Entry::File(Stored { name, len, sum, .. }) = entry else { return Ok(()) };
            let path = self.dir.join(name);
            let file = open(self.disk, &path)?;
            file.forget(0, len);
            let got = self.tree.sum(&Range { file: &*file, path: &path, at: 0, len }, &mut self.meter)?;
            file.forget(0, len);
            match got == sum {
                true => Ok(()),
                false => Err(Error::corrupt(&path, 0, Damage::BadChecksum { expected: sum, got })),
            }
        })
    }
}
