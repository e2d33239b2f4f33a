//! # Last removals: the newest of many ranges that contains a key
//!
//! ## Picture
//!
//! ```text
//!   ranges by number    0 |-------------|       1 |-----|        2      |--------
//!   pieces              [0     )[1      )[1 )[2      ...   first keys, and the newest range
//! ```
//!
//! ## Costs
//!
//! O(r × log r) comparisons for r ranges, then O(log r) for each key.

use std::collections::BinaryHeap;

/// Ranges, as pieces that do not overlap. `K` is the type of a key.
pub(super) struct LastRemovals<K> {
    /// First key of each piece, in order, and the number of the newest range that contains the
    /// piece. A piece ends where the next one starts.
    pieces: Vec<(K, Option<usize>)>,
}

impl<K: Ord + Copy> LastRemovals<K> {
    /// Returns the pieces of `ranges`: first key, end (not in the range; `None` for no upper
    /// limit), and number.
    pub(super) fn new(mut ranges: Vec<(K, Option<K>, usize)>) -> LastRemovals<K> {
        ranges.sort_unstable_by_key(|range| range.0);
        let mut limits: Vec<K> =
            ranges.iter().flat_map(|(first, end, _)| [*first].into_iter().chain(*end)).collect();
        limits.sort_unstable();
        limits.dedup();
        let mut pieces: Vec<(K, Option<usize>)> = Vec::with_capacity(limits.len());
        let mut ranges = ranges.into_iter().peekable();
        // Ranges that began, by number. A range leaves once it has ended and is the newest.
        let mut begun: BinaryHeap<NumberedEnd<K>> = BinaryHeap::new();
        for limit in limits {
            while let Some((_, end, number)) = ranges.next_if(|range| range.0 == limit) {
                begun.push(NumberedEnd { number, end });
            }
            while begun.peek().is_some_and(|range| range.end.is_some_and(|end| end <= limit)) {
                begun.pop();
            }
            pieces.push((limit, begun.peek().map(|range| range.number)));
        }
        LastRemovals { pieces }
    }

    /// Returns the number of the newest range that contains `key`.
    pub(super) fn of(&self, key: &K) -> Option<usize> {
        let after = self.pieces.partition_point(|(first, _)| first <= key);
        self.pieces[..after].last()?.1
    }
}

/// End of a range, ordered by the number of the range.
struct NumberedEnd<K> {
    number: usize,
    end: Option<K>,
}

impl<K> Ord for NumberedEnd<K> {
    fn cmp(&self, other: &NumberedEnd<K>) -> std::cmp::Ordering {
        self.number.cmp(&other.number)
    }
}

impl<K> PartialOrd for NumberedEnd<K> {
    fn partial_cmp(&self, other: &NumberedEnd<K>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> PartialEq for NumberedEnd<K> {
    fn eq(&self, other: &NumberedEnd<K>) -> bool {
        self.number == other.number
    }
}

impl<K> Eq for NumberedEnd<K> {}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// A key that counts its comparisons.
    #[derive(Clone, Copy, PartialEq, Eq)]
    struct CountedKey(u32);

    impl Ord for CountedKey {
        fn cmp(&self, other: &CountedKey) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for CountedKey {
        fn partial_cmp(&self, other: &CountedKey) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// Returns `count` ranges that overlap, of several lengths and two without an end.
    fn ranges(count: usize) -> Vec<(CountedKey, Option<CountedKey>, usize)> {
        let mut state = 1_u32;
        let mut below = |bound: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % bound
        };
        (0..count)
            .map(|number| {
                let first = below(20_000);
                let len = 1 + below([3, 100, 5_000][number % 3]);
                let end = (number % 500 != 7).then(|| CountedKey(first + len));
                (CountedKey(first + if end.is_none() { 15_000 } else { 0 }), end, number)
            })
            .collect()
    }

    #[test]
    fn the_newest_range_with_the_key_is_found() {
        for count in [0, 1, 2, 3, 40, 700] {
            let ranges = ranges(count);
            let found = LastRemovals::new(ranges.clone());
            for key in (0..40_000).map(CountedKey) {
                let newest = ranges
                    .iter()
                    .rev()
                    .find(|(first, end, _)| first.0 <= key.0 && end.is_none_or(|end| key.0 < end.0));
                assert_eq!(found.of(&key), newest.map(|range| range.2), "{} in {count} ranges", key.0);
            }
        }
    }

    #[test]
    fn comparisons_grow_with_the_logarithm_of_the_ranges() {
        const RANGES: usize = 1_000;
        const KEYS: usize = 10_000;
        let ranges = ranges(RANGES);
        COMPARISONS.set(0);
        let found = LastRemovals::new(ranges);
        let built = COMPARISONS.get();
        let log = (2 * RANGES).ilog2() as usize + 1;
        assert!(built <= 6 * RANGES * log, "{built} comparisons for {RANGES} ranges");
        let removed =
            (0..40_000).step_by(40_000 / KEYS).filter(|key| found.of(&CountedKey(*key)).is_some()).count();
        assert!((1..KEYS).contains(&removed));
        let searched = COMPARISONS.get() - built;
        assert!(searched <= KEYS * (log + 1), "{searched} comparisons for {KEYS} keys");
    }
}
