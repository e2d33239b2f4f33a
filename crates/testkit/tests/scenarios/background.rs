//! Background work that fails for one keyspace, and what it does for the others meanwhile.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sheaf::Error;
use sheaf_base::disk::sim::{Class, Failure, Fault, FaultPlan};
use sheaf_testkit::stage::{Place, Setting, Stage, Subject};

/// The first keyspace's own files, and the second one's.
const SICK: &str = "own/00000001";
const WELL: &str = "own/00000002";

/// Files below `part` of the database, with their bytes.
fn files(stage: &Stage, part: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let below = stage.path().join(part);
    let files = stage.tree().into_iter().filter(|(path, _)| path.starts_with(&below));
    files.filter_map(|(path, bytes)| Some((path, bytes?))).collect()
}

/// Scenario 19, the other half: a keyspace whose own files cannot be written takes its share of the journal, and nothing else. What its
/// neighbour froze is moved, the other log has its checkpoint, and whoever asks for the work hears of the error.
#[test]
fn a_keyspace_whose_files_fail_holds_up_no_other() {
    let stage = Stage::new(&Subject::flex(), Setting::new(Place::Simulated, true, true));
    let db = stage.open();
    let (sick, well) = (stage.keyspace(&db, "sick"), stage.keyspace(&db, "well"));
    let flat = stage.other(&db, "flat");
    while db.pump().unwrap() {}
    let sim = stage.simulated().unwrap();
    let (before, checkpoints) = (files(&stage, WELL), db.stats().checkpoints);
    sim.set_faults(Fault::new(Class::Any, Failure::Io).on(SICK).forever());
    let mut failed = None;
    for index in 0..2000_u32 {
        for keyspace in [&sick, &well, &flat] {
            keyspace.insert(index.to_be_bytes(), [7; 60]).unwrap();
        }
        failed = db.pump().err().or(failed);
    }
    let is_of_sick =
        |error: &Error| matches!(error, Error::Io { path, .. } if path.to_string_lossy().contains(SICK));
    assert!(failed.as_ref().is_some_and(is_of_sick), "{failed:?}");
    assert_ne!(files(&stage, WELL), before, "what the other one froze stays in memory");
    assert!(db.stats().checkpoints > checkpoints, "the other log has no checkpoint");

    sim.set_faults(FaultPlan::default());
    while db.pump().unwrap() {}
    drop((sick, well, flat));
    let db = stage.reopen(db);
    assert_eq!(stage.keyspace(&db, "sick").len().unwrap(), 2000);
    assert_eq!(stage.keyspace(&db, "well").len().unwrap(), 2000);
}

/// The trie of one keyspace cannot be read, so that nobody knows which of its entries are live. What is cleaned is what others overwrite:
/// the log stays within its bounds. Once the trie can be read again its segments go as well.
#[test]
fn a_victim_that_cannot_be_judged_is_left_for_another() {
    let stage = Stage::new(&Subject::cedrus(), Setting::new(Place::Simulated, true, true));
    let db = stage.open();
    let (sick, well) = (stage.keyspace(&db, "sick"), super::keyspace(&db, "well"));
    for index in (0..200_u32).chain(0..100) {
        sick.insert(index.to_be_bytes(), [7; 100]).unwrap();
    }
    drop((sick, well));
    let db = stage.reopen(db); // its pages are not in memory now
    let well = super::keyspace(&db, "well");
    let flat = |db: &sheaf::Database| db.stats().logs.into_iter().find(|log| log.name == "flat").unwrap();
    let (freed, sim) = (flat(&db).freed, stage.simulated().unwrap());
    sim.set_faults(Fault::new(Class::Read, Failure::Io).on(SICK).forever());
    let (mut failed, mut most) = (None, 0);
    for round in 0..60_u8 {
        (0..100_u32).for_each(|index| well.insert(index.to_be_bytes(), [round; 100]).unwrap());
        failed = db.pump().err().or(failed);
        (0..5).for_each(|_| drop(db.pump()));
        most = most.max(flat(&db).disk_bytes);
    }
    assert!(failed.is_some(), "all could be judged: nothing is tested");
    assert!(flat(&db).freed > freed + 10, "{:?}", flat(&db));
    sim.set_faults(FaultPlan::default());
    while db.pump().unwrap() {}
    assert!(flat(&db).disk_bytes < most, "{most}: {:?}", flat(&db));
    db.verify(|finding| panic!("{finding}")).unwrap();
    assert_eq!(stage.keyspace(&db, "sick").len().unwrap(), 200);
}
