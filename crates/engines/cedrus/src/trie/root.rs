//! # Root: a reference for each first digit of a hash
//!
//! A reference for each digit. As long as every list there serves many digits at once, as in a
//! keyspace with little in it, a *small* root has one reference for each group of neighbours; the
//! first one that serves fewer makes it full, for good.
//!
//! ```text
//!  small  [ a       b       . ... ]      64 references, of 64 digits each
//!  full   [ a a .. a b b .. b c d .. ]   4096
//! ```
//!
//! ## Threads
//!
//! A writer for each shard (shard.rs), for the digits of its shard. While the root is small,
//! writers also take the lock `grow_lock`: what one stores in the small root is in the full one
//! that another makes. A reader that was shown the small root when the full one was made finds the
//! version of its shard moved (trie I2) if anything was changed since: the full one is published
//! before the first change of it.

use std::sync::OnceLock;

use sheaf_base::sync::Mutex;
use sheaf_base::sync::atomic::{AtomicU32, Ordering};

use super::EMPTY_REF;

/// Digits of a small root, in bits, at most.
const SMALL_BITS: u32 = 6;

/// See the module.
#[derive(Debug)]
pub(super) struct TrieRoot {
    /// Bits of a digit, and how many of these, the last ones, tell those of a group apart.
    bits: u32,
    group_bits: u32,
    small: Box<[AtomicU32]>,
    full: OnceLock<Box<[AtomicU32]>>,
    grow_lock: Mutex<()>,
}

impl TrieRoot {
    /// Nothing, for digits of so many bits.
    pub(super) fn new(bits: u32) -> TrieRoot {
        let small = bits.saturating_sub(1).min(SMALL_BITS);
        let words = (0..1 << small).map(|_| AtomicU32::new(EMPTY_REF)).collect();
        TrieRoot {
            bits,
            group_bits: bits - small,
            small: words,
            full: OnceLock::new(),
            grow_lock: Mutex::default(),
        }
    }

    /// Bytes of memory.
    pub(super) fn bytes(&self) -> u64 {
        let full = self.full.get().map_or(0, |full| size_of_val(&full[..]));
        (size_of_val(&self.small[..]) + full) as u64
    }

    /// Returns the reference of `digit`.
    #[inline]
    pub(super) fn get(&self, digit: usize) -> u32 {
        match self.full.get() {
            Some(full) => full[digit].load(Ordering::Relaxed),
            None => self.small[digit >> self.group_bits].load(Ordering::Relaxed),
        }
    }

    /// From now on `len` digits from `first` on lead to `to`. The writer of these digits.
    pub(super) fn set(&self, first: usize, len: usize, to: u32) {
        let store = |words: &[AtomicU32]| words.iter().for_each(|word| word.store(to, Ordering::Relaxed));
        if let Some(full) = self.full.get() {
            return store(&full[first..first + len]);
        }
        let _growing = self.grow_lock.lock();
        let is_grouped = (first | len) & ((1 << self.group_bits) - 1) == 0;
        match self.full.get() {
            Some(full) => store(&full[first..first + len]),
            None if is_grouped => {
                store(&self.small[first >> self.group_bits..(first + len) >> self.group_bits])
            }
            None => store(&self.grow()[first..first + len]),
        }
    }

    /// Makes the full root, under the lock.
    fn grow(&self) -> &[AtomicU32] {
        let full: Box<[_]> = (0..1 << self.bits).map(|digit| AtomicU32::new(self.get(digit))).collect();
        self.full.get_or_init(|| full)
    }

    /// Returns the references in order, each with the number of neighbours in a row that have it.
    pub(super) fn runs(&self) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for to in (0..1 << self.bits).map(|digit| self.get(digit)) {
            match runs.last_mut() {
                Some((last, times)) if *last == to => *times += 1,
                _ => runs.push((to, 1)),
            }
        }
        runs
    }

    /// Takes up what [`TrieRoot::runs`] gave, as far as there are digits. The writer.
    pub(super) fn set_runs(&self, runs: &[(u32, u32)]) {
        let mut first = 0;
        for (to, times) in runs {
            let len = (*times as usize).min((1 << self.bits) - first);
            self.set(first, len, *to);
            first += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_small_until_a_reference_serves_few_digits() {
        for bits in [2, 7, 12] {
            let root = TrieRoot::new(bits);
            let (all, group, small) = (1 << bits, 1 << root.group_bits, root.bytes());
            assert!(small <= 256 && root.runs() == [(EMPTY_REF, 1 << bits)]);
            root.set(0, all, 3);
            root.set(all / 2, all / 2, 4);
            root.set(all - group, group, 5);
            assert_eq!(root.bytes(), small);
            assert_eq!((root.get(0), root.get(all - 1)), (3, 5));
            let before: Vec<u32> = (0..all).map(|digit| root.get(digit)).collect();
            let again = TrieRoot::new(bits);
            again.set_runs(&root.runs());
            assert_eq!((again.runs(), again.bytes()), (root.runs(), small));
            root.set(all - 1, 1, 6);
            assert_eq!(root.bytes(), small + 4 * all as u64);
            assert!((0..all - 1).all(|digit| root.get(digit) == before[digit]) && root.get(all - 1) == 6);
            root.set(0, all, EMPTY_REF);
            assert_eq!(root.runs(), [(EMPTY_REF, 1 << bits)]);
            again.set_runs(&[(7, 1), (8, u32::MAX)]);
            assert_eq!((again.get(0), again.get(all - 1)), (7, 8));
        }
    }
}
