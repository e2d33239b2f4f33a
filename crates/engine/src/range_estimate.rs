//! # Range estimate: the approximate number and size of the pairs in a range
//!
//! An engine has pairs in several sources: memtables, levels, files. For each source the number of
//! keys in the range is read from its index, and some keys are *sampled*. A sampled key is live if
//! its source has the newest version of the key. So a pair with versions in several sources counts
//! about once, and a removed one not at all.
//!
//! ```text
//!            root      the path to the first key and the path to the end of the range
//!           / || \     children between both paths: SPLIT_DESCENTS descents where the paths part,
//!          /  ||  \    half of it at each level below; each multiplies the numbers of children
//!        leaf .. leaf  keys of the two outer leaves: exact
//! ```
//!
//! ## Costs
//!
//! At most [`MAX_SAMPLES`] keys of a source are sampled. The nodes that are read grow with the
//! height of the tree, so with the logarithm of the pairs.

use std::ops::{AddAssign, Range};

use sheaf_log::record::RecordContent;
use sheaf_platform::error::Result;

/// Descents through the children between both ends of a range, in the node where the paths part.
const SPLIT_DESCENTS: u32 = 32;
/// Least descents in a node below that one. Each level has half of those of the level above,
/// because it has a smaller part of the range.
const MIN_DESCENTS: u32 = 4;
/// Keys that are sampled in an outer leaf.
const LEAF_SAMPLES: usize = 4;
/// Largest number of keys of a source that are sampled.
pub const MAX_SAMPLES: u32 = 128;

/// Approximate number and size of pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RangeSum {
    /// Number of pairs.
    pub pairs: f64,
    /// Bytes of their keys and values as the engine stores them.
    pub bytes: f64,
}

impl AddAssign for RangeSum {
    fn add_assign(&mut self, other: RangeSum) {
        self.pairs += other.pairs;
        self.bytes += other.bytes;
    }
}

/// A sampled key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySample {
    /// True if the source has the newest version of the key, and it is a value.
    pub is_live: bool,
    /// Bytes of key and value as the engine stores them.
    pub bytes: u64,
}

impl KeySample {
    /// Returns the sample of a key that is removed, or that a newer source has.
    #[must_use]
    pub fn dead() -> KeySample {
        KeySample { is_live: false, bytes: 0 }
    }

    /// Returns the sample of a live pair of this size.
    #[must_use]
    pub fn live(bytes: u64) -> KeySample {
        KeySample { is_live: true, bytes }
    }
}

impl RangeSum {
    /// Adds a sample that represents `weight` keys.
    pub fn add_sample(&mut self, sample: KeySample, weight: f64) {
        if sample.is_live {
            self.pairs += weight;
            self.bytes += weight * to_f64(sample.bytes);
        }
    }
}

/// Returns the bytes that a value takes, in the log or in a blob.
#[must_use]
pub fn content_bytes(content: &RecordContent<'_>) -> u64 {
    match content {
        RecordContent::Put(value) => value.len() as u64,
        RecordContent::Blob(blob) => u64::from(blob.len),
        RecordContent::Remove | RecordContent::RemoveRange(_) => 0,
    }
}

/// Returns a number as a float. Estimates need no more than its 53 bits.
#[must_use]
pub fn to_f64(number: u64) -> f64 {
    number as f64
}

/// Returns the index that the fraction `place` of `len` items has.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "`place` is in 0..1")]
pub fn item_at(place: f64, len: usize) -> usize {
    ((place * to_f64(len as u64)) as usize).min(len.saturating_sub(1))
}

/// Tree of keys, as an estimate reads it. Other threads may change it: the results may then mix its
/// states.
pub trait EstimatedTree {
    /// A node.
    type Node: Copy;
    /// Returns the root, or `None` if the tree has no key.
    fn root(&self) -> Option<Self::Node>;
    /// Returns true if a node is a leaf.
    fn is_leaf(&self, node: Self::Node) -> bool;
    /// Returns the number of children of a node, or of keys of a leaf.
    ///
    /// # Errors
    ///
    /// Returns the error of a read.
    fn len(&self, node: Self::Node) -> Result<usize>;
    /// Returns the index of the child with the range of `key`, or the number of keys of a leaf that
    /// are below `key`.
    ///
    /// # Errors
    ///
    /// Returns the error of a read.
    fn position(&self, node: Self::Node, key: &[u8]) -> Result<usize>;
    /// Returns a child, or `None` if the node has changed and does not have it.
    ///
    /// # Errors
    ///
    /// Returns the error of a read.
    fn child(&self, node: Self::Node, index: usize) -> Result<Option<Self::Node>>;
    /// Returns the number of keys below some children, if the nodes have such counts.
    ///
    /// # Errors
    ///
    /// Returns the error of a read.
    fn count_below(&self, node: Self::Node, children: Range<usize>) -> Result<Option<u64>> {
        let _ = (node, children);
        Ok(None)
    }
    /// Reads the key in a slot of a leaf.
    ///
    /// # Errors
    ///
    /// Returns the error of a read.
    fn sample(&self, leaf: Self::Node, slot: usize) -> Result<KeySample>;
}

/// Estimates the pairs of `tree` from `first` on and below `end`.
///
/// # Errors
///
/// Returns the error of a read.
pub fn estimate_tree<T: EstimatedTree>(tree: &T, first: &[u8], end: Option<&[u8]>) -> Result<RangeSum> {
    let mut sum = RangeSum::default();
    if let Some(root) = tree.root() {
        let estimator = TreeEstimator { tree };
        estimator.add_node(root, (Some(first), end), SPLIT_DESCENTS, &mut sum)?;
    }
    Ok(sum)
}

struct TreeEstimator<'t, T> {
    tree: &'t T,
}

impl<T: EstimatedTree> TreeEstimator<'_, T> {
    /// Adds the pairs below a node that are within the limits; `descents` are made if the paths to
    /// both limits part here. Children without a limit are never split, so the nodes that are read
    /// are those of two paths and of the descents.
    fn add_node(
        &self,
        mut node: T::Node,
        (low, high): (Option<&[u8]>, Option<&[u8]>),
        descents: u32,
        sum: &mut RangeSum,
    ) -> Result<()> {
        loop {
            let len = self.tree.len(node)?;
            let from = low.map(|key| self.tree.position(node, key)).transpose()?;
            let to = high.map(|key| self.tree.position(node, key)).transpose()?;
            if self.tree.is_leaf(node) {
                return self.add_leaf(node, from.unwrap_or(0)..to.unwrap_or(len).min(len), sum);
            }
            if let (Some(from), Some(to)) = (from, to)
                && from >= to
            {
                let Some(below) = self.tree.child(node, from)? else { return Ok(()) };
                node = below;
                continue;
            }
            self.add_children(node, from.map_or(0, |from| from + 1)..to.unwrap_or(len), descents, sum)?;
            for (child, limits) in [(from, (low, None)), (to, (None, high))] {
                if let Some(child) = child
                    && let Some(below) = self.tree.child(node, child)?
                {
                    self.add_node(below, limits, (descents / 2).max(MIN_DESCENTS), sum)?;
                }
            }
            return Ok(());
        }
    }

    /// Adds the keys in some slots of a leaf.
    fn add_leaf(&self, leaf: T::Node, slots: Range<usize>, sum: &mut RangeSum) -> Result<()> {
        let samples = slots.len().min(LEAF_SAMPLES);
        let weight = to_f64(slots.len() as u64) / to_f64(samples.max(1) as u64);
        for index in 0..samples {
            let slot = slots.start + (2 * index + 1) * slots.len() / (2 * samples);
            sum.add_sample(self.tree.sample(leaf, slot)?, weight);
        }
        Ok(())
    }

    /// Adds the keys below children that are completely within the range.
    fn add_children(
        &self,
        node: T::Node,
        children: Range<usize>,
        descents: u32,
        sum: &mut RangeSum,
    ) -> Result<()> {
        if children.is_empty() {
            return Ok(());
        }
        let keys = self.tree.count_below(node, children.clone())?;
        // One at the middle of each of so many parts: they are spread over all of the children.
        let (mut part, mut found) = (RangeSum::default(), 0.0);
        for index in 0..descents {
            let place = (f64::from(index) + 0.5) / f64::from(descents);
            let Some((leaf, slot, weight)) = self.descend(node, children.clone(), place)? else { continue };
            found += weight;
            part.add_sample(self.tree.sample(leaf, slot)?, weight);
        }
        // The weights of the descents have the right mean. Counts are better.
        let scale = match keys {
            Some(keys) if found > 0.0 => to_f64(keys) / found,
            _ => 1.0 / f64::from(descents),
        };
        *sum += RangeSum { pairs: part.pairs * scale, bytes: part.bytes * scale };
        Ok(())
    }

    /// Returns the slot of a leaf at the fraction `place` below some children, and the estimated
    /// number of keys below them. Returns `None` if the leaf has no key.
    fn descend(
        &self,
        node: T::Node,
        children: Range<usize>,
        mut place: f64,
    ) -> Result<Option<(T::Node, usize, f64)>> {
        let (mut node, mut range, mut weight) = (node, children, 1.0);
        loop {
            let len = range.len();
            if len == 0 {
                return Ok(None);
            }
            weight *= to_f64(len as u64);
            let index = item_at(place, len);
            place = place * to_f64(len as u64) - to_f64(index as u64);
            if self.tree.is_leaf(node) {
                return Ok(Some((node, range.start + index, weight)));
            }
            let Some(child) = self.tree.child(node, range.start + index)? else { return Ok(None) };
            node = child;
            range = 0..self.tree.len(node)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tree of ascending numbers; a leaf has numbers, another node has children.
    enum Numbers {
        Leaf(Vec<u32>),
        Inner(Vec<Numbers>),
    }

    struct NumberTree {
        root: Numbers,
        has_counts: bool,
    }

    fn key(number: u32) -> [u8; 4] {
        number.to_be_bytes()
    }

    /// Returns the size of a pair: from 20 to 29 bytes.
    fn pair_bytes(number: u32) -> u64 {
        u64::from(20 + number % 10)
    }

    fn number(key: &[u8]) -> u32 {
        u32::from_be_bytes(key.try_into().unwrap())
    }

    impl Numbers {
        fn first(&self) -> u32 {
            match self {
                Numbers::Leaf(keys) => keys[0],
                Numbers::Inner(children) => children[0].first(),
            }
        }

        fn count(&self) -> u64 {
            match self {
                Numbers::Leaf(keys) => keys.len() as u64,
                Numbers::Inner(children) => children.iter().map(Numbers::count).sum(),
            }
        }
    }

    impl<'t> EstimatedTree for &'t NumberTree {
        type Node = &'t Numbers;

        fn root(&self) -> Option<&'t Numbers> {
            Some(&self.root)
        }

        fn is_leaf(&self, node: &'t Numbers) -> bool {
            matches!(node, Numbers::Leaf(_))
        }

        fn len(&self, node: &'t Numbers) -> Result<usize> {
            Ok(match node {
                Numbers::Leaf(keys) => keys.len(),
                Numbers::Inner(children) => children.len(),
            })
        }

        fn position(&self, node: &'t Numbers, key: &[u8]) -> Result<usize> {
            Ok(match node {
                Numbers::Leaf(keys) => keys.partition_point(|k| *k < number(key)),
                Numbers::Inner(children) => {
                    children.partition_point(|child| child.first() <= number(key)).saturating_sub(1)
                }
            })
        }

        fn child(&self, node: &'t Numbers, index: usize) -> Result<Option<&'t Numbers>> {
            Ok(match node {
                Numbers::Leaf(_) => None,
                Numbers::Inner(children) => children.get(index),
            })
        }

        fn count_below(&self, node: &'t Numbers, children: Range<usize>) -> Result<Option<u64>> {
            let Numbers::Inner(all) = node else { return Ok(None) };
            Ok(self.has_counts.then(|| all[children].iter().map(Numbers::count).sum()))
        }

        fn sample(&self, leaf: &'t Numbers, slot: usize) -> Result<KeySample> {
            let Numbers::Leaf(keys) = leaf else { unreachable!("samples are in leaves") };
            // Every third number is dead.
            let number = keys[slot];
            Ok(if number % 3 == 0 { KeySample::dead() } else { KeySample::live(pair_bytes(number)) })
        }
    }

    /// Returns a tree of the numbers up to `count`; its nodes have 8 to 15 children or keys.
    fn tree(count: u32, has_counts: bool) -> NumberTree {
        let mut state = 9_u32;
        let mut size = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            8 + (state >> 20) as usize % 8
        };
        let mut nodes = Vec::new();
        let mut next = 0..count;
        while !next.is_empty() {
            nodes.push(Numbers::Leaf(next.by_ref().take(size()).collect()));
        }
        while nodes.len() > 1 {
            let mut below = nodes.into_iter();
            nodes = Vec::new();
            loop {
                let children: Vec<Numbers> = below.by_ref().take(size()).collect();
                if children.is_empty() {
                    break;
                }
                nodes.push(Numbers::Inner(children));
            }
        }
        NumberTree { root: nodes.pop().unwrap(), has_counts }
    }

    fn exact(range: Range<u32>) -> RangeSum {
        let live = range.filter(|number| number % 3 != 0);
        let mut sum = RangeSum::default();
        live.for_each(|number| sum.add_sample(KeySample::live(pair_bytes(number)), 1.0));
        sum
    }

    #[test]
    fn an_estimate_is_near_the_number_of_live_keys() {
        for (count, has_counts) in [(300_000, true), (300_000, false), (900, false)] {
            let tree = tree(count, has_counts);
            for range in [0..count, count / 7..count / 3, count / 2..count, count / 5..count / 5 * 4] {
                let (low, high) = (key(range.start), key(range.end));
                let found = estimate_tree(&&tree, &low, Some(&high)).unwrap();
                let wanted = exact(range.clone());
                let is_near = |found: f64, wanted: f64| (found - wanted).abs() <= 0.25 * wanted + 4.0;
                assert!(is_near(found.pairs, wanted.pairs), "{range:?} of {count}: {found:?} {wanted:?}");
                assert!(is_near(found.bytes, wanted.bytes), "{range:?}: {found:?} {wanted:?}");
            }
        }
    }

    #[test]
    fn an_estimate_of_no_keys_is_zero() {
        let tree = tree(5000, false);
        let zero = RangeSum::default();
        assert_eq!(estimate_tree(&&tree, &key(70), Some(&key(70))).unwrap(), zero);
        assert_eq!(estimate_tree(&&tree, &key(80), Some(&key(10))).unwrap(), zero);
        assert_eq!(estimate_tree(&&tree, &key(6000), None).unwrap(), zero);
    }

    #[test]
    fn an_estimate_samples_few_keys() {
        struct Counting<'t>(&'t NumberTree, std::cell::Cell<u32>);
        impl<'t> EstimatedTree for Counting<'t> {
            type Node = &'t Numbers;
            fn root(&self) -> Option<&'t Numbers> {
                self.0.root()
            }
            fn is_leaf(&self, node: &'t Numbers) -> bool {
                self.0.is_leaf(node)
            }
            fn len(&self, node: &'t Numbers) -> Result<usize> {
                self.0.len(node)
            }
            fn position(&self, node: &'t Numbers, key: &[u8]) -> Result<usize> {
                self.0.position(node, key)
            }
            fn child(&self, node: &'t Numbers, index: usize) -> Result<Option<&'t Numbers>> {
                self.0.child(node, index)
            }
            fn sample(&self, leaf: &'t Numbers, slot: usize) -> Result<KeySample> {
                self.1.set(self.1.get() + 1);
                self.0.sample(leaf, slot)
            }
        }
        let tree = tree(300_000, false);
        let counting = Counting(&tree, std::cell::Cell::new(0));
        estimate_tree(&counting, &key(3), Some(&key(299_990))).unwrap();
        assert!((1..=MAX_SAMPLES).contains(&counting.1.get()), "{}", counting.1.get());
    }
}
