//! # Measuring tries without data
//!
//! Grows tries of random hashes and says how large they are, as the paper does for its Figure 4. For the example
//! `footprint`.

use sheaf_base::segment::Address;
use sheaf_base::sync::epoch;

use crate::list::Entry;
use crate::shape::Shape;
use crate::trie::Trie;

/// A trie of some size.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Bytes of its pages and its root, per key.
    pub bytes_per_key: f64,
    /// Nodes on the way to a key, the root among them, on average.
    pub path: f64,
    /// How full lists are, as a part of the most that they may have.
    pub lists: f64,
    /// How full pages are.
    pub fill: f64,
}

fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ z >> 31
}

/// A trie that grows, measured at each of `sizes`, which ascend.
#[must_use]
pub fn grow(shape: Shape, sizes: &[u64]) -> Vec<(u64, Measured)> {
    let trie = Trie::new(shape);
    let mut from = 0;
    let mut all = Vec::new();
    for size in sizes {
        for n in from..*size {
            // No key, so no record: any address does.
            let entry = Entry::new(shape.cut(mix(n)), Address::from_bits((n + 1) * 8));
            let grown = trie.insert(entry, &epoch::pin());
            debug_assert!(grown.is_ok(), "all of it is in memory");
        }
        from = *size;
        all.push((*size, measure(&trie)));
    }
    all
}

#[allow(clippy::cast_precision_loss)]
fn measure(trie: &Trie) -> Measured {
    let (mut from, mut piece) = (0, Vec::new());
    let (mut lists, mut path) = (0u64, 0u64);
    loop {
        let guard = &epoch::pin();
        let Ok((last, level)) = trie.visit_at(from, guard, &mut piece) else { break };
        lists += u64::from(!piece.is_empty());
        path += level as u64 * piece.len() as u64;
        match last.checked_add(1) {
            Some(next) => from = next,
            None => break,
        }
    }
    let keys = trie.len().max(1) as f64;
    Measured {
        bytes_per_key: trie.bytes() as f64 / keys,
        path: path as f64 / keys,
        lists: keys / lists.max(1) as f64 / trie.shape().most as f64,
        fill: trie.fill(),
    }
}
