//! # Random numbers from a seed
//!
//! SplitMix64 (Steele, Lea, Flood, OOPSLA'14): eight bytes of state and one multiply-xor round per
//! number. Not suitable for secrets.

/// A generator. Equal seeds produce equal numbers.
#[derive(Clone, Debug)]
pub(super) struct SimRandom(u64);

impl SimRandom {
    pub(super) fn new(seed: u64) -> SimRandom {
        SimRandom(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number in `[0, bound)`, nearly uniform for small bounds.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        self.next() % bound
    }

    /// Returns true with probability 1 / `n`.
    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Finalizer of SplitMix64: every bit of the result depends on every bit of `word`.
pub(super) fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}
