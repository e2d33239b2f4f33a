//! # Merge inputs: sorted sources that are read in parallel
//!
//! An input yields the versions of one key after the other, in either direction. Its source is a
//! memtable, or tables that do not overlap. A merge takes the least (or greatest) key of all inputs
//! ([`MergeHeads`]). The first input with that key has its newest versions (tree I1).

use std::cmp::Ordering;
use std::ops::Bound;
use std::sync::Arc;

use sheaf_engine::keys;
use sheaf_engine::memtable::{ArenaOffset, Memtable, MemtableVersion as MemVersion};
use sheaf_log::types::Seq;
use sheaf_platform::error::{Error, Result};
use sheaf_platform::sync::epoch::Guard;

use crate::files::list::{BlockEntries, ListEntry, ValueRef};
use crate::tree::Table;

/// Number of entries fetched from a memtable at a time. The first time, it is the number that a
/// reader expects, and at least the second of these.
const MEMTABLE_BATCH: usize = 64;
const MIN_MEMTABLE_BATCH: usize = 4;

/// Direction of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

/// Block that cannot be read. Nothing is known about the keys that it covers.
#[derive(Debug)]
pub(crate) struct UnreadableBlock {
    pub(crate) error: Error,
    /// Key at which the walk reaches the block.
    start: Vec<u8>,
    /// Position behind the block, where the walk can continue.
    pub(crate) resume_at: Bound<Vec<u8>>,
}

impl From<Box<UnreadableBlock>> for Error {
    fn from(blocked: Box<UnreadableBlock>) -> Error {
        blocked.error
    }
}

/// Input over the tables of one level, or over one table of level 0.
#[derive(Debug)]
pub(crate) struct TableInput {
    tables: Vec<Arc<Table>>,
    direction: Direction,
    /// Index of the present table, and its next block.
    table: usize,
    block: usize,
    read: BlockEntries,
    /// Entries of the block where the walk begins; they replace `read`.
    begun: Option<Arc<BlockEntries>>,
    has_begun: bool,
    /// Forward: index of the next entry. Backward: index behind it.
    at: usize,
    /// True if all blocks were read.
    ended: bool,
    /// Error of the present block. Reported when the walk reaches the block.
    unreadable: Option<Box<UnreadableBlock>>,
}

impl TableInput {
    /// Returns an input from the first key beyond `from` on.
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

    /// Returns the entries of the present block.
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
                // A table that begins at an excluded key has no key before it.
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
        // Position within the block; the key may be beyond its end.
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

    /// Reads the next block that has entries.
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

    /// Positions the input at the start of the present block, which cannot be read.
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

    /// Returns the key of the next entry, or the start of a block that cannot be read.
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        if let Some(blocked) = &self.unreadable {
            return Some(&blocked.start);
        }
        let at = if self.direction == Direction::Forward { Some(self.at) } else { self.at.checked_sub(1) };
        at.filter(|at| *at < self.entries().len()).map(|at| self.entries().key(at))
    }

    /// Returns all versions of the present key, the newest first, and their table. Moves to the
    /// next key.
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

    /// Returns the version of the present key that is visible at `at`, with the index of its table.
    /// Moves to the next key.
    fn take_at(&mut self, at: Seq) -> Result<TakenKey<'static>, Box<UnreadableBlock>> {
        if let Some(blocked) = self.unreadable.take() {
            return Err(blocked);
        }
        let ((start, end), table) = (self.key_group(), self.table);
        let mut versions = (start..end).map(|index| self.entries().version(index));
        let (newest, what) = self.entries().version(start);
        let seen = versions.find(|(seq, _)| *seq <= at);
        let seq = seen.map_or(Seq::ZERO, |(seq, _)| seq);
        let visible = seen.map(|(_, what)| VisibleVersion::Table(table, what));
        self.advance_past((start, end));
        Ok(TakenKey { visible, seq, newest, removal_seq: (what == ValueRef::Removed).then_some(newest) })
    }
}

/// Input over the keys of a memtable.
pub(crate) struct MemtableInput<'m> {
    memtable: &'m Memtable,
    direction: Direction,
    places: Vec<ArenaOffset>,
    next: usize,
    /// Number of entries that were asked for when `places` was filled.
    batch: usize,
}

impl<'m> MemtableInput<'m> {
    /// Returns an input from the first key beyond `from` on. The reader will probably read `pairs`
    /// keys.
    pub(crate) fn new(
        memtable: &'m Memtable,
        from: Bound<&[u8]>,
        direction: Direction,
        pairs: usize,
        guard: &Guard,
    ) -> MemtableInput<'m> {
        let batch = pairs.clamp(MIN_MEMTABLE_BATCH, MEMTABLE_BATCH);
        let mut merge_input = MemtableInput { memtable, direction, places: Vec::new(), next: 0, batch };
        merge_input.fetch_places(from, guard);
        merge_input
    }

    fn fetch_places(&mut self, from: Bound<&[u8]>, guard: &Guard) {
        self.places.clear();
        self.next = 0;
        match self.direction {
            Direction::Forward => self.memtable.ascend(from, self.batch, guard, &mut self.places),
            Direction::Backward => self.memtable.descend(from, self.batch, guard, &mut self.places),
        }
    }

    pub(crate) fn memtable(&self) -> &'m Memtable {
        self.memtable
    }

    pub(crate) fn peek(&self) -> Option<&'m [u8]> {
        self.places.get(self.next).map(|place| self.memtable.entry(*place).key())
    }

    /// Returns the present entry and moves to the next.
    pub(crate) fn take(&mut self, guard: &Guard) -> Option<sheaf_engine::memtable::MemtableEntry<'m>> {
        let entry = self.memtable.entry(*self.places.get(self.next)?);
        self.next += 1;
        if self.next == self.places.len() && self.next == self.batch {
            self.batch = MEMTABLE_BATCH;
            self.fetch_places(Bound::Excluded(entry.key()), guard);
        }
        Some(entry)
    }
}

/// Input from any source.
pub(crate) enum MergeInput<'m> {
    Memtable(MemtableInput<'m>),
    Tables(TableInput),
}

/// Version of a key in an input.
pub(crate) enum VisibleVersion<'m> {
    /// A version in a memtable.
    Memtable(&'m Memtable, MemVersion),
    /// A version in a table of the input, by index.
    Table(usize, ValueRef),
}

/// Result of an input for a key.
#[derive(Default)]
pub(crate) struct TakenKey<'m> {
    /// Version that the view sees.
    pub(crate) visible: Option<VisibleVersion<'m>>,
    /// Seq of that version.
    pub(crate) seq: Seq,
    /// Seq of the newest version.
    pub(crate) newest: Seq,
    /// Seq of the newest version, if that is a tombstone.
    pub(crate) removal_seq: Option<Seq>,
}

impl<'m> MergeInput<'m> {
    pub(crate) fn peek(&self) -> Option<&[u8]> {
        match self {
            MergeInput::Memtable(merge_input) => merge_input.peek(),
            MergeInput::Tables(merge_input) => merge_input.peek(),
        }
    }

    /// Returns the table with this index, in which the input found a version.
    pub(crate) fn table(&self, index: usize) -> Option<&Arc<Table>> {
        match self {
            MergeInput::Memtable(_) => None,
            MergeInput::Tables(merge_input) => merge_input.tables.get(index),
        }
    }

    /// Returns the version of the present key that is visible at `at`. Moves to the next key.
    pub(crate) fn take_at(&mut self, at: Seq, guard: &Guard) -> Result<TakenKey<'m>, Box<UnreadableBlock>> {
        match self {
            MergeInput::Memtable(merge_input) => {
                let memtable = merge_input.memtable;
                let Some(entry) = merge_input.take(guard) else {
                    return Ok(TakenKey::default());
                };
                let (newest, seen) = (entry.newest(), entry.at(at));
                Ok(TakenKey {
                    visible: seen.map(|version| VisibleVersion::Memtable(memtable, version)),
                    seq: seen.map_or(Seq::ZERO, |version| version.seq),
                    newest: newest.seq,
                    removal_seq: newest.word.is_tombstone().then_some(newest.seq),
                })
            }
            MergeInput::Tables(merge_input) => merge_input.take_at(at),
        }
    }
}

/// First eight bytes of the next key of each source. They nearly always determine the first key.
#[derive(Debug)]
pub(crate) struct MergeHeads {
    direction: Direction,
    /// Heads in the order of the walk. The head of a source that has ended is the last one.
    heads: Vec<u64>,
}

impl MergeHeads {
    pub(crate) fn new<'a>(keys: impl Iterator<Item = Option<&'a [u8]>>, direction: Direction) -> MergeHeads {
        MergeHeads { direction, heads: keys.map(|key| head_of(key, direction)).collect() }
    }

    /// Sets the next key of `source`.
    pub(crate) fn update(&mut self, source: usize, key: Option<&[u8]>) {
        self.heads[source] = head_of(key, self.direction);
    }

    /// Returns the first of the next keys, which `key_of` provides. Stores the sources that have
    /// this key, in their order, in `with`. At the end returns `None`, and `with` is empty.
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

/// Returns a number in the order of the walk, from the first bytes of `key`. No key is the last.
fn head_of(key: Option<&[u8]>, direction: Direction) -> u64 {
    let Some(key) = key else { return u64::MAX };
    if direction == Direction::Forward { keys::head(key) } else { !keys::head(key) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the keys in their order, each with the sources that have it.
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
            // The first of four sources is empty. Each key is in some of the others, or in none.
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
