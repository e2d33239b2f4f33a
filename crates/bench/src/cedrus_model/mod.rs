//! # Model of cedrus' trie, and measurement of tries without data
//!
//! Grows tries of random hashes and measures their sizes, like the paper's Figure 4. A model
//! estimates the sizes for any number of keys. `cedrus-shape` and `cedrus-footprint` print both.

pub(crate) mod footprint;

use sheaf_cedrus::probe::TrieProbe;
use sheaf_cedrus::shape::{HASH_BITS, LINE_BYTES, TrieShape};

/// Measured sizes of a trie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrieMeasurement {
    /// Bytes of the pages and the root, per key.
    pub(crate) bytes_per_key: f64,
    /// Average number of nodes on the path to a key, with the root.
    pub(crate) nodes_per_path: f64,
    /// Average number of entries of a list, as a fraction of the maximum.
    pub(crate) list_fill: f64,
    /// Used fraction of the lines in pages.
    pub(crate) page_fill: f64,
    /// Fraction of the nodes' references, with the root's, that are not empty: the paper's slot
    /// utilisation.
    pub(crate) reference_fill: f64,
}

fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// Grows a trie and measures it at each of `sizes`, which must ascend.
pub(crate) fn measure_growth(shape: TrieShape, sizes: &[u64]) -> Vec<(u64, TrieMeasurement)> {
    let mut trie = TrieProbe::new(shape);
    let mut all = Vec::new();
    for size in sizes {
        for n in trie.keys()..*size {
            trie.insert(mix(n));
        }
        all.push((*size, measure(&trie)));
    }
    all
}

fn measure(trie: &TrieProbe) -> TrieMeasurement {
    let shape = trie.shape();
    let (mut lists, mut path) = (0u64, 0u64);
    let mut references = [0u64; 2];
    trie.for_each_range(|range| {
        lists += u64::from(range.entries > 0);
        path += range.level * range.entries;
        let depth = (0..range.level).fold(0, |depth, _| depth + shape.digit_bits(depth));
        references[usize::from(range.entries > 0)] += range.hashes >> (HASH_BITS - depth);
    });
    let keys = trie.keys().max(1) as f64;
    // Each node except the root takes one reference and has one for each of its digits.
    let [empty, taken] = references.map(|count| count as f64);
    let (of_root, of_node) = (f64::from(1u32 << shape.root_bits), f64::from(1u32 << shape.node_bits));
    let nodes = (empty + taken - of_root) / (of_node - 1.0);
    TrieMeasurement {
        bytes_per_key: trie.bytes() as f64 / keys,
        nodes_per_path: path as f64 / keys,
        list_fill: keys / lists.max(1) as f64 / shape.max_list_entries as f64,
        page_fill: trie.page_fill(),
        reference_fill: (taken + nodes) / (empty + taken + nodes),
    }
}

/// Returns the Poisson probability of `k` at the given mean.
fn poisson(mean: f64, k: usize) -> f64 {
    let log = (1..=k).fold(-mean, |log, i| log + (mean / i as f64).ln());
    log.exp()
}

/// Estimated sizes of a trie.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrieEstimate {
    /// Bytes of the pages and the root, per key.
    pub(crate) bytes_per_key: f64,
    /// Average number of nodes on the path to a key, with the root.
    pub(crate) nodes_per_path: f64,
    /// Average number of entries of a list, as a fraction of the maximum.
    pub(crate) list_fill: f64,
    /// Number of records with the same hash that a look-up of a missing key reads.
    pub(crate) foreign_records: f64,
}

/// Estimates a trie of `keys` keys with the page fill `fill`. The number of keys in a range of 2^-d
/// of all hashes is Poisson distributed. A list serves a range if the range has at most
/// `max_list_entries` keys and the range twice as large has more.
pub(crate) fn estimate(shape: &TrieShape, keys: f64, fill: f64) -> TrieEstimate {
    let (mut bytes, mut path, mut lists, mut in_lists) = (0.0, 0.0, 0.0, 0.0);
    let mut node_at = shape.root_bits;
    let mut level = 1.0;
    for bits in 0..=HASH_BITS {
        let ranges = 2f64.powf(f64::from(bits));
        let mean = keys / ranges;
        if mean > 40.0 * shape.max_list_entries as f64 || (bits > 0 && keys / ranges * 2.0 < 1e-6) {
            continue;
        }
        if bits > shape.root_bits && bits > node_at {
            level += 1.0;
            node_at += shape.digit_bits(node_at);
        }
        // A list serves this range if its keys fit, and together with its neighbour they do not (or
        // there is no larger range).
        let mut lines = 0.0;
        for own in 1..=shape.max_list_entries {
            let chance = poisson(mean, own);
            if chance < 1e-12 {
                continue;
            }
            let beside: f64 = if bits == 0 {
                1.0
            } else {
                1.0 - (0..=shape.max_list_entries - own).map(|other| poisson(mean, other)).sum::<f64>()
            };
            let there = ranges * chance * beside.max(0.0);
            lines += there * shape.list_lines(bits, own) as f64;
            lists += there;
            in_lists += there * own as f64;
            path += there * own as f64 * level;
        }
        bytes += lines * LINE_BYTES as f64;
        // A node exists for a range with more keys than fit into one list.
        let begins = bits == shape.root_bits
            || bits > shape.root_bits && (bits - shape.root_bits).is_multiple_of(shape.node_bits);
        if begins && bits < HASH_BITS {
            let fits: f64 = (0..=shape.max_list_entries).map(|k| poisson(mean, k)).sum();
            bytes += ranges * (1.0 - fits).max(0.0) * (shape.node_lines() * LINE_BYTES) as f64;
        }
    }
    let root = f64::from(4u32 << shape.root_bits);
    let heads = shape.page_lines as f64 / (shape.page_lines as f64 - 1.0);
    TrieEstimate {
        bytes_per_key: (bytes * heads / fill + root) / keys,
        nodes_per_path: path / in_lists.max(1.0),
        list_fill: in_lists / lists.max(1.0) / shape.max_list_entries as f64,
        foreign_records: keys / 2f64.powf(f64::from(shape.hash_bits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_near_real_tries() {
        for (size, real) in measure_growth(TrieShape::NORMAL, &[100_000, 180_000, 400_000, 1_000_000]) {
            let model = estimate(&TrieShape::NORMAL, size as f64, real.page_fill);
            assert!(
                (real.bytes_per_key / model.bytes_per_key - 1.0).abs() < 0.05,
                "{size}: {real:?}, {model:?}"
            );
            assert!((real.nodes_per_path - model.nodes_per_path).abs() < 0.1, "{size}: {real:?}, {model:?}");
        }
    }

    /// Covers all sizes that references can address: 2^25 pages of 4 KiB. At that size the last
    /// digit still serves a few keys, and no list is a chain.
    #[test]
    fn a_key_takes_few_bytes_up_to_ten_to_the_ten_keys() {
        let mut keys = 1e5;
        while keys <= 1.01e10 {
            let model = estimate(&TrieShape::NORMAL, keys, 0.93);
            assert!(model.bytes_per_key < 13.0, "{keys}: {model:?}");
            assert!(
                model.bytes_per_key * keys < f64::from(TrieProbe::MAX_PAGES) * 4096.0,
                "{keys}: {model:?}"
            );
            assert!(model.list_fill > 0.55 && model.nodes_per_path < 6.1, "{keys}: {model:?}");
            keys *= 10f64.powf(0.125);
        }
        let at = |keys| estimate(&TrieShape::NORMAL, keys, 0.93).foreign_records;
        assert!(at(1e8) < 0.03 && at(1e9) < 0.25 && at(1e10) < 2.4);
    }

    /// Tests tries with nearly all digits in use, as with 10^9 and 10^10 keys. The hashes are
    /// shorter by as many bits as the trie is smaller.
    #[test]
    fn a_trie_with_few_unused_digits_stays_small() {
        for (bits, keys) in [(18, 60_000), (16, 152_000)] {
            let shape = TrieShape { hash_bits: bits, ..TrieShape::NORMAL };
            let (_, real) = measure_growth(shape, &[keys])[0];
            assert!(real.bytes_per_key < 13.0 && real.nodes_per_path < 2.1, "{bits} bits: {real:?}");
        }
    }
}
