//! # Root: a reference for each first digit of a hash
//!
//! In a keyspace with few entries every list of the root serves many digits. Then a *small* root
//! has one reference for each group of neighbouring digits. The first list that serves fewer digits
//! makes the root full for good.
//!
//! ```text
//!  small  [ a       b       . ... ]      64 references, for 64 digits each
//!  full   [ a a .. a b b .. b c d .. ]   4096
//! ```
//!
//! ## Threads
//!
//! Each shard has a writer for its digits (shard.rs). While the root is small, writers also take
//! `grow_lock`. So no reference is stored in the small root while another writer copies it to the
//! full one. The full root is published before its first change. A reader that still uses the small
//! root therefore finds the version of its shard changed (trie I2), if a reference of the shard has
//! changed.

use std::sync::OnceLock;

use sheaf_platform::sync::Mutex;
use sheaf_platform::sync::atomic::{AtomicU32, Ordering};

use super::EMPTY_REF;

/// Maximum number of bits of a digit in the small root.
const SMALL_BITS: u32 = 6;

/// References of the root.
#[derive(Debug)]
pub(super) struct TrieRoot {
    /// Number of bits of a digit, and of its last bits that distinguish the digits of a group.
    bits: u32,
    group_bits: u32,
    small: Box<[AtomicU32]>,
    full: OnceLock<Box<[AtomicU32]>>,
    grow_lock: Mutex<()>,
}

impl TrieRoot {
    /// Returns an empty root for digits of `bits` bits.
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

    /// Returns the bytes of memory in use.
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

    /// Sets the references of `len` digits from `first` on. Only the writer of these digits calls
    /// this.
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

    /// Makes the full root. The caller holds `grow_lock`.
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

    /// Restores the result of [`TrieRoot::runs`], as far as there are digits. The caller must be
    /// the only writer.
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
