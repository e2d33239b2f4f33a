//! Removed keys: readers skip ranges of them, and see keys that are inserted into these ranges.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::sync::atomic::{AtomicBool, Ordering};

use sheaf::{Database, Keyspace};
use sheaf_testkit::fixture::{DiskKind, Fixture, TestSetting, TestSubject};

/// Number of removed keys.
const KEYS: u32 = 20_000;

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Returns a fixture for `delsm` in normal geometry with inline background work.
fn fixture() -> Fixture {
    Fixture::new(&TestSubject::delsm(), TestSetting::new(DiskKind::Simulated, false, true))
}

/// Returns the result of `act` and the number of removed keys that readers passed in it.
fn skipped_keys<T>(keyspace: &Keyspace, act: impl FnOnce() -> T) -> (T, u64) {
    let count = || {
        let counters = keyspace.counters().unwrap();
        counters.iter().find(|(name, _)| *name == "removed keys skipped").expect("it is counted").1
    };
    let before = count();
    let done = act();
    (done, count() - before)
}

fn first(keyspace: &Keyspace) -> Option<u32> {
    let found = keyspace.first().unwrap()?;
    Some(u32::from_be_bytes(found.0.as_ref().try_into().unwrap()))
}

fn last(keyspace: &Keyspace) -> Option<u32> {
    let found = keyspace.last().unwrap()?;
    Some(u32::from_be_bytes(found.0.as_ref().try_into().unwrap()))
}

fn run_background(db: &Database) {
    while db.pump().unwrap() {}
}

/// Returns a filled keyspace; with `is_moved`, its pairs are in tables.
fn full(fixture: &Fixture, is_moved: bool) -> (Database, Keyspace) {
    let db = fixture.open();
    let keyspace = fixture.keyspace(&db, "a");
    (0..KEYS).for_each(|n| keyspace.insert(key(n), [1; 20]).unwrap());
    if !is_moved {
        return (db, keyspace);
    }
    drop(keyspace);
    let db = fixture.reopen(db);
    let keyspace = fixture.keyspace(&db, "a");
    (db, keyspace)
}

/// Case F3: the cost of `first` on a queue does not depend on the number of removed items.
#[test]
fn popping_from_a_queue_skips_few_removed_keys() {
    let fixture = fixture();
    let (db, keyspace) = full(&fixture, true);
    for n in 0..KEYS {
        keyspace.insert(key(KEYS + n), [1; 20]).unwrap();
        let (found, passed) = skipped_keys(&keyspace, || first(&keyspace));
        assert_eq!(found, Some(n));
        assert!(passed < 300, "take {n} passes {passed}");
        keyspace.remove(key(n)).unwrap();
    }
    let (found, passed) =
        skipped_keys(&keyspace, || (0..100).for_each(|_| assert_eq!(first(&keyspace), Some(KEYS))));
    assert!(passed < 5000, "{passed} in 100 looks {found:?}");
    drop((keyspace, db));
}

/// Case F3: a seek into many removed keys is fast immediately, also while a snapshot sees them, in
/// both directions.
#[test]
fn a_seek_into_removed_keys_skips_them_quickly() {
    for (is_moved, is_held) in [(false, false), (false, true), (true, false), (true, true)] {
        let fixture = fixture();
        let (db, keyspace) = full(&fixture, is_moved);
        let snapshot = is_held.then(|| db.snapshot().unwrap());
        (1..KEYS - 1).for_each(|n| keyspace.remove(key(n)).unwrap());
        let seek = |from: u32| keyspace.range(key(from)..).unwrap().next().unwrap().unwrap().0.to_vec();
        for n in [1, KEYS / 2, KEYS - 2] {
            let (found, passed) = skipped_keys(&keyspace, || seek(n));
            assert_eq!(found, key(KEYS - 1));
            assert!(passed < 2000, "{passed} from {n}, {is_moved}, {is_held}");
        }
        let back = || keyspace.range(..key(KEYS - 1)).unwrap().next_back().unwrap().unwrap().0.to_vec();
        let (found, count) = skipped_keys(&keyspace, back);
        assert_eq!(found, key(0));
        assert!(count < 2000, "{count} backwards, {is_moved}, {is_held}");
        run_background(&db);
        let (found, count) = skipped_keys(&keyspace, || (seek(1), keyspace.iter().unwrap().count()));
        assert_eq!(found, (key(KEYS - 1).to_vec(), 2));
        assert!(count < 1000, "{count} after a rest, {is_moved}, {is_held}");
        if let Some(snapshot) = snapshot {
            let past = snapshot.keyspace("a").unwrap();
            assert_eq!(past.iter().unwrap().count(), KEYS as usize);
            assert_eq!(past.iter().unwrap().rev().count(), KEYS as usize);
        }
    }
}

/// One reader passes keys that were removed in random order; later readers skip them.
#[test]
fn keys_removed_in_random_order_are_passed_at_most_once() {
    for is_moved in [false, true] {
        let fixture = fixture();
        let (_db, keyspace) = full(&fixture, is_moved);
        (0..KEYS).for_each(|n| keyspace.remove(key(n * 7919 % KEYS)).unwrap());
        let (found, count) = skipped_keys(&keyspace, || first(&keyspace));
        assert_eq!(found, None);
        assert!(count < u64::from(KEYS) + 1000, "{count}, {is_moved}");
        let (found, count) = skipped_keys(&keyspace, || (first(&keyspace), last(&keyspace)));
        assert_eq!(found, (None, None));
        assert!(count < 100, "{count} for the second reader, {is_moved}");
    }
}

/// Keys inserted among removed keys are visible to newer views only.
#[test]
fn a_key_put_among_removed_keys_is_visible() {
    let fixture = fixture();
    let (db, keyspace) = full(&fixture, true);
    (0..KEYS).for_each(|n| keyspace.remove(key(n)).unwrap());
    assert_eq!((first(&keyspace), last(&keyspace), keyspace.is_empty().unwrap()), (None, None, true));
    let before = db.snapshot().unwrap();
    for n in [5, 7000, 6999, 7001, KEYS - 1, 0] {
        keyspace.insert(key(n), "new").unwrap();
        let young = db.snapshot().unwrap();
        keyspace.remove(key(n)).unwrap();
        assert_eq!((first(&keyspace), last(&keyspace)), (None, None), "{n}");
        keyspace.insert(key(n), "newer").unwrap();
        assert_eq!(
            (first(&keyspace), last(&keyspace), keyspace.len().unwrap()),
            (Some(n), Some(n), 1),
            "{n}"
        );
        let past = young.keyspace("a").unwrap();
        assert_eq!(past.iter().unwrap().map(|pair| pair.unwrap().1.to_vec()).collect::<Vec<_>>(), [b"new"]);
        assert_eq!(past.iter().unwrap().rev().count(), 1);
        keyspace.remove(key(n)).unwrap();
    }
    let past = before.keyspace("a").unwrap();
    assert_eq!((past.iter().unwrap().count(), past.iter().unwrap().rev().count()), (0, 0));
    keyspace.clear().unwrap();
    keyspace.insert(key(1), "cleared").unwrap();
    assert_eq!(first(&keyspace), Some(1));
}

/// A thread inserts keys after a removed range that reaches the end of the keyspace. Another thread
/// must see them, in order.
#[test]
fn an_emptied_queue_loses_no_concurrent_put() {
    const ITEMS: u32 = 4000;
    for tiny in [true, false] {
        let fixture = Fixture::new(&TestSubject::delsm(), TestSetting::new(DiskKind::Simulated, tiny, false));
        let db = fixture.open();
        let keyspace = fixture.keyspace(&db, "a");
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..ITEMS).for_each(|n| keyspace.insert(key(n), [1; 20]).unwrap());
                is_done.store(true, Ordering::Release);
            });
            let mut next = 0;
            loop {
                let was_done = is_done.load(Ordering::Acquire);
                match first(&keyspace) {
                    Some(n) => {
                        assert_eq!(n, next, "tiny: {tiny}");
                        keyspace.remove(key(n)).unwrap();
                        next += 1;
                    }
                    None if was_done => break,
                    None => std::thread::yield_now(),
                }
            }
            assert_eq!(next, ITEMS, "tiny: {tiny}");
        });
        db.close().unwrap();
    }
}
