//! # Hold: a state that stays, as a listing
//!
//! What a backup would copy, said instead of copied: names, lengths, and where the bytes are. Whoever has the listing and the lease opens
//! it as a disk ([`crate::disk::held`]), beside the owner.
//!
//! What engines would make for a backup (the index of a FlexSpace) is made now, in a file among the images. No ROOT names it: it goes with
//! the hold, or is swept at the next opening.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Still, Store, directories, image};
use crate::disk::held::{Bytes, Item, Lease, Piece};
use crate::disk::{Disk, How};
use crate::error::{Damage, Error, IoContext, Result};
use crate::ground::Home;
use crate::own::{OwnFile, OwnFiles, Source};
use crate::pair::{slot_bytes, slot_name};
use crate::root::Root;
use crate::sync::Mutex;
use crate::sync::atomic::Ordering;
use crate::types::{KeyspaceId, random_bits};

/// A state that is held. Dropped, it is let go.
#[derive(Debug)]
pub struct Hold {
    store: Arc<Store>,
    /// Files that were made for it.
    made: Vec<PathBuf>,
    /// In a lock, because what engines hold need not be `Sync`: nobody looks at it before the end.
    #[expect(dead_code, reason = "what is held, until the end")]
    still: Mutex<Still>,
}

impl Lease for Hold {
    fn is_held(&self) -> bool {
        !self.store.flags.closed.load(Ordering::Acquire) // after the end nothing is held any more
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.store.fork.is_child() {
            return; // the files are the parent's
        }
        for path in &self.made {
            let _ = self.store.disk.remove(path); // what stays is swept at the next opening
        }
    }
}

impl Store {
    /// Holds the state of now, and lists what it consists of.
    pub fn hold_beside(self: &Arc<Store>) -> Result<(Hold, Vec<Item>)> {
        let still = self.still()?;
        let mut lister = Lister { store: self, items: Vec::new(), made: Vec::new() };
        let listed = lister.list(&still);
        let Lister { items, made, .. } = lister;
        let hold = Hold { store: Arc::clone(self), made, still: Mutex::new(still) };
        listed?;
        self.check_open()?;
        Ok((hold, items))
    }
}

struct Lister<'a> {
    store: &'a Store,
    items: Vec<Item>,
    made: Vec<PathBuf>,
}

impl Lister<'_> {
    fn list(&mut self, still: &Still) -> Result<()> {
        self.items.extend(directories().map(|name| Item::Directory(name.into())));
        let root = still.root();
        for generation in [root.generation, root.generation + 1] {
            let bytes = slot_bytes(&Root { generation, ..root.clone() });
            self.add(slot_name::<Root>(generation).into(), 0, 0, bytes.len() as u64, Bytes::Here(bytes));
        }
        for file in still.files() {
            let len = match file.len {
                Some(len) => len,
                None => match self.measure(&file.name) {
                    Err(error) if error.is_corrupt() && file.may_miss => continue,
                    len => len?,
                },
            };
            self.add(file.name.clone(), file.whole, 0, len, Bytes::File(file.name, 0));
        }
        still.own().try_for_each(|(id, own)| self.list_own(id, own))
    }

    fn add(&mut self, name: PathBuf, whole: u64, at: u64, len: u64, bytes: Bytes) {
        self.items.push(Item::Piece(Piece { name, whole, at, len, bytes }));
    }

    /// The length of a file that must be there.
    fn measure(&self, name: &Path) -> Result<u64> {
        let path = self.store.dir.join(name);
        match self.store.disk.open(&path, How::Read) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::corrupt(&path, 0, Damage::Short { got: 0, expected: 1 }))
            }
            file => file.during("open", &path)?.len().during("measure", &path),
        }
    }

    /// Its name below the database's directory.
    fn below(&self, path: &Path) -> Result<PathBuf> {
        let why = || format!("{} is outside the database", path.display());
        let below = path.strip_prefix(&self.store.dir).map(Path::to_path_buf);
        below.map_err(|_| Error::Invalid { what: "file of an engine", why: why() })
    }

    fn list_own(&mut self, id: KeyspaceId, own: &dyn OwnFiles) -> Result<()> {
        let home = Home::name_of(id);
        own.each(&mut |file: OwnFile<'_>| {
            let name = home.join(&file.name);
            let (target, at, whole) = match file.part {
                Some(part) => (home.join(part.of), part.at, part.len),
                None => (name.clone(), 0, 0),
            };
            match file.source {
                Source::Directory => self.items.push(Item::Directory(name)),
                Source::File { path, at: from, len } => {
                    let source = Bytes::File(self.below(&path)?, from);
                    self.add(target, whole, at, len, source);
                }
                Source::Bytes(bytes) => {
                    self.add(target, whole, at, bytes.len() as u64, Bytes::Here(bytes.to_vec()));
                }
                Source::Made(make) => {
                    let name = self.make(make)?;
                    let len = self.measure(&name)?;
                    self.add(target, whole, at, len, Bytes::File(name, 0));
                }
            }
            Ok(())
        })
    }

    /// Has a file made.
    fn make(&mut self, make: &dyn Fn(&dyn Disk, PathBuf) -> Result<()>) -> Result<PathBuf> {
        let name = Path::new(image::DIRECTORY).join(format!("held-{:032x}", random_bits()));
        let path = self.store.dir.join(&name);
        self.made.push(path.clone());
        make(&*self.store.disk, path)?;
        Ok(name)
    }
}
