//! # Discard: removal of a database that its first opening leaves empty
//!
//! A command that fails after it has created a database removes the database again.
//!
//! ## Invariants
//!
//! 1. Files are removed only under the exclusive lock of the directory, and only if no later
//!    opening has written ROOT.
//! 2. The lock file is removed last: until then no other process can create a database here.

use std::path::Path;

use sheaf_log::root::{Root, RootSlots};
use sheaf_platform::disk::{Disk, remove_tree};
use sheaf_platform::error::{IoContext, IoOp, Result};

use crate::Store;
use crate::directory::{LOCK, is_database_file};
use crate::recovery::close::take_lock;

impl Store {
    /// Closes the database. If this opening created it and it has no keyspace, removes its files.
    /// The directory stays. Returns whether the files were removed.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::close`], [`sheaf_platform::error::Error::Locked`] if another
    /// process has the database open by now, and [`sheaf_platform::error::Error::Io`] if a file
    /// cannot be removed.
    pub fn close_and_discard_new(&self) -> Result<bool> {
        let is_empty = self.lifecycle.is_new && self.catalog.map().is_empty();
        self.close()?;
        if !is_empty {
            return Ok(false);
        }
        let lock = take_lock(&*self.disk, &self.dir, false)?;
        let is_ours = |root: Root| {
            root.store == self.identity.id && root.incarnation == self.identity.incarnation && root.is_clean
        };
        if !self.root.slots.read()?.is_some_and(is_ours) {
            return Ok(false); // (I1)
        }
        remove_files(&*self.disk, &self.dir)?;
        drop(lock);
        Ok(true)
    }
}

/// Removes the files of a database: the slots of ROOT first, so that the rest is the remains of an
/// interrupted creation, and the lock file last.
fn remove_files(disk: &dyn Disk, dir: &Path) -> Result<()> {
    let mut entries = disk.list(dir).during(IoOp::List, dir)?;
    entries.retain(|entry| is_database_file(&entry.name));
    entries.sort_by_key(|entry| (entry.name == LOCK, !RootSlots::is_slot(&entry.name)));
    for entry in entries {
        let path = dir.join(&entry.name);
        match entry.is_dir {
            true => remove_tree(disk, &path)?,
            false => disk.remove(&path).during(IoOp::Remove, &path)?,
        }
    }
    Ok(())
}
