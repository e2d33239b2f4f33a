//! # Moves: files get their names in their tables' directories
//!
//! ## Picture
//!
//! ```text
//!  tables ── some thousand files at a time ─> in the order of their numbers ─> linked, a few a step
//!                                               ─> directories synced, tables settled ─> manifest ─> old names are garbage
//! ```
//!
//! In the order of numbers, not of keys: files that were made one after the other have their inodes
//! side by side. A link changes its file's inode, a sync writes whole blocks of them, and there is
//! a sync every 100 ms. In the order of keys a fill with values of 16 KiB wrote 1.17 bytes to the
//! device for each of the user's; so it writes 1.12.
//!
//! ## Crash
//!
//! A file of a table that is not settled is where the list says, or in the table's directory
//! already, so moves can be done again.

use std::path::Path;
use std::sync::Arc;

use sheaf_base::disk::Disk;
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::sync::atomic::Ordering;

use crate::engine::{DelsmEngine, NAME};
use crate::list::{ListEntry, ValueRef};
use crate::maintenance::{Garbage, Job, MaintenanceState};
use crate::tree::Table;

/// Files on their way into the directories of tables.
#[derive(Debug)]
pub(crate) struct FileMoves {
    tables: Vec<Arc<Table>>,
    /// The table and block that are gathered next, and the first table that is not settled.
    table: usize,
    block: usize,
    first_unlinked: usize,
    /// What was gathered and has not moved: the last one is next.
    files: Vec<FileMove>,
    /// What goes when all have moved.
    garbage_after: Vec<Garbage>,
}

/// A file, and the index of its table.
#[derive(Debug)]
struct FileMove {
    id: u64,
    table: usize,
    item: ListEntry,
}

impl FileMoves {
    /// What goes when it is done.
    pub(crate) fn garbage_after(&self) -> &[Garbage] {
        &self.garbage_after
    }

    /// Files of `tables`; then `after` goes.
    pub(crate) fn new(tables: Vec<Arc<Table>>, after: Vec<Garbage>) -> FileMoves {
        FileMoves { tables, table: 0, block: 0, first_unlinked: 0, files: Vec::new(), garbage_after: after }
    }

    /// Takes blocks until there are `enough` files.
    fn gather(&mut self, enough: usize) -> Result<()> {
        while let Some(table) = self.tables.get(self.table).filter(|_| self.files.len() < enough) {
            if self.block == table.list.block_count() || table.is_linked() {
                (self.table, self.block) = (self.table + 1, 0);
                continue;
            }
            for item in table.list.entries_of_block(self.block)? {
                if let ValueRef::File { blob, .. } = item.value {
                    self.files.push(FileMove { id: blob.id, table: self.table, item });
                }
            }
            self.block += 1;
        }
        self.files.sort_unstable_by_key(|file| std::cmp::Reverse(file.id));
        Ok(())
    }

    /// Moves the next file.
    fn move_one(&mut self, disk: &dyn Disk, is_held: bool) -> Result<()> {
        let Some(FileMove { table, item, .. }) = self.files.last() else { return Ok(()) };
        let table = &self.tables[*table];
        if let ValueRef::File { blob, location } = item.value
            && let Some(source) = table.path_before_linking(&item.key, &blob, location)
        {
            move_file(disk, &source, &table.linked_path(&item.key, &blob), is_held)?;
        }
        self.files.pop();
        Ok(())
    }
}

impl DelsmEngine {
    /// Links the next files into their tables' directories; at the end they are settled.
    pub(crate) fn move_next_files(&self, work: &mut MaintenanceState) -> Result<()> {
        let Some(Job::Moving(moving)) = &mut work.job else { return Ok(()) };
        let disk = self.disk()?;
        if moving.files.is_empty() {
            moving.gather(self.sizes.files_per_sort)?;
        }
        for _ in 0..self.sizes.files_per_step {
            moving.move_one(disk, work.pin_count > 0)?;
        }
        if !moving.files.is_empty() {
            return Ok(());
        }
        while moving.first_unlinked < moving.table {
            let table = &moving.tables[moving.first_unlinked];
            if !table.is_linked() {
                let dir = self.keyspace.dir(table.dir);
                disk.sync_dir(&dir).during("sync directory", &dir)?;
                table.files_linked.store(true, Ordering::Release);
            }
            moving.first_unlinked += 1;
        }
        if moving.table < moving.tables.len() {
            return Ok(());
        }
        let version = self.version();
        let flushed_seq = work.flushed_seq;
        self.write_manifest(work, &version, flushed_seq)?; // the second slot is past what named the old places (work I2)
        if let Some(Job::Moving(moving)) = work.job.take() {
            work.garbage.extend(moving.garbage_after);
            work.schedule_sweep();
        }
        Ok(())
    }
}

/// Gives the file at `source` the name `target` as well. One that is not at its source any more was
/// moved before a crash, or is lost, and whoever reads it will say so. Without second names a move
/// waits while a state stays.
fn move_file(disk: &dyn Disk, source: &Path, target: &Path, is_held: bool) -> Result<()> {
    use std::io::ErrorKind;
    match disk.link(source, target) {
        Ok(()) => Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Ok(()),
        // A file system without second names.
        Err(e)
            if matches!(
                e.kind(),
                ErrorKind::PermissionDenied | ErrorKind::Unsupported | ErrorKind::TooManyLinks
            ) =>
        {
            if is_held {
                let feature = "moving files of a backup or reader without hard links";
                return Err(Error::Unsupported { engine: NAME, feature });
            }
            disk.rename(source, target).during("rename", source)
        }
        Err(e) => Err(Error::io("link", target, e)),
    }
}
