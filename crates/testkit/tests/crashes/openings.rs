//! Failed openings must leave a database that can be opened.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{Database, Durability, Error, IoOp};
use sheaf_platform::sync::Mutex;
use sheaf_sim::{CallClass, Fault, FaultKind, FaultPlan, KeepChoice, SimDisk};
use sheaf_testkit::crash::machine::{DATABASE_DIR, TestMachine};
use sheaf_testkit::fixture::TestSubject;

/// Returns a disk with a database of two pairs, one of them a blob, after a close or a power cut.
fn disk(subject: &TestSubject, closed: bool) -> SimDisk {
    let machine = TestMachine::for_subject(subject, SimDisk::new());
    let db = machine.open().unwrap();
    put(&db, subject);
    if closed {
        db.close().unwrap();
    }
    machine.sim.power_cut(&KeepChoice::None)
}

fn put(db: &Database, subject: &TestSubject) {
    let keyspace = db.keyspace("k", subject.options()).unwrap();
    let mut batch = db.batch();
    batch.insert(&keyspace, "key", "value").insert(&keyspace, "large", [7; 3_000]);
    batch.durability(Durability::Sync);
    batch.commit().unwrap();
}

/// Whether the database on `sim` opens without one of its ROOT slots. If so, it must have both
/// pairs.
fn holds_without(slot: &str, subject: &TestSubject, sim: &SimDisk, context: &str) -> bool {
    let sim = sim.power_cut(&KeepChoice::None);
    let path: PathBuf = Path::new(DATABASE_DIR).join(slot);
    sim.overwrite(&path, 16, &[0xa5; 4]).unwrap();
    let db = match TestMachine::for_subject(subject, sim).open() {
        Err(Error::Corrupt { .. }) => return false, // the other slot was being written
        other => other.unwrap(),
    };
    let keyspace = db.open_keyspace("k").unwrap();
    let keyspace = keyspace.unwrap_or_else(|| panic!("without {slot}, {context}: the keyspace is missing"));
    assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"value"[..]), "without {slot}, {context}");
    assert_eq!(keyspace.get("large").unwrap().as_deref(), Some(&[7; 3_000][..]), "without {slot}, {context}");
    true
}

/// The n-th call of an opening fails, for every n. A store that knows only a part of the database
/// must not write ROOT: each readable slot must still lead to all data. (Regression: a store that
/// failed to open was dropped like a closed one and wrote an empty catalog to a slot.) A failed
/// read is not a torn tail: no durable data may be discarded because of it.
#[test]
fn a_failed_open_leaves_valid_root_slots() {
    for subject in TestSubject::all() {
        for closed in [true, false] {
            let before = disk(&subject, closed);
            for nth in 1.. {
                let machine = TestMachine::for_subject(&subject, before.power_cut(&KeepChoice::None));
                machine.sim.set_faults(Fault::new(CallClass::Any, FaultKind::Io).nth(nth));
                let opened = machine.open();
                if machine.sim.injected() == 0 {
                    assert!(nth > 20, "an opening makes more than {nth} calls");
                    break;
                }
                machine.sim.set_faults(FaultPlan::default());
                drop(opened);
                let context = format!("{subject:?}, closed: {closed}, after a failure at call {nth}");
                let ways =
                    ["ROOT.0", "ROOT.1"].map(|slot| holds_without(slot, &subject, &machine.sim, &context));
                assert!(ways.contains(&true), "no slot is left, {context}");
            }
        }
    }
}

/// Free space does not bring back data lost by a failed sync, so a full device at a sync poisons
/// the database.
#[test]
fn a_sync_that_finds_the_device_full_poisons() {
    for failure in [FaultKind::NoSpace, FaultKind::Quota] {
        let machine = TestMachine::new();
        let db = machine.open().unwrap();
        put(&db, &machine.subject);
        let keyspace = db.open_keyspace("k").unwrap().unwrap();
        keyspace.insert("key", "later").unwrap(); // may create a segment, which is synced
        machine.sim.set_faults(Fault::new(CallClass::Sync, failure));
        let synced = db.persist();
        assert!(matches!(synced, Err(Error::Poisoned { .. })), "{synced:?}");
        machine.sim.set_faults(FaultPlan::default());
        let closed = db.close();
        assert!(matches!(closed, Err(Error::Poisoned { .. })), "{closed:?}");
    }
}

/// The n-th sync of a directory with engine files fails, for every n up to the first checkpoint.
/// The kernel may have dropped any name of that directory, and reports it as durable afterwards.
/// The next opening in the same boot must create the names again.
#[test]
fn an_open_after_a_failed_directory_sync_recreates_file_names() {
    for subject in TestSubject::all() {
        for (nth, seed) in (1..).flat_map(|nth| [1, 2, 3].map(|seed| (nth, seed))) {
            let machine = TestMachine::for_subject(&subject, SimDisk::with_seed(seed));
            let what = format!("{subject:?}, sync of a directory {nth}, seed {seed}");
            let mut db = machine.open().unwrap();
            machine.sim.set_faults(Fault::new(CallClass::SyncDir, FaultKind::Io).on("/own").nth(nth));
            let filled = fill(&machine, &db, &subject, 0).and_then(|()| db.close());
            if machine.sim.injected() == 0 {
                filled.unwrap();
                break;
            }
            machine.sim.set_faults(FaultPlan::default());
            db = machine.open().unwrap();
            fill(&machine, &db, &subject, 1).and_then(|()| db.close()).unwrap();
            let db = machine.after_power_cut(&KeepChoice::None).open().unwrap();
            let keyspace = db.open_keyspace("k").unwrap().unwrap();
            for key in 0..40u8 {
                let value = keyspace.get([key]).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(value.as_deref(), Some(&[1; 60][..]), "{what}");
            }
        }
    }
}

/// Writes pairs of `version`, syncs them, and runs background work until it is done.
fn fill(machine: &TestMachine, db: &Database, subject: &TestSubject, version: u8) -> Result<(), Error> {
    let keyspace = db.keyspace("k", subject.options())?;
    for key in 0..40u8 {
        keyspace.insert([key], [version; 60])?;
    }
    db.persist()?;
    for _ in 0..8 {
        machine.run_background(db)?;
    }
    Ok(())
}

/// Changes a few keys, some of them several times, with checkpoints and GC. Returns the machine
/// after a kill.
fn machine_after_kill(machine: &TestMachine, keys: &mut [Option<u8>], seed: &mut u64) -> TestMachine {
    let db = machine.open().unwrap();
    let keyspace = db.keyspace("k", machine.subject.options()).unwrap();
    for round in 0..150u8 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = seed.to_le_bytes()[5] % 60;
        let version = (!seed.to_le_bytes()[6].is_multiple_of(3)).then_some(round);
        keys[usize::from(key)] = version;
        match version {
            Some(version) => keyspace.insert([key], [version; 200]).unwrap(),
            None => keyspace.remove([key]).unwrap(),
        }
        if (*seed >> 56).is_multiple_of(29) {
            machine.run_background(&db).unwrap();
        }
    }
    machine.after_kill()
}

/// An engine may defer replay until the first access. That access, of whichever kind, must see all
/// replayed commits.
#[test]
fn the_first_operation_after_a_kill_sees_all_replayed_commits() {
    for subject in TestSubject::all() {
        for first in 0..7 {
            let (mut keys, mut seed) = ([None; 60], first + 1);
            let mut machine = TestMachine::for_subject(&subject, SimDisk::new());
            for life in 0..6 {
                machine = machine_after_kill(&machine, &mut keys, &mut seed);
                let db = machine.open().unwrap();
                let keyspace = db.open_keyspace("k").unwrap().unwrap();
                let what = format!("{subject:?}, first {first}, life {life}");
                match first {
                    0 => {}
                    1 => assert_eq!(keyspace.len().unwrap(), keys.iter().flatten().count() as u64, "{what}"),
                    2 => machine.run_background(&db).unwrap(),
                    3 => assert!(db.pump().is_ok(), "{what}"),
                    4 => {
                        (0..60).step_by(7).for_each(|key| {
                            keyspace.insert([key], [key; 200]).unwrap();
                            keys[usize::from(key)] = Some(key);
                        });
                        let view = db.snapshot().unwrap();
                        (0..60).step_by(5).for_each(|key| {
                            keyspace.remove([key]).unwrap();
                            keys[usize::from(key)] = None;
                        });
                        drop(view);
                    }
                    5 => db.close().unwrap(),
                    _ => drop(db.verify(|error| panic!("{error}, {what}")).unwrap()),
                }
                machine = machine.after_kill();
                let db = machine.open().unwrap();
                let keyspace = db.open_keyspace("k").unwrap().unwrap();
                let mut all: Vec<(u8, u8)> = Vec::new();
                for pair in keyspace.iter().unwrap() {
                    let (key, value) = pair.unwrap();
                    all.push((key[0], value[0]));
                }
                all.sort_unstable();
                let there = |(key, version): (u8, &Option<u8>)| version.map(|version| (key, version));
                assert_eq!(all, (0u8..).zip(&keys).filter_map(there).collect::<Vec<_>>(), "{what}");
                for (key, version) in (0u8..).zip(&keys) {
                    let value = keyspace.get([key]).unwrap().map(|value| value[0]);
                    assert_eq!(value, *version, "key {key}, {what}");
                }
                machine = machine.after_kill();
            }
        }
    }
}

/// Returns a machine with a closed database of one engine, with data in the engine's own files.
fn closed_machine(subject: &TestSubject) -> TestMachine {
    let machine = TestMachine::for_subject(subject, SimDisk::new());
    let db = machine.open().unwrap();
    let keyspace = db.keyspace("k", subject.options()).unwrap();
    (0..60u8).for_each(|key| keyspace.insert([key], [key; 500]).unwrap());
    machine.run_background(&db).unwrap();
    db.close().unwrap();
    machine
}

/// Checks that a reader finds all 60 pairs and verification finds no damage.
fn reads_all(machine: &TestMachine, what: &str) {
    let db = machine.builder().read_only(true).open(DATABASE_DIR).unwrap_or_else(|e| panic!("{what}: {e}"));
    let keyspace = db.open_keyspace("k").unwrap().unwrap();
    let count = keyspace.iter().unwrap_or_else(|e| panic!("{what}: {e}")).filter(|pair| pair.is_ok()).count();
    assert_eq!(count, 60, "{what}");
    db.verify(|error| panic!("{what}: {error}")).unwrap();
}

/// A database can be read and repaired before it is opened for writing: after a close, a kill, a
/// restore, or a copy without the locks of its keyspaces.
#[test]
fn every_database_state_is_readable_before_the_first_write() {
    for subject in TestSubject::all() {
        let machine = closed_machine(&subject);
        reads_all(&machine, &format!("{subject:?}, closed"));
        // Readers create no file, so they need this lock file.
        let database = Path::new(DATABASE_DIR).join("LOCK");
        let files = machine.sim.files().into_iter().map(|(path, _)| path);
        let locks = files.filter(|path| path.ends_with("LOCK") && *path != database);
        locks.for_each(|lock| machine.sim.remove_file(&lock).unwrap());
        let report =
            machine.builder().repair(DATABASE_DIR, "/repaired", sheaf::RepairOptions::default()).unwrap();
        assert!(report.is_complete() && report.keyspaces[0].certain == 60, "{subject:?}: {report:?}");
        reads_all(&machine, &format!("{subject:?}, without locks of keyspaces"));
        let db = machine.open().unwrap();
        db.backup("/backup", sheaf::BackupOptions::default()).unwrap();
        reads_all(&machine.after_kill(), &format!("{subject:?}, killed"));
        db.close().unwrap();
        sheaf_platform::disk::remove_tree(&machine.recording_disk, Path::new(DATABASE_DIR)).unwrap();
        machine.builder().restore("/backup", DATABASE_DIR, None).unwrap();
        reads_all(&machine, &format!("{subject:?}, restored"));
        let again =
            machine.builder().repair(DATABASE_DIR, "/again", sheaf::RepairOptions::default()).unwrap();
        assert!(again.is_complete() && again.keyspaces[0].certain == 60, "{subject:?}: {again:?}");
    }
}

/// A directory that cannot be listed causes an I/O error that names it, never a finding of damage
/// or an empty keyspace.
#[test]
fn a_listing_that_fails_is_no_damage() {
    for subject in TestSubject::all() {
        let machine = closed_machine(&subject);
        for read_only in [true, false] {
            for nth in 1.. {
                let machine = TestMachine::for_subject(&subject, machine.sim.kill());
                machine.sim.set_faults(Fault::new(CallClass::List, FaultKind::Io).nth(nth));
                let opened = machine.builder().read_only(read_only).open(DATABASE_DIR);
                let read = opened.and_then(|db| {
                    let keyspace = db.open_keyspace("k")?.expect("it was made");
                    let pairs: Result<Vec<_>, _> = keyspace.iter()?.collect();
                    pairs.map(|pairs| pairs.len())
                });
                let what = format!("{subject:?}, read only: {read_only}, listing {nth}: {read:?}");
                match read {
                    Ok(count) => assert_eq!(count, 60, "{what}"),
                    Err(Error::Io { op: IoOp::List, .. }) => {}
                    Err(_) => panic!("{what}"),
                }
                if machine.sim.injected() == 0 {
                    break;
                }
            }
        }
    }
}

/// A repair or a restore is stopped at any call by a kill or a power cut. The new database opens
/// only if it is complete.
#[test]
fn an_unfinished_database_cannot_be_opened() {
    for (subject, restores) in
        [(TestSubject::flex(), false), (TestSubject::flat(), false), (TestSubject::flex(), true)]
    {
        let machine = closed_machine(&subject);
        if restores {
            let db = machine.open().unwrap();
            db.backup("/backup", sheaf::BackupOptions::default()).unwrap();
            db.close().unwrap();
        }
        let images: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
        let (seen, sim) = (Arc::clone(&images), machine.sim.clone());
        machine
            .recording_disk
            .set_observer(move |_, _| seen.lock().extend([sim.kill(), sim.power_cut(&KeepChoice::None)]));
        match restores {
            true => drop(machine.builder().restore("/backup", "/new", None).unwrap()),
            false => {
                drop(machine.builder().repair(DATABASE_DIR, "/new", sheaf::RepairOptions::default()).unwrap())
            }
        }
        machine.recording_disk.clear_observer();
        let images = std::mem::take(&mut *images.lock());
        let mut refused = 0;
        for (number, image) in images.iter().enumerate() {
            let machine = TestMachine::for_subject(&subject, image.clone());
            match machine.builder().read_only(true).create(false).open("/new") {
                Ok(db) => {
                    let keyspace = db.open_keyspace("k").unwrap();
                    let count = keyspace.map_or(0, |k| k.iter().unwrap().count());
                    assert_eq!(count, 60, "{subject:?}, restores: {restores}, image {number}");
                }
                Err(Error::NotADatabase { reason: why, .. }) if why.contains("unfinished") => {
                    refused += 1;
                    assert!(machine.builder().create(true).open("/new").is_err(), "nor to write");
                }
                Err(Error::DatabaseNotFound { .. }) => {}
                Err(error) => panic!("{subject:?}, restores: {restores}, image {number}: {error}"),
            }
        }
        assert!(refused > 10, "{subject:?}, restores: {restores}: {refused} of {}", images.len());
    }
}
