//! # File moves: files are linked into the directories of their tables
//!
//! ## Picture
//!
//! ```text
//!  tables ── some thousand files at a time ─> sorted by their numbers ─> linked, a few per step
//!                   ─> directories synced, tables are linked ─> manifest ─> old names are garbage
//! ```
//!
//! Files are moved in the order of their numbers, not of keys, because files that were created one
//! after the other have adjacent inodes. A link changes the inode of its file, and a sync writes
//! whole blocks of inodes. In the order of numbers, the frequent syncs therefore write fewer
//! blocks.
//!
//! ## Crash
//!
//! A file of a table that is not linked is where the list says, or already in the directory of the
//! table. Moves can therefore be repeated.

use std::path::Path;
use std::sync::Arc;

use sheaf_platform::disk::Disk;
use sheaf_platform::error::{Error, IoContext, IoOp, Result};
use sheaf_platform::sync::atomic::Ordering;

use crate::engine::{DelsmEngine, NAME};
use crate::files::list::{ListEntry, ValueRef};
use crate::maintenance::{Garbage, Job, MaintenanceState};
use crate::tree::Table;

/// Move of files into the directories of tables.
#[derive(Debug)]
pub(crate) struct FileMoves {
    tables: Vec<Arc<Table>>,
    /// Next table and block to gather, and the first table that is not linked.
    table: usize,
    block: usize,
    first_unlinked: usize,
    /// Gathered files that have not moved yet. The last one moves next.
    files: Vec<FileMove>,
    /// Garbage that is removed when all files have moved.
    garbage_after: Vec<Garbage>,
}

/// File to move, with the index of its table.
#[derive(Debug)]
struct FileMove {
    id: u64,
    table: usize,
    item: ListEntry,
}

impl FileMoves {
    /// Returns the garbage that is removed when all files have moved.
    pub(crate) fn garbage_after(&self) -> &[Garbage] {
        &self.garbage_after
    }

    /// Returns the moves of all files of `tables`. `after` is removed at the end.
    pub(crate) fn new(tables: Vec<Arc<Table>>, after: Vec<Garbage>) -> FileMoves {
        FileMoves { tables, table: 0, block: 0, first_unlinked: 0, files: Vec::new(), garbage_after: after }
    }

    /// Reads blocks until there are `enough` files.
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
    /// Links the next files into the directories of their tables. At the end the tables are linked.
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
                disk.sync_dir(&dir).during(IoOp::SyncDirectory, &dir)?;
                table.files_linked.store(true, Ordering::Release);
            }
            moving.first_unlinked += 1;
        }
        if moving.table < moving.tables.len() {
            return Ok(());
        }
        let version = self.version();
        let flushed_seq = work.flushed_seq;
        // Now both slots are newer than the manifest that named the old places (maintenance I2).
        self.write_manifest(work, &version, flushed_seq)?;
        if let Some(Job::Moving(moving)) = work.job.take() {
            work.garbage.extend(moving.garbage_after);
            work.schedule_sweep();
        }
        Ok(())
    }
}

/// Links the file at `source` to `target`. A file that is no longer at `source` was moved before a
/// crash, or is lost; in that case its reader reports it. On a file system without hard links a
/// move waits while a state is pinned.
fn move_file(disk: &dyn Disk, source: &Path, target: &Path, is_held: bool) -> Result<()> {
    use std::io::ErrorKind;
    match disk.link(source, target) {
        Ok(()) => Ok(()),
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotFound) => Ok(()),
        // A file system without hard links.
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
            disk.rename(source, target).during(IoOp::Rename, source)
        }
        Err(e) => Err(Error::io(IoOp::Link, target, e)),
    }
}
