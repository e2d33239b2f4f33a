//! A backup with concurrent writes, checkpoints, GC and frees.

use sheaf::BackupOptions;

use super::*;

/// The backup contains each batch completely, and every commit acknowledged before it.
fn back_up_during_writes(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let spaces = [
        open_keyspace(&db, "a", engine),
        open_keyspace(&db, "b", if engine == "flex" { "flat" } else { "flex" }),
    ];
    let write = move |db: &Database, spaces: &[Keyspace; 2], n: u32| {
        // Large enough that segments fill up and are collected; some values become blobs.
        let value = [&n.to_be_bytes()[..], &vec![b'v'; if n % 4 == 1 { 1500 } else { 300 }]].concat();
        let mut batch = db.batch();
        for space in spaces {
            batch.insert(space, [b'k', u8::try_from(n % 3).expect("small")], &value);
        }
        batch.commit().expect("the batch commits");
    };
    (0..40).for_each(|n| write(&db, &spaces, n));
    let writer = {
        let (db, spaces) = (db.clone(), spaces.clone());
        spawn(move || (40..52).for_each(|n| write(&db, &spaces, n)))
    };
    let keeper = {
        let db = db.clone();
        spawn(move || (0..4).for_each(|_| assert!(db.pump().is_ok())))
    };
    db.backup("/backup", BackupOptions::default()).expect("it is copied");
    join([writer, keeper]);
    assert_eq!((db.stats().pinned_states, db.stats().pinned_bytes), (0, 0));
    machine.builder().restore("/backup", "/again", None).expect("it is restored");
    let again = machine.builder().open("/again").expect("it opens");
    let [a, b] = ["a", "b"].map(|name| again.open_keyspace(name).expect("it looks").expect("it is there"));
    let mut newest = 0;
    for key in [*b"k\0", *b"k\x01", *b"k\x02"] {
        let [left, right] = [&a, &b].map(|space| space.get(key).expect("it reads").expect("it is there"));
        assert_eq!(left, right, "{engine}: one moment of both");
        newest = newest.max(u32::from_be_bytes(left[..4].try_into().expect("four bytes")));
    }
    assert!(newest >= 39, "{engine}: {newest}");
}

#[test]
fn a_backup_during_writes_and_maintenance_is_consistent() {
    on_every_engine(200, back_up_during_writes);
}
