//! # Inner node: children, and the separators between them
//!
//! ## Invariants
//!
//! 1. Separators never change; a node that needs other separators is replaced. A child is replaced
//!    in place only by one with the same key range. Readers therefore take no lock. A reader in a
//!    replaced node reaches leaves in the state in which they were replaced.
//! 2. The keys of child i are not less than separator i - 1, and less than separator i.
//! 3. Separators are the shortest keys that separate two adjacent children. They are stored without
//!    their common prefix. The prefix is in the first cache line of the node, so that a search does
//!    not wait for another line.

use std::cmp::Ordering as Order;
use std::ptr;

use sheaf_engine::keys::common_prefix_len;
use sheaf_platform::memory::prefetch;
use sheaf_platform::sync::atomic::{AtomicPtr, Ordering};

use super::key_encoding::{NodePrefix, SearchKey, append_key, suffix_words};
use super::key_list::KeyList;
use super::leaf::Leaf;

/// Maximum number of children of a node.
pub(super) const MAX_CHILDREN: usize = 64;

/// Child of a node: a leaf if the node has level 1, otherwise an inner node.
pub(super) type Child = *mut Leaf;

/// Inner node of the tree.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct InnerNode {
    prefix: NodePrefix,
    /// Distance to the leaves; 1 directly above them.
    level: u16,
    count: u16,
    suffixes: Box<[u64]>,
    heads: [u64; MAX_CHILDREN - 1],
    words: [u64; MAX_CHILDREN - 1],
    children: [AtomicPtr<Leaf>; MAX_CHILDREN],
}

/// Number of cache lines that a search reads first.
const PREFETCH_LINES: usize = 9;

impl InnerNode {
    /// Returns a node of `children`, with `separators[i]` before child i + 1.
    pub(super) fn new(level: usize, separators: &KeyList<()>, children: &[Child]) -> Box<InnerNode> {
        assert!(
            separators.len() + 1 == children.len() && children.len() <= MAX_CHILDREN,
            "inner (I2): a separator is between two children"
        );
        let shared = match separators.len().checked_sub(1) {
            Some(last) => &separators.key(0)[..common_prefix_len(separators.key(0), separators.key(last))],
            None => &[],
        };
        let prefix = shared.len();
        let mut node = Box::new(InnerNode {
            prefix: NodePrefix::new(shared),
            level: u16::try_from(level).unwrap_or(u16::MAX),
            count: u16::try_from(children.len()).unwrap_or(u16::MAX),
            suffixes: Box::default(),
            heads: [0; MAX_CHILDREN - 1],
            words: [0; MAX_CHILDREN - 1],
            children: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())),
        });
        let words: usize = separators.iter().map(|(key, ())| suffix_words(key.len() - prefix)).sum();
        let mut rests = Vec::with_capacity(words);
        for (index, (key, ())) in separators.iter().enumerate() {
            let text = SearchKey::new(key, prefix);
            node.heads[index] = text.head;
            node.words[index] = text.word(rests.len());
            text.for_each_suffix_word(|word| rests.push(word));
        }
        node.suffixes = rests.into_boxed_slice();
        for (place, child) in node.children.iter().zip(children) {
            place.store(*child, Ordering::Relaxed);
        }
        node
    }

    /// Prefetches the lines that a search reads first, so that they are loaded in parallel.
    #[inline]
    pub(super) fn prefetch(node: *const InnerNode) {
        prefetch(node.cast(), PREFETCH_LINES);
    }

    pub(super) fn level(&self) -> usize {
        usize::from(self.level)
    }

    /// Returns the number of children.
    pub(super) fn count(&self) -> usize {
        usize::from(self.count)
    }

    /// Returns the bytes of the node in memory.
    pub(super) fn bytes(&self) -> u64 {
        (size_of::<InnerNode>() + self.prefix.bytes() + 8 * self.suffixes.len()) as u64
    }

    /// Returns child `index`.
    #[inline]
    pub(super) fn child(&self, index: usize) -> Child {
        self.children[index].load(Ordering::Acquire)
    }

    /// Replaces child `index` by another one with the same range.
    pub(super) fn replace(&self, index: usize, child: Child) {
        assert!(index < self.count(), "inner (I1): a child is replaced in place");
        self.children[index].store(child, Ordering::Release);
    }

    /// Returns the index of the child that covers `key`. If `before`, returns the child that covers
    /// the keys just before `key`.
    #[inline]
    pub(super) fn find(&self, key: &[u8], before: bool) -> usize {
        let count = self.count() - 1;
        match self.prefix.compare(key) {
            Order::Less => return 0,
            Order::Greater => return count,
            Order::Equal => {}
        }
        let text = SearchKey::new(key, self.prefix.len());
        let heads = &self.heads[..count];
        let mut index = heads.partition_point(|head| *head < text.head);
        while index < count && heads[index] == text.head {
            match text.compare_suffix(self.words[index], |at| self.suffixes[at]) {
                Order::Less => {}
                Order::Equal if !before => {}
                _ => break,
            }
            index += 1;
        }
        index
    }

    /// Appends separator `index` to `out`.
    pub(super) fn append_separator_to(&self, index: usize, out: &mut Vec<u8>) {
        self.prefix.append_to(out);
        append_key(self.heads[index], self.words[index], |at| self.suffixes[at], out);
    }
}
