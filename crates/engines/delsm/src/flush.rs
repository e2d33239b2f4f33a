//! # Flush: a frozen memtable becomes tables of level 0
//!
//! Staged values are adopted where they are: the key list names them by number. They get readable names in a table's directory
//! when a merge takes them down, or at rest; until then a table of level 0 is not settled, and a value that is superseded soon
//! never moves. Small values are copied from the journal into one pack.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::error::Result;
use sheaf_base::memtable::{Entry, Memtable, Version as MemVersion};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch::{self, Guard};
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

use crate::engine::DelsmEngine;
use crate::lanes::{MemLane, Way};
use crate::list::{Home, Item, What};
use crate::pack::{Pack, PackWriter};
use crate::tree::{Table, Version};
use crate::work::{Made, Outputs, Work};

impl DelsmEngine {
    /// Writes the frozen memtable, names it in the manifest and publishes it.
    pub(crate) fn flush(&self, work: &mut Work, frozen: &Arc<Memtable>, views: &Views) -> Result<()> {
        self.make_home(work)?;
        let mut pack = PackWriter::new(&self.shelf.path, self.shelf.owner(), work.number());
        let mut dead = Vec::new();
        let written = self.write_tables(work, frozen, views, &mut pack, &mut dead);
        let (tables, opened) = match written {
            Ok(written) => written,
            Err(error) => {
                work.sweep_due = true; // what was written for it
                return Err(error);
            }
        };
        let mut version = Version::clone(&self.version());
        if let Some(pack) = opened {
            version.packs.insert(pack.number, Arc::new(pack));
        }
        version.levels[0].splice(0..0, tables);
        let up_to = work.up_to.max(frozen.newest());
        if let Err(error) = self.write_manifest(work, &version, up_to) {
            work.sweep_due = true; // what was written for it
            return Err(error);
        }
        self.publish_version(version, true);
        work.is_cramped = false;
        work.sweep_again();
        for (died, id) in dead {
            self.shelf.ground.blob_died(died, id);
        }
        Ok(())
    }

    /// What of the memtable anybody may still see, in tables and a pack that are durable. A guard is held for one key at a time.
    fn write_tables(
        &self,
        work: &mut Work,
        frozen: &Arc<Memtable>,
        views: &Views,
        pack: &mut PackWriter,
        dead: &mut Vec<(Seq, u64)>,
    ) -> Result<(Vec<Arc<Table>>, Option<Pack>)> {
        let (is_all, disk) = (self.version().is_empty(), self.disk()?);
        let mut lane = MemLane::new(frozen, Bound::Unbounded, Way::Up, &epoch::pin());
        let mut outputs = Outputs::default();
        let mut kept = Vec::new();
        loop {
            let guard = epoch::pin();
            let Some(entry) = lane.take(&guard) else { break };
            self.keep_of(frozen, &entry, views, dead, &mut kept, &guard)?;
            while is_all && kept.last().is_some_and(|version| version.word.is_tomb()) {
                kept.pop(); // a removal hides nothing where there is nothing below
            }
            let item = |version: MemVersion| {
                let what = self.what_of(frozen, version, pack, &guard)?;
                Ok(Item { key: entry.key().to_vec(), seq: version.seq, what })
            };
            let items = kept.drain(..).map(item).collect::<Result<Vec<Item>>>()?;
            drop(guard);
            pack.write_if_full(disk)?;
            let is_full = |made: &Made| made.writer.totals().entries >= 2 * self.sizes.table_entries;
            if !items.is_empty() && outputs.open.as_ref().is_none_or(is_full) {
                let made = Made::new(&self.shelf, work.number(), true, work.number());
                self.begin_list(&mut outputs, made)?;
            }
            let Some(table) = &mut outputs.open else { continue };
            let hash = self.shelf.hash(entry.key());
            items.iter().for_each(|item| table.writer.add(hash, item));
        }
        let pack = pack.finish(disk)?;
        Ok((self.end_lists(outputs)?, pack))
    }

    /// Those versions of a key that anybody may still see, the newest first; values in files of others are dead.
    fn keep_of(
        &self,
        frozen: &Memtable,
        entry: &Entry<'_>,
        views: &Views,
        dead: &mut Vec<(Seq, u64)>,
        kept: &mut Vec<MemVersion>,
        guard: &Guard,
    ) -> Result<()> {
        let mut newer: Option<Seq> = None;
        for version in entry.versions() {
            match newer {
                Some(newer) if newer <= version.seq => continue, // seen twice
                Some(died) if !views.may_need(version.seq, died) => {
                    if version.word.is_staged() {
                        let id = self.staged_id(frozen, version, guard)?;
                        dead.extend(id.map(|id| (died, id)));
                    }
                }
                _ => kept.push(version),
            }
            newer = Some(version.seq);
        }
        Ok(())
    }

    /// How a table names a version; a small value is added to the pack.
    fn what_of(
        &self,
        frozen: &Memtable,
        version: MemVersion,
        pack: &mut PackWriter,
        guard: &Guard,
    ) -> Result<What> {
        frozen.content(version.word, &self.shelf.ground, guard, |content| {
            Ok(match content {
                Content::Remove => What::Gone,
                Content::Staged(blob) => What::File { blob, home: Home::Staged },
                Content::Put(value) => What::Packed {
                    pack: pack.number,
                    offset: pack.add(value),
                    len: u32::try_from(value.len()).unwrap_or(u32::MAX),
                    sum: crc32c::crc32c(value),
                },
            })
        })
    }

    /// The number of the staged value that a version is.
    pub(crate) fn staged_id(
        &self,
        memtable: &Memtable,
        version: MemVersion,
        guard: &Guard,
    ) -> Result<Option<u64>> {
        memtable.content(version.word, &self.shelf.ground, guard, |content| {
            Ok(if let Content::Staged(blob) = content { Some(blob.id) } else { None })
        })
    }
}
