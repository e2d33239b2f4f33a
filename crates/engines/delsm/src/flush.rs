//! # Flush: a frozen memtable becomes tables of level 0
//!
//! Staged values are adopted where they are: the key list names them by number. They get readable names in a table's directory
//! when a merge takes them down, or at rest; until then a table of level 0 is not settled, and a value that is superseded soon
//! never moves. Small values are copied from the journal into one pack.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::error::Result;
use sheaf_base::memtable::{Memtable, Version as MemVersion};
use sheaf_base::record::Content;
use sheaf_base::sync::epoch;
use sheaf_base::types::Seq;
use sheaf_base::views::Views;

use crate::engine::DelsmEngine;
use crate::lanes::{MemLane, Way};
use crate::list::{Home, Item, ListWriter, What};
use crate::pack::{Pack, PackWriter};
use crate::tree::Version;
use crate::work::{Made, Work};

impl DelsmEngine {
    /// Writes the frozen memtable, names it in the manifest and publishes it.
    pub(crate) fn flush(&self, work: &mut Work, frozen: &Arc<Memtable>, views: &Views) -> Result<()> {
        self.make_home(work)?;
        let mut pack = PackWriter::new(&self.shelf.path, self.shelf.owner(), work.number());
        let mut dead = Vec::new();
        let written = self
            .gather_memtable(work, frozen, views, &mut pack, &mut dead)
            .and_then(|made| pack.finish().map(|has_pack| (made, has_pack)))
            .and_then(|(made, has_pack)| {
                let open = || Pack::open(self.disk()?, &self.shelf.path, self.shelf.owner(), pack.number);
                let opened = has_pack.then(open).transpose()?;
                self.write_lists(work, made).map(|tables| (tables, opened))
            });
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

    fn gather_memtable(
        &self,
        work: &mut Work,
        frozen: &Arc<Memtable>,
        views: &Views,
        pack: &mut PackWriter,
        dead: &mut Vec<(Seq, u64)>,
    ) -> Result<Vec<Made>> {
        let is_all = self.version().is_empty();
        let guard = &epoch::pin();
        let mut lane = MemLane::new(frozen, Bound::Unbounded, Way::Up, guard);
        let mut made: Vec<Made> = Vec::new();
        while let Some(entry) = lane.take(guard) {
            let key = entry.key();
            let mut kept: Vec<MemVersion> = Vec::new();
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
            while is_all && kept.last().is_some_and(|version| version.word.is_tomb()) {
                kept.pop(); // a removal hides nothing where there is nothing below
            }
            let is_full = |made: &Made| made.writer.totals().entries >= 2 * self.sizes.table_entries;
            if !kept.is_empty() && made.last().is_none_or(is_full) {
                let (dir, number) = (work.number(), work.number());
                let writer = ListWriter::new(self.shelf.owner(), number, self.shelf.ground.tiny);
                made.push(Made { dir, is_new: true, writer, number });
            }
            let Some(table) = made.last_mut() else { continue };
            let hash = self.shelf.hash(key);
            for version in kept {
                let disk = self.disk()?;
                let what = frozen.content(version.word, &self.shelf.ground, guard, |content| {
                    Ok(match content {
                        Content::Remove => What::Gone,
                        Content::Staged(blob) => What::File { blob, home: Home::Staged },
                        Content::Put(value) => What::Packed {
                            pack: pack.number,
                            offset: pack.add(disk, value)?,
                            len: u32::try_from(value.len()).unwrap_or(u32::MAX),
                            sum: crc32c::crc32c(value),
                        },
                    })
                })?;
                table.writer.add(hash, &Item { key: key.to_vec(), seq: version.seq, what });
            }
        }
        Ok(made)
    }

    /// The number of the staged value that a version is.
    pub(crate) fn staged_id(
        &self,
        memtable: &Memtable,
        version: MemVersion,
        guard: &epoch::Guard,
    ) -> Result<Option<u64>> {
        memtable.content(version.word, &self.shelf.ground, guard, |content| {
            Ok(if let Content::Staged(blob) = content { Some(blob.id) } else { None })
        })
    }
}
