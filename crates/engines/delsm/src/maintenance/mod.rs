//! # Maintenance: background work in bounded steps, one job at a time
//!
//! ## Picture
//!
//! ```text
//!  frozen memtables ─ flush ──┐              ┌── merge, part by part ── level over limit, garbage
//!                             v              v
//!        lists and packs written, synced ─> manifest ─> published
//!                                          names them      │ after a merge, or when idle
//!                                                          v
//!        files linked into the directories of their tables ─> directories synced
//!               ─> manifest again ─> old names, dead files, old lists removed
//! ```
//!
//! ## Invariants
//!
//! 1. Everything that the manifest names is durable, except for the places of files. The files of a
//!    table that is not linked are where the key list says, or already in the directory of the
//!    table. The moves of a job can therefore be repeated after a crash.
//! 2. A file is removed only after all files are durably in their new places. In addition, both
//!    slots of the manifest must be newer than those that named the old places.
//! 3. A merge reads linked tables, and tables of a flush with all their files in the blob store.
//!    The moves of a job are finished before any other work.
//! 4. Numbers of directories, lists and packs are never reused, so a name has one meaning.
//! 5. While a state is pinned (`pinned_tables.rs`), nothing is removed; removals wait for the
//!    release.
//! 6. A directory that may contain dead values has the flag `has_unlisted_files` in every manifest
//!    until all of them are removed. Failed removals are repeated after the next flush or merge,
//!    and at the next opening. A step reports such a failure once, and the failure delays no other
//!    work.

pub(crate) mod file_moves;
mod flush;
mod idle_compaction;
pub(crate) mod ingest;
mod merge;
mod range_removal;

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_engine::views::Views;
use sheaf_log::double_slot::{DoubleSlot, is_slot, is_temp_slot};
use sheaf_log::types::Seq;
use sheaf_platform::disk::{Disk, OpenMode, create_dirs};
use sheaf_platform::error::{Error, IoContext, IoOp, PoisonCause, Result};
use sheaf_platform::sync::atomic::Ordering;

use crate::engine::DelsmEngine;
use crate::files::file_names;
use crate::files::list::{KeyList, KeyListWriter, ValueRef};
use crate::files::manifest::{TableEntry, TableFlags, TableManifest};
use crate::maintenance::file_moves::FileMoves;
use crate::maintenance::idle_compaction::IdleCompaction;
use crate::maintenance::merge::Merge;
use crate::tree::{KeyspaceContext, Table, Version};

/// Object that must be removed.
#[derive(Debug)]
pub(crate) enum Garbage {
    /// List, pack or unknown file next to them. Every opening looks for these.
    File(PathBuf),
    /// File of a value: number of the directory, and name in it.
    Value(u64, String),
    /// Blob of the blob store that a table has adopted.
    Blob(u64),
    /// Directory, and the names left in it once it was listed.
    Directory(PathBuf, Option<Vec<String>>),
    /// Files in a directory that its list does not name.
    UnlistedFiles(u64),
}

/// Job in progress.
#[derive(Debug)]
pub(crate) enum Job {
    /// Tables are being merged.
    Merging(Box<Merge>),
    /// Files are being linked into the directories of tables.
    Moving(FileMoves),
}

/// State that the lock `work` protects.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceState {
    pub(crate) manifest_slots: Option<DoubleSlot>,
    pub(crate) generation: u64,
    /// All commits up to this one are in tables.
    pub(crate) flushed_seq: Seq,
    /// Lower bound of `flushed_seq`, from the image.
    pub(crate) min_flushed_seq: Seq,
    /// Next number of a directory, list or pack.
    pub(crate) next_number: u64,
    pub(crate) job: Option<Job>,
    pub(crate) garbage: VecDeque<Garbage>,
    /// True if directories, lists and packs may exist that the manifest does not name.
    pub(crate) is_sweep_due: bool,
    /// True if the search for them failed. It is due again after the next flush or merge.
    pub(crate) is_sweep_missed: bool,
    /// Directories that could not be searched, or from which a value could not be removed (I6).
    pub(crate) unswept: BTreeSet<u64>,
    pub(crate) is_poisoned: bool,
    /// Number of pinned states (`pinned_tables.rs`). Nothing is removed while it is not zero.
    pub(crate) pin_count: usize,
    /// Known garbage, for the compaction of an idle database.
    pub(crate) idle_compaction: IdleCompaction,
    /// True if the last merge ran out of space. The next one rewrites no pack: a copy takes space
    /// before it frees any.
    pub(crate) is_space_short: bool,
    /// True if the last merge failed. Flushes then do not wait for the next one.
    pub(crate) is_stuck: bool,
    /// First key of the last table taken from each level.
    pub(crate) last_pushed_down: Vec<Vec<u8>>,
}

impl MaintenanceState {
    /// Returns the ids of blobs that tables have adopted under other names, with old names that are
    /// not removed yet.
    pub(crate) fn adopted_blobs(&self) -> impl Iterator<Item = u64> {
        let (merging, moving): (&[u64], &[Garbage]) = match &self.job {
            Some(Job::Merging(merge)) => (merge.stale_blobs(), &[]),
            Some(Job::Moving(moving)) => (&[], moving.garbage_after()),
            None => (&[], &[]),
        };
        let of_garbage = |garbage: &Garbage| if let Garbage::Blob(id) = garbage { Some(*id) } else { None };
        self.garbage.iter().chain(moving).filter_map(of_garbage).chain(merging.iter().copied())
    }

    /// Called after the last pin was released. Merges in the meantime may have reused the name of a
    /// value that waits for removal. So the values to remove are determined again from the lists.
    pub(crate) fn recheck_garbage(&mut self) {
        let mut dirs = BTreeSet::new();
        self.garbage.retain(|garbage| match garbage {
            Garbage::Value(dir, _) => {
                dirs.insert(*dir);
                false
            }
            _ => true,
        });
        self.garbage.extend(dirs.into_iter().map(Garbage::UnlistedFiles));
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number - 1
    }

    /// Schedules a repetition of failed searches and removals. They are not repeated at once: a
    /// permanent failure would block all other work.
    pub(crate) fn schedule_sweep(&mut self) {
        self.is_sweep_due |= std::mem::take(&mut self.is_sweep_missed);
        self.garbage.extend(std::mem::take(&mut self.unswept).into_iter().map(Garbage::UnlistedFiles));
    }
}

/// Output tables of a flush, of a part of a merge or of an ingest. A list is written when the next
/// one begins, so only one is in memory.
#[derive(Debug, Default)]
pub(crate) struct TableOutputs {
    /// Table that is being filled.
    pub(crate) current: Option<SortedTableBuilder>,
    written: Vec<Arc<Table>>,
}

impl TableOutputs {
    /// Returns outputs with one table.
    pub(crate) fn with_table(made: SortedTableBuilder) -> TableOutputs {
        TableOutputs { current: Some(made), written: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.written.is_empty()
    }
}

/// Builder of a table: its list in memory, and its numbers.
#[derive(Debug)]
pub(crate) struct SortedTableBuilder {
    pub(crate) dir: u64,
    is_new: bool,
    pub(crate) writer: KeyListWriter,
    number: u64,
}

impl SortedTableBuilder {
    /// Returns a builder for list `number` of the table in directory `dir`.
    pub(crate) fn new(keyspace: &KeyspaceContext, dir: u64, is_new: bool, number: u64) -> SortedTableBuilder {
        SortedTableBuilder {
            dir,
            is_new,
            writer: KeyListWriter::new(keyspace.owner(), number, keyspace.context.tiny),
            number,
        }
    }
}

impl DelsmEngine {
    pub(crate) fn disk(&self) -> Result<&dyn Disk> {
        match &self.keyspace.context.engine_dir {
            Some(engine_dir) => Ok(&*engine_dir.disk),
            None => Err(Error::InvalidArgument {
                argument: "engine",
                reason: "it has no directory for its files".into(),
            }),
        }
    }

    /// Executes one step. Returns true if there is more to do.
    pub(crate) fn step(&self, views: &Views, certain: Seq) -> Result<bool> {
        let mut work = self.work.lock();
        if work.is_poisoned {
            return Err(Error::Poisoned { cause: PoisonCause::Sync });
        }
        let answer = self.step_locked(&mut work, views, certain);
        if let Err(error) = &answer
            && error.is_failed_sync()
        {
            work.is_poisoned = true;
            return Err(Error::Poisoned { cause: PoisonCause::Sync });
        }
        answer
    }

    fn step_locked(&self, work: &mut MaintenanceState, views: &Views, certain: Seq) -> Result<bool> {
        if let Some(Job::Moving(_)) = work.job {
            return self.move_next_files(work).map(|()| true);
        }
        // A merge that is in progress is finished first, part by part.
        let frozen = if work.job.is_none() { self.memtables_to_flush(certain) } else { Vec::new() };
        if !frozen.is_empty() {
            self.remove_files(work)?;
            if !work.is_stuck && self.merge_before_flush(work, views)? {
                return Ok(true);
            }
            return self.flush(work, &frozen, views, certain).map(|()| true);
        }
        if let Some(Job::Merging(_)) = work.job {
            return self.merge_next(work, views).map(|()| true);
        }
        if std::mem::take(&mut work.is_sweep_due) {
            let found = self.find_orphans(work);
            work.is_sweep_missed = found.is_err();
            return found.map(|()| true);
        }
        if work.pin_count == 0 && self.remove_garbage(work)? {
            return Ok(true);
        }
        self.plan_merge(work, views)
    }

    /// Creates the directory of the keyspace, if it does not exist yet.
    pub(crate) fn create_keyspace_dir(&self, work: &mut MaintenanceState) -> Result<()> {
        let Some(engine_dir) = &self.keyspace.context.engine_dir else { return self.disk().map(drop) };
        if work.manifest_slots.is_none() {
            create_dirs(&*engine_dir.disk, &self.keyspace.path)?;
            engine_dir.disk.spread_dirs(&self.keyspace.path);
            work.manifest_slots = Some(DoubleSlot::new(Arc::clone(&engine_dir.disk), &self.keyspace.path));
        }
        Ok(())
    }

    /// Starts another table. After an error the files of unfinished outputs are swept later.
    pub(crate) fn start_table(&self, outputs: &mut TableOutputs, made: SortedTableBuilder) -> Result<()> {
        match outputs.current.replace(made) {
            Some(full) => self.write_list(full).map(|table| outputs.written.push(table)),
            None => Ok(()),
        }
    }

    /// Returns all tables. They are durable; their files are not linked yet.
    pub(crate) fn finish_tables(&self, mut outputs: TableOutputs) -> Result<Vec<Arc<Table>>> {
        if let Some(last) = outputs.current.take() {
            outputs.written.push(self.write_list(last)?);
        }
        let path = &self.keyspace.path;
        self.disk()?.sync_dir(path).during(IoOp::SyncDirectory, path)?;
        Ok(outputs.written)
    }

    /// Writes a list and opens it. The content is durable, the name is not.
    fn write_list(&self, made: SortedTableBuilder) -> Result<Arc<Table>> {
        let (disk, dir) = (self.disk()?, self.keyspace.dir(made.dir));
        if made.is_new {
            disk.create_dir(&dir).during(IoOp::Create, &dir)?;
        }
        let path = self.keyspace.path.join(file_names::list_name(made.number));
        let file = disk.open(&path, OpenMode::Create).during(IoOp::Create, &path)?;
        let marks = TableFlags {
            files_linked: made.writer.totals().files == 0,
            has_unlisted_files: !made.is_new,
            has_old_versions: made.writer.has_old_versions(),
        };
        file.write_at(0, &made.writer.finish()).during(IoOp::Write, &path)?;
        file.sync().during(IoOp::Sync, &path)?;
        let list = KeyList::open(disk, path, self.keyspace.owner(), made.number)?;
        Ok(Table::new(&self.keyspace, made.dir, list, marks))
    }

    /// Returns the next manifest for `version`. Passes the flags of each table through `marks_of`.
    pub(crate) fn manifest_of(
        &self,
        work: &MaintenanceState,
        version: &Version,
        flushed_seq: Seq,
        marks_of: impl Fn(TableFlags) -> TableFlags,
    ) -> TableManifest {
        let entry = |level: usize, table: &Arc<Table>| TableEntry {
            level: u8::try_from(level).unwrap_or(u8::MAX),
            dir: table.dir,
            list: table.list.number(),
            flags: marks_of(TableFlags {
                files_linked: table.is_linked(),
                has_unlisted_files: table.has_unlisted_files.load(Ordering::Relaxed),
                has_old_versions: table.has_old_versions,
            }),
        };
        let entry = &entry;
        let levels = version.levels.iter().enumerate();
        let mut packs: Vec<u64> = version.packs.keys().copied().collect();
        packs.sort_unstable();
        TableManifest {
            generation: work.generation + 1,
            owner: self.keyspace.owner(),
            flushed_seq,
            next_number: work.next_number,
            tables: levels.flat_map(|(level, tables)| tables.iter().map(move |t| entry(level, t))).collect(),
            packs,
        }
    }

    /// Makes `version` durable as the current version.
    pub(crate) fn write_manifest(
        &self,
        work: &mut MaintenanceState,
        version: &Version,
        flushed_seq: Seq,
    ) -> Result<()> {
        let manifest = self.manifest_of(work, version, flushed_seq, |marks| marks);
        let Some(pair) = &work.manifest_slots else { return self.disk().map(drop) };
        assert!(
            manifest.has_issued_numbers(),
            "maintenance (I4): the manifest contains only numbers below the next one"
        );
        pair.write(&manifest)?;
        work.generation = manifest.generation;
        work.flushed_seq = flushed_seq;
        Ok(())
    }

    /// Removes lists and packs that are garbage. These are few files, but they may be as large as
    /// the live data, and the flush that follows needs space.
    fn remove_files(&self, work: &mut MaintenanceState) -> Result<()> {
        if work.pin_count > 0 {
            return Ok(());
        }
        let (disk, before) = (self.disk()?, work.garbage.len());
        work.garbage.retain(|garbage| match garbage {
            Garbage::File(path) => {
                let _ = disk.remove(path); // swept at the next opening
                false
            }
            _ => true,
        });
        if work.garbage.len() < before {
            self.note_clean(work);
        }
        Ok(())
    }

    /// Clears the flags of unlisted files if no garbage is left, except for directories in
    /// `unswept`.
    fn note_clean(&self, work: &MaintenanceState) {
        if work.garbage.is_empty() && !work.is_sweep_missed {
            for table in self.version().tables() {
                table.has_unlisted_files.store(work.unswept.contains(&table.dir), Ordering::Relaxed);
            }
        }
    }

    /// Removes some garbage. Returns false if there was none.
    fn remove_garbage(&self, work: &mut MaintenanceState) -> Result<bool> {
        assert!(work.job.is_none(), "maintenance (I2): garbage is removed when no move is in progress");
        assert!(work.pin_count == 0, "maintenance (I5): nothing is removed while a state is pinned");
        let disk = self.disk()?;
        let (mut any, mut failed) = (false, Ok(()));
        for _ in 0..self.sizes.files_per_step {
            let Some(garbage) = work.garbage.pop_front() else { break };
            any = true;
            // A removal that fails is repeated at the next opening: the sweep finds the files, and
            // the directories of values keep their flag.
            match garbage {
                Garbage::File(path) => drop(disk.remove(&path)),
                Garbage::Value(dir, name) => match disk.remove(&self.keyspace.dir(dir).join(name)) {
                    Err(e) if e.kind() != ErrorKind::NotFound => drop(work.unswept.insert(dir)),
                    _ => {}
                },
                Garbage::Blob(id) => self.keyspace.context.remove_adopted_blob(id),
                Garbage::Directory(dir, None) => {
                    let found = disk.list(&dir).unwrap_or_default();
                    let mut names: Vec<String> = found.into_iter().map(|entry| entry.name).collect();
                    // In the order of their inodes.
                    names.sort_by_cached_key(|name| std::cmp::Reverse(file_names::blob_id_in_name(name)));
                    work.garbage.push_front(Garbage::Directory(dir, Some(names)));
                }
                Garbage::Directory(dir, Some(mut names)) => match names.pop() {
                    Some(name) => {
                        let _ = disk.remove(&dir.join(name));
                        work.garbage.push_front(Garbage::Directory(dir, Some(names)));
                    }
                    None => drop(disk.remove_dir(&dir)),
                },
                Garbage::UnlistedFiles(number) => {
                    if let Err(error) = self.find_unlisted_files(work, number) {
                        work.unswept.insert(number);
                        failed = Err(error);
                        break;
                    }
                }
            }
        }
        if any {
            self.note_clean(work);
        }
        failed.map(|()| any)
    }

    /// Adds the files in a directory that its list does not name to the garbage.
    fn find_unlisted_files(&self, work: &mut MaintenanceState, number: u64) -> Result<()> {
        let version = self.version();
        let Some(table) = version.tables().find(|table| table.dir == number) else { return Ok(()) };
        let mut named: HashSet<String> = HashSet::new();
        for block in 0..table.list.block_count() {
            for item in table.list.entries_of_block(block)? {
                if let ValueRef::File { blob, .. } = item.value {
                    named.insert(file_names::value_name(&item.key, blob.id));
                }
            }
        }
        let dir = self.keyspace.dir(number);
        let found = self.disk()?.list(&dir).during(IoOp::List, &dir)?;
        let litter = found.into_iter().filter(|entry| !named.contains(&entry.name));
        work.garbage.extend(litter.map(|entry| Garbage::Value(number, entry.name)));
        Ok(())
    }

    /// Adds directories, lists and packs that the manifest does not name to the garbage. They are
    /// left by a crash.
    fn find_orphans(&self, work: &mut MaintenanceState) -> Result<()> {
        let version = self.version();
        let mut named: HashSet<String> =
            version.packs.keys().map(|pack| file_names::pack_name(*pack)).collect();
        named.extend(version.tables().map(|table| file_names::dir_name(table.dir)));
        named.extend(version.tables().map(|table| file_names::list_name(table.list.number())));
        let path = &self.keyspace.path;
        for entry in self.disk()?.list(path).during(IoOp::List, path)? {
            if named.contains(&entry.name)
                || is_slot::<TableManifest>(&entry.name)
                || is_temp_slot::<TableManifest>(&entry.name)
            {
                continue;
            }
            let orphan = path.join(entry.name);
            work.garbage.push_back(if entry.is_dir {
                Garbage::Directory(orphan, None)
            } else {
                Garbage::File(orphan)
            });
        }
        let littered = version.tables().filter(|table| table.has_unlisted_files.load(Ordering::Relaxed));
        work.garbage.extend(littered.map(|table| Garbage::UnlistedFiles(table.dir)));
        Ok(())
    }
}
