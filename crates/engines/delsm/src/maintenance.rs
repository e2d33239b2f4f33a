//! # Work: the steps between two looks of the store
//!
//! ## Picture
//!
//! ```text
//!  frozen memtable ── flush ──┐                          ┌── merge, part by part ── level over its limit, garbage
//!                             v                          v
//!        lists and packs written, synced ─> manifest ─> published
//!                                           names them      │ after a merge, or at rest
//!                                                           v
//!                  files linked into their tables' directories ─> directories synced ─> manifest again
//!                                                                   ─> old names, dead files, old lists removed
//! ```
//!
//! One job at a time, a bounded piece of it a step.
//!
//! ## Invariants
//!
//! 1. What the manifest names is durable, but for the places of files: those of a table that is not settled are
//!    where the key list says, or in the table's directory already. So a job's moves can be done again after a crash.
//! 2. Nothing is removed before the files are durably in their new places and both slots of the manifest are past
//!    what named the old ones.
//! 3. A merge takes tables that are settled, and tables of a flush, whose files are all among the staged ones: what a job left
//!    half moved is moved before anything else.
//! 4. Numbers of directories, lists and packs are never used again, so a name means one thing for ever. (And ext4 creates
//!    files fast in directories with names that are new: `Disk::spread`.)
//! 5. While a state stays (`pinned_tables.rs`) nothing is removed; what waits is removed after.
//! 6. A directory that may hold dead values is marked in every manifest (littered) until all of them are gone. So what could not be
//!    removed is looked for again after the next flush or merge, and at the next opening. A step that fails at this says so once and
//!    holds up nothing else.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use sheaf_base::disk::{Disk, OpenMode, create_dirs};
use sheaf_base::double_slot::{DoubleSlot, is_slot, is_temp_slot};
use sheaf_base::error::{Error, IoContext, Result};
use sheaf_base::sync::atomic::Ordering;
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

use crate::engine::DelsmEngine;
use crate::file_moves::FileMoves;
use crate::file_names;
use crate::idle_compaction::IdleCompaction;
use crate::list::{KeyList, KeyListWriter, ValueRef};
use crate::manifest::{TableEntry, TableFlags, TableManifest};
use crate::merge::Merge;
use crate::tree::{KeyspaceContext, Table, Version};

/// Something to remove.
#[derive(Debug)]
pub(crate) enum Garbage {
    /// A list, a pack, or what nobody knows beside them: every opening looks for these.
    File(PathBuf),
    /// A value's file: the directory's number, and its name there.
    Value(u64, String),
    /// A staged value that a table has adopted.
    Blob(u64),
    /// A directory; the names left in it, once it was listed.
    Directory(PathBuf, Option<Vec<String>>),
    /// What a directory holds beside what its list names.
    UnlistedFiles(u64),
}

/// What is being done.
#[derive(Debug)]
pub(crate) enum Job {
    /// Tables are being merged.
    Merging(Box<Merge>),
    /// Files are on their way into the directories of tables.
    Moving(FileMoves),
}

/// What the work lock guards.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceState {
    pub(crate) manifest_slots: Option<DoubleSlot>,
    pub(crate) generation: u64,
    /// All commits up to here are in tables.
    pub(crate) flushed_seq: Seq,
    /// What an image said of that.
    pub(crate) min_flushed_seq: Seq,
    /// The next number of a directory, list or pack.
    pub(crate) next_number: u64,
    pub(crate) job: Option<Job>,
    pub(crate) garbage: VecDeque<Garbage>,
    /// Directories, lists and packs that nobody names may be there.
    pub(crate) is_sweep_due: bool,
    /// Looking for them failed: it is due again after the next flush or merge.
    pub(crate) is_sweep_missed: bool,
    /// Directories that could not be looked through, or of which a value could not be removed (I6).
    pub(crate) unswept: BTreeSet<u64>,
    pub(crate) poisoned: Option<&'static str>,
    /// States that stay (`pinned_tables.rs`): nothing is removed meanwhile.
    pub(crate) pin_count: usize,
    /// What is known of garbage.
    pub(crate) idle_compaction: IdleCompaction,
    /// The last merge found no room: the next one leaves packs as they are, of which copies take
    /// some before they give any.
    pub(crate) is_space_short: bool,
    /// The last merge failed: flushes do not wait for the next one.
    pub(crate) is_stuck: bool,
    /// By level: where the last table taken from it ended.
    pub(crate) last_pushed_down: Vec<Vec<u8>>,
}

impl MaintenanceState {
    /// Numbers of staged values that tables have adopted under other names, and whose own names
    /// wait to be removed.
    pub(crate) fn adopted_blobs(&self) -> impl Iterator<Item = u64> {
        let (merging, moving): (&[u64], &[Garbage]) = match &self.job {
            Some(Job::Merging(merge)) => (merge.stale_blobs(), &[]),
            Some(Job::Moving(moving)) => (&[], moving.garbage_after()),
            None => (&[], &[]),
        };
        let of_garbage = |garbage: &Garbage| if let Garbage::Blob(id) = garbage { Some(*id) } else { None };
        self.garbage.iter().chain(moving).filter_map(of_garbage).chain(merging.iter().copied())
    }

    /// Nothing is held any more. Merges went on meanwhile, and may have given a file a name again
    /// that waited to be removed: which ones are named is looked up when their turn comes.
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

    /// What could not be looked for or removed is tried again. Not at once: what fails for good
    /// would hold up everything.
    pub(crate) fn schedule_sweep(&mut self) {
        self.is_sweep_due |= std::mem::take(&mut self.is_sweep_missed);
        self.garbage.extend(std::mem::take(&mut self.unswept).into_iter().map(Garbage::UnlistedFiles));
    }
}

/// Tables of a flush, of a part of a merge or of an ingest: a list is written when the next begins,
/// so that one is in memory.
#[derive(Debug, Default)]
pub(crate) struct TableOutputs {
    /// The one that is being filled.
    pub(crate) current: Option<TableBuilder>,
    written: Vec<Arc<Table>>,
}

impl TableOutputs {
    /// A table alone.
    pub(crate) fn with_table(made: TableBuilder) -> TableOutputs {
        TableOutputs { current: Some(made), written: Vec::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_none() && self.written.is_empty()
    }
}

/// A list on its way to a table.
#[derive(Debug)]
pub(crate) struct TableBuilder {
    pub(crate) dir: u64,
    is_new: bool,
    pub(crate) writer: KeyListWriter,
    number: u64,
}

impl TableBuilder {
    /// List `number` of the table in directory `dir`.
    pub(crate) fn new(keyspace: &KeyspaceContext, dir: u64, is_new: bool, number: u64) -> TableBuilder {
        TableBuilder {
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

    /// One step. True if there is more to do.
    pub(crate) fn step(&self, views: &Views, certain: Seq) -> Result<bool> {
        let mut work = self.work.lock();
        if let Some(op) = work.poisoned {
            return Err(Error::Poisoned { op });
        }
        let answer = self.step_locked(&mut work, views, certain);
        if let Err(error @ Error::Io { op, .. }) = &answer
            && error.is_failed_sync()
        {
            work.poisoned = Some(op);
            return Err(Error::Poisoned { op });
        }
        answer
    }

    fn step_locked(&self, work: &mut MaintenanceState, views: &Views, certain: Seq) -> Result<bool> {
        if let Some(Job::Moving(_)) = work.job {
            return self.move_next_files(work).map(|()| true);
        }
        // A merge that is under way is finished first, part by part.
        let frozen = self.frozen().filter(|frozen| frozen.newest() <= certain);
        if let Some(frozen) = frozen.filter(|_| work.job.is_none()) {
            self.remove_files(work)?;
            if !work.is_stuck && self.merge_before_flush(work, views)? {
                return Ok(true);
            }
            return self.flush(work, &frozen, views).map(|()| true);
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

    /// Makes the keyspace's directory, if it is the first time.
    pub(crate) fn create_keyspace_dir(&self, work: &mut MaintenanceState) -> Result<()> {
        let Some(engine_dir) = &self.keyspace.context.engine_dir else { return self.disk().map(drop) };
        if work.manifest_slots.is_none() {
            create_dirs(&*engine_dir.disk, &self.keyspace.path)?;
            engine_dir.disk.spread_dirs(&self.keyspace.path);
            work.manifest_slots = Some(DoubleSlot::new(Arc::clone(&engine_dir.disk), &self.keyspace.path));
        }
        Ok(())
    }

    /// Goes on to another table. What an error leaves behind is swept.
    pub(crate) fn start_table(&self, outputs: &mut TableOutputs, made: TableBuilder) -> Result<()> {
        match outputs.current.replace(made) {
            Some(full) => self.write_list(full).map(|table| outputs.written.push(table)),
            None => Ok(()),
        }
    }

    /// All tables, durable, not settled yet.
    pub(crate) fn finish_tables(&self, mut outputs: TableOutputs) -> Result<Vec<Arc<Table>>> {
        if let Some(last) = outputs.current.take() {
            outputs.written.push(self.write_list(last)?);
        }
        let path = &self.keyspace.path;
        self.disk()?.sync_dir(path).during("sync directory", path)?;
        Ok(outputs.written)
    }

    /// Writes a list, durably but for its name, and opens it.
    fn write_list(&self, made: TableBuilder) -> Result<Arc<Table>> {
        let (disk, dir) = (self.disk()?, self.keyspace.dir(made.dir));
        if made.is_new {
            disk.create_dir(&dir).during("create", &dir)?;
        }
        let path = self.keyspace.path.join(file_names::list_name(made.number));
        let file = disk.open(&path, OpenMode::Create).during("create", &path)?;
        let marks = TableFlags {
            files_linked: made.writer.totals().files == 0,
            has_unlisted_files: !made.is_new,
            has_old_versions: made.writer.has_old_versions(),
        };
        file.write_at(0, &made.writer.finish()).during("write", &path)?;
        file.sync().during("sync", &path)?;
        let list = KeyList::open(disk, path, self.keyspace.owner(), made.number)?;
        Ok(Table::new(&self.keyspace, made.dir, list, marks))
    }

    /// The next manifest, which names `version`; what it says of tables goes through `marks_of`.
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

    /// Makes `version` the durable one.
    pub(crate) fn write_manifest(
        &self,
        work: &mut MaintenanceState,
        version: &Version,
        flushed_seq: Seq,
    ) -> Result<()> {
        let manifest = self.manifest_of(work, version, flushed_seq, |marks| marks);
        let Some(pair) = &work.manifest_slots else { return self.disk().map(drop) };
        pair.write(&manifest)?;
        work.generation = manifest.generation;
        work.flushed_seq = flushed_seq;
        Ok(())
    }

    /// Removes lists and packs that are garbage: few files, which may take as much as all that
    /// lives, and a flush takes more.
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

    /// Without garbage no directory has unlisted files, but for those that could not be swept.
    fn note_clean(&self, work: &MaintenanceState) {
        if work.garbage.is_empty() && !work.is_sweep_missed {
            for table in self.version().tables() {
                table.has_unlisted_files.store(work.unswept.contains(&table.dir), Ordering::Relaxed);
            }
        }
    }

    /// Removes some garbage. False if there was none.
    fn remove_garbage(&self, work: &mut MaintenanceState) -> Result<bool> {
        let disk = self.disk()?;
        let (mut any, mut failed) = (false, Ok(()));
        for _ in 0..self.sizes.files_per_step {
            let Some(garbage) = work.garbage.pop_front() else { break };
            any = true;
            // What cannot be removed is swept at the next opening: values because their directories
            // stay littered.
            match garbage {
                Garbage::File(path) => drop(disk.remove(&path)),
                Garbage::Value(dir, name) => match disk.remove(&self.keyspace.dir(dir).join(name)) {
                    Err(e) if e.kind() != ErrorKind::NotFound => drop(work.unswept.insert(dir)),
                    _ => {}
                },
                Garbage::Blob(id) => drop(self.keyspace.context.blobs.remove(id)),
                Garbage::Directory(dir, None) => {
                    let found = disk.list(&dir).unwrap_or_default();
                    let mut names: Vec<String> = found.into_iter().map(|entry| entry.name).collect();
                    names.sort_by_cached_key(|name| std::cmp::Reverse(file_names::blob_id_in_name(name))); // as their inodes lie
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

    /// What is in a directory and not in its list becomes garbage.
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
        let found = self.disk()?.list(&dir).during("list", &dir)?;
        let litter = found.into_iter().filter(|entry| !named.contains(&entry.name));
        work.garbage.extend(litter.map(|entry| Garbage::Value(number, entry.name)));
        Ok(())
    }

    /// Directories, lists and packs that the manifest does not name become garbage: a crash left
    /// them.
    fn find_orphans(&self, work: &mut MaintenanceState) -> Result<()> {
        let version = self.version();
        let mut named: HashSet<String> =
            version.packs.keys().map(|pack| file_names::pack_name(*pack)).collect();
        named.extend(version.tables().map(|table| file_names::dir_name(table.dir)));
        named.extend(version.tables().map(|table| file_names::list_name(table.list.number())));
        let path = &self.keyspace.path;
        for entry in self.disk()?.list(path).during("list", path)? {
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
