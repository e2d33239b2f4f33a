//! Conditional writes: each takes effect atomically, on the value that it saw.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_sim::KeepChoice;
use sheaf_testkit::recording_disk::{DiskCallKind, RecordingDisk};

use super::*;

/// One thread inserts a key and removes it, and another swaps it. A successful swap must not bring
/// back a removed key.
fn swap_during_removal(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let (mine, theirs) = (keyspace.clone(), keyspace.clone());
    let other = spawn(move || {
        mine.insert("k", "1").expect("it inserts");
        mine.remove("k").expect("it removes");
    });
    let swap = spawn(move || {
        if theirs.compare_and_swap("k", Some(b"1"), Some(b"2")).expect("it swaps") {
            // The swap happened between the insert and the removal.
            theirs.insert("swapped", "yes").expect("it inserts");
        }
    });
    join([other, swap]);
    assert_eq!(text(keyspace.get("k").expect("it reads")), None, "the removal came last");
}

#[test]
fn a_swap_never_undoes_a_removal() {
    on_every_engine(600, swap_during_removal);
}

/// A key is inserted and removed while a batch expects a value: the expected value must have been
/// present at the commit.
fn expect_during_removal(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let mine = keyspace.clone();
    let other = spawn(move || {
        mine.insert("k", "1").expect("it inserts");
        mine.remove("k").expect("it removes");
    });
    let (db2, theirs) = (db.clone(), keyspace.clone());
    let batch = spawn(move || {
        let mut batch = db2.batch();
        batch.insert(&theirs, "k", "2").expect_value(&theirs, "k", Some(b"1"));
        match batch.commit() {
            Ok(()) | Err(sheaf::Error::Conflict { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    });
    join([other, batch]);
    assert_eq!(text(keyspace.get("k").expect("it reads")), None, "the removal came last");
}

#[test]
fn a_batch_never_commits_on_an_outdated_expectation() {
    on_every_engine(600, expect_during_removal);
}

fn updates_all_count(engine: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let add = |keyspace: &Keyspace| {
        let count = |old: Option<&[u8]>| old.map_or(0, |old| old[0]) + 1;
        keyspace.update("n", |old| Some(vec![count(old)])).expect("it updates");
    };
    let threads: Vec<_> = (0..3)
        .map(|_| {
            let keyspace = keyspace.clone();
            spawn(move || (0..2).for_each(|_| add(&keyspace)))
        })
        .collect();
    join(threads);
    assert_eq!(keyspace.get("n").expect("it reads").as_deref(), Some(&[6u8][..]));
}

#[test]
fn updates_of_three_threads_all_count() {
    on_every_engine(400, updates_all_count);
}

/// During an update the key is rewritten many times and the segments of its old versions are freed.
/// The old address of the key may then hold the key again, with another value.
fn update_over_reuse(engine: &str) {
    let aside = spawn(|| (0..3).for_each(|_| sheaf_platform::sync::thread::yield_now()));
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("k", "0").expect("it inserts");
    let (other, pumped) = (keyspace.clone(), db.clone());
    let mut runs = 0u32;
    let mut last = None;
    keyspace
        .update("k", |old| {
            last = old.map(<[u8]>::to_vec);
            runs += 1;
            if runs == 1 {
                // Until a slot that was used before holds the key.
                for n in 1..260u32 {
                    other.insert("k", format!("{n}")).expect("it inserts");
                    if n % 20 == 0 {
                        pumped.persist().expect("it persists");
                        pumped.pump().expect("it pumps");
                    }
                }
            }
            Some(vec![7])
        })
        .expect("it updates");
    assert_eq!(runs, 2, "it saw {last:?} and wrote over something else");
    join([aside]); // the directed scheduler needs a second thread
}

#[test]
fn an_update_over_reused_segments_sees_the_change() {
    on_every_engine(4, update_over_reuse);
}

fn batches_are_whole_in_views(engine: &str, other: &str) {
    let machine = ModelMachine::default();
    let db = machine.open();
    let (a, b) = (open_keyspace(&db, "a", engine), open_keyspace(&db, "b", other));
    let writer = {
        let (db, a, b) = (db.clone(), a.clone(), b.clone());
        spawn(move || {
            for n in 0..3u8 {
                let mut batch = db.batch();
                batch.insert(&a, "k", [n]).insert(&b, "k", [n]);
                batch.commit().expect("it commits");
            }
        })
    };
    let reader = {
        let db = db.clone();
        spawn(move || {
            let mut last = None;
            for _ in 0..3 {
                let view = db.snapshot().expect("a snapshot");
                let read = |name: &str| {
                    view.keyspace(name).expect("it is there").get("k").expect("it reads").map(|v| v[0])
                };
                let (left, right) = (read("a"), read("b"));
                assert_eq!(left, right, "half a batch");
                assert!(left >= last, "time went back");
                last = left;
            }
        })
    };
    join([writer, reader]);
}

#[test]
fn views_show_whole_batches_in_order() {
    explore(300, || batches_are_whole_in_views("flat", "ledger"));
    explore(300, || batches_are_whole_in_views("flat", "flat"));
    for other in ["flex", "cedrus", "kreon", "delsm"] {
        explore(100, move || batches_are_whole_in_views("flat", other));
    }
}

/// Collects the disks that `take` returns before each sync of a log from now on.
fn before_syncs_of_logs(
    recording_disk: &RecordingDisk,
    machine: &ModelMachine,
    take: fn(&SimDisk) -> Vec<SimDisk>,
) -> Arc<Mutex<Vec<SimDisk>>> {
    let cuts: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
    recording_disk.set_observer({
        let (disk, cuts) = (machine.disk.clone(), Arc::clone(&cuts));
        move |class, path| {
            if class == DiskCallKind::Sync && path.to_string_lossy().ends_with(".seg") {
                cuts.lock().expect("one holder").extend(take(&disk));
            }
        }
    });
    cuts
}

/// Scenario 5, in the log. Durable keys are overwritten without a sync while GC runs. The power
/// fails before each sync of a log, and each key must still have a value. (Fails if GC does not
/// wait, before a victim leaves ROOT, until the commits that superseded its entries are durable.)
fn overwrite_during_gc(engine: &str) {
    const KEYS: u32 = 40;
    let machine = ModelMachine::default();
    let recording_disk = RecordingDisk::new(Arc::new(machine.disk.clone()));
    let db = machine.builder().disk(Arc::new(recording_disk.clone())).open("/db").expect("it opens");
    let keyspace = open_keyspace(&db, "a", engine);
    // One live key and three dead ones in each segment, so each victim holds a key.
    for n in 0..KEYS {
        keyspace.insert(format!("{n}"), vec![b'x'; 300]).expect("it inserts");
        (0..3).for_each(|_| keyspace.insert("dies", vec![b'x'; 900]).expect("it inserts"));
    }
    assert!(engine != "flat" || db.stats().throttles > 0, "there is nothing to clean");
    db.persist().expect("it persists");
    let cuts =
        before_syncs_of_logs(&recording_disk, &machine, |disk| vec![disk.power_cut(&KeepChoice::None)]);
    let maintenance = {
        let db = db.clone();
        spawn(move || (0..2).for_each(|_| _ = db.pump().expect("it pumps")))
    };
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || {
            (0..KEYS).for_each(|n| keyspace.insert(format!("{n}"), "y").expect("it inserts"));
        })
    };
    join([maintenance, writer]);
    recording_disk.clear_observer();
    let mut cuts = std::mem::take(&mut *cuts.lock().expect("one holder"));
    cuts.dedup_by_key(|disk| disk.hash());
    for disk in cuts {
        let after = ModelMachine { disk, ..ModelMachine::default() };
        let db = after.open();
        let keyspace = open_keyspace(&db, "a", engine);
        for n in 0..KEYS {
            assert!(keyspace.contains_key(format!("{n}")).expect("it reads"), "key {n} is lost");
        }
    }
}

#[test]
fn a_value_replaced_by_an_unsynced_write_survives_gc_and_a_power_cut() {
    on_every_engine(300, overwrite_during_gc);
}

/// A compaction copies records while a writer replaces them one after another, without a sync. The
/// power fails before each sync of a log, and at the end. Each key must have a value, and the new
/// values must belong to the first commits. (Fails if records of commits that are not durable are
/// copied.)
fn overwrite_during_compaction(engine: &str) {
    const KEYS: u32 = 24;
    let machine = ModelMachine::default();
    let recording_disk = RecordingDisk::new(Arc::new(machine.disk.clone()));
    let db = machine.builder().disk(Arc::new(recording_disk.clone())).open("/db").expect("it opens");
    let keyspace = open_keyspace(&db, "a", engine);
    let key = |n: u32| format!("{:02}", n * 7 % KEYS);
    (0..KEYS).for_each(|n| keyspace.insert(key(n), vec![b'x'; 200]).expect("it inserts"));
    let cuts = before_syncs_of_logs(&recording_disk, &machine, |disk| {
        vec![disk.power_cut(&KeepChoice::None), disk.kill()]
    });
    let compaction = {
        let keyspace = keyspace.clone();
        spawn(move || _ = keyspace.compact().expect("it compacts"))
    };
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || (0..KEYS).for_each(|n| keyspace.insert(key(n), "y").expect("it inserts")))
    };
    join([compaction, writer]);
    recording_disk.clear_observer();
    cuts.lock().expect("one holder").push(machine.disk.power_cut(&KeepChoice::None));
    (0..KEYS).for_each(|n| assert_eq!(keyspace.get(key(n)).expect("it reads").as_deref(), Some(&b"y"[..])));
    let mut cuts = std::mem::take(&mut *cuts.lock().expect("one holder"));
    cuts.dedup_by_key(|disk| disk.hash());
    for disk in cuts {
        let after = ModelMachine { disk, ..ModelMachine::default() };
        let db = after.open();
        let keyspace = open_keyspace(&db, "a", engine);
        let news = |keyspace: &Keyspace| -> Vec<bool> {
            let value = |n| keyspace.get(key(n)).expect("it reads");
            (0..KEYS).map(|n| value(n).is_some_and(|value| value[0] == b'y')).collect()
        };
        let shown = news(&keyspace);
        assert!(shown.is_sorted_by(|a, b| a >= b), "not the first commits: {shown:?}");
        // The next opening must not use the numbers of lost commits again.
        insert_durably(&db, &keyspace, "later", "z");
        let later = ModelMachine { disk: after.disk.kill(), ..ModelMachine::default() };
        assert_eq!(news(&open_keyspace(&later.open(), "a", engine)), shown, "lost commits are back");
    }
}

#[test]
fn a_compaction_during_unsynced_writes_survives_a_power_cut() {
    for engine in ["flat-ordered", "kreon"] {
        explore(60, move || overwrite_during_compaction(engine)); // engines with compaction
    }
}

/// A batch fills segments that were only preallocated when the state for ROOT was collected. ROOT
/// must not list them as sealed, because recovery after a kill would not scan them. (Fails without
/// the preallocated segments in `build_root`.)
fn batch_during_root_write(engine: &str) {
    let machine = ModelMachine::default();
    let recording_disk = RecordingDisk::new(Arc::new(machine.disk.clone()));
    let db = machine.builder().disk(Arc::new(recording_disk.clone())).open("/db").expect("it opens");
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("staged", vec![0; 2000]).expect("it inserts");
    // A ROOT is due, because a blob file can be freed.
    keyspace.insert("staged", "not any more").expect("it inserts");
    db.persist().expect("it persists");
    let acknowledged = Arc::new(AtomicBool::new(false));
    let kills: Arc<Mutex<Vec<(bool, SimDisk)>>> = Arc::default();
    recording_disk.set_observer({
        let (disk, acknowledged, kills) =
            (machine.disk.clone(), Arc::clone(&acknowledged), Arc::clone(&kills));
        move |class, path| {
            if class == DiskCallKind::Sync && path.to_string_lossy().contains("ROOT.") {
                kills.lock().expect("one holder").push((acknowledged.load(Ordering::Relaxed), disk.kill()));
            }
        }
    });
    let maintenance = {
        let db = db.clone();
        spawn(move || (0..2).for_each(|_| _ = db.pump().expect("it pumps")))
    };
    let writer = {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            let mut batch = db.batch();
            for n in 0..9 {
                batch.insert(&keyspace, format!("{n}"), vec![1; 900]);
            }
            batch.commit().expect("it commits");
            acknowledged.store(true, Ordering::Relaxed);
        })
    };
    join([maintenance, writer]);
    recording_disk.clear_observer();
    for (is_acknowledged, disk) in std::mem::take(&mut *kills.lock().expect("one holder")) {
        let after = ModelMachine { disk, ..ModelMachine::default() };
        let db = after.open();
        let keyspace = open_keyspace(&db, "a", engine);
        for n in 0..9 {
            let is_there = keyspace.contains_key(format!("{n}")).expect("it reads");
            assert!(is_there || !is_acknowledged, "key {n} of an acknowledged batch is lost");
        }
    }
}

#[test]
fn a_kill_during_a_root_write_loses_no_batch() {
    on_every_engine(1000, batch_during_root_write);
}
