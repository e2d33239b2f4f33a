//! # Writes that do not wait: return `Busy` and write nothing

use crate::conformance::{bytes, get, key, refused};
use crate::fixture::Fixture;
use sheaf::{Database, Error, Keyspace, StallKind};

/// Maximum number of rounds until background work is far behind, or has caught up.
const MAX_ROUNDS: usize = 100_000;

/// Writes without any background work until a `try_insert` is refused. Returns the number of
/// writes.
fn fill_backlog(ks: &Keyspace) -> usize {
    let is_throttled = |n: &usize| match ks.try_insert(key(n % 50), bytes(300, *n as u64)) {
        Ok(()) => false,
        Err(Error::Busy { waiting_for: StallKind::Throttle }) => true,
        Err(other) => panic!("{other}"),
    };
    (0..MAX_ROUNDS).find(is_throttled).expect("background work that is not done is behind one day")
}

/// Runs background work until a `try_remove` is accepted.
fn drain_backlog(fixture: &Fixture, db: &Database, ks: &Keyspace) {
    for _ in 0..MAX_ROUNDS {
        fixture.advance(std::time::Duration::from_millis(50));
        db.pump().unwrap();
        match ks.try_remove("nobody") {
            Ok(()) => return,
            Err(error) => refused!(Err::<(), _>(error), Error::Busy { .. }),
        }
    }
    panic!("busy for ever");
}

pub fn a_throttled_try_write_returns_busy_and_writes_nothing(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    let throttled = fill_backlog(&ks);
    let before =
        (get(&ks, key(throttled % 50)), db.stats().visible_seq, db.stats().blobs, fixture.read_tree().len());
    let large = bytes(fixture.setting.blob_threshold() + 1, 1);
    refused!(ks.try_insert("new", "x"), Error::Busy { .. });
    refused!(ks.try_insert("large", &large), Error::Busy { .. });
    refused!(ks.try_remove(key(0)), Error::Busy { .. });
    let mut batch = db.batch();
    batch.insert(&ks, "both", "x").insert(&other, "both", "x").insert(&ks, "large", &large);
    refused!(batch.try_submit(), Error::Busy { .. });
    refused!(batch.try_commit(), Error::Busy { .. });
    assert_eq!(batch.len(), 3, "a refused batch is as it was");
    let after =
        (get(&ks, key(throttled % 50)), db.stats().visible_seq, db.stats().blobs, fixture.read_tree().len());
    assert_eq!(before, after);
    for name in ["new", "large", "both"] {
        assert_eq!(get(&ks, name), None);
    }
    ks.insert("patient", "x").unwrap(); // inline writers are not throttled
    drain_backlog(fixture, &db, &ks);
    batch.try_commit().unwrap();
    assert!(batch.is_empty(), "a commit empties the batch");
    assert_eq!((get(&ks, "large"), get(&other, "both")), (Some(large), Some(b"x".to_vec())));
    drop((ks, other, batch));
    let db = fixture.kill_and_reopen(db);
    assert!(get(&fixture.keyspace(&db, "a"), "both").is_some());
}

/// Runs the background work that is due.
fn run_background(db: &Database) {
    while db.pump().unwrap() {}
}

pub fn an_idle_database_is_never_busy(fixture: &Fixture) {
    let db = fixture.open();
    let (ks, other) = (fixture.keyspace(&db, "a"), fixture.other_keyspace(&db, "b"));
    ks.try_insert("first", "x").expect("not even if nothing is ready");
    run_background(&db);
    for index in 0..20 {
        ks.try_insert(key(index), bytes(20, 1)).unwrap();
    }
    run_background(&db);
    let large = bytes(fixture.setting.blob_threshold() + 1, 2);
    ks.try_insert("large", &large).unwrap();
    ks.try_remove(key(0)).unwrap();
    let mut batch = db.batch();
    batch.expect_value(&ks, key(1), Some(&bytes(20, 1))).remove(&ks, key(1)).insert(&other, "b", "x");
    batch.try_commit().unwrap();
    batch.expect_value(&ks, key(1), Some(b"another")).insert(&other, "c", "x");
    refused!(batch.try_commit(), Error::Conflict { .. });
    run_background(&db);
    // More than the segments that are kept ready: the commit creates the others itself.
    let mut wide = db.batch();
    for index in 0..40 {
        wide.insert(&ks, format!("wide-{index}"), bytes(fixture.setting.blob_threshold(), index));
    }
    wide.try_commit().unwrap();
    assert_eq!((get(&ks, "large"), get(&other, "c")), (Some(large), None));
    assert_eq!(ks.len().unwrap(), 20 + 40);
}
