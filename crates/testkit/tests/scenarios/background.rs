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
