//! # Data: the number of pairs, and the lengths of their keys and values
//!
//! The workload table writes them as `key = 27, value = "127"`. [`ValueSizes::parse`] defines the
//! forms of `value`.

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::keys::{BenchRandom, KeyLayout, permute};
use crate::zipf::ZipfGenerator;

/// Content of a filled database.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DataSpec {
    pub(crate) keys: KeyLayout,
    pub(crate) values: ValueSizes,
    pub(crate) pairs: u64,
}

impl DataSpec {
    /// Returns the data of Facebook's UDB.
    pub(crate) fn udb(pairs: u64) -> DataSpec {
        DataSpec { keys: KeyLayout::UDB, values: ValueSizes::Fixed(127), pairs }
    }

    /// Returns the mean bytes of a pair.
    pub(crate) fn pair_bytes(&self) -> f64 {
        self.keys.len as f64 + self.values.mean()
    }

    /// Returns the bytes of all keys and values.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "pairs times a positive mean")]
    pub(crate) fn bytes(&self) -> u64 {
        (self.pairs as f64 * self.pair_bytes()) as u64
    }
}

/// Distribution of the lengths of values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ValueSizes {
    /// One length for all.
    Fixed(usize),
    /// One of these lengths with equal probability, drawn at each write.
    OneOf(Vec<usize>),
    /// A length from the first to the second, drawn at each write from a Zipf distribution. The
    /// first one is the most frequent.
    Zipf(usize, usize),
    /// Facebook's ETC: 40 % of the pairs have 1–13 bytes, 55 % 14–300, and 5 % 301–1024. The length
    /// of a pair never changes.
    Etc,
}

/// Share of the pairs of ETC that are tiny, and share of those that are tiny or small.
const ETC_TINY: f64 = 0.4;
const ETC_SMALL: f64 = 0.95;

impl ValueSizes {
    /// Parses `127`, `128|256|1024`, `128..256` or `etc`.
    pub(crate) fn parse(text: &str) -> Result<ValueSizes> {
        let number = |text: &str| {
            text.trim().parse::<usize>().map_err(|_| format!("value size {text:?} is not a number"))
        };
        if text == "etc" {
            return Ok(ValueSizes::Etc);
        }
        if let Some((low, high)) = text.split_once("..") {
            let (low, high) = (number(low)?, number(high)?);
            return if low < high { Ok(ValueSizes::Zipf(low, high)) } else { Err("sizes are empty".into()) };
        }
        if text.contains('|') {
            return Ok(ValueSizes::OneOf(
                text.split('|').map(number).collect::<std::result::Result<_, _>>()?,
            ));
        }
        Ok(ValueSizes::Fixed(number(text)?))
    }

    pub(crate) fn mean(&self) -> f64 {
        match self {
            ValueSizes::Fixed(size) => *size as f64,
            ValueSizes::OneOf(sizes) => sizes.iter().sum::<usize>() as f64 / sizes.len() as f64,
            ValueSizes::Zipf(low, high) => {
                let weight = |size: usize| ((size - low + 1) as f64).powf(-0.99);
                let sum: f64 = (*low..=*high).map(weight).sum();
                (*low..=*high).map(|size| size as f64 * weight(size)).sum::<f64>() / sum
            }
            ValueSizes::Etc => 0.4 * 7.0 + 0.55 * 157.0 + 0.05 * 662.5,
        }
    }

    /// Returns whether every value can contain the number of its pair.
    pub(crate) fn fit_pair_index(&self) -> bool {
        match self {
            ValueSizes::Fixed(size) | ValueSizes::Zipf(size, _) => *size >= 8,
            ValueSizes::OneOf(sizes) => sizes.iter().all(|size| *size >= 8),
            ValueSizes::Etc => false,
        }
    }
}

/// Generator of lengths.
pub(crate) struct SizeGenerator {
    sizes: ValueSizes,
    pairs: u64,
    zipf: Option<ZipfGenerator>,
}

impl SizeGenerator {
    pub(crate) fn new(data: &DataSpec) -> SizeGenerator {
        let zipf = match data.values {
            ValueSizes::Zipf(low, high) => Some(ZipfGenerator::new((high - low + 1) as u64)),
            _ => None,
        };
        SizeGenerator { sizes: data.values.clone(), pairs: data.pairs, zipf }
    }

    /// Returns the length of the next value of pair `index`.
    #[allow(clippy::cast_possible_truncation, reason = "sizes are small")]
    pub(crate) fn size(&self, index: u64, random: &mut BenchRandom) -> usize {
        match (&self.sizes, &self.zipf) {
            (ValueSizes::Fixed(size), _) => *size,
            (ValueSizes::OneOf(sizes), _) => sizes[random.below(sizes.len() as u64) as usize],
            (ValueSizes::Zipf(low, _), Some(zipf)) => low + zipf.rank(random) as usize,
            (ValueSizes::Zipf(low, _), None) => *low,
            (ValueSizes::Etc, _) => {
                let within = |low: u64, high: u64| (low + permute(index) % (high - low + 1)) as usize;
                match (index % self.pairs) as f64 / self.pairs as f64 {
                    share if share < ETC_TINY => within(1, 13),
                    share if share < ETC_SMALL => within(14, 300),
                    _ => within(301, 1024),
                }
            }
        }
    }
}

/// Chooses pairs as the users of ETC do: tiny and small ones by a Zipf distribution, large ones
/// uniformly.
#[derive(Clone)]
pub(crate) struct EtcPicker {
    below: u64,
    pairs: u64,
    zipf: ZipfGenerator,
}

impl EtcPicker {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of pairs")]
    pub(crate) fn new(pairs: u64) -> EtcPicker {
        let below = ((pairs as f64 * ETC_SMALL) as u64).max(2);
        EtcPicker { below, pairs, zipf: ZipfGenerator::new(below) }
    }

    pub(crate) fn pair(&self, random: &mut BenchRandom) -> u64 {
        if random.unit() < ETC_SMALL || self.below >= self.pairs {
            self.zipf.pair(random)
        } else {
            self.below + random.below(self.pairs - self.below)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(text: &str) -> (DataSpec, Vec<usize>) {
        let data = DataSpec { values: ValueSizes::parse(text).unwrap(), ..DataSpec::udb(100_000) };
        let (sizer, mut random) = (SizeGenerator::new(&data), BenchRandom::new(4));
        let sizes = (0..data.pairs).map(|index| sizer.size(index, &mut random)).collect();
        (data, sizes)
    }

    #[test]
    fn sizes_are_in_their_bounds_and_have_the_mean_they_say() {
        for (text, low, high) in
            [("127", 127, 127), ("128|256|1024", 128, 1024), ("128..256", 128, 256), ("etc", 1, 1024)]
        {
            let (data, sizes) = drawn(text);
            assert!(sizes.iter().all(|size| (low..=high).contains(size)), "{text}");
            let mean = sizes.iter().sum::<usize>() as f64 / sizes.len() as f64;
            assert!((mean / data.values.mean() - 1.0).abs() < 0.02, "{text}: {mean}");
        }
    }

    #[test]
    fn a_pair_of_etc_keeps_its_size() {
        let data = DataSpec { values: ValueSizes::Etc, ..DataSpec::udb(1000) };
        let (sizer, mut random) = (SizeGenerator::new(&data), BenchRandom::new(4));
        for index in 0..1000 {
            assert_eq!(sizer.size(index, &mut random), sizer.size(index, &mut random));
        }
    }

    #[test]
    fn malformed_sizes_are_refused() {
        for text in ["", "many", "12..x", "9..9", "1|b"] {
            assert!(ValueSizes::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn etc_asks_for_large_pairs_as_often_as_there_are_some() {
        let (picker, mut random) = (EtcPicker::new(10_000), BenchRandom::new(5));
        let large = (0..100_000).filter(|_| picker.pair(&mut random) >= 9_500).count();
        assert!((4_500..5_500).contains(&large), "{large}");
    }
}
