//! # Lanes: sorted sources, read side by side
//!
//! A lane yields the versions of one key after the other, in either direction: from a memtable, or from tables that do
//! not overlap. Merging is taking the least (or highest) key of all lanes; the first lane that has it has the newest versions
//! (tree I1).

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::error::Result;
use sheaf_base::memtable::{Memtable, Place, Version as MemVersion};
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;

use crate::list::{Entries, Item, What};
use crate::tree::Table;

/// Places taken from a memtable at a time.
const BATCH: usize = 64;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
}

/// Tables of one level, or one of level 0.
#[derive(Debug)]
pub(crate) struct TableLane {
    tables: Vec<Arc<Table>>,
    way: Way,
    /// Present table and its next block.
    table: usize,
    block: usize,
    entries: Entries,
    /// Up: the next item. Down: one behind it.
    at: usize,
    /// Nothing further: all blocks were read.
    ended: bool,
}

impl TableLane {
    /// From the first key beyond `from` on.
    pub(crate) fn new(tables: Vec<Arc<Table>>, from: Bound<&[u8]>, way: Way) -> Result<TableLane> {
        let entries = Entries::default();
        let mut lane = TableLane { tables, way, table: 0, block: 0, entries, at: 0, ended: false };
        lane.seek(from)?;
        Ok(lane)
    }

    fn seek(&mut self, from: Bound<&[u8]>) -> Result<()> {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        match self.way {
            Way::Up => {
                self.table = key.map_or(0, |key| self.tables.partition_point(|t| t.list.last_key() < key));
                let block = self.tables.get(self.table).zip(key).and_then(|(t, key)| t.list.block_of(key));
                self.block = block.unwrap_or(0);
            }
            Way::Down => {
                let count = key.map_or(self.tables.len(), |key| {
                    self.tables.partition_point(|t| t.list.first_key() <= key)
                });
                let Some(table) = count.checked_sub(1) else {
                    self.ended = true;
                    return Ok(());
                };
                let list = &self.tables[table].list;
                self.table = table;
                self.block =
                    key.map_or(list.block_count(), |key| list.block_of(key).map_or(0, |block| block + 1));
            }
        }
        self.load()?;
        // Within the block; the key may be beyond its end.
        let within = match (from, self.way) {
            (Bound::Unbounded, _) => return Ok(()),
            (Bound::Included(key), Way::Up) => self.entries.lower_bound(key, false),
            (Bound::Excluded(key), Way::Up) => self.entries.lower_bound(key, true),
            (Bound::Included(key), Way::Down) => self.entries.lower_bound(key, true),
            (Bound::Excluded(key), Way::Down) => self.entries.lower_bound(key, false),
        };
        match self.way {
            Way::Up => self.at = within.max(self.at),
            Way::Down => self.at = within.min(self.at),
        }
        self.load_if_done()
    }

    /// Reads the next block that there is.
    fn load(&mut self) -> Result<()> {
        self.entries.clear();
        while !self.ended && self.entries.is_empty() {
            match self.way {
                Way::Up => match self.tables.get(self.table) {
                    None => self.ended = true,
                    Some(table) if self.block >= table.list.block_count() => {
                        self.table += 1;
                        self.block = 0;
                    }
                    Some(table) => {
                        table.list.read(self.block, &mut self.entries)?;
                        self.block += 1;
                        self.at = 0;
                    }
                },
                Way::Down if self.block == 0 => match self.table.checked_sub(1) {
                    None => self.ended = true,
                    Some(table) => {
                        self.table = table;
                        self.block = self.tables[table].list.block_count();
                    }
                },
                Way::Down => {
                    self.block -= 1;
                    self.tables[self.table].list.read(self.block, &mut self.entries)?;
                    self.at = self.entries.len();
                }
            }
        }
        Ok(())
    }

    pub(crate) fn peek(&self) -> Option<&[u8]> {
        let at = if self.way == Way::Up { Some(self.at) } else { self.at.checked_sub(1) };
        at.filter(|at| *at < self.entries.len()).map(|at| self.entries.key(at))
    }

    /// All versions of the present key, the newest first, and their table; goes on to the next key.
    pub(crate) fn take_group(&mut self) -> Result<(Arc<Table>, Vec<Item>)> {
        let table = Arc::clone(&self.tables[self.table.min(self.tables.len() - 1)]);
        let (start, end) = self.group();
        let group = (start..end).map(|index| self.entries.item(index)).collect();
        self.leave((start, end))?;
        Ok((table, group))
    }

    fn group(&self) -> (usize, usize) {
        let entries = &self.entries;
        match self.way {
            Way::Up => {
                let is_other = |index: &usize| !entries.is_same_key(*index, self.at);
                (self.at, (self.at + 1..entries.len()).find(is_other).unwrap_or(entries.len()))
            }
            Way::Down => {
                let last = self.at - 1;
                let before = (0..last).rev().find(|index| !entries.is_same_key(*index, last));
                (before.map_or(0, |index| index + 1), self.at)
            }
        }
    }

    fn leave(&mut self, (start, end): (usize, usize)) -> Result<()> {
        self.at = if self.way == Way::Up { end } else { start };
        self.load_if_done()
    }

    fn load_if_done(&mut self) -> Result<()> {
        let is_done = if self.way == Way::Up { self.at == self.entries.len() } else { self.at == 0 };
        if is_done { self.load() } else { Ok(()) }
    }

    /// The version of the present key that a view at `at` shows, and the index of its table; goes on to the next key.
    fn take_at(&mut self, at: Seq) -> Result<Option<(usize, What)>> {
        let ((start, end), table) = (self.group(), self.table);
        let seen = (start..end).map(|index| self.entries.version(index)).find(|(seq, _)| *seq <= at);
        self.leave((start, end))?;
        Ok(seen.map(|(_, what)| (table, what)))
    }
}

/// A memtable's keys.
pub(crate) struct MemLane<'m> {
    memtable: &'m Memtable,
    way: Way,
    places: Vec<Place>,
    next: usize,
}

impl<'m> MemLane<'m> {
    pub(crate) fn new(memtable: &'m Memtable, from: Bound<&[u8]>, way: Way, guard: &Guard) -> MemLane<'m> {
        let mut lane = MemLane { memtable, way, places: Vec::new(), next: 0 };
        lane.load(from, guard);
        lane
    }

    fn load(&mut self, from: Bound<&[u8]>, guard: &Guard) {
        self.places.clear();
        self.next = 0;
        match self.way {
            Way::Up => self.memtable.ascend(from, BATCH, guard, &mut self.places),
            Way::Down => self.memtable.fall(from, BATCH, guard, &mut self.places),
        }
    }

    pub(crate) fn peek(&self) -> Option<&'m [u8]> {
        self.places.get(self.next).map(|place| self.memtable.entry(*place).key())
    }

    /// The present record; goes on to the next.
    pub(crate) fn take(&mut self, guard: &Guard) -> Option<sheaf_base::memtable::Entry<'m>> {
        let entry = self.memtable.entry(*self.places.get(self.next)?);
        self.next += 1;
        if self.next == self.places.len() && self.next == BATCH {
            self.load(Bound::Excluded(entry.key()), guard);
        }
        Some(entry)
    }
}

/// Any source.
pub(crate) enum Lane<'m> {
    Memory(MemLane<'m>),
    Tables(TableLane),
}

/// What a lane shows of a key.
pub(crate) enum Seen<'m> {
    /// In a memtable.
    Memory(&'m Memtable, MemVersion),
    /// In a table of the lane, by index.
    Table(usize, What),
}

impl<'m> Lane<'m> {
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        match self {
            Lane::Memory(lane) => lane.peek(),
            Lane::Tables(lane) => lane.peek(),
        }
    }

    /// A table that it saw something in.
    pub(crate) fn table(&self, index: usize) -> Option<&Arc<Table>> {
        match self {
            Lane::Memory(_) => None,
            Lane::Tables(lane) => lane.tables.get(index),
        }
    }

    /// What a view at `at` shows of the present key; goes on to the next.
    pub(crate) fn take_at(&mut self, at: Seq, guard: &Guard) -> Result<Option<Seen<'m>>> {
        Ok(match self {
            Lane::Memory(lane) => {
                let memtable = lane.memtable;
                lane.take(guard).and_then(|entry| entry.at(at)).map(|version| Seen::Memory(memtable, version))
            }
            Lane::Tables(lane) => lane.take_at(at)?.map(|(table, what)| Seen::Table(table, what)),
        })
    }
}

/// The first of the keys that come next in sources, and which of these have it, in their order: into `with`, which stays empty after
/// the last.
pub(crate) fn next_of<'a>(
    keys: impl Iterator<Item = Option<&'a [u8]>>,
    way: Way,
    with: &mut Vec<usize>,
) -> Option<&'a [u8]> {
    with.clear();
    let mut first: Option<&[u8]> = None;
    for (index, key) in keys.enumerate() {
        let Some(key) = key else { continue };
        let order = first.map_or(Ordering::Less, |first| match way {
            Way::Up => key.cmp(first),
            Way::Down => first.cmp(key),
        });
        if order == Ordering::Less {
            with.clear();
            first = Some(key);
        }
        if order != Ordering::Greater {
            with.push(index);
        }
    }
    first
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_key_is_taken_from_all_that_have_it() {
        let keys = [Some(&b"b"[..]), None, Some(b"a"), Some(b"c"), Some(b"a"), Some(b"c")];
        let mut with = vec![7];
        assert_eq!(next_of(keys.into_iter(), Way::Up, &mut with), Some(&b"a"[..]));
        assert_eq!(with, [2, 4]);
        assert_eq!(next_of(keys.into_iter(), Way::Down, &mut with), Some(&b"c"[..]));
        assert_eq!(with, [3, 5]);
        assert_eq!(next_of([None, None].into_iter(), Way::Up, &mut with), None);
        assert!(with.is_empty());
    }
}
