//! Scenarios about order: swaps, visibility, snapshots, failed writes, dropped keyspaces.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sheaf::{Database, Error};
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};
use sheaf_testkit::crash::explore::ExplorePlan;
use sheaf_testkit::crash::machine::{DATABASE_DIR, TestMachine};

use super::{keyspace, put_durably, steps, survives, text};

/// Scenario 12. A keyspace that is dropped, created again and cleared is complete or absent after
/// any power cut, and no id is used twice.
#[test]
fn a_dropped_keyspace_is_complete_or_absent_and_its_id_is_not_reused() {
    let steps = steps(
        "0.2=40 B[0.3=30,1.3=600] drop0 work 0.2=50 B[0.4=9,1.4=9] work clear1 1.2=30 drop1 work tick 1.5=10 work",
    );
    let report = survives(
        &steps,
        &ExplorePlan { second_crash_rate: 100, max_states: 1_500, ..ExplorePlan::default() },
    );
    assert!(report.images > 300, "{report}");

    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let mut numbers = Vec::new();
    for _ in 0..5 {
        keyspace(&db, "again").insert("key", b"value").unwrap();
        numbers.push(db.keyspaces()[0].id);
        assert!(db.drop_keyspace("again").unwrap());
        machine.run_background(&db).unwrap();
    }
    let next = machine.after_power_cut(&KeepChoice::None);
    let db = next.open().unwrap();
    assert!(db.open_keyspace("again").unwrap().is_none());
    assert!(keyspace(&db, "again").is_empty().unwrap(), "an old pair shows in a new keyspace");
    numbers.push(db.keyspaces()[0].id);
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

fn threaded(sim: &SimDisk) -> Database {
    Database::builder().disk(Arc::new(sim.clone())).tiny(true).open(DATABASE_DIR).expect("it opens")
}

/// Scenario 13. Two swaps of the same value never both succeed. Writes of one key are applied in
/// the order of their seqs, also by recovery.
#[test]
fn two_swaps_of_one_value_never_both_succeed() {
    let sim = SimDisk::new();
    let db = threaded(&sim);
    let k = keyspace(&db, "k");
    k.insert("count", 0u64.to_le_bytes()).unwrap();
    let number = |v: &[u8]| u64::from_le_bytes(v.try_into().unwrap());
    let won = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let old = k.get("count").unwrap().unwrap();
                    let new = (number(&old) + 1).to_le_bytes();
                    if k.compare_and_swap("count", Some(&old), Some(&new)).unwrap() {
                        won.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(number(&k.get("count").unwrap().unwrap()), won.load(Ordering::Relaxed));
    let killed = sim.kill();
    drop((k, db));
    let db = threaded(&killed);
    assert_eq!(number(&keyspace(&db, "k").get("count").unwrap().unwrap()), won.load(Ordering::Relaxed));
}

/// Scenario 14. A value that a reader has seen survives a kill.
#[test]
fn a_value_that_was_read_survives_a_kill() {
    let sim = SimDisk::new();
    let db = threaded(&sim);
    let k = keyspace(&db, "k");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u32.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                k.insert("n", n.to_be_bytes()).unwrap();
            }
        });
        for _ in 0..200 {
            let seen = k.get("n").unwrap();
            let killed = sim.kill();
            let found = keyspace(&threaded(&killed), "k").get("n").unwrap();
            assert!(found >= seen, "read {seen:?}, after the kill there is {found:?}");
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Fails the `nth` write into the log during a batch of `values` new values, which also overwrites
/// a durable one. The batch must be complete or absent after each crash. Returns whether the
/// failure poisoned the database; `None` if the batch makes fewer writes, and therefore commits.
fn fail_write_of_batch(failure: FaultKind, values: u8, nth: u64) -> Option<bool> {
    let name = format!("{failure:?}, write {nth} of a batch of {values} values");
    let machine = TestMachine::new();
    let db = machine.open().expect("the database opens");
    let k = keyspace(&db, "k");
    put_durably(&db, &k, "before", b"1").expect("a durable insert");
    k.insert("buffered", b"1").expect("an insert");
    machine.sim.set_faults(Fault::new(CallClass::Write, failure).on(".seg").nth(nth));
    let mut batch = db.batch();
    for n in 0..values {
        batch.insert(&k, format!("new{n}"), [n; 700]);
    }
    batch.insert(&k, "before", b"2");
    let answer = batch.commit();
    machine.sim.set_faults(FaultPlan::default());
    if machine.sim.injected() == 0 {
        assert!(answer.is_ok(), "{name}: {answer:?}");
        return None;
    }
    let is_poisoned = matches!(answer, Err(Error::Poisoned { .. }));
    assert_eq!(db.stats().poisoned.is_some(), is_poisoned, "{name}: {answer:?}");
    let visible = if answer.is_ok() { "2" } else { "1" };
    assert_eq!(text(&k, "before").as_deref(), Some(visible), "{name}: {answer:?}");
    if is_poisoned {
        assert!(matches!(k.insert("after", b""), Err(Error::Poisoned { .. })), "{name}");
        assert!(matches!(db.persist(), Err(Error::Poisoned { .. })), "{name}");
    }
    drop((k, db));
    let cuts = machine.sim.pending().keeps(8, 32, nth);
    for machine in cuts.iter().map(|keep| machine.after_power_cut(keep)).chain([machine.after_kill()]) {
        let db = machine.open().expect("the database opens again");
        let k = keyspace(&db, "k");
        let is_committed = text(&k, "before").expect("the old or the new value") == "2";
        let found = (0..values).filter(|n| text(&k, &format!("new{n}")).is_some()).count();
        let expected = if is_committed { usize::from(values) } else { 0 };
        assert_eq!(found, expected, "{name}: a part of the batch");
        assert!(is_poisoned || is_committed == answer.is_ok(), "{name}: {answer:?}");
        assert_eq!(text(&k, "after"), None);
    }
    Some(is_poisoned)
}

/// Scenario 16. If a write fails after the commit has its number, the database is poisoned, no
/// later commit succeeds, and a reopening finds a prefix. Each write of a batch into the log fails
/// in turn, also after half of it. A larger batch continues in a further segment: it also writes a
/// seal, and the headers of new segments. A failed header precedes the number, so it fails only the
/// batch.
#[test]
fn a_write_that_fails_after_its_reservation_poisons() {
    for failure in [FaultKind::Io, FaultKind::NoSpace, FaultKind::Torn { sectors: 1 }] {
        for (values, least) in [(2, 1), (10, 3)] {
            let outcomes = (1..).map_while(|nth| fail_write_of_batch(failure, values, nth));
            let poisoned = outcomes.filter(|is_poisoned| *is_poisoned).count();
            assert!(poisoned >= least, "{failure:?}, {values} values: {poisoned} writes poison");
        }
    }
}

/// Scenario 21. A snapshot does not change during updates, GC and checkpoints. A snapshot taken
/// during commits shows each of them completely.
#[test]
fn a_snapshot_stays_exact_under_updates_and_cleaning() {
    let machine = TestMachine::new();
    let db = machine.open().unwrap();
    let k = keyspace(&db, "k");
    for n in 0..10 {
        k.insert(format!("key{n}"), [n; 500]).unwrap();
    }
    let snapshot = db.snapshot().unwrap();
    let state = |s: &sheaf::Snapshot| {
        let mut pairs: Vec<_> = s.keyspace("k").unwrap().iter().unwrap().map(Result::unwrap).collect();
        pairs.sort();
        pairs
    };
    let before = state(&snapshot);
    for round in 0..60u8 {
        k.insert(format!("key{}", round % 10), [round; 900]).unwrap();
        k.remove(format!("key{}", (round + 3) % 10)).unwrap();
        machine.tick(&db).unwrap();
        machine.run_background(&db).unwrap();
        assert!(state(&snapshot) == before, "round {round}");
    }
    assert!(db.stats().logs.iter().any(|log| log.freed_segments > 0), "nothing was cleaned");
    drop(snapshot);
    machine.run_background(&db).unwrap();

    let sim = SimDisk::new();
    let db = threaded(&sim);
    let (a, b) = (keyspace(&db, "a"), keyspace(&db, "b"));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0u32.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let mut batch = db.batch();
                batch.insert(&a, "n", n.to_le_bytes()).insert(&b, "n", n.to_le_bytes());
                batch.commit().unwrap();
            }
        });
        for _ in 0..2000 {
            let snapshot = db.snapshot().unwrap();
            let [a, b] = ["a", "b"].map(|name| snapshot.keyspace(name).unwrap().get("n").unwrap());
            assert_eq!(a, b, "half a batch in a snapshot");
        }
        done.store(true, Ordering::Relaxed);
    });
}
