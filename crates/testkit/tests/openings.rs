//! Openings that fail: what they leave behind must be worth opening.

#![expect(clippy::unwrap_used, reason = "a test's own steps work")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sheaf::{Database, Durability, Error};
use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan, Keep, SimDisk};
use sheaf_base::sync::Mutex;
use sheaf_testkit::crash::world::{PLACE, World};
use sheaf_testkit::stage::Subject;

/// A disk with a database of two pairs, one of them staged beside the log; closed in order or cut off.
fn disk(subject: &Subject, closed: bool) -> SimDisk {
    let world = World::of(subject, SimDisk::new());
    let db = world.open().unwrap();
    put(&db, subject);
    if closed {
        db.close().unwrap();
    }
    world.sim.power_cut(&Keep::None)
}

fn put(db: &Database, subject: &Subject) {
    let keyspace = db.keyspace("k", subject.options()).unwrap();
    let mut batch = db.batch();
    batch.insert(&keyspace, "key", "value").insert(&keyspace, "large", [7; 3_000]);
    batch.durability(Durability::Sync);
    batch.commit().unwrap();
}

/// Whether what is on `sim` opens without one of its ROOT slots; then it must hold both pairs.
fn holds_without(slot: &str, subject: &Subject, sim: &SimDisk, what: &str) -> bool {
    let sim = sim.power_cut(&Keep::None);
    let path: PathBuf = Path::new(PLACE).join(slot);
    sim.overwrite(&path, 16, &[0xa5; 4]).unwrap();
    let db = match World::of(subject, sim).open() {
        Err(Error::Corrupt { .. }) => return false, // the other one was being written
        other => other.unwrap(),
    };
    let keyspace = db.existing_keyspace("k").unwrap();
    let keyspace = keyspace.unwrap_or_else(|| panic!("without {slot}, {what}: the keyspace is gone"));
    assert_eq!(keyspace.get("key").unwrap().as_deref(), Some(&b"value"[..]), "without {slot}, {what}");
    assert_eq!(keyspace.get("large").unwrap().as_deref(), Some(&[7; 3_000][..]), "without {slot}, {what}");
    true
}

/// The n-th call of an opening fails, for every n. What knew only a part of the database may not write a ROOT:
/// each slot that can be read still leads to everything. (A store that failed to open once ended "in order"
/// when it was dropped, and wrote an empty catalogue over a slot.) And a read that fails is no torn tail: what
/// was durable is not given up for it.
#[test]
fn an_opening_that_fails_leaves_slots_worth_opening() {
    for subject in Subject::all() {
        for closed in [true, false] {
            let before = disk(&subject, closed);
            for nth in 1.. {
                let world = World::of(&subject, before.power_cut(&Keep::None));
                world.sim.set_faults(Fault::new(Class::Any, Failure::Io).nth(nth));
                let opened = world.open();
                if world.sim.injected() == 0 {
                    assert!(nth > 20, "an opening makes more than {nth} calls");
                    break;
                }
                world.sim.set_faults(FaultPlan::default());
                drop(opened);
                let what = format!("{subject:?}, closed: {closed}, after a failure at call {nth}");
                let ways = ["ROOT.0", "ROOT.1"].map(|slot| holds_without(slot, &subject, &world.sim, &what));
                assert!(ways.contains(&true), "no slot is left, {what}");
            }
        }
    }
}

/// What a failed sync has lost no room brings back: a device that is full at a sync poisons like any other.
#[test]
fn a_sync_that_finds_the_device_full_poisons() {
    for failure in [Failure::NoSpace, Failure::Quota] {
        let world = World::new();
        let db = world.open().unwrap();
        put(&db, &world.subject);
        let keyspace = db.existing_keyspace("k").unwrap().unwrap();
        keyspace.insert("key", "later").unwrap(); // may make a segment, which is synced
        world.sim.set_faults(Fault::new(Class::Sync, failure));
        let synced = db.persist();
        assert!(matches!(synced, Err(Error::Poisoned { .. })), "{synced:?}");
        world.sim.set_faults(FaultPlan::default());
        let closed = db.close();
        assert!(matches!(closed, Err(Error::Poisoned { .. })), "{closed:?}");
    }
}

/// The n-th sync of a directory of an engine's own files fails, for every n of a life that makes its first checkpoint. The kernel
/// may have dropped any name of that directory, and takes it for durable ever after: the next life, of the same boot, makes
/// the names anew.
#[test]
fn a_life_after_a_failed_sync_of_an_engines_directory_makes_its_names_anew() {
    for subject in Subject::all() {
        for (nth, seed) in (1..).flat_map(|nth| [1, 2, 3].map(|seed| (nth, seed))) {
            let world = World::of(&subject, SimDisk::with_seed(seed));
            let what = format!("{subject:?}, sync of a directory {nth}, seed {seed}");
            let mut db = world.open().unwrap();
            world.sim.set_faults(Fault::new(Class::SyncDir, Failure::Io).on("/own").nth(nth));
            let filled = fill(&world, &db, &subject, 0).and_then(|()| db.close());
            if world.sim.injected() == 0 {
                filled.unwrap();
                break;
            }
            world.sim.set_faults(FaultPlan::default());
            db = world.open().unwrap();
            fill(&world, &db, &subject, 1).and_then(|()| db.close()).unwrap();
            let db = world.cut(&Keep::None).open().unwrap();
            let keyspace = db.existing_keyspace("k").unwrap().unwrap();
            for key in 0..40u8 {
                let value = keyspace.get([key]).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(value.as_deref(), Some(&[1; 60][..]), "{what}");
            }
        }
    }
}

/// Pairs of `version`, durable, and background work until they are where they belong.
fn fill(world: &World, db: &Database, subject: &Subject, version: u8) -> Result<(), Error> {
    let keyspace = db.keyspace("k", subject.options())?;
    for key in 0..40u8 {
        keyspace.insert([key], [version; 60])?;
    }
    db.persist()?;
    for _ in 0..8 {
        world.work(db)?;
    }
    Ok(())
}

/// Changes of a few keys, also several of one, with checkpoints and cleaning among them; the machine after a kill in their midst.
fn changed(world: &World, keys: &mut [Option<u8>], seed: &mut u64) -> World {
    let db = world.open().unwrap();
    let keyspace = db.keyspace("k", world.subject.options()).unwrap();
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
            world.work(&db).unwrap();
        }
    }
    world.killed()
}

/// An engine may take in what an opening found when somebody asks for it: whoever comes first, in whatever way, sees all of it.
#[test]
fn whatever_comes_first_after_a_kill_sees_all_that_was_replayed() {
    for subject in Subject::all() {
        for first in 0..7 {
            let (mut keys, mut seed) = ([None; 60], first + 1);
            let mut world = World::of(&subject, SimDisk::new());
            for life in 0..6 {
                world = changed(&world, &mut keys, &mut seed);
                let db = world.open().unwrap();
                let keyspace = db.existing_keyspace("k").unwrap().unwrap();
                let what = format!("{subject:?}, first {first}, life {life}");
                match first {
                    0 => {}
                    1 => assert_eq!(keyspace.len().unwrap(), keys.iter().flatten().count() as u64, "{what}"),
                    2 => world.work(&db).unwrap(),
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
                world = world.killed();
                let db = world.open().unwrap();
                let keyspace = db.existing_keyspace("k").unwrap().unwrap();
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
                world = world.killed();
            }
        }
    }
}

/// A disk with a database of one engine whose own files have something in them; closed.
fn settled(subject: &Subject) -> World {
    let world = World::of(subject, SimDisk::new());
    let db = world.open().unwrap();
    let keyspace = db.keyspace("k", subject.options()).unwrap();
    (0..60u8).for_each(|key| keyspace.insert([key], [key; 500]).unwrap());
    world.work(&db).unwrap();
    db.close().unwrap();
    world
}

/// A reader finds all 60 pairs, and verification nothing.
fn reads_all(world: &World, what: &str) {
    let db = world.builder().read_only(true).open(PLACE).unwrap_or_else(|e| panic!("{what}: {e}"));
    let keyspace = db.existing_keyspace("k").unwrap().unwrap();
    let count = keyspace.iter().unwrap_or_else(|e| panic!("{what}: {e}")).filter(|pair| pair.is_ok()).count();
    assert_eq!(count, 60, "{what}");
    db.verify(|error| panic!("{what}: {error}")).unwrap();
}

/// A database that was closed, killed, restored, or copied without the locks of its keyspaces is read and repaired
/// before it is opened for writing.
#[test]
fn every_life_state_is_read_before_anybody_writes() {
    for subject in Subject::all() {
        let world = settled(&subject);
        reads_all(&world, &format!("{subject:?}, closed"));
        let database = Path::new(PLACE).join("LOCK"); // readers need this one: they create nothing
        let files = world.sim.files().into_iter().map(|(path, _)| path);
        let locks = files.filter(|path| path.ends_with("LOCK") && *path != database);
        locks.for_each(|lock| world.sim.remove_file(&lock).unwrap());
        let report = world.builder().repair(PLACE, "/repaired", sheaf::RepairOptions::default()).unwrap();
        assert!(report.is_whole() && report.keyspaces[0].certain == 60, "{subject:?}: {report:?}");
        reads_all(&world, &format!("{subject:?}, without locks of keyspaces"));
        let db = world.open().unwrap();
        db.backup("/backup", sheaf::BackupOptions::default()).unwrap();
        reads_all(&world.killed(), &format!("{subject:?}, killed"));
        db.close().unwrap();
        sheaf_base::disk::remove_tree(&world.tap, Path::new(PLACE)).unwrap();
        world.builder().restore("/backup", PLACE, None).unwrap();
        reads_all(&world, &format!("{subject:?}, restored"));
        let again = world.builder().repair(PLACE, "/again", sheaf::RepairOptions::default()).unwrap();
        assert!(again.is_whole() && again.keyspaces[0].certain == 60, "{subject:?}: {again:?}");
    }
}

/// A directory that cannot be listed is an error of the device that names it, never damage, and never an empty keyspace.
#[test]
fn a_listing_that_fails_is_no_damage() {
    for subject in Subject::all() {
        let world = settled(&subject);
        for read_only in [true, false] {
            for nth in 1.. {
                let world = World::of(&subject, world.sim.kill());
                world.sim.set_faults(Fault::new(Class::List, Failure::Io).nth(nth));
                let opened = world.builder().read_only(read_only).open(PLACE);
                let read = opened.and_then(|db| {
                    let keyspace = db.existing_keyspace("k")?.expect("it was made");
                    let pairs: Result<Vec<_>, _> = keyspace.iter()?.collect();
                    pairs.map(|pairs| pairs.len())
                });
                let what = format!("{subject:?}, read only: {read_only}, listing {nth}: {read:?}");
                match read {
                    Ok(count) => assert_eq!(count, 60, "{what}"),
                    Err(Error::Io { op: "list", .. }) => {}
                    Err(_) => panic!("{what}"),
                }
                if world.sim.injected() == 0 {
                    break;
                }
            }
        }
    }
}

/// A repair or a restoration is cut short at any of its calls, by a kill or by a power cut: what it leaves opens only if it is all there.
#[test]
fn what_is_half_filled_is_opened_by_nobody() {
    for (subject, restores) in [(Subject::flex(), false), (Subject::flat(), false), (Subject::flex(), true)] {
        let world = settled(&subject);
        if restores {
            let db = world.open().unwrap();
            db.backup("/backup", sheaf::BackupOptions::default()).unwrap();
            db.close().unwrap();
        }
        let images: Arc<Mutex<Vec<SimDisk>>> = Arc::default();
        let (seen, sim) = (Arc::clone(&images), world.sim.clone());
        world.tap.watch(move |_, _| seen.lock().extend([sim.kill(), sim.power_cut(&Keep::None)]));
        match restores {
            true => drop(world.builder().restore("/backup", "/new", None).unwrap()),
            false => drop(world.builder().repair(PLACE, "/new", sheaf::RepairOptions::default()).unwrap()),
        }
        world.tap.unwatch();
        let images = std::mem::take(&mut *images.lock());
        let mut refused = 0;
        for (number, image) in images.iter().enumerate() {
            let world = World::of(&subject, image.clone());
            match world.builder().read_only(true).create(false).open("/new") {
                Ok(db) => {
                    let keyspace = db.existing_keyspace("k").unwrap();
                    let count = keyspace.map_or(0, |k| k.iter().unwrap().count());
                    assert_eq!(count, 60, "{subject:?}, restores: {restores}, image {number}");
                }
                Err(Error::NotADatabase { why, .. }) if why.contains("unfinished") => {
                    refused += 1;
                    assert!(world.builder().create(true).open("/new").is_err(), "nor to write");
                }
                Err(Error::NotFound { .. }) => {}
                Err(error) => panic!("{subject:?}, restores: {restores}, image {number}: {error}"),
            }
        }
        assert!(refused > 10, "{subject:?}, restores: {restores}: {refused} of {}", images.len());
    }
}
