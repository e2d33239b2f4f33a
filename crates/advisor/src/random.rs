//! # Random numbers, ranks and lengths
//!
//! All come from one seeded generator, so that every engine gets the same operations.

/// Random number generator: splitmix64.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator. Generators with the same seed draw the same numbers.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix64(self.0)
    }

    /// Returns a random number of at least 0 and below 1.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a random number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound.max(1)
    }
}

/// Permutes the 64-bit numbers pseudorandomly.
pub(crate) fn mix64(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Ranks with frequencies proportional to `rank^-exponent`, by rejection-inversion (Hörmann and
/// Derflinger, "Rejection-inversion to generate variates from monotone discrete distributions",
/// 1996). It needs no table, allows any exponent, and rarely needs more than one attempt.
#[derive(Clone, Debug)]
pub(crate) struct ZipfRanks {
    exponent: f64,
    count: f64,
    first: f64,
    last: f64,
}

impl ZipfRanks {
    /// Returns a distribution of the ranks below `count`.
    pub(crate) fn new(exponent: f64, count: u64) -> ZipfRanks {
        let count = count.max(1) as f64;
        let mut zipf = ZipfRanks { exponent, count, first: 0.0, last: 0.0 };
        zipf.first = zipf.area(1.5) - 1.0;
        zipf.last = zipf.area(count + 0.5);
        zipf
    }

    /// Returns a rank from 0. Lower ranks are more frequent.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 and the count")]
    pub(crate) fn rank(&self, random: &mut Random) -> u64 {
        if self.exponent <= 0.0 {
            return (random.next_f64() * self.count) as u64;
        }
        loop {
            let area = self.last + random.next_f64() * (self.first - self.last);
            let at = self.inverse(area);
            let rank = at.round().clamp(1.0, self.count);
            if area >= self.area(rank + 0.5) - rank.powf(-self.exponent) {
                return rank as u64 - 1;
            }
        }
    }

    /// Returns the integral of `x^-exponent`.
    fn area(&self, x: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { x.ln() } else { x.powf(power) / power }
    }

    fn inverse(&self, area: f64) -> f64 {
        let power = 1.0 - self.exponent;
        if power.abs() < 1e-9 { area.exp() } else { (area * power).powf(1.0 / power) }
    }
}

/// Log-normal lengths with a given mean, and a spread from a median and a 99th percentile.
#[derive(Clone, Debug)]
pub(crate) struct LengthDistribution {
    mean: f64,
    sigma: f64,
}

impl LengthDistribution {
    /// Returns a distribution. All lengths are equal if the percentiles are within a factor of two,
    /// which is the resolution of the statistics.
    pub(crate) fn new(mean: f64, p50: u64, p99: u64) -> LengthDistribution {
        let ratio = p99.max(1) as f64 / p50.max(1) as f64;
        LengthDistribution { mean, sigma: if ratio > 2.0 { ratio.ln() / 2.326 } else { 0.0 } }
    }

    /// Returns a random length.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a length, and bounded")]
    pub(crate) fn sample(&self, random: &mut Random) -> usize {
        if self.sigma <= 0.0 {
            return self.mean.round() as usize;
        }
        let (u, v) = (1.0 - random.next_f64(), random.next_f64());
        let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        let length = self.mean * (self.sigma * normal - self.sigma * self.sigma / 2.0).exp();
        length.clamp(0.0, 64.0 * self.mean).round() as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_often_as_they_should() {
        for exponent in [0.0, 0.5, 0.99, 1.0, 1.3] {
            let (zipf, mut random) = (ZipfRanks::new(exponent, 1000), Random::new(1));
            let mut hits = vec![0.0f64; 1000];
            for _ in 0..200_000 {
                hits[usize::try_from(zipf.rank(&mut random)).unwrap()] += 1.0;
            }
            let sum: f64 = (1..=1000).map(|r| f64::from(r).powf(-exponent)).sum();
            for rank in [1, 2, 3, 10, 100] {
                let wanted = 200_000.0 * (rank as f64).powf(-exponent) / sum;
                let got = hits[rank - 1];
                assert!(
                    (got - wanted).abs() < 5.0 * wanted.sqrt() + 1.0,
                    "{exponent} {rank}: {got} {wanted}"
                );
            }
        }
    }

    #[test]
    fn lengths_have_their_mean() {
        let (lengths, mut random) = (LengthDistribution::new(300.0, 200, 2000), Random::new(1));
        let mean = (0..50_000).map(|_| lengths.sample(&mut random) as f64).sum::<f64>() / 50_000.0;
        assert!((mean / 300.0 - 1.0).abs() < 0.1, "{mean}");
        assert_eq!(LengthDistribution::new(100.0, 90, 127).sample(&mut random), 100);
    }
}
