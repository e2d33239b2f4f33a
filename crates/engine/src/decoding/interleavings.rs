//! Gets of decompressed values while others insert and evict, under a scheduler.
//!
//! Built with `--cfg shuttle` only; `sheaf_platform::sync::explore` lists the parameters. The
//! scheduler does not explore weak memory orders.

use std::sync::Arc;

use super::cache::DecodedValues;
use super::value::CachedVersion;
use sheaf_log::types::{KeyspaceId, Seq};
use sheaf_platform::memory::{Memory, MemoryPart};
use sheaf_platform::sync::{epoch, explore, thread};

const KEY: &[u8] = b"key";
const HASH: u64 = 5;

fn version(seq: u64) -> CachedVersion<'static> {
    CachedVersion { keyspace: KeyspaceId(1), seq: Seq(seq), key: KEY }
}

fn value(seq: u64) -> [u8; 300] {
    [u8::try_from(seq).expect("a small number"); 300]
}

#[test]
fn a_found_value_is_that_of_its_version_and_stays_readable() {
    explore(300, || {
        let world = Arc::new((DecodedValues::new(1 << 20), Memory::new(1 << 20)));
        let insert = |seq: u64| {
            let world = Arc::clone(&world);
            move || world.0.insert(version(seq), HASH, &value(seq), &world.1, &epoch::pin())
        };
        insert(1)();
        let mut threads: Vec<_> = (2..4).map(|seq| thread::spawn(insert(seq))).collect();
        let evicting = Arc::clone(&world);
        threads.push(thread::spawn(move || evicting.0.evict(u64::MAX, &evicting.1, &epoch::pin())));
        for seq in [1, 2, 3, 1] {
            let guard = epoch::pin();
            if let Some(found) = world.0.get(version(seq), HASH, &guard) {
                assert_eq!(found, value(seq));
                thread::yield_now();
                assert_eq!(found, value(seq), "the guard protects the value");
            }
        }
        threads.into_iter().for_each(|thread| thread.join().expect("no thread panics"));
        world.0.evict(u64::MAX, &world.1, &epoch::pin());
        let sets = world.0.cache_share().bytes();
        assert_eq!(sets, world.1.used(MemoryPart::Cache), "both accounts agree");
        world.0.evict(u64::MAX, &world.1, &epoch::pin());
        assert_eq!(world.0.cache_share().bytes(), sets, "no value is left");
        (1..4).for_each(|seq| assert_eq!(world.0.get(version(seq), HASH, &epoch::pin()), None));
    });
}
