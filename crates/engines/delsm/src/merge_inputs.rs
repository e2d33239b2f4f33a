//! # Lanes: sorted sources, read side by side
//!
//! A lane yields the versions of one key after the other, in either direction: from a memtable, or
//! from tables that do not overlap. Merging is taking the least (or highest) key of all lanes
//! ([`MergeHeads`]); the first lane that has it has the newest versions (tree I1).

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_base::error::{Error, Result};
use sheaf_base::keys;
use sheaf_base::memtable::{ArenaOffset, Memtable, MemtableVersion as MemVersion};
use sheaf_base::sync::epoch::Guard;
use sheaf_base::types::Seq;

use crate::list::{BlockEntries, ListEntry, ValueRef};
use crate::tree::Table;

/// Places taken from a memtable at a time.
const MEMTABLE_BATCH: usize = 64;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// A block that cannot be read: nothing is known of the keys that it decides.
#[derive(Debug)]
pub(crate) struct UnreadableBlock {
    pub(crate) error: Error,
    /// Where the walk comes to it.
    start: Vec<u8>,
    /// Where the walk goes on behind it.
    pub(crate) resume_at: Bound<Vec<u8>>,
}

impl From<Box<UnreadableBlock>> for Error {
    fn from(blocked: Box<UnreadableBlock>) -> Error {
        blocked.error
    }
}

/// Tables of one level, or one of level 0.
#[derive(Debug)]
pub(crate) struct TableInput {
    tables: Vec<Arc<Table>>,
    direction: Direction,
    /// Present table and its next block.
    table: usize,
    block: usize,
    read: BlockEntries,
    /// The entries that replace `read`, in the block where the walk begins.
    begun: Option<Arc<BlockEntries>>,
    has_begun: bool,
    /// Up: the next item. Down: one behind it.
    at: usize,
    /// Nothing further: all blocks were read.
    ended: bool,
    /// The present block cannot be read. The walk hears of it when it comes to it.
    unreadable: Option<Box<UnreadableBlock>>,
}

impl TableInput {
    /// From the first key beyond `from` on.
    pub(crate) fn new(tables: Vec<Arc<Table>>, from: Bound<&[u8]>, direction: Direction) -> TableInput {
        let mut merge_input = TableInput {
            tables,
            direction,
            table: 0,
            block: 0,
            read: BlockEntries::default(),
            begun: None,
            has_begun: false,
            at: 0,
            ended: false,
            unreadable: None,
        };
        merge_input.seek(from);
        merge_input
    }

    /// The entries of the present block.
    fn entries(&self) -> &BlockEntries {
        self.begun.as_deref().unwrap_or(&self.read)
    }

    /// Reads a block of the present table.
    fn read_block(&mut self) -> Result<()> {
        let table = &self.tables[self.table];
        if std::mem::replace(&mut self.has_begun, true) {
            return table.list.read(self.block, &mut self.read);
        }
        self.begun = Some(table.entries_to_begin(self.block)?);
        Ok(())
    }

    fn clear(&mut self) {
        self.begun = None;
        self.read.clear();
    }

    fn seek(&mut self, from: Bound<&[u8]>) {
        let key = match from {
            Bound::Included(key) | Bound::Excluded(key) => Some(key),
            Bound::Unbounded => None,
        };
        match self.direction {
            Direction::Forward => {
                let is_passed = |last: &[u8]| match from {
                    Bound::Included(key) => last < key,
                    Bound::Excluded(key) => last <= key,
                    Bound::Unbounded => false,
                };
                self.table = self.tables.partition_point(|table| is_passed(table.list.last_key()));
                let block =
                    self.tables.get(self.table).zip(key).and_then(|(t, key)| t.list.block_containing(key));
                self.block = block.unwrap_or(0);
            }
            Direction::Backward => {
                // What begins at an excluded key has nothing before it.
                let is_before = |first: &[u8]| match from {
                    Bound::Included(key) => first <= key,
                    Bound::Excluded(key) => first < key,
                    Bound::Unbounded => true,
                };
                let count = self.tables.partition_point(|table| is_before(table.list.first_key()));
                let Some(table) = count.checked_sub(1) else {
                    self.ended = true;
                    return;
                };
                let list = &self.tables[table].list;
                self.table = table;
                self.block = list.count_blocks_where(is_before);
            }
        }
        self.load_block();
        if let (Some(blocked), Some(key)) = (&mut self.unreadable, key) {
            let is_passed = if self.direction == Direction::Forward {
                *blocked.start < *key
            } else {
                *blocked.start > *key
            };
            if is_passed {
                blocked.start = key.to_vec();
            }
            return;
        }
        // Within the block; the key may be beyond its end.
        let within = match (from, self.direction) {
            (Bound::Unbounded, _) => return,
            (Bound::Included(key), Direction::Forward) => self.entries().lower_bound(key, false),
            (Bound::Excluded(key), Direction::Forward) => self.entries().lower_bound(key, true),
            (Bound::Included(key), Direction::Backward) => self.entries().lower_bound(key, true),
            (Bound::Excluded(key), Direction::Backward) => self.entries().lower_bound(key, false),
        };
        match self.direction {
            Direction::Forward => self.at = within.max(self.at),
            Direction::Backward => self.at = within.min(self.at),
        }
        self.load_if_done();
    }

    /// Reads the next block that there is.
    fn load_block(&mut self) {
        self.clear();
        while !self.ended && self.entries().is_empty() && self.unreadable.is_none() {
            match self.direction {
                Direction::Forward => match self.tables.get(self.table) {
                    None => self.ended = true,
                    Some(table) if self.block >= table.list.block_count() => {
                        self.table += 1;
                        self.block = 0;
                    }
                    Some(_) => {
                        if let Err(error) = self.read_block() {
                            return self.stop_at_unreadable(error);
                        }
                        self.block += 1;
                        self.at = 0;
                    }
                },
                Direction::Backward if self.block == 0 => match self.table.checked_sub(1) {
                    None => self.ended = true,
                    Some(table) => {
                        self.table = table;
                        self.block = self.tables[table].list.block_count();
                    }
                },
                Direction::Backward => {
                    self.block -= 1;
                    if let Err(error) = self.read_block() {
                        return self.stop_at_unreadable(error);
                    }
                    self.at = self.entries().len();
                }
            }
        }
    }

    /// The present block cannot be read: the lane stands before it.
    fn stop_at_unreadable(&mut self, error: Error) {
        let list = &self.tables[self.table].list;
        let (first, next) = (list.start_of(self.block), list.start_of(self.block + 1));
        let first = first.unwrap_or_default().to_vec();
        let (start, behind) = match (self.direction, next) {
            (Direction::Forward, Some(next)) => (first, Bound::Included(next.to_vec())),
            (Direction::Forward, None) => (first, Bound::Excluded(list.last_key().to_vec())),
            (Direction::Backward, next) => (next.unwrap_or(list.last_key()).to_vec(), Bound::Excluded(first)),
        };
        self.clear();
        self.at = 0;
        self.unreadable = Some(Box::new(UnreadableBlock { error, start, resume_at: behind }));
    }

    /// The key of the next item, or where a block is that cannot be read.
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        if let Some(blocked) = &self.unreadable {
            return Some(&blocked.start);
        }
        let at = if self.direction == Direction::Forward { Some(self.at) } else { self.at.checked_sub(1) };
        at.filter(|at| *at < self.entries().len()).map(|at| self.entries().key(at))
    }

    /// All versions of the present key, the newest first, and their table; goes on to the next key.
    pub(crate) fn take_group(&mut self) -> Result<(Arc<Table>, Vec<ListEntry>)> {
        if let Some(blocked) = self.unreadable.take() {
            return Err(blocked.error);
        }
        let table = Arc::clone(&self.tables[self.table.min(self.tables.len() - 1)]);
        let (start, end) = self.key_group();
        let key_group = (start..end).map(|index| self.entries().item(index)).collect();
        self.advance_past((start, end));
        Ok((table, key_group))
    }

    fn key_group(&self) -> (usize, usize) {
        let entries = self.entries();
        match self.direction {
            Direction::Forward => {
                let is_other = |index: &usize| !entries.is_same_key(*index, self.at);
                (self.at, (self.at + 1..entries.len()).find(is_other).unwrap_or(entries.len()))
            }
            Direction::Backward => {
                let last = self.at - 1;
                let before = (0..last).rev().find(|index| !entries.is_same_key(*index, last));
                (before.map_or(0, |index| index + 1), self.at)
            }
        }
    }

    fn advance_past(&mut self, (start, end): (usize, usize)) {
        self.at = if self.direction == Direction::Forward { end } else { start };
        self.load_if_done();
    }

    fn load_if_done(&mut self) {
        let is_done =
            if self.direction == Direction::Forward { self.at == self.entries().len() } else { self.at == 0 };
        if is_done {
            self.load_block();
        }
    }

    /// The version of the present key that a view at `at` shows, in the table of an index; goes on
    /// to the next key.
    fn take_at(&mut self, at: Seq) -> Result<TakenKey<'static>, Box<UnreadableBlock>> {
        if let Some(blocked) = self.unreadable.take() {
            return Err(blocked);
        }
        let ((start, end), table) = (self.key_group(), self.table);
        let mut versions = (start..end).map(|index| self.entries().version(index));
        let (newest, what) = self.entries().version(start);
        let seen = versions.find(|(seq, _)| *seq <= at).map(|(_, what)| VisibleVersion::Table(table, what));
        self.advance_past((start, end));
        Ok(TakenKey { visible: seen, removal_seq: (what == ValueRef::Removed).then_some(newest) })
    }
}

/// A memtable's keys.
pub(crate) struct MemtableInput<'m> {
    memtable: &'m Memtable,
    direction: Direction,
    places: Vec<ArenaOffset>,
    next: usize,
}

impl<'m> MemtableInput<'m> {
    pub(crate) fn new(
        memtable: &'m Memtable,
        from: Bound<&[u8]>,
        direction: Direction,
        guard: &Guard,
    ) -> MemtableInput<'m> {
        let mut merge_input = MemtableInput { memtable, direction, places: Vec::new(), next: 0 };
        merge_input.fetch_places(from, guard);
        merge_input
    }

    fn fetch_places(&mut self, from: Bound<&[u8]>, guard: &Guard) {
        self.places.clear();
        self.next = 0;
        match self.direction {
            Direction::Forward => self.memtable.ascend(from, MEMTABLE_BATCH, guard, &mut self.places),
            Direction::Backward => self.memtable.descend(from, MEMTABLE_BATCH, guard, &mut self.places),
        }
    }

    pub(crate) fn peek(&self) -> Option<&'m [u8]> {
        self.places.get(self.next).map(|place| self.memtable.entry(*place).key())
    }

    /// The present record; goes on to the next.
    pub(crate) fn take(&mut self, guard: &Guard) -> Option<sheaf_base::memtable::MemtableEntry<'m>> {
        let entry = self.memtable.entry(*self.places.get(self.next)?);
        self.next += 1;
        if self.next == self.places.len() && self.next == MEMTABLE_BATCH {
            self.fetch_places(Bound::Excluded(entry.key()), guard);
        }
        Some(entry)
    }
}

/// Any source.
pub(crate) enum MergeInput<'m> {
    Memtable(MemtableInput<'m>),
    Tables(TableInput),
}

/// What a lane shows of a key.
pub(crate) enum VisibleVersion<'m> {
    /// In a memtable.
    Memtable(&'m Memtable, MemVersion),
    /// In a table of the lane, by index.
    Table(usize, ValueRef),
}

/// What a lane has of a key.
pub(crate) struct TakenKey<'m> {
    /// What a view sees.
    pub(crate) visible: Option<VisibleVersion<'m>>,
    /// The commit of the newest version, if that is a removal.
    pub(crate) removal_seq: Option<Seq>,
}

impl<'m> MergeInput<'m> {
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        match self {
            MergeInput::Memtable(merge_input) => merge_input.peek(),
            MergeInput::Tables(merge_input) => merge_input.peek(),
        }
    }

    /// A table that it saw something in.
    pub(crate) fn table(&self, index: usize) -> Option<&Arc<Table>> {
        match self {
            MergeInput::Memtable(_) => None,
            MergeInput::Tables(merge_input) => merge_input.tables.get(index),
        }
    }

    /// What a view at `at` shows of the present key; goes on to the next.
    pub(crate) fn take_at(&mut self, at: Seq, guard: &Guard) -> Result<TakenKey<'m>, Box<UnreadableBlock>> {
        match self {
            MergeInput::Memtable(merge_input) => {
                let memtable = merge_input.memtable;
                let Some(entry) = merge_input.take(guard) else {
                    return Ok(TakenKey { visible: None, removal_seq: None });
                };
                let newest = entry.newest();
                Ok(TakenKey {
                    visible: entry.at(at).map(|version| VisibleVersion::Memtable(memtable, version)),
                    removal_seq: newest.word.is_tombstone().then_some(newest.seq),
                })
            }
            MergeInput::Tables(merge_input) => merge_input.take_at(at),
        }
    }
}

/// The first eight bytes of the keys that come next in sources: mostly they say which is the first.
#[derive(Debug)]
pub(crate) struct MergeHeads {
    direction: Direction,
    /// In the order of the walk. A source that has ended is not before any other.
    heads: Vec<u64>,
}

impl MergeHeads {
    pub(crate) fn new<'a>(keys: impl Iterator<Item = Option<&'a [u8]>>, direction: Direction) -> MergeHeads {
        MergeHeads { direction, heads: keys.map(|key| head_of(key, direction)).collect() }
    }

    /// `key` comes next in `source`.
    pub(crate) fn update(&mut self, source: usize, key: Option<&[u8]>) {
        self.heads[source] = head_of(key, self.direction);
    }

    /// The first of the keys that come next, as `key_of` tells them, and which sources have it, in
    /// their order: into `with`, which is empty after the last.
    pub(crate) fn next_key<'a>(
        &self,
        key_of: impl Fn(usize) -> Option<&'a [u8]>,
        with: &mut Vec<usize>,
    ) -> Option<&'a [u8]> {
        with.clear();
        let (mut least, mut source, mut is_tied) = (*self.heads.first()?, 0, false);
        for (other, head) in self.heads.iter().enumerate().skip(1) {
            is_tied = (*head == least) | (is_tied & (*head > least));
            (least, source) = if *head < least { (*head, other) } else { (least, source) };
        }
        if !is_tied {
            let key = key_of(source);
            with.extend(key.map(|_| source));
            return key;
        }
        with.extend((0..self.heads.len()).filter(|source| self.heads[*source] == least));
        let (mut first, mut count) = (None, 0);
        for at in 0..with.len() {
            let Some(key) = key_of(with[at]) else { continue };
            let order = first.map_or(Ordering::Less, |first| match self.direction {
                Direction::Forward => key.cmp(first),
                Direction::Backward => first.cmp(key),
            });
            if order == Ordering::Less {
                (first, count) = (Some(key), 0);
            }
            if order != Ordering::Greater {
                with[count] = with[at];
                count += 1;
            }
        }
        with.truncate(count);
        first
    }
}

/// What puts keys into the order of the walk as far as their first bytes tell; of no key, the last.
fn head_of(key: Option<&[u8]>, direction: Direction) -> u64 {
    let Some(key) = key else { return u64::MAX };
    if direction == Direction::Forward { keys::head(key) } else { !keys::head(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of sources in turn, and who had it.
    fn walked<'a>(sources: &[Vec<&'a [u8]>], direction: Direction) -> Vec<(&'a [u8], Vec<usize>)> {
        let mut places = vec![0; sources.len()];
        let next = |places: &[usize], source: usize| sources[source].get(places[source]).copied();
        let mut merge_heads =
            MergeHeads::new((0..sources.len()).map(|source| next(&places, source)), direction);
        let (mut with, mut seen) = (Vec::new(), Vec::new());
        while let Some(key) = merge_heads.next_key(|source| next(&places, source), &mut with) {
            for source in &with {
                places[*source] += 1;
                merge_heads.update(*source, next(&places, *source));
            }
            seen.push((key, with.clone()));
        }
        assert!(with.is_empty());
        seen
    }

    #[test]
    fn the_next_key_is_taken_from_all_that_have_it() {
        let zeros: &[&[u8]] = &[b"", b"\0", b"\0\0", &[0; 8], &[0; 9]];
        let ends: &[&[u8]] = &[b"a", b"ab", b"abcdefg", b"abcdefgh", b"abcdefghi", b"abcdefghj", b"b"];
        let lasts: &[&[u8]] = &[&[255; 7], &[255; 8], &[255; 9]];
        let keys: Vec<&[u8]> = [zeros, ends, lasts].concat();
        for bits in 0..64usize {
            // Of four sources the first has nothing, and each key is in some of the others, or in
            // none.
            let is_in = |source: usize, at: usize| (bits.wrapping_mul(at * 7 + 3) >> source) & 1 == 1;
            let of = |source| (0..keys.len()).filter(move |at| is_in(source, *at));
            let mut sources: Vec<Vec<&[u8]>> = vec![Vec::new()];
            sources.extend((1..4).map(|source| of(source).map(|at| keys[at]).collect()));
            let expected: Vec<(&[u8], Vec<usize>)> = (0..keys.len())
                .map(|at| (keys[at], (1..4).filter(|source| is_in(*source, at)).collect()))
                .filter(|(_, with): &(_, Vec<usize>)| !with.is_empty())
                .collect();
            assert_eq!(walked(&sources, Direction::Forward), expected);
            sources.iter_mut().for_each(|source| source.reverse());
            let downwards: Vec<_> = expected.into_iter().rev().collect();
            assert_eq!(walked(&sources, Direction::Backward), downwards);
        }
    }
}
