//! Keyspaces that are created or dropped during maintenance.

use super::*;

/// A keyspace is created and filled while a checkpoint begins that does not include it:
/// acknowledged data must be present, now and after another opening. (Fails if the checkpoint lists
/// the keyspaces before it takes its position.)
fn create_during_checkpoint(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let upkeep = {
        let db = db.clone();
        spawn(move || {
            for round in 0..8 {
                (0..4).for_each(|n| keyspace.insert([b'k', n], vec![round; 1000]).expect("it inserts"));
                db.pump().expect("it pumps"); // sometimes a checkpoint is due
            }
        })
    };
    const NEW: [&str; 3] = ["b", "c", "d"];
    for name in NEW {
        open_keyspace(&db, name, engine).insert("key", vec![b'v'; 200]).expect("it inserts");
    }
    join([upkeep]);
    let check = |db: &Database| {
        for name in NEW {
            let got =
                open_keyspace(db, name, engine).get("key").expect("it reads").map(|value| value.to_vec());
            assert_eq!(got, Some(vec![b'v'; 200]), "{engine}: {name}");
        }
    };
    let check_next = || check(&ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() }.open());
    check_next();
    while db.pump().expect("it pumps") {} // until the running work ends
    check(&db);
    check_next();
}

#[test]
fn a_keyspace_created_during_a_checkpoint_is_not_lost() {
    on_every_engine(600, create_during_checkpoint);
}

/// A keyspace is dropped and retired, while two threads flush frozen memtables of it and of another
/// keyspace.
fn drop_during_flush(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let [kept, dropped] = ["kept", "dropped"].map(|name| open_keyspace(&db, name, engine));
    for n in 0..24u8 {
        kept.insert([b'k', n % 5], vec![n; 400]).expect("it inserts");
        dropped.insert([b'k', n], vec![n; 400]).expect("it inserts");
    }
    let movers = [(), ()].map(|()| {
        let db = db.clone();
        spawn(move || (0..6).for_each(|_| _ = db.pump().expect("it pumps")))
    });
    drop(dropped);
    assert!(db.drop_keyspace("dropped").expect("it drops"));
    join(movers);
    while db.pump().expect("it pumps") {}
    let check = |db: &Database| {
        for n in 19..24u8 {
            let got = open_keyspace(db, "kept", engine)
                .get([b'k', n % 5])
                .expect("it reads")
                .map(|value| value.to_vec());
            assert_eq!(got, Some(vec![n; 400]), "{engine}: key {}", n % 5);
        }
        assert!(db.open_keyspace("dropped").expect("it looks").is_none());
    };
    check(&db);
    check(&ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() }.open());
}

#[test]
fn dropping_a_keyspace_during_a_flush_affects_no_other() {
    on_every_engine(300, drop_during_flush);
}
