//! # Skew sketch: how unevenly keys are used
//!
//! Estimates from the hashes of sampled keys, in 6 KiB.
//!
//! ## Picture
//!
//! ```text
//!   hash ─┬─ count sketch: 256 signed counters ── sum of squares ──> collision chance of hot keys
//!         └─ below the threshold? ── up to 512 keys with their counts ──> number of distinct keys;
//!                                                        collision chance, if no key is hot
//! ```
//!
//! Two values determine a Zipf distribution and its number of keys. One is the number of distinct
//! keys in the sample. The other is the chance S that two calls have the same key: the sum of the
//! squares of the keys' shares.
//!
//! * **Count sketch.** Each key adds +1 or -1, by a bit of its hash, to one counter. The squares
//!   add up to m + m(m-1)S on average for m calls, within 9 %. That is accurate if m·S is large,
//!   and noise otherwise.
//! * **Sampled keys.** All keys with a hash below a threshold, which is halved when there are too
//!   many. An unbiased fraction of the keys, hot or not. That is accurate for the number of keys,
//!   and for S as long as no key is hot (which the sketch would show).
//!
//! Hashes are not keyed: keys that are chosen by their hashes can falsify an estimate, nothing
//! else.

use siphasher::sip::SipHasher13;

const COUNTERS: usize = 256;
const MAX_KEYS: usize = 512;

/// Sketch of the sampled keys.
#[derive(Clone, Debug)]
pub(crate) struct SkewSketch {
    /// Number of calls recorded.
    pub(super) seen: f64,
    /// Expected sum of the squares of the counters if no two calls had the same key.
    pub(super) noise: f64,
    pub(super) counters: Box<[i32; COUNTERS]>,
    /// Keys are kept if the upper half of their hash is at most this.
    pub(super) threshold: u32,
    /// Upper half of the hash, and count, sorted by hash.
    pub(super) keys: Vec<(u32, u32)>,
}

impl Default for SkewSketch {
    fn default() -> SkewSketch {
        SkewSketch {
            seen: 0.0,
            noise: 0.0,
            counters: Box::new([0; COUNTERS]),
            threshold: u32::MAX,
            keys: Vec::new(),
        }
    }
}

/// Estimates from the sample: the number of calls and of distinct keys in it, and the chance that
/// two calls have the same key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SkewEstimate {
    pub(super) calls: f64,
    pub(super) distinct: f64,
    pub(super) collision_chance: f64,
}

impl SkewSketch {
    /// Records a sampled call.
    #[allow(clippy::cast_possible_truncation, reason = "halves and bits of a hash")]
    pub(super) fn record(&mut self, key: &[u8]) {
        let hash = SipHasher13::new().hash(key);
        let sign = if hash & (1 << 31) == 0 { 1 } else { -1 };
        let counter = &mut self.counters[hash as usize % COUNTERS];
        *counter = counter.saturating_add(sign);
        self.seen += 1.0;
        self.noise += 1.0;
        let name = (hash >> 32) as u32;
        if name <= self.threshold {
            self.count_key(name);
        }
    }

    fn count_key(&mut self, name: u32) {
        match self.keys.binary_search_by_key(&name, |key| key.0) {
            Ok(at) => self.keys[at].1 = self.keys[at].1.saturating_add(1),
            Err(at) => self.keys.insert(at, (name, 1)),
        }
        while self.keys.len() > MAX_KEYS {
            self.threshold /= 2;
            let threshold = self.threshold;
            self.keys.retain(|key| key.0 <= threshold);
        }
    }

    /// Halves the counts, as if half of the calls had not been sampled. Clears the sketch if only
    /// few of many keys are left: the workload now uses other keys.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a bit's number")]
    pub(super) fn halve(&mut self) {
        let bit = self.seen as u64 % 31;
        self.seen /= 2.0;
        self.noise /= 4.0;
        self.counters.iter_mut().for_each(|counter| *counter /= 2);
        for (name, count) in &mut self.keys {
            *count = (*count + (*name >> bit & 1)) / 2;
        }
        self.keys.retain(|key| key.1 > 0);
        if self.keys.len() < MAX_KEYS / 8 && self.threshold < u32::MAX {
            *self = SkewSketch::default();
        }
    }

    /// Returns the estimates, or `None` after too few calls.
    pub(super) fn estimate(&self) -> Option<SkewEstimate> {
        let calls = self.seen;
        if calls < 100.0 || self.keys.is_empty() {
            return None;
        }
        let share = (f64::from(self.threshold) + 1.0) / 4_294_967_296.0;
        let distinct = (self.keys.len() as f64 / share).min(calls);
        let squares: f64 = self.counters.iter().map(|c| f64::from(*c) * f64::from(*c)).sum();
        let above = (squares - self.noise) / (calls * calls);
        let doubt = squares * (2.0 / COUNTERS as f64).sqrt() / (calls * calls);
        let meeting = if above > 4.0 * doubt {
            above
        } else {
            let pairs: f64 = self.keys.iter().map(|k| f64::from(k.1) * (f64::from(k.1) - 1.0)).sum();
            pairs / share / (calls * (calls - 1.0))
        };
        Some(SkewEstimate { calls, distinct, collision_chance: meeting })
    }
}

/// A Zipf distribution: the key of rank r is used in proportion to `r^-exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ZipfFit {
    pub(super) exponent: f64,
    pub(super) keys: f64,
}

/// Largest exponent that is distinguished.
const MAX_EXPONENT: f64 = 2.0;

impl ZipfFit {
    /// Returns the distribution that would give the estimates `seen`. If calls hardly ever have the
    /// same key, all `keys` of the keyspace are assumed to be in use.
    pub(super) fn fit(seen: SkewEstimate, keys: u64) -> ZipfFit {
        let sees_all = seen.distinct < 0.8 * seen.calls || keys == 0;
        let population = |exponent: f64| match sees_all {
            true => population(exponent, seen),
            false => (keys as f64).max(seen.distinct),
        };
        let (mut low, mut high) = (0.0, MAX_EXPONENT);
        for _ in 0..9 {
            let exponent = f64::midpoint(low, high);
            let zipf = ZipfFit { exponent, keys: population(exponent) };
            if zipf.collision_chance() < seen.collision_chance { low = exponent } else { high = exponent }
        }
        let keys = population(low);
        ZipfFit { exponent: low, keys }
    }

    /// Returns the share of the calls that use the hottest `part` of the keys, at least one key.
    pub(super) fn share(self, part: f64) -> f64 {
        let sum = |keys: f64| ranks(keys).map(|(rank, many)| many * rank.powf(-self.exponent)).sum::<f64>();
        sum((self.keys * part).max(1.0)) / sum(self.keys)
    }

    /// Returns the chance that two calls have the same key.
    fn collision_chance(self) -> f64 {
        let (mut sum, mut squares) = (0.0, 0.0);
        for (rank, many) in ranks(self.keys) {
            let weight = rank.powf(-self.exponent);
            sum += many * weight;
            squares += many * weight * weight;
        }
        squares / (sum * sum)
    }

    /// Returns the expected number of distinct keys of `calls` calls.
    fn distinct(self, calls: f64) -> f64 {
        let weights = || ranks(self.keys).map(|(rank, many)| (rank.powf(-self.exponent), many));
        let sum: f64 = weights().map(|(weight, many)| many * weight).sum();
        weights().map(|(weight, many)| many * -(-calls * weight / sum).exp_m1()).sum()
    }
}

/// Returns the number of keys that gives the distinct keys that were seen.
fn population(exponent: f64, seen: SkewEstimate) -> f64 {
    let (mut low, mut high) = (seen.distinct.max(1.0).ln(), 40.0 * std::f64::consts::LN_2);
    for _ in 0..18 {
        let middle = f64::midpoint(low, high);
        let zipf = ZipfFit { exponent, keys: middle.exp() };
        if zipf.distinct(seen.calls) < seen.distinct { low = middle } else { high = middle }
    }
    low.exp()
}

/// Returns the ranks up to `keys`, grouped beyond the first ones: a representative rank of each
/// group, and the size of the group.
fn ranks(keys: f64) -> impl Iterator<Item = (f64, f64)> {
    let mut from = 1.0f64;
    std::iter::from_fn(move || {
        if from > keys {
            return None;
        }
        let to = (from * 1.15).floor().max(from + 1.0).min(keys + 1.0);
        let (first, many) = (from, (to - from).min(keys + 1.0 - from));
        from = to.max(from + f64::EPSILON * from);
        Some(((first * (first + many - 1.0).max(first)).sqrt(), many))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sample of `calls` calls on `keys` keys with this exponent.
    fn sample(exponent: f64, keys: usize, calls: u32) -> SkewSketch {
        let mut sums: Vec<f64> = Vec::with_capacity(keys);
        let mut sum = 0.0;
        for rank in 1..=keys {
            sum += (rank as f64).powf(-exponent);
            sums.push(sum);
        }
        let (mut skew, mut state) = (SkewSketch::default(), 7u64);
        for _ in 0..calls {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            let unit = (state >> 11) as f64 / (1u64 << 53) as f64;
            let rank = sums.partition_point(|s| *s < unit * sum);
            skew.record(&(rank as u64).to_be_bytes());
        }
        skew
    }

    #[test]
    fn skewed_and_uniform_keys_are_distinguished() {
        for keys in [1_000, 100_000, 1_000_000] {
            for (exponent, near) in [(0.0, 0.3), (0.5, 0.2), (0.99, 0.1), (1.2, 0.15)] {
                let seen = sample(exponent, keys, 16_000).estimate().unwrap();
                let found = ZipfFit::fit(seen, keys as u64);
                assert!(
                    (found.exponent - exponent).abs() <= near,
                    "{keys} keys, {exponent}: {found:?} of {seen:?}"
                );
            }
        }
    }

    #[test]
    fn the_hottest_keys_have_their_share() {
        let zipf = ZipfFit { exponent: 0.99, keys: 1_000_000.0 };
        assert!((0.4..0.6).contains(&zipf.share(0.001)), "{}", zipf.share(0.001));
        let even = ZipfFit { exponent: 0.0, keys: 1_000.0 };
        assert!((even.share(0.1) - 0.1).abs() < 0.01);
    }

    #[test]
    fn halving_keeps_the_estimate() {
        let mut skew = sample(0.99, 100_000, 60_000);
        skew.halve();
        let found = ZipfFit::fit(skew.estimate().unwrap(), 100_000);
        assert!((found.exponent - 0.99).abs() < 0.15, "{found:?}");
    }

    #[test]
    fn few_calls_give_no_estimate() {
        assert_eq!(sample(0.99, 1_000, 50).estimate(), None);
    }
}
