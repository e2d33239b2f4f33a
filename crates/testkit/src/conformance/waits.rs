//! # Waits: commits that would have to wait say so, and leave nothing

use super::{bytes, get, key, refused};
use crate::stage::Stage;
use sheaf::{Database, Error, Keyspace};

/// More rounds than it takes for background work to be far behind, or to catch up.
const MOST: usize = 100_000;

/// Writes, without any background work, until a commit that may not wait is refused; how many writes that took.
fn bring_behind(ks: &Keyspace) -> usize {
    let is_braked = |n: &usize| match ks.try_insert(key(n % 50), bytes(300, *n as u64)) {
        Ok(()) => false,
        Err(Error::Busy { with: "brake" }) => true,
        Err(other) => panic!("{other}"),
    };
    (0..MOST).find(is_braked).expect("background work that is not done is behind one day")
}

/// Lets the background catch up.
fn catch_up(stage: &Stage, db: &Database, ks: &Keyspace) {
    for _ in 0..MOST {
        stage.advance(std::time::Duration::from_millis(50));
        db.pump().unwrap();
        match ks.try_remove("nobody") {
            Ok(()) => return,
            Err(error) => refused!(Err::<(), _>(error), Error::Busy { .. }),
        }
    }
    panic!("busy for ever");
}

pub fn a_write_that_would_be_slowed_down_is_busy_and_leaves_nothing(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    let braked = bring_behind(&ks);
    let before = (get(&ks, key(braked % 50)), db.stats().visible, db.stats().staged, stage.tree().len());
    let large = bytes(stage.setting.stage_above() + 1, 1);
    refused!(ks.try_insert("new", "x"), Error::Busy { .. });
    refused!(ks.try_insert("large", &large), Error::Busy { .. });
    refused!(ks.try_remove(key(0)), Error::Busy { .. });
    let mut batch = db.batch();
    batch.insert(&ks, "both", "x").insert(&other, "both", "x").insert(&ks, "large", &large);
    refused!(batch.try_submit(), Error::Busy { .. });
    refused!(batch.try_commit(), Error::Busy { .. });
    assert_eq!(batch.len(), 3, "a refused batch is as it was");
    let after = (get(&ks, key(braked % 50)), db.stats().visible, db.stats().staged, stage.tree().len());
    assert_eq!(before, after);
    for name in ["new", "large", "both"] {
        assert_eq!(get(&ks, name), None);
    }
    ks.insert("patient", "x").unwrap(); // inline writers are not slowed down
    catch_up(stage, &db, &ks);
    batch.try_commit().unwrap();
    assert!(batch.is_empty(), "what was committed is gone from the batch");
    assert_eq!((get(&ks, "large"), get(&other, "both")), (Some(large), Some(b"x".to_vec())));
    drop((ks, other, batch));
    let db = stage.crash(db);
    assert!(get(&stage.keyspace(&db, "a"), "both").is_some());
}

/// Does what is due.
fn rest(db: &Database) {
    while db.pump().unwrap() {}
}

pub fn a_database_at_rest_is_never_busy(stage: &Stage) {
    let db = stage.open();
    let (ks, other) = (stage.keyspace(&db, "a"), stage.other(&db, "b"));
    ks.try_insert("first", "x").expect("not even if nothing is ready");
    rest(&db);
    for index in 0..20 {
        ks.try_insert(key(index), bytes(20, 1)).unwrap();
    }
    rest(&db);
    let large = bytes(stage.setting.stage_above() + 1, 2);
    ks.try_insert("large", &large).unwrap();
    ks.try_remove(key(0)).unwrap();
    let mut batch = db.batch();
    batch.expect(&ks, key(1), Some(&bytes(20, 1))).remove(&ks, key(1)).insert(&other, "b", "x");
    batch.try_commit().unwrap();
    batch.expect(&ks, key(1), Some(b"another")).insert(&other, "c", "x");
    refused!(batch.try_commit(), Error::Conflict);
    rest(&db);
    // Larger than the segments that are kept ready: made by the commit itself.
    let mut wide = db.batch();
    for index in 0..40 {
        wide.insert(&ks, format!("wide-{index}"), bytes(stage.setting.stage_above(), index));
    }
    wide.try_commit().unwrap();
    assert_eq!((get(&ks, "large"), get(&other, "c")), (Some(large), None));
    assert_eq!(ks.len().unwrap(), 20 + 40);
}
