//! The model of the trie's footprint, beside real tries.
//!
//! ```sh
//! cargo run --release -p sheaf-cedrus --example footprint -- 10000000     # real runs up to so many keys
//! ```
//!
//! Pages are taken to be as full as the real ones were at the largest run. The paper's trie, which
//! splits by the whole branching factor and whose nodes have 256 pointers of 8 bytes and two masks,
//! is computed the same way for comparison: 16 bytes a key is what this engine must stay below at
//! every size.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures, not data")]

use sheaf_cedrus::measure::{TrieMeasurement, estimate, measure_growth, poisson};
use sheaf_cedrus::shape::TrieShape;

/// The paper's trie: lists of up to `most`, nodes of `branching` children, split all at once. Bytes
/// a key of nodes and of the list's links (8 bytes a key), as the paper's data nodes have them.
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

fn main() {
    let most: u64 = std::env::args().nth(1).and_then(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    let shape = TrieShape::NORMAL;
    let sizes: Vec<u64> = (0..)
        .map(|step| (1e5 * 10f64.powf(f64::from(step) / 8.0)).round() as u64)
        .take_while(|keys| *keys <= most)
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
