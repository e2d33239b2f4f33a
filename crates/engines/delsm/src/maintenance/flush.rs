//! # Flush: moves a frozen memtable into tables of level 0
//!
//! Blobs are adopted in place: the key list names them by their ids. They are linked into the
//! directory of a table by a merge, or when the database is idle. Until then the files of a table
//! of level 0 are not linked, and a value that is superseded soon never moves. Small values are
//! copied from the journal into one pack.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::memtable::{Memtable, MemtableEntry, MemtableVersion as MemVersion};
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::DelsmEngine;
use crate::files::list::{BlobLocation, ListEntry, ValueRef};
use crate::files::pack::{Pack, PackWriter};
use crate::maintenance::{MaintenanceState, TableBuilder, TableOutputs};
use crate::read::merge_inputs::{Direction, MemtableInput};
use crate::tree::{Table, Version};

impl DelsmEngine {
    /// Writes the frozen memtable into tables, names them in the manifest and publishes them. All
    /// commits in it must be at or before `certain`.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` or `Error::Io` if a value cannot be read, and `Error::Io` if a file
    /// cannot be written or synced.
    pub(crate) fn flush(
        &self,
        work: &mut MaintenanceState,
        frozen: &Arc<Memtable>,
        views: &Views,
        certain: Seq,
    ) -> Result<()> {
        assert!(frozen.newest() <= certain, "delsm (I3): a flush writes only durable commits");
        self.create_keyspace_dir(work)?;
        let mut pack = PackWriter::new(&self.keyspace.path, self.keyspace.owner(), work.next_number());
        let mut dead = Vec::new();
        let written = self.write_tables(work, frozen, views, &mut pack, &mut dead);
        let (tables, opened) = match written {
            Ok(written) => written,
            Err(error) => {
                work.is_sweep_due = true; // the unfinished files
                return Err(error);
            }
        };
        let mut version = Version::clone(&self.version());
        if let Some(pack) = opened {
            version.packs.insert(pack.number, Arc::new(pack));
        }
        version.levels[0].splice(0..0, tables);
        let flushed_seq = work.flushed_seq.max(frozen.newest());
        if let Err(error) = self.write_manifest(work, &version, flushed_seq) {
            work.is_sweep_due = true; // the unfinished files
            return Err(error);
        }
        self.publish_version(version, true);
        work.is_space_short = false;
        work.schedule_sweep();
        for (died, id) in dead {
            self.keyspace.context.retire_blob(died, id);
        }
        Ok(())
    }

    /// Writes the versions that a view or a later reader may need into durable tables and a pack.
    /// Holds an epoch guard for one key at a time.
    fn write_tables(
        &self,
        work: &mut MaintenanceState,
        frozen: &Arc<Memtable>,
        views: &Views,
        pack: &mut PackWriter,
        dead: &mut Vec<(Seq, u64)>,
    ) -> Result<(Vec<Arc<Table>>, Option<Pack>)> {
        let (is_all, disk) = (self.version().is_empty(), self.disk()?);
        let mut merge_input = MemtableInput::new(frozen, Bound::Unbounded, Direction::Forward, &epoch::pin());
        let mut outputs = TableOutputs::default();
        let mut kept = Vec::new();
        loop {
            let guard = epoch::pin();
            let Some(entry) = merge_input.take(&guard) else { break };
            self.versions_to_keep(frozen, &entry, views, dead, &mut kept, &guard)?;
            while is_all && kept.last().is_some_and(|version| version.word.is_tombstone()) {
                kept.pop(); // no older version is below
            }
            let item = |version: MemVersion| {
                let what = self.value_ref_of(frozen, version, pack, &guard)?;
                Ok(ListEntry { key: entry.key().to_vec(), seq: version.seq, value: what })
            };
            let items = kept.drain(..).map(item).collect::<Result<Vec<ListEntry>>>()?;
            drop(guard);
            pack.write_if_full(disk)?;
            let is_full = |made: &TableBuilder| made.writer.totals().entries >= 2 * self.sizes.table_entries;
            if !items.is_empty() && outputs.current.as_ref().is_none_or(is_full) {
                let made = TableBuilder::new(&self.keyspace, work.next_number(), true, work.next_number());
                self.start_table(&mut outputs, made)?;
            }
            let Some(table) = &mut outputs.current else { continue };
            let hash = self.keyspace.hash(entry.key());
            items.iter().for_each(|item| table.writer.add(hash, item));
        }
        let pack = pack.finish(disk)?;
        Ok((self.finish_tables(outputs)?, pack))
    }

    /// Collects the versions of a key that a view or a later reader may need, the newest first.
    /// Adds the blobs of the other versions to `dead`.
    fn versions_to_keep(
        &self,
        frozen: &Memtable,
        entry: &MemtableEntry<'_>,
        views: &Views,
        dead: &mut Vec<(Seq, u64)>,
        kept: &mut Vec<MemVersion>,
        guard: &Guard,
    ) -> Result<()> {
        let mut newer: Option<Seq> = None;
        for version in entry.versions() {
            match newer {
                Some(newer) if newer <= version.seq => continue, // a duplicate
                Some(died) if !views.may_need(version.seq, died) => {
                    if version.word.is_blob() {
                        let id = self.blob_id_of(frozen, version, guard)?;
                        dead.extend(id.map(|id| (died, id)));
                    }
                }
                _ => kept.push(version),
            }
            newer = Some(version.seq);
        }
        Ok(())
    }

    /// Returns the reference of a table to a version. Adds a small value to the pack.
    fn value_ref_of(
        &self,
        frozen: &Memtable,
        version: MemVersion,
        pack: &mut PackWriter,
        guard: &Guard,
    ) -> Result<ValueRef> {
        frozen.content(version.word, &self.keyspace.context, guard, |content| {
            Ok(match content {
                RecordContent::Remove => ValueRef::Removed,
                RecordContent::Blob(blob) => ValueRef::File { blob, location: BlobLocation::BlobStore },
                RecordContent::Put(value) => ValueRef::Packed {
                    pack: pack.number,
                    offset: pack.add(value),
                    len: u32::try_from(value.len()).unwrap_or(u32::MAX),
                    sum: crc32c::crc32c(value),
                },
            })
        })
    }

    /// Returns the id of the blob that a version refers to, if it does.
    pub(crate) fn blob_id_of(
        &self,
        memtable: &Memtable,
        version: MemVersion,
        guard: &Guard,
    ) -> Result<Option<u64>> {
        memtable.content(version.word, &self.keyspace.context, guard, |content| {
            Ok(if let RecordContent::Blob(blob) = content { Some(blob.id) } else { None })
        })
    }
}
