//! # Seq set: a set of commit numbers, stored as runs
//!
//! Commit numbers are dense, so the commits that an opening would replay are a few runs.

use std::collections::BTreeMap;

use sheaf_log::types::Seq;

/// Set of commit numbers.
#[derive(Clone, Debug, Default)]
pub(super) struct SeqSet {
    /// First and last number of each run; adjacent runs are merged.
    runs: BTreeMap<u64, u64>,
}

impl SeqSet {
    /// Adds `seq`.
    pub(crate) fn add(&mut self, seq: Seq) {
        let number = seq.0;
        let before = self.runs.range(..=number).next_back().map(|(first, last)| (*first, *last));
        if before.is_some_and(|(_, last)| last >= number) {
            return;
        }
        let first = before.filter(|(_, last)| last + 1 == number).map_or(number, |(first, _)| first);
        let last = number.checked_add(1).and_then(|next| self.runs.remove(&next)).unwrap_or(number);
        self.runs.insert(first, last);
    }

    /// Returns true if the set contains `seq`.
    pub(super) fn contains(&self, seq: Seq) -> bool {
        self.runs.range(..=seq.0).next_back().is_some_and(|(_, last)| *last >= seq.0)
    }

    /// Returns the highest number at or below `seq` that the set does not contain.
    pub(super) fn absent_up_to(&self, seq: Seq) -> Option<Seq> {
        match self.runs.range(..=seq.0).next_back() {
            Some((first, last)) if *last >= seq.0 => first.checked_sub(1).map(Seq),
            _ => Some(seq),
        }
    }

    /// Returns the end of the run from `seq` on, or `None` if the set does not contain `seq`.
    pub(super) fn run_from(&self, seq: Seq) -> Option<Seq> {
        self.runs.range(..=seq.0).next_back().map(|(_, last)| Seq(*last)).filter(|last| *last >= seq)
    }

    /// Returns the runs of numbers from `first` to `last`, both inclusive, that the set does not
    /// contain.
    pub(super) fn absent(&self, first: Seq, last: Seq) -> Vec<(Seq, Seq)> {
        let (mut all, mut next) = (Vec::new(), first.0);
        if let Some(end) = self.run_from(first) {
            next = end.0.saturating_add(1);
        }
        for (start, end) in self.runs.range(next..) {
            if *start > last.0 {
                break;
            }
            all.push((Seq(next), Seq(start - 1)));
            next = end.saturating_add(1);
        }
        if next <= last.0 {
            all.push((Seq(next), last));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_equal_a_plain_set() {
        let mut state = 7u64;
        for _ in 0..200 {
            let (mut numbers, mut list) = (SeqSet::default(), Vec::new());
            for _ in 0..30 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                numbers.add(Seq(state >> 33 & 31));
                list.push(state >> 33 & 31);
            }
            for at in 0..40 {
                assert_eq!(numbers.contains(Seq(at)), list.contains(&at));
                let absent = (0..=at).rev().find(|n| !list.contains(n)).map(Seq);
                assert_eq!(numbers.absent_up_to(Seq(at)), absent);
            }
            let absent: Vec<u64> =
                numbers.absent(Seq(3), Seq(36)).iter().flat_map(|(a, b)| a.0..=b.0).collect();
            let expected: Vec<u64> = (3..=36).filter(|n| !list.contains(n)).collect();
            assert_eq!(absent, expected);
        }
    }

    #[test]
    fn smallest_and_largest_seqs_are_supported() {
        let mut numbers = SeqSet::default();
        [0, u64::MAX, u64::MAX - 1].into_iter().for_each(|n| numbers.add(Seq(n)));
        assert!(numbers.contains(Seq(u64::MAX)) && numbers.contains(Seq(0)) && !numbers.contains(Seq(1)));
        assert_eq!(numbers.absent_up_to(Seq(u64::MAX)), Some(Seq(u64::MAX - 2)));
        assert_eq!(numbers.absent_up_to(Seq(0)), None);
    }
}
