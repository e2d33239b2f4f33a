//! Tests of the ordered index against a sorted map, at its limits, and of its memory per key.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::*;
use sheaf_log::types::Seq;

use crate::index::{ScanDirection, Walk};

fn index(tiny: bool) -> OrderedIndex {
    OrderedIndex::empty(crate::engine::tests::context(tiny))
}

fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 31)
}

fn place(n: u64) -> Address {
    Address::from_bits((n + 1) * 64)
}

fn find(index: &OrderedIndex, key: &[u8]) -> Option<Address> {
    let guard = &epoch::pin();
    let leaf = index.leaf_of(key, guard);
    let text = leaf.search_key(key);
    let found = leaf.find(&text).map(|slot| leaf.address(slot)).filter(|at| *at != Address::NONE);
    let mut likely = None;
    index.matches(HashedKey { key, hash: 0 }, guard, |address| {
        likely = Some(address);
        true
    });
    assert!(found.is_none() || likely == found, "find_likely finds every live key");
    found
}

/// Returns a key of a difficult family: long common prefixes, ends at every length, zeros, keys
/// that differ in one byte.
fn keys(family: u64, n: u64) -> Vec<u8> {
    match family % 5 {
        0 => mix(n).to_be_bytes().to_vec(),
        1 => format!("a prefix that all of these keys share, and then some: {:x}", mix(n) % 997).into_bytes(),
        2 => vec![0; usize::try_from(n % 400).unwrap()],
        3 => [&b"\0\0\0\0\0\0\0\0"[..], &n.to_be_bytes(), &vec![0; usize::try_from(n % 3).unwrap()]].concat(),
        _ => n.to_be_bytes().to_vec(),
    }
}

/// Returns the entries of a walk. Checks that the result does not depend on the size hint.
fn walked(index: &OrderedIndex, bounds: &Bounds, way: ScanDirection) -> Vec<Address> {
    let all = walked_with(index, bounds, way, 0);
    assert!(walked_with(index, bounds, way, 64) == all, "the size hint does not matter");
    all
}

fn walked_with(index: &OrderedIndex, bounds: &Bounds, way: ScanDirection, expected: usize) -> Vec<Address> {
    let mut walk = OrderedIndex::walk(bounds.clone());
    walk.hint_size(expected);
    let mut all = Vec::new();
    let mut heads = Vec::new();
    while let Some(span) = walk.step(index, way, &epoch::pin(), &mut heads) {
        let _ = BTreeMap::from([(Vec::new(), ())]).range(span); // panics if the span is invalid
        all.append(&mut heads);
    }
    all
}

fn bounds_of(a: Bound<Vec<u8>>, b: Bound<Vec<u8>>) -> Bounds {
    Bounds { low: a, high: b }
}

fn check_against_model(index: &OrderedIndex, model: &BTreeMap<Vec<u8>, Address>) {
    for (key, address) in model {
        assert_eq!(find(index, key), Some(*address), "{key:?}");
    }
    let all: Vec<Address> = model.values().copied().collect();
    assert_eq!(walked(index, &Bounds::all(), ScanDirection::Forward), all);
    let down = walked(index, &Bounds::all(), ScanDirection::Backward);
    assert!(down.iter().eq(all.iter().rev()), "downwards");
    let mut listed = Vec::new();
    index.for_each(|address| listed.push(address));
    assert_eq!(listed, all);
}

fn some_ranges(index: &OrderedIndex, model: &BTreeMap<Vec<u8>, Address>, seed: u64) {
    let keys: Vec<&Vec<u8>> = model.keys().collect();
    if keys.is_empty() {
        return;
    }
    for n in 0..12 {
        let pick = |salt: u64| {
            let mut key = keys[usize::try_from(mix(seed ^ n ^ salt) % keys.len() as u64).unwrap()].clone();
            if n % 3 == 1 {
                key.push(1);
            }
            match mix(seed + n + salt) % 5 {
                0 | 1 => Bound::Included(key),
                2 | 3 => Bound::Excluded(key),
                _ => Bound::Unbounded,
            }
        };
        let bounds = bounds_of(pick(1), pick(2));
        let wanted: Vec<Address> = match bounds.is_empty() {
            true => Vec::new(),
            false => model.range((bounds.low.clone(), bounds.high.clone())).map(|(_, at)| *at).collect(),
        };
        assert_eq!(walked(index, &bounds, ScanDirection::Forward), wanted, "{bounds:?}");
        assert!(
            walked(index, &bounds, ScanDirection::Backward).iter().eq(wanted.iter().rev()),
            "{bounds:?} down"
        );
    }
}

#[test]
fn random_changes_agree_with_a_sorted_map() {
    for tiny in [true, false] {
        for family in 0..6 {
            let index = index(tiny);
            let mut model = BTreeMap::new();
            let span = if tiny { 300 } else { 3000 };
            for step in 0..4 * span {
                let family = if family == 5 { mix(step) } else { family };
                // Phases of growth and of shrinking.
                let grows = (step / span) % 2 == 0;
                let key = keys(family, mix(step ^ 99) % span);
                let add = mix(step) % 8 < if grows { 6 } else { 1 };
                match (model.get(&key).copied(), add) {
                    (None, true) => {
                        index.put(&key, place(step));
                        model.insert(key, place(step));
                    }
                    (Some(before), true) => {
                        assert!(!index.repoint(&key, place(step), place(0)), "of another place");
                        assert!(index.repoint(&key, before, place(step)));
                        model.insert(key, place(step));
                    }
                    (Some(before), false) => {
                        assert!(index.repoint(&key, before, Address::NONE));
                        assert_eq!(find(&index, &key), None);
                        model.remove(&key);
                    }
                    (None, false) => assert_eq!(find(&index, &key), None),
                }
                if step % 257 == 0 {
                    some_ranges(&index, &model, step);
                }
            }
            check_against_model(&index, &model);
            for (key, address) in std::mem::take(&mut model) {
                assert!(index.repoint(&key, address, Address::NONE));
            }
            check_against_model(&index, &model);
            let empty = OrderedIndex::empty(crate::engine::tests::context(tiny)).bytes();
            assert!(index.bytes() < 8 * empty, "{} bytes of an empty tree keep {}", empty, index.bytes());
        }
    }
}

#[test]
fn keys_of_maximum_length_are_stored() {
    let index = index(false);
    let mut model = BTreeMap::new();
    for n in 0..40u64 {
        let mut key = vec![b'k'; 65_535 - usize::try_from(n % 7).unwrap()];
        let at = key.len() - 8;
        key[at..].copy_from_slice(&mix(n).to_be_bytes());
        index.put(&key, place(n));
        model.insert(key, place(n));
    }
    check_against_model(&index, &model);
}

#[test]
fn an_image_restores_every_entry() {
    struct Bytes(Vec<u8>, usize);
    impl ImageSink for Bytes {
        fn put(&mut self, bytes: &[u8]) -> Result<()> {
            self.0.extend_from_slice(bytes);
            Ok(())
        }
    }
    impl sheaf_engine::contract::ImageSource for Bytes {
        fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
            let end = self.1 + bytes.len();
            bytes.copy_from_slice(self.0.get(self.1..end).ok_or(self.invalid_field(
                "end",
                (1..).into(),
                0,
            ))?);
            self.1 = end;
            Ok(())
        }
        fn invalid_field(
            &self,
            field: &'static str,
            expected: sheaf_platform::error::Expected,
            got: u64,
        ) -> sheaf_platform::error::Error {
            let what = sheaf_platform::error::Damage::BadField { field, expected, got };
            sheaf_platform::error::Error::corrupt(std::path::Path::new("image"), self.1 as u64, "image", what)
        }
        fn slot_of(&self, slot: u32) -> Option<u32> {
            (slot != 1).then_some(slot) // the freed segment
        }
        fn seq(&self, stored: u64) -> Result<Seq> {
            Ok(Seq(stored))
        }
    }
    for tiny in [true, false] {
        for count in [0, 1, 7, 2000] {
            let before = index(tiny);
            let mut model = BTreeMap::new();
            for n in 0..count {
                let address = Address::new(u32::try_from(n % 3).unwrap(), 512 + 8 * n);
                let key = keys(n, n);
                if model.contains_key(&key) {
                    continue;
                }
                before.put(&key, address);
                model.insert(key, address);
            }
            let mut bytes = Bytes(Vec::new(), 0);
            before.save(&mut bytes).unwrap();
            model.retain(|_, address| address.slot() != 1);
            let after = index(tiny);
            let mut image = IndexImage::new(&mut bytes);
            after.load(&mut image).unwrap();
            assert_eq!(image.keys, model.len() as u64);
            check_against_model(&after, &model);
            // The index remains usable.
            for n in count..2 * count {
                let key = keys(0, n);
                if model.insert(key.clone(), place(n)).is_none() {
                    after.put(&key, place(n));
                }
            }
            if count > 0 {
                for cut in [0, bytes.0.len() / 2, bytes.0.len() - 1] {
                    let mut short = Bytes(bytes.0[..cut].to_vec(), 0);
                    assert!(index(tiny).load(&mut IndexImage::new(&mut short)).is_err(), "cut to {cut}");
                }
            }
        }
    }
}

#[test]
fn memory_per_key_is_within_the_documented_bound() {
    for (name, layout, most) in [("8 bytes", 0, 8 + 24), ("27 bytes", 1, 27 + 24)] {
        let index = index(false);
        let mut worst = 0.0f64;
        for n in 0..300_000u64 {
            let key = match layout {
                0 => mix(n).to_be_bytes().to_vec(),
                _ => format!("sheaf-bench{:016x}", mix(n)).into_bytes(),
            };
            index.put(&key, place(n));
            if n > 50_000 && n.is_multiple_of(5_000) {
                worst = worst.max(index.bytes() as f64 / n as f64);
            }
        }
        println!("{name}: {worst:.1} bytes a key");
        assert!(worst < f64::from(most), "{name}: {worst} bytes a key");
    }
}

#[test]
fn keys_that_ascend_fill_their_leaves() {
    let index = index(false);
    for n in 0..200_000u64 {
        index.put(&n.to_be_bytes(), place(n));
    }
    let bytes = index.bytes() as f64 / 200_000.0;
    println!("{bytes:.1} bytes a key");
    assert!(bytes < 20.0, "{bytes} bytes a key");
}

/// Threads add, move and remove their own keys, in the same leaves, while others look up and walk.
#[test]
fn threads_that_change_different_keys_lose_nothing() {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    const THREADS: u64 = 4;
    for (tiny, count) in [(true, 1000), (false, 15_000)] {
        let (index, is_over) = (&index(tiny), &AtomicBool::new(false));
        let key = |n: u64| format!("key-{:020}", mix(n % (THREADS * count))).into_bytes();
        let stays = |n: u64| (format!("stays-{n:04}").into_bytes(), place((1 << 20) + n));
        (0..200).map(stays).for_each(|(key, address)| index.put(&key, address));
        let moved = |n: u64| place(n + THREADS * count);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    for way in [ScanDirection::Forward, ScanDirection::Backward] {
                        let bounds = bounds_of(Bound::Included(b"stays".to_vec()), Bound::Unbounded);
                        let mut seen = walked_with(index, &bounds, way, 0);
                        if way == ScanDirection::Backward {
                            seen.reverse();
                        }
                        assert!(seen.iter().copied().eq((0..200).map(|n| stays(n).1)));
                    }
                    walked_with(index, &Bounds::all(), ScanDirection::Forward, 0);
                }
            });
            let change = |thread: u64| {
                let step = usize::try_from(THREADS).unwrap();
                for n in (thread..THREADS * count).step_by(step) {
                    index.put(&key(n), place(n));
                    if n % 8 < 4 {
                        assert!(index.repoint(&key(n), place(n), moved(n)));
                    }
                    let (key, address) = stays(n % 200);
                    assert_eq!(find(index, &key), Some(address));
                }
                // Most keys are removed again, so that leaves are joined.
                for n in (thread..THREADS * count).step_by(step).filter(|n| n % 16 > 1) {
                    let at = if n % 8 < 4 { moved(n) } else { place(n) };
                    assert!(index.repoint(&key(n), at, Address::NONE));
                }
            };
            let writers: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || change(thread))).collect();
            writers.into_iter().for_each(|writer| writer.join().expect("it writes"));
            is_over.store(true, Relaxed);
        });
        let mut model: BTreeMap<Vec<u8>, Address> = (0..200).map(stays).collect();
        model.extend((0..THREADS * count).filter(|n| n % 16 < 2).map(|n| (key(n), moved(n))));
        check_against_model(index, &model);
    }
}
