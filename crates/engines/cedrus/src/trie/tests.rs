//! Tests of the trie against a list of entries as the model.

use super::*;
use crate::check::check_trie;
use crate::paged_trie::PagedTrie;
use sheaf_platform::sync::epoch;

/// Random numbers from a seed.
struct TestRng(u64);

impl TestRng {
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

fn all(trie: &Trie) -> Vec<TrieEntry> {
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

fn check_against_model(trie: &Trie, model: &[TrieEntry]) {
    let guard = &epoch::pin();
    let mut model = model.to_vec();
    model.sort_unstable();
    let mut seen = check_trie(trie).entries;
    seen.sort_unstable();
    assert!(seen == model && all(trie) == model);
    for same in model.chunk_by(|a, b| a.key_hash() == b.key_hash()) {
        let mut found = trie.find(same[0].key_hash(), guard, |_| {}).unwrap();
        found.sort_unstable_by_key(|address| address.bits());
        assert!(found.iter().map(|address| address.bits()).eq(same.iter().map(|entry| entry.address)));
    }
}

const SHAPES: [TrieShape; 12] = [
    TrieShape { hash_bits: 40, ..TrieShape::NORMAL },
    TrieShape { hash_bits: 40, ..TrieShape::TINY },
    TrieShape { node_bits: 8, max_list_entries: 128, hash_bits: 40, ..TrieShape::NORMAL },
    TrieShape::TINY,
    TrieShape::NORMAL,
    TrieShape { node_bits: 7, max_list_entries: 8, root_bits: 7, ..TrieShape::NORMAL },
    TrieShape { node_bits: 8, max_list_entries: 16, root_bits: 8, ..TrieShape::NORMAL },
    TrieShape { hash_bits: 8, ..TrieShape::TINY },
    TrieShape { hash_bits: 8, ..TrieShape::NORMAL },
    TrieShape { node_bits: 2, max_list_entries: 128, hash_bits: 24, ..TrieShape::NORMAL },
    TrieShape { node_bits: 8, max_list_entries: 1, hash_bits: 16, ..TrieShape::NORMAL },
    TrieShape { node_bits: 2, max_list_entries: 1, page_lines: 4, ..TrieShape::TINY },
];

#[test]
fn random_changes_agree_with_a_list_of_entries() {
    for (seed, shape) in (0u64..).zip(SHAPES.iter().cycle().take(36)) {
        let (trie, mut dice, mut model) = (Trie::new(*shape), TestRng(seed), Vec::<TrieEntry>::new());
        let guard = &epoch::pin();
        let mut number = 0;
        for phase in 0..6 {
            // The trie grows, keeps its size, shrinks, and is empty at the end.
            let adds = [90, 50, 10, 70, 45, 0][phase];
            for _ in 0..600 {
                if dice.below(100) < adds || model.is_empty() {
                    // Some hashes share many or all bits with an existing one.
                    let mut hash = shape.truncate_hash(dice.next());
                    if dice.below(4) == 0 && !model.is_empty() {
                        let like = model[dice.below(model.len())].hash;
                        hash = like
                            ^ (hash.checked_shr(20 + u32::try_from(dice.below(13)).unwrap()).unwrap_or(0));
                        hash = shape.truncate_hash(u64::from(hash) << 32);
                    }
                    number += 1;
                    let tail = shape.key_hash(dice.next()).tail;
                    let entry = TrieEntry::new(KeyHash { path: hash, tail }, place(number));
                    trie.insert(entry, guard).unwrap();
                    model.push(entry);
                } else if dice.below(4) == 0 {
                    let at = dice.below(model.len());
                    number += 1;
                    let (hash, address) = (model[at].key_hash(), model[at].address);
                    let (from, to) = (Address::from_bits(address), place(number));
                    assert!(trie.replace(hash, from, to, guard).unwrap());
                    assert!(!trie.replace(hash, from, to, guard).unwrap());
                    model[at].address = to.bits();
                } else {
                    let entry = model.swap_remove(dice.below(model.len()));
                    let (hash, address) = (entry.key_hash(), entry.address);
                    assert!(trie.remove(hash, Address::from_bits(address), guard).unwrap());
                    assert!(!trie.remove(hash, Address::from_bits(address), guard).unwrap());
                }
            }
            check_against_model(&trie, &model);
        }
        for entry in model.drain(..) {
            let (hash, address) = (entry.key_hash(), entry.address);
            assert!(trie.remove(hash, Address::from_bits(address), guard).unwrap());
        }
        check_against_model(&trie, &[]);
        assert_eq!((trie.heap().resident, trie.len()), (0, 0), "an empty trie has no page");
    }
}

/// Returns how many entries a look-up of a missing key finds: the records of other keys it reads.
fn foreign_records(shape: TrieShape, keys: u32, missing: u32, hash: impl Fn(u64) -> u64) -> f64 {
    let (trie, guard) = (Trie::new(shape), &epoch::pin());
    let key_hash = |n: u32| shape.key_hash(hash(u64::from(n)));
    let insert = |n: u32| trie.insert(TrieEntry::new(key_hash(n), place(u64::from(n))), guard);
    (0..keys).for_each(|n| insert(n).unwrap());
    let found = |n: u32| trie.find(key_hash(n), guard, |_| {}).unwrap().len();
    let all: usize = (keys..keys + missing).map(found).sum();
    f64::from(u32::try_from(all).unwrap()) / f64::from(missing)
}

/// A look-up of a missing key reads n / 2^h records of other keys. Shorter hashes show this with
/// few keys.
#[test]
fn a_look_up_reads_records_of_other_keys_as_calculated() {
    for (hash_bits, keys) in [(8, 1_000), (16, 100_000), (16, 20_000), (24, 300_000)] {
        let shape = TrieShape { hash_bits, ..TrieShape::NORMAL };
        let read = foreign_records(shape, keys, 100_000, |n| TestRng(n).next());
        let expected = f64::from(keys) / f64::from(hash_bits).exp2();
        assert!((read / expected - 1.0).abs() < 0.1, "{hash_bits} bits, {keys} keys: {read}, {expected}");
    }
}

/// Hashes with 24 constant bits are like 2^24 times as many keys: the fifth byte divides the reads
/// of other records by 256.
#[test]
fn a_fifth_byte_of_the_hash_divides_the_reads_by_256() {
    let hash = |n| TestRng(n).next() & !(0x00FF_FFFF << 32);
    let read =
        |hash_bits| foreign_records(TrieShape { hash_bits, ..TrieShape::NORMAL }, 60_000, 20_000, hash);
    let (four, five) = (read(32), read(40));
    assert!((four / (60_000.0 / 256.0) - 1.0).abs() < 0.02, "{four}");
    assert!((four / five / 256.0 - 1.0).abs() < 0.05, "{four}, {five}");
}

#[test]
fn equal_hashes_are_chained_without_limit() {
    for shape in
        [TrieShape { hash_bits: 8, ..TrieShape::NORMAL }, TrieShape { hash_bits: 8, ..TrieShape::TINY }]
    {
        let (trie, guard) = (Trie::new(shape), &epoch::pin());
        let mut model = Vec::new();
        for n in 0..20_000 {
            let entry = TrieEntry::new(shape.truncate_hash(TestRng(n).next()), place(n));
            trie.insert(entry, guard).unwrap();
            model.push(entry);
        }
        check_against_model(&trie, &model);
        assert!(check_trie(&trie).path <= 4 * 20_000, "no nodes below the last bit that differs");
        for entry in model.split_off(200) {
            assert!(trie.remove(entry.hash, Address::from_bits(entry.address), guard).unwrap());
        }
        check_against_model(&trie, &model);
    }
}

#[test]
fn churn_of_ten_times_the_entries_takes_no_more_space() {
    for count in [20_000, 30_000] {
        churn(count);
    }
}

fn churn(count: u64) {
    let (trie, guard) = (Trie::new(TrieShape::NORMAL), &epoch::pin());
    let hash = |n: u64| TrieShape::NORMAL.truncate_hash(TestRng(n).next());
    (0..count).for_each(|n| trie.insert(TrieEntry::new(hash(n), place(n)), guard).unwrap());
    let before = trie.bytes();
    let mut live: Vec<u64> = (0..count).collect();
    let mut dice = TestRng(7);
    for n in count..11 * count {
        let at = dice.below(live.len());
        let gone = std::mem::replace(&mut live[at], n);
        assert!(trie.remove(hash(gone), place(gone), guard).unwrap());
        trie.insert(TrieEntry::new(hash(n), place(n)), guard).unwrap();
    }
    let model: Vec<TrieEntry> = live.iter().map(|n| TrieEntry::new(hash(*n), place(*n))).collect();
    check_against_model(&trie, &model);
    assert!(trie.bytes() * 10 <= before * 11, "{} bytes, then {}", before, trie.bytes());
}

#[test]
fn a_key_takes_few_bytes_at_every_size() {
    let (trie, guard) = (Trie::new(TrieShape::NORMAL), &epoch::pin());
    let (mut worst, mut step) = (0.0f64, 100_000u64);
    for n in 0..1_200_000 {
        trie.insert(TrieEntry::new(TrieShape::NORMAL.truncate_hash(TestRng(n).next()), place(n)), guard)
            .unwrap();
        if n == step {
            worst = worst.max(trie.bytes() as f64 / n as f64);
            step += step / 8;
        }
    }
    assert!(worst < 13.0, "{worst} bytes a key");
}

#[test]
fn a_change_reads_all_it_needs_before_it_writes() {
    let shape = TrieShape::TINY;
    let (trie, guard) = (Trie::new(shape), epoch::pin());
    // A chain of many pages, and a neighbouring hash without entries.
    let mut model: Vec<TrieEntry> = (0..200).map(|n| TrieEntry::new(0x4000_0000, place(n))).collect();
    model.iter().for_each(|entry| trie.insert(*entry, &guard).unwrap());
    trie.freeze();
    let pages = trie.heap().frozen.take().unwrap().pages;
    let mut disk = std::collections::HashMap::new();
    for page in pages {
        let words = trie.pages().peek(page, &guard).unwrap();
        disk.insert(page, words.iter().map(|word| word.load(Ordering::Relaxed)).collect::<Vec<u64>>());
        trie.heap().mark_clean(page);
    }
    assert_eq!(trie.evict(usize::MAX, 0, &guard, |_| {}), disk.len());
    drop(guard);
    while !trie.pages().is_limbo_empty() {
        epoch::pin().flush();
    }
    let (another, guard) = (TrieEntry::new(0x4000_0001, place(1000)), epoch::pin());
    let mut missed = 0;
    while let Err(trouble) = trie.find(another.hash, &guard, |_| {}) {
        let TrieError::NotResident(page) = trouble else { panic!("{trouble:?}") };
        trie.add_loaded_page(page, &disk[&page], || true, &guard).unwrap();
        missed += 1;
    }
    assert!(missed == disk.len() && missed > 3, "a look-up at a chain to split must load all of it");
    trie.insert(another, &guard).unwrap();
    model.push(another);
    check_against_model(&trie, &model);
}

/// Makes random changes and checks their results against the model.
fn change_some(trie: &Trie, model: &mut Vec<TrieEntry>, dice: &mut TestRng, changes: usize) {
    let guard = &epoch::pin();
    for _ in 0..changes {
        let number = 1_000_000 + dice.next() % (1 << 26);
        let at = dice.below(model.len().max(1));
        match dice.below(3) {
            0 if !model.is_empty() => {
                let TrieEntry { hash, address, .. } = model.swap_remove(at);
                assert_eq!(trie.remove(hash, Address::from_bits(address), guard), Ok(true));
            }
            1 if !model.is_empty() => {
                let TrieEntry { hash, address, .. } = model[at];
                assert_eq!(trie.replace(hash, Address::from_bits(address), place(number), guard), Ok(true));
                model[at].address = place(number).bits();
            }
            _ => {
                let entry = TrieEntry::new(trie.shape().truncate_hash(dice.next()), place(number));
                trie.insert(entry, guard).unwrap();
                model.push(entry);
            }
        }
    }
}

#[test]
fn lists_of_several_shards_are_read_and_split() {
    for shape in SHAPES {
        for (seed, count) in [1, 3, 20, 100, 300, 1500].into_iter().enumerate() {
            let mut dice = TestRng(seed as u64);
            let mut model: Vec<TrieEntry> =
                (0..count).map(|n| TrieEntry::new(shape.truncate_hash(dice.next()), place(n))).collect();
            let trie =
                Trie::without_shards(shape, model.iter().map(|e| (e.hash, Address::from_bits(e.address))));
            check_against_model(&trie, &model);
            for _ in 0..5 {
                change_some(&trie, &mut model, &mut dice, 20);
                check_against_model(&trie, &model);
            }
            let guard = &epoch::pin();
            for TrieEntry { hash, address, .. } in model.drain(..) {
                assert_eq!(trie.remove(hash, Address::from_bits(address), guard), Ok(true));
            }
            check_against_model(&trie, &[]);
            assert_eq!(trie.heap().resident, 0);
        }
    }
}

/// Returns a hash in a shard of a normal trie.
fn hash_in(shard: u32, n: u64) -> u32 {
    shard << 26 | TrieShape::NORMAL.truncate_hash(TestRng(n).next()) >> 6
}

#[test]
fn a_writer_waits_for_its_own_shard_only() {
    const CHANGES: u64 = 5000;
    let (trie, counts) = (&Trie::new(TrieShape::NORMAL), &[(); 3].map(|()| AtomicU64::new(0)));
    let write = |shard: u32| {
        let guard = &epoch::pin();
        for n in 0..CHANGES {
            trie.insert(TrieEntry::new(hash_in(shard, n), place(n)), guard).unwrap();
            counts[shard as usize].fetch_add(1, Ordering::Relaxed);
        }
        for n in 0..CHANGES {
            assert_eq!(trie.remove(hash_in(shard, n), place(n), guard), Ok(true));
        }
    };
    let done = || [0, 1, 2].map(|shard: usize| counts[shard].load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        let held = trie.shards.lock(0);
        let blocked = scope.spawn(|| write(0));
        let others = [1, 2].map(|shard| scope.spawn(move || write(shard)));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(done(), [0, CHANGES, CHANGES]);
        drop(held);
        blocked.join().unwrap();
    });
    assert_eq!(done(), [CHANGES; 3]);
    check_against_model(trie, &[]);
}

/// Writers of four shards grow, change and shrink their parts of the trie in parallel. A checkpoint
/// writes and evicts pages at the same time, and readers look up entries that do not change.
#[test]
fn parallel_writers_lose_nothing_during_checkpoints_and_evictions() {
    const STAY: u64 = 300;
    for shape in [TrieShape::NORMAL, TrieShape::TINY] {
        let trie = Trie::new(shape);
        for n in 0..STAY {
            trie.insert(TrieEntry::new(hash_in(63, n), place(n)), &epoch::pin()).unwrap();
        }
        let (world, is_over) = (&PagedTrie::new(trie), &AtomicBool::new(false));
        let own = |shard: u32, n: u64| (hash_in(shard, n), place(n + 1000 * u64::from(shard)));
        let write = |shard: u32| {
            for round in 0..3 {
                (0..700).map(|n| own(shard, n)).for_each(|(hash, at)| world.insert(hash, at));
                for (hash, at) in (0..700).step_by(3).map(|n| own(shard, n)) {
                    world.replace(hash, at, place(0));
                    world.replace(hash, place(0), at);
                }
                let left = if round == 2 { 400 } else { 0 };
                (left..700).map(|n| own(shard, n)).for_each(|(hash, at)| world.remove(hash, at));
            }
        };
        std::thread::scope(|scope| {
            let writers = [0, 1, 40, 62].map(|shard| scope.spawn(move || write(shard)));
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    world.checkpoint_and_evict();
                }
            });
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for n in 0..STAY {
                        assert!(world.find(hash_in(63, n), &epoch::pin()).contains(&place(n)));
                    }
                }
            });
            writers.into_iter().for_each(|writer| writer.join().unwrap());
            is_over.store(true, Ordering::Relaxed);
        });
        let mut model: Vec<TrieEntry> = (0..STAY).map(|n| TrieEntry::new(hash_in(63, n), place(n))).collect();
        let left = [0, 1, 40, 62].into_iter().flat_map(|shard| (0..400).map(move |n| own(shard, n)));
        model.extend(left.map(|(hash, at)| TrieEntry::new(hash, at)));
        for entry in &model {
            assert!(world.find(entry.hash, &epoch::pin()).contains(&Address::from_bits(entry.address)));
        }
        for n in 0..700 {
            world.find(own(0, n).0, &epoch::pin());
        }
        assert_eq!(world.trie.len(), model.len() as u64);
        world.load_all();
        check_against_model(&world.trie, &model);
    }
}

/// Small keyspaces have lists for each shard, but they fit into the same pages as without shards.
#[test]
fn shards_cost_a_small_trie_a_page_at_most() {
    for count in [1, 10, 50, 100, 200, 300, 500, 700, 1000, 1500, 2000, 5000] {
        let entries = || (0..count).map(|n| (TrieShape::NORMAL.truncate_hash(TestRng(n).next()), place(n)));
        let before = Trie::without_shards(TrieShape::NORMAL, entries());
        let now = Trie::new(TrieShape::NORMAL);
        entries().for_each(|(hash, at)| now.insert(TrieEntry::new(hash, at), &epoch::pin()).unwrap());
        println!("{count} pairs: {} bytes without shards, {} with", before.bytes(), now.bytes());
        assert!(now.bytes() <= before.bytes() + TrieShape::NORMAL.page_bytes() as u64, "{count} pairs");
    }
}
