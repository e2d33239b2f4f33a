//! # Footprint of cedrus' trie: the model compared with real tries
//!
//! The model assumes the page fill of the largest real trie. The paper's trie is computed in the
//! same way for comparison. It splits by the whole branching factor, and its nodes have 256
//! pointers of 8 bytes and two masks. This engine must stay below 16 bytes a key at every size.

use sheaf_cedrus::shape::TrieShape;

use super::{TrieMeasurement, estimate, measure_growth, poisson};
use crate::args;

/// Estimates the paper's trie: lists of up to `most` entries, nodes of `branching` children, splits
/// by the whole branching factor. Returns the bytes a key of the nodes, and of the list pointers
/// that the paper's data nodes contain (8 bytes a key).
fn paper(branching: f64, most: usize, keys: f64) -> f64 {
    let node = branching * 8.0 + 2.0 * branching / 8.0 + 24.0;
    let (mut nodes, mut ranges) = (1.0, branching);
    while keys / ranges > 1e-3 {
        let fits: f64 = (0..=most).map(|k| poisson(keys / ranges, k)).sum();
        nodes += ranges * (1.0 - fits).max(0.0);
        ranges *= branching;
    }
    8.0 + nodes * node / keys
}

/// Prints a table of real tries up to the given number of keys, and of the model up to 10^10 keys.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures, not data")]
pub(crate) fn run(options: &args::FootprintArgs) {
    let shape = TrieShape::NORMAL;
    let sizes: Vec<u64> = (0..)
        .map(|step| (1e5 * 10f64.powf(f64::from(step) / 8.0)).round() as u64)
        .take_while(|keys| *keys <= options.pairs)
        .collect();
    let real: Vec<(u64, TrieMeasurement)> = measure_growth(shape, &sizes);
    let fill = real.last().map_or(0.93, |(_, measured)| measured.page_fill);
    println!(
        "| keys | bytes a key: real | model | nodes on the way | model | lists full | model | pages full | the paper's, b = 256, s = 16 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for step in 0..=40 {
        let keys = 1e5 * 10f64.powf(f64::from(step) / 8.0);
        let modelled = estimate(&shape, keys, fill);
        let measured = real.iter().find(|(size, _)| *size == keys.round() as u64).map(|(_, m)| m);
        let show =
            |of: fn(&TrieMeasurement) -> f64| measured.map_or("-".to_string(), |m| format!("{:.2}", of(m)));
        println!(
            "| {:.2e} | {} | {:.2} | {} | {:.2} | {} | {:.2} | {} | {:.1} |",
            keys,
            show(|m| m.bytes_per_key),
            modelled.bytes_per_key,
            show(|m| m.nodes_per_path),
            modelled.nodes_per_path,
            show(|m| m.list_fill),
            modelled.list_fill,
            show(|m| m.page_fill),
            paper(256.0, 16, keys),
        );
    }
}
