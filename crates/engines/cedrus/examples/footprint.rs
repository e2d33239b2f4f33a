//! The model of the trie's footprint, beside real tries.
//!
//! ```sh
//! cargo run --release -p sheaf-cedrus --example footprint -- 10000000     # real runs up to so many keys
//! ```
//!
//! The model knows nothing but probabilities: so many keys with random hashes, of which a range of 2^-d of all hashes has a
//! number that is Poisson distributed. A list stands for a range if it has at most `most` keys and the range twice as large
//! has more. Pages are taken to be as full as the real ones were at the largest run (`fill`).
//!
//! The paper's trie, which splits by the whole branching factor and whose nodes have 256 pointers of 8 bytes and two masks,
//! is computed the same way for comparison: 16 bytes a key is what this engine must stay below at every size.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "figures, not data")]

use sheaf_cedrus::measure::{Measured, grow};
use sheaf_cedrus::shape::{HASH_BITS, LINE, Shape};

/// The chance of `k` at a mean of `mean`.
fn poisson(mean: f64, k: usize) -> f64 {
    let log = (1..=k).fold(-mean, |log, i| log + (mean / i as f64).ln());
    log.exp()
}

/// What the model says.
struct Modelled {
    bytes_per_key: f64,
    path: f64,
    /// How full lists are, of `most`.
    lists: f64,
}

/// Lists and nodes of `keys` keys: of this trie, which splits by bits.
fn model(shape: &Shape, keys: f64, fill: f64) -> Modelled {
    let (mut bytes, mut path, mut lists, mut in_lists) = (0.0, 0.0, 0.0, 0.0);
    let mut node_at = shape.root_bits;
    let mut level = 1.0;
    for bits in 0..=HASH_BITS {
        let ranges = 2f64.powi(bits as i32);
        let mean = keys / ranges;
        if mean > 40.0 * shape.most as f64 || (bits > 0 && keys / ranges * 2.0 < 1e-6) {
            continue;
        }
        if bits > shape.root_bits && bits > node_at {
            level += 1.0;
            node_at += shape.digit_bits(node_at);
        }
        // A list of this range: it fits, and with the neighbour it does not (or there is nothing above).
        let mut lines = 0.0;
        for own in 1..=shape.most {
            let chance = poisson(mean, own);
            if chance < 1e-12 {
                continue;
            }
            let beside: f64 = if bits == 0 {
                1.0
            } else {
                1.0 - (0..=shape.most - own).map(|other| poisson(mean, other)).sum::<f64>()
            };
            let there = ranges * chance * beside.max(0.0);
            lines += there * Shape::list_lines(bits, own) as f64;
            lists += there;
            in_lists += there * own as f64;
            path += there * own as f64 * level;
        }
        bytes += lines * LINE as f64;
        // A node begins where a range has more than one list can have.
        let begins = bits == shape.root_bits
            || bits > shape.root_bits && (bits - shape.root_bits).is_multiple_of(shape.node_bits);
        if begins && bits < HASH_BITS {
            let fits: f64 = (0..=shape.most).map(|k| poisson(mean, k)).sum();
            bytes += ranges * (1.0 - fits).max(0.0) * (shape.node_lines() * LINE) as f64;
        }
    }
    let root = f64::from(4u32 << shape.root_bits);
    let heads = shape.page_lines as f64 / (shape.page_lines as f64 - 1.0);
    Modelled {
        bytes_per_key: (bytes * heads / fill + root) / keys,
        path: path / in_lists.max(1.0),
        lists: in_lists / lists.max(1.0) / shape.most as f64,
    }
}

/// The paper's trie: lists of up to `most`, nodes of `branching` children, split all at once. Bytes a key of nodes and of
/// the list's links (8 bytes a key), as the paper's data nodes have them.
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
    let shape = Shape::NORMAL;
    let sizes: Vec<u64> = (0..)
        .map(|step| (1e5 * 10f64.powf(f64::from(step) / 8.0)).round() as u64)
        .take_while(|keys| *keys <= most)
        .collect();
    let real: Vec<(u64, Measured)> = grow(shape, &sizes);
    let fill = real.last().map_or(0.93, |(_, measured)| measured.fill);
    println!(
        "| keys | bytes a key: real | model | nodes on the way | model | lists full | model | pages full | the paper's, b = 256, s = 16 |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for step in 0..=40 {
        let keys = 1e5 * 10f64.powf(f64::from(step) / 8.0);
        let modelled = model(&shape, keys, fill);
        let measured = real.iter().find(|(size, _)| *size == keys.round() as u64).map(|(_, m)| m);
        let show = |of: fn(&Measured) -> f64| measured.map_or("-".to_string(), |m| format!("{:.2}", of(m)));
        println!(
            "| {:.2e} | {} | {:.2} | {} | {:.2} | {} | {:.2} | {} | {:.1} |",
            keys,
            show(|m| m.bytes_per_key),
            modelled.bytes_per_key,
            show(|m| m.path),
            modelled.path,
            show(|m| m.lists),
            modelled.lists,
            show(|m| m.fill),
            paper(256.0, 16, keys),
        );
    }
}
