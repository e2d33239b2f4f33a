//! Lock-free readers during splits, GC and drops.

use std::collections::BTreeMap;

use super::*;

/// Iterates over the keyspace while it grows: old pairs are returned once, and no pair twice.
fn iterate_during_growth(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..20 {
        keyspace.insert(format!("old{n}"), "x").expect("it inserts");
    }
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for n in 0..20 {
                keyspace.insert(format!("new{n}"), "y").expect("it inserts");
            }
        })
    };
    let reader = {
        let keyspace = keyspace.clone();
        spawn(move || {
            let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            for pair in keyspace.iter().expect("it begins") {
                *seen.entry(pair.expect("it reads").0.to_vec()).or_default() += 1;
            }
            for n in 0..20 {
                assert_eq!(seen.get(format!("old{n}").as_bytes()), Some(&1), "old{n} of {seen:?}");
            }
            assert!(seen.values().all(|count| *count == 1), "a key twice: {seen:?}");
        })
    };
    join([writer, reader]);
}

#[test]
fn an_iteration_during_splits_yields_every_pair_once() {
    on_every_engine(600, iterate_during_growth);
}

/// A key that is always present is always found, during splits, GC and rewrites of other keys.
fn get_during_gc(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("stays", "here").expect("it inserts");
    for n in 0..120 {
        keyspace.insert(format!("{}", n % 5), vec![b'x'; 200]).expect("it inserts");
    }
    db.persist().expect("it persists");
    let maintenance = {
        let db = db.clone();
        spawn(move || {
            for _ in 0..3 {
                db.pump().expect("it pumps");
            }
        })
    };
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for n in 0..8u32 {
                keyspace.insert("moves", n.to_le_bytes()).expect("it inserts");
                if n % 4 == 3 {
                    keyspace.remove("1").expect("it removes");
                }
            }
        })
    };
    let reader = {
        let keyspace = keyspace.clone();
        spawn(move || {
            let mut last = None;
            for _ in 0..8 {
                assert_eq!(text(keyspace.get("stays").expect("it reads")).as_deref(), Some("here"));
                let now = keyspace.get("moves").expect("it reads").map(|v| v[0]);
                assert!(now >= last, "{now:?} after {last:?}");
                last = now;
            }
        })
    };
    join([maintenance, writer, reader]);
}

#[test]
fn gets_during_gc_are_correct() {
    on_every_engine(150, get_during_gc);
}

/// A snapshot taken before a drop shows the keyspace, also while background work retires it.
fn view_during_drop(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("k", "v").expect("it inserts");
    let dropper = {
        let db = db.clone();
        spawn(move || assert!(db.drop_keyspace("a").expect("it drops")))
    };
    let maintenance = {
        let db = db.clone();
        spawn(move || {
            for _ in 0..3 {
                db.pump().expect("it pumps");
            }
        })
    };
    let reader = {
        let db = db.clone();
        spawn(move || {
            let view = db.snapshot().expect("a snapshot");
            if let Ok(keyspace) = view.keyspace("a") {
                for _ in 0..3 {
                    assert_eq!(text(keyspace.get("k").expect("it reads")).as_deref(), Some("v"));
                    sheaf_platform::sync::thread::yield_now();
                }
                assert_eq!(keyspace.iter().expect("it begins").count(), 1);
            }
        })
    };
    join([dropper, maintenance, reader]);
}

#[test]
fn a_view_shows_a_dropped_keyspace_while_it_is_retired() {
    on_every_engine(600, view_during_drop);
}

/// Old versions: a view repeats its content while its keys are changed, moved and trimmed.
fn view_during_updates(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..6 {
        keyspace.insert(format!("{n}"), "old").expect("it inserts");
    }
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || {
            for n in 0..6 {
                match n % 3 {
                    0 => keyspace.remove(format!("{n}")).expect("it removes"),
                    _ => keyspace.insert(format!("{n}"), "new").expect("it inserts"),
                }
            }
        })
    };
    let maintenance = {
        let db = db.clone();
        spawn(move || _ = db.pump().expect("it pumps"))
    };
    let reader = {
        let db = db.clone();
        spawn(move || {
            let view = db.snapshot().expect("a snapshot");
            let space = view.keyspace("a").expect("it is there");
            let state = || {
                let pairs: BTreeMap<Vec<u8>, Vec<u8>> = space
                    .iter()
                    .expect("it begins")
                    .map(|pair| pair.map(|(k, v)| (k.to_vec(), v.to_vec())).expect("it reads"))
                    .collect();
                for n in 0..6 {
                    let key = format!("{n}").into_bytes();
                    let got = space.get(&key).expect("it reads").map(|v| v.to_vec());
                    assert_eq!(got.as_ref(), pairs.get(&key), "get and iteration differ at {n}");
                }
                pairs
            };
            assert_eq!(state(), state(), "the view changed");
        })
    };
    join([writer, maintenance, reader]);
}

#[test]
fn view_reads_are_repeatable() {
    on_every_engine(300, view_during_updates);
}

/// A view taken during a flush, before the next commit, must show the old state. A flush thread
/// uses a copy of the view registry without that view; the copy gets older while the thread waits
/// for the other one. (Fails if versions that ended after the copy was made are dropped.)
fn view_during_flush(engine: &str) {
    const KEYS: u8 = 2;
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let write = move |round: u8| {
        let all = keyspace.clone();
        (0..KEYS).for_each(|n| all.insert([b'k', n], vec![round; 1000]).expect("it inserts"));
    };
    (0..10).for_each(&write); // until a checkpoint is due
    let movers = [(), ()].map(|()| {
        let db = db.clone();
        spawn(move || (0..3).for_each(|_| _ = db.pump().expect("it pumps")))
    });
    let viewer = spawn(move || {
        for round in 10..12 {
            let view = db.snapshot().expect("a snapshot");
            let space = view.keyspace("a").expect("it is there");
            write(round);
            for n in 0..KEYS {
                let got = space.get([b'k', n]).expect("it reads").map(|value| value[0]);
                assert_eq!(got, Some(round - 1), "of key {n}");
            }
            if let Ok(pairs) = space.iter() {
                assert_eq!(pairs.count(), usize::from(KEYS));
            }
        }
    });
    join(movers.into_iter().chain([viewer]));
}

#[test]
fn a_view_taken_during_a_flush_is_complete() {
    on_every_engine(300, view_during_flush);
}
