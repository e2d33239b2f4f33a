//! # Zipf distribution: a choice of pairs that prefers few of them
//!
//! This is the generator of YCSB (Gray and others, "Quickly generating billion-record synthetic
//! databases", SIGMOD 1994) with skew 0.99. Rank `r` has a probability of about `1 / (r+1)^0.99 /
//! zeta`. The power `1 / (1 - skew)` of the formula is exactly 100 here, so nine multiplications
//! replace a call of `pow`.
//!
//! A multiplication modulo the number of pairs scatters the ranks over the pairs. Otherwise hot
//! pairs would have been written next to each other, which would favour every log.

use crate::keys::BenchRandom;

const SKEW: f64 = 0.99;

/// Generator of pairs of `0..pairs`.
#[derive(Clone)]
pub(crate) struct ZipfGenerator {
    pairs: u64,
    stride: u64,
    zeta: f64,
    eta: f64,
    two: f64,
}

impl ZipfGenerator {
    /// Returns a generator for `pairs` pairs: at least 2, and at most 2^32, so that the scattering
    /// cannot overflow.
    pub(crate) fn new(pairs: u64) -> ZipfGenerator {
        assert!((2..=1 << 32).contains(&pairs), "2 to 2^32 pairs");
        let zeta = zeta(pairs);
        let two = 1.0 + 0.5f64.powf(SKEW);
        let eta = (1.0 - (2.0 / pairs as f64).powf(1.0 - SKEW)) / (1.0 - two / zeta);
        ZipfGenerator { pairs, stride: stride(pairs), zeta, eta, two }
    }

    /// Returns a rank. Rank 0 is the most frequent.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the product is in 0.0..pairs"
    )]
    pub(crate) fn rank(&self, random: &mut BenchRandom) -> u64 {
        let unit = random.unit();
        let scaled = unit * self.zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < self.two {
            return 1;
        }
        let rank = self.pairs as f64 * hundredth_power(self.eta * unit - self.eta + 1.0);
        (rank as u64).min(self.pairs - 1)
    }

    /// Returns a pair.
    pub(crate) fn pair(&self, random: &mut BenchRandom) -> u64 {
        self.scatter(self.rank(random))
    }

    /// Returns the pair of a rank. This is a permutation.
    pub(crate) fn scatter(&self, rank: u64) -> u64 {
        (rank * self.stride) % self.pairs
    }
}

fn hundredth_power(x: f64) -> f64 {
    let x4 = (x * x) * (x * x);
    let x16 = (x4 * x4) * (x4 * x4);
    let x32 = x16 * x16;
    x32 * x32 * x32 * x4
}

/// Returns the sum of `1 / i^SKEW` for `i` of `1..=n`. The sum is exact up to ten thousand. Beyond,
/// the Euler-Maclaurin formula approximates it, with an error of less than 10^-9.
fn zeta(n: u64) -> f64 {
    let exact = n.min(10_000);
    let sum: f64 = (1..=exact).map(|i| (i as f64).powf(-SKEW)).sum();
    if n == exact {
        return sum;
    }
    let (a, b) = (exact as f64, n as f64);
    let integral = (b.powf(1.0 - SKEW) - a.powf(1.0 - SKEW)) / (1.0 - SKEW);
    sum + integral + (b.powf(-SKEW) - a.powf(-SKEW)) / 2.0
}

/// Returns a step near the golden section that has no common divisor with `pairs`.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below pairs")]
fn stride(pairs: u64) -> u64 {
    let mut stride = ((pairs as f64 * 0.618_033_988_7) as u64).max(1);
    while gcd(stride, pairs) != 1 {
        stride += 1;
    }
    stride
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_by_integral_agrees_with_the_sum() {
        let exact: f64 = (1..=300_000u64).map(|i| (i as f64).powf(-SKEW)).sum();
        assert!((zeta(300_000) - exact).abs() < 1e-7);
    }

    #[test]
    fn frequencies_follow_the_law() {
        let (pairs, draws) = (100_000, 2_000_000);
        let zipf = ZipfGenerator::new(pairs);
        let mut random = BenchRandom::new(9);
        let mut counts = vec![0u32; 100_000];
        for _ in 0..draws {
            counts[usize::try_from(zipf.rank(&mut random)).unwrap()] += 1;
        }
        let expected = |rank: f64| f64::from(draws) / (rank + 1.0).powf(SKEW) / zeta(pairs);
        for rank in [0u32, 1] {
            let ratio = f64::from(counts[rank as usize]) / expected(f64::from(rank));
            assert!((0.97..1.03).contains(&ratio), "rank {rank}: {ratio}");
        }
        // Gray's formula is an approximation above rank 1: the test checks whole decades.
        for (from, to) in [(10u32, 100u32), (100, 1_000), (1_000, 10_000), (10_000, 100_000)] {
            let got: f64 = counts[from as usize..to as usize].iter().map(|c| f64::from(*c)).sum();
            let want: f64 = (from..to).map(|rank| expected(f64::from(rank))).sum();
            assert!((0.93..1.07).contains(&(got / want)), "ranks {from}..{to}: {}", got / want);
        }
    }

    #[test]
    fn scattering_is_a_permutation_and_neighbours_in_rank_are_far_apart() {
        for pairs in [2, 3, 1000, 4096, 99_991] {
            let zipf = ZipfGenerator::new(pairs);
            let mut seen = vec![false; usize::try_from(pairs).unwrap()];
            for rank in 0..pairs {
                seen[usize::try_from(zipf.scatter(rank)).unwrap()] = true;
            }
            assert!(seen.iter().all(|s| *s), "{pairs}");
        }
        let zipf = ZipfGenerator::new(5_000_000);
        for rank in 0..100 {
            assert!(zipf.scatter(rank).abs_diff(zipf.scatter(rank + 1)) > 1_000_000);
        }
    }

    #[test]
    fn the_hundredth_power_is_that() {
        for x in [0.0, 0.5, 0.99, 1.0] {
            assert!((hundredth_power(x) - f64::powi(x, 100)).abs() < 1e-12);
        }
    }
}
