//! # Flush: moves frozen memtables into tables of level 0
//!
//! A flush takes the oldest frozen memtable, or several of the oldest. It merges them, so that the
//! tables have each key once, with the versions that a view or a later reader may need.
//!
//! Blobs are adopted in place: the key list names them by their ids. They are linked into the
//! directory of a table by a merge, or when the database is idle. Until then the files of a table
//! of level 0 are not linked, and a value that is superseded soon never moves. Small values are
//! copied from the journal into one pack. Range tombstones are applied to the tables
//! (`range_removal.rs`).

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::memtable::{Memtable, MemtableVersion as MemVersion};
use sheaf_engine::views::Views;
use sheaf_log::record::RecordContent;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::{self, Guard};

use crate::engine::DelsmEngine;
use crate::files::list::{BlobLocation, ListEntry, ValueRef};
use crate::files::pack::{Pack, PackWriter};
use crate::maintenance::file_moves::FileMoves;
use crate::maintenance::range_removal::{FlushedRanges, RemovedKeys};
use crate::maintenance::{Job, MaintenanceState, SortedTableBuilder, TableOutputs};
use crate::read::merge_inputs::{Direction, MemtableInput, MergeHeads};
use crate::tree::{Table, Version};

/// Key of a flush, and its versions, newest first. Each has the memtable that contains it.
struct FlushedKey<'m> {
    key: Cow<'m, [u8]>,
    versions: Vec<(&'m Memtable, MemVersion)>,
    /// True if range tombstones cover the key, and no table has a value of it.
    is_unneeded_removal: bool,
}

/// Merge of frozen memtables in the order of their keys.
struct FlushInputs<'m> {
    /// Newest memtable first. The first input with a key has its newest versions (tree I1).
    inputs: Vec<MemtableInput<'m>>,
    heads: MergeHeads,
    with: Vec<usize>,
    /// Keys of tables that range tombstones cover, if there are tombstones.
    removed: Option<RemovedKeys<'m>>,
}

impl<'m> FlushInputs<'m> {
    /// Returns the merge of `frozen`, oldest first, with the keys that their range tombstones
    /// remove from tables.
    fn new(frozen: &'m [Arc<Memtable>], removed: Option<RemovedKeys<'m>>, guard: &Guard) -> FlushInputs<'m> {
        let input = |memtable: &'m Arc<Memtable>| {
            MemtableInput::new(memtable, Bound::Unbounded, Direction::Forward, usize::MAX, guard)
        };
        let inputs: Vec<MemtableInput<'m>> = frozen.iter().rev().map(input).collect();
        let heads = MergeHeads::new(inputs.iter().map(MemtableInput::peek), Direction::Forward);
        FlushInputs { inputs, heads, with: Vec::new(), removed }
    }

    /// Returns the next key.
    fn take(&mut self, guard: &Guard) -> Result<Option<FlushedKey<'m>>> {
        let next = self.inputs.iter().filter_map(MemtableInput::peek).min();
        let from_tables = match &mut self.removed {
            Some(removed) if removed.peek().is_some_and(|key| next.is_none_or(|next| key <= next)) => {
                removed.take()?
            }
            _ => None,
        };
        let Some(mut entry) = (match &from_tables {
            Some(key) if next != Some(key) => Some(FlushedKey {
                key: Cow::Owned(key.clone()),
                versions: Vec::new(),
                is_unneeded_removal: false,
            }),
            _ => self.take_from_memtables(guard),
        }) else {
            return Ok(None);
        };
        if self.removed.is_some() {
            let before = entry.versions.len();
            for memtable in self.inputs.iter().map(MemtableInput::memtable) {
                let piece = memtable.ranges().piece_of(&entry.key, guard);
                let seqs = piece.iter().flat_map(|piece| piece.seqs.iter());
                entry.versions.extend(seqs.map(|seq| (memtable, MemVersion::removed(*seq))));
            }
            entry.is_unneeded_removal = entry.versions.len() > before && from_tables.is_none();
            entry.versions.sort_by_key(|(_, version)| Reverse(version.seq)); // a put stays first
        }
        Ok(Some(entry))
    }

    /// Returns the next key of the memtables.
    fn take_from_memtables(&mut self, guard: &Guard) -> Option<FlushedKey<'m>> {
        let inputs = &self.inputs;
        let key = self.heads.next_key(|input| inputs[input].peek(), &mut self.with)?;
        let mut versions = Vec::new();
        for index in &self.with {
            let input = &mut self.inputs[*index];
            let memtable = input.memtable();
            if let Some(entry) = input.take(guard) {
                versions.extend(entry.versions().map(|version| (memtable, version)));
            }
            self.heads.update(*index, input.peek());
        }
        Some(FlushedKey { key: Cow::Borrowed(key), versions, is_unneeded_removal: false })
    }
}

impl DelsmEngine {
    /// Writes `frozen`, the oldest frozen memtables, into tables, names them in the manifest and
    /// publishes them. All commits in them must be at or before `certain`.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` or `Error::Io` if a value cannot be read, and `Error::Io` if a file
    /// cannot be written or synced.
    pub(crate) fn flush(
        &self,
        work: &mut MaintenanceState,
        frozen: &[Arc<Memtable>],
        views: &Views,
        certain: Seq,
    ) -> Result<()> {
        let newest = frozen.iter().map(|memtable| memtable.newest()).max().unwrap_or(Seq::ZERO);
        assert!(newest <= certain, "delsm (I3): a flush writes only durable commits");
        self.create_keyspace_dir(work)?;
        let mut pack = PackWriter::new(&self.keyspace.path, self.keyspace.owner(), work.next_number());
        let mut dead = Vec::new();
        let ranges = FlushedRanges::new(frozen, &epoch::pin());
        let mut version = Version::clone(&self.version());
        let garbage = match &ranges {
            Some(ranges) => self.drop_covered_tables(&mut version, ranges, views),
            None => Vec::new(),
        };
        let removed = ranges.as_ref().map(|ranges| RemovedKeys::new(ranges, &version)).transpose()?;
        let is_all = version.is_empty();
        let written = self.write_tables(work, (frozen, removed, is_all), views, &mut pack, &mut dead);
        let (tables, opened) = match written {
            Ok(written) => written,
            Err(error) => {
                work.is_sweep_due = true; // the unfinished files
                return Err(error);
            }
        };
        if let Some(pack) = opened {
            version.packs.insert(pack.number, Arc::new(pack));
        }
        version.levels[0].splice(0..0, tables);
        let flushed_seq = work.flushed_seq.max(newest);
        if let Err(error) = self.write_manifest(work, &version, flushed_seq) {
            work.is_sweep_due = true; // the unfinished files
            return Err(error);
        }
        self.publish_version(version, frozen.len());
        work.is_space_short = false;
        work.schedule_sweep();
        for (end_seq, id) in dead {
            self.keyspace.context.retire_blob(end_seq, id);
        }
        if !garbage.is_empty() {
            work.job = Some(Job::Moving(FileMoves::new(Vec::new(), garbage)));
        }
        Ok(())
    }

    /// Writes the versions that a view or a later reader may need into durable tables and a pack.
    /// Holds an epoch guard for one key at a time. `is_all` tells that there are no other tables.
    fn write_tables(
        &self,
        work: &mut MaintenanceState,
        (frozen, removed, is_all): (&[Arc<Memtable>], Option<RemovedKeys<'_>>, bool),
        views: &Views,
        pack: &mut PackWriter,
        dead: &mut Vec<(Seq, u64)>,
    ) -> Result<(Vec<Arc<Table>>, Option<Pack>)> {
        let disk = self.disk()?;
        let mut inputs = FlushInputs::new(frozen, removed, &epoch::pin());
        let mut outputs = TableOutputs::default();
        let mut kept = Vec::new();
        loop {
            let guard = epoch::pin();
            let Some(entry) = inputs.take(&guard)? else { break };
            self.versions_to_keep(&entry, views, dead, &mut kept, &guard)?;
            let hides_none = is_all || entry.is_unneeded_removal;
            while hides_none && kept.last().is_some_and(|(_, version)| version.word.is_tombstone()) {
                kept.pop(); // no older version is below
            }
            let item = |(memtable, version): (&Memtable, MemVersion)| {
                let what = self.value_ref_of(memtable, version, pack, &guard)?;
                Ok(ListEntry { key: entry.key.to_vec(), seq: version.seq, value: what })
            };
            let items = kept.drain(..).map(item).collect::<Result<Vec<ListEntry>>>()?;
            drop(guard);
            pack.write_if_full(disk)?;
            let is_full =
                |made: &SortedTableBuilder| made.writer.totals().entries >= 2 * self.sizes.table_entries;
            if !items.is_empty() && outputs.current.as_ref().is_none_or(is_full) {
                let made =
                    SortedTableBuilder::new(&self.keyspace, work.next_number(), true, work.next_number());
                self.start_table(&mut outputs, made)?;
            }
            let Some(table) = &mut outputs.current else { continue };
            let hash = self.keyspace.hash(&entry.key);
            items.iter().for_each(|item| table.writer.add(hash, item));
        }
        let pack = pack.finish(disk)?;
        Ok((self.finish_tables(outputs)?, pack))
    }

    /// Collects the versions of a key that a view or a later reader may need, the newest first.
    /// Adds the blobs of the other versions to `dead`.
    fn versions_to_keep<'m>(
        &self,
        entry: &FlushedKey<'m>,
        views: &Views,
        dead: &mut Vec<(Seq, u64)>,
        kept: &mut Vec<(&'m Memtable, MemVersion)>,
        guard: &Guard,
    ) -> Result<()> {
        let mut newer: Option<Seq> = None;
        for (memtable, version) in entry.versions.iter().copied() {
            match newer {
                Some(newer) if newer <= version.seq => continue, // a duplicate
                Some(end_seq) if !views.may_need(version.seq, end_seq) => {
                    if version.word.is_blob() {
                        let id = self.blob_id_of(memtable, version, guard)?;
                        dead.extend(id.map(|id| (end_seq, id)));
                    }
                }
                _ => kept.push((memtable, version)),
            }
            newer = Some(version.seq);
        }
        Ok(())
    }

    /// Returns the reference of a table to a version. Adds a small value to the pack.
    fn value_ref_of(
        &self,
        memtable: &Memtable,
        version: MemVersion,
        pack: &mut PackWriter,
        guard: &Guard,
    ) -> Result<ValueRef> {
        memtable.content(version.word, &self.keyspace.context, guard, |content| {
            Ok(match content {
                RecordContent::Remove | RecordContent::RemoveRange(_) => ValueRef::Removed,
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
