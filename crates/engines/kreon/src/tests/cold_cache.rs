//! Reads of leaves into a cold or a full cache.

use std::sync::Arc;

use sheaf_platform::memory::MemoryPart;
use sheaf_platform::sync::epoch;

use super::fixture::level_store_of;
use crate::measure::{NumberedKey, insert};
use crate::tree::{Level, LevelStore, SeekTarget};

/// Returns a level of these keys, with nothing in memory.
fn reopened_with_cold_cache(keys: &[Vec<u8>], budget: u64) -> (Arc<LevelStore>, Level) {
    let level_store = level_store_of(budget, false);
    let numbered: Vec<NumberedKey> = keys.iter().cloned().zip(1..).collect();
    let (level, _) = insert(&level_store, &Level::default(), &numbered, None).unwrap();
    level_store.cache.clear(&epoch::pin());
    (level_store, level)
}

fn sorted_keys(count: u64) -> Vec<Vec<u8>> {
    (0..count).map(|number| format!("user{number:012}").into_bytes()).collect()
}

/// Returns the number of reads that finding all keys takes, every 101st key in turn.
fn reads_of_all(level_store: &LevelStore, level: &Level, keys: &[Vec<u8>]) -> u64 {
    let before = level_store.cache.pages_read();
    for first in 0..101 {
        for key in keys.iter().skip(first).step_by(101) {
            let guard = &epoch::pin();
            assert!(level_store.find(level, level_store.hash(key), key, guard).unwrap().is_some());
        }
    }
    level_store.cache.pages_read() - before
}

#[test]
fn a_cold_cache_with_room_is_filled_by_long_reads() {
    let keys = sorted_keys(20_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 64 << 20);
    let reads = reads_of_all(&level_store, &level, &keys);
    let leaves = level_store.space.bytes().0 / level_store.space.page_file.page as u64;
    assert!(leaves > 64 && reads < leaves / 4, "{reads} reads of {leaves} pages");
    assert_eq!(reads_of_all(&level_store, &level, &keys), 0);
}

#[test]
fn a_full_cache_evicts_nothing_for_read_around() {
    let keys = sorted_keys(20_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 256 << 10);
    reads_of_all(&level_store, &level, &keys);
    let guard = &epoch::pin();
    let (reads, pages) = (level_store.cache.pages_read(), |level_store: &LevelStore| {
        level_store.cache.cache_share().bytes() / 4096
    });
    let full = pages(&level_store);
    for key in keys.iter().step_by(1000) {
        level_store.find(&level, level_store.hash(key), key, guard).unwrap();
    }
    assert!(level_store.cache.pages_read() > reads);
    assert!(pages(&level_store) <= full, "{full} pages before, now {}", pages(&level_store));
}

#[test]
fn damage_in_a_neighboring_leaf_does_not_fail_other_lookups() {
    let keys = sorted_keys(20_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 64 << 20);
    let guard = &epoch::pin();
    let damaged = level_store.locate(&level, SeekTarget::Containing(&keys[10_000]), guard).unwrap().unwrap();
    level_store.space.write([(damaged.at.page, &[0x5a; 4096][..])].into_iter()).unwrap();
    let is_in = |key: &Vec<u8>| *key >= damaged.low && damaged.high.as_ref().is_none_or(|high| key < high);
    for key in &keys {
        let found = level_store.find(&level, level_store.hash(key), key, guard);
        assert_eq!(found.is_err(), is_in(key), "{}", String::from_utf8_lossy(key));
    }
}

/// A lookup that misses while the budget is exceeded must not wait until everything is evicted.
#[test]
fn a_lookup_evicts_few_pages() {
    let keys = sorted_keys(60_000);
    let (level_store, level) = reopened_with_cold_cache(&keys, 64 << 20);
    reads_of_all(&level_store, &level, &keys);
    let cached = || level_store.cache.cache_share().bytes();
    let (memory, guard) = (&level_store.context.memory, &epoch::pin());
    let all = cached();
    assert!(all > 3 * 64 * 4096, "{all}");
    level_store.cache.evict(16 * 4096, guard); // some lookups miss
    memory.take(MemoryPart::Index, memory.budget());
    let mut most = 0;
    for key in keys.iter().step_by(100) {
        let before = cached();
        assert!(level_store.find(&level, level_store.hash(key), key, guard).unwrap().is_some());
        most = most.max(before.saturating_sub(cached()));
    }
    memory.give_back(MemoryPart::Index, memory.budget());
    assert!(cached() < all / 2 && most <= 64 * (4096 + 512), "{most} of {all}, left {}", cached());
}
