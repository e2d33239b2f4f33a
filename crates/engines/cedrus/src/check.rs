//! # Check: a verification of a trie, for tests
//!
//! Walks the complete trie, which must be in memory, and verifies the invariants of trie/mod.rs and
//! heap.rs for each line.

use std::collections::HashMap;

use sheaf_platform::sync::atomic::Ordering;
use sheaf_platform::sync::epoch;

use crate::entry_list::TrieEntry;
use crate::shape::HASH_BITS;
use crate::trie::{EMPTY_REF, NODE_FLAG, PathStep, Trie, check_list, line_of, page_of};

/// Totals of a walk.
#[derive(Debug, Default)]
pub(crate) struct TrieCheck {
    pub(crate) entries: Vec<TrieEntry>,
    pub(crate) nodes: usize,
    pub(crate) lists: usize,
    /// Number of nodes on the path to each entry, summed.
    pub(crate) path: usize,
    /// Number of children that are not empty.
    pub(crate) children: usize,
    used: HashMap<u32, u64>,
}

impl TrieCheck {
    fn mark(&mut self, reference: u32, lines: usize) {
        for line in line_of(reference)..line_of(reference) + lines {
            let used = self.used.entry(page_of(reference)).or_insert(1);
            assert_eq!(*used >> line & 1, 0, "line {line} of page {} is used twice", page_of(reference));
            *used |= 1 << line;
        }
    }
}

/// Walks the trie.
///
/// # Panics
///
/// Panics if an invariant does not hold.
pub(crate) fn check_trie(trie: &Trie) -> TrieCheck {
    let mut scan = TrieCheck::default();
    check_node(trie, PathStep::new(EMPTY_REF, 0, trie.shape().root_bits, 0), 0, 1, &mut scan);
    let guard = &epoch::pin();
    let heap = trie.heap();
    assert_eq!(scan.used.len() as u64, heap.page_count(), "pages");
    for (page, used) in &scan.used {
        let words = trie.pages().get(*page, guard).expect("a page that is used is in memory");
        assert_eq!(words[0].load(Ordering::Relaxed), *used, "lines of page {page}");
    }
    let lines: u64 = scan.used.values().map(|used| u64::from(used.count_ones())).sum();
    assert_eq!(heap.free_lines + lines, heap.resident * trie.shape().page_lines as u64);
    drop(heap);
    assert_eq!(trie.len(), scan.entries.len() as u64);
    assert_eq!(trie.counts().iter().sum::<u64>(), trie.len());
    scan
}

fn check_node(trie: &Trie, step: PathStep, prefix: u32, level: usize, scan: &mut TrieCheck) {
    let guard = &epoch::pin();
    let mut digit = 0;
    let mut children = 0;
    while digit < 1 << step.bits {
        let child = trie.child_of(&step, digit, guard).expect("in memory");
        let mut end = digit + 1;
        while end < 1 << step.bits && trie.child_of(&step, end, guard) == Ok(child) {
            end += 1;
        }
        let (first, _) = step.range(prefix, digit, 1);
        if child & NODE_FLAG != 0 {
            assert_eq!(end, digit + 1, "a node has one digit");
            scan.mark(child, trie.shape().node_lines());
            scan.nodes += 1;
            let depth = step.depth + step.bits;
            assert!(depth < HASH_BITS);
            check_node(
                trie,
                PathStep::new(child, depth, trie.shape().digit_bits(depth), first),
                first,
                level + 1,
                scan,
            );
            children += 1;
        } else if child != EMPTY_REF {
            check_digit_list(trie, &step, (digit, end - digit), child, first, level, scan);
            children += 1;
        }
        digit = end;
    }
    scan.children += children;
    assert!(step.depth == 0 || children > 0, "a node has a child");
}

fn check_digit_list(
    trie: &Trie,
    step: &PathStep,
    run: (usize, usize),
    child: u32,
    hash: u32,
    level: usize,
    scan: &mut TrieCheck,
) {
    let guard = &epoch::pin();
    let first = trie.list(child, guard).expect("a list");
    check_list(step, run, &first, hash).expect("the list belongs here");
    assert!(first.count > 0 && (first.is_link || first.count <= trie.shape().max_list_entries));
    scan.mark(child, first.lines);
    scan.lists += 1;
    let before = scan.entries.len();
    scan.entries.extend(first.entries());
    trie.for_each_link(&first, guard, |reference, link| {
        assert!(link.count > 0);
        scan.mark(reference, link.lines);
        scan.entries.extend(link.entries());
    })
    .expect("a chain");
    let (low, high) = step.range(hash, run.0, run.1);
    assert!(scan.entries[before..].iter().all(|entry| (low..=high).contains(&entry.hash)));
    scan.path += level * (scan.entries.len() - before);
}
