//! Decompressed values: identity, replacement, memory and eviction.

use std::time::Duration;

use super::cache::DecodedValues;
use super::value::{CachedVersion, MAX_BYTES};
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::epoch;

const BUDGET: u64 = 4 << 20;
/// Maximum number of waits for the guards of all threads, and the limit of one wait.
const MAX_ROUNDS: u32 = 1_000;
const GUARD_LIMIT: Duration = Duration::from_secs(60);

/// A cache with a memory budget of its own.
struct World {
    memory: Memory,
    cache: DecodedValues,
}

impl World {
    fn new() -> World {
        World { memory: Memory::new(BUDGET), cache: DecodedValues::new(BUDGET) }
    }

    fn insert(&self, version: CachedVersion<'_>, hash: u64, value: &[u8]) {
        self.cache.insert(version, hash, value, &self.memory, &epoch::pin());
    }

    fn get(&self, version: CachedVersion<'_>, hash: u64) -> Option<Vec<u8>> {
        self.cache.get(version, hash, &epoch::pin()).map(<[u8]>::to_vec)
    }

    fn bytes(&self) -> u64 {
        assert_eq!(self.cache.cache_share().bytes(), self.memory.used(MemoryPart::Cache));
        self.cache.cache_share().bytes()
    }
}

fn version(keyspace: u32, seq: u64, key: &[u8]) -> CachedVersion<'_> {
    CachedVersion { keyspace: KeyspaceId(keyspace), seq: Seq(seq), key }
}

/// Returns a hash with another chunk, set and tag for each number.
fn hash(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[test]
fn only_the_same_version_of_the_same_key_is_found() {
    let world = World::new();
    assert_eq!(world.get(version(1, 7, b"key"), 5), None);
    world.insert(version(1, 7, b"key"), 5, b"value");
    assert_eq!(world.get(version(1, 7, b"key"), 5).as_deref(), Some(&b"value"[..]));
    for other in [version(2, 7, b"key"), version(1, 8, b"key"), version(1, 7, b"kex"), version(1, 7, b"keyv")]
    {
        assert_eq!(world.get(other, 5), None, "{other:?}");
    }
    assert_eq!(world.get(version(1, 7, b"key"), 6), None, "another set");
}

#[test]
fn a_newer_version_takes_the_slot_of_the_older_one() {
    let world = World::new();
    world.insert(version(1, 7, b"key"), 5, &[1; 1000]);
    let one = world.bytes();
    for seq in 8..100 {
        world.insert(version(1, seq, b"key"), 5, &[2; 1000]);
        assert_eq!(world.get(version(1, seq - 1, b"key"), 5), None);
        assert_eq!(world.get(version(1, seq, b"key"), 5).as_deref(), Some(&[2; 1000][..]));
        assert_eq!(world.bytes(), one);
    }
}

#[test]
fn keys_of_one_set_replace_values_that_were_not_used() {
    let world = World::new();
    let keys: Vec<[u8; 1]> = (0..40).map(|key| [key]).collect();
    // The lowest 8 bits of the hash choose the set, the lowest 32 are the tag.
    let hash = |key: usize| (key as u64) << 8;
    for (number, key) in keys.iter().enumerate() {
        world.insert(version(1, 1, key), hash(number), key);
        assert!(world.get(version(1, 1, &keys[0]), hash(0)).is_some(), "{number}: a used value stays");
    }
    let cached = |(number, key): (usize, &[u8; 1])| world.get(version(1, 1, key), hash(number)).is_some();
    assert_eq!(keys.iter().enumerate().filter(|of| cached(*of)).count(), 4);
}

#[test]
fn the_cache_takes_at_most_half_of_the_budget_and_only_free_memory() {
    let world = World::new();
    for number in 0..10_000 {
        world.insert(version(1, number, b"key"), hash(number), &[3; 1000]);
    }
    let all = world.bytes();
    assert!(all > BUDGET / 4 && all <= BUDGET / 2, "{all} bytes in the cache");
    // While guards of other tests keep much evicted memory, nothing more is evicted.
    let newest = version(1, 10_000, b"key");
    let is_cached = (0..MAX_ROUNDS).any(|_| {
        world.insert(newest, hash(10_000), &[3; 1000]);
        let is_cached = world.get(newest, hash(10_000)).is_some();
        assert!(is_cached || epoch::wait_for_guards(GUARD_LIMIT), "a guard is held for ever");
        is_cached
    });
    assert!(is_cached, "the newest value takes the place of others");
    world.cache.evict(all / 2, &world.memory, &epoch::pin());
    assert!(world.bytes() <= all / 2, "about half was evicted");
    world.memory.take(MemoryPart::Index, BUDGET);
    let before = world.cache.cache_share().bytes();
    world.insert(version(1, 1, b"other"), hash(1), &[3; 1000]);
    assert!(world.cache.cache_share().bytes() <= before, "there was no free memory");
    assert_eq!(world.get(version(1, 1, b"other"), hash(1)), None);
}

#[test]
fn everything_can_be_evicted() {
    let world = World::new();
    for number in 0..1_000 {
        world.insert(version(1, number, b"key"), hash(number), &[3; 1000]);
        assert!(world.get(version(1, number, b"key"), hash(number)).is_some());
    }
    world.cache.evict(u64::MAX, &world.memory, &epoch::pin());
    let found = (0..1_000).filter(|n| world.get(version(1, *n, b"key"), hash(*n)).is_some()).count();
    assert_eq!(found, 0);
    assert!(world.bytes() <= 16 << 10 << 2, "only the sets are left: {}", world.bytes());
}

#[test]
fn long_values_are_not_cached() {
    let world = World::new();
    world.insert(version(1, 1, b"key"), 5, &vec![1; MAX_BYTES - 3]);
    assert!(world.get(version(1, 1, b"key"), 5).is_some());
    world.insert(version(1, 2, b"key"), 5, &vec![1; MAX_BYTES - 2]);
    assert_eq!(world.get(version(1, 2, b"key"), 5), None);
}

#[test]
fn a_long_value_evicts_nothing() {
    let world = World::new();
    for number in 0..10_000 {
        world.insert(version(1, number, b"key"), hash(number), &[3; 1000]);
    }
    let full = world.bytes();
    world.insert(version(1, 1, b"long"), 5, &vec![1; MAX_BYTES]);
    assert_eq!(world.bytes(), full);
}
