//! # Range removal: the range tombstones of a flush, applied to the tables
//!
//! A flush applies the tombstones of its memtables to the tables, in the same version of the
//! manifest as the new tables. Readers use the tombstones until then.
//!
//! ```text
//!  tombstone        [──────────────────────────)
//!  tables       [ keys removed ][ dropped ][ keys removed ]
//! ```
//!
//! ## Rule
//!
//! A table is dropped without a read if the tombstones cover all its keys, its files are linked,
//! and no view may need its versions. From the other tables, the flush reads the keys in the ranges
//! and writes a removal of each one that is not removed yet. Merges drop these removals.
//!
//! ## Crash
//!
//! A flush that ends before its manifest is durable has changed nothing.

use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::memtable::Memtable;
use sheaf_engine::memtable::range_tombstones::{RangePiece, covers};
use sheaf_engine::views::Views;
use sheaf_log::types::Seq;
use sheaf_platform::error::Result;
use sheaf_platform::sync::epoch::Guard;

use crate::engine::DelsmEngine;
use crate::files::file_names;
use crate::files::list::ValueRef;
use crate::maintenance::Garbage;
use crate::read::merge_inputs::{Direction, MergeHeads, TableInput};
use crate::tree::{Table, Version};

/// Range tombstones of the memtables of a flush.
pub(crate) struct FlushedRanges {
    /// Pieces of all memtables, in the order of their first keys. They may overlap.
    pieces: Vec<Arc<RangePiece>>,
    newest: Seq,
}

impl FlushedRanges {
    /// Returns the tombstones of `frozen`, or `None` if there are none.
    pub(crate) fn new(frozen: &[Arc<Memtable>], guard: &Guard) -> Option<FlushedRanges> {
        let mut pieces: Vec<Arc<RangePiece>> =
            frozen.iter().flat_map(|memtable| memtable.ranges().pieces(guard)).cloned().collect();
        pieces.sort_by(|a, b| a.first.cmp(&b.first));
        let newest = pieces.iter().filter_map(|piece| piece.seqs.first()).max().copied()?;
        Some(FlushedRanges { pieces, newest })
    }

    /// Returns true if the tombstones cover all keys of `table`.
    fn covers(&self, table: &Table) -> bool {
        covers(&self.pieces, table.list.first_key(), |end| end > table.list.last_key())
    }

    /// Returns the first range from `key` on: its first key, and its end.
    fn next_from(&self, key: &[u8]) -> Option<(&[u8], Option<&[u8]>)> {
        let piece = self.pieces.iter().find(|piece| piece.ends_after(key))?;
        Some((&piece.first, piece.end.as_deref()))
    }
}

/// Keys with a value in tables, in removed ranges and in their order.
pub(crate) struct RemovedKeys<'r> {
    ranges: &'r FlushedRanges,
    inputs: Vec<TableInput>,
    heads: MergeHeads,
    /// Tables of level 0, newest first, and those of each further level.
    sources: Vec<Vec<Arc<Table>>>,
    /// End of the present range; `None` if it has no upper limit.
    end: Option<Vec<u8>>,
    with: Vec<usize>,
    /// The next key.
    next: Option<Vec<u8>>,
}

impl<'r> RemovedKeys<'r> {
    /// Returns the keys in the tables of `version`.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` or `Error::Io` if a list cannot be read.
    pub(crate) fn new(ranges: &'r FlushedRanges, version: &Version) -> Result<RemovedKeys<'r>> {
        let mut sources: Vec<Vec<Arc<Table>>> =
            version.levels[0].iter().map(|table| vec![Arc::clone(table)]).collect();
        sources.extend(version.levels[1..].iter().filter(|level| !level.is_empty()).cloned());
        let heads = MergeHeads::new(std::iter::empty(), Direction::Forward);
        let (inputs, with) = (Vec::new(), Vec::new());
        let mut keys = RemovedKeys { ranges, inputs, heads, sources, end: None, with, next: None };
        keys.seek(&[]);
        keys.next = keys.read_next()?;
        Ok(keys)
    }

    /// Returns the next key without taking it.
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        self.next.as_deref()
    }

    /// Takes the next key.
    ///
    /// # Errors
    ///
    /// Returns `Error::Corrupt` or `Error::Io` if a list cannot be read.
    pub(crate) fn take(&mut self) -> Result<Option<Vec<u8>>> {
        let next = self.read_next()?;
        Ok(std::mem::replace(&mut self.next, next))
    }

    /// Moves to the first range that has a key at or above `key`. Without one, the keys end.
    fn seek(&mut self, key: &[u8]) {
        self.inputs.clear();
        self.heads = MergeHeads::new(std::iter::empty(), Direction::Forward);
        let Some((first, end)) = self.ranges.next_from(key) else { return };
        let from = Bound::Included(first.max(key));
        self.inputs = self
            .sources
            .iter()
            .map(|tables| TableInput::new(tables.clone(), from, Direction::Forward))
            .collect();
        self.heads = MergeHeads::new(self.inputs.iter().map(TableInput::peek), Direction::Forward);
        self.end = end.map(<[u8]>::to_vec);
    }

    /// Reads up to the next key that has a value in the tables.
    fn read_next(&mut self) -> Result<Option<Vec<u8>>> {
        loop {
            let inputs = &self.inputs;
            let Some(key) = self.heads.next_key(|input| inputs[input].peek(), &mut self.with) else {
                return Ok(None);
            };
            let key = key.to_vec();
            if let Some(end) = self.end.clone().filter(|end| key >= *end) {
                self.seek(&end);
                continue;
            }
            let mut newest: Option<(Seq, ValueRef)> = None;
            for index in std::mem::take(&mut self.with) {
                let (_, versions) = self.inputs[index].take_group()?;
                let first = versions.first().map(|item| (item.seq, item.value));
                newest = newest.into_iter().chain(first).max_by_key(|(seq, _)| *seq);
                self.heads.update(index, self.inputs[index].peek());
            }
            if newest.is_some_and(|(_, value)| value != ValueRef::Removed) {
                return Ok(Some(key));
            }
        }
    }
}

impl DelsmEngine {
    /// Removes the tables from `version` of which `ranges` cover all keys, unless a view may need
    /// them. Returns the files that are then superfluous.
    pub(crate) fn drop_covered_tables(
        &self,
        version: &mut Version,
        ranges: &FlushedRanges,
        views: &Views,
    ) -> Vec<Garbage> {
        if views.may_need_before(ranges.newest) {
            return Vec::new();
        }
        let mut dropped: Vec<Arc<Table>> = Vec::new();
        for level in &mut version.levels {
            level.retain(|table| {
                let stays = !table.is_linked() || !ranges.covers(table);
                if !stays {
                    dropped.push(Arc::clone(table));
                }
                stays
            });
        }
        let mut garbage = Vec::new();
        for table in &dropped {
            garbage.push(Garbage::File(self.keyspace.path.join(file_names::list_name(table.list.number()))));
            if version.tables().all(|other| other.dir != table.dir) {
                garbage.push(Garbage::Directory(self.keyspace.dir(table.dir), None));
            }
        }
        if !dropped.is_empty() {
            let live = version.live_pack_bytes();
            let dead = version.packs.keys().filter(|pack| !live.contains_key(*pack));
            garbage.extend(
                dead.map(|pack| Garbage::File(self.keyspace.path.join(file_names::pack_name(*pack)))),
            );
            version.packs.retain(|pack, _| live.contains_key(pack));
        }
        garbage
    }
}
