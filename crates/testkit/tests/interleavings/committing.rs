//! Commits in the window during reads, kills, power cuts and failures (decisions/0027).

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use sheaf_platform::sync::thread::yield_now;
use sheaf_sim::{CallClass, Fault, FaultKind, KeepChoice};
use sheaf_testkit::recording_disk::RecordingDisk;

use super::*;

/// Opens a database on a slow disk. One copy at a time takes long: its commit stays in the window
/// for many steps of other threads, as if its thread were descheduled (scenario W33). A sync
/// returns long after the device has the bytes.
pub(super) fn open_on_a_slow_disk(machine: &ModelMachine) -> Database {
    const TURNS: usize = 40;
    let (recording_disk, is_slow) =
        (RecordingDisk::new(Arc::new(machine.disk.clone())), AtomicBool::new(false));
    recording_disk.on_append(move |_| {
        if !is_slow.swap(true, Ordering::Relaxed) {
            (0..TURNS).for_each(|_| yield_now());
            is_slow.store(false, Ordering::Relaxed);
        }
    });
    recording_disk.on_sync(|_| (0..TURNS).for_each(|_| yield_now()));
    machine.builder().disk(Arc::new(recording_disk)).open("/db").expect("it opens")
}

/// Number of keys, and of steps of a writer.
const KEYS: u8 = 3;
/// Number of reads of a thread that looks for changes.
const READS: u8 = 30;

/// Disk images as after a kill, each with the step that a thread has just observed. Steps only
/// increase, so the next opening must not show an earlier one.
#[derive(Clone)]
struct KillImages {
    disk: SimDisk,
    all: Arc<Mutex<Vec<(u8, SimDisk)>>>,
}

impl KillImages {
    fn record_step(&self, step: u8) {
        self.all.lock().expect("one holder").push((step, self.disk.kill()));
    }

    fn check(&self, engine: &str, step_of: fn(&Keyspace) -> u8) {
        let mut all = std::mem::take(&mut *self.all.lock().expect("one holder"));
        all.dedup_by_key(|(step, disk)| (*step, disk.hash()));
        for (step, disk) in all {
            let db = ModelMachine { disk, ..ModelMachine::default() }.open();
            let after = step_of(&open_keyspace(&db, "a", engine));
            assert!(after >= step, "{engine}: step {step} was seen, a kill made it {after}");
        }
    }
}

/// Scenarios W25 and W26: a writer makes steps by `change`, while a third thread leaves holes
/// before these commits. A kill at the time when the writer or a reader observes a step must not
/// undo the step.
fn observe_and_kill(engine: &str, change: fn(&Keyspace, u8), step_of: fn(&Keyspace) -> u8) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    (0..KEYS).for_each(|n| keyspace.insert([n], [0]).expect("it inserts"));
    let kills = KillImages { disk: machine.disk.clone(), all: Arc::default() };
    let other = {
        let keyspace = keyspace.clone();
        spawn(move || (0..5).for_each(|n| keyspace.insert("other", [n]).expect("it inserts")))
    };
    let writer = {
        let (keyspace, kills) = (keyspace.clone(), kills.clone());
        spawn(move || {
            for step in 1..=KEYS {
                change(&keyspace, step);
                kills.record_step(step);
            }
        })
    };
    let reader = {
        let (keyspace, kills) = (keyspace.clone(), kills.clone());
        spawn(move || {
            let mut seen = 0;
            for _ in 0..READS {
                let step = step_of(&keyspace);
                if step > seen {
                    kills.record_step(step);
                }
                seen = step;
            }
        })
    };
    join([other, writer, reader]);
    kills.check(engine, step_of);
}

/// Fails if a commit or a read of a key that is found does not wait for `visible`.
#[test]
fn committed_or_read_values_survive_a_kill() {
    fn change(keyspace: &Keyspace, step: u8) {
        keyspace.insert([0], [step]).expect("it inserts");
    }
    fn step_of(keyspace: &Keyspace) -> u8 {
        keyspace.get([0]).expect("it reads").expect("it is there")[0]
    }
    on_every_engine(200, |engine| observe_and_kill(engine, change, step_of));
}

/// Fails if a read of a missing key does not wait for the commit that may have removed the key.
#[test]
fn a_key_that_a_thread_did_not_find_stays_missing_after_a_kill() {
    fn change(keyspace: &Keyspace, step: u8) {
        keyspace.remove([step - 1]).expect("it removes");
    }
    /// Returns the number of removed keys: they are removed in order.
    fn step_of(keyspace: &Keyspace) -> u8 {
        let is_missing = |n: &u8| !keyspace.contains_key([*n]).expect("it reads");
        (0..KEYS).find(|n| !is_missing(n)).unwrap_or(KEYS)
    }
    on_every_engine(400, |engine| observe_and_kill(engine, change, step_of));
}

/// Scenario W30: a commit that was acknowledged as durable survives a power cut while other commits
/// are being copied. (Fails if a round does not wait until S is visible, or marks more than S
/// as durable.)
fn durable_commits_and_others(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    let cuts: Arc<Mutex<Vec<(String, SimDisk)>>> = Arc::default();
    let durable = [0, 1].map(|writer| {
        let (db, keyspace, cuts) = (db.clone(), keyspace.clone(), Arc::clone(&cuts));
        let disk = machine.disk.clone();
        spawn(move || {
            for n in 0..2 {
                let key = format!("{writer}.{n}");
                insert_durably(&db, &keyspace, &key, "x");
                cuts.lock().expect("one holder").push((key, disk.power_cut(&KeepChoice::None)));
            }
        })
    });
    let buffered = {
        let keyspace = keyspace.clone();
        spawn(move || (0..3).for_each(|n| keyspace.insert(format!("{n}"), "x").expect("it inserts")))
    };
    join(durable.into_iter().chain([buffered]));
    for (key, disk) in std::mem::take(&mut *cuts.lock().expect("one holder")) {
        let db = ModelMachine { disk, ..ModelMachine::default() }.open();
        let is_there = open_keyspace(&db, "a", engine).contains_key(&key).expect("it reads");
        assert!(is_there, "{engine}: {key} was durable");
    }
}

#[test]
fn acknowledged_durable_commits_survive_a_power_cut() {
    on_every_engine(300, durable_commits_and_others);
}

/// Scenario W28: batches with keys in opposite orders, with several keys of one stripe, and with
/// more stripes than a commit holds. (Fails if a commit does not take its stripes in ascending
/// order, or takes one twice.)
fn batches_in_opposite_orders(engine: &str) {
    const KEYS: usize = 4;
    let machine = ModelMachine::default();
    let db = machine.open();
    let keyspace = open_keyspace(&db, "a", engine);
    let commit = |writer: u8, keys: fn(usize) -> Vec<usize>| {
        let (db, keyspace) = (db.clone(), keyspace.clone());
        spawn(move || {
            for n in 0..KEYS {
                let mut batch = db.batch();
                keys(n).into_iter().for_each(|key| _ = batch.insert(&keyspace, format!("{key}"), [writer]));
                batch.commit().expect("it commits");
            }
        })
    };
    let up = commit(1, |n| vec![n, (n + 1) % KEYS]);
    let down = commit(2, |n| vec![(n + 1) % KEYS, n]);
    let all = commit(3, |n| if n == 0 { (0..2 * KEYS).rev().collect() } else { vec![n] });
    join([up, down, all]);
    assert_eq!(keyspace.len().expect("it counts"), 2 * KEYS as u64);
}

#[test]
fn batches_with_keys_in_opposite_orders_all_commit() {
    on_every_engine(300, batches_in_opposite_orders);
}

/// Scenario W32: commits during a checkpoint are in its images or after its position. (Fails if the
/// checkpoint takes its position while a commit before it is being applied.)
fn commits_during_a_checkpoint(engine: &str) {
    const KEYS: u8 = 6;
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    // A checkpoint is due after these.
    (0..20).for_each(|n| keyspace.insert([b'f', n], vec![0; 1000]).expect("it inserts"));
    let writers = [0, 1].map(|writer| {
        let keyspace = keyspace.clone();
        spawn(move || {
            for n in (0..KEYS).filter(|n| n % 2 == writer) {
                keyspace.insert([b'k', n], [n; 100]).expect("it inserts");
            }
        })
    });
    let upkeep = {
        let db = db.clone();
        spawn(move || (0..3).for_each(|_| _ = db.pump().expect("it pumps")))
    };
    join(writers.into_iter().chain([upkeep]));
    while db.pump().expect("it pumps") {} // until the journal is freed
    let db = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() }.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for n in 0..KEYS {
        let got = keyspace.get([b'k', n]).expect("it reads").map(|value| value.to_vec());
        assert_eq!(got, Some(vec![n; 100]), "{engine}: key {n}");
    }
}

#[test]
fn commits_during_a_checkpoint_survive_a_kill() {
    on_every_engine(300, commits_during_a_checkpoint);
}

/// Scenario W31: garbage collection repoints entries that commits in the window supersede. It moves
/// the oldest entries; the writer supersedes these last, so that both meet. (Fails if garbage
/// collection does not hold the stripe of the key.)
fn overwrites_during_cleaning(engine: &str) {
    const KEYS: u32 = 24;
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    // One live key and three dead ones in each segment.
    for n in 0..KEYS {
        keyspace.insert(format!("{n}"), vec![b'x'; 300]).expect("it inserts");
        (0..3).for_each(|_| keyspace.insert("dies", vec![b'x'; 900]).expect("it inserts"));
    }
    db.persist().expect("it persists");
    let upkeep = {
        let db = db.clone();
        spawn(move || (0..4).for_each(|_| _ = db.pump().expect("it pumps")))
    };
    let writer = {
        let keyspace = keyspace.clone();
        spawn(move || {
            (0..KEYS).rev().for_each(|n| keyspace.insert(format!("{n}"), "y").expect("it inserts"));
        })
    };
    join([upkeep, writer]);
    for n in 0..KEYS {
        let got = text(keyspace.get(format!("{n}")).expect("it reads"));
        assert_eq!(got.as_deref(), Some("y"), "{engine}: key {n}");
    }
}

#[test]
fn a_commit_supersedes_an_entry_that_garbage_collection_moves() {
    on_every_engine(200, overwrites_during_cleaning);
}

/// Scenario W38: a conversion copies the pairs of a view, and then the pairs that commits have
/// changed since. (Fails if it takes its view while a commit that it has recorded is not visible.)
fn commits_during_a_conversion(engine: &str) {
    const KEYS: u8 = 4;
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    let writers = [0, 1].map(|writer| {
        let keyspace = keyspace.clone();
        spawn(move || (0..KEYS).for_each(|n| keyspace.insert([writer, n], [n]).expect("it inserts")))
    });
    let other = if engine == "flex" { "flat" } else { "flex" };
    for to in [other, engine, other] {
        db.convert("a", to, |_| ControlFlow::Continue(())).expect("it converts");
    }
    join(writers);
    for n in 0..KEYS {
        let found = [0, 1].map(|writer| keyspace.contains_key([writer, n]).expect("it reads"));
        assert_eq!(found, [true; 2], "{engine}: the keys {n} of the writers");
    }
}

#[test]
fn a_conversion_keeps_commits_behind_a_hole() {
    on_every_engine(200, commits_during_a_conversion);
}

/// A verification reads the logs up to ends that it publishes: all frames before them are copied.
/// (Fails if it publishes an end before the commits below it are complete.)
fn verification_during_commits(engine: &str) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("first", "x").expect("it inserts"); // the log has a segment
    let writers = [0, 1].map(|writer| {
        let keyspace = keyspace.clone();
        spawn(move || {
            (0..4).for_each(|n| keyspace.insert(format!("{writer}.{n}"), [n; 40]).expect("it inserts"));
        })
    });
    for _ in 0..3 {
        db.verify(|error| panic!("{engine}: {error}")).expect("it verifies");
    }
    join(writers);
}

#[test]
fn a_verification_during_commits_finds_no_damage() {
    on_every_engine(300, verification_during_commits);
}

/// Scenario W34: the copy of a frame fails. That commit and all later ones end with an error, no
/// thread waits forever, and each acknowledged commit survives a kill. (Hangs if the failure does
/// not end the waits for later commits.)
fn a_failed_copy_and_other_commits(engine: &str, nth: u64) {
    let machine = ModelMachine::default();
    let db = open_on_a_slow_disk(&machine);
    let keyspace = open_keyspace(&db, "a", engine);
    keyspace.insert("first", "x").expect("it inserts"); // the log has a segment
    machine.disk.set_faults(Fault::new(CallClass::Write, FaultKind::Io).on(".seg").nth(nth));
    let writers = [0, 1, 2].map(|writer| {
        let (keyspace, is_acknowledged) = (keyspace.clone(), Arc::new(AtomicBool::new(false)));
        let told = Arc::clone(&is_acknowledged);
        let thread = spawn(move || {
            let inserted = keyspace.insert(format!("{writer}"), "x");
            told.store(inserted.is_ok(), Ordering::Relaxed);
            _ = keyspace.contains_key(format!("{writer}")); // the read ends, too
        });
        (thread, is_acknowledged)
    });
    let told = writers.map(|(thread, is_acknowledged)| {
        join([thread]);
        is_acknowledged.load(Ordering::Relaxed)
    });
    assert!(machine.disk.injected() > 0 && told.contains(&false), "a commit failed");
    let db = ModelMachine { disk: machine.disk.kill(), ..ModelMachine::default() }.open();
    let keyspace = open_keyspace(&db, "a", engine);
    for (writer, is_acknowledged) in told.into_iter().enumerate() {
        let is_there = keyspace.contains_key(format!("{writer}")).expect("it reads");
        assert!(is_there || !is_acknowledged, "{engine}: {writer} was acknowledged");
    }
}

#[test]
fn a_failed_copy_fails_later_commits_and_blocks_no_thread() {
    for nth in 1..3 {
        explore(400, move || a_failed_copy_and_other_commits("flat", nth));
        explore(60, move || a_failed_copy_and_other_commits("flex", nth));
    }
}
