//! The trie under a scheduler: one writer (that is the contract), readers who take no lock.
//!
//! Built with `--cfg shuttle` only. The knobs are those of `sheaf_base::sync::explore`.

use std::collections::BTreeMap;
use std::sync::Arc;

use sheaf_base::segment::Address;
use sheaf_base::sync::{epoch, explore, thread};

use crate::list::Entry;
use crate::shape::Shape;
use crate::trie::Trie;

/// Hashes that share their first bits: what is added splits the list, and a node comes below it.
fn hash(n: u64) -> u32 {
    let n = u32::try_from(n).expect("small");
    0x4000_0000 | n.reverse_bits() >> 2
}

fn place(n: u64) -> Address {
    Address::from_bits((n + 1) * 64)
}

fn filled(count: u64) -> Arc<Trie> {
    let trie = Trie::new(Shape::TINY);
    let guard = &epoch::pin();
    (0..count).for_each(|n| trie.insert(Entry::new(hash(n), place(n)), guard).expect("it is in memory"));
    Arc::new(trie)
}

fn holds(trie: &Trie, n: u64, address: Address) -> bool {
    trie.find(hash(n), &epoch::pin(), |_| {}).expect("it is in memory").contains(&address)
}

/// Adds some, takes others out, points one elsewhere: lists split, become one again, and give their lines back.
fn change(trie: &Trie, from: u64, to: u64) {
    let guard = &epoch::pin();
    for n in from..to {
        trie.insert(Entry::new(hash(n), place(n)), guard).expect("it is in memory");
    }
    for n in from..to {
        assert_eq!(trie.remove(hash(n), place(n), guard), Ok(true));
    }
    assert_eq!(trie.replace(hash(1), place(1), place(100), guard), Ok(true));
}

#[test]
fn what_stays_is_found_beside_splits_merges_and_moves() {
    explore(2000, || {
        let trie = filled(3);
        let writer = {
            let trie = Arc::clone(&trie);
            thread::spawn(move || change(&trie, 3, 8))
        };
        for _ in 0..2 {
            assert!(holds(&trie, 0, place(0)) && holds(&trie, 2, place(2)));
            assert!(holds(&trie, 1, place(1)) || holds(&trie, 1, place(100)));
        }
        writer.join().expect("it changes");
        assert!(holds(&trie, 1, place(100)) && !holds(&trie, 5, place(5)));
    });
}

#[test]
fn a_walk_beside_changes_yields_what_stays_once() {
    explore(2000, || {
        let trie = filled(3);
        let writer = {
            let trie = Arc::clone(&trie);
            thread::spawn(move || change(&trie, 3, 8))
        };
        let (mut from, mut seen, mut piece) = (0, BTreeMap::new(), Vec::new());
        loop {
            let last = trie.visit(from, &epoch::pin(), &mut piece).expect("it is in memory");
            piece.iter().for_each(|entry| *seen.entry(entry.hash).or_insert(0) += 1);
            let Some(next) = last.checked_add(1) else { break };
            from = next;
        }
        assert!((0..3).all(|n| seen.get(&hash(n)) == Some(&1)), "{seen:?}");
        assert!(seen.values().all(|times| *times == 1), "{seen:?}");
        writer.join().expect("it changes");
    });
}
