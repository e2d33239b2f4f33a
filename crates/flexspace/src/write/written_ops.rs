//! # Written operations: the records of an operation while its data is written
//!
//! The parts of an operation are applied to the tree only after the data of all parts is written.
//! Until then, this state tells whether a part continues the bytes of the part before, or bytes in
//! the tree. Parts that continue each other are one record.

use crate::extent::{Extent, push_extent};
use crate::format::{ExtentRun, IndexRecord};
use crate::segments::placement::PlaceBefore;

/// Records of the parts so far.
#[derive(Debug)]
pub(crate) struct WrittenOps {
    pub(crate) records: Vec<IndexRecord>,
    /// Position behind the bytes that were written last, if the last of them still exists.
    last_end: Option<u64>,
    /// The bytes below this position are as in the tree.
    unchanged_below: u64,
}

impl WrittenOps {
    /// Returns the state before the first of `parts` parts.
    pub(crate) fn new(parts: usize) -> WrittenOps {
        WrittenOps { records: Vec::with_capacity(parts), last_end: None, unchanged_below: u64::MAX }
    }

    /// Returns where the byte before `at` is stored.
    pub(crate) fn place_before(&self, at: u64) -> PlaceBefore {
        match self.last_end {
            Some(end) if end == at => PlaceBefore::LastWritten,
            _ if at <= self.unchanged_below => PlaceBefore::InTree,
            _ => PlaceBefore::Unknown,
        }
    }

    /// Records that written bytes were inserted.
    pub(crate) fn insert(&mut self, at: u64, run: ExtentRun) {
        self.set_written(at, &run);
        match self.records.last_mut() {
            Some(IndexRecord::Insert { at: from, run: before }) if *from + length(before) == at => {
                append(before, run);
            }
            _ => self.records.push(IndexRecord::Insert { at, run }),
        }
    }

    /// Records that written bytes replace those from `at` on.
    pub(crate) fn remap(&mut self, at: u64, run: ExtentRun) {
        self.set_written(at, &run);
        match self.records.last_mut() {
            Some(IndexRecord::Remap { at: from, run: before }) if *from + length(before) == at => {
                append(before, run);
            }
            _ => self.records.push(IndexRecord::Remap { at, run }),
        }
    }

    fn set_written(&mut self, at: u64, run: &ExtentRun) {
        self.last_end = Some(at + length(run));
        self.unchanged_below = self.unchanged_below.min(at);
    }

    /// Records that a hole was inserted.
    pub(crate) fn insert_hole(&mut self, at: u64, len: u64) {
        self.last_end = self.last_end.map(|end| if at < end { end + len } else { end });
        self.unchanged_below = self.unchanged_below.min(at);
        self.records.push(IndexRecord::Insert { at, run: vec![(len, Extent::HOLE)] });
    }

    /// Records that bytes were removed.
    pub(crate) fn collapse(&mut self, at: u64, len: u64) {
        self.last_end = self.last_end.and_then(|end| match end {
            _ if at >= end => Some(end),
            _ if at + len < end => Some(end - len),
            _ => None, // The last written byte was removed.
        });
        self.unchanged_below = self.unchanged_below.min(at);
        self.records.push(IndexRecord::Collapse { at, len });
    }
}

fn length(run: &ExtentRun) -> u64 {
    run.iter().map(|(len, _)| len).sum()
}

fn append(run: &mut ExtentRun, more: ExtentRun) {
    more.into_iter().for_each(|(len, extent)| push_extent(run, len, extent));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_written_bytes_follows_later_parts() {
        let mut ops = WrittenOps::new(9);
        assert_eq!(ops.place_before(500), PlaceBefore::InTree);
        ops.insert(100, vec![(50, Extent::new(64))]);
        let places = |ops: &WrittenOps, end| [99, 100, 101, end].map(|at| ops.place_before(at));
        let expected =
            [PlaceBefore::InTree, PlaceBefore::InTree, PlaceBefore::Unknown, PlaceBefore::LastWritten];
        assert_eq!(places(&ops, 150), expected);
        ops.collapse(150, 30);
        ops.insert_hole(150, 30);
        assert_eq!(places(&ops, 150), expected, "changes behind it");
        ops.collapse(120, 20);
        assert_eq!(places(&ops, 130), expected, "its interior");
        ops.insert_hole(110, 7);
        assert_eq!(places(&ops, 137), expected);
        ops.collapse(136, 1);
        assert_eq!(ops.place_before(136), PlaceBefore::Unknown, "its last byte");
        ops.insert(50, vec![(5, Extent::new(64))]);
        assert_eq!([51, 55].map(|at| ops.place_before(at)), [PlaceBefore::Unknown, PlaceBefore::LastWritten]);
    }

    #[test]
    fn parts_in_sequence_are_one_record() {
        let mut ops = WrittenOps::new(9);
        let chunk = Extent::new(64);
        ops.insert(10, vec![(50, chunk)]);
        ops.insert(60, vec![(50, crate::tree::TreeItem::suffix(chunk, 50))]);
        ops.insert(110, vec![(50, Extent::new(640))]);
        ops.remap(160, vec![(9, Extent::new(6400))]);
        let run = vec![(100, chunk), (50, Extent::new(640))];
        let remap = IndexRecord::Remap { at: 160, run: vec![(9, Extent::new(6400))] };
        assert_eq!(ops.records, [IndexRecord::Insert { at: 10, run }, remap]);
    }
}
