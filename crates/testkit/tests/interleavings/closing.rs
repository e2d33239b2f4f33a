//! A close during writes, and the next opening.

use sheaf::Error;

use super::*;

/// Writers continue while the database is closed and opened again: acknowledged data is present,
/// and the old writers do not affect the new opening.
fn reopen_during_writes(engine: &str, writes: u32) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..58 {
        keyspace.insert(format!("before{n}"), "x").expect("it inserts");
    }
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for n in 0..writes {
                // Some values are large and become blobs.
                let value = vec![b'v'; if n % 3 == 1 { 1500 } else { 300 }];
                match keyspace.insert(format!("beside{n}"), value) {
                    Ok(()) => {}
                    Err(Error::Closed) => break,
                    Err(other) => panic!("{other}"),
                }
            }
        })
    };
    db.close().expect("it closes");
    let db = machine.open();
    let again = open_keyspace(&db, "a", engine);
    for n in 0..4 {
        again.insert(format!("after{n}"), vec![b'w'; 1500]).expect("it inserts");
    }
    join([writer]);
    let check = |db: &Database| {
        let again = open_keyspace(db, "a", engine);
        for n in 0..58 {
            assert!(again.contains_key(format!("before{n}")).expect("it reads"), "before{n}");
        }
        for n in 0..4 {
            assert_eq!(again.get(format!("after{n}")).expect("it reads").map(|v| v.len()), Some(1500));
        }
    };
    check(&db);
    db.close().expect("it closes");
    check(&machine.open());
}

#[test]
fn a_close_during_writes_does_not_affect_the_next_open() {
    on_every_engine(300, |engine| reopen_during_writes(engine, 12));
}

/// Two threads close the database: when either call returns, it is closed and can be opened.
fn two_closers(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..30 {
        keyspace.insert(format!("{}", n % 3), vec![b'x'; 300]).expect("it inserts");
    }
    let (first, second) = (db.clone(), db);
    let next = machine.clone();
    let closer = spawn(move || match first.close() {
        Ok(()) | Err(Error::Closed) => {}
        Err(other) => panic!("{other}"),
    });
    match second.close() {
        Ok(()) | Err(Error::Closed) => {}
        Err(other) => panic!("{other}"),
    }
    let db = next.open();
    assert!(open_keyspace(&db, "a", engine).contains_key("2").expect("it reads"));
    open_keyspace(&db, "a", engine).insert("new", "life").expect("it inserts");
    join([closer]);
    db.persist().expect("it persists");
    drop(db);
    assert!(open_keyspace(&next.open(), "a", engine).contains_key("new").expect("it reads"));
}

#[test]
fn a_database_is_closed_when_any_close_returns() {
    on_every_engine(300, two_closers);
}

/// Maintenance runs on threads that the database did not start (like a committer that makes space),
/// while it is closed and opened again. It must not affect the new opening. (Fails if the close
/// does not wait for running maintenance, or if a thread does not check for the close after it got
/// a lock.)
fn reopen_during_maintenance(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..40u8 {
        keyspace.insert([b'k', n % 7], vec![n; 500]).expect("it inserts");
    }
    let upkeep = [(), ()].map(|()| {
        let db = db.clone();
        spawn(move || {
            for _ in 0..5 {
                match db.pump() {
                    Ok(_) | Err(Error::Closed) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        })
    });
    db.close().expect("it closes");
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 40..60u8 {
        keyspace.insert([b'k', n % 7], vec![n; 500]).expect("it inserts");
        db.pump().expect("it pumps");
    }
    join(upkeep);
    let check = |db: &Database| {
        let keyspace = open_keyspace(db, "a", engine);
        for n in 53..60u8 {
            let got = keyspace.get([b'k', n % 7]).expect("it reads").map(|value| value.to_vec());
            assert_eq!(got, Some(vec![n; 500]), "{engine}: key {}", n % 7);
        }
    };
    check(&db);
    db.close().expect("it closes");
    check(&machine.open());
}

#[test]
fn a_close_during_maintenance_does_not_affect_the_next_open() {
    on_every_engine(300, reopen_during_maintenance);
}
