//! The trie beside a list of entries.

use super::*;
use crate::check::survey;
use sheaf_base::sync::epoch;

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).unwrap()
    }
}

fn place(n: u64) -> Address {
    Address::from_bits((n + 1) * 64 % (1 << 34))
}

fn all(trie: &Trie) -> Vec<Entry> {
    let guard = &epoch::pin();
    let (mut from, mut all, mut piece) = (0, Vec::new(), Vec::new());
    loop {
        let last = trie.visit(from, guard, &mut piece).unwrap();
        assert!(piece.iter().all(|entry| (from..=last).contains(&entry.hash)));
        all.append(&mut piece);
        match last.checked_add(1) {
            Some(next) => from = next,
            None => break,
        }
    }
    all.sort_unstable();
    all
}

fn agree(trie: &Trie, model: &[Entry]) {
    let guard = &epoch::pin();
    let mut model = model.to_vec();
    model.sort_unstable();
    let mut seen = survey(trie).entries;
    seen.sort_unstable();
    assert!(seen == model && all(trie) == model);
    for same in model.chunk_by(|a, b| a.hash == b.hash) {
        let mut found = trie.find(same[0].hash, guard, |_| {}).unwrap();
        found.sort_unstable_by_key(|address| address.bits());
        assert!(found.iter().map(|address| address.bits()).eq(same.iter().map(|entry| entry.address)));
    }
}

const SHAPES: [Shape; 9] = [
    Shape::TINY,
    Shape::NORMAL,
    Shape { node_bits: 7, most: 8, root_bits: 7, ..Shape::NORMAL },
    Shape { node_bits: 8, most: 16, root_bits: 8, ..Shape::NORMAL },
    Shape { hash_bits: 8, ..Shape::TINY },
    Shape { hash_bits: 8, ..Shape::NORMAL },
    Shape { node_bits: 2, most: 128, hash_bits: 24, ..Shape::NORMAL },
    Shape { node_bits: 8, most: 1, hash_bits: 16, ..Shape::NORMAL },
    Shape { node_bits: 2, most: 1, page_lines: 4, ..Shape::TINY },
];

#[test]
fn any_changes_leave_what_a_list_of_entries_would_have() {
    for (seed, shape) in (0u64..).zip(SHAPES.iter().cycle().take(27)) {
        let (trie, mut dice, mut model) = (Trie::new(*shape), Dice(seed), Vec::<Entry>::new());
        let guard = &epoch::pin();
        let mut number = 0;
        for phase in 0..6 {
            // It grows, holds, shrinks, and is emptied in the end.
            let adds = [90, 50, 10, 70, 45, 0][phase];
            for _ in 0..600 {
                if dice.below(100) < adds || model.is_empty() {
                    // Some hashes share many bits with one that is there, or all.
                    let mut hash = shape.cut(dice.next());
                    if dice.below(4) == 0 && !model.is_empty() {
                        let like = model[dice.below(model.len())].hash;
                        hash = like
                            ^ (hash.checked_shr(20 + u32::try_from(dice.below(13)).unwrap()).unwrap_or(0));
                        hash = shape.cut(u64::from(hash) << 32);
                    }
                    number += 1;
                    let entry = Entry::new(hash, place(number));
                    trie.insert(entry, guard).unwrap();
                    model.push(entry);
                } else if dice.below(4) == 0 {
                    let at = dice.below(model.len());
                    number += 1;
                    let Entry { hash, address } = model[at];
                    let (from, to) = (Address::from_bits(address), place(number));
                    assert!(trie.replace(hash, from, to, guard).unwrap());
                    assert!(!trie.replace(hash, from, to, guard).unwrap());
                    model[at].address = to.bits();
                } else {
                    let Entry { hash, address } = model.swap_remove(dice.below(model.len()));
                    assert!(trie.remove(hash, Address::from_bits(address), guard).unwrap());
                    assert!(!trie.remove(hash, Address::from_bits(address), guard).unwrap());
                }
            }
            agree(&trie, &model);
        }
        for Entry { hash, address } in model.drain(..) {
            assert!(trie.remove(hash, Address::from_bits(address), guard).unwrap());
        }
        agree(&trie, &[]);
        assert_eq!((trie.heap().resident, trie.len()), (0, 0), "an empty trie has no page");
    }
}

#[test]
fn equal_hashes_are_chained_without_limit() {
    for shape in [Shape { hash_bits: 8, ..Shape::NORMAL }, Shape { hash_bits: 8, ..Shape::TINY }] {
        let (trie, guard) = (Trie::new(shape), &epoch::pin());
        let mut model = Vec::new();
        for n in 0..20_000 {
            let entry = Entry::new(shape.cut(Dice(n).next()), place(n));
            trie.insert(entry, guard).unwrap();
            model.push(entry);
        }
        agree(&trie, &model);
        assert!(survey(&trie).path <= 4 * 20_000, "no nodes below the last bit that differs");
        for entry in model.split_off(200) {
            assert!(trie.remove(entry.hash, Address::from_bits(entry.address), guard).unwrap());
        }
        agree(&trie, &model);
    }
}

#[test]
fn churn_of_ten_times_the_entries_takes_no_more_space() {
    for count in [20_000, 30_000] {
        churn(count);
    }
}

fn churn(count: u64) {
    let (trie, guard) = (Trie::new(Shape::NORMAL), &epoch::pin());
    let hash = |n: u64| Shape::NORMAL.cut(Dice(n).next());
    (0..count).for_each(|n| trie.insert(Entry::new(hash(n), place(n)), guard).unwrap());
    let before = trie.bytes();
    let mut live: Vec<u64> = (0..count).collect();
    let mut dice = Dice(7);
    for n in count..11 * count {
        let at = dice.below(live.len());
        let gone = std::mem::replace(&mut live[at], n);
        assert!(trie.remove(hash(gone), place(gone), guard).unwrap());
        trie.insert(Entry::new(hash(n), place(n)), guard).unwrap();
    }
    let model: Vec<Entry> = live.iter().map(|n| Entry::new(hash(*n), place(*n))).collect();
    agree(&trie, &model);
    assert!(trie.bytes() * 10 <= before * 11, "{} bytes, then {}", before, trie.bytes());
}

#[test]
fn a_key_takes_few_bytes_at_every_size() {
    let (trie, guard) = (Trie::new(Shape::NORMAL), &epoch::pin());
    let (mut worst, mut step) = (0.0f64, 100_000u64);
    for n in 0..1_200_000 {
        trie.insert(Entry::new(Shape::NORMAL.cut(Dice(n).next()), place(n)), guard).unwrap();
        if n == step {
            worst = worst.max(trie.bytes() as f64 / n as f64);
            step += step / 8;
        }
    }
    assert!(worst < 13.0, "{worst} bytes a key");
}

#[test]
fn a_change_reads_all_it_needs_before_it_writes() {
    let shape = Shape::TINY;
    let (trie, guard) = (Trie::new(shape), epoch::pin());
    // A chain of many pages, and a hash beside it that has none.
    let mut model: Vec<Entry> = (0..200).map(|n| Entry::new(0x4000_0000, place(n))).collect();
    model.iter().for_each(|entry| trie.insert(*entry, &guard).unwrap());
    trie.heap().freeze(Vec::new());
    let pages = trie.heap().frozen.take().unwrap().pages;
    let mut disk = std::collections::HashMap::new();
    for page in pages {
        let words = trie.pages().peek(page, &guard).unwrap();
        disk.insert(page, words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<u64>>());
        trie.heap().clean(page);
    }
    assert_eq!(trie.evict(usize::MAX, 0, &guard, |_| {}), disk.len());
    drop(guard);
    while !trie.pages().is_limbo_empty() {
        epoch::pin().flush();
    }
    let (another, guard) = (Entry::new(0x4000_0001, place(1000)), epoch::pin());
    let mut missed = 0;
    while let Err(trouble) = trie.find(another.hash, &guard, |_| {}) {
        let Trouble::Absent(page) = trouble else { panic!("{trouble:?}") };
        trie.arrive(page, &disk[&page], || true, &guard).unwrap();
        missed += 1;
    }
    assert!(missed == disk.len() && missed > 3, "what splits a chain off needs all of it");
    trie.insert(another, &guard).unwrap();
    model.push(another);
    agree(&trie, &model);
}
