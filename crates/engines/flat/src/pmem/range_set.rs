//! # Range set: byte ranges of a file, joined where they touch

use std::collections::BTreeMap;
use std::ops::Range;

/// Set of bytes of a file. Ranges that overlap or touch are one range.
#[derive(Clone, Debug, Default)]
pub(super) struct RangeSet {
    /// End of each range, by its start.
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds `range`.
    pub(super) fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Removes each range that touches the new one, from the last to the first.
        while let Some((from, to)) = self.last_before(end.saturating_add(1))
            && to >= start
        {
            self.ends.remove(&from);
            start = start.min(from);
            end = end.max(to);
        }
        self.ends.insert(start, end);
    }

    /// Removes the bytes of `range`.
    pub(super) fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((from, to)) = self.last_before(range.end)
            && to > range.start
        {
            self.ends.remove(&from);
            if to > range.end {
                self.ends.insert(range.end, to);
            }
            if from < range.start {
                self.ends.insert(from, range.start);
            }
        }
    }

    /// Returns whether all bytes of `range` are in the set.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.last_before(range.start + 1).is_some_and(|(_, to)| to >= range.end)
    }

    /// Returns the end of the last range, or 0.
    pub(super) fn end(&self) -> u64 {
        self.ends.last_key_value().map_or(0, |(_, to)| *to)
    }

    /// Removes and returns the ranges that begin below `end`.
    pub(super) fn take_below(&mut self, end: u64) -> Vec<Range<u64>> {
        let rest = self.ends.split_off(&end);
        std::mem::replace(&mut self.ends, rest).into_iter().map(|(from, to)| from..to).collect()
    }

    /// Returns the last range that begins below `at`.
    fn last_before(&self, at: u64) -> Option<(u64, u64)> {
        self.ends.range(..at).next_back().map(|(from, to)| (*from, *to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        let mut set = RangeSet::default();
        ranges.iter().for_each(|range| set.insert(range.clone()));
        set
    }

    /// Compares random changes with a set of single bytes.
    #[test]
    fn a_range_set_is_a_set_of_bytes() {
        let mut state = 1_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
            (state >> 33) % below
        };
        for _ in 0..200 {
            let (mut set, mut model) = (RangeSet::default(), [false; 64]);
            for _ in 0..30 {
                let start = random(60);
                let range = start..start + random(64 - start);
                let is_insert = random(2) == 0;
                (range.start..range.end).for_each(|at| model[usize::try_from(at).unwrap()] = is_insert);
                if is_insert {
                    set.insert(range)
                } else {
                    set.remove(range)
                }
                let bytes = |range: &Range<u64>| {
                    model[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]
                        .iter()
                        .all(|is| *is)
                };
                let start = random(60);
                let range = start..start + random(64 - start);
                assert_eq!(set.covers(&range), bytes(&range), "{range:?} of {set:?}");
                let end = model.iter().rposition(|is| *is).map_or(0, |last| last as u64 + 1);
                assert_eq!(set.end(), end);
            }
        }
    }

    #[test]
    fn touching_ranges_are_taken_as_one() {
        let mut set = set(&[0..10, 20..30, 10..15, 64..65, u64::MAX - 1..u64::MAX]);
        assert_eq!(set.take_below(20).first(), Some(&(0..15)));
        assert_eq!(set.take_below(21).first(), Some(&(20..30)));
        assert_eq!(set.take_below(u64::MAX), [64..65, u64::MAX - 1..u64::MAX]);
        assert_eq!(set.end(), 0);
    }
}
