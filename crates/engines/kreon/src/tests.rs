//! The tree against a sorted map.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use sheaf_base::blob::Blobs;
use sheaf_base::disk::Disk;
use sheaf_base::disk::sim::SimDisk;
use sheaf_base::error::Result;
use sheaf_base::ground::{Ground, Home};
use sheaf_base::segment::Address;
use sheaf_base::sync::epoch;
use sheaf_base::types::{KeyspaceId, Seq};

use crate::cache::{Cache, Frame};
use crate::change::{Change, Meet};
use crate::node::{Entry, Pair};
use crate::space::Space;
use crate::tree::{Aim, Level, Shelf};

/// Newer entries win, and removals remove.
struct Last;

impl Meet for Last {
    fn meet(&mut self, new: &Pair<'_>, _old: Option<(&Entry, u64, Seq)>) -> Result<Option<Entry>> {
        Ok((!new.entry.is_tomb()).then_some(new.entry))
    }
    fn keep(&mut self, _old: &Entry, _stamp: u64) -> bool {
        true
    }
}

pub(crate) fn shelf(tiny: bool) -> Arc<Shelf> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    disk.create_dir(Path::new("/db")).unwrap();
    disk.create_dir(Path::new("/db/blobs")).unwrap();
    let blobs = Blobs::new(
        Arc::clone(&disk),
        Path::new("/db/blobs").to_path_buf(),
        1,
        sheaf_base::types::StoreId(1),
        true,
    );
    let home = Home::new(disk, Path::new("/db"), false);
    let ground = Arc::new(Ground::new(blobs, 1 << 22, 7, tiny).with_home(home, true));
    let space = Space::new(Arc::clone(&ground), KeyspaceId(1));
    Arc::new(Shelf {
        cache: Cache::new(Arc::clone(&ground)),
        space,
        ground,
        lives: std::sync::OnceLock::new(),
    })
}

fn next(x: &mut u64) -> u64 {
    *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *x >> 33
}

fn key_of(number: u64, range: u64) -> Vec<u8> {
    let number = number % range;
    match number % 50 {
        0 => vec![7; usize::try_from(number % 3000).unwrap()],
        n if n < 25 => format!("user{number:012}").into_bytes(),
        _ => number.to_be_bytes()[4..].to_vec(),
    }
}

fn print_of(key: &[u8]) -> u8 {
    key.iter().fold(3, |sum: u8, byte| sum.wrapping_mul(31).wrapping_add(*byte))
}

fn step(shelf: &Shelf, level: &Level, pairs: &[Pair<'_>], cut: Option<(&[u8], Option<&[u8]>)>) -> Level {
    let guard = &epoch::pin();
    let mut meet = Last;
    let mut change = Change::new(shelf, guard, 1 << 40, &mut meet);
    let after = match cut {
        Some((from, to)) => change.cut_out(level, from, to).unwrap(),
        None => change.apply(level, pairs).unwrap(),
    };
    change.done();
    for made in std::mem::take(&mut change.made) {
        shelf.space.write(std::iter::once((made.at.page, &made.bytes[..]))).unwrap();
        if made.level > 0 || made.at.page.is_multiple_of(3) {
            shelf.cache.put(made.at.page, Frame::new(made.bytes, made.level == 0, false), guard);
        }
    }
    let gone = std::mem::take(&mut change.gone);
    let free = shelf.space.replaced(&gone);
    gone.iter().for_each(|(page, _)| shelf.cache.forget(*page, guard));
    shelf.space.give_back(&free);
    after
}

fn check(shelf: &Shelf, level: &Level, expected: &BTreeMap<Vec<u8>, u64>, range: u64) {
    let guard = &epoch::pin();
    assert_eq!(level.count(), expected.len() as u64);
    for number in (0..range).step_by(3) {
        let key = key_of(number, range);
        let found = shelf.find(level, print_of(&key), &key, guard).unwrap();
        assert_eq!(found.map(|seen| seen.entry.address().bits()), expected.get(&key).map(|n| n * 8));
    }
    let mut all = Vec::new();
    let mut leaf = shelf.locate(level, Aim::First, guard).unwrap();
    while let Some(now) = leaf.take() {
        let node = shelf.node(now.at, 0, guard).unwrap().node();
        for slot in 0..node.len() {
            let mut key = Vec::new();
            node.key(slot, &mut key);
            assert!(key >= now.low && now.high.as_ref().is_none_or(|high| key < *high));
            all.push(key);
        }
        if let Some(high) = &now.high {
            let before = shelf.locate(level, Aim::Before(high), guard).unwrap().unwrap();
            assert_eq!(before.at, now.at);
            leaf = shelf.locate(level, Aim::At(high), guard).unwrap();
        }
    }
    assert!(all.iter().eq(expected.keys()), "{} of {}", all.len(), expected.len());
}

fn play(tiny: bool, range: u64, rounds: u64, batch: u64) {
    let shelf = shelf(tiny);
    let (mut level, mut expected) = (Level::default(), BTreeMap::new());
    let mut x = range;
    for round in 1..=rounds {
        let removes = round % 4 == 0;
        let base = next(&mut x);
        let mut batch_of = BTreeMap::new();
        for _ in 0..batch {
            let number = if round % 3 == 0 { base + next(&mut x) % batch } else { next(&mut x) };
            batch_of.insert(key_of(number, range), next(&mut x) % (1 << 30));
        }
        let mut pairs = Vec::new();
        for (key, number) in &batch_of {
            let is_tomb = removes && number % 5 > 0;
            let print = print_of(key);
            let entry = match is_tomb {
                true => Entry::tomb(Seq(round), print, 0),
                false => Entry::put(Address::from_bits(number * 8), 64, print, 0, 0),
            };
            match is_tomb {
                true => drop(expected.remove(key)),
                false => drop(expected.insert(key.clone(), *number)),
            }
            pairs.push(Pair { key, entry, newest: Seq(round) });
        }
        level = step(&shelf, &level, &pairs, None);
        if round % 7 == 0 {
            let guard = &epoch::pin();
            let from = shelf.locate(&level, Aim::At(&key_of(next(&mut x), range)), guard).unwrap();
            if let Some(from) = from {
                let to = shelf.locate(&level, Aim::At(&key_of(next(&mut x), range)), guard).unwrap().unwrap();
                let (low, high) = (from.low, to.high);
                if high.as_ref().is_none_or(|high| low < *high) {
                    level = step(&shelf, &level, &[], Some((&low, high.as_deref())));
                    expected.retain(|key, _| *key < low || high.as_ref().is_some_and(|high| key >= high));
                }
            }
        }
        check(&shelf, &level, &expected, range);
    }
    // Nothing is left behind.
    level = step(&shelf, &level, &[], Some((&[], None)));
    assert_eq!(level, Level::default());
    let (all, free) = shelf.space.bytes();
    assert_eq!(all - free, shelf.space.paged.page as u64, "only the head is used");
}

#[test]
fn a_level_is_a_sorted_map() {
    play(true, 300, 60, 20);
    play(true, 3000, 40, 200);
    play(false, 20_000, 20, 3000);
    play(false, 200_000, 8, 20_000);
}
