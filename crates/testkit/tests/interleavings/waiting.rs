//! Sync rounds: each waiting thread is woken, with and without background work.

use std::sync::atomic::{AtomicU32, Ordering};

use sheaf_sim::{CallClass, Fault, FaultKind, KeepChoice};

use super::*;

fn durable_writers(engine: &str, writers: usize) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let threads: Vec<_> = (0..writers)
        .map(|writer| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            spawn(move || {
                for round in 0..2 {
                    insert_durably(&db, &keyspace, &format!("{writer}.{round}"), "x");
                }
            })
        })
        .collect();
    join(threads);
    assert!(db.stats().durable_seq >= db.stats().visible_seq);
}

#[test]
fn durable_writers_without_a_background_all_return() {
    on_every_engine(600, |engine| durable_writers(engine, 3));
}

fn writers_of_mode(batching: sheaf::GroupCommitMode) {
    let machine = ModelMachine::default();
    let db = machine.builder().group_commit_mode(batching).open("/db").expect("it opens");
    let keyspace = open_keyspace(&db, "a", "flat");
    let threads = (0..3).map(|writer| {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || insert_durably(&db, &keyspace, &format!("{writer}"), "x"))
    });
    join(threads.collect::<Vec<_>>());
    assert!(db.stats().durable_seq >= db.stats().visible_seq);
}

#[test]
fn writers_return_in_other_group_commit_modes() {
    explore(200, || writers_of_mode(sheaf::GroupCommitMode::SyncPerWait));
    explore(200, || writers_of_mode(sheaf::GroupCommitMode::SyncPerThread));
    explore(200, || writers_of_mode(sheaf::GroupCommitMode::Blocking));
}

fn durable_writers_during_maintenance(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            spawn(move || insert_durably(&db, &keyspace, &format!("{writer}"), "x"))
        })
        .collect();
    let pump = {
        let db = db.clone();
        spawn(move || _ = db.pump().expect("it pumps"))
    };
    join(writers.into_iter().chain([pump]));
}

#[test]
fn a_finished_tick_wakes_every_waiter() {
    on_every_engine(600, durable_writers_during_maintenance);
}

fn rounds_during_root_writes(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    // Sequence numbers are reserved in chunks of 64: one of the writers writes ROOT, which delays
    // rounds.
    for n in 0..60 {
        keyspace.insert(format!("{n}"), "x").expect("it inserts");
    }
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            spawn(move || {
                for n in 0..3 {
                    insert_durably(&db, &keyspace, &format!("{writer}.{n}"), "y");
                }
            })
        })
        .collect();
    join(writers);
}

#[test]
fn a_round_delayed_by_root_wakes_every_waiter() {
    on_every_engine(400, rounds_during_root_writes);
}

/// Three writers commit several times, so that leaders collect followers: some arrive in time and
/// some do not, but each must return.
fn gathering_leaders(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (db, keyspace) = (db.clone(), keyspace.clone());
            spawn(move || {
                for n in 0..4 {
                    insert_durably(&db, &keyspace, &format!("{writer}.{n}"), "y");
                }
            })
        })
        .collect();
    join(writers);
    assert_eq!(keyspace.len().expect("it counts"), 12);
}

#[test]
fn group_commit_leaders_wake_every_follower() {
    on_every_engine(600, gathering_leaders);
}

/// Writers are throttled because the log exceeds its limit, with and without GC that ends the
/// throttling.
fn throttled_writers(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..400 {
        keyspace.insert(format!("{}", n % 5), vec![b'x'; 300]).expect("it inserts");
    }
    // Engines that flush have a journal that is freed without further writes.
    assert!(engine != "flat" || db.stats().throttles > 0, "no writer was throttled");
    let writers: Vec<_> = (0..2)
        .map(|writer| {
            let keyspace = keyspace.clone();
            spawn(move || {
                for n in 0..4 {
                    keyspace.insert(format!("{writer}.{n}"), vec![b'y'; 300]).expect("it inserts");
                }
            })
        })
        .collect();
    let pump = {
        let db = db.clone();
        spawn(move || _ = db.pump().expect("it pumps"))
    };
    join(writers.into_iter().chain([pump]));
    assert_eq!(keyspace.len().expect("it counts"), 13);
}

#[test]
fn throttled_writers_resume() {
    on_every_engine(150, throttled_writers);
}

/// A sync fails while other threads wait to lead a round or to write ROOT. None of them may
/// continue as if it had succeeded. Commits acknowledged as durable survive a power cut, and the
/// database opens. (Fails if a round or a ROOT write does not check again when its turn comes:
/// files of the failed round are in no list of unsynced files any more.)
fn rounds_and_roots_beside_a_failed_sync(engine: &str, nth: u64) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    machine.disk.set_faults(Fault::new(CallClass::Sync, FaultKind::Io).on(".seg").nth(nth));
    let writers: Vec<_> = (0..2u32)
        .map(|writer| {
            let (db, keyspace, disk) = (db.clone(), keyspace.clone(), machine.disk.clone());
            let acknowledged = Arc::new(AtomicU32::new(0));
            let told = Arc::clone(&acknowledged);
            let thread = spawn(move || {
                for n in 0..6 {
                    let mut batch = db.batch();
                    let key = format!("{writer}.{n}");
                    batch.durability(Durability::Sync).insert(&keyspace, key, vec![b'v'; 900]);
                    match batch.commit() {
                        Ok(_) => told.store(n + 1, Ordering::Relaxed),
                        Err(error) => {
                            assert!(disk.injected() > 0, "{error}");
                            return;
                        }
                    }
                }
            });
            (writer, acknowledged, thread)
        })
        .collect();
    let upkeep = {
        let db = db.clone();
        spawn(move || while matches!(db.pump(), Ok(true)) {})
    };
    let told: Vec<_> = writers
        .into_iter()
        .map(|(writer, acknowledged, thread)| {
            join([thread]);
            (writer, acknowledged.load(Ordering::Relaxed))
        })
        .collect();
    join([upkeep]);
    let _ = db.pump();
    let after = ModelMachine { disk: machine.disk.power_cut(&KeepChoice::None), ..ModelMachine::default() };
    let db = after.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for (writer, count) in told {
        for n in 0..count {
            let key = format!("{writer}.{n}");
            assert!(keyspace.contains_key(&key).expect("it reads"), "{engine}: {key} was durable");
        }
    }
}

#[test]
fn a_failed_sync_stops_every_waiting_thread() {
    for nth in [1, 2, 4] {
        let scenario = move |engine: &str| rounds_and_roots_beside_a_failed_sync(engine, nth);
        explore(200, move || scenario("flat"));
        explore(40, move || scenario("flex"));
    }
}
