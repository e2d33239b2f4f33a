//! # Restore: a backup becomes a database
//!
//! ```text
//!  BACKUP summed ─> target locked, UNFINISHED ─> files copied, each sum compared ─> all synced ─> ROOT
//!    ─> UNFINISHED goes ─> opens as after a crash at S
//! ```
//!
//! Files are copied, never linked: the database is going to write to its own.

use std::path::Path;
use std::sync::Arc;

use super::manifest::{Entry, Manifest, NAME, Stored};
use super::tree::{Range, Tree, open};
use super::{APART, BackupPhase, BackupReport, Meter, Watcher};
use crate::disk::{Disk, How, Permissions};
use crate::error::{Damage, Error, IoContext, Result};
use crate::root::{Root, Slots};
use crate::store::directories;
use crate::target::Target;
use crate::types::{Incarnation, random_bits};

/// How much further than [`APART`] the incarnation of a restored database is from the original's, at most.
const FAR: u128 = 1 << 40;

/// Restores the backup in `from` into `to`, which must not be there, or be empty but for a lock that nobody holds. Without
/// `permissions` it is for no one for whom the backup is not.
pub fn restore(
    disk: &Arc<dyn Disk>,
    from: &Path,
    to: &Path,
    permissions: Option<Permissions>,
    watcher: Option<&mut Watcher<'_>>,
) -> Result<BackupReport> {
    permissions.map_or(Ok(()), Permissions::check)?;
    let permissions = permissions.or_else(|| Permissions::of_copy(&**disk, from, &[NAME]));
    let disk = &permissions.unwrap_or_default().on(Arc::clone(disk));
    let manifest = Manifest::open(&**disk, from)?;
    let mut tree = Tree::new(&**disk, Target::for_database(&**disk, to)?);
    let mut forward = watcher.map(|watcher| move |progress| watcher(progress));
    let watcher: Option<&mut Watcher<'_>> = forward.as_mut().map(|forward| forward as &mut Watcher<'_>);
    let mut meter = Meter::new(watcher, None);
    refill(disk, from, to, &manifest, &mut tree, &mut meter)?;
    tree.keep()?;
    let seq = manifest.root.floor.0;
    Ok(BackupReport { seq, files: manifest.files, copied: manifest.bytes, linked: 0 })
}

fn refill(
    disk: &Arc<dyn Disk>,
    from: &Path,
    to: &Path,
    manifest: &Manifest,
    tree: &mut Tree<'_>,
    meter: &mut Meter<'_>,
) -> Result<()> {
    if disk.free_space(to).during("measure", to)? < manifest.bytes {
        return Err(Error::NoSpace { path: to.to_path_buf() });
    }
    directories().try_for_each(|name| tree.dir(Path::new(name)))?;
    meter.begin(BackupPhase::Copying, manifest.bytes)?;
    manifest.each(|entry| match entry {
        Entry::Directory(name) => tree.dir(&name),
        Entry::File(file) => put_back(&**disk, from, &file, tree, meter),
    })?;
    tree.settle()?;
    tree.becomes_database();
    let away = u64::try_from(random_bits() % FAR).unwrap_or(0);
    let incarnation = Incarnation(manifest.root.incarnation.0.saturating_add(APART + away));
    Slots::new(Arc::clone(disk), to).create(&Root { incarnation, ..manifest.root.clone() })
}

/// Copies a file to where it belongs.
fn put_back(
    disk: &dyn Disk,
    from: &Path,
    stored: &Stored,
    tree: &mut Tree<'_>,
    meter: &mut Meter<'_>,
) -> Result<()> {
    let path = from.join(&stored.name);
    let source = open(disk, &path)?;
    let place = tree.place(&stored.target)?;
    let file = match disk.open(&place, How::Create) {
        // One of its parts is there.
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => disk.open(&place, How::Write),
        other => other.inspect(|_| tree.made(&stored.target)),
    };
    let file = file.during("create", &place)?;
    let whole = stored.whole.max(stored.at + stored.len);
    let range = Range { file: &*source, path: &path, at: 0, len: stored.len };
    let got = tree.pour(&range, &Range { file: &*file, path: &place, at: stored.at, len: whole }, meter)?;
    match got == stored.sum {
        true => Ok(()),
        false => Err(Error::corrupt(&path, 0, Damage::BadChecksum { expected: stored.sum, got })),
    }
}
