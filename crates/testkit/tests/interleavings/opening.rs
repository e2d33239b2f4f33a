//! Opening: the flat log is replayed by several threads.

use super::*;

/// Versions and removals of two keys in several segments, which two threads take in turns: what was committed last is
/// what is there. With the least `memory` each record is replayed by itself. (Fails if that does not look again, once it has its
/// turn, whether the key is still what it looked up.)
fn replay_by_several_threads(memory: u64) {
    let world = World::default();
    let db = world.open();
    let keyspace = space(&db, "a", "flat");
    for n in 0..16u32 {
        keyspace.insert(format!("{}", n % 2), vec![b'x'; 900]).expect("it inserts");
        if n % 3 == 0 {
            keyspace.remove(format!("{}", n % 2)).expect("it removes");
        }
    }
    let states = |db: &Database| {
        let keyspace = space(db, "a", "flat");
        let state = ["0", "1"].map(|key| keyspace.contains_key(key).expect("it reads"));
        (state, keyspace.iter().expect("it begins").count(), keyspace.len().expect("it counts"))
    };
    let expected = states(&db);
    // Read-only: a store with background threads, without the threads.
    let after = World { disk: world.disk.kill(), ..World::default() };
    let again = after.builder().memory(memory).inline(false).read_only(true).open("/db").expect("it opens");
    assert_eq!(states(&again), expected, "replayed in another order it is something else");
}

#[test]
fn threads_that_replay_meet_at_the_same_keys() {
    explore(500, || replay_by_several_threads(1));
}

#[test]
fn threads_that_gather_what_they_replay_miss_nothing() {
    explore(100, || replay_by_several_threads(16 << 20));
}
